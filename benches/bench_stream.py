"""Expansion, packing and assembly of one settlement, native against pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from data import run_of

if TYPE_CHECKING:
    from types import ModuleType

SIZES = [200, 2_000, 50_000]


def describe(benchmark: Any, group: str, kernel: ModuleType) -> None:
    benchmark.group = group
    benchmark.extra_info.update(kept=True, baseline=kernel.__name__.endswith("_pure"))


@pytest.mark.parametrize("chunks", SIZES)
def bench_expand(benchmark: Any, kernel: ModuleType, chunks: int) -> None:
    """At least 2, 2 and 2.5 times as fast as the pure kernel."""
    records = run_of(chunks)
    describe(benchmark, f"expand-{chunks}", kernel)
    expanded = benchmark(kernel.expand, records)
    assert len(expanded) == chunks
    assert expanded[-1].chunk == {"type": "finish", "reason": {"kind": "stop"}}


@pytest.mark.parametrize("chunks", SIZES)
def bench_pack(benchmark: Any, kernel: ModuleType, chunks: int) -> None:
    records = run_of(chunks)
    timed = kernel.expand(records)
    describe(benchmark, f"pack-{chunks}", kernel)
    assert benchmark(kernel.pack, timed) == records


@pytest.mark.parametrize("chunks", SIZES)
def bench_join_text(benchmark: Any, kernel: ModuleType, chunks: int) -> None:
    records = run_of(chunks)
    describe(benchmark, f"join-text-{chunks}", kernel)
    assert benchmark(kernel.join_text, records) == "".join(records[0]["texts"])
