"""The commands that split, join, load and replay logs."""

from __future__ import annotations

import errno
import os
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsh_codec.commands import PATH, json_option, log_argument
from dsh_codec.commands_output import complain, write_json, write_line
from dsh_codec.errors import ReplayError, SidecarError
from dsh_codec.log import open as open_log
from dsh_codec.names import log_filename
from dsh_codec.report import size_text
from dsh_codec.sidecar_file import Sidecar, log_text, sidecar_filename, stored

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsh_codec.log import Log

__all__ = ["join", "load", "replay", "split"]

_compression_option = click.option(
    "--compression",
    type=click.Choice(["none", "zstd"]),
    help="How to store the result. Default: as the log is.",
)
_strict_option = click.option(
    "--strict-current",
    is_flag=True,
    help="Refuse logs of older generations; default: migrate.",
)


@click.command()
@log_argument
@click.option("--out", "-o", type=PATH, required=True, help="Directory for both files.")
@_compression_option
@click.option(
    "--allow-opaque", is_flag=True, help="Move streams that do not expand as they are."
)
@_strict_option
@json_option
def split(
    log: Path,
    *,
    out: Path,
    compression: Any,
    allow_opaque: bool,
    strict_current: bool,
    as_json: bool,
) -> int:
    """Write a log without its streams, and a replay sidecar that holds them."""
    from dsh_codec.sidecar import split as split_log

    with (
        open_log(log) as opened,
        split_log(
            opened, allow_opaque=allow_opaque, strict_current=strict_current
        ) as parts,
    ):
        kept = opened.compression if compression is None else compression
        out.mkdir(parents=True, exist_ok=True)
        assembled = out / log_filename(4, compression=kept)
        sidecar = out / sidecar_filename(compression=kept)
        _require_new(assembled)
        _publish(sidecar, stored(parts.sidecar.text(), kept))
        _publish(assembled, stored(log_text(parts.assembled), kept))
        members: dict[str, Any] = {
            "assembled": str(assembled),
            "sidecar": str(sidecar),
            "event_count": parts.sidecar.header["eventCount"],
            "attempt_count": parts.sidecar.header["attempts"],
            "log_bytes": opened.file_bytes,
            "assembled_bytes": assembled.stat().st_size,
            "sidecar_bytes": sidecar.stat().st_size,
        }
    if as_json:
        write_json(members)
        return 0
    write_line(
        f"{log}: {size_text(members['log_bytes'])}, "
        f"{members['event_count']:,} events, {members['attempt_count']:,} attempts"
    )
    for name in ("assembled", "sidecar"):
        write_line(f"{members[name]}: {size_text(members[f'{name}_bytes'])}")
    return 0


@click.command()
@click.argument("assembled", type=PATH, help="An assembled log or its directory.")
@click.argument(
    "sidecar",
    type=PATH,
    required=False,
    help="Its replay sidecar. Default: the one beside it.",
)
@click.option(
    "--out",
    "-o",
    type=PATH,
    required=True,
    help="The new log file, or a directory.",
)
@_compression_option
def join(assembled: Path, sidecar: Path | None, *, out: Path, compression: Any) -> int:
    """Put the streams of a sidecar back: write the log that was split."""
    from dsh_codec.sidecar import join as join_log

    with open_log(assembled) as opened:
        beside = sidecar or _beside(Path(opened.path or assembled))
        with Sidecar.open(beside) as side, join_log(opened, side) as joined:
            kept = opened.compression if compression is None else compression
            target = out / log_filename(4, compression=kept) if out.is_dir() else out
            _publish(target, stored(log_text(joined), kept))
    write_line(f"{target}: {size_text(target.stat().st_size)}, equal to its source")
    return 0


@click.command()
@log_argument
@click.option(
    "--plan",
    type=click.Choice(["each", "last", "none"]),
    default="each",
    help="Which plans are shown.",
)
@click.option(
    "--title",
    type=click.Choice(["last", "none"]),
    default="last",
    help="Whether the title is shown.",
)
@click.option(
    "--missing-image",
    type=click.Choice(["placeholder", "skip", "error"]),
    default="placeholder",
    help="What stands for images, which lie outside of the log.",
)
@click.option("--meta", is_flag=True, help="Add seq, time, turn and step.")
@_strict_option
@json_option
def load(
    log: Path,
    *,
    plan: Any,
    title: Any,
    missing_image: Any,
    meta: bool,
    strict_current: bool,
    as_json: bool,
) -> int:
    """Write the ACP session/update notifications that show a stored session again."""
    from dsh_codec.load import load_updates

    del as_json  # It is the only form there is.
    with open_log(log) as opened:
        for notification in load_updates(
            opened,
            plan=plan,
            title=title,
            missing_image=missing_image,
            meta=meta,
            strict_current=strict_current,
        ):
            write_json(notification)
    return 0


@click.group(no_args_is_help=True)
def replay() -> None:
    """Replay recorded sessions."""


@replay.command()
@click.argument(
    "source", type=PATH, help="A replay sidecar, a log, or a session directory."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port; 0 takes a free one.",
)
@click.option(
    "--pace",
    type=click.Choice(["instant", "recorded"]),
    default="recorded",
    help="How fast it answers.",
)
@click.option(
    "--scale",
    type=click.FloatRange(min=0),
    default=1.0,
    help="Factor of the recorded delays.",
)
@click.option(
    "--api-key",
    envvar="DSH_REPLAY_KEY",
    show_envvar=True,
    help="Key that callers have to send.",
)
@_strict_option
def serve(
    source: Path,
    *,
    port: int,
    pace: str,
    scale: float,
    api_key: str | None,
    strict_current: bool,
) -> int:
    """Answer the model calls of a harness from a recorded session, until interrupted.

    The first line of output is the address, for DEEPSEEK_BASE_URL. Exit code 1: the harness
    asked for more or for less than was recorded.
    """
    from dsh_codec.replay import Recorded, ReplayModel
    from dsh_codec.replay_server import ReplayServer

    with ExitStack() as stack:
        recording = _recording(source)
        stack.callback(recording.close)
        model = ReplayModel(
            recording,
            pace="instant" if pace == "instant" else Recorded(scale),
            strict_current=strict_current,
        )
        with ReplayServer(model, port=port, api_key=api_key) as server:
            write_line(server.url)
            sys.stdout.flush()
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
        failures = list(server.failures)
        try:
            model.close()
        except ReplayError as error:
            failures.append(error)
    for failure in failures:
        complain(failure)
    return 1 if failures else 0


def _recording(source: Path) -> Sidecar | Log:
    """Open a sidecar, or else a log."""
    if not source.is_dir():
        try:
            return Sidecar.open(source)
        except SidecarError as error:
            if error.reason == "version" or ".replay." in source.name:
                raise
    return open_log(source)


def _beside(log: Path) -> Path:
    """Return the sidecar beside a log; the one stored like the log where both exist."""
    names = [sidecar_filename(compression="none"), sidecar_filename(compression="zstd")]
    if log.name.endswith(".zstd"):
        names.reverse()
    for name in names:
        if (log.parent / name).exists():
            return log.parent / name
    return log.parent / names[0]


def _require_new(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "there is such a file already", str(path))


def _publish(path: Path, parts: Iterable[bytes]) -> None:
    from dsh_codec.durable import OsFileSystem, publish

    publish(OsFileSystem(), str(path), parts)
