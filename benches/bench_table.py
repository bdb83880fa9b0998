"""Chunks of a log as a data frame, against a loop over orjson that fills lists for polars."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

import dsh_codec as dsh
from compare import Contender
from peers import KEYS, SETTLEMENTS

if TYPE_CHECKING:
    from pathlib import Path

    from compare import Comparison
    from data import Logs

COLUMNS = (
    "session",
    "seq",
    "turn",
    "step",
    "attempt",
    "outcome",
    "own",
    "record",
    "index",
    "kind",
    "time",
    "token",
    "gap",
    "byte_len",
)


def frame_with_orjson(path: Path) -> pl.DataFrame:
    """Return the chunks of a log of generation 4 that is not seeded. Only JSON is checked."""
    lists: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    counts: dict[Any, int] = {}
    with path.open("rb") as file:
        session = orjson.loads(file.readline())["id"]
        for line in file:
            row = orjson.loads(line)
            if row["type"] in SETTLEMENTS:
                add_settlement(lists, counts, session, row)
    return pl.DataFrame(lists).with_columns(
        pl.col("session", "outcome", "kind").cast(pl.Categorical),
        pl.col("record").cast(pl.Int32),
        pl.col("time").cast(pl.Datetime("ms", "UTC")),
    )


def add_settlement(
    lists: dict[str, list[Any]], counts: dict[Any, int], session: str, row: Any
) -> None:
    data = row["data"]
    place = data["turn"], data["step"]
    counts[place] = number = counts.get(place, 0) + 1
    outcome = "failed"
    if row["type"] == "assistant/message":
        outcome = "interrupted" if data.get("interrupted") else "message"
    before = len(lists["time"])
    last = None
    for position, record in enumerate(data["stream"]):
        kind = record["type"]
        if kind == "chunk":
            chunk = record["chunk"]
            lists["record"].append(position)
            lists["kind"].append(chunk["type"])
            lists["index"].append(chunk.get("index"))
            lists["time"].append(record["time"])
            lists["token"].append(False)
            lists["gap"].append(None)
            lists["byte_len"].append(0)
            continue
        members = record[KEYS[kind][1]]
        count = len(members)
        times = list(accumulate(record["dt"], initial=record["time0"]))
        lists["record"] += [position] * count
        lists["kind"] += [kind.removesuffix("-chunks") + "-delta"] * count
        lists["index"] += [record["index"]] * count
        lists["time"] += times
        lists["byte_len"] += [len(member.encode()) for member in members]
        is_named = "name" in record
        tokens, gaps = lists["token"], lists["gap"]
        for time, member in zip(times, members, strict=True):
            is_token = is_named or member != ""
            tokens.append(is_token)
            gaps.append(time - last if is_token and last is not None else None)
            if is_token:
                last = time
    count = len(lists["time"]) - before
    fixed = (session, row["seq"], *place, number, outcome, True)
    for name, value in zip(COLUMNS, fixed, strict=False):
        lists[name] += [value] * count


def digest(frame: pl.DataFrame) -> list[Any]:
    """Return what tells frames apart: a sum of the hashes of each column's values as text."""
    sums = []
    for column in frame:
        texts = column.cast(pl.String).fill_null("null")
        sums.append((column.name, (texts.hash(7) % 2**40).sum(), texts[0], texts[-1]))
    return [frame.height, frame.schema, *sums]


def bench_chunks_to_polars(compare: Comparison, logs: Logs) -> None:
    """Table of all chunks; at least 8 times as fast as orjson and polars."""
    path = logs.large()
    expected = digest(frame_with_orjson(path))
    peer = Contender(
        "orjson + polars",
        lambda: frame_with_orjson(path),
        expected,
        floor=8,
        view=digest,
    )
    ours = Contender(
        "dsh_codec.table",
        lambda: pl.DataFrame(dsh.table.chunks(path)),
        expected,
        view=digest,
    )
    compare(
        "table of chunks, to polars",
        [peer],
        ours,
        size=path.stat().st_size,
        rows=expected[0],
        values="kept",
    )
