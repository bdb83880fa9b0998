"""How commands write: lines, JSON, tables, progress and complaints.

On a terminal there are colours, tables and bars, by rich, which is imported for them only.
Elsewhere there is plain text, one line a thing.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dsh_codec._backend import kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from rich.console import Console
    from rich.progress import Progress

    from dsh_codec.find import Session

_Item = TypeVar("_Item")

_STYLES: Final = {
    "sound": "green",
    "current": "green",
    "migration-required": "cyan",
    "torn": "yellow",
    "ambiguous": "yellow",
}
_CONTROLS: Final = {
    code: f"\\x{code:02x}"
    for code in (*range(32), *range(127, 160))
    if chr(code) not in "\t\n"
}


def printable(text: str) -> str:
    """Return text that any output takes and that cannot steer a terminal.

    Lone surrogates and control characters, which logs and paths may hold, become escapes.
    """
    return text.translate(_CONTROLS).encode("utf-8", "backslashreplace").decode()


def one_line(text: str) -> str:
    """Return printable text without line feeds: a path with one would forge another line."""
    return printable(text).replace("\n", "\\x0a")


def as_cell(text: str) -> str:
    """Return printable text that stays in its cell: without line feeds and tabs."""
    return one_line(text).replace("\t", "\\x09")


def write_json(value: Any) -> None:
    """Write a value as one line of JSON."""
    sys.stdout.buffer.write(kernel.dump(value) + b"\n")


def write_line(text: str, *, status: str | None = None) -> None:
    """Write a line; the first place of the status behind a colon has its colour."""
    text = one_line(text)
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(f"{text}\n".encode())
        return
    from rich.text import Text

    line = Text(text)
    if status is not None:
        place = text.find(f": {status}") + 2
        style = _STYLES.get(status, "bold red")
        line.stylize(style, place, place + len(status))
    _screen().print(line)


def write_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table; not on a terminal: lines of cells between tabs, without titles."""
    if not sys.stdout.isatty():
        for cells in rows:
            write_line("\t".join(map(as_cell, cells)))
        return
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(*titles, box=None)
    for cells in rows:
        table.add_row(*(Text(as_cell(cell), _STYLES.get(cell, "")) for cell in cells))
    # Long lines are for the terminal to wrap: a path that is cut off cannot be copied.
    screen = _screen()
    unbounded = screen.options.update(max_width=1 << 16)
    width = Measurement.get(screen, unbounded, table).maximum
    Console(width=max(width, screen.width)).print(table, crop=False)


def say(text: str) -> None:
    """Write a line to the standard error output, after what was written before.

    Where nobody can read it (a full disk, a pipe without a reader), the exit code still tells.
    """
    sys.stdout.flush()
    with suppress(OSError):
        sys.stderr.write(f"{one_line(text)}\n")


def complain(error: Exception) -> int:
    """Say what went wrong.

    Returns:
        The exit code.

    Raises:
        BrokenPipeError: The reader of the output went away; nobody would see a message.
    """
    if isinstance(error, BrokenPipeError):
        raise error
    say(f"dsh-codec: {error}")
    return exit_code_of(error)


def exit_code_of(error: Exception) -> int:
    """Return the exit code of a command that this error ended."""
    from dsh_codec.check import status_of
    from dsh_codec.report import EXIT_CODES

    return EXIT_CODES[status_of(error)]


def report_errors(errors: Iterable[Session]) -> int:
    """Name the sessions that could not be read and are not counted.

    Returns:
        The highest exit code of all; 0 if there are none.
    """
    code = 0
    for session in errors:
        assert session.error is not None  # noqa: S101 - that is what they are listed for
        code = max(code, exit_code_of(session.error))
        place = "" if session.path in str(session.error) else f"{session.path}: "
        say(f"dsh-codec: not counted: {place}{session.error}")
    return code


def with_progress(
    items: Iterable[_Item], what: str, *, count: Callable[[], int], is_json: bool
) -> Iterator[_Item]:
    """Yield the items, and show how many are done where somebody sees it.

    Args:
        items: What takes its time.
        what: What is done to them.
        count: Returns how many there are; asked only where it is shown.
        is_json: Whether the output is JSON.
    """
    total = count() if _is_bar_seen(is_json=is_json) else 0
    if total < 2:
        yield from items
        return
    with _bar() as bar:
        yield from bar.track(items, total=total, description=what)


@contextmanager
def byte_progress(
    paths: Iterable[str], what: str, *, is_json: bool
) -> Generator[Callable[[int], None] | None]:
    """Give a function that shows how many bytes of the files are done, where it is seen."""
    if not _is_bar_seen(is_json=is_json):
        yield None
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn

    files = [path for path in map(Path, paths) if path.is_file()]
    total_bytes = sum(path.stat().st_size for path in files)
    with _bar(DownloadColumn(), TransferSpeedColumn()) as bar:
        task = bar.add_task(what, total=total_bytes)

        def show(done_bytes: int) -> None:
            bar.update(task, completed=done_bytes)

        yield show


@contextmanager
def count_progress(what: str) -> Generator[Callable[[int, int], None] | None]:
    """Give a function that shows how many of how many are done, where it is seen."""
    if not sys.stderr.isatty():
        yield None
        return
    with _bar() as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, count: bar.update(task, completed=done, total=count)


def _is_bar_seen(*, is_json: bool) -> bool:
    # JSON is written past the console: on the same terminal it would cross the bar.
    return sys.stderr.isatty() and not (is_json and sys.stdout.isatty())


def _bar(*columns: Any) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    # Lines that appear on the same terminal have to push the bar down: one console for both.
    is_shared = sys.stdout.isatty()
    return Progress(
        *Progress.get_default_columns(),
        *columns,
        console=_screen() if is_shared else Console(stderr=True),
        redirect_stdout=is_shared,
        transient=True,
    )


@cache
def _screen() -> Console:
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False)
