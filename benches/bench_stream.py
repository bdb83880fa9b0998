"""Expansion, packing and reading of one settlement, native against pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from compare import Contender
from data import expand_simply, run_of
from dsh_codec import _native, _pure
from peers import SETTLEMENTS, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from compare import Comparison
    from data import Logs

EXPAND = [(200, 2.5, 3), (2_000, 2.5, 3), (50_000, 3, 4)]
SIZES = [200, 2_000, 50_000]


@pytest.mark.parametrize(("chunks", "floor", "aim"), EXPAND)
def bench_expand(compare: Comparison, chunks: int, floor: float, aim: float) -> None:
    records = run_of(chunks)
    expected = list(expand_simply(records))
    assert len(expected) == chunks
    times, chunk_list = zip(*expected, strict=True)
    compare(
        f"expand {chunks:,} to Python values",
        [
            Contender("pure", lambda: _pure.expand(records), expected, floor, aim),
            # For scale: as many tuples and dicts, made by the interpreter's own C code.
            Contender(
                "dict.copy and zip",
                lambda: list(zip(times, map(dict.copy, chunk_list), strict=True)),
                expected,
            ),
        ],
        Contender("native", lambda: _native.expand(records), expected),
        values="kept",
    )


@pytest.mark.parametrize("chunks", SIZES)
def bench_iter_expand(compare: Comparison, chunks: int) -> None:
    records = run_of(chunks)
    last = list(expand_simply(records))[-1]

    def last_of(kernel: ModuleType) -> Any:
        return deque(kernel.iter_expand(records), 1)[0]

    compare(
        f"iter_expand {chunks:,}",
        [Contender("pure", lambda: last_of(_pure), last)],
        Contender("native", lambda: last_of(_native), last),
        values="dropped",
    )


@pytest.mark.parametrize("chunks", SIZES)
def bench_pack(compare: Comparison, chunks: int) -> None:
    records = run_of(chunks)
    timed = _pure.expand(records)
    compare(
        f"pack {chunks:,} timed chunks",
        [Contender("pure", lambda: _pure.pack(timed), records, 2, 3.5)],
        Contender("native", lambda: _native.pack(timed), records),
        values="kept",
    )


@pytest.mark.parametrize("chunks", SIZES)
def bench_join_text(compare: Comparison, chunks: int) -> None:
    records = run_of(chunks)
    text = "".join(records[0]["texts"])
    compare(
        f"join_text {chunks:,}",
        [Contender("pure", lambda: _pure.join_text(records), text)],
        Contender("native", lambda: _native.join_text(records), text),
        values="kept",
    )


def expanded_text(data: bytes) -> Iterator[bytes]:
    """Yield a line for each timed chunk of a log of generation 4."""
    for row in rows_of(data):
        if row["type"] in SETTLEMENTS:
            for time, chunk in _pure.iter_expand(row["data"]["stream"]):
                yield orjson.dumps({"time": time, "chunk": chunk})


@pytest.mark.parametrize(("chunks", "floor", "aim"), [(2_000, 5, 10), (50_000, 12, 30)])
def bench_expand_text(
    compare: Comparison, logs: Logs, chunks: int, floor: float, aim: float
) -> None:
    operation, peer = f"expand {chunks:,}, text to text", "orjson + expand + orjson"
    expand = getattr(_native, "expand_text", None)
    if expand is None:
        compare.not_built(operation, peer, floor, aim, "text to text in the kernel")
        return
    data = logs.with_chunks(chunks).read_bytes()
    expected = b"".join(line + b"\n" for line in expanded_text(data))
    compare(
        operation,
        [
            Contender(
                peer,
                lambda: b"".join(line + b"\n" for line in expanded_text(data)),
                expected,
                floor,
                aim,
            )
        ],
        Contender("native", lambda: expand(data), expected),
        size=len(data),
    )


def packed_text(data: bytes) -> Iterator[bytes]:
    """Yield a line for each attempt of a log of generation 0 with chunk rows."""
    place: dict[str, Any] = {}
    timed: list[Any] = []
    for row in rows_of(data):
        if row["type"] != "assistant/chunk":
            continue
        chunk = row["data"]["chunk"]
        place = {"turn": row["data"]["turn"], "step": row["data"]["step"]}
        timed.append((row["time"], chunk))
        if chunk["type"] == "finish":
            yield orjson.dumps(place | {"stream": _pure.pack(timed)})
            timed.clear()


def bench_pack_text(compare: Comparison, logs: Logs) -> None:
    operation, peer = "pack v0 rows, text to text", "orjson + pack + orjson"
    pack = getattr(_native, "pack_text", None)
    if pack is None:
        compare.not_built(operation, peer, 15, 30, "text to text in the kernel")
        return
    data = logs.middle("v0").read_bytes()
    expected = b"".join(line + b"\n" for line in packed_text(data))
    compare(
        operation,
        [
            Contender(
                peer,
                lambda: b"".join(line + b"\n" for line in packed_text(data)),
                expected,
                15,
                30,
            )
        ],
        Contender("native", lambda: pack(data), expected),
        size=len(data),
    )
