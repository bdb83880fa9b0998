"""Evidence of children from their logs: which sessions they are, and what they say. Spec: 50 §7.7."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from dsh_codec.errors import DshCodecError, IdentityError
from dsh_codec.events import is_inherited_marker, quote
from dsh_codec.find import Session, find
from dsh_codec.header import CURRENT_VERSION
from dsh_codec.log import open as open_log
from dsh_codec.migrate.acceptance_v3 import AcceptanceV3
from dsh_codec.migrate.chain import Chain, convert_header, push_log
from dsh_codec.migrate.children import ChildEvidence, fact_of
from dsh_codec.migrate.refusal import EdgeRefusalError
from dsh_codec.migrate.staging import with_values

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from dsh_codec.log import Log
    from dsh_codec.migrate.edge import JsonObject

__all__ = ["ChildIndex", "FileIdentity", "identify_file", "read_evidence"]

_TARGET = 3  # Spec 50 §7.7: children are read with the chain that stops there.


class FileIdentity(NamedTuple):
    """What tells that a file is the same and unchanged. Spec: 10 §10, last paragraph.

    Attributes:
        device, inode: Where it is.
        size_bytes: Its size.
        mtime_ns, ctime_ns: Times of its last changes, nanoseconds since the Unix epoch.
    """

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


def identify_file(path: str | os.PathLike[str]) -> FileIdentity:
    """Return the identity of a file.

    Raises:
        OSError: It is not there, or may not be looked at.
    """
    status = Path(path).stat()
    return FileIdentity(
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


class ChildIndex:
    """The sessions under a root, by the session that they are children of.

    A child is a session with origin `subagent` whose `parentSession` is the parent's id.
    """

    def __init__(self, sessions: Iterable[Session]) -> None:
        """Take the sessions of a listing; those whose header cannot be read are left out."""
        self._children: dict[str, list[Session]] = {}
        for session in sessions:
            fields = {} if session.header is None else session.header.fields
            parent = fields.get("parentSession")
            if parent is not None and fields.get("origin") == "subagent":
                self._children.setdefault(parent, []).append(session)

    @classmethod
    def of(cls, root: str | os.PathLike[str]) -> Self:
        """Return the index of a sessions root.

        Raises:
            OSError: The root cannot be read.
        """
        return cls(find(root))

    def children(self, session_id: str) -> list[Session]:
        """Return the children of a session.

        Raises:
            IdentityError: Two logs claim to be the same child.
        """
        found = self._children.get(session_id, [])
        by_id: dict[str | None, Session] = {}
        for session in found:
            other = by_id.setdefault(session.id, session)
            if other is not session:
                message = (
                    f"the child session {quote(session.id)} is there twice, also at "
                    f"{other.path}: move one of them away"
                )
                raise IdentityError(message, session.path)
        return found

    def evidence(self, session_id: str) -> list[ChildEvidence]:
        """Return the evidence of the children of a session, read from their logs.

        Raises:
            IdentityError: Two logs claim to be the same child.
        """
        return [
            read_evidence(session.path, session.header.fields)
            for session in self.children(session_id)
            if session.header is not None
        ]


def read_evidence(path: str, header_fields: dict[str, Any]) -> ChildEvidence:
    """Return the evidence that a child's log gives.

    Args:
        path: The child's log.
        header_fields: Its logical header, as a listing found it.

    Returns:
        The evidence. If the log cannot be read, is refused or holds a descriptor that is not
        valid, there is none but the child's id and time; that is no error.
    """
    child, created = header_fields["id"], int(header_fields["createdAt"])
    nothing = ChildEvidence(child, created, 0, None, path)
    try:
        with open_log(path) as log:
            descriptors = _own_descriptors(log)
        first = descriptors[0] if descriptors else None
        evidence = ChildEvidence(child, created, len(descriptors), first, path)
        fact_of(evidence)
    except (DshCodecError, EdgeRefusalError, OSError):
        return nothing
    return evidence


class _Descriptors:
    """The descriptors of a log behind its last inherited marker."""

    def __init__(self) -> None:
        self.own: list[Any] = []

    def feed(self, event: JsonObject) -> None:
        if is_inherited_marker(event):
            self.own.clear()
        elif event["type"] == "subagent/descriptor":
            self.own.append(event["data"])


def _own_descriptors(log: Log) -> list[Any]:
    found = _Descriptors()
    if log.generation == CURRENT_VERSION:
        from dsh_codec.rules import RuleCheck

        rules = RuleCheck(log.header.fields, level="read")
        for event in log:
            value = event.envelope
            rules.feed(value)
            found.feed(value)
        for fault in rules.finish():
            raise fault
        return found.own
    acceptance = AcceptanceV3(convert_header(log.header.fields, _TARGET))
    made: list[JsonObject] = []
    chain = Chain(log.header, made.append, children=(), target=_TARGET)

    def take(made_event: JsonObject) -> None:
        value = with_values(made_event)
        acceptance.feed(value)
        found.feed(value)

    for carried in push_log(chain, log, made):
        # Only a chain to generation 4 makes rows.
        if not isinstance(carried, bytes):
            take(carried)
    assert log.result is not None  # noqa: S101 - a pass that ends sets it
    chain.finish(log.result.scan.inherited_event_count)
    for value in made:
        take(value)
    acceptance.finish()
    return found.own
