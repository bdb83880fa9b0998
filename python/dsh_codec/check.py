"""Checks of a stored log. Spec: 00 §6."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from dsh_codec._backend import kernel
from dsh_codec.errors import (
    CorruptLogError,
    DshCodecError,
    NewerFormatError,
    RowError,
    UnsupportedError,
)
from dsh_codec.find import CURRENT_GENERATION
from dsh_codec.limits import (
    MAX_DEPTH,
    MAX_FRAME_PLAIN_BYTES,
    MAX_PACKED_EVENTS,
    MAX_ROW_BYTES,
    MAX_SPOOLED_BYTES,
)
from dsh_codec.log import Log, check_arguments, open as open_log
from dsh_codec.report import Finding, Level, Report, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from dsh_codec._types import Compression, FileScan, Mode
    from dsh_codec.source import SourceLike

__all__ = ["check", "check_many", "status_of"]

LEVELS: Final = ("scan", "read", "restore", "full")

_BATCH_LOGS: Final = 256
"""Logs that the kernel gets at once, at most: reports come out batch by batch."""

_BATCH_BYTES: Final = 256 << 20
"""A batch ends at this size, if it has enough logs to keep the threads busy."""

_MIN_BATCH_LOGS: Final = 32


def check(
    source: SourceLike,
    *,
    level: Level = "read",
    mode: Mode = "recoverable",
    compression: Compression | None = None,
    generation: int | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
    max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES,
    max_depth: int = MAX_DEPTH,
    max_packed_events: int = MAX_PACKED_EVENTS,
    max_spooled_bytes: int = MAX_SPOOLED_BYTES,
) -> Report:
    """Check a log and report what was found; a bad log is a report, not an exception.

    Args:
        source: As for `open`.
        level: `scan`: container, header, rows, seqs. `read`: also relationships and
            vocabulary, as an ordinary read of the harness. `restore`: also whether a session
            can be restored. `full`: also whether every stream agrees with its settlement, and
            no torn tail. At every level all stream records are checked and faults counted.
        mode: `recoverable` accepts a torn tail and names its offset; `strict` refuses it, and
            every row that is not right.
        compression: As for `open`.
        generation: As for `open`.
        max_row_bytes: Bytes in one row.
        max_frame_plain_bytes: Bytes of plaintext in one frame.
        max_depth: Nested arrays and objects in a row.
        max_packed_events: Events of one packed row.
        max_spooled_bytes: Bytes of a pipe that are copied.

    Returns:
        The report.

    Raises:
        TypeError, ValueError: A wrong argument.

    Note:
        One pass in bounded memory. Above level `scan`, a log of an older generation is migrated
        in memory, without evidence of child sessions, and the result is checked: one that has no
        safe migration is reported as `unsupported` there. Spec: 00 §6, 10 §8.
    """
    request = _Request.of(
        level,
        mode,
        compression,
        generation,
        max_spooled_bytes,
        max_row_bytes=max_row_bytes,
        max_frame_plain_bytes=max_frame_plain_bytes,
        max_depth=max_depth,
        max_packed_events=max_packed_events,
    )
    return _check(source, request)


def check_many(
    paths: Iterable[str | os.PathLike[str]],
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
    level: Level = "read",
    mode: Mode = "recoverable",
    compression: Compression | None = None,
    generation: int | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
    max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES,
    max_depth: int = MAX_DEPTH,
    max_packed_events: int = MAX_PACKED_EVENTS,
    max_spooled_bytes: int = MAX_SPOOLED_BYTES,
) -> Iterator[Report]:
    """Check many logs, on several threads; each gets the report that `check` gives.

    Args:
        paths: Files and session directories; read no further ahead than a batch of some hundred.
        threads: Threads that check; None: as many as there are processors.
        progress: Called with the bytes of files that are done, some times a second. The number
            never decreases. What it raises ends the check.
        level: As for `check`.
        mode: As for `check`.
        compression: As for `check`.
        generation: As for `check`.
        max_row_bytes: As for `check`.
        max_frame_plain_bytes: As for `check`.
        max_depth: As for `check`.
        max_packed_events: As for `check`.
        max_spooled_bytes: As for `check`.

    Returns:
        The reports, in the order of the paths, batch by batch.

    Raises:
        TypeError, ValueError: A wrong argument.

    Note:
        The GIL released while the kernel checks. Above level `scan`, logs of older generations
        are migrated one after the other. Spec: 00 §6, 10 §8.
    """
    if threads is not None and threads < 1:
        message = "threads is None or at least 1"
        raise ValueError(message)
    request = _Request.of(
        level,
        mode,
        compression,
        generation,
        max_spooled_bytes,
        max_row_bytes=max_row_bytes,
        max_frame_plain_bytes=max_frame_plain_bytes,
        max_depth=max_depth,
        max_packed_events=max_packed_events,
    )
    return _check_batches(paths, request, threads, _Progress(progress))


class _Request(NamedTuple):
    """The arguments of a check."""

    level: Level
    mode: Mode
    compression: Compression | None
    generation: int | None
    max_spooled_bytes: int
    limits: dict[str, Any]

    @classmethod
    def of(
        cls,
        level: Level,
        mode: Mode,
        compression: Compression | None,
        generation: int | None,
        max_spooled_bytes: int,
        **limits: int,
    ) -> _Request:
        check_arguments(mode=mode, compression=compression, generation=generation)
        if level not in LEVELS:
            message = f"level is one of {', '.join(LEVELS)}, not {level!r}"
            raise ValueError(message)
        return cls(level, mode, compression, generation, max_spooled_bytes, limits)

    def open(self, source: SourceLike) -> Log:
        return open_log(
            source,
            mode=self.mode,
            compression=self.compression,
            generation=self.generation,
            max_spooled_bytes=self.max_spooled_bytes,
            **self.limits,
        )

    def report(self, source: SourceLike) -> Report:
        path = os.fspath(source) if isinstance(source, str | os.PathLike) else None
        return Report(path, "sound", self.level, self.mode)


class _Progress:
    """Bytes done over all batches."""

    def __init__(self, tell: Callable[[int], object] | None) -> None:
        self._tell = tell
        self._before = self._now = 0

    def __call__(self, batch_bytes: int) -> None:
        self._now = self._before + batch_bytes
        if self._tell is not None:
            self._tell(self._now)

    def end_batch(self) -> None:
        self._before = self._now


def _check(source: SourceLike, request: _Request) -> Report:
    try:
        with request.open(source) as log:
            return _judge(
                log, request, lambda: _scan(log, request.level, request.limits)
            )
    except (DshCodecError, OSError) as error:
        return _refused(request.report(source), status_of(error), error)


def _check_batches(
    paths: Iterable[str | os.PathLike[str]],
    request: _Request,
    threads: int | None,
    progress: _Progress,
) -> Iterator[Report]:
    batch: list[Report | Log] = []
    size_bytes = 0
    for path in paths:
        opened = _prepare(path, request)
        batch.append(opened)
        if isinstance(opened, Log):
            size_bytes += opened.source.size_bytes
        is_large = size_bytes >= _BATCH_BYTES and len(batch) >= _MIN_BATCH_LOGS
        if is_large or len(batch) >= _BATCH_LOGS:
            yield from _check_batch(batch, request, threads, progress)
            batch, size_bytes = [], 0
    yield from _check_batch(batch, request, threads, progress)


def _prepare(path: str | os.PathLike[str], request: _Request) -> Report | Log:
    """Read the header; return the log, closed again, or the report if there is one already."""
    try:
        with request.open(path) as log:
            if isinstance(log.source.door, str):
                return log
            # The kernel cannot reach the bytes by themselves, such as those of a pipe.
            return _judge(
                log, request, lambda: _scan(log, request.level, request.limits)
            )
    except (DshCodecError, OSError) as error:
        return _refused(request.report(path), status_of(error), error)


def _check_batch(
    batch: list[Report | Log],
    request: _Request,
    threads: int | None,
    progress: _Progress,
) -> Iterator[Report]:
    # The kernel is told the generation that the name and the header agreed on, as in `_scan`.
    doors: dict[int, list[tuple[int, str]]] = {}
    for number, item in enumerate(batch):
        if isinstance(item, Log) and isinstance(item.source.door, str):
            doors.setdefault(item.generation, []).append((number, item.source.door))
    found: dict[int, FileScan | Exception] = {}
    for generation, group in doors.items():
        results = kernel.check_many(
            [door for _, door in group],
            threads=threads,
            progress=progress,
            mode=request.mode,
            level=request.level,
            generation=generation,
            **request.limits,
        )
        progress.end_batch()
        found.update(zip((number for number, _ in group), results, strict=True))
    for number, item in enumerate(batch):
        if isinstance(item, Report):
            yield item
        else:
            yield _judge_found(item, request, found[number])


def _judge_found(log: Log, request: _Request, found: FileScan | Exception) -> Report:
    def scan() -> FileScan:
        if isinstance(found, Exception):
            raise found
        return found

    is_migrated = request.level != "scan" and log.generation < CURRENT_GENERATION
    if isinstance(found, Exception) or not is_migrated:
        return _judge(log, request, scan)
    # To migrate a log it has to be open.
    try:
        with request.open(str(log.source.door)) as reopened:
            return _judge(reopened, request, scan)
    except (DshCodecError, OSError) as error:
        return _refused(request.report(str(log.source.door)), status_of(error), error)


def _judge(log: Log, request: _Request, scan_log: Callable[[], FileScan]) -> Report:
    """Return the report of a log whose header is sound."""
    level, mode = request.level, request.mode
    report = Report(
        log.path,
        "sound",
        level,
        mode,
        header=log.header,
        compression=log.compression,
    )
    try:
        scan = scan_log()
        report = report._replace(scan=scan, findings=tuple(_notes(scan)))
        faults = _check_rules(log, scan, level, request.limits)
    except (DshCodecError, OSError) as error:
        return _refused(report, status_of(error), error)
    if faults:
        return _refused(report, status_of(faults[0]), *faults)
    if scan.truncate_to is not None and (mode == "strict" or level == "full"):
        message = "the log ends in a torn tail, which an ordinary reader cuts off there"
        torn = RowError(
            message, report.path, None, scan.truncate_to, None, None, "10 §8"
        )
        return _refused(report, "torn", torn)
    return report


def _refused(
    report: Report, status: Status, error: Exception, *more: Exception
) -> Report:
    """Return the report of a log that is refused, first of all for `error`."""
    findings = (*map(Finding.of, (error, *more)), *report.findings)
    path = report.path or getattr(error, "path", None)
    return report._replace(path=path, status=status, findings=findings, error=error)


def _scan(log: Log, level: Level, limits: dict[str, int]) -> FileScan:
    """Scan with the kernel's own pass where it can reach the bytes itself."""
    arguments: dict[str, Any] = {
        "mode": log.mode,
        "level": level,
        "generation": log.generation,
        **limits,
    }
    door = log.source.door
    if isinstance(door, str):
        return kernel.check_file(door, **arguments)
    if door is not None:
        return kernel.check_bytes(door, **arguments)
    return log.scan(check_streams=True)


def _notes(scan: FileScan) -> Iterator[Finding]:
    issue = scan.scan.issue
    if issue is not None:
        message = (
            f"row {issue.row}: {issue.message}; an ordinary reader stops before it"
        )
        yield Finding("note", "RowIssue", message, issue.row + 1, issue.offset)
    if scan.truncate_to is not None:
        message = (
            f"the last {scan.file_bytes - scan.truncate_to:,} bytes are not committed; "
            f"{scan.recovered_count:,} events were recovered from them"
        )
        yield Finding("note", "TornTail", message, None, scan.truncate_to)


def _check_rules(
    log: Log, scan: FileScan, level: Level, limits: dict[str, int]
) -> list[DshCodecError]:
    """Return what the levels above `scan` refuse; the decisive fault comes first."""
    if level == "scan":
        return []
    if log.generation < CURRENT_GENERATION:
        # Spec 00 §6: above `scan`, older logs are migrated in memory and the result is checked.
        with log.upgraded() as upgraded:
            migrated = _scan(upgraded, level, limits)
            return _check_rules(upgraded, migrated, level, limits)
    findings = scan.findings
    if log.source.door is None:
        # The kernel could not reach the bytes, so its scan was one over pieces of them.
        from dsh_codec.rules import RuleCheck

        cut = scan.scan.inherited_event_count
        rules = RuleCheck(log.header.fields, cut, level=level)
        for event in log:
            rules.feed(event.envelope)
        findings = tuple(rules.finish())
    return [fault.located(path=log.path) for fault in findings]


def status_of(error: Exception) -> Status:
    """Return the status of a log that this error refuses."""
    if isinstance(error, NewerFormatError):
        return "newer"
    if isinstance(error, UnsupportedError):
        return "unsupported"
    return "damaged" if isinstance(error, CorruptLogError) else "unreadable"
