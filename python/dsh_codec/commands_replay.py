"""The commands that split, join, load and replay logs."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsh_codec.commands import PATH, json_option, log_argument, require_finite
from dsh_codec.commands_output import complain, say, write_json, write_line
from dsh_codec.errors import ReplayError, SidecarError
from dsh_codec.log import open as open_log
from dsh_codec.report import size_text
from dsh_codec.sidecar_file import Sidecar, sidecar_filename

if TYPE_CHECKING:
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
@click.option("--out", "-o", type=PATH, required=True, help="Directory for the files.")
@_compression_option
@click.option(
    "--allow-opaque", is_flag=True, help="Move streams that do not expand as they are."
)
@click.option(
    "--drop-reasoning",
    is_flag=True,
    help="Write one log without streams and reasoning, for good: no sidecar, no join.",
)
@_strict_option
@json_option
def split(
    log: Path,
    *,
    out: Path,
    compression: Any,
    allow_opaque: bool,
    drop_reasoning: bool,
    strict_current: bool,
    as_json: bool,
) -> int:
    """Move the streams of a log to a replay sidecar.

    Writes two files: a log without its streams, and the sidecar that holds them. `join` makes
    the log of them again; the log that is split stays as it is.
    """
    from dsh_codec.sidecar_publish import drop_reasoning_to, split_to

    with open_log(log) as opened:
        log_bytes = opened.file_bytes
        if drop_reasoning:
            path = drop_reasoning_to(
                opened, out, compression=compression, strict_current=strict_current
            )
            files = {"without_reasoning": path}
        else:
            files = split_to(
                opened,
                out,
                compression=compression,
                allow_opaque=allow_opaque,
                strict_current=strict_current,
            )._asdict()
    sizes = {name: path.stat().st_size for name, path in files.items()}
    if as_json:
        members: dict[str, Any] = {name: str(path) for name, path in files.items()}
        members["log_bytes"] = log_bytes
        members |= {f"{name}_bytes": size for name, size in sizes.items()}
        if not drop_reasoning:
            with Sidecar.open(files["sidecar"]) as side:
                members["event_count"] = side.header["eventCount"]
                members["attempt_count"] = side.header["attempts"]
        write_json(members)
    else:
        write_line(f"{log}: {size_text(log_bytes)}")
        for name, path in files.items():
            write_line(f"{path}: {size_text(sizes[name])}")
    if drop_reasoning:
        say(
            "reasoning, streams and replay states are left out for good; the file is not the "
            "log, its last event says so, and no sidecar makes the log of it again"
        )
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
    """Put the streams of a sidecar back into its log.

    Writes the log that was split, or nothing: every value is covered by a digest.
    """
    from dsh_codec.sidecar_publish import join_to

    with open_log(assembled) as opened:
        beside = sidecar or _beside(Path(opened.path or assembled))
        with Sidecar.open(beside) as side:
            target = join_to(opened, side, out, compression=compression)
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
    """Write the ACP notifications that show a session again.

    One `session/update` a line, as a client gets them that loads the session.
    """
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
    callback=require_finite,
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
    """Answer the model calls of a harness from a recording.

    Until interrupted. The first line of output is the address, for DEEPSEEK_BASE_URL. Exit code 1: the harness
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
