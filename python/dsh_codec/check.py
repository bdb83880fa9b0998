"""Checks of a stored log. Spec: 00 §6."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

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
)
from dsh_codec.log import Log, check_arguments, open as open_log
from dsh_codec.report import Finding, Level, Report, Status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dsh_codec._types import Compression, FileScan, Mode
    from dsh_codec.source import SourceLike

__all__ = ["check", "status_of"]

LEVELS: Final = ("scan", "read", "restore", "full")


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

    Returns:
        The report.

    Raises:
        TypeError, ValueError: A wrong argument.

    Note:
        One pass in bounded memory. Above level `scan`, a log of an older generation is migrated
        in memory, without evidence of child sessions, and the result is checked: one that has no
        safe migration is reported as `unsupported` there. Spec: 00 §6, 10 §8.
    """
    check_arguments(mode=mode, compression=compression, generation=generation)
    if level not in LEVELS:
        message = f"level is one of {', '.join(LEVELS)}, not {level!r}"
        raise ValueError(message)
    limits: dict[str, Any] = {
        "max_row_bytes": max_row_bytes,
        "max_frame_plain_bytes": max_frame_plain_bytes,
        "max_depth": max_depth,
        "max_packed_events": max_packed_events,
    }
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    report = Report(path, "sound", level, mode)
    try:
        with open_log(
            source, mode=mode, compression=compression, generation=generation, **limits
        ) as log:
            report = replace(
                report, path=log.path, header=log.header, compression=log.compression
            )
            scan = _scan(log, level, limits)
            report = replace(report, scan=scan, findings=tuple(_notes(scan)))
            faults = _check_rules(log, scan, level, limits)
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
    return replace(report, path=path, status=status, findings=findings, error=error)


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
