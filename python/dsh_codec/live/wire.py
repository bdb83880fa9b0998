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

from operator import is_
from typing import TYPE_CHECKING, Any, Final

from dsh_codec._backend import kernel
from dsh_codec.errors import JsonSyntaxError
from dsh_codec.events import is_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh_codec.live.frames import FollowItem, FollowSnapshot

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
_CACHED_BYTES: Final = 8 << 20


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
    """Encodes follow outputs; one for all followers, since these share events, frames, baselines.

    Memory: the texts of the last 256 events and frames, fewer if they have more than 8 MiB, of the
    last baseline, and of the last call.
    """

    def __init__(self) -> None:
        """Start without texts."""
        # By identity; the value is kept with its text, so that no identity is used twice.
        self._texts: dict[int, tuple[Any, bytes]] = {}
        self._cached_bytes = 0
        self._last: tuple[int, Sequence[FollowItem], bytes] = (-1, (), b"")
        self._baseline: tuple[Any, bytes] = (None, b"null")

    def encode(self, follow_id: int, items: Sequence[FollowItem]) -> bytes:
        """Return the lines of outputs of a follow, of one at least.

        Args:
            follow_id: Number of the follow.
            items: The outputs; neither the sequence nor the outputs may change any more.
        """
        last_id, last_items, last_lines = self._last
        if (
            follow_id == last_id
            and len(items) == len(last_items)
            and all(map(is_, items, last_items))
        ):
            return last_lines  # Most followers are at the same place.
        head = b'{"id":%d,"item":' % follow_id
        lines = head + head.join(map(self._text, items))
        self._last = (follow_id, items, lines)
        return lines

    def _text(self, item: FollowItem) -> bytes:
        """Return an output with what ends its line."""
        found = self._texts.get(id(item))
        if found is not None and found[0] is item:
            return found[1]
        if item["type"] == "snapshot":
            return self._snapshot_text(item)
        text = kernel.dump(item) + b"}\n"
        while self._texts and (
            len(self._texts) >= _CACHED_ITEMS
            or self._cached_bytes + len(text) > _CACHED_BYTES
        ):
            _, oldest = self._texts.pop(next(iter(self._texts)))
            self._cached_bytes -= len(oldest)
        # The newest stays, however long: others are about to ask for it.
        self._texts[id(item)] = (item, text)
        self._cached_bytes += len(text)
        return text

    def _snapshot_text(self, item: FollowSnapshot) -> bytes:
        """Return a snapshot; a baseline is written once for all who open at the same cut."""
        if "assistantStream" not in item:
            return kernel.dump(item) + b"}\n"
        baseline = item["assistantStream"]
        if self._baseline[0] is not baseline:
            self._baseline = (baseline, kernel.dump(baseline))
        rest = {key: value for key, value in item.items() if key != "assistantStream"}
        return b'%s,"assistantStream":%s}}\n' % (
            kernel.dump(rest)[:-1],
            self._baseline[1],
        )
