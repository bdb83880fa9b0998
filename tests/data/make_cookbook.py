"""Make the logs of the cookbook: `python tests/data/make_cookbook.py`, from the repository's folder.

A root with two sessions: that of `demo/v4`, and a fork of its first turn, five weeks later, in
which one request fails and its retry is answered.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "python"))

import dsh_codec as dsh  # noqa: E402 - the path has to be set first

OUT = HERE / "cookbook"
CREATED_AT = 1_786_000_000_000  # 2026-08-06
PLACE = {"turn": 2, "step": 1}
PROMPT = {
    "role": "user",
    "content": [{"type": "text", "text": "Why is the build red? 🚧"}],
    "source": {"kind": "user"},
    "id": "u-1",
}
FAILURE = {"message": "overloaded", "code": "overloaded", "status": 503}
RETRY = PLACE | {"retryId": "r-1", "retry": 1}
USAGE = {"inputTokens": 1200, "outputTokens": 12, "cacheReadTokens": 800}


def chunk(time: int, value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "chunk", "time": CREATED_AT + time, "chunk": value}


def text_run(time: int, gaps: list[int], texts: list[str]) -> dict[str, Any]:
    run = {"type": "text-chunks", "time0": CREATED_AT + time, "index": 0}
    return run | {"dt": gaps, "texts": texts}


def fork_rows() -> list[tuple[int, str, dict[str, Any]]]:
    """Return the own rows of the fork: milliseconds since it was made, type, data."""
    answer = ["The", " lock", " file", " is", " stale", "."]
    block = {"type": "text", "text": "".join(answer)}
    failed = [
        text_run(2_000, [], ["The"]),
        chunk(
            9_000, {"type": "finish", "reason": {"kind": "error", "failure": FAILURE}}
        ),
    ]
    settled = [
        text_run(14_100, [30, 41, 28, 35, 33], answer),
        chunk(14_300, {"type": "block-end", "index": 0, "block": block}),
        chunk(14_301, {"type": "usage", "usage": USAGE}),
        chunk(14_301, {"type": "finish", "reason": {"kind": "stop"}}),
    ]
    message = {
        "role": "assistant",
        "content": [block],
        "source": {"kind": "model", "provider": "deepseek", "model": "deepseek-chat"},
        "id": "a-1",
    }
    retry = RETRY | {
        "provider": "deepseek",
        "mode": "normal",
        "policyKey": "overloaded",
        "maxRetries": 5,
        "delayMs": 1_000,
        "failure": FAILURE,
    }
    end = {"turn": 2, "reason": {"kind": "completed"}}
    return [
        (1_000, "turn/start", {"turn": 2}),
        (1_001, "step/start", PLACE),
        (1_002, "user/message", PROMPT),
        (9_001, "assistant/attempt", PLACE | {"stream": failed}),
        (9_002, "llm/retry", retry),
        (10_003, "llm/retry-started", RETRY),
        (
            14_302,
            "assistant/message",
            PLACE | {"message": message, "usage": USAGE, "stream": settled},
        ),
        (14_303, "step/end", PLACE),
        (14_304, "turn/end", end),
    ]


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    with dsh.open(HERE / "demo" / "v4") as parent:
        inherited = [event.envelope for event in parent[:16]]
        target = Path(
            dsh.log_path(
                OUT,
                cwd=parent.header.fields["cwd"],
                id=parent.id,
                version=4,
                compression="zstd",
            )
        )
        target.parent.mkdir(parents=True)
        shutil.copy(str(parent.path), target)
        header = {
            "id": "fork-1",
            "createdAt": CREATED_AT,
            "cwd": parent.header.fields["cwd"],
            "parentSession": parent.id,
            "isSeeded": True,
        }
    marker = {
        "type": "session/end-seed",
        "seq": 16,
        "time": CREATED_AT,
        "data": {"inherited": True},
    }
    rows = []
    for seq, (after, kind, data) in enumerate(fork_rows(), 17):
        row = {"type": kind, "seq": seq, "time": CREATED_AT + after, "data": data}
        if kind in ("user/message", "assistant/message"):
            row["surfaceOp"] = "append"
        rows.append(row)
    with dsh.Writer.create(OUT, header) as writer:
        writer.append([*inherited, marker])
        writer.append(rows)
        path = writer.path
    (Path(path).parent / "session.lock").unlink()
    report = dsh.check(path, level="full")
    assert report.status == "sound", report


if __name__ == "__main__":
    main()
