"""Our published bytes against the real harness's, and logs that only migration may refuse.

Spec: 70 §1, §3; the issue, "Show".
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dsh_codec as dsh
from dsh_codec.migrate import migrate, upgrade
from dsh_codec.migrate.collect import identify_file
from dsh_codec.names import log_path
from small_logs import SHARED, shared_folder

CORPUS = shared_folder("DSH_CORPUS", "corpus", "real")
CASES = shared_folder("DSH_CASES", "cases")
SCENARIOS = sorted(path.parent for path in CORPUS.glob("migrated/*/*/index.json"))


def folder_of(root: Path, log: Path) -> Path:
    """Return the place in a root that the log's header asks for."""
    with dsh.open(log) as opened:
        fields = opened.header.fields
        return Path(
            log_path(
                root,
                cwd=fields.get("cwd"),
                id=fields["id"],
                version=opened.generation,
                compression=opened.compression,
            )
        ).parent


@pytest.mark.parametrize(
    "scenario", SCENARIOS, ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_published_bytes_are_those_of_the_harness(
    scenario: Path, tmp_path: Path
) -> None:
    """Every pair, a parent with the evidence of the children beside it; the source stays."""
    pairs = []
    for wanted in sorted(scenario.glob("*/migrated-only/session.v4.*")):
        sources = [
            path
            for path in wanted.parent.parent.iterdir()
            if path.is_file() and not path.name.startswith("session.v4.")
        ]
        [source] = sources
        folder = folder_of(tmp_path, source)
        folder.mkdir(parents=True)
        copy = shutil.copy2(source, folder)
        pairs.append((Path(copy), wanted))
    assert pairs
    for source, wanted in pairs:
        before, content = identify_file(source), source.read_bytes()
        done = migrate(source, children=tmp_path)
        target = Path(done.target)
        assert target.name == wanted.name
        assert target.read_bytes() == wanted.read_bytes()
        assert done.is_new
        assert (identify_file(source), source.read_bytes()) == (before, content)
        assert {path.name for path in source.parent.iterdir()} == {
            source.name,
            target.name,
            "session.lock",
        }
        assert target.stat().st_mode & 0o777 == 0o600
        assert dsh.check(target, level="full", mode="strict").status == "sound"


def cases() -> list[Any]:
    found = []
    for folder in sorted(CASES.iterdir()):
        if folder.is_dir() and 56 <= int(folder.name[:2]) <= 66:
            case = json.loads((folder / "case.json").read_text("utf-8"))
            found.append(pytest.param(folder, case, id=folder.name))
    return found


@pytest.mark.parametrize(("folder", "case"), cases())
def test_reading_does_not_depend_on_migration(
    folder: Path, case: dict[str, Any]
) -> None:
    """Cases 56 to 66: every log reads to its end; only the migration may refuse it."""
    del case
    [log] = [path for path in folder.iterdir() if path.name.startswith("session.")]
    with dsh.open(log) as opened:
        events = list(opened)
        assert len(events) == len(opened)
        list(opened.attempts())
    error = refusal_of(log)
    if error is not None:
        assert error.rule is not None
        assert error.path == str(log)


def refusal_of(log: Path) -> dsh.MigrationRefusedError | None:
    try:
        migrate(log, children=(), dry_run=True)
    except dsh.MigrationRefusedError as error:
        return error
    return None


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same content as chunk rows, as packed rows, and as generation 4."""
    tool = Path(os.environ.get("DSH_TOOLS", SHARED / "tools")) / "gen_log.py"
    if not tool.is_file():
        pytest.skip(f"no {tool} (set DSH_TOOLS)")
    folder = tmp_path_factory.mktemp("generated")
    shape = ["--turns", "4", "--steps", "4", "--tokens", "60", "--surrogates", "0.3"]
    logs = {}
    for form in ("v0", "v0-packed", "v4"):
        logs[form] = folder / f"{form}.jsonl"
        command = [
            sys.executable,
            str(tool),
            "--out",
            str(logs[form]),
            "--format",
            form,
        ]
        subprocess.run(  # noqa: S603 - our own tool
            [*command, *shape, "--seed", "3"], check=True, capture_output=True
        )
    return logs


def test_generated_forms_migrate_to_the_same_log(generated: dict[str, Path]) -> None:
    """50 §5.5: packed and plain rows give equal events; the streams are those of generation 4."""
    events = {}
    for form, path in generated.items():
        with dsh.open(path) as log:
            events[form] = list(upgrade(log, children=()))
        if form != "v4":
            assert migrate(path, children=(), dry_run=True).event_count == len(
                events[form]
            )
    assert events["v0"] == events["v0-packed"]
    streams = {
        form: [event["data"]["stream"] for event in found if "stream" in event["data"]]
        for form, found in events.items()
    }
    assert streams["v0"] == streams["v4"]
