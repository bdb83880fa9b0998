"""Assembled logs and replay sidecars: the streams of a log moved beside it, and back. Spec: 60 §5 to §7."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final, Self

from dsh_codec._backend import kernel
from dsh_codec.canonical import canonical_json
from dsh_codec.errors import (
    SidecarError,
    StreamError,
    UnsupportedError,
)
from dsh_codec.events import MISSING, is_array, is_equal_number, is_object
from dsh_codec.find import CURRENT_GENERATION
from dsh_codec.log import Log
from dsh_codec.rawrows import header_line
from dsh_codec.sidecar_file import SIDECAR_VERSION, Sidecar
from dsh_codec.source import (
    PIECE_BYTES,
    SPOOL_BYTES,
    own_file,
)
from dsh_codec.values import deep_equal

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from dsh_codec.row import Event

__all__ = [
    "SETTLEMENTS",
    "AttemptRows",
    "Split",
    "current_log",
    "join",
    "log_digest",
    "split",
]

SETTLEMENTS: Final = {"assistant/message": "message", "assistant/attempt": "attempt"}
"""Types of the events that carry a stream, with the kind of their attempt row. Spec: 60 §6.2."""

_PLACE: Final = ("seq", "kind", "turn", "step")
_CHECKED: Final = (
    *_PLACE,
    "try",
    "replayable",
    "ending",
    "cause",
    "failure",
    "chunks",
)


class _Digest:
    """Digest of the rows of a log. Spec: 60 §6.4."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, text: bytes) -> None:
        """Take the canonical text of the next row."""
        self._hash.update(text)
        self._hash.update(b"\n")

    def __str__(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def log_digest(log: Log) -> str:
    """Return the digest of a log of generation 4.

    Args:
        log: An open log of generation 4.

    Returns:
        `sha256:` and 64 hexadecimal digits. It depends on values only: not on the order of
        members, the compression or the spelling of ranges. Spec: 60 §6.4.

    Raises:
        DshCodecError, OSError: As for iterating over the log.
    """
    digest = _Digest()
    digest.add(canonical_json(kernel.parse(header_line(log))))
    for event in log:
        digest.add(canonical_json(event.envelope))
    return str(digest)


@contextmanager
def current_log(log: Log, *, strict_current: bool = False) -> Generator[Log]:
    """Give a log as one of generation 4, migrated in memory if it is older.

    Args:
        log: An open log.
        strict_current: Whether an older log is refused instead.

    Raises:
        UnsupportedError: The log is of an older generation, and `strict_current` is set.
        MigrationRefusedError: There is no safe way to carry it over.
        DshCodecError, OSError: As for iterating over it.
    """
    if log.generation == CURRENT_GENERATION:
        yield log
        return
    if strict_current:
        message = (
            f"the log is of generation {log.generation}, not {CURRENT_GENERATION}: publish "
            "its migration with 'dsh-codec migrate' first, or allow migration in memory"
        )
        raise UnsupportedError(message, log.path, rule="60 intro")
    with log.upgraded() as upgraded:
        yield upgraded


class AttemptRows:
    """Makes the attempt rows of one log, in the order of its settlements. Spec: 60 §6.2, §6.3."""

    def __init__(self, log: Log) -> None:
        """Begin before the first event.

        Args:
            log: The log, for the turn ends that follow a failed attempt. It is only read again
                where there is one.
        """
        self._log = log
        self._tries: dict[bytes, int] = {}
        self._causes: dict[int, dict[str, Any]] | None = None

    def row(
        self, event: Event, records: list[Any], *, allow_opaque: bool = False
    ) -> dict[str, Any]:
        """Return the attempt row of the next settlement.

        Args:
            event: The settlement.
            records: Its stream, which may come from elsewhere.
            allow_opaque: Whether a stream that does not expand is taken as it is.

        Raises:
            SidecarError: The stream does not expand (`corrupt`).
        """
        data = event.data
        kind = SETTLEMENTS[event.type or ""]
        chunk_count: int | None
        try:
            # Columns obey the rules of expansion without an object for each chunk.
            chunk_count = len(kernel.stream_columns(records).time)
        except StreamError as error:
            if not allow_opaque:
                message = f"the stream does not expand: {error.message}"
                raise _corrupt(message, self._log.path, event) from error
            chunk_count = None
        turn, step = data.get("turn"), data.get("step")
        is_replayable = chunk_count is not None and (
            kind == "attempt" or event.surface_op == "append"
        )
        number = 0
        if is_replayable:
            place = kernel.dump([turn, step])
            number = self._tries[place] = self._tries.get(place, 0) + 1
        row = {
            "type": "attempt",
            "seq": event.seq,
            "kind": kind,
            "turn": turn,
            "step": step,
            "try": number,
            "replayable": is_replayable,
            "ending": "finish",
        }
        row |= self._ending(event, kind, data, records)
        return row | {"chunks": chunk_count, "stream": records}

    def _ending(
        self, event: Event, kind: str, data: dict[str, Any], records: list[Any]
    ) -> dict[str, Any]:
        if kind == "message":
            if data.get("interrupted") is True:
                return {"ending": "cut", "cause": "cancelled"}
            return {}
        if _finish_kind(records) in ("error", "aborted"):
            return {}
        if self._causes is None:
            self._causes = _find_causes(self._log)
        return {"ending": "cut"} | self._causes.get(event.seq, {"cause": "unknown"})


def _finish_kind(records: list[Any]) -> Any:
    try:
        chunk = kernel.last_chunk(records, "finish")
    except (StreamError, TypeError):  # Only an opaque stream has such records.
        return None
    reason = None if chunk is None else chunk.get("reason")
    return reason.get("kind") if is_object(reason) else None


def _find_causes(log: Log) -> dict[int, dict[str, Any]]:
    """Look ahead: what ended the turn of each `assistant/attempt`, by its seq."""
    waiting: dict[bytes, list[int]] = {}
    found: dict[int, dict[str, Any]] = {}
    for event in log:
        if event.type not in ("assistant/attempt", "turn/end"):
            continue
        data = event.data if is_object(event.data) else {}
        turn = kernel.dump(data.get("turn"))
        if event.type == "assistant/attempt":
            waiting.setdefault(turn, []).append(event.seq)
        else:
            cause = _cause_of(data.get("reason"))
            found |= dict.fromkeys(waiting.pop(turn, ()), cause)
    return found


def _cause_of(reason: Any) -> dict[str, Any]:
    kind = reason.get("kind") if is_object(reason) else None
    if kind in ("aborted", "interrupted"):
        return {"cause": "cancelled"}
    if kind == "error" and is_object(reason.get("error")):
        return {"cause": "error", "failure": reason["error"]}
    return {"cause": "unknown"}


def _corrupt(
    message: str, path: str | None, event: Event | None = None, line: int | None = None
) -> SidecarError:
    seq = None if event is None else event.seq
    return SidecarError(message, path, line, None, seq, None, "60 §7", "corrupt")


def _mismatch(message: str, path: str | None) -> SidecarError:
    return SidecarError(message, path, None, None, None, None, "60 §7", "mismatch")


class Split:
    """A log in two parts: the assembled log, and a sidecar with its streams; see `split`.

    Attributes:
        assembled: The log with empty streams, over a temporary file.
        sidecar: The sidecar, over a temporary file.
    """

    __slots__ = ("assembled", "sidecar")

    def __init__(self, assembled: Log, sidecar: Sidecar) -> None:
        """Take both parts."""
        self.assembled = assembled
        self.sidecar = sidecar

    def __enter__(self) -> Self:
        """Return the parts."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close both parts; their temporary files vanish."""
        self.close()

    def close(self) -> None:
        """Close both parts; their temporary files vanish."""
        self.assembled.close()
        self.sidecar.close()


def split(
    log: Log, *, allow_opaque: bool = False, strict_current: bool = False
) -> Split:
    """Move the streams of a log to a sidecar.

    Args:
        log: An open log; an older one is migrated in memory, without children.
        allow_opaque: Whether a stream that does not expand is moved as it is. Its row has no
            number of chunks and cannot be replayed.
        strict_current: Whether a log of an older generation is refused.

    Returns:
        The assembled log and the sidecar, to be closed. `join` makes the log again.

    Raises:
        SidecarError: A stream does not expand, or a settlement has none (`corrupt`).
        UnsupportedError: The log is older, and `strict_current` is set.
        DshCodecError, OSError: As for iterating over the log.

    Note:
        One pass, two if an attempt failed; memory: one row. Both parts lie in temporary files.
        The same log always gives the same bytes. Spec: 60 §5 to §7.
    """
    with current_log(log, strict_current=strict_current) as current:
        return _split(current, allow_opaque=allow_opaque)


def _split(log: Log, *, allow_opaque: bool) -> Split:
    full, stripped = _Digest(), _Digest()
    describe = AttemptRows(log)
    row_count = event_count = 0
    rows: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115
    assembled: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115
    sidecar: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115
    try:
        header = header_line(log)
        assembled.write(header)
        text = canonical_json(kernel.parse(header))
        full.add(text)
        stripped.add(text)
        for event in log:
            event_count += 1
            envelope = event.envelope
            text = canonical_json(envelope)
            full.add(text)
            if event.type in SETTLEMENTS:
                records = _records_of(event, log.path)
                row = describe.row(event, records, allow_opaque=allow_opaque)
                rows.write(kernel.dump(row) + b"\n")
                row_count += 1
                written, text = _with_stream(event, envelope, [])
                stripped.add(text)
                assembled.write(written)
            else:
                stripped.add(text)
                assembled.write(event.raw)
            assembled.write(b"\n")
        first = {
            "type": "dsh-replay",
            "version": SIDECAR_VERSION,
            "sessionId": log.id,
            "formatVersion": CURRENT_GENERATION,
            "eventCount": event_count,
            "attempts": row_count,
            "sourceDigest": str(full),
            "assembledDigest": str(stripped),
        }
        sidecar.write(kernel.dump(first) + b"\n")
        rows.seek(0)
        shutil.copyfileobj(rows, sidecar, PIECE_BYTES)
        return Split(_spooled(assembled, log), Sidecar(own_file(sidecar, path=None)))
    except BaseException:
        assembled.close()
        sidecar.close()
        raise
    finally:
        rows.close()


def _spooled(file: IO[bytes], log: Log) -> Log:
    limits = log._limits  # pyright: ignore[reportPrivateUsage]
    source = own_file(file, path=log.path)
    return Log(source, log.header, "none", mode="strict", limits=limits)


def _records_of(event: Event, path: str | None) -> list[Any]:
    data = event.data
    records = data.get("stream") if is_object(data) else None
    if not is_array(records):
        message = "the settlement has no array as its stream"
        raise _corrupt(message, path, event)
    return records


def _with_stream(
    event: Event, envelope: dict[str, Any], records: list[Any]
) -> tuple[bytes, bytes]:
    """Return the row of a settlement with another stream, as written and canonical."""
    data = envelope["data"] | {"stream": records}
    changed = envelope | {"data": data}
    written = changed
    if "sourceEventSeqs" in envelope:  # The row keeps its ranges.
        written = kernel.parse(event.raw) | {"data": data}
    return kernel.dump(written), canonical_json(changed)


def join(assembled: Log, sidecar: Sidecar) -> Log:
    """Put the streams of a sidecar back into an assembled log.

    Args:
        assembled: An open assembled log of generation 4.
        sidecar: Its sidecar.

    Returns:
        The log that was split, over a temporary file: equal in values and in the order of
        members. To be closed.

    Raises:
        SidecarError: Both do not belong together, or one of them was changed: `mismatch` (id,
            count, digest), `corrupt` (a row, a stream, or the number of rows).
        UnsupportedError: The log is not of generation 4.
        DshCodecError, OSError: As for iterating over the log or the sidecar.

    Note:
        One pass, two if an attempt failed; memory: one row. Nothing is returned before both
        digests were compared. Spec: 60 §7.
    """
    with current_log(assembled, strict_current=True):
        header = sidecar.header
        if header["sessionId"] != assembled.id:
            message = (
                f"the sidecar is of session {header['sessionId']!r:.64}, the log of "
                f"{assembled.id!r:.64}"
            )
            raise _mismatch(message, sidecar.path)
        if not is_equal_number(header["formatVersion"], CURRENT_GENERATION):
            message = (
                f"the sidecar is of a log of generation {header['formatVersion']}, this "
                f"one has {CURRENT_GENERATION}"
            )
            raise _mismatch(message, sidecar.path)
        joined: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115
        try:
            _Join(assembled, sidecar, joined).run()
            return _spooled(joined, assembled)
        except BaseException:
            joined.close()
            raise


class _Join:
    """One pass over an assembled log and its sidecar."""

    def __init__(self, log: Log, sidecar: Sidecar, joined: IO[bytes]) -> None:
        self._log = log
        self._sidecar = sidecar
        self._joined = joined
        self._rows = iter(sidecar)
        self._describe = AttemptRows(log)

    def run(self) -> None:
        full, stripped = _Digest(), _Digest()
        fault: SidecarError | None = None
        event_count = 0
        header = header_line(self._log)
        self._joined.write(header)
        text = canonical_json(kernel.parse(header))
        full.add(text)
        stripped.add(text)
        for event in self._log:
            event_count += 1
            envelope = event.envelope
            text = canonical_json(envelope)
            stripped.add(text)
            if fault is not None:
                continue
            written = event.raw
            if event.type in SETTLEMENTS:
                try:
                    records = self._records_for(event)
                except SidecarError as error:
                    # A wrong assembled log is the better explanation, if it is one.
                    fault = error
                    continue
                written, text = _with_stream(event, envelope, records)
            full.add(text)
            self._joined.write(written)
            self._joined.write(b"\n")
        expected = self._sidecar.header
        if event_count != expected["eventCount"]:
            message = (
                f"the log has {event_count} events, the sidecar is of one with "
                f"{expected['eventCount']}"
            )
            raise _mismatch(message, self._sidecar.path)
        if str(stripped) != expected["assembledDigest"]:
            message = "the log is not the assembled log of this sidecar: digests differ"
            raise _mismatch(message, self._sidecar.path)
        if fault is not None:
            raise fault
        for row in self._rows:
            message = (
                f"the attempt row of seq {row['seq']} has no settlement in the log"
            )
            raise _corrupt(message, self._sidecar.path)
        if str(full) != expected["sourceDigest"]:
            message = (
                "the joined log is not the one that was split: digests differ, so a value "
                "in the sidecar was changed"
            )
            raise _mismatch(message, self._sidecar.path)

    def _records_for(self, event: Event) -> list[Any]:
        path = self._sidecar.path
        if _records_of(event, self._log.path):
            message = "the settlement has a stream: the log is not an assembled one"
            raise _corrupt(message, self._log.path, event)
        row = next(self._rows, None)
        if row is None:
            message = "the settlement has no attempt row in the sidecar"
            raise _corrupt(message, path, event)
        records: list[Any] = row["stream"]
        is_opaque = "chunks" in row and row["chunks"] is None
        expected = self._describe.row(event, records, allow_opaque=is_opaque)
        for key in _CHECKED:
            if not deep_equal(row.get(key, MISSING), expected.get(key, MISSING)):
                message = (
                    f"{key} of the attempt row does not fit the log and the stream"
                )
                raise _corrupt(message, path, event)
        return records
