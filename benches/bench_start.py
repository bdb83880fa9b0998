"""What a start costs: import and command line above the bare interpreter."""

from __future__ import annotations

import sys
from statistics import median
from typing import TYPE_CHECKING

import pytest

from compare import Contender, Line, run_child
from data import v4_log

if TYPE_CHECKING:
    from pathlib import Path

    from compare import Comparison

TIMES = 3
COMMAND_LINE = "import sys; from dsh_codec.cli import main; code = main()"
HEAVY = (
    "; print('loaded:', [n for n in ('numpy', 'rich', 'click') if n in sys.modules])"
)
FIRST_CALL = "import sys, dsh_codec; print(dsh_codec.check(sys.argv[-1]).status)"
STARTS = {
    "import dsh_codec": ("import sys, dsh_codec", "", 20, 10),
    "import dsh_codec, check of a 16 kB log": (FIRST_CALL, "sound", None, None),
    "dsh-codec check of a 16 kB log": (COMMAND_LINE, ": sound", 100, 70),
}


@pytest.mark.parametrize("operation", STARTS)
def bench_start(
    compare: Comparison,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
) -> None:
    # Modules are compiled when a package is installed, not when it is used.
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "compiled"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    code, answer, floor, aim = STARTS[operation]
    log = tmp_path / "log.jsonl"
    log.write_bytes(v4_log(4, 230))
    assert 15_000 < log.stat().st_size < 17_000
    arguments = ["check", str(log)] if answer else []

    def child(code: str) -> str:
        return run_child([sys.executable, "-c", code, *arguments])

    loaded = child(code + HEAVY).strip().splitlines()[-1]  # And compiles them.
    bare, started = compare.measure(
        operation,
        [
            Contender("bare interpreter", lambda: child("pass"), ""),
            Contender("native", lambda: child(code), True, view=lambda n: answer in n),
        ],
        clock="child CPU",
        times=TIMES,
    )
    pairs = zip(started.seconds, bare.seconds, strict=True)
    added = median(mine - theirs for mine, theirs in pairs) * 1e3
    detail = f"bare {bare.median * 1e3:.0f} ms; child CPU; {loaded}"
    compare.line(
        Line(
            operation, "bare interpreter", added, floor, aim, "ms more", "less", detail
        )
    )
