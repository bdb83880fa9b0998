"""Chunks of logs as Arrow record batches, without a Python object for each. Spec: 20 §5, 80 §5."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dsh_codec._types import AttemptColumns
from dsh_codec.corpus import own_from
from dsh_codec.errors import StreamError
from dsh_codec.values import is_safe_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from dsh_codec.attempts import AttemptPlace
    from dsh_codec.log import Log

    Piece: TypeAlias = tuple[AttemptColumns, list[AttemptPlace]]

__all__ = ["MAKERS", "chunk_batches"]

HELD_BYTES: Final = 128 << 20
"""Bytes of columns of one log that wait for its end: more than 200 MB of plaintext."""

ARENA_BYTES: Final = 16 << 20
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

OUTCOMES: Final = ("message", "interrupted", "failed", "open")

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
    pieces = _judged(log)
    return _convert(log.id, pieces, own_from(log), schema, max_rows)


def _judged(log: Log) -> Iterator[Piece]:
    """Return the pieces of a log that is whole.

    They are held until its end, which is what tells; those of a log that is too large for that
    are made a second time.
    """
    pieces = log.iter_columns()
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
        for _ in log.iter_columns():
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
        chunks = _Chunks(session, columns, places, own_from, arena)
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

    def empty(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array whose values are not set."""
        import numpy as np

        size = count * np.dtype(dtype).itemsize
        if size > len(self._room):
            self._room = np.empty(max(ARENA_BYTES, size), np.uint8)
        part = self._room[:size].view(dtype)
        self._room = self._room[-(-size // _ALIGNMENT) * _ALIGNMENT :]
        return part

    def keep(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy."""
        part = self.empty(len(values), values.dtype)
        part[:] = values
        return part


class _Chunks:
    """Some consecutive chunks of a piece of a log, and what their columns are made from.

    Attributes:
        session: Id of the session.
        part: Their columns.
        count: Chunks.
        arena: Where columns are put.
    """

    def __init__(
        self,
        session: str,
        columns: AttemptColumns,
        places: Sequence[AttemptPlace],
        own_from: int,
        arena: _Arena,
    ) -> None:
        import numpy as np

        self.session = session
        self.arena = arena
        self.part = columns
        self.count = len(columns.time)
        self._columns = columns
        self._first = 0
        self._last = len(places)
        self._sound_text: npt.NDArray[np.uint8] | None = None
        self._token: npt.NDArray[np.bool_] | None = None
        self._last_token = (-1, 0)  # its attempt, its time
        seq = np.array([place.seq for place in places], np.int64)
        outcome = [OUTCOMES.index(place.outcome) for place in places]
        self._of_attempts: dict[str, tuple[npt.NDArray[Any], Any]] = {
            "seq": (seq, None),
            "turn": _integers([place.turn for place in places]),
            "step": _integers([place.step for place in places]),
            "attempt": _integers([place.number for place in places]),
            "outcome": (np.array(outcome, np.int8), None),
            "own": (seq >= own_from, None),
        }

    def move_to(self, start: int, end: int) -> None:
        """Go on to other chunks; batches follow one another."""
        whole = self._columns
        end = min(end, len(whole.time))
        self.count = end - start
        self._token = None
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

    def of_attempt(self, name: str) -> pa.Array:
        """Give each chunk a value of its attempt."""
        import pyarrow as pa

        values, is_null = self._of_attempts[name]
        part = slice(self._first, self._last)
        counts = self.part.attempt[1:] - self.part.attempt[:-1]
        mask = None if is_null is None else is_null[part].repeat(counts)
        return pa.array(self.arena.keep(values[part].repeat(counts)), mask=mask)

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

    @property
    def token(self) -> npt.NDArray[np.bool_]:
        """Whether each chunk is a token delta."""
        if self._token is None:
            self._token = self.part.token
        return self._token

    def gaps(self) -> pa.Array:
        """Return the time since the token before, for tokens but the first of an attempt."""
        import numpy as np

        is_null = ~self.token
        time = self.part.time
        gaps = self.arena.empty(self.count, np.int64)
        gaps[:1] = 0
        np.subtract(time[1:], time[:-1], out=gaps[1:])
        # Nearly all chunks are tokens. Behind a run of others the gap reaches over it.
        others = is_null.nonzero()[0]
        borders = np.diff(others) != 1
        run_firsts = others[np.append(True, borders)[: len(others)]]
        behind = others[np.append(borders, True)[: len(others)]] + 1
        before = run_firsts - 1
        within = (before >= 0) & (behind < self.count)
        gaps[behind[within]] = time[behind[within]] - time[before[within]]
        # The first token of an attempt is the first at or behind the attempt's first chunk.
        firsts = self.part.attempt[:-1]
        runs = run_firsts.searchsorted(firsts, "right") - 1
        is_in_run = is_null[firsts]
        firsts = np.where(is_in_run, behind[runs] if len(behind) else firsts, firsts)
        firsts = firsts[firsts < self.count]
        is_null[firsts] = True
        return self._carried(gaps, is_null)

    def _carried(
        self, gaps: npt.NDArray[np.int64], is_null: npt.NDArray[np.bool_]
    ) -> pa.Array:
        """Return gaps with that to the last token of the batch before, in the same attempt."""
        import pyarrow as pa

        if self.token.any():
            first = int(self.token.argmax())
            last = self.count - 1 - int(self.token[::-1].argmax())
            firsts = self.part.attempt[:-1]
            attempts = firsts.searchsorted([first, last], "right") + self._first
            if attempts[0] == self._last_token[0]:
                gaps[first] = self.part.time[first] - self._last_token[1]
                is_null[first] = False
            self._last_token = int(attempts[1]), int(self.part.time[last])
        return pa.array(gaps, mask=is_null)


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


def _integers(values: list[Any]) -> tuple[npt.NDArray[np.int64], Any]:
    """Return integers, and where they are null; None if nowhere."""
    import numpy as np

    found = [int(value) if is_safe_integer(value) else None for value in values]
    is_null = np.array([value is None for value in found])
    known = np.array([value or 0 for value in found], np.int64)
    return known, is_null if is_null.any() else None


def _session(chunks: _Chunks) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    from dsh_codec.table_rows import sound

    codes = chunks.arena.empty(chunks.count, np.int32)
    codes[:] = 0
    return chunks.coded(pa.array(codes), [sound(chunks.session)])


def _outcome(chunks: _Chunks) -> pa.Array:
    return chunks.coded(chunks.of_attempt("outcome"), OUTCOMES)


def _kind(chunks: _Chunks) -> pa.Array:
    import pyarrow as pa

    return chunks.coded(pa.array(chunks.part.kind.view("int8")), KINDS)


def _index(chunks: _Chunks) -> pa.Array:
    import pyarrow as pa

    index = chunks.arena.keep(chunks.part.index)
    is_null = index < 0
    return pa.array(index, mask=is_null if is_null.any() else None)


def _time(chunks: _Chunks) -> pa.Array:
    import pyarrow as pa

    return pa.array(chunks.part.time).view(pa.timestamp("ms", "UTC"))


def _byte_len(chunks: _Chunks) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    lengths = chunks.arena.empty(chunks.count, np.int64)
    offset = chunks.part.offset
    return pa.array(np.subtract(offset[1:], offset[:-1], out=lengths))


def _record(chunks: _Chunks) -> pa.Array:
    import pyarrow as pa

    return pa.array(chunks.part.record)


def _token(chunks: _Chunks) -> pa.Array:
    import pyarrow as pa

    return pa.array(chunks.token)


def _text(chunks: _Chunks) -> pa.Array:
    import pyarrow as pa

    return chunks.text_array(chunks.sound_text(), pa.large_string())


def _wtf8(chunks: _Chunks) -> pa.Array:
    import pyarrow as pa

    return chunks.text_array(chunks.part.text, pa.large_binary())


MAKERS: Final[dict[str, Callable[[_Chunks], pa.Array]]] = {
    "session": _session,
    "seq": lambda chunks: chunks.of_attempt("seq"),
    "turn": lambda chunks: chunks.of_attempt("turn"),
    "step": lambda chunks: chunks.of_attempt("step"),
    "attempt": lambda chunks: chunks.of_attempt("attempt"),
    "outcome": _outcome,
    "own": lambda chunks: chunks.of_attempt("own"),
    "record": _record,
    "index": _index,
    "kind": _kind,
    "time": _time,
    "token": _token,
    "gap": lambda chunks: chunks.gaps(),
    "byte_len": _byte_len,
    "text": _text,
    "text_wtf8": _wtf8,
}
"""How each column is made from chunks."""
