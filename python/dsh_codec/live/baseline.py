"""Host accumulator: what a new follower has to know about the running attempt. Spec: 40 §3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_codec._backend import kernel as default_kernel

if TYPE_CHECKING:
    from dsh_codec._kernel import Packer
    from dsh_codec.live.frames import (
        ActiveAttempt,
        AgentFrame,
        BaselineSnapshot,
        ChunkFrame,
        StartFrame,
    )

__all__ = ["Baseline"]


class _Open:
    """The active attempt while it is folded."""

    __slots__ = (
        "attempt_id",
        "next_index",
        "packer",
        "started_after_seq",
        "step",
        "turn",
    )

    def __init__(self, frame: StartFrame, durable_cursor: int, packer: Packer) -> None:
        self.attempt_id = frame["attemptId"]
        self.started_after_seq = durable_cursor
        self.turn = frame["turn"]
        self.step = frame["step"]
        self.next_index = 0
        self.packer = packer

    def describe(self) -> ActiveAttempt:
        return {
            "attemptId": self.attempt_id,
            "startedAfterSeq": self.started_after_seq,
            "turn": self.turn,
            "step": self.step,
            "nextIndex": self.next_index,
            "stream": self.packer.snapshot(),
        }


class Baseline:
    """Folds the frames of one session's agent into a baseline that all followers share.

    Memory: the compact stream of the active attempt, twice while a snapshot of it is cached.

    Example:
        >>> baseline = Baseline()
        >>> start = {"type": "start", "attemptId": "s:1", "revision": 1, "turn": 1, "step": 1}
        >>> baseline.accept(start, 4)
        >>> baseline.snapshot()["activeAttempt"]["startedAfterSeq"]
        4
    """

    def __init__(self, *, kernel: Any = None) -> None:
        """Start without frames.

        Args:
            kernel: Kernel whose `Packer` folds the chunks; None takes the one in use.
        """
        self._kernel = default_kernel if kernel is None else kernel
        self._revision = 0
        self._active: _Open | None = None
        self._snapshot: BaselineSnapshot = {"revision": 0}
        self._is_dirty = False

    @property
    def revision(self) -> int:
        """Last accepted revision, 0 before any frame."""
        return self._revision

    def accept(self, frame: AgentFrame, durable_cursor: int) -> None:
        """Take the next frame.

        Args:
            frame: The frame, before any follower sees it.
            durable_cursor: Last committed seq at this moment, -1 if there is none.

        Raises:
            StreamError: The compact stream refuses the chunk (20 §3). Nothing has changed then.

        Note:
            Constant time. Spec: 40 §3, rows 1 to 6.
        """
        revision = frame["revision"]
        if frame["type"] == "start" and revision == 1 and self._revision != 0:
            self._active = None
            self._revision = 0
        if revision != self._revision + 1:
            self._active = None
        elif frame["type"] == "start":
            self._active = _Open(frame, durable_cursor, self._kernel.Packer())
        elif frame["type"] == "chunk":
            self._fold(frame)
        else:
            self._active = None
        self._revision = revision
        self._is_dirty = True

    def _fold(self, frame: ChunkFrame) -> None:
        active = self._active
        if (
            active is not None
            and frame["attemptId"] == active.attempt_id
            and frame["index"] == active.next_index
        ):
            active.packer.push(frame["time"], frame["chunk"])
            active.next_index += 1
        else:
            self._active = None

    def snapshot(self) -> BaselineSnapshot:
        """Return the baseline after the last accepted frame.

        Returns:
            The same object until the next frame is accepted, for all callers: it must not be
            changed. Frames accepted later leave it as it is.

        Note:
            Linear in the stream for the first call after a frame, then constant. Spec: 40 §3.
        """
        if self._is_dirty:
            self._snapshot = {"revision": self._revision}
            if self._active is not None:
                self._snapshot["activeAttempt"] = self._active.describe()
            self._is_dirty = False
        return self._snapshot
