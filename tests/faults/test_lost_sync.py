"""A simulated disk that loses what was not synced: data and names, in every order."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import dsh_codec as dsh
from dsh_codec.durable import OsFileSystem
from dsh_codec.repack import repack
from dsh_codec.repair import plan_repair, repair
from dsh_codec.writer import Writer
from fault_oracle import HEADER, STORED, judge, make_log, read, session_events
from fault_tally import fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

ALL = session_events(8)
MAX_PENDING = 6
PIECES = 2
"""Parts in which the data of one write may reach the disk."""


class Step(NamedTuple):
    """One change: `target` is an inode for data, the directory for names."""

    kind: str
    target: Any
    detail: tuple[Any, ...] = ()


class RecordingFileSystem(OsFileSystem):
    """Does what it is asked to do, and keeps a record; syncs are only recorded."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def note(self, *detail: Any) -> None:
        self.steps.append(Step("note", "", detail))

    def _inode(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_ino

    def _name(self, kind: str, path: str, *detail: Any) -> None:
        place = Path(path).absolute()
        self.steps.append(Step(kind, str(place.parent), (place.name, *detail)))

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        descriptor = super().open(path, flags, mode)
        if flags & os.O_CREAT:
            self._name("name", path, self._inode(descriptor))
        return descriptor

    def write(self, descriptor: int, data: Buffer) -> int:
        offset, inode = os.fstat(descriptor).st_size, self._inode(descriptor)
        content = bytes(data)
        for part in range(PIECES):
            start, end = (len(content) * at // PIECES for at in (part, part + 1))
            step = Step("write", inode, (offset + start, content[start:end]))
            self.steps.append(step)
        return super().write(descriptor, data)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self.steps.append(Step("truncate", self._inode(descriptor), (size_bytes,)))
        super().truncate(descriptor, size_bytes)

    def sync(self, descriptor: int) -> None:
        self.steps.append(Step("sync", self._inode(descriptor)))

    def sync_directory(self, path: str) -> None:
        self.steps.append(Step("sync_directory", str(Path(path).absolute())))

    def make_directory(self, path: str) -> None:
        super().make_directory(path)
        self._name("name", path, None)

    def link(self, source: str, target: str) -> None:
        super().link(source, target)
        self._name("name", target, Path(target).stat().st_ino)

    def rename(self, source: str, target: str) -> None:
        inode = Path(source).stat().st_ino
        super().rename(source, target)
        self._name("rename", target, inode, Path(source).name)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._name("unlink", path)


class Disk:
    """What is on disk: files by inode, names by directory."""

    def __init__(
        self, files: dict[int, bytes], names: dict[str, dict[str, Any]]
    ) -> None:
        self.files = dict(files)
        self.names = {path: dict(entries) for path, entries in names.items()}

    def apply(self, step: Step) -> None:
        if step.kind == "write":
            offset, data = step.detail
            old = self.files.get(step.target, b"")
            old = old.ljust(offset, b"\0")
            self.files[step.target] = old[:offset] + data + old[offset + len(data) :]
        elif step.kind == "truncate":
            (size,) = step.detail
            old = self.files.get(step.target, b"")
            self.files[step.target] = old[:size].ljust(size, b"\0")
        else:
            entries = self.names.setdefault(str(step.target), {})
            name = step.detail[0]
            if step.kind == "unlink":
                entries.pop(name, None)
            else:
                entries[name] = step.detail[1]
            if step.kind == "rename":
                entries.pop(step.detail[2], None)

    def freeze(self) -> Any:
        return (
            tuple(sorted(self.files.items())),
            tuple(
                (path, tuple(sorted(entries.items(), key=str)))
                for path, entries in sorted(self.names.items())
            ),
        )

    def build(self, root: Path, place: Path, path: Path | None = None) -> None:
        """Make the tree below `root` at `place`, as far as its names are on disk."""
        path = root if path is None else path
        here = place / path.relative_to(root)
        here.mkdir()
        for name, inode in self.names.get(str(path), {}).items():
            if inode is None:
                self.build(root, place, path / name)
            else:
                (here / name).write_bytes(self.files.get(inode, b""))


def crashes(
    steps: list[Step], files: dict[int, bytes], names: dict[str, dict[str, Any]]
) -> Iterator[tuple[Disk, list[tuple[Any, ...]]]]:
    """Yield what a crash after each step may leave, each disk once, with the notes so far."""
    for end in range(len(steps) + 1):
        safe, pending = Disk(files, names), list[Step]()
        notes = []
        for step in steps[:end]:
            if step.kind == "note":
                notes.append(step.detail)
            elif step.kind in ("sync", "sync_directory"):
                data = step.kind == "sync"
                for done in pending:
                    if done.target == step.target and data == isinstance(
                        done.target, int
                    ):
                        safe.apply(done)
                pending = [
                    other
                    for other in pending
                    if other.target != step.target
                    or data != isinstance(other.target, int)
                ]
            else:
                pending.append(step)
        assert len(pending) <= MAX_PENDING
        seen = set()
        for amount in range(len(pending) + 1):
            for order in itertools.permutations(pending, amount):
                disk = Disk(safe.files, safe.names)
                for step in order:
                    disk.apply(step)
                frozen = disk.freeze()
                if frozen not in seen:
                    seen.add(frozen)
                    yield disk, notes


def survive(
    path: Path, acknowledged: list[Any], in_flight: list[Any], place: Path
) -> int:
    """Every acknowledged event is there, at once or after a repair; return how many are."""
    if not path.exists():
        assert not acknowledged
        return 0
    before = path.read_bytes()
    try:
        read(path)
    except dsh.DshCodecError:
        assert path.read_bytes() == before
        plan = plan_repair(path)
        assert plan.verdict == "damaged", plan
        repair(path, backup_dir=place)
    return len(judge(path, acknowledged, in_flight, recovers=False))


@pytest.mark.parametrize("stored", STORED)
def test_new_session_on_a_disk_that_forgets(tmp_path: Path, stored: Any) -> None:
    """Spec 10 §11.1, §11.2: an acknowledged batch survives every crash behind it."""
    files = RecordingFileSystem()
    root = tmp_path / "home" / "sessions"
    (tmp_path / "home").mkdir()
    with Writer.create(root, HEADER, compression=stored, files=files) as writer:
        for start, end in ((0, 3), (3, 5), (5, 8)):
            files.note(start, end)
            writer.append(ALL[start:end])
            files.note(end, end)
    home = str(tmp_path / "home")
    place = tmp_path / "after"
    counts = set()
    for disk, notes in crashes(files.steps, {}, {home: {}}):
        with fault(f"unsynced data and names lost, new session, {stored}"):
            shutil.rmtree(place, ignore_errors=True)
            disk.build(tmp_path / "home", place)
            known, end = notes[-1] if notes else (0, 3)
            path = place / Path(writer.path).relative_to(tmp_path / "home")
            flying = ALL[known:end]
            counts.add(survive(path, ALL[:known], flying, tmp_path / "backups"))
            # Whatever was left there, the session can be written to its end.
            if path.exists():
                again = Writer.open(path)
            else:
                again = Writer.create(place / "sessions", HEADER, compression=stored)
            with again:
                again.append(ALL[again.next_seq :])
            assert read(path) == ALL
    assert {0, 3, 5, 8} <= counts


@pytest.mark.parametrize("stored", STORED)
def test_recovery_on_a_disk_that_forgets(tmp_path: Path, stored: Any) -> None:
    """Spec 10 §8.4: what was acknowledged stays, also while a tail is cut and written again."""
    path = make_log(tmp_path / "root", [ALL[:3], ALL[3:6]], stored)
    path.write_bytes(path.read_bytes()[:-2])
    files = RecordingFileSystem()
    session = str(path.parent)
    inode = path.stat().st_ino
    before = path.read_bytes()
    with Writer.open(path, files=files) as writer:
        recovered = writer.recovered_count
        assert (recovered > 0) == (stored == "zstd")
        known = writer.next_seq
        files.note(3, 8)
        writer.append(ALL[known:])
        files.note(8, 8)
    place = tmp_path / "after"
    names = {session: {path.name: inode}}
    counts = set()
    for disk, notes in crashes(files.steps, {inode: before}, names):
        with fault(f"unsynced data lost, recovery, {stored}"):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            disk.build(path.parent, place / "s-1")
            acknowledged, end = notes[-1] if notes else (3, 8)
            flying = ALL[acknowledged:end]
            copy = place / "s-1" / path.name
            count = survive(copy, ALL[:acknowledged], flying, tmp_path / "backups")
            counts.add(count)
    assert max(counts) == len(ALL)


@pytest.mark.parametrize("stored", STORED)
def test_name_that_its_maker_did_not_live_to_sync(tmp_path: Path, stored: Any) -> None:
    """The next writer syncs it before it acknowledges anything."""
    path = make_log(tmp_path / "root", [ALL[:3]], stored)
    session, inode = str(path.parent), path.stat().st_ino
    before = path.read_bytes()
    files = RecordingFileSystem()
    with Writer.open(path, files=files) as writer:
        writer.append(ALL[3:6])
        files.note(6, 8)
        writer.append(ALL[6:8])
    place = tmp_path / "after"
    steps = [Step("name", session, (path.name, inode)), *files.steps]
    for disk, notes in crashes(steps, {inode: before}, {session: {}}):
        with fault("name never synced by a killed maker"):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            disk.build(path.parent, place / "s-1")
            known, end = notes[-1] if notes else (0, 6)
            copy = place / "s-1" / path.name
            survive(copy, ALL[:known], ALL[known:end], tmp_path / "backups")


def test_repack_on_a_disk_that_forgets(tmp_path: Path) -> None:
    """The old file or the new one, with every event."""
    path = make_log(tmp_path / "root", [ALL[:3], ALL[3:8]])
    inode, before = path.stat().st_ino, path.read_bytes()
    files = RecordingFileSystem()
    repack(path, policy="single", files=files)
    place = tmp_path / "after"
    names = {str(path.parent): {path.name: inode}}
    found = set()
    for disk, _ in crashes(files.steps, {inode: before}, names):
        with fault("unsynced data and names lost, repack"):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            disk.build(path.parent, place / "s-1")
            copy = place / "s-1" / path.name
            assert read(copy) == ALL
            found.add(copy.read_bytes())
    assert found == {before, path.read_bytes()}
