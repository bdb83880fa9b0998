"""Chunks as NumPy arrays, from the bytes of a log, against a loop over orjson and NumPy."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pytest

import dsh_codec as dsh
from data import generated_log, has_generator, run_of, v4_log

if TYPE_CHECKING:
    from types import ModuleType

SETTLEMENTS = ("assistant/message", "assistant/attempt")
RUNS = {
    "text-chunks": (0, "texts"),
    "reasoning-chunks": (1, "texts"),
    "tool-call-chunks": (2, "args"),
}
RAW = {"block-start": 3, "block-end": 4, "usage": 5, "finish": 6}
SHAPES = {"small": (20, 200), "medium": (400, 400), "long-rows": (4, 50_000)}
PIECE_BYTES = 1 << 20
CHILD = """
import importlib, resource, sys
from pathlib import Path
import numpy
kernel = importlib.import_module("dsh_codec._native")
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
scanner = kernel.ColumnScanner()
before = peak()
with open(sys.argv[1], "rb") as file:
    while data := file.read(1 << 20):
        scanner.feed(data)
columns = scanner.take_columns()
grown = peak() - before
print(grown, len(columns.text), len(columns.time))
"""


def columns_with_orjson(data: bytes) -> tuple[Any, ...]:
    """Return the columns of a log of generation 4. Nothing but JSON is checked."""
    times, kinds, indices, records, lengths, texts = [], [], [], [], [], []
    attempt = [0]
    count = 0
    for line in data.split(b"\n")[1:-1]:
        row = orjson.loads(line)
        if row["type"] not in SETTLEMENTS:
            continue
        for number, record in enumerate(row["data"]["stream"]):
            if record["type"] == "chunk":
                chunk = record["chunk"]
                kind, index, members = RAW[chunk["type"]], chunk.get("index", -1), [""]
                time = np.array([record["time"]], np.int64)
            else:
                kind, key = RUNS[record["type"]]
                index, members = record["index"], record[key]
                time = np.empty(len(members), np.int64)
                time[0] = record["time0"]
                time[1:] = record["dt"]
                np.cumsum(time, out=time)
            text = "".join(members)
            if not text.isascii():
                members = [member.encode() for member in members]
            times.append(time)
            kinds.append(np.full(len(members), kind, np.uint8))
            indices.append(np.full(len(members), index, np.int64))
            records.append(np.full(len(members), number, np.int32))
            lengths.append(np.fromiter(map(len, members), np.int64, len(members)))
            texts.append(text.encode())
            count += len(members)
        attempt.append(count)
    offset = np.zeros(count + 1, np.int64)
    np.cumsum(np.concatenate(lengths), out=offset[1:])
    text = np.frombuffer(b"".join(texts), np.uint8)
    parts = map(np.concatenate, (times, kinds, indices, records))
    return (*parts, offset, text, np.array(attempt, np.int64))


def columns_with_kernel(kernel: ModuleType, data: bytes) -> Any:
    """Return the columns of a log, checked by every rule of spec 10 §8 and 20 §4."""
    scanner = kernel.ColumnScanner()
    view = memoryview(data)
    for start in range(0, len(data), PIECE_BYTES):
        scanner.feed(view[start : start + PIECE_BYTES])
    scanner.finish()
    return scanner.take_columns()


def run(implementation: str, data: bytes) -> Any:
    if implementation == "orjson":
        return columns_with_orjson(data)
    if implementation == "log":  # With the kernel in use; opening is part of it.
        with dsh.open(data) as log:
            return tuple(log.columns())
    module = importlib.import_module(f"dsh_codec._{implementation}")
    return tuple(columns_with_kernel(module, data))


def check_equal(found: Any, expected: Any) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("implementation", ["orjson", "native", "log", "pure"])
@pytest.mark.parametrize("shape", SHAPES)
def bench_columns(benchmark: Any, shape: str, implementation: str) -> None:
    """At least 4 times as fast as orjson and NumPy, aim 8."""
    settlements, chunks = SHAPES[shape]
    data = v4_log(settlements, chunks)
    benchmark.group = f"columns-{shape}"
    benchmark.extra_info.update(
        bytes=len(data), kept=True, baseline=implementation == "orjson"
    )
    found = benchmark(run, implementation, data)
    check_equal(found, columns_with_orjson(data))
    assert len(found[0]) == settlements * chunks
    assert len(found[-1]) == settlements + 1


@pytest.mark.parametrize("chunks", [200, 50_000])
def bench_stream_columns(benchmark: Any, kernel: ModuleType, chunks: int) -> None:
    """Python records to columns, native against pure."""
    records = run_of(chunks)
    benchmark.group = f"stream-columns-{chunks}"
    benchmark.extra_info.update(kept=True, baseline=kernel.__name__.endswith("_pure"))
    found = benchmark(kernel.stream_columns, records)
    assert found.text.tobytes().decode() == "".join(records[0]["texts"])


@pytest.fixture(scope="session")
def large_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of the issue: 160 MB of generation 4; DSH_LARGE_LOG names one that exists."""
    if given := os.environ.get("DSH_LARGE_LOG"):
        return Path(given)
    if not has_generator():
        pytest.skip("no gen_log.py in the shared tools (set DSH_TOOLS)")
    path = tmp_path_factory.mktemp("logs") / "large.jsonl"
    shape = "--turns 800 --steps 10 --tokens 400 --seed 7"
    return generated_log(path, *shape.split())


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["orjson", "native", "log"])
def bench_columns_large(benchmark: Any, large_log: Path, implementation: str) -> None:
    """At least 4 times as fast as orjson and NumPy, aim 8."""
    data = large_log.read_bytes()
    benchmark.group = "columns-large"
    benchmark.extra_info.update(
        bytes=len(data), kept=True, baseline=implementation == "orjson"
    )
    found = benchmark.pedantic(run, (implementation, data), rounds=3)
    assert len(found[0]) == found[-1][-1] > 3_000_000
    assert found[4][-1] == len(found[5])


@pytest.mark.slow
def bench_peak_memory_of_columns(benchmark: Any, large_log: Path) -> None:
    """The arrays, 21 bytes a chunk and the text, and what a scan takes."""

    def peak_bytes() -> list[int]:
        command = [sys.executable, "-c", CHILD, str(large_log)]
        return [int(n) for n in subprocess.check_output(command).split()]  # noqa: S603 - ours

    grown, text_bytes, chunks = benchmark.pedantic(peak_bytes, rounds=1)
    benchmark.extra_info.update(
        peak_bytes=grown, text_bytes=text_bytes, chunk_count=chunks
    )
    assert grown <= text_bytes + 21 * chunks + (16 << 20)
