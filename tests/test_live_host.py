"""Accumulator, pages, follower, host. Spec: 40 §1.3, §3, §4."""

from __future__ import annotations

from typing import Any

import pytest

from dsh_codec.errors import SeqGapError, StreamError
from dsh_codec.live import (
    Baseline,
    Follower,
    Host,
    check_baseline,
    check_frame,
    cut_page,
)
from dsh_codec.live.follower import frame_item

HEADER = {"version": 4, "id": "s"}


def start(revision: int, name: str = "s:1") -> Any:
    common = {"type": "start", "attemptId": name, "revision": revision}
    return {**common, "turn": 1, "step": 1}


def chunk(revision: int, index: int, text: str = "a", name: str = "s:1") -> Any:
    common = {"type": "chunk", "attemptId": name, "revision": revision}
    delta = {"type": "text-delta", "index": 0, "text": text}
    return {**common, "index": index, "time": 100 + 5 * index, "chunk": delta}


def end(revision: int, index: int, name: str = "s:1") -> Any:
    common = {"type": "end", "attemptId": name, "revision": revision}
    return {**common, "index": index, "outcome": {"kind": "abandoned"}}


def event(seq: int, kind: str = "todo/write", **members: Any) -> dict[str, Any]:
    return {"type": kind, "seq": seq, "time": seq, "data": {}, **members}


def events(count: int) -> list[dict[str, Any]]:
    return [event(seq) for seq in range(count)]


# --- accumulator (40 §3) ---


@pytest.fixture
def baseline(kernel: Any) -> Baseline:
    """A baseline after the frames of 40 §2.5 up to revision 3, start seen at cursor 4."""
    folded = Baseline(kernel=kernel)
    for frame in (start(1), chunk(2, 0, "He"), chunk(3, 1, "llo")):
        folded.accept(frame, 4)
    return folded


CHECK_VALUE = {
    "revision": 3,
    "activeAttempt": {
        "attemptId": "s:1",
        "startedAfterSeq": 4,
        "turn": 1,
        "step": 1,
        "nextIndex": 2,
        "stream": [
            {
                "type": "text-chunks",
                "time0": 100,
                "index": 0,
                "dt": [5],
                "texts": ["He", "llo"],
            }
        ],
    },
}


def test_baseline_check_values(baseline: Baseline) -> None:
    """Spec 40 §3, check values."""
    assert baseline.snapshot() == CHECK_VALUE
    baseline.accept(chunk(5, 2), 4)
    assert baseline.snapshot() == {"revision": 5}
    baseline.accept(start(1), 9)
    snapshot = baseline.snapshot()
    assert snapshot["revision"] == 1
    assert snapshot["activeAttempt"]["startedAfterSeq"] == 9
    assert snapshot["activeAttempt"]["stream"] == []


def test_baseline_snapshot_is_one_object_and_stays(baseline: Baseline) -> None:
    snapshot = baseline.snapshot()
    assert baseline.snapshot() is snapshot
    baseline.accept(chunk(4, 2), 4)
    assert baseline.snapshot() is not snapshot
    assert snapshot == CHECK_VALUE


def test_baseline_refused_chunk_changes_nothing(baseline: Baseline) -> None:
    """Spec 40 §3: revision, attempt and index stay; so does the cached object."""
    snapshot = baseline.snapshot()
    bad = chunk(4, 2)
    bad["chunk"] = {"type": "bogus"}
    with pytest.raises(StreamError):
        baseline.accept(bad, 4)
    assert baseline.snapshot() is snapshot
    baseline.accept(chunk(4, 2), 4)
    assert baseline.revision == 4


@pytest.mark.parametrize(
    ("frame", "row"),
    [
        (chunk(4, 2, name="s:2"), 5),
        (chunk(4, 1), 5),
        (end(4, 2), 6),
        (end(4, 9, name="s:9"), 6),
        (start(5), 2),
        (end(3, 2), 2),
    ],
)
def test_baseline_frame_closes_the_attempt(
    baseline: Baseline, frame: Any, row: int
) -> None:
    """Spec 40 §3, rows 2, 5 and 6."""
    assert row in (2, 5, 6)
    baseline.accept(frame, 4)
    assert baseline.snapshot() == {"revision": frame["revision"]}


def test_baseline_start_replaces_open_attempt(baseline: Baseline) -> None:
    """Spec 40 §3, row 3."""
    baseline.accept(start(4, "s:2"), 7)
    active = baseline.snapshot()["activeAttempt"]
    assert (active["attemptId"], active["startedAfterSeq"]) == ("s:2", 7)


# --- shapes (40 §1) ---

STARTED = {**start(1), "startedAfterSeq": -1}
COMMITTED = {"kind": "committed", "eventType": "assistant/message", "seq": 0}


@pytest.mark.parametrize(
    "frame", [STARTED, chunk(2, 0), end(3, 1), {**end(3, 1), "outcome": COMMITTED}]
)
def test_check_frame_takes_each_kind(frame: Any) -> None:
    assert check_frame(frame) is frame


@pytest.mark.parametrize(
    "frame",
    [
        None,
        [],
        {},
        {"type": "pause"},
        start(1),
        {**STARTED, "revision": 0},
        {**STARTED, "revision": True},
        {**STARTED, "attemptId": ""},
        {**STARTED, "turn": 0},
        {**STARTED, "startedAfterSeq": -2},
        {**STARTED, "startedAfterSeq": -0.0},
        {**STARTED, "more": 1},
        {**chunk(2, 0), "index": -0.0},
        {**chunk(2, 0), "time": 0.5},
        {**chunk(2, 0), "chunk": []},
        {**end(3, 1), "index": -1},
        {**end(3, 1), "outcome": {"kind": "lost"}},
        {**end(3, 1), "outcome": {"kind": "abandoned", "seq": 1}},
        {**end(3, 1), "outcome": {**COMMITTED, "eventType": "step/end"}},
        {**end(3, 1), "outcome": {**COMMITTED, "eventType": []}},
        {**end(3, 1), "outcome": {**COMMITTED, "seq": -1}},
    ],
)
def test_check_frame_refuses(frame: Any) -> None:
    with pytest.raises(StreamError) as caught:
        check_frame(frame)
    assert caught.value.rule == "40 §1.1"


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"revision": -1},
        {"revision": 0, "more": 1},
        {"revision": 0, "activeAttempt": None},
        {"revision": 0, "activeAttempt": {"attemptId": "s:1"}},
        {"revision": 0, "activeAttempt": {**CHECK_VALUE["activeAttempt"], "step": 0}},  # type: ignore[dict-item]
    ],
)
def test_check_baseline_refuses(value: Any) -> None:
    with pytest.raises(StreamError) as caught:
        check_baseline(value)
    assert caught.value.rule == "40 §1.2"


def test_check_baseline_takes_check_value() -> None:
    assert check_baseline(CHECK_VALUE) is CHECK_VALUE


# --- pages (40 §1.3) ---


def message(seq: int, **members: Any) -> dict[str, Any]:
    return event(seq, "user/message", surfaceOp="append", **members)


TURNS = [
    event(0, "turn/start"),
    message(1),
    message(2),
    event(3, "turn/end"),
    event(4, "turn/start"),
    message(5),
    event(6),
    event(7, "turn/start"),
    message(8),
]


def seqs_of(page: Any) -> tuple[list[int], bool]:
    return [record["event"]["seq"] for record in page["records"]], page["hasMore"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (list(range(9)), False)),
        ({"max_messages": 1}, ([8], True)),
        ({"max_messages": 2}, ([5, 6, 7, 8], True)),
        ({"max_messages": 4}, (list(range(1, 9)), True)),
        ({"max_messages": 5}, (list(range(9)), False)),
        ({"before_seq": 6, "max_messages": 1}, ([5], True)),
        ({"before_seq": 0}, ([], False)),
        (
            {"turn_window": {"minMessages": 1, "minTurns": 1}},
            ([7, 8], True),
        ),
        (
            {"turn_window": {"minMessages": 2, "minTurns": 1}},
            ([4, 5, 6, 7, 8], True),
        ),
        (
            {"turn_window": {"minMessages": 1, "minTurns": 3}},
            (list(range(9)), False),
        ),
        (
            {"turn_window": {"minMessages": 1, "minTurns": 3}, "max_messages": 3},
            (list(range(2, 9)), True),
        ),
    ],
)
def test_cut_page(options: Any, expected: Any) -> None:
    assert seqs_of(cut_page(TURNS, 8, **options)) == expected


def test_cut_page_reaches_back_to_sources() -> None:
    """Spec 40 §1.3 (b): the smallest of its own seq and its sources."""
    log = [*events(4), message(4, sourceEventSeqs=[3, 1])]
    assert seqs_of(cut_page(log, 4, max_messages=1)) == ([1, 2, 3, 4], True)


def test_cut_page_replacements_do_not_count() -> None:
    op = {"op": "replace", "startSeq": 0, "endSeq": 0}
    log = [message(0), event(1, "user/message", surfaceOp=op)]
    assert seqs_of(cut_page(log, 1, max_messages=1)) == ([0, 1], False)


def test_cut_page_of_empty_log() -> None:
    assert cut_page([], -1) == {"records": [], "hasMore": False}


@pytest.mark.parametrize(
    ("through", "options"),
    [
        (9, {}),
        (-2, {}),
        (-0.0, {}),
        (1.5, {}),
        (8, {"before_seq": -1}),
        (8, {"before_seq": -0.0}),
        (8, {"max_messages": 0}),
        (8, {"max_messages": True}),
        (8, {"turn_window": {"minMessages": 0, "minTurns": 1}}),
        (8, {"turn_window": {"minMessages": 3, "minTurns": 1}, "max_messages": 2}),
        (8, {"turn_window": {"minMessages": 1, "minTurns": 0}}),
        (8, {"turn_window": {"minMessages": 1}}),
    ],
)
def test_cut_page_bad_request(through: Any, options: Any) -> None:
    with pytest.raises(ValueError, match="bad-request"):
        cut_page(TURNS, through, **options)


# --- follower (40 §4) ---


def drain(follower: Follower) -> list[Any]:
    items = []
    while (item := follower.poll()) is not None:
        items.append(item)
    return items


def tags(items: list[Any]) -> list[Any]:
    """Return cursor, seq or revision of each item."""
    return [
        item["cursor"]
        if item["type"] == "snapshot"
        else item["event"]["seq"]
        if item["type"] == "event"
        else ("frame", item["frame"]["revision"])
        for item in items
    ]


def test_follower_cut_drops_what_the_snapshot_holds() -> None:
    """Spec 40 §4.2, §4.3: duplicates and frames up to the cut."""
    follower = Follower(assistant_stream=True)
    follower.push_event(event(2))
    follower.push_frame(start(7), 2)
    follower.push_event(event(3))
    assert follower.poll() is None
    follower.open(HEADER, events(3), {"revision": 7})
    follower.push_frame(chunk(8, 0), 3)
    items = drain(follower)
    assert tags(items) == [2, 3, ("frame", 8)]
    assert items[0] == {
        "type": "snapshot",
        "header": HEADER,
        "cursor": 2,
        "records": [{"type": "event", "event": event(seq)} for seq in range(3)],
        "hasMore": False,
        "projections": {"asOfSeq": 2, "values": {}},
        "assistantStream": {"revision": 7},
    }


def test_follower_cut_goes_by_arrival_not_revision() -> None:
    """Spec 40 §4.2: a frame of the old agent has the larger revision, and is dropped."""
    follower = Follower(assistant_stream=True)
    follower.push_frame(chunk(90, 0), 0)
    follower.open(HEADER, events(1), {"revision": 1})
    follower.push_frame(chunk(2, 0), 0)
    follower.push_frame(start(1), 0)
    assert tags(drain(follower)) == [0, ("frame", 2), ("frame", 1)]


def test_follower_start_frame_carries_cursor_of_its_arrival() -> None:
    follower = Follower(assistant_stream=True)
    follower.open(HEADER, events(1), None)
    frame = start(1)
    follower.push_frame(frame, 0)
    follower.push_event(event(1))
    items = drain(follower)
    assert items[0]["assistantStream"] == {"revision": 0}
    assert items[1]["frame"] == {**frame, "startedAfterSeq": 0}
    assert "startedAfterSeq" not in frame


def test_follower_without_opting_in_sees_no_frame() -> None:
    """Spec 40, G6."""
    follower = Follower()
    follower.open(HEADER, [], {"revision": 3})
    follower.push_frame(start(1), -1)
    follower.push_event(event(0))
    items = drain(follower)
    assert tags(items) == [-1, 0]
    assert "assistantStream" not in items[0]


def test_follower_skipped_event_fails() -> None:
    follower = Follower()
    follower.open(HEADER, events(1), None)
    follower.push_event(event(2))
    follower.poll()
    with pytest.raises(SeqGapError) as caught:
        follower.poll()
    assert (caught.value.expected, caught.value.got) == (1, 2)
    assert follower.closed == "gap"
    assert follower.poll() is None


@pytest.mark.parametrize("is_open", [True, False])
def test_follower_slow_consumer_is_closed(is_open: bool) -> None:  # noqa: FBT001 - a parameter
    follower = Follower(assistant_stream=True, max_queue_items=3)
    if is_open:
        follower.open(HEADER, [], None)
    for seq in range(3):
        follower.push_event(event(seq))
    assert len(follower) == 3
    follower.push_event(event(3))
    assert follower.closed == "slow-consumer"
    assert len(follower) == 0
    follower.push_event(event(4))
    follower.push_frame(start(1), 4)
    follower.push_recreated(events(5), 0)
    assert len(follower) == 0
    assert follower.poll() is None
    with pytest.raises(RuntimeError):
        follower.open(HEADER, [], None)


def test_follower_frames_before_the_opening_take_no_room() -> None:
    follower = Follower(assistant_stream=True, max_queue_items=3)
    for revision in range(1, 100):
        follower.push_frame(chunk(revision, revision), 0)
    follower.open(HEADER, events(1), {"revision": 99})
    assert tags(drain(follower)) == [0]


def test_follower_take_gives_what_poll_would() -> None:
    follower = Follower(assistant_stream=True)
    follower.open(HEADER, events(1), None)
    for seq in (0, 1, 2):
        follower.push_event(event(seq))
    follower.push_frame(start(1), 2)
    follower.push_event(event(4))
    assert tags(follower.take(2)) == [0, 1]
    assert tags(follower.take(9)) == [2, ("frame", 1)]
    with pytest.raises(SeqGapError):
        follower.take(9)
    assert follower.closed == "gap"
    assert follower.take(9) == []


def test_follower_push_tells_when_the_consumer_has_to_know() -> None:
    follower = Follower(assistant_stream=True, max_queue_items=2)
    frame = frame_item(start(1), 0)
    assert not follower.push(frame)  # In the baseline of the opening to come.
    follower.open(HEADER, events(1), None)
    assert follower.push(frame)
    assert not follower.push(frame)
    assert len(follower.take(3)) == 3
    assert follower.push(frame)
    assert not follower.push(frame)
    assert follower.push(frame)
    assert follower.closed == "slow-consumer"
    assert not follower.push(frame)


def test_host_followers_share_what_they_deliver(host: Host) -> None:
    request = {"address": "s", "assistantStream": True}
    one, two = host.follow(request), host.follow(request)
    framer = host.create_agent().framer(1, 1)
    framer.start()
    host.append({"type": "todo/write"})
    taken = one.take(9)[1:]
    assert len(taken) == 2
    for a, b in zip(taken, two.take(9)[1:], strict=True):
        assert a is b


def test_host_wakes_who_had_nothing(host: Host) -> None:
    woken: list[int] = []
    request = {"address": "s", "assistantStream": True}
    follower = host.follow(request, wake=lambda: woken.append(1))
    assert follower.poll() is not None
    for _ in range(3):
        host.append({"type": "todo/write"})
    assert len(woken) == 1
    assert len(follower.take(9)) == 3
    host.append({"type": "todo/write"})
    assert len(woken) == 2
    host.shut_down()
    assert len(woken) == 3
    assert follower.closed == "shutdown"


def test_follower_recreated_session_goes_to_the_front() -> None:
    """Spec 40 §4.1: after the opening, the events behind its cursor, in order."""
    follower = Follower()
    follower.open(HEADER, events(2), None)
    follower.push_event(event(4))
    follower.push_recreated(events(4), 0)
    assert tags(drain(follower)) == [1, 2, 3, 4]


def test_follower_recreated_session_before_the_opening() -> None:
    """Spec 40 §4.1: from its first live event on; the cut drops duplicates."""
    follower = Follower()
    follower.push_recreated(events(4), 2)
    assert len(follower) == 2
    follower.open(HEADER, events(3), None)
    assert tags(drain(follower)) == [2, 3]


# --- host ---


class MemoryLog:
    def __init__(self) -> None:
        self.header: dict[str, Any] = {"version": 4, "id": "s"}
        self.events: list[dict[str, Any]] = []

    def append(self, given: dict[str, Any], /) -> dict[str, Any]:
        committed = event(len(self.events), given["type"])
        self.events.append(committed)
        return committed


@pytest.fixture
def host(kernel: Any) -> Host:
    return Host(MemoryLog(), clock=lambda: 100, kernel=kernel, max_queue_items=5)


OPTED_IN = {"address": "s", "assistantStream": True}


def test_host_followers_share_one_baseline(host: Host) -> None:
    framer = host.create_agent().framer(1, 1)
    framer.start()
    framer.push({"type": "text-delta", "index": 0, "text": "a"})
    first, second = (drain(host.follow(OPTED_IN))[0] for _ in range(2))
    assert first["assistantStream"]["activeAttempt"]["nextIndex"] == 1
    assert first["assistantStream"] is second["assistantStream"]


def test_host_event_precedes_its_end(host: Host) -> None:
    """Spec 40 §4.3."""
    wakes: list[int] = []
    follower = host.follow(OPTED_IN, wake=lambda: wakes.append(1))
    framer = host.create_agent().framer(1, 1)
    framer.start()
    framer.settle(
        "assistant/attempt",
        lambda: host.append({"type": "assistant/attempt", "data": {}}),
    )
    assert tags(drain(follower)) == [-1, ("frame", 1), 0, ("frame", 2)]
    assert len(wakes) == 1


def test_host_disposed_agent_leaves_no_baseline(host: Host) -> None:
    """Spec 40 §3, §8: what the old agent still emits is dropped."""
    old = host.create_agent().framer(1, 1)
    old.start()
    host.dispose_agent()
    old.abandon()
    assert drain(host.follow(OPTED_IN))[0]["assistantStream"] == {"revision": 0}


def test_host_new_agent_replaces_baseline(host: Host) -> None:
    host.create_agent().framer(1, 1).start()
    follower = host.follow(OPTED_IN)
    host.create_agent().framer(1, 1).start()
    snapshot, item = drain(follower)
    assert snapshot["assistantStream"]["revision"] == 1
    assert item["frame"]["revision"] == 1


def test_host_releases_closed_followers(host: Host) -> None:
    slow, left = host.follow(OPTED_IN), host.follow(OPTED_IN)
    host.leave(left)
    for _ in range(6):
        host.append({"type": "todo/write"})
    assert (slow.closed, left.closed) == ("slow-consumer", "cancelled")
    assert host.follower_count == 0
    other = host.follow({"address": "s"})
    host.shut_down()
    assert other.closed == "shutdown"
    assert host.follower_count == 0


@pytest.mark.parametrize(
    "request_members",
    [
        {"maxMessages": 0},
        {"assistantStream": 1},
        {"turnWindow": None},
        {"turnWindow": {"minMessages": 51, "minTurns": 1}},
    ],
)
def test_host_bad_follow_request_subscribes_nobody(
    host: Host, request_members: Any
) -> None:
    with pytest.raises(ValueError, match="bad-request"):
        host.follow({"address": "s", **request_members})
    assert host.follower_count == 0


def test_host_page(host: Host) -> None:
    for _ in range(3):
        host.append({"type": "todo/write"})
    page = host.page({"address": "s", "throughSeq": 2, "beforeSeq": 2})
    assert seqs_of(page) == ([0, 1], False)
    assert page.keys() == {"records", "hasMore"}


@pytest.mark.parametrize(
    "request_members",
    [
        {},
        {"throughSeq": 0},
        {"throughSeq": -1, "beforeSeq": None},
        {"throughSeq": -1, "turnWindow": None},
        {"throughSeq": "0"},
    ],
)
def test_host_bad_page_request(host: Host, request_members: Any) -> None:
    with pytest.raises(ValueError, match="bad-request"):
        host.page({"address": "s", **request_members})
