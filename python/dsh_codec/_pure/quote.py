"""Input values in messages: short, and never a whole document."""

from __future__ import annotations

from typing import Any, Final

MAX_QUOTED: Final = 64
"""Bytes of input that a message may hold. Spec: none; conventions, section 4."""


class Missing:
    """Type of `MISSING`."""

    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = Missing()
"""Stands for an absent member, which is not the same as `null`."""


def quote(value: Any) -> str:
    """Return a short text that says what a value is.

    Args:
        value: Any JSON value, or `MISSING`.

    Returns:
        Scalars as JSON spells them, long strings cut; arrays and objects by kind alone.
    """
    kind = type(value)
    if value is MISSING:
        return "nothing"
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value) if value.bit_length() <= 64 else "a very large integer"
    if kind is float:
        whole = value.is_integer() and 0 < abs(value) < 1e21
        return str(int(value)) if whole else repr(value)
    if kind is str:
        return _quote_text(value)
    if kind is list or kind is tuple:
        return "an array"
    if kind is dict:
        return "an object"
    return f"a value of type {kind.__name__}"


def _quote_text(text: str) -> str:
    data = text[:MAX_QUOTED].encode("utf-8", "backslashreplace")
    if len(data) <= MAX_QUOTED and len(text) <= MAX_QUOTED:
        return f'"{data.decode()}"'
    return f'"{data[: MAX_QUOTED - 3].decode("utf-8", "ignore")}..."'
