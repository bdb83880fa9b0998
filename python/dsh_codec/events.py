"""Event inventory of generation 4 and the small tests that every rule over events shares."""

from __future__ import annotations

from typing import Any, Final, TypeGuard

from dsh_codec.errors import RowError
from dsh_codec.values import is_count, is_number, is_safe_integer

KNOWN_TYPES: Final = frozenset(
    (
        "agent-preset/selected",
        "agent/inbox/spliced",
        "approval/asked",
        "approval/decided",
        "approval/policy",
        "assistant/attempt",
        "assistant/message",
        "command/done",
        "command/run",
        "compaction/end",
        "compaction/prune",
        "compaction/start",
        "compaction/summary",
        "deliverables/presented",
        "developer/message",
        "feedback/message-delete",
        "feedback/message-put",
        "feedback/record",
        "goal/change",
        "hook/invoked",
        "hook/result",
        "image/offload",
        "job/registered",
        "job/settled",
        "llm/retry",
        "llm/retry-started",
        "model/selection",
        "permission/preset",
        "plan/mode",
        "request/context",
        "request/header",
        "sandbox/mode",
        "schedule/change",
        "session-log-deepseek/delivery-accepted",
        "session/end-seed",
        "session/title",
        "session/title-llm-request",
        "step/end",
        "step/start",
        "subagent/catalog",
        "subagent/descriptor",
        "subagent/model-selection-policy",
        "system/message",
        "team/member",
        "team/message/delivered",
        "team/message/queued",
        "team/task",
        "todo/write",
        "tool-workflow/agent-end",
        "tool-workflow/agent-start",
        "tool-workflow/run-end",
        "tool-workflow/run-start",
        "tool/call",
        "tool/ptc-dispatch",
        "tool/ptc-dispatch-start",
        "tool/result",
        "turn/end",
        "turn/start",
        "user/message",
        "web/deepseek-search-llm-request",
        "working-directory/change",
        "workspace/changes",
    )
)
"""The 62 types of generation 4. Spec: 30 §3."""

SURFACE_ROLES: Final = {
    "system/message": "system",
    "developer/message": "developer",
    "user/message": "user",
    "assistant/message": "assistant",
    "tool/result": "tool",
}
"""Each surface type with the role of its message. Spec: 30 §2."""

TOOL_CHANGES: Final = frozenset(("tool-addition", "tool-removal"))
"""Types of the tool-change blocks. Spec: 30 §6."""

MISSING: Final[Any] = object()
"""Stands for an absent member, which is not the same as null."""


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether the value is a JSON object."""
    return type(value) is dict


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether the value is a JSON array."""
    return type(value) is list


def is_filled(value: object) -> TypeGuard[str]:
    """Whether the value is a non-empty string. Spec: 30, intro."""
    return type(value) is str and value != ""


def is_equal_number(value: object, number: float) -> bool:
    """Whether the value is a JSON number and equals the number. `True` equals none."""
    return is_number(value) and value == number


def is_earlier(value: object, seq: int) -> TypeGuard[int | float]:
    """Whether the value is a count below the event's own seq. Spec: 30 §7.2."""
    return is_count(value) and value < seq


def is_identical(left: object, right: object) -> bool:
    """Whether two members are the same scalar, or both absent.

    Two objects or two arrays of a log are never identical, whatever they hold: the harness
    compares by identity where the spec says *identical* or *equals*, and only where it says
    *deeply* by content. -0 and 0 are identical.
    """
    if is_number(left) and is_number(right):
        return left == right
    if left is None or left is MISSING or type(left) is bool:
        return left is right
    return type(left) is str and type(right) is str and left == right


def type_of(event: dict[str, Any]) -> str:
    """Return the event's type; the empty string, which is no type, if it is no string."""
    kind = event.get("type")
    return kind if type(kind) is str else ""


def is_known(event: dict[str, Any]) -> bool:
    """Whether the event's type is one of generation 4. Spec: 30 §1, §3."""
    return type_of(event) in KNOWN_TYPES


def is_inherited_marker(event: dict[str, Any]) -> bool:
    """Whether the event is an end-seed marker that sets the inherited cut. Spec: 10 §4.4."""
    if event.get("type") != "session/end-seed":
        return False
    data = event.get("data")
    return is_object(data) and data.get("inherited") is True


def message_of(event: dict[str, Any]) -> Any:
    """Return the message of a surface event, or `MISSING`. Spec: 30 §2."""
    data = event.get("data")
    if event.get("type") == "user/message":
        return data
    return data.get("message", MISSING) if is_object(data) else MISSING


def seq_of(event: dict[str, Any], index: int) -> int:
    """Return the event's own seq, or `index` if it carries none."""
    seq = event.get("seq")
    return int(seq) if is_safe_integer(seq) else index


def count_or_none(value: object) -> int | None:
    """Return a count as `int`, anything else as None."""
    return int(value) if is_count(value) else None


def quote(value: object) -> str:
    """Return a value for a message: a string quoted and cut, of anything else the type only.

    The text of a nested value could be long, and making it recurses.
    """
    if type(value) is str:
        return repr(value if len(value) <= 48 else value[:47] + "…")
    return "no string"


def refusal(rule: str, seq: int, message: str) -> RowError:
    """Return the error for an event that breaks a rule."""
    return RowError(message, None, None, None, seq, None, rule)
