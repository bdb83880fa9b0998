"""The event that settles an attempt, made from its stream. Spec: 30 §4, §10; key order of 70 §1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["settlement_event"]

_ABSENT: Final = object()


def settlement_event(
    assembler: Any,
    records: Sequence[Mapping[str, Any]],
    seq: int,
    turn: int,
    step: int,
    time_ms: int,
    message: tuple[str, str, str] | None,
    is_interrupted: bool,  # noqa: FBT001 - called by both kernels, by place
) -> dict[str, Any]:
    """Return an `assistant/message`, or an `assistant/attempt` without a message.

    Args:
        assembler: A new assembler of the kernel that asks.
        records: The stream. Spec: 20 §2.
        seq: The seq of the event.
        turn: The open turn.
        step: The open step.
        time_ms: Time of the event, milliseconds since the Unix epoch.
        message: Id, provider and model of the message; None: the attempt gave none.
        is_interrupted: Whether only visible text and reasoning are the content.

    Raises:
        StreamError: The chunks cannot be assembled.
    """
    data: dict[str, Any] = {"turn": turn, "step": step}
    event: dict[str, Any] = {
        "type": "assistant/attempt",
        "seq": seq,
        "time": time_ms,
        "data": data,
    }
    if message is not None:
        event["type"] = "assistant/message"
        event["surfaceOp"] = "append"
        is_cut = bool(is_interrupted)
        _add_message(data, assembler, records, message, is_interrupted=is_cut)
    data["stream"] = records
    return event


def _add_message(
    data: dict[str, Any],
    assembler: Any,
    records: Sequence[Mapping[str, Any]],
    message: tuple[str, str, str],
    *,
    is_interrupted: bool,
) -> None:
    """Add the members that the stream of a message determines."""
    message_id, provider, model = message
    source = {"kind": "model", "provider": provider, "model": model}
    assembler.push_records(records)
    replay_state = assembler.replay_state(_ABSENT)
    if replay_state is not _ABSENT:
        source["replayState"] = replay_state
    content = assembler.interrupted_blocks() if is_interrupted else assembler.blocks()
    data["message"] = {
        "role": "assistant",
        "content": content,
        "source": source,
        "id": message_id,
    }
    usage = assembler.usage(_ABSENT)
    if usage is not _ABSENT:
        data["usage"] = usage
    if is_interrupted:
        data["interrupted"] = True
