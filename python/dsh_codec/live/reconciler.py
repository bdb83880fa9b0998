"""Client: joins transient frames with durable settlements. Spec: 40 §6."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dsh_codec._backend import kernel as default_kernel
from dsh_codec.events import is_identical, is_object
from dsh_codec.live.frames import SETTLEMENTS, refuse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsh_codec.live.frames import (
        AttemptId,
        BaselineSnapshot,
        ChunkFrame,
        EndFrame,
        Event,
        StartedFrame,
        WireFrame,
    )

__all__ = [
    "Abandonment",
    "Decision",
    "Entry",
    "Publish",
    "Rebaseline",
    "Reconciler",
    "Settlement",
    "Transient",
]


class Entry(NamedTuple):
    """One element of the window.

    Attributes:
        event: A durable event; or a transient row, `{"type": "assistant/live-chunk", "seq",
            "time", "data": {"attemptId", "turn", "step", "chunk"}}`, whose `seq` is a float
            between two durable seqs (40 §6.1).
        attempt_id: Attempt of a transient row; None for a durable event.
    """

    event: Event
    attempt_id: AttemptId | None = None

    @property
    def seq(self) -> int | float:
        """Position: seq of the event, or the float of a transient row."""
        seq: int | float = self.event["seq"]
        return seq

    @property
    def is_durable(self) -> bool:
        """Whether it is an event of the log."""
        return self.attempt_id is None


@dataclass(frozen=True, slots=True)
class Transient:
    """A live chunk is to be shown. Spec: 40 §6.5.

    Attributes:
        entry: The transient row.
    """

    entry: Entry


@dataclass(frozen=True, slots=True)
class Publish:
    """A durable event is to be shown. Spec: 40 §6.5.

    Attributes:
        entry: The event.
        retired_id: Attempt whose transient rows go once the event is there, or None.
    """

    entry: Entry
    retired_id: AttemptId | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """A failed or interrupted attempt takes the place of its live rows. Spec: 40 §6.5.

    Attributes:
        attempt_id: Attempt whose transient rows go.
        entry: Its settlement.
    """

    attempt_id: AttemptId
    entry: Entry


@dataclass(frozen=True, slots=True)
class Abandonment:
    """The rows of an attempt go, and nothing durable comes. Spec: 40 §6.5.

    Attributes:
        attempt_id: The attempt.
    """

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Rebaseline:
    """Continuity is lost: the journal is to be restarted. Spec: 40 §6.5.

    Attributes:
        rule: Row of 40 §6 that says so, such as `C3`.
    """

    rule: str


Decision: TypeAlias = Transient | Publish | Settlement | Abandonment | Rebaseline


@dataclass(slots=True)
class _Active:
    attempt_id: AttemptId
    started_after_seq: int
    turn: int
    step: int
    next_index: int


class _Retained(NamedTuple):
    attempt_id: AttemptId
    turn: int
    step: int


class _SeqSet:
    """A set of seqs as ranges: one range for a contiguous journal, however long."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, seq: int) -> bool:
        place = bisect_right(self._starts, seq) - 1
        return place >= 0 and seq <= self._ends[place]

    def add(self, seq: int) -> None:
        place = bisect_right(self._starts, seq)
        if place and seq <= self._ends[place - 1]:
            return
        joins_left = place > 0 and self._ends[place - 1] == seq - 1
        joins_right = place < len(self._starts) and self._starts[place] == seq + 1
        if joins_left and joins_right:
            self._ends[place - 1] = self._ends.pop(place)
            del self._starts[place]
        elif joins_left:
            self._ends[place - 1] = seq
        elif joins_right:
            self._starts[place] = seq
        else:
            self._starts.insert(place, seq)
            self._ends.insert(place, seq)


class Reconciler:
    """Decides what becomes visible, from durable events and frames in journal order.

    Memory: the staged settlements and the published seqs as ranges; no chunk is kept.

    Example:
        >>> reconciler = Reconciler()
        >>> event = {"type": "todo/write", "seq": 0, "time": 0, "data": {"todos": []}}
        >>> reconciler.durable(event)
        Publish(entry=Entry(event={'type': 'todo/write', 'seq': 0, 'time': 0, 'data': {'todos': []}}, attempt_id=None), retired_id=None)
    """

    def __init__(self, *, kernel: Any = None) -> None:
        """Start without an attempt.

        Args:
            kernel: Kernel whose `expand` reads baselines; None takes the one in use.
        """
        self._kernel = default_kernel if kernel is None else kernel
        self._active: _Active | None = None
        self._retained: _Retained | None = None
        self._pending: dict[int, Entry] = {}
        self._published = _SeqSet()
        self._cursor = -1
        self._row_count = (
            0  # Transient rows since the last durable event: k of the spec.
        )

    @property
    def cursor(self) -> int:
        """Highest durable seq seen, -1 before any."""
        return self._cursor

    @property
    def active_attempt_id(self) -> AttemptId | None:
        """Id of the attempt whose chunks are being shown, or None."""
        return None if self._active is None else self._active.attempt_id

    @property
    def retained_attempt_id(self) -> AttemptId | None:
        """Id of the settled attempt whose rows stay until its step ends, or None."""
        return None if self._retained is None else self._retained.attempt_id

    @property
    def staged_count(self) -> int:
        """Settlements that wait for their `end`."""
        return len(self._pending)

    def replace(
        self, events: Iterable[Event], baseline: BaselineSnapshot | None = None
    ) -> list[Entry]:
        """Start again from a page.

        Args:
            events: Events of the page, in order.
            baseline: Baseline of the same cut; None clears the transient state (R1).

        Returns:
            The entries to show: the events, then a row for each chunk of the baseline.

        Raises:
            StreamError: The baseline's stream does not expand. Nothing has changed then.

        Note:
            Spec: 40 §6.2.
        """
        attempt = None if baseline is None else baseline.get("activeAttempt")
        chunks = [] if attempt is None else self._kernel.expand(attempt["stream"])
        entries = [Entry(event) for event in events]
        self._pending.clear()
        self._retained = None
        self._row_count = 0
        self._published = _SeqSet()
        for entry in entries:
            self._published.add(int(entry.seq))
        self._cursor = max((int(entry.seq) for entry in entries), default=-1)
        self._active = None
        if attempt is not None:
            self._active = active = _Active(
                attempt["attemptId"],
                attempt["startedAfterSeq"],
                attempt["turn"],
                attempt["step"],
                attempt["nextIndex"],
            )
            # The test comes after each row: a stream that is not empty gives at least one.
            for count, (time, chunk) in enumerate(chunks, 1):
                entries.append(self._make_row(active, time, chunk))
                if count >= active.next_index:
                    break
        return entries

    def durable(self, event: Event) -> Decision | None:
        """Take the next durable event.

        Args:
            event: The event, behind all that were given before.

        Returns:
            `Publish` or `Rebaseline`; None if the event is staged until its attempt's `end`.

        Note:
            Spec: 40 §6.3.
        """
        entry, seq = Entry(event), int(event["seq"])
        self._cursor = max(self._cursor, seq)
        self._row_count = 0
        if self._is_own_settlement(event, seq):
            if seq in self._pending:
                return Rebaseline("D1")
            self._pending[seq] = entry
            return None
        self._published.add(seq)
        retained = self._retained
        if (
            retained is not None
            and event["type"] == "step/end"
            and _is_in(event, retained.turn, retained.step)
        ):
            self._retained = None
            return Publish(entry, retained.attempt_id)
        return Publish(entry)

    def _is_own_settlement(self, event: Event, seq: int) -> bool:
        """Whether the event settles the active attempt, as far as the event alone can tell."""
        active = self._active
        return (
            active is not None
            and event["type"] in SETTLEMENTS
            and seq > active.started_after_seq
            and _is_in(event, active.turn, active.step)
            # A surface replacement never settles an attempt.
            and (
                event["type"] != "assistant/message"
                or event.get("surfaceOp") == "append"
            )
        )

    def frame(self, frame: WireFrame) -> Decision | None:
        """Take the next frame.

        Args:
            frame: A frame in the order of its generation.

        Returns:
            What becomes visible, or None.

        Raises:
            StreamError: The frame is of no known type.

        Note:
            Constant time. Spec: 40 §6.4.
        """
        if frame["type"] == "chunk":
            return self._take_chunk(frame)
        if frame["type"] == "start":
            return self._take_start(frame)
        if frame["type"] != "end":
            refuse("a frame has to be start, chunk or end", "40 §6.4")
        return self._take_end(frame)

    def _take_start(self, frame: StartedFrame) -> Decision | None:
        if self._active is not None or self._retained is not None or self._pending:
            return Rebaseline("S1")
        self._active = _Active(
            frame["attemptId"],
            frame["startedAfterSeq"],
            frame["turn"],
            frame["step"],
            0,
        )
        return None

    def _take_chunk(self, frame: ChunkFrame) -> Decision | None:
        active = self._active
        if active is None or frame["attemptId"] != active.attempt_id:
            return None
        if frame["index"] != active.next_index:
            return Rebaseline("C3")
        active.next_index += 1
        return Transient(self._make_row(active, frame["time"], frame["chunk"]))

    def _take_end(self, frame: EndFrame) -> Decision | None:
        active, outcome = self._active, frame["outcome"]
        if active is None or frame["attemptId"] != active.attempt_id:
            return None
        self._active = None
        if frame["index"] != active.next_index:
            return Rebaseline("E2")
        if outcome["kind"] == "abandoned":
            if self._pending:
                return Rebaseline("E4")
            return Abandonment(active.attempt_id)
        seq = int(outcome["seq"])
        if seq in self._published:
            return None
        entry = self._pending.get(seq)
        if entry is None or entry.event["type"] != outcome["eventType"]:
            return Rebaseline("E6")
        del self._pending[seq]
        self._published.add(seq)
        if (
            outcome["eventType"] == "assistant/message"
            and entry.event["data"].get("interrupted") is not True
        ):
            self._retained = _Retained(active.attempt_id, active.turn, active.step)
            return Publish(entry)
        return Settlement(active.attempt_id, entry)

    def _make_row(self, active: _Active, time: int, chunk: dict[str, Any]) -> Entry:
        self._row_count += 1
        row = {
            "type": "assistant/live-chunk",
            "seq": self._cursor + 1 - 1 / (self._row_count + 1),
            "time": time,
            "data": {
                "attemptId": active.attempt_id,
                "turn": active.turn,
                "step": active.step,
                "chunk": chunk,
            },
        }
        return Entry(row, active.attempt_id)


def _is_in(event: Event, turn: int, step: int) -> bool:
    data = event.get("data")
    return (
        is_object(data)
        and is_identical(data.get("turn"), turn)
        and is_identical(data.get("step"), step)
    )
