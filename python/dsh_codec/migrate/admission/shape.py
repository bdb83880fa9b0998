"""Checks of JSON values and what larger checks are made of. Spec: 50 §1, appendix A."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from dsh_codec.events import is_array, is_equal_number, is_filled, is_object, quote
from dsh_codec.migrate.refusal import EdgeRefusalError, pass_on, refuse
from dsh_codec.values import (
    is_count,
    is_lossless,
    is_negative_zero,
    is_number,
    is_sint,
)


class Place(NamedTuple):
    """What a check has to know of the event besides the value.

    Attributes:
        seq: Seq of the event.
        generation: Generation parameter of the admission, 0 to 3.
    """

    seq: int
    generation: int


Check: TypeAlias = Callable[[Any, Place], None]
"""Refuses a value by an `EdgeRefusalError`, or does nothing."""

VALUES: Final = "50 A.2"


def fail(message: str, rule: str = VALUES) -> NoReturn:
    """Refuse the value that a check looks at."""
    refuse(rule, message)


def within(name: str | int, check: Check, value: Any, at: Place) -> None:
    """Apply a check to a member, so that a refusal names it."""
    try:
        check(value, at)
    except EdgeRefusalError as refusal:
        pass_on(refusal, name)


# --- scalars (50 §1) ---


def anything(value: Any, at: Place) -> None:
    """Accept any value."""
    del value, at


def opaque(value: Any, at: Place) -> None:
    """Accept any lossless value; at generation 2 any value at all. Spec: 50 A.1."""
    if at.generation < 2 and not is_lossless(value):
        fail("has to be lossless JSON", "50 A.1")


def count(value: Any, at: Place) -> None:
    """Accept a count."""
    del at
    if not is_count(value):
        fail("has to be a count")


def positive(value: Any, at: Place) -> None:
    """Accept a count of at least 1."""
    del at
    if not is_count(value) or value < 1:
        fail("has to be a count of at least 1")


def is_positive(value: Any) -> bool:
    """Whether the value is `pos` of 50 §1."""
    return is_count(value) and value >= 1


def safe_integer(value: Any, at: Place) -> None:
    """Accept a safe integer other than -0."""
    del at
    if not is_sint(value):
        fail("has to be a safe integer")


def is_finite_number(value: Any) -> bool:
    """Whether the value is `num` of 50 §1."""
    return is_number(value) and value - value == 0 and not is_negative_zero(value)


def text(value: Any, at: Place) -> None:
    """Accept a string."""
    del at
    if type(value) is not str:
        fail("has to be a string")


def filled(value: Any, at: Place) -> None:
    """Accept a non-empty string."""
    del at
    if not is_filled(value):
        fail("has to be a non-empty string")


def boolean(value: Any, at: Place) -> None:
    """Accept a boolean."""
    del at
    if type(value) is not bool:
        fail("has to be a boolean")


def true(value: Any, at: Place) -> None:
    """Accept `true`."""
    del at
    if value is not True:
        fail("may only be true")


def any_object(value: Any, at: Place) -> None:
    """Accept an object."""
    del at
    if not is_object(value):
        fail("has to be an object")


def earlier(value: Any, at: Place) -> None:
    """Accept a count below the event's own seq."""
    if not is_count(value) or value >= at.seq:
        fail("has to name an earlier event")


def between(low: float, high: float) -> Check:
    """Make a check for a finite number in a closed range."""

    def check(value: Any, at: Place) -> None:
        del at
        if not is_finite_number(value) or not low <= value <= high:
            fail(f"has to be a number from {low} to {high}")

    return check


def one_of(*names: str) -> Check:
    """Make a check for one of some strings."""

    def check(value: Any, at: Place) -> None:
        del at
        if type(value) is not str or value not in names:
            fail(f"has to be one of {', '.join(names)}")

    return check


def number(wanted: int) -> Check:
    """Make a check for one number."""

    def check(value: Any, at: Place) -> None:
        del at
        if not is_equal_number(value, wanted) or is_negative_zero(value):
            fail(f"has to be {wanted}")

    return check


# --- compounds ---


def exact(
    required: Mapping[str, Check],
    optional: Mapping[str, Check] | None = None,
    rule: str = VALUES,
) -> Check:
    """Make a check for an object with exactly these keys. Spec: 50 §1."""
    checks = {**required, **(optional or {})}

    def check(value: Any, at: Place) -> None:
        if not is_object(value):
            fail("has to be an object", rule)
        for key in required:
            if key not in value:
                fail(f"lacks the member {key}", rule)
        for key, member in value.items():
            inner = checks.get(key)
            if inner is None:
                fail(f"has the unexpected member {quote(key)}", rule)
            try:
                inner(member, at)
            except EdgeRefusalError as refusal:
                pass_on(refusal, key)

    return check


def array_of(
    inner: Check, *, length: int | None = None, is_filled: bool = False
) -> Check:
    """Make a check for an array whose elements pass a check."""

    def check(value: Any, at: Place) -> None:
        if not is_array(value):
            fail("has to be an array")
        if length is not None and len(value) != length:
            fail(f"has to have exactly {length} elements")
        if is_filled and not value:
            fail("must not be empty")
        for index, element in enumerate(value):
            within(index, inner, element, at)

    return check


def by_member(
    name: str, choices: Mapping[str, Check], other: Check | None = None
) -> Check:
    """Make a check that the string in one member chooses.

    Args:
        name: The member.
        choices: Check for the whole object, by the member's value.
        other: Check for any other non-empty string; None refuses it.
    """

    def check(value: Any, at: Place) -> None:
        if not is_object(value):
            fail("has to be an object")
        chosen = value.get(name)
        inner = choices.get(chosen, other) if is_filled(chosen) else None
        if inner is None:
            refuse(VALUES, "is missing or has a value that is not known", name)
        inner(value, at)

    return check


def distinct_earlier(value: Any, at: Place) -> None:
    """Accept an "earlier list": distinct earlier seqs. Spec: 50 A.2."""
    if not is_array(value):
        fail("has to be an array")
    for index, seq in enumerate(value):
        within(index, earlier, seq, at)
    if len(set(value)) != len(value):
        fail("must not repeat a seq")


def filled_distinct_earlier(value: Any, at: Place) -> None:
    """Accept a non-empty "earlier list"."""
    distinct_earlier(value, at)
    if not value:
        fail("must not be empty")
