"""Small logs of the older generations, written out by hand, for the tests of the migration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import dsh_codec as dsh
from dsh_codec.migrate import ChildEvidence, Upgrade, upgrade

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Json = dict[str, Any]

PROMPT_SOURCE: Final = {"kind": "plugin", "plugin": "@deepseek-ai/dsh-system-prompt"}
MODEL_SOURCE: Final = {"kind": "model", "provider": "p", "model": "m"}


def header_of(version: int, **more: Any) -> Json:
    fields: Json = {"type": "session", "version": version, "id": f"s{version}"}
    fields |= {"createdAt": 1, "delegationDepth": 0}
    if version > 1:
        fields["isSeeded"] = False
    return fields | more


def text_of(header: Json, rows: Iterable[Json]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in (header, *rows))


def numbered(*events: Json) -> list[Json]:
    """Give events their seqs and times, where they have none."""
    rows, seq = [], 0
    for event in events:
        if "seq0" in event:
            rows.append(event)
            seq = event["seq0"] + len(
                event["data"].get("texts", event["data"].get("args"))
            )
            continue
        kind, rest = event["type"], {k: v for k, v in event.items() if k != "type"}
        rows.append({"type": kind, "seq": seq, "time": seq + 1} | rest)
        seq += 1
    return rows


def turn(kind: str, number: int = 1, **more: Any) -> Json:
    return {"type": f"turn/{kind}", "data": {"turn": number, **more}}


def step(kind: str, number: int = 1, turn: int = 1) -> Json:
    return {"type": f"step/{kind}", "data": {"turn": turn, "step": number}}


def chunk(text: str, *, index: int = 0, **more: Any) -> Json:
    delta = {"type": "text-delta", "index": index, "text": text}
    return raw_chunk(delta, **more)


def raw_chunk(value: Json, *, turn: int = 1, step: int = 1, **more: Any) -> Json:
    data = {"turn": turn, "step": step, "chunk": value}
    return {"type": "assistant/chunk", "data": data, **more}


def packed(
    seq: int, time: int, texts: list[str], gaps: list[int], index: int = 0
) -> Json:
    data = {"turn": 1, "step": 1, "index": index, "dt": gaps, "texts": texts}
    return {"type": "text-chunks", "seq0": seq, "time0": time, "data": data}


def user(identity: str = "u", text: str = "hi", **more: Any) -> Json:
    data = {
        "id": identity,
        "role": "user",
        "content": [{"type": "text", "text": text}],
        "source": {"kind": "user"},
    }
    return {"type": "user/message", "data": data, "surfaceOp": "append", **more}


def answer(text: str, *, sources: list[int] | None = None, **more: Any) -> Json:
    message = {
        "id": f"a-{text}",
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "source": MODEL_SOURCE,
    }
    event: Json = {
        "type": "assistant/message",
        "data": {"turn": 1, "step": 1, "message": message, **more},
        "surfaceOp": "append",
    }
    if sources is not None:
        event["sourceEventSeqs"] = sources
    return event


def system(text: str = "S") -> Json:
    message = {
        "id": "sys",
        "role": "system",
        "source": PROMPT_SOURCE,
        "content": [{"type": "text", "text": text}],
    }
    data = {"turn": 1, "step": 1, "message": message}
    return {"type": "system/message", "data": data, "surfaceOp": "append"}


def seed(**data: Any) -> Json:
    return {"type": "session/end-seed", "data": data}


def upgraded(
    version: int,
    *events: Json,
    children: Iterable[ChildEvidence] = (),
    **header: Any,
) -> tuple[list[Json], Upgrade]:
    """Upgrade a log; return its events of generation 4 and what made them."""
    text = text_of(header_of(version, **header), numbered(*events))
    with dsh.open(text) as log:
        result = upgrade(log, children=children)
        return list(result), result


def kinds(events: Iterable[Json]) -> list[str]:
    return [event["type"] for event in events]


V0_TURN: Final = (
    turn("start"),
    step("start"),
    user(),
    chunk("a"),
    chunk("b"),
    answer("ab", sources=[3, 4]),
    step("end"),
    turn("end", reason={"kind": "completed"}),
)
"""A turn of generations 0 and 1 that publishes: the stream is that of the message."""


def write_session(root: Path, name: str, text: bytes, version: int) -> Path:
    """Write a session with a plain log; return its folder."""
    folder = root / "_no-cwd" / name
    folder.mkdir(parents=True)
    suffix = f".v{version}" if version else ""
    (folder / f"session{suffix}.jsonl").write_bytes(text)
    return folder


def v0_text(identity: str = "s0", **more: Any) -> bytes:
    return text_of(header_of(0, id=identity, **more), numbered(*V0_TURN))
