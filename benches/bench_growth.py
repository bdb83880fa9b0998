"""The same speed for logs of all sizes, and no quadratic step on rows that invite one."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from bench_check import expected_totals, totals
from compare import Contender, Line
from data import ROW_BYTES, hard_rows
from dsh_codec import _native as kernel

if TYPE_CHECKING:
    from compare import Comparison
    from data import Logs

SIZES = (1_600_000, 19_000_000, 160_000_000)
SPREAD = 35


def bench_growth(compare: Comparison, logs: Logs) -> None:
    """MB/s at 1.6, 19 and 160 MB within ±35 %."""
    contenders, sizes = [], []
    for size in SIZES:
        path = logs.large() if size == SIZES[-1] else logs.prefix(size)
        data = path.read_bytes()
        sizes.append(len(data))
        contenders.append(_check_of(data, f"{size / 1e6:g} MB"))
    samples = compare.measure("check, growth", contenders)
    speeds = [n / each.median / 1e6 for n, each in zip(sizes, samples, strict=True)]
    spread = max(abs(speed / mean(speeds) - 1) for speed in speeds) * 100
    figures = ", ".join(f"{speed:,.0f}" for speed in speeds)
    compare.line(
        Line(
            "check v4 plain at 1.6, 19, 160 MB",
            "their mean",
            spread,
            SPREAD,
            unit="% off",
            better="less",
            detail=f"{figures} MB/s",
        )
    )


def _check_of(data: bytes, name: str) -> Contender:
    return Contender(
        name, lambda: kernel.check_bytes(data), expected_totals(data), view=totals
    )


def shape(row: Any) -> tuple[int, int, int]:
    """Return what can be compared of a row that Python cannot: it is too deep."""
    return row["seq"], len(row["data"]["stream"]), len(row["data"]["other"])


@pytest.mark.parametrize("name", hard_rows(100))
def bench_hard_row(compare: Comparison, name: str) -> None:
    """At least 200 MB/s."""
    data = hard_rows(20_000 if compare.small else ROW_BYTES)[name]
    row = data.split(b"\n")[1]
    parsed: Any = orjson.loads(row)
    chunks = sum(len(record["texts"]) for record in parsed["data"]["stream"])
    theirs, mine = compare.measure(
        f"hard row: {name}",
        [
            Contender("orjson", lambda: orjson.loads(row), shape(parsed), view=shape),
            Contender(
                "native", lambda: kernel.check_bytes(data), (1, chunks), view=totals
            ),
        ],
    )
    detail = f"orjson.loads alone {len(row) / theirs.median / 1e6:,.0f} MB/s"
    speed = len(data) / mine.median / 1e6
    compare.line(
        Line(
            f"check of a 10 MB row: {name}", "", speed, 200, unit="MB/s", detail=detail
        )
    )
