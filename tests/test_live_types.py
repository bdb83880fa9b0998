"""The typed dictionaries have exactly the members of the spec. Spec: 40 §1."""

from __future__ import annotations

from typing import Any, NotRequired, get_args, get_origin, get_type_hints

import pytest

from dsh_codec.live import AgentLifecycle, frames

COMMON = {"type", "attemptId", "revision"}
WINDOWED = {"maxMessages", "turnWindow"}
MEMBERS: dict[str, tuple[set[str], set[str]]] = {
    # 40 §1.1
    "StartFrame": (COMMON | {"turn", "step"}, set()),
    "ChunkFrame": (COMMON | {"index", "time", "chunk"}, set()),
    "EndFrame": (COMMON | {"index", "outcome"}, set()),
    "CommittedOutcome": ({"kind", "eventType", "seq"}, set()),
    "AbandonedOutcome": ({"kind"}, set()),
    # 40 §1.2
    "BaselineSnapshot": ({"revision"}, {"activeAttempt"}),
    "ActiveAttempt": (
        {"attemptId", "turn", "step", "startedAfterSeq", "nextIndex", "stream"},
        set(),
    ),
    # 40 §1.3
    "FollowRequest": ({"address"}, {"assistantStream"} | WINDOWED),
    "PageRequest": ({"address", "throughSeq"}, {"beforeSeq"} | WINDOWED),
    "TurnWindow": ({"minMessages", "minTurns"}, set()),
    "FollowSnapshot": (
        {"type", "header", "cursor", "records", "hasMore", "projections"},
        {"assistantStream"},
    ),
    "Projections": ({"asOfSeq", "values"}, set()),
    "RecordItem": ({"type", "event"}, set()),
    "EventItem": ({"type", "event"}, set()),
    "FrameItem": ({"type", "frame"}, set()),
    "StartedFrame": (COMMON | {"turn", "step", "startedAfterSeq"}, set()),
    "Page": ({"records", "hasMore"}, set()),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_typed_dictionary_has_the_members_of_the_spec(name: str) -> None:
    hints = get_type_hints(getattr(frames, name), include_extras=True)
    optional = {key for key, hint in hints.items() if get_origin(hint) is NotRequired}
    assert (set(hints) - optional, optional) == MEMBERS[name]


def test_every_typed_dictionary_is_known() -> None:
    found = {
        name
        for name, value in vars(frames).items()
        if isinstance(value, type) and issubclass(value, dict) and value is not dict
    }
    assert found == MEMBERS.keys()


def test_frame_kinds_and_event_types_are_those_of_the_spec() -> None:
    """Spec 40 §1.1."""
    kinds = [get_type_hints(frame)["type"] for frame in get_args(frames.AgentFrame)]
    assert {value for kind in kinds for value in get_args(kind)} == {
        "start",
        "chunk",
        "end",
    }
    assert set(get_args(frames.EventType)) == {"assistant/message", "assistant/attempt"}


def test_framer_emits_exactly_these_members(kernel: Any) -> None:
    emitted: list[Any] = []
    agent = AgentLifecycle("s", emit=emitted.append, clock=lambda: 1, kernel=kernel)
    for _ in range(2):
        framer = agent.framer(1, 1)
        framer.start()
        framer.push({"type": "text-delta", "index": 0, "text": "a"})
        if framer.attempt_id == "s:1":
            framer.settle("assistant/message", lambda: 0)
        else:
            framer.abandon()
    names = {"start": "StartFrame", "chunk": "ChunkFrame", "end": "EndFrame"}
    outcomes = {"committed": "CommittedOutcome", "abandoned": "AbandonedOutcome"}
    assert len(emitted) == 6
    for frame in emitted:
        assert frame.keys() == MEMBERS[names[frame["type"]]][0]
        if frame["type"] == "end":
            outcome = frame["outcome"]
            assert outcome.keys() == MEMBERS[outcomes[outcome["kind"]]][0]
