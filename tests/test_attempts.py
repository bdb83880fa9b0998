"""Attempts of all generations in one view. Spec: 80, 50 §5."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from small_logs import DEMO, HEADER_V0, PLAIN, seqs_and_error, zstd

if TYPE_CHECKING:
    from pathlib import Path


def log_of(*rows: dict[str, Any], header: bytes = HEADER_V0) -> dsh.Log:
    """Return a log of generation 0 with these rows; seqs and times are filled in."""
    lines = [header]
    seq = 0
    for row in rows:
        if "seq0" in row:
            row = {
                "type": row["type"],
                "seq0": seq,
                "time0": 100 + seq,
                "data": row["data"],
            }
            members = row["data"].get("texts") or row["data"]["args"]
            seq += len(members)
        else:
            row = {"seq": seq, "time": 100 + seq, **row}
            seq += 1
        lines.append(json.dumps(row).encode() + b"\n")
    return dsh.open(b"".join(lines))


def chunk(turn: int, step: int, text: str) -> dict[str, Any]:
    delta = {"type": "text-delta", "index": 0, "text": text}
    return {
        "type": "assistant/chunk",
        "data": {"turn": turn, "step": step, "chunk": delta},
    }


def finish(turn: int, step: int, kind: str) -> dict[str, Any]:
    last = {"type": "finish", "reason": {"kind": kind}}
    return {
        "type": "assistant/chunk",
        "data": {"turn": turn, "step": step, "chunk": last},
    }


def packed(turn: int, step: int, *texts: str) -> dict[str, Any]:
    data = {"turn": turn, "step": step, "index": 0, "dt": [1] * (len(texts) - 1)}
    return {"type": "text-chunks", "seq0": 0, "data": data | {"texts": list(texts)}}


def message(
    turn: int, step: int, seqs: list[Any] | None, **more: Any
) -> dict[str, Any]:
    content = [{"type": "text", "text": "answer"}]
    body = {
        "id": "m",
        "role": "assistant",
        "content": content,
        "source": {"kind": "model"},
    }
    row: dict[str, Any] = {"type": "assistant/message", "surfaceOp": "append"}
    row["data"] = {"turn": turn, "step": step, "message": body, **more}
    return row if seqs is None else row | {"sourceEventSeqs": seqs}


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data}


def outline(log: dsh.Log) -> list[tuple[Any, ...]]:
    """Return turn, step, number, outcome, seq and text of each attempt."""
    return [
        (a.turn, a.step, a.number, a.outcome, a.seq, a.stream.text)
        for a in log.attempts()
    ]


def test_attempt_of_generation_4() -> None:
    """Spec 80 §3: a settlement that was not accepted."""
    (attempt,) = dsh.open(PLAIN).attempts()
    assert attempt.outcome == "failed"
    assert (attempt.turn, attempt.step, attempt.number, attempt.seq) == (1, 1, 1, 2)
    assert attempt.time == 1010
    assert attempt.finish == "error"
    assert attempt.usage is None
    assert attempt.content is None
    assert attempt.message is None
    assert attempt.event is not None
    assert attempt.event.type == "assistant/attempt"
    assert attempt.stream.text == "ab"
    assert attempt.stream.chunk_count == 3
    assert attempt.stream.first_token_time == 1003
    assert [timed.time for timed in attempt.stream.expand()] == [1003, 1005, 1009]
    assert list(attempt.stream.iter_expand()) == attempt.stream.expand()


def test_message_takes_the_chunks_it_cites() -> None:
    """Spec 50 §5.4; chunk rows and packed rows make one run (§5.8)."""
    usage = {"inputTokens": 1, "outputTokens": 2}
    log = log_of(
        packed(1, 1, "a", "b"),
        chunk(1, 1, "c"),
        event("sandbox/mode", mode="x"),
        chunk(1, 1, "d"),
        message(1, 1, [[0, 2], 4], usage=usage),
    )
    (attempt,) = log.attempts()
    assert attempt.stream.records == [
        {
            "type": "text-chunks",
            "time0": 100,
            "index": 0,
            "dt": [1, 1, 2],
            "texts": ["a", "b", "c", "d"],
        }
    ]
    assert attempt.outcome == "message"
    assert attempt.usage == usage
    assert attempt.content == [{"type": "text", "text": "answer"}]
    assert attempt.seq == 5


def test_interrupted_message() -> None:
    (attempt,) = log_of(
        chunk(1, 1, "a"), message(1, 1, [0], interrupted=True)
    ).attempts()
    assert attempt.outcome == "interrupted"


@pytest.mark.parametrize(
    "closer", ["llm/retry", "llm/retry-started", "step/end", "turn/end"]
)
def test_group_that_a_row_closes_has_failed(closer: str) -> None:
    """Spec 50 §5.2 step 11, 80 §3; the seq is that of the last chunk."""
    log = log_of(
        chunk(1, 1, "a"),
        chunk(1, 1, "b"),
        event(closer, turn=1, step=1),
        chunk(1, 1, "c"),
        message(1, 1, [3]),
    )
    assert outline(log) == [(1, 1, 1, "failed", 1, "ab"), (1, 1, 2, "message", 4, "c")]


def test_chunk_of_another_step_closes_the_group() -> None:
    """Spec 50 §5.3."""
    log = log_of(chunk(1, 1, "a"), chunk(1, 2, "b"))
    assert outline(log) == [(1, 1, 1, "failed", 0, "a"), (1, 2, 1, "open", 1, "b")]


def test_only_a_finish_chunk_of_its_own_row_ends_a_group() -> None:
    """Spec 50 §5.3."""
    log = log_of(chunk(1, 1, "a"), finish(1, 1, "stop"), chunk(1, 1, "b"))
    assert outline(log) == [(1, 1, 1, "failed", 1, "a"), (1, 1, 2, "open", 2, "b")]


@pytest.mark.parametrize(
    ("kind", "outcome"), [("error", "failed"), ("aborted", "failed"), ("stop", "open")]
)
def test_group_at_the_end_is_open_unless_it_finished_badly(
    kind: str, outcome: str
) -> None:
    """Spec 80 §3."""
    (attempt,) = log_of(chunk(1, 1, "a"), finish(1, 1, kind)).attempts()
    assert attempt.outcome == outcome
    assert attempt.finish == kind
    assert attempt.event is None


def test_turn_start_closes_a_group_only_in_an_open_turn() -> None:
    """Spec 50 §5.2 steps 3, 4 and 12."""
    start = event("turn/start", turn=1)
    assert outline(log_of(chunk(1, 1, "a"), start, chunk(1, 1, "b"))) == [
        (1, 1, 1, "open", 2, "ab")
    ]
    log = log_of(start, chunk(1, 1, "a"), event("turn/start", turn=2), chunk(1, 1, "b"))
    assert [row[3] for row in outline(log)] == ["failed", "open"]


def test_message_takes_an_earlier_group_that_it_cites() -> None:
    """Spec 80 intro; the order of the field case `non-adjacent settlements`."""
    log = log_of(
        chunk(1, 1, "a"), chunk(1, 2, "b"), message(1, 1, [0]), message(1, 2, [1])
    )
    assert outline(log) == [(1, 1, 1, "message", 2, "a"), (1, 2, 1, "message", 3, "b")]


def test_group_is_taken_once_and_by_an_exact_citation_only() -> None:
    """Spec 80 intro: any other message has an empty stream."""
    log = log_of(
        chunk(1, 1, "a"),
        chunk(1, 1, "b"),
        event("llm/retry"),
        message(1, 1, [0]),
        message(1, 1, [1, 0]),
        message(1, 1, [0, 1]),
        message(1, 1, [0, 1]),
    )
    assert [(row[3], row[4], row[5]) for row in outline(log)] == [
        ("message", 3, ""),
        ("message", 4, ""),
        ("message", 5, "ab"),
        ("message", 6, ""),
    ]


@pytest.mark.parametrize("seqs", [None, [], [0, 1]])
def test_message_that_does_not_cite_the_open_group_has_an_empty_stream(
    seqs: list[int] | None,
) -> None:
    """Spec 50 §5.4, where migration refuses; 80: nothing is refused."""
    log = log_of(chunk(1, 1, "a"), event("x"), message(1, 1, seqs))
    assert outline(log) == [(1, 1, 1, "failed", 0, "a"), (1, 1, 2, "message", 2, "")]


def test_chunks_that_packing_refuses_stay_raw() -> None:
    """Spec 80 intro: nothing is refused."""
    bad = {
        "type": "assistant/chunk",
        "data": {"turn": 1, "step": 1, "chunk": {"type": "?"}},
    }
    worse = {"type": "assistant/chunk", "data": 3}
    (first, second) = log_of(chunk(1, 1, "a"), bad, chunk(1, 1, "b"), worse).attempts()
    kinds = [record["type"] for record in first.stream.records]
    assert kinds == ["text-chunks", "chunk", "text-chunks"]
    assert first.stream.chunk_count == 3
    assert second.turn is None


def test_old_spelling_of_a_message_has_content() -> None:
    """Spec 50 §4.5."""
    row = message(1, 1, None)
    row["data"] = {"turn": 1, "step": 1, "content": ["old"], "provenance": {}}
    (attempt,) = log_of(row).attempts()
    assert attempt.content == ["old"]


def test_settlement_without_stream_has_an_empty_one() -> None:
    """Spec 80 §3; U1: the usage is then the message's."""
    row = message(1, 1, None, usage={"inputTokens": 5})
    line = json.dumps({"seq": 5, "time": 1, **row}).encode() + b"\n"
    *_, attempt = dsh.open(PLAIN + line).attempts()
    assert attempt.stream.records == []
    assert attempt.usage == {"inputTokens": 5}
    assert attempt.finish is None


def test_attempts_before_damage_come_first() -> None:
    data = zstd(PLAIN[: PLAIN.index(b"\n") + 1], PLAIN[PLAIN.index(b"\n") + 1 :])
    bad = data + zstd(b"x\n")
    seen, error = seqs_and_error(dsh.open(bad).attempts())
    assert isinstance(error, dsh.RowError)
    assert seen == [2]


def read(name: str) -> list[dsh.Attempt]:
    with dsh.open(DEMO / name) as log:
        return list(log.attempts())


@pytest.mark.parametrize("name", ["v0", "v0-packed", "v1", "v2", "v3", "v4-plain"])
def test_all_generations_tell_the_same_story(name: str) -> None:
    """Demo logs: one conversation, written in every generation."""
    expected, attempts = read("v4"), read(name)
    assert len(attempts) == len(expected) > 1
    for ours, theirs in zip(attempts, expected, strict=True):
        assert ours[:4] == theirs[:4]
        assert ours.stream.records == theirs.stream.records
        assert (ours.content, ours.usage, ours.finish) == (
            theirs.content,
            theirs.usage,
            theirs.finish,
        )


@pytest.mark.parametrize("path", sorted(DEMO.iterdir()), ids=lambda path: path.name)
def test_demo_streams_expand_pack_and_assemble(path: Path) -> None:
    """Spec 20 §3, §4, §7."""
    with dsh.open(path) as log:
        attempts = list(log.attempts())
    assert attempts
    for attempt in attempts:
        chunks = attempt.stream.expand()
        assert dsh.pack(chunks) == attempt.stream.records
        assert len(chunks) == attempt.stream.chunk_count
        if attempt.outcome == "message":
            assert dsh.assemble(attempt.stream.records).blocks == attempt.content
