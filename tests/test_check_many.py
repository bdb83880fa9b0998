"""Checks of many files in one call. Spec: 00 §6, 10 §8."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec import _pure
from dsh_codec._backend import kernel as chosen
from dsh_codec._types import FileScan
from dsh_codec.check import check_many
from dsh_codec.errors import FrameError, RowError
from small_logs import DEMO, HEADER, HEADER_V0, PLAIN, ROWS, ZSTD, zstd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = {
    "plain": PLAIN,
    "zstd": ZSTD,
    "torn": ZSTD[:-3],
    "cut": PLAIN[:-3],
    "issue": HEADER + ROWS[0] + b"x\n" + ROWS[1],
    "row": zstd(HEADER) + zstd(b"{}\n"),
    "checksum": ZSTD[:-1] + bytes([ZSTD[-1] ^ 1]),
    "empty": b"",
    "newer": HEADER.replace(b"4", b"7", 1),
    "old": HEADER_V0 + b'{"type":"mode/set","seq":0,"time":1,"data":{}}\n',
    "fault": PLAIN.replace(b'"dt":[2]', b'"dt":[]'),
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Sound and damaged logs, one that is missing, a directory, and sound ones again."""
    folder = tmp_path_factory.mktemp("logs")
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    (folder / "session").mkdir()
    (folder / "session" / "session.v4.jsonl").write_bytes(PLAIN)
    names = ["missing", *FILES, "session", "plain", "zstd"]
    return [folder / name for name in names]


def one_by_one(kernel: Any, paths: list[Path], **options: Any) -> list[Any]:
    results: list[Any] = []
    for path in paths:
        try:
            results.append(kernel.check_file(path, **options))
        except Exception as error:  # what it raises is the result
            results.append(error)
    return results


def comparable(results: list[Any]) -> list[Any]:
    """Make errors comparable: their class and all fields."""
    return [
        (type(found), found.args, getattr(found, "filename", None))
        if isinstance(found, Exception)
        else (*found[:8], [(type(error), error.args) for error in found.findings])
        for found in results
    ]


@pytest.mark.parametrize("threads", [None, 1, 4])
@pytest.mark.parametrize(
    "options",
    [{}, {"mode": "strict"}, {"level": "full"}, {"generation": 4}, {"max_depth": 2}],
    ids=str,
)
def test_many_equal_one_by_one(kernel, logs, threads, options):
    paths = logs * 3
    found = kernel.check_many(paths, threads=threads, **options)
    assert comparable(found) == comparable(one_by_one(kernel, paths, **options))


def test_each_place_has_its_own_result(kernel, logs):
    found = dict(
        zip(
            [path.name for path in logs],
            kernel.check_many(map(str, logs), threads=4),
            strict=True,
        )
    )
    assert isinstance(found["missing"], FileNotFoundError)
    assert found["missing"].filename == str(logs[0])
    assert isinstance(found["session"], IsADirectoryError)
    assert found["plain"].scan.event_count == found["zstd"].scan.event_count == 5
    assert isinstance(found["plain"], FileScan)
    assert type(found["row"]) is RowError
    assert found["row"].line == 2
    assert found["row"].path == str(logs[0].parent / "row")
    assert type(found["checksum"]) is FrameError
    assert found["checksum"].frame == 2
    assert found["checksum"].__traceback__ is None
    assert found["fault"].scan.stream_fault_count == 1


def test_no_files(kernel):
    seen: list[int] = []
    assert kernel.check_many([], progress=seen.append) == []
    assert seen == [0]


@pytest.mark.parametrize("threads", [1, 4])
def test_progress_ends_with_all_bytes_and_never_decreases(kernel, logs, threads):
    seen: list[int] = []
    paths = logs * 20
    kernel.check_many(paths, threads=threads, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] >= sum(len(data) for data in FILES.values()) * 20


def test_progress_within_one_file(kernel, tmp_path):
    """It is told while the file is read, and what it raises ends the call."""
    path = tmp_path / "log"
    write_large(path, 64 << 20)
    seen: list[int] = []

    def progress(done_bytes: int) -> None:
        seen.append(done_bytes)
        if done_bytes and len(seen) > 1:
            raise LookupError

    with pytest.raises(LookupError):
        kernel.check_many([path] * 200, threads=2, progress=progress)
    assert seen == sorted(seen)
    assert 0 < seen[-1] < 200 * path.stat().st_size


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (([],), {"threads": 0}, ValueError),
        (([],), {"threads": -1}, ValueError),
        (([],), {"threads": 1.5}, TypeError),
        (([],), {"mode": "lenient"}, ValueError),
        (([],), {"level": "deep"}, ValueError),
        (([],), {"generation": 5}, ValueError),
        (("log",), {}, TypeError),
        ((3,), {}, TypeError),
        (([3],), {}, TypeError),
    ],
)
def test_wrong_arguments(kernel, arguments, options, error):
    with pytest.raises(error):
        kernel.check_many(*arguments, **options)


def write_large(path: Path, size: int) -> None:
    """Write a sound log of about this size."""
    with path.open("wb") as file:
        file.write(HEADER)
        text = "x" * 1000
        seq = 0
        while file.tell() < size:
            rows = [
                json.dumps({"type": "x", "seq": n, "time": 1, "data": {"text": text}})
                for n in range(seq, seq + 1000)
            ]
            seq += len(rows)
            file.write(("\n".join(rows) + "\n").encode())


CHILD = """
import importlib, sys
kernel = importlib.import_module("dsh_codec._" + sys.argv[1])
def progress(done):
    print(done, flush=True)
try:
    kernel.check_many([sys.argv[2]] * 20000, threads=int(sys.argv[3]), progress=progress)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for one child process")
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("how", ["plain", "zstd"])
def test_interrupt_ends_the_call(kernel, tmp_path, threads, how):
    """Issue 3: within 100 ms; a busy machine gets a second."""
    path = tmp_path / "log"
    write_large(path, 8 << 20)
    if how == "zstd":
        header, _, rows = path.read_bytes().partition(b"\n")
        path.write_bytes(zstd(header + b"\n") + zstd(rows))
    name = kernel.__name__.rpartition("_")[2]
    command = [sys.executable, "-c", CHILD, name, str(path), str(threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        start = time.monotonic()
        *_, last = child.stdout
        seconds = time.monotonic() - start
    assert last == "interrupted\n"
    assert child.returncode == 0
    assert seconds < 1


# --- dsh_codec.check.check_many ---


@pytest.mark.parametrize("level", ["scan", "read", "full"])
@pytest.mark.parametrize("mode", ["strict", "recoverable"])
def test_reports_equal_those_of_check(logs, tmp_path, level, mode):
    """Names, directories and identities are looked at as by `check`."""
    misnamed = tmp_path / "session.v3.jsonl"
    misnamed.write_bytes(PLAIN)
    both = tmp_path / "both"
    both.mkdir()
    (both / "session.v4.jsonl").write_bytes(PLAIN)
    (both / "session.v4.jsonl.zstd").write_bytes(ZSTD)
    paths = [*logs, misnamed, both, tmp_path / "none", *sorted(DEMO.iterdir())]
    expected = [dsh.check(path, level=level, mode=mode) for path in paths]
    found = list(check_many(paths, level=level, mode=mode))
    for one, other in zip(found, expected, strict=True):
        assert one.to_dict() == other.to_dict()
        assert type(one.error) is type(other.error)
    assert {report.status for report in found} > {"sound", "damaged", "newer"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_is_checked_too(logs, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = "import sys; open(sys.argv[2], 'wb').write(open(sys.argv[1], 'rb').read())"
    command = [sys.executable, "-c", writer, str(logs[1]), str(pipe)]
    with subprocess.Popen(command):  # noqa: S603
        reports = list(check_many([logs[1], pipe, logs[2]]))
    assert [report.status for report in reports] == ["sound"] * 3
    assert [report.event_count for report in reports] == [5] * 3


def test_batches_come_one_after_the_other(logs):
    """A caller gets the first reports before the last paths are known."""
    seen: list[int] = []

    def paths() -> Iterator[Path]:
        for number in range(1000):
            seen.append(number)
            yield logs[1]

    done: list[int] = []
    reports = check_many(paths(), progress=done.append)
    assert next(reports).is_sound
    assert len(seen) < 1000
    assert sum(report.is_sound for report in reports) == 999
    assert done == sorted(done)
    assert done[-1] == 1000 * len(PLAIN)


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"level": "deep"}, {"mode": "x"}, {"generation": 9}]
)
def test_wrong_arguments_of_reports_raise_at_once(options):
    with pytest.raises(ValueError, match=r"not|least"):
        check_many([], **options)


def test_the_kernel_in_use_checks(logs, monkeypatch):
    calls: list[int] = []
    original = chosen.check_many

    def counted(paths: list[str], **options: Any) -> Any:
        calls.append(len(paths))
        return original(paths, **options)

    monkeypatch.setattr(chosen, "check_many", counted)
    list(check_many([logs[1]] * 10))
    assert calls == [10]
    assert _pure.check_many([logs[1]]) == original([logs[1]])
