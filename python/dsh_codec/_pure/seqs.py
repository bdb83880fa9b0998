"""Range form of `sourceEventSeqs`. Spec: 10 §6."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from dsh_codec._pure.json import dump, parse
from dsh_codec._pure.plain import plain, takes_subclasses
from dsh_codec.errors import LimitExceededError, RowError, StreamError
from dsh_codec.limits import MAX_SAFE_INTEGER
from dsh_codec.values import is_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh_codec._types import SeqCodec

Span: TypeAlias = tuple[int, int]
"""First and last seq, both included."""

RULE: Final = "10 §6"
MAX_DECODED_SEQS: Final = 16_777_216
"""Seqs that are written out at most; a short range can name 2^53."""
SHORTEST_RANGE: Final = 3
"""Seqs in the shortest run that is written as a pair."""


def encode_seqs(values: Sequence[int], /) -> list[Any]:
    """Return the range form of `sourceEventSeqs`. See `_kernel.pyi`."""
    values = plain(values)
    if not isinstance(values, list | tuple):
        _refuse("sourceEventSeqs is no array")
    if not all(map(is_count, values)) or any(
        later <= earlier for earlier, later in pairwise(values)
    ):
        unchanged: list[Any] = parse(dump(values))  # As it is written.
        return unchanged
    seqs = [int(value) for value in values]
    encoded: list[Any] = []
    start = 0
    for end in range(1, len(seqs) + 1):
        if end < len(seqs) and seqs[end] == seqs[end - 1] + 1:
            continue
        run = seqs[start:end]
        encoded += [[run[0], run[-1]]] if len(run) >= SHORTEST_RANGE else run
        start = end
    return encoded


@takes_subclasses
def decode_seqs(
    value: Any,
    /,
    *,
    codec: SeqCodec = "v2",
    max_entries: int = MAX_SAFE_INTEGER,
) -> list[int]:
    """Return the seqs of a range form. See `_kernel.pyi`."""
    if codec not in ("session", "v2", "v0"):
        message = f"codec has to be 'session', 'v2' or 'v0', not {codec!r}"
        raise ValueError(message)
    try:
        spans = check_seqs(value, codec=codec, max_entries=max_entries)
    except RowError as error:
        if codec == "session":
            raise StreamError(error.message, *error.args[1:7], None) from None
        raise
    total = sum(last - first + 1 for first, last in spans)
    if total > MAX_DECODED_SEQS:
        message = (
            f"the ranges name {total} events; "
            "set max_entries to the seq of the owning event"
        )
        raise LimitExceededError(
            message, None, None, None, None, None, None, "max_entries", MAX_DECODED_SEQS
        )
    return [seq for first, last in spans for seq in range(first, last + 1)]


def respell_seqs(value: Any, *, max_entries: int) -> list[Any]:
    """Return a range form as the writer spells it.

    Raises:
        RowError: It breaks a rule.
    """
    joined: list[Span] = []
    spans = check_seqs(value, codec="v2", max_entries=max_entries)
    if any(first <= last for (_, last), (first, _) in pairwise(spans)):
        return [first for first, _ in spans]
    for first, last in spans:
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    encoded: list[Any] = []
    for first, last in joined:
        is_long = last - first + 1 >= SHORTEST_RANGE
        encoded += [[first, last]] if is_long else range(first, last + 1)
    return encoded


def check_seqs(value: Any, *, codec: SeqCodec, max_entries: int) -> list[Span]:
    """Check a range form without expanding it, which a row could make very long.

    Returns:
        The spans that it stands for, one for each element.

    Raises:
        RowError: It breaks a rule.
    """
    if not isinstance(value, list | tuple):
        _refuse("sourceEventSeqs is no array")
    has_pair = False
    is_increasing = True
    total = 0
    spans: list[Span] = []
    for element in value:
        if isinstance(element, list | tuple):
            has_pair = True
            first, last = _pair(element)
        elif is_count(element):
            first = last = int(element)
        else:
            _refuse("an entry of sourceEventSeqs is no count and no range")
        if codec == "v2" and last >= max_entries:
            _refuse("sourceEventSeqs names an event that is not earlier")
        total += last - first + 1
        if total > max_entries:
            _refuse("sourceEventSeqs names more events than there are before it")
        is_increasing = is_increasing and (not spans or spans[-1][1] < first)
        if has_pair and not is_increasing:
            _refuse("sourceEventSeqs with a range must be strictly increasing")
        spans.append((first, last))
    if codec == "v2" and not is_increasing and len(set(spans)) != len(spans):
        _refuse("sourceEventSeqs names an event twice")
    return spans


def _pair(pair: Sequence[Any]) -> Span:
    if len(pair) != 2 or not all(map(is_count, pair)):
        _refuse("a range of sourceEventSeqs is no pair of counts")
    first, last = int(pair[0]), int(pair[1])
    if first > last:
        _refuse("a range of sourceEventSeqs ends before it starts")
    return first, last


def _refuse(message: str) -> NoReturn:
    raise RowError(message, None, None, None, None, None, RULE)
