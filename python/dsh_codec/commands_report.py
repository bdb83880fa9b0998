"""The command `report`."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from dsh_codec.commands import PATH, compression_option
from dsh_codec.commands_output import count_progress, report_errors
from dsh_codec.durable import OsFileSystem, replace, stage
from dsh_codec.errors import DshCodecError
from dsh_codec.html_report import html_report

if TYPE_CHECKING:
    from pathlib import Path

    from dsh_codec.find import Session

__all__ = ["report"]

_BEGINNING = b"<!DOCTYPE html>"


@click.command()
@click.argument(
    "place", type=PATH, help="A log file, a session directory, or a sessions root."
)
@click.option(
    "--out",
    "-o",
    type=PATH,
    help="Where the page goes; an older page there is replaced. Default: standard output.",
)
@click.option(
    "--content", is_flag=True, help="Prompts and answers, too (page of a log)."
)
@click.option(
    "--tz",
    "zone",
    default="local",
    help="Time zone of days: Europe/Berlin, UTC, local (page of a root).",
)
@compression_option
def report(
    place: Path, *, out: Path | None, content: bool, zone: str, compression: Any
) -> int:
    """Show a log or a root as one HTML page.

    Timeline, speed, tokens, tools and sizes, with a table behind each chart. The page loads nothing, and no text of prompts or answers is on it unless asked for.
    Exit code 1 or 2 if some sessions of a root cannot be read: the page lists them.
    """
    errors: list[Session] = []
    if out is not None:
        _require_no_other_file(out)
    try:
        with count_progress("reading") as progress:
            page = html_report(
                place,
                content=content,
                tz=zone,
                compression=compression,
                progress=progress,
                on_error=errors.append,
            )
    except DshCodecError:
        raise  # Some of them are a ValueError, too.
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    data = page.encode()
    if out is None:
        sys.stdout.buffer.write(data)
    else:
        files, target = OsFileSystem(), os.path.realpath(out)
        replace(files, stage(files, target, (data,)), target)
    return report_errors(errors)


def _require_no_other_file(out: Path) -> None:
    """Refuse to write over what is no page, such as a log."""
    if not out.exists():
        return
    if out.is_file():
        with out.open("rb") as file:
            if file.read(len(_BEGINNING)) in (b"", _BEGINNING):
                return
    message = "there is something that is no HTML page; choose another name"
    raise FileExistsError(errno.EEXIST, message, str(out))
