"""Seeded simulation of producer, host, transport and clients. Spec: 40 §9, invariants I1 to I5.

One run is one session: agents with retries, cancellations and failures of acquisition, assembly
and append; replaced agents and killed hosts; concurrent durable events; a transport that loses
items and breaks off, but does not reorder; followers with short queues. `DSH_LIVE_SEED` runs one
seed, `DSH_LIVE_RUNS` sets the number of runs of the long test.
"""

from __future__ import annotations

import contextlib
import os
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from dsh_codec import kernel as default_kernel
from dsh_codec.errors import StreamError
from dsh_codec.live import Host, Journal, ModelFailureError, Step, Viewer, run_attempt
from dsh_codec.live.journal import Fatal, Open, ReadPage, Report, Stop
from dsh_codec.live.window import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_codec.live.follower import Follower
    from dsh_codec.live.journal import HeldPolicy

RUNS: Final = int(os.environ.get("DSH_LIVE_RUNS", "20000"))
QUICK_RUNS: Final = 300

HEADER: Final = {
    "version": 4,
    "id": "s",
    "createdAt": 0,
    "isSeeded": False,
    "delegationDepth": 0,
}


class DiskFullError(Exception):
    """The simulated log refuses an append."""


class StreamBrokeError(Exception):
    """The simulated model stream fails."""


class CancelledByUserError(Exception):
    """The simulated user cancels."""


class KilledError(Exception):
    """The simulated host process is gone."""


EXPECTED: Final = (
    CancelledByUserError,
    DiskFullError,
    KilledError,
    ModelFailureError,
    StreamBrokeError,
    StreamError,
)
"""What an attempt may raise here."""


class MemoryLog:
    """A log in memory that refuses appends on request."""

    def __init__(self) -> None:
        self.header = HEADER
        self.events: list[dict[str, Any]] = []
        self.refusals = 0

    def append(self, event: dict[str, Any], /) -> dict[str, Any]:
        if self.refusals:
            self.refusals -= 1
            raise DiskFullError
        seq = len(self.events)
        committed = {"type": event["type"], "seq": seq, "time": seq} | event
        self.events.append(committed)
        return committed


@dataclass
class Witness:
    """What an agent's frames have to look like: checks every frame when it is emitted."""

    log: MemoryLog
    kernel: Any
    revision: int = 0
    open_id: str | None = None
    chunks: list[tuple[int, Any]] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def see(self, frame: Any) -> None:
        assert frame["revision"] == self.revision + 1
        self.revision += 1
        if frame["type"] == "start":
            assert self.open_id is None
            assert frame["attemptId"] not in self.ids
            self.ids.add(frame["attemptId"])
            self.open_id, self.chunks = frame["attemptId"], []
            return
        assert frame["attemptId"] == self.open_id
        assert frame["index"] == len(self.chunks)
        if frame["type"] == "chunk":
            self.chunks.append((frame["time"], frame["chunk"]))
            return
        self.open_id = None
        outcome = frame["outcome"]
        if outcome["kind"] == "committed":
            # G3: the settlement is in the log before the end that names it; I4.
            settlement = self.log.events[outcome["seq"]]
            assert settlement["type"] == outcome["eventType"]
            assert settlement["data"]["stream"] == self.kernel.pack(self.chunks)


@dataclass
class Link:
    """One client with its transport: in-flight items, requests under way, a connection."""

    world: World
    viewer: Viewer
    is_lossy: bool
    is_up: bool = True
    generation: int = 0
    request: dict[str, Any] | None = None
    follower: Follower | None = None
    cut_number: int = 0
    flying: list[Any] = field(default_factory=list)
    pages: list[ReadPage] = field(default_factory=list)
    mirror: list[Any] = field(default_factory=list)
    delivered: set[int] = field(default_factory=set)
    fatal: Exception | None = None
    has_lost: bool = False
    incarnation: int = 0

    def settle_outputs(self) -> None:
        for output in self.viewer.outputs():
            if isinstance(output, Change):
                self.follow_change(output)
            elif isinstance(output, Open):
                self.generation = output.generation
                self.request = {"address": "s", "maxMessages": 3}
                if self.viewer.journal.assistant_stream:
                    self.request["assistantStream"] = True
            elif isinstance(output, Stop):
                self.release()
            elif isinstance(output, ReadPage):
                self.pages.append(output)
            elif isinstance(output, Fatal):
                self.fatal = output.error
            else:
                assert isinstance(output, Report)
        self.check_order()

    def follow_change(self, change: Change) -> None:
        """Keep a second window by the change records alone."""
        if change.kind == "replace":
            self.mirror = list(change.entries)
            return
        if change.attempt_id is not None:
            self.mirror = [
                entry for entry in self.mirror if entry.attempt_id != change.attempt_id
            ]
        self.mirror[change.index : change.index] = change.entries

    def check_order(self) -> None:
        seqs = [entry.event["seq"] for entry in self.mirror if entry.is_durable]
        assert seqs == sorted(set(seqs))

    def release(self) -> None:
        if self.follower is not None:
            self.world.host.leave(self.follower)
        self.follower, self.request, self.flying = None, None, []

    def advance(self) -> bool:
        """Do one thing that the transport would do by itself; tell whether there was any."""
        chance = self.world.chance
        todo: list[Any] = []
        if self.is_up and self.request is not None:
            todo.append(self.open)
        if self.follower is not None:
            todo.append(self.pump)
        if self.flying:
            todo += [self.deliver, self.deliver]
        if self.pages:
            todo.append(self.answer)
        # Pumping always is possible and may bring nothing.
        before = self.progress()
        if todo:
            chance.choice(todo)()
        return self.progress() != before

    def progress(self) -> tuple[Any, ...]:
        journal = self.viewer.journal
        return (
            self.generation,
            self.request is None,
            self.follower is None or self.follower.is_open,
            None if self.follower is None else len(self.follower),
            len(self.flying),
            len(self.pages),
            journal.last,
            self.viewer.window.revision,
        )

    def open(self) -> None:
        """Subscribe; take the cut now or later, as an asynchronous read of the log would."""
        assert self.request is not None
        if self.follower is None:
            self.follower = self.world.host.subscribe(self.request)
        elif self.follower.closed is None:
            self.world.host.open(self.follower, self.request)
            snapshot: Any = self.follower._snapshot
            self.world.check_baseline(snapshot.get("assistantStream", {}))
            self.cut_number = self.world.frame_number
            self.delivered = set()
            self.request = None
            self.has_lost = False
            self.incarnation = self.world.incarnation

    def pump(self) -> None:
        """Move what the follower delivers onto the wire, or learn that it is closed."""
        follower = self.follower
        assert follower is not None
        for _ in range(self.world.chance.randint(1, 6)):
            item = follower.poll()
            if item is None:
                break
            self.check_item(item)
            self.flying.append(item)
        if follower.closed is not None and not self.flying:
            generation = self.generation
            self.release()
            self.viewer.journal.carrier_failed(generation)
            self.settle_outputs()

    def check_item(self, item: Any) -> None:
        if item["type"] == "assistant-stream":
            # I5: no frame twice, none from before the cut.
            number = self.world.number_of(item["frame"])
            assert number > self.cut_number
            assert number not in self.delivered
            self.delivered.add(number)

    def deliver(self) -> None:
        item = self.flying.pop(0)
        may_go = self.world.is_lossy and self.is_lossy and item["type"] != "snapshot"
        if may_go and self.world.chance.random() < 0.05:
            self.has_lost = True
            return
        self.viewer.journal.push(self.generation, item)
        self.settle_outputs()

    def answer(self) -> None:
        request = self.pages.pop(0)
        journal = self.viewer.journal
        asked: dict[str, Any] = {
            "address": "s",
            "throughSeq": request.through_seq,
            "maxMessages": 2,
        }
        if request.before_seq is not None:
            asked["beforeSeq"] = request.before_seq
        journal.page(request.request_id, self.world.host.page(asked))
        self.settle_outputs()

    def check_rows(self) -> None:
        """A client that has received everything shows all chunks of the open attempt.

        Other rows are those of a message whose step is still open (I2).
        """
        world, follower, reconciler = self.world, self.follower, self.viewer.reconciler
        if (
            self.has_lost
            or not self.viewer.journal.assistant_stream
            or not self.viewer.journal.is_current
            or self.flying
            or follower is None
            or len(follower)
            or follower.closed is not None
            or self.incarnation != world.incarnation
        ):
            return
        rows = [entry for entry in self.mirror if not entry.is_durable]
        open_id = world.witness.open_id
        shown = [
            (entry.event["time"], entry.event["data"]["chunk"])
            for entry in rows
            if entry.attempt_id == open_id
        ]
        if open_id is not None:
            assert reconciler.active_attempt_id == open_id
            assert shown == world.witness.chunks
        others = {entry.attempt_id for entry in rows} - {open_id}
        assert others <= {reconciler.retained_attempt_id}

    def disconnect(self) -> None:
        self.is_up = False
        self.release()
        self.pages = []
        self.viewer.journal.disconnect()
        self.settle_outputs()

    def connect(self) -> None:
        self.is_up = True
        self.viewer.journal.connect()
        self.settle_outputs()


class World:
    """Everything of one run."""

    def __init__(self, seed: int, kernel: Any) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a seed, no secret
        self.kernel = kernel
        self.log = MemoryLog()
        self.now = 100
        # A calm run has failing attempts, but a sound transport and one host and agent.
        self.is_calm = seed % 4 == 0
        self.is_lossy = True
        self.is_alive = True
        self.killed_at = 0
        self.cancellation: Exception | None = None
        self.frame_number = 0
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.names: list[str] = []  # Keeps the strings whose identities are keys.
        self.incarnation = 0
        self.host = self.make_host()
        self.lifecycle, self.witness = self.make_agent()
        self.links: list[Link] = []
        self.turn = self.step = 0
        self.messages = 0
        self.depth = 0

    def make_host(self) -> Host:
        room = 4096 if self.is_calm else self.chance.choice([8, 40, 4096])
        return Host(
            self.log, clock=self.clock, kernel=self.kernel, max_queue_items=room
        )

    def clock(self) -> int:
        self.now += self.chance.choice([0, 1, 1, 5, -2])
        return self.now

    def make_agent(self) -> tuple[Any, Witness]:
        """Create an agent whose frames are watched on their way to the host."""
        self.incarnation += 1
        incarnation = self.incarnation
        lifecycle = self.host.create_agent()
        witness = Witness(self.log, self.kernel)
        forward = lifecycle._emit

        def emit(frame: Any) -> None:
            witness.see(frame)
            if incarnation == self.incarnation:
                self.frame_number += 1
                self.numbers[self.key_of(frame)] = self.frame_number
                self.names.append(frame["attemptId"])
                forward(frame)

        lifecycle._emit = emit
        return lifecycle, witness

    def key_of(self, frame: Any) -> tuple[Any, ...]:
        # Ids repeat when an agent is replaced; the string object is that of one attempt.
        return id(frame["attemptId"]), frame["revision"]

    def number_of(self, frame: Any) -> int:
        return self.numbers[self.key_of(frame)]

    def check_baseline(self, baseline: Any) -> None:
        """I3: the stream of a baseline is exactly the chunks of the open attempt."""
        active = baseline.get("activeAttempt")
        if active is None or active["attemptId"] != self.witness.open_id:
            return
        chunks = [tuple(chunk) for chunk in self.kernel.expand(active["stream"])]
        assert chunks == self.witness.chunks
        assert len(chunks) == active["nextIndex"]

    # --- producer ---

    def append(self, event: dict[str, Any]) -> int:
        return self.host.append(event)

    def append_alive(self, incarnation: int) -> Any:
        def append(event: dict[str, Any]) -> int:
            if not self.is_alive and incarnation != self.incarnation:
                raise KilledError
            seq = self.append(event)
            if self.chance.random() < 0.3:
                # Anything may happen between a settlement and its end. Spec 40 §2.4.
                self.interlude()
            return seq

        return append

    def note(self) -> None:
        """Append an event that belongs to no attempt."""
        chance = self.chance
        where = {"turn": self.turn, "step": self.step}
        if chance.random() < 0.8 or not self.messages:
            event = {"type": "todo/write", "data": {"todos": [], **where}}
        else:
            op = {"op": "replace", "startSeq": 0, "endSeq": 0}
            event = {"type": "assistant/message", "data": where, "surfaceOp": op}
        self.append(event)

    def make_step(self) -> Step:
        incarnation = self.incarnation
        self.messages += 1
        return Step(
            self.turn,
            self.step,
            "p",
            "m",
            append=self.append_alive(incarnation),
            message_id=lambda: f"m{self.messages}",
            cancelled=lambda: (
                self.cancellation or (None if self.is_alive else KilledError())
            ),
        )

    def acquire(self) -> Iterator[dict[str, Any]]:
        self.interlude()
        if self.is_lossy and self.chance.random() < 0.05:
            raise StreamBrokeError
        return self.stream()

    def stream(self) -> Iterator[dict[str, Any]]:
        chance = self.chance
        for _ in range(chance.choice([0, 1, 3, 8, 20])):
            self.interlude()
            index, draw = chance.randint(0, 2), chance.random()
            if draw < 0.6:
                yield {
                    "type": "text-delta",
                    "index": index,
                    "text": chance.choice("ab "),
                }
            elif draw < 0.75:
                yield {"type": "reasoning-delta", "index": index, "text": "r"}
            elif draw < 0.85:
                delta = {"id": chance.choice(["c", ""]), "argumentsDelta": "{"}
                yield {"type": "tool-call-delta", "index": index, **delta}
            elif draw < 0.9:
                usage = {"inputTokens": 1, "outputTokens": 1}
                yield {"type": "usage", "usage": usage}
            elif not self.is_lossy:
                continue
            elif draw < 0.92:
                raise StreamBrokeError
            elif draw < 0.94:
                self.cancellation = CancelledByUserError()
            elif draw < 0.95:
                yield {"type": "block-start", "index": 9, "blockType": "widget"}
            elif draw < 0.96:
                yield {"type": "bogus"}
            elif draw < 0.98:
                self.log.refusals = 1
            else:
                kind = chance.choice(["error", "aborted", "max-tokens"])
                yield {"type": "finish", "reason": {"kind": kind}}
        self.interlude()

    def interlude(self) -> None:
        """Let the rest of the world do something while an attempt runs."""
        chance = self.chance
        for _ in range(chance.choice([0, 1, 2, 6])):
            draw = chance.random()
            if draw < 0.08:
                if not self.log.refusals:
                    self.note()
            elif draw < 0.085 and self.is_lossy and not self.is_calm:
                self.replace_agent()
            elif draw < 0.09 and self.is_lossy and not self.is_calm:
                self.kill()
            else:
                self.move_link()
        for link in self.links:
            link.check_rows()

    def replace_agent(self) -> None:
        """Put another agent in place; the old one is cancelled, and may still settle."""
        self.cancellation = CancelledByUserError()
        if self.chance.random() < 0.5:
            self.host.dispose_agent()
        self.lifecycle, self.witness = self.make_agent()

    def kill(self) -> None:
        """End the host process: its log stays, its followers and frames are gone."""
        self.is_alive = False
        self.killed_at = len(self.log.events)
        for link in self.links:
            link.disconnect()
        self.host = self.make_host()
        self.lifecycle, self.witness = self.make_agent()

    def move_link(self) -> None:
        link = self.chance.choice(self.links)
        draw = self.chance.random()
        if not link.is_up:
            if draw < 0.3:
                link.connect()
        elif self.is_lossy and not self.is_calm and draw < 0.02:
            link.disconnect()
        elif draw < 0.1:
            link.viewer.journal.load_older()
            link.settle_outputs()
        else:
            link.advance()
        self.replace_fatal(link)

    def replace_fatal(self, link: Link) -> None:
        """A client whose journal is over starts a new one, as a user would."""
        if link.fatal is None:
            return
        # The only legal reason here: two carrier failures without an opening in between.
        assert isinstance(link.fatal, StreamError), link.fatal
        assert link.fatal.rule == "40 §5.1", link.fatal
        link.release()
        self.links[self.links.index(link)] = self.make_link()

    def make_link(self) -> Link:
        policies: list[HeldPolicy] = ["reopen", "reopen", "apply"]
        held = self.chance.choice(policies)
        journal = Journal(
            assistant_stream=self.chance.random() < 0.85, held_after_repair=held
        )
        viewer = Viewer(journal, kernel=self.kernel)
        is_lossy = not self.is_calm and self.chance.random() < 0.5
        link = Link(self, viewer, is_lossy=is_lossy)
        journal.start()
        link.settle_outputs()
        return link

    def run_step(self) -> None:
        """Run one step of the agent with all that may go wrong in it."""
        self.step += 1
        where = {"turn": self.turn, "step": self.step}
        self.append({"type": "step/start", "data": where})
        self.cancellation, self.is_alive = None, True
        with contextlib.suppress(*EXPECTED):
            run_attempt(
                self.lifecycle,
                self.acquire,
                self.make_step(),
                retry=lambda _: self.chance.random() < 0.6,
            )
        if not self.is_alive:
            # The log has no trace of the attempt that the host died in.
            assert not any(
                "stream" in event["data"] for event in self.log.events[self.killed_at :]
            )
        self.log.refusals = 0
        self.is_alive, self.cancellation = True, None
        self.append({"type": "step/end", "data": where})

    def run(self) -> None:
        chance = self.chance
        self.links = [self.make_link() for _ in range(chance.randint(1, 3))]
        for _ in range(chance.randint(1, 3)):
            self.turn += 1
            self.step = 0
            self.append({"type": "turn/start", "data": {"turn": self.turn}})
            for _ in range(chance.randint(1, 3)):
                self.run_step()
            reason = {"kind": "completed"}
            self.append(
                {"type": "turn/end", "data": {"turn": self.turn, "reason": reason}}
            )
        self.calm_down()

    def calm_down(self) -> None:
        """Stop all faults, run one sound step so that losses show, and deliver everything."""
        self.is_lossy = False
        for link in self.links:
            if not link.is_up:
                link.connect()
        self.settle_links()
        self.turn += 1
        self.step = 0
        self.append({"type": "turn/start", "data": {"turn": self.turn}})
        self.run_step()
        self.append({"type": "turn/end", "data": {"turn": self.turn}})
        self.settle_links()
        for link in self.links:
            self.check_final(link)

    def settle_links(self) -> None:
        for _ in range(5000):
            moved = [link.advance() for link in self.links]
            for link in list(self.links):
                self.replace_fatal(link)
            if not any(moved) and not any(self.has_work(link) for link in self.links):
                return
        message = "the clients do not come to rest"
        raise AssertionError(message)

    def has_work(self, link: Link) -> bool:
        waiting = link.follower is not None and (
            len(link.follower) > 0
            or link.follower.closed is not None
            or not link.follower.is_open
        )
        return bool(waiting or link.request is not None or link.flying or link.pages)

    def check_final(self, link: Link) -> None:
        entries = link.viewer.window.entries
        assert list(entries) == link.mirror
        if self.is_calm:
            # Nothing was lost, so nothing had to be opened again.
            assert (link.viewer.journal.generation, link.viewer.rebaselines) == (1, 0)
        # I2: no transient row is left.
        assert all(entry.is_durable for entry in entries)
        # I1: the window is the log's suffix, as a cold load shows it.
        events = [entry.event for entry in entries]
        assert events
        assert events == self.log.events[events[0]["seq"] :]
        cold = self.make_link()
        for _ in range(200):
            if not cold.advance() and not self.has_work(cold):
                break
        loaded = [entry.event for entry in cold.viewer.window.entries]
        assert loaded
        shorter = min(len(loaded), len(events))
        assert events[-shorter:] == loaded[-shorter:]
        assert cold.viewer.window.has_more == (loaded[0]["seq"] > 0)
        cold.release()


def run_seed(seed: int, kernel: Any) -> World:
    world = World(seed, kernel)
    try:
        world.run()
    except BaseException as error:
        error.add_note(f"rerun with DSH_LIVE_SEED={seed}")
        raise
    return world


def seeds(count: int) -> range:
    given = os.environ.get("DSH_LIVE_SEED")
    return range(count) if given is None else range(int(given), int(given) + 1)


def test_simulation_ends_as_cold_load(kernel: Any) -> None:
    """Spec 40 §9: I1 to I5 after every run."""
    rebaselines = 0
    for seed in seeds(QUICK_RUNS):
        world = run_seed(seed, kernel)
        rebaselines += sum(link.viewer.rebaselines for link in world.links)
    assert rebaselines or len(seeds(QUICK_RUNS)) == 1


@pytest.mark.slow
def test_simulation_ends_as_cold_load_many_times() -> None:
    """Spec 40 §9, with the kernel in use."""
    for seed in seeds(RUNS):
        run_seed(seed, default_kernel)
