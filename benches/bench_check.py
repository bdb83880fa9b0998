"""Check of whole logs, against a loop over orjson that makes the same checks."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from data import generated_log, has_generator, v4_log

if TYPE_CHECKING:
    from pathlib import Path

KEYS = {
    "text-chunks": ({"type", "time0", "index", "dt", "texts"}, "texts"),
    "reasoning-chunks": ({"type", "time0", "index", "dt", "texts"}, "texts"),
    "tool-call-chunks": ({"type", "time0", "index", "dt", "id", "args"}, "args"),
}
ENVELOPE = {"type", "seq", "time", "data", "surfaceOp", "sourceEventSeqs", "ignorable"}
SAFE = 2**53 - 1
SHAPES = {"small": (20, 200), "medium": (400, 400), "long-rows": (4, 50_000)}


def check_with_orjson(data: bytes) -> tuple[int, int]:
    """Return events and chunks: seq, envelope, and of records keys, members, gaps, times."""
    lines = data.split(b"\n")
    count = chunk_count = 0
    for line in lines[1:-1]:
        row = orjson.loads(line)
        if row.keys() - ENVELOPE or row["seq"] != count or type(row["time"]) is not int:
            raise ValueError(line)
        if type(row["type"]) is not str or "data" not in row:
            raise ValueError(line)
        count += 1
        if row["type"] in ("assistant/message", "assistant/attempt"):
            chunk_count += sum(map(check_record, row["data"]["stream"]))
    return count, chunk_count


def check_record(record: dict[str, Any]) -> int:
    """Return the chunks of one record, checked by the rules of spec 20 §4."""
    if record["type"] == "chunk":
        if record.keys() != {"type", "time", "chunk"} or abs(record["time"]) > SAFE:
            raise ValueError(record)
        return 1
    keys, name = KEYS[record["type"]]
    members, gaps, time = record[name], record["dt"], record["time0"]
    if record.keys() - {"name"} != keys or len(gaps) != len(members) - 1:
        raise ValueError(record)
    if not all(type(member) is str for member in members) or record["index"] < 0:
        raise ValueError(record)
    for gap in gaps:
        time += gap
        if type(gap) is not int or abs(time) > SAFE:
            raise ValueError(record)
    return len(members)


def check_with_kernel(name: str, data: bytes) -> tuple[int, int]:
    scan = importlib.import_module(f"dsh_codec._{name}").check_bytes(data).scan
    return scan.event_count, scan.chunk_count


def run(implementation: str, data: bytes) -> tuple[int, int]:
    if implementation == "orjson":
        return check_with_orjson(data)
    return check_with_kernel(implementation, data)


@pytest.mark.parametrize("implementation", ["orjson", "native", "pure"])
@pytest.mark.parametrize("shape", SHAPES)
def bench_check(benchmark: Any, shape: str, implementation: str) -> None:
    settlements, chunks = SHAPES[shape]
    data = v4_log(settlements, chunks)
    benchmark.group = f"check-{shape}"
    benchmark.extra_info.update(
        bytes=len(data), kept=False, baseline=implementation == "orjson"
    )
    assert benchmark(run, implementation, data) == (
        settlements * 5,
        settlements * chunks,
    )


@pytest.fixture(scope="session")
def large_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of the issue: 160 MB of generation 4."""
    if not has_generator():
        pytest.skip("no gen_log.py in the shared tools (set DSH_TOOLS)")
    path = tmp_path_factory.mktemp("logs") / "large.jsonl"
    shape = "--turns 800 --steps 10 --tokens 400 --seed 7"
    return generated_log(path, *shape.split())


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["orjson", "native"])
def bench_check_large(benchmark: Any, large_log: Path, implementation: str) -> None:
    """At least 8 times the loop over orjson."""
    data = large_log.read_bytes()
    benchmark.group = "check-large"
    benchmark.extra_info.update(
        bytes=len(data), kept=False, baseline=implementation == "orjson"
    )
    events, chunks = benchmark.pedantic(run, (implementation, data), rounds=3)
    assert events == data.count(b"\n") - 1
    assert chunks > 3_000_000


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [16, 160])
@pytest.mark.parametrize("backend", ["native", "pure"])
def bench_peak_memory_of_a_check(
    benchmark: Any, tmp_path: Path, large_log: Path, backend: str, megabytes: int
) -> None:
    """At most 16 MiB plus 2.5 times the longest row, above what the interpreter takes."""
    data = large_log.read_bytes()
    if megabytes == 16:
        data = data[: data.index(b"\n", 16_000_000) + 1]
    path = tmp_path / "log.jsonl"
    path.write_bytes(data)
    longest = max(map(len, data.split(b"\n")))
    code = (
        "import resource, sys, importlib\n"
        f"kernel = importlib.import_module('dsh_codec._{backend}')\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "before = peak(); kernel.check_file(sys.argv[1]); print(peak() - before)\n"
    )

    def peak_bytes() -> int:
        command = [sys.executable, "-c", code, str(path)]
        return int(subprocess.check_output(command))  # noqa: S603 - our own code

    grown = benchmark.pedantic(peak_bytes, rounds=1)
    benchmark.extra_info.update(peak_bytes=grown, longest_row_bytes=longest)
    assert grown <= (16 << 20) + 2.5 * longest
