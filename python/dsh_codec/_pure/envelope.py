"""The members of one event, judged by themselves with the seq that they have to have.

The kernel's scanner judges rows from the start of a log. Spec: 10 §5.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec._pure.quote import MISSING, quote
from dsh_codec.errors import RowError, SeqGapError
from dsh_codec.values import is_count, is_number, is_sint

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_envelope"]

_KEYS: Final = frozenset(
    ("type", "seq", "time", "data", "ignorable", "sourceEventSeqs", "surfaceOp")
)
_END_SEED: Final = "session/end-seed"


def check_envelope(
    row: Any, seq: int, check_sources: Callable[[Any, int], None]
) -> None:
    """Check the members of an event of generations 2 to 4.

    Args:
        row: The event, as parsed.
        seq: The seq that it has to have.
        check_sources: Raises `RowError` for a `sourceEventSeqs` that is not right.

    Raises:
        SeqGapError: It has another seq.
        RowError: Another rule of 10 §5.1, §6, or 10 §8.1 step 4.
    """
    if type(row) is not dict:
        message = "a row has to be a JSON object"
        raise _fault(message, seq)
    if not _KEYS.issuperset(row):
        extra = next(key for key in row if key not in _KEYS)
        message = f"the key {extra!r:.64} is not one of a row"
        raise _fault(message, seq)
    kind = row.get("type")
    if type(kind) is not str:
        message = "the type of a row has to be a string"
        raise _fault(message, seq)
    if not is_number(row.get("seq")) or row["seq"] != seq:
        got = row.get("seq", MISSING)
        message = f"expected seq {seq}, found {quote(got)}: a row is missing, doubled or out of place"
        found = None if got is MISSING else got
        raise SeqGapError(message, None, None, None, seq, None, "10 §5.1", seq, found)
    if not is_sint(row.get("time")):
        message = (
            "the time of a row has to be a safe integer (milliseconds), and not -0"
        )
        raise _fault(message, seq)
    if "data" not in row:
        message = "a row has to have data"
        raise _fault(message, seq)
    if "ignorable" in row and row["ignorable"] is not True:
        message = "ignorable is true or absent"
        raise _fault(message, seq)
    if kind == _END_SEED and type(row["data"]) is not dict:
        message = "the data of session/end-seed has to be an object"
        raise _fault(message, seq, "10 §4.4")
    if "sourceEventSeqs" in row:
        if not is_count(row["seq"]):
            message = "seq has to be a count, because the row has sourceEventSeqs"
            raise _fault(message, seq, "10 §6")
        try:
            check_sources(row["sourceEventSeqs"], seq)
        except RowError as error:
            raise error.located(seq=seq, rule="10 §6") from None


def _fault(message: str, seq: int, rule: str = "10 §5.1") -> RowError:
    return RowError(message, None, None, None, seq, None, rule)
