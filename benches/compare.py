"""Rows of the table: each operation beside its peers, in one run.

A row is a group of pytest-benchmark. Samples alternate (peer, ours, peer, ours …), so that a
noisy machine troubles both; a ratio is the median of the ratios of neighbours. The result of
every sample is checked, outside the time that is measured.
"""

from __future__ import annotations

import copy
import gc
import inspect
import math
import os
import platform
import resource
import subprocess
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Clock = Literal["CPU", "wall", "child CPU"]
Better = Literal["more", "less"]

ROUNDS: Final = 7
FEWEST_ROUNDS: Final = 3
GROUP_SECONDS: Final = 40.0
# Below it the clock and the call of the sample would be part of the figure.
SAMPLE_SECONDS: Final = 0.02
MOST_ITERATIONS: Final = 2_000


def _child_cpu() -> float:
    """Return the CPU seconds of all children that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


CLOCKS: Final[dict[Clock, Callable[[], float]]] = {
    "CPU": time.process_time,
    "wall": time.perf_counter,
    "child CPU": _child_cpu,
}


@dataclass(frozen=True, slots=True)
class Contender:
    """One implementation of an operation.

    Attributes:
        name: As the table calls it.
        run: The operation.
        expected: What it has to return.
        floor, aim: For a peer: how many times faster ours has to be, and should be.
        view: What of the result is compared; not measured.
    """

    name: str
    run: Callable[[], Any]
    expected: Any
    floor: float | None = None
    aim: float | None = None
    view: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table.

    Attributes:
        value: The figure; None if the operation is not built yet.
        unit: What stands behind the figure.
        better: Whether more or less of it is better.
        detail: Medians of both, clock, what else has to be known.
    """

    operation: str
    peer: str
    value: float | None
    floor: float | None = None
    aim: float | None = None
    unit: str = "x"
    better: Better = "more"
    detail: str = ""

    @property
    def met(self) -> str:
        """Whether the figure reaches the floor, or even the aim."""
        if self.value is None:
            return "not built"
        if self.reaches(self.aim):
            return "aim"
        if self.floor is None and self.aim is None:
            return ""
        return "floor" if self.reaches(self.floor) else "NO"

    def reaches(self, target: float | None) -> bool:
        """Whether the figure is at least as good as the target."""
        if target is None or self.value is None:
            return False
        return self.value >= target if self.better == "more" else self.value <= target

    def cells(self, *, small: bool) -> tuple[str, ...]:
        """Return the texts of the columns; small data prove nothing about a target."""
        figures = (self.value, self.floor, self.aim)
        texts = ["" if n is None else f"{_short(n)} {self.unit}" for n in figures]
        met = "" if small and self.value is not None else self.met
        return (self.operation, self.peer, *texts, met, self.detail)


SAMPLES: Final = (
    "Peer, ours, peer, ours and so on; a ratio is the median of the ratios of neighbours, the "
    "peer's time divided by ours. CPU time of the process and all its threads unless the row "
    "says otherwise. Every result is compared with the expected one, outside the time"
)
COLLECTOR: Final = (
    "Garbage collector: on, as it is for a user; a full collection before every sample, and "
    "the objects of the test runner frozen. “kept”: all values that a call makes live until "
    "it returns; “dropped”: each goes when the next is made; “none”: no values are made by us"
)
TARGETS: Final = (
    "“floor” and “aim” are what the project asks of itself, “met” is the better of the two "
    "that the figure reaches. A peer without them is a physical limit or stands for context"
)
HEADINGS: Final = ("operation", "peer", "measured", "floor", "aim", "met", "detail")


@dataclass(slots=True)
class Samples:
    """Seconds of one contender, each for one call, in the order of the rounds."""

    contender: Contender
    iterations: int = 1
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.seconds)

    def take(self, clock: Callable[[], float]) -> None:
        """Measure one sample and check what it gave."""
        run, times = self.contender.run, range(self.iterations)
        result = None
        gc.collect()
        start = clock()
        for _ in times:
            result = run()
        taken = clock() - start
        check_result(self.contender, result)
        self.seconds.append(taken / self.iterations)


def check_result(contender: Contender, result: Any) -> None:
    if contender.view is not None:
        result = contender.view(result)
    assert result == contender.expected, f"{contender.name}: a wrong result"


class Table:
    """The lines of this run."""

    def __init__(self, *, small: bool, rounds: int = ROUNDS) -> None:
        self.small = small
        self.rounds = 1 if small else rounds
        self.lines: list[Line] = []
        self.origin = ""

    def add(self, line: Line) -> None:
        self.lines.append(line)

    def _cells(self) -> Iterator[tuple[str, ...]]:
        return (line.cells(small=self.small) for line in self.lines)

    def markdown(self) -> str:
        """Return the table and how it was made, as a page."""
        head = ["# Measured", ""]
        head += ["Written by `make bench`; every figure is of one run.", ""]
        head += [f"* {fact}" for fact in self.facts()]
        rows = [HEADINGS, ("---",) * len(HEADINGS), *self._cells()]
        body = ["| " + " | ".join(_cell(c) for c in row) + " |" for row in rows]
        return "\n".join([*head, "", *body]) + "\n"

    def plain(self) -> list[str]:
        """Return the lines of the table for a terminal."""
        rows = [HEADINGS, *self._cells()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        padded = [
            [c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows
        ]
        return ["  ".join(row).rstrip() for row in padded]

    def facts(self) -> list[str]:
        packages = (
            "dsh-codec",
            "numpy",
            "orjson",
            "msgspec",
            "zstandard",
            "polars",
            "pyarrow",
        )
        versions = ", ".join(f"{name} {version(name)}" for name in packages)
        machine = f"{_processor()}, {os.cpu_count()} logical CPUs"
        python = f"{platform.python_implementation()} {platform.python_version()}"
        return [
            f"Machine: {machine}, {platform.system()} {platform.machine()}",
            f"Versions: {python}, {versions}",
            f"Date: {datetime.now(UTC):%Y-%m-%d}",
            f"Data: {'small' if self.small else 'full size'}, from {self.origin}",
            f"Samples: at most {self.rounds} of each, interleaved. {SAMPLES}",
            COLLECTOR,
            TARGETS,
        ]


class Comparison:
    """The fixture that rows are measured with."""

    def __init__(self, table: Table, benchmark: Any) -> None:
        self.small = table.small
        self._rounds = table.rounds
        self._table = table
        self._benchmark = benchmark
        # Samples are taken here; the fixture must not wait for them.
        benchmark._mode = "compare"

    def __call__(
        self,
        operation: str,
        peers: Sequence[Contender],
        ours: Contender,
        *,
        clock: Clock = "CPU",
        size: int | None = None,
        rows: int | None = None,
        values: Literal["kept", "dropped", "none"] = "none",
    ) -> None:
        """Measure one operation against its peers and add a line for each.

        Args:
            operation: As the table calls it.
            peers: What ours is compared with.
            ours: Our implementation.
            clock: What is measured.
            size: Bytes that one call takes, for MB/s.
            rows: Rows that one call takes.
            values: What happens to the Python values that are made.
        """
        contenders = [n for peer in peers for n in (peer, ours)]
        samples = self.measure(operation, contenders, clock=clock)
        for number, peer in enumerate(peers):
            theirs, mine = samples[2 * number : 2 * number + 2]
            pairs = zip(theirs.seconds, mine.seconds, strict=True)
            ratio = median(a / max(b, 1e-9) for a, b in pairs)
            detail = f"{_time(theirs.median)} : {_time(mine.median)}"
            if size is not None:
                detail += f", {size / mine.median / 1e6:,.0f} MB/s"
            detail += f"; values {values}" + ("" if clock == "CPU" else f"; {clock}")
            self._table.add(
                Line(operation, peer.name, ratio, peer.floor, peer.aim, detail=detail)
            )
            self._report(operation, theirs, size, rows, ratio=1.0, values=values)
            self._report(operation, mine, size, rows, ratio=ratio, values=values)

    def measure(
        self,
        group: str,
        contenders: Sequence[Contender],
        *,
        clock: Clock = "CPU",
        times: int = 1,
    ) -> list[Samples]:
        """Take samples of all contenders in turn.

        Args:
            group: As the group is called.
            contenders: In the order in which they take turns.
            clock: What is measured.
            times: How many times more samples are taken than elsewhere.
        """
        self._benchmark.group = group
        samples = [Samples(contender) for contender in contenders]
        if not self.small:
            for each in samples:
                self._warm_up(each, CLOCKS[clock])
        start = time.perf_counter()
        for number in range(1 if self.small else times * self._rounds):
            spent = time.perf_counter() - start
            if number >= FEWEST_ROUNDS and spent > GROUP_SECONDS:
                break
            for each in samples:
                each.take(CLOCKS[clock])
        return samples

    def line(self, line: Line) -> None:
        """Add a figure that is no ratio of times."""
        self._table.add(line)
        self._benchmark.extra_info.update(value=line.value, unit=line.unit)

    def not_built(
        self, operation: str, peer: str, floor: float, aim: float | None, lacks: str
    ) -> None:
        """Say that an operation cannot be measured yet, and skip its test."""
        self._table.add(
            Line(operation, peer, None, floor, aim, detail=f"no {lacks} yet")
        )
        pytest.skip(f"{operation}: not built, no {lacks} yet")

    @staticmethod
    def _warm_up(samples: Samples, clock: Callable[[], float]) -> None:
        """Run once, and see how many calls make a sample."""
        start = clock()
        result = samples.contender.run()
        taken = max(clock() - start, 1e-6)
        check_result(samples.contender, result)
        samples.iterations = min(MOST_ITERATIONS, math.ceil(SAMPLE_SECONDS / taken))

    def _report(
        self,
        group: str,
        samples: Samples,
        size: int | None,
        rows: int | None,
        **info: Any,
    ) -> None:
        """Give the samples to pytest-benchmark, as a benchmark of their own."""
        if self._benchmark.disabled:
            return
        # The fixture stands for one function; a row has several.
        twin = copy.copy(self._benchmark)
        twin.group, twin.name = group, samples.contender.name
        twin.fullname = f"{self._benchmark.fullname}::{twin.name}"
        twin.extra_info = info | {"gc": True}
        if size is not None:
            twin.extra_info["bytes_per_second"] = size / samples.median
        if rows is not None:
            twin.extra_info["rows_per_second"] = rows / samples.median
        stats = twin._make_stats(1)
        for seconds in samples.seconds:
            stats.update(seconds)


def parameter(function: Any, names: Iterable[str]) -> str | None:
    """Return the first of the names that is a parameter of the function."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    return next((name for name in names if name in known), None)


def run_child(command: Sequence[str]) -> str:
    """Run a child process and return what it printed."""
    return subprocess.check_output(command, text=True, stderr=subprocess.PIPE)  # noqa: S603 - ours


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    names = [
        n.partition(":")[2].strip() for n in text.splitlines() if "model name" in n
    ]
    return names[0] if names else platform.machine()


def _short(number: float) -> str:
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{_short(seconds * 1e3)} ms"
    return f"{_short(seconds * 1e6)} µs"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
