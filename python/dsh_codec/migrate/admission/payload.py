"""Payloads of the events of generations 0 to 2, type by type. Spec: 50 A.1, A.2, A.6."""

from __future__ import annotations

from typing import Any, Final

from dsh_codec.events import is_object
from dsh_codec.migrate.admission.content import blocks
from dsh_codec.migrate.admission.goal import goal_change, schedule_change
from dsh_codec.migrate.admission.message import (
    any_message,
    assistant_message,
    tool_message,
    user_message,
)
from dsh_codec.migrate.admission.shape import (
    Check,
    Place,
    any_object,
    anything,
    array_of,
    between,
    boolean,
    by_member,
    count,
    distinct_earlier,
    earlier,
    exact,
    fail,
    filled,
    filled_distinct_earlier,
    is_finite_number,
    number,
    one_of,
    opaque,
    positive,
    safe_integer,
    text,
    true,
    within,
)
from dsh_codec.migrate.refusal import refuse
from dsh_codec.values import is_count

INVENTORY: Final = "50 A.1"
SHARED: Final = "50 A.6"

# --- shared values (A.6) ---

_usage = exact(
    {"inputTokens": count, "outputTokens": count},
    {
        "totalTokens": count,
        "cacheReadTokens": count,
        "cacheWriteTokens": count,
        "reasoningTokens": count,
    },
    SHARED,
)


def _status(value: Any, at: Place) -> None:
    safe_integer(value, at)
    if not 100 <= value <= 599:
        fail("has to be from 100 to 599", SHARED)


def _wait(value: Any, at: Place) -> None:
    del at
    if not is_finite_number(value) or value <= 0:
        fail("has to be a number above 0", SHARED)


_failure = exact(
    {"message": filled, "code": filled},
    {"status": _status, "providerRetryAfterMs": _wait, "requestId": filled},
    SHARED,
)
_route = exact({"provider": filled, "model": filled}, None, SHARED)
_only_kind = exact({"kind": text}, None, SHARED)
_abort_reason = by_member(
    "kind",
    dict.fromkeys(("user", "parent", "disposed", "legacy"), _only_kind)
    | {"hook": exact({"kind": text, "reason": text}, None, SHARED)},
)
_turn_end_reason = by_member(
    "kind",
    dict.fromkeys(("completed", "blocked", "max-tokens", "interrupted"), _only_kind)
    | {
        "aborted": exact({"kind": text, "reason": _abort_reason}, None, SHARED),
        "error": exact({"kind": text, "error": _failure}, None, SHARED),
    },
    anything,
)
_plain_header = exact(
    {
        "config": exact(
            {"provider": filled, "model": filled},
            {
                "reasoningEffort": filled,
                "temperature": between(float("-inf"), float("inf")),
                "maxTokens": positive,
                "stop": array_of(text),
            },
            SHARED,
        )
    },
    {
        "adapterDefaults": exact(
            {}, {"reasoningEffort": true, "maxTokens": true}, SHARED
        ),
        "system": text,
        "tools": array_of(
            exact(
                {"name": filled, "description": text, "parameters": any_object},
                None,
                SHARED,
            )
        ),
    },
    SHARED,
)


def _header(value: Any, at: Place) -> None:
    _plain_header(value, at)
    for name in value.get("adapterDefaults", ()):
        if name not in value["config"]:
            message = "has to be present in config"
            refuse(SHARED, message, f"adapterDefaults.{name}")


# --- groups of types ---

_STEP: Final[dict[str, Check]] = {"turn": count, "step": count}
_COMPACTION: Final[dict[str, Check]] = {"compactionId": filled}
_COMMAND: Final[dict[str, Check]] = {"sourceCommandId": filled}
_TEAM: Final[dict[str, Check]] = {"version": number(1), "teamId": filled}
_RUN: Final[dict[str, Check]] = {"runId": filled}
_DISPATCH: Final[dict[str, Check]] = {
    "rootCallId": filled,
    "parentCallId": filled,
    "subCallId": filled,
    "name": filled,
    "arguments": opaque,
}
_SHADOW: Final[dict[str, Check]] = {
    "shadowedRange": exact({"start": earlier, "end": earlier}),
    "shadowedSeqs": filled_distinct_earlier,
    "shadowedTokenCount": count,
}
_NAMES: Final = array_of(filled)


def _turn_or_null(value: Any, at: Place) -> None:
    if value is not None:
        count(value, at)


def _shadow(data: dict[str, Any]) -> None:
    seqs, ends = data["shadowedSeqs"], data["shadowedRange"]
    if seqs[0] != ends["start"] or seqs[-1] != ends["end"]:
        message = "has to start and end as shadowedRange says"
        refuse("50 A.2", message, "shadowedSeqs")


_summary_members = exact(
    _COMPACTION | _SHADOW | {"summary": blocks, "provider": filled, "model": filled},
    _COMMAND
    | {
        "maxTokens": count,
        "usage": _usage,
        "rawOutput": blocks,
        "llmStreamCall": true,
    },
    INVENTORY,
)
_prune_members = exact(_SHADOW, None, INVENTORY)


def _summary(data: Any, at: Place) -> None:
    _summary_members(data, at)
    _shadow(data)
    if "llmStreamCall" in data and "rawOutput" not in data:
        refuse("50 A.2", "needs rawOutput", "llmStreamCall")


def _prune(data: Any, at: Place) -> None:
    _prune_members(data, at)
    _shadow(data)


_retry_members = exact(
    _STEP
    | {
        "retryId": filled,
        "provider": filled,
        "mode": one_of("normal", "always"),
        "policyKey": filled,
        "retry": positive,
        "delayMs": between(0, 2147483647),
        "failure": _failure,
    },
    {"maxRetries": anything},
    INVENTORY,
)


def _retry(data: Any, at: Place) -> None:
    _retry_members(data, at)
    if data["mode"] == "normal":
        if "maxRetries" not in data:
            refuse("50 A.2", "is missing in mode normal", "maxRetries")
        within("maxRetries", positive, data["maxRetries"], at)
        if data["maxRetries"] < data["retry"]:
            refuse("50 A.2", "has to be at least retry", "maxRetries")
    elif "maxRetries" in data:
        refuse("50 A.2", "has to be absent in mode always", "maxRetries")


_delivery_v0 = exact({"sessionId": anything, "throughSeq": anything}, None, INVENTORY)
_delivery_members = exact(
    {"sessionId": anything, "throughSeq": anything},
    {"sessionFormatVersion": count},
    INVENTORY,
)


def _delivery(data: Any, at: Place) -> None:
    (_delivery_v0 if at.generation == 0 else _delivery_members)(data, at)
    if data.get("sessionFormatVersion", 0) == at.generation:
        within("sessionId", filled, data["sessionId"], at)
        within("throughSeq", earlier, data["throughSeq"], at)


_tool_filter_members = exact({}, {"allow": _NAMES, "deny": _NAMES})


def _tool_filter(value: Any, at: Place) -> None:
    _tool_filter_members(value, at)
    if not value:
        fail("needs allow or deny")


_DESCRIPTOR: Final[dict[str, Check]] = {
    "mode": text,
    "version": number(3),
    "provider": filled,
}
_descriptor_members = by_member(
    "mode",
    {
        "one-shot": exact(_DESCRIPTOR, {"label": text}, INVENTORY),
        "continuable": exact(
            _DESCRIPTOR | {"label": filled},
            {
                "agentProvider": filled,
                "agentModel": filled,
                "agentReasoningEffort": filled,
                "persona": filled,
                "toolFilter": _tool_filter,
            },
            INVENTORY,
        ),
    },
)


def _descriptor(data: Any, at: Place) -> None:
    if at.generation == 1 and is_object(data):
        version = data.get("version")
        if is_count(version) and version != 3:
            return  # Spec 50 A.1, exception: edge 2 to 3 refuses it then.
    _descriptor_members(data, at)
    if ("agentProvider" in data) != ("agentModel" in data):
        refuse("50 A.2", "has to be there exactly with agentModel", "agentProvider")


def _models(value: Any, at: Place) -> None:
    _routes(value, at)
    seen = {(route["provider"], route["model"]) for route in value}
    if len(seen) != len(value):
        fail("must not repeat a model")


_routes = array_of(_route, is_filled=True)
_title_source = by_member(
    "kind",
    {
        "provider": exact({"kind": text, "provider": filled}, {"model": _route}),
        "fallback": exact({"kind": text}),
        "user": exact({"kind": text}),
    },
)
_web_message = exact(
    {
        "role": one_of("user"),
        "content": array_of(exact({"type": one_of("text"), "text": text}), length=1),
    }
)
_web_tool = exact(
    {
        "type": one_of("web_search_20250305"),
        "name": one_of("web_search"),
        "max_uses": positive,
    }
)


def _duration(value: Any, at: Place) -> None:
    del at
    if not is_finite_number(value) or value < 0:
        fail("has to be a number from 0")


# --- the inventory (A.1) ---


def _type(
    required: dict[str, Check], optional: dict[str, Check] | None = None
) -> Check:
    return exact(required, optional, INVENTORY)


_COMMON: Final[dict[str, Check]] = {
    "agent-preset/selected": _type({"agentPreset": text}),
    "agent/inbox/spliced": _type(
        {
            "target": one_of("next-turn", "next-step"),
            "start": count,
            "inserted": array_of(user_message),
        },
        {"removedCount": count, "outcome": one_of("canceled")},
    ),
    "approval/asked": _type(
        {"id": filled, "toolName": filled}, {"callId": filled, "reason": text}
    ),
    "approval/decided": _type(
        {
            "id": filled,
            "outcome": one_of("allowed-once", "rejected", "cancelled", "unavailable"),
        }
    ),
    "approval/policy": _type(
        {"policy": one_of("ask", "never")}, {"source": one_of("delegation")}
    ),
    "command/done": _type(
        {"commandId": filled, "kind": one_of("success", "error")},
        {"text": text, "sourceEventSeq": earlier},
    ),
    "command/run": _type(
        {
            "commandId": filled,
            "name": filled,
            "source": exact({"kind": one_of("user")}),
        },
        {"args": text},
    ),
    "compaction/end": _type(
        _COMPACTION | {"turn": _turn_or_null}, _COMMAND | {"error": text}
    ),
    "compaction/prune": _prune,
    "compaction/start": _type(_COMPACTION | {"turn": _turn_or_null}, _COMMAND),
    "compaction/summary": _summary,
    "feedback/record": _type({"text": filled}),
    "goal/change": goal_change,
    "hook/invoked": _type(
        {
            "turn": count,
            "point": filled,
            "dialect": one_of("claude-code", "codex"),
            "handlerId": filled,
        },
        {"matcher": text},
    ),
    "hook/result": _type(
        {
            "turn": count,
            "point": filled,
            "handlerId": filled,
            "decision": filled,
            "durationMs": _duration,
        },
        {"exitCode": safe_integer, "stderrSummary": text},
    ),
    "llm/retry": _retry,
    "llm/retry-started": _type(_STEP | {"retryId": filled, "retry": positive}),
    "model/selection": _type(
        {"provider": filled, "model": filled}, {"reasoningEffort": filled}
    ),
    "permission/preset": _type({"preset": filled}),
    "plan/mode": _type({"active": boolean}),
    "request/context": _type(
        {"provider": filled, "model": filled}, {"contextWindow": positive}
    ),
    "request/header": _type(
        {
            "header": _header,
            "reason": one_of("initial", "resume", "change", "series"),
        },
        {"startsSeries": true},
    ),
    "sandbox/mode": _type(
        {"mode": one_of("read-only", "workspace-write", "danger-full-access")},
        {"source": one_of("delegation")},
    ),
    "schedule/change": schedule_change,
    "session-log-deepseek/delivery-accepted": _delivery,
    "session/end-seed": _type({}),
    "session/title": _type(
        {"title": filled, "messageSeqs": distinct_earlier, "source": _title_source}
    ),
    "session/title-llm-request": _type(
        {
            "titleProvider": filled,
            "messageSeqs": filled_distinct_earlier,
            "route": _route,
            "system": text,
            "messages": array_of(any_message),
            "maxTokens": positive,
        }
    ),
    "step/end": _type(_STEP),
    "step/start": _type(_STEP),
    "subagent/descriptor": _descriptor,
    "subagent/model-selection-policy": _type({"allowedModels": _models}),
    "team/member": _type(
        _TEAM
        | {
            "member": exact(
                {
                    "id": filled,
                    "name": text,
                    "description": text,
                    "provider": text,
                    "context": one_of("fresh", "fork"),
                    "phase": one_of("provisioning", "active", "failed"),
                },
                {"error": text},
            )
        }
    ),
    "team/message/delivered": _type(_TEAM | {"messageId": filled, "targetId": filled}),
    "team/message/queued": _type(
        _TEAM
        | {
            "message": exact(
                {
                    "id": filled,
                    "senderId": filled,
                    "senderName": text,
                    "targetId": filled,
                    "delivery": one_of("quiet", "wakeup"),
                    "content": blocks,
                }
            )
        }
    ),
    "team/task": _type(
        _TEAM
        | {
            "task": exact(
                {
                    "id": filled,
                    "revision": positive,
                    "subject": text,
                    "description": text,
                    "status": one_of("pending", "in_progress", "completed", "deleted"),
                    "blockedBy": _NAMES,
                    "writeScopes": array_of(text),
                },
                {"ownerId": filled},
            )
        }
    ),
    "todo/write": _type(
        {
            "todos": array_of(
                exact(
                    {
                        "content": text,
                        "status": one_of("pending", "in_progress", "completed"),
                    }
                )
            )
        }
    ),
    "tool-workflow/agent-end": _type(
        _RUN | {"seq": positive, "outcome": one_of("completed", "failed", "cancelled")}
    ),
    "tool-workflow/agent-start": _type(
        _RUN | {"seq": positive, "label": text, "childId": filled}, {"phase": text}
    ),
    "tool-workflow/run-end": _type(
        _RUN | {"stopReason": one_of("completed", "cancelled", "error")}
    ),
    "tool-workflow/run-start": _type(_RUN | {"name": filled}),
    "tool/call": _type(_STEP | {"callId": filled, "name": filled, "arguments": text}),
    "tool/code-dispatch": _type(_DISPATCH | {"isError": boolean, "content": blocks}),
    "tool/code-dispatch-start": _type(_DISPATCH),
    "tool/result": _type(
        _STEP | {"message": tool_message},
        {"error": exact({"name": filled, "code": filled}), "meta": opaque},
    ),
    "turn/end": _type({"turn": count, "reason": _turn_end_reason}),
    "turn/start": _type({"turn": count}),
    "user/message": user_message,
    "web/deepseek-search-llm-request": _type(
        {
            "endpoint": filled,
            "apiVersion": filled,
            "body": exact(
                {
                    "model": filled,
                    "max_tokens": positive,
                    "messages": array_of(_web_message, length=1),
                    "tools": array_of(_web_tool, length=1),
                }
            ),
        }
    ),
}

_ANSWER: Final[dict[str, Check]] = _STEP | {"message": assistant_message}
_ANSWER_MORE: Final[dict[str, Check]] = {"usage": _usage, "interrupted": true}
_EARLY: Final[dict[str, Check]] = _COMMON | {
    "assistant/message": _type(_ANSWER, _ANSWER_MORE),
}
_V2: Final[dict[str, Check]] = _COMMON | {
    "assistant/message": _type(_ANSWER | {"stream": anything}, _ANSWER_MORE),
    "assistant/attempt": _type(
        {"turn": anything, "step": anything, "stream": anything}
    ),
    "session/end-seed": _type({}, {"inherited": true}),
}

EARLY_TYPES: Final = frozenset((*_EARLY, "assistant/chunk"))
"""Event types of generations 0 and 1."""

V2_TYPES: Final = frozenset(_V2)
"""Event types of generation 2, without the two of feedback on messages."""


def check_payload(kind: str, data: Any, *, seq: int, generation: int) -> None:
    """Check the payload of one event.

    Args:
        kind: Event type, one of the generation's, but not `assistant/chunk`.
        data: The payload.
        seq: Seq of the event.
        generation: 0 to 2, the generation parameter of appendix A.

    Raises:
        EdgeRefusalError: A member breaks a rule.
    """
    check = (_V2 if generation == 2 else _EARLY)[kind]
    within("data", check, data, Place(seq, generation))


# --- feedback on messages (A.6), which generation 2 knows beside its inventory ---

_FEEDBACK: Final[dict[str, Check]] = {
    "feedback/message-put": exact(
        {
            "sessionId": text,
            "item": exact(
                {
                    "messageId": text,
                    "rating": one_of("positive", "negative"),
                    "version": text,
                    "createdAt": count,
                    "updatedAt": count,
                },
                {"note": text},
                SHARED,
            ),
        },
        None,
        SHARED,
    ),
    "feedback/message-delete": exact(
        {"sessionId": text, "messageId": text}, None, SHARED
    ),
}

FEEDBACK_TYPES: Final = frozenset(_FEEDBACK)
"""The two types of feedback on messages."""


def check_feedback(kind: str, data: Any, *, seq: int) -> None:
    """Check the payload of a feedback event of generation 2.

    Raises:
        EdgeRefusalError: A member breaks a rule.
    """
    within("data", _FEEDBACK[kind], data, Place(seq, 2))
