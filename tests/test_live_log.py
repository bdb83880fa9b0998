"""A host on a real log: settlements on disk before their ends, refused appends, logs opened anew."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec.durable import OsFileSystem
from dsh_codec.live import (
    AsyncWriterLog,
    Host,
    Step,
    Viewer,
    WriterLog,
    run_attempt,
    run_attempt_async,
)
from dsh_codec.live.journal import Open
from dsh_codec.live.writer_log import StoredEvents
from dsh_codec.writer import Writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from typing_extensions import Buffer

    from dsh_codec.live import Follower

HEADER: dict[str, Any] = {"id": "s", "createdAt": 1, "cwd": "/w"}
WHERE = {"turn": 1, "step": 1}
FOLLOW = {"address": "s", "assistantStream": True}


class RefusingFileSystem(OsFileSystem):
    """Refuses steps, each once, when it is told to."""

    def __init__(self) -> None:
        self.refused: set[str] = set()

    def _check(self, step: str) -> None:
        if step in self.refused:
            self.refused.remove(step)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._check("truncate")
        super().truncate(descriptor, size_bytes)

    def write(self, descriptor: int, data: Buffer) -> int:
        self._check("write")
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._check("sync")
        super().sync(descriptor)


def text(value: str) -> dict[str, Any]:
    return {"type": "text-delta", "index": 0, "text": value}


def step_of(append: Any, name: str = "m1") -> Step:
    return Step(1, 1, "p", "m", append=append, message_id=lambda: name)


def opened(log: Any) -> tuple[Host, Follower]:
    host = Host(log, clock=lambda: 5)
    return host, host.follow(FOLLOW)


def drain(follower: Follower) -> list[Any]:
    """Type of each item, the seq of an event, the outcome of an end."""
    found: list[Any] = []
    while (item := follower.poll()) is not None:
        if item["type"] == "event":
            found.append((item["event"]["type"], item["event"]["seq"]))
        elif item["type"] == "assistant-stream":
            frame: Any = item["frame"]
            found.append(frame.get("outcome", frame["type"]))
        else:
            found.append(item["cursor"])
    return found


def stored(root: Path) -> list[dict[str, Any]]:
    """What a reader finds in the only log under the root."""
    (found,) = root.rglob("session.v4.jsonl*")
    with dsh.open(found) as log:
        return [event.envelope for event in log]


def begin(append: Callable[[dict[str, Any]], Any]) -> None:
    append({"type": "turn/start", "data": {"turn": 1}})
    append({"type": "step/start", "data": WHERE})


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_settlement_is_on_disk_before_its_end(
    tmp_path: Path, compression: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3: whoever sees the end finds the settlement in the log."""
    with WriterLog.create(tmp_path, HEADER, compression=compression) as log:
        host = Host(log, clock=lambda: 5)
        begin(host.append)
        seen: list[Any] = []
        emit = host._emit

        def watch(frame: Any) -> None:
            if frame["type"] == "end":
                seen.append(stored(tmp_path)[frame["outcome"]["seq"]]["type"])
            emit(frame)

        monkeypatch.setattr(host, "_emit", watch)
        result = run_attempt(
            host.create_agent(), lambda: [text("a")], step_of(host.append)
        )
        assert seen == ["assistant/message"]
        assert result.seq == 2
        assert list(log.events) == stored(tmp_path)
    assert dsh.check(log.writer.path, level="full").is_sound


def test_host_goes_on_with_an_opened_log(tmp_path: Path) -> None:
    with WriterLog.create(tmp_path, HEADER) as log:
        begin(log.append)
        first = [dict(event) for event in log.events]
    with WriterLog.open(log.writer.path, clock=lambda: 9) as again:
        host, follower = opened(again)
        assert [event["seq"] for event in again.events] == [0, 1]
        host.append({"type": "step/end", "data": WHERE})
        assert drain(follower) == [1, ("step/end", 2)]
        assert list(again.events)[:2] == first
        assert again.events[2]["time"] == 9
        assert list(again.events) == stored(tmp_path)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_host_goes_on_with_a_torn_log(tmp_path: Path, compression: Any) -> None:
    """Recovered events are events; what is lost was never handed on twice."""
    with WriterLog.create(tmp_path, HEADER, compression=compression) as log:
        begin(log.append)
        log.append({"type": "step/end", "data": WHERE})
    path = log.writer.path
    whole = Path(path).read_bytes()
    for cut in (3, 12):
        Path(path).write_bytes(whole[:-cut])
        expected = stored(tmp_path)
        with WriterLog.open(path) as again:
            assert list(again.events) == expected
            host, follower = opened(again)
            seq = host.append({"type": "todo/write", "data": {"todos": []}})
            assert seq == len(expected)
            assert drain(follower) == [seq - 1, ("todo/write", seq)]
        assert list(again.events) == stored(tmp_path)
        assert dsh.check(path).is_sound


def test_committed_event_is_detached_from_what_was_given(tmp_path: Path) -> None:
    with WriterLog.create(tmp_path, HEADER) as log:
        data: dict[str, Any] = {"turn": 1}
        committed = log.append({"type": "turn/start", "data": data})
        data["turn"] = 2
        assert committed["data"] == {"turn": 1}
        assert log.events[0] is committed


def test_refused_event_changes_nothing(tmp_path: Path) -> None:
    with WriterLog.create(tmp_path, HEADER) as log:
        host, follower = opened(log)
        with pytest.raises(dsh.RowError):
            host.append({"data": {}})
        with pytest.raises(dsh.SeqGapError):
            host.append({"type": "turn/start", "seq": 3, "data": {"turn": 1}})
        assert host.cursor == -1
        assert drain(follower) == [-1]


@pytest.mark.parametrize("step", ["write", "sync"])
def test_refused_settlement_is_abandoned(tmp_path: Path, step: str) -> None:
    """Spec 40 §2.3, last row: no event, an abandoned end, the error raised."""
    files = RefusingFileSystem()
    with WriterLog.create(tmp_path, HEADER, files=files) as log:
        host = Host(log, clock=lambda: 5)
        begin(host.append)
        follower = host.follow(FOLLOW)
        files.refused = {step}
        with pytest.raises(OSError, match="No space") as caught:
            run_attempt(host.create_agent(), lambda: [text("a")], step_of(host.append))
        assert caught.value.errno == errno.ENOSPC
        abandoned = {"kind": "abandoned"}
        assert drain(follower) == [1, "start", "chunk", abandoned]
        assert [event["type"] for event in stored(tmp_path)] == [
            "turn/start",
            "step/start",
        ]
        is_usable = log.writer.is_usable
    if step == "write":
        assert is_usable
        return
    # After a failed sync nobody knows the file: it is opened anew under the same followers.
    assert not is_usable
    with WriterLog.open(log.writer.path) as again:
        host.attach(again, first_live_seq=0)
        run_attempt(host.create_agent(), lambda: [text("b")], step_of(host.append))
        assert drain(follower)[:2] == ["start", "chunk"]
        assert list(again.events) == stored(tmp_path)
        assert host.cursor == 2


def test_settlement_that_could_not_be_taken_back_is_published(tmp_path: Path) -> None:
    """The end said abandoned, and yet it is in the log: the log is the truth (G1)."""
    files = RefusingFileSystem()
    log = WriterLog.create(tmp_path, HEADER, files=files)
    host = Host(log, clock=lambda: 5)
    begin(host.append)
    follower = host.follow(FOLLOW)
    viewer = Viewer()
    viewer.journal.start()
    assert len(list(viewer.outputs())) == 1

    def shown() -> list[str]:
        while (item := follower.poll()) is not None:
            viewer.journal.push(1, item)
            list(viewer.outputs())
        return [entry.event["type"] for entry in viewer.window.entries]

    files.refused = {"sync", "truncate"}
    with pytest.raises(OSError, match="No space"):
        run_attempt(host.create_agent(), lambda: [text("a")], step_of(host.append))
    before = ["turn/start", "step/start"]
    assert shown() == before
    with pytest.raises(OSError, match="open the log again"):
        host.append({"type": "step/end", "data": WHERE})
    log.close()
    assert len(stored(tmp_path)) == 3
    with WriterLog.open(log.writer.path) as again:
        host.attach(again, first_live_seq=0)
        assert shown() == [*before, "assistant/message"]
        assert [e.event for e in viewer.window.entries] == stored(tmp_path)
        assert viewer.journal.generation == 1


def test_failed_stream_and_refused_append_name_both(tmp_path: Path) -> None:
    """Spec 40 §2.3: the append's error, with the original one attached."""
    files = RefusingFileSystem()

    def breaking() -> Any:
        yield text("a")
        files.refused = {"write"}
        raise ConnectionResetError

    with WriterLog.create(tmp_path, HEADER, files=files) as log:
        host = Host(log, clock=lambda: 5)
        begin(host.append)
        with pytest.raises(OSError, match="No space") as caught:
            run_attempt(host.create_agent(), breaking, step_of(host.append))
    assert isinstance(caught.value.__cause__, ConnectionResetError)
    assert len(stored(tmp_path)) == 2


def test_attached_log_brings_what_followers_lack(tmp_path: Path) -> None:
    """Spec 40 §4.1: events of a recreated session come first, and none twice."""
    with WriterLog.create(tmp_path, HEADER) as log:
        host, open_follower = opened(log)
        late = host.subscribe(FOLLOW)
        begin(host.append)
        assert drain(open_follower) == [-1, ("turn/start", 0), ("step/start", 1)]
        with pytest.raises(TypeError, match="append_async"):
            Host(_AsyncOnly(), clock=lambda: 0).append({})
    with Writer.open(log.writer.path) as writer:
        writer.append([{"type": "step/end", "seq": 2, "time": 3, "data": WHERE}])
    with WriterLog.open(log.writer.path) as again:
        host.attach(again, first_live_seq=1)
        host.append({"type": "step/start", "data": {"turn": 1, "step": 2}})
        assert drain(open_follower) == [("step/end", 2), ("step/start", 3)]
        host.open(late, FOLLOW)
        assert drain(late) == [3]
        with pytest.raises(ValueError, match="lacks"):
            host.attach(_AsyncOnly(), first_live_seq=0)


class _AsyncOnly:
    """An empty log of the session whose appends are awaited."""

    header = HEADER
    events: tuple[Any, ...] = ()

    async def append(self, event: dict[str, Any], /) -> dict[str, Any]:
        return event


def test_writer_that_holds_events_back_is_refused(tmp_path: Path) -> None:
    with Writer.create(tmp_path, HEADER, clock=lambda: 0.0) as writer:
        writer.enqueue([{"type": "turn/start", "seq": 0, "time": 0, "data": {}}])
        with pytest.raises(ValueError, match="holds events back"):
            WriterLog(writer)


def test_stored_events_are_a_sequence(tmp_path: Path) -> None:
    with WriterLog.create(tmp_path, HEADER, durable=False) as log:
        for number in range(600):
            event = {"type": "todo/write", "data": {"todos": [], "n": number}}
            log.append(event | ({"sourceEventSeqs": [0, 1, 2]} if number == 5 else {}))
        events = log.events
        assert len(events) == 600
        assert [event["seq"] for event in events[3:6]] == [3, 4, 5]
        assert events[-1]["data"]["n"] == 599
        assert events[5]["sourceEventSeqs"] == [0, 1, 2]
        assert len(events._decoded) <= 256
        with pytest.raises(IndexError):
            events[600]
    assert len(StoredEvents()) == 0


def test_stored_events_keep_few_long_ones_decoded() -> None:
    events = StoredEvents()
    sizes = [10, 9 << 20, 6 << 20, 10, 17 << 20, 10, 9 << 20]
    for seq, size in enumerate(sizes):
        events.add(b'{"seq":%d,"data":"%s"}' % (seq, b"x" * size))
    for seq in (*range(len(sizes)), 0, 4, 0, 6, 1):
        assert events[seq]["seq"] == seq
        kept = [len(events._rows[other]) for other in events._decoded]
        assert events._decoded_bytes == sum(kept)
        assert sum(kept) <= 16 << 20 or len(kept) == 1
        assert next(reversed(events._decoded)) == seq


# --- awaited ---


def run(main: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(limited())


async def words(*values: str) -> AsyncIterator[dict[str, Any]]:
    for value in values:
        yield text(value)
        await asyncio.sleep(0)


def test_awaited_settlement_precedes_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with await AsyncWriterLog.create(tmp_path, HEADER) as log:
            host, follower = opened(log)
            await host.append_async({"type": "turn/start", "data": {"turn": 1}})
            await host.append_async({"type": "step/start", "data": WHERE})
            step = step_of(host.append_async)
            result = await run_attempt_async(
                host.create_agent(), lambda: words("a", "b"), step
            )
            committed = {
                "kind": "committed",
                "eventType": "assistant/message",
                "seq": result.seq,
            }
            assert drain(follower) == [
                -1,
                ("turn/start", 0),
                ("step/start", 1),
                "start",
                "chunk",
                "chunk",
                ("assistant/message", 2),
                committed,
            ]
            assert list(log.events) == stored(tmp_path)
        again = await AsyncWriterLog.open(log.writer.writer.path)
        assert list(again.events) == stored(tmp_path)
        await again.close()

    run(main())


def test_awaited_appends_keep_their_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with await AsyncWriterLog.create(tmp_path, HEADER) as log:
            host, follower = opened(log)
            given = [{"type": "todo/write", "data": {"n": n}} for n in range(20)]
            seqs = await asyncio.gather(*map(host.append_async, given))
            assert seqs == list(range(20))
            assert [event["data"]["n"] for event in log.events] == list(range(20))
            assert [seq for _, seq in drain(follower)[1:]] == seqs

    run(main())


class SlowFileSystem(OsFileSystem):
    """Tells when a write begins, and waits until it may go on."""

    def __init__(self, refuses: bool = False) -> None:  # noqa: FBT001, FBT002 - a test's own
        import threading

        self.refuses = refuses
        self.is_slow = False
        self.begun, self.go_on = threading.Event(), threading.Event()

    def write(self, descriptor: int, data: Buffer) -> int:
        if self.is_slow:
            self.begun.set()
            assert self.go_on.wait(30)
            if self.refuses:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().write(descriptor, data)


@pytest.mark.parametrize("refuses", [False, True])
def test_task_cancelled_while_the_settlement_is_written(
    tmp_path: Path,
    refuses: bool,  # noqa: FBT001 - a parameter
) -> None:
    """The end tells what the log holds, whatever became of the task."""
    files = SlowFileSystem(refuses)

    async def main() -> None:
        async with await AsyncWriterLog.create(tmp_path, HEADER, files=files) as log:
            host, follower = opened(log)
            await host.append_async({"type": "turn/start", "data": {"turn": 1}})
            await host.append_async({"type": "step/start", "data": WHERE})
            files.is_slow = True
            step = step_of(host.append_async)
            task = asyncio.create_task(
                run_attempt_async(host.create_agent(), lambda: words("a"), step)
            )
            while not files.begun.is_set():
                await asyncio.sleep(0.001)
            # Frames of others would go on; this attempt is not over for anybody yet.
            assert drain(follower)[-1] == "chunk"
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            files.is_slow = False
            files.go_on.set()
            with pytest.raises(OSError if refuses else asyncio.CancelledError):
                await task
            end = drain(follower)[-1]
        assert end["kind"] == ("abandoned" if refuses else "committed")
        assert len(stored(tmp_path)) == (2 if refuses else 3)

    run(main())


def test_framer_takes_nothing_while_it_settles(tmp_path: Path) -> None:
    async def main() -> None:
        async with await AsyncWriterLog.create(tmp_path, HEADER) as log:
            host = Host(log, clock=lambda: 5)
            framer = host.create_agent().framer(1, 1)
            framer.start()
            event = {"type": "todo/write", "data": {}}
            settling = asyncio.create_task(
                framer.settle_async(
                    "assistant/attempt", lambda: host.append_async(event)
                )
            )
            await asyncio.sleep(0)
            states: list[str] = [framer.state]
            with pytest.raises(RuntimeError, match="settling"):
                framer.push(text("late"))
            with pytest.raises(RuntimeError, match="settling"):
                framer.abandon()
            assert (await settling)["index"] == 0
            states.append(framer.state)
            assert states == ["settling", "ended"]

    run(main())


def test_append_whose_caller_is_cancelled_reaches_the_followers(tmp_path: Path) -> None:
    files = SlowFileSystem()

    async def main() -> None:
        async with await AsyncWriterLog.create(tmp_path, HEADER, files=files) as log:
            host, follower = opened(log)
            await host.append_async({"type": "turn/start", "data": {"turn": 1}})
            files.is_slow = True
            task = asyncio.create_task(
                host.append_async({"type": "step/start", "data": WHERE})
            )
            while not files.begun.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            files.is_slow = False
            files.go_on.set()
            seq = await host.append_async({"type": "step/end", "data": WHERE})
            assert seq == 2
            assert drain(follower)[-2:] == [("step/start", 1), ("step/end", 2)]

    run(main())


def test_append_that_is_awaited_needs_the_async_driver(tmp_path: Path) -> None:
    async def main() -> None:
        async with await AsyncWriterLog.create(tmp_path, HEADER) as log:
            host, follower = opened(log)
            with pytest.raises(TypeError, match="run_attempt_async"):
                run_attempt(host.create_agent(), list, step_of(host.append_async))
            assert drain(follower)[-1] == {"kind": "abandoned"}
            assert host.cursor == -1

    run(main())


def test_viewer_of_a_host_on_disk_shows_the_log(tmp_path: Path) -> None:
    """Host, follower, journal, reconciler and window without a transport."""
    with WriterLog.create(tmp_path, HEADER) as log:
        host = Host(log, clock=lambda: 5)
        begin(host.append)
        viewer = Viewer()
        viewer.journal.start()
        (opening,) = viewer.outputs()
        assert isinstance(opening, Open)
        follower = host.follow(FOLLOW)
        run_attempt(host.create_agent(), lambda: [text("a")], step_of(host.append))
        host.append({"type": "step/end", "data": WHERE})
        kinds: list[str] = []
        while (item := follower.poll()) is not None:
            viewer.journal.push(opening.generation, item)
            kinds += [getattr(output, "kind", "") for output in viewer.outputs()]
        assert kinds == ["replace", "append", "append", "append", "settle-assistant"]
        assert [entry.event for entry in viewer.window.entries] == stored(tmp_path)


def test_host_refuses_what_does_not_fit_where_its_log_is_asked_to(
    tmp_path: Path,
) -> None:
    bad = {"type": "turn/start", "data": {"turn": "a"}}
    with WriterLog.create(tmp_path, HEADER, clock=lambda: 7, check="read") as log:
        host = Host(log, clock=lambda: 7)
        for _ in range(2):
            with pytest.raises(dsh.RowError, match=r"L2\.turn-start"):
                host.append(bad)
        assert host.append({"type": "turn/start", "data": {"turn": 1}}) == 0

    async def again() -> None:
        async with await AsyncWriterLog.open(
            log.writer.path, clock=lambda: 7, check="read"
        ) as opened:
            later = Host(opened, clock=lambda: 7)
            with pytest.raises(dsh.RowError, match=r"L2\.turn-start"):
                await later.append_async(bad)
            event = {"type": "step/start", "data": WHERE}
            assert await later.append_async(event) == 1

    asyncio.run(again())
    assert dsh.check(log.writer.path).is_sound
