"""Client: a reconnecting follow as one contiguous journal. Spec: 40 §5.

The journal asks for I/O by its outputs (`Open`, `Stop`, `ReadPage`) and is told the results by its
inputs. What it publishes (`Replace`, `Append`, `Prepend`, `Notify`) is for the reconciler.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, TypeAlias

from dsh_codec.errors import DshCodecError, RowError, StreamError
from dsh_codec.events import is_array, is_filled, is_object
from dsh_codec.live.frames import check_baseline, check_frame, is_cursor
from dsh_codec.rules.vocabulary import metadata_fault
from dsh_codec.values import is_count, is_sint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsh_codec.live.frames import BaselineSnapshot, Event, WireFrame

__all__ = [
    "MAX_HELD_ITEMS",
    "Append",
    "Fatal",
    "HeldPolicy",
    "Journal",
    "JournalOutput",
    "Notify",
    "Open",
    "Prepend",
    "ReadPage",
    "Replace",
    "Report",
    "Stop",
]

HeldPolicy: TypeAlias = Literal["reopen", "apply"]
"""What a gap repair does with the frames that arrived meanwhile. Spec: 40 §5.3."""

MAX_HELD_ITEMS: Final = 4096
"""Items that may arrive while a gap is repaired; more restart the journal."""

_MAX_OUTPUTS: Final = 4 * MAX_HELD_ITEMS
"""Outputs that may wait for `poll`; more are a caller who never polls."""


@dataclass(frozen=True, slots=True)
class Open:
    """Open a follow.

    Attributes:
        generation: Its number, from 1; to be given with everything that it delivers.
    """

    generation: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel a follow; what it still delivers is ignored.

    Attributes:
        generation: Its number.
    """

    generation: int


@dataclass(frozen=True, slots=True)
class ReadPage:
    """Read a page.

    Attributes:
        request_id: To be given with the answer.
        through_seq: Last seq of the page at most.
        before_seq: The page ends before this seq; None sets no bound.
    """

    request_id: int
    through_seq: int
    before_seq: int | None


@dataclass(frozen=True, slots=True)
class Replace:
    """The journal is these events now.

    Attributes:
        events: Contiguous events up to the cursor.
        has_more: Whether the log has events before them.
        baseline: Baseline of the same cut; None after a gap repair, or without opting in.
        opening: The snapshot of the follow; None after a gap repair.
    """

    events: tuple[Event, ...]
    has_more: bool
    baseline: BaselineSnapshot | None
    opening: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Append:
    """The next event.

    Attributes:
        event: The event.
    """

    event: Event


@dataclass(frozen=True, slots=True)
class Prepend:
    """Older events, directly before the first.

    Attributes:
        events: Contiguous; may be empty.
        has_more: Whether the log has events before them.
    """

    events: tuple[Event, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class Notify:
    """A frame; it moves no cursor.

    Attributes:
        frame: The frame, in the order of its generation.
    """

    frame: WireFrame


@dataclass(frozen=True, slots=True)
class Report:
    """Older history could not be had; the journal goes on.

    Attributes:
        error: Why.
    """

    error: Exception


@dataclass(frozen=True, slots=True)
class Fatal:
    """The journal is over. What it published stays.

    Attributes:
        error: Why.
    """

    error: Exception


JournalOutput: TypeAlias = (
    Open | Stop | ReadPage | Replace | Append | Prepend | Notify | Report | Fatal
)


@dataclass(slots=True)
class _Repair:
    """A gap repair under way. Spec: 40 §5.3."""

    request_id: int
    target: int
    reads: int = 1
    queued: dict[int, Event] = field(default_factory=dict)
    held: list[WireFrame] = field(default_factory=list)


class _Page(NamedTuple):
    events: tuple[Event, ...]
    has_more: bool


class Journal:
    """Generations, continuity, gap repair and older history of one followed session.

    After each input call `poll` until it returns None.

    Memory: nothing of the journal itself; during a gap repair at most `max_held_items` items.
    """

    def __init__(
        self,
        *,
        assistant_stream: bool = True,
        held_after_repair: HeldPolicy = "reopen",
        max_held_items: int = MAX_HELD_ITEMS,
        is_connected: bool = True,
    ) -> None:
        """Prepare a journal; `start` opens it.

        Args:
            assistant_stream: Whether follows opt in to frames.
            held_after_repair: `reopen`: frames that arrive during a gap repair are discarded and
                the follow is opened anew; `apply`: they are delivered after the page.
            max_held_items: Items that may arrive during a gap repair.
            is_connected: Whether the connection is up.
        """
        self._assistant_stream = assistant_stream
        self._held_after_repair = held_after_repair
        self._max_held_items = max_held_items
        self._is_connected = is_connected
        self._outputs: deque[JournalOutput] = deque()
        self._is_started = False
        self._error: Exception | None = None
        self._generation = 0
        self._is_running = False
        self._is_accepted = False
        self._failures = 0  # Carrier failures since the last accepted opening.
        self._revision = 0
        self._first: int | None = None
        self._last = -1
        self._request_id = 0
        self._repair: _Repair | None = None
        self._history_id: int | None = None

    @property
    def assistant_stream(self) -> bool:
        """Whether follows opt in to frames."""
        return self._assistant_stream

    @property
    def generation(self) -> int:
        """Number of the last follow that was asked for, 0 before the first."""
        return self._generation

    @property
    def first(self) -> int | None:
        """First seq of the journal, None if it is empty."""
        return self._first

    @property
    def last(self) -> int:
        """Last seq of the journal: its durable cursor, -1 before any event."""
        return self._last

    @property
    def is_current(self) -> bool:
        """Whether the running follow has delivered its opening and no gap is open."""
        return self._is_accepted and self._is_running and self._repair is None

    @property
    def error(self) -> Exception | None:
        """Why the journal is over, or None."""
        return self._error

    def poll(self) -> JournalOutput | None:
        """Return the next output, in order; None when there is none."""
        return self._outputs.popleft() if self._outputs else None

    # --- life of the follow ---

    def start(self) -> None:
        """Open the first follow, now or once the connection is up."""
        self._is_started = True
        self._open()

    def connect(self) -> None:
        """Learn that the connection is up."""
        self._is_connected = True
        self._open()

    def disconnect(self) -> None:
        """Learn that the connection is down: the running follow is gone with it."""
        self._is_connected = False
        if self._error is None:
            self._leave()

    def restart(self) -> None:
        """Abandon the running follow and open a new one. The count of failures starts anew."""
        if self._error is not None or not self._is_started:
            return
        # Frames that nobody has taken yet belong to the follow that is abandoned.
        waiting = (item for item in self._outputs if not isinstance(item, Notify))
        self._outputs = deque(waiting)
        self._stop()
        self._failures = 0
        self._open()

    def carrier_failed(self, generation: int) -> None:
        """Learn that a follow broke off: connection lost, closed as too slow, host restarted.

        Note:
            The second one without an accepted opening in between is fatal. One that comes while
            the connection is down does not count: the journal waits. Spec: 40 §5.1.
        """
        if generation == self._generation and self._is_running and self._error is None:
            self._leave()
            self._count_failure()

    def ended(self, generation: int) -> None:
        """Learn that a follow came to its end without a failure. That is fatal."""
        message = "the follow ended"
        self.failed(generation, StreamError(message, *_place("40 §5.1")))

    def failed(self, generation: int, error: Exception) -> None:
        """Learn that a follow failed for another reason, such as a refusal. That is fatal."""
        if generation == self._generation and self._is_running:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the journal with an error."""
        if self._error is None:
            self._stop()
            self._error = error
            self._history_id = None
            self._outputs.append(Fatal(error))

    def _open(self) -> None:
        if (
            self._is_started
            and self._is_connected
            and not self._is_running
            and self._error is None
        ):
            self._generation += 1
            self._is_running = True
            self._outputs.append(Open(self._generation))

    def _leave(self) -> None:
        self._is_running = False
        self._is_accepted = False
        self._repair = None

    def _stop(self) -> None:
        if self._is_running:
            self._outputs.append(Stop(self._generation))
        self._leave()

    def _count_failure(self) -> None:
        if not self._is_connected:
            return
        self._failures += 1
        if self._failures > 1:
            message = "the follow broke off twice without an opening in between"
            self.fail(StreamError(message, *_place("40 §5.1")))
        else:
            self._open()

    # --- items ---

    def push(self, generation: int, item: Any) -> None:
        """Take the next item of a follow.

        Args:
            generation: Number of the follow; items of any but the running one are ignored.
            item: Any JSON value; what is no item of 40 §1.3 ends the journal.

        Raises:
            RuntimeError: Thousands of outputs have not been polled.
        """
        if len(self._outputs) > _MAX_OUTPUTS:
            message = "poll the journal until it returns None after each input"
            raise RuntimeError(message)
        if (
            generation != self._generation
            or not self._is_running
            or self._error is not None
        ):
            return
        try:
            self._take(item)
        except DshCodecError as error:
            self.fail(error)

    def _take(self, item: Any) -> None:
        kind = item.get("type") if is_object(item) else None
        if kind == "snapshot":
            self._take_opening(item)
        elif not self._is_accepted:
            _refuse("the first item of a follow has to be its snapshot", "40 §5.2")
        elif kind == "event":
            self._take_event(check_event(item.get("event")))
        elif kind == "assistant-stream" and self._assistant_stream:
            self._take_frame(check_frame(item.get("frame")))
        else:
            _refuse("an item has to be a snapshot, an event or a frame", "40 §5.2")

    def _take_opening(self, item: dict[str, Any]) -> None:
        if self._is_accepted:
            _refuse("a follow has exactly one snapshot", "40 §5.2")
        cursor, has_more = item.get("cursor"), item.get("hasMore")
        if not is_cursor(cursor) or type(has_more) is not bool:
            _refuse("a snapshot has to have cursor and hasMore", "40 §1.3")
        events = _events_of(item.get("records"))
        if (int(events[-1]["seq"]) if events else -1) != cursor:
            _refuse(f"the page of a snapshot has to end at {cursor}", "40 §5.2")
        if cursor < self._last:
            message = f"the log went back from seq {self._last} to {cursor}"
            _refuse(message, "40 §5.2")
        baseline = None
        if self._assistant_stream:
            if "assistantStream" not in item:
                _refuse("the snapshot lacks the baseline that was asked for", "40 §5.1")
            baseline = check_baseline(item["assistantStream"])
            self._revision = baseline["revision"]
        self._is_accepted = True
        self._failures = 0
        self._replace(events, Replace(events, has_more, baseline, item))

    def _replace(self, events: tuple[Event, ...], output: Replace) -> None:
        self._first = int(events[0]["seq"]) if events else None
        self._last = int(events[-1]["seq"]) if events else -1
        self._history_id = None  # An answer would not fit the new page.
        self._outputs.append(output)

    def _take_event(self, event: Event) -> None:
        seq = int(event["seq"])
        if seq <= self._last:
            return
        if self._repair is not None:
            self._repair.queued.setdefault(seq, event)
            self._check_held()
        elif seq == self._last + 1:
            self._last = seq
            if self._first is None:
                self._first = seq
            self._outputs.append(Append(event))
        else:
            self._repair = _Repair(self._read(seq), seq, queued={seq: event})

    def _take_frame(self, frame: WireFrame) -> None:
        if frame["revision"] != self._revision + 1:
            # A lost frame, or another agent: the generation ends. Spec 40 §5.1.
            self._stop()
            self._count_failure()
            return
        self._revision += 1
        if self._repair is None:
            self._outputs.append(Notify(frame))
        else:
            self._repair.held.append(frame)
            self._check_held()

    def _check_held(self) -> None:
        repair = self._repair
        if (
            repair is not None
            and len(repair.queued) + len(repair.held) > self._max_held_items
        ):
            self.restart()

    # --- pages ---

    def load_older(self) -> bool:
        """Ask for events before the first.

        Returns:
            Whether a page was asked for: not if there are none, if the follow has no opening, or
            while another answer is awaited. The answer is a `Prepend`.
        """
        if not self.is_current or not self._first or self._history_id is not None:
            return False
        self._history_id = self._read(self._last, self._first)
        return True

    def _read(self, through_seq: int, before_seq: int | None = None) -> int:
        self._request_id += 1
        self._outputs.append(ReadPage(self._request_id, through_seq, before_seq))
        return self._request_id

    def page(self, request_id: int, page: Any) -> None:
        """Take the answer to a `ReadPage`.

        Args:
            request_id: Number of the request; an answer that nobody waits for is ignored.
            page: Any JSON value.
        """
        repair = self._repair
        try:
            if repair is not None and request_id == repair.request_id:
                self._take_repair(repair, _page_of(page))
            elif request_id == self._history_id:
                self._take_history(_page_of(page))
        except DshCodecError as error:
            if request_id == self._history_id:
                self._miss_history(error)
            else:
                self.fail(error)

    def page_failed(
        self, request_id: int, error: Exception, *, is_carrier: bool = False
    ) -> None:
        """Learn that a page cannot be read.

        Args:
            request_id: Number of the request.
            error: Why.
            is_carrier: Whether the connection failed, not the request.
        """
        if self._repair is not None and request_id == self._repair.request_id:
            if is_carrier:
                self._stop()
                self._count_failure()
            else:
                self.fail(error)
        elif request_id == self._history_id:
            self._history_id = None
            self._outputs.append(Report(error))

    def _take_repair(self, repair: _Repair, page: _Page) -> None:
        events = page.events
        if not events or events[-1]["seq"] != repair.target:
            _refuse(f"the page has to end at seq {repair.target}", "40 §5.3")
        # Choice: a second page may begin behind the entry that told of the gap. What lies before a
        # page is history that can be asked for, and no gap.
        tail = [repair.queued[s] for s in sorted(repair.queued) if s > repair.target]
        joined = (*events, *tail)
        if not _is_contiguous(joined):
            if repair.reads == 2:
                _refuse("events are missing after two reads", "40 §5.3")
            repair.reads += 1
            repair.target = max(repair.queued)
            repair.request_id = self._read(repair.target)
            return
        self._repair = None
        self._replace(joined, Replace(joined, page.has_more, None, None))
        if self._held_after_repair == "apply":
            self._outputs.extend(map(Notify, repair.held))
        elif repair.held:
            # R2: page and frames do not belong to one cut; a new opening gives one.
            self.restart()

    def _take_history(self, page: _Page) -> None:
        first = self._first or 0
        older = tuple(event for event in page.events if event["seq"] < first)
        if not older or older[-1]["seq"] != first - 1:
            _refuse(f"the page has to end at seq {first - 1}", "40 §5.2")
        self._history_id = None
        self._first = int(older[0]["seq"])
        self._outputs.append(Prepend(older, page.has_more))

    def _miss_history(self, error: Exception) -> None:
        self._history_id = None
        self._outputs.append(Prepend((), has_more=False))
        self._outputs.append(Report(error))


# --- what arrives ---


def _place(rule: str) -> tuple[None, None, None, None, None, str]:
    return None, None, None, None, None, rule


def _refuse(message: str, rule: str) -> NoReturn:
    raise StreamError(message, *_place(rule))


def check_event(value: Any) -> Event:
    """Check the envelope of an event that a follow or a page delivers.

    Returns:
        The value itself.

    Raises:
        RowError: It is no event, or its surface metadata break a rule. Spec: 40 §5.1, 30 §5.2.
    """
    if not is_object(value):
        message = "an event has to be an object"
        raise RowError(message, *_place("40 §5.1"))
    seq = value.get("seq")
    if not is_count(seq):
        message = "seq has to be a count"
        raise RowError(message, *_place("40 §5.1"))
    fault: str | None = None
    if not is_filled(value.get("type")):
        fault = "type has to be a non-empty string"
    elif not is_sint(value.get("time")):
        fault = "time has to be a safe integer"
    elif "data" not in value:
        fault = "an event has to have data"
    if fault is not None:
        raise RowError(fault, None, None, None, int(seq), None, "40 §5.1")
    metadata = metadata_fault(value, int(seq))
    if metadata is not None:
        raise metadata
    return value


def _events_of(records: Any) -> tuple[Event, ...]:
    """Return the events of a page, which have to be contiguous."""
    if not is_array(records):
        _refuse("records has to be an array", "40 §1.3")
    events = []
    for record in records:
        if not is_object(record) or record.get("type") != "event":
            _refuse("a record has to be {type: 'event', event}", "40 §1.3")
        events.append(check_event(record.get("event")))
    if not _is_contiguous(events):
        _refuse("the events of a page have to be contiguous", "40 §5.2")
    return tuple(events)


def _page_of(page: Any) -> _Page:
    has_more = page.get("hasMore") if is_object(page) else None
    if type(has_more) is not bool:
        _refuse("a page has to have records and hasMore", "40 §1.3")
    return _Page(_events_of(page.get("records")), has_more)


def _is_contiguous(events: Iterable[Event]) -> bool:
    expected = None
    for event in events:
        if expected is not None and event["seq"] != expected:
            return False
        expected = event["seq"] + 1
    return True
