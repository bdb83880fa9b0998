"""Logs under any number of roots, each read once; a bad one stops nothing. Spec: 80 §1, §2."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from dsh_codec.errors import DshCodecError, UnsupportedError
from dsh_codec.find import Session, find, find_unread, lineage_of, read_entry
from dsh_codec.log import Log, open as open_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_codec._types import Compression
    from dsh_codec.find import SessionStatus

__all__ = [
    "OpenReadings",
    "Place",
    "Places",
    "Readings",
    "each_session",
    "own_from",
    "read_logs",
]

T = TypeVar("T")

Place: TypeAlias = str | os.PathLike[str] | Session | Log
"""A sessions root, any directory above or below it, a file, an entry of `find`, an open log."""

Places: TypeAlias = Place | Iterable[Place]
"""One place or many. What lies under several of them is read once."""


SCANNED_GENERATIONS: Final = (2, 3, 4)
"""Generations whose calls a scan finds; in older ones attempts are groups of rows."""

_MOST_WAITING: Final = 64
"""Files that are read at once: so many entries are in memory."""


class Readings(Iterator[T], Generic[T]):
    """What was read from many logs, one log at a time.

    A log that is refused contributes nothing, not even what stands before its damage; it is
    kept in `errors` instead.

    Attributes:
        errors: The sessions so far that could not be read, each with its `error`.
        log_count: The logs so far that were read.
    """

    def __init__(
        self,
        places: Places,
        read: Callable[[Log], Iterable[T]],
        *,
        read_file: Callable[[Session], Iterable[T] | None] | None = None,
        compression: Compression | None = None,
    ) -> None:
        """Prepare; nothing is read before the first item is asked for."""
        self.errors: list[Session] = []
        self.log_count = 0
        self._read = read
        self._read_file = read_file
        self._items = self._iterate(places, compression)

    def __next__(self) -> T:
        """Return the next item."""
        return next(self._items)

    def _iterate(self, places: Places, compression: Compression | None) -> Iterator[T]:
        look = find if self._read_file is None else find_unread
        for session, log in _each_once(places, look, compression):
            if session.error is not None:
                self.errors.append(session)
            else:
                yield from self._take(session, log)

    def _take(self, session: Session, log: Log | None) -> Iterable[T]:
        if log is None:
            found = None if self._read_file is None else self._read_file(session)
            if found is not None:
                self.log_count += 1
                return found
            if session.header is None:
                session = read_entry(session)
            if session.error is not None:
                self.errors.append(session)
                return ()
        try:
            if log is not None:
                items = self._read(log)
            else:
                with open_log(session.path) as opened:
                    items = self._read(opened)
        except (DshCodecError, OSError) as error:
            status: SessionStatus = "error"
            if isinstance(error, UnsupportedError):
                status = "unsupported"
            self.errors.append(session._replace(status=status, error=error))
            return ()
        self.log_count += 1
        return items


class JointReadings(Readings[T]):
    """`Readings` that read many files at once where nobody asks for what each of them holds."""

    def __init__(
        self,
        places: Places,
        read: Callable[[Log], Iterable[T]],
        *,
        read_files: Callable[..., tuple[T, list[int]]],
        compression: Compression | None = None,
    ) -> None:
        """Prepare; nothing is read before the first item is asked for.

        Args:
            places: Where the logs lie.
            read: Reads a log that has to be opened.
            read_files: Reads files of the same generation and compression, given by their
                paths, and returns what all of them hold together, and the places of those
                that have to be opened.
            compression: Decides where both encodings of a generation are present.
        """
        super().__init__(places, read, compression=compression)
        self._read_files = read_files

    def _iterate(self, places: Places, compression: Compression | None) -> Iterator[T]:
        waiting: list[Session] = []
        for session, log in _each_once(places, find_unread, compression):
            can_wait = (
                log is None
                and session.error is None
                and session.generation in SCANNED_GENERATIONS
            )
            if waiting and not (can_wait and _is_alike(session, waiting)):
                yield from self._take_all(waiting)
                waiting = []
            if can_wait:
                waiting.append(session)
            elif session.error is not None:
                self.errors.append(session)
            else:
                yield from self._take(session, log)
        if waiting:
            yield from self._take_all(waiting)

    def _take_all(self, sessions: list[Session]) -> Iterator[T]:
        found, left = self._read_files(
            [session.path for session in sessions],
            generation=sessions[0].generation,
            compression=sessions[0].compression,
        )
        self.log_count += len(sessions) - len(left)
        yield found
        for place in left:
            yield from self._take(sessions[place], None)


def _is_alike(session: Session, waiting: list[Session]) -> bool:
    first = waiting[0]
    return (
        session.generation == first.generation
        and session.compression == first.compression
        and len(waiting) < _MOST_WAITING
    )


def read_logs(
    places: Places,
    read: Callable[[Log], Iterable[T]],
    *,
    read_file: Callable[[Session], Iterable[T] | None] | None = None,
    compression: Compression | None = None,
) -> Readings[T]:
    """Read all logs at some places.

    Args:
        places: Where they lie.
        read: Reads one log to its end and returns what it found. Its refusals are kept, not
            raised.
        read_file: A faster way for a file that is not open; it returns None if the log has to
            be opened after all.
        compression: Decides where both encodings of a generation are present.

    Returns:
        The items of all logs, in the order of the places and, below each, of the paths.
        Iterating raises an `OSError` for a place that is not there.
    """
    return Readings(places, read, read_file=read_file, compression=compression)


def own_from(log: Log) -> int:
    """Return the seq of the first own event; 0 if nothing was inherited.

    Raises:
        DshCodecError, OSError: As for iterating, if the log has to tell and no pass over it is
            complete yet.

    Note:
        Generations 0 and 1 without `parentSession` inherit nothing, whatever `seedLength` says.
        Spec: 80 §2.
    """
    fields = log.header.fields
    if log.generation < 2:
        has_parent = "parentSession" in fields
        return (log.header.declared_cut or 0) if has_parent else 0
    if not fields["isSeeded"]:
        return 0
    result = log.result or log.scan()
    return result.scan.inherited_event_count


def require_places(places: object) -> None:
    """Refuse what names no sessions.

    Raises:
        TypeError: It is nothing that `Places` covers.
    """
    is_content = isinstance(places, bytes | bytearray | memoryview)
    if is_content or not isinstance(places, str | os.PathLike | Iterable):
        message = (
            "sessions are named by a path, an open log, a Session, or several of these, "
            f"not by {type(places).__name__}"
        )
        if is_content:
            message += ": open the bytes with dsh_codec.open first"
        raise TypeError(message)


def _each(places: Places) -> Iterable[Place]:
    require_places(places)
    if isinstance(places, str | os.PathLike | Session | Log):
        return (places,)
    return places


def _each_once(
    places: Places,
    look: Callable[..., Iterator[Session]],
    compression: Compression | None,
) -> Iterator[tuple[Session, Log | None]]:
    """Yield the sessions, each file once, with their logs if these are open."""
    seen: set[tuple[int, int]] = set()
    for place in _each(places):
        if isinstance(place, Log):
            yield _session_of(place), place
            continue
        entries = (
            [place]
            if isinstance(place, Session)
            else look(place, compression=compression)
        )
        for session in entries:
            if session.error is not None or _is_new(session.path, seen):
                yield session, None


def _is_new(path: str, seen: set[tuple[int, int]]) -> bool:
    try:
        status = os.stat(path)  # noqa: PTH116 - a `Path` costs more than the call
    except OSError:
        return True  # Opening it says what is wrong.
    key = status.st_dev, status.st_ino
    if key in seen:
        return False
    seen.add(key)
    return True


def _session_of(log: Log) -> Session:
    return Session(
        log.path or f"<{log.file_bytes} bytes>",
        "current" if log.generation == 4 else "migration-required",
        log.header,
        log.generation,
        log.compression,
        log.file_bytes,
        lineage_of(log.header),
        (),
        (),
        None,
    )


class OpenReadings(Readings[T]):
    """`Readings` that keep a log open while its items are taken.

    What `read` refuses before it returns is kept in `errors`; what its items refuse is raised.
    """

    def _take(self, session: Session, log: Log | None) -> Iterator[T]:
        with ExitStack() as stack:
            try:
                if log is None:
                    log = stack.enter_context(open_log(session.path))
                items = self._read(log)
            except (DshCodecError, OSError) as error:
                self.errors.append(_refused(session, error))
                return
            self.log_count += 1
            yield from items


def each_session(
    places: Places, *, scan: bool = False, compression: Compression | None = None
) -> Iterator[Session]:
    """Yield the sessions at some places, those that cannot be read included, each file once.

    Args:
        places: Where they lie.
        scan: Whether all rows are read, see `find`.
        compression: Decides where both encodings of a generation are present.

    Raises:
        OSError: A place is not there.
    """
    seen: set[tuple[int, int]] = set()
    for place in _each(places):
        if isinstance(place, Log):
            session = _session_of(place)
            yield _scanned(session, place) if scan else session
            continue
        if isinstance(place, Session):
            entries: Iterable[Session] = (place,)
        else:
            entries = find(place, scan=scan, compression=compression)
        for session in entries:
            if session.error is not None or _is_new(session.path, seen):
                is_due = scan and session.scan is None and session.error is None
                yield _scanned(session, None) if is_due else session


def _scanned(session: Session, log: Log | None) -> Session:
    try:
        with open_log(session.path) if log is None else nullcontext(log) as opened:
            return session._replace(scan=opened.scan())
    except (DshCodecError, OSError) as error:
        return _refused(session, error)


def _refused(session: Session, error: DshCodecError | OSError) -> Session:
    status: SessionStatus = "error"
    if isinstance(error, UnsupportedError):
        status = "unsupported"
    return session._replace(status=status, error=error)
