"""Repair of damaged tails: say what is lost, keep a copy, cut. Spec: 10 §8.

An ordinary reader accepts a torn tail; the next writer cuts it off. Repair does the same without
a writer, and also cuts damage at the end of a Zstandard file that no reader accepts, as long as
no completed turn stands behind it.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from dsh_codec._backend import kernel
from dsh_codec.check import check
from dsh_codec.durable import (
    AppendFile,
    OsFileSystem,
    discard,
    make_directories,
    publish,
    stage,
)
from dsh_codec.errors import (
    CorruptLogError,
    DshCodecError,
    FrameError,
    LayoutError,
    RowError,
    UnsupportedError,
)
from dsh_codec.find import CURRENT_GENERATION
from dsh_codec.lock import SessionLock
from dsh_codec.log import open as open_log
from dsh_codec.names import NO_CWD, encode_segment, project_key
from dsh_codec.place import locate, read_for_append
from dsh_codec.rawrows import header_line
from dsh_codec.remains import holds_turn_end
from dsh_codec.source import ZSTD_MAGIC
from dsh_codec.writer import Writer

if TYPE_CHECKING:
    from dsh_codec._types import Compression, Header
    from dsh_codec.durable import FileSystem
    from dsh_codec.lock import LockBackend

__all__ = ["RepairPlan", "Verdict", "plan_repair", "repair", "salvage"]

Verdict: TypeAlias = Literal["sound", "torn", "damaged", "refused"]

_DIRECTORY: Final = "dsh-codec/backups"


class RepairPlan(NamedTuple):
    """What is wrong with a log, and what a repair does about it, or did.

    Attributes:
        path: The log file.
        verdict: `sound`: nothing to do; `torn`: an interrupted batch, which any writer would
            cut; `damaged`: the end of the file is not readable and can be cut; `refused`: a
            repair would lose a completed turn, or could not help.
        file_bytes: Size of the file.
        cut_at: Byte at which it is cut; None if it is not.
        event_count: Events after the repair, recovered ones included; None if refused.
        recovered_count: Events from a torn frame that are written again.
        reason: Why an ordinary reader refuses the log; None if it does not.
        backup: Copy of the whole file from before the repair; None without one.
        is_done: Whether the repair was made.
    """

    path: str
    verdict: Verdict
    file_bytes: int
    cut_at: int | None = None
    event_count: int | None = None
    recovered_count: int = 0
    reason: DshCodecError | None = None
    backup: str | None = None
    is_done: bool = False

    @property
    def cut_bytes(self) -> int:
        """Bytes that are cut off."""
        return 0 if self.cut_at is None else self.file_bytes - self.cut_at


def repair(
    source: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    backup_dir: str | os.PathLike[str] | None = None,
    files: FileSystem | None = None,
    lock_backend: LockBackend | None = None,
) -> RepairPlan:
    """Cut off what an interrupted writer or a damaged end left in a log.

    Args:
        source: A session directory or a log file.
        dry_run: Whether only the plan is made. Nothing is locked or written then.
        backup_dir: Where the copy of the file goes; outside the sessions root. None: below
            `$XDG_STATE_HOME` or `~/.local/state`.
        files: Where the log lies; None: the file system of this machine.
        lock_backend: How sessions are locked; None: as this system does.

    Returns:
        What was done, or would be.

    Raises:
        CorruptLogError, UnsupportedError, NewerFormatError: The log is refused, see
            `RepairPlan.verdict`; not with `dry_run`. `salvage` still gets its sound beginning.
        SessionLockedError: A writer has the session open.
        ValueError: The backup would be inside the sessions root.
        FileNotFoundError: There is no log.
        LayoutError: As for `Writer.open`.
        OSError: The system refuses. Without a backup on disk nothing is cut.

    Note:
        The whole file is in memory when its damage is not a torn tail. Doing it again does
        nothing. Spec: 10 §8.4.
    """
    plan = plan_repair(source)
    if plan.verdict == "sound" or dry_run:
        return plan
    if plan.verdict == "refused":
        assert plan.reason is not None  # noqa: S101 - a refusal has a reason
        raise plan.reason
    chosen = files if files is not None else OsFileSystem()
    if plan.verdict == "torn":
        with Writer.open(plan.path, files=chosen, lock_backend=lock_backend) as writer:
            if writer.truncate_to is None:
                return plan_repair(plan.path)  # Somebody else was quicker.
            plan = plan_repair(plan.path)
            backup = _keep_copy(plan.path, backup_dir, chosen)
            writer.repair_tail()
    else:
        with SessionLock(Path(plan.path).parent, backend=lock_backend):
            plan = plan_repair(plan.path)
            if plan.verdict != "damaged" or plan.cut_at is None:
                return plan
            backup = _keep_copy(plan.path, backup_dir, chosen)
            status = Path(plan.path).stat()
            file = AppendFile(
                plan.path,
                size_bytes=plan.file_bytes,
                identity=(status.st_dev, status.st_ino),
                files=chosen,
            )
            try:
                file.cut(plan.cut_at)
            finally:
                file.close()
    return plan._replace(backup=backup, is_done=True)


def plan_repair(source: str | os.PathLike[str]) -> RepairPlan:
    """Find out what a repair would do, by reading only.

    Args:
        source: A session directory or a log file.

    Returns:
        The plan.

    Raises:
        FileNotFoundError: There is no log.
        LayoutError: As for `Writer.open`.
        OSError: The system refuses to read.
    """
    path = locate(source, None)
    size = Path(path).stat().st_size
    try:
        state = read_for_append(path)
    except FrameError as error:
        return _plan_damage(path, size, error)
    except RowError as error:
        return _plan_damage(path, size, error)
    except DshCodecError as error:
        return RepairPlan(path, "refused", size, reason=error)
    count = state.event_count
    if state.truncate_to is None:
        return RepairPlan(path, "sound", state.file_bytes, event_count=count)
    recovered = len(state.recovered)
    return RepairPlan(
        path, "torn", state.file_bytes, state.truncate_to, count, recovered
    )


def _plan_damage(path: str, size: int, error: CorruptLogError) -> RepairPlan:
    """Plan for a file that readers refuse: only the end of a Zstandard file can be cut."""
    refused = RepairPlan(path, "refused", size, reason=error)
    data = Path(path).read_bytes()
    if not data.startswith(ZSTD_MAGIC):
        # Spec 10 §8.2: in a plain file all that can be cut is a torn tail already.
        return refused
    cut_at = _sound_end(data)
    if cut_at is None or cut_at == len(data) or holds_turn_end(data[cut_at:]):
        return refused
    report = check(data[:cut_at], level="read", mode="strict")
    if not report.is_sound:
        return refused
    count = report.event_count
    return RepairPlan(path, "damaged", len(data), cut_at, count, reason=error)


def _frame_ranges(data: bytes) -> list[tuple[int, int]]:
    """Return the frames before the first place that is no frame."""
    try:
        return kernel.scan_frames(data).frames
    except FrameError as error:
        return kernel.scan_frames(data[: error.offset or 0]).frames


def _sound_end(data: bytes) -> int | None:
    """Return the offset behind the last frame up to which every row is accepted."""
    scanner = kernel.RowScanner(mode="strict", generation=CURRENT_GENERATION)
    reader = kernel.FrameReader()
    sound_end = None
    try:
        for start, end in _frame_ranges(data):
            reader.feed(data[start:end])
            while (piece := reader.read()) is not None:
                scanner.feed(piece.data)
                # A refusal behind accepted rows comes with the next call.
                scanner.feed(b"")
                if piece.last:
                    scanner.end_frame()
            if scanner.committed_bytes == scanner.fed_bytes:
                sound_end = end
    except DshCodecError:
        pass
    return sound_end


def default_backup_dir() -> Path:
    """Return where copies go if nobody says otherwise."""
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path.home() / ".local" / "state"
    return base / _DIRECTORY


def _keep_copy(
    path: str, backup_dir: str | os.PathLike[str] | None, files: FileSystem
) -> str:
    """Copy the file to where no harness looks, and wait until the copy is on disk."""
    directory = Path(backup_dir) if backup_dir is not None else default_backup_dir()
    with open_log(path) as log:
        header = log.header
    _require_outside(directory, Path(path).absolute(), header)
    data = Path(path).read_bytes()
    digest = hashlib.sha256(data).hexdigest()[:16]
    segment = encode_segment(header.fields["id"])[:100]
    copy = directory / f"{segment}.{digest}.{Path(path).name}.bak"
    make_directories(files, [str(directory)])
    try:
        publish(files, str(copy), [data])
    except FileExistsError:
        # A repair that was interrupted has kept it already.
        if copy.read_bytes() != data:
            raise
    return str(copy)


def _require_outside(directory: Path, path: Path, header: Header) -> None:
    """Refuse a backup below the sessions root that the log lies in."""
    session, project = path.parent, path.parent.parent
    cwd = header.fields.get("cwd")
    key = NO_CWD if cwd is None else project_key(cwd)
    if (session.name, project.name) != (encode_segment(header.fields["id"]), key):
        return  # Not in the layout of a root.
    root = project.parent.resolve()
    if directory.absolute().resolve().is_relative_to(root):
        message = f"the backup has to be outside the sessions root {root}"
        raise ValueError(message)


def salvage(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    files: FileSystem | None = None,
) -> RepairPlan:
    """Write the sound beginning of a log as a new log; the log itself stays as it is.

    Args:
        source: A session directory or a log file of generation 4.
        target: The new file; `.zstd` at its end makes it a Zstandard file. It must not exist.
        files: Where it is written; None: the file system of this machine.

    Returns:
        The plan of the log, with `event_count` of the new one and its place as `backup`.

    Raises:
        UnsupportedError, NewerFormatError: The log is not of generation 4.
        HeaderError, FrameError: It has no sound header row.
        RowError: What is sound is no log by itself: a seeded session whose inherited events are
            damaged.
        FileNotFoundError: There is no log.
        FileExistsError: The target is there.
        OSError: The system refuses.

    Note:
        Rows are copied as bytes, frame by frame, up to the first one that an ordinary reader
        would not read (level `read`).
    """
    chosen = files if files is not None else OsFileSystem()
    path = _named_or_located(source)
    goal = str(target)
    compression: Compression = "zstd" if goal.endswith(".zstd") else "none"
    if os.path.lexists(goal):  # Before a long read; the link below is what decides.
        raise FileExistsError(errno.EEXIST, "there is such a file already", goal)
    batches, count, reason = _sound_rows(path)
    parts: list[bytes] = batches
    if compression == "zstd":
        parts = [kernel.encode_frame(batch) for batch in batches]
    staged = stage(chosen, goal, parts)
    try:
        report = check(staged, level="read", mode="strict")
        if report.error is not None:
            raise report.error
        chosen.link(staged, goal)
        chosen.sync_directory(str(Path(goal).absolute().parent))
    finally:
        discard(chosen, staged)
    size = Path(path).stat().st_size
    verdict: Verdict = "sound" if reason is None else "refused"
    return RepairPlan(
        path, verdict, size, None, count, reason=reason, backup=goal, is_done=True
    )


def _named_or_located(source: str | os.PathLike[str]) -> str:
    try:
        return locate(source, None)
    except LayoutError:
        # Nothing is written there, so an older generation may be read, too.
        if Path(source).is_dir():
            raise
        return str(source)


def _sound_rows(path: str) -> tuple[list[bytes], int, DshCodecError | None]:
    """Return header and rows up to the first fault, a batch a frame; count; the fault."""
    from dsh_codec.rules import RuleCheck

    with open_log(path) as log:
        if log.generation != CURRENT_GENERATION:
            message = (
                f"only generation {CURRENT_GENERATION} is written; migrate the log"
            )
            raise UnsupportedError(message, path)
        batches = [header_line(log)]
        rules = RuleCheck(log.header.fields, level="read")
        rows: list[bytes] = []
        frame: int | None = None
        count = 0
        reason: DshCodecError | None = None
        try:
            for event in log:
                rules.feed(event.envelope)
                if rules.finding_count:
                    reason = rules.finish()[0].located(path=path)
                    break
                if rows and event.frame != frame:
                    batches.append(b"".join(rows))
                    rows = []
                frame = event.frame
                rows.append(event.raw + b"\n")
                count += 1
        except DshCodecError as error:
            reason = error
        if rows:
            batches.append(b"".join(rows))
        return batches, count, reason
