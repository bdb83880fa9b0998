"""The system refuses a step: short writes, a full disk, an input/output error anywhere."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec.durable import OsFileSystem
from dsh_codec.repack import repack
from dsh_codec.repair import repair
from dsh_codec.writer import Writer
from fault_oracle import (
    HEADER,
    QUIET,
    STORED,
    FaultyFileSystem,
    judge,
    make_log,
    read,
    session_events,
    state_of,
)
from fault_tally import fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

BATCHES = [
    session_events(11)[start:end] for start, end in ((0, 2), (2, 5), (5, 6), (6, 11))
]
ALL = session_events(11)
KINDS = (
    "open",
    "write",
    "truncate",
    "sync",
    "sync_directory",
    "make_directory",
    "link",
    "unlink",
)


def write_session(
    root: Path, files: FaultyFileSystem, stored: Any, *, torn: bool
) -> bool:
    """Write a whole session through a fault, as a program would; whether there was one.

    After every refusal the oracle decides; then the writer goes on if it can, or is opened again.
    """
    acknowledged = 0
    if torn:
        path = make_log(root, BATCHES[:2], stored)
        path.write_bytes(path.read_bytes()[:-2])
        acknowledged = len(BATCHES[0])
        writer = Writer.open(path, files=files)
    else:
        writer = Writer.create(root, HEADER, compression=stored, files=files)
        path = Path(writer.path)
    for _ in range(10):
        known = writer.next_seq
        if known == len(ALL):
            break
        try:
            writer.append(ALL[known : known + 3])
            acknowledged = writer.next_seq
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            if path.exists():
                # Spec 10 §8.4: recovered rows were never acknowledged, and are on no disk
                # between the cut and the end of their batch.
                judge(path, ALL[:acknowledged], ALL[acknowledged : known + 3])
            if writer.is_usable:
                assert writer.next_seq == known
                continue
            writer.close()
            if path.exists():
                writer = Writer.open(path, files=files)
            else:
                writer = Writer.create(root, HEADER, compression=stored, files=files)
    writer.close()
    assert judge(path, ALL, []) == ALL
    assert {entry.name for entry in path.parent.iterdir()} == {
        path.name,
        "session.lock",
        *files.left_over,
    }
    return files.has_failed


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("torn", [False, True], ids=["new", "torn"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_fails_once(
    tmp_path: Path, stored: Any, *, torn: bool, kind: str
) -> None:
    """Spec 10 §11.2: taken back and reported, or the handle is poisoned."""
    for number in range(1, 100):
        root = tmp_path / str(number)
        files = FaultyFileSystem(kind, number)
        if not write_session(root, files, stored, torn=torn):
            break
        with fault(f"EIO at the N-th {kind}"):
            pass
        shutil.rmtree(root)
    else:
        pytest.fail("the session never came to its end")


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("then", ["truncate", "sync"])
def test_batch_that_cannot_be_taken_back_poisons(
    tmp_path: Path, stored: Any, kind: str, then: str
) -> None:
    """Spec 10 §11.2; the tail that stays is found by the next reader."""

    class TwoFaults(FaultyFileSystem):
        def truncate(self, descriptor: int, size_bytes: int) -> None:
            if then == "truncate" and self.has_failed:
                raise OSError(errno.EIO, "Input/output error")
            super().truncate(descriptor, size_bytes)

        def sync(self, descriptor: int) -> None:
            if then == "sync" and self.has_failed:
                raise OSError(errno.EIO, "Input/output error")
            super().sync(descriptor)

    path = make_log(tmp_path, BATCHES[:1], stored)
    with fault("failed batch that cannot be taken back"):
        writer = Writer.open(path, files=TwoFaults(kind, 1, code=errno.ENOSPC))
        with pytest.raises(OSError, match="No space") as refusal:
            writer.append(BATCHES[1])
        assert refusal.value.errno == errno.ENOSPC
        assert refusal.value.filename == str(path)
        assert any("taken back" in note for note in refusal.value.__notes__)
        assert not writer.is_usable
        with pytest.raises(OSError, match="open the log again"):
            writer.append(BATCHES[1])
        writer.close()
        judge(path, BATCHES[0], BATCHES[1])


@pytest.mark.parametrize("stored", STORED)
def test_failed_sync_poisons_the_writer(tmp_path: Path, stored: Any) -> None:
    """Spec 10 §11.2: after it nobody knows what is on disk."""
    path = make_log(tmp_path, BATCHES[:1], stored)
    writer = Writer.open(path, files=FaultyFileSystem("sync", 1))
    with pytest.raises(OSError, match="Input/output") as refusal:
        writer.append(BATCHES[1])
    assert refusal.value.errno == errno.EIO
    before = state_of(path)
    with pytest.raises(OSError, match="open the log again") as again:
        writer.append(BATCHES[1])
    assert again.value.filename == str(path)
    writer.close()
    assert state_of(path) == before
    with Writer.open(path) as after:
        after.append(ALL[after.next_seq : 5])
    assert read(path) == ALL[:5]


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("window", [1, 7, 64])
def test_short_writes_are_completed(tmp_path: Path, stored: Any, window: int) -> None:
    class Short(OsFileSystem):
        def write(self, descriptor: int, data: Buffer) -> int:
            return super().write(descriptor, memoryview(data)[:window])

    with fault("short writes, whole session"):
        path = make_log(tmp_path, BATCHES, stored, files=Short())
        judge(path, ALL, [])


@pytest.mark.parametrize("stored", STORED)
def test_file_size_limit_at_every_byte_of_a_batch(tmp_path: Path, stored: Any) -> None:
    """EFBIG after a short write, from the system itself."""
    resource = pytest.importorskip("resource")
    path = make_log(tmp_path, BATCHES[:1], stored)
    size = path.stat().st_size
    whole = make_log(tmp_path / "whole", BATCHES[:2], stored).stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = path.read_bytes()
    with Writer.open(path, files=QUIET) as writer:
        for limit in range(size, whole):
            with fault("RLIMIT_FSIZE at every byte of a batch"):
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
                try:
                    with pytest.raises(OSError, match="large") as refusal:
                        writer.append(BATCHES[1])
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
                assert refusal.value.errno == errno.EFBIG
                assert path.read_bytes() == before
                assert writer.is_usable
        writer.append(BATCHES[1])
    judge(path, ALL[:5], [])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("stored", STORED)
def test_full_device(tmp_path: Path, stored: Any) -> None:
    class Full(OsFileSystem):
        def write(self, descriptor: int, data: Buffer) -> int:
            del descriptor
            device = os.open("/dev/full", os.O_WRONLY)
            try:
                return os.write(device, data)
            finally:
                os.close(device)

    with fault("/dev/full"):
        writer = Writer.create(
            tmp_path / "new", HEADER, compression=stored, files=Full()
        )
        with pytest.raises(OSError, match="No space") as refusal:
            writer.append(BATCHES[0])
        writer.close()
        assert refusal.value.errno == errno.ENOSPC
        names = os.listdir(Path(writer.path).parent)  # noqa: PTH208 - names only
        assert names == ["session.lock"]
    with fault("/dev/full"):
        path = make_log(tmp_path, BATCHES[:1], stored)
        before = path.read_bytes()
        with Writer.open(path, files=Full()) as writer:
            with pytest.raises(OSError, match="No space"):
                writer.append(BATCHES[1])
            assert writer.is_usable
        assert path.read_bytes() == before


def _runs(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603 - fixed words and a directory of the test


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """A directory on a volume of a megabyte or so: the one that is named, or a new one."""
    named = os.environ.get("DSH_SMALL_VOLUME")
    if named is not None:
        yield Path(named)
        return
    place = tmp_path / "volume"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    is_mounted = shutil.which("mount") is not None and _runs(command)
    if not is_mounted:
        pytest.skip("DSH_SMALL_VOLUME names no small volume, and none can be mounted")
    try:
        yield place
    finally:
        assert _runs(["umount", str(place)])


@pytest.mark.crash
@pytest.mark.parametrize("stored", STORED)
def test_small_volume_runs_full(
    tmp_path: Path, small_volume: Path, stored: Any
) -> None:
    root = small_volume / tmp_path.name
    try:
        events = session_events(200_000)
        done = 0
        writer = Writer.create(root, HEADER, compression=stored, level=-5)
        with writer, fault("ENOSPC on a small volume"):
            step = 50
            while True:
                try:
                    writer.append(events[done : done + step])
                except OSError as refusal:
                    if refusal.errno != errno.ENOSPC:
                        raise
                    if step == 1:
                        break
                    step = 1
                else:
                    done += step
            assert writer.is_usable
        judge(Path(writer.path), events[:done], [], recovers=False)
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("kind", ["open", "write", "sync", "rename", "sync_directory"])
def test_repack_that_fails_leaves_a_sound_log(tmp_path: Path, kind: str) -> None:
    for number in range(1, 10):
        path = make_log(tmp_path / str(number), BATCHES)
        before = path.read_bytes()
        files = FaultyFileSystem(kind, number)
        try:
            repack(path, policy="single", files=files)
        except OSError as refusal:
            if refusal.errno != errno.EIO:
                raise
        if not files.has_failed:
            break
        with fault(f"EIO in repack, {kind}"):
            assert read(path) == ALL
            if kind != "sync_directory":
                assert path.read_bytes() == before
            assert set(os.listdir(path.parent)) == {path.name, "session.lock"}  # noqa: PTH208


@pytest.mark.parametrize("kind", ["open", "write", "sync", "link", "truncate"])
@pytest.mark.parametrize("stored", STORED)
def test_repair_that_fails_loses_nothing(
    tmp_path: Path, kind: str, stored: Any
) -> None:
    """The backup is on disk before anything is cut."""
    for number in range(1, 10):
        path = make_log(tmp_path / str(number), BATCHES[:2], stored)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        torn, events = path.read_bytes(), read(path)
        backups = tmp_path / f"backups-{number}"
        files = FaultyFileSystem(kind, number)
        try:
            repair(path, backup_dir=backups, files=files)
        except OSError as refusal:
            if refusal.errno != errno.EIO:
                raise
        if not files.has_failed:
            break
        with fault(f"EIO in repair, {kind}"):
            copies = list(backups.glob("*.bak"))
            if path.read_bytes() != torn:
                assert [copy.read_bytes() for copy in copies] == [torn]
            after = read(path)
            assert after == events[: len(after)]
            repair(path, backup_dir=backups)
            assert dsh.check(path, mode="strict").is_sound
