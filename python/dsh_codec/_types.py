"""Values that both kernels return. Both build these very classes."""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    TypeAlias,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from dsh_codec.errors import DshCodecError

Mode: TypeAlias = Literal["strict", "recoverable"]
Level: TypeAlias = Literal["scan", "read", "restore", "full"]
"""How far a check goes: L0 and L1, up to L3, L4, L5. Spec: 00 §6."""
LEVELS: Final = ("scan", "read", "restore", "full")
Compression: TypeAlias = Literal["none", "zstd"]
SeqCodec: TypeAlias = Literal["session", "v2", "v0"]


class TimedChunk(NamedTuple):
    """One chunk of a model stream with its time. Spec: 20 §1.

    Attributes:
        time: Milliseconds since the Unix epoch, may be negative.
        chunk: The chunk, a JSON object with a `type`.
    """

    time: int
    chunk: dict[str, Any]


class Header(NamedTuple):
    """A parsed header row. Spec: 10 §4.

    Attributes:
        generation: Format generation, 0 to 4.
        fields: Logical header: `version`, `id`, `createdAt`, `isSeeded`,
            `delegationDepth` and the optional members, in this row's order; without
            `type` and `seedLength`. In generations 0 and 1 `isSeeded` is derived.
        declared_cut: `seedLength` as written (generations 0 and 1), else None.
    """

    generation: int
    fields: dict[str, Any]
    declared_cut: int | None


class Row(NamedTuple):
    """One accepted row. Spec: 10 §5.

    Attributes:
        type: Event type, or the tag of a packed row; None if it is no string
            (possible in generations 0 and 1 only).
        seq: Seq of its (first) event.
        time: Its `time` (or `time0`) in milliseconds; None if it is no safe integer
            (possible in generations 0 and 1 only).
        raw: The row's bytes as they stand in the plaintext, without the line feed.
        offset: Plaintext byte where the row starts.
        row: Number of the row, from 1; the header is not counted.
        count: Events that it stands for; above 1 only for packed rows.
    """

    type: str | None
    seq: int
    time: int | None
    raw: bytes
    offset: int
    row: int
    count: int  # type: ignore[assignment]  # the tuple's own method is not wanted


class ChunkRun(NamedTuple):
    """Neighbouring chunk rows of one attempt, in generations 0 and 1. Spec: 50 §5.3.

    All are packed rows without an empty name, or events of type `assistant/chunk` with exactly
    the members of 10 §5.3 and a chunk that packing takes (20 §3) and keeps no delta of raw. None
    stands on the other side of the declared cut, and a `finish` chunk is the last.

    Attributes:
        seq: Seq of the first chunk.
        count: Chunks.
        turn, step: Turn and step of all.
        time: Time of the last chunk in milliseconds.
        has_events: Whether a row is an event of its own, not a packed row.
        is_terminal: Whether the last chunk is a `finish`.
        raw: The rows with their line feeds.
        offset: Plaintext byte where the first row starts.
        row: Number of the first row, from 1.
    """

    seq: int
    count: int  # type: ignore[assignment]  # the tuple's own method is not wanted
    turn: int
    step: int
    time: int
    has_events: bool
    is_terminal: bool
    raw: bytes
    offset: int
    row: int


class CommonRow(NamedTuple):
    """A row of generation 0 or 1 that every migration takes. Spec: 50 §4 to §7, appendix A.

    It is a start or end of a turn or step, a call, or an appended result or message of a user
    or model, in the order of members of 10 §5.1. Its payload is admitted in each generation,
    whatever stands around it: turn and step from 1, text as the content of users and results,
    plain blocks (see `StreamText`) as that of models, no repair, no plugin, no failure.

    Attributes:
        type: Event type, the same in all generations.
        seq, time, raw, offset, row: As for `Row`.
        turn, step: From the payload; 0 where it has none.
        id: Id of the message; None if it has none.
        sources: `sourceEventSeqs` as they stand, counts and pairs of counts; None without.
        data: The payload in generation 4, but for the stream of a settlement: JSON text.
    """

    type: str
    seq: int
    time: int
    raw: bytes
    offset: int
    row: int
    turn: int
    step: int
    id: str | None
    sources: list[Any] | None
    data: bytes


class StreamText(NamedTuple):
    """The stream of an attempt as JSON text. Spec: 20 §2.

    Attributes:
        text: The records, a JSON array.
        has_plain_blocks: Whether raw records open only blocks whose types 50 A.4 names, and
            close only blocks of text, reasoning or a tool call, exactly as it has them.
    """

    text: bytes
    has_plain_blocks: bool


class RowIssue(NamedTuple):
    """Why a recoverable scan stopped accepting rows. Spec: 10 §8.1.

    Attributes:
        row: Number of the row, from 1.
        offset: Plaintext byte where the row starts.
        message: What is wrong with it.
    """

    row: int
    offset: int
    message: str


class StreamFault(NamedTuple):
    """A stream record that would not expand. Spec: 20 §4.

    Attributes:
        seq: Seq of the settlement.
        record: Index of the record in its stream, from 0; -1 when `stream` itself is
            missing or no array.
        message: Which rule it breaks.
    """

    seq: int
    record: int
    message: str


class EncodedRows(NamedTuple):
    """A batch of events as rows.

    Attributes:
        text: The rows, each with its line feed.
        event_count: Rows.
        has_marker: Whether one of them is an inherited `session/end-seed`. Spec: 10 §4.4.
    """

    text: bytes
    event_count: int
    has_marker: bool


class ScanResult(NamedTuple):
    """What a scan found. Spec: 10 §8.

    Attributes:
        header: The header.
        inherited_event_count: The inherited cut. Spec: 10 §4.4.
        event_count: Accepted events; packed rows count their members.
        row_count: Accepted rows, header not counted.
        committed_bytes: Plaintext offset behind the last accepted row.
        fed_bytes: Plaintext bytes seen, accepted or not.
        issue: First issue of a recoverable scan, else None.
        stream_count: Settlements whose streams were checked (0 if not asked to).
        record_count: Stream records, or packed rows and chunk rows in generations 0
            and 1, that were checked.
        chunk_count: Chunks that these stand for.
        stream_fault_count: Records that would not expand.
        stream_faults: The first 100 of them.
        first_time, last_time: Times of the first and last accepted event in
            milliseconds; None without events or where the row has no valid time.
    """

    header: Header
    inherited_event_count: int
    event_count: int
    row_count: int
    committed_bytes: int
    fed_bytes: int
    issue: RowIssue | None
    stream_count: int
    record_count: int
    chunk_count: int
    stream_fault_count: int
    stream_faults: tuple[StreamFault, ...]
    first_time: int | None
    last_time: int | None


class FrameScan(NamedTuple):
    """Frames of a Zstandard file, found by structure. Spec: 10 §7.3.

    Attributes:
        frames: Byte ranges `(start, end)` of the complete frames.
        torn_start: Byte where an incomplete last frame starts, else None.
    """

    frames: list[tuple[int, int]]
    torn_start: int | None


class PlainPiece(NamedTuple):
    """A piece of the plaintext of one frame.

    Attributes:
        frame: The frame, from 0.
        data: At most 1 MiB of plaintext; may be empty when `last`.
        last: Whether the frame ends with it (its checksum, if any, is then verified).
    """

    frame: int
    data: bytes
    last: bool


class FileScan(NamedTuple):
    """A scan of a whole file. Spec: 10 §8.2, §8.3.

    Attributes:
        scan: What the rows hold.
        compression: How the file is stored.
        file_bytes: Size of the file.
        plain_bytes: Plaintext bytes of all complete frames, or of the plain file.
        frame_count: Complete frames; None for a plain file.
        torn_start: File offset of a torn last frame; None without one.
        truncate_to: File offset behind everything that is committed and not torn;
            None if that is the whole file.
        recovered_count: Events accepted from a torn frame.
        findings: What the rules of a level above `scan` refuse, the decisive finding first; at
            most 100 of each layer. Errors of this package, not raised.
        finding_count: All that they refuse.
    """

    scan: ScanResult
    compression: Compression
    file_bytes: int
    plain_bytes: int
    frame_count: int | None
    torn_start: int | None
    truncate_to: int | None
    recovered_count: int
    findings: tuple[DshCodecError, ...] = ()
    finding_count: int = 0


class ChunkKind(IntEnum):
    """Code of a chunk's type in the `kind` of columns. Spec: 20 §1.

    Choice: the types in the order in which rows hold them; OTHER is every other type.
    """

    TEXT = 0
    REASONING = 1
    TOOL_CALL = 2
    BLOCK_START = 3
    BLOCK_END = 4
    USAGE = 5
    FINISH = 6
    OTHER = 7


class Settlement(NamedTuple):
    """Where a settlement stands: what its columns do not tell. Spec: 80 §3.

    Attributes:
        seq: Its seq.
        time: Its time in milliseconds; None if it has no valid time (possible in generations 0
            and 1 only).
        outcome: `message`, `interrupted` or `failed`, see `Attempt`.
        turn, step: As the log has them, counts from 1 in sound logs; None if absent.
    """

    seq: int
    time: int | None
    outcome: Literal["message", "interrupted", "failed"]
    turn: Any
    step: Any


class SettlementColumns(NamedTuple):
    """The m settlements that a scan found since the last ones, as NumPy arrays. Spec: 80 §3.

    Attributes:
        seq: uint64, shape (m,).
        outcome: int8, shape (m,): 0 `message`, 1 `interrupted`, 2 `failed`.
        turn, step: int64, shape (m,); 0 for settlements that `others` has.
        others: Those whose turn and step are not both `int`, with their position in the arrays:
            turn and step as in `Settlement`.
    """

    seq: npt.NDArray[np.uint64]
    outcome: npt.NDArray[np.int8]
    turn: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    others: list[tuple[int, Any, Any]]


class _Columns:
    """What the columns of one stream and of many have in common.

    Chunks of one record share their index, so it is kept once a record and written out for each
    chunk when somebody asks: of the 29 bytes that a chunk takes with it, 21 remain.
    """

    _names: ClassVar[tuple[str, ...]] = (
        "time",
        "kind",
        "index",
        "record",
        "offset",
        "text",
    )

    def __init__(
        self,
        time: npt.NDArray[np.int64],
        kind: npt.NDArray[np.uint8],
        record: npt.NDArray[np.int32],
        offset: npt.NDArray[np.int64],
        text: npt.NDArray[np.uint8],
        record_index: npt.NDArray[np.int64],
        record_named: npt.NDArray[np.bool_],
    ) -> None:
        """Keep the arrays."""
        self.time = time
        self.kind = kind
        self.record = record
        self.offset = offset
        self.text = text
        self.record_index = record_index
        self.record_named = record_named

    def __repr__(self) -> str:
        """Return the number of chunks."""
        return f"{type(self).__name__}({len(self.time)} chunks)"

    def __len__(self) -> int:
        """Return the number of columns that iterating yields."""
        return len(self._names)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the columns in the order in which the class lists them."""
        for name in self._names:
            yield getattr(self, name)

    @cached_property
    def index(self) -> npt.NDArray[np.int64]:
        """Block index of each chunk, see the class; made on first use, 8 bytes a chunk."""
        import numpy as np

        count = len(self.time)
        is_first = np.ones(count, np.bool_)
        np.not_equal(self.record[1:], self.record[:-1], out=is_first[1:])
        self._mark_attempts(is_first)
        firsts = is_first.nonzero()[0]
        lengths = np.diff(firsts, append=count)
        return self.record_index.take(self._records_of(firsts)).repeat(lengths)

    @property
    def token(self) -> npt.NDArray[np.bool_]:
        """Whether each chunk is a token delta (20 §5), shape (n,); made on each use."""
        is_token = self.offset[1:] > self.offset[:-1]
        empty = (~is_token).nonzero()[0]
        is_token[empty] = self.record_named[self._records_of(empty)]
        return is_token

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, without those that are made when somebody asks."""
        arrays = (self.time, self.kind, self.record, self.offset, self.text)
        records = self.record_index.nbytes + self.record_named.nbytes
        return sum(array.nbytes for array in arrays) + records

    def _mark_attempts(self, is_first: npt.NDArray[np.bool_]) -> None:
        """Mark the first chunk of each attempt."""

    def _records_of(self, chunks: npt.NDArray[np.intp]) -> npt.NDArray[np.integer[Any]]:
        """Return where the records of some chunks are in the columns of records."""
        return self.record[chunks]


class StreamColumns(_Columns):
    """The n chunks of one stream as NumPy arrays. Spec: 20 §4.

    Attributes:
        time: int64, shape (n,), milliseconds since the Unix epoch, may be negative.
        kind: uint8, shape (n,), code of the chunk type, see `ChunkKind`.
        index: int64, shape (n,), block index; -1 where a raw chunk has none. Made on first use.
        record: int32, shape (n,), position of the chunk's record in its stream.
        offset: int64, shape (n + 1,), byte positions in `text`; first 0, last len(text).
        text: uint8, shape (offset[-1],), fragments of all deltas: text, reasoning, and the
            argument text of tool calls; other chunks have none. UTF-8; lone surrogates as
            WTF-8. A pair that is split over two fragments stays two halves.
        record_index: int64, shape (r,), block index of each record.
        record_named: bool, shape (r,), whether each is of tool-call deltas with a name; these
            are token deltas even where they are empty (20 §5).
        token: bool, shape (n,), whether each chunk is a token delta. Made on each use.

    Iterating yields the first six.
    """


class AttemptColumns(_Columns):
    """The n chunks of m attempts as NumPy arrays. Spec: 20 §4, 80.

    Attributes:
        time, kind, index, record, offset, text, record_index, record_named, token: As in
            `StreamColumns`, the attempts one behind the other; `record` starts at 0 in each.
        attempt: int64, shape (m + 1,), first chunk of each attempt; first 0, last n.
        attempt_record: int64, shape (m + 1,), first record of each attempt; first 0, last r.

    Iterating yields the first six, and `attempt`.
    """

    _names = (*_Columns._names, "attempt")

    def __init__(
        self,
        time: npt.NDArray[np.int64],
        kind: npt.NDArray[np.uint8],
        record: npt.NDArray[np.int32],
        offset: npt.NDArray[np.int64],
        text: npt.NDArray[np.uint8],
        record_index: npt.NDArray[np.int64],
        record_named: npt.NDArray[np.bool_],
        attempt: npt.NDArray[np.int64],
        attempt_record: npt.NDArray[np.int64],
    ) -> None:
        """Keep the arrays."""
        super().__init__(time, kind, record, offset, text, record_index, record_named)
        self.attempt = attempt
        self.attempt_record = attempt_record

    def _mark_attempts(self, is_first: npt.NDArray[np.bool_]) -> None:
        firsts = self.attempt[:-1]
        is_first[firsts[firsts < len(is_first)]] = True

    def _records_of(self, chunks: npt.NDArray[np.intp]) -> npt.NDArray[np.integer[Any]]:
        attempts = self.attempt.searchsorted(chunks, "right") - 1
        return self.attempt_record[attempts] + self.record[chunks]

    def stream(self, number: int, /) -> StreamColumns:
        """Return the columns of one attempt, from 0.

        All are views but `offset`, which starts at 0 again.

        Raises:
            IndexError: There is no such attempt.
        """
        if not 0 <= number < len(self.attempt) - 1:
            message = f"there is no attempt {number}"
            raise IndexError(message)
        first, last = self.attempt[number : number + 2].tolist()
        start, end = self.offset[[first, last]].tolist()
        records = slice(*self.attempt_record[number : number + 2].tolist())
        return StreamColumns(
            self.time[first:last],
            self.kind[first:last],
            self.record[first:last],
            self.offset[first : last + 1] - start,
            self.text[start:end],
            self.record_index[records],
            self.record_named[records],
        )


CallOutcome: TypeAlias = Literal[
    "message", "interrupted", "failed", "open", "compaction", "auxiliary"
]


class DerivedColumns(NamedTuple):
    """Which of some consecutive chunks are what, as `derive_columns` found them. Spec: 20 §5.

    Attributes:
        indexed: Those that have a block index. Like each of the three: a uint8 array with one bit
            for each chunk, the first one lowest in the first byte, as Arrow has them; and how
            many are set.
        token: Those that are token deltas.
        gap: Those that are token deltas, but the first of each attempt.
        last_token: Time of the last token delta of the last chunk's attempt so far, in
            milliseconds since the Unix epoch; None without one.
    """

    indexed: tuple[npt.NDArray[np.uint8], int]
    token: tuple[npt.NDArray[np.uint8], int]
    gap: tuple[npt.NDArray[np.uint8], int]
    last_token: int | None


class ToolTime(NamedTuple):
    """How long one tool call took.

    Attributes:
        call_id: Its id, as the model gave it.
        ms: From `tool/call` to `tool/result`; None if it did not start or was not answered.
    """

    call_id: str
    ms: int | None


class Call(NamedTuple):
    """One call of a model. Everything that is not known is None, never zero.

    Times are milliseconds since the Unix epoch by the log's clock, durations milliseconds,
    tokens counts. Spec: 80 §3 to §5.

    Attributes:
        session: Id of the session.
        seq: Seq of the settlement (in generations 0 and 1 of the message; of the last chunk
            where no message took the chunks), of the summary, or of the request.
        turn, step: Where it was made, from 1; `step` is None for a compaction.
        attempt: From 1 within its turn and step; None for calls that are no attempts.
        outcome: `message`: accepted. `interrupted`: accepted as far as it came. `failed`: not
            accepted. `open`: generations 0 and 1 only, the log ends inside it. `compaction`:
            wrote a summary. `auxiliary`: a request whose usage no log tells.
        finish: Kind of the last finish reason of the stream.
        provider, model: What was asked for.
        served_model: What answered, where it is another model.
        input, cache_read, cache_write, output: Disjoint numbers of tokens.
        reasoning: Part of `output`.
        total: Sum of the four, absent cache members counted as zero.
        recorded_total: What the log says about the total.
        start_ms: Start of the attempt.
        first_token_ms, last_token_ms: First and last token of the stream.
        end_ms: Last member of the stream.
        ttft: Time to the first token.
        generation: Time from the first token to the last.
        output_rate: Output tokens per second of `generation`.
        tools: The tool calls of a message; None if not asked for.
        gaps: Differences of consecutive token deltas; None if not asked for.
        own: Whether the session made the call itself and did not inherit it.
    """

    session: str
    seq: int
    turn: int | None
    step: int | None
    attempt: int | None
    outcome: CallOutcome
    finish: str | None
    provider: str | None
    model: str | None
    served_model: str | None
    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    reasoning: int | None
    total: int | None
    recorded_total: int | None
    start_ms: int | None
    first_token_ms: int | None
    last_token_ms: int | None
    end_ms: int | None
    ttft: int | None
    generation: int | None
    output_rate: float | None
    tools: tuple[ToolTime, ...] | None
    gaps: tuple[int, ...] | None
    own: bool


class TimedCall(NamedTuple):
    """A call and when it was recorded.

    Attributes:
        call: The call.
        time_ms: Time of the event that `call.seq` names; None if it has no valid time.
    """

    call: Call
    time_ms: int | None


class CallScan(NamedTuple):
    """The calls of a log file.

    Attributes:
        header: Its header.
        compression: How it is stored.
        calls: Its calls in the order of their seqs.
    """

    header: Header
    compression: Compression
    calls: list[TimedCall]


class TokenSums(NamedTuple):
    """Tokens of some calls. Spec: 80 §4.

    Attributes:
        calls: Number of calls.
        sums: Sums of the columns `input`, `output`, `cache_read`, `cache_write`, `reasoning` and
            `total` over the calls that know them.
        known: For each of these columns, the number of calls that know it.
    """

    calls: int
    sums: tuple[int, ...]
    known: tuple[int, ...]


class TokenScan(NamedTuple):
    """Tokens of the own calls of a log file.

    Attributes:
        header: Its header.
        compression: How it is stored.
        sums: The sums.
    """

    header: Header
    compression: Compression
    sums: TokenSums
