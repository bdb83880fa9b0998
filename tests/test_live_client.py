"""Journal, reconciler, window and the viewer that joins them. Spec: 40 §5 to §7."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dsh_codec.errors import RowError, StreamError
from dsh_codec.live import AttemptId, Change, Entry, Journal, Reconciler, Viewer, Window
from dsh_codec.live.journal import (
    MAX_HELD_ITEMS,
    Append,
    Fatal,
    Notify,
    Open,
    Prepend,
    ReadPage,
    Replace,
    Report,
    Stop,
)
from dsh_codec.live.reconciler import (
    Abandonment,
    Publish,
    Rebaseline,
    Settlement,
    Transient,
)


def event(seq: int, kind: str = "todo/write", **members: Any) -> dict[str, Any]:
    data = {"turn": 1, "step": 1}
    return {"type": kind, "seq": seq, "time": seq, "data": data, **members}


def message(seq: int, **data: Any) -> dict[str, Any]:
    found = event(seq, "assistant/message", surfaceOp="append")
    return found | {"data": {"turn": 1, "step": 1, **data}}


def attempt(seq: int) -> dict[str, Any]:
    return event(seq, "assistant/attempt")


def start(revision: int = 1, name: str = "s:1", after: int = 4) -> Any:
    common = {"type": "start", "attemptId": name, "revision": revision}
    return {**common, "turn": 1, "step": 1, "startedAfterSeq": after}


def chunk(index: int, revision: int = 2, name: str = "s:1") -> Any:
    common = {"type": "chunk", "attemptId": name, "revision": revision}
    delta = {"type": "text-delta", "index": 0, "text": str(index)}
    return {**common, "index": index, "time": 50 + index, "chunk": delta}


def end(
    index: int, seq: int | None = None, kind: str = "message", revision: int = 9
) -> Any:
    outcome: dict[str, Any] = {"kind": "abandoned"}
    if seq is not None:
        outcome = {"kind": "committed", "eventType": f"assistant/{kind}", "seq": seq}
    common = {"type": "end", "attemptId": "s:1", "revision": revision}
    return {**common, "index": index, "outcome": outcome}


def page_of(*seqs: int, has_more: bool = False) -> dict[str, Any]:
    records = [{"type": "event", "event": event(seq)} for seq in seqs]
    return {"records": records, "hasMore": has_more}


def snapshot(*seqs: int, revision: int = 0, has_more: bool = False) -> dict[str, Any]:
    return {
        "type": "snapshot",
        "header": {"id": "s"},
        "cursor": seqs[-1] if seqs else -1,
        **page_of(*seqs, has_more=has_more),
        "projections": {"asOfSeq": -1, "values": {}},
        "assistantStream": {"revision": revision},
    }


def item(value: dict[str, Any]) -> dict[str, Any]:
    if "seq" in value:
        return {"type": "event", "event": value}
    return {"type": "assistant-stream", "frame": value}


def drain(journal: Journal) -> list[Any]:
    outputs = []
    while (output := journal.poll()) is not None:
        outputs.append(output)
    return outputs


def kinds(journal: Journal) -> list[str]:
    return [type(output).__name__ for output in drain(journal)]


def opened(*seqs: int, revision: int = 0, **options: Any) -> Journal:
    """Return a journal whose first follow has delivered its opening."""
    journal = Journal(**options)
    journal.start()
    journal.push(1, snapshot(*seqs, revision=revision))
    assert kinds(journal) == ["Open", "Replace"]
    return journal


# --- journal: opening and continuity (40 §5.1, §5.2) ---


def test_journal_opening_publishes_page_and_baseline() -> None:
    journal = Journal()
    journal.start()
    assert drain(journal) == [Open(1)]
    given = snapshot(3, 4, revision=7, has_more=True)
    journal.push(1, given)
    events = (event(3), event(4))
    assert drain(journal) == [Replace(events, True, {"revision": 7}, given)]
    assert (journal.first, journal.last, journal.is_current) == (3, 4, True)


def test_journal_of_empty_log() -> None:
    journal = opened()
    assert (journal.first, journal.last) == (None, -1)
    journal.push(1, item(event(0)))
    assert drain(journal) == [Append(event(0))]
    assert journal.first == 0


def without(value: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: member for name, member in value.items() if name != key}


BAD_OPENINGS: list[tuple[str, Any]] = [
    ("page does not end at cursor", {**snapshot(3, 4), "cursor": 5}),
    ("cursor of an empty page", {**snapshot(), "cursor": 0}),
    ("page is not contiguous", snapshot(3, 5)),
    ("cursor is -0", {**snapshot(0), "cursor": -0.0}),
    ("no baseline", without(snapshot(0), "assistantStream")),
    ("bad baseline", {**snapshot(0), "assistantStream": {}}),
    ("no hasMore", without(snapshot(0), "hasMore")),
    ("records is no array", {**snapshot(0), "records": {}}),
    ("record of another type", {**snapshot(0), "records": [{"type": "row"}]}),
    ("item before the opening", item(event(0))),
    ("frame before the opening", item(start())),
    ("no item", None),
    ("item of another type", {"type": "other"}),
]


@pytest.mark.parametrize(
    "opening",
    [value for _, value in BAD_OPENINGS],
    ids=[name for name, _ in BAD_OPENINGS],
)
def test_journal_bad_opening_is_fatal(opening: Any) -> None:
    journal = Journal()
    journal.start()
    journal.push(1, opening)
    outputs = drain(journal)
    assert [type(output) for output in outputs] == [Open, Stop, Fatal]
    assert isinstance(outputs[-1].error, StreamError)
    assert journal.error is outputs[-1].error
    journal.push(1, snapshot())
    journal.restart()
    journal.connect()
    assert drain(journal) == []


def test_journal_second_opening_is_fatal() -> None:
    journal = opened(0)
    journal.push(1, snapshot(0))
    assert kinds(journal) == ["Stop", "Fatal"]


def test_journal_resumed_opening_must_not_go_back() -> None:
    """Spec 40 §5.2: cursor >= last."""
    journal = opened(0, 1)
    journal.restart()
    journal.push(2, snapshot(0, 1))
    assert kinds(journal) == ["Stop", "Open", "Replace"]
    journal.restart()
    journal.push(3, snapshot(0))
    assert kinds(journal) == ["Stop", "Open", "Stop", "Fatal"]


BAD_EVENTS: list[Any] = [
    None,
    {},
    event(-1),
    {**event(1), "seq": -0.0},
    {**event(1), "seq": 1.5},
    {**event(1), "type": ""},
    {**event(1), "time": -0.0},
    {**event(1), "time": "1"},
    without(event(1), "data"),
    event(1, "user/message"),
    event(1, surfaceOp="append"),
    event(1, "user/message", surfaceOp={"op": "replace", "startSeq": 1, "endSeq": 1}),
]


@pytest.mark.parametrize("bad", BAD_EVENTS, ids=range(len(BAD_EVENTS)))
def test_journal_bad_event_is_fatal(bad: Any) -> None:
    """Spec 40 §5.1: envelope and surface metadata."""
    journal = opened(0)
    journal.push(1, {"type": "event", "event": bad})
    outputs = drain(journal)
    assert isinstance(outputs[-1], Fatal)
    assert isinstance(outputs[-1].error, RowError)


def test_journal_frames_without_opting_in_are_fatal() -> None:
    journal = Journal(assistant_stream=False)
    journal.start()
    journal.push(1, without(snapshot(0), "assistantStream"))
    assert drain(journal)[1].baseline is None
    journal.push(1, item(start()))
    assert kinds(journal) == ["Stop", "Fatal"]


def test_journal_events_in_order_and_duplicates() -> None:
    journal = opened(3, 4)
    for seq in (4, 5, 3, 5, 6):
        journal.push(1, item(event(seq)))
    assert drain(journal) == [Append(event(5)), Append(event(6))]


def test_journal_frames_move_no_cursor() -> None:
    """Spec 40, G2."""
    journal = opened(3, 4, revision=7)
    journal.push(1, item(start(8)))
    journal.push(1, item(chunk(0, 9)))
    assert drain(journal) == [Notify(start(8)), Notify(chunk(0, 9))]
    assert journal.last == 4


@pytest.mark.parametrize("revision", [1, 7, 9])
def test_journal_other_revision_ends_the_generation(revision: int) -> None:
    """Spec 40 §5.1: gap, repetition or another agent."""
    journal = opened(0, revision=7)
    journal.push(1, item(start(revision)))
    assert drain(journal) == [Stop(1), Open(2)]
    journal.push(1, item(start(8)))
    assert drain(journal) == []
    journal.push(2, snapshot(0, revision=9))
    journal.push(2, item(start(10)))
    assert kinds(journal) == ["Replace", "Notify"]


def test_journal_second_carrier_failure_is_fatal() -> None:
    journal = opened(0)
    journal.carrier_failed(1)
    assert drain(journal) == [Open(2)]
    journal.carrier_failed(1)
    assert drain(journal) == []
    journal.carrier_failed(2)
    assert kinds(journal) == ["Fatal"]


def test_journal_accepted_opening_resets_the_failures() -> None:
    journal = opened(0)
    for generation in range(1, 5):
        journal.carrier_failed(generation)
        journal.push(generation + 1, snapshot(0))
        assert kinds(journal) == ["Open", "Replace"]


def test_journal_restart_resets_the_failures() -> None:
    journal = opened(0)
    journal.carrier_failed(1)
    journal.restart()
    journal.carrier_failed(3)
    assert kinds(journal) == ["Open", "Stop", "Open", "Open"]


def test_journal_waits_while_disconnected() -> None:
    journal = Journal(is_connected=False)
    journal.start()
    assert drain(journal) == []
    journal.connect()
    assert drain(journal) == [Open(1)]
    for generation in range(1, 5):
        journal.disconnect()
        journal.carrier_failed(generation)
        journal.restart()
        assert drain(journal) == []
        journal.connect()
        assert drain(journal) == [Open(generation + 1)]


def test_journal_restart_before_start_does_nothing() -> None:
    journal = Journal()
    journal.restart()
    journal.connect()
    assert drain(journal) == []


def test_journal_end_or_failure_is_fatal() -> None:
    journal = opened(0)
    journal.ended(7)
    assert drain(journal) == []
    journal.ended(1)
    assert kinds(journal) == ["Stop", "Fatal"]
    journal, error = opened(0), PermissionError("no")
    journal.failed(1, error)
    assert drain(journal) == [Stop(1), Fatal(error)]


def test_journal_unpolled_outputs_are_bounded() -> None:
    journal = opened(0)
    for seq in range(1, 4 * MAX_HELD_ITEMS + 2):
        journal.push(1, item(event(seq)))
    with pytest.raises(RuntimeError):
        journal.push(1, item(event(seq + 1)))
    assert len(drain(journal)) == 4 * MAX_HELD_ITEMS + 1


def test_journal_restart_drops_frames_that_wait() -> None:
    journal = opened(0)
    journal.push(1, item(start(1)))
    journal.push(1, item(event(1)))
    journal.restart()
    assert kinds(journal) == ["Append", "Stop", "Open"]


# --- journal: gap repair (40 §5.3) ---


def test_journal_gap_is_repaired_by_one_page() -> None:
    journal = opened(0, 1)
    journal.push(1, item(event(4)))
    assert drain(journal) == [ReadPage(1, 4, None)]
    journal.push(1, item(event(5)))
    journal.push(1, item(event(5)))
    assert drain(journal) == []
    journal.page(1, page_of(2, 3, 4, has_more=True))
    events = tuple(event(seq) for seq in (2, 3, 4, 5))
    assert drain(journal) == [Replace(events, True, None, None)]
    assert (journal.first, journal.last, journal.generation) == (2, 5, 1)


def test_journal_second_gap_is_read_again() -> None:
    journal = opened(0)
    journal.push(1, item(event(2)))
    journal.push(1, item(event(6)))
    journal.push(1, item(event(4)))
    journal.page(1, page_of(0, 1, 2))
    assert drain(journal) == [ReadPage(1, 2, None), ReadPage(2, 6, None)]
    journal.push(1, item(event(7)))
    journal.page(1, page_of(0, 1, 2))
    journal.page(2, page_of(3, 4, 5, 6))
    assert [seq["seq"] for seq in drain(journal)[0].events] == [3, 4, 5, 6, 7]


def test_journal_gap_after_two_reads_is_fatal() -> None:
    journal = opened(0)
    journal.push(1, item(event(2)))
    journal.push(1, item(event(4)))
    journal.page(1, page_of(0, 1, 2))
    journal.push(1, item(event(6)))
    journal.page(2, page_of(3, 4))
    assert kinds(journal) == ["ReadPage", "ReadPage", "Stop", "Fatal"]


@pytest.mark.parametrize(
    "page", [page_of(0, 1), page_of(), page_of(1, 3), None, {"records": []}]
)
def test_journal_bad_repair_page_is_fatal(page: Any) -> None:
    journal = opened(0)
    journal.push(1, item(event(2)))
    journal.page(1, page)
    assert kinds(journal) == ["ReadPage", "Stop", "Fatal"]


def test_journal_held_frames_reopen_once() -> None:
    """Spec 40 §5.3, R2."""
    journal = opened(0, revision=3)
    journal.push(1, item(event(2)))
    journal.push(1, item(start(4)))
    journal.push(1, item(chunk(0, 5)))
    journal.page(1, page_of(0, 1, 2))
    assert kinds(journal) == ["ReadPage", "Replace", "Stop", "Open"]


def test_journal_held_frames_are_applied_if_told_so() -> None:
    journal = opened(0, revision=3, held_after_repair="apply")
    journal.push(1, item(event(2)))
    journal.push(1, item(start(4)))
    journal.push(1, item(chunk(0, 5)))
    journal.page(1, page_of(0, 1, 2))
    outputs = drain(journal)
    assert [type(output) for output in outputs[:2]] == [ReadPage, Replace]
    assert outputs[2:] == [Notify(start(4)), Notify(chunk(0, 5))]


def test_journal_carrier_failure_abandons_the_repair() -> None:
    journal = opened(0)
    journal.push(1, item(event(2)))
    journal.carrier_failed(1)
    journal.page(1, page_of(0, 1, 2))
    assert drain(journal) == [ReadPage(1, 2, None), Open(2)]
    journal.push(2, snapshot(0, 1, 2))
    assert kinds(journal) == ["Replace"]


def test_journal_end_of_stream_in_a_repair_is_fatal() -> None:
    journal = opened(0)
    journal.push(1, item(event(2)))
    journal.ended(1)
    assert kinds(journal) == ["ReadPage", "Stop", "Fatal"]


def test_journal_repair_page_fails() -> None:
    journal = opened(0)
    journal.push(1, item(event(2)))
    journal.page_failed(1, OSError(), is_carrier=True)
    assert kinds(journal) == ["ReadPage", "Stop", "Open"]
    journal.push(2, snapshot(0))
    journal.push(2, item(event(2)))
    journal.page_failed(2, ValueError())
    assert kinds(journal) == ["Replace", "ReadPage", "Stop", "Fatal"]


def test_journal_held_items_are_bounded() -> None:
    journal = opened(0, max_held_items=3)
    journal.push(1, item(event(2)))
    for seq in (3, 4, 5):
        journal.push(1, item(event(seq)))
    assert kinds(journal) == ["ReadPage", "Stop", "Open"]


# --- journal: older history (40 §5.2) ---


def test_journal_older_history_goes_in_front() -> None:
    journal = opened(5, 6)
    assert journal.load_older()
    assert not journal.load_older()
    assert drain(journal) == [ReadPage(1, 6, 5)]
    journal.push(1, item(event(7)))
    journal.page(1, page_of(3, 4, 5, has_more=True))
    assert drain(journal) == [Append(event(7)), Prepend((event(3), event(4)), True)]
    assert journal.first == 3
    assert journal.load_older()


@pytest.mark.parametrize("page", [page_of(2, 3), page_of(), page_of(5, 6), None])
def test_journal_discontinuous_history_is_reported(page: Any) -> None:
    journal = opened(5, 6)
    journal.load_older()
    journal.page(1, page)
    outputs = drain(journal)
    assert outputs[1] == Prepend((), False)
    assert isinstance(outputs[2], Report)
    assert journal.error is None
    assert journal.first == 5


def test_journal_failed_history_is_reported() -> None:
    journal, error = opened(5, 6), OSError()
    journal.load_older()
    journal.page_failed(1, error)
    assert drain(journal)[1:] == [Report(error)]
    assert journal.load_older()


def test_journal_history_of_a_replaced_page_is_ignored() -> None:
    journal = opened(5, 6)
    journal.load_older()
    journal.restart()
    journal.push(2, snapshot(6, 7))
    journal.page(1, page_of(3, 4))
    assert kinds(journal) == ["ReadPage", "Stop", "Open", "Replace"]


def test_journal_without_older_history_asks_for_none() -> None:
    assert not opened(0, 1).load_older()
    assert not opened().load_older()
    journal = opened(5)
    journal.disconnect()
    assert not journal.load_older()


# --- reconciler (40 §6) ---


def test_reconciler_example(kernel: Any) -> None:
    """Spec 40 §6.7."""
    reconciler = Reconciler(kernel=kernel)
    run = {"type": "text-chunks", "time0": 1, "index": 0, "dt": [1]}
    active: Any = {
        "attemptId": "s:1",
        "startedAfterSeq": 4,
        "turn": 1,
        "step": 1,
        "nextIndex": 2,
        "stream": [{**run, "texts": ["He", "llo"]}],
    }
    page = [event(3, "turn/start"), event(4, "step/start")]
    entries = reconciler.replace(page, {"revision": 3, "activeAttempt": active})
    assert [entry.seq for entry in entries] == [3, 4, 4.5, 4.666666666666667]
    decision = reconciler.frame(chunk(2))
    assert isinstance(decision, Transient)
    assert decision.entry.seq == 4.75
    assert reconciler.durable(event(5)) == Publish(Entry(event(5)))
    decision = reconciler.frame(chunk(3))
    assert isinstance(decision, Transient)
    assert decision.entry.seq == 5.5
    assert reconciler.durable(message(6)) is None
    assert reconciler.staged_count == 1
    assert reconciler.frame(end(4, 6)) == Publish(Entry(message(6)))
    assert reconciler.retained_attempt_id == "s:1"
    closing = event(7, "step/end")
    assert reconciler.durable(closing) == Publish(Entry(closing), AttemptId("s:1"))
    assert reconciler.retained_attempt_id is None


def reconciled(*steps: Any) -> tuple[Reconciler, Any]:
    """Return a reconciler after a start and these steps, with the last decision."""
    reconciler = Reconciler()
    reconciler.replace([event(seq) for seq in range(5)])
    decision: Any = reconciler.frame(start())
    for step in steps:
        take = reconciler.durable if "seq" in step else reconciler.frame
        decision = take(step)
    return reconciler, decision


OTHER = "s:2"
ROWS: list[tuple[str, list[Any], Any]] = [
    ("D1", [message(5), message(5)], Rebaseline("D1")),
    ("D2", [message(5)], None),
    ("D3 other step", [message(5), end(0, 5), event(6, "step/end", data={"turn": 1, "step": 2})],
     Publish(Entry(event(6, "step/end", data={"turn": 1, "step": 2})))),
    ("D4 earlier", [attempt(4)], Publish(Entry(attempt(4)))),
    ("D4 other step", [message(5, step=2)], Publish(Entry(message(5, step=2)))),
    ("D4 boolean turn", [message(5, turn=True)], Publish(Entry(message(5, turn=True)))),
    ("S1 active", [start(2, OTHER)], Rebaseline("S1")),
    ("S1 retained", [message(5), end(0, 5), start(2, OTHER)], Rebaseline("S1")),
    ("S1 pending", [message(5), message(6), end(0, 5), event(7, "step/end"), start(2, OTHER)],
     Rebaseline("S1")),
    ("S2", [end(0), start(2, OTHER)], None),
    ("C2 unknown", [end(0), chunk(0)], None),
    ("C2 other", [chunk(0, name=OTHER)], None),
    ("C3 lost", [chunk(1)], Rebaseline("C3")),
    ("C3 repeated", [chunk(0), chunk(0)], Rebaseline("C3")),
    ("E1", [end(0), end(0)], None),
    ("E2", [chunk(0), end(2)], Rebaseline("E2")),
    ("E3", [chunk(0), end(1)], Abandonment(AttemptId("s:1"))),
    ("E4", [message(5), end(0)], Rebaseline("E4")),
    ("E5", [end(0, 4)], None),
    ("E5 after E8", [attempt(5), end(0, 5, "attempt"), start(2), end(0, 5, "attempt")], None),
    ("E5 after E7", [message(5), end(0, 5), event(6, "step/end"), start(2), end(0, 5)], None),
    ("E6 missing", [end(0, 5)], Rebaseline("E6")),
    ("E6 type", [attempt(5), end(0, 5)], Rebaseline("E6")),
    ("E7", [message(5), end(0, 5)], Publish(Entry(message(5)))),
    ("E8 attempt", [attempt(5), end(0, 5, "attempt")], Settlement(AttemptId("s:1"), Entry(attempt(5)))),
    ("E8 interrupted", [message(5, interrupted=True), end(0, 5)],
     Settlement(AttemptId("s:1"), Entry(message(5, interrupted=True)))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(steps, expected) for _, steps, expected in ROWS],
    ids=[name for name, _, _ in ROWS],
)
def test_reconciler_row(steps: list[Any], expected: Any) -> None:
    """Spec 40 §6.3, §6.4."""
    assert reconciled(*steps)[1] == expected


def test_reconciler_surface_replacement_settles_nothing() -> None:
    op = {"op": "replace", "startSeq": 0, "endSeq": 0}
    replacing = message(5) | {"surfaceOp": op}
    assert reconciled(replacing)[1] == Publish(Entry(replacing))


def test_reconciler_end_clears_active_even_if_it_rebaselines() -> None:
    """Spec 90 #23; a chunk gap does not clear it."""
    assert reconciled(end(7))[0].active_attempt_id is None
    assert reconciled(chunk(7))[0].active_attempt_id == "s:1"


@pytest.mark.parametrize("kind", ["message", "attempt"])
def test_reconciler_released_settlement_is_no_longer_staged(kind: str) -> None:
    """Spec 40 §6.4, E7 and E8; others stay."""
    settlement = message(5) if kind == "message" else attempt(5)
    reconciler, _ = reconciled(settlement, message(6), end(0, 5, kind))
    assert reconciler.staged_count == 1


def test_reconciler_staged_event_restarts_the_fractions() -> None:
    """Spec 90 #23."""
    decision = reconciled(chunk(0), message(5), chunk(1))[1]
    assert decision.entry.seq == 5.5


def test_reconciler_refused_baseline_changes_nothing() -> None:
    """Spec 40 §6.2."""
    reconciler, _ = reconciled(chunk(0), message(5))
    active: Any = {**start(), "nextIndex": 1, "stream": [{"type": "bogus"}]}
    with pytest.raises(StreamError):
        reconciler.replace([], {"revision": 1, "activeAttempt": active})
    assert reconciler.cursor == 5
    assert reconciler.frame(end(1, 5)) == Publish(Entry(message(5)))


def test_reconciler_replace_without_baseline_clears_everything() -> None:
    """Spec 40 §5.3, R1 and R3."""
    reconciler, _ = reconciled(chunk(0), message(5))
    reconciler.replace([event(5)])
    assert reconciler.active_attempt_id is None
    assert reconciler.staged_count == 0
    assert reconciler.frame(chunk(1)) is None
    assert reconciler.frame(end(1, 5)) is None
    assert reconciler.durable(attempt(6)) == Publish(Entry(attempt(6)))


def test_reconciler_published_seqs_with_gaps_are_all_known() -> None:
    seqs = [9, 3, 5, 4, 1, 8, 0, 20, 2, 19]
    reconciler = Reconciler()
    reconciler.replace([event(seq) for seq in seqs])
    for seq in (*range(12), 18, 19, 20, 21):
        reconciler.frame(start(after=99))
        decision = reconciler.frame(end(0, seq))
        assert decision == (None if seq in seqs else Rebaseline("E6"))


# --- window (40 §7) ---


def row(seq: float, name: str = "s:1") -> Entry:
    return Entry(
        {"type": "assistant/live-chunk", "seq": seq, "data": {}}, AttemptId(name)
    )


def window_of(*entries: Entry) -> Window:
    window = Window()
    window.replace(entries, has_more=True)
    return window


def seqs(window: Window) -> list[float]:
    return [entry.seq for entry in window.entries]


def test_window_operations_each_publish_one_change() -> None:
    window = window_of(Entry(event(3)))
    assert (window.revision, window.has_more) == (1, True)
    appended = window.append(row(3.5))
    assert appended == Change("append", 2, (row(3.5),), 1, None, True)
    older = (Entry(event(1)), Entry(event(2)))
    assert window.prepend(older, has_more=False) == Change(
        "prepend", 3, older, 0, None, False
    )
    settled = window.settle(AttemptId("s:1"), Entry(event(4)))
    assert settled == Change(
        "settle-assistant", 4, (Entry(event(4)),), 3, AttemptId("s:1"), False
    )
    assert seqs(window) == [1, 2, 3, 4]
    assert window.settle(AttemptId("s:1")) == Change(
        "settle-assistant", 5, (), 0, AttemptId("s:1"), False
    )
    assert (len(window), window.revision) == (4, 5)


def test_window_entries_are_one_object_until_a_change() -> None:
    window = window_of(Entry(event(3)))
    entries = window.entries
    assert window.entries is entries
    window.append(Entry(event(4)))
    assert entries == (Entry(event(3)),)


def test_window_settle_drops_rows_of_that_attempt_only() -> None:
    window = window_of(
        Entry(event(3)), row(3.5), Entry(event(4)), row(4.5, "s:2"), row(4.6)
    )
    window.settle(AttemptId("s:1"))
    assert seqs(window) == [3, 4, 4.5]
    window.settle(AttemptId("s:2"))
    assert seqs(window) == [3, 4]


@pytest.mark.parametrize(
    ("seq", "expected"),
    [
        (2, [2, 3, 5, 5.5, 7]),
        (4, [3, 4, 5, 5.5, 7]),
        (6, [3, 5, 5.5, 6, 7]),
        (8, [3, 5, 5.5, 7, 8]),
    ],
)
def test_window_settlement_goes_before_the_first_larger_seq(
    seq: int, expected: list[float]
) -> None:
    window = window_of(Entry(event(3)), Entry(event(5)), row(5.5, "s:2"))
    window.append(Entry(event(7)))
    change = window.settle(AttemptId("s:1"), Entry(attempt(seq)))
    assert seqs(window) == expected
    assert window.entries[change.index].seq == seq


def test_window_staged_message_goes_to_its_place() -> None:
    """Spec 40 §9, I1: later events were published while the message was staged."""
    window = window_of(Entry(event(4)), row(4.5), Entry(event(6)))
    change = window.append(Entry(message(5)))
    assert seqs(window) == [4, 4.5, 5, 6]
    assert (change.kind, change.index) == ("append", 2)


# --- viewer: the three joined ---


def changes(viewer: Viewer, *items: Any) -> list[Any]:
    outputs: list[Any] = []
    for given in items:
        viewer.journal.push(viewer.journal.generation, given)
        outputs += viewer.outputs()
    return outputs


def viewing(*page_seqs: int) -> Viewer:
    viewer = Viewer()
    viewer.journal.start()
    opening = snapshot(*page_seqs)
    assert list(viewer.outputs()) == [Open(1)]
    assert [change.kind for change in changes(viewer, opening)] == ["replace"]
    return viewer


def test_viewer_shows_rows_and_message_until_the_step_ends() -> None:
    """Spec 40 §6.6."""
    viewer = viewing(4)
    changes(viewer, item(start(1)), item(chunk(0, 2)), item(message(5)))
    assert seqs(viewer.window) == [4, 4.5]
    changes(viewer, item(end(1, 5, revision=3)))
    assert seqs(viewer.window) == [4, 4.5, 5]
    told = changes(viewer, item(event(6, "step/end")))
    assert [change.kind for change in told] == ["append", "settle-assistant"]
    assert seqs(viewer.window) == [4, 5, 6]


def test_viewer_abandoned_attempt_leaves_no_row() -> None:
    viewer = viewing(4)
    changes(viewer, item(start(1)), item(chunk(0, 2)), item(end(1, revision=3)))
    assert seqs(viewer.window) == [4]


def test_viewer_failed_attempt_takes_the_place_of_its_rows() -> None:
    viewer = viewing(4)
    changes(viewer, item(start(1)), item(chunk(0, 2)), item(event(5)))
    changes(viewer, item(attempt(6)), item(event(7)))
    changes(viewer, item(end(1, 6, "attempt", revision=3)))
    assert seqs(viewer.window) == [4, 5, 6, 7]


def test_viewer_rebaseline_restarts_the_journal_once() -> None:
    viewer = viewing(4)
    told = changes(viewer, item(start(1)), item(chunk(1, 2)))
    assert told == [Stop(1), Open(2)]
    assert viewer.rebaselines == 1
    assert seqs(viewer.window) == [4]
    assert changes(viewer, snapshot(4, 5))[0].kind == "replace"
    assert seqs(viewer.window) == [4, 5]


def test_viewer_rows_of_a_settlement_in_the_page_go_with_the_end() -> None:
    """Spec 40 §9, I2, for row E5: a cut between settlement and end."""
    viewer = Viewer()
    viewer.journal.start()
    opening = copy.deepcopy(snapshot(4, 5, revision=2))
    active = without(start(), "type") | {"nextIndex": 1, "stream": []}
    del active["revision"]
    stream = {"type": "text-chunks", "time0": 1, "index": 0, "dt": [], "texts": ["a"]}
    active["stream"] = [stream]
    opening["assistantStream"]["activeAttempt"] = active
    opening["records"][1]["event"] = message(5)
    changes(viewer, opening)
    assert seqs(viewer.window) == [4, 5, 5.5]
    changes(viewer, item(end(1, 5, revision=3)))
    assert seqs(viewer.window) == [4, 5]


def test_viewer_baseline_that_does_not_expand_is_fatal() -> None:
    viewer = viewing(4)
    viewer.journal.restart()
    list(viewer.outputs())
    opening = copy.deepcopy(snapshot(4))
    active = without(start(), "type") | {"nextIndex": 1, "stream": [{"type": "bogus"}]}
    del active["revision"]
    opening["assistantStream"]["activeAttempt"] = active
    told = changes(viewer, opening)
    assert [type(output) for output in told] == [Stop, Fatal]
    assert seqs(viewer.window) == [4]


def test_viewer_shows_older_history() -> None:
    viewer = viewing(4)
    viewer.journal.load_older()
    assert list(viewer.outputs()) == [ReadPage(1, 4, 4)]
    viewer.journal.page(1, page_of(2, 3, has_more=True))
    assert [change.kind for change in viewer.outputs()] == ["prepend"]  # type: ignore[union-attr]  # all are changes
    assert seqs(viewer.window) == [2, 3, 4]
    assert viewer.window.has_more
