"""Lines of the reference transport: one JSON value per line, UTF-8, ended by a line feed.

Choice: the spec leaves the transport open. From the client:

    {"token": text}                                   first line
    {"id": n, "follow": follow request}               n is a count of the client's choosing
    {"id": n, "page": page request}
    {"id": n, "cancel": true}                         ends a follow

From the host, after a right token:

    {"welcome": 1}
    {"id": n, "item": follow output}                  40 §1.3
    {"id": n, "page": page output}
    {"id": n, "closed": reason}                       the follow ended: `CloseReason`
    {"id": n, "error": {"code": text, "message": text}}   `bad-request` or `not-found`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec._backend import kernel
from dsh_codec.errors import JsonSyntaxError
from dsh_codec.events import is_object

if TYPE_CHECKING:
    from dsh_codec.live.frames import FollowItem

__all__ = [
    "MAX_ANSWER_BYTES",
    "MAX_REQUEST_BYTES",
    "ItemEncoder",
    "decode_line",
    "encode_line",
]

MAX_REQUEST_BYTES: Final = 16 << 10
"""Bytes in a line that a host takes."""

MAX_ANSWER_BYTES: Final = 256 << 20
"""Bytes in a line that a client takes: a page with the largest events."""

_CACHED_ITEMS: Final = 256


def encode_line(value: dict[str, Any]) -> bytes:
    """Return the line of a value, line feed included.

    Raises:
        LimitExceededError: The value is nested too deeply.
    """
    return kernel.dump(value) + b"\n"


def decode_line(line: bytes) -> dict[str, Any]:
    """Return the object of a line.

    Args:
        line: With its line feed.

    Raises:
        JsonSyntaxError: The line is cut off, no JSON, or no object.
        LimitExceededError: The value is nested too deeply.
    """
    if not line.endswith(b"\n"):
        message = "the line is cut off"
        raise JsonSyntaxError(message)
    value = kernel.parse(line)
    if not is_object(value):
        message = "the line is no object"
        raise JsonSyntaxError(message)
    return value


class ItemEncoder:
    """Encodes follow outputs; one for all followers, since these share events and frames.

    Memory: the lines of the last 256 events and frames.
    """

    def __init__(self) -> None:
        """Start without lines."""
        # By identity; the value is kept with its line, so that no identity is used twice.
        self._lines: dict[int, tuple[Any, bytes]] = {}

    def encode(self, follow_id: int, item: FollowItem) -> bytes:
        """Return the line of an output of a follow."""
        head = b'{"id":%d,"item":' % follow_id
        if item["type"] == "event":
            body = self._dump(item["event"])
            return head + b'{"type":"event","event":' + body + b"}}\n"
        if item["type"] == "assistant-stream":
            body = self._dump(item["frame"])
            return head + b'{"type":"assistant-stream","frame":' + body + b"}}\n"
        return head + kernel.dump(item) + b"}\n"

    def _dump(self, value: Any) -> bytes:
        found = self._lines.get(id(value))
        if found is not None and found[0] is value:
            return found[1]
        line = kernel.dump(value)
        if len(self._lines) >= _CACHED_ITEMS:
            del self._lines[next(iter(self._lines))]
        self._lines[id(value)] = (value, line)
        return line
