"""Rows of generations 0 and 1 that every migration takes. Spec: 50 §4 to §7, appendix A."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec._pure.json import dump
from dsh_codec._types import CommonRow
from dsh_codec.values import is_count, is_sint

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from dsh_codec._types import Row

_PLAIN: Final = ("turn/start", "turn/end", "step/start", "step/end", "tool/call")
_SURFACE: Final = ("tool/result", "user/message", "assistant/message")
_ENVELOPE: Final = ["type", "seq", "time", "data"]
_MORE: Final = frozenset({"sourceEventSeqs", "surfaceOp"})
_ENDS: Final = ("completed", "blocked", "max-tokens", "interrupted")
_MESSAGE: Final = frozenset({"id", "role", "content", "source"})
_COUNTS: Final = frozenset(
    {"totalTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens"}
)
_STEP: Final = frozenset({"turn", "step"})
_NONE: Final[frozenset[str]] = frozenset()


def common_of(row: Row, value: dict[str, Any], *, max_depth: int) -> CommonRow | None:
    """Return a row, given with its value, as a common one, or None. See `CommonRow`."""
    if row.type not in _PLAIN and row.type not in _SURFACE:
        return None
    if not _is_envelope(value, is_surface=row.type in _SURFACE):
        return None
    data, sources = value["data"], value.get("sourceEventSeqs")
    if type(data) is not dict or (
        "sourceEventSeqs" in value and not _are_seqs(sources)
    ):
        return None
    turn, step = _place_of(row.type, data)
    if turn is None or step is None or not _is_admitted(row.type, data):
        return None
    message = data if row.type == "user/message" else data.get("message", {})
    if row.type == "tool/result":
        data = data | {"message": _lifted(message)}
    return CommonRow(
        row.type,
        row.seq,
        int(value["time"]),
        row.raw,
        row.offset,
        row.row,
        turn,
        step,
        message.get("id"),
        sources,
        dump(data, max_depth=max_depth),
    )


def _has_keys(
    value: Any, required: AbstractSet[str], optional: AbstractSet[str] = _NONE
) -> bool:
    return (
        type(value) is dict
        and required <= value.keys()
        and value.keys() <= required | optional
    )


def _is_filled(value: Any) -> bool:
    return type(value) is str and value != ""


def _is_envelope(value: dict[str, Any], *, is_surface: bool) -> bool:
    names = list(value)
    if names[:4] != _ENVELOPE or not is_sint(value["time"]):
        return False
    if not is_surface:
        return len(names) == 4
    # A string, since `==` would take more than that.
    op = value.get("surfaceOp")
    return type(op) is str and op == "append" and set(names[4:]) <= _MORE


def _are_seqs(value: Any) -> bool:
    return type(value) is list and all(
        is_count(entry)
        or (type(entry) is list and len(entry) == 2 and all(map(is_count, entry)))
        for entry in value
    )


def _place_of(kind: str, data: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return turn and step, 0 where there is none; None where they are not from 1."""
    if kind == "user/message":
        return 0, 0
    turn = _positive(data.get("turn"))
    return turn, 0 if kind.startswith("turn/") else _positive(data.get("step"))


def _positive(value: Any) -> int | None:
    return int(value) if is_count(value) and value > 0 else None


def _is_admitted(kind: str, data: dict[str, Any]) -> bool:
    if kind == "turn/start":
        return data.keys() == {"turn"}
    if kind == "turn/end":
        reason: Any = data.get("reason")
        if data.keys() != {"turn", "reason"} or not _has_keys(reason, {"kind"}):
            return False
        return type(reason["kind"]) is str and reason["kind"] in _ENDS
    if kind == "tool/call":
        return (
            data.keys() == _STEP | {"callId", "name", "arguments"}
            and _is_filled(data["callId"])
            and _is_filled(data["name"])
            and type(data["arguments"]) is str
        )
    if kind == "tool/result":
        return data.keys() == _STEP | {"message"} and _is_result(data["message"])
    if kind == "user/message":
        return _is_message(data, "user") and _is_user(data["source"]) and _is_text(data)
    if kind == "assistant/message":
        return _has_keys(
            data, _STEP | {"message"}, {"usage", "interrupted"}
        ) and _is_answer(data)
    return data.keys() == _STEP


def _is_message(message: Any, role: str) -> bool:
    return (
        _has_keys(message, _MESSAGE)
        and _is_filled(message["id"])
        and type(message["role"]) is str
        and message["role"] == role
        and type(message["content"]) is list
    )


def _is_user(source: Any) -> bool:
    return _has_keys(source, {"kind"}, {"rpcId", "clientTimeZone"}) and (
        _is_filled(source["kind"])
        and source["kind"] == "user"
        and all(map(_is_filled, source.values()))
    )


def _is_answer(data: dict[str, Any]) -> bool:
    message, usage = data["message"], data.get("usage")
    if not _is_message(message, "assistant"):
        return False
    source = message["source"]
    return (
        _has_keys(source, {"kind", "provider", "model"}, {"replayState"})
        and type(source["kind"]) is str
        and source["kind"] == "model"
        and _is_filled(source["provider"])
        and _is_filled(source["model"])
        and all(map(is_plain_block, message["content"]))
        and ("usage" not in data or _is_usage(usage))
        and data.get("interrupted", True) is True
    )


def _is_usage(usage: Any) -> bool:
    return _has_keys(usage, {"inputTokens", "outputTokens"}, _COUNTS) and all(
        map(is_count, usage.values())
    )


def is_plain_block(block: Any) -> bool:
    """Whether a block is one of text, reasoning or a tool call, exactly as 50 A.4 has it."""
    kind = block.get("type") if type(block) is dict else None
    if type(kind) is not str:
        return False
    if kind in ("text", "reasoning"):
        return block.keys() == {"type", "text"} and type(block["text"]) is str
    return (
        kind == "tool-call"
        and block.keys() == {"type", "id", "name", "arguments"}
        and _is_filled(block["id"])
        and _is_filled(block["name"])
        and type(block["arguments"]) is str
    )


def _is_text(holder: dict[str, Any]) -> bool:
    content = holder["content"]
    return type(content) is list and all(
        is_plain_block(block) and block["type"] == "text" for block in content
    )


def _is_result(message: Any) -> bool:
    """Whether a message is a tool result around one wrapper of text. Spec: 50 A.3."""
    if not _is_message(message, "user") or len(message["content"]) != 1:
        return False
    [wrapper], source = message["content"], message["source"]
    return (
        _has_keys(source, {"kind", "callId"})
        and type(source["kind"]) is str
        and source["kind"] == "tool"
        and _is_filled(source["callId"])
        and _has_keys(wrapper, {"type", "toolCallId", "content"}, {"isError"})
        and type(wrapper["type"]) is str
        and wrapper["type"] == "tool-result"
        and type(wrapper["toolCallId"]) is str
        and wrapper["toolCallId"] == source["callId"]
        and type(wrapper.get("isError", True)) is bool
        and _is_text(wrapper)
    )


def _lifted(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message of a tool result with its wrapper lifted. Spec: 50 §7.5."""
    [wrapper] = message["content"]
    lifted = {"role": "tool", "source": message["source"]}
    for holder, name in (
        (wrapper, "toolCallId"),
        (wrapper, "content"),
        (wrapper, "isError"),
        (message, "id"),
    ):
        if name in holder:
            lifted[name] = holder[name]
    return lifted
