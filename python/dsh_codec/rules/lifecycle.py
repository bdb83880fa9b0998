"""Turns, steps, tool calls, dispatches and retries: the part of L2 that counts and pairs.

Every method takes one event, returns its fault or None, and takes the event's word for what is
open afterwards. Spec: 30 §7.2, §7.4.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsh_codec.events import (
    MISSING,
    is_array,
    is_earlier,
    is_equal_number,
    is_filled,
    is_identical,
    is_object,
    quote,
    refusal,
)
from dsh_codec.limits import MAX_SAFE_INTEGER
from dsh_codec.rules.surface import HeaderTools, additions_of
from dsh_codec.values import deep_equal, is_count

if TYPE_CHECKING:
    from dsh_codec.errors import RowError

# Digest of the harness's fixed notice. Spec: 30 §7.4.
_NOTICE_SHA256: Final = (
    "613f8e88c4324029a758e388a77c9082e93d36d39ad23d5f76c5529fe7b0b42f"
)
_DECIMAL: Final = re.compile("0|[1-9][0-9]{0,15}")


class _ToolCall(NamedTuple):
    name: Any
    arguments: Any
    started: bool


class _Dispatch(NamedTuple):
    root: str
    start: dict[str, Any] | None  # None once settled


class Lifecycle:
    """State of what is open and pending, with one method for each kind of event.

    Attributes:
        turn: Number of the open turn, else None.
        step: Number of the open step, else None.
    """

    def __init__(self) -> None:
        """Begin before the first event."""
        self.turn: int | None = None
        self.step: int | None = None
        self._next_turn = 1
        self._next_step = 1
        self._provider: Any = MISSING
        self._headers = HeaderTools()
        self._tools: dict[str, _ToolCall] = {}
        self._dispatches: dict[str, _Dispatch] = {}
        self._chains: dict[tuple[Any, ...], tuple[str, int]] = {}
        self._retry_ids: set[str] = set()
        self._retries: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._started: set[tuple[str, int]] = set()

    def _is_in_step(self, data: dict[str, Any]) -> bool:
        turn, step = self.turn, self.step
        return (
            turn is not None
            and step is not None
            and is_equal_number(data.get("turn"), turn)
            and is_equal_number(data.get("step"), step)
        )

    def require_step(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Require that turn and step of the event are open."""
        if self._is_in_step(data):
            return None
        where = (
            "no step is open"
            if self.step is None
            else f"turn {self.turn}, step {self.step} is open"
        )
        step = data.get("step")
        if self.turn is not None and self.step is None and is_count(step):
            self.step = int(step)
        return refusal(
            "L2.in-step", seq, f"{event['type']} is outside its step: {where}"
        )

    def require_turn(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Require that a turn is open."""
        del data
        if self.turn is not None:
            return None
        return refusal("L2.in-turn", seq, f"{event['type']} is outside any turn")

    def start_turn(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Open a turn."""
        del event
        turn = data.get("turn")
        expected, open_turn = self._next_turn, self.turn
        self.turn = int(turn) if is_count(turn) else expected
        self.step = None
        self._next_step = 1
        self._tools.clear()
        # Turn numbers never repeat, so no later retry can continue these chains.
        self._chains.clear()
        if open_turn is not None:
            return refusal(
                "L2.turn-start", seq, f"turn/start while turn {open_turn} is open"
            )
        if not is_equal_number(turn, expected):
            return refusal(
                "L2.turn-start", seq, f"turn/start must have turn {expected}"
            )
        return None

    def end_turn(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Close the turn."""
        del event
        turn, step, pending = self.turn, self.step, next(iter(self._tools), None)
        self.turn = self.step = None
        self._tools.clear()
        if turn is None or not is_equal_number(data.get("turn"), turn):
            what = "no turn is open" if turn is None else f"turn {turn} is open"
            given = data.get("turn")
            self._next_turn = (int(given) if is_count(given) else turn or 0) + 1
            return refusal("L2.turn-end", seq, f"turn/end does not fit: {what}")
        self._next_turn = turn + 1
        if step is not None:
            return refusal("L2.turn-end", seq, f"turn/end while step {step} is open")
        if pending is not None:
            message = f"turn/end leaves tool call {quote(pending)} without a result"
            return refusal("L2.pending-tools", seq, message)
        return None

    def start_step(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Open a step."""
        del event
        turn, step, expected = self.turn, self.step, self._next_step
        given_turn, given = data.get("turn"), data.get("step")
        if is_count(given_turn):
            self.turn = int(given_turn)
        self.step = int(given) if is_count(given) else expected
        if turn is None:
            return refusal("L2.step-start", seq, "step/start outside any turn")
        if step is not None:
            return refusal(
                "L2.step-start", seq, f"step/start while step {step} is open"
            )
        if not (is_equal_number(given_turn, turn) and is_equal_number(given, expected)):
            message = f"step/start must have turn {turn}, step {expected}"
            return refusal("L2.step-start", seq, message)
        return None

    def end_step(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Close the step."""
        del event
        in_step, step = self._is_in_step(data), self.step
        pending = next(iter(self._tools), None)
        given = data.get("step")
        if step is None:
            step = int(given) if is_count(given) else self._next_step
        self.step = None
        self._next_step = step + 1
        self._tools.clear()
        if not in_step:
            return refusal(
                "L2.step-end", seq, "step/end does not fit the open turn and step"
            )
        if pending is not None:
            message = f"step/end leaves tool call {quote(pending)} without a result"
            return refusal("L2.pending-tools", seq, message)
        return None

    def advertise_calls(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Take the tool calls of an `assistant/message`."""
        fault = self.require_step(event, data, seq)
        message = data.get("message")
        content = message.get("content") if is_object(message) else None
        if not is_array(content):
            return fault or refusal(
                "L2.assistant", seq, "assistant/message has no content array"
            )
        for block in content:
            if not is_object(block):
                fault = fault or refusal(
                    "L2.assistant", seq, "a content block is no object"
                )
            elif block.get("type") == "tool-call":
                call_id = block.get("id")
                if not is_filled(call_id):
                    fault = fault or refusal(
                        "L2.tool-call", seq, "a tool-call block has no id"
                    )
                    continue
                if call_id in self._tools:
                    text = f"tool call {quote(call_id)} is advertised again before its result"
                    fault = fault or refusal("L2.tool-call", seq, text)
                name, arguments = (
                    block.get("name", MISSING),
                    block.get("arguments", MISSING),
                )
                self._tools[call_id] = _ToolCall(name, arguments, False)
        return fault

    def start_call(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Take a `tool/call`."""
        fault = self.require_step(event, data, seq)
        if fault is not None:
            return fault
        call_id = data.get("callId")
        if not is_filled(call_id):
            return refusal("L2.tool-call", seq, "tool/call has no callId")
        call = self._tools.get(call_id)
        if call is None or call.started:
            what = "not advertised" if call is None else "started already"
            return refusal("L2.tool-call", seq, f"tool call {quote(call_id)} is {what}")
        self._tools[call_id] = call._replace(started=True)
        if not (
            is_identical(data.get("name", MISSING), call.name)
            and is_identical(data.get("arguments", MISSING), call.arguments)
        ):
            message = f"tool/call {quote(call_id)} has another name or arguments than its message"
            return refusal("L2.tool-call", seq, message)
        return None

    def settle_call(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Take a `tool/result`."""
        if event.get("surfaceOp") != "append":
            return self.require_turn(event, data, seq)
        fault = self.require_step(event, data, seq)
        if fault is not None:
            return fault
        message = data.get("message")
        if not is_object(message) or not is_filled(message.get("toolCallId")):
            return refusal("L2.tool-result", seq, "tool/result has no toolCallId")
        call_id = message["toolCallId"]
        call = self._tools.pop(call_id, None)
        if call is None:
            text = f"tool/result answers {quote(call_id)}, which is not pending"
            return refusal("L2.tool-result", seq, text)
        if not call.started and not _is_not_started_repair(
            event, data, message, call_id
        ):
            text = (
                f"tool/result answers {quote(call_id)}, which never started, and is not the exact "
                "repair for that"
            )
            return refusal("L2.not-started", seq, text)
        return None

    def take_header(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Take a `request/header`."""
        self._headers.add(seq, data)
        header = data.get("header")
        config = header.get("config") if is_object(header) else None
        if is_object(config):
            self._provider = config.get("provider", MISSING)
        fault = self.require_turn(event, data, seq)
        if fault is None and not is_object(config):
            return refusal(
                "L2.request-header", seq, "request/header has no header.config object"
            )
        return fault

    def resolve_header(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Check what a `developer/message` adds."""
        del event
        if "headerSeq" not in data:
            return None
        target = data["headerSeq"]
        table = self._headers.get(target) if is_earlier(target, seq) else None
        if table is None:
            message = "headerSeq must name an earlier request/header"
            return refusal("L2.developer-header", seq, message)
        for block in additions_of(data.get("message")):
            name = block.get("toolName")
            if not is_filled(name) or name not in table.sound:
                message = (
                    f"tool-addition {quote(name)} must name exactly one complete tool of the "
                    f"request/header at seq {target}"
                )
                return refusal("L2.developer-header", seq, message)
        return None

    def start_dispatch(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Take a `tool/ptc-dispatch-start`."""
        fault = self.require_turn(event, data, seq)
        sub, root = data.get("subCallId"), data.get("rootCallId")
        parent = data.get("parentCallId")
        if not (is_filled(sub) and is_filled(root) and is_filled(parent)):
            return fault or refusal(
                "L2.dispatch", seq, "a dispatch needs its three call ids"
            )
        repeated = sub in self._dispatches
        is_linked = self._is_parent(parent, root)
        self._dispatches[sub] = _Dispatch(root, data)
        if fault is not None:
            return fault
        if repeated:
            return refusal("L2.dispatch", seq, f"dispatch {quote(sub)} starts twice")
        return None if is_linked else _parent_fault(seq)

    def settle_dispatch(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Take a `tool/ptc-dispatch`."""
        fault = self.require_turn(event, data, seq)
        sub, root = data.get("subCallId"), data.get("rootCallId")
        parent = data.get("parentCallId")
        if not (is_filled(sub) and is_filled(root) and is_filled(parent)):
            return fault or refusal(
                "L2.dispatch", seq, "a dispatch needs its three call ids"
            )
        known = self._dispatches.get(sub)
        if known is None or known.start is None:
            what = "has not started" if known is None else "is settled already"
            return fault or refusal("L2.dispatch", seq, f"dispatch {quote(sub)} {what}")
        self._dispatches[sub] = known._replace(start=None)
        if fault is not None:
            return fault
        if not self._is_parent(parent, root):
            return _parent_fault(seq)
        for name in ("rootCallId", "parentCallId", "name", "arguments"):
            if not _is_same_member(data, known.start, name):
                message = f"dispatch {quote(sub)} has another {name} than its start"
                return refusal("L2.dispatch", seq, message)
        return None

    def _is_parent(self, parent: str, root: str) -> bool:
        if parent == root:
            return True
        known = self._dispatches.get(parent)
        return known is not None and known.root == root

    def schedule_retry(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Take an `llm/retry`."""
        del event
        retry_id, retry = data.get("retryId"), data.get("retry")
        turn, step = data.get("turn"), data.get("step")
        provider = data.get("provider", MISSING)
        key = tuple(
            _chain_part(part)
            for part in (turn, step, provider, data.get("policyKey", MISSING))
        )
        previous = self._chains.get(key)
        known_id = is_filled(retry_id) and retry_id in self._retry_ids
        if is_filled(retry_id) and is_count(retry):
            self._chains[key] = (retry_id, int(retry))
            self._retry_ids.add(retry_id)
            self._retries.setdefault((retry_id, int(retry)), (turn, step))
        expected_step = self._next_step - 1 if self.step is None else self.step
        if (
            self.turn is None
            or not is_equal_number(turn, self.turn)
            or not is_equal_number(step, expected_step)
        ):
            return refusal(
                "L2.retry", seq, "llm/retry does not fit the open turn and step"
            )
        if not is_identical(provider, self._provider):
            message = "llm/retry names another provider than the last request/header"
            return refusal("L2.retry", seq, message)
        if not is_filled(retry_id):
            return refusal("L2.retry", seq, "llm/retry has no retryId")
        expected = 1 if previous is None else previous[1] + 1
        if not (is_count(retry) and retry == expected):
            return refusal("L2.retry", seq, f"llm/retry must have retry {expected}")
        if known_id if previous is None else retry_id != previous[0]:
            return refusal(
                "L2.retry", seq, "llm/retry must keep one retryId for each chain"
            )
        return None

    def start_retry(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Take an `llm/retry-started`."""
        del event
        retry_id, retry = data.get("retryId"), data.get("retry")
        if not (is_filled(retry_id) and is_count(retry)):
            return refusal(
                "L2.retry-started", seq, "llm/retry-started needs retryId and retry"
            )
        pair = (retry_id, int(retry))
        place = self._retries.get(pair)
        if place is None:
            return refusal(
                "L2.retry-started", seq, "no earlier llm/retry has this id and number"
            )
        repeated = pair in self._started
        self._started.add(pair)
        if not (
            is_identical(data.get("turn", MISSING), place[0])
            and is_identical(data.get("step", MISSING), place[1])
        ):
            message = "llm/retry-started has another turn or step than its llm/retry"
            return refusal("L2.retry-started", seq, message)
        if repeated:
            return refusal("L2.retry-started", seq, "this retry was started before")
        return None


def _parent_fault(seq: int) -> RowError:
    return refusal("L2.dispatch", seq, "parentCallId does not belong to rootCallId")


def _is_same_member(left: dict[str, Any], right: dict[str, Any], name: str) -> bool:
    if name not in left or name not in right:
        return name not in left and name not in right
    return deep_equal(left[name], right[name])


def _chain_part(value: Any) -> Any:
    # `True` would be the dictionary key 1; an object or array equals nothing.
    if type(value) is bool:
        return ("bool", value)
    if is_object(value) or is_array(value):
        return object()
    return value


def _is_not_started_repair(
    event: dict[str, Any], data: dict[str, Any], message: dict[str, Any], call_id: str
) -> bool:
    """Whether a result may answer a call that never started. Spec: 30 §7.4."""
    error = data.get("error")
    if (
        not is_object(error)
        or error.get("name") != "ToolNotStartedError"
        or error.get("code") != "TOOL_NOT_STARTED"
        or message.get("isError") is not True
        or "sourceEventSeqs" in event
    ):
        return False
    message_id = message.get("id")
    if type(message_id) is not str:
        return False
    if message_id.startswith(f"forked-tool-result-{call_id}-"):
        return True
    prefix = f"interrupted-tool-result-{call_id}-"
    suffix = message_id.removeprefix(prefix)
    if (
        suffix == message_id
        or _DECIMAL.fullmatch(suffix) is None
        or int(suffix) > MAX_SAFE_INTEGER
    ):
        return False
    content = message.get("content")
    if not is_array(content) or len(content) != 1 or not is_object(content[0]):
        return False
    text = content[0].get("text")
    if content[0].get("type") != "text" or type(text) is not str:
        return False
    return (
        hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        == _NOTICE_SHA256
    )
