"""Pages of a log: validation of what a client asks for, and the cut. Spec: 40 §1.3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec.events import is_array, is_object
from dsh_codec.live.frames import is_cursor, is_positive
from dsh_codec.values import is_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsh_codec.live.frames import Event, Page

__all__ = ["MAX_MESSAGES", "check_bounds", "cut_page"]

MAX_MESSAGES: Final = 50
"""Messages in a page when the request does not say. Spec: 40 §1.3."""

_MESSAGES: Final = frozenset(("user/message", "assistant/message"))


def check_bounds(request: Mapping[str, Any]) -> None:
    """Check the members that a follow request and a page request share.

    Args:
        request: The request; only `maxMessages` and `turnWindow` are looked at.

    Raises:
        ValueError: A bad request; the message says which member. Spec: 40 §1.3.
    """
    max_messages = request.get("maxMessages", MAX_MESSAGES)
    if not is_positive(max_messages):
        message = "bad-request: maxMessages has to be an integer from 1"
        raise ValueError(message)
    if "turnWindow" not in request:
        return
    window = request["turnWindow"]
    if not is_object(window) or window.keys() != {"minMessages", "minTurns"}:
        message = "bad-request: turnWindow has to be {minMessages, minTurns}"
        raise ValueError(message)
    if not is_positive(window["minMessages"]) or window["minMessages"] > max_messages:
        message = "bad-request: minMessages has to be an integer from 1 to maxMessages"
        raise ValueError(message)
    if not is_positive(window["minTurns"]):
        message = "bad-request: minTurns has to be an integer from 1"
        raise ValueError(message)


def cut_page(
    events: Sequence[Event],
    through_seq: int,
    *,
    before_seq: int | None = None,
    max_messages: int = MAX_MESSAGES,
    turn_window: Mapping[str, int] | None = None,
) -> Page:
    """Return the page that ends at a seq.

    Args:
        events: The log from seq 0; its last seq is the log's cursor.
        through_seq: Last seq of the page at most, from -1 to the cursor.
        before_seq: The page ends before this seq, from 0; None sets no bound.
        max_messages: Appended user and assistant messages in the page, from 1.
        turn_window: `minMessages` and `minTurns`: the page starts at the first turn, going back,
            where it holds this much; None: `max_messages` alone decides.

    Returns:
        The page; the events are those of the log, not copied.

    Raises:
        ValueError: A bad request. Spec: 40 §1.3.

    Note:
        Linear in the page.
    """
    if not is_cursor(through_seq) or through_seq >= len(events):
        message = f"bad-request: throughSeq has to be from -1 to {len(events) - 1}"
        raise ValueError(message)
    if before_seq is not None and not is_count(before_seq):
        message = "bad-request: beforeSeq has to be an integer from 0"
        raise ValueError(message)
    bounds: dict[str, Any] = {"maxMessages": max_messages}
    if turn_window is not None:
        bounds["turnWindow"] = turn_window
    check_bounds(bounds)
    end = int(through_seq) + 1
    if before_seq is not None:
        end = min(end, int(before_seq))
    cut = _find_cut(events, end, max_messages, turn_window)
    records = [{"type": "event", "event": event} for event in events[cut:end]]
    return {"records": records, "hasMore": cut > 0}  # type: ignore[typeddict-item]  # literals widened


def _find_cut(
    events: Sequence[Event],
    end: int,
    max_messages: int,
    turn_window: Mapping[str, int] | None,
) -> int:
    messages = turns = 0
    for seq in range(end - 1, -1, -1):
        event = events[seq]
        kind = event["type"]
        if turn_window is not None and kind == "turn/start":
            turns += 1
            if (
                messages >= turn_window["minMessages"]
                and turns >= turn_window["minTurns"]
            ):
                return seq
        if kind in _MESSAGES and event.get("surfaceOp") == "append":
            messages += 1
            if messages >= max_messages:
                sources = event.get("sourceEventSeqs")
                first: int = min([seq, *(sources if is_array(sources) else ())])
                return first
    return 0
