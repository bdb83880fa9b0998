"""A loopback server that answers the harness's model calls from a recording. Spec: 60 §8."""

from __future__ import annotations

import hmac
import http.server
import select
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from dsh_codec._backend import kernel
from dsh_codec.errors import (
    DshCodecError,
    JsonSyntaxError,
    LimitExceededError,
    ReplayError,
)
from dsh_codec.events import is_array, is_object
from dsh_codec.replay import ReplayCancelled, ReplayFailure, ReplayModel
from dsh_codec.replay_wires import ChatWire, MessagesWire
from dsh_codec.values import is_count

if TYPE_CHECKING:
    from types import TracebackType

    from dsh_codec.replay import ReplayAttempt
    from dsh_codec.replay_wires import Wire

__all__ = ["ReplayServer"]

_MAX_BODY_BYTES: Final = 256 << 20
_RESET_DELAY_S: Final = 0.05
"""A broken connection loses what the caller has not read yet; this lets it read."""

_WIRES: Final[dict[str, type[MessagesWire | ChatWire]]] = {
    "/messages": MessagesWire,
    "/chat/completions": ChatWire,
}
_TITLE: Final[list[dict[str, Any]]] = [
    {"type": "block-start", "index": 0, "blockType": "text"},
    {"type": "text-delta", "index": 0, "text": "Replayed session"},
    {
        "type": "block-end",
        "index": 0,
        "block": {"type": "text", "text": "Replayed session"},
    },
    {"type": "finish", "reason": {"kind": "stop"}},
]


class ReplayServer:
    """Serves a `ReplayModel` on the loopback interface. Entering listens, leaving stops.

    The first session that calls is the one that is replayed; requests for a title, which are not
    in a recording, get a constant one. A call beyond the recording is refused with status 400,
    which the harness does not try again.
    """

    def __init__(
        self,
        model: ReplayModel,
        *,
        port: int = 0,
        api_key: str | None = None,
        hold_ms: float = 600_000,
    ) -> None:
        """Prepare a server.

        Args:
            model: What answers. It stays the caller's to close.
            port: Port; 0 takes a free one.
            api_key: Key that callers have to send; None accepts any.
            hold_ms: Milliseconds to wait for a caller to cancel where the recorded one did.

        Raises:
            OSError: The port is in use.
            OverflowError: There is no such port.
            TypeError: `model` is no `ReplayModel`.
        """
        _require_model(model)
        self._calls = _Calls(model, api_key, hold_ms)
        calls = self._calls

        class Handler(_Handler):
            """Answers for this server."""

            replayed = calls

        self._server = _Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    @property
    def url(self) -> str:
        """What the harness takes as the address of its model service."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def failures(self) -> list[ReplayError]:
        """Calls that the recording could not answer."""
        return self._calls.failures

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Stop. Calls that are being answered are dropped."""
        self._server.shutdown()
        self._server.server_close()


def _require_model(value: object) -> None:
    if not isinstance(value, ReplayModel):
        message = f"model is a ReplayModel, which reads a recording, not {type(value).__name__}"
        raise TypeError(message)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a caller that hangs up is no error of the server."""


class _Refusal(NamedTuple):
    status: int
    message: str
    headers: dict[str, str]


class _Calls:
    """What the threads of one server share."""

    def __init__(self, model: ReplayModel, api_key: str | None, hold_ms: float) -> None:
        self.hold_ms = hold_ms
        self.failures: list[ReplayError] = []
        self._model = model
        self._api_key = api_key
        self._session: str | None = None
        self._lock = threading.Lock()

    def may_call(self, sent: str) -> bool:
        """Whether a key is the right one."""
        if self._api_key is None:
            return True
        key = sent.removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(key, self._api_key.encode())

    def take(self, session: str | None) -> ReplayAttempt | _Refusal:
        """Return the attempt that answers the next call of a session."""
        with self._lock:
            if self._session is None:
                self._session = session
            elif session != self._session:
                message = "the recording is of one session, and another one is calling"
                return _Refusal(400, message, {})
            try:
                return self._model.next_attempt()
            except ReplayError as error:
                self.failures.append(error)
                return _Refusal(400, str(error), {})
            except DshCodecError as error:
                return _Refusal(400, str(error), {})


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    replayed: _Calls

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base
        """Write nothing."""

    def do_GET(self) -> None:
        """Refuse: a model is only called."""
        self._refuse(_Refusal(404, "there is nothing to get", {}))

    def do_POST(self) -> None:
        """Answer a call of the model."""
        body = self._body()
        path = self.path.split("?")[0]
        wires = [kind for end, kind in _WIRES.items() if path.endswith(end)]
        if body is None:
            self._refuse(_Refusal(413, "the request is too long", {}))
            self.close_connection = True
        elif not wires:
            self._refuse(_Refusal(404, "there is no such model service", {}))
        elif not self.replayed.may_call(
            self.headers.get("x-api-key") or self.headers.get("authorization") or ""
        ):
            self._refuse(_Refusal(401, "the API key is another one", {}))
        else:
            self._answer(wires[0], body)

    def _body(self) -> bytes | None:
        """Return the body; None if it is too long."""
        if "chunked" not in (self.headers.get("transfer-encoding") or ""):
            length = int(self.headers.get("content-length") or 0)
            return self.rfile.read(length) if 0 <= length <= _MAX_BODY_BYTES else None
        parts: list[bytes] = []
        left = _MAX_BODY_BYTES
        while size := int(self.rfile.readline(64).split(b";")[0], 16):
            left -= size
            if size < 0 or left < 0:
                return None
            parts.append(self.rfile.read(size))
            self.rfile.readline(8)
        self.rfile.readline(8)
        return b"".join(parts)

    def _answer(self, kind: type[MessagesWire | ChatWire], body: bytes) -> None:
        try:
            request = kernel.parse(body)
        except (JsonSyntaxError, LimitExceededError):
            request = None
        if not is_object(request):
            self._refuse(_Refusal(400, "the request is no JSON object", {}))
            return
        model = str(request.get("model"))
        if _asks_for_title(request):
            self._stream_title(kind, model)
            return
        attempt = self.replayed.take(self.headers.get("x-deepseek-harness-session-id"))
        refusal = attempt if isinstance(attempt, _Refusal) else _early_refusal(attempt)
        if refusal is not None:
            self._refuse(refusal)
        elif not isinstance(attempt, _Refusal):
            self._stream(kind(attempt, model), attempt)

    def _refuse(self, refusal: _Refusal) -> None:
        error = {"type": "error", "message": refusal.message}
        data = kernel.dump({"type": "error", "error": error})
        self.send_response(refusal.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in refusal.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("cache-control", "no-store")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _send(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

    def _stream_title(self, kind: type[MessagesWire | ChatWire], model: str) -> None:
        wire = kind(None, model)
        self._begin()
        self._send(wire.start())
        for chunk in _TITLE:
            self._send(wire.chunk(chunk))
        self.wfile.write(b"0\r\n\r\n")

    def _stream(self, wire: Wire, attempt: ReplayAttempt) -> None:
        self._begin()
        self._send(wire.start())
        try:
            for timed in attempt.chunks():
                failure = _failure_of(timed.chunk)
                if failure is None:
                    self._send(wire.chunk(timed.chunk))
                    continue
                # What its client reports is nothing that the provider told.
                if failure.get("code") == "EMPTY_RESPONSE":
                    self._send(
                        wire.chunk({"type": "finish", "reason": {"kind": "stop"}})
                    )
                break
        except ReplayCancelled:
            self._wait_for_cancel()
            return
        except ReplayFailure as error:
            if error.failure.get("code") == "TRANSPORT":
                self._reset()
                return
        else:
            if _failure_code(attempt) == "TRANSPORT":
                self._reset()
                return
        # Without its last events, the stream counts as broken off.
        self.wfile.write(b"0\r\n\r\n")

    def _wait_for_cancel(self) -> None:
        """Keep the connection open until the caller hangs up."""
        self.close_connection = True
        deadline = time.monotonic() + self.replayed.hold_ms / 1000
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.connection], [], [], min(left, 1))[0]:
                return

    def _reset(self) -> None:
        """Break the connection off, not just end it."""
        self.close_connection = True
        time.sleep(_RESET_DELAY_S)
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def _asks_for_title(request: dict[str, Any]) -> bool:
    """Whether a request is for a title: without tools, and its system prompt says so."""
    if request.get("tools"):
        return False
    messages = request.get("messages")
    system = [
        message
        for message in (messages if is_array(messages) else ())
        if is_object(message) and message.get("role") in ("system", "developer")
    ]
    return b"title" in kernel.dump([request.get("system"), system]).lower()


def _failure_of(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """Return the failure that a finish chunk reports."""
    reason = chunk.get("reason") if chunk.get("type") == "finish" else None
    if not is_object(reason) or reason.get("kind") not in ("error", "aborted"):
        return None
    failure = reason.get("failure")
    return failure if is_object(failure) else {}


def _failure_code(attempt: ReplayAttempt) -> Any:
    code = None
    for timed in attempt.recorded():
        failure = _failure_of(timed.chunk)
        if failure is not None:
            code = failure.get("code")
    return code


def _early_refusal(attempt: ReplayAttempt) -> _Refusal | None:
    """Return the refusal of an attempt that failed with a status and before any content."""
    failure = attempt.failure
    for timed in attempt.recorded():
        failure = _failure_of(timed.chunk)
        if failure is None:
            return None
        break
    status = failure.get("status") if failure is not None else None
    if failure is None or not is_count(status) or not 400 <= status <= 599:
        return None
    headers: dict[str, str] = {}
    if type(failure.get("requestId")) is str:
        headers["x-request-id"] = failure["requestId"]
    delay_ms = failure.get("providerRetryAfterMs")
    if is_count(delay_ms):
        headers["retry-after"] = str(-(-int(delay_ms) // 1000))
    return _Refusal(int(status), str(failure.get("message", "")), headers)
