"""Distributions of times, per step and per call. Spec: 80 §5."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

import dsh_codec as dsh
from command_line import runner
from dsh_codec.timing import Distribution
from session_files import Session, answer, attempt, call, event, open_rows, text_run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
    return runner(capfdbinary)


def start(step: int = 1, time: int = 1000) -> dict[str, Any]:
    return event("step/start", {"turn": 1, "step": step}) | {"time": time}


def spoken(time: int, gap: int, *texts: str, step: int = 1, **more: Any) -> Any:
    usage = {"outputTokens": 10}
    return call(usage, step=step, stream=text_run(time, gap, *texts), **more)


@given(
    st.lists(st.integers(-5, 5) | st.floats(-9, 9), max_size=30),
    st.sampled_from([0.1, 1, 25, 50, 90, 99, 99.9, 100]),
)
def test_percentile_is_the_nearest_rank(values: list[float], percent: float) -> None:
    """Spec 80 §5."""
    found = Distribution()
    half = len(values) // 2
    for value in values[:half]:
        found.add(value)
    found.extend(values[half:])
    if not values:
        assert found.percentile(percent) is None
        assert (found.min, found.max, found.mean) == (None, None, None)
        return
    rank = ceil(percent * len(values) / 100)
    assert found.percentile(percent) == sorted(values)[rank - 1]
    assert (found.min, found.max) == (min(values), max(values))
    assert found.mean == pytest.approx(sum(values) / len(values))
    assert found.negative_count == sum(value < 0 for value in values)


def test_unknown_values_are_counted_and_not_taken_for_zero() -> None:
    found = Distribution()
    found.add(None)
    found.add(5)
    assert (found.count, found.unknown, found.min) == (1, 1, 5)


@pytest.mark.parametrize("percent", [0, -1, 100.5])
def test_percentile_that_does_not_exist(percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        Distribution().percentile(percent)


def test_step_has_the_figures_of_its_message() -> None:
    """Spec 80 §5: its settled message if there is one, otherwise its last attempt."""
    rows = [
        start(),
        attempt(text_run(1100, 1, "a", "b")),
        spoken(1300, 20, "a", "b"),
        attempt(text_run(1900, 5, "a", "b")),
        start(2, 2000),
        attempt(text_run(2040, 4, "a", "b"), step=2),
        attempt(text_run(2080, 8, "a", "b"), step=2),
    ]
    log = open_rows(rows)
    found = dsh.timing(log, by=("turn", "step"))
    assert [(row.key, row.generation.max) for row in found] == [
        ((1, 1), 20),
        ((1, 2), 8),
    ]
    assert found.totals.count == 2
    assert (found.totals.gap.count, found.totals.gap.max) == (2, 20)
    calls = dsh.timing(log, by=("session", "seq"), per="call")
    assert [row.generation.max for row in calls] == [1, 20, 5, 4, 8]
    # Only first attempts start with the step; nothing says when the others did.
    assert [row.ttft.max for row in calls] == [100, None, None, 40, None]
    assert (calls.totals.ttft.count, calls.totals.ttft.unknown) == (2, 3)


def test_figures_of_a_session(tmp_path: Path) -> None:
    block = {"type": "tool-call", "id": "a", "name": "t", "arguments": "{}"}
    place = {"turn": 1, "step": 1}
    rows = [
        start(),
        spoken(1200, 50, "a", "b", "", "c", content=[block]),
        event("tool/call", place | {"callId": "a"}) | {"time": 2000},
        answer("a", time=2750),
        start(2, 3000),
        spoken(3100, -5, "a", "b", step=2),
    ]
    Session("s", rows).write(tmp_path)
    (row,) = dsh.timing(tmp_path, by="session")
    assert row.key == ("s",)
    assert (row.ttft.percentile(50), row.ttft.max) == (100, 200)
    assert (row.generation.count, row.generation.unknown) == (1, 1)
    assert row.generation.max == 150
    assert row.output_rate.max == pytest.approx(10_000 / 150)
    assert (row.gap.count, row.gap.max, row.gap.negative_count) == (3, 100, 1)
    assert (row.tool.count, row.tool.max) == (1, 750)


def test_own_calls_only_and_no_compactions(tmp_path: Path) -> None:
    parent = Session("a", [start(), spoken(1500, 1, "a", "b")])
    child = Session("b", [])
    child.fork(parent, 2)
    usage = {"inputTokens": 1, "outputTokens": 1}
    child.rows.append(event("compaction/summary", {"usage": usage}))
    parent.write(tmp_path)
    child.write(tmp_path)
    found = dsh.timing(tmp_path, by="session", per="call")
    assert [row.key for row in found] == [("a",)]


def test_wrong_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="per"):
        dsh.timing([], per="turn")  # type: ignore[arg-type]  # that is the test
    with pytest.raises(ValueError, match="grouped"):
        dsh.timing([], by="week")  # type: ignore[arg-type]  # that is the test


def test_command(run: Any, tmp_path: Path) -> None:
    rows = [start(), spoken(1200, 50, "a", "b")]
    Session("s", rows).write(tmp_path)
    result = run("timing", tmp_path)
    assert result.code == 0
    cells = ["m", "1", "200", "200", "200", "50", "200.0", "50", "50", "-", "-"]
    assert [line.split("\t") for line in result.lines] == [cells]
    by_session = run("timing", tmp_path, "--json", "--by", "session").json()
    assert by_session == dsh.timing(tmp_path, by="session").to_dicts()
    assert by_session[0]["ttft"]["p50"] == 200
    lines = run("timing", tmp_path, "--csv").lines
    assert lines[0].startswith("model,count,ttft_count,ttft_unknown,ttft_min,")
    assert lines[1].startswith("m,1,1,0,200,200.0,200,")
    assert run("timing", tmp_path, "--per", "turn").code == 64
    assert run("timing", tmp_path / "gone").code == 2
