"""Chunk rows of generations 0 and 1 that stand one behind the other in an attempt. Spec: 50 §5.3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from dsh_codec._pure.buffer import bytes_of
from dsh_codec._pure.columns import (
    StoredStream,
    checked_records,  # pyright: ignore[reportPrivateUsage] -- no part of the interface
)
from dsh_codec._pure.common import common_of, is_plain_block
from dsh_codec._pure.event import PACKED_TYPES, Decoded
from dsh_codec._pure.json import dump
from dsh_codec._pure.row import RowScanner
from dsh_codec._types import ChunkRun, StreamText
from dsh_codec.limits import MAX_DEPTH, MAX_PACKED_EVENTS, MAX_ROW_BYTES
from dsh_codec.values import is_count, is_lossless, is_sint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from dsh_codec._types import CommonRow, Mode, Row, ScanResult

_ROW_KEYS: Final = {"type", "seq", "time", "data"}
_DATA_KEYS: Final = {"turn", "step", "chunk"}
_FRAGMENTS: Final = {
    "text-delta": "text",
    "reasoning-delta": "text",
    "tool-call-delta": "argumentsDelta",
}
_BLOCK_TYPES: Final = ("text", "reasoning", "image", "file", "tool-call", "tool-result")
"""Types of blocks of old messages. Spec: 50 A.4."""

_RAW: Final = ("block-start", "block-end", "usage", "finish")


class _Member(NamedTuple):
    """A row that may be in a run."""

    turn: int
    step: int
    time: int
    is_event: bool
    is_terminal: bool


class _ValueScanner(RowScanner):
    """A scan that keeps the values of the rows that it gives."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.values: list[dict[str, Any]] = []

    def _accept(self, raw: bytes, decoded: Decoded) -> Row:
        self.values.append(decoded.value)
        return super()._accept(raw, decoded)


class RunScanner:
    """`RowScanner` that gives the chunk rows of an attempt together. See `_kernel.pyi`."""

    def __init__(
        self,
        *,
        mode: Mode = "recoverable",
        generation: int | None = None,
        max_row_bytes: int = MAX_ROW_BYTES,
        max_depth: int = MAX_DEPTH,
        max_packed_events: int = MAX_PACKED_EVENTS,
    ) -> None:
        self._max_depth = max_depth
        self._scanner = _ValueScanner(
            mode=mode,
            generation=generation,
            max_row_bytes=max_row_bytes,
            max_depth=max_depth,
            max_packed_events=max_packed_events,
        )

    @property
    def event_count(self) -> int:
        """Accepted events."""
        return self._scanner.event_count

    @property
    def fed_bytes(self) -> int:
        """Plaintext bytes fed."""
        return self._scanner.fed_bytes

    def feed(self, data: Buffer, /) -> list[Row | CommonRow | ChunkRun]:
        """Take the next bytes and return the rows and runs that they complete."""
        self._scanner.values.clear()
        rows = self._scanner.feed(data)
        header = self._scanner.header
        if header is None or header.generation > 1:
            return list(rows)
        cut = header.declared_cut or 0
        units: list[Row | CommonRow | ChunkRun] = []
        run: list[tuple[Row, _Member]] = []
        for row, value in zip(rows, self._scanner.values, strict=True):
            member = _member_of(row, value, cut)
            if run and (member is None or not _goes_on(run[-1], row, member, cut)):
                units.append(_joined(run))
                run = []
            if member is None:
                common = common_of(row, value, max_depth=self._max_depth)
                units.append(common or row)
            else:
                run.append((row, member))
        if run:
            units.append(_joined(run))
        return units

    def end_frame(self) -> None:
        """Say that a complete frame ends here."""
        self._scanner.end_frame()

    def end_complete_frames(self) -> None:
        """Say that the last complete frame ended, before a torn one is fed."""
        self._scanner.end_complete_frames()

    def finish(self) -> ScanResult:
        """End the scan."""
        return self._scanner.finish()


def _goes_on(last: tuple[Row, _Member], row: Row, member: _Member, cut: int) -> bool:
    row_before, before = last
    return (
        not before.is_terminal
        and (before.turn, before.step) == (member.turn, member.step)
        and (row_before.seq < cut) == (row.seq < cut)
    )


def _joined(run: list[tuple[Row, _Member]]) -> ChunkRun:
    (first, _), (_, last) = run[0], run[-1]
    return ChunkRun(
        first.seq,
        sum(row.count for row, _ in run),
        last.turn,
        last.step,
        last.time,
        any(member.is_event for _, member in run),
        last.is_terminal,
        b"".join(row.raw + b"\n" for row, _ in run),
        first.offset,
        first.row,
    )


def _member_of(row: Row, value: dict[str, Any], cut: int) -> _Member | None:
    if row.type == "assistant/chunk":
        return _event_member(value)
    if row.type not in PACKED_TYPES or row.seq < cut < row.seq + row.count:
        return None
    data = value["data"]
    if data.get("name") == "":
        return None
    time = int(value["time0"]) + int(sum(data["dt"]))
    return _Member(int(data["turn"]), int(data["step"]), time, False, False)


def _event_member(value: dict[str, Any]) -> _Member | None:
    data = value.get("data")
    if value.keys() != _ROW_KEYS or type(data) is not dict or data.keys() != _DATA_KEYS:
        return None
    turn, step, chunk, time = data["turn"], data["step"], data["chunk"], value["time"]
    if not is_count(turn) or not is_count(step) or not is_sint(time):
        return None
    if type(chunk) is not dict or not is_lossless(chunk):
        return None
    kind = chunk.get("type")
    if type(kind) is not str:
        return None
    if kind in _FRAGMENTS:
        if not _is_packable(kind, chunk):
            return None
    elif kind not in _RAW:
        return None
    return _Member(int(turn), int(step), int(time), True, kind == "finish")


def _is_packable(kind: str, chunk: dict[str, Any]) -> bool:
    """Whether packing takes a delta and does not keep it raw. Spec: 20 §3."""
    names = (chunk.get("id"), chunk.get("name", "-"))
    return (
        is_count(chunk.get("index"))
        and type(chunk.get(_FRAGMENTS[kind])) is str
        and (
            kind != "tool-call-delta"
            or all(type(name) is str and name != "" for name in names)
        )
    )


def pack_runs(
    runs: Buffer | Sequence[Buffer], /, *, max_depth: int = MAX_DEPTH
) -> StreamText:
    """Pack the rows of runs into the stream of an attempt. See `_kernel.pyi`."""
    pieces = cast(
        "Sequence[Buffer]", runs if isinstance(runs, list | tuple) else (runs,)
    )
    rows = [row for piece in pieces for row in bytes_of(piece).split(b"\n") if row]
    records = checked_records(StoredStream(rows, max_depth=max_depth))
    text = dump(records, max_depth=max_depth + 2)
    return StreamText(text, all(map(_has_plain_block, records)))


def _has_plain_block(record: dict[str, Any]) -> bool:
    """Whether a record names no block that migration has to look at."""
    chunk = record.get("chunk", {})
    kind = chunk.get("type")
    if kind == "block-start":
        opened = chunk.get("blockType")
        return type(opened) is str and opened in _BLOCK_TYPES
    return kind != "block-end" or is_plain_block(chunk.get("block"))
