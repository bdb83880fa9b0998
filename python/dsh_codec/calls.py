"""Model calls: one row for each attempt, with tokens and times. Spec: 80 §2 to §5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from dsh_codec.attempts import Attempt, iter_attempts
from dsh_codec.corpus import own_from, read_logs
from dsh_codec.events import is_array, is_filled, is_object
from dsh_codec.pace import pace_of, token_gaps
from dsh_codec.row import Event
from dsh_codec.stream import Stream
from dsh_codec.tools import Place, ToolPairing
from dsh_codec.values import is_safe_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dsh_codec._types import Compression
    from dsh_codec.attempts import Outcome
    from dsh_codec.corpus import Places, Readings
    from dsh_codec.log import Log
    from dsh_codec.row import PackedRow

__all__ = ["Call", "CallOutcome", "ToolTime", "calls"]

CallOutcome: TypeAlias = Literal[
    "message", "interrupted", "failed", "open", "compaction", "auxiliary"
]


class ToolTime(NamedTuple):
    """How long one tool call took.

    Attributes:
        call_id: Its id, as the model gave it.
        ms: From `tool/call` to `tool/result`; None if it did not start or was not answered.
    """

    call_id: str
    ms: int | None


class Call(NamedTuple):
    """One call of a model. Everything that is not known is None, never zero.

    Times are milliseconds since the Unix epoch by the log's clock, durations milliseconds,
    tokens counts. Spec: 80 §3 to §5.

    Attributes:
        session: Id of the session.
        seq: Seq of the settlement (in generations 0 and 1 of the message; of the last chunk
            where no message took the chunks), of the summary, or of the request.
        turn, step: Where it was made, from 1; `step` is None for a compaction.
        attempt: From 1 within its turn and step; None for calls that are no attempts.
        outcome: `message`: accepted. `interrupted`: accepted as far as it came. `failed`: not
            accepted. `open`: generations 0 and 1 only, the log ends inside it. `compaction`:
            wrote a summary. `auxiliary`: a request whose usage no log tells.
        finish: Kind of the last finish reason of the stream.
        provider, model: What was asked for.
        served_model: What answered, where it is another model.
        input, cache_read, cache_write, output: Disjoint numbers of tokens.
        reasoning: Part of `output`.
        total: Sum of the four, absent cache members counted as zero.
        recorded_total: What the log says about the total.
        start_ms: Start of the attempt.
        first_token_ms, last_token_ms: First and last token of the stream.
        end_ms: Last member of the stream.
        ttft: Time to the first token.
        generation: Time from the first token to the last.
        output_rate: Output tokens per second of `generation`.
        tools: The tool calls of a message; None if not asked for.
        gaps: Differences of consecutive token deltas; None if not asked for.
        own: Whether the session made the call itself and did not inherit it.
    """

    session: str
    seq: int
    turn: int | None
    step: int | None
    attempt: int | None
    outcome: CallOutcome
    finish: str | None
    provider: str | None
    model: str | None
    served_model: str | None
    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    reasoning: int | None
    total: int | None
    recorded_total: int | None
    start_ms: int | None
    first_token_ms: int | None
    last_token_ms: int | None
    end_ms: int | None
    ttft: int | None
    generation: int | None
    output_rate: float | None
    tools: tuple[ToolTime, ...] | None
    gaps: tuple[int, ...] | None
    own: bool


class TimedCall(NamedTuple):
    """A call and when it was recorded.

    Attributes:
        call: The call.
        time_ms: Time of the event that `call.seq` names; None if it has no valid time.
    """

    call: Call
    time_ms: int | None


def calls(
    paths: Places,
    *,
    tools: bool = True,
    gaps: bool = False,
    auxiliary: bool = False,
    compression: Compression | None = None,
) -> Readings[Call]:
    """Return the model calls of all sessions at some places.

    Args:
        paths: Roots, directories, log files, entries of `find` or open logs; one or many.
        tools: Whether tool calls are timed.
        gaps: Whether the gaps between tokens are listed.
        auxiliary: Whether requests that carry no usage (titles, web searches) are rows, too.
        compression: Decides where both encodings of a generation are present.

    Returns:
        An iterator over the rows: each session's in the order of their seqs, inherited ones
        included and marked. Its `errors` lists the sessions that could not be read; those
        have no rows at all.

    Note:
        Memory: one attempt and the rows of one session. Raises an `OSError` only for a place
        that is not there. Spec: 80 §3.

    Example:
        >>> row = b'{"type":"session","version":4,"id":"s-1","createdAt":0,'
        >>> row += b'"isSeeded":false,"delegationDepth":0}' + bytes([10])
        >>> import dsh_codec as dsh
        >>> list(dsh.calls(dsh.open(row)))
        []
    """

    def read(log: Log) -> Iterable[Call]:
        found = read_calls(log, tools=tools, gaps=gaps, auxiliary=auxiliary)
        return [timed.call for timed in found]

    return read_logs(paths, read, compression=compression)


def read_calls(
    log: Log,
    *,
    times: bool = True,
    tools: bool = False,
    gaps: bool = False,
    auxiliary: bool = False,
) -> list[TimedCall]:
    """Return the calls of one log in the order of their seqs, see `calls`.

    Args:
        log: The log.
        times: Whether the columns of 80 §5 are wanted; without, they are None.
        tools: As for `calls`.
        gaps: As for `calls`.
        auxiliary: As for `calls`.

    Raises:
        DshCodecError, OSError: As for iterating over the log.
    """
    reader = _Reader(log, times=times, tools=tools, gaps=gaps, auxiliary=auxiliary)
    return reader.read()


class _Request(NamedTuple):
    """A `request/header` or `request/context` row."""

    seq: int
    time: int | None
    provider: str | None
    model: str | None


_Times: TypeAlias = tuple[
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    float | None,
]
_NO_TIMES: Final[_Times] = (None, None, None, None, None, None, None)


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


class _Reader:
    """One pass over a log: notes what calls refer to, and makes a row for each call.

    Whether a row is inherited is known only at the end of the log, and how long its tools took
    only later than the row itself, so rows are completed after the pass.
    """

    def __init__(
        self, log: Log, *, times: bool, tools: bool, gaps: bool, auxiliary: bool
    ) -> None:
        self._log = log
        self._session: str = log.header.fields["id"]
        self._with_times = times
        self._with_tools = tools
        self._with_gaps = gaps
        self._with_auxiliary = auxiliary
        self._rows: list[_Row] = []
        self._step_starts: dict[tuple[Any, Any], int] = {}
        self._retry_starts: dict[tuple[Any, Any], list[tuple[int, int]]] = {}
        self._requests: list[_Request] = []
        self._settled: dict[tuple[Any, Any], int] = {}
        self._pairing = ToolPairing()
        self._compaction_turn: int | None = None
        self._notes: dict[str | None, Callable[[Event], None]] = {
            "request/header": self._note_request,
            "request/context": self._note_request,
            "compaction/start": self._note_compaction,
            "compaction/end": self._note_compaction_end,
            "compaction/summary": self._add_compaction,
            "session/end-seed": self._note_compaction_end,
        }
        if times:
            self._notes["step/start"] = self._note_step
            self._notes["llm/retry-started"] = self._note_retry
        if tools:
            self._notes["tool/call"] = self._pairing.start
            self._notes["tool/result"] = self._pairing.answer
        if auxiliary:
            self._notes["session/title-llm-request"] = self._add_auxiliary
        if log.generation == 0:
            self._notes |= {
                old: self._notes[new]
                for old, new in OLD_TYPES.items()
                if new in self._notes
            }

    def read(self) -> list[TimedCall]:
        log = self._log
        units = self._watch(log.units())
        if log.generation >= 2:
            attempts = self._settlements(units)
        else:
            citations = log._citations  # pyright: ignore[reportPrivateUsage]
            attempts = iter_attempts(units, log.generation, citations)
        for attempt in attempts:
            self._add_attempt(attempt)
        cut = own_from(log)
        self._rows.sort(key=lambda row: row[0])
        found = []
        for seq, most, time, tools, gaps in self._rows:
            end = (self._times_of(tools), gaps, seq >= cut)
            call = Call._make((self._session, seq, *most, *end))
            found.append(TimedCall(call, time))
        return found

    def _settlements(self, units: Iterable[Event | PackedRow]) -> Iterator[Attempt]:
        """Yield the attempts of generations 2 to 4.

        `iter_attempts` keeps streams as bytes, and rows would be parsed twice: a row needs more
        of a message than its stream.
        """
        counts: dict[tuple[Any, Any], int] = {}
        for event in units:
            kind = event.type if isinstance(event, Event) else None
            if kind not in ("assistant/message", "assistant/attempt"):
                continue
            assert isinstance(event, Event)  # noqa: S101 - it has a type
            data = object_or_empty(event.data)
            turn, step, records = data.get("turn"), data.get("step"), data.get("stream")
            place = _hashable(turn), _hashable(step)
            counts[place] = number = counts.get(place, 0) + 1
            outcome: Outcome = "failed"
            if kind == "assistant/message":
                is_cut_short = data.get("interrupted") is True
                outcome = "interrupted" if is_cut_short else "message"
            stream = Stream(records if is_array(records) else [])
            yield Attempt(
                turn, step, number, outcome, event.seq, event.time, stream, event
            )

    def _times_of(self, tools: range) -> tuple[ToolTime, ...] | None:
        if not self._with_tools:
            return None
        pairs = self._pairing.pairs[tools.start : tools.stop]
        return tuple([ToolTime(pair.call_id, pair.ms) for pair in pairs])

    def _watch(self, units: Iterable[Event | PackedRow]) -> Iterator[Event | PackedRow]:
        notes = self._notes
        for unit in units:
            if isinstance(unit, Event):
                note = notes.get(unit.type)
                if note is not None:
                    note(unit)
                elif self._with_auxiliary and is_web_request(unit.type):
                    self._add_auxiliary(unit)
            yield unit

    def _note_step(self, event: Event) -> None:
        if event.time is not None:
            self._step_starts[_place(event.data)] = event.time

    def _note_retry(self, event: Event) -> None:
        if event.time is not None:
            starts = self._retry_starts.setdefault(_place(event.data), [])
            starts.append((event.seq, event.time))

    def _note_request(self, event: Event) -> None:
        data = object_or_empty(event.data)
        if event.type == "request/header":
            data = object_or_empty(object_or_empty(data.get("header")).get("config"))
        provider, model = _text(data.get("provider")), _text(data.get("model"))
        self._requests.append(_Request(event.seq, event.time, provider, model))

    def _note_compaction(self, event: Event) -> None:
        self._compaction_turn = integer(object_or_empty(event.data).get("turn"))

    def _note_compaction_end(self, _: Event) -> None:
        self._compaction_turn = None

    def _add_compaction(self, event: Event) -> None:
        data = object_or_empty(event.data)
        usage = data.get("usage")
        if is_object(usage):
            self._add_other(event, "compaction", self._compaction_turn, data, usage)

    def _add_auxiliary(self, event: Event) -> None:
        route = object_or_empty(object_or_empty(event.data).get("route"))
        self._add_other(event, "auxiliary", None, route, {})

    def _add_other(
        self,
        event: Event,
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
            *tokens_of(usage),
            *_NO_TIMES,
        )
        gaps = () if self._with_gaps else None
        self._rows.append(_Row(event.seq, most, event.time, range(0), gaps))

    def _add_attempt(self, attempt: Attempt) -> None:
        place = _hashable(attempt.turn), _hashable(attempt.step)
        records = attempt.stream.records
        tokens = tokens_of(_usage_of(attempt, records))
        times = _NO_TIMES
        if self._with_times:
            times = self._times(attempt, place, records, tokens[1])
        tools = range(0)
        if attempt.outcome in ("message", "interrupted"):
            provider, model, served = _source_of(attempt)
            if self._with_tools:
                tools = self._pairing.add_message(
                    Place(integer(attempt.turn), integer(attempt.step)),
                    attempt.seq,
                    attempt.content or (),
                )
        else:
            provider, model = self._route_before(attempt.seq)
            served = None
        most = (
            integer(attempt.turn),
            integer(attempt.step),
            attempt.number,
            attempt.outcome,
            _finish_of(records),
            provider,
            model,
            served,
            *tokens,
            *times,
        )
        gaps = tuple(token_gaps(records)) if self._with_gaps else None
        self._settled[place] = attempt.seq
        self._rows.append(_Row(attempt.seq, most, attempt.time, tools, gaps))

    def _times(
        self,
        attempt: Attempt,
        place: tuple[Any, Any],
        records: list[Any],
        output: int | None,
    ) -> _Times:
        """Return the columns from `start_ms` to `output_rate`. Spec: 80 §5."""
        pace = pace_of(records)
        start = self._start_of(attempt, place, pace.start_ms)
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

    def _start_of(
        self, attempt: Attempt, place: tuple[Any, Any], stream_start: int | None
    ) -> int | None:
        """Return when an attempt started. Spec: 80 §5."""
        previous = self._settled.get(place, -1)
        if previous < 0:
            start = self._step_starts.get(place)
            if start is not None:
                return start
        else:
            retries = self._retry_starts.get(place, ())
            for seq, time in reversed(retries):
                if previous < seq < attempt.seq:
                    return time
        for request in reversed(self._requests):
            if request.seq <= previous:
                break
            if request.seq > attempt.seq or request.time is None:
                continue
            # A settlement stands behind rows that were written during its stream.
            if stream_start is None or request.time <= stream_start:
                return request.time
        return None

    def _route_before(self, seq: int) -> tuple[str | None, str | None]:
        for request in reversed(self._requests):
            if request.seq < seq:
                return request.provider, request.model
        return None, None


AUXILIARY_TYPES: Final = (
    "session/title-llm-request",
    "web/deepseek-search-llm-request",
)
"""Types of requests that carry no usage. Spec: 80 §3."""

OLD_TYPES: Final = {
    "compact/start": "compaction/start",
    "compact/summary": "compaction/summary",
    "compact/end": "compaction/end",
    "compact/prune": "compaction/prune",
    "steering/message": "user/message",
}
"""Types of generation 0 that were renamed, with their later names. Spec: 50 §4."""


def is_web_request(kind: str | None) -> bool:
    """Whether an event type is one of `web/*-request`, which carry no usage. Spec: 80 §3."""
    return kind is not None and kind.startswith("web/") and kind.endswith("-request")


def tokens_of(
    usage: dict[str, Any],
) -> tuple[
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
]:
    """Return the columns from `input` to `recorded_total`. Spec: 80 §4 U2 to U4."""
    given = integer_from_zero(usage.get("inputTokens"))
    output = integer_from_zero(usage.get("outputTokens"))
    read = integer_from_zero(usage.get("cacheReadTokens"))
    write = integer_from_zero(usage.get("cacheWriteTokens"))
    reasoning = integer_from_zero(usage.get("reasoningTokens"))
    total = None
    if given is not None and output is not None:
        total = given + (read or 0) + (write or 0) + output
    recorded = integer_from_zero(usage.get("totalTokens"))
    return given, output, read, write, reasoning, total, recorded


def integer(value: object) -> int | None:
    """Return a safe integer as `int`, -0 as 0, anything else as None."""
    return int(value) if is_safe_integer(value) else None


def integer_from_zero(value: object) -> int | None:
    """Return a number of tokens; None for what can be none."""
    return int(value) if is_safe_integer(value) and value >= 0 else None


def object_or_empty(value: object) -> dict[str, Any]:
    """Return a JSON object as it is, anything else as an empty one."""
    return value if is_object(value) else {}


def _last_chunk(records: list[Any], kind: str) -> dict[str, Any] | None:
    """Return the last raw chunk of a type; what is no record is passed over."""
    for record in reversed(records):
        if is_object(record) and record.get("type") == "chunk":
            chunk = record.get("chunk")
            if is_object(chunk) and chunk.get("type") == kind:
                return chunk
    return None


def _usage_of(attempt: Attempt, records: list[Any]) -> dict[str, Any]:
    """Return the usage of the stream, or else of the message. Spec: 80 §4 U1."""
    usage = object_or_empty(_last_chunk(records, "usage")).get("usage")
    if usage is None and attempt.event is not None:
        usage = object_or_empty(attempt.event.data).get("usage")
    return object_or_empty(usage)


def _finish_of(records: list[Any]) -> str | None:
    chunk = object_or_empty(_last_chunk(records, "finish"))
    return _text(object_or_empty(chunk.get("reason")).get("kind"))


def _source_of(attempt: Attempt) -> tuple[str | None, str | None, str | None]:
    """Return provider, model and served model of a message. Spec: 80 §3."""
    if attempt.message is not None:
        source = object_or_empty(attempt.message.get("source"))
    else:
        # Generation 0, spec 50 §4.5: the message is spread over the event.
        data = None if attempt.event is None else attempt.event.data
        source = object_or_empty(object_or_empty(data).get("provenance"))
    provider, model = _text(source.get("provider")), _text(source.get("model"))
    response = object_or_empty(
        object_or_empty(source.get("replayState")).get("response")
    )
    served = response.get("responseModel")
    if not is_filled(served) or served == model:
        served = None
    return provider, model, served


def _place(data: Any) -> tuple[Any, Any]:
    data = object_or_empty(data)
    return _hashable(data.get("turn")), _hashable(data.get("step"))


def _hashable(value: Any) -> Any:
    """Return a key under which equal numbers meet; a list or object has no place."""
    return None if is_array(value) or is_object(value) else value


def _text(value: object) -> str | None:
    return value if type(value) is str else None
