"""One row for each call. Spec: 80 §2 to §5."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import dsh_codec as dsh
import plain_calls
from dsh_codec.corpus import own_from
from dsh_codec.pace import Pace, pace_of, token_gaps
from session_files import Session, answer, attempt, call, event, open_rows, text_run
from small_logs import DEMO, PLAIN, SHARED, shared_folder

SOURCE = {"kind": "model", "provider": "p", "model": "m"}


def only(rows: list[dict[str, Any]], **more: Any) -> dsh.Call:
    """Return the only call of a log with these rows."""
    (found,) = dsh.calls(open_rows(rows), **more)
    return found


# --- columns ---


def test_call_of_a_failed_attempt() -> None:
    """Spec 80 §3, §5, on the log of the small tests."""
    (found,) = dsh.calls(dsh.open(PLAIN), gaps=True)
    assert found == dsh.Call(
        session="s-1",
        seq=2,
        turn=1,
        step=1,
        attempt=1,
        outcome="failed",
        finish="error",
        provider=None,
        model=None,
        served_model=None,
        input=None,
        output=None,
        cache_read=None,
        cache_write=None,
        reasoning=None,
        total=None,
        recorded_total=None,
        start_ms=1002,
        first_token_ms=1003,
        last_token_ms=1005,
        end_ms=1009,
        ttft=1,
        generation=2,
        output_rate=None,
        tools=(),
        gaps=(2,),
        own=True,
    )


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (0, 0),
        (7, 7),
        (7.0, 7),
        (-0.0, 0),
        (7.5, None),
        (-1, None),
        (True, None),
        (None, None),
        ("7", None),
        (2**53, None),
        ([], None),
    ],
)
def test_tokens_that_are_no_number_of_tokens_are_unknown(
    value: Any, known: int | None
) -> None:
    """Spec 80 §4 U2; 20 §1.2: usage is not validated."""
    usage = {
        "inputTokens": value,
        "outputTokens": 1,
        "cacheReadTokens": value,
        "totalTokens": value,
    }
    found = only([call(usage)])
    assert (found.input, found.cache_read, found.recorded_total) == (known,) * 3
    assert type(found.input) is type(known)
    assert found.total == (None if known is None else 2 * known + 1)


def test_total_leaves_reasoning_out_and_takes_absent_caches_for_nothing() -> None:
    """Spec 80 §4 U3, U4."""
    usage = {"inputTokens": 10, "outputTokens": 5, "reasoningTokens": 4}
    found = only([call(usage | {"totalTokens": 99})])
    assert (found.total, found.recorded_total) == (15, 99)
    assert (found.cache_read, found.cache_write, found.reasoning) == (None, None, 4)
    assert only([call({"outputTokens": 5, "cacheReadTokens": 1})]).total is None


def test_usage_of_the_stream_goes_before_that_of_the_message() -> None:
    """Spec 80 §4 U1: the last usage chunk, never both."""
    chunks = [
        {"type": "chunk", "time": 5, "chunk": {"type": "usage", "usage": usage}}
        for usage in ({"inputTokens": 1}, {"inputTokens": 2})
    ]
    assert only([call({"inputTokens": 3}, stream=chunks)]).input == 2
    assert only([call({"inputTokens": 3}, stream=[])]).input == 3


@pytest.mark.parametrize(
    ("served", "expected"), [("other", "other"), ("m", None), ("", None), (3, None)]
)
def test_served_model(served: Any, expected: str | None) -> None:
    """Spec 80 §3."""
    source = SOURCE | {"replayState": {"response": {"responseModel": served}}}
    found = only([call({}, source=source)])
    assert (found.provider, found.model, found.served_model) == ("p", "m", expected)


def test_attempt_has_the_model_of_the_last_request_before_it() -> None:
    """Spec 80 §3."""
    header = {"header": {"config": {"provider": "p", "model": "one"}}}
    rows = [
        event("request/header", header),
        attempt([]),
        event("request/context", {"provider": "q", "model": "two"}),
        attempt([]),
        event("request/header", {"header": header["header"]}),
    ]
    found = list(dsh.calls(open_rows(rows)))
    assert [(c.provider, c.model) for c in found] == [("p", "one"), ("q", "two")]


def test_start_of_each_attempt() -> None:
    """Spec 80 §5: step start, retry, else the last request since the attempt before."""
    place = {"turn": 1, "step": 1}
    context = event("request/context", {"provider": "p", "model": "m"})
    rows = [
        context,
        event("step/start", place),
        context,
        attempt([]),  # 3: the step's start
        context,
        event("llm/retry-started", place),
        event("llm/retry-started", {"turn": 1, "step": 2}),
        attempt([]),  # 7: the retry of its own step
        context,
        context,
        attempt([]),  # 10: the last request
        attempt([]),  # 11: nothing since
        context,
        attempt([], step=9),  # 13: no step/start, so the last request before it
    ]
    found = list(dsh.calls(open_rows(rows)))
    assert [c.start_ms for c in found] == [101, 105, 109, None, 112]
    assert [c.attempt for c in found] == [1, 2, 3, 4, 1]


def test_request_that_was_written_during_a_stream_is_not_its_start() -> None:
    """Spec 80 §5: before the stream; a settlement stands behind rows of its stream."""
    context = event("request/context", {"provider": "p", "model": "m"})
    rows = [context, context | {"time": 700}, attempt(text_run(600, 5, "a", "b"))]
    (found,) = dsh.calls(open_rows(rows))
    assert (found.start_ms, found.ttft) == (100, 500)


def test_durations_that_the_clock_makes_impossible_are_unknown() -> None:
    """Spec 80 §5: negative first-token time, generation of 0 or less."""
    start = event("step/start", {"turn": 1, "step": 1})
    early = only([start, call({"outputTokens": 9}, stream=text_run(50, -3, "a", "b"))])
    assert (early.start_ms, early.first_token_ms, early.last_token_ms) == (100, 50, 47)
    assert (early.ttft, early.generation, early.output_rate) == (None, None, None)
    single = only([start, call({"outputTokens": 9}, stream=text_run(150, 0, "a"))])
    assert (single.ttft, single.generation, single.output_rate) == (50, None, None)


def test_output_rate() -> None:
    found = only([call({"outputTokens": 3}, stream=text_run(1, 250, "a", "b"))])
    assert (found.generation, found.output_rate) == (250, 12.0)


def test_tools_are_those_of_the_message_in_its_order() -> None:
    """Spec 80 §5: paired per id in log order; a rewrite answers nothing."""
    blocks = [
        {"type": "tool-call", "id": name, "name": "t", "arguments": "{}"}
        for name in ("a", "b", "a", "c")
    ]
    place = {"turn": 1, "step": 1}
    start = [
        event("tool/call", place | {"callId": name, "name": "t", "arguments": "{}"})
        for name in ("a", "b", "a", "x")
    ]
    rewrite = answer("a", time=150)
    rewrite["surfaceOp"] = {"op": "replace", "startSeq": 5, "endSeq": 5}
    rewrite["sourceEventSeqs"] = [5]
    rows = [call({}, content=blocks), *start, answer("a", time=120)]
    rows += [rewrite, answer("a", time=190), answer("c", time=200)]
    found = only(rows)
    assert found.tools == (("a", 19), ("b", None), ("a", 87), ("c", None))
    assert only(rows, tools=False).tools is None


def test_tool_id_that_comes_again_in_another_step_is_another_call() -> None:
    """Spec 80 §5: a crash may have left the first one without an answer."""
    block = {"type": "tool-call", "id": "a", "name": "t", "arguments": "{}"}
    rows = []
    for step in (1, 2):
        place = {"turn": 1, "step": step}
        rows.append(call({}, content=[block], step=step))
        rows.append(event("tool/call", place | {"callId": "a"}))
    rows.append(answer("a", step=2, time=110))
    first, second = dsh.calls(open_rows(rows))
    assert (first.tools, second.tools) == ((("a", None),), (("a", 7),))


def test_compaction_with_usage_is_a_call() -> None:
    """Spec 80 §3: its turn is that of the compaction around it."""
    usage = {"inputTokens": 100, "outputTokens": 7}
    summary = {"summary": [], "provider": "p", "model": "m"}
    rows = [
        event("compaction/start", {"compactionId": "c", "turn": 4}),
        event("compaction/summary", summary | {"usage": usage}),
        event("compaction/summary", summary),
        event("compaction/end", {"compactionId": "c", "turn": 4}),
        event("compaction/summary", summary | {"usage": usage}),
    ]
    first, second = dsh.calls(open_rows(rows))
    assert (first.outcome, first.turn, first.step, first.attempt) == (
        "compaction",
        4,
        None,
        None,
    )
    assert (first.provider, first.model, first.total) == ("p", "m", 107)
    assert second.turn is None
    (old,) = dsh.calls(
        open_rows(
            [
                event("compact/start", {"turn": 2}),
                event("compact/summary", summary | {"usage": usage}),
            ],
            generation=0,
        )
    )
    assert (old.outcome, old.turn, old.total) == ("compaction", 2, 107)


def test_auxiliary_requests_are_rows_where_asked_for() -> None:
    """Spec 80 §3."""
    route = {"route": {"provider": "p", "model": "m"}}
    rows = [
        event("session/title-llm-request", route),
        event("web/deepseek-search-llm-request", {"endpoint": "e"}),
        event("web/new-request", {}) | {"ignorable": True},
    ]
    assert list(dsh.calls(open_rows(rows))) == []
    found = list(dsh.calls(open_rows(rows), auxiliary=True))
    assert [c.outcome for c in found] == ["auxiliary"] * 3
    assert [c.model for c in found] == ["m", None, None]
    assert {c.total for c in found} == {None}


@pytest.mark.parametrize(
    "stream",
    [
        None,
        7,
        [None],
        [{}],
        [{"type": "text-chunks"}],
        [{"type": "text-chunks", "time0": "x", "dt": [1], "texts": ["a", "b"]}],
        [{"type": "text-chunks", "time0": 1, "dt": ["x"], "texts": ["a", "b"]}],
        [{"type": "text-chunks", "time0": 1, "dt": 3, "texts": [1, {}]}],
        [{"type": "chunk", "time": 1, "chunk": 3}],
        [{"type": "chunk", "chunk": {"type": "text-delta"}}],
        [{"type": "chunk", "time": 1e300, "chunk": {"type": "text-delta", "text": 5}}],
        [{"type": ["x"], "time": 5}],
    ],
)
def test_streams_that_would_not_expand_do_not_hide_a_call(stream: Any) -> None:
    """Spec 00 §6: such records refuse a log at level full only."""
    row = call({"inputTokens": 4, "outputTokens": 1})
    row["data"]["stream"] = stream
    found = only([row], gaps=True)
    assert found.total == 5
    assert found.output_rate is None


@pytest.mark.parametrize(
    ("usage", "known"),
    [("7", 7), ("7.0", 7), ("1e400", None), ("-7", None), ("7.5", None), ("[7]", None)],
)
def test_all_answers_know_the_same_tokens(usage: str, known: int | None) -> None:
    """Odd numbers and what is no record are passed over wherever usage is told."""
    chunk = {"type": "usage", "usage": {"inputTokens": "X", "outputTokens": 1}}
    finish = {"type": "finish", "reason": {"kind": "stop"}}
    records = [{"type": "chunk", "time": 1, "chunk": each} for each in (chunk, finish)]
    data = Session("s", [call({}, stream=[*records, 7])]).data()
    log = dsh.open(data.replace(b'"X"', usage.encode()))
    (found,) = dsh.calls(log)
    assert (found.input, found.output, found.finish) == (known, 1, "stop")
    (tried,) = log.attempts()
    assert tried.usage is not None
    assert (tried.usage["outputTokens"], tried.finish) == (1, "stop")
    tokens = dsh.summarize(log).tokens
    assert (tokens.input, tokens.output) == (known, 1)
    assert tokens.unknown["input"] == (known is None)
    assert dsh.usage(log).totals.input == known


def test_numbers_of_times_may_be_floats() -> None:
    """Spec 20 §8.1: 1.0 is an integer, and -0 is 0."""
    run = text_run(-0.0, 2.0, "a", "b", "c")
    found = only([call({"outputTokens": 1}, stream=run)], gaps=True)
    assert (found.first_token_ms, found.end_ms, found.generation) == (0, 4, 4)
    assert found.gaps == (2, 2)
    assert {type(n) for n in (found.first_token_ms, found.end_ms, *found.gaps)} == {int}


def test_place_that_is_no_number_is_unknown() -> None:
    row = call({"inputTokens": 1, "outputTokens": 1})
    row["data"] |= {"turn": 2.0, "step": 1.5}
    found = only([row])
    assert (found.turn, found.step) == (2, None)
    assert type(found.turn) is int


# --- pace ---

chunk_times = st.integers(0, 40) | st.integers(-(2**50), 2**50)
deltas = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["text-delta", "reasoning-delta"]),
            "index": st.just(0),
            "text": st.sampled_from(["", "a"]),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("tool-call-delta"),
            "index": st.just(1),
            "id": st.sampled_from(["", "a"]),
            "argumentsDelta": st.sampled_from(["", "{"]),
        },
        optional={"name": st.sampled_from(["", "n"])},
    ),
    st.just({"type": "finish", "reason": {"kind": "stop"}}),
)


@given(st.lists(st.tuples(chunk_times, deltas), max_size=12))
def test_pace_is_that_of_the_expanded_stream(timed: Any) -> None:
    """Spec 20 §5, 80 §5."""
    records = dsh.pack(timed)
    times = [time for time, _ in timed]
    tokens = [time for time, chunk in timed if dsh.kernel.is_token_delta(chunk)]
    assert pace_of(records) == Pace(
        *(times[:1] or [None]),
        *(tokens[:1] or [None]),
        *(tokens[-1:] or [None]),
        *(times[-1:] or [None]),
    )
    pairs = zip(tokens[1:], tokens[:-1], strict=True)
    assert token_gaps(records) == [later - sooner for later, sooner in pairs]


# --- sessions ---


def test_bad_session_contributes_nothing_and_stops_nothing(tmp_path: Path) -> None:
    """Spec 80 §1 S3, §2: the damage comes after a call that would count."""
    good = Session("good", [call({"inputTokens": 1, "outputTokens": 1})])
    good.write(tmp_path)
    rows = [call({"inputTokens": 2, "outputTokens": 2}), event("turn/end", {"turn": 1})]
    bad = Session("bad", rows).write(tmp_path)
    lines = bad.read_bytes().splitlines(keepends=True)
    bad.write_bytes(lines[0] + lines[1] + b"rubbish\n" + lines[2])
    found = dsh.calls(tmp_path)
    assert [c.session for c in found] == ["good"]
    assert [session.path for session in found.errors] == [str(bad)]
    assert isinstance(found.errors[0].error, dsh.CorruptLogError)
    assert found.log_count == 1


def test_what_lies_under_two_places_is_read_once(tmp_path: Path) -> None:
    path = Session("s", [call({"inputTokens": 1})]).write(tmp_path)
    with dsh.open(path) as log:
        for places in ([tmp_path, path.parent, path], dsh.find(tmp_path), log, path):
            assert len(list(dsh.calls(places))) == 1
    with pytest.raises(FileNotFoundError):
        list(dsh.calls([path, tmp_path / "gone"]))


def test_only_the_highest_generation_counts(tmp_path: Path) -> None:
    """Spec 80 §1 S1: a retained file is never added."""
    Session("s", [call({"inputTokens": 1})], generation=0).write(tmp_path)
    assert [c.input for c in dsh.calls(tmp_path)] == [1]
    Session("s", [call({"inputTokens": 2})]).write(tmp_path)
    assert [c.input for c in dsh.calls(tmp_path)] == [2]


def test_ambiguous_session_is_read_where_the_caller_chooses(tmp_path: Path) -> None:
    """Spec 80 §1 S2."""
    path = Session("s", [call({"inputTokens": 2})]).write(tmp_path)
    packed = Path(f"{path}.zstd")
    header, rest = path.read_bytes().split(b"\n", 1)
    packed.write_bytes(
        dsh.kernel.encode_frame(header + b"\n") + dsh.kernel.encode_frame(rest)
    )
    found = dsh.calls(tmp_path)
    assert list(found) == []
    assert [session.status for session in found.errors] == ["ambiguous"]
    assert len(list(dsh.calls(tmp_path, compression="zstd"))) == 1


@pytest.mark.parametrize("generation", [0, 1])
@pytest.mark.parametrize("has_parent", [True, False])
def test_cut_of_old_generations(*, generation: int, has_parent: bool) -> None:
    """Spec 80 §2: a seed length without a parent moves nothing."""
    members: dict[str, Any] = {"seedLength": 1}
    if has_parent:
        members["parentSession"] = "p"
    rows = [call({"inputTokens": 1}), call({"inputTokens": 2})]
    log = open_rows(rows, generation=generation, **members)
    assert own_from(log) == has_parent
    assert [c.own for c in dsh.calls(log)] == [not has_parent, True]
    assert log.header.declared_cut == 1


@st.composite
def families(draw: st.DrawFn) -> tuple[list[Session], int]:
    """Sessions that forked from each other, and how many calls were made in all."""
    generation = draw(st.sampled_from([0, 1, 3, 4]))
    made = 0
    sessions: list[Session] = []
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["root", "fork", "fork", "subagent"]))
        session = Session(f"s{number}", [], generation=generation)
        if sessions and kind != "root":
            parent = draw(st.sampled_from(sessions))
            if kind == "fork":
                session.fork(parent, draw(st.integers(0, len(parent.rows))))
            else:
                session.header |= {"parentSession": parent.id, "origin": "subagent"}
        for _ in range(draw(st.integers(0, 3))):
            made += 1
            usage = {"inputTokens": made, "outputTokens": 0}
            make = draw(st.sampled_from(["message", "attempt"]))
            if make == "attempt" and generation >= 2:
                chunk = {"type": "usage", "usage": usage}
                row = attempt([{"type": "chunk", "time": 1, "chunk": chunk}])
            else:
                row = call(usage)
            session.rows.append(row)
            if draw(st.booleans()):
                session.rows.append(event("session/end-seed", {}))
        sessions.append(session)
    return sessions, made


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(family=families())
def test_own_calls_of_related_sessions_are_all_calls_once(
    family: tuple[list[Session], int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Spec 80 §2: whatever forked from whatever, each call is somebody's own, once."""
    sessions, made = family
    root = tmp_path_factory.mktemp("family")
    for session in sessions:
        session.write(root)
    found = dsh.calls(root)
    rows = list(found)
    assert not found.errors
    assert sorted(c.input for c in rows if c.own and c.input) == list(
        range(1, made + 1)
    )
    assert dsh.usage(root).totals.calls == made
    assert len(rows) == sum(session.count_calls() for session in sessions)


# --- all generations alike ---


def alike(found: dsh.Call) -> dsh.Call:
    """Return the call without what may differ between generations. Spec 80 §3."""
    outcome: Any = "failed" if found.outcome == "open" else found.outcome
    return found._replace(seq=0, outcome=outcome)


@pytest.mark.parametrize("seed", [1, 2])
def test_generated_content_has_the_same_calls_in_every_format(
    tmp_path: Path, seed: int
) -> None:
    """The issue: v0, packed v0 and v4 of the same content; the log ends in an attempt."""
    tool = shared_folder("DSH_TOOLS", "tools") / "gen_log.py"
    found = {}
    for kind in ("v0", "v0-packed", "v4"):
        path = tmp_path / kind
        options = ["--turns", "4", "--steps", "3", "--tokens", "30", "--format", kind]
        command: list[Any] = [
            sys.executable,
            tool,
            "--out",
            path,
            "--seed",
            str(seed),
            *options,
        ]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own
        rows = dsh.calls(path, gaps=True)
        found[kind] = [alike(row)._replace(session="") for row in rows]
        assert not rows.errors
        want = plain_calls.calls(path.read_bytes())
        assert [
            (c.turn, c.step, c.input, c.output, c.ttft) for c in found[kind]
        ] == want
    assert len(found["v4"]) > 8
    assert any(c.output_rate for c in found["v4"])
    assert any(tool.ms for c in found["v4"] for tool in c.tools or ())
    assert found["v0"] == found["v0-packed"] == found["v4"]


@pytest.mark.parametrize("name", ["v0", "v0-packed", "v1", "v2", "v3", "v4-plain"])
def test_demo_logs_tell_the_same_calls(name: str) -> None:
    expected = [alike(c) for c in dsh.calls(DEMO / "v4", gaps=True)]
    assert [alike(c) for c in dsh.calls(DEMO / name, gaps=True)] == expected
    assert len(expected) > 1


CORPUS = SHARED / "corpus" / "real"


def corpus_logs() -> list[Any]:
    index = CORPUS / "index.json"
    if not index.is_file():
        return []
    logs = json.loads(index.read_text("utf-8"))["logs"]
    return [pytest.param(CORPUS / log["path"], id=log["path"]) for log in logs]


@pytest.mark.parametrize("path", corpus_logs())
def test_real_logs_agree_with_plain_arithmetic(path: Path) -> None:
    """The issue: a script of sixty lines that shares no code with the package."""
    rows = dsh.calls(path, tools=False)
    found = [(c.turn, c.step, c.input, c.output, c.ttft) for c in rows]
    assert not rows.errors
    assert found == plain_calls.calls(path.read_bytes())


def test_calls_do_not_change_what_they_read() -> None:
    log = open_rows([call({"inputTokens": 1}, stream=text_run(1, 1, "a", "b"))])
    before = copy.deepcopy([event.envelope for event in log])
    list(dsh.calls(log, gaps=True))
    assert [event.envelope for event in log] == before
