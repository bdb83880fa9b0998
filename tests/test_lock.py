"""The session lock. Spec: 10 §9."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

import dsh_codec as dsh
from dsh_codec.lock import FlockBackend, SessionLock, WindowsSemaphore, semaphore_name
from dsh_codec.writer import Writer
from fault_oracle import make_log, session_events


def test_lock_is_exclusive_and_leaves_an_empty_file(tmp_path: Path) -> None:
    place = tmp_path / "session.lock"
    with SessionLock(tmp_path) as lock:
        assert lock.is_held
        assert lock.path == str(place)
        with pytest.raises(dsh.SessionLockedError) as refusal:
            SessionLock(tmp_path)
        assert refusal.value.path == str(place)
        assert isinstance(refusal.value, BlockingIOError)
    assert place.read_bytes() == b""
    assert place.stat().st_mode & 0o777 == 0o644
    SessionLock(tmp_path).release()


def test_release_twice_does_not_touch_a_later_owner(tmp_path: Path) -> None:
    first = SessionLock(tmp_path)
    first.release()
    with SessionLock(tmp_path):
        first.release()
        with pytest.raises(dsh.SessionLockedError):
            SessionLock(tmp_path)


def test_lock_is_the_one_of_the_harness(tmp_path: Path) -> None:
    """Spec 70 §1: flock, not a POSIX lock."""
    with (tmp_path / "session.lock").open("wb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(dsh.SessionLockedError):
            SessionLock(tmp_path)
    with SessionLock(tmp_path), (tmp_path / "session.lock").open("ab") as theirs:
        with pytest.raises(BlockingIOError):
            fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Closing the other descriptor has dropped no lock of ours: it was released above.
    SessionLock(tmp_path).release()


class Stolen(FlockBackend):
    """Lets somebody remove or replace the file between open and lock."""

    def __init__(self, times: int, *, replaces: bool) -> None:
        self.times, self.replaces, self.opened = times, replaces, 0

    def open(self, path: str) -> int:
        descriptor = super().open(path)
        self.opened += 1
        if self.opened <= self.times:
            Path(path).unlink()
            if self.replaces:
                Path(path).touch()
        return descriptor


@pytest.mark.parametrize("replaces", [False, True])
def test_lock_on_a_file_that_was_removed_is_tried_again(
    tmp_path: Path, *, replaces: bool
) -> None:
    """Device and inode are compared, three attempts in total."""
    backend = Stolen(2, replaces=replaces)
    with SessionLock(tmp_path, backend=backend):
        assert backend.opened == 3
        with pytest.raises(dsh.SessionLockedError):
            SessionLock(tmp_path)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc").exists() else 0  # noqa: PTH208
    backend = Stolen(3, replaces=replaces)
    with pytest.raises(dsh.SessionLockedError):
        SessionLock(tmp_path, backend=backend)
    assert backend.opened == 3
    if before:
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_directory_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as refusal:
        SessionLock(tmp_path / "none")
    assert refusal.value.filename == str(tmp_path / "none" / "session.lock")


def test_readers_never_lock(tmp_path: Path) -> None:
    path = make_log(tmp_path, [session_events(5)])
    (path.parent / "session.lock").unlink()
    dsh.check(path, level="full")
    with dsh.open(path) as log:
        list(log)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    with SessionLock(path.parent), dsh.open(path) as log:
        assert len(log) == 5


class FakeSemaphores:
    """The calls of Windows on a table of counts."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.handles: dict[int, str] = {}
        self.made = 0

    def create(self, name: str) -> int:
        self.counts.setdefault(name, 1)
        self.made += 1
        self.handles[self.made] = name
        return self.made

    def try_wait(self, handle: int) -> bool:
        name = self.handles[handle]
        if self.counts[name] == 0:
            return False
        self.counts[name] -= 1
        return True

    def release(self, handle: int) -> None:
        self.counts[self.handles[handle]] += 1

    def close(self, handle: int) -> None:
        del self.handles[handle]


def test_windows_semaphore_behind_the_same_door(tmp_path: Path) -> None:
    """No file, a name from the path, the count restored, every handle closed."""
    api = FakeSemaphores()
    path = make_log(tmp_path, [session_events(5)], lock_backend=WindowsSemaphore(api))
    assert not (path.parent / "session.lock").exists()
    with Writer.open(path, lock_backend=WindowsSemaphore(api)):
        assert set(api.counts.values()) == {0}
        with pytest.raises(dsh.SessionLockedError):
            Writer.open(path, lock_backend=WindowsSemaphore(api))
        assert len(api.handles) == 1
    assert set(api.counts.values()) == {1}
    assert not api.handles
    (name,) = api.counts
    assert name == semaphore_name(str(path.parent / "session.lock"))


def test_semaphore_name_is_the_digest_of_the_lower_cased_path() -> None:
    """SHA-256 of `c:\\x\\session.lock`, computed with another tool."""
    assert semaphore_name(r"C:\X\session.lock") == (
        "Local\\dsh-session-lock-"
        "b3403e6c346295e74a65cfb10e06693a2223db8636e554b0e3fd219e18c7148f"
    )
