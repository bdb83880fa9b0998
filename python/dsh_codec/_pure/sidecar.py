"""Scans that move the streams of a log to a sidecar and back. Spec: 60 §5 to §7."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from dsh_codec._pure.buffer import bytes_of
from dsh_codec._pure.canonical import canonical_json, canonicalize
from dsh_codec._pure.json import dump, parse
from dsh_codec._pure.row import RowScanner
from dsh_codec._pure.seqs import decode_seqs
from dsh_codec._pure.stream import expand, last_chunk
from dsh_codec.errors import JsonSyntaxError, SidecarError, StreamError
from dsh_codec.limits import MAX_DEPTH, MAX_ROW_BYTES
from dsh_codec.values import deep_equal, is_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Buffer

    from dsh_codec._types import Mode, Row, ScanResult

_KINDS: Final = {"assistant/message": "message", "assistant/attempt": "attempt"}
_CHECKED: Final = (
    "seq",
    "kind",
    "turn",
    "step",
    "try",
    "replayable",
    "ending",
    "cause",
    "failure",
    "chunks",
)
_ABSENT: Final[Any] = object()


class _Digest:
    """Digest of the rows of a log. Spec: 60 §6.4."""

    def __init__(self, header: bytes, max_depth: int) -> None:
        self._hash = hashlib.sha256()
        self._max_depth = max_depth
        self._add(canonicalize(header, max_depth=max_depth))

    def add(self, row: dict[str, Any]) -> None:
        """Take the next row, whose seqs are written out."""
        # A joined row nests one level deeper than its attempt row.
        self._add(canonical_json(row, max_depth=self._max_depth + 1))

    def _add(self, text: bytes) -> None:
        self._hash.update(text)
        self._hash.update(b"\n")

    def __str__(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


class _Settlement:
    """An accepted settlement."""

    def __init__(self, row: Row, parsed: dict[str, Any]) -> None:
        self.seq = row.seq
        self.kind = _KINDS[row.type or ""]
        self.row = parsed
        self.data = parsed["data"]
        records = self.data.get("stream") if type(self.data) is dict else None
        if type(records) is not list:
            message = "the settlement has no array as its stream"
            raise StreamError(message, None, None, None, row.seq, None, None, None)
        self.records: list[Any] = records

    def with_stream(self, records: list[Any]) -> dict[str, Any]:
        """Return the row with another stream, at the same place."""
        return self.row | {"data": self.data | {"stream": records}}


class _AttemptRows:
    """Makes the attempt rows of one log, in the order of its settlements. Spec: 60 §6.2."""

    def __init__(self, causes: Callable[[int], Buffer]) -> None:
        self._causes = causes
        self._tries: dict[bytes, int] = {}

    def row(
        self, settlement: _Settlement, records: list[Any], chunks: int | None
    ) -> dict[str, Any]:
        """Return the row without its stream; `chunks` is None for an opaque one."""
        data = settlement.data
        is_replayable = chunks is not None and (
            settlement.kind == "attempt" or settlement.row.get("surfaceOp") == "append"
        )
        number = 0
        if is_replayable:
            place = dump([data.get("turn"), data.get("step")])
            number = self._tries[place] = self._tries.get(place, 0) + 1
        row = {
            "type": "attempt",
            "seq": settlement.seq,
            "kind": settlement.kind,
            "turn": data.get("turn"),
            "step": data.get("step"),
            "try": number,
            "replayable": is_replayable,
            "ending": "finish",
        }
        return row | self._ending(settlement, records) | {"chunks": chunks}

    def _ending(self, settlement: _Settlement, records: list[Any]) -> dict[str, Any]:
        """Spec: 60 §6.3."""
        if settlement.kind == "message":
            is_interrupted = settlement.data.get("interrupted") is True
            cut = {"ending": "cut", "cause": "cancelled"}
            return cut if is_interrupted else {}
        if _finish_kind(records) in ("error", "aborted"):
            return {}
        text = b"{" + bytes_of(self._causes(settlement.seq)) + b"}"
        cause: dict[str, Any] = parse(text)
        return {"ending": "cut"} | cause


def _count_chunks(records: list[Any], seq: int) -> int:
    try:
        return len(expand(records))
    except StreamError as error:
        raise StreamError(
            error.message, None, None, None, seq, None, error.rule, error.record
        ) from None


def _finish_kind(records: list[Any]) -> Any:
    try:
        chunk = last_chunk(records, "finish")
    except (StreamError, TypeError):  # Only an opaque stream has such records.
        return None
    reason = None if chunk is None else chunk.get("reason")
    kind = reason.get("kind") if type(reason) is dict else None
    return kind if type(kind) is str else None


class _Scanner:
    """What both scans share: the rows, and the digests of the full and the assembled log."""

    def __init__(
        self,
        header: Buffer,
        causes: Callable[[int], Buffer],
        *,
        mode: Mode,
        max_row_bytes: int,
        max_depth: int,
    ) -> None:
        self._scanner = RowScanner(
            mode=mode, generation=4, max_row_bytes=max_row_bytes, max_depth=max_depth
        )
        self._max_depth = max_depth
        self._full = _Digest(bytes_of(header), max_depth)
        self._assembled = _Digest(bytes_of(header), max_depth)
        self._attempts = _AttemptRows(causes)
        self._error: StreamError | None = None

    @property
    def event_count(self) -> int:
        """Accepted events."""
        return self._scanner.event_count

    @property
    def fed_bytes(self) -> int:
        """Plaintext bytes fed."""
        return self._scanner.fed_bytes

    def end_frame(self) -> None:
        """Say that a complete frame ends here."""
        self._scanner.end_frame()

    def end_complete_frames(self) -> None:
        """Say that the last complete frame ended, before a torn one is fed."""
        self._scanner.end_complete_frames()

    def finish(self) -> ScanResult:
        """End the scan."""
        return self._scanner.finish()

    def digests(self) -> tuple[str, str]:
        """Return the digests of the full and of the assembled log so far."""
        return str(self._full), str(self._assembled)

    def _digest(self, full: dict[str, Any], assembled: dict[str, Any]) -> None:
        seqs = full.get("sourceEventSeqs")
        written: dict[str, Any] = {}
        if seqs is not None:
            decoded = decode_seqs(seqs, codec="v2", max_entries=full["seq"])
            written = {"sourceEventSeqs": decoded}
        self._full.add(full | written)
        self._assembled.add(assembled | written)


class SplitScanner(_Scanner):
    """Scan of a log that takes its streams out. See `_kernel.pyi`."""

    def __init__(
        self,
        header: Buffer,
        causes: Callable[[int], Buffer],
        *,
        allow_opaque: bool = False,
        mode: Mode = "recoverable",
        max_row_bytes: int = MAX_ROW_BYTES,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        super().__init__(
            header,
            causes,
            mode=mode,
            max_row_bytes=max_row_bytes,
            max_depth=max_depth,
        )
        self._allow_opaque = allow_opaque
        self._attempt_count = 0

    @property
    def attempt_count(self) -> int:
        """Attempt rows so far."""
        return self._attempt_count

    def feed(self, data: Buffer, /) -> tuple[bytes, bytes]:
        """Take the next bytes."""
        if self._error is not None:
            raise self._error
        assembled: list[bytes] = []
        attempts: list[bytes] = []
        for row in self._scanner.feed(data):
            parsed = parse(row.raw, max_depth=self._max_depth)
            if row.type not in _KINDS:
                assembled.append(row.raw)
                self._digest(parsed, parsed)
                continue
            try:
                settlement = _Settlement(row, parsed)
                records = settlement.records
                chunks = self._count(settlement)
            except StreamError as error:
                self._error = error
                raise
            attempt = self._attempts.row(settlement, records, chunks)
            self._attempt_count += 1
            attempts.append(
                dump(attempt | {"stream": records}, max_depth=self._max_depth)
            )
            stripped = settlement.with_stream([])
            assembled.append(dump(stripped, max_depth=self._max_depth))
            self._digest(parsed, stripped)
        self._scanner.feed(b"")  # A refusal behind these rows.
        return _lines(assembled), _lines(attempts)

    def _count(self, settlement: _Settlement) -> int | None:
        try:
            return _count_chunks(settlement.records, settlement.seq)
        except StreamError:
            if not self._allow_opaque:
                raise
            return None


class JoinScanner(_Scanner):
    """Scan of an assembled log that puts the streams of a sidecar back. See `_kernel.pyi`."""

    def __init__(
        self,
        header: Buffer,
        rows: Iterable[Buffer],
        causes: Callable[[int], Buffer],
        *,
        mode: Mode = "recoverable",
        max_row_bytes: int = MAX_ROW_BYTES,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        super().__init__(
            header,
            causes,
            mode=mode,
            max_row_bytes=max_row_bytes,
            max_depth=max_depth,
        )
        self._rows = iter(rows)
        self._line = 1  # Of the sidecar; its header row is the first.
        self._last_seq: float = -1
        self._fault: SidecarError | None = None

    @property
    def fault(self) -> SidecarError | None:
        """What is wrong with the sidecar; None so far."""
        return self._fault

    def feed(self, data: Buffer, /) -> bytes:
        """Take the next bytes."""
        joined: list[bytes] = []
        for row in self._scanner.feed(data):
            parsed = parse(row.raw, max_depth=self._max_depth)
            full = parsed
            if row.type in _KINDS and self._fault is None:
                try:
                    full = self._join(row, parsed)
                except SidecarError as error:
                    self._fault = error
            if self._fault is None:
                joined.append(
                    row.raw
                    if full is parsed
                    else dump(full, max_depth=self._max_depth + 1)
                )
            self._digest(full, parsed)
        self._scanner.feed(b"")  # A refusal behind these rows.
        return _lines(joined)

    def _join(self, row: Row, parsed: dict[str, Any]) -> dict[str, Any]:
        raw = next(self._rows, None)
        self._line += 1
        if raw is None:
            message = "the settlement has no attempt row in the sidecar"
            raise self._corrupt(message, row.seq)
        try:
            settlement = _Settlement(row, parsed)
        except StreamError as error:
            raise self._corrupt(error.message, row.seq) from None
        if settlement.records:
            message = "the settlement has a stream: the log is not an assembled one"
            raise self._corrupt(message, row.seq)
        attempt = self._parse(bytes_of(raw))
        records: list[Any] = attempt["stream"]
        chunks: int | None = None
        try:
            # What is opaque is not expanded.
            if attempt.get("chunks", _ABSENT) is not None:
                chunks = _count_chunks(records, row.seq)
        except StreamError as error:
            message = f"the stream does not expand: {error.message}"
            raise self._corrupt(message, row.seq) from None
        # -0 is written as 0.
        expected = parse(dump(self._attempts.row(settlement, records, chunks)))
        for key in _CHECKED:
            if not deep_equal(attempt.get(key, _ABSENT), expected.get(key, _ABSENT)):
                message = (
                    f"{key} of the attempt row does not fit the log and the stream"
                )
                raise self._corrupt(message, row.seq)
        return settlement.with_stream(records)

    def _parse(self, raw: bytes) -> dict[str, Any]:
        try:
            attempt = parse(raw, max_depth=self._max_depth)
        except JsonSyntaxError:
            message = "the attempt row is no JSON"
            raise self._corrupt(message) from None
        if type(attempt) is not dict:
            message = "the attempt row is no JSON object"
            raise self._corrupt(message)
        if attempt.get("type") != "attempt":
            message = "the type of a row has to be attempt"
            raise self._corrupt(message)
        seq = attempt.get("seq")
        if not is_count(seq) or seq <= self._last_seq:
            message = "the seqs of attempt rows have to be counts that increase"
            raise self._corrupt(message)
        self._last_seq = seq
        if type(attempt.get("stream")) is not list:
            message = "the stream of an attempt row has to be an array"
            raise self._corrupt(message)
        return attempt

    def _corrupt(self, message: str, seq: int | None = None) -> SidecarError:
        return SidecarError(
            message, None, self._line, None, seq, None, "60 §7", "corrupt"
        )


def _lines(rows: list[bytes]) -> bytes:
    return b"".join(row + b"\n" for row in rows)
