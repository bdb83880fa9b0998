"""Whether a log of generation 3 is sound, as far as evidence of a child asks. Spec: 50 §8.6."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_codec.errors import DshCodecError, MigrationRefusedError, UnsupportedError
from dsh_codec.events import SURFACE_ROLES, is_object, quote
from dsh_codec.migrate.refusal import EdgeRefusalError
from dsh_codec.migrate.v3_v4 import V3_TYPES, lift_result, rewrite_sources
from dsh_codec.rules.relationships import RelationshipMachine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsh_codec.migrate.edge import JsonObject

__all__ = ["AcceptanceV3"]

_FORKED = "forked-tool-result-"

_SURFACE_MEMBERS = frozenset(("surfaceOp", "sourceEventSeqs"))

_ALONE = ("R3", "R4")
"""Rules of 50 §8.4 that judge an event alone, beside the lifecycle."""


class AcceptanceV3:
    """The rules of 50 §8.4 over events of generation 3, as a state machine.

    The machine of generation 4 judges each event as it would look there: results without their
    wrapper, producers for plugins. Only its rules of that section count.
    """

    def __init__(self, header_fields: Mapping[str, Any]) -> None:
        """Prepare the check.

        Args:
            header_fields: Logical header of generation 3.
        """
        self._machine = RelationshipMachine(header_fields, None)

    def feed(self, event: JsonObject) -> None:
        """Take the next event.

        Raises:
            UnsupportedError: Its type is unknown and it is not marked ignorable.
            MigrationRefusedError, RowError: It breaks a rule.
        """
        kind = event["type"]
        if kind not in V3_TYPES:
            if event.get("ignorable") is not True:
                message = f"{quote(kind)} is no event type of generation 3"
                raise UnsupportedError(message, rule="50 §8.6")
            # Whatever generation 4 makes of the name, here it is unknown.
            event = event | {"type": "plugin:opaque"}
        elif kind not in SURFACE_ROLES and _SURFACE_MEMBERS & event.keys():
            # The decoder takes types that generation 2 lacks for opaque ones.
            message = f"{quote(kind)} has a member of surface events"
            raise MigrationRefusedError(message, rule="50 §8.6")
        self._raise_first(self._machine.findings(_as_v4(event)))

    def finish(self) -> None:
        """End the log.

        Raises:
            RowError: A fault that only the end brings to light.
        """
        self._raise_first(self._machine.finish())

    def _raise_first(self, findings: list[DshCodecError]) -> None:
        for finding in findings:
            rule = finding.rule or ""
            if rule.startswith("L2.") or rule in _ALONE:
                raise finding


def _as_v4(event: JsonObject) -> JsonObject:
    kind, data = event["type"], event["data"]
    try:
        data = rewrite_sources(kind, data)
        if kind == "tool/result":
            data = _without_forks(lift_result(data))
    except EdgeRefusalError as refusal:
        message = f"{kind}: {refusal.member} {refusal.message}"
        raise MigrationRefusedError(message, rule=refusal.rule) from None
    return event if data is event["data"] else event | {"data": data}


def _without_forks(data: Any) -> Any:
    """Return a result whose id cannot be taken for one that only generation 4 knows."""
    message = data.get("message") if is_object(data) else None
    if not is_object(message) or not str(message.get("id")).startswith(_FORKED):
        return data
    return data | {"message": message | {"id": f"v3:{message['id']}"}}
