"""Common rows through all edges at once. Spec: 50 §4 to §7.

The kernel has seen that the payload of such a row is admitted in every generation and what it becomes
(`CommonRow`); what is left is the state of the edges and the seqs. Where the two do not settle it, the
row goes the way of all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_codec._backend import kernel
from dsh_codec.events import SURFACE_ROLES

if TYPE_CHECKING:
    from dsh_codec._types import CommonRow
    from dsh_codec.migrate.v0_v1 import EdgeV0
    from dsh_codec.migrate.v1_v2 import EdgeV1
    from dsh_codec.migrate.v2_v3 import EdgeV2
    from dsh_codec.migrate.v3_v4 import EdgeV3

__all__ = ["CommonLane"]


class CommonLane:
    """The edges of a log of generation 0 or 1, for common rows."""

    def __init__(
        self, first: EdgeV0 | None, second: EdgeV1, third: EdgeV2, fourth: EdgeV3
    ) -> None:
        """Take the edges; the first is None for a log of generation 1."""
        self._first = first
        self._second = second
        self._third = third
        self._fourth = fourth

    def push(self, row: CommonRow) -> bytes | None:
        """Take a row and return it in generation 4 with its line feed.

        Returns:
            None, and nothing has changed, if only the edges themselves can tell.
        """
        if not self._third.may_take(row) or not self._fourth.may_take(row):
            return None
        data, tail = row.data, b""
        if row.type == "assistant/message":
            stream = self._second.settle(row)
            if stream is None:
                return None
            # The payload has members before, and the stream is the last.
            data = b'%b,"stream":%b}' % (data[:-1], stream.text)
        elif not self._second.may_take(row):
            return None
        elif row.sources is not None:
            seqs = self._remap(row)
            if seqs is None:
                return None
            tail = b',"sourceEventSeqs":' + kernel.dump(kernel.encode_seqs(seqs))
        if row.type in SURFACE_ROLES:
            tail += b',"surfaceOp":"append"'
        if self._first is not None:
            self._first.take_common(row)
        self._second.take_common(row)
        self._third.take_common(row)
        seq = self._fourth.take_common(row)
        head = b'{"type":"%b","seq":%d,"time":%d' % (row.type.encode(), seq, row.time)
        return b'%b,"data":%b%b}\n' % (head, data, tail)

    def _remap(self, row: CommonRow) -> list[int] | None:
        """Return the seqs that the row cites in generation 4; None if they need a closer look."""
        seqs: list[int] = []
        for source in row.sources or ():
            # A range is written out under rules of its own.
            target = self._second.carried(source) if type(source) is int else None
            if target is None:
                return None
            seqs.append(self._fourth.carried(self._third.carried(target)))
        return seqs if seqs and len(set(seqs)) == len(seqs) else None
