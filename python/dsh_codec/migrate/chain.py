"""The chain of edges from a generation to the current one, and what accepts its result.

Events stream: each one goes through all remaining edges before the next is taken. Spec: 50 §2, §8.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dsh_codec._backend import kernel
from dsh_codec._types import ChunkRun, CommonRow
from dsh_codec.errors import DshCodecError, MigrationRefusedError
from dsh_codec.events import KNOWN_TYPES, is_inherited_marker, quote, type_of
from dsh_codec.header import CURRENT_VERSION
from dsh_codec.migrate.common import CommonLane
from dsh_codec.migrate.edge import Run
from dsh_codec.migrate.refusal import EdgeRefusalError, refused
from dsh_codec.migrate.v0_v1 import EdgeV0
from dsh_codec.migrate.v1_v2 import EdgeV1
from dsh_codec.migrate.v2_v3 import EdgeV2
from dsh_codec.migrate.v3_v4 import EdgeV3
from dsh_codec.row import CHUNK_TYPE, PackedRow
from dsh_codec.rules.relationships import RelationshipMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from dsh_codec._types import Header
    from dsh_codec.log import Log
    from dsh_codec.migrate.children import ChildEvidence
    from dsh_codec.migrate.edge import Edge, Emit, JsonObject
    from dsh_codec.row import Event

__all__ = [
    "UNSAID_CHILDREN",
    "Acceptance",
    "Chain",
    "convert_header",
    "push_log",
    "run_of",
]

UNSAID_CHILDREN: Final = "50 §7.7"
"""Rule of a refusal that more arguments can mend."""

_MEMBERS: Final = {
    "text-chunks": "texts",
    "reasoning-chunks": "texts",
    "tool-call-chunks": "args",
}


def convert_header(
    fields: Mapping[str, Any], target: int = CURRENT_VERSION
) -> dict[str, Any]:
    """Return the logical header of a later generation. Spec: 50 §2.2.

    Args:
        fields: Logical header, `version` at most `target`.
        target: The generation.
    """
    converted = {**fields, "version": target}
    if fields["version"] < 3 <= target and fields.get("agentPreset") == "code":
        converted["agentPreset"] = "ptc"
    return converted


def run_of(row: Mapping[str, Any]) -> Run:
    """Return the run that a packed row stands for. Spec: 50 §3.1, §5.5.

    Args:
        row: The row, parsed and found valid by a scan.
    """
    data, kind = row["data"], row["type"]
    members, gaps = data[_MEMBERS[kind]], data["dt"]
    record = {
        "type": kind,
        "time0": int(row["time0"]),
        "index": data["index"],
        "dt": gaps,
    }
    for name in ("id", "name"):
        if name in data:
            record[name] = data[name]
    record[_MEMBERS[kind]] = members
    last_time = int(row["time0"]) + int(sum(gaps))
    return Run(
        int(row["seq0"]), len(members), last_time, data["turn"], data["step"], record
    )


class _Stage:
    """An edge in its place in the chain: its refusals get the edge's number and the seq."""

    def __init__(self, number: int, edge: Edge) -> None:
        self.number = number
        self.edge = edge

    def push(self, event: JsonObject) -> None:
        try:
            self.edge.push(event)
        except EdgeRefusalError as refusal:
            raise self._refused(refusal, event.get("type"), event["seq"]) from None

    def push_run(self, run: Run) -> None:
        try:
            self.edge.push_run(run)
        except EdgeRefusalError as refusal:
            raise self._refused(refusal, run.record["type"], run.seq) from None

    def push_rows(self, edge: EdgeV1, rows: ChunkRun) -> bool:
        try:
            return edge.push_rows(rows)
        except EdgeRefusalError as refusal:
            raise self._refused(refusal, CHUNK_TYPE, rows.seq) from None

    def finish(self) -> int:
        try:
            return self.edge.finish()
        except EdgeRefusalError as refusal:
            raise self._refused(refusal, None, None) from None

    def _refused(
        self, refusal: EdgeRefusalError, kind: object, seq: float | None
    ) -> MigrationRefusedError:
        number = None if seq is None else int(seq)
        return refused(refusal, edge=self.number, kind=kind, seq=number)


class Chain:
    """All edges from a generation to a target, as one push machine.

    Attributes:
        header_fields: Logical header of the target.
    """

    def __init__(
        self,
        header: Header,
        emit: Emit,
        *,
        children: Iterable[ChildEvidence] | None,
        target: int = CURRENT_VERSION,
    ) -> None:
        """Prepare the edges.

        Args:
            header: Header of the source.
            emit: Takes the events of the target.
            children: Evidence of the child sessions, for the edge to generation 4. Empty: there
                are none. None: nobody has said.
            target: Generation to reach, 3 or 4.

        Raises:
            MigrationRefusedError: The chain needs evidence of children, and there is none.
        """
        version = header.generation
        if children is None and version < CURRENT_VERSION == target:
            message = (
                "a log of an older generation needs evidence of its child sessions: give "
                "the folder with all sessions, or an empty list if it has no children"
            )
            raise MigrationRefusedError(message, rule=UNSAID_CHILDREN)
        self.header_fields = convert_header(header.fields, target)
        self._stages: list[_Stage] = []
        cut = header.declared_cut or 0 if version < 2 else None
        push, push_run = emit, _refuse_run
        push_rows: Callable[[ChunkRun], bool] = _decline_rows
        # From the last edge to the first: each needs to know where its events go.
        for number in reversed(range(version, target)):
            fields = convert_header(header.fields, number)
            edge: Edge
            if number == 3:
                edge = EdgeV3(fields, None, push, children=children or ())
            elif number == 2:
                edge = EdgeV2(fields, None, push)
            elif number == 1:
                edge = EdgeV1(fields, cut or 0, push, is_first=version == 1)
            else:
                edge = EdgeV0(fields, cut or 0, push, push_run)
            stage = _Stage(number, edge)
            self._stages.insert(0, stage)
            push, push_run = stage.push, stage.push_run
            if isinstance(edge, EdgeV1):
                # The edge before lets these rows pass as they are.
                push_rows = partial(stage.push_rows, edge)
        self._lane = self._common_lane() if target == CURRENT_VERSION else None
        self.push_rows: Callable[[ChunkRun], bool] = push_rows
        """Takes the next chunk rows at once; False: it did not, and they have to be pushed one
        by one. What comes out may hold streams as text, see `StreamText`."""
        self.push: Emit = push
        """Takes the next event of the source; `MigrationRefusedError` as its edges see fit."""
        self.push_run: Callable[[Run], None] = push_run
        """Takes the next packed run, in generations 0 and 1."""

    def push_common(self, row: CommonRow) -> bytes | None:
        """Take a common row and return it in generation 4 with its line feed.

        Returns:
            None, and nothing has changed, if it has to be pushed like all others.
        """
        return None if self._lane is None else self._lane.push(row)

    def _common_lane(self) -> CommonLane | None:
        edges = [stage.edge for stage in self._stages]
        if len(edges) < 3:
            return None
        *before, second, third, fourth = edges
        if not (
            isinstance(second, EdgeV1)
            and isinstance(third, EdgeV2)
            and isinstance(fourth, EdgeV3)
        ):
            return None
        first = before[0] if before and isinstance(before[0], EdgeV0) else None
        return CommonLane(first, second, third, fourth)

    def finish(self, source_cut: int) -> int:
        """End the log.

        Args:
            source_cut: Inherited cut that the decoder found.

        Returns:
            The inherited cut of the target, in events.

        Raises:
            MigrationRefusedError: The log as a whole cannot be carried over.
        """
        cut = source_cut
        for stage in self._stages:
            stage.edge.source_cut = cut
            cut = stage.finish()
        return cut


def push_log(
    chain: Chain, log: Log, made: list[JsonObject]
) -> Iterator[JsonObject | bytes]:
    """Push the rows of a log and yield what comes out, but for what `Chain.finish` adds.

    Args:
        chain: The chain.
        log: The log; its `result` is set when all was yielded.
        made: Where the chain puts its events; emptied.

    Yields:
        Events, whose stream may be a `StreamText`, or rows of generation 4.

    Raises:
        DshCodecError, OSError: As for iterating over the log, and as the edges see fit.
    """
    for unit in log.runs():
        if isinstance(unit, CommonRow):
            carried = chain.push_common(unit)
            if carried is not None:
                yield carried
                continue
            _push(chain, log.row_of(unit))
        elif not isinstance(unit, ChunkRun):
            _push(chain, unit)
        elif not chain.push_rows(unit):
            for row in log.rows_of(unit):
                _push(chain, row)
                yield from made
                made.clear()
        if made:
            yield from made
            made.clear()


def _push(chain: Chain, unit: Event | PackedRow) -> None:
    if isinstance(unit, PackedRow):
        chain.push_run(run_of(kernel.parse(unit.raw)))
    else:
        chain.push(unit.envelope)


def _decline_rows(rows: ChunkRun) -> bool:
    del rows
    return False


def _refuse_run(run: Run) -> None:
    message = "there is no packed row in this generation"
    raise MigrationRefusedError(message, None, None, None, run.seq, None, "50 §3.2")


class Acceptance:
    """Whether the result of a chain is a sound artifact of generation 4. Spec: 50 §8.1 to §8.4.

    Faults wait for `finish`: a decoder or an edge may still refuse a later row, and that counts
    first.

    Attributes:
        fault: The first fault so far.
    """

    fault: DshCodecError | None

    def __init__(self, header_fields: Mapping[str, Any]) -> None:
        """Prepare the checks.

        Args:
            header_fields: Logical header of the result, made from one that was read.
        """
        self._is_seeded = header_fields["isSeeded"] is True
        self.fault = None
        self._relationships = RelationshipMachine(
            header_fields, None, admission=True, kernel=kernel
        )
        self._count = 0
        self._marker: int | None = None

    def feed(self, event: JsonObject) -> None:
        """Take the next event."""
        seq = self._count
        self._count += 1
        if self.fault is not None:
            return
        if is_inherited_marker(event):
            self._marker = seq
        kind = type_of(event)
        if kind not in KNOWN_TYPES and event.get("ignorable") is not True:
            message = f"event type {quote(kind)} is unknown and not marked ignorable"
            self.fault = MigrationRefusedError(message, *(None,) * 3, seq, None, "V1")
            return
        for fault in self._relationships.findings(event):
            self.fault = fault
            return

    def finish(self, cut: int) -> None:
        """End the log.

        Args:
            cut: Inherited cut of the result.

        Raises:
            MigrationRefusedError: A rule of 50 §8 is broken; `.rule` says which, `.seq` is
                that of the result.
        """
        fault = self.fault
        if fault is None:
            fault = next(iter(self._relationships.finish()), None)
        if fault is not None:
            message = f"the migrated log is not sound: {fault.message}"
            raise MigrationRefusedError(
                message, None, None, None, fault.seq, None, fault.rule
            )
        if (self._marker is None) == self._is_seeded or (self._marker or 0) != cut:
            message = f"the migrated log has no inherited marker at its cut {cut}"
            raise MigrationRefusedError(
                message, None, None, None, cut, None, "L4.marker"
            )
