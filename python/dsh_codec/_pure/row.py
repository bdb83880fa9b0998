"""Rows of a log: the incremental scan, and the writing of one row. Spec: 10 §5, §8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from dsh_codec._pure.admission import admit
from dsh_codec._pure.admission_v3 import admit_v3, check_canonical
from dsh_codec._pure.buffer import bytes_of
from dsh_codec._pure.event import (
    EARLY_RULE,
    EVENT_RULE,
    PACKED_RULE,
    Decoded,
    decode_early,
    decode_event,
    is_turn_end,
)
from dsh_codec._pure.header import SEEDS_IN_HEADER, check_generation, read_header_row
from dsh_codec._pure.json import dump, parse_row
from dsh_codec._pure.plain import takes_subclasses
from dsh_codec._pure.quote import MISSING, quote
from dsh_codec._pure.seqs import encode_seqs
from dsh_codec._pure.stream import check_record
from dsh_codec._types import Header, Mode, Row, RowIssue, ScanResult, StreamFault
from dsh_codec.errors import (
    DshCodecError,
    FrameError,
    HeaderError,
    JsonSyntaxError,
    LimitExceededError,
    RowError,
    SeqGapError,
    StreamError,
)
from dsh_codec.limits import MAX_DEPTH, MAX_PACKED_EVENTS, MAX_ROW_BYTES
from dsh_codec.values import is_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Buffer

MAX_FAULTS: Final = 100
"""Stream faults that a result lists; the others are only counted."""

_Error = TypeVar("_Error", bound=DshCodecError)
_NO_HEADER: Final = (None, 1, 0, None, None, "10 §3")
_SETTLEMENTS: Final = ("assistant/message", "assistant/attempt")


@takes_subclasses
def encode_event(event: Mapping[str, Any], /) -> bytes:
    """Write one logical event as a row of generation 4. See `_kernel.pyi`."""
    admit(event)
    if type(event) is not dict:
        message = "the event is no object"
        raise RowError(message, *(None,) * 5, EVENT_RULE)
    if "sourceEventSeqs" not in event:
        return dump(event)
    # The range form takes the place of the list in the order of keys.
    return dump(event | {"sourceEventSeqs": encode_seqs(event["sourceEventSeqs"])})


def check_mode(mode: Mode) -> None:
    """Refuse an argument that names no mode."""
    if mode not in ("strict", "recoverable"):
        message = "mode must be 'strict' or 'recoverable'"
        raise ValueError(message)


class RowScanner:
    """Incremental scan of the plaintext of a log. See `_kernel.pyi`.

    Generation 4 goes by 10 §8.1. Older generations go by 10 §8.5 and 50 §2.4, where two layers
    recover on their own: one that sees lines that are no JSON, and the row decoder.
    """

    def __init__(
        self,
        *,
        mode: Mode = "recoverable",
        generation: int | None = None,
        check_streams: bool = False,
        max_row_bytes: int = MAX_ROW_BYTES,
        max_depth: int = MAX_DEPTH,
        max_packed_events: int = MAX_PACKED_EVENTS,
        first_seq: int = 0,
    ) -> None:
        check_mode(mode)
        check_generation(generation)
        self._is_strict = mode == "strict"
        self._wanted_generation = generation
        self._check_streams = check_streams
        self._max_row_bytes = max_row_bytes
        self._max_depth = max_depth
        self._max_packed_events = max_packed_events

        self._error: DshCodecError | None = None
        self._fed_bytes = 0
        self._line_start = 0  # Plaintext offset of the line that is being collected.
        self._fragments: list[bytes] = []
        self._fragment_bytes = 0

        self._header: Header | None = None
        self._header_bytes = 0
        self._has_framed_header = False
        self._row_number = (
            0  # Of the row in work; rows that are not accepted count too.
        )
        self._event_count = first_seq
        self._row_count = 0
        self._committed_bytes = 0
        self._cut: int | None = None  # Seq of the last inherited marker.
        self._first_time: int | None = None
        self._last_time: int | None = None

        self._issue: RowIssue | None = None
        # What a later turn/end raises: the issue of the layer that meets it.
        self._text_issue: RowError | None = None
        self._row_issue: RowError | None = None

        self._stream_count = 0
        self._record_count = 0
        self._chunk_count = 0
        self._stream_fault_count = 0
        self._stream_faults: list[StreamFault] = []

    @property
    def header(self) -> Header | None:
        """The header, once its row is complete."""
        return self._header

    @property
    def event_count(self) -> int:
        """Accepted events."""
        return self._event_count

    @property
    def committed_bytes(self) -> int:
        """Plaintext offset behind the last accepted row."""
        return self._committed_bytes

    @property
    def fed_bytes(self) -> int:
        """Plaintext bytes fed."""
        return self._fed_bytes

    @property
    def issue_row(self) -> int | None:
        """Row of the recorded issue."""
        return None if self._issue is None else self._issue.row

    # --- calls ---

    def feed(self, data: Buffer, /) -> list[Row]:
        """Take the next bytes and return the rows that they complete."""
        piece = bytes_of(data)
        self._raise_again()
        rows: list[Row] = []
        try:
            self._feed(piece, rows)
        except DshCodecError as error:
            self._error = error
            # Rows before a refusal are not lost: the next call raises it.
            if not rows:
                raise
        return rows

    def end_frame(self) -> None:
        """Say that a complete frame ends here."""
        self._raise_again()
        if self._has_framed_header:
            return
        self._has_framed_header = True
        where = (None, 1, 0, None, 0, "10 §7.2")
        if self._header is None:
            self._fail(
                HeaderError("the first frame holds no complete header row", *where)
            )
        if self._fed_bytes != self._header_bytes:
            self._fail(
                FrameError("the first frame holds more than the header row", *where)
            )

    def end_complete_frames(self) -> None:
        """Say that the last complete frame ended, before a torn one is fed."""
        self._raise_again()
        if self._header is None:
            self._fail(HeaderError("there is no complete header row", *_NO_HEADER))
        is_native = self._header.generation == 4
        if is_native and self._row_issue is not None:
            # Inside complete frames nothing is recoverable (10 §8.3).
            self._fail(self._row_issue)
        if self._fragment_bytes:
            message = "the last complete frame ends inside a row"
            place = (None, self._row_number + 2, self._line_start, self._event_count)
            rule = "10 §8.3" if is_native else "10 §8.5"
            self._fail(RowError(message, *place, None, rule))

    def finish(self) -> ScanResult:
        """End the scan."""
        self._raise_again()
        header = self._header
        if header is None:
            self._fail(HeaderError("there is no complete header row", *_NO_HEADER))
        return ScanResult(
            header=header,
            inherited_event_count=self._inherited_event_count(header),
            event_count=self._event_count,
            row_count=self._row_count,
            committed_bytes=self._committed_bytes,
            fed_bytes=self._fed_bytes,
            issue=self._issue,
            stream_count=self._stream_count,
            record_count=self._record_count,
            chunk_count=self._chunk_count,
            stream_fault_count=self._stream_fault_count,
            stream_faults=tuple(self._stream_faults),
            first_time=self._first_time,
            last_time=self._last_time,
        )

    def _inherited_event_count(self, header: Header) -> int:
        """Return the cut, by the marker rule. Spec: 10 §4.2, §4.4."""
        if header.generation in SEEDS_IN_HEADER:
            cut = header.declared_cut or 0
            if cut > self._event_count:
                message = "`seedLength` of the header exceeds the number of events"
                self._fail(RowError(message, None, None, None, None, None, "10 §4.2"))
            return cut
        if header.fields["isSeeded"] and self._cut is None:
            message = (
                "the header says seeded, but there is no inherited end-seed marker"
            )
            self._fail(RowError(message, None, None, None, None, None, "10 §4.4"))
        if not header.fields["isSeeded"] and self._cut is not None:
            message = (
                "the header says not seeded, but there is an inherited end-seed marker"
            )
            self._fail(RowError(message, None, None, None, None, None, "10 §4.4"))
        return self._cut or 0

    def _raise_again(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, error: DshCodecError) -> NoReturn:
        self._error = error
        raise error

    # --- lines ---

    def _feed(self, piece: bytes, rows: list[Row]) -> None:
        self._fed_bytes += len(piece)
        start = 0
        # Only new bytes are searched, and fragments are joined once, at the end of a row.
        while (end := piece.find(b"\n", start) + 1) > 0:
            self._keep(piece[start:end])
            line = b"".join(self._fragments)
            row = self._take_line(line)
            if row is not None:
                rows.append(row)
            self._fragments.clear()
            self._fragment_bytes = 0
            self._line_start += len(line)
            start = end
        self._keep(piece[start:])

    def _keep(self, fragment: bytes) -> None:
        """Add to the line that is being collected."""
        if not fragment:
            return
        self._fragments.append(fragment)
        self._fragment_bytes += len(fragment)
        limit = self._max_row_bytes
        if self._fragment_bytes > limit:
            line = 1 if self._header is None else self._row_number + 2
            message = (
                f"a row is longer than {limit} bytes; raise max_row_bytes to read it"
            )
            places = (None, line, self._line_start, None, None, None)
            raise LimitExceededError(message, *places, "max_row_bytes", limit)

    def _take_line(self, line: bytes) -> Row | None:
        if self._header is not None:
            self._row_number += 1
            return self._take_row(line[:-1])
        try:
            self._header = read_header_row(
                line, generation=self._wanted_generation, max_depth=self._max_depth
            )
        except LimitExceededError as error:
            raise self._limit(error) from None
        self._header_bytes = self._committed_bytes = len(line)
        return None

    # --- rows ---

    def _take_row(self, raw: bytes) -> Row | None:
        """Take a row through 10 §8.1 or, for older generations, 10 §8.5."""
        generation = self._generation()
        try:
            value = parse_row(raw, offset=self._line_start, max_depth=self._max_depth)
        except JsonSyntaxError as error:
            self._record_text_issue(error)
            return None
        except LimitExceededError as error:
            raise self._limit(error) from None
        # In older generations nothing looks at rows behind a line that is no JSON, not even
        # hard admission (50 §2.4 item 2); generation 4 admits every row that parses.
        if self._text_issue is not None:
            if is_turn_end(value):
                raise self._text_issue
            return None
        try:
            if generation == 4:
                admit(value)
            elif generation == 3:
                admit_v3(value)
        except DshCodecError as error:
            raise self._located(error) from None
        decoded = self._decode(value, generation)
        return None if decoded is None else self._accept(raw, decoded)

    def _decode(self, value: Any, generation: int) -> Decoded | None:
        """Return a row that joins the log, or None; raise where damage is not a torn tail."""
        is_native = generation == 4
        if is_native and self._row_issue is not None:
            if is_turn_end(value):
                raise self._row_issue
            return None
        try:
            decode = decode_early if generation in SEEDS_IN_HEADER else decode_event
            decoded = decode(value, self._max_packed_events)
        except RowError as error:
            # Only generation 4 asks what a row that does not decode claims to be.
            self._record_row_issue(error, is_turn_end=is_native and is_turn_end(value))
            return None
        except LimitExceededError as error:
            raise self._limit(error) from None
        if self._row_issue is not None:
            if decoded.is_turn_end:
                raise self._row_issue
            return None
        try:
            self._check_seq(decoded)
            if generation == 3:
                check_canonical(decoded)
            if is_native:
                self._check_end_seed(decoded)
        except RowError as error:
            self._record_row_issue(error, is_turn_end=decoded.is_turn_end)
            return None
        try:
            if generation in (2, 3):
                self._check_end_seed(decoded)
        except RowError as error:
            raise self._located(error) from None  # Hard, even in recoverable mode.
        return decoded

    def _check_seq(self, decoded: Decoded) -> None:
        expected, got = self._event_count, decoded.seq
        if not is_number(got) or got != expected:
            found = None if got is MISSING else got
            row = "the packed row starts at" if decoded.is_packed else "the row has"
            message = f"{row} seq {quote(got)}, expected {expected}"
            rule = EVENT_RULE
            if self._generation() in SEEDS_IN_HEADER:
                rule = PACKED_RULE if decoded.is_packed else EARLY_RULE
            raise SeqGapError(message, *(None,) * 5, rule, expected, found)

    def _check_end_seed(self, decoded: Decoded) -> None:
        """Check the form of an end-seed marker. Spec: 10 §4.4."""
        if (
            decoded.type == "session/end-seed"
            and type(decoded.value["data"]) is not dict
        ):
            message = "`data` of a session/end-seed is no object"
            raise RowError(message, None, None, None, None, None, "10 §4.4")

    def _accept(self, raw: bytes, decoded: Decoded) -> Row:
        seq, count = self._event_count, decoded.event_count
        if self._row_count == 0:
            self._first_time = decoded.time
        self._last_time = decoded.last_time
        if self._is_inherited_marker(decoded):
            self._cut = seq  # The last one wins.
        if self._check_streams:
            self._count_streams(decoded, seq)
        self._event_count += count
        self._row_count += 1
        offset = self._line_start
        self._committed_bytes = offset + len(raw) + 1
        return Row(
            decoded.type, seq, decoded.time, raw, offset, self._row_number, count
        )

    def _is_inherited_marker(self, decoded: Decoded) -> bool:
        """Whether the seq of a row is an inherited cut. Spec: 10 §4.4."""
        if decoded.type != "session/end-seed" or self._generation() in SEEDS_IN_HEADER:
            return False
        return decoded.value["data"].get("inherited") is True

    def _count_streams(self, decoded: Decoded, seq: int) -> None:
        """Check every stream record of a row by 20 §4."""
        if self._generation() in SEEDS_IN_HEADER:
            if decoded.is_packed or decoded.type == "assistant/chunk":
                self._record_count += 1
                self._chunk_count += decoded.event_count
            return
        if decoded.type not in _SETTLEMENTS:
            return
        self._stream_count += 1
        data = decoded.value["data"]
        stream = data.get("stream") if type(data) is dict else None
        if type(stream) is not list:
            self._add_fault(
                StreamFault(seq, -1, "stream has to be an array of records")
            )
            return
        for number, record in enumerate(stream):
            self._record_count += 1
            try:
                self._chunk_count += check_record(record, number)
            except StreamError as error:
                self._add_fault(StreamFault(seq, number, error.message))

    def _add_fault(self, fault: StreamFault) -> None:
        self._stream_fault_count += 1
        if len(self._stream_faults) < MAX_FAULTS:
            self._stream_faults.append(fault)

    # --- issues ---

    def _record_text_issue(self, error: JsonSyntaxError) -> None:
        issue = self._located(error)
        if self._is_strict:
            raise issue
        self._note(issue)
        if self._generation() == 4:
            self._row_issue = self._row_issue or issue
        else:
            self._text_issue = self._text_issue or issue

    def _record_row_issue(self, error: RowError, *, is_turn_end: bool) -> None:
        if self._row_issue is not None:
            return  # Behind an issue, rows that do not decode are dropped.
        issue = self._located(error)
        if self._is_strict or is_turn_end:
            raise issue
        self._note(issue)
        self._row_issue = issue

    def _note(self, issue: RowError) -> None:
        """Keep the first issue of the scan for its result."""
        if self._issue is None:
            self._issue = RowIssue(self._row_number, self._line_start, issue.message)

    def _generation(self) -> int:
        return -1 if self._header is None else self._header.generation

    def _located(self, error: _Error) -> _Error:
        """Return the error with the place of the row in work."""
        return error.located(
            line=self._row_number + 1, offset=self._line_start, seq=self._event_count
        )

    def _limit(self, error: LimitExceededError) -> LimitExceededError:
        """Return the error with the place of the row, not of a byte in it."""
        line = 1 if self._header is None else self._row_number + 1
        places = (None, line, self._line_start, None, None, error.rule)
        return LimitExceededError(error.message, *places, error.limit, error.value)
