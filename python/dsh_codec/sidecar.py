"""Assembled logs and replay sidecars: the streams of a log moved beside it, and back. Spec: 60 §5 to §7."""

from __future__ import annotations

import hashlib
import tempfile
from collections import deque
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final, Self

from dsh_codec._backend import kernel
from dsh_codec.errors import (
    SidecarError,
    StreamError,
    UnsupportedError,
)
from dsh_codec.events import is_equal_number, is_object
from dsh_codec.find import CURRENT_GENERATION
from dsh_codec.log import Log, require_log
from dsh_codec.rawrows import header_line
from dsh_codec.sidecar_file import SIDECAR_VERSION, Sidecar, SidecarWriter
from dsh_codec.source import (
    SPOOL_BYTES,
    own_file,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import TracebackType

    from dsh_codec._kernel import SplitScanner

__all__ = [
    "SETTLEMENTS",
    "Split",
    "attempt_rows",
    "current_log",
    "join",
    "join_text",
    "log_digest",
    "split",
    "split_text",
]

SETTLEMENTS: Final = frozenset(("assistant/message", "assistant/attempt"))
"""Types of the events that carry a stream. Spec: 60 §6.2."""


PROJECTION: Final = "plugin:dsh-codec/without-reasoning"
"""Type of the last event of a log without reasoning, see `dsh_codec.projection`."""


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
    digest = hashlib.sha256(kernel.canonicalize(header_line(log)) + b"\n")
    max_depth = log.limits.max_depth
    for event in log:
        text = event.raw
        if b"sourceEventSeqs" in text or b"\\u" in text:  # A key may be spelled so.
            text = kernel.dump(event.envelope, max_depth=max_depth)
        digest.update(kernel.canonicalize(text, max_depth=max_depth) + b"\n")
    return f"sha256:{digest.hexdigest()}"


@contextmanager
def current_log(log: Log, *, strict_current: bool = False) -> Generator[Log]:
    """Give a log as one of generation 4, migrated in memory if it is older.

    Args:
        log: An open log.
        strict_current: Whether an older log is refused instead.

    Raises:
        TypeError: It is no log.
        UnsupportedError: The log is of an older generation, and `strict_current` is set.
        MigrationRefusedError: There is no safe way to carry it over.
        DshCodecError, OSError: As for iterating over it.
    """
    require_log(log)
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


class _Causes:
    """Says why attempts were cut that did not report their end themselves. Spec: 60 §6.3."""

    def __init__(self, log: Log) -> None:
        """Wait for the first question: only then the log is read ahead, once."""
        self._log = log
        self._found: dict[int, bytes] | None = None

    def __call__(self, seq: int) -> bytes:
        """Return the members `cause` and `failure` of an attempt as JSON text, without braces."""
        if self._found is None:
            self._found = _find_causes(self._log)
        return self._found.get(seq, _UNKNOWN)


_UNKNOWN: Final = b'"cause":"unknown"'


def _find_causes(log: Log) -> dict[int, bytes]:
    """Look ahead: what ended the turn of each `assistant/attempt`, by its seq."""
    waiting: dict[bytes, list[int]] = {}
    found: dict[int, bytes] = {}
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


def _cause_of(reason: Any) -> bytes:
    kind = reason.get("kind") if is_object(reason) else None
    if kind in ("aborted", "interrupted"):
        return b'"cause":"cancelled"'
    if kind == "error" and is_object(reason.get("error")):
        return kernel.dump({"cause": "error", "failure": reason["error"]})[1:-1]
    return _UNKNOWN


def _corrupt(message: str, path: str | None, seq: int | None = None) -> SidecarError:
    return SidecarError(message, path, None, None, seq, None, "60 §7", "corrupt")


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
        One pass, two if an attempt was cut; memory: one row. Both parts lie in temporary files.
        The same log always gives the same bytes. Spec: 60 §5 to §7.
    """
    assembled: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115
    sidecar: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115
    try:
        with current_log(log, strict_current=strict_current) as current:
            writer = SidecarWriter(sidecar)
            for part in split_text(current, writer, allow_opaque=allow_opaque):
                assembled.write(part)
            parts = _spooled(assembled, current)
        return Split(parts, Sidecar(own_file(sidecar, path=None)))
    except BaseException:
        assembled.close()
        sidecar.close()
        raise


def split_text(
    log: Log, sidecar: SidecarWriter, *, allow_opaque: bool = False
) -> Iterator[bytes]:
    """Write the sidecar of a log, and yield the text of its assembled log.

    Args:
        log: An open log of generation 4.
        sidecar: Takes the attempt rows, and the header row at the end.
        allow_opaque: As for `split`.

    Yields:
        The header row, then whole rows.

    Raises:
        SidecarError, DshCodecError, OSError: As for `split`.
    """
    scanner = _split_scanner(log, allow_opaque=allow_opaque)

    def first_row(share: float = 1) -> bytes:
        full, stripped = scanner.digests()
        row = {
            "type": "dsh-replay",
            "version": SIDECAR_VERSION,
            "sessionId": log.id,
            "formatVersion": CURRENT_GENERATION,
            "eventCount": int(scanner.event_count / share),
            "attempts": int(scanner.attempt_count / share),
            "sourceDigest": full,
            "assembledDigest": stripped,
        }
        return kernel.dump(row) + b"\n"

    yield header_line(log)
    is_first = True
    for assembled, rows in _feed_split(log, scanner):
        if is_first:
            # Only the digits of two numbers have to be guessed.
            share = scanner.fed_bytes / max(log.file_bytes, scanner.fed_bytes, 1)
            sidecar.reserve(len(first_row(share or 1)))
            is_first = False
        sidecar.write(rows)
        yield assembled
    sidecar.finish(first_row())


def attempt_rows(log: Log) -> Iterator[dict[str, Any]]:
    """Yield the attempt rows of a log of generation 4, in the order of its settlements.

    Raises:
        SidecarError, DshCodecError, OSError: As for `split`.

    Note:
        They are made as they are asked for. Spec: 60 §6.2.
    """
    for _, rows in _feed_split(log, _split_scanner(log, allow_opaque=False)):
        for row in rows.split(b"\n")[:-1]:
            yield kernel.parse(row, max_depth=log.limits.max_depth)


def _split_scanner(log: Log, *, allow_opaque: bool) -> SplitScanner:
    return kernel.SplitScanner(
        header_line(log),
        _Causes(log),
        allow_opaque=allow_opaque,
        mode=log.mode,
        max_row_bytes=log.limits.max_row_bytes,
        max_depth=log.limits.max_depth,
    )


def _feed_split(log: Log, scanner: SplitScanner) -> Iterator[tuple[bytes, bytes]]:
    try:
        yield from log.feed_to(scanner)
    except StreamError as error:
        message = error.message
        if error.record is not None:
            message = f"the stream does not expand: {message}"
        raise _corrupt(message, log.path, error.seq) from error


def _spooled(file: IO[bytes], log: Log) -> Log:
    source = own_file(file, path=log.path)
    return Log(source, log.header, "none", mode="strict", limits=log.limits)


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
        One pass, two if an attempt was cut; memory: one row. Nothing is returned before both
        digests were compared. Spec: 60 §7.
    """
    joined: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115
    try:
        for part in join_text(assembled, sidecar):
            joined.write(part)
        return _spooled(joined, assembled)
    except BaseException:
        joined.close()
        raise


def join_text(assembled: Log, sidecar: Sidecar) -> Iterator[bytes]:
    """Yield the text of the log that was split: the header row, then whole rows.

    The text is that log only if no error is raised behind its last part.

    Raises:
        SidecarError, UnsupportedError, DshCodecError, OSError: As for `join`.
    """
    with current_log(assembled, strict_current=True):
        _require_sidecar(sidecar)
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
    rows = _LinesLeft(sidecar)
    line = header_line(assembled)
    limits = assembled.limits
    scanner = kernel.JoinScanner(
        line,
        rows,
        _Causes(assembled),
        mode=assembled.mode,
        max_row_bytes=limits.max_row_bytes,
        max_depth=limits.max_depth,
    )
    yield line
    yield from assembled.feed_to(scanner)
    full, stripped = scanner.digests()
    is_own = (
        scanner.event_count == header["eventCount"]
        and stripped == header["assembledDigest"]
    )
    if not is_own and _is_projection(assembled):
        message = (
            "the log is a projection without reasoning, which was dropped for good: no sidecar "
            "makes the log of it again; join the assembled log that 'dsh-codec split' wrote"
        )
        raise _mismatch(message, assembled.path)
    if scanner.event_count != header["eventCount"]:
        message = (
            f"the log has {scanner.event_count} events, the sidecar is of one with "
            f"{header['eventCount']}"
        )
        raise _mismatch(message, sidecar.path)
    if stripped != header["assembledDigest"]:
        message = "the log is not the assembled log of this sidecar: digests differ"
        raise _mismatch(message, sidecar.path)
    if rows.fault is not None:
        raise rows.fault
    if scanner.fault is not None:
        raise scanner.fault.located(path=sidecar.path)
    rows.require_none_left()
    if full != header["sourceDigest"]:
        message = (
            "the joined log is not the one that was split: digests differ, so a value "
            "in the sidecar was changed"
        )
        raise _mismatch(message, sidecar.path)


def _require_sidecar(value: object) -> None:
    if not isinstance(value, Sidecar):
        message = (
            f"this takes an open sidecar, not {type(value).__name__}: open it with "
            "dsh_codec.Sidecar.open first"
        )
        raise TypeError(message)


def _is_projection(log: Log) -> bool:
    last = deque(log, maxlen=1)
    return any(event.type == PROJECTION for event in last)


class _LinesLeft:
    """The attempt rows of a sidecar as text; what is wrong with its form is kept for later."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._lines = sidecar.attempt_lines()
        self._count = 0
        self.fault: SidecarError | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        try:
            line = next(self._lines)
        except SidecarError as error:
            # A wrong assembled log is the better explanation, if it is one.
            self.fault = error
            raise StopIteration from None
        self._count += 1
        return line

    def require_none_left(self) -> None:
        """Refuse rows that no settlement took, and a number that the header does not give.

        Raises:
            SidecarError: As it says (`corrupt`).
        """
        expected, path = self._sidecar.header["attempts"], self._sidecar.path
        for _ in self:
            message = f"the sidecar has more attempt rows than the {self._count - 1} settlements of the log"
            raise _corrupt(message, path)
        if self.fault is not None:
            raise self.fault
        if self._count != expected:
            message = (
                f"the sidecar has {self._count} attempt rows, its header says {expected}: it "
                "is not complete, or was changed"
            )
            raise _corrupt(message, path)
