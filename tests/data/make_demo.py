"""Make the demo logs: `python tests/data/make_demo.py`, from the repository's folder.

Generations 0 and 4 come from the deterministic generator `gen_log.py` (folder `DSH_TOOLS`,
default `../shared/tools`); 1 to 3 are written from generation 0 by the rules of spec 50, as far
as these logs need them. The frames are those that the harness would write. The text is word
salad; seed 7 everywhere, so all generations tell the same story.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from dsh_codec import kernel  # noqa: E402 - the path has to be set first

if TYPE_CHECKING:
    from collections.abc import Iterator

TOOLS = Path(os.environ.get("DSH_TOOLS", ROOT.parent / "shared" / "tools"))
OUT = Path(__file__).resolve().parent / "demo"
SHAPE = "--turns 2 --steps 3 --tokens 40 --tool-bytes 40:200 --seed 7"
MEMBERS = {
    "text-chunks": "texts",
    "reasoning-chunks": "texts",
    "tool-call-chunks": "args",
}

Row = dict[str, Any]


def generate(log_format: str, *more: str) -> list[Row]:
    """Run the generator and return the rows of its log, header first."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "log.jsonl"
        command: list[str | Path] = [
            sys.executable,
            TOOLS / "gen_log.py",
            "--out",
            out,
            "--format",
            log_format,
        ]
        command += [*SHAPE.split(), *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - ours
        return [json.loads(line) for line in out.read_bytes().split(b"\n")[:-1]]


def to_v1(rows: list[Row]) -> list[Row]:
    """Edge 0→1 (spec 50 §4): the generator writes no retired spelling."""
    return [{**rows[0], "version": 1}, *rows[1:]]


def to_v2(rows: list[Row]) -> list[Row]:
    """Edge 1→2 (spec 50 §5): chunk rows become the stream of the message that follows."""
    header = rows[0]
    result = [renewed_header(header, 2)]
    records: list[Row] = []
    moved: dict[int, int] = {}
    for row in copy.deepcopy(rows[1:]):
        if row["type"] in MEMBERS or row["type"] == "assistant/chunk":
            add_chunks(records, row)
            continue
        if row["type"] == "assistant/message":
            del row["sourceEventSeqs"]
            row["data"]["stream"] = records
            records = []
        moved[row["seq"]] = len(result) - 1
        result.append(renumbered(row, moved))
    return result


def renumbered(row: Row, moved: dict[int, int]) -> Row:
    """Return the row with its seq and the seqs that it cites replaced."""
    row = {**row, "seq": moved[row["seq"]]}
    if "sourceEventSeqs" in row:
        row["sourceEventSeqs"] = [moved[seq] for seq in row["sourceEventSeqs"]]
    return row


def add_chunks(records: list[Row], row: Row) -> None:
    """Add one chunk row to the records of its attempt (spec 50 §5.5)."""
    data = row["data"]
    if row["type"] in MEMBERS:
        key = MEMBERS[row["type"]]
        named = {name: data[name] for name in ("id", "name") if name in data}
        gaps, members = data["dt"], data[key]
        record = {"type": row["type"], "time0": row["time0"], "index": data["index"]}
        record |= {"dt": gaps, **named, key: members}
    else:
        chunk = data["chunk"]
        kind, key, text = {
            "text-delta": ("text-chunks", "texts", "text"),
            "reasoning-delta": ("reasoning-chunks", "texts", "text"),
            "tool-call-delta": ("tool-call-chunks", "args", "argumentsDelta"),
        }.get(chunk["type"], ("chunk", "", ""))
        if kind == "chunk":
            records.append({"type": "chunk", "time": row["time"], "chunk": chunk})
            return
        named = {name: chunk[name] for name in ("id", "name") if name in chunk}
        record = {"type": kind, "time0": row["time"], "index": chunk["index"]}
        record |= {"dt": [], **named, key: [chunk[text]]}
    last: Row = records[-1] if records else {"type": None}
    same = all(
        last.get(name) == record.get(name) for name in ("type", "index", "id", "name")
    )
    if not same:
        records.append(record)
        return
    gap = record["time0"] - last["time0"] - sum(last["dt"])
    last["dt"] = [*last["dt"], gap, *record["dt"]]
    last[key] = last[key] + record[key]


def to_v3(rows: list[Row]) -> list[Row]:
    """Edge 2→3 (spec 50 §6): the system prompt becomes a message of its own."""
    header = rows[0]
    result = [renewed_header(header, 3)]
    prompt = ""
    head: int | None = None
    step: Row = {}
    moved: dict[int, int] = {}

    def emit_system(text: str, anchor: Row) -> None:
        nonlocal prompt, head
        name = ["session-format-v2-to-v3", header["id"], anchor["seq"], anchor["type"]]
        digest = sha256(json.dumps(name, separators=(",", ":")).encode()).hexdigest()
        message = {
            "id": f"v2-to-v3-system-{digest}",
            "role": "system",
            "source": {"kind": "plugin", "plugin": "@deepseek-ai/dsh-system-prompt"},
            "content": [{"type": "text", "text": text}] if text else [],
        }
        row = {"type": "system/message", "seq": 0, "time": anchor["time"]}
        row["data"] = {**step, "message": message}
        if head is None:
            row["surfaceOp"] = "append"
        else:
            row["surfaceOp"] = {"op": "replace", "startSeq": head, "endSeq": head}
            row["sourceEventSeqs"] = [head]
        head = row["seq"] = len(result) - 1
        prompt = text
        result.append(row)

    for row in rows[1:]:
        if row["type"] == "request/header":
            inner = dict(row["data"]["header"])
            text = inner.pop("system", "")
            if text != prompt:
                emit_system(text, row)
            for name in ("tools", "adapterDefaults"):
                if inner.get(name) in ([], {}):
                    del inner[name]
            row = {**row, "data": {**row["data"], "header": inner}}
        moved[row["seq"]] = len(result) - 1
        result.append(renumbered(row, moved))
        if row["type"] == "step/start":
            step = {name: row["data"][name] for name in ("turn", "step")}
            if head is None:
                emit_system("", row)
    return result


def renewed_header(header: Row, version: int) -> Row:
    """Return the header in the shape of generations 2 to 4 (spec 50 §2.2)."""
    fields = {**header, "version": version, "isSeeded": "seedLength" in header}
    fields["isSeeded"] = header.get("isSeeded", fields["isSeeded"])
    order = (
        "type version id createdAt cwd parentSession isSeeded origin delegationDepth"
    )
    order += " agentPreset"
    return {name: fields[name] for name in order.split() if name in fields}


def frames(rows: list[Row]) -> Iterator[bytes]:
    """Yield the header and then batches that end where a step or turn does."""
    batch = b""
    for number, row in enumerate(rows):
        batch += kernel.dump(row) + b"\n"
        if number == 0 or row["type"] in ("step/end", "turn/end", "request/context"):
            yield batch
            batch = b""
    if batch:
        yield batch


def write(name: str, file: str, rows: list[Row], *, cut_bytes: int = 0) -> None:
    """Write one log, less the last bytes if it is to be torn."""
    data = b"".join(frames(rows))
    if file.endswith(".zstd"):
        data = b"".join(map(kernel.encode_frame, frames(rows)))
    path = OUT / name / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data[: len(data) - cut_bytes])


def main() -> None:
    """Write all demo logs."""
    v0, packed, v4 = generate("v0"), generate("v0-packed"), generate("v4")
    v1 = to_v1(packed)
    v2 = to_v2(v1)
    write("v0", "session.jsonl.zstd", v0)
    write("v0-packed", "session.jsonl.zstd", packed)
    write("v1", "session.v1.jsonl", v1)
    write("v2", "session.v2.jsonl.zstd", v2)
    write("v3", "session.v3.jsonl.zstd", to_v3(v2))
    write("v4", "session.v4.jsonl.zstd", v4)
    write("v4-plain", "session.v4.jsonl", v4)
    write("v4-torn", "session.v4.jsonl.zstd", v4, cut_bytes=40)
    surrogates = generate("v4", "--surrogates", "1")
    write("v4-surrogates", "session.v4.jsonl.zstd", surrogates)


if __name__ == "__main__":
    main()
