"""Member order of the migrated rows: golden vectors compare values only. Spec: 50 §1."""

from __future__ import annotations

from typing import Any

import pytest

from test_vectors import RUN, SHARED, outcome_of, parse_line

Case = dict[str, Any]


def cases() -> list[Any]:
    found = []
    for name in ("migrate.jsonl", "migrate_mutations.jsonl"):
        path = SHARED / name
        if path.is_file():
            with path.open(encoding="utf-8") as lines:
                parsed = map(parse_line, lines)
                found += [case for case in parsed if "ok" in case["expect"]]
    return [pytest.param(case, id=case["id"]) for case in found]


def first_difference(left: Any, right: Any) -> str | None:
    """Return the place of the first object whose members are ordered otherwise."""
    pending = [("", left, right)]
    while pending:
        place, a, b = pending.pop()
        if isinstance(a, dict):
            if list(a) != list(b):
                return f"{place}: {list(a)} and not {list(b)}"
            pending += [(f"{place}.{name}", a[name], b[name]) for name in a]
        elif isinstance(a, list):
            pairs = zip(a, b, strict=True)
            pending += [(f"{place}[{i}]", x, y) for i, (x, y) in enumerate(pairs)]
    return None


@pytest.mark.parametrize("case", cases())
def test_member_order_is_that_of_the_reference(kernel: Any, case: Case) -> None:
    """Every accepted case; values are compared by `test_vectors`."""
    assert "migrate" in RUN
    answer, refusal = outcome_of(kernel, case)
    if refusal is not None:
        pytest.fail(f"refused ({refusal.kind})")
    wanted = case["expect"]["ok"]
    assert first_difference(answer["rows"], wanted["rows"]) is None
    assert first_difference(answer["header"], wanted["header"]) is None
