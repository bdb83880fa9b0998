"""Prompts, answers, history, surface, tool pairs. Spec: 80 §6."""

from __future__ import annotations

from typing import Any

import pytest

import dsh_codec as dsh
from session_files import Session, answer, attempt, call, event, open_rows, text_run
from small_logs import DEMO


def said(kind: str, text: str, **more: Any) -> dict[str, Any]:
    message = {
        "id": "m",
        "role": "user",
        "source": {"kind": kind},
        "content": [{"type": "text", "text": text}],
    }
    return event("user/message", message) | {"surfaceOp": "append"} | more


def spoken(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return call({}, content=list(blocks), **more)


TEXT = {"type": "text", "text": "answer"}


def test_prompts_are_those_of_humans() -> None:
    """Spec 80 §6: other kinds are injected."""
    log = open_rows(
        [said("user", "hello"), said("runtime-context", "date"), spoken(TEXT)]
    )
    (prompt,) = dsh.text(log).human_prompts()
    assert prompt == (
        "s:0",
        "s",
        0,
        100,
        None,
        None,
        "prompt",
        "hello",
        False,
        True,
        "user",
    )
    (injected,) = dsh.text(log).passages(["injected"])
    assert (injected.id, injected.source) == ("s:1", "runtime-context")


def test_answers_are_the_text_blocks_of_messages() -> None:
    pair = [{"type": "text", "text": half} for half in ("\ud83d", "\ude00")]
    thought = {"type": "reasoning", "text": "hm"}
    log = open_rows(
        [
            spoken(thought, *pair, turn=2, step=3),
            spoken(TEXT, interrupted=True),
            spoken(thought),
            attempt(text_run(1, 1, "never", " said")),
        ]
    )
    first, second = dsh.text(log).answers()
    assert (first.text, first.turn, first.step) == ("\U0001f600", 2, 3)
    assert (second.text, first.is_interrupted, second.is_interrupted) == (
        "answer",
        False,
        True,
    )
    passages = dsh.text(log).passages(["reasoning", "failed"])
    assert [(p.kind, p.text) for p in passages] == [
        ("reasoning", "hm"),
        ("reasoning", "hm"),
        ("failed", "never said"),
    ]
    assert list(dsh.text(log).stream_texts()) == [
        (0, ""),
        (1, ""),
        (2, ""),
        (3, "never said"),
    ]


def test_old_spellings_count_as_what_they_became() -> None:
    """Spec 80 intro, 50 §4."""
    content = [{"type": "text", "text": "x"}]
    user = {"kind": "user"}
    whole = {"id": "m", "role": "user", "content": content, "source": user}
    old_answer = {"turn": 1, "step": 1, "content": content, "provenance": {}}
    old_result = {"turn": 1, "step": 1, "callId": "c", "content": content}
    wrapped = {
        "turn": 1,
        "step": 1,
        "message": {
            "role": "user",
            "content": [{"type": "tool-result", "toolCallId": "c", "content": content}],
        },
    }
    rows = [
        event("steering/message", {"turn": 1, "content": content, "source": user}),
        event("steering/message", {"turn": 1, "message": whole}),
        event("assistant/message", old_answer),
        event("tool/result", old_result | {"isError": False}),
        event("tool/result", wrapped),
        event("compact/summary", {"summary": content}),
    ]
    found = dsh.text(open_rows(rows, generation=0)).passages()
    assert [(p.seq, p.kind, p.text) for p in found] == [
        (0, "prompt", "x"),
        (1, "prompt", "x"),
        (2, "answer", "x"),
        (3, "tool-result", "x"),
        (4, "tool-result", "x"),
        (5, "summary", "x"),
    ]


def test_history_and_surface_of_a_fork() -> None:
    """Spec 80 §6: every own event; what a replacement shadowed is in the history."""
    parent = Session("a", [said("user", "one"), said("user", "two")])
    child = Session("b", [])
    child.fork(parent, 2)
    operation = {"op": "replace", "startSeq": 0, "endSeq": 1}
    child.rows.append(said("user", "both", surfaceOp=operation, sourceEventSeqs=[0, 1]))
    log = dsh.open(child.data())
    assert [e.seq for e in dsh.text(log).history()] == [2, 3]
    assert [e.seq for e in dsh.text(log, with_inherited=True).history()] == [0, 1, 2, 3]
    assert dsh.text(log).surface() == [3]
    assert [p.text for p in dsh.text(log).human_prompts()] == ["both"]
    everything = dsh.text(log, with_inherited=True).human_prompts()
    assert [(p.text, p.is_own) for p in everything] == [
        ("one", False),
        ("two", False),
        ("both", True),
    ]


def test_tool_pairs() -> None:
    block = {"type": "tool-call", "id": "a", "name": "t", "arguments": '{"x":1}'}
    place = {"turn": 1, "step": 1}
    failed = answer("b", text="no")
    failed["data"]["message"]["isError"] = True
    rows = [
        spoken(block, block | {"id": "b"}, block | {"id": "c"}),
        event("tool/call", place | {"callId": "a"}),
        answer("a", text="yes"),
        failed,
        event("tool/call", place | {"callId": "x", "name": "u", "arguments": "1"}),
    ]
    a, b, c, x = dsh.text(open_rows(rows)).tool_pairs()
    assert a == ("a", 1, 1, 0, 1, 2, 101, 1, "t", '{"x":1}', "yes", False)
    assert (b.call_seq, b.result_seq, b.ms, b.result, b.is_error) == (
        None,
        3,
        None,
        "no",
        True,
    )
    assert (c.result_seq, c.is_error) == (None, None)
    assert (x.message_seq, x.call_seq, x.name, x.arguments) == (None, 4, "u", "1")


def test_damage_is_raised_by_whoever_reaches_it() -> None:
    data = Session("s", [said("user", "one"), event("turn/end", {})]).data()
    head, one, end = data.splitlines(keepends=True)
    log = dsh.open(head + one + b"x\n" + end)
    prompts = dsh.text(log).human_prompts()
    with pytest.raises(dsh.RowError) as caught:
        list(prompts)
    assert caught.value.line == 3


def test_unknown_kind_is_refused() -> None:
    log = open_rows([])
    with pytest.raises(ValueError, match="kind"):
        list(dsh.text(log).passages(["poem"]))


@pytest.mark.parametrize("name", ["v0", "v0-packed", "v1", "v2", "v3", "v4-plain"])
def test_demo_logs_tell_the_same_story(name: str) -> None:
    def story(path: Any) -> list[tuple[str, str]]:
        kinds = ["prompt", "answer", "reasoning", "tool-call", "tool-result"]
        with dsh.open(path) as log:
            return [(p.kind, p.text) for p in dsh.text(log).passages(kinds)]

    expected = story(DEMO / "v4")
    assert story(DEMO / name) == expected
    assert len(expected) > 3
