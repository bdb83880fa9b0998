"""A deterministic model that answers as a recorded session did. Spec: 60 §8."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, repeat
from math import inf
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
)

from dsh_codec._backend import kernel
from dsh_codec.errors import ReplayError, SidecarError, StreamError
from dsh_codec.events import is_array, is_object
from dsh_codec.sidecar import SETTLEMENTS, attempt_rows, current_log
from dsh_codec.sidecar_file import Sidecar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from types import TracebackType

    from dsh_codec.log import Log
    from dsh_codec.row import Event

__all__ = [
    "Clock",
    "Match",
    "Recorded",
    "ReplayAttempt",
    "ReplayCancelled",
    "ReplayChunk",
    "ReplayFailure",
    "ReplayModel",
    "SystemClock",
]

Match: TypeAlias = Literal["sequence", "coordinates"]

_CUT: Final = {"message": "recorded stream was cut", "code": "REPLAY_CUT"}
"""What an attempt fails with whose end was not recorded. Spec: 60 §8.1."""


# Both are what a model does, not what is wrong with a file: no refusals of this package.
class ReplayCancelled(Exception):  # noqa: N818 - the name of the spec
    """The recorded call was cancelled here; the harness under test is to do the same."""


class ReplayFailure(Exception):  # noqa: N818 - the name of the spec
    """The recorded call failed here.

    Attributes:
        failure: What it failed with: `message`, and mostly `code`.
    """

    failure: dict[str, Any]

    def __init__(self, failure: dict[str, Any]) -> None:
        """Take the failure."""
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        """Return its message."""
        return str(self.failure.get("message", "the recorded call failed"))


class Clock(Protocol):
    """What recorded pace waits on."""

    def wait(self, delay_ms: float, /) -> None:
        """Wait for some milliseconds."""
        ...

    async def wait_async(self, delay_ms: float, /) -> None:
        """Wait for some milliseconds and let other tasks run."""
        ...


class SystemClock:
    """The clock of this machine."""

    def wait(self, delay_ms: float, /) -> None:
        """Sleep."""
        time.sleep(delay_ms / 1000)

    async def wait_async(self, delay_ms: float, /) -> None:
        """Sleep in the event loop."""
        await asyncio.sleep(delay_ms / 1000)


class Recorded(NamedTuple):
    """The pace of the recording.

    Attributes:
        scale: What each delay is multiplied with, 0 or more: 0.5 is twice as fast.
    """

    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ReplayChunk:
    """One chunk of a replayed attempt.

    Attributes:
        index: Its position, from 0.
        time: Recorded time in milliseconds since the Unix epoch.
        delay_ms: Recorded milliseconds since the chunk before, 0 for the first and where the
            clock went back.
        chunk: The chunk as JSON.
    """

    index: int
    time: int
    delay_ms: int
    chunk: dict[str, Any]


class ReplayAttempt:
    """One recorded call of the model, to be played once or several times.

    Attributes:
        seq: Its settlement in the log.
        turn, step: Where it was made, from 1.
        number: `try` of the sidecar: replayable attempts of the same turn and step up to this
            one, from 1.
        kind: `message` or `attempt`.
        ending: `finish` or `cut`.
        cause: Why it was cut: `cancelled`, `error`, `unknown`; None if it was not.
        failure: What it failed with; only with cause `error`.
        is_synthetic: Whether its chunks were made from the message.
    """

    __slots__ = (
        "_clock",
        "_scale",
        "_timed",
        "cause",
        "ending",
        "failure",
        "is_synthetic",
        "kind",
        "number",
        "seq",
        "step",
        "turn",
    )

    def __init__(
        self,
        row: dict[str, Any],
        timed: Callable[[], Iterable[tuple[int, dict[str, Any]]]],
        *,
        is_synthetic: bool,
        scale: float | None,
        clock: Clock,
    ) -> None:
        """Take an attempt row and what yields its chunks; `scale` None means instant."""
        self.seq: int = row["seq"]
        self.turn: Any = row["turn"]
        self.step: Any = row["step"]
        self.number: int = row["try"]
        self.kind: str = row["kind"]
        self.ending: str = row["ending"]
        self.cause: str | None = row.get("cause")
        self.failure: dict[str, Any] | None = row.get("failure")
        self.is_synthetic = is_synthetic
        self._timed = timed
        self._scale = scale
        self._clock = clock

    def __repr__(self) -> str:
        """Return place and ending."""
        how = self.ending if self.cause is None else f"{self.ending}, {self.cause}"
        return (
            f"ReplayAttempt(seq={self.seq}, turn={self.turn}, step={self.step}, {how})"
        )

    def chunks(self) -> Iterator[ReplayChunk]:
        """Yield the chunks at the model's pace, then end as the recorded call did.

        Raises:
            ReplayCancelled: After the last chunk: the call was cancelled.
            ReplayFailure: After the last chunk: the call failed.
        """
        for chunk in self.recorded():
            if self._scale is not None and chunk.delay_ms:
                self._clock.wait(chunk.delay_ms * self._scale)
            yield chunk
        self._end()

    async def chunks_async(self) -> AsyncIterator[ReplayChunk]:
        """Yield what `chunks` yields, waiting in the event loop.

        Raises:
            ReplayCancelled, ReplayFailure: As for `chunks`.
        """
        for chunk in self.recorded():
            if self._scale is not None and chunk.delay_ms:
                await self._clock.wait_async(chunk.delay_ms * self._scale)
            yield chunk
        self._end()

    def recorded(self) -> Iterator[ReplayChunk]:
        """Yield the chunks without waiting, and end without an error."""
        last: int | None = None
        for index, (moment, chunk) in enumerate(self._timed()):
            delay_ms = 0 if last is None else max(0, moment - last)
            last = moment
            yield ReplayChunk(index, moment, delay_ms, chunk)

    def _end(self) -> None:
        if self.ending == "finish":
            return
        if self.cause == "cancelled":
            raise ReplayCancelled
        raise ReplayFailure(_CUT if self.failure is None else self.failure)


class ReplayModel:
    """A model that gives the recorded answers of one session, in their order.

    Example:
        >>> import dsh_codec as dsh
        >>> row = b'{"type":"session","version":4,"id":"s-1","createdAt":0,'
        >>> row += b'"isSeeded":false,"delegationDepth":0}' + bytes([10])
        >>> with ReplayModel(dsh.open(row)) as model:
        ...     [attempt.seq for attempt in model.attempts()]
        []
    """

    def __init__(
        self,
        source: Sidecar | Log,
        *,
        pace: Literal["instant"] | Recorded = "instant",
        match: Match = "sequence",
        synthesize: bool = False,
        strict: bool = True,
        clock: Clock | None = None,
        strict_current: bool = False,
    ) -> None:
        """Prepare a replay.

        Args:
            source: A sidecar, or a log with its streams; an older log is migrated in memory.
                It stays the caller's to close.
            pace: `instant`, or `Recorded(scale)`.
            match: `sequence`: each call gets the next attempt. `coordinates`: the next one of
                the turn and step that the call names.
            synthesize: Whether messages without a recorded stream get one. Only a log has the
                messages: join an assembled log and its sidecar first.
            strict: Whether attempts that nobody asked for are an error at the end.
            clock: What recorded pace waits on; None: the clock of this machine.
            strict_current: Whether a log of an older generation is refused.

        Raises:
            ValueError: An argument is none of these, or `synthesize` is set for a sidecar.
            UnsupportedError, MigrationRefusedError: An older log cannot be used.
        """
        _check_options(pace, match)
        if synthesize and isinstance(source, Sidecar):
            message = (
                "streams are made from messages, which a sidecar does not have: join it "
                "with its assembled log, and replay the result"
            )
            raise ValueError(message)
        self._scale = pace.scale if isinstance(pace, Recorded) else None
        self._clock: Clock = SystemClock() if clock is None else clock
        self._match = match
        self._with_synthesis = synthesize
        self._is_strict = strict
        self._stack = ExitStack()
        self._source = source
        if not isinstance(source, Sidecar):
            given = current_log(source, strict_current=strict_current)
            self._source = self._stack.enter_context(given)
        self._ahead = self.attempts()
        self._skipped: dict[bytes, deque[ReplayAttempt]] = {}
        self._is_closed = False

    def __enter__(self) -> Self:
        """Return the model."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the model; attempts that are left do not hide another error."""
        if error is not None:
            self._is_strict = False
        self.close()

    def attempts(self) -> Iterator[ReplayAttempt]:
        """Yield all replayable attempts in the order of their seqs.

        A pass of its own: it does not count as asking for them.

        Raises:
            SidecarError: A row or stream is damaged (`corrupt`).
            DshCodecError, OSError: As for iterating over the source.
        """
        source = self._source
        if isinstance(source, Sidecar):
            for row in source:
                _check_row(row, source.path)
                if row["replayable"]:
                    yield self._attempt(row, None)
            return
        settlements: Iterator[Event | None] = repeat(None)
        if self._with_synthesis:
            settlements = (event for event in source if event.type in SETTLEMENTS)
        for row, event in zip(attempt_rows(source), settlements, strict=False):
            if row["replayable"]:
                yield self._attempt(row, event)

    def next_attempt(
        self, turn: int | None = None, step: int | None = None
    ) -> ReplayAttempt:
        """Return the attempt that answers the next call.

        Args:
            turn: Turn of the call, for `match="coordinates"`.
            step: Step of the call, for `match="coordinates"`.

        Raises:
            ReplayError: There is none left (`exhausted`).
            TypeError: `match` is `coordinates`, and no turn and step are given.
            RuntimeError: The model is closed.
            SidecarError, DshCodecError, OSError: As for `attempts`.
        """
        if self._is_closed:
            message = "the model is closed"
            raise RuntimeError(message)
        if self._match == "sequence":
            for attempt in self._ahead:
                return attempt
            message = "the recording has no further attempt"
            raise _replay_error(message, self._source.path, "exhausted")
        if turn is None or step is None:
            message = "a replay by coordinates needs the turn and the step of each call"
            raise TypeError(message)
        wanted = kernel.dump([turn, step])
        waiting = self._skipped.get(wanted)
        if waiting:
            return waiting.popleft()
        for attempt in self._ahead:
            place = kernel.dump([attempt.turn, attempt.step])
            if place == wanted:
                return attempt
            self._skipped.setdefault(place, deque()).append(attempt)
        message = f"the recording has no further attempt of turn {turn}, step {step}"
        raise _replay_error(message, self._source.path, "exhausted")

    def close(self) -> None:
        """End the replay.

        Raises:
            ReplayError: `strict` is set, and attempts were not asked for (`unconsumed`).
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._is_strict:
                count, first = 0, None
                for attempt in chain(*self._skipped.values(), self._ahead):
                    count += 1
                    first = attempt.seq if first is None else min(first, attempt.seq)
                if count:
                    message = f"{count} attempts of the recording were not asked for"
                    raise _replay_error(message, self._source.path, "unconsumed", first)
        finally:
            self._skipped.clear()
            self._stack.close()

    def _attempt(self, row: dict[str, Any], event: Event | None) -> ReplayAttempt:
        records: list[Any] = row["stream"]
        is_synthetic = bool(
            self._with_synthesis
            and event is not None
            and row["kind"] == "message"
            and row["chunks"] == 0
        )

        def timed() -> Iterable[tuple[int, dict[str, Any]]]:
            if is_synthetic and event is not None:
                return _synthesize(event)
            return kernel.iter_expand(records)

        return ReplayAttempt(
            row,
            timed,
            is_synthetic=is_synthetic,
            scale=self._scale,
            clock=self._clock,
        )


def _check_options(pace: Any, match: Any) -> None:
    if match not in ("sequence", "coordinates"):
        message = f"match is 'sequence' or 'coordinates', not {match!r:.64}"
        raise ValueError(message)
    if isinstance(pace, Recorded):
        if not 0 <= pace.scale < inf:
            message = f"the scale of a pace is a finite number from 0, not {pace.scale}"
            raise ValueError(message)
    elif pace != "instant":
        message = f"pace is 'instant' or Recorded(scale), not {pace!r:.64}"
        raise ValueError(message)


def _check_row(row: dict[str, Any], path: str | None) -> None:
    """Check the members of a sidecar's row that a replay uses. Spec: 60 §6.2."""
    is_cut = row.get("ending") == "cut"
    cause = row.get("cause")
    is_sound = (
        row.get("kind") in ("message", "attempt")
        and {"turn", "step", "try", "chunks"} <= row.keys()
        and type(row.get("replayable")) is bool
        and row.get("ending") in ("finish", "cut")
        and (cause in ("cancelled", "error", "unknown") if is_cut else cause is None)
        and is_object(row.get("failure")) == (cause == "error")
    )
    if not is_sound:
        message = "a member of the attempt row is missing or of the wrong kind"
        raise _corrupt(message, path, row["seq"])
    if not row["replayable"]:
        return
    try:
        chunk_count = len(kernel.stream_columns(row["stream"]).time)
    except StreamError as error:
        message = f"the stream does not expand: {error.message}"
        raise _corrupt(message, path, row["seq"]) from error
    if chunk_count != row["chunks"]:
        message = f"the stream has {chunk_count} chunks, not as many as its row says"
        raise _corrupt(message, path, row["seq"])


def _synthesize(event: Event) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the chunks of a stream that assembles to a message. Spec: 60 §8.2.

    An interrupted message is no exception: a loop settles when the stream ends, not at its finish
    chunk (40 §2.2), and that chunk carries the replay state.
    """
    moment = event.time or 0
    data = event.data
    message = data.get("message")
    message = message if is_object(message) else {}
    content = message.get("content")
    has_call = False
    for index, block in enumerate(content if is_array(content) else ()):
        kind = block.get("type")
        yield moment, {"type": "block-start", "index": index, "blockType": kind}
        if kind == "tool-call":
            has_call = True
            yield (
                moment,
                {
                    "type": "tool-call-delta",
                    "index": index,
                    "id": block.get("id"),
                    "name": block.get("name"),
                    "argumentsDelta": block.get("arguments"),
                },
            )
        elif kind in ("text", "reasoning") and block.get("text"):
            delta = {"type": f"{kind}-delta", "index": index, "text": block["text"]}
            yield moment, delta
        yield moment, {"type": "block-end", "index": index, "block": block}
    usage = data.get("usage")
    if usage is not None:
        yield moment, {"type": "usage", "usage": usage}
    finish: dict[str, Any] = {
        "type": "finish",
        "reason": {"kind": "tool-calls" if has_call else "stop"},
    }
    source = message.get("source")
    if is_object(source) and "replayState" in source:
        finish["replayState"] = source["replayState"]
    yield moment, finish


def _corrupt(message: str, path: str | None, seq: int) -> SidecarError:
    return SidecarError(message, path, None, None, seq, None, "60 §6.2", "corrupt")


def _replay_error(
    message: str, path: str | None, reason: str, seq: int | None = None
) -> ReplayError:
    return ReplayError(message, path, None, None, seq, None, "60 §8", reason)
