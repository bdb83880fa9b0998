"""A stored log: its header, events and attempts, in constant memory. Spec: 10, 80."""

from __future__ import annotations

from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    Protocol,
    TypeVar,
    overload,
)

from dsh_codec._backend import kernel
from dsh_codec._types import ChunkRun, CommonRow, FileScan, Row
from dsh_codec.attempts import (
    Attempt,
    AttemptCounter,
    AttemptPlace,
    PlaceColumns,
    Spans,
    find_spans,
    iter_attempts,
)
from dsh_codec.errors import DshCodecError, FrameError
from dsh_codec.find import CURRENT_GENERATION, select_log
from dsh_codec.limits import (
    MAX_DEPTH,
    MAX_FRAME_PLAIN_BYTES,
    MAX_PACKED_EVENTS,
    MAX_ROW_BYTES,
    MAX_SPOOLED_BYTES,
)
from dsh_codec.row import Event, PackedRow, split_run
from dsh_codec.source import Source, SourceLike, is_directory, open_source, read_header
from dsh_codec.stream import MEMBERS, Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from typing_extensions import Buffer

    from dsh_codec._kernel import ColumnScanner, RowScanner
    from dsh_codec._types import (
        AttemptColumns,
        Compression,
        Header,
        Mode,
        ScanResult,
        TimedCall,
    )
    from dsh_codec.call_rows import CallColumns
    from dsh_codec.migrate.children import ChildEvidence

__all__ = ["Attempt", "Event", "Limits", "Log", "Stream", "open"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_MODES: Final = ("strict", "recoverable")

_PIECE_BYTES: Final = 2 << 20
_PIECE_EVENTS: Final = 65_536


class Limits(NamedTuple):
    """Bounds on what a log may demand, see `dsh_codec.limits`."""

    max_row_bytes: int = MAX_ROW_BYTES
    max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES
    max_depth: int = MAX_DEPTH
    max_packed_events: int = MAX_PACKED_EVENTS


class Scanner(Protocol[T_co]):
    """A scan of the plaintext of a log, as `RowScanner` of the kernel is one."""

    @property
    def event_count(self) -> int:
        """Accepted events."""
        ...

    @property
    def fed_bytes(self) -> int:
        """Plaintext bytes fed."""
        ...

    def feed(self, data: Buffer, /) -> T_co:
        """Take the next bytes."""
        ...

    def end_frame(self) -> None:
        """Take note that a complete frame ends here."""

    def end_complete_frames(self) -> None:
        """Take note that the last complete frame ended."""

    def finish(self) -> ScanResult:
        """End the scan."""
        ...


class _Structure(NamedTuple):
    """Frames of a Zstandard file, found without decoding.

    Attributes:
        end: Offset behind the last complete frame.
        torn_start: Start of a torn last frame, else None.
        fault: What is wrong at `end`, else None.
    """

    end: int
    torn_start: int | None
    fault: FrameError | None


def open(  # noqa: A001 - the name that users see is dsh_codec.open
    source: SourceLike,
    *,
    mode: Mode = "recoverable",
    compression: Compression | None = None,
    generation: int | None = None,
    upgrade: bool = False,
    max_row_bytes: int = MAX_ROW_BYTES,
    max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES,
    max_depth: int = MAX_DEPTH,
    max_packed_events: int = MAX_PACKED_EVENTS,
    max_spooled_bytes: int = MAX_SPOOLED_BYTES,
) -> Log:
    """Open a log and read its header.

    Args:
        source: A file, a session directory (its highest generation is read), a bytes-like
            object, or a binary file object, which is read from where it stands. A pipe is
            copied to a temporary file first.
        mode: `recoverable` reads what an ordinary reader accepts, up to a torn tail;
            `strict` refuses the first row that is not right and stops before a torn frame.
        compression: How the log is stored; None: its first bytes tell. In a session directory
            it chooses between encodings.
        generation: The generation it must have; None: the header tells. In a session
            directory it chooses between generations.
        upgrade: Whether a log of an older generation is given as one of generation 4, see
            `Log.upgraded`; nothing is written beside it.
        max_row_bytes: Bytes in one row.
        max_frame_plain_bytes: Bytes of plaintext in one frame.
        max_depth: Nested arrays and objects in a row.
        max_packed_events: Events of one packed row.
        max_spooled_bytes: Bytes of a pipe that are copied.

    Returns:
        The log; close it, or use it in a `with` statement.

    Raises:
        FileNotFoundError: There is no such file, or no log in the directory.
        OSError: The system refuses to read it.
        LayoutError: The directory holds both encodings of its highest generation, or the file
            is a device.
        IdentityError: A canonical file name, or an argument, disagrees with the content.
        NewerFormatError: The version is above 4.
        HeaderError, FrameError: There is no sound header row.
        LimitExceededError: The header row or a pipe exceeds a limit.
        MigrationRefusedError: With `upgrade`: there is no safe way to carry the log over.
        TypeError, ValueError: A wrong argument.

    Note:
        Bytes that a writer appends later are not seen. Spec: 10 §4, §7, §10.

    Example:
        >>> import dsh_codec as dsh
        >>> row = b'{"type":"session","version":4,"id":"s-1","createdAt":0,'
        >>> row += b'"isSeeded":false,"delegationDepth":0}' + bytes([10])
        >>> dsh.open(row).id
        's-1'
    """
    check_arguments(mode=mode, compression=compression, generation=generation)
    limits = Limits(max_row_bytes, max_frame_plain_bytes, max_depth, max_packed_events)
    if is_directory(source):
        source = select_log(source, compression=compression, generation=generation).path
    opened = open_source(source, max_spooled_bytes=max_spooled_bytes)
    try:
        header, stored = read_header(
            opened,
            compression=compression,
            generation=generation,
            max_row_bytes=max_row_bytes,
            max_frame_plain_bytes=max_frame_plain_bytes,
        )
    except BaseException:
        opened.close()
        raise
    log = Log(opened, header, stored, mode=mode, limits=limits)
    if not upgrade or log.generation == CURRENT_GENERATION:
        return log
    with log:
        return log.upgraded()


def check_arguments(
    *, mode: str, compression: str | None = None, generation: int | None = None
) -> None:
    """Refuse arguments that no log could make right.

    Raises:
        ValueError: One of them has a value that does not exist.
    """
    if mode not in _MODES:
        message = f"mode is 'strict' or 'recoverable', not {mode!r}"
        raise ValueError(message)
    if compression not in (None, "none", "zstd"):
        message = f"compression is 'none', 'zstd' or None, not {compression!r}"
        raise ValueError(message)
    if generation not in (None, 0, 1, 2, 3, 4):
        message = f"generation is 0 to 4 or None, not {generation!r}"
        raise ValueError(message)


def require_log(value: object) -> None:
    """Refuse what is no open log.

    Raises:
        TypeError: It is something else, a path say.
    """
    if not isinstance(value, Log):
        message = (
            f"this takes an open log, not {type(value).__name__}: open it with "
            "dsh_codec.open first"
        )
        raise TypeError(message)


class Log:
    """A log that was opened; see `open`.

    Iterating yields the events from the start, as often as wanted, and raises when damage is
    reached, after the events before it. Nothing but one piece of the file and one row is in
    memory.

    Attributes:
        header: The header row.
        generation: Format generation, 0 to 4.
        compression: How the log is stored: `none` or `zstd`.
        mode: How it is read.
        source: Where its bytes come from.
        result: What the last complete pass over the rows found; None before one.
    """

    header: Header
    generation: int
    compression: Compression
    mode: Mode
    source: Source
    result: FileScan | None

    def __init__(
        self,
        source: Source,
        header: Header,
        compression: Compression,
        *,
        mode: Mode,
        limits: Limits,
    ) -> None:
        """Take what `open` found."""
        self.header = header
        self.generation = header.generation
        self.compression = compression
        self.mode = mode
        self.result = None
        self.source = source
        self._limits = limits
        self._frames: _Structure | None = None

    def __repr__(self) -> str:
        """Return place, generation and compression."""
        place = self.path or f"{self.file_bytes} bytes"
        return f"Log({place!r}, generation={self.generation}, {self.compression})"

    def _repr_html_(self) -> str:
        """Return what notebooks show: what the header and the file tell."""
        from dsh_codec.html_repr import log_html

        return log_html(self)

    def __enter__(self) -> Self:
        """Return the log."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file. A file object of the caller stays open."""
        self.source.close()

    @property
    def path(self) -> str | None:
        """The file; None if the log came from memory or a file object."""
        return self.source.path

    @property
    def file_bytes(self) -> int:
        """Size of the file when it was opened."""
        return self.source.size_bytes

    @property
    def limits(self) -> Limits:
        """The bounds that it is read with."""
        return self._limits

    @property
    def id(self) -> str:
        """The session id."""
        return self.header.fields["id"]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Event]:
        """Yield the events in order.

        Yields:
            Events; one for each member of a packed row.

        Raises:
            CorruptLogError: Damage was reached; its subclass and attributes tell where.
            UnsupportedError: A row is intact, but cannot be interpreted.
            LimitExceededError: A row or frame exceeds a limit.
            OSError: The system refuses to read.

        Note:
            Constant memory. When it is through, `result` says what was read, and where a torn
            tail starts. Spec: 10 §8.
        """
        for unit in self._units():
            if isinstance(unit, PackedRow):
                yield from unit.events()
            else:
                yield unit

    def __len__(self) -> int:
        """Return the number of events.

        The first time it takes a pass over the rows; `list(log)` asks for it, too.

        Raises:
            DshCodecError, OSError: As for iterating.
        """
        result = self.result or self.scan()
        return result.scan.event_count

    def __bool__(self) -> bool:
        """Return True: a log without events is a log."""
        return True

    @overload
    def __getitem__(self, index: int, /) -> Event: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[Event]: ...
    def __getitem__(self, index: int | slice, /) -> Event | list[Event]:
        """Return the event of a seq, or a list of those in a slice of seqs.

        Reads from the start of the log up to the last event wanted. Negative seqs count from
        the end and take one more pass.

        Raises:
            IndexError: There is no such event.
            DshCodecError: As for iterating, if damage comes first.
        """
        if isinstance(index, slice):
            return self._slice(index)
        seq = index if index >= 0 else len(self) + index
        if seq >= 0:
            for event in self._from(seq):
                return event
        message = f"there is no event {index}"
        raise IndexError(message)

    def attempts(self) -> Iterator[Attempt]:
        """Yield the attempts at a model response, in one view over all generations.

        Yields:
            Attempts in the order of their seqs. Those of generations 0 and 1 are grouped from
            chunk rows, without migration; nothing is refused.

        Raises:
            DshCodecError, OSError: As for iterating.

        Note:
            Memory: one attempt, and in generations 0 and 1 a few numbers a message. Spec: 80,
            50 §5.
        """
        return iter_attempts(
            self._units(),
            self.generation,
            self._citations,
            max_depth=self._limits.max_depth,
        )

    def columns(self) -> AttemptColumns:
        """Return the chunks of all attempts as NumPy arrays.

        Returns:
            The attempts in the order of `attempts`, see `AttemptColumns`. Memory is that of
            the arrays, 21 bytes a chunk, 9 a record, and the text.

        Raises:
            StreamError: A stream breaks a rule of expansion; `.seq` is that of its row and
                `.record` the index of the record.
            DshCodecError, OSError: As for iterating.

        Note:
            One pass over the bytes, without Python objects in generations 2 to 4; in
            generations 0 and 1 rows are grouped first. The GIL is released. Spec: 20 §4, 80.
        """
        scanner = self._column_scanner()
        for _ in self._flatten(scanner):
            pass
        return scanner.take_columns()

    def iter_columns(self) -> Iterator[tuple[AttemptColumns, list[AttemptPlace]]]:
        """Yield what `columns` returns in pieces, each with the places of its attempts.

        Yields:
            Columns of some attempts, at least one but in the last piece, and where each stands.

        Raises:
            StreamError: As for `columns`, after the pieces before it.
            DshCodecError, OSError: As for iterating.

        Note:
            A piece holds the attempts of 2 MiB of plaintext (in generations 0 and 1 of 65,536
            events), or one larger one; memory is that of one piece. Spec: 20 §4, 80.
        """
        scanner = self._column_scanner()
        counter = AttemptCounter()
        for places in self._flatten(scanner):
            for found in scanner.take_settlements():
                number = counter.count(found.turn, found.step)
                seq, time, outcome, turn, step = found
                places.append(AttemptPlace(turn, step, number, outcome, seq, time))
            if places:
                yield scanner.take_columns(), places

    def iter_place_columns(
        self, *, text: bool = True
    ) -> Iterator[tuple[AttemptColumns, PlaceColumns]]:
        """Yield what `iter_columns` does, with places as arrays.

        Args:
            text: Whether the text of fragments is kept; `offset` tells their lengths anyway.

        Raises:
            StreamError, DshCodecError, OSError: As there.
        """
        scanner = self._column_scanner(text=text)
        counter = AttemptCounter()
        for places in self._flatten(scanner):
            found = (
                PlaceColumns.of_places(places)
                if self.generation < 2
                else PlaceColumns.of_settlements(
                    scanner.take_settlement_columns(), counter
                )
            )
            if len(found.seq):
                yield scanner.take_columns(), found

    def _column_scanner(self, *, text: bool = True) -> ColumnScanner:
        return kernel.ColumnScanner(
            mode=self.mode,
            generation=self.generation,
            text=text,
            max_row_bytes=self._limits.max_row_bytes,
            max_depth=self._limits.max_depth,
        )

    def _flatten(self, scanner: ColumnScanner) -> Iterator[list[AttemptPlace]]:
        """Fill columns, and yield whenever there is enough for a piece, and at the end.

        Yields:
            Places of the attempts since then, where the scanner does not find them itself.
        """
        places: list[AttemptPlace] = []
        reached = 0
        if self.generation >= 2:
            for _ in self.feed_to(scanner):
                if scanner.fed_bytes - reached >= _PIECE_BYTES:
                    reached = scanner.fed_bytes
                    yield []
            yield []
            return
        for attempt in self.attempts():
            stored = attempt.stream.stored or kernel.StoredStream([])
            try:
                scanner.add_attempt(stored)
            except DshCodecError as error:
                raise error.located(path=self.path) from None
            turn, step, number, outcome, seq, time, *_ = attempt
            places.append(AttemptPlace(turn, step, number, outcome, seq, time))
            # Every chunk is an event here.
            if seq - reached >= _PIECE_EVENTS:
                reached = seq
                yield places
                places = []
        yield places

    def scan_calls(self, columns: CallColumns) -> list[TimedCall]:
        """Return the calls of a log of generation 2 to 4, see `dsh_codec.calls`.

        Raises:
            DshCodecError, OSError: As for iterating.
        """
        limits = self._limits
        scanner = kernel.CallScanner(
            **columns._asdict(),
            mode=self.mode,
            generation=self.generation,
            max_row_bytes=limits.max_row_bytes,
            max_depth=limits.max_depth,
        )
        for _ in self.feed_to(scanner):
            pass
        return scanner.take_calls()

    def scan(self, *, check_streams: bool = False) -> FileScan:
        """Read the whole log and say what is in it, without making events.

        Args:
            check_streams: Whether every stream record is checked and counted (20 §4). The kernel
                then reads a file by itself, together with what a writer appended meanwhile.

        Returns:
            Numbers and places, also kept as `result`.

        Raises:
            DshCodecError, OSError: As for iterating.
        """
        door = self.source.door
        if check_streams and door is not None:
            arguments: dict[str, Any] = self._limits._asdict()
            arguments |= {"mode": self.mode, "generation": self.generation}
            if isinstance(door, str):
                self.result = kernel.check_file(door, **arguments)
            else:
                self.result = kernel.check_bytes(door, **arguments)
            return self.result
        for _ in self._batches(check_streams=check_streams):
            pass
        assert self.result is not None  # noqa: S101 - a pass that ends sets it
        return self.result

    def upgraded(self, *, children: Iterable[ChildEvidence] = ()) -> Log:
        """Return the log as one of generation 4, without writing to its folder.

        Args:
            children: Evidence of the child sessions (`dsh_codec.migrate`). The default says that
                there are none: the result lacks the catalog of children that a published
                migration has.

        Returns:
            The log itself if it is of generation 4. Else a log over a temporary file, which
            vanishes when it is closed; its `path` is that of this log, for messages.

        Raises:
            MigrationRefusedError: There is no safe way to carry the log over; `.seq` and
                `.rule` say where and why.
            DshCodecError, OSError: As for iterating.

        Note:
            One pass over this log; memory as for `dsh_codec.migrate.upgrade`. The limit of depth
            is for the rows of this log; those of the result may nest two levels deeper. Spec:
            50 §2.
        """
        if self.generation == CURRENT_GENERATION:
            return self
        # The migration stands above the reader of logs; only a caller who asks pays for it.
        from dsh_codec.migrate.upgrade import DEEPER, spool_upgrade

        source, header = spool_upgrade(self, children)
        limits = self._limits._replace(max_depth=self._limits.max_depth + DEEPER)
        return Log(source, header, "none", mode=self.mode, limits=limits)

    def feed_to(self, scanner: Scanner[T]) -> Iterator[T]:
        """Feed the text of the whole log to a scanner of the kernel, as a reader would.

        Yields:
            What each call of its `feed` returns. When it is through, `result` is set.

        Raises:
            DshCodecError, OSError: As for iterating, and what `feed` raises.
        """
        for fed, _ in self._pass(scanner):
            yield fed

    def units(self) -> Iterator[Event | PackedRow]:
        """Yield the events in order, but each packed row as one.

        Raises:
            DshCodecError, OSError: As for iterating.
        """
        return self._units()

    def runs(self) -> Iterator[Event | PackedRow | CommonRow | ChunkRun]:
        """Yield the events as migration takes them: in order, chunk rows of an attempt in one.

        Raises:
            DshCodecError, OSError: As for iterating.
        """
        if self.generation >= 2:
            yield from self._units()
            return
        limits = self._limits
        scanner = kernel.RunScanner(
            mode=self.mode,
            generation=self.generation,
            max_row_bytes=limits.max_row_bytes,
            max_depth=limits.max_depth,
            max_packed_events=limits.max_packed_events,
        )
        for units, frame in self._pass(scanner):
            for unit in units:
                if isinstance(unit, ChunkRun | CommonRow):
                    yield unit
                else:
                    yield self._unit(unit, frame)

    def row_of(self, common: CommonRow) -> Event | PackedRow:
        """Return a common row that `runs` gave as an event."""
        kind, seq, time, raw, offset, number, *_ = common
        return self._unit(Row(kind, seq, time, raw, offset, number, 1), None)

    def rows_of(self, run: ChunkRun) -> Iterator[Event | PackedRow]:
        """Yield the rows of a run that `runs` gave, each by itself."""
        for row in split_run(run, max_depth=self._limits.max_depth):
            yield self._unit(row, None)

    def _slice(self, index: slice) -> list[Event]:
        index.indices(0)  # Refuses what is no slice of integers, and a step of 0.
        start, stop, step = index.start, index.stop, index.step
        if (start or 0) < 0 or (stop or 0) < 0 or (step or 1) < 0:
            start, stop, step = index.indices(len(self))
        if (step or 1) < 0:
            return self._slice(slice(stop + 1, start + 1))[:: step or 1]
        start, step = start or 0, step or 1
        count = None if stop is None else max(stop - start, 0)
        if count == 0:
            return []
        return list(islice(self._from(start), 0, count, step))

    def _from(self, seq: int) -> Iterator[Event]:
        for unit in self._units():
            if isinstance(unit, Event):
                if unit.seq >= seq:
                    yield unit
            elif unit.seq + unit.count > seq:
                yield from islice(unit.events(), max(seq - unit.seq, 0), None)

    def _citations(self) -> Mapping[Spans, int]:
        """Look ahead: the last message that cites each run of chunks."""
        found: dict[Spans, int] = {}
        max_depth = self._limits.max_depth
        try:
            for rows, frame in self._batches():
                for row in rows:
                    if row.type == "assistant/message":
                        event = Event(row, frame, self.generation, max_depth)
                        found[find_spans(event.source_event_seqs or ())] = event.seq
        except DshCodecError:
            # The pass that asks will reach the same damage and report it.
            pass
        return found

    def _units(self) -> Iterator[Event | PackedRow]:
        for rows, frame in self._batches():
            for row in rows:
                yield self._unit(row, frame)

    def _unit(self, row: Row, frame: int | None) -> Event | PackedRow:
        generation, max_depth = self.generation, self._limits.max_depth
        if generation < 2 and row.type in MEMBERS:
            return PackedRow(row, frame, max_depth)
        return Event(row, frame, generation, max_depth)

    def _batches(
        self, *, check_streams: bool = False
    ) -> Iterator[tuple[list[Row], int | None]]:
        """Feed the whole log, yield accepted rows with their frame, then set `result`."""
        return self._pass(self._scanner(check_streams=check_streams))

    def _pass(self, scanner: Scanner[T]) -> Iterator[tuple[T, int | None]]:
        pieces = self._zstd_pieces if self.compression == "zstd" else self._plain_pieces
        frame: int | None = None
        is_fed = False
        try:
            for data, frame in pieces(scanner):
                is_fed = True
                yield scanner.feed(data), frame
                # A refusal behind these rows comes with the next call.
                scanner.feed(b"")
                is_fed = False
        except DshCodecError as error:
            raise error.located(
                path=self.path, frame=frame if is_fed else None
            ) from None

    def _scanner(self, *, check_streams: bool = False) -> RowScanner:
        limits = self._limits
        return kernel.RowScanner(
            mode=self.mode,
            generation=self.generation,
            check_streams=check_streams,
            max_row_bytes=limits.max_row_bytes,
            max_depth=limits.max_depth,
            max_packed_events=limits.max_packed_events,
        )

    def _plain_pieces(self, scanner: Scanner[Any]) -> Iterator[tuple[Buffer, None]]:
        size = self.file_bytes
        for piece in self.source.pieces(0, size):
            yield piece, None
        result = scanner.finish()
        committed = result.committed_bytes
        truncate_to = committed if committed < size else None
        self.result = FileScan(result, "none", size, size, None, None, truncate_to, 0)

    def _zstd_pieces(
        self, scanner: Scanner[Any]
    ) -> Iterator[tuple[Buffer, int | None]]:
        structure = self._structure()
        reader = kernel.FrameReader(
            max_frame_plain_bytes=self._limits.max_frame_plain_bytes
        )
        for data in self.source.pieces(0, structure.end):
            reader.feed(data)
            while (piece := reader.read()) is not None:
                yield piece.data, piece.frame
                if piece.last:
                    scanner.end_frame()
        if structure.fault is not None:
            raise structure.fault
        scanner.end_complete_frames()
        plain_bytes, complete = scanner.fed_bytes, scanner.event_count
        if structure.torn_start is not None and self.mode == "recoverable":
            tail = self._torn_plaintext(structure.torn_start)
            yield tail, reader.frame_count
        result = scanner.finish()
        self.result = FileScan(
            result,
            "zstd",
            self.file_bytes,
            plain_bytes,
            reader.frame_count,
            structure.torn_start,
            structure.torn_start,
            result.event_count - complete,
        )

    def _structure(self) -> _Structure:
        """Find the frames, so that a torn one is known before its rows are used."""
        if self._frames is None:
            frames = kernel.FrameScanner()
            torn_start, fault, end = None, None, self.file_bytes
            try:
                for data in self.source.pieces(0, end):
                    frames.feed(data)
                torn_start = frames.finish()
                if torn_start is not None:
                    end = torn_start
            except FrameError as error:
                if error.offset is None:
                    raise
                fault, end = error, error.offset
            self._frames = _Structure(end, torn_start, fault)
        return self._frames

    def _torn_plaintext(self, start: int) -> bytes:
        data = self.source.read(start, self.file_bytes - start)
        return kernel.recover_tail(
            data, max_plain_bytes=self._limits.max_frame_plain_bytes
        )
