"""Reconciler and window against a model of the host. Spec: 40 §6, §7, invariants I1 and I2.

The machine delivers what a host would, in order, but may lose or repeat frames that no revision
check catches here. Whatever it does, the window never shows a chunk that is not next in its
attempt, nor a durable event out of place, and after a rebaseline all is right again.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from dsh_codec import TimedChunk, pack
from dsh_codec.live import Change, Entry, Viewer
from dsh_codec.live.journal import Append, Notify, Replace


class StubJournal:
    """A journal whose outputs the machine writes."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.is_restarted = False

    def poll(self) -> Any:
        return self.outputs.pop(0) if self.outputs else None

    def restart(self) -> None:
        self.is_restarted = True


class LiveMachine(RuleBasedStateMachine):
    """The host is a list of events and one attempt; the client is the code under test."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = StubJournal()
        self.viewer = Viewer(self.journal)  # type: ignore[arg-type]  # the part it needs
        self.window = self.viewer.window
        self.mirror: list[Entry] = []
        self.log: list[dict[str, Any]] = []
        self.chunks: dict[str, list[str]] = {}
        self.started_after: dict[str, int] = {}
        self.active: str | None = None
        self.settled: dict[str, int] = {}
        self.closed_steps: set[int] = set()
        self.steps: dict[str, int] = {}
        self.step = 0
        self.is_step_open = False
        self.has_lost = False

    # --- client ---

    def give(self, output: Any) -> None:
        self.journal.outputs.append(output)
        for change in self.viewer.outputs():
            assert isinstance(change, Change)
            if change.kind == "replace":
                self.mirror = list(change.entries)
                continue
            if change.attempt_id is not None:
                self.mirror = [
                    entry
                    for entry in self.mirror
                    if entry.attempt_id != change.attempt_id
                ]
            self.mirror[change.index : change.index] = change.entries
        if self.journal.is_restarted:
            self.journal.is_restarted = False
            self.open()

    @initialize()
    def open_first(self) -> None:
        self.open()

    @rule()
    def open_again(self) -> None:
        self.open()

    def open(self) -> None:
        """A new opening: page and baseline of one cut."""
        baseline: Any = {"revision": 9}
        if self.active is not None:
            texts = self.chunks[self.active]
            timed = [TimedChunk(n, text_delta(text)) for n, text in enumerate(texts)]
            baseline["activeAttempt"] = {
                "attemptId": self.active,
                "startedAfterSeq": self.started_after[self.active],
                "turn": 1,
                "step": self.step,
                "nextIndex": len(texts),
                "stream": pack(timed),
            }
        self.give(Replace(tuple(self.log), False, baseline, None))
        self.has_lost = False

    @rule()
    def repair_gap(self) -> None:
        """A replacing page without baseline: R1."""
        self.give(Replace(tuple(self.log), False, None, None))
        self.has_lost = True

    # --- host ---

    def append(self, kind: str, **members: Any) -> int:
        seq = len(self.log)
        op = {"surfaceOp": "append"} if kind == "assistant/message" else {}
        data = {"turn": 1, "step": self.step, **members}
        event = {"type": kind, "seq": seq, "time": seq, "data": data, **op}
        self.log.append(event)
        self.give(Append(event))
        return seq

    def send(self, frame: Any, fate: str) -> None:
        if fate == "lost":
            self.has_lost = True
            return
        for _ in range(2 if fate == "twice" else 1):
            self.give(Notify(frame))

    @precondition(lambda self: not self.is_step_open)
    @rule()
    def start_step(self) -> None:
        self.step += 1
        self.is_step_open = True
        self.append("step/start")

    @precondition(lambda self: self.is_step_open and self.active is None)
    @rule()
    def end_step(self) -> None:
        self.is_step_open = False
        self.closed_steps.add(self.step)
        self.append("step/end")

    @rule()
    def write_todo(self) -> None:
        self.append("todo/write")

    @precondition(lambda self: self.is_step_open and self.active is None)
    @rule(fate=st.sampled_from(["sent", "sent", "lost"]))
    def start_attempt(self, fate: str) -> None:
        name = f"s:{len(self.chunks) + 1}"
        self.active = name
        self.chunks[name] = []
        self.steps[name] = self.step
        self.started_after[name] = len(self.log) - 1
        frame = {
            "type": "start",
            "attemptId": name,
            "revision": 1,
            "turn": 1,
            "step": self.step,
            "startedAfterSeq": len(self.log) - 1,
        }
        self.send(frame, fate)

    @precondition(lambda self: self.active is not None)
    @rule(
        text=st.text(max_size=3), fate=st.sampled_from(["sent"] * 4 + ["lost", "twice"])
    )
    def send_chunk(self, text: str, fate: str) -> None:
        assert self.active is not None
        texts = self.chunks[self.active]
        frame = {
            "type": "chunk",
            "attemptId": self.active,
            "revision": 1,
            "index": len(texts),
            "time": len(texts),
            "chunk": text_delta(text),
        }
        texts.append(text)
        self.send(frame, fate)

    def end(self, outcome: Any, fate: str) -> None:
        assert self.active is not None
        name, self.active = self.active, None
        frame = {
            "type": "end",
            "attemptId": name,
            "revision": 1,
            "index": len(self.chunks[name]),
            "outcome": outcome,
        }
        self.send(frame, fate)

    @precondition(lambda self: self.active is not None)
    @rule(
        kind=st.sampled_from(["assistant/message", "assistant/attempt"]),
        interrupted=st.booleans(),
        between=st.integers(0, 2),
        reopen=st.booleans(),
        fate=st.sampled_from(["sent", "sent", "sent", "lost", "twice"]),
    )
    def settle_attempt(
        self, kind: str, *, interrupted: bool, between: int, reopen: bool, fate: str
    ) -> None:
        assert self.active is not None
        is_message = kind == "assistant/message"
        members = {"interrupted": True} if interrupted and is_message else {}
        seq = self.append(kind, **members)
        for _ in range(between):
            self.append("todo/write")
        if reopen:
            self.open()  # Page with the settlement, baseline with the attempt: row E5.
        if not is_message or interrupted:
            self.settled[self.active] = seq
        self.end({"kind": "committed", "eventType": kind, "seq": seq}, fate)

    @precondition(lambda self: self.active is not None)
    @rule(fate=st.sampled_from(["sent", "sent", "lost", "twice"]))
    def abandon_attempt(self, fate: str) -> None:
        self.end({"kind": "abandoned"}, fate)

    # --- what always holds ---

    @invariant()
    def rows_are_a_prefix_of_their_attempt(self) -> None:
        shown: dict[str, list[str]] = {}
        for entry in self.window.entries:
            if entry.attempt_id is not None:
                text = entry.event["data"]["chunk"]["text"]
                shown.setdefault(entry.attempt_id, []).append(text)
        assert len(shown) <= 1
        for name, texts in shown.items():
            assert texts == self.chunks[name][: len(texts)]
        if not self.has_lost and self.active is not None:
            assert shown.get(self.active, []) == self.chunks[self.active]

    @invariant()
    def durable_entries_are_the_log(self) -> None:
        shown = [entry.event for entry in self.window.entries if entry.is_durable]
        seqs = {event["seq"] for event in shown}
        hidden = [event for event in self.log if event["seq"] not in seqs]
        assert shown == [event for event in self.log if event["seq"] in seqs]
        assert len(hidden) == self.viewer.reconciler.staged_count
        if not self.has_lost:
            assert not hidden

    @invariant()
    def no_row_outlives_its_settlement(self) -> None:
        if self.has_lost:
            return
        for entry in self.window.entries:
            name = entry.attempt_id
            if name is not None:
                assert name not in self.settled
                assert self.steps[name] not in self.closed_steps

    @invariant()
    def changes_tell_the_window(self) -> None:
        assert tuple(self.mirror) == self.window.entries
        assert self.window.entries is self.window.entries


def text_delta(text: str) -> dict[str, Any]:
    return {"type": "text-delta", "index": 0, "text": text}


TestLiveMachine = LiveMachine.TestCase
TestLiveMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
