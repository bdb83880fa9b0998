"""Edge 3 to 4: tool results and producers get their own shape, children are listed. Spec: 50 §7."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec.events import (
    KNOWN_TYPES,
    MISSING,
    is_array,
    is_equal_number,
    is_filled,
    is_inherited_marker,
    is_object,
    quote,
)
from dsh_codec.migrate.admission.content import STRICT_KINDS, WRAPPER
from dsh_codec.migrate.children import ChildEvidence, fact_of, sort_key
from dsh_codec.migrate.edge import SeqMap, both_ends, each, one, remap_data
from dsh_codec.migrate.refusal import EdgeRefusalError, pass_on, refuse
from dsh_codec.values import is_count, is_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dsh_codec._types import CommonRow
    from dsh_codec.migrate.edge import Emit, JsonObject, Run

__all__ = ["V3_TYPES", "EdgeV3"]

V3_TYPES: Final = KNOWN_TYPES - {
    "developer/message",
    "job/registered",
    "job/settled",
    "working-directory/change",
}
"""The 58 types of generation 3. Spec: 50 appendix B."""

RULE: Final = "50 §7.2"
REFERENCES: Final = "50 §7.3"
SOURCES: Final = "50 §7.4"
CONTENT: Final = "50 §7.5"
CATALOG: Final = "50 §7.6"

_ENDS: Final = ("startSeq", "endSeq")
_DELIVERY: Final = "session-log-deepseek/delivery-accepted"
_IN_DATA: Final = ("system/message", "assistant/message", "tool/result")
_LISTS: Final = {
    "agent/inbox/spliced": "inserted",
    "session/title-llm-request": "messages",
}
_SETTLEMENTS: Final = ("assistant/message", "assistant/attempt")
_SYSTEM_PROMPT: Final = "@deepseek-ai/dsh-system-prompt"
_PRODUCERS: Final = {
    "compact": "compact-checkpoint",
    "tools-code-mode": "ptc-mode",
    "tools-ptc": "ptc-mode",
    "dsh-compaction-basic": "compact-basic",
}
_SAME_NAME: Final = frozenset(
    (
        "agent-instructions",
        "session-reference",
        "team-message",
        "goal",
        "skill-invocation",
        "skill-catalog",
        "coordinator",
        "subagent-report",
        "subagent-settled",
        "webhook",
        "agent-message",
        "model-selection",
        "plan-mode",
        "time-context",
        "tmux-context",
        "user-approval",
        "repeat-tool-reminder",
        "tool-cordis",
        "cordis-host-runner",
        "tool-goal",
        "tool-jobs",
        "hooks-codex",
        "hooks-claude-code",
        "schedule",
        "dsh-session-title-llm",
    )
)


class EdgeV3:
    """The edge as a push machine; see `Edge`.

    Memory: 4 bytes for each source event, and the catalog of children.
    """

    def __init__(
        self,
        header_fields: Mapping[str, Any],
        source_cut: int | None,
        emit: Emit,
        *,
        children: Iterable[ChildEvidence],
    ) -> None:
        """Prepare the edge.

        Args:
            header_fields: Logical header.
            source_cut: Inherited cut of the source; None while it is not known.
            emit: Takes the events of generation 4.
            children: Evidence of the child sessions.
        """
        self.source_cut: int | None = source_cut
        self._id = header_fields["id"]
        self._has_parent = "parentSession" in header_fields
        self._is_seeded = header_fields["isSeeded"] is True
        self._emit = emit
        self._children = sorted(children, key=sort_key)
        self._targets = SeqMap()
        self._next = 0
        self._time: Any = header_fields["createdAt"]
        self._turn: Any = None
        self._is_step_open = False
        self._was_spliced = False
        self._catalogs: list[Any] = []
        self._foreign: int | None = None
        self._cut: int | None = None if self._is_seeded else 0
        self._target_cut = 0

    def push_run(self, run: Run) -> None:
        """Refuse: generation 3 has no packed runs."""
        del run
        refuse(RULE, "is a packed row")

    def may_take(self, row: CommonRow) -> bool:
        """Whether a row passes whatever `push` would look at."""
        return row.type != "turn/start" or self._turn is None

    def take_common(self, row: CommonRow) -> int:
        """Take a row that passes; return its seq."""
        self._track(row.type, {"turn": row.turn})
        target = self._next
        self._next += 1
        self._time = row.time
        self._targets.append(target)
        return target

    def carried(self, seq: int) -> int:
        """Return where an earlier event stands in generation 4."""
        return self._targets[seq]

    def push(self, event: JsonObject) -> None:
        """Take the next event."""
        seq, kind, data = len(self._targets), event["type"], event["data"]
        if not is_equal_number(event["seq"], seq):
            refuse(RULE, f"has to be {seq}", "seq")
        self._close_turn(event)
        self._track(kind, data)
        target = self._next
        self._next += 1
        self._time = event["time"]
        self._targets.append(target)
        if is_inherited_marker(event):
            if not self._is_seeded:
                refuse(RULE, "marks a cut in a session that is not seeded", "data")
            self._cut, self._target_cut = seq, target
            self._catalogs = []
        elif kind == "subagent/catalog":
            self._catalogs.append(data)
        elif kind == _DELIVERY:
            self._check_delivery(data, seq)
        if kind not in V3_TYPES:
            if event.get("ignorable") is not True:
                message = f"{quote(kind)} is no event type of generation 3"
                refuse(RULE, message, "type")
            self._emit(event | {"type": f"plugin:{kind}", "seq": target})
            return
        if target != seq:
            event = self._remap(event, kind) | {"seq": target}
        data = event["data"]
        try:
            data = _rewrite_sources(kind, data)
            if kind == "tool/result":
                data = _lift_result(data)
            data = _namespace(kind, data)
        except EdgeRefusalError as refusal:
            pass_on(refusal, "data")
        self._emit(event if data is event["data"] else event | {"data": data})

    def finish(self) -> int:
        """End the log: check it as a whole and list the children."""
        cut = self._cut
        if cut is None:
            refuse(CATALOG, "has no inherited marker, but its header says seeded")
        if self.source_cut is not None and self.source_cut != cut:
            message = f"has its inherited cut at {self.source_cut}, its marker at {cut}"
            refuse(CATALOG, message)
        listed: dict[str, JsonObject] = {}
        for data in self._catalogs:
            child = _checked_catalog(data)
            if child in listed:
                refuse(CATALOG, f"lists the child {quote(child)} twice")
            listed[child] = data
        if self._foreign is not None and (not self._has_parent or self._foreign >= cut):
            message = f"has a delivery marker of another session at {self._foreign}"
            refuse(CATALOG, message)
        for evidence in self._children:
            self._list_child(evidence, listed)
        return self._target_cut

    def _list_child(self, child: ChildEvidence, listed: dict[str, JsonObject]) -> None:
        fact = fact_of(child)
        known = listed.get(child.child_id)
        if known is not None:
            names = ("mode", "label") if fact is not None else ()
            if known["childCreatedAt"] != child.child_created_at or any(
                known.get(name, MISSING) != (fact or {}).get(name, MISSING)
                for name in names
            ):
                message = (
                    f"lists the child {quote(child.child_id)} otherwise than its log"
                )
                refuse(CATALOG, message)
            return
        data = fact or {
            "version": 1,
            "childId": child.child_id,
            "childCreatedAt": child.child_created_at,
            "mode": "unknown",
        }
        listed[child.child_id] = data
        event = {
            "type": "subagent/catalog",
            "seq": self._next,
            "time": self._time,
            "data": data,
        }
        self._next += 1
        self._emit(event)

    # --- turns and markers (50 §7.2) ---

    def _close_turn(self, event: JsonObject) -> None:
        """Emit the end of a turn that broke off, where a new turn shows that it did."""
        data = event["data"]
        if (
            event["type"] != "turn/start"
            or self._turn is None
            or self._is_step_open
            or not self._was_spliced
            or not is_object(data)
            or not is_equal_number(data.get("turn"), self._turn + 1)
        ):
            return
        closer = {
            "type": "turn/end",
            "seq": self._next,
            "time": event["time"],
            "data": {"turn": self._turn, "reason": {"kind": "interrupted"}},
        }
        self._next += 1
        self._emit(closer)

    def _track(self, kind: str, data: Any) -> None:
        inserted = data.get("inserted") if is_object(data) else None
        self._was_spliced = (
            kind == "agent/inbox/spliced"
            and is_object(data)
            and data.get("target") == "next-turn"
            and is_array(inserted)
            and bool(inserted)
        )
        if kind == "turn/start":
            if is_object(data) and is_number(data.get("turn")):
                self._turn = data["turn"]
        elif kind == "turn/end":
            self._turn = None
        elif kind in ("step/start", "step/end"):
            self._is_step_open = kind == "step/start"

    def _check_delivery(self, data: Any, seq: int) -> None:
        if not is_object(data):
            refuse(RULE, "has to be an object", "data")
        version = data.get("sessionFormatVersion", 0)
        if not is_count(version):
            refuse(RULE, "has to be a count", "data.sessionFormatVersion")
        if version == 4:
            refuse(RULE, "is that of a later generation", "data.sessionFormatVersion")
        if version != 3:
            return
        through, session = data.get("throughSeq"), data.get("sessionId")
        if not is_count(through) or through >= seq:
            refuse(RULE, "has to name an earlier event", "data.throughSeq")
        if not is_filled(session):
            refuse(RULE, "has to be a non-empty string", "data.sessionId")
        if session != self._id:
            self._foreign = seq

    # --- references (50 §7.3) ---

    def _remap(self, event: JsonObject, kind: str) -> JsonObject:
        result = dict(event)
        if "sourceEventSeqs" in event:
            seqs = event["sourceEventSeqs"]
            result["sourceEventSeqs"] = each(
                "sourceEventSeqs", seqs, self._lookup, REFERENCES
            )
        op = event.get("surfaceOp", "append")
        if op != "append":
            try:
                ends = both_ends(op, _ENDS, self._lookup, REFERENCES)
            except EdgeRefusalError as refusal:
                pass_on(refusal, "surfaceOp")
            result["surfaceOp"] = op | ends
        if kind == "image/offload":
            result["data"] = self._remap_targets(event["data"])
        else:
            result["data"] = remap_data(kind, event["data"], self._lookup, REFERENCES)
        return result

    def _remap_targets(self, data: Any) -> JsonObject:
        targets = data.get("targets") if is_object(data) else None
        if not is_object(data) or not is_array(targets):
            refuse(REFERENCES, "has to be an array of objects", "data.targets")
        changed = []
        for index, target in enumerate(targets):
            if not is_object(target):
                refuse(REFERENCES, "has to be an object", f"data.targets[{index}]")
            try:
                changed.append(target | {"seq": one("seq", target, self._lookup)})
            except EdgeRefusalError as refusal:
                pass_on(refusal, f"data.targets[{index}]")
        return data | {"targets": changed}

    def _lookup(self, value: Any) -> int:
        # The event's own seq is in the map by now, and is no earlier event.
        if not is_count(value) or value >= len(self._targets) - 1:
            refuse(REFERENCES, "has to name an earlier event")
        return self._targets[int(value)]


# --- messages: their places, sources, results and blocks (50 §7.4, §7.5) ---


def _change_messages(
    kind: str, data: Any, change: Callable[[JsonObject], JsonObject], rule: str
) -> Any:
    """Return the payload with every message changed; the same one if none was."""
    if kind == "user/message":
        return change(data) if is_object(data) else data
    if kind in _IN_DATA:
        if not is_object(data):
            return data
        message = _changed(data.get("message"), change, rule, "message")
        return data if message is data["message"] else data | {"message": message}
    name = _LISTS.get(kind)
    if name is None or not is_object(data):
        return data
    messages = data.get(name)
    if not is_array(messages):
        refuse(rule, "has to be an array of messages", name)
    result = [
        _changed(message, change, rule, f"{name}[{index}]")
        for index, message in enumerate(messages)
    ]
    if all(new is old for new, old in zip(result, messages, strict=True)):
        return data
    return data | {name: result}


def _changed(
    message: Any, change: Callable[[JsonObject], JsonObject], rule: str, place: str
) -> JsonObject:
    if not is_object(message):
        refuse(rule, "has to be a message", place)
    try:
        return change(message)
    except EdgeRefusalError as refusal:
        pass_on(refusal, place)


def _rewrite_sources(kind: str, data: Any) -> Any:
    """Return the payload with every message named after its producer. Spec: 50 §7.4."""
    return _change_messages(kind, data, _rewrite_source, SOURCES)


def _rewrite_source(message: JsonObject) -> JsonObject:
    source = message.get("source")
    if not is_object(source):
        return message
    kind = source.get("kind")
    if not is_filled(kind):
        refuse(SOURCES, "has to be a non-empty string", "source.kind")
    if kind != "plugin":
        return message
    plugin = source.get("plugin")
    if type(plugin) is not str:
        refuse(SOURCES, "has to be a string", "source.plugin")
    kept = {name: value for name, value in source.items() if name != "plugin"}
    kept["kind"] = _producer_kind(plugin, message.get("role"))
    return message | {"source": kept}


def _producer_kind(plugin: str, role: Any) -> str:
    """Return the source kind that a plugin's messages have in generation 4. Spec: 50 §7.4."""
    if plugin == _SYSTEM_PROMPT:
        return "system-prompt" if role == "system" else "runtime-context"
    if plugin in _SAME_NAME:
        return plugin
    return _PRODUCERS.get(plugin, f"plugin:{plugin}")


def _lift_result(data: Any) -> Any:
    """Return the payload of a tool result with its wrapper made the message. Spec: 50 §7.5."""
    message = data.get("message") if is_object(data) else None
    if not is_object(message) or message.get("role") != "user":
        return data
    try:
        return data | {"message": _lifted(message)}
    except EdgeRefusalError as refusal:
        pass_on(refusal, "message")


def _lifted(message: JsonObject) -> JsonObject:
    source, content = message.get("source"), message.get("content")
    if not is_filled(message.get("id")):
        refuse(CONTENT, "has to be a non-empty string", "id")
    if not is_object(source) or source.get("kind") != "tool":
        refuse(CONTENT, "has to be the source of a tool", "source")
    call = source.get("callId")
    if not is_filled(call):
        refuse(CONTENT, "has to be a non-empty string", "source.callId")
    if not is_array(content) or len(content) != 1 or not is_object(content[0]):
        refuse(CONTENT, f"has to be exactly one block of type {WRAPPER}", "content")
    wrapper = content[0]
    if wrapper.get("type") != WRAPPER:
        refuse(CONTENT, f"has to be {WRAPPER}", "content[0].type")
    if type(wrapper.get("toolCallId")) is not str or wrapper["toolCallId"] != call:
        message_text = "has to be the call of the source"
        refuse(CONTENT, message_text, "content[0].toolCallId")
    if "isError" in wrapper and type(wrapper["isError"]) is not bool:
        refuse(CONTENT, "has to be a boolean", "content[0].isError")
    inner = wrapper.get("content")
    if not is_array(inner):
        refuse(CONTENT, "has to be an array", "content[0].content")
    if any(is_object(block) and block.get("type") == WRAPPER for block in inner):
        refuse(CONTENT, f"must not hold another {WRAPPER}", "content[0].content")
    lifted: JsonObject = {
        "role": "tool",
        "source": source,
        "toolCallId": call,
        "content": inner,
    }
    if "isError" in wrapper:
        lifted["isError"] = wrapper["isError"]
    lifted["id"] = message["id"]
    for name, value in message.items():
        if name not in ("id", "role", "source", "content"):
            lifted[f"plugin:message:{name}"] = value
    for name, value in wrapper.items():
        if name not in ("type", "toolCallId", "content", "isError"):
            lifted[f"plugin:result:{name}"] = value
    return lifted


def _namespace(kind: str, data: Any) -> Any:
    """Return the payload with content kinds that are not known marked as a plugin's."""
    data = _change_messages(kind, data, _namespace_message, CONTENT)
    if kind in _SETTLEMENTS:
        return _namespace_stream(data)
    if kind == "compaction/summary":
        data = _namespace_member(data, "summary")
        if is_object(data) and "rawOutput" in data:
            data = _namespace_member(data, "rawOutput")
    elif kind == "tool/ptc-dispatch":
        return _namespace_member(data, "content")
    elif kind == "team/message/queued":
        if is_object(data):
            message = _changed(
                data.get("message"), _namespace_message, CONTENT, "message"
            )
            return data | {"message": message}
    elif kind == "request/header":
        _check_tools(data)
    return data


def _namespace_message(message: JsonObject) -> JsonObject:
    changed: JsonObject = _namespace_member(message, "content")
    return changed


def _namespace_member(holder: Any, name: str) -> Any:
    if not is_object(holder):
        return holder
    blocks = holder.get(name)
    if not is_array(blocks):
        refuse(CONTENT, "has to be an array of blocks", name)
    changed = [
        _namespaced(block, f"{name}[{index}]") for index, block in enumerate(blocks)
    ]
    if all(new is old for new, old in zip(changed, blocks, strict=True)):
        return holder
    return holder | {name: changed}


def _namespaced(block: Any, place: str) -> JsonObject:
    kind = block.get("type") if is_object(block) else None
    if not is_object(block) or type(kind) is not str:
        refuse(CONTENT, "has to be a block with a type", place)
    return block if kind in STRICT_KINDS else block | {"type": f"plugin:{kind}"}


def _namespace_stream(data: Any) -> Any:
    stream = data.get("stream") if is_object(data) else None
    # A stream as text comes out of edge 2, which lets pass only kinds that are known.
    if not is_array(stream):
        return data
    changed: dict[int, JsonObject] = {}
    for index, record in enumerate(stream):
        # Most records are runs, which name no block types.
        if is_object(record) and record.get("type") == "chunk":
            new = _namespace_record(record, f"stream[{index}]")
            if new is not record:
                changed[index] = new
    if not changed:
        return data
    kept = [changed.get(index, record) for index, record in enumerate(stream)]
    return data | {"stream": kept}


def _namespace_record(record: JsonObject, place: str) -> JsonObject:
    chunk = record.get("chunk")
    if not is_object(chunk):
        return record
    kind = chunk.get("type")
    if kind == "block-end":
        block = _namespaced(chunk.get("block"), f"{place}.chunk.block")
        if block is chunk["block"]:
            return record
        return record | {"chunk": chunk | {"block": block}}
    if kind == "block-start":
        opened = chunk.get("blockType")
        if type(opened) is not str:
            refuse(CONTENT, "has to be a string", f"{place}.chunk.blockType")
        if opened in STRICT_KINDS:
            return record
        return record | {"chunk": chunk | {"blockType": f"plugin:{opened}"}}
    return record


def _check_tools(data: Any) -> None:
    header = data.get("header") if is_object(data) else None
    tools = header.get("tools") if is_object(header) else None
    for index, tool in enumerate(tools if is_array(tools) else ()):
        if is_object(tool) and "deferLoading" in tool:
            message = "has no meaning before generation 4"
            refuse(CONTENT, message, f"header.tools[{index}].deferLoading")


# --- the catalog of children (50 §7.6) ---

_MODES: Final = ("continuable", "one-shot", "external", "unknown")


def _checked_catalog(data: Any) -> str:
    """Return the child that a catalog event names; refuse what is not valid."""
    if not is_object(data):
        refuse(CATALOG, "has a subagent/catalog whose data is no object")
    version, mode = data.get("version"), data.get("mode")
    label = data.get("label", MISSING)
    child = data.get("childId")
    is_valid = (
        is_number(version)
        and version in (0, 1, 2)
        and type(child) is str
        and is_count(data.get("childCreatedAt"))
        and type(mode) is str
        and mode in _MODES
        and (version == 2) == (mode == "external")
        and not (version == 0 and mode == "unknown")
        and (label is MISSING or type(label) is str)
        and not (mode == "continuable" and label is MISSING)
    )
    if not is_valid or type(child) is not str:
        refuse(CATALOG, "has a subagent/catalog that is not valid")
    return child
