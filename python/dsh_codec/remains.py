"""What can still be seen in the end of a file that no reader accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_codec._backend import kernel
from dsh_codec.errors import DshCodecError, FrameError
from dsh_codec.source import ZSTD_MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["holds_turn_end"]


def holds_turn_end(tail: bytes, *, start: int = 0) -> bool:
    """Whether the end of a turn can be seen in bytes of a Zstandard file that would be cut.

    Args:
        tail: The bytes.
        start: Where the first frame that counts may start.

    Note:
        A completed turn behind damage proves that the damage is no interrupted append: cutting
        there would silently lose that turn. Spec: 10 §8.1, rationale.
    """
    start = tail.find(ZSTD_MAGIC, start)
    while start >= 0:
        if any(map(_is_turn_end, _lines_of(tail[start:]))):
            return True
        start = tail.find(ZSTD_MAGIC, start + 1)
    return False


def _lines_of(data: bytes) -> Iterator[bytes]:
    """Yield the complete lines of the frame at the start, whatever its checksum says."""
    try:
        frames = kernel.scan_frames(data, max_frames=1).frames
    except FrameError:
        return
    # Without its last byte a frame is a torn one, whose sound blocks can be read.
    part = data[: frames[0][1] - 1] if frames else data
    try:
        text = kernel.recover_tail(part)
    except DshCodecError:
        return
    yield from text.split(b"\n")


def _is_turn_end(line: bytes) -> bool:
    if b"turn" not in line:
        return False
    try:
        row = kernel.parse(line)
    except DshCodecError:
        return False
    return type(row) is dict and row.get("type") == "turn/end"
