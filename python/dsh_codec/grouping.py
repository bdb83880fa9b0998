"""Keys by which calls are grouped: session, day in a time zone, model, and so on. Spec: 80."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from dsh_codec.find import lineage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsh_codec._types import Call, Header, TimedCall, TokenSums

__all__ = ["By", "Grouping", "Key", "Moment", "time_zone", "to_ms"]

By: TypeAlias = Literal[
    "session",
    "project",
    "lineage",
    "year",
    "month",
    "day",
    "hour",
    "provider",
    "model",
    "served_model",
    "outcome",
    "turn",
    "step",
    "seq",
]
"""What calls are grouped by. `project` is the header's working directory; the times are those
of the settlement."""

Key: TypeAlias = tuple[Any, ...]
"""One value for each thing grouped by, in that order; None where it is unknown."""

Moment: TypeAlias = datetime | date | int
"""A time; a date means its first moment in the time zone, an int milliseconds since the epoch."""

_TIME_FORMATS: Final = {
    "year": "%Y",
    "month": "%Y-%m",
    "day": "%Y-%m-%d",
    "hour": "%Y-%m-%d %H:00",
}
_COLUMNS: Final = frozenset(("provider", "model", "outcome", "turn", "step", "seq"))
_CONSTANTS: Final = frozenset(("session", "project", "lineage"))
"""What is the same for all calls of a log."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Grouping:
    """Which calls are taken, and by what they are grouped."""

    def __init__(
        self,
        by: By | Sequence[By],
        *,
        tz: tzinfo | str = "UTC",
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> None:
        """Take what the caller asks for.

        Args:
            by: One or several things; none puts all calls into one group.
            tz: Time zone of days: an object, a name of the tz database, or `local`.
            since: First moment of calls that are taken.
            until: First moment of calls that are not taken any more.

        Raises:
            TypeError: One of them is of another type.
            ValueError: There is no such thing or time zone, or `since` is after `until`.
        """
        _require_names(by)
        self.by: tuple[By, ...] = (by,) if isinstance(by, str) else tuple(by)
        for name in self.by:
            if name not in get_args(By):
                choices = ", ".join(get_args(By))
                message = f"calls are grouped by {choices}, not by {name!r}"
                raise ValueError(message)
        self._tz = time_zone(tz)
        self._since = None if since is None else to_ms(since, self._tz)
        self._until = None if until is None else to_ms(until, self._tz)
        if self._since is not None and self._until is not None:
            _require_order(self._since, self._until)
        is_bounded = since is not None or until is not None
        # Whether all own calls of a log are taken, and into one group.
        self.is_per_log = not is_bounded and _CONSTANTS.issuperset(self.by)
        # Whether those of all logs are.
        self.takes_everything = not is_bounded and not self.by

    def take(self, header: Header, found: list[TimedCall]) -> list[tuple[Key, Call]]:
        """Return the own calls of a log that lie between the bounds, each with its key.

        Args:
            header: Header of the log.
            found: All its calls, see `read_calls`.
        """
        parts = [self._part(name, header) for name in self.by]
        return [
            (tuple([part(timed) for part in parts]), timed.call)
            for timed in self._own(found)
        ]

    def sums(self, header: Header, found: TokenSums) -> Iterable[tuple[Key, TokenSums]]:
        """Return the sums over the own calls of a log with their key; `is_per_log` allows it."""
        if not found.calls:
            return ()
        return ((tuple([self._constant(name, header) for name in self.by]), found),)

    def lists(
        self, header: Header, found: list[TimedCall]
    ) -> Iterable[tuple[Key, list[Call]]]:
        """Return what `take` does, the calls of each key in one list."""
        if _CONSTANTS.issuperset(self.by):
            own = self._own(found)
            if not own:
                return []
            key = tuple([self._constant(name, header) for name in self.by])
            return [(key, [timed.call for timed in own])]
        lists: dict[Key, list[Call]] = {}
        for key, call in self.take(header, found):
            lists.setdefault(key, []).append(call)
        return lists.items()

    def _own(self, found: list[TimedCall]) -> list[TimedCall]:
        if self._since is None and self._until is None:
            return [timed for timed in found if timed.call.own]
        return [
            timed
            for timed in found
            if timed.call.own and self._is_between(timed.time_ms)
        ]

    def _is_between(self, time_ms: int | None) -> bool:
        if time_ms is None:
            return False
        if self._since is not None and time_ms < self._since:
            return False
        return self._until is None or time_ms < self._until

    @staticmethod
    def _constant(name: By, header: Header) -> Any:
        if name == "session":
            return header.fields["id"]
        return header.fields.get("cwd") if name == "project" else lineage_of(header)

    def _part(self, name: By, header: Header) -> Callable[[TimedCall], Any]:
        if name in _CONSTANTS:
            constant = self._constant(name, header)
            return lambda _: constant
        if name in _COLUMNS:
            return lambda timed: getattr(timed.call, name)
        if name == "served_model":
            return lambda timed: timed.call.served_model or timed.call.model
        pattern = _TIME_FORMATS[name]
        return lambda timed: self._period(timed.time_ms, pattern)

    def _period(self, time_ms: int | None, pattern: str) -> str | None:
        if time_ms is None:
            return None
        try:
            moment = (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(self._tz)
        except (OverflowError, ValueError):
            return None  # A valid time of a log can lie outside of all calendars.
        return moment.strftime(pattern)


def time_zone(name: tzinfo | str) -> tzinfo:
    """Return a time zone.

    Args:
        name: A time zone already, a name of the tz database, or `local`.

    Raises:
        TypeError: It is neither.
        ValueError: There is none of this name.
    """
    if isinstance(name, tzinfo):
        return name
    _require_name(name)
    if name == "UTC":
        return UTC
    if name == "local":
        return _Local()
    # Only those who name a place need the database.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        message = f"there is no time zone {name!r}; names are like 'Europe/Berlin'"
        raise ValueError(message) from None


class _Local(tzinfo):
    """The time zone of this computer, with the rules that hold at each time."""

    def fromutc(self, moment: datetime) -> datetime:
        local = moment.replace(tzinfo=UTC).astimezone()
        return local.replace(tzinfo=self)

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        if moment is None:
            return None
        return moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, _: datetime | None) -> timedelta | None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "local"


def to_ms(moment: Moment, tz: tzinfo) -> int:
    """Return a moment in milliseconds since the Unix epoch.

    Args:
        moment: A date is its first moment; without a time zone, `tz` is meant.
        tz: The time zone.
    """
    if isinstance(moment, int):
        return moment
    _require_date(moment)
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day, tzinfo=tz)
    elif moment.tzinfo is None:
        moment = moment.replace(tzinfo=tz)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _require_names(value: object) -> None:
    if not isinstance(value, Iterable):
        message = (
            f"by is a name like 'day', or several of them, not {type(value).__name__}"
        )
        raise TypeError(message)


def _require_name(value: object) -> None:
    if not isinstance(value, str):
        message = (
            "tz is a tzinfo, a name like 'Europe/Berlin' or 'local', not "
            f"{type(value).__name__}"
        )
        raise TypeError(message)


def _require_order(since_ms: int, until_ms: int) -> None:
    if since_ms > until_ms:
        message = (
            "since is the first moment that counts and must not be after until, the first "
            f"that does not; it is {since_ms - until_ms:,} ms after it"
        )
        raise ValueError(message)


def _require_date(value: object) -> None:
    if not isinstance(value, date):  # A datetime is one, too.
        message = (
            "a moment is a date, a datetime or milliseconds since the epoch, not "
            f"{type(value).__name__}"
        )
        raise TypeError(message)


def sort_key(key: Key) -> tuple[tuple[bool, Any], ...]:
    """Return what sorts keys: unknown parts last."""
    return tuple((part is None, "" if part is None else part) for part in key)
