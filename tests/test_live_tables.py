"""Machines against the tables of the spec, on sequences that no host would send. Spec: 40 §3 to §7.

`DSH_LIVE_TABLE_RUNS` sets the number of sequences for each machine, `DSH_LIVE_SEED` runs one.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any, Final

import pytest

from dsh_codec.errors import SeqGapError, StreamError
from dsh_codec.live import (
    AttemptId,
    Baseline,
    Entry,
    Follower,
    Journal,
    Reconciler,
    Window,
)
from dsh_codec.live.journal import (
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
from live_tables import (
    BaselineTable,
    FollowerTable,
    JournalTable,
    ReconcilerTable,
    WindowTable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS: Final = int(os.environ.get("DSH_LIVE_TABLE_RUNS", "400"))
STEPS: Final = 60
HEADER: Final = {"version": 4, "id": "s"}


def runs(
    name: str, run: Callable[[random.Random, Any], None], kernel: Any = None
) -> None:
    given = os.environ.get("DSH_LIVE_SEED")
    for seed in range(RUNS) if given is None else [int(given)]:
        try:
            run(random.Random(f"{name} {seed}"), kernel)  # noqa: S311 - repeatable
        except BaseException as error:
            error.add_note(f"rerun with DSH_LIVE_SEED={seed}")
            raise


# --- what is thrown at them ---


def chunk_of(chance: random.Random) -> dict[str, Any]:
    draw = chance.random()
    index = chance.choice([0, 0, 1])
    if draw < 0.6:
        return {"type": "text-delta", "index": index, "text": chance.choice("ab")}
    if draw < 0.8:
        call: dict[str, Any] = {"type": "tool-call-delta", "index": index}
        call |= {"id": chance.choice(["c", ""]), "argumentsDelta": "{"}
        return call | ({"name": "n"} if chance.random() < 0.5 else {})
    if draw < 0.97:
        return {"type": "usage", "usage": {"inputTokens": 1, "outputTokens": 2}}
    return {"type": "bogus"}


def frame_of(chance: random.Random, revision: int, **more: Any) -> Any:
    common = {"attemptId": chance.choice(["s:1", "s:2"]), "revision": revision}
    kind = chance.choice(["start", "chunk", "chunk", "chunk", "end"])
    if kind == "start":
        where = {"turn": chance.randint(1, 2), "step": chance.randint(1, 2)}
        return {"type": kind, **common, **where, **more}
    if kind == "chunk":
        timed = {"time": chance.randint(-5, 50), "chunk": chunk_of(chance)}
        return {"type": kind, **common, "index": chance.randint(0, 3), **timed}
    outcome: dict[str, Any] = {"kind": "abandoned"}
    if chance.random() < 0.7:
        name = chance.choice(["assistant/message", "assistant/attempt"])
        outcome = {
            "kind": "committed",
            "eventType": name,
            "seq": chance.randint(0, 12),
        }
    index = chance.randint(0, 3)
    return {"type": kind, **common, "index": index, "outcome": outcome}


def event_of(chance: random.Random, seq: int) -> dict[str, Any]:
    kind = chance.choice(
        ["assistant/message", "assistant/attempt", "step/end", "todo/write"]
    )
    data: Any = {"turn": chance.randint(1, 2), "step": chance.randint(1, 2)}
    if chance.random() < 0.1:
        odd = [True, "1", 1.0, None, [1]]
        data[chance.choice(["turn", "step"])] = chance.choice(odd)
    if chance.random() < 0.3:
        data["interrupted"] = chance.choice([True, True, False, 1, "true"])
    event = {"type": kind, "seq": seq, "time": 0, "data": data}
    if kind == "assistant/message":
        replacement = {"op": "replace", "startSeq": 0, "endSeq": 0}
        event["surfaceOp"] = chance.choice(["append", "append", replacement])
    return event


# --- baseline ---


def run_baseline(chance: random.Random, kernel: Any) -> None:
    table, baseline = BaselineTable(), Baseline(kernel=kernel)
    taken: list[tuple[Any, str]] = []
    for _ in range(STEPS):
        draw = chance.random()
        revision = table.revision + 1
        if draw < 0.1:
            revision = chance.choice([0, 1, table.revision, table.revision + 2])
        frame = frame_of(chance, revision)
        if table.active is not None and chance.random() < 0.8:
            frame["attemptId"] = table.active["attemptId"]
            if frame["type"] == "chunk":
                frame["index"] = len(table.chunks)
        cursor = chance.randint(-1, 9)
        outcomes = []
        for machine in (table, baseline):
            try:
                machine.accept(frame, cursor)
                outcomes.append("taken")
            except StreamError as error:
                outcomes.append(type(error).__name__)
        assert outcomes[0] == outcomes[1]
        snapshot = baseline.snapshot()
        assert snapshot == table.snapshot()
        assert baseline.snapshot() is snapshot
        # Identity-stable, and immutable: later frames leave a snapshot as it was.
        taken.append((snapshot, repr(snapshot)))
    assert all(repr(snapshot) == text for snapshot, text in taken)


def test_baseline_does_what_its_table_says(kernel: Any) -> None:
    runs("baseline", run_baseline, kernel)


# --- follower ---


def run_follower(chance: random.Random, _: Any) -> None:
    opted_in = chance.random() < 0.8
    table = FollowerTable(opted_in=opted_in)
    follower = Follower(assistant_stream=opted_in)
    log: list[dict[str, Any]] = []
    revision = 0
    for _step in range(STEPS):
        draw = chance.random()
        if draw < 0.25:
            log.append(event_of(chance, len(log)))
            if chance.random() < 0.98:  # A lost event is a gap.
                table.event(log[-1])
                follower.push_event(log[-1])
        elif draw < 0.3 and log:
            again = chance.choice(log)
            table.event(again)
            follower.push_event(again)
        elif draw < 0.6:
            revision = chance.choice([revision + 1, revision + 1, 1])
            frame, cursor = frame_of(chance, revision), len(log) - 1
            table.frame(frame, cursor)
            follower.push_frame(frame, cursor)
        elif draw < 0.63:
            first = chance.randint(0, len(log))
            table.recreated(list(log), first)
            follower.push_recreated(list(log), first)
        elif draw < 0.7 and not follower.is_open:
            baseline: Any = chance.choice([None, {"revision": revision}])
            table.open(len(log) - 1, baseline)
            follower.open(HEADER, log[:], baseline)
        else:
            compare_outputs(table, follower, chance.randint(1, 5))
    compare_outputs(table, follower, 1000)


def compare_outputs(table: FollowerTable, follower: Follower, count: int) -> None:
    for _ in range(count):
        expected = table.pop()
        if expected == "gap":
            with pytest.raises(SeqGapError):
                follower.poll()
            assert follower.closed == "gap"
            return
        item = follower.poll()
        if expected is None:
            assert item is None
            return
        assert item is not None
        if expected[0] == "snapshot":
            assert item["type"] == "snapshot"
            assert item["cursor"] == expected[1]
            assert item.get("assistantStream") == (expected[2:] or (None,))[0]
        elif expected[0] == "event":
            assert item == {"type": "event", "event": expected[1]}
        else:
            assert item == {"type": "assistant-stream", "frame": expected[1]}


def test_follower_does_what_its_table_says() -> None:
    runs("follower", run_follower)


# --- reconciler ---


def plain(decision: Any) -> Any:
    if decision is None:
        return None
    if isinstance(decision, Rebaseline):
        return "rebaseline"
    if isinstance(decision, Transient):
        return ("transient", decision.entry.event)
    if isinstance(decision, Publish):
        found = ("publish", decision.entry.event)
        if decision.retired_id is None:
            return found
        return (*found, "retire", decision.retired_id)
    if isinstance(decision, Settlement):
        return ("settlement", decision.attempt_id, decision.entry.event)
    assert isinstance(decision, Abandonment)
    return ("abandonment", decision.attempt_id)


def stream_of(chance: random.Random) -> list[dict[str, Any]]:
    texts = list("abc"[: chance.randint(1, 3)])
    run: dict[str, Any] = {"type": "text-chunks", "time0": 5, "index": 0}
    run |= {"dt": [1] * (len(texts) - 1), "texts": texts}
    usage = {"type": "chunk", "time": 9, "chunk": {"type": "usage", "usage": {}}}
    return chance.choice([[], [run], [run, usage], [{**run, "dt": [1, 2, 3]}]])


def run_reconciler(chance: random.Random, kernel: Any) -> None:
    table, reconciler = ReconcilerTable(), Reconciler(kernel=kernel)
    seq = chance.randint(0, 4)
    for _ in range(STEPS):
        draw = chance.random()
        if draw < 0.06:
            start = chance.randint(0, seq)
            entries = [event_of(chance, n) for n in range(start, seq)]
            baseline: Any = chance.choice([None, {"revision": 1}])
            if chance.random() < 0.6:
                where = {"turn": chance.randint(1, 2), "step": chance.randint(1, 2)}
                active = {
                    "attemptId": chance.choice(["s:1", "s:2"]),
                    "startedAfterSeq": chance.randint(-1, seq),
                    "nextIndex": chance.randint(0, 4),
                    "stream": stream_of(chance),
                }
                baseline = {"revision": 1, "activeAttempt": active | where}
            compare_replace(table, reconciler, entries, baseline)
        elif draw < 0.45:
            step = chance.choice([1, 1, 1, 1, 0, -1, 3])
            seq = max(seq + step, 0)
            event = event_of(chance, seq)
            if table.active is not None and chance.random() < 0.6:
                place = {key: table.active[key] for key in ("turn", "step")}
                event["data"] = {**event["data"], **place}
            assert plain(reconciler.durable(event)) == table.durable(event)
        else:
            after = chance.choice([seq, seq, seq - 1, -1])
            frame = frame_of(chance, 1, startedAfterSeq=after)
            steer(chance, frame, table)
            assert plain(reconciler.frame(frame)) == table.frame(frame)
        assert reconciler.cursor == table.cursor
        open_id = None if table.active is None else table.active["attemptId"]
        assert reconciler.active_attempt_id == open_id
        retained = None if table.retained is None else table.retained["attemptId"]
        assert reconciler.retained_attempt_id == retained
        assert reconciler.staged_count == len(table.pending)


def steer(chance: random.Random, frame: Any, table: ReconcilerTable) -> None:
    """Let a frame fit more often than chance would."""
    if table.active is None or chance.random() < 0.3:
        return
    frame["attemptId"] = table.active["attemptId"]
    if "index" in frame:
        frame["index"] = table.active["nextIndex"]
    if frame.get("outcome", {}).get("kind") != "committed":
        return
    if table.published and chance.random() < 0.2:
        frame["outcome"]["seq"] = chance.choice(sorted(table.published)[-2:])
    elif table.pending:
        seq = chance.choice(list(table.pending))
        frame["outcome"]["seq"] = seq
        if chance.random() < 0.8:
            frame["outcome"]["eventType"] = table.pending[seq]["type"]


def compare_replace(
    table: ReconcilerTable, reconciler: Reconciler, entries: Any, baseline: Any
) -> None:
    try:
        expected = table.replace(entries, baseline)
    except StreamError:
        with pytest.raises(StreamError):
            reconciler.replace(entries, baseline)
        return
    shown = reconciler.replace(entries, baseline)
    assert [entry.event for entry in shown] == expected
    assert [entry.is_durable for entry in shown] == [
        number < len(entries) for number in range(len(expected))
    ]


def test_reconciler_does_what_its_table_says(kernel: Any) -> None:
    runs("reconciler", run_reconciler, kernel)


# --- window ---


def run_window(chance: random.Random, _: Any) -> None:
    """As a reconciler drives it: durable entries arrive in order, rows lie between them."""
    table, window = WindowTable(), Window()
    first = cursor = 10
    row = 0
    held: list[dict[str, Any]] = []
    for _step in range(STEPS):
        draw, has_more = chance.random(), chance.random() < 0.5
        if draw < 0.06:
            first = chance.randint(0, 10)
            cursor = first + chance.randint(0, 4)
            events = [{"seq": seq} for seq in range(first, cursor + 1)]
            held, row = [], 0
            table.replace([(event, None) for event in events], has_more)
            window.replace([Entry(event) for event in events], has_more=has_more)
        elif draw < 0.12 and first:
            events = [{"seq": seq} for seq in range(max(first - 3, 0), first)]
            first = events[0]["seq"]
            table.prepend([(event, None) for event in events], has_more)
            window.prepend([Entry(event) for event in events], has_more=has_more)
        elif draw < 0.3:
            cursor, row = cursor + 1, 0
            if chance.random() < 0.3:
                held.append({"seq": cursor})  # Staged.
            else:
                append(table, window, {"seq": cursor}, None)
        elif draw < 0.7:
            row += 1
            event = {"seq": cursor + 1 - 1 / (row + 1)}
            append(table, window, event, chance.choice(["s:1", "s:2"]))
        else:
            entry = held.pop() if held and chance.random() < 0.7 else None
            name = chance.choice(["s:1", "s:2", "s:3"])
            table.settle(name, entry)
            window.settle(AttemptId(name), None if entry is None else Entry(entry))
        assert [(e.event, e.attempt_id) for e in window.entries] == table.items
        assert len(window) == len(table.items)
        assert (window.has_more, window.revision) == (table.has_more, table.revision)


def append(
    table: WindowTable, window: Window, event: dict[str, Any], name: str | None
) -> None:
    table.append((event, name))
    window.append(Entry(event, None if name is None else AttemptId(name)))


def test_window_does_what_its_table_says() -> None:
    runs("window", run_window)


# --- journal ---


def told(output: Any) -> tuple[Any, ...]:
    """Return an output of the journal as its table writes it."""
    if isinstance(output, Open):
        return ("open", output.generation)
    if isinstance(output, Stop):
        return ("stop", output.generation)
    if isinstance(output, ReadPage):
        return ("read", output.request_id, output.through_seq, output.before_seq)
    if isinstance(output, Replace):
        return ("replace", list(output.events), output.has_more, output.baseline)
    if isinstance(output, Append):
        return ("append", output.event)
    if isinstance(output, Prepend):
        return ("prepend", list(output.events), output.has_more)
    if isinstance(output, Notify):
        return ("notify", output.frame)
    if isinstance(output, Report):
        return ("report",)
    assert isinstance(output, Fatal)
    return ("fatal",)


def records(seqs: Any) -> list[dict[str, Any]]:
    return [
        {
            "type": "event",
            "event": {"type": "todo/write", "seq": seq, "time": seq, "data": {}},
        }
        for seq in seqs
    ]


def run_journal(chance: random.Random, _: Any) -> None:
    opted_in = chance.random() < 0.9
    held: Any = chance.choice(["reopen", "reopen", "apply"])
    table = JournalTable(opted_in=opted_in, held=held)
    journal = Journal(assistant_stream=opted_in, held_after_repair=held)
    tail = chance.randint(-1, 6)
    table.open()
    journal.start()
    for _step in range(STEPS):
        draw = chance.random()
        generation = table.generation - (chance.random() < 0.05)
        if draw < 0.04:
            table.restart()
            journal.restart()
        elif draw < 0.09:
            table.broke_off(generation)
            journal.carrier_failed(generation)
        elif draw < 0.15:
            table.older()
            journal.load_older()
        elif draw < 0.37:
            request = table.requests - (chance.random() < 0.1)
            page = page_of(chance, table, tail)
            table.page(request, page)
            journal.page(request, page)
        else:
            tail, item = item_of(chance, table, tail)
            table.push(generation, item)
            journal.push(generation, item)
        outputs = []
        while (output := journal.poll()) is not None:
            outputs.append(told(output))
        assert outputs == table.out
        table.out = []
        assert (journal.first, journal.last) == (table.first, table.last)
        assert journal.generation == table.generation
        assert (journal.error is not None) == table.is_over


def page_of(chance: random.Random, table: JournalTable, tail: int) -> Any:
    """A page that mostly answers what was asked."""
    end = tail + 1
    if table.repair is not None:
        end = table.repair["target"] + 1
    elif table.first is not None:
        end = table.first
    seqs = list(range(max(end - chance.randint(0, 4), 0), end))
    if seqs and chance.random() < 0.1:
        seqs.pop(chance.randrange(len(seqs)))
    if chance.random() < 0.1:
        seqs.append((seqs[-1] if seqs else 0) + 1)
    return {"records": records(seqs), "hasMore": chance.random() < 0.5}


def item_of(chance: random.Random, table: JournalTable, tail: int) -> tuple[int, Any]:
    """An item, and the tail of the host's log; a running follow mostly starts as it should."""
    if not table.is_accepted or chance.random() < 0.02:
        if chance.random() < 0.02:
            return tail, {"type": "event", "event": records([tail + 1])[0]["event"]}
        tail = max(tail, table.last) - (chance.random() < 0.05)
        seqs = list(range(max(tail - chance.randint(0, 4), 0), tail + 1))
        if chance.random() < 0.03 and len(seqs) > 2:
            seqs.pop(1)
        item: dict[str, Any] = {"type": "snapshot", "header": {}, "cursor": tail}
        item |= {"records": records(seqs), "hasMore": chance.random() < 0.5}
        item["projections"] = {"asOfSeq": tail, "values": {}}
        if chance.random() < 0.98:
            item["assistantStream"] = {"revision": chance.randint(0, 3)}
        return tail, item
    if chance.random() < 0.5:
        known = max(
            [table.last, *((e["seq"]) for e in (table.repair or {}).get("queued", []))]
        )
        seq = max(known + chance.choice([1, 1, 1, 1, 2, 3, 0, -1]), 0)
        return max(tail, seq), {"type": "event", "event": records([seq])[0]["event"]}
    revision = table.rev + chance.choice([1] * 15 + [2, 0])
    frame = frame_of(chance, max(revision, 1), startedAfterSeq=table.last)
    return tail, {"type": "assistant-stream", "frame": frame}


def test_journal_does_what_its_table_says() -> None:
    runs("journal", run_journal)
