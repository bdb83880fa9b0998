"""What a page to look at costs beside the deepest check of the same log."""

from __future__ import annotations

import sys
from statistics import median
from typing import TYPE_CHECKING

import dsh_codec as dsh
from compare import Contender, Line, run_child

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from compare import Clock, Comparison
    from data import Logs

LOG_BYTES = 50_000_000
MOST_PAGE_BYTES = 3_000_000
MOST_CHECKS = 4
COMMAND_LINE = "import sys; from dsh_codec.cli import main; sys.exit(main())"


def bench_report(compare: Comparison, logs: Logs) -> None:
    """In one process that has everything imported."""
    path = logs.prefix(LOG_BYTES)
    calls = f"<dt>Model calls</dt><dd>{len(list(dsh.calls(path))):,}</dd>"

    def check() -> str:
        return dsh.check(path, level="full").status

    def report() -> str:
        return dsh.html_report(path)

    page = report()
    assert len(page.encode()) < MOST_PAGE_BYTES
    contenders = [
        Contender("check at level full", check, "sound"),
        Contender("native", report, True, view=lambda text: calls in text),
    ]
    _add_line(compare, "report of 50 MB", contenders, "CPU", len(page.encode()))


def bench_report_command(
    compare: Comparison, logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a command, with the start of the interpreter and all imports."""
    # Modules are compiled when a package is installed, not when it is used.
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "compiled"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    path, out = str(logs.prefix(LOG_BYTES)), tmp_path / "report.html"

    def child(*arguments: str) -> str:
        return run_child([sys.executable, "-c", COMMAND_LINE, *arguments])

    def report() -> str:
        out.unlink(missing_ok=True)
        child("report", path, "-o", str(out))
        return out.read_text("utf-8")

    page_bytes = len(report().encode())
    assert page_bytes < MOST_PAGE_BYTES
    contenders = [
        Contender(
            "dsh-codec check --level full",
            lambda: child("check", "--level", "full", path),
            True,
            view=lambda text: ": sound, " in text,
        ),
        Contender("native", report, True, view=lambda text: text.endswith("</html>\n")),
    ]
    operation = "dsh-codec report of 50 MB"
    _add_line(compare, operation, contenders, "child CPU", page_bytes)


def _add_line(
    compare: Comparison,
    operation: str,
    contenders: list[Contender],
    clock: Clock,
    page_bytes: int,
) -> None:
    check, report = compare.measure(operation, contenders, clock=clock)
    pairs = zip(report.seconds, check.seconds, strict=True)
    value = median(mine / theirs for mine, theirs in pairs)
    detail = (
        f"{report.median * 1e3:.0f} ms beside {check.median * 1e3:.0f} ms; {clock}; "
        f"page {page_bytes / 1e3:,.0f} kB"
    )
    peer = contenders[0].name
    compare.line(Line(operation, peer, value, MOST_CHECKS, None, "x", "less", detail))
