"""The page of a root: its sessions, what they used and when, how fast answers came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsh_codec.calls import calls
from dsh_codec.html_charts import columns, figure, legend, short
from dsh_codec.html_figures import (
    TOKEN_KEYS,
    TOKEN_PARTS,
    TOKEN_TITLES,
    Figures,
    Tokens,
)
from dsh_codec.html_marks import Markup, clip, page, table, tag, tiles
from dsh_codec.report import size_text, time_text
from dsh_codec.usage import usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import tzinfo

    from dsh_codec.calls import Call
    from dsh_codec.find import Session

__all__ = ["root_page"]

MOST_SESSIONS: Final = 500
MOST_COLUMNS: Final = 92
MOST_ERRORS: Final = 100


class _Entry:
    """A session and what it used."""

    def __init__(self, session: Session, found: Sequence[Call]) -> None:
        self.session = session
        self.tokens = Tokens()
        self.tokens.add(found)


def root_page(
    root: str,
    sessions: Sequence[Session],
    *,
    tz: tzinfo | str,
    progress: Callable[[int, int], object] | None = None,
    on_error: Callable[[Session], object] | None = None,
) -> str:
    """Return the page of a root, see `html_report`.

    Raises:
        OSError: A file is not there any more.
    """
    figures = Figures()
    entries = []
    errors = [session for session in sessions if session.error is not None]
    sound = [session for session in sessions if session.error is None]
    days = _days(sound, tz)
    for number, session in enumerate(sound, 1):
        readings = calls(session, tools=False)
        own = [call for call in readings if call.own]
        errors += readings.errors
        if progress is not None:
            progress(number, len(sound))
        if readings.errors:
            continue
        entries.append(_Entry(session, own))
        figures.add(own)
    if on_error is not None:
        for session in errors:
            on_error(session)
    size = sum(entry.session.file_bytes or 0 for entry in entries)
    projects = {_project(entry.session) for entry in entries}
    failed = f" ({len(errors):,} unreadable)" if errors else ""
    return page(
        f"Sessions under {root}",
        tag("h1", "Sessions"),
        tag("p", tag("bdi", clip(root, 300)), class_="lead"),
        tiles(
            [
                ("Sessions", f"{len(sessions):,}{failed}"),
                ("Projects", f"{len(projects):,}"),
                *figures.tiles(),
                ("Stored", size_text(size)),
            ]
        ),
        days,
        figures.models(),
        figures.speed(),
        _session_table(entries),
        _error_table(errors),
    )


def _days(sessions: Sequence[Session], tz: tzinfo | str) -> Markup:
    found = usage(sessions, by="day", tz=tz)
    groups: dict[str, list[list[int]]] = {}
    unit = "day" if len(found) <= MOST_COLUMNS else "month"
    for row in found:
        name = row.key[0] or "unknown"
        sums = [getattr(row.totals, part) or 0 for _, part in TOKEN_PARTS]
        key = name if unit == "day" else name[:7]
        groups.setdefault(key, []).append([row.totals.calls, *sums])
    rows = {
        name: list(map(sum, zip(*parts, strict=True))) for name, parts in groups.items()
    }
    names = list(rows)[-MOST_COLUMNS:]
    kinds = [kind for kind, _ in TOKEN_PARTS]
    stacks = [list(zip(kinds, rows[name][1:], strict=True)) for name in names]
    title = f"Tokens by {unit}"
    data = table(
        [unit, "#calls", *(f"#{meaning}" for _, meaning in TOKEN_KEYS)],
        ([name, *(f"{value:,}" for value in values)] for name, values in rows.items()),
        caption=f"{title}; sums over the calls that tell",
        most=MOST_SESSIONS,
    )
    note = f"Days in the time zone {tz}." if isinstance(tz, str) else None
    drawing = columns(title, names, stacks, short)
    chart = figure(title, drawing, data, keys=legend(*TOKEN_KEYS), note=note)
    return tag("section", tag("h2", "Usage"), chart)


def _session_table(entries: Sequence[_Entry]) -> Markup:
    ordered = sorted(
        entries, key=lambda entry: (-entry.tokens.total, entry.session.path)
    )
    titles = ["session", "created", "project", "kind", "#gen", "#size", *TOKEN_TITLES]

    def cells(entry: _Entry) -> list[object]:
        session = entry.session
        header = session.header
        created = None if header is None else header.fields.get("createdAt")
        return [
            tag("bdi", clip(session.id or "-", 48), title=clip(session.path, 300)),
            None if created is None else time_text(int(created)),
            tag("bdi", clip(_project(session), 48)),
            session.lineage,
            session.generation,
            size_text(session.file_bytes or 0),
            *entry.tokens.cells(),
        ]

    note = "The largest first; ? says that some calls do not tell their tokens."
    rows = map(cells, ordered[:MOST_SESSIONS])
    data = table(titles, rows, caption=note, count=len(ordered))
    return tag("section", tag("h2", "Sessions"), data)


def _error_table(errors: Sequence[Session]) -> Markup | None:
    if not errors:
        return None
    rows = (
        [tag("bdi", clip(session.path, 200)), session.status, clip(session.error, 300)]
        for session in errors
    )
    data = table(
        ["path", "status", "why"], rows, caption="Not counted above", most=MOST_ERRORS
    )
    return tag("section", tag("h2", "Not readable"), data)


def _project(session: Session) -> str:
    header = session.header
    return "unknown" if header is None else str(header.fields.get("cwd") or "none")
