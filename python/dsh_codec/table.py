"""Sessions, calls, chunks and events as Arrow streams, for data frames and DuckDB. Spec: 80.

Each function returns a `Table`, which every library takes that knows the Arrow PyCapsule interface:
`polars.DataFrame(table)`, `pyarrow.table(table)`, `duckdb.sql("SELECT … FROM table")`.

What holds for all columns: `time` and `created_at` are `timestamp[ms, UTC]`, by the log's clock;
every other number of time is an int64 of milliseconds, those of moments (`start_ms`) since the Unix
epoch. What is not known is null, never zero. Text that a log spells with a lone surrogate has
U+FFFD there, which Arrow can hold. Columns with content are only there on request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsh_codec._backend import kernel
from dsh_codec.call_rows import CallColumns
from dsh_codec.calls import read_calls
from dsh_codec.corpus import OpenReadings, each_session, own_from, require_places
from dsh_codec.names import project_key
from dsh_codec.row import Event
from dsh_codec.table_chunks import chunk_batches
from dsh_codec.table_rows import make_schema, row_batches
from dsh_codec.table_stream import SkippedSessionsWarning, Table
from dsh_codec.text import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import EllipsisType

    import pyarrow as pa

    from dsh_codec._types import Compression
    from dsh_codec.calls import Call
    from dsh_codec.corpus import Places
    from dsh_codec.find import Session
    from dsh_codec.log import Log

__all__ = ["SkippedSessionsWarning", "Table", "calls", "chunks", "events", "sessions"]

BATCH_ROWS: Final = 65_536
"""Rows of a record batch, at most."""


# --- sessions ---

_SESSIONS: Final = {
    "session": "string",
    "path": "string",
    "status": "word",
    "lineage": "word",
    "parent": "string",
    "project": "word",
    "cwd": "word",
    "created_at": "moment",
    "generation": "int",
    "compression": "word",
    "file_bytes": "int",
    "delegation_depth": "int",
    "agent_preset": "word",
    "retained_count": "int",
    "error": "word",
}
_SESSIONS_ON_REQUEST: Final = {
    "event_count": "int",
    "own_from": "int",
    "first_ms": "int",
    "last_ms": "int",
    "error_message": "string",
}
_SCANNED: Final = ("event_count", "own_from", "first_ms", "last_ms")


def sessions(
    paths: Places,
    *,
    columns: Iterable[str | EllipsisType] | None = None,
    compression: Compression | None = None,
) -> Table:
    """Return the sessions at some places, those that cannot be read included.

    | Column | Type | Meaning |
    | --- | --- | --- |
    | `session` | string | id of the header |
    | `path` | string | authoritative file; the directory where that is ambiguous |
    | `status` | dictionary | see `Session.status` |
    | `lineage` | dictionary | `root`, `fork` or `subagent` |
    | `parent` | string | id of the session it was made from |
    | `project`, `cwd` | dictionary | project key and working directory of the header |
    | `created_at` | timestamp[ms, UTC] | of the header |
    | `generation` | int64 | 0 to 4, or what the name says |
    | `compression` | dictionary | `none` or `zstd` |
    | `file_bytes` | int64 | size of the authoritative file |
    | `delegation_depth` | int64 | of the header |
    | `agent_preset` | dictionary | of the header |
    | `retained_count` | int64 | files of lower generations, which are never read |
    | `error` | dictionary | class of the error of a session that cannot be read |

    On request; the first four read all rows, so that damage behind the header shows, too:

    | Column | Type | Meaning |
    | --- | --- | --- |
    | `event_count` | int64 | accepted events |
    | `own_from` | int64 | seq of the first own event (80 §2) |
    | `first_ms`, `last_ms` | int64 | times of the first and last event |
    | `error_message` | string | what is wrong; may quote a few bytes of the log |

    Args:
        paths: Roots, directories, log files, entries of `find` or open logs; one or many.
        columns: Names in the order wanted; `...` stands for the columns of the first table.
        compression: Decides where both encodings of a generation are present.

    Raises:
        ImportError: pyarrow is not installed (extra `arrow`).
        ValueError: There is no such column.

    Note:
        Spec: 80 §1.
    """
    schema = _schema(columns, _SESSIONS, _SESSIONS_ON_REQUEST)
    places = _kept(paths)
    scan = any(name in _SCANNED for name in schema.names)

    def start(_: list[Session]) -> Iterator[pa.RecordBatch]:
        found = each_session(places, scan=scan, compression=compression)
        return row_batches(found, schema, _SESSION_MAKERS, BATCH_ROWS)

    return Table(schema, start, BATCH_ROWS)


def _header(key: str) -> Callable[[Session], Any]:
    def make(session: Session) -> Any:
        return None if session.header is None else session.header.fields.get(key)

    return make


def _scan(name: str) -> Callable[[Session], Any]:
    def make(session: Session) -> Any:
        return None if session.scan is None else getattr(session.scan.scan, name)

    return make


def _own_from_of(session: Session) -> int | None:
    if session.scan is None or session.header is None:
        return None
    if session.header.generation >= 2:
        return session.scan.scan.inherited_event_count
    return (session.header.declared_cut or 0) if session.parent is not None else 0


def _project(session: Session) -> str | None:
    cwd = _header("cwd")(session)
    return None if cwd is None or not cwd else project_key(cwd)


def _error_name(session: Session) -> str | None:
    return None if session.error is None else type(session.error).__name__


_SESSION_MAKERS: Final[Mapping[str, Callable[[Session], Any]]] = {
    "session": lambda session: session.id,
    "path": lambda session: session.path,
    "status": lambda session: session.status,
    "lineage": lambda session: session.lineage,
    "parent": lambda session: session.parent,
    "project": _project,
    "cwd": _header("cwd"),
    "created_at": _header("createdAt"),
    "generation": lambda session: session.generation,
    "compression": lambda session: session.compression,
    "file_bytes": lambda session: session.file_bytes,
    "delegation_depth": _header("delegationDepth"),
    "agent_preset": _header("agentPreset"),
    "retained_count": lambda session: len(session.retained),
    "error": _error_name,
    "event_count": _scan("event_count"),
    "own_from": _own_from_of,
    "first_ms": _scan("first_time"),
    "last_ms": _scan("last_time"),
    "error_message": lambda session: session.error and str(session.error),
}


# --- calls ---

_CALLS: Final = {
    "session": "word",
    "seq": "int",
    "time": "moment",
    "turn": "int",
    "step": "int",
    "attempt": "int",
    "outcome": "word",
    "finish": "word",
    "provider": "word",
    "model": "word",
    "served_model": "word",
    "input": "int",
    "output": "int",
    "cache_read": "int",
    "cache_write": "int",
    "reasoning": "int",
    "total": "int",
    "recorded_total": "int",
    "start_ms": "int",
    "first_token_ms": "int",
    "last_token_ms": "int",
    "end_ms": "int",
    "ttft": "int",
    "generation": "int",
    "output_rate": "float",
    "own": "flag",
}
_CALLS_ON_REQUEST: Final = {
    "tools": "tools",
    "gaps": "ints",
    "prompt": "text",
    "answer": "text",
}


class _CallRow(NamedTuple):
    """A call with its texts.

    Attributes:
        call, time_ms: As in `TimedCall`.
        prompt: What a human wrote last before it.
        answer: The visible answer.
    """

    call: Call
    time_ms: int | None
    prompt: str | None
    answer: str | None


def calls(
    paths: Places,
    *,
    columns: Iterable[str | EllipsisType] | None = None,
    auxiliary: bool = False,
    compression: Compression | None = None,
) -> Table:
    """Return the model calls of the sessions at some places, inherited ones marked.

    | Column | Type | Meaning |
    | --- | --- | --- |
    | `time` | timestamp[ms, UTC] | of the event that `seq` names |
    | `seq`, `turn`, `step`, `attempt` | int64 | see `Call` |
    | `session`, `outcome`, `finish` | dictionary | see `Call` |
    | `provider`, `model`, `served_model` | dictionary | see `Call` |
    | `input`, `output`, `cache_read`, `cache_write`, `reasoning`, `total`, `recorded_total` | int64 | tokens |
    | `start_ms`, `first_token_ms`, `last_token_ms`, `end_ms` | int64 | moments, milliseconds since the epoch |
    | `ttft`, `generation` | int64 | durations, milliseconds |
    | `output_rate` | double | output tokens per second of generation |
    | `own` | bool | whether the session made the call itself; sum only over these |

    On request:

    | Column | Type | Meaning |
    | --- | --- | --- |
    | `tools` | list of {call_id, ms} | time of each tool call of a message |
    | `gaps` | list of int64 | milliseconds between consecutive token deltas |
    | `prompt` | large_string | what a human wrote last before the call |
    | `answer` | large_string | visible text of the settled message |

    Args:
        paths: Roots, directories, log files, entries of `find` or open logs; one or many.
        columns: Names in the order wanted; `...` stands for the columns of the first table, in the
            order of `Call`.
        auxiliary: Whether requests that carry no usage are rows, too, see `dsh_codec.calls`.
        compression: Decides where both encodings of a generation are present.

    Raises:
        ImportError: pyarrow is not installed (extra `arrow`).
        ValueError: There is no such column.

    Note:
        Memory: the calls of one session. Spec: 80 §3 to §6.
    """
    schema = _schema(columns, _CALLS, _CALLS_ON_REQUEST)
    with_texts = "prompt" in schema.names or "answer" in schema.names
    wanted = CallColumns(
        tools="tools" in schema.names,
        gaps="gaps" in schema.names,
        auxiliary=auxiliary,
    )

    def read(log: Log) -> Iterator[pa.RecordBatch]:
        found = read_calls(log, wanted)
        rows = (
            _with_texts(log, found)
            if with_texts
            else [_CallRow(*timed, None, None) for timed in found]
        )
        return row_batches(rows, schema, _CALL_MAKERS, BATCH_ROWS, _call_bytes)

    return _table_of_logs(schema, read, paths, compression)


def _with_texts(log: Log, found: Iterable[tuple[Call, int | None]]) -> list[_CallRow]:
    answers: dict[int, str] = {}
    prompts: list[tuple[int, str]] = []
    for passage in text(log, with_inherited=True).passages(("prompt", "answer")):
        if passage.kind == "answer":
            answers[passage.seq] = passage.text
        else:
            prompts.append((passage.seq, passage.text))
    prompts.sort()
    rows = []
    for call, time_ms in found:
        at = bisect_left(prompts, (call.seq, ""))
        prompt = prompts[at - 1][1] if at else None
        rows.append(_CallRow(call, time_ms, prompt, answers.get(call.seq)))
    return rows


def _call_bytes(row: _CallRow) -> int:
    return len(row.prompt or "") + len(row.answer or "")


def _tools_of(row: _CallRow) -> list[dict[str, Any]] | None:
    tools = row.call.tools
    return None if tools is None else [tool._asdict() for tool in tools]


def _of_call(name: str) -> Callable[[_CallRow], Any]:
    return attrgetter(f"call.{name}")


_CALL_MAKERS: Final[Mapping[str, Callable[[_CallRow], Any]]] = {
    name: _of_call(name) for name in (*_CALLS, "gaps")
} | {
    "time": attrgetter("time_ms"),
    "tools": _tools_of,
    "prompt": attrgetter("prompt"),
    "answer": attrgetter("answer"),
}


# --- chunks ---

_CHUNKS: Final = {
    "session": "word",
    "seq": "int",
    "turn": "int",
    "step": "int",
    "attempt": "int",
    "outcome": "code",
    "own": "flag",
    "record": "int32",
    "index": "int",
    "kind": "code",
    "time": "moment",
    "token": "flag",
    "gap": "int",
    "byte_len": "int",
}
_CHUNKS_ON_REQUEST: Final = {"text": "text", "text_wtf8": "bytes"}


def chunks(
    paths: Places,
    *,
    columns: Iterable[str | EllipsisType] | None = None,
    compression: Compression | None = None,
) -> Table:
    """Return the chunks of all attempts of the sessions at some places.

    | Column | Type | Meaning |
    | --- | --- | --- |
    | `session` | dictionary | id of the session |
    | `seq` | int64 | of the attempt, as in `calls` |
    | `turn`, `step`, `attempt` | int64 | of the attempt; null where the log has no integer |
    | `outcome` | dictionary | of the attempt: `message`, `interrupted`, `failed`, `open` |
    | `own` | bool | whether the session made the attempt itself |
    | `record` | int32 | position of the chunk's record in its stream |
    | `index` | int64 | block of the chunk; null where it has none |
    | `kind` | dictionary | type of the chunk (20 §1); `other` for any other |
    | `time` | timestamp[ms, UTC] | of the chunk |
    | `token` | bool | whether it is a token delta (20 §5) |
    | `gap` | int64 | milliseconds since the token delta before it in the attempt (80 §5); null for the first, and for what is no token |
    | `byte_len` | int64 | UTF-8 bytes of its fragment: text, reasoning or tool arguments |

    On request, the fragment itself:

    | Column | Type | Meaning |
    | --- | --- | --- |
    | `text` | large_string | each half of a surrogate pair that is split over two fragments is U+FFFD |
    | `text_wtf8` | large_binary | exact: lone surrogates as WTF-8 |

    Args:
        paths: Roots, directories, log files, entries of `find` or open logs; one or many.
        columns: Names in the order wanted; `...` stands for the columns of the first table.
        compression: Decides where both encodings of a generation are present.

    Raises:
        ImportError: pyarrow is not installed (extra `arrow`).
        ValueError: There is no such column.

    Note:
        A log that is refused has no rows at all, and whether it will be is known at its end only:
        up to 128 MiB of columns wait for that, and a larger log is read twice. In generations 2
        to 4 no Python object is made for a chunk or a record. Spec: 20 §4, 80.
    """
    schema = _schema(columns, _CHUNKS, _CHUNKS_ON_REQUEST)

    def read(log: Log) -> Iterator[pa.RecordBatch]:
        return chunk_batches(log, schema, BATCH_ROWS)

    return _table_of_logs(schema, read, paths, compression)


# --- events ---

_EVENTS: Final = {
    "session": "word",
    "seq": "int",
    "type": "word",
    "time": "moment",
    "own": "flag",
    "row_bytes": "int",
    "offset": "int",
    "frame": "int",
}
_EVENTS_ON_REQUEST: Final = {"data": "text"}


class _EventRow(NamedTuple):
    """An event of a session."""

    session: str
    seq: int
    type: str | None
    time: int | None
    own: bool
    row_bytes: int
    offset: int
    frame: int | None
    data: str | None


def events(
    paths: Places,
    *,
    columns: Iterable[str | EllipsisType] | None = None,
    compression: Compression | None = None,
) -> Table:
    """Return the events of the sessions at some places.

    | Column | Type | Meaning |
    | --- | --- | --- |
    | `session` | dictionary | id of the session |
    | `seq` | int64 | position in the log, from 0 |
    | `type` | dictionary | event type |
    | `time` | timestamp[ms, UTC] | of the event; null if it has no valid time |
    | `own` | bool | whether it is the session's own and not inherited |
    | `row_bytes` | int64 | bytes of its row; of the events of one packed row the first has them, the others 0 |
    | `offset` | int64 | plaintext byte where its row starts |
    | `frame` | int64 | Zstandard frame, from 0; null in a plain file |

    On request: `data`, the payload as JSON text (large_string), null if the row has none.

    Args:
        paths: Roots, directories, log files, entries of `find` or open logs; one or many.
        columns: Names in the order wanted; `...` stands for the columns of the table.
        compression: Decides where both encodings of a generation are present.

    Raises:
        ImportError: pyarrow is not installed (extra `arrow`).
        ValueError: There is no such column.

    Note:
        Two passes over each log, the first of which tells whether it has rows at all. Memory: one
        batch, of 65,536 rows or 16 MiB of payload. Spec: 10 §5, 80 §2.
    """
    schema = _schema(columns, _EVENTS, _EVENTS_ON_REQUEST)
    with_data = "data" in schema.names

    def read(log: Log) -> Iterator[pa.RecordBatch]:
        log.scan()
        rows = _event_rows(log, own_from(log), with_data=with_data)
        return row_batches(rows, schema, _EVENT_MAKERS, BATCH_ROWS, _event_bytes)

    return _table_of_logs(schema, read, paths, compression)


def _event_bytes(row: _EventRow) -> int:
    return len(row.data or "")


def _event_rows(log: Log, cut: int, *, with_data: bool) -> Iterator[_EventRow]:
    session = log.id
    for unit in log.units():
        members = (unit,) if isinstance(unit, Event) else unit.events()
        row_bytes = len(unit.raw)
        for event in members:
            yield _EventRow(
                session,
                event.seq,
                event.type,
                event.time,
                event.seq >= cut,
                row_bytes,
                unit.offset,
                unit.frame,
                _json_of(event, log.generation) if with_data else None,
            )
            row_bytes = 0


def _json_of(event: Event, generation: int) -> str | None:
    if event.data is None and generation < 2:
        return (
            None  # Rows of later generations always have a payload, which may be null.
        )
    return kernel.dump(event.data).decode()


_EVENT_MAKERS: Final[Mapping[str, Callable[[_EventRow], Any]]] = {
    name: attrgetter(name) for name in (*_EVENTS, *_EVENTS_ON_REQUEST)
}


# --- all of them ---


def _schema(
    columns: Iterable[str | EllipsisType] | None,
    default: Mapping[str, str],
    on_request: Mapping[str, str],
) -> pa.Schema:
    names: list[str] = []
    for name in (...,) if columns is None else columns:
        names += default if name is ... else [name]
    known = {**default, **on_request}
    for name in names:
        if name not in known:
            message = f"there is no column {name!r}; there are {', '.join(known)}"
            raise ValueError(message)
    if len(set(names)) < len(names):
        message = "each column is named once"
        raise ValueError(message)
    return make_schema({name: known[name] for name in names})


def _table_of_logs(
    schema: pa.Schema,
    read: Callable[[Log], Iterator[pa.RecordBatch]],
    paths: Places,
    compression: Compression | None,
) -> Table:
    places = _kept(paths)

    def start(errors: list[Session]) -> Iterator[pa.RecordBatch]:
        found = OpenReadings(places, read, compression=compression)
        found.errors = errors
        return found

    return Table(schema, start, BATCH_ROWS)


def _kept(places: Places) -> Places:
    """Return places that can be gone through again.

    Raises:
        TypeError: They name no sessions. Later a reader of Arrow would put it into its own words.
    """
    require_places(places)
    return tuple(places) if isinstance(places, Iterator) else places
