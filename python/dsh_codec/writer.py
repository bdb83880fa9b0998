"""Writing a log: created, continued, batch after batch on disk. Spec: 10 §8.4, §9, §11.

One writer holds the session's lock from its opening (or first batch) until it is closed.
"""

from __future__ import annotations

import errno
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, get_args

from dsh_codec._backend import kernel
from dsh_codec._types import EncodedRows
from dsh_codec.durable import AppendFile, OsFileSystem, make_directories, publish
from dsh_codec.errors import DshCodecError, LimitExceededError, RowError
from dsh_codec.find import CURRENT_GENERATION
from dsh_codec.header import CURRENT_VERSION, encode_header
from dsh_codec.limits import MAX_FRAME_PLAIN_BYTES, MAX_ROW_BYTES
from dsh_codec.lock import SessionLock
from dsh_codec.log import open as open_log
from dsh_codec.names import log_path
from dsh_codec.place import locate, read_for_append, require_new
from dsh_codec.report import Level
from dsh_codec.settlement import settlement_event

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from typing_extensions import Buffer

    from dsh_codec._types import Compression
    from dsh_codec.append_check import AppendCheck
    from dsh_codec.durable import FileSystem
    from dsh_codec.lock import LockBackend
    from dsh_codec.rules import RuleCheck

__all__ = ["WINDOW_MS", "StreamSource", "Writer"]

WINDOW_MS: Final = 200
"""Milliseconds that a harness buffers live events at most. Spec: 10 §11.2."""

DEFAULT_LEVEL: Final = 3
"""Compression level of the harness. Spec: 70 §1."""


class StreamSource(Protocol):
    """What holds the records of an attempt: a `Packer`."""

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the records."""
        ...


class Writer:
    """The one writer of a session.

    Made by `create` or `open`. A batch that was appended is on disk when the call returns, or an
    error says that it is not. Use it in a `with` statement, or close it: until then nobody else
    can write to the session.

    Attributes:
        path: The log file.
        header: The logical header.
        compression: How the log is stored.
        level: Compression level of the frames that are written.

    Note:
        Not for several threads at once. Spec: 10 §11.
    """

    path: str
    header: dict[str, Any]
    compression: Compression
    level: int

    def __init__(self, plan: _Plan, options: _Options) -> None:
        """Take what `create` or `open` prepared; not for callers."""
        self.path = plan.path
        self.header = plan.header
        self.compression = plan.compression
        self.level = options.level
        self._options = options
        self._max_row_bytes = options.max_row_bytes
        self._header_line = plan.header_line
        self._directories = plan.directories
        self._lock = plan.lock
        self._file = plan.file
        self._stored_count = plan.event_count
        self._truncate_to = plan.truncate_to
        self._recovered = plan.recovered
        self._needs_marker = plan.needs_marker
        self._check = options.append_check(plan)
        self._buffer: list[EncodedRows] = []
        self._buffered_count = 0
        self._deadline_ms = 0.0
        self._is_closed = False
        self._fault: str | None = None
        self._ready: AppendFile | None = None
        self._note_ready()

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str],
        header: Mapping[str, Any],
        *,
        compression: Compression = "zstd",
        level: int = DEFAULT_LEVEL,
        window_ms: float = WINDOW_MS,
        durable: bool = True,
        check: Level = "scan",
        clock: Callable[[], float] = time.monotonic,
        files: FileSystem | None = None,
        lock_backend: LockBackend | None = None,
    ) -> Self:
        """Prepare a new session under a root.

        Nothing is touched before the first batch or `flush`: only then the directories are made,
        the lock is taken and the log appears, complete with that batch.

        Args:
            root: The sessions root; made if it is not there.
            header: Logical header: `id`, `createdAt` (milliseconds) and what else 10 §4.1 knows.
                `version`, `isSeeded` and `delegationDepth` may be left out.
            compression: How to store it. One root uses one encoding.
            level: Compression level; 3 gives the bytes of the harness.
            window_ms: How long `enqueue` may hold events back, in milliseconds.
            durable: Whether every batch waits until it is on disk; without it only `flush` and
                `close` do, and a crash of the machine may lose batches. Whether the log was
                removed or moved is looked at then, too.
            check: How far every batch is checked before it is written. `scan`: each event by
                itself. `read`, `restore`, `full`: also whether it fits what the log holds, so
                that `dsh_codec.check` accepts the log at this level afterwards; this costs a
                parse of the rows and the rules over them.
            clock: Seconds from any origin, never going back.
            files: Where it is written; None: the file system of this machine.
            lock_backend: How sessions are locked; None: as this system does.

        Returns:
            The writer; `path` is where the log will be.

        Raises:
            HeaderError: The header breaks a rule of 10 §4.1.
            ValueError: The id or working directory is empty, or an argument is wrong.

        Note:
            A seeded session begins with the inherited events and the inherited end-seed marker,
            all in the first batch: without the marker nobody could read the log. Spec: 10 §11.1,
            §4.4.
        """
        fields = {"version": CURRENT_VERSION, "isSeeded": False, **header}
        is_seeded = fields["isSeeded"] is True
        line = encode_header(fields, inherited_event_count=0 if is_seeded else None)
        parsed = kernel.parse_header(line + b"\n", generation=CURRENT_VERSION)
        path = log_path(
            Path(root).absolute(),
            cwd=parsed.fields.get("cwd"),
            id=parsed.fields["id"],
            version=CURRENT_GENERATION,
            compression=compression,
        )
        session = Path(path).parent
        directories = [str(session.parent.parent), str(session.parent), str(session)]
        plan = _Plan(
            path,
            parsed.fields,
            compression,
            header_line=line + b"\n",
            directories=directories,
            needs_marker=is_seeded,
        )
        options = _Options.of(
            level, window_ms, durable, clock, files, lock_backend, MAX_ROW_BYTES, check
        )
        return cls(plan, options)

    @classmethod
    def open(
        cls,
        source: str | os.PathLike[str],
        *,
        session_id: str | None = None,
        compression: Compression | None = None,
        level: int = DEFAULT_LEVEL,
        window_ms: float = WINDOW_MS,
        durable: bool = True,
        check: Level = "scan",
        max_row_bytes: int = MAX_ROW_BYTES,
        max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES,
        clock: Callable[[], float] = time.monotonic,
        files: FileSystem | None = None,
        lock_backend: LockBackend | None = None,
    ) -> Self:
        """Open a session to continue it: lock it, then read and check the whole log.

        A torn tail is accepted and cut off by the first batch, not before; rows that were
        recovered from it are written again then. Opening changes nothing in the log.

        Args:
            source: A session directory (its highest generation is taken) or a log file.
            session_id: The id that the header has to have; None accepts any.
            compression: The encoding to take where the directory holds both.
            level: As for `create`.
            window_ms: As for `create`.
            durable: As for `create`.
            check: As for `create`; also how far the log is checked now, `read` at least.
            max_row_bytes: Bytes in one row, read or written.
            max_frame_plain_bytes: Bytes of plaintext in one frame.
            clock: As for `create`.
            files: As for `create`.
            lock_backend: As for `create`.

        Returns:
            The writer.

        Raises:
            SessionLockedError: Another writer has the session open.
            FileNotFoundError: There is no log.
            CorruptLogError, UnsupportedError, NewerFormatError: An ordinary read refuses the
                log, or it is of an older generation and has to be migrated first.
            IdentityError: The header has another id, the file name says otherwise, or the file
                changes while it is read.
            LayoutError: The directory holds a higher generation, or both encodings.
            OSError: The system refuses.

        Note:
            One pass, in bounded memory. Spec: 00 §6, 10 §9, §10.
        """
        options = _Options.of(
            level, window_ms, durable, clock, files, lock_backend, max_row_bytes, check
        )
        path = locate(source, compression)
        lock = SessionLock(Path(path).parent, backend=options.lock_backend)
        try:
            # The directory may have changed before the lock was there.
            path = locate(source, compression)
            state = read_for_append(
                path,
                level="read" if check == "scan" else check,
                session_id=session_id,
                max_row_bytes=max_row_bytes,
                max_frame_plain_bytes=max_frame_plain_bytes,
            )
        except BaseException:
            lock.release()
            raise
        file = AppendFile(
            path,
            size_bytes=state.file_bytes,
            identity=state.identity,
            files=options.files,
            durable=durable,
        )
        plan = _Plan(
            path,
            state.header.fields,
            state.compression,
            lock=lock,
            file=file,
            event_count=state.event_count,
            truncate_to=state.truncate_to,
            recovered=state.recovered,
            rules=state.rules,
        )
        return cls(plan, options)

    def __repr__(self) -> str:
        """Return the file and the next seq."""
        return f"Writer({self.path!r}, next_seq={self.next_seq})"

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the writer."""
        self.close()

    @property
    def next_seq(self) -> int:
        """The seq that the next event has to have; buffered events are counted."""
        return self._stored_count + self._buffered_count

    @property
    def stored_count(self) -> int:
        """Events that are in the log, those of a torn tail included."""
        return self._stored_count

    @property
    def buffered_count(self) -> int:
        """Events that `enqueue` holds back."""
        return self._buffered_count

    @property
    def truncate_to(self) -> int | None:
        """Byte of the file at which the first batch will cut a torn tail; None without one."""
        return self._truncate_to

    @property
    def recovered_count(self) -> int:
        """Events from a torn tail that the first batch will write again."""
        return len(self._recovered)

    @property
    def is_closed(self) -> bool:
        """Whether the writer was closed."""
        return self._is_closed

    @property
    def is_usable(self) -> bool:
        """Whether batches are taken: not closed, and no failure left the file unknown."""
        sound = self._fault is None and (self._file is None or self._file.is_usable)
        return sound and not self._is_closed

    @property
    def due_in_ms(self) -> float | None:
        """Milliseconds until the buffered events should be flushed; None if there are none."""
        if not self._buffer:
            return None
        return max(self._deadline_ms - self._now_ms(), 0.0)

    def append(self, events: Iterable[Mapping[str, Any]]) -> int:
        """Write events as one batch; they are on disk when this returns.

        What `enqueue` holds back is flushed first, as a batch of its own.

        Args:
            events: Logical events: `type`, `seq`, `time` (milliseconds), `data` and what else
                10 §5.1 knows. Their seqs continue the log. None at all is no batch.

        Returns:
            The seq that the next event has to have.

        Raises:
            SeqGapError: A seq does not continue the log.
            UnsupportedError, RowError: An event breaks a rule, see `kernel.encode_events`. Nothing
                is written then, nor for the next three.
            CorruptLogError, UnsupportedError: The log would break a rule of the level that
                `check` asked for; `.rule` and `.seq` tell which and where.
            LimitExceededError: A row or the batch exceeds a limit.
            TypeError: An event holds something that is no JSON value.
            SessionLockedError, FileExistsError, IdentityError: The first batch of a new session
                finds a writer, a log, or the id in another project.
            IdentityError: Somebody who does not hold the lock changed the log.
            OSError: The system refuses. The batch is not in the log. After a failed sync, or a
                batch that could not be taken back, every further call raises, too: close the
                writer and open the log again.
            ValueError: The writer is closed.

        Note:
            Without `check`, an event is judged by itself: row admission, members, seq. Whether it
            fits the others (30 §7 to §10) is then for the caller to know. Spec: 10 §11.2, §8.4.
        """
        if self._is_closed or self._fault is not None:
            self._require_open()
        values = events if type(events) in (list, tuple) else list(events)
        for event in values:
            if type(event) is not dict:
                values = _dictionaries(values)
                break
        return self._append(kernel.encode_events, values)

    def append_rows(self, rows: Buffer) -> int:
        """Write rows that are JSON text already as one batch; on disk when this returns.

        For importers, movers and relays: what `append` writes of the parsed rows, but no Python
        value is made. Rows that are spelled as the harness spells them, which those of every log
        are that it or this package wrote, are written as they stand, others are respelled.

        Args:
            rows: Event rows of generation 4 as they stand in a log: UTF-8 JSON with a line feed
                behind each, which the last may lack. No header row. Their seqs continue the log.

        Returns:
            The seq that the next event has to have.

        Raises:
            JsonSyntaxError: A row is no JSON. Nothing is written then, nor for the next four.
            SeqGapError: A seq does not continue the log.
            UnsupportedError, RowError: A row breaks a rule, see `kernel.encode_rows`.
            LimitExceededError: A row or the batch exceeds a limit.
            TypeError: `rows` is no bytes-like object.
            SessionLockedError, FileExistsError, IdentityError, OSError, ValueError: As for
                `append`.

        Note:
            Spec: 10 §1.1, §8.1, §11.2.
        """
        if self._is_closed or self._fault is not None:
            self._require_open()
        return self._append(kernel.encode_rows, rows)

    def append_settlement(
        self,
        stream: StreamSource | Sequence[Mapping[str, Any]],
        *,
        turn: int,
        step: int,
        time_ms: int,
        message_id: str | None = None,
        provider: str | None = None,
        model: str | None = None,
        is_interrupted: bool = False,
    ) -> int:
        """Append the settlement of one attempt, made from its stream.

        Args:
            stream: A `Packer`, which has the text of its records ready, or records (20 §2).
            turn: The open turn.
            step: The open step.
            time_ms: Time of the event, milliseconds since the Unix epoch.
            message_id: Id of the message; None for an attempt that failed, which gives no message
                (`assistant/attempt`).
            provider: Who answered; needed for a message.
            model: What answered; needed for a message.
            is_interrupted: Whether the user cut the answer off: only visible text and reasoning
                are its content then.

        Returns:
            The seq of the event.

        Raises:
            StreamError: The chunks cannot be assembled.
            ValueError: A message lacks provider or model.
            DshCodecError, OSError: As for `append`.

        Note:
            Content, usage and replay state are those of the stream, so the settlement passes
            level `full`. Spec: 30 §4, §10; key order of 70 §1.
        """
        if self._is_closed or self._fault is not None:
            self._require_open()
        message = None
        if message_id is not None:
            if not provider or not model:
                text = "a message needs the provider and the model that gave it"
                raise ValueError(text)
            message = (message_id, provider, model)
        seq = self._stored_count + self._buffered_count
        given = (turn, step, time_ms, message, is_interrupted)
        if type(stream) is kernel.Packer:
            self._append(stream.encode_settlement, given)
            return seq
        try:
            event = settlement_event(
                kernel.Assembler(), _records_of(stream), seq, *given
            )
        except DshCodecError as error:
            raise error.located(path=self.path) from None
        self._append(kernel.encode_events, (event,))
        return seq

    def enqueue(self, events: Iterable[Mapping[str, Any]]) -> int:
        """Check events now and write them with the next batch.

        They are written by the first call after their window has passed, or by `flush`, `append`
        or `close`. There is no thread that does it: `due_in_ms` tells when a call is due
        (`AsyncWriter` makes it).

        Args:
            events: As for `append`.

        Returns:
            The seq that the next event has to have.

        Raises:
            DshCodecError, OSError: As for `append`. A batch that the system refused stays
                buffered, and the next flush tries again.
        """
        self._require_open()
        try:
            batch = kernel.encode_events(
                _dictionaries(events), self.next_seq, max_row_bytes=self._max_row_bytes
            )
        except DshCodecError as error:
            raise error.located(path=self.path) from None
        self._check_batch(batch)
        if batch.event_count:
            if not self._buffer:
                self._deadline_ms = self._now_ms() + self._options.window_ms
            self._buffer.append(batch)
            self._buffered_count += batch.event_count
            self._note_ready()
        self.flush_if_due()
        return self.next_seq

    def flush_if_due(self) -> bool:
        """Flush if the window of the buffered events has passed; whether that was so.

        Raises:
            DshCodecError, OSError: As for `enqueue`.
        """
        is_complete = not self._needs_marker or any(
            batch.has_marker for batch in self._buffer
        )
        if self.due_in_ms == 0 and is_complete:
            self._drain()
            return True
        return False

    def flush(self) -> None:
        """Write what is buffered and wait until everything is on disk.

        A new session that has no log yet gets one, with its header.

        Raises:
            DshCodecError, OSError: As for `enqueue`.
            IdentityError: Somebody who does not hold the lock changed, removed or moved the log.
        """
        self._require_open()
        self._drain()
        if self._file is None:
            self._commit(_NO_ROWS)
        elif not self._options.durable:
            self._file.sync()

    def repair_tail(self) -> None:
        """Cut a torn tail now and write again what was recovered from it.

        Raises:
            OSError: The system refuses, as for `append`.

        Note:
            The first batch does this by itself. Spec: 10 §8.4.
        """
        self._require_open()
        if self._file is not None:
            self._recover(self._file)

    def close(self) -> None:
        """Flush, close the file, give the lock back. Doing it again does nothing.

        Raises:
            DshCodecError, OSError: What was buffered could not be written; it is lost, and the
                writer is closed all the same.
        """
        if self._is_closed:
            return
        try:
            if self._buffer and self.is_usable:
                self._drain()
            if self._file is not None and self.is_usable and not self._options.durable:
                self._file.sync()
        finally:
            self._is_closed = True
            try:
                if self._file is not None:
                    self._file.close()
            finally:
                if self._lock is not None:
                    self._lock.release()

    def _now_ms(self) -> float:
        return self._options.clock() * 1000

    def _require_open(self) -> None:
        if self._is_closed:
            message = "the writer is closed"
            raise ValueError(message)
        if self._fault is not None:
            message = (
                f"nothing more is written, because {self._fault}; close this writer and open "
                "the log again"
            )
            raise OSError(errno.EIO, message, self.path)

    def _check_batch(self, batch: EncodedRows) -> None:
        """Check a batch as a whole; nothing changes, whatever is wrong with it."""
        text, event_count, has_marker = batch
        if has_marker and self.header["isSeeded"] is not True:
            message = (
                "an inherited session/end-seed belongs to a seeded session only; with it "
                "nobody could read this log"
            )
            raise RowError(
                message, self.path, None, None, self.next_seq, None, "10 §4.4"
            )
        if len(text) > MAX_FRAME_PLAIN_BYTES:
            raise _too_large(text)
        if self._check is not None and event_count:
            try:
                self._check.take(text, self.next_seq, self._events)
            except DshCodecError as error:
                raise error.located(path=self.path) from None

    def _append(self, encode: Callable[..., EncodedRows], values: Any) -> int:
        """Encode, check and write a batch behind what is buffered; return the next seq.

        A batch that is nothing but written takes no further step: each of them costs as much as
        to encode a short row.
        """
        try:
            text, event_count, has_marker = batch = encode(
                values,
                self._stored_count + self._buffered_count,
                max_row_bytes=self._max_row_bytes,
            )
        except DshCodecError as error:
            raise error.located(path=self.path) from None
        file = self._ready
        if (
            file is None
            or not event_count
            or has_marker
            or len(text) > MAX_FRAME_PLAIN_BYTES
        ):
            self._check_batch(batch)
            if event_count:
                self._drain()
                self._commit(batch)
            return self._stored_count + self._buffered_count
        if self.compression == "zstd":
            text = kernel.encode_frame(text, level=self.level)
        file.append(text)
        self._stored_count += event_count
        return self._stored_count

    def _events(self) -> Iterator[dict[str, Any]]:
        """Yield the events before the next batch, those held back included."""
        from dsh_codec.append_check import parsed_rows

        if self._file is not None:
            with open_log(self.path, max_row_bytes=self._options.max_row_bytes) as log:
                for event in islice(log, self._stored_count):
                    yield event.envelope
        text = b"".join(batch.text for batch in self._buffer)
        yield from parsed_rows(text, self._stored_count)

    def _drain(self) -> None:
        while self._buffer:
            batch, taken = _joined(self._buffer)
            self._commit(batch)
            del self._buffer[:taken]
            self._buffered_count -= batch.event_count
            self._note_ready()

    def _commit(self, batch: EncodedRows) -> None:
        text, event_count, has_marker = batch
        if self._needs_marker and not has_marker:
            message = (
                "the first batch of a seeded session has to hold the inherited events and the "
                "inherited session/end-seed behind them; without it nobody could read the log"
            )
            raise RowError(message, self.path, None, None, None, None, "10 §4.4")
        file = self._file
        if file is None:
            self._publish(text)
        else:
            if self._truncate_to is not None or self._recovered:
                self._recover(file)
            file.append(text if self.compression == "none" else self._encode(text))
        self._needs_marker = False
        self._stored_count += event_count
        self._note_ready()

    def _note_ready(self) -> None:
        """Note the file, if a batch has only to be written to it."""
        is_ready = not (
            self._buffer
            or self._needs_marker
            or self._truncate_to is not None
            or self._recovered
            or self._check is not None
        )
        self._ready = self._file if is_ready else None

    def _recover(self, file: AppendFile) -> None:
        """Spec 10 §8.4: cut, sync; recovered rows as a batch of their own, sync."""
        if self._truncate_to is not None:
            file.cut(self._truncate_to)
            self._truncate_to = None
        if self._recovered:
            file.append(self._encode(b"".join(self._recovered)))
            self._recovered = ()
        self._note_ready()

    def _encode(self, text: bytes) -> bytes:
        if self.compression == "none":
            return text
        return kernel.encode_frame(text, level=self.level)

    def _publish(self, text: bytes) -> None:
        """Make the session: directories, lock, the log with its first batch."""
        files = self._options.files
        directory = self._directories[-1]
        make_directories(files, self._directories)
        if self._lock is None:
            self._lock = SessionLock(directory, backend=self._options.lock_backend)
        require_new(self._directories, self.header["id"])
        parts = [self._encode(self._header_line)]
        if text:
            parts.append(self._encode(text))
        is_visible = False

        def note_visible() -> None:
            nonlocal is_visible
            is_visible = True

        try:
            publish(files, self.path, parts, on_visible=note_visible)
        except OSError as error:
            if is_visible:
                self._fault = f"the new log may not be on disk ({error})"
            raise
        status = Path(self.path).stat()
        self._file = AppendFile(
            self.path,
            size_bytes=sum(map(len, parts)),
            identity=(status.st_dev, status.st_ino),
            files=files,
            durable=self._options.durable,
            is_name_synced=True,
        )


class _Options(NamedTuple):
    """How a writer works."""

    level: int
    window_ms: float
    durable: bool
    clock: Callable[[], float]
    files: FileSystem
    lock_backend: LockBackend | None
    max_row_bytes: int
    check: Level

    @classmethod
    def of(
        cls,
        level: int,
        window_ms: float,
        durable: bool,  # noqa: FBT001 - the fields in their order
        clock: Callable[[], float],
        files: FileSystem | None,
        lock_backend: LockBackend | None,
        max_row_bytes: int,
        check: Level,
    ) -> _Options:
        if check not in get_args(Level):
            message = f"check is one of {', '.join(get_args(Level))}, not {check!r}"
            raise ValueError(message)
        if window_ms < 0:
            message = f"window_ms is 0 or more, not {window_ms}"
            raise ValueError(message)
        chosen = files if files is not None else OsFileSystem()
        return cls(
            level, window_ms, durable, clock, chosen, lock_backend, max_row_bytes, check
        )

    def append_check(self, plan: _Plan) -> AppendCheck | None:
        """Return what checks batches against what the log holds, if anything is to."""
        if self.check == "scan":
            return None
        # The rules take time to import.
        from dsh_codec.append_check import AppendCheck

        return AppendCheck(plan.header, self.check, plan.rules, plan.event_count)


class _Plan(NamedTuple):
    """What a writer starts from."""

    path: str
    header: dict[str, Any]
    compression: Compression
    header_line: bytes = b""
    directories: Sequence[str] = ()
    lock: SessionLock | None = None
    file: AppendFile | None = None
    event_count: int = 0
    truncate_to: int | None = None
    recovered: Sequence[bytes] = ()
    needs_marker: bool = False
    rules: RuleCheck | None = None


def _dictionaries(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return events as dictionaries: mappings of other classes are no JSON values to the kernel."""
    return [event if type(event) is dict else dict(event) for event in events]


_NO_ROWS: Final = EncodedRows(b"", 0, has_marker=False)


def _too_large(text: bytes) -> LimitExceededError:
    message = (
        f"the batch has {len(text)} bytes, more than a reader takes from one frame "
        f"(max_frame_plain_bytes, {MAX_FRAME_PLAIN_BYTES}): append it in parts"
    )
    return LimitExceededError(
        message,
        *(None,) * 6,
        "max_frame_plain_bytes",
        MAX_FRAME_PLAIN_BYTES,
    )


def _joined(batches: list[EncodedRows]) -> tuple[EncodedRows, int]:
    """Return the first batches as one that a frame may hold, and how many they are."""
    total = taken = 0
    for batch in batches:
        total += len(batch.text)
        if taken and total > MAX_FRAME_PLAIN_BYTES:
            break
        taken += 1
    texts, counts, markers = zip(*batches[:taken], strict=True)
    return EncodedRows(b"".join(texts), sum(counts), any(markers)), taken


def _records_of(
    stream: StreamSource | Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    snapshot = getattr(stream, "snapshot", None)
    if snapshot is not None:
        return snapshot()  # type: ignore[no-any-return]
    return [dict(record) for record in stream]  # type: ignore[union-attr]
