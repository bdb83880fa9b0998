"""Small logs written out by hand, and where larger ones lie."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from dsh_codec import DshCodecError, kernel

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

HERE = Path(__file__).resolve().parent
DEMO = HERE / "data" / "demo"
SHARED = HERE.parent.parent / "shared"

HEADER = (
    b'{"type":"session","version":4,"id":"s-1","createdAt":1000,"cwd":"/w",'
    b'"isSeeded":false,"delegationDepth":0}\n'
)
HEADER_V0 = (
    b'{"type":"session","version":0,"id":"s-0","createdAt":1000,"delegationDepth":0}\n'
)
ROWS = (
    b'{"type":"turn/start","seq":0,"time":1001,"data":{"turn":1}}\n',
    b'{"type":"step/start","seq":1,"time":1002,"data":{"turn":1,"step":1}}\n',
    (
        b'{"type":"assistant/attempt","seq":2,"time":1010,"data":{"turn":1,"step":1,"stream":'
        b'[{"type":"text-chunks","time0":1003,"index":0,"dt":[2],"texts":["a","b"]},'
        b'{"type":"chunk","time":1009,"chunk":'
        b'{"type":"finish","reason":{"kind":"error"}}}]}}\n'
    ),
    b'{"type":"step/end","seq":3,"time":1011,"data":{"turn":1,"step":1}}\n',
    (
        b'{"type":"turn/end","seq":4,"time":1012,'
        b'"data":{"turn":1,"reason":{"kind":"completed"}}}\n'
    ),
)
PLAIN = HEADER + b"".join(ROWS)


def zstd(*batches: bytes) -> bytes:
    """Return a Zstandard log with one frame a batch."""
    return b"".join(map(kernel.encode_frame, batches))


ZSTD = zstd(HEADER, b"".join(ROWS[:2]), b"".join(ROWS[2:]))


def read_on(items: Iterable[T]) -> tuple[list[T], DshCodecError | None]:
    """Return what comes before the first refusal, and the refusal."""
    seen: list[T] = []
    try:
        for item in items:
            seen.append(item)  # noqa: PERF402 - what came before the error is wanted
    except DshCodecError as error:
        return seen, error
    return seen, None


def seqs_and_error(items: Iterable[Any]) -> tuple[list[int], Any]:
    """Return the seqs of events or attempts before the first refusal, and the refusal."""
    seen, error = read_on(items)
    return [item.seq for item in seen], error


def shared_folder(variable: str, *parts: str) -> Path:
    """Return a folder of shared test data, or skip the test that asks for it."""
    folder = Path(os.environ.get(variable, SHARED.joinpath(*parts)))
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} (set {variable})", allow_module_level=True)
    return folder
