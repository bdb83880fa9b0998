"""Parsing and writing of rows as Python values, against orjson."""

from __future__ import annotations

import importlib
from typing import Any

import orjson
import pytest

from data import v4_log

SHAPES = {"short-rows": (200, 8), "medium": (100, 400), "long-rows": (2, 50_000)}


@pytest.mark.parametrize("implementation", ["orjson", "native", "pure"])
@pytest.mark.parametrize("shape", SHAPES)
def bench_parse(benchmark: Any, shape: str, implementation: str) -> None:
    """At least 0.9 times as fast as orjson."""
    lines = v4_log(*SHAPES[shape]).split(b"\n")[:-1]
    parse: Any = orjson.loads
    if implementation != "orjson":
        parse = importlib.import_module(f"dsh_codec._{implementation}").parse

    def run() -> Any:
        value = None
        for line in lines:
            value = parse(line)
        return value

    benchmark.group = f"parse-{shape}"
    benchmark.extra_info.update(
        bytes=sum(map(len, lines)), kept=False, baseline=implementation == "orjson"
    )
    assert benchmark(run) == orjson.loads(lines[-1])


@pytest.mark.parametrize("implementation", ["orjson", "native", "pure"])
def bench_dump(benchmark: Any, implementation: str) -> None:
    lines = v4_log(*SHAPES["medium"]).split(b"\n")[:-1]
    values = [orjson.loads(line) for line in lines]
    dump: Any = orjson.dumps
    if implementation != "orjson":
        dump = importlib.import_module(f"dsh_codec._{implementation}").dump
    benchmark.group = "dump-medium"
    benchmark.extra_info.update(baseline=implementation == "orjson")
    assert benchmark(lambda: [dump(value) for value in values]) == lines
