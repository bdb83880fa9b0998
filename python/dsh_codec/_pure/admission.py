"""Row admission of generation 4. Spec: 30 §6.

The rules look at the raw JSON value of a row, before it is decoded, and are always hard. They
are applied in the order of the spec; the first that fails gives the error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeGuard

from dsh_codec._pure.quote import MISSING, quote
from dsh_codec.errors import RowError, UnsupportedError
from dsh_codec.limits import MAX_SAFE_INTEGER
from dsh_codec.values import is_count, is_number

if TYPE_CHECKING:
    from collections.abc import Iterator

TOOL_CHANGES: Final = ("tool-addition", "tool-removal")
RESULT_WRAPPER: Final = "tool-result"
IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif")

_WRAPPED_MESSAGES: Final = (
    "system/message",
    "developer/message",
    "assistant/message",
    "tool/result",
)
_LISTED_MESSAGES: Final = {
    "agent/inbox/spliced": "inserted",
    "session/title-llm-request": "messages",
}
_SETTLEMENTS: Final = ("assistant/message", "assistant/attempt")
_RETIRED_TYPES: Final = ("tool/code-dispatch-start", "tool/code-dispatch")
_FORK_PREFIX: Final = "forked-tool-result-"
_CANONICAL_DECIMAL: Final = re.compile("0|[1-9][0-9]{0,15}")


def admit(event: Any, /) -> None:
    """Check row admission of generation 4. See `_kernel.pyi`."""
    if type(event) is not dict:
        return  # Decoding refuses it.
    kind, data = event.get("type"), event.get("data")
    if kind == "developer/message":
        _check_developer(data)
    if type(data) is dict:
        _check_messages(kind, data)
        _check_summary(kind, data)
        _check_stream_changes(kind, data)
        _check_tools(kind, data)
        _check_retired_sources(kind, data)
    _check_retired_types(event, kind)
    if kind == "request/header":
        _check_retired_system(data)
    if type(data) is dict:
        _check_wrappers(kind, data)
        _check_stream_wrappers(kind, data)
    if kind == "system/message":
        _check_system(data)
    if kind == "tool/result":
        _check_result(data)
        _check_fork_result(event, data)


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether the value is a JSON object."""
    return type(value) is dict


def is_filled(value: Any) -> TypeGuard[str]:
    """Whether the value is a string and not the empty one."""
    return type(value) is str and value != ""


def is_positive(value: Any) -> bool:
    """Whether the value is a count and not 0."""
    return is_count(value) and value > 0


def _refuse(rule: str, message: str) -> NoReturn:
    raise RowError(message, None, None, None, None, None, rule)


def _require(holds: bool, rule: str, message: str) -> None:  # noqa: FBT001 -- a condition.
    if not holds:
        _refuse(rule, message)


def _blocks(container: Any, *types: str) -> Iterator[dict[str, Any]]:
    """Yield the direct elements of an array that are objects of these types."""
    if type(container) is list:
        for block in container:
            if is_object(block) and block.get("type") in types:
                yield block


def _has_block(container: Any, *types: str) -> bool:
    return next(_blocks(container, *types), None) is not None


def _ordinary_messages(kind: Any, data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the messages of rule A2 that are objects."""
    slots: list[Any] = []
    if kind == "user/message":
        slots = [data]
    elif kind in _WRAPPED_MESSAGES and kind != "developer/message":
        slots = [data.get("message")]
    elif type(kind) is str and kind in _LISTED_MESSAGES:
        listed = data.get(_LISTED_MESSAGES[kind])
        slots = listed if type(listed) is list else []
    return filter(is_object, slots)


def _raw_chunks(kind: Any, data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the chunks of the raw records in the stream of a settlement."""
    if kind in _SETTLEMENTS:
        for record in _blocks(data.get("stream"), "chunk"):
            if is_object(record.get("chunk")):
                yield record["chunk"]


def _check_chunks(kind: Any, data: dict[str, Any], rule: str, *types: str) -> None:
    for chunk in _raw_chunks(kind, data):
        if chunk.get("type") == "block-end":
            closes = _has_block([chunk.get("block")], *types)
            _require(not closes, rule, f"{kind}: a block-end closes a block of {types}")
        elif chunk.get("type") == "block-start":
            opens = chunk.get("blockType") in types
            _require(not opens, rule, f"{kind}: a block-start opens a block of {types}")


# --- A: developer messages and tool changes; B: retired sources ---


def _check_developer(data: Any) -> None:
    rule = "A1"
    _require(is_object(data), rule, "developer/message: data has to be an object")
    message = data.get("message")
    if not is_object(message) or message.get("role") != "developer":
        _refuse(rule, 'developer/message: message has to have role "developer"')
    for key in ("turn", "step"):
        positive = is_positive(data.get(key))
        _require(positive, rule, f"developer/message: {key} has to be a positive count")
    content = message.get("content")
    for block in _blocks(content, *TOOL_CHANGES):
        filled = is_filled(block.get("toolName"))
        _require(filled, rule, "developer/message: a tool change has to name its tool")
    adds = False
    for block in _blocks(content, "tool-addition"):
        adds = True
        bare = "tool" not in block
        _require(bare, rule, "developer/message: a tool-addition has no member tool")
    filled = is_filled(message.get("id"))
    _require(filled, rule, "developer/message: the message has to have an id")
    _require(
        type(content) is list, rule, "developer/message: content has to be an array"
    )
    source = message.get("source")
    if not is_object(source) or not is_filled(source.get("kind")):
        _refuse(rule, "developer/message: source has to be an object with a kind")
    _require(
        source["kind"] != "plugin", rule, "developer/message: source is retired plugin"
    )
    if adds:
        counted = is_count(data.get("headerSeq"))
        _require(counted, rule, "developer/message: headerSeq has to be a count")
    else:
        absent = "headerSeq" not in data
        _require(absent, rule, "developer/message: headerSeq needs a tool-addition")


def _check_messages(kind: Any, data: dict[str, Any]) -> None:
    for message in _ordinary_messages(kind, data):
        _require(
            message.get("role") != "developer",
            "A2",
            f"{kind}: a message is of a developer",
        )
        changes = _has_block(message.get("content"), *TOOL_CHANGES)
        _require(not changes, "A2", f"{kind}: a message holds a tool change")


def _check_summary(kind: Any, data: dict[str, Any]) -> None:
    if kind == "compaction/summary":
        for key in ("summary", "rawOutput"):
            changes = _has_block(data.get(key), *TOOL_CHANGES)
            _require(not changes, "A3", f"{kind}: {key} holds a tool change")


def _check_stream_changes(kind: Any, data: dict[str, Any]) -> None:
    _check_chunks(kind, data, "A4", *TOOL_CHANGES)


def _check_tools(kind: Any, data: dict[str, Any]) -> None:
    if kind != "request/header" or not is_object(data.get("header")):
        return
    tools = data["header"].get("tools")
    for tool in filter(is_object, tools if type(tools) is list else []):
        deferred = tool.get("deferLoading", True)
        _require(deferred is True, "A5", "request/header: deferLoading has to be true")


def _check_retired_sources(kind: Any, data: dict[str, Any]) -> None:
    for message in _ordinary_messages(kind, data):
        source = message.get("source")
        retired = is_object(source) and source.get("kind") == "plugin"
        _require(not retired, "B", f'{kind}: source kind "plugin" is retired')


# --- C: retired syntax ---


def _check_retired_types(event: dict[str, Any], kind: Any) -> None:
    if kind in _RETIRED_TYPES and event.get("ignorable") is not True:
        message = f"event type {kind} is retired"
        raise UnsupportedError(message, None, None, None, None, None, "C1")


def _check_retired_system(data: Any) -> None:
    if not is_object(data) or not is_object(data.get("header")):
        _refuse("C2", "request/header: data and data.header have to be objects")
    absent = "system" not in data["header"]
    _require(absent, "C2", "request/header: the header member system is retired")


def _check_wrappers(kind: Any, data: dict[str, Any]) -> None:
    containers: list[Any] = []
    if kind in ("user/message", "tool/ptc-dispatch"):
        containers = [data.get("content")]
    elif kind in ("developer/message", "assistant/message", "team/message/queued"):
        message = data.get("message")
        containers = [message.get("content")] if is_object(message) else []
    elif type(kind) is str and kind in _LISTED_MESSAGES:
        containers = [
            message.get("content") for message in _ordinary_messages(kind, data)
        ]
    elif kind == "compaction/summary":
        containers = [data.get("summary"), data.get("rawOutput")]
    for container in containers:
        wrapped = _has_block(container, RESULT_WRAPPER)
        _require(not wrapped, "C3", f"{kind}: blocks of type tool-result are retired")


def _check_stream_wrappers(kind: Any, data: dict[str, Any]) -> None:
    _check_chunks(kind, data, "C4", RESULT_WRAPPER)


# --- D: system/message ---


def _check_system(data: Any) -> None:
    rule, where = "D", "system/message"
    _require(is_object(data), rule, f"{where}: data has to be an object")
    for key in ("turn", "step"):
        positive = is_positive(data.get(key))
        _require(positive, rule, f"{where}: {key} has to be a positive count")
    message = data.get("message")
    if not is_object(message):
        _refuse(rule, f"{where}: message has to be an object")
    _require(
        is_filled(message.get("id")), rule, f"{where}: the message has to have an id"
    )
    _require(message.get("role") == "system", rule, f'{where}: role has to be "system"')
    content = message.get("content")
    if type(content) is not list:
        _refuse(rule, f"{where}: content has to be an array")
    for block in content:
        _check_system_block(block)


def _check_system_block(block: Any) -> None:
    rule, where = "D", "system/message"
    if not is_object(block) or not is_filled(block.get("type")):
        _refuse(rule, f"{where}: content has to hold objects with a type")
    kind = block["type"]
    _require(kind != RESULT_WRAPPER, rule, f"{where}: tool-result blocks are retired")
    if kind in ("text", "reasoning"):
        textual = type(block.get("text")) is str
        _require(textual, rule, f"{where}: {kind} has to have a string text")
    elif kind == "tool-call":
        named = is_filled(block.get("id")) and is_filled(block.get("name"))
        _require(named, rule, f"{where}: tool-call has to have an id and a name")
        textual = type(block.get("arguments")) is str
        _require(textual, rule, f"{where}: tool-call has to have string arguments")
    elif kind == "image":
        sound = is_image(block.get("attachment"))
        _require(sound, rule, f"{where}: image has to have a valid attachment")


def is_image(attachment: Any) -> bool:
    """Whether an image attachment has what it needs; extra members are accepted."""
    if not is_object(attachment):
        return False
    original = attachment.get("originalDimensions", {"width": 1, "height": 1})
    return (
        is_filled(attachment.get("attachmentId"))
        and attachment.get("mediaType") in IMAGE_TYPES
        and is_count(attachment.get("bytes"))
        and _has_size(attachment)
        and type(attachment.get("name", "")) is str
        and _has_size(original)
    )


def _has_size(holder: Any) -> bool:
    return (
        is_object(holder)
        and is_positive(holder.get("width"))
        and is_positive(holder.get("height"))
    )


# --- E: tool/result; F: results that a fork wrote ---


def _check_result(data: Any) -> None:
    rule, where = "E", "tool/result"
    _require(is_object(data), rule, f"{where}: data has to be an object")
    message = data.get("message")
    if not is_object(message):
        _refuse(rule, f"{where}: message has to be an object")
    _require(
        is_filled(message.get("id")), rule, f"{where}: the message has to have an id"
    )
    _require(message.get("role") == "tool", rule, f'{where}: role has to be "tool"')
    call, source = message.get("toolCallId"), message.get("source")
    _require(is_filled(call), rule, f"{where}: toolCallId has to be a non-empty string")
    if not is_object(source) or source.get("kind") != "tool":
        _refuse(rule, f'{where}: source has to be an object of kind "tool"')
    _require(source.get("callId") == call, rule, f"{where}: callId is not toolCallId")
    content = message.get("content")
    _require(type(content) is list, rule, f"{where}: content has to be an array")
    wrapped = _has_block(content, RESULT_WRAPPER)
    _require(not wrapped, rule, f"{where}: blocks of type tool-result are retired")
    boolean = type(message.get("isError", False)) is bool
    _require(boolean, rule, f"{where}: isError has to be a boolean")
    if "error" in data:
        failed = message.get("isError") is True
        _require(failed, rule, f"{where}: with an error, isError has to be true")


def _check_fork_result(event: dict[str, Any], data: Any) -> None:
    rule, where = "F", "forked tool/result"
    error, message = data.get("error"), data["message"]
    if not is_object(error) or error.get("code") != "TOOL_NOT_STARTED":
        return
    if not message["id"].startswith(_FORK_PREFIX):
        return
    # Role, source kind, toolCallId, isError and a string callId are given by rule E.
    number = _fork_number(message["id"], message["source"]["callId"])
    if number is None:
        expected = f"{_FORK_PREFIX}<callId>-<n>"
        _refuse(rule, f"{where}: id has to be {expected}, not {quote(message['id'])}")
    named = error.get("name") == "ToolNotStartedError"
    _require(named, rule, f"{where}: error.name has to be ToolNotStartedError")
    content = message["content"]
    textual = len(content) == 1 and any(
        type(block.get("text")) is str for block in _blocks(content, "text")
    )
    _require(textual, rule, f"{where}: content has to be exactly one text block")
    seq, op = event.get("seq"), event.get("surfaceOp")
    sources = event.get("sourceEventSeqs", MISSING)
    if is_object(op) and op.get("op") == "replace":
        later = is_number(seq) and number < seq
        _require(later, rule, f"{where}: a replacement has to come behind seq {number}")
        # The row is still in range form here: [[n,n]] is not the same.
        cited = type(sources) is list and len(sources) == 1 and is_number(sources[0])
        cited = cited and sources[0] == number
        _require(cited, rule, f"{where}: sourceEventSeqs has to be [{number}]")
    else:
        same = is_number(seq) and number == seq
        _require(same, rule, f"{where}: seq has to be {number}, not {quote(seq)}")
        _require(op == "append", rule, f'{where}: surfaceOp has to be "append"')
        _require(sources is MISSING, rule, f"{where}: sourceEventSeqs has to be absent")


def _fork_number(message_id: str, call: str) -> int | None:
    """Return the number at the end of a forked id, None if the id is not of this form."""
    prefix = f"{_FORK_PREFIX}{call}-"
    digits = message_id.removeprefix(prefix)
    if not message_id.startswith(prefix) or not _CANONICAL_DECIMAL.fullmatch(digits):
        return None
    number = int(digits)
    return number if number <= MAX_SAFE_INTEGER else None
