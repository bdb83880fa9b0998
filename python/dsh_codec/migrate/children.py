"""Evidence of child sessions: what the logs of children say to the catalog of their parent.

Spec: 50 §7.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from dsh_codec.errors import MigrationRefusedError
from dsh_codec.events import is_equal_number, is_object
from dsh_codec.migrate.refusal import refuse
from dsh_codec.values import is_count, utf16_units

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsh_codec.migrate.edge import JsonObject

__all__ = ["ChildEvidence"]

RULE: Final = "50 §7.6"


class ChildEvidence(NamedTuple):
    """What is known of one historical child session.

    Attributes:
        child_id: Session id of the child.
        child_created_at: `createdAt` of the child, milliseconds since the Unix epoch.
        descriptor_count: Its own `subagent/descriptor` events, inherited ones not counted.
        descriptor: `data` of the first of them, or None.
        source_path: The child's file; for messages only.
    """

    child_id: str
    child_created_at: int
    descriptor_count: int = 0
    descriptor: Any = None
    source_path: str | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return evidence given as `{childId, childCreatedAt, descriptorCount, descriptor}`.

        Raises:
            MigrationRefusedError: A member is missing or of the wrong type.
        """
        child, created = value.get("childId"), value.get("childCreatedAt")
        count = value.get("descriptorCount")
        if (
            type(child) is not str
            or not is_count(created)
            or not is_count(count)
            or "descriptor" not in value
        ):
            message = (
                "evidence of a child session has to have childId, childCreatedAt, "
                "descriptorCount and descriptor"
            )
            raise MigrationRefusedError(message, *(None,) * 5, RULE)
        return cls(child, int(created), int(count), value["descriptor"])


def sort_key(child: ChildEvidence) -> tuple[int, list[int]]:
    """Return what children are sorted by. Spec: 50 §7.1."""
    return child.child_created_at, utf16_units(child.child_id)


def fact_of(child: ChildEvidence) -> JsonObject | None:
    """Return the payload of the catalog that the child's descriptor supports, if any.

    Raises:
        EdgeRefusalError: The descriptor is of a known version and not valid.
    """
    descriptor = child.descriptor
    if child.descriptor_count != 1 or not is_object(descriptor):
        return None
    version = descriptor.get("version")
    if not any(is_equal_number(version, known) for known in (1, 2, 3)):
        return None
    if type(descriptor.get("provider")) is not str:
        refuse(RULE, "meets a child whose descriptor has no provider")
    mode = "continuable" if version == 1 else descriptor.get("mode")
    if mode not in ("continuable", "one-shot"):
        refuse(RULE, "meets a child whose descriptor has an unknown mode")
    fact = {
        "version": 0,
        "childId": child.child_id,
        "childCreatedAt": child.child_created_at,
        "mode": mode,
    }
    if "label" in descriptor:
        if type(descriptor["label"]) is not str:
            refuse(RULE, "meets a child whose descriptor has no string as label")
        fact["label"] = descriptor["label"]
    elif mode == "continuable":
        refuse(RULE, "meets a continuable child whose descriptor has no label")
    return fact
