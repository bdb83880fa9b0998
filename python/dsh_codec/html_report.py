"""Reports to look at: one self-contained HTML page of a log or of a root."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dsh_codec.find import find
from dsh_codec.log import Log, open as open_log
from dsh_codec.source import is_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

    from dsh_codec._types import Compression
    from dsh_codec.find import Session

__all__ = ["html_report"]


def html_report(
    place: str | os.PathLike[str] | Log,
    *,
    content: bool = False,
    tz: tzinfo | str = "UTC",
    compression: Compression | None = None,
    progress: Callable[[int, int], object] | None = None,
    on_error: Callable[[Session], object] | None = None,
) -> str:
    """Return a page that shows a log, or the sessions under a root.

    Args:
        place: A log file, a session directory, an open log, or a root.
        content: Whether the page of a log holds prompts and answers; nothing else that was
            said is ever on a page.
        tz: Time zone of the days on the page of a root, see `usage`.
        compression: Decides where both encodings of a generation are present.
        progress: Called, for a root, with the sessions that were read and how many there are.
        on_error: Called, for a root, with each session that cannot be read and has its `error`.
            The page lists them and counts nothing of them.

    Returns:
        HTML with inline style and SVG. It loads nothing and holds no script; a policy in it
        forbids both. Texts of a log are escaped, and long ones clipped. Under 3 MB, whatever the
        size of the log: there are bounds on marks, rows and texts.

    Raises:
        DshCodecError: The log is refused.
        OSError: The place is not there, or the system refuses to read it.
        ValueError: There is no such time zone.

    Note:
        Own calls only: what a fork inherited belongs to its parent. A root is read twice.

    Example:
        >>> import dsh_codec as dsh
        >>> row = b'{"type":"session","version":4,"id":"s-1","createdAt":0,'
        >>> row += b'"isSeeded":false,"delegationDepth":0}' + bytes([10])
        >>> dsh.html_report(dsh.open(row)).startswith("<!DOCTYPE html>")
        True
    """
    # Each page has parts of its own, which take time to import.
    if isinstance(place, Log):
        from dsh_codec.html_log import log_page

        return log_page(place, content=content)
    if is_directory(place):
        sessions = list(find(place, compression=compression))
        is_session = len(sessions) == 1 and Path(place).samefile(sessions[0].directory)
        if not is_session:
            from dsh_codec.html_root import root_page

            return root_page(
                os.fspath(place), sessions, tz=tz, progress=progress, on_error=on_error
            )
    with open_log(place, compression=compression) as log:
        return html_report(log, content=content)
