"""What the pages of a log and of a root share: tokens by model, how fast answers came."""

from __future__ import annotations

from array import array
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from dsh_codec.html_charts import (
    Bar,
    bars,
    duration,
    figure,
    histogram,
    legend,
    short,
)
from dsh_codec.html_marks import Markup, clip, table, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dsh_codec.calls import Call

__all__ = ["TOKEN_KEYS", "TOKEN_PARTS", "TOKEN_TITLES", "Figures", "Tokens"]

TOKEN_PARTS: Final = (
    ("a", "input"),
    ("wait", "cache_read"),
    ("c", "cache_write"),
    ("b", "output"),
)
TOKEN_KEYS: Final = (
    ("a", "input"),
    ("wait", "cache read"),
    ("c", "cache write"),
    ("b", "output"),
)
_NAMES: Final = ("input", "cache_read", "cache_write", "output", "reasoning")


class Tokens:
    """Sums of calls; what is not known is counted, not added."""

    def __init__(self) -> None:
        """Begin without calls."""
        self.calls = 0
        self.failed = 0
        self.sums: dict[str, int] = dict.fromkeys(_NAMES, 0)
        self.known: dict[str, int] = dict.fromkeys(_NAMES, 0)

    def add(self, calls: Sequence[Call]) -> None:
        """Take calls."""
        self.calls += len(calls)
        self.failed += sum([call.outcome == "failed" for call in calls])
        for name in _NAMES:
            column = map(attrgetter(name), calls)
            values = [value for value in column if value is not None]
            self.sums[name] += sum(values)
            self.known[name] += len(values)

    @property
    def total(self) -> int:
        """All tokens; reasoning is part of the output."""
        return sum(self.sums[name] for _, name in TOKEN_PARTS)

    def parts(self) -> list[tuple[str, float]]:
        """Return class and sum of each part of a bar."""
        return [(kind, self.sums[name]) for kind, name in TOKEN_PARTS]

    def cell(self, name: str) -> str | None:
        """Return a sum in words: `?` behind it where some calls do not know it."""
        if not self.known[name]:
            return None
        return f"{self.sums[name]:,}" + ("" if self.known[name] == self.calls else " ?")

    def short(self, name: str) -> str:
        """Return a sum in few characters."""
        return short(self.sums[name]) if self.known[name] else "unknown"

    def cells(self) -> list[str | None]:
        """Return the cells that `TOKEN_TITLES` name."""
        return [f"{self.calls:,}", f"{self.failed:,}", *map(self.cell, _NAMES)]


TOKEN_TITLES: Final = (
    "#calls",
    "#failed",
    "#input",
    "#cache read",
    "#cache write",
    "#output",
    "#reasoning",
)


class Figures:
    """What calls add up to: tokens, by model too, and how fast they were."""

    def __init__(self) -> None:
        """Begin without calls."""
        self.all = Tokens()
        self._models: dict[str, Tokens] = {}
        self._first_ms = array("d")
        self._rates = array("d")

    def add(self, calls: Sequence[Call]) -> None:
        """Take calls."""
        self.all.add(calls)
        models: dict[str, list[Call]] = {}
        for call in calls:
            name = call.served_model or call.model or "unknown"
            models.setdefault(name, []).append(call)
        for name, found in models.items():
            self._models.setdefault(name, Tokens()).add(found)
        self._first_ms.extend([c.ttft for c in calls if c.ttft is not None])
        rates = [call.output_rate for call in calls if call.output_rate is not None]
        self._rates.extend(rates)

    def tiles(self) -> list[tuple[str, object]]:
        """Return figures with their names."""
        return [
            ("Model calls", f"{self.all.calls:,}"),
            ("Failed calls", f"{self.all.failed:,}"),
            ("Input tokens", self.all.short("input")),
            ("Read from cache", self.all.short("cache_read")),
            ("Output tokens", self.all.short("output")),
        ]

    def models(self) -> Markup:
        """Return the tokens of each model."""
        models = sorted(
            self._models.items(), key=lambda item: (-item[1].total, item[0])
        )
        rows = [
            Bar(name, found.parts(), f"{short(found.total)} tokens")
            for name, found in models[:15]
        ]
        data = table(
            ["model", *TOKEN_TITLES],
            ([clip(name, 120), *found.cells()] for name, found in models),
            caption="Tokens by model; ? says that some calls do not tell, - that none does",
        )
        drawing = bars("Tokens by model", rows)
        chart = figure("Tokens by model", drawing, data, keys=legend(*TOKEN_KEYS))
        return tag("section", tag("h2", "Models"), chart)

    def speed(self, *more: Markup) -> Markup:
        """Return how long first tokens took and how fast the others came."""
        both = tag(
            "div",
            _distribution("Time to the first token", self._first_ms, duration, "a"),
            _distribution("Output rate, tokens/s", self._rates, short, "c"),
            class_="pair",
        )
        return tag("section", tag("h2", "Speed"), both, *more)


def _distribution(
    title: str, found: Iterable[float], write: Callable[[float], str], kind: str
) -> Markup:
    values = sorted(found)
    marks = [
        (f"p{percent}", values[max(-(-percent * len(values) // 100), 1) - 1])
        for percent in (50, 90, 99)
        if values
    ]
    drawing, bins = histogram(f"{title}: attempts", values, write, marks, kind=kind)
    told = ", ".join(f"{name} {write(value)}" for name, value in marks)
    note = f"{len(values):,} attempt{'' if len(values) == 1 else 's'}"
    if told:
        note += f": {told}"
    left = sum(value <= 0 for value in values)
    if left:
        note += f"; {left:,} not above 0 left out"
    data = table(
        ["from", "to", "#attempts"],
        ([write(low), write(high), f"{count:,}"] for low, high, count in bins),
        caption=title,
    )
    return figure(title, drawing, data if bins else None, note=note)
