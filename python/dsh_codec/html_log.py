"""The page of one log: what happened when, how fast it came, what it used."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsh_codec._types import ChunkKind
from dsh_codec.calls import calls
from dsh_codec.corpus import own_from
from dsh_codec.errors import DshCodecError
from dsh_codec.events import is_object
from dsh_codec.html_charts import (
    Axis,
    Bar,
    Lane,
    area,
    bars,
    duration,
    figure,
    joined,
    lanes,
    legend,
    scatter,
    short,
)
from dsh_codec.html_figures import Figures
from dsh_codec.html_marks import Markup, clip, join, page, table, tag, tiles
from dsh_codec.report import size_text, time_text
from dsh_codec.row import CHUNK_TYPE, Event
from dsh_codec.timing import Distribution
from dsh_codec.tools import place_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from dsh_codec._types import StreamColumns
    from dsh_codec.calls import Call
    from dsh_codec.log import Log

__all__ = ["log_page"]

MOST_TURNS: Final = 60
MOST_CADENCES: Final = 32
MOST_ROWS: Final = 300
_CADENCE_STEPS: Final = 60
_MOST_CONTENT_CHARS: Final = 1_000_000
_MOST_PASSAGE_CHARS: Final = 2_000

_IDLE_SHARE: Final = 0.01
"""Share of the busy time that a pause takes on the axis, at most."""

_ALL_IDLE_SHARE: Final = 0.25
"""The same for all pauses together."""

_MOST_SPANS: Final = 1200
"""Stretches of a lane that are told apart: about two a dot of the screen."""

_TOKEN_LAYERS: Final = (
    ("a", ChunkKind.TEXT),
    ("d", ChunkKind.REASONING),
    ("b", ChunkKind.TOOL_CALL),
)

Span = tuple[float, float]


class _ToolCall(NamedTuple):
    turn: int | None
    step: int | None
    name: str
    start: int | None
    ms: int | None


class _Turn:
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
        self.number = number
        self.start: float | None = None
        self.end: float | None = None
        self.steps: dict[int | None, Span] = {}
        self.calls: list[Call] = []
        self.tools: list[_ToolCall] = []
        self.waits: list[Span] = []
        self.goods: list[Span] = []
        self.bads: list[Span] = []
        self.tool_spans: list[Span] = []

    def widen(self, start: float, end: float) -> None:
        if self.start is None or start < self.start:
            self.start = start
        if self.end is None or end > self.end:
            self.end = end

    def add_call(self, call: Call) -> None:
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

    def add_tool(self, tool: _ToolCall) -> None:
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
        return (
            None if self.start is None or self.end is None else (self.start, self.end)
        )

    @property
    def ms(self) -> float:
        return 0 if self.start is None or self.end is None else self.end - self.start

    @property
    def name(self) -> str:
        return "no turn" if self.number is None else f"turn {self.number}"


def log_page(log: Log, *, content: bool) -> str:
    """Return the page of a log.

    Raises:
        DshCodecError, OSError: As for iterating.
    """
    readings = calls(log, tools=True)
    own = [call for call in readings if call.own]
    for session in readings.errors:
        assert session.error is not None  # noqa: S101 - that is what they are listed for
        raise session.error
    figures = Figures()
    figures.add(own)
    attempts = [call for call in own if call.attempt is not None]
    chosen = sorted(attempts, key=lambda call: -_tokens_span(call))[:MOST_CADENCES]
    seen = _Seen(log, {call.seq for call in chosen})
    turns = _turns(attempts, seen)
    name = log.path or "a log in memory"
    return page(
        f"Session {log.id}",
        tag("h1", "Session ", tag("bdi", clip(log.id, 200))),
        tag("p", _lead(log, name), class_="lead"),
        _tiles(log, figures, turns),
        _timeline(turns),
        figures.speed(_rates(turns, attempts)),
        _cadences(sorted(chosen, key=lambda call: call.seq), seen, len(attempts)),
        figures.models(),
        _tool_section(turns),
        _size_section(log, seen),
        _content(log) if content else None,
        _tail_note(log),
    )


class _Seen:
    """What one pass over the rows of a log finds beside its calls.

    Attributes:
        sizes: Rows and their bytes by type of the event.
        bounds: First and last time of each turn.
        tools: Name and time of the calls of each tool call id, in log order.
        columns: Chunks of the attempts that were asked for; None where a stream is not right.
    """

    def __init__(self, log: Log, seqs: set[int]) -> None:
        self.sizes: dict[str | None, list[int]] = {}
        self.bounds: dict[int, list[int]] = {}
        self.tools: dict[tuple[int | None, int | None, str], list[_ToolCall]] = {}
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
        turn = place_of(event.data).turn
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
            found = _ToolCall(turn, step, shown, event.time, None)
            self.tools.setdefault((turn, step, call_id), []).append(found)


def _columns_of(event: Event) -> StreamColumns | None:
    from dsh_codec._backend import kernel

    try:
        return kernel.StoredStream(event.raw).columns()
    except DshCodecError:
        return None


def _turns(attempts: Iterable[Call], seen: _Seen) -> list[_Turn]:
    turns: dict[int | None, _Turn] = {}

    def at(number: int | None) -> _Turn:
        found = turns.get(number)
        if found is None:
            found = turns[number] = _Turn(number)
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


def _lead(log: Log, name: str) -> Markup:
    fields = log.header.fields
    parts: list[object] = [tag("bdi", clip(name, 300))]
    if fields.get("cwd"):
        parts.append(tag("bdi", clip(fields["cwd"], 300)))
    parts.append(f"generation {log.generation}")
    parts.append(f"created {time_text(int(fields['createdAt']))}")
    if fields.get("parentSession"):
        parts.append(join(["from ", tag("bdi", clip(fields["parentSession"], 200))]))
    return join([parts[0], *(join([" · ", part]) for part in parts[1:])])


def _tiles(log: Log, figures: Figures, turns: Sequence[_Turn]) -> Markup:
    steps = sum(len({call.step for call in turn.calls}) for turn in turns)
    pairs: list[tuple[str, object]] = [
        ("Turns", f"{sum(turn.number is not None for turn in turns):,}"),
        ("Steps", f"{steps:,}"),
        *figures.tiles(),
        ("Tool calls", f"{sum(len(turn.tools) for turn in turns):,}"),
        ("Busy time", duration(sum(end - start for start, end in _busy(turns)))),
        ("File", size_text(log.file_bytes)),
    ]
    return tiles(pairs)


def _timeline(turns: Sequence[_Turn]) -> Markup:
    timed = [turn for turn in turns if turn.span is not None]
    if not timed:
        return _section("Timeline", tag("p", "Nothing has a time.", class_="note"))
    clock = _Clock(_busy(timed))
    where = clock.spans
    keys = legend(
        ("wait", "waiting for the first token"),
        ("a", "receiving"),
        ("bad", "failed attempt"),
        ("b", "tool"),
        ("c", "turn or step"),
    )
    tools = [span for turn in timed for span in turn.tool_spans]
    steps = [span for turn in timed for span in turn.steps.values()]
    attempts = [
        ("wait", where([span for turn in timed for span in turn.waits])),
        ("a", where([span for turn in timed for span in turn.goods])),
        ("bad", where([span for turn in timed for span in turn.bads])),
    ]
    calls_of_all = [call for turn in timed for call in turn.calls]
    rows = [
        Lane("turns", [_alternating(where(_busy(timed)))], _count(timed, "turn")),
        Lane("steps", [_alternating(where(steps))], _count(steps, "step")),
        Lane(
            "attempts",
            [attempts],
            _count(calls_of_all, "attempt"),
        ),
        Lane("tools", [[("b", where(tools))]], _count(tools, "tool call")),
    ]
    axis = Axis(clock.end, duration, is_time=True, cuts=clock.cuts[:200])
    note = "Busy time from the first turn on."
    if clock.cuts:
        note = (
            f"Busy time. {_count(clock.cuts, 'pause')} between turns left out (dashed)."
        )
    title = "All of the session"
    whole = figure(
        title,
        lanes(
            f"{title}: turns, steps, attempts and tools over busy time",
            rows,
            axis,
            step=30,
        ),
        keys=keys,
        note=note,
    )
    return _section("Timeline", whole, _turn_chart(timed), _turn_table(timed))


def _turn_chart(timed: Sequence[_Turn]) -> Markup:
    chosen = sorted(timed, key=lambda turn: -turn.ms)[:MOST_TURNS]
    shown = (
        [turn for turn in timed if turn in chosen] if len(timed) > MOST_TURNS else timed
    )
    rows = []
    for turn in shown:
        zero = turn.start or 0
        kinds = [
            ("wait", turn.waits),
            ("a", turn.goods),
            ("bad", turn.bads),
            ("b", turn.tool_spans),
        ]
        marks = [
            (kind, [(start - zero, end - zero) for start, end in spans])
            for kind, spans in kinds
        ]
        title = (
            f"{turn.name}: {duration(turn.ms)}, {_count(turn.steps, 'step')}, "
            f"{_count(turn.calls, 'attempt')}, {_count(turn.tools, 'tool call')}"
        )
        rows.append(Lane(turn.name, [marks[:3], marks[3:]], title, duration(turn.ms)))
    end = max((turn.ms for turn in shown), default=0)
    note = "From the start of each turn."
    if len(shown) < len(timed):
        note = (
            f"The {len(shown)} longest of {len(timed):,} turns, from the start of each."
        )
    drawing = lanes(
        "Attempts and tools of each turn",
        rows,
        Axis(end, duration, is_time=True),
        step=26,
    )
    return figure("Turn by turn", drawing, note=note)


def _turn_table(timed: Sequence[_Turn]) -> Markup:
    titles = [
        "turn",
        "start",
        "#time",
        "#steps",
        "#attempts",
        "#failed",
        "#tools",
        "#output",
    ]

    def cells(turn: _Turn) -> list[object]:
        outputs = [call.output for call in turn.calls if call.output is not None]
        return [
            turn.name,
            "-" if turn.start is None else time_text(int(turn.start)),
            duration(turn.ms),
            f"{len({call.step for call in turn.calls}):,}",
            f"{len(turn.calls):,}",
            f"{sum(call.outcome == 'failed' for call in turn.calls):,}",
            f"{len(turn.tools):,}",
            f"{sum(outputs):,}" if outputs else None,
        ]

    data = table(titles, map(cells, timed), caption="Turns", most=MOST_ROWS)
    return tag("details", tag("summary", "Table: turns"), data)


def _rates(turns: Sequence[_Turn], attempts: Sequence[Call]) -> Markup:
    """Return first tokens and output rates over the session."""
    clock = _Clock(_busy(turns))
    axis = Axis(clock.end, duration, is_time=True)
    first = [
        (clock.at(call.start_ms), float(call.ttft))
        for call in attempts
        if call.start_ms is not None and call.ttft is not None
    ]
    rate = [
        (clock.at(call.first_token_ms), call.output_rate)
        for call in attempts
        if call.first_token_ms is not None and call.output_rate is not None
    ]
    return tag(
        "div",
        figure(
            "Time to the first token over busy time",
            scatter("Time to the first token of each attempt", first, axis, duration),
        ),
        figure(
            "Output rate over busy time, tokens/s",
            scatter("Output rate of each attempt", rate, axis, short),
        ),
        class_="pair",
    )


def _cadences(chosen: Sequence[Call], seen: _Seen, count: int) -> Markup | None:
    if not chosen:
        return None
    figures = []
    for call in chosen:
        place = f"turn {_known(call.turn)}, step {_known(call.step)}"
        if (call.attempt or 1) > 1:
            place += f", attempt {call.attempt}"
        columns = seen.columns.get(call.seq)
        if columns is None:
            note = "its stream cannot be expanded"
            figures.append(_cadence(place, note, None))
            continue
        layers, ms, tokens, peak = _binned(columns)
        note = f"{tokens:,} deltas in {duration(ms)}"
        if peak:
            note += f", peak {short(peak)}/s"
        label = f"Deltas over time, {place}: {note}"
        figures.append(_cadence(place, note, area(label, layers)))
    lead = (
        "Deltas of the stream in equal steps of its time, from the first to the last."
    )
    if len(chosen) < count:
        lead += f" The {len(chosen)} longest of {count:,} attempts."
    keys = legend(("a", "answer"), ("d", "reasoning"), ("b", "tool arguments"))
    return _section(
        "Token cadence",
        tag("p", lead, class_="note"),
        keys,
        tag("div", *figures, class_="many"),
    )


def _cadence(place: str, note: str, drawing: Markup | None) -> Markup:
    return tag("figure", tag("h3", place), drawing, tag("p", note, class_="note"))


def _binned(
    columns: StreamColumns,
) -> tuple[list[tuple[str, list[float]]], int, int, float]:
    """Return deltas by kind in steps of time, their time, their number, their highest rate."""
    import numpy as np

    last_kind = max(kind for _, kind in _TOKEN_LAYERS)
    is_delta = columns.kind <= last_kind
    time, kinds = columns.time[is_delta], columns.kind[is_delta]
    if not len(time):
        return [], 0, 0, 0.0
    time = np.maximum.accumulate(time)  # A clock that steps back stands still here.
    first = int(time[0])
    ms = int(time[-1]) - first
    places = ((time - first) * (_CADENCE_STEPS / (ms + 1))).astype(np.int64)
    layers = [
        (name, np.bincount(places[kinds == kind], minlength=_CADENCE_STEPS).tolist())
        for name, kind in _TOKEN_LAYERS
    ]
    most = max(map(sum, zip(*(values for _, values in layers), strict=True)))
    peak = most / (ms / _CADENCE_STEPS) * 1000 if ms else 0.0
    return layers, ms, len(time), peak


def _tool_section(turns: Sequence[_Turn]) -> Markup | None:
    found: dict[str, Distribution] = {}
    for turn in turns:
        for tool in turn.tools:
            found.setdefault(tool.name, Distribution()).add(tool.ms)
    if not found:
        return None
    ordered = sorted(found.items(), key=lambda item: (-item[1].sum, item[0]))
    rows = [
        Bar(
            name,
            [("b", max(times.sum, 0))],
            f"{duration(times.sum)} · {times.count:,} timed",
        )
        for name, times in ordered[:15]
    ]
    data = table(
        ["tool", "#calls", "#unknown", "#time", "#p50", "#p90", "#max"],
        (
            [
                name,
                f"{times.count + times.unknown:,}",
                f"{times.unknown:,}",
                duration(times.sum),
                *(_duration(value) for value in _three(times)),
            ]
            for name, times in ordered
        ),
        caption="Time from the call to its result",
    )
    chart = figure("Time by tool", bars("Time by tool", rows), data)
    return _section("Tools", chart)


def _size_section(log: Log, seen: _Seen) -> Markup:
    sizes = [(str(kind), rows, size) for kind, (rows, size) in seen.sizes.items()]
    ordered = sorted(sizes, key=lambda item: (-item[2], item[0]))
    total = sum(size for _, _, size in ordered) or 1
    rows = [
        Bar(kind, [("d", size)], f"{size_text(size)} · {size / total:.1%}")
        for kind, _, size in ordered[:12]
    ]
    data = table(
        ["event", "#rows", "#bytes", "#bytes a row"],
        (
            [clip(kind, 100), f"{count:,}", f"{size:,}", f"{size / count:,.0f}"]
            for kind, count, size in ordered
        ),
        caption="Bytes of plaintext by type of event",
    )
    result = log.result
    lead = f"{size_text(log.file_bytes)} stored ({_stored(log)})"
    if result is not None and result.plain_bytes != result.file_bytes:
        lead += f", {size_text(result.plain_bytes)} of plaintext"
    if result is not None and result.frame_count is not None:
        lead += f", {result.frame_count:,} frames"
    chart = figure("Bytes by type of event", bars("Bytes by type of event", rows), data)
    return _section("Sizes", tag("p", f"{lead}.", class_="note"), chart)


def _content(log: Log) -> Markup:
    """Return what was asked and answered, as far as there is room."""
    from dsh_codec.text import text

    left = _MOST_CONTENT_CHARS
    parts = []
    for passage in text(log).passages(("prompt", "answer")):
        said = clip(passage.text, _MOST_PASSAGE_CHARS)
        left -= len(said)
        if left < 0:
            parts.append(
                tag("p", "… and more, which the page has no room for.", class_="note")
            )
            break
        place = f"turn {_known(passage.turn)}"
        if passage.step is not None:
            place += f", step {passage.step}"
        summary = tag("summary", f"{place}: {passage.kind}")
        parts.append(tag("details", summary, tag("pre", tag("bdi", said))))
    return _section("Prompts and answers", *parts)


def _tail_note(log: Log) -> Markup | None:
    result = log.result
    parts = []
    if result is not None and result.truncate_to is not None:
        parts.append(
            f"The log ends in a torn tail: what stands behind byte {result.truncate_to:,} "
            "is not committed."
        )
    first = own_from(log)
    if first:
        parts.append(f"{first:,} events were inherited; only their sizes are shown.")
    return tag("p", " ".join(parts), class_="note") if parts else None


class _Clock:
    """Busy time: times of a log, with pauses cut short."""

    def __init__(self, busy: Sequence[Span]) -> None:
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


def _busy(turns: Iterable[_Turn]) -> list[Span]:
    """Return the time of turns, overlapping ones joined."""
    return joined([turn.span for turn in turns if turn.span is not None], 0)


def _alternating(spans: Sequence[Span]) -> list[tuple[str, Sequence[Span]]]:
    """Return stretches in two shades, so that neighbours are told apart."""
    return [("c", spans[::2]), ("e", spans[1::2])]


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


def _tokens_span(call: Call) -> int:
    return -1 if call.generation is None else call.generation


def _three(times: Distribution) -> list[float | None]:
    return [times.percentile(50), times.percentile(90), times.max]


def _duration(value: float | None) -> str | None:
    return None if value is None else duration(value)


def _stored(log: Log) -> str:
    return "plain" if log.compression == "none" else log.compression


def _count(things: Collection[Any], name: str) -> str:
    return f"{len(things):,} {name}{'' if len(things) == 1 else 's'}"


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)


def _section(title: str, *parts: object) -> Markup:
    return tag("section", tag("h2", title), *parts)
