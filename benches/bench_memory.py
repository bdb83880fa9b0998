"""Peak memory, above that of a bare interpreter.

The peak is `VmHWM` of the child itself. `ru_maxrss` would not do: a child inherits the peak of
the process that starts it, so that a large parent hides every growth.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compare import Line, run_child
from data import hard_rows
from dsh_codec.table_chunks import HELD_BYTES
from peers import decoded

if TYPE_CHECKING:
    from compare import Comparison
    from data import Logs

MIB = 1 << 20
BASE_BYTES = 16 * MIB
WINDOW_BYTES = 2 * MIB
ONE_ROW_BYTES = 160_000_000
HARD_ROW_BYTES = 60_000_000
PEAK = """
import sys
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line[:5] == "VmHWM")
"""
CHECK = """
from dsh_codec import _native as kernel
scan = kernel.check_file(sys.argv[1])
assert scan.scan.issue is None and not scan.scan.stream_fault_count
print(peak(), scan.scan.event_count)
"""
WITH_NUMPY = """
import dsh_codec, numpy
"""
COLUMNS = """
with dsh_codec.open(sys.argv[1]) as log:
    columns = log.columns()
print(peak(), len(columns.text), len(columns.time))
"""
WITH_ARROW = """
import dsh_codec.table, numpy, pyarrow
"""
TABLE = """
rows = sum(len(batch) for batch in dsh_codec.table.chunks(sys.argv[1]))
print(peak(), rows)
"""
CASES = {
    "16 MB plain": ("prefix", None),
    "160 MB plain": ("large", None),
    "160 MB zstd, 200 ms frames": ("large", "window"),
    "160 MB zstd, one frame": ("large", "single"),
    "one row of 62 MB, plain": ("one-row", None),
    "one row of 62 MB, one frame": ("one-row", "single"),
}

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak is read from /proc"
)


def numbers(code: str, *arguments: str) -> list[int]:
    return [int(n) for n in run_child([sys.executable, "-c", code, *arguments]).split()]


@pytest.mark.parametrize("case", CASES)
def bench_check(compare: Comparison, logs: Logs, case: str) -> None:
    """At most 16 MiB, the window, and 2.5 times the longest row."""
    kind, policy = CASES[case]
    path = {
        "prefix": lambda: logs.prefix(16_000_000),
        "large": lambda: logs.large(policy),
        "one-row": lambda: logs.one_row(policy),
    }[kind]()
    data = path.read_bytes()
    lines = (data if policy is None else decoded(data)).split(b"\n")
    window = 0 if policy is None else WINDOW_BYTES
    limit = BASE_BYTES + window + 2.5 * max(map(len, lines))
    if kind == "one-row":
        limit = min(limit, ONE_ROW_BYTES)
    (bare,) = numbers(PEAK + "print(peak())")
    peak, events = numbers(PEAK + CHECK, str(path))
    assert events == len(lines) - 2
    compare.line(
        Line(
            f"peak memory, check of {case}",
            "bare interpreter",
            (peak - bare) / MIB,
            limit / MIB,
            unit="MiB more",
            better="less",
            detail=f"longest row {max(map(len, lines)) / MIB:.2f} MiB",
        )
    )


@pytest.mark.parametrize("name", ["nesting", "one-element arrays", "one-member runs"])
def bench_hard_row(compare: Comparison, tmp_path: Path, name: str) -> None:
    """The same for rows of many small values, of which nothing may be kept for each."""
    path = tmp_path / "log"
    size = 20_000 if compare.small else HARD_ROW_BYTES
    path.write_bytes(hard_rows(size)[name])
    row = path.stat().st_size
    limit = BASE_BYTES + 2.5 * row
    (bare,) = numbers(PEAK + "print(peak())")
    peak, events = numbers(PEAK + CHECK, str(path))
    assert events == 1
    compare.line(
        Line(
            f"peak memory, check of a row of 60 MB: {name}",
            "bare interpreter",
            (peak - bare) / MIB,
            limit / MIB,
            unit="MiB more",
            better="less",
            detail=f"longest row {row / MIB:.2f} MiB",
        )
    )


def bench_columns(compare: Comparison, logs: Logs) -> None:
    """At most 1.5 times the text and 24 bytes a chunk, above an interpreter with NumPy."""
    path = logs.large()
    bare, *_ = numbers(PEAK + WITH_NUMPY + "print(peak())")
    peak, text_bytes, chunks = numbers(PEAK + WITH_NUMPY + COLUMNS, str(path))
    assert chunks > 0
    compare.line(
        Line(
            "peak memory, columns of 160 MB",
            "interpreter with NumPy",
            (peak - bare) / MIB,
            (1.5 * text_bytes + 24 * chunks) / MIB,
            unit="MiB more",
            better="less",
            detail=f"{text_bytes / MIB:.1f} MiB of text, {chunks:,} chunks",
        )
    )


def bench_table(compare: Comparison, logs: Logs) -> None:
    """Batch by batch: the columns that wait for the end of the log, and what a batch takes."""
    bare, *_ = numbers(PEAK + WITH_ARROW + "print(peak())")
    peak, rows = numbers(PEAK + WITH_ARROW + TABLE, str(logs.large()))
    assert rows > 0
    compare.line(
        Line(
            "peak memory, table of chunks of 160 MB, batch by batch",
            "interpreter with pyarrow",
            (peak - bare) / MIB,
            HELD_BYTES / MIB + 64,
            unit="MiB more",
            better="less",
            detail=f"{rows:,} chunks",
        )
    )
