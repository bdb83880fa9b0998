"""The stream of one attempt: records, chunks, text, blocks. Spec: 20."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from dsh_codec._backend import kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dsh_codec._kernel import StoredStream
    from dsh_codec._types import StreamColumns, TimedChunk

__all__ = ["Assembled", "Stream", "assemble"]

MEMBERS: Final[dict[str, str]] = {
    "text-chunks": "texts",
    "reasoning-chunks": "texts",
    "tool-call-chunks": "args",
}
"""Key of the members of each kind of run, in records and packed rows alike. Spec: 20 §2."""


class Assembled(NamedTuple):
    """What the chunks of an attempt amount to. Spec: 20 §6.1.

    Attributes:
        blocks: Content blocks, tool calls cut off by `max-tokens` left out.
        interrupted_blocks: Visible text and reasoning blocks only.
        usage: The last usage; None if there was none.
        finish: The last finish reason; `{"kind": "stop"}` if there was none.
        replay_state: The replay state that fits `blocks`; None if absent.
    """

    blocks: list[dict[str, Any]]
    interrupted_blocks: list[dict[str, Any]]
    usage: Any
    finish: Any
    replay_state: Any


def assemble(records: Sequence[Mapping[str, Any]], /) -> Assembled:
    """Assemble the content blocks of a stream.

    Args:
        records: Records of a `stream` field, in order. They are not validated.

    Returns:
        Blocks, usage, finish reason and replay state.

    Raises:
        UnknownChunkError: A chunk has a type that assembly does not know.
        StreamError: A chunk cannot be assembled, or a block of unknown type is still open.

    Note:
        Linear. Spec: 20 §5, §6.

    Example:
        >>> run = {"type": "text-chunks", "time0": 1, "index": 0, "dt": [2], "texts": ["a", "b"]}
        >>> assemble([run]).blocks
        [{'type': 'text', 'text': 'ab'}]
    """
    assembler = kernel.Assembler()
    assembler.push_records(records)
    return Assembled(
        assembler.blocks(),
        assembler.interrupted_blocks(),
        assembler.usage(),
        assembler.finish(),
        assembler.replay_state(),
    )


class Stream:
    """The stream of one attempt.

    Nothing is parsed, expanded or checked before it is asked for. A stream that comes from a
    log keeps the bytes of its rows and answers from them, without a Python object for each
    chunk, until its records are asked for.

    Attributes:
        stored: The rows it comes from; None once there are records.
    """

    __slots__ = ("_read", "_records", "stored")

    stored: StoredStream | None

    def __init__(self, records: list[dict[str, Any]]) -> None:
        """Keep the records; they are not copied."""
        self._records: list[dict[str, Any]] | None = records
        self._read: Callable[[], list[dict[str, Any]]] = list
        self.stored = None

    @classmethod
    def from_rows(
        cls, stored: StoredStream, read: Callable[[], list[dict[str, Any]]]
    ) -> Self:
        """Return a stream that is still bytes.

        Args:
            stored: Its rows.
            read: Makes the records of these rows.
        """
        stream = cls([])
        stream._records = None
        stream._read = read
        stream.stored = stored
        return stream

    def __repr__(self) -> str:
        """Return the number of chunks."""
        return f"Stream({self.chunk_count} chunks)"

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records, in order (20 §2); empty if the settlement has no stream."""
        if self._records is None:
            self._records = self._read()
            self._read, self.stored = list, None
        return self._records

    def expand(self) -> list[TimedChunk]:
        """Return all chunks with their times in milliseconds.

        Raises:
            StreamError: A record breaks a rule; `.record` is its index. Spec: 20 §4.
        """
        return kernel.expand(self.records)

    def iter_expand(self) -> Iterator[TimedChunk]:
        """Yield what `expand` returns, one record at a time.

        Raises:
            StreamError: When a bad record is reached.
        """
        return kernel.iter_expand(self.records)

    def columns(self) -> StreamColumns:
        """Return all chunks as NumPy arrays: times, kinds, block indices, text.

        Returns:
            21 bytes a chunk and its text, see `StreamColumns`.

        Raises:
            StreamError: A record breaks a rule; `.record` is its index. Spec: 20 §4.

        Note:
            Straight from the row's bytes where the records were not asked for.
        """
        if self.stored is not None:
            return self.stored.columns()
        return kernel.stream_columns(self.records)

    def assemble(self) -> Assembled:
        """Assemble the content blocks, see `assemble`."""
        return assemble(self.records)

    @property
    def text(self) -> str:
        """The answer text: all text deltas joined, reasoning and tool calls left out."""
        if self.stored is not None:
            return self.stored.text()
        return kernel.join_text(self.records)

    @property
    def first_token_time(self) -> int | None:
        """Time of the first token in milliseconds; None without one. Spec: 20 §5."""
        if self.stored is not None:
            return self.stored.first_token_time()
        return kernel.first_token_time(self.records)

    @property
    def time_span(self) -> tuple[int, int] | None:
        """Times of the first and the last chunk in milliseconds; None without chunks.

        Raises:
            StreamError: The record of one of them breaks a rule. Spec: 20 §4.
        """
        if self.stored is not None:
            return self.stored.time_span()
        ends = [self.records[0], self.records[-1]] if self.records else []
        times = [chunk.time for chunk in kernel.expand(ends)]
        return (times[0], times[-1]) if times else None

    @property
    def has_visible_content(self) -> bool:
        """Whether any chunk shows something. Spec: 20 §5."""
        if self.stored is not None:
            return self.stored.has_visible_content()
        return kernel.has_visible_content(self.records)

    @property
    def chunk_count(self) -> int:
        """Chunks that the records stand for. Counted, not expanded or checked."""
        if self.stored is not None:
            return self.stored.chunk_count()
        return sum(map(_count_members, self.records))

    def last_chunk(self, type: str, /) -> dict[str, Any] | None:  # noqa: A002 - as the kernel
        """Return the last raw chunk of a type, or None. Spec: 20 §5."""
        if self.stored is not None:
            return self.stored.last_chunk(type)
        return kernel.last_chunk(self.records, type)


def _count_members(record: object) -> int:
    if isinstance(record, dict):
        members = record.get(MEMBERS.get(_text(record.get("type")), ""))
        if isinstance(members, list):
            return len(members)
    return 1


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
