"""Model calls: one row for each attempt, with tokens and times. Spec: 80 §2 to §5."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from dsh_codec._backend import kernel
from dsh_codec._types import (
    Call,
    CallOutcome,
    CallScan,
    TimedCall,
    TokenScan,
    ToolTime,
)
from dsh_codec.attempts import iter_attempts
from dsh_codec.call_rows import CallColumns, CallRows, sum_tokens
from dsh_codec.corpus import SCANNED_GENERATIONS, JointReadings, own_from, read_logs
from dsh_codec.errors import DshCodecError
from dsh_codec.row import Event
from dsh_codec.tools import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dsh_codec._types import Compression, Header, TokenSums
    from dsh_codec.corpus import Places, Readings
    from dsh_codec.find import Session
    from dsh_codec.log import Log
    from dsh_codec.row import PackedRow

__all__ = ["Call", "CallOutcome", "ToolTime", "calls"]

T = TypeVar("T")
S = TypeVar("S", CallScan, TokenScan)


def calls(
    paths: Places,
    *,
    tools: bool = True,
    gaps: bool = False,
    auxiliary: bool = False,
    compression: Compression | None = None,
) -> Readings[Call]:
    """Return the model calls of all sessions at some places.

    Args:
        paths: Roots, directories, log files, entries of `find` or open logs; one or many.
        tools: Whether tool calls are timed.
        gaps: Whether the gaps between tokens are listed.
        auxiliary: Whether requests that carry no usage (titles, web searches) are rows, too.
        compression: Decides where both encodings of a generation are present.

    Returns:
        An iterator over the rows: each session's in the order of their seqs, inherited ones
        included and marked. Its `errors` lists the sessions that could not be read; those
        have no rows at all.

    Note:
        Memory: one attempt and the rows of one session. Raises an `OSError` only for a place
        that is not there. Spec: 80 §3.

    Example:
        >>> row = b'{"type":"session","version":4,"id":"s-1","createdAt":0,'
        >>> row += b'"isSeeded":false,"delegationDepth":0}' + bytes([10])
        >>> import dsh_codec as dsh
        >>> list(dsh.calls(dsh.open(row)))
        []
    """
    columns = CallColumns(tools=tools, gaps=gaps, auxiliary=auxiliary)
    return read_call_lists(
        paths,
        columns,
        lambda _, found: [timed.call for timed in found],
        compression=compression,
    )


def read_call_lists(
    places: Places,
    columns: CallColumns,
    make: Callable[[Header, list[TimedCall]], Iterable[T]],
    *,
    compression: Compression | None = None,
) -> Readings[T]:
    """Read the calls of all logs at some places, and make something of those of each log.

    Args:
        places: Where they lie.
        columns: What of the calls is wanted.
        make: Takes header and calls of a log, see `read_calls`.
        compression: Decides where both encodings of a generation are present.

    Returns:
        What was made, see `read_logs`.
    """
    reader = kernel.CallReader(**columns._asdict())

    def read(log: Log) -> Iterable[T]:
        return make(log.header, read_calls(log, columns))

    def read_file(session: Session) -> Iterable[T] | None:
        found = _read_file(reader.read_file, session)
        return None if found is None else make(found.header, found.calls)

    return read_logs(places, read, read_file=read_file, compression=compression)


def read_token_sums(
    places: Places,
    make: Callable[[Header, TokenSums], Iterable[T]],
    *,
    compression: Compression | None = None,
) -> Readings[T]:
    """Sum up the tokens of each log's own calls, and make something of each log's sums.

    Args:
        places: Where the logs lie.
        make: Takes header and sums of a log.
        compression: Decides where both encodings of a generation are present.

    Returns:
        What was made, see `read_logs`.
    """
    columns = CallColumns(times=False)
    reader = kernel.CallReader(**columns._asdict())

    def read(log: Log) -> Iterable[T]:
        own = [timed.call for timed in read_calls(log, columns) if timed.call.own]
        return make(log.header, sum_tokens(own))

    def read_file(session: Session) -> Iterable[T] | None:
        found = _read_file(reader.sum_file, session)
        return None if found is None else make(found.header, found.sums)

    return read_logs(places, read, read_file=read_file, compression=compression)


def read_token_totals(
    places: Places, *, compression: Compression | None = None
) -> Readings[TokenSums]:
    """Sum up the tokens of the own calls of all logs.

    Args:
        places: Where they lie.
        compression: Decides where both encodings of a generation are present.

    Returns:
        Sums over some of the logs, which together are sums over all of them.
    """
    columns = CallColumns(times=False)
    reader = kernel.CallReader(**columns._asdict())

    def read(log: Log) -> Iterable[TokenSums]:
        own = [timed.call for timed in read_calls(log, columns) if timed.call.own]
        return (sum_tokens(own),)

    return JointReadings(
        places, read, read_files=reader.sum_files, compression=compression
    )


def _read_file(read: Callable[..., S], session: Session) -> S | None:
    """Return what the kernel reads of a file; None if `Log` has to."""
    if session.generation not in SCANNED_GENERATIONS:
        return None
    try:
        found = read(session.path, generation=session.generation)
    except (DshCodecError, OSError):
        return None  # Opening the log says what is wrong, in the words that all answers have.
    return found if found.compression == session.compression else None


def read_calls(log: Log, columns: CallColumns) -> list[TimedCall]:
    """Return the calls of one log in the order of their seqs, see `calls`.

    Raises:
        DshCodecError, OSError: As for iterating over the log.
    """
    if log.generation >= 2:
        return log.scan_calls(columns)
    rows = CallRows(columns, log.generation, kernel)
    citations = log._citations  # pyright: ignore[reportPrivateUsage]
    for attempt in iter_attempts(
        _watched(log.units(), rows), log.generation, citations
    ):
        rows.add_attempt(
            attempt.outcome,
            attempt.seq,
            attempt.time,
            place_of({"turn": attempt.turn, "step": attempt.step}),
            attempt.stream.records,
            None if attempt.event is None else attempt.event.data,
        )
    return rows.finish(log.id, own_from(log))


def _watched(
    units: Iterable[Event | PackedRow], rows: CallRows
) -> Iterator[Event | PackedRow]:
    for unit in units:
        if isinstance(unit, Event) and rows.wants(unit.type):
            rows.note(unit)
        yield unit
