"""How large the same content is: bytes for each streamed token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench_check import totals
from compare import Line
from data import POLICIES
from dsh_codec import _native as kernel
from peers import KEYS, SETTLEMENTS, rows_of

if TYPE_CHECKING:
    from compare import Comparison
    from data import Logs

STORED = [
    ("v0", None),
    ("v0", "window"),
    ("v0-packed", None),
    ("v0-packed", "window"),
    ("v4", None),
    *(("v4", policy) for policy in POLICIES),
]


def token_count(data: bytes) -> int:
    """Return the fragments of all runs of a log of generation 4."""
    return sum(
        len(record["dt"]) + 1
        for row in rows_of(data)
        if row["type"] in SETTLEMENTS
        for record in row["data"]["stream"]
        if record["type"] in KEYS
    )


@pytest.mark.parametrize(("generation", "policy"), STORED)
def bench_size(
    compare: Comparison, logs: Logs, generation: str, policy: str | None
) -> None:
    plain = logs.middle()
    path = logs.middle(generation, policy)
    found = kernel.check_file(path)
    assert totals(found)[1] == totals(kernel.check_file(plain))[1]
    tokens = token_count(plain.read_bytes())
    container = "plain" if policy is None else f"zstd, frame: {policy}"
    share = found.file_bytes / plain.stat().st_size
    detail = f"{share:.2f} of v4 plain, {tokens:,} tokens"
    if found.frame_count is not None:
        detail += f", {found.frame_count:,} frames"
    compare.line(
        Line(
            f"log size, {generation} {container}",
            "",
            found.file_bytes / tokens,
            unit="B/token",
            better="less",
            detail=detail,
        )
    )
