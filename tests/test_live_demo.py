"""The demonstration, and the command that shows it."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from command_line import runner
from dsh_codec.live import AttemptId, Entry, Window
from dsh_codec.live.demo import Demo, DemoResult, TranscriptLine, transcript

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from command_line import Ran

WHERE = {"turn": 1, "step": 1}
TERMINAL = pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals here")


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Ran]:
    return runner(capfdbinary)


# --- the demonstration ---


@pytest.mark.parametrize("seed", range(3))
def test_demo_ends_sound_and_equal(tmp_path: Path, seed: int) -> None:
    told: list[tuple[int, str]] = []
    demo = Demo(tmp_path, seed=seed, speed=200)

    def tell(number: int, change: Any) -> None:
        kind = demo.statuses[number] if change is None else change.kind
        told.append((number, kind))
        assert len(demo.window(number)) >= 0

    result = asyncio.run(demo.run(tell))
    assert result.has_agreed, result
    assert (result.openings, result.is_equal) == ((1, 2), (True, True))
    assert {number for number, _ in told} == {0, 1}
    assert (1, "was cut off, and follows again") in told
    with dsh.open(result.path) as log:
        kinds = [event.type for event in log]
        chunks = [len(attempt.stream.expand()) for attempt in log.attempts()]
    assert kinds[3:5] == ["assistant/attempt", "assistant/message"]
    assert len(kinds) == result.event_count == 12
    # The first viewer was shown every chunk once, the other one some of them again.
    assert result.live_rows[0] == sum(chunks)
    assert dsh.check(result.path, level="full").is_sound


def test_demo_of_one_seed_says_the_same(tmp_path: Path) -> None:
    logs = []
    for name in "ab":
        demo = Demo(tmp_path / name, seed=5, speed=500, clock=lambda: 7)
        result = asyncio.run(demo.run(lambda *_: None))
        with dsh.open(result.path) as log:
            logs.append([event.envelope for event in log])
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    "flaw",
    [
        {"status": "damaged"},
        {"is_equal": (True, False)},
        {"openings": (1, 1)},
        {"openings": (2, 2)},
    ],
)
def test_demo_that_disagrees_says_so(flaw: dict[str, Any]) -> None:
    good = DemoResult("x", 12, "sound", (True, True), (1, 2), (9, 9))
    assert good.has_agreed
    assert not good._replace(**flaw).has_agreed


# --- transcript ---


def durable(seq: int, kind: str, **data: Any) -> Entry:
    return Entry({"type": kind, "seq": seq, "time": 0, "data": data})


def row(seq: float, chunk: dict[str, Any], *, step: int = 1) -> Entry:
    data = {"attemptId": "s:1", "turn": 1, "step": step, "chunk": chunk}
    event = {"type": "assistant/live-chunk", "seq": seq, "time": 0, "data": data}
    return Entry(event, AttemptId("s:1"))


def said(kind: str, text: str) -> dict[str, Any]:
    return {"type": f"{kind}-delta", "index": 0, "text": text}


def told(*entries: Entry) -> list[TranscriptLine]:
    window = Window()
    window.replace(entries, has_more=False)
    return list(transcript(window))


def test_transcript_joins_live_rows_of_a_kind() -> None:
    call = {"type": "tool-call-delta", "index": 1, "id": "c", "argumentsDelta": "{}"}
    assert told(
        row(0.5, said("reasoning", "a")),
        row(0.6, said("reasoning", "b")),
        row(0.7, said("text", "c")),
        row(0.8, {"type": "usage", "usage": {}}),
        row(0.9, said("text", "d")),
        row(0.95, call),
    ) == [
        TranscriptLine("reasoning", "ab", is_live=True),
        TranscriptLine("text", "cd", is_live=True),
        TranscriptLine("tool", "{}", is_live=True),
    ]


def test_transcript_shows_a_message_or_its_rows_never_both() -> None:
    """Spec 40 §6.6."""
    content = [{"type": "text", "text": "hello"}]
    message = durable(1, "assistant/message", message={"content": content}, **WHERE)
    assert told(row(0.5, said("text", "hel")), message) == [
        TranscriptLine("text", "hello")
    ]
    assert told(message, row(1.5, said("text", "next"), step=2)) == [
        TranscriptLine("text", "hello"),
        TranscriptLine("text", "next", is_live=True),
    ]


def test_transcript_of_each_event() -> None:
    text = [{"type": "text", "text": "t"}]
    call = [{"type": "tool-call", "id": "c", "name": "n", "arguments": "{}"}]
    assert told(
        durable(0, "turn/start", turn=1),
        durable(1, "user/message", content=text),
        durable(2, "assistant/attempt", stream=[], **WHERE),
        durable(3, "assistant/message", message={"content": call}, **WHERE),
        durable(4, "tool/result", message={"content": text}, **WHERE),
        durable(5, "turn/end", turn=1, reason={"kind": "completed"}),
    ) == [
        TranscriptLine("user", "t"),
        TranscriptLine("failed", "an attempt failed, and is tried again"),
        TranscriptLine("tool", "n {}"),
        TranscriptLine("tool", "= t"),
        TranscriptLine("note", "the turn is completed"),
    ]


# --- the command ---


def test_command_to_a_pipe_is_plain(run: Callable[..., Ran], tmp_path: Path) -> None:
    ran = run("live-demo", "--speed", 200, "--root", tmp_path)
    assert ran.code == 0
    assert ran.errors == ""
    for viewer in ("viewer 1", "viewer 2"):
        lines = [line for line in ran.lines if line.startswith(f"{viewer}\t")]
        events = [line.split("\t")[1:] for line in lines if line.count("\t") == 2]
        assert [int(seq) for seq, _ in events] == list(range(12))
        assert events[0][1] == "turn/start"
    assert "viewer 2\twas cut off, and follows again" in ran.lines
    (path,) = tmp_path.rglob("session.v4.jsonl*")
    assert ran.lines[-3] == f"{path}: sound, 12 events"
    assert ran.lines[-2].startswith("viewer 1: shows the log; opened 1x, ")
    assert ran.lines[-1].startswith("viewer 2: shows the log; opened 2x, ")
    assert not any("\x1b" in line for line in ran.lines)


def test_command_as_json_is_one_line(run: Callable[..., Ran]) -> None:
    ran = run("live-demo", "--speed", 500, "--seed", 4, "--json")
    (found,) = ran.json()
    assert ran.code == 0
    assert found["agreed"] is True
    assert [viewer["openings"] for viewer in found["viewers"]] == [1, 2]
    assert "path" not in found  # It was thrown away.


def test_command_that_disagrees_ends_with_one(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def disagree(*_: Any) -> DemoResult:
        return DemoResult("x", 12, "sound", (True, False), (1, 2), (9, 9))

    monkeypatch.setattr(Demo, "run", disagree)
    ran = run("live-demo")
    assert ran.code == 1
    assert ran.lines[-1].startswith("viewer 2: does not show the log")


@pytest.mark.parametrize("speed", ["0", "-1", "x", "nan", "inf", "-inf"])
def test_command_of_no_speed_is_a_usage_error(
    run: Callable[..., Ran], speed: str
) -> None:
    result = run("live-demo", "--speed", speed)
    assert result.code == 64
    assert "'--speed'" in result.errors


@pytest.mark.parametrize("speed", [0, -1.0, float("nan"), float("inf"), "1"])
def test_demo_of_no_speed_is_refused(tmp_path: Path, speed: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^speed "):
        Demo(tmp_path, speed=speed)


def test_command_finds_a_log_in_its_place(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    """The root holds the session of an earlier demonstration: nothing is overwritten."""
    assert run("live-demo", "--speed", 500, "--root", tmp_path).code == 0
    (path,) = tmp_path.rglob("session.v4.jsonl*")
    before = path.read_bytes()
    ran = run("live-demo", "--speed", 500, "--root", tmp_path)
    assert ran.code == 2
    assert "open it instead" in ran.errors
    assert path.read_bytes() == before


def test_command_whose_reader_goes_away_ends_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dsh_codec", "live-demo", "--speed", "0.5"]
    process = subprocess.Popen(  # noqa: S603 - our own command line
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": SOURCE, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline() == b"viewer 1\tfollows\n"
        process.stdout.close()
        assert process.wait(timeout=30) == 141
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert list(tmp_path.iterdir()) == []


def on_terminal(*arguments: str, interrupt: bool = False) -> tuple[int, str]:
    """Run the command in a terminal; return its exit code and all that it wrote."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(  # noqa: S603 - our own command line
        [sys.executable, "-m", "dsh_codec", "live-demo", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ
        | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30", "PYTHONPATH": SOURCE},
        start_new_session=True,
    )
    os.close(theirs)
    written, deadline = b"", time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 1)[0]:
                continue
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # The other side is closed.
                break
            if not part:
                break
            written += part
            if interrupt and b"live rows" in written:
                process.send_signal(signal.SIGINT)
                interrupt = False
        return process.wait(timeout=30), written.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


SOURCE = os.path.dirname(os.path.dirname(dsh.__file__))  # noqa: PTH120 - for the environment


@TERMINAL
def test_command_on_a_terminal_draws_two_viewers() -> None:
    code, written = on_terminal("--speed", "50")
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    assert "viewer 1 follows" in plain
    assert re.search(r"viewer 2 was cut off after \d+ of \d+ chunks", plain)
    assert "viewer 2 was cut off, and follows again" in plain
    assert "12 events, 0 live rows" in plain
    assert "viewer 1 shows the log" in plain
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")


@TERMINAL
def test_command_on_a_terminal_is_interrupted() -> None:
    code, written = on_terminal("--speed", "0.5", interrupt=True)
    assert code == 130
    assert "Traceback" not in written
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")
