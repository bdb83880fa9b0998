"""The commands `usage`, `timing`, `find` and `search`: what they take and how they show it."""

from __future__ import annotations

import csv
import io
import re
import sys
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import click

from dsh_codec.commands import (
    PATH,
    compression_option,
    json_option,
    refusals,
    root_argument,
)
from dsh_codec.commands_logs import Tally, session_members
from dsh_codec.commands_output import (
    as_cell,
    printable,
    report_errors,
    say,
    with_progress,
    write_json,
    write_line,
    write_table,
)
from dsh_codec.find import Session, default_root, find, find_unread
from dsh_codec.report import Finding, size_text, time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dsh_codec.grouping import By, Moment
    from dsh_codec.text import PassageKind
    from dsh_codec.timing import Distribution, TimingRow
    from dsh_codec.usage import Totals

__all__ = ["find_sessions", "search_text", "show_timing", "show_usage"]

_SPAN: Final = re.compile(r"(\d{1,6})([hdw])")
_SPAN_HOURS: Final = {"h": 1, "d": 24, "w": 168}
_SHOWN_FIGURES: Final = {
    "ttft": (50, 90, 99),
    "generation": (50,),
    "output_rate": (50,),
    "gap": (50, 99),
    "tool": (50, 90),
}


class _MomentType(click.ParamType["Moment"]):
    """A moment: a date, a date with a time, or how long ago."""

    name = "moment"

    def convert(self, value: Any, param: Any, ctx: Any) -> Moment:
        span = _SPAN.fullmatch(value)
        if span is not None:
            hours = int(span[1]) * _SPAN_HOURS[span[2]]
            return datetime.now(UTC) - timedelta(hours=hours)
        with suppress(ValueError):
            return date.fromisoformat(value)
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            hint = "write 2026-01-31, 2026-01-31T12:00 or 30d (days ago)"
            self.fail(f"{value!r} is no moment; {hint}", param, ctx)


_MOMENT: Final = _MomentType()
_paths_argument = click.argument(
    "paths",
    type=PATH,
    nargs=-1,
    help="Roots, session directories or files. Default: the root of the harness.",
)
_csv_option = click.option(
    "--csv", "as_csv", is_flag=True, help="CSV with a header line."
)


def _grouping_options(
    default: By,
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return a decorator with the options of the commands that sum calls up by group."""
    options = (
        click.option(
            "--tz",
            "zone",
            default="local",
            help="Time zone of days: Europe/Berlin, UTC, local.",
        ),
        click.option(
            "--until",
            type=_MOMENT,
            help="First moment that does not count any more.",
        ),
        click.option(
            "--since",
            type=_MOMENT,
            help="First moment: 2026-01-31, a time, or 12h, 30d, 4w ago.",
        ),
        click.option("--monthly", is_flag=True, help="The same as --by month."),
        click.option("--daily", is_flag=True, help="The same as --by day."),
        click.option(
            "--by",
            multiple=True,
            help="What to group by, several between commas: session, project, lineage, year, "
            "month, day, hour, provider, model, served_model, outcome, turn, step, seq. "
            f"Default: {default}.",
        ),
    )

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        for option in options:
            command = option(command)
        return command

    return decorate


@click.command("usage")
@_paths_argument
@_grouping_options("day")
@click.option("--prices", type=PATH, help="Price table in TOML, for costs.")
@compression_option
@json_option
@_csv_option
def show_usage(
    paths: Sequence[Path],
    *,
    by: Sequence[str],
    daily: bool,
    monthly: bool,
    since: Moment | None,
    until: Moment | None,
    zone: str,
    prices: Path | None,
    compression: Any,
    as_json: bool,
    as_csv: bool,
) -> int:
    """Sum up tokens: by day, or by month, model, project, session.

    Each call counts once, for the session that made it. `+3?` says that three calls do not tell
    the figure, `?` that none does.
    """
    from dsh_codec.prices import PriceTable
    from dsh_codec.usage import COLUMNS, totals_members, usage

    _require_one_form(as_json=as_json, as_csv=as_csv)
    _require_span(since, until)
    names = _names(by, "day", daily=daily, monthly=monthly)
    with refusals():
        table = None if prices is None else PriceTable.load(prices)
        found = usage(
            _sessions(paths, compression, is_json=as_json or as_csv),
            by=names,
            tz=zone,
            since=since,
            until=until,
            prices=table,
        )
    if as_json:
        for members in found.to_dicts():
            write_json(members)
    elif as_csv:
        _write_csv(
            [*names, *totals_members(found.totals)],
            [[*row.key, *totals_members(row.totals).values()] for row in found],
        )
    else:
        titles = [*names, "calls", *COLUMNS]
        lines = [[*_key_cells(row.key), *_total_cells(row.totals)] for row in found]
        if len(lines) != 1:
            lines.append(_total_line(len(names), _total_cells(found.totals)))
        if table is not None:
            titles.append(f"cost {found.currency or ''}".rstrip())
        write_table(titles, lines)
    return report_errors(found.errors)


@click.command("timing")
@_paths_argument
@_grouping_options("model")
@click.option(
    "--per",
    type=click.Choice(["step", "call"]),
    default="step",
    help="step: the settled message of each; call: every attempt.",
)
@compression_option
@json_option
@_csv_option
def show_timing(
    paths: Sequence[Path],
    *,
    by: Sequence[str],
    daily: bool,
    monthly: bool,
    per: Any,
    since: Moment | None,
    until: Moment | None,
    zone: str,
    compression: Any,
    as_json: bool,
    as_csv: bool,
) -> int:
    """Show how fast answers and tools were: by model, or as asked.

    First tokens (ttft), generation, gaps and tools in milliseconds, output_rate in tokens a
    second. p50 is the median.
    """
    from dsh_codec.timing import FIGURES, Distribution, timing

    _require_one_form(as_json=as_json, as_csv=as_csv)
    _require_span(since, until)
    names = _names(by, "model", daily=daily, monthly=monthly)
    with refusals():
        found = timing(
            _sessions(paths, compression, is_json=as_json or as_csv),
            by=names,
            per=per,
            tz=zone,
            since=since,
            until=until,
        )
    if as_json:
        for members in found.to_dicts():
            write_json(members)
    elif as_csv:
        titles = list(Distribution().to_dict())
        figures = [f"{name}_{title}" for name in FIGURES for title in titles]
        _write_csv(
            [*names, "count", *figures],
            [[*row.key, row.count, *_figures(row)] for row in found],
        )
    else:
        titles = [
            f"{name} p{percent}"
            for name, percents in _SHOWN_FIGURES.items()
            for percent in percents
        ]
        lines = [[*_key_cells(row.key), *_timing_cells(row)] for row in found]
        if len(lines) != 1:
            lines.append(_total_line(len(names), _timing_cells(found.totals)))
        write_table([*names, per + "s", *titles], lines)
    return report_errors(found.errors)


@click.command("find")
@root_argument
@click.option("--id", "session_id", help="Only the session of this id.")
@click.option("--cwd", help="Only sessions of this working directory.")
@click.option(
    "--lineage",
    type=click.Choice(["root", "fork", "subagent"]),
    help="Only sessions of this kind.",
)
@click.option(
    "--scan",
    is_flag=True,
    help="Read all rows, not only headers: count events, find damage.",
)
@click.option(
    "--all",
    "every_file",
    is_flag=True,
    help="Name older generations and leftovers, too.",
)
@compression_option
@json_option
def find_sessions(
    root: Path | None,
    *,
    session_id: str | None,
    cwd: str | None,
    lineage: str | None,
    scan: bool,
    every_file: bool,
    compression: Any,
    as_json: bool,
) -> int:
    """Find sessions by id, folder or kind, with state and parent.

    Exit code 1 or 2 if some of them cannot be read, as `check` has it.
    """
    with refusals():
        place = default_root() if root is None else root
    tally = Tally()
    lines = []
    sessions = find(place, scan=scan, compression=compression)
    if scan:
        # Names are listed much faster than files are read.
        sessions = with_progress(
            sessions,
            "scanning",
            count=lambda: sum(1 for _ in find_unread(place, compression=compression)),
            is_json=as_json,
        )
    for session in sessions:
        fields = {} if session.header is None else session.header.fields
        if (
            session_id not in (None, session.id)
            or cwd not in (None, fields.get("cwd"))
            or lineage not in (None, session.lineage)
        ):
            continue
        tally.add(session)
        if as_json:
            members = session_members(session)
            if scan:
                numbers = session.scan and session.scan.scan
                members["event_count"] = numbers and numbers.event_count
                members["inherited_event_count"] = (
                    numbers and numbers.inherited_event_count
                )
            write_json(members)
            continue
        lines.append(_session_line(session))
        for kind, others in (
            ("retained", session.retained),
            ("leftover", session.leftovers),
        ):
            if every_file:
                lines += [[*["-"] * 6, kind, other] for other in others]
    if not as_json:
        titles = ["session", "status", "gen", "size", "events", "created"]
        write_table([*titles, "lineage", "path"], lines)
    return tally.finish(is_json=as_json)


@click.command("search")
@click.argument("pattern", help="Regular expression.")
@_paths_argument
@click.option(
    "--fixed", "-F", "is_fixed", is_flag=True, help="The pattern is plain text."
)
@click.option("--ignore-case", "-i", is_flag=True, help="Upper and lower case alike.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    help="Where to look, several between commas: prompt, injected, answer, reasoning, failed, "
    "tool-call, tool-result, system, developer, summary, title. Default: everywhere.",
)
@click.option(
    "--inherited", "with_inherited", is_flag=True, help="Also what forks inherited."
)
@click.option(
    "--text", "with_text", is_flag=True, help="Show the text around the first match."
)
@compression_option
@json_option
def search_text(
    pattern: str,
    paths: Sequence[Path],
    *,
    is_fixed: bool,
    ignore_case: bool,
    kinds: Sequence[str],
    with_inherited: bool,
    with_text: bool,
    compression: Any,
    as_json: bool,
) -> int:
    """Search all that was said.

    Shows where, as `session:seq`; the text only with --text.
    """
    from dsh_codec.text import search

    source = re.escape(pattern) if is_fixed else pattern
    try:
        compiled = re.compile(source, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        message = f"{pattern!r} is no regular expression: {error}"
        raise click.BadParameter(message, param_hint="PATTERN") from None
    with refusals():
        hits = search(
            _sessions(paths, compression, is_json=as_json),
            compiled,
            kinds=cast("list[PassageKind] | None", _split(kinds) or None),
            with_inherited=with_inherited,
        )
    for hit in hits:
        told = hit.passage
        if as_json:
            members: dict[str, Any] = {
                "id": hit.id,
                "kind": told.kind,
                "time_ms": told.time_ms,
                "turn": told.turn,
                "step": told.step,
                "is_own": told.is_own,
                "is_interrupted": told.is_interrupted,
                "matches": len(hit.spans),
                "path": hit.path,
            }
            if with_text:
                members |= {"text": told.text, "spans": list(map(list, hit.spans))}
            write_json(members)
            continue
        cells = [
            hit.id,
            told.kind,
            "-" if told.time_ms is None else time_text(told.time_ms),
            str(len(hit.spans)),
        ]
        if with_text:
            cells.append(" ".join(hit.excerpt().split()))
        write_line("\t".join(map(as_cell, cells)))
    return report_errors(hits.errors)


def _sessions(
    paths: Sequence[Path], compression: Any, *, is_json: bool
) -> Iterator[Session]:
    """Return the sessions, read under a progress bar where somebody sees it."""
    found: list[Session] = []
    for path in paths or [default_root()]:
        sessions = list(find(path, compression=compression))
        if not sessions:
            say(f"dsh-codec: no sessions under {path}")
        found += sessions
    return with_progress(found, "reading", count=found.__len__, is_json=is_json)


def _require_one_form(*, as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        message = "--json and --csv are two forms: choose one"
        raise click.UsageError(message)


def _require_span(since: Moment | None, until: Moment | None) -> None:
    """Refuse one day named twice: its end was meant, and nothing would be counted."""
    if since is not None and since == until:
        message = (
            "--until is the first moment that does not count any more: "
            "for a whole day, name the next one"
        )
        raise click.UsageError(message)


def _names(by: Sequence[str], default: By, *, daily: bool, monthly: bool) -> list[By]:
    # What is no `By` is refused where it is used.
    names = cast("list[By]", _split(by))
    if daily:
        names.insert(0, "day")
    if monthly:
        names.insert(0, "month")
    return list(dict.fromkeys(names)) or [default]


def _split(values: Sequence[str]) -> list[str]:
    return [part for value in values for part in value.split(",") if part]


def _key_cells(key: Sequence[Any]) -> list[str]:
    return ["unknown" if part is None else str(part) for part in key]


def _total_line(count: int, cells: list[str]) -> list[str]:
    return [*["total", *[""] * (count - 1)][:count], *cells]


def _total_cells(totals: Totals) -> list[str]:
    from dsh_codec.usage import COLUMNS

    cells = [f"{totals.calls:,}"]
    cells += [
        _sum_cell(getattr(totals, name), totals.unknown[name]) for name in COLUMNS
    ]
    if totals.unpriced is not None:
        cost = None if totals.cost is None else round(totals.cost, 4)
        cells.append(_sum_cell(cost, totals.unpriced))
    return cells


def _sum_cell(value: Any, unknown: int) -> str:
    """Return a sum; `+3?` behind it says that three calls do not know the figure."""
    if value is None:
        return "?" if unknown else "-"
    return f"{value:,}" + (f" +{unknown:,}?" if unknown else "")


def _timing_cells(row: TimingRow) -> list[str]:
    cells = [f"{row.count:,}"]
    for name, percents in _SHOWN_FIGURES.items():
        figure: Distribution = getattr(row, name)
        for percent in percents:
            value = figure.percentile(percent)
            digits = 1 if name == "output_rate" else 0
            cells.append("-" if value is None else f"{value:,.{digits}f}")
    return cells


def _figures(row: TimingRow) -> Iterator[Any]:
    from dsh_codec.timing import FIGURES

    for name in FIGURES:
        yield from getattr(row, name).to_dict().values()


def _session_line(session: Session) -> list[str]:
    created = None if session.header is None else session.header.fields["createdAt"]
    kin: str = session.lineage or "-"
    if session.parent is not None:
        kin += f" of {session.parent}"
    where = (
        session.path
        if session.error is None
        else f"{session.path}: {Finding.of(session.error).text}"
    )
    return [
        session.id or "-",
        session.status,
        "-" if session.generation is None else f"v{session.generation}",
        "-" if session.file_bytes is None else size_text(session.file_bytes),
        "-" if session.scan is None else f"{session.scan.scan.event_count:,}",
        "-" if created is None else time_text(int(created)),
        kin,
        where,
    ]


def _write_csv(titles: list[str], rows: list[list[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    for row in rows:
        writer.writerow(
            [printable(cell) if isinstance(cell, str) else cell for cell in row]
        )
    sys.stdout.buffer.write(text.getvalue().encode())
