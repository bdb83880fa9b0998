"""Scans of whole logs: container, rows, seqs, every stream record. Spec: 10 §8, 20 §4."""

from __future__ import annotations

import operator
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, Protocol, TypeAlias

from dsh_codec._pure.buffer import pieces_of, view_of
from dsh_codec._pure.frame import (
    MAGIC,
    PIECE_BYTES,
    SKIPPABLE_MAGIC,
    FrameReader,
    FrameScanner,
    TailError,
    decode_tail,
)
from dsh_codec._pure.json import parse
from dsh_codec._pure.row import RowScanner
from dsh_codec._pure.seqs import decode_seqs
from dsh_codec._types import LEVELS, FileScan, Level, Mode, Row
from dsh_codec.errors import CorruptLogError, DshCodecError, LimitExceededError
from dsh_codec.limits import (
    MAX_DEPTH,
    MAX_FRAME_PLAIN_BYTES,
    MAX_PACKED_EVENTS,
    MAX_ROW_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer

CURRENT_GENERATION: Final = 4
_TakeRows: TypeAlias = Callable[[list[Row]], None]
_MAGIC_BYTES: Final = MAGIC.to_bytes(4, "little")
_PROGRESS_SECONDS: Final = 0.05


class _Options(NamedTuple):
    mode: Mode
    level: Level
    generation: int | None
    max_row_bytes: int
    max_frame_plain_bytes: int
    max_depth: int
    max_packed_events: int
    check_streams: bool = True

    def scanner(self) -> RowScanner:
        return RowScanner(
            mode=self.mode,
            generation=self.generation,
            check_streams=self.check_streams,
            max_row_bytes=self.max_row_bytes,
            max_depth=self.max_depth,
            max_packed_events=self.max_packed_events,
        )


class _Source(Protocol):
    """Where the bytes of a log are."""

    size: int

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of a range, at most 1 MiB at once."""
        ...


class _Memory:
    def __init__(self, view: memoryview) -> None:
        self._view = view
        self.size = len(view)

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        return pieces_of(self._view[start:end], PIECE_BYTES)


class _Progress:
    """Bytes of many files that are done, told from time to time."""

    def __init__(self, tell: Callable[[int], object] | None) -> None:
        self._tell = tell
        self._told_at = time.monotonic()
        self.done_bytes = 0

    def add(self, count: int) -> None:
        self.done_bytes += count
        now = time.monotonic()
        if now - self._told_at >= _PROGRESS_SECONDS:
            self._told_at = now
            self.tell()

    def tell(self) -> None:
        if self._tell is not None:
            self._tell(self.done_bytes)


class _File:
    """An open file, as long as it was when it was opened."""

    def __init__(self, file: BinaryIO, progress: _Progress | None = None) -> None:
        self._file = file
        self._progress = progress
        self._counted = 0
        self.size = file.seek(0, os.SEEK_END)

    def count(self, end: int) -> None:
        """Count the bytes before `end` as done, each once."""
        if self._progress is not None and end > self._counted:
            self._progress.add(end - self._counted)
            self._counted = end

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        self._file.seek(start)
        while start < end:
            piece = self._file.read(min(PIECE_BYTES, end - start))
            if not piece:
                message = f"the file became shorter than {end} bytes while it was read"
                raise CorruptLogError(message)
            start += len(piece)
            yield piece
            self.count(start)


def check_bytes(
    data: Buffer,
    /,
    *,
    mode: Mode = "recoverable",
    level: Level = "scan",
    generation: int | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
    max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES,
    max_depth: int = MAX_DEPTH,
    max_packed_events: int = MAX_PACKED_EVENTS,
) -> FileScan:
    """Scan a whole log in memory. See `_kernel.pyi`."""
    options = _Options(
        mode,
        level,
        generation,
        max_row_bytes,
        max_frame_plain_bytes,
        max_depth,
        max_packed_events,
    )
    return _check_levels(_Memory(view_of(data)), options)


def check_file(
    path: str | os.PathLike[str],
    /,
    *,
    threads: int | None = None,
    mode: Mode = "recoverable",
    level: Level = "scan",
    generation: int | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
    max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES,
    max_depth: int = MAX_DEPTH,
    max_packed_events: int = MAX_PACKED_EVENTS,
) -> FileScan:
    """`check_bytes` for a file, in bounded memory. See `_kernel.pyi`."""
    options = _Options(
        mode,
        level,
        generation,
        max_row_bytes,
        max_frame_plain_bytes,
        max_depth,
        max_packed_events,
    )
    _check_threads(threads)
    return _check_path(path, options, None)


def check_many(
    paths: Iterable[str | os.PathLike[str]],
    /,
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
    mode: Mode = "recoverable",
    level: Level = "scan",
    generation: int | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
    max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES,
    max_depth: int = MAX_DEPTH,
    max_packed_events: int = MAX_PACKED_EVENTS,
) -> list[FileScan | Exception]:
    """`check_file` for many files, one after the other. See `_kernel.pyi`."""
    options = _Options(
        mode,
        level,
        generation,
        max_row_bytes,
        max_frame_plain_bytes,
        max_depth,
        max_packed_events,
    )
    # Wrong arguments are refused for no files, too.
    options.scanner()
    _check_level(level)
    _check_threads(threads)
    if isinstance(paths, str):
        message = "paths is a series of paths, not one of them"
        raise TypeError(message)
    counter = _Progress(progress)
    found: list[FileScan | Exception] = []
    for path in [Path(path) for path in paths]:
        try:
            found.append(_check_path(path, options, counter))
        except (DshCodecError, OSError) as error:
            # The frames that a traceback holds would keep the buffers of every bad log.
            error.__context__ = error.__traceback__ = None
            found.append(error)
    counter.tell()
    return found


def read_rows(
    path: str | os.PathLike[str],
    generation: int,
    limits: tuple[int, int, int],
    take: _TakeRows,
) -> FileScan:
    """Scan a file and give `take` every accepted row, those before a refusal, too.

    Args:
        path: The file.
        generation: The generation that it must have.
        limits: `max_row_bytes`, `max_frame_plain_bytes` and `max_depth`.
        take: Takes rows.
    """
    options = _Options(
        "recoverable",
        "scan",
        generation,
        *limits,
        MAX_PACKED_EVENTS,
        check_streams=False,
    )
    if not stat.S_ISREG(Path(path).stat().st_mode):
        # Opening a pipe would wait for its writer.
        message = "this is no regular file"
        raise OSError(message)
    with Path(path).open("rb") as file:
        try:
            return _check(_File(file), options, take)
        except DshCodecError as error:
            raise error.located(path=path) from None


def _check_path(
    path: str | os.PathLike[str], options: _Options, progress: _Progress | None
) -> FileScan:
    with Path(path).open("rb") as file:
        source = _File(file, progress)
        try:
            return _check_levels(source, options)
        except DshCodecError as error:
            raise error.located(path=path) from None
        finally:
            source.count(source.size)


def _check_threads(threads: int | None) -> None:
    if threads is not None and operator.index(threads) < 1:
        message = "threads is None or at least 1"
        raise ValueError(message)


def _check_level(level: str) -> None:
    if level not in LEVELS:
        message = f"level is one of {', '.join(LEVELS)}, not {level!r}"
        raise ValueError(message)


def _check_levels(source: _Source, options: _Options) -> FileScan:
    """Scan, and in a second pass, which knows the cut, apply the rules of the level."""
    _check_level(options.level)
    found = _check(source, options, _drop)
    if options.level == "scan" or found.scan.header.generation != CURRENT_GENERATION:
        return found
    # The rules are written above the kernel; this is their twin in the native one.
    from dsh_codec import _pure
    from dsh_codec.rules import RuleCheck

    header, cut = found.scan.header.fields, found.scan.inherited_event_count
    rules = RuleCheck(header, cut, level=options.level, kernel=_pure)

    def take(rows: list[Row]) -> None:
        for row in rows:
            rules.feed(_event(row))

    _check(source, options, take)
    findings = rules.finish()
    return found._replace(findings=tuple(findings), finding_count=rules.finding_count)


def _event(row: Row) -> dict[str, Any]:
    """Return the logical event of an accepted row of generation 4."""
    event: dict[str, Any] = parse(row.raw, max_depth=sys.maxsize)
    if "sourceEventSeqs" in event:
        seqs = decode_seqs(event["sourceEventSeqs"], codec="v2", max_entries=row.seq)
        event["sourceEventSeqs"] = seqs
    return event


def _drop(rows: list[Row]) -> None:
    """Take rows that nobody wants."""


def _check(source: _Source, options: _Options, take: _TakeRows) -> FileScan:
    scanner = options.scanner()
    head = b"".join(source.pieces(0, min(4, source.size)))
    if _is_zstandard(head):
        return _check_zstandard(source, scanner, options, take)
    for piece in source.pieces(0, source.size):
        _feed(scanner, piece, take)
    result = scanner.finish()
    committed = result.committed_bytes
    return FileScan(
        scan=result,
        compression="none",
        file_bytes=source.size,
        plain_bytes=source.size,
        frame_count=None,
        torn_start=None,
        truncate_to=committed if committed < source.size else None,
        recovered_count=0,
    )


def _feed(scanner: RowScanner, data: Buffer, take: _TakeRows) -> None:
    """Feed bytes; a refusal behind accepted rows comes with a second call."""
    take(scanner.feed(data))
    scanner.feed(b"")


def _is_zstandard(head: bytes) -> bool:
    """Whether the first bytes are those of a Zstandard file, be it a cut or forbidden one."""
    if int.from_bytes(head, "little") & ~0xF == SKIPPABLE_MAGIC:
        return True
    return head != b"" and _MAGIC_BYTES.startswith(head)


def _check_zstandard(
    source: _Source, scanner: RowScanner, options: _Options, take: _TakeRows
) -> FileScan:
    """Scan a Zstandard file by the steps of 10 §8.3."""
    # A pass over the structure comes first: which frame is the last decides what a row may do.
    frames = FrameScanner()
    for piece in source.pieces(0, source.size):
        frames.feed(piece)
    torn_start = frames.finish()
    complete_end = source.size if torn_start is None else torn_start

    reader = FrameReader(max_frame_plain_bytes=options.max_frame_plain_bytes)
    for piece in source.pieces(0, complete_end):
        reader.feed(piece)
        while (plain := reader.read()) is not None:
            try:
                _feed(scanner, plain.data, take)
                if plain.last:
                    scanner.end_frame()
            except DshCodecError as error:
                raise error.located(frame=plain.frame) from None
    scanner.end_complete_frames()
    plain_bytes, event_count = scanner.fed_bytes, scanner.event_count

    if torn_start is not None and options.mode == "recoverable":
        for data in _tail(source, torn_start, options.max_frame_plain_bytes):
            _feed(scanner, data, take)
    return FileScan(
        scan=scanner.finish(),
        compression="zstd",
        file_bytes=source.size,
        plain_bytes=plain_bytes,
        frame_count=reader.frame_count,
        torn_start=torn_start,
        truncate_to=torn_start,
        recovered_count=scanner.event_count - event_count,
    )


def _tail(source: _Source, start: int, max_frame_plain_bytes: int) -> Iterator[bytes]:
    """Yield the plaintext of a torn frame, nothing if its decoding ends in an error.

    It is decoded twice, because an error at its end must keep all of it out of the log, and
    because it must not be kept in memory.
    """
    size = 0
    try:
        for plain in decode_tail(source.pieces(start, source.size)):
            size += len(plain)
            if size > max_frame_plain_bytes:
                message = (
                    f"the torn frame holds more than {max_frame_plain_bytes} bytes of "
                    "plaintext; raise max_frame_plain_bytes"
                )
                places = (None, None, start, None, None, None)
                raise LimitExceededError(
                    message, *places, "max_frame_plain_bytes", max_frame_plain_bytes
                )
    except TailError:
        return
    yield from decode_tail(source.pieces(start, source.size))
