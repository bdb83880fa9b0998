"""Rules over a log that grows: is a batch one that `check` accepts behind what is there?

Spec: 00 §6, 10 §11.2, 30 §7 to §10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec._backend import kernel
from dsh_codec.rules import RuleCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from dsh_codec.rules import Level

__all__ = ["AppendCheck", "parsed_rows"]

_UNKNOWN: Final = -1


class AppendCheck:
    """The rules of a level over a log and the batches behind it.

    Its state holds the rules over `event_count` events. A batch that was refused, or that the
    system did not take, has spoilt it: the next batch begins at another seq than the state, and
    the events of the log are then read again.
    """

    def __init__(
        self,
        header_fields: Mapping[str, Any],
        level: Level,
        rules: RuleCheck | None = None,
        event_count: int = 0,
    ) -> None:
        """Begin behind the events of a log.

        Args:
            header_fields: Logical header.
            level: How far to check.
            rules: Has taken the first events, and found nothing; None: there are none.
            event_count: How many it has taken.
        """
        self._header_fields = header_fields
        self._level: Level = level
        self._rules = RuleCheck(header_fields, level=level) if rules is None else rules
        self._event_count = event_count

    def take(
        self, rows: bytes, seq: int, stored: Callable[[], Iterable[dict[str, Any]]]
    ) -> None:
        """Check a batch.

        Args:
            rows: Its rows, each with its line feed, accepted by row admission.
            seq: The seq of its first event.
            stored: Returns the events before it, as they are read.

        Raises:
            UnsupportedError, CorruptLogError: What `check` would refuse the log for.
            DshCodecError, OSError: The events before it have to be read again, and cannot be.

        Note:
            Judged are the events as a reader finds them, not the values that were given. Cost: a
            parse of the rows and the rules over them; memory: that of `RuleCheck`.
        """
        if self._event_count != seq:
            self._rules = RuleCheck(self._header_fields, level=self._level)
            for event in stored():
                self._rules.feed(event)
        self._event_count = _UNKNOWN
        count = 0
        for event in parsed_rows(rows, seq):
            self._rules.feed(event)
            count += 1
        for fault in self._rules.finish():
            raise fault
        self._event_count = seq + count


def parsed_rows(rows: bytes, seq: int) -> Iterator[dict[str, Any]]:
    """Yield the events of rows that were encoded, as they are read.

    Args:
        rows: Rows of generation 4, each with its line feed.
        seq: The seq of the first.
    """
    for index, row in enumerate(rows.split(b"\n")[:-1], seq):
        event = kernel.parse(row)
        if "sourceEventSeqs" in event:
            event["sourceEventSeqs"] = kernel.decode_seqs(
                event["sourceEventSeqs"], codec="v2", max_entries=index
            )
        yield event
