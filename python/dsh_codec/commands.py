"""The commands of `dsh-codec`: what they take and how they show what the library found."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, cast

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from dsh_codec._backend import backend, kernel
from dsh_codec.check import check_many, status_of
from dsh_codec.errors import DshCodecError, StreamError
from dsh_codec.find import Session, find
from dsh_codec.log import Log, open as open_log
from dsh_codec.report import EXIT_CODES, Report, size_text, summarize, time_text

if TYPE_CHECKING:
    from dsh_codec.attempts import Attempt
    from dsh_codec.rules.catalog import Rule

_Item = TypeVar("_Item")
Task = Callable[[], int]
"""A command with its arguments, ready to run; gives the exit code."""

_STYLES: Final = {
    "sound": "green",
    "current": "green",
    "migration-required": "cyan",
    "torn": "yellow",
    "ambiguous": "yellow",
}

_COMMANDS_HERE: Final = ("check", "list", "cat", "info")
_CONTROLS: Final = {
    code: f"\\x{code:02x}"
    for code in (*range(32), *range(127, 160))
    if chr(code) not in "\t\n"
}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Check, list and read session logs of the DeepSeek Harness.",
)

JsonOption = Annotated[bool, typer.Option("--json", help="JSON, one object a line.")]
CompressionOption = Annotated[
    Literal["none", "zstd"] | None,
    typer.Option(help="The encoding to read where a session directory holds both."),
]
ModeOption = Annotated[
    Literal["strict", "recoverable"],
    typer.Option(help="strict refuses a torn tail, recoverable names its offset."),
]


def parse(argv: Sequence[str]) -> Task | None:
    """Return the task that the arguments ask for, or None after a message about them."""
    if next(iter(argv), None) not in _COMMANDS_HERE:
        _add_other_commands()
    try:
        task: Any = app(args=list(argv), prog_name="dsh-codec", standalone_mode=False)
    except _UsageError as error:
        error.show()  # type: ignore[attr-defined]  # of the parser inside typer
        return None
    if task is None or isinstance(task, int):
        return partial(int, task or 0)  # Help and the like are through by now.
    return cast("Task", task)


# Typer brings its own copy of the parser or uses an installed one; the class is the same here.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.")
    ] = False,
) -> None:
    if version:
        from dsh_codec import __version__

        _write_line(f"dsh-codec {__version__} ({backend} kernel)")
        raise typer.Exit
    if context.invoked_subcommand is None:
        _write_line(context.get_help())
        raise typer.Exit(64)


def _known_rule(name: str) -> Rule:
    # The rules take time to import, and every other command does without them.
    from dsh_codec.rules.catalog import explain

    found = explain(name)
    if found is None:
        message = (
            f"there is no rule {name!r}; reports name rules, such as A1 or L2.turn-end"
        )
        raise typer.BadParameter(message)
    return found


def _show_rule(rule: Rule) -> int:
    typer.echo(f"{rule.id} ({rule.layer}, spec {rule.place}): {rule.text}")
    return 0


@app.command()
def check(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files, session directories or roots.")
    ] = None,
    *,
    level: Annotated[
        Literal["scan", "read", "restore", "full"],
        typer.Option(help="How deep to check."),
    ] = "read",
    rule: Annotated[
        str | None, typer.Option("--explain", help="Print what a rule demands.")
    ] = None,
    mode: ModeOption = "recoverable",
    compression: CompressionOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Details of every log.")
    ] = False,
    as_json: JsonOption = False,
) -> Task:
    """Check logs: one line a log. Exit code 0 sound, 1 damaged, 2 unsupported or unreadable."""
    if rule is not None:
        return partial(_show_rule, _known_rule(rule))
    if not paths:
        message = "name the logs to check"
        raise typer.BadParameter(message)

    def run() -> int:
        totals: Counter[str] = Counter()
        code = 0
        logs = list(_log_paths(paths, compression))
        with _byte_progress(logs, is_shown=not as_json) as progress:
            reports = check_many(
                logs, progress=progress, level=level, mode=mode, compression=compression
            )
            for report in reports:
                totals[report.status] += 1
                code = max(code, report.exit_code)
                if as_json:
                    _write_json(report.to_dict())
                else:
                    _write_report(report, verbose=verbose)
        if sum(totals.values()) != 1 and not as_json:
            counts = ", ".join(
                f"{count:,} {status}" for status, count in totals.items()
            )
            sys.stdout.flush()
            sys.stderr.write(
                f"{sum(totals.values()):,} logs: {counts or 'none found'}\n"
            )
        return code

    return run


@app.command("list")
def list_sessions(
    root: Annotated[Path, typer.Argument(help="A sessions root or any directory.")],
    *,
    compression: CompressionOption = None,
    as_json: JsonOption = False,
) -> Task:
    """List the sessions under a root, from their headers."""

    def run() -> int:
        try:
            sessions = find(root, compression=compression)
            if as_json:
                for session in sessions:
                    _write_json(_session_members(session))
            else:
                _write_table(
                    ["session", "status", "gen", "size", "created", "lineage", "path"],
                    map(_session_cells, sessions),
                )
        except OSError as error:
            return _complain(error)
        return 0

    return run


@app.command()
def cat(
    log: Annotated[Path, typer.Argument(help="A log file or a session directory.")],
    *,
    expand: Annotated[
        bool, typer.Option("--expand", help="One timed chunk a line instead of events.")
    ] = False,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type", help="Only these event types (with --expand: chunk types)."
        ),
    ] = None,
    first: Annotated[int, typer.Option("--from", min=0, help="First seq.")] = 0,
    last: Annotated[
        int | None, typer.Option("--to", min=0, help="Last seq, included.")
    ] = None,
    mode: ModeOption = "recoverable",
    compression: CompressionOption = None,
    as_json: JsonOption = False,
) -> Task:
    """Write events as JSON lines, `sourceEventSeqs` and packed rows written out."""
    del as_json  # It is the only form there is.

    def run() -> int:
        wanted = frozenset(types or ())
        try:
            with open_log(log, mode=mode, compression=compression) as opened:
                if expand and not wanted:
                    for lines in _chunk_lines(opened, first, last):
                        sys.stdout.buffer.write(lines)
                    return 0
                values = (
                    _chunks(opened, first, last)
                    if expand
                    else _events(opened, first, last)
                )
                for kind, value in values:
                    if not wanted or kind in wanted:
                        _write_json(value)
        except (DshCodecError, OSError) as error:
            return _complain(error)
        return 0

    return run


@app.command()
def convert(
    log: Annotated[Path, typer.Argument(help="A log file or a session directory.")],
    *,
    first: Annotated[int, typer.Option("--from", min=0, help="First seq.")] = 0,
    last: Annotated[
        int | None, typer.Option("--to", min=0, help="Last seq, included.")
    ] = None,
    mode: ModeOption = "recoverable",
    compression: CompressionOption = None,
    as_json: JsonOption = False,
) -> Task:
    """Write attempts as JSON lines, with their streams as records of generation 4."""
    del as_json  # It is the only form there is.

    def run() -> int:
        try:
            with open_log(log, mode=mode, compression=compression) as opened:
                for attempt in _attempts(opened, first, last):
                    members = _place(attempt) | {"outcome": attempt.outcome}
                    records = _records_text(opened, attempt)
                    start = kernel.dump(members)[:-1] + b',"stream":'
                    # Records may be long: they are not copied once more.
                    sys.stdout.buffer.writelines((start, records, b"}\n"))
        except (DshCodecError, OSError) as error:
            return _complain(error)
        return 0

    return run


@app.command()
def info(
    log: Annotated[Path, typer.Argument(help="A log file or a session directory.")],
    *,
    mode: ModeOption = "recoverable",
    compression: CompressionOption = None,
    as_json: JsonOption = False,
) -> Task:
    """Sum up a log: header, frames, events by type, attempts, tokens, times, sizes."""

    def run() -> int:
        try:
            with open_log(log, mode=mode, compression=compression) as opened:
                summary = summarize(opened)
        except (DshCodecError, OSError) as error:
            return _complain(error)
        if as_json:
            _write_json(summary.to_dict())
        elif sys.stdout.isatty():
            _write_table(["what", "value"], map(list, summary.rows()))
        else:
            for name, value in summary.rows():
                _write_line(f"{name}: {value}")
        return 0

    return run


@app.command()
def migrate(
    paths: Annotated[
        list[Path], typer.Argument(help="Files, session directories or roots.")
    ],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do everything but publish.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="A root to publish under, not beside the logs.")
    ] = None,
    report: Annotated[
        Literal["text", "json"], typer.Option(help="json: one object a log.")
    ] = "text",
    with_salvage: Annotated[
        bool,
        typer.Option(
            "--salvage",
            help="Export refused logs as far as they go. Not lossless, and marked so.",
        ),
    ] = False,
    children: Annotated[
        Path | None,
        typer.Option(help="Root to look for child sessions, if not under PATHS."),
    ] = None,
    no_children: Annotated[
        bool, typer.Option("--no-children", help="The sessions have no children.")
    ] = False,
    compression: CompressionOption = None,
) -> Task:
    """Publish logs of older generations as generation 4, beside their unchanged sources.

    Exit code 0 all current now, 1 damaged, 2 refused or unreadable.
    """

    def run() -> int:
        from dsh_codec.migrate import batch

        try:
            tasks = list(
                batch.plan_migrations(
                    paths,
                    children=() if no_children else children,
                    compression=compression,
                )
            )
        except OSError as error:
            return _complain(error)
        outcomes = []
        is_shown = report == "text"
        for task in _with_progress(tasks, is_shown=is_shown, what="migrating"):
            outcome = batch.migrate_task(
                task,
                out=out,
                dry_run=dry_run,
                with_salvage=with_salvage,
                compression=compression,
            )
            outcomes.append(outcome)
            if is_shown:
                _write_line(outcome.text)
            else:
                _write_json(outcome.to_dict())
        if is_shown:
            sys.stdout.flush()
            sys.stderr.write(f"{batch.summary_of(outcomes)}\n")
        return max((outcome.exit_code for outcome in outcomes), default=0)

    return run


def _log_paths(paths: list[Path], compression: Any) -> Iterator[str]:
    """Yield the logs that the arguments name; what cannot be read is for the check to say."""
    for path in paths:
        found = False
        if path.is_dir():
            for session in find(path, compression=compression):
                found = True
                yield session.path
        if not found:
            yield str(path)


def _with_progress(
    items: list[_Item], *, is_shown: bool, what: str = "checking"
) -> Iterator[_Item]:
    if len(items) < 2 or not (is_shown and sys.stdout.isatty()):
        yield from items
        return
    with Progress(console=_screen(), transient=True) as progress:
        yield from progress.track(items, description=what)


@contextmanager
def _byte_progress(
    paths: list[str], *, is_shown: bool
) -> Generator[Callable[[int], None] | None]:
    """Give a function that shows how many bytes of the files are done, where that is wanted."""
    if not (is_shown and sys.stdout.isatty()):
        yield None
        return
    files = [path for path in map(Path, paths) if path.is_file()]
    total_bytes = sum(path.stat().st_size for path in files)
    columns = (
        *Progress.get_default_columns(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=_screen(), transient=True) as bar:
        task = bar.add_task("checking", total=total_bytes)

        def show(done_bytes: int) -> None:
            bar.update(task, completed=done_bytes)

        yield show


def _events(log: Log, first: int, last: int | None) -> Iterator[tuple[str | None, Any]]:
    for event in log:
        if last is not None and event.seq > last:
            return
        if event.seq >= first:
            yield event.type, event.envelope


def _attempts(log: Log, first: int, last: int | None) -> Iterator[Attempt]:
    for attempt in log.attempts():
        if last is not None and attempt.seq > last:
            return
        if attempt.seq >= first:
            yield attempt


def _place(attempt: Attempt) -> dict[str, Any]:
    return {
        "seq": attempt.seq,
        "turn": attempt.turn,
        "step": attempt.step,
        "attempt": attempt.number,
    }


def _chunks(log: Log, first: int, last: int | None) -> Iterator[tuple[str | None, Any]]:
    for attempt in _attempts(log, first, last):
        yield from _chunks_of(log, attempt)


def _chunks_of(log: Log, attempt: Attempt) -> Iterator[tuple[str | None, Any]]:
    place = _place(attempt)
    try:
        for time, chunk in attempt.stream.iter_expand():
            yield chunk.get("type"), place | {"time": time, "chunk": chunk}
    except StreamError as error:
        raise error.located(path=log.path, seq=attempt.seq) from None


def _chunk_lines(log: Log, first: int, last: int | None) -> Generator[bytes]:
    """Yield what `_chunks` does as JSON lines, from the bytes of the rows."""
    for attempt in _attempts(log, first, last):
        stored = attempt.stream.stored
        if stored is not None:
            try:
                prefix = kernel.dump(_place(attempt))[1:-1]
                yield kernel.expand_lines(stored, prefix=prefix)
                continue
            except StreamError:
                pass  # Chunk by chunk, so that those before the fault are shown.
        for _, value in _chunks_of(log, attempt):
            yield kernel.dump(value) + b"\n"


def _records_text(log: Log, attempt: Attempt) -> bytes:
    stored = attempt.stream.stored
    if stored is None:
        return kernel.dump(attempt.stream.records)
    try:
        return kernel.pack_lines(stored)
    except StreamError as error:
        raise error.located(path=log.path, seq=attempt.seq) from None


def _session_members(session: Session) -> dict[str, Any]:
    fields = {} if session.header is None else session.header.fields
    return {
        "path": session.path,
        "status": session.status,
        "id": session.id,
        "generation": session.generation,
        "compression": session.compression,
        "file_bytes": session.file_bytes,
        "created_at": fields.get("createdAt"),
        "cwd": fields.get("cwd"),
        "parent": session.parent,
        "lineage": session.lineage,
        "retained": list(session.retained),
        "leftovers": list(session.leftovers),
        "error": None if session.error is None else str(session.error),
    }


def _session_cells(session: Session) -> list[str]:
    created = None if session.header is None else session.header.fields["createdAt"]
    where = (
        session.path if session.error is None else f"{session.path}: {session.error}"
    )
    return [
        session.id or "-",
        session.status,
        "-" if session.generation is None else f"v{session.generation}",
        "-" if session.file_bytes is None else size_text(session.file_bytes),
        "-" if created is None else time_text(int(created)),
        session.lineage or "-",
        where,
    ]


def _complain(error: Exception) -> int:
    if isinstance(error, BrokenPipeError):
        raise error
    sys.stdout.flush()
    sys.stderr.write(f"dsh-codec: {_printable(str(error))}\n")
    return EXIT_CODES[status_of(error)]


def _write_report(report: Report, *, verbose: bool) -> None:
    text = Text(_printable(report.text(verbose=verbose)))
    place = text.plain.find(f": {report.status}") + 2
    style = _STYLES.get(report.status, "bold red")
    text.stylize(style, place, place + len(report.status))
    _write_text(text)


def _write_table(names: list[str], rows: Iterator[list[str]]) -> None:
    if not sys.stdout.isatty():
        for cells in rows:
            _write_line("\t".join(cells))
        return
    table = Table(*names, box=None)
    for cells in rows:
        table.add_row(
            *(Text(_printable(cell), _STYLES.get(cell, "")) for cell in cells)
        )
    # Long lines are for the terminal to wrap: a path that is cut off cannot be copied.
    screen = _screen()
    unbounded = screen.options.update(max_width=1 << 16)
    width = Measurement.get(screen, unbounded, table).maximum
    Console(width=max(width, screen.width)).print(table, crop=False)


@cache
def _screen() -> Console:
    return Console(soft_wrap=True, highlight=False)


def _write_text(text: Text) -> None:
    if sys.stdout.isatty():
        _screen().print(text)
    else:
        sys.stdout.buffer.write(f"{text.plain}\n".encode())


def _write_json(value: Any) -> None:
    sys.stdout.buffer.write(kernel.dump(value) + b"\n")


def _write_line(text: str) -> None:
    _write_text(Text(_printable(text)))


def _printable(text: str) -> str:
    """Return text that any output takes and that cannot steer a terminal.

    Lone surrogates and control characters, which logs and paths may hold, become escapes.
    """
    return text.translate(_CONTROLS).encode("utf-8", "backslashreplace").decode()


@cache
def _add_other_commands() -> None:
    """Register the commands of the other modules, which take time to import."""
    from dsh_codec import commands_replay, commands_storage

    importlib.import_module(
        "dsh_codec.commands_answers"
    )  # This registers its commands.
    commands_storage.add_to(app)
    commands_replay.add_to(app)
