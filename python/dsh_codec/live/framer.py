"""Producer: the frames of one model attempt, and the counters of its agent. Spec: 40 §2."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from dsh_codec._backend import kernel as default_kernel
from dsh_codec.live.frames import AttemptId, is_positive

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from dsh_codec._kernel import Assembler
    from dsh_codec.live.frames import (
        AgentFrame,
        ChunkFrame,
        EndFrame,
        EventType,
        Outcome,
        StartFrame,
    )

__all__ = ["AgentLifecycle", "Framer", "FramerState"]

FramerState: TypeAlias = Literal["idle", "open", "settling", "ended", "dead"]
"""The states of 40 §2.4, and `settling` while a settlement is awaited."""

_DELTAS: Final = frozenset(("text-delta", "reasoning-delta", "tool-call-delta"))
"""Chunks that packing checks more strictly than assembly does. Spec: 20 §3."""

_SCALARS: Final = frozenset((str, int, float, bool, type(None)))


class AgentLifecycle:
    """Counters of one agent from its creation to its disposal. Spec: 40 §2.1.

    Attributes:
        session_id: Session of the agent; the first part of every attempt id.
        attempts: Attempts that took an id, started or not.
        revision: Frames emitted.

    Example:
        >>> frames = []
        >>> framer = AgentLifecycle("s", emit=frames.append, clock=lambda: 100).framer(1, 1)
        >>> _ = framer.start()
        >>> _ = framer.push({"type": "text-delta", "index": 0, "text": "He"})
        >>> _ = framer.settle("assistant/message", lambda: 5)
        >>> [frame["revision"] for frame in frames], frames[-1]["outcome"]["seq"]
        ([1, 2, 3], 5)
    """

    def __init__(
        self,
        session_id: str,
        *,
        emit: Callable[[AgentFrame], None],
        clock: Callable[[], int],
        kernel: Any = None,
    ) -> None:
        """Start the counters at 0.

        Args:
            session_id: Id of the session.
            emit: Receives every frame, in order; the host hands it to the accumulator, then to
                the followers. It must not raise.
            clock: Returns milliseconds since the Unix epoch.
            kernel: Kernel that packs and assembles; None takes the one in use.
        """
        self.session_id = session_id
        self.attempts = 0
        self.revision = 0
        self._emit = emit
        self._clock = clock
        self._kernel = default_kernel if kernel is None else kernel

    def framer(self, turn: int, step: int) -> Framer:
        """Return the framer of a new attempt. It takes the next id, whether it starts or not.

        Raises:
            ValueError: `turn` or `step` is no integer from 1.
        """
        if not is_positive(turn) or not is_positive(step):
            message = f"turn and step have to be integers from 1, not {turn}, {step}"
            raise ValueError(message)
        self.attempts += 1
        attempt_id = AttemptId(f"{self.session_id}:{self.attempts}")
        return Framer(self, attempt_id, turn, step, self._clock, self._kernel)

    def send(self, frame: AgentFrame) -> None:
        """Emit a frame that carries the next revision. For framers only."""
        self.revision = frame["revision"]
        self._emit(frame)


class Framer:
    """Frames, compact stream and blocks of one attempt. Made by `AgentLifecycle.framer`.

    Attributes:
        attempt_id: Id of the attempt.
        turn, step: Where it runs, from 1.
        assembler: Assembles the same chunks; read it, do not push.

    Memory: the compact stream and the assembled text.
    """

    def __init__(
        self,
        lifecycle: AgentLifecycle,
        attempt_id: AttemptId,
        turn: int,
        step: int,
        clock: Callable[[], int],
        kernel: Any,
    ) -> None:
        """Take what `AgentLifecycle.framer` gives."""
        self.attempt_id = attempt_id
        self.turn = turn
        self.step = step
        self.assembler: Assembler = kernel.Assembler()
        self._lifecycle = lifecycle
        self._clock = clock
        self._kernel = kernel
        self._packer = kernel.Packer()
        self._count = 0
        self._state: FramerState = "idle"

    @property
    def state(self) -> FramerState:
        """Where the attempt stands. Spec: 40 §2.4."""
        return self._state

    @property
    def chunk_count(self) -> int:
        """Chunks emitted."""
        return self._count

    def records(self) -> list[dict[str, Any]]:
        """Return the compact stream so far, detached. Spec: 20 §2."""
        records: list[dict[str, Any]] = self._packer.snapshot()
        return records

    def _require(self, state: FramerState) -> None:
        if self._state != state:
            message = f"attempt {self.attempt_id} is {self._state}, not {state}"
            raise RuntimeError(message)

    def start(self) -> StartFrame:
        """Emit the start frame.

        Raises:
            RuntimeError: The framer is not idle.
        """
        self._require("idle")
        self._state = "open"
        frame: StartFrame = {
            "type": "start",
            "attemptId": self.attempt_id,
            "revision": self._lifecycle.revision + 1,
            "turn": self.turn,
            "step": self.step,
        }
        self._lifecycle.send(frame)
        return frame

    def discard(self) -> None:
        """Give the attempt up before its start: acquisition failed, or it was cancelled.

        Raises:
            RuntimeError: The framer is not idle.
        """
        self._require("idle")
        self._state = "dead"

    def push(self, chunk: Mapping[str, Any]) -> ChunkFrame:
        """Take the next chunk and emit it.

        Args:
            chunk: A chunk of 20 §1; copied.

        Returns:
            The frame; its time is what the clock said once, also in the compact stream.

        Raises:
            UnknownChunkError, StreamError: The chunk is refused by packing or assembly. Nothing
                is emitted, counted or kept then.
            RuntimeError: The framer is not open.

        Note:
            Spec: 40 §2.2.
        """
        if self._state != "open":
            self._require("open")
        time = self._clock()
        kind = chunk.get("type") if isinstance(chunk, dict) else None
        if type(kind) is not str or kind not in _DELTAS:
            # The packer takes any raw chunk, and what it took cannot be taken back.
            self._kernel.Assembler().push(chunk)
        self._packer.push(time, chunk)
        detached = _copy(chunk)
        self.assembler.push(detached)
        frame: ChunkFrame = {
            "type": "chunk",
            "attemptId": self.attempt_id,
            "revision": self._lifecycle.revision + 1,
            "index": self._count,
            "time": time,
            "chunk": detached,
        }
        self._count += 1
        self._lifecycle.send(frame)
        return frame

    def settle(self, event_type: EventType, append: Callable[[], int]) -> EndFrame:
        """Append the settlement to the log, then emit a committed end.

        Args:
            event_type: Type of the settlement.
            append: Appends it durably and returns its seq.

        Raises:
            BaseException: What `append` raised, after an abandoned end was emitted.
            RuntimeError: The framer is not open.
        """
        self._require("open")
        try:
            seq = append()
        except BaseException:
            self.abandon()
            raise
        return self._end({"kind": "committed", "eventType": event_type, "seq": seq})

    async def settle_async(
        self, event_type: EventType, append: Callable[[], Awaitable[int]]
    ) -> EndFrame:
        """Do what `settle` does, with an append that is awaited.

        Args:
            event_type: Type of the settlement.
            append: Appends it durably and returns its seq.

        Raises:
            BaseException: What `append` raised, after an abandoned end was emitted.
            CancelledError: The task was cancelled meanwhile. The append was waited for all the
                same, and the end that it led to was emitted.
            RuntimeError: The framer is not open. It takes nothing while the append is awaited.
        """
        self._require("open")
        self._state = "settling"
        appending = asyncio.ensure_future(append())
        cancellation: asyncio.CancelledError | None = None
        while not appending.done():
            try:
                await asyncio.wait([appending])
            except asyncio.CancelledError as error:
                # What is on its way to the disk cannot be called back: see what comes of it.
                cancellation = error
        self._state = "open"
        try:
            seq = appending.result()
        except BaseException:
            self.abandon()
            raise
        end = self._end({"kind": "committed", "eventType": event_type, "seq": seq})
        if cancellation is not None:
            raise cancellation
        return end

    def abandon(self) -> EndFrame:
        """Emit an abandoned end: no durable event belongs to the attempt.

        Raises:
            RuntimeError: The framer is not open.
        """
        self._require("open")
        return self._end({"kind": "abandoned"})

    def _end(self, outcome: Outcome) -> EndFrame:
        self._state = "ended"
        frame: EndFrame = {
            "type": "end",
            "attemptId": self.attempt_id,
            "revision": self._lifecycle.revision + 1,
            "index": self._count,
            "outcome": outcome,
        }
        self._lifecycle.send(frame)
        return frame


def _copy(chunk: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy of a chunk that packing has accepted, so it is finite JSON."""
    copied = dict(chunk)
    for item in copied.values():
        if type(item) not in _SCALARS:
            break
    else:
        return copied  # Every delta.
    pending: list[Any] = [copied]
    while pending:
        container = pending.pop()
        members = container.items() if type(container) is dict else enumerate(container)
        for key, item in members:
            if type(item) not in _SCALARS:
                inner = dict(item) if isinstance(item, dict) else list(item)
                container[key] = inner  # The key is there: its value is exchanged only.
                pending.append(inner)
    return copied
