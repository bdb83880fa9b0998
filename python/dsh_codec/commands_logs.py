"""The commands that read logs: `list`, `cat`, `convert`, `info`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from dsh_codec._backend import kernel
from dsh_codec.commands import (
    compression_option,
    json_option,
    log_argument,
    mode_option,
    refusals,
    root_argument,
)
from dsh_codec.commands_output import (
    exit_code_of,
    say,
    write_json,
    write_line,
    write_table,
)
from dsh_codec.errors import StreamError
from dsh_codec.find import Session, default_root, find
from dsh_codec.log import Log, open as open_log
from dsh_codec.report import Finding, size_text, time_text

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from dsh_codec.attempts import Attempt

__all__ = ["Tally", "cat", "convert", "info", "list_sessions", "session_members"]

_first = click.option(
    "--from", "first", type=click.IntRange(min=0), default=0, help="First seq."
)
_last = click.option(
    "--to", "last", type=click.IntRange(min=0), help="Last seq, included."
)


@click.command("list")
@root_argument
@compression_option
@json_option
def list_sessions(root: Path | None, *, compression: Any, as_json: bool) -> int:
    """List the sessions under a root, from their headers.

    `find` does the same with filters, and reads all rows on request. Exit code 1 or 2 if some of
    them cannot be read, as `check` has it.
    """
    tally = Tally()
    with refusals():
        place = default_root() if root is None else root
    sessions = map(tally.add, find(place, compression=compression))
    if as_json:
        for session in sessions:
            write_json(session_members(session))
    else:
        write_table(
            ["session", "status", "gen", "size", "created", "lineage", "path"],
            map(_session_cells, sessions),
        )
    return tally.finish(is_json=as_json)


class Tally:
    """Counts the sessions that a command lists, and those of them that cannot be read."""

    def __init__(self) -> None:
        """Begin with none."""
        self._count = self._failed = self._code = 0

    def add(self, session: Session) -> Session:
        """Take a session and return it."""
        self._count += 1
        if session.error is not None:
            self._failed += 1
            self._code = max(self._code, exit_code_of(session.error))
        return session

    def finish(self, *, is_json: bool) -> int:
        """Say how many cannot be read; their lines say why. Return the highest exit code."""
        if self._failed and not is_json:
            say(
                f"dsh-codec: {self._failed:,} of {self._count:,} sessions cannot be read"
            )
        return self._code


@click.command()
@log_argument
@click.option(
    "--expand", is_flag=True, help="One timed chunk a line instead of events."
)
@click.option(
    "--type",
    "types",
    multiple=True,
    help="Only these event types (with --expand: chunk types).",
)
@_first
@_last
@mode_option
@compression_option
@json_option
def cat(
    log: Path,
    *,
    expand: bool,
    types: tuple[str, ...],
    first: int,
    last: int | None,
    mode: Any,
    compression: Any,
    as_json: bool,
) -> int:
    """Write the events of a log as JSON lines.

    `sourceEventSeqs` and packed rows are written out.
    """
    del as_json  # It is the only form there is.
    with open_log(log, mode=mode, compression=compression) as opened:
        if expand and not types:
            for lines in _chunk_lines(opened, first, last):
                sys.stdout.buffer.write(lines)
        else:
            values = (_chunks if expand else _events)(opened, first, last)
            for kind, value in values:
                if not types or kind in types:
                    write_json(value)
        _say_torn(opened)
    return 0


@click.command()
@log_argument
@_first
@_last
@mode_option
@compression_option
@json_option
def convert(
    log: Path,
    *,
    first: int,
    last: int | None,
    mode: Any,
    compression: Any,
    as_json: bool,
) -> int:
    """Write the attempts of a log as JSON lines.

    Their streams are records of generation 4, whatever generation the log is of.
    """
    del as_json  # It is the only form there is.
    with open_log(log, mode=mode, compression=compression) as opened:
        for attempt in _attempts(opened, first, last):
            members = _place(attempt) | {"outcome": attempt.outcome}
            records = _records_text(opened, attempt)
            start = kernel.dump(members)[:-1] + b',"stream":'
            # Records may be long: they are not copied once more.
            sys.stdout.buffer.writelines((start, records, b"}\n"))
        _say_torn(opened)
    return 0


@click.command()
@log_argument
@mode_option
@compression_option
@json_option
def info(log: Path, *, mode: Any, compression: Any, as_json: bool) -> int:
    """Sum up a log: header, events, attempts, tokens, times, sizes."""
    from dsh_codec.summary import summarize

    with open_log(log, mode=mode, compression=compression) as opened:
        summary = summarize(opened)
    if as_json:
        write_json(summary.to_dict())
    elif sys.stdout.isatty():
        write_table(["what", "value"], summary.rows())
    else:
        for name, value in summary.rows():
            write_line(f"{name}: {value}")
    return 0


def _events(log: Log, first: int, last: int | None) -> Iterator[tuple[str | None, Any]]:
    for event in log:
        if last is not None and event.seq > last:
            return
        if event.seq >= first:
            yield event.type, event.envelope


def _say_torn(log: Log) -> None:
    """Say that the end of the log is incomplete, as far as the pass came to it."""
    found = log.result
    if found is not None and found.truncate_to is not None:
        say(
            f"dsh-codec: {log.path}: torn tail at byte {found.truncate_to:,}, "
            f"{found.recovered_count:,} events were read from it"
        )


def _attempts(log: Log, first: int, last: int | None) -> Iterator[Attempt]:
    for attempt in log.attempts():
        if last is not None and attempt.seq > last:
            return
        if attempt.seq >= first:
            yield attempt


def _place(attempt: Attempt) -> dict[str, Any]:
    return {
        "seq": attempt.seq,
        "turn": attempt.turn,
        "step": attempt.step,
        "attempt": attempt.number,
    }


def _chunks(log: Log, first: int, last: int | None) -> Iterator[tuple[str | None, Any]]:
    for attempt in _attempts(log, first, last):
        yield from _chunks_of(log, attempt)


def _chunks_of(log: Log, attempt: Attempt) -> Iterator[tuple[str | None, Any]]:
    place = _place(attempt)
    try:
        for time, chunk in attempt.stream.iter_expand():
            yield chunk.get("type"), place | {"time": time, "chunk": chunk}
    except StreamError as error:
        raise error.located(path=log.path, seq=attempt.seq) from None


def _chunk_lines(log: Log, first: int, last: int | None) -> Generator[bytes]:
    """Yield what `_chunks` does as JSON lines, from the bytes of the rows."""
    for attempt in _attempts(log, first, last):
        stored = attempt.stream.stored
        if stored is not None:
            try:
                prefix = kernel.dump(_place(attempt))[1:-1]
                yield kernel.expand_lines(stored, prefix=prefix)
                continue
            except StreamError:
                pass  # Chunk by chunk, so that those before the fault are shown.
        for _, value in _chunks_of(log, attempt):
            yield kernel.dump(value) + b"\n"


def _records_text(log: Log, attempt: Attempt) -> bytes:
    stored = attempt.stream.stored
    if stored is None:
        return kernel.dump(attempt.stream.records)
    try:
        return kernel.pack_lines(stored)
    except StreamError as error:
        raise error.located(path=log.path, seq=attempt.seq) from None


def session_members(session: Session) -> dict[str, Any]:
    """Return what is told of a session as JSON."""
    fields = {} if session.header is None else session.header.fields
    return {
        "path": session.path,
        "status": session.status,
        "id": session.id,
        "generation": session.generation,
        "compression": session.compression,
        "file_bytes": session.file_bytes,
        "created_at": fields.get("createdAt"),
        "cwd": fields.get("cwd"),
        "parent": session.parent,
        "lineage": session.lineage,
        "retained": list(session.retained),
        "leftovers": list(session.leftovers),
        "error": None if session.error is None else str(session.error),
    }


def _session_cells(session: Session) -> list[str]:
    created = None if session.header is None else session.header.fields["createdAt"]
    where = (
        session.path
        if session.error is None
        else f"{session.path}: {Finding.of(session.error).text}"
    )
    return [
        session.id or "-",
        session.status,
        "-" if session.generation is None else f"v{session.generation}",
        "-" if session.file_bytes is None else size_text(session.file_bytes),
        "-" if created is None else time_text(int(created)),
        session.lineage or "-",
        where,
    ]
