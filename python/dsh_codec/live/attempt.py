"""Producer: runs model attempts from acquisition to settlement. Spec: 40 §2.2, §2.3."""

from __future__ import annotations

import inspect
from asyncio import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

from dsh_codec.events import is_object

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterable,
        Awaitable,
        Callable,
        Iterable,
        Mapping,
    )

    from dsh_codec.live.framer import AgentLifecycle, Framer
    from dsh_codec.live.frames import AttemptId, EventType

    Chunks: TypeAlias = Iterable[Mapping[str, Any]]
    AsyncChunks: TypeAlias = Chunks | AsyncIterable[Mapping[str, Any]]

__all__ = [
    "AttemptResult",
    "ModelFailureError",
    "Step",
    "run_attempt",
    "run_attempt_async",
]

_FAILED: Final = ("error", "aborted")
"""Finish reasons that make no message. Spec: 40 §2.3."""

_ABSENT: Final[Any] = object()


def _never() -> None:
    return None


class ModelFailureError(Exception):
    """The model's stream completed with a failure, and there is no retry.

    Attributes:
        finish: The finish reason, kind `error` or `aborted`. Spec: 20 §1.3.
    """

    def __init__(self, finish: Any) -> None:
        """Take the finish reason."""
        super().__init__(finish)
        self.finish = finish

    def __str__(self) -> str:
        """Return the kind and the failure's message."""
        failure = self.finish.get("failure")
        detail = failure.get("message") if is_object(failure) else None
        return f"the model call ended as {self.finish['kind']}: {detail}"


class AttemptResult(NamedTuple):
    """A settled attempt.

    Attributes:
        attempt_id: Its id.
        event_type: Type of its settlement.
        seq: Seq of its settlement.
        data: Data of its settlement.
        finish: Its finish reason.
    """

    attempt_id: AttemptId
    event_type: EventType
    seq: int
    data: dict[str, Any]
    finish: Any


@dataclass(frozen=True, slots=True)
class Step:
    """Where attempts run, and what they need from outside.

    Attributes:
        turn, step: From 1.
        provider, model: Source of the messages.
        append: Appends an event durably and returns its seq. The event has `type`, `data` and
            perhaps `surfaceOp`; its seq and time are the log's business. For `run_attempt_async`
            it may return an awaitable of the seq.
        message_id: Returns a new message id.
        cancelled: Returns the error to raise once the step is cancelled, else None.
    """

    turn: int
    step: int
    provider: str
    model: str
    append: Callable[[dict[str, Any]], int | Awaitable[int]]
    message_id: Callable[[], str]
    cancelled: Callable[[], BaseException | None] = _never


class _Attempt:
    """Start, chunks and settlement of one attempt; both drivers share it."""

    def __init__(self, framer: Framer, step: Step) -> None:
        self._framer = framer
        self._step = step

    def check(self) -> None:
        """Raise if the step is cancelled."""
        reason = self._step.cancelled()
        if reason is not None:
            raise reason

    def push(self, chunk: Mapping[str, Any]) -> None:
        self.check()
        self._framer.push(chunk)

    def complete(self) -> AttemptResult:
        """Settle an attempt whose stream came to its end."""
        return self._settle(self._prepared(self._completed))

    def fail(self, error: BaseException) -> BaseException:
        """Settle an attempt whose stream failed.

        Returns:
            What is to be raised: the error, or what assembly or append raised because of it.
        """
        try:
            self._settle(self._prepared(lambda: self._failed(error)))
        except BaseException as failure:
            return _caused(failure, error)
        return error

    async def complete_async(self) -> AttemptResult:
        return await self._settle_async(self._prepared(self._completed))

    async def fail_async(self, error: BaseException) -> BaseException:
        try:
            settlement = self._prepared(lambda: self._failed(error))
            await self._settle_async(settlement)
        except BaseException as failure:
            return _caused(failure, error)
        return error

    def _prepared(self, make: Callable[[], _Settlement]) -> _Settlement:
        """Make the settlement; abandon the attempt if that fails."""
        try:
            return make()
        except BaseException:
            self._framer.abandon()
            raise

    def _completed(self) -> _Settlement:
        finish = self._framer.assembler.finish()
        if is_object(finish) and finish.get("kind") in _FAILED:
            return _Settlement("assistant/attempt", self._base(), finish)
        data = self._message(interrupted=False)
        return _Settlement("assistant/message", data, finish)

    def _failed(self, error: BaseException) -> _Settlement:
        is_cancelled = isinstance(error, CancelledError) or (
            self._step.cancelled() is not None
        )
        if is_cancelled and self._framer.assembler.interrupted_blocks():
            data = self._message(interrupted=True)
            return _Settlement("assistant/message", data, None)
        return _Settlement("assistant/attempt", self._base(), None)

    def _base(self) -> dict[str, Any]:
        return {
            "turn": self._framer.turn,
            "step": self._framer.step,
            "stream": self._framer.records(),
        }

    def _message(self, *, interrupted: bool) -> dict[str, Any]:
        """Assemble the message."""
        assembler = self._framer.assembler
        source = {
            "kind": "model",
            "provider": self._step.provider,
            "model": self._step.model,
        }
        content = assembler.interrupted_blocks() if interrupted else assembler.blocks()
        # Spec 30 §10: the ordinary replay state, also of an interrupted message.
        replay_state = assembler.replay_state(_ABSENT)
        if replay_state is not _ABSENT:
            source["replayState"] = replay_state
        message = {
            "id": self._step.message_id(),
            "role": "assistant",
            "content": content,
            "source": source,
        }
        base = self._base()
        data = {"turn": base["turn"], "step": base["step"], "message": message}
        if interrupted:
            data["interrupted"] = True
        usage = assembler.usage(_ABSENT)
        if usage is not _ABSENT:
            data["usage"] = usage
        return data | {"stream": base["stream"]}

    def _settle(self, settlement: _Settlement) -> AttemptResult:
        seqs: list[int] = []

        def append() -> int:
            seq = self._step.append(settlement.event())
            if not isinstance(seq, int):
                if inspect.iscoroutine(seq):
                    seq.close()
                message = "an append that is awaited needs run_attempt_async"
                raise TypeError(message)
            seqs.append(seq)
            return seq

        self._framer.settle(settlement.event_type, append)
        return self._result(settlement, seqs[0])

    async def _settle_async(self, settlement: _Settlement) -> AttemptResult:
        try:
            answer = self._step.append(settlement.event())
        except BaseException:
            self._framer.abandon()
            raise
        if isinstance(answer, int):
            # No other task runs between such an append and its end.
            self._framer.settle(settlement.event_type, lambda: answer)
            return self._result(settlement, answer)
        end = await self._framer.settle_async(settlement.event_type, lambda: answer)
        return self._result(settlement, end["outcome"]["seq"])  # type: ignore[typeddict-item]  # committed

    def _result(self, settlement: _Settlement, seq: int) -> AttemptResult:
        return AttemptResult(
            self._framer.attempt_id,
            settlement.event_type,
            seq,
            settlement.data,
            settlement.finish,
        )


class _Settlement(NamedTuple):
    """What is to be appended for an attempt."""

    event_type: EventType
    data: dict[str, Any]
    finish: Any

    def event(self) -> dict[str, Any]:
        event: dict[str, Any] = {"type": self.event_type, "data": self.data}
        if self.event_type == "assistant/message":
            event["surfaceOp"] = "append"
        return event


def _caused(failure: BaseException, error: BaseException) -> BaseException:
    """Return a failure that names the error which led to it."""
    if failure is not error and failure.__cause__ is None:
        failure.__cause__ = error
    return failure


def run_attempt(
    lifecycle: AgentLifecycle,
    acquire: Callable[[], Chunks],
    step: Step,
    *,
    retry: Callable[[Any], bool] | None = None,
) -> AttemptResult:
    """Run a model attempt, and further ones as long as the retry policy says so.

    Args:
        lifecycle: Counters of the agent; its frames go to its `emit`.
        acquire: Opens the model stream: any iterable of chunks (20 §1). Called for each attempt.
        step: Where the attempt runs.
        retry: Asked with the finish reason after an attempt that finished as `error` or
            `aborted`, once that is in the log; it may append events and wait. None never retries.

    Returns:
        The attempt that made a message.

    Raises:
        ModelFailureError: The last attempt finished as `error` or `aborted`.
        BaseException: What `acquire`, the stream, a refused chunk (`StreamError`), cancellation,
            assembly or append raised. What the log and the frames say then is in 40 §2.3.

    Note:
        A stream that does not come to its end is closed, if it has `close`. Spec: 40 §2.2.
    """
    while True:
        result = _run_once(lifecycle, acquire, step)
        if result.event_type == "assistant/message":
            return result
        if retry is None or not retry(result.finish):
            raise ModelFailureError(result.finish)


def _run_once(
    lifecycle: AgentLifecycle, acquire: Callable[[], Chunks], step: Step
) -> AttemptResult:
    framer = lifecycle.framer(step.turn, step.step)
    attempt = _Attempt(framer, step)
    stream: Any = None
    try:
        stream = acquire()
        attempt.check()
    except BaseException as error:
        framer.discard()
        _close_and_raise(stream, error)
    framer.start()
    try:
        for chunk in stream:
            attempt.push(chunk)
        attempt.check()
    except BaseException as error:
        _close_and_raise(stream, attempt.fail(error))
    return attempt.complete()


def _close_and_raise(stream: Any, error: BaseException) -> NoReturn:
    """Close a stream and raise the error, whatever closing says."""
    try:
        close = getattr(stream, "close", None)
        if callable(close):
            close()
    finally:
        raise error


async def run_attempt_async(
    lifecycle: AgentLifecycle,
    acquire: Callable[[], AsyncChunks | Awaitable[AsyncChunks]],
    step: Step,
    *,
    retry: Callable[[Any], bool | Awaitable[bool]] | None = None,
) -> AttemptResult:
    """Run what `run_attempt` runs, in a task.

    Args:
        lifecycle: As for `run_attempt`.
        acquire: Returns, or awaits and returns, an iterable or async iterable of chunks.
        step: As for `run_attempt`. No other task runs between an append that returns a seq and
            the end that names it; an append that is awaited lets others run, and is waited for
            even if the task is cancelled meanwhile. Cancelling the task counts as cancelled.
        retry: As for `run_attempt`; it may be a coroutine function.

    Returns:
        The attempt that made a message.

    Raises:
        ModelFailureError, BaseException: As for `run_attempt`.

    Note:
        A stream that does not come to its end is closed, after the settlement, if it has
        `aclose` or `close`.
    """
    while True:
        result = await _run_once_async(lifecycle, acquire, step)
        if result.event_type == "assistant/message":
            return result
        answer: Any = retry is not None and retry(result.finish)
        if inspect.isawaitable(answer):
            answer = await answer
        if not answer:
            raise ModelFailureError(result.finish)


async def _run_once_async(
    lifecycle: AgentLifecycle,
    acquire: Callable[[], AsyncChunks | Awaitable[AsyncChunks]],
    step: Step,
) -> AttemptResult:
    framer = lifecycle.framer(step.turn, step.step)
    attempt = _Attempt(framer, step)
    stream: Any = None
    try:
        stream = acquire()
        if inspect.isawaitable(stream):
            stream = await stream
        attempt.check()
    except BaseException as error:
        framer.discard()
        await _close_and_raise_async(stream, error)
    framer.start()
    try:
        if hasattr(stream, "__aiter__"):
            async for chunk in stream:
                attempt.push(chunk)
        else:
            for chunk in stream:
                attempt.push(chunk)
        attempt.check()
    except BaseException as error:
        await _close_and_raise_async(stream, await attempt.fail_async(error))
    return await attempt.complete_async()


async def _close_and_raise_async(stream: Any, error: BaseException) -> NoReturn:
    close: Any = getattr(stream, "aclose", None)
    if close is None:
        _close_and_raise(stream, error)
    try:
        await close()
    finally:
        raise error
