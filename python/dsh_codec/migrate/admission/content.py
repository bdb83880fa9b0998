"""Content blocks of old messages. Spec: 50 A.4, A.5."""

from __future__ import annotations

from typing import Any, Final

from dsh_codec._backend import kernel
from dsh_codec._types import StreamText
from dsh_codec.events import is_array, is_filled, is_object
from dsh_codec.migrate.admission.shape import (
    Check,
    Place,
    array_of,
    boolean,
    count,
    exact,
    fail,
    filled,
    one_of,
    positive,
    text,
    within,
)
from dsh_codec.migrate.refusal import EdgeRefusalError, refuse

RULE: Final = "50 A.4"
STRICT_RULE: Final = "50 A.5"

WRAPPER: Final = "tool-result"
"""Type of the block that wraps a tool's result in generations 0 to 3."""

STRICT_KINDS: Final = frozenset(
    ("text", "reasoning", "image", "file", "tool-call", WRAPPER)
)

_SIZE: Final = {"width": positive, "height": positive}
_TEXT: Final = exact({"type": text, "text": text}, None, RULE)
_IMAGE: Final = exact(
    {
        "type": text,
        "attachment": exact(
            {
                "attachmentId": filled,
                "mediaType": one_of(
                    "image/png", "image/jpeg", "image/webp", "image/gif"
                ),
                "bytes": count,
                **_SIZE,
            },
            {"name": text, "originalDimensions": exact(_SIZE, None, RULE)},
            RULE,
        ),
    },
    None,
    RULE,
)
_TOOL_CALL: Final = exact(
    {"type": text, "id": filled, "name": filled, "arguments": text}, None, RULE
)
_FILE: Final = exact(
    {
        "type": text,
        "attachment": exact(
            {"attachmentId": filled, "name": text, "bytes": count}, None, RULE
        ),
    },
    None,
    RULE,
)


def _skip(value: Any, at: Place) -> None:
    """Accept: the caller goes through the nested content itself."""
    del value, at


_WRAPPER: Final = exact(
    {"type": text, "toolCallId": filled, "content": _skip}, {"isError": boolean}, RULE
)
_LOOSE: Final[dict[str, Check]] = {
    "text": _TEXT,
    "reasoning": _TEXT,
    "image": _IMAGE,
    "tool-call": _TOOL_CALL,
    WRAPPER: _WRAPPER,
}
_STRICT: Final[dict[str, Check]] = {**_LOOSE, "file": _FILE}


def blocks(value: Any, at: Place) -> None:
    """Accept an array of content blocks; of types that are not known, only the type counts."""
    _check_blocks(value, at, is_strict=False)


def _check_blocks(value: Any, at: Place, *, is_strict: bool) -> None:
    # Wrappers may hold wrappers, hence the list instead of a recursion.
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        path, content = pending.pop()
        if not is_array(content):
            refuse(RULE, "has to be an array of blocks", path)
        for index, block in enumerate(content):
            place = f"{path}[{index}]"
            try:
                check_block(block, at, is_strict=is_strict)
            except EdgeRefusalError as refusal:
                inner = refusal.member
                member = f"{place}.{inner}" if inner else place
                refuse(refusal.rule, refusal.message, member)
            if block["type"] == WRAPPER:
                pending.append((f"{place}.content", block["content"]))


def check_block(block: Any, at: Place, *, is_strict: bool) -> None:
    """Check one block, but not the content that a tool result wraps."""
    if not is_object(block):
        fail("has to be an object", RULE)
    kind = block.get("type")
    if not is_filled(kind):
        refuse(RULE, "has to be a non-empty string", "type")
    if is_strict and kind not in STRICT_KINDS:
        refuse(STRICT_RULE, "is a block type that generation 2 does not know", "type")
    check = (_STRICT if is_strict else _LOOSE).get(kind)
    if check is not None:
        check(block, at)


# --- strict kinds: where a block that is not known cannot be carried over ---


def _strict_blocks(value: Any, at: Place) -> None:
    _check_blocks(value, at, is_strict=True)


def _strict_stream(value: Any, at: Place) -> None:
    if isinstance(value, StreamText):
        if not value.has_plain_blocks:
            _strict_stream(kernel.parse(value.text), at)
        return
    if not is_array(value):
        fail("has to be an array", STRICT_RULE)
    for index, record in enumerate(value):
        # Most records are runs, which hold no blocks.
        if not is_object(record) or record.get("type") == "chunk":
            within(index, _strict_record, record, at)


def _strict_record(record: Any, at: Place) -> None:
    if not is_object(record):
        fail("has to be an object", STRICT_RULE)
    chunk = record.get("chunk")
    if not is_object(chunk):
        refuse(STRICT_RULE, "has to be an object", "chunk")
    kind = chunk.get("type")
    if kind == "block-end":
        try:
            _strict_blocks([chunk.get("block")], at)
        except EdgeRefusalError as refusal:
            member = f"chunk.block{refusal.member.removeprefix('[0]')}"
            refuse(refusal.rule, refusal.message, member)
    elif kind == "block-start":
        opened = chunk.get("blockType")
        if type(opened) is not str or opened not in STRICT_KINDS:
            message = "is a block type that generation 2 does not know"
            refuse(STRICT_RULE, message, "chunk.blockType")


def _strict_message(value: Any, at: Place) -> None:
    if not is_object(value):
        fail("has to be an object", STRICT_RULE)
    within("content", _strict_blocks, value.get("content"), at)


_STRICT_MESSAGES: Final = array_of(_strict_message)
_LOCATIONS: Final[dict[str, tuple[tuple[str, Check], ...]]] = {
    "user/message": (("content", _strict_blocks),),
    "tool/code-dispatch": (("content", _strict_blocks),),
    "assistant/message": (("message", _strict_message), ("stream", _strict_stream)),
    "assistant/attempt": (("stream", _strict_stream),),
    "tool/result": (("message", _strict_message),),
    "team/message/queued": (("message", _strict_message),),
    "agent/inbox/spliced": (("inserted", _STRICT_MESSAGES),),
    "session/title-llm-request": (("messages", _STRICT_MESSAGES),),
    "compaction/summary": (("summary", _strict_blocks),),
}


def check_strict_content(kind: str, data: dict[str, Any], at: Place) -> None:
    """Check every place of an event that holds content for kinds that are not known.

    Raises:
        EdgeRefusalError: A block is of another kind than generation 2 knows, or malformed.
    """
    for name, check in _LOCATIONS.get(kind, ()):
        within(name, check, data.get(name), at)
    if kind == "compaction/summary" and "rawOutput" in data:
        within("rawOutput", _strict_blocks, data["rawOutput"], at)
