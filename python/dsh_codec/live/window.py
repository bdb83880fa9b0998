"""Client: the ordered view of durable events and transient rows. Spec: 40 §7."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsh_codec.live.frames import AttemptId
    from dsh_codec.live.reconciler import Entry

__all__ = ["Change", "ChangeKind", "Window"]

ChangeKind: TypeAlias = Literal["replace", "prepend", "append", "settle-assistant"]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a window: what a view has to do to follow it.

    Attributes:
        kind: Name of the change (40 §7).
        revision: Revision of the window after it.
        entries: The whole list for `replace`, what comes in front for `prepend`, else the entry
            that was inserted, if any.
        index: Position of the first of `entries` in the list after the change.
        attempt_id: Attempt whose transient rows went before the insertion (`settle-assistant`).
        has_more: Whether the log has events before the first.
    """

    kind: ChangeKind
    revision: int
    entries: tuple[Entry, ...]
    index: int
    attempt_id: AttemptId | None
    has_more: bool


class Window:
    """Ordered list of entries with a revision that grows by one with every change.

    Memory: what it shows. `replace` starts anew.
    """

    def __init__(self) -> None:
        """Start empty, at revision 0."""
        self._entries: list[Entry] = []
        self._rows_from = 0  # No transient row lies before this position.
        self._has_more = False
        self._revision = 0
        self._snapshot: tuple[Entry, ...] | None = ()

    @property
    def revision(self) -> int:
        """Changes so far."""
        return self._revision

    @property
    def has_more(self) -> bool:
        """Whether the log has events before the first entry."""
        return self._has_more

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries; the same object until the next change. Linear after one."""
        if self._snapshot is None:
            self._snapshot = tuple(self._entries)
        return self._snapshot

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def replace(self, entries: Iterable[Entry], *, has_more: bool) -> Change:
        """Show these entries and no others."""
        self._entries = list(entries)
        self._rows_from = _first_row(self._entries)
        self._has_more = has_more
        return self._publish("replace", tuple(self._entries), 0)

    def prepend(self, entries: Iterable[Entry], *, has_more: bool) -> Change:
        """Put older entries in front."""
        older = tuple(entries)
        self._entries[:0] = older
        self._rows_from += len(older)
        self._has_more = has_more
        return self._publish("prepend", older, 0)

    def append(self, entry: Entry) -> Change:
        """Put an entry at the end.

        A settlement that was staged while later events were published goes to its place among
        them, so that the durable entries stay in log order (I1 of 40 §9).
        """
        place = len(self._entries)
        if entry.is_durable:
            place = self._place_behind(entry.seq)
        return self._insert("append", entry, place, None)

    def settle(self, attempt_id: AttemptId, entry: Entry | None = None) -> Change:
        """Drop the transient rows of an attempt; then insert its settlement, if there is one.

        Args:
            attempt_id: The attempt.
            entry: Goes before the first element with a larger seq, else to the end.

        Note:
            Linear in the entries since the first transient row.
        """
        kept = [
            item
            for item in self._entries[self._rows_from :]
            if item.attempt_id != attempt_id
        ]
        self._entries[self._rows_from :] = kept
        self._rows_from += _first_row(kept)
        if entry is None:
            return self._publish("settle-assistant", (), 0, attempt_id)
        place = self._place_of(entry.seq)
        return self._insert("settle-assistant", entry, place, attempt_id)

    def _place_of(self, seq: float) -> int:
        """Return the position of the first element with a larger seq, or the end."""
        first = place = self._rows_from
        while place and self._entries[place - 1].seq > seq:
            place -= 1  # Durable entries only, in ascending order.
        if place < first:
            return place
        while place < len(self._entries) and self._entries[place].seq <= seq:
            place += 1
        return place

    def _place_behind(self, seq: float) -> int:
        """Return the end, or the position of the first durable element with a larger seq."""
        place = len(self._entries)
        for position in range(len(self._entries) - 1, -1, -1):
            item = self._entries[position]
            if item.is_durable:
                if item.seq <= seq:
                    break
                place = position
        return place

    def _insert(
        self, kind: ChangeKind, entry: Entry, place: int, attempt_id: AttemptId | None
    ) -> Change:
        if entry.is_durable and place <= self._rows_from:
            # No row lies before the position: one more element stands in front of the rows.
            self._rows_from += 1
        self._entries.insert(place, entry)
        return self._publish(kind, (entry,), place, attempt_id)

    def _publish(
        self,
        kind: ChangeKind,
        entries: tuple[Entry, ...],
        index: int,
        attempt_id: AttemptId | None = None,
    ) -> Change:
        self._revision += 1
        self._snapshot = None
        return Change(kind, self._revision, entries, index, attempt_id, self._has_more)


def _first_row(entries: list[Entry]) -> int:
    """Return the position of the first transient row, or the number of entries."""
    for position, entry in enumerate(entries):
        if not entry.is_durable:
            return position
    return len(entries)
