"""The commands that split, join, load and replay logs."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable  # noqa: TC003 - typer looks at the annotations
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dsh_codec._backend import kernel
from dsh_codec.check import status_of
from dsh_codec.durable import OsFileSystem, publish
from dsh_codec.errors import DshCodecError, ReplayError, SidecarError
from dsh_codec.load import load_updates
from dsh_codec.log import open as open_log
from dsh_codec.names import log_filename
from dsh_codec.replay import Recorded, ReplayModel
from dsh_codec.replay_server import ReplayServer
from dsh_codec.report import EXIT_CODES, size_text
from dsh_codec.sidecar import join, split
from dsh_codec.sidecar_file import Sidecar, log_text, sidecar_filename, stored

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsh_codec.log import Log

__all__ = ["add_to"]

LogArgument = Annotated[Path, typer.Argument(help="A log file or a session directory.")]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict-current", help="Refuse logs of older generations; default: migrate."
    ),
]
CompressionOption = Annotated[
    Literal["none", "zstd"] | None,
    typer.Option(help="How to store the result. Default: as the log is."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, one object a line.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (_split, _join, _load):
        app.command(command.__name__.strip("_"))(command)
    replay = typer.Typer(no_args_is_help=True, help="Replay recorded sessions.")
    replay.command("serve")(_serve)
    app.add_typer(replay, name="replay")


def _split(
    log: LogArgument,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory for both files.")],
    compression: CompressionOption = None,
    allow_opaque: Annotated[
        bool,
        typer.Option(
            "--allow-opaque", help="Move streams that do not expand as they are."
        ),
    ] = False,
    strict_current: StrictOption = False,
    as_json: JsonOption = False,
) -> Callable[[], int]:
    """Write a log without its streams, and a replay sidecar that holds them."""

    def run() -> int:
        try:
            with (
                open_log(log) as opened,
                split(
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
        except (DshCodecError, OSError) as error:
            return _complain(error)
        if as_json:
            _write(members)
        else:
            _write_text(
                f"{log}: {size_text(members['log_bytes'])}, "
                f"{members['event_count']:,} events, {members['attempt_count']:,} attempts"
            )
            for name in ("assembled", "sidecar"):
                _write_text(f"{members[name]}: {size_text(members[f'{name}_bytes'])}")
        return 0

    return run


def _join(
    assembled: Annotated[
        Path, typer.Argument(help="An assembled log or its directory.")
    ],
    sidecar: Annotated[
        Path | None,
        typer.Argument(help="Its replay sidecar. Default: the one beside it."),
    ] = None,
    *,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The new log file, or a directory.")
    ],
    compression: CompressionOption = None,
) -> Callable[[], int]:
    """Put the streams of a sidecar back: write the log that was split."""

    def run() -> int:
        try:
            with open_log(assembled) as opened:
                beside = sidecar
                if beside is None:
                    beside = _beside(Path(opened.path or assembled))
                with Sidecar.open(beside) as side, join(opened, side) as joined:
                    kept = opened.compression if compression is None else compression
                    target = out
                    if out.is_dir():
                        target = out / log_filename(4, compression=kept)
                    _publish(target, stored(log_text(joined), kept))
        except (DshCodecError, OSError) as error:
            return _complain(error)
        _write_text(
            f"{target}: {size_text(target.stat().st_size)}, equal to its source"
        )
        return 0

    return run


def _load(
    log: LogArgument,
    *,
    plan: Annotated[
        Literal["each", "last", "none"], typer.Option(help="Which plans are shown.")
    ] = "each",
    title: Annotated[
        Literal["last", "none"], typer.Option(help="Whether the title is shown.")
    ] = "last",
    missing_image: Annotated[
        Literal["placeholder", "skip", "error"],
        typer.Option(help="What stands for images, which lie outside of the log."),
    ] = "placeholder",
    with_meta: Annotated[
        bool, typer.Option("--meta", help="Add seq, time, turn and step.")
    ] = False,
    strict_current: StrictOption = False,
    as_json: JsonOption = False,
) -> Callable[[], int]:
    """Write the ACP session/update notifications that show a stored session again."""
    del as_json  # It is the only form there is.

    def run() -> int:
        try:
            with open_log(log) as opened:
                for notification in load_updates(
                    opened,
                    plan=plan,
                    title=title,
                    missing_image=missing_image,
                    meta=with_meta,
                    strict_current=strict_current,
                ):
                    _write(notification)
        except (DshCodecError, OSError) as error:
            return _complain(error)
        return 0

    return run


def _serve(
    source: Annotated[
        Path, typer.Argument(help="A replay sidecar, a log, or a session directory.")
    ],
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")
    ] = 0,
    pace: Annotated[
        Literal["instant", "recorded"], typer.Option(help="How fast it answers.")
    ] = "recorded",
    scale: Annotated[
        float, typer.Option(min=0, help="Factor of the recorded delays.")
    ] = 1.0,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="DSH_REPLAY_KEY", help="Key that callers have to send."),
    ] = None,
    strict_current: StrictOption = False,
) -> Callable[[], int]:
    """Answer the model calls of a harness from a recorded session, until interrupted.

    The first line of output is the address, for DEEPSEEK_BASE_URL. Exit code 1: the harness
    asked for more or for less than was recorded.
    """

    def run() -> int:
        try:
            with ExitStack() as stack:
                recording = _recording(source)
                stack.callback(recording.close)
                model = ReplayModel(
                    recording,
                    pace="instant" if pace == "instant" else Recorded(scale),
                    strict_current=strict_current,
                )
                with ReplayServer(model, port=port, api_key=api_key) as server:
                    _write_text(server.url)
                    sys.stdout.flush()
                    with suppress(KeyboardInterrupt):
                        threading.Event().wait()
                failures = list(server.failures)
                try:
                    model.close()
                except ReplayError as error:
                    failures.append(error)
        except (DshCodecError, OSError) as error:
            return _complain(error)
        for failure in failures:
            _complain(failure)
        return 1 if failures else 0

    return run


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
    publish(OsFileSystem(), str(path), parts)


def _write(value: Any) -> None:
    sys.stdout.buffer.write(kernel.dump(value) + b"\n")


def _write_text(text: str) -> None:
    sys.stdout.buffer.write(_printable(text).encode() + b"\n")


def _complain(error: Exception) -> int:
    if isinstance(error, BrokenPipeError):
        raise error
    sys.stdout.flush()
    sys.stderr.write(f"dsh-codec: {_printable(str(error))}\n")
    return EXIT_CODES[status_of(error)]


def _printable(text: str) -> str:
    """Return text that cannot steer a terminal."""
    shown = "".join(
        char if char.isprintable() or char in "\t\n" else f"\\x{ord(char):02x}"
        for char in text
    )
    return shown.encode("utf-8", "backslashreplace").decode()
