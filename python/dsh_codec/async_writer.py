"""A writer for asyncio: the disk is waited for in a thread of its own, the window has a timer."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dsh_codec.writer import Writer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from typing_extensions import Buffer

__all__ = ["AsyncWriter"]

T = TypeVar("T")


class AsyncWriter:
    """`Writer` whose calls are awaited; the event loop is never blocked by a disk.

    Calls are done one after the other, in the order in which they were made. A call that is
    cancelled while it runs is finished all the same: ask `next_seq`.

    Attributes:
        writer: The writer behind it; do not call it while calls are under way.
    """

    def __init__(self, writer: Writer, executor: ThreadPoolExecutor) -> None:
        """Take a writer and its thread; use `create` or `open`."""
        self.writer = writer
        self._executor = executor
        self._timer: asyncio.TimerHandle | None = None
        self._flush: asyncio.Task[None] | None = None
        self._fault: BaseException | None = None

    @classmethod
    async def create(
        cls, root: str | os.PathLike[str], header: Mapping[str, Any], **options: Any
    ) -> Self:
        """Prepare a new session, see `Writer.create`.

        Args:
            root: The sessions root.
            header: Logical header.
            **options: As for `Writer.create`.
        """
        return await cls._start(partial(Writer.create, root, header, **options))

    @classmethod
    async def open(cls, source: str | os.PathLike[str], **options: Any) -> Self:
        """Open a session to continue it, see `Writer.open`.

        Args:
            source: A session directory or a log file.
            **options: As for `Writer.open`.
        """
        return await cls._start(partial(Writer.open, source, **options))

    @classmethod
    async def _start(cls, make: Callable[[], Writer]) -> Self:
        executor = ThreadPoolExecutor(1, thread_name_prefix="dsh-codec-writer")
        pending = asyncio.get_running_loop().run_in_executor(executor, make)
        try:
            return cls(await asyncio.shield(pending), executor)
        except asyncio.CancelledError:
            # The lock is taken in the thread, whoever waits for it.
            pending.add_done_callback(partial(_abandon, executor))
            raise
        except BaseException:
            executor.shutdown(wait=False)
            raise

    async def __aenter__(self) -> Self:
        """Return the writer."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the writer."""
        await self.close()

    @property
    def next_seq(self) -> int:
        """The seq that the next event has to have, when all calls made so far are through."""
        return self.writer.next_seq

    async def append(self, events: Iterable[Mapping[str, Any]]) -> int:
        """Write events as one batch, see `Writer.append`."""
        return await self._run(self.writer.append, list(events))

    async def append_rows(self, rows: Buffer) -> int:
        """Write rows that are text as one batch, see `Writer.append_rows`.

        Args:
            rows: As for `Writer.append_rows`; must not be changed meanwhile.
        """
        return await self._run(self.writer.append_rows, rows)

    async def append_settlement(self, stream: Any, **members: Any) -> int:
        """Append a settlement, see `Writer.append_settlement`."""
        call = partial(self.writer.append_settlement, **members)
        return await self._run(call, stream)

    async def enqueue(self, events: Iterable[Mapping[str, Any]]) -> int:
        """Check events and write them within the window, see `Writer.enqueue`.

        Raises:
            DshCodecError, OSError: As for `Writer.enqueue`; or an earlier batch could not be
                written when its window had passed.
        """
        seq = await self._run(self.writer.enqueue, list(events))
        self._arm()
        return seq

    async def flush(self) -> None:
        """Write what is buffered, see `Writer.flush`."""
        await self._run(self.writer.flush)

    async def close(self) -> None:
        """Flush, close, give the lock back, see `Writer.close`."""
        self._disarm()
        if self._flush is not None:
            await asyncio.wait([self._flush])
        if self.writer.is_closed:
            return
        try:
            await self._run(self.writer.close)
        finally:
            self._executor.shutdown(wait=False)

    async def _run(self, call: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        step = partial(self._call, call, *arguments)
        return await asyncio.shield(loop.run_in_executor(self._executor, step))

    def _call(self, call: Callable[..., T], *arguments: Any) -> T:
        """Do a call, in the thread: it comes behind every flush that was due before."""
        fault, self._fault = self._fault, None
        if fault is not None and call != self.writer.close:
            raise fault
        result = call(*arguments)
        if fault is not None:
            raise fault
        return result

    def _arm(self) -> None:
        due = self.writer.due_in_ms
        if due is not None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(due / 1000, self._start_flush)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_flush(self) -> None:
        self._timer = None
        self._flush = asyncio.get_running_loop().create_task(self._flush_due())

    async def _flush_due(self) -> None:
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._executor, self._has_flushed):
            self._arm()

    def _has_flushed(self) -> bool:
        """Flush, in the thread; what fails is noted for the call that comes next."""
        try:
            self.writer.flush_if_due()
        except Exception as error:
            self._fault = error
            return False
        return True


def _abandon(executor: ThreadPoolExecutor, pending: asyncio.Future[Writer]) -> None:
    """Close a writer that nobody waits for any more."""
    if not pending.cancelled() and pending.exception() is None:
        executor.submit(pending.result().close)
    executor.shutdown(wait=False)
