"""Logs full of what calls are made from, and what may be wrong with it."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

HEADERS = {
    2: {"version": 2, "id": "s", "createdAt": 0, "isSeeded": False},
    3: {"version": 3, "id": "s", "createdAt": 0, "isSeeded": False},
    4: {"version": 4, "id": "s", "createdAt": 0, "isSeeded": False},
}
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    2,
    -1,
    -0.0,
    3.0,
    1.5,
    1e300,
    2**53 - 1,
    2**53,
    10**15,
    10**16,
    -(10**15),
    "",
    "x",
    "usage",
    "text-chunks",
    "tool-call-chunks",
    "chunk",
    "\ud800",
    "héé",
    [],
    {},
    [1],
    [True],
    ["a", ""],
    [""],
    {"a": 1},
)


def _usage(chance: random.Random) -> dict[str, Any]:
    keys = (
        "inputTokens",
        "outputTokens",
        "cacheReadTokens",
        "cacheWriteTokens",
        "reasoningTokens",
        "totalTokens",
    )
    return {key: chance.randrange(2000) for key in keys if chance.random() < 0.8}


def _stream(chance: random.Random, time: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for index in range(chance.randrange(5)):
        count = chance.randrange(1, 5)
        texts = [chance.choice(["a", "bé", "", '"', "x y"]) for _ in range(count)]
        gaps = [chance.choice([0, 3, 40, -2, 123456]) for _ in range(count - 1)]
        kind = chance.choice(["text", "reasoning", "tool-call"])
        run = {"type": f"{kind}-chunks", "time0": time, "index": index, "dt": gaps}
        if kind == "tool-call":
            name = {"name": "n"} if chance.random() < 0.5 else {}
            run |= {"id": "c1"} | name | {"args": texts}
        else:
            run["texts"] = texts
        records.append(run)
        time += sum(gaps) + chance.randrange(20)
    for chunk in (
        {"type": "block-end", "index": 0, "block": {"type": "text", "text": "a"}},
        {"type": "usage", "usage": _usage(chance)},
        {"type": "text-delta", "index": 7, "text": chance.choice(["", "z"])},
        {"type": "finish", "reason": {"kind": chance.choice(["stop", "error"])}},
    ):
        if chance.random() < 0.6:
            records.append({"type": "chunk", "time": time, "chunk": chunk})
            time += chance.randrange(5)
    return records


def _settlement(chance: random.Random, place: dict[str, Any], time: int) -> Any:
    data = place | {"stream": _stream(chance, time)}
    if chance.random() < 0.4:
        return "assistant/attempt", data, {}
    source: dict[str, Any] = {"kind": "model", "provider": "p", "model": "m"}
    if chance.random() < 0.5:
        served = chance.choice(["", "m", "m2"])
        source["replayState"] = {"response": {"responseModel": served}}
    content = [
        {"type": "tool-call", "id": chance.choice(["c1", "c2"]), "name": "n"}
        for _ in range(chance.randrange(3))
    ]
    for block in content:
        block["arguments"] = "{}"
    message = {"id": "m", "role": "assistant", "content": content, "source": source}
    data = place | {"message": message} | data
    if chance.random() < 0.5:
        data["usage"] = _usage(chance)
    if chance.random() < 0.2:
        data["interrupted"] = True
    return "assistant/message", data, {"surfaceOp": "append"}


def _result(chance: random.Random, place: dict[str, Any], generation: int) -> Any:
    call_id = chance.choice(["c1", "c2"])
    text = [{"type": "text", "text": "r"}]
    source = {"kind": "tool", "callId": call_id}
    message: dict[str, Any]
    if generation == 4:
        message = {"id": "r", "role": "tool", "toolCallId": call_id, "content": text}
    else:
        block = {"type": "tool-result", "toolCallId": call_id, "content": text}
        message = {"id": "r", "role": "user", "content": [block]}
    # Rule E of 30 §6 asks for it in generation 4.
    if generation == 4 or chance.random() < 0.7:
        message["source"] = source
    more = {"surfaceOp": "append"} if chance.random() < 0.8 else {}
    return "tool/result", place | {"message": message}, more


def _event(chance: random.Random, generation: int, time: int) -> Any:
    place = {"turn": chance.randrange(1, 3), "step": chance.randrange(1, 3)}
    route = {"provider": "p", "model": chance.choice(["m", "m3"])}
    kind = chance.choice(
        ["settlement"] * 4
        + ["step/start", "llm/retry-started", "request/header", "request/context"]
        + ["tool/call", "tool/result", "tool/call", "tool/result"]
        + ["compaction/start", "compaction/summary", "compaction/end"]
        + ["session/end-seed", "session/title-llm-request", "web/a-request", "x/y"]
    )
    if kind == "settlement":
        return _settlement(chance, place, time - chance.randrange(60))
    if kind == "tool/result":
        return _result(chance, place, generation)
    if kind == "tool/call":
        call = {"callId": chance.choice(["c1", "c2"]), "name": "n", "arguments": "{}"}
        return kind, place | call, {}
    if kind == "request/header":
        return kind, {"header": {"config": route}}, {}
    if kind == "compaction/summary":
        return kind, route | {"usage": _usage(chance)}, {}
    if kind in ("session/title-llm-request", "web/a-request"):
        return kind, {"route": route}, {}
    return kind, place | route if kind == "request/context" else place, {}


def rows(seed: int, generation: int = 4, count: int = 40) -> list[dict[str, Any]]:
    """Return header and rows of a log of generation 2 to 4; only their envelopes are sound."""
    chance = random.Random(seed)  # noqa: S311 - seeded data
    header: dict[str, Any] = {"type": "session"} | HEADERS[generation]
    made = [header | {"delegationDepth": 0}]
    time = 1000
    for _ in range(count):
        time += chance.choice([0, 1, 30, -5])
        kind, data, more = _event(chance, generation, time)
        row = {"type": kind, "seq": len(made) - 1, "time": time, "data": data}
        made.append(row | more)
    return made


def _places(value: Any, found: list[Any]) -> None:
    pairs: Any = ()
    if type(value) is dict:
        pairs = value.items()
    elif type(value) is list:
        pairs = enumerate(value)
    for key, part in pairs:
        found.append((value, key))
        _places(part, found)


def spoiled(
    made: list[dict[str, Any]], seed: int, changes: int = 4
) -> list[dict[str, Any]]:
    """Return rows some of whose values are odd, or gone."""
    chance = random.Random(seed)  # noqa: S311 - seeded data
    made = copy.deepcopy(made)
    for _ in range(chance.randrange(1, changes + 1)):
        if len(made) < 2:
            break
        row = chance.choice(made[1:])
        places: list[Any] = []
        _places(row.get("data"), places)
        if not places or chance.random() < 0.02:
            row["data"] = chance.choice(ODD)
            continue
        holder, key = chance.choice(places)
        if chance.random() < 0.15:
            del holder[key]
        else:
            holder[key] = chance.choice(ODD)
    return made


def text_of(made: list[dict[str, Any]]) -> bytes:
    """Return the plaintext; lone surrogates are written as escapes."""
    return b"".join(
        json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in made
    )


def damaged(data: bytes, seed: int) -> bytes:
    """Return the text with a few bytes changed, or cut."""
    chance = random.Random(seed)  # noqa: S311 - seeded data
    out = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(out))
        out[at] = chance.choice(b'09"\\{}[],:-ae\n')
    return bytes(out[: chance.randrange(1, len(out))] if chance.random() < 0.2 else out)


_MEMBERS = (
    '"type":"usage"',
    '"type":"usage"',
    '"type":"usage"',
    '"type":"finish"',
    '"type":"text-delta"',
    '"type":"us\\u0061ge"',
    '"ty\\u0070e":"usage"',
    '"type":null',
    '"type":["usage"]',
    '"type":[1,"usage"]',
    '"type":{"type":"usage"}',
    '"usage":%s',
    '"usage":%s',
    '"usage":%s',
    '"us\\u0061ge":%s',
    '"usage":null',
    '"usage":[{"inputTokens":1}]',
    '"reason":{"kind":"stop"}',
    '"reason":{"type":"finish","kind":"er\\u0072or"}',
    '"block":{"type":"usage","usage":{"inputTokens":1}}',
    '"block":[{"type":"finish","reason":{"kind":"x"}},[]]',
    '"text":"{\\"type\\":\\"usage\\",\\"usage\\":{}}"',
    '"index":1.5',
    '"index":-0',
)
_RECORDS = (
    '{"type":"chunk","time":%d,"chunk":%s}',
    '{"type":"chunk","time":%d,"chunk":%s}',
    '{"type":"chunk","time":%d,"chunk":%s}',
    '{"type":"chunk","time":%d,"chunk":%s}',
    '{"time":%d,"type":"chunk","chunk":%s}',
    '{"type":"chunk","time":%d,"chunk":%s,"type":"x"}',
    '{"type":"chunk","time":%d,"chunk":%s,"chunk":{"type":"finish"}}',
    '{"type":"chunk","time":%d,"chunk":[%s]}',
    '{"type":"chunk", "time":%d,"chunk":%s}',
    '{"type":"ch\\u0075nk","time":%d,"chunk":%s}',
    '{"type":"text-chunks","time0":%d,"index":0,"dt":[],"texts":["a"],"chunk":%s}',
)
_RUN = '{"type":"text-chunks","time0":5,"index":0,"dt":[1],"texts":["a","b"]}'
_DATA = (
    '{"turn":1,"step":1,"stream":[%s]}',
    '{"turn":1,"step":1,"stream":[%s]}',
    '{"turn":1,"step":1,"usage":{"inputTokens":5},"stream":[%s]}',
    '{"stream":[%s],"turn":1,"usage":{"type":"usage"}}',
    '{"turn":1,"step":1,"stre\\u0061m":[%s]}',
    '{"turn":1,"step":1,"stream":[{"type":"chunk","time":1,"chunk":{"type":"finish"}}],"stream":[%s]}',
    '{"turn":1,"step":1,"rawMessage":{"stream":[%s]},"stream":[]}',
    '{"turn":1,"x\\"stream":[%s]}',
)


def _odd_usage(chance: random.Random) -> str:
    keys = ("inputTokens", "outputTokens", "cacheReadTokens", "output\\u0054okens")
    values = ("0", "7", "-0", "1e3", "12.0", "-1", "0.5", "9007199254740991", "1" * 20)
    pairs = [
        f'"{chance.choice(keys)}":{chance.choice((*values, "null", "[7]"))}'
        for _ in range(chance.randrange(5))
    ]
    return "{" + ",".join(pairs) + "}"


def _odd_chunk(chance: random.Random) -> str:
    members = [chance.choice(_MEMBERS) for _ in range(chance.randrange(5))]
    if chance.random() < 0.6:
        kind = chance.choice(("usage", "usage", "finish"))
        more = {"usage": '"usage":%s', "finish": '"reason":{"kind":"stop"}'}
        members[:0] = [f'"type":"{kind}"', more[kind]]
    chosen = (
        part.replace("%s", _odd_usage(chance)) if "%s" in part else part
        for part in members
    )
    return "{" + ",".join(chosen) + "}"


def oddly_spelled(seed: int, count: int = 6) -> bytes:
    """Return a log of attempts whose chunks say in odd ways of which type they are."""
    chance = random.Random(seed)  # noqa: S311 - seeded data
    lines = [json.dumps(rows(seed, count=0)[0], separators=(",", ":"))]
    for seq in range(count):
        records = [
            _RUN
            if chance.random() < 0.2
            else chance.choice(_RECORDS) % (time, _odd_chunk(chance))
            for time in range(chance.randrange(6))
        ]
        data = chance.choice(_DATA) % ",".join(records)
        row = f'{{"type":"assistant/attempt","seq":{seq},"time":1,"data":{data}}}'
        lines.append(row)
    return "\n".join([*lines, ""]).encode()
