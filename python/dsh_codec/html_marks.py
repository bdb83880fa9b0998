"""HTML that cannot be broken out of: whatever is not `Markup` is escaped. Pages and tables."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Markup", "clip", "join", "page", "table", "tag", "tiles"]

MAX_TEXT_CHARS: Final = 2000
"""Characters of one text of a log: the size of a page is bounded, that of an id is not."""

_CONTROLS: Final = {
    code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))
}
# These turn the direction of everything behind them, also of what is not theirs.
_CONTROLS.update(
    (code, f"\\u{code:04x}")
    for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
)
_VOID: Final = frozenset(("meta", "path", "rect", "line", "circle"))


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def join(parts: Iterable[object]) -> Markup:
    """Return parts one behind the other; what is no markup is escaped."""
    return Markup("".join([_inner(part) for part in parts]))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element.

    Args:
        name: Its name.
        *children: What is in it; None is left out, what is no markup is escaped.
        **attributes: Its attributes: `class_` is `class`, `_` is `-`; None is left out, what is no
            markup is escaped.
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{told}>" if name == "meta" else f"<{name}{told}/>")
    return Markup(f"<{name}{told}>{join(children)}</{name}>")


def clip(text: object, count: int = 60) -> str:
    """Return a text of at most so many characters, `…` in the middle of longer ones."""
    whole = str(text)
    if len(whole) <= count:
        return whole
    end = count // 3
    return f"{whole[: count - end - 1]}…{whole[-end:]}"


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    caption: str | None = None,
    most: int = 200,
) -> Markup:
    """Return a table in a box that scrolls.

    Args:
        titles: Names of the columns; those behind the first hold figures if they begin with `#`.
        rows: Cells.
        caption: What the table shows.
        most: Rows that are shown; the number of the others is told.
    """
    classes = ["figure" if title.startswith("#") else None for title in titles]
    head = [
        tag("th", title.lstrip("#"), scope="col", class_=kind)
        for title, kind in zip(titles, classes, strict=True)
    ]
    starts = ['<td class="figure">' if kind else "<td>" for kind in classes]
    lines: list[Markup] = []
    left = 0
    for cells in rows:
        if len(lines) == most:
            left += 1
            continue
        parts = [
            f"{start}{_inner('-' if cell is None else cell)}</td>"
            for cell, start in zip(cells, starts, strict=True)
        ]
        lines.append(Markup(f"<tr>{''.join(parts)}</tr>"))
    return tag(
        "div",
        tag(
            "table",
            None if caption is None else tag("caption", caption),
            tag("thead", tag("tr", *head)),
            tag("tbody", *lines),
        ),
        tag("p", f"… and {left:,} more.", class_="note") if left else None,
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption or "table",
    )


def tiles(pairs: Iterable[tuple[str, object]]) -> Markup:
    """Return figures with their names, side by side."""
    return tag(
        "dl",
        *[tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs],
        class_="tiles",
    )


def page(title: str, *parts: object) -> str:
    """Return a whole page that loads nothing, runs nothing and sends nothing."""
    style = b64encode(sha256(_STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; "
        "form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", clip(title, 120)),
        tag("style", Markup(_STYLE)),
    )
    body = tag("body", tag("main", *parts))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _inner(part: object) -> str:
    if part is None:
        return ""
    return part if isinstance(part, Markup) else _escaped(part)


def _attribute(value: Any) -> str:
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return _escaped(value)


def _escaped(value: object) -> str:
    text = clip(value, MAX_TEXT_CHARS)
    if text.isascii() and text.isprintable():
        return escape(text)
    text = text.translate(_CONTROLS)
    # Lone surrogates have no UTF-8.
    return escape(text.encode("utf-8", "backslashreplace").decode())


_STYLE: Final = """
:root{--page:#fbfbfa;--card:#fff;--ink:#1d1f23;--soft:#565b64;--line:#d9dbe0;--grid:#e7e8ec;
--a:#2563b8;--b:#b4560b;--c:#0c7a6b;--d:#7a45c2;--e:#459387;--wait:#6893d1;--bad:#c62828;--focus:#0b57d0}
@media (prefers-color-scheme:dark){:root{--page:#14161a;--card:#1c1f25;--ink:#e8eaed;--soft:#a9b0bb;
--line:#383d47;--grid:#2a2e36;--a:#6ea8f5;--b:#eba052;--c:#45c4b0;--d:#b898f2;--e:#2b8274;--wait:#4a75b5;
--bad:#ff7b74;--focus:#8ab8ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
main{max-width:70rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .25rem;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2.25rem 0 .5rem}
h3{font-size:.95rem;margin:0 0 .25rem}
.lead{color:var(--soft);margin:0 0 1rem;overflow-wrap:anywhere}
.note{color:var(--soft);font-size:.85rem;margin:.25rem 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.6rem;margin:1rem 0}
.tiles div,figure,.card{background:var(--card);border:1px solid var(--line);border-radius:.5rem}
.tiles div{padding:.5rem .75rem}
dt{color:var(--soft);font-size:.8rem}
dd{margin:0;font-size:1.15rem;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
figure{margin:0 0 1rem;padding:.75rem 1rem}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(28rem,100%),1fr));gap:0 1rem}
.many{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:.6rem}
.many figure{margin:0;padding:.5rem .6rem}
.many h3{font-weight:600;font-size:.82rem}
.scroll{overflow-x:auto}
svg{display:block;width:100%;height:auto}
.wide svg{min-width:40rem}
.pair svg{min-width:22rem}
svg text{font-size:11px;fill:var(--soft)}
svg .name{fill:var(--ink)}
.end{text-anchor:end}.mid{text-anchor:middle}
.grid{stroke:var(--grid);stroke-width:1;fill:none}
.axis{stroke:var(--line);stroke-width:1;fill:none}
.cut{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 3;fill:none}
.a{fill:var(--a)}.b{fill:var(--b)}.c{fill:var(--c)}.d{fill:var(--d)}.e{fill:var(--e)}.wait{fill:var(--wait)}
.bad{fill:var(--bad)}.soft{fill:var(--soft)}
.dots{fill:none;stroke:var(--a);stroke-width:3.4;stroke-linecap:round;stroke-opacity:.75}
.few{stroke-width:7;stroke-opacity:1}
.mark{stroke:var(--ink);stroke-width:1;stroke-dasharray:4 3;fill:none}
.legend{display:flex;flex-wrap:wrap;gap:.15rem 1rem;font-size:.82rem;color:var(--soft);margin:.2rem 0 .4rem;
padding:0;list-style:none}
.legend svg{display:inline-block;width:.75rem;height:.75rem;margin-right:.35rem;vertical-align:-.05rem;min-width:0}
table{border-collapse:collapse;width:100%;font-size:.85rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);padding:.25rem 0}
th,td{text-align:left;padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td{overflow-wrap:anywhere}
td:first-child{min-width:5rem}
th{color:var(--soft);font-weight:600;white-space:nowrap}
.figure{text-align:right;white-space:nowrap}
details{margin:.4rem 0 0}
summary{cursor:pointer;color:var(--soft);font-size:.85rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--page);padding:.5rem;border-radius:.35rem;font-size:.85rem}
:focus-visible{outline:2px solid var(--focus);outline-offset:2px}
@media print{details>*{display:block}.scroll{overflow:visible}}
"""
