"""Streams as NumPy arrays, and streams that stay bytes. Spec: 20 §4, §5; 10 §5.3."""

# pyright: reportPrivateUsage=false
# The functions here are a part of the class that they look into.

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from dsh_codec._pure.buffer import bytes_of
from dsh_codec._pure.event import decode_early
from dsh_codec._pure.json import parse
from dsh_codec._pure.row import RowScanner
from dsh_codec._pure.stream import (
    DELTA_OF,
    Packer,
    check_record,
    expand,
    first_token_time,
    has_visible_content,
    iter_expand,
    join_text,
    last_chunk,
)
from dsh_codec._types import (
    AttemptColumns,
    ChunkKind,
    DerivedColumns,
    Settlement,
    SettlementColumns,
    StreamColumns,
)
from dsh_codec.errors import DshCodecError, RowError, StreamError
from dsh_codec.limits import MAX_DEPTH, MAX_ROW_BYTES, MAX_SAFE_INTEGER
from dsh_codec.values import fuse, is_count, is_lossless, is_sint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Buffer

    from dsh_codec._types import Mode, Row, ScanResult

_KINDS: Final = {
    "text-delta": ChunkKind.TEXT,
    "reasoning-delta": ChunkKind.REASONING,
    "tool-call-delta": ChunkKind.TOOL_CALL,
    "block-start": ChunkKind.BLOCK_START,
    "block-end": ChunkKind.BLOCK_END,
    "usage": ChunkKind.USAGE,
    "finish": ChunkKind.FINISH,
}
_FRAGMENTS: Final = {
    ChunkKind.TEXT: "text",
    ChunkKind.REASONING: "text",
    ChunkKind.TOOL_CALL: "argumentsDelta",
}
_SETTLEMENTS: Final = ("assistant/message", "assistant/attempt")
_NO_INDEX: Final = -1


class _Columns:
    """Columns that grow."""

    def __init__(self, *, keeps_text: bool = True) -> None:
        self.keeps_text = keeps_text
        self.times: list[int] = []
        self.kinds = bytearray()
        self.records: list[int] = []
        self.offsets = [0]
        self.text = bytearray()
        self.attempts = [0]
        self.record_indices: list[int] = []
        self.record_named: list[bool] = []
        self.attempt_records = [0]

    def add_attempt(self, records: Sequence[Mapping[str, Any]]) -> None:
        for number, record in enumerate(records):
            check_record(record, number)
            if record["type"] == "chunk":
                self._add_chunk(number, record["time"], record["chunk"])
            else:
                self._add_run(number, record)
        self.attempts.append(len(self.times))
        self.attempt_records.append(len(self.record_indices))

    def _add_run(self, number: int, record: Mapping[str, Any]) -> None:
        kind = _KINDS[DELTA_OF[record["type"]]]
        members = record["args" if kind == ChunkKind.TOOL_CALL else "texts"]
        count = len(members)
        self.times += map(int, accumulate(record["dt"], initial=record["time0"]))
        self.kinds += bytes([kind]) * count
        self.records += [number] * count
        self.record_indices.append(int(record["index"]))
        self.record_named.append("name" in record)
        for fragment in members:
            self._add_text(fragment)

    def _add_chunk(self, number: int, time: float, chunk: dict[str, Any]) -> None:
        name, index = chunk.get("type"), chunk.get("index")
        kind = ChunkKind.OTHER
        if type(name) is str:
            kind = _KINDS.get(name, ChunkKind.OTHER)
        fragment = chunk.get(_FRAGMENTS[kind]) if kind in _FRAGMENTS else None
        self.times.append(int(time))
        self.kinds.append(kind)
        self.records.append(number)
        self.record_indices.append(int(index) if is_count(index) else _NO_INDEX)
        self.record_named.append(kind == ChunkKind.TOOL_CALL and "name" in chunk)
        self._add_text(fragment if type(fragment) is str else "")

    def _add_text(self, fragment: str) -> None:
        try:
            text = fragment.encode()
        except UnicodeEncodeError:
            # Two halves side by side are one character, as in every string of the format.
            text = fuse(fragment).encode("utf-8", "surrogatepass")
        if self.keeps_text:
            self.text += text
        self.offsets.append(self.offsets[-1] + len(text))

    def of_stream(self) -> StreamColumns:
        import numpy as np

        return StreamColumns(
            np.array(self.times, np.int64),
            np.frombuffer(self.kinds, np.uint8),
            np.array(self.records, np.int32),
            np.array(self.offsets, np.int64),
            np.frombuffer(self.text, np.uint8),
            np.array(self.record_indices, np.int64),
            np.array(self.record_named, np.bool_),
        )

    def of_attempts(self) -> AttemptColumns:
        import numpy as np

        columns = self.of_stream()
        return AttemptColumns(
            columns.time,
            columns.kind,
            columns.record,
            columns.offset,
            columns.text,
            columns.record_index,
            columns.record_named,
            np.array(self.attempts, np.int64),
            np.array(self.attempt_records, np.int64),
        )


def stream_columns(records: Sequence[Mapping[str, Any]], /) -> StreamColumns:
    """Flatten the records of one stream into columns. See `_kernel.pyi`."""
    iter_expand(records)  # Refuses what is no list.
    columns = _Columns()
    columns.add_attempt(records)
    return columns.of_stream()


def row_columns(
    rows: Buffer | Sequence[Buffer | Sequence[Buffer]], /, *, max_depth: int = MAX_DEPTH
) -> AttemptColumns:
    """Flatten the chunks that rows of a log hold into columns. See `_kernel.pyi`."""
    columns = _Columns()
    attempts: list[Any] = [rows]
    if isinstance(rows, (list, tuple)):
        attempts = list(rows)
    for attempt in attempts:
        parsed = _parse_rows(_rows_of(attempt), max_depth)
        columns.add_attempt(_records_of(parsed, checked=True))
    return columns.of_attempts()


def _rows_of(rows: Buffer | Sequence[Buffer]) -> list[bytes]:
    """Return one row, or the rows of a list or tuple."""
    several: list[Any] = [rows]
    if isinstance(rows, (list, tuple)):
        several = list(rows)
    return [bytes_of(row) for row in several]


def _parse_rows(rows: list[bytes], max_depth: int) -> Iterator[Any]:
    for row in rows:
        yield parse(row, max_depth=max_depth)


def _members(value: Any) -> dict[str, Any]:
    return value if type(value) is dict else {}


def _records_of(rows: Iterator[Any], *, checked: bool) -> list[dict[str, Any]]:
    """Return the records that the rows of one attempt hold or pack to. Spec: 20 §3.

    Args:
        rows: Parsed rows.
        checked: Whether the first record that would not expand is refused.
    """
    records = _Records(checked=checked)
    for value in rows:
        row = _members(value)
        try:
            records.add_row(row)
        except DshCodecError as error:
            if not checked:
                raise
            seq = row.get("seq", row.get("seq0"))
            raise error.located(
                seq=int(seq) if is_count(seq) else None
            ) from error.__cause__
    return records.all


class _Records:
    """Records of one attempt, from its rows."""

    def __init__(self, *, checked: bool) -> None:
        self._records: list[Any] = []
        self._packer = Packer()
        self._is_checked = checked

    @property
    def all(self) -> list[Any]:
        self._end_run()
        return self._records

    def add_row(self, row: dict[str, Any]) -> None:
        kind, data = row.get("type"), _members(row.get("data"))
        if kind in _SETTLEMENTS:
            self._end_run()
            stream = data.get("stream")
            for record in stream if type(stream) is list else []:
                self._add_record(record)
        elif kind == "assistant/chunk":
            time = row.get("time")
            self._push(int(time) if is_sint(time) else None, data.get("chunk"))
        elif type(kind) is str and kind in DELTA_OF:
            decoded = decode_early(row, MAX_SAFE_INTEGER)
            for time, chunk in _packed_chunks(kind, decoded.time or 0, data):
                self._push(time, chunk)
        else:
            message = "the row is no settlement, packed row or chunk row, so it holds no chunks"
            raise RowError(message)

    def _push(self, time: int | None, chunk: Any) -> None:
        try:
            self._packer.push(time, chunk)
        except StreamError:
            # What packing refuses is a raw record, see `dsh_codec.attempts`.
            self._end_run()
            if self._is_checked and time is None:
                self._refuse("time of a chunk row has to be a safe integer")
            if self._is_checked and (type(chunk) is not dict or not is_lossless(chunk)):
                self._refuse(
                    "chunk of a chunk row has to be an object and lossless JSON: "
                    "no -0 and no number that is not finite"
                )
            self._records.append({"type": "chunk", "time": time, "chunk": chunk})

    def _refuse(self, message: str) -> NoReturn:
        raise StreamError(message, *(None,) * 6, len(self._records)) from None

    def _add_record(self, record: Any) -> None:
        self._end_run()
        if self._is_checked:
            check_record(record, len(self._records))
        self._records.append(record)

    def _end_run(self) -> None:
        self._records += self._packer.snapshot()
        self._packer = Packer()


def _packed_chunks(
    tag: str, time: int, data: dict[str, Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the time and chunk of each member of a packed row. Spec: 10 §5.3."""
    head = {"type": DELTA_OF[tag], "index": data["index"]}
    head |= {key: data[key] for key in ("id", "name") if key in data}
    is_tool_call = tag == "tool-call-chunks"
    key = "argumentsDelta" if is_tool_call else "text"
    gaps = iter(data["dt"])
    for member in data["args" if is_tool_call else "texts"]:
        yield time, head | {key: member}
        time += int(next(gaps, 0))


def derive_columns(
    columns: AttemptColumns,
    start: int,
    end: int,
    last_token: int | None,
    /,
    *,
    index: npt.NDArray[np.int64] | None = None,
    gap: npt.NDArray[np.int64] | None = None,
    byte_len: npt.NDArray[np.int64] | None = None,
    of_attempts: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
    | None = None,
) -> DerivedColumns:
    """Write columns that follow from others. See `_kernel.pyi`."""
    import numpy as np

    count = end - start
    arrays = [index, gap, byte_len, *(out for _, out in of_attempts or ())]
    if not 0 <= start <= end <= len(columns.time) or any(
        array is not None and len(array) != count for array in arrays
    ):
        message = "there are no such chunks, or an array has another number of places"
        raise ValueError(message)
    chunks = np.arange(start, end)
    attempt = columns.attempt.searchsorted(chunks, "right") - 1
    record = columns.attempt_record[attempt] + columns.record[start:end]
    indices = columns.record_index[record]
    lengths = columns.offset[start + 1 : end + 1] - columns.offset[start:end]
    is_token = (lengths > 0) | columns.record_named[record]
    gaps = [0] * count
    has_gap = [False] * count
    is_first = columns.attempt[attempt] == chunks
    for at, time in enumerate(columns.time[start:end].tolist()):
        if is_first[at]:
            last_token = None
        if is_token[at]:
            if last_token is not None:
                gaps[at], has_gap[at] = time - last_token, True
            last_token = time
    for values, out in (
        (indices, index),
        (np.array(gaps, np.int64), gap),
        (lengths, byte_len),
        *((each[attempt], out) for each, out in of_attempts or ()),
    ):
        if out is not None:
            out[:] = values
    return DerivedColumns(
        _bits(indices >= 0), _bits(is_token), _bits(np.array(has_gap)), last_token
    )


def _bits(flags: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.uint8], int]:
    import numpy as np

    packed = np.packbits(flags.astype(np.bool_), bitorder="little")
    return packed, int(flags.sum())


class StoredStream:
    """The stream of one attempt, read from the bytes of its rows. See `_kernel.pyi`."""

    def __init__(
        self, rows: Buffer | Sequence[Buffer], *, max_depth: int = MAX_DEPTH
    ) -> None:
        self._rows = _rows_of(rows)
        self._max_depth = max_depth
        first = next(_parse_rows(self._rows[:1], max_depth), None)
        self._first = _members(first)
        self._data = _members(self._first.get("data"))
        self._kept: list[Any] | None = None

    @property
    def turn(self) -> Any:
        """`turn` of the first row."""
        return self._data.get("turn")

    @property
    def step(self) -> Any:
        """`step` of the first row."""
        return self._data.get("step")

    @property
    def is_interrupted(self) -> bool:
        """Whether `interrupted` of the first row is true."""
        return self._data.get("interrupted") is True

    def chunk_count(self) -> int:
        """Return the number of chunks."""
        return sum(map(_count_members, self._records()))

    def text(self) -> str:
        """Return all text deltas joined."""
        return join_text(self._records())

    def first_token_time(self) -> int | None:
        """Return the time in milliseconds of the first token."""
        return first_token_time(self._records())

    def time_span(self) -> tuple[int, int] | None:
        """Return the times of the first and the last chunk."""
        if len(self._rows) == 1 and self._first.get("type") in _SETTLEMENTS:
            records = self._records()
            if not records:
                return None
            check_record(records[0], 0)
            check_record(records[-1], len(records) - 1)
            return expand(records[:1])[0].time, expand(records[-1:])[-1].time
        times = self.columns().time
        return (int(times[0]), int(times[-1])) if len(times) else None

    def has_visible_content(self) -> bool:
        """Whether any chunk shows something."""
        return has_visible_content(self._records())

    def last_chunk(
        self,
        type: str,  # noqa: A002 -- the name in the interface.
        /,
    ) -> dict[str, Any] | None:
        """Return the last raw chunk of a type."""
        return last_chunk(self._records(), type)

    def columns(self) -> StreamColumns:
        """Return the columns of the attempt."""
        columns = _Columns()
        columns.add_attempt(checked_records(self))
        return columns.of_stream()

    def _records(self) -> list[Any]:
        if self._kept is None:
            parsed = _parse_rows(self._rows, self._max_depth)
            self._kept = _records_of(parsed, checked=False)
        return self._kept


def checked_records(stream: StoredStream) -> list[Any]:
    """Return the records of a stored stream; the first that would not expand is refused."""
    parsed = _parse_rows(stream._rows, stream._max_depth)
    return _records_of(parsed, checked=True)


def _count_members(record: Any) -> int:
    kind = _members(record).get("type")
    if type(kind) is str and kind in DELTA_OF:
        members = record.get("args" if kind == "tool-call-chunks" else "texts")
        if type(members) is list:
            return len(members)
    return 1


def _settlement_of(row: Row, value: Any) -> Settlement:
    data = _members(value.get("data"))
    outcome: Literal["message", "interrupted", "failed"] = "message"
    if row.type == "assistant/attempt":
        outcome = "failed"
    elif data.get("interrupted") is True:
        outcome = "interrupted"
    return Settlement(row.seq, row.time, outcome, data.get("turn"), data.get("step"))


class ColumnScanner:
    """Scan that keeps the chunks of settlements as columns. See `_kernel.pyi`."""

    def __init__(
        self,
        *,
        mode: Mode = "recoverable",
        generation: int | None = None,
        text: bool = True,
        max_row_bytes: int = MAX_ROW_BYTES,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        self._scanner = RowScanner(
            mode=mode,
            generation=generation,
            max_row_bytes=max_row_bytes,
            max_depth=max_depth,
        )
        self._max_depth = max_depth
        self._columns = _Columns(keeps_text=text)
        self._settlements: list[Settlement] = []
        self._fault: StreamError | None = None

    @property
    def event_count(self) -> int:
        """Accepted events."""
        return self._scanner.event_count

    @property
    def fed_bytes(self) -> int:
        """Plaintext bytes fed."""
        return self._scanner.fed_bytes

    def feed(self, data: Buffer, /) -> None:
        """Take the next bytes."""
        if self._fault is not None:
            raise self._fault
        for row in self._scanner.feed(data):
            if row.type in _SETTLEMENTS:
                (value,) = _parse_rows([row.raw], self._max_depth)
                try:
                    records = _records_of(iter([value]), checked=True)
                except StreamError as error:
                    self._fault = error
                    raise
                self._columns.add_attempt(records)
                self._settlements.append(_settlement_of(row, value))
        self._scanner.feed(b"")  # Raises a refusal that had rows before it.

    def add_attempt(self, stream: StoredStream, /) -> None:
        """Add an attempt that the scan does not find."""
        self._columns.add_attempt(checked_records(stream))

    def end_frame(self) -> None:
        """Say that a complete frame ends here."""
        self._scanner.end_frame()

    def end_complete_frames(self) -> None:
        """Say that the last complete frame ended, before a torn one is fed."""
        self._scanner.end_complete_frames()

    def finish(self) -> ScanResult:
        """End the scan."""
        return self._scanner.finish()

    def take_settlements(self) -> list[Settlement]:
        """Return the settlements since the last call."""
        settlements, self._settlements = self._settlements, []
        return settlements

    def take_settlement_columns(self) -> SettlementColumns:
        """Return the settlements since the last call as arrays."""
        import numpy as np

        found = self.take_settlements()
        codes = {"message": 0, "interrupted": 1, "failed": 2}
        places = [(each.turn, each.step) for each in found]
        others = []
        for position, (turn, step) in enumerate(places):
            if type(turn) is not int or type(step) is not int:
                others.append((position, turn, step))
                places[position] = 0, 0
        return SettlementColumns(
            np.array([each.seq for each in found], np.uint64),
            np.array([codes[each.outcome] for each in found], np.int8),
            np.array([turn for turn, _ in places], np.int64),
            np.array([step for _, step in places], np.int64),
            others,
        )

    def take_columns(self) -> AttemptColumns:
        """Return the columns so far, and start new ones."""
        columns = self._columns
        self._columns = _Columns(keeps_text=columns.keeps_text)
        return columns.of_attempts()
