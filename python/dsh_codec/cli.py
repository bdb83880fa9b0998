"""The command line: entry point, exit codes, what happens when something is missing.

Exit codes: 0 sound, 1 damaged, 2 unsupported or unreadable, 64 wrong usage; the highest of all
logs. 130 and 141 say, as everywhere, that the user or the reader of a pipe went away.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

EXIT_UNREADABLE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_PIPE: Final = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name; None: those of the process.

    Returns:
        The exit code.
    """
    _open_closed_streams()
    try:
        return _run(argv)
    finally:
        _drop_unwritten_errors()


def _run(argv: Sequence[str] | None) -> int:
    try:
        from dsh_codec import commands

        code = commands.run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "dsh_codec"):
            raise
        with suppress(OSError):
            sys.stderr.write(
                f"dsh-codec: this needs the package {missing!r}, which is not installed. "
                "Install it with: pip install 'dsh-codec[cli]'\n"
            )
        return EXIT_UNREADABLE
    except BrokenPipeError:
        # Nobody reads on. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


def _open_closed_streams() -> None:
    """Put the null device where the caller closed a standard stream (`>&-`).

    Python has None there, and the next file that is opened would get the number of the stream:
    whatever writes to that number would write into the file.
    """
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _drop_unwritten_errors() -> None:
    """Drop what the standard error output did not take.

    Python would try again when it ends, and end with a code of its own.
    """
    try:
        sys.stderr.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - no path of anybody
            os.dup2(nowhere.fileno(), sys.stderr.fileno())
