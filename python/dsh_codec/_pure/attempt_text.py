"""The stream of one attempt as JSON text. Spec: 20 §3, §4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_codec._pure.buffer import bytes_of
from dsh_codec._pure.columns import (
    StoredStream,
    checked_records,  # pyright: ignore[reportPrivateUsage] -- no part of the interface
)
from dsh_codec._pure.json import dump
from dsh_codec._pure.stream import expand
from dsh_codec.limits import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer


def expand_lines(
    rows: StoredStream | Buffer | Sequence[Buffer],
    /,
    *,
    prefix: Buffer = b"",
    max_depth: int = MAX_DEPTH,
) -> bytes:
    """Write the timed chunks of an attempt as JSON lines. See `_kernel.pyi`."""
    start = b"{" + bytes_of(prefix) + (b"," if bytes_of(prefix) else b"")
    lines = []
    for time, chunk in expand(_records_of(rows, max_depth)):
        line = dump({"time": time, "chunk": chunk}, max_depth=max_depth + 1)
        lines.append(line.replace(b"{", start, 1) + b"\n")
    return b"".join(lines)


def pack_lines(
    rows: StoredStream | Buffer | Sequence[Buffer],
    /,
    *,
    max_depth: int = MAX_DEPTH,
) -> bytes:
    """Write the records of an attempt as a JSON array. See `_kernel.pyi`."""
    return dump(_records_of(rows, max_depth), max_depth=max_depth + 1)


def _records_of(
    rows: StoredStream | Buffer | Sequence[Buffer], max_depth: int
) -> list[Any]:
    if not isinstance(rows, StoredStream):
        rows = StoredStream(rows, max_depth=max_depth)
    return checked_records(rows)
