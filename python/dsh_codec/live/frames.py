"""Messages of the live channel: frames, baselines, follow and page. Spec: 40 §1.

All are JSON values. The typed dictionaries have exactly the members of the spec. What arrives from
elsewhere goes through `check_frame` and `check_baseline` first.
"""

from __future__ import annotations

from typing import (
    Any,
    Final,
    Literal,
    NewType,
    NoReturn,
    NotRequired,
    TypeAlias,
    TypedDict,
    TypeGuard,
)

from dsh_codec.errors import StreamError
from dsh_codec.events import is_array, is_filled, is_object
from dsh_codec.values import is_count, is_safe_integer, is_sint

__all__ = [
    "AbandonedOutcome",
    "ActiveAttempt",
    "AgentFrame",
    "AttemptId",
    "BaselineSnapshot",
    "ChunkFrame",
    "CommittedOutcome",
    "EndFrame",
    "Event",
    "EventItem",
    "EventType",
    "FollowItem",
    "FollowRequest",
    "FollowSnapshot",
    "FrameItem",
    "Outcome",
    "Page",
    "PageRequest",
    "Projections",
    "RecordItem",
    "StartFrame",
    "StartedFrame",
    "TurnWindow",
    "WireFrame",
    "check_baseline",
    "check_frame",
]

Event: TypeAlias = dict[str, Any]
"""A durable event, `sourceEventSeqs` expanded. Spec: 30 §1."""

EventType: TypeAlias = Literal["assistant/message", "assistant/attempt"]

AttemptId = NewType("AttemptId", str)
"""Id of an attempt: opaque, unique within one agent lifecycle, of no meaning after a restart. No
session id, no request id. Spec: 40 §1.1."""

SETTLEMENTS: Final = frozenset(("assistant/message", "assistant/attempt"))
"""Types of the events that settle an attempt. Spec: 40 §1.1."""


class CommittedOutcome(TypedDict):
    """The attempt ended and its settlement is in the log. Spec: 40 §1.1.

    Attributes:
        seq: Seq of the settlement.
    """

    kind: Literal["committed"]
    eventType: EventType
    seq: int


class AbandonedOutcome(TypedDict):
    """The attempt ended and no durable event belongs to it. Spec: 40 §1.1."""

    kind: Literal["abandoned"]


Outcome: TypeAlias = CommittedOutcome | AbandonedOutcome


class StartFrame(TypedDict):
    """An attempt starts. Spec: 40 §1.1.

    Attributes:
        attemptId: Non-empty and opaque, unique within one agent lifecycle.
        revision: Frames of this agent lifecycle so far, this one included.
        turn, step: From 1.
    """

    type: Literal["start"]
    attemptId: AttemptId
    revision: int
    turn: int
    step: int


class StartedFrame(StartFrame):
    """A start frame as a follow delivers it. Spec: 40 §1.3.

    Attributes:
        startedAfterSeq: Last committed seq when the frame was observed, -1 for an empty log.
    """

    startedAfterSeq: int


class ChunkFrame(TypedDict):
    """One chunk. Spec: 40 §1.1.

    Attributes:
        index: Position within the attempt, from 0 and dense.
        time: Milliseconds since the Unix epoch, as in the compact stream.
        chunk: The chunk of 20 §1.
    """

    type: Literal["chunk"]
    attemptId: AttemptId
    revision: int
    index: int
    time: int
    chunk: dict[str, Any]


class EndFrame(TypedDict):
    """An attempt ends. Spec: 40 §1.1.

    Attributes:
        index: Chunks delivered.
    """

    type: Literal["end"]
    attemptId: AttemptId
    revision: int
    index: int
    outcome: Outcome


AgentFrame: TypeAlias = StartFrame | ChunkFrame | EndFrame
"""A frame as the framer emits it."""

WireFrame: TypeAlias = StartedFrame | ChunkFrame | EndFrame
"""A frame as a follow delivers it."""


class ActiveAttempt(TypedDict):
    """The open attempt of a baseline. Spec: 40 §1.2.

    Attributes:
        startedAfterSeq: Last committed seq when the start frame was observed, -1 if none.
        nextIndex: Chunks folded so far.
        stream: Records of exactly these chunks (20 §2).
    """

    attemptId: AttemptId
    startedAfterSeq: int
    turn: int
    step: int
    nextIndex: int
    stream: list[dict[str, Any]]


class BaselineSnapshot(TypedDict):
    """What an opening tells about the running attempt. Spec: 40 §1.2.

    Attributes:
        revision: Last accepted revision, 0 before any frame.
        activeAttempt: Present if an attempt is open and fully known.
    """

    revision: int
    activeAttempt: NotRequired[ActiveAttempt]


class TurnWindow(TypedDict):
    """How far a page reaches back at least, in messages and turns. Spec: 40 §1.3."""

    minMessages: int
    minTurns: int


class FollowRequest(TypedDict):
    """Request to follow a session. `address` is opaque here. Spec: 40 §1.3."""

    address: Any
    assistantStream: NotRequired[Literal[True]]
    maxMessages: NotRequired[int]
    turnWindow: NotRequired[TurnWindow]


class PageRequest(TypedDict):
    """Request for older events, up to `throughSeq` and before `beforeSeq`. Spec: 40 §1.3."""

    address: Any
    throughSeq: int
    beforeSeq: NotRequired[int]
    maxMessages: NotRequired[int]
    turnWindow: NotRequired[TurnWindow]


class RecordItem(TypedDict):
    """One event of a page. Spec: 40 §1.3."""

    type: Literal["event"]
    event: Event


class Page(TypedDict):
    """Contiguous events, and whether the log has older ones. Spec: 40 §1.3."""

    records: list[RecordItem]
    hasMore: bool


class Projections(TypedDict):
    """Values that the host derived from the log up to a seq. Spec: 40 §1.3."""

    asOfSeq: int
    values: Any


class FollowSnapshot(TypedDict):
    """First output of a follow. Spec: 40 §1.3.

    Attributes:
        cursor: Last seq of the log, -1 if it is empty; the records end there.
        assistantStream: Baseline; present if the follow opted in.
    """

    type: Literal["snapshot"]
    header: dict[str, Any]
    cursor: int
    records: list[RecordItem]
    hasMore: bool
    projections: Projections
    assistantStream: NotRequired[BaselineSnapshot]


class EventItem(TypedDict):
    """A durable event of a follow. Spec: 40 §1.3."""

    type: Literal["event"]
    event: Event


class FrameItem(TypedDict):
    """A frame of a follow. Spec: 40 §1.3."""

    type: Literal["assistant-stream"]
    frame: WireFrame


FollowItem: TypeAlias = FollowSnapshot | EventItem | FrameItem

_COMMON: Final = frozenset(("type", "attemptId", "revision"))
_START_KEYS: Final = _COMMON | {"turn", "step"}
_STARTED_KEYS: Final = _START_KEYS | {"startedAfterSeq"}
_CHUNK_KEYS: Final = _COMMON | {"index", "time", "chunk"}
_END_KEYS: Final = _COMMON | {"index", "outcome"}
_ATTEMPT_KEYS: Final = frozenset(
    ("attemptId", "startedAfterSeq", "turn", "step", "nextIndex", "stream")
)


def refuse(message: str, rule: str, record: int | None = None) -> NoReturn:
    """Raise a `StreamError` with the rule of the spec that refuses."""
    raise StreamError(message, None, None, None, None, None, rule, record) from None


def is_positive(value: object) -> TypeGuard[int]:
    """Whether the value is a safe integer from 1."""
    return is_count(value) and value >= 1


def is_cursor(value: object) -> TypeGuard[int]:
    """Whether the value is a safe integer from -1, and not -0."""
    return is_sint(value) and value >= -1


def check_frame(value: Any) -> WireFrame:
    """Check the shape of a frame that a follow delivers.

    Args:
        value: Any JSON value.

    Returns:
        The value itself.

    Raises:
        StreamError: A member is missing, is of another type or too much. The chunk itself is
            checked only for being an object. Spec: 40 §1.
    """
    if not is_object(value):
        refuse("a frame has to be an object", "40 §1.1")
    kind = value.get("type")
    if kind == "chunk":
        fault = _chunk_fault(value)
    elif kind == "start":
        fault = _start_fault(value)
    elif kind == "end":
        fault = _end_fault(value)
    else:
        fault = "the type of a frame has to be start, chunk or end"
    if fault is None and not is_filled(value["attemptId"]):
        fault = "attemptId has to be a non-empty string"
    if fault is None and not is_positive(value["revision"]):
        fault = "revision has to be an integer from 1"
    if fault is not None:
        refuse(fault, "40 §1.1")
    frame: WireFrame = value  # type: ignore[assignment]  # checked above
    return frame


def _keys_fault(value: dict[str, Any], keys: frozenset[str]) -> str | None:
    if value.keys() == keys:
        return None
    return (
        f"the members of a {value['type']} frame have to be {', '.join(sorted(keys))}"
    )


def _start_fault(value: dict[str, Any]) -> str | None:
    fault = _keys_fault(value, _STARTED_KEYS)
    if fault is None and not (
        is_positive(value["turn"]) and is_positive(value["step"])
    ):
        fault = "turn and step have to be integers from 1"
    if fault is None and not is_cursor(value["startedAfterSeq"]):
        fault = "startedAfterSeq has to be an integer from -1"
    return fault


def _chunk_fault(value: dict[str, Any]) -> str | None:
    if value.keys() != _CHUNK_KEYS:
        return _keys_fault(value, _CHUNK_KEYS)
    if not is_count(value["index"]):
        return "index has to be a count"
    if not is_safe_integer(value["time"]):
        return "time has to be a safe integer"
    if not is_object(value["chunk"]):
        return "chunk has to be an object"
    return None


def _end_fault(value: dict[str, Any]) -> str | None:
    fault = _keys_fault(value, _END_KEYS)
    if fault is not None:
        return fault
    if not is_count(value["index"]):
        return "index has to be a count"
    outcome = value["outcome"]
    if outcome == {"kind": "abandoned"}:
        return None
    if (
        is_object(outcome)
        and outcome.keys() == {"kind", "eventType", "seq"}
        and outcome["kind"] == "committed"
        and type(outcome["eventType"]) is str
        and outcome["eventType"] in SETTLEMENTS
        and is_count(outcome["seq"])
    ):
        return None
    return "outcome has to be abandoned, or committed with eventType and seq"


def check_baseline(value: Any) -> BaselineSnapshot:
    """Check the shape of a baseline. Its stream is checked where it is expanded.

    Args:
        value: Any JSON value.

    Returns:
        The value itself.

    Raises:
        StreamError: A member is missing or of another type. Spec: 40 §1.2.
    """
    if not is_object(value) or not is_count(value.get("revision")):
        refuse("a baseline has to be an object with a revision from 0", "40 §1.2")
    if value.keys() - {"revision", "activeAttempt"}:
        refuse("a baseline has revision and activeAttempt only", "40 §1.2")
    if "activeAttempt" in value:
        attempt = value["activeAttempt"]
        if not is_object(attempt) or attempt.keys() != _ATTEMPT_KEYS:
            keys = ", ".join(sorted(_ATTEMPT_KEYS))
            refuse(f"the members of activeAttempt have to be {keys}", "40 §1.2")
        if not (
            is_filled(attempt["attemptId"])
            and is_cursor(attempt["startedAfterSeq"])
            and is_positive(attempt["turn"])
            and is_positive(attempt["step"])
            and is_count(attempt["nextIndex"])
            and is_array(attempt["stream"])
        ):
            refuse("a member of activeAttempt is of another type", "40 §1.2")
    baseline: BaselineSnapshot = value  # type: ignore[assignment]  # checked above
    return baseline
