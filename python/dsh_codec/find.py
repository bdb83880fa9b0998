"""Sessions under a root, by their headers. Spec: 10 §10, 80 §1."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from dsh_codec.errors import (
    DshCodecError,
    LayoutError,
    NewerFormatError,
    UnsupportedError,
)
from dsh_codec.limits import MAX_FRAME_PLAIN_BYTES, MAX_ROW_BYTES
from dsh_codec.names import parse_log_filename
from dsh_codec.source import not_found, open_source, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_codec._types import Compression, Header

__all__ = [
    "Lineage",
    "LogFile",
    "Session",
    "SessionStatus",
    "find",
    "log_files",
    "select_log",
]

Lineage: TypeAlias = Literal["root", "fork", "subagent"]
SessionStatus: TypeAlias = Literal[
    "current", "migration-required", "newer", "unsupported", "ambiguous", "error"
]

CURRENT_GENERATION: Final = 4
"""The generation that the harness writes. Spec: 00 intro."""


class LogFile(NamedTuple):
    """A file with a canonical name.

    Attributes:
        generation: What its name says.
        compression: What its name says.
        path: The file.
    """

    generation: int
    compression: Compression
    path: str


class Session(NamedTuple):
    """A session as a listing shows it. Spec: 80 §1.

    Attributes:
        path: The authoritative file; the directory where that is ambiguous or unreadable.
        status: `current` (generation 4), `migration-required` (0 to 3), `newer`,
            `unsupported`, `ambiguous` (both encodings of the authoritative generation), or
            `error`.
        header: The header; None where it could not be read.
        generation: Of the header, else of the file name; None if neither is known.
        compression: How the file is stored; None if unknown.
        file_bytes: Size of the authoritative file; None if unknown.
        lineage: `root`, `fork` or `subagent`; None without a header.
        retained: Canonical files of lower generations, never read.
        leftovers: Other files in the directory, but the lock.
        error: Why the header could not be used; None if it could.
    """

    path: str
    status: SessionStatus
    header: Header | None
    generation: int | None
    compression: Compression | None
    file_bytes: int | None
    lineage: Lineage | None
    retained: tuple[str, ...]
    leftovers: tuple[str, ...]
    error: Exception | None

    @property
    def id(self) -> str | None:
        """The session id of the header; None without a header."""
        return None if self.header is None else self.header.fields["id"]

    @property
    def parent(self) -> str | None:
        """The id of the session that this one was made from; None if there is none."""
        return None if self.header is None else self.header.fields.get("parentSession")


def find(
    root: str | os.PathLike[str],
    *,
    compression: Compression | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
    max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES,
) -> Iterator[Session]:
    """Yield the sessions under a root, reading their headers only.

    Args:
        root: A sessions root, any directory above or below it, or a single log file.
        compression: Decides where both encodings of a generation are present.
        max_row_bytes: Bytes that a header row may have.
        max_frame_plain_bytes: Bytes that a first frame may hold.

    Yields:
        One entry a session directory, in the order of their paths, at any depth. A session
        that cannot be read is an entry with its `error`; it never stops the listing.

    Raises:
        OSError: The root itself cannot be read.

    Note:
        Symbolic links are followed, each directory is visited once. Spec: 80 §1 S1 to S6.
    """
    path = Path(root)
    limits = (max_row_bytes, max_frame_plain_bytes)
    if not path.is_dir():
        open_source(path).close()  # A root that is not there is the caller's mistake.
        yield _inspect(str(path), None, (), (), limits)
        return
    with os.scandir(path):
        pass
    yield from _walk(path, compression, limits)


def log_files(directory: str | os.PathLike[str]) -> list[LogFile]:
    """Return the files with canonical names in a session directory.

    Args:
        directory: The session directory.

    Returns:
        By generation, the highest first; plain before Zstandard.

    Raises:
        OSError: The directory cannot be read.

    Note:
        Only names are looked at. Spec: 10 §10.
    """
    return _canonical([entry.path for entry in os.scandir(directory)])


def select_log(
    directory: str | os.PathLike[str],
    *,
    compression: Compression | None = None,
    generation: int | None = None,
) -> LogFile:
    """Return the authoritative file of a session directory.

    Args:
        directory: The session directory.
        compression: The encoding to read; None: whichever there is.
        generation: The generation to read; None: the highest.

    Raises:
        FileNotFoundError: There is none.
        LayoutError: Both encodings of that generation are there, and none was chosen.
        OSError: The directory cannot be read.

    Note:
        A lower generation is never a fallback. Spec: 10 §10, 80 §1 S1 and S2.
    """
    files = [
        file
        for file in log_files(directory)
        if compression in (None, file.compression)
        and generation in (None, file.generation)
    ]
    if not files:
        raise not_found(os.fspath(directory), "No session log in this directory")
    if _is_ambiguous(files):
        raise _ambiguous(os.fspath(directory), files[0].generation)
    return files[0]


def _canonical(paths: list[str]) -> list[LogFile]:
    found = []
    compressions: tuple[Compression, ...] = ("none", "zstd")
    for path in paths:
        for compression in compressions:
            generation = parse_log_filename(Path(path).name, compression=compression)
            if generation is not None:
                found.append(LogFile(generation, compression, path))
    return sorted(found, key=lambda file: (-file.generation, file.compression))


def _is_ambiguous(files: list[LogFile]) -> bool:
    return len(files) > 1 and files[0].generation == files[1].generation


def _ambiguous(directory: str, generation: int) -> LayoutError:
    message = (
        f"generation {generation} is there as plain text and as Zstandard; "
        "choose one with compression='none' or compression='zstd'"
    )
    return LayoutError(message, directory)


def _walk(
    root: Path, compression: Compression | None, limits: tuple[int, int]
) -> Iterator[Session]:
    pending = [str(root)]
    visited: set[tuple[int, int]] = set()
    while pending:
        directory = pending.pop()
        try:
            status = Path(directory).stat()
            if (status.st_dev, status.st_ino) in visited:
                continue
            visited.add((status.st_dev, status.st_ino))
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
            folders = [entry.path for entry in entries if entry.is_dir()]
        except OSError as error:
            yield _failed(directory, "error", error)
            continue
        pending += reversed(folders)
        files = _canonical([entry.path for entry in entries])
        if files:
            yield _session(directory, files, entries, folders, compression, limits)


def _session(
    directory: str,
    files: list[LogFile],
    entries: list[os.DirEntry[str]],
    folders: list[str],
    compression: Compression | None,
    limits: tuple[int, int],
) -> Session:
    canonical = {file.path for file in files}
    leftovers = tuple(
        entry.path
        for entry in entries
        if entry.path not in canonical
        and entry.path not in folders
        and entry.name != "session.lock"
    )
    top = [file for file in files if file.generation == files[0].generation]
    retained = tuple(file.path for file in files[len(top) :])
    chosen = [file for file in top if compression in (None, file.compression)] or top
    if _is_ambiguous(chosen):
        error = _ambiguous(directory, chosen[0].generation)
        session = _failed(directory, "ambiguous", error, chosen[0].generation)
        return session._replace(retained=retained, leftovers=leftovers)
    return _inspect(chosen[0].path, chosen[0], retained, leftovers, limits)


def _inspect(
    path: str,
    file: LogFile | None,
    retained: tuple[str, ...],
    leftovers: tuple[str, ...],
    limits: tuple[int, int],
) -> Session:
    named: dict[str, Any] = {"retained": retained, "leftovers": leftovers}
    if file is not None:
        named |= {"generation": file.generation, "compression": file.compression}
    try:
        source = open_source(path)
        try:
            named["file_bytes"] = source.size_bytes
            header, compression = read_header(
                source, max_row_bytes=limits[0], max_frame_plain_bytes=limits[1]
            )
        finally:
            source.close()
    except NewerFormatError as error:
        return _failed(path, "newer", error)._replace(**named)
    except UnsupportedError as error:
        return _failed(path, "unsupported", error)._replace(**named)
    except (DshCodecError, OSError) as error:
        return _failed(path, "error", error)._replace(**named)
    status: SessionStatus = "migration-required"
    if header.generation == CURRENT_GENERATION:
        status = "current"
    named |= {"generation": header.generation, "compression": compression}
    session = Session(
        path, status, header, None, None, None, _lineage(header), (), (), None
    )
    return session._replace(**named)


def _failed(
    path: str, status: SessionStatus, error: Exception, generation: int | None = None
) -> Session:
    return Session(path, status, None, generation, None, None, None, (), (), error)


def _lineage(header: Header) -> Lineage:
    if header.fields.get("parentSession") is None:
        return "root"
    return "subagent" if header.fields.get("origin") == "subagent" else "fork"
