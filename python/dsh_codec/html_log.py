"""The page of one log: what happened when, how fast it came, what it used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec._types import ChunkKind
from dsh_codec.calls import calls
from dsh_codec.corpus import own_from
from dsh_codec.html_activity import Clock, Seen, busy_spans, turns_of
from dsh_codec.html_charts import (
    Axis,
    Bar,
    Lane,
    area,
    bars,
    duration,
    figure,
    lanes,
    legend,
    scatter,
    short,
)
from dsh_codec.html_figures import Figures
from dsh_codec.html_marks import Markup, clip, join, page, table, tag, tiles
from dsh_codec.report import size_text, time_text
from dsh_codec.timing import Distribution

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dsh_codec._types import StreamColumns
    from dsh_codec.calls import Call
    from dsh_codec.html_activity import Span, Turn
    from dsh_codec.log import Log

__all__ = ["log_page"]

MOST_TURNS: Final = 60
MOST_CADENCES: Final = 32
MOST_ROWS: Final = 300
_CADENCE_STEPS: Final = 60
_MOST_CONTENT_CHARS: Final = 1_000_000
_MOST_PASSAGE_CHARS: Final = 2_000

_TOKEN_LAYERS: Final = (
    ("a", ChunkKind.TEXT),
    ("d", ChunkKind.REASONING),
    ("b", ChunkKind.TOOL_CALL),
)


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
    seen = Seen(log, {call.seq for call in chosen})
    turns = turns_of(attempts, seen)
    busy = busy_spans(turns)
    name = log.path or "a log in memory"
    return page(
        f"Session {log.id}",
        tag("h1", "Session ", tag("bdi", clip(log.id, 200))),
        tag("p", _lead(log, name), class_="lead"),
        _tiles(log, figures, turns, busy),
        _timeline(turns, busy),
        figures.speed(_rates(busy, attempts)),
        _cadences(sorted(chosen, key=lambda call: call.seq), seen, len(attempts)),
        figures.models(),
        _tool_section(turns),
        _size_section(log, seen),
        _content(log) if content else None,
        _tail_note(log),
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


def _tiles(
    log: Log, figures: Figures, turns: Sequence[Turn], busy: Sequence[Span]
) -> Markup:
    steps = sum(len({call.step for call in turn.calls}) for turn in turns)
    pairs: list[tuple[str, object]] = [
        ("Turns", f"{sum(turn.number is not None for turn in turns):,}"),
        ("Steps", f"{steps:,}"),
        *figures.tiles(),
        ("Tool calls", f"{sum(len(turn.tools) for turn in turns):,}"),
        ("Busy time", duration(sum(end - start for start, end in busy))),
        ("File", size_text(log.file_bytes)),
    ]
    return tiles(pairs)


def _timeline(turns: Sequence[Turn], busy: Sequence[Span]) -> Markup:
    timed = [turn for turn in turns if turn.span is not None]
    if not timed:
        return _section("Timeline", tag("p", "Nothing has a time.", class_="note"))
    clock = Clock(busy)
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
        Lane("turns", [_alternating(where(busy))], _count(timed, "turn")),
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


def _turn_chart(timed: Sequence[Turn]) -> Markup:
    longest = sorted(range(len(timed)), key=lambda place: -timed[place].ms)
    shown = [timed[place] for place in sorted(longest[:MOST_TURNS])]
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


def _turn_table(timed: Sequence[Turn]) -> Markup:
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

    def cells(turn: Turn) -> list[object]:
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

    shown = map(cells, timed[:MOST_ROWS])
    data = table(titles, shown, caption="Turns", count=len(timed))
    return tag("details", tag("summary", "Table: turns"), data)


def _rates(busy: Sequence[Span], attempts: Sequence[Call]) -> Markup:
    """Return first tokens and output rates over the session."""
    clock = Clock(busy)
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


def _cadences(chosen: Sequence[Call], seen: Seen, count: int) -> Markup | None:
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


def _tool_section(turns: Sequence[Turn]) -> Markup | None:
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


def _size_section(log: Log, seen: Seen) -> Markup:
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


def _alternating(spans: Sequence[Span]) -> list[tuple[str, Sequence[Span]]]:
    """Return stretches in two shades, so that neighbours are told apart."""
    return [("c", spans[::2]), ("e", spans[1::2])]


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
