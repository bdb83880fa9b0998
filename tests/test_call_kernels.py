"""Calls as both kernels collect them: equal, in any pieces, from files and from open logs. Spec: 80."""

from __future__ import annotations

import itertools
import json
import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from call_logs import damaged, oddly_spelled, rows, spoiled, text_of
from dsh_codec import _native, _pure
from dsh_codec._types import Call, TimedCall, ToolTime
from session_files import Session, answer, attempt, call, event, open_rows, text_run
from small_logs import PLAIN, ZSTD, read_on, zstd

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

ALL = {"times": True, "tools": True, "gaps": True, "auxiliary": True}


def scan(
    kernel: ModuleType, data: bytes, *, piece: int = 1 << 20, **columns: bool
) -> list[Any]:
    scanner = kernel.CallScanner(**columns)
    for start in range(0, len(data), piece):
        scanner.feed(data[start : start + piece])
    scanner.finish()
    found: list[Any] = scanner.take_calls()
    return found


def shown(kernel: ModuleType, data: bytes, **columns: bool) -> Any:
    """Return the calls, with the types of their numbers, or why there are none."""
    try:
        return repr(scan(kernel, data, **columns))
    except dsh.DshCodecError as error:
        return type(error), error.line, error.offset, error.seq


# --- both kernels alike ---


@pytest.mark.parametrize("generation", [2, 3, 4])
def test_kernels_collect_the_same_calls(generation: int) -> None:
    kinds = set()
    for seed in range(40):
        data = text_of(rows(seed, generation))
        found = scan(_native, data, **ALL)
        assert repr(found) == repr(scan(_pure, data, **ALL))
        kinds |= {timed.call.outcome for timed in found}
    assert kinds == {"message", "interrupted", "failed", "compaction", "auxiliary"}


@pytest.mark.parametrize("generation", [2, 3, 4])
def test_kernels_agree_about_odd_values(generation: int) -> None:
    made = [rows(seed, generation) for seed in range(10)]
    read = 0
    for seed in range(600):
        data = text_of(spoiled(made[seed % len(made)], seed))
        found = shown(_native, data, **ALL)
        assert found == shown(_pure, data, **ALL), seed
        read += type(found) is str
    assert read > 200


def test_kernels_agree_about_damage() -> None:
    data = text_of(rows(1))
    for seed in range(600):
        bad = damaged(data, seed)
        assert shown(_native, bad, **ALL) == shown(_pure, bad, **ALL), seed


def test_chunks_are_found_without_a_look_at_their_stream(tmp_path: Path) -> None:
    """Without times, the native kernel takes the chunks that it noted while it scanned."""
    path = tmp_path / "session.v4.jsonl"
    known = finished = 0
    for seed in range(1500):
        data = oddly_spelled(seed)
        found = scan(_native, data, times=False)
        assert repr(found) == repr(scan(_pure, data, times=False)), seed
        unknown: Any = dict.fromkeys(Call._fields[17:24])
        full = [timed.call._replace(**unknown) for timed in scan(_native, data)]
        calls = [timed.call for timed in found]
        assert calls == full, seed
        known += sum(call.input is not None for call in calls)
        finished += sum(call.finish is not None for call in calls)
        if seed % 10 == 0:
            path.write_bytes(data)
            reader = _native.CallReader()
            sums = reader.sum_file(path, generation=4).sums
            assert sums == _pure.CallReader().sum_file(path, generation=4).sums, seed
            assert dsh.usage(path).totals.calls == sums.calls == len(calls)
    assert known > 1000
    assert finished > 100


def test_columns_that_are_not_asked_for_are_unknown(kernel: ModuleType) -> None:
    data = text_of(rows(3))
    full = [timed.call for timed in scan(kernel, data, **ALL)]
    timed_columns = Call._fields[17:24]
    assert timed_columns[0] == "start_ms"
    assert timed_columns[-1] == "output_rate"
    for flags in itertools.product([True, False], repeat=4):
        columns = dict(zip(ALL, flags, strict=True))
        expected = full
        if not columns["auxiliary"]:
            expected = [found for found in expected if found.outcome != "auxiliary"]
        if not columns["times"]:
            unknown: Any = dict.fromkeys(timed_columns)
            expected = [found._replace(**unknown) for found in expected]
        if not columns["tools"]:
            expected = [found._replace(tools=None) for found in expected]
        if not columns["gaps"]:
            expected = [found._replace(gaps=None) for found in expected]
        assert [timed.call for timed in scan(kernel, data, **columns)] == expected


def test_pieces_do_not_matter(kernel: ModuleType) -> None:
    data = text_of(rows(5, count=12))
    whole = scan(kernel, data, **ALL)
    assert whole
    for piece in (1, 7, 100, 4096):
        assert scan(kernel, data, piece=piece, **ALL) == whole


def test_calls_are_of_the_public_classes(kernel: ModuleType) -> None:
    found = scan(kernel, text_of(rows(8)), **ALL)
    assert {type(timed) for timed in found} == {TimedCall}
    assert {type(timed.call) for timed in found} == {dsh.Call}
    tools = [tool for timed in found for tool in timed.call.tools]
    assert {type(tool) for tool in tools} == {ToolTime}
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301 - our own


def test_rate_is_the_double_next_to_the_quotient(kernel: ModuleType) -> None:
    for output, gap in [(2**53 - 1, 7), (2**53 - 3, 3), (9, 7), (1, 2**53 - 2)]:
        stream = text_run(0, gap, "a", "b")
        made = [call({"outputTokens": output}, stream=stream)]
        (found,) = scan(kernel, Session("s", made).data())
        assert found.call.output_rate == output * 1000 / gap


def test_work_grows_with_the_log_only(kernel: ModuleType) -> None:
    """With a search for each attempt, or tool call, among all of them this would not end."""
    count = 20_000
    made: list[Any] = []
    for number in range(count):
        made.append(event("request/context", {"provider": "p", "model": "m"}))
        place = {"turn": 1, "step": 1, "callId": f"c{number}"}
        made.append(event("tool/call", place))
    stream = text_run(-1, 1, "a", "b")
    made += [attempt(stream, turn=number) for number in range(2, count)]
    made += [event("llm/retry-started", {"turn": 1, "step": 1})] * count
    made += [attempt(stream)] * count
    made += [answer("c1")] * count
    found = scan(kernel, Session("s", made).data(), **ALL)
    assert len(found) == 2 * count - 2
    assert found[-1].call.attempt == count


# --- files and open logs ---


@pytest.fixture(params=["plain", "zstd", "torn", "tail"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A log with calls, stored in several ways."""
    data = text_of(rows(11))
    lines = data.splitlines(keepends=True)
    if request.param == "zstd":
        batches = [lines[start : start + 5] for start in range(1, len(lines), 5)]
        data = zstd(lines[0], *map(b"".join, batches))
    elif request.param == "torn":
        data = zstd(lines[0], b"".join(lines[1:20]), b"".join(lines[20:]))[:-40]
    elif request.param == "tail":
        data = data[:-10]
    path = tmp_path / "log"
    path.write_bytes(data)
    return path


def test_file_has_the_calls_of_the_open_log(path: Path, kernel: ModuleType) -> None:
    with dsh.open(path) as log:
        expected = list(dsh.calls(log, gaps=True, auxiliary=True))
        compression = log.compression
    assert list(dsh.calls(path, gaps=True, auxiliary=True)) == expected
    found = kernel.CallReader(**ALL).read_file(path, generation=4)
    assert [timed.call for timed in found.calls] == expected
    assert expected
    assert found.compression == compression
    assert found.header == log.header


def sums_of(kernel: ModuleType, path: Path) -> Any:
    """Return the sums over a file, with the types of their numbers, or why there are none."""
    try:
        return repr(kernel.CallReader(**ALL).sum_file(path, generation=4))
    except dsh.DshCodecError as error:
        return type(error), error.line, error.offset, error.seq


def listed(kernel: ModuleType, path: Path) -> tuple[int, list[int], list[int]]:
    """Return the sums over the own calls that `read_file` lists."""
    calls = kernel.CallReader(**ALL).read_file(path, generation=4).calls
    own = [timed.call for timed in calls if timed.call.own]
    names = ("input", "output", "cache_read", "cache_write", "reasoning", "total")
    columns = [[getattr(found, name) for found in own] for name in names]
    known = [[value for value in column if value is not None] for column in columns]
    return (
        len(own),
        [sum(column) for column in known],
        [len(column) for column in known],
    )


def test_sums_are_those_of_the_listed_calls(path: Path, kernel: ModuleType) -> None:
    with dsh.open(path) as log:
        header, compression = log.header, log.compression
    found = kernel.CallReader(**ALL).sum_file(path, generation=4)
    assert found[:2] == (header, compression)
    count, sums, known = listed(kernel, path)
    assert found.sums == (count, tuple(sums), tuple(known))
    assert sums[0] > 0


def test_sums_leave_out_inherited_calls(kernel: ModuleType, tmp_path: Path) -> None:
    parent = Session("a", [call({"inputTokens": 1, "outputTokens": 1})])
    child = Session("b", [])
    child.fork(parent, 1)
    child.rows += [call({"inputTokens": 2, "reasoningTokens": 0}), attempt([])]
    chunk = {"type": "usage", "usage": {"outputTokens": 8}}
    record = {"type": "chunk", "time": 1, "chunk": chunk}
    child.rows.append(call({"outputTokens": 4}, stream=[record]))
    found = kernel.CallReader().sum_file(child.write(tmp_path), generation=4)
    assert found.sums == (3, (2, 8, 0, 0, 0, 0), (1, 1, 0, 0, 1, 0))
    assert type(found).__name__ == "TokenScan"


def test_files_are_summed_together(kernel: ModuleType, tmp_path: Path) -> None:
    files: dict[str, bytes] = {
        "a": PLAIN,
        "zstd": ZSTD,
        "b": text_of(rows(4)),
        "old": PLAIN.replace(b'"version":4', b'"version":3'),
        "damaged": PLAIN.replace(b'"seq":1', b'"seq":1,'),
        "c": text_of(rows(5)),
        "empty": b"",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    names = [*files, "missing"]
    paths = [str(tmp_path / name) for name in names]
    reader = kernel.CallReader(**ALL)
    found, left = reader.sum_files(paths, generation=4, compression="none")
    expected = [listed(kernel, tmp_path / name) for name in "abc"]
    refused = ["zstd", "old", "damaged", "empty", "missing"]
    assert [names[place] for place in left] == refused
    assert found.calls == sum(count for count, _, _ in expected)
    for column in range(6):
        assert found.sums[column] == sum(sums[column] for _, sums, _ in expected)
        assert found.known[column] == sum(known[column] for _, _, known in expected)
    assert repr(found) == repr(
        _pure.CallReader(**ALL).sum_files(paths, generation=4, compression="none")[0]
    )
    nothing, left = reader.sum_files([], generation=4, compression="zstd")
    assert (nothing, left) == ((0, (0,) * 6, (0,) * 6), [])
    with pytest.raises(ValueError, match="generation"):
        reader.sum_files(paths, generation=1, compression="none")


def test_sums_are_exact_beyond_64_bits(kernel: ModuleType, tmp_path: Path) -> None:
    names = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
    most = 2**53 - 1
    made = [call(dict.fromkeys(names, most)) for _ in range(600)]
    path = Session("s", made).write(tmp_path)
    found = kernel.CallReader().sum_file(path, generation=4).sums
    assert found.sums == (*[600 * most] * 4, 0, 2400 * most)
    assert found.sums[-1] > 2**64
    assert found.known == (600, 600, 600, 600, 0, 600)


def test_kernels_agree_about_sums_of_odd_values(tmp_path: Path) -> None:
    made = [rows(seed) for seed in range(10)]
    path = tmp_path / "log"
    read = 0
    for seed in range(300):
        path.write_bytes(text_of(spoiled(made[seed % len(made)], seed)))
        found = sums_of(_native, path)
        assert found == sums_of(_pure, path), seed
        if type(found) is str:
            read += 1
            count, sums, known = listed(_native, path)
            expected = (
                f"TokenSums(calls={count}, sums={tuple(sums)}, known={tuple(known)})"
            )
            assert found.endswith(f"sums={expected})"), seed
    assert read > 100


def test_sums_of_damaged_logs_are_those_of_the_listed_calls(tmp_path: Path) -> None:
    """Rows that no sum is made from are not parsed; what is wrong with them is told all the same."""
    path = tmp_path / "log"
    read = 0
    for seed in range(900):
        path.write_bytes(damaged(text_of(rows(seed % 30)), seed))
        found = sums_of(_native, path)
        if type(found) is str:
            read += 1
            count, sums, known = listed(_native, path)
            expected = (
                f"TokenSums(calls={count}, sums={tuple(sums)}, known={tuple(known)})"
            )
            assert found.endswith(f"sums={expected})"), seed
        else:
            with pytest.raises(found[0]) as caught:
                listed(_native, path)
            error = caught.value
            assert found[1:] == (error.line, error.offset, error.seq), seed
        if seed % 9 == 0:
            assert found == sums_of(_pure, path), seed
    assert 200 < read < 900


def test_reader_goes_on_after_a_refusal(kernel: ModuleType, tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(ZSTD)
    bad.write_bytes(ZSTD[:-40] + b"\0" * 40 + ZSTD)
    reader = kernel.CallReader()
    for _ in range(2):
        with pytest.raises(dsh.FrameError) as caught:
            reader.read_file(bad, generation=4)
        assert caught.value.path == str(bad)
        with pytest.raises(dsh.FrameError):
            reader.sum_file(bad, generation=4)
        assert len(reader.read_file(good, generation=4).calls) == 1
        assert reader.sum_file(good, generation=4).sums.calls == 1
    with pytest.raises(FileNotFoundError):
        reader.read_file(tmp_path / "none", generation=4)


def test_file_that_is_refused_has_the_error_of_the_open_log(tmp_path: Path) -> None:
    data = text_of(rows(2))
    errors = 0
    for seed in range(300):
        path = tmp_path / f"{seed}.jsonl"
        path.write_bytes(damaged(data, seed))
        found = dsh.calls(path)
        made = list(found)
        try:
            with dsh.open(path) as log:
                _, expected = read_on(log)
        except dsh.DshCodecError as error:
            expected = error
        if expected is None:
            assert not found.errors
            continue
        errors += 1
        assert not made
        (session,) = found.errors
        assert str(session.error) == str(expected)
        assert type(session.error) is type(expected)
    assert 10 < errors < 200


@pytest.mark.parametrize("generation", [2, 3])
def test_other_generation_is_refused(
    kernel: ModuleType, tmp_path: Path, generation: int
) -> None:
    path = tmp_path / "log"
    path.write_bytes(PLAIN)
    with pytest.raises(dsh.DshCodecError):
        kernel.CallReader().read_file(path, generation=generation)
    assert len(kernel.CallReader().read_file(path, generation=4).calls) == 1


@pytest.mark.parametrize("generation", [0, 1])
def test_generations_of_chunk_rows_are_refused(
    kernel: ModuleType, tmp_path: Path, generation: int
) -> None:
    with pytest.raises(ValueError, match="generation"):
        kernel.CallReader().read_file(tmp_path, generation=generation)
    with pytest.raises(ValueError, match="generation"):
        kernel.CallReader().sum_file(tmp_path, generation=generation)
    with pytest.raises(ValueError, match="generation"):
        kernel.CallScanner(generation=generation)


def test_calls_are_known_at_the_end_only(kernel: ModuleType) -> None:
    scanner = kernel.CallScanner()
    scanner.feed(PLAIN)
    with pytest.raises(ValueError, match="finish"):
        scanner.take_calls()
    scanner.finish()
    assert len(scanner.take_calls()) == 1
    assert scanner.take_calls() == []
    assert scanner.event_count == 5
    assert scanner.fed_bytes == len(PLAIN)


def test_limits_are_those_of_the_open_log(kernel: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(PLAIN)
    for limits in ({"max_row_bytes": 150}, {"max_depth": 3}):
        with pytest.raises(dsh.LimitExceededError):
            kernel.CallReader(**limits).read_file(path, generation=4)
        with dsh.open(PLAIN, **limits) as log:  # type: ignore[arg-type]
            found = dsh.calls(log)
            assert list(found) == []
        (session,) = found.errors
        assert isinstance(session.error, dsh.LimitExceededError)


def test_strict_log_stops_at_its_first_issue() -> None:
    bad = PLAIN.replace(b'"seq":4', b'"seq":5')
    with dsh.open(bad) as log:
        assert len(list(dsh.calls(log))) == 0
    rest = json.dumps({"type": "x", "seq": 9, "time": 1, "data": {}}).encode() + b"\n"
    lenient, strict = dsh.open(PLAIN + rest), dsh.open(PLAIN + rest, mode="strict")
    assert len(list(dsh.calls(lenient))) == 1
    assert lenient.result is not None
    assert lenient.result.scan.issue is not None
    found = dsh.calls(strict)
    assert list(found) == []
    assert isinstance(found.errors[0].error, dsh.SeqGapError)


def test_inherited_calls_are_marked(kernel: ModuleType) -> None:
    parent = Session("a", [call({"inputTokens": 1})])
    child = Session("b", [])
    child.fork(parent, 1)
    child.rows.append(call({"inputTokens": 2}))
    found = [timed.call for timed in scan(kernel, child.data())]
    assert [(each.session, each.input, each.own) for each in found] == [
        ("b", 1, False),
        ("b", 2, True),
    ]
    assert next(iter(dsh.calls(open_rows(parent.rows)))).own


def test_sessions_that_cannot_be_read_are_those_of_find(tmp_path: Path) -> None:
    """Calls do not read headers first; what is wrong with a session is told all the same."""
    good = Session("good", [call({"inputTokens": 1})]).write(tmp_path)
    old = Session("old", [call({"inputTokens": 2})], generation=1).write(tmp_path)
    odd = tmp_path / "single.txt"
    odd.write_bytes(PLAIN)
    files = {
        "newer/session.v5.jsonl": PLAIN.replace(b'"version":4', b'"version":5'),
        "lies/session.v4.jsonl": PLAIN.replace(b'"version":4', b'"version":9'),
        "other/session.v3.jsonl": PLAIN,
        "empty/session.v4.jsonl": b"",
        "mixed/session.v4.jsonl": ZSTD,
        "plain/session.v4.jsonl.zstd": PLAIN,
        "both/session.v4.jsonl": PLAIN,
        "both/session.v4.jsonl.zstd": ZSTD,
        "rest/session.v4.jsonl": PLAIN,
        "rest/session.v3.jsonl": b"x",
        "rest/note": b"x",
        "bad/session.v4.jsonl.zstd": ZSTD[:-9] + b"\0" * 9,
    }
    for name, data in files.items():
        path = tmp_path / "broken" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    found = dsh.calls(tmp_path)
    assert len(list(found)) == 3
    assert found.log_count == 3
    expected = {}
    for session in dsh.find(tmp_path, scan=True):
        if session.error is not None:
            expected[session.path] = session._replace(error=None), str(session.error)
    assert {s.path: (s._replace(error=None), str(s.error)) for s in found.errors} == (
        expected
    )
    assert len(expected) == 8
    usage = dsh.usage([good, old, odd, tmp_path / "broken" / "rest"])
    assert (usage.log_count, usage.errors) == (4, ())
    whole = dsh.usage(tmp_path)
    by = dsh.usage(tmp_path, by=("session", "project", "lineage"))
    assert (whole.totals, whole.log_count) == (by.totals, by.log_count)
    assert [(s.path, str(s.error)) for s in whole.errors] == [
        (s.path, str(s.error)) for s in by.errors
    ]
    assert [row.key[0] for row in by] == ["good", "old", "s-1"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipe_in_the_place_of_a_log_is_not_waited_for(
    kernel: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "session.v4.jsonl"
    os.mkfifo(path)
    for place in (path, tmp_path):
        with pytest.raises(OSError, match="no regular file"):
            kernel.CallReader().read_file(place, generation=4)
