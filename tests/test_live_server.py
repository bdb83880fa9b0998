"""Server and client over a real socket. Spec: 40 §8, G6."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from dsh_codec import check, kernel
from dsh_codec.errors import JsonSyntaxError, LimitExceededError
from dsh_codec.live import Host, Step, run_attempt_async
from dsh_codec.live.client import Client, RefusedError
from dsh_codec.live.server import Server
from dsh_codec.live.wire import ItemEncoder, decode_line, encode_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

TOKEN = "right"  # noqa: S105 - of the test's own server
DEADLINE_S = 30
HEADER: dict[str, Any] = {
    "version": 4,
    "id": "s",
    "createdAt": 0,
    "isSeeded": False,
    "delegationDepth": 0,
}


class MemoryLog:
    """A log in memory that can be written out as a file."""

    def __init__(self) -> None:
        self.header = HEADER
        self.events: list[dict[str, Any]] = []

    def append(self, given: dict[str, Any], /) -> dict[str, Any]:
        committed = {"type": given["type"], "seq": len(self.events), "time": 1}
        committed |= given
        self.events.append(committed)
        return committed

    def encoded(self) -> bytes:
        header = {"type": "session", **self.header}
        rows = [kernel.encode_event(event) for event in self.events]
        return b"".join(line + b"\n" for line in [kernel.dump(header), *rows])


class Session:
    """A host with a server and an agent that runs scripted steps."""

    def __init__(self, **options: Any) -> None:
        self.log = MemoryLog()
        self.options = options
        self.times = iter(range(10_000_000))
        self.renew()

    def renew(self) -> None:
        """Start as a new host process would: the log is all that is left."""
        self.host = Host(self.log, clock=lambda: next(self.times), kernel=kernel)
        self.agent = self.host.create_agent()

    def server(self, port: int = 0) -> Server:
        return Server({"s": self.host}.get, TOKEN, port=port, **self.options)

    async def run_step(self, number: int, chunks: Callable[[], Any]) -> None:
        where = {"turn": 1, "step": number}
        self.host.append({"type": "step/start", "data": where})
        step = Step(
            1,
            number,
            "p",
            "m",
            append=self.host.append,
            message_id=lambda: f"m{number}",
        )
        await run_attempt_async(self.agent, chunks, step)
        self.host.append({"type": "step/end", "data": where})


async def words(
    count: int, more: str = "", pause_s: float = 0
) -> AsyncIterator[dict[str, Any]]:
    for number in range(count):
        yield {"type": "text-delta", "index": 0, "text": f"w{number} {more}"}
        await asyncio.sleep(pause_s)


def run(main: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main

    asyncio.run(limited())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def running(client: Client) -> AsyncIterator[Client]:
    task = asyncio.create_task(client.run())
    try:
        yield client
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def talk(port: int, *lines: bytes) -> bytes:
    """Send lines and return all that comes until the host closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"".join(lines))
        with contextlib.suppress(ConnectionError):
            return await reader.read()
        return b""
    finally:
        writer.transport.abort()


async def connect(
    port: int,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(encode_line({"token": TOKEN}))
    assert decode_line(await reader.readline()) == {"welcome": 1}
    return reader, writer


def durable(client: Client) -> list[dict[str, Any]]:
    return [entry.event for entry in client.viewer.window.entries]


def test_two_viewers_one_cut_off_end_as_the_log() -> None:
    """One client loses its connection in the middle of an attempt and goes on."""

    async def main() -> None:
        session = Session()
        session.host.append({"type": "turn/start", "data": {"turn": 1}})
        async with session.server() as server:
            one, two = (
                Client("s", TOKEN, port=server.port, max_pause_s=0.05) for _ in "12"
            )
            rows: list[Any] = []
            two._on_change = lambda change: rows.extend(change.entries)
            async with running(one), running(two):
                await until(lambda: len(two.viewer.window) > 0)
                cut = asyncio.Event()

                async def stream() -> AsyncIterator[dict[str, Any]]:
                    async for chunk in words(40):
                        yield chunk
                        if chunk["text"] == "w20 ":
                            one.break_connection()
                            await until(lambda: one.viewer.journal.generation == 2)
                            cut.set()

                await session.run_step(1, stream)
                assert cut.is_set()
                data = {"turn": 1, "reason": {"kind": "completed"}}
                session.host.append({"type": "turn/end", "data": data})
                log = session.log.events
                await until(lambda: durable(one) == log)
                await until(lambda: durable(two) == log)
                assert any(not entry.is_durable for entry in rows)
        report = check(session.log.encoded(), level="full")
        assert report.is_sound, report

    run(main())


def test_killed_host_leaves_no_trace_and_followers_reopen() -> None:
    """Spec 40 §8, process restart."""

    async def main() -> None:
        session = Session()
        session.host.append({"type": "turn/start", "data": {"turn": 1}})
        waiting = asyncio.Event()

        async def stream() -> AsyncIterator[dict[str, Any]]:
            yield {"type": "text-delta", "index": 0, "text": "lost"}
            waiting.set()
            await asyncio.Event().wait()

        async with session.server() as server:
            port = server.port
            client = Client("s", TOKEN, port=port, max_pause_s=0.05)
            task = asyncio.create_task(client.run())
            await until(lambda: len(client.viewer.window) == 1)
            attempt = session.agent.framer(1, 1)
            attempt.start()
            async for chunk in stream():
                attempt.push(chunk)
                break
            await until(lambda: len(client.viewer.window) == 2)
        session.renew()
        assert len(session.log.events) == 1
        async with session.server(port):
            await until(lambda: len(client.viewer.window) == 1)
            await session.run_step(1, lambda: words(3))
            await until(lambda: durable(client) == session.log.events)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(main())


# --- who gets something ---


@pytest.mark.parametrize(
    "line",
    [
        b'{"token":"wrong"}\n',
        b'{"token":"righ"}\n',
        b'{"token":""}\n',
        b'{"token":null}\n',
        b'{"token":["right"]}\n',
        b'{"token":"\\ud800"}\n',
        b"{}\n",
        b"[]\n",
        b"right\n",
        b"\n",
        b"\xff\xfe\n",
        b'{"id":0,"follow":{"address":"s"}}\n',
        b"x" * 100_000,
        b"[" * 5_000 + b"\n",
    ],
    ids=range(14),
)
def test_without_the_token_nothing_is_sent(line: bytes) -> None:
    async def main() -> None:
        session = Session()
        async with session.server() as server:
            follow = encode_line({"id": 1, "follow": {"address": "s"}})
            assert await talk(server.port, line, follow) == b""
            await until(lambda: server.connection_count == 0)
            assert session.host.follower_count == 0

    run(main())


def test_silent_connection_is_closed() -> None:
    async def main() -> None:
        async with Session(token_timeout_s=0.01).server() as server:
            assert await talk(server.port) == b""

    run(main())


@pytest.mark.parametrize(
    "line",
    [
        b"{\n",
        b"x" * 100_000,
        b'{"id":-1,"cancel":true}\n',
        b'{"id":1}\n',
        b'{"follow":{}}\n',
    ],
    ids=range(5),
)
def test_bad_line_closes_its_connection_only(line: bytes) -> None:
    async def main() -> None:
        session = Session()
        async with session.server() as server:
            reader, writer = await connect(server.port)
            writer.write(encode_line({"id": 1, "follow": {"address": "s"}}))
            assert decode_line(await reader.readline())["item"]["cursor"] == -1
            token = encode_line({"token": TOKEN})
            answer = await talk(server.port, token, line)
            assert answer in (b"", b'{"welcome":1}\n')
            await until(lambda: server.connection_count == 1)
            session.host.append({"type": "todo/write", "data": {"todos": []}})
            assert decode_line(await reader.readline())["item"]["event"]["seq"] == 0
            writer.transport.abort()
            await until(lambda: session.host.follower_count == 0)

    run(main())


def test_refused_requests_leave_the_connection() -> None:
    async def main() -> None:
        session = Session()
        async with session.server() as server:
            reader, writer = await connect(server.port)
            requests: list[tuple[dict[str, Any], str]] = [
                ({"follow": {"address": "other"}}, "not-found"),
                ({"page": {"address": "other"}}, "not-found"),
                ({"follow": {"address": ["s"]}}, "not-found"),
                ({"page": {"address": {}}}, "not-found"),
                ({"follow": None}, "bad-request"),
                ({"page": []}, "bad-request"),
                ({"page": {"address": "s"}}, "bad-request"),
                ({"page": {"address": "s", "throughSeq": 0}}, "bad-request"),
                ({"follow": {"address": "s", "maxMessages": 0}}, "bad-request"),
            ]
            for number, (request, code) in enumerate(requests):
                writer.write(encode_line({"id": number, **request}))
                answer = decode_line(await reader.readline())
                assert (answer["id"], answer["error"]["code"]) == (number, code)
            assert session.host.follower_count == 0
            for number in range(17):
                follow = {"id": number, "follow": {"address": "s"}}
                writer.write(encode_line(follow))
            answers = [decode_line(await reader.readline()) for _ in range(17)]
            refused = [answer["id"] for answer in answers if "error" in answer]
            assert refused == [16]
            writer.write(encode_line({"id": 3, "cancel": True}))
            writer.write(encode_line({"id": 99, "cancel": True}))
            await until(lambda: session.host.follower_count == 15)
            writer.transport.abort()

    run(main())


def test_too_many_connections_are_closed() -> None:
    async def main() -> None:
        async with Session(max_connections=1).server() as server:
            _, writer = await connect(server.port)
            assert await talk(server.port, encode_line({"token": TOKEN})) == b""
            writer.transport.abort()

    run(main())


def test_server_without_token_is_refused() -> None:
    with pytest.raises(ValueError, match="token"):
        Server(lambda _: None, "")


def test_client_with_wrong_token_gives_up() -> None:
    async def main() -> None:
        async with Session().server() as server:
            client = Client("s", "wrong", port=server.port, max_pause_s=0.01)
            with pytest.raises(PermissionError):
                await client.run()

    run(main())


def test_client_of_unknown_session_is_refused() -> None:
    async def main() -> None:
        async with Session().server() as server:
            client = Client("other", TOKEN, port=server.port, max_pause_s=0.01)
            with pytest.raises(RefusedError) as caught:
                await client.run()
            assert caught.value.code == "not-found"

    run(main())


@pytest.mark.parametrize("error", [OSError("full"), ValueError("odd"), KeyError("x")])
def test_client_whose_callback_raises_is_over(error: Exception) -> None:
    """Not taken for a broken connection."""

    async def main() -> None:
        session = Session()
        async with session.server() as server:

            def refuse(_: Any) -> None:
                raise error

            client = Client("s", TOKEN, port=server.port, on_change=refuse)
            with pytest.raises(type(error)) as caught:
                await client.run()
            assert caught.value is error
            assert client.viewer.journal.generation == 1
            await until(lambda: server.connection_count == 0)

    run(main())


def test_client_loads_older_history() -> None:
    async def main() -> None:
        session = Session()
        for number in range(6):
            common = {"id": f"m{number}", "role": "user", "content": []}
            data = {**common, "source": {"kind": "user"}}
            event = {"type": "user/message", "data": data, "surfaceOp": "append"}
            session.host.append(event)
        async with session.server() as server:
            follow = {"maxMessages": 4}
            client = Client("s", TOKEN, port=server.port, follow=follow)
            async with running(client):
                await until(lambda: len(client.viewer.window) == 4)
                assert client.viewer.window.has_more
                assert client.load_older()
                await until(lambda: durable(client) == session.log.events)
                assert not client.viewer.window.has_more

    run(main())


def test_client_takes_lines_that_are_longer_than_its_buffer() -> None:
    async def main() -> None:
        session = Session()
        for size in (1 << 20, (1 << 20) - 90, 5 << 20, 10):
            event = {"type": "todo/write", "data": {"todos": ["x" * size]}}
            session.host.append(event)
        async with session.server() as server:
            client = Client("s", TOKEN, port=server.port)
            async with running(client):
                await until(lambda: durable(client) == session.log.events)
                for size in range((1 << 20) - 150, (1 << 20) + 50, 10):
                    event = {"type": "todo/write", "data": {"todos": ["y" * size]}}
                    session.host.append(event)
                    await asyncio.sleep(0.002)
                await until(lambda: client.viewer.journal.last == 23)
                assert durable(client) == session.log.events
                assert client.viewer.journal.generation == 1

    run(main())


def test_client_refuses_lines_above_its_limit() -> None:
    async def main() -> None:
        session = Session()
        event = {"type": "todo/write", "data": {"todos": ["x" * 3000]}}
        session.host.append(event)
        async with session.server() as server:
            client = Client("s", TOKEN, port=server.port, max_answer_bytes=2000)
            with pytest.raises(LimitExceededError) as caught:
                await client.run()
            assert caught.value.limit == "max_answer_bytes"
            assert len(client.viewer.window) == 0

    run(main())


def test_client_that_was_too_slow_opens_anew() -> None:
    """The host closes a follow whose queue is full; the client loses nothing."""

    async def main() -> None:
        session = Session()
        async with session.server() as server:
            client = Client("s", TOKEN, port=server.port, max_pause_s=0.01)
            async with running(client):
                await until(lambda: client.viewer.journal.is_current)
                for _ in range(5000):
                    session.host.append({"type": "todo/write", "data": {"todos": []}})
                await until(lambda: client.viewer.journal.last == 4999)
                assert durable(client) == session.log.events
                assert client.viewer.journal.generation > 1

    run(main())


async def sleeper(port: int) -> asyncio.StreamWriter:
    """Follow, and never read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    _, writer = await asyncio.open_connection(sock=sock)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # of socket transports
    writer.write(encode_line({"token": TOKEN}))
    request = {"address": "s", "assistantStream": True}
    writer.write(encode_line({"id": 0, "follow": request}))
    return writer


def test_client_that_never_reads_is_dropped_in_time() -> None:
    """`write_timeout_s`: a sleeper does not keep its connection for ever."""

    async def main() -> None:
        session = Session(write_timeout_s=0.05)
        async with session.server() as server:
            writer = await sleeper(server.port)
            await until(lambda: session.host.follower_count == 1)
            while session.host.follower_count:
                event = {"type": "todo/write", "data": {"todos": ["x" * 5000]}}
                session.host.append(event)
                await asyncio.sleep(0)
            await until(lambda: server.connection_count == 0)
            writer.transport.abort()

    run(main())


async def crowd(session: Session, server: Server, idle: int, slow: int) -> None:
    """A fast follower gets everything while others idle, or follow and never read."""
    writers = [(await connect(server.port))[1] for _ in range(idle)]
    writers += [await sleeper(server.port) for _ in range(slow)]
    await until(lambda: session.host.follower_count == slow)
    client = Client("s", TOKEN, port=server.port)
    async with running(client):
        await until(lambda: client.viewer.journal.is_current)
        session.host.append({"type": "turn/start", "data": {"turn": 1}})
        # No faster than a client that reads can follow.
        await session.run_step(1, lambda: words(1000, "x" * 2000, pause_s=0.001))
        await until(lambda: durable(client) == session.log.events)
        assert client.viewer.journal.generation == 1
        # Their queues were full: the host holds nothing for them any more.
        assert session.host.follower_count == 1
        assert server.connection_count == idle + slow + 1
    for writer in writers:
        writer.transport.abort()


@pytest.mark.parametrize(
    ("idle", "slow"), [(20, 5), pytest.param(1000, 100, marks=pytest.mark.slow)]
)
def test_crowd_does_not_stop_a_fast_follower(idle: int, slow: int) -> None:
    async def main() -> None:
        session = Session()
        session.host = Host(
            session.log, clock=lambda: next(session.times), max_queue_items=500
        )
        session.agent = session.host.create_agent()
        async with session.server() as server:
            await crowd(session, server, idle, slow)

    run(main())


# --- lines ---


def test_item_encoder_writes_what_json_would() -> None:
    encoder = ItemEncoder()
    frame = {"type": "end", "attemptId": "s:1", "revision": 2, "index": 0}
    baseline = {"revision": 3}
    items: list[Any] = [
        {"type": "event", "event": {"type": "todo/write", "seq": 0, "data": "\n"}},
        {"type": "assistant-stream", "frame": frame},
        {"type": "snapshot", "cursor": -1, "records": []},
        {"type": "snapshot", "cursor": 2, "assistantStream": baseline},
        {"type": "snapshot", "assistantStream": baseline, "hasMore": False},
        {"type": "snapshot", "cursor": 2, "assistantStream": {"revision": 4}},
    ]
    for _ in range(2):
        lines = encoder.encode(7, items).splitlines(keepends=True)
        assert [json.loads(line) for line in lines] == [
            {"id": 7, "item": item} for item in items
        ]
        assert all(encoder.encode(0, [item]).count(b"\n") == 1 for item in items)


def test_item_encoder_never_confuses_values() -> None:
    encoder = ItemEncoder()
    for number in range(1000):
        item: Any = {"type": "event", "event": {"seq": number}}
        line = encoder.encode(0, [item])
        assert json.loads(line)["item"]["event"] == {"seq": number}
    assert len(encoder._texts) <= 256


def test_item_encoder_shares_the_lines_of_one_place() -> None:
    encoder = ItemEncoder()
    one: Any = {"type": "event", "event": {"seq": 1}}
    equal: Any = {"type": "event", "event": {"seq": True}}
    lines = encoder.encode(3, [one, one])
    assert encoder.encode(3, [one, one]) is lines
    assert encoder.encode(3, [one]) != lines
    assert (
        encoder.encode(4, [one])
        == b'{"id":4,"item":{"type":"event","event":{"seq":1}}}\n'
    )
    assert encoder.encode(3, [one, one]) == lines
    # Equal to Python, and not the same to JSON.
    assert one == equal
    found = encoder.encode(3, [one, equal]).splitlines()
    assert [line.endswith(b"true}}}") for line in found] == [False, True]


def test_item_encoder_keeps_few_long_lines() -> None:
    encoder = ItemEncoder()
    sizes = [10, 3 << 20, 4 << 20, 9 << 20, 10, 3 << 20, 20]
    for number, size in enumerate(sizes):
        item: Any = {"type": "event", "event": {"seq": number, "data": "x" * size}}
        line = encoder.encode(0, [item])
        assert encoder.encode(0, [item]) == line
        kept = sum(len(text) for _, text in encoder._texts.values())
        assert kept == encoder._cached_bytes
        assert kept <= max(8 << 20, size + 100)


@pytest.mark.parametrize("line", [b"", b"{}", b"[]\n", b"1\n", b"{\n"])
def test_decode_line_refuses(line: bytes) -> None:
    with pytest.raises(JsonSyntaxError):
        decode_line(line)
