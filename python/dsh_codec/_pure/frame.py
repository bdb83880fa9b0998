"""The Zstandard container. Spec: 10 §7."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeAlias

from dsh_codec._pure.buffer import bytes_of, pieces_of, view_of
from dsh_codec._types import FrameScan, PlainPiece
from dsh_codec.errors import DshCodecError, FrameError, LimitExceededError
from dsh_codec.limits import MAX_FRAME_PLAIN_BYTES, MAX_WINDOW_LOG

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer

MAGIC: Final = 0xFD2FB528
SKIPPABLE_MAGIC: Final = 0x184D2A50
"""First of the sixteen magic numbers of skippable frames."""

PIECE_BYTES: Final = 1 << 20
"""Bytes of plaintext in one piece, at most; also bytes that are handed on at once."""

# What the harness writes. Spec: 70 §1.
WINDOW_LOG: Final = 21
LEVEL: Final = 3

_LIBRARY_PREFIX: Final = "Unable to decompress Zstandard data: "
_DECODER_OPTIONS: Final[dict[int, int]] = {
    zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG
}

_Stage: TypeAlias = Literal[
    "magic", "descriptor", "fields", "block", "body", "checksum"
]


class FrameWalker:
    """Finds where frames end, without decoding and without keeping input. Spec: 10 §7.3.

    Attributes:
        start: Offset of the frame that is open, or of the next one.
        number: Complete frames; number of the open one.
        window_bytes: Window of the open frame; None until its header is complete.
        has_dictionary: Whether the open frame names a dictionary.
    """

    def __init__(self) -> None:
        self.start = 0
        self.number = 0
        self.window_bytes: int | None = None
        self.has_dictionary = False
        self._offset = 0  # Bytes that were passed.
        self._stage: _Stage = "magic"
        self._part = b""  # Of a stage that is interpreted: what has arrived of it.
        self._missing = 4  # Bytes of the stage that have not arrived.
        self._descriptor = 0
        self._is_last_block = False

    @property
    def is_between_frames(self) -> bool:
        """Whether no frame is open."""
        return self._offset == self.start

    def advance(self, data: bytes | memoryview, index: int) -> int | None:
        """Pass the bytes from `index` on, to the end of one frame at most.

        Returns:
            The index behind the end of the frame, or None if all bytes were passed and the
            frame is still open.

        Raises:
            FrameError: The frame is malformed, or there is none.
        """
        while True:
            step = min(self._missing, len(data) - index)
            if self._stage not in ("body", "checksum"):
                self._part += bytes(data[index : index + step])
            index += step
            self._offset += step
            self._missing -= step
            if self._missing:
                return None
            if self._complete_stage():
                self.start = self._offset
                self.number += 1
                return index

    def _complete_stage(self) -> bool:
        """Interpret a stage that has arrived; return whether the frame ends with it."""
        part, self._part = self._part, b""
        if self._stage == "magic":
            self._check_magic(int.from_bytes(part, "little"))
            self.window_bytes = None
            self.has_dictionary = False
            self._stage, self._missing = "descriptor", 1
        elif self._stage == "descriptor":
            self._descriptor = part[0]
            if part[0] & 0x18:
                self.refuse("a reserved bit of the frame header is set")
            self._stage, self._missing = "fields", sum(self._field_sizes())
        elif self._stage == "fields":
            self._read_fields(part)
            self._stage, self._missing = "block", 3
        elif self._stage == "block":
            block = int.from_bytes(part, "little")
            kind = block >> 1 & 3
            if kind == 3:
                self.refuse("a block of the reserved type")
            self._is_last_block = bool(block & 1)
            # An RLE block stores one byte, whatever its size is.
            self._stage, self._missing = "body", 1 if kind == 1 else block >> 3
        elif self._stage == "body" and not self._is_last_block:
            self._stage, self._missing = "block", 3
        elif self._stage == "body" and self._descriptor & 0x04:
            self._stage, self._missing = "checksum", 4
        else:
            self._stage, self._missing = "magic", 4
            return True
        return False

    def _check_magic(self, magic: int) -> None:
        if magic == MAGIC:
            return
        found = magic.to_bytes(4, "little").hex(" ")
        if magic & ~0xF == SKIPPABLE_MAGIC:
            self.refuse(f"a skippable frame ({found}); a log must not hold one")
        self.refuse(
            f"not a Zstandard frame: expected the bytes 28 b5 2f fd, found {found}"
        )

    def _field_sizes(self) -> tuple[int, int, int]:
        """Return the bytes of window descriptor, dictionary id and content size."""
        is_single = bool(self._descriptor & 0x20)
        code = self._descriptor >> 6
        content_size = 1 << code if code else int(is_single)
        return int(not is_single), (0, 1, 2, 4)[self._descriptor & 3], content_size

    def _read_fields(self, part: bytes) -> None:
        window, dictionary, content_size = self._field_sizes()
        self.has_dictionary = any(part[window : window + dictionary])
        if window:
            base = 1 << 10 + (part[0] >> 3)
            self.window_bytes = base + base // 8 * (part[0] & 7)
        else:
            # A single segment is its own window; two bytes of size start at 256.
            size = int.from_bytes(part[window + dictionary :], "little")
            self.window_bytes = size + 256 if content_size == 2 else size

    def refuse(self, message: str) -> NoReturn:
        """Refuse the open frame."""
        raise FrameError(message, None, None, self.start, None, self.number)


def scan_frames(data: Buffer, /, *, max_frames: int | None = None) -> FrameScan:
    """Find the frames of a Zstandard file. See `_kernel.pyi`."""
    view = view_of(data)
    walker = FrameWalker()
    frames: list[tuple[int, int]] = []
    while walker.start < len(view) and (max_frames is None or len(frames) < max_frames):
        start = walker.start
        end = walker.advance(view, start)
        if end is None:
            return FrameScan(frames, start)
        frames.append((start, end))
    return FrameScan(frames, None)


class FrameScanner:
    """`scan_frames` for a file that arrives in pieces. See `_kernel.pyi`."""

    def __init__(self) -> None:
        self._walker = FrameWalker()
        self._error: FrameError | None = None

    def feed(self, data: Buffer, /) -> list[tuple[int, int]]:
        """Take the next bytes and return the ranges of the frames that they complete."""
        if self._error is not None:
            raise self._error
        view = view_of(data)
        frames: list[tuple[int, int]] = []
        index: int | None = 0
        try:
            while index is not None and index < len(view):
                start = self._walker.start
                index = self._walker.advance(view, index)
                if index is not None:
                    frames.append((start, self._walker.start))
        except FrameError as error:
            self._error = error
            raise
        return frames

    def finish(self) -> int | None:
        """Return the offset of a torn last frame, or None."""
        if self._error is not None:
            raise self._error
        return None if self._walker.is_between_frames else self._walker.start


class FrameReader:
    """Incremental decoder of complete frames. See `_kernel.pyi`.

    The module `zstd` gives no way to use a decompressor again, so each frame has its own.
    """

    def __init__(self, *, max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES) -> None:
        self._max_frame_plain_bytes = max_frame_plain_bytes
        self._walker = FrameWalker()
        self._data = b""
        self._index = 0
        self._held = b""  # Too few bytes to tell whether a frame starts with them.
        self._decoder: zstd.ZstdDecompressor | None = None
        self._start = 0  # Of the frame that is being decoded.
        self._is_complete = False  # Whether all its bytes were given to the decoder.
        self._plain_bytes = 0
        self._frame_count = 0
        self._error: DshCodecError | None = None

    @property
    def frame_count(self) -> int:
        """Frames decoded to their end."""
        return self._frame_count

    def feed(self, data: Buffer, /) -> None:
        """Give the next bytes of the file."""
        piece = bytes_of(data)
        if self._error is not None:
            raise self._error
        if self._index < len(self._data) or self._has_output:
            message = "read() has to return None before more bytes are fed"
            raise ValueError(message)
        self._data, self._index, self._held = self._held + piece, 0, b""

    def read(self) -> PlainPiece | None:
        """Return the next piece of plaintext."""
        if self._error is not None:
            raise self._error
        try:
            return self._read()
        except DshCodecError as error:
            self._error = error
            raise

    @property
    def _has_output(self) -> bool:
        """Whether the decoder may hold plaintext that it has not given yet."""
        return self._decoder is not None and not self._decoder.needs_input

    def _read(self) -> PlainPiece | None:
        while True:
            part = b""
            if not self._has_output:
                if self._decoder is None and len(self._data) - self._index < 4:
                    # Spec 10 §7.3: up to three bytes are a torn tail whatever they are.
                    self._held, self._index = self._data[self._index :], len(self._data)
                    return None
                if self._index == len(self._data):
                    return None
                part = self._next_part()
            decoder = self._open_decoder()
            try:
                plain = decoder.decompress(part, PIECE_BYTES)
            except zstd.ZstdError as error:
                # The library's own words, without what Python puts before them.
                reason = str(error).removeprefix(_LIBRARY_PREFIX)
                self._refuse(f"the frame does not decode: {reason}")
            self._count(len(plain))
            if decoder.eof:
                return self._end_frame(plain)
            if self._is_complete and decoder.needs_input:
                self._refuse("the frame ends before its content")
            if plain:
                return PlainPiece(self._frame_count, plain, False)

    def _next_part(self) -> bytes:
        """Return the bytes that are there of the open frame."""
        if self._decoder is None:
            self._start = self._walker.start
        start = self._index
        end = self._walker.advance(self._data, start)
        self._is_complete = end is not None
        self._index = len(self._data) if end is None else end
        if self._walker.has_dictionary:
            self._refuse("the frame needs a dictionary; a log must not use one")
        window = self._walker.window_bytes
        if window is not None and window > 1 << MAX_WINDOW_LOG:
            allowed = 1 << MAX_WINDOW_LOG
            self._refuse(
                f"the frame needs a window of {window} bytes; at most {allowed} are allowed"
            )
        return self._data[start : self._index]

    def _open_decoder(self) -> zstd.ZstdDecompressor:
        if self._decoder is None:
            self._decoder = zstd.ZstdDecompressor(options=_DECODER_OPTIONS)
            self._plain_bytes = 0
        return self._decoder

    def _count(self, plain_bytes: int) -> None:
        self._plain_bytes += plain_bytes
        limit = self._max_frame_plain_bytes
        if self._plain_bytes > limit:
            message = (
                f"the frame holds more than {limit} bytes of plaintext; "
                "raise max_frame_plain_bytes"
            )
            places = (None, None, self._start, None, self._frame_count, None)
            raise LimitExceededError(message, *places, "max_frame_plain_bytes", limit)

    def _end_frame(self, plain: bytes) -> PlainPiece:
        decoder = self._decoder
        if not self._is_complete or (decoder is not None and decoder.unused_data):
            self._refuse("the content ends before the frame")
        piece = PlainPiece(self._frame_count, plain, True)
        self._decoder = None
        self._frame_count += 1
        return piece

    def _refuse(self, message: str) -> NoReturn:
        places = (None, None, self._start, None, self._frame_count)
        raise FrameError(message, *places) from None


def encode_frame(data: Buffer, /, *, level: int = 3) -> bytes:
    """Compress one batch as one frame. See `_kernel.pyi`."""
    lowest, highest = zstd.CompressionParameter.compression_level.bounds()
    if type(level) is not int or not lowest <= level <= highest:
        message = f"level has to be {lowest} to {highest}, not {level!r}"
        raise ValueError(message)
    compressor = _open_compressor(level)
    # In two calls: one that gets all bytes and ends the frame would know the size, and the
    # library would then choose other parameters than the harness, which streams.
    return compressor.compress(view_of(data)) + compressor.flush()


def _open_compressor(level: int) -> zstd.ZstdCompressor:
    return zstd.ZstdCompressor(
        options={
            zstd.CompressionParameter.compression_level: level,
            zstd.CompressionParameter.window_log: WINDOW_LOG,
            zstd.CompressionParameter.checksum_flag: 1,
            zstd.CompressionParameter.content_size_flag: 0,
        }
    )


class FrameWriter:
    """Encoder of one frame whose plaintext comes in pieces. See `_kernel.pyi`."""

    def __init__(self) -> None:
        """Start a frame."""
        self._compressor = _open_compressor(LEVEL)

    def write(self, data: Buffer, /) -> bytes:
        """Take the next bytes and return what is made of the frame."""
        return self._compressor.compress(view_of(data))

    def finish(self) -> bytes:
        """End the frame and return the rest of it."""
        return self._compressor.flush()


class TailError(Exception):
    """The bytes of a torn frame do not decode. Never leaves the kernel."""


def decode_tail(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Decode a torn frame as far as a streaming decoder goes. Spec: 10 §7.4.

    Args:
        pieces: The file's bytes from the start of the frame.

    Yields:
        Plaintext, at most 1 MiB at once.

    Raises:
        TailError: The decoder reports an error; the plaintext so far is to be dropped.
    """
    decoder = zstd.ZstdDecompressor(options=_DECODER_OPTIONS)
    for piece in pieces:
        part = piece
        while True:
            try:
                plain = decoder.decompress(part, PIECE_BYTES)
            except zstd.ZstdError as error:
                raise TailError(str(error)) from None
            if plain:
                yield plain
            if decoder.eof:
                return
            if decoder.needs_input:
                break
            part = b""


def recover_tail(
    data: Buffer, /, *, max_plain_bytes: int = MAX_FRAME_PLAIN_BYTES
) -> bytes:
    """Return the plaintext that a torn last frame still yields. See `_kernel.pyi`."""
    recovered: list[bytes] = []
    size = 0
    try:
        for plain in decode_tail(pieces_of(view_of(data), PIECE_BYTES)):
            size += len(plain)
            if size > max_plain_bytes:
                message = (
                    f"the torn frame holds more than {max_plain_bytes} bytes of "
                    "plaintext; raise max_plain_bytes"
                )
                places = (None,) * 6
                raise LimitExceededError(
                    message, *places, "max_plain_bytes", max_plain_bytes
                )
            recovered.append(plain)
    except TailError:
        return b""
    return b"".join(recovered)
