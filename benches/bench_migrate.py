"""Migration from generation 0 to 4, against pure Python around orjson."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest

import dsh_codec as dsh
from bench_memory import MIB, PEAK, numbers
from compare import Contender, Line, run_child
from peers import migrate_with_orjson

if TYPE_CHECKING:
    from compare import Comparison
    from data import Logs

# The whole package on one kernel; what is imported does not count.
IN_MEMORY = """
import os, sys, time
os.environ["DSH_CODEC_BACKEND"] = sys.argv[1]
import dsh_codec, dsh_codec.migrate.upgrade, hashlib
assert dsh_codec.backend == sys.argv[1]
start = time.process_time()
with dsh_codec.open(sys.argv[2]) as log:
    upgraded = log.upgraded()
taken = time.process_time() - start
digest = hashlib.sha256()
for piece in upgraded.source.pieces(0, upgraded.file_bytes):
    digest.update(piece)
print(taken, digest.hexdigest())
"""
PUBLISHED = """
import time
import dsh_codec, dsh_codec.check
from dsh_codec.migrate import migrate
before, start = peak(), time.process_time()
done = migrate(sys.argv[1], children=(), dry_run=True)
taken = int(1000 * (time.process_time() - start))
with dsh_codec.open(sys.argv[1]) as log:
    count = len(log)
print(peak() - before, count, done.event_count, taken)
"""
ROUNDS = 3
FORMATS = {"v0": "chunk rows", "v0-packed": "packed rows"}
SEQ_BYTES = 16
BASE_BYTES = 16 * MIB


def migrate_with_kernel(path: Path) -> bytes:
    """Return the event rows of the accepted result."""
    with dsh.open(path) as log, log.upgraded() as upgraded:
        data = b"".join(upgraded.source.pieces(0, upgraded.file_bytes))
    return data[data.index(b"\n") + 1 :]


def run_backend(backend: str, path: Path) -> tuple[float, str]:
    """Return CPU seconds and digest of the text of generation 4."""
    printed = run_child([sys.executable, "-c", IN_MEMORY, backend, str(path)])
    seconds, digest = printed.split()
    return float(seconds), digest


@pytest.mark.parametrize("generation", FORMATS)
def bench_migrate(compare: Comparison, logs: Logs, generation: str) -> None:
    path = logs.middle(generation)
    size = path.stat().st_size
    operation = f"{generation} to v4, {size / 1e6:.0f} MB of {FORMATS[generation]}"
    ratios, times = [], []
    for _ in range(1 if compare.small else ROUNDS):
        theirs, expected = run_backend("pure", path)
        mine, found = run_backend("native", path)
        assert found == expected
        ratios.append(theirs / max(mine, 1e-9))
        times.append((theirs, mine))
    theirs, mine = (median(column) for column in zip(*times, strict=True))
    detail = f"{theirs:.2f} s : {mine:.2f} s, {size / mine / 1e6:,.0f} MB/s; accepted"
    compare.line(
        Line(
            operation,
            "the pure kernel: Python, orjson",
            median(ratios),
            8,
            detail=detail,
        )
    )
    # For scale: the shortest Python, which knows no rule of payloads, turns and references.
    rows = migrate_with_orjson(path)
    assert migrate_with_kernel(path) == rows  # Also imports what a first call imports.
    assert rows.count(b"\n") > 10
    compare(
        operation,
        [Contender("orjson, unchecked", lambda: migrate_with_orjson(path), rows)],
        Contender("native", lambda: migrate_with_kernel(path), rows),
        size=size,
    )


@pytest.mark.parametrize("generation", FORMATS)
@pytest.mark.parametrize("kind", ["middle", "large"])
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak is read from /proc"
)
def bench_migrate_memory(
    compare: Comparison, logs: Logs, kind: str, generation: str
) -> None:
    """Constant memory and at most 16 bytes for each event of the source; staged and verified."""
    path = (
        logs.middle(generation)
        if kind == "middle"
        else logs.large(generation=generation)
    )
    size = path.stat().st_size
    peak, events, made, milliseconds = numbers(PEAK + PUBLISHED, str(path))
    assert events > made > 0
    compare.line(
        Line(
            f"peak memory, migration of {size / 1e6:.0f} MB of {FORMATS[generation]}",
            "interpreter with the package",
            peak / MIB,
            (BASE_BYTES + SEQ_BYTES * events) / MIB,
            unit="MiB more",
            better="less",
            detail=f"{events:,} events; {milliseconds / 1000:.2f} s CPU, verified",
        )
    )
