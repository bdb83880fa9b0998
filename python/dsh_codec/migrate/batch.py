"""Migration of everything under some paths, with one outcome a log. Spec: 50 §7.7, 10 §10."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dsh_codec.check import status_of
from dsh_codec.errors import CorruptLogError, DshCodecError, UnsupportedError
from dsh_codec.find import Session, find
from dsh_codec.migrate.chain import UNSAID_CHILDREN
from dsh_codec.migrate.collect import ChildIndex
from dsh_codec.migrate.publish import Migration, migrate
from dsh_codec.migrate.salvage import Salvage, salvage
from dsh_codec.names import log_path
from dsh_codec.report import EXIT_CODES, Finding

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from dsh_codec._types import Compression
    from dsh_codec.migrate.publish import Children

__all__ = ["MigrationOutcome", "MigrationTask", "migrate_task", "plan_migrations"]

OutcomeStatus: TypeAlias = Literal["migrated", "would-migrate", "current", "refused"]


@dataclass(frozen=True, slots=True)
class MigrationTask:
    """A log to migrate, and what is known of its children.

    Attributes:
        path: The log.
        children: Where evidence of its children comes from; None: nobody has said.
    """

    path: str
    children: Children | None


@dataclass(frozen=True, slots=True)
class MigrationOutcome:
    """What became of one log.

    Attributes:
        path: The log.
        status: `migrated`; `would-migrate` in a dry run; `current`: generation 4 already, or
            published before with the same bytes; `refused`.
        migration: What was done; None if it was refused.
        error: Why it was refused, else None.
        salvage: The export of a refused log, if one was asked for and possible.
        salvage_error: Why there is no such export, though it was asked for; else None.
    """

    path: str
    status: OutcomeStatus
    migration: Migration | None = None
    error: Exception | None = None
    salvage: Salvage | None = None
    salvage_error: Exception | None = None

    @property
    def exit_code(self) -> int:
        """0 migrated or current, 1 damaged, 2 unsupported or unreadable."""
        return 0 if self.error is None else EXIT_CODES[status_of(self.error)]

    @property
    def text(self) -> str:
        """The outcome in one line."""
        done, error = self.migration, self.error
        if error is not None:
            line = f"{self.path}: refused: {Finding.of(error).text}"
            if self.salvage is not None:
                kept = self.salvage.kept_count
                line += (
                    f"; {kept:,} events salvaged, not lossless: {self.salvage.target}"
                )
            elif self.salvage_error is not None:
                line += f"; nothing salvaged: {Finding.of(self.salvage_error).text}"
            return line
        if done is None or self.status == "current":
            return f"{self.path}: current"
        line = f"{self.path}: {self.status}: v{done.source_version} to v4, "
        line += f"{done.event_count or 0:,} events, {done.target}"
        if done.torn_bytes:
            line += f"; {done.torn_bytes:,} torn bytes left out"
        return line

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON."""
        error = None if self.error is None else Finding.of(self.error)._asdict()
        failed = self.salvage_error
        return {
            "path": self.path,
            "status": self.status,
            "migration": None if self.migration is None else self.migration._asdict(),
            "error": error,
            "salvage": None if self.salvage is None else self.salvage.to_dict(),
            "salvage_error": None if failed is None else Finding.of(failed)._asdict(),
        }


def plan_migrations(
    paths: Iterable[str | os.PathLike[str]],
    *,
    children: Children | None = None,
    compression: Compression | None = None,
) -> Iterator[MigrationTask]:
    """Yield the logs under some paths, each with where to look for its children.

    Args:
        paths: Log files, session directories, or roots.
        children: For all of them. None: those under the same path, if that is a folder of
            sessions; for a single log, those of the root that it lies in by its header, if it
            does.
        compression: Chooses the encoding in a session directory that holds both.

    Raises:
        OSError: A path cannot be read.
    """
    for path in paths:
        sessions = list(find(path, compression=compression))
        place = children
        if place is None and any(
            Path(session.path).parent not in (Path(path), Path(path).parent)
            for session in sessions
        ):
            place = ChildIndex(sessions)  # The path is a root, or a folder above one.
        for session in sessions:
            root = None if place is not None else _root_of(session)
            yield MigrationTask(session.path, place if root is None else root)
        if not sessions:
            # What is wrong with the path is for the migration to say.
            yield MigrationTask(str(path), place)


def _root_of(session: Session) -> Path | None:
    """Return the sessions root that a log lies in by the layout, if it does. Spec: 10 §2.3."""
    path = Path(session.path).absolute()
    header, stored = session.header, session.compression
    if header is None or stored is None or len(path.parents) < 3:
        return None
    root, fields = path.parents[2], header.fields
    try:
        place = log_path(
            root,
            cwd=fields.get("cwd"),
            id=fields["id"],
            version=header.generation,
            compression=stored,
        )
    except ValueError:
        return None
    return root if Path(place) == path else None


def migrate_task(
    task: MigrationTask,
    *,
    out: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    with_salvage: bool = False,
    compression: Compression | None = None,
) -> MigrationOutcome:
    """Migrate one log; a refusal is an outcome, not an exception.

    Args:
        task: The log.
        out: As for `migrate`.
        dry_run: As for `migrate`.
        with_salvage: Whether a refused log is exported as far as it goes (not in a dry run).
        compression: As for `migrate`.
    """
    try:
        done = migrate(
            task.path,
            children=task.children,
            out=out,
            dry_run=dry_run,
            compression=compression,
        )
    except (DshCodecError, OSError) as error:
        exported, failed = None, None
        if with_salvage and not dry_run and _can_salvage(error):
            try:
                exported = salvage(task.path, out=out, compression=compression)
            except (DshCodecError, OSError, ValueError) as reason:
                failed = reason
        return MigrationOutcome(task.path, "refused", None, error, exported, failed)
    status: OutcomeStatus = "migrated" if done.is_new else "current"
    if dry_run and done.target != done.source:
        status = "would-migrate"
    return MigrationOutcome(task.path, status, done)


def _can_salvage(error: Exception) -> bool:
    """Whether the log itself is in the way, and not what was said about it."""
    if isinstance(error, DshCodecError) and error.rule == UNSAID_CHILDREN:
        return False
    return isinstance(error, (CorruptLogError, UnsupportedError))


def summary_of(outcomes: Sequence[MigrationOutcome]) -> str:
    """Return how many logs were migrated, current and refused, in one line."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
    named = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    return f"{len(outcomes):,} logs: {named or 'none found'}"
