"""The command `check`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from dsh_codec.check import check_many
from dsh_codec.commands import (
    compression_option,
    json_option,
    logs_argument,
    mode_option,
)
from dsh_codec.commands_output import byte_progress, say, write_json, write_line
from dsh_codec.find import find

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["check"]


@click.command()
@logs_argument
@click.option(
    "--level",
    type=click.Choice(["scan", "read", "restore", "full"]),
    default="read",
    help="How deep to check. scan: rows; read: also what the harness asks of a read; restore: "
    "also whether it can be resumed; full: also whether streams and messages agree.",
)
@click.option(
    "--explain", "rule", help="Print what a rule demands, such as L2.turn-end."
)
@mode_option
@compression_option
@click.option("--verbose", "-v", is_flag=True, help="Details of every log.")
@json_option
def check(
    paths: Sequence[Path],
    *,
    level: Any,
    rule: str | None,
    mode: Any,
    compression: Any,
    verbose: bool,
    as_json: bool,
) -> int:
    """Check logs, and say what is wrong with them: one line a log.

    Exit code 0 sound, 1 damaged, 2 newer, unsupported or unreadable: the highest of all.
    """
    if rule is not None:
        return _explain(rule)
    if not paths:
        message = "name the logs to check"
        raise click.UsageError(message)
    totals: Counter[str] = Counter()
    code = 0
    logs = list(_log_paths(paths, compression))
    with byte_progress(logs, "checking", is_json=as_json) as progress:
        for report in check_many(
            logs, progress=progress, level=level, mode=mode, compression=compression
        ):
            totals[report.status] += 1
            code = max(code, report.exit_code)
            if as_json:
                write_json(report.to_dict())
            else:
                first, *details = report.text(verbose=verbose).split("\n")
                write_line(first, status=report.status)
                for line in details:
                    write_line(line)
    if totals.total() != 1 and not as_json:
        counts = ", ".join(f"{count:,} {status}" for status, count in totals.items())
        say(f"{totals.total():,} logs: {counts or 'none found'}")
    return code


def _explain(name: str) -> int:
    # The rules take time to import, and every other command does without them.
    from dsh_codec.rules.catalog import explain

    rule = explain(name)
    if rule is None:
        message = (
            f"there is no rule {name!r}; reports name rules, such as A1 or L2.turn-end"
        )
        raise click.BadParameter(message, param_hint="--explain")
    write_line(f"{rule.id} ({rule.layer}, spec {rule.place}): {rule.text}")
    return 0


def _log_paths(paths: Sequence[Path], compression: Any) -> Iterator[str]:
    """Yield the logs that the arguments name; what cannot be read is for the check to say."""
    for path in paths:
        found = False
        if path.is_dir():
            for session in find(path, compression=compression):
                found = True
                yield session.path
        if not found:
            yield str(path)
