"""Decoding of one row into what the scan has to know of it. Spec: 10 §5."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

from dsh_codec._pure.quote import MISSING, quote
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

_REQUIRED: Final = ("type", "seq", "time", "data")
_OPTIONAL: Final = ("ignorable", "sourceEventSeqs", "surfaceOp")
_PACKED_KEYS: Final = frozenset({"type", "seq0", "time0", "data"})
_TEXT_KEYS: Final = frozenset({"turn", "step", "index", "dt", "texts"})
_TOOL_KEYS: Final = frozenset({"turn", "step", "index", "id", "dt", "args"})


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
    for key in _REQUIRED:
        if key not in row:
            _refuse(EVENT_RULE, f"the row lacks {key}")
    for key in row:
        if key not in _REQUIRED and key not in _OPTIONAL:
            _refuse(EVENT_RULE, f"the row has the unknown member {quote(key)}")
    if type(row["type"]) is not str:
        _refuse(EVENT_RULE, f"type has to be a string, not {quote(row['type'])}")
    if not is_sint(row["time"]):
        _refuse(EVENT_RULE, f"time has to be a safe integer, not {quote(row['time'])}")
    if row.get("ignorable", True) is not True:
        _refuse(EVENT_RULE, f"ignorable has to be true, not {quote(row['ignorable'])}")
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
        _refuse(rule, f"a row has to be an object, not {quote(value)}")
    return value


def _check_sources(row: dict[str, Any], codec: SeqCodec, rule: str) -> None:
    if "sourceEventSeqs" in row:
        seq = row.get("seq", MISSING)
        if not is_count(seq):
            message = f"with sourceEventSeqs, seq has to be a count, not {quote(seq)}"
            _refuse(rule, message)
        check_seqs(row["sourceEventSeqs"], codec=codec, max_entries=int(seq))


def _decode_packed(row: dict[str, Any], kind: str, max_packed_events: int) -> Decoded:
    members_key = "args" if kind == "tool-call-chunks" else "texts"
    data = row.get("data")
    members = data.get(members_key) if type(data) is dict else None
    # Before any other rule, so that a limit is one whatever else is wrong with the row.
    if type(members) is list and len(members) > max_packed_events:
        message = (
            f"a packed row stands for {len(members)} events, more than "
            f"{max_packed_events}; raise max_packed_events"
        )
        places = (None,) * 6
        raise LimitExceededError(
            message, *places, "max_packed_events", max_packed_events
        )
    if row.keys() != _PACKED_KEYS:
        _refuse(
            PACKED_RULE, f"{kind}: the keys have to be exactly type, seq0, time0, data"
        )
    if not is_count(row["seq0"]):
        _refuse(
            PACKED_RULE, f"{kind}: seq0 has to be a count, not {quote(row['seq0'])}"
        )
    if not is_sint(row["time0"]):
        _refuse(
            PACKED_RULE,
            f"{kind}: time0 has to be a safe integer, not {quote(row['time0'])}",
        )
    if type(data) is not dict:
        _refuse(PACKED_RULE, f"{kind}: data has to be an object, not {quote(data)}")
    _check_packed_data(kind, data, members)
    time = int(row["time0"])
    for gap in data["dt"]:
        time += int(gap)
        if not is_sint(time):
            _refuse(PACKED_RULE, f"{kind}: time {time} is no safe integer")
    count = len(data[members_key])
    if not is_count(int(row["seq0"]) + count - 1):
        _refuse(PACKED_RULE, f"{kind}: the seq of the last member is no safe integer")
    return Decoded(kind, row["seq0"], int(row["time0"]), int(time), count, True, row)


def _check_packed_data(kind: str, data: dict[str, Any], members: Any) -> None:
    keys = _TEXT_KEYS
    if kind == "tool-call-chunks":
        keys = _TOOL_KEYS | ({"name"} & data.keys())
    if data.keys() != keys:
        _refuse(
            PACKED_RULE,
            f"{kind}: the keys of data have to be {', '.join(sorted(keys))}",
        )
    for key in ("turn", "step", "index"):
        if not is_count(data[key]):
            _refuse(
                PACKED_RULE, f"{kind}: {key} has to be a count, not {quote(data[key])}"
            )
    if type(members) is not list or not members:
        _refuse(
            PACKED_RULE, f"{kind}: the members have to be a non-empty array of strings"
        )
    for member in members:
        if type(member) is not str:
            _refuse(
                PACKED_RULE, f"{kind}: a member has to be a string, not {quote(member)}"
            )
    gaps = data["dt"]
    if type(gaps) is not list or len(gaps) != len(members) - 1:
        _refuse(
            PACKED_RULE,
            f"{kind}: dt has to be an array of {len(members) - 1} differences",
        )
    for gap in gaps:
        if not is_sint(gap):
            _refuse(
                PACKED_RULE, f"{kind}: dt has to hold safe integers, not {quote(gap)}"
            )
    if kind == "tool-call-chunks":
        if type(data["id"]) is not str or data["id"] == "":
            _refuse(PACKED_RULE, f"{kind}: id has to be a non-empty string")
        if (
            type(data.get("name", "")) is not str
        ):  # Unlike in a stream, it may be empty.
            _refuse(
                PACKED_RULE,
                f"{kind}: name has to be a string, not {quote(data['name'])}",
            )
