"""Kernels, logs and the table of the benchmarks.

Without options every group runs once on small data, as a test of its results. `--full` measures.
"""

from __future__ import annotations

import gc
import importlib
import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compare import ROUNDS, Comparison, Line, Table
from data import Logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

MODULES = (
    "check",
    "stream",
    "text",
    "migrate",
    "arrays",
    "json",
    "writer",
    "answers",
    "start",
    "report",
    "growth",
    "memory",
    "table",
    "size",
    "live",
    "replay",
)
TABLE = pytest.StashKey[Table]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dsh-codec benchmarks")
    group.addoption(
        "--full", action="store_true", default=False, help="measure, on large logs"
    )
    group.addoption(
        "--small",
        action="store_false",
        dest="full",
        default=False,
        help="run every group once on small logs, as a test of its result (default)",
    )
    group.addoption(
        "--rounds", type=int, default=ROUNDS, help="samples of each with --full"
    )
    group.addoption("--results", metavar="FILE", help="write the table to this file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TABLE] = Table(
        small=not config.getoption("full"), rounds=config.getoption("rounds")
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the modules in the order of the table."""
    order = {f"bench_{name}": place for place, name in enumerate(MODULES)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.fixture(scope="session", autouse=True)
def _quiet_collector() -> Iterator[None]:
    """Keep the objects of pytest out of the collections that are measured."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(params=["native", "pure"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    """Each of the two kernels."""
    return importlib.import_module(f"dsh_codec._{request.param}")


@pytest.fixture(scope="session")
def logs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Logs:
    """The logs; DSH_BENCH_DATA names a directory that keeps them for the next run."""
    given = os.environ.get("DSH_BENCH_DATA")
    directory = Path(given) if given else tmp_path_factory.mktemp("logs")
    return Logs(directory, small=request.config.stash[TABLE].small)


@pytest.fixture
def compare(request: pytest.FixtureRequest, benchmark: Any, logs: Logs) -> Comparison:
    """Measures an operation beside its peers and adds it to the table."""
    table = request.config.stash[TABLE]
    table.origin = logs.origin
    return Comparison(table, benchmark)


def pytest_terminal_summary(
    terminalreporter: Any, exitstatus: int, config: pytest.Config
) -> None:
    """Print the table, and write it where `--results` says unless a result was wrong."""
    table = config.stash[TABLE]
    for line in _lines_of_plain_groups(config):
        table.add(line)
    if not table.lines:
        return
    terminalreporter.section("operations beside their peers")
    for text in [*table.facts(), *table.plain()]:
        terminalreporter.write_line(text)
    path = config.getoption("results")
    if path and exitstatus == pytest.ExitCode.OK:
        Path(path).write_text(table.markdown(), encoding="utf-8")


def _lines_of_plain_groups(config: pytest.Config) -> Iterator[Line]:
    """Yield lines of groups that pytest-benchmark measured itself, one member after another.

    A benchmark is the baseline of its group if it says so in `extra_info["baseline"]`.
    """
    session = getattr(config, "_benchmarksession", None)
    groups: dict[str, list[Any]] = defaultdict(list)
    for bench in getattr(session, "benchmarks", None) or ():
        if bench.group and bench.stats.rounds and "baseline" in bench.extra_info:
            groups[bench.group].append(bench)
    for group, benches in sorted(groups.items()):
        base = next((b for b in benches if b.extra_info["baseline"]), None)
        if base is None:
            continue
        for bench in benches:
            if bench is not base:
                ratio = base.stats.median / bench.stats.median
                detail = f"{bench.name}; not interleaved"
                yield Line(group, base.name, ratio, detail=detail)
