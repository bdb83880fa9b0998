"""The lock of a session, which a running harness respects and is respected by. Spec: 10 §9."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from dsh_codec.errors import SessionLockedError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = [
    "LOCK_NAME",
    "LockBackend",
    "SemaphoreApi",
    "SessionLock",
    "WindowsSemaphore",
]

LOCK_NAME: Final = "session.lock"
"""File in the session directory. It stays there, empty, for ever. Spec: 10 §9."""

_ATTEMPTS: Final = 3
_MODE: Final = 0o644


class LockBackend(Protocol):
    """How a system keeps two writers apart."""

    def acquire(self, path: str) -> int | None:
        """Take the lock that belongs to a path.

        Returns:
            What `release` needs; None if another writer has the lock.

        Raises:
            OSError: The system refuses.
        """
        ...

    def release(self, token: int) -> None:
        """Give the lock back."""
        ...


class FlockBackend:
    """`flock(2)` on a file that is never removed."""

    def acquire(self, path: str) -> int | None:
        """Take the lock, or return None."""
        for _ in range(_ATTEMPTS):
            descriptor = self.open(path)
            try:
                if not self.lock(descriptor):
                    os.close(descriptor)
                    return None
                # Whoever removed the file has left this lock on a file that nobody finds.
                if self._is_at(descriptor, path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        return None

    def release(self, token: int) -> None:
        """Close the descriptor, which gives the lock back."""
        os.close(token)

    def open(self, path: str) -> int:
        """Open or create the file, empty, and return its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return os.open(path, flags, _MODE)

    def lock(self, descriptor: int) -> bool:
        """Lock the open file without waiting; whether that was possible."""
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        return True

    def _is_at(self, descriptor: int, path: str) -> bool:
        held = os.fstat(descriptor)
        try:
            found = Path(path).stat()
        except FileNotFoundError:
            return False
        return (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino)


class SemaphoreApi(Protocol):
    """The calls of Windows that the lock needs."""

    def create(self, name: str) -> int:
        """Create or open a semaphore with initial and maximum count 1; return its handle."""
        ...

    def try_wait(self, handle: int) -> bool:
        """Take one count without waiting; whether there was one."""
        ...

    def release(self, handle: int) -> None:
        """Give the count back."""
        ...

    def close(self, handle: int) -> None:
        """Close the handle."""
        ...


class WindowsSemaphore:
    """A named semaphore; no file. Tested against a fake only, never on Windows."""

    def __init__(self, api: SemaphoreApi | None = None) -> None:
        """Take the calls to use; None: those of the system."""
        self._api = api if api is not None else _Kernel32()

    def acquire(self, path: str) -> int | None:
        """Take the count, or return None."""
        handle = self._api.create(semaphore_name(path))
        try:
            if self._api.try_wait(handle):
                return handle
        except BaseException:
            self._api.close(handle)
            raise
        self._api.close(handle)
        return None

    def release(self, token: int) -> None:
        """Restore the count and close the handle."""
        try:
            self._api.release(token)
        finally:
            self._api.close(token)


def semaphore_name(path: str) -> str:
    r"""Return the name of the semaphore of a lock path.

    Args:
        path: Absolute path of `session.lock`.

    Note:
        Spec: 10 §9.

    Example:
        >>> semaphore_name(r"C:\A\session.lock") == semaphore_name(r"c:\a\SESSION.LOCK")
        True
    """
    digest = hashlib.sha256(path.lower().encode("utf-8", "surrogatepass")).hexdigest()
    return rf"Local\dsh-session-lock-{digest}"


class _Kernel32:
    """The real calls. Untested: no Windows here."""

    def __init__(self) -> None:
        import ctypes

        self._ctypes: Any = ctypes
        self._dll: Any = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined,unused-ignore]
        self._dll.CreateSemaphoreW.restype = ctypes.c_void_p
        for name in ("WaitForSingleObject", "ReleaseSemaphore", "CloseHandle"):
            getattr(self._dll, name).argtypes = {
                "WaitForSingleObject": [ctypes.c_void_p, ctypes.c_uint32],
                "ReleaseSemaphore": [ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p],
                "CloseHandle": [ctypes.c_void_p],
            }[name]

    def create(self, name: str) -> int:
        handle = self._dll.CreateSemaphoreW(None, 1, 1, name)
        if not handle:
            raise self._error()
        return int(handle)

    def try_wait(self, handle: int) -> bool:
        outcome = self._dll.WaitForSingleObject(handle, 0)
        if outcome == 0x102:  # WAIT_TIMEOUT
            return False
        if outcome != 0:
            raise self._error()
        return True

    def release(self, handle: int) -> None:
        if not self._dll.ReleaseSemaphore(handle, 1, None):
            raise self._error()

    def close(self, handle: int) -> None:
        self._dll.CloseHandle(handle)

    def _error(self) -> OSError:
        return self._ctypes.WinError(self._ctypes.get_last_error())  # type: ignore[no-any-return]


class SessionLock:
    """The lock of one session, held from its making until `release`.

    Readers never take it. It has no expiry: the system gives it back when the process ends. A
    child made by `os.fork` shares it until both have let go.

    Attributes:
        path: Path of the lock in the session directory.
    """

    path: str

    def __init__(
        self, directory: str | os.PathLike[str], *, backend: LockBackend | None = None
    ) -> None:
        """Take the lock at once or not at all.

        Args:
            directory: The session directory; it has to exist.
            backend: How; None: as this system does.

        Raises:
            SessionLockedError: Another writer has it.
            OSError: The system refuses.

        Note:
            Spec: 10 §9.
        """
        self.path = str(Path(directory).absolute() / LOCK_NAME)
        self._token: int | None = None
        self._backend = backend if backend is not None else system_backend()
        token = self._backend.acquire(self.path)
        if token is None:
            message = (
                "another writer has the session open: close it there (a harness, or a "
                "program that uses this library), then try again"
            )
            raise SessionLockedError(message, self.path)
        self._token = token

    @property
    def is_held(self) -> bool:
        """Whether the lock has not been given back."""
        return self._token is not None

    def release(self) -> None:
        """Give the lock back. Doing it again does nothing."""
        if self._token is not None:
            token, self._token = self._token, None
            self._backend.release(token)

    def __enter__(self) -> Self:
        """Return the lock."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Give the lock back."""
        self.release()


def system_backend() -> LockBackend:
    """Return what this system has."""
    return WindowsSemaphore() if os.name == "nt" else FlockBackend()
