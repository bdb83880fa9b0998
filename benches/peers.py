"""The peers: the same checks of whole logs by other packages, as fast as plain Python writes them."""

from __future__ import annotations

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
