"""The commands of `dsh-codec`: which there are, how one is run, options that several take.

A command is a function with click's decorators in a module `commands_*`. It is found by its line
in `_COMMANDS`, and its module is imported when somebody asks for it. It returns its exit code;
errors of the library and of the system may pass, `run` puts them into words.
"""

from __future__ import annotations

import importlib
import os
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dsh_codec.commands_output import complain, printable, write_line
from dsh_codec.errors import DshCodecError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

__all__ = ["EXIT_USAGE", "LazyGroup", "require_finite", "run"]

EXIT_USAGE: Final = 64

_COMMANDS: Final = {
    "check": "commands_check:check",
    "list": "commands_logs:list_sessions",
    "cat": "commands_logs:cat",
    "convert": "commands_logs:convert",
    "info": "commands_logs:info",
    "migrate": "commands_storage:migrate",
    "usage": "commands_answers:show_usage",
    "timing": "commands_answers:show_timing",
    "find": "commands_answers:find_sessions",
    "search": "commands_answers:search_text",
    "report": "commands_report:report",
    "tail": "commands_storage:tail",
    "repair": "commands_storage:repair",
    "repack": "commands_storage:repack",
    "split": "commands_replay:split",
    "join": "commands_replay:join",
    "load": "commands_replay:load",
    "replay": "commands_replay:replay",
    "live-demo": "commands_live:live_demo",
}
"""Name of a command: the module of this package and the object in it."""

_COMPLETION: Final = "_DSH_CODEC_COMPLETE"


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def __init__(self, *args: Any, places: Mapping[str, str], **more: Any) -> None:
        """Make a group.

        Args:
            *args: For `click.Group`.
            places: Name of a command: `module:object` in this package.
            **more: For `click.Group`.
        """
        super().__init__(*args, **more)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in their order."""
        del ctx
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None where there is none of this name."""
        del ctx
        place = self._places.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        found: click.Command = getattr(
            importlib.import_module(f"dsh_codec.{module}"), name
        )
        return found


def _show_version(context: click.Context, _: click.Parameter, value: Any) -> None:
    if value:
        from dsh_codec import __version__, backend

        write_line(f"dsh-codec {__version__} ({backend} kernel)")
        context.exit()


@click.group(
    cls=LazyGroup,
    places=_COMMANDS,
    no_args_is_help=True,
    context_settings={"show_default": True},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Say which version this is.",
)
def _app() -> None:
    """Check, list and read session logs of the DeepSeek Harness.

    A session is a directory with a log in it, a root holds many of them. Commands that are given
    no root read that of the harness: $DSH_HOME/sessions, or else ~/.dsh/sessions.

    Exit codes: 0 sound, 1 damaged, 2 newer, unsupported or unreadable, 64 wrong usage; the
    highest of all logs.
    """


def run(argv: Sequence[str]) -> int:
    """Run the command that the arguments name.

    Returns:
        The exit code.
    """
    # Not by `_app.main`: that has ideas of its own about pipes, interrupts and exit codes.
    instruction = os.environ.get(_COMPLETION)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(_app, {}, "dsh-codec", _COMPLETION, instruction)
    try:
        with _app.make_context("dsh-codec", list(argv)) as context:
            return int(_app.invoke(context) or 0)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        with suppress(OSError):
            error.show()
        return EXIT_USAGE
    except (DshCodecError, OSError) as error:
        return complain(error)


def require_finite(_: click.Context, __: click.Parameter, value: float) -> float:
    """Refuse infinity, and NaN, which passes every range, as the value of an option."""
    if not isfinite(value):
        message = f"{value} is no finite number."
        raise click.BadParameter(message)
    return value


@contextmanager
def refusals() -> Generator[None]:
    """Turn what refuses an argument into a message about usage."""
    try:
        yield
    except DshCodecError:
        raise  # Some of them are a ValueError, too.
    except (ValueError, RuntimeError) as error:
        raise click.UsageError(printable(str(error))) from None


PATH: Final[click.Path] = click.Path(path_type=Path)

log_argument = click.argument(
    "log", type=PATH, help="A log file or a session directory."
)
logs_argument = click.argument(
    "paths", type=PATH, nargs=-1, help="Files, session directories or roots."
)
root_argument = click.argument(
    "root",
    type=PATH,
    required=False,
    help="A root or any directory. Default: the root of the harness.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="JSON, one object a line."
)
compression_option = click.option(
    "--compression",
    type=click.Choice(["none", "zstd"]),
    help="The encoding to read where a session directory holds both.",
)
mode_option = click.option(
    "--mode",
    type=click.Choice(["strict", "recoverable"]),
    default="recoverable",
    help="A torn tail: strict leaves it out (check: refuses it), recoverable reads what is "
    "complete in it.",
)
dry_run_option = click.option(
    "--dry-run",
    "is_dry_run",
    is_flag=True,
    help="Say what would be done, and do nothing.",
)
