"""The commands `usage`, `timing`, `find` and `search`: what they take and how they show it."""

# pyright: reportPrivateUsage=false
# How commands write is the business of `commands`, which this module is a part of.

from __future__ import annotations

import csv
import io
import re
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import typer

from dsh_codec.check import status_of
from dsh_codec.commands import (
    CompressionOption,
    JsonOption,
    Task,
    _complain,
    _printable,
    _session_members,
    _with_progress,
    _write_json,
    _write_line,
    _write_table,
    app,
)
from dsh_codec.find import Session, default_root, find
from dsh_codec.prices import PriceTable
from dsh_codec.report import EXIT_CODES, size_text, time_text
from dsh_codec.text import search
from dsh_codec.timing import FIGURES, Distribution, TimingRow, timing
from dsh_codec.usage import COLUMNS, Totals, totals_members, usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsh_codec.grouping import By, Moment
    from dsh_codec.text import PassageKind

_SPAN: Final = re.compile(r"(\d{1,6})([hdw])")
_SPAN_HOURS: Final = {"h": 1, "d": 24, "w": 168}
_SHOWN_FIGURES: Final = {
    "ttft": (50, 90, 99),
    "generation": (50,),
    "output_rate": (50,),
    "gap": (50, 99),
    "tool": (50, 90),
}

PathsArgument = Annotated[
    list[Path] | None,
    typer.Argument(help="Roots, session directories or files. Default: the harness's."),
]
RootArgument = Annotated[
    Path | None,
    typer.Argument(help="A root or any directory. Default: the harness's."),
]
ByOption = Annotated[
    list[str] | None,
    typer.Option("--by", help="What to group by: model, or several: project,month."),
]
DailyOption = Annotated[bool, typer.Option("--daily", help="The same as --by day.")]
MonthlyOption = Annotated[
    bool, typer.Option("--monthly", help="The same as --by month.")
]
SinceOption = Annotated[
    str | None,
    typer.Option(help="First moment: 2026-01-31, a time, or 12h, 30d, 4w ago."),
]
UntilOption = Annotated[
    str | None, typer.Option(help="First moment that does not count any more.")
]
ZoneOption = Annotated[
    str, typer.Option("--tz", help="Time zone of days: Europe/Berlin, UTC, local.")
]
CsvOption = Annotated[bool, typer.Option("--csv", help="CSV with a header line.")]


@app.command("usage")
def show_usage(
    paths: PathsArgument = None,
    *,
    by: ByOption = None,
    daily: DailyOption = False,
    monthly: MonthlyOption = False,
    since: SinceOption = None,
    until: UntilOption = None,
    zone: ZoneOption = "local",
    prices: Annotated[
        Path | None, typer.Option(help="Price table in TOML, for costs.")
    ] = None,
    compression: CompressionOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> Task:
    """Sum up tokens: by day, or by month, model, project, session. Each call counts once."""

    def run() -> int:
        names = _names(by, "day", daily=daily, monthly=monthly)
        table = None if prices is None else PriceTable.load(prices)
        found = usage(
            _sessions(paths, compression, is_shown=not (as_json or as_csv)),
            by=names,
            tz=zone,
            since=_moment(since),
            until=_moment(until),
            prices=table,
        )
        if as_json:
            for members in found.to_dicts():
                _write_json(members)
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
            _write_table(titles, iter(lines))
        return _report_errors(found.errors)

    return _guarded(run)


@app.command("timing")
def show_timing(
    paths: PathsArgument = None,
    *,
    by: ByOption = None,
    daily: DailyOption = False,
    monthly: MonthlyOption = False,
    per: Annotated[
        Literal["step", "call"],
        typer.Option(help="step: the settled message of each; call: every attempt."),
    ] = "step",
    since: SinceOption = None,
    until: UntilOption = None,
    zone: ZoneOption = "local",
    compression: CompressionOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> Task:
    """Show first-token times, output rates, gaps and tool times: by model, or as asked."""

    def run() -> int:
        names = _names(by, "model", daily=daily, monthly=monthly)
        found = timing(
            _sessions(paths, compression, is_shown=not (as_json or as_csv)),
            by=names,
            per=per,
            tz=zone,
            since=_moment(since),
            until=_moment(until),
        )
        if as_json:
            for members in found.to_dicts():
                _write_json(members)
        elif as_csv:
            titles = list(Distribution().to_dict())
            _write_csv(
                [
                    *names,
                    "count",
                    *(f"{name}_{title}" for name in FIGURES for title in titles),
                ],
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
            _write_table([*names, per + "s", *titles], iter(lines))
        return _report_errors(found.errors)

    return _guarded(run)


@app.command("find")
def find_sessions(
    root: RootArgument = None,
    *,
    session_id: Annotated[
        str | None, typer.Option("--id", help="Only the session of this id.")
    ] = None,
    cwd: Annotated[
        str | None, typer.Option(help="Only sessions of this working directory.")
    ] = None,
    lineage: Annotated[
        Literal["root", "fork", "subagent"] | None,
        typer.Option(help="Only sessions of this kind."),
    ] = None,
    scan: Annotated[
        bool, typer.Option("--scan", help="Read all rows, not only headers.")
    ] = False,
    every_file: Annotated[
        bool,
        typer.Option("--all", help="Name older generations and leftovers, too."),
    ] = False,
    compression: CompressionOption = None,
    as_json: JsonOption = False,
) -> Task:
    """Find sessions: the file that counts, its state, its parent, what lies beside it."""

    def run() -> int:
        place = default_root() if root is None else root
        code = 0
        lines = []
        for session in find(place, scan=scan, compression=compression):
            fields = {} if session.header is None else session.header.fields
            if (
                session_id not in (None, session.id)
                or cwd not in (None, fields.get("cwd"))
                or lineage not in (None, session.lineage)
            ):
                continue
            if session.error is not None:
                code = max(code, EXIT_CODES[status_of(session.error)])
            if as_json:
                members = _session_members(session)
                if scan:
                    numbers = session.scan and session.scan.scan
                    members["event_count"] = numbers and numbers.event_count
                    members["inherited_event_count"] = (
                        numbers and numbers.inherited_event_count
                    )
                _write_json(members)
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
            _write_table([*titles, "lineage", "path"], iter(lines))
        return code

    return _guarded(run)


@app.command("search")
def search_text(
    pattern: Annotated[str, typer.Argument(help="Regular expression.")],
    paths: PathsArgument = None,
    *,
    is_fixed: Annotated[
        bool, typer.Option("--fixed", "-F", help="The pattern is plain text.")
    ] = False,
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", "-i", help="Upper and lower case alike.")
    ] = False,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", help="Where to look: answer, or several: prompt,answer."
        ),
    ] = None,
    with_inherited: Annotated[
        bool, typer.Option("--inherited", help="Also what forks inherited.")
    ] = False,
    with_text: Annotated[
        bool, typer.Option("--text", help="Show the text around the first match.")
    ] = False,
    compression: CompressionOption = None,
    as_json: JsonOption = False,
) -> Task:
    """Search all that was said. Shows where, as `session:seq`; the text only with --text."""

    def run() -> int:
        source = re.escape(pattern) if is_fixed else pattern
        try:
            compiled = re.compile(source, re.IGNORECASE if ignore_case else 0)
        except re.error as error:
            message = f"{pattern!r} is no regular expression: {error}"
            raise ValueError(message) from None
        hits = search(
            _sessions(paths, compression, is_shown=False),
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
                _write_json(members)
                continue
            cells = [
                hit.id,
                told.kind,
                "-" if told.time_ms is None else time_text(told.time_ms),
                str(len(hit.spans)),
            ]
            if with_text:
                cells.append(" ".join(hit.excerpt().split()))
            _write_line("\t".join(cells))
        return _report_errors(hits.errors)

    return _guarded(run)


def _guarded(run: Task) -> Task:
    """Turn what the system or an argument refuses into a message."""

    def guarded() -> int:
        try:
            return run()
        except BrokenPipeError:
            raise
        except OSError as error:
            return _complain(error)
        except (ValueError, RuntimeError) as error:
            sys.stderr.write(f"dsh-codec: {_printable(str(error))}\n")
            return 64

    return guarded


def _sessions(
    paths: list[Path] | None, compression: Any, *, is_shown: bool
) -> Iterator[Session]:
    """Yield the sessions, with a progress bar where somebody sees it."""
    found: list[Session] = []
    for path in paths or [default_root()]:
        found += find(path, compression=compression)
    yield from _with_progress(found, is_shown=is_shown, what="reading")


def _names(
    by: list[str] | None, default: By, *, daily: bool, monthly: bool
) -> list[By]:
    # What is no `By` is refused where it is used.
    names = cast("list[By]", _split(by))
    if daily:
        names.insert(0, "day")
    if monthly:
        names.insert(0, "month")
    return list(dict.fromkeys(names)) or [default]


def _split(values: list[str] | None) -> list[str]:
    return [part for value in values or () for part in value.split(",") if part]


def _moment(text: str | None) -> Moment | None:
    if text is None:
        return None
    span = _SPAN.fullmatch(text)
    if span is not None:
        return datetime.now(UTC) - timedelta(hours=int(span[1]) * _SPAN_HOURS[span[2]])
    try:
        return date.fromisoformat(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is no moment; write 2026-01-31, 2026-01-31T12:00 or 30d (days ago)"
        raise ValueError(message) from None


def _key_cells(key: Sequence[Any]) -> list[str]:
    return ["unknown" if part is None else str(part) for part in key]


def _total_line(count: int, cells: list[str]) -> list[str]:
    return [*["total", *[""] * (count - 1)][:count], *cells]


def _total_cells(totals: Totals) -> list[str]:
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
    for name in FIGURES:
        yield from getattr(row, name).to_dict().values()


def _session_line(session: Session) -> list[str]:
    created = None if session.header is None else session.header.fields["createdAt"]
    kin: str = session.lineage or "-"
    if session.parent is not None:
        kin += f" of {session.parent}"
    where = (
        session.path if session.error is None else f"{session.path}: {session.error}"
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
            [_printable(cell) if isinstance(cell, str) else cell for cell in row]
        )
    sys.stdout.buffer.write(text.getvalue().encode())


def _report_errors(errors: Sequence[Session]) -> int:
    code = 0
    sys.stdout.flush()
    for session in errors:
        assert session.error is not None  # noqa: S101 - that is what they are listed for
        code = max(code, EXIT_CODES[status_of(session.error)])
        place = "" if session.path in str(session.error) else f"{session.path}: "
        text = _printable(f"not counted: {place}{session.error}")
        sys.stderr.write(f"dsh-codec: {text}\n")
    return code
