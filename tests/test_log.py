"""Opening and reading logs. Spec: 10, design §3."""

from __future__ import annotations

import io
import mmap
import os
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import dsh_codec as dsh
from dsh_codec.check import check_many
from small_logs import DEMO, HEADER, HEADER_V0, PLAIN, ROWS, ZSTD, seqs_and_error, zstd

if TYPE_CHECKING:
    from pathlib import Path

DEMO_LOGS = sorted(path for path in DEMO.rglob("session*") if path.is_file())


class Pipe(io.RawIOBase):
    """A file object that can only be read, a few bytes at a time."""

    def __init__(self, data: bytes) -> None:
        self.data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        part = self.data.read(min(7, len(buffer)))
        buffer[: len(part)] = part
        return len(part)


# --- what may be opened ---


@pytest.mark.parametrize("data", [PLAIN, ZSTD], ids=["plain", "zstd"])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, io.BytesIO, Pipe])
def test_open_takes_any_bytes(data: bytes, wrap: type) -> None:
    """Design §3: bytes or a binary file object."""
    with dsh.open(wrap(data)) as log:
        assert [event.seq for event in log] == [0, 1, 2, 3, 4]
        assert log.id == "s-1"
        assert log.generation == 4
        assert log.path is None
        assert log.file_bytes == len(data)


class Endless(io.RawIOBase):
    """A pipe whose writer never stops."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        return len(buffer)


def test_pipe_has_a_limit() -> None:
    with pytest.raises(dsh.LimitExceededError) as caught:
        dsh.open(Endless(), max_spooled_bytes=1 << 20)
    assert (caught.value.limit, caught.value.value) == ("max_spooled_bytes", 1 << 20)
    report = dsh.check(Endless(), max_spooled_bytes=1 << 20)
    assert (report.status, report.exit_code) == ("unreadable", 2)
    assert "raise max_spooled_bytes" in report.text()
    count = len(PLAIN)
    assert dsh.check(Pipe(PLAIN), max_spooled_bytes=count).is_sound
    with pytest.raises(dsh.LimitExceededError):
        dsh.open(Pipe(PLAIN), max_spooled_bytes=count - 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_named_pipe_is_read_within_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for limit, status in ((len(PLAIN), "sound"), (len(PLAIN) - 1, "unreadable")):
        for ask in (
            dsh.check,
            lambda path, **more: next(check_many([path], **more)),
        ):
            writer = threading.Thread(
                target=path.write_bytes, args=(PLAIN,), daemon=True
            )
            writer.start()
            report = ask(path, max_spooled_bytes=limit)
            writer.join(10)
            assert (report.status, report.path) == (status, str(path))


@pytest.mark.skipif(os.name != "posix", reason="no devices here")
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_device_is_no_log(device: str) -> None:
    with pytest.raises(dsh.LayoutError, match="from a device"):
        dsh.open(device)
    assert dsh.check(device).exit_code == 2
    with pytest.raises(dsh.LayoutError, match="from a device"):
        list(dsh.find(device))


@pytest.mark.parametrize("data", [PLAIN, ZSTD], ids=["plain", "zstd"])
def test_open_takes_a_path_and_a_directory(tmp_path: Path, data: bytes) -> None:
    """Design §3."""
    suffix = ".zstd" if data is ZSTD else ""
    path = tmp_path / f"session.v4.jsonl{suffix}"
    path.write_bytes(data)
    for source in (path, str(path), tmp_path):
        with dsh.open(source) as log:
            assert len(list(log)) == 5
            assert log.path == str(path)
            assert log.compression == ("zstd" if suffix else "none")


def test_open_takes_a_memory_map(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(ZSTD)
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        with dsh.open(mapped) as log:
            assert len(log) == 5
        del log


def test_open_reads_a_file_object_from_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"other" + PLAIN)
    with path.open("rb") as file:
        file.seek(5)
        with dsh.open(file) as log:
            assert len(list(log)) == 5
            assert len(list(log)) == 5
        assert not file.closed


@pytest.mark.parametrize("source", [3, None, ["x"], object()])
def test_open_refuses_what_is_no_log(source: object) -> None:
    with pytest.raises(TypeError, match="a log is opened from"):
        dsh.open(source)  # type: ignore[arg-type]


def test_open_refuses_text_files() -> None:
    with pytest.raises(TypeError, match="binary"):
        dsh.open(io.StringIO("{}"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments", [{"mode": "lenient"}, {"compression": "gzip"}, {"generation": 5}]
)
def test_open_refuses_wrong_arguments(arguments: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="not"):
        dsh.open(PLAIN, **arguments)  # type: ignore[arg-type]


# --- files and directories ---


def test_open_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        dsh.open(tmp_path / "session.v4.jsonl")
    assert caught.value.filename == str(tmp_path / "session.v4.jsonl")


@pytest.mark.parametrize("name", ["", "session.v4.jsonl.zstd.ab.tmp", "session.lock"])
def test_open_directory_without_log_is_not_found(tmp_path: Path, name: str) -> None:
    """Spec 10 §10: no canonical entry, no session."""
    if name:
        (tmp_path / name).write_bytes(ZSTD)
    with pytest.raises(FileNotFoundError) as caught:
        dsh.open(tmp_path)
    assert caught.value.filename == str(tmp_path)


def test_open_empty_path_is_not_found() -> None:
    with pytest.raises(FileNotFoundError):
        dsh.open("")


def test_open_directory_takes_the_highest_generation(tmp_path: Path) -> None:
    """Spec 10 §10: highest wins, whatever it contains, and is no fallback."""
    (tmp_path / "session.jsonl").write_bytes(HEADER_V0)
    (tmp_path / "session.v4.jsonl").write_bytes(PLAIN)
    with dsh.open(tmp_path) as log:
        assert log.generation == 4
    with dsh.open(tmp_path, generation=0) as log:
        assert log.generation == 0
    newer = HEADER.replace(b'"version":4', b'"version":9')
    (tmp_path / "session.v9.jsonl").write_bytes(newer)
    with pytest.raises(dsh.NewerFormatError) as caught:
        dsh.open(tmp_path)
    assert (caught.value.found, caught.value.supported) == (9, 4)
    assert caught.value.path == str(tmp_path / "session.v9.jsonl")


def test_open_directory_with_both_encodings_is_a_layout_error(tmp_path: Path) -> None:
    """Spec 80 §1 S2; the issue, item 5."""
    (tmp_path / "session.v4.jsonl").write_bytes(PLAIN)
    (tmp_path / "session.v4.jsonl.zstd").write_bytes(ZSTD)
    with pytest.raises(dsh.LayoutError) as caught:
        dsh.open(tmp_path)
    assert caught.value.path == str(tmp_path)
    for compression in ("none", "zstd"):
        with dsh.open(tmp_path, compression=compression) as log:
            assert log.compression == compression


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("session.v3.jsonl", PLAIN),
        ("session.v4.jsonl.zstd", PLAIN),
        ("session.v4.jsonl", ZSTD),
        ("session.jsonl", PLAIN),
        ("session.v4.jsonl", HEADER_V0),
        ("session.v5.jsonl", PLAIN),
        ("session.v9.jsonl", HEADER.replace(b'"version":4', b'"version":7')),
    ],
)
def test_canonical_name_has_to_agree(tmp_path: Path, name: str, data: bytes) -> None:
    """Spec 10 §4.3, §10."""
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(dsh.IdentityError) as caught:
        dsh.open(path)
    assert caught.value.path == str(path)


def test_any_other_name_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "backup.jsonl.zst"
    path.write_bytes(ZSTD)
    with dsh.open(path) as log:
        assert log.compression == "zstd"


def test_compression_argument_has_to_agree() -> None:
    with pytest.raises(dsh.IdentityError):
        dsh.open(PLAIN, compression="zstd")


@pytest.mark.parametrize("name", ["session.v4.jsonl", "log"])
def test_newer_format_is_never_corrupt(tmp_path: Path, name: str) -> None:
    """Spec 00 §4.2: also under an older name, and whatever follows."""
    path = tmp_path / name
    path.write_bytes(HEADER.replace(b'"version":4', b'"version":5,"new":1') + b"\0")
    with pytest.raises(dsh.NewerFormatError) as caught:
        dsh.open(path)
    assert (caught.value.found, caught.value.supported) == (5, 4)


def test_fractional_version_is_newer_under_a_current_name(tmp_path: Path) -> None:
    """Spec 00 §4.2 and 10 §4.1: the reading order of a native scan."""
    path = tmp_path / "session.v4.jsonl"
    path.write_bytes(HEADER.replace(b'"version":4', b'"version":4.5'))
    with pytest.raises(dsh.NewerFormatError):
        dsh.open(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\0" * 100,
        b"{}\n",
        HEADER[:-1],
        b"\xef\xbb\xbf" + HEADER,
        ZSTD[:1],
        ZSTD[:50],
        zstd(HEADER + ROWS[0]),
        zstd(HEADER[:-1]),
        zstd(b"", HEADER),
    ],
)
def test_log_without_sound_header_row_is_refused(data: bytes) -> None:
    """Spec 10 §3, §4.1, §7.2."""
    with pytest.raises(dsh.HeaderError):
        dsh.open(data)


# --- events ---


def test_events_of_a_plain_log() -> None:
    """Spec 10 §5.1."""
    log = dsh.open(PLAIN)
    events = list(log)
    assert [event.type for event in events] == [
        "turn/start",
        "step/start",
        "assistant/attempt",
        "step/end",
        "turn/end",
    ]
    assert [event.time for event in events] == [1001, 1002, 1010, 1011, 1012]
    assert events[4].data == {"turn": 1, "reason": {"kind": "completed"}}
    assert [event.raw + b"\n" for event in events] == list(ROWS)
    assert events[0].offset == len(HEADER)
    assert [b.offset - a.offset for a, b in pairwise(events)] == [
        len(row) for row in ROWS[:4]
    ]
    assert {event.frame for event in events} == {None}
    assert log.result is not None
    assert log.result.scan.event_count == 5
    assert log.result.truncate_to is None


def test_events_of_a_zstd_log_know_their_frame() -> None:
    events = list(dsh.open(ZSTD))
    assert [event.frame for event in events] == [1, 1, 2, 2, 2]
    assert [event.offset for event in events] == [
        event.offset for event in dsh.open(PLAIN)
    ]


def test_row_split_over_frames_belongs_to_the_frame_that_ends_it() -> None:
    """Spec 10 §7.2."""
    rows = b"".join(ROWS)
    log = dsh.open(zstd(HEADER, rows[:70], b"", rows[70:]))
    assert [event.frame for event in log] == [1, 3, 3, 3, 3]


def test_optional_members_of_an_event() -> None:
    """Spec 10 §5.1, §6."""
    user = (
        b'{"type":"user/message","seq":5,"time":9,"data":{"id":"m","role":"user","content":'
        b'[],"source":{"kind":"user"}},"surfaceOp":"append","sourceEventSeqs":[[0,2],4]}\n'
        b'{"ignorable":true,"type":"plugin:x","seq":6,"time":9,"data":null}\n'
    )
    *_, before, message, ignorable = dsh.open(PLAIN + user)
    assert (before.surface_op, before.source_event_seqs, before.ignorable) == (
        None,
        None,
        False,
    )
    assert message.surface_op == "append"
    assert message.source_event_seqs == [0, 1, 2, 4]
    assert message.envelope["sourceEventSeqs"] == [0, 1, 2, 4]
    assert list(message.envelope) == [
        "type",
        "seq",
        "time",
        "data",
        "surfaceOp",
        "sourceEventSeqs",
    ]
    assert ignorable.ignorable
    assert ignorable.data is None


PACKED = (
    b'{"type":"text-chunks","seq0":0,"time0":100,"data":{"turn":1,"step":1,"index":0,'
    b'"dt":[3,4],"texts":["a","b","c"]}}\n'
    b'{"type":"tool-call-chunks","seq0":3,"time0":110,"data":{"turn":1,"step":1,"index":1,'
    b'"dt":[],"id":"c1","name":"","args":["{}"]}}\n'
    b'{"type":"step/end","seq":4,"time":111,"data":{"turn":1,"step":1}}\n'
)


def test_packed_rows_are_one_event_a_member() -> None:
    """Spec 10 §5.3, the example."""
    log = dsh.open(HEADER_V0 + PACKED)
    events = list(log)
    assert len(log) == 5
    assert [event.seq for event in events] == [0, 1, 2, 3, 4]
    assert [event.type for event in events] == ["assistant/chunk"] * 4 + ["step/end"]
    assert [event.time for event in events] == [100, 103, 107, 110, 111]
    assert [event.data["chunk"].get("text") for event in events[:3]] == ["a", "b", "c"]
    assert events[3].envelope == {
        "type": "assistant/chunk",
        "seq": 3,
        "time": 110,
        "data": {
            "turn": 1,
            "step": 1,
            "chunk": {
                "type": "tool-call-delta",
                "index": 1,
                "id": "c1",
                "name": "",
                "argumentsDelta": "{}",
            },
        },
    }
    assert {event.offset for event in events[:3]} == {len(HEADER_V0)}
    assert [event.seq for event in log[1:4]] == [1, 2, 3]
    assert log[2].data["chunk"]["text"] == "c"


# --- sequences ---


@pytest.mark.parametrize("path", DEMO_LOGS, ids=lambda path: path.parent.name)
def test_len_slices_and_indexes_agree_with_the_events(path: Path) -> None:
    with dsh.open(path) as log:
        seqs = [event.seq for event in log]
        assert seqs == list(range(len(log)))
        for part in (
            slice(3),
            slice(2, 9),
            slice(2, 9, 3),
            slice(-3, None),
            slice(None, -2),
            slice(9, 2, -2),
            slice(None, None, -1),
            slice(5, 5),
            slice(7, 3),
            slice(len(seqs) - 1, 10**9),
            slice(10**9, None),
        ):
            assert [event.seq for event in log[part]] == seqs[part], part
        assert log[0].seq == 0
        assert log[-1].seq == seqs[-1]
        for wrong in (len(seqs), -len(seqs) - 1):
            with pytest.raises(IndexError):
                log[wrong]


@pytest.mark.parametrize(
    ("index", "error"), [(slice(0, 3, 0), ValueError), (slice("a", 3), TypeError)]
)
def test_wrong_slices_are_refused(index: slice, error: type[Exception]) -> None:
    with pytest.raises(error):
        dsh.open(PLAIN)[index]


def test_empty_log_is_true_and_has_no_events() -> None:
    log = dsh.open(HEADER)
    assert list(log) == []
    assert len(log) == 0
    assert log


def test_two_iterations_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(ZSTD)
    with dsh.open(path) as log:
        pairs = [(a.seq, b.seq) for a, b in zip(log, log, strict=True)]
    assert pairs == [(seq, seq) for seq in range(5)]


@pytest.mark.parametrize("path", DEMO_LOGS, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("mode", ["strict", "recoverable"])
def test_scan_agrees_with_the_kernels_own_pass(path: Path, mode: str) -> None:
    data = path.read_bytes()
    scan = dsh.open(data, mode=mode).scan(check_streams=True)  # type: ignore[arg-type]
    assert scan == dsh.kernel.check_bytes(data, mode=mode)  # type: ignore[arg-type]


# --- damage and torn tails ---


def test_torn_frame_is_recovered_or_stopped_at() -> None:
    """Spec 10 §8.3: the checksum of the last frame is incomplete, its rows are there."""
    torn = ZSTD[:-2]
    start = len(ZSTD) - len(zstd(b"".join(ROWS[2:])))
    log = dsh.open(torn)
    assert [event.frame for event in log] == [1, 1, 2, 2, 2]
    assert log.result is not None
    assert log.result.torn_start == start
    assert log.result.truncate_to == start
    assert log.result.recovered_count == 3
    assert log.result.frame_count == 2
    strict = dsh.open(torn, mode="strict")
    assert len(list(strict)) == 2
    assert strict.result is not None
    assert strict.result.torn_start == start
    assert strict.result.recovered_count == 0


@pytest.mark.parametrize("mode", ["strict", "recoverable"])
def test_plain_fragment_is_ignored_in_both_modes(mode: str) -> None:
    """Spec 10 §8.1, §8.2."""
    log = dsh.open(PLAIN[:-3], mode=mode)  # type: ignore[arg-type]
    assert len(list(log)) == 4
    assert log.result is not None
    assert log.result.truncate_to == len(PLAIN) - len(ROWS[4])


def test_damage_before_a_turn_end_is_raised_after_the_events_before_it() -> None:
    """Spec 10 §8.1: a completed turn after the damage."""
    data = HEADER + ROWS[0] + b"x" + b"".join(ROWS[1:])
    seen, error = seqs_and_error(dsh.open(data))
    assert seen == [0]
    assert isinstance(error, dsh.RowError)
    assert error.offset == len(HEADER + ROWS[0])
    assert error.line == 3


def test_issue_in_the_tail_is_reported_not_raised() -> None:
    """Spec 10 §8.1 and §8.2: what is cut off is named."""
    data = HEADER + ROWS[0] + b"x\n" + ROWS[1]
    log = dsh.open(data)
    assert len(list(log)) == 1
    assert log.result is not None
    issue = log.result.scan.issue
    assert issue is not None
    assert (issue.row, issue.offset) == (2, len(HEADER + ROWS[0]))
    assert log.result.truncate_to == len(HEADER + ROWS[0])
    with pytest.raises(dsh.RowError) as caught:
        list(dsh.open(data, mode="strict"))
    assert caught.value.line == 3


def test_seq_gap_names_both_numbers() -> None:
    """Spec 10 §5.1."""
    data = HEADER + ROWS[0] + ROWS[2]
    with pytest.raises(dsh.SeqGapError) as caught:
        list(dsh.open(data, mode="strict"))
    assert (caught.value.expected, caught.value.got) == (1, 2)


def test_foreign_bytes_between_frames_are_raised_after_the_frames_before(
    tmp_path: Path,
) -> None:
    """Spec 10 §7.3."""
    good = zstd(HEADER, ROWS[0])
    path = tmp_path / "log"
    path.write_bytes(good + b"garbage" + zstd(ROWS[1]))
    with dsh.open(path) as log:
        seen, error = seqs_and_error(log)
    assert seen == [0]
    assert isinstance(error, dsh.FrameError)
    assert (error.offset, error.frame) == (len(good), 2)
    assert error.path == str(path)


def test_failed_checksum_names_its_frame() -> None:
    good = zstd(HEADER, ROWS[0])
    bad = bytearray(zstd(ROWS[1]))
    bad[-1] ^= 1
    with pytest.raises(dsh.FrameError) as caught:
        list(dsh.open(good + bytes(bad) + zstd(ROWS[2])))
    assert (caught.value.offset, caught.value.frame) == (len(good), 2)


def test_issue_in_a_complete_frame_is_never_recoverable() -> None:
    """Spec 10 §8.3 step 2."""
    with pytest.raises(dsh.RowError):
        list(dsh.open(zstd(HEADER, ROWS[0] + ROWS[2])))


# --- files that change ---


@pytest.mark.parametrize("data", [PLAIN, ZSTD], ids=["plain", "zstd"])
def test_growth_after_opening_is_not_seen(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(data)
    with dsh.open(path) as log:
        with path.open("ab") as file:
            file.write(b"{half a row")
        assert len(list(log)) == 5
        assert log.result is not None
        assert log.result.truncate_to is None
        assert log.file_bytes == len(data)


@pytest.mark.parametrize("data", [PLAIN, ZSTD], ids=["plain", "zstd"])
def test_file_that_becomes_shorter_is_an_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(data)
    with dsh.open(path) as log:
        os.truncate(path, len(data) - 9)
        with pytest.raises(dsh.CorruptLogError) as caught:
            list(log)
    assert caught.value.offset == len(data) - 9
    assert caught.value.path == str(path)


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be removed on Windows")
def test_file_that_vanishes_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(ZSTD)
    with dsh.open(path) as log:
        path.unlink()
        assert len(list(log)) == 5


def test_closed_log_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(PLAIN)
    log = dsh.open(path)
    log.close()
    with pytest.raises(ValueError, match="closed"):
        list(log)


# --- limits (design §5) ---


@pytest.mark.parametrize(
    ("data", "limit", "value"),
    [
        (PLAIN, "max_row_bytes", len(HEADER)),
        (PLAIN, "max_row_bytes", 20),
        (ZSTD, "max_row_bytes", len(HEADER)),
        (ZSTD, "max_row_bytes", 20),
        (ZSTD, "max_frame_plain_bytes", len(HEADER)),
        (PLAIN, "max_depth", 4),
        (HEADER_V0 + PACKED, "max_packed_events", 2),
    ],
)
def test_limit_is_named_when_it_is_exceeded(
    data: bytes, limit: str, value: int
) -> None:
    with pytest.raises(dsh.LimitExceededError) as caught:
        list(dsh.open(data, **{limit: value}))  # type: ignore[arg-type]
    assert (caught.value.limit, caught.value.value) == (limit, value)
