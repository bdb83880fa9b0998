"""The next model request, the surface of a log, and the state of a session. Spec: 30 §5, §11."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec
from dsh_codec.errors import RowError
from dsh_codec.messages import Compaction, StateFold, messages, state, surface
from rules_logs import CASES, CORPUS, LogMaker, make_log, needs_shared

if TYPE_CHECKING:
    from pathlib import Path


class Wrapped:
    """An event as another program may hold it."""

    def __init__(self, event: dict[str, Any]) -> None:
        self._event = event

    def to_dict(self) -> dict[str, Any]:
        return self._event


class Enveloped:
    def __init__(self, event: dict[str, Any]) -> None:
        self.envelope = event


class OldLog(list[dict[str, Any]]):
    generation = 0


def independent_fold(
    events: list[dict[str, Any]],
) -> tuple[list[int], list[dict[str, Any]]]:
    """Fold a sound log straight from spec 30 §5, sharing no code with the package."""
    roles = {"system/message", "developer/message", "user/message", "assistant/message"}
    nodes: list[int] = []
    marked: dict[int, set[int]] = {}
    for seq, event in enumerate(events):
        if event["type"] == "image/offload":
            for target in event["data"]["targets"]:
                marked.setdefault(int(target["seq"]), set()).update(
                    target["imageIndexes"]
                )
        if event["type"] not in roles | {"tool/result"}:
            continue
        operation = event["surfaceOp"]
        if operation == "append":
            nodes = [*nodes, seq]
        else:
            start = nodes.index(operation["startSeq"])
            end = nodes.index(operation["endSeq"])
            nodes = [*nodes[:start], seq, *nodes[end + 1 :]]
    result = []
    for node in nodes:
        data = events[node]["data"]
        kind = events[node]["type"]
        message = json.loads(
            json.dumps(data if kind == "user/message" else data["message"])
        )
        images = [block for block in message["content"] if block["type"] == "image"]
        for index in marked.get(node, ()):
            images[int(index)]["offloaded"] = True
        if message["content"] or kind in ("user/message", "tool/result"):
            result.append(message)
    return nodes, result


@pytest.mark.parametrize("seed", range(40))
def test_messages_equal_independent_fold(seed):
    events = make_log(seed).events
    nodes, expected = independent_fold(events)
    assert surface(events).nodes == nodes
    assert messages(events) == expected


@needs_shared
@pytest.mark.slow
def test_messages_of_real_logs_equal_independent_fold():
    """Issue 4: the message list of each real log equals that of an independent fold."""
    index = json.loads((CORPUS / "index.json").read_bytes())["logs"]
    paths = [CORPUS / entry["path"] for entry in index if entry["format"] == 4]
    for path in paths:
        with dsh_codec.open(path) as log:
            events = [event.envelope for event in log]
            nodes, expected = independent_fold(events)
            assert surface(log).nodes == nodes, path
            assert messages(log) == expected, path
    assert len(paths) > 100


def cases_with_surface() -> list[tuple[str, Path, list[int]]]:
    found = []
    for path in sorted(CASES.glob("*/case.json")):
        case = json.loads(path.read_bytes())
        if "surface" in case["facts"]:
            found.append(
                (case["id"], path.parent / case["input"][0], case["facts"]["surface"])
            )
    return found


@needs_shared
@pytest.mark.parametrize(("name", "path", "nodes"), cases_with_surface())
def test_surface_of_field_cases(name, path, nodes):
    """Facts of the cases: seqs on the surface, in the file's own generation."""
    with dsh_codec.open(path) as log:
        assert surface(log).nodes == nodes, name


@pytest.mark.parametrize("wrap", [Wrapped, Enveloped])
def test_events_may_be_objects(wrap):
    events = make_log(2).events
    assert messages(wrap(event) for event in events) == messages(events)
    assert state(wrap(event) for event in events) == state(events)


@pytest.mark.parametrize("function", [messages, surface, state])
def test_something_else_is_no_event(function):
    with pytest.raises(TypeError):
        function([("turn/start", 0)])


def test_broken_log_is_refused_with_its_seq():
    maker = LogMaker(1)
    maker.user()
    maker.events.append({**maker.events[0], "seq": 2})
    with pytest.raises(RowError) as caught:
        messages(maker.events)
    assert (caught.value.rule, caught.value.seq) == ("L4.seq", 1)


def test_old_generation_is_folded_by_its_own_operations():
    """Spec 30 §1: v2 and older used `start` and `end`; spec 50 §4.2: `steering/message`."""
    maker = LogMaker(1)
    maker.user()
    steering = {"turn": 1, "content": [], "source": {"kind": "user"}}
    maker.append("steering/message", steering)
    op = {"op": "replace", "start": 0, "end": 0}
    maker.add("user/message", maker.events[0]["data"], surfaceOp=op)
    maker.add("assistant/chunk", {})
    folded = surface(OldLog(maker.events))
    assert folded.nodes == [2, 1]
    assert folded.messages() == [maker.events[0]["data"], steering]
    with pytest.raises(RowError):
        surface(maker.events)


class TestState:
    def test_empty_log(self):
        empty = state([])
        assert (empty.event_count, empty.header, empty.config, empty.tools) == (
            0,
            None,
            None,
            [],
        )
        assert empty.open_compaction is None

    def test_header_in_force_is_reduced(self):
        """Spec 30 §5.5: adapterDefaults only if one is true, tools only if there are some."""
        maker = LogMaker(1)
        maker.open_turn()
        maker.request("initial")
        full = state(maker.events).header
        assert full is not None
        assert full.seq == 1
        assert full.to_dict() == maker.events[1]["data"]["header"]
        header = {
            "config": {"provider": "q", "model": "n"},
            "adapterDefaults": {},
            "tools": [],
        }
        maker.add("request/header", {"header": header, "reason": "change"})
        last = state(maker.events)
        assert last.header is not None
        assert last.header.to_dict() == {"config": header["config"]}
        assert last.context == {"provider": "p", "model": "m"}
        assert (last.config, last.tools) == (header["config"], [])

    def test_open_turn_step_and_pending_calls(self):
        maker = LogMaker(1)
        maker.open_turn()
        maker.open_step()
        first, second, third = maker.answer(2) + maker.answer(1)
        for call in (first, second):
            data = {
                "callId": call["id"],
                "name": "read",
                "arguments": call["arguments"],
            }
            maker.add("tool/call", {**maker.here(), **data})
        maker.result(first["id"])
        now = state(maker.events)
        assert (now.turn, now.step, now.turn_count) == (1, 1, 1)
        pending = [(c.call_id, c.message_seq, c.started_seq) for c in now.pending_calls]
        assert pending == [(second["id"], 2, 5), (third["id"], 3, None)]
        maker.close_step()
        assert state(maker.events).pending_calls == ()
        assert state(maker.events).turn == 1
        maker.close_turn()
        assert (state(maker.events).turn, state(maker.events).turn_count) == (None, 1)

    def test_result_of_another_step_settles_nothing(self):
        """Spec 30 §11: same callId, turn and step."""
        maker = LogMaker(1)
        maker.open_turn()
        maker.open_step()
        call = maker.answer(1)[0]["id"]
        maker.step = 7
        maker.result(call)
        assert [c.call_id for c in state(maker.events).pending_calls] == [call]

    def test_title_and_its_source(self):
        maker = LogMaker(1)
        cited = maker.user()
        maker.title(cited)
        now = state(maker.events)
        assert (now.title, now.title_source) == ("A title", "provider")

    def test_compactions(self):
        maker = LogMaker(1)
        for _ in range(3):
            maker.user()
        maker.compact(turn=None)
        ids = maker.events[3]["data"]
        maker.add("compaction/start", {"compactionId": "x", "turn": 2})
        assert state(maker.events).open_compaction == Compaction("x", 2, 7)
        maker.add("session/end-seed", {})
        maker.add("compaction/start", {"compactionId": "y", "turn": None})
        maker.add("compaction/end", {"compactionId": "y", "turn": None, "error": "e"})
        now = state(maker.events)
        assert now.compactions == (
            Compaction(ids["compactionId"], None, 3, 4, 5, 6, "completed"),
            Compaction("x", 2, 7, end_seq=8, outcome="dropped"),
            Compaction("y", None, 9, end_seq=10, outcome="failed", error="e"),
        )
        assert now.open_compaction is None

    def test_value_does_not_change_with_later_events(self):
        maker = make_log(4)
        fold = StateFold()
        half = len(maker.events) // 2
        for event in maker.events[:half]:
            fold.feed(event)
        before = fold.state()
        for event in maker.events[half:]:
            fold.feed(event)
        assert before == state(maker.events[:half])
        assert fold.state() == state(maker.events)
        assert before.event_count == half

    @pytest.mark.parametrize(
        "junk", [None, [], "x", 1, {"turn": []}, {"message": []}, {"header": 1}]
    )
    def test_junk_is_folded_without_an_error(self, junk):
        """The state of a damaged log can still be shown."""
        kinds = {event["type"] for seed in range(20) for event in make_log(seed).events}
        events = [
            {"type": kind, "seq": seq, "time": 0, "data": junk, "surfaceOp": junk}
            for seq, kind in enumerate(sorted(kinds))
        ]
        assert state(events).event_count == len(events)
