"""The text of a log as bytes, row by row: what has to stay equal when a log is rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_codec._backend import kernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsh_codec.log import Log
    from dsh_codec.row import Event

__all__ = ["header_line", "raw_rows"]


def header_line(log: Log) -> bytes:
    """Return the header row with its line feed, as it is stored.

    Args:
        log: A log that was opened, hence with a sound header row.

    Raises:
        FrameError, OSError: The file cannot be read.
    """
    line = bytearray()
    reader = kernel.FrameReader()
    for data in log.source.pieces(0, log.file_bytes):
        if log.compression == "none":
            line += data
            end = line.find(b"\n") + 1
            if end:
                return bytes(line[:end])
            continue
        reader.feed(data)
        while (piece := reader.read()) is not None:
            line += piece.data
            if piece.last:
                return bytes(line)
    message = "the header row of an open log has gone"
    raise AssertionError(message)


def raw_rows(events: Iterable[Event]) -> Iterator[Event]:
    """Yield one event for each row: the first of every packed row, and all others."""
    last = -1
    for event in events:
        if event.offset != last:
            last = event.offset
            yield event
