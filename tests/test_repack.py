"""Repacking closed logs. Spec: 70 §2."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec import kernel
from dsh_codec.cli import main
from dsh_codec.repack import repack
from dsh_codec.writer import Writer
from fault_oracle import make_log, read, session_events, state_of
from small_logs import DEMO

if TYPE_CHECKING:
    from pathlib import Path

ALL = session_events(12)
ZSTD_DEMOS = ["v0", "v0-packed", "v2", "v3", "v4", "v4-surrogates"]


def text_of(path: Path) -> bytes:
    """The whole text of a log."""
    reader = kernel.FrameReader()
    reader.feed(path.read_bytes())
    return b"".join(piece.data for piece in iter(reader.read, None))


@pytest.fixture
def demo(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    shutil.copytree(DEMO / request.param, tmp_path / "s")
    (path,) = (tmp_path / "s").iterdir()
    return path


@pytest.mark.parametrize("demo", ZSTD_DEMOS, indirect=True)
@pytest.mark.parametrize("policy", ["turn", "single"])
@pytest.mark.parametrize("level", [-5, 3, 19])
def test_text_stays_and_frames_are_few(demo: Path, policy: Any, level: int) -> None:
    text, size = text_of(demo), demo.stat().st_size
    turns = text.count(b'"type":"turn/end"')
    assert turns == 2
    dry = repack(demo, policy=policy, level=level, dry_run=True)
    assert demo.stat().st_size == size
    assert os.listdir(demo.parent) == [demo.name]  # noqa: PTH208
    done = repack(demo.parent, policy=policy, level=level, workers=2)
    assert done == dry._replace(
        path=done.path, row_count=done.row_count, is_written=True
    )
    assert done.frames_after == (1 + turns if policy == "turn" else 2)
    assert (done.bytes_before, done.bytes_after) == (size, demo.stat().st_size)
    assert done.row_count == text.count(b"\n") - 1
    assert text_of(demo) == text
    report = dsh.check(demo, mode="strict")
    assert report.is_sound
    assert set(os.listdir(demo.parent)) == {demo.name, "session.lock"}  # noqa: PTH208


def test_open_turn_gets_a_frame_and_the_log_goes_on(tmp_path: Path) -> None:
    path = make_log(tmp_path, [[event] for event in ALL[:8]])
    assert repack(path).frames_after == 3
    with Writer.open(path) as writer:
        writer.append(ALL[8:])
    assert read(path) == ALL
    assert repack(path, policy="single").frames_after == 2
    assert path.stat().st_mode & 0o777 == 0o600


def test_unusual_spelling_is_kept(tmp_path: Path) -> None:
    """Header and rows of other writers, cut over frames, are the same text afterwards."""
    path = make_log(tmp_path, [])
    header = (
        b'{ "version":4.0,"type":"session","id":"s-1","createdAt":1e3,"cwd":"/w",'
        b'"isSeeded":false,"delegationDepth":0}\n'
    )
    rows = (
        b'{"seq":0,"time":1,"data":{"turn":1,"turn":1},"type":"turn/start"}\r\n'
        b'{"seq":1,"time":2,"data":"a\xff\xfe\\u00e9","type":"todo/write"}\n'
    )
    parts = [header, rows[:30], b"", rows[30:]]
    path.write_bytes(b"".join(map(kernel.encode_frame, parts)))
    repack(path, policy="single")
    assert text_of(path) == header + rows


def test_locked_log_is_not_touched(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:5]])
    with Writer.open(path):
        before = state_of(path)
        with pytest.raises(dsh.SessionLockedError):
            repack(path)
        assert state_of(path) == before
        repack(path, dry_run=True)


def test_what_is_not_sound_is_refused_without_a_trace(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:5], ALL[5:7]])
    (path.parent / "session.lock").unlink()
    whole = path.read_bytes()
    bad = kernel.encode_event({**ALL[7], "type": "turn/end"}) + b"\n"
    for data in (
        whole[:-1],
        whole + b"abcd",
        whole + kernel.encode_frame(bad),
    ):
        path.write_bytes(data)
        before = state_of(path)
        with pytest.raises(dsh.CorruptLogError):
            repack(path)
        assert state_of(path) == before
        assert os.listdir(path.parent) == [path.name]  # noqa: PTH208


def test_plain_log_has_no_frames(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:5]], "none")
    with pytest.raises(ValueError, match="plain text"):
        repack(path)
    for arguments in ({"policy": "step"}, {"workers": 0}):
        with pytest.raises(ValueError, match=r"policy|workers"):
            repack(path, **arguments)


def test_link_to_a_log_stays_a_link(tmp_path: Path) -> None:
    path = make_log(tmp_path / "root", [ALL[:5], ALL[5:7]])
    real = tmp_path / "elsewhere.zstd"
    path.rename(real)
    path.symlink_to(real)
    real.chmod(0o640)
    repack(path, policy="single")
    assert path.is_symlink()
    assert read(real) == ALL[:7]
    assert real.stat().st_mode & 0o777 == 0o640


def test_command_line_repacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_log(tmp_path, [[event] for event in ALL])
    plain = make_log(tmp_path / "plain", [ALL], "none")
    assert main(["repack", "--dry-run", "--policy", "single", str(path)]) == 0
    assert "12 rows, 13 to 2 frames" in capsys.readouterr().out
    assert main(["repack", "--json", "--workers", "2", str(path), str(plain)]) == 2
    shown = capsys.readouterr()
    assert '"frames_after":4' in shown.out
    assert "plain text" in shown.err
    assert read(path) == ALL
