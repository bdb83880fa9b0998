"""Settlements that the harness spells, judged by their text: both kernels find the same.

Spec: 20 §6, 30 §10. The native kernel compares most of them without parsing their records.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from dsh_codec import _native, _pure
from test_bulk import HEADER

PLACE = '{"turn":1,"step":1'
OPENING = (
    b'{"type":"turn/start","seq":0,"time":1,"data":{"turn":1}}\n'
    b'{"type":"step/start","seq":1,"time":1,"data":{"turn":1,"step":1}}\n'
)
BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": "a"},
    {"type": "text", "text": ""},
    {"type": "reasoning", "text": "b"},
    {"type": "tool-call", "id": "c", "name": "n", "arguments": "{}"},
]
USAGES: list[Any] = [{"inputTokens": 1}, {"inputTokens": 1.5}, {}, 5, None, "x"]
REPLAY_STATES: list[Any] = [
    {"response": 1, "blocks": [1]},
    {"blocks": [1, 2]},
    {"blocks": []},
    {"blocks": None},
    {"response": {}},
    [],
    "x",
    None,
]


def text_of(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def log_of(message: str, rest: str, records: list[str]) -> bytes:
    stream = ",".join(records)
    row = (
        f'{{"type":"assistant/message","seq":2,"time":1,"data":{PLACE},"message":{message}{rest},'
        f'"stream":[{stream}]}},"surfaceOp":"append"}}\n'
    )
    return HEADER + OPENING + row.encode()


def chunk(value: dict[str, Any]) -> str:
    return f'{{"type":"chunk","time":1,"chunk":{text_of(value)}}}'


def records_of(dice: random.Random, index: int, block: dict[str, Any]) -> list[str]:
    """Return the records of one block, now and then some too few or too many."""
    kind = block["type"]
    records = [chunk({"type": "block-start", "index": index, "blockType": kind})]
    if kind == "tool-call":
        run = f'"tool-call-chunks","time0":1,"index":{index},"dt":[],"id":"c","args":["{{}}"]'
    else:
        run = f'"{kind}-chunks","time0":1,"index":{index},"dt":[],"texts":{text_of([block["text"]])}'
    records.append(f'{{"type":{run}}}')
    records.append(chunk({"type": "block-end", "index": index, "block": block}))
    if dice.random() < 0.2:
        del records[dice.randrange(3)]
    if dice.random() < 0.1:
        records.append(dice.choice(records))
    return records


def any_settlement(dice: random.Random) -> bytes:
    """Return a log with one answer, which often is what its stream says."""
    content, records = [], []
    for index in dice.choice([[0], [0, 1], [1, 0], [2]]):
        block = dice.choice(BLOCKS)
        content.append(block if dice.random() < 0.95 else dice.choice(BLOCKS))
        records += records_of(dice, index, block)
    rest = ""
    if dice.random() < 0.7:
        usage = dice.choice(USAGES)
        records.append(chunk({"type": "usage", "usage": usage}))
        rest = f',"usage":{text_of(usage)}' if dice.random() < 0.95 else ""
    kind = dice.choice(["stop", "stop", "tool-calls", "max-tokens", ""])
    finish: dict[str, Any] = {"type": "finish", "reason": {"kind": kind}}
    source: dict[str, Any] = {"kind": "model", "provider": "p", "model": "m"}
    if dice.random() < 0.6:
        finish["replayState"] = source["replayState"] = dice.choice(REPLAY_STATES)
    records.append(chunk(finish))
    if dice.random() < 0.1:
        records.append(records.pop(dice.randrange(len(records))))
    message = {"role": "assistant", "content": content, "source": source, "id": "m"}
    return log_of(text_of(message), rest, records)


def test_kernels_agree_on_what_agrees():
    """A thousand settlements; enough of them are sound, and enough are not."""
    dice = random.Random(20)  # noqa: S311 - test data
    sound = 0
    for _ in range(1000):
        data = any_settlement(dice)
        found = _native.check_bytes(data, level="full")
        assert repr(found) == repr(_pure.check_bytes(data, level="full")), data
        sound += not found.findings
    assert 200 < sound < 800


@pytest.mark.parametrize("space", ["", " ", "\t", "\r"])
@pytest.mark.parametrize("entries", ["[1,2]", "null", "5"])
def test_entries_of_a_replay_state_are_counted(kernel, space, entries):
    """Spec 20 §6.1: with others than one for each block there is no assembled replay state."""
    state = f'"replayState":{space}{{"response":1,"blocks":{entries}}}'
    message = (
        '{"role":"assistant","content":[{"type":"text","text":"a"}],"source":{"kind":"model",'
        f'"provider":"p","model":"m",{state}}},"id":"m"}}'
    )
    records = [
        chunk({"type": "block-start", "index": 0, "blockType": "text"}),
        chunk({"type": "block-end", "index": 0, "block": BLOCKS[0]}),
        f'{{"type":"chunk","time":1,"chunk":{{"type":"finish","reason":{{"kind":"stop"}},{state}}}}}',
    ]
    findings = kernel.check_bytes(log_of(message, "", records), level="full").findings
    assert [finding.rule for finding in findings] == ["L5.5"]


@pytest.mark.parametrize("name", ["x" * 65, "x/\\ud83d", "x\\u0000"])
def test_a_type_that_is_unknown_is_quoted_alike(name):
    """Rules V1 and V3; what a message shows is short and can be printed."""
    row = f'{{"type":"{name}","seq":2,"time":1,"data":1,"surfaceOp":"append"}}\n'
    data = HEADER + OPENING + row.encode()
    found = _native.check_bytes(data, level="restore")
    assert repr(found) == repr(_pure.check_bytes(data, level="restore"))
    assert [finding.rule for finding in found.findings] == ["V1", "V3"]
    assert all(len(str(finding).encode()) < 200 for finding in found.findings)
