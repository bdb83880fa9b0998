"""Expansion, packing and reading of one settlement, native against pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from compare import Contender
from data import expand_simply, run_of
from dsh_codec import _native, _pure

if TYPE_CHECKING:
    from types import ModuleType

    from compare import Comparison

EXPAND = [(200, 2.5, 3), (2_000, 2.5, 3), (50_000, 3, 4)]
SIZES = [200, 2_000, 50_000]


@pytest.mark.parametrize(("chunks", "floor", "aim"), EXPAND)
def bench_expand(compare: Comparison, chunks: int, floor: float, aim: float) -> None:
    records = run_of(chunks)
    expected = list(expand_simply(records))
    assert len(expected) == chunks
    times, chunk_list = zip(*expected, strict=True)
    compare(
        f"expand {chunks:,} to Python values",
        [
            Contender("pure", lambda: _pure.expand(records), expected, floor, aim),
            # For scale: as many tuples and dicts, made by the interpreter's own C code.
            Contender(
                "dict.copy and zip",
                lambda: list(zip(times, map(dict.copy, chunk_list), strict=True)),
                expected,
            ),
        ],
        Contender("native", lambda: _native.expand(records), expected),
        values="kept",
    )


@pytest.mark.parametrize("chunks", SIZES)
def bench_iter_expand(compare: Comparison, chunks: int) -> None:
    records = run_of(chunks)
    last = list(expand_simply(records))[-1]

    def last_of(kernel: ModuleType) -> Any:
        return deque(kernel.iter_expand(records), 1)[0]

    compare(
        f"iter_expand {chunks:,}",
        [Contender("pure", lambda: last_of(_pure), last)],
        Contender("native", lambda: last_of(_native), last),
        values="dropped",
    )


@pytest.mark.parametrize("chunks", SIZES)
def bench_pack(compare: Comparison, chunks: int) -> None:
    records = run_of(chunks)
    timed = _pure.expand(records)
    compare(
        f"pack {chunks:,} timed chunks",
        [Contender("pure", lambda: _pure.pack(timed), records, 2, 3.5)],
        Contender("native", lambda: _native.pack(timed), records),
        values="kept",
    )


@pytest.mark.parametrize("chunks", SIZES)
def bench_join_text(compare: Comparison, chunks: int) -> None:
    records = run_of(chunks)
    text = "".join(records[0]["texts"])
    compare(
        f"join_text {chunks:,}",
        [Contender("pure", lambda: _pure.join_text(records), text)],
        Contender("native", lambda: _native.join_text(records), text),
        values="kept",
    )
