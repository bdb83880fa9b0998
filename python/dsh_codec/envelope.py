"""One row at a time: what a follower takes and what a writer gives. Spec: 10 §5.1, §11.2.

The kernel's scanner judges rows from the start of a log. Here a row is judged by itself, with
the seq that it has to have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec._backend import kernel
from dsh_codec.errors import DshCodecError, LimitExceededError, RowError, SeqGapError
from dsh_codec.limits import MAX_ROW_BYTES
from dsh_codec.values import is_count, is_negative_zero, is_number, is_sint

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_envelope", "encode_row", "is_inherited_marker", "require_lossless"]

_KEYS: Final = frozenset(
    ("type", "seq", "time", "data", "ignorable", "sourceEventSeqs", "surfaceOp")
)
_END_SEED: Final = "session/end-seed"
_PLAIN: Final = frozenset((str, bool, type(None)))
_EXACT: Final = 2**53


def check_envelope(row: Any, seq: int, *, is_logical: bool = False) -> None:
    """Check the members of an event row of generations 2 to 4.

    Args:
        row: The row, as parsed.
        seq: The seq that it has to have.
        is_logical: Whether `sourceEventSeqs` is a list of seqs instead of its range form.

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
        got = row.get("seq")
        message = f"expected seq {seq}, found {got!r:.64}: a row is missing, doubled or out of place"
        raise SeqGapError(message, None, None, None, seq, None, "10 §5.1", seq, got)
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
        _check_sources(row, seq, is_logical=is_logical)


def _check_sources(row: dict[str, Any], seq: int, *, is_logical: bool) -> None:
    value = row["sourceEventSeqs"]
    if not is_count(row["seq"]):
        message = "seq has to be a count, because the row has sourceEventSeqs"
        raise _fault(message, seq, "10 §6")
    if is_logical:
        if type(value) is not list or not all(map(is_count, value)):
            message = "sourceEventSeqs has to be a list of seqs"
            raise _fault(message, seq, "10 §6")
        value = kernel.encode_seqs(value)
    try:
        kernel.decode_seqs(value, codec="v2", max_entries=seq)
    except RowError as error:
        raise error.located(seq=seq, rule="10 §6") from None


def is_inherited_marker(row: Mapping[str, Any]) -> bool:
    """Whether a row that was checked ends what a session has inherited. Spec: 10 §4.4."""
    return row["type"] == _END_SEED and row["data"].get("inherited") is True


def encode_row(event: Any, seq: int, *, max_row_bytes: int = MAX_ROW_BYTES) -> bytes:
    """Check one event and write it as a row, so that every reader will accept it.

    Args:
        event: The logical event, a dictionary.
        seq: The seq that it has to have.
        max_row_bytes: Bytes in one row, line feed included.

    Returns:
        The row with its line feed.

    Raises:
        SeqGapError: It has another seq.
        UnsupportedError, RowError: Row admission refuses it (30 §6), its members break a rule
            (10 §5.1), or it holds a number that would be read as another one (10 §11.2).
        LimitExceededError: The row is too long or too deep.
        TypeError: It holds something that is no JSON value.
    """
    check_envelope(event, seq, is_logical=True)
    try:
        line = kernel.encode_event(event) + b"\n"
    except DshCodecError as error:
        raise error.located(seq=seq) from None
    # After the encoding, which refuses a value that contains itself.
    require_lossless(event, seq)
    if len(line) > max_row_bytes:
        message = (
            f"the row has {len(line)} bytes, more than max_row_bytes ({max_row_bytes})"
        )
        raise LimitExceededError(
            message, None, None, None, seq, None, None, "max_row_bytes", max_row_bytes
        )
    return line


def require_lossless(value: Any, seq: int | None = None) -> None:
    """Refuse a value with a number that would be read back as another one.

    Args:
        value: A JSON value; tuples count as arrays.
        seq: The event that it belongs to.

    Raises:
        RowError: It holds -0, a number that is not finite, or an integer that no double is
            equal to. Spec: 10 §1.2, §11.2.
    """
    pending: list[Any] = [[value]]
    # Lists of strings or integers, which is what streams are made of, cost no step an element.
    while pending:
        item = pending.pop()
        if type(item) is dict:
            children: Any = item.values()
        else:
            children = item
            kinds = set(map(type, item))
            if kinds <= _PLAIN:
                continue
            if kinds == {int} and min(item) >= -_EXACT and max(item) <= _EXACT:
                continue
        for child in children:
            kind = type(child)
            if kind is str:
                continue
            if kind is dict or kind is list or kind is tuple:
                pending.append(child)
            elif kind is int:
                if not -_EXACT <= child <= _EXACT and not _is_double(child):
                    message = (
                        f"the integer {child!r:.40} has no double: it would change"
                    )
                    raise _fault(message, seq, "10 §11.2")
            elif kind is float and (child - child != 0 or is_negative_zero(child)):
                message = f"the number {child!r} would be read back as another one"
                raise _fault(message, seq, "10 §11.2")


def _is_double(number: int) -> bool:
    try:
        return int(float(number)) == number
    except OverflowError:
        return False


def _fault(message: str, seq: int | None, rule: str = "10 §5.1") -> RowError:
    return RowError(message, None, None, None, seq, None, rule)
