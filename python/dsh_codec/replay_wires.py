"""A replayed attempt in the words of the model protocols that the harness calls. Spec: 60 §8.

Messages API and chat completions, both as server-sent events. Only what the harness reads of an
answer is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from dsh_codec._backend import kernel
from dsh_codec.events import is_array, is_object
from dsh_codec.values import is_number

if TYPE_CHECKING:
    from dsh_codec.replay import ReplayAttempt

__all__ = ["ChatWire", "MessagesWire", "Wire"]

_STOP_REASONS: Final = {"tool-calls": "tool_use", "max-tokens": "max_tokens"}
_FINISH_REASONS: Final = {"tool-calls": "tool_calls", "max-tokens": "length"}


class Wire(Protocol):
    """Spells one attempt, chunk by chunk."""

    def start(self) -> bytes:
        """Return what comes before the first chunk."""
        ...

    def chunk(self, chunk: dict[str, Any], /) -> bytes:
        """Return the events of a chunk; empty if it has none."""
        ...


class _Totals:
    """What a protocol says earlier than the recording does: usage, and signatures."""

    def __init__(self, attempt: ReplayAttempt | None) -> None:
        usage: Any = None
        state: Any = None
        for timed in () if attempt is None else attempt.recorded():
            kind = timed.chunk.get("type")
            if kind == "usage":
                usage = timed.chunk.get("usage")
            elif kind == "finish":
                state = timed.chunk.get("replayState")
        self._usage = usage if is_object(usage) else {}
        blocks = state.get("blocks") if is_object(state) else None
        self._blocks = blocks if is_array(blocks) else []

    def tokens(self, *names: str) -> int:
        """Return the sum of some members of the usage."""
        found = (self._usage.get(name) for name in names)
        return sum(int(count) for count in found if is_number(count))

    def has(self, name: str) -> bool:
        """Whether the usage has a member."""
        return is_number(self._usage.get(name))

    def signature(self, position: int) -> str | None:
        """Return the signature of a block, by its position."""
        block = self._blocks[position] if position < len(self._blocks) else None
        signature = block.get("signature") if is_object(block) else None
        return signature if type(signature) is str else None


class MessagesWire:
    """The Messages API."""

    def __init__(self, attempt: ReplayAttempt | None, model: str) -> None:
        """Take the attempt, None for chunks of another origin, and the model to name."""
        self._totals = _Totals(attempt)
        self._model = model
        self._places: dict[Any, int] = {}
        self._kinds: dict[Any, str] = {}
        self._open: set[Any] = set()

    def start(self) -> bytes:
        """Return the start of the message, with the usage of the input."""
        totals = self._totals
        usage = {
            "input_tokens": totals.tokens("inputTokens"),
            "cache_read_input_tokens": totals.tokens("cacheReadTokens"),
            "cache_creation_input_tokens": totals.tokens("cacheWriteTokens"),
            "output_tokens": 1,
        }
        message: dict[str, Any] = {
            "id": "msg_replay",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return _event({"type": "message_start", "message": message})

    def chunk(self, chunk: dict[str, Any], /) -> bytes:
        """Return the events of a chunk."""
        kind, index = chunk.get("type"), chunk.get("index")
        if kind == "block-start":
            self._place(index)
            block_type = str(chunk.get("blockType"))
            if block_type in ("text", "reasoning"):
                return self._begin(index, block_type, {})
        elif kind == "text-delta":
            text = chunk.get("text")
            return self._begin(index, "text", {}) + self._delta(index, "text", text)
        elif kind == "reasoning-delta":
            text = chunk.get("text")
            begun = self._begin(index, "reasoning", {})
            return begun + self._delta(index, "thinking", text)
        elif kind == "tool-call-delta":
            begun = self._begin(index, "tool-call", chunk)
            text = chunk.get("argumentsDelta")
            return begun + self._delta(index, "input_json", text, key="partial_json")
        elif kind == "block-end":
            return self._end(index, chunk.get("block"))
        elif kind == "finish":
            return self._finish(chunk.get("reason"))
        return b""

    def _place(self, index: Any) -> int:
        return self._places.setdefault(index, len(self._places))

    def _begin(self, index: Any, kind: str, call: dict[str, Any]) -> bytes:
        """Start a block, once: of a tool call only its first delta has the id."""
        place = self._place(index)
        if index in self._kinds:
            return b""
        self._kinds[index] = kind
        self._open.add(index)
        block: dict[str, Any] = {"type": "text", "text": ""}
        if kind == "reasoning":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif kind == "tool-call":
            name = call.get("name", "")
            block = {
                "type": "tool_use",
                "id": call.get("id"),
                "name": name,
                "input": {},
            }
        return _event(
            {"type": "content_block_start", "index": place, "content_block": block}
        )

    def _delta(self, index: Any, kind: str, text: Any, *, key: str = "") -> bytes:
        if text == "" and kind == "input_json":
            return b""
        delta = {"type": f"{kind}_delta", key or kind: text}
        place = self._places[index]
        return _event({"type": "content_block_delta", "index": place, "delta": delta})

    def _end(self, index: Any, block: Any) -> bytes:
        if not is_object(block):
            return b""
        kind = block.get("type")
        begun = b""
        if index not in self._kinds:
            if kind not in ("text", "reasoning", "tool-call"):
                return b""  # Neither protocol has other blocks in an answer.
            begun = self._begin(index, str(kind), block)
            key = {"text": "text", "reasoning": "thinking"}.get(str(kind))
            if key is None:
                arguments = block.get("arguments")
                begun += self._delta(index, "input_json", arguments, key="partial_json")
            elif block.get("text"):
                begun += self._delta(index, key, block["text"])
        return begun + self._close(index)

    def _close(self, index: Any) -> bytes:
        if index not in self._open:
            return b""
        self._open.discard(index)
        place = self._places[index]
        signed = b""
        signature = self._totals.signature(place)
        if self._kinds[index] == "reasoning" and signature is not None:
            signed = self._delta(index, "signature", signature)
        return signed + _event({"type": "content_block_stop", "index": place})

    def _finish(self, reason: Any) -> bytes:
        kind = reason.get("kind") if is_object(reason) else None
        ended = b"".join([self._close(index) for index in sorted(self._open)])
        delta = {
            "stop_reason": _STOP_REASONS.get(str(kind), "end_turn"),
            "stop_sequence": None,
        }
        usage = {"output_tokens": self._totals.tokens("outputTokens")}
        ended += _event({"type": "message_delta", "delta": delta, "usage": usage})
        return ended + _event({"type": "message_stop"})


class ChatWire:
    """Chat completions."""

    def __init__(self, attempt: ReplayAttempt | None, model: str) -> None:
        """Take the attempt, None for chunks of another origin, and the model to name."""
        self._totals = _Totals(attempt)
        self._model = model
        self._calls: dict[Any, int] = {}
        self._told: set[Any] = set()

    def start(self) -> bytes:
        """Return the role of the answer."""
        return self._data({"role": "assistant", "content": ""})

    def chunk(self, chunk: dict[str, Any], /) -> bytes:
        """Return the events of a chunk."""
        kind, index = chunk.get("type"), chunk.get("index")
        if kind in ("text-delta", "reasoning-delta", "tool-call-delta"):
            self._told.add(index)
        if kind == "text-delta":
            return self._data({"content": chunk.get("text")})
        if kind == "reasoning-delta":
            text = chunk.get("text")
            return self._data({"content": None, "reasoning_content": text})
        if kind == "tool-call-delta":
            return self._call(index, chunk, chunk.get("argumentsDelta"))
        if kind == "block-end" and index not in self._told:
            return self._whole(index, chunk.get("block"))
        if kind == "finish":
            reason = chunk.get("reason")
            ended = reason.get("kind") if is_object(reason) else None
            finish = _FINISH_REASONS.get(str(ended), "stop")
            return self._data({"content": ""}, finish=finish) + b"data: [DONE]\n\n"
        return b""

    def _whole(self, index: Any, block: Any) -> bytes:
        """Tell a block that came without deltas."""
        kind = block.get("type") if is_object(block) else None
        if kind == "tool-call":
            return self._call(index, block, block.get("arguments"))
        if kind in ("text", "reasoning") and block.get("text"):
            delta = {"type": f"{kind}-delta", "index": index, "text": block["text"]}
            return self.chunk(delta)
        return b""

    def _call(self, index: Any, call: dict[str, Any], arguments: Any) -> bytes:
        begun = b""
        if index not in self._calls:
            place = self._calls[index] = len(self._calls)
            function = {"name": call.get("name", ""), "arguments": ""}
            told = {
                "index": place,
                "id": call.get("id"),
                "type": "function",
                "function": function,
            }
            begun = self._data({"tool_calls": [told]})
        if arguments == "":
            return begun
        told = {"index": self._calls[index], "function": {"arguments": arguments}}
        return begun + self._data({"tool_calls": [told]})

    def _data(self, delta: dict[str, Any], *, finish: str | None = None) -> bytes:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish,
        }
        value: dict[str, Any] = {
            "id": "chatcmpl-replay",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": self._model,
            "choices": [choice],
        }
        if finish is not None:
            value["usage"] = self._usage()
        return b"data: " + kernel.dump(value) + b"\n\n"

    def _usage(self) -> dict[str, Any]:
        totals = self._totals
        hit = totals.tokens("cacheReadTokens")
        miss = totals.tokens("inputTokens", "cacheWriteTokens")
        output = totals.tokens("outputTokens")
        usage: dict[str, Any] = {
            "prompt_tokens": hit + miss,
            "completion_tokens": output,
            "total_tokens": hit + miss + output,
            "prompt_tokens_details": {"cached_tokens": hit},
            "prompt_cache_hit_tokens": hit,
            "prompt_cache_miss_tokens": miss,
        }
        if totals.has("reasoningTokens"):
            reasoning = totals.tokens("reasoningTokens")
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        return usage


def _event(value: dict[str, Any]) -> bytes:
    kind = str(value["type"]).encode()
    return b"event: " + kind + b"\ndata: " + kernel.dump(value) + b"\n\n"
