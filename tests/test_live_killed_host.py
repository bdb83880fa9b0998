"""Host processes that are killed in the middle of an attempt. Spec: 40 §8, process restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec.live import Client
from dsh_codec.live.wire import decode_line, encode_line
from live_host_process import LAST, TOKEN, log_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL"),
]

KILLS = int(os.environ.get("DSH_LIVE_KILLS", "6"))
DEADLINE_S = 60
SCRIPT = Path(__file__).with_name("live_host_process.py")
PACKAGE = Path(dsh.__file__).parent.parent


class HostProcess:
    """A host process, its port and its pipes."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip()

    async def kill(self) -> None:
        self.process.kill()
        assert await self.process.wait() == -signal.SIGKILL


@contextlib.asynccontextmanager
async def host_process(root: Path, port: int) -> AsyncIterator[HostProcess]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SCRIPT),
        str(root),
        str(port),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(PACKAGE)},
    )
    try:
        host = HostProcess(process, 0)
        word, _, number = (await host.line()).partition(" ")
        assert word == "port"
        host.port = int(number)
        yield host
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        # The pipes are closed by the loop's next turns.
        process._transport.close()  # type: ignore[attr-defined]  # no public way
        await asyncio.sleep(0)


class Watcher:
    """A client, and the texts of every live chunk that it was shown."""

    def __init__(self, port: int) -> None:
        self.texts: list[str] = []
        self.client = Client(
            "s", TOKEN, port=port, max_pause_s=0.05, on_change=self._changed
        )

    def _changed(self, change: Any) -> None:
        for entry in change.entries:
            if not entry.is_durable:
                self.texts.append(entry.event["data"]["chunk"]["text"])

    @property
    def entries(self) -> Any:
        return self.client.viewer.window.entries

    @property
    def rows(self) -> list[str]:
        return [
            entry.event["data"]["chunk"]["text"]
            for entry in self.entries
            if not entry.is_durable
        ]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [entry.event for entry in self.entries if entry.is_durable]

    def shows(self, log: list[dict[str, Any]]) -> bool:
        """Whether it is at rest, and shows the end of this log and nothing else."""
        events = self.events
        return bool(events) and not self.rows and events == log[events[0]["seq"] :]


@contextlib.asynccontextmanager
async def watching(port: int, count: int) -> AsyncIterator[list[Watcher]]:
    watchers = [Watcher(port) for _ in range(count)]
    tasks = [asyncio.create_task(watcher.client.run()) for watcher in watchers]
    try:
        yield watchers
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def opening_of(port: int) -> dict[str, Any]:
    """Return the snapshot that a new follower gets."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        request = {"address": "s", "assistantStream": True}
        writer.write(encode_line({"token": TOKEN}))
        writer.write(encode_line({"id": 0, "follow": request}))
        assert decode_line(await reader.readline()) == {"welcome": 1}
        item: dict[str, Any] = decode_line(await reader.readline())["item"]
        return item
    finally:
        writer.transport.abort()


def read(root: Path) -> list[dict[str, Any]]:
    path = log_file(root)
    assert path is not None
    with dsh.open(path) as log:
        return [event.envelope for event in log]


def check_log(root: Path) -> list[dict[str, Any]]:
    """Read the log that a killed process left: sound, and every stream in it is whole."""
    path = log_file(root)
    assert path is not None
    report = dsh.check(path)
    assert report.is_sound, report
    events = read(root)
    for event in events:
        if "stream" in event["data"]:
            chunks = dsh.expand(event["data"]["stream"])
            assert chunks[-1].chunk["text"] == LAST
            assert event["type"] == "assistant/message"
    return events


def run(main: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4 * DEADLINE_S):
            await main

    asyncio.run(limited())


def seeded(name: str) -> random.Random:
    seed = os.environ.get("DSH_LIVE_SEED", "8")
    sys.stdout.write(f"DSH_LIVE_SEED={seed}\n")
    return random.Random(f"{seed} {name}")  # noqa: S311 - repeatable


class Watched:
    """A session whose host processes come and go, and two clients that stay."""

    def __init__(self, root: Path, stack: contextlib.AsyncExitStack) -> None:
        self.root = root
        self.port = 0
        self.watchers: list[Watcher] = []
        self._stack = stack

    @contextlib.asynccontextmanager
    async def process(self) -> AsyncIterator[HostProcess]:
        """Start the next process; it knows of no attempt, and the clients forget theirs."""
        async with host_process(self.root, self.port) as host:
            self.port = host.port
            if self.watchers:
                snapshot = await opening_of(host.port)
                assert snapshot["assistantStream"] == {"revision": 0}
                events = read(self.root)
                assert snapshot["cursor"] == len(events) - 1
                await until(lambda: self.all_show(events))
            else:
                watching_two = watching(host.port, 2)
                self.watchers = await self._stack.enter_async_context(watching_two)
            yield host

    def all_show(self, events: list[dict[str, Any]]) -> bool:
        return all(watcher.shows(events) for watcher in self.watchers)

    async def kill_hanging(
        self, host: HostProcess, turn: int, chance: random.Random
    ) -> None:
        """Kill it when every client has seen all that its second attempt says."""
        count = chance.choice([0, 1, 2, 50, 500])
        host.tell(f"hang {count}")
        step = {"turn": turn, "step": 2}

        def is_seen() -> bool:
            return all(
                len(watcher.rows) == count
                and watcher.events
                and watcher.events[-1]["type"] == "step/start"
                and watcher.events[-1]["data"] == step
                for watcher in self.watchers
            )

        await until(is_seen)
        path = log_file(self.root)
        assert path is not None
        before = path.read_bytes()
        await asyncio.sleep(chance.random() * 0.003)
        await host.kill()
        assert path.read_bytes() == before
        events = check_log(self.root)
        assert all(w.events == events[-len(w.events) :] for w in self.watchers)

    async def kill_streaming(self, host: HostProcess, chance: random.Random) -> int:
        """Kill it whenever it may be; how many clients saw chunks that never were settled."""
        first = self.watchers[0]
        seen = len(first.texts)
        host.tell(f"stream {chance.random()}")
        await until(lambda: len(first.texts) > seen)
        await asyncio.sleep(chance.random() * 0.15)
        await host.kill()
        events = check_log(self.root)
        settled = str([event["data"] for event in events])
        for watcher in self.watchers:
            # What was shown as durable is durable.
            shown = watcher.events
            start = shown[0]["seq"]
            assert shown == events[start : start + len(shown)]
        return sum(any(t not in settled for t in w.rows) for w in self.watchers)

    async def finish(self, host: HostProcess) -> None:
        """Let it end in order: everybody shows the log, which is sound throughout."""
        host.tell("finish")
        assert await host.line() == "done"
        events = read(self.root)
        await until(lambda: self.all_show(events))
        host.tell("")
        assert await host.process.wait() == 0
        path = log_file(self.root)
        assert path is not None
        assert dsh.check(path, level="full").is_sound


@contextlib.asynccontextmanager
async def watched_session(root: Path) -> AsyncIterator[Watched]:
    async with contextlib.AsyncExitStack() as stack:
        yield Watched(root, stack)


def test_killed_in_mid_attempt_leaves_no_trace(tmp_path: Path) -> None:
    """The log has the bytes that it had before the attempt, and nobody keeps a row of it."""
    chance = seeded("hang")

    async def main() -> None:
        async with watched_session(tmp_path) as session:
            for turn in range(1, KILLS + 1):
                async with session.process() as host:
                    await session.kill_hanging(host, turn, chance)
            async with session.process() as host:
                await session.finish(host)

    run(main())


def test_killed_at_random_moments_leaves_whole_attempts(tmp_path: Path) -> None:
    """Whatever was under way, also a settlement: it is in the log as a whole, or not at all."""
    chance = seeded("stream")

    async def main() -> None:
        inside = 0
        async with watched_session(tmp_path) as session:
            for _ in range(KILLS):
                async with session.process() as host:
                    inside += await session.kill_streaming(host, chance)
            async with session.process() as host:
                await session.finish(host)
        assert inside

    run(main())
