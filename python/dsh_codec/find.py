"""Sessions under a root, by their headers. Spec: 10 §10, 80 §1."""

from __future__ import annotations

import errno
import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from dsh_codec._backend import kernel
from dsh_codec.errors import (
    DshCodecError,
    LayoutError,
    NewerFormatError,
    UnsupportedError,
)
from dsh_codec.limits import MAX_FRAME_PLAIN_BYTES, MAX_ROW_BYTES
from dsh_codec.names import parse_log_filename
from dsh_codec.source import ZSTD_MAGIC, not_found, open_source, read_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsh_codec._kernel import FrameReader
    from dsh_codec._types import Compression, FileScan, Header

__all__ = [
    "Lineage",
    "LogFile",
    "Session",
    "SessionStatus",
    "default_root",
    "find",
    "lineage_of",
    "log_files",
    "select_log",
]

Lineage: TypeAlias = Literal["root", "fork", "subagent"]
SessionStatus: TypeAlias = Literal[
    "current", "migration-required", "newer", "unsupported", "ambiguous", "error"
]

CURRENT_GENERATION: Final = 4
"""The generation that the harness writes. Spec: 00 intro."""

LOCK_NAME: Final = "session.lock"
"""Write-lock file of a session directory. Spec: 00 §3."""

# Windows would translate line ends; opening a pipe would wait for its writer elsewhere.
_O_FLAGS: Final = getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_FIRST_PIECE_BYTES: Final = 8 << 10  # Spec 10 §10: header-only reads go in such steps.


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
        error: Why the session cannot be read; None if it can, as far as was looked.
        scan: What the rows hold; None unless `find` was asked for it.
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
    scan: FileScan | None = None

    @property
    def id(self) -> str | None:
        """The session id of the header; None without a header."""
        return None if self.header is None else self.header.fields["id"]

    @property
    def parent(self) -> str | None:
        """The id of the session that this one was made from; None if there is none."""
        return None if self.header is None else self.header.fields.get("parentSession")

    @property
    def directory(self) -> str:
        """The session directory, or the folder of a file that was named itself."""
        if self.status == "ambiguous":
            return self.path
        return str(Path(self.path).parent)


def default_root() -> Path:
    """Return the root in which the harness keeps its sessions.

    Returns:
        `sessions` in the folder that the environment variable `DSH_HOME` names, else in `.dsh`
        in the user's home directory. It need not exist. Spec: 00 §3.

    Raises:
        RuntimeError: The home directory cannot be told.
    """
    home = os.environ.get("DSH_HOME")
    return (Path(home) if home else Path.home() / ".dsh") / "sessions"


def find(
    root: str | os.PathLike[str],
    *,
    scan: bool = False,
    compression: Compression | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
    max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES,
) -> Iterator[Session]:
    """Yield the sessions under a root, reading their headers only.

    Args:
        root: A sessions root, any directory above or below it, or a single log file.
        scan: Whether all rows are read, too, so that damage behind the header shows and
            `Session.scan` has the numbers.
        compression: Decides where both encodings of a generation are present.
        max_row_bytes: Bytes that a row may have.
        max_frame_plain_bytes: Bytes that a frame may hold.

    Yields:
        One entry a session directory, in the order of their paths, at any depth. A session
        that cannot be read is an entry with its `error`; it never stops the listing.

    Raises:
        LayoutError: The root is a pipe or a device.
        OSError: The root itself cannot be read.

    Note:
        Symbolic links are followed; what lies under the root is listed at its own place, what
        lies elsewhere once. Spec: 80 §1 S1 to S6.
    """
    finder = _Finder(compression, scan, max_row_bytes, max_frame_plain_bytes)
    yield from _each_session(finder, root)


def find_unread(
    root: str | os.PathLike[str], *, compression: Compression | None = None
) -> Iterator[Session]:
    """Yield what `find` does for callers that read each file anyway.

    Args:
        root: As for `find`.
        compression: As for `find`.

    Yields:
        Entries. Where a file has a canonical name of a generation up to 4, nothing but the name
        was looked at: `header`, `file_bytes`, `lineage` and `error` are None. See `read_entry`.

    Raises:
        OSError: The root itself cannot be read.
    """
    yield from _each_session(_Finder(compression, reads=False), root)


def read_entry(session: Session) -> Session:
    """Return an entry of `find_unread` as `find` would have made it."""
    if session.generation is None or session.compression is None:
        return session
    file = LogFile(session.generation, session.compression, session.path)
    return _Finder(None).inspect(
        session.path, file, session.retained, session.leftovers
    )


def _each_session(finder: _Finder, root: str | os.PathLike[str]) -> Iterator[Session]:
    path = os.fspath(root)
    if not Path(path).is_dir():
        _require_no_pipe(path)
        open_source(path).close()  # A root that is not there is the caller's mistake.
        yield finder.inspect(path, None, (), ())
        return
    with os.scandir(path):
        pass
    yield from finder.walk(path)


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
    with os.scandir(directory) as entries:
        return _canonical(entries)


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


def lineage_of(header: Header) -> Lineage:
    """Return what a session is to its parent. Spec: 80 §1 S6."""
    if header.fields.get("parentSession") is None:
        return "root"
    return "subagent" if header.fields.get("origin") == "subagent" else "fork"


@lru_cache(maxsize=256)
def _require_no_pipe(path: str) -> None:
    """Refuse what cannot be read a second time, as those who list sessions do."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return  # Opening it says what is wrong.
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        message = (
            "sessions are looked for in directories and files; a pipe can be read only once: "
            "write it to a file, or give it to `check` or `open`"
        )
        raise LayoutError(message, path)


def _parse_name(name: str) -> tuple[int, Compression] | None:
    compressions: tuple[Compression, ...] = ("none", "zstd")
    for compression in compressions:
        generation = parse_log_filename(name, compression=compression)
        if generation is not None:
            return generation, compression
    return None


def _canonical(entries: Iterable[os.DirEntry[str]]) -> list[LogFile]:
    found: list[LogFile] = []
    for entry in entries:
        parsed = _parse_name(entry.name)
        if parsed is not None:
            found.append(LogFile(*parsed, entry.path))
    if len(found) > 1:
        found.sort(key=lambda file: (-file.generation, file.compression))
    return found


def _is_ambiguous(files: list[LogFile]) -> bool:
    return len(files) > 1 and files[0].generation == files[1].generation


def _ambiguous(directory: str, generation: int) -> LayoutError:
    message = (
        f"generation {generation} is there as plain text and as Zstandard; "
        "choose one with compression='none' or compression='zstd'"
    )
    return LayoutError(message, directory)


class _Finder:
    """Walks directories and reads headers, with one decompression context for all files."""

    def __init__(
        self,
        compression: Compression | None,
        scan: bool = False,  # noqa: FBT001, FBT002 - handed on from a keyword
        max_row_bytes: int = MAX_ROW_BYTES,
        max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES,
        *,
        reads: bool = True,
    ) -> None:
        self._compression = compression
        self._scan = scan
        self._reads = reads
        self._max_row_bytes = max_row_bytes
        self._max_frame_plain_bytes = max_frame_plain_bytes
        self._reader: FrameReader | None = None

    def walk(self, root: str) -> Iterator[Session]:
        # Real directories below the root make a tree, which needs no bookkeeping. Those that
        # links lead to are remembered, and not entered where the tree has them anyway.
        home = _real(root)
        visited: set[tuple[int, int]] = set()
        pending: list[tuple[str, bool]] = [(root, False)]
        while pending:
            directory, is_foreign = pending.pop()
            folders: list[tuple[str, bool]] = []
            files: list[os.DirEntry[str]] = []
            try:
                if is_foreign:
                    status = Path(directory).stat()
                    if (status.st_dev, status.st_ino) in visited:
                        continue
                    if _real(directory).startswith(home):
                        continue
                    visited.add((status.st_dev, status.st_ino))
                with os.scandir(directory) as entries:
                    for entry in entries:
                        if not _is_directory(entry):
                            files.append(entry)
                        elif not entry.is_symlink():
                            folders.append((entry.path, is_foreign))
                        else:
                            folders.append((entry.path, True))
            except OSError as error:
                yield _failed(directory, "error", error)
                continue
            folders.sort(reverse=True)
            pending += folders
            canonical = _canonical(files)
            if canonical:
                yield self._session(directory, canonical, files)

    def _session(
        self, directory: str, files: list[LogFile], entries: list[os.DirEntry[str]]
    ) -> Session:
        leftovers: tuple[str, ...] = ()
        if len(entries) > len(files):
            rest = {entry.path for entry in entries if entry.name != LOCK_NAME}
            leftovers = tuple(sorted(rest.difference(file.path for file in files)))
        if len(files) == 1:
            return self.inspect(files[0].path, files[0], (), leftovers)
        top = [file for file in files if file.generation == files[0].generation]
        retained = tuple(file.path for file in files[len(top) :])
        wanted = self._compression
        chosen = [file for file in top if wanted in (None, file.compression)] or top
        if _is_ambiguous(chosen):
            error = _ambiguous(directory, chosen[0].generation)
            session = _failed(directory, "ambiguous", error, chosen[0].generation)
            return session._replace(retained=retained, leftovers=leftovers)
        return self.inspect(chosen[0].path, chosen[0], retained, leftovers)

    def inspect(
        self,
        path: str,
        file: LogFile | None,
        retained: tuple[str, ...],
        leftovers: tuple[str, ...],
    ) -> Session:
        """Return the entry of a file; `file` is what its canonical name says."""
        quick: tuple[Header | None, int | None] | None = None
        if file is not None and self._reads:
            quick = self._read_quickly(file)
        elif file is not None and file.generation <= CURRENT_GENERATION:
            quick = None, None
        if file is None or quick is None:
            session = self._read_carefully(path, file)
            session = session._replace(retained=retained, leftovers=leftovers)
        else:
            header, size = quick
            session = Session(
                path,
                "current"
                if file.generation == CURRENT_GENERATION
                else "migration-required",
                header,
                file.generation,
                file.compression,
                size,
                None if header is None else lineage_of(header),
                retained,
                leftovers,
                None,
            )
        return self._scanned(session) if self._scan else session

    def _read_quickly(self, file: LogFile) -> tuple[Header, int] | None:
        """Return header and size of a regular file whose first bytes are as they should be.

        None asks for the careful way, which knows what is wrong.
        """
        if file.generation > CURRENT_GENERATION:
            return None
        try:
            handle = os.open(file.path, os.O_RDONLY | _O_FLAGS)
            try:
                data = os.read(handle, _FIRST_PIECE_BYTES)
                status = os.fstat(handle)
            finally:
                os.close(handle)
            if not stat.S_ISREG(status.st_mode):
                return None
            if file.compression == "zstd":
                line = self._first_frame(data)
            elif data.startswith(ZSTD_MAGIC):
                return None
            else:
                line = data[: data.find(b"\n") + 1]
            if not line or len(line) > self._max_row_bytes:
                return None
            header = kernel.parse_header(line, generation=file.generation)
        except (DshCodecError, OSError):
            return None
        return header, status.st_size

    def _first_frame(self, data: bytes) -> bytes:
        """Return the text of a first frame that is all there; empty if it is not."""
        frames = kernel.scan_frames(data, max_frames=1).frames
        if not frames:
            return b""
        reader, self._reader = self._reader, None
        if reader is None:
            reader = kernel.FrameReader(
                max_frame_plain_bytes=self._max_frame_plain_bytes
            )
        reader.feed(data[: frames[0][1]])
        piece = reader.read()
        if piece is None or not piece.last:
            return b""
        # After an error or in the middle of a frame a reader would be of no use any more.
        self._reader = reader
        text = piece.data
        return text if text.find(b"\n") == len(text) - 1 else b""

    def _read_carefully(self, path: str, file: LogFile | None) -> Session:
        named: dict[str, Any] = {}
        if file is not None:
            named = {"generation": file.generation, "compression": file.compression}
        try:
            source = open_source(path)
            try:
                named["file_bytes"] = source.size_bytes
                header, compression = read_header(
                    source,
                    max_row_bytes=self._max_row_bytes,
                    max_frame_plain_bytes=self._max_frame_plain_bytes,
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
            path, status, header, None, None, None, lineage_of(header), (), (), None
        )
        return session._replace(**named)

    def _scanned(self, session: Session) -> Session:
        if session.error is not None:
            return session
        try:
            found = kernel.check_file(
                session.path,
                generation=session.generation,
                max_row_bytes=self._max_row_bytes,
                max_frame_plain_bytes=self._max_frame_plain_bytes,
            )
        except UnsupportedError as error:
            return session._replace(status="unsupported", error=error)
        except (DshCodecError, OSError) as error:
            return session._replace(status="error", error=error)
        return session._replace(scan=found)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        # It must not hide what lies beside it. A link to itself leads nowhere, as one to
        # nothing does; sessions may lie behind any other, and reading it says what is wrong.
        return error.errno != errno.ELOOP


def _real(directory: str) -> str:
    """Return the real path with a separator at its end, for comparing beginnings."""
    return os.path.join(os.path.realpath(directory), "")  # noqa: PTH118


def _failed(
    path: str, status: SessionStatus, error: Exception, generation: int | None = None
) -> Session:
    return Session(path, status, None, generation, None, None, None, (), (), error)
