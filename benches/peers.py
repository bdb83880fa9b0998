"""The peers: the same checks of whole logs by other packages, as fast as plain Python writes them."""

from __future__ import annotations

from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import orjson
import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

KEYS: Final = {
    "text-chunks": ({"type", "time0", "index", "dt", "texts"}, "texts"),
    "reasoning-chunks": ({"type", "time0", "index", "dt", "texts"}, "texts"),
    "tool-call-chunks": ({"type", "time0", "index", "dt", "id", "args"}, "args"),
}
PACKED_KEYS: Final = {"type", "seq0", "time0", "data"}
PACKED_DATA_KEYS: Final = {
    kind: keys - {"type", "time0"} | {"turn", "step"}
    for kind, (keys, _) in KEYS.items()
}
ENVELOPE: Final = {
    "type",
    "seq",
    "time",
    "data",
    "surfaceOp",
    "sourceEventSeqs",
    "ignorable",
}
SETTLEMENTS: Final = ("assistant/message", "assistant/attempt")
SAFE: Final = 2**53 - 1
PIECE_BYTES: Final = 1 << 20

Totals = tuple[int, int]

# --- orjson ---


def check_with_orjson(data: bytes) -> Totals:
    """Return events and chunks: seq, envelope, and of records keys, members, gaps, times."""
    lines = data.split(b"\n")
    count = chunk_count = 0
    for line in lines[1:-1]:
        row = orjson.loads(line)
        if row.keys() - ENVELOPE or row["seq"] != count or type(row["time"]) is not int:
            raise ValueError(line)
        if type(row["type"]) is not str or "data" not in row:
            raise ValueError(line)
        count += 1
        if row["type"] in SETTLEMENTS:
            chunk_count += sum(map(check_record, row["data"]["stream"]))
    return count, chunk_count


def check_record(record: dict[str, Any]) -> int:
    """Return the chunks of one record, checked by the rules of spec 20 §4."""
    if record["type"] == "chunk":
        if record.keys() != {"type", "time", "chunk"} or abs(record["time"]) > SAFE:
            raise ValueError(record)
        return 1
    keys, name = KEYS[record["type"]]
    if record.keys() - {"name"} != keys or record["index"] < 0:
        raise ValueError(record)
    return check_members(record[name], record["dt"], record["time0"])


def check_members(members: list[str], gaps: list[int], time: int) -> int:
    """Return how many members a run has, checked with their times."""
    if len(gaps) != len(members) - 1:
        raise ValueError(gaps)
    if not all(type(member) is str for member in members):
        raise ValueError(members)
    for gap in gaps:
        time += gap
        if type(gap) is not int or abs(time) > SAFE:
            raise ValueError(gaps)
    return len(members)


def check_v0_with_orjson(data: bytes) -> Totals:
    """Return events and chunks of a log of generation 0, packed or not. Spec: 10 §5.2, §5.3."""
    lines = data.split(b"\n")
    count = chunk_count = 0
    for line in lines[1:-1]:
        row = orjson.loads(line)
        kind = row["type"]
        if kind in KEYS:
            run = row["data"]
            if row.keys() != PACKED_KEYS or row["seq0"] != count or run["index"] < 0:
                raise ValueError(line)
            if run.keys() - {"name"} != PACKED_DATA_KEYS[kind]:
                raise ValueError(line)
            members = check_members(run[KEYS[kind][1]], run["dt"], row["time0"])
            count += members
            chunk_count += members
            continue
        if row["seq"] != count or type(row["time"]) is not int or type(kind) is not str:
            raise ValueError(line)
        count += 1
        if kind == "assistant/chunk":
            chunk = row["data"]["chunk"]
            if type(chunk["type"]) is not str:
                raise ValueError(line)
            chunk_count += 1
    return count, chunk_count


def check_files(paths: Iterable[Path], *, is_zstd: bool) -> Totals:
    """Return events and chunks of many logs."""
    events = chunks = 0
    for path in paths:
        data = path.read_bytes()
        found = check_with_orjson(decoded(data) if is_zstd else data)
        events += found[0]
        chunks += found[1]
    return events, chunks


# --- msgspec ---

Time = Annotated[int, msgspec.Meta(ge=-SAFE, le=SAFE)]
Index = Annotated[int, msgspec.Meta(ge=0, le=SAFE)]
Strict: Final[Any] = {"forbid_unknown_fields": True, "gc": False}


class Chunk(msgspec.Struct, tag="chunk", **Strict):
    """A raw record."""

    time: Time
    chunk: msgspec.Raw


class Texts(msgspec.Struct, tag="text-chunks", **Strict):
    """A run of text."""

    time0: Time
    index: Index
    dt: list[int]
    texts: list[str]


class Reasonings(Texts, tag="reasoning-chunks", **Strict):
    """A run of reasoning."""


class Arguments(msgspec.Struct, tag="tool-call-chunks", **Strict):
    """A run of a tool call."""

    time0: Time
    index: Index
    dt: list[int]
    id: str
    args: list[str]
    name: str | None = None


class Settlement(msgspec.Struct, gc=False):
    """The data of a settlement; only its stream is looked at."""

    stream: list[Chunk | Texts | Reasonings | Arguments]


class EventRow(msgspec.Struct, **Strict):
    """An event row."""

    type: str
    seq: int
    time: Time
    data: msgspec.Raw
    surfaceOp: msgspec.Raw = msgspec.Raw()  # noqa: N815 - the name of the key
    sourceEventSeqs: msgspec.Raw = msgspec.Raw()  # noqa: N815 - the name of the key
    ignorable: msgspec.Raw = msgspec.Raw()


def check_with_msgspec(data: bytes) -> Totals:
    """Return events and chunks, checked by typed decoding and a loop over the times."""
    decode_row = msgspec.json.Decoder(EventRow).decode
    decode_settlement = msgspec.json.Decoder(Settlement).decode
    count = chunk_count = 0
    for line in data.split(b"\n")[1:-1]:
        row = decode_row(line)
        if row.seq != count:
            raise ValueError(line)
        count += 1
        if row.type in SETTLEMENTS:
            for record in decode_settlement(row.data).stream:
                chunk_count += _check_typed(record)
    return count, chunk_count


def _check_typed(record: Chunk | Texts | Arguments) -> int:
    if type(record) is Chunk:
        return 1
    members = record.args if isinstance(record, Arguments) else record.texts  # type: ignore[union-attr]
    gaps, time = record.dt, record.time0  # type: ignore[union-attr]
    if len(gaps) != len(members) - 1:
        raise ValueError(record)
    for gap in gaps:
        time += gap
        if abs(time) > SAFE:
            raise ValueError(record)
    return len(members)


# --- zstandard ---


def decoded(data: bytes) -> bytes:
    """Return the plaintext of all frames. One context for all; the fastest way of zstandard."""
    reader = zstandard.ZstdDecompressor().stream_reader(
        BytesIO(data), read_across_frames=True
    )
    return b"".join(iter(lambda: reader.read(PIECE_BYTES), b""))


def decoded_bytes(data: bytes) -> int:
    """Decode all frames into one buffer and return how much it was: libzstd and nothing else."""
    reader = zstandard.ZstdDecompressor().stream_reader(
        BytesIO(data), read_across_frames=True
    )
    buffer = bytearray(PIECE_BYTES)
    total = 0
    while count := reader.readinto(buffer):
        total += count
    return total


# --- text to text ---


def rows_of(data: bytes) -> Iterator[Any]:
    """Yield the values of the rows of a plain log, without its header."""
    return map(orjson.loads, data.split(b"\n")[1:-1])


# --- migration ---

_MEMBERS: Final = {"text-delta": "text", "reasoning-delta": "text"}


class SimpleMigration:
    """v0 to v4 of a sound log of chunk rows or packed rows, in the shortest Python.

    Chunks become streams, seqs are numbered anew, tool results and the system prompt get their
    new shape. No rule of payloads, references, turns or the result is checked, and events that
    the benchmarks' logs do not hold are not known.
    """

    def __init__(self, header: dict[str, Any]) -> None:
        self.rows: list[bytes] = []
        self._id = header["id"]
        self._targets: list[int] = []
        self._anchors = 0  # Seq in generation 2.
        self._head: int | None = None
        self._prompt = ""
        self._place: dict[str, Any] = {}
        self._records: list[Any] | None = None
        self._last: dict[str, Any] = {"type": ""}
        self._last_time = 0  # Of the last delta.
        self._attempt_time = 0
        self._is_finished = False

    def push(self, row: dict[str, Any]) -> None:
        """Take the next row."""
        kind, data = row["type"], row["data"]
        if kind == "assistant/chunk":
            self._targets.append(-1)
            self._add_chunk(row["time"], data["chunk"])
            return
        if kind in KEYS:
            self._targets.extend([-1] * (len(data["dt"]) + 1))
            self._add_run(kind, row["time0"], data)
            return
        if kind == "step/start":
            self._place = {"turn": data["turn"], "step": data["step"]}
        elif kind == "step/end" and self._records:
            self._put_attempt()
        elif kind == "request/header":
            prompt = data["header"].pop("system", "")
            if prompt != self._prompt:
                self._put_system(prompt, row)
        elif kind == "assistant/message":
            row.pop("sourceEventSeqs", None)
            data["stream"] = self._records or []
            self._records, self._is_finished = None, False
        elif kind == "tool/result":
            message = data["message"]
            [block] = message["content"]
            data["message"] = {
                "role": "tool",
                "source": message["source"],
                "toolCallId": block["toolCallId"],
                "content": block["content"],
                "isError": block["isError"],
                "id": message["id"],
            }
        # The two members that are about other events go last.
        seqs = row.pop("sourceEventSeqs", None)
        operation = row.pop("surfaceOp", None)
        if seqs is not None:
            row["sourceEventSeqs"] = [self._targets[seq] for seq in seqs]
        if operation is not None:
            row["surfaceOp"] = operation
        self._targets.append(len(self.rows))
        self._put(row)
        if kind == "step/start" and self._head is None:
            self._put_system("", row)
        self._anchors += 1

    def finish(self) -> None:
        """End the log."""
        if self._records:
            self._put_attempt()

    def _put(self, row: dict[str, Any]) -> None:
        row["seq"] = len(self.rows)
        self.rows.append(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))

    def _put_attempt(self) -> None:
        data = self._place | {"stream": self._records}
        self._records, self._is_finished = None, False
        time = self._attempt_time
        self._put({"type": "assistant/attempt", "seq": 0, "time": time, "data": data})
        self._anchors += 1

    def _put_system(self, prompt: str, anchor: dict[str, Any]) -> None:
        seed = ["session-format-v2-to-v3", self._id, self._anchors, anchor["type"]]
        message = {
            "id": f"v2-to-v3-system-{sha256(orjson.dumps(seed)).hexdigest()}",
            "role": "system",
            "source": {"kind": "system-prompt"},
            "content": [{"type": "text", "text": prompt}] if prompt else [],
        }
        data = self._place | {"message": message}
        row = {"type": "system/message", "seq": 0, "time": anchor["time"], "data": data}
        head = self._head
        if head is None:
            row["surfaceOp"] = "append"
        else:
            row["surfaceOp"] = {"op": "replace", "startSeq": head, "endSeq": head}
            row["sourceEventSeqs"] = [head]
        self._head, self._prompt = len(self.rows), prompt
        self._put(row)

    def _add_chunk(self, time: int, chunk: dict[str, Any]) -> None:
        if self._is_finished:
            self._put_attempt()
        if self._records is None:
            self._records, self._last = [], {"type": ""}
        self._attempt_time = time
        kind, last = chunk["type"], self._last
        if not kind.endswith("-delta"):
            self._is_finished = kind == "finish"
            self._last = {"type": ""}
            self._records.append({"type": "chunk", "time": time, "chunk": chunk})
            return
        member = _MEMBERS.get(kind)
        fragment = chunk["argumentsDelta"] if member is None else chunk[member]
        key = "args" if member is None else "texts"
        kind = kind[:-5] + "chunks"
        if (
            last["type"] == kind
            and last["index"] == chunk["index"]
            and last.get("id") == chunk.get("id")
            and last.get("name") == chunk.get("name")
        ):
            last["dt"].append(time - self._last_time)
            last[key].append(fragment)
        else:
            self._open_record(kind, time, chunk, [], key, [fragment])
        self._last_time = time

    def _add_run(self, kind: str, time: int, data: dict[str, Any]) -> None:
        if self._is_finished:
            self._put_attempt()
        if self._records is None:
            self._records, self._last = [], {"type": ""}
        key, last, gaps = KEYS[kind][1], self._last, data["dt"]
        if (
            last["type"] == kind
            and last["index"] == data["index"]
            and last.get("id") == data.get("id")
            and last.get("name") == data.get("name")
        ):
            last["dt"].append(time - self._last_time)
            last["dt"] += gaps
            last[key] += data[key]
        else:
            self._open_record(kind, time, data, gaps, key, data[key])
        self._last_time = self._attempt_time = time + sum(gaps)

    def _open_record(
        self,
        kind: str,
        time: int,
        source: dict[str, Any],
        gaps: list[int],
        key: str,
        members: list[str],
    ) -> None:
        last: dict[str, Any] = {"type": kind, "time0": time, "index": source["index"]}
        last["dt"] = gaps
        for name in ("id", "name"):
            if name in source:
                last[name] = source[name]
        last[key] = members
        self._last = last
        self._records.append(last)  # type: ignore[union-attr]


def migrate_with_orjson(path: Path) -> bytes:
    """Return the event rows of generation 4 of a log of generation 0."""
    with path.open("rb") as lines:
        migration = SimpleMigration(orjson.loads(lines.readline()))
        for line in lines:
            migration.push(orjson.loads(line))
        migration.finish()
    return b"".join(migration.rows)
