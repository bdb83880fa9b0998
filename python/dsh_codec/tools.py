"""Tool calls paired with what started and what answered them. Spec: 80 §5, §6; 30 §11."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dsh_codec.events import is_array, is_object
from dsh_codec.values import fuse, is_safe_integer

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["EventLike", "Place", "ToolPair", "ToolPairing", "place_of", "text_of"]


class EventLike(Protocol):
    """What of an event is looked at here and for calls; see `Event`."""

    @property
    def type(self) -> str | None: ...  # noqa: D102
    @property
    def seq(self) -> int: ...  # noqa: D102
    @property
    def time(self) -> int | None: ...  # noqa: D102
    @property
    def data(self) -> Any: ...  # noqa: D102
    @property
    def surface_op(self) -> Any: ...  # noqa: D102


class Place(NamedTuple):
    """Turn and step of an event, from 1; None where it names none."""

    turn: int | None
    step: int | None


class ToolPair(NamedTuple):
    """A tool call of a message, and what became of it.

    Attributes:
        call_id: Its id, as the model gave it.
        turn, step: Where it was made, from 1.
        message_seq: The `assistant/message`; None if none names it.
        call_seq: The `tool/call`; None if it did not start.
        result_seq: The first `tool/result`; None if it was not answered.
        start_ms: Time of the `tool/call`.
        ms: From `tool/call` to `tool/result`; None if either is missing.
        name: Name of the tool; None if unknown or not asked for.
        arguments: Arguments as the model wrote them; None if unknown or not asked for.
        result: Text of the result; None if not answered or not asked for.
        is_error: Whether the result is an error; None if not answered or not asked for.
    """

    call_id: str
    turn: int | None
    step: int | None
    message_seq: int | None
    call_seq: int | None = None
    result_seq: int | None = None
    start_ms: int | None = None
    ms: int | None = None
    name: str | None = None
    arguments: str | None = None
    result: str | None = None
    is_error: bool | None = None


class _Queue:
    """Tool calls of one place and id, in log order.

    The first waits to be started and to be answered first, so that those that were started,
    and those that were answered, stand before the others.
    """

    __slots__ = ("answered", "indices", "started")

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.started = 0
        self.answered = 0


class ToolPairing:
    """Pairs tool calls within each turn and step, a repeated id in log order."""

    def __init__(self, *, keep_content: bool = False) -> None:
        """Begin without calls.

        Args:
            keep_content: Whether names, arguments and results are kept.
        """
        self.pairs: list[ToolPair] = []
        self._keep_content = keep_content
        self._queues: dict[tuple[Place, str], _Queue] = {}

    def add_message(self, place: Place, seq: int, content: Iterable[Any]) -> range:
        """Take the tool calls of a message; return their positions in `pairs`."""
        first = len(self.pairs)
        for block in content:
            if not is_object(block) or block.get("type") != "tool-call":
                continue
            call_id = block.get("id")
            if type(call_id) is str:
                pair = ToolPair(call_id, *place, seq)
                if self._keep_content:
                    name, arguments = block.get("name"), block.get("arguments")
                    pair = pair._replace(name=_text(name), arguments=_text(arguments))
                self._append(place, pair)
        return range(first, len(self.pairs))

    def start(self, event: EventLike) -> None:
        """Take a `tool/call`."""
        data = event.data if is_object(event.data) else {}
        place, call_id = place_of(data), data.get("callId")
        if type(call_id) is not str:
            return
        queue = self._queues.get((place, call_id))
        if queue is None or queue.started == len(queue.indices):
            queue = self._append(place, ToolPair(call_id, *place, None))
        index = queue.indices[queue.started]
        queue.started += 1
        changed = self.pairs[index]._replace(call_seq=event.seq, start_ms=event.time)
        if self._keep_content and changed.name is None:
            name, arguments = data.get("name"), data.get("arguments")
            changed = changed._replace(name=_text(name), arguments=_text(arguments))
        self.pairs[index] = changed

    def answer(self, event: EventLike) -> None:
        """Take a `tool/result`. A replacement rewrites an answer; it is none itself."""
        if event.surface_op != "append":
            return
        call_id, content, is_error = read_result(event.data)
        if type(call_id) is not str:
            return
        queue = self._queues.get((place_of(event.data), call_id))
        if queue is None or queue.answered == len(queue.indices):
            return
        index = queue.indices[queue.answered]
        queue.answered += 1
        pair = self.pairs[index]._replace(result_seq=event.seq)
        if pair.start_ms is not None and event.time is not None:
            pair = pair._replace(ms=event.time - pair.start_ms)
        if self._keep_content:
            pair = pair._replace(result=text_of(content), is_error=is_error)
        self.pairs[index] = pair

    def _append(self, place: Place, pair: ToolPair) -> _Queue:
        queue = self._queues.setdefault((place, pair.call_id), _Queue())
        queue.indices.append(len(self.pairs))
        self.pairs.append(pair)
        return queue


def place_of(data: Any) -> Place:
    """Return the turn and step that the data of an event names."""
    if not is_object(data):
        return Place(None, None)
    turn, step = data.get("turn"), data.get("step")
    return Place(
        int(turn) if is_safe_integer(turn) else None,
        int(step) if is_safe_integer(step) else None,
    )


def read_result(data: Any) -> tuple[Any, Any, bool]:
    """Return call id, content blocks and error mark of a `tool/result` of any generation."""
    if not is_object(data):
        return None, None, False
    message = data.get("message")
    if not is_object(message):
        # Generation 0, spec 50 §4.5: the message is spread over the event.
        return data.get("callId"), data.get("content"), data.get("isError") is True
    source = message.get("source")
    call_id = source.get("callId") if is_object(source) else None
    content = message.get("content")
    if message.get("role") == "tool":
        if call_id is None:
            call_id = message.get("toolCallId")
        return call_id, content, message.get("isError") is True
    # Generations 0 to 3: a user message around a block.
    for block in content if is_array(content) else ():
        if is_object(block) and block.get("type") == "tool-result":
            if call_id is None:
                call_id = block.get("toolCallId")
            return call_id, block.get("content"), block.get("isError") is True
    return call_id, content, False


def text_of(content: Any, kind: str = "text") -> str | None:
    """Return the text of the blocks of a kind, joined; None if there are none."""
    if type(content) is str:
        return content if kind == "text" else None
    texts = [
        block["text"]
        for block in (content if is_array(content) else ())
        if is_object(block)
        and block.get("type") == kind
        and type(block.get("text")) is str
    ]
    return fuse("".join(texts)) if texts else None


def _text(value: Any) -> str | None:
    return value if type(value) is str else None
