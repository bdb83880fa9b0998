"""Edge 0 to 1: retired spellings become those of generation 1. Spec: 50 §4.

Seqs, times and the inherited cut stay, and packed runs pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dsh_codec._backend import kernel
from dsh_codec.events import is_array, is_filled, is_object, quote
from dsh_codec.migrate.admission import EARLY_TYPES, check_payload
from dsh_codec.migrate.admission.shape import (
    Check,
    Place,
    any_object,
    anything,
    count,
    exact as exact_keys,
    positive,
    text,
    within,
)
from dsh_codec.migrate.refusal import refuse
from dsh_codec.values import is_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dsh_codec._types import CommonRow
    from dsh_codec.migrate.edge import Emit, JsonObject, Run

__all__ = ["EdgeV0"]

RULE: Final = "50 §4"

_RENAMED: Final = {
    f"compact/{name}": f"compaction/{name}"
    for name in ("start", "summary", "end", "prune")
}
_RETIRED: Final = ("request/header-delta", "mode/set")
_DELIVERY: Final = "session-log-deepseek/delivery-accepted"


def _exact(
    required: dict[str, Check], optional: dict[str, Check] | None = None
) -> Check:
    return exact_keys(required, optional, RULE)


def _require(name: str, check: Check, value: Any, seq: int) -> None:
    within(name, check, value, Place(seq, 0))


_turn_start = _exact({"turn": positive, "trigger": any_object})
_turn_end = _exact({"turn": positive, "reason": any_object})
_only_kind = _exact({"kind": text})
_failed = _exact(
    {
        "kind": text,
        "step": count,
        "failure": _exact(
            {"message": text, "code": text},
            {
                "status": anything,
                "providerRetryAfterMs": anything,
                "requestId": anything,
            },
        ),
    }
)
_failed_early = _exact({"kind": text, "step": count, "message": text}, {"code": text})
_steering = _exact({"turn": count, "message": any_object})
_steering_early = _exact({"turn": count, "content": anything, "source": anything})


_Normalise: TypeAlias = "Callable[[JsonObject, int], JsonObject]"
_Shape: TypeAlias = "Callable[[JsonObject, JsonObject, int], JsonObject]"


class EdgeV0:
    """The edge as a push machine; see `Edge`.

    Memory: a word and an id for each message, and the ids of retries.
    """

    def __init__(
        self,
        header_fields: Mapping[str, Any],
        source_cut: int,
        emit: Emit,
        emit_run: Callable[[Run], None],
    ) -> None:
        """Prepare the edge.

        Args:
            header_fields: Logical header.
            source_cut: Inherited cut.
            emit: Takes the events of generation 1.
            emit_run: Takes the packed runs.
        """
        self.source_cut: int | None = source_cut
        self._cut = source_cut
        self._id = header_fields["id"]
        self._has_parent = "parentSession" in header_fields
        self._emit = emit
        self._emit_run = emit_run
        self._retries: dict[bytes, str] = {}
        self._compaction: str | None = None
        self._message_ids: dict[float, str] = {}
        self._normalise: Final[dict[str, _Normalise]] = {
            "request/header": self._request_header,
            "turn/start": self._turn_start,
            "turn/end": self._turn_end,
            "steering/message": self._steering,
            "llm/retry": self._retry,
        }
        self._shapes: Final[dict[str, _Shape]] = {
            "user/message": self._user_message,
            "assistant/message": self._assistant_message,
            "tool/result": self._tool_result,
        }

    def push_run(self, run: Run) -> None:
        """Take a packed run."""
        self._emit_run(run)

    def take_common(self, row: CommonRow) -> None:
        """Take a row that passes as it is."""
        if row.id is not None:
            self._message_ids[row.seq] = row.id

    def push(self, event: JsonObject) -> None:
        """Take the next event."""
        kind, seq, data = event.get("type"), int(event["seq"]), event.get("data")
        if not is_object(data):
            refuse(RULE, "has to be an object", "data")
        if kind == "assistant/chunk":
            self._emit(event)
            return
        if type(kind) is not str or kind in _RETIRED:
            refuse(RULE, "is a retired event type", "type")
        kind = _RENAMED.get(kind, kind)
        normalise = self._normalise.get(kind)
        if normalise is not None:
            data = normalise(data, seq)
        if kind == "steering/message":
            kind = "user/message"
        data = self._add_compaction(kind, data, seq)
        shape = self._shapes.get(kind)
        if shape is not None:
            data = shape(event, data, seq)
        if kind not in EARLY_TYPES:
            refuse(
                "50 A.1", f"{quote(kind)} is no event type of this generation", "type"
            )
        check_payload(kind, data, seq=seq, generation=0)
        self._remember(kind, data, seq)
        if kind == _DELIVERY:
            self._check_delivery(data, seq)
        if kind != event["type"] or data is not event["data"]:
            event = event | {"type": kind, "data": data}
        self._emit(event)

    def finish(self) -> int:
        """End the log."""
        return self._cut

    def _message_id(self, seq: int) -> str:
        return f"legacy-message:{self._id}:{seq}"

    def _remember(self, kind: str, data: JsonObject, seq: int) -> None:
        message = data if kind == "user/message" else data.get("message")
        if is_object(message) and type(message.get("id")) is str:
            self._message_ids[seq] = message["id"]

    def _check_delivery(self, data: JsonObject, seq: int) -> None:
        is_inherited = self._has_parent and seq < self._cut
        if data["sessionId"] != self._id and not is_inherited:
            refuse(RULE, "names another session", "data.sessionId")

    # --- rules 3 to 8 ---

    def _request_header(self, data: JsonObject, seq: int) -> JsonObject:
        del seq
        if data.get("reason") == "fallback":
            refuse(RULE, "is the retired reason fallback", "data.reason")
        header = data.get("header")
        if not is_object(header) or "messagePrefix" not in header:
            return data
        if not is_array(header["messagePrefix"]):
            refuse(RULE, "has to be an array", "data.header.messagePrefix")
        kept = {name: header[name] for name in header if name != "messagePrefix"}
        return data | {"header": kept}

    def _turn_start(self, data: JsonObject, seq: int) -> JsonObject:
        if "trigger" not in data:
            return data
        _require("data", _turn_start, data, seq)
        if not is_filled(data["trigger"].get("kind")):
            refuse(RULE, "has to be a non-empty string", "data.trigger.kind")
        return {"turn": data["turn"]}

    def _turn_end(self, data: JsonObject, seq: int) -> JsonObject:
        _require("data", _turn_end, data, seq)
        reason = data["reason"]
        kind = reason.get("kind")
        if type(kind) is not str:
            refuse("50 §4.1", "has to be a string", "data.reason.kind")
        check: Check | None = None
        changed = reason
        if kind in ("completed", "blocked", "max-tokens", "interrupted"):
            check = _only_kind
        elif kind == "disposed" or (kind == "aborted" and "reason" not in reason):
            check = _only_kind
            inner = "legacy" if kind == "aborted" else "disposed"
            changed = {"kind": "aborted", "reason": {"kind": inner}}
        elif kind == "error" and "error" not in reason:
            if "failure" in reason:
                check = _failed
                changed = {"kind": "error", "error": reason["failure"]}
            else:
                check = _failed_early
                error = {
                    "message": reason.get("message"),
                    "code": reason.get("code", "UNKNOWN"),
                }
                changed = {"kind": "error", "error": error}
        if check is not None:
            _require("data.reason", check, reason, seq)
        return data if changed is reason else data | {"reason": changed}

    def _steering(self, data: JsonObject, seq: int) -> JsonObject:
        if "message" in data:
            _require("data", _steering, data, seq)
            message: JsonObject = data["message"]
            return message
        _require("data", _steering_early, data, seq)
        kept = {name: data[name] for name in data if name != "turn"}
        return kept | {"id": self._message_id(seq), "role": "user"}

    def _retry(self, data: JsonObject, seq: int) -> JsonObject:
        # Absent members equal null here: admission refuses either.
        names = ("turn", "step", "provider", "policyKey")
        chain = kernel.dump([data.get(name) for name in names])
        if "retryId" in data:
            if is_filled(data["retryId"]):
                self._retries[chain] = data["retryId"]
            return data
        retry = self._retries.setdefault(chain, f"legacy-retry:{self._id}:{seq}")
        return data | {"retryId": retry}

    # --- rule 9: compaction identities ---

    def _add_compaction(self, kind: str, data: JsonObject, seq: int) -> JsonObject:
        if kind == "session/end-seed":
            self._compaction = None
        elif kind == "compaction/start":
            if "compactionId" not in data:
                data = data | {"compactionId": f"legacy-compaction:{self._id}:{seq}"}
            if is_filled(data["compactionId"]):
                self._compaction = data["compactionId"]
        elif self._compaction is None:
            return data
        elif kind in ("compaction/summary", "compaction/end"):
            if "compactionId" not in data:
                data = data | {"compactionId": self._compaction}
            if kind == "compaction/end":
                self._compaction = None
        elif kind == "user/message":
            source = data.get("source")
            if (
                is_object(source)
                and source.get("kind") == "plugin"
                and source.get("plugin") == "compact"
                and "compactionId" not in source
            ):
                data = data | {"source": source | {"compactionId": self._compaction}}
        return data

    # --- rule 10: message shapes ---

    def _user_message(
        self, event: JsonObject, data: JsonObject, seq: int
    ) -> JsonObject:
        del event
        if not {"content", "source"} <= data.keys():
            return data
        if {"id", "role", "message"} & data.keys():
            return data
        return data | {"id": self._message_id(seq), "role": "user"}

    def _assistant_message(
        self, event: JsonObject, data: JsonObject, seq: int
    ) -> JsonObject:
        del event
        if "message" in data or not {"content", "provenance"} <= data.keys():
            return data
        provenance = data["provenance"]
        if not is_object(provenance):
            refuse("50 §4.5", "has to be an object", "data.provenance")
        kept = {k: v for k, v in data.items() if k not in ("content", "provenance")}
        message = {
            "id": self._message_id(seq),
            "role": "assistant",
            "content": data["content"],
            "source": provenance | {"kind": "model"},
        }
        return kept | {"message": message}

    def _tool_result(self, event: JsonObject, data: JsonObject, seq: int) -> JsonObject:
        names = ("callId", "content", "isError")
        if "message" in data or any(name not in data for name in names):
            return data
        call, content, is_error = (data[name] for name in names)
        if type(call) is not str or type(is_error) is not bool:
            return data
        block = {
            "type": "tool-result",
            "toolCallId": call,
            "content": content,
            "isError": is_error,
        }
        message = {
            "id": self._result_id(event.get("surfaceOp"), seq),
            "role": "user",
            "content": [block],
            "source": {"kind": "tool", "callId": call},
        }
        return {k: v for k, v in data.items() if k not in names} | {"message": message}

    def _result_id(self, op: Any, seq: int) -> str:
        """Return the id of a result: its own, or that of the result which it replaces."""
        if not is_object(op) or op.get("op") != "replace":
            return self._message_id(seq)
        start = op.get("start")
        known = self._message_ids.get(start) if is_number(start) else None
        if known is None:
            refuse("50 §4.5", "names no message", "surfaceOp.start")
        return str(known)
