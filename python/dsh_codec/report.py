"""What a check of a log found, as values, JSON and text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from dsh_codec.errors import DshCodecError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsh_codec._types import Compression, FileScan, Header, Mode, StreamFault

__all__ = [
    "Finding",
    "Level",
    "Report",
    "Status",
    "amounts",
    "size_text",
    "time_text",
]

Level: TypeAlias = Literal["scan", "read", "restore", "full"]
Status: TypeAlias = Literal[
    "sound", "torn", "damaged", "newer", "unsupported", "unreadable"
]

EXIT_CODES: Final[dict[Status, int]] = {
    "sound": 0,
    "torn": 1,
    "damaged": 1,
    "newer": 2,
    "unsupported": 2,
    "unreadable": 2,
}
"""Exit code of the command line for each status."""

_NUMBERS: Final = (
    "row_count",
    "event_count",
    "inherited_event_count",
    "committed_bytes",
    "stream_count",
    "record_count",
    "chunk_count",
    "stream_fault_count",
    "first_time",
    "last_time",
)
_SHOWN_FAULTS: Final = 10


class Finding(NamedTuple):
    """One thing that a check found.

    Attributes:
        severity: `refusal`: the log is not read because of it. `note`: worth knowing.
        kind: Class of the error, or `TornTail`, `RowIssue` for what an ordinary reader cuts
            off.
        message: What is wrong, what was expected, what can be done.
        line: Line of the text, from 1 (the header is line 1).
        offset: Byte from 0; of the plaintext for rows, of the file for frames and torn tails.
        seq: Event, from 0.
        frame: Zstandard frame, from 0.
        rule: Rule of the spec.

        Each place is None where it does not apply.
    """

    severity: Literal["refusal", "note"]
    kind: str
    message: str
    line: int | None = None
    offset: int | None = None
    seq: int | None = None
    frame: int | None = None
    rule: str | None = None

    @classmethod
    def of(cls, error: Exception) -> Finding:
        """Return the finding that an error stands for."""
        kind = type(error).__name__
        if not isinstance(error, DshCodecError):
            return cls("refusal", kind, str(error))
        places = (error.line, error.offset, error.seq, error.frame, error.rule)
        return cls("refusal", kind, error.message, *places)

    @property
    def text(self) -> str:
        """The finding in one line."""
        named = (("line", self.line), ("byte", self.offset), ("seq", self.seq))
        places = [f"{name} {value}" for name, value in named if value is not None]
        if self.frame is not None:
            places.append(f"frame {self.frame}")
        if self.rule is not None:
            places.append(f"rule {self.rule}")
        return f"{self.kind}: {self.message}" + (
            f" ({', '.join(places)})" if places else ""
        )


class Report(NamedTuple):
    """What `check` found out about one log.

    Attributes:
        path: The file, or what was given; None for bytes and file objects.
        status: `sound`; `torn`: refused for a torn tail only; `damaged`; `newer`: written by a
            newer format; `unsupported`: intact, but not readable by this version;
            `unreadable`: the system, the file's place or a limit is in the way.
        level: How far it was checked. Spec: 00 §6.
        mode: How rows and tails were judged.
        header: The header; None if it could not be read.
        compression: How the file is stored; None if unknown.
        scan: Numbers and places; None if the scan was refused.
        findings: Refusals first.
        error: The refusal, as it would be raised; None if there is none.
    """

    path: str | None
    status: Status
    level: Level
    mode: Mode
    header: Header | None = None
    compression: Compression | None = None
    scan: FileScan | None = None
    findings: tuple[Finding, ...] = ()
    error: Exception | None = None

    def __eq__(self, other: object) -> bool:
        """Compare everything but `error`: `findings` says what it says."""
        return isinstance(other, Report) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        """Return the opposite of `==`."""
        return not self == other

    def __hash__(self) -> int:
        """Return a hash of what `==` compares."""
        return hash(self[:-1])

    def _repr_html_(self) -> str:
        """Return what notebooks show: the status and what was found first."""
        from dsh_codec.html_repr import report_html

        return report_html(self)

    @property
    def is_sound(self) -> bool:
        """Whether nothing was refused."""
        return self.status == "sound"

    @property
    def exit_code(self) -> int:
        """0 sound, 1 damaged or torn, 2 unsupported or unreadable."""
        return EXIT_CODES[self.status]

    @property
    def generation(self) -> int | None:
        """Format generation; None if the header could not be read."""
        return None if self.header is None else self.header.generation

    @property
    def event_count(self) -> int | None:
        """Accepted events; None if the scan was refused."""
        return None if self.scan is None else self.scan.scan.event_count

    @property
    def torn_start(self) -> int | None:
        """File offset of a torn last frame; None without one."""
        return None if self.scan is None else self.scan.torn_start

    @property
    def truncate_to(self) -> int | None:
        """File offset behind all that is committed; None if that is the whole file."""
        return None if self.scan is None else self.scan.truncate_to

    @property
    def stream_faults(self) -> tuple[StreamFault, ...]:
        """Stream records that would not expand, the first 100 of them."""
        return () if self.scan is None else self.scan.scan.stream_faults

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        scan = self.scan
        result: dict[str, Any] = {
            "path": self.path,
            "status": self.status,
            "level": self.level,
            "mode": self.mode,
            "session": None if self.header is None else self.header.fields.get("id"),
            "generation": self.generation,
            "compression": self.compression,
            "findings": [finding._asdict() for finding in self.findings],
        }
        if scan is not None:
            result |= {
                "file_bytes": scan.file_bytes,
                "plain_bytes": scan.plain_bytes,
                "frame_count": scan.frame_count,
                "torn_start": scan.torn_start,
                "truncate_to": scan.truncate_to,
                "recovered_count": scan.recovered_count,
            }
            result |= {name: getattr(scan.scan, name) for name in _NUMBERS}
            result["stream_faults"] = [fault._asdict() for fault in self.stream_faults]
        return result

    def text(self, *, verbose: bool = False) -> str:
        """Return the report as text without a line feed at its end.

        Args:
            verbose: Whether details follow the first line.
        """
        parts: list[str] = [self.status]
        if self.generation is not None:
            stored = "plain" if self.compression == "none" else self.compression
            parts.append(f"v{self.generation} {stored}")
        if self.scan is not None:
            parts += amounts(self.scan)
        refusals = [
            finding.text for finding in self.findings if finding.severity == "refusal"
        ]
        parts += refusals[:1]
        first = f"{self.path or '<bytes>'}: {', '.join(parts)}"
        lines = [first, *self._details()] if verbose else [first]
        # A path or an id may hold line feeds, and would look like more lines.
        return "\n".join(line.replace("\n", "\\x0a") for line in lines)

    def _details(self) -> Iterable[str]:
        if self.header is not None:
            yield f"  session  {self.header.fields.get('id')}"
        yield f"  checked  level {self.level}, {self.mode}"
        if self.scan is not None:
            rows = self.scan.scan
            yield f"  rows     {rows.row_count:,}, {rows.committed_bytes:,} bytes committed"
            yield (
                f"  streams  {rows.stream_count:,} with {rows.record_count:,} records, "
                f"{rows.chunk_count:,} chunks"
            )
            if rows.first_time is not None and rows.last_time is not None:
                yield f"  time     {time_text(rows.first_time)} to {time_text(rows.last_time)}"
        for finding in self.findings:
            yield f"  {finding.severity:<8} {finding.text}"
        for fault in self.stream_faults[:_SHOWN_FAULTS]:
            yield f"  fault    seq {fault.seq}, record {fault.record}: {fault.message}"
        count = 0 if self.scan is None else self.scan.scan.stream_fault_count
        if count > _SHOWN_FAULTS:
            yield f"  fault    and {count - _SHOWN_FAULTS:,} more"


def time_text(time_ms: int) -> str:
    """Return a time in milliseconds since the Unix epoch as UTC text."""
    # A check needs it only for details.
    from datetime import UTC, datetime, timedelta

    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def size_text(count: int) -> str:
    """Return a number of bytes in a unit that suits it."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def amounts(scan: FileScan) -> list[str]:
    """Return what a scan counted, as short texts."""
    parts = [f"{scan.scan.event_count:,} events"]
    if scan.frame_count is not None:
        parts.append(f"{scan.frame_count:,} frames")
    parts.append(size_text(scan.file_bytes))
    if scan.truncate_to is not None:
        parts.append(f"torn, sound up to byte {scan.truncate_to:,}")
    if scan.scan.stream_fault_count:
        parts.append(f"{scan.scan.stream_fault_count:,} stream faults")
    return parts
