"""The Zstandard container. Spec: 10 §7, 70 §1."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dsh_codec.errors import FrameError, LimitExceededError

CORPUS = Path(
    os.environ.get(
        "DSH_CORPUS", Path(__file__).resolve().parents[2] / "shared/corpus/real"
    )
)

MAGIC = b"\x28\xb5\x2f\xfd"
# "aaa" as a raw block; single segment, one byte of size, no checksum.
RAW = MAGIC + b"\x20\x03" + b"\x19\x00\x00" + b"aaa"
SKIPPABLE = b"\x50\x2a\x4d\x18\x00\x00\x00\x00"


def read_all(kernel: Any, pieces: list[bytes], **limits: int) -> list[Any]:
    reader = kernel.FrameReader(**limits)
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (plain := reader.read()) is not None:
            found.append(plain)
    return found


def joined(pieces: list[Any]) -> list[tuple[int, bytes]]:
    frames: dict[int, bytes] = {}
    for piece in pieces:
        frames[piece.frame] = frames.get(piece.frame, b"") + piece.data
    return list(frames.items())


def feed_single_bytes(scanner: Any, data: bytes) -> None:
    for position in range(len(data)):
        scanner.feed(data[position : position + 1])


# --- structure ---


def test_scan_frames_finds_every_frame(kernel):
    scan = kernel.scan_frames(RAW + RAW)
    assert scan == ([(0, 12), (12, 24)], None)
    assert kernel.scan_frames(b"") == ([], None)
    assert kernel.scan_frames(memoryview(RAW)) == ([(0, 12)], None)


@pytest.mark.parametrize("cut", range(1, 12))
def test_scan_frames_torn_frame(kernel, cut):
    """Spec 10 §7.3: not enough bytes, wherever it is."""
    assert kernel.scan_frames(RAW + RAW[:cut]) == ([(0, 12)], 12)


def test_scan_frames_stray_bytes(kernel):
    """Spec 10 §7.3, consequences."""
    assert kernel.scan_frames(RAW + b"\x00\x00\x00") == ([(0, 12)], 12)
    with pytest.raises(FrameError) as caught:
        kernel.scan_frames(RAW + b"\x00\x00\x00\x00")
    assert (caught.value.offset, caught.value.frame) == (12, 1)


def test_scan_frames_stops_at_max_frames(kernel):
    assert kernel.scan_frames(RAW + b"garbage", max_frames=1) == ([(0, 12)], None)
    assert kernel.scan_frames(b"garbage", max_frames=0) == ([], None)
    assert kernel.scan_frames(RAW[:5], max_frames=1) == ([], 0)


@pytest.mark.parametrize(
    "frame",
    [
        SKIPPABLE,
        MAGIC + b"\x08\x00",
        MAGIC + b"\x10\x00",
        MAGIC + b"\x20\x03" + b"\x07\x00\x00",
    ],
    ids=["skippable", "reserved-bit", "unused-bit", "reserved-block"],
)
def test_malformed_frame_is_refused_with_its_place(kernel, frame):
    data = RAW + RAW + frame
    with pytest.raises(FrameError) as caught:
        kernel.scan_frames(data)
    assert (caught.value.offset, caught.value.frame) == (24, 2)
    scanner = kernel.FrameScanner()
    with pytest.raises(FrameError) as caught:
        feed_single_bytes(scanner, data)
    assert (caught.value.offset, caught.value.frame) == (24, 2)
    with pytest.raises(FrameError):
        scanner.feed(b"")
    with pytest.raises(FrameError) as caught:
        read_all(kernel, [data])
    assert (caught.value.offset, caught.value.frame) == (24, 2)


def test_frame_scanner_in_pieces(kernel):
    data = RAW + kernel.encode_frame(b"x" * 1000) + RAW[:7]
    whole = kernel.scan_frames(data)
    for size in (1, 2, 5, 13, 1000):
        scanner = kernel.FrameScanner()
        frames = []
        for start in range(0, len(data), size):
            frames += scanner.feed(data[start : start + size])
        assert frames == whole.frames
        assert scanner.finish() == whole.torn_start


def test_frame_scanner_at_a_boundary_is_not_torn(kernel):
    scanner = kernel.FrameScanner()
    assert scanner.finish() is None
    assert scanner.feed(RAW) == [(0, 12)]
    assert scanner.finish() is None
    assert scanner.feed(RAW[:1]) == []
    assert scanner.finish() == 12


# --- decoding ---


@pytest.mark.parametrize("size", [1, 3, 100, 1 << 20])
def test_frame_reader_gives_every_frame(kernel, size):
    plain = [b"first\n", b"", b"x" * 5000, bytes(range(256)) * 40]
    data = b"".join(map(kernel.encode_frame, plain))
    found = read_all(kernel, [data[i : i + size] for i in range(0, len(data), size)])
    assert joined(found) == list(enumerate(plain))
    assert [piece.frame for piece in found if piece.last] == [0, 1, 2, 3]


def test_frame_reader_counts_frames(kernel):
    reader = kernel.FrameReader()
    assert reader.read() is None
    reader.feed(RAW + RAW[:-1])
    assert reader.read() == (0, b"aaa", True)
    assert reader.frame_count == 1
    while (piece := reader.read()) is not None:
        assert not piece.last
    assert reader.frame_count == 1


def test_frame_reader_pieces_are_bounded(kernel):
    plain = b"ab" * (3 << 20)
    found = read_all(kernel, [kernel.encode_frame(plain)])
    assert all(len(piece.data) <= 1 << 20 for piece in found)
    assert joined(found) == [(0, plain)]


def test_frame_reader_many_small_frames_are_linear(kernel):
    count = 20_000
    found = read_all(kernel, [RAW * count])
    assert len(found) == count


def test_frame_reader_wants_its_pieces_read(kernel):
    reader = kernel.FrameReader()
    reader.feed(RAW)
    with pytest.raises(ValueError, match="read"):
        reader.feed(RAW)


@pytest.mark.parametrize("position", [-1, -4, 10, 15])
def test_frame_reader_damage_is_refused(kernel, position):
    """Checksum or payload damage; spec 10 §7.3, last line."""
    frame = bytearray(kernel.encode_frame(b"some text that is long enough"))
    frame[position] ^= 1
    with pytest.raises(FrameError) as caught:
        read_all(kernel, [RAW, bytes(frame)])
    assert (caught.value.offset, caught.value.frame) == (12, 1)


def test_frame_reader_refuses_a_window_above_two_to_27(kernel):
    """Spec 10 §7.2."""
    body = b"\x19\x00\x00aaa"
    largest = MAGIC + b"\x00" + bytes([17 << 3]) + body
    assert joined(read_all(kernel, [largest])) == [(0, b"aaa")]
    for window in (17 << 3 | 1, 18 << 3, 31 << 3 | 7):
        with pytest.raises(FrameError) as caught:
            read_all(kernel, [MAGIC + b"\x00" + bytes([window]) + body])
        assert caught.value.offset == 0
    single = MAGIC + b"\xa0" + (1 << 28).to_bytes(4, "little") + body
    with pytest.raises(FrameError):
        read_all(kernel, [single])


def test_frame_reader_refuses_a_dictionary(kernel):
    with pytest.raises(FrameError) as caught:
        read_all(kernel, [MAGIC + b"\x21\x07\x03\x19\x00\x00aaa"])
    assert caught.value.offset == 0


def test_frame_reader_refuses_content_that_is_not_the_declared_size(kernel):
    with pytest.raises(FrameError):
        read_all(kernel, [MAGIC + b"\x20\x04\x19\x00\x00aaa"])


def test_frame_reader_error_stays(kernel):
    reader = kernel.FrameReader()
    reader.feed(SKIPPABLE)
    for _ in range(2):
        with pytest.raises(FrameError):
            reader.read()


def test_frame_reader_stops_a_bomb(kernel):
    """A frame of some KiB that holds 64 MiB: spec 10 §7 names no bound, `limits` does."""
    bomb = kernel.encode_frame(bytes(64 << 20))
    assert len(bomb) < 1 << 16
    reader = kernel.FrameReader(max_frame_plain_bytes=3 << 20)
    reader.feed(RAW + bomb)
    seen: list[bytes] = []
    with pytest.raises(LimitExceededError) as caught:
        seen.extend(piece.data for piece in iter(reader.read, None))
    assert (caught.value.limit, caught.value.value) == (
        "max_frame_plain_bytes",
        3 << 20,
    )
    assert (caught.value.offset, caught.value.frame) == (12, 1)
    assert sum(map(len, seen)) <= (3 << 20) + 3


# --- encoding ---


def test_encode_frame_header(kernel):
    """Spec 70 §1: checksum, no content size, not single-segment, window 2 MiB."""
    for level in (-5, 1, 3, 19):
        frame = kernel.encode_frame(b"abc" * 100, level=level)
        assert frame[:6] == MAGIC + b"\x04\x58"
        assert joined(read_all(kernel, [frame])) == [(0, b"abc" * 100)]


@pytest.mark.parametrize("level", [23, 1 << 40, 3.0])
def test_encode_frame_refuses_other_levels(kernel, level):
    with pytest.raises((ValueError, TypeError, OverflowError)):
        kernel.encode_frame(b"", level=level)


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no folder {CORPUS.name} of real logs")
def test_encode_frame_reproduces_the_bytes_of_the_harness(kernel):
    """Spec 70 §1: every frame of every real log, byte for byte."""
    frames = 0
    for path in sorted(CORPUS.rglob("*.zstd")):
        data = path.read_bytes()
        for start, end in kernel.scan_frames(data).frames:
            frame = data[start:end]
            (content,) = joined(read_all(kernel, [frame]))
            assert kernel.encode_frame(content[1]) == frame, path
            frames += 1
    assert frames > 1000


# --- torn tails ---


def test_recover_tail_gives_what_is_there(kernel):
    """Spec 10 §7.4: complete blocks, and the present part of a raw block."""
    for cut in range(9, len(RAW)):
        assert kernel.recover_tail(RAW[:cut]) == b"aaa"[: cut - 9]
    assert kernel.recover_tail(b"") == b""
    assert kernel.recover_tail(MAGIC) == b""
    frame = kernel.encode_frame(b"hello " * 100)
    for missing in range(1, 5):
        assert kernel.recover_tail(frame[:-missing]) == b"hello " * 100


def test_recover_tail_of_what_does_not_decode_is_empty(kernel):
    assert kernel.recover_tail(b"garbage!") == b""
    two_blocks = MAGIC + b"\x00\x58" + b"\x18\x00\x00aaa" + b"\xff\xff\xff"
    assert kernel.recover_tail(two_blocks) == b""
    assert kernel.recover_tail(two_blocks[:-1]) == b"aaa"


def test_recover_tail_limit(kernel):
    torn = kernel.encode_frame(bytes(8 << 20))[:-1]
    assert kernel.recover_tail(torn, max_plain_bytes=8 << 20) == bytes(8 << 20)
    with pytest.raises(LimitExceededError) as caught:
        kernel.recover_tail(torn, max_plain_bytes=1 << 20)
    assert (caught.value.limit, caught.value.value) == ("max_plain_bytes", 1 << 20)


def test_empty_batch_has_the_window_of_all_frames(kernel):
    """70 §1: every frame has a 2 MiB window."""
    expected = bytes.fromhex("28b52ffd045801000099e9d851")
    assert kernel.encode_frame(b"") == expected


def pieces_of(kernel, data):
    reader = kernel.FrameReader()
    reader.feed(data)
    found = []
    while (piece := reader.read()) is not None:
        found.append((piece.frame, piece.data, piece.last))
    return found


@pytest.mark.parametrize("stray", [b"a", b"abc", b"\x28\xb5", b"\0"])
def test_stray_bytes_may_be_the_start_of_a_frame(kernel, stray):
    """10 §7.3: one to three bytes are a torn tail whatever they are."""
    assert pieces_of(kernel, stray) == []
    whole = kernel.encode_frame(b"x")
    assert pieces_of(kernel, whole + stray) == [(0, b"x", True)]


@pytest.mark.parametrize("before", [b"", b"h" * 300])
def test_content_beyond_its_declared_size_is_refused(kernel, before):
    """Alike whatever was decoded before."""
    block = (131 << 3).to_bytes(3, "little") + b"aaa"
    lie = b"\x28\xb5\x2f\xfd\x80\x58" + bytes(4) + block
    data = (kernel.encode_frame(before) if before else b"") + lie
    with pytest.raises(FrameError) as caught:
        pieces_of(kernel, data)
    assert caught.value.offset == len(data) - len(lie)


def test_torn_frame_that_exceeds_its_limit_is_named(kernel):
    head = b'{"type":"session","version":4,"id":"s","createdAt":1,"isSeeded":false,"delegationDepth":0}\n'
    row = b'{"type":"x","seq":0,"time":1,"data":"' + b"y" * 200 + b'"}\n'
    data = kernel.encode_frame(head) + kernel.encode_frame(row)[:-4]
    with pytest.raises(LimitExceededError) as caught:
        kernel.check_bytes(data, max_frame_plain_bytes=len(head))
    assert caught.value.offset == len(kernel.encode_frame(head))
