"""Publication of a migrated log: staged, verified, then given its name. Spec: 10 §11.3.

The source is never changed, and the result is checked as a store would check it before it takes it
over (50 §8.5).
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from dsh_codec.check import check
from dsh_codec.errors import (
    CorruptLogError,
    DshCodecError,
    HeaderError,
    IdentityError,
    NewerFormatError,
)
from dsh_codec.header import CURRENT_VERSION, encode_header
from dsh_codec.limits import MAX_DEPTH
from dsh_codec.lock import SessionLock
from dsh_codec.log import open as open_log
from dsh_codec.migrate.collect import ChildIndex, FileIdentity, identify_file
from dsh_codec.migrate.staging import (
    Staged,
    digest_of,
    link_staged,
    stage,
    staging_folder,
)
from dsh_codec.migrate.upgrade import upgrade
from dsh_codec.names import log_filename, log_path
from dsh_codec.source import is_directory
from dsh_codec.values import is_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsh_codec._types import Compression
    from dsh_codec.log import Log
    from dsh_codec.migrate.children import ChildEvidence
    from dsh_codec.source import SourceLike

__all__ = ["Children", "Migration", "migrate", "open_source_log"]

Children: TypeAlias = "Iterable[ChildEvidence] | ChildIndex | str | os.PathLike[str]"
"""Evidence of children, an index of sessions, or the root to look for them."""

_ATTEMPTS: Final = 3


class Migration(NamedTuple):
    """What `migrate` did with one log.

    Attributes:
        source: The log that was read.
        source_version: Its generation.
        target: The log of generation 4; the source itself if it is one. In a dry run, the path
            that it would have.
        is_new: Whether this call published it. False in a dry run, for a log that is current,
            and where another process was first with the same bytes.
        event_count: Events of the result; None for a source that is current.
        inherited_event_count: Its inherited cut; None for a source that is current.
        file_bytes: Size of the published file; None for a source that is current.
        torn_bytes: Bytes at the end of the source that were not committed and left out.
    """

    source: str
    source_version: int
    target: str
    is_new: bool
    event_count: int | None
    inherited_event_count: int | None
    file_bytes: int | None
    torn_bytes: int


def open_source_log(
    source: SourceLike,
    *,
    compression: Compression | None = None,
    max_depth: int = MAX_DEPTH,
) -> Log:
    """Open a log for migration.

    Raises:
        HeaderError: As for `open`; also for a version that is no count, which this way of
            reading calls malformed and not newer. Spec: 10 §4.3, 50 §2.1.
        DshCodecError, OSError: As for `open`.
    """
    try:
        return open_log(source, compression=compression, max_depth=max_depth)
    except NewerFormatError as error:
        if is_count(error.found):
            raise
        message = "the version of the header is no count"
        raise HeaderError(message, *error.args[1:6], "50 §2.1") from None


def migrate(
    source: str | os.PathLike[str],
    *,
    children: Children | None = None,
    out: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    compression: Compression | None = None,
) -> Migration:
    """Publish a log of generation 4 made from a log of any generation.

    Args:
        source: The log, or its session directory (the highest generation is taken).
        children: Evidence of the child sessions, or the root with all sessions, where it is
            collected. An empty list: the session has no children. None: nobody has said, and a
            log of an older generation is refused.
        out: A sessions root to publish under, in the usual layout; None: beside the source.
        dry_run: Do everything but publish; nothing stays behind.
        compression: Chooses the encoding in a session directory that holds both.

    Returns:
        What was done. The source is never changed; one of generation 4 is left as it is.

    Raises:
        MigrationRefusedError: There is no safe way to carry the log over, or `children` is None.
        CorruptLogError: The source is damaged, or the result breaks a rule that only a store
            applies (50 §8.5).
        IdentityError: A child is there twice, or source or children kept changing.
        SessionLockedError: Another process has the session open for writing.
        FileExistsError: A different log of generation 4 is there already.
        DshCodecError, OSError: As for `open`.

    Note:
        Two calls, and a call that is killed and repeated, give the same bytes. Memory: that of
        `upgrade`. Spec: 10 §11.3, 50 §7.7, §8.5.
    """
    for _ in range(_ATTEMPTS):
        with open_source_log(source, compression=compression) as log:
            if log.path is None:
                message = "a log without a path cannot be published; see `upgrade`"
                raise TypeError(message)
            if log.generation == CURRENT_VERSION:
                return Migration(
                    log.path, CURRENT_VERSION, log.path, False, None, None, None, 0
                )
            if is_directory(source):
                source = log.path
            target = _target(log, log.path, out)
            # No writer may add to the source meanwhile: the new file would hide what it adds.
            is_beside = out is None and not dry_run
            with SessionLock(target.parent) if is_beside else nullcontext():
                done = _publish(log, log.path, target, children, dry_run=dry_run)
        if done is not None:
            return done
    message = f"the log or those of its children changed {_ATTEMPTS} times meanwhile"
    raise IdentityError(message, source)


def _target(log: Log, path: str, out: str | os.PathLike[str] | None) -> Path:
    if out is None:
        name = log_filename(CURRENT_VERSION, compression=log.compression)
        return Path(path).parent / name
    fields = log.header.fields
    try:
        return Path(
            log_path(
                out,
                cwd=fields.get("cwd"),
                id=fields["id"],
                version=CURRENT_VERSION,
                compression=log.compression,
            )
        )
    except ValueError as error:
        message = f"the session has no place in a root: {error}"
        raise IdentityError(message, path) from None


def _publish(
    log: Log, path: str, target: Path, children: Children | None, *, dry_run: bool
) -> Migration | None:
    """Stage, verify and name the result; None if the sources changed meanwhile."""
    before = _witness(log, path, children)
    result = upgrade(log, children=_evidence(log, children))

    def header() -> bytes:
        cut = result.inherited_event_count
        return encode_header(result.header_fields, inherited_event_count=cut)

    with staging_folder(target.parent, is_dry=dry_run) as folder:
        staged = stage(folder, result.rows(), header, compression=log.compression)
        try:
            try:
                verify(log, staged)
            except DshCodecError:
                # If acceptance (50 §8.1 to §8.4) refuses the result, that is the reason.
                for _ in result:
                    pass
                raise
            if _witness(log, path, children) != before:
                return None
            is_new = not dry_run and link_staged(staged, target)
        finally:
            staged.path.unlink(missing_ok=True)
    assert log.result is not None  # noqa: S101 - a pass that ends sets it
    kept = log.result.truncate_to
    return Migration(
        path,
        log.generation,
        str(target),
        is_new,
        staged.event_count,
        result.inherited_event_count,
        staged.file_bytes,
        0 if kept is None else log.file_bytes - kept,
    )


# --- evidence of children, and whether anything changed meanwhile ---


def _index(children: Children | None) -> ChildIndex | None:
    if isinstance(children, ChildIndex):
        return children
    if isinstance(children, str | os.PathLike):
        return ChildIndex.of(children)
    return None


def _evidence(log: Log, children: Children | None) -> list[ChildEvidence] | None:
    index = _index(children)
    if index is not None:
        return index.evidence(log.id)
    if children is None or isinstance(children, str | os.PathLike | ChildIndex):
        return None
    return list(children)


def _witness(
    log: Log, path: str, children: Children | None
) -> list[tuple[str, FileIdentity]]:
    """Return the identity of every file that the result is made from."""
    paths = [path]
    index = _index(children)
    if index is not None:
        paths += sorted(session.path for session in index.children(log.id))
    return [(name, identify_file(name)) for name in paths]


# --- verification ---


def verify(log: Log, staged: Staged) -> None:
    """Read the staged file back as a store would before it takes the log over.

    Raises:
        DshCodecError: It does not hold, with the class of the rule that it breaks.
    """
    report = check(staged.path, level="full", mode="strict", generation=CURRENT_VERSION)
    if report.error is not None:
        error = report.error
        if not isinstance(error, DshCodecError):
            raise error
        message = f"the migrated log cannot be published: {error.message}"
        raise type(error)(message, log.path, *error.args[2:])
    scan = report.scan
    if (
        scan is None
        or report.header is None
        or report.header.fields["id"] != log.id
        or scan.scan.event_count != staged.event_count
        or scan.file_bytes != staged.file_bytes
        or digest_of(staged.path) != staged.digest
    ):
        message = "the staged file is not what was written: the medium may be faulty"
        raise CorruptLogError(message, staged.path, rule="10 §11.3")
