"""The command that shows live frames at work."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import click

from dsh_codec.commands import PATH, json_option, require_finite
from dsh_codec.commands_output import printable, write_json, write_line
from dsh_codec.live.demo import Demo, transcript

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, RenderableType

    from dsh_codec.live.demo import DemoResult
    from dsh_codec.live.window import Change

__all__ = ["live_demo"]

_DISAGREED: Final = 1
_STYLES: Final = {
    "user": "bold",
    "reasoning": "italic dim",
    "tool": "cyan",
    "failed": "yellow",
    "note": "dim",
}


@click.command()
@click.option("--seed", type=int, default=0, help="Seed of the script.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    callback=require_finite,
    help="How many times faster than a model speaks.",
)
@click.option(
    "--root",
    type=PATH,
    help="Sessions root that keeps the log. Default: it is thrown away.",
)
@json_option
def live_demo(*, seed: int, speed: float, root: Path | None, as_json: bool) -> int:
    """Watch a scripted model with two viewers.

    One of them is cut off and comes back. Exit code 0 if the log ends up sound and both viewers
    show exactly what it holds, else 1.
    """
    with ExitStack() as stack:
        kept = root or stack.enter_context(tempfile.TemporaryDirectory())
        demo = Demo(kept, seed=seed, speed=speed)
        if as_json:
            result = asyncio.run(demo.run(_tell_nobody))
        elif sys.stdout.isatty():
            result = asyncio.run(_on_screen(demo))
        else:
            result = asyncio.run(demo.run(_Plain(demo).tell))
    if as_json:
        write_json(_members(result, is_kept=root is not None))
    else:
        _write_result(result, is_kept=root is not None)
    return 0 if result.has_agreed else _DISAGREED


def _tell_nobody(number: int, change: Change | None) -> None:
    del number, change


def _members(result: DemoResult, *, is_kept: bool) -> dict[str, Any]:
    viewers = zip(result.is_equal, result.openings, result.live_rows, strict=True)
    members: dict[str, Any] = {
        "agreed": result.has_agreed,
        "status": result.status,
        "event_count": result.event_count,
        "viewers": [
            {"equal": equal, "openings": openings, "live_chunks": rows}
            for equal, openings, rows in viewers
        ],
    }
    return members | ({"path": result.path} if is_kept else {})


def _write_result(result: DemoResult, *, is_kept: bool) -> None:
    place = result.path if is_kept else "log"
    text = f"{place}: {result.status}, {result.event_count} events"
    write_line(text, status=result.status)
    viewers = zip(result.is_equal, result.openings, result.live_rows, strict=True)
    for number, (equal, openings, rows) in enumerate(viewers, 1):
        verdict = "shows the log" if equal else "does not show the log"
        write_line(
            f"viewer {number}: {verdict}; opened {openings}x, {rows} live chunks shown"
        )


class _Plain:
    """Tells a line for each event that a viewer shows, and for each change of its status."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._told = [-1, -1]

    def tell(self, number: int, change: Change | None) -> None:
        viewer = f"viewer {number + 1}"
        if change is None:
            write_line(f"{viewer}\t{self._demo.statuses[number]}")
            return
        for entry in change.entries:
            # A new opening shows again what the viewer has shown before.
            if entry.is_durable and entry.seq > self._told[number]:
                self._told[number] = int(entry.seq)
                write_line(f"{viewer}\t{entry.seq}\t{entry.event['type']}")
        sys.stdout.flush()


async def _on_screen(demo: Demo) -> DemoResult:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False) as screen:
        last = 0.0

        def show(_: int, change: Change | None) -> None:
            nonlocal last
            # At most 30 pictures a second: one a chunk would slow the demonstration down.
            now = asyncio.get_running_loop().time()
            if change is None or now - last > 1 / 30:
                last = now
                screen.update(_picture(demo, console), refresh=True)

        result = await demo.run(show)
        demo.statuses[:] = [
            "shows the log" if equal else "does not show the log"
            for equal in result.is_equal
        ]
        screen.update(_picture(demo, console), refresh=True)
    return result


def _picture(demo: Demo, console: Console) -> RenderableType:
    from rich.table import Table

    height = max(console.height - 6, 6)
    grid = Table.grid(expand=True)
    for _ in range(2):
        grid.add_column(ratio=1)
    width = max(console.width // 2 - 4, 8)
    grid.add_row(*(_panel(demo, number, width, height) for number in range(2)))
    return grid


def _panel(demo: Demo, number: int, width: int, height: int) -> RenderableType:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    window = demo.window(number)
    text = Text()
    for line in transcript(window):
        style = _STYLES.get(line.kind, "")
        text.append(printable(line.text), style)
        text.append("▌\n" if line.is_live else "\n", "green")
    # The last lines that fit: a panel that is cut off at its end would hide what is new.
    lines = text.wrap(Console(width=width), width)[-height:]
    body = Text("\n").join(lines)
    rows = sum(not entry.is_durable for entry in window.entries)
    return Panel(
        body,
        title=f"viewer {number + 1} {demo.statuses[number]}",
        subtitle=f"{len(window) - rows} events, {rows} live rows",
        height=height + 2,
    )
