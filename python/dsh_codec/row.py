"""Rows of a log as logical events. Spec: 10 §5."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from dsh_codec._backend import kernel
from dsh_codec._types import Row
from dsh_codec.stream import MEMBERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_codec._types import ChunkRun, SeqCodec

__all__ = ["Event", "PackedRow", "split_run"]

CHUNK_TYPE: Final = "assistant/chunk"
"""Type of the events that a packed row stands for. Spec: 10 §5.3."""

_DELTAS: Final[dict[str, tuple[str, str]]] = {
    "text-chunks": ("text-delta", "text"),
    "reasoning-chunks": ("reasoning-delta", "text"),
    "tool-call-chunks": ("tool-call-delta", "argumentsDelta"),
}


class Event:
    """One logical event. Its row's JSON is parsed when a member is first asked for.

    Attributes:
        type: Event type; None if it is no string (possible in generations 0 and 1 only).
        seq: Position in the log, from 0.
        raw: The row's bytes without the line feed, as they stand in the plaintext. Events of
            one packed row share them.
        offset: Plaintext byte where the row starts.
        frame: Zstandard frame, from 0, in which the row ends; None in a plain file.
    """

    __slots__ = (
        "_generation",
        "_max_depth",
        "_parsed",
        "_time",
        "frame",
        "offset",
        "raw",
        "seq",
        "type",
    )

    type: str | None
    seq: int
    raw: bytes
    offset: int
    frame: int | None

    def __init__(
        self, row: Row, frame: int | None, generation: int, max_depth: int
    ) -> None:
        """Take a row as the scanner gave it."""
        self.type, self.seq, self._time, self.raw, self.offset, _, _ = row
        self.frame = frame
        self._generation = generation
        self._max_depth = max_depth
        self._parsed: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """Return type, seq and time."""
        return f"Event({self.type!r}, seq={self.seq}, time={self.time})"

    @property
    def time(self) -> int | None:
        """Milliseconds since the Unix epoch, may be negative.

        None if it is no safe integer, which is possible in generations 0 and 1 only.
        """
        return self._time

    def _row(self) -> dict[str, Any]:
        parsed = self._parsed
        if parsed is None:
            parsed = self._parsed = kernel.parse(self.raw, max_depth=self._max_depth)
        return parsed

    def forget(self) -> None:
        """Drop the parsed JSON; it is parsed again when a member is asked for."""
        self._parsed = None

    @property
    def data(self) -> Any:
        """The payload, any JSON value; None also if a row of generation 0 or 1 has none."""
        return self._row().get("data")

    @property
    def ignorable(self) -> bool:
        """Whether a reader that does not know the type may skip the event."""
        return self._row().get("ignorable") is True

    @property
    def surface_op(self) -> Any:
        """The surface operation as it is written; None if there is none."""
        return self._row().get("surfaceOp")

    @property
    def source_event_seqs(self) -> list[int] | None:
        """The seqs that the event cites, ranges written out; None if there are none.

        Raises:
            RowError: Generations 0 and 1 only: the list breaks a rule of 10 §6.
        """
        row = self._row()
        if "sourceEventSeqs" not in row:
            return None
        codec: SeqCodec = "v0" if self._generation < 2 else "v2"
        return kernel.decode_seqs(
            row["sourceEventSeqs"], codec=codec, max_entries=self.seq
        )

    @property
    def envelope(self) -> dict[str, Any]:
        """The whole event as JSON: its row with `sourceEventSeqs` written out.

        A new dictionary in the row's order; its values are shared with the event.
        """
        row = dict(self._row())
        if "sourceEventSeqs" in row:
            row["sourceEventSeqs"] = self.source_event_seqs
        return row


class _MemberEvent(Event):
    """One event of a packed row."""

    __slots__ = ("_index", "_packed")

    def __init__(self, packed: PackedRow, index: int) -> None:
        self.type = CHUNK_TYPE
        self.seq = packed.seq + index
        self.raw = packed.raw
        self.offset = packed.offset
        self.frame = packed.frame
        self._packed = packed
        self._index = index
        self._parsed = None

    @property
    def time(self) -> int | None:
        return self._packed.times[self._index]

    def _row(self) -> dict[str, Any]:
        parsed = self._parsed
        if parsed is None:
            packed, index = self._packed, self._index
            data = {
                "turn": packed.turn,
                "step": packed.step,
                "chunk": packed.chunk(index),
            }
            parsed = self._parsed = {
                "type": self.type,
                "seq": self.seq,
                "time": packed.times[index],
                "data": data,
            }
        return parsed


class PackedRow:
    """A row that stands for several chunk events. Spec: 10 §5.3.

    Attributes:
        seq: Seq of the first member.
        count: Members.
        raw, offset, frame: As for `Event`.
    """

    __slots__ = (
        "_data",
        "_max_depth",
        "_tag",
        "_time0",
        "_times",
        "count",
        "frame",
        "offset",
        "raw",
        "seq",
    )

    def __init__(self, row: Row, frame: int | None, max_depth: int) -> None:
        """Take a row as the scanner gave it."""
        self._tag = row.type or ""
        self._time0 = row.time or 0
        self.seq = row.seq
        self.count = row.count
        self.raw = row.raw
        self.offset = row.offset
        self.frame = frame
        self._max_depth = max_depth
        self._data: dict[str, Any] | None = None
        self._times: list[int] | None = None

    def _payload(self) -> dict[str, Any]:
        data = self._data
        if data is None:
            data = kernel.parse(self.raw, max_depth=self._max_depth)["data"]
            self._data = data
        return data

    def forget(self) -> None:
        """Drop the parsed JSON; it is parsed again when a member is asked for."""
        self._data = self._times = None

    @property
    def turn(self) -> int:
        """The turn of all members."""
        return self._payload()["turn"]  # type: ignore[no-any-return]

    @property
    def step(self) -> int:
        """The step of all members."""
        return self._payload()["step"]  # type: ignore[no-any-return]

    @property
    def times(self) -> list[int]:
        """Time of each member in milliseconds."""
        if self._times is None:
            gaps = self._payload()["dt"]
            self._times = [int(time) for time in accumulate(gaps, initial=self._time0)]
        return self._times

    def chunk(self, index: int) -> dict[str, Any]:
        """Return the chunk of one member, key order of 10 §5.3."""
        data = self._payload()
        kind, member = _DELTAS[self._tag]
        chunk: dict[str, Any] = {"type": kind, "index": data["index"]}
        if kind == "tool-call-delta":
            chunk["id"] = data["id"]
            if "name" in data:
                chunk["name"] = data["name"]
        chunk[member] = data[MEMBERS[self._tag]][index]
        return chunk

    def timed_chunks(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the time and chunk of each member."""
        for index, time in enumerate(self.times):
            yield time, self.chunk(index)

    def events(self) -> Iterator[Event]:
        """Yield the events that the row stands for."""
        for index in range(self.count):
            yield _MemberEvent(self, index)


def split_run(run: ChunkRun, *, max_depth: int) -> Iterator[Row]:
    """Yield the rows of a run as a scan gives them one by one."""
    seq, offset = run.seq, run.offset
    for number, raw in enumerate(run.raw.split(b"\n")[:-1], run.row):
        value = kernel.parse(raw, max_depth=max_depth)
        kind = value["type"]
        time, count = value.get("time"), 1
        if kind in MEMBERS:
            time, count = value["time0"], len(value["data"][MEMBERS[kind]])
        yield Row(kind, seq, int(time), raw, offset, number, count)
        seq += count
        offset += len(raw) + 1
