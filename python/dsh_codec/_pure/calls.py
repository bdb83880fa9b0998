"""Calls of a log, collected while its rows are scanned. Spec: 80."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from dsh_codec._pure.bulk import read_rows
from dsh_codec._pure.json import parse
from dsh_codec._pure.row import RowScanner
from dsh_codec._types import CallScan, TokenScan
from dsh_codec.errors import DshCodecError
from dsh_codec.limits import MAX_DEPTH, MAX_FRAME_PLAIN_BYTES, MAX_ROW_BYTES

if TYPE_CHECKING:
    import os

    from typing_extensions import Buffer

    from dsh_codec._types import (
        Compression,
        Mode,
        Row,
        ScanResult,
        TimedCall,
        TokenSums,
    )
    from dsh_codec.call_rows import CallRows

_SETTLEMENTS = ("assistant/message", "assistant/attempt")


class _Event(NamedTuple):
    """What a call is made from; see `dsh_codec.Event`."""

    type: str
    seq: int
    time: int | None
    data: Any
    surface_op: Any


class CallReader:
    """Reads the calls of log files, one after the other. See `_kernel.pyi`."""

    def __init__(
        self,
        *,
        times: bool = True,
        tools: bool = False,
        gaps: bool = False,
        auxiliary: bool = False,
        max_row_bytes: int = MAX_ROW_BYTES,
        max_frame_plain_bytes: int = MAX_FRAME_PLAIN_BYTES,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        self._columns = (times, tools, gaps, auxiliary)
        self._limits = (max_row_bytes, max_frame_plain_bytes, max_depth)

    def read_file(
        self, path: str | os.PathLike[str], /, *, generation: int
    ) -> CallScan:
        """Read the calls of a log file."""
        _refuse_chunk_rows(generation)
        rows = _rows(*self._columns)

        def take(accepted: list[Row]) -> None:
            _take(rows, accepted)

        found = read_rows(path, generation, self._limits, take)
        cut, header = found.scan.inherited_event_count, found.scan.header
        calls = rows.finish(header.fields["id"], cut)
        return CallScan(header, found.compression, calls)

    def sum_file(
        self, path: str | os.PathLike[str], /, *, generation: int
    ) -> TokenScan:
        """Sum up the tokens of the own calls of a log file."""
        from dsh_codec.call_rows import sum_tokens

        header, compression, calls = self.read_file(path, generation=generation)
        own = [timed.call for timed in calls if timed.call.own]
        return TokenScan(header, compression, sum_tokens(own))

    def sum_files(
        self, paths: list[str], /, *, generation: int, compression: Compression
    ) -> tuple[TokenSums, list[int]]:
        """Sum up the tokens of the own calls of several log files."""
        from dsh_codec.call_rows import merged_sums, sum_tokens

        _refuse_chunk_rows(generation)
        total = sum_tokens([])
        left = []
        for place, path in enumerate(paths):
            try:
                found = self.sum_file(path, generation=generation)
            except (DshCodecError, OSError):
                left.append(place)
                continue
            if found.compression == compression:
                total = merged_sums(total, found.sums)
            else:
                left.append(place)
        return total, left


class CallScanner:
    """Scan that collects the calls of a log. See `_kernel.pyi`."""

    def __init__(
        self,
        *,
        times: bool = True,
        tools: bool = False,
        gaps: bool = False,
        auxiliary: bool = False,
        mode: Mode = "recoverable",
        generation: int | None = None,
        max_row_bytes: int = MAX_ROW_BYTES,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        _refuse_chunk_rows(generation)
        self._scanner = RowScanner(
            mode=mode,
            generation=generation,
            max_row_bytes=max_row_bytes,
            max_depth=max_depth,
        )
        self._columns = (times, tools, gaps, auxiliary)
        self._rows = _rows(*self._columns)
        self._ended: ScanResult | None = None

    @property
    def event_count(self) -> int:
        """Accepted events."""
        return self._scanner.event_count

    @property
    def fed_bytes(self) -> int:
        """Plaintext bytes fed."""
        return self._scanner.fed_bytes

    def feed(self, data: Buffer, /) -> None:
        """Take the next bytes."""
        _take(self._rows, self._scanner.feed(data))
        # A refusal behind accepted rows comes with a second call.
        self._scanner.feed(b"")

    def end_frame(self) -> None:
        """Say that a complete frame ends here."""
        self._scanner.end_frame()

    def end_complete_frames(self) -> None:
        """Say that the last complete frame ended, before a torn one is fed."""
        self._scanner.end_complete_frames()

    def finish(self) -> ScanResult:
        """End the scan."""
        self._ended = self._scanner.finish()
        return self._ended

    def take_calls(self) -> list[TimedCall]:
        """Return the calls, once the scan has ended; the next time there are none."""
        if self._ended is None:
            message = "calls are known when the scan has ended: call finish"
            raise ValueError(message)
        session = self._ended.header.fields["id"]
        rows, self._rows = self._rows, _rows(*self._columns)
        return rows.finish(session, self._ended.inherited_event_count)


def _refuse_chunk_rows(generation: int | None) -> None:
    if generation in (0, 1):
        message = (
            "generation is None or 2 to 4: attempts of 0 and 1 are groups of rows, "
            "which no scan finds"
        )
        raise ValueError(message)


def _rows(times: bool, tools: bool, gaps: bool, auxiliary: bool) -> CallRows:  # noqa: FBT001 - handed on from keywords
    # What a call is made from is written above the kernel; this is its twin in the native one.
    from dsh_codec import _pure
    from dsh_codec.call_rows import CallColumns, CallRows

    return CallRows(CallColumns(times, tools, gaps, auxiliary), 4, _pure)


def _take(rows: CallRows, accepted: list[Row]) -> None:
    for row in accepted:
        kind = row.type
        is_settlement = kind in _SETTLEMENTS
        if kind is not None and (is_settlement or rows.wants(kind)):
            event = parse(row.raw, max_depth=sys.maxsize)
            data, surface_op = event.get("data"), event.get("surfaceOp")
            noted = _Event(kind, row.seq, row.time, data, surface_op)
            (rows.add_settlement if is_settlement else rows.note)(noted)
