"""Choice of the kernel, and that both satisfy the one interface. Design §2."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dsh_codec as dsh

if TYPE_CHECKING:
    from types import ModuleType

PACKAGE = Path(dsh.__file__).parent
STUB = ast.parse((PACKAGE / "_kernel.pyi").read_text("utf-8"))
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


@pytest.fixture(params=["_native", "_pure"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"dsh_codec.{request.param}")


def signature_of(node: ast.FunctionDef) -> str:
    """Return the parameters of a stub's function: names, kinds, defaults."""
    arguments = node.args
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        argument.annotation = None
    return f"({ast.unparse(arguments)})"


def signature(function: object) -> str:
    """Return the parameters of a function, in the stub's form."""
    text = str(inspect.signature(function, eval_str=False))  # type: ignore[arg-type]
    parsed = ast.parse(f"def f{text}: ...").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    return signature_of(parsed).replace("$", "")


def public(module: ModuleType) -> set[str]:
    names = getattr(module, "__all__", None)
    return set(names) if names is not None else {n for n in dir(module) if n[0] != "_"}


def test_names_equal_the_stub(module: ModuleType) -> None:
    assert public(module) == {*FUNCTIONS, *CLASSES}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_equals_the_stub(module: ModuleType, name: str) -> None:
    assert signature(getattr(module, name)) == signature_of(FUNCTIONS[name])


@pytest.mark.parametrize("name", CLASSES)
def test_class_equals_the_stub(module: ModuleType, name: str) -> None:
    found = getattr(module, name)
    members = {
        node.name: node
        for node in CLASSES[name].body
        if isinstance(node, ast.FunctionDef)
    }
    assert {n for n in dir(found) if n[0] != "_"} == {n for n in members if n[0] != "_"}
    for member, node in members.items():
        if node.decorator_list:
            assert not callable(inspect.getattr_static(found, member)), member
        elif member == "__init__":
            node.args.args = [a for a in node.args.args if a.arg != "self"]
            assert signature(found) == signature_of(node)
        else:
            expected = re.sub(r"^\(self(, /)?", "(self", signature_of(node))
            actual = re.sub(
                r"^\(self(, /)?", "(self", signature(getattr(found, member))
            )
            assert actual == expected, member


def test_native_stub_restates_the_interface() -> None:
    """Conventions §1: one description, which both kernels satisfy."""
    stub = ast.parse((PACKAGE / "_native.pyi").read_text("utf-8"))
    (restated,) = (node for node in stub.body if isinstance(node, ast.ImportFrom))
    assert restated.module == "dsh_codec._kernel"
    assert {name.asname for name in restated.names} == {*FUNCTIONS, *CLASSES}


def test_kernel_is_the_module_in_use() -> None:
    assert dsh.backend in ("native", "pure")
    assert dsh.kernel.__name__ == f"dsh_codec._{dsh.backend}"
    assert dsh.pack is dsh.kernel.pack


def imported(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)} | variables
    if "DSH_CODEC_BACKEND" not in variables:
        environment.pop("DSH_CODEC_BACKEND", None)
    return subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env=environment,
    )


@pytest.mark.slow
@pytest.mark.parametrize("wish", ["native", "pure"])
def test_variable_forces_a_kernel(wish: str) -> None:
    done = imported(
        "import dsh_codec; print(dsh_codec.backend)", DSH_CODEC_BACKEND=wish
    )
    assert done.stdout == f"{wish}\n", done.stderr


@pytest.mark.slow
def test_unknown_kernel_is_refused() -> None:
    done = imported("import dsh_codec", DSH_CODEC_BACKEND="fast")
    assert done.returncode == 1
    assert "DSH_CODEC_BACKEND" in done.stderr


@pytest.mark.slow
def test_missing_native_module_gives_way_to_the_pure_one() -> None:
    hide = "import sys; sys.modules['dsh_codec._native'] = None\n"
    done = imported(hide + "import dsh_codec; print(dsh_codec.backend)")
    assert done.stdout == "pure\n", done.stderr
    forced = imported(hide + "import dsh_codec", DSH_CODEC_BACKEND="native")
    assert forced.returncode == 1


@pytest.mark.slow
def test_broken_native_module_is_reported() -> None:
    """Design §2: anything but ImportError is not hidden."""
    code = (
        "import importlib, sys\n"
        "real = importlib.import_module\n"
        "def broken(name, package=None):\n"
        "    if name == 'dsh_codec._native':\n"
        "        raise RuntimeError('broken')\n"
        "    return real(name, package)\n"
        "importlib.import_module = broken\n"
        "import dsh_codec\n"
    )
    done = imported(code)
    assert done.returncode == 1
    assert "RuntimeError: broken" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("wish", ["native", "pure"])
def test_import_is_light(wish: str) -> None:
    """Heavy packages are imported on first use."""
    heavy = "{'numpy', 'click', 'rich', 'asyncio', 'pydantic'}"
    code = f"import dsh_codec, sys; print(sorted({heavy} & set(sys.modules)))"
    done = imported(code, DSH_CODEC_BACKEND=wish)
    assert done.stdout == "[]\n", done.stderr


def test_version_is_the_same_everywhere() -> None:
    root = PACKAGE.parent.parent
    if not (root / "Cargo.toml").is_file():
        pytest.skip("no Cargo.toml: this is not a source tree")
    project = tomllib.loads((root / "pyproject.toml").read_text())
    cargo = tomllib.loads((root / "Cargo.toml").read_text())
    assert project["project"]["version"] == dsh.__version__
    assert cargo["workspace"]["package"]["version"] == dsh.__version__
