"""`messages` against the model requests that the real runtime sent. Spec: 30 §5, 70 §4; issue 4.

Every request of a fresh log is accounted for: a model request carries the transcript of the
events before it, a compaction request a part of it and an instruction, a title request what
`session/title-llm-request` says.

The request and our messages are brought to one form, a list of items in order:
`(role, kind, value)` for each block of a `system`, `user` or `assistant` message, where kind is
`text`, `reasoning` or `call`, the last with `(id, name, arguments)` as its value; and
`("tool", call id, parts, is error)` for each tool result. What the Messages protocol does not carry
is not compared: message ids (but see `compare_all`), bounds between messages of one role, spelling
of JSON arguments, empty texts.

The runtime itself differs from its log in two ways, seen in these tests: a later system message
goes behind the other messages before the next answer, and developer messages are not sent, since
`tools` carries what they announce.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from real_runtime import RealRuntime
from small_logs import shared_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CORPUS = shared_folder("DSH_CORPUS", "corpus", "real")
Items = list[tuple[Any, ...]]
Event = dict[str, Any]


def parts(content: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the blocks of a tool result; an image is told by the hash of its bytes."""
    for block in content:
        if block["type"] == "text":
            yield "text", block["text"]
        else:
            assert block["type"] == "image"
            yield "image", block["attachment"]["attachmentId"]


def of_log(messages: list[dict[str, Any]]) -> Items:
    """Items of our messages."""
    items: Items = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            result = list(parts(content))
            items.append(("tool", message["toolCallId"], result, message["isError"]))
            continue
        for block in content:
            if block["type"] == "tool-call":
                call = (block["id"], block["name"], json.loads(block["arguments"]))
                items.append((role, "call", call))
            elif block["text"]:
                items.append((role, block["type"], block["text"]))
    return items


def as_sent(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return our messages in the order of the Messages protocol."""
    result: list[dict[str, Any]] = []
    later: list[dict[str, Any]] = []
    for message in messages:
        role = message["role"]
        if role == "system" and result:
            later.append(message)
        elif role != "developer":
            if role == "assistant":
                result += later
                later = []
            result.append(message)
    return result + later


def of_messages_api(body: dict[str, Any]) -> Items:
    """Items of a request of the Messages protocol: `system`, then blocks; results are the user's."""
    items: Items = [("system", "text", body["system"])]
    for message in body["messages"]:
        for block in message["content"]:
            kind = block["type"]
            if kind == "tool_result":
                result = sent_parts(block["content"])
                items.append(("tool", block["tool_use_id"], result, block["is_error"]))
            elif kind == "tool_use":
                call = (block["id"], block["name"], block["input"])
                items.append((message["role"], "call", call))
            elif kind == "thinking":
                items.append((message["role"], "reasoning", block["thinking"]))
            else:
                items.append((message["role"], kind, block["text"]))
    return items


def sent_parts(content: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Parts of a tool result; a note that the runtime puts before an image is taken off."""
    result: list[tuple[str, str]] = []
    for block in content:
        if block["type"] == "text":
            result.append(("text", block["text"]))
        else:
            data = base64.b64decode(block["source"]["data"])
            name = "sha256:" + hashlib.sha256(data).hexdigest()
            assert re.match(rf'Image ".*" \({name}\)', result.pop()[1])
            result.append(("image", name))
    return result


def title_request(events: list[Event]) -> Items:
    """Items of the one request for a title."""
    (data,) = (e["data"] for e in events if e["type"] == "session/title-llm-request")
    return [("system", "text", data["system"]), *of_log(data["messages"])]


def compare(body: dict[str, Any], prefix: list[Event], events: list[Event]) -> None:
    """Compare a model request with the log; `prefix` holds the events before it."""
    state, sent, last = dsh.state(prefix), of_messages_api(body), prefix[-1]
    assert state.config is not None
    assert body["model"] == state.config["model"]
    tools = [(t["name"], t["description"], t["input_schema"]) for t in body["tools"]]
    assert tools == [
        (t["name"], t["description"], t["parameters"]) for t in state.tools
    ]
    if last["type"] != "compaction/start":
        assert sent == of_log(as_sent(dsh.messages(prefix)))
        return
    *carried, instruction = sent
    assert instruction[:2] == ("user", "text")
    surface = dsh.surface(prefix)
    assert carried == of_log(surface.messages())[: len(carried)]
    for event in events:
        data = event["data"]
        if (
            event["type"] == "compaction/summary"
            and data["compactionId"] == (last["data"]["compactionId"])
        ):
            end = surface.nodes.index(data["shadowedRange"]["end"]) + 1
            assert len(surface.nodes) == len(surface.messages())
            assert carried == of_log(surface.messages()[:end])


def read(path: Path) -> list[Event]:
    """Return the events of a log that has to be sound."""
    report = dsh.check(path, level="full", mode="strict")
    assert report.is_sound, report.findings
    with dsh.open(path) as log:
        return [event.envelope for event in log]


def compare_all(requests: list[dict[str, Any]], logs: dict[str, list[Event]]) -> int:
    """Compare every request of the Messages protocol; return how many.

    Each says up to which seq the log was written when it was sent, and delivers the events
    since the last request: with ids, so these are compared too.
    """
    for request in requests:
        assert request["wire"] == "messages"
        events = logs[request["session"]]
        delivered = request["body"]["dsh_session_log"]
        start, end = delivered["afterSeq"] + 1, delivered["throughSeq"] + 1
        assert delivered["events"] == events[start:end]
        if request["title"]:
            assert of_messages_api(request["body"]) == title_request(events)
        else:
            compare(request["body"], events[:end], events)
    return len(requests)


def logs_of(real: RealRuntime) -> dict[str, list[Event]]:
    return {name: read(path) for name, path in real.logs().items()}


# Least number of requests, titles and repeated attempts included. A parent whose subagent ends
# late may send one more.
SCENARIOS = {
    "reasoning": 2,
    "tools": 6,
    "file-tools": 7,
    "parallel-tools": 3,
    "unicode": 3,
    "image": 3,
    "retry": 4,
    "reset-stream": 3,
    "resumed": 5,
    "killed-tool-resumed": 3,
    "compaction": 7,
    "subagent": 5,
    "forked": 6,
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_requests_carry_the_messages(scenario: str, tmp_path: Path) -> None:
    real = RealRuntime(tmp_path)
    real.play(scenario)
    logs = logs_of(real)
    assert compare_all(real.requests(), logs) >= SCENARIOS[scenario]
    if scenario == "compaction":
        (events,) = logs.values()
        assert dsh.surface(events).replacements


@pytest.mark.parametrize(
    ("scenario", "count"), [("two-turns", 3), ("forked-one-process", 5)]
)
def test_requests_of_several_turns_of_one_process(
    scenario: str, count: int, tmp_path: Path
) -> None:
    real = RealRuntime(tmp_path, launcher="sdk")
    real.play(scenario)
    assert compare_all(real.requests(), logs_of(real)) >= count


IMPORTED = (
    "0.2.1rc2/tools",
    "0.2.1rc2/unicode",
    "0.2.1rc2/interrupted",
    "0.2.1rc2/killed-mid-tool",
    "0.2.1rc2/resumed",
    "0.2.1rc2/torn-append-big",
    "migrated/0.1.0rc6/two-turns/*",
    "migrated/0.1.2rc1/unicode/*",
    "migrated/0.1.5rc1/forked/session-*",
)


@pytest.mark.parametrize("folder", IMPORTED)
def test_resumed_log_is_sent_as_its_messages(folder: str, tmp_path: Path) -> None:
    """A log of ours, put in the home: the first request after the resume carries its messages."""
    real = RealRuntime(tmp_path)
    (source,) = CORPUS.glob(f"{folder}/session.v4.jsonl.zstd")
    path = real.place(source)
    with dsh.open(path) as log:
        before = dsh.messages(log)
    ((name, _),) = real.logs().items()
    real.answer("One more turn.", name)
    events = read(path)
    requests = [request for request in real.requests() if not request["title"]]
    assert compare_all(requests, {name: events}) == 1
    sent, known = of_messages_api(requests[0]["body"]), of_log(as_sent(before))
    assert sent[: len(known)] == known
    assert ("user", "text", "One more turn.") in sent[len(known) :]
