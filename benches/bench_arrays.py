"""Columns of a whole log in the table; `bench_columns` looks at them closely."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from bench_columns import run
from compare import Contender

if TYPE_CHECKING:
    from compare import Comparison
    from data import Logs


def digest(columns: Any) -> list[tuple[str, int, int]]:
    """Return type, length and checksum of every column."""
    return [(array.dtype.str, len(array), zlib.crc32(array)) for array in columns]


def bench_log_columns(compare: Comparison, logs: Logs) -> None:
    data = logs.large().read_bytes()
    expected = digest(run("orjson", data))

    def contender(name: str, label: str) -> Contender:
        return Contender(label, lambda: run(name, data), expected, 4, 8, digest)

    peer = contender("orjson", "orjson + NumPy")
    size = len(data)
    compare(
        "columns from log bytes",
        [peer],
        contender("native", "native"),
        size=size,
        values="kept",
    )
    compare(
        "columns, Log.columns()",
        [peer],
        contender("log", "log"),
        size=size,
        values="kept",
    )
