"""Sessions made of rows, and files made of sessions, for tests of what is counted."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import dsh_codec as dsh

if TYPE_CHECKING:
    from pathlib import Path

CALLS = ("assistant/message", "assistant/attempt")


def event(kind: str, data: Any) -> dict[str, Any]:
    """Return a row without seq and time; `Session.lines` gives it both."""
    return {"type": kind, "data": data}


def call(
    usage: dict[str, Any],
    *,
    turn: int = 1,
    step: int = 1,
    stream: list[Any] | None = None,
    content: list[Any] | None = None,
    source: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the row of a settled message."""
    message = {
        "id": "m",
        "role": "assistant",
        "content": content or [],
        "source": source or {"kind": "model", "provider": "p", "model": "m"},
    }
    data = {"turn": turn, "step": step, "message": message, "stream": stream or []}
    row = event("assistant/message", data | {"usage": usage} | more)
    return row | {"surfaceOp": "append"}


def attempt(stream: list[Any], *, turn: int = 1, step: int = 1) -> dict[str, Any]:
    """Return the row of a failed attempt."""
    return event("assistant/attempt", {"turn": turn, "step": step, "stream": stream})


def answer(
    call_id: str, *, turn: int = 1, step: int = 1, text: str = "", **more: Any
) -> dict[str, Any]:
    """Return the row of a tool result."""
    message = {
        "id": "r",
        "role": "tool",
        "toolCallId": call_id,
        "content": [{"type": "text", "text": text}],
        "source": {"kind": "tool", "callId": call_id},
    }
    data = {"turn": turn, "step": step, "message": message}
    return event("tool/result", data) | {"surfaceOp": "append"} | more


def text_run(time: float, gap: float, *texts: str) -> list[dict[str, Any]]:
    """Return a stream of one run."""
    gaps = [gap] * (len(texts) - 1)
    run = {"type": "text-chunks", "time0": time, "index": 0, "dt": gaps}
    return [run | {"texts": list(texts)}]


class Session:
    """A session that is being made.

    Seqs count from 0 and times from 100, one more for each row, where a row has none.
    """

    def __init__(
        self, name: str, rows: list[dict[str, Any]], *, generation: int = 4, **more: Any
    ) -> None:
        self.id = name
        self.rows = rows
        self.generation = generation
        self.header: dict[str, Any] = {
            "type": "session",
            "version": generation,
            "id": name,
            "createdAt": 1,
            "delegationDepth": 0,
        } | more
        if generation >= 2:
            self.header.setdefault("isSeeded", False)

    def fork(self, parent: Session, count: int) -> None:
        """Begin with the first events of a parent. Spec: 30 §11."""
        self.rows = copy.deepcopy(parent.rows[:count])
        self.header["parentSession"] = parent.id
        if self.generation < 2:
            self.header["seedLength"] = count
        else:
            self.header["isSeeded"] = True
            self.rows.append(event("session/end-seed", {"inherited": True}))

    def count_calls(self) -> int:
        return sum(row["type"] in CALLS for row in self.rows)

    def data(self) -> bytes:
        """Return the plain text of the log."""
        lines = [self.header]
        lines += [{"seq": i, "time": 100 + i} | row for i, row in enumerate(self.rows)]
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def write(self, root: Path) -> Path:
        """Write the log where it belongs under a root."""
        cwd = self.header.get("cwd")
        path = root / dsh.log_path(
            "", cwd=cwd, id=self.id, version=self.generation, compression="none"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data())
        return path


def open_rows(
    rows: list[dict[str, Any]], *, generation: int = 4, **more: Any
) -> dsh.Log:
    """Return a log with these rows."""
    return dsh.open(Session("s", rows, generation=generation, **more).data())
