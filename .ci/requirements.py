"""Print the packages that extras of pyproject.toml ask for, one a line."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def requirements(project: dict[str, Any], extras: list[str]) -> list[str]:
    """Return what the project and its extras need, references to itself resolved."""
    found = list(project["dependencies"])
    pending = list(extras)
    while pending:
        for item in project["optional-dependencies"][pending.pop()]:
            own = re.fullmatch(re.escape(project["name"]) + r"\[(.*)\]", item)
            if own is None:
                found.append(item)
            else:
                pending += own[1].split(",")
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sys.stdout.write("\n".join(requirements(metadata, sys.argv[1:])) + "\n")
