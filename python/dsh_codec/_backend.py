"""Chooses the kernel, once, at import: the native one if it is there, else the pure one."""

from __future__ import annotations

import importlib
import os

TYPE_CHECKING = False  # `typing` takes longer to import than the native kernel.
if TYPE_CHECKING:
    from typing import Any, Literal, TypeAlias

    from dsh_codec import _kernel as kernel

    Backend: TypeAlias = Literal["native", "pure"]
__all__ = ["backend", "kernel"]

VARIABLE = "DSH_CODEC_BACKEND"
"""Environment variable that forces a kernel: `native` or `pure`."""


def _choose(wish: str | None) -> tuple[Backend, Any]:
    """Import the kernel that is wished for, or the best one that is there.

    Only a native module that is missing gives way to the pure one: one that is there and
    fails in any other way is broken, and its error goes to the caller.
    """
    if wish not in (None, "", "native", "pure"):
        message = f"{VARIABLE} is {wish!r}; it has to be 'native' or 'pure'"
        raise ValueError(message)
    if wish != "pure":
        try:
            return "native", importlib.import_module("dsh_codec._native")
        except ImportError:
            if wish == "native":
                raise
    try:
        return "pure", importlib.import_module("dsh_codec._pure")
    except ImportError as error:
        message = (
            f"the pure kernel cannot be imported: {error}; "
            "install its packages with: pip install 'dsh-codec[pure]'"
        )
        raise ImportError(message, name=error.name) from error


backend: Backend
backend, _module = _choose(os.environ.get(VARIABLE))
if not TYPE_CHECKING:
    kernel = _module
