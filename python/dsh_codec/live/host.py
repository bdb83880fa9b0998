"""Host: one session with its log, its agent and its followers. Spec: 40 §3, §4.

Synchronous and without I/O of its own. The log is handed in; events and frames reach accumulator and
followers in the order in which they happen.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from dsh_codec.events import is_object
from dsh_codec.live.baseline import Baseline
from dsh_codec.live.follower import MAX_QUEUE_ITEMS, Follower, frame_item
from dsh_codec.live.framer import AgentLifecycle
from dsh_codec.live.page import MAX_MESSAGES, check_bounds, cut_page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dsh_codec.live.frames import AgentFrame, Event, EventItem, FrameItem, Page

__all__ = ["AnyLog", "AsyncSessionLog", "Host", "SessionLog"]


class AnyLog(Protocol):
    """What a host reads of a log."""

    @property
    def header(self) -> dict[str, Any]:
        """Logical header, with the session's `id`."""
        ...

    @property
    def events(self) -> Sequence[Event]:
        """Committed events from seq 0, `sourceEventSeqs` expanded."""
        ...


class SessionLog(AnyLog, Protocol):
    """A log that is appended to at once, such as `WriterLog`."""

    def append(self, event: dict[str, Any], /) -> Event:
        """Append an event durably.

        Args:
            event: `type`, `data`, and what else it has but seq and time.

        Returns:
            The committed event; `events` holds it from now on.
        """
        ...


class AsyncSessionLog(AnyLog, Protocol):
    """A log whose appends are awaited, such as `AsyncWriterLog`."""

    async def append(self, event: dict[str, Any], /) -> Event:
        """Append an event durably, after those of earlier calls. As for `SessionLog.append`."""
        ...


class Host:
    """Binds a log, the agent that writes to it, and any number of followers.

    All methods are to be called from one thread. Memory: the accumulator and one bounded queue
    for each follower.
    """

    def __init__(
        self,
        log: SessionLog | AsyncSessionLog,
        *,
        clock: Callable[[], int],
        kernel: Any = None,
        max_queue_items: int = MAX_QUEUE_ITEMS,
    ) -> None:
        """Attach to a log.

        Args:
            log: The log. With an `AsyncSessionLog` use `append_async`.
            clock: Returns milliseconds since the Unix epoch.
            kernel: Kernel for framers and accumulator; None takes the one in use.
            max_queue_items: Items that may wait for one follower.
        """
        self._log = log
        self._clock = clock
        self._kernel = kernel
        self._max_queue_items = max_queue_items
        self._baseline: Baseline | None = None
        self._agent = 0
        self._followers: dict[Follower, Callable[[], None] | None] = {}

    @property
    def cursor(self) -> int:
        """Last committed seq, -1 for an empty log."""
        return len(self._log.events) - 1

    @property
    def follower_count(self) -> int:
        """Followers that are subscribed."""
        return len(self._followers)

    # --- producer side ---

    def append(self, event: dict[str, Any]) -> int:
        """Append an event durably and hand it to the followers.

        Args:
            event: As for `SessionLog.append`.

        Returns:
            Its seq.

        Raises:
            OSError, DshCodecError: What the log raised; nothing was handed on then.
        """
        committed = self._log.append(event)
        if not isinstance(committed, dict):
            committed.close()
            message = "the appends of this log are awaited: use append_async"
            raise TypeError(message)
        return self._hand_on(committed)

    async def append_async(self, event: dict[str, Any]) -> int:
        """Append an event durably and hand it to the followers.

        Args:
            event: As for `SessionLog.append`.

        Returns:
            Its seq.

        Raises:
            OSError, DshCodecError: What the log raised; nothing was handed on then.

        Note:
            A caller that is cancelled meanwhile does not stop the append: what reaches the log
            reaches the followers.
        """
        return await asyncio.shield(asyncio.ensure_future(self._append_awaited(event)))

    async def _append_awaited(self, event: dict[str, Any]) -> int:
        committed = self._log.append(event)
        return self._hand_on(
            committed if isinstance(committed, dict) else await committed
        )

    def _hand_on(self, committed: Event) -> int:
        self._push({"type": "event", "event": committed})
        seq: int = committed["seq"]
        return seq

    def attach(self, log: SessionLog | AsyncSessionLog, *, first_live_seq: int) -> None:
        """Go on with another log object of the same session, such as one that was opened anew.

        The agent of the old one is disposed. Followers get what they have not seen of its events,
        and stay.

        Args:
            log: The log; it holds at least the events that were committed before.
            first_live_seq: First event that is no seed of the log's creation; a follower that is
                not open yet gets the events from there on. Spec: 40 §4.1.

        Raises:
            ValueError: It is the log of another session, or lacks events.
        """
        if log.header["id"] != self._log.header["id"] or len(log.events) <= self.cursor:
            message = "the log is of another session, or lacks events of the one before"
            raise ValueError(message)
        self.dispose_agent()
        self._log = log
        for follower, wake in tuple(self._followers.items()):
            follower.push_recreated(log.events, first_live_seq)
            self._woken(follower, wake)

    def create_agent(self) -> AgentLifecycle:
        """Return the counters of a new agent, whose frames come here.

        The one before is replaced: frames that it still emits are dropped, and its attempt is in
        no baseline any more.
        """
        self.dispose_agent()
        number = self._agent

        def emit(frame: AgentFrame) -> None:
            if number == self._agent:
                self._emit(frame)

        session_id: str = self._log.header["id"]
        return AgentLifecycle(
            session_id, emit=emit, clock=self._clock, kernel=self._kernel
        )

    def dispose_agent(self) -> None:
        """Forget the agent and its baseline."""
        self._agent += 1
        self._baseline = None

    def _emit(self, frame: AgentFrame) -> None:
        if self._baseline is None:
            self._baseline = Baseline(kernel=self._kernel)
        # The accumulator sees a frame before the followers do. Spec 40 §4.1.
        cursor = self.cursor
        self._baseline.accept(frame, cursor)
        self._push(frame_item(frame, cursor))

    def _push(self, item: EventItem | FrameItem) -> None:
        """Give one item to all followers, which share it."""
        closed: list[Follower] = []
        for follower, wake in self._followers.items():
            if follower.push(item):
                if follower.closed is not None:
                    closed.append(follower)
                if wake is not None:
                    wake()
        for follower in closed:
            self._followers.pop(follower, None)

    def _woken(self, follower: Follower, wake: Callable[[], None] | None) -> None:
        if follower.closed is not None:
            self._followers.pop(follower, None)
        if wake is not None:
            wake()

    # --- consumer side ---

    def follow(
        self,
        request: Mapping[str, Any],
        *,
        wake: Callable[[], None] | None = None,
    ) -> Follower:
        """Subscribe a follower and take its opening cut.

        Args:
            request: Follow request (40 §1.3); its address has been resolved to this session.
            wake: Called when something is pushed to a follower that had nothing to deliver, and
                when the follow is closed by the host: poll until None then. It must not call
                back into the host.

        Returns:
            The follower, with its snapshot to be polled first.

        Raises:
            ValueError: A bad request.
        """
        follower = self.subscribe(request, wake=wake)
        try:
            self.open(follower, request)
        except ValueError:
            self.leave(follower)
            raise
        return follower

    def subscribe(
        self,
        request: Mapping[str, Any],
        *,
        wake: Callable[[], None] | None = None,
    ) -> Follower:
        """Subscribe a follower without opening it: for a log that is still being read.

        Args:
            request: As for `follow`.
            wake: As for `follow`. `open` does not call it.

        Returns:
            The follower.

        Raises:
            ValueError: A bad request.
        """
        check_bounds(request)
        opted_in = request.get("assistantStream", False)
        if type(opted_in) is not bool:
            message = "bad-request: assistantStream has to be true or absent"
            raise ValueError(message)
        follower = Follower(
            assistant_stream=opted_in, max_queue_items=self._max_queue_items
        )
        self._followers[follower] = wake
        return follower

    def open(self, follower: Follower, request: Mapping[str, Any]) -> None:
        """Take the opening cut of a subscribed follower. Spec: 40 §4.2.

        Raises:
            ValueError: A bad request.
            RuntimeError: The follower has been opened, or is closed.
        """
        baseline = None if self._baseline is None else self._baseline.snapshot()
        follower.open(
            self._log.header, self._log.events, baseline, **_bounds_of(request)
        )

    def leave(self, follower: Follower) -> None:
        """End a follow and release its subscription."""
        follower.close()
        self._followers.pop(follower, None)

    def shut_down(self) -> None:
        """End all follows."""
        for follower, wake in tuple(self._followers.items()):
            follower.close("shutdown")
            self._woken(follower, wake)

    def page(self, request: Mapping[str, Any]) -> Page:
        """Answer a page request. It has no baseline.

        Raises:
            ValueError: A bad request.
        """
        if "throughSeq" not in request:
            message = "bad-request: throughSeq is missing"
            raise ValueError(message)
        if "beforeSeq" in request and request["beforeSeq"] is None:
            message = "bad-request: beforeSeq has to be an integer from 0"
            raise ValueError(message)
        return cut_page(
            self._log.events,
            request["throughSeq"],
            before_seq=request.get("beforeSeq"),
            **_bounds_of(request),
        )


def _bounds_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds of a page as `cut_page` names them."""
    window = request.get("turnWindow")
    if "turnWindow" in request and not is_object(window):
        message = "bad-request: turnWindow has to be {minMessages, minTurns}"
        raise ValueError(message)
    return {
        "max_messages": request.get("maxMessages", MAX_MESSAGES),
        "turn_window": window,
    }
