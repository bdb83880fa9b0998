"""Seeded data of the benchmarks: log shapes as the harness writes them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

SEED = 7
WORDS = (
    "the",
    " of",
    " commit",
    "Node",
    "\n\n",
    " probably",
    "_",
    " 函数",
    " 输入",
    ".",
)
TOOLS = Path(
    os.environ.get(
        "DSH_TOOLS", Path(__file__).resolve().parents[2] / "shared" / "tools"
    )
)


def run_of(count: int, seed: int = SEED) -> list[dict[str, Any]]:
    """Return the records of one settlement with `count` chunks."""
    chance = random.Random(seed)
    texts = [chance.choice(WORDS) for _ in range(count - 3)]
    gaps = [chance.randrange(60) for _ in texts[1:]]
    block = {"type": "text", "text": "".join(texts)}
    run = {"type": "text-chunks", "time0": 1_782_918_163_146, "index": 0}
    last = 1_782_918_163_146 + sum(gaps)
    chunks = [
        {"type": "block-end", "index": 0, "block": block},
        {"type": "usage", "usage": {"inputTokens": 900, "outputTokens": count}},
        {"type": "finish", "reason": {"kind": "stop"}},
    ]
    raw = [{"type": "chunk", "time": last, "chunk": chunk} for chunk in chunks]
    return [run | {"dt": gaps, "texts": texts}, *raw]


@cache
def v4_log(settlements: int, chunks: int, seed: int = SEED) -> bytes:
    """Return a plain log of generation 4: short rows, and settlements of `chunks` chunks."""
    header = {"type": "session", "version": 4, "id": f"bench-{seed}", "createdAt": 0}
    rows = [header | {"isSeeded": False, "delegationDepth": 0}]

    def add(kind: str, data: dict[str, Any]) -> None:
        seq = len(rows) - 1
        rows.append({"type": kind, "seq": seq, "time": seq, "data": data})

    for number in range(1, settlements + 1):
        place = {"turn": number, "step": 1}
        add("turn/start", {"turn": number})
        add("step/start", place)
        add("assistant/attempt", place | {"stream": run_of(chunks, seed + number)})
        add("step/end", place)
        add("turn/end", {"turn": number, "reason": {"kind": "completed"}})
    lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    return "".join(f"{line}\n" for line in lines).encode()


def generated_log(path: Path, *arguments: str) -> Path:
    """Write a log with the project's generator, if its folder is there."""
    command = [
        sys.executable,
        str(TOOLS / "gen_log.py"),
        "--out",
        str(path),
        *arguments,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - ours
    return path


def has_generator() -> bool:
    """Whether the project's generator is there."""
    return (TOOLS / "gen_log.py").is_file()
