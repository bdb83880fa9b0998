"""Reference server: follows and pages of sessions over a local socket, as lines of `wire`.

Only who knows the token gets anything. A connection that breaks a rule is closed, and no other one
notices. Spec: 40, G6.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
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
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from dsh_codec.live.host import Host

__all__ = ["Server"]

_BATCH_ITEMS: Final = 32
"""Items written in one go, before it is seen whether the socket takes them."""

_BUFFER_BYTES: Final = 64 << 10
"""Bytes that wait in a connection before its follows have to wait, too."""

_SOCKET_BYTES: Final = 128 << 10
"""Bytes that the system is asked to hold for a client that does not read."""

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
            find_host: Returns the host of an address, any JSON value, or None; such as the `get`
                of a mapping.
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
        try:
            return self._find_host(request.get("address"))
        except TypeError:
            return None  # What the `get` of a mapping says to an array.

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
    """Lets all deliveries that have something go on together."""

    def __init__(self, gather_s: float) -> None:
        self._gather_s = gather_s
        self._waiting: list[_Delivery] = []

    def wake(self, delivery: _Delivery) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_later(self._gather_s, self._fire)
        self._waiting.append(delivery)

    def _fire(self) -> None:
        waiting, self._waiting = self._waiting, []
        for delivery in waiting:
            delivery.flush()


class _Connection:
    """Writer of one connection, with its follows."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        encoder: ItemEncoder,
        pulse: _Pulse,
        timeout_s: float,
    ) -> None:
        writer.transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        # Left to itself a system takes megabytes from a host whose client sleeps.
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self.writer = writer
        self.encoder = encoder
        self._pulse = pulse
        self._timeout_s = timeout_s
        self._follows: dict[int, _Delivery] = {}

    def has_room(self, number: int) -> bool:
        return number not in self._follows and len(self._follows) < _MAX_FOLLOWS

    def follow(self, number: int, host: Host, request: dict[str, Any]) -> None:
        """Open a follow and start to deliver it.

        Raises:
            ValueError: A bad request.
        """
        delivery = _Delivery(self, number, host, request, self._pulse)
        self._follows[number] = delivery
        delivery.flush()

    def cancel(self, number: int) -> None:
        delivery = self._follows.pop(number, None)
        if delivery is not None:
            delivery.stop()

    async def close(self) -> None:
        # Not a graceful close: that would wait for a client that does not read.
        self.writer.transport.abort()
        drains = [delivery.stop() for delivery in self._follows.values()]
        self._follows.clear()
        await asyncio.gather(*filter(None, drains), return_exceptions=True)

    async def send(self, value: dict[str, Any]) -> None:
        """Write an answer, and wait as `drain` does."""
        if self.writer.transport.is_closing():
            raise ConnectionResetError
        self.writer.write(encode_line(value))
        await self.drain()

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written.

        Raises:
            TimeoutError: It does not.
            OSError: The connection is gone.
        """
        if self.is_full:
            async with asyncio.timeout(self._timeout_s):
                await self.writer.drain()

    @property
    def is_full(self) -> bool:
        """Whether the socket does not take what was written."""
        return self.writer.transport.get_write_buffer_size() > _BUFFER_BYTES


class _Delivery:
    """One follow of a connection: moves what its follower has into the socket's buffer.

    A task is needed only while the client is slow.
    """

    __slots__ = ("_connection", "_drain", "_follower", "_host", "_number")

    def __init__(
        self,
        connection: _Connection,
        number: int,
        host: Host,
        request: dict[str, Any],
        pulse: _Pulse,
    ) -> None:
        self._connection = connection
        self._number = number
        self._host = host
        self._drain: asyncio.Task[None] | None = None
        self._follower = host.follow(request, wake=lambda: pulse.wake(self))

    def flush(self) -> None:
        """Write what there is, as long as the client takes it."""
        connection, follower = self._connection, self._follower
        if self._drain is not None or connection.writer.transport.is_closing():
            return  # The drain goes on with a flush; a lost connection ends its follows.
        try:
            while not connection.is_full and (items := follower.take(_BATCH_ITEMS)):
                connection.writer.write(connection.encoder.encode(self._number, items))
        except SeqGapError:
            pass  # The follower has closed itself as `gap`, which the client is told.
        except (DshCodecError, TypeError):
            # An event that no line can hold: nothing that comes after it may be sent.
            connection.writer.transport.abort()
            connection.cancel(self._number)
            return
        if connection.is_full:
            self._drain = asyncio.create_task(self._wait())
        elif follower.closed is not None:
            last = {"id": self._number, "closed": follower.closed}
            connection.writer.write(encode_line(last))
            connection.cancel(self._number)

    async def _wait(self) -> None:
        try:
            await self._connection.drain()
        except (OSError, TimeoutError):
            self._connection.writer.transport.abort()
            self._host.leave(self._follower)
            return
        self._drain = None
        self.flush()

    def stop(self) -> asyncio.Task[None] | None:
        """End the follow; return the task that has to be waited for."""
        self._host.leave(self._follower)
        if self._drain is not None:
            self._drain.cancel()
        return self._drain
