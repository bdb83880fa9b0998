"""The examples in the docstrings of the live modules run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import dsh_codec.live

MODULES = [
    name
    for _, name, _ in pkgutil.iter_modules(dsh_codec.live.__path__, "dsh_codec.live.")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
