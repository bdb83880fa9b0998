"""What notebooks show of logs, reports and tables: small, escaped, without style of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec.html_marks import Markup, clip, table, tag
from dsh_codec.report import size_text, time_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dsh_codec.log import Log
    from dsh_codec.report import Report
    from dsh_codec.summary import Summary
    from dsh_codec.timing import Timing
    from dsh_codec.usage import Usage

__all__ = ["log_html", "report_html", "summary_html", "timing_html", "usage_html"]

MOST_ROWS: Final = 60
_MOST_FINDINGS: Final = 10
_MOST_CHARS: Final = 200


def log_html(log: Log) -> str:
    """Return what the header and the file tell; no row is read."""
    fields = log.header.fields
    return _pairs(
        f"Log of session {clip(log.id)}",
        [
            ("path", log.path or "in memory"),
            ("generation", log.generation),
            ("stored", f"{size_text(log.file_bytes)}, {log.compression}"),
            ("created", time_text(int(fields["createdAt"]))),
            ("cwd", fields.get("cwd", "-")),
            ("parent", fields.get("parentSession", "-")),
        ],
    )


def report_html(report: Report) -> str:
    """Return the status of a check and what was found first."""
    rows: list[tuple[str, object]] = [
        ("status", tag("strong", report.status)),
        ("level", f"{report.level}, {report.mode}"),
        ("generation", "-" if report.generation is None else report.generation),
        ("events", "-" if report.event_count is None else f"{report.event_count:,}"),
    ]
    rows += [(found.severity, found.text) for found in report.findings[:_MOST_FINDINGS]]
    left = len(report.findings) - _MOST_FINDINGS
    if left > 0:
        rows.append(("", f"and {left:,} findings more"))
    return _pairs(f"Check of {clip(report.path or 'a log in memory')}", rows)


def summary_html(summary: Summary) -> str:
    """Return a log summed up."""
    return _pairs("Log summed up", summary.rows())


def usage_html(usage: Usage) -> str:
    """Return the rows of usage and their totals."""
    from dsh_codec.usage import totals_members

    def cells(key: Sequence[Any], totals: Any) -> list[object]:
        members = totals_members(totals)
        return [*_key(key), *(_cell(members[name]) for name in shown)]

    shown = [n for n in totals_members(usage.totals) if not n.startswith("unknown_")]
    rows = [cells(row.key, row.totals) for row in usage]
    rows.append(cells(_total_key(usage.by), usage.totals))
    return _table([*usage.by, *(f"#{name}" for name in shown)], rows, "Usage")


def timing_html(timing: Timing) -> str:
    """Return the rows of timing and their totals: medians and 90th percentiles."""
    figures = ("ttft", "generation", "output_rate", "gap", "tool")

    def cells(key: Sequence[Any], row: Any) -> list[object]:
        found = [getattr(row, name) for name in figures]
        values = [figure.percentile(p) for figure in found for p in (50, 90)]
        return [*_key(key), f"{row.count:,}", *map(_cell, values)]

    titles = [f"#{name} p{percent}" for name in figures for percent in (50, 90)]
    rows = [cells(row.key, row) for row in timing]
    rows.append(cells(_total_key(timing.by), timing.totals))
    return _table([*timing.by, f"#{timing.per}s", *titles], rows, "Timing")


def _pairs(title: str, rows: Iterable[tuple[str, object]]) -> str:
    lines = [
        tag(
            "tr",
            tag("th", name),
            tag("td", value if isinstance(value, Markup) else clip(value, _MOST_CHARS)),
        )
        for name, value in list(rows)[:MOST_ROWS]
    ]
    return str(tag("table", tag("caption", title), tag("tbody", *lines)))


def _table(titles: Sequence[str], rows: list[list[object]], caption: str) -> str:
    # The last row holds the totals, which are always shown.
    left = len(rows) - MOST_ROWS
    if left > 0:
        rows = [*rows[: MOST_ROWS - 1], rows[-1]]
        caption += f"; {left:,} rows are left out"
    return str(table(titles, rows, caption=caption))


def _key(key: Sequence[Any]) -> list[object]:
    return ["unknown" if part is None else clip(part, _MOST_CHARS) for part in key]


def _total_key(by: Sequence[str]) -> list[str]:
    return ["total", *[""] * (len(by) - 1)][: len(by)]


def _cell(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
