"""The file of a replay sidecar: its name, its rows, and how it is stored. Spec: 60 §6."""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Any, Final, Self

from dsh_codec._backend import kernel
from dsh_codec.errors import (
    DshCodecError,
    JsonSyntaxError,
    LimitExceededError,
    SidecarError,
)
from dsh_codec.events import is_array, is_equal_number, is_object
from dsh_codec.find import CURRENT_GENERATION
from dsh_codec.limits import MAX_DEPTH, MAX_FRAME_PLAIN_BYTES, MAX_ROW_BYTES
from dsh_codec.source import PIECE_BYTES, identify, open_source
from dsh_codec.values import is_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from dsh_codec._types import Compression
    from dsh_codec.source import Source, SourceLike

__all__ = [
    "SIDECAR_VERSION",
    "Sidecar",
    "SidecarWriter",
    "sidecar_filename",
    "stored",
]

SIDECAR_VERSION: Final = 1
"""Version of sidecars that is written, and the only one that is read. Spec: 60 §6.1."""

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")

_FRAME_BYTES: Final = 1 << 20
"""Bytes of text in a frame. Choice: enough to compress well, little enough to hold."""


def sidecar_filename(*, compression: Compression) -> str:
    """Return the name of a sidecar, beside the log of its session. Spec: 60 §6.

    Example:
        >>> sidecar_filename(compression="none")
        'session.v4.replay.jsonl'
    """
    name = f"session.v{CURRENT_GENERATION}.replay.jsonl"
    return f"{name}.zstd" if compression == "zstd" else name


class Sidecar:
    """A replay sidecar that was opened.

    Attributes:
        header: The header row as JSON; the members of 60 §6.1 are checked.
        source: Where its bytes come from.
    """

    header: dict[str, Any]
    source: Source

    def __init__(self, source: Source, *, max_row_bytes: int = MAX_ROW_BYTES) -> None:
        """Read and check the header row; see `open`."""
        self.source = source
        self._max_row_bytes = max_row_bytes
        self.header = self._check_header(next(self._lines(), b""))

    @classmethod
    def open(cls, source: SourceLike, *, max_row_bytes: int = MAX_ROW_BYTES) -> Self:
        """Open a sidecar.

        Args:
            source: A path, bytes, or a binary file object; plain text or Zstandard.
            max_row_bytes: Bytes in one row.

        Raises:
            SidecarError: The header row is of another version (`version`) or damaged
                (`corrupt`).
            FrameError: A frame is damaged.
            LimitExceededError: The header row is longer than `max_row_bytes`.
            OSError: The system refuses.
        """
        opened = open_source(source)
        try:
            return cls(opened, max_row_bytes=max_row_bytes)
        except BaseException:
            opened.close()
            raise

    def __enter__(self) -> Self:
        """Return the sidecar."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file. A file object of the caller stays open."""
        self.source.close()

    @property
    def path(self) -> str | None:
        """The file; None if it came from memory or a file object."""
        return self.source.path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the attempt rows as JSON, members that are not known among them.

        Raises:
            SidecarError: A row is damaged, or of an unknown type (`corrupt`); or their number
                is not that of the header, when all are read.
            FrameError, LimitExceededError, OSError: The file cannot be read.

        Note:
            One row in memory. The members of a row are checked when it is joined or replayed.
        """
        last: float = -1
        count = 0
        for count, raw in enumerate(self.attempt_lines(), 1):
            row = self._parse(raw, count + 1)
            seq = row.get("seq")
            if row.get("type") != "attempt":
                message = f"a row has to be an attempt, not {row.get('type')!r:.64}"
                raise self._corrupt(message, line=count + 1)
            if not is_count(seq) or seq <= last:
                message = "the seqs of attempt rows have to be counts that increase"
                raise self._corrupt(message, line=count + 1)
            if not is_array(row.get("stream")):
                message = "the stream of an attempt row has to be an array"
                raise self._corrupt(message, line=count + 1)
            last = seq
            yield row
        if count != self.header["attempts"]:
            message = (
                f"the sidecar has {count} attempt rows, its header says "
                f"{self.header['attempts']}: it is not complete, or was changed"
            )
            raise self._corrupt(message)

    def attempt_lines(self) -> Iterator[bytes]:
        """Yield the attempt rows as bytes without their line feeds, unchecked.

        Raises:
            SidecarError: The last row is cut off (`corrupt`).
            FrameError, LimitExceededError, OSError: The file cannot be read.
        """
        lines = self._lines()
        next(lines, None)
        yield from lines

    def text(self) -> Iterator[bytes]:
        """Yield the rows as bytes, the header row first, each with its line feed."""
        for raw in self._lines():
            yield raw + b"\n"

    def _parse(self, raw: bytes, line: int) -> dict[str, Any]:
        try:
            row = kernel.parse(raw, max_depth=MAX_DEPTH)
        except JsonSyntaxError as error:
            message = f"the row is no JSON: {error.message}"
            raise self._corrupt(message, line=line) from error
        if not is_object(row):
            message = "the row is no JSON object"
            raise self._corrupt(message, line=line)
        return row

    def _check_header(self, raw: bytes) -> dict[str, Any]:
        header = self._parse(raw, 1)
        if header.get("type") != "dsh-replay":
            message = "the first row is no header of a replay sidecar"
            raise self._corrupt(message, line=1)
        if not is_equal_number(header.get("version"), SIDECAR_VERSION):
            message = (
                f"the sidecar has version {header.get('version')!r:.64}, this package "
                f"reads version {SIDECAR_VERSION} only"
            )
            raise SidecarError(
                message, self.path, 1, None, None, None, "60 §6.1", "version"
            )
        is_sound = (
            type(header.get("sessionId")) is str
            and all(
                is_count(header.get(key))
                for key in ("formatVersion", "eventCount", "attempts")
            )
            and all(
                type(header.get(key)) is str and _DIGEST.fullmatch(header[key])
                for key in ("sourceDigest", "assembledDigest")
            )
        )
        if not is_sound:
            message = "a member of the sidecar's header is missing or of the wrong type"
            raise self._corrupt(message, line=1)
        return header

    def _plaintext(self) -> Iterator[bytes]:
        compression, _ = identify(self.source)
        pieces = self.source.pieces(0, self.source.size_bytes)
        if compression == "none":
            yield from map(bytes, pieces)
            return
        frames = kernel.FrameScanner()
        reader = kernel.FrameReader(max_frame_plain_bytes=MAX_FRAME_PLAIN_BYTES)
        try:
            for data in pieces:
                frames.feed(data)
                reader.feed(data)
                while (piece := reader.read()) is not None:
                    yield bytes(piece.data)
        except DshCodecError as error:
            raise error.located(path=self.path) from None
        if frames.finish() is not None:
            message = "the last frame is incomplete: the sidecar was cut off"
            raise self._corrupt(message)

    def _lines(self) -> Iterator[bytes]:
        """Yield the rows without their line feeds."""
        rest: list[bytes] = []
        rest_bytes = 0
        for piece in self._plaintext():
            start = 0
            while start < len(piece):
                end = piece.find(b"\n", start)
                rest.append(piece[start : end if end >= 0 else None])
                rest_bytes += len(rest[-1])
                if rest_bytes > self._max_row_bytes:
                    limit = self._max_row_bytes
                    message = f"a row has more than {limit} bytes; raise max_row_bytes"
                    raise LimitExceededError(
                        message, self.path, *[None] * 5, "max_row_bytes", limit
                    )
                if end < 0:
                    break
                yield b"".join(rest)
                rest, rest_bytes = [], 0
                start = end + 1
        if rest_bytes:
            message = "the last row has no line feed: the sidecar was cut off"
            raise self._corrupt(message)

    def _corrupt(self, message: str, line: int | None = None) -> SidecarError:
        return SidecarError(
            message, self.path, line, None, None, None, "60 §7", "corrupt"
        )


class SidecarWriter:
    """Writes the rows of a sidecar in one pass, although its header row is known last.

    Room for the header is left at the start of the file; where it does not fit, the rows are
    moved.
    """

    def __init__(self, file: IO[bytes], *, compression: Compression = "none") -> None:
        """Take an empty file, which can be read and sought, and stays the caller's to close."""
        self._file = file
        self._compression: Compression = compression
        self._room_bytes = 0
        self._batch: list[bytes] = []
        self._batch_bytes = 0

    def reserve(self, header_bytes: int) -> None:
        """Leave room for a header row of probably so many bytes, before the first row."""
        self._room_bytes = header_bytes
        self._file.seek(header_bytes)

    def write(self, rows: bytes) -> None:
        """Add whole rows.

        Raises:
            OSError: The system refuses.
        """
        if self._compression == "none":
            self._file.write(rows)
            return
        self._batch.append(rows)
        self._batch_bytes += len(rows)
        if self._batch_bytes >= _FRAME_BYTES:
            self._end_frame()

    def finish(self, header: bytes) -> None:
        """Write the header row in front of all others.

        Raises:
            OSError: The system refuses.
        """
        if self._batch_bytes:
            self._end_frame()
        stored_header = _batch([header], self._compression)
        end = self._file.tell()
        move = len(stored_header) - self._room_bytes
        if move:
            self._move(end, move)
            self._file.truncate(end + move)
        self._file.seek(0)
        self._file.write(stored_header)
        self._file.flush()

    def _end_frame(self) -> None:
        self._file.write(_batch(self._batch, self._compression))
        self._batch, self._batch_bytes = [], 0

    def _move(self, end: int, move: int) -> None:
        """Move the rows, piece by piece, so that none is written over before it is read."""
        starts = range(self._room_bytes, end, PIECE_BYTES)
        for start in starts if move < 0 else reversed(starts):
            self._file.seek(start)
            piece = self._file.read(min(PIECE_BYTES, end - start))
            self._file.seek(start + move)
            self._file.write(piece)


def stored(rows: Iterable[bytes], compression: Compression) -> Iterator[bytes]:
    """Yield rows as a file holds them.

    Args:
        rows: Rows with their line feeds, one or more in a piece; the header row first, alone.
        compression: How to store them: as they are, or in Zstandard frames, the header row
            alone in the first one (10 §7.2).
    """
    if compression == "none":
        yield from rows
        return
    batch: list[bytes] = []
    batch_bytes = 0
    for position, row in enumerate(rows):
        batch.append(row)
        batch_bytes += len(row)
        if position == 0 or batch_bytes >= _FRAME_BYTES:
            yield _batch(batch, compression)
            batch, batch_bytes = [], 0
    if batch:
        yield _batch(batch, compression)


def _batch(rows: list[bytes], compression: Compression) -> bytes:
    text = b"".join(rows)
    return kernel.encode_frame(text) if compression == "zstd" else text
