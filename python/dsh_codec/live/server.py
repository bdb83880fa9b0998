"""Reference server: follows and pages of sessions over a local socket, as lines of `wire`.

Only who knows the token gets anything. A connection that breaks a rule is closed, and no other one
notices. Spec: 40, G6.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING, Any, Final

from dsh_codec.errors import DshCodecError, SeqGapError
from dsh_codec.events import is_object
from dsh_codec.live.wire import (
    MAX_REQUEST_BYTES,
    ItemEncoder,
    decode_line,
    encode_line,
)
from dsh_codec.values import is_count

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType
    from typing import Self

    from dsh_codec.live.follower import Follower
    from dsh_codec.live.host import Host

__all__ = ["Server"]

_BATCH_ITEMS: Final = 64
"""Items written in one go, before other connections get their turn."""

_MAX_FOLLOWS: Final = 16
"""Follows of one connection."""


class Server:
    """Serves hosts in one event loop. A context manager: entering listens, leaving closes.

    Memory: for each connection its requests of at most `max_request_bytes`, the socket buffer, and
    the bounded queues of its follows.
    """

    def __init__(
        self,
        find_host: Callable[[Any], Host | None],
        token: str,
        *,
        interface: str = "127.0.0.1",
        port: int = 0,
        max_connections: int = 4096,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        token_timeout_s: float = 10.0,
        write_timeout_s: float = 30.0,
        gather_s: float = 0.004,
    ) -> None:
        """Prepare a server.

        Args:
            find_host: Returns the host of an address, or None.
            token: Secret that clients have to know, not empty.
            interface: Address to listen at; loopback unless told otherwise.
            port: Port; 0 takes a free one.
            max_connections: Connections at a time; more are closed at once.
            max_request_bytes: Bytes in a line of a client.
            token_timeout_s: Seconds that a client has for its token.
            write_timeout_s: Seconds in which a client has to take what was written.
            gather_s: Seconds for which items are gathered before all followers are woken, so that
                a fast stream costs one write for several chunks. 0 wakes at once.

        Raises:
            ValueError: The token is empty.
        """
        if not token:
            message = "a server needs a token"
            raise ValueError(message)
        self._find_host = find_host
        self._token = token.encode("utf-8", "surrogatepass")
        self._interface = interface
        self._port = port
        self._max_connections = max_connections
        self._max_request_bytes = max_request_bytes
        self._token_timeout_s = token_timeout_s
        self._write_timeout_s = write_timeout_s
        self._encoder = ItemEncoder()
        self._pulse = _Pulse(gather_s)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Port that the server listens at; 0 while it does not."""
        if self._server is None:
            return 0
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connection_count(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(
            self._serve, self._interface, self._port, limit=self._max_request_bytes
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop listening and close every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= self._max_connections:
            writer.transport.abort()
            return
        self._connections.add(task)
        connection = _Connection(
            writer, self._encoder, self._pulse, self._write_timeout_s
        )
        try:
            if await self._is_admitted(reader):
                await connection.send({"welcome": 1})
                await self._answer(reader, connection)
        except (DshCodecError, OSError, ValueError, TimeoutError):
            # A line that is too long or malformed, or a connection that is gone.
            pass
        except asyncio.CancelledError:
            # The server closes; a cancelled handler would be reported as an error.
            pass
        finally:
            self._connections.discard(task)
            await connection.close()

    async def _is_admitted(self, reader: asyncio.StreamReader) -> bool:
        async with asyncio.timeout(self._token_timeout_s):
            given = decode_line(await reader.readline()).get("token")
        if type(given) is not str:
            return False
        token = given.encode("utf-8", "surrogatepass")
        return hmac.compare_digest(token, self._token)

    async def _answer(
        self, reader: asyncio.StreamReader, connection: _Connection
    ) -> None:
        while line := await reader.readline():
            request = decode_line(line)
            number = request.get("id")
            if not is_count(number):
                return
            number = int(number)
            if "follow" in request:
                await self._follow(connection, number, request["follow"])
            elif "page" in request:
                await connection.send(self._page(number, request["page"]))
            elif request.get("cancel") is True:
                connection.cancel(number)
            else:
                return

    def _resolve(self, request: Any) -> Host | None:
        if not is_object(request):
            message = "bad-request: a request has to be an object"
            raise ValueError(message)
        return self._find_host(request.get("address"))

    def _page(self, number: int, request: Any) -> dict[str, Any]:
        try:
            host = self._resolve(request)
            if host is None:
                return _refusal(number, "not-found", "there is no such session")
            return {"id": number, "page": host.page(request)}
        except ValueError as error:
            return _refusal(number, "bad-request", str(error))

    async def _follow(self, connection: _Connection, number: int, request: Any) -> None:
        try:
            host = self._resolve(request)
            if host is None:
                text = "there is no such session"
                await connection.send(_refusal(number, "not-found", text))
            elif not connection.has_room(number):
                text = "bad-request: the id is in use, or there are too many follows"
                await connection.send(_refusal(number, "bad-request", text))
            else:
                connection.follow(number, host, request)
        except ValueError as error:
            await connection.send(_refusal(number, "bad-request", str(error)))


def _refusal(number: int, code: str, message: str) -> dict[str, Any]:
    return {"id": number, "error": {"code": code, "message": message}}


class _Pulse:
    """Wakes all followers that something was pushed to, together."""

    def __init__(self, gather_s: float) -> None:
        self._gather_s = gather_s
        self._waiting: set[asyncio.Event] = set()

    def wake(self, pushed: asyncio.Event) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_later(self._gather_s, self._fire)
        self._waiting.add(pushed)

    def _fire(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for pushed in waiting:
            pushed.set()


class _Connection:
    """Writer of one connection, with a task for each of its follows."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        encoder: ItemEncoder,
        pulse: _Pulse,
        timeout_s: float,
    ) -> None:
        self._writer = writer
        self._encoder = encoder
        self._pulse = pulse
        self._timeout_s = timeout_s
        self._follows: dict[int, asyncio.Task[None]] = {}

    def has_room(self, number: int) -> bool:
        return number not in self._follows and len(self._follows) < _MAX_FOLLOWS

    def follow(self, number: int, host: Host, request: dict[str, Any]) -> None:
        """Open a follow and start to deliver it.

        Raises:
            ValueError: A bad request.
        """
        pushed = asyncio.Event()
        follower = host.follow(request, wake=lambda: self._pulse.wake(pushed))
        self._start(number, self._deliver(number, host, follower, pushed))

    def _start(self, number: int, delivery: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(delivery)
        self._follows[number] = task
        task.add_done_callback(lambda _: self._follows.pop(number, None))

    def cancel(self, number: int) -> None:
        task = self._follows.get(number)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        # Not a graceful close: that would wait for a client that does not read.
        self._writer.transport.abort()
        tasks = tuple(self._follows.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def send(self, value: dict[str, Any]) -> None:
        await self._write(encode_line(value))

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        if self._writer.transport.get_write_buffer_size():
            async with asyncio.timeout(self._timeout_s):
                await self._writer.drain()

    async def _deliver(
        self, number: int, host: Host, follower: Follower, pushed: asyncio.Event
    ) -> None:
        try:
            while follower.closed is None:
                pushed.clear()
                while lines := self._take(number, follower):
                    await self._write(b"".join(lines))
                    if len(lines) == _BATCH_ITEMS:
                        await asyncio.sleep(0)
                if follower.closed is None:
                    await pushed.wait()
            await self.send({"id": number, "closed": follower.closed})
        except (DshCodecError, OSError, TimeoutError):
            self._writer.transport.abort()
        finally:
            host.leave(follower)

    def _take(self, number: int, follower: Follower) -> list[bytes]:
        """Return the lines of the next items, none if there are none."""
        lines: list[bytes] = []
        try:
            while len(lines) < _BATCH_ITEMS and (item := follower.poll()) is not None:
                lines.append(self._encoder.encode(number, item))
                if item["type"] == "snapshot":
                    break
        except SeqGapError:
            pass  # The follower has closed itself as `gap`, which the client is told.
        return lines
