"""Host: one open follow call, with one FIFO for events and frames. Spec: 40 §4."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from dsh_codec.errors import SeqGapError
from dsh_codec.live.page import MAX_MESSAGES, cut_page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsh_codec.live.frames import (
        AgentFrame,
        BaselineSnapshot,
        Event,
        EventItem,
        FollowItem,
        FollowSnapshot,
        FrameItem,
        Projections,
    )

__all__ = ["MAX_QUEUE_ITEMS", "CloseReason", "Follower", "frame_item"]

MAX_QUEUE_ITEMS: Final = 4096
"""Items that wait for a consumer before its follow is closed as too slow."""

CloseReason: TypeAlias = Literal["cancelled", "shutdown", "slow-consumer", "gap"]
"""Why a follow ended. After `slow-consumer` the client opens anew and loses nothing."""


def frame_item(frame: AgentFrame, durable_cursor: int) -> FrameItem:
    """Return what every follower delivers for a frame.

    Args:
        frame: The frame.
        durable_cursor: Last committed seq now, -1 if there is none.

    Note:
        A start frame gets it as `startedAfterSeq`. Spec: 40 §4.1.
    """
    if frame["type"] == "start":
        return {
            "type": "assistant-stream",
            "frame": {**frame, "startedAfterSeq": durable_cursor},
        }
    return {"type": "assistant-stream", "frame": frame}


class Follower:
    """Queue, opening cut and delivery of one follow call.

    Sources push from the moment of construction; `open` takes the cut, once; `poll` delivers.
    Nothing waits here: the caller knows when something was pushed.

    Memory: at most `max_queue_items` references to items that all followers share. When a
    consumer is so slow that there would be more, the follow closes with `slow-consumer` and drops
    its queue. Choice: closing loses nothing, because a new opening brings page and baseline;
    dropping frames would be a gap, and waiting would stop the producer.
    """

    def __init__(
        self,
        *,
        assistant_stream: bool = False,
        max_queue_items: int = MAX_QUEUE_ITEMS,
    ) -> None:
        """Subscribe, before the log is read.

        Args:
            assistant_stream: Whether the request opted in to frames.
            max_queue_items: Items that may wait.
        """
        self._assistant_stream = assistant_stream
        self._max_queue_items = max_queue_items
        self._queue: deque[EventItem | FrameItem] = deque()
        self._is_open = False
        self._snapshot: FollowSnapshot | None = None
        self._next_seq = 0
        self._closed: CloseReason | None = None

    @property
    def assistant_stream(self) -> bool:
        """Whether frames are delivered."""
        return self._assistant_stream

    @property
    def is_open(self) -> bool:
        """Whether the opening cut has been taken."""
        return self._is_open

    @property
    def closed(self) -> CloseReason | None:
        """Why the follow ended, or None while it runs."""
        return self._closed

    def __len__(self) -> int:
        """Return the number of queued items."""
        return len(self._queue)

    # --- sources (40 §4.1) ---

    def push_event(self, event: Event) -> None:
        """Take a committed event of the session."""
        self.push({"type": "event", "event": event})

    def push_frame(self, frame: AgentFrame, durable_cursor: int) -> None:
        """Take a frame of the session's agent, after the accumulator has.

        Args:
            frame: The frame.
            durable_cursor: Last committed seq now, -1 if there is none.
        """
        self.push(frame_item(frame, durable_cursor))

    def push(self, item: EventItem | FrameItem) -> bool:
        """Take what all followers of the session get; the item is shared, not copied.

        Returns:
            Whether the consumer has to be told: the queue was empty, or the follow has just
            closed.
        """
        # Spec 40 §4.2 cuts by order of arrival: what arrives before the opening is in the baseline,
        # or made obsolete by it. Such frames are not queued, so no ordinal has to be kept.
        if item["type"] == "assistant-stream" and not (
            self._assistant_stream and self._is_open
        ):
            return False
        queue = self._queue
        if len(queue) >= self._max_queue_items:
            self.close("slow-consumer")
            return True
        if self._closed is not None:
            return False
        queue.append(item)
        return len(queue) == 1

    def push_recreated(self, events: Sequence[Event], first_live_seq: int) -> None:
        """Take the events of a session object that was (re)created under the followed id.

        Args:
            events: All its events, from seq 0.
            first_live_seq: First event that is no constructor seed; it counts before the opening.

        Note:
            They go to the front, since they were committed before what waits. Spec: 40 §4.1.
        """
        # What was delivered since the opening would be dropped as a duplicate.
        first = self._next_seq if self._is_open else first_live_seq
        count = max(len(events) - first, 0)
        if self._closed is not None:
            return
        if len(self._queue) + count > self._max_queue_items:
            self.close("slow-consumer")
            return
        for event in reversed(events[first:]):
            self._queue.appendleft({"type": "event", "event": event})

    # --- opening cut (40 §4.2) ---

    def open(
        self,
        header: dict[str, Any],
        events: Sequence[Event],
        baseline: BaselineSnapshot | None,
        *,
        projections: Projections | None = None,
        max_messages: int = MAX_MESSAGES,
        turn_window: Mapping[str, int] | None = None,
    ) -> None:
        """Take the opening cut. Everything given has to be of one moment.

        Args:
            header: Logical header of the log.
            events: The log from seq 0 up to its cursor.
            baseline: Snapshot of the accumulator, None if there is no accumulator.
            projections: Derived values; None gives none, as of the cursor.
            max_messages: Bound of the page, see `cut_page`.
            turn_window: Bound of the page, see `cut_page`.

        Raises:
            ValueError: A bad request.
            RuntimeError: The cut has been taken before, or the follow is closed.
        """
        if self._closed is not None or self._is_open:
            message = "the follow has been opened, or is closed"
            raise RuntimeError(message)
        cursor = len(events) - 1
        page = cut_page(
            events, cursor, max_messages=max_messages, turn_window=turn_window
        )
        snapshot: FollowSnapshot = {
            "type": "snapshot",
            "header": header,
            "cursor": cursor,
            "records": page["records"],
            "hasMore": page["hasMore"],
            "projections": projections or {"asOfSeq": cursor, "values": {}},
        }
        if self._assistant_stream:
            snapshot["assistantStream"] = baseline or {"revision": 0}
        self._snapshot = snapshot
        self._next_seq = cursor + 1
        self._is_open = True

    # --- delivery (40 §4.3) ---

    def poll(self) -> FollowItem | None:
        """Return the next output: the snapshot first, then events and frames in order.

        Returns:
            None when nothing is to be delivered now: before the opening, when the queue is
            empty, or when `closed` says that nothing will come.

        Raises:
            SeqGapError: An event is missing in the queue; the follow is closed with `gap`.

        Note:
            Constant time for each item queued.
        """
        items = self.take(1)
        return items[0] if items else None

    def take(self, max_items: int) -> list[FollowItem]:
        """Return what `poll` would return if it was called so often.

        Args:
            max_items: Outputs at most, from 1.

        Raises:
            SeqGapError: As for `poll`; outputs before the gap are returned first.
        """
        items: list[FollowItem] = []
        if self._closed is not None or not self._is_open:
            return items
        if self._snapshot is not None:
            items.append(self._snapshot)
            self._snapshot = None
        queue = self._queue
        while queue and len(items) < max_items:
            item = queue[0]
            if item["type"] == "event":
                seq = item["event"]["seq"]
                if seq > self._next_seq:
                    if items:
                        break
                    self.close("gap")
                    message = "a follow skipped an event; open it anew"
                    place = (None, None, None, seq, None, "40 §4.3")
                    raise SeqGapError(message, *place, self._next_seq, seq)
                queue.popleft()
                if seq < self._next_seq:
                    continue
                self._next_seq += 1
            else:
                queue.popleft()
            items.append(item)
        return items

    def close(self, reason: CloseReason = "cancelled") -> None:
        """End the follow and drop what waits. The first reason stays."""
        if self._closed is None:
            self._closed = reason
            self._queue.clear()
            self._snapshot = None
