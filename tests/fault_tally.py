"""Counts of the faults that were tried and survived; with `-p fault_tally` a plugin of pytest.

`DSH_FAULTS_REPORT` names a Markdown file: the counts replace what stands between its marks.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh_codec import backend

if TYPE_CHECKING:
    from collections.abc import Iterator

TRIED: Counter[str] = Counter()
SURVIVED: Counter[str] = Counter()

BEGIN, END = "<!-- counts -->", "<!-- end of counts -->"


@contextmanager
def fault(name: str, count: int = 1) -> Iterator[None]:
    """Count faults as tried, and as survived if the block ends without an error."""
    TRIED[name] += count
    yield
    SURVIVED[name] += count


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the counts, keep them for the other kernel's run, and put them into the report."""
    report = os.environ.get("DSH_FAULTS_REPORT")
    store = Path(os.environ.get("DSH_FAULTS_STORE", "build/faults.json"))
    counts: dict[str, dict[str, list[int]]] = {}
    if store.exists():
        counts = json.loads(store.read_text("utf-8"))
    counts[backend] = {
        name: [TRIED[name], SURVIVED[name]] for name in sorted(TRIED) if TRIED[name]
    }
    table = "\n".join(rows_of(counts))
    terminalreporter.write_line(f"\n{table}\n")
    if report is not None:
        store.parent.mkdir(exist_ok=True)
        store.write_text(json.dumps(counts), "utf-8")
        page = Path(report)
        text = page.read_text("utf-8")
        head, _, rest = text.partition(BEGIN)
        tail = rest.partition(END)[2]
        page.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}", "utf-8")


def rows_of(counts: dict[str, dict[str, list[int]]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: a fault a row, a kernel a column."""
    kernels = sorted(counts)
    yield (
        "| Fault | "
        + " | ".join(f"{kernel}: tried, survived" for kernel in kernels)
        + " |"
    )
    yield "| --- |" + " --- |" * len(kernels)
    names = sorted({name for kernel in kernels for name in counts[kernel]})
    for name in names:
        cells = [
            "{:,}, {:,}".format(*counts[kernel].get(name, [0, 0])) for kernel in kernels
        ]
        yield f"| {name} | " + " | ".join(cells) + " |"
    sums = [
        [sum(pair[place] for pair in counts[kernel].values()) for place in (0, 1)]
        for kernel in kernels
    ]
    yield "| all | " + " | ".join("{:,}, {:,}".format(*pair) for pair in sums) + " |"
