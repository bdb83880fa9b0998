"""Layer L2: do the events of a log fit each other?

Turns, steps, tool calls, retries, titles, commands, compactions and the surface, as one state
machine. Events of unknown types are skipped; a tail that is still open is legal. Spec: 30 §7.

A refused event is reported and then believed: its turn, step or id is taken over, so that a check
that goes on does not report every later event too. Whoever stops at the first refusal sees no
difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from dsh_codec.errors import DshCodecError, RowError
from dsh_codec.events import (
    KNOWN_TYPES,
    MISSING,
    SURFACE_ROLES,
    is_array,
    is_earlier,
    is_filled,
    is_inherited_marker,
    is_object,
    message_of,
    quote,
    refusal,
    type_of,
)
from dsh_codec.rules.compaction import Compactions
from dsh_codec.rules.lifecycle import Lifecycle
from dsh_codec.values import is_count, is_number

__all__ = ["RelationshipMachine", "check_relationships"]

_CATALOG_MODES: Final = frozenset(("continuable", "one-shot", "external", "unknown"))

_Check: TypeAlias = Callable[[dict[str, Any], Any, int], RowError | None]


class AdmissionKernel(Protocol):
    """The part of the kernel that R1 needs."""

    def admit(self, event: Any, /) -> None:
        """Check row admission, see `_kernel.pyi`."""
        ...


class RelationshipMachine:
    """L2 as a state machine: one event in, its faults out.

    Memory: a few words for each surface node, human message, command, dispatch, retry and child,
    and one table for each change of the tool list. Spec: 30 §7.
    """

    def __init__(
        self,
        header_fields: Mapping[str, Any],
        inherited_event_count: int | None = None,
        *,
        admission: bool = False,
        kernel: AdmissionKernel | None = None,
    ) -> None:
        """Prepare a check.

        Args:
            header_fields: Logical header (`Header.fields`).
            inherited_event_count: Inherited cut, in events. None: not known yet; it is then that
                of the last inherited marker (10 §4.4), and faults that depend on it wait for
                `finish`.
            admission: Whether R1 is checked; not needed for events that a scan has accepted.
            kernel: Kernel whose `admit` does it; None takes the one in use.
        """
        self._session_id = header_fields.get("id", MISSING)
        self._has_parent = "parentSession" in header_fields
        is_seeded = header_fields.get("isSeeded") is True
        self._cut = 0 if inherited_event_count is None else inherited_event_count
        self._waits_for_cut = inherited_event_count is None and is_seeded
        if admission and kernel is None:
            from dsh_codec import _backend

            kernel = _backend.kernel
        self._kernel = kernel if admission else None
        self._index = 0
        self._uncertain: list[
            DshCodecError
        ] = []  # void if the cut turns out to lie behind
        self._children: set[str] = set()
        self._human: set[int] = set()
        self._commands: set[str] = set()
        self._command_seqs: set[int] = set()
        self._lifecycle = Lifecycle()
        self._compactions = Compactions(self._lifecycle)
        self._event_checks = self._make_event_checks()
        self._steps = self._make_steps()

    def findings(self, event: dict[str, Any]) -> list[DshCodecError]:
        """Take the next event and return what it breaks, the first fault first.

        Args:
            event: Logical event as parsed, `sourceEventSeqs` expanded.

        Returns:
            `RowError`s with `.rule` and `.seq` (R1 may give an `UnsupportedError`). A fault that
            a later event brings to light has the seq of the earlier event that is wrong.
        """
        # A scan has seen to it that an event's seq is its position (10 §5.1).
        seq = self._index
        self._index = seq + 1
        kind = type_of(event)
        if kind not in KNOWN_TYPES:
            return []
        found: list[DshCodecError] = []
        if self._kernel is not None:
            try:
                self._kernel.admit(event)
            except DshCodecError as exc:
                found.append(exc.located(seq=seq, rule="R1"))
        data = event.get("data")
        check = self._event_checks.get(kind)
        if check is not None:
            fault = check(event, data, seq)
            if fault is not None:
                found.append(fault)
        steps = self._steps.get(kind)
        if steps is not None:
            if not is_object(data):
                found.append(
                    refusal("L2.data", seq, f"the data of {kind} is no object")
                )
                return found
            for step in steps:
                fault = step(event, data, seq)
                if fault is not None:
                    found.append(fault)
            if kind == "compaction/end":
                found.extend(self._compactions.take_crossings())
        return found

    def finish(self) -> list[DshCodecError]:
        """Return the faults that only the end of the log shows."""
        found, self._uncertain = self._uncertain, []
        return found + self._compactions.take_crossings()

    def _make_event_checks(self) -> dict[str, _Check]:
        return {
            **dict.fromkeys(SURFACE_ROLES, self._check_message_source),
            "agent/inbox/spliced": self._check_message_list,
            "session/title-llm-request": self._check_message_list,
            "session-log-deepseek/delivery-accepted": self._check_delivery,
            "subagent/catalog": self._check_catalog,
            "session/end-seed": self._move_cut,
        }

    def _make_steps(self) -> dict[str, tuple[_Check, ...]]:
        # The order within an event is that of 30 §7.2.
        life, compactions = self._lifecycle, self._compactions
        in_step, in_turn, fold = life.require_step, life.require_turn, compactions.fold
        return {
            "system/message": (in_step, fold),
            "developer/message": (in_step, fold, life.resolve_header),
            "user/message": (fold, self._take_human, compactions.check_checkpoint),
            "assistant/message": (fold, life.advertise_calls),
            "tool/result": (fold, life.settle_call),
            "assistant/attempt": (in_step,),
            "turn/start": (compactions.cross_compaction, life.start_turn),
            "turn/end": (compactions.cross_compaction, life.end_turn),
            "step/start": (life.start_step,),
            "step/end": (life.end_step,),
            "tool/call": (life.start_call,),
            "request/header": (life.take_header,),
            "request/context": (in_turn,),
            "tool/ptc-dispatch-start": (life.start_dispatch,),
            "tool/ptc-dispatch": (life.settle_dispatch,),
            "llm/retry": (life.schedule_retry,),
            "llm/retry-started": (life.start_retry,),
            "session/title": (self._check_title,),
            "session/title-llm-request": (self._check_title_request,),
            "command/run": (self._run_command,),
            "command/done": (self._end_command,),
            "compaction/start": (compactions.start_compaction,),
            "compaction/summary": (compactions.summarise,),
            "compaction/end": (compactions.end_compaction,),
            "compaction/prune": (compactions.check_span,),
            "session/end-seed": (compactions.reseed,),
        }

    # --- R2 to R4: each event alone (30 §7.1) ---

    def _check_message_source(
        self, event: dict[str, Any], data: Any, seq: int
    ) -> RowError | None:
        if not is_object(data):
            return None
        message = message_of(event)
        if not is_object(message):
            return refusal("R2", seq, f"{event['type']} has no message object")
        return _source_fault(message, seq)

    def _check_message_list(
        self, event: dict[str, Any], data: Any, seq: int
    ) -> RowError | None:
        if not is_object(data):
            return None
        name = "inserted" if event["type"] == "agent/inbox/spliced" else "messages"
        messages = data.get(name)
        if not is_array(messages):
            return refusal("R2", seq, f"{name} is no array of messages")
        for message in messages:
            if not is_object(message):
                return refusal("R2", seq, f"{name} holds something that is no message")
            fault = _source_fault(message, seq)
            if fault is not None:
                return fault
        return None

    def _check_delivery(
        self, event: dict[str, Any], data: Any, seq: int
    ) -> RowError | None:
        del event
        if not is_object(data):
            return refusal("R3", seq, "the data of a delivery marker is no object")
        version = data.get("sessionFormatVersion", 0)
        if not is_count(version):
            return refusal("R3", seq, "sessionFormatVersion is no count")
        if version != 4:
            return None
        if not is_earlier(data.get("throughSeq"), seq):
            return refusal(
                "R3", seq, "throughSeq of a delivery marker must name an earlier event"
            )
        session = data.get("sessionId")
        if not is_filled(session):
            return refusal("R3", seq, "a delivery marker must have a sessionId")
        if session == self._session_id or (self._has_parent and seq < self._cut):
            return None
        fault = refusal("R3", seq, "a delivery marker names another session")
        if self._waits_for_cut and self._has_parent:
            self._uncertain.append(fault)
            return None
        return fault

    def _check_catalog(
        self, event: dict[str, Any], data: Any, seq: int
    ) -> RowError | None:
        del event
        if seq < self._cut:
            return None
        fault = _catalog_fault(data, seq)
        if fault is None:
            child = data["childId"]
            if child in self._children:
                fault = refusal(
                    "R4", seq, f"the catalog names child {quote(child)} twice"
                )
            self._children.add(child)
        if fault is not None and self._waits_for_cut:
            self._uncertain.append(fault)
            return None
        return fault

    def _move_cut(self, event: dict[str, Any], data: Any, seq: int) -> RowError | None:
        del data, seq
        if self._waits_for_cut and is_inherited_marker(event):
            self._uncertain.clear()
            self._children.clear()
        return None

    # --- citations: titles and commands (30 §7.2) ---

    def _take_human(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        del event
        source = data.get("source")
        if is_object(source) and source.get("kind") == "user":
            self._human.add(seq)
        return None

    def _check_title(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        del event
        seqs, source = data.get("messageSeqs"), data.get("source")
        if not is_array(seqs) or not is_object(source):
            return refusal(
                "L2.title", seq, "session/title needs messageSeqs and a source"
            )
        if (not seqs) != (source.get("kind") == "user"):
            message = "messageSeqs of session/title must be empty exactly for a title by the user"
            return refusal("L2.title", seq, message)
        return self._title_source_fault(seqs, seq)

    def _check_title_request(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        del event
        seqs = data.get("messageSeqs")
        if not is_array(seqs) or not seqs:
            return refusal(
                "L2.title", seq, "session/title-llm-request needs messageSeqs"
            )
        fault = self._title_source_fault(seqs, seq)
        if fault is None and not _is_title_prompt(data.get("messages")):
            message = "session/title-llm-request must have one user message with one text block"
            return refusal("L2.title", seq, message)
        return fault

    def _title_source_fault(self, seqs: list[Any], seq: int) -> RowError | None:
        for cited in seqs:
            if not is_earlier(cited, seq):
                return refusal("L2.title", seq, "messageSeqs must name earlier events")
            if cited not in self._human:
                message = f"event {int(cited)} is no user/message by the user"
                return refusal("L2.title", seq, message)
        if len(set(seqs)) != len(seqs):
            return refusal("L2.title", seq, "messageSeqs must not repeat a seq")
        return None

    def _run_command(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        del event
        self._command_seqs.add(seq)
        command = data.get("commandId")
        if not is_filled(command):
            return refusal("L2.command", seq, "command/run has no commandId")
        if command in self._commands:
            return refusal("L2.command", seq, f"command {quote(command)} runs twice")
        self._commands.add(command)
        return None

    def _end_command(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        del event
        self._command_seqs.add(seq)
        command = data.get("commandId")
        if not is_filled(command) or command not in self._commands:
            return refusal("L2.command", seq, "command/done has no earlier command/run")
        if "sourceEventSeq" in data:
            source = data["sourceEventSeq"]
            if not is_earlier(source, seq) or data.get("kind") != "success":
                message = "sourceEventSeq needs an earlier event and kind 'success'"
                return refusal("L2.command", seq, message)
            if source in self._command_seqs:
                return refusal(
                    "L2.command", seq, "sourceEventSeq must not name a command event"
                )
        return None


def _source_fault(message: dict[str, Any], seq: int) -> RowError | None:
    source = message.get("source")
    kind = source.get("kind") if is_object(source) else None
    if is_filled(kind) and kind != "plugin":
        return None
    return refusal("R2", seq, "a message must have a source with its producer's kind")


def _catalog_fault(data: Any, seq: int) -> RowError | None:
    if not is_object(data):
        return refusal("R4", seq, "the data of subagent/catalog is no object")
    version, mode = data.get("version"), data.get("mode")
    if not is_number(version) or version not in (0, 1, 2):
        return refusal("R4", seq, "subagent/catalog must have version 0, 1 or 2")
    if type(data.get("childId")) is not str or not is_count(data.get("childCreatedAt")):
        return refusal("R4", seq, "subagent/catalog needs childId and childCreatedAt")
    if type(mode) is not str or mode not in _CATALOG_MODES:
        return refusal("R4", seq, "subagent/catalog has an unknown mode")
    if (mode == "external") != (version == 2) or (mode == "unknown" and version == 0):
        return refusal(
            "R4", seq, f"mode {mode!r} of subagent/catalog does not fit its version"
        )
    label = data.get("label", MISSING)
    if label is MISSING:
        if mode == "continuable":
            return refusal("R4", seq, "a continuable child needs a label")
    elif type(label) is not str:
        return refusal("R4", seq, "the label of subagent/catalog is no string")
    return None


def _is_title_prompt(messages: Any) -> bool:
    if not is_array(messages) or len(messages) != 1 or not is_object(messages[0]):
        return False
    message = messages[0]
    source, content = message.get("source"), message.get("content")
    return (
        message.get("role") == "user"
        and is_object(source)
        and source.get("kind") == "dsh-session-title-llm"
        and is_array(content)
        and len(content) == 1
        and is_object(content[0])
        and content[0].get("type") == "text"
    )


def check_relationships(
    header_fields: Mapping[str, Any],
    inherited_event_count: int | None,
    events: Iterable[dict[str, Any]],
    *,
    admission: bool = False,
    kernel: AdmissionKernel | None = None,
) -> None:
    """Check the relationships of a whole log.

    Args:
        header_fields: Logical header (`Header.fields`).
        inherited_event_count: Inherited cut in events; None: see `RelationshipMachine`.
        events: Logical events in order, `sourceEventSeqs` expanded.
        admission: Whether R1 is checked; not needed for events that a scan has accepted.
        kernel: Kernel whose `admit` does it; None takes the one in use.

    Raises:
        RowError: The first rule of 30 §7 that fails; `.rule` and `.seq` are set.
        UnsupportedError: R1 meets a retired type (C1).
    """
    machine = RelationshipMachine(
        header_fields, inherited_event_count, admission=admission, kernel=kernel
    )
    for event in events:
        for fault in machine.findings(event):
            raise fault
    for fault in machine.finish():
        raise fault
