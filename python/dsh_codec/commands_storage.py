"""The commands that follow, repair and repack logs."""

from __future__ import annotations

import sys
from collections.abc import Callable  # noqa: TC003 - typer looks at the annotations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dsh_codec._backend import kernel
from dsh_codec.check import status_of
from dsh_codec.errors import DshCodecError
from dsh_codec.follow import Reset, Superseded, follow
from dsh_codec.log import open as open_log
from dsh_codec.repack import repack
from dsh_codec.repair import RepairPlan, plan_repair, repair, salvage
from dsh_codec.report import EXIT_CODES, size_text

if TYPE_CHECKING:
    from typing import Any

    from dsh_codec.repack import Repacked

__all__ = ["add_to"]

LogArgument = Annotated[Path, typer.Argument(help="A log file or a session directory.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, one object a line.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (_tail, _repair, _repack):
        app.command(command.__name__.strip("_"))(command)


def _tail(
    log: LogArgument,
    *,
    is_following: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as the log grows.")
    ] = False,
    count: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Events to begin with.")
    ] = 10,
    interval_ms: Annotated[
        float, typer.Option(min=1, help="Milliseconds between two looks.")
    ] = 100,
) -> Callable[[], int]:
    """Write the last events as JSON lines, and with -f those that follow."""

    def run() -> int:
        try:
            with open_log(log) as opened:
                first = max(len(opened) - count, 0)
                if not is_following:
                    for event in opened[first:]:
                        _write(event.envelope)
                    return 0
            with follow(log, interval_ms=interval_ms) as following:
                for item in following:
                    if isinstance(item, Reset):
                        first = 0
                        _say(f"the file is another one now ({item.reason})")
                    elif isinstance(item, Superseded):
                        _say(f"superseded by {item.path}")
                    elif item.seq >= first:
                        _write(item.envelope)
                        sys.stdout.flush()
        except (DshCodecError, OSError) as error:
            return _complain(error)
        return 0

    return run


def _repair(
    log: LogArgument,
    *,
    is_dry_run: DryRunOption = False,
    backup: Annotated[
        Path | None,
        typer.Option(help="Directory for the copy, outside the sessions root."),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--salvage", help="Write the sound beginning to this new file instead."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> Callable[[], int]:
    """Cut a torn or damaged end off, after a copy was kept. Exit code 1: refused, or to be done."""

    def run() -> int:
        try:
            if target is not None and not is_dry_run:
                plan = salvage(log, target)
            elif is_dry_run:
                plan = plan_repair(log)
            else:
                plan = plan_repair(log)
                if plan.verdict != "refused":
                    plan = repair(log, backup_dir=backup)
        except (DshCodecError, OSError, ValueError) as error:
            return _complain(error)
        if as_json:
            members = plan._asdict() | {"cut_bytes": plan.cut_bytes}
            members["reason"] = None if plan.reason is None else str(plan.reason)
            _write(members)
        else:
            _say_plan(plan, is_salvage=target is not None and not is_dry_run)
        if plan.is_done or plan.verdict == "sound":
            return 0
        return 1 if plan.reason is None else EXIT_CODES[status_of(plan.reason)]

    return run


def _say_plan(plan: RepairPlan, *, is_salvage: bool) -> None:
    count = "no events" if plan.event_count is None else f"{plan.event_count:,} events"
    if is_salvage:
        text = f"{plan.path}: {count} written to {plan.backup}"
        if plan.reason is not None:
            text += f"; then comes: {plan.reason}"
    elif plan.verdict == "sound":
        text = f"{plan.path}: sound, {count}, nothing to repair"
    elif plan.verdict == "refused":
        text = (
            f"{plan.path}: not repaired: {plan.reason}; 'dsh-codec repair --salvage OUT' "
            "writes what is sound before it to a new file"
        )
    else:
        verb = "cut" if plan.is_done else "would cut"
        text = (
            f"{plan.path}: {plan.verdict}, {verb} {size_text(plan.cut_bytes)} at byte "
            f"{plan.cut_at:,}, {count} kept, {plan.recovered_count:,} of them written again"
        )
        if plan.backup is not None:
            text += f"; the old file is {plan.backup}"
    _write_text(text)


def _repack(
    logs: Annotated[
        list[Path], typer.Argument(help="Log files or session directories.")
    ],
    *,
    policy: Annotated[
        Literal["turn", "single"],
        typer.Option(help="A frame for each turn, or one for all events."),
    ] = "turn",
    level: Annotated[int, typer.Option(min=-100, max=22, help="Level of zstd.")] = 9,
    workers: Annotated[
        int, typer.Option(min=1, help="Frames that are compressed at once.")
    ] = 1,
    is_dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> Callable[[], int]:
    """Compress closed logs again, in fewer frames; every row is compared."""

    def run() -> int:
        code = 0
        for log in logs:
            try:
                done = repack(
                    log, policy=policy, level=level, workers=workers, dry_run=is_dry_run
                )
            except (DshCodecError, OSError, ValueError) as error:
                code = max(code, _complain(error))
                continue
            if as_json:
                _write(done._asdict() | {"saved_bytes": done.saved_bytes})
            else:
                _write_text(_repacked_text(done))
        return code

    return run


def _repacked_text(done: Repacked) -> str:
    verb = "saved" if done.is_written else "would save"
    return (
        f"{done.path}: {done.row_count:,} rows, {done.frames_before:,} to "
        f"{done.frames_after:,} frames, {size_text(done.bytes_before)} to "
        f"{size_text(done.bytes_after)}, {verb} {done.saved_bytes:,} bytes"
    )


def _write(value: Any) -> None:
    sys.stdout.buffer.write(kernel.dump(value) + b"\n")


def _write_text(text: str) -> None:
    sys.stdout.buffer.write(_printable(text).encode() + b"\n")


def _say(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"dsh-codec: {_printable(text)}\n")


def _complain(error: Exception) -> int:
    if isinstance(error, BrokenPipeError):
        raise error
    _say(str(error))
    return EXIT_CODES[status_of(error)]


def _printable(text: str) -> str:
    """Return text that cannot steer a terminal."""
    shown = "".join(
        char if char.isprintable() or char in "\t\n" else f"\\x{ord(char):02x}"
        for char in text
    )
    return shown.encode("utf-8", "backslashreplace").decode()
