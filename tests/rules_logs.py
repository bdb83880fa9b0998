"""Seeded generator of small sound logs of generation 4, for the tests of the rules."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

_SHARED = Path(__file__).resolve().parents[2] / "shared"
CASES = Path(os.environ.get("DSH_CASES", _SHARED / "cases"))
CORPUS = Path(os.environ.get("DSH_CORPUS", _SHARED / "corpus" / "real"))
needs_shared = pytest.mark.skipif(
    not (CASES.is_dir() and CORPUS.is_dir()),
    reason="the shared cases and corpus are not beside the repository",
)

HEADER = {
    "version": 4,
    "id": "s-1",
    "createdAt": 1000,
    "cwd": "/work",
    "isSeeded": False,
    "delegationDepth": 0,
}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


class LogMaker:
    """Builds one log event by event; every method appends what its name says."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - test data
        self.events: list[dict[str, Any]] = []
        self.header: dict[str, Any] = dict(HEADER)
        self.cut = 0
        self.turn = 0
        self.step = 0
        self.nodes: list[int] = []
        self.names = 0
        self.header_seq = -1

    def add(self, kind: str, data: Any, **envelope: Any) -> int:
        seq = len(self.events)
        time = 1000 + 10 * seq - self.random.randrange(20)
        self.events.append(
            {"type": kind, "seq": seq, "time": time, "data": data, **envelope}
        )
        return seq

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}-{self.names}"

    def here(self) -> dict[str, Any]:
        return {"turn": self.turn, "step": self.step}

    def append(self, kind: str, data: Any) -> int:
        seq = self.add(kind, data, surfaceOp="append")
        self.nodes.append(seq)
        return seq

    def replace(self, kind: str, data: Any, start: int, end: int) -> int:
        i, j = self.nodes.index(start), self.nodes.index(end)
        op = {"op": "replace", "startSeq": start, "endSeq": end}
        sources = sorted(self.nodes[i : j + 1])
        seq = self.add(kind, data, surfaceOp=op, sourceEventSeqs=sources)
        self.nodes[i : j + 1] = [seq]
        return seq

    def message(
        self, role: str, source: dict[str, Any], content: list[Any]
    ) -> dict[str, Any]:
        return {
            "id": self.name("m"),
            "role": role,
            "content": content,
            "source": source,
        }

    def user(self, *, images: int = 0) -> int:
        image = {
            "type": "image",
            "attachment": {
                "attachmentId": "a",
                "mediaType": "image/png",
                "bytes": 1,
                "width": 1,
                "height": 1,
            },
        }
        content = [text(self.name("question")), *(dict(image) for _ in range(images))]
        return self.append(
            "user/message", self.message("user", {"kind": "user"}, content)
        )

    def open_turn(self) -> None:
        self.turn += 1
        self.step = 0
        self.add("turn/start", {"turn": self.turn})

    def open_step(self) -> None:
        self.step += 1
        self.add("step/start", self.here())

    def close_step(self) -> None:
        self.add("step/end", self.here())

    def close_turn(self) -> None:
        self.add("turn/end", {"turn": self.turn, "reason": {"kind": "completed"}})

    def request(self, reason: str) -> None:
        tools: list[dict[str, Any]] = [
            {"name": name, "description": "d", "parameters": {"type": "object"}}
            for name in ("read", "write", "late")
        ]
        tools[-1]["deferLoading"] = True
        header = {
            "config": {"provider": "p", "model": "m", "maxTokens": 100},
            "adapterDefaults": {"maxTokens": True},
            "tools": tools,
        }
        self.header_seq = self.add(
            "request/header", {"header": header, "reason": reason}
        )
        self.add("request/context", {"provider": "p", "model": "m"})

    def system(self) -> None:
        message = self.message(
            "system", {"kind": "system-prompt"}, [text(self.name("prompt"))]
        )
        data = {**self.here(), "message": message}
        if self.nodes:
            self.replace("system/message", data, self.nodes[0], self.nodes[0])
        else:
            self.append("system/message", data)

    def developer(self) -> None:
        block = {"type": "tool-addition", "toolName": "late"}
        message = self.message("developer", {"kind": "tool-search"}, [block])
        data = {**self.here(), "message": message, "headerSeq": self.header_seq}
        self.append("developer/message", data)

    def attempt_with_retry(self, count: int) -> None:
        retry_id = self.name("retry")
        for retry in range(1, count + 1):
            self.add("assistant/attempt", {**self.here(), "stream": []})
            data = {
                "retryId": retry_id,
                **self.here(),
                "provider": "p",
                "mode": "normal",
                "policyKey": "k",
                "retry": retry,
                "maxRetries": 5,
                "delayMs": 10,
                "failure": {"message": "x", "code": "y"},
            }
            self.add("llm/retry", data)
            started = {"retryId": retry_id, **self.here(), "retry": retry}
            self.add("llm/retry-started", started)

    def answer(self, calls: int) -> list[dict[str, Any]]:
        words = self.name("answer")
        blocks: list[dict[str, Any]] = [text(words)]
        half = len(words) // 2
        stream: list[dict[str, Any]] = [
            {
                "type": "text-chunks",
                "time0": 1000,
                "index": 0,
                "dt": [1],
                "texts": [words[:half], words[half:]],
            }
        ]
        for index in range(1, calls + 1):
            call = {
                "id": self.name("call"),
                "name": "read",
                "arguments": f'{{"n":{index}}}',
            }
            blocks.append({"type": "tool-call", **call})
            stream.append(
                {
                    "type": "tool-call-chunks",
                    "time0": 1010,
                    "index": index,
                    "dt": [],
                    "id": call["id"],
                    "name": call["name"],
                    "args": [call["arguments"]],
                }
            )
        usage = {"inputTokens": 10, "outputTokens": 2}
        stream.append(
            {"type": "chunk", "time": 1020, "chunk": {"type": "usage", "usage": usage}}
        )
        source = {"kind": "model", "provider": "p", "model": "m"}
        message = self.message("assistant", source, blocks)
        data = {
            **self.here(),
            "message": message,
            "stream": stream,
            "usage": dict(usage),
        }
        self.append("assistant/message", data)
        return blocks[1:]

    def run_tools(self, calls: list[dict[str, Any]]) -> list[int]:
        for call in calls:
            data = {
                "callId": call["id"],
                "name": call["name"],
                "arguments": call["arguments"],
            }
            self.add("tool/call", {**self.here(), **data})
        if calls and self.random.random() < 0.5:
            self.dispatch(calls[0]["id"])
        return [self.result(call["id"]) for call in calls]

    def dispatch(self, root: str) -> None:
        sub = self.name("sub")
        ids = {"rootCallId": root, "parentCallId": root, "subCallId": sub}
        data = {**ids, "name": "read", "arguments": {"path": "x"}}
        self.add("tool/ptc-dispatch-start", data)
        self.add(
            "tool/ptc-dispatch", {**data, "isError": False, "content": [text("y")]}
        )

    def result(self, call_id: str) -> int:
        message = self.message(
            "tool", {"kind": "tool", "callId": call_id}, [text("output")]
        )
        message["toolCallId"] = call_id
        return self.append(
            "tool/result", {**self.here(), "message": message, "meta": {"n": 1}}
        )

    def rewrite(self, seq: int) -> None:
        old = self.events[seq]["data"]
        data = {**old, "message": {**old["message"], "content": [text("cut")]}}
        self.replace("tool/result", data, seq, seq)

    def prune(self, seq: int) -> None:
        bounds = {"start": seq, "end": seq}
        data = {"shadowedRange": bounds, "shadowedSeqs": [seq], "shadowedTokenCount": 5}
        self.add("compaction/prune", data)

    def compact(self, *, turn: int | None) -> None:
        start, end = self.nodes[1], self.nodes[-1]
        ids = {
            "compactionId": self.name("compaction"),
            "sourceCommandId": self.name("command"),
        }
        self.add("compaction/start", {**ids, "turn": turn})
        summary = {
            **ids,
            "summary": [text("short")],
            "shadowedRange": {"start": start, "end": end},
            "shadowedSeqs": self.nodes[1:],
            "shadowedTokenCount": 9,
            "provider": "p",
            "model": "m",
        }
        self.add("compaction/summary", summary)
        source = {"kind": "compact-checkpoint", **ids}
        data = self.message("user", source, [text("summary")])
        self.replace("user/message", data, start, end)
        self.add("compaction/end", {**ids, "turn": turn})

    def title(self, cited: int) -> None:
        prompt = self.message(
            "user", {"kind": "dsh-session-title-llm"}, [text("name it")]
        )
        request = {
            "titleProvider": "t",
            "messageSeqs": [cited],
            "route": {"provider": "p", "model": "m"},
            "system": "x",
            "messages": [prompt],
            "maxTokens": 10,
        }
        self.add("session/title-llm-request", request)
        source = {"kind": "provider", "provider": "t"}
        self.add(
            "session/title",
            {"title": "A title", "messageSeqs": [cited], "source": source},
        )

    def command(self) -> None:
        command = self.name("command")
        self.add(
            "command/run",
            {"commandId": command, "name": "x", "source": {"kind": "user"}},
        )
        done = {"commandId": command, "kind": "success", "sourceEventSeq": 0}
        self.add("command/done", done)

    def asides(self) -> None:
        inbox = self.message("user", {"kind": "agent-message"}, [text("hello")])
        self.add(
            "agent/inbox/spliced",
            {"target": "next-turn", "start": 0, "inserted": [inbox]},
        )
        delivery = {"sessionId": "s-1", "throughSeq": 0, "sessionFormatVersion": 4}
        self.add("session-log-deepseek/delivery-accepted", delivery)
        catalog = {
            "version": 1,
            "childId": self.name("child"),
            "childCreatedAt": 5,
            "mode": "continuable",
            "label": "l",
        }
        self.add("subagent/catalog", catalog)
        self.add("plugin:x/y", {"any": [1.5]}, ignorable=True)
        self.add("todo/write", {"todos": []})


def make_log(seed: int) -> LogMaker:
    """Make one sound log; every kind of event occurs in some log of any twenty seeds."""
    maker = LogMaker(seed)
    dice = maker.random
    for turn in range(1, dice.randint(1, 3) + 1):
        maker.open_turn()
        results: list[int] = []
        question = -1
        for step in range(1, dice.randint(1, 3) + 1):
            maker.open_step()
            if step == 1:
                maker.request("initial" if turn == 1 else "change")
                if turn == 1 or dice.random() < 0.3:
                    maker.system()
                question = maker.user(images=dice.randint(0, 2))
            if dice.random() < 0.3:
                maker.developer()
            if dice.random() < 0.3:
                maker.attempt_with_retry(dice.randint(1, 2))
            results += maker.run_tools(maker.answer(dice.randint(0, 2)))
            maker.close_step()
        if results and dice.random() < 0.5:
            maker.prune(results[-1])
            maker.rewrite(results[-1])
        image_count = len(maker.events[question]["data"]["content"]) - 1
        if image_count:
            target = {"seq": question, "imageIndexes": list(range(image_count))}
            maker.add("image/offload", {"targets": [target]})
        if dice.random() < 0.5:
            maker.title(question)
        if dice.random() < 0.3:
            maker.compact(turn=maker.turn)
        if dice.random() < 0.4:
            maker.asides()
        maker.close_turn()
        if dice.random() < 0.3:
            maker.command()
        if dice.random() < 0.2:
            maker.compact(turn=None)
        if dice.random() < 0.2:
            maker.add("session/end-seed", {})
    if dice.random() < 0.2:
        maker.header |= {"isSeeded": True, "parentSession": "s-0"}
        maker.cut = maker.add("session/end-seed", {"inherited": True})
        maker.open_turn()
        maker.close_turn()
    return maker
