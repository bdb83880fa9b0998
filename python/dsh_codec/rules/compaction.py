"""Compactions, and the surface as L2 follows it.

This is not the fold of `surface`: it knows the protected head and leaves the rules for one event
alone to L3. Spec: 30 §7.2, §7.3; 90 item 19.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dsh_codec.events import (
    MISSING,
    is_array,
    is_earlier,
    is_equal_number,
    is_filled,
    is_identical,
    is_object,
    refusal,
)
from dsh_codec.rules.surface import NodeList
from dsh_codec.values import is_count, is_number

if TYPE_CHECKING:
    from dsh_codec.errors import DshCodecError, RowError
    from dsh_codec.rules.lifecycle import Lifecycle


class _Compaction(NamedTuple):
    id: Any
    command: Any
    turn: int | None
    has_summary: bool


class Compactions:
    """The open compaction and the surface, with one method for each kind of event.

    Every method returns the event's fault or None.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        """Begin before the first event.

        Args:
            lifecycle: Knows the open turn.
        """
        self._lifecycle = lifecycle
        self._nodes = NodeList()
        self._head: int | None = None
        self._compaction: _Compaction | None = None
        self._crossings: list[
            DshCodecError
        ] = []  # void if the open compaction is an orphan

    def take_crossings(self) -> list[DshCodecError]:
        """Return the turns that crossed a compaction which is now known to be no orphan."""
        crossings, self._crossings = self._crossings, []
        return crossings

    def fold(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Apply the surface operation of an event. Spec: 30 §7.3."""
        del data
        nodes, op = self._nodes, event.get("surfaceOp")
        is_system = event["type"] == "system/message"
        if is_system and self._head is None and len(nodes):
            self._head = seq
            nodes.append(seq)
            text = (
                "a surface that does not begin with a system/message can never get one"
            )
            return refusal("L2.head", seq, text)
        if op == "append":
            if is_system and not len(nodes):
                self._head = seq
            nodes.append(seq)
            return None
        start, end = (
            (op.get("startSeq"), op.get("endSeq")) if is_object(op) else (None, None)
        )
        removed = (
            nodes.span(start, end)
            if is_earlier(start, seq) and is_earlier(end, seq)
            else None
        )
        if removed is None:
            nodes.append(seq)
            text = f"surfaceOp of {event['type']} names no range of the current surface"
            return refusal("L2.surface-range", seq, text)
        fault = None
        sources = event.get("sourceEventSeqs")
        cited = sources if is_array(sources) else []
        missing = set(removed).difference(filter(is_number, cited))
        if missing:
            text = f"sourceEventSeqs must name the removed event {min(missing)}"
            fault = refusal("L2.surface-sources", seq, text)
        if self._head in removed:
            if not is_system or len(removed) != 1:
                text = "only a system/message over exactly it may replace the system prompt"
                fault = fault or refusal("L2.head", seq, text)
            self._head = seq
        nodes.replace(removed, seq)
        return fault

    def cross_compaction(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Note that a turn starts or ends while a compaction is open."""
        # Whether the open compaction is an orphan shows only when it ends (30 §7.2, preparation).
        del data
        if self._compaction is not None:
            message = f"{event['type']} lies inside an open compaction"
            self._crossings.append(refusal("L2.compaction-crossed", seq, message))
        return None

    def start_compaction(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Take a `compaction/start`."""
        del event
        is_open, turn = self._compaction is not None, data.get("turn", MISSING)
        compaction_id = data.get("compactionId", MISSING)
        command = data.get("sourceCommandId", MISSING)
        self._compaction = _Compaction(
            compaction_id, command, self._lifecycle.turn, False
        )
        if is_open:
            return refusal(
                "L2.compaction-start", seq, "compaction/start inside another compaction"
            )
        if not self._is_open_turn(turn):
            message = (
                "compaction/start must have the open turn, or null outside any turn"
            )
            return refusal("L2.compaction-start", seq, message)
        if not is_filled(compaction_id):
            return refusal(
                "L2.compaction-start", seq, "compaction/start has no compactionId"
            )
        return None

    def _is_open_turn(self, turn: Any) -> bool:
        if self._lifecycle.turn is None:
            return turn is None
        return is_count(turn) and turn == self._lifecycle.turn

    def _is_owner(self, holder: dict[str, Any]) -> bool:
        owner = self._compaction
        return (
            owner is not None
            and is_identical(holder.get("compactionId", MISSING), owner.id)
            and is_identical(holder.get("sourceCommandId", MISSING), owner.command)
        )

    def summarise(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Take a `compaction/summary`."""
        fault = self.check_span(event, data, seq)
        owner = self._compaction
        if (
            owner is None
            or not self._is_owner(data)
            or owner.turn != self._lifecycle.turn
        ):
            text = "compaction/summary does not belong to the open compaction"
            return fault or refusal("L2.compaction-owner", seq, text)
        self._compaction = owner._replace(has_summary=True)
        if owner.has_summary:
            text = "the open compaction has a summary already"
            return fault or refusal("L2.compaction-summary", seq, text)
        return fault

    def end_compaction(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Take a `compaction/end`."""
        del event
        owner = self._compaction
        is_owner = self._is_owner(data)
        self._compaction = None
        if owner is None or not is_owner or owner.turn != self._lifecycle.turn:
            text = "compaction/end does not belong to the open compaction"
            return refusal("L2.compaction-owner", seq, text)
        turn = data.get("turn", MISSING)
        if (
            turn is not None
            if owner.turn is None
            else not is_equal_number(turn, owner.turn)
        ):
            text = "compaction/end has another turn than its start"
            return refusal("L2.compaction-end", seq, text)
        if "error" not in data and not owner.has_summary:
            text = "compaction/end without error needs a compaction/summary before it"
            return refusal("L2.compaction-end", seq, text)
        return None

    def check_span(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Check the range that a compaction event shadows."""
        bounds, seqs = data.get("shadowedRange"), data.get("shadowedSeqs")
        span = None
        if is_object(bounds):
            start, end = bounds.get("start"), bounds.get("end")
            if is_earlier(start, seq) and is_earlier(end, seq):
                span = self._nodes.span(start, end)
        if span is None:
            text = (
                f"shadowedRange of {event['type']} is no range of the current surface"
            )
            return refusal("L2.compaction-span", seq, text)
        if (
            not is_array(seqs)
            or len(seqs) != len(span)
            or not all(map(is_equal_number, seqs, span))
        ):
            text = f"shadowedSeqs of {event['type']} are not the surface between the range's ends"
            return refusal("L2.compaction-span", seq, text)
        if self._head in span:
            return refusal(
                "L2.head", seq, "a compaction must not shadow the system prompt"
            )
        return None

    def check_checkpoint(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Check the owner of a checkpoint."""
        source = data.get("source")
        if (
            is_object(source)
            and source.get("kind") == "compact-checkpoint"
            and event.get("surfaceOp") != "append"
            and not self._is_owner(source)
        ):
            text = "the checkpoint does not belong to the open compaction"
            return refusal("L2.compaction-owner", seq, text)
        return None

    def reseed(
        self, event: dict[str, Any], data: dict[str, Any], seq: int
    ) -> RowError | None:
        """Take a `session/end-seed`: it drops the open compaction."""
        del event, data, seq
        self._compaction = None
        self._crossings.clear()
        return None
