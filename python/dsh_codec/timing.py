"""How fast answers came: first tokens, rates, gaps, tools. Spec: 80 §5."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from dsh_codec.call_rows import CallColumns
from dsh_codec.calls import read_call_lists
from dsh_codec.grouping import By, Grouping, Key, sort_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import tzinfo

    from dsh_codec._types import Call, Compression, Header, TimedCall
    from dsh_codec.corpus import Places
    from dsh_codec.find import Session
    from dsh_codec.grouping import Moment

__all__ = ["Distribution", "Timing", "TimingRow", "timing"]

FIGURES: Final = ("ttft", "generation", "output_rate", "gap", "tool")
"""Figures of a row, in its order."""

SHOWN_PERCENTILES: Final = (50, 90, 95, 99)
"""Percentiles that reports show."""

_SETTLED: Final = ("message", "interrupted")
_NO_ATTEMPTS: Final = ("compaction", "auxiliary")


class Distribution:
    """Exact distribution of a figure: each value with the number of times that it occurred.

    Attributes:
        count: Values that are known.
        unknown: Values that are not.
    """

    __slots__ = ("_counts", "_sorted", "count", "unknown")

    def __init__(self) -> None:
        """Begin without values."""
        self.count = 0
        self.unknown = 0
        self._counts: Counter[float] = Counter()
        self._sorted: list[float] | None = None

    def __repr__(self) -> str:
        """Return count, median and maximum."""
        return f"Distribution(count={self.count}, p50={self.percentile(50)}, max={self.max})"

    def add(self, value: float | None) -> None:
        """Take one value; None is one that is not known."""
        if value is None:
            self.unknown += 1
            return
        self.count += 1
        self._counts[value] += 1
        self._sorted = None

    def extend(self, values: Sequence[float]) -> None:
        """Take many known values."""
        self.count += len(values)
        self._counts.update(values)
        self._sorted = None

    def merge(self, other: Distribution) -> None:
        """Take the values of another distribution."""
        self.count += other.count
        self.unknown += other.unknown
        self._counts.update(other._counts)
        self._sorted = None

    @property
    def min(self) -> float | None:
        """Smallest value; None without values."""
        return self._ordered()[0] if self.count else None

    @property
    def max(self) -> float | None:
        """Largest value; None without values."""
        return self._ordered()[-1] if self.count else None

    @property
    def mean(self) -> float | None:
        """Arithmetic mean; None without values."""
        return self.sum / self.count if self.count else None

    @property
    def sum(self) -> float:
        """Sum of the known values; 0 without any."""
        return sum(value * count for value, count in self._counts.items())

    @property
    def negative_count(self) -> int:
        """Values below zero: the clock stepped back."""
        return sum(count for value, count in self._counts.items() if value < 0)

    def percentile(self, percent: float) -> float | None:
        """Return a percentile by nearest rank: a value that occurred.

        Args:
            percent: Above 0, at most 100.

        Returns:
            The smallest value that at least this share of the values does not exceed; None
            without values.

        Raises:
            ValueError: There is no such percentile.
        """
        if not 0 < percent <= 100:
            message = f"a percentile lies above 0 and at most at 100, not at {percent}"
            raise ValueError(message)
        rank = ceil(percent * self.count / 100)
        for value in self._ordered():
            rank -= self._counts[value]
            if rank <= 0:
                return value
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return count, extremes, mean and percentiles as JSON values."""
        members: dict[str, Any] = {
            "count": self.count,
            "unknown": self.unknown,
            "min": self.min,
            "mean": self.mean,
        }
        members |= {f"p{p}": self.percentile(p) for p in SHOWN_PERCENTILES}
        return members | {"max": self.max, "negative": self.negative_count}

    def _ordered(self) -> list[float]:
        if self._sorted is None:
            self._sorted = sorted(self._counts)
        return self._sorted


class TimingRow(NamedTuple):
    """Figures of one group. Durations in milliseconds.

    Attributes:
        key: One value for each thing grouped by; None where it is unknown.
        count: Steps, or calls, of the group.
        ttft: Time to the first token.
        generation: Time from the first token to the last.
        output_rate: Output tokens per second of generation.
        gap: Differences of consecutive tokens of one attempt.
        tool: Time of each tool call.
    """

    key: Key
    count: int  # type: ignore[assignment]  # the tuple's own method is not wanted
    ttft: Distribution
    generation: Distribution
    output_rate: Distribution
    gap: Distribution
    tool: Distribution

    def add(self, call: Call) -> TimingRow:
        """Take the figures of a call, and return the row with one more of them."""
        self.ttft.add(call.ttft)
        self.generation.add(call.generation)
        self.output_rate.add(call.output_rate)
        self.gap.extend(call.gaps or ())
        for tool in call.tools or ():
            self.tool.add(tool.ms)
        return self._replace(count=self.count + 1)

    def merge(self, other: TimingRow) -> TimingRow:
        """Take the figures of another row, and return the row with as many more of them."""
        for name in FIGURES:
            getattr(self, name).merge(getattr(other, name))
        return self._replace(count=self.count + other.count)


@dataclass(frozen=True, slots=True)
class Timing:
    """What `timing` found. Iterating yields its rows.

    Attributes:
        by: What it is grouped by.
        per: What the figures are of.
        rows: One row a group, in the order of their keys, unknown ones last.
        totals: Over all groups.
        log_count: Logs that were read.
        errors: Sessions that could not be read and contribute nothing, each with its `error`.
    """

    by: tuple[By, ...]
    per: Literal["step", "call"]
    rows: tuple[TimingRow, ...]
    totals: TimingRow
    log_count: int
    errors: tuple[Session, ...]

    def __iter__(self) -> Iterator[TimingRow]:
        """Yield the rows."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def _repr_html_(self) -> str:
        """Return what notebooks show: the rows and their totals."""
        from dsh_codec.html_repr import timing_html

        return timing_html(self)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as JSON values, one member for each thing grouped by."""
        return [
            dict(zip(self.by, row.key, strict=True)) | timing_members(row)
            for row in self.rows
        ]


def timing(
    paths: Places,
    *,
    by: By | Sequence[By] = (),
    per: Literal["step", "call"] = "step",
    tz: tzinfo | str = "UTC",
    since: Moment | None = None,
    until: Moment | None = None,
    compression: Compression | None = None,
) -> Timing:
    """Measure how fast the sessions at some places were answered. Own calls only.

    Args:
        paths: Roots, directories, log files, entries of `find` or open logs; one or many.
        by: What to group by, see `usage`. `("session", "turn", "step")` gives one row a step,
            `("session", "seq")` with `per="call"` one row a call.
        per: `step`: figures of each step are those of its settled message, or else of its last
            attempt. `call`: every attempt counts.
        tz: Time zone of days and months: an object, a name of the tz database, or `local`.
        since: First moment of calls that count; calls without a valid time then do not.
        until: First moment of calls that do not count any more.
        compression: Decides where both encodings of a generation are present.

    Returns:
        The distributions, and the sessions that could not be read.

    Raises:
        OSError: A place is not there.
        TypeError: An argument is of another type.
        ValueError: There is no such thing to group by, no such time zone, or `since` is after
            `until`.

    Note:
        Memory: one attempt and the rows of one session with their gaps, and each different
        value of a figure once a group. Spec: 80 §5.

    Example:
        >>> timing([]).totals.ttft.percentile(50) is None
        True
    """
    if per not in ("step", "call"):
        message = f"figures are per 'step' or per 'call', not per {per!r}"
        raise ValueError(message)
    grouping = Grouping(by, tz=tz, since=since, until=until)

    def take(header: Header, made: list[TimedCall]) -> Iterable[tuple[Key, Call]]:
        found = [
            item
            for item in grouping.take(header, made)
            if item[1].outcome not in _NO_ATTEMPTS
        ]
        return found if per == "call" else _steps(found)

    groups: dict[Key, TimingRow] = {}
    columns = CallColumns(tools=True, gaps=True)
    found = read_call_lists(paths, columns, take, compression=compression)
    for key, call in found:
        groups[key] = (groups.get(key) or _empty(key)).add(call)
    everything = _empty(())
    for row in groups.values():
        everything = everything.merge(row)
    rows = [groups[key] for key in sorted(groups, key=sort_key)]
    return Timing(
        grouping.by,
        per,
        tuple(rows),
        everything,
        found.log_count,
        tuple(found.errors),
    )


def timing_members(row: TimingRow) -> dict[str, Any]:
    """Return the figures of a row as JSON values."""
    members: dict[str, Any] = {"count": row.count}
    return members | {name: getattr(row, name).to_dict() for name in FIGURES}


def _empty(key: Key) -> TimingRow:
    return TimingRow(key, 0, *(Distribution() for _ in FIGURES))


def _steps(found: Iterable[tuple[Key, Call]]) -> list[tuple[Key, Call]]:
    """Keep one call of each step. Spec: 80 §5."""
    chosen: dict[tuple[int | None, int | None], tuple[Key, Call]] = {}
    for key, call in found:
        place = call.turn, call.step
        before = chosen.get(place)
        if (
            before is None
            or call.outcome in _SETTLED
            or before[1].outcome not in _SETTLED
        ):
            chosen[place] = key, call
    return list(chosen.values())
