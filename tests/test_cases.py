"""Cases from the field: what their `checks` and `facts` state, as far as it is built."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec.corpus import own_from
from dsh_codec.find import log_files
from dsh_codec.messages import state
from small_logs import seqs_and_error, shared_folder

if TYPE_CHECKING:
    from dsh_codec.usage import Totals

CASES = shared_folder("DSH_CASES", "cases")
FOLDERS = sorted(path.parent for path in CASES.glob("*/case.json"))


@functools.cache
def case(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "case.json").read_text("utf-8"))
    return loaded


def checks(*members: str) -> list[Any]:
    """Return the files with one of these members, as parameters of a test."""
    return [
        pytest.param(folder / name, wanted, id=f"{folder.name}/{name}")
        for folder in FOLDERS
        for name, wanted in (case(folder).get("checks") or {}).items()
        if any(member in wanted for member in members)
    ]


def facts(*members: str) -> list[Any]:
    """Return the cases with one of these facts, as parameters of a test."""
    return [
        pytest.param(folder, case(folder)["facts"], id=folder.name)
        for folder in FOLDERS
        if any(member in (case(folder).get("facts") or {}) for member in members)
    ]


def plaintext(data: bytes) -> bytes:
    """Return the text of the plain file or of all complete frames."""
    if data[:4] != b"\x28\xb5\x2f\xfd":
        return data
    scan = dsh.kernel.scan_frames(data)
    reader = dsh.kernel.FrameReader()
    reader.feed(data[: scan.frames[-1][1] if scan.frames else 0])
    pieces = []
    while (piece := reader.read()) is not None:
        pieces.append(piece.data)
    return b"".join(pieces)


def the_log(folder: Path) -> Path:
    """Return the only log of a case."""
    (name,) = case(folder)["input"]
    return folder / str(name)


def outcome(function: Any) -> Any:
    try:
        return function()
    except dsh.DshCodecError as error:
        return error


def agree_on_refusal(expected: Any, found: Any, data: bytes, mode: Any) -> None:
    """Check the category; relationships (L2) are part of the reference's scan only."""
    if not isinstance(found, Exception):
        found = dsh.check(data, level="read", mode=mode).error
    unsupported = isinstance(found, dsh.NewerFormatError | dsh.UnsupportedError)
    assert unsupported == (expected["error"] == "unsupported")
    assert unsupported or isinstance(found, dsh.CorruptLogError)


@pytest.mark.parametrize(("path", "wanted"), checks("name_generation"))
def test_generation_of_the_name(path: Path, wanted: dict[str, Any]) -> None:
    compression: Any = "zstd" if path.name.endswith(".zstd") else "none"
    found = dsh.parse_log_filename(path.name, compression=compression)
    assert found == wanted["name_generation"]


@pytest.mark.parametrize(("path", "wanted"), checks("frames", "frames_error"))
def test_frames(path: Path, wanted: dict[str, Any]) -> None:
    data = path.read_bytes()
    if "frames_error" in wanted:
        with pytest.raises(dsh.FrameError) as caught:
            dsh.kernel.scan_frames(data)
        assert caught.value.offset == wanted["frames_error"]["offset"]
    else:
        scan = dsh.kernel.scan_frames(data)
        assert (len(scan.frames), scan.torn_start) == (
            wanted["frames"],
            wanted["torn_start"],
        )


@pytest.mark.parametrize(("path", "wanted"), checks("plain_bytes"))
def test_plain_bytes(path: Path, wanted: dict[str, Any]) -> None:
    assert len(plaintext(path.read_bytes())) == wanted["plain_bytes"]


@pytest.mark.parametrize(("path", "wanted"), checks("before_fault"))
def test_what_stands_before_a_fault(path: Path, wanted: dict[str, Any]) -> None:
    before = wanted["before_fault"]
    with dsh.open(path) as log:
        seen, error = seqs_and_error(log)
    assert isinstance(error, dsh.FrameError)
    assert (error.offset, error.frame) == (before["offset"], before["frames"])
    if log.generation == 4:
        assert len(seen) == before["event_count"]
    places = {before["offset"], wanted.get("frames_error", {}).get("offset")}
    assert dsh.check(path).findings[0].offset in places


@pytest.mark.parametrize(("path", "wanted"), checks("zstd_log"))
def test_recoverable_read_of_a_zstd_file(path: Path, wanted: dict[str, Any]) -> None:
    expected = wanted["zstd_log"]
    data = path.read_bytes()

    def read() -> dict[str, Any]:
        log = dsh.open(data)
        seqs = [event.seq for event in log]
        assert log.result is not None
        return {
            "event_count": len(seqs),
            "inherited_event_count": log.result.scan.inherited_event_count,
            "torn_truncate_to": log.result.truncate_to,
            "recovered_tail": seqs[len(seqs) - log.result.recovered_count :],
        }

    found = outcome(read)
    if "ok" in expected:
        assert found == expected["ok"]
    else:
        agree_on_refusal(expected, found, data, "recoverable")


@pytest.mark.parametrize("mode", ["strict", "recoverable"])
@pytest.mark.parametrize(("path", "wanted"), checks("scan_strict"))
def test_scan_of_the_text(path: Path, wanted: dict[str, Any], mode: Any) -> None:
    expected = wanted[f"scan_{mode}"]
    text = plaintext(path.read_bytes())
    found = outcome(lambda: dsh.open(text, mode=mode).scan().scan)
    if "ok" in expected:
        assert not isinstance(found, Exception), found
        assert found.event_count == expected["ok"]["event_count"]
        assert found.committed_bytes == expected["ok"]["committed_bytes"]
    else:
        agree_on_refusal(expected, found, text, mode)


@pytest.mark.parametrize(("path", "wanted"), checks("decode"))
def test_decoding_of_generations_0_and_1(path: Path, wanted: dict[str, Any]) -> None:
    expected = wanted["decode"]
    text = plaintext(path.read_bytes())
    assert text.count(b"\n") - 1 == wanted["rows"]
    found = outcome(lambda: dsh.open(text).scan().scan)
    if "ok" in expected:
        assert not isinstance(found, Exception), found
        assert found.event_count == expected["ok"]["event_count"]
        assert found.committed_bytes == expected["ok"]["committed_bytes"]
        return
    assert isinstance(found, dsh.CorruptLogError)
    issue = expected["issue"]
    if issue["what"] == "header":
        assert isinstance(found, dsh.HeaderError)
        return
    assert found.line == issue["row"] + 1
    if issue["what"] == "seq":
        assert isinstance(found, dsh.SeqGapError)
        assert (found.expected, found.got) == (issue["expected"], issue["got"])
    seen, error = seqs_and_error(dsh.open(text))
    assert isinstance(error, dsh.RowError)
    assert len(seen) == expected["before_issue"]["event_count"]
    assert found.offset == expected["before_issue"]["committed_bytes"]


@pytest.mark.parametrize(("folder", "wanted"), facts("row"))
def test_error_carries_the_numbers(folder: Path, wanted: dict[str, Any]) -> None:
    with dsh.open(the_log(folder), mode="strict") as log:
        seen, error = seqs_and_error(log)
    assert isinstance(error, dsh.RowError)
    assert error.line == wanted["row"] + 1
    assert len(seen) == wanted["events_before"]
    if "expected" in wanted:
        assert isinstance(error, dsh.SeqGapError)
        assert (error.expected, error.got) == (wanted["expected"], wanted["got"])


@pytest.mark.parametrize(("folder", "wanted"), facts("events"))
def test_number_of_events(folder: Path, wanted: dict[str, Any]) -> None:
    expected = wanted["events"]
    if not isinstance(expected, dict):
        expected = {the_log(folder).name: expected}
    for name, count in expected.items():
        with dsh.open(folder / name) as log:
            assert len(list(log)) == count == len(log)


def places(folder: Path, wanted: dict[str, Any]) -> Any:
    """Return the root of several sessions, or the log of one."""
    return folder if "sessions" in wanted else the_log(folder)


def members(call: dsh.Call) -> dict[str, Any]:
    """Return a call as the facts spell it."""
    assert call.tools is not None
    assert call.gaps is not None
    row = call._asdict()
    row["tools"] = [tool._asdict() for tool in call.tools]
    row["gaps"] = list(call.gaps)
    return row


def columns_of(totals: Totals) -> dict[str, Any]:
    row = totals._asdict()
    del row["cost"], row["unpriced"]
    return row


@pytest.mark.parametrize(("folder", "wanted"), facts("calls"))
def test_calls(folder: Path, wanted: dict[str, Any]) -> None:
    """Spec 80 §3 to §5: every column of every row, and no row more."""
    rows = dsh.calls(places(folder, wanted), gaps=True)
    found = list(map(members, rows))
    assert not rows.errors
    assert len(found) == len(wanted["calls"])
    for row, expected in zip(found, wanted["calls"], strict=True):
        # The facts have these two only where they say something.
        for name in ("tools", "gaps"):
            if name not in expected:
                del row[name]
        assert row == expected


@pytest.mark.parametrize(("folder", "wanted"), facts("totals"))
def test_totals(folder: Path, wanted: dict[str, Any]) -> None:
    """Spec 80 §4: over own calls."""
    found = dsh.usage(places(folder, wanted), by="session")
    assert columns_of(found.totals) == wanted["totals"]
    names = {"input": "input", "output": "output", "total": "total"} | {
        "input_total": "input",
        "reasoning": "reasoning",
    }
    for name, column in names.items():
        if name in wanted:
            assert getattr(found.totals, column) == wanted[name]
    by_session = {row.key[0]: columns_of(row.totals) for row in found}
    for session in wanted.get("sessions", ()):
        assert by_session.pop(session["session"]) == session["totals"]
    assert "sessions" not in wanted or not by_session


def test_usage_object_of_a_call() -> None:
    """The one fact that is spelt as the log spells it."""
    (folder,) = [folder for folder in FOLDERS if "usage" in (case(folder)["facts"])]
    wanted = case(folder)["facts"]["usage"]
    (call,) = dsh.calls(the_log(folder))
    assert (call.input, call.output, call.cache_read, call.cache_write) == (
        wanted["inputTokens"],
        wanted["outputTokens"],
        wanted["cacheReadTokens"],
        wanted["cacheWriteTokens"],
    )


@pytest.mark.parametrize(("folder", "wanted"), facts("child_own"))
def test_own_calls_of_a_fork(folder: Path, wanted: dict[str, Any]) -> None:
    child = wanted["sessions"][1]
    found = dsh.usage(folder / child["file"]).totals
    assert {"input": found.input, "output": found.output} == wanted["child_own"]
    with dsh.open(folder / child["file"]) as log:
        assert own_from(log) == wanted["cut_seq"]


@pytest.mark.parametrize(
    ("folder", "wanted"), facts("stream_texts", "stream_texts_json")
)
def test_stream_texts(folder: Path, wanted: dict[str, Any]) -> None:
    expected = wanted.get("stream_texts") or json.loads(wanted["stream_texts_json"])
    with dsh.open(the_log(folder)) as log:
        found = [{"seq": a.seq, "text": a.stream.text} for a in log.attempts()]
        told = [{"seq": seq, "text": t} for seq, t in dsh.text(log).stream_texts()]
    assert found == told == expected


@pytest.mark.parametrize(
    ("folder", "wanted"), facts("human_prompts", "human_prompts_json")
)
def test_prompts_and_answers(folder: Path, wanted: dict[str, Any]) -> None:
    """Spec 80 §6."""
    with dsh.open(the_log(folder)) as log:
        texts = dsh.text(log)
        prompts = [passage.text for passage in texts.human_prompts()]
        answers = [
            {"seq": p.seq, "text": p.text, "interrupted": p.is_interrupted}
            for p in texts.answers()
        ]
    if "human_prompts" in wanted:
        assert prompts == wanted["human_prompts"]
        assert answers == wanted["answers"]
    else:
        assert prompts == json.loads(wanted["human_prompts_json"])
        assert answers == json.loads(wanted["answers_json"])


@pytest.mark.parametrize(("folder", "wanted"), facts("surface"))
def test_surface(folder: Path, wanted: dict[str, Any]) -> None:
    with dsh.open(the_log(folder)) as log:
        assert dsh.text(log).surface() == wanted["surface"]
        # What a compaction shadowed stays in the history, and is found.
        assert len(list(dsh.text(log).history())) == len(log)
        answer = wanted["answers"][0]
        hits = list(dsh.search(log, re.escape(answer["text"])))
        assert hits[0].id == f"{log.id}:{answer['seq']}"


@pytest.mark.parametrize(("folder", "wanted"), facts("pending_tool_calls"))
def test_open_tail(folder: Path, wanted: dict[str, Any]) -> None:
    with dsh.open(the_log(folder)) as log:
        now = state(log)
        pairs = dsh.text(log).tool_pairs()
    assert [call.call_id for call in now.pending_calls] == wanted["pending_tool_calls"]
    assert (now.turn, now.step) == (wanted["open_turn"], wanted["open_step"])
    unanswered = [pair.call_id for pair in pairs if pair.result_seq is None]
    assert unanswered == wanted["pending_tool_calls"]


@pytest.mark.parametrize(("folder", "wanted"), facts("rows"))
def test_seeded_log_without_marker(folder: Path, wanted: dict[str, Any]) -> None:
    """Spec 80 §2: listed with its error; no rows, no totals."""
    rows = dsh.calls(folder)
    assert len(list(rows)) == wanted["rows"]
    assert wanted["error"] == "corrupt"
    assert [type(session.error) for session in rows.errors] == [dsh.RowError]
    found = dsh.usage(folder)
    assert found.totals.calls == 0
    assert [session.path for session in found.errors] == [str(the_log(folder))]
    (session,) = dsh.find(folder, scan=True)
    assert isinstance(session.error, dsh.CorruptLogError)
    assert session.id is not None


@pytest.mark.parametrize(("folder", "wanted"), facts("before_bytes"))
def test_rewritten_file(folder: Path, wanted: dict[str, Any]) -> None:
    """What the two files hold; following them is another module's matter."""
    before, after = (folder / name for name in sorted(case(folder)["input"])[::-1])
    assert before.stat().st_size == wanted["before_bytes"]
    assert after.stat().st_size == wanted["after_bytes"]
    common = wanted["common_prefix_bytes"]
    assert before.read_bytes()[:common] == after.read_bytes()[:common]
    with dsh.open(before, mode="strict") as log:
        assert log.scan().truncate_to == wanted["cursor"]["offset"]
        next_seq = wanted["cursor"]["next_seq"]
        assert len(log) == next_seq
    with dsh.open(after) as log:
        assert len(log[next_seq:]) == wanted["new_events"]


@pytest.mark.parametrize(("folder", "wanted"), facts("sessions"))
def test_sessions_of_a_root(folder: Path, wanted: dict[str, Any]) -> None:
    found = {session.id: session for session in dsh.find(folder, scan=True)}
    for expected in wanted["sessions"]:
        session = found.pop(expected["session"])
        assert session.error is None
        assert session.path == str(folder / expected["file"])
        assert session.generation == expected["generation"]
        assert session.parent == expected["parent"]
        assert session.lineage == expected["lineage"]
        assert session.retained == tuple(
            str(folder / name) for name in expected["retained"]
        )
        assert session.scan is not None
        assert session.scan.scan.event_count == expected["events"]
        assert session.header is not None
        assert session.header.declared_cut == expected["declared_cut"]
        with dsh.open(session.path) as log:
            assert own_from(log) == expected["cut"]
            own = list(dsh.text(log).history())
            summary = dsh.summarize(log)
        assert len(own) == expected["own_events"]
        assert summary.own_from == expected["cut"]
        totals = expected["totals"]
        for name in ("input", "output", "cache_read", "cache_write", "reasoning"):
            assert getattr(summary.tokens, name) == totals[name]
            assert summary.tokens.unknown[name] == totals["unknown"][name]
        assert sum(summary.attempts.values()) == totals["calls"]
    assert not found


@pytest.mark.parametrize(("folder", "wanted"), facts("leftovers"))
def test_leftovers(folder: Path, wanted: dict[str, Any]) -> None:
    (session,) = dsh.find(folder)
    names = {Path(path).name for path in session.leftovers} - {"case.json"}
    assert names == set(wanted["leftovers"])
    assert len(log_files(folder)) == 1


@pytest.mark.parametrize(
    ("folder", "wanted"), facts("highest_supported", "name_generation")
)
def test_identity_and_newer_formats(folder: Path, wanted: dict[str, Any]) -> None:
    path = the_log(folder)
    if "highest_supported" in wanted:
        with pytest.raises(dsh.NewerFormatError) as newer:
            dsh.open(path)
        assert newer.value.found == wanted["version"]
        assert newer.value.supported == wanted["highest_supported"]
        assert dsh.check(path).status == "newer"
    else:
        with pytest.raises(dsh.IdentityError):
            dsh.open(path)
    (session,) = dsh.find(folder)
    assert type(session.error) in (dsh.IdentityError, dsh.NewerFormatError)
    rows = dsh.calls(folder)
    assert not list(rows)
    assert len(rows.errors) == 1


@pytest.mark.parametrize(("path", "wanted"), checks("project_keys"))
def test_project_keys(path: Path, wanted: dict[str, Any]) -> None:
    rows = json.loads(path.read_text("utf-8"))
    assert len(rows) == wanted["rows"]
    agreed = sum(
        dsh.project_key(row["cwd"]) == row["project_directory"] for row in rows
    )
    assert agreed == wanted["project_keys"]
