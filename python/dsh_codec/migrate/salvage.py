"""Export of what can be carried over of a log that migration refuses. Not lossless, and says so.

Choice: the export is the longest prefix that migrates and passes every check, because later events
refer to earlier ones and a log with a hole would claim that something else happened.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsh_codec._backend import kernel
from dsh_codec.errors import (
    CorruptLogError,
    DshCodecError,
    MigrationRefusedError,
    UnsupportedError,
)
from dsh_codec.events import is_inherited_marker
from dsh_codec.header import CURRENT_VERSION, encode_header
from dsh_codec.migrate.chain import Acceptance, Chain, run_of
from dsh_codec.migrate.publish import open_source_log, verify
from dsh_codec.migrate.staging import (
    encode_row,
    link_staged,
    stage,
    staging_folder,
)
from dsh_codec.names import encode_segment, log_filename
from dsh_codec.row import PackedRow

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from dsh_codec._types import Compression
    from dsh_codec.log import Log
    from dsh_codec.migrate.edge import JsonObject
    from dsh_codec.migrate.staging import Staged

__all__ = ["MARK_TYPE", "Loss", "Salvage", "salvage"]

MARK_TYPE: Final = "plugin:dsh-codec/salvage"
"""Type of the ignorable event that ends an export and says what is missing."""


class Loss(NamedTuple):
    """Why a prefix ends where it does.

    Attributes:
        seq: First event of the source that is left out.
        rule: The rule that refuses it, or what follows from it; None if there is none.
        reason: What is wrong.
    """

    seq: int
    rule: str | None
    reason: str


class Salvage(NamedTuple):
    """An export that is not lossless.

    Attributes:
        source: The log that was read.
        target: The export; its name is none that a reader takes for a session's log.
        kept_count: Events of the source that it stands for, from the first on.
        losses: What was in the way, the first event first; empty if it was only the evidence
            of children, which an export does without.
    """

    source: str
    target: str
    kept_count: int
    losses: tuple[Loss, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the export as JSON."""
        return {
            "source": self.source,
            "target": self.target,
            "kept_events": self.kept_count,
            "losses": [loss._asdict() for loss in self.losses],
        }


class _StopError(Exception):
    """The prefix has to end earlier. `seq`: first event to leave out, None if unknown."""

    def __init__(self, seq: int | None, error: DshCodecError) -> None:
        super().__init__(seq, error)
        self.seq = seq
        self.error = error


class _Prefix:
    """The events of generation 4 of a log's first events.

    Attributes:
        limit: Events of the source to take.
        cut: Inherited cut of the result, once all were taken.
        origins: For each event of the result, the event of the source that brought it about.
    """

    def __init__(self, log: Log, limit: int | None, losses: list[Loss]) -> None:
        self._log = log
        self._losses = losses
        self._made: list[JsonObject] = []
        self._chain = Chain(log.header, self._made.append, children=())
        self.header_fields = self._chain.header_fields
        self.limit = limit
        self.taken = 0
        self.cut = 0
        self.origins = array("q")

    def __iter__(self) -> Iterator[JsonObject]:
        acceptance = Acceptance(self.header_fields)
        source_cut = self._log.header.declared_cut or 0
        last_time: Any = self.header_fields["createdAt"]
        for unit in self._units():
            marker = self._push(unit)
            source_cut = source_cut if marker is None else marker
            for event in self._take(acceptance, unit.seq):
                last_time = event["time"]
                yield event
        try:
            self.cut = self._chain.finish(source_cut)
        except MigrationRefusedError as error:
            raise _StopError(None, error) from None
        for event in self._take(acceptance, None):
            last_time = event["time"]
            yield event
        try:
            acceptance.finish(self.cut)
        except MigrationRefusedError as error:
            raise _StopError(None, error) from None
        yield self._mark(last_time)

    def _units(self) -> Iterator[Any]:
        """Yield the source's units; damage ends the prefix like any other refusal."""
        if self.limit == 0:
            return
        try:
            for unit in self._log.units():
                count = unit.count if isinstance(unit, PackedRow) else 1
                self.taken = unit.seq + count
                yield unit
                # Damage that is left out anyway must not be reached.
                if self.taken == self.limit:
                    return
        except (CorruptLogError, UnsupportedError) as error:
            raise _StopError(self.taken, error) from None

    def _push(self, unit: Any) -> int | None:
        """Push a unit; return its seq if it is an inherited marker."""
        try:
            if isinstance(unit, PackedRow):
                self._chain.push_run(run_of(kernel.parse(unit.raw)))
                return None
            event = unit.envelope
            self._chain.push(event)
        except MigrationRefusedError as error:
            raise _StopError(unit.seq, error) from None
        return unit.seq if is_inherited_marker(event) else None

    def _take(self, acceptance: Acceptance, origin: int | None) -> Iterator[JsonObject]:
        for event in self._made:
            self.origins.append(-1 if origin is None else origin)
            acceptance.feed(event)
            if acceptance.fault is not None:
                raise _StopError(origin, acceptance.fault)
            yield event
        self._made.clear()

    def _mark(self, time: Any) -> JsonObject:
        data = {
            "lossless": False,
            "sourceVersion": self._log.generation,
            "keptEvents": self.taken,
            "losses": [loss._asdict() for loss in reversed(self._losses)],
        }
        return {
            "type": MARK_TYPE,
            "seq": len(self.origins),
            "time": time,
            "data": data,
            "ignorable": True,
        }


def salvage(
    source: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    compression: Compression | None = None,
) -> Salvage:
    """Export the longest sound prefix of a log that migration refuses.

    Args:
        source: The log, or its session directory.
        out: Folder for the export; None: beside the source.
        compression: Chooses the encoding in a session directory that holds both.

    Returns:
        What was exported and what was left out. The export's last event says it too.

    Raises:
        CorruptLogError, MigrationRefusedError: Not even an empty prefix is sound.
        FileExistsError: Another export has the name.
        DshCodecError, OSError: As for `open`.

    Note:
        The source is never changed. Time: one pass for each loss.
    """
    with open_source_log(source, compression=compression) as log:
        if log.path is None or log.generation == CURRENT_VERSION:
            message = "only a file of an older generation can be salvaged; see `repair`"
            raise ValueError(message)
        path = Path(log.path)
        name = log_filename(CURRENT_VERSION, compression=log.compression)
        name = name.replace("session.", "session.salvaged.", 1)
        folder = path.parent if out is None else Path(out) / encode_segment(log.id)
        losses: list[Loss] = []
        with staging_folder(folder, is_dry=False) as place:
            staged, kept = _stage_longest(log, place, losses)
            try:
                link_staged(staged, folder / name)
            finally:
                staged.path.unlink(missing_ok=True)
    return Salvage(str(path), str(folder / name), kept, tuple(reversed(losses)))


def _stage_longest(log: Log, folder: Path, losses: list[Loss]) -> tuple[Staged, int]:
    """Shorten the prefix until it holds; `losses` takes each reason."""
    limit: int | None = None
    while True:
        prefix = _Prefix(log, limit, losses)
        staged: Staged | None = None

        def header(prefix: _Prefix = prefix) -> bytes:
            return encode_header(prefix.header_fields, inherited_event_count=prefix.cut)

        try:
            rows = map(encode_row, prefix)
            staged = stage(folder, rows, header, compression=log.compression)
            verify(log, staged)
        except _StopError as stop:
            error, seq = stop.error, stop.seq
        except DshCodecError as refused:
            error = refused
            seq = None
            if refused.seq is not None and refused.seq < len(prefix.origins):
                seq = prefix.origins[refused.seq]
        else:
            return staged, prefix.taken
        if staged is not None:
            staged.path.unlink(missing_ok=True)
        taken = prefix.taken if limit is None else limit
        if seq is None or not 0 <= seq < taken:
            # Whatever is wrong with the whole, a prefix without its last turn lacks part of it.
            seq = taken if _is_new_damage(seq, limit, taken) else _last_turn(log, taken)
        if seq == limit or (limit == 0):
            raise error
        losses.append(Loss(seq, error.rule, error.message))
        limit = seq


def _is_new_damage(seq: int | None, limit: int | None, taken: int) -> bool:
    """Whether the log itself ends in damage right behind the events that were taken."""
    return limit is None and seq == taken


def _last_turn(log: Log, limit: int) -> int:
    """Return the seq of the last start of a turn before `limit`; 0 if there is none."""
    found = 0
    with suppress(CorruptLogError, UnsupportedError):
        for unit in log.units():
            if unit.seq >= limit:
                break
            if getattr(unit, "type", None) == "turn/start":
                found = unit.seq
    return found
