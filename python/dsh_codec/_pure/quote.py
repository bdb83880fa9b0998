"""Input values in messages: short, and never a whole document."""

from __future__ import annotations

from typing import Any, Final

from dsh_codec.values import is_negative_zero, number_text


class Missing:
    """Type of `MISSING`."""

    def __repr__(self) -> str:
        """Return how `quote` shows it."""
        return "none"


MISSING: Final = Missing()
"""Stands for an absent member, which is not the same as `null`."""


def quote(value: Any) -> str:
    """Return a short text that says what a value is.

    Args:
        value: Any JSON value, or `MISSING`.

    Returns:
        Literals as JSON spells them, all other values by kind.
    """
    kind = type(value)
    if value is MISSING:
        return "none"
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int or kind is float:
        return _number(value)
    if kind is str:
        return "a string"
    if kind is list or kind is tuple:
        return "an array"
    return "an object"


def _number(value: float) -> str:
    if is_negative_zero(value):
        return "-0"
    text = number_text(value)
    return "beyond every number" if text == "null" else text
