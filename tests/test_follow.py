"""Following a growing log. Spec: 80 §7."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

import dsh_codec as dsh
from dsh_codec import kernel
from dsh_codec.cli import main
from dsh_codec.follow import (
    Cursor,
    Follow,
    Reset,
    SleepWaiter,
    Superseded,
    WatchWaiter,
    follow,
)
from dsh_codec.repack import repack
from dsh_codec.writer import Writer
from fault_oracle import STORED, make_log, session_events, state_of
from small_logs import DEMO, read_on, shared_folder

ALL = session_events(14)
DEMOS = sorted(entry.name for entry in DEMO.iterdir())


def seqs(items: Any) -> list[Any]:
    """Seqs of events; signals as they are."""
    return [item.seq if isinstance(item, dsh.Event) else item for item in items]


@pytest.mark.parametrize("name", DEMOS)
def test_events_are_those_of_a_reader(name: str) -> None:
    (path,) = (DEMO / name).iterdir()
    with dsh.open(path, mode="strict") as log:
        expected = [
            (event.seq, event.type, event.time, event.raw, event.offset, event.frame)
            for event in log
        ]
        envelopes = [event.envelope for event in log]
        header = log.header
    before = state_of(path)
    with follow(path.parent) as following:
        assert following.cursor is None
        items: list[Any] = list(following.poll())
        assert list(following.poll()) == []
    assert following.header == header
    assert state_of(path) == before
    assert [
        (event.seq, event.type, event.time, event.raw, event.offset, event.frame)
        for event in items
    ] == expected
    assert [event.envelope for event in items] == envelopes


@pytest.mark.parametrize("stored", STORED)
def test_every_state_of_a_growing_file(tmp_path: Path, stored: Any) -> None:
    """An unfinished frame or row is read again from its start."""
    path = make_log(tmp_path, [ALL[:2], ALL[2:5], ALL[5:6]], stored)
    whole = path.read_bytes()
    path.write_bytes(b"")
    following = follow(path)
    seen: list[Any] = []
    with path.open("r+b", buffering=0) as file:
        for at in range(len(whole)):
            file.write(whole[at : at + 1])
            seen += following.poll()
            cursor = following.cursor
            if cursor is not None:
                assert cursor.offset <= at + 1
                assert cursor.next_seq == len(seen)
    assert seqs(seen) == list(range(6))
    assert [event.envelope for event in seen] == ALL[:6]


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("name", ["session", "v0-packed"])
def test_cursor_resumes_after_every_event(
    tmp_path: Path, stored: Any, name: str
) -> None:
    if name == "session":
        path = make_log(tmp_path, [ALL[:2], ALL[2:5], ALL[5:9]], stored)
    else:
        (path,) = (DEMO / name).iterdir()
    whole = list(follow(path).poll())
    for taken in range(1, len(whole), 1 if name == "session" else 17):
        following = follow(path)
        for _, _ in zip(range(taken), following.poll(), strict=False):
            pass
        cursor = following.cursor
        assert cursor is not None
        stored_cursor = Cursor(**json.loads(json.dumps(cursor._asdict())))
        again = follow(path, stored_cursor)
        assert seqs(again.poll()) == list(range(taken, len(whole)))
        assert again.cursor == follow_all(path)


def follow_all(path: Path) -> Cursor | None:
    following = follow(path)
    list(following.poll())
    return following.cursor


def test_case_from_the_field_shrinks_and_grows(tmp_path: Path) -> None:
    """The size never falls below the cursor, so nothing is reset."""
    case = shared_folder("DSH_CASES", "cases") / "73-follow-truncate-and-rewrite"
    facts = json.loads((case / "case.json").read_text("utf-8"))["facts"]
    path = tmp_path / "log.zstd"
    path.write_bytes((case / "before.jsonl.zstd").read_bytes())
    following = follow(path)
    assert len(list(following.poll())) == facts["cursor"]["next_seq"]
    assert following.cursor is not None
    assert following.cursor.offset == facts["cursor"]["offset"]
    with path.open("r+b") as file:
        file.write((case / "after.jsonl.zstd").read_bytes())
        file.truncate()
    assert seqs(following.poll()) == [20]


@pytest.mark.parametrize("stored", STORED)
def test_file_that_is_another_one_resets(tmp_path: Path, stored: Any) -> None:
    path = make_log(tmp_path, [ALL[:2], ALL[2:5]], stored)
    whole = path.read_bytes()
    following = follow(path)
    assert seqs(following.poll()) == [0, 1, 2, 3, 4]
    cut = len(make_log(tmp_path / "2", [ALL[:2]], stored).read_bytes())
    os.truncate(path, cut)
    assert seqs(following.poll()) == [Reset("shorter"), 0, 1]
    cursor = following.cursor
    other = path.with_name("other")
    other.write_bytes(whole)
    other.replace(path)
    assert seqs(following.poll()) == [Reset("replaced"), 0, 1, 2, 3, 4]
    assert seqs(follow(path, cursor).poll())[0] == Reset("replaced")
    header = {"id": "s-2", "createdAt": 1000, "cwd": "/w"}
    with Writer.create(tmp_path / "3", header, compression=stored) as writer:
        writer.append(ALL[:14])
    with path.open("r+b") as file:
        file.write(Path(writer.path).read_bytes())
    assert seqs(following.poll()) == [Reset("header"), *range(14)]


def test_repacked_log_is_another_file(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:2], ALL[2:5]])
    following = follow(path)
    list(following.poll())
    repack(path)
    assert seqs(following.poll()) == [Reset("replaced"), 0, 1, 2, 3, 4]


def test_higher_generation_supersedes(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:3]])
    following = follow(path.parent)
    newer = path.with_name("session.v5.jsonl.zstd")
    newer.write_bytes(b"")
    expected = [0, 1, 2, Superseded(str(newer), 5)]
    assert seqs(following) == expected
    assert seqs(following.poll()) == expected[-1:]


def test_higher_generation_supersedes_a_log_without_a_header(tmp_path: Path) -> None:
    """80 §7: a higher generation that appears is reported, whatever is in the file."""
    path = tmp_path / "session.v4.jsonl"
    path.write_bytes(b'{"type":')
    following = follow(path)
    assert list(following.poll()) == []
    newer = tmp_path / "session.v5.jsonl"
    newer.write_bytes(b"")
    assert list(following.poll()) == [Superseded(str(newer), 5)]


@pytest.mark.parametrize("age_s", [0, 3600])
def test_higher_generation_is_seen_however_old_the_directory_is(
    tmp_path: Path, age_s: int
) -> None:
    """A directory that was listed long after its last change is not listed again before the next."""
    path = make_log(tmp_path, [ALL[:3]])
    changed_ns = time.time_ns() - age_s * 10**9
    os.utime(path.parent, ns=(changed_ns, changed_ns))
    following = follow(path.parent)
    assert seqs(following.poll()) == [0, 1, 2]
    assert seqs(following.poll()) == []
    newer = path.with_name("session.v5.jsonl.zstd")
    newer.write_bytes(b"")
    if age_s == 0:
        # Time stamps are coarse: the change may not show in them.
        os.utime(path.parent, ns=(changed_ns, changed_ns))
    assert seqs(following.poll()) == [Superseded(str(newer), 5)]


@pytest.mark.parametrize("stored", STORED)
def test_damage_is_an_error_and_never_skipped(tmp_path: Path, stored: Any) -> None:
    path = make_log(tmp_path, [ALL[:2], ALL[2:5], ALL[5:9]], stored)
    data = path.read_bytes()
    if stored == "zstd":
        start, end = kernel.scan_frames(data).frames[2]
        data = data[: end - 1] + bytes((data[end - 1] ^ 1,)) + data[end:]
    else:
        start = data.index(b'{"type":"assistant/attempt","seq":2')
        data = data.replace(b'"seq":2,', b'"seq":3,')
    path.write_bytes(data)
    following = follow(path)
    for already in ([0, 1], []):
        seen, error = read_on(following.poll())
        assert seqs(seen) == already
        assert isinstance(error, dsh.CorruptLogError)
        assert error.path == str(path)
        assert error.offset == start
        if stored == "zstd":
            assert error.frame == 2
        else:
            assert isinstance(error, dsh.SeqGapError)
            assert (error.expected, error.got) == (2, 3)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (b"{nonsense}\n", dsh.RowError),
        (b"\n", dsh.RowError),
        (b'{"type":"turn/end","seq":1,"time":1}\n', dsh.RowError),
        (
            b'{"type":"tool/code-dispatch","seq":1,"time":1,"data":{}}\n',
            dsh.UnsupportedError,
        ),
    ],
)
def test_bad_row_is_refused(tmp_path: Path, row: bytes, error: type[Exception]) -> None:
    """Layers L0 and L1."""
    path = make_log(tmp_path, [ALL[:1]], "none")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + row)
    following = follow(path)
    with pytest.raises(error) as refusal:
        list(following.poll())
    assert getattr(refusal.value, "offset", None) == size
    assert getattr(refusal.value, "seq", None) == 1


def test_rules_above_the_rows_are_not_checked(tmp_path: Path) -> None:
    path = make_log(tmp_path, [[{**ALL[0], "type": "made/up"}]])
    assert seqs(follow(path).poll()) == [0]


PACKED = (
    b'{"type":"text-chunks","seq0":%d,"time0":%b,"data":{"turn":1,"step":1,"index":0,'
    b'"dt":[3],"texts":["a","b"]}}\n'
)


def test_old_rows_are_checked(tmp_path: Path) -> None:
    (source,) = (DEMO / "v1").iterdir()
    lines = source.read_bytes().splitlines(keepends=True)
    path = tmp_path / source.name
    for bad in (
        b'{"type":"x","seq":7}\n',
        b'{"type":"text-chunks","seq0":7,"time0":1,"data":{}}\n',
        b'{"type":"text-chunks","seq0":0,"time0":1,"data":{}}\n',
        PACKED % (0, b"-0"),
        b"7\n",
    ):
        path.write_bytes(lines[0] + bad)
        with pytest.raises(dsh.RowError) as refusal:
            list(follow(path).poll())
        assert refusal.value.seq == 0
    path.write_bytes(lines[0] + PACKED % (0, b"1") + PACKED % (2, b"-0"))
    following = follow(path)
    with pytest.raises(dsh.RowError) as refusal:
        list(following.poll())
    assert refusal.value.seq == 2
    path.write_bytes(lines[0] + PACKED % (0, b"1") + PACKED % (2, b"5"))
    found = [item for item in follow(path).poll() if isinstance(item, dsh.Event)]
    assert [(event.seq, event.time) for event in found] == [
        (0, 1),
        (1, 4),
        (2, 5),
        (3, 8),
    ]


def test_old_rows_need_no_type(tmp_path: Path) -> None:
    """10 §5.2: an event row of generations 0 and 1 only has to have its seq."""
    (source,) = (DEMO / "v1").iterdir()
    path = tmp_path / source.name
    head = source.read_bytes().splitlines(keepends=True)[0]
    path.write_bytes(head + b'{"seq":0}\n{"seq":1,"type":["text-chunks"]}\n')
    found = [item for item in follow(path).poll() if isinstance(item, dsh.Event)]
    assert [event.type for event in found] == [None, None]
    with dsh.open(path, mode="strict") as log:
        assert [event.type for event in log] == [None, None]


def system(image_bytes: float) -> dict[str, Any]:
    """Return a system message of generation 3 with an image of so many bytes."""
    image = {"attachmentId": "a", "mediaType": "image/png", "width": 1, "height": 1}
    block = {"type": "image", "attachment": image | {"bytes": image_bytes}}
    source = {"kind": "plugin", "plugin": "p"}
    message = {"id": "m", "role": "system", "source": source, "content": [block]}
    data = {"turn": 1, "step": 1, "message": message}
    return {"type": "system/message", "data": data, "surfaceOp": "append"}


def test_rows_of_generation_3_are_checked(tmp_path: Path) -> None:
    """50 §3.2: hard row admission and the canonical event check, at any seq."""
    head = (
        b'{"type":"session","version":3,"id":"s","createdAt":0,"isSeeded":false,'
        b'"delegationDepth":0}\n'
    )
    path = tmp_path / "session.v3.jsonl"
    appended: dict[str, Any] = {"surfaceOp": "append"}
    over: dict[str, Any] = {"surfaceOp": {"op": "replace", "startSeq": 0, "endSeq": 2}}
    first: list[dict[str, Any]] = [
        {"type": "user/message", "data": {}, **appended},
        {"type": "x/y", "data": {}, "sourceEventSeqs": [0], "surfaceOp": 1},
        {"type": "x/y", "data": {}},
    ]
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"type": "user/message", **over, "sourceEventSeqs": [[0, 2]]}, True),
        ({"type": "turn/start"}, True),
        ({"type": "tool/code-dispatch", "ignorable": True}, True),
        ({"type": "tool/code-dispatch"}, False),
        ({"type": "request/header"}, False),
        ({"type": "system/message", **appended}, False),
        ({"type": "user/message"}, False),
        ({"type": "user/message", **appended, "sourceEventSeqs": []}, False),
        ({"type": "turn/start", **appended}, False),
        ({"type": "turn/start", "sourceEventSeqs": [0]}, False),
        ({"type": "tool/result", "data": {"error": {}}, **appended}, False),
        (system(7), True),
        (system(7.0), True),
        (system(-0.0), False),
        (system(float("inf")), False),
    ]
    for event, is_right in cases:
        rows = [*first, {"data": {}, **event}]
        lines = [{"seq": seq, "time": 1, **row} for seq, row in enumerate(rows)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        path.write_bytes(head + text.replace("Infinity", "1e400").encode())
        found: list[Any] = []
        if is_right:
            found += follow(path).poll()
        else:
            with pytest.raises(dsh.DshCodecError) as refusal:
                found.extend(follow(path).poll())
            assert getattr(refusal.value, "seq", None) == 3
        assert seqs(found) == [0, 1, 2, 3][: 3 + is_right]


def test_limits_are_kept(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:3]], "none")
    with pytest.raises(dsh.LimitExceededError):
        list(follow(path, max_row_bytes=100).poll())
    bomb = make_log(tmp_path / "2", [[{**ALL[0], "data": "a" * 3_000_000}]])
    with pytest.raises(dsh.LimitExceededError):
        list(follow(bomb, max_frame_plain_bytes=1 << 20).poll())


def test_large_frames_and_rows_cross_the_window(tmp_path: Path) -> None:
    big = {**ALL[0], "data": {"turn": 1, "more": os.urandom(2_000_000).hex()}}
    for stored in STORED:
        path = make_log(tmp_path / stored, [[big, ALL[1]], ALL[2:5]], stored)
        assert seqs(follow(path).poll()) == [0, 1, 2, 3, 4]


def test_frames_that_split_rows_are_read(tmp_path: Path) -> None:
    path = make_log(tmp_path, [])
    text = b"".join(kernel.encode_event(event) + b"\n" for event in ALL)
    following = follow(path)
    seen: list[Any] = []
    for at in range(0, len(text), 50):
        with path.open("ab") as file:
            file.write(kernel.encode_frame(text[at : at + 50]))
        seen += following.poll()
    assert [event.envelope for event in seen] == ALL
    assert following.cursor == follow_all(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        follow(tmp_path / "none")
    path = make_log(tmp_path, [ALL[:1]])
    following = follow(path)
    list(following.poll())
    path.unlink()
    with pytest.raises(FileNotFoundError):
        list(following.poll())


class Script:
    """A waiter that does one thing each time it is asked to wait."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)

    def wait(self, timeout_ms: float) -> None:
        assert timeout_ms == 100
        self.steps.pop(0)()

    def stop(self) -> None:
        self.steps.clear()


def test_iteration_waits_and_goes_on(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:1]])
    with Writer.open(path) as writer:
        following: Follow = follow(
            path,
            waiter=Script(
                lambda: writer.append(ALL[1:3]),
                lambda: None,
                lambda: writer.append(ALL[3:4]),
                lambda: following.close(),
            ),
        )
        assert seqs(following) == [0, 1, 2, 3]


@pytest.mark.parametrize("interval", [-1, float("nan"), float("inf"), 1e10])
def test_interval_is_a_number_of_milliseconds(tmp_path: Path, interval: float) -> None:
    path = make_log(tmp_path, [ALL[:1]])
    with pytest.raises(ValueError, match="interval_ms"):
        follow(path, interval_ms=interval)


@pytest.mark.parametrize("cursor", [5, [1, 2], {}, ()])
def test_cursor_of_another_type_is_refused(tmp_path: Path, cursor: Any) -> None:
    path = make_log(tmp_path, [ALL[:1]])
    with pytest.raises(TypeError, match="cursor is a Cursor"):
        follow(path, cursor)


def test_async_iteration(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:1]])

    async def run() -> list[Any]:
        seen = []
        with Writer.open(path) as writer:
            following = follow(path, interval_ms=1, waiter=SleepWaiter())
            async for item in following:
                seen.append(item)
                assert following.cursor is not None
                assert following.cursor.next_seq == len(seen)
                if writer.next_seq < 6:
                    writer.append(ALL[writer.next_seq : writer.next_seq + 2])
                if len(seen) == 7:
                    break
        return seen

    assert seqs(asyncio.run(run())) == list(range(7))


def test_closed_follower_gives_nothing(tmp_path: Path) -> None:
    """As a closed file: reading is refused, and a read that runs ends."""
    path = make_log(tmp_path, [ALL[:3]])
    following = follow(path)
    running = following.poll()
    assert next(running) is not None
    following.close()
    assert list(running) == []
    with pytest.raises(ValueError, match="closed"):
        following.poll()
    assert list(following) == []
    cursor = following.cursor
    assert cursor is not None
    assert seqs(follow(path, cursor).poll()) == [1, 2]


def test_closed_follower_gives_nothing_to_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_log(tmp_path, [ALL[:3]])
    following = follow(path)

    async def take() -> list[Any]:
        return [item async for item in following]

    module: Any = sys.modules[follow.__module__]
    read = module._take

    def read_and_close(steps: Any) -> Any:
        following.close()  # While the task waits for what is read.
        return read(steps)

    monkeypatch.setattr(module, "_take", read_and_close)
    assert asyncio.run(take()) == []
    assert following.cursor is None


def test_close_from_another_thread_ends_the_wait(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:1]])
    following = follow(path, interval_ms=60_000, waiter=SleepWaiter())
    seen = []
    for item in following:
        seen.append(item)
        # Most likely it is waiting by then; if not, it does not even begin to.
        threading.Timer(0.02, following.close).start()
    assert seqs(seen) == [0]


def test_watchfiles_is_used_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a module of its shape: the package is optional."""
    path = make_log(tmp_path, [ALL[:1]])
    calls = []

    def watch(directory: Path, **options: Any) -> Any:
        calls.append((directory, options["rust_timeout"], options["yield_on_timeout"]))
        while not options["stop_event"].is_set():
            yield set()

    fake = types.ModuleType("watchfiles")
    fake.watch = watch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "watchfiles", fake)
    following = follow(path, interval_ms=30)
    seen = []
    with Writer.open(path) as writer:
        for item in following:
            seen.append(item)
            if len(seen) == 3:
                following.close()
            elif writer.next_seq < 3:
                writer.append(ALL[writer.next_seq : writer.next_seq + 1])
    assert seqs(seen) == [0, 1, 2]
    assert calls == [(path.parent, 30, True)]
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(ModuleNotFoundError):
        WatchWaiter(path.parent)
    assert seqs(follow(path).poll()) == [0, 1, 2]


def test_command_line_tails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_log(tmp_path, [ALL[:5]])
    assert main(["tail", "-n", "2", str(path.parent)]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ALL[
        3:5
    ]
    newer = path.with_name("session.v5.jsonl.zstd")
    newer.write_bytes(b"")
    assert main(["tail", "-f", "-n", "1", str(path)]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == ALL[4]
    assert "superseded" in shown.err
    assert main(["tail", "-f", str(tmp_path / "none")]) == 2
