"""Attempts of every generation in one view. Spec: 20, 50 §5, 80."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from dsh_codec._backend import kernel
from dsh_codec.errors import StreamError
from dsh_codec.limits import MAX_DEPTH, MAX_SAFE_INTEGER
from dsh_codec.row import CHUNK_TYPE, Event, PackedRow
from dsh_codec.stream import Stream
from dsh_codec.values import deep_equal, is_safe_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from dsh_codec._types import SettlementColumns

__all__ = [
    "OUTCOMES",
    "Attempt",
    "AttemptCounter",
    "AttemptPlace",
    "Outcome",
    "PlaceColumns",
    "iter_attempts",
]

Outcome: TypeAlias = Literal["message", "interrupted", "failed", "open"]

OUTCOMES: Final[tuple[Outcome, ...]] = ("message", "interrupted", "failed", "open")
"""Outcomes in the order of their codes."""

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""Seqs in order, as runs `(first, last)` of consecutive ones."""

_CLOSERS: Final = frozenset(("turn/end", "step/end", "llm/retry", "llm/retry-started"))


class Attempt(NamedTuple):
    """One try to obtain a model response. Spec: 00 §2, 80 §3.

    Attributes:
        turn, step: Where it was made; as the log has them, counts from 1 in sound logs.
        number: Attempts of the same turn and step up to this one, from 1.
        outcome: `message`: accepted. `interrupted`: accepted as far as it came. `failed`:
            not accepted. `open`: generations 0 and 1 only, the log ends inside it.
        seq: Seq of the settlement; where none took the chunks (generations 0 and 1), of the
            last chunk. Attempts come in this order.
        time: Time of that event in milliseconds; None if it has no valid time.
        stream: What the model sent.
        event: The settlement; None where none took the chunks.
    """

    turn: Any
    step: Any
    number: int
    outcome: Outcome
    seq: int
    time: int | None
    stream: Stream
    event: Event | None

    @property
    def message(self) -> dict[str, Any] | None:
        """The stored message; None for an attempt without one."""
        if self.event is None or self.outcome in ("failed", "open"):
            return None
        message = _members(self.event.data).get("message")
        return message if isinstance(message, dict) else None

    @property
    def content(self) -> list[Any] | None:
        """The stored content blocks; None for an attempt without a message."""
        if self.event is None or self.outcome in ("failed", "open"):
            return None
        # Generation 0 has an older spelling without `message` (50 §4.5).
        holder = self.message if self.message is not None else _members(self.event.data)
        content = holder.get("content")
        return content if isinstance(content, list) else None

    @property
    def usage(self) -> dict[str, Any] | None:
        """Token usage: the stream's last one, else the message's. Spec: 80 §4 U1."""
        chunk = _last_chunk(self.stream, "usage")
        usage = None if chunk is None else chunk.get("usage")
        if usage is None and self.event is not None:
            usage = _members(self.event.data).get("usage")
        return usage if isinstance(usage, dict) else None

    @property
    def finish(self) -> str | None:
        """Kind of the last finish reason of the stream; None without one."""
        return _finish_kind(self.stream)


class AttemptPlace(NamedTuple):
    """Where an attempt stands: an `Attempt` without what it says.

    Attributes:
        turn, step, number, outcome, seq, time: As in `Attempt`.
    """

    turn: Any
    step: Any
    number: int
    outcome: Outcome
    seq: int
    time: int | None


class AttemptCounter:
    """Numbers attempts within their turn and step."""

    def __init__(self) -> None:
        """Begin at the start of a log."""
        self._counts: dict[Any, int] = {}

    def count(self, turn: Any, step: Any) -> int:
        """Return how many attempts of this turn and step there are with this one."""
        key = turn, step
        if type(turn) is not int or type(step) is not int:
            key = _hashable(turn), _hashable(step)
        self._counts[key] = number = self._counts.get(key, 0) + 1
        return number


class PlaceColumns(NamedTuple):
    """Places of m attempts as NumPy arrays.

    Attributes:
        seq: int64, shape (m,).
        outcome: int8, shape (m,), positions in `OUTCOMES`.
        turn, step: int64, shape (m,), and which of them are null since the log has no safe
            integer there: bool, shape (m,); None if none is.
        number: int64, shape (m,).
    """

    seq: npt.NDArray[np.int64]
    outcome: npt.NDArray[np.int8]
    turn: tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]
    step: tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]
    number: npt.NDArray[np.int64]

    @classmethod
    def of_places(cls, places: Sequence[AttemptPlace]) -> PlaceColumns:
        """Return places as arrays."""
        import numpy as np

        codes = [OUTCOMES.index(place.outcome) for place in places]
        return cls(
            np.array([place.seq for place in places], np.int64),
            np.array(codes, np.int8),
            _integers([place.turn for place in places]),
            _integers([place.step for place in places]),
            np.array([place.number for place in places], np.int64),
        )

    @classmethod
    def of_settlements(
        cls, found: SettlementColumns, counter: AttemptCounter
    ) -> PlaceColumns:
        """Return the places of settlements, which are counted."""
        import numpy as np

        turns: list[Any] = found.turn.tolist()
        steps: list[Any] = found.step.tolist()
        for position, turn, step in found.others:
            turns[position], steps[position] = turn, step
        numbers = list(map(counter.count, turns, steps))
        turn, step = (found.turn, None), (found.step, None)
        sizes = np.abs([found.turn, found.step])
        if found.others or sizes.max(initial=0) > MAX_SAFE_INTEGER:
            turn, step = _integers(turns), _integers(steps)
        number = np.array(numbers, np.int64)
        return cls(found.seq.astype(np.int64), found.outcome, turn, step, number)


def _integers(
    values: list[Any],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
    """Return integers, and where they are null; None if nowhere."""
    import numpy as np

    found = [int(value) if is_safe_integer(value) else None for value in values]
    is_null = np.array([value is None for value in found])
    known = np.array([value or 0 for value in found], np.int64)
    return known, is_null if is_null.any() else None


def iter_attempts(
    units: Iterable[Event | PackedRow],
    generation: int,
    citations: Callable[[], Mapping[Spans, int]],
    *,
    max_depth: int = MAX_DEPTH,
) -> Iterator[Attempt]:
    """Yield the attempts of a log in the order of their seqs.

    Args:
        units: Rows of the log, in order.
        generation: Its generation.
        citations: Gives, for the seqs that some `assistant/message` cites, the seq of the last
            such message. Asked for at most once, and only in generations 0 and 1.
        max_depth: Nested arrays and objects in a row.

    Yields:
        Attempts; memory holds one of them, and groups of chunks that a later message takes.

    Note:
        Spec: 80 §3; 50 §5 with the leniency of 80's first paragraph.
    """
    counter = AttemptCounter()
    source = (
        _settlements(units, max_depth)
        if generation >= 2
        else _Grouper(citations, max_depth).run(units)
    )
    for attempt in source:
        yield attempt._replace(number=counter.count(attempt.turn, attempt.step))


def find_spans(seqs: Iterable[int]) -> Spans:
    """Return seqs as runs of consecutive ones, in their order."""
    spans: list[tuple[int, int]] = []
    for seq in seqs:
        if spans and spans[-1][1] + 1 == seq:
            spans[-1] = spans[-1][0], seq
        else:
            spans.append((seq, seq))
    return tuple(spans)


def _settlements(
    units: Iterable[Event | PackedRow], max_depth: int
) -> Iterator[Attempt]:
    """Generations 2 to 4: each settlement is an attempt, with its stream in it."""
    for event in units:
        if not isinstance(event, Event):
            continue
        if event.type == "assistant/message":
            outcome: Outcome = "message"
        elif event.type == "assistant/attempt":
            outcome = "failed"
        else:
            continue
        stored = kernel.StoredStream(event.raw, max_depth=max_depth)
        if outcome == "message" and stored.is_interrupted:
            outcome = "interrupted"
        stream = Stream.from_rows(stored, partial(_records_of, event))
        place = stored.turn, stored.step
        yield Attempt(*place, 0, outcome, event.seq, event.time, stream, event)


def _records_of(event: Event) -> list[dict[str, Any]]:
    records = _members(event.data).get("stream")
    return records if isinstance(records, list) else []


class _Group:
    """Chunks of one attempt of generations 0 and 1, as the rows that hold them."""

    def __init__(self, turn: Any, step: Any, max_depth: int) -> None:
        self.turn = turn
        self.step = step
        self.runs: list[tuple[int, int]] = []
        self.is_terminal = False
        self._units: list[Event | PackedRow] = []
        self._max_depth = max_depth

    @property
    def spans(self) -> Spans:
        return tuple(self.runs)

    @property
    def last_seq(self) -> int:
        return self.runs[-1][1]

    @property
    def last_time(self) -> int | None:
        last = self._units[-1]
        return last.times[-1] if isinstance(last, PackedRow) else last.time

    @property
    def stream(self) -> Stream:
        rows = [unit.raw for unit in self._units]
        stored = kernel.StoredStream(rows, max_depth=self._max_depth)
        return Stream.from_rows(stored, partial(_pack_units, self._units))

    def is_at(self, turn: Any, step: Any) -> bool:
        if type(turn) is type(self.turn) is type(step) is type(self.step) is int:
            # Asked for every chunk row; `bench_columns` shows what the rest would cost.
            return bool(turn == self.turn and step == self.step)
        return deep_equal(self.turn, turn) and deep_equal(self.step, step)

    def add(self, unit: Event | PackedRow) -> None:
        seq, count = unit.seq, unit.count if isinstance(unit, PackedRow) else 1
        last = seq + count - 1
        if self.runs and self.runs[-1][1] + 1 == seq:
            self.runs[-1] = self.runs[-1][0], last
        else:
            self.runs.append((seq, last))
        unit.forget()  # A group is kept as bytes until somebody asks for more.
        self._units.append(unit)


def _pack_units(units: Iterable[Event | PackedRow]) -> list[dict[str, Any]]:
    """Return the records that the chunks of rows make. Spec: 50 §5.5."""
    records: list[dict[str, Any]] = []
    packer = kernel.Packer()
    for unit in units:
        timed: Iterable[Any]  # Pairs of whatever a row holds; packing judges them.
        if isinstance(unit, PackedRow):
            timed = unit.timed_chunks()
        else:
            pair: Any = unit.time, _members(unit.data).get("chunk")
            timed = [pair]
        for time, chunk in timed:
            try:
                packer.push(time, chunk)
            except (StreamError, TypeError):
                # Choice: a chunk that packing refuses stays a raw record, which expansion or
                # assembly may refuse in turn: 80 says that nothing is refused here.
                records += packer.snapshot()
                records.append({"type": "chunk", "time": time, "chunk": chunk})
                packer = kernel.Packer()
        unit.forget()
    return records + packer.snapshot()


class _Grouper:
    """Groups chunk rows into attempts. Spec: 50 §5.2 to §5.4, 80 intro."""

    def __init__(
        self, citations: Callable[[], Mapping[Spans, int]], max_depth: int
    ) -> None:
        self._ask = citations
        self._max_depth = max_depth
        self._citations: Mapping[Spans, int] | None = None
        self._pending: _Group | None = None
        self._waiting: dict[Spans, _Group] = {}
        self._turn_is_open = False

    def run(self, units: Iterable[Event | PackedRow]) -> Iterator[Attempt]:
        for unit in units:
            if isinstance(unit, PackedRow):
                if self._is_elsewhere(unit.turn, unit.step):
                    yield from self._close(unit.seq)
                group = self._group(unit.turn, unit.step)
                group.add(unit)
            elif unit.type == CHUNK_TYPE:
                data = _members(unit.data)
                turn, step, chunk = (
                    data.get("turn"),
                    data.get("step"),
                    data.get("chunk"),
                )
                if self._is_elsewhere(turn, step):
                    yield from self._close(unit.seq)
                group = self._group(turn, step)
                group.add(unit)
                # Spec 50 §5.3: only a chunk row of its own ends the group.
                group.is_terminal = _members(chunk).get("type") == "finish"
            elif unit.type == "assistant/message":
                yield from self._settle(unit)
            else:
                yield from self._pass(unit)
        yield from self._close(None)

    def _group(self, turn: Any, step: Any) -> _Group:
        if self._pending is None:
            self._pending = _Group(turn, step, self._max_depth)
        return self._pending

    def _is_elsewhere(self, turn: Any, step: Any) -> bool:
        """Whether a chunk of this place ends the pending group."""
        group = self._pending
        return group is not None and (group.is_terminal or not group.is_at(turn, step))

    def _pass(self, event: Event) -> Iterator[Attempt]:
        if event.type in _CLOSERS:
            yield from self._close(event.seq)
        if event.type == "turn/start":
            # Spec 50 §5.2: inside an open turn it either closes that turn or is refused.
            if self._turn_is_open:
                yield from self._close(event.seq)
            self._turn_is_open = True
        elif event.type == "turn/end":
            self._turn_is_open = False

    def _settle(self, event: Event) -> Iterator[Attempt]:
        data = _members(event.data)
        cited = find_spans(event.source_event_seqs or ())
        group = self._pending
        if (
            group is not None
            and group.is_at(data.get("turn"), data.get("step"))
            and cited == group.spans
        ):
            self._pending = None
        else:
            yield from self._close(event.seq)
            group = self._waiting.pop(cited, None)
        stream = Stream([]) if group is None else group.stream
        outcome: Outcome = "message"
        if data.get("interrupted") is True:
            outcome = "interrupted"
        place = data.get("turn"), data.get("step")
        yield Attempt(*place, 0, outcome, event.seq, event.time, stream, event)

    def _close(self, seq: int | None) -> Iterator[Attempt]:
        """End the pending group; `seq` is that of the row that does, None at the end."""
        group = self._pending
        self._pending = None
        if group is None:
            return
        if seq is not None:
            if self._citations is None:
                self._citations = self._ask()
            if self._citations.get(group.spans, -1) >= seq:
                self._waiting[group.spans] = group
                return
        stream = group.stream
        outcome: Outcome = "failed"
        if seq is None and _finish_kind(stream) not in ("error", "aborted"):
            outcome = "open"
        yield Attempt(
            group.turn,
            group.step,
            0,
            outcome,
            group.last_seq,
            group.last_time,
            stream,
            None,
        )


def _finish_kind(stream: Stream) -> str | None:
    chunk = _last_chunk(stream, "finish")
    kind = None if chunk is None else _members(chunk.get("reason")).get("kind")
    return kind if isinstance(kind, str) else None


def _last_chunk(stream: Stream, kind: str) -> dict[str, Any] | None:
    try:
        return stream.last_chunk(kind)
    except StreamError:
        # Nothing is refused here (80, intro): what is no record is passed over.
        return find_last_chunk(stream.records, kind)


def find_last_chunk(records: list[Any], kind: str) -> dict[str, Any] | None:
    """Return the last raw chunk of a type; what is no record is passed over."""
    for record in reversed(records):
        if isinstance(record, dict) and record.get("type") == "chunk":
            chunk = record.get("chunk")
            if isinstance(chunk, dict) and chunk.get("type") == kind:
                return chunk
    return None


def _members(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _hashable(value: Any) -> Any:
    """Return a key under which equal turn or step numbers, and no others, meet."""
    return value if type(value) in (int, float, str, type(None)) else kernel.dump(value)
