"""Fixtures of all tests."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="session", params=["native", "pure"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    """Each of the two kernels; one that is missing fails its tests and skips none."""
    return importlib.import_module(f"dsh_codec._{request.param}")
