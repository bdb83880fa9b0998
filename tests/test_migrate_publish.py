"""Publication of migrated logs: exclusive, atomic, verified, safe when killed. Spec: 10 §11.3."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dsh_codec as dsh
from dsh_codec.errors import (
    CorruptLogError,
    IdentityError,
    MigrationRefusedError,
    SessionLockedError,
)
from dsh_codec.migrate import ChildEvidence, ChildIndex, migrate, publish
from dsh_codec.migrate.collect import identify_file
from migrate_logs import (
    V0_TURN,
    answer,
    chunk,
    header_of,
    numbered,
    step,
    system,
    text_of,
    turn,
    user,
    v0_text,
    write_session,
)

TARGET = "session.v4.jsonl"


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session folder with a log of generation 0."""
    return write_session(tmp_path, "s0", v0_text(), 0)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_migrate_publishes_beside_an_untouched_source(session: Path) -> None:
    """10 §11.3: a new file; the source keeps bytes, inode and times."""
    source = session / "session.jsonl"
    before, content = identify_file(source), source.read_bytes()
    done = migrate(session, children=())
    assert (done.source, done.source_version) == (str(source), 0)
    assert (done.target, done.is_new) == (str(session / TARGET), True)
    assert (done.event_count, done.inherited_event_count, done.torn_bytes) == (7, 0, 0)
    assert (identify_file(source), source.read_bytes()) == (before, content)
    assert names(session) == {"session.jsonl", TARGET, "session.lock"}
    assert (session / TARGET).stat().st_size == done.file_bytes
    with dsh.open(session) as log:
        assert log.generation == 4


def test_migrate_twice_is_the_same(session: Path) -> None:
    """Idempotent: the folder is current then; the old file again gives the same bytes."""
    migrate(session, children=())
    content = (session / TARGET).read_bytes()
    assert migrate(session).is_new is False
    again = migrate(session / "session.jsonl", children=())
    assert again.is_new is False
    assert (session / TARGET).read_bytes() == content
    with (session / TARGET).open("ab") as file:
        file.write(b'{"type":"turn/start","seq":7,"time":9,"data":{"turn":2}}\n')
    assert migrate(session / "session.jsonl", children=()).is_new is False


def test_migrate_meets_another_log_under_the_name(session: Path) -> None:
    """10 §11.3 step 4: a conflict, and nothing is changed."""
    (session / TARGET).write_bytes(text_of(header_of(4, id="s0"), []))
    with pytest.raises(FileExistsError) as caught:
        migrate(session / "session.jsonl", children=())
    assert caught.value.errno == errno.EEXIST
    assert (session / TARGET).read_bytes() == text_of(header_of(4, id="s0"), [])
    assert names(session) == {"session.jsonl", TARGET, "session.lock"}


def test_migrate_meets_a_link_under_the_name(session: Path, tmp_path: Path) -> None:
    """10 §11.3 step 4: only a regular file is accepted, whatever it points to."""
    migrate(session, children=())
    elsewhere = (session / TARGET).rename(tmp_path / "elsewhere")
    (session / TARGET).symlink_to(elsewhere)
    with pytest.raises(FileExistsError):
        migrate(session / "session.jsonl", children=())


def test_dry_run_leaves_nothing(session: Path) -> None:
    done = migrate(session, children=(), dry_run=True)
    assert (done.is_new, done.event_count) == (False, 7)
    assert names(session) == {"session.jsonl"}


def test_out_takes_the_usual_layout(session: Path, tmp_path: Path) -> None:
    """Brief of `--out`: under another root, the source's folder is not written to."""
    done = migrate(session, children=(), out=tmp_path / "new")
    assert done.target == str(tmp_path / "new" / "_no-cwd" / "s0" / TARGET)
    assert names(session) == {"session.jsonl"}
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_log_without_events_has_one_frame(tmp_path: Path) -> None:
    """10 §7.2: no second frame if there are no events."""
    path = tmp_path / "session.jsonl.zstd"
    path.write_bytes(dsh.kernel.encode_frame(text_of(header_of(0), [])))
    done = migrate(path, children=())
    frames = dsh.kernel.scan_frames(Path(done.target).read_bytes()).frames
    assert len(frames) == 1


def test_torn_tail_is_left_out_and_counted(session: Path) -> None:
    """50 §2.4: the fragment behind the last line feed is ignored."""
    with (session / "session.jsonl").open("ab") as file:
        file.write(b'{"type":"tur')
    assert migrate(session, children=()).torn_bytes == 12


def test_refused_log_leaves_nothing(session: Path) -> None:
    (session / "session.jsonl").write_bytes(
        text_of(header_of(0), numbered({"type": "mode/set", "data": {}}))
    )
    with pytest.raises(MigrationRefusedError) as caught:
        migrate(session, children=())
    assert caught.value.path == str(session / "session.jsonl")
    assert names(session) == {"session.jsonl", "session.lock"}


def test_readable_but_not_publishable_log_is_corrupt(session: Path) -> None:
    """50 §8.5: a message that is not what its chunks assemble to migrates, but is not adopted."""
    rows = numbered(turn("start"), step("start"), chunk("a"), answer("b", sources=[2]))
    (session / "session.jsonl").write_bytes(text_of(header_of(0), rows))
    with dsh.open(session, upgrade=True) as log:
        assert log.generation == 4
    with pytest.raises(CorruptLogError) as caught:
        migrate(session, children=())
    assert caught.value.path == str(session / "session.jsonl")
    assert caught.value.rule == "L5.3"
    assert names(session) == {"session.jsonl", "session.lock"}


def test_open_session_is_locked(session: Path) -> None:
    """10 §9: a writer of the old harness might add to the source behind our back."""
    with (session / "session.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(SessionLockedError) as caught:
            migrate(session, children=())
    assert caught.value.path == str(session / "session.lock")
    assert names(session) == {"session.jsonl", "session.lock"}
    assert migrate(session, children=()).is_new


# --- what changes meanwhile ---


class Meanwhile:
    """Does something at the end of each verification."""

    def __init__(self, patch: pytest.MonkeyPatch, action: Any, times: int) -> None:
        self.calls = 0
        verify = publish.verify

        def verify_then(*arguments: Any) -> None:
            verify(*arguments)
            self.calls += 1
            if self.calls <= times:
                action()

        patch.setattr(publish, "verify", verify_then)


def test_source_that_changes_once_is_read_again(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 §11.3 step 3: a writer without our lock added a turn."""
    source = session / "session.jsonl"
    rows = numbered(*V0_TURN, turn("start", 2))
    more = Meanwhile(
        monkeypatch, lambda: source.write_bytes(text_of(header_of(0, id="s0"), rows)), 1
    )
    assert migrate(session, children=()).event_count == 8
    assert more.calls == 2
    assert names(session) == {"session.jsonl", TARGET, "session.lock"}


def test_source_that_keeps_changing_is_given_up(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = session / "session.jsonl"
    Meanwhile(
        monkeypatch, lambda: os.utime(source, ns=(1, source.stat().st_mtime_ns + 1)), 9
    )
    with pytest.raises(IdentityError) as caught:
        migrate(session, children=())
    assert caught.value.path == str(source)
    assert names(session) == {"session.jsonl", "session.lock"}


def child_text(identity: str, *events: Any, version: int = 3, **more: Any) -> bytes:
    fields = {"origin": "subagent", "parentSession": "s0", **more}
    return text_of(header_of(version, id=identity, **fields), numbered(*events))


def descriptor(**more: Any) -> Any:
    data = {"version": 3, "mode": "one-shot", "provider": "p", **more}
    return {"type": "subagent/descriptor", "data": data}


def test_child_that_appears_meanwhile_is_listed(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 §7.7: a change of the set of children restarts the preparation."""
    Meanwhile(
        monkeypatch,
        lambda: write_session(tmp_path, "kid", child_text("kid", descriptor()), 3),
        1,
    )
    migrate(session, children=tmp_path)
    with dsh.open(session) as log:
        assert log[len(log) - 1].data["childId"] == "kid"


# --- evidence of children ---


def test_index_reads_the_evidence_of_children(tmp_path: Path) -> None:
    """50 §7.7: own descriptors only; a log that does not hold gives none but its id."""
    marker = {"type": "session/end-seed", "data": {"inherited": True}}
    sessions = {
        "one": child_text("one", descriptor(), createdAt=5),
        "two": child_text("two", descriptor(), descriptor()),
        "old": child_text("old", descriptor(label="x"), version=0, createdAt=7),
        "fork": child_text(
            "fork", descriptor(), marker, descriptor(label="f"), isSeeded=True
        ),
        "bad": child_text("bad", descriptor(), turn("start", 5)),
        "odd": child_text("odd", descriptor(mode="other")),
        "not": child_text("not", descriptor(), parentSession="other"),
        "v4": child_text("v4", descriptor(), version=4),
    }
    for name, text in sessions.items():
        write_session(tmp_path, name, text, dsh.open(text).generation)
    other = child_text("no-origin", descriptor()).replace(
        b'"origin": "subagent", ', b""
    )
    write_session(tmp_path, "no-origin", other, 3)
    found = {child.child_id: child for child in ChildIndex.of(tmp_path).evidence("s0")}
    assert {name: child.descriptor_count for name, child in found.items()} == {
        "one": 1,
        "two": 2,
        "old": 1,
        "fork": 1,
        "bad": 0,
        "odd": 0,
        "v4": 1,
    }
    assert found["fork"].descriptor["label"] == "f"
    assert found["bad"].descriptor is None
    assert (found["one"].child_created_at, found["old"].child_created_at) == (5, 7)


def catalog(version: int) -> Any:
    data = {"version": version, "childId": "x", "childCreatedAt": 1, "mode": "one-shot"}
    return {"type": "subagent/catalog", "data": data}


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ([{"type": "workspace/changes", "data": {}, "ignorable": True}], 1),
        ([{"type": "workspace/changes", "data": {}, "surfaceOp": "append"}], 0),
        ([{"type": "my/thing", "data": {}, "ignorable": True, "surfaceOp": 1}], 1),
        ([catalog(0)], 1),
        ([catalog(0), catalog(1)], 0),
        ([catalog(2)], 0),
    ],
    ids=["known", "known-surface", "opaque-surface", "catalog", "twice", "external"],
)
def test_child_is_judged_with_the_types_of_its_generation(
    tmp_path: Path, rows: list[Any], count: int
) -> None:
    """50 §8.6: types of generation 3 are known there; §8.4 judges the catalog, too."""
    write_session(tmp_path, "kid", child_text("kid", descriptor(), *rows), 3)
    found = ChildIndex.of(tmp_path).evidence("s0")
    assert [child.descriptor_count for child in found] == [count]


def asked(*, started: bool = True) -> tuple[Any, ...]:
    """Give a step with a tool call that waits for its result, at seq 5 or 4."""
    call = {"type": "tool-call", "id": "c", "name": "f", "arguments": "{}"}
    message = answer("x", stream=[])
    message["data"]["message"]["content"] = [call]
    data = {"turn": 1, "step": 1, "callId": "c", "name": "f", "arguments": "{}"}
    begun = ({"type": "tool/call", "data": data},) if started else ()
    return turn("start"), step("start"), system(), message, *begun


def result(
    call: str = "c", *, content: Any = None, over: int | None = None, **data: Any
) -> Any:
    """Give a result as generation 3 has it; `content` takes the place of its wrapper."""
    inner = {"type": "tool-result", "toolCallId": call, "isError": True, "content": []}
    message = {
        "id": "r",
        "role": "user",
        "source": {"kind": "tool", "callId": call},
        "content": [inner] if content is None else content,
    }
    data |= {"turn": 1, "step": 1, "message": message}
    return {"type": "tool/result", "data": data, **placed(over)}


def placed(over: int | None) -> Any:
    """Give the surface members of an event: at the tail, or in the place of another one."""
    if over is None:
        return {"surfaceOp": "append"}
    op = {"op": "replace", "startSeq": over, "endSeq": over}
    return {"surfaceOp": op, "sourceEventSeqs": [over]}


NOT_STARTED = {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}


def forked_result() -> Any:
    event = result(error=NOT_STARTED)
    event["data"]["message"]["id"] = "forked-tool-result-c-4"
    return event


def title(source: Any) -> tuple[Any, ...]:
    message = user("t")["data"] | {"source": source}
    data = {"messageSeqs": [3], "messages": [message]}
    head = (turn("start"), step("start"), system(), user())
    return *head, {"type": "session/title-llm-request", "data": data}


def checkpoint(source: Any) -> tuple[Any, ...]:
    """Give a message over another one, outside any compaction."""
    head = (turn("start"), step("start"), system(), user())
    more = user("v", **placed(3))
    more["data"]["source"] = source
    return *head, more


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ((*asked(), result()), 1),
        ((*asked(), result("d")), 0),
        ((*asked(), result(content=[])), 1),
        ((*asked(), result(), result(content=[], over=5)), 1),
        ((*asked(started=False), result()), 0),
        ((*asked(started=False), forked_result()), 0),
        (title({"kind": "plugin", "plugin": "dsh-session-title-llm"}), 1),
        (title({"kind": "dsh-session-title-llm"}), 0),
        (checkpoint({"kind": "plugin", "plugin": "compact", "compactionId": "k"}), 0),
        (checkpoint({"kind": "compact-checkpoint"}), 1),
        (checkpoint({"kind": "plugin", "plugin": ["compact"]}), 1),
        (checkpoint({"kind": ""}), 1),
    ],
    ids=[
        "result",
        "other-call",
        "no-wrapper",
        "no-wrapper-over-result",
        "not-started",
        "forked",
        "title",
        "title-of-producer",
        "checkpoint",
        "checkpoint-of-producer",
        "plugin-that-is-no-string",
        "empty-kind",
    ],
)
def test_child_is_judged_by_the_lifecycle_alone(
    tmp_path: Path, rows: tuple[Any, ...], count: int
) -> None:
    """50 §8.6: the substitutions it names, and nothing that only edge 3 to 4 refuses (§7)."""
    write_session(tmp_path, "kid", child_text("kid", *rows, descriptor()), 3)
    found = ChildIndex.of(tmp_path).evidence("s0")
    assert [child.descriptor_count for child in found] == [count]


def test_index_refuses_two_logs_of_one_child(tmp_path: Path) -> None:
    for place in ("a", "b"):
        write_session(tmp_path / place, "kid", child_text("kid"), 3)
    with pytest.raises(IdentityError) as caught:
        ChildIndex.of(tmp_path).children("s0")
    assert caught.value.path is not None


def test_explicit_evidence_is_written(session: Path) -> None:
    """Issue, item 2: the explicit list."""
    migrate(session, children=[ChildEvidence("k", 3)])
    with dsh.open(session) as log:
        assert log[7].data == {
            "version": 1,
            "childId": "k",
            "childCreatedAt": 3,
            "mode": "unknown",
        }


# --- killed, and two at once ---

POINTS = ("stage", "verify", "link_staged")

KILLED = """
import os, sys
from dsh_codec.migrate import migrate, publish, staging
point, when, path = sys.argv[1:]
module = staging if hasattr(staging, point) and not hasattr(publish, point) else publish
call = getattr(module, point)
def die(*arguments, **named):
    if when == "after":
        call(*arguments, **named)
    os.kill(os.getpid(), 9)
setattr(module, point, die)
migrate(path, children=())
"""


@pytest.mark.crash
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_migration_leaves_the_whole_or_nothing(
    session: Path, point: str, when: str
) -> None:
    """Issue, item 3: leftovers have temporary names only, and repeating gives the same bytes."""
    source = session / "session.jsonl"
    before, content = identify_file(source), source.read_bytes()
    command = [sys.executable, "-c", KILLED, point, when, str(session)]
    ran = subprocess.run(command, check=False, capture_output=True)  # noqa: S603
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert (identify_file(source), source.read_bytes()) == (before, content)
    left = names(session) - {"session.jsonl", "session.lock"}
    assert all(name == TARGET or name.endswith(".tmp") for name in left)
    if TARGET in left:
        assert (
            dsh.check(session / TARGET, level="full", mode="strict").status == "sound"
        )
    migrate(source, children=())
    published = (session / TARGET).read_bytes()
    (session / TARGET).unlink()
    migrate(source, children=())
    assert (session / TARGET).read_bytes() == published


@pytest.mark.crash
def test_two_migrations_at_once_publish_one_log(session: Path) -> None:
    """Issue, item 3: one of them publishes, or both agree; never a mixture."""
    code = (
        "import sys\n"
        "from dsh_codec.errors import SessionLockedError\n"
        "from dsh_codec.migrate import migrate\n"
        "try:\n    print(migrate(sys.argv[1], children=()).is_new)\n"
        "except SessionLockedError:\n    print('locked')\n"
    )
    command = [sys.executable, "-c", code, str(session)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603
        for _ in range(4)
    ]
    said = [process.communicate()[0].decode().strip() for process in running]
    assert said.count("True") == 1
    assert set(said) <= {"True", "False", "locked"}
    assert names(session) == {"session.jsonl", TARGET, "session.lock"}
    assert dsh.check(session / TARGET, level="full").status == "sound"


@pytest.mark.parametrize("failing", ["fsync", "link"])
def test_system_error_leaves_nothing(
    session: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """A full disk or a file system without links: the error passes, the staging file goes."""

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space left") as caught:
        migrate(session, children=())
    assert caught.value.errno == errno.ENOSPC
    assert names(session) == {"session.jsonl", "session.lock"}
