"""The commands that follow, repair, repack and migrate logs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from dsh_codec.commands import (
    PATH,
    compression_option,
    dry_run_option,
    json_option,
    log_argument,
)
from dsh_codec.commands_output import (
    complain,
    exit_code_of,
    say,
    with_progress,
    write_json,
    write_line,
)
from dsh_codec.errors import CorruptLogError, DshCodecError, HeaderError
from dsh_codec.report import Finding, size_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dsh_codec.repack import Repacked
    from dsh_codec.repair import RepairPlan

__all__ = ["migrate", "repack", "repair", "tail"]


@click.command()
@log_argument
@click.option(
    "--follow", "-f", "is_following", is_flag=True, help="Go on as the log grows."
)
@click.option(
    "--lines",
    "-n",
    "count",
    type=click.IntRange(min=0),
    default=10,
    help="Events to begin with.",
)
@click.option(
    "--interval-ms",
    type=click.IntRange(min=1, max=3_600_000),  # A float could be NaN, too.
    default=100,
    help="Milliseconds between two looks.",
)
def tail(log: Path, *, is_following: bool, count: int, interval_ms: int) -> int:
    """Write the last events as JSON lines; -f: also those to come."""
    from dsh_codec.follow import Reset, Superseded, follow
    from dsh_codec.log import open as open_log

    with open_log(log) as opened:
        first = max(len(opened) - count, 0)
        if not is_following:
            for event in opened[first:]:
                write_json(event.envelope)
            return 0
    with follow(log, interval_ms=interval_ms) as following:
        for item in following:
            if isinstance(item, Reset):
                first = 0
                say(f"dsh-codec: the file is another one now ({item.reason})")
            elif isinstance(item, Superseded):
                say(f"dsh-codec: superseded by {item.path}")
            elif item.seq >= first:
                write_json(item.envelope)
                sys.stdout.flush()
    return 0


@click.command()
@log_argument
@dry_run_option
@click.option(
    "--backup",
    type=PATH,
    help="Directory for the copy, outside the sessions root. Default: dsh-codec/backups in "
    "$XDG_STATE_HOME or ~/.local/state.",
)
@click.option(
    "--salvage",
    "target",
    type=PATH,
    help="Write the sound beginning to this new file instead.",
)
@json_option
def repair(
    log: Path,
    *,
    is_dry_run: bool,
    backup: Path | None,
    target: Path | None,
    as_json: bool,
) -> int:
    """Cut a torn or damaged end off, after a copy was kept.

    Damage with a completed turn behind it is never cut; see --salvage. Exit code 1: refused, or
    (--dry-run) to be done.
    """
    from dsh_codec.repair import plan_repair, repair as repair_log, salvage

    is_salvage = target is not None and not is_dry_run
    try:
        if target is not None and not is_dry_run:
            plan = salvage(log, target)
        else:
            plan = plan_repair(log)
            if plan.verdict != "refused" and not is_dry_run:
                plan = repair_log(log, backup_dir=backup)
    except ValueError as error:
        return complain(error)
    if as_json:
        members = plan._asdict() | {"cut_bytes": plan.cut_bytes}
        members["reason"] = None if plan.reason is None else str(plan.reason)
        write_json(members)
    else:
        _write_plan(plan, is_salvage=is_salvage)
    if plan.is_done or plan.verdict == "sound":
        return 0
    return 1 if plan.reason is None else exit_code_of(plan.reason)


def _write_plan(plan: RepairPlan, *, is_salvage: bool) -> None:
    count = "no events" if plan.event_count is None else f"{plan.event_count:,} events"
    if is_salvage:
        text = f"{plan.path}: {count} written to {plan.backup}"
        if plan.reason is not None:
            text += f"; then comes: {plan.reason}"
    elif plan.verdict == "sound":
        text = f"{plan.path}: sound, {count}, nothing to repair"
    elif plan.verdict == "refused":
        assert plan.reason is not None  # noqa: S101 - that is what refused it
        text = f"{plan.path}: not repaired: {Finding.of(plan.reason).text}"
        if isinstance(plan.reason, CorruptLogError) and not isinstance(
            plan.reason, HeaderError
        ):
            text += (
                "; 'dsh-codec repair --salvage OUT' writes what is sound before it to a "
                "new file"
            )
    else:
        verb = "cut" if plan.is_done else "would cut"
        text = (
            f"{plan.path}: {plan.verdict}, {verb} {size_text(plan.cut_bytes)} at byte "
            f"{plan.cut_at:,}, {count} kept, {plan.recovered_count:,} of them written again"
        )
        if plan.backup is not None:
            text += f"; the old file is {plan.backup}"
    write_line(text)


@click.command()
@click.argument(
    "logs",
    type=PATH,
    nargs=-1,
    required=True,
    help="Log files or session directories.",
)
@click.option(
    "--policy",
    type=click.Choice(["turn", "single"]),
    default="turn",
    help="A frame for each turn, or one for all events.",
)
@click.option(
    "--level", type=click.IntRange(-100, 22), default=9, help="Level of zstd."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    help="Frames that are compressed at once.",
)
@dry_run_option
@json_option
def repack(
    logs: Sequence[Path],
    *,
    policy: Any,
    level: int,
    workers: int,
    is_dry_run: bool,
    as_json: bool,
) -> int:
    """Compress closed logs again, in fewer frames.

    Every row is compared before the new file takes the place of the old one.
    """
    from dsh_codec.repack import repack as repack_log

    code = 0
    for log in logs:
        try:
            done = repack_log(
                log, policy=policy, level=level, workers=workers, dry_run=is_dry_run
            )
        except (DshCodecError, OSError, ValueError) as error:
            code = max(code, complain(error))
            continue
        if as_json:
            write_json(done._asdict() | {"saved_bytes": done.saved_bytes})
        else:
            write_line(_repacked_text(done))
    return code


def _repacked_text(done: Repacked) -> str:
    verb = "saved" if done.is_written else "would save"
    return (
        f"{done.path}: {done.row_count:,} rows, {done.frames_before:,} to "
        f"{done.frames_after:,} frames, {size_text(done.bytes_before)} to "
        f"{size_text(done.bytes_after)}, {verb} {done.saved_bytes:,} bytes"
    )


@click.command()
@click.argument(
    "paths",
    type=PATH,
    nargs=-1,
    required=True,
    help="Files, session directories or roots.",
)
@click.option(
    "--dry-run", "is_dry_run", is_flag=True, help="Do everything but publish."
)
@click.option("--out", type=PATH, help="A root to publish under, not beside the logs.")
@click.option(
    "--report",
    type=click.Choice(["text", "json"]),
    default="text",
    help="json: one object a log.",
)
@click.option(
    "--salvage",
    "with_salvage",
    is_flag=True,
    help="Export refused logs as far as they go. Not lossless, and marked so.",
)
@click.option(
    "--children",
    type=PATH,
    help="Root to look for child sessions, if not under PATHS.",
)
@click.option("--json", "report", flag_value="json", help="The same as --report json.")
@click.option("--no-children", is_flag=True, help="The sessions have no children.")
@compression_option
def migrate(
    paths: Sequence[Path],
    *,
    is_dry_run: bool,
    out: Path | None,
    report: str,
    with_salvage: bool,
    children: Path | None,
    no_children: bool,
    compression: Any,
) -> int:
    """Publish older logs as generation 4, beside their sources.

    The sources stay as they are. Exit code 0 all current now, 1 damaged, 2 refused or unreadable.
    """
    from dsh_codec.migrate import batch

    tasks = list(
        batch.plan_migrations(
            paths, children=() if no_children else children, compression=compression
        )
    )
    outcomes = []
    is_json = report == "json"
    for task in with_progress(tasks, "migrating", count=tasks.__len__, is_json=is_json):
        outcome = batch.migrate_task(
            task,
            out=out,
            dry_run=is_dry_run,
            with_salvage=with_salvage,
            compression=compression,
        )
        outcomes.append(outcome)
        if is_json:
            write_json(outcome.to_dict())
        else:
            write_line(outcome.text)
    if not is_json:
        say(batch.summary_of(outcomes))
    return max((outcome.exit_code for outcome in outcomes), default=0)
