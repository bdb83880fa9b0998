"""Layer L3: is every type known, and has every message the shape of generation 4?

V1 and V2 say that an intact log cannot be interpreted, so they win over V3 to V7 wherever in the
log those fail. Spec: 30 §8, §5.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec.errors import DshCodecError, RowError, UnsupportedError
from dsh_codec.events import (
    KNOWN_TYPES,
    MISSING,
    SURFACE_ROLES,
    TOOL_CHANGES,
    is_array,
    is_earlier,
    is_filled,
    is_identical,
    is_object,
    message_of,
    quote,
    refusal,
    seq_of,
    type_of,
)
from dsh_codec.values import is_count

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["VocabularyMachine", "check_vocabulary"]

_REPLACE_KEYS: Final = {"op", "startSeq", "endSeq"}


def type_fault(event: dict[str, Any], seq: int) -> UnsupportedError | None:
    """Return the refusal of V1 or V2, if any."""
    kind = type_of(event)
    if kind not in KNOWN_TYPES:
        if event.get("ignorable") is True:
            return None
        message = f"event type {quote(kind)} is unknown here and not marked ignorable"
        return UnsupportedError(message, None, None, None, seq, None, "V1")
    if kind == "request/header":
        data = event.get("data")
        if is_object(data) and data.get("reason") == "fallback":
            message = "request/header has the retired reason 'fallback'"
            return UnsupportedError(message, None, None, None, seq, None, "V2")
    return None


def metadata_fault(event: dict[str, Any], seq: int) -> RowError | None:
    """Return the refusal of V3, the metadata rules, if any. Spec: 30 §5.2."""
    kind = type_of(event)
    if kind not in SURFACE_ROLES:
        if "surfaceOp" not in event and "sourceEventSeqs" not in event:
            return None
        if event.get("ignorable") is True and kind not in KNOWN_TYPES:
            return None
        message = f"{quote(kind)} must not carry surfaceOp or sourceEventSeqs"
        return refusal("V3", seq, message)
    op = event.get("surfaceOp", MISSING)
    if op is MISSING:
        return refusal("V3", seq, f"{kind} lacks its surfaceOp")
    if not (type(op) is str and op == "append"):
        if not is_object(op) or op.keys() != _REPLACE_KEYS or op["op"] != "replace":
            return refusal(
                "V3",
                seq,
                "surfaceOp is neither 'append' nor exactly {op, startSeq, endSeq}",
            )
        if not (is_earlier(op["startSeq"], seq) and is_earlier(op["endSeq"], seq)):
            return refusal("V3", seq, "startSeq and endSeq must name earlier events")
    if "sourceEventSeqs" in event:
        return _sources_fault(event["sourceEventSeqs"], kind, seq)
    return None


def _sources_fault(sources: Any, kind: str, seq: int) -> RowError | None:
    if kind == "assistant/message":
        return refusal("V3", seq, "assistant/message must not carry sourceEventSeqs")
    if not is_array(sources) or not sources:
        return refusal("V3", seq, "sourceEventSeqs must be a non-empty array")
    if not all(is_earlier(source, seq) for source in sources):
        return refusal("V3", seq, "sourceEventSeqs must name earlier events")
    if len(set(sources)) != len(sources):
        return refusal("V3", seq, "sourceEventSeqs must not repeat a seq")
    return None


def shape_fault(event: dict[str, Any], seq: int) -> RowError | None:
    """Return the first refusal of V4 to V7, if any."""
    kind = type_of(event)
    if kind == "request/header":
        return _header_fault(event.get("data"), seq)
    if kind not in SURFACE_ROLES:
        return None
    message = message_of(event)
    if is_object(message):
        fault = _tool_change_fault(kind, event["data"], message, seq)
        if fault is not None:
            return fault
        if (
            kind == "tool/result"
            and "error" in event["data"]
            and message.get("isError") is not True
        ):
            return refusal(
                "V6", seq, "tool/result has an error, but isError is not true"
            )
    return _message_fault(kind, message, seq)


def _header_fault(data: Any, seq: int) -> RowError | None:
    header = data.get("header") if is_object(data) else None
    if not is_object(header):
        return None
    if "system" in header:
        return refusal("V5", seq, "request/header must not have the member system")
    tools = header.get("tools")
    if is_array(tools) and not tools:
        return refusal("V5", seq, "request/header must omit empty tools")
    defaults = header.get("adapterDefaults")
    if is_object(defaults) and not defaults:
        return refusal("V5", seq, "request/header must omit empty adapterDefaults")
    return None


def _tool_change_fault(
    kind: str, data: dict[str, Any], message: dict[str, Any], seq: int
) -> RowError | None:
    content = message.get("content")
    blocks = content if is_array(content) else []
    changes = [
        block
        for block in blocks
        if is_object(block)
        and type(block.get("type")) is str
        and block["type"] in TOOL_CHANGES
    ]
    if kind != "developer/message":
        if message.get("role") == "developer":
            return refusal(
                "V4", seq, f"the message of {kind} must not have role 'developer'"
            )
        if changes:
            return refusal(
                "V4", seq, f"{kind} must not hold tool-addition or tool-removal blocks"
            )
        return None
    additions = False
    for block in changes:
        if not is_filled(block.get("toolName")):
            return refusal(
                "V4", seq, "a tool-change block must have a non-empty toolName"
            )
        if block["type"] == "tool-addition":
            additions = True
            if "tool" in block:
                return refusal(
                    "V4", seq, "a tool-addition must not have the member tool"
                )
    if additions and not is_count(data.get("headerSeq")):
        return refusal(
            "V4", seq, "developer/message with a tool-addition needs headerSeq"
        )
    if not additions and "headerSeq" in data:
        return refusal(
            "V4", seq, "developer/message without a tool-addition has headerSeq"
        )
    return None


def _message_fault(kind: str, message: Any, seq: int) -> RowError | None:
    if not is_object(message):
        return refusal("V7", seq, f"{kind} has no message object")
    if not is_filled(message.get("id")):
        return refusal("V7", seq, f"the message of {kind} has no id")
    role = SURFACE_ROLES[kind]
    if message.get("role") != role:
        return refusal("V7", seq, f"the message of {kind} must have role {role!r}")
    source = message.get("source")
    if not is_object(source) or not is_filled(source.get("kind")):
        return refusal("V7", seq, f"the message of {kind} has no source kind")
    if not is_array(message.get("content")):
        return refusal("V7", seq, f"the content of {kind} is no array")
    if kind == "system/message" and source["kind"] != "system-prompt":
        return refusal(
            "V7", seq, "system/message must have source kind 'system-prompt'"
        )
    if kind == "assistant/message" and not (
        source["kind"] == "model"
        and is_filled(source.get("provider"))
        and is_filled(source.get("model"))
    ):
        return refusal(
            "V7", seq, "assistant/message must name its model and provider as source"
        )
    if kind == "tool/result" and not (
        source["kind"] == "tool"
        and is_filled(source.get("callId"))
        and is_identical(source["callId"], message.get("toolCallId"))
    ):
        return refusal(
            "V7", seq, "tool/result must have its toolCallId as source.callId"
        )
    return None


class VocabularyMachine:
    """L3 as a state machine: one event in, its faults out. Spec: 30 §8."""

    def __init__(self) -> None:
        """Begin before the first event."""
        self._index = 0

    def findings(self, event: dict[str, Any]) -> list[DshCodecError]:
        """Take the next event and return what it breaks.

        Args:
            event: Logical event as parsed, `sourceEventSeqs` expanded.

        Returns:
            At most one `UnsupportedError` (V1, V2) or up to two `RowError` (V3; V4 to V7).
        """
        seq = seq_of(event, self._index)
        self._index += 1
        unsupported = type_fault(event, seq)
        if unsupported is not None:
            return [unsupported]
        faults = (metadata_fault(event, seq), shape_fault(event, seq))
        return [fault for fault in faults if fault is not None]

    def finish(self) -> list[DshCodecError]:
        """Return what only the end of the log shows: nothing in this layer."""
        return []


def check_vocabulary(events: Iterable[dict[str, Any]]) -> None:
    """Check vocabulary and shape of a whole log.

    Args:
        events: Logical events in order, `sourceEventSeqs` expanded.

    Raises:
        UnsupportedError: V1 or V2 at any event, even behind a fault of V3 to V7.
        RowError: Else the first of V3 to V7; `.rule` and `.seq` are set.

    Note:
        One pass; an unsupported event is seen only if the iterable is read to it. Spec: 30 §8.
    """
    machine = VocabularyMachine()
    first: DshCodecError | None = None
    for event in events:
        for fault in machine.findings(event):
            if isinstance(fault, UnsupportedError):
                raise fault
            if first is None:
                first = fault
    if first is not None:
        raise first
