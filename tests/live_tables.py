"""The tables of spec 40 as they stand there, one row after the other: what the machines have to do.

Slow and simple on purpose, and written from the spec alone. Nothing here uses the code under test,
except for packing and expansion, which have tests of their own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from dsh_codec import TimedChunk, _pure

Frame = dict[str, Any]
Event = dict[str, Any]


class BaselineTable:
    """Spec 40 §3."""

    def __init__(self) -> None:
        self.revision = 0
        self.active: dict[str, Any] | None = None
        self.chunks: list[TimedChunk] = []

    def accept(self, frame: Frame, cursor: int) -> None:
        if frame["type"] == "start" and frame["revision"] == 1 and self.revision != 0:
            self.active = None
            self.revision = 0
        if frame["revision"] != self.revision + 1:  # 2
            self.active = None
            self.revision = frame["revision"]
        elif frame["type"] == "start":  # 3
            self.revision = frame["revision"]
            self.active = {
                "attemptId": frame["attemptId"],
                "startedAfterSeq": cursor,
                "turn": frame["turn"],
                "step": frame["step"],
            }
            self.chunks = []
        elif (
            frame["type"] == "chunk"
            and self.active is not None
            and self.active["attemptId"] == frame["attemptId"]
            and frame["index"] == len(self.chunks)
        ):  # 4
            chunk = TimedChunk(frame["time"], frame["chunk"])
            _pure.pack([*self.chunks, chunk])
            self.revision = frame["revision"]
            self.chunks.append(chunk)
        elif frame["type"] == "chunk":  # 5
            self.revision = frame["revision"]
            self.active = None
        else:  # 6
            self.revision = frame["revision"]
            self.active = None

    def snapshot(self) -> dict[str, Any]:
        if self.active is None:
            return {"revision": self.revision}
        counted = {
            "nextIndex": len(self.chunks),
            "stream": _pure.pack(self.chunks),
        }
        return {"revision": self.revision, "activeAttempt": {**self.active, **counted}}


class FollowerTable:
    """Spec 40 §4: one FIFO with arrival ordinals."""

    def __init__(self, *, opted_in: bool) -> None:
        self.opted_in = opted_in
        self.queue: list[tuple[Any, ...]] = []
        self.ordinal = 0
        self.cut_ordinal: int | None = None
        self.cursor = -1
        self.next = 0
        self.snapshot: Any = None
        self.has_failed = False

    def event(self, event: Event) -> None:
        self.queue.append(("event", event))

    def frame(self, frame: Frame, cursor: int) -> None:
        if not self.opted_in:
            return
        self.ordinal += 1
        if frame["type"] == "start":
            frame = {**frame, "startedAfterSeq": cursor}
        self.queue.append(("frame", frame, self.ordinal))

    def recreated(self, events: list[Event], first_live: int) -> None:
        is_open = self.cut_ordinal is not None
        first = self.cursor + 1 if is_open else first_live
        self.queue[:0] = [("event", event) for event in events if event["seq"] >= first]

    def open(self, cursor: int, baseline: Any) -> None:
        self.cursor = cursor
        self.next = cursor + 1
        self.snapshot = ("snapshot", cursor)
        if self.opted_in:
            self.snapshot += (baseline or {"revision": 0},)
        self.cut_ordinal = self.ordinal

    def pop(self) -> Any:
        """Return the next output; None if there is none; `gap` once when the stream fails."""
        if self.cut_ordinal is None or self.has_failed:
            return None
        if self.snapshot is not None:
            snapshot, self.snapshot = self.snapshot, None
            return snapshot
        while self.queue:
            kind, value, *rest = self.queue.pop(0)
            if kind == "frame":
                if rest[0] > self.cut_ordinal:
                    return ("frame", value)
            elif value["seq"] == self.next:
                self.next += 1
                return ("event", value)
            elif value["seq"] > self.next:
                self.has_failed = True
                return "gap"
        return None


class ReconcilerTable:
    """Spec 40 §6."""

    def __init__(self) -> None:
        self.active: dict[str, Any] | None = None
        self.retained: dict[str, Any] | None = None
        self.pending: dict[int, Event] = {}
        self.published: set[int] = set()
        self.cursor = -1
        self.k = 0

    def row(self, time: Any, chunk: Any) -> Event:
        assert self.active is not None
        self.k += 1
        return {
            "type": "assistant/live-chunk",
            "seq": self.cursor + 1 - 1 / (self.k + 1),
            "time": time,
            "data": {
                "attemptId": self.active["attemptId"],
                "turn": self.active["turn"],
                "step": self.active["step"],
                "chunk": chunk,
            },
        }

    def replace(self, entries: list[Event], baseline: Any) -> list[Any]:
        attempt = (baseline or {}).get("activeAttempt")
        chunks = _pure.expand(attempt["stream"]) if attempt else []
        self.pending, self.retained, self.k = {}, None, 0
        self.published = {entry["seq"] for entry in entries}
        self.cursor = max(self.published, default=-1)
        self.active = None
        shown = list(entries)
        if attempt:
            self.active = {key: attempt[key] for key in attempt if key != "stream"}
            rows = []
            for time, chunk in chunks:
                rows.append(self.row(time, chunk))
                if len(rows) >= attempt["nextIndex"]:
                    break
            shown += rows
        return shown

    def publish(self, entry: Event) -> tuple[Any, ...]:
        self.published.add(entry["seq"])
        return ("publish", entry)

    def belongs(self, entry: Event) -> bool:
        if entry["type"] not in ("assistant/message", "assistant/attempt"):
            return False
        if self.active is None:
            return False
        if not entry["seq"] > self.active["startedAfterSeq"]:
            return False
        if not same_place(entry, self.active):
            return False
        return (
            entry["type"] == "assistant/attempt" or entry.get("surfaceOp") == "append"
        )

    def durable(self, entry: Event) -> Any:
        self.cursor = max(self.cursor, entry["seq"])
        self.k = 0
        if self.belongs(entry):
            if entry["seq"] in self.pending:
                return "rebaseline"  # D1
            self.pending[entry["seq"]] = entry  # D2
            return None
        if (
            self.retained is not None
            and entry["type"] == "step/end"
            and same_place(entry, self.retained)
        ):  # D3
            retired = self.retained["attemptId"]
            self.retained = None
            return (*self.publish(entry), "retire", retired)
        return self.publish(entry)  # D4

    def frame(self, frame: Frame) -> Any:
        active = self.active
        if frame["type"] == "start":
            if active is not None or self.retained is not None or self.pending:
                return "rebaseline"  # S1
            self.active = {  # S2
                key: frame[key]
                for key in ("attemptId", "startedAfterSeq", "turn", "step")
            } | {"nextIndex": 0}
            return None
        if frame["type"] == "chunk":
            if active is None or active["attemptId"] != frame["attemptId"]:
                return None  # C2
            if frame["index"] != active["nextIndex"]:
                return "rebaseline"  # C3
            active["nextIndex"] += 1
            return ("transient", self.row(frame["time"], frame["chunk"]))  # C4
        if active is None or active["attemptId"] != frame["attemptId"]:
            return None  # E1
        self.active = None
        if frame["index"] != active["nextIndex"]:
            return "rebaseline"  # E2
        outcome = frame["outcome"]
        if outcome["kind"] == "abandoned":
            if not self.pending:
                return ("abandonment", active["attemptId"])  # E3
            return "rebaseline"  # E4
        seq = outcome["seq"]
        if seq in self.published:
            return None  # E5
        if seq not in self.pending or self.pending[seq]["type"] != outcome["eventType"]:
            return "rebaseline"  # E6
        entry = self.pending.pop(seq)
        if (
            entry["type"] == "assistant/message"
            and entry["data"].get("interrupted") is not True
        ):  # E7
            self.retained = active
            return self.publish(entry)
        self.published.add(seq)
        return ("settlement", active["attemptId"], entry)  # E8


def same_place(entry: Event, attempt: dict[str, Any]) -> bool:
    data = entry["data"]
    return (
        isinstance(data, dict)
        and is_same(data.get("turn"), attempt["turn"])
        and is_same(data.get("step"), attempt["step"])
    )


def is_same(a: Any, b: Any) -> bool:
    """The same JSON number: neither a boolean nor a text is one."""
    return (
        isinstance(a, int | float)
        and not isinstance(a, bool)
        and a == b
        and not isinstance(b, bool)
    )


class WindowTable:
    """Spec 40 §7; elements are pairs of an event and the attempt of a transient row."""

    def __init__(self) -> None:
        self.items: list[tuple[Event, str | None]] = []
        self.has_more = False
        self.revision = 0

    def replace(self, items: Any, has_more: bool) -> None:  # noqa: FBT001 - as in the spec
        self.items, self.has_more = list(items), has_more
        self.revision += 1

    def prepend(self, items: Any, has_more: bool) -> None:  # noqa: FBT001 - as in the spec
        self.items, self.has_more = [*items, *self.items], has_more
        self.revision += 1

    def append(self, item: tuple[Event, str | None]) -> None:
        self.items = [*self.items, item]
        self.revision += 1

    def settle(self, attempt_id: str, entry: Event | None) -> None:
        kept = [item for item in self.items if item[1] != attempt_id]
        if entry is not None:
            places = [n for n, item in enumerate(kept) if item[0]["seq"] > entry["seq"]]
            place = places[0] if places else len(kept)
            kept.insert(place, (entry, None))
        self.items = kept
        self.revision += 1


class JournalTable:
    """Spec 40 §5, `held_after_repair` "reopen" or "apply"; the connection is always up.

    `out` collects (what, …): open, stop, read, replace, append, prepend, notify, report, fatal.
    """

    def __init__(self, *, opted_in: bool = True, held: str = "reopen") -> None:
        self.opted_in = opted_in
        self.policy = held
        self.out: list[tuple[Any, ...]] = []
        self.generation = 0
        self.is_running = False
        self.is_accepted = False
        self.is_over = False
        self.failures = 0
        self.rev = 0
        self.first: int | None = None
        self.last = -1
        self.requests = 0
        self.repair: dict[str, Any] | None = None
        self.history: int | None = None

    # --- §5.1 ---

    def open(self) -> None:
        self.generation += 1
        self.is_running, self.is_accepted, self.repair = True, False, None
        self.out.append(("open", self.generation))

    def stop(self) -> None:
        if self.is_running:
            self.out.append(("stop", self.generation))
        self.is_running = self.is_accepted = False
        self.repair = None

    def fatal(self) -> None:
        self.stop()
        self.is_over = True
        self.out.append(("fatal",))

    def restart(self) -> None:
        if self.is_over:
            return
        self.stop()
        self.failures = 0
        self.open()

    def carrier_failure(self) -> None:
        self.is_running = self.is_accepted = False
        self.repair = None
        self.failures += 1
        if self.failures >= 2:
            self.is_over = True
            self.out.append(("fatal",))
        else:
            self.open()

    def broke_off(self, generation: int) -> None:
        if self.is_running and generation == self.generation and not self.is_over:
            self.carrier_failure()

    # --- §5.2 ---

    def push(self, generation: int, item: Any) -> None:
        if generation != self.generation or not self.is_running or self.is_over:
            return None
        if item["type"] == "snapshot":
            if self.is_accepted:
                return self.fatal()
            return self.opening(item)
        if not self.is_accepted:
            return self.fatal()
        if item["type"] == "event":
            return self.entry(item["event"])
        if not self.opted_in:
            return self.fatal()
        return self.notification(item["frame"])

    def opening(self, item: Any) -> None:
        events = [record["event"] for record in item["records"]]
        seqs = [event["seq"] for event in events]
        cursor = item["cursor"]
        if (
            seqs != list(range(seqs[0], seqs[0] + len(seqs)) if seqs else [])
            or (seqs[-1] if seqs else -1) != cursor
            or cursor < self.last
            or (self.opted_in and "assistantStream" not in item)
        ):
            return self.fatal()
        if self.opted_in:
            self.rev = item["assistantStream"]["revision"]
        self.is_accepted = True
        self.failures = 0
        baseline = item["assistantStream"] if self.opted_in else None
        return self.replace(events, item["hasMore"], baseline)

    def replace(self, events: list[Event], has_more: Any, baseline: Any) -> None:
        self.first = events[0]["seq"] if events else None
        self.last = events[-1]["seq"] if events else -1
        self.history = None
        self.out.append(("replace", events, has_more, baseline))

    def entry(self, event: Event) -> None:
        if self.repair is not None:
            if event["seq"] > self.last:
                self.repair["queued"].append(event)
        elif event["seq"] <= self.last:
            pass
        elif event["seq"] == self.last + 1:
            self.last = event["seq"]
            self.first = event["seq"] if self.first is None else self.first
            self.out.append(("append", event))
        else:
            self.requests += 1
            self.repair = {
                "queued": [event],
                "held": [],
                "target": event["seq"],
                "reads": 1,
                "request": self.requests,
            }
            self.out.append(("read", self.requests, event["seq"], None))

    def notification(self, frame: Frame) -> None:
        if frame["revision"] != self.rev + 1:
            self.out.append(("stop", self.generation))
            return self.carrier_failure()
        self.rev += 1
        if self.repair is not None:
            self.repair["held"].append(frame)
        else:
            self.out.append(("notify", frame))
        return None

    def older(self) -> None:
        if (
            self.is_over
            or not self.is_running
            or not self.is_accepted
            or self.repair is not None
            or self.history is not None
            or not self.first
        ):
            return
        self.requests += 1
        self.history = self.requests
        self.out.append(("read", self.requests, self.last, self.first))

    # --- §5.3 ---

    def page(self, request: int, page: Any) -> None:
        if self.is_over:
            return None
        events = [record["event"] for record in page["records"]]
        if self.repair is not None and request == self.repair["request"]:
            return self.repaired(events, page["hasMore"])
        if self.history is not None and request == self.history:
            self.history = None
            assert self.first is not None
            kept = [event for event in events if event["seq"] < self.first]
            if not is_contiguous(events) or (
                not kept or kept[-1]["seq"] != self.first - 1
            ):
                self.out.append(("prepend", [], False))
                self.out.append(("report",))
                return None
            self.first = kept[0]["seq"]
            self.out.append(("prepend", kept, page["hasMore"]))
        return None

    def repaired(self, events: list[Event], has_more: Any) -> None:
        repair = self.repair
        assert repair is not None
        if (
            not is_contiguous(events)
            or not events
            or events[-1]["seq"] != repair["target"]
        ):
            return self.fatal()
        # Choice: a second page may begin behind the entry that told of the gap; what lies before
        # a page is history that can be asked for, and no gap.
        start = events[0]["seq"]
        queued = [event for event in repair["queued"] if event["seq"] >= start]
        merged = {event["seq"]: event for event in queued}
        merged |= {event["seq"]: event for event in events}
        joined = [merged[seq] for seq in sorted(merged)]
        if not is_contiguous(joined):
            if repair["reads"] == 2:
                return self.fatal()
            repair["reads"] = 2
            repair["target"] = joined[-1]["seq"]
            self.requests += 1
            repair["request"] = self.requests
            self.out.append(("read", self.requests, repair["target"], None))
            return None
        self.repair = None
        self.replace(joined, has_more, None)
        if not repair["held"]:
            return None
        if self.policy == "reopen":
            return self.restart()
        self.out += [("notify", frame) for frame in repair["held"]]
        return None


def is_contiguous(events: list[Event]) -> bool:
    seqs = [event["seq"] for event in events]
    return all(b == a + 1 for a, b in pairwise(seqs))
