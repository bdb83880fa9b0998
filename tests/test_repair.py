"""Repair and salvage. Spec: 10 §8."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import dsh_codec as dsh
from dsh_codec import kernel
from dsh_codec.cli import main
from dsh_codec.repair import plan_repair, repair, salvage
from dsh_codec.writer import Writer
from fault_oracle import HEADER, STORED, make_log, read, session_events, state_of
from small_logs import DEMO, shared_folder

ALL = session_events(12)


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    return tmp_path / "state" / "backups"


def torn_log(root: Path, stored: Any) -> Path:
    path = make_log(root, [ALL[:2], ALL[2:6]], stored)
    path.write_bytes(path.read_bytes()[:-2])
    return path


@pytest.mark.parametrize("stored", STORED)
def test_torn_log_is_cut_and_kept(tmp_path: Path, backups: Path, stored: Any) -> None:
    path = torn_log(tmp_path / "root", stored)
    torn, events = path.read_bytes(), read(path)
    before = state_of(path)
    (path.parent / "session.lock").unlink()
    plan = plan_repair(path.parent)
    assert plan == repair(path.parent, dry_run=True)
    assert state_of(path) == before
    assert os.listdir(path.parent) == [path.name]  # noqa: PTH208
    assert (plan.verdict, plan.is_done, plan.event_count) == (
        "torn",
        False,
        len(events),
    )
    assert plan.recovered_count == (4 if stored == "zstd" else 0)
    assert plan.cut_at == dsh.check(path).truncate_to
    done = repair(path.parent, backup_dir=backups)
    assert done == plan._replace(backup=done.backup, is_done=True)
    assert done.cut_bytes == len(torn) - (plan.cut_at or 0)
    (copy,) = backups.iterdir()
    assert copy.read_bytes() == torn
    assert str(copy) == done.backup
    assert copy.stat().st_mode & 0o777 == 0o600
    assert read(path) == events
    assert dsh.check(path, level="full", mode="strict").is_sound
    after = state_of(path)
    assert repair(path, backup_dir=backups).verdict == "sound"
    assert state_of(path) == after


def test_backup_inside_the_root_is_refused(tmp_path: Path) -> None:
    path = torn_log(tmp_path / "root", "zstd")
    before = state_of(path)
    for place in (path.parent, tmp_path / "root", tmp_path / "root" / "x" / "y"):
        with pytest.raises(ValueError, match="outside the sessions root"):
            repair(path, backup_dir=place)
        assert state_of(path) == before
    (tmp_path / "link").symlink_to(tmp_path / "root")
    with pytest.raises(ValueError, match="outside the sessions root"):
        repair(path, backup_dir=tmp_path / "link" / "x")


def test_backup_goes_to_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = torn_log(tmp_path / "root", "zstd")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    done = repair(path)
    assert (
        Path(done.backup or "").parent == tmp_path / "state" / "dsh-codec" / "backups"
    )


def test_repair_of_a_locked_session_is_refused(tmp_path: Path, backups: Path) -> None:
    path = torn_log(tmp_path / "root", "zstd")
    with Writer.open(path):
        before = state_of(path)
        with pytest.raises(dsh.SessionLockedError):
            repair(path, backup_dir=backups)
        assert state_of(path) == before
        path.write_bytes(path.read_bytes() + b"abcd" * 20)
    assert not backups.exists()


@pytest.mark.parametrize(
    "tail", [b"\0" * 64, b"garbage" * 9, b"\x50\x2a\x4d\x18\4\0\0\0abcd"]
)
def test_end_that_is_no_frame_is_cut(
    tmp_path: Path, backups: Path, tail: bytes
) -> None:
    path = make_log(tmp_path / "root", [ALL[:5], ALL[5:7]])
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    plan = plan_repair(path)
    assert (plan.verdict, plan.cut_at, plan.event_count) == ("damaged", len(whole), 7)
    assert isinstance(plan.reason, dsh.FrameError)
    done = repair(path, backup_dir=backups)
    assert done.is_done
    assert path.read_bytes() == whole
    assert Path(done.backup or "").read_bytes() == whole + tail


def test_damaged_last_frame_is_cut_if_no_turn_ends_in_it(
    tmp_path: Path, backups: Path
) -> None:
    path = make_log(tmp_path / "root", [ALL[:5], ALL[5:8]])
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    with pytest.raises(dsh.FrameError):
        read(path)
    repair(path, backup_dir=backups)
    assert read(path) == ALL[:5]


@pytest.mark.parametrize("stored", STORED)
def test_damage_before_a_turn_end_is_refused_and_salvaged(
    tmp_path: Path, backups: Path, stored: Any
) -> None:
    path = make_log(tmp_path / "root", [ALL[:3], ALL[3:4], ALL[4:10]], stored)
    data = path.read_bytes()
    if stored == "zstd":
        frames = kernel.scan_frames(data).frames
        end = frames[2][1]
        data = data[: end - 1] + bytes((data[end - 1] ^ 1,)) + data[end:]
    else:
        data = data.replace(b'"seq":3,', b'"seq":33,')
    path.write_bytes(data)
    before = state_of(path)
    assert plan_repair(path).verdict == "refused"
    with pytest.raises(dsh.CorruptLogError):
        repair(path, backup_dir=backups)
    assert not backups.exists()
    target = tmp_path / "new" / f"session.v4.jsonl{'.zstd' if stored == 'zstd' else ''}"
    target.parent.mkdir()
    done = salvage(path, target)
    assert state_of(path) == before
    assert (done.event_count, done.backup) == (3, str(target))
    assert isinstance(done.reason, dsh.CorruptLogError)
    assert read(target) == ALL[:3]
    assert os.listdir(target.parent) == [target.name]  # noqa: PTH208
    with pytest.raises(FileExistsError) as caught:
        salvage(path, target)
    assert (caught.value.filename, caught.value.filename2) == (str(target), None)


def test_broken_rule_is_not_repaired_but_salvaged(
    tmp_path: Path, backups: Path
) -> None:
    path = make_log(tmp_path / "root", [ALL[:5]])
    bad = {"type": "turn/end", "seq": 5, "time": 1, "data": {"turn": 3}}
    line = kernel.encode_event(bad) + b"\n"
    path.write_bytes(path.read_bytes() + kernel.encode_frame(line))
    with pytest.raises(dsh.RowError):
        repair(path, backup_dir=backups)
    done = salvage(path, tmp_path / "out.jsonl")
    assert done.reason is not None
    assert done.reason.seq == 5
    assert read(tmp_path / "out.jsonl") == ALL[:5]


def test_salvage_of_a_seeded_log_without_its_marker_is_refused(tmp_path: Path) -> None:
    seeded = {**HEADER, "isSeeded": True, "parentSession": "p"}
    marker = {
        "type": "session/end-seed",
        "seq": 5,
        "time": 1,
        "data": {"inherited": True},
    }
    with Writer.create(tmp_path / "root", seeded) as writer:
        writer.append([*ALL[:5], marker])
    path = Path(writer.path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(dsh.RowError) as refusal:
        salvage(path, tmp_path / "out.jsonl")
    assert refusal.value.rule == "10 §4.4"
    assert sorted(os.listdir(tmp_path)) == ["root"]  # noqa: PTH208


@pytest.mark.parametrize("name", ["v0", "v3"])
def test_older_generation_is_refused(name: str, tmp_path: Path) -> None:
    (source,) = (DEMO / name).iterdir()
    path = tmp_path / source.name
    path.write_bytes(source.read_bytes())
    assert plan_repair(path).verdict == "refused"
    for call in (lambda: repair(path), lambda: salvage(path, tmp_path / "out")):
        with pytest.raises(dsh.UnsupportedError):
            call()


@pytest.mark.parametrize("name", ["torn-append", "torn-append-big"])
def test_torn_log_of_the_real_harness(tmp_path: Path, backups: Path, name: str) -> None:
    """Spec 70 §2: rows of the torn frame are kept, as a frame of their own."""
    corpus = shared_folder("DSH_CORPUS", "corpus", "real")
    source = corpus / "0.2.1rc2" / name / "session.v4.jsonl.zstd"
    path = tmp_path / source.name
    path.write_bytes(source.read_bytes())
    index = json.loads((corpus / "index.json").read_text("utf-8"))
    logs = index["logs"] if isinstance(index, dict) else index
    (known,) = (log for log in logs if log["path"] == f"0.2.1rc2/{name}/{path.name}")
    events = read(path)
    done = repair(path, backup_dir=backups)
    # The index's `torn_frame_offset` is not compared: no frame starts at most of them.
    frames = kernel.scan_frames(source.read_bytes()).frames
    assert (len(frames), frames[-1][1]) == (known["frames"], done.cut_at)
    assert done.event_count == len(events) == known["rows"] - 1 + done.recovered_count
    assert read(path) == events
    assert dsh.check(path, level="full", mode="strict").is_sound


def test_command_line_repairs(
    tmp_path: Path, backups: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = torn_log(tmp_path / "root", "zstd")
    session = str(path.parent)
    before = state_of(path)
    assert main(["repair", "--dry-run", session]) == 1
    assert state_of(path) == before
    assert "would cut" in capsys.readouterr().out
    assert main(["repair", "--backup", str(backups), session]) == 0
    assert "6 events kept, 4 of them written again" in capsys.readouterr().out
    assert main(["repair", "--json", session]) == 0
    assert '"verdict":"sound"' in capsys.readouterr().out
    data = bytearray(path.read_bytes())
    data[kernel.scan_frames(bytes(data)).frames[1][1] - 1] ^= 1
    path.write_bytes(data)
    assert main(["repair", "--backup", str(backups), session]) == 1
    assert "--salvage" in capsys.readouterr().out
    out = tmp_path / "out.jsonl"
    assert main(["repair", "--salvage", str(out), session]) == 0
    assert "0 events written" in capsys.readouterr().out
    assert read(out) == []
    path.write_bytes(b"")
    assert main(["repair", session]) == 1
    shown = capsys.readouterr().out
    assert "no header row" in shown
    assert "--salvage" not in shown  # There is nothing sound that it could write.
    assert main(["repair", str(DEMO / "v0")]) == 2
    shown = capsys.readouterr().out
    assert "migrate it first" in shown
    assert "--salvage" not in shown
    assert main(["repair", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
