"""Files as an interrupted machine leaves them: torn, overwritten, flipped, rearranged."""

from __future__ import annotations

import random
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec import kernel
from dsh_codec.repair import plan_repair, repair
from dsh_codec.writer import Writer
from fault_oracle import (
    HEADER,
    QUIET,
    STORED,
    append_as,
    judge,
    make_log,
    read,
    session_events,
    state_of,
)
from fault_tally import fault

if TYPE_CHECKING:
    from collections.abc import Callable

ALL = session_events(11)
BATCHES = [ALL[:2], ALL[2:5], ALL[5:6], ALL[6:11]]
REPEATED = [
    {"type": "turn/start", "seq": 0, "time": 1, "data": {"turn": 1}},
    {"type": "todo/write", "seq": 1, "time": 2, "data": {"todos": []}},
]


def frames_of(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return [data[start:end] for start, end in kernel.scan_frames(data).frames]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["events", "rows"])
@pytest.mark.parametrize("stored", STORED)
def test_torn_write_at_every_byte(tmp_path: Path, stored: Any, way: str) -> None:
    """Spec 10 §8.2 to §8.4, and the writer goes on from there."""
    path = make_log(tmp_path / "root", BATCHES[:1], stored)
    done, size = ALL[:2], path.stat().st_size
    for batch in BATCHES[1:]:
        with Writer.open(path, files=QUIET) as writer:
            append_as(writer, way, batch)
        whole = path.read_bytes()
        for cut in range(size, len(whole)):
            path.write_bytes(whole[:cut])
            with fault(f"torn write of {way} at every byte, {stored}"):
                events = judge(path, done, batch)
                rest = ALL[len(events) : len(done) + len(batch)]
                with Writer.open(path, files=QUIET) as writer:
                    append_as(writer, way, rest)
                assert read(path) == done + batch
        path.write_bytes(whole)
        done, size = done + batch, len(whole)


def blocks(raw: bytes, kind: int, size: int, *, last: bool) -> bytes:
    return ((size << 3) | (kind << 1) | last).to_bytes(3, "little") + raw


def frame_of(*parts: bytes) -> bytes:
    """A frame without checksum, window 2 MiB."""
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(parts)


@pytest.mark.slow
def test_torn_write_of_raw_and_rle_blocks(tmp_path: Path) -> None:
    """Spec 10 §7.4: complete blocks and the present part of a raw block are used."""
    path = make_log(tmp_path / "root", BATCHES[:1])
    base = path.read_bytes()
    lines = [kernel.encode_event(event) + b"\n" for event in ALL[2:5]]
    spaces = lines[0][:-2] + b" " * 40 + lines[0][-2:]
    raw = b"".join((spaces, *lines[1:]))
    head = raw.index(b" " * 40)
    frame = frame_of(
        blocks(raw[:head], 0, head, last=False),
        blocks(b" ", 1, 40, last=False),
        blocks(raw[head + 40 :], 0, len(raw) - head - 40, last=True),
    )
    path.write_bytes(base + frame)
    assert read(path) == ALL[:5]
    counts = set()
    for cut in range(1, len(frame)):
        path.write_bytes(base + frame[:cut])
        with fault("torn write at every byte, raw and RLE blocks"):
            counts.add(len(judge(path, ALL[:2], ALL[2:5])))
    assert counts == {2, 3, 4}


def _older(data: bytes, start: int) -> bytes:
    return data[:start] + data[: len(data) - start]


TAILS: dict[str, Callable[[bytes, int], bytes]] = {
    "zeros": lambda data, start: data[:start] + bytes(len(data) - start),
    "ones": lambda data, start: data[:start] + b"\xff" * (len(data) - start),
    "noise": lambda data, start: (
        data[:start] + random.Random(start).randbytes(len(data) - start)  # noqa: S311
    ),
    "an older tail": _older,
}


@pytest.mark.slow
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("tail", TAILS)
def test_tail_replaced(tmp_path: Path, stored: Any, tail: str) -> None:
    """What was acknowledged before is never lost: read, or refused and repaired."""
    path = make_log(tmp_path / "root", BATCHES[:3], stored)
    size = path.stat().st_size
    with Writer.open(path, files=QUIET) as writer:
        writer.append(ALL[6:9])
    whole = path.read_bytes()
    for start in range(size, len(whole)):
        path.write_bytes(TAILS[tail](whole, start))
        with fault(f"tail replaced by {tail}, {stored}"):
            survive(path, ALL[:6], ALL[6:9], tmp_path)


def survive(
    path: Path, acknowledged: list[Any], in_flight: list[Any], place: Path
) -> None:
    """Read, or refuse without a change and repair to the same."""
    before = state_of(path)
    try:
        events = read(path)
    except dsh.DshCodecError:
        with pytest.raises(dsh.DshCodecError):
            Writer.open(path)
        assert state_of(path) == before
        plan = plan_repair(path)
        assert state_of(path) == before
        assert plan.verdict == "damaged", plan
        repair(path, backup_dir=place / "backups", files=QUIET)
        events = read(path)
    judge(path, acknowledged, in_flight)
    assert events[: len(acknowledged)] == acknowledged


def log_of_size(root: Path, stored: Any, size: int) -> tuple[Path, list[Any]]:
    """A log of at least so many bytes, in batches of three."""
    events = session_events(3000)
    path = make_log(root, [], stored)
    known = 0
    with Writer.open(path, files=QUIET) as writer:
        while path.stat().st_size < size:
            known = writer.append(events[known : known + 3])
    return path, events[:known]


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("bits", ["one", pytest.param("all", marks=pytest.mark.slow)])
def test_every_bit_flip(tmp_path: Path, stored: Any, bits: str) -> None:
    """zstd: an error or the identical text. Plain: no crash, and no row after a gap."""
    size = 4096 if bits == "all" else 600
    path, events = log_of_size(tmp_path / "root", stored, size)
    whole = path.read_bytes()
    for position in range(len(whole)):
        data = bytearray(whole)
        for bit in range(8) if bits == "all" else (position % 8,):
            data[position] = whole[position] ^ (1 << bit)
            path.write_bytes(data)
            with fault(f"bit flip, {stored}"):
                try:
                    seen = read(path)
                except dsh.DshCodecError:
                    continue
                finally:
                    assert path.read_bytes() == data
                if stored == "zstd":
                    is_torn = dsh.check(path).truncate_to is not None
                    assert seen == (events[: len(seen)] if is_torn else events)
                else:
                    assert [row["seq"] for row in seen] == list(range(len(seen)))


EDITS: dict[str, Callable[[list[bytes]], list[list[bytes]]]] = {
    "dropped": lambda parts: [parts[:i] + parts[i + 1 :] for i in range(len(parts))],
    "doubled": lambda parts: [
        parts[:i] + parts[i : i + 1] + parts[i:] for i in range(len(parts))
    ],
    "swapped": lambda parts: [
        list(order) for order in permutations(parts) if list(order) != parts
    ],
    "skippable": lambda parts: [
        [*parts[:i], b"\x50\x2a\x4d\x18\x04\0\0\0abcd", *parts[i:]]
        for i in range(len(parts) + 1)
    ],
}


@pytest.mark.parametrize("edit", EDITS)
def test_frames_edited_are_refused_or_a_prefix(tmp_path: Path, edit: str) -> None:
    """Spec 10 §8.3: in complete frames nothing is recoverable."""
    path = make_log(tmp_path / "root", BATCHES)
    for parts in EDITS[edit](frames_of(path)):
        path.write_bytes(b"".join(parts))
        before = state_of(path)
        with fault(f"frames {edit}"):
            try:
                events = read(path)
            except dsh.DshCodecError:
                with pytest.raises(dsh.DshCodecError):
                    Writer.open(path)
            else:
                # Only a log that lost its last frames reads like an earlier one.
                assert events == ALL[: len(events)]
                assert len(parts) < 5
            plan_repair(path)
            assert state_of(path) == before


def test_frames_split_merged_and_empty_are_read(tmp_path: Path) -> None:
    """Spec 10 §7.2: boundaries of frames carry no meaning behind the header."""
    path = make_log(tmp_path / "root", BATCHES)
    head = frames_of(path)[0]
    text = b"".join(kernel.encode_event(event) + b"\n" for event in ALL)
    empty = kernel.encode_frame(b"")
    layouts = [[text], [b"", text, b""], [text[:1], text[1:]]]
    layouts += [[text[:at], text[at:]] for at in range(1, len(text), 7)]
    for layout in layouts:
        with fault("frames split, merged, empty"):
            path.write_bytes(head + b"".join(map(kernel.encode_frame, layout)))
            assert judge(path, ALL, []) == ALL
    path.write_bytes(head + empty * 3)
    with Writer.open(path, files=QUIET) as writer:
        writer.append(ALL)
    assert judge(path, ALL, []) == ALL


def test_last_frame_that_ends_inside_a_row_is_refused(tmp_path: Path) -> None:
    path = make_log(tmp_path / "root", BATCHES[:1])
    data = path.read_bytes()
    line = kernel.encode_event(ALL[2])
    path.write_bytes(data + kernel.encode_frame(line[:10]))
    before = state_of(path)
    with fault("last frame ends inside a row"):
        with pytest.raises(dsh.RowError):
            Writer.open(path)
        assert state_of(path) == before
        repair(path, backup_dir=tmp_path / "backups")
        assert path.read_bytes() == data


def test_damage_before_a_completed_turn_is_never_cut(tmp_path: Path) -> None:
    """Spec 10 §8.1, rationale; the sound beginning goes into a new log."""
    path = make_log(tmp_path / "root", [ALL[:5], ALL[5:10]])
    parts = frames_of(path)
    for position in range(len(parts[1])):
        damaged = bytearray(parts[1])
        damaged[position] ^= 0xFF
        path.write_bytes(parts[0] + damaged + parts[2])
        before = state_of(path)
        with fault("damage before a completed turn"):
            assert plan_repair(path).verdict == "refused"
            with pytest.raises(dsh.CorruptLogError):
                repair(path, backup_dir=tmp_path / "backups")
            assert state_of(path) == before
    assert not (tmp_path / "backups").exists()


@pytest.mark.parametrize("stored", STORED)
def test_writer_on_repeated_recovery(tmp_path: Path, stored: Any) -> None:
    """A machine that dies during every batch ends with the same session."""
    writer = Writer.create(tmp_path, HEADER, compression=stored)
    with writer:
        writer.append(ALL[:2])
    path = Path(writer.path)
    chance = random.Random(6)  # noqa: S311 - repeatable
    acknowledged = 2
    while acknowledged < len(ALL):
        with Writer.open(path, files=QUIET) as writer:
            known = writer.next_seq
            assert known >= acknowledged
            writer.repair_tail()
            acknowledged = known
            size = path.stat().st_size
            batch = ALL[known : known + 3]
            writer.append(batch)
        if chance.random() < 0.7:
            cut = chance.randrange(size, path.stat().st_size)
            path.write_bytes(path.read_bytes()[:cut])
            with fault("torn write, recovery after recovery"):
                judge(path, ALL[:acknowledged], batch)
        else:
            acknowledged += len(batch)
    assert read(path) == ALL
