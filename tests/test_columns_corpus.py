"""Columns of logs that the released runtimes wrote, all generations. Spec: 20 §4."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dsh_codec as dsh
from small_logs import DEMO, shared_folder
from test_columns import check_log

CORPUS = shared_folder("DSH_CORPUS", "corpus", "real")
LOGS: list[dict[str, Any]] = json.loads((CORPUS / "index.json").read_text("utf-8"))[
    "logs"
]


@pytest.mark.parametrize("path", [entry["path"] for entry in LOGS])
def test_columns_equal_expansion_on_every_log(path: str) -> None:
    with dsh.open(CORPUS / path) as log:
        check_log(log)


@pytest.mark.parametrize("folder", sorted(DEMO.iterdir()), ids=lambda path: path.name)
def test_columns_equal_expansion_on_the_demo(folder: Any) -> None:
    with dsh.open(folder) as log:
        assert check_log(log) > 0
