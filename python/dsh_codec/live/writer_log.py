"""A host's log on disk: a writer, and the events that it has committed. Spec: 40 §2, 10 §11.

`WriterLog` waits for the disk in the caller's thread, `AsyncWriterLog` in a thread of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, overload

from dsh_codec._backend import kernel
from dsh_codec.async_writer import AsyncWriter
from dsh_codec.errors import IdentityError
from dsh_codec.log import open as open_log
from dsh_codec.writer import Writer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from dsh_codec.live.frames import Event

__all__ = ["AsyncWriterLog", "StoredEvents", "WriterLog", "now_ms"]

_DECODED_EVENTS: Final = 256
_DECODED_BYTES: Final = 16 << 20


def now_ms() -> int:
    """Return milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


class StoredEvents(Sequence[Any]):
    """Events of a log from seq 0, as rows; decoded when one is asked for.

    What is returned is shared: it must not be changed.

    Memory: the rows, and decoded the events that were asked for last: 256, fewer if their rows
    have more than 16 MiB.
    """

    def __init__(self) -> None:
        """Start without events."""
        self._rows: list[bytes] = []
        self._decoded: OrderedDict[int, Event] = OrderedDict()
        self._decoded_bytes = 0

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Event: ...
    @overload
    def __getitem__(self, place: slice) -> list[Event]: ...
    def __getitem__(self, place: int | slice) -> Event | list[Event]:
        """Return an event, or a list of events."""
        if isinstance(place, slice):
            return [self._event(seq) for seq in range(*place.indices(len(self)))]
        return self._event(range(len(self))[place])

    def _event(self, seq: int) -> Event:
        event = self._decoded.get(seq)
        if event is None:
            event = kernel.parse(self._rows[seq])
            if "sourceEventSeqs" in event:
                event["sourceEventSeqs"] = kernel.decode_seqs(
                    event["sourceEventSeqs"], codec="v2", max_entries=seq
                )
            self._keep(seq, event)
        else:
            self._decoded.move_to_end(seq)
        return event

    def _keep(self, seq: int, event: Event) -> None:
        self._decoded[seq] = event
        self._decoded_bytes += len(self._rows[seq])
        while len(self._decoded) > _DECODED_EVENTS or (
            self._decoded_bytes > _DECODED_BYTES and len(self._decoded) > 1
        ):
            oldest, _ = self._decoded.popitem(last=False)
            self._decoded_bytes -= len(self._rows[oldest])

    def add(self, row: bytes) -> None:
        """Take the row of the next event."""
        self._rows.append(row)


class _Stored:
    """Header and events behind a writer that holds the session's lock."""

    def __init__(self, writer: Writer, clock: Callable[[], int]) -> None:
        """Read what the log holds.

        Raises:
            ValueError: The writer is closed, or holds events back.
            IdentityError: The log changed since the writer was opened.
            DshCodecError, OSError: The log cannot be read.
        """
        if writer.is_closed or writer.buffered_count:
            message = (
                "the writer is closed, or holds events back; give an open and empty one"
            )
            raise ValueError(message)
        self.header = writer.header
        self.events = StoredEvents()
        self._clock = clock
        if writer.stored_count:
            with open_log(writer.path) as log:
                for event in log:
                    self.events.add(event.raw)
        if len(self.events) != writer.stored_count:
            message = "the log has other events than when its writer was opened"
            raise IdentityError(message, writer.path)

    def _stamp(self, event: Mapping[str, Any]) -> dict[str, Any]:
        place = {"seq": len(self.events), "time": self._clock()}
        return {"type": event.get("type"), **place, **event}

    def _commit(self, event: dict[str, Any]) -> Event:
        self.events.add(kernel.encode_event(event))
        return self.events[-1]


class WriterLog(_Stored):
    """A `SessionLog` on disk. A context manager: leaving closes the writer.

    Each append is one batch, on disk when the call returns. An append that raises leaves no event,
    so the attempt that it was to settle ends as abandoned. After a failed sync the writer refuses
    everything: close the log, open it again, and give it to `Host.attach`.

    Attributes:
        writer: The writer; it must not be given other events.
        header: Logical header.
        events: Committed events.

    Example:
        >>> import tempfile
        >>> root = tempfile.TemporaryDirectory()
        >>> writer = Writer.create(root.name, {"id": "s", "createdAt": 0})
        >>> with WriterLog(writer, clock=lambda: 7) as log:
        ...     log.append({"type": "turn/start", "data": {"turn": 1}})
        {'type': 'turn/start', 'seq': 0, 'time': 7, 'data': {'turn': 1}}
        >>> root.cleanup()
    """

    def __init__(self, writer: Writer, *, clock: Callable[[], int] = now_ms) -> None:
        """Take a writer and read the events that its log has.

        Args:
            writer: A writer that was just created or opened.
            clock: Returns milliseconds since the Unix epoch, the time of appended events.

        Raises:
            ValueError: The writer is closed, or holds events back.
            IdentityError: The log changed since the writer was opened.
            DshCodecError, OSError: The log cannot be read.
        """
        super().__init__(writer, clock)
        self.writer = writer

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str],
        header: Mapping[str, Any],
        *,
        clock: Callable[[], int] = now_ms,
        **options: Any,
    ) -> Self:
        """Prepare a new session, see `Writer.create`.

        Args:
            root: The sessions root.
            header: Logical header.
            clock: As for the class.
            **options: As for `Writer.create`; `clock` is not among them.
        """
        return cls(Writer.create(root, header, **options), clock=clock)

    @classmethod
    def open(
        cls,
        source: str | os.PathLike[str],
        *,
        clock: Callable[[], int] = now_ms,
        **options: Any,
    ) -> Self:
        """Open a session to continue it, see `Writer.open`.

        Args:
            source: A session directory or a log file.
            clock: As for the class.
            **options: As for `Writer.open`; `clock` is not among them.
        """
        writer = Writer.open(source, **options)
        try:
            return cls(writer, clock=clock)
        except BaseException:
            writer.close()
            raise

    def __enter__(self) -> Self:
        """Return the log."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the log."""
        self.close()

    def append(self, event: Mapping[str, Any], /) -> Event:
        """Append an event; it is on disk when this returns.

        Args:
            event: `type`, `data`, and what else it has but seq and time.

        Returns:
            The event as a reader of the log has it.

        Raises:
            DshCodecError, OSError, TypeError, ValueError: As for `Writer.append`. The event is
                not in `events`.
        """
        stamped = self._stamp(event)
        self.writer.append([stamped])
        return self._commit(stamped)

    def close(self) -> None:
        """Close the writer, which gives the session's lock back."""
        self.writer.close()


class AsyncWriterLog(_Stored):
    """An `AsyncSessionLog` on disk: what `WriterLog` is, but the event loop runs on meanwhile.

    Appends are done one after the other, in the order of the calls.

    Attributes:
        writer: The writer; it must not be given other events.
        header: Logical header.
        events: Committed events.
    """

    def __init__(
        self, writer: AsyncWriter, *, clock: Callable[[], int] = now_ms
    ) -> None:
        """Take a writer and read the events that its log has, see `WriterLog`.

        Args:
            writer: A writer that was just created or opened.
            clock: Returns milliseconds since the Unix epoch, the time of appended events.

        Raises:
            ValueError, DshCodecError, OSError: As for `WriterLog`.
        """
        super().__init__(writer.writer, clock)
        self.writer = writer
        self._turn = asyncio.Lock()

    @classmethod
    async def create(
        cls,
        root: str | os.PathLike[str],
        header: Mapping[str, Any],
        *,
        clock: Callable[[], int] = now_ms,
        **options: Any,
    ) -> Self:
        """Prepare a new session, see `WriterLog.create`."""
        writer = await AsyncWriter.create(root, header, **options)
        return cls(writer, clock=clock)

    @classmethod
    async def open(
        cls,
        source: str | os.PathLike[str],
        *,
        clock: Callable[[], int] = now_ms,
        **options: Any,
    ) -> Self:
        """Open a session to continue it, see `WriterLog.open`."""
        writer = await AsyncWriter.open(source, **options)
        try:
            # Reading a long log takes its time, which is not the event loop's.
            return await asyncio.to_thread(cls, writer, clock=clock)
        except BaseException:
            await writer.close()
            raise

    async def __aenter__(self) -> Self:
        """Return the log."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the log."""
        await self.close()

    async def append(self, event: Mapping[str, Any], /) -> Event:
        """Append an event, see `WriterLog.append`. `Host.append_async` survives cancellation."""
        async with self._turn:
            stamped = self._stamp(event)
            await self.writer.append([stamped])
            return self._commit(stamped)

    async def close(self) -> None:
        """Close the writer, which gives the session's lock back."""
        await self.writer.close()
