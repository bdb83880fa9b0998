"""Every code block of the README and the guide runs, and does what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec
from small_logs import DEMO, HERE

if TYPE_CHECKING:
    from pathlib import Path

ROOT = HERE.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[Any]:
    found = []
    for page in PAGES:
        for number, match in enumerate(BLOCK.finditer(page.read_text("utf-8"))):
            if match[1] == language:
                found.append(pytest.param(match[2], id=f"{page.name}-{number}"))
    return found


@pytest.fixture
def in_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the logs where the pages say they are."""
    for logs in (DEMO, DEMO.with_name("cookbook")):
        shutil.copytree(logs, tmp_path / "tests" / "data" / logs.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("code", blocks("python"))
@pytest.mark.usefixtures("in_demo")
def test_python_block_runs(code: str) -> None:
    exec(compile(code, "<block>", "exec"), {})  # noqa: S102 - our own pages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.usefixtures("in_demo")
def test_python_session_shows_what_happens(page: Path) -> None:
    """The blocks of a page are one session."""
    text = page.read_text("utf-8")
    code = "\n".join(match[2] for match in BLOCK.finditer(text) if match[1] == "pycon")
    test = doctest.DocTestParser().get_doctest(code, {}, page.name, None, None)
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("code", blocks("console"))
@pytest.mark.usefixtures("in_demo")
def test_command_line_shows_what_happens(
    code: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Blocks of `$ dsh-codec …` with the output below; `…` stands for anything."""
    from dsh_codec.cli import main

    for command, expected in re.findall(
        r"^\$ dsh-codec (.*)\n((?:(?!\$ ).*\n)*)", code, re.M
    ):
        capfdbinary.readouterr()
        main(command.split())
        out = capfdbinary.readouterr().out.decode()
        pattern = re.escape(expected).replace(re.escape("…"), ".*")
        assert re.fullmatch(pattern, out, re.DOTALL), out


MODULES = [
    name
    for _, name, _ in pkgutil.iter_modules(dsh_codec.__path__, "dsh_codec.")
    if not name.endswith("._native")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("target", ["demo", "test"])
def test_readme_names_the_two_commands(target: str) -> None:
    readme = PAGES[0].read_text("utf-8")
    assert f"make {target}" in readme
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    subprocess.run(  # noqa: S603 - our own Makefile, which only prints here
        [make, "--dry-run", target], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
