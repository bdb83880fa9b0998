"""Closed logs in fewer frames: the same text, byte for byte, in less space. Spec: 70 §2."""

from __future__ import annotations

from collections import deque
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from dsh_codec._backend import kernel
from dsh_codec.check import check
from dsh_codec.durable import OsFileSystem, discard, replace, stage
from dsh_codec.errors import CorruptLogError, IdentityError, RowError
from dsh_codec.find import CURRENT_GENERATION
from dsh_codec.lock import SessionLock
from dsh_codec.log import open as open_log
from dsh_codec.place import locate, marks_of
from dsh_codec.rawrows import header_line, raw_rows

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from concurrent.futures import Future

    from dsh_codec.durable import FileSystem
    from dsh_codec.lock import LockBackend
    from dsh_codec.log import Log

__all__ = ["FramePolicy", "Repacked", "repack"]

FramePolicy: TypeAlias = Literal["turn", "single"]

MAX_BATCH_BYTES: Final = 256 << 20
"""Bytes of text in one frame, at most: a quarter of what readers accept."""

DEFAULT_LEVEL: Final = 9


class Repacked(NamedTuple):
    """What repacking a log did.

    Attributes:
        path: The log file.
        row_count: Rows, header not counted; all of them compared.
        frames_before, frames_after: Frames.
        bytes_before, bytes_after: Size of the file.
        is_written: Whether the file was replaced.
    """

    path: str
    row_count: int
    frames_before: int
    frames_after: int
    bytes_before: int
    bytes_after: int
    is_written: bool

    @property
    def saved_bytes(self) -> int:
        """Bytes that the new file is smaller; negative if it is larger."""
        return self.bytes_before - self.bytes_after


def repack(
    source: str | os.PathLike[str],
    *,
    policy: FramePolicy = "turn",
    level: int = DEFAULT_LEVEL,
    workers: int = 1,
    dry_run: bool = False,
    files: FileSystem | None = None,
    lock_backend: LockBackend | None = None,
) -> Repacked:
    """Compress a closed log again, and put it in the place of the old file in one step.

    Args:
        source: A session directory or a log file, of any generation.
        policy: `turn`: the header, then one frame a turn; `single`: the header, then one frame
            (a new one after 256 MiB of text).
        level: Compression level.
        workers: Frames that are compressed at once.
        dry_run: Whether only the sizes are found out. Nothing is locked or written then.
        files: Where it lies; None: the file system of this machine.
        lock_backend: How sessions are locked; None: as this system does.

    Returns:
        Sizes before and after.

    Raises:
        SessionLockedError: A writer has the session open.
        FileNotFoundError: There is no log.
        ValueError: The log is plain text, or an argument is wrong.
        CorruptLogError, UnsupportedError, NewerFormatError: The log is not sound (level `read`
            for generation 4), or has a torn tail: repair it first.
        LayoutError: A higher generation is in the same directory.
        IdentityError: The file changed meanwhile: somebody writes without the lock.
        OSError: The system refuses. The old file is in place then.

    Note:
        Every row of the new file is compared with the old one before it takes its place. A
        follower sees a new file, and starts over. Spec: 70 §2.
    """
    if policy not in ("turn", "single"):
        message = f"policy is 'turn' or 'single', not {policy!r}"
        raise ValueError(message)
    if workers < 1:
        message = f"workers is 1 or more, not {workers}"
        raise ValueError(message)
    path = locate(source, None)
    # Before the lock: a refusal leaves the directory as it is.
    before = Path(path).stat()
    frames_before = _require_sound(path)
    if dry_run:
        return _repack(path, before, frames_before, policy, level, workers, None)
    with SessionLock(Path(path).parent, backend=lock_backend):
        path = locate(source, None)
        now = Path(path).stat()
        if marks_of(now) != marks_of(before):
            before, frames_before = now, _require_sound(path)
        chosen = files if files is not None else OsFileSystem()
        return _repack(path, before, frames_before, policy, level, workers, chosen)


def _repack(
    path: str,
    before: os.stat_result,
    frames_before: int,
    policy: FramePolicy,
    level: int,
    workers: int,
    files: FileSystem | None,
) -> Repacked:
    real = Path(path).resolve()  # A link to a log stays a link.
    sizes: list[int] = []
    with open_log(path, mode="strict") as log:
        parts = _frames(log, policy, level, workers)
        if files is None:
            sizes.extend(map(len, parts))
            return Repacked(
                path,
                _row_count(log),
                frames_before,
                len(sizes),
                before.st_size,
                sum(sizes),
                is_written=False,
            )
        staged = stage(files, str(real), _counted(parts, sizes))
        try:
            Path(staged).chmod(before.st_mode & 0o777)
            with open_log(staged, mode="strict") as copy:
                row_count = _require_equal(log, copy)
            _require_unchanged(before, real)
        except BaseException:
            discard(files, staged)
            raise
    replace(files, staged, str(real))
    return Repacked(
        path,
        row_count,
        frames_before,
        len(sizes),
        before.st_size,
        sum(sizes),
        is_written=True,
    )


def _require_sound(path: str) -> int:
    """Refuse a log that an ordinary reader would not read to its last byte."""
    with open_log(path, mode="strict") as log:
        if log.compression == "none":
            message = f"{path}: the log is plain text, which has no frames to repack"
            raise ValueError(message)
        level: Literal["read", "scan"] = (
            "read" if log.generation == CURRENT_GENERATION else "scan"
        )
    report = check(path, level=level, mode="strict")
    if report.error is not None:
        raise report.error
    scan = report.scan
    assert scan is not None  # noqa: S101 - a sound log has been scanned
    if scan.frame_count is None or scan.truncate_to is not None:
        message = "the log has a torn tail: repair it first"
        raise RowError(message, path, None, scan.truncate_to, None, None, "10 §8")
    return scan.frame_count


def _require_unchanged(before: os.stat_result, path: Path) -> None:
    if marks_of(before) != marks_of(path.stat()):
        message = (
            "the file changed while it was repacked: somebody writes to it without holding "
            "the lock; nothing was replaced"
        )
        raise IdentityError(message, path)


def _row_count(log: Log) -> int:
    return log.result.scan.row_count if log.result is not None else 0


def _batches(log: Log, policy: FramePolicy) -> Iterator[bytes]:
    """Yield the text of each frame."""
    yield header_line(log)
    rows: list[bytes] = []
    size = 0
    for event in raw_rows(log):
        line = event.raw + b"\n"
        if rows and size + len(line) > MAX_BATCH_BYTES:
            yield b"".join(rows)
            rows, size = [], 0
        rows.append(line)
        size += len(line)
        if policy == "turn" and event.type == "turn/end":
            yield b"".join(rows)
            rows, size = [], 0
    if rows:
        yield b"".join(rows)


def _frames(log: Log, policy: FramePolicy, level: int, workers: int) -> Iterator[bytes]:
    """Yield the compressed frames in order; a few are under way at once."""
    if workers == 1:
        for text in _batches(log, policy):
            yield kernel.encode_frame(text, level=level)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as executor:
        pending: deque[Future[bytes]] = deque()
        futures = (
            executor.submit(kernel.encode_frame, text, level=level)
            for text in _batches(log, policy)
        )
        for future in futures:
            pending.append(future)
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _counted(parts: Iterator[bytes], sizes: list[int]) -> Iterator[bytes]:
    for part in parts:
        sizes.append(len(part))
        yield part


def _require_equal(log: Log, copy: Log) -> int:
    """Compare header and rows as bytes; return the number of rows."""
    count = 0
    if header_line(log) == header_line(copy):
        for mine, other in zip_longest(raw_rows(log), raw_rows(copy)):
            if mine is None or other is None or mine.raw != other.raw:
                break
            count += 1
        else:
            return count
    message = f"the repacked log differs in row {count}; the old one was left in place"
    raise CorruptLogError(message, copy.path, count + 1)
