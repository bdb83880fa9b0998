"""Where the bytes of a log come from: a file, memory, or a binary file object.

A source has a fixed size, can be read at any place and as often as needed, and never writes.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from typing import (
    IO,
    TYPE_CHECKING,
    Any,
    Final,
    Protocol,
    TypeAlias,
    TypeGuard,
    runtime_checkable,
)

from dsh_codec._backend import kernel
from dsh_codec.errors import (
    CorruptLogError,
    DshCodecError,
    HeaderError,
    IdentityError,
    LayoutError,
    LimitExceededError,
    UnsupportedError,
)
from dsh_codec.limits import MAX_SPOOLED_BYTES
from dsh_codec.names import parse_log_filename

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from dsh_codec._types import Compression, Header

__all__ = [
    "BinaryFile",
    "Source",
    "SourceLike",
    "identify",
    "open_source",
    "read_header",
]

PIECE_BYTES: Final = 256 << 10
"""Bytes that are read at once."""

SPOOL_BYTES: Final = 8 << 20
"""Bytes of a stream that are kept in memory before a temporary file takes them."""

ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
"""First bytes of a Zstandard frame. Spec: 10 §7.3."""

_COMPRESSIONS: Final[tuple[Compression, ...]] = ("none", "zstd")
_HEADER_PIECE_BYTES: Final = 8 << 10  # Spec 10 §10: header-only reads go in such steps.


@runtime_checkable
class BinaryFile(Protocol):
    """A file object that gives bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes."""
        ...


SourceLike: TypeAlias = "str | os.PathLike[str] | Buffer | BinaryFile"


class Source:
    """Bytes of a fixed size.

    Attributes:
        path: The file, as the caller gave it; None if there is no path.
        size_bytes: Bytes, fixed when the source was made: what a writer appends later is
            not seen.
        door: How the kernel itself can reach all bytes: a path, the bytes, or not at all.
    """

    path: str | None
    size_bytes: int
    door: str | Buffer | None

    def read(self, offset: int, count: int) -> Buffer:
        """Return `count` bytes from `offset`; fewer only at the end of the source.

        Raises:
            OSError: The system refuses.
            CorruptLogError: The file has become shorter since it was opened.
        """
        raise NotImplementedError

    def pieces(
        self, start: int, end: int, *, piece_bytes: int = PIECE_BYTES
    ) -> Iterator[Buffer]:
        """Yield the bytes from `start` to `end` in order."""
        for offset in range(start, end, piece_bytes):
            yield self.read(offset, min(piece_bytes, end - offset))

    def close(self) -> None:
        """Let go of what the source holds. A file object of the caller stays open."""


def open_source(
    source: SourceLike, *, max_spooled_bytes: int = MAX_SPOOLED_BYTES
) -> Source:
    """Make a source from whatever a caller may name.

    Args:
        source: A path, bytes, or a file object.
        max_spooled_bytes: Bytes of a pipe that are copied.

    Raises:
        LayoutError: The path is a device, or a canonical name of what is no regular file.
        LimitExceededError: A pipe gives more bytes.
        OSError: The file cannot be opened.
        TypeError: It is neither a path nor bytes nor a binary file object.
    """
    if isinstance(source, str | os.PathLike):
        return _open_path(source, max_spooled_bytes)
    try:
        # A memory map is both; its memory is the better door.
        view = memoryview(source)  # type: ignore[arg-type]
    except TypeError:
        if isinstance(source, BinaryFile):
            return _open_stream(source, max_spooled_bytes)
        message = (
            "a log is opened from a path, a bytes-like object or a binary file object, "
            f"not from {type(source).__name__}"
        )
        raise TypeError(message) from None
    return _MemorySource(view)


class _MemorySource(Source):
    def __init__(self, view: memoryview) -> None:
        self._view = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
        self.path = None
        self.size_bytes = len(self._view)
        self.door = self._view

    def read(self, offset: int, count: int) -> Buffer:
        return self._view[offset : offset + count]


class _FileSource(Source):
    """A seekable file; owned and closed unless it is the caller's."""

    def __init__(
        self,
        file: IO[bytes],
        *,
        path: str | None,
        base: int,
        owned: bool,
        door: str | None = None,
    ) -> None:
        self._file = file
        self._base = base
        self._owned = owned
        self._lock = threading.Lock()
        self.path = path
        self.door = door
        self.size_bytes = max(file.seek(0, os.SEEK_END) - base, 0)

    def read(self, offset: int, count: int) -> Buffer:
        count = min(count, self.size_bytes - offset)
        parts: list[bytes] = []
        missing = count
        # Other iterations share the file's position, hence the lock.
        with self._lock:
            self._file.seek(self._base + offset)
            while missing > 0:
                part = self._file.read(missing)
                if not part:
                    message = (
                        f"the file ends after {offset + count - missing} bytes; it had "
                        f"{self.size_bytes} when it was opened: open it again"
                    )
                    raise CorruptLogError(
                        message, self.path, None, offset + count - missing
                    )
                parts.append(part)
                missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        if self._owned:
            self._file.close()


def own_file(file: IO[bytes], *, path: str | None) -> Source:
    """Make a source from a temporary file, which is closed with the source.

    Args:
        file: The file, seekable.
        path: What messages name as the file.
    """
    return _FileSource(file, path=path, base=0, owned=True)


def _open_path(path: str | os.PathLike[str], max_spooled_bytes: int) -> Source:
    name = os.fspath(path)
    if not name:
        raise not_found(name, os.strerror(errno.ENOENT))
    if _is_canonical(Path(name).name) and not stat.S_ISREG(Path(name).stat().st_mode):
        # Opening a pipe would wait for its writer, and a session directory has none.
        message = "no log is read from what is no regular file"
        raise LayoutError(message, name)
    file = Path(name).open("rb", buffering=0)  # noqa: SIM115 - handed on
    try:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISREG(mode):
            return _FileSource(file, path=name, base=0, owned=True, door=name)
        with file:
            _require_no_device(file, mode, name)
            return _spool(file, path=name, max_bytes=max_spooled_bytes)
    except BaseException:
        file.close()
        raise


def _require_no_device(file: IO[bytes], mode: int, path: str) -> None:
    if stat.S_ISCHR(mode) and not file.isatty():
        message = "no log is read from a device: it may never end"
        raise LayoutError(message, path)


def _is_canonical(name: str) -> bool:
    return any(
        parse_log_filename(name, compression=compression) is not None
        for compression in _COMPRESSIONS
    )


def _open_stream(file: Any, max_spooled_bytes: int) -> Source:
    seekable = getattr(file, "seekable", None)
    if seekable is not None and seekable():
        _require_bytes(file.read(0))
        return _FileSource(file, path=None, base=file.tell(), owned=False)
    return _spool(file, path=None, max_bytes=max_spooled_bytes)


def _require_bytes(value: object) -> None:
    if not isinstance(value, bytes):
        message = "the file object gives text; open it in binary mode"
        raise TypeError(message)


def _spool(file: BinaryFile, *, path: str | None, max_bytes: int) -> Source:
    """Copy a pipe to a temporary file, which vanishes with the source."""
    import tempfile

    copy = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 - handed on
    try:
        size_bytes = 0
        while piece := file.read(PIECE_BYTES):
            size_bytes += len(piece)
            _require_within(max_bytes, size_bytes, path)
            copy.write(piece)
        return _FileSource(copy, path=path, base=0, owned=True)
    except BaseException:
        copy.close()
        raise


def _require_within(max_bytes: int, size_bytes: int, path: str | None) -> None:
    if size_bytes > max_bytes:
        message = (
            f"a pipe gives more than {max_bytes} bytes: write them to a file, or raise "
            "max_spooled_bytes"
        )
        raise LimitExceededError(
            message, path, *[None] * 5, "max_spooled_bytes", max_bytes
        )


def identify(source: Source) -> tuple[Compression, int | None]:
    """Tell how a log is stored, by its first bytes, and what its name says.

    Returns:
        The compression, and the generation of the file name; None if the name is not
        canonical or there is none.

    Raises:
        IdentityError: A canonical name says otherwise than the bytes.
    """
    start = bytes(source.read(0, len(ZSTD_MAGIC)))
    compression: Compression = "zstd" if start == ZSTD_MAGIC else "none"
    if source.path is None:
        return compression, None
    name = Path(source.path).name
    for named in ("none", "zstd"):
        generation = parse_log_filename(name, compression=named)
        if generation is None:
            continue
        if named != compression:
            if start != ZSTD_MAGIC and start[:1] != b"{":
                # Neither a frame nor the text of a log: damaged, and the name says what it was.
                return named, generation
            content = "a Zstandard file" if compression == "zstd" else "plain text"
            message = f"the file is {content}, but its name says otherwise: rename it"
            raise IdentityError(message, source.path)
        return compression, generation
    return compression, None


def read_header(
    source: Source,
    *,
    max_row_bytes: int,
    max_frame_plain_bytes: int,
    compression: Compression | None = None,
    generation: int | None = None,
) -> tuple[Header, Compression]:
    """Read the header row only, and check that a canonical file name agrees with it.

    Args:
        source: The log.
        max_row_bytes: Bytes that the header row may have.
        max_frame_plain_bytes: Bytes that the first frame may hold.
        compression: As for `open`.
        generation: As for `open`.

    Returns:
        The header and how the file is stored.

    Raises:
        HeaderError: The row is missing, incomplete or breaks a rule.
        FrameError: The first frame is damaged.
        NewerFormatError, UnsupportedError: Another version than can be read.
        IdentityError: The file name or the argument says otherwise.
        LimitExceededError: The row is too long.

    Note:
        Reads no further than the first frame or the first line feed. Spec: 10 §4.3, §10.
    """
    stored, named = identify(source)
    if compression not in (None, stored):
        message = f"the log is stored as {stored!r}, not as {compression!r}"
        raise IdentityError(message, source.path)
    try:
        if stored == "zstd":
            line = _first_frame(source, max_row_bytes, max_frame_plain_bytes)
        else:
            line = _first_line(source, max_row_bytes)
        # Spec 10 §4.1: a file that is named as generation 4 is read in that order.
        wanted = 4 if generation is None and named == 4 else generation
        try:
            header = kernel.parse_header(line, generation=wanted)
        except UnsupportedError:
            if named != 4 or generation is not None:
                raise
            header = kernel.parse_header(line)
    except DshCodecError as error:
        found = getattr(error, "found", None)
        if named is not None and named > 4 and found is not None and found != named:
            raise _misnamed(source, named, found) from None
        raise error.located(path=source.path) from None
    if named is not None and named != header.generation:
        raise _misnamed(source, named, header.generation)
    return header, stored


def _misnamed(source: Source, named: int, found: float) -> IdentityError:
    message = (
        f"the file name says generation {named}, the header says version {found:g}: "
        "one of them is wrong, so the file is not read"
    )
    return IdentityError(message, source.path, 1)


def _too_long(max_row_bytes: int) -> LimitExceededError:
    message = f"the header row has more than {max_row_bytes} bytes; raise max_row_bytes"
    return LimitExceededError(
        message, None, 1, 0, None, None, None, "max_row_bytes", max_row_bytes
    )


def _first_line(source: Source, max_row_bytes: int) -> bytes:
    line = bytearray()
    for piece in source.pieces(0, source.size_bytes, piece_bytes=_HEADER_PIECE_BYTES):
        data = bytes(piece)
        end = data.find(b"\n") + 1
        line += data[:end] if end else data
        if len(line) > max_row_bytes:
            raise _too_long(max_row_bytes)
        if end:
            return bytes(line)
    what = "an unfinished first line" if source.size_bytes else "empty"
    message = f"no header row: the file is {what}, a log starts with a complete line"
    raise HeaderError(message, None, 1, 0, None, None, "10 §3")


def _first_frame(
    source: Source, max_row_bytes: int, max_frame_plain_bytes: int
) -> bytes:
    reader = kernel.FrameReader(max_frame_plain_bytes=max_frame_plain_bytes)
    line = bytearray()
    for data in source.pieces(0, source.size_bytes, piece_bytes=_HEADER_PIECE_BYTES):
        reader.feed(data)
        while (piece := reader.read()) is not None:
            if piece.frame > 0:
                break
            line += piece.data
            end = line.find(b"\n") + 1
            if end and end < len(line):
                message = (
                    "the first frame has to hold the header row and nothing else; a log "
                    "that was compressed again as one frame has to be split after that row"
                )
                raise HeaderError(message, None, 1, 0, None, 0, "10 §7.2")
            if len(line) > max_row_bytes:
                raise _too_long(max_row_bytes)
            if piece.last:
                if not end:
                    message = "the first frame does not hold a complete header row"
                    raise HeaderError(message, None, 1, 0, None, 0, "10 §7.2")
                return bytes(line)
    message = "no header row: the first frame is incomplete"
    raise HeaderError(message, None, 1, 0, None, 0, "10 §7.3")


def is_directory(source: SourceLike) -> TypeGuard[str | os.PathLike[str]]:
    """Whether the source is the path of a directory; the empty path is not."""
    if not isinstance(source, str | os.PathLike):
        return False
    return bool(os.fspath(source)) and Path(source).is_dir()


def not_found(path: str, message: str) -> FileNotFoundError:
    """Return the error for a path at which there is no log."""
    return FileNotFoundError(errno.ENOENT, message, path)
