"""The command line run in this process, for tests that use it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from dsh_codec import cli

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Ran(NamedTuple):
    """What a command did."""

    code: int
    lines: list[str]
    errors: str

    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


def runner(capture: pytest.CaptureFixture[bytes]) -> Callable[..., Ran]:
    """Return a function that runs a command."""

    def call(*arguments: object) -> Ran:
        capture.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        sys.stdout.flush()
        out, err = capture.readouterr()
        return Ran(code, out.decode().splitlines(), err.decode())

    return call
