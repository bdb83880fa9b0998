"""Events of generation 4 of a log of any generation, in memory. Spec: 50 §2."""

from __future__ import annotations

import mmap
import tempfile
from typing import IO, TYPE_CHECKING, Any, Final

from dsh_codec._backend import kernel
from dsh_codec.errors import DshCodecError
from dsh_codec.header import CURRENT_VERSION, encode_header
from dsh_codec.migrate.chain import Acceptance, Chain, push_log
from dsh_codec.migrate.staging import encode_row, with_values
from dsh_codec.source import SPOOL_BYTES, own_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer

    from dsh_codec._types import Header
    from dsh_codec.log import Limits, Log
    from dsh_codec.migrate.children import ChildEvidence
    from dsh_codec.migrate.edge import JsonObject
    from dsh_codec.source import Source

__all__ = ["Upgrade", "spool_upgrade", "upgrade"]


DEEPER: Final = 2
"""Levels that a settlement nests deeper than the rows of its chunks, which a limit of depth is
for: the array of its stream, and the record. Spec: 50 §5.5."""


class Upgrade:
    """The events of generation 4 of a log; see `upgrade`.

    Attributes:
        source_version: Generation of the log.
        header_fields: Logical header of generation 4.
        inherited_event_count: Inherited cut of the result; None before a pass is through.
    """

    source_version: int
    header_fields: dict[str, Any]
    inherited_event_count: int | None

    def __init__(self, log: Log, children: Iterable[ChildEvidence] | None) -> None:
        """Take the log, which stays open."""
        self._log = log
        self._children = None if children is None else list(children)
        self.source_version = log.generation
        self.inherited_event_count = None
        self.header_fields = self._chain([]).header_fields

    def _chain(self, made: list[JsonObject]) -> Chain:
        try:
            return Chain(self._log.header, made.append, children=self._children)
        except DshCodecError as error:
            raise error.located(path=self._log.path) from None

    def __iter__(self) -> Iterator[JsonObject]:
        """Yield the events in order, as JSON objects.

        Raises:
            MigrationRefusedError: There is no safe way to carry the log over; `.seq` and
                `.rule` say where and why. Whatever came before is void then.
            DshCodecError, OSError: The log itself is refused, as by its own iteration.
        """
        if self.source_version == CURRENT_VERSION:
            for event in self._log:
                yield event.envelope
            self.inherited_event_count = self._source_cut()
            return
        acceptance = Acceptance(self.header_fields)
        max_depth = self._log.limits.max_depth + DEEPER
        for made in self._events():
            if isinstance(made, bytes):
                value = _event_of(made, max_depth)
            else:
                value = with_values(made)
            acceptance.feed(value)
            yield value
        assert self.inherited_event_count is not None  # noqa: S101 - a pass that ends sets it
        try:
            acceptance.finish(self.inherited_event_count)
        except DshCodecError as error:
            self.inherited_event_count = None
            raise error.located(path=self._log.path) from None

    def rows(self) -> Iterator[bytes]:
        """Yield the rows of the events, of an older generation, with their line feeds.

        The result as a whole is not accepted (50 §8): whoever takes it has to check the log of
        these rows at level `read` or above, and where that refuses it, to iterate for the reason.

        Raises:
            MigrationRefusedError, DshCodecError, OSError: As for iterating.
        """
        max_depth = self._log.limits.max_depth + DEEPER
        for made in self._events():
            if isinstance(made, bytes):
                yield made
            else:
                yield encode_row(made, max_depth=max_depth)

    def _events(self) -> Iterator[JsonObject | bytes]:
        """Yield the events, or their rows; the stream of an event may be a `StreamText`."""
        made: list[JsonObject] = []
        chain = self._chain(made)
        self.inherited_event_count = None
        log = self._log
        try:
            yield from push_log(chain, log, made)
            cut = chain.finish(self._source_cut())
            yield from made
        except DshCodecError as error:
            raise error.located(path=log.path) from None
        self.inherited_event_count = cut

    def _source_cut(self) -> int:
        assert self._log.result is not None  # noqa: S101 - a pass that ends sets it
        return self._log.result.scan.inherited_event_count


def _event_of(row: bytes, max_depth: int) -> JsonObject:
    """Return the event of a row of generation 4."""
    event: JsonObject = kernel.parse(row, max_depth=max_depth)
    if "sourceEventSeqs" in event:
        seqs = event["sourceEventSeqs"]
        event["sourceEventSeqs"] = kernel.decode_seqs(seqs, max_entries=event["seq"])
    return event


def upgrade(log: Log, *, children: Iterable[ChildEvidence] | None = None) -> Upgrade:
    """Give the events of generation 4 of a log of any generation, without writing.

    Args:
        log: The log.
        children: Evidence of the child sessions that the log's catalog has to list. Empty: it
            has none. None: nobody has said, which only generation 4 can do without.

    Returns:
        What yields the events, each pass anew. One of generation 4 gives them unchanged and is
        not checked beyond what reading it checks.

    Raises:
        MigrationRefusedError: `children` is None, and the log is of an older generation.

    Note:
        Constant memory, but for 4 to 12 bytes for each event of the source, the ids of its
        messages, and the attempt in work. Spec: 50 §2, §8.1 to §8.4.
    """
    return Upgrade(log, children)


def spool_upgrade(log: Log, children: Iterable[ChildEvidence]) -> tuple[Source, Header]:
    """Return the text of generation 4 of a log in a temporary file, and its header.

    Args:
        log: The log.
        children: Evidence of the child sessions.

    Returns:
        A source that owns the file: it vanishes when the source is closed. Its `path` is that
        of the log, for messages.

    Raises:
        MigrationRefusedError: There is no safe way to carry the log over.
        DshCodecError, OSError: The log itself is refused.
    """
    result = upgrade(log, children=children)
    rows = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 - handed on
    try:
        # The cut is not stored in a header; an end-seed marker carries it.
        header = encode_header(result.header_fields, inherited_event_count=0) + b"\n"
        rows.write(header)
        for row in result.rows():
            rows.write(row)
        if not _is_sound(rows, result.inherited_event_count, log.limits):
            # The reason is that of the first rule that acceptance finds broken, if one is.
            for _ in result:
                pass
        return own_file(rows, path=log.path), kernel.parse_header(header)
    except BaseException:
        rows.close()
        raise


def _is_sound(text: IO[bytes], cut: int | None, limits: Limits) -> bool:
    """Whether a log in a temporary file keeps every rule of 50 §8.1 to §8.4."""
    size = text.tell()
    text.seek(0)
    if size <= SPOOL_BYTES:
        return _is_sound_text(text.read(), cut, limits)
    with mmap.mmap(text.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _is_sound_text(data, cut, limits)


def _is_sound_text(data: Buffer, cut: int | None, limits: Limits) -> bool:
    try:
        found = kernel.check_bytes(
            data,
            mode="strict",
            level="read",
            generation=CURRENT_VERSION,
            max_depth=limits.max_depth + DEEPER,
        )
    except DshCodecError:
        return False
    return not found.findings and found.scan.inherited_event_count == cut
