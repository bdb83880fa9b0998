"""Check of whole logs, against loops over orjson and msgspec that make the same checks."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from compare import Contender, Line, parameter
from dsh_codec import _native as kernel
from peers import (
    PIECE_BYTES,
    check_files,
    check_v0_with_orjson,
    check_with_msgspec,
    check_with_orjson,
    decoded,
    decoded_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from compare import Comparison
    from data import Logs
    from peers import Totals


def totals(found: Any) -> Totals:
    """Return events and chunks of a sound log."""
    while hasattr(
        found, "scan"
    ):  # From a report or a file scan to the scan of the rows.
        found = found.scan
    assert found.issue is None
    assert found.stream_fault_count == 0
    return found.event_count, found.chunk_count


def sum_of(found: list[Any]) -> Totals:
    events, chunks = zip(*map(totals, found), strict=True)
    return sum(events), sum(chunks)


def expected_totals(data: bytes) -> Totals:
    """Return what a check of generation 4 has to find."""
    events, chunks = check_with_orjson(data)
    assert events == data.count(b"\n") - 1
    assert chunks > 0
    return events, chunks


def ours(run: Callable[[], Any], expected: Totals) -> Contender:
    return Contender("native", run, expected, view=totals)


def bench_bytes(compare: Comparison, logs: Logs) -> None:
    data = logs.large().read_bytes()
    expected = expected_totals(data)
    compare(
        "check v4 plain, bytes",
        [
            Contender("orjson loop", lambda: check_with_orjson(data), expected, 10, 16),
            Contender(
                "msgspec typed", lambda: check_with_msgspec(data), expected, 5, 9
            ),
            # The limit: memory bandwidth. 0xff is in no UTF-8 text.
            Contender("one look at every byte", lambda: data.find(b"\xff"), -1),
        ],
        ours(lambda: kernel.check_bytes(data), expected),
        size=len(data),
        rows=expected[0],
    )


def read_through(path: Path) -> int:
    """Read a file in pieces into one buffer and return its size."""
    buffer = bytearray(PIECE_BYTES)
    total = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total


def bench_path(compare: Comparison, logs: Logs) -> None:
    path = logs.large()
    size = path.stat().st_size
    expected = expected_totals(path.read_bytes())

    def with_orjson() -> Totals:
        return check_with_orjson(path.read_bytes())

    compare(
        "check v4 plain, path",
        [
            Contender("orjson loop", with_orjson, expected, 8, 12),
            # The limit: the copy from the page cache.
            Contender("read into one buffer", lambda: read_through(path), size),
        ],
        ours(lambda: kernel.check_file(path), expected),
        size=size,
        rows=expected[0],
    )


@pytest.mark.parametrize("clock", ["CPU", "wall"])
def bench_zstd(compare: Comparison, logs: Logs, clock: Any) -> None:
    path = logs.large("window")
    data = path.read_bytes()
    plain = decoded(data)
    size = len(plain)
    expected = expected_totals(plain)
    del plain
    loop = Contender(
        "zstandard + orjson loop",
        lambda: check_with_orjson(decoded(data)),
        expected,
        3.5,
        5,
    )
    # The limit: libzstd.
    bare = Contender("bare libzstd", lambda: decoded_bytes(data), size, 0.7, 0.95)
    compare(
        f"check v4 zstd, 200 ms frames, {clock}",
        [loop, bare] if clock == "CPU" else [bare],
        # A file is decoded by as many threads as there are processors.
        ours(
            lambda: (
                kernel.check_bytes(data) if clock == "CPU" else kernel.check_file(path)
            ),
            expected,
        ),
        clock=clock,
        size=size,
        rows=expected[0],
    )


@pytest.mark.parametrize(
    ("generation", "floor", "aim"), [("v0", 8, 13), ("v0-packed", None, None)]
)
def bench_v0(
    compare: Comparison, logs: Logs, generation: str, floor: Any, aim: Any
) -> None:
    data = logs.middle(generation).read_bytes()
    expected = check_v0_with_orjson(data)
    assert expected[1] == check_with_orjson(logs.middle().read_bytes())[1]
    name = "chunk rows" if generation == "v0" else "packed rows"
    compare(
        f"check v0 {name}",
        [
            Contender(
                "orjson loop", lambda: check_v0_with_orjson(data), expected, floor, aim
            )
        ],
        ours(lambda: kernel.check_bytes(data), expected),
        size=len(data),
        rows=data.count(b"\n") - 1,
    )


def read_each(paths: list[Path]) -> int:
    """Read files into one buffer with the fewest calls and return their size."""
    buffer = [bytearray(PIECE_BYTES)]
    total = 0
    for path in map(str, paths):
        file = os.open(path, os.O_RDONLY)
        total += os.readv(file, buffer)
        os.close(file)
    return total


@pytest.mark.parametrize(("policy", "floor", "aim"), [(None, 5, 8), ("window", 2.5, 4)])
def bench_many(
    compare: Comparison, logs: Logs, policy: str | None, floor: float, aim: float
) -> None:
    paths = logs.many(policy)
    expected = check_files(paths, is_zstd=policy is not None)
    kind = "zstd" if policy else "plain"
    peer = Contender(
        "orjson loop",
        lambda: check_files(paths, is_zstd=policy is not None),
        expected,
        floor,
        aim,
    )
    size = sum(path.stat().st_size for path in paths)
    contenders = [peer]
    if policy is None:
        # The limit: the system, without a look at any byte.
        contenders.append(
            Contender("open and read each", lambda: read_each(paths), size)
        )
    compare(
        f"check {len(paths):,} small logs, {kind}, one call",
        contenders,
        Contender("native", lambda: kernel.check_many(paths), expected, view=sum_of),
        size=size,
        rows=expected[0],
    )


@pytest.mark.parametrize("level", ["scan", "read"])
def bench_threads(compare: Comparison, logs: Logs, level: Any) -> None:
    """The same file on two threads."""
    path = logs.large()
    expected = expected_totals(path.read_bytes())
    one, two = (
        partial(kernel.check_file, path, level=level, threads=n) for n in (1, 2)
    )

    def both() -> Totals:
        """Check the file twice at once: what two processors can do."""
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda _: one(), range(2))
        assert totals(first) == totals(second)
        return totals(first)

    compare(
        f"check v4 plain on two threads, level {level}",
        [
            Contender("one thread", one, expected, 1.6, 1.9, totals),
            Contender("twice at once, a thread each", both, expected),
        ],
        Contender("native", two, expected, view=totals),
        clock="wall",
        size=path.stat().st_size,
        rows=expected[0],
    )


def bench_levels(compare: Comparison, logs: Logs) -> None:
    """Every rule of the format, beside the scan alone and a loop that checks less."""
    operation, peer = "check v4 plain, level full", "orjson loop (scan checks only)"
    if parameter(kernel.check_bytes, ["level"]) is None:
        compare.not_built(operation, peer, 4, None, "level in the native kernel")
    data = logs.large().read_bytes()
    expected = expected_totals(data)
    check: Any = kernel.check_bytes
    full = ours(lambda: check(data, level="full"), expected)
    loop = Contender(peer, lambda: check_with_orjson(data), expected, 4)
    compare(operation, [loop], full, size=len(data), rows=expected[0])
    levels = ("scan", "read", "full")
    contenders = [
        Contender(level, partial(check, data, level=level), expected, view=totals)
        for level in levels
    ]
    scan, *others = compare.measure("levels", contenders)
    for level, limit in zip(others, (1.5, 1.6), strict=True):
        cost = level.median / scan.median
        name = f"check v4 plain, level {level.contender.name}"
        compare.line(
            Line(name, "level scan", cost, limit, unit="x its time", better="less")
        )
