"""Whether a log of generation 3 is sound, as far as evidence of a child asks. Spec: 50 §8.6."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_codec.errors import DshCodecError, MigrationRefusedError, UnsupportedError
from dsh_codec.events import SURFACE_ROLES, is_array, is_object, quote
from dsh_codec.migrate.v3_v4 import V3_TYPES
from dsh_codec.rules.relationships import RelationshipMachine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsh_codec.migrate.edge import JsonObject

__all__ = ["AcceptanceV3"]

_FORKED = "forked-tool-result-"

_PRODUCERS = {
    "compact": "compact-checkpoint",
    "dsh-session-title-llm": "dsh-session-title-llm",
}
"""Plugins that a rule names, and their kinds in generation 4."""

_SURFACE_MEMBERS = frozenset(("surfaceOp", "sourceEventSeqs"))

_ALONE = ("R3", "R4")
"""Rules of 50 §8.4 that judge an event alone, beside the lifecycle."""


class AcceptanceV3:
    """The rules of 50 §8.4 over events of generation 3, as a state machine.

    The machine of generation 4 judges each event in its terms: the call of a result's source,
    what its wrapper holds, producers for plugins. Only its rules of that section count; what only
    the edge to generation 4 refuses is no fault here.
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
    """Return an event as generation 4 spells what the rules look at, sound or not."""
    kind, data = event["type"], event["data"]
    if not is_object(data):
        return event
    if kind == "tool/result":
        data = data | {"message": _unwrapped(data.get("message"))}
    elif kind == "user/message":
        data = _with_producer(data)
    elif kind == "session/title-llm-request" and is_array(data.get("messages")):
        data = data | {"messages": list(map(_with_producer, data["messages"]))}
    return event if data is event["data"] else event | {"data": data}


def _unwrapped(message: Any) -> Any:
    """Return the message of a result with the call of its source and what its wrapper holds."""
    if not is_object(message):
        return message
    source, content = message.get("source"), message.get("content")
    wrapper = content[0] if is_array(content) and content else None
    if not is_object(wrapper):
        wrapper = {}
    result = message | {
        "toolCallId": source.get("callId") if is_object(source) else None,
        "isError": wrapper.get("isError"),
        "content": wrapper.get("content"),
    }
    if str(message.get("id")).startswith(_FORKED):
        # Only generation 4 knows results of forks.
        result["id"] = f"v3:{message['id']}"
    return result


def _with_producer(message: Any) -> Any:
    """Return a message with the producer's kind, where a plugin has one that a rule names."""
    source = message.get("source") if is_object(message) else None
    if not is_object(source):
        return message
    plugin = source.get("plugin") if source.get("kind") == "plugin" else None
    kind = _PRODUCERS.get(plugin) if type(plugin) is str else None
    if kind is None and source.get("kind") in _PRODUCERS.values():
        # That kind is not one of generation 3.
        kind = f"v3:{source['kind']}"
    return message if kind is None else message | {"source": source | {"kind": kind}}
