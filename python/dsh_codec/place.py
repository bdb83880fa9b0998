"""Which file a writer continues, where it ends, and whether a new one may be made.

Spec: 10 §8, §10, §11.1.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dsh_codec.errors import (
    FrameError,
    IdentityError,
    LayoutError,
    UnsupportedError,
)
from dsh_codec.find import CURRENT_GENERATION, log_files, select_log
from dsh_codec.limits import MAX_FRAME_PLAIN_BYTES, MAX_ROW_BYTES
from dsh_codec.log import open as open_log
from dsh_codec.names import encode_segment, parse_log_filename
from dsh_codec.remains import holds_turn_end
from dsh_codec.source import not_found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh_codec._types import Compression, Header
    from dsh_codec.log import Log
    from dsh_codec.rules import Level, RuleCheck

__all__ = ["AppendState", "locate", "marks_of", "read_for_append", "require_new"]

_STORED: Final[tuple[Compression, ...]] = ("none", "zstd")


class AppendState(NamedTuple):
    """What a log that can be continued holds.

    Attributes:
        header: Its header.
        compression: How it is stored.
        event_count: Its events, recovered ones included.
        file_bytes: Its size.
        identity: Device and inode.
        truncate_to: File offset at which a torn tail has to be cut; None without one.
        recovered: Rows from the torn tail, each with its line feed.
        rules: The rules over its events, which broke none.
    """

    header: Header
    compression: Compression
    event_count: int
    file_bytes: int
    identity: tuple[int, int]
    truncate_to: int | None
    recovered: list[bytes]
    rules: RuleCheck


def read_for_append(
    path: str,
    *,
    level: Level = "read",
    session_id: str | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
    max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES,
) -> AppendState:
    """Read a log as an ordinary reader does, and find where the next batch goes.

    Args:
        path: The log file.
        level: How far it is checked, `read` at least.
        session_id: The id that it has to have; None accepts any.
        max_row_bytes: Bytes in one row.
        max_frame_plain_bytes: Bytes of plaintext in one frame.

    Returns:
        Where it ends, and what a torn tail still gives.

    Raises:
        DshCodecError, OSError: As for `Writer.open`.

    Note:
        Reads only. Spec: 10 §8, §12.
    """
    from dsh_codec.rules import RuleCheck

    before = Path(path).stat()
    with open_log(
        path, max_row_bytes=max_row_bytes, max_frame_plain_bytes=max_frame_plain_bytes
    ) as log:
        if log.generation != CURRENT_GENERATION:
            message = (
                f"the log is of generation {log.generation}; only generation "
                f"{CURRENT_GENERATION} is written: migrate it first"
            )
            raise UnsupportedError(message, path)
        if session_id is not None and log.id != session_id:
            message = f"the log is of session {log.id!r:.64}, not of {session_id!r:.64}"
            raise IdentityError(message, path, 1)
        rules = RuleCheck(log.header.fields, level=level)
        for event in log:
            rules.feed(event.envelope)
        faults = rules.finish()
        if faults:
            raise faults[0].located(path=path)
        found = log.result
        assert found is not None  # noqa: S101 - a pass that ends sets it
        count = found.scan.event_count
        if found.torn_start is not None:
            _require_torn_by_append(log, found.torn_start)
        recovered = [
            event.raw + b"\n" for event in log[count - found.recovered_count : count]
        ]
        state = AppendState(
            log.header,
            log.compression,
            count,
            log.file_bytes,
            (before.st_dev, before.st_ino),
            found.truncate_to,
            recovered,
            rules,
        )
    after = Path(path).stat()
    if marks_of(before) != marks_of(after) or after.st_size != state.file_bytes:
        message = (
            "the file changes while it is read, although this writer holds the lock: "
            "whatever else writes to it has to stop first"
        )
        raise IdentityError(message, path)
    return state


def _require_torn_by_append(log: Log, start: int) -> None:
    """Refuse a torn frame that is none: a damaged length hides complete turns behind it.

    Choice: by structure alone (10 §7.3) the first batch would cut all of that off.
    """
    tail = bytes(log.source.read(start, log.file_bytes - start))
    if holds_turn_end(tail, start=1):
        message = (
            "a frame seems torn, but complete frames with the end of a turn stand behind it: "
            "it is damaged, and cutting it off would lose them; 'dsh-codec repair --salvage' "
            "writes what is sound before it to a new log"
        )
        raise FrameError(message, log.path, None, start, None, None, "10 §8.1")


def marks_of(status: os.stat_result) -> tuple[int, ...]:
    """Return what tells one state of a file from another. Spec: 10 §10."""
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def locate(source: str | os.PathLike[str], compression: Compression | None) -> str:
    """Return the log file to write to, which has to be the one that readers take.

    Args:
        source: A session directory or a log file.
        compression: The encoding to take where the directory holds both.

    Raises:
        FileNotFoundError: There is none.
        LayoutError: The directory holds a higher generation than the file's, or (unless a file
            was named) both encodings.
    """
    path = Path(source)
    if path.is_dir():
        return select_log(path, compression=compression).path
    if not path.exists():
        raise not_found(str(path), os.strerror(errno.ENOENT))
    generations = [
        parse_log_filename(path.name, compression=stored) for stored in _STORED
    ]
    named = [generation for generation in generations if generation is not None]
    # A name that is not canonical is not in a session directory: nothing counts beside it.
    if named:
        top = log_files(path.parent)[0].generation
        if named[0] < top:
            message = (
                f"generation {top} is in the same directory, and readers take only the "
                "highest: open the directory instead"
            )
            raise LayoutError(message, str(path))
    return str(path)


def require_new(directories: Sequence[str], session_id: str) -> None:
    """Refuse an id that has a log, here or in another project of the root.

    Args:
        directories: Root, project directory, session directory.
        session_id: The id.

    Raises:
        FileExistsError: The session directory holds a log.
        IdentityError: Another project directory has the id.
    """
    root, project, session = map(Path, directories)
    found = log_files(session)
    if found:
        raise FileExistsError(
            errno.EEXIST, "The session has a log; open it instead", found[0].path
        )
    # Choice: two logs of one id make it unfindable (10 §10), so the second is not created.
    segment = encode_segment(session_id)
    for entry in Path(root).iterdir():
        other = entry / segment
        if entry.name != project.name and other.is_dir() and log_files(other):
            message = (
                "the session id has a log in another project directory of this root"
            )
            raise IdentityError(message, str(other))
