"""A batch of events as the rows of generation 4. Spec: 10 §5.1, §11.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec._pure.admission import admit
from dsh_codec._pure.buffer import bytes_of
from dsh_codec._pure.envelope import check_envelope
from dsh_codec._pure.event import EVENT_RULE, decode_event
from dsh_codec._pure.json import dump, parse_row
from dsh_codec._pure.plain import is_exact, plain
from dsh_codec._pure.quote import quote
from dsh_codec._pure.row import encode_event
from dsh_codec._pure.seqs import check_seqs, encode_seqs, respell_seqs
from dsh_codec._types import EncodedRows
from dsh_codec.errors import (
    DshCodecError,
    LimitExceededError,
    RowError,
    SeqGapError,
)
from dsh_codec.limits import MAX_DEPTH, MAX_ROW_BYTES
from dsh_codec.values import is_count, is_lossless, is_negative_zero, is_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import Buffer

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
        row, is_marker = _encoded(event, number, max_row_bytes)
        rows.append(row)
        has_marker = has_marker or is_marker
    return EncodedRows(b"".join(rows), len(rows), has_marker)


def _encoded(
    event: Mapping[str, Any], number: int, max_row_bytes: int
) -> tuple[bytes, bool]:
    """Return a row, and whether it is an inherited marker."""
    check_envelope(event, number, _check_sources)
    if not is_exact(event):
        event = plain(event, keeps_tuples=False)
    row = _lossless_row(event, number)
    _check_row_bytes(row, number, max_row_bytes)
    is_marker = event["type"] == "session/end-seed" and event["data"].get("inherited")
    return row, is_marker is True


def _lossless_row(event: Mapping[str, Any], number: int) -> bytes:
    try:
        row = encode_event(event) + b"\n"
    except DshCodecError as error:
        raise error.located(seq=number) from None
    # After the encoding, which refuses a value that contains itself.
    _require_lossless(event, number)
    return row


def encode_rows(
    rows: Buffer, seq: int, /, *, max_row_bytes: int = MAX_ROW_BYTES
) -> EncodedRows:
    """Check rows that come as text. See `_kernel.pyi`."""
    text = bytes_of(rows)
    written: list[bytes] = []
    has_marker = False
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    offset = 0
    for number, line in enumerate(lines, seq):
        try:
            has_feed = offset + len(line) < len(text)
            event = _admitted(line, number, offset, has_feed=has_feed)
            row = dump(event) + b"\n"
        except DshCodecError as error:
            raise error.located(seq=number) from None
        _check_row_bytes(row, number, max_row_bytes)
        written.append(row)
        offset += len(line) + 1
        if event["type"] == "session/end-seed":
            has_marker = has_marker or event["data"].get("inherited") is True
    joined = b"".join(written)
    # So that what stands as it is costs no second copy.
    return EncodedRows(text if joined == text else joined, len(written), has_marker)


def _admitted(line: bytes, seq: int, offset: int, *, has_feed: bool) -> dict[str, Any]:
    """Return the row of a line in the writer's form. Spec: 10 §8.1, §11.2."""
    row = parse_row(line, offset=offset, max_depth=MAX_DEPTH, has_feed=has_feed)
    admit(row)
    decoded = decode_event(row, 0)
    if not is_number(row["seq"]) or row["seq"] != seq:
        message = f"the row has seq {quote(row['seq'])}, expected {seq}"
        raise SeqGapError(message, *(None,) * 5, EVENT_RULE, seq, row["seq"])
    if decoded.type == "session/end-seed" and type(row["data"]) is not dict:
        message = "`data` of a session/end-seed is no object"
        raise RowError(message, *(None,) * 5, "10 §4.4")
    if not is_lossless(row):
        message = "a number of the row is -0 or too large, and would be read back as another one"
        raise RowError(message, *(None,) * 5, "10 §11.2")
    if "sourceEventSeqs" in row:
        row["sourceEventSeqs"] = respell_seqs(row["sourceEventSeqs"], max_entries=seq)
    return row  # type: ignore[no-any-return]


def _check_row_bytes(row: bytes, seq: int, max_row_bytes: int) -> None:
    if len(row) > max_row_bytes:
        message = (
            f"the row has {len(row)} bytes, more than max_row_bytes ({max_row_bytes})"
        )
        places = (None, None, None, seq, None, None)
        raise LimitExceededError(message, *places, "max_row_bytes", max_row_bytes)


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
