"""Cuts, flipped bits and foreign files: an error that tells where, or the right answer.

The oracle: events are a prefix of the sound log's, or an error of our own classes is raised.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import dsh_codec as dsh
from small_logs import DEMO, HEADER, HEADER_V0, PLAIN, ROWS, ZSTD, read_on, zstd

PACKED = HEADER_V0 + (
    b'{"type":"text-chunks","seq0":0,"time0":9,"data":{"turn":1,"step":1,"index":0,'
    b'"dt":[1],"texts":["a","b"]}}\n'
    b'{"type":"tool-call-chunks","seq0":2,"time0":9,"data":{"turn":1,"step":1,"index":1,'
    b'"dt":[-1],"id":"c","name":"n","args":["{","}"]}}\n'
    b'{"type":"turn/end","seq":4,"time":12,"data":{"turn":1,"reason":{"kind":"completed"}}}\n'
)
LOGS = {
    "plain": PLAIN,
    "zstd": ZSTD,
    "packed": PACKED,
    "packed-zstd": zstd(*PACKED.splitlines(keepends=True)),
}
MODES: list[Any] = ["strict", "recoverable"]


def events_of(data: bytes, mode: Any) -> tuple[list[tuple[Any, ...]], Exception | None]:
    """Return the events before the first refusal, and the refusal."""
    try:
        log = dsh.open(data, mode=mode)
    except dsh.DshCodecError as refusal:
        return [], refusal
    events, error = read_on(log)
    return [(event.seq, event.time, event.data) for event in events], error


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("mode", MODES)
def test_every_cut_gives_a_prefix(name: str, mode: Any) -> None:
    """Spec 10 §8.2, §8.3: a cut is a torn tail, and the committed prefix stays."""
    whole = LOGS[name]
    expected, error = events_of(whole, mode)
    assert error is None
    if "zstd" in name:
        header_end = dsh.kernel.scan_frames(whole, max_frames=1).frames[0][1]
    else:
        header_end = whole.index(b"\n") + 1
    for cut in range(len(whole)):
        events, error = events_of(whole[:cut], mode)
        assert events == expected[: len(events)], cut
        if cut < header_end:
            assert isinstance(error, dsh.HeaderError), cut
            continue
        # Only a frame that ends inside a row could refuse a cut, and there is none.
        assert error is None, cut
        scan = dsh.check(whole[:cut], level="scan", mode=mode).scan
        assert scan is not None
        with dsh.open(whole[:cut], mode=mode) as log:
            assert scan == log.scan(check_streams=True), cut
        committed = cut if scan.truncate_to is None else scan.truncate_to
        again, _ = events_of(whole[:committed], mode)
        assert again == events[: len(events) - scan.recovered_count], cut


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits", ["one", pytest.param("all", marks=pytest.mark.slow)])
def test_every_flipped_bit_is_noticed_or_harmless(
    name: str, mode: Any, bits: str
) -> None:
    """No flip crashes, and the one-pass check says the same as the reader."""
    whole = bytearray(LOGS[name])
    for position in range(len(whole)):
        for bit in range(8) if bits == "all" else (position % 8,):
            whole[position] ^= 1 << bit
            data = bytes(whole)
            whole[position] ^= 1 << bit
            _, error = events_of(data, mode)
            report = dsh.check(data, level="scan", mode=mode)
            if error is None:
                assert report.status in ("sound", "torn"), (position, bit)
            else:
                assert report.status not in ("sound", "torn"), (position, bit)
            list(attempts_of(data, mode))


def attempts_of(data: bytes, mode: Any) -> Any:
    try:
        for attempt in dsh.open(data, mode=mode).attempts():
            yield (
                attempt.content,
                attempt.usage,
                attempt.finish,
                attempt.stream.chunk_count,
            )
            try:
                attempt.stream.expand()
                attempt.stream.assemble()
            except dsh.StreamError:
                pass
    except dsh.DshCodecError:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v0-packed", "v3", "v4", "v4-plain"])
@pytest.mark.parametrize("seed", range(3))
def test_random_damage_of_larger_logs(name: str, seed: int) -> None:
    """Several bytes changed, removed or doubled at once."""
    (path,) = (DEMO / name).iterdir()
    whole = path.read_bytes()
    chance = random.Random(f"{name}-{seed}")  # noqa: S311 - repeatable
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            width = chance.randint(1, 40)
            match chance.randrange(3):
                case 0:
                    data[at : at + width] = chance.randbytes(width)
                case 1:
                    del data[at : at + width]
                case _:
                    data[at:at] = data[at : at + width]
        _, error = events_of(bytes(data), "recoverable")
        report = dsh.check(bytes(data), level="scan")
        assert (error is None) == (report.status == "sound")
        list(attempts_of(bytes(data), "recoverable"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x28",
        b"\x28\xb5\x2f\xfd",
        b"\x50\x2a\x4d\x18\x04\0\0\0abcd",
        b"\x1f\x8b\x08\0rest of a gzip file",
        b"\x7fELF" + bytes(range(256)),
        bytes(4096),
        b"\xff" * 4096,
        b"{" * 100_000,
        b"[" * 100_000 + b"\n",
        b"{}\n" * 1000,
        b"\n" * 1000,
        "\ufeff{}\n".encode(),
        b"PK\x03\x04" + bytes(40),
        b"plain words\n",
    ],
    ids=range(15),
)
def test_what_is_no_log_is_refused(tmp_path: Path, data: bytes) -> None:
    for name in ("file", "session.v4.jsonl", "session.v4.jsonl.zstd"):
        path = tmp_path / name
        path.write_bytes(data)
        report = dsh.check(path)
        # A name may contradict the first bytes, and a header may be too deep.
        kinds = ("HeaderError", "FrameError", "IdentityError", "LimitExceededError")
        assert report.findings[0].kind in kinds
        assert report.status in ("damaged", "unreadable")
        assert report.path == str(path)
    with pytest.raises((dsh.CorruptLogError, dsh.LimitExceededError)):
        dsh.open(data)


def row(data: bytes, seq: int = 0) -> bytes:
    return b'{"type":"x","ignorable":true,"seq":%d,"time":0,"data":%s}\n' % (seq, data)


def test_deep_rows_stop_at_the_limit() -> None:
    """Design §5: deeper than `max_depth` is an error, not a crash."""
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        inner = b"1" if opening == b'{"a":' else b""
        fits = HEADER + row(opening * 1023 + inner + closing * 1023)
        (event,) = dsh.open(fits)
        assert event.data
        assert dsh.check(fits).status == "sound"
        deep = HEADER + row(opening * 1024 + inner + closing * 1024)
        for data in (deep, HEADER + row(opening * 200_000)):
            report = dsh.check(data)
            assert report.status == "unreadable"
            assert report.findings[0].kind == "LimitExceededError"
            with pytest.raises(dsh.LimitExceededError):
                list(dsh.open(data))


def test_huge_numbers_are_read_as_doubles() -> None:
    """Spec 10 §1: integers lose precision, literals overflow."""
    literals = b"[" + b"9" * 5000 + b",1e400,-1e-400,123456789012345678901]"
    (event,) = dsh.open(HEADER + row(literals))
    assert event.data == [float("inf"), float("inf"), 0, 123456789012345683968.0]
    report = dsh.check(HEADER + row(b"0", 9 * 10**300), mode="strict")
    assert report.findings[0].kind == "SeqGapError"


def test_packed_row_cannot_stand_for_more_than_it_holds() -> None:
    """Design §5."""
    members = b",".join([b'""'] * 5000)
    gaps = b",".join([b"0"] * 4999)
    line = (
        b'{"type":"text-chunks","seq0":0,"time0":0,"data":{"turn":1,"step":1,"index":0,'
        b'"dt":[%s],"texts":[%s]}}\n' % (gaps, members)
    )
    assert len(dsh.open(HEADER_V0 + line)) == 5000
    report = dsh.check(HEADER_V0 + line, max_packed_events=4999)
    assert report.findings[0].kind == "LimitExceededError"


def test_small_frame_cannot_grow_without_bound() -> None:
    """Design §5: a frame of a few bytes that stands for very many."""
    bomb = zstd(HEADER, row(b'"' + b"a" * 3_000_000 + b'"'))
    report = dsh.check(bomb, max_frame_plain_bytes=1 << 20)
    assert report.findings[0].kind == "LimitExceededError"
    assert (
        dsh.check(bomb, max_row_bytes=1 << 20).findings[0].kind == "LimitExceededError"
    )
    torn = bomb[:-3]
    with pytest.raises(dsh.LimitExceededError):
        list(dsh.open(torn, max_frame_plain_bytes=1 << 20))


def test_directory_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "session.v4.jsonl").mkdir()
    report = dsh.check(tmp_path)
    assert report.status == "unreadable"
    assert dsh.check(tmp_path / "session.v4.jsonl").status == "unreadable"


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="no file that fails to read"
)
def test_file_that_cannot_be_read_is_unreadable() -> None:
    report = dsh.check("/proc/self/mem")
    assert report.status in ("unreadable", "damaged")
    assert report.error is not None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(ZSTD,))
    writer.start()
    report = dsh.check(path)
    writer.join()
    assert report.status == "sound"
    assert report.event_count == 5


def test_failing_file_object_lets_its_error_through() -> None:
    class Failing:
        def read(self, size: int = -1, /) -> bytes:
            del size
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        dsh.open(Failing())
    assert dsh.check(Failing()).status == "unreadable"


def test_growing_file_is_read_up_to_where_it_was(tmp_path: Path) -> None:
    """Every length that a reader can meet while a writer appends."""
    path = tmp_path / "log"
    frames = [zstd(HEADER), *(zstd(line) for line in ROWS)]
    path.write_bytes(frames[0])
    count = 0
    for frame in frames[1:]:
        for part in (frame[:7], frame[7:]):
            with path.open("ab") as file:
                file.write(part)
            with dsh.open(path) as log:
                count = max(count, len(list(log)))
    assert count == 5
