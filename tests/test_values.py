"""JSON values in Python. Spec: 10 intro, 20 §8, 50 §1."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dsh_codec import values

MAX = 2**53 - 1


@pytest.mark.parametrize(
    ("value", "safe", "sint", "count"),
    [
        (0, True, True, True),
        (-0.0, True, False, False),
        (1.0, True, True, True),
        (-1, True, True, False),
        (MAX, True, True, True),
        (float(MAX), True, True, True),
        (MAX + 1, False, False, False),
        (-MAX, True, True, False),
        (1.5, False, False, False),
        (math.inf, False, False, False),
        (math.nan, False, False, False),
        (True, False, False, False),
        ("1", False, False, False),
        (None, False, False, False),
    ],
)
def test_integer_predicates(value, safe, sint, count):
    assert values.is_safe_integer(value) is safe
    assert values.is_sint(value) is sint
    assert values.is_count(value) is count


def test_is_number_leaves_booleans_out():
    assert values.is_number(1)
    assert values.is_number(1.5)
    assert not values.is_number(True)


@pytest.mark.parametrize(
    ("value", "lossless"),
    [
        ([{"a": [1, 1.5, "x", None, True]}], True),
        ([{"a": [-0.0]}], False),
        ([math.inf], False),
        (math.nan, False),
    ],
)
def test_is_lossless(value, lossless):
    """Spec 10 §1.2."""
    assert values.is_lossless(value) is lossless


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1.0, True),
        (True, 1, False),
        (0, -0.0, False),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {"b": 1}, False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ("\u00e9", "e\u0301", False),
        (None, False, False),
    ],
)
def test_deep_equal(left, right, equal):
    """Spec 20 §8.4."""
    assert values.deep_equal(left, right) is equal


def test_deep_equal_may_take_zeros_as_equal():
    """Spec 30 §5.1."""
    assert values.deep_equal([0], [-0.0], zeros_equal=True)


def test_deep_equal_does_not_recurse():
    left: Any = []
    right: Any = []
    for _ in range(100_000):
        left, right = [left], [right]
    assert values.deep_equal(left, right)
    for value in (left, right):
        while value:
            value = value.pop()


def test_join_fragments_fuses_split_pairs():
    """Spec 20 §8.2."""
    assert values.join_fragments(["a\ud83d", "\ude00b"]) == "a\U0001f600b"
    assert values.join_fragments(["\ude00", "\ud83d"]) == "\ude00\ud83d"


WHITE = "\t\n\v\f\r \u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
NOT_WHITE = "\u0085\x1c\x1d\x1e\x1f\u180e\u200b\u2060\x00"


def test_white_space_is_the_set_of_the_spec():
    """Spec 20 §8.3."""
    assert values.trim(f"{WHITE}a{WHITE}") == "a"
    assert not values.has_visible(WHITE)
    for character in NOT_WHITE:
        assert values.has_visible(character)
        assert values.trim(character) == character


def test_utf16_units():
    assert values.utf16_units("a\U0001f600\ud800") == [0x61, 0xD83D, 0xDE00, 0xD800]
