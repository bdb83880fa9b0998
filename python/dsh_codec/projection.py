"""A log without reasoning: a projection that says what it is, and that nothing makes a log again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec._backend import kernel
from dsh_codec.events import is_array, is_object
from dsh_codec.rawrows import header_line
from dsh_codec.sidecar import PROJECTION, SETTLEMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_codec.log import Log
    from dsh_codec.row import Event

__all__ = ["without_reasoning"]

_SUMMARY: Final = "compaction/summary"


def without_reasoning(log: Log) -> Iterator[bytes]:
    """Yield the rows of a log without its streams and its reasoning, the header row first.

    Args:
        log: An open log of generation 4.

    Yields:
        Rows with their line feeds. Streams are empty; blocks of type `reasoning` are taken out
        of the content of assistant messages and of compaction summaries; the opaque
        `replayState` of a message, which may repeat them, is taken out with them. All other
        values stay. One event is added at the end, `PROJECTION`, which readers ignore: it says
        what the log is.

    Raises:
        DshCodecError, OSError: As for iterating over the log.

    Note:
        Choice: spec 60 has no such projection. The result is accepted like any log (a
        settlement without a stream agrees with any content, 30 §10), but it is not the
        assembled log of 60 §5: its digest differs, and `join` refuses it. Only blocks are
        looked at; what a user, a tool or a visible answer repeats of the reasoning stays.
    """
    yield header_line(log)
    event: Event | None = None
    count = 0
    for event in log:
        yield _row_of(event, log.limits.max_depth) + b"\n"
        count += 1
    marker = {
        "type": PROJECTION,
        "seq": count,
        "time": log.header.fields["createdAt"] if event is None else event.time,
        "data": {"dropped": ["reasoning", "streams"]},
        "ignorable": True,
    }
    yield kernel.dump(marker) + b"\n"


def _row_of(event: Event, max_depth: int) -> bytes:
    if event.type not in SETTLEMENTS and event.type != _SUMMARY:
        return event.raw
    row: dict[str, Any] = kernel.parse(event.raw, max_depth=max_depth)
    data = row["data"]
    if not is_object(data):
        return event.raw
    if event.type == _SUMMARY:
        for key in ("summary", "rawOutput"):
            _drop_blocks(data, key)
    else:
        data["stream"] = []
        message = data.get("message")
        if is_object(message):
            _drop_blocks(message, "content")
            source = message.get("source")
            if is_object(source):
                source.pop("replayState", None)
    return kernel.dump(row, max_depth=max_depth)


def _drop_blocks(holder: dict[str, Any], key: str) -> None:
    blocks = holder.get(key)
    if is_array(blocks):
        holder[key] = [
            block
            for block in blocks
            if not (is_object(block) and block.get("type") == "reasoning")
        ]
