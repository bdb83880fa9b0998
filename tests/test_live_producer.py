"""Framer, its counters, and the attempt procedure. Spec: 40 §2."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dsh_codec.errors import StreamError, UnknownChunkError
from dsh_codec.live import (
    AgentLifecycle,
    ModelFailureError,
    Step,
    run_attempt,
    run_attempt_async,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator


class Agent:
    """A lifecycle with its frames, its log and a clock that counts."""

    def __init__(self, kernel: Any) -> None:
        self.frames: list[Any] = []
        self.log: list[dict[str, Any]] = []
        self.trace: list[str] = []
        self.times = iter(range(100, 10_000, 5))
        self.failure: Exception | None = None
        self.cancellation: BaseException | None = None
        self.lifecycle = AgentLifecycle(
            "s", emit=self.emit, clock=lambda: next(self.times), kernel=kernel
        )

    def emit(self, frame: Any) -> None:
        self.frames.append(frame)
        self.trace.append(frame["type"])

    def append(self, event: dict[str, Any]) -> int:
        if self.failure is not None:
            raise self.failure
        self.log.append(event)
        self.trace.append("log")
        return 4 + len(self.log)

    def step(self) -> Step:
        return Step(
            1,
            2,
            "p",
            "m",
            append=self.append,
            message_id=lambda: "id",
            cancelled=lambda: self.cancellation,
        )

    def run(self, chunks: Callable[[], Iterable[Any]], **options: Any) -> Any:
        return run_attempt(self.lifecycle, chunks, self.step(), **options)

    @property
    def outcomes(self) -> list[Any]:
        return [frame["outcome"] for frame in self.frames if frame["type"] == "end"]


@pytest.fixture
def agent(kernel: Any) -> Agent:
    return Agent(kernel)


def text(value: str, index: int = 0) -> dict[str, Any]:
    return {"type": "text-delta", "index": index, "text": value}


def finish(kind: str, **members: Any) -> dict[str, Any]:
    return {"type": "finish", "reason": {"kind": kind, **members}}


WIDGET = {"type": "block-start", "index": 7, "blockType": "widget"}
ABANDONED = {"kind": "abandoned"}


def committed(kind: str, seq: int) -> dict[str, Any]:
    return {"kind": "committed", "eventType": f"assistant/{kind}", "seq": seq}


# --- framer (40 §2.1, §2.4) ---


def test_framer_example_gives_frames_of_spec(agent: Agent) -> None:
    """Spec 40 §2.5."""
    framer = agent.lifecycle.framer(1, 1)
    framer.start()
    framer.push(text("He"))
    framer.push(text("llo"))
    framer.settle("assistant/message", lambda: 5)
    assert agent.frames == [
        {"type": "start", "attemptId": "s:1", "revision": 1, "turn": 1, "step": 1},
        {
            "type": "chunk",
            "attemptId": "s:1",
            "revision": 2,
            "index": 0,
            "time": 100,
            "chunk": {"type": "text-delta", "index": 0, "text": "He"},
        },
        {
            "type": "chunk",
            "attemptId": "s:1",
            "revision": 3,
            "index": 1,
            "time": 105,
            "chunk": {"type": "text-delta", "index": 0, "text": "llo"},
        },
        {
            "type": "end",
            "attemptId": "s:1",
            "revision": 4,
            "index": 2,
            "outcome": {
                "kind": "committed",
                "eventType": "assistant/message",
                "seq": 5,
            },
        },
    ]
    assert framer.records() == [
        {
            "type": "text-chunks",
            "time0": 100,
            "index": 0,
            "dt": [5],
            "texts": ["He", "llo"],
        }
    ]


def test_framer_ids_have_gaps_revisions_none(agent: Agent) -> None:
    """Spec 40 §2.1: an attempt that never starts consumes its id only."""
    agent.lifecycle.framer(1, 1).discard()
    framer = agent.lifecycle.framer(1, 1)
    framer.start()
    assert agent.frames[0]["attemptId"] == "s:2"
    assert agent.frames[0]["revision"] == 1


BAD_CHUNKS = [
    {"type": "bogus"},
    {"type": "text-delta", "index": -1, "text": "a"},
    {"type": "text-delta", "index": 0},
    {"type": "usage", "usage": float("nan")},
    {"type": "block-end", "index": 0, "block": None},
    {"type": []},
    "text",
]


@pytest.mark.parametrize("chunk", BAD_CHUNKS, ids=range(len(BAD_CHUNKS)))
def test_framer_refused_chunk_changes_nothing(agent: Agent, chunk: Any) -> None:
    """Spec 40 §2.4: error, no frame, nothing counted; later chunks are taken."""
    framer = agent.lifecycle.framer(1, 1)
    framer.start()
    framer.push(text("a"))
    with pytest.raises(StreamError):
        framer.push(chunk)
    assert len(agent.frames) == 2
    assert framer.chunk_count == 1
    assert len(framer.records()) == 1
    assert framer.push(text("b"))["index"] == 1
    assert framer.assembler.blocks() == [{"type": "text", "text": "ab"}]


def test_framer_frame_is_detached_from_chunk(agent: Agent) -> None:
    """Spec 40 §2.2: stream, assembler and frame see one detached value."""
    framer = agent.lifecycle.framer(1, 1)
    framer.start()
    block = {"type": "text", "text": "a", "list": [{"deep": 1}]}
    framer.push({"type": "block-end", "index": 0, "block": block})
    block["list"][0]["deep"] = 2  # type: ignore[index]  # a test of copying
    kept = {"type": "text", "text": "a", "list": [{"deep": 1}]}
    assert agent.frames[1]["chunk"]["block"] == kept
    assert framer.assembler.blocks() == [kept]
    assert framer.records()[0]["chunk"]["block"] == kept


def test_framer_failing_append_ends_abandoned(agent: Agent) -> None:
    """Spec 40 §2.4."""
    framer = agent.lifecycle.framer(1, 1)
    framer.start()
    with pytest.raises(OSError, match="full"):
        framer.settle("assistant/attempt", lambda: int(_raise(OSError("full"))))
    assert agent.outcomes == [ABANDONED]
    assert framer.state == "ended"


def _raise(error: BaseException) -> str:
    raise error


CALLS: list[tuple[str, Callable[[Any], Any]]] = [
    ("start", lambda framer: framer.start()),
    ("push", lambda framer: framer.push(text("a"))),
    ("settle", lambda framer: framer.settle("assistant/attempt", lambda: 1)),
    ("abandon", lambda framer: framer.abandon()),
    ("discard", lambda framer: framer.discard()),
]
ALLOWED = {"idle": {"start", "discard"}, "open": {"push", "settle", "abandon"}}


@pytest.mark.parametrize("state", ["idle", "open", "ended", "dead"])
@pytest.mark.parametrize(("name", "call"), CALLS, ids=[name for name, _ in CALLS])
def test_framer_call_in_other_state_is_refused(
    agent: Agent, state: str, name: str, call: Callable[[Any], Any]
) -> None:
    """Spec 40 §2.4: caller error, no frame, same state."""
    framer = agent.lifecycle.framer(1, 1)
    if state == "dead":
        framer.discard()
    elif state != "idle":
        framer.start()
        if state == "ended":
            framer.abandon()
    assert framer.state == state
    if name in ALLOWED.get(state, ()):
        call(framer)
        return
    before = list(agent.frames)
    with pytest.raises(RuntimeError):
        call(framer)
    assert agent.frames == before
    assert framer.state == state


@pytest.mark.parametrize(("turn", "step"), [(0, 1), (1, 0), (True, 1), (1.5, 1)])
def test_framer_turn_or_step_below_one_is_refused(
    agent: Agent, turn: Any, step: Any
) -> None:
    with pytest.raises(ValueError, match="from 1"):
        agent.lifecycle.framer(turn, step)


# --- procedure and settlement (40 §2.2, §2.3) ---


def test_attempt_completed_appends_message_before_end(agent: Agent) -> None:
    usage = {"inputTokens": 1, "outputTokens": 2}
    replay = {"response": "r", "blocks": [1]}
    result = agent.run(
        lambda: [
            text("Hi"),
            {"type": "usage", "usage": usage},
            finish("stop") | {"replayState": replay},
        ]
    )
    assert agent.trace == ["start", "chunk", "chunk", "chunk", "log", "end"]
    event = agent.log[0]
    assert event["type"] == "assistant/message"
    assert event["surfaceOp"] == "append"
    stream = event["data"].pop("stream")
    assert [record["type"] for record in stream] == ["text-chunks", "chunk", "chunk"]
    assert event["data"] == {
        "turn": 1,
        "step": 2,
        "message": {
            "id": "id",
            "role": "assistant",
            "content": [{"type": "text", "text": "Hi"}],
            "source": {
                "kind": "model",
                "provider": "p",
                "model": "m",
                "replayState": replay,
            },
        },
        "usage": usage,
    }
    assert agent.outcomes == [committed("message", 5)]
    assert (result.attempt_id, result.seq, result.finish) == (
        "s:1",
        5,
        {"kind": "stop"},
    )


def test_attempt_without_chunks_is_an_empty_message(agent: Agent) -> None:
    """Spec 40 §2.3: without a finish chunk the reason is stop."""
    agent.run(list)
    assert agent.log[0]["data"]["message"]["content"] == []
    assert agent.log[0]["data"]["stream"] == []
    assert "usage" not in agent.log[0]["data"]


def test_attempt_acquisition_fails_leaves_nothing(agent: Agent) -> None:
    """Spec 40 §2.2, A1."""
    with pytest.raises(ConnectionError):
        agent.run(lambda: _raise(ConnectionError()))
    assert agent.trace == []
    assert agent.lifecycle.attempts == 1


def test_attempt_cancelled_before_start_leaves_nothing(agent: Agent) -> None:
    """Spec 40 §2.2, A2; the stream that was acquired is closed."""
    closed: list[bool] = []
    agent.cancellation = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        agent.run(lambda: Closable([text("a")], closed))
    assert agent.trace == []
    assert closed == [True]


class Closable:
    """A stream that tells when it is closed, and may fail at that."""

    def __init__(
        self,
        chunks: Iterable[Any],
        closed: list[bool],
        error: Exception | None = None,
    ) -> None:
        self.chunks = iter(chunks)
        self.closed = closed
        self.error = error

    def __iter__(self) -> Iterator[Any]:
        return self.chunks

    def close(self) -> None:
        self.closed.append(True)
        if self.error is not None:
            raise self.error


class CancelledByUserError(Exception):
    pass


def cancelling(agent: Agent, *chunks: Any) -> Iterator[Any]:
    yield from chunks
    agent.cancellation = CancelledByUserError()


def breaking(*chunks: Any) -> Iterator[Any]:
    yield from chunks
    raise ConnectionError


def test_attempt_cancelled_with_visible_text_is_interrupted(agent: Agent) -> None:
    call = {"type": "tool-call-delta", "index": 1, "id": "c", "argumentsDelta": "{"}
    with pytest.raises(CancelledByUserError):
        agent.run(lambda: cancelling(agent, text("a"), call, text(" ", 2)))
    data = agent.log[0]["data"]
    assert data["interrupted"] is True
    assert data["message"]["content"] == [{"type": "text", "text": "a"}]
    assert agent.outcomes == [committed("message", 5)]


def test_attempt_cancelled_drops_the_chunk_in_hand(agent: Agent) -> None:
    """Spec 40 §2.2, A4: cancellation is looked at before the chunk is pushed."""

    def chunks() -> Iterator[Any]:
        yield text("a")
        agent.cancellation = CancelledByUserError()
        yield text("b")

    with pytest.raises(CancelledByUserError):
        agent.run(chunks)
    assert agent.frames[-1]["index"] == 1
    assert agent.log[0]["data"]["stream"][0]["texts"] == ["a"]


def test_attempt_cancelled_with_nothing_visible_is_attempt(agent: Agent) -> None:
    with pytest.raises(CancelledByUserError):
        agent.run(lambda: cancelling(agent, text(" \u00a0")))
    assert agent.log[0]["type"] == "assistant/attempt"
    assert agent.log[0].keys() == {"type", "data"}
    assert agent.log[0]["data"].keys() == {"turn", "step", "stream"}
    assert agent.outcomes == [committed("attempt", 5)]


def test_attempt_stream_fails_is_attempt_even_if_visible(agent: Agent) -> None:
    closed: list[bool] = []
    with pytest.raises(ConnectionError):
        agent.run(lambda: Closable(breaking(text("a")), closed, OSError()))
    assert agent.log[0]["type"] == "assistant/attempt"
    assert agent.outcomes == [committed("attempt", 5)]
    assert closed == [True]


def test_attempt_refused_chunk_is_attempt_without_it(agent: Agent) -> None:
    with pytest.raises(UnknownChunkError):
        agent.run(lambda: [text("a"), {"type": "bogus"}, text("b")])
    assert agent.log[0]["data"]["stream"][0]["texts"] == ["a"]
    assert agent.frames[-1]["index"] == 1


def test_attempt_assembly_fails_is_abandoned(agent: Agent) -> None:
    with pytest.raises(StreamError):
        agent.run(lambda: [text("a"), WIDGET])
    assert agent.log == []
    assert agent.outcomes == [ABANDONED]


def test_attempt_assembly_fails_when_cancelled_is_abandoned(agent: Agent) -> None:
    with pytest.raises(StreamError) as caught:
        agent.run(lambda: cancelling(agent, text("a"), WIDGET))
    assert isinstance(caught.value.__cause__, CancelledByUserError)
    assert agent.outcomes == [ABANDONED]


@pytest.mark.parametrize("is_async", [False, True])
def test_attempt_whose_settlement_cannot_be_made_is_abandoned(
    agent: Agent,
    is_async: bool,  # noqa: FBT001 - a parameter
) -> None:
    """G3: exactly one end, whatever raises."""
    asked: list[int] = []

    def cancelled() -> None:
        asked.append(1)
        if len(asked) > 2:
            raise MemoryError

    def drive(chunks: Any, step: Step) -> None:
        if is_async:
            asyncio.run(run_attempt_async(agent.lifecycle, chunks, step))
        else:
            run_attempt(agent.lifecycle, chunks, step)

    step = replace(agent.step(), message_id=lambda: _raise(KeyError("no id")))
    odd = replace(agent.step(), cancelled=cancelled)
    for each, chunks, error in (
        (step, lambda: iter([text("a")]), KeyError),
        (odd, lambda: breaking(text("a")), MemoryError),
    ):
        with pytest.raises(error):
            drive(chunks, each)
    assert agent.outcomes == [ABANDONED, ABANDONED]
    assert agent.log == []


def test_attempt_append_fails_is_abandoned(agent: Agent) -> None:
    agent.failure = OSError(28, "full")
    with pytest.raises(OSError, match="full") as caught:
        agent.run(lambda: [text("a")])
    assert caught.value.__cause__ is None
    assert agent.outcomes == [ABANDONED]


def test_attempt_append_fails_after_failure_names_both(agent: Agent) -> None:
    """Spec 40 §2.3: with the original error attached."""
    agent.failure = OSError(28, "full")
    with pytest.raises(OSError, match="full") as caught:
        agent.run(lambda: breaking(text("a")))
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert agent.outcomes == [ABANDONED]


def test_attempt_finished_as_error_is_retried(agent: Agent) -> None:
    streams = [
        [finish("error")],
        [finish("aborted")],
        [text("a"), finish("max-tokens")],
    ]
    asked: list[Any] = []

    def retry(reason: Any) -> bool:
        asked.append(reason)
        return True

    result = agent.run(lambda: streams[len(asked)], retry=retry)
    assert asked == [{"kind": "error"}, {"kind": "aborted"}]
    assert [event["type"] for event in agent.log] == [
        "assistant/attempt",
        "assistant/attempt",
        "assistant/message",
    ]
    assert result.attempt_id == "s:3"
    assert [frame["revision"] for frame in agent.frames] == list(range(1, 11))
    assert {
        (frame["turn"], frame["step"])
        for frame in agent.frames
        if frame["type"] == "start"
    } == {(1, 2)}


def test_attempt_finished_as_error_without_retry_raises(agent: Agent) -> None:
    failure = {"message": "busy", "code": "overloaded"}
    with pytest.raises(ModelFailureError, match="busy") as caught:
        agent.run(lambda: [finish("error", failure=failure)], retry=lambda _: False)
    assert caught.value.finish["failure"] == failure
    assert agent.outcomes == [committed("attempt", 5)]


# --- the same in a task ---


async def slowly(*chunks: Any) -> AsyncIterator[Any]:
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk


def run_async(agent: Agent, acquire: Callable[[], Any], **options: Any) -> Any:
    return asyncio.run(
        run_attempt_async(agent.lifecycle, acquire, agent.step(), **options)
    )


async def acquired(stream: Any) -> Any:
    await asyncio.sleep(0)
    return stream


def test_async_attempt_equals_attempt(kernel: Any) -> None:
    chunks = [text("a"), text("b", 1), finish("stop")]
    makers: list[Callable[[], Any]] = [
        lambda: slowly(*chunks),
        lambda: acquired(slowly(*chunks)),
        lambda: chunks,
    ]
    plain = Agent(kernel)
    plain.run(lambda: chunks)
    for make in makers:
        agent = Agent(kernel)
        run_async(agent, make)
        assert agent.frames == plain.frames
        assert agent.log == plain.log


def test_async_attempt_waits_for_retry(agent: Agent) -> None:
    streams = [slowly(finish("error")), slowly(text("a"))]

    async def retry(_: Any) -> bool:
        await asyncio.sleep(0)
        return True

    assert run_async(agent, lambda: streams.pop(0), retry=retry).attempt_id == "s:2"
    with pytest.raises(ModelFailureError):
        run_async(agent, lambda: slowly(finish("error")))


def test_async_attempt_task_cancelled_is_interrupted(agent: Agent) -> None:
    """Cancelling the task settles what was seen, closes the stream, and cancels."""
    closed: list[bool] = []

    async def endless() -> AsyncIterator[Any]:
        try:
            yield text("a")
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    async def main() -> None:
        task = asyncio.create_task(
            run_attempt_async(agent.lifecycle, endless, agent.step())
        )
        while len(agent.frames) < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert agent.log[0]["data"]["interrupted"] is True
    assert agent.trace == ["start", "chunk", "log", "end"]
    assert closed == [True]


def test_async_attempt_acquisition_fails_leaves_nothing(agent: Agent) -> None:
    async def fail() -> Any:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        run_async(agent, fail)
    agent.cancellation = CancelledByUserError()
    with pytest.raises(CancelledByUserError):
        run_async(agent, lambda: slowly(text("a")))
    assert agent.trace == []
