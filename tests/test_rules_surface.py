"""The surface fold and session restore. Spec: 30 §5, §9."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from dsh_codec.errors import HeaderError, RowError
from dsh_codec.rules.restore import RestoreMachine, check_header, check_marker, restore
from dsh_codec.rules.surface import NodeList, Surface, digest_without_content, fold
from rules_logs import HEADER, LogMaker, make_log, text


def user(seq: int, words: str, **envelope: Any) -> dict[str, Any]:
    data = {
        "id": f"m{seq}",
        "role": "user",
        "source": {"kind": "user"},
        "content": [text(words)],
    }
    event = {
        "type": "user/message",
        "seq": seq,
        "time": 1,
        "data": data,
        "surfaceOp": "append",
    }
    return event | envelope


def replacing(start: int, end: int, sources: list[int]) -> dict[str, Any]:
    op = {"op": "replace", "startSeq": start, "endSeq": end}
    return {"surfaceOp": op, "sourceEventSeqs": sources}


def with_image(seq: int, images: int) -> dict[str, Any]:
    event = user(seq, "look")
    event["data"]["content"] += [
        {"type": "image", "attachment": {}} for _ in range(images)
    ]
    return event


def offload(seq: int, *targets: tuple[int, list[int]]) -> dict[str, Any]:
    data = {
        "targets": [{"seq": node, "imageIndexes": indexes} for node, indexes in targets]
    }
    return {"type": "image/offload", "seq": seq, "time": 1, "data": data}


class TestNodeList:
    def test_random_operations_equal_a_plain_list(self):
        dice = random.Random(7)  # noqa: S311 - test data
        nodes = NodeList()
        model: list[int] = []
        for seq in range(2000):
            if model and dice.random() < 0.4:
                i = dice.randrange(len(model))
                j = min(len(model) - 1, i + dice.randrange(4))
                span = nodes.span(model[i], model[j])
                assert span == model[i : j + 1]
                if i != j:
                    assert nodes.span(model[j], model[i]) is None
                nodes.replace(span or [], seq)
                model[i : j + 1] = [seq]
            else:
                nodes.append(seq)
                model.append(seq)
            assert nodes.first == model[0]
        assert list(nodes) == model
        assert len(nodes) == len(model)
        assert nodes.span(9999, model[0]) is None
        assert all((seq in nodes) == (seq in model) for seq in range(2000))

    def test_many_replacements_on_a_long_surface_stay_linear(self):
        """50,000 nodes, each replaced once: quadratic work would take minutes."""
        nodes = NodeList()
        for seq in range(50_000):
            nodes.append(seq)
        for seq in range(50_000):
            nodes.replace(nodes.span(seq, seq) or [], 50_000 + seq)
        assert list(nodes) == list(range(50_000, 100_000))


class TestFold:
    def test_replacement_takes_the_place_of_its_range(self):
        events = [
            user(0, "a"),
            user(1, "b"),
            user(2, "c"),
            user(3, "d", **replacing(0, 1, [0, 1])),
        ]
        surface = fold(events)
        assert surface.nodes == [3, 2]
        assert [r.to_dict() for r in surface.replacements] == [
            {"seq": 3, "start": 0, "end": 1, "shadowedSeqs": [0, 1]}
        ]
        assert [m["id"] for m in surface.messages()] == ["m3", "m2"]

    @pytest.mark.parametrize(
        ("event", "rule"),
        [
            (user(3, "x"), "L4.seq"),
            (user(2, "x") | {"seq": True}, "L4.seq"),
            (user(2, "x", **replacing(1, 0, [0, 1])), "L4.replace-range"),
            (user(2, "x", **replacing(0, 1, [0])), "L4.replace-sources"),
            (user(2, "x", **replacing(0, 2, [0, 1])), "V3"),
            (user(2, "x", surfaceOp=None), "V3"),
            (offload(2, (0, [0])), "L4.offload"),
        ],
    )
    def test_refused_event_changes_nothing(self, event, rule):
        surface = fold([user(0, "a"), user(1, "b")])
        with pytest.raises(RowError) as caught:
            surface.feed(event)
        assert caught.value.rule == rule
        assert (surface.nodes, surface.event_count) == ([0, 1], 2)
        surface.feed(user(2, "c"))
        assert surface.nodes == [0, 1, 2]

    def test_empty_content_drops_all_but_user_and_tool(self):
        """Spec 30 §5.5."""
        maker = LogMaker(1)
        maker.open_turn()
        maker.open_step()
        for build in (maker.system, maker.user):
            build()
            event = maker.events[-1]
            event["data"].get("message", event["data"])["content"] = []
        calls = maker.answer(1)
        maker.events[-1]["data"]["message"]["content"] = []
        maker.result(calls[0]["id"])
        maker.events[-1]["data"]["message"]["content"] = []
        surface = fold(maker.events)
        assert [m["role"] for m in surface.messages()] == ["user", "tool"]
        assert len(surface.nodes) == 4

    def test_incremental_equals_whole_at_every_event(self):
        maker = make_log(11)
        surface = Surface()
        for count, event in enumerate(maker.events, 1):
            surface.feed(event)
            whole = fold(maker.events[:count])
            assert surface.nodes == whole.nodes
            assert surface.messages() == whole.messages()


class TestProtectedHead:
    def start(self) -> LogMaker:
        maker = LogMaker(1)
        maker.open_turn()
        maker.open_step()
        maker.system()
        maker.user()
        return maker

    def test_replacing_head_and_more_is_refused(self):
        maker = self.start()
        maker.replace("system/message", maker.events[2]["data"], 2, 3)
        with pytest.raises(RowError) as caught:
            fold(maker.events)
        assert caught.value.rule == "L4.head"

    def test_system_over_exactly_the_head_stays_first(self):
        maker = self.start()
        maker.replace("system/message", maker.events[2]["data"], 2, 2)
        assert fold(maker.events).nodes == [4, 3]


class TestRewrite:
    def log(self) -> LogMaker:
        maker = LogMaker(1)
        maker.open_turn()
        maker.open_step()
        maker.result("c")
        maker.rewrite(2)
        return maker

    def test_zero_and_negative_zero_are_equal(self):
        """Spec 30 §5.1: numbers compare with 0 = -0 here."""
        maker = self.log()
        maker.events[2]["data"]["meta"] = {"n": 0, "m": 1}
        maker.events[3]["data"]["meta"] = {"m": 1.0, "n": -0.0}
        assert fold(maker.events).nodes == [3]

    @pytest.mark.parametrize("meta", [True, "1", [1], {"n": 1, "m": None}, 2])
    def test_other_member_is_refused(self, meta):
        maker = self.log()
        maker.events[3]["data"]["meta"] = meta
        with pytest.raises(RowError) as caught:
            fold(maker.events)
        assert (caught.value.rule, caught.value.seq) == ("L4.rewrite", 3)

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            ({"a": [1, [2]]}, {"a": [[1], 2]}),
            ({"a": "1"}, {"a": 1}),
            ({"a": None}, {"a": False}),
            ({"a": "x,"}, {"a": "x", "": ""}),
            ({"a": {}}, {"a": []}),
            ({"a": "\ud800"}, {"a": "\udc00"}),
            ({"a": 1e300}, {"a": 1e301}),
        ],
    )
    def test_digests_tell_values_apart(self, left, right):
        assert digest_without_content(left) != digest_without_content(right)
        assert digest_without_content(left) == digest_without_content(
            copy.deepcopy(left)
        )

    def test_digest_of_deep_value_does_not_recurse(self):
        value: Any = 1
        for _ in range(50_000):
            value = [value]
        assert len(digest_without_content(value)) == 16
        while isinstance(value, list):
            value = value[0]


class TestOffload:
    def test_projection_is_a_copy_with_marked_blocks(self):
        events = [with_image(0, 2), offload(1, (0, [1]))]
        before = copy.deepcopy(events)
        content = fold(events).messages()[0]["content"]
        assert [block.get("offloaded") for block in content] == [None, None, True]
        assert events == before

    def test_second_offload_builds_on_the_first(self):
        events = [with_image(0, 2), offload(1, (0, [1])), offload(2, (0, [0]))]
        content = fold(events).messages()[0]["content"]
        assert [block.get("offloaded") for block in content] == [None, True, True]

    def test_refused_second_target_leaves_the_first_alone(self):
        """Spec 30 §5.3: all targets are computed before any takes effect."""
        surface = fold([with_image(0, 1), with_image(1, 1)])
        with pytest.raises(RowError):
            surface.feed(offload(2, (0, [0]), (1, [5])))
        assert all(
            b.get("offloaded") is None for m in surface.messages() for b in m["content"]
        )

    @pytest.mark.parametrize(
        "data",
        [
            None,
            {},
            {"targets": []},
            {"targets": [None]},
            {"targets": [{"seq": 0, "imageIndexes": []}]},
            {"targets": [{"seq": 0, "imageIndexes": [0, 0]}]},
            {"targets": [{"seq": 0, "imageIndexes": [-0.0]}]},
            {"targets": [{"seq": 0, "imageIndexes": [True]}]},
            {"targets": [{"seq": 0, "imageIndexes": [0], "x": 1}]},
            {
                "targets": [
                    {"seq": 0, "imageIndexes": [0]},
                    {"seq": 0.0, "imageIndexes": [1]},
                ]
            },
            {"targets": [{"seq": 0, "imageIndexes": [0]}], "x": 1},
        ],
    )
    def test_malformed_targets_are_refused(self, data):
        surface = fold([with_image(0, 2)])
        with pytest.raises(RowError) as caught:
            surface.feed({"type": "image/offload", "seq": 1, "time": 1, "data": data})
        assert (caught.value.rule, caught.value.seq) == ("L4.offload", 1)


class TestRestore:
    def test_keep_makes_no_difference_to_the_nodes(self):
        for seed in range(20):
            maker = make_log(seed)
            machine = RestoreMachine(maker.header, maker.cut, keep=False)
            assert [f for event in maker.events for f in machine.findings(event)] == []
            assert machine.finish() == []
            assert machine.surface.nodes == fold(maker.events).nodes
            assert machine.surface.messages() == []

    def test_negative_zero_as_seq_is_refused_here_only(self):
        """Spec 90 item 2: -0 as a seq is allowed up to L3."""
        with pytest.raises(RowError) as caught:
            restore(HEADER, 0, [user(0, "a") | {"seq": -0.0}])
        assert caught.value.rule == "L4.envelope"

    @pytest.mark.parametrize(
        ("cut", "seeded", "markers", "rule"),
        [
            (0, False, [], None),
            (1, False, [], "L4.cut"),
            (2, True, [], None),
            (3, True, [], "L4.cut"),
            (0, True, [0], None),
            (0, True, [0, 1], "L4.cut"),
            (1, True, [0], None),
        ],
    )
    def test_cut(self, cut, seeded, markers, rule):
        maker = LogMaker(1)
        for seq in range(2):
            maker.add("session/end-seed", {"inherited": True} if seq in markers else {})
        header = HEADER | {"isSeeded": seeded}
        if rule is None:
            assert restore(header, cut, maker.events).nodes == []
            return
        with pytest.raises(RowError) as caught:
            restore(header, cut, maker.events)
        assert caught.value.rule == rule

    def test_complete_artifact_has_its_cut_at_the_last_marker(self):
        maker = LogMaker(1)
        maker.add("session/end-seed", {"inherited": True})
        seeded = HEADER | {"isSeeded": True}
        check_marker(seeded, 0, maker.events)
        for header, cut in ((HEADER, 0), (seeded, 1)):
            with pytest.raises(RowError) as caught:
                check_marker(header, cut, maker.events)
            assert caught.value.rule == "L4.marker"

    @pytest.mark.parametrize(
        "change",
        [
            {"version": 3},
            {"version": True},
            {"id": None},
            {"createdAt": -1},
            {"delegationDepth": 1.5},
            {"cwd": "relative"},
            {"isSeeded": 0},
            {"origin": "other"},
            {"parentSession": None},
            {"extra": 1},
        ],
    )
    def test_header_is_checked(self, change):
        with pytest.raises(HeaderError) as caught:
            check_header(HEADER | change)
        assert caught.value.rule == "L4.header"

    def test_empty_id_is_an_id(self):
        check_header(HEADER | {"id": ""})

    def test_header_must_name_the_session_asked_for(self):
        check_header(HEADER, session_id="s-1")
        with pytest.raises(HeaderError) as caught:
            check_header(HEADER, session_id="s-2")
        assert caught.value.rule == "L4.header"


class TestDeveloperHeader:
    """Spec 30 §5.4: what L4 refuses and L2 passes over."""

    @pytest.mark.parametrize("where", ["content", "tools"])
    def test_null_among_blocks_or_tools_is_refused(self, where):
        maker = LogMaker(1)
        maker.open_turn()
        maker.open_step()
        maker.request("initial")
        maker.developer()
        fold(maker.events)
        if where == "content":
            maker.events[-1]["data"]["message"]["content"].append(None)
        else:
            maker.events[2]["data"]["header"]["tools"].append(None)
        with pytest.raises(RowError) as caught:
            fold(maker.events)
        assert (caught.value.rule, caught.value.seq) == ("L4.developer-header", 4)

    def test_tool_named_twice_is_refused(self):
        maker = LogMaker(1)
        maker.open_turn()
        maker.open_step()
        maker.request("initial")
        tools = maker.events[2]["data"]["header"]["tools"]
        tools.append(dict(tools[-1]))
        maker.developer()
        with pytest.raises(RowError) as caught:
            fold(maker.events)
        assert caught.value.rule == "L4.developer-header"
