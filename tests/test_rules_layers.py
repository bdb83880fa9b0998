"""Vocabulary, stream agreement, all layers in one pass, and the catalog. Spec: 30 §8, §10; 00 §6."""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import dsh_codec
from dsh_codec import rules
from dsh_codec.errors import DshCodecError, RowError, StreamError, UnsupportedError
from dsh_codec.events import KNOWN_TYPES, is_identical
from dsh_codec.rules import RuleCheck, check_artifact
from dsh_codec.rules.agreement import check_agreement
from dsh_codec.rules.catalog import RULES, explain
from dsh_codec.rules.vocabulary import check_vocabulary
from rules_logs import CORPUS, HEADER, LogMaker, make_log, needs_shared


def run(
    events: list[dict[str, Any]], level: rules.Level, **options: Any
) -> list[DshCodecError]:
    check = RuleCheck(HEADER, 0, level=level, **options)
    for event in events:
        check.feed(event)
    return check.finish()


class TestVocabulary:
    def test_known_types_are_62(self):
        assert len(KNOWN_TYPES) == 62

    def test_unsupported_wins_over_an_earlier_shape_fault(self):
        """Spec 30 §8: V1 and V2 are checked for all events first."""
        maker = LogMaker(1)
        maker.add("todo/write", {}, surfaceOp="append")
        maker.add("future/x", {})
        with pytest.raises(UnsupportedError) as caught:
            check_vocabulary(maker.events)
        assert (caught.value.rule, caught.value.seq) == ("V1", 1)
        maker.events[1]["ignorable"] = True
        with pytest.raises(RowError) as shape:
            check_vocabulary(maker.events)
        assert (shape.value.rule, shape.value.seq) == ("V3", 0)

    @pytest.mark.parametrize("ignorable", [False, 1, "true", None])
    def test_only_true_makes_an_unknown_type_ignorable(self, ignorable):
        event = {"type": "x", "seq": 0, "time": 0, "data": 1, "ignorable": ignorable}
        with pytest.raises(UnsupportedError):
            check_vocabulary([event])

    def test_ignorable_known_type_is_interpreted(self):
        """Spec 30 §1."""
        event = {"type": "turn/end", "seq": 0, "time": 0, "data": {}, "ignorable": True}
        check_vocabulary([event])
        with pytest.raises(RowError) as caught:
            check_vocabulary([event | {"sourceEventSeqs": [0]}])
        assert caught.value.rule == "V3"


def test_identity_is_by_type_and_never_by_content():
    assert is_identical(1, 1.0)
    assert is_identical(0, -0.0)
    assert not is_identical(1, True)
    assert not is_identical({}, {})
    assert not is_identical(None, False)


class TestAgreement:
    def answer(self) -> dict[str, Any]:
        maker = LogMaker(1)
        maker.open_turn()
        maker.open_step()
        maker.answer(1)
        return maker.events[-1]

    def test_agreeing_settlement_is_accepted(self, kernel):
        check_agreement([self.answer()], kernel)

    def test_empty_stream_is_not_compared(self, kernel):
        """Spec 30 §10 step 2."""
        event = self.answer()
        event["data"]["stream"] = []
        check_agreement([event], kernel)

    def test_interrupted_message_keeps_visible_text_only(self, kernel):
        event = self.answer()
        event["data"]["interrupted"] = True
        with pytest.raises(RowError) as caught:
            check_agreement([event], kernel)
        assert caught.value.rule == "L5.3"
        del event["data"]["message"]["content"][1]
        check_agreement([event], kernel)

    def test_negative_zero_is_not_zero_here(self, kernel):
        """Spec 90 item 2: not equal in L5."""
        event = self.answer()
        event["data"]["usage"]["inputTokens"] = 0
        event["data"]["stream"][-1]["chunk"]["usage"]["inputTokens"] = 0
        check_agreement([event], kernel)
        event["data"]["usage"]["inputTokens"] = -0.0
        with pytest.raises(RowError) as caught:
            check_agreement([event], kernel)
        assert caught.value.rule == "L5.4"

    def test_bad_record_gives_stream_error_with_its_index(self, kernel):
        event = self.answer()
        event["data"]["stream"][1]["dt"] = [1]
        with pytest.raises(StreamError) as caught:
            check_agreement([event], kernel)
        error = caught.value
        assert (error.rule, error.seq, error.record) == ("L5.1", event["seq"], 1)

    def test_unknown_chunk_in_attempt_is_refused(self, kernel):
        """Spec 30 §10 step 1: assembling an attempt may fail too."""
        record = {"type": "chunk", "time": 1, "chunk": {"type": "future"}}
        data = {"turn": 1, "step": 1, "stream": [record]}
        event = {"type": "assistant/attempt", "seq": 0, "time": 1, "data": data}
        with pytest.raises(StreamError) as caught:
            check_agreement([event], kernel)
        assert caught.value.rule == "L5.1"

    def test_open_unknown_block_of_interrupted_message_fails_by_replay_state(
        self, kernel
    ):
        """Spec 30 §10, last sentence."""
        event = self.answer()
        chunk = {"type": "block-start", "index": 9, "blockType": "future"}
        event["data"]["stream"].append({"type": "chunk", "time": 1, "chunk": chunk})
        event["data"]["interrupted"] = True
        del event["data"]["message"]["content"][1]
        with pytest.raises(StreamError) as caught:
            check_agreement([event], kernel)
        assert caught.value.rule == "L5.5"


class TestRuleCheck:
    def faulty(self) -> list[dict[str, Any]]:
        """One fault for each layer, the last layer's first."""
        maker = make_log(3)
        events = copy.deepcopy(maker.events)
        answers = [e for e in events if e["type"] == "assistant/message"]
        answers[0]["data"]["message"]["content"][0]["text"] = "x"
        headers = [e for e in events if e["type"] == "request/header"]
        headers[-1]["data"]["reason"] = "other"
        users = [e for e in events if e["type"] == "user/message"]
        users[-1]["data"]["id"] = ""
        last = {
            "type": "turn/start",
            "seq": len(events),
            "time": 0,
            "data": {"turn": 99},
        }
        return [*events, last, {**last, "type": "future/x", "seq": len(events) + 1}]

    def test_findings_come_in_the_order_of_the_layers(self, kernel):
        found = [f.rule for f in run(self.faulty(), "full", kernel=kernel)]
        assert found == ["L2.turn-start", "V1", "V7", "L4.request-header", "L5.3"]
        levels: list[tuple[rules.Level, int]] = [
            ("scan", 0),
            ("read", 3),
            ("restore", 4),
        ]
        for level, count in levels:
            assert [f.rule for f in run(self.faulty(), level)] == found[:count]

    def test_findings_are_bounded_and_counted(self):
        maker = LogMaker(1)
        for _ in range(50):
            maker.add("turn/end", {"turn": 1})
        check = RuleCheck(HEADER, 0, max_findings=7)
        for event in maker.events:
            check.feed(event)
        assert len(check.finish()) == 7
        assert check.finding_count == 50

    def test_header_is_part_of_restore(self):
        check = RuleCheck(HEADER | {"cwd": "x"}, 0, level="restore")
        assert [f.rule for f in check.finish()] == ["L4.header"]

    def test_fold_stops_at_its_first_fault(self):
        """What follows a broken surface is not judged by it; rules for one event go on."""
        maker = LogMaker(1)
        maker.user()
        bad: dict[str, Any] = {"targets": []}
        maker.add("image/offload", bad)
        maker.add("image/offload", bad)
        maker.events.append({**maker.events[0], "seq": 3, "time": 0.5})
        found = [(f.rule, f.seq) for f in run(maker.events, "restore")]
        assert found == [("L4.offload", 1), ("L4.envelope", 3)]

    def test_findings_survive_pickle(self):
        finding = run([{"type": "x", "seq": 0, "time": 0, "data": 0}], "read")[0]
        again = pickle.loads(pickle.dumps(finding))  # noqa: S301 - made here
        assert (str(again), again.rule, again.seq) == (str(finding), "V1", 0)


def test_artifact_check_accepts_sound_logs_and_refuses_unknown_types(kernel):
    maker = make_log(5)
    check_artifact(maker.header, maker.cut, maker.events, kernel=kernel)
    seq = maker.add("future/x", {})
    with pytest.raises(UnsupportedError) as caught:
        check_artifact(maker.header, maker.cut, maker.events, kernel=kernel)
    assert caught.value.seq == seq


class TestCatalog:
    def test_every_rule_that_the_code_names_is_explained(self):
        found = set()
        for module in Path(rules.__file__).parent.glob("*.py"):
            if module.name != "catalog.py":
                found |= set(
                    re.findall(
                        r'"((?:[RV][1-9])|L[245]\.[a-z0-9-]+)"', module.read_text()
                    )
                )
        found -= {"R1"}
        assert found <= RULES.keys()
        used = {rule for rule, entry in RULES.items() if entry.layer != "L1"} - {"R1"}
        assert used == found

    def test_sentences_have_a_place(self):
        for rule in RULES.values():
            assert rule.text.endswith(".")
            assert re.match(r"(10|20|30) §", rule.place)

    def test_explain_ignores_case_and_answers_none(self):
        assert explain("l2.Turn-Start") is RULES["L2.turn-start"]
        assert explain("nothing") is None


@needs_shared
@pytest.mark.slow
def test_every_sound_real_log_passes_full(kernel, real_logs):
    """Issue 4: every sound v4 log of the corpus passes `full`."""
    count = 0
    for path in real_logs:
        with dsh_codec.open(path) as log:
            check = RuleCheck(log.header.fields, level="full", kernel=kernel)
            for event in log:
                check.feed(event.envelope)
        assert check.finish() == [], path
        count += 1
    assert count > 100


@pytest.fixture(scope="module")
def real_logs() -> list[Path]:
    index = json.loads((CORPUS / "index.json").read_bytes())["logs"]
    return [CORPUS / entry["path"] for entry in index if entry["format"] == 4]
