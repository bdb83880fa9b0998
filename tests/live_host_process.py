"""A host process that a test starts and kills: a session on disk, its agent, a server.

Takes the sessions root and the port; tells `port N`, then obeys the lines of its standard input:

    hang N        run an attempt that streams N chunks and then says nothing more
    stream SEED   run attempts without end
    finish        run one whole step, end the turn, close the log, and say `done`
"""

from __future__ import annotations

import asyncio
import random
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh_codec.live import AsyncWriterLog, Host, Server, Step, run_attempt_async
from dsh_codec.live.writer_log import now_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

HEADER: dict[str, Any] = {"id": "s", "createdAt": 1, "cwd": "/w"}
TOKEN = "right"  # noqa: S105 - of the test's own server
LAST = "last"
"""Text of the last chunk of every attempt that comes to its end."""


def log_file(root: Path) -> Path | None:
    return next(root.rglob("session.v4.jsonl*"), None)


class Session:
    """One process's part of the session: what the one before left open is closed first."""

    def __init__(self, log: AsyncWriterLog) -> None:
        self.log = log
        self.host = Host(log, clock=now_ms)
        self.agent = self.host.create_agent()
        self.turn = self.step = 0
        # Attempt ids repeat in another process; these texts do not.
        self.name = f"p{len(log.events)}"
        self.attempts = 0

    async def append(self, kind: str, **data: Any) -> int:
        return await self.host.append_async({"type": kind, "data": data})

    async def recover(self) -> None:
        """Close an open step and turn as interrupted. Spec: 30 §11."""
        open_step = open_turn = None
        for event in self.log.events:
            kind, data = event["type"], event["data"]
            if kind == "turn/start":
                open_turn = self.turn = data["turn"]
            elif kind == "step/start":
                open_step = data["step"]
            elif kind == "step/end":
                open_step = None
            elif kind == "turn/end":
                open_turn = None
        if open_step is not None:
            await self.append("step/end", turn=open_turn, step=open_step)
        if open_turn is not None:
            reason = {"kind": "interrupted"}
            await self.append("turn/end", turn=open_turn, reason=reason)

    async def start_turn(self) -> None:
        self.turn, self.step = self.turn + 1, 0
        await self.append("turn/start", turn=self.turn)

    async def end_turn(self) -> None:
        reason = {"kind": "completed"}
        await self.append("turn/end", turn=self.turn, reason=reason)

    async def run_step(self, stream: Callable[[str], Any]) -> None:
        self.step += 1
        self.attempts += 1
        where = {"turn": self.turn, "step": self.step}
        await self.append("step/start", **where)
        name = f"{self.name}-{self.attempts}"
        step = Step(
            self.turn,
            self.step,
            "p",
            "m",
            append=self.host.append_async,
            message_id=lambda: name,
        )
        await run_attempt_async(self.agent, lambda: stream(name), step)
        await self.append("step/end", **where)


def text(value: str) -> dict[str, Any]:
    return {"type": "text-delta", "index": 0, "text": value}


async def whole(name: str, count: int, pause_s: float) -> AsyncIterator[Any]:
    for number in range(count):
        yield text(f"{name}:{number} ")
        await asyncio.sleep(pause_s)
    yield text(LAST)


async def hanging(name: str, count: int) -> AsyncIterator[Any]:
    for number in range(count):
        yield text(f"{name}:{number} ")
    await asyncio.Event().wait()


async def obey(session: Session, command: str, argument: str) -> bool:
    """Do what a line says; whether there is more to do."""
    await session.recover()
    await session.start_turn()
    if command == "hang":
        count = int(argument)
        await session.run_step(lambda name: whole(name, 3, 0))
        await session.run_step(lambda name: hanging(name, count))
    if command == "stream":
        chance = random.Random(argument)  # noqa: S311 - repeatable
        while True:
            stream = partial(whole, count=chance.randint(0, 30), pause_s=0.0005)
            await session.run_step(stream)
            if chance.random() < 0.2:
                await session.end_turn()
                await session.start_turn()
    await session.run_step(lambda name: whole(name, 5, 0))
    await session.end_turn()
    return False


async def main(root: Path, port: int) -> None:
    path = log_file(root)
    if path is None:
        log = await AsyncWriterLog.create(root, HEADER)
    else:
        log = await AsyncWriterLog.open(path)
    session = Session(log)

    def find(address: Any) -> Host | None:
        return session.host if address == "s" else None

    loop = asyncio.get_running_loop()
    async with log, Server(find, TOKEN, port=port) as server:
        sys.stdout.write(f"port {server.port}\n")
        sys.stdout.flush()
        line = await loop.run_in_executor(None, sys.stdin.readline)
        command, _, argument = line.strip().partition(" ")
        if command:
            await obey(session, command, argument)
        # Followers take what is left before the server closes.
        sys.stdout.write("done\n")
        sys.stdout.flush()
        await loop.run_in_executor(None, sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
