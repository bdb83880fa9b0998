"""The kernel interface: what `_native` and `_pure` both provide, with equal results.

Errors and issues are equal, too: class, places, rule, fields and words.

Values follow the JSON model of 10 §1: integers up to 2^53 in size are `int`, all other numbers
and -0 are `float`, strings keep lone surrogates, an object is a `dict` with the last value of a
repeated key at the key's first place. `Buffer` is any contiguous bytes-like object.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from dsh_codec._types import (
    AttemptColumns,
    CallScan,
    ChunkRun,
    CommonRow,
    Compression,
    DerivedColumns,
    EncodedRows,
    FileScan,
    FrameScan,
    Header,
    Level,
    Mode,
    PlainPiece,
    Row,
    ScanResult,
    SeqCodec,
    Settlement,
    SettlementColumns,
    StreamColumns,
    StreamText,
    TimedCall,
    TimedChunk,
    TokenScan,
    TokenSums,
)
from dsh_codec.errors import SidecarError

# --- json (10 §1) ---

def parse(data: Buffer, /, *, max_depth: int = 1024) -> Any:
    """Parse one JSON text.

    Args:
        data: UTF-8; each maximal ill-formed part is read as one U+FFFD.
        max_depth: Nested arrays and objects that are allowed.

    Returns:
        The value, see the table above.

    Raises:
        JsonSyntaxError: The text is not JSON; `.offset` is the byte where it stops to be.
        LimitExceededError: The nesting is deeper than `max_depth`.

    Note:
        Linear, not recursive. Spec: 10 §1.
    """

def dump(value: Any, /, *, max_depth: int = 1024) -> bytes:
    r"""Write a value as compact JSON.

    Args:
        value: None, bool, int, float, str, list, tuple or dict with `str` keys.
        max_depth: Nested arrays and objects that are allowed (a cycle exceeds any).

    Returns:
        UTF-8 without a line feed: index-like keys first, numbers in JavaScript's spelling, -0
        as `0`, numbers that are not finite as `null`, lone surrogates as `\udxxx`.

    Raises:
        TypeError: A value of another type.
        LimitExceededError: The nesting is deeper than `max_depth`.

    Note:
        Linear, not recursive. Spec: 10 §1.1.
    """

# --- stream (20) ---

class Packer:
    """Accumulator that packs timed chunks into records as they arrive. Spec: 20 §3.

    The native one also keeps the JSON text of what was pushed, for `encode_settlement`.
    """

    def __init__(self) -> None: ...
    def push(self, time: int, chunk: Mapping[str, Any], /) -> None:
        """Add one chunk.

        Args:
            time: Milliseconds since the Unix epoch, a safe integer (`10.0` is one).
            chunk: The chunk; copied where it is kept.

        Raises:
            UnknownChunkError: The chunk's type is not one of 20 §1, or `chunk` is a string,
                number, boolean or array.
            StreamError: Any other rule of 20 §3. Nothing has changed then; `.record` is the
                number of chunks accepted so far.
        """

    def extend(self, timed: Iterable[TimedChunk | Mapping[str, Any]], /) -> None:
        """Add many chunks: `TimedChunk`, pairs, or objects with `time` and `chunk`.

        Raises:
            StreamError: As for `push`; the chunks before the refused one have been added.
        """

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the records so far, detached from the packer. Key order of 20 §2."""

    def encode_settlement(
        self,
        given: tuple[int, int, int, tuple[str, str, str] | None, bool],
        seq: int,
        /,
        *,
        max_row_bytes: int = 268435456,
    ) -> EncodedRows:
        """Write the event that settles the attempt: `encode_events` of what `settlement_event` makes.

        Args:
            given: Turn, step, time in milliseconds since the Unix epoch; id, provider and model
                of the message, or None if the attempt gave none; whether it was interrupted.
            seq: The seq that the event has to have.
            max_row_bytes: Bytes in the row, line feed included.

        Raises:
            StreamError: The chunks cannot be assembled.
            DshCodecError, TypeError: As for `encode_events`.

        Note:
            Spec: 30 §4, §10; key order of 70 §1.
        """

def pack(timed: Iterable[TimedChunk | Mapping[str, Any]], /) -> list[dict[str, Any]]:
    """Pack timed chunks into records: `Packer`, `extend`, `snapshot` in one call.

    Raises:
        StreamError: A chunk is refused; `.record` is its index.
    """

def expand(records: Sequence[Mapping[str, Any]], /) -> list[TimedChunk]:
    """Expand records into timed chunks, checking every rule of 20 §4.

    Returns:
        The chunks in order; times in milliseconds. Fresh objects, but for the chunks of raw
        `chunk` records, which are those of the records.

    Raises:
        StreamError: A record breaks a rule (`.record` is its index), or `records` is no list.
    """

def iter_expand(records: Sequence[Mapping[str, Any]], /) -> Iterator[TimedChunk]:
    """Yield what `expand` returns, one record at a time.

    Raises:
        StreamError: When a bad record is reached, after the chunks of those before it.
    """

def first_token_time(records: Sequence[Mapping[str, Any]], /) -> int | None:
    """Return the time in milliseconds of the first token, or None. Spec: 20 §5."""

def has_visible_content(records: Sequence[Mapping[str, Any]], /) -> bool:
    """Whether any chunk or run shows something. Spec: 20 §5."""

def has_visible_text(records: Sequence[Mapping[str, Any]], /) -> bool:
    """Whether any answer text is more than white space. Spec: 20 §5."""

def join_text(records: Sequence[Mapping[str, Any]], /) -> str:
    """Return all text deltas joined, split surrogate pairs fused. Spec: 20 §5, §8.2."""

def last_chunk(
    records: Sequence[Mapping[str, Any]], type: str, /
) -> dict[str, Any] | None:
    """Return the last raw chunk of a type, or None. Spec: 20 §5."""

def chunks_of(
    records: Sequence[Mapping[str, Any]], type: str, /
) -> list[dict[str, Any]]:
    """Return all raw chunks of a type, in order. Spec: 20 §5."""

def run_first_token_time(record: Mapping[str, Any], /) -> int | None:
    """Return the time in milliseconds of the first token of a run, or None. Spec: 20 §5."""

def run_first_visible_time(record: Mapping[str, Any], /) -> int | None:
    """Return the time in milliseconds of a run's first visible member, or None. Spec: 20 §5."""

def is_token_delta(chunk: Mapping[str, Any], /) -> bool:
    """Whether the chunk is a token delta. Spec: 20 §5."""

def is_visible_chunk(chunk: Mapping[str, Any], /) -> bool:
    """Whether the chunk shows something. Spec: 20 §5."""

def chunk_has_visible_text(chunk: Mapping[str, Any], /) -> bool:
    """Whether the chunk holds answer text that is more than white space. Spec: 20 §5."""

class Assembler:
    """Block assembler. Spec: 20 §6."""

    def __init__(self) -> None: ...
    def push(self, chunk: Mapping[str, Any], /) -> None:
        """Add one chunk.

        Raises:
            UnknownChunkError: The chunk's type is not one of 20 §1.
            StreamError: The chunk cannot be assembled (20 §8.5).
        """

    def push_records(self, records: Sequence[Mapping[str, Any]] | Packer, /) -> None:
        """Add the chunks of records or of a `Packer`, each run as one delta. Records are not validated.

        Raises:
            StreamError: As for `push`.
        """

    def blocks(self) -> list[dict[str, Any]]:
        """Return the kept blocks.

        Raises:
            StreamError: A block of unknown type is still open.
        """

    def interrupted_blocks(self) -> list[dict[str, Any]]:
        """Return the visible text and reasoning blocks of an interrupted attempt."""

    def usage(self, default: Any = None, /) -> Any:
        """Return the last usage, or `default` if there was none."""

    def finish(self) -> Any:
        """Return the last finish reason, or `{"kind": "stop"}` if there was none."""

    def replay_state(self, default: Any = None, /) -> Any:
        """Return the replay state aligned with the kept blocks, or `default` if absent.

        Raises:
            StreamError: A block of unknown type is still open.
        """

# --- columns (20 §4, §5; 10 §5.3) ---

def stream_columns(records: Sequence[Mapping[str, Any]], /) -> StreamColumns:
    """Flatten the records of one settlement into columns.

    Args:
        records: Records of a `stream` field, in order.

    Returns:
        n is the number of expanded chunks.
        time: int64, shape (n,), milliseconds since the Unix epoch.
        kind: uint8, shape (n,), code of the chunk type, see `ChunkKind`.
        index: int64, shape (n,), block index of the chunk; -1 where a raw chunk has none. Kept
            once a record and made on first use.
        record: int32, shape (n,), position of its record in `records`.
        offset: int64, shape (n + 1,), byte positions in `text`; first 0, last len(text).
        text: uint8, shape (offset[-1],), UTF-8; lone surrogates as WTF-8.

    Raises:
        StreamError: A record breaks a rule of expansion (`.record` is its index), or
            `records` is no list.

    Note:
        One pass. The GIL is held, because the records are Python objects; `row_columns`
        releases it. Spec: 20 §4.
    """

def row_columns(
    rows: Buffer | Sequence[Buffer | Sequence[Buffer]], /, *, max_depth: int = 1024
) -> AttemptColumns:
    """Flatten the chunks that rows of a log hold into columns, without Python objects.

    Args:
        rows: One item for each attempt: a row, or a list or tuple of rows. A row alone is one
            attempt. Rows are as a scan gave them (`Row.raw`): settlements, and in generations
            0 and 1 packed rows and chunk rows.
        max_depth: Nested arrays and objects in a row.

    Returns:
        As `stream_columns`, the attempts one behind the other, and
        attempt: int64, shape (m + 1,), first chunk of each attempt; first 0, last n.
        A settlement without a stream is an empty attempt. Packed rows and chunk rows of one
        attempt are numbered as the records that packing makes of them (20 §3).

    Raises:
        StreamError: A record breaks a rule of expansion; `.record` is its index, `.seq` the
            seq of its row.
        RowError: A packed row breaks a rule of 10 §5.3, or a row holds no chunks.
        JsonSyntaxError: A row is no JSON.
        LimitExceededError: A row nests deeper than `max_depth`.

    Note:
        One pass, the GIL released. 21 bytes a chunk and its text, 9 bytes a record; a single
        row takes one allocation per column. Spec: 20 §4, 10 §5.3.
    """

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
    """Write columns that follow from others, for some consecutive chunks.

    Args:
        columns: Columns of attempts.
        start: The first of the chunks.
        end: The chunk behind the last.
        last_token: What this returned for the chunks before; it counts where they end inside an
            attempt.
        index: Gets the block index of each chunk; -1 where it has none. Like each array that is
            written: int64, shape (end - start,), contiguous.
        gap: Gets the milliseconds since the token delta before in the attempt (80 §5); 0 where
            `DerivedColumns.gap` is not set.
        byte_len: Gets the bytes of each fragment.
        of_attempts: Pairs of int64 arrays: a value of each attempt, shape (m,), and what gets it
            for each chunk.

    Raises:
        ValueError: There are no such chunks, or an array has another number of places.

    Note:
        One pass over the chunks; nothing is made per chunk. Spec: 20 §5, 80 §5.
    """

class StoredStream:
    """The stream of one attempt, read from the bytes of its rows when somebody asks.

    Its methods answer what the readers of 20 §5 answer about the records. Spec: 20 §5.
    """

    def __init__(
        self, rows: Buffer | Sequence[Buffer], *, max_depth: int = 1024
    ) -> None:
        """Keep the rows.

        Args:
            rows: A settlement, or a list or tuple of the rows of one attempt, as a scan gave
                them (`Row.raw`); one that no scan accepts may be refused with a `RowError`,
                or not. `bytes` are not copied.
            max_depth: Nested arrays and objects in a row.

        Raises:
            JsonSyntaxError: The first row is no JSON. For other rows the methods raise it.
            LimitExceededError: It nests deeper than `max_depth`.
        """

    @property
    def turn(self) -> Any:
        """`turn` of the first row, as it is written; None if it is absent."""

    @property
    def step(self) -> Any:
        """`step` of the first row, as it is written; None if it is absent."""

    @property
    def is_interrupted(self) -> bool:
        """Whether `interrupted` of the first row is true."""

    def chunk_count(self) -> int:
        """Return the number of chunks; counted, not checked."""

    def text(self) -> str:
        """Return all text deltas joined, split surrogate pairs fused. Spec: 20 §5, §8.2.

        Raises:
            StreamError: A record or text cannot be read.
        """

    def first_token_time(self) -> int | None:
        """Return the time in milliseconds of the first token, or None. Spec: 20 §5.

        Raises:
            StreamError: A record before it cannot be read.
        """

    def time_span(self) -> tuple[int, int] | None:
        """Return the times in milliseconds of the first and the last chunk, or None.

        Raises:
            StreamError: The first or last record, or in generations 0 and 1 any chunk,
                breaks a rule of 20 §4.
        """

    def has_visible_content(self) -> bool:
        """Whether any chunk or run shows something. Spec: 20 §5.

        Raises:
            StreamError: A record before it cannot be read.
        """

    def last_chunk(self, type: str, /) -> dict[str, Any] | None:
        """Return the last raw chunk of a type, or None, as a new object. Spec: 20 §5.

        Raises:
            StreamError: A record behind it cannot be read.
        """

    def columns(self) -> StreamColumns:
        """Return the columns of the attempt, see `row_columns`; the GIL is released.

        Raises:
            StreamError: A record breaks a rule of 20 §4; `.record` is its index.
        """

class ColumnScanner:
    """Scan of the plaintext of a log that keeps the chunks of its settlements as columns.

    For generations 2 to 4. In generations 0 and 1 attempts are groups of chunk rows, which no
    scan finds: use `Log.columns`. A call works as that of `RowScanner` with the same name.
    """

    def __init__(
        self,
        *,
        mode: Mode = "recoverable",
        generation: int | None = None,
        text: bool = True,
        max_row_bytes: int = 268435456,
        max_depth: int = 1024,
    ) -> None:
        """Prepare a scan; the arguments are those of `RowScanner`, and `text`.

        It says whether the text of fragments is kept. Without it the array `text` is empty, and
        `offset` tells lengths alone.
        """

    @property
    def event_count(self) -> int:
        """Accepted events."""

    @property
    def fed_bytes(self) -> int:
        """Plaintext bytes fed."""

    def feed(self, data: Buffer, /) -> None:
        """Take the next bytes; the GIL is released.

        Raises:
            StreamError: A record of an accepted settlement breaks a rule of 20 §4; `.record`
                is its index, `.seq` the settlement. Every later call raises it again.
            DshCodecError: As for `RowScanner.feed`.
        """

    def add_attempt(self, stream: StoredStream, /) -> None:
        """Add an attempt that the scan does not find, as those of generations 0 and 1.

        Raises:
            StreamError: A chunk breaks a rule of 20 §4; `.record` is the index of its record.
        """

    def end_frame(self) -> None:
        """Say that a complete frame ends here. The first must be exactly the header row.

        Raises:
            HeaderError, FrameError: It is not (10 §7.2).
        """

    def end_complete_frames(self) -> None:
        """Say that the last complete frame ended, before a torn one is fed.

        Raises:
            HeaderError, RowError: As for `RowScanner.end_complete_frames`.
        """

    def finish(self) -> ScanResult:
        """End the scan. No streams are counted in the result.

        Raises:
            HeaderError, RowError: As for `RowScanner.finish`.
        """

    def take_settlements(self) -> list[Settlement]:
        """Return the settlements that the scan found since the last call, in order.

        Taken together with `take_columns`, they are its attempts one by one; those of
        `add_attempt` are not among them.
        """

    def take_settlement_columns(self) -> SettlementColumns:
        """Return what `take_settlements` would, as arrays."""

    def take_columns(self) -> AttemptColumns:
        """Return the columns so far, one attempt for each settlement, and start new ones.

        Returns:
            Arrays as of `row_columns`. They own the scan's memory; nothing is copied.
        """

# --- calls (80) ---

class CallReader:
    """Reads the calls of log files, one after the other, without values for anything else.

    For generations 2 to 4. In generations 0 and 1 attempts are groups of chunk rows, which no
    scan finds: use `dsh_codec.calls`.
    """

    def __init__(
        self,
        *,
        times: bool = True,
        tools: bool = False,
        gaps: bool = False,
        auxiliary: bool = False,
        max_row_bytes: int = 268435456,
        max_frame_plain_bytes: int = 1073741824,
        max_depth: int = 1024,
    ) -> None:
        """Keep what is wanted.

        Args:
            times: Whether the columns of 80 §5 are wanted; without, they are None.
            tools: Whether tool calls are timed.
            gaps: Whether the gaps between tokens are listed.
            auxiliary: Whether requests that carry no usage are calls, too.
            max_row_bytes: Bytes in one row.
            max_frame_plain_bytes: Bytes of plaintext in one frame.
            max_depth: Nested arrays and objects in a row.
        """

    def read_file(self, path: str | PathLike[str], /, *, generation: int) -> CallScan:
        """Read the calls of a log file; the GIL is released while it is scanned.

        Args:
            path: The file.
            generation: The generation that its header must have, 2 to 4.

        Returns:
            The calls up to a torn tail. Memory is that of `check_file` and of the calls.

        Raises:
            DshCodecError: As for `check_file` in recoverable mode.
            OSError: As there, and for what is no regular file.
            ValueError: Another generation was asked for.

        Note:
            The scan is that of 10 §8 without `check_streams`: streams that would not expand
            hide no call. Threads that share a reader wait for each other.
        """

    def sum_file(self, path: str | PathLike[str], /, *, generation: int) -> TokenScan:
        """Sum up the tokens of the own calls of a log file; otherwise as `read_file`.

        Args:
            path: The file.
            generation: The generation that its header must have, 2 to 4.

        Returns:
            The sums over what `read_file` lists as own, inherited calls left out.

        Raises:
            DshCodecError: As for `read_file`.
            OSError: As there.
            ValueError: As there.
        """

    def sum_files(
        self,
        paths: list[str],
        /,
        *,
        generation: int,
        compression: Compression,
    ) -> tuple[TokenSums, list[int]]:
        """Sum up the tokens of the own calls of several log files, without values for each.

        Args:
            paths: The files.
            generation: The generation that their headers must have, 2 to 4.
            compression: How they must be stored.

        Returns:
            The sums over the files that `sum_file` would read and that are stored like this,
            and the places in `paths` of all others, which contribute nothing.

        Raises:
            ValueError: Another generation was asked for.
        """

class CallScanner:
    """Scan of the plaintext of a log of generations 2 to 4 that collects its calls.

    A call works as that of `RowScanner` with the same name.
    """

    def __init__(
        self,
        *,
        times: bool = True,
        tools: bool = False,
        gaps: bool = False,
        auxiliary: bool = False,
        mode: Mode = "recoverable",
        generation: int | None = None,
        max_row_bytes: int = 268435456,
        max_depth: int = 1024,
    ) -> None:
        """Prepare a scan; the arguments are those of `CallReader` and `RowScanner`.

        Raises:
            ValueError: `generation` is 0 or 1.
        """

    @property
    def event_count(self) -> int:
        """Accepted events."""

    @property
    def fed_bytes(self) -> int:
        """Plaintext bytes fed."""

    def feed(self, data: Buffer, /) -> None:
        """Take the next bytes; the GIL is released.

        Raises:
            DshCodecError: As for `RowScanner.feed`.
        """

    def end_frame(self) -> None:
        """Say that a complete frame ends here. The first must be exactly the header row.

        Raises:
            HeaderError, FrameError: It is not (10 §7.2).
        """

    def end_complete_frames(self) -> None:
        """Say that the last complete frame ended, before a torn one is fed.

        Raises:
            HeaderError, RowError: As for `RowScanner.end_complete_frames`.
        """

    def finish(self) -> ScanResult:
        """End the scan. No streams are counted in the result.

        Raises:
            HeaderError, RowError: As for `RowScanner.finish`.
        """

    def take_calls(self) -> list[TimedCall]:
        """Return the calls in the order of their seqs; the next time there are none.

        Raises:
            ValueError: The scan has not ended.
        """

# --- text to text (20 §3, §4; 10 §5.3) ---

def expand_lines(
    rows: StoredStream | Buffer | Sequence[Buffer],
    /,
    *,
    prefix: Buffer = b"",
    max_depth: int = 1024,
) -> bytes:
    """Write the timed chunks of an attempt as JSON lines, without Python values.

    Args:
        rows: A settlement, or a list or tuple of the rows of one attempt, as a scan gave them
            (`Row.raw`), or a stream that keeps them, whose own `max_depth` then counts.
        prefix: JSON text of the members that each line begins with, without braces, copied as
            it is: `dump(members)[1:-1]`.
        max_depth: Nested arrays and objects in a row.

    Returns:
        UTF-8. For each chunk, in order, what `dump` writes of the members of the prefix, `time`
        (milliseconds) and `chunk`, and a line feed. Empty for an attempt without chunks.

    Raises:
        StreamError: A record breaks a rule of expansion; `.record` is its index, `.seq` the
            seq of its row.
        RowError: A packed row breaks a rule of 10 §5.3, or a row holds no chunks.
        JsonSyntaxError: A row is no JSON.
        LimitExceededError: A row nests deeper than `max_depth`.

    Note:
        One pass, the GIL released. Memory: the lines, twice while they are handed over. Spec:
        20 §4.
    """

def pack_lines(
    rows: StoredStream | Buffer | Sequence[Buffer], /, *, max_depth: int = 1024
) -> bytes:
    """Write the records of an attempt as the text of one JSON array, without Python values.

    Args:
        rows: As for `expand_lines`.
        max_depth: Nested arrays and objects in a row.

    Returns:
        What `dump` writes of the records: of those of a settlement, or of those that packing
        makes of packed rows and chunk rows. `[]` for an attempt without chunks.

    Raises:
        StreamError, RowError, JsonSyntaxError, LimitExceededError: As for `expand_lines`.

    Note:
        One pass, the GIL released. Choice: a chunk that packing refuses is a raw record, as in
        every reader of such rows, and is checked as one. Spec: 20 §3, §4.
    """

# --- rows (10 §4 to §6, §8; 30 §6) ---

def parse_header(line: Buffer, /, *, generation: int | None = None) -> Header:
    """Parse a header row.

    Args:
        line: The row, its one line feed at the end included.
        generation: 4: the reading order of a native v4 scan (10 §4.1). None: the version
            decides (10 §4.3). 0 to 3: the version must be this one.

    Raises:
        NewerFormatError: The version is above 4.
        UnsupportedError: `generation` is 4 and the version is a smaller number.
        HeaderError: Any other rule of 10 §4.
    """

def encode_seqs(values: Sequence[int], /) -> list[Any]:
    """Return the range form of `sourceEventSeqs`.

    Args:
        values: The seqs, a list or tuple. One that is not strictly increasing, or holds anything
            else, is returned as a list.

    Raises:
        RowError: It is neither.
        TypeError: It holds something that is no JSON value. Spec: 10 §6.
    """

def decode_seqs(
    value: Any, /, *, codec: SeqCodec = "v2", max_entries: int = 9007199254740991
) -> list[int]:
    """Return the seqs of a range form.

    Args:
        value: The physical value: a list or tuple of seqs and of lists or tuples of two.
        codec: `v2` for rows of generations 2 to 4, `v0` for 0 and 1, `session` for the
            free-standing decoder.
        max_entries: Seq of the owning event.

    Raises:
        RowError: The value breaks a rule of 10 §6; with codec `session` a `StreamError`.
        LimitExceededError: The ranges name more than 16,777,216 events.
    """

def admit(event: Any, /) -> None:
    """Check row admission of generation 4.

    Raises:
        UnsupportedError: Rule C1.
        RowError: Rules A to F; `.rule` names it. Choice: of several, the one that is met first,
            message by message and record by record. Spec: 30 §6.
    """

def encode_event(event: Mapping[str, Any], /) -> bytes:
    """Write one logical event as a row of generation 4, without its line feed.

    Raises:
        UnsupportedError, RowError: Row admission refuses it (30 §6), or `sourceEventSeqs` is
            no list. Spec: 10 §5.1.
    """

def encode_events(
    events: Iterable[Mapping[str, Any]], seq: int, /, *, max_row_bytes: int = 268435456
) -> EncodedRows:
    """Check a batch of logical events and write it as rows, so that every reader accepts them.

    Args:
        events: Dictionaries.
        seq: The seq that the first has to have; the others count on.
        max_row_bytes: Bytes in one row, line feed included.

    Raises:
        SeqGapError: An event has another seq.
        UnsupportedError, RowError: Row admission refuses an event (30 §6), its members break a
            rule (10 §5.1), or it holds a number that would be read as another one (10 §11.2).
        LimitExceededError: A row is too long or too deep.
        TypeError: An event holds something that is no JSON value.

    Note:
        The first event that is refused decides, and in it the rules in the order above, but what
        is no JSON value or too deep may be met before row admission; errors of this package have
        its `seq`. Spec: 10 §11.2.
    """

def encode_rows(
    rows: Buffer, seq: int, /, *, max_row_bytes: int = 268435456
) -> EncodedRows:
    """Check a batch of rows that come as text, so that every reader accepts them.

    Args:
        rows: Event rows of generation 4 as they stand in a log, UTF-8 JSON with a line feed behind
            each, which the last may lack. `sourceEventSeqs` is in its range form (10 §6).
        seq: The seq that the first has to have; the others count on.
        max_row_bytes: Bytes in one row as it is written, line feed included.

    Returns:
        The rows as the writer spells them (10 §1.1, §6): compact, the last value of a repeated
        key at its first place, ill-formed UTF-8 replaced. Where they are spelled so already,
        `bytes` are returned as they are, without a copy.

    Raises:
        JsonSyntaxError: A row is no JSON; an empty one is none.
        UnsupportedError, RowError: Row admission refuses a row (30 §6), its members break a rule
            (10 §5.1, §6), or it holds -0 or a number that is not finite (10 §11.2).
        SeqGapError: A row has another seq.
        LimitExceededError: A row is too long or too deep.

    Note:
        The first row that is refused decides, and in it the rules in the order of 10 §8.1; errors
        of this package have its `seq`. The GIL is released for more than 64 KiB.
    """

class RowScanner:
    """Incremental scan of the plaintext of a log: header, rows, seqs. Spec: 10 §8.

    The result does not depend on how the text is cut into pieces. After an error every further
    call raises it again.
    """

    def __init__(
        self,
        *,
        mode: Mode = "recoverable",
        generation: int | None = None,
        check_streams: bool = False,
        max_row_bytes: int = 268435456,
        max_depth: int = 1024,
        max_packed_events: int = 16777216,
        first_seq: int = 0,
    ) -> None:
        """Prepare a scan.

        Args:
            mode: `strict` raises at the first issue; `recoverable` stops accepting rows.
            generation: As for `parse_header`.
            check_streams: Whether every stream record is checked by 20 §4 and counted.
            max_row_bytes: Bytes in one row, line feed included.
            max_depth: Nested arrays and objects in a row.
            max_packed_events: Events of one packed row.
            first_seq: Seq of the first row that is fed behind the header. Rows before it are
                left out, and count as accepted events.
        """

    @property
    def header(self) -> Header | None:
        """The header, once its row is complete."""

    @property
    def event_count(self) -> int:
        """Accepted events."""

    @property
    def committed_bytes(self) -> int:
        """Plaintext offset behind the last accepted row; 0 before the header."""

    @property
    def fed_bytes(self) -> int:
        """Plaintext bytes fed."""

    @property
    def issue_row(self) -> int | None:
        """Row of the recorded issue, from 1; None while there is none."""

    def feed(self, data: Buffer, /) -> list[Row]:
        """Take the next bytes and return the rows that they complete and that are accepted.

        A refusal that has such rows before it in the same call is raised by the next call, so
        that none is lost; `feed(b"")` asks for it.

        Raises:
            HeaderError, NewerFormatError, UnsupportedError: The header is refused.
            RowError, SeqGapError: A row is refused (admission, strict mode, or damage before
                a later `turn/end`); `.line`, `.offset` and `.seq` are set.
            LimitExceededError: A row exceeds a limit.
        """

    def end_frame(self) -> None:
        """Say that a complete frame ends here. The first must be exactly the header row.

        Raises:
            HeaderError, FrameError: It is not (10 §7.2).
        """

    def end_complete_frames(self) -> None:
        """Say that the last complete frame ended, before a torn one is fed.

        Raises:
            HeaderError: There was no header.
            RowError: A row is incomplete, or (generation 4) not all text is committed
                (10 §8.3 step 2; §8.5 for older generations).
        """

    def finish(self) -> ScanResult:
        """End the scan. An unfinished last line is not a row and is ignored.

        Raises:
            HeaderError: There was no complete header row.
            RowError: The marker rule (10 §4.4), `.rule` is `10 §4.4`; in generations 0 and 1
                the cut exceeds the events (10 §4.2).
        """

# --- assembled logs and sidecars (60 §5 to §7) ---

def canonicalize(data: Buffer, /, *, max_depth: int = 1024) -> bytes:
    r"""Return the canonical text of one JSON text by RFC 8785.

    Args:
        data: UTF-8, as for `parse`.
        max_depth: Nested arrays and objects that are allowed.

    Returns:
        UTF-8: members sorted by their UTF-16 code units, numbers in JavaScript's spelling, no
        white space. Lone surrogates are `\udxxx` escapes.

    Raises:
        JsonSyntaxError, LimitExceededError: As for `parse`. Spec: 60 §6.4.
    """

class SplitScanner:
    """Scan of the plaintext of a log of generation 4 that takes its streams out.

    A call works as that of `RowScanner` with the same name. Spec: 60 §5 to §7.
    """

    def __init__(
        self,
        header: Buffer,
        causes: Callable[[int], Buffer],
        *,
        allow_opaque: bool = False,
        mode: Mode = "recoverable",
        max_row_bytes: int = 268435456,
        max_depth: int = 1024,
    ) -> None:
        """Prepare a scan.

        Args:
            header: The header row of the log; it is fed, too.
            causes: Asked, with its seq, for each attempt that did not report its end: the
                members `cause` and `failure` as JSON text without braces (60 §6.3). What it
                raises, `feed` raises.
            allow_opaque: Whether a stream that does not expand is taken as it is.
            mode: As for `RowScanner`.
            max_row_bytes: As for `RowScanner`.
            max_depth: As for `RowScanner`.
        """

    @property
    def event_count(self) -> int:
        """Accepted events."""

    @property
    def fed_bytes(self) -> int:
        """Plaintext bytes fed."""

    @property
    def attempt_count(self) -> int:
        """Attempt rows so far."""

    def feed(self, data: Buffer, /) -> tuple[bytes, bytes]:
        """Take the next bytes; the GIL is released.

        Returns:
            The rows of the assembled log, without the header row, and the attempt rows that
            they complete. A row without a stream is not changed in any byte.

        Raises:
            StreamError: A settlement has no stream, or one that does not expand; `.record` is
                then its index. `.seq` is set. Every later call raises it again.
            DshCodecError: As for `RowScanner.feed`.
        """

    def end_frame(self) -> None:
        """Say that a complete frame ends here. The first must be exactly the header row.

        Raises:
            HeaderError, FrameError: It is not (10 §7.2).
        """

    def end_complete_frames(self) -> None:
        """Say that the last complete frame ended, before a torn one is fed.

        Raises:
            HeaderError, RowError: As for `RowScanner.end_complete_frames`.
        """

    def finish(self) -> ScanResult:
        """End the scan. No streams are counted in the result.

        Raises:
            HeaderError, RowError: As for `RowScanner.finish`.
        """

    def digests(self) -> tuple[str, str]:
        """Return the digests of the log and of its assembled form so far. Spec: 60 §6.4."""

class JoinScanner:
    """Scan of the plaintext of an assembled log that puts the streams of a sidecar back.

    A call works as that of `RowScanner` with the same name. Spec: 60 §7.
    """

    def __init__(
        self,
        header: Buffer,
        rows: Iterable[Buffer],
        causes: Callable[[int], Buffer],
        *,
        mode: Mode = "recoverable",
        max_row_bytes: int = 268435456,
        max_depth: int = 1024,
    ) -> None:
        """Prepare a scan.

        Args:
            header: The header row of the assembled log; it is fed, too.
            rows: The attempt rows of the sidecar, without their line feeds. One is taken for
                each settlement. What it raises, `feed` raises.
            causes: As for `SplitScanner`.
            mode: As for `RowScanner`.
            max_row_bytes: As for `RowScanner`.
            max_depth: As for `RowScanner`; in attempt rows, too.
        """

    @property
    def event_count(self) -> int:
        """Accepted events."""

    @property
    def fed_bytes(self) -> int:
        """Plaintext bytes fed."""

    @property
    def fault(self) -> SidecarError | None:
        """What is wrong with the sidecar (`corrupt`), None so far.

        It is not raised: the scan goes on for the digest of the assembled log, because a log
        that is not the sidecar's own explains it better.
        """

    def feed(self, data: Buffer, /) -> bytes:
        """Take the next bytes; the GIL is released.

        Returns:
            The rows of the joined log, without the header row, that they complete; none behind
            a fault.

        Raises:
            DshCodecError: As for `RowScanner.feed`.
        """

    def end_frame(self) -> None:
        """Say that a complete frame ends here. The first must be exactly the header row.

        Raises:
            HeaderError, FrameError: It is not (10 §7.2).
        """

    def end_complete_frames(self) -> None:
        """Say that the last complete frame ended, before a torn one is fed.

        Raises:
            HeaderError, RowError: As for `RowScanner.end_complete_frames`.
        """

    def finish(self) -> ScanResult:
        """End the scan. No streams are counted in the result.

        Raises:
            HeaderError, RowError: As for `RowScanner.finish`.
        """

    def digests(self) -> tuple[str, str]:
        """Return the digests of the joined and of the assembled log so far. Spec: 60 §6.4."""

# --- container (10 §7) ---

def scan_frames(data: Buffer, /, *, max_frames: int | None = None) -> FrameScan:
    """Find the frames of a Zstandard file by structure, without decoding.

    Args:
        data: The file's bytes.
        max_frames: Stop after this many complete frames; what follows is not looked at.

    Raises:
        FrameError: A frame is malformed, or the bytes are no frame; `.offset` is the start of
            the frame, `.frame` its number. Spec: 10 §7.3.
    """

class FrameScanner:
    """`scan_frames` for a file that arrives in pieces. Keeps no input."""

    def __init__(self) -> None: ...
    def feed(self, data: Buffer, /) -> list[tuple[int, int]]:
        """Take the next bytes and return the ranges of the frames that they complete.

        Raises:
            FrameError: As for `scan_frames`.
        """

    def finish(self) -> int | None:
        """Return the offset of a torn last frame, or None."""

class FrameReader:
    """Incremental decoder of complete frames; one decompression context for all of them."""

    def __init__(self, *, max_frame_plain_bytes: int = 1073741824) -> None: ...
    def feed(self, data: Buffer, /) -> None:
        """Give the next bytes of the file. All pieces of the last ones must have been read."""

    def read(self) -> PlainPiece | None:
        """Return the next piece of plaintext, at most 1 MiB; None when more bytes are needed.

        Raises:
            FrameError: Bad block, bad checksum, a window above 2^27 bytes, a skippable frame,
                a dictionary, or no frame at all; `.offset` is the frame's start.
            LimitExceededError: A frame holds more than `max_frame_plain_bytes`.
        """

    @property
    def frame_count(self) -> int:
        """Frames decoded to their end."""

def encode_frame(data: Buffer, /, *, level: int = 3) -> bytes:
    """Compress one batch as one frame, byte for byte as the harness does.

    Returns:
        A frame with checksum and 2 MiB window, without content size (70 §1); other levels keep
        these parameters.
    """

class FrameWriter:
    """Encoder of one frame whose plaintext comes in pieces, in constant memory.

    The bytes are those that `encode_frame` gives of all pieces joined.
    """

    def __init__(self) -> None: ...
    def write(self, data: Buffer, /) -> bytes:
        """Take the next bytes and return what is made of the frame; the GIL is released."""

    def finish(self) -> bytes:
        """End the frame and return the rest of it. What is written later starts a new one."""

def recover_tail(data: Buffer, /, *, max_plain_bytes: int = 1073741824) -> bytes:
    """Return the plaintext that a torn last frame still yields.

    Args:
        data: The file's bytes from the start of the torn frame.
        max_plain_bytes: Bytes of plaintext that are allowed.

    Returns:
        All that a streaming decoder gives; empty if it reports an error. Spec: 10 §7.4.

    Raises:
        LimitExceededError: There is more than `max_plain_bytes`.
    """

# --- runs of chunk rows (50 §5.3, §5.5) ---

class RunScanner:
    """`RowScanner` for the migration of generations 0 and 1.

    It gives the chunk rows of an attempt together, and says what common rows become. A call works as that of `RowScanner` with the same name.
    """

    def __init__(
        self,
        *,
        mode: Mode = "recoverable",
        generation: int | None = None,
        max_row_bytes: int = 268435456,
        max_depth: int = 1024,
        max_packed_events: int = 16777216,
    ) -> None:
        """Prepare a scan; the arguments are those of `RowScanner`."""

    @property
    def event_count(self) -> int:
        """Accepted events."""

    @property
    def fed_bytes(self) -> int:
        """Plaintext bytes fed."""

    def feed(self, data: Buffer, /) -> list[Row | CommonRow | ChunkRun]:
        """Take the next bytes and return the rows and runs that they complete, in order.

        A run ends with the call at the latest, so that memory stays bounded.

        Raises:
            DshCodecError: As for `RowScanner.feed`.
        """

    def end_frame(self) -> None:
        """Say that a complete frame ends here. The first must be exactly the header row.

        Raises:
            HeaderError, FrameError: It is not (10 §7.2).
        """

    def end_complete_frames(self) -> None:
        """Say that the last complete frame ended, before a torn one is fed.

        Raises:
            HeaderError, RowError: As for `RowScanner.end_complete_frames`.
        """

    def finish(self) -> ScanResult:
        """End the scan. No streams are counted in the result.

        Raises:
            HeaderError, RowError: As for `RowScanner.finish`.
        """

def pack_runs(
    runs: Buffer | Sequence[Buffer], /, *, max_depth: int = 1024
) -> StreamText:
    """Pack the rows of runs into the stream of an attempt, without a value for each chunk.

    Args:
        runs: Rows of one attempt, each with its line feed, as in `ChunkRun.raw`; one piece, or
            a list or tuple of pieces, whose rows follow each other.
        max_depth: Nested arrays and objects in a row.

    Returns:
        The records that `pack_lines` writes for these rows.

    Raises:
        DshCodecError: As for `pack_lines`.

    Note:
        One pass, the GIL released. Spec: 20 §3, 50 §5.5.
    """

# --- bulk ---

def check_bytes(
    data: Buffer,
    /,
    *,
    mode: Mode = "recoverable",
    level: Level = "scan",
    generation: int | None = None,
    max_row_bytes: int = 268435456,
    max_frame_plain_bytes: int = 1073741824,
    max_depth: int = 1024,
    max_packed_events: int = 16777216,
) -> FileScan:
    """Scan a whole log in memory: container, rows, seqs, every stream record.

    The container is told by the first bytes. A strict scan stops before a torn frame and does
    not fail; `torn_start` and `truncate_to` say where it is. Levels above `scan` apply the rules
    of 30 §7 to §10 to logs of generation 4; what these refuse is in `findings`.

    Raises:
        DshCodecError: The subclass that the first refusal has, with its place.

    Note:
        One pass, the GIL released. Spec: 10 §8, 20 §4.
    """

def check_file(
    path: str | PathLike[str],
    /,
    *,
    threads: int | None = None,
    mode: Mode = "recoverable",
    level: Level = "scan",
    generation: int | None = None,
    max_row_bytes: int = 268435456,
    max_frame_plain_bytes: int = 1073741824,
    max_depth: int = 1024,
    max_packed_events: int = 16777216,
) -> FileScan:
    """`check_bytes` for a file, in bounded memory. Errors carry the path.

    Args:
        path: The file.
        threads: Threads that check at most, at least 1; None: as many as there are processors for
            this process. They share a file of some megabytes, where the kernel has them; what
            is found does not depend on it.
        mode: As for `check_bytes`.
        level: As for `check_bytes`.
        generation: As for `check_bytes`.
        max_row_bytes: As for `check_bytes`.
        max_frame_plain_bytes: As for `check_bytes`.
        max_depth: As for `check_bytes`.
        max_packed_events: As for `check_bytes`.

    Raises:
        OSError: The system refuses to open or read it.
        TypeError, ValueError: A wrong argument.
        DshCodecError: As for `check_bytes`.
    """

def check_many(
    paths: Iterable[str | PathLike[str]],
    /,
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
    mode: Mode = "recoverable",
    level: Level = "scan",
    generation: int | None = None,
    max_row_bytes: int = 268435456,
    max_frame_plain_bytes: int = 1073741824,
    max_depth: int = 1024,
    max_packed_events: int = 16777216,
) -> list[FileScan | Exception]:
    """`check_file` for many files, on several threads where the kernel has them.

    Args:
        paths: Files; a pipe would be waited for, and no signal ends that.
        threads: Threads that check, at least 1; None: as many as there are processors for this
            process. Each takes a file at a time; those without one share the large files.
        progress: Called in the calling thread with the bytes of files that are done, every 50 to
            60 ms or a piece of work later, and at the end. The number never decreases. What it raises
            ends the call.
        mode: As for `check_bytes`.
        level: As for `check_bytes`.
        generation: As for `check_bytes`.
        max_row_bytes: As for `check_bytes`.
        max_frame_plain_bytes: As for `check_bytes`; in every thread.
        max_depth: As for `check_bytes`.
        max_packed_events: As for `check_bytes`.

    Returns:
        For each path, in order, what `check_file` returns, or the `OSError` or `DshCodecError`
        that it raises: a bad log does not keep the others from being checked.

    Raises:
        TypeError, ValueError: A wrong argument.
        KeyboardInterrupt: In the main thread, or what else a handler of a signal raises; the
            threads have stopped then.

    Note:
        The GIL released. Spec: 10 §8, 20 §4.
    """
