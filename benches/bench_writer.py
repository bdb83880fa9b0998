"""Writing, reading of tiny frames, following: beside bare system calls, libzstd and orjson."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import zstandard

import dsh_codec as dsh
from bench_memory import PEAK, numbers
from compare import Contender, Line
from dsh_codec import _native as kernel
from peers import SETTLEMENTS, decoded, decoded_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from compare import Comparison
    from data import Logs

Event = dict[str, Any]

MB = 1_000_000
# What the harness compresses with. Spec: 70 §1.
PARAMETERS = {"window_log": 21, "write_content_size": False, "write_checksum": True}
BATCHES = ("settlement", "ten", "one", "import")
# What is appended: values of Python, rows that are text already, a packer that got its chunks before.
CASES = [(given, name) for given in ("values", "text") for name in BATCHES]
CASES.append(("packer", "settlement"))
STORED: dict[str, Any] = {"plain": "none", "zstd": "zstd"}


def chunks_in(event: Event) -> int:
    records = event["data"].get("stream", ())
    return sum(len(record.get("texts", record.get("args", [0]))) for record in records)


def batch_of(logs: Logs, name: str) -> list[Event]:
    """Return the events of one append, as they stand in a log.

    settlement: the one that is nearest to 400 tokens. ten: what stands around it, a turn with
    its tools. one: a start of a step. import: 600 events, 2 MB.
    """
    lines = logs.large().read_bytes()[: 8 * MB].split(b"\n")[1:-1]
    events = [orjson.loads(line) for line in lines]
    for event in events:
        event.pop("sourceEventSeqs", None)
    settled = [n for n, event in enumerate(events) if event["type"] in SETTLEMENTS]
    nearest = min(settled, key=lambda n: abs(chunks_in(events[n]) - 400))
    others = [event for event in events if event["type"] not in SETTLEMENTS]
    return {
        "settlement": [events[nearest]],
        "ten": others[2:12],
        "one": [next(event for event in events if event["type"] == "step/start")],
        "import": events[:600],
    }[name]


def compressor() -> Callable[[bytes], bytes]:
    """Return what makes frames with the harness's parameters: libzstd and nothing else."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, **PARAMETERS)
    context = zstandard.ZstdCompressor(compression_params=parameters)

    def compress(text: bytes) -> bytes:
        stream = context.compressobj()
        return stream.compress(text) + stream.flush()

    return compress


def packer_of(event: Event) -> dsh.Packer:
    """Return a packer that got the chunks of a settlement one by one."""
    packer = dsh.Packer()
    for time, chunk in dsh.expand(event["data"]["stream"]):
        packer.push(time, chunk)
    return packer


class Appends:
    """A batch, appended by a writer and by peers, each to a file of its own."""

    def __init__(
        self,
        folder: Path,
        events: list[Event],
        stored: str,
        *,
        given: str,
        durable: bool,
    ) -> None:
        self.events = events
        self.count = len(events)
        self.durable = durable
        compress: Callable[[bytes], bytes] = (
            bytes if stored == "plain" else compressor()
        )
        self.compress = compress
        header = {"id": "bench", "createdAt": 0}
        self.writer = dsh.Writer.create(
            folder, header, compression=STORED[stored], durable=durable
        )
        self.writer.flush()
        self.head_bytes = Path(self.writer.path).stat().st_size
        self.ours = getattr(self, f"of_{given}")
        if given == "packer":
            data = events[0]["data"]
            message = data.get("message", {"id": None, "source": {}})
            self.packer = packer_of(events[0])
            self.members: dict[str, Any] = {
                "turn": data["turn"],
                "step": data["step"],
                "time_ms": events[0]["time"],
                "message_id": message["id"],
                "provider": message["source"].get("provider"),
                "model": message["source"].get("model"),
            }
            self.of_packer()
            with dsh.open(self.writer.path) as log:
                events = [log[0].envelope]
        for seq, event in enumerate(events):
            event["seq"] = seq
        self.text = b"".join(orjson.dumps(event) + b"\n" for event in events)
        assert kernel.encode_rows(self.text, 0).text == self.text
        if stored == "zstd":
            assert compress(self.text) == kernel.encode_frame(self.text)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.file = os.open(folder / "bare", flags, 0o600)

    def close(self) -> None:
        os.close(self.file)
        self.writer.close()
        if self.ours != self.of_packer:
            # The same batch, again and again.
            batch = self.compress(self.text)
            data = Path(self.writer.path).read_bytes()[self.head_bytes :]
            assert data == batch * (len(data) // len(batch))
            return
        # Nothing but sound rows, in frames that decode.
        scan = kernel.check_file(self.writer.path).scan
        assert (scan.event_count, scan.issue) == (self.writer.next_seq, None)

    def put(self, text: bytes) -> None:
        os.write(self.file, self.compress(text))
        if self.durable:
            os.fsync(self.file)

    def bare(self) -> int:
        self.put(self.text)
        return self.count

    def with_orjson(self) -> int:
        self.put(b"".join([orjson.dumps(event) + b"\n" for event in self.events]))
        return self.count

    def read_with_orjson(self) -> int:
        for line in self.text.splitlines():
            orjson.loads(line)
        self.put(self.text)
        return self.count

    def of_values(self) -> int:
        # Only then the seqs of the batch are right once more.
        self.writer._stored_count = 0
        return self.writer.append(self.events)

    def of_text(self) -> int:
        self.writer._stored_count = 0
        return self.writer.append_rows(self.text)

    def of_packer(self) -> int:
        seq = self.writer.append_settlement(self.packer, **self.members)
        return self.writer.next_seq - seq


def described(events: list[Event], name: str, given: str) -> str:
    size = sum(len(orjson.dumps(event)) + 1 for event in events)
    tokens = f", {chunks_in(events[0])} tokens" if name == "settlement" else ""
    count = f"{len(events)} events" if len(events) > 1 else "1 event"
    return f"{count}{tokens}, {size / 1000:,.1f} kB, from {given}"


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize(("given", "name"), CASES)
def bench_append(
    compare: Comparison, logs: Logs, tmp_path: Path, name: str, stored: str, given: str
) -> None:
    """Without sync: what a batch costs above its bytes."""
    events = batch_of(logs, name)
    appends = Appends(tmp_path, events, stored, given=given, durable=False)
    floor, bare = (0.5, "bare write")
    if stored == "zstd":
        floor, bare = (0.8, "libzstd level 3 and write")
    count = len(events)
    peers = [Contender(bare, appends.bare, count, floor)]
    if given == "values":
        # The limit: the values have to become text.
        peers.append(Contender(f"orjson.dumps, {bare}", appends.with_orjson, count))
    elif given == "text":
        # No check but that each row is JSON.
        peers.append(
            Contender(f"orjson.loads, {bare}", appends.read_with_orjson, count)
        )
    with ExitStack() as stack:
        stack.callback(appends.close)
        compare(
            f"append {described(events, name, given)}, {stored}",
            peers,
            Contender("Writer", appends.ours, count),
            size=len(appends.text),
            rows=count,
        )


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize(("given", "name"), CASES)
def bench_durable_append(
    compare: Comparison, logs: Logs, tmp_path: Path, name: str, stored: str, given: str
) -> None:
    """With sync: a batch that is on disk when the call returns.

    Call by call in turns, because how long a disk takes changes from second to second.
    """
    events = batch_of(logs, name)
    appends = Appends(tmp_path, events, stored, given=given, durable=True)
    bare: list[float] = []
    ours: list[float] = []
    pairs = 4 if compare.small else 40 if name == "import" else 400
    with ExitStack() as stack:
        stack.callback(appends.close)
        for number in range(pairs):
            turns = [(appends.bare, bare), (appends.ours, ours)]
            for append, seconds in turns if number % 2 else turns[::-1]:
                start = perf_counter()
                count = append()
                seconds.append(perf_counter() - start)
                assert count == appends.count
    compare.line(
        Line(
            f"append {described(events, name, given)}, {stored}, fsync",
            "write and fsync of the same bytes",
            median(a / b for a, b in zip(ours, bare, strict=True)),
            1.15,
            unit="x its time",
            better="less",
            detail=f"{median(bare) * 1e6:,.0f} : {median(ours) * 1e6:,.0f} µs; wall, {pairs} pairs",
        )
    )


# --- tiny frames ---


def read_with_orjson(data: bytes) -> int:
    """Count the rows of a Zstandard log, with a look at the seq of each."""
    count = 0
    for line in decoded(data).split(b"\n")[1:-1]:
        if orjson.loads(line)["seq"] != count:
            raise ValueError(line)
        count += 1
    return count


def read_events(path: Path) -> int:
    with dsh.open(path) as log:
        return sum(1 for _ in log)


@pytest.mark.parametrize("clock", ["CPU", "wall"])
def bench_tiny_frames(compare: Comparison, logs: Logs, clock: Any) -> None:
    path = logs.tiny_frames()
    data = path.read_bytes()
    size = decoded_bytes(data)
    count = len(kernel.scan_frames(data).frames) - 1
    peers = [
        Contender(
            "zstandard + orjson", lambda: read_with_orjson(path.read_bytes()), count, 3
        ),
        # The limit: libzstd makes its tables for every frame.
        Contender("bare libzstd", lambda: decoded_bytes(data), size),
    ]
    about = f"{count:,} frames, {len(data) / MB:.0f} MB, {clock}"
    compare(
        f"check {about}",
        peers,
        Contender(
            "check_file",
            lambda: kernel.check_file(path),
            count,
            view=lambda found: found.scan.event_count,
        ),
        clock=clock,
        size=size,
        rows=count,
    )
    if clock == "CPU":
        compare(
            f"iterate over the events of {about}",
            [Contender(peers[0].name, peers[0].run, count), peers[1]],
            Contender("Log", lambda: read_events(path), count),
            size=size,
            rows=count,
            values="dropped",
        )


TINY = {
    "check": "import dsh_codec as dsh\ncount = dsh.check(sys.argv[1]).scan.scan.event_count\n",
    "iterate": "import dsh_codec as dsh\ncount = sum(1 for _ in dsh.open(sys.argv[1]))\n",
}


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak is read from /proc"
)
@pytest.mark.parametrize("way", TINY)
def bench_tiny_frames_memory(compare: Comparison, logs: Logs, way: str) -> None:
    path = logs.tiny_frames()
    peak, count = numbers(PEAK + TINY[way] + "print(peak(), count)", str(path))
    assert count == len(kernel.scan_frames(path.read_bytes()).frames) - 1
    compare.line(
        Line(
            f"peak memory, {way} {count:,} frames",
            "",
            peak / MB,
            40,
            unit="MB",
            better="less",
            detail=f"with the interpreter, {sys.implementation.name}",
        )
    )


# --- follow ---


@pytest.mark.parametrize("size", [5 * MB, 50 * MB])
def bench_follow(compare: Comparison, logs: Logs, size: int) -> None:
    """A look at a log that has one new frame."""
    path = logs.framed_notes(size)
    frames = kernel.scan_frames(path.read_bytes()).frames
    start, end = frames[-1]
    # A directory that was made just now is listed by every look.
    os.utime(path.parent, (0, 0))
    following = dsh.follow(path)
    cursors: Iterator[Any] = (following.cursor for _ in following.poll())
    seq = len(frames) - 2
    before = list(cursors)[-1]._replace(next_seq=seq)
    assert (before.offset, before.offset_seq) == (start, seq)
    context = zstandard.ZstdDecompressor()

    def bare() -> int:
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            frame = file.read(end - start)
        text = context.decompressobj().decompress(frame)
        return int(orjson.loads(text)["seq"])

    def poll() -> int:
        following._cursor = before
        (event,) = following.poll()
        assert isinstance(event, dsh.Event)
        return event.seq

    following._cursor = before
    assert [event.seq for event in following.poll()] == [seq]  # type: ignore[union-attr]
    peer, ours = compare.measure(
        f"follow {size}",
        [Contender("bare", bare, seq), Contender("Follow", poll, seq)],
        times=3,
    )
    pairs = zip(ours.seconds, peer.seconds, strict=True)
    compare.line(
        Line(
            f"poll of a {path.stat().st_size / MB:,.0f} MB log, one new frame",
            "open, read, decode that frame",
            median(a / b for a, b in pairs),
            3,
            unit="x its time",
            better="less",
            detail=f"{peer.median * 1e6:.1f} : {ours.median * 1e6:.1f} µs",
        )
    )
    following.close()
