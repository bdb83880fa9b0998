"""Model calls answered from a recording. Spec: 60 §8; the issue, "Build" 2."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec.replay import ReplayModel
from dsh_codec.replay_server import ReplayServer
from dsh_codec.sidecar import split
from dsh_codec.values import fuse
from small_logs import SHARED, shared_folder

if TYPE_CHECKING:
    from types import ModuleType

CORPUS = shared_folder("DSH_CORPUS", "corpus", "real")
RELEASE = CORPUS / "0.2.1rc2"
MESSAGES, CHAT = "/v1/messages", "/chat/completions"


def log_of(scenario: str) -> Path:
    return min(path for path in (RELEASE / scenario).rglob("session.v4.jsonl*"))


class Caller:
    """Calls a server as the harness does."""

    def __init__(self, server: ReplayServer) -> None:
        self.address = server.url.removeprefix("http://")

    def call(
        self, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=20)
        request = {"model": "m", "tools": [{}]} if body is None else body
        try:
            connection.request("POST", path, json.dumps(request), headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


def events_of(body: bytes) -> list[Any]:
    data = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in data if line != b"[DONE]"]


def content_of_messages(body: bytes) -> tuple[list[Any], str, dict[str, Any]]:
    """Assemble what the Messages API sent, as its clients do."""
    blocks: dict[int, dict[str, Any]] = {}
    stop = ""
    usage: dict[str, Any] = {}
    for event in events_of(body):
        kind = event["type"]
        if kind == "message_start":
            usage = dict(event["message"]["usage"])
        elif kind == "content_block_start":
            block = event["content_block"]
            kinds = {"thinking": "reasoning", "tool_use": "tool-call"}
            made = {"type": kinds.get(block["type"], "text")}
            if made["type"] == "tool-call":
                made |= {"id": block["id"], "name": block["name"], "arguments": ""}
            else:
                made["text"] = ""
            blocks[event["index"]] = made
        elif kind == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                blocks[event["index"]]["arguments"] += delta["partial_json"]
            elif delta["type"] != "signature_delta":
                text = delta.get("text", delta.get("thinking"))
                blocks[event["index"]]["text"] += text
        elif kind == "message_delta":
            stop = event["delta"]["stop_reason"]
            usage |= event["usage"]
    return [blocks[index] for index in sorted(blocks)], stop, usage


def content_of_chat(body: bytes) -> tuple[list[Any], str, dict[str, Any]]:
    """Assemble what chat completions sent."""
    texts = {"reasoning": "", "text": ""}
    calls: list[dict[str, Any]] = []
    finish = ""
    usage: dict[str, Any] = {}
    for event in events_of(body):
        (choice,) = event["choices"]
        delta = choice["delta"]
        texts["reasoning"] += delta.get("reasoning_content") or ""
        texts["text"] += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if call["index"] == len(calls):
                named = {"id": call["id"], "name": function["name"]}
                calls.append({"type": "tool-call", **named, "arguments": ""})
            calls[call["index"]]["arguments"] += function["arguments"]
        finish = choice["finish_reason"] or finish
        usage = event.get("usage", usage)
    spoken = [{"type": kind, "text": text} for kind, text in texts.items() if text]
    return [*spoken, *calls], finish, usage


@pytest.mark.parametrize("wire", [MESSAGES, CHAT])
@pytest.mark.parametrize("scenario", ["tools", "reasoning", "unicode", "max-tokens"])
def test_answers_carry_the_recorded_content(wire: str, scenario: str) -> None:
    stops = {
        "stop": ("end_turn", "stop"),
        "tool-calls": ("tool_use", "tool_calls"),
        "max-tokens": ("max_tokens", "length"),
    }
    with (
        dsh.open(log_of(scenario)) as log,
        split(log) as parts,
        ReplayModel(parts.sidecar) as model,
        ReplayServer(model) as server,
    ):
        caller = Caller(server)
        for attempt in log.attempts():
            status, _, body = caller.call(wire)
            assert status == 200
            read = content_of_messages if wire == MESSAGES else content_of_chat
            content, stop, usage = read(body)
            for block in content:
                # Clients of JavaScript join the halves of a split pair by themselves.
                for key in block.keys() & {"text", "arguments"}:
                    block[key] = fuse(block[key])
            assert content == attempt.stream.assemble().blocks
            assert stop == stops[attempt.finish or ""][wire == CHAT]
            recorded = attempt.usage or {}
            if wire == MESSAGES:
                assert usage["input_tokens"] == recorded["inputTokens"]
                assert usage["cache_read_input_tokens"] == recorded["cacheReadTokens"]
                assert usage["output_tokens"] == recorded["outputTokens"]
            else:
                assert usage["total_tokens"] == recorded["totalTokens"]
                hit = usage["prompt_tokens_details"]["cached_tokens"]
                assert hit == recorded["cacheReadTokens"]


def test_server_of_no_model_is_refused() -> None:
    model: Any = 5
    with pytest.raises(TypeError, match="model is a ReplayModel"):
        ReplayServer(model)


def test_failed_attempts_fail_as_recorded() -> None:
    """A status and its headers first; a stream that broke off lacks its last events."""
    with (
        dsh.open(log_of("retry")) as log,
        ReplayModel(log) as model,
        ReplayServer(model) as server,
    ):
        caller = Caller(server)
        status, _, body = caller.call(MESSAGES)
        assert status == 500
        assert json.loads(body)["error"]["message"] == "mock internal error"
        status, headers, _ = caller.call(MESSAGES)
        assert (status, headers["retry-after"]) == (429, "1")
        assert headers["x-request-id"] == "req-mock-429"
        assert b"message_stop" in caller.call(MESSAGES)[2]
    with (
        dsh.open(log_of("broken-stream")) as log,
        ReplayModel(log, strict=False) as model,
        ReplayServer(model) as server,
    ):
        status, _, body = Caller(server).call(MESSAGES)
        assert status == 200
        assert b"text_delta" in body
        assert b"message_stop" not in body


def test_cancelled_attempt_waits_for_the_caller() -> None:
    with (
        dsh.open(log_of("interrupted")) as log,
        ReplayModel(log, strict=False) as model,
        ReplayServer(model, hold_ms=1) as server,
        pytest.raises(http.client.IncompleteRead) as caught,
    ):
        Caller(server).call(MESSAGES)
    assert b"text_delta" in caught.value.partial or not caught.value.partial


def test_other_requests() -> None:
    """Titles are no attempts; another session, key or address gets no attempt either."""
    with (
        dsh.open(log_of("text")) as log,
        ReplayModel(log, strict=False) as model,
        ReplayServer(model, api_key="k") as server,
    ):
        caller = Caller(server)
        key = {"x-api-key": "k"}
        title = {"model": "m", "system": "Make a title."}
        assert caller.call(MESSAGES, title)[0] == 401
        content, _, _ = content_of_messages(caller.call(MESSAGES, title, **key)[2])
        assert content == [{"type": "text", "text": "Replayed session"}]
        bearer = {"authorization": "Bearer k"}
        content, _, _ = content_of_chat(caller.call(CHAT, title, **bearer)[2])
        assert content == [{"type": "text", "text": "Replayed session"}]
        assert caller.call("/v1/other", **key)[0] == 404
        assert caller.call(MESSAGES, [], **key)[0] == 400
        session = "x-deepseek-harness-session-id"
        assert caller.call(MESSAGES, **key, **{session: "a"})[0] == 200
        assert caller.call(MESSAGES, **key, **{session: "b"})[0] == 400
        assert not server.failures
        assert caller.call(MESSAGES, **key, **{session: "a"})[0] == 400
        assert [error.reason for error in server.failures] == ["exhausted"]


@pytest.fixture(scope="module")
def driver() -> ModuleType:
    """The driver of real runtimes."""
    tools = Path(os.environ.get("DSH_TOOLS", SHARED / "tools")) / "make_real_logs.py"
    if "DSH_RUNTIME" not in os.environ or not tools.is_file():
        pytest.skip("DSH_RUNTIME names no runtime, or its driver is not there")
    spec = importlib.util.spec_from_file_location("make_real_logs", tools)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.interop
@pytest.mark.parametrize(
    "scenario",
    ["text", "tools", "reasoning", "retry", "max-tokens", "unicode", "reset-stream"],
)
def test_real_runtime_repeats_a_session(
    driver: ModuleType, scenario: str, tmp_path: Path
) -> None:
    """The issue, "Show": the same prompts end with the same assistant contents."""
    runtime = driver.Runtime(os.environ["DSH_RUNTIME"], tmp_path, "run", timeout=60)
    with dsh.open(log_of(scenario)) as log, split(log) as parts:
        (prompt,) = [passage.text for passage in dsh.text(log).human_prompts()]
        with ReplayModel(parts.sidecar) as model, ReplayServer(model) as server:
            runtime._headless(prompt, server.url, None, None, (), None)
            assert not server.failures
        recorded = [(item.outcome, item.content, item.usage) for item in log.attempts()]
    (path,) = (Path(runtime.home) / "sessions").rglob("session.v4.jsonl*")
    with dsh.open(path) as made:
        assert [
            (item.outcome, item.content, item.usage) for item in made.attempts()
        ] == recorded
