"""Parsing and writing of rows as Python values, against orjson."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from compare import Contender
from dsh_codec import _native

if TYPE_CHECKING:
    from collections.abc import Callable

    from compare import Comparison
    from data import Logs


def lines_of(logs: Logs) -> list[bytes]:
    return logs.middle().read_bytes().split(b"\n")[:-1]


def bench_parse(compare: Comparison, logs: Logs) -> None:
    lines = lines_of(logs)
    for line in lines:
        assert _native.parse(line) == orjson.loads(line)
    last = orjson.loads(lines[-1])

    def last_of(parse: Callable[[bytes], Any]) -> Any:
        value = None
        for line in lines:
            value = parse(line)
        return value

    compare(
        "parse the rows of a v4 log",
        [Contender("orjson", lambda: last_of(orjson.loads), last, 1, 1.3)],
        Contender("native", lambda: last_of(_native.parse), last),
        size=sum(map(len, lines)),
        rows=len(lines),
        values="dropped",
    )


def bench_dump(compare: Comparison, logs: Logs) -> None:
    lines = lines_of(logs)
    values = list(map(orjson.loads, lines))
    compare(
        "dump the rows of a v4 log",
        [Contender("orjson", lambda: list(map(orjson.dumps, values)), lines)],
        Contender("native", lambda: list(map(_native.dump, values)), lines),
        size=sum(map(len, lines)),
        rows=len(lines),
        values="kept",
    )
