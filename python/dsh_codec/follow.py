"""Events of a growing log as they land. Spec: 80 §7.

A `Follow` reads only what is new since its cursor, and takes no lock.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from dsh_codec._backend import kernel
from dsh_codec.errors import (
    DshCodecError,
    FrameError,
    IdentityError,
    LimitExceededError,
)
from dsh_codec.find import log_files, select_log
from dsh_codec.limits import MAX_DEPTH, MAX_FRAME_PLAIN_BYTES, MAX_ROW_BYTES
from dsh_codec.names import parse_log_filename
from dsh_codec.row import Event, PackedRow
from dsh_codec.source import ZSTD_MAGIC
from dsh_codec.stream import MEMBERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator
    from types import TracebackType
    from typing import Self

    from dsh_codec._kernel import FrameReader, RowScanner
    from dsh_codec._types import Compression, Header

__all__ = ["Cursor", "Follow", "Reset", "Superseded", "Waiter", "follow"]

INTERVAL_MS: Final = 100
_MAX_INTERVAL_MS: Final = 86_400_000
_WINDOW_BYTES: Final = 1 << 20
_READ_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
)
# More than the time stamps of any file system are apart.
_SETTLED_NS: Final = 5_000_000_000
_HANDED_AT_ONCE: Final = 256


class Cursor(NamedTuple):
    """Where a follower is. All JSON numbers and strings, so it can be stored. Spec: 80 §7.

    Attributes:
        generation: Generation of the log.
        header_digest: SHA-256 of the header row, hexadecimal.
        device, inode: The file.
        offset: Byte of the file behind the last frame or row that was handed out completely.
        offset_seq: Seq of the first event behind `offset`.
        next_seq: Seq of the next event to hand out; above `offset_seq` in the middle of a frame.
        plain_offset: Byte of the text that `offset` stands for.
        frame_count: Frames before `offset`; 0 in a plain file.
    """

    generation: int
    header_digest: str
    device: int
    inode: int
    offset: int
    offset_seq: int
    next_seq: int
    plain_offset: int
    frame_count: int


class Reset(NamedTuple):
    """The file is another one now: events start again at seq 0.

    Attributes:
        reason: `shorter`, `replaced` (another inode) or `header`.
    """

    reason: str


class Superseded(NamedTuple):
    """A higher generation appeared; readers take only the highest. Nothing follows it here.

    Attributes:
        path: The new file.
        generation: Its generation, by its name.
    """

    path: str
    generation: int


Item: TypeAlias = "Event | Reset | Superseded"


class Waiter(Protocol):
    """How a follower spends the time until it looks again."""

    def wait(self, timeout_ms: float) -> None:
        """Return when the directory may have changed, after `timeout_ms` at the latest."""
        ...

    def stop(self) -> None:
        """Let `wait` return at once, now and later."""
        ...


class SleepWaiter:
    """Waits for the time to pass."""

    def __init__(self) -> None:
        """Start as not stopped."""
        self._stopped = threading.Event()

    def wait(self, timeout_ms: float) -> None:
        """Wait for the time to pass, or for `stop`."""
        self._stopped.wait(timeout_ms / 1000)

    def stop(self) -> None:
        """Let `wait` return at once."""
        self._stopped.set()


class WatchWaiter:
    """Waits for the system to report a change in a directory, through `watchfiles`."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Take the directory; it is watched from the first `wait` on.

        Raises:
            ModuleNotFoundError: The package `watchfiles` is not installed.
        """
        self._watch: Any = importlib.import_module("watchfiles").watch
        self._directory = directory
        self._stopped = threading.Event()
        self._changes: Iterator[Any] | None = None

    def wait(self, timeout_ms: float) -> None:
        """Wait for a change, or for the time to pass."""
        changes = self._changes
        if changes is None:
            changes = self._changes = self._watch(
                self._directory,
                watch_filter=None,
                debounce=10,
                step=5,
                rust_timeout=max(int(timeout_ms), 1),
                yield_on_timeout=True,
                stop_event=self._stopped,
                recursive=False,
            )
        next(changes, None)

    def stop(self) -> None:
        """Let `wait` return."""
        self._stopped.set()


def follow(
    path: str | os.PathLike[str],
    cursor: Cursor | None = None,
    *,
    interval_ms: float = INTERVAL_MS,
    waiter: Waiter | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
    max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES,
    max_depth: int = MAX_DEPTH,
) -> Follow:
    """Follow a log that grows.

    Args:
        path: A log file, or a session directory (its highest generation is followed).
        cursor: Where to go on; None: from the first event.
        interval_ms: Milliseconds between two looks at the file.
        waiter: How to spend them; None: watching the directory if the package `watchfiles` is
            there, else sleeping.
        max_row_bytes: Bytes in one row.
        max_frame_plain_bytes: Bytes of plaintext in one frame.
        max_depth: Nested arrays and objects in a row.

    Returns:
        An iterator of `Event`, `Reset` and `Superseded`, for `for` and for `async for`. It ends
        when `close` is called, or behind `Superseded`.

    Raises:
        FileNotFoundError: There is no log.
        LayoutError: The directory holds both encodings of its highest generation.
        TypeError: `cursor` is no `Cursor`.
        ValueError: The interval is negative, no number or more than a day.

    Note:
        Rows and seqs are checked (layers L0 and L1), nothing above them. Spec: 80 §7.
    """
    if not 0 <= interval_ms <= _MAX_INTERVAL_MS:
        message = (
            f"interval_ms has to be from 0 to {_MAX_INTERVAL_MS:,}, not {interval_ms}"
        )
        raise ValueError(message)
    _require_cursor(cursor)
    if Path(path).is_dir():
        path = select_log(path).path
    else:
        Path(path).stat()
    limits = _Limits(max_row_bytes, max_frame_plain_bytes, max_depth)
    return Follow(
        os.fspath(path), cursor, interval_ms=interval_ms, waiter=waiter, limits=limits
    )


def _require_cursor(value: object) -> None:
    if value is not None and not isinstance(value, Cursor):
        message = (
            "cursor is a Cursor as Follow.cursor gives it (a stored one: Cursor(*values)), "
            f"or None for the first event, not {type(value).__name__}"
        )
        raise TypeError(message)


class _Limits(NamedTuple):
    max_row_bytes: int
    max_frame_plain_bytes: int
    max_depth: int


class _Head(NamedTuple):
    """The start of the file that has to stay as it is."""

    raw: bytes
    compression: Compression
    header: Header
    digest: str
    line: bytes


class Follow:
    """A log that is followed; see `follow`.

    Attributes:
        path: The log file.
    """

    path: str

    def __init__(
        self,
        path: str,
        cursor: Cursor | None,
        *,
        interval_ms: float,
        waiter: Waiter | None,
        limits: _Limits,
    ) -> None:
        """Take what `follow` found."""
        self.path = path
        self._cursor = cursor
        self._interval_ms = interval_ms
        self._limits = limits
        self._waiter = waiter if waiter is not None else _best_waiter(path)
        self._closed = threading.Event()
        self._head: _Head | None = None
        self._reader: FrameReader | None = None
        self._directory = str(Path(path).parent)
        self._listed_ns: int | None = None
        self._generation = next(
            (
                generation
                for stored in ("none", "zstd")
                if (
                    generation := parse_log_filename(
                        Path(path).name, compression=stored
                    )
                )
                is not None
            ),
            None,
        )

    @property
    def cursor(self) -> Cursor | None:
        """Where the follower is, behind the last item it gave; None before the header."""
        return self._cursor

    @property
    def header(self) -> Header | None:
        """The header of the log, once it was read."""
        return None if self._head is None else self._head.header

    def close(self) -> None:
        """End the iteration, also that of another thread; nothing is given any more."""
        self._closed.set()
        self._waiter.stop()

    def __enter__(self) -> Self:
        """Return the follower."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """End the iteration."""
        self.close()

    def poll(self) -> Iterator[Item]:
        """Yield what is new now, and end.

        Yields:
            `Reset` first if the file is another one; then events; then `Superseded`.

        Raises:
            FileNotFoundError: The file has gone.
            CorruptLogError: A complete frame or row is not right. The cursor stays before it,
                and the next poll raises again.
            NewerFormatError, UnsupportedError: The header or a row is not for this version.
            LimitExceededError: A row or frame exceeds a limit.
            OSError: The system refuses to read.
            ValueError: The follower is closed; as for a file, the call itself raises this.

        Note:
            An unfinished frame or row is read again by the next poll. Cost: that of the new
            bytes.
        """
        if self._closed.is_set():
            message = "the follower is closed: follow the log again from its cursor"
            raise ValueError(message)
        return self._new_items()

    def _new_items(self) -> Iterator[Item]:
        for cursor, item in self._steps():
            if self._closed.is_set():
                return
            self._cursor = cursor
            if item is not None:
                yield item

    def __iter__(self) -> Iterator[Item]:
        """Yield items as they come, waiting in between."""
        while not self._closed.is_set():
            for item in self._new_items():
                yield item
                if self._closed.is_set() or isinstance(item, Superseded):
                    return
            self._waiter.wait(self._interval_ms)

    async def __aiter__(self) -> AsyncIterator[Item]:
        """Yield items as they come; files are read and waited for in a thread."""
        import asyncio  # Who does not need it does not wait for its import.

        while not self._closed.is_set():
            steps = self._steps()
            while batch := await asyncio.to_thread(_take, steps):
                for cursor, item in batch:
                    if self._closed.is_set():
                        return
                    self._cursor = cursor
                    if item is None:
                        continue
                    yield item
                    if self._closed.is_set() or isinstance(item, Superseded):
                        return
            if isinstance(self._waiter, SleepWaiter):
                await asyncio.sleep(self._interval_ms / 1000)
            else:
                await asyncio.to_thread(self._waiter.wait, self._interval_ms)

    def _steps(self) -> Iterator[tuple[Cursor | None, Item | None]]:
        """Yield items with the cursor behind each; None for the end of a frame or row."""
        at = self._cursor
        # Without a file object: a look costs little more than what is new.
        file = os.open(self.path, _READ_FLAGS)
        try:
            status = os.fstat(file)
            size = status.st_size
            place = (status.st_dev, status.st_ino)
            head = self._read_head(file, size, is_known=at is not None)
            if at is not None and (reason := _reset_reason(at, head, place, size)):
                self._head, at = None, None
                yield None, Reset(reason)
                head = self._read_head(file, size, is_known=False)
            if head is not None:
                if at is None:
                    at = _start(head, *place)
                    yield at, None
                if size > at.offset:
                    at = yield from self._advance(file, at, head, size)
        finally:
            os.close(file)
        if (found := self._successor()) is not None:
            yield at, found

    def _successor(self) -> Superseded | None:
        if self._generation is None:
            return None
        # A directory whose time has long been the same holds what it held.
        changed_ns = os.stat(self._directory).st_mtime_ns  # noqa: PTH116 - once a poll
        if changed_ns == self._listed_ns:
            return None
        is_settled = time.time_ns() - changed_ns > _SETTLED_NS
        top = log_files(self._directory)
        if top and top[0].generation > self._generation:
            return Superseded(top[0].path, top[0].generation)
        self._listed_ns = changed_ns if is_settled else None
        return None

    def _read_head(self, file: int, size: int, *, is_known: bool) -> _Head | None:
        """Return the header of the file; None if it is not complete or (known) not sound."""
        head = self._head
        if head is not None and _read(file, 0, len(head.raw)) == head.raw:
            return head
        try:
            head = self._parse_head(file, size)
        except DshCodecError as error:
            if is_known:
                return None  # Another header, hence a reset; the next look raises this.
            raise error.located(path=self.path) from None
        self._head = head
        return head

    def _parse_head(self, file: int, size: int) -> _Head | None:
        raw = b""
        compression: Compression | None = None
        line = None
        while line is None:
            count = min(max(2 * len(raw), 8192), size)
            if count <= len(raw):
                return None
            raw = _read(file, 0, count)
            if len(raw) < min(len(ZSTD_MAGIC), count):
                return None
            if compression is None:
                if len(raw) < len(ZSTD_MAGIC):
                    return None
                compression = "zstd" if raw.startswith(ZSTD_MAGIC) else "none"
            if compression == "none":
                end = raw.find(b"\n") + 1
                if end:
                    raw = line = raw[:end]
            else:
                frames = kernel.scan_frames(raw, max_frames=1).frames
                if frames:
                    raw = raw[: frames[0][1]]
                    line = b"".join(
                        text
                        for text, _ in _decode(raw, frames, self._new_reader(), 0, 0)
                    )
            if line is None and len(raw) > self._limits.max_row_bytes:
                raise _too_long(self._limits.max_row_bytes, 0)
        wanted = 4 if self._generation == 4 else None
        header = kernel.parse_header(line, generation=wanted)
        if self._generation not in (None, header.generation):
            message = (
                f"the file name says generation {self._generation}, the header says "
                f"{header.generation}"
            )
            raise IdentityError(message, self.path, 1)
        assert compression is not None  # noqa: S101 - a header line has been found
        digest = hashlib.sha256(line).hexdigest()
        return _Head(raw, compression, header, digest, line)

    def _advance(
        self, file: int, at: Cursor, head: _Head, size: int
    ) -> Generator[tuple[Cursor, Item | None], None, Cursor]:
        """Yield what is complete; return where that ends."""
        window = _WINDOW_BYTES
        scanner = kernel.RowScanner(
            mode="strict",
            generation=head.header.generation,
            max_depth=self._limits.max_depth,
            first_seq=at.offset_seq,
        )
        scanner.feed(head.line)
        while at.offset < size:
            data = _read(file, at.offset, min(window, size - at.offset))
            before = at.offset
            groups = _plain_groups(data)
            if head.compression == "zstd":
                if self._reader is None:
                    self._reader = self._new_reader()
                groups = _zstd_groups(data, at, self._reader)
            try:
                for text, end, frames in groups:
                    seq = at.offset_seq
                    position = at.plain_offset
                    for line in text.split(b"\n")[:-1]:
                        for event in self._events(line, position, head, at, scanner):
                            seq = event.seq + 1
                            if seq > at.next_seq:
                                at = Cursor(*at[:6], seq, *at[7:])
                                yield at, event
                        position += len(line) + 1
                    at = Cursor(
                        *at[:4],
                        before + end,
                        seq,
                        max(seq, at.next_seq),
                        position,
                        at.frame_count + frames,
                    )
                    yield at, None
            except DshCodecError as error:
                self._reader = None  # It refuses everything from now on.
                raise error.located(path=self.path) from None
            if at.offset == before:
                if len(data) < window or at.offset + len(data) >= size:
                    return at  # The rest is unfinished.
                if window > self._largest_window(head):
                    raise _too_long(self._limits.max_row_bytes, at.offset_seq)
                window *= 2
            else:
                window = _WINDOW_BYTES
        return at

    def _new_reader(self) -> FrameReader:
        return kernel.FrameReader(
            max_frame_plain_bytes=self._limits.max_frame_plain_bytes
        )

    def _largest_window(self, head: _Head) -> int:
        """Bytes in which a row or a frame has to be complete."""
        if head.compression == "none":
            return self._limits.max_row_bytes
        return self._limits.max_frame_plain_bytes + self._limits.max_row_bytes

    def _events(
        self,
        line: bytes,
        position: int,
        head: _Head,
        at: Cursor,
        scanner: RowScanner,
    ) -> Iterator[Event]:
        """Check the next row and yield its events. Spec: 10 §5, 30 §6."""
        seq = scanner.event_count
        limits = self._limits
        frame = at.frame_count if head.compression == "zstd" else None
        if len(line) >= limits.max_row_bytes:
            raise _too_long(limits.max_row_bytes, seq)
        try:
            kernel.parse(line, max_depth=limits.max_depth)
            (found,) = scanner.feed(line + b"\n")
        except DshCodecError as error:
            # Places of the scanner and of the parser start elsewhere than the file.
            message, extra = error.message, error.args[7:]
            if error.line is None and error.offset is not None:
                message = f"{message} (byte {error.offset} of the row)"
            places = (self.path, None, position, seq, None, error.rule)
            raise type(error)(message, *places, *extra) from None
        row = found._replace(offset=position, row=seq + 1)
        if row.type in MEMBERS and head.header.generation < 2:
            yield from PackedRow(row, frame, limits.max_depth).events()
        else:
            yield Event(row, frame, head.header.generation, limits.max_depth)


def _take(
    steps: Iterator[tuple[Cursor | None, Item | None]],
) -> list[tuple[Cursor | None, Item | None]]:
    return list(islice(steps, _HANDED_AT_ONCE))


def _best_waiter(path: str) -> Waiter:
    try:
        return WatchWaiter(Path(path).absolute().parent)
    except ModuleNotFoundError:
        return SleepWaiter()


def _read(file: int, offset: int, count: int) -> bytes:
    """Read at a place; fewer bytes only if the file ends."""
    data = _read_once(file, offset, count)
    while data and len(data) < count:
        more = _read_once(file, offset + len(data), count - len(data))
        if not more:
            break
        data += more
    return data


def _read_once(file: int, offset: int, count: int) -> bytes:
    if sys.platform == "win32":
        os.lseek(file, offset, os.SEEK_SET)
        return os.read(file, count)
    return os.pread(file, count, offset)


def _reset_reason(
    at: Cursor, head: _Head | None, place: tuple[int, int], size: int
) -> str | None:
    if place != (at.device, at.inode):
        return "replaced"
    if size < at.offset:
        return "shorter"
    if head is None or head.digest != at.header_digest:
        return "header"
    return None


def _start(head: _Head, device: int, inode: int) -> Cursor:
    return Cursor(
        head.header.generation,
        head.digest,
        device,
        inode,
        len(head.raw),
        0,
        0,
        len(head.line),
        1 if head.compression == "zstd" else 0,
    )


def _plain_groups(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield complete rows, the offset behind them, and no frames."""
    end = data.rfind(b"\n") + 1
    if end:
        yield data[:end], end, 0


def _zstd_groups(
    data: bytes, at: Cursor, reader: FrameReader
) -> Iterator[tuple[bytes, int, int]]:
    """Yield the text of frames that end with a row, the offset behind them, their number.

    Spec 10 §7.2: the boundary of a frame may fall inside a row.
    """
    fault: FrameError | None = None
    try:
        frames = kernel.scan_frames(data).frames
    except FrameError as error:
        fault = error
        frames = kernel.scan_frames(data[: error.offset or 0]).frames
    text = b""
    count = 0
    for plain, end in _decode(data, frames, reader, at.offset, at.frame_count):
        text += plain
        count += 1
        if not text or text.endswith(b"\n"):
            yield text, end, count
            text, count = b"", 0
    if fault is not None:
        raise _moved(fault, at.offset, at.frame_count)


def _decode(
    data: bytes,
    frames: list[tuple[int, int]],
    reader: FrameReader,
    offset: int,
    number: int,
) -> Iterator[tuple[bytes, int]]:
    """Yield the text of each frame with the offset behind it; errors get their true places."""
    for index, (start, end) in enumerate(frames):
        try:
            reader.feed(data[start:end])
            pieces = []
            while (piece := reader.read()) is not None:
                pieces.append(piece.data)
                if piece.last:
                    break
        except FrameError as error:
            # The reader has seen all frames before this one, and nothing else.
            moved = error if error.offset is not None else error.located(offset=start)
            raise _moved(
                FrameError(moved.message, None, None, start, None, index, moved.rule),
                offset,
                number,
            ) from None
        yield b"".join(pieces), end


def _moved(error: FrameError, offset: int, number: int) -> FrameError:
    return FrameError(
        error.message,
        None,
        None,
        offset + (error.offset or 0),
        None,
        number + (error.frame or 0),
        error.rule,
    )


def _too_long(max_row_bytes: int, seq: int) -> LimitExceededError:
    message = f"a row has more than {max_row_bytes} bytes; raise max_row_bytes"
    return LimitExceededError(
        message, None, None, None, seq, None, None, "max_row_bytes", max_row_bytes
    )
