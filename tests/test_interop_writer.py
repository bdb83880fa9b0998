"""The real runtime resumes what is written, repaired and repacked here. Spec: 70 §2, §4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dsh_codec as dsh
from dsh_codec import kernel
from dsh_codec.repack import repack
from dsh_codec.repair import repair
from dsh_codec.writer import Writer
from fault_oracle import read
from real_runtime import RealRuntime
from small_logs import DEMO

pytestmark = pytest.mark.interop

SESSION = "session-00000000-0000-4000-8000-000000000001"


class Harness(RealRuntime):
    """One home of a runtime, and one session in it."""

    def resume(self, path: Path) -> list[dict[str, Any]]:
        """Let the runtime answer one more task; our bytes have to stay as a prefix."""
        before, known = path.read_bytes(), read(path)
        self.answer("One more turn.", SESSION)
        assert path.read_bytes().startswith(before)
        events = read(path)
        assert events[: len(known)] == known
        assert events[-1]["type"] in ("turn/end", "session/title")
        report = dsh.check(path, level="full", mode="strict")
        assert report.is_sound, report.findings
        return events[len(known) :]


def created(harness: Harness, **options: Any) -> Path:
    """Write the demo session where the runtime looks for it."""
    with dsh.open(DEMO / "v4") as log:
        events = [event.envelope for event in log]
    header = {"id": SESSION, "createdAt": 1_700_000_000_000, "cwd": harness.runtime.cwd}
    with Writer.create(harness.root, header, **options) as writer:
        for start in range(0, len(events), 4):
            writer.append(events[start : start + 4])
    return Path(writer.path)


def next_turn(path: Path) -> int:
    """Return the number of the next turn."""
    turns = [event for event in read(path) if event["type"] == "turn/start"]
    return int(turns[-1]["data"]["turn"]) + 1


def append_turn(path: Path) -> None:
    """Add a turn with a failed attempt, in three batches."""
    turn = next_turn(path)
    here: dict[str, Any] = {"turn": turn, "step": 1}
    with Writer.open(path) as writer:
        time = 1_900_000_000_000

        def row(kind: str, data: Any) -> dict[str, Any]:
            return {"type": kind, "seq": writer.next_seq, "time": time, "data": data}

        writer.append([row("turn/start", {"turn": turn})])
        writer.append([row("step/start", here)])
        packer = dsh.Packer()
        packer.push(time, {"type": "text-delta", "index": 0, "text": "half an answer"})
        packer.push(time, {"type": "finish", "reason": {"kind": "error"}})
        writer.append_settlement(packer, time_ms=time, **here)
        writer.append([row("step/end", here)])
        ending = {"turn": turn, "reason": {"kind": "completed"}}
        writer.append([row("turn/end", ending)])


@pytest.mark.parametrize("level", [-5, 3, 19])
def test_runtime_resumes_what_a_writer_made(tmp_path: Path, level: int) -> None:
    """Created, resumed, extended by us, resumed again."""
    harness = Harness(tmp_path)
    path = created(harness, level=level)
    assert harness.resume(path)
    append_turn(path)
    assert harness.resume(path)
    append_turn(path)
    assert dsh.check(path, level="full", mode="strict").is_sound


def test_frames_are_those_of_the_runtime(tmp_path: Path) -> None:
    """Spec 70 §1: the runtime's own rows, appended again, give its bytes."""
    harness = Harness(tmp_path)
    path = created(harness)
    harness.resume(path)
    data = path.read_bytes()
    ranges = kernel.scan_frames(data).frames
    with dsh.open(path) as log:
        batches: dict[int | None, list[dict[str, Any]]] = {}
        for event in log:
            batches.setdefault(event.frame, []).append(event.envelope)
        header = log.header.fields
    with Writer.create(tmp_path / "again", header) as writer:
        writer.flush()
        for batch in batches.values():
            writer.append(batch)
    assert len(ranges) == len(batches) + 1
    assert Path(writer.path).read_bytes() == data


@pytest.mark.parametrize("cut", [1, 2, 5, 60])
def test_runtime_resumes_what_was_repaired(tmp_path: Path, cut: int) -> None:
    harness = Harness(tmp_path)
    path = created(harness)
    harness.resume(path)
    path.write_bytes(path.read_bytes()[:-cut])
    events = read(path)
    assert repair(path, backup_dir=tmp_path / "backups").is_done
    assert read(path) == events
    assert harness.resume(path)
    append_turn(path)


@pytest.mark.parametrize("policy", ["turn", "single"])
@pytest.mark.parametrize("level", [3, 19])
def test_runtime_resumes_what_was_repacked(
    tmp_path: Path, policy: Any, level: int
) -> None:
    harness = Harness(tmp_path)
    path = created(harness)
    harness.resume(path)
    assert repack(path, policy=policy, level=level).is_written
    assert harness.resume(path)
    append_turn(path)
    assert harness.resume(path)
