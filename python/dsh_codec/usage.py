"""Tokens and costs, summed up: by session, day, model, provider, project. Spec: 80 §4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsh_codec.call_rows import TOKEN_COLUMNS, CallColumns, merged_sums, sum_tokens
from dsh_codec.calls import read_call_lists, read_token_sums, read_token_totals
from dsh_codec.grouping import By, Grouping, Key, sort_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo
    from decimal import Decimal

    from dsh_codec._types import Call, Compression, TokenSums
    from dsh_codec.corpus import Places, Readings
    from dsh_codec.find import Session
    from dsh_codec.grouping import Moment
    from dsh_codec.prices import PriceTable

__all__ = ["Totals", "Usage", "UsageRow", "usage"]

COLUMNS: Final = TOKEN_COLUMNS


class Totals(NamedTuple):
    """Tokens of some calls. Spec: 80 §4.

    Attributes:
        calls: Number of calls, failed attempts included.
        input, output, cache_read, cache_write, reasoning, total: Sums over the calls that know
            it; None if none does.
        unknown: For each of these, the number of calls that do not know it.
        cost: Sum over the calls that have a price; None if none has, or without a price table.
        unpriced: Calls without a price; None without a price table.
    """

    calls: int
    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    reasoning: int | None
    total: int | None
    unknown: dict[str, int]
    cost: Decimal | None = None
    unpriced: int | None = None


class UsageRow(NamedTuple):
    """Totals of one group.

    Attributes:
        key: One value for each thing grouped by; None where it is unknown.
        totals: The group's totals.
    """

    key: Key
    totals: Totals


@dataclass(frozen=True, slots=True)
class Usage:
    """What `usage` found. Iterating yields its rows.

    Attributes:
        by: What it is grouped by.
        rows: One row a group, in the order of their keys, unknown ones last.
        totals: Over all groups.
        log_count: Logs that were read.
        errors: Sessions that could not be read and contribute nothing, each with its `error`.
        currency: What costs are in; None if the price table does not say.
    """

    by: tuple[By, ...]
    rows: tuple[UsageRow, ...]
    totals: Totals
    log_count: int
    errors: tuple[Session, ...]
    currency: str | None = None

    def __iter__(self) -> Iterator[UsageRow]:
        """Yield the rows."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def _repr_html_(self) -> str:
        """Return what notebooks show: the rows and their totals."""
        from dsh_codec.html_repr import usage_html

        return usage_html(self)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as flat JSON values, one member for each thing grouped by."""
        return [
            dict(zip(self.by, row.key, strict=True)) | totals_members(row.totals)
            for row in self.rows
        ]


def usage(
    paths: Places,
    *,
    by: By | Sequence[By] = (),
    tz: tzinfo | str = "UTC",
    since: Moment | None = None,
    until: Moment | None = None,
    prices: PriceTable | None = None,
    compression: Compression | None = None,
) -> Usage:
    """Sum up what the sessions at some places used. Own calls only, so none counts twice.

    Args:
        paths: Roots, directories, log files, entries of `find` or open logs; one or many.
        by: What to group by: `session`, `project`, `day`, `month`, `model`, `provider` and
            others, see `By`; several make finer groups, none makes one.
        tz: Time zone of days and months: an object, a name of the tz database, or `local`.
        since: First moment of calls that count; calls without a valid time then do not.
        until: First moment of calls that do not count any more.
        prices: Prices of tokens, see `PriceTable`.
        compression: Decides where both encodings of a generation are present.

    Returns:
        The totals, and the sessions that could not be read.

    Raises:
        OSError: A place is not there.
        TypeError: An argument is of another type.
        ValueError: There is no such thing to group by, no such time zone, or `since` is after
            `until`.

    Note:
        Memory: one attempt and the rows of one session, and a few numbers a group.
        Spec: 80 §2, §4.

    Example:
        >>> usage([], by="day").totals.calls
        0
    """
    if prices is not None:
        from dsh_codec.prices import require_table

        require_table(prices)
    grouping = Grouping(by, tz=tz, since=since, until=until)
    groups: dict[Key, _Sums] = {}

    def group_of(key: Key) -> _Sums:
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Sums(prices)
        return group

    found: Readings[Any]
    if prices is None and grouping.takes_everything:
        found = read_token_totals(paths, compression=compression)
        for sums in found:
            if sums.calls:
                group_of(()).add_sums(sums)
    elif prices is None and grouping.is_per_log:
        found = read_token_sums(paths, grouping.sums, compression=compression)
        for key, sums in found:
            group_of(key).add_sums(sums)
    else:
        columns = CallColumns(times=False)
        found = read_call_lists(paths, columns, grouping.lists, compression=compression)
        for key, calls in found:
            group_of(key).add(calls)
    everything = _Sums(prices)
    for group in groups.values():
        everything.merge(group)
    rows = [UsageRow(key, groups[key].totals()) for key in sorted(groups, key=sort_key)]
    return Usage(
        grouping.by,
        tuple(rows),
        everything.totals(),
        found.log_count,
        tuple(found.errors),
        None if prices is None else prices.currency,
    )


def totals_members(totals: Totals) -> dict[str, Any]:
    """Return totals as flat JSON values; costs as text, which keeps all digits."""
    members: dict[str, Any] = {"calls": totals.calls}
    members |= {name: getattr(totals, name) for name in COLUMNS}
    members |= {f"unknown_{name}": count for name, count in totals.unknown.items()}
    if totals.unpriced is not None:
        members["cost"] = None if totals.cost is None else f"{totals.cost:f}"
        members["unpriced"] = totals.unpriced
    return members


class _Sums:
    def __init__(self, prices: PriceTable | None) -> None:
        self._prices = prices
        self._sums = sum_tokens([])
        self._cost: Decimal | None = None
        self._unpriced = 0

    def add(self, calls: list[Call]) -> None:
        self.add_sums(sum_tokens(calls))
        if self._prices is not None:
            for call in calls:
                self._add_cost(self._prices.cost(call))

    def add_sums(self, found: TokenSums) -> None:
        """Take sums over calls that need no cost."""
        self._sums = merged_sums(self._sums, found)

    def _add_cost(self, cost: Decimal | None) -> None:
        if cost is None:
            self._unpriced += 1
        else:
            self._cost = cost if self._cost is None else self._cost + cost

    def merge(self, other: _Sums) -> None:
        """Take what another one has."""
        self.add_sums(other._sums)
        self._unpriced += other._unpriced
        if other._cost is not None:
            self._add_cost(other._cost)

    def totals(self) -> Totals:
        calls, sums, known = self._sums
        values = [
            value if count else None for value, count in zip(sums, known, strict=True)
        ]
        unknown = [calls - count for count in known]
        return Totals(
            calls=calls,
            **dict(zip(COLUMNS, values, strict=True)),
            unknown=dict(zip(COLUMNS, unknown, strict=True)),
            cost=self._cost,
            unpriced=None if self._prices is None else self._unpriced,
        )
