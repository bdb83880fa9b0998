"""Decoding of one row into what the scan has to know of it. Spec: 10 §5."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

from dsh_codec._pure.quote import MISSING
from dsh_codec._pure.seqs import check_seqs
from dsh_codec.errors import LimitExceededError, RowError
from dsh_codec.values import is_count, is_sint

if TYPE_CHECKING:
    from dsh_codec._types import SeqCodec

PACKED_TYPES: Final = ("text-chunks", "reasoning-chunks", "tool-call-chunks")
"""Tags of packed rows of generations 0 and 1. Spec: 10 §5.3."""

EVENT_RULE: Final = "10 §5.1"
EARLY_RULE: Final = "10 §5.2"
PACKED_RULE: Final = "10 §5.3"

_REQUIRED: Final = frozenset({"type", "seq", "time", "data"})
_KEYS: Final = _REQUIRED | {"ignorable", "sourceEventSeqs", "surfaceOp"}
_PACKED_KEYS: Final = frozenset({"type", "seq0", "time0", "data"})
_TEXT_KEYS: Final = frozenset({"turn", "step", "index", "dt", "texts"})
_TOOL_KEYS: Final = frozenset({"turn", "step", "index", "id", "name", "dt", "args"})


class Decoded(NamedTuple):
    """A row that decodes.

    Attributes:
        type: Event type or tag; None if it is no string (generations 0 and 1).
        seq: `seq` or `seq0` as it stands; the scan compares it with the next seq.
        time: Time of its (first) event in milliseconds; None if that is no safe integer.
        last_time: Time of its last event.
        event_count: Events that it stands for.
        is_packed: Whether it is a packed row.
        value: The whole row.
    """

    type: str | None
    seq: Any
    time: int | None
    last_time: int | None
    event_count: int
    is_packed: bool
    value: dict[str, Any]

    @property
    def is_turn_end(self) -> bool:
        """Whether the row is a well-formed end of a turn."""
        return self.type == "turn/end"


Decoder: TypeAlias = Callable[[Any, int], Decoded]
"""Decodes a row; the second argument is the limit `max_packed_events`."""


def is_turn_end(value: Any) -> bool:
    """Whether a raw row claims to end a turn. Spec: 10 §8.1."""
    return type(value) is dict and value.get("type") == "turn/end"


def decode_event(value: Any, _max_packed_events: int) -> Decoded:
    """Decode an event row of generations 2 to 4, but for the place of its seq.

    Raises:
        RowError: It breaks a rule of 10 §5.1 or §6.
    """
    row = _object(value, EVENT_RULE)
    if not row.keys() <= _KEYS:
        _refuse(EVENT_RULE, "the row has a key other than those of an event")
    if type(row.get("type")) is not str:
        _refuse(EVENT_RULE, "`type` of the row is missing or no string")
    if not row.keys() >= _REQUIRED:
        _refuse(EVENT_RULE, "the row lacks `seq`, `time` or `data`")
    if not is_sint(row["time"]):
        _refuse(EVENT_RULE, "`time` of the row is no safe integer")
    if row.get("ignorable", True) is not True:
        _refuse(EVENT_RULE, "`ignorable` of the row is not true")
    _check_sources(row, "v2", EVENT_RULE)
    time = int(row["time"])
    return Decoded(row["type"], row["seq"], time, time, 1, False, row)


def decode_early(value: Any, max_packed_events: int) -> Decoded:
    """Decode a row of generations 0 and 1, but for the place of its seq.

    Raises:
        RowError: It breaks a rule of 10 §5.2, §5.3 or §6.
        LimitExceededError: It stands for too many events.
    """
    row = _object(value, EARLY_RULE)
    kind = row.get("type")
    if type(kind) is str and kind in PACKED_TYPES:
        return _decode_packed(row, kind, max_packed_events)
    _check_sources(row, "v0", EARLY_RULE)
    raw_time = row.get("time")
    time = int(raw_time) if is_sint(raw_time) else None
    named = kind if type(kind) is str else None
    return Decoded(named, row.get("seq", MISSING), time, time, 1, False, row)


def _refuse(rule: str, message: str) -> NoReturn:
    raise RowError(message, None, None, None, None, None, rule)


def _object(value: Any, rule: str) -> dict[str, Any]:
    if type(value) is not dict:
        _refuse(rule, "the row is no JSON object")
    return value


def _check_sources(row: dict[str, Any], codec: SeqCodec, rule: str) -> None:
    if "sourceEventSeqs" in row:
        seq = row.get("seq")
        if not is_count(seq):
            _refuse(rule, "a row with `sourceEventSeqs` needs a count as `seq`")
        check_seqs(row["sourceEventSeqs"], codec=codec, max_entries=int(seq))


def _decode_packed(row: dict[str, Any], kind: str, max_packed_events: int) -> Decoded:
    is_tool_call = kind == "tool-call-chunks"
    if not row.keys() <= _PACKED_KEYS:
        _refuse(
            PACKED_RULE, "a packed row has a key other than type, seq0, time0 and data"
        )
    if not is_count(row.get("seq0")):
        _refuse(PACKED_RULE, "`seq0` of a packed row is no count")
    if not is_sint(row.get("time0")):
        _refuse(PACKED_RULE, "`time0` of a packed row is no safe integer")
    data = row.get("data")
    if type(data) is not dict:
        _refuse(PACKED_RULE, "`data` of a packed row is no object")
    if not data.keys() <= (_TOOL_KEYS if is_tool_call else _TEXT_KEYS):
        _refuse(
            PACKED_RULE, "`data` of a packed row has a key that does not belong there"
        )
    count = _count_members(data, is_tool_call=is_tool_call)
    time = int(row["time0"])
    for gap in data["dt"]:
        if not is_sint(gap):
            _refuse(PACKED_RULE, "an entry of `dt` of a packed row is no safe integer")
        reached = time + int(gap)
        if not is_sint(reached):
            _refuse(PACKED_RULE, "a running time of a packed row leaves the safe range")
        time = int(reached)
    if not is_count(int(row["seq0"]) + count - 1):
        _refuse(PACKED_RULE, "the last seq of a packed row leaves the safe range")
    if count > max_packed_events:
        message = f"a packed row stands for {count} events; raise max_packed_events to read it"
        raise LimitExceededError(
            message, *(None,) * 6, "max_packed_events", max_packed_events
        )
    return Decoded(kind, row["seq0"], int(row["time0"]), time, count, True, row)


def _count_members(data: dict[str, Any], *, is_tool_call: bool) -> int:
    """Check the members of a packed row's data but for the entries of `dt`."""
    if not all(is_count(data.get(key)) for key in ("turn", "step", "index")):
        _refuse(
            PACKED_RULE, "`turn`, `step` and `index` of a packed row must be counts"
        )
    if is_tool_call and (type(data.get("id")) is not str or data["id"] == ""):
        _refuse(PACKED_RULE, "`id` of a packed row is no non-empty string")
    if type(data.get("name", "")) is not str:  # Unlike in a stream, it may be empty.
        _refuse(PACKED_RULE, "`name` of a packed row is no string")
    members = data.get("args" if is_tool_call else "texts")
    if (
        type(members) is not list
        or not members
        or not all(type(member) is str for member in members)
    ):
        _refuse(
            PACKED_RULE,
            "the members of a packed row must be a non-empty array of strings",
        )
    gaps = data.get("dt")
    if type(gaps) is not list or len(gaps) != len(members) - 1:
        _refuse(
            PACKED_RULE,
            "`dt` of a packed row must be an array with one entry fewer than its members",
        )
    return len(members)
