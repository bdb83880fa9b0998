"""Row admission of generation 4. Spec: 30 §6.

The rules look at the raw JSON value of a row, before it is decoded, and are always hard. They
are applied in the order in which a row holds what they look at: message by message, record by
record, and the rules in the order of the spec for each.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeGuard

from dsh_codec._pure.quote import MISSING
from dsh_codec.errors import RowError, UnsupportedError
from dsh_codec.limits import MAX_SAFE_INTEGER
from dsh_codec.values import is_count, is_number

if TYPE_CHECKING:
    from collections.abc import Iterator

TOOL_CHANGES: Final = ("tool-addition", "tool-removal")
RESULT_WRAPPER: Final = "tool-result"
IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif")

_ORDINARY_MESSAGES: Final = ("system/message", "assistant/message", "tool/result")
_RETIRED_TYPES: Final = ("tool/code-dispatch-start", "tool/code-dispatch")
_FORK_PREFIX: Final = "forked-tool-result-"
_CANONICAL_DECIMAL: Final = re.compile("0|[1-9][0-9]{0,15}")


def admit(event: Any, /) -> None:
    """Check row admission of generation 4. See `_kernel.pyi`."""
    if type(event) is not dict:
        return  # Decoding refuses it.
    kind, data = event.get("type"), event.get("data")
    if kind in _RETIRED_TYPES and event.get("ignorable") is not True:
        message = "the event type was retired and is not marked as ignorable"
        raise UnsupportedError(message, None, None, None, None, None, "C1")
    if kind == "developer/message":
        _check_developer(data)
    elif kind == "request/header":
        _check_header(data)
    elif is_object(data):
        _check_messages(kind, data)
    if kind == "system/message":
        _check_system(data)
    elif kind == "tool/result":
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


def _blocks(container: Any, *types: str) -> Iterator[dict[str, Any]]:
    """Yield the direct elements of an array that are objects of these types."""
    if type(container) is list:
        for block in container:
            if is_object(block) and block.get("type") in types:
                yield block


def _has_block(container: Any, *types: str) -> bool:
    return next(_blocks(container, *types), None) is not None


def _content_of(message: Any) -> Any:
    return message.get("content") if is_object(message) else None


# --- A2 to A4, B, C3, C4: what was retired, in every type that may hold it ---


def _check_messages(kind: Any, data: dict[str, Any]) -> None:
    """Check messages, blocks and streams in the order in which a row holds them."""
    if kind == "user/message":
        _check_message(data)
        _check_wrappers(data.get("content"))
    elif kind in _ORDINARY_MESSAGES:
        _check_message(data.get("message"))
    elif kind == "agent/inbox/spliced":
        _check_list(data.get("inserted"))
    elif kind == "session/title-llm-request":
        _check_list(data.get("messages"))
    elif kind == "team/message/queued":
        _check_wrappers(_content_of(data.get("message")))
    elif kind == "tool/ptc-dispatch":
        _check_wrappers(data.get("content"))
    elif kind == "compaction/summary":
        for key in ("summary", "rawOutput"):
            if _has_block(data.get(key), *TOOL_CHANGES):
                message = f"`{key}` of a compaction/summary holds a tool-change block"
                _refuse("A3", message)
            _check_wrappers(data.get(key))
    if kind == "assistant/message":
        _check_wrappers(_content_of(data.get("message")))
    if kind in ("assistant/message", "assistant/attempt"):
        _check_stream(data.get("stream"))


def _check_message(message: Any) -> None:
    """Check a message that is no developer's by rules A2 and B."""
    if not is_object(message):
        return
    if message.get("role") == "developer":
        _refuse("A2", "only a developer/message may have the role developer")
    if _has_block(message.get("content"), *TOOL_CHANGES):
        _refuse("A2", "only a developer/message may hold tool-change blocks")
    source = message.get("source")
    if is_object(source) and source.get("kind") == "plugin":
        _refuse(
            "B",
            "the source kind plugin was retired; expected the producer's own kind",
        )


def _check_list(messages: Any) -> None:
    for message in messages if type(messages) is list else ():
        _check_message(message)
        _check_wrappers(_content_of(message))


def _check_wrappers(content: Any, rule: str = "C3") -> None:
    if _has_block(content, RESULT_WRAPPER):
        _refuse(
            rule, "a tool-result block was retired; results are messages of role tool"
        )


def _check_stream(stream: Any) -> None:
    for record in _blocks(stream, "chunk"):
        chunk = record.get("chunk")
        if not is_object(chunk):
            continue
        block_type = None
        if chunk.get("type") == "block-start":
            block_type = chunk.get("blockType")
        elif chunk.get("type") == "block-end" and is_object(chunk.get("block")):
            block_type = chunk["block"].get("type")
        if block_type in TOOL_CHANGES:
            _refuse("A4", "a model stream may not open or close a tool-change block")
        if block_type == RESULT_WRAPPER:
            _refuse("C4", "a model stream may not open or close a tool-result block")


# --- A5, C2: request/header ---


def _check_header(data: Any) -> None:
    header = data.get("header") if is_object(data) else None
    if not is_object(header):
        _refuse("C2", "a request/header needs an object `data` with an object `header`")
    tools = header.get("tools")
    for tool in filter(is_object, tools if type(tools) is list else ()):
        if tool.get("deferLoading", True) is not True:
            _refuse("A5", "`deferLoading` of a tool is not true")
    if "system" in header:
        message = "`system` of a request header was retired; it is a system/message"
        _refuse("C2", message)


# --- A1, C3: developer/message ---


def _check_developer(data: Any) -> None:
    rule = "A1"
    if not is_object(data):
        _refuse(rule, "a developer/message needs an object `data`")
    message = data.get("message")
    if not is_object(message):
        _refuse(rule, "a developer/message needs an object `message`")
    if message.get("role") != "developer":
        _refuse(rule, "a developer/message needs the role developer")
    if not is_positive(data.get("turn")) or not is_positive(data.get("step")):
        _refuse(rule, "`turn` and `step` of a developer/message must be counts from 1")
    if not is_filled(message.get("id")):
        _refuse(rule, "the message of a developer/message needs a non-empty `id`")
    content = message.get("content")
    if type(content) is not list:
        _refuse(rule, "the message of a developer/message needs an array `content`")
    source = message.get("source")
    kind = source.get("kind") if is_object(source) else None
    if not is_filled(kind) or kind == "plugin":
        _refuse(
            rule,
            "the message of a developer/message needs a `source` with a non-empty "
            "`kind` other than plugin",
        )
    adds = False
    for block in _blocks(content, *TOOL_CHANGES):
        is_addition = block["type"] == "tool-addition"
        adds = adds or is_addition
        if not is_filled(block.get("toolName")):
            _refuse(rule, "a tool-change block needs a non-empty `toolName`")
        if is_addition and "tool" in block:
            _refuse(rule, "a tool-addition may not have a member `tool`")
    if adds and not is_count(data.get("headerSeq")):
        _refuse(
            rule, "a developer/message with a tool-addition needs a count `headerSeq`"
        )
    if not adds and "headerSeq" in data:
        _refuse(
            rule, "a developer/message without a tool-addition may not have `headerSeq`"
        )
    _check_wrappers(content)


# --- D: system/message ---


def _check_system(data: Any) -> None:
    rule = "D"
    if not is_object(data):
        _refuse(rule, "a system/message needs an object `data`")
    if not is_positive(data.get("turn")) or not is_positive(data.get("step")):
        _refuse(rule, "`turn` and `step` of a system/message must be counts from 1")
    message = data.get("message")
    if not is_object(message):
        _refuse(rule, "a system/message needs an object `message`")
    if not is_filled(message.get("id")):
        _refuse(rule, "the message of a system/message needs a non-empty `id`")
    if message.get("role") != "system":
        _refuse(rule, "a system/message needs the role system")
    if type(message.get("content")) is not list:
        _refuse(rule, "the message of a system/message needs an array `content`")
    for block in message["content"]:
        _check_system_block(block)


def _check_system_block(block: Any) -> None:
    rule = "D"
    if not is_object(block) or not is_filled(block.get("type")):
        _refuse(rule, "every content block needs a non-empty `type`")
    kind = block["type"]
    if kind in ("text", "reasoning") and type(block.get("text")) is not str:
        _refuse(rule, "a text or reasoning block needs a string `text`")
    if kind == "tool-call" and not (
        is_filled(block.get("id"))
        and is_filled(block.get("name"))
        and type(block.get("arguments")) is str
    ):
        _refuse(
            rule,
            "a tool-call block needs non-empty `id` and `name` and a string `arguments`",
        )
    if kind == "image" and not is_image(block.get("attachment")):
        _refuse(rule, "the `attachment` of an image block is malformed")
    if kind == RESULT_WRAPPER:
        _refuse(rule, "a tool-result block was retired")


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
    rule = "E"
    if not is_object(data):
        _refuse(rule, "a tool/result needs an object `data`")
    message = data.get("message")
    if not is_object(message):
        _refuse(rule, "a tool/result needs an object `message`")
    if not is_filled(message.get("id")):
        _refuse(rule, "the message of a tool/result needs a non-empty `id`")
    if message.get("role") != "tool":
        _refuse(rule, "a tool/result needs the role tool")
    call, source = message.get("toolCallId"), message.get("source")
    if not is_object(source) or source.get("kind") != "tool":
        _refuse(rule, "a tool/result needs the source kind tool")
    if not is_filled(call) or source.get("callId") != call:
        _refuse(
            rule,
            "`toolCallId` of a tool/result must be non-empty and equal to `source.callId`",
        )
    content = message.get("content")
    if type(content) is not list:
        _refuse(rule, "the message of a tool/result needs an array `content`")
    _check_wrappers(content, rule)
    if type(message.get("isError", False)) is not bool:
        _refuse(rule, "`isError` of a tool/result is no boolean")
    if "error" in data and message.get("isError") is not True:
        _refuse(rule, "a tool/result with `error` needs `isError` true")


def _check_fork_result(event: dict[str, Any], data: Any) -> None:
    rule = "F"
    error, message = data.get("error"), data["message"]
    if not is_object(error) or error.get("code") != "TOOL_NOT_STARTED":
        return
    if not message["id"].startswith(_FORK_PREFIX):
        return
    # Role, source kind, toolCallId, isError and a string callId are given by rule E.
    number = _fork_number(message["id"], message["source"]["callId"])
    if number is None:
        _refuse(
            rule,
            "the message id of a forked result must be forked-tool-result-<callId>-<n>",
        )
    if error.get("name") != "ToolNotStartedError":
        _refuse(rule, "the error of a forked result needs the name ToolNotStartedError")
    content = message["content"]
    texts = [
        block for block in _blocks(content, "text") if type(block.get("text")) is str
    ]
    if len(content) != 1 or not texts:
        _refuse(rule, "the content of a forked result must be one text block")
    seq, op = event.get("seq"), event.get("surfaceOp")
    sources = event.get("sourceEventSeqs", MISSING)
    if is_object(op) and op.get("op") == "replace":
        # The row is still in range form here: [[n,n]] is not the same.
        is_cited = (
            type(sources) is list
            and len(sources) == 1
            and is_number(sources[0])
            and sources[0] == number
        )
        if not is_cited or not is_number(seq) or number >= seq:
            _refuse(
                rule,
                "a forked result that replaces n must come after it and have "
                "`sourceEventSeqs` [n]",
            )
    elif (
        not is_number(seq) or number != seq or op != "append" or sources is not MISSING
    ):
        _refuse(
            rule,
            "an appended forked result must be numbered by its own seq and have no "
            "`sourceEventSeqs`",
        )


def _fork_number(message_id: str, call: str) -> int | None:
    """Return the number at the end of a forked id, None if the id is not of this form."""
    prefix = f"{_FORK_PREFIX}{call}-"
    digits = message_id.removeprefix(prefix)
    if not message_id.startswith(prefix) or not _CANONICAL_DECIMAL.fullmatch(digits):
        return None
    number = int(digits)
    return number if number <= MAX_SAFE_INTEGER else None
