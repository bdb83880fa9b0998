"""A demonstration: a scripted model streams, two viewers follow, one is cut off and comes back.

Nothing is printed here; the command line shows what `run_demo` reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsh_codec._backend import kernel
from dsh_codec.live.attempt import Step, run_attempt_async
from dsh_codec.live.client import Client
from dsh_codec.live.host import Host
from dsh_codec.live.server import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from dsh_codec.live.window import Window

__all__ = ["DemoResult", "run_demo"]

_SESSION: Final = "demo"

_TEXT: Final = (
    "Frames show the words of a model while it speaks; the log keeps what it said. "
    "One of the two viewers has just lost its connection, took a new baseline, and goes on. "
    "When the step ends, both show the same durable message."
)


class DemoResult(NamedTuple):
    """How a demonstration ended.

    Attributes:
        log: The log as a plain file of generation 4.
        is_equal: Whether both windows show exactly the events of the log.
        openings: Follows that each viewer opened; the one that was cut off has more.
    """

    log: bytes
    is_equal: bool
    openings: tuple[int, int]


class _MemoryLog:
    """A log in memory, for a demonstration that leaves no file."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.header: dict[str, Any] = {
            "version": 4,
            "id": _SESSION,
            "createdAt": clock(),
            "isSeeded": False,
            "delegationDepth": 0,
        }
        self.events: list[dict[str, Any]] = []

    def append(self, event: dict[str, Any], /) -> dict[str, Any]:
        head = {"type": event["type"], "seq": len(self.events), "time": self._clock()}
        self.events.append(head | event)
        return self.events[-1]

    def encode(self) -> bytes:
        header = kernel.dump({"type": "session", **self.header})
        rows = map(kernel.encode_event, self.events)
        return b"".join(line + b"\n" for line in (header, *rows))


async def run_demo(
    show: Callable[[int, Window, str], None],
    *,
    clock: Callable[[], int],
    pause_s: float = 0.05,
) -> DemoResult:
    """Run the demonstration in this process, over a loopback socket.

    Args:
        show: Told of every change: number of the viewer (0 or 1), its window, and what happens.
        clock: Returns milliseconds since the Unix epoch.
        pause_s: Seconds between two words.

    Returns:
        The log, and whether the viewers agree with it.

    Raises:
        TimeoutError: The viewers do not catch up within a few seconds.
    """
    log = _MemoryLog(clock)
    host = Host(log, clock=clock)
    token = secrets.token_urlsafe()
    titles = ["follows", "follows"]
    host.append({"type": "turn/start", "data": {"turn": 1}})

    def find(address: Any) -> Host | None:
        return host if address == _SESSION else None

    async with Server(find, token) as server, contextlib.AsyncExitStack() as stack:
        clients: list[Client] = []

        def make_client(number: int) -> Client:
            def changed(_: Any) -> None:
                show(number, clients[number].viewer.window, titles[number])

            return Client(_SESSION, token, port=server.port, on_change=changed)

        for number in range(2):
            clients.append(make_client(number))
            stack.push_async_callback(_stop, asyncio.create_task(clients[-1].run()))
        await _until(lambda: all(len(client.viewer.window) for client in clients))

        async def speak() -> AsyncIterator[dict[str, Any]]:
            words = _TEXT.split(" ")
            for position, word in enumerate(words):
                if position == len(words) // 3:
                    titles[1] = "was cut off, follows again"
                    clients[1].break_connection()
                yield {"type": "text-delta", "index": 0, "text": word + " "}
                await asyncio.sleep(pause_s)

        await _run_step(host, speak)
        reason = {"kind": "completed"}
        host.append({"type": "turn/end", "data": {"turn": 1, "reason": reason}})
        titles[:] = ["done", "done"]
        await _until(lambda: all(_shows(client, log.events) for client in clients))
        is_equal = all(_shows(client, log.events) for client in clients)
        first, second = (client.viewer.journal.generation for client in clients)
    return DemoResult(log.encode(), is_equal, (first, second))


async def _run_step(host: Host, stream: Callable[[], Any]) -> None:
    where = {"turn": 1, "step": 1}
    host.append({"type": "step/start", "data": where})
    step = Step(
        1,
        1,
        "script",
        "demo",
        append=host.append,
        message_id=lambda: "message-1",
    )
    await run_attempt_async(host.create_agent(), stream, step)
    host.append({"type": "step/end", "data": where})


def _shows(client: Client, events: list[dict[str, Any]]) -> bool:
    return [entry.event for entry in client.viewer.window.entries] == events


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)
