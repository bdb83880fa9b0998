"""Client: journal, reconciler and window of one followed session, joined. Spec: 40 §5 to §7."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from dsh_codec.errors import DshCodecError
from dsh_codec.live.journal import (
    Append,
    Fatal,
    Journal,
    Notify,
    Open,
    Prepend,
    ReadPage,
    Replace,
    Report,
    Stop,
)
from dsh_codec.live.reconciler import (
    Abandonment,
    Entry,
    Publish,
    Rebaseline,
    Reconciler,
    Settlement,
    Transient,
)
from dsh_codec.live.window import Change, Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_codec.live.frames import WireFrame
    from dsh_codec.live.reconciler import Decision

__all__ = ["Viewer", "ViewerOutput"]

ViewerOutput: TypeAlias = Open | Stop | ReadPage | Report | Fatal | Change
"""What a viewer asks of the transport, and the changes of its window, in order."""


class Viewer:
    """What a client runs: give inputs to `journal`, then take the outputs of `outputs()`.

    Attributes:
        journal: Takes everything from outside.
        reconciler: Decides; fed by `outputs`.
        window: What is to be shown.
        rebaselines: How often continuity was lost and the journal restarted.
    """

    def __init__(self, journal: Journal | None = None, *, kernel: Any = None) -> None:
        """Join a journal with a new reconciler and a new window.

        Args:
            journal: Journal that has not started; None makes one that opts in to frames.
            kernel: Kernel for the reconciler; None takes the one in use.
        """
        self.journal = Journal() if journal is None else journal
        self.reconciler = Reconciler(kernel=kernel)
        self.window = Window()
        self.rebaselines = 0

    def outputs(self) -> Iterator[ViewerOutput]:
        """Yield what the last inputs lead to, until there is no more.

        Note:
            A decision to rebaseline restarts the journal before its next output is taken; the
            items that were published before are applied first. Spec: 40 §6.5.
        """
        journal = self.journal
        while (output := journal.poll()) is not None:
            if isinstance(output, Replace):
                yield from self._replace(output)
            elif isinstance(output, Append):
                yield from self._decide(self.reconciler.durable(output.event))
            elif isinstance(output, Notify):
                yield from self._take_frame(output.frame)
            elif isinstance(output, Prepend):
                older = map(Entry, output.events)
                yield self.window.prepend(older, has_more=output.has_more)
            else:
                yield output

    def _replace(self, output: Replace) -> Iterator[ViewerOutput]:
        try:
            entries = self.reconciler.replace(output.events, output.baseline)
        except DshCodecError as error:
            self.journal.fail(error)
            return
        yield self.window.replace(entries, has_more=output.has_more)

    def _take_frame(self, frame: WireFrame) -> Iterator[ViewerOutput]:
        open_id = self.reconciler.active_attempt_id
        decision = self.reconciler.frame(frame)
        yield from self._decide(decision)
        if (
            decision is None
            and frame["type"] == "end"
            and frame["attemptId"] == open_id
        ):
            # Row E5: the page had the settlement already. No later decision would take the rows
            # of this attempt away, and they must not outlive it (I2 of 40 §9).
            yield self.window.settle(frame["attemptId"])

    def _decide(self, decision: Decision | None) -> Iterator[ViewerOutput]:
        window = self.window
        if isinstance(decision, Transient):
            yield window.append(decision.entry)
        elif isinstance(decision, Publish):
            yield window.append(decision.entry)
            if decision.retired_id is not None:
                yield window.settle(decision.retired_id)
        elif isinstance(decision, Settlement):
            yield window.settle(decision.attempt_id, decision.entry)
        elif isinstance(decision, Abandonment):
            yield window.settle(decision.attempt_id)
        elif isinstance(decision, Rebaseline):
            self.rebaselines += 1
            self.journal.restart()
