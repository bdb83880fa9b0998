"""Chunks of logs as Arrow record batches, without a Python object for each. Spec: 20 §5, 80 §5."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dsh_codec._backend import kernel
from dsh_codec._types import AttemptColumns
from dsh_codec.attempts import OUTCOMES
from dsh_codec.corpus import own_from
from dsh_codec.errors import StreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from dsh_codec._types import DerivedColumns
    from dsh_codec.attempts import PlaceColumns
    from dsh_codec.log import Log

    Piece: TypeAlias = tuple[AttemptColumns, PlaceColumns]

__all__ = ["MAKERS", "chunk_batches"]

HELD_BYTES: Final = 128 << 20
"""Bytes of columns of one log that wait for its end: more than 200 MB of plaintext."""

ARENA_BYTES: Final = 16 << 20
_HUGE_PAGE_BYTES: Final = 2 << 20
_ALIGNMENT: Final = 64  # What Arrow recommends.

KINDS: Final = (
    "text-delta",
    "reasoning-delta",
    "tool-call-delta",
    "block-start",
    "block-end",
    "usage",
    "finish",
    "other",
)
"""Names of `ChunkKind`, in the order of its codes."""

_DERIVED: Final = ("index", "gap", "byte_len")
_TEXTS: Final = frozenset(("text", "text_wtf8"))
_OF_ATTEMPTS: Final = ("seq", "turn", "step", "attempt")

# A lone surrogate in WTF-8 is ED, A0 to BF, and one byte more; as long as U+FFFD, which is EF BF BD.
_SURROGATE_LEAD: Final = 0xED
_SURROGATE_SECOND: Final = 0xA0
_REPLACEMENT: Final = (0xEF, 0xBF, 0xBD)


def chunk_batches(
    log: Log, schema: pa.Schema, max_rows: int
) -> Iterator[pa.RecordBatch]:
    """Return the chunks of all attempts of a log, which is judged before the first of them.

    Args:
        log: The log.
        schema: Columns that are wanted, with names of `MAKERS`.
        max_rows: Rows of a batch, at most.

    Raises:
        StreamError: A stream breaks a rule of expansion.
        DshCodecError, OSError: As for iterating.

    Note:
        Memory: columns of `HELD_BYTES`, or of one attempt, and one batch.
    """
    pieces = _judged(log, text=not _TEXTS.isdisjoint(schema.names))
    return _convert(log.id, pieces, own_from(log), schema, max_rows)


def _judged(log: Log, *, text: bool) -> Iterator[Piece]:
    """Return the pieces of a log that is whole.

    They are held until its end, which is what tells; those of a log that is too large for that
    are made a second time.
    """
    pieces = log.iter_place_columns(text=text)
    held: deque[Piece] = deque()
    held_bytes = 0
    for piece in pieces:
        held.append(piece)
        held_bytes += piece[0].nbytes
        if held_bytes > HELD_BYTES:
            _check_streams(log)
            break
    return _let_go(held, pieces)


def _let_go(held: deque[Piece], pieces: Iterator[Piece]) -> Iterator[Piece]:
    while held:
        yield held.popleft()
    yield from pieces


def _check_streams(log: Log) -> None:
    if log.generation < 2:
        # What no column can hold of a group shows only when columns are made.
        for _ in log.iter_place_columns(text=False):
            pass
        return
    for fault in log.scan(check_streams=True).scan.stream_faults:
        # Without a stream an attempt has an empty one (80 §3).
        if fault.record >= 0:
            places = (log.path, None, None, fault.seq, None, None)
            raise StreamError(fault.message, *places, fault.record)


def _convert(
    session: str,
    pieces: Iterator[Piece],
    own_from: int,
    schema: pa.Schema,
    max_rows: int,
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    makers = [MAKERS[name] for name in schema.names]
    arena = _Arena()
    for columns, places in pieces:
        chunks = _Chunks(session, columns, places, own_from, arena, schema.names)
        for start in range(0, len(columns.time), max_rows):
            chunks.move_to(start, start + max_rows)
            yield pa.record_batch([make(chunks) for make in makers], schema=schema)


class _Arena:
    """Memory for columns that live on in what reads them.

    A few large blocks, which NumPy asks the system to back with huge pages, cost far fewer page
    faults than an array for each column and batch: `bench_table` shows it.
    """

    def __init__(self) -> None:
        import numpy as np

        self._room = np.empty(0, np.uint8)
        self._zeros: pa.Array | None = None

    def empty(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array whose values are not set."""
        import numpy as np

        size = count * np.dtype(dtype).itemsize
        if size > len(self._room):
            room = np.empty(max(ARENA_BYTES, size) + _HUGE_PAGE_BYTES, np.uint8)
            # What stands before the first border of huge pages is never touched.
            self._room = room[-room.ctypes.data % _HUGE_PAGE_BYTES :]
        part = self._room[:size].view(dtype)
        self._room = self._room[-(-size // _ALIGNMENT) * _ALIGNMENT :]
        return part

    def zeros(self, count: int) -> pa.Array:
        """Return int32 zeros, the same memory each time."""
        import numpy as np
        import pyarrow as pa

        if self._zeros is None or len(self._zeros) < count:
            self._zeros = pa.array(np.zeros(count, np.int32))
        return self._zeros.slice(0, count)


class _Chunks:
    """Some consecutive chunks of a piece of a log, and what their columns are made from.

    Attributes:
        session: Id of the session.
        part: Their columns.
        count: Chunks.
        arena: Where columns are put.
        marks: Which of them are what.
    """

    part: AttemptColumns
    marks: DerivedColumns

    def __init__(
        self,
        session: str,
        columns: AttemptColumns,
        places: PlaceColumns,
        own_from: int,
        arena: _Arena,
        names: Sequence[str],
    ) -> None:

        self.session = session
        self.arena = arena
        self.count = 0
        self._columns = columns
        self._first = 0
        self._last = len(places.seq)
        self._names = frozenset(names)
        self._derived: dict[str, npt.NDArray[np.int64]] = {}
        self._last_token: int | None = None
        self._sound_text: npt.NDArray[np.uint8] | None = None
        self._of_attempts: dict[str, tuple[npt.NDArray[Any], Any]] = {
            "seq": (places.seq, None),
            "turn": places.turn,
            "step": places.step,
            "attempt": (places.number, None),
            "outcome": (places.outcome, None),
            "own": (places.seq >= own_from, None),
        }

    def move_to(self, start: int, end: int) -> None:
        """Go on to other chunks; batches follow one another."""
        import numpy as np

        whole = self._columns
        end = min(end, len(whole.time))
        self.count = end - start
        self._first = int(whole.attempt.searchsorted(start, "right")) - 1
        self._last = int(whole.attempt.searchsorted(end, "left"))
        bounds = slice(self._first, self._last + 1)
        self.part = AttemptColumns(
            whole.time[start:end],
            whole.kind[start:end],
            whole.record[start:end],
            whole.offset[start : end + 1],
            whole.text,
            whole.record_index,
            whole.record_named,
            whole.attempt[bounds].clip(start, end) - start,
            whole.attempt_record[bounds],
        )
        wanted = self._names.intersection(_DERIVED + _OF_ATTEMPTS)
        # Without text, nobody needs an offset once it is behind.
        in_place = "byte_len" in wanted and _TEXTS.isdisjoint(self._names)
        self._derived = {
            name: self.arena.empty(self.count, np.int64)
            for name in (wanted - {"byte_len"} if in_place else wanted)
        }
        self.marks = kernel.derive_columns(
            whole,
            start,
            end,
            self._last_token,
            **{name: self._derived.get(name) for name in _DERIVED},
            of_attempts=[
                (self._of_attempts[name][0], self._derived[name])
                for name in _OF_ATTEMPTS
                if name in self._names
            ],
        )
        self._last_token = self.marks.last_token
        if in_place:
            offset = whole.offset[start : end + 1]
            self._derived["byte_len"] = np.subtract(
                offset[1:], offset[:-1], out=offset[:-1]
            )

    def derived(
        self, name: str, valid: tuple[npt.NDArray[np.uint8], int] | None = None
    ) -> pa.Array:
        """Return a column of integers; bits say where it is not null, None: everywhere."""
        import pyarrow as pa

        bits, known = (None, self.count) if valid is None else valid
        validity = None if known == self.count else pa.py_buffer(bits)
        buffers = [validity, pa.py_buffer(self._derived[name])]
        nulls = self.count - known
        return pa.Array.from_buffers(pa.int64(), self.count, buffers, nulls)

    def integers_of_attempt(self, name: str) -> pa.Array:
        """Give each chunk a number of its attempt."""
        import pyarrow as pa

        is_null = self._of_attempts[name][1]
        if is_null is None:
            return self.derived(name)
        return pa.array(self._derived[name], mask=self._repeated(is_null))

    def of_attempt(self, name: str) -> pa.Array:
        """Give each chunk a value of its attempt."""
        import pyarrow as pa

        return pa.array(self._repeated(self._of_attempts[name][0]))

    def _repeated(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        counts = self.part.attempt[1:] - self.part.attempt[:-1]
        return values[self._first : self._last].repeat(counts)

    def coded(self, codes: pa.Array, names: Sequence[str]) -> pa.Array:
        """Return codes as a dictionary array."""
        import pyarrow as pa

        words = pa.array(names, pa.string())
        return pa.DictionaryArray.from_arrays(codes, words, safe=False)

    def text_array(self, text: npt.NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
        """Return the fragments; nothing is copied."""
        import pyarrow as pa

        buffers = [None, pa.py_buffer(self.part.offset), pa.py_buffer(text)]
        return pa.Array.from_buffers(kind, self.count, buffers)

    def sound_text(self) -> npt.NDArray[np.uint8]:
        """Return the text of the piece with U+FFFD in the place of lone surrogates."""
        if self._sound_text is None:
            self._sound_text = _without_surrogates(self._columns.text)
        return self._sound_text


def _without_surrogates(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    import numpy as np

    leads = (text == _SURROGATE_LEAD).nonzero()[0]
    leads = leads[text[leads + 1] >= _SURROGATE_SECOND]
    if not len(leads):
        return text
    text = text.copy()
    for distance, byte in enumerate(_REPLACEMENT):
        text[leads + distance] = np.uint8(byte)
    return text


def _session(chunks: _Chunks) -> pa.Array:
    from dsh_codec.table_rows import sound

    codes = chunks.arena.zeros(chunks.count)
    return chunks.coded(codes, [sound(chunks.session)])


def _outcome(chunks: _Chunks) -> pa.Array:
    return chunks.coded(chunks.of_attempt("outcome"), OUTCOMES)


def _kind(chunks: _Chunks) -> pa.Array:
    import pyarrow as pa

    return chunks.coded(pa.array(chunks.part.kind.view("int8")), KINDS)


def _time(chunks: _Chunks) -> pa.Array:
    import pyarrow as pa

    return pa.array(chunks.part.time).view(pa.timestamp("ms", "UTC"))


def _record(chunks: _Chunks) -> pa.Array:
    import pyarrow as pa

    return pa.array(chunks.part.record)


def _token(chunks: _Chunks) -> pa.Array:
    import pyarrow as pa

    bits, _ = chunks.marks.token
    return pa.Array.from_buffers(
        pa.bool_(), chunks.count, [None, pa.py_buffer(bits)], 0
    )


def _text(chunks: _Chunks) -> pa.Array:
    import pyarrow as pa

    return chunks.text_array(chunks.sound_text(), pa.large_string())


def _wtf8(chunks: _Chunks) -> pa.Array:
    import pyarrow as pa

    return chunks.text_array(chunks.part.text, pa.large_binary())


MAKERS: Final[dict[str, Callable[[_Chunks], pa.Array]]] = {
    "session": _session,
    "seq": lambda chunks: chunks.integers_of_attempt("seq"),
    "turn": lambda chunks: chunks.integers_of_attempt("turn"),
    "step": lambda chunks: chunks.integers_of_attempt("step"),
    "attempt": lambda chunks: chunks.integers_of_attempt("attempt"),
    "outcome": _outcome,
    "own": lambda chunks: chunks.of_attempt("own"),
    "record": _record,
    "index": lambda chunks: chunks.derived("index", chunks.marks.indexed),
    "kind": _kind,
    "time": _time,
    "token": _token,
    "gap": lambda chunks: chunks.derived("gap", chunks.marks.gap),
    "byte_len": lambda chunks: chunks.derived("byte_len"),
    "text": _text,
    "text_wtf8": _wtf8,
}
"""How each column is made from chunks."""
