"""Range form of `sourceEventSeqs`. Spec: 10 §6."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from dsh_codec._pure.quote import quote
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
    if not isinstance(values, list | tuple):
        _refuse(f"sourceEventSeqs has to be an array, not {quote(values)}")
    listed = list(values)
    if not all(map(is_count, listed)):
        return listed
    seqs = [int(value) for value in listed]
    if any(later <= earlier for earlier, later in pairwise(seqs)):
        return seqs
    encoded: list[Any] = []
    start = 0
    for end in range(1, len(seqs) + 1):
        if end < len(seqs) and seqs[end] == seqs[end - 1] + 1:
            continue
        run = seqs[start:end]
        encoded += [[run[0], run[-1]]] if len(run) >= SHORTEST_RANGE else run
        start = end
    return encoded


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
    if type(value) is not list:
        _refuse(f"sourceEventSeqs has to be an array, not {quote(value)}")
    has_pair = False
    total = 0
    spans: list[Span] = []
    for element in value:
        if type(element) is list:
            has_pair = True
            first, last = _pair(element)
        else:
            if not is_count(element):
                _refuse(f"sourceEventSeqs has to hold counts, not {quote(element)}")
            first = last = int(element)
        total += last - first + 1
        if total > max_entries:
            _refuse(f"sourceEventSeqs holds more than {max_entries} entries")
        spans.append((first, last))
    if codec == "v2":
        for _, last in spans:
            if last >= max_entries:
                _refuse(f"sourceEventSeqs: {last} is not before its own event")
    if has_pair:
        for (_, last), (first, _) in pairwise(spans):
            if first <= last:
                _refuse("sourceEventSeqs with a range has to be strictly increasing")
    elif codec == "v2" and len(set(spans)) != len(spans):
        _refuse("sourceEventSeqs must not repeat a seq")
    return spans


def _pair(pair: list[Any]) -> Span:
    if len(pair) != 2 or not all(map(is_count, pair)):
        _refuse("a range of sourceEventSeqs has to be a pair of counts")
    first, last = int(pair[0]), int(pair[1])
    if first > last:
        _refuse(f"a range of sourceEventSeqs runs backwards, {first} to {last}")
    return first, last


def _refuse(message: str) -> NoReturn:
    raise RowError(message, None, None, None, None, None, RULE)
