"""Scans of whole logs. Spec: 10 §8.2, §8.3."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from dsh_codec.errors import (
    DshCodecError,
    FrameError,
    HeaderError,
    LimitExceededError,
    RowError,
)

HEADER = (
    b'{"type":"session","version":4,"id":"s","createdAt":1,"isSeeded":false,'
    b'"delegationDepth":0}\n'
)
OLD_HEADER = (
    b'{"type":"session","version":0,"id":"s","createdAt":1,"delegationDepth":0}\n'
)


def rows(start: int, end: int, data: Any = None) -> bytes:
    return b"".join(
        json.dumps({"type": "x", "seq": seq, "time": seq, "data": data}).encode()
        + b"\n"
        for seq in range(start, end)
    )


def zstd(kernel: Any, *batches: bytes) -> bytes:
    return b"".join(map(kernel.encode_frame, batches))


def check(kernel: Any, how: str, data: bytes, folder: Path, **options: Any) -> Any:
    """Check in memory or as a file; the answers have to be the same."""
    if how == "bytes":
        return kernel.check_bytes(data, **options)
    path = folder / "session.log"
    path.write_bytes(data)
    return kernel.check_file(path, **options)


@pytest.fixture(params=["bytes", "file"])
def how(request):
    return request.param


@pytest.mark.parametrize("mode", ["strict", "recoverable"])
def test_check_plain(kernel, how, tmp_path, mode):
    """Spec 10 §8.2."""
    data = HEADER + rows(0, 3)
    found = check(kernel, how, data, tmp_path, mode=mode)
    assert found.scan.event_count == 3
    assert found.compression == "none"
    assert found.file_bytes == found.plain_bytes == len(data)
    assert (found.frame_count, found.torn_start, found.truncate_to) == (
        None,
        None,
        None,
    )
    assert found.recovered_count == 0
    found = check(kernel, how, data + b'{"torn', tmp_path, mode=mode)
    assert found.truncate_to == len(data)
    assert found.scan.issue is None


def test_check_plain_damage(kernel, how, tmp_path):
    data = HEADER + rows(0, 3) + b"bad\n" + rows(3, 4)
    found = check(kernel, how, data, tmp_path)
    assert found.truncate_to == len(HEADER + rows(0, 3))
    assert found.scan.issue.row == 4
    with pytest.raises(RowError) as caught:
        check(kernel, how, data, tmp_path, mode="strict")
    assert caught.value.line == 5
    assert caught.value.path == (
        None if how == "bytes" else str(tmp_path / "session.log")
    )


@pytest.mark.parametrize("mode", ["strict", "recoverable"])
def test_check_zstandard(kernel, how, tmp_path, mode):
    data = zstd(kernel, HEADER, rows(0, 3), b"", rows(3, 4)[:5], rows(3, 4)[5:])
    found = check(kernel, how, data, tmp_path, mode=mode)
    assert found.scan.event_count == 4
    assert found.compression == "zstd"
    assert (found.frame_count, found.torn_start, found.truncate_to) == (5, None, None)
    assert found.file_bytes == len(data)
    assert found.plain_bytes == len(HEADER + rows(0, 4))


def test_check_torn_frame(kernel, how, tmp_path):
    """Spec 10 §8.3: the checksum is cut, its rows are recovered; strict stops before it."""
    whole = zstd(kernel, HEADER, rows(0, 2))
    tail = kernel.encode_frame(rows(2, 5))
    found = check(kernel, how, whole + tail[:-1], tmp_path)
    assert (found.scan.event_count, found.recovered_count) == (5, 3)
    assert (found.torn_start, found.truncate_to) == (len(whole), len(whole))
    assert found.frame_count == 2
    assert found.plain_bytes == len(HEADER + rows(0, 2))
    assert found.scan.fed_bytes == len(HEADER + rows(0, 5))
    found = check(kernel, how, whole + tail[:-1], tmp_path, mode="strict")
    assert (found.scan.event_count, found.recovered_count) == (2, 0)
    assert (found.torn_start, found.truncate_to) == (len(whole), len(whole))
    assert found.scan.fed_bytes == found.plain_bytes


def test_check_every_cut(kernel, how, tmp_path):
    first = kernel.encode_frame(HEADER)
    second = first + kernel.encode_frame(rows(0, 2))
    whole = second + kernel.encode_frame(rows(2, 4))
    for cut in range(len(whole) + 1):
        if cut < len(first):
            with pytest.raises(HeaderError):
                check(kernel, how, whole[:cut], tmp_path)
            continue
        found = check(kernel, how, whole[:cut], tmp_path)
        committed = max(
            end for end in (len(first), len(second), len(whole)) if end <= cut
        )
        assert found.torn_start == (None if committed == cut else committed)
        assert found.truncate_to == found.torn_start
        complete = {len(first): 0, len(second): 2, len(whole): 4}[committed]
        assert found.scan.event_count - found.recovered_count == complete
        assert found.recovered_count in (0, 2)


def test_check_issue_in_complete_frames(kernel, how, tmp_path):
    """Spec 10 §8.3 step 2; §8.5 for older generations."""
    data = zstd(kernel, HEADER, rows(0, 2) + b"bad\n")
    with pytest.raises(RowError) as caught:
        check(kernel, how, data, tmp_path)
    assert caught.value.line == 4
    old = zstd(kernel, OLD_HEADER, rows(0, 2) + b"bad\n")
    found = check(kernel, how, old, tmp_path)
    assert (found.scan.event_count, found.scan.issue.row) == (2, 3)
    assert found.truncate_to is None


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda _: b"", HeaderError),
        (lambda _: b"\x28", HeaderError),
        (lambda _: b"\x28\xb5\x2f\xfd", HeaderError),
        (lambda _: HEADER[:-1], HeaderError),
        (lambda _: b"\x50\x2a\x4d\x18\x00\x00\x00\x00", FrameError),
        (lambda kernel: zstd(kernel, b""), HeaderError),
        (lambda kernel: zstd(kernel, HEADER + rows(0, 1)), FrameError),
        (lambda kernel: zstd(kernel, HEADER[:9], HEADER[9:]), HeaderError),
        (lambda kernel: zstd(kernel, HEADER, rows(0, 1)[:-1]), RowError),
        (lambda kernel: zstd(kernel, HEADER) + b"\0" * 8, FrameError),
        (lambda kernel: zstd(kernel, HEADER) + HEADER, FrameError),
    ],
    ids=["empty", "stray", "magic", "no-lf", "skippable", "empty-frame", "one-frame", "split-header", "partial-row", "padding", "text"],
)  # fmt: skip
def test_check_refusals(kernel, how, tmp_path, make, error):
    with pytest.raises(DshCodecError) as caught:
        check(kernel, how, make(kernel), tmp_path)
    assert type(caught.value) is error


def test_check_bad_checksum_has_a_place(kernel, how, tmp_path):
    first = zstd(kernel, HEADER)
    data = bytearray(first + zstd(kernel, rows(0, 2)))
    data[-1] ^= 1
    with pytest.raises(FrameError) as caught:
        check(kernel, how, bytes(data), tmp_path)
    assert (caught.value.offset, caught.value.frame) == (len(first), 1)


def test_check_counts_streams(kernel, how, tmp_path):
    record = {
        "type": "text-chunks",
        "time0": 1,
        "index": 0,
        "dt": [1],
        "texts": ["a", "b"],
    }
    event = {
        "type": "assistant/attempt",
        "seq": 0,
        "time": 1,
        "data": {"stream": [record, {}]},
    }
    found = check(kernel, how, HEADER + json.dumps(event).encode() + b"\n", tmp_path)
    assert (found.scan.stream_count, found.scan.record_count) == (1, 2)
    assert (found.scan.chunk_count, found.scan.stream_fault_count) == (2, 1)


def test_check_limits_reach_the_parts(kernel, how, tmp_path):
    big = zstd(kernel, HEADER, rows(0, 1000))
    torn = zstd(kernel, HEADER) + kernel.encode_frame(rows(0, 1000))[:-1]
    for data, options in (
        (HEADER + rows(0, 1, [[1]]), {"max_depth": 2}),
        (HEADER + rows(0, 1), {"max_row_bytes": 20}),
        (big, {"max_frame_plain_bytes": 500}),
        (torn, {"max_frame_plain_bytes": 500}),
    ):
        with pytest.raises(LimitExceededError) as caught:
            check(kernel, how, data, tmp_path, **options)
        assert {caught.value.limit: caught.value.value} == options


@pytest.mark.parametrize("options", [{"mode": "lenient"}, {"generation": 5}])
def test_check_arguments(kernel, how, tmp_path, options):
    with pytest.raises((ValueError, TypeError)):
        check(kernel, how, HEADER, tmp_path, **options)


def test_check_generation_4_refuses_older(kernel):
    with pytest.raises(DshCodecError) as caught:
        kernel.check_bytes(OLD_HEADER, generation=4)
    assert type(caught.value).__name__ == "UnsupportedError"


def test_check_file_system_errors_pass(kernel, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        kernel.check_file(tmp_path / "none")
    assert caught.value.filename is not None
    with pytest.raises(OSError):  # noqa: PT011 - which one is the system's choice
        kernel.check_file(tmp_path)


def test_check_takes_str_and_buffers(kernel, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(HEADER)
    assert kernel.check_file(str(path)) == kernel.check_bytes(memoryview(HEADER))


def large_log() -> bytes:
    """Return 6 MB of rows that rules follow: a turn ends twice, a row has an unknown type."""
    kinds = [*("turn/start", "todo/write", "turn/end") * 66, "turn/end", "x"]
    lines = [HEADER]
    for seq, kind in enumerate(kinds * 3):
        data = {"turn": seq, "items": "x" * 10_000}
        row = {"type": kind, "seq": seq, "time": seq, "data": data}
        lines.append(json.dumps(row).encode() + b"\n")
    return b"".join(lines)


def damage(data: bytes, how: str) -> bytes:
    """Change a log behind its middle, where another thread may read it."""
    middle = data.index(b"\n", len(data) * 2 // 3) + 1
    return {
        "sound": data,
        "torn": data[:-20],
        "empty row": data[:middle] + b"\n" + data[middle:],
        "gap": data[:middle] + data[data.index(b"\n", middle) + 1 :],
        "long row": data[:middle] + b" " * (3 << 20) + data[middle:],
        "no JSON": data[:middle] + b"}" + data[middle + 1 :],
    }[how]


@pytest.mark.parametrize(
    "harm", ["sound", "torn", "empty row", "gap", "long row", "no JSON"]
)
@pytest.mark.parametrize("level", ["scan", "full"])
def test_threads_find_the_same(kernel, tmp_path, harm, level):
    """Issue 3, item 3: a large file is divided, its result is not."""
    path = tmp_path / "log"
    path.write_bytes(damage(large_log(), harm))

    def found(check: Any, options: dict[str, Any]) -> Any:
        try:
            [scan] = check(**options)
        except DshCodecError as error:
            scan = error
        if isinstance(scan, DshCodecError):
            return type(scan), scan.args
        notes = [(type(error), error.args) for error in scan.findings]
        return (*scan[:8], notes, scan.finding_count)

    def alone(**options: Any) -> Any:
        return [kernel.check_file(path, **options)]

    def together(**options: Any) -> Any:
        return kernel.check_many([path], **options)

    expected = found(alone, {"level": level, "threads": 1})
    assert found(alone, {"level": level, "threads": 3}) == expected
    assert found(together, {"level": level, "threads": 3}) == expected


def framed(text: bytes, lines: int, kernel: Any) -> list[bytes]:
    """Return frames of so many lines each; the header is in one of its own."""
    header, *others = text.splitlines(keepends=True)
    parts = [b"".join(others[n : n + lines]) for n in range(0, len(others), lines)]
    return [kernel.encode_frame(part) for part in (header, *parts)]


@pytest.mark.parametrize("lines", [1, 100, 1_000_000])
@pytest.mark.parametrize("harm", ["sound", "torn", "gap", "no JSON", "checksum"])
def test_threads_decode_the_same(kernel, tmp_path, harm, lines):
    """Issue 3, item 2: frames are decoded by several threads; the result is that of one."""
    chance = random.Random(7)  # noqa: S311 - seeded data
    text = HEADER + b"".join(
        rows(seq, seq + 1, f"{chance.getrandbits(16_000):x}") for seq in range(700)
    )
    if harm in ("gap", "no JSON"):
        text = damage(text, harm)
    frames = framed(text, lines, kernel)
    if harm == "checksum":
        middle = len(frames) // 2
        frames[middle] = frames[middle][:-1] + bytes([frames[middle][-1] ^ 1])
    data = b"".join(frames)
    path = tmp_path / "log"
    path.write_bytes(data[:-3] if harm == "torn" else data)
    assert len(data) > 1 << 20

    def found(threads: int) -> Any:
        try:
            scan = kernel.check_file(path, threads=threads)
        except DshCodecError as error:
            return type(error), error.args
        return scan[:8]

    is_refused = isinstance(found(1)[0], type)
    assert is_refused == (harm not in ("sound", "torn"))
    assert found(1) == found(2) == found(5)


@pytest.mark.parametrize("threads", [0, -1])
def test_threads_are_at_least_one(kernel, tmp_path, threads):
    path = tmp_path / "log"
    path.write_bytes(HEADER)
    with pytest.raises(ValueError, match="threads"):
        kernel.check_file(path, threads=threads)


PEAK = """
import sys
from dsh_codec import _native as kernel
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line[:5] == "VmHWM")
before = peak()
scan = kernel.check_file(sys.argv[1], level=sys.argv[2])
assert scan.scan.event_count == 1, scan
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak is read from /proc"
)
@pytest.mark.parametrize("level", ["scan", "full"])
@pytest.mark.parametrize(
    "values",
    ["[" * 900 + "]" * 900, "[]", "[0]", '0,""', '{"":{}}', '{"":0}'],
    ids=["nested", "empty", "one", "mixed", "objects", "members"],
)
def test_memory_of_a_row_of_small_values(tmp_path, values, level):
    """Issue 3: 2.5 times the longest row and 16 MiB; native: the values of Python are larger."""
    many = ",".join([values] * (20_000_000 // (len(values) + 1)))
    row = f'{{"type":"todo/write","seq":0,"time":1,"data":{{"x":[{many}]}}}}\n'.encode()
    path = tmp_path / "log"
    path.write_bytes(HEADER + row)
    command = [sys.executable, "-c", PEAK, str(path), level]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)  # noqa: S603
    assert int(run.stdout) < len(row) * 2.5 + (16 << 20)


@pytest.mark.slow
def test_check_file_memory_is_bounded(kernel, tmp_path):
    """Design 5: largest row x 2.5 + 16 MiB, also for one large frame and a large torn one."""
    batch = rows(0, 300_000, "x" * 100)
    path = tmp_path / "log"
    path.write_bytes(zstd(kernel, HEADER) + kernel.encode_frame(batch)[:-1])
    for mode in ("recoverable", "strict"):
        tracemalloc.start()
        kernel.check_file(path, mode=mode)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20
