"""The real runtime resumes what our command migrated. Spec: 70 §3, §4; the issue, "Show".

`DSH_RUNTIME` names the executable `dsh`; without it, one beside the interpreter is used.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec import cli
from dsh_codec.names import log_path
from small_logs import SHARED, shared_folder

if TYPE_CHECKING:
    from types import ModuleType

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


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """The module that drives the runtime."""
    path = Path(os.environ.get("DSH_TOOLS", SHARED / "tools")) / "make_real_logs.py"
    if not path.is_file():
        pytest.skip(f"no {path} (set DSH_TOOLS)")
    spec = importlib.util.spec_from_file_location("make_real_logs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def executable() -> str:
    path = os.environ.get("DSH_RUNTIME") or str(Path(sys.executable).parent / "dsh")
    if not Path(path).is_file():
        pytest.skip(
            "the runtime is missing: install deepseek-harness-runtime-bin, or set DSH_RUNTIME"
        )
    return path


def place(root: Path, scenario: Path, cwd: str) -> list[Path]:
    """Copy the sources of a scenario to their places in a root, as if recorded in `cwd`.

    The runtime resumes a session only where it was recorded, so the header row is changed.
    """
    placed = []
    for source in sorted(scenario.glob("*/session.*.zstd")):
        if source.name.startswith("session.v4."):
            continue
        data = source.read_bytes()
        end = dsh.kernel.scan_frames(data, max_frames=1).frames[0][1]
        reader = dsh.kernel.FrameReader()
        reader.feed(data[:end])
        piece = reader.read()
        assert piece is not None
        header = dsh.parse(piece.data) | {"cwd": cwd}
        target = Path(
            log_path(
                root,
                cwd=cwd,
                id=header["id"],
                version=header["version"],
                compression="zstd",
            )
        )
        target.parent.mkdir(parents=True, mode=0o700)
        target.write_bytes(
            dsh.kernel.encode_frame(dsh.dump(header) + b"\n") + data[end:]
        )
        placed.append(target)
    return placed


@pytest.mark.parametrize("name", SCENARIOS)
def test_runtime_resumes_a_migrated_session(
    name: str, tool: Any, executable: str, tmp_path: Path
) -> None:
    """Old bytes stay, the runtime appends a turn, and the result passes `full`."""
    runtime = tool.Runtime(executable, tmp_path, "interop", timeout=60.0)
    root = Path(runtime.home) / "sessions"
    sources = place(root, CORPUS / name, runtime.cwd)
    contents = [source.read_bytes() for source in sources]
    assert cli.main(["migrate", str(root), "--report", "json"]) == 0
    for source, content in zip(sources, contents, strict=True):
        assert source.read_bytes() == content
    session = next(
        found
        for found in dsh.find(root)
        if found.header is not None and "origin" not in found.header.fields
    )
    published = Path(session.path).read_bytes()
    chance = random.Random(7)  # noqa: S311 - seeded data
    answer = tool.stream(("text", tool.pieces(chance, 10)))
    ran = runtime.run("One more turn.", [answer], session_id=session.id)
    assert ran["rc"] == 0, ran["stderr"]
    resumed = Path(session.path).read_bytes()
    assert len(resumed) > len(published)
    assert resumed.startswith(published)
    assert dsh.check(session.path, level="full", mode="strict").status == "sound"
    with dsh.open(session.path) as log:
        assert any("One more turn." in str(event.data) for event in log)
