"""The rules over the events of a generation 4 log, layer by layer, and all of them in one pass.

Each layer has a function that raises at the first fault and a machine whose `findings(event)` and
`finish()` return the faults instead. `RuleCheck` runs the machines of a level together. Spec: 00
§6, 30 §7 to §10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from dsh_codec.errors import DshCodecError, UnsupportedError
from dsh_codec.rules.agreement import AgreementMachine, check_agreement
from dsh_codec.rules.relationships import RelationshipMachine, check_relationships
from dsh_codec.rules.restore import RestoreMachine, check_header, check_marker, restore
from dsh_codec.rules.surface import Replacement, Surface, fold
from dsh_codec.rules.vocabulary import VocabularyMachine, check_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dsh_codec.rules.agreement import StreamKernel
    from dsh_codec.rules.relationships import AdmissionKernel

__all__ = [
    "Level",
    "Replacement",
    "RuleCheck",
    "Surface",
    "check_agreement",
    "check_artifact",
    "check_header",
    "check_relationships",
    "check_vocabulary",
    "fold",
    "restore",
]

Level: TypeAlias = Literal["scan", "read", "restore", "full"]
"""How far a check goes: L0-L1, -L3, -L4, -L5. Spec: 00 §6."""

_LEVELS: Final = ("scan", "read", "restore", "full")


class Machine(Protocol):
    """What every layer's machine offers."""

    def findings(self, event: dict[str, Any]) -> list[DshCodecError]:
        """Take the next event and return its faults."""
        ...

    def finish(self) -> list[DshCodecError]:
        """Return the faults that only the end of the log shows."""
        ...


class RuleCheck:
    """All rules of a level over a log, in one pass, for events that a scan has accepted.

    The first of the collected findings is what the harness would refuse the log for: layers come
    in their order, and V1 and V2 before V3 to V7. Memory: that of the machines and at most
    `max_findings` findings for each layer.

    Example:
        >>> check = RuleCheck({"version": 4, "id": "s", "createdAt": 0, "isSeeded": False,
        ...     "delegationDepth": 0}, level="read")
        >>> check.feed({"type": "turn/start", "seq": 0, "time": 0, "data": {"turn": 2}})
        >>> [finding.rule for finding in check.finish()]
        ['L2.turn-start']
    """

    def __init__(
        self,
        header_fields: Mapping[str, Any],
        inherited_event_count: int | None = None,
        *,
        level: Level = "read",
        session_id: str | None = None,
        kernel: StreamKernel | None = None,
        max_findings: int = 100,
    ) -> None:
        """Prepare a check.

        Args:
            header_fields: Logical header (`Header.fields`).
            inherited_event_count: Inherited cut in events; None while a one-pass check does not
                know it: it is then that of the last inherited marker.
            level: How far to go. `scan` checks nothing here.
            session_id: Id that was asked for; None accepts any.
            kernel: Kernel for level `full`; None takes the one in use.
            max_findings: Findings to keep for each layer; all are counted.
        """
        depth = _LEVELS.index(level)
        cut = inherited_event_count
        self._layers: list[tuple[Machine, list[DshCodecError]]] = []
        self._unsupported: list[DshCodecError] = []
        if depth >= 1:
            self._layers.append((RelationshipMachine(header_fields, cut), []))
            self._layers.append((VocabularyMachine(), []))
        if depth >= 2:
            self._layers.append(
                (RestoreMachine(header_fields, cut, keep=False, shape=False), [])
            )
            try:
                check_header(header_fields, session_id=session_id)
            except DshCodecError as exc:
                self._layers[-1][1].append(exc)
        if depth >= 3:
            self._layers.append((AgreementMachine(kernel), []))
        self._max = max_findings
        self._count = sum(len(kept) for _, kept in self._layers)

    @property
    def finding_count(self) -> int:
        """Findings so far, also those beyond `max_findings`; V3 counts once for each layer."""
        return self._count

    def feed(self, event: dict[str, Any]) -> None:
        """Take the next event: logical, as parsed, `sourceEventSeqs` expanded. Never raises."""
        for machine, kept in self._layers:
            found = machine.findings(event)
            if found:
                self._keep(found, kept)

    def finish(self) -> list[DshCodecError]:
        """End the log and return the findings, the decisive one first.

        Returns:
            Findings with `.rule` and `.seq`; each pair of both once.
        """
        for machine, kept in self._layers:
            self._keep(machine.finish(), kept)
        ordered: dict[tuple[str | None, int | None], DshCodecError] = {}
        for position, (_, kept) in enumerate(self._layers):
            if position == 1:
                kept = self._unsupported + kept
            for finding in kept:
                ordered.setdefault((finding.rule, finding.seq), finding)
        return list(ordered.values())

    def _keep(self, found: list[DshCodecError], kept: list[DshCodecError]) -> None:
        self._count += len(found)
        for finding in found:
            is_vocabulary = isinstance(finding, UnsupportedError)
            target = self._unsupported if is_vocabulary else kept
            if len(target) < self._max:
                target.append(finding)


def check_artifact(
    header_fields: Mapping[str, Any],
    inherited_event_count: int,
    events: Iterable[dict[str, Any]],
    *,
    kernel: AdmissionKernel | None = None,
) -> None:
    """Check events that come from no scan as a complete artifact: acceptance of a migration.

    Args:
        header_fields: Logical header.
        inherited_event_count: Inherited cut in events.
        events: Logical events in order from seq 0; gone through several times.
        kernel: Kernel whose `admit` checks rules A to F; None takes the one in use.

    Raises:
        UnsupportedError: C1, V1.
        HeaderError, RowError: Another rule of 30 §9, last but one paragraph.
    """
    known = list(events)
    check_header(header_fields)
    check_marker(header_fields, inherited_event_count, known)
    vocabulary = VocabularyMachine()
    for event in known:
        for finding in vocabulary.findings(event):
            if finding.rule == "V1":
                raise finding
    check_relationships(
        header_fields, inherited_event_count, known, admission=True, kernel=kernel
    )
