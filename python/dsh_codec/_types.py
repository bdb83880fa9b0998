"""Values that both kernels return. Both build these very classes."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
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


class StreamColumns(NamedTuple):
    """The n chunks of one stream as NumPy arrays. Spec: 20 §4.

    Attributes:
        time: int64, shape (n,), milliseconds since the Unix epoch, may be negative.
        kind: uint8, shape (n,), code of the chunk type, see `ChunkKind`.
        index: int64, shape (n,), block index; -1 where a raw chunk has none.
        record: int32, shape (n,), position of the chunk's record in its stream.
        offset: int64, shape (n + 1,), byte positions in `text`; first 0, last len(text).
        text: uint8, shape (offset[-1],), fragments of all deltas: text, reasoning, and the
            argument text of tool calls; other chunks have none. UTF-8; lone surrogates as
            WTF-8. A pair that is split over two fragments stays two halves.
    """

    time: npt.NDArray[np.int64]
    kind: npt.NDArray[np.uint8]
    index: npt.NDArray[np.int64]  # type: ignore[assignment]  # the tuple's own method
    record: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    text: npt.NDArray[np.uint8]


class AttemptColumns(NamedTuple):
    """The n chunks of m attempts as NumPy arrays. Spec: 20 §4, 80.

    Attributes:
        time, kind, index, record, offset, text: As in `StreamColumns`, the attempts one
            behind the other; `record` starts at 0 in each.
        attempt: int64, shape (m + 1,), first chunk of each attempt; first 0, last n.
    """

    time: npt.NDArray[np.int64]
    kind: npt.NDArray[np.uint8]
    index: npt.NDArray[np.int64]  # type: ignore[assignment]  # the tuple's own method
    record: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    text: npt.NDArray[np.uint8]
    attempt: npt.NDArray[np.int64]

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
        return StreamColumns(
            self.time[first:last],
            self.kind[first:last],
            self.index[first:last],
            self.record[first:last],
            self.offset[first : last + 1] - start,
            self.text[start:end],
        )


CallOutcome: TypeAlias = Literal[
    "message", "interrupted", "failed", "open", "compaction", "auxiliary"
]


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
