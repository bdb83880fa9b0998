"""When the tokens of a stream came, from its records, without a value per chunk. Spec: 20 §5, 80 §5."""

from __future__ import annotations

from itertools import accumulate, compress
from operator import sub
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsh_codec._backend import kernel
from dsh_codec.errors import StreamError
from dsh_codec.events import is_array, is_object
from dsh_codec.stream import MEMBERS
from dsh_codec.values import is_safe_integer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Pace", "pace_of", "token_gaps"]


_DELTAS: Final = ("text-delta", "reasoning-delta", "tool-call-delta")


class Pace(NamedTuple):
    """Times of a stream in milliseconds. Spec: 80 §5.

    Attributes:
        start_ms: First member; None in an empty stream.
        first_token_ms: First token; None without one.
        last_token_ms: Last token delta; None without one.
        end_ms: Last member; None in an empty stream.
    """

    start_ms: int | None
    first_token_ms: int | None
    last_token_ms: int | None
    end_ms: int | None


def pace_of(records: Sequence[Any]) -> Pace:
    """Return the times of a stream.

    Args:
        records: Records of a `stream` field, in order. They are not validated: of a record
            that breaks a rule what can be read is used, and a time that cannot be is None.
    """
    if not records:
        return Pace(None, None, None, None)
    try:
        first = kernel.first_token_time(records)
    except (StreamError, TypeError):
        first = None
    last = None
    if first is not None:
        for record in reversed(records):
            last = _last_token(record)
            if last is not None:
                break
    return Pace(_first_time(records[0]), first, last, _last_time(records[-1]))


def token_gaps(records: Iterable[Any]) -> list[int]:
    """Return the differences of consecutive token deltas, across runs, in milliseconds.

    Args:
        records: As for `pace_of`; records without readable times are passed over.
    """
    times: list[Any] = []
    for record in records:
        if not is_object(record):
            continue
        members, gaps = _run(record)
        if members is None:
            time = record.get("time")
            if is_safe_integer(time) and _is_token(record):
                times.append(time)
            continue
        try:
            run = list(accumulate(gaps, initial=record.get("time0")))
        except TypeError:
            continue
        # Spec 20 §5: with a name every delta is a token, without one those that are not empty.
        times += run if "name" in record else compress(run, members)
    try:
        return [int(gap) for gap in map(sub, times[1:], times)]
    except (TypeError, ValueError, OverflowError):
        return []


def _run(record: dict[str, Any]) -> tuple[list[Any] | None, list[Any]]:
    """Return the members and gaps of a run; None for any other record."""
    kind = record.get("type")
    key = MEMBERS.get(kind) if type(kind) is str else None
    if key is None:
        return None, []
    members, gaps = record.get(key), record.get("dt")
    if not is_array(members) or not is_array(gaps):
        return [], []
    return members, gaps


def _first_time(record: Any) -> int | None:
    if not is_object(record):
        return None
    time = record.get("time0" if _run(record)[0] is not None else "time")
    return int(time) if is_safe_integer(time) else None


def _last_time(record: Any) -> int | None:
    if not is_object(record):
        return None
    members, gaps = _run(record)
    if members is None:
        return _first_time(record)
    return _time_of(record, gaps)


def _last_token(record: Any) -> int | None:
    if not is_object(record):
        return None
    members, gaps = _run(record)
    if members is None:
        return _first_time(record) if _is_token(record) else None
    last = len(members) - 1
    if "name" not in record:
        while last >= 0 and not members[last]:
            last -= 1
    return None if last < 0 else _time_of(record, gaps[:last])


def _time_of(record: dict[str, Any], gaps: list[Any]) -> int | None:
    start: Any = record.get("time0")
    try:
        time = sum(gaps, start)
    except TypeError:
        return None
    return int(time) if is_safe_integer(time) else None


def _is_token(record: dict[str, Any]) -> bool:
    chunk = record.get("chunk")
    # Raw chunks are seldom deltas: asking the kernel about all of them costs more.
    if not is_object(chunk) or chunk.get("type") not in _DELTAS:
        return False
    try:
        return kernel.is_token_delta(chunk)
    except StreamError:
        return False
