"""Edge 1 to 2: chunk events become streams embedded in one settlement an attempt. Spec: 50 §5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh_codec._backend import kernel
from dsh_codec._types import StreamText
from dsh_codec.errors import StreamError
from dsh_codec.events import (
    MISSING,
    is_equal_number,
    is_identical,
    is_object,
    quote,
)
from dsh_codec.migrate.admission import EARLY_TYPES, check_payload, is_legacy_goal
from dsh_codec.migrate.edge import SeqMap, both_ends, each, remap_data
from dsh_codec.migrate.refusal import EdgeRefusalError, pass_on, refuse
from dsh_codec.values import is_count, is_sint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsh_codec._types import ChunkRun, CommonRow
    from dsh_codec.migrate.edge import Emit, JsonObject, Run

__all__ = ["EdgeV1"]

_CHUNK: Final = "assistant/chunk"
_DELIVERY: Final = "session-log-deepseek/delivery-accepted"
_CHUNK_KEYS: Final = frozenset(("type", "seq", "time", "data"))
_CHUNK_MORE: Final = frozenset(("ignorable", "sourceEventSeqs", "surfaceOp"))
_SETTLING: Final = ("turn/end", "step/end", "llm/retry", "llm/retry-started")
_ENDS: Final = ("start", "end")
_MEMBERS: Final = {
    "text-chunks": "texts",
    "reasoning-chunks": "texts",
    "tool-call-chunks": "args",
}


class _StreamBuilder:
    """The stream of one attempt, made of single chunks and of packed runs. Spec: 50 §5.5.

    Chunks go through the kernel's packer, runs are joined as they are; at each change from one
    to the other the packer's records are taken over. Only the last record ever grows, so the
    result is that of adding all members one by one. Rows that come together stay bytes; an
    attempt of nothing else becomes text without a value for each chunk.
    """

    def __init__(self) -> None:
        self._rows: list[bytes] = []
        self._records: list[JsonObject] = []
        self._last_time = 0  # Of the last record, if that is a run.
        self._packer = kernel.Packer()
        self._is_packing = False

    def push(self, time: Any, chunk: Any) -> None:
        """Add one chunk."""
        if not is_sint(time):
            refuse("50 §5.5", "has to be a safe integer", "time")
        self._take_rows()
        try:
            self._packer.push(int(time), chunk)
        except StreamError as error:
            refuse("50 §5.5", f"cannot be packed: {error.message}", "data.chunk")
        self._is_packing = True

    def push_run(self, run: Run) -> None:
        """Add a packed run."""
        self._take_rows()
        self._take_packed()
        self._join(run.record, run.last_time)

    def push_rows(self, raw: bytes) -> None:
        """Add rows of a `ChunkRun`."""
        self._rows.append(raw)
        if self._records or self._is_packing:
            self._take_rows()

    def stream(self) -> list[JsonObject] | StreamText:
        """Return the records, as text if rows came together only."""
        if self._rows:
            return kernel.pack_runs(self._rows)
        self._take_packed()
        return self._records

    def _take_rows(self) -> None:
        if not self._rows:
            return
        self._take_packed()
        rows, self._rows = self._rows, []
        for record in kernel.parse(kernel.pack_runs(rows).text):
            self._take(record)

    def _take_packed(self) -> None:
        if not self._is_packing:
            return
        for record in self._packer.snapshot():
            self._take(record)
        self._packer = kernel.Packer()
        self._is_packing = False

    def _take(self, record: JsonObject) -> None:
        if record["type"] == "chunk":
            self._records.append(record)
        else:
            self._join(record, int(record["time0"]) + int(sum(record["dt"])))

    def _join(self, record: JsonObject, last_time: int) -> None:
        """Add a run to the last record where it continues it, else as a record of its own."""
        last = self._records[-1] if self._records else None
        kind = record["type"]
        if (
            last is not None
            and last["type"] == kind
            and last["index"] == record["index"]
            and last.get("id") == record.get("id")
            and last.get("name") == record.get("name")
            and is_sint(gap := int(record["time0"]) - self._last_time)
        ):
            last["dt"].append(gap)
            last["dt"] += record["dt"]
            last[_MEMBERS[kind]] += record[_MEMBERS[kind]]
        else:
            self._records.append(record)
        self._last_time = last_time


class _Group:
    """Chunks of one attempt that has no settlement yet. Spec: 50 §5.1."""

    def __init__(self, turn: Any, step: Any) -> None:
        self.turn = turn
        self.step = step
        self.spans: list[list[int]] = []  # First and last seq of each run of chunks.
        self.chunk_count = 0
        self.last_time = 0
        self.is_terminal = False
        self.stream = _StreamBuilder()
        self.buffer: list[JsonObject] = []

    def is_of(self, turn: Any, step: Any) -> bool:
        if (
            type(turn) is type(self.turn) is int
            and type(step) is type(self.step) is int
        ):
            return turn == self.turn and step == self.step
        return is_identical(self.turn, turn) and is_identical(self.step, step)

    def extend(self, seq: int, count: int, time: int) -> None:
        if self.spans and self.spans[-1][1] == seq - 1:
            self.spans[-1][1] += count
        else:
            self.spans.append([seq, seq + count - 1])
        self.chunk_count += count
        self.last_time = time

    @property
    def first_seq(self) -> int:
        return self.spans[0][0]

    @property
    def last_seq(self) -> int:
        return self.spans[-1][1]

    def cited_form(self) -> list[int | list[int]]:
        """Return the seqs of the chunks as a row cites them. Spec: 10 §6."""
        cited: list[int | list[int]] = []
        for first, last in self.spans:
            if last - first < 2:
                cited += range(first, last + 1)
            else:
                cited.append([first, last])
        return cited

    def is_cited_by(self, seqs: list[int]) -> bool:
        """Whether these are exactly the seqs of the chunks, in order."""
        if len(seqs) != self.chunk_count:
            return False
        position = 0
        for first, last in self.spans:
            end = position + last - first + 1
            if seqs[position:end] != list(range(first, last + 1)):
                return False
            position = end
        return True


class EdgeV1:
    """The edge as a push machine; see `Edge`.

    Memory: 4 bytes for each source event, and the attempt in work.
    """

    def __init__(
        self,
        header_fields: Mapping[str, Any],
        source_cut: int,
        emit: Emit,
        *,
        is_first: bool,
    ) -> None:
        """Prepare the edge.

        Args:
            header_fields: Logical header.
            source_cut: Inherited cut of the source.
            emit: Takes the events of generation 2.
            is_first: Whether events come from a decoder and not from another edge.
        """
        self.source_cut: int | None = source_cut
        self._cut = source_cut
        self._is_seeded = header_fields["isSeeded"] is True
        self._id = header_fields["id"]
        self._has_parent = "parentSession" in header_fields
        self._emit = emit
        self._is_first = is_first
        self._targets = SeqMap()
        self._next = 0
        self._target_cut: int | None = None if self._is_seeded else 0
        self._group: _Group | None = None
        self._turn: Any = None
        self._step: Any = None
        self._was_spliced = False
        self._last_time: Any = header_fields["createdAt"]

    # --- input ---

    def push_run(self, run: Run) -> None:
        """Take a packed run."""
        last = run.seq + run.count - 1
        self._targets.append(SeqMap.GONE, run.count)
        self._was_spliced = False
        self._last_time = run.last_time
        group = self._group_for(run.turn, run.step)
        # A run is compared with itself only, not with its group (50 §5.3, note).
        if (run.seq < self._cut) != (last < self._cut):
            refuse("50 §5.3", "is split by the inherited cut", "seq0")
        group.stream.push_run(run)
        group.extend(run.seq, run.count, run.last_time)

    def push_rows(self, rows: ChunkRun) -> bool:
        """Take chunk rows at once; False if they have to come one by one."""
        group = self._group
        if (
            rows.has_events
            and group is not None
            and not group.is_terminal
            and group.is_of(rows.turn, rows.step)
            and (group.first_seq < self._cut) != (rows.seq < self._cut)
        ):
            return False  # One of them will be refused.
        self._targets.append(SeqMap.GONE, rows.count)
        self._was_spliced = False
        self._last_time = rows.time
        group = self._group_for(rows.turn, rows.step)
        group.stream.push_rows(rows.raw)
        group.extend(rows.seq, rows.count, rows.time)
        group.is_terminal = rows.is_terminal
        return True

    def settle(self, row: CommonRow) -> StreamText | None:
        """Return the stream that a message settles; None if only `push` can tell."""
        group = self._group
        if (
            group is None
            or group.buffer
            or self._is_seeded
            or not group.is_of(row.turn, row.step)
            or row.sources != group.cited_form()
        ):
            return None
        stream = group.stream.stream()
        if not isinstance(stream, StreamText) or not stream.has_plain_blocks:
            return None
        return stream

    def may_take(self, row: CommonRow) -> bool:
        """Whether a row that is no message of a model passes whatever `push` would look at."""
        if self._group is not None or self._is_seeded:
            return False
        return row.type != "turn/start" or self._turn is None

    def take_common(self, row: CommonRow) -> None:
        """Take a row that passes, or the message that `settle` gave the stream of."""
        self._group = None
        self._targets.append(self._next)
        self._next += 1
        self._track(row.type, {"turn": row.turn, "step": row.step})
        self._last_time = row.time

    def carried(self, seq: int) -> int | None:
        """Return where an earlier event stands in generation 2; None if it was not carried over."""
        if seq >= len(self._targets) or (target := self._targets[seq]) == SeqMap.GONE:
            return None
        return target

    def push(self, event: JsonObject) -> None:
        """Take the next event."""
        kind, seq = event.get("type"), int(event["seq"])
        self._targets.append(SeqMap.GONE)
        if type(kind) is not str or kind not in EARLY_TYPES:
            refuse("50 A.1", f"{quote(kind)} is no event type of generation 1", "type")
        if kind == _CHUNK:
            # Rules 3 to 9 and 11 are about other types.
            _check_chunk_event(event)
            self._was_spliced = False
            self._last_time = event["time"]
            self._take_chunk(event, seq)
            return
        data = event.get("data")
        if self._is_first:
            check_payload(kind, data, seq=seq, generation=1)
        data = event["data"]
        closer = self._closer(event)
        if kind == _DELIVERY:
            self._check_delivery(data, seq)
        self._track(kind, data)
        self._last_time = event.get("time", MISSING)
        if closer is not None:
            self._finish_attempt()
            self._emit_generated(seq, closer)
        if kind == "user/message" and is_legacy_goal(data["source"]):
            self._split_goal(event)
        elif kind == "assistant/message":
            self._take_message(event, seq)
        elif kind in _SETTLING:
            self._finish_attempt()
            self._emit_source(event)
        elif self._group is not None:
            self._group.buffer.append(event)
        else:
            self._emit_source(event)

    def finish(self) -> int:
        """End the log."""
        self._finish_attempt()
        if self._target_cut is None:
            self._target_cut = self._next
            self._put_marker(self._last_time)
        return self._target_cut

    # --- turns (50 §5.2 rules 3 to 6) ---

    def _closer(self, event: JsonObject) -> JsonObject | None:
        """Return the end of a turn that broke off, where a new turn shows that it did."""
        if event["type"] != "turn/start" or self._turn is None:
            return None
        if (
            self._step is not None
            or not self._was_spliced
            or not is_equal_number(event["data"]["turn"], self._turn + 1)
        ):
            refuse("50 §5.2", f"starts while turn {self._turn} is open", "data.turn")
        data = {"turn": self._turn, "reason": {"kind": "interrupted"}}
        return _timed("turn/end", event.get("time", MISSING), data)

    def _check_delivery(self, data: JsonObject, seq: int) -> None:
        if not is_equal_number(data.get("sessionFormatVersion"), 1):
            return
        is_inherited = self._has_parent and seq < self._cut
        if data["sessionId"] != self._id and not is_inherited:
            refuse("50 §5.2", "names another session", "data.sessionId")

    def _track(self, kind: str, data: JsonObject) -> None:
        if kind in ("turn/start", "turn/end"):
            self._turn = data["turn"] if kind == "turn/start" else None
            self._step = None
        elif kind == "step/start":
            self._step = data["step"]
        elif kind == "step/end":
            self._step = None
        self._was_spliced = (
            kind == "agent/inbox/spliced"
            and data["target"] == "next-turn"
            and bool(data["inserted"])
        )

    # --- chunks and settlements (50 §5.3, §5.4) ---

    def _group_for(self, turn: Any, step: Any) -> _Group:
        """Return the group that the next chunk of an attempt belongs to."""
        group = self._group
        if group is not None and (group.is_terminal or not group.is_of(turn, step)):
            self._finish_attempt()
            group = None
        if group is None:
            group = self._group = _Group(turn, step)
        elif group.buffer:
            self._flush(group)
        return group

    def _take_chunk(self, event: JsonObject, seq: int) -> None:
        data = event["data"]
        group = self._group_for(data.get("turn", MISSING), data.get("step", MISSING))
        first = group.first_seq if group.spans else seq
        if (first < self._cut) != (seq < self._cut):
            refuse("50 §5.3", "continues an attempt from before the inherited cut")
        chunk = data["chunk"]
        group.stream.push(event["time"], chunk)
        group.extend(seq, 1, int(event["time"]))
        if chunk.get("type") == "finish":
            group.is_terminal = True

    def _take_message(self, event: JsonObject, seq: int) -> None:
        data, group = event["data"], self._group
        seqs = event.get("sourceEventSeqs")
        if group is not None and not group.is_of(data["turn"], data["step"]):
            self._finish_attempt()
            self._emit_message(event, [])
            return
        if seqs is None:
            if group is not None:
                refuse("50 §5.4", "is missing after chunks", "sourceEventSeqs")
            self._emit_message(event, [])
            return
        if not seqs:
            self._finish_attempt()
            self._emit_message(event, [])
            return
        if group is None or not group.is_cited_by(seqs):
            message = "is not the complete list of the attempt's chunks"
            refuse("50 §5.4", message, "sourceEventSeqs")
        if (group.first_seq < self._cut) != (seq < self._cut):
            refuse("50 §5.4", "settles an attempt from before the inherited cut")
        self._flush(group)
        self._group = None
        self._emit_message(event, group.stream.stream())

    def _emit_message(
        self, event: JsonObject, stream: list[JsonObject] | StreamText
    ) -> None:
        kept = {k: v for k, v in event.items() if k != "sourceEventSeqs"}
        self._emit_source(kept | {"data": event["data"] | {"stream": stream}})

    def _split_goal(self, event: JsonObject) -> None:
        """Emit the change of a goal as an event of its own. Spec: 50 §5.2 rule 9."""
        # The buffer is passed by: with an open attempt these come before it.
        change = event["data"]["source"]["change"]
        made = _timed("goal/change", event.get("time", MISSING), change)
        self._emit_generated(int(event["seq"]), made)
        source = {"kind": "plugin", "plugin": "goal"}
        self._emit_source(event | {"data": event["data"] | {"source": source}})

    def _finish_attempt(self) -> None:
        group = self._group
        if group is None:
            return
        data: JsonObject = {}
        for name, value in (("turn", group.turn), ("step", group.step)):
            if value is not MISSING:
                data[name] = value
        data["stream"] = group.stream.stream()
        attempt = _timed("assistant/attempt", group.last_time, data)
        self._emit_generated(group.last_seq, attempt)
        self._flush(group)
        self._group = None

    def _flush(self, group: _Group) -> None:
        buffered, group.buffer = group.buffer, []
        for event in buffered:
            self._emit_source(event)

    # --- output (50 §5.6, §5.7) ---

    def _emit_source(self, event: JsonObject) -> None:
        seq, kind = int(event["seq"]), event["type"]
        if self._is_seeded and seq == self._cut and kind == "session/end-seed":
            event = event | {"data": {"inherited": True}}
        self._ensure_cut(seq, event.get("time", MISSING), kind)
        self._targets.place(seq, self._next)
        self._put(event)

    def _emit_generated(self, origin: int, event: JsonObject) -> None:
        self._ensure_cut(origin, event.get("time", MISSING), event["type"])
        self._put(event)

    def _ensure_cut(self, origin: int, time: Any, kind: str) -> None:
        if self._target_cut is not None or origin < self._cut:
            return
        self._target_cut = self._next
        if origin != self._cut or kind != "session/end-seed":
            self._put_marker(time)

    def _put_marker(self, time: Any) -> None:
        self._put(_timed("session/end-seed", time, {"inherited": True}))

    def _put(self, event: JsonObject) -> None:
        remapped = self._remap(event)
        remapped["seq"] = self._next
        self._next += 1
        self._emit(remapped)

    def _remap(self, event: JsonObject) -> JsonObject:
        """Return a copy with references renumbered, the two of the envelope last."""
        result = {
            name: value
            for name, value in event.items()
            if name not in ("sourceEventSeqs", "surfaceOp")
        }
        rule = "50 §5.7"
        result["data"] = remap_data(event["type"], event["data"], self._lookup, rule)
        if "sourceEventSeqs" in event:
            seqs = event["sourceEventSeqs"]
            result["sourceEventSeqs"] = each(
                "sourceEventSeqs", seqs, self._lookup, rule
            )
        if "surfaceOp" in event:
            op = event["surfaceOp"]
            if op != "append":
                try:
                    ends = both_ends(op, _ENDS, self._lookup, rule)
                except EdgeRefusalError as refusal:
                    pass_on(refusal, "surfaceOp")
                op = {"op": "replace", **ends}
            result["surfaceOp"] = op
        return result

    def _lookup(self, value: Any) -> int:
        known = is_count(value) and value < len(self._targets)
        target = self._targets[int(value)] if known else SeqMap.GONE
        if target == SeqMap.GONE:
            refuse("50 §5.7", "names no event that was carried over before it")
        return target


def _timed(kind: str, time: Any, data: Any) -> JsonObject:
    event = {"type": kind, "seq": 0, "time": time, "data": data}
    if time is MISSING:
        del event["time"]  # The next edge refuses it.
    return event


def _check_chunk_event(event: JsonObject) -> None:
    """Check the envelope and frame of a chunk event. Spec: 50 §5.2 rule 1, §5.3."""
    if event.keys() != _CHUNK_KEYS:
        for name in ("time", "data"):
            if name not in event:
                refuse("50 §5.2", f"lacks the member {name}")
        for name in event:
            if name not in _CHUNK_KEYS and name not in _CHUNK_MORE:
                refuse("50 §5.2", f"has the unexpected member {quote(name)}")
        if event.get("ignorable", True) is not True:
            refuse("50 §5.2", "may only be true", "ignorable")
    data = event["data"]
    if not is_object(data) or not is_object(data.get("chunk")):
        refuse("50 §5.3", "needs an object chunk", "data")
