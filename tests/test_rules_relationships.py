"""Layer L2. Spec: 30 §7."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dsh_codec.errors import DshCodecError, RowError
from dsh_codec.rules.relationships import RelationshipMachine, check_relationships
from rules_logs import HEADER, LogMaker, text


class RefusingKernel:
    """Stands for a kernel whose row admission refuses one type."""

    def admit(self, event: Any, /) -> None:
        if event["type"] == "todo/write":
            message = "not admitted"
            raise RowError(message, None, None, None, None, None, "A2")


def check(maker: LogMaker, cut: int | None = 0) -> None:
    check_relationships(maker.header, cut, maker.events)


def refused(maker: LogMaker, rule: str, seq: int, cut: int | None = 0) -> None:
    with pytest.raises(RowError) as caught:
        check(maker, cut)
    assert (caught.value.rule, caught.value.seq) == (rule, seq)


def all_findings(maker: LogMaker) -> list[tuple[str | None, int | None]]:
    machine = RelationshipMachine(maker.header, 0)
    found: list[DshCodecError] = []
    for event in maker.events:
        found += machine.findings(event)
    found += machine.finish()
    return [(finding.rule, finding.seq) for finding in found]


def in_step() -> LogMaker:
    """A log of six events with an open turn and step, a system prompt and a question."""
    maker = LogMaker(1)
    maker.open_turn()
    maker.open_step()
    maker.request("initial")
    maker.system()
    maker.user()
    return maker


def test_open_tail_is_legal():
    """Spec 30 §7: an open turn, step, tool call or compaction at the end is no fault."""
    maker = in_step()
    maker.answer(2)
    maker.add("compaction/start", {"compactionId": "c", "turn": 1})
    check(maker)


def test_unknown_types_are_skipped_whatever_they_hold():
    maker = in_step()
    maker.add("future/turn", None, surfaceOp="append", sourceEventSeqs=7)
    check(maker)


@pytest.mark.parametrize("turn", [True, "1", None, 1.5, [1]])
def test_turn_number_of_another_type_is_refused(turn):
    """`True` equals 1 in Python, not in the format."""
    maker = LogMaker(1)
    maker.add("turn/start", {"turn": turn})
    refused(maker, "L2.turn-start", 0)


def test_numbers_in_other_spellings_are_equal():
    maker = LogMaker(1)
    maker.add("turn/start", {"turn": 1.0})
    maker.add("step/start", {"turn": 1.0, "step": 1.0})
    maker.add("step/end", {"turn": 1, "step": 1})
    maker.add("turn/end", {"turn": 1})
    check(maker)


class TestCompaction:
    def start(self, maker: LogMaker, turn: int | None) -> int:
        return maker.add("compaction/start", {"compactionId": "c", "turn": turn})

    def test_turn_inside_orphan_compaction_is_accepted(self):
        """Spec 30 §7.2, preparation: an end-seed comes while the compaction is open."""
        maker = LogMaker(1)
        self.start(maker, None)
        maker.open_turn()
        maker.close_turn()
        maker.add("session/end-seed", {})
        check(maker)

    def test_turn_inside_unfinished_compaction_is_refused_at_the_end(self):
        maker = LogMaker(1)
        self.start(maker, None)
        maker.open_turn()
        refused(maker, "L2.compaction-crossed", 1)

    def test_turn_inside_ended_compaction_is_refused(self):
        """The end comes before the end-seed, so the start is no orphan."""
        maker = LogMaker(1)
        self.start(maker, None)
        maker.open_turn()
        maker.close_turn()
        maker.add("compaction/end", {"compactionId": "c", "turn": None, "error": "x"})
        maker.add("session/end-seed", {})
        refused(maker, "L2.compaction-crossed", 1)

    def test_end_with_absent_instead_of_null_turn_is_refused(self):
        maker = LogMaker(1)
        self.start(maker, None)
        maker.add("compaction/end", {"compactionId": "c", "error": "x"})
        refused(maker, "L2.compaction-end", 1)

    def test_end_without_summary_needs_error(self):
        maker = LogMaker(1)
        self.start(maker, None)
        maker.add("compaction/end", {"compactionId": "c", "turn": None})
        refused(maker, "L2.compaction-end", 1)

    def test_span_with_head_is_refused(self):
        maker = in_step()
        maker.prune(maker.nodes[0])
        refused(maker, "L2.head", 6)

    def test_span_over_replaced_node_follows_surface_order(self):
        """Spec 30 §5.1: a replaced range may hold a higher seq before a lower one."""
        maker = in_step()
        maker.user()
        first, second = maker.nodes[1], maker.nodes[2]
        replaced = maker.replace(
            "user/message", maker.events[first]["data"], first, first
        )
        bounds = {"start": replaced, "end": second}
        data = {"shadowedRange": bounds, "shadowedSeqs": [replaced, second]}
        maker.add("compaction/prune", data)
        check(maker)


class TestRetry:
    def retry(self, maker: LogMaker, **changes: Any) -> int:
        data = {
            "retryId": "r",
            "turn": 1,
            "step": 1,
            "provider": "p",
            "policyKey": "k",
            "retry": 1,
        }
        return maker.add("llm/retry", data | changes)

    def test_before_first_step_counts_as_step_zero(self):
        """Spec 30 §7.2: nextStep - 1 if none is open. Pitfalls table: 30 wins."""
        maker = LogMaker(1)
        maker.open_turn()
        maker.request("initial")
        self.retry(maker, step=0)
        check(maker)

    def test_chain_keeps_id_and_counts(self):
        maker = in_step()
        self.retry(maker)
        self.retry(maker, retry=2)
        check(maker)
        refused_seq = self.retry(maker, retry=3, retryId="other")
        refused(maker, "L2.retry", refused_seq)

    def test_new_chain_must_not_reuse_an_id(self):
        maker = in_step()
        self.retry(maker)
        seq = self.retry(maker, policyKey="other")
        refused(maker, "L2.retry", seq)

    def test_absent_provider_equals_absent_provider_only(self):
        maker = LogMaker(1)
        maker.open_turn()
        data = {"retryId": "r", "turn": 1, "step": 0, "retry": 1}
        maker.add("llm/retry", data)
        check(maker)
        maker.events[-1]["data"]["provider"] = None
        refused(maker, "L2.retry", 1)

    def test_policy_keys_of_different_types_are_different_chains(self):
        maker = in_step()
        self.retry(maker, policyKey=1)
        self.retry(maker, policyKey=True, retryId="s")
        check(maker)


class TestNotStarted:
    def answer_unstarted(self, message_id: str, **changes: Any) -> LogMaker:
        maker = in_step()
        call = maker.answer(1)[0]["id"]
        seq = maker.result(call)
        data = maker.events[seq]["data"]
        data["message"] |= {
            "id": message_id.format(call=call, seq=seq),
            "isError": True,
        }
        data["error"] = {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
        data["error"] |= changes
        return maker

    def test_forked_result_is_accepted(self):
        """Spec 30 §7.4: rule F has checked the rest of such an id."""
        check(self.answer_unstarted("forked-tool-result-{call}-{seq}"))

    def test_interrupted_result_with_another_text_is_refused(self):
        maker = self.answer_unstarted("interrupted-tool-result-{call}-{seq}")
        refused(maker, "L2.not-started", maker.nodes[-1])

    def test_other_error_is_refused(self):
        maker = self.answer_unstarted("forked-tool-result-{call}-{seq}", code="OTHER")
        refused(maker, "L2.not-started", maker.nodes[-1])

    def test_error_that_is_no_object_is_refused(self):
        maker = self.answer_unstarted("forked-tool-result-{call}-{seq}")
        maker.events[-1]["data"]["error"] = "x"
        refused(maker, "L2.not-started", maker.nodes[-1])


class TestHead:
    def test_late_system_message_is_refused(self):
        maker = LogMaker(1)
        maker.open_turn()
        maker.open_step()
        maker.user()
        maker.events.append({**in_step().events[4], "seq": 3})
        refused(maker, "L2.head", 3)

    def test_second_system_message_is_an_unprotected_node(self):
        """Spec 30 §7.3: system nodes other than the head are unprotected."""
        maker = in_step()
        data = copy.deepcopy(maker.events[maker.nodes[0]]["data"])
        second = maker.append("system/message", data)
        user = maker.message("user", {"kind": "user"}, [text("x")])
        maker.replace("user/message", user, second, second)
        check(maker)


class TestCut:
    def forked(self, *, marker: bool) -> LogMaker:
        maker = LogMaker(1)
        maker.header |= {"isSeeded": True, "parentSession": "s-0"}
        maker.asides()
        maker.events[1]["data"]["sessionId"] = "s-0"
        maker.events[2]["data"]["mode"] = "external"
        if marker:
            maker.cut = maker.add("session/end-seed", {"inherited": True})
        maker.asides()
        return maker

    @pytest.mark.parametrize("known", [True, False])
    def test_inherited_delivery_and_catalog_are_spared(self, known):
        """Spec 30 §7.1, R3 and R4: events below the cut are the parent's."""
        maker = self.forked(marker=True)
        check(maker, maker.cut if known else None)

    def test_without_marker_they_are_refused_at_the_end(self):
        maker = self.forked(marker=False)
        refused(maker, "R3", 1, None)

    def test_without_parent_delivery_is_refused(self):
        maker = self.forked(marker=True)
        del maker.header["parentSession"]
        refused(maker, "R3", 1, maker.cut)

    def test_child_listed_by_parent_and_fork_is_no_repetition(self):
        maker = self.forked(marker=True)
        catalogs = [e for e in maker.events if e["type"] == "subagent/catalog"]
        catalogs[0]["data"] = dict(catalogs[1]["data"])
        check(maker, None)
        check(maker, maker.cut)


class TestGoingOn:
    def test_turn_number_is_reported_once(self):
        """A refused event is believed: what follows it is judged by it."""
        maker = LogMaker(1)
        maker.turn = 4
        for _ in range(3):
            maker.open_turn()
            maker.open_step()
            maker.close_step()
            maker.close_turn()
        assert all_findings(maker) == [("L2.turn-start", 0)]

    def test_missing_step_start_is_reported_once(self):
        maker = LogMaker(1)
        maker.open_turn()
        maker.step = 1
        maker.add("assistant/attempt", {**maker.here(), "stream": []})
        maker.add("assistant/attempt", {**maker.here(), "stream": []})
        maker.close_step()
        maker.open_step()
        maker.close_step()
        maker.close_turn()
        assert all_findings(maker) == [("L2.in-step", 1)]

    def test_two_faults_of_one_event_are_both_reported(self):
        maker = in_step()
        maker.answer(0)
        data = maker.events[-1]["data"]
        data["message"]["source"] = {}
        data["step"] = 9
        assert all_findings(maker) == [("R2", 6), ("L2.in-step", 6)]


def test_admission_again_keeps_its_own_rule():
    """R1 asks the kernel; the finding names the rule of admission and gets its seq here."""
    maker = LogMaker(1)
    maker.add("todo/write", {})
    check(maker)
    with pytest.raises(RowError) as caught:
        check_relationships(
            HEADER, 0, maker.events, admission=True, kernel=RefusingKernel()
        )
    assert (caught.value.rule, caught.value.seq) == ("A2", 0)


@pytest.mark.parametrize("version", [0, -0.0, 1])
def test_catalog_version_zero_in_any_spelling_is_accepted(version):
    """R4: version 0 (also -0), 1 or 2."""
    maker = LogMaker(1)
    data = {"version": version, "childId": "", "childCreatedAt": 0, "mode": "one-shot"}
    maker.add("subagent/catalog", data)
    check(maker)


def test_dispatch_may_nest_under_a_dispatch_of_the_same_root():
    maker = in_step()
    ids = {
        "rootCallId": "r",
        "parentCallId": "r",
        "subCallId": "a",
        "name": "n",
        "arguments": -0.0,
    }
    maker.add("tool/ptc-dispatch-start", ids)
    maker.add("tool/ptc-dispatch-start", ids | {"parentCallId": "a", "subCallId": "b"})
    maker.add("tool/ptc-dispatch", ids | {"parentCallId": "a", "subCallId": "b"})
    maker.add("tool/ptc-dispatch", ids)
    check(maker)
    maker.add("tool/ptc-dispatch-start", ids | {"rootCallId": "z", "parentCallId": "a"})
    maker.events[-1]["data"]["subCallId"] = "c"
    refused(maker, "L2.dispatch", 10)
