"""Rows of a log into rows of calls. Spec: 80 §3 to §5.

The native kernel does the same for generations 2 to 4 (`rust/core/src/calls`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from dsh_codec._types import Call, TimedCall, TokenSums, ToolTime
from dsh_codec.attempts import find_last_chunk
from dsh_codec.events import is_array, is_filled, is_object
from dsh_codec.pace import pace_of, token_gaps
from dsh_codec.tools import Place, ToolPairing, place_of
from dsh_codec.values import is_safe_integer

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_codec._types import CallOutcome
    from dsh_codec.tools import EventLike

__all__ = ["TOKEN_COLUMNS", "CallColumns", "CallRows", "sum_tokens"]

TOKEN_COLUMNS: Final = (
    "input",
    "output",
    "cache_read",
    "cache_write",
    "reasoning",
    "total",
)
"""Columns that are summed. Spec: 80 §3."""

# They stand side by side in a call.
_FIRST: Final = Call._fields.index(TOKEN_COLUMNS[0])
_BEHIND: Final = _FIRST + len(TOKEN_COLUMNS)


class CallColumns(NamedTuple):
    """Which columns of `Call` are wanted; the others are None.

    Attributes:
        times: Those of 80 §5.
        tools: `tools`.
        gaps: `gaps`.
        auxiliary: Rows of requests that carry no usage.
    """

    times: bool = True
    tools: bool = False
    gaps: bool = False
    auxiliary: bool = False


OLD_TYPES: Final = {
    "compact/start": "compaction/start",
    "compact/summary": "compaction/summary",
    "compact/end": "compaction/end",
    "compact/prune": "compaction/prune",
    "steering/message": "user/message",
}
"""Types of generation 0 that were renamed, with their later names. Spec: 50 §4."""

_Times: TypeAlias = tuple[
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    float | None,
]
_Tokens: TypeAlias = tuple[
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
]
_NO_TIMES: Final[_Times] = (None, None, None, None, None, None, None)


class _Request(NamedTuple):
    """A `request/header` or `request/context` row."""

    seq: int
    time: int | None
    provider: str | None
    model: str | None


class _Requests:
    """Requests, of which each attempt wants the last one before something."""

    def __init__(self) -> None:
        self._waiting: deque[_Request] = deque()
        self._last: _Request | None = None
        # Of requests that were written at the same time or later, the last one only. So times
        # increase, and the last request up to a time is found by halving.
        self._seqs: list[int] = []
        self._times: list[int] = []

    def add(self, request: _Request) -> None:
        self._waiting.append(request)

    def go_to(self, seq: int) -> None:
        """Leave out what stands behind an attempt; these come in the order of their seqs."""
        while self._waiting and self._waiting[0].seq < seq:
            request = self._last = self._waiting.popleft()
            if request.time is None:
                continue
            while self._times and self._times[-1] >= request.time:
                self._times.pop()
                self._seqs.pop()
            self._times.append(request.time)
            self._seqs.append(request.seq)

    def route(self) -> tuple[str | None, str | None]:
        """Return provider and model of the last request."""
        return (None, None) if self._last is None else self._last[2:]

    def time_between(self, seq: int, stream_start: int | None) -> int | None:
        """Return the time of the last request behind a seq, before a stream began."""
        count = len(self._times)
        if stream_start is not None:
            count = bisect_right(self._times, stream_start)
        if count == 0 or self._seqs[count - 1] <= seq:
            return None
        return self._times[count - 1]


class _Row(NamedTuple):
    """A call that is not complete yet.

    Attributes:
        seq: Its seq.
        most: Columns of `Call` from `turn` to `output_rate`.
        time: When it was recorded.
        tools: Where its tool calls are in the pairing.
        gaps: As in `Call`.
    """

    seq: int
    most: tuple[Any, ...]
    time: int | None
    tools: range
    gaps: tuple[int, ...] | None


class CallRows:
    """Notes what calls refer to, and makes a row for each call.

    Whether a row is inherited is known only at the end of the log, and how long its tools took
    only later than the row itself, so rows are completed by `finish`.
    """

    def __init__(self, columns: CallColumns, generation: int, kernel: Any) -> None:
        """Begin without calls.

        Args:
            columns: What is wanted.
            generation: Of the log.
            kernel: Reads streams.
        """
        self._columns = columns
        self._kernel = kernel
        self._rows: list[_Row] = []
        self._counts: dict[Place, int] = {}
        self._settled: dict[Place, int] = {}
        self._step_starts: dict[Place, int] = {}
        self._retry_starts: dict[Place, list[tuple[int, int]]] = {}
        self._requests = _Requests()
        self._pairing = ToolPairing()
        self._compaction_turn: int | None = None
        self._notes: dict[str | None, Callable[[EventLike], None]] = {
            "request/header": self._note_request,
            "request/context": self._note_request,
            "compaction/start": self._note_compaction,
            "compaction/end": self._note_compaction_end,
            "compaction/summary": self._add_compaction,
            "session/end-seed": self._note_compaction_end,
        }
        if columns.times:
            self._notes["step/start"] = self._note_step
            self._notes["llm/retry-started"] = self._note_retry
        if columns.tools:
            self._notes["tool/call"] = self._pairing.start
            self._notes["tool/result"] = self._pairing.answer
        if generation == 0:
            self._notes |= {
                old: self._notes[new]
                for old, new in OLD_TYPES.items()
                if new in self._notes
            }

    def wants(self, kind: str | None) -> bool:
        """Whether events of a type are noted; settlements are attempts, and are not."""
        return kind in self._notes or (self._columns.auxiliary and _is_auxiliary(kind))

    def note(self, event: EventLike) -> None:
        """Take an event that is wanted."""
        self._notes.get(event.type, self._add_auxiliary)(event)

    def add_settlement(self, event: EventLike) -> None:
        """Take an `assistant/message` or `assistant/attempt` with its stream in it."""
        data = _members(event.data)
        outcome: CallOutcome = "failed"
        if event.type == "assistant/message":
            outcome = "interrupted" if data.get("interrupted") is True else "message"
        stream = data.get("stream")
        records = stream if is_array(stream) else []
        self.add_attempt(outcome, event.seq, event.time, place_of(data), records, data)

    def add_attempt(
        self,
        outcome: CallOutcome,
        seq: int,
        time: int | None,
        place: Place,
        records: list[Any],
        data: Any,
    ) -> None:
        """Take an attempt. They come in the order of their seqs.

        Args:
            outcome: What became of it.
            seq: Of its settlement, or else of its last chunk.
            time: Of that event, in milliseconds.
            place: Turn and step.
            records: Its stream, not validated.
            data: Payload of its settlement; None without one.
        """
        self._requests.go_to(seq)
        data = _members(data)
        usage = _members(find_last_chunk(records, "usage")).get("usage")
        if usage is None:
            usage = data.get("usage")
        tokens = _tokens_of(_members(usage))
        times = _NO_TIMES
        if self._columns.times:
            times = self._times(seq, place, records, tokens[1])
        tools = range(0)
        if outcome in ("message", "interrupted"):
            message = data.get("message")
            # Generation 0 has an older spelling without `message` (50 §4.5).
            holder = message if is_object(message) else data
            source = holder.get("source" if holder is message else "provenance")
            provider, model, served = _source_of(_members(source))
            content = holder.get("content")
            if self._columns.tools and is_array(content):
                tools = self._pairing.add_message(place, seq, content)
        else:
            provider, model = self._requests.route()
            served = None
        self._counts[place] = number = self._counts.get(place, 0) + 1
        self._settled[place] = seq
        most = (
            *place,
            number,
            outcome,
            _finish_of(records),
            provider,
            model,
            served,
            *tokens,
            *times,
        )
        gaps = None
        if self._columns.gaps:
            gaps = tuple(token_gaps(records, self._kernel))
        self._rows.append(_Row(seq, most, time, tools, gaps))

    def finish(self, session: str, own_from: int) -> list[TimedCall]:
        """Return the calls in the order of their seqs.

        Args:
            session: Id of the session.
            own_from: Seq of the first own event.
        """
        self._rows.sort(key=lambda row: row.seq)
        found = []
        for seq, most, time, tools, gaps in self._rows:
            end = (self._times_of(tools), gaps, seq >= own_from)
            found.append(TimedCall(Call._make((session, seq, *most, *end)), time))
        return found

    def _times_of(self, tools: range) -> tuple[ToolTime, ...] | None:
        if not self._columns.tools:
            return None
        pairs = self._pairing.pairs[tools.start : tools.stop]
        return tuple([ToolTime(pair.call_id, pair.ms) for pair in pairs])

    def _note_step(self, event: EventLike) -> None:
        if event.time is not None:
            self._step_starts[place_of(event.data)] = event.time

    def _note_retry(self, event: EventLike) -> None:
        if event.time is not None:
            starts = self._retry_starts.setdefault(place_of(event.data), [])
            starts.append((event.seq, event.time))

    def _note_request(self, event: EventLike) -> None:
        data = _members(event.data)
        if event.type == "request/header":
            data = _members(_members(data.get("header")).get("config"))
        provider, model = _text(data.get("provider")), _text(data.get("model"))
        self._requests.add(_Request(event.seq, event.time, provider, model))

    def _note_compaction(self, event: EventLike) -> None:
        self._compaction_turn = place_of(event.data).turn

    def _note_compaction_end(self, _: EventLike) -> None:
        self._compaction_turn = None

    def _add_compaction(self, event: EventLike) -> None:
        data = _members(event.data)
        usage = data.get("usage")
        if is_object(usage):
            self._add_other(event, "compaction", self._compaction_turn, data, usage)

    def _add_auxiliary(self, event: EventLike) -> None:
        route = _members(_members(event.data).get("route"))
        self._add_other(event, "auxiliary", None, route, {})

    def _add_other(
        self,
        event: EventLike,
        outcome: CallOutcome,
        turn: int | None,
        route: dict[str, Any],
        usage: dict[str, Any],
    ) -> None:
        most = (
            turn,
            None,
            None,
            outcome,
            None,
            _text(route.get("provider")),
            _text(route.get("model")),
            None,
            *_tokens_of(usage),
            *_NO_TIMES,
        )
        gaps = () if self._columns.gaps else None
        self._rows.append(_Row(event.seq, most, event.time, range(0), gaps))

    def _times(
        self, seq: int, place: Place, records: list[Any], output: int | None
    ) -> _Times:
        """Return the columns from `start_ms` to `output_rate`. Spec: 80 §5."""
        pace = pace_of(records, self._kernel)
        start = self._start_of(seq, place, pace.start_ms)
        first, last = pace.first_token_ms, pace.last_token_ms
        ttft = None if first is None or start is None else first - start
        generation = None if first is None or last is None else last - first
        if ttft is not None and ttft < 0:
            ttft = None
        if generation is not None and generation <= 0:
            generation = None  # One token only, or a clock that stepped back.
        rate = None
        if output is not None and generation is not None:
            rate = output * 1000 / generation
        return start, first, last, pace.end_ms, ttft, generation, rate

    def _start_of(self, seq: int, place: Place, stream_start: int | None) -> int | None:
        """Return when an attempt started. Spec: 80 §5."""
        previous = self._settled.get(place, -1)
        if previous < 0:
            start = self._step_starts.get(place)
            if start is not None:
                return start
        else:
            for retry_seq, time in reversed(self._retry_starts.get(place, ())):
                if retry_seq <= previous:
                    break
                if retry_seq < seq:
                    return time
        # A settlement stands behind rows that were written during its stream.
        return self._requests.time_between(previous, stream_start)


def sum_tokens(calls: list[Call]) -> TokenSums:
    """Return the sums over some calls."""
    nothing = (None,) * len(TOKEN_COLUMNS)  # Without calls there would be no columns.
    columns = list(zip(nothing, *[call[_FIRST:_BEHIND] for call in calls], strict=True))
    return TokenSums(
        len(calls),
        tuple([sum(filter(None, column)) for column in columns]),
        tuple([len(column) - column.count(None) for column in columns]),
    )


def merged_sums(one: TokenSums, other: TokenSums) -> TokenSums:
    """Return the sums over the calls of both."""
    return TokenSums(
        one.calls + other.calls,
        tuple(map(add, one.sums, other.sums)),
        tuple(map(add, one.known, other.known)),
    )


def _is_auxiliary(kind: str | None) -> bool:
    """Whether an event type is that of a request that carries no usage. Spec: 80 §3."""
    if kind is None:
        return False
    is_web_request = kind.startswith("web/") and kind.endswith("-request")
    return is_web_request or kind == "session/title-llm-request"


def _tokens_of(usage: dict[str, Any]) -> _Tokens:
    """Return the columns from `input` to `recorded_total`. Spec: 80 §4 U2 to U4."""
    given = _tokens(usage.get("inputTokens"))
    output = _tokens(usage.get("outputTokens"))
    read = _tokens(usage.get("cacheReadTokens"))
    write = _tokens(usage.get("cacheWriteTokens"))
    reasoning = _tokens(usage.get("reasoningTokens"))
    total = None
    if given is not None and output is not None:
        total = given + (read or 0) + (write or 0) + output
    recorded = _tokens(usage.get("totalTokens"))
    return given, output, read, write, reasoning, total, recorded


def _tokens(value: object) -> int | None:
    """Return a number of tokens; None for what can be none."""
    return int(value) if is_safe_integer(value) and value >= 0 else None


def _members(value: object) -> dict[str, Any]:
    """Return a JSON object as it is, anything else as an empty one."""
    return value if is_object(value) else {}


def _finish_of(records: list[Any]) -> str | None:
    chunk = _members(find_last_chunk(records, "finish"))
    return _text(_members(chunk.get("reason")).get("kind"))


def _source_of(source: dict[str, Any]) -> tuple[str | None, str | None, str | None]:
    """Return provider, model and served model of a message. Spec: 80 §3."""
    provider, model = _text(source.get("provider")), _text(source.get("model"))
    response = _members(_members(source.get("replayState")).get("response"))
    served = response.get("responseModel")
    if not is_filled(served) or served == model:
        served = None
    return provider, model, served


def _text(value: object) -> str | None:
    return value if type(value) is str else None
