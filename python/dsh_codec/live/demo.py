"""A demonstration: a scripted model streams, two viewers follow, one is cut off and comes back.

Everything is real but the model: a log on disk, a host, a server on a loopback socket, two clients.
Nothing is printed here; the command line shows what is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsh_codec.check import check
from dsh_codec.live.attempt import Step, run_attempt_async
from dsh_codec.live.client import Client
from dsh_codec.live.host import Host
from dsh_codec.live.server import Server
from dsh_codec.live.writer_log import AsyncWriterLog, now_ms
from dsh_codec.log import open as open_log

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Iterator

    from dsh_codec.live.window import Change, Window

    Chunk = dict[str, Any]

__all__ = ["Demo", "DemoResult", "TranscriptLine", "transcript"]

_SESSION: Final = "live-demo"
_PAUSE_S: Final = 0.04
_CATCH_UP_S: Final = 30.0

_QUESTION: Final = "Why does the log not keep every word as it comes?"
_THOUGHT: Final = (
    "The user asks about frames and settlements. I should look at the file that says how an "
    "attempt is stored before I answer. "
)
_PREFACE: Final = "Let me look at how an attempt is stored. "
_ANSWER: Final = (
    "While I speak, every word goes out as a frame: to whoever follows, and to no disk. When I am "
    "done, one settlement goes into the log, with all words and the times at which they came. Who "
    "was cut off in between loses nothing: a new opening brings the page of the log and what has "
    "been said so far, and the next frames go on from there. And when the step ends, the live rows "
    "make room for the message that everybody will read tomorrow. "
)
_REASONS: Final = ("overloaded", "the connection was reset", "a time-out upstream")


class DemoResult(NamedTuple):
    """How a demonstration ended.

    Attributes:
        path: The log file.
        event_count: Events in it.
        status: Status of its check at level `full`.
        is_equal: For each viewer, whether it shows exactly the events of the log.
        openings: For each viewer, the follows that it opened.
        live_rows: For each viewer, the chunks that it was shown while they were live.
    """

    path: str
    event_count: int
    status: str
    is_equal: tuple[bool, bool]
    openings: tuple[int, int]
    live_rows: tuple[int, int]

    @property
    def has_agreed(self) -> bool:
        """Whether the log is sound, and both show it, the one that was cut off as well."""
        return self.status == "sound" and all(self.is_equal) and self.openings == (1, 2)


def _require_speed(value: object) -> None:
    if not isinstance(value, int | float):
        message = f"speed is a number, not {type(value).__name__}"
        raise TypeError(message)
    if not 0 < value < inf:
        message = f"speed has to be a finite number above 0, not {value}"
        raise ValueError(message)


class TranscriptLine(NamedTuple):
    """One paragraph of what a window shows.

    Attributes:
        kind: `user`, `reasoning`, `text`, `tool`, `failed` or `note`.
        text: The paragraph.
        is_live: Whether it is made of frames, and no event stands for it yet.
    """

    kind: str
    text: str
    is_live: bool = False


def transcript(window: Window) -> Iterator[TranscriptLine]:
    """Yield what a view shows of a window: the events, then the rows that none stands for.

    Note:
        Rows of an attempt whose message is there are passed over: both would show the same words.
        Spec: 40 §6.6.
    """
    rows: list[dict[str, Any]] = []
    told: set[tuple[int, int]] = set()
    for entry in window.entries:
        event = entry.event
        if not entry.is_durable:
            rows.append(event["data"])
            continue
        if event["type"] == "assistant/message":
            told.add((event["data"]["turn"], event["data"]["step"]))
        yield from _lines_of(event)
    kind = ""
    parts: list[str] = []
    for data in rows:
        if (data["turn"], data["step"]) in told:
            continue
        said = _said(data["chunk"])
        if said is not None and said[0] != kind and parts:
            yield TranscriptLine(kind, "".join(parts), is_live=True)
            parts = []
        if said is not None:
            kind = said[0]
            parts.append(said[1])
    if parts:
        yield TranscriptLine(kind, "".join(parts), is_live=True)


def _said(chunk: Chunk) -> tuple[str, str] | None:
    if chunk["type"] == "text-delta":
        return "text", chunk["text"]
    if chunk["type"] == "reasoning-delta":
        return "reasoning", chunk["text"]
    if chunk["type"] == "tool-call-delta":
        return "tool", chunk["argumentsDelta"]
    return None


def _lines_of(event: dict[str, Any]) -> Iterator[TranscriptLine]:
    kind, data = event["type"], event["data"]
    if kind in ("user/message", "assistant/message"):
        message = data if kind == "user/message" else data["message"]
        for block in message["content"]:
            if block["type"] == "tool-call":
                yield TranscriptLine("tool", f"{block['name']} {block['arguments']}")
            else:
                said = "user" if kind == "user/message" else block["type"]
                yield TranscriptLine(said, block["text"])
    elif kind == "tool/result":
        text = "".join(block["text"] for block in data["message"]["content"])
        yield TranscriptLine("tool", f"= {text}")
    elif kind == "assistant/attempt":
        yield TranscriptLine("failed", "an attempt failed, and is tried again")
    elif kind == "turn/end":
        yield TranscriptLine("note", f"the turn is {data['reason']['kind']}")


class Demo:
    """One demonstration.

    Attributes:
        statuses: What each of the two viewers is doing.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        seed: int = 0,
        speed: float = 1.0,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """Prepare a demonstration.

        Args:
            root: Sessions root for the log, which is left there.
            seed: Seed of the script: how texts are cut into chunks, and where the line is cut.
            speed: How many times faster than a model speaks, finite and above 0.
            clock: Returns milliseconds since the Unix epoch.

        Raises:
            TypeError: `speed` is no number.
            ValueError: `speed` is not finite or not above 0.
        """
        _require_speed(speed)
        self.statuses = ["connects", "connects"]
        self._root = root
        self._chance = random.Random(seed)  # noqa: S311 - a script, no secret
        self._pause_s = _PAUSE_S / speed
        self._clock = clock
        self._clients: list[Client] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._live_rows = [0, 0]

    def window(self, number: int) -> Window:
        """Return the window of viewer 0 or 1."""
        return self._clients[number].viewer.window

    async def run(self, on_change: Callable[[int, Change | None], None]) -> DemoResult:
        """Run it once.

        Args:
            on_change: Told of every change of a viewer's window, or of its status (None).

        Raises:
            TimeoutError: The viewers do not catch up within half a minute.
            Exception: What `on_change` raised.
            DshCodecError, OSError: The log cannot be written.
        """
        header = {"id": _SESSION, "createdAt": self._clock()}
        token = secrets.token_urlsafe()
        async with (
            await AsyncWriterLog.create(self._root, header, clock=self._clock) as log,
            contextlib.AsyncExitStack() as stack,
        ):
            host = Host(log, clock=self._clock)
            find = {_SESSION: host}.get
            server = await stack.enter_async_context(Server(find, token))
            for number in range(2):
                client = self._make_client(number, token, server.port, on_change)
                self._clients.append(client)
                self._tasks.append(asyncio.create_task(client.run()))
                stack.push_async_callback(_stop, self._tasks[-1])
            await self._until(lambda: all(map(_is_current, self._clients)))
            for number in range(2):
                self._tell(number, "follows", on_change)
            await self._talk(host, on_change)
            with contextlib.suppress(TimeoutError):
                await self._until(lambda: all(self._equal_to(list(log.events))))
        path = log.writer.writer.path
        with open_log(path) as stored:
            events = [event.envelope for event in stored]
        first, second = (client.viewer.journal.generation for client in self._clients)
        return DemoResult(
            path,
            len(events),
            check(path, level="full").status,
            self._equal_to(events),
            (first, second),
            (self._live_rows[0], self._live_rows[1]),
        )

    def _make_client(
        self,
        number: int,
        token: str,
        port: int,
        on_change: Callable[[int, Change | None], None],
    ) -> Client:
        def changed(change: Change) -> None:
            self._live_rows[number] += sum(not e.is_durable for e in change.entries)
            on_change(number, change)

        return Client(_SESSION, token, port=port, on_change=changed)

    def _tell(
        self, number: int, status: str, on_change: Callable[[int, Change | None], None]
    ) -> None:
        self.statuses[number] = status
        on_change(number, None)

    def _equal_to(self, events: list[dict[str, Any]]) -> tuple[bool, bool]:
        first, second = (
            [entry.event for entry in client.viewer.window.entries] == events
            for client in self._clients
        )
        return first, second

    async def _until(self, condition: Callable[[], bool]) -> None:
        deadline = asyncio.get_running_loop().time() + _CATCH_UP_S
        while not condition():
            self._require_clients()
            if asyncio.get_running_loop().time() > deadline:
                message = f"a viewer did not catch up within {_CATCH_UP_S:.0f} s"
                raise TimeoutError(message)
            await asyncio.sleep(0.005)

    def _require_clients(self) -> None:
        """Raise what ended a client: nothing but what `on_change` raised does."""
        for task in self._tasks:
            if task.done():
                task.result()

    # --- the script ---

    async def _talk(
        self, host: Host, on_change: Callable[[int, Change | None], None]
    ) -> None:
        """One turn of two steps: a failed attempt, a tool call; then the answer."""
        agent = host.create_agent()

        async def append(kind: str, data: dict[str, Any], **members: Any) -> int:
            return await host.append_async({"type": kind, "data": data, **members})

        async def attempt(step: int, *streams: list[Chunk], is_cut: bool) -> Any:
            left = iter(streams)
            return await run_attempt_async(
                agent,
                lambda: self._speak(next(left), on_change, is_cut=is_cut),
                Step(
                    1,
                    step,
                    "script",
                    "demo",
                    append=host.append_async,
                    message_id=lambda: f"message-{step}",
                ),
                retry=lambda _: True,
            )

        await append("turn/start", {"turn": 1})
        where = {"turn": 1, "step": 1}
        await append("step/start", where)
        asked = {
            "id": "question-1",
            "role": "user",
            "content": [{"type": "text", "text": _QUESTION}],
            "source": {"kind": "user"},
        }
        await append("user/message", asked, surfaceOp="append")
        call = {"name": "read_file", "arguments": '{"path": "40-live-frames.md"}'}
        await attempt(1, self._failing(), self._calling(**call), is_cut=False)
        called = await append("tool/call", {**where, "callId": "call-1", **call})
        result = {
            "id": "result-1",
            "role": "tool",
            "toolCallId": "call-1",
            "content": [{"type": "text", "text": "Frames are presentation only."}],
            "source": {"kind": "tool", "callId": "call-1"},
        }
        await append(
            "tool/result",
            {**where, "message": result},
            sourceEventSeqs=[called],
            surfaceOp="append",
        )
        await append("step/end", where)
        where = {"turn": 1, "step": 2}
        await append("step/start", where)
        await attempt(2, self._answering(), is_cut=True)
        await append("step/end", where)
        await append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})

    def _failing(self) -> list[Chunk]:
        failure = {"message": self._chance.choice(_REASONS), "code": "UPSTREAM"}
        return [
            *self._deltas("text", 0, _PREFACE[: self._chance.randint(8, 30)]),
            _finish("error", failure=failure),
        ]

    def _calling(self, name: str, arguments: str) -> list[Chunk]:
        call = {"type": "tool-call-delta", "index": 2, "id": "call-1", "name": name}
        return [
            *self._deltas("reasoning", 0, _THOUGHT),
            *self._deltas("text", 1, _PREFACE),
            *({**call, "argumentsDelta": part} for part in self._parts(arguments)),
            _usage(120, 60),
            _finish("tool-calls"),
        ]

    def _answering(self) -> list[Chunk]:
        return [*self._deltas("text", 0, _ANSWER), _usage(260, 110), _finish("stop")]

    def _deltas(self, kind: str, index: int, text: str) -> Iterator[Chunk]:
        for part in self._parts(text):
            yield {"type": f"{kind}-delta", "index": index, "text": part}

    def _parts(self, text: str) -> Iterator[str]:
        """Cut a text as a model would: into one to nine characters at a time."""
        while text:
            count = self._chance.randint(1, 9)
            yield text[:count]
            text = text[count:]

    async def _speak(
        self,
        chunks: list[Chunk],
        on_change: Callable[[int, Change | None], None],
        *,
        is_cut: bool,
    ) -> AsyncIterator[Chunk]:
        """Yield the chunks at their pace; the second viewer's line is cut among them."""
        third = len(chunks) // 3
        cut = self._chance.randint(1, third) if is_cut else None
        for place, chunk in enumerate(chunks):
            if place == cut:
                said = f"was cut off after {place} of {len(chunks)} chunks"
                self._tell(1, said, on_change)
                self._clients[1].break_connection()
            if is_cut and place == 2 * third:
                # Whatever the speed: it comes back while the attempt still runs.
                await self._until(
                    lambda: self._clients[1].viewer.journal.generation == 2
                )
                await self._until(lambda: _is_current(self._clients[1]))
                self._tell(1, "was cut off, and follows again", on_change)
            yield chunk
            await asyncio.sleep(self._pause_s)
            self._require_clients()


def _finish(kind: str, **members: Any) -> Chunk:
    return {"type": "finish", "reason": {"kind": kind, **members}}


def _usage(given: int, made: int) -> Chunk:
    usage = {"inputTokens": given, "outputTokens": made, "totalTokens": given + made}
    return {"type": "usage", "usage": usage}


def _is_current(client: Client) -> bool:
    return client.viewer.journal.is_current


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
