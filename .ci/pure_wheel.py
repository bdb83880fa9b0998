"""Build the pure wheel from the same sources and metadata as the native one.

The sources are staged without native parts, with a pyproject.toml that differs from the
project's in the build backend and in what the pure kernel needs. An installer prefers the
native wheel where one fits.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / "build" / "pure"


def toml_lines(table: dict[str, Any], name: str) -> list[str]:
    """Write a table of strings, lists of strings and tables as TOML."""
    lines = [f"[{name}]"]
    inner = []
    for key, value in table.items():
        if isinstance(value, dict):
            inner += toml_lines(value, f"{name}.{key}")
        else:
            # JSON strings and lists of them are TOML.
            lines.append(f"{key} = {json.dumps(value)}")
    return lines + inner


def main(out: Path) -> None:
    """Stage the sources and build the wheel into `out`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    project["dependencies"] += project["optional-dependencies"]["pure"]
    shutil.rmtree(STAGE, ignore_errors=True)
    ignored = shutil.ignore_patterns("_native*", "__pycache__", "*.so", "*.pyd")
    shutil.copytree(ROOT / "python" / "dsh_codec", STAGE / "dsh_codec", ignore=ignored)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, STAGE / name)
    lines = ["[build-system]", 'requires = ["hatchling>=1.27"]']
    lines += ['build-backend = "hatchling.build"', *toml_lines(project, "project")]
    lines += ["[tool.hatch.build.targets.wheel]", 'packages = ["dsh_codec"]', ""]
    (STAGE / "pyproject.toml").write_text("\n".join(lines))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    subprocess.run([*command, "--outdir", out, STAGE], check=True)  # noqa: S603 - our own


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
