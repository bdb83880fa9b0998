"""Kernels of the benchmarks, and ratios to the baseline of each group."""

from __future__ import annotations

import importlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(params=["native", "pure"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    """Each of the two kernels."""
    return importlib.import_module(f"dsh_codec._{request.param}")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print, for each group, how many times faster each is than the group's baseline.

    A benchmark is the baseline of its group if it says so in `extra_info["baseline"]`.
    """
    session = getattr(config, "_benchmarksession", None)
    groups: dict[str, list[Any]] = defaultdict(list)
    for bench in getattr(session, "benchmarks", None) or ():
        if bench.group and bench.stats.rounds:
            groups[bench.group].append(bench)
    for group, benches in sorted(groups.items()):
        base = next((b for b in benches if b.extra_info.get("baseline")), None)
        if base is None:
            continue
        terminalreporter.write_line(f"{group}: times as fast as {base.name}")
        for bench in sorted(benches, key=lambda bench: bench.stats.min):
            ratio = base.stats.min / bench.stats.min
            terminalreporter.write_line(f"  {ratio:8.2f}  {bench.name}")
