"""Edge 2 to 3: the system prompt becomes a node of the surface. Spec: 50 §6."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from dsh_codec._backend import kernel
from dsh_codec.events import is_array, is_equal_number, is_filled, is_object, quote
from dsh_codec.migrate.admission import (
    FEEDBACK_TYPES,
    V2_TYPES,
    check_feedback,
    check_payload,
    check_strict_content,
)
from dsh_codec.migrate.admission.shape import Place, is_positive
from dsh_codec.migrate.edge import SeqMap, both_ends, each, remap_data
from dsh_codec.migrate.refusal import EdgeRefusalError, pass_on, refuse
from dsh_codec.values import is_count, is_safe_integer, is_sint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dsh_codec._types import CommonRow
    from dsh_codec.migrate.edge import Emit, JsonObject, Run

__all__ = ["EdgeV2"]

ADMISSION: Final = "50 §6.1"
RULE: Final = "50 §6.2"

_SURFACE: Final = frozenset(("user/message", "assistant/message", "tool/result"))
_REQUIRED: Final = ("type", "seq", "time", "data")
_PLAIN_KEYS: Final = frozenset((*_REQUIRED, "ignorable"))
_SURFACE_KEYS: Final = frozenset((*_PLAIN_KEYS, "sourceEventSeqs", "surfaceOp"))
_REPLACE_KEYS: Final = {"op", "start", "end"}
_ENDS: Final = ("start", "end")
_DELIVERY: Final = "session-log-deepseek/delivery-accepted"
_KINDS: Final = frozenset(
    (
        "user",
        "plugin",
        "model",
        "tool",
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
    )
)
_MESSAGES: Final = {
    "agent/inbox/spliced": "inserted",
    "session/title-llm-request": "messages",
}
_RENAMED: Final = {
    "tool/code-dispatch-start": "tool/ptc-dispatch-start",
    "tool/code-dispatch": "tool/ptc-dispatch",
}
_DECIMAL: Final = re.compile("0|[1-9][0-9]{0,15}")


class EdgeV2:
    """The edge as a push machine; see `Edge`.

    Memory: 4 bytes for each source event, and the ids of messages.
    """

    def __init__(
        self, header_fields: Mapping[str, Any], source_cut: int | None, emit: Emit
    ) -> None:
        """Prepare the edge.

        Args:
            header_fields: Logical header.
            source_cut: Inherited cut of the source; None while it is not known.
            emit: Takes the events of generation 3.
        """
        self.source_cut: int | None = source_cut
        self._id = header_fields["id"]
        self._has_parent = "parentSession" in header_fields
        self._is_seeded = header_fields["isSeeded"] is True
        self._emit = emit
        self._targets = SeqMap()
        self._next = 0
        self._step: tuple[Any, Any] | None = None
        self._head: int | None = None
        self._prompt = ""
        self._ids: set[str] = set()
        self._made_ids: set[str] = set()
        self._foreign: int | None = None
        self._cut: int | None = None if self._is_seeded else 0
        self._target_cut = 0

    def push_run(self, run: Run) -> None:
        """Refuse: generation 2 has no packed runs."""
        del run
        refuse(ADMISSION, "is a packed row")

    def may_take(self, row: CommonRow) -> bool:
        """Whether a row passes whatever `push` would look at."""
        if self._head is None:
            return row.type != "step/start" and row.type not in _SURFACE
        return row.id is None or row.id not in self._made_ids

    def take_common(self, row: CommonRow) -> None:
        """Take a row that passes."""
        if row.id is not None:
            self._ids.add(row.id)
        self._targets.append(self._next)
        self._next += 1
        if row.type == "step/start":
            self._step = (row.turn, row.step)
        elif row.type in ("step/end", "turn/end"):
            self._step = None

    def carried(self, seq: int) -> int:
        """Return where an earlier event stands in generation 3."""
        return self._targets[seq]

    def push(self, event: JsonObject) -> None:
        """Take the next event."""
        seq = len(self._targets)
        admit(event, seq)
        kind, data = event["type"], event["data"]
        self._collect_ids(kind, data)
        if kind == "request/header":
            header = data["header"]
            prompt = header.get("system", "")
            kept = {k: v for k, v in header.items() if k != "system"}
            data = data | {"header": kept}
            if prompt != self._prompt:
                self._put_system(prompt, event)
        if kind in _SURFACE and self._head is None:
            refuse(RULE, "stands before the first step: the system prompt has no place")
        if kind == "session/end-seed" and data.get("inherited") is True:
            if not self._is_seeded:
                refuse(RULE, "marks a cut in a session that is not seeded", "data")
            self._cut, self._target_cut = seq, self._next
        elif kind == _DELIVERY:
            self._check_delivery(data, seq)
        self._targets.append(self._next)
        self._put(self._transform(event, kind, data))
        if kind == "step/start":
            self._step = (data["turn"], data["step"])
            if self._head is None:
                self._put_system("", event)
        elif kind in ("step/end", "turn/end"):
            self._step = None

    def finish(self) -> int:
        """End the log."""
        cut = self._cut
        if cut is None:
            refuse(RULE, "has no inherited marker, but its header says seeded")
        if self.source_cut is not None and self.source_cut != cut:
            message = f"has its inherited cut at {self.source_cut}, its marker at {cut}"
            refuse(RULE, message)
        if self._foreign is not None and (not self._has_parent or self._foreign >= cut):
            message = f"has a delivery marker of another session at {self._foreign}"
            refuse(RULE, message)
        return self._target_cut

    def _collect_ids(self, kind: str, data: JsonObject) -> None:
        for _, message in messages_of(kind, data):
            if message["id"] in self._made_ids:
                refuse(RULE, "has the id of a generated message")
            self._ids.add(message["id"])

    def _check_delivery(self, data: JsonObject, seq: int) -> None:
        version = data.get("sessionFormatVersion")
        if is_equal_number(version, 3):
            refuse(RULE, "is that of a later generation", "data.sessionFormatVersion")
        if is_equal_number(version, 2) and data["sessionId"] != self._id:
            self._foreign = seq

    def _put_system(self, prompt: str, anchor: JsonObject) -> None:
        if self._step is None:
            refuse(RULE, "changes the system prompt outside a step: it has no place")
        seed: list[Any] = [
            "session-format-v2-to-v3",
            self._id,
            int(anchor["seq"]),
            anchor["type"],
        ]
        digest = sha256(kernel.dump(seed)).hexdigest()
        made = f"v2-to-v3-system-{digest}"
        if made in self._ids or made in self._made_ids:
            refuse(RULE, "needs a generated id that a message already has")
        self._made_ids.add(made)
        turn, step = self._step
        message = {
            "id": made,
            "role": "system",
            "source": {"kind": "plugin", "plugin": "@deepseek-ai/dsh-system-prompt"},
            "content": [{"type": "text", "text": prompt}] if prompt else [],
        }
        event: JsonObject = {
            "type": "system/message",
            "seq": self._next,
            "time": anchor["time"],
            "data": {"turn": turn, "step": step, "message": message},
        }
        head = self._head
        if head is None:
            event["surfaceOp"] = "append"
        else:
            event["surfaceOp"] = {"op": "replace", "startSeq": head, "endSeq": head}
            event["sourceEventSeqs"] = [head]
        self._head, self._prompt = self._next, prompt
        self._put(event)

    def _put(self, event: JsonObject) -> None:
        self._next += 1
        self._emit(event)

    # --- what changes in an event (50 §6.2 rule 6, §6.3, §6.4) ---

    def _transform(self, event: JsonObject, kind: str, data: JsonObject) -> JsonObject:
        result = event | {"seq": self._next}
        if "sourceEventSeqs" in event:
            seqs = event["sourceEventSeqs"]
            result["sourceEventSeqs"] = each(
                "sourceEventSeqs", seqs, self._lookup, RULE
            )
        op = event.get("surfaceOp", "append")
        if op != "append":
            ends = both_ends(op, _ENDS, self._lookup, RULE)
            result["surfaceOp"] = {
                "op": "replace",
                "startSeq": ends["start"],
                "endSeq": ends["end"],
            }
        data = remap_data(kind, data, self._lookup, RULE)
        data = _rename(kind, data)
        if kind == "request/header":
            header = {
                name: value
                for name, value in data["header"].items()
                if name not in ("tools", "adapterDefaults") or value
            }
            data = data | {"header": header}
        elif (
            kind == "tool/result"
            and "error" in data
            and data["message"]["content"][0].get("isError") is not True
        ):
            message = "has to be true with an error"
            refuse("50 §6.4", message, "data.message.content[0].isError")
        result["type"] = _RENAMED.get(kind, kind)
        result["data"] = data
        return result

    def _lookup(self, value: Any) -> int:
        # The event's own seq is in the map by now, and is no earlier event.
        if not is_count(value) or value >= len(self._targets) - 1:
            refuse(RULE, "has to name an earlier event")
        return self._targets[int(value)]


def messages_of(kind: str, data: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield the messages of an admitted event with their places in `data`."""
    if kind == "user/message":
        yield "", data
    elif kind in ("assistant/message", "tool/result"):
        yield "message", data["message"]
    elif kind in _MESSAGES:
        name = _MESSAGES[kind]
        for index, message in enumerate(data[name]):
            yield f"{name}[{index}]", message


def _rename(kind: str, data: JsonObject) -> JsonObject:
    if kind == "agent-preset/selected" and data["agentPreset"] == "code":
        return data | {"agentPreset": "ptc"}
    if kind == "user/message":
        return _rename_source(data)
    if kind in _MESSAGES:
        name = _MESSAGES[kind]
        return data | {name: [_rename_source(message) for message in data[name]]}
    return data


def _rename_source(message: JsonObject) -> JsonObject:
    source = message["source"]
    if source["kind"] != "plugin" or source.get("plugin") != "tools-code-mode":
        return message
    return message | {"source": source | {"plugin": "tools-ptc"}}


# --- admission (50 §6.1) ---


def admit(event: JsonObject, seq: int) -> None:
    """Check that an event is one of generation 2.

    Args:
        event: The event.
        seq: Events seen before it.

    Raises:
        EdgeRefusalError: It is not.
    """
    kind = event.get("type")
    if not is_equal_number(event.get("seq"), seq):
        refuse(ADMISSION, f"has to be {seq}", "seq")
    if type(kind) is not str or (kind not in V2_TYPES and kind not in FEEDBACK_TYPES):
        refuse(ADMISSION, f"{quote(kind)} is no event type of generation 2", "type")
    _admit_envelope(event, kind, seq)
    data = event["data"]
    if not is_object(data):
        refuse(ADMISSION, "has to be an object", "data")
    if kind in FEEDBACK_TYPES:
        check_feedback(kind, data, seq=seq)
        return
    check_payload(kind, data, seq=seq, generation=2)
    try:
        check_strict_content(kind, data, Place(seq, 2))
    except EdgeRefusalError as refusal:
        pass_on(refusal, "data")
    if kind in ("assistant/message", "assistant/attempt"):
        for name in ("turn", "step"):
            if not is_positive(data[name]):
                text = "has to be a count of at least 1"
                refuse(ADMISSION, text, f"data.{name}")
    for place, message in messages_of(kind, data):
        _admit_source(message["source"], f"data.{place}.source".replace("..", "."))
    if kind == "tool/result":
        _admit_not_started(data)


def _admit_envelope(event: JsonObject, kind: str, seq: int) -> None:
    is_surface = kind in _SURFACE
    for name in _REQUIRED:
        if name not in event:
            refuse(ADMISSION, f"lacks the member {name}")
    for name in event:
        if name not in (_SURFACE_KEYS if is_surface else _PLAIN_KEYS):
            refuse(ADMISSION, f"has the unexpected member {quote(name)}")
    if not is_count(event["seq"]):
        refuse(ADMISSION, "has to be a count", "seq")
    if not is_sint(event["time"]):
        refuse(ADMISSION, "has to be a safe integer", "time")
    if event.get("ignorable", True) is not True:
        refuse(ADMISSION, "may only be true", "ignorable")
    if not is_surface:
        return
    op = event.get("surfaceOp")
    if not (type(op) is str and op == "append"):
        if not is_object(op) or op.keys() != _REPLACE_KEYS or op["op"] != "replace":
            message = "has to be append or exactly {op, start, end}"
            refuse(ADMISSION, message, "surfaceOp")
        for name in _ENDS:
            if not is_count(op[name]) or op[name] >= seq:
                refuse(ADMISSION, "has to name an earlier event", f"surfaceOp.{name}")
    if "sourceEventSeqs" in event:
        _admit_sources(event["sourceEventSeqs"], kind, seq)


def _admit_sources(seqs: Any, kind: str, seq: int) -> None:
    if kind == "assistant/message":
        refuse(ADMISSION, "must not be there", "sourceEventSeqs")
    if not is_array(seqs) or not seqs:
        refuse(ADMISSION, "has to be a non-empty array", "sourceEventSeqs")
    if not all(is_count(source) and source < seq for source in seqs):
        refuse(ADMISSION, "has to name earlier events", "sourceEventSeqs")
    if len(set(seqs)) != len(seqs):
        refuse(ADMISSION, "must not repeat a seq", "sourceEventSeqs")


def _admit_source(source: JsonObject, place: str) -> None:
    kind = source["kind"]
    if kind not in _KINDS:
        message = f"{quote(kind)} is no source that generation 2 knows"
        refuse(ADMISSION, message, f"{place}.kind")
    if kind != "agent-message":
        return
    if source.keys() != {"kind", "form", "senderSessionId"}:
        refuse(ADMISSION, "has to be exactly {kind, form, senderSessionId}", place)
    if source["form"] != "relay" or not is_filled(source["senderSessionId"]):
        refuse(ADMISSION, "has to be the relay of a session", place)


def _admit_not_started(data: JsonObject) -> None:
    """Check the id of the result that a repair wrote for a call that never started."""
    if data.get("error", {}).get("code") != "TOOL_NOT_STARTED":
        return
    message = data["message"]
    prefix = f"interrupted-tool-result-{message['source']['callId']}-"
    number = message["id"].removeprefix(prefix)
    if (
        not message["id"].startswith(prefix)
        or _DECIMAL.fullmatch(number) is None
        or not is_safe_integer(int(number))
    ):
        refuse(ADMISSION, f"has to be {quote(prefix)} and a seq", "data.message.id")
