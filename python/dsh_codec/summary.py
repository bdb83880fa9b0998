"""A log summed up: events by type, attempts, tokens, times, sizes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsh_codec.log import require_log
from dsh_codec.report import amounts, time_text
from dsh_codec.values import is_safe_integer

if TYPE_CHECKING:
    from dsh_codec._types import FileScan, Header
    from dsh_codec.log import Log

__all__ = ["Summary", "UsageTotals", "summarize"]


class UsageTotals(NamedTuple):
    """Tokens of the attempts that know them. Spec: 80 §4 U1 to U4.

    Attributes:
        input, output, cache_read, cache_write, reasoning: Sums; None if no attempt knows it.
        unknown: For each of these, the number of attempts that do not.
    """

    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    reasoning: int | None
    unknown: dict[str, int]


@dataclass(frozen=True, slots=True)
class Summary:
    """A log summed up. Attempts, chunks and tokens count own events only (spec 80 §2).

    Attributes:
        path: The file; None for bytes and file objects.
        header: The header.
        scan: Numbers and places of the whole log.
        types: Events by type.
        attempts: Attempts by outcome.
        chunk_count: Chunks of these attempts.
        tokens: Their tokens.
        own_from: Seq of the first own event.
    """

    path: str | None
    header: Header
    scan: FileScan
    types: dict[str, int]
    attempts: dict[str, int]
    chunk_count: int
    tokens: UsageTotals
    own_from: int

    def _repr_html_(self) -> str:
        """Return what notebooks show: the rows."""
        from dsh_codec.html_repr import summary_html

        return summary_html(self)

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes of the file for each output token; None without tokens."""
        return self.scan.file_bytes / self.tokens.output if self.tokens.output else None

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values; times in milliseconds."""
        scan = self.scan
        return {
            "path": self.path,
            "generation": self.header.generation,
            "header": self.header.fields,
            "declared_cut": self.header.declared_cut,
            "own_from": self.own_from,
            "compression": scan.compression,
            "file_bytes": scan.file_bytes,
            "plain_bytes": scan.plain_bytes,
            "frame_count": scan.frame_count,
            "torn_start": scan.torn_start,
            "truncate_to": scan.truncate_to,
            "recovered_count": scan.recovered_count,
            "event_count": scan.scan.event_count,
            "events_by_type": self.types,
            "attempts": self.attempts,
            "chunk_count": self.chunk_count,
            "tokens": self.tokens._asdict(),
            "first_time": scan.scan.first_time,
            "last_time": scan.scan.last_time,
            "bytes_per_token": self.bytes_per_token,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return the summary as pairs of a name and a text."""
        scan, fields = self.scan, self.header.fields
        rows = [("file", self.path or "<bytes>")]
        rows += [
            (key, str(value)) for key, value in fields.items() if key != "createdAt"
        ]
        rows += [
            ("createdAt", time_text(int(fields["createdAt"]))),
            ("generation", str(self.header.generation)),
            ("stored", ", ".join(amounts(scan))),
        ]
        if scan.scan.first_time is not None and scan.scan.last_time is not None:
            rows.append(("first event", time_text(scan.scan.first_time)))
            rows.append(("last event", time_text(scan.scan.last_time)))
        if self.own_from:
            rows.append(("inherited", f"{self.own_from:,} events, not counted below"))
        counts = [f"{count:,} {outcome}" for outcome, count in self.attempts.items()]
        rows.append(("attempts", ", ".join(counts) or "none"))
        rows.append(("chunks", f"{self.chunk_count:,}"))
        for name, value in self.tokens._asdict().items():
            if name == "unknown":
                continue
            missing = self.tokens.unknown[name]
            text = "unknown" if value is None else f"{value:,}"
            if value is not None and missing:
                text += f" ({missing:,} attempts do not say)"
            rows.append((f"tokens {name}", text))
        if self.bytes_per_token is not None:
            rows.append(("bytes per output token", f"{self.bytes_per_token:.1f}"))
        rows += [(f"event {kind}", f"{count:,}") for kind, count in self.types.items()]
        return rows


_USAGE_KEYS: Final = {
    "input": "inputTokens",
    "output": "outputTokens",
    "cache_read": "cacheReadTokens",
    "cache_write": "cacheWriteTokens",
    "reasoning": "reasoningTokens",
}


def summarize(log: Log) -> Summary:
    """Sum up a log in two passes.

    Args:
        log: An open log.

    Raises:
        DshCodecError, OSError: As for iterating.

    Note:
        Constant memory.
    """
    require_log(log)
    types = Counter(str(event.type) for event in log)
    result = log.result or log.scan()
    own_from = result.scan.inherited_event_count
    if log.generation < 2 and "parentSession" not in log.header.fields:
        own_from = 0  # Spec 80 §2: without a parent nothing is inherited.
    outcomes: Counter[str] = Counter()
    sums: dict[str, int | None] = dict.fromkeys(_USAGE_KEYS)
    unknown = dict.fromkeys(_USAGE_KEYS, 0)
    chunk_count = 0
    for attempt in log.attempts():
        if attempt.seq < own_from:
            continue
        outcomes[attempt.outcome] += 1
        chunk_count += attempt.stream.chunk_count
        usage = attempt.usage or {}
        for name, key in _USAGE_KEYS.items():
            value = usage.get(key)
            if is_safe_integer(value) and value >= 0:
                sums[name] = (sums[name] or 0) + int(value)
            else:
                unknown[name] += 1
    totals = UsageTotals(**sums, unknown=unknown)
    ordered = dict(sorted(types.items(), key=lambda item: (-item[1], item[0])))
    return Summary(
        log.path,
        log.header,
        result,
        ordered,
        dict(sorted(outcomes.items())),
        chunk_count,
        totals,
        own_from,
    )
