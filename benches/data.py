"""Seeded data of the benchmarks: log shapes as the harness writes them."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
GENERATIONS: Final = ("v4", "v0", "v0-packed")
POLICIES: Final = ("window", "step", "turn", "single")
WINDOW_MS: Final = 200
TIME: Final = re.compile(rb'"time0?":(-?\d+)')
# A row names its type first; data of 10 MB is not looked through.
HEAD_BYTES: Final = 200

# --- the project's own small logs ---


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


def line_of(row: dict[str, Any]) -> bytes:
    """Return a row as the harness writes it, with its line feed."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


@cache
def v4_log(settlements: int, chunks: int, seed: int = SEED) -> bytes:
    """Return a plain log of generation 4: short rows, and settlements of `chunks` chunks."""
    return _log_bytes("v4", settlements, chunks, seed)


def _log_bytes(generation: str, settlements: int, chunks: int, seed: int) -> bytes:
    """Return one content in any of the generations: in 0 a row a chunk, or a row a run."""
    return b"".join(map(line_of, _rows(generation, settlements, chunks, seed)))


def _rows(
    generation: str, settlements: int, chunks: int, seed: int
) -> Iterator[dict[str, Any]]:
    header = {"type": "session", "version": 4, "id": f"bench-{seed}", "createdAt": 0}
    if generation == "v4":
        yield header | {"isSeeded": False, "delegationDepth": 0}
    else:
        yield header | {"version": 0, "cwd": "/work", "delegationDepth": 0}
    seq = 0

    def event(kind: str, data: dict[str, Any], time: int | None = None) -> Any:
        nonlocal seq
        row = {"type": kind, "seq": seq, "time": seq if time is None else time}
        seq += 1
        return row | {"data": data}

    for number in range(1, settlements + 1):
        place = {"turn": number, "step": 1}
        records = run_of(chunks, seed + number)
        yield event("turn/start", {"turn": number})
        yield event("step/start", place)
        if generation == "v4":
            yield event("assistant/attempt", place | {"stream": records})
        elif generation == "v0":
            for time, chunk in expand_simply(records):
                yield event("assistant/chunk", place | {"chunk": chunk}, time)
        else:
            run, *raw = records
            data = place | {name: run[name] for name in ("index", "dt", "texts")}
            yield {"type": run["type"], "seq0": seq, "time0": run["time0"]} | {
                "data": data
            }
            seq += len(run["texts"])
            for record in raw:
                chunk = record["chunk"]
                yield event("assistant/chunk", place | {"chunk": chunk}, record["time"])
        yield event("step/end", place)
        yield event("turn/end", {"turn": number, "reason": {"kind": "completed"}})


def expand_simply(records: list[dict[str, Any]]) -> Iterator[tuple[int, Any]]:
    """Yield the timed chunks of records in the shortest Python; nothing is checked."""
    for record in records:
        if record["type"] == "chunk":
            yield record["time"], record["chunk"]
            continue
        kind = record["type"].removesuffix("-chunks") + "-delta"
        chunk = {"type": kind, "index": record["index"]}
        name, member = "texts", "text"
        if "args" in record:
            chunk |= {key: record[key] for key in ("id", "name") if key in record}
            name, member = "args", "argumentsDelta"
        time = record["time0"]
        for gap, text in zip([0, *record["dt"]], record[name], strict=True):
            time += gap
            yield time, chunk | {member: text}


# --- rows that are hard to read ---

ROW_BYTES: Final = 10_000_000


def hard_rows(size: int) -> dict[str, bytes]:
    """Return logs with one row of about `size` bytes that invites quadratic steps."""
    # Row, data and the list around them make it the 1,024 levels that are allowed.
    nested = b"[" * 1021 + b"]" * 1021
    one = b'{"type":"text-chunks","time0":1,"index":0,"dt":[],"texts":["a"]}'
    text = rb'"\u00e9\n\ud83d\ude80\""'
    count = size // (len(text) + 1)
    run = b'{"type":"text-chunks","time0":1,"index":0,"dt":[%b],"texts":[%b]}'
    escaped = run % (b",".join([b"0"] * (count - 1)), b",".join([text] * count))
    return {
        "backslashes": _one_row(b"", b'"' + b"\\\\" * (size // 2) + b'"'),
        "nesting": _one_row(b"", b"[" + _repeat(nested, size) + b"]"),
        "one-element arrays": _one_row(b"", b"[" + _repeat(b"[0]", size) + b"]"),
        "one-member runs": _one_row(_repeat(one, size), b"[]"),
        "all-escaped text": _one_row(escaped, b"[]"),
    }


def _repeat(text: bytes, size: int) -> bytes:
    return b",".join([text] * (size // (len(text) + 1) or 1))


def _one_row(records: bytes, other: bytes) -> bytes:
    data = b'{"turn":1,"step":1,"stream":[%b],"other":%b}' % (records, other)
    row = b'{"type":"assistant/attempt","seq":0,"time":1,"data":%b}\n' % data
    return v4_log(0, 3) + row


# --- the generator of the project ---


def generated_log(path: Path, *arguments: str) -> Path:
    """Write a log with the project's generator, if its folder is there."""
    command = [
        sys.executable,
        str(TOOLS / "gen_log.py"),
        "--out",
        str(path),
        *arguments,
    ]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - ours
    return path


def has_generator() -> bool:
    """Whether the project's generator is there."""
    return (TOOLS / "gen_log.py").is_file()


# --- frames ---


def split_frames(plain: bytes, policy: str) -> Iterator[bytes]:
    """Yield the plaintext of each frame; the header is always the first.

    `window` is what the harness does: a frame for each 200 ms of event time.
    """
    header, *lines = plain.splitlines(keepends=True)
    yield header
    batch: list[bytes] = []
    opened = 0
    for line in lines:
        match = TIME.search(line, 0, HEAD_BYTES)
        time = int(match[1]) if match else opened
        if batch and policy == "window" and time - opened >= WINDOW_MS:
            yield b"".join(batch)
            batch.clear()
        if not batch:
            opened = time
        batch.append(line)
        if line.startswith(b'{"type":"%b/end"' % policy.encode()):
            yield b"".join(batch)
            batch.clear()
    if batch:
        yield b"".join(batch)


def framed(plain: bytes, policy: str) -> bytes:
    """Return a log as a Zstandard file, with frames as those of the harness."""
    from dsh_codec import kernel

    return b"".join(map(kernel.encode_frame, split_frames(plain, policy)))


def _framed_notes(count: int) -> Iterator[bytes]:
    """Yield the frames of a log of notes: words and numbers, some 700 bytes of text each."""
    from dsh_codec import kernel

    chance = random.Random(SEED)
    header = {"type": "session", "version": 4, "id": "notes", "createdAt": 0}
    yield kernel.encode_frame(
        line_of(header | {"isSeeded": False, "delegationDepth": 0})
    )
    for seq in range(count):
        parts = [
            chance.choice(WORDS) if chance.randrange(3) else f"{chance.getrandbits(48)}"
            for _ in range(80)
        ]
        data = {"text": " ".join(parts)}
        row = {"type": "note/made", "seq": seq, "time": 200 * seq, "data": data}
        yield kernel.encode_frame(line_of(row | {"ignorable": True}))


class Logs:
    """Logs of one size in one directory, each made when it is first asked for."""

    def __init__(self, directory: Path, *, small: bool) -> None:
        self.small = small
        self.uses_generator = has_generator() and not small
        # Logs of another version of this module are other logs.
        source = TOOLS / "gen_log.py" if self.uses_generator else None
        sources = [Path(__file__)] + ([source] if source else [])
        version = zlib.crc32(b"".join(path.read_bytes() for path in sources))
        self.directory = directory / f"{'small' if small else 'full'}-{version:08x}"
        self.directory.mkdir(parents=True, exist_ok=True)

    @property
    def origin(self) -> str:
        return "gen_log.py" if self.uses_generator else "benches/data.py"

    def large(self, policy: str | None = None, generation: str = "v4") -> Path:
        """160 MB of generation 4; small: 160 kB. The same content in the others: 690 MB of v0."""
        return self._log("large", generation, 800, policy)

    def middle(self, generation: str = "v4", policy: str | None = None) -> Path:
        """The same content in each generation: 19 MB in the fourth; small: 20 kB."""
        return self._log("middle", generation, 100, policy)

    def one_row(self, policy: str | None = None) -> Path:
        """A log with one row of 62 MB; small: 20 kB."""
        name = "one-row"
        if not self.uses_generator:
            chunks = 500 if self.small else 2_500_000
            return self._made(name, lambda: _log_bytes("v4", 1, chunks, SEED), policy)
        shape = "--turns 1 --steps 1 --tokens 2500000 --seed 8"
        return self._generated(name, shape, policy)

    def with_chunks(self, chunks: int) -> Path:
        """Settlements of so many chunks: 200,000 chunks; small: 100 chunks."""
        if self.small:
            chunks = 100
        count = 1 if self.small else max(1, 200_000 // chunks)
        name = f"chunks-{chunks}"
        return self._made(name, lambda: _log_bytes("v4", count, chunks, SEED), None)

    def prefix(self, size: int) -> Path:
        """The first rows of `large`, at least `size` bytes of them."""

        def cut() -> bytes:
            data = self.large().read_bytes()
            return data[: data.find(b"\n", min(size, len(data) - 1)) + 1]

        return self._made(f"prefix-{size}", cut, None)

    def many(self, policy: str | None = None) -> list[Path]:
        """2,000 logs of 12 kB each; small: 20."""
        count = 20 if self.small else 2_000
        directory = self.directory / f"many-{policy or 'plain'}"
        paths = sorted(directory.rglob("*.jsonl"))
        if len(paths) == count:
            return paths
        directory.mkdir(exist_ok=True)
        if policy is not None:
            for number, path in enumerate(self.many()):
                target = directory / f"{number:04}.jsonl"
                target.write_bytes(framed(path.read_bytes(), policy))
        elif self.uses_generator:
            shape = "--turns 1 --steps 2 --tokens 60 --tool-bytes 200:2000"
            generated_log(directory, *shape.split(), "--sessions", str(count))
        else:
            for number in range(count):
                path = directory / f"{number:04}.jsonl"
                path.write_bytes(v4_log(4, 200, seed=100 * number))
        return sorted(directory.rglob("*.jsonl"))

    def tiny_frames(self) -> Path:
        """115,000 frames of one short row each, 50 MB; small: 200 frames."""
        count = 200 if self.small else 115_000
        path = self.directory / f"tiny-frames-{count}.zstd"
        if not path.exists():
            _write(path, b"".join(_framed_notes(count)))
        return path

    def framed_notes(self, size: int) -> Path:
        """A log of short rows in frames of their own, of at least `size` bytes; small: 20 kB."""
        size = 20_000 if self.small else size
        path = self.directory / f"notes-{size}" / "session.v4.jsonl.zstd"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            frames = _framed_notes(size)
            data = bytearray()
            while len(data) < size:
                data += next(frames)
            _write(path, bytes(data))
        return path

    def root(self, policy: str | None = None) -> Path:
        """A root of 2,000 sessions of 150 kB of generation 4; small: 20."""
        count = 20 if self.small else 2_000
        root = self.directory / f"root-{policy or 'plain'}"
        if len(list(root.rglob("session.v4.*"))) == count:
            return root
        root.mkdir(exist_ok=True)
        if policy is not None:
            plain = self.root()
            for path in sorted(plain.rglob("session.v4.jsonl")):
                target = root / path.relative_to(plain).with_suffix(".jsonl.zstd")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(framed(path.read_bytes(), policy))
        elif self.uses_generator:
            shape = "--turns 3 --steps 4 --tokens 150"
            generated_log(root, *shape.split(), "--sessions", str(count))
        else:
            for number in range(count):
                path = root / f"s{number}" / "session.v4.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(v4_log(10, 200, seed=100 * number))
        return root

    def listing(self, policy: str | None = None) -> Path:
        """A root of 10,000 sessions in 20 projects; small: 40."""
        count = 40 if self.small else 10_000
        root = self.directory / f"listing-{policy or 'plain'}"
        name = "session.v4.jsonl" if policy is None else "session.v4.jsonl.zstd"
        if len(list(root.rglob(name))) == count:
            return root
        plain = v4_log(4, 100)
        data = plain if policy is None else framed(plain, policy)
        for number in range(count):
            path = root / f"p{number % 20}" / f"s{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return root

    def _log(self, name: str, generation: str, turns: int, policy: str | None) -> Path:
        name = f"{name}-{generation}"
        if self.uses_generator:
            shape = f"--format {generation} --turns {turns} --steps 10 --tokens 400"
            return self._generated(name, f"{shape} --seed {SEED}", policy)
        # 1,000 settlements of 400 chunks are what 100 turns of the generator stream.
        settlements = turns // 10 if self.small else turns * 20
        chunks = 60 if self.small else 400
        return self._made(
            name, lambda: _log_bytes(generation, settlements, chunks, SEED), policy
        )

    def _generated(self, name: str, shape: str, policy: str | None) -> Path:
        path = self.directory / f"{name}.jsonl"
        if not path.exists():
            generated_log(path.with_suffix(".part"), *shape.split()).rename(path)
        return self._framed(path, policy)

    def _made(self, name: str, make: Callable[[], bytes], policy: str | None) -> Path:
        path = self.directory / f"{name}.jsonl"
        if not path.exists():
            _write(path, make())
        return self._framed(path, policy)

    def _framed(self, plain: Path, policy: str | None) -> Path:
        if policy is None:
            return plain
        path = plain.with_suffix(f".{policy}.zstd")
        if not path.exists():
            _write(path, framed(plain.read_bytes(), policy))
        return path


def _write(path: Path, data: bytes) -> None:
    """Write a whole file or none: a run that was broken off is no data for the next."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    part.rename(path)
