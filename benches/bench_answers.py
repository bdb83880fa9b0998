"""Answers over a root of many sessions, against loops over orjson that compute only these."""

from __future__ import annotations

import os
import sys
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

import dsh_codec
from compare import Contender, Line, run_child
from peers import decoded, decoded_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compare import Comparison
    from data import Logs

MIB = 1 << 20
FEW = 20
SETTLEMENTS = ("assistant/message", "assistant/attempt")
# Spec 10 §10: a header-only read goes in steps of this size.
FIRST_PIECE_BYTES = 8 << 10
MEMBERS = {"text-chunks": "texts", "reasoning-chunks": "texts"}
PEAK = """
import sys
import dsh_codec
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line[:5] == "VmHWM")
"""
USAGE = PEAK + "print(dsh_codec.usage(sys.argv[1:]).totals.calls, peak())"
CALLS = PEAK + "print(sum(1 for _ in dsh_codec.calls(sys.argv[1:], gaps=True)), peak())"


def texts(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        data = path.read_bytes()
        yield decoded(data) if path.suffix == ".zstd" else data


def rows_of(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for text in texts(paths):
        yield from map(orjson.loads, text.split(b"\n")[1:-1])


def usage_with_orjson(paths: list[Path]) -> tuple[int, int, int]:
    """Return calls, input and output tokens. Of spec 80 §4 only U1, for sound logs."""
    calls = given = taken = 0
    for row in rows_of(paths):
        if row["type"] not in SETTLEMENTS:
            continue
        calls += 1
        data = row["data"]
        usage = data.get("usage")
        for record in reversed(data["stream"]):
            if record["type"] == "chunk" and record["chunk"]["type"] == "usage":
                usage = record["chunk"]["usage"]
                break
        if usage is not None:
            given += usage["inputTokens"]
            taken += usage["outputTokens"]
    return calls, given, taken


def gaps_with_orjson(paths: list[Path]) -> tuple[int, int, int]:
    """Return calls, and the number and the sum of the gaps between their tokens."""
    calls = count = total = 0
    for row in rows_of(paths):
        if row["type"] not in SETTLEMENTS:
            continue
        calls += 1
        times: list[int] = []
        for record in row["data"]["stream"]:
            if record["type"] == "chunk":
                continue  # None of these is a token.
            run = accumulate(record["dt"], initial=record["time0"])
            if "name" in record:
                times += run
            else:
                members = record[MEMBERS.get(record["type"], "args")]
                times += [time for time, text in zip(run, members, strict=True) if text]
        if times:
            count += len(times) - 1
            total += times[-1] - times[0]
    return calls, count, total


def totals_of(found: Any) -> tuple[int, int, int]:
    assert not found.errors
    return found.totals.calls, found.totals.input, found.totals.output


def gaps_of(found: Any) -> tuple[int, int, int]:
    assert not found.errors
    gap = found.totals.gap
    return found.totals.count, gap.count, gap.sum


@pytest.mark.parametrize("policy", [None, "window"])
def bench_usage(compare: Comparison, logs: Logs, policy: str | None) -> None:
    root = logs.root(policy)
    paths = sorted(root.rglob("session.v4.*"))
    expected = usage_with_orjson(paths)
    assert expected[0] > len(paths)
    loop = "orjson loop" if policy is None else "zstandard + orjson loop"
    peers = [Contender(loop, lambda: usage_with_orjson(paths), expected, 5)]
    if policy is not None:
        # The limit: libzstd.
        size = sum(map(len, texts(paths)))
        bare: Any = lambda: sum(decoded_bytes(path.read_bytes()) for path in paths)  # noqa: E731
        peers.append(Contender("bare libzstd", bare, size))
    compare(
        f"usage of {len(paths):,} logs, {'plain' if policy is None else 'zstd'}",
        peers,
        Contender("native", lambda: dsh_codec.usage(root), expected, view=totals_of),
        size=sum(map(len, texts(paths))),
    )


@pytest.mark.parametrize("policy", [None, "window"])
def bench_timing(compare: Comparison, logs: Logs, policy: str | None) -> None:
    """First tokens, rates and tools on top of what the loop does."""
    root = logs.root(policy)
    paths = sorted(root.rglob("session.v4.*"))
    expected = gaps_with_orjson(paths)
    compare(
        f"timing of {len(paths):,} logs, {'plain' if policy is None else 'zstd'}",
        [
            Contender(
                "orjson loop (gaps only)", lambda: gaps_with_orjson(paths), expected
            )
        ],
        Contender(
            "native",
            lambda: dsh_codec.timing(root, per="call"),
            expected,
            view=gaps_of,
        ),
        size=sum(map(len, texts(paths))),
    )


def read_first_pieces(root: str) -> int:
    """Walk a root, read the first piece of every file and return how many there are."""
    count = 0
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    pending.append(entry.path)
                    continue
                handle = os.open(entry.path, os.O_RDONLY)
                os.read(handle, FIRST_PIECE_BYTES)
                os.close(handle)
                count += 1
    return count


@pytest.mark.parametrize("policy", [None, "window"])
def bench_find(compare: Comparison, logs: Logs, policy: str | None) -> None:
    """A listing that reads the headers only: at most three times the reading itself."""
    root = logs.listing(policy)
    count = read_first_pieces(str(root))

    def listed(found: Any) -> int:
        assert all(session.header is not None for session in found)
        return len(found)

    peer = Contender(
        "bare scandir, open, read", lambda: read_first_pieces(str(root)), count
    )
    ours = Contender("find", lambda: list(dsh_codec.find(root)), count, view=listed)
    bare, found = compare.measure("find", [peer, ours])
    compare.line(
        Line(
            f"find in {count:,} sessions, {'plain' if policy is None else 'zstd'}",
            peer.name,
            found.median / bare.median,
            3,
            unit="x its time",
            better="less",
            detail=f"{found.median * 1e6 / count:.1f} µs a session",
        )
    )


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak is read from /proc"
)
@pytest.mark.parametrize(("name", "code"), [("usage", USAGE), ("calls", CALLS)])
def bench_memory(compare: Comparison, logs: Logs, name: str, code: str) -> None:
    """The same memory for a few logs and for many."""
    root = logs.root("window")
    folders = sorted({str(path.parent) for path in root.rglob("session.v4.*")})
    few = [int(n) for n in run_child(command(code, *folders[:FEW])).split()]
    many = [int(n) for n in run_child(command(code, str(root))).split()]
    assert many[0] >= few[0] > 0
    compare.line(
        Line(
            f"peak memory, {name} of {len(folders):,} logs",
            f"of {FEW} logs",
            (many[1] - few[1]) / MIB,
            16,
            unit="MiB more",
            better="less",
            detail=f"{many[0]:,} calls, {few[1] / MIB:.1f} MiB for {FEW} logs",
        )
    )


def command(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]
