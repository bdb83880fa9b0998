"""JSON values in Python: numbers, text and equality as the formats define them.

Python's own tests differ from the format's in many places: `True` is an `int`, `-0.0`
equals `0`, `str.strip` knows other white space. Format code uses these instead.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from dsh_codec.limits import MAX_SAFE_INTEGER

if TYPE_CHECKING:
    from collections.abc import Iterable

# Spec 20 §8.3: this set serves trimming and "non-whitespace" alike.
WHITE_SPACE: Final = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
)
EXACT_INTEGER: Final = 2**53
"""Integer literals up to this size become `int`. Spec: design, section 2.1."""

_SPLIT_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether the value is a JSON number. `True` and `False` are not."""
    return type(value) is int or type(value) is float


def is_negative_zero(value: object) -> bool:
    """Whether the value is the number -0."""
    return type(value) is float and value == 0 and str(value)[0] == "-"


def is_safe_integer(value: object) -> TypeGuard[int | float]:
    """Whether the value is an integer within ±(2^53 - 1), -0 included. Spec: 20 §8.1."""
    if type(value) is int:
        return -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER
    return (
        type(value) is float and value.is_integer() and abs(value) <= MAX_SAFE_INTEGER
    )


def is_sint(value: object) -> TypeGuard[int | float]:
    """Whether the value is a safe integer other than -0. Spec: 10 intro, 50 §1."""
    return is_safe_integer(value) and not is_negative_zero(value)


def is_count(value: object) -> TypeGuard[int | float]:
    """Whether the value is a safe integer from 0 and not -0. Spec: 10 intro."""
    return is_safe_integer(value) and value >= 0 and not is_negative_zero(value)


def is_lossless(value: object) -> bool:
    """Whether a JSON value holds no -0 and no number that is not finite. Spec: 10 §1.2."""
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is float:
            if item - item != 0 or is_negative_zero(item):
                return False
        elif kind is dict:
            pending.extend(item.values())
        elif kind is list:
            pending.extend(item)
    return True


def deep_equal(left: Any, right: Any, *, zeros_equal: bool = False) -> bool:
    """Whether two JSON values are equal.

    Args:
        left: A JSON value.
        right: A JSON value.
        zeros_equal: Whether 0 and -0 are equal (the tool-result rewrite, 30 §5.1).

    Returns:
        True if types, members and elements agree; the order of keys does not count.
        Spec: 20 §8.4.
    """
    pending = [(left, right)]
    while pending:
        a, b = pending.pop()
        if is_number(a) and is_number(b):
            if a != b:
                return False
            if not zeros_equal and is_negative_zero(a) != is_negative_zero(b):
                return False
        elif type(a) is not type(b):
            return False
        elif type(a) is dict:
            if len(a) != len(b):
                return False
            for key, value in a.items():
                if key not in b:
                    return False
                pending.append((value, b[key]))
        elif type(a) is list:
            if len(a) != len(b):
                return False
            pending.extend(zip(a, b, strict=True))
        elif a != b:
            return False
    return True


def number_text(number: float) -> str:
    """Return a number in JavaScript's spelling. Spec: 10 §1.1."""
    if type(number) is int:
        if -EXACT_INTEGER <= number <= EXACT_INTEGER:
            return str(number)
        try:
            number = float(number)
        except OverflowError:
            return "null"
    if number - number != 0:
        return "null"  # Infinity or NaN.
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    # repr gives the shortest digits that round-trip, as JavaScript does; only layout differs.
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The value is 0.<digits> times ten to the power of `point`.
    point = len(digits) - len(fraction) + int(exponent or "0")
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def join_fragments(fragments: Iterable[str]) -> str:
    """Concatenate strings; a surrogate pair split over two of them becomes one character.

    Spec: 20 §8.2.
    """
    return fuse("".join(fragments))


def fuse(text: str) -> str:
    """Return the text with every high-low pair of lone halves made one character."""
    if _SPLIT_PAIR.search(text) is None:
        return text
    return _SPLIT_PAIR.sub(
        lambda pair: pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"),
        text,
    )


def trim(text: str) -> str:
    """Return the text without white space at its ends, by the set of 20 §8.3."""
    return text.strip(WHITE_SPACE)


def has_visible(text: str) -> bool:
    """Whether the text holds a character that is not white space. Spec: 20 §5, §8.3."""
    return bool(text.strip(WHITE_SPACE))


def utf16_units(text: str) -> list[int]:
    """Return the UTF-16 code units of the text. Spec: 20 §8.2."""
    data = text.encode("utf-16-le", "surrogatepass")
    return [data[i] | data[i + 1] << 8 for i in range(0, len(data), 2)]
