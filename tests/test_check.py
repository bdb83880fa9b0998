"""Reports of checks. Spec: 00 §6, 10 §8."""

from __future__ import annotations

import io
import json
import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from small_logs import DEMO, HEADER, HEADER_V0, PLAIN, ROWS, ZSTD, zstd

if TYPE_CHECKING:
    from pathlib import Path

BAD_STREAM = PLAIN.replace(b'"dt":[2]', b'"dt":[]')


def test_sound_log() -> None:
    report = dsh.check(ZSTD)
    assert report.status == "sound"
    assert report.is_sound
    assert report.exit_code == 0
    assert (report.generation, report.compression) == (4, "zstd")
    assert report.event_count == 5
    assert report.findings == ()
    assert report.error is None
    assert report.scan is not None
    assert report.scan.frame_count == 3
    assert report.scan.scan.record_count == 2
    assert report.scan.scan.chunk_count == 3
    assert report.path is None


@pytest.mark.parametrize("data", [PLAIN, ZSTD], ids=["plain", "zstd"])
def test_all_doors_give_the_same_numbers(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(data)
    expected = dsh.check(data).scan
    assert dsh.check(path).scan == expected
    assert dsh.check(io.BytesIO(data)).scan == expected
    assert dsh.check(bytearray(data)).scan == expected


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (PLAIN[:-3], len(PLAIN) - len(ROWS[4])),
        (ZSTD[:-3], len(ZSTD) - len(zstd(b"".join(ROWS[2:])))),
        (ZSTD + b"abc", len(ZSTD)),
    ],
)
def test_torn_tail_is_named_or_refused(data: bytes, offset: int) -> None:
    """The issue, item 6: sound in recoverable mode with the offset named, refused in strict."""
    report = dsh.check(data)
    assert report.status == "sound"
    assert report.truncate_to == offset
    (note,) = report.findings
    assert (note.severity, note.kind, note.offset) == ("note", "TornTail", offset)
    assert f"{offset:,}" in report.text()
    strict = dsh.check(data, mode="strict")
    assert strict.status == "torn"
    assert strict.exit_code == 1
    assert strict.findings[0].severity == "refusal"
    assert strict.findings[0].offset == offset


def test_issue_in_the_tail_is_a_finding() -> None:
    """Spec 10 §8.1: what an ordinary read cuts off is never skipped silently."""
    data = HEADER + ROWS[0] + b"x\n" + ROWS[1]
    report = dsh.check(data)
    assert report.status == "sound"
    assert [finding.kind for finding in report.findings] == ["RowIssue", "TornTail"]
    assert report.findings[0].line == 3
    strict = dsh.check(data, mode="strict")
    assert strict.status == "damaged"
    assert strict.findings[0].line == 3


@pytest.mark.parametrize(
    ("data", "status", "kind"),
    [
        (b"", "damaged", "HeaderError"),
        (HEADER + ROWS[0] + b"\n" + ROWS[4], "damaged", "JsonSyntaxError"),
        (ZSTD[:-1] + b"\0garbage", "damaged", "FrameError"),
        (HEADER.replace(b"4", b"7", 1), "newer", "NewerFormatError"),
    ],
)
def test_refused_log_is_a_report(data: bytes, status: str, kind: str) -> None:
    report = dsh.check(data)
    assert report.status == status
    assert report.exit_code == {"damaged": 1, "newer": 2}[status]
    assert report.scan is None
    assert type(report.error).__name__ == report.findings[0].kind
    assert issubclass(getattr(dsh, report.findings[0].kind), getattr(dsh, kind)) or (
        report.findings[0].kind == "RowError"
    )


@pytest.mark.parametrize("name", ["missing", "folder"])
def test_what_cannot_be_opened_is_unreadable(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    report = dsh.check(tmp_path / name)
    assert report.status == "unreadable"
    assert report.exit_code == 2
    assert report.path == str(tmp_path / name)
    assert report.findings[0].kind == "FileNotFoundError"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_file_without_permission_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(PLAIN)
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # The superuser may read every file, nobody may not.
    try:
        assert dsh.check(path).findings[0].kind == "PermissionError"
    finally:
        os.seteuid(user)


def test_misnamed_and_ambiguous_logs_are_unreadable(tmp_path: Path) -> None:
    misnamed = tmp_path / "session.v3.jsonl"
    misnamed.write_bytes(PLAIN)
    assert dsh.check(misnamed).findings[0].kind == "IdentityError"
    (tmp_path / "session.v3.jsonl.zstd").write_bytes(ZSTD)
    report = dsh.check(tmp_path)
    assert (report.status, report.findings[0].kind) == ("unreadable", "LayoutError")


def test_limit_is_not_damage() -> None:
    report = dsh.check(PLAIN, max_row_bytes=130)
    assert (report.status, report.findings[0].kind) == (
        "unreadable",
        "LimitExceededError",
    )


@pytest.mark.parametrize(
    "arguments", [{"mode": "lenient"}, {"level": "deep"}, {"compression": "gzip"}]
)
def test_wrong_arguments_raise(arguments: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="not"):
        dsh.check(PLAIN, **arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        dsh.check(3)  # type: ignore[arg-type]


def test_stream_faults_are_counted_and_refuse_at_full_only() -> None:
    """Spec 00 §6."""
    report = dsh.check(BAD_STREAM)
    assert report.status == "sound"
    (fault,) = report.stream_faults
    assert (fault.seq, fault.record) == (2, 0)
    assert "1 stream faults" in report.text()
    assert "seq 2, record 0" in report.text(verbose=True)


def test_packed_rows_count_as_records() -> None:
    data = HEADER_V0 + (
        b'{"type":"text-chunks","seq0":0,"time0":1,"data":{"turn":1,"step":1,"index":0,'
        b'"dt":[1],"texts":["a","b"]}}\n'
    )
    scan = dsh.check(data).scan
    assert scan is not None
    assert (scan.scan.record_count, scan.scan.chunk_count) == (1, 2)
    assert scan.scan.event_count == 2


@pytest.mark.parametrize("level", ["read", "restore", "full"])
def test_empty_id_is_an_id(level: Any) -> None:
    """A scan takes it, and no later layer asks for more. Spec: 10 §4.1, 30 §9."""
    log = PLAIN.replace(b'"id":"s-1"', b'"id":""')
    assert dsh.check(log, level=level).status == "sound"


@pytest.mark.parametrize("level", ["read", "restore", "full"])
def test_levels_above_scan(level: Any) -> None:
    """Spec 00 §6; an attempt alone is sound at every level."""
    with (DEMO / "v4" / "session.v4.jsonl.zstd").open("rb") as file:
        data = file.read()
    assert dsh.check(data, level=level).status == "sound"
    assert dsh.check(HEADER_V0, level=level).status == "sound"
    retired = b'{"type":"mode/set","seq":0,"time":1,"data":{}}\n'
    assert dsh.check(HEADER_V0 + retired, level="scan").status == "sound"
    old = dsh.check(HEADER_V0 + retired, level=level)
    assert (old.status, old.exit_code) == ("unsupported", 2)
    assert isinstance(old.error, dsh.MigrationRefusedError)
    two_turns = PLAIN + ROWS[0].replace(b'"seq":0', b'"seq":5')
    assert dsh.check(two_turns, level=level).status == "damaged"


def test_full_refuses_a_torn_tail() -> None:
    """Spec 00 §6: every byte is consumed."""
    data = (DEMO / "v4-plain" / "session.v4.jsonl").read_bytes() + b"x"
    assert dsh.check(data, level="restore").status == "sound"
    assert dsh.check(data, level="full").status == "torn"


@pytest.mark.parametrize("path", sorted(DEMO.iterdir()), ids=lambda path: path.name)
def test_demo_logs_are_sound(path: Path) -> None:
    report = dsh.check(path)
    assert report.status == "sound"
    assert (report.truncate_to is not None) == (path.name == "v4-torn")
    assert json.loads(json.dumps(report.to_dict()))["event_count"] == report.event_count
    assert report.text().count("\n") == 0
    assert report.text(verbose=True).startswith(report.text())


def test_reports_are_compared_without_their_errors() -> None:
    """Two checks raise two errors that say the same; the reports are equal all the same."""
    one, other = (dsh.check(b"{\n") for _ in range(2))
    assert one.error is not other.error
    assert one == other
    assert (one != other) is False
    assert hash(one) == hash(other)
    assert one != dsh.check(PLAIN)
    assert one != tuple(one)
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - made here
