"""Sessions to write, file systems that fail, and the one oracle that decides after a fault."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dsh_codec as dsh
from dsh_codec import kernel
from dsh_codec.durable import OsFileSystem
from dsh_codec.place import marks_of, read_for_append
from dsh_codec.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

Event = dict[str, Any]

HEADER: dict[str, Any] = {"id": "s-1", "createdAt": 1000, "cwd": "/w"}
STORED: tuple[Any, ...] = ("none", "zstd")


def _endless() -> Iterator[Event]:
    seq = 0
    for turn in count(1):
        here = {"turn": turn, "step": 1}
        run = {
            "type": "text-chunks",
            "time0": 1000 + seq,
            "index": 0,
            "dt": [1],
            "texts": [f"words of turn {turn}, ", "é\ud83d \U0001f600"],
        }
        end = {"type": "chunk", "time": 1005 + seq}
        end["chunk"] = {"type": "finish", "reason": {"kind": "error"}}
        for kind, data in (
            ("turn/start", {"turn": turn}),
            ("step/start", here),
            ("assistant/attempt", here | {"stream": [run, end]}),
            ("step/end", here),
            ("turn/end", {"turn": turn, "reason": {"kind": "completed"}}),
        ):
            yield {"type": kind, "seq": seq, "time": 1000 + seq, "data": data}
            seq += 1


def session_events(amount: int) -> list[Event]:
    """Return the first events of an endless session that every level accepts."""
    return list(islice(_endless(), amount))


class QuietFileSystem(OsFileSystem):
    """Syncs nothing: what a process left behind is the same, only sooner."""

    def sync(self, descriptor: int) -> None:
        del descriptor

    def sync_directory(self, path: str) -> None:
        del path


QUIET = QuietFileSystem()


def make_log(
    root: Path, batches: list[list[Event]], compression: Any = "zstd", **options: Any
) -> Path:
    """Write a session and return its file."""
    options.setdefault("files", QUIET)
    with Writer.create(root, HEADER, compression=compression, **options) as writer:
        writer.flush()
        for batch in batches:
            writer.append(batch)
    return Path(writer.path)


def rows_of(events: list[Event]) -> bytes:
    """Return events as the rows of a log."""
    return b"".join(kernel.encode_event(event) + b"\n" for event in events)


def append_as(writer: Writer, way: str, events: list[Event]) -> int:
    """Append a batch as events, or as rows that are text already."""
    if way == "rows":
        return writer.append_rows(rows_of(events))
    return writer.append(events)


def read(path: Path | str) -> list[Event]:
    """Return the events as an ordinary reader sees them."""
    with dsh.open(path) as log:
        return [event.envelope for event in log]


def state_of(path: Path) -> tuple[Any, ...]:
    """Return all that reading must not change: bytes, place, size, times."""
    return path.read_bytes(), *marks_of(path.stat())


def judge(
    path: Path | str,
    acknowledged: list[Event],
    in_flight: list[Event],
    *,
    recovers: bool = True,
) -> list[Event]:
    """Decide whether a log has survived; return what it holds.

    Spec 10 §8: the events read are the acknowledged ones and a prefix of the batch in flight;
    reading changes nothing; recovery gives the same events, and the second time does nothing.
    """
    path = Path(path)
    before = state_of(path)
    events = read(path)
    known = len(acknowledged)
    assert events[:known] == acknowledged
    assert events[known:] == in_flight[: len(events) - known]
    # What a writer does when it opens, but for the lock, which the test's own may hold.
    assert read_for_append(str(path)).event_count == len(events)
    assert state_of(path) == before
    if recovers:
        place = path.parent.parent / "recovery"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(path.parent, place)
        copy = place / path.name
        with Writer.open(copy, files=QUIET) as writer:
            writer.repair_tail()
        once = state_of(copy)
        assert read(copy) == events
        assert dsh.check(copy, level="full", mode="strict").is_sound
        with Writer.open(copy, files=QUIET) as writer:
            assert writer.truncate_to is None
            writer.repair_tail()
        assert state_of(copy) == once
        shutil.rmtree(place)
    return events


class FaultyFileSystem(OsFileSystem):
    """Lets the N-th step of a kind fail.

    Attributes:
        steps: Steps so far, by kind.
        has_failed: Whether the fault has happened.
        left_over: Names that could not be removed.
    """

    def __init__(
        self,
        kind: str,
        number: int,
        *,
        code: int = errno.EIO,
        taken: float = 0.5,
        lasts: bool = False,
    ) -> None:
        """Plan a fault.

        Args:
            kind: Name of a method.
            number: Which call of it fails, from 1.
            code: Error number.
            taken: Part of the data that a failing write takes before.
            lasts: Whether all later calls of the kind fail, too.
        """
        self.steps: Counter[str] = Counter()
        self.has_failed = False
        self.left_over: list[str] = []
        self._kind, self._number, self._code = kind, number, code
        self._taken, self._lasts = taken, lasts

    def _step(self, kind: str) -> bool:
        self.steps[kind] += 1
        if kind != self._kind:
            return False
        at = self.steps[kind]
        return at == self._number or (self._lasts and at > self._number)

    def _fail(self, kind: str) -> None:
        if self._step(kind):
            self.has_failed = True
            raise OSError(self._code, os.strerror(self._code))

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        self._fail("open")
        return super().open(path, flags, mode)

    def write(self, descriptor: int, data: Buffer) -> int:
        if self._step("write"):
            self.has_failed = True
            part = memoryview(data)[: int(memoryview(data).nbytes * self._taken)]
            if part:
                os.write(descriptor, part)
            raise OSError(self._code, os.strerror(self._code))
        return super().write(descriptor, data)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._fail("truncate")
        super().truncate(descriptor, size_bytes)

    def sync(self, descriptor: int) -> None:
        del descriptor
        self._fail("sync")

    def sync_directory(self, path: str) -> None:
        del path
        self._fail("sync_directory")

    def make_directory(self, path: str) -> None:
        self._fail("make_directory")
        super().make_directory(path)

    def link(self, source: str, target: str) -> None:
        self._fail("link")
        super().link(source, target)

    def rename(self, source: str, target: str) -> None:
        self._fail("rename")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        if self._step("unlink"):
            self.has_failed = True
            self.left_over.append(Path(path).name)
            raise OSError(self._code, os.strerror(self._code))
        super().unlink(path)
