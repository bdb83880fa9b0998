"""The surface: which events make the model's transcript, and the messages they give.

`Surface` folds one event at a time and can be asked at any time. Spec: 30 §5.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from dsh_codec.events import (
    MISSING,
    SURFACE_ROLES,
    is_array,
    is_earlier,
    is_equal_number,
    is_filled,
    is_object,
    message_of,
    quote,
    refusal,
    type_of,
)
from dsh_codec.rules.vocabulary import metadata_fault
from dsh_codec.values import is_count, is_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Replacement", "Surface", "fold"]

# Links of a `NodeList`: no neighbour, and not a current node any more.
_END: Final = -1
_DEAD: Final = -2
_REPLAY_TYPES: Final = frozenset(("user/message", "tool/result"))
# Spec 50 §4: what generation 0 also wrote for a user message.
_OLD_SURFACE_TYPES: Final = frozenset((*SURFACE_ROLES, "steering/message"))


class Replacement(NamedTuple):
    """One replacement of a range of the surface. Spec: 30 §5.1.

    Attributes:
        seq: The replacing event.
        start: First node of the range.
        end: Last node of the range.
        shadowed_seqs: All removed nodes in surface order.
    """

    seq: int
    start: int
    end: int
    shadowed_seqs: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the members as JSON spells them: `shadowedSeqs` is an array."""
        return {
            "seq": self.seq,
            "start": self.start,
            "end": self.end,
            "shadowedSeqs": list(self.shadowed_seqs),
        }


class NodeList:
    """The nodes of a surface in order.

    A linked list in arrays: positions are never computed, so a replacement costs what it removes,
    and a log with many nodes and many replacements stays near linear. Every node takes the next
    slot, and nodes come with rising seqs, so the slot of a seq is found by bisection: 24 bytes for
    each node that ever was, without a dictionary.
    """

    __slots__ = ("_count", "_first", "_last", "_next", "_previous", "_seqs")

    def __init__(self) -> None:
        """Make an empty list."""
        self._seqs = array("q")
        self._next = array("q")
        self._previous = array("q")
        self._first = self._last = _END
        self._count = 0

    def __len__(self) -> int:
        """Return the number of current nodes."""
        return self._count

    def __contains__(self, seq: object) -> bool:
        """Whether the seq is a current node."""
        return is_count(seq) and self._slot(seq) != _END

    def __iter__(self) -> Iterator[int]:
        """Yield the seqs in surface order."""
        slot = self._first
        while slot != _END:
            yield self._seqs[slot]
            slot = self._next[slot]

    @property
    def first(self) -> int | None:
        """The first node; None if there is none."""
        return None if self._first == _END else self._seqs[self._first]

    def append(self, seq: int) -> None:
        """Add a node at the tail. Its seq is above all that were added before."""
        self._insert(seq, self._last, _END)

    def span(self, start: float, end: float) -> list[int] | None:
        """Return the nodes between two counts; None if they are not there in this order."""
        slot, last = self._slot(start), self._slot(end)
        if slot == _END or last == _END:
            return None
        nodes: list[int] = []
        while slot != _END:
            nodes.append(self._seqs[slot])
            if slot == last:
                return nodes
            slot = self._next[slot]
        return None

    def replace(self, span: list[int], seq: int) -> None:
        """Put one node, its seq above all before, in the place of what `span` returned."""
        first, last = self._slot(span[0]), self._slot(span[-1])
        before, after = self._previous[first], self._next[last]
        for node in span:
            self._next[self._slot(node)] = _DEAD
        self._count -= len(span)
        self._insert(seq, before, after)

    def _insert(self, seq: int, before: int, after: int) -> None:
        slot = len(self._seqs)
        self._seqs.append(seq)
        self._previous.append(before)
        self._next.append(after)
        self._count += 1
        if before == _END:
            self._first = slot
        else:
            self._next[before] = slot
        if after == _END:
            self._last = slot
        else:
            self._previous[after] = slot

    def _slot(self, seq: float) -> int:
        slot = bisect_left(self._seqs, seq)
        if (
            slot < len(self._seqs)
            and self._seqs[slot] == seq
            and self._next[slot] != _DEAD
        ):
            return slot
        return _END


class ToolTable(NamedTuple):
    """What `tool-addition` blocks may name in one request header. Spec: 30 §5.4, §7.2.

    Attributes:
        sound: Names that exactly one tool has, with description, parameters and, if present,
            `deferLoading` as they must be.
        has_null: Whether an entry is null.
    """

    sound: frozenset[str]
    has_null: bool


class HeaderTools:
    """The tool tables of all request headers so far. Equal neighbours share one table."""

    __slots__ = ("_last", "_tables")

    def __init__(self) -> None:
        self._tables: dict[int, ToolTable] = {}
        self._last: ToolTable | None = None

    def add(self, seq: int, data: Any) -> None:
        """Remember the tools of the `request/header` at `seq`."""
        header = data.get("header") if is_object(data) else None
        tools = header.get("tools") if is_object(header) else None
        entries = tools if is_array(tools) else []
        seen: dict[str, bool] = {}
        for tool in entries:
            name = tool.get("name") if is_object(tool) else None
            if type(name) is str:
                seen[name] = name not in seen and _is_tool_sound(tool)
        sound = frozenset(name for name, is_sound in seen.items() if is_sound)
        table = ToolTable(sound, None in entries)
        if self._last is not None and table == self._last:
            table = self._last
        self._tables[seq] = self._last = table

    def get(self, seq: Any) -> ToolTable | None:
        """Return the table of the `request/header` at `seq`; None if there is none there."""
        return self._tables.get(int(seq)) if is_count(seq) else None


def _is_tool_sound(tool: dict[str, Any]) -> bool:
    return (
        type(tool.get("description")) is str
        and is_object(tool.get("parameters"))
        and tool.get("deferLoading", True) is True
    )


def additions_of(message: Any) -> list[dict[str, Any]]:
    """Return the `tool-addition` blocks of a message."""
    content = message.get("content") if is_object(message) else None
    blocks = content if is_array(content) else []
    return [b for b in blocks if is_object(b) and b.get("type") == "tool-addition"]


class Surface:
    """The surface of a log, folded event by event.

    Example:
        >>> surface = Surface()
        >>> surface.feed({"type": "user/message", "seq": 0, "time": 1, "surfaceOp": "append",
        ...     "data": {"id": "m", "role": "user", "source": {"kind": "user"}, "content": []}})
        >>> surface.nodes
        [0]
    """

    def __init__(self, *, generation: int = 4, keep: bool = True) -> None:
        """Prepare an empty surface.

        Args:
            generation: Format generation of the events. Below 4 only the operations are folded:
                the rules for what a replacement may remove are those of generation 4.
            keep: Whether messages and the history of replacements are kept. Without them the
                memory is a few machine words for each node, which is enough to check a log.
        """
        self._generation = generation
        self._keep = keep
        self._nodes = NodeList()
        self._count = 0
        self._head_is_system = False
        self._headers = HeaderTools()
        # Current tool results: digest of everything but the content.
        self._results: dict[int, bytes] = {}
        # Current user messages and tool results with images: which are offloaded.
        self._images: dict[int, list[bool]] = {}
        self._messages: dict[int, dict[str, Any]] = {}
        self._replacements: list[Replacement] = []

    @property
    def event_count(self) -> int:
        """Events folded so far; also the seq that the next one must have."""
        return self._count

    @property
    def nodes(self) -> list[int]:
        """Seqs on the surface in transcript order: a new list, linear in their number."""
        return list(self._nodes)

    @property
    def replacements(self) -> list[Replacement]:
        """All replacements so far in order (a new list; empty without `keep`)."""
        return list(self._replacements)

    def messages(self) -> list[dict[str, Any]]:
        """Return the transcript of the next model request.

        Returns:
            The messages of the nodes in order, without those that give none (30 §5.5). The
            objects are those of the events, not copies; a message with offloaded images is a
            copy. Empty without `keep`.
        """
        messages = self._messages
        return [messages[node] for node in self._nodes if node in messages]

    def feed(self, event: dict[str, Any]) -> None:
        """Fold the next event.

        Args:
            event: Logical event, `sourceEventSeqs` expanded.

        Raises:
            RowError: The event breaks a rule of 30 §5 (`.rule` is `V3` or begins with `L4.`).
                Nothing has changed then.
        """
        seq = self._count
        if not is_equal_number(event.get("seq"), seq):
            _refuse("L4.seq", seq, "the event's seq is not its position in the log")
        kind = type_of(event)
        if self._generation < 4:
            self._feed_old(event, kind, seq)
            return
        fault = metadata_fault(event, seq)
        if fault is not None:
            raise fault
        if kind == "image/offload":
            self._project(event.get("data"), seq)
        elif kind == "request/header":
            self._headers.add(seq, event.get("data"))
        elif kind in SURFACE_ROLES:
            if kind == "developer/message":
                self._resolve_header(event.get("data"), seq)
            op = event["surfaceOp"]
            if op == "append":
                self._push(kind, seq)
            else:
                self._replace(event, kind, seq, op)
            self._remember(event, kind, seq)
        self._count = seq + 1

    def _push(self, kind: str, seq: int) -> None:
        if not len(self._nodes):
            self._head_is_system = kind == "system/message"
        self._nodes.append(seq)

    def _replace(
        self, event: dict[str, Any], kind: str, seq: int, op: dict[str, Any]
    ) -> None:
        removed = self._span(op["startSeq"], op["endSeq"], seq)
        sources = event.get("sourceEventSeqs", ())
        missing = set(removed).difference(sources)
        if missing:
            _refuse(
                "L4.replace-sources",
                seq,
                f"sourceEventSeqs must name the removed event {min(missing)}",
            )
        if kind == "tool/result":
            self._check_rewrite(event.get("data"), removed, seq)
        at_head = removed[0] == self._nodes.first
        if (
            at_head
            and self._head_is_system
            and (kind != "system/message" or len(removed) != 1)
        ):
            _refuse(
                "L4.head",
                seq,
                "the system prompt at the head of the surface may be replaced only by a "
                "system/message over exactly that event",
            )
        self._splice(removed, seq)
        if at_head:
            self._head_is_system = kind == "system/message"

    def _span(self, start: Any, end: Any, seq: int) -> list[int]:
        removed = self._nodes.span(start, end)
        if removed is None:
            _refuse(
                "L4.replace-range",
                seq,
                f"events {start} to {end} are not a range of the current surface",
            )
        return removed

    def _splice(self, removed: list[int], seq: int) -> None:
        self._nodes.replace(removed, seq)
        for node in removed:
            self._results.pop(node, None)
            self._images.pop(node, None)
            self._messages.pop(node, None)
        if self._keep:
            self._replacements.append(
                Replacement(seq, removed[0], removed[-1], tuple(removed))
            )

    def _check_rewrite(self, data: Any, removed: list[int], seq: int) -> None:
        old = self._results.get(removed[0])
        if len(removed) != 1 or old is None:
            _refuse(
                "L4.rewrite",
                seq,
                "a tool/result may replace only one current tool/result",
            )
        if digest_without_content(data) != old:
            _refuse(
                "L4.rewrite",
                seq,
                "a tool/result that replaces another may change only its content",
            )

    def _remember(self, event: dict[str, Any], kind: str, seq: int) -> None:
        message = message_of(event)
        if kind == "tool/result":
            self._results[seq] = digest_without_content(event.get("data"))
        if kind in _REPLAY_TYPES:
            flags = [block.get("offloaded") is True for block in _image_blocks(message)]
            if flags:
                self._images[seq] = flags
        if (
            self._keep
            and is_object(message)
            and (kind in _REPLAY_TYPES or message.get("content"))
        ):
            self._messages[seq] = message

    def _resolve_header(self, data: Any, seq: int) -> None:
        if not is_object(data) or "headerSeq" not in data:
            return
        target = data["headerSeq"]
        table = self._headers.get(target) if is_earlier(target, seq) else None
        if table is None:
            _refuse(
                "L4.developer-header",
                seq,
                "headerSeq must name an earlier request/header",
            )
        message = data.get("message")
        content = message.get("content") if is_object(message) else None
        additions = additions_of(message)
        if not is_array(content) or None in content or (additions and table.has_null):
            _refuse(
                "L4.developer-header",
                seq,
                "null among the content blocks or the header's tools",
            )
        for block in additions:
            name = block.get("toolName")
            if not is_filled(name) or name not in table.sound:
                _refuse(
                    "L4.developer-header",
                    seq,
                    f"tool-addition {quote(name)} must name exactly one complete tool of the "
                    f"request/header at seq {target}",
                )

    def _project(self, data: Any, seq: int) -> None:
        targets = data.get("targets") if is_object(data) and len(data) == 1 else None
        if not is_array(targets) or not targets:
            _refuse(
                "L4.offload",
                seq,
                "image/offload needs exactly a non-empty targets array",
            )
        planned: dict[int, list[int]] = {}
        for target in targets:
            node, indexes = _offload_target(target, seq)
            if node in planned:
                _refuse("L4.offload", seq, f"image/offload names event {node} twice")
            if node not in self._nodes:
                _refuse(
                    "L4.offload", seq, f"event {node} is not on the current surface"
                )
            flags = self._images.get(node, ())
            for index in indexes:
                if index >= len(flags):
                    _refuse(
                        "L4.offload",
                        seq,
                        f"event {node} has no image {index}, or is no user/message or tool/result",
                    )
                if flags[index]:
                    _refuse(
                        "L4.offload", seq, f"image {index} of event {node} is offloaded"
                    )
            planned[node] = indexes
        for node, indexes in planned.items():
            for index in indexes:
                self._images[node][index] = True
            if self._keep:
                self._messages[node] = _offloaded(self._messages[node], indexes)

    def _feed_old(self, event: dict[str, Any], kind: str, seq: int) -> None:
        op = event.get("surfaceOp", MISSING)
        if kind in _OLD_SURFACE_TYPES and op is not MISSING:
            if op == "append":
                self._nodes.append(seq)
            else:
                first, last = (
                    ("startSeq", "endSeq")
                    if self._generation == 3
                    else ("start", "end")
                )
                start, end = (
                    (op.get(first), op.get(last)) if is_object(op) else (None, None)
                )
                if not (is_earlier(start, seq) and is_earlier(end, seq)):
                    _refuse("V3", seq, f"{kind} has a malformed surfaceOp")
                self._splice(self._span(start, end, seq), seq)
            data = event.get("data")
            message = data.get("message", data) if is_object(data) else None
            if self._keep and is_object(message):
                self._messages[seq] = message
        self._count = seq + 1


def _refuse(rule: str, seq: int, message: str) -> NoReturn:
    raise refusal(rule, seq, message)


def _offload_target(target: Any, seq: int) -> tuple[int, list[int]]:
    if not is_object(target) or target.keys() != {"seq", "imageIndexes"}:
        _refuse("L4.offload", seq, "each target must have exactly seq and imageIndexes")
    node, indexes = target["seq"], target["imageIndexes"]
    if not is_count(node) or not is_array(indexes) or not indexes:
        _refuse("L4.offload", seq, "each target must have a seq and some imageIndexes")
    last = -1.0
    for index in indexes:
        if not is_count(index) or index <= last:
            _refuse(
                "L4.offload", seq, "imageIndexes must be strictly increasing counts"
            )
        last = index
    return int(node), [int(index) for index in indexes]


def _image_blocks(message: Any) -> list[dict[str, Any]]:
    content = message.get("content") if is_object(message) else None
    if not is_array(content):
        return []
    return [
        block for block in content if is_object(block) and block.get("type") == "image"
    ]


def _offloaded(message: dict[str, Any], indexes: list[int]) -> dict[str, Any]:
    marked = set(indexes)
    content: list[Any] = []
    image = -1
    for block in message["content"]:
        if is_object(block) and block.get("type") == "image":
            image += 1
            if image in marked:
                content.append({**block, "offloaded": True})
                continue
        content.append(block)
    return {**message, "content": content}


def digest_without_content(data: Any) -> bytes:
    """Return a digest of a `tool/result` payload that leaves `message.content` out.

    Two payloads have equal digests iff they are deeply equal without it, 0 and -0 being equal.
    A digest instead of the payload keeps the memory of a check small. Spec: 30 §5.1.
    """
    if is_object(data) and is_object(data.get("message")):
        message = {k: v for k, v in data["message"].items() if k != "content"}
        data = {**data, "message": message}
    parts: list[str] = []
    pending: list[Any] = [data]
    while pending:
        value = pending.pop()
        if is_object(value):
            parts.append(f"{{{len(value)}")
            for key in sorted(value):
                pending.append(value[key])
                pending.append(key)
        elif is_array(value):
            parts.append(f"[{len(value)}")
            pending.extend(value)
        elif type(value) is str:
            parts.append(f'"{len(value)}:{value}')
        elif type(value) is float and value.is_integer():
            parts.append(f"#{int(value)}")
        elif is_number(value):
            parts.append(f"#{value!r}")
        else:
            parts.append(f"={value}")
    text = ",".join(parts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def fold(events: Iterable[dict[str, Any]], *, generation: int = 4) -> Surface:
    """Fold a whole log.

    Args:
        events: Logical events in order from seq 0, `sourceEventSeqs` expanded.
        generation: As for `Surface`.

    Raises:
        RowError: An event breaks a rule of 30 §5.
    """
    surface = Surface(generation=generation)
    for event in events:
        surface.feed(event)
    return surface
