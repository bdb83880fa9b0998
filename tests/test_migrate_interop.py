"""The real runtime resumes what our command migrated. Spec: 70 §3, §4; the issue, "Show"."""

from __future__ import annotations

from pathlib import Path

import pytest

import dsh_codec as dsh
from dsh_codec import cli
from real_runtime import RealRuntime
from small_logs import shared_folder

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CORPUS = shared_folder("DSH_CORPUS", "corpus", "real") / "migrated"
SCENARIOS = (
    "0.1.0rc6/tools",
    "0.1.2rc1/subagent",
    "0.1.2rc1/interrupted",
    "0.1.5rc1/tools",
    "0.1.5rc1/forked",
    "0.1.5rc1/killed-mid-tool",
)


def place(real: RealRuntime, scenario: Path) -> list[Path]:
    """Put the sources of a scenario in the home."""
    sources = sorted(scenario.glob("*/session.*.zstd"))
    return [
        real.place(source)
        for source in sources
        if not source.name.startswith("session.v4.")
    ]


@pytest.mark.parametrize("name", SCENARIOS)
def test_runtime_resumes_a_migrated_session(name: str, tmp_path: Path) -> None:
    """Old bytes stay, the runtime appends a turn, and the result passes `full`."""
    real = RealRuntime(tmp_path)
    sources = place(real, CORPUS / name)
    contents = [source.read_bytes() for source in sources]
    assert cli.main(["migrate", str(real.root), "--report", "json"]) == 0
    for source, content in zip(sources, contents, strict=True):
        assert source.read_bytes() == content
    session = next(
        found
        for found in dsh.find(real.root)
        if found.header is not None and "origin" not in found.header.fields
    )
    assert session.id is not None
    published = Path(session.path).read_bytes()
    real.answer("One more turn.", session.id)
    resumed = Path(session.path).read_bytes()
    assert len(resumed) > len(published)
    assert resumed.startswith(published)
    assert dsh.check(session.path, level="full", mode="strict").status == "sound"
    with dsh.open(session.path) as log:
        assert any("One more turn." in str(event.data) for event in log)
