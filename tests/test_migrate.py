"""The four edges and the chain, on small logs. Spec: 50; its checklist is appendix C."""

from __future__ import annotations

import copy
import json
import pickle
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec.errors import (
    JsonSyntaxError,
    LimitExceededError,
    MigrationRefusedError,
    NewerFormatError,
    RowError,
)
from dsh_codec.migrate import ChildEvidence, upgrade
from dsh_codec.migrate.chain import Chain
from dsh_codec.migrate.edge import SeqMap
from dsh_codec.migrate.publish import open_source_log
from dsh_codec.migrate.v1_v2 import EdgeV1
from migrate_logs import (
    V0_TURN,
    answer,
    chunk,
    header_of,
    kinds,
    numbered,
    packed,
    raw_chunk,
    seed,
    step,
    system,
    text_of,
    turn,
    upgraded,
    user,
)
from test_vectors import use_kernel

if TYPE_CHECKING:
    from types import ModuleType

Json = dict[str, Any]

FINISH: Json = {"type": "finish", "reason": {"kind": "error"}}

GOAL: Json = {
    "kind": "goal/change",
    "version": 1,
    "operation": "clear",
    "cleared": {"id": "g", "revision": 2},
    "clearedAt": 5,
}
GOAL_STATE = (
    '<goal_state>{"cleared":{"id":"g","revision":2},"clearedAt":5}</goal_state>'
)


def refusal(version: int, *events: Json, **header: Any) -> MigrationRefusedError:
    with pytest.raises(MigrationRefusedError) as caught:
        upgraded(version, *events, **header)
    return caught.value


@pytest.mark.parametrize("depth", [8, 1024])
def test_chunk_as_deep_as_the_limit_is_upgraded(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """50 §5.5: the settlement nests deeper than the rows that the limit is for."""
    use_kernel(monkeypatch, kernel)
    nested = b"[" * (depth - 4) + b"]" * (depth - 4)
    finish = {"type": "finish", "reason": {"kind": "stop"}}
    chunk = {"turn": 1, "step": 1, "chunk": finish | {"replayState": {"response": "x"}}}
    last = {"type": "assistant/chunk", "data": chunk}
    events = numbered(turn("start"), step("start"), last)
    text = text_of(header_of(1), events).replace(b'"x"', nested)
    with dsh.open(text, max_depth=depth, upgrade=True) as log:
        *_, attempt = log
        (record,) = attempt.data["stream"]
        assert dsh.dump(record["chunk"]["replayState"]["response"]) == nested
    assert dsh.check(text, max_depth=depth).status == "sound"
    assert dsh.check(text, max_depth=depth - 1).status == "unreadable"


def test_upgrade_keeps_to_the_depth_its_caller_set(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 intro: no nesting limit is defined; both forms of the result take what the log does."""
    use_kernel(monkeypatch, kernel)
    deep = b'{"config":{},"tools":[{"parameters":%b}]}' % (b"[" * 1500 + b"]" * 1500)
    request = {
        "type": "request/header",
        "data": {"header": "deep", "reason": "initial"},
    }
    events = numbered(turn("start"), step("start"), request)
    text = text_of(header_of(3), events).replace(b'"deep"', deep)
    with dsh.open(text, max_depth=2000) as log:
        assert len(list(upgrade(log, children=()))) == 3
        with log.upgraded() as made:
            assert deep in made[2].raw
    with dsh.open(text) as log, pytest.raises(LimitExceededError) as caught:
        log.upgraded()
    assert caught.value.args[-2:] == ("max_depth", 1024)


# --- edge 0 to 1 (§4) ---


def old_result(**more: Any) -> Json:
    data = {
        "turn": 1,
        "step": 1,
        "callId": "c",
        "content": [{"type": "text", "text": "o"}],
        "isError": False,
    }
    return {"type": "tool/result", "data": data, "surfaceOp": "append", **more}


def calling() -> tuple[Json, ...]:
    call = {"type": "tool-call", "id": "c", "name": "f", "arguments": "{}"}
    asked = answer("x")
    asked["data"]["message"]["content"] = [call]
    data = {"turn": 1, "step": 1, "callId": "c", "name": "f", "arguments": "{}"}
    return turn("start"), step("start"), asked, {"type": "tool/call", "data": data}


def test_v0_tool_result_gets_the_shape_of_its_example() -> None:
    """50 §4.5, example, then §7.5: `id` comes last in the lifted message."""
    events, _ = upgraded(0, *calling(), old_result())
    assert list(events[-1]["data"]["message"].items()) == [
        ("role", "tool"),
        ("source", {"kind": "tool", "callId": "c"}),
        ("toolCallId", "c"),
        ("content", [{"type": "text", "text": "o"}]),
        ("isError", False),
        ("id", "legacy-message:s0:4"),
    ]


def test_v0_replaced_tool_result_keeps_the_id_of_the_first() -> None:
    """50 §4.5: the id remembered for `surfaceOp.start`."""
    op = {"op": "replace", "start": 4, "end": 4}
    more = old_result(surfaceOp=op, sourceEventSeqs=[4])
    events, _ = upgraded(0, *calling(), old_result(), more)
    assert events[-1]["data"]["message"]["id"] == "legacy-message:s0:4"
    error = refusal(
        0, *calling(), old_result(surfaceOp={"op": "replace", "start": 0, "end": 0})
    )
    assert (error.rule, error.seq) == ("50 §4.5", 4)


@pytest.mark.parametrize(
    ("reason", "wanted"),
    [
        ({"kind": "aborted"}, {"kind": "aborted", "reason": {"kind": "legacy"}}),
        ({"kind": "disposed"}, {"kind": "aborted", "reason": {"kind": "disposed"}}),
        (
            {"kind": "error", "step": 1, "message": "m"},
            {"kind": "error", "error": {"message": "m", "code": "UNKNOWN"}},
        ),
        (
            {"kind": "error", "step": 1, "failure": {"message": "m", "code": "c"}},
            {"kind": "error", "error": {"message": "m", "code": "c"}},
        ),
        ({"kind": "something-new", "x": 1}, {"kind": "something-new", "x": 1}),
    ],
)
def test_v0_turn_end_reason_is_normalised(reason: Json, wanted: Json) -> None:
    """50 §4.1, row by row."""
    events, _ = upgraded(0, turn("start"), turn("end", reason=reason))
    assert events[-1]["data"]["reason"] == wanted


@pytest.mark.parametrize(
    "reason",
    [
        {"kind": "completed", "x": 1},
        {"kind": "error", "step": -1, "message": "m"},
        {"kind": "error", "step": 1, "message": ""},
        {"kind": "error", "step": 1, "failure": {"message": "m"}},
        {"kind": 1},
        None,
    ],
)
def test_v0_turn_end_reason_is_refused(reason: Any) -> None:
    """50 §4.1: exact keys; the result passes admission too."""
    error = refusal(0, turn("start"), turn("end", reason=reason))
    assert error.seq == 1
    assert error.rule is not None


def test_v0_trigger_and_message_prefix_vanish() -> None:
    """50 §4, rules 4 and 6."""
    header = {"config": {"provider": "p", "model": "m"}, "messagePrefix": []}
    request = {
        "type": "request/header",
        "data": {"header": header, "reason": "initial"},
    }
    start = turn("start", trigger={"kind": "user"})
    events, _ = upgraded(0, start, request)
    assert events[0]["data"] == {"turn": 1}
    assert events[1]["data"]["header"] == {"config": {"provider": "p", "model": "m"}}


def test_v0_compaction_gets_one_identity_from_start_to_end() -> None:
    """50 §4.4: start, checkpoint source and end share the id; the old type names go."""
    start = {"type": "compact/start", "data": {"turn": None}}
    end = {"type": "compact/end", "data": {"turn": None, "error": "x"}}
    events, _ = upgraded(0, start, end)
    assert kinds(events) == ["compaction/start", "compaction/end"]
    assert [event["data"]["compactionId"] for event in events] == [
        "legacy-compaction:s0:0"
    ] * 2


@pytest.mark.parametrize(
    ("event", "rule"),
    [
        ({"type": "mode/set", "data": {}}, "50 §4"),
        ({"type": "request/header-delta", "data": {}}, "50 §4"),
        ({"type": "zz/opaque", "data": {}, "ignorable": True}, "50 A.1"),
        ({"type": "plan/mode", "data": None}, "50 §4"),
        ({"type": "assistant/chunk", "data": 1}, "50 §4"),
    ],
)
def test_v0_event_is_refused(event: Json, rule: str) -> None:
    """50 §4, rules 2 and 11; `data` is an object in every event."""
    error = refusal(0, event)
    assert (error.rule, error.seq) == (rule, 0)


# --- edge 1 to 2 (§5) ---


def through_v1(*events: Json, seedLength: int = 0, **header: Any) -> list[Json]:  # noqa: N803
    """Take events through edge 1 to 2 alone."""
    made: list[Json] = []
    fields = header_of(2, **header) | {"isSeeded": seedLength > 0}
    edge = EdgeV1(fields, seedLength, made.append, is_first=True)
    for event in numbered(*events):
        edge.push(event)
    assert edge.finish() == seedLength
    return made


def test_v1_seeded_example_of_the_spec() -> None:
    """50 §5.8: the attempt before the cut, the marker in place, the message after it."""
    retry = {
        "retryId": "r",
        "turn": 1,
        "step": 1,
        "provider": "p",
        "mode": "always",
        "policyKey": "k",
        "retry": 1,
        "delayMs": 0,
        "failure": {"message": "m", "code": "c"},
    }
    made = through_v1(
        turn("start"),
        step("start"),
        chunk("a"),
        {"type": "llm/retry", "data": retry},
        seed(),
        chunk("b"),
        answer("b", sources=[5]),
        seedLength=4,
        parentSession="p0",
    )
    assert [(event["seq"], event["time"], event["type"]) for event in made] == [
        (0, 1, "turn/start"),
        (1, 2, "step/start"),
        (2, 3, "assistant/attempt"),
        (3, 4, "llm/retry"),
        (4, 5, "session/end-seed"),
        (5, 7, "assistant/message"),
    ]
    first = {"type": "text-chunks", "time0": 3, "index": 0, "dt": [], "texts": ["a"]}
    assert made[2]["data"] == {"turn": 1, "step": 1, "stream": [first]}
    assert made[4]["data"] == {"inherited": True}
    assert made[5]["data"]["stream"] == [first | {"time0": 6, "texts": ["b"]}]
    assert "sourceEventSeqs" not in made[5]
    assert list(made[5])[-1] == "surfaceOp"


def stream_of(events: list[Json]) -> Any:
    return next(e for e in events if e["type"].startswith("assistant/"))["data"][
        "stream"
    ]


def test_packed_row_and_plain_chunk_join() -> None:
    """50 §5.8, last paragraph: one record over both forms."""
    events, _ = upgraded(
        1,
        turn("start"),
        step("start"),
        packed(2, 1010, ["a", "b", "c"], [2, 3]),
        chunk("d", time=1016),
        answer("abcd", sources=[2, 3, 4, 5]),
    )
    assert stream_of(events) == [
        {
            "type": "text-chunks",
            "time0": 1010,
            "index": 0,
            "dt": [2, 3, 1],
            "texts": ["a", "b", "c", "d"],
        }
    ]


def test_plain_chunks_before_and_after_packed_rows_join() -> None:
    """50 §5.5: runs join whichever form comes first; another index starts anew."""
    events, _ = upgraded(
        1,
        turn("start"),
        step("start"),
        chunk("a", time=5),
        packed(3, 7, ["b", "c"], [1]),
        packed(5, 9, ["d"], []),
        packed(6, 9, ["x"], [], index=1),
        chunk("y", index=1, time=11),
        raw_chunk({"type": "usage", "usage": 1}, time=12),
        chunk("z", index=1, time=13),
    )
    records = stream_of(events)
    assert [record.get("texts") for record in records] == [
        ["a", "b", "c", "d"],
        ["x", "y"],
        None,
        ["z"],
    ]
    assert [record.get("dt") for record in records] == [[2, 1, 1], [2], None, []]


def test_packed_tool_run_keeps_an_empty_name_and_plain_chunk_becomes_raw() -> None:
    """50 §5.5: the two forms differ; such a record does not expand (§8.5)."""
    data = {
        "turn": 1,
        "step": 1,
        "index": 0,
        "id": "c",
        "name": "",
        "dt": [],
        "args": ["x"],
    }
    row = {"type": "tool-call-chunks", "seq0": 2, "time0": 3, "data": data}
    delta = {
        "type": "tool-call-delta",
        "index": 0,
        "id": "c",
        "name": "",
        "argumentsDelta": "y",
    }
    events, _ = upgraded(1, turn("start"), step("start"), row, raw_chunk(delta))
    records = stream_of(events)
    assert [record["type"] for record in records] == ["tool-call-chunks", "chunk"]
    assert records[0]["name"] == ""
    assert records[1]["chunk"] == delta


def test_finish_chunk_ends_an_attempt() -> None:
    """50 §5.3: a chunk behind a plain finish starts another attempt."""
    finish = raw_chunk(FINISH)
    events, _ = upgraded(
        1, turn("start"), step("start"), chunk("a"), finish, chunk("b"), step("end")
    )
    # The empty system node follows the first step (§6.2).
    assert kinds(events)[3:] == ["assistant/attempt", "assistant/attempt", "step/end"]


def todo(text: str) -> Json:
    return {
        "type": "todo/write",
        "data": {"todos": [{"content": text, "status": "pending"}]},
    }


def test_buffered_event_comes_before_its_message_and_behind_an_attempt() -> None:
    """50 §5.6, order consequence."""
    start = (turn("start"), step("start"))
    events, _ = upgraded(1, *start, chunk("a"), todo("x"), answer("a", sources=[2]))
    assert kinds(events)[3:] == ["todo/write", "assistant/message"]
    events, _ = upgraded(1, *start, chunk("a"), todo("x"), step("end"))
    assert kinds(events)[3:] == ["assistant/attempt", "todo/write", "step/end"]
    events, _ = upgraded(1, *start, chunk("a"), todo("x"), chunk("b"), step("end"))
    assert kinds(events)[3:] == ["todo/write", "assistant/attempt", "step/end"]
    assert stream_of(events)[0]["texts"] == ["a", "b"]


@pytest.mark.parametrize("sources", [None, [2], [2, 3, 4], [3, 2], [1, 2]])
def test_message_that_does_not_cite_its_attempt_is_refused(
    sources: list[int] | None,
) -> None:
    """50 §5.4, second and fifth case."""
    error = refusal(
        1,
        turn("start"),
        step("start"),
        chunk("a"),
        chunk("b"),
        answer("ab", sources=sources),
    )
    assert (error.rule, error.seq) == ("50 §5.4", 4)


def test_message_of_another_step_and_empty_citation_settle_nothing() -> None:
    """50 §5.4, first and fourth case: the attempt comes first, the message has no stream."""
    start = (turn("start"), step("start"))
    events, _ = upgraded(1, *start, chunk("a"), answer("a", sources=[]))
    assert kinds(events)[3:] == ["assistant/attempt", "assistant/message"]
    assert events[4]["data"]["stream"] == []
    # Only the edge: acceptance knows of one open step.
    events = through_v1(*start, raw_chunk(FINISH, step=2), answer("a", sources=[0]))
    assert kinds(events)[2:] == ["assistant/attempt", "assistant/message"]
    assert events[3]["data"]["stream"] == []


def test_goal_message_is_split_ahead_of_the_open_attempt() -> None:
    """50 §5.2, rule 9: the buffer is passed by."""
    goal = user(text=GOAL_STATE)
    goal["data"]["source"] = {
        "kind": "goal",
        "goalId": "g",
        "revision": 2,
        "round": 0,
        "change": GOAL,
    }
    events, _ = upgraded(
        1, turn("start"), step("start"), chunk("a"), todo("x"), goal, step("end")
    )
    assert kinds(events)[3:] == [
        "goal/change",
        "user/message",
        "assistant/attempt",
        "todo/write",
        "step/end",
    ]
    assert events[3]["data"] == GOAL
    assert events[4]["data"]["source"] == {"kind": "goal"}


def test_interrupted_turn_is_closed_by_the_next() -> None:
    """50 §5.2, rules 3 and 4."""
    spliced = {
        "type": "agent/inbox/spliced",
        "data": {"target": "next-turn", "start": 0, "inserted": [user()["data"]]},
    }
    events, _ = upgraded(1, turn("start"), spliced, turn("start", 2))
    assert kinds(events) == [
        "turn/start",
        "agent/inbox/spliced",
        "turn/end",
        "turn/start",
    ]
    assert events[2]["data"] == {"turn": 1, "reason": {"kind": "interrupted"}}
    assert events[2]["time"] == events[3]["time"]
    error = refusal(1, turn("start"), turn("start", 2))
    assert (error.rule, error.seq) == ("50 §5.2", 1)


def test_cut_without_a_marker_gets_one() -> None:
    """50 §5.6: from the event at the cut, or at the end with the last time."""
    events, result = upgraded(1, turn("start"), step("start"), seedLength=1)
    assert kinds(events)[:3] == ["turn/start", "session/end-seed", "step/start"]
    assert (events[1]["time"], result.inherited_event_count) == (2, 1)
    events, result = upgraded(1, turn("start"), seedLength=1)
    assert kinds(events) == ["turn/start", "session/end-seed"]
    assert (events[1]["time"], result.inherited_event_count) == (1, 1)


def test_cut_inside_an_attempt() -> None:
    """50 §5.3: refused for plain chunks, and for one packed row; not between two of them."""
    start = (turn("start"), step("start"))
    assert refusal(1, *start, chunk("a"), chunk("b"), seedLength=3).rule == "50 §5.3"
    one = packed(2, 3, ["a", "b"], [1])
    assert refusal(1, *start, one, seedLength=3).rule == "50 §5.3"
    events, _ = upgraded(
        1, *start, packed(2, 3, ["a"], []), packed(3, 4, ["b"], []), seedLength=3
    )
    assert kinds(events)[-2:] == ["session/end-seed", "assistant/attempt"]


def test_reference_to_a_chunk_is_refused() -> None:
    """50 §5.7: a consumed chunk has no place in the target."""
    run = {"commandId": "c", "name": "n", "source": {"kind": "user"}}
    done = {"commandId": "c", "kind": "success", "sourceEventSeq": 2}
    error = refusal(
        1,
        turn("start"),
        step("start"),
        chunk("a"),
        answer("a", sources=[2]),
        {"type": "command/run", "data": run},
        {"type": "command/done", "data": done},
    )
    assert (error.rule, error.seq) == ("50 §5.7", 5)
    assert "data.sourceEventSeq" in error.message


# --- edge 2 to 3 (§6) ---


def request(**header: Any) -> Json:
    config = {"provider": "p", "model": "m"}
    data = {"header": {"config": config, **header}, "reason": "initial"}
    return {"type": "request/header", "data": data}


def test_v2_system_prompt_becomes_a_node() -> None:
    """50 §6.5: the empty head after the step, the prompt before its header."""
    events, _ = upgraded(
        2, turn("start"), step("start"), user(), request(system="A", tools=[])
    )
    assert kinds(events) == [
        "turn/start",
        "step/start",
        "system/message",
        "user/message",
        "system/message",
        "request/header",
    ]
    assert events[2]["data"]["message"]["content"] == []
    assert events[4]["data"]["message"]["content"] == [{"type": "text", "text": "A"}]
    assert events[4]["surfaceOp"] == {"op": "replace", "startSeq": 2, "endSeq": 2}
    assert events[4]["sourceEventSeqs"] == [2]
    assert [event["time"] for event in events] == [1, 2, 2, 3, 4, 4]
    assert events[5]["data"]["header"] == {"config": {"provider": "p", "model": "m"}}


def test_v2_generated_id_is_the_check_value() -> None:
    """50 §6.2: the digest of the compact JSON of tag, id, source seq and type."""
    events, _ = upgraded(2, turn("start"), step("start"), id="s1")
    assert events[2]["data"]["message"]["id"] == (
        "v2-to-v3-system-36701ab3bbdb7fb02e9bffbb652f9ba6b175dbfc31464e99d49c6241a50600f2"
    )


def test_v2_same_prompt_adds_nothing_and_a_dropped_one_is_replaced() -> None:
    """50 §6.2, consequences."""
    same = (request(system="A"), request(system="A"))
    events, _ = upgraded(2, turn("start"), step("start"), *same)
    assert kinds(events).count("system/message") == 2
    events, _ = upgraded(
        2, turn("start"), step("start"), request(system="A"), request()
    )
    nodes = [event for event in events if event["type"] == "system/message"]
    assert [node["data"]["message"]["content"] for node in nodes][-1] == []
    assert nodes[2]["surfaceOp"]["startSeq"] == nodes[1]["seq"]


@pytest.mark.parametrize(
    ("events", "seq"),
    [((turn("start"), user()), 1), ((turn("start"), request(system="A")), 1)],
)
def test_v2_surface_or_prompt_outside_a_step_is_refused(
    events: tuple[Json, ...], seq: int
) -> None:
    """50 §6.2: a node before the first step has no place for its head."""
    error = refusal(2, *events)
    assert (error.rule, error.seq) == ("50 §6.2", seq)


def test_v2_unknown_block_and_source_are_refused() -> None:
    """50 §6.1, rules 7 and 11: strict kinds in generation 2."""
    odd = user()
    odd["data"]["content"] = [{"type": "video"}]
    assert refusal(2, turn("start"), step("start"), odd).rule == "50 A.5"
    odd = user()
    odd["data"]["source"] = {"kind": "someone"}
    error = refusal(2, turn("start"), step("start"), odd)
    assert (error.rule, error.seq) == ("50 §6.1", 2)


def test_v2_preset_and_dispatch_are_renamed() -> None:
    """50 §2.2, §6.3."""
    selected = {"type": "agent-preset/selected", "data": {"agentPreset": "code"}}
    events, result = upgraded(2, selected, agentPreset="code")
    assert events[0]["data"] == {"agentPreset": "ptc"}
    assert result.header_fields["agentPreset"] == "ptc"
    assert result.header_fields["version"] == 4


# --- edge 3 to 4 (§7) ---


def test_v3_opaque_event_keeps_its_references() -> None:
    """50 §7.2, item 7: renamed, and nothing else."""
    spliced = {
        "type": "agent/inbox/spliced",
        "data": {"target": "next-turn", "start": 0, "inserted": [user()["data"]]},
    }
    opaque = {
        "type": "my/thing",
        "data": 5,
        "ignorable": True,
        "sourceEventSeqs": [0],
        "surfaceOp": {"any": 1},
    }
    events, _ = upgraded(3, turn("start"), spliced, turn("start", 2), opaque)
    assert kinds(events)[2:] == ["turn/end", "turn/start", "plugin:my/thing"]
    assert events[4] == opaque | {"type": "plugin:my/thing", "seq": 4, "time": 4}


@pytest.mark.parametrize(
    ("plugin", "kind"),
    [
        ("compact", "compact-checkpoint"),
        ("tools-code-mode", "ptc-mode"),
        ("tools-ptc", "ptc-mode"),
        ("dsh-compaction-basic", "compact-basic"),
        ("schedule", "schedule"),
        ("@deepseek-ai/dsh-system-prompt", "runtime-context"),
        ("other", "plugin:other"),
    ],
)
def test_v3_plugin_becomes_a_producer(plugin: str, kind: str) -> None:
    """50 §7.4, the table; members beside `plugin` stay in their places."""
    message = user()
    message["data"]["source"] = {"kind": "plugin", "plugin": plugin, "form": "recall"}
    events, _ = upgraded(3, turn("start"), step("start"), system(), message)
    assert list(events[3]["data"]["source"].items()) == [
        ("kind", kind),
        ("form", "recall"),
    ]
    assert events[2]["data"]["message"]["source"] == {"kind": "system-prompt"}


def test_v3_wrapper_with_more_members_is_lifted() -> None:
    """50 §7.5: other members of message and wrapper get names of their own."""
    wrapper = {
        "type": "tool-result",
        "toolCallId": "c",
        "content": [{"type": "video", "x": 1}],
        "extra": 2,
    }
    message = {
        "id": "t",
        "role": "user",
        "note": 3,
        "content": [wrapper],
        "source": {"kind": "tool", "callId": "c"},
    }
    data = {"turn": 1, "step": 1, "message": message}
    result = {"type": "tool/result", "data": data, "surfaceOp": "append"}
    start, begin, asked, call = calling()
    asked["data"]["stream"] = []
    events, _ = upgraded(3, start, begin, system(), asked, call, result)
    assert list(events[-1]["data"]["message"].items()) == [
        ("role", "tool"),
        ("source", {"kind": "tool", "callId": "c"}),
        ("toolCallId", "c"),
        ("content", [{"type": "plugin:video", "x": 1}]),
        ("id", "t"),
        ("plugin:message:note", 3),
        ("plugin:result:extra", 2),
    ]


def child(identity: str, created: int, **descriptor: Any) -> ChildEvidence:
    if not descriptor:
        return ChildEvidence(identity, created)
    value = {"version": 3, "mode": "one-shot", "provider": "p"} | descriptor
    return ChildEvidence(identity, created, 1, value)


def test_v3_children_are_listed_in_order() -> None:
    """50 §7.6: by time, then by UTF-16 units of the id; unknown ones too."""
    evidence = [
        child("\uffff", 5),
        child("\U0001f600", 5, mode="continuable", label="L"),
        child("z", 4, label="x"),
    ]
    events, _ = upgraded(3, turn("start"), children=evidence)
    assert [event["data"] for event in events[1:]] == [
        {
            "version": 0,
            "childId": "z",
            "childCreatedAt": 4,
            "mode": "one-shot",
            "label": "x",
        },
        {
            "version": 0,
            "childId": "\U0001f600",
            "childCreatedAt": 5,
            "mode": "continuable",
            "label": "L",
        },
        {"version": 1, "childId": "\uffff", "childCreatedAt": 5, "mode": "unknown"},
    ]
    assert [event["time"] for event in events] == [1, 1, 1, 1]
    assert list(events[1]["data"]) == [
        "version",
        "childId",
        "childCreatedAt",
        "mode",
        "label",
    ]


def test_v3_conflicting_evidence_is_refused_and_agreeing_is_not_written() -> None:
    """50 §7.6, finish, item 4."""
    listed = {
        "type": "subagent/catalog",
        "data": {"version": 0, "childId": "k", "childCreatedAt": 5, "mode": "one-shot"},
    }
    events, _ = upgraded(3, listed, children=[child("k", 5, label="L")][:0])
    assert kinds(events) == ["subagent/catalog"]
    events, _ = upgraded(3, listed, children=[child("k", 5)])
    assert kinds(events) == ["subagent/catalog"]
    with pytest.raises(MigrationRefusedError) as caught:
        upgraded(3, listed, children=[child("k", 5, label="L")])
    assert (caught.value.rule, caught.value.seq) == ("50 §7.6", None)


def test_missing_evidence_is_refused_for_old_logs_only() -> None:
    """50 §7.7: the caller has to say something; generation 4 does without."""
    with (
        dsh.open(text_of(header_of(3), [])) as log,
        pytest.raises(MigrationRefusedError) as caught,
    ):
        upgrade(log)
    assert caught.value.rule == "50 §7.7"
    with dsh.open(text_of(header_of(4), numbered(turn("start")))) as log:
        assert list(upgrade(log)) == [event.envelope for event in log]


@pytest.mark.parametrize(
    "member", ["childId", "childCreatedAt", "descriptorCount", "descriptor"]
)
def test_incomplete_evidence_is_refused(member: str) -> None:
    """50 §7.6: every member is required, `descriptor` may be null."""
    value = {
        "childId": "k",
        "childCreatedAt": 1,
        "descriptorCount": 0,
        "descriptor": None,
    }
    assert ChildEvidence.from_json(value) == ChildEvidence("k", 1)
    del value[member]
    with pytest.raises(MigrationRefusedError) as caught:
        ChildEvidence.from_json(value)
    assert caught.value.rule == "50 §7.6"


# --- the chain (§2) ---


def test_chain_in_one_go_equals_the_chain_in_parts() -> None:
    """Appendix C 4: going on from an intermediate artifact gives the same."""
    text = text_of(header_of(0), numbered(*V0_TURN))
    whole: list[Json] = []
    with dsh.open(text) as log:
        chain = Chain(log.header, whole.append, children=())
        for event in log:
            chain.push(event.envelope)
        chain.finish(0)
        middle: list[Json] = []
        chain = Chain(log.header, middle.append, children=None, target=3)
        for event in log:
            chain.push(event.envelope)
        chain.finish(0)
    events, _ = upgraded(3, *middle, id="s0")
    assert events == whole


def test_edge_refusal_wins_over_later_damage_and_loses_to_earlier() -> None:
    """50 §2.4, 90 no. 27: the first failure in stream order counts."""
    rows = numbered(
        turn("start"), {"type": "mode/set", "data": {}}, turn("end", reason=1)
    )
    lines = text_of(header_of(0), rows).splitlines(keepends=True)
    late = b"".join((*lines[:3], b"{bad\n", lines[3]))
    early = b"".join((*lines[:2], b"{bad\n", *lines[2:]))
    with dsh.open(late) as log, pytest.raises(MigrationRefusedError) as refused:
        list(upgrade(log, children=()))
    assert refused.value.seq == 1
    with dsh.open(early) as log, pytest.raises(JsonSyntaxError) as damaged:
        list(upgrade(log, children=()))
    assert damaged.value.line == 3


def test_decoder_fault_wins_over_acceptance() -> None:
    """90 no. 27: acceptance speaks last, even of an earlier event."""
    rows = numbered(turn("start", 2), seed(inherited=True))
    with (
        dsh.open(text_of(header_of(3), rows)) as log,
        pytest.raises(MigrationRefusedError),
    ):
        list(upgrade(log, children=()))
    rows = numbered(turn("start", 2), turn("end", 2))
    gap = text_of(header_of(3), [rows[0], rows[1] | {"seq": 7}])
    with dsh.open(gap) as log, pytest.raises(RowError) as caught:
        list(upgrade(log, children=()))
    assert caught.value.line == 3


def test_acceptance_refusal_names_rule_and_seq() -> None:
    """50 §8.4: the fault of the result, as a refusal."""
    error = refusal(3, turn("start", 2))
    assert (error.rule, error.seq) == ("L2.turn-start", 0)


def test_refusal_names_edge_member_and_path_and_survives_pickle() -> None:
    """Issue, item 1; conventions §4 rule 3."""
    error = refusal(0, turn("start"), turn("end", reason={"kind": "completed", "x": 1}))
    assert "edge v0 to v1" in error.message
    assert "data.reason" in error.message
    assert error.args[7:] == (0, "data.reason")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
        assert other.args == error.args


def test_newer_log_is_newer_and_no_count_is_malformed() -> None:
    """50 §2.1: `version > 4` against a version that is no count."""
    with pytest.raises(NewerFormatError) as newer:
        open_source_log(text_of(header_of(4) | {"version": 5}, []))
    assert newer.value.found == 5
    for version in (4.5, 2**53):
        with pytest.raises(dsh.HeaderError) as malformed:
            open_source_log(text_of(header_of(4) | {"version": version}, []))
        assert malformed.value.rule == "50 §2.1"


# --- in memory ---


def test_open_with_upgrade_gives_a_log_of_generation_4() -> None:
    """Issue, item 5: every way of reading works on it, and nothing is written."""
    text = text_of(header_of(0), numbered(*V0_TURN))
    with dsh.open(text, upgrade=True) as log:
        assert log.generation == 4
        assert log.id == "s0"
        assert [event.type for event in log][-1] == "turn/end"
        assert len(log) == 7
        [attempt] = list(log.attempts())
        assert attempt.stream.records[0]["texts"] == ["a", "b"]
        assert log.upgraded() is log
    assert dsh.check(text_of(header_of(4), []), level="full").status == "sound"
    with pytest.raises(MigrationRefusedError):
        dsh.open(
            text_of(header_of(0), [{"type": "mode/set", "seq": 0, "data": {}}]),
            upgrade=True,
        )


def test_upgrade_leaves_the_events_of_the_source_alone() -> None:
    """Edges copy what they change: an event that a caller keeps stays as it was."""
    text = text_of(header_of(0), numbered(*V0_TURN))
    with dsh.open(text) as log:
        before = [json.dumps(event.envelope) for event in log]
        kept = list(log)
        list(upgrade(log, children=()))
        assert [json.dumps(event.envelope) for event in kept] == before


def peak_bytes(count: int) -> int:
    """Return the memory that an upgrade of attempts and other events takes at its peak."""
    # The other way round, all others would wait for the last attempt to settle (50 §5.1).
    rows = [turn("start"), step("start"), *[todo("x")] * count]
    rows += [raw_chunk(FINISH)] * count
    with dsh.open(text_of(header_of(1), numbered(*rows))) as log:
        tracemalloc.start()
        try:
            for _ in upgrade(log, children=()):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.slow
def test_memory_is_the_map_of_seqs() -> None:
    """Issue, figures: at most 16 bytes for each event of the source beyond what is constant."""
    small, large = peak_bytes(4000), peak_bytes(8000)
    assert large - small < 8000 * 16


def test_map_of_seqs_widens() -> None:
    """No bound on the number of events; the map only gets wider."""
    targets = SeqMap()
    targets.append(SeqMap.GONE, 2)
    targets.place(1, 2**31)
    targets.append(2**31 + 1)
    assert [targets[seq] for seq in range(len(targets))] == [-1, 2**31, 2**31 + 1]
    targets = SeqMap()
    targets.append(2**31)
    assert targets[0] == 2**31
