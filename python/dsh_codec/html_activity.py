"""What happened in a log and when, as its page shows it: turns, tool calls, busy time."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from dsh_codec._backend import kernel
from dsh_codec.corpus import own_from
from dsh_codec.errors import DshCodecError
from dsh_codec.events import is_object
from dsh_codec.html_charts import joined
from dsh_codec.html_marks import clip
from dsh_codec.row import CHUNK_TYPE, Event
from dsh_codec.tools import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dsh_codec._types import StreamColumns
    from dsh_codec.calls import Call
    from dsh_codec.log import Log

__all__ = ["Clock", "Seen", "Span", "ToolCall", "Turn", "busy_spans", "turns_of"]

_IDLE_SHARE: Final = 0.01
"""Share of the busy time that a pause takes on the axis, at most."""

_ALL_IDLE_SHARE: Final = 0.25
"""The same for all pauses together."""

_MOST_SPANS: Final = 1200
"""Stretches of a lane that are told apart: about two a dot of the screen."""

Span = tuple[float, float]


class ToolCall(NamedTuple):
    """A tool call: where, of which tool, from when on, and for how many milliseconds."""

    turn: int | None
    step: int | None
    name: str
    start: int | None
    ms: int | None


class Turn:
    """What is known of a turn.

    Attributes:
        number: Its number; None for what belongs to no turn.
        start, end: First and last moment, in milliseconds; None without any.
        steps: From when to when each step went.
        calls, tools: What was done in it.
        waits, goods, bads, tool_spans: When it waited for first tokens, received, tried in vain,
            ran tools.
    """

    def __init__(self, number: int | None) -> None:
        """Begin without anything in it."""
        self.number = number
        self.start: float | None = None
        self.end: float | None = None
        self.steps: dict[int | None, Span] = {}
        self.calls: list[Call] = []
        self.tools: list[ToolCall] = []
        self.waits: list[Span] = []
        self.goods: list[Span] = []
        self.bads: list[Span] = []
        self.tool_spans: list[Span] = []

    def widen(self, start: float, end: float) -> None:
        """Take moments that belong to it."""
        if self.start is None or start < self.start:
            self.start = start
        if self.end is None or end > self.end:
            self.end = end

    def add_call(self, call: Call) -> None:
        """Take an attempt."""
        self.calls.append(call)
        span = _call_span(call)
        if span is None:
            return
        self._note(call.step, span)
        first = call.first_token_ms
        if call.outcome == "failed":
            self.bads.append(span)
        elif first is None or not span[0] <= first <= span[1]:
            self.goods.append(span)
        else:
            self.waits.append((span[0], first))
            self.goods.append((first, span[1]))

    def add_tool(self, tool: ToolCall) -> None:
        """Take a tool call."""
        self.tools.append(tool)
        if tool.start is not None:
            span = tool.start, tool.start + max(tool.ms or 0, 0)
            self._note(tool.step, span)
            self.tool_spans.append(span)

    def _note(self, step: int | None, span: Span) -> None:
        known = self.steps.get(step)
        if known is not None:
            span = min(known[0], span[0]), max(known[1], span[1])
        self.steps[step] = span
        self.widen(*span)

    @property
    def span(self) -> Span | None:
        """From when to when it went; None if nothing in it has a time."""
        return (
            None if self.start is None or self.end is None else (self.start, self.end)
        )

    @property
    def ms(self) -> float:
        """How long it went."""
        return 0 if self.start is None or self.end is None else self.end - self.start

    @property
    def name(self) -> str:
        """What pages call it."""
        return "no turn" if self.number is None else f"turn {self.number}"


class Seen:
    """What one pass over the rows of a log finds beside its calls.

    Attributes:
        sizes: Rows and their bytes by type of the event.
        bounds: First and last time of each turn.
        tools: Name and time of the calls of each tool call id, in log order.
        columns: Chunks of the attempts that were asked for; None where a stream is not right.
    """

    def __init__(self, log: Log, seqs: set[int]) -> None:
        """Read a log; `seqs` are the attempts whose chunks are wanted."""
        self.sizes: dict[str | None, list[int]] = {}
        self.bounds: dict[int, list[int]] = {}
        self.tools: dict[tuple[int | None, int | None, str], list[ToolCall]] = {}
        self.columns: dict[int, StreamColumns | None] = {}
        first = own_from(log)
        has_streams = log.generation >= 2
        notes = {
            "turn/start": self._note_turn,
            "turn/end": self._note_turn,
            "tool/call": self._note_tool,
        }
        for unit in log.units():
            kind = unit.type if isinstance(unit, Event) else CHUNK_TYPE
            size = self.sizes.get(kind)
            if size is None:
                size = self.sizes[kind] = [0, 0]
            size[0] += 1
            size[1] += len(unit.raw) + 1
            if not isinstance(unit, Event):
                continue
            if kind in notes:
                if unit.seq >= first:
                    notes[kind](unit)
            elif has_streams and unit.seq in seqs:
                self.columns[unit.seq] = _columns_of(unit)
        if not has_streams and seqs:
            for attempt in log.attempts():
                if attempt.seq in seqs:
                    try:
                        self.columns[attempt.seq] = attempt.stream.columns()
                    except DshCodecError:
                        self.columns[attempt.seq] = None

    def _note_turn(self, event: Event) -> None:
        data = event.data
        turn = data.get("turn") if is_object(data) else None
        if type(turn) is not int:
            turn = place_of(data).turn
        if turn is not None and event.time is not None:
            self.bounds.setdefault(turn, []).append(event.time)

    def _note_tool(self, event: Event) -> None:
        data = event.data
        if not is_object(data):
            return
        turn, step = data.get("turn"), data.get("step")
        if type(turn) is not int or type(step) is not int:
            turn, step = place_of(data)
        name, call_id = data.get("name"), data.get("callId")
        if type(call_id) is str:
            shown = clip(name) if type(name) is str else "unnamed"
            found = ToolCall(turn, step, shown, event.time, None)
            self.tools.setdefault((turn, step, call_id), []).append(found)


def _columns_of(event: Event) -> StreamColumns | None:
    try:
        return kernel.StoredStream(event.raw).columns()
    except DshCodecError:
        return None


def turns_of(attempts: Iterable[Call], seen: Seen) -> list[Turn]:
    """Return the turns with what was done in each, in the order of their starts."""
    turns: dict[int | None, Turn] = {}

    def at(number: int | None) -> Turn:
        found = turns.get(number)
        if found is None:
            found = turns[number] = Turn(number)
        return found

    for number, times in seen.bounds.items():
        at(number).widen(min(times), max(times))
    waiting = {place: iter(found) for place, found in seen.tools.items()}
    for call in attempts:
        turn = at(call.turn)
        turn.add_call(call)
        for told in call.tools or ():
            found = waiting.get((call.turn, call.step, told.call_id))
            tool = None if found is None else next(found, None)
            if tool is not None:
                turn.add_tool(tool._replace(ms=told.ms))
    # Those that no message of the log asked for.
    for rest in waiting.values():
        for tool in rest:
            at(tool.turn).add_tool(tool)
    return sorted(
        turns.values(),
        key=lambda turn: (turn.start is None, turn.start, turn.number or 0),
    )


class Clock:
    """Busy time: times of a log, with pauses cut short."""

    def __init__(self, busy: Sequence[Span]) -> None:
        """Take the stretches that count, in order and apart from each other."""
        total = sum(end - start for start, end in busy)
        pause = total * min(_IDLE_SHARE, _ALL_IDLE_SHARE / max(len(busy), 1))
        self.cuts: list[float] = []
        self._parts: list[tuple[float, float, float]] = []
        place = 0.0
        last: float | None = None
        for start, end in busy:
            if last is not None:
                gap = start - last
                if gap > pause:
                    self.cuts.append(place + pause / 2)
                place += min(gap, pause)
            self._parts.append((start, end, place))
            place += end - start
            last = end
        self.end = place
        self._starts = [start for start, _, _ in self._parts]

    def at(self, time: float) -> float:
        """Return where a time lies on the axis."""
        if not self._parts:
            return 0.0
        index = bisect_right(self._starts, time)
        start, end, place = self._parts[index - 1 if index else 0]
        if time <= start:
            return place
        return place + (time if time < end else end) - start

    def spans(self, spans: Sequence[Span]) -> list[Span]:
        """Return where stretches of time lie; of many, those that no eye can part are one."""
        if len(spans) > _MOST_SPANS:
            spans = joined(spans, self.end / _MOST_SPANS)
        return [(self.at(start), self.at(end)) for start, end in spans]


def busy_spans(turns: Iterable[Turn]) -> list[Span]:
    """Return the time of turns, overlapping ones joined."""
    return joined([turn.span for turn in turns if turn.span is not None], 0)


def _call_span(call: Call) -> Span | None:
    start, end = call.start_ms, call.end_ms
    if start is not None and end is not None and start <= end:
        return start, end
    times = [
        time
        for time in (call.start_ms, call.first_token_ms, call.end_ms)
        if time is not None
    ]
    return (min(times), max(times)) if times else None
