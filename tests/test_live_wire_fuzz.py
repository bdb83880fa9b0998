"""Random lines from clients to a host, and from a host to clients. `DSH_LIVE_SEED` runs one seed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from typing import TYPE_CHECKING, Any, Final

from dsh_codec.errors import DshCodecError
from dsh_codec.live import Client, Host, RefusedError, Server
from dsh_codec.live.wire import encode_line

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import pytest

RUNS: Final = int(os.environ.get("DSH_LIVE_WIRE_RUNS", "60"))
TOKEN: Final = "right"  # noqa: S105 - of the test's own server
DEADLINE_S: Final = 120
HEADER: Final = {"version": 4, "id": "s", "createdAt": 0}


class MemoryLog:
    def __init__(self) -> None:
        self.header: dict[str, Any] = dict(HEADER)
        self.events: list[dict[str, Any]] = []

    def append(self, given: dict[str, Any], /) -> dict[str, Any]:
        committed = {"seq": len(self.events), "time": 1, **given}
        self.events.append(committed)
        return committed


def seeds() -> list[int]:
    given = os.environ.get("DSH_LIVE_SEED")
    return list(range(RUNS)) if given is None else [int(given)]


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run it, and let nothing that a task raised go unseen."""
    seen: list[Any] = []

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: seen.append(context))
        async with asyncio.timeout(DEADLINE_S):
            await main

    asyncio.run(watched())
    assert seen == []


def value_of(chance: random.Random, depth: int = 0) -> Any:
    """A JSON value, more often than not of a kind that the protocol knows."""
    draw = chance.random()
    if draw < 0.3:
        return chance.choice([0, 1, -1, 2, 7, 50, 1.0, -0.0, 0.5, 1e300, 2**53, 2**70])
    if draw < 0.5:
        return chance.choice(["", "s", "start", "chunk", "end", "event", "\ud800", "é"])
    if draw < 0.6:
        return chance.choice([None, True, False])
    if draw < 0.8 or depth > 3:
        return [value_of(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    keys = ["id", "address", "maxMessages", "turnWindow", "type", "seq", "revision"]
    return {
        chance.choice(keys): value_of(chance, depth + 1)
        for _ in range(chance.randint(0, 3))
    }


def spoil(chance: random.Random, line: bytes) -> bytes:
    """Damage a line, or leave it."""
    draw = chance.random()
    if draw < 0.7:
        return line
    place = chance.randrange(len(line))
    if draw < 0.8:
        return line[:place] + bytes([chance.randrange(256)]) + line[place + 1 :]
    if draw < 0.9:
        return line[:place] + line[place + chance.randint(1, 5) :]
    return line[:place] + line


def request_of(chance: random.Random) -> bytes:
    number: Any = chance.choice([0, 1, 2, 3, 17, -1, "1", None, 1.0, 2**60])
    request: dict[str, Any] = {"address": "s"}
    for key in ("assistantStream", "maxMessages", "turnWindow", "throughSeq"):
        if chance.random() < 0.3:
            request[key] = value_of(chance)
    if chance.random() < 0.1:
        request["address"] = value_of(chance)
    if chance.random() < 0.3:
        request["turnWindow"] = {"minMessages": value_of(chance), "minTurns": 1}
    kind = chance.choice(["follow", "follow", "page", "cancel", "other"])
    content: Any = True if kind == "cancel" else request
    if chance.random() < 0.1:
        content = value_of(chance)
    return json.dumps({"id": number, kind: content}).encode() + b"\n"


async def attack(port: int, chance: random.Random) -> None:
    """One connection that says anything, and reads or does not."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        token = encode_line({"token": TOKEN if chance.random() < 0.9 else "wrong"})
        writer.write(spoil(chance, token))
        for _ in range(chance.randint(0, 12)):
            if writer.transport.is_closing():
                break
            writer.write(spoil(chance, request_of(chance)))
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        if chance.random() < 0.5 and writer.can_write_eof():
            with contextlib.suppress(OSError):
                writer.write_eof()
        await asyncio.sleep(0.002)
    except ConnectionError:
        pass  # The host has closed it.
    finally:
        writer.transport.abort()


def test_host_survives_random_lines(caplog: pytest.LogCaptureFixture) -> None:
    """A client that behaves gets everything, whatever the others say."""

    async def main() -> None:
        host = Host(MemoryLog(), clock=lambda: 5)
        async with Server({"s": host}.get, TOKEN) as server:
            client = Client("s", TOKEN, port=server.port)
            task = asyncio.create_task(client.run())
            agent = host.create_agent()
            for seed in seeds():
                chance = random.Random(seed)  # noqa: S311 - repeatable
                attacks = [attack(server.port, chance) for _ in range(4)]
                framer = agent.framer(1, 1)
                framer.start()
                framer.push({"type": "text-delta", "index": 0, "text": "a"})
                host.append({"type": "todo/write", "data": {"todos": []}})
                await asyncio.gather(*attacks)
                framer.abandon()
            while server.connection_count > 1:
                await asyncio.sleep(0.001)
            assert host.follower_count == 1
            while client.viewer.journal.last != host.cursor:
                await asyncio.sleep(0.001)
            assert client.viewer.journal.generation == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(main())
    assert caplog.records == []


def answer_of(chance: random.Random, state: dict[str, int]) -> bytes:
    """A line of a host, mostly one that fits."""
    number = 2 * state["generation"]
    event = {"type": "todo/write", "seq": state["seq"], "time": 1, "data": {}}
    draw = chance.random()
    item: Any
    if draw < 0.3:
        state["seq"] += 1
        item = {"type": "event", "event": event}
    elif draw < 0.8:
        state["revision"] += 1
        common = {"attemptId": "s:1", "revision": state["revision"]}
        item = {"type": "assistant-stream"}
        item["frame"] = chance.choice(
            [
                {
                    "type": "start",
                    **common,
                    "turn": 1,
                    "step": 1,
                    "startedAfterSeq": chance.randint(-1, 3),
                },
                {
                    "type": "chunk",
                    **common,
                    "index": chance.randint(0, 2),
                    "time": 5,
                    "chunk": value_of(chance),
                },
                {
                    "type": "end",
                    **common,
                    "index": chance.randint(0, 2),
                    "outcome": {"kind": "abandoned"},
                },
            ]
        )
    elif draw < 0.9:
        item = value_of(chance)
    else:
        return json.dumps({"id": number, "closed": "slow-consumer"}).encode() + b"\n"
    if isinstance(item, dict) and chance.random() < 0.1 and item:
        item[chance.choice(list(item))] = value_of(chance)
    return json.dumps({"id": number, "item": item}).encode() + b"\n"


def snapshot_of(chance: random.Random, state: dict[str, int]) -> bytes:
    seqs = range(max(state["seq"] - 3, 0), state["seq"])
    item: dict[str, Any] = {
        "type": "snapshot",
        "header": HEADER,
        "cursor": state["seq"] - 1,
        "records": [
            {
                "type": "event",
                "event": {"type": "todo/write", "seq": n, "time": 1, "data": {}},
            }
            for n in seqs
        ],
        "hasMore": False,
        "projections": {"asOfSeq": state["seq"] - 1, "values": {}},
        "assistantStream": {"revision": state["revision"]},
    }
    if chance.random() < 0.2:
        active = {"attemptId": "s:1", "startedAfterSeq": 0, "turn": 1, "step": 1}
        active |= {"nextIndex": 1, "stream": value_of(chance)}
        item["assistantStream"]["activeAttempt"] = active
    if chance.random() < 0.2:
        item[chance.choice(list(item))] = value_of(chance)
    return json.dumps({"id": 2 * state["generation"], "item": item}).encode() + b"\n"


async def mock(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    chance: random.Random,
) -> None:
    """Be a host that answers anything."""
    try:
        await reader.readline()
        writer.write(b'{"welcome":1}\n')
        state = {"generation": 0, "seq": chance.randint(0, 5), "revision": 0}
        for _ in range(6):
            asked = json.loads(await reader.readline() or b"{}")
            if "page" in asked:
                page: Any = {"records": [], "hasMore": False}
                if chance.random() < 0.5:
                    page = value_of(chance)
                writer.write(encode_line({"id": asked["id"], "page": page}))
            if "follow" not in asked:
                continue
            state["generation"] = asked["id"] // 2
            state["revision"] = 0
            writer.write(spoil(chance, snapshot_of(chance, state)))
            for _ in range(chance.randint(0, 30)):
                line = answer_of(chance, state)
                writer.write(spoil(chance, line) if chance.random() < 0.2 else line)
            await writer.drain()
    except (ConnectionError, json.JSONDecodeError, asyncio.CancelledError):
        pass  # The client is gone, or this run is over.
    finally:
        writer.transport.abort()


def test_client_survives_any_host() -> None:
    """It ends with an error of its own, or is still trying; nothing else is raised."""

    async def main() -> None:
        for seed in seeds():
            chance = random.Random(f"client {seed}")  # noqa: S311 - repeatable

            async def serve(
                reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter,
                chance: random.Random = chance,
            ) -> None:
                await mock(reader, writer, chance)

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            client = Client("s", TOKEN, port=port, max_pause_s=0.01)
            try:
                async with asyncio.timeout(0.15):
                    await client.run()
            except (DshCodecError, RefusedError, PermissionError, TimeoutError):
                pass  # The last is ours: it was still trying.
            except BaseException as error:
                error.add_note(f"rerun with DSH_LIVE_SEED={seed}")
                raise
            server.close()
            shown = [e.seq for e in client.viewer.window.entries if e.is_durable]
            assert shown == sorted(set(shown))
            await asyncio.sleep(0)

    run(main())
