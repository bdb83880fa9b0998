"""Bytes-like arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer


def view_of(data: Buffer) -> memoryview:
    """Return the bytes of a contiguous buffer without copying them.

    Raises:
        TypeError: The value is no bytes-like object.
        BufferError: Its memory is not contiguous.
    """
    view = memoryview(data)
    if not view.c_contiguous:
        message = "the buffer is not contiguous"
        raise BufferError(message)
    return view.cast("B") if view.nbytes else memoryview(b"")


def bytes_of(data: Buffer) -> bytes:
    """Return the bytes of a contiguous buffer; what is `bytes` already is not copied."""
    return data if type(data) is bytes else bytes(view_of(data))


def pieces_of(view: memoryview, piece_bytes: int) -> Iterator[bytes]:
    """Yield copies of at most `piece_bytes` bytes of a buffer, in order."""
    for start in range(0, len(view), piece_bytes):
        yield bytes(view[start : start + piece_bytes])
