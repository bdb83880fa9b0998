"""What a log means now: the next model request, the surface, and the state of the session.

Spec: 30 §5, §11.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dsh_codec.events import (
    count_or_none,
    is_array,
    is_filled,
    is_object,
    seq_of,
    type_of,
)
from dsh_codec.rules.surface import Replacement, Surface

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Compaction",
    "PendingCall",
    "Replacement",
    "RequestHeader",
    "SessionState",
    "StateFold",
    "Surface",
    "messages",
    "state",
    "surface",
]


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The request configuration in force. Spec: 30 §5.5.

    Attributes:
        seq: Its `request/header`.
        config: `provider`, `model` and the optional settings.
        adapter_defaults: Which settings are the adapter's own; None if none is.
        tools: Tool definitions; empty if there are none.
    """

    seq: int
    config: dict[str, Any]
    adapter_defaults: dict[str, Any] | None
    tools: list[Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the reduced header as JSON spells it, absent members left out."""
        header: dict[str, Any] = {"config": self.config}
        if self.adapter_defaults is not None:
            header["adapterDefaults"] = self.adapter_defaults
        if self.tools:
            header["tools"] = self.tools
        return header


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A tool call that has no result yet. Spec: 30 §11.

    Attributes:
        call_id: Id of the `tool-call` block.
        name: Name of the tool.
        arguments: JSON text as the model gave it.
        turn: Turn of the `assistant/message`, from 1.
        step: Step of the `assistant/message`, from 1.
        message_seq: The `assistant/message`.
        started_seq: The `tool/call`; None if it did not start.
    """

    call_id: str
    name: Any
    arguments: Any
    turn: int | None
    step: int | None
    message_seq: int
    started_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Compaction:
    """One compaction. Spec: 30 §4.4.

    Attributes:
        compaction_id: Its id.
        turn: Turn in which it began; None outside any.
        start_seq: The `compaction/start`.
        summary_seq: The `compaction/summary`, else None.
        checkpoint_seq: The replacing `user/message`, else None.
        end_seq: The `compaction/end`, or the `session/end-seed` that dropped it; None while open.
        outcome: `open`, `completed`, `failed` or `dropped`.
        error: What `compaction/end` gives as error, else None.
    """

    compaction_id: Any
    turn: int | None
    start_seq: int
    summary_seq: int | None = None
    checkpoint_seq: int | None = None
    end_seq: int | None = None
    outcome: str = "open"
    error: Any = None


@dataclass(frozen=True, slots=True)
class SessionState:
    """The state of a session after its last event.

    Attributes:
        event_count: Events folded.
        last_time: Time of the last event in milliseconds since the Unix epoch, None without events.
        header: Request configuration in force, None before the first `request/header`.
        context: Data of the last `request/context`, the route metadata in force, or None.
        turn: Open turn, else None.
        step: Open step, else None.
        turn_count: Number of the last turn that started, 0 before the first.
        pending_calls: Tool calls without a result, in the order in which they were advertised.
        title: Title in force, else None.
        title_source: `fallback`, `user`, `provider`; None without a title.
        compactions: All compactions in order; the last may be open.
    """

    event_count: int = 0
    last_time: int | float | None = None
    header: RequestHeader | None = None
    context: dict[str, Any] | None = None
    turn: int | None = None
    step: int | None = None
    turn_count: int = 0
    pending_calls: tuple[PendingCall, ...] = ()
    title: str | None = None
    title_source: str | None = None
    compactions: tuple[Compaction, ...] = ()

    @property
    def config(self) -> dict[str, Any] | None:
        """Model settings in force."""
        return None if self.header is None else self.header.config

    @property
    def tools(self) -> list[Any]:
        """Tool definitions in force."""
        return [] if self.header is None else self.header.tools

    @property
    def open_compaction(self) -> Compaction | None:
        """The compaction that has not ended."""
        last = self.compactions[-1] if self.compactions else None
        return last if last is not None and last.outcome == "open" else None


class StateFold:
    """Fold of a session's state, event by event.

    It folds; it does not check. An event that breaks a rule contributes what can be read of it,
    so that the state of a damaged log can still be shown.
    """

    def __init__(self) -> None:
        """Begin before the first event."""
        self._count = 0
        self._last_time: int | float | None = None
        self._header: RequestHeader | None = None
        self._context: dict[str, Any] | None = None
        self._turn: int | None = None
        self._step: int | None = None
        self._turn_count = 0
        self._pending: dict[str, PendingCall] = {}
        self._title: str | None = None
        self._title_source: str | None = None
        self._compactions: list[Compaction] = []

    def feed(self, event: dict[str, Any]) -> None:
        """Fold the next event (logical, as parsed)."""
        seq = seq_of(event, self._count)
        self._count += 1
        self._last_time = event.get("time")
        kind, data = type_of(event), event.get("data")
        if not is_object(data):
            data = {}
        if kind.startswith(("turn/", "step/")):
            self._move(kind, data)
        elif kind.startswith("compaction/"):
            self._compact(kind, data, seq)
        elif kind == "assistant/message":
            self._advertise(data, seq)
        elif kind == "tool/call":
            call_id = data.get("callId")
            if type(call_id) is str and call_id in self._pending:
                self._pending[call_id] = replace(
                    self._pending[call_id], started_seq=seq
                )
        elif kind == "tool/result":
            self._settle(event, data)
        elif kind == "user/message":
            self._checkpoint(event, data, seq)
        elif kind == "request/header":
            self._configure(data, seq)
        elif kind == "request/context":
            self._context = data
        elif kind == "session/title":
            title, source = data.get("title"), data.get("source")
            self._title = title if type(title) is str else None
            origin = source.get("kind") if is_object(source) else None
            self._title_source = origin if type(origin) is str else None
        elif kind == "session/end-seed":
            self._change_open(end_seq=seq, outcome="dropped")

    def state(self) -> SessionState:
        """Return the state after the events so far: a value that later events do not change."""
        return SessionState(
            event_count=self._count,
            last_time=self._last_time,
            header=self._header,
            context=self._context,
            turn=self._turn,
            step=self._step,
            turn_count=self._turn_count,
            pending_calls=tuple(self._pending.values()),
            title=self._title,
            title_source=self._title_source,
            compactions=tuple(self._compactions),
        )

    def _move(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "turn/start":
            self._turn, self._step = count_or_none(data.get("turn")), None
            self._turn_count = self._turn or self._turn_count
        elif kind == "turn/end":
            self._turn = self._step = None
        elif kind == "step/start":
            self._step = count_or_none(data.get("step"))
            return
        elif kind == "step/end":
            self._step = None
        self._pending.clear()

    def _advertise(self, data: dict[str, Any], seq: int) -> None:
        message = data.get("message")
        content = message.get("content") if is_object(message) else None
        turn, step = count_or_none(data.get("turn")), count_or_none(data.get("step"))
        for block in content if is_array(content) else ():
            if is_object(block) and block.get("type") == "tool-call":
                call_id = block.get("id")
                if is_filled(call_id):
                    name, arguments = block.get("name"), block.get("arguments")
                    self._pending[call_id] = PendingCall(
                        call_id, name, arguments, turn, step, seq
                    )

    def _settle(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        if event.get("surfaceOp") != "append":
            return
        message = data.get("message")
        source = message.get("source") if is_object(message) else None
        call_id = source.get("callId") if is_object(source) else None
        call = self._pending.get(call_id) if type(call_id) is str else None
        if (
            call is not None
            and call.turn == count_or_none(data.get("turn"))
            and call.step == count_or_none(data.get("step"))
        ):
            del self._pending[call.call_id]

    def _checkpoint(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> None:
        source = data.get("source")
        if (
            self._compactions
            and is_object(source)
            and source.get("kind") == "compact-checkpoint"
            and is_object(event.get("surfaceOp"))
        ):
            self._change_open(checkpoint_seq=seq)

    def _configure(self, data: dict[str, Any], seq: int) -> None:
        header = data.get("header")
        if not is_object(header):
            return
        config, defaults = header.get("config"), header.get("adapterDefaults")
        tools = header.get("tools")
        marks = (
            [defaults.get("reasoningEffort"), defaults.get("maxTokens")]
            if is_object(defaults)
            else []
        )
        self._header = RequestHeader(
            seq,
            config if is_object(config) else {},
            defaults if any(mark is True for mark in marks) else None,
            tools if is_array(tools) else [],
        )

    def _compact(self, kind: str, data: dict[str, Any], seq: int) -> None:
        if kind == "compaction/start":
            self._compactions.append(
                Compaction(
                    data.get("compactionId"), count_or_none(data.get("turn")), seq
                )
            )
        elif kind == "compaction/summary":
            self._change_open(summary_seq=seq)
        elif kind == "compaction/end":
            error = data.get("error")
            outcome = "failed" if "error" in data else "completed"
            self._change_open(end_seq=seq, outcome=outcome, error=error)

    def _change_open(self, **changes: Any) -> None:
        if self._compactions and self._compactions[-1].outcome == "open":
            self._compactions[-1] = replace(self._compactions[-1], **changes)


def _envelope(event: Any) -> dict[str, Any]:
    if is_object(event):
        return event
    envelope = getattr(event, "envelope", None)
    if is_object(envelope):
        return envelope
    to_dict = getattr(event, "to_dict", None)
    if to_dict is None:
        text = f"an event must be a dict, or have envelope or to_dict(); got {type(event).__name__}"
        raise TypeError(text)
    value: dict[str, Any] = to_dict()
    return value


def envelopes(log: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a log as dictionaries.

    Args:
        log: Dictionaries, objects with an attribute `envelope`, or objects with `to_dict()`.

    Raises:
        TypeError: Something else is among them.
    """
    return map(_envelope, log)


def _generation_of(log: Any) -> int:
    generation = getattr(log, "generation", 4)
    return generation if type(generation) is int else 4


def surface(log: Iterable[Any]) -> Surface:
    """Fold the surface of a log.

    Args:
        log: A `Log`, or its events in order from seq 0 (see `envelopes`), `sourceEventSeqs`
            expanded. A `Log` of generation 0 to 3 is folded by its own operations.

    Returns:
        The surface: `nodes`, `replacements`, `messages()`. Feed it later events to go on.

    Raises:
        RowError: An event breaks a rule of 30 §5.
        TypeError: Something is no event.

    Note:
        One pass; holds the messages of the current nodes. Spec: 30 §5.
    """
    folded = Surface(generation=_generation_of(log))
    for event in envelopes(log):
        folded.feed(event)
    return folded


def messages(log: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the transcript that the next model request would carry.

    Args:
        log: As for `surface`. Messages of generations 0 to 3 keep the shape that they have there;
            for the request itself migrate first.

    Returns:
        Messages in order; the objects are those of the events.

    Raises:
        RowError: An event breaks a rule of 30 §5.
        TypeError: Something is no event.

    Example:
        >>> messages([{"type": "user/message", "seq": 0, "time": 1, "surfaceOp": "append",
        ...     "data": {"id": "m", "role": "user", "source": {"kind": "user"}, "content": []}}])
        [{'id': 'm', 'role': 'user', 'source': {'kind': 'user'}, 'content': []}]
    """
    return surface(log).messages()


def state(log: Iterable[Any]) -> SessionState:
    """Return the state of a session: request header, open turn and step, pending calls, title.

    Args:
        log: As for `surface`.

    Raises:
        TypeError: Something is no event.

    Note:
        One pass; checks nothing. Spec: 30 §5.5, §11.
    """
    folded = StateFold()
    for event in envelopes(log):
        folded.feed(event)
    return folded.state()
