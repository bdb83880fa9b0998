"""Processes that are killed, and several at once."""

from __future__ import annotations

import os
import random
import select
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec.durable import OsFileSystem
from dsh_codec.follow import follow
from dsh_codec.writer import Writer
from fault_oracle import HEADER, STORED, judge, make_log, read, session_events
from fault_tally import fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system"),
]

KILLS = int(os.environ.get("DSH_FAULT_KILLS", "20"))
DEADLINE_S = 60.0
STEPS = ("write", "truncate", "sync", "sync_directory", "link", "unlink")


def child(task: Callable[[], None]) -> int:
    """Run a task in a process of its own; its id is the parent's."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        task()
        code = 0
    finally:
        os._exit(code)


def ended(process: int) -> int:
    """Wait for the end of a child and return its code, or minus the signal."""
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


class KillingFileSystem(OsFileSystem):
    """Kills the process before, in, or after its N-th step."""

    def __init__(self, number: int, when: str) -> None:
        self.left, self.when = number, when

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(DEADLINE_S)

    def _around(self, step: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left == 0 and self.when != "after":
            self._die()
        result = step()
        if self.left == 0:
            self._die()
        return result

    def write(self, descriptor: int, data: Buffer) -> int:
        if self.left == 1 and self.when == "in":
            os.write(descriptor, memoryview(data)[: memoryview(data).nbytes * 2 // 3])
        taken: int = self._around(
            lambda: super(KillingFileSystem, self).write(descriptor, data)
        )
        return taken

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._around(
            lambda: super(KillingFileSystem, self).truncate(descriptor, size_bytes)
        )

    def sync(self, descriptor: int) -> None:
        del descriptor
        self._around(lambda: None)

    def sync_directory(self, path: str) -> None:
        del path
        self._around(lambda: None)

    def make_directory(self, path: str) -> None:
        self._around(lambda: super(KillingFileSystem, self).make_directory(path))

    def link(self, source: str, target: str) -> None:
        self._around(lambda: super(KillingFileSystem, self).link(source, target))

    def unlink(self, path: str) -> None:
        self._around(lambda: super(KillingFileSystem, self).unlink(path))


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_kill_at_every_step_of_publication(
    tmp_path: Path, stored: Any, when: str
) -> None:
    """Spec 10 §11.1: there is no log, or the whole first batch."""
    events = session_events(7)
    for number in range(1, 40):
        root = tmp_path / str(number)

        def task(root: Path = root, number: int = number) -> None:
            files = KillingFileSystem(number, when)
            with Writer.create(root, HEADER, compression=stored, files=files) as writer:
                writer.append(events[:3])

        if ended(child(task)) == 0:
            break
        with fault("SIGKILL at every step of publication"):
            prepared = Writer.create(root, HEADER, compression=stored)
            path = Path(prepared.path)
            if path.exists():
                assert judge(path, [], events[:3]) == events[:3]
                prepared = Writer.open(path)
            with prepared as writer:
                writer.append(events[writer.next_seq :])
            assert read(path) == events
    else:
        pytest.fail("the writer never came to its end")


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_kill_at_every_step_of_recovery(tmp_path: Path, stored: Any, when: str) -> None:
    """Spec 10 §8.4, and every recovery may be the victim of the next kill."""
    events = session_events(8)
    path = make_log(tmp_path / "root", [events[:3], events[3:6]], stored)
    torn = path.read_bytes()[:-2]
    for number in range(1, 40):
        path.write_bytes(torn)

        def task(number: int = number) -> None:
            with Writer.open(path, files=KillingFileSystem(number, when)) as writer:
                writer.append(events[writer.next_seq :])

        if ended(child(task)) == 0:
            break
        with fault("SIGKILL at every step of recovery"):
            judge(path, events[:3], events[3:])
            if ended(child(task)) == 0:
                assert read(path) == events
            judge(path, events[:3], events[3:])
    else:
        pytest.fail("the writer never came to its end")
    assert read(path) == events


@pytest.mark.parametrize("stored", STORED)
def test_kills_at_random_moments_on_one_growing_file(
    tmp_path: Path, stored: Any
) -> None:
    """`DSH_FAULT_KILLS` kills, half of them for each encoding."""
    seed = os.environ.get("DSH_FAULT_SEED", "6")
    sys.stdout.write(f"DSH_FAULT_SEED={seed}\n")
    chance = random.Random(f"{seed} {stored}")  # noqa: S311 - repeatable
    path = make_log(tmp_path / "root", [], stored)
    events = session_events(200_000)
    acknowledged = 0
    for _ in range(max(KILLS // 2, 1)):
        source, sink = os.pipe()

        def task(sink: int = sink, seed: int = chance.randrange(1 << 30)) -> None:
            sizes = random.Random(seed)  # noqa: S311 - repeatable
            with Writer.open(path, durable=sizes.random() < 0.5) as writer:
                while True:
                    known = writer.next_seq
                    batch = events[known : known + sizes.randint(1, 12)]
                    os.write(sink, struct.pack("<QQ", known, known + len(batch)))
                    writer.append(batch)
                    os.write(sink, struct.pack("<QQ", writer.next_seq, writer.next_seq))

        process = child(task)
        os.close(sink)
        # The time counts from the first batch on: before it there is nothing to hit.
        select.select([source], [], [], DEADLINE_S)
        time.sleep(chance.random() * 0.004)
        os.kill(process, signal.SIGKILL)
        assert ended(process) == -signal.SIGKILL
        told = b""
        while part := os.read(source, 1 << 16):
            told += part
        os.close(source)
        pairs = list(struct.iter_unpack("<QQ", told[: len(told) // 16 * 16]))
        assert pairs
        assert pairs[0][0] >= acknowledged
        known, end = pairs[-1]
        with fault("SIGKILL at a random moment"):
            found = judge(path, events[:known], events[known:end], recovers=False)
        acknowledged = known
        assert len(found) <= end
    with Writer.open(path) as writer:
        writer.repair_tail()
    assert dsh.check(path, level="full", mode="strict").is_sound


@pytest.mark.parametrize("stored", STORED)
def test_readers_during_appends_see_a_growing_prefix(
    tmp_path: Path, stored: Any
) -> None:
    """Spec 00 §3: readers take no lock and tolerate a torn tail."""
    events = session_events(600)
    path = make_log(tmp_path / "root", [events[:1]], stored)

    class Slow(OsFileSystem):
        def write(self, descriptor: int, data: Buffer) -> int:
            part = memoryview(data)[: max(memoryview(data).nbytes // 3, 1)]
            return super().write(descriptor, part)

        def sync(self, descriptor: int) -> None:
            del descriptor

    is_done = threading.Event()
    faults: list[BaseException] = []
    looks = [0, 0, 0]

    def look(reader: int) -> None:
        last = 0
        try:
            while not is_done.is_set():
                seen = read(path)
                assert seen == events[: len(seen)]
                assert len(seen) >= last
                last = len(seen)
                looks[reader] += 1
        except BaseException as error:
            faults.append(error)

    def follow_it() -> None:
        try:
            seen = []
            with follow(path, interval_ms=1) as following:
                for item in following:
                    assert isinstance(item, dsh.Event)
                    seen.append(item.envelope)
                    looks[2] += 1
                    if len(seen) == len(events):
                        break
            assert seen == events
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=look, args=(0,))]
    threads.append(threading.Thread(target=look, args=(1,)))
    follower = threading.Thread(target=follow_it)
    for thread in (*threads, follower):
        thread.start()
    with Writer.open(path, files=Slow()) as writer:
        while writer.next_seq < len(events):
            writer.append(events[writer.next_seq : writer.next_seq + 7])
    follower.join(DEADLINE_S)
    is_done.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not faults
    assert not follower.is_alive()
    assert min(looks) > 0
    with fault("reads during appends", sum(looks[:2])):
        assert read(path) == events


@pytest.mark.parametrize("stored", STORED)
def test_second_writer_is_refused_until_the_first_is_gone(
    tmp_path: Path, stored: Any
) -> None:
    """Spec 10 §9: at once, without waiting; a killed owner owns nothing."""
    events = session_events(10)
    path = make_log(tmp_path / "root", [events[:2]], stored)
    source, sink = os.pipe()

    def task() -> None:
        with Writer.open(path) as writer:
            writer.append(events[2:4])
            os.write(sink, b"x")
            time.sleep(DEADLINE_S)

    with fault("two writers"):
        process = child(task)
        os.close(sink)
        assert os.read(source, 1) == b"x"
        os.close(source)
        before = path.read_bytes()
        for _ in range(5):
            with pytest.raises(dsh.SessionLockedError) as refusal:
                Writer.open(path)
            assert refusal.value.path == str(path.parent / "session.lock")
        assert path.read_bytes() == before
        os.kill(process, signal.SIGKILL)
        ended(process)
        with Writer.open(path) as writer:
            writer.append(events[4:])
        assert read(path) == events


@pytest.mark.parametrize("stored", STORED)
def test_eight_creators_of_one_id(tmp_path: Path, stored: Any) -> None:
    """Spec 10 §11.1: exactly one log, by one of them, and no leftovers."""
    events = session_events(6)
    for number in range(max(KILLS // 10, 2)):
        root = tmp_path / str(number)
        source, sink = os.pipe()

        def task(source: int = source, sink: int = sink, root: Path = root) -> None:
            os.close(sink)
            os.read(source, 1)  # Returns when the parent lets all of them go.
            try:
                with Writer.create(root, HEADER, compression=stored) as writer:
                    writer.append(events)
            except (dsh.SessionLockedError, FileExistsError):
                os._exit(3)

        processes = [child(task) for _ in range(8)]
        os.close(source)
        os.close(sink)
        codes = [ended(process) for process in processes]
        with fault("eight creators of one id"):
            assert sorted(codes) == [0] + [3] * 7
            (path,) = root.glob("*/*/session.v4*")
            assert judge(path, events, []) == events
            assert {entry.name for entry in path.parent.iterdir()} == {
                path.name,
                "session.lock",
            }
