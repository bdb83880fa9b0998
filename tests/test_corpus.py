"""Logs that the released runtimes wrote. Spec: 20 §7, 70; the issue, "Show"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dsh_codec as dsh
from small_logs import shared_folder

CORPUS = shared_folder("DSH_CORPUS", "corpus", "real")
LOGS: list[dict[str, Any]] = json.loads((CORPUS / "index.json").read_text("utf-8"))[
    "logs"
]


def ids(entry: dict[str, Any]) -> str:
    return str(entry["path"])


@pytest.mark.parametrize("entry", LOGS, ids=ids)
def test_log_agrees_with_the_index(entry: dict[str, Any]) -> None:
    """Rows, frames, torn, format; rows of a torn frame are not counted there."""
    with dsh.open(CORPUS / entry["path"]) as log:
        result = log.scan(check_streams=True)
        assert log.generation == entry["format"]
        assert log.compression == entry["compression"]
        assert log.id == entry["session"]
        assert log.file_bytes == entry["bytes"]
    assert result.frame_count == entry["frames"]
    assert (result.truncate_to is not None) == entry["torn"]
    if result.torn_start is not None:
        # The index's `torn_frame_offset` is not compared: no frame starts at most of them.
        data = (CORPUS / entry["path"]).read_bytes()
        assert data.rfind(b"\x28\xb5\x2f\xfd") == result.torn_start
    assert result.scan.issue is None
    assert result.scan.stream_fault_count == 0
    with dsh.open(CORPUS / entry["path"], mode="strict") as log:
        events = list(log)
        assert log.result is not None
        assert log.result.scan.row_count == entry["rows"] - 1
    for member in ("isSeeded", "origin", "parentSession"):
        if member in entry:
            assert log.header.fields.get(member) == entry[member]
    assert log.header.declared_cut == entry.get("seedLength")
    last = entry["last_row"]
    if last.endswith("-chunks"):
        last = "assistant/chunk"
    assert (events[-1].type if events else "session") == last
    assert dsh.check(CORPUS / entry["path"]).scan == result


@pytest.mark.parametrize("entry", LOGS, ids=ids)
def test_streams_expand_pack_and_assemble(entry: dict[str, Any]) -> None:
    """Every stream expands and packs to equal records; every settled message is its stream."""
    with dsh.open(CORPUS / entry["path"]) as log:
        for attempt in log.attempts():
            records = attempt.stream.records
            chunks = attempt.stream.expand()
            assert len(chunks) == attempt.stream.chunk_count
            assert dsh.pack(chunks) == records
            if attempt.message is None or not records:
                continue
            assembled = dsh.assemble(records)
            if attempt.outcome == "interrupted":
                assert assembled.interrupted_blocks == attempt.content
            else:
                assert assembled.blocks == attempt.content
            assert attempt.event is not None
            assert assembled.usage == attempt.event.data.get("usage")
            replay_state = attempt.message["source"].get("replayState")
            assert assembled.replay_state == replay_state


def migrated() -> list[Any]:
    """Return pairs of a source generation and its migration by the real harness."""
    pairs = []
    by_path = {entry["path"]: entry for entry in LOGS}
    for entry in LOGS:
        if entry.get("role") != "migrated":
            continue
        folder = Path(entry["path"]).parent.parent
        for path, source in by_path.items():
            if Path(path).parent == folder and source.get("role") == "source":
                pairs.append(pytest.param(path, entry["path"], id=path))
    return pairs


@pytest.mark.parametrize(("source", "target"), migrated())
def test_attempts_are_those_of_the_migrated_log(source: str, target: str) -> None:
    """Spec 80 intro: grouped from chunk rows as migration groups them (50 §5)."""
    with dsh.open(CORPUS / source) as log:
        ours = list(log.attempts())
    with dsh.open(CORPUS / target) as log:
        theirs = list(log.attempts())
    assert [(a.turn, a.step, a.number) for a in ours] == [
        (a.turn, a.step, a.number) for a in theirs
    ]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.outcome == other.outcome or (mine.outcome, other.outcome) == (
            "open",
            "failed",
        )
        assert mine.stream.records == other.stream.records
        assert mine.finish == other.finish
        assert mine.usage == other.usage
