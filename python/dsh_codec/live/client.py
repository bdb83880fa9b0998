"""Reference client: keeps a viewer fed over a connection that may break. Counterpart of `server`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from dsh_codec.errors import DshCodecError, LimitExceededError
from dsh_codec.events import is_object
from dsh_codec.live.journal import Fatal, Journal, Open, ReadPage, Report, Stop
from dsh_codec.live.viewer import Viewer
from dsh_codec.live.wire import MAX_ANSWER_BYTES, decode_line, encode_line
from dsh_codec.values import is_count

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dsh_codec.live.window import Change

__all__ = ["Client", "RefusedError"]

_T = TypeVar("_T")

_MAX_REFUSALS: Final = 3

_BUFFER_BYTES: Final = 1 << 20
"""Bytes that wait to be taken, twice at most. More would hide from the host that a client is slow."""

_SHARED: Final = frozenset(("address", "maxMessages", "turnWindow"))
"""Members that follow and page requests have in common. Spec: 40 §1.3."""


class RefusedError(Exception):
    """The host refused a request.

    Attributes:
        code: `bad-request` or `not-found`.
        message: Why, in the host's words.
    """

    def __init__(self, code: str, message: str) -> None:
        """Take the host's answer."""
        super().__init__(code, message)
        self.code = code
        self.message = message


class _CallbackError(Exception):
    """A callback raised: that is no failure of the connection, whatever its class is.

    Attributes:
        error: What it raised.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Client:
    """Follows one session until it is cancelled or the journal is over.

    Attributes:
        viewer: Journal, reconciler and window.
    """

    def __init__(
        self,
        address: Any,
        token: str,
        *,
        port: int,
        interface: str = "127.0.0.1",
        viewer: Viewer | None = None,
        follow: dict[str, Any] | None = None,
        on_change: Callable[[Change], None] | None = None,
        on_report: Callable[[Exception], None] | None = None,
        pause: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        max_pause_s: float = 5.0,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        """Prepare a client; `run` connects.

        Args:
            address: Address of the session, as the host knows it.
            token: Secret of the host.
            port: Port of the host.
            interface: Where the host listens.
            viewer: What to feed, its journal not started and disconnected; None makes a new one
                that opts in to frames.
            follow: Further members of the follow request, such as `maxMessages`.
            on_change: Told of every change of the window. If it raises, the client is over.
            on_report: Told why older history could not be had.
            pause: Waits between attempts to connect, given seconds.
            max_pause_s: The longest wait, in seconds; it starts at a fiftieth and doubles.
            max_answer_bytes: Bytes in a line of the host.
        """
        self.viewer = Viewer(Journal(is_connected=False)) if viewer is None else viewer
        self._request = {"address": address} | (follow or {})
        if self.viewer.journal.assistant_stream:
            self._request["assistantStream"] = True
        self._token = token
        self._interface = interface
        self._port = port
        self._on_change = on_change
        self._on_report = on_report
        self._pause = pause
        self._max_pause_s = max_pause_s
        self._max_answer_bytes = max_answer_bytes
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        """Connect, follow, and connect again whenever the connection breaks.

        Raises:
            PermissionError: The host closed three connections in a row without a welcome: the
                token is wrong, or the host takes no more connections.
            RefusedError: The host refused the follow.
            LimitExceededError: An answer has more than `max_answer_bytes`.
            DshCodecError: The journal is over, for the reason that the error tells.
            Exception: What a callback raised.
        """
        try:
            await self._run()
        except _CallbackError as failure:
            raise failure.error from None

    async def _run(self) -> None:
        journal = self.viewer.journal
        journal.start()
        first_pause_s = self._max_pause_s / 50
        pause_s, refusals = first_pause_s, 0
        while journal.error is None:
            outcome = await self._run_connection()
            journal.disconnect()
            self._apply()
            refusals = refusals + 1 if outcome == "refused" else 0
            if refusals == _MAX_REFUSALS:
                message = "the host closed the connection: is the token right?"
                raise PermissionError(message)
            if outcome == "served":
                pause_s = first_pause_s
            if journal.error is None:
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, self._max_pause_s)
        raise journal.error

    def load_older(self) -> bool:
        """Ask for events before the first, see `Journal.load_older`."""
        is_asked = self.viewer.journal.load_older()
        self._apply()
        return is_asked

    def break_connection(self) -> None:
        """Drop the connection, as a failing network would; `run` connects anew."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def _run_connection(self) -> Literal["unreachable", "refused", "served"]:
        try:
            reader, self._writer = await asyncio.open_connection(
                self._interface, self._port, limit=_BUFFER_BYTES
            )
        except OSError:
            return "unreachable"
        outcome: Literal["refused", "served"] = "refused"
        try:
            self._writer.write(encode_line({"token": self._token}))
            if decode_line(await self._read_line(reader)).get("welcome") == 1:
                outcome = "served"
                self.viewer.journal.connect()
                await self._read(reader)
        except (DshCodecError, OSError, ValueError):
            # The connection broke, perhaps in a line; or the line is too long or no answer.
            pass
        finally:
            self._writer.transport.abort()
            self._writer = None
        return outcome

    async def _read(self, reader: asyncio.StreamReader) -> None:
        self._apply()
        while self.viewer.journal.error is None:
            line = await self._read_line(reader)
            if not line:
                return
            self._take(decode_line(line))
            self._apply()

    async def _read_line(self, reader: asyncio.StreamReader) -> bytes:
        """Return the next line, however long; what is left if the connection ends in it.

        Raises:
            LimitExceededError: It has more than `max_answer_bytes`. The journal is over: the host
                would only send it again.
        """
        parts: list[bytes] = []
        size_bytes = 0
        while True:
            try:
                part = await reader.readuntil(b"\n")
            except asyncio.LimitOverrunError as error:
                part = await reader.readexactly(error.consumed)
            except asyncio.IncompleteReadError as error:
                return b"".join([*parts, error.partial])
            parts.append(part)
            size_bytes += len(part)
            if size_bytes > self._max_answer_bytes:
                limit = self._max_answer_bytes
                message = f"an answer of the host has more than {limit} bytes (max_answer_bytes)"
                too_long = LimitExceededError(
                    message, *(None,) * 6, "max_answer_bytes", limit
                )
                self.viewer.journal.fail(too_long)
                raise too_long
            if part.endswith(b"\n"):
                return b"".join(parts)

    def _take(self, answer: dict[str, Any]) -> None:
        """Hand an answer to the journal. Odd ids are pages, even ones follows."""
        journal, number = self.viewer.journal, answer.get("id")
        if not is_count(number):
            return
        number, is_page = divmod(int(number), 2)
        if "item" in answer:
            journal.push(number, answer["item"])
        elif "page" in answer:
            journal.page(number, answer["page"])
        elif "closed" in answer:
            journal.carrier_failed(number)
        elif is_object(error := answer.get("error")):
            refusal = RefusedError(str(error.get("code")), str(error.get("message")))
            if is_page:
                journal.page_failed(number, refusal)
            else:
                journal.failed(number, refusal)

    def _apply(self) -> None:
        for output in self.viewer.outputs():
            if isinstance(output, Open):
                self._send({"id": 2 * output.generation, "follow": self._request})
            elif isinstance(output, Stop):
                self._send({"id": 2 * output.generation, "cancel": True})
            elif isinstance(output, ReadPage):
                self._send(self._page_request(output))
            elif isinstance(output, Report):
                _call(self._on_report, output.error)
            elif not isinstance(output, Fatal):
                _call(self._on_change, output)

    def _page_request(self, output: ReadPage) -> dict[str, Any]:
        request = {key: self._request[key] for key in self._request.keys() & _SHARED}
        request["throughSeq"] = output.through_seq
        if output.before_seq is not None:
            request["beforeSeq"] = output.before_seq
        return {"id": 2 * output.request_id + 1, "page": request}

    def _send(self, value: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(encode_line(value))


def _call(callback: Callable[[_T], None] | None, argument: _T) -> None:
    if callback is not None:
        try:
            callback(argument)
        except Exception as error:
            raise _CallbackError(error) from error
