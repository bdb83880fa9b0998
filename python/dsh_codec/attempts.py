"""Attempts of every generation in one view. Spec: 20, 50 §5, 80."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from dsh_codec._backend import kernel
from dsh_codec.errors import StreamError
from dsh_codec.row import CHUNK_TYPE, Event, PackedRow
from dsh_codec.stream import Stream
from dsh_codec.values import deep_equal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["Attempt", "Outcome", "iter_attempts"]

Outcome: TypeAlias = Literal["message", "interrupted", "failed", "open"]

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
        chunk = self.stream.last_chunk("usage")
        usage = None if chunk is None else chunk.get("usage")
        if usage is None and self.event is not None:
            usage = _members(self.event.data).get("usage")
        return usage if isinstance(usage, dict) else None

    @property
    def finish(self) -> str | None:
        """Kind of the last finish reason of the stream; None without one."""
        return _finish_kind(self.stream)


def iter_attempts(
    units: Iterable[Event | PackedRow],
    generation: int,
    citations: Callable[[], Mapping[Spans, int]],
) -> Iterator[Attempt]:
    """Yield the attempts of a log in the order of their seqs.

    Args:
        units: Rows of the log, in order.
        generation: Its generation.
        citations: Gives, for the seqs that some `assistant/message` cites, the seq of the last
            such message. Asked for at most once, and only in generations 0 and 1.

    Yields:
        Attempts; memory holds one of them, and groups of chunks that a later message takes.

    Note:
        Spec: 80 §3; 50 §5 with the leniency of 80's first paragraph.
    """
    counts: dict[Any, int] = {}
    source = _settlements(units) if generation >= 2 else _Grouper(citations).run(units)
    for attempt in source:
        key = (_hashable(attempt.turn), _hashable(attempt.step))
        counts[key] = number = counts.get(key, 0) + 1
        yield attempt._replace(number=number)


def find_spans(seqs: Iterable[int]) -> Spans:
    """Return seqs as runs of consecutive ones, in their order."""
    spans: list[tuple[int, int]] = []
    for seq in seqs:
        if spans and spans[-1][1] + 1 == seq:
            spans[-1] = spans[-1][0], seq
        else:
            spans.append((seq, seq))
    return tuple(spans)


def _settlements(units: Iterable[Event | PackedRow]) -> Iterator[Attempt]:
    """Generations 2 to 4: each settlement is an attempt, with its stream in it."""
    for event in units:
        if not isinstance(event, Event):
            continue
        if event.type == "assistant/message":
            outcome = _message_outcome(event)
        elif event.type == "assistant/attempt":
            outcome = "failed"
        else:
            continue
        data = _members(event.data)
        records = data.get("stream")
        stream = Stream(records if isinstance(records, list) else [])
        yield _settled(event, outcome, stream)


def _settled(event: Event, outcome: Outcome, stream: Stream) -> Attempt:
    data = _members(event.data)
    turn, step = data.get("turn"), data.get("step")
    return Attempt(turn, step, 0, outcome, event.seq, event.time, stream, event)


def _message_outcome(event: Event) -> Outcome:
    interrupted = _members(event.data).get("interrupted") is True
    return "interrupted" if interrupted else "message"


class _Group:
    """Chunks of one attempt of generations 0 and 1, and the records they become."""

    def __init__(self, turn: Any, step: Any) -> None:
        self.turn = turn
        self.step = step
        self.runs: list[tuple[int, int]] = []
        self.last_time: int | None = None
        self.is_terminal = False
        self._records: list[dict[str, Any]] = []
        self._packer = kernel.Packer()

    @property
    def spans(self) -> Spans:
        return tuple(self.runs)

    @property
    def last_seq(self) -> int:
        return self.runs[-1][1]

    @property
    def stream(self) -> Stream:
        return Stream(self._records + self._packer.snapshot())

    def is_at(self, turn: Any, step: Any) -> bool:
        return deep_equal(self.turn, turn) and deep_equal(self.step, step)

    def add(self, seq: int, count: int, timed: Iterable[tuple[Any, Any]]) -> None:
        last = seq + count - 1
        if self.runs and self.runs[-1][1] + 1 == seq:
            self.runs[-1] = self.runs[-1][0], last
        else:
            self.runs.append((seq, last))
        for time, chunk in timed:
            self.last_time = time
            try:
                self._packer.push(time, chunk)
            except (StreamError, TypeError):
                # Choice: a chunk that packing refuses stays a raw record, which expansion or
                # assembly may refuse in turn: 80 says that nothing is refused here.
                self._records += self._packer.snapshot()
                self._records.append({"type": "chunk", "time": time, "chunk": chunk})
                self._packer = kernel.Packer()


class _Grouper:
    """Groups chunk rows into attempts. Spec: 50 §5.2 to §5.4, 80 intro."""

    def __init__(self, citations: Callable[[], Mapping[Spans, int]]) -> None:
        self._ask = citations
        self._citations: Mapping[Spans, int] | None = None
        self._pending: _Group | None = None
        self._waiting: dict[Spans, _Group] = {}
        self._turn_is_open = False

    def run(self, units: Iterable[Event | PackedRow]) -> Iterator[Attempt]:
        for unit in units:
            if isinstance(unit, PackedRow):
                yield from self._close_before(unit.seq, unit.turn, unit.step)
                group = self._group(unit.turn, unit.step)
                group.add(unit.seq, unit.count, unit.timed_chunks())
            elif unit.type == CHUNK_TYPE:
                data = _members(unit.data)
                turn, step, chunk = (
                    data.get("turn"),
                    data.get("step"),
                    data.get("chunk"),
                )
                yield from self._close_before(unit.seq, turn, step)
                group = self._group(turn, step)
                group.add(unit.seq, 1, [(unit.time, chunk)])
                # Spec 50 §5.3: only a chunk row of its own ends the group.
                group.is_terminal = _members(chunk).get("type") == "finish"
            elif unit.type == "assistant/message":
                yield from self._settle(unit)
            else:
                yield from self._pass(unit)
        yield from self._close(None)

    def _group(self, turn: Any, step: Any) -> _Group:
        if self._pending is None:
            self._pending = _Group(turn, step)
        return self._pending

    def _close_before(self, seq: int, turn: Any, step: Any) -> Iterator[Attempt]:
        group = self._pending
        if group is not None and (group.is_terminal or not group.is_at(turn, step)):
            yield from self._close(seq)

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
        yield _settled(event, _message_outcome(event), stream)

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
    chunk = stream.last_chunk("finish")
    kind = None if chunk is None else _members(chunk.get("reason")).get("kind")
    return kind if isinstance(kind, str) else None


def _members(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _hashable(value: Any) -> Any:
    """Return a key under which equal turn or step numbers, and no others, meet."""
    return value if type(value) in (int, float, str, type(None)) else kernel.dump(value)
