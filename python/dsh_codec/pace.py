"""When the tokens of a stream came, from its records, without a value per chunk. Spec: 20 §5, 80 §5.

The native kernel reads the bytes of rows in the same way (`rust/core/src/calls/pace.rs`).
"""

from __future__ import annotations

from itertools import accumulate, compress, takewhile
from operator import sub
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from dsh_codec._backend import kernel as default_kernel
from dsh_codec.errors import StreamError
from dsh_codec.events import is_array, is_object
from dsh_codec.limits import MAX_SAFE_INTEGER
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


def pace_of(records: Sequence[Any], kernel: Any = default_kernel) -> Pace:
    """Return the times of a stream.

    Args:
        records: Records of a `stream` field, in order. They are not validated: of a record
            that breaks a rule what can be read is used, and a time that cannot be is None.
        kernel: Reads chunks and the first token.
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
            if _has_token(record, kernel):
                last = _last_token(record)
                break
    return Pace(_first_time(records[0]), first, last, _last_time(records[-1]))


def token_gaps(records: Iterable[Any], kernel: Any = default_kernel) -> list[int]:
    """Return the differences of consecutive token deltas, across runs, in milliseconds.

    Args:
        records: As for `pace_of`; records without readable times are passed over.
        kernel: Reads chunks.
    """
    times: list[int] = []
    for record in records:
        if not is_object(record):
            continue
        key = _key_of(record)
        if key is not None:
            times += _token_times(record, record.get(key))
        elif _has_token(record, kernel):
            time = record.get("time")
            if is_safe_integer(time):
                times.append(int(time))
    return list(map(sub, times[1:], times))


def _token_times(record: dict[str, Any], members: Any) -> Iterable[int]:
    """Return the times of the tokens of a run."""
    if not _are_texts(members):
        return ()
    times = _run_times(record)
    # Spec 20 §5: with a name every delta is a token, without one those that are not empty.
    return times[: len(members)] if _is_named(record) else compress(times, members)


def _run_times(record: dict[str, Any]) -> list[int]:
    """Return the times of the members of a run, up to the first that is no safe integer.

    There are none if a gap is none.
    """
    start, gaps = record.get("time0"), record.get("dt")
    if not is_safe_integer(start) or not _are_safe(gaps):
        return []
    times = list(accumulate(map(int, gaps), initial=int(start)))
    if min(times) < -MAX_SAFE_INTEGER or max(times) > MAX_SAFE_INTEGER:
        return list(takewhile(is_safe_integer, times))
    return times


def _key_of(record: dict[str, Any]) -> str | None:
    """Return the key of the members of a run; None for any other record."""
    kind = record.get("type")
    return MEMBERS.get(kind) if type(kind) is str else None


def _is_named(record: dict[str, Any]) -> bool:
    return record["type"] == "tool-call-chunks" and "name" in record


def _are_texts(members: Any) -> TypeGuard[list[str]]:
    return is_array(members) and set(map(type, members)) <= {str}


def _are_safe(gaps: Any) -> TypeGuard[list[int | float]]:
    if not is_array(gaps):
        return False
    if not set(map(type, gaps)) <= {int}:
        return all(map(is_safe_integer, gaps))
    return not gaps or (
        min(gaps) >= -MAX_SAFE_INTEGER and max(gaps) <= MAX_SAFE_INTEGER
    )


def _has_token(record: Any, kernel: Any) -> bool:
    if not is_object(record):
        return False
    key = _key_of(record)
    if key is None:
        return record.get("type") == "chunk" and _is_token(record.get("chunk"), kernel)
    members = record.get(key)
    if not _are_texts(members):
        return False
    return bool(members) if _is_named(record) else any(members)


def _is_token(chunk: Any, kernel: Any) -> bool:
    # Raw chunks are seldom deltas: asking the kernel about all of them costs more.
    if not is_object(chunk) or chunk.get("type") not in _DELTAS:
        return False
    return bool(kernel.is_token_delta(chunk))


def _first_time(record: Any) -> int | None:
    if not is_object(record):
        return None
    time = record.get("time" if _key_of(record) is None else "time0")
    return int(time) if is_safe_integer(time) else None


def _last_time(record: Any) -> int | None:
    if not is_object(record) or _key_of(record) is None:
        return _first_time(record)
    gaps = record.get("dt")
    return _time_of_member(record, len(gaps)) if is_array(gaps) else None


def _last_token(record: dict[str, Any]) -> int | None:
    """Return the time of the last token of a record that has one."""
    key = _key_of(record)
    if key is None:
        return _first_time(record)
    members = record[key]
    last = len(members) - 1
    while not members[last] and not _is_named(record):
        last -= 1
    return _time_of_member(record, last)


def _time_of_member(record: dict[str, Any], index: int) -> int | None:
    times = _run_times(record)
    return times[index] if index < len(times) else None
