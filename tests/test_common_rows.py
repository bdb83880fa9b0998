"""Rows that every migration takes: what they become, and that nothing else is taken for one.

Spec: 50 §4 to §7, appendix A.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

import dsh_codec as dsh
from dsh_codec import _native, _pure
from dsh_codec._types import ChunkRun, CommonRow
from dsh_codec.migrate import upgrade
from dsh_codec.migrate.staging import encode_row
from test_migrate_properties import JUNK, places_in
from test_runs import HEADER, cut_at_random, line_of, one_by_one, outcome_of, units_of

if TYPE_CHECKING:
    import random

Json = dict[str, Any]
PLACE = {"turn": 1, "step": 1}
TEXT = {"type": "text", "text": "a"}
USER: Json = {
    "role": "user",
    "content": [TEXT],
    "source": {"kind": "user"},
    "id": "u",
}
RESULT: Json = {
    "id": "r",
    "role": "user",
    "content": [
        {
            "type": "tool-result",
            "toolCallId": "c",
            "content": [TEXT],
            "isError": False,
        }
    ],
    "source": {"kind": "tool", "callId": "c"},
}
ANSWER: Json = {
    "role": "assistant",
    "content": [
        {"type": "reasoning", "text": "t"},
        TEXT,
        {"type": "tool-call", "id": "c", "name": "n", "arguments": "{}"},
    ],
    "source": {"kind": "model", "provider": "p", "model": "m", "replayState": [1]},
    "id": "m",
}


def row_of(kind: str, data: Any, **more: Any) -> Json:
    return {"type": kind, "seq": 0, "time": 7, "data": data} | more


def only_unit(kernel: Any, row: Json | bytes) -> Any:
    line = row if isinstance(row, bytes) else line_of(row)
    [unit, _] = units_of(kernel, [line_of(HEADER) + line])
    return unit


# --- one row ---


@pytest.mark.parametrize(
    ("row", "place", "message", "data"),
    [
        (row_of("turn/start", {"turn": 3}), (3, 0), None, {"turn": 3}),
        (
            row_of("turn/end", {"reason": {"kind": "completed"}, "turn": 1}),
            (1, 0),
            None,
            {"reason": {"kind": "completed"}, "turn": 1},
        ),
        (row_of("step/start", {"turn": 1, "step": 2}), (1, 2), None, None),
        (row_of("step/end", {"step": 2, "turn": 1}), (1, 2), None, None),
        (
            row_of("tool/call", PLACE | {"callId": "c", "name": "n", "arguments": ""}),
            (1, 1),
            None,
            None,
        ),
        (row_of("user/message", USER, surfaceOp="append"), (0, 0), "u", None),
        (
            row_of(
                "assistant/message",
                PLACE | {"message": ANSWER, "interrupted": True},
                surfaceOp="append",
                sourceEventSeqs=[],
            ),
            (1, 1),
            "m",
            None,
        ),
        (
            row_of(
                "tool/result",
                {"message": RESULT} | PLACE,
                sourceEventSeqs=[],
                surfaceOp="append",
            ),
            (1, 1),
            "r",
            # Example of 50 §7.5: the wrapper becomes the message, which keeps its place.
            {
                "message": {
                    "role": "tool",
                    "source": {"kind": "tool", "callId": "c"},
                    "toolCallId": "c",
                    "content": [TEXT],
                    "isError": False,
                    "id": "r",
                },
                "turn": 1,
                "step": 1,
            },
        ),
    ],
    ids=lambda value: value.get("type") if isinstance(value, dict) else None,
)
def test_common_row_says_what_it_becomes(
    kernel: Any, row: Json, place: tuple[int, int], message: str | None, data: Any
) -> None:
    unit = only_unit(kernel, row)
    assert unit == CommonRow(
        row["type"],
        0,
        7,
        line_of(row)[:-1],
        len(line_of(HEADER)),
        1,
        *place,
        message,
        row.get("sourceEventSeqs"),
        line_of(row["data"] if data is None else data)[:-1],
    )


@pytest.mark.parametrize(
    "row",
    [
        row_of("turn/start", {"turn": 0}),
        row_of("turn/start", {"turn": 1, "trigger": {"kind": "k"}}),
        row_of("turn/start", {"turn": 1}, ignorable=True),
        row_of("turn/start", {"turn": 1}, surfaceOp="append"),
        row_of("turn/start", {"turn": 1}, time=None),
        row_of("turn/end", {"turn": 1, "reason": {"kind": "disposed"}}),
        row_of("turn/end", {"turn": 1, "reason": {"kind": "completed", "x": 1}}),
        row_of("step/start", {"turn": 1, "step": 1.5}),
        row_of("step/start", []),
        row_of("tool/call", PLACE | {"callId": "", "name": "n", "arguments": ""}),
        row_of("tool/call", PLACE | {"callId": "c", "name": "n", "arguments": {}}),
        row_of("user/message", USER),
        row_of(
            "user/message",
            USER,
            surfaceOp={"op": "replace", "start": 0, "end": 0},
        ),
        row_of("user/message", USER | {"turn": 1}, surfaceOp="append"),
        row_of("user/message", USER | {"id": ""}, surfaceOp="append"),
        row_of(
            "user/message",
            USER | {"source": {"kind": "plugin", "plugin": "compact"}},
            surfaceOp="append",
        ),
        row_of(
            "user/message",
            USER | {"source": {"kind": "user", "rpcId": ""}},
            surfaceOp="append",
        ),
        row_of(
            "user/message",
            USER | {"content": [{"type": "image"}]},
            surfaceOp="append",
        ),
        row_of(
            "assistant/message",
            PLACE | {"message": ANSWER, "usage": {"inputTokens": 1}},
            surfaceOp="append",
        ),
        row_of(
            "assistant/message",
            PLACE | {"message": ANSWER, "interrupted": False},
            surfaceOp="append",
        ),
        row_of(
            "assistant/message",
            PLACE | {"message": ANSWER, "stream": []},
            surfaceOp="append",
        ),
        row_of(
            "assistant/message",
            PLACE | {"message": ANSWER | {"source": {"kind": "model", "model": "m"}}},
            surfaceOp="append",
        ),
        row_of(
            "tool/result",
            PLACE | {"message": RESULT | {"source": {"kind": "tool", "callId": "d"}}},
            surfaceOp="append",
        ),
        row_of(
            "tool/result",
            PLACE | {"message": RESULT, "error": {"name": "n", "code": "c"}},
            surfaceOp="append",
        ),
        row_of(
            "tool/result",
            PLACE | {"message": RESULT | {"content": RESULT["content"] * 2}},
            surfaceOp="append",
        ),
        {"seq": 0, "type": "turn/start", "time": 7, "data": {"turn": 1}},
        row_of("plan/mode", {"active": True}),
    ],
    ids=line_of,
)
def test_row_that_a_rule_may_look_at_is_not_common(kernel: Any, row: Json) -> None:
    assert type(only_unit(kernel, row)) is dsh.Row


def test_repeated_members_count_as_they_are_read(kernel: Any) -> None:
    """The last value at the first place (10 §1)."""
    row = b'{"type":"x","seq":0,"time":-0,"data":0,"time":7,"type":"step/end",'
    row += b'"data":{"step":-1,"turn":1,"step":2}}\n'
    assert only_unit(kernel, row)[-5:] == (1, 2, None, None, b'{"step":2,"turn":1}')
    usage = b'{"outputTokens":1,"inputTokens":-1,"inputTokens":2}'
    data = PLACE | {"message": ANSWER, "usage": "U"}
    line = line_of(row_of("assistant/message", data, surfaceOp="append"))
    assert type(only_unit(kernel, line.replace(b'"U"', usage))) is CommonRow


# --- whole logs ---


@st.composite
def sessions(draw: st.DrawFn) -> list[Json]:
    """Draw the rows of a log as the harness wrote them: steps with calls, results, failures."""
    rows: list[Json] = []

    def put(kind: str, data: Any, **more: Any) -> int:
        seq = len(rows)
        rows.append({"type": kind, "seq": seq, "time": 10 + seq, "data": data} | more)
        return seq

    def put_chunk(place: Json, chunk: Json) -> int:
        return put("assistant/chunk", place | {"chunk": chunk})

    number = 0
    for turn in range(1, draw(st.integers(1, 3)) + 1):
        put("turn/start", {"turn": turn})
        for step in range(1, draw(st.integers(1, 3)) + 1):
            place = {"turn": turn, "step": step}
            put("step/start", place)
            if step == 1:
                put("user/message", USER | {"id": f"u{turn}"}, surfaceOp="append")
            if draw(st.integers(0, 3)) == 0:
                header: Json = {"config": {"provider": "p", "model": "m"}}
                header |= {"system": draw(st.sampled_from("ab"))}
                put("request/header", {"header": header, "reason": "initial"})
            if draw(st.integers(0, 4)) == 0:
                for kind in ("text-delta", "finish"):
                    chunk: Json = {"type": kind, "reason": {"kind": "error"}}
                    put_chunk(place, chunk | {"index": 0, "text": "x"})
            call_count = draw(st.integers(0, 2))
            calls = [f"c{number + at}" for at in range(call_count)]
            number += call_count
            sources = [
                put_chunk(place, {"type": "text-delta", "index": 0, "text": text})
                for text in draw(st.lists(st.sampled_from("ab"), max_size=4))
            ]
            sources.append(
                put_chunk(place, {"type": "finish", "reason": {"kind": "stop"}})
            )
            if draw(st.integers(0, 5)) == 0:
                put("plan/mode", {"active": True})
            blocks: list[Json] = [TEXT]
            for call in calls:
                block = {"type": "tool-call", "id": call, "name": "n"}
                blocks.append(block | {"arguments": "{}"})
            message = ANSWER | {"id": f"m{turn}.{step}", "content": blocks}
            usage = {"inputTokens": 1, "outputTokens": 2}
            ranged = dsh.kernel.encode_seqs(sources)
            cited = draw(st.sampled_from([ranged, ranged, sources]))
            data: Json = place | {"message": message, "usage": usage}
            put("assistant/message", data, sourceEventSeqs=cited, surfaceOp="append")
            for call in calls:
                data = place | {"callId": call, "name": "n", "arguments": "{}"}
                cited = [put("tool/call", data)]
                if draw(st.integers(0, 2)) == 0:
                    cited = [cited[0] - 1, cited[0]]
                wrapper = RESULT["content"][0] | {"toolCallId": call}
                result = RESULT | {"id": f"r{call}", "content": [wrapper]}
                result |= {"source": {"kind": "tool", "callId": call}}
                put(
                    "tool/result",
                    place | {"message": result},
                    sourceEventSeqs=cited,
                    surfaceOp="append",
                )
            put("step/end", place)
        put("turn/end", {"turn": turn, "reason": {"kind": "completed"}})
    return rows


def text_of(rows: list[Json], chance: random.Random) -> bytes:
    version = chance.choice([0, 0, 1])
    header = HEADER | {"version": version}
    if chance.random() < 0.1:
        header |= {"seedLength": chance.randrange(len(rows)), "parentSession": "p"}
    return b"".join(line_of(row) for row in (header, *rows))


def change(rows: list[Json], chance: random.Random) -> None:
    """Change something anywhere: a member, a place, a reference, the order."""
    way = chance.randrange(5)
    place = chance.randrange(len(rows))
    if way == 0:
        rows.insert(chance.randrange(len(rows)), copy.deepcopy(rows[place]))
    elif way == 1:
        del rows[place]
    elif way == 2:
        other = chance.randrange(len(rows))
        rows[place], rows[other] = rows[other], rows[place]
    else:
        holder, name = chance.choice(places_in(rows))
        if way == 3 and type(holder[name]) is int:
            holder[name] += chance.choice([-1, 1])
        else:
            holder[name] = copy.deepcopy(chance.choice(JUNK))
    if way < 3:
        for seq, row in enumerate(rows):
            if isinstance(row, dict):
                row["seq"] = seq


@pytest.mark.parametrize("changes", [0, 1, 2])
@settings(max_examples=250, deadline=None)
@given(rows=sessions(), chance=st.randoms(use_true_random=False))
def test_common_rows_give_what_the_edges_give(
    changes: int, rows: list[Json], chance: random.Random
) -> None:
    """Rows, and refusals with class, edge, seq, member and rule; both kernels see the same."""
    rows = copy.deepcopy(rows)  # They share their parts.
    for _ in range(changes):
        if rows:
            change(rows, chance)
    if not rows:
        return
    data = text_of(rows, chance)
    pieces = cut_at_random(data, chance)
    units = units_of(_native, pieces)
    assert units == units_of(_pure, pieces) or isinstance(units[-1], tuple)
    assert units[:-1] == units_of(_pure, pieces)[:-1]

    def made() -> list[bytes]:
        with dsh.open(data) as log:
            return list(upgrade(log, children=()).rows())

    expected = outcome_of(lambda: list(map(encode_row, one_by_one(data))))
    assert outcome_of(made) == expected


@pytest.mark.parametrize("changes", [0, 1, 3])
@settings(max_examples=150, deadline=None)
@given(rows=sessions(), chance=st.randoms(use_true_random=False))
def test_check_of_the_rows_accepts_what_acceptance_does(
    changes: int, rows: list[Json], chance: random.Random
) -> None:
    """`Log.upgraded` asks the kernel's check, `upgrade` the rules of 50 §8 event by event."""
    rows = copy.deepcopy(rows)
    for _ in range(changes):
        if rows:
            change(rows, chance)
    if not rows:
        return
    data = text_of(rows, chance)

    def in_memory() -> list[Json]:
        with dsh.open(data) as log:
            return list(upgrade(log, children=()))

    def spooled() -> list[Json]:
        with dsh.open(data) as log, log.upgraded() as upgraded:
            return [event.envelope for event in upgraded]

    assert outcome_of(spooled) == outcome_of(in_memory)


@settings(max_examples=80, deadline=None)
@given(rows=sessions(), chance=st.randoms(use_true_random=False))
def test_sound_log_takes_the_short_way(rows: list[Json], chance: random.Random) -> None:
    """Not a law of the format, but what makes it fast: few rows need the edges one by one."""
    del chance
    data = b"".join(line_of(row) for row in (HEADER, *rows))
    units = units_of(_native, [data])[:-1]
    others = {"request/header", "plan/mode"}
    assert all(
        isinstance(unit, ChunkRun | CommonRow) or unit.type in others for unit in units
    )
    with dsh.open(data) as log, log.upgraded() as upgraded:
        events = [event.envelope for event in upgraded]
    with dsh.open(data) as log:
        assert list(upgrade(log, children=())) == events
    assert [json.dumps(event) for event in one_by_one(data)] == list(
        map(json.dumps, events)
    )
