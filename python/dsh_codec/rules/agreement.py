"""Layer L5: does every settlement say what its embedded stream says? Spec: 30 §10."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from dsh_codec.errors import DshCodecError, StreamError
from dsh_codec.events import MISSING, is_array, is_object, refusal, seq_of, type_of
from dsh_codec.values import deep_equal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["AgreementMachine", "check_agreement"]

_SETTLEMENTS: Final = frozenset(("assistant/message", "assistant/attempt"))


class BlockAssembler(Protocol):
    """The part of the kernel's `Assembler` that agreement needs, see `_kernel.pyi`."""

    def push_records(self, records: Sequence[Mapping[str, Any]], /) -> None:
        """Add the chunks of records."""
        ...

    def blocks(self) -> list[dict[str, Any]]:
        """Return the kept blocks."""
        ...

    def interrupted_blocks(self) -> list[dict[str, Any]]:
        """Return the visible blocks of an interrupted attempt."""
        ...

    def usage(self, default: Any = None, /) -> Any:
        """Return the last usage."""
        ...

    def replay_state(self, default: Any = None, /) -> Any:
        """Return the replay state."""
        ...


class StreamKernel(Protocol):
    """The part of a kernel that agreement needs."""

    def expand(self, records: Sequence[Mapping[str, Any]], /) -> Sequence[Any]:
        """Check and expand records, see `_kernel.pyi`."""
        ...

    def Assembler(self) -> BlockAssembler:  # noqa: N802 - a class of the kernel
        """Make an assembler."""
        ...


class AgreementMachine:
    """L5, event by event; no state but the position."""

    def __init__(self, kernel: StreamKernel | None = None) -> None:
        """Prepare a check.

        Args:
            kernel: Kernel that expands and assembles; None takes the one in use.
        """
        if kernel is None:
            from dsh_codec import _backend

            kernel = _backend.kernel
        self._kernel: StreamKernel = kernel
        self._index = 0

    def findings(self, event: dict[str, Any]) -> list[DshCodecError]:
        """Take the next event and return what its stream breaks.

        Returns:
            `StreamError` where the stream itself fails (`.record` is set if one record does),
            `RowError` where it disagrees with the settlement.
        """
        seq = seq_of(event, self._index)
        self._index += 1
        kind = type_of(event)
        if kind not in _SETTLEMENTS:
            return []
        found: list[DshCodecError] = []
        try:
            stream = self._assemble(event.get("data"))
            if stream is not None and kind == "assistant/message":
                found.extend(_disagreements(event["data"], stream, seq))
        except StreamError as exc:
            found.append(exc.located(seq=seq, rule="L5.1"))
        return found

    def finish(self) -> list[DshCodecError]:
        """Return what only the end of the log shows: nothing in this layer."""
        return []

    def _assemble(self, data: Any) -> BlockAssembler | None:
        """Expand and assemble the stream of a settlement; None if it is empty."""
        stream = data.get("stream") if is_object(data) else None
        if not is_array(stream):
            message = "the settlement has no stream array"
            raise StreamError(message, *(None,) * 7)
        self._kernel.expand(stream)
        assembler = self._kernel.Assembler()
        assembler.push_records(stream)
        return assembler if stream else None


def _disagreements(
    data: dict[str, Any], stream: BlockAssembler, seq: int
) -> Iterator[DshCodecError]:
    message = data.get("message")
    if not is_object(message):
        yield refusal("L5.3", seq, "assistant/message has no message object")
        return
    is_interrupted = data.get("interrupted") is True
    try:
        blocks = stream.interrupted_blocks() if is_interrupted else stream.blocks()
    except StreamError as exc:
        yield exc.located(seq=seq, rule="L5.3")
    else:
        if not deep_equal(blocks, message.get("content", MISSING)):
            text = "the content is not what the stream assembles to"
            yield refusal("L5.3", seq, text)
    if not deep_equal(stream.usage(MISSING), data.get("usage", MISSING)):
        yield refusal("L5.4", seq, "usage is not that of the stream")
    source = message.get("source")
    stored = source.get("replayState", MISSING) if is_object(source) else MISSING
    try:
        replay = stream.replay_state(MISSING)
    except StreamError as exc:
        yield exc.located(seq=seq, rule="L5.5")
    else:
        if not deep_equal(replay, stored):
            yield refusal("L5.5", seq, "replayState is not that of the stream")


def check_agreement(
    events: Iterable[dict[str, Any]], kernel: StreamKernel | None = None
) -> None:
    """Check that every settlement of a log agrees with its embedded stream.

    Args:
        events: Logical events in order.
        kernel: Kernel that expands and assembles; None takes the one in use.

    Raises:
        StreamError: A stream does not expand or assemble.
        RowError: Content, usage or replay state differ; `.rule` is `L5.3` to `L5.5`.
    """
    machine = AgreementMachine(kernel)
    for event in events:
        for fault in machine.findings(event):
            raise fault
