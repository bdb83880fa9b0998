"""Layer L4: what a harness demands before it resumes a session. Spec: 30 §9."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from dsh_codec.errors import DshCodecError, HeaderError, RowError
from dsh_codec.events import (
    is_array,
    is_equal_number,
    is_filled,
    is_inherited_marker,
    is_object,
    refusal,
    seq_of,
    type_of,
)
from dsh_codec.rules.surface import Surface
from dsh_codec.rules.vocabulary import shape_fault
from dsh_codec.values import is_count, is_safe_integer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["RestoreMachine", "check_header", "restore"]

_HEADER_KEYS: Final = {
    "version",
    "id",
    "createdAt",
    "cwd",
    "parentSession",
    "isSeeded",
    "origin",
    "delegationDepth",
    "agentPreset",
}
_ENVELOPE_KEYS: Final = {
    "type",
    "seq",
    "time",
    "data",
    "surfaceOp",
    "sourceEventSeqs",
    "ignorable",
}
_REASONS: Final = frozenset(("initial", "resume", "change", "series"))
_DEFAULTS: Final = frozenset(("reasoningEffort", "maxTokens"))
_WINDOWS_ABSOLUTE: Final = re.compile(r"[/\\]|[A-Za-z]:[/\\]")


def is_absolute(path: str) -> bool:
    """Whether a path is absolute by the rules of this host. Spec: 10 §4.1."""
    if os.name == "nt":
        return _WINDOWS_ABSOLUTE.match(path) is not None
    return path.startswith("/")


def check_header(
    header_fields: Mapping[str, Any], *, session_id: str | None = None
) -> None:
    """Check a logical header before a session is restored.

    Args:
        header_fields: Logical header: no `type`, no cut.
        session_id: Id that was asked for; None accepts any.

    Raises:
        HeaderError: A member breaks a rule; `.rule` is `L4.header`.
    """
    fields = header_fields
    fault = None
    if not is_equal_number(fields.get("version"), 4):
        fault = "version must be 4"
    elif type(fields.get("id")) is not str:
        fault = "id must be a string"
    elif session_id is not None and fields["id"] != session_id:
        fault = "id names another session than the one that was asked for"
    elif not all(
        is_safe_integer(fields.get(name)) and fields[name] >= 0
        for name in ("createdAt", "delegationDepth")
    ):
        fault = "createdAt and delegationDepth must be safe integers from 0"
    elif type(fields.get("isSeeded")) is not bool:
        fault = "isSeeded must be a boolean"
    elif "cwd" in fields and not (
        type(fields["cwd"]) is str and is_absolute(fields["cwd"])
    ):
        fault = "cwd must be an absolute path"
    elif not all(
        type(fields.get(name, "")) is str for name in ("parentSession", "agentPreset")
    ):
        fault = "parentSession and agentPreset must be strings"
    elif fields.get("origin", "subagent") != "subagent":
        fault = "origin must be 'subagent'"
    elif not fields.keys() <= _HEADER_KEYS:
        fault = "a member is not allowed in a header"
    if fault is not None:
        message = f"header: {fault}"
        raise HeaderError(message, None, None, None, None, None, "L4.header")


def envelope_fault(event: dict[str, Any], index: int) -> RowError | None:
    """Return the first fault of an event's envelope, if any."""
    seq = event.get("seq")
    fault = None
    if not event.keys() <= _ENVELOPE_KEYS:
        fault = "a member is not allowed in an event"
    elif type(event.get("type")) is not str:
        fault = "type is no string"
    elif not is_count(seq) or seq != index:
        fault = "seq is not the event's position in the log"
    elif not is_safe_integer(event.get("time")):
        fault = "time is no safe integer"
    elif "data" not in event:
        fault = "data is missing"
    elif event.get("ignorable", True) is not True:
        fault = "ignorable may only be true"
    return None if fault is None else refusal("L4.envelope", index, fault)


def payload_fault(event: dict[str, Any], seq: int) -> RowError | None:
    """Return the fault of a request header or a settlement that no other layer sees, if any."""
    kind = type_of(event)
    if kind == "request/header":
        return _request_header_fault(event.get("data"), seq)
    if kind in ("assistant/message", "assistant/attempt"):
        data = event.get("data")
        if not (
            is_object(data)
            and is_count(data.get("turn"))
            and is_count(data.get("step"))
            and is_array(data.get("stream"))
        ):
            text = f"{kind} needs turn and step as counts and a stream array"
            return refusal("L4.settlement", seq, text)
    return None


def _request_header_fault(data: Any, seq: int) -> RowError | None:
    header = data.get("header") if is_object(data) else None
    config = header.get("config") if is_object(header) else None
    fault = None
    if not is_object(data) or not is_object(header) or not is_object(config):
        fault = "request/header has no header.config object"
    elif not (is_filled(config.get("provider")) and is_filled(config.get("model"))):
        fault = "request/header must name provider and model"
    elif not is_filled(config.get("reasoningEffort", "absent")):
        fault = "reasoningEffort of request/header must be a non-empty string"
    elif "adapterDefaults" in header and not _are_defaults(
        header["adapterDefaults"], config
    ):
        fault = "adapterDefaults may only mark reasoningEffort and maxTokens that config has as true"
    elif type(data.get("reason")) is not str or data["reason"] not in _REASONS:
        fault = "reason of request/header must be initial, resume, change or series"
    elif data.get("startsSeries", True) is not True:
        fault = "startsSeries of request/header may only be true"
    return None if fault is None else refusal("L4.request-header", seq, fault)


def _are_defaults(defaults: Any, config: dict[str, Any]) -> bool:
    return is_object(defaults) and all(
        name in _DEFAULTS and value is True and name in config
        for name, value in defaults.items()
    )


class RestoreMachine:
    """L4 as a state machine: one event in, its faults out. `check_header` is apart.

    After a fault of the surface, which later events build on, the fold stops; the rules for each
    event alone go on.
    """

    def __init__(
        self,
        header_fields: Mapping[str, Any],
        inherited_event_count: int | None = None,
        *,
        keep: bool = True,
        shape: bool = True,
    ) -> None:
        """Prepare a check.

        Args:
            header_fields: Logical header.
            inherited_event_count: Inherited cut in events; None: that of the last inherited
                marker, as a scan finds it.
            keep: As for `Surface`.
            shape: Whether V4 to V7 are checked too; not needed after L3.
        """
        self.surface: Final = Surface(keep=keep)
        self._is_seeded = header_fields.get("isSeeded") is True
        self._cut = inherited_event_count
        self._shape = shape
        self._is_folding = True
        self._index = 0
        self._last_marker: int | None = None
        self._cut_is_marker = False

    def findings(self, event: dict[str, Any]) -> list[DshCodecError]:
        """Take the next event and return what it breaks: `RowError`s with `.rule` and `.seq`."""
        index = self._index
        self._index += 1
        found: list[DshCodecError] = []
        faults = (
            envelope_fault(event, index),
            shape_fault(event, index) if self._shape else None,
            payload_fault(event, index),
        )
        found.extend(fault for fault in faults if fault is not None)
        if self._is_folding:
            try:
                self.surface.feed(event)
            except RowError as exc:
                self._is_folding = False
                found.append(exc)
        if is_inherited_marker(event):
            self._last_marker = index
            if index == self._cut:
                self._cut_is_marker = True
        return found

    def finish(self) -> list[DshCodecError]:
        """Return the fault of the inherited cut, if any."""
        cut, fault = self._cut, None
        if cut is None:
            return []
        if not self._is_seeded and cut != 0:
            fault = "the inherited cut of a session that is not seeded must be 0"
        elif cut > self._index:
            fault = f"the inherited cut {cut} lies behind the last event"
        elif self._cut_is_marker and self._last_marker != cut:
            fault = "an inherited end-seed marker follows the one at the inherited cut"
        return [] if fault is None else [refusal("L4.cut", cut, fault)]


def restore(
    header_fields: Mapping[str, Any],
    inherited_event_count: int | None,
    events: Iterable[dict[str, Any]],
    *,
    session_id: str | None = None,
) -> Surface:
    """Restore a session from a whole log.

    Args:
        header_fields: Logical header.
        inherited_event_count: Inherited cut in events; None: see `RestoreMachine`.
        events: Logical events in order from seq 0, `sourceEventSeqs` expanded.
        session_id: Id that was asked for; None accepts any.

    Returns:
        The surface after the last event.

    Raises:
        HeaderError: The header breaks a rule.
        RowError: The first event that breaks a rule; `.rule` and `.seq` are set.
    """
    check_header(header_fields, session_id=session_id)
    machine = RestoreMachine(header_fields, inherited_event_count)
    for event in events:
        for fault in machine.findings(event):
            raise fault
    for fault in machine.finish():
        raise fault
    return machine.surface


def check_marker(
    header_fields: Mapping[str, Any],
    inherited_event_count: int,
    events: Iterable[dict[str, Any]],
) -> None:
    """Check that the inherited cut of a complete artifact is that of its last marker.

    Raises:
        RowError: It is not, or a session that is not seeded has such a marker; `.rule` is
            `L4.marker`. Spec: 30 §9, last but one paragraph.
    """
    last = None
    for index, event in enumerate(events):
        if is_inherited_marker(event):
            last = seq_of(event, index)
    fault = None
    if header_fields.get("isSeeded") is True:
        if last != inherited_event_count:
            fault = "the last inherited marker is not at the inherited cut"
    elif last is not None:
        fault = "a session that is not seeded has an inherited marker"
    if fault is not None:
        seq = inherited_event_count if last is None else last
        error = refusal("L4.marker", seq, fault)
        raise error
