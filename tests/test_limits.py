"""Each limit has its default, its keyword and its error. Design 5."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import dsh_codec
from dsh_codec import limits
from dsh_codec.errors import LimitExceededError

STUB = Path(dsh_codec.__file__).with_name("_kernel.pyi")
HEADER = {
    "type": "session",
    "version": 0,
    "id": "s",
    "createdAt": 1,
    "delegationDepth": 0,
}


def line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def row(depth: int) -> bytes:
    return b'{"seq":0,"data":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}\n"


def packed(count: int) -> bytes:
    data = {
        "turn": 1,
        "step": 1,
        "index": 0,
        "dt": [0] * (count - 1),
        "texts": ["x"] * count,
    }
    return line({"type": "text-chunks", "seq0": 0, "time0": 1, "data": data})


def test_defaults_of_the_interface_are_the_limits():
    defaults: dict[str, set[int]] = {}
    for node in ast.walk(ast.parse(STUB.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            for argument, default in pairs:
                if argument.arg.startswith("max_") and default is not None:
                    value = ast.literal_eval(default)
                    defaults.setdefault(argument.arg, set()).add(value)
    assert defaults == {
        "max_depth": {limits.MAX_DEPTH},
        "max_row_bytes": {limits.MAX_ROW_BYTES},
        "max_packed_events": {limits.MAX_PACKED_EVENTS},
        "max_frame_plain_bytes": {limits.MAX_FRAME_PLAIN_BYTES},
        "max_plain_bytes": {limits.MAX_FRAME_PLAIN_BYTES},
        "max_entries": {limits.MAX_SAFE_INTEGER},
        "max_frames": {None},
    }


@pytest.mark.parametrize(
    ("mode", "damaged"),
    [("strict", False), ("recoverable", False), ("recoverable", True)],
    ids=["strict", "recoverable", "behind-an-issue"],
)
@pytest.mark.parametrize(
    ("good", "bad", "limit", "value"),
    [
        (row(5), row(6), "max_depth", 5),
        (packed(5), packed(6), "max_packed_events", 5),
        (b'{"seq":0}' + b" " * 190 + b"\n", b'{"seq":0}' + b" " * 191 + b"\n", "max_row_bytes", 200),
    ],
    ids=["depth", "packed", "row"],
)  # fmt: skip
def test_scan_limit(kernel, mode, damaged, good, bad, limit, value):
    """A limit is one in both modes, and also where rows are not accepted any more."""
    start = line(HEADER) + (b"[]\n" if damaged else b"")
    scanner = kernel.RowScanner(mode=mode, **{limit: value})
    scanner.feed(start + good)
    assert scanner.finish().event_count == (
        0 if damaged else 5 if limit == "max_packed_events" else 1
    )
    scanner = kernel.RowScanner(mode=mode, **{limit: value})
    with pytest.raises(LimitExceededError) as caught:
        scanner.feed(start + bad)
    error = caught.value
    assert (error.limit, error.value) == (limit, value)
    assert (error.line, error.offset) == (3 if damaged else 2, len(start))
    with pytest.raises(LimitExceededError):
        scanner.finish()


def test_scan_limit_does_not_depend_on_the_cut(kernel):
    data = line(HEADER) + b"x" * 500
    for size in (1, 7, 1000):
        scanner = kernel.RowScanner(max_row_bytes=100)
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        with pytest.raises(LimitExceededError) as caught:
            list(map(scanner.feed, pieces))
        assert (caught.value.line, caught.value.offset) == (2, len(line(HEADER)))


def test_header_limits(kernel):
    for options in ({"max_row_bytes": 10}, {"max_depth": 0}):
        scanner = kernel.RowScanner(**options)
        with pytest.raises(LimitExceededError) as caught:
            scanner.feed(line(HEADER))
        assert (caught.value.line, caught.value.offset) == (1, 0)


def test_depth_of_a_row_is_exact(kernel):
    """1,024 levels are accepted, the object of the row included."""
    for depth, accepted in ((1024, True), (1025, False)):
        scanner = kernel.RowScanner()
        scanner.feed(line(HEADER))
        if accepted:
            assert len(scanner.feed(row(depth))) == 1
        else:
            with pytest.raises(LimitExceededError):
                scanner.feed(row(depth))


def test_ranges_are_not_expanded_by_a_scan(kernel):
    """A row of some bytes cannot make the scan list millions of seqs."""
    count = 1_000_000
    rows = packed(count) + b"".join(
        line({"type": "x", "seq": count + i, "sourceEventSeqs": [[0, count - 1]]})
        for i in range(2000)
    )
    scanner = kernel.RowScanner()
    scanner.feed(line(HEADER) + rows)
    assert scanner.finish().event_count == count + 2000


def test_decoded_seqs_limit(kernel):
    """A range of twenty bytes can name 2^53 events; so many are never written out."""
    with pytest.raises(LimitExceededError) as caught:
        kernel.decode_seqs([[0, 2**53 - 2]], codec="session")
    assert (caught.value.limit, caught.value.value) == ("max_entries", 16_777_216)
    assert kernel.decode_seqs([[3, 5]], codec="session") == [3, 4, 5]


def test_depth_of_a_chunk_row_counts_however_it_is_spelled(kernel):
    """Generation 0 has a shorter way for rows in the harness's spelling; limits hold there."""
    head = (
        b'{"type":"session","version":0,"id":"s","createdAt":1,"delegationDepth":0}\n'
    )
    chunk = b'{"type":"text-delta","index":0,"text":"x"}'
    data = b'"data":{"turn":1,"step":1,"chunk":' + chunk + b"}}\n"
    usual = b'{"type":"assistant/chunk","seq":0,"time":7,' + data
    for line in (usual, usual.replace(b'"turn":1', b'"turn": 1')):
        assert kernel.check_bytes(head + line, max_depth=3).scan.event_count == 1
        with pytest.raises(LimitExceededError) as caught:
            kernel.check_bytes(head + line, max_depth=2)
        assert (caught.value.limit, caught.value.line) == ("max_depth", 2)
