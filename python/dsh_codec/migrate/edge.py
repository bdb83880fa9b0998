"""What the four edges share: events and runs in, events out, references renumbered. Spec: 50 §2.1."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from dsh_codec.events import is_array, is_object
from dsh_codec.migrate.refusal import EdgeRefusalError, pass_on, refuse

JsonObject: TypeAlias = dict[str, Any]
"""An event or a part of one. Edges never change one that they were given."""

Emit: TypeAlias = Callable[[JsonObject], None]
"""Takes the next event of the target generation."""

Lookup: TypeAlias = Callable[[Any], int]
"""Returns the target seq of a reference, or refuses it by an `EdgeRefusalError`."""


class Run(NamedTuple):
    """A packed row: chunks of one attempt that stay together. Spec: 50 §3.1.

    Attributes:
        seq: Seq of the first chunk.
        count: Chunks.
        last_time: Time of the last one in milliseconds.
        turn, step: Turn and step of all.
        record: The stream record that the run is on its own. Spec: 50 §5.5.
    """

    seq: int
    count: int  # type: ignore[assignment]  # the tuple's own method is not wanted
    last_time: int
    turn: int
    step: int
    record: JsonObject


class SeqMap:
    """Where each event of the source stands in the target; 4 bytes an event.

    Three edges keep one, hence the narrow elements, which widen where a log has 2^31 events.
    """

    GONE: Final = -1
    """Stands for an event that has no place in the target, or not yet."""

    def __init__(self) -> None:
        """Start with no events."""
        self._targets = array("i")

    def __len__(self) -> int:
        """Return the number of source events so far."""
        return len(self._targets)

    def append(self, target: int, count: int = 1) -> None:
        """Add source events, all at the same place."""
        try:
            self._extend(target, count)
        except OverflowError:
            self._targets = array("q", self._targets)
            self._extend(target, count)

    def _extend(self, target: int, count: int) -> None:
        if count == 1:
            self._targets.append(target)
        else:
            self._targets.extend(array(self._targets.typecode, (target,)) * count)

    def place(self, seq: int, target: int) -> None:
        """Give a source event its place."""
        try:
            self._targets[seq] = target
        except OverflowError:
            self._targets = array("q", self._targets)
            self._targets[seq] = target

    def __getitem__(self, seq: int) -> int:
        """Return the place of a source event."""
        return self._targets[seq]


class Edge(Protocol):
    """One adjacent migration as a push machine.

    Attributes:
        source_cut: Inherited cut of the source; None while it is not known.
    """

    source_cut: int | None

    def push(self, event: JsonObject) -> None:
        """Take the next event of the source generation.

        Raises:
            EdgeRefusalError: There is no safe way to carry it over.
        """
        ...

    def push_run(self, run: Run) -> None:
        """Take the next chunks, in a generation that packs them."""
        ...

    def finish(self) -> int:
        """End the log and return the target's inherited cut.

        Raises:
            EdgeRefusalError: The log as a whole cannot be carried over.
        """
        ...


def each(name: str, values: Any, lookup: Lookup, rule: str) -> list[int]:
    """Return a list of references renumbered."""
    if not is_array(values):
        refuse(rule, "has to be an array of seqs", name)
    targets = []
    for index, value in enumerate(values):
        try:
            targets.append(lookup(value))
        except EdgeRefusalError as refusal:
            pass_on(refusal.inside(index), name)
    return targets


def one(name: str, holder: Any, lookup: Lookup) -> int:
    """Return one member that is a reference renumbered."""
    try:
        return lookup(holder.get(name))
    except EdgeRefusalError as refusal:
        pass_on(refusal, name)


def both_ends(
    value: Any, names: tuple[str, str], lookup: Lookup, rule: str
) -> JsonObject:
    """Return the two ends of a range renumbered, as new members in their order."""
    if not is_object(value):
        refuse(rule, "has to be an object with the ends of a range")
    return {name: one(name, value, lookup) for name in names}


_ENDS: Final = ("start", "end")
_LISTS: Final = {
    "compaction/prune": "shadowedSeqs",
    "compaction/summary": "shadowedSeqs",
    "session/title": "messageSeqs",
    "session/title-llm-request": "messageSeqs",
}


def remap_data(kind: str, data: Any, lookup: Lookup, rule: str) -> Any:
    """Return the payload of an event with its references renumbered. Spec: 50 §5.7.

    Members keep their places; the payload itself is not changed.
    """
    listed = _LISTS.get(kind)
    if listed is None and kind != "command/done":
        return data
    if not is_object(data):
        refuse(rule, "has to be an object", "data")
    try:
        if listed is None:
            if "sourceEventSeq" not in data:
                return data
            return data | {"sourceEventSeq": one("sourceEventSeq", data, lookup)}
        changed: JsonObject = {}
        if listed == "shadowedSeqs":
            span: Any = data.get("shadowedRange")
            try:
                ends = both_ends(span, _ENDS, lookup, rule)
            except EdgeRefusalError as refusal:
                pass_on(refusal, "shadowedRange")
            changed["shadowedRange"] = span | ends
        changed[listed] = each(listed, data.get(listed), lookup, rule)
        return data | changed
    except EdgeRefusalError as refusal:
        pass_on(refusal, "data")
