"""Messages of generations 0 to 3 and their sources. Spec: 50 A.3."""

from __future__ import annotations

from typing import Any, Final

from dsh_codec._backend import kernel
from dsh_codec.events import (
    is_array,
    is_equal_number,
    is_filled,
    is_object,
    quote,
)
from dsh_codec.migrate.admission.content import WRAPPER, blocks
from dsh_codec.migrate.admission.goal import goal_change
from dsh_codec.migrate.admission.shape import (
    Check,
    Place,
    any_object,
    anything,
    array_of,
    boolean,
    count,
    exact,
    fail,
    filled,
    number,
    one_of,
    positive,
    text,
    true,
    within,
)
from dsh_codec.migrate.refusal import refuse
from dsh_codec.values import is_count

RULE: Final = "50 A.3"

_KIND: Final[dict[str, Check]] = {"kind": text}
_FORMS: Final = one_of(
    "instructions", "catalog", "snapshot", "notice", "relay", "recall"
)
_sections = array_of(exact({"name": filled, "text": text}, None, RULE))


def _source(
    required: dict[str, Check], optional: dict[str, Check] | None = None
) -> Check:
    return exact(_KIND | required, optional, RULE)


# --- sources with rules of their own ---

_PLUGIN: Final[dict[str, Check]] = {"plugin": filled}
_PLUGIN_FORM: Final[dict[str, Check]] = {
    "form": _FORMS,
    "sections": anything,
    "summary": anything,
}
_plain_plugin = _source(_PLUGIN, _PLUGIN_FORM)
_compact_plugin = _source(
    _PLUGIN | {"compactionId": filled}, _PLUGIN_FORM | {"sourceCommandId": filled}
)


def _plugin(source: Any, at: Place) -> None:
    check = _compact_plugin if source.get("plugin") == "compact" else _plain_plugin
    check(source, at)
    if "form" not in source:
        return
    form = source["form"]
    for name, wanted, inner in (
        ("sections", "snapshot", _sections),
        ("summary", "notice", text),
    ):
        if (name in source) != (form == wanted):
            refuse(RULE, f"has to be there exactly with form {wanted}", name)
        if name in source:
            within(name, inner, source[name], at)


_REFERENCE: Final[dict[str, Check]] = {
    "sessionId": filled,
    "label": text,
    "capturedThroughSeq": anything,
    "compacted": boolean,
    "originalMessages": count,
    "retainedMessages": count,
    "omittedMessages": count,
    "omittedBytes": count,
    "truncated": boolean,
    "inputIndex": count,
}
_reference_v0 = exact(_REFERENCE, None, RULE)
_reference = exact(_REFERENCE, {"capturedFormatVersion": count}, RULE)


def _references(value: Any, at: Place) -> None:
    if not is_array(value) or not value:
        fail("has to be a non-empty array", RULE)
    sessions: set[str] = set()
    for index, reference in enumerate(value):
        within(index, _check_reference, reference, at)
        if not is_equal_number(reference["inputIndex"], index):
            refuse(RULE, f"has to be {index}", f"[{index}].inputIndex")
        if reference["sessionId"] in sessions:
            refuse(RULE, "must not repeat", f"[{index}].sessionId")
        sessions.add(reference["sessionId"])


def _check_reference(reference: Any, at: Place) -> None:
    (_reference_v0 if at.generation < 1 else _reference)(reference, at)
    version = reference.get("capturedFormatVersion", 1)
    if not 1 <= version <= max(at.generation, 1):
        message = f"has to be from 1 to {at.generation}"
        refuse(RULE, message, "capturedFormatVersion")
    through = reference["capturedThroughSeq"]
    if through is not None and not is_count(through):
        refuse(RULE, "has to be null or a count", "capturedThroughSeq")
    original, retained = reference["originalMessages"], reference["retainedMessages"]
    if retained > original:
        refuse(RULE, "has to be at most originalMessages", "retainedMessages")
    omitted = reference["omittedMessages"]
    if omitted != original - retained:
        message = "has to be originalMessages less retainedMessages"
        refuse(RULE, message, "omittedMessages")
    if reference["truncated"] != (omitted > 0 or reference["omittedBytes"] > 0):
        refuse(RULE, "has to say whether anything was omitted", "truncated")


_relay = _source({"form": one_of("relay"), "senderSessionId": filled})
_SOURCES: Final[dict[str, Check]] = {
    "user": _source({}, {"rpcId": filled, "clientTimeZone": filled}),
    "plugin": _plugin,
    "model": _source({"provider": filled, "model": filled}, {"replayState": anything}),
    "tool": _source({"callId": filled}),
    "agent-instructions": _source(
        {
            "form": one_of("instructions"),
            "changes": array_of(
                exact(
                    {
                        "action": one_of("set", "replace", "remove"),
                        "scope": text,
                        "path": text,
                    },
                    {"digest": text},
                    RULE,
                )
            ),
        },
        {"baseline": true, "baselineIdentity": filled},
    ),
    "session-reference": _source(
        {"form": one_of("recall"), "version": number(1), "references": _references}
    ),
    "team-message": _source(
        {
            "teamId": filled,
            "messageId": filled,
            "senderId": filled,
            "senderName": text,
        }
    ),
    "goal": _source({"goalId": filled, "revision": positive, "round": positive}),
    "skill-invocation": _source({"name": filled, "form": one_of("instructions")}),
    "skill-catalog": _source(
        {
            "form": one_of("catalog"),
            "entries": array_of(
                exact({"name": filled, "description": text}, None, RULE)
            ),
        },
        {"update": true},
    ),
    "coordinator": _relay,
    "subagent-report": _relay,
    "subagent-settled": _source(
        {"form": one_of("notice"), "summary": text, "senderSessionId": filled}
    ),
    "webhook": _source(
        {
            "provider": filled,
            "source": filled,
            "deliveryId": filled,
            "ruleId": filled,
            "form": one_of("notice"),
            "summary": text,
        }
    ),
}


def _check_source(source: Any, at: Place) -> None:
    if not is_object(source):
        fail("has to be an object", RULE)
    kind = source.get("kind")
    if not is_filled(kind):
        refuse(RULE, "has to be a non-empty string", "kind")
    check = _SOURCES.get(kind)
    if check is not None:
        check(source, at)


# --- the goal state that generations 0 and 1 kept in a message (50 A.3) ---

_legacy_goal = _source(
    {"goalId": filled, "revision": positive, "round": anything, "change": goal_change}
)


def is_legacy_goal(source: Any) -> bool:
    """Whether a source carries a change of the goal. Spec: 50 §5.2 rule 9, A.3."""
    return is_object(source) and source.get("kind") == "goal" and "change" in source


def _check_legacy_goal(message: dict[str, Any], at: Place) -> None:
    source = message["source"]
    within("source", _legacy_goal, source, at)
    if not is_equal_number(source["round"], 0):
        refuse(RULE, "has to be 0", "source.round")
    change = source["change"]
    is_clear = change["operation"] == "clear"
    named = change["cleared" if is_clear else "goal"]
    if named["id"] != source["goalId"] or named["revision"] != source["revision"]:
        refuse(RULE, "has to name the goal and revision of its source", "source.change")
    names = (
        ("cleared", "clearedAt")
        if is_clear
        else ("goal", "roundsStarted", "createdAt", "updatedAt")
    )
    state = kernel.dump({name: change[name] for name in names}).decode()
    wanted = f"<goal_state>{state}</goal_state>"
    content = message["content"]
    if (
        len(content) != 1
        or content[0]["type"] != "text"
        or content[0]["text"] != wanted
    ):
        refuse(RULE, "has to be exactly the state of the goal", "content")


# --- messages ---

_MESSAGE: Final = exact(
    {"id": filled, "role": text, "content": blocks, "source": any_object}, None, RULE
)
_ANY_ROLES: Final = ("system", "user", "assistant")


def _check_message(value: Any, at: Place, roles: tuple[str, ...]) -> None:
    _MESSAGE(value, at)
    if value["role"] not in roles:
        refuse(RULE, f"has to be {' or '.join(roles)}", "role")


def user_message(value: Any, at: Place) -> None:
    """Accept a *user* message."""
    _check_message(value, at, ("user",))
    if at.generation < 2 and is_legacy_goal(value["source"]):
        _check_legacy_goal(value, at)
    else:
        within("source", _check_source, value["source"], at)


def assistant_message(value: Any, at: Place) -> None:
    """Accept an *assistant* message."""
    _check_message(value, at, ("assistant",))
    within("source", _check_source, value["source"], at)
    if value["source"]["kind"] != "model":
        refuse(RULE, "has to be model", "source.kind")


def tool_message(value: Any, at: Place) -> None:
    """Accept a *tool* message: one tool result in its wrapper."""
    _check_message(value, at, ("user",))
    within("source", _check_source, value["source"], at)
    if value["source"]["kind"] != "tool":
        refuse(RULE, "has to be tool", "source.kind")
    content = value["content"]
    if len(content) != 1 or content[0]["type"] != WRAPPER:
        refuse(RULE, f"has to be exactly one block of type {WRAPPER}", "content")
    call = value["source"]["callId"]
    if content[0]["toolCallId"] != call:
        message = f"has to be the call {quote(call)} of the source"
        refuse(RULE, message, "content[0].toolCallId")


def any_message(value: Any, at: Place) -> None:
    """Accept a message of any role."""
    _check_message(value, at, _ANY_ROLES)
    within("source", _check_source, value["source"], at)
