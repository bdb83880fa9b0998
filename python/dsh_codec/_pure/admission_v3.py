"""The two layers that generation 3 adds around the row decoder. Spec: 50 §3.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from dsh_codec._pure.admission import (
    IMAGE_TYPES,
    RESULT_WRAPPER,
    is_filled,
    is_object,
    is_positive,
)
from dsh_codec.errors import RowError, UnsupportedError
from dsh_codec.values import is_count

if TYPE_CHECKING:
    from dsh_codec._pure.event import Decoded

RULE: Final = "50 §3.2"

SURFACE_TYPES: Final = frozenset(
    {"system/message", "user/message", "assistant/message", "tool/result"}
)

LOG_TYPES: Final = frozenset(
    """
    agent-preset/selected agent/inbox/spliced approval/asked approval/decided
    approval/policy assistant/attempt command/done command/run compaction/end
    compaction/prune compaction/start compaction/summary feedback/message-delete
    feedback/message-put feedback/record goal/change hook/invoked hook/result llm/retry
    llm/retry-started model/selection permission/preset plan/mode request/context
    request/header sandbox/mode schedule/change session-log-deepseek/delivery-accepted
    session/end-seed session/title session/title-llm-request step/end step/start
    subagent/descriptor subagent/model-selection-policy team/member
    team/message/delivered team/message/queued team/task todo/write
    tool-workflow/agent-end tool-workflow/agent-start tool-workflow/run-end
    tool-workflow/run-start tool/call tool/ptc-dispatch tool/ptc-dispatch-start turn/end
    turn/start web/deepseek-search-llm-request
    """.split()  # noqa: SIM905 -- a list of sixty literals would fill a page.
)
"""Known types that are not on the surface; every other type is opaque."""

_RETIRED_TYPES: Final = ("tool/code-dispatch-start", "tool/code-dispatch")
_MANDATORY: Final = frozenset({"type", "seq", "time", "data"})
_REPLACE_KEYS: Final = frozenset({"op", "startSeq", "endSeq"})
_FORMS: Final = ("instructions", "catalog", "snapshot", "notice", "relay", "recall")


def _refuse(message: str) -> NoReturn:
    raise RowError(message, None, None, None, None, None, RULE) from None


# --- hard row admission ---


def admit_v3(event: Any) -> None:
    """Check the hard row admission of generation 3.

    Raises:
        UnsupportedError: A retired type or member.
        RowError: A `request/header` or `system/message` of the wrong shape.
    """
    if not is_object(event):
        return  # Decoding refuses it.
    kind, data = event.get("type"), event.get("data")
    if kind in _RETIRED_TYPES and event.get("ignorable") is not True:
        message = "the event type was retired and is not marked as ignorable"
        raise UnsupportedError(message, None, None, None, None, None, RULE)
    if kind == "request/header":
        if not is_object(data) or not is_object(data.get("header")):
            _refuse("a request/header needs an object `data` with an object `header`")
        if "system" in data["header"]:
            message = "`system` of a request header was retired in generation 3"
            raise UnsupportedError(message, None, None, None, None, None, RULE)
    if kind == "system/message" and not _is_system_data(data):
        _refuse("the payload of a system/message of generation 3 is malformed")


def _has_keys(value: Any, required: set[str], optional: set[str]) -> bool:
    return (
        is_object(value)
        and required <= value.keys()
        and value.keys() <= required | optional
    )


def _is_system_data(data: Any) -> bool:
    if not _has_keys(data, {"turn", "step", "message"}, set()):
        return False
    message = data["message"]
    return (
        is_positive(data["turn"])
        and is_positive(data["step"])
        and _has_keys(message, {"id", "role", "source", "content"}, set())
        and is_filled(message["id"])
        and message["role"] == "system"
        and _is_plugin_source(message["source"])
        and _are_blocks(message["content"])
    )


def _is_plugin_source(source: Any) -> bool:
    """Whether a source is of kind `plugin` and valid. Spec: 50 appendix A.3."""
    if not is_object(source) or source.get("kind") != "plugin":
        return False
    if not is_filled(source.get("plugin")):
        return False
    required, optional = {"kind", "plugin"}, {"form", "sections", "summary"}
    if source["plugin"] == "compact":
        required, optional = required | {"compactionId"}, optional | {"sourceCommandId"}
    if not _has_keys(source, required, optional):
        return False
    for key in ("compactionId", "sourceCommandId"):
        if key in source and not is_filled(source[key]):
            return False
    if "form" not in source:
        return True
    form = source["form"]
    if form not in _FORMS:
        return False
    if ("sections" in source) != (form == "snapshot"):
        return False
    if ("summary" in source) != (form == "notice"):
        return False
    if form == "notice":
        return type(source["summary"]) is str
    return form != "snapshot" or _are_sections(source["sections"])


def _are_sections(sections: Any) -> bool:
    return type(sections) is list and all(
        _has_keys(section, {"name", "text"}, set())
        and is_filled(section["name"])
        and type(section["text"]) is str
        for section in sections
    )


def _are_blocks(content: Any) -> bool:
    """Whether a content array holds valid blocks only. Spec: 50 appendix A.4."""
    pending = [content]
    while pending:
        blocks = pending.pop()
        if type(blocks) is not list:
            return False
        for block in blocks:
            if not is_object(block) or not is_filled(block.get("type")):
                return False
            if block["type"] == RESULT_WRAPPER:
                if not _is_wrapper(block):
                    return False
                pending.append(block["content"])
            elif not _is_flat_block(block):
                return False
    return True


def _is_wrapper(block: dict[str, Any]) -> bool:
    return (
        _has_keys(block, {"type", "toolCallId", "content"}, {"isError"})
        and is_filled(block["toolCallId"])
        and type(block.get("isError", False)) is bool
    )


def _is_flat_block(block: dict[str, Any]) -> bool:
    kind = block["type"]
    if kind in ("text", "reasoning"):
        return _has_keys(block, {"type", "text"}, set()) and type(block["text"]) is str
    if kind == "image":
        return _has_keys(block, {"type", "attachment"}, set()) and _is_exact_image(
            block["attachment"]
        )
    if kind == "tool-call":
        return (
            _has_keys(block, {"type", "id", "name", "arguments"}, set())
            and is_filled(block["id"])
            and is_filled(block["name"])
            and type(block["arguments"]) is str
        )
    return True


def _is_exact_image(attachment: Any) -> bool:
    size = {"width", "height"}
    required = {"attachmentId", "mediaType", "bytes"} | size
    if not _has_keys(attachment, required, {"name", "originalDimensions"}):
        return False
    original = attachment.get("originalDimensions", {"width": 1, "height": 1})
    return (
        is_filled(attachment["attachmentId"])
        and attachment["mediaType"] in IMAGE_TYPES
        and is_count(attachment["bytes"])
        and type(attachment.get("name", "")) is str
        and _has_keys(original, size, set())
        and all(
            is_positive(holder[key])
            for holder in (attachment, original)
            for key in size
        )
    )


# --- canonical event check ---


def check_canonical(row: Decoded) -> None:
    """Check the event envelope of generation 3.

    Raises:
        RowError: It is not canonical; a row issue like any other.
    """
    event, kind = row.value, row.type
    is_surface = kind in SURFACE_TYPES
    if not is_surface and kind in LOG_TYPES:
        allowed = _MANDATORY | {"ignorable"}
    else:
        allowed = _MANDATORY | {"ignorable", "surfaceOp", "sourceEventSeqs"}
    if not event.keys() <= allowed:
        _refuse("an event of this type may not have `surfaceOp` or `sourceEventSeqs`")
    if not is_count(event["seq"]):
        _refuse("`seq` of the row is no count")
    if is_surface:
        _check_surface(event)
    if kind == "request/header":
        header = event["data"]["header"]  # Both are objects by hard admission.
        for key, empty in (("tools", []), ("adapterDefaults", {})):
            if header.get(key) == empty:
                _refuse(f"`{key}` of a request header may not be empty")
    if kind == "tool/result":
        _check_tool_error(event["data"])


def _check_surface(event: dict[str, Any]) -> None:
    kind, seq = event["type"], int(event["seq"])
    op = event.get("surfaceOp")
    if op != "append" and not _is_replacement(op, seq):
        _refuse(
            "a surface event needs a `surfaceOp`: append, or a replacement of earlier seqs"
        )
    # Decoding has seen distinct earlier counts.
    if "sourceEventSeqs" in event and (
        kind == "assistant/message" or not event["sourceEventSeqs"]
    ):
        _refuse(
            "`sourceEventSeqs` of a surface event may not be empty, nor stand on an "
            "assistant/message"
        )


def _is_replacement(op: Any, seq: int) -> bool:
    return (
        is_object(op)
        and op.keys() == _REPLACE_KEYS
        and op["op"] == "replace"
        and all(is_count(op[key]) and op[key] < seq for key in ("startSeq", "endSeq"))
    )


def _check_tool_error(data: Any) -> None:
    if not is_object(data):
        _refuse("`data` of a tool/result is no object")
    if "error" not in data:
        return
    message = data.get("message")
    content = message.get("content") if is_object(message) else None
    if type(content) is list and len(content) == 1 and is_object(content[0]):
        block = content[0]
        if block.get("type") == RESULT_WRAPPER and block.get("isError") is True:
            return
    _refuse("a tool/result with `error` needs exactly one failed tool-result block")
