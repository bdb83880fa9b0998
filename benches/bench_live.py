"""Live frames: the producer's push, a follower's opening, delivery to many, memory of the idle.

Delivery and memory are measured in processes of their own. On a machine that others use as well,
the times of delivery are those of its scheduler: the CPU time beside them is not.
"""

from __future__ import annotations

import copy
import os
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compare import Contender, Line, run_child
from dsh_codec import _native, _pure
from dsh_codec.live import AgentLifecycle, Baseline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from compare import Comparison

CHUNKS = 2_000
BASELINE_CHUNKS = 50_000
FOLLOWERS = 100
CHUNKS_PER_SECOND = 1_000
IDLE = 1_000
KIB = 1 << 10
ATTEMPT = "s:1"


def answer(count: int) -> list[dict[str, Any]]:
    """Chunks of an answer: some thinking, then words, a tool call, usage and the end."""
    thought, said = count // 4, count - count // 4 - count // 10 - 2
    reasoning = {"type": "reasoning-delta", "index": 0}
    words = {"type": "text-delta", "index": 1}
    call = {"type": "tool-call-delta", "index": 2, "id": "c1", "name": "read"}
    chunks: list[dict[str, Any]] = []
    chunks += [reasoning | {"text": f"thought {n} "} for n in range(thought)]
    chunks += [words | {"text": f"word {n} "} for n in range(said)]
    chunks += [call | {"argumentsDelta": f'"{n}",'} for n in range(count // 10)]
    usage = {"inputTokens": 1_000, "outputTokens": count}
    chunks.append({"type": "usage", "usage": usage})
    chunks.append({"type": "finish", "reason": {"kind": "tool-calls"}})
    return chunks


class PlainFramer:
    """What `Framer.push` does, in plain Python: packed, assembled, framed, and detached.

    It checks less: the type of a chunk, but neither its members nor their values.
    """

    def __init__(self, emit: Callable[[Any], None], clock: Callable[[], int]) -> None:
        self.emit = emit
        self.clock = clock
        self.records: list[dict[str, Any]] = []
        self.parts: dict[int, dict[str, Any]] = {}
        self.last_time = 0
        self.usage = self.finish = None
        self.count = 0
        self.revision = 1

    def push(self, given: dict[str, Any]) -> None:
        time = self.clock()
        chunk = self.detach(given)
        kind = chunk["type"]
        if kind in ("text-delta", "reasoning-delta"):
            self.pack(kind[:-5] + "chunks", "texts", time, chunk, chunk["text"])
            self.assemble(kind[:-6], chunk, chunk["text"])
        elif kind == "tool-call-delta":
            delta = chunk["argumentsDelta"]
            self.pack("tool-call-chunks", "args", time, chunk, delta)
            self.assemble("tool-call", chunk, delta)
        elif kind in ("block-start", "block-end", "usage", "finish"):
            self.records.append({"type": "chunk", "time": time, "chunk": chunk})
            if kind == "usage":
                self.usage = chunk["usage"]
            elif kind == "finish":
                self.finish = chunk["reason"]
        else:
            raise ValueError(kind)
        self.last_time = time
        self.revision += 1
        frame = {
            "type": "chunk",
            "attemptId": ATTEMPT,
            "revision": self.revision,
            "index": self.count,
            "time": time,
            "chunk": chunk,
        }
        self.count += 1
        self.emit(frame)

    def detach(self, chunk: dict[str, Any]) -> dict[str, Any]:
        return copy.deepcopy(chunk)

    def pack(
        self, kind: str, member: str, time: int, chunk: dict[str, Any], value: str
    ) -> None:
        last = self.records[-1] if self.records else None
        if (
            last is not None
            and last["type"] == kind
            and last["index"] == chunk["index"]
            and last.get("id") == chunk.get("id")
            and last.get("name") == chunk.get("name")
        ):
            last["dt"].append(time - self.last_time)
            last[member].append(value)
            return
        record = {"type": kind, "time0": time, "index": chunk["index"], "dt": []}
        for key in ("id", "name"):
            if key in chunk:
                record[key] = chunk[key]
        record[member] = [value]
        self.records.append(record)

    def assemble(self, kind: str, chunk: dict[str, Any], value: str) -> None:
        part = self.parts.get(chunk["index"])
        if part is None:
            part = self.parts[chunk["index"]] = {"type": kind, "text": []}
        if kind == "tool-call":
            part["id"] = chunk["id"]
            part["name"] = chunk.get("name") or part.get("name")
        part["text"].append(value)


class ShallowFramer(PlainFramer):
    """A producer that trusts its chunks to be flat."""

    def detach(self, chunk: dict[str, Any]) -> dict[str, Any]:
        return dict(chunk)


def clock_of() -> Callable[[], int]:
    times = iter(range(1_000, 1 << 60))
    return lambda: next(times)


def push_all(kernel: Any, chunks: list[dict[str, Any]]) -> Any:
    """Return what a producer keeps and the last frame."""
    frames: deque[Any] = deque(maxlen=1)
    agent = AgentLifecycle("s", emit=frames.append, clock=clock_of(), kernel=kernel)
    framer = agent.framer(1, 1)
    framer.start()
    for chunk in chunks:
        framer.push(chunk)
    return framer.records(), frames[0], framer.assembler.usage()


def push_plain(kind: type[PlainFramer], chunks: list[dict[str, Any]]) -> Any:
    frames: deque[Any] = deque(maxlen=1)
    framer = kind(frames.append, clock_of())
    for chunk in chunks:
        framer.push(chunk)
    return framer.records, frames[0], framer.usage


def expected_push(chunks: list[dict[str, Any]]) -> Any:
    timed = list(enumerate(chunks, 1_000))
    last = {
        "type": "chunk",
        "attemptId": ATTEMPT,
        "revision": len(chunks) + 1,
        "index": len(chunks) - 1,
        "time": 999 + len(chunks),
        "chunk": chunks[-1],
    }
    return _pure.pack(timed), last, chunks[-2]["usage"]


def bench_push(compare: Comparison) -> None:
    """At least twice as fast as plain Python."""
    chunks = answer(100 if compare.small else CHUNKS)
    expected = expected_push(chunks)
    compare(
        f"live: push {len(chunks):,} chunks",
        [
            Contender("pure kernel", lambda: push_all(_pure, chunks), expected, 2),
            Contender(
                "plain Python, unchecked",
                lambda: push_plain(PlainFramer, chunks),
                expected,
                2,
            ),
            # For scale: trusts even the shape of what it is given.
            Contender(
                "plain Python, unchecked, not detached",
                lambda: push_plain(ShallowFramer, chunks),
                expected,
            ),
        ],
        Contender("native", lambda: push_all(_native, chunks), expected),
        values="dropped",
    )


def bench_baseline(compare: Comparison) -> None:
    """Opening again costs the same for any length: it is the same object."""

    def filled(count: int) -> Baseline:
        baseline = Baseline(kernel=_native)
        agent = AgentLifecycle(
            "s", emit=lambda frame: baseline.accept(frame, 3), clock=clock_of()
        )
        framer = agent.framer(1, 1)
        framer.start()
        for chunk in answer(count):
            framer.push(chunk)
        return baseline

    long = filled(500 if compare.small else BASELINE_CHUNKS)
    short = filled(50)
    contenders = []
    for baseline in (short, long):
        first = baseline.snapshot()
        assert first["activeAttempt"]["nextIndex"] in (50, 500, BASELINE_CHUNKS)

        def open_again(baseline: Baseline = baseline, first: Any = first) -> bool:
            return baseline.snapshot() is first

        contenders.append(Contender("open again", open_again, expected=True))
    samples = compare.measure("live: baseline", contenders)
    compare.line(
        Line(
            f"live: baseline of {BASELINE_CHUNKS:,} chunks, opened again",
            "one of 50 chunks",
            samples[1].median / samples[0].median,
            2,
            unit="x its time",
            better="less",
            detail=f"{samples[1].median * 1e9:,.0f} ns, the same object",
        )
    )


# --- many followers ---

SESSION = """
import asyncio, os, re, sys, time
from array import array
from dsh_codec.live import Host, Server

class Log:
    header = {"version": 4, "id": "s", "createdAt": 0, "isSeeded": False,
              "delegationDepth": 0}
    events = ()

def memory():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line[:5] == "VmRSS")

REQUEST = (b'{"token":"t"}\\n'
           b'{"id":0,"follow":{"address":"s","assistantStream":true}}\\n')
"""

FAN_OUT = (
    SESSION
    + """
followers, rate, count = map(int, sys.argv[1:])
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
TIME = re.compile(rb'"time":(\\d+)')

def now():
    return time.monotonic_ns() // 1000

class Reader(asyncio.Protocol):
    def __init__(self):
        self.rest, self.delays = b"", array("q")  # no work for the collector

    def connection_made(self, transport):
        transport.write(REQUEST)

    def data_received(self, data):
        arrived = now()
        data = self.rest + data
        cut = data.rfind(b"\\n") + 1
        self.rest = data[cut:]
        self.delays.extend(arrived - int(due) for due in TIME.findall(data, 0, cut))

async def main():
    due = 0
    host = Host(Log(), clock=lambda: due)
    loop = asyncio.get_running_loop()
    async with Server(lambda address: host, "t") as server:
        readers = [
            (await loop.create_connection(Reader, "127.0.0.1", server.port))[1]
            for _ in range(followers)
        ]
        while host.follower_count < followers:
            await asyncio.sleep(0.01)
        framer = host.create_agent().framer(1, 1)
        framer.start()
        start, cpu = now(), time.process_time()
        for number in range(count):
            # The delay counts from when the chunk was due, however late we are.
            due = start + number * 1_000_000 // rate
            await asyncio.sleep(max((due - now()) / 1e6, 0))
            framer.push({"type": "text-delta", "index": 0, "text": f"word {number} "})
        taken = (now() - start) / 1e6
        cpu = time.process_time() - cpu
        async with asyncio.timeout(30):
            while any(len(reader.delays) < count for reader in readers):
                await asyncio.sleep(0.01)
        delays = sorted(delay for reader in readers for delay in reader.delays)
        p50, p99 = (delays[len(delays) * part // 100] for part in (50, 99))
        print(len(delays), p50, p99, delays[-1], round(100 * cpu / taken))

asyncio.run(main())
"""
)

IDLERS = (
    SESSION
    + """
async def main():
    loop = asyncio.get_running_loop()
    host = Host(Log(), clock=lambda: 0)
    async with Server(lambda address: host, "t") as server:
        print(server.port, flush=True)
        while count := int(await loop.run_in_executor(None, sys.stdin.readline)):
            while host.follower_count < count:
                await asyncio.sleep(0.01)
            print(memory(), flush=True)

asyncio.run(main())
"""
)

IDLE_CLIENTS = """
import socket, subprocess, sys
server, request, first, more = sys.argv[1], sys.argv[2].encode(), *map(int, sys.argv[3:])
host = subprocess.Popen([sys.executable, "-c", server], text=True, bufsize=1,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
port = int(host.stdout.readline())
clients, memory = [], []
for count in (first, first + more):
    while len(clients) < count:
        clients.append(socket.create_connection(("127.0.0.1", port)))
        clients[-1].sendall(request)
        answer = b""
        while answer.count(b"\\n") < 2:
            answer += clients[-1].recv(1 << 16)
    host.stdin.write(f"{count}\\n")
    memory.append(int(host.stdout.readline()))
for client in clients:
    client.close()
host.communicate("0\\n")
assert host.returncode == 0
print(memory[1] - memory[0])
"""

REQUEST = '{"token":"t"}\n{"id":0,"follow":{"address":"s","assistantStream":true}}\n'


def child(code: str, *arguments: str | int) -> list[int]:
    command: Sequence[str] = [sys.executable, "-c", code, *map(str, arguments)]
    return [int(text) for text in run_child(command).split()]


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a load average")
def bench_delivery(compare: Comparison) -> None:
    """100 followers of one agent at 1,000 chunks a second, all in one process on one core."""
    count = 200 if compare.small else 10 * CHUNKS_PER_SECOND
    followers = 10 if compare.small else FOLLOWERS
    before = load()
    arguments = (followers, CHUNKS_PER_SECOND, count)
    delivered, p50, p99, most, cpu_percent = child(FAN_OUT, *arguments)
    assert delivered == followers * count
    compare.line(
        Line(
            f"live: delivery to {FOLLOWERS} at {CHUNKS_PER_SECOND:,}/s, p99",
            "",
            p99 / 1000,
            20,
            unit="ms",
            better="less",
            detail=f"p50 {p50 / 1000:.1f} ms, most {most / 1000:.1f} ms; host and "
            f"readers took {cpu_percent} % of one core; {before}",
        )
    )


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory is read from /proc"
)
def bench_idle_memory(compare: Comparison) -> None:
    """At most 64 KiB of the host for a follower that waits."""
    more = 20 if compare.small else IDLE
    (growth,) = child(IDLE_CLIENTS, IDLERS, REQUEST, 10, more)
    compare.line(
        Line(
            "live: memory of an idle follower",
            "",
            growth / more / KIB,
            64,
            unit="KiB",
            better="less",
            detail=f"growth of the host from 10 to {10 + more:,} followers, without the "
            "kernel's socket buffers",
        )
    )
