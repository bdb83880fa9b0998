"""Changes of the goal and of the schedule. Spec: 50 A.6."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

from dsh_codec.events import is_filled
from dsh_codec.migrate.admission.shape import (
    Check,
    Place,
    by_member,
    count,
    exact,
    fail,
    filled,
    number,
    one_of,
    positive,
    text,
)
from dsh_codec.migrate.refusal import refuse
from dsh_codec.values import trim

RULE: Final = "50 A.6"
_INSTANT: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})\.[0-9]{3}Z"
)

# --- goal ---

_plain_goal = exact(
    {
        "id": filled,
        "revision": positive,
        "objective": filled,
        "phase": one_of("active", "paused", "blocked", "complete"),
        "maxGoalRounds": positive,
    },
    {"blockedReason": exact({"code": filled, "message": filled}, None, RULE)},
    RULE,
)


def _goal(value: Any, at: Place) -> None:
    _plain_goal(value, at)
    if ("blockedReason" in value) != (value["phase"] == "blocked"):
        refuse(RULE, "has to be there exactly in phase blocked", "blockedReason")


_CHANGE: Final[dict[str, Check]] = {
    "kind": one_of("goal/change"),
    "version": number(1),
    "operation": text,
}
_clear = exact(
    _CHANGE
    | {
        "cleared": exact({"id": filled, "revision": positive}, None, RULE),
        "clearedAt": count,
    },
    None,
    RULE,
)
_set = exact(
    _CHANGE
    | {"goal": _goal, "roundsStarted": count, "createdAt": count, "updatedAt": count},
    None,
    RULE,
)
goal_change: Final = by_member(
    "operation",
    {"clear": _clear}
    | dict.fromkeys(("create", "edit", "pause", "resume", "complete", "block"), _set),
)
"""Accepts a change of the goal."""

# --- schedule ---


def _trimmed(value: Any, at: Place) -> None:
    del at
    if not is_filled(value) or trim(value) != value:
        fail("has to be a non-empty string without white space at its ends", RULE)


def _instant(value: Any, at: Place) -> None:
    del at
    match = _INSTANT.fullmatch(value) if type(value) is str else None
    if match is None:
        fail("has to be an instant such as 2026-01-31T09:30:00.000Z", RULE)
    try:
        # Year 0 is none of Python's either. Only the ranges matter, not the zone.
        datetime(*map(int, match.groups()))  # type: ignore[arg-type]  # noqa: DTZ001
    except ValueError:
        fail("has to be an instant that exists", RULE)


def _every(value: Any, at: Place) -> None:
    positive(value, at)
    if value < 300:
        fail("has to be at least 300", RULE)


_SCHEDULE: Final[dict[str, Check]] = {
    "id": _trimmed,
    "kind": text,
    "prompt": filled,
    "scheduledAt": _instant,
}
_schedule = by_member(
    "kind",
    {
        "after": exact(_SCHEDULE | {"afterSeconds": positive}, None, RULE),
        "at": exact(_SCHEDULE, None, RULE),
        "every": exact(_SCHEDULE | {"everySeconds": _every}, None, RULE),
    },
)
_OPERATION: Final[dict[str, Check]] = {"version": number(1), "operation": text}
schedule_change: Final = by_member(
    "operation",
    {
        "create": exact(_OPERATION | {"schedule": _schedule}, None, RULE),
        "delete": exact(_OPERATION | {"id": _trimmed}, None, RULE),
        "dispatch": exact(
            _OPERATION | {"id": _trimmed}, {"acceptedAt": _instant}, RULE
        ),
    },
)
"""Accepts a change of the schedule."""
