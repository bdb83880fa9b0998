"""Totals: what is summed, by what, and what is unknown. Spec: 80 §2, §4."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from command_line import runner
from dsh_codec.grouping import time_zone, to_ms
from session_files import Session, attempt, call, event, open_rows
from small_logs import DEMO

if TYPE_CHECKING:
    from pathlib import Path

NOON = 1_700_000_000_000
"""2023-11-14 22:13:20 UTC."""


def model(name: str | None, provider: str = "p", served: str = "") -> dict[str, Any]:
    source: dict[str, Any] = {"kind": "model", "provider": provider}
    if name is not None:
        source["model"] = name
    return source | {"replayState": {"response": {"responseModel": served}}}


def tokens(given: int, output: int, **more: int) -> dict[str, Any]:
    return {"inputTokens": given, "outputTokens": output} | more


def test_sum_is_over_those_who_know() -> None:
    """Spec 80 §4 U2, U5, U6: null if none does, and how many do not."""
    rows = [
        call(tokens(1, 2, cacheReadTokens=3)),
        call(tokens(10, 20)),
        call({"outputTokens": 5}),
        attempt([]),
    ]
    found = dsh.usage(open_rows(rows))
    assert found.totals == (
        4,
        11,
        27,
        3,
        None,
        None,
        36,
        {
            "input": 2,
            "output": 1,
            "cache_read": 3,
            "cache_write": 4,
            "reasoning": 4,
            "total": 2,
        },
        None,
        None,
    )
    assert [row.totals for row in found] == [found.totals]


def test_known_zero_is_not_unknown() -> None:
    found = dsh.usage(open_rows([call(tokens(0, 0))])).totals
    assert (found.input, found.total, found.unknown["input"]) == (0, 0, 0)


def test_no_calls_know_nothing() -> None:
    found = dsh.usage(open_rows([]))
    assert found.totals[:7] == (0, None, None, None, None, None, None)
    assert len(found) == 0


def test_groups_are_sorted_with_unknown_ones_last(tmp_path: Path) -> None:
    rows = [
        call(tokens(1, 1), source=model("b")),
        call(tokens(2, 2), source=model(None)),
        call(tokens(4, 4), source=model("a", served="c")),
    ]
    Session("s", rows, cwd="/w").write(tmp_path)
    Session("t", rows[:1]).write(tmp_path)
    by_model = dsh.usage(tmp_path, by="model")
    assert [(row.key, row.totals.input) for row in by_model] == [
        (("a",), 4),
        (("b",), 2),
        ((None,), 2),
    ]
    served = dsh.usage(tmp_path, by=["served_model", "session"])
    assert [row.key for row in served] == [
        ("b", "s"),
        ("b", "t"),
        ("c", "s"),
        (None, "s"),
    ]
    assert served.to_dicts()[2] == {
        "served_model": "c",
        "session": "s",
        "calls": 1,
        "input": 4,
        "output": 4,
        "cache_read": None,
        "cache_write": None,
        "reasoning": None,
        "total": 8,
        "unknown_input": 0,
        "unknown_output": 0,
        "unknown_cache_read": 1,
        "unknown_cache_write": 1,
        "unknown_reasoning": 1,
        "unknown_total": 0,
    }
    by_project = dsh.usage(tmp_path, by="project")
    assert [(row.key, row.totals.calls) for row in by_project] == [
        (("/w",), 3),
        ((None,), 1),
    ]
    assert by_project.log_count == 2


@pytest.mark.parametrize(
    ("zone", "day", "month"),
    [
        ("UTC", "2023-11-14", "2023-11"),
        (timezone(timedelta(hours=2)), "2023-11-15", "2023-11"),
        (timezone(timedelta(hours=-23)), "2023-11-13", "2023-11"),
    ],
)
def test_day_is_that_of_the_time_zone(zone: Any, day: str, month: str) -> None:
    log = open_rows([call(tokens(1, 1)) | {"time": NOON}])
    (row,) = dsh.usage(log, by=["day", "month", "year"], tz=zone)
    assert row.key == (day, month, "2023")


def test_named_time_zone_knows_its_rules() -> None:
    """Summer and winter time in one log."""
    try:
        time_zone("Europe/Berlin")
    except ValueError:
        pytest.skip("this system has no time zone database")
    hours = [
        datetime(2024, 3, 30, 23, 30, tzinfo=UTC),
        datetime(2024, 3, 31, 22, 30, tzinfo=UTC),
    ]
    rows = [call(tokens(1, 1)) | {"time": to_ms(hour, UTC)} for hour in hours]
    found = dsh.usage(open_rows(rows), by="hour", tz="Europe/Berlin")
    assert [row.key[0] for row in found] == ["2024-03-31 00:00", "2024-04-01 00:00"]


def test_local_time_zone_is_that_of_the_system() -> None:
    moment = datetime.fromtimestamp(NOON / 1000).astimezone()
    log = open_rows([call(tokens(1, 1)) | {"time": NOON}])
    (row,) = dsh.usage(log, by="hour", tz="local")
    assert row.key[0] == moment.strftime("%Y-%m-%d %H:00")
    local = time_zone("local")
    assert to_ms(moment.replace(tzinfo=None), local) == NOON
    assert to_ms(moment.date(), local) == to_ms(
        datetime(moment.year, moment.month, moment.day).astimezone(), UTC
    )


@pytest.mark.parametrize("time", [2**53 - 1, -(2**53 - 1)])
def test_time_outside_of_all_calendars_is_an_unknown_day(time: int) -> None:
    log = open_rows([call(tokens(1, 1)) | {"time": time}])
    (row,) = dsh.usage(log, by="day", tz=timezone(timedelta(hours=14)))
    assert row.key == (None,)


def test_bounds_are_half_open() -> None:
    rows = [call(tokens(n, 0)) | {"time": NOON + n} for n in (1, 2, 4)]
    log = open_rows(rows)
    assert dsh.usage(log, since=NOON + 2).totals.input == 6
    assert dsh.usage(log, until=NOON + 2).totals.input == 1
    assert dsh.usage(log, since=date(2023, 11, 14), tz="UTC").totals.input == 7
    naive = datetime(2023, 11, 15, tzinfo=UTC).replace(tzinfo=None)
    assert dsh.usage(log, since=naive).totals.calls == 0
    moment = datetime.fromtimestamp((NOON + 4) / 1000, UTC)
    assert dsh.usage(log, since=moment).totals.input == 4


@pytest.mark.parametrize("ask", [dsh.usage, dsh.timing])
def test_bounds_out_of_order_are_refused(ask: Any) -> None:
    for since, until in (
        (NOON + 1, NOON),
        (date(2023, 11, 15), NOON),
        (date(2023, 2, 1), date(2023, 1, 1)),
    ):
        with pytest.raises(ValueError, match=r"since .* must not be after until"):
            ask(DEMO, since=since, until=until)
    assert ask(DEMO, since=NOON, until=NOON).log_count > 0


def test_inherited_calls_count_for_the_parent_only(tmp_path: Path) -> None:
    """Spec 80 §2; a resume marker moves nothing."""
    parent = Session("a", [call(tokens(1, 1)), event("session/end-seed", {})])
    child = Session("b", [])
    child.fork(parent, 2)
    child.rows += [event("session/end-seed", {}), call(tokens(2, 2))]
    parent.write(tmp_path)
    alone = child.write(tmp_path)
    assert dsh.usage(alone).totals.input == 2
    found = dsh.usage(tmp_path, by=["session", "lineage"])
    assert [(row.key, row.totals.input) for row in found] == [
        (("a", "root"), 1),
        (("b", "fork"), 2),
    ]


def test_compacted_messages_and_compactions_are_billed() -> None:
    """Spec 80 §3, §4 U7."""
    summary = {"summary": [], "provider": "p", "model": "m", "usage": tokens(100, 10)}
    rows = [call(tokens(1, 1)), event("compaction/summary", summary)]
    found = dsh.usage(open_rows(rows), by="outcome")
    assert [(row.key[0], row.totals.total) for row in found] == [
        ("compaction", 110),
        ("message", 2),
    ]


@pytest.mark.parametrize("by", ["x", ["day", "week"], [""]])
def test_unknown_grouping_is_refused(by: Any) -> None:
    with pytest.raises(ValueError, match="grouped by"):
        dsh.usage([], by=by)


@pytest.mark.parametrize("tz", [5, None, b"UTC"])
def test_time_zone_of_another_type_is_refused(tz: Any) -> None:
    with pytest.raises(TypeError, match="tz is a tzinfo"):
        dsh.usage([], tz=tz)
    with pytest.raises(TypeError, match="tz is a tzinfo"):
        dsh.html_report(DEMO, tz=tz)


@pytest.mark.parametrize("prices", [{}, 5, "prices.toml"])
def test_prices_of_another_type_are_refused(prices: Any) -> None:
    with pytest.raises(TypeError, match="prices is a PriceTable"):
        dsh.usage([], prices=prices)


@pytest.mark.parametrize("by", [5, None])
def test_grouping_of_another_type_is_refused(by: Any) -> None:
    for ask in (dsh.usage, dsh.timing):
        with pytest.raises(TypeError, match="by is a name"):
            ask([], by=by)


def test_unknown_time_zone_is_refused() -> None:
    for name in ("Nowhere/Land", "../etc/passwd", ""):
        with pytest.raises(ValueError, match="time zone"):
            dsh.usage([], tz=name)


# --- prices ---

TABLE = """
currency = "EUR"
per_tokens = 1000
[[price]]
model = "m"
input = 1
output = 2.5
cache_read = 0.1
[[price]]
provider = "q"
model = "m"
input = 7
output = 7
[[price]]
model = "served"
input = 0.001
output = 0
"""


def cost(usage: dict[str, Any], source: dict[str, Any]) -> Decimal | None:
    (found,) = dsh.calls(open_rows([call(usage, source=source)]))
    return dsh.PriceTable.parse(TABLE).cost(found)


def test_cost_of_a_call() -> None:
    """Spec 80 §4 U8: per provider and model, per kind; exact."""
    assert cost(tokens(1000, 10), model("m")) == Decimal("1.025")
    cached = tokens(0, 0, cacheReadTokens=1)
    assert cost(cached, model("m")) == Decimal("0.0001")
    assert cost(tokens(1, 1, reasoningTokens=1), model("m")) == Decimal("0.0035")
    assert cost(tokens(1, 1), model("m", provider="q")) == Decimal("0.014")
    assert cost(tokens(1, 1), model("m", served="served")) == Decimal("0.000001")
    assert cost(tokens(1, 1), model("m", served="other")) == Decimal("0.0035")


def test_cost_that_is_not_known() -> None:
    assert cost(tokens(1, 1), model("unlisted")) is None
    assert cost(tokens(1, 1), model(None)) is None
    assert cost(tokens(1, 1, cacheWriteTokens=1), model("m")) is None
    assert cost(tokens(1, 1, cacheWriteTokens=0), model("m")) is not None
    assert cost({"inputTokens": 1}, model("m")) is None


def test_costs_are_summed_and_missing_ones_counted(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(TABLE)
    rows = [call(tokens(1000, 0), source=model(name)) for name in ("m", "m", "x")]
    prices = dsh.PriceTable.load(path)
    found = dsh.usage(open_rows(rows), prices=prices)
    assert (found.totals.cost, found.totals.unpriced) == (Decimal(2), 1)
    assert found.currency == "EUR"
    assert found.to_dicts()[0]["cost"] == "2"
    none = dsh.usage(open_rows(rows[2:]), prices=prices).totals
    assert (none.cost, none.unpriced) == (None, 1)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        "per_tokens = 0",
        "per_tokens = 1.5",
        "currency = 1",
        "price = 1",
        "[[price]]\ninput = 1",
        "[[price]]\nmodel = 1",
        '[[price]]\nmodel = "m"\nprovider = 1',
        '[[price]]\nmodel = "m"\noutptu = 1',
        '[[price]]\nmodel = "m"\ninput = -1',
        '[[price]]\nmodel = "m"\ninput = inf',
        '[[price]]\nmodel = "m"\ninput = nan',
        '[[price]]\nmodel = "m"\ninput = true',
        '[[price]]\nmodel = "m"\n[[price]]\nmodel = "m"',
        "not toml",
    ],
)
def test_what_is_no_price_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        dsh.PriceTable.parse(text)


# --- the command ---


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
    return runner(capfdbinary)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rows = [
        call(tokens(1000, 10), source=model("m")) | {"time": NOON},
        call({}, source=model("m")) | {"time": NOON + 86_400_000},
    ]
    Session("s", rows, cwd="/w").write(tmp_path / "root")
    return tmp_path / "root"


def test_command_writes_a_table(run: Any, root: Path) -> None:
    result = run("usage", root, "--tz", "UTC")
    assert result.code == 0
    assert [line.split("\t") for line in result.lines] == [
        ["2023-11-14", "1", "1,000", "10", "?", "?", "?", "1,010"],
        ["2023-11-15", "1", "?", "?", "?", "?", "?", "?"],
        ["total", "2", "1,000 +1?", "10 +1?", "?", "?", "?", "1,010 +1?"],
    ]
    monthly = run(
        "usage", root, "--monthly", "--by", "model,project", "--since", "2023"
    )
    assert monthly.code == 64
    monthly = run("usage", root, "--monthly", "--by", "model,project")
    assert monthly.lines[0].split("\t")[:4] == ["2023-11", "m", "/w", "2"]


def test_command_writes_json_and_csv(run: Any, root: Path) -> None:
    rows = run("usage", root, "--json", "--by", "session").json()
    assert rows == dsh.usage(root, by="session").to_dicts()
    lines = run("usage", root, "--csv", "--by", "session").lines
    assert lines[0].startswith("session,calls,input,output,")
    assert lines[1].startswith("s,2,1000,10,,,,1010,1,1,2,")


def test_command_takes_prices(run: Any, root: Path, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(TABLE)
    result = run("usage", root, "--by", "model", "--prices", path)
    assert result.lines[0].split("\t")[-1] == "1.0250 +1?"
    assert run("usage", root, "--prices", tmp_path / "gone").code == 2
    path.write_text("x = 1")
    assert run("usage", root, "--prices", path).code == 64


def test_command_names_what_it_did_not_count(run: Any, root: Path) -> None:
    Session("t", [call(tokens(1, 1))]).write(root).write_bytes(b"rubbish\n")
    result = run("usage", root, "--by", "session", "--json")
    assert [row["session"] for row in result.json()] == ["s"]
    assert "not counted" in result.errors
    assert result.code == 1


def test_command_reads_the_root_of_the_harness(
    run: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec 00 §3."""
    monkeypatch.setenv("DSH_HOME", str(root.parent))
    root.rename(root.parent / "sessions")
    assert dsh.default_root() == root.parent / "sessions"
    assert len(run("usage", "--json").json()) == 2
    monkeypatch.setenv("DSH_HOME", str(root.parent / "gone"))
    assert run("usage").code == 2
    monkeypatch.delenv("DSH_HOME")
    monkeypatch.setenv("HOME", str(root.parent))
    monkeypatch.setenv("USERPROFILE", str(root.parent))
    assert dsh.default_root() == root.parent / ".dsh" / "sessions"


@pytest.mark.parametrize(
    "arguments",
    [["--by", "x"], ["--tz", "x"], ["--since", "x"], ["--since", "5x"], ["--per", "x"]],
)
def test_command_refuses_what_does_not_exist(
    run: Any, root: Path, arguments: list[str]
) -> None:
    assert run("usage", root, *arguments).code == 64


@pytest.mark.parametrize("command", ["usage", "timing"])
def test_command_refuses_bounds_between_which_nothing_lies(
    run: Any, root: Path, command: str
) -> None:
    for since, until in (("1h", "2h"), ("2023-11-15", "2023-11-14")):
        result = run(command, root, "--since", since, "--until", until)
        assert (result.code, result.lines) == (64, [])
        assert "after until" in result.errors
    same = run(command, root, "--since", "2023-11-14", "--until", "2023-11-14")
    assert same.code == 64
    assert "does not count any more" in same.errors


def test_relative_moments(run: Any, root: Path) -> None:
    assert run("usage", root, "--since", "30d", "--json").json() == []
    everything = run("usage", root, "--until", "1h", "--json").json()
    assert sum(row["calls"] for row in everything) == 2


def test_moment_of_a_wrong_type_is_refused() -> None:
    moment: Any = "2026-01-01"
    with pytest.raises(TypeError, match="a moment is a date"):
        dsh.usage(DEMO, since=moment)
