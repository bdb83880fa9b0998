"""Charts as inline SVG, each with a table behind it. The number of marks is bounded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from dsh_codec.html_marks import Markup, clip, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Write = Callable[[float], str]
    Span = tuple[float, float]

__all__ = [
    "Axis",
    "Bar",
    "Lane",
    "area",
    "bars",
    "columns",
    "duration",
    "figure",
    "histogram",
    "joined",
    "lanes",
    "legend",
    "scatter",
    "short",
]

WIDTH: Final = 720
NARROW: Final = 460
"""Width of charts of which two stand side by side."""
_LEFT: Final = 64
_RIGHT: Final = 16
_BINS: Final = 32
_MOST_DOTS: Final = 1000
_MERGE: Final = (
    0.75  # Marks that are nearer than that, in units of the drawing, become one.
)


class Bar(NamedTuple):
    """A bar of parts one behind the other.

    Attributes:
        label: Its name.
        parts: Class and value of each part.
        text: What stands behind it.
    """

    label: str
    parts: Sequence[tuple[str, float]]
    text: str


class Lane(NamedTuple):
    """A row of a timeline.

    Attributes:
        label: Its name.
        parts: Marks one below the other: for each part class and stretches, as start and end on
            the axis; what comes later lies above.
        title: What the row holds, in words.
        text: What stands behind it.
    """

    label: str
    parts: Sequence[Sequence[tuple[str, Sequence[Span]]]]
    title: str
    text: str = ""


class Axis(NamedTuple):
    """An axis from 0.

    Attributes:
        end: Its last value.
        write: Puts a value into words.
        is_time: Whether values are milliseconds, which have steps of their own.
        cuts: Values at which something was left out.
    """

    end: float
    write: Write
    is_time: bool = False
    cuts: Sequence[float] = ()


def short(value: float) -> str:
    """Return a number in few characters."""
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def duration(ms: float) -> str:
    """Return milliseconds in a unit that suits them."""
    if ms < 0:
        return f"-{duration(-ms)}"
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    seconds = round(seconds)
    for size, unit, part, part_unit in (
        (3600, "min", 1, "s"),
        (86400, "h", 60, "min"),
        (math.inf, "d", 3600, "h"),
    ):
        if seconds < size:
            whole = {"min": 60, "h": 3600, "d": 86400}[unit]
            rest = seconds % whole // part
            text = f"{seconds // whole:,} {unit}"
            return f"{text} {rest} {part_unit}" if rest else text
    raise AssertionError


def figure(
    title: str,
    drawing: Markup,
    data: Markup | None = None,
    *,
    keys: Markup | None = None,
    note: str | None = None,
    is_wide: bool = True,
) -> Markup:
    """Return a chart with its title, its legend and the table behind it."""
    shown = tag("div", drawing, class_="scroll wide") if is_wide else drawing
    return tag(
        "figure",
        tag("h3", title),
        None if note is None else tag("p", note, class_="note"),
        keys,
        shown,
        None
        if data is None
        else tag("details", tag("summary", f"Table: {title}"), data),
    )


def legend(*pairs: tuple[str, str]) -> Markup:
    """Return what the classes of marks mean."""
    items = []
    for kind, meaning in pairs:
        box = tag("rect", width=10, height=10, rx=2, class_=kind)
        drawn = tag("svg", box, viewBox="0 0 10 10", aria_hidden="true")
        items.append(tag("li", drawn, meaning))
    return tag("ul", *items, class_="legend")


def bars(label: str, rows: Sequence[Bar]) -> Markup:
    """Return horizontal bars, one below the other, on one scale."""
    left, right, step = 190, 150, 24
    room = WIDTH - left - right
    most = max((sum(value for _, value in row.parts) for row in rows), default=0) or 1
    marks = []
    for number, row in enumerate(rows):
        top = number * step
        marks.append(_text(clip(row.label, 28), left - 8, top + 15, "name end"))
        place = float(left)
        for kind, value in row.parts:
            size = value / most * room
            if size > 0:
                bar = {"x": place, "y": top + 4, "width": max(size, 0.5), "height": 15}
                marks.append(tag("rect", class_=kind, **bar))
            place += size
        marks.append(_text(row.text, place + 6, top + 15))
    return _svg(label, max(len(rows), 1) * step + 2, marks)


def columns(
    label: str,
    names: Sequence[str],
    stacks: Sequence[Sequence[tuple[str, float]]],
    write: Write,
) -> Markup:
    """Return vertical bars of parts one above the other, from left to right."""
    height, top, base = 190, 12, 160
    most = max((sum(value for _, value in stack) for stack in stacks), default=0) or 1
    marks = _rules(most, write, top, base)
    step = (WIDTH - _LEFT - _RIGHT) / max(len(names), 1)
    width = min(step * 0.8, 40)
    every = math.ceil(len(names) * 74 / (WIDTH - _LEFT - _RIGHT))
    for number, (name, stack) in enumerate(zip(names, stacks, strict=True)):
        middle = _LEFT + step * (number + 0.5)
        place = float(base)
        for kind, value in stack:
            size = value / most * (base - top)
            place -= size
            if size > 0:
                bar = {"x": middle - width / 2, "y": place, "width": width}
                marks.append(tag("rect", class_=kind, height=size, **bar))
        if number % every == 0:
            place = min(middle, WIDTH - 34)
            marks.append(_text(name, place, base + 16, "mid"))
    return _svg(label, height, marks)


def histogram(
    label: str,
    values: Sequence[float],
    write: Write,
    marks_at: Sequence[tuple[str, float]],
    *,
    kind: str = "a",
) -> tuple[Markup, list[tuple[float, float, int]]]:
    """Return the distribution of values above 0, on a logarithmic axis, and its bins.

    Args:
        label: What it shows.
        values: The values; those that are not above 0 are left out.
        write: Puts a value into words.
        marks_at: Names and values that are marked.
        kind: Class of the bars.

    Returns:
        The drawing, and the lower end, upper end and count of each bin that is not empty.
    """
    logs = [math.log10(value) for value in values if value > 0]
    if not logs:
        return tag("p", "No values.", class_="note"), []
    low, high = min(logs), max(logs)
    if high - low < 0.6:  # So that there are some round values on the axis.
        low, high = low - 0.3, high + 0.3
    size = (high - low) / _BINS
    counts = [0] * _BINS
    for value in logs:
        counts[min(int((value - low) / size), _BINS - 1)] += 1
    height, top, base = 190, 26, 160
    most = max(counts)
    marks = _rules(most, short, top, base, NARROW, whole=True)
    room = NARROW - _LEFT - _RIGHT

    def at(power: float) -> float:
        return _LEFT + (power - low) / (high - low) * room

    for number, count in enumerate(counts):
        if count:
            tall = count / most * (base - top)
            bar = {"y": base - tall, "width": room / _BINS - 1, "height": tall}
            marks.append(tag("rect", class_=kind, x=at(low + number * size), **bar))
    last = -math.inf
    for tick in _log_ticks(low, high):
        place = at(math.log10(tick))
        if place - last >= 58:
            marks.append(_text(write(tick), place, base + 16, "mid"))
            marks.append(_line(place, base, place, base + 4, "axis"))
            last = place
    last = -math.inf
    for name, value in marks_at:
        if value <= 0:
            continue
        place = min(max(at(math.log10(value)), _LEFT), NARROW - _RIGHT)
        marks.append(_line(place, top - 10, place, base, "mark"))
        if place - last >= 40:
            end = "name end" if place > NARROW - 60 else "name"
            shift = -3 if place > NARROW - 60 else 3
            marks.append(_text(name, place + shift, top - 12, end))
            last = place
    found = [
        (10 ** (low + number * size), 10 ** (low + (number + 1) * size), count)
        for number, count in enumerate(counts)
        if count
    ]
    return _svg(label, height, marks, NARROW), found


def lanes(label: str, rows: Sequence[Lane], axis: Axis, *, step: int = 22) -> Markup:
    """Return a timeline: a row a thing, marks where it happens."""
    left, right = 76.0, 76 if any(row.text for row in rows) else _RIGHT
    room = WIDTH - left - right
    base = len(rows) * step + 4
    end = axis.end or 1

    scale = room / end

    def at(value: float) -> float:
        place = value * scale
        if place < 0:
            return left
        return left + (place if place < room else room)

    marks = []
    last = -math.inf
    for tick in _ticks(end, 6, is_time=axis.is_time):
        place = at(tick)
        marks.append(_line(place, 0, place, base, "grid"))
        if place - last >= 56:
            marks.append(_text(axis.write(tick), place, base + 14, "mid"))
            last = place
    marks += [_line(at(cut), 0, at(cut), base, "cut") for cut in axis.cuts]
    for number, row in enumerate(rows):
        top = number * step + 3
        count = max(len(row.parts), 1)
        tall = (step - 6) / count
        inner = [tag("title", row.title)]
        inner.append(_text(row.label, left - 8, top + step / 2 + 1, "name end"))
        for place, part in enumerate(row.parts):
            for kind, spans in part:
                path = _boxes(
                    [(at(start), at(stop)) for start, stop in spans],
                    top + tall * place,
                    tall - (1 if count > 1 else 0),
                )
                if path:
                    inner.append(tag("path", d=path, class_=kind))
        if row.text:
            inner.append(_text(row.text, WIDTH - right + 6, top + step / 2 + 1, "name"))
        marks.append(tag("g", *inner))
    return _svg(label, base + 20, marks)


def scatter(
    label: str, dots: Sequence[tuple[float, float]], axis: Axis, write: Write
) -> Markup:
    """Return dots over an axis; above it a logarithmic one. Values not above 0 are left out.

    Of too many dots each stretch of the axis keeps its lowest, its highest and some between.
    """
    shown = [(x, math.log10(y)) for x, y in dots if y > 0]
    if not shown:
        return tag("p", "No values.", class_="note")
    height, top, base = 190, 10, 160
    low = min(y for _, y in shown)
    high = max(y for _, y in shown)
    if high - low < 0.6:  # So that there are some round values on the axis.
        low, high = low - 0.3, high + 0.3
    room = NARROW - _LEFT - _RIGHT
    marks = []
    last = math.inf
    for tick in _log_ticks(low, high):
        place = base - (math.log10(tick) - low) / (high - low) * (base - top)
        marks.append(_line(_LEFT, place, NARROW - _RIGHT, place, "grid"))
        if last - place >= 14:
            marks.append(_text(write(tick), _LEFT - 6, place + 4, "end"))
            last = place
    end = axis.end or 1
    last = -math.inf
    for tick in _ticks(end, 6, is_time=axis.is_time):
        place = _LEFT + tick / end * room
        if place - last >= 56:
            marks.append(_text(axis.write(tick), place, base + 18, "mid"))
            last = place
    # On a grid of half a unit many dots are the same.
    x_scale, y_scale = 2 * room / end, 2 * (base - top) / (high - low)
    points = {(int(x * x_scale), int((y - low) * y_scale)) for x, y in shown}
    thinned = _thinned(sorted(points))
    drawn = Markup(
        "".join([f"M{_LEFT + x / 2:g} {base - y / 2:g}h0" for x, y in thinned])
    )
    kind = "dots few" if len(thinned) < 200 else "dots"
    marks.append(tag("path", d=drawn, class_=kind))
    return _svg(label, height, marks, NARROW)


def area(label: str, layers: Sequence[tuple[str, Sequence[float]]]) -> Markup:
    """Return small layers one above the other, without axes: equal steps from left to right."""
    width, height = 220, 48
    count = max((len(values) for _, values in layers), default=0)
    sums = [0.0] * count
    tops = []
    for _, values in layers:
        sums = [below + value for below, value in zip(sums, values, strict=True)]
        tops.append(sums)
    most = max(sums, default=0) or 1
    step = width / max(count, 1)
    marks = []
    # From the topmost layer down: each hides what is below it.
    for (kind, _), values in reversed(list(zip(layers, tops, strict=True))):
        if any(values):
            path = [f"M0 {height}"]
            for number, value in enumerate(values):
                tall = height - value / most * height
                path.append(f"L{number * step:.1f} {tall:.1f}h{step:.2f}")
            drawn = Markup("".join(path) + f"V{height}z")
            marks.append(tag("path", d=drawn, class_=kind))
    marks.append(_line(0, height, width, height, "axis"))
    # There are many of them, and their figures stand below: no stop for each on the way.
    return _svg(label, height + 1, marks, width, is_focusable=False)


def _svg(
    label: str,
    height: float,
    marks: Iterable[Markup],
    width: int = WIDTH,
    *,
    is_focusable: bool = True,
) -> Markup:
    return tag(
        "svg",
        *marks,
        viewBox=f"0 0 {width} {height:g}",
        role="img",
        aria_label=label,
        tabindex="0" if is_focusable else None,
    )


def _text(text: str, x: float, y: float, kind: str | None = None) -> Markup:
    return tag("text", text, x=float(x), y=float(y), class_=kind)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return tag("path", d=f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", class_=kind)


def _rules(
    most: float,
    write: Write,
    top: float,
    base: float,
    width: int = WIDTH,
    *,
    whole: bool = False,
) -> list[Markup]:
    marks = []
    for tick in _ticks(most, 4, whole=whole):
        place = base - tick / most * (base - top)
        kind = "grid" if tick else "axis"
        marks.append(_line(_LEFT, place, width - _RIGHT, place, kind))
        marks.append(_text(write(tick), _LEFT - 6, place + 4, "end"))
    return marks


def _boxes(spans: Iterable[Span], top: float, tall: float) -> Markup:
    """Return a path of boxes; those that would touch are one."""
    parts = []
    for start, end in joined(spans, _MERGE):
        wide = max(end - start, 0.8)
        parts.append(f"M{start:.1f} {top:.1f}h{wide:.1f}v{tall:.1f}h-{wide:.1f}z")
    return Markup("".join(parts))


def joined(spans: Iterable[Span], most_apart: float) -> list[Span]:
    """Return stretches in order; those that are not further apart are one."""
    merged: list[Span] = []
    first: float | None = None
    last = 0.0
    for start, end in sorted(spans):
        if first is None:
            first, last = start, end
        elif start - last > most_apart:
            merged.append((first, last))
            first, last = start, end
        elif end > last:
            last = end
    return merged if first is None else [*merged, (first, last)]


def _thinned(dots: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if len(dots) <= _MOST_DOTS:
        return dots
    size = math.ceil(len(dots) / (_MOST_DOTS // 4))
    kept: list[tuple[int, int]] = []
    for first in range(0, len(dots), size):
        part = sorted(dots[first : first + size], key=lambda dot: dot[1])
        kept += {part[0], part[len(part) // 3], part[2 * len(part) // 3], part[-1]}
    return kept


_TIME_STEPS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(second * 1000 for second in (1, 2, 5, 10, 15, 30)),
    *(minute * 60_000 for minute in (1, 2, 5, 10, 15, 30)),
    *(hour * 3_600_000 for hour in (1, 2, 3, 6, 12)),
    *(day * 86_400_000 for day in (1, 2, 5, 10, 20, 50, 100)),
)


def _ticks(
    end: float, count: int, *, is_time: bool = False, whole: bool = False
) -> list[float]:
    """Return round values from 0 to the end."""
    wanted = end / count
    step: float = 0
    if is_time:
        step = next((step for step in _TIME_STEPS if step >= wanted), 0)
    if not step:
        power: float = 10 ** math.floor(math.log10(wanted))
        step = next(power * part for part in (1, 2, 5, 10) if power * part >= wanted)
    if whole:
        step = max(round(step), 1)
    return [number * step for number in range(int(end / step * 1.0001) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return round values between two powers of ten."""
    factors = (1, 2, 5) if high - low < 3 else (1,)
    ticks = [
        factor * 10.0**power
        for power in range(math.floor(low), math.ceil(high) + 1)
        for factor in factors
    ]
    return [tick for tick in ticks if low - 1e-9 <= math.log10(tick) <= high + 1e-9]
