"""The real runtime for tests marked `interop`: where it is, what it sent. Spec: 70 §4.

`DSH_RUNTIME` names the executable `dsh` of release 0.2.1rc2; without it, one beside the
interpreter is used. `DSH_TOOLS` names the folder of the driver.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import dsh_codec as dsh
from dsh_codec.names import log_path
from small_logs import SHARED


@cache
def driver() -> Any:
    """Return the module that drives the runtime, or skip the test."""
    path = Path(os.environ.get("DSH_TOOLS", SHARED / "tools")) / "make_real_logs.py"
    if not path.is_file():
        pytest.skip(f"no {path} (set DSH_TOOLS)")
    spec = importlib.util.spec_from_file_location("make_real_logs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def executable() -> str:
    """Return the path of the runtime, or skip the test."""
    path = os.environ.get("DSH_RUNTIME") or str(Path(sys.executable).parent / "dsh")
    if not Path(path).is_file():
        pytest.skip(
            "the runtime is missing: install deepseek-harness-runtime-bin, or set DSH_RUNTIME"
        )
    return path


class RealRuntime:
    """One home of the runtime: its sessions, and the model requests that it sent."""

    def __init__(self, place: Path, **options: Any) -> None:
        """Prepare a home below `place`; options are those of the driver's `Runtime`."""
        self.driver = driver()
        options = {"timeout": 60.0, **options}
        self.runtime = self.driver.Runtime(executable(), place, "interop", **options)
        self.root = Path(self.runtime.home) / "sessions"

    def play(self, scenario: str) -> None:
        """Run a scenario of the driver, always with the same script."""
        chance = random.Random(1)  # noqa: S311 - seeded data
        self.driver.SCENARIOS[scenario](self.runtime, chance)
        if self.runtime.proc.stdout is not None:
            self.runtime.proc.stdout.close()  # the driver leaves this pipe open

    def answer(self, task: str, session_id: str) -> None:
        """Resume a session with one more turn that has to succeed."""
        words = self.driver.pieces(random.Random(7), 10)  # noqa: S311 - seeded data
        step = self.driver.stream(("text", words))
        ran = self.runtime.run(task, [step], session_id=session_id)
        assert ran["rc"] == 0, ran["stderr"]

    def requests(self) -> list[dict[str, Any]]:
        """Return the model requests sent so far: `wire`, `title`, `session`, `body`."""
        rows = Path(self.runtime.dir, "requests.jsonl").read_bytes().splitlines()
        return [json.loads(row) for row in rows]

    def logs(self) -> dict[str, Path]:
        """Return the current log of each session by its id."""
        return {found.id or "": Path(found.path) for found in dsh.find(self.root)}

    def place(self, source: Path) -> Path:
        """Put a Zstandard log at its place in the home, as if recorded in its directory.

        The runtime resumes a session only where it was recorded, so the header row is changed.
        """
        data = source.read_bytes()
        end = dsh.kernel.scan_frames(data, max_frames=1).frames[0][1]
        reader = dsh.kernel.FrameReader()
        reader.feed(data[:end])
        piece = reader.read()
        assert piece is not None
        header = dsh.parse(piece.data) | {"cwd": self.runtime.cwd}
        target = Path(
            log_path(
                self.root,
                cwd=self.runtime.cwd,
                id=header["id"],
                version=header["version"],
                compression="zstd",
            )
        )
        target.parent.mkdir(parents=True, mode=0o700)
        first = dsh.kernel.encode_frame(dsh.dump(header) + b"\n")
        target.write_bytes(first + data[end:])
        return target
