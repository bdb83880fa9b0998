"""A deterministic model from a recorded session. Spec: 60 §8."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec.live import AgentLifecycle
from dsh_codec.replay import (
    Recorded,
    ReplayAttempt,
    ReplayCancelled,
    ReplayFailure,
    ReplayModel,
)
from dsh_codec.sidecar import SETTLEMENTS, split
from dsh_codec.sidecar_file import Sidecar
from dsh_codec.writer import Writer
from small_logs import shared_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CORPUS = shared_folder("DSH_CORPUS", "corpus", "real")
LOGS: list[dict[str, Any]] = json.loads((CORPUS / "index.json").read_text("utf-8"))[
    "logs"
]
CURRENT = [entry["path"] for entry in LOGS if entry["format"] == 4]

HEADER = (
    b'{"type":"session","version":4,"id":"s","createdAt":1,"isSeeded":false,'
    b'"delegationDepth":0}\n'
)


def text_run(*texts: str, start: int = 100, gap: int = 5) -> dict[str, Any]:
    return {
        "type": "text-chunks",
        "time0": start,
        "index": 0,
        "dt": [gap] * (len(texts) - 1),
        "texts": list(texts),
    }


def finish(kind: str, time: int = 200) -> dict[str, Any]:
    chunk = {"type": "finish", "reason": {"kind": kind}}
    return {"type": "chunk", "time": time, "chunk": chunk}


def settlement(
    kind: str, turn: int, step: int, stream: list[Any], **more: Any
) -> dict[str, Any]:
    data: dict[str, Any] = {"turn": turn, "step": step}
    envelope: dict[str, Any] = {}
    if kind == "message":
        content = more.pop("content", [])
        source = {"kind": "model", "provider": "p", "model": "m"}
        source |= more.pop("source", {})
        data["message"] = {
            "role": "assistant",
            "content": content,
            "source": source,
            "id": f"a{turn}{step}",
        }
        envelope = {"surfaceOp": "append"}
    data |= more
    data["stream"] = stream
    return {"type": f"assistant/{kind}", "data": data, **envelope}


def log_of(*events: dict[str, Any], end: dict[str, Any] | None = None) -> bytes:
    last = {"type": "turn/end", "data": {"turn": 1, "reason": end}}
    rows = [*events] if end is None else [*events, last]
    numbered = [
        {"type": row["type"], "seq": seq, "time": 500 + seq, **row}
        for seq, row in enumerate(rows)
    ]
    return HEADER + b"".join(dsh.dump(row) + b"\n" for row in numbered)


RETRIED = log_of(
    settlement("attempt", 1, 1, [text_run("a", "b"), finish("error")]),
    settlement("attempt", 1, 1, [text_run("c")]),
    settlement("message", 1, 1, [text_run("d"), finish("stop")]),
    settlement("message", 1, 2, [text_run("e")], interrupted=True),
    end={"kind": "aborted"},
)


def play(attempt: ReplayAttempt) -> tuple[list[Any], str]:
    """Return the chunks of an attempt and how it ended."""
    chunks: list[Any] = []
    try:
        for chunk in attempt.chunks():
            chunks.append(chunk)  # noqa: PERF402 - what came before the end is wanted
    except ReplayCancelled:
        return chunks, "cancelled"
    except ReplayFailure as error:
        return chunks, str(error.failure["code"])
    return chunks, "finish"


class FakeClock:
    """Keeps what it was asked to wait for."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def wait(self, delay_ms: float, /) -> None:
        self.waited.append(delay_ms)

    async def wait_async(self, delay_ms: float, /) -> None:
        self.waited.append(delay_ms)


def sources(log: bytes) -> Iterator[Any]:
    """Yield a log, and its sidecar."""
    opened = dsh.open(log)
    yield opened
    with split(opened) as parts:
        yield parts.sidecar


def test_attempts_end_as_they_were_recorded() -> None:
    """Spec 60 §8.1: the chunks come first, then the failure; twice the same."""
    for source in sources(RETRIED):
        seen: list[ReplayAttempt] = []
        for _ in range(2):
            with ReplayModel(source) as model:
                seen = [model.next_attempt() for _ in range(4)]
                ends = [play(attempt)[1] for attempt in seen]
            assert [attempt.seq for attempt in seen] == [0, 1, 2, 3]
            assert [attempt.number for attempt in seen] == [1, 2, 3, 1]
            assert [attempt.kind for attempt in seen] == [
                *["attempt"] * 2,
                *["message"] * 2,
            ]
            assert ends == ["finish", "cancelled", "finish", "cancelled"]
        assert [chunk.chunk["type"] for chunk in play(seen[0])[0]] == [
            "text-delta",
            "text-delta",
            "finish",
        ]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"kind": "error", "error": {"message": "m", "code": "C"}}, "C"),
        ({"kind": "interrupted"}, "cancelled"),
        ({"kind": "completed"}, "REPLAY_CUT"),
        (None, "REPLAY_CUT"),
    ],
)
def test_cut_attempts(end: Any, expected: str) -> None:
    """Spec 60 §6.3, §8.1."""
    log = log_of(settlement("attempt", 1, 1, [text_run("a")]), end=end)
    for source in sources(log):
        with ReplayModel(source) as model:
            chunks, ended = play(model.next_attempt())
        assert [chunk.chunk["text"] for chunk in chunks] == ["a"]
        assert ended == expected


def test_chunks_have_dense_indices_recorded_times_and_delays() -> None:
    """Spec 60 §8.1: a clock that went back gives no delay."""
    stream = [text_run("a", "b", gap=-3), finish("stop", time=107)]
    log = log_of(settlement("message", 1, 1, stream))
    with ReplayModel(dsh.open(log)) as model:
        chunks, _ = play(model.next_attempt())
    assert [(chunk.index, chunk.time, chunk.delay_ms) for chunk in chunks] == [
        (0, 100, 0),
        (1, 97, 0),
        (2, 107, 10),
    ]


@pytest.mark.parametrize(
    ("pace", "waited"),
    [("instant", []), (Recorded(), [5, 95]), (Recorded(0.5), [2.5, 47.5])],
)
def test_pace(pace: Any, waited: list[float]) -> None:
    """Spec 60 §8, options; sync and async wait on the same clock."""
    log = log_of(settlement("message", 1, 1, [text_run("a", "b"), finish("stop")]))
    clock = FakeClock()
    with ReplayModel(dsh.open(log), pace=pace, clock=clock) as model:
        attempt = model.next_attempt()
        chunks, _ = play(attempt)
        assert clock.waited == waited
        clock.waited.clear()

        async def collect() -> list[Any]:
            return [chunk async for chunk in attempt.chunks_async()]

        assert asyncio.run(collect()) == chunks
        assert clock.waited == waited


def test_async_attempts_end_alike() -> None:
    """Spec 60 §8.1."""

    async def run() -> int:
        count = 0
        with ReplayModel(dsh.open(RETRIED), strict=False) as model:
            model.next_attempt()
            try:
                async for _ in model.next_attempt().chunks_async():
                    count += 1
            except ReplayCancelled:
                return count
        return -1

    assert asyncio.run(run()) == 1


def test_sequence_ends_exhausted() -> None:
    """Spec 60 §8.1."""
    for source in sources(RETRIED):
        with ReplayModel(source) as model:
            for _ in range(4):
                model.next_attempt()
            with pytest.raises(dsh.ReplayError) as caught:
                model.next_attempt()
            assert caught.value.reason == "exhausted"


def test_coordinates_serve_each_step_in_the_order_of_tries() -> None:
    """Spec 60 §8, options."""
    for source in sources(RETRIED):
        with ReplayModel(source, match="coordinates") as model:
            seqs = [
                model.next_attempt(*place).seq
                for place in ((1, 2), (1, 1), (1, 1), (1, 1))
            ]
            assert seqs == [3, 0, 1, 2]
            for place in ((1, 1), (2, 1)):
                with pytest.raises(dsh.ReplayError) as caught:
                    model.next_attempt(*place)
                assert caught.value.reason == "exhausted"
            with pytest.raises(TypeError):
                model.next_attempt()


@pytest.mark.parametrize("match", ["sequence", "coordinates"])
def test_strict_close_names_what_is_left(match: Any) -> None:
    """Spec 60 §8, `strict`."""
    for source in sources(RETRIED):
        model = ReplayModel(source, match=match)
        model.next_attempt(1, 2)
        with pytest.raises(dsh.ReplayError) as caught:
            model.close()
        assert caught.value.reason == "unconsumed"
        assert caught.value.seq == (1 if match == "sequence" else 0)
        model.close()
        with pytest.raises(RuntimeError):
            model.next_attempt()
        ReplayModel(source, match=match, strict=False).close()


def test_another_error_is_not_hidden_by_what_is_left() -> None:
    with pytest.raises(KeyError), ReplayModel(dsh.open(RETRIED)):
        raise KeyError


def test_replacements_and_opaque_rows_are_not_replayed() -> None:
    """Spec 60 §6.2, §7."""
    event = settlement("message", 1, 1, [text_run("a")])
    event["surfaceOp"] = {"op": "replace", "startSeq": 0, "endSeq": 0}
    broken = settlement("message", 1, 1, [text_run("a") | {"dt": [1]}])
    log = log_of(event, broken)
    with split(dsh.open(log), allow_opaque=True) as parts:
        assert [row["replayable"] for row in parts.sidecar] == [False, False]
        with ReplayModel(parts.sidecar) as model:
            assert list(model.attempts()) == []
    with pytest.raises(dsh.SidecarError) as caught, ReplayModel(dsh.open(log)) as model:
        model.next_attempt()
    assert caught.value.seq == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"ending":"finish"', b'"ending":"done"'),
        (b'"cause":"cancelled"', b'"cause":"error"'),
        (b'"chunks":3', b'"chunks":4'),
        (b'"dt":[5]', b'"dt":[]'),
        (b'"replayable":true', b'"replayable":1'),
    ],
)
def test_damaged_rows_are_refused(old: bytes, new: bytes) -> None:
    """Spec 60 §6.2."""
    with split(dsh.open(RETRIED)) as parts:
        text = b"".join(parts.sidecar.text())
    assert old in text
    damaged = text.replace(old, new, 1)
    with Sidecar.open(damaged) as sidecar, pytest.raises(dsh.SidecarError) as caught:
        list(ReplayModel(sidecar).attempts())
    assert caught.value.reason == "corrupt"


def test_synthesized_stream() -> None:
    """Spec 60 §8.2, the table."""
    call = {"type": "tool-call", "id": "c1", "name": "ls", "arguments": "{}"}
    content = [
        {"type": "reasoning", "text": "r"},
        {"type": "text", "text": ""},
        call,
        {"type": "plugin:x", "y": 1},
    ]
    state = {"response": 1, "blocks": [1, 2, 3, 4]}
    usage = {"inputTokens": 1, "outputTokens": 2}
    log = log_of(
        settlement(
            "message",
            1,
            1,
            [],
            content=content,
            usage=usage,
            source={"replayState": state},
        ),
        settlement(
            "message",
            1,
            2,
            [],
            content=content[:1],
            interrupted=True,
            source={"replayState": state},
        ),
        settlement("attempt", 1, 3, []),
        end={"kind": "aborted"},
    )
    with ReplayModel(dsh.open(log), synthesize=True) as model:
        first, second, third = (model.next_attempt() for _ in range(3))
    chunks, ended = play(first)
    assert ended == "finish"
    assert first.is_synthetic
    assert {(chunk.time, chunk.delay_ms) for chunk in chunks} == {(500, 0)}
    assert [chunk.chunk for chunk in chunks] == [
        {"type": "block-start", "index": 0, "blockType": "reasoning"},
        {"type": "reasoning-delta", "index": 0, "text": "r"},
        {"type": "block-end", "index": 0, "block": content[0]},
        {"type": "block-start", "index": 1, "blockType": "text"},
        {"type": "block-end", "index": 1, "block": content[1]},
        {"type": "block-start", "index": 2, "blockType": "tool-call"},
        {
            "type": "tool-call-delta",
            "index": 2,
            "id": "c1",
            "name": "ls",
            "argumentsDelta": "{}",
        },
        {"type": "block-end", "index": 2, "block": call},
        {"type": "block-start", "index": 3, "blockType": "plugin:x"},
        {"type": "block-end", "index": 3, "block": content[3]},
        {"type": "usage", "usage": usage},
        {"type": "finish", "reason": {"kind": "tool-calls"}, "replayState": state},
    ]
    chunks, ended = play(second)
    finish = {"type": "finish", "reason": {"kind": "stop"}, "replayState": state}
    assert (ended, chunks[-1].chunk) == ("cancelled", finish)
    assert (play(third), third.is_synthetic) == (([], "cancelled"), False)


@pytest.mark.parametrize(
    "options",
    [
        {"match": "turn"},
        {"pace": "slow"},
        {"pace": Recorded(-1)},
        {"pace": Recorded(math.inf)},
    ],
)
def test_wrong_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not"):
        ReplayModel(dsh.open(RETRIED), **options)


def test_synthesis_needs_the_messages() -> None:
    with split(dsh.open(RETRIED)) as parts, pytest.raises(ValueError, match="join"):
        ReplayModel(parts.sidecar, synthesize=True)


@pytest.mark.parametrize("path", CURRENT)
def test_framer_makes_the_recorded_streams_again(path: str) -> None:
    """Spec 60 §8.1, law; §8.2: a synthesized stream assembles to the message."""
    now = [0]
    with dsh.open(CORPUS / path) as log, split(log) as parts:
        settled = {
            event.seq: event.data
            for event in log
            if event.type in ("assistant/message", "assistant/attempt")
        }
        with ReplayModel(parts.sidecar) as model:
            for expected in model.attempts():
                attempt = model.next_attempt()
                assert attempt.seq == expected.seq
                agent = AgentLifecycle("s", emit=lambda _: None, clock=lambda: now[0])
                framer = agent.framer(attempt.turn, attempt.step)
                framer.start()
                try:
                    for chunk in attempt.chunks():
                        now[0] = chunk.time
                        framer.push(chunk.chunk)
                except (ReplayCancelled, ReplayFailure):
                    assert attempt.ending == "cut"
                assert framer.records() == settled[attempt.seq]["stream"]
        with ReplayModel(parts.assembled, synthesize=True, strict=False) as model:
            for attempt in model.attempts():
                if attempt.kind == "message":
                    assembler = dsh.Assembler()
                    for chunk in play(attempt)[0]:
                        assembler.push(chunk.chunk)
                    data = settled[attempt.seq]
                    assert assembler.blocks() == data["message"]["content"]
                    assert assembler.usage() == data.get("usage")


@pytest.mark.parametrize("path", CURRENT)
def test_framer_and_writer_settle_what_is_replayed(path: str, tmp_path: Path) -> None:
    """The issue, "Show": equal content, usage and streams, their times shifted by the clock."""
    shift, now = 1000, [0]
    header = {"id": "s", "createdAt": 1, "cwd": "/w"}
    with (
        dsh.open(CORPUS / path) as log,
        ReplayModel(log) as model,
        Writer.create(tmp_path, header, durable=False) as writer,
    ):
        recorded = {event.seq: event for event in log if event.type in SETTLEMENTS}
        agent = AgentLifecycle("s", emit=lambda _: None, clock=lambda: now[0])
        writer.append([row_of("turn/start", writer.next_seq, {"turn": 1})])
        old, new = [], []
        for step, _ in enumerate(model.attempts(), 1):
            attempt = model.next_attempt()
            old.append(recorded[attempt.seq])
            place: dict[str, Any] = {"turn": 1, "step": step}
            framer = agent.framer(1, step)
            framer.start()
            with suppress(ReplayCancelled, ReplayFailure):
                for chunk in attempt.chunks():
                    now[0] = chunk.time + shift
                    framer.push(chunk.chunk)
            model_id: dict[str, Any] = {
                "message_id": f"m{step}",
                "provider": "p",
                "model": "m",
            }
            settle = partial(
                writer.append_settlement,
                framer.records(),
                **place,
                time_ms=now[0],
                is_interrupted=attempt.cause == "cancelled",
                **(model_id if attempt.kind == "message" else {}),
            )
            writer.append([row_of("step/start", writer.next_seq, place)])
            kind: Any = f"assistant/{attempt.kind}"
            outcome: Any = framer.settle(kind, settle)["outcome"]
            new.append(outcome["seq"])
            writer.append([row_of("step/end", writer.next_seq, place)])
        assert len(old) == len(recorded)  # No log here has a replacement.
    with dsh.open(writer.path) as written:
        made = [event for event in written if event.seq in new]
    for before, after in zip(old, made, strict=True):
        assert after.type == before.type
        if before.type == "assistant/message":
            assert after.data["message"]["content"] == before.data["message"]["content"]
            assert after.data.get("usage") == before.data.get("usage")
        assert [
            record
            | {key: record[key] - shift for key in ("time", "time0") if key in record}
            for record in after.data["stream"]
        ] == before.data["stream"]


def row_of(kind: str, seq: int, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "seq": seq, "time": 1, "data": data}


def test_older_log_is_refused_on_demand() -> None:
    """Spec 60 intro: `strict_current`; the message names the command."""
    older = next(entry["path"] for entry in LOGS if entry["format"] < 4)
    with dsh.open(CORPUS / older) as log:
        with pytest.raises(dsh.UnsupportedError) as caught:
            ReplayModel(log, strict_current=True)
        assert "dsh-codec migrate" in str(caught.value)
        with ReplayModel(log, strict=False) as model:
            assert list(model.attempts())
