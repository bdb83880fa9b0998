"""Durable steps on a file system: append, cut, publish. Spec: 10 §11.

Everything that a writer does to disk goes through a `FileSystem`, so that tests can let any
step fail or lose what was not synced.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from dsh_codec.errors import IdentityError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Buffer

__all__ = [
    "AppendFile",
    "FileSystem",
    "OsFileSystem",
    "in_blocks",
    "make_directories",
    "publish",
    "replace",
    "stage",
]

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
_WRITE_BYTES: Final = 1 << 24  # One call of the system takes 2 GiB at most.
_BLOCK_BYTES: Final = 1 << 19
_BLOCK_PIECES: Final = 16  # Every system takes so many in one call.


class FileSystem(Protocol):
    """The steps that change a disk. Each raises `OSError` as the system reports it."""

    def open(self, path: str, flags: int, mode: int = FILE_MODE) -> int:
        """Open a file that is not inherited by child processes; return its descriptor."""
        ...

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        ...

    def write(self, descriptor: int, data: Buffer) -> int:
        """Write at the end; return how many bytes were taken."""
        ...

    def write_pieces(self, descriptor: int, pieces: Sequence[Buffer]) -> int:
        """Write a few pieces at the end in one step; return how many bytes were taken."""
        ...

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Cut the file to a size."""
        ...

    def sync(self, descriptor: int) -> None:
        """Wait until data and size are on disk."""
        ...

    def sync_directory(self, path: str) -> None:
        """Wait until the names in a directory are on disk."""
        ...

    def make_directory(self, path: str) -> None:
        """Make one directory with mode 0700."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give the file a second name, which must not exist."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file in one step over whatever has the name."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a name."""
        ...


class OsFileSystem:
    """The file system of this machine."""

    def open(self, path: str, flags: int, mode: int = FILE_MODE) -> int:
        """Open a file."""
        binary = getattr(os, "O_BINARY", 0)
        return os.open(path, flags | binary | getattr(os, "O_CLOEXEC", 0), mode)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def write(self, descriptor: int, data: Buffer) -> int:
        """Write at the end."""
        return os.write(descriptor, data)

    def write_pieces(self, descriptor: int, pieces: Sequence[Buffer]) -> int:
        """Write pieces at the end; as one where the system takes no more (Windows)."""
        if hasattr(os, "writev"):
            return os.writev(descriptor, pieces)
        return self.write(descriptor, b"".join(pieces))

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Cut the file to a size."""
        os.ftruncate(descriptor, size_bytes)

    def sync(self, descriptor: int) -> None:
        """Wait until data and size are on disk."""
        if sys.platform == "darwin":
            import fcntl

            # There fsync stops at the cache of the drive.
            with suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
                return
        os.fsync(descriptor)

    def sync_directory(self, path: str) -> None:
        """Wait until the names in a directory are on disk; a step that Windows has not."""
        if os.name == "nt":
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise named(error, path) from None
        finally:
            os.close(descriptor)

    def make_directory(self, path: str) -> None:
        """Make one directory with mode 0700."""
        Path(path).mkdir(mode=DIRECTORY_MODE)

    def link(self, source: str, target: str) -> None:
        """Give the file a second name; on Windows move it, written through.

        Spec 10 §11.1: the move of Windows replaces nothing.
        """
        if os.name == "nt":
            _move_through(source, target)
        else:
            os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        """Rename a file in one step over whatever has the name."""
        Path(source).replace(target)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        Path(path).unlink()


def _move_through(source: str, target: str) -> None:
    """Move a file with MOVEFILE_WRITE_THROUGH and without replacing. Untested: no Windows here."""
    import ctypes

    windll = getattr(ctypes, "windll")  # noqa: B009 - only there on Windows
    if not windll.kernel32.MoveFileExW(source, target, 8):
        error = windll.kernel32.GetLastError()
        code = errno.EEXIST if error in (80, 183) else errno.EIO
        raise OSError(code, os.strerror(code), target)


def named(error: OSError, path: str) -> OSError:
    """Give an error of the system its file, if it has none."""
    if error.filename is None:
        error.filename = path
    return error


def only_of(error: OSError, path: str) -> OSError:
    """Return an error of the system that names this file, and no temporary one."""
    return OSError(error.errno, error.strerror, path)


def write_all(files: FileSystem, descriptor: int, data: Buffer, path: str) -> int:
    """Write all bytes, however many the system takes at once; return how many they are.

    Raises:
        OSError: The system refuses; some of the bytes may have been written.
    """
    size_bytes = len(data) if type(data) is bytes else memoryview(data).nbytes
    offset = 0
    while offset < size_bytes:
        part: Buffer = data
        if offset > 0 or size_bytes > _WRITE_BYTES:
            part = memoryview(data).cast("B")[offset : offset + _WRITE_BYTES]
        try:
            taken = files.write(descriptor, part)
        except OSError as error:
            raise named(error, path) from None
        if taken <= 0:
            raise OSError(errno.EIO, "The system takes no more bytes", path)
        offset += taken
    return size_bytes


def in_blocks(parts: Iterable[Buffer]) -> Iterator[list[Buffer]]:
    """Yield the same bytes as pieces of blocks, for `stage` and `publish`; nothing is copied.

    The system keeps a large file in fewer pieces, and so at less cost, if what is written ends
    at multiples of a power of two. `bench_split_and_join` shows it.
    """
    held: list[Buffer] = []
    missing_bytes = _BLOCK_BYTES
    for part in parts:
        view = memoryview(part).cast("B")
        while len(view) > 0:
            piece, view = view[:missing_bytes], view[missing_bytes:]
            held.append(piece)
            missing_bytes -= len(piece)
            if missing_bytes == 0 or len(held) == _BLOCK_PIECES:
                yield held
                held = []
                missing_bytes = missing_bytes or _BLOCK_BYTES
    if held:
        yield held


def _write_pieces(
    files: FileSystem, descriptor: int, pieces: list[Buffer], path: str
) -> None:
    """Write all pieces, however many bytes the system takes at once."""
    try:
        taken = files.write_pieces(descriptor, pieces)
    except OSError as error:
        raise named(error, path) from None
    rest = memoryview(b"".join(pieces))[taken:] if taken < _size_of(pieces) else b""
    write_all(files, descriptor, rest, path)


def _size_of(pieces: list[Buffer]) -> int:
    return sum(memoryview(piece).nbytes for piece in pieces)


class AppendFile:
    """A file that grows by whole batches, or not at all. Spec: 10 §11.2.

    A batch that cannot be written is taken back. After a failed sync nobody knows what is on
    disk, so the file takes nothing more: it has to be opened and read again.

    Attributes:
        path: The file.
        size_bytes: Its size after the last whole batch.
    """

    def __init__(
        self,
        path: str,
        *,
        size_bytes: int,
        identity: tuple[int, int],
        files: FileSystem,
        durable: bool = True,
        is_name_synced: bool = False,
    ) -> None:
        """Take a file that was read.

        Args:
            path: The file.
            size_bytes: Its size when it was read.
            identity: Device and inode when it was read.
            files: Where it lies.
            durable: Whether every step waits until it is on disk.
            is_name_synced: Whether the file's name is known to be on disk.
        """
        self.path = path
        self.size_bytes = size_bytes
        self._identity = identity
        self._files = files
        # Without the step through Python that does the same, which small batches feel.
        self._write = os.write if type(files) is OsFileSystem else files.write
        self._durable = durable
        self._is_name_synced = is_name_synced
        self._descriptor: int | None = None
        self._fault: str | None = None

    @property
    def is_usable(self) -> bool:
        """Whether no step has failed in a way that leaves the content unknown."""
        return self._fault is None

    def append(self, data: bytes) -> None:
        """Write a batch at the end and wait until it is on disk.

        Raises:
            OSError: The system refuses. The file has its old size again; where that failed,
                too, or the sync did, no further batch is taken.
            IdentityError: The file is not as this object left it: somebody else writes.

        Note:
            Where it does not wait for the disk, it looks at the size only. Whether the file still
            has its name, which costs more than a small batch, is left to `sync`.
        """
        descriptor = self._descriptor
        if descriptor is None or self._durable or self._fault is not None:
            descriptor = self._opened()
            if self._durable and not self._is_name_synced:
                self._sync_name()
        elif os.lseek(descriptor, 0, os.SEEK_END) != self.size_bytes:
            self._refuse_change()
        size_bytes = len(data)
        written_bytes = 0
        try:
            if size_bytes <= _WRITE_BYTES:
                written_bytes = self._write(descriptor, data)
            if written_bytes != size_bytes:
                rest = memoryview(data)[written_bytes:]
                write_all(self._files, descriptor, rest, self.path)
        except BaseException as error:
            self._take_back(descriptor, error)
            if isinstance(error, OSError):
                raise named(error, self.path) from None
            raise
        if self._durable:
            try:
                self._files.sync(descriptor)
            except BaseException as error:
                self._take_back(descriptor, error)
                if isinstance(error, OSError):
                    self._poison(error)
                    raise named(error, self.path) from None
                raise
        self.size_bytes += size_bytes

    def cut(self, size_bytes: int) -> None:
        """Cut off what is behind a place, and wait until it is on disk.

        Raises:
            OSError: The system refuses; after a failed sync no batch is taken any more.
            IdentityError: As for `append`.
        """
        descriptor = self._opened()
        try:
            self._files.truncate(descriptor, size_bytes)
        except OSError as error:
            raise named(error, self.path) from None
        self.size_bytes = size_bytes
        try:
            self._files.sync(descriptor)
        except OSError as error:
            self._poison(error)
            raise named(error, self.path) from None

    def sync(self) -> None:
        """Wait until all that was appended is on disk, under the file's name.

        Raises:
            OSError: The system refuses; no batch is taken any more.
            IdentityError: As for `append`.
        """
        if self._descriptor is None:
            return
        descriptor = self._opened()
        self._sync_name()
        try:
            self._files.sync(descriptor)
        except OSError as error:
            self._poison(error)
            raise named(error, self.path) from None

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._files.close(descriptor)

    def _sync_name(self) -> None:
        """Sync the directory once: whoever made the file may have been killed before that."""
        if self._is_name_synced:
            return
        directory = str(Path(self.path).absolute().parent)
        try:
            # A directory that we may not open for reading cannot be synced by us.
            with suppress(PermissionError):
                self._files.sync_directory(directory)
        except OSError as error:
            self._poison(error)
            raise named(error, directory) from None
        self._is_name_synced = True

    def _opened(self) -> int:
        if self._fault is not None:
            self._require_usable()
        descriptor = self._descriptor
        status = None
        if descriptor is None:
            flags = os.O_WRONLY | os.O_APPEND
            descriptor = self._files.open(self.path, flags)
            self._descriptor = descriptor
            status = os.fstat(descriptor)
        try:
            place = os.stat(self.path)  # noqa: PTH116 - once a batch, so it has to be quick
        except FileNotFoundError:
            place = None
        # What is open stays the same file: as long as it has the path, the path tells its size.
        if (
            place is None
            or place.st_size != self.size_bytes
            or (place.st_dev, place.st_ino) != self._identity
            or (status and (status.st_dev, status.st_ino) != self._identity)
        ):
            self._refuse_change()
        return descriptor

    def _refuse_change(self) -> NoReturn:
        self._fault = "it was changed by somebody else"
        message = (
            f"the file was changed by somebody who does not hold its lock: it should have "
            f"{self.size_bytes} bytes; close this writer, check the log and open it again"
        )
        raise IdentityError(message, self.path)

    def _take_back(self, descriptor: int, cause: BaseException) -> None:
        try:
            self._files.truncate(descriptor, self.size_bytes)
            self._files.sync(descriptor)
        except OSError as error:
            cause.add_note(
                f"the batch could not be taken back either ({error}); close this writer and "
                "open the log again, which finds the torn tail"
            )
            self._poison(error)

    def _poison(self, error: OSError) -> None:
        if self._fault is None:
            self._fault = f"a step failed that leaves its content unknown ({error})"

    def _require_usable(self) -> None:
        if self._fault is not None:
            message = (
                f"nothing more is written to this file, because {self._fault}; close this "
                "writer and open the log again"
            )
            raise OSError(errno.EIO, message, self.path)


def make_directories(files: FileSystem, directories: Sequence[str]) -> None:
    """Make directories that lie in each other, and wait until their names are on disk.

    Args:
        files: Where they lie.
        directories: From the outer one in; missing parents of the first are made, too.

    Raises:
        OSError: The system refuses.

    Note:
        A directory that is there already may be somebody's who has not synced yet, hence its
        parent is synced all the same. Spec: 10 §11.1.
    """
    missing = []
    outer = Path(directories[0]).absolute()
    while not outer.is_dir() and outer != outer.parent:
        missing.append(str(outer))
        outer = outer.parent
    for path in (*missing[::-1], *directories):
        parent = str(Path(path).absolute().parent)
        is_new = True
        try:
            files.make_directory(path)
        except FileExistsError:
            is_new = False
            if not Path(path).is_dir():
                raise
        try:
            files.sync_directory(parent)
        except PermissionError:
            # The parent of an old root may be closed to us; its name is then long on disk.
            if is_new:
                raise


def stage(
    files: FileSystem,
    path: str,
    parts: Iterable[Buffer | list[Buffer]],
    *,
    infix: str = "",
) -> str:
    """Write a new file under a temporary name beside its place, and sync it.

    Args:
        files: Where it lies.
        path: Where it will be published.
        parts: Its bytes, in parts or `in_blocks`.
        infix: What stands before the random part of the name.

    Returns:
        The temporary name, `<path>.<infix><12 hexadecimal digits>.tmp`.

    Raises:
        OSError: The system refuses; the temporary file is gone then. It names `path`, which
            is what the caller knows.

    Note:
        Mode 0600. Spec: 10 §11.1 step 5.
    """
    temporary = f"{path}.{infix}{os.urandom(6).hex()}.tmp"
    try:
        descriptor = files.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        )
    except OSError as error:
        raise only_of(error, path) from None
    try:
        try:
            for part in parts:
                if isinstance(part, list):
                    _write_pieces(files, descriptor, part, path)
                else:
                    write_all(files, descriptor, part, path)
            files.sync(descriptor)
        except OSError as error:
            raise named(error, path) from None
        finally:
            files.close(descriptor)
    except BaseException:
        discard(files, temporary)
        raise
    return temporary


def publish(
    files: FileSystem,
    path: str,
    parts: Iterable[Buffer | list[Buffer]],
    *,
    on_visible: Callable[[], None] | None = None,
) -> None:
    """Create a file with all its content at once; it must not exist.

    Args:
        files: Where it lies.
        path: The file.
        parts: Its bytes, in parts or `in_blocks`.
        on_visible: Called when the file has its name, before that is known to be on disk.

    Raises:
        FileExistsError: There is such a file.
        OSError: The system refuses.

    Note:
        Spec: 10 §11.1 steps 5 to 8.
    """
    publish_staged(files, stage(files, path, parts), path, on_visible=on_visible)


def publish_staged(
    files: FileSystem,
    temporary: str,
    path: str,
    *,
    on_visible: Callable[[], None] | None = None,
) -> None:
    """Give a staged file its name, which no file must have; the temporary one is gone then.

    Args:
        files: Where it lies.
        temporary: The staged file.
        path: Its name.
        on_visible: As for `publish`.

    Raises:
        FileExistsError: There is such a file.
        OSError: The system refuses.
    """
    try:
        files.link(temporary, path)
    except BaseException as error:
        discard(files, temporary)
        if isinstance(error, OSError):
            raise only_of(error, path) from None
        raise
    if on_visible is not None:
        on_visible()
    try:
        files.sync_directory(str(Path(path).absolute().parent))
    except OSError as error:
        raise named(error, path) from None
    finally:
        discard(files, temporary)


def replace(files: FileSystem, temporary: str, path: str) -> None:
    """Put a staged file in the place of another in one step, and sync the directory.

    Raises:
        OSError: The system refuses. Before the renaming the old file is still in place.
    """
    try:
        files.rename(temporary, path)
    except BaseException as error:
        discard(files, temporary)
        if isinstance(error, OSError):
            raise only_of(error, path) from None
        raise
    try:
        files.sync_directory(str(Path(path).absolute().parent))
    except OSError as error:
        raise named(error, path) from None


def discard(files: FileSystem, temporary: str) -> None:
    """Remove a temporary file; what cannot be removed stays, and no reader looks at it."""
    with suppress(OSError):
        files.unlink(temporary)
