"""A stored session as ACP updates. Spec: 60 §1 to §4."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec.cli import main
from dsh_codec.load import load_updates
from dsh_codec.sidecar import split
from small_logs import shared_folder

if TYPE_CHECKING:
    from pathlib import Path

CORPUS = shared_folder("DSH_CORPUS", "corpus", "real")
LOGS: list[dict[str, Any]] = json.loads((CORPUS / "index.json").read_text("utf-8"))[
    "logs"
]
PATHS = [entry["path"] for entry in LOGS]

HEADER = {
    "type": "session",
    "version": 4,
    "id": "s",
    "createdAt": 1,
    "isSeeded": False,
    "delegationDepth": 0,
}
TEXT = {"type": "text", "text": "a b"}
IMAGE = {
    "type": "image",
    "attachment": {
        "attachmentId": "i1",
        "mediaType": "image/png",
        "bytes": 3,
        "width": 2,
        "height": 1,
    },
}


class Maker:
    """Writes a log event by event."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, kind: str, data: Any, **more: Any) -> int:
        seq = len(self.events)
        self.events.append(
            {"type": kind, "seq": seq, "time": 100 + seq, "data": data, **more}
        )
        return seq

    def begin(self, turn: int = 1) -> None:
        self.add("turn/start", {"turn": turn})
        self.add("step/start", {"turn": turn, "step": 1})

    def user(self, *blocks: Any, kind: str = "user", op: Any = "append") -> int:
        data = {
            "id": f"m{len(self.events)}",
            "role": "user",
            "content": list(blocks),
            "source": {"kind": kind},
        }
        more = {}
        if op != "append":
            more = {"sourceEventSeqs": [op["startSeq"]]}
        return self.add("user/message", data, **more, surfaceOp=op)

    def answer(self, *blocks: Any, **more: Any) -> int:
        message = {
            "role": "assistant",
            "content": list(blocks),
            "source": {"kind": "model", "provider": "p", "model": "m"},
            "id": f"a{len(self.events)}",
        }
        data = {"turn": 1, "step": 1, "message": message, **more, "stream": []}
        return self.add("assistant/message", data, surfaceOp="append")

    def call(self, call_id: str, arguments: str = "{}") -> int:
        data = {"callId": call_id, "name": "ls", "arguments": arguments}
        return self.add("tool/call", {"turn": 1, "step": 1, **data})

    def result(self, call_id: str, *blocks: Any, source: int | None = None) -> int:
        message = {
            "id": f"r{len(self.events)}"
            if source is not None
            else f"forked-tool-result-{call_id}-{len(self.events)}",
            "role": "tool",
            "toolCallId": call_id,
            "isError": source is None,
            "source": {"kind": "tool", "callId": call_id},
            "content": list(blocks),
        }
        data: dict[str, Any] = {"turn": 1, "step": 1, "message": message}
        more: dict[str, Any] = {}
        if source is None:
            data["error"] = {
                "name": "ToolNotStartedError",
                "code": "TOOL_NOT_STARTED",
                "message": "x",
            }
        else:
            more = {"sourceEventSeqs": [source]}
        return self.add("tool/result", data, **more, surfaceOp="append")

    def end(self, kind: str = "completed") -> None:
        self.add("step/end", {"turn": 1, "step": 1})
        self.add("turn/end", {"turn": 1, "reason": {"kind": kind}})

    @property
    def text(self) -> bytes:
        rows = [dsh.dump(HEADER), *map(dsh.kernel.encode_event, self.events)]
        return b"\n".join(rows) + b"\n"

    def updates(self, **options: Any) -> list[Any]:
        loaded = list(load_updates(dsh.open(self.text), **options))
        assert {"s"} >= {item["sessionId"] for item in loaded}
        return [item["update"] for item in loaded]


def tool_call(call_id: str, name: str = "ls", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "tool-call", "id": call_id, "name": name, "arguments": arguments}


def shown(text: str) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": text}}


def call_update(call_id: str, status: str, raw: Any) -> dict[str, Any]:
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": call_id,
        "title": "ls",
        "kind": "other",
        "status": status,
        "rawInput": raw,
    }


def result_update(call_id: str, status: str, *content: Any) -> dict[str, Any]:
    return {
        "sessionUpdate": "tool_call_update",
        "toolCallId": call_id,
        "status": status,
        "content": list(content),
    }


def test_example_of_the_spec() -> None:
    """Spec 60 §4, in the member order that it shows."""
    maker = Maker()
    maker.begin()
    maker.user({"type": "text", "text": "list files"})
    maker.add("assistant/attempt", {"turn": 1, "step": 1, "stream": []})
    maker.answer(
        {"type": "reasoning", "text": "think"},
        {"type": "text", "text": "Running."},
        tool_call("c1", arguments='{"p":"."}'),
    )
    maker.result("c1", TEXT, source=maker.call("c1", '{"p":"."}'))
    maker.add("step/end", {"turn": 1, "step": 1})
    maker.add("step/start", {"turn": 1, "step": 2})
    maker.answer({"type": "text", "text": "Two fi"}, interrupted=True)
    maker.events[-1]["data"]["step"] = 2
    maker.add("step/end", {"turn": 1, "step": 2})
    maker.add("turn/end", {"turn": 1, "reason": {"kind": "aborted"}})
    assert [dsh.dump(update).decode() for update in maker.updates()] == [
        '{"sessionUpdate":"user_message_chunk","messageId":"m2","content":{"type":"text","text":"list files"}}',
        '{"sessionUpdate":"agent_thought_chunk","messageId":"a4","content":{"type":"text","text":"think"}}',
        '{"sessionUpdate":"agent_message_chunk","messageId":"a4","content":{"type":"text","text":"Running."}}',
        '{"sessionUpdate":"tool_call","toolCallId":"c1","title":"ls","kind":"other","status":"in_progress","rawInput":{"p":"."}}',
        '{"sessionUpdate":"tool_call_update","toolCallId":"c1","status":"completed","content":[{"type":"content","content":{"type":"text","text":"a b"}}]}',
        '{"sessionUpdate":"agent_message_chunk","messageId":"a9","content":{"type":"text","text":"Two fi"}}',
    ]


def test_user_blocks() -> None:
    """Spec 60 §2.1: text, image, file; nothing else; humans only."""
    maker = Maker()
    maker.begin()
    attachment = {"attachmentId": "f1", "name": "n.txt", "bytes": 7}
    maker.user(
        {"type": "text", "text": ""}, TEXT, {"type": "file", "attachment": attachment}
    )
    maker.user(TEXT, kind="runtime-context")
    maker.end()
    head = {"sessionUpdate": "user_message_chunk", "messageId": "m2"}
    assert maker.updates() == [
        head | {"content": TEXT},
        head
        | {
            "content": {
                "type": "resource_link",
                "name": "n.txt",
                "uri": "dsh-attachment:f1",
                "size": 7,
            }
        },
    ]


@pytest.mark.parametrize(
    ("options", "content"),
    [
        ({}, {"type": "text", "text": "[image i1 image/png 2x1]"}),
        ({"missing_image": "skip"}, None),
        (
            {"read_attachment": lambda _: b"\xff\xfe\xfd"},
            {"type": "image", "data": "//79", "mimeType": "image/png"},
        ),
        (
            {"read_attachment": lambda _: None},
            {"type": "text", "text": "[image i1 image/png 2x1]"},
        ),
    ],
)
def test_images(options: dict[str, Any], content: Any) -> None:
    """Spec 60 §2.5."""
    maker = Maker()
    maker.begin()
    maker.user(IMAGE)
    maker.answer(tool_call("c1"))
    maker.result("c1", IMAGE, TEXT, source=maker.call("c1"))
    maker.end()
    first, *_, last = maker.updates(**options)
    shown_image = [] if content is None else [{"type": "content", "content": content}]
    assert last["content"] == [*shown_image, shown("a b")]
    if content is None:
        assert first["sessionUpdate"] == "tool_call"
    else:
        assert first["content"] == content
        if "data" in content:
            assert base64.b64decode(content["data"]) == b"\xff\xfe\xfd"


def test_missing_image_as_error() -> None:
    """Spec 60 §2.5, policy `error`."""
    maker = Maker()
    maker.begin()
    maker.user(IMAGE)
    maker.end()
    with pytest.raises(FileNotFoundError) as caught:
        maker.updates(missing_image="error")
    assert caught.value.filename == "i1"


@pytest.mark.parametrize(
    ("arguments", "raw"),
    [
        ('{"a":1}', {"a": 1}),
        ("null", None),
        ("{", "{"),
        ("", ""),
        ('"\ud800"', "\ud800"),
        ('"\\\ud800"', '"\\\ud800"'),
        ('"\\\\\ud800"', "\\\ud800"),
        ("\ud800", "\ud800"),
        ("[" * 2000, "[" * 2000),
    ],
)
def test_raw_input(arguments: str, raw: Any) -> None:
    """Spec 60 §2.3: the parsed value, or the text if it is not JSON."""
    maker = Maker()
    maker.begin()
    maker.answer(tool_call("c1", arguments=arguments))
    maker.result("c1", source=maker.call("c1", arguments))
    maker.end()
    assert maker.updates() == [
        call_update("c1", "in_progress", raw),
        result_update("c1", "completed"),
    ]


def test_call_that_never_started_is_shown_first() -> None:
    """Spec 60 §2.3, rule T1."""
    maker = Maker()
    maker.begin()
    maker.answer(tool_call("c1"), tool_call("c2"))
    maker.result("c1", TEXT)
    maker.result("c2", {"type": "text", "text": ""})
    maker.end("interrupted")
    assert maker.updates() == [
        call_update("c1", "pending", {}),
        result_update("c1", "failed", shown("a b")),
        call_update("c2", "pending", {}),
        result_update("c2", "failed"),
    ]


def test_open_turn_gets_closers_in_the_order_of_advertisement() -> None:
    """Spec 60 §3: started, answered and never started calls of a log that just ends."""
    maker = Maker()
    maker.begin()
    maker.answer(tool_call("c1"), tool_call("c2"), tool_call("c3"))
    maker.result("c2", source=maker.call("c2"))
    maker.call("c3")
    assert maker.updates() == [
        call_update("c2", "in_progress", {}),
        result_update("c2", "completed"),
        call_update("c3", "in_progress", {}),
        call_update("c1", "pending", {}),
        result_update("c1", "failed"),
        result_update("c3", "failed"),
    ]


def test_replacement_is_not_shown_and_the_original_stays() -> None:
    """Spec 60 §1: a surface replacement is for the model only."""
    maker = Maker()
    maker.begin()
    seq = maker.user(TEXT)
    maker.user(
        {"type": "text", "text": "new"},
        op={"op": "replace", "startSeq": seq, "endSeq": seq},
    )
    maker.end()
    assert [update["content"] for update in maker.updates()] == [TEXT]


def test_plan_and_title() -> None:
    """Spec 60 §2.6; plans and the title come before the closers (§1)."""
    maker = Maker()
    maker.begin()
    for status in ("pending", "completed"):
        maker.add("todo/write", {"todos": [{"content": "c", "status": status}]})
        source = {"kind": "user"}
        maker.add(
            "session/title", {"title": status, "messageSeqs": [], "source": source}
        )
    maker.answer(tool_call("c1"))
    plans = [
        {
            "sessionUpdate": "plan",
            "entries": [{"content": "c", "priority": "medium", "status": status}],
        }
        for status in ("pending", "completed")
    ]
    title = {"sessionUpdate": "session_info_update", "title": "completed"}
    closers = [call_update("c1", "pending", {}), result_update("c1", "failed")]
    assert maker.updates() == [*plans, title, *closers]
    assert maker.updates(plan="last") == [plans[1], title, *closers]
    assert maker.updates(plan="none", title="none") == closers
    with pytest.raises(ValueError, match="plan"):
        maker.updates(plan="some")


def test_meta() -> None:
    """Spec 60 §2.7."""
    maker = Maker()
    maker.begin()
    maker.user(TEXT)
    maker.answer(TEXT, interrupted=True)
    maker.end("aborted")
    assert [update["_meta"] for update in maker.updates(meta=True)] == [
        {"dsh": {"seq": 2, "time": 102}},
        {"dsh": {"seq": 3, "time": 103, "turn": 1, "step": 1, "interrupted": True}},
    ]


def test_usage_needs_a_meter_and_a_window() -> None:
    """Spec 60 §2.2, last paragraph."""
    maker = Maker()
    maker.begin()
    maker.user(TEXT)
    usage = {"inputTokens": 1, "outputTokens": 2}
    maker.add("request/context", {"provider": "p", "model": "m", "contextWindow": 99})
    maker.answer(TEXT, usage=usage)
    maker.end()
    assert maker.updates(meter=len)[-1] == {
        "sessionUpdate": "usage_update",
        "used": 2,
        "size": 99,
    }
    assert maker.updates()[-1]["sessionUpdate"] == "agent_message_chunk"
    del maker.events[3]["data"]["contextWindow"]
    assert maker.updates(meter=len)[-1]["sessionUpdate"] == "agent_message_chunk"


def test_refused_log_is_not_loaded() -> None:
    """Spec 60 §1: nothing is sent of a log that an ordinary read refuses."""
    maker = Maker()
    maker.begin()
    maker.user(TEXT)
    maker.add("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    with pytest.raises(dsh.RowError) as caught:
        next(load_updates(dsh.open(maker.text)))
    assert caught.value.seq == 3


@pytest.mark.parametrize("path", PATHS)
def test_corpus_log_shows_what_its_text_view_has(path: str) -> None:
    """Spec 60 §3, property; §5: streams do not matter."""
    with dsh.open(CORPUS / path) as log, log.upgraded() as current:
        updates = list(load_updates(log))
        with split(current) as parts:
            assert list(load_updates(parts.assembled)) == updates
        view = dsh.text(current, with_inherited=True)
        told = {
            "user_message_chunk": [passage.text for passage in view.human_prompts()],
            "agent_message_chunk": [passage.text for passage in view.answers()],
            "agent_thought_chunk": [
                passage.text for passage in view.passages(("reasoning",))
            ],
        }
    said: dict[str, str] = dict.fromkeys(told, "")
    opened, closed = [], []
    for item in updates:
        update = item["update"]
        kind = update["sessionUpdate"]
        content = update.get("content")
        if kind in said and content["type"] == "text":
            if not content["text"].startswith("[image "):
                said[kind] += content["text"]
        elif kind == "tool_call":
            opened.append(update["toolCallId"])
        elif kind == "tool_call_update":
            closed.append(update["toolCallId"])
    assert said == {kind: "".join(texts) for kind, texts in told.items()}
    # Every call that is shown ends.
    assert sorted(opened) == sorted(closed)


def test_corpus_updates_satisfy_the_schema() -> None:
    """The published schema of the Agent Client Protocol."""
    schema = pytest.importorskip(
        "acp.schema", reason="the package agent-client-protocol is not installed"
    )
    count = 0
    for path in PATHS:
        with dsh.open(CORPUS / path) as log:
            for item in load_updates(log, meta=True):
                schema.SessionNotification.model_validate(json.loads(dsh.dump(item)))
                count += 1
    assert count > 1000


def test_strict_current_names_the_command() -> None:
    """Spec 60 intro, §9."""
    older = next(entry["path"] for entry in LOGS if entry["format"] < 4)
    with (
        dsh.open(CORPUS / older) as log,
        pytest.raises(dsh.UnsupportedError) as caught,
    ):
        next(load_updates(log, strict_current=True))
    assert "dsh-codec migrate" in str(caught.value)


def test_command_load(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    maker = Maker()
    maker.begin()
    maker.user(TEXT)
    maker.end()
    path = tmp_path / "session.v4.jsonl"
    path.write_bytes(maker.text)
    assert main(["load", str(path), "--json"]) == 0
    (line,) = capsysbinary.readouterr().out.splitlines()
    assert [json.loads(line)["update"]] == maker.updates()
