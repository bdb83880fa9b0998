"""A stored session as the updates that show it again: ACP `session/update`. Spec: 60 §1 to §3."""

from __future__ import annotations

import base64
import errno
import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from dsh_codec._backend import kernel
from dsh_codec.errors import DshCodecError, JsonSyntaxError, LimitExceededError
from dsh_codec.events import count_or_none, is_array, is_object, message_of
from dsh_codec.find import CURRENT_GENERATION
from dsh_codec.messages import StateFold
from dsh_codec.rules import RuleCheck
from dsh_codec.rules.surface import Surface
from dsh_codec.sidecar import current_log
from dsh_codec.values import fuse, is_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dsh_codec.log import Log
    from dsh_codec.row import Event

__all__ = [
    "AttachmentReader",
    "MissingImage",
    "Plan",
    "Title",
    "TokenMeter",
    "load_updates",
]

AttachmentReader: TypeAlias = "Callable[[dict[str, Any]], bytes | None]"
"""Gives the bytes of an `attachment`; None if there is no such object."""

TokenMeter: TypeAlias = "Callable[[list[dict[str, Any]]], int]"
"""Counts the tokens of a transcript."""

MissingImage: TypeAlias = Literal["placeholder", "skip", "error"]
Plan: TypeAlias = Literal["each", "last", "none"]
Title: TypeAlias = Literal["last", "none"]

_FOLDED: Final = frozenset(
    (
        "turn/start",
        "turn/end",
        "step/start",
        "step/end",
        "assistant/message",
        "tool/call",
        "tool/result",
    )
)
"""Types that decide which calls are pending at the end. Spec: 30 §11."""

_ESCAPED_HALF: Final = re.compile(r"(?<!\\)(?:\\\\)*\\[\ud800-\udfff]")
"""A lone surrogate behind a backslash that escapes it, which is no JSON."""


class _Options(NamedTuple):
    read_attachment: AttachmentReader | None
    missing_image: MissingImage
    plan: Plan
    title: Title
    with_meta: bool
    meter: TokenMeter | None


def load_updates(
    log: Log,
    *,
    read_attachment: AttachmentReader | None = None,
    missing_image: MissingImage = "placeholder",
    plan: Plan = "each",
    title: Title = "last",
    meta: bool = False,
    meter: TokenMeter | None = None,
    strict_current: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the notifications that show a stored session to a client.

    Args:
        log: An open log; an older one is migrated in memory, without children.
        read_attachment: Takes the `attachment` of an image block and returns the image's
            bytes, which it has verified; None if there is no such object.
        missing_image: What stands for an image that cannot be read: a text in its place,
            nothing, or an error.
        plan: Whether every plan is shown, the last one after the events, or none.
        title: Whether the last title is shown after the events and plans.
        meta: Whether updates carry seq, time, turn and step of their event in `_meta`.
        meter: Counts the tokens of a transcript (`messages`), for `usage_update`.
        strict_current: Whether a log of an older generation is refused.

    Yields:
        `{"sessionId", "update"}`, in the order in which they are to be sent. A call that is
        still open where the log ends is closed as failed.

    Raises:
        UnsupportedError: The log is older, and `strict_current` is set; or it is of a kind
            that this version cannot interpret.
        RowError, HeaderError: A rule of level `read` refuses the log: nothing was yielded.
        FileNotFoundError: An image is missing, and `missing_image` is `error`.
        ValueError: There is no such policy.
        DshCodecError, OSError: As for iterating over the log.

    Note:
        Two passes, the first for the rules. Memory: the ids of one turn; with a meter also the
        transcript. Streams are never looked at. Spec: 60 §1 to §3.

    Example:
        >>> import dsh_codec as dsh
        >>> row = b'{"type":"session","version":4,"id":"s-1","createdAt":0,'
        >>> row += b'"isSeeded":false,"delegationDepth":0}' + bytes([10])
        >>> list(load_updates(dsh.open(row)))
        []
    """
    for name, value, known in (
        ("missing_image", missing_image, ("placeholder", "skip", "error")),
        ("plan", plan, ("each", "last", "none")),
        ("title", title, ("last", "none")),
    ):
        if value not in known:
            message = f"{name} is one of {', '.join(known)}, not {value!r:.64}"
            raise ValueError(message)
    options = _Options(read_attachment, missing_image, plan, title, meta, meter)
    return _updates(log, options, strict_current=strict_current)


def _updates(
    log: Log, options: _Options, *, strict_current: bool
) -> Iterator[dict[str, Any]]:
    with current_log(log, strict_current=strict_current) as current:
        if log.generation == CURRENT_GENERATION:
            # A migration has been accepted already.
            _require_accepted(log)
        loader = _Loader(options)
        for event in current:
            for update in loader.feed(event):
                yield {"sessionId": current.id, "update": update}
        for update in loader.finish():
            yield {"sessionId": current.id, "update": update}


def _require_accepted(log: Log) -> None:
    """Refuse what an ordinary read of the harness refuses. Spec: 60 §1 step 1, 30 §9."""
    faults: Iterable[DshCodecError]
    door = log.source.door
    arguments: dict[str, Any] = {
        "mode": log.mode,
        "level": "read",
        "generation": log.generation,
        **log._limits._asdict(),  # pyright: ignore[reportPrivateUsage]
    }
    if isinstance(door, str):
        faults = kernel.check_file(door, **arguments).findings
    elif door is not None:
        faults = kernel.check_bytes(door, **arguments).findings
    else:
        rules = RuleCheck(log.header.fields, level="read")
        for event in log:
            rules.feed(event.envelope)
        faults = rules.finish()
    for fault in faults:
        raise fault.located(path=log.path)


class _Loader:
    """Makes the updates of one log, event by event. Spec: 60 §2."""

    def __init__(self, options: _Options) -> None:
        self._options = options
        self._fold = StateFold()
        self._surface = None if options.meter is None else Surface()
        self._window: Any = None
        # Calls of the turn at hand: those that were shown, and the blocks that advertised them.
        self._shown: set[Any] = set()
        self._advertised: dict[Any, tuple[Any, Any]] = {}
        self._last_plan: dict[str, Any] | None = None
        self._last_title: dict[str, Any] | None = None
        self._showers: dict[str, Callable[[Event], Iterable[dict[str, Any]]]] = {
            "user/message": self._user,
            "assistant/message": self._assistant,
            "tool/call": self._call,
            "tool/result": self._result,
            "todo/write": self._plan,
            "session/title": self._title,
        }

    def feed(self, event: Event) -> Iterator[dict[str, Any]]:
        kind = event.type or ""
        if self._surface is not None:
            self._surface.feed(event.envelope)
        if kind in _FOLDED:
            self._fold.feed(event.envelope)
        if kind == "turn/start":
            self._shown.clear()
            self._advertised.clear()
        elif kind == "request/context":
            data = event.data
            self._window = data.get("contextWindow") if is_object(data) else None
        show = self._showers.get(kind)
        if show is not None:
            for update in show(event):
                yield self._with_meta(update, event)

    def finish(self) -> Iterator[dict[str, Any]]:
        """Yield what comes after the events: plan, title, closers. Spec: 60 §1, §2.6, §3."""
        for update in (self._last_plan, self._last_title):
            if update is not None:
                yield update
        state = self._fold.state()
        if state.turn is None:
            return
        for call in state.pending_calls:
            yield from self._announce(call.call_id, call.name, call.arguments)
            yield _result_update(call.call_id, [], is_error=True)

    def _with_meta(self, update: dict[str, Any], event: Event) -> dict[str, Any]:
        if not self._options.with_meta:
            return update
        data = event.data if is_object(event.data) else {}
        members = {
            "seq": event.seq,
            "time": event.time,
            "turn": count_or_none(data.get("turn")),
            "step": count_or_none(data.get("step")),
            "interrupted": True if data.get("interrupted") is True else None,
        }
        kept = {key: value for key, value in members.items() if value is not None}
        return update | {"_meta": {"dsh": kept}}

    def _user(self, event: Event) -> Iterator[dict[str, Any]]:
        message = message_of(event.envelope)
        source = message.get("source") if is_object(message) else None
        if event.surface_op != "append" or not is_object(source):
            return
        if source.get("kind") != "user":
            return
        for block in _blocks(message):
            content = self._content(block)
            if content is None and block.get("type") == "file":
                content = _link(block)
            if content is not None:
                yield _chunk("user_message_chunk", message, content)

    def _assistant(self, event: Event) -> Iterator[dict[str, Any]]:
        message = message_of(event.envelope)
        if event.surface_op != "append" or not is_object(message):
            return
        for block in _blocks(message):
            kind, text = block.get("type"), block.get("text")
            if kind == "tool-call":
                called = block.get("name"), block.get("arguments")
                self._advertised[_key(block.get("id"))] = called
            elif kind == "reasoning" and type(text) is str and text:
                content = {"type": "text", "text": text}
                yield _chunk("agent_thought_chunk", message, content)
            elif (shown := self._content(block)) is not None:
                yield _chunk("agent_message_chunk", message, shown)
        meter = self._options.meter
        if meter is None or self._surface is None:
            return
        if event.data.get("usage") is not None and is_count(self._window):
            yield {
                "sessionUpdate": "usage_update",
                "used": meter(self._surface.messages()),
                "size": self._window,
            }

    def _call(self, event: Event) -> Iterator[dict[str, Any]]:
        data = event.data if is_object(event.data) else {}
        call_id = data.get("callId")
        self._shown.add(_key(call_id))
        called = data.get("name"), data.get("arguments")
        yield _call_update(call_id, *called, status="in_progress")

    def _result(self, event: Event) -> Iterator[dict[str, Any]]:
        message = message_of(event.envelope)
        if event.surface_op != "append" or not is_object(message):
            return
        call_id = message.get("toolCallId")
        name, arguments = self._advertised.get(_key(call_id), ("", None))
        yield from self._announce(call_id, name, arguments)
        contents = []
        for block in _blocks(message):
            content = self._content(block)
            if content is not None:
                contents.append({"type": "content", "content": content})
        is_error = message.get("isError") is True
        yield _result_update(call_id, contents, is_error=is_error)

    def _announce(
        self, call_id: Any, name: Any, arguments: Any
    ) -> Iterator[dict[str, Any]]:
        """Show a call that never started. Spec: 60 §2.3, rule T1."""
        if _key(call_id) not in self._shown:
            self._shown.add(_key(call_id))
            yield _call_update(call_id, name, arguments, status="pending")

    def _plan(self, event: Event) -> Iterator[dict[str, Any]]:
        data = event.data if is_object(event.data) else {}
        todos = data.get("todos")
        entries = [
            {
                "content": todo.get("content"),
                "priority": "medium",
                "status": todo.get("status"),
            }
            for todo in (todos if is_array(todos) else ())
            if is_object(todo)
        ]
        update = {"sessionUpdate": "plan", "entries": entries}
        if self._options.plan == "each":
            yield update
        elif self._options.plan == "last":
            self._last_plan = self._with_meta(update, event)

    def _title(self, event: Event) -> Iterator[dict[str, Any]]:
        data = event.data if is_object(event.data) else {}
        title = data.get("title")
        if self._options.title == "last" and type(title) is str:
            update = {"sessionUpdate": "session_info_update", "title": title}
            self._last_title = self._with_meta(update, event)
        yield from ()

    def _content(self, block: dict[str, Any]) -> dict[str, Any] | None:
        """Return the ACP content of a text or image block; None if it is not shown."""
        kind, text = block.get("type"), block.get("text")
        if kind == "text" and type(text) is str and text:
            return {"type": "text", "text": text}
        attachment = block.get("attachment")
        if kind == "image" and is_object(attachment):
            return self._image(attachment)
        return None

    def _image(self, attachment: dict[str, Any]) -> dict[str, Any] | None:
        """Spec: 60 §2.5."""
        read = self._options.read_attachment
        data = None if read is None else read(attachment)
        media_type = attachment.get("mediaType")
        if data is not None:
            encoded = base64.b64encode(data).decode("ascii")
            return {"type": "image", "data": encoded, "mimeType": media_type}
        name = attachment.get("attachmentId")
        if self._options.missing_image == "error":
            message = "the object of an image is missing"
            raise FileNotFoundError(errno.ENOENT, message, str(name))
        if self._options.missing_image == "skip":
            return None
        size = f"{attachment.get('width')}x{attachment.get('height')}"
        return {"type": "text", "text": f"[image {name} {media_type} {size}]"}


def _key(value: Any) -> Any:
    """Return an id as a key; ids of sound logs are strings."""
    return value if type(value) is str else None


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [block for block in content if is_object(block)] if is_array(content) else []


def _chunk(
    update: str, message: dict[str, Any], content: dict[str, Any]
) -> dict[str, Any]:
    return {
        "sessionUpdate": update,
        "messageId": message.get("id"),
        "content": content,
    }


def _link(block: dict[str, Any]) -> dict[str, Any] | None:
    attachment = block.get("attachment")
    if not is_object(attachment):
        return None
    return {
        "type": "resource_link",
        "name": attachment.get("name"),
        "uri": f"dsh-attachment:{attachment.get('attachmentId')}",
        "size": attachment.get("bytes"),
    }


def _call_update(
    call_id: Any, name: Any, arguments: Any, *, status: str
) -> dict[str, Any]:
    update = {
        "sessionUpdate": "tool_call",
        "toolCallId": call_id,
        "title": name,
        "kind": "other",
        "status": status,
    }
    if type(arguments) is str:
        update["rawInput"] = _raw_input(arguments)
    return update


def _raw_input(arguments: str) -> Any:
    """Return the JSON value of a call's arguments, or the text if it is none."""
    whole = fuse(arguments)
    if _ESCAPED_HALF.search(whole) is not None:
        return arguments
    try:
        # Lone surrogates, which bytes cannot hold, become escapes of the same value.
        return kernel.parse(whole.encode("utf-8", "backslashreplace"))
    except (JsonSyntaxError, LimitExceededError):
        return arguments


def _result_update(
    call_id: Any, contents: list[dict[str, Any]], *, is_error: bool
) -> dict[str, Any]:
    return {
        "sessionUpdate": "tool_call_update",
        "toolCallId": call_id,
        "status": "failed" if is_error else "completed",
        "content": contents,
    }
