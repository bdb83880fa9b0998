"""Streams from the bytes of rows to JSON text, against orjson around Python code of spec 20."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from compare import Contender
from data import expand_simply
from dsh_codec import _native, _pure
from peers import SETTLEMENTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compare import Comparison
    from data import Logs


def settlements_of(data: bytes) -> list[bytes]:
    """Return the settlements of a log, without their line feeds."""
    marks = [b'{"type":"%b",' % kind.encode() for kind in SETTLEMENTS]
    return [line for line in data.split(b"\n") if line.startswith(tuple(marks))]


def groups_of(data: bytes) -> list[list[bytes]]:
    """Return the chunk rows of each attempt of a log of generation 0."""
    groups: list[list[bytes]] = []
    is_open = False
    for line in data.split(b"\n"):
        is_chunk = line.startswith(b'{"type":"assistant/chunk",')
        if is_chunk and not is_open:
            groups.append([])
        if is_chunk:
            groups[-1].append(line)
        is_open = is_chunk and b'"chunk":{"type":"finish",' not in line
    return groups


# --- expansion ---


def expand_with_orjson(rows: Iterable[bytes], *, checked: bool) -> bytes:
    """Return a line for each timed chunk, through Python values."""
    expand = _pure.iter_expand if checked else expand_simply
    return b"".join(
        orjson.dumps({"time": time, "chunk": chunk}, option=orjson.OPT_APPEND_NEWLINE)
        for row in rows
        for time, chunk in expand(orjson.loads(row)["data"]["stream"])
    )


def expand_with_kernel(rows: Iterable[bytes]) -> bytes:
    return b"".join(map(_native.expand_lines, rows))


@pytest.mark.parametrize(("chunks", "floor", "aim"), [(2_000, 5, 10), (50_000, 12, 30)])
def bench_expand_lines(
    compare: Comparison, logs: Logs, chunks: int, floor: float, aim: float
) -> None:
    rows = settlements_of(logs.with_chunks(chunks).read_bytes())
    expected = expand_with_orjson(rows, checked=True)
    assert expected.count(b"\n") >= 100
    compare(
        f"expand {chunks:,}, text to text",
        [
            Contender(
                "orjson + expand + orjson",
                lambda: expand_with_orjson(rows, checked=True),
                expected,
                floor,
                aim,
            ),
            # For scale: the shortest Python, which checks nothing.
            Contender(
                "orjson, unchecked",
                lambda: expand_with_orjson(rows, checked=False),
                expected,
            ),
        ],
        Contender("native", lambda: expand_with_kernel(rows), expected),
        size=sum(map(len, rows)),
    )


# --- packing ---


def pack_simply(timed: Iterable[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Pack timed chunks in the shortest Python: ids, names and gaps are not checked."""
    records: list[dict[str, Any]] = []
    last: dict[str, Any] = {"type": ""}
    last_time = 0
    for time, chunk in timed:
        kind = chunk["type"]
        key = {"tool-call-delta": "args"}.get(kind, "texts")
        if not kind.endswith("-delta"):
            last = {"type": "chunk", "time": time, "chunk": chunk}
            records.append(last)
            continue
        fragment = chunk["argumentsDelta" if key == "args" else "text"]
        run = kind.removesuffix("delta") + "chunks"
        if (
            last["type"] == run
            and last["index"] == chunk["index"]
            and last.get("id") == chunk.get("id")
            and last.get("name") == chunk.get("name")
        ):
            last["dt"].append(time - last_time)
            last[key].append(fragment)
        else:
            last = {"type": run, "time0": time, "index": chunk["index"], "dt": []}
            last |= {name: chunk[name] for name in ("id", "name") if name in chunk}
            last[key] = [fragment]
            records.append(last)
        last_time = time
    return records


def pack_with_orjson(groups: Iterable[list[bytes]], *, checked: bool) -> list[bytes]:
    """Return the records of each attempt, through Python values."""
    pack = _pure.pack if checked else pack_simply
    texts = []
    for rows in groups:
        values = map(orjson.loads, rows)
        timed = ((row["time"], row["data"]["chunk"]) for row in values)
        texts.append(orjson.dumps(pack(timed)))
    return texts


def bench_pack_lines(compare: Comparison, logs: Logs) -> None:
    groups = groups_of(logs.middle("v0").read_bytes())
    expected = pack_with_orjson(groups, checked=True)
    assert sum(map(len, groups)) > len(groups) > 0
    compare(
        "pack v0 rows, text to text",
        [
            Contender(
                "orjson + pack + orjson",
                lambda: pack_with_orjson(groups, checked=True),
                expected,
                15,
                30,
            ),
            # For scale: the shortest Python, which checks nothing.
            Contender(
                "orjson, unchecked",
                lambda: pack_with_orjson(groups, checked=False),
                expected,
            ),
        ],
        Contender("native", lambda: list(map(_native.pack_lines, groups)), expected),
        size=sum(len(row) for rows in groups for row in rows),
    )
