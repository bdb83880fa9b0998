"""A batch of events as the rows of generation 4. Spec: 10 §5.1, §11.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec._pure.row import encode_event
from dsh_codec._pure.seqs import check_seqs, encode_seqs
from dsh_codec._types import EncodedRows
from dsh_codec.envelope import check_envelope
from dsh_codec.errors import DshCodecError, LimitExceededError, RowError
from dsh_codec.limits import MAX_ROW_BYTES
from dsh_codec.values import is_count, is_negative_zero

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PLAIN: Final = frozenset((str, bool, type(None)))
_EXACT: Final = 2**53


def encode_events(
    events: Iterable[Mapping[str, Any]],
    seq: int,
    /,
    *,
    max_row_bytes: int = MAX_ROW_BYTES,
) -> EncodedRows:
    """Write a batch of logical events as rows. See `_kernel.pyi`."""
    rows: list[bytes] = []
    has_marker = False
    for number, event in enumerate(events, seq):
        check_envelope(event, number, _check_sources)
        try:
            row = encode_event(event) + b"\n"
        except DshCodecError as error:
            raise error.located(seq=number) from None
        # After the encoding, which refuses a value that contains itself.
        _require_lossless(event, number)
        if len(row) > max_row_bytes:
            message = f"the row has {len(row)} bytes, more than max_row_bytes ({max_row_bytes})"
            raise LimitExceededError(
                message,
                None,
                None,
                None,
                number,
                None,
                None,
                "max_row_bytes",
                max_row_bytes,
            )
        rows.append(row)
        if event["type"] == "session/end-seed":
            has_marker = has_marker or event["data"].get("inherited") is True
    return EncodedRows(b"".join(rows), len(rows), has_marker)


def _check_sources(value: Any, seq: int) -> None:
    """Check a list of seqs, which is not yet in its range form."""
    if type(value) is not list or not all(map(is_count, value)):
        message = "sourceEventSeqs has to be a list of seqs"
        raise RowError(message)
    check_seqs(encode_seqs(value), codec="v2", max_entries=seq)


def _require_lossless(event: Mapping[str, Any], seq: int) -> None:
    """Refuse an event with a number that would be read back as another one.

    Tuples count as arrays. Spec: 10 §1.2, §11.2.
    """
    pending: list[Any] = [event]
    # Lists of strings or integers, which is what streams are made of, cost no step an element.
    while pending:
        item = pending.pop()
        children: Any = item.values() if isinstance(item, dict) else item
        kinds = set(map(type, children))
        if kinds <= _PLAIN:
            continue
        if kinds == {int} and min(children) >= -_EXACT and max(children) <= _EXACT:
            continue
        for child in children:
            if isinstance(child, dict | list | tuple):
                pending.append(child)
            elif isinstance(child, int):
                if not -_EXACT <= child <= _EXACT and not _is_double(child):
                    raise _loss(child, seq)
            elif isinstance(child, float) and (
                child - child != 0 or is_negative_zero(float(child))
            ):
                raise _loss(child, seq)


def _is_double(number: int) -> bool:
    try:
        return int(float(number)) == number
    except OverflowError:
        return False


def _loss(number: float, seq: int) -> RowError:
    try:
        shown = repr(number)
    except (
        ValueError
    ):  # Python does not spell integers of more than some thousand digits.
        shown = "?"
    message = f"the number {shown:.40} would be read back as another one"
    return RowError(message, None, None, None, seq, None, "10 §11.2")
