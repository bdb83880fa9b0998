"""Writing logs. Spec: 10 §4.4, §8.4, §11."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import dsh_codec as dsh
from dsh_codec import kernel
from dsh_codec.async_writer import AsyncWriter
from dsh_codec.durable import OsFileSystem
from dsh_codec.writer import Writer
from fault_oracle import (
    HEADER,
    QUIET,
    STORED,
    FaultyFileSystem,
    append_as,
    judge,
    make_log,
    read,
    rows_of,
    session_events,
    state_of,
)
from small_logs import DEMO

if TYPE_CHECKING:
    from typing_extensions import Buffer

ALL = session_events(12)
SEEDED = {**HEADER, "id": "s-2", "parentSession": "s-1", "isSeeded": True}
MARKER = {
    "type": "session/end-seed",
    "seq": 0,
    "time": 1,
    "data": {"inherited": True},
}


class Clock:
    """A clock that tests set, in milliseconds."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms / 1000


class Recorder(OsFileSystem):
    """Keeps the steps with the last parts of their paths."""

    def __init__(self, base: Path) -> None:
        self.base, self.steps = base, list[str]()

    def _note(self, kind: str, path: str) -> None:
        place = os.path.relpath(path, self.base)
        if place.endswith(".tmp"):
            place = f"{place[:-16]}<12 digits>.tmp"
        self.steps.append(f"{kind} {place}")

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        self._note("create" if flags & os.O_EXCL else "open", path)
        return super().open(path, flags, mode)

    def write(self, descriptor: int, data: Buffer) -> int:
        self.steps.append("write")
        return super().write(descriptor, data)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self.steps.append(f"truncate {size_bytes}")
        super().truncate(descriptor, size_bytes)

    def sync(self, descriptor: int) -> None:
        self.steps.append("sync")
        super().sync(descriptor)

    def sync_directory(self, path: str) -> None:
        self._note("sync", path)
        super().sync_directory(path)

    def make_directory(self, path: str) -> None:
        self._note("mkdir", path)
        super().make_directory(path)

    def link(self, source: str, target: str) -> None:
        self._note("link", target)
        super().link(source, target)

    def unlink(self, path: str) -> None:
        self._note("unlink", path)
        super().unlink(path)

    def close(self, descriptor: int) -> None:
        self.steps.append("close")
        super().close(descriptor)


# --- creation (10 §11.1) ---


def test_creation_steps_in_order(tmp_path: Path) -> None:
    files = Recorder(tmp_path)
    writer = Writer.create(tmp_path / "root", HEADER, compression="none", files=files)
    assert not (tmp_path / "root").exists()
    with writer:
        writer.append(ALL[:2])
        created = list(files.steps)
        writer.append(ALL[2:3])
    session = "root/--w--/s-1"
    log = f"{session}/session.v4.jsonl"
    # The root is made on its way down, and each directory's parent is synced all the same.
    assert created == [
        "mkdir root",
        "sync .",
        "mkdir root",
        "sync .",
        "mkdir root/--w--",
        "sync root",
        f"mkdir {session}",
        "sync root/--w--",
        f"create {log}.<12 digits>.tmp",
        "write",
        "write",
        "sync",
        "close",
        f"link {log}",
        f"sync {session}",
        f"unlink {log}.<12 digits>.tmp",
    ]
    assert files.steps[len(created) :] == [f"open {log}", "write", "sync", "close"]
    path = tmp_path / log
    assert path.stat().st_mode & 0o777 == 0o600
    for directory in (path.parent, path.parent.parent, tmp_path / "root"):
        assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("stored", STORED)
def test_created_log_is_read_back(tmp_path: Path, stored: Any) -> None:
    path = make_log(tmp_path, [ALL[:5], ALL[5:6], ALL[6:10]], stored)
    report = dsh.check(path, level="full", mode="strict")
    assert report.is_sound
    assert report.scan is not None
    # Spec 10 §7.2: creation writes the header frame; then one frame a batch.
    assert report.scan.frame_count == (4 if stored == "zstd" else None)
    assert read(path) == ALL[:10]


def test_bytes_are_those_of_the_harness_format(tmp_path: Path) -> None:
    """Spec 70 §1: frame 0 is the header line, one frame a batch, level 3."""
    path = make_log(tmp_path, [ALL[:2], ALL[2:5]])
    header = (
        b'{"type":"session","version":4,"id":"s-1","createdAt":1000,"cwd":"/w",'
        b'"isSeeded":false,"delegationDepth":0}\n'
    )
    lines = [kernel.encode_event(event) + b"\n" for event in ALL[:5]]
    batches = [header, b"".join(lines[:2]), b"".join(lines[2:])]
    assert path.read_bytes() == b"".join(map(kernel.encode_frame, batches))


def test_nothing_is_made_without_a_batch(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with Writer.create(root, HEADER) as writer:
        assert writer.append([]) == 0
    assert not root.exists()
    with Writer.create(root, HEADER) as writer:
        writer.flush()
    assert read(writer.path) == []


def test_creation_of_a_session_that_exists_is_refused(tmp_path: Path) -> None:
    """Spec 10 §11.1 step 4: any canonical generation, any encoding."""
    path = make_log(tmp_path, [ALL[:2]])
    before = state_of(path)
    for stored in STORED:
        with (
            Writer.create(tmp_path, HEADER, compression=stored) as writer,
            pytest.raises(FileExistsError) as refusal,
        ):
            writer.append(ALL[:2])
        assert refusal.value.filename == str(path)
    path.rename(path.with_name("session.jsonl"))
    with Writer.create(tmp_path, HEADER) as writer, pytest.raises(FileExistsError):
        writer.append(ALL[:2])
    assert state_of(path.with_name("session.jsonl"))[0] == before[0]


def test_id_in_another_project_is_refused(tmp_path: Path) -> None:
    """Spec 10 §10: more than one hit for an id is an error, so the second is not made."""
    path = make_log(tmp_path, [ALL[:2]])
    with (
        Writer.create(tmp_path, {**HEADER, "cwd": "/other"}) as writer,
        pytest.raises(dsh.IdentityError) as refusal,
    ):
        writer.append(ALL[:2])
    assert refusal.value.path == str(path.parent)


@pytest.mark.parametrize(
    "header",
    [
        {**HEADER, "createdAt": -1},
        {**HEADER, "cwd": "relative"},
        {**HEADER, "more": 1},
        {**HEADER, "version": 3},
        {"id": "s"},
    ],
)
def test_bad_header_is_refused_before_anything(
    tmp_path: Path, header: dict[str, Any]
) -> None:
    with pytest.raises(dsh.HeaderError):
        Writer.create(tmp_path / "root", header)
    assert not (tmp_path / "root").exists()


def test_empty_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty session id"):
        Writer.create(tmp_path, {**HEADER, "id": ""})


def test_failed_creation_can_be_tried_again(tmp_path: Path) -> None:
    files = FaultyFileSystem("link", 1)
    with Writer.create(tmp_path, HEADER, files=files) as writer:
        with pytest.raises(OSError, match="Input/output"):
            writer.append(ALL[:2])
        assert writer.next_seq == 0
        writer.append(ALL[:2])
    assert read(writer.path) == ALL[:2]


# --- seeded sessions (10 §4.4) ---


def test_seeded_session_begins_with_the_inherited_events(tmp_path: Path) -> None:
    inherited = [*ALL[:5], {**MARKER, "seq": 5, "time": 1004}]
    with Writer.create(tmp_path, SEEDED) as writer:
        with pytest.raises(dsh.RowError) as refusal:
            writer.append(ALL[:5])
        assert refusal.value.rule == "10 §4.4"
        with pytest.raises(dsh.RowError):
            writer.flush()
        assert not Path(writer.path).exists()
        writer.append(inherited)
    with dsh.open(writer.path) as log:
        assert len(log) == 6
        assert log.scan().scan.inherited_event_count == 5


def test_inherited_events_may_be_buffered(tmp_path: Path) -> None:
    clock = Clock()
    with Writer.create(tmp_path, SEEDED, clock=clock) as writer:
        writer.enqueue(ALL[:3])
        clock.now_ms = 1000
        assert not writer.flush_if_due()
        writer.enqueue([*ALL[3:5], {**MARKER, "seq": 5}])
        assert writer.stored_count == 6


def test_marker_in_a_session_that_is_not_seeded_is_refused(tmp_path: Path) -> None:
    with Writer.create(tmp_path, HEADER) as writer, pytest.raises(dsh.RowError):
        writer.append([MARKER])
    assert not Path(writer.path).exists()


# --- append (10 §11.2) ---

BAD_EVENTS: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "gap": ({**ALL[2], "seq": 3}, dsh.SeqGapError),
    "repeat": ({**ALL[2], "seq": 1}, dsh.SeqGapError),
    "no seq": ({"type": "turn/end", "time": 1, "data": {}}, dsh.SeqGapError),
    "no data": ({"type": "turn/end", "seq": 2, "time": 1}, dsh.RowError),
    "type": ({**ALL[2], "type": 1}, dsh.RowError),
    "time": ({**ALL[2], "time": 1.5}, dsh.RowError),
    "extra key": ({**ALL[2], "more": 1}, dsh.RowError),
    "ignorable": ({**ALL[2], "ignorable": False}, dsh.RowError),
    "marker": (
        {"type": "session/end-seed", "seq": 2, "time": 1, "data": 1},
        dsh.RowError,
    ),
    "-0": ({"type": "todo/write", "seq": 2, "time": 1, "data": [-0.0]}, dsh.RowError),
    "-0 in a tuple": (
        {"type": "todo/write", "seq": 2, "time": 1, "data": (1, -0.0)},
        dsh.RowError,
    ),
    "infinite": (
        {"type": "todo/write", "seq": 2, "time": 1, "data": {"a": float("inf")}},
        dsh.RowError,
    ),
    "not a number": (
        {"type": "todo/write", "seq": 2, "time": 1, "data": [{"a": float("nan")}]},
        dsh.RowError,
    ),
    "integer without a double": (
        {"type": "todo/write", "seq": 2, "time": 1, "data": [2**53 + 1, "a"]},
        dsh.RowError,
    ),
    "admission C1": (
        {"type": "tool/code-dispatch", "seq": 2, "time": 1, "data": {}},
        dsh.UnsupportedError,
    ),
    "admission A2": (
        {"type": "user/message", "seq": 2, "time": 1, "data": {"role": "developer"}},
        dsh.RowError,
    ),
    "sources": ({**ALL[2], "sourceEventSeqs": [2]}, dsh.RowError),
    "sources as ranges": ({**ALL[2], "sourceEventSeqs": [[0, 1]]}, dsh.RowError),
    "no JSON": ({"type": "todo/write", "seq": 2, "time": 1, "data": {1, 2}}, TypeError),
    "no object": ({**ALL[2], "data": {3: 4}}, TypeError),
}


@pytest.mark.parametrize("name", BAD_EVENTS)
@pytest.mark.parametrize("stored", STORED)
def test_bad_event_refuses_the_whole_batch(
    tmp_path: Path, stored: Any, name: str
) -> None:
    """Spec 10 §11.2: before anything is written."""
    event, error = BAD_EVENTS[name]
    path = make_log(tmp_path, [ALL[:1]], stored)
    with Writer.open(path) as writer:
        before = state_of(path)
        with pytest.raises(error) as refusal:
            writer.append([ALL[1], event])
        assert state_of(path) == before
        if isinstance(refusal.value, dsh.DshCodecError):
            assert refusal.value.seq == 2
        assert writer.next_seq == 1
        writer.append(ALL[1:3])
    assert read(path) == ALL[:3]


# --- rules over the whole log (30 §7 to §10) ---

UNFIT = [
    ({"type": "turn/start", "data": {"turn": "a"}}, "read", "L2.turn-start"),
    ({"type": "turn/end", "data": {"turn": 7}}, "read", "L2.turn-end"),
    ({"type": "x/unknown", "data": {}}, "read", "V1"),
    (
        {"type": "request/header", "data": {"header": {"config": {}}}},
        "restore",
        "L4.request-header",
    ),
]


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize(("event", "level", "rule"), UNFIT)
def test_batch_that_does_not_fit_the_log_is_refused_where_asked(
    tmp_path: Path, stored: Any, event: dict[str, Any], level: Any, rule: str
) -> None:
    bad = {**event, "seq": 4, "time": 1}
    path = make_log(tmp_path / "plain", [ALL[:4], [bad]], stored)
    found = dsh.check(path, level=level)
    assert [finding.rule for finding in found.findings][:1] == [rule]
    with Writer.create(
        tmp_path / "new", HEADER, compression=stored, files=QUIET, check=level
    ) as writer:
        for _ in range(2):  # Whatever was refused has left nothing behind.
            writer.append(ALL[writer.next_seq : writer.next_seq + 2])
            with pytest.raises(dsh.DshCodecError) as caught:
                writer.append([{**bad, "seq": writer.next_seq}])
            assert (caught.value.rule, caught.value.path) == (rule, writer.path)
            with pytest.raises(dsh.DshCodecError) as caught:
                writer.append_rows(
                    kernel.encode_events(
                        [{**bad, "seq": writer.next_seq}], writer.next_seq
                    ).text
                )
            assert (caught.value.rule, caught.value.path) == (rule, writer.path)
        assert writer.append(ALL[4:]) == len(ALL)
    with Writer.open(writer.path, files=QUIET, check=level) as again:
        with pytest.raises(dsh.DshCodecError):
            again.append([{**bad, "seq": len(ALL)}])
        assert again.next_seq == len(ALL)
    assert dsh.check(writer.path, level=level).is_sound
    assert read(Path(writer.path)) == ALL


def test_check_of_batches_counts_what_is_held_back(tmp_path: Path) -> None:
    with Writer.create(
        tmp_path, HEADER, files=QUIET, window_ms=1e9, check="read"
    ) as writer:
        writer.enqueue(ALL[:1])
        for _ in range(2):
            with pytest.raises(dsh.RowError, match=r"L2\.turn-start"):
                writer.enqueue([{**ALL[0], "seq": writer.next_seq}])
            writer.enqueue([ALL[writer.next_seq]])
        assert writer.stored_count == 0
    assert read(Path(writer.path)) == ALL[:3]


@pytest.mark.parametrize("check", ["scan", "read", "full"])
def test_batch_that_the_system_refused_can_be_tried_again(
    tmp_path: Path, check: Any
) -> None:
    files = FaultyFileSystem("write", 3)  # Header, first batch, second batch.
    with Writer.create(tmp_path, HEADER, files=files, check=check) as writer:
        writer.append(ALL[:2])
        with pytest.raises(OSError, match="Input/output error"):
            writer.append(ALL[2:4])
        writer.append(ALL[2:5])
    assert dsh.check(writer.path, level="full").is_sound
    assert read(Path(writer.path)) == ALL[:5]


def test_check_of_batches_sees_what_a_reader_sees(tmp_path: Path) -> None:
    """A number that is no whole one in Python is one in the log."""
    with Writer.create(tmp_path, HEADER, files=QUIET, check="restore") as writer:
        writer.append([{**ALL[0], "data": {"turn": 1.0}}, *ALL[1:5]])
    assert dsh.check(writer.path, level="restore").is_sound


def test_level_of_the_check_is_one_of_four(tmp_path: Path) -> None:
    level: Any = "deep"
    with pytest.raises(ValueError, match="check is one of"):
        Writer.create(tmp_path, HEADER, check=level)


def test_open_refuses_what_its_level_refuses(tmp_path: Path) -> None:
    event, _, rule = UNFIT[-1]
    path = make_log(tmp_path, [ALL[:4], [{**event, "seq": 4, "time": 1}]])
    Writer.open(path).close()
    with pytest.raises(dsh.CorruptLogError) as caught:
        Writer.open(path, check="restore")
    assert caught.value.rule == rule


def test_sources_are_written_as_ranges(tmp_path: Path) -> None:
    """Spec 10 §6."""
    path = make_log(tmp_path, [ALL[:5]])
    event = {**ALL[5], "sourceEventSeqs": [0, 1, 2, 4]}
    with Writer.open(path) as writer:
        writer.append([event])
    with dsh.open(path) as log:
        assert b'"sourceEventSeqs":[[0,2],4]' in log[5].raw
        assert log[5].source_event_seqs == [0, 1, 2, 4]


def test_limits_are_kept(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:1]])
    with Writer.open(path, max_row_bytes=500) as writer:
        with pytest.raises(dsh.LimitExceededError) as refusal:
            writer.append(
                [{"type": "todo/write", "seq": 1, "time": 1, "data": "a" * 500}]
            )
        assert refusal.value.limit == "max_row_bytes"
        deep: Any = []
        for _ in range(3000):
            deep = [deep]
        with pytest.raises(dsh.LimitExceededError):
            writer.append([{"type": "todo/write", "seq": 1, "time": 1, "data": deep}])
        loop: list[Any] = []
        loop.append(loop)
        with pytest.raises(dsh.LimitExceededError):
            writer.append([{"type": "todo/write", "seq": 1, "time": 1, "data": loop}])
    assert read(path) == ALL[:1]


@pytest.mark.parametrize("stored", STORED)
def test_torn_tail_is_cut_by_the_first_batch_and_not_before(
    tmp_path: Path, stored: Any
) -> None:
    """Spec 10 §8.4: truncate, sync; recovered rows, sync; the batch, sync."""
    path = make_log(tmp_path, [ALL[:2], ALL[2:5]], stored)
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    before = state_of(path)
    files = Recorder(path.parent)
    with Writer.open(path, files=files) as writer:
        assert writer.append([]) == writer.next_seq
        assert state_of(path) == before
        assert files.steps == []
        count, cut = writer.recovered_count, writer.truncate_to
        assert cut is not None
        assert (count, writer.next_seq) == ((3, 5) if stored == "zstd" else (0, 4))
        writer.append(ALL[writer.next_seq : 7])
        assert writer.truncate_to is None
    again = ["write", "sync"] if stored == "zstd" else []
    # Whoever made the file may not have lived to sync its name.
    again = ["sync .", *again]
    assert files.steps == [
        f"open {path.name}",
        f"truncate {cut}",
        "sync",
        *again,
        "write",
        "sync",
        "close",
    ]
    assert read(path) == ALL[:7]
    if stored == "zstd":
        assert path.read_bytes().startswith(whole)


def test_recovered_rows_keep_their_bytes(tmp_path: Path) -> None:
    """A row that another writer spelled otherwise is copied as it is."""
    path = make_log(tmp_path, [ALL[:1]])
    line = (
        b'{ "seq":1, "type":"step/start","time":1001.0,"data":{"turn":1,"step":1} }\r\n'
    )
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + kernel.encode_frame(line)[:-1])
    with Writer.open(path) as writer:
        assert writer.truncate_to == size
        writer.repair_tail()
    assert path.read_bytes()[size:] == kernel.encode_frame(line)


def test_file_that_somebody_else_changed_is_left_alone(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:2]])
    with Writer.open(path) as writer:
        with path.open("ab") as other:
            other.write(b"x")
        before = state_of(path)
        with pytest.raises(dsh.IdentityError) as refusal:
            writer.append(ALL[2:3])
        assert refusal.value.path == str(path)
        with pytest.raises(OSError, match="somebody else"):
            writer.append(ALL[2:3])
        assert state_of(path) == before


def test_file_that_was_replaced_is_left_alone(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:2]])
    with Writer.open(path) as writer:
        writer.append(ALL[2:3])
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(dsh.IdentityError):
            writer.append(ALL[3:4])
        path.write_bytes(data)
    assert path.read_bytes() == data


def test_without_sync_a_batch_looks_at_the_size_and_a_flush_at_the_name(
    tmp_path: Path,
) -> None:
    """Nothing is called durable that is not under the name of the log."""
    for name, change, is_seen_by_append in (
        ("longer", lambda path: path.write_bytes(path.read_bytes() + b"x"), True),
        ("shorter", lambda path: os.truncate(path, path.stat().st_size - 1), True),
        ("removed", lambda path: path.unlink(), False),
        ("moved", lambda path: path.rename(path.with_name("moved")), False),
    ):
        path = make_log(tmp_path / name, [ALL[:2]])
        writer = Writer.open(path, durable=False)
        writer.append(ALL[2:3])
        change(path)
        if is_seen_by_append:
            with pytest.raises(dsh.IdentityError):
                writer.append(ALL[3:4])
            with pytest.raises(OSError, match="somebody else"):
                writer.flush()
        else:
            writer.append(ALL[3:4])
            with pytest.raises(dsh.IdentityError) as refusal:
                writer.flush()
            assert refusal.value.path == str(path)
        assert not writer.is_usable
        writer.close()
        assert not list(path.parent.glob("*.tmp"))


def test_closing_without_sync_tells_that_the_log_is_gone(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:2]])
    writer = Writer.open(path, durable=False)
    writer.append(ALL[2:3])
    path.unlink()
    with pytest.raises(dsh.IdentityError):
        writer.close()
    assert writer.is_closed


# --- opening (10 §9, §10) ---


def test_open_refuses_what_a_reader_refuses_and_changes_nothing(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:5]])
    data = path.read_bytes()
    end = {"type": "turn/end", "seq": 5, "time": 1, "data": {"turn": 9}}
    bad_rule = kernel.encode_frame(kernel.encode_event(end) + b"\n")
    unknown = kernel.encode_frame(b'{"type":"x/y","seq":5,"time":1,"data":{}}\n')
    for tail, error in (
        (b"\x50\x2a\x4d\x18\x04\0\0\0abcd", dsh.FrameError),
        (bad_rule, dsh.RowError),
        (unknown, dsh.UnsupportedError),
    ):
        path.write_bytes(data + tail)
        before = state_of(path)
        with pytest.raises(error) as refusal:
            Writer.open(path)
        assert getattr(refusal.value, "path", None) == str(path)
        assert state_of(path) == before
    path.write_bytes(data)
    Writer.open(path).close()


@pytest.mark.parametrize("name", ["v0", "v1", "v2", "v3"])
def test_older_generation_has_to_be_migrated(name: str, tmp_path: Path) -> None:
    (source,) = (DEMO / name).iterdir()
    path = tmp_path / source.name
    path.write_bytes(source.read_bytes())
    with pytest.raises(dsh.UnsupportedError, match="migrate"):
        Writer.open(tmp_path)


def test_only_the_highest_generation_is_written(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:2]])
    newer = path.with_name("session.v5.jsonl.zstd")
    newer.write_bytes(b"?")
    with pytest.raises(dsh.LayoutError):
        Writer.open(path)
    newer.unlink()
    path.with_name("session.jsonl.zstd").write_bytes(b"?")
    Writer.open(path).close()


def test_open_asks_for_the_id(tmp_path: Path) -> None:
    path = make_log(tmp_path, [ALL[:2]])
    with pytest.raises(dsh.IdentityError):
        Writer.open(path.parent, session_id="other")
    with Writer.open(path.parent, session_id="s-1") as writer:
        assert writer.path == str(path)
        assert writer.header["id"] == "s-1"
    with pytest.raises(FileNotFoundError):
        Writer.open(tmp_path / "none")


def test_closed_writer_takes_nothing(tmp_path: Path) -> None:
    writer = Writer.open(make_log(tmp_path, [ALL[:2]]))
    writer.close()
    writer.close()
    for call in (writer.flush, lambda: writer.append(ALL[2:3]), writer.repair_tail):
        with pytest.raises(ValueError, match="closed"):
            call()


# --- batching (10 §11.2) ---


def test_window_gathers_events_into_one_batch(tmp_path: Path) -> None:
    clock = Clock()
    path = make_log(tmp_path, [])
    with Writer.open(path, clock=clock) as writer:
        assert writer.due_in_ms is None
        writer.enqueue(ALL[:1])
        clock.now_ms = 150
        assert writer.enqueue(ALL[1:3]) == 3
        assert (writer.stored_count, writer.buffered_count) == (0, 3)
        assert writer.due_in_ms == pytest.approx(50)
        assert not writer.flush_if_due()
        with pytest.raises(dsh.SeqGapError):
            writer.enqueue(ALL[2:3])
        clock.now_ms = 200
        assert writer.flush_if_due()
        assert writer.stored_count == 3
        writer.enqueue(ALL[3:4])
        writer.append(ALL[4:5])
        writer.enqueue(ALL[5:6])
    assert dsh.kernel.scan_frames(path.read_bytes()).frames[5:] == []
    assert len(dsh.kernel.scan_frames(path.read_bytes()).frames) == 5
    assert read(path) == ALL[:6]


def test_batch_that_fails_stays_buffered(tmp_path: Path) -> None:
    path = make_log(tmp_path, [])
    with Writer.open(path, files=FaultyFileSystem("write", 1)) as writer:
        writer.enqueue(ALL[:3])
        with pytest.raises(OSError, match="Input/output"):
            writer.flush()
        assert (writer.buffered_count, writer.next_seq) == (3, 3)
        writer.flush()
    assert read(path) == ALL[:3]


def test_writer_without_syncs_does_them_at_the_end(tmp_path: Path) -> None:
    path = make_log(tmp_path, [])
    files = Recorder(path.parent)
    with Writer.open(path, files=files, durable=False) as writer:
        writer.append(ALL[:1])
        writer.append(ALL[1:2])
        assert "sync" not in files.steps
        writer.flush()
        assert files.steps.pop() == "sync"
    assert files.steps[-2:] == ["sync", "close"]


# --- rows that are text already ---


@pytest.mark.parametrize("stored", STORED)
def test_rows_give_the_bytes_of_their_events(tmp_path: Path, stored: Any) -> None:
    """Spec 10 §11.2: one batch, one frame; buffered events come first."""
    batches = [ALL[:2], ALL[2:6]]
    expected = make_log(tmp_path / "events", [*batches, ALL[6:7], ALL[7:]], stored)
    root = tmp_path / "rows"
    with Writer.create(root, HEADER, compression=stored, files=QUIET) as writer:
        writer.flush()
        for batch in batches:
            assert writer.append_rows(rows_of(batch)) == batch[-1]["seq"] + 1
        writer.enqueue(ALL[6:7])
        assert writer.append_rows(b"") == 7
        assert writer.buffered_count == 1
        writer.append_rows(memoryview(rows_of(ALL[7:])[:-1]))
    assert Path(writer.path).read_bytes() == expected.read_bytes()


@pytest.mark.parametrize("stored", STORED)
def test_refused_rows_leave_the_log_as_it_is(tmp_path: Path, stored: Any) -> None:
    path = make_log(tmp_path, [ALL[:2]], stored)
    before = state_of(path)
    good = rows_of(ALL[2:4])
    with Writer.open(path) as writer:
        for bad, error in (
            (good + b'{"torn', dsh.CorruptLogError),
            (good + b"\n", dsh.CorruptLogError),
            (good + rows_of(ALL[5:6]), dsh.SeqGapError),
            (
                good + b'{"type":"tool/code-dispatch","seq":4,"time":1,"data":{}}',
                dsh.UnsupportedError,
            ),
        ):
            with pytest.raises(error) as refusal:
                writer.append_rows(bad)
            assert refusal.value.path == str(path)
            assert refusal.value.seq == 4
        with pytest.raises(dsh.RowError, match="inherited"):
            writer.append_rows(good + rows_of([{**MARKER, "seq": 4}]))
        assert writer.next_seq == 2
        assert state_of(path) == before
        assert writer.append_rows(good) == 4
    with pytest.raises(ValueError, match="closed"):
        writer.append_rows(good)
    judge(path, ALL[:4], [])


def test_rows_in_another_spelling_are_respelled(tmp_path: Path) -> None:
    """Spec 10 §1.1, 70 §1: what is on disk is what the harness would write."""
    path = make_log(tmp_path, [ALL[:2]], "none")
    odd = b'{ "type": "turn/end",\t"seq":2.0, "time":1e3, "data":{"b":"\\u0041","1":1} }\r\n'
    with Writer.open(path) as writer:
        writer.append_rows(odd)
    row = b'{"type":"turn/end","seq":2,"time":1000,"data":{"1":1,"b":"A"}}\n'
    assert path.read_bytes().endswith(rows_of(ALL[1:2]) + row)


def test_rows_through_asyncio(tmp_path: Path) -> None:
    async def run() -> None:
        async with await AsyncWriter.create(tmp_path, HEADER) as writer:
            assert await writer.append_rows(rows_of(ALL[:2])) == 2
            with pytest.raises(dsh.SeqGapError):
                await writer.append_rows(rows_of(ALL[3:4]))
            path = writer.writer.path
        assert read(path) == ALL[:2]

    asyncio.run(run())


# --- settlements (30 §4, §10) ---


def text_chunks() -> list[dsh.TimedChunk]:
    """One text block with its usage and finish reason."""
    chunks: list[dict[str, Any]] = [
        {"type": "block-start", "index": 0, "blockType": "text"},
        {"type": "text-delta", "index": 0, "text": "Hel"},
        {"type": "text-delta", "index": 0, "text": "lo"},
        {"type": "block-end", "index": 0, "block": {"type": "text", "text": "Hello"}},
        {"type": "usage", "usage": {"inputTokens": 1, "outputTokens": 2}},
        {"type": "finish", "reason": {"kind": "stop"}},
    ]
    return [dsh.TimedChunk(1003 + at, chunk) for at, chunk in enumerate(chunks)]


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_settlement_from_a_packer_passes_level_full(
    tmp_path: Path, *, is_interrupted: bool
) -> None:
    packer = dsh.Packer()
    packer.extend(text_chunks())
    here: dict[str, Any] = {"turn": 1, "step": 1, "time_ms": 1010}
    with Writer.create(tmp_path, HEADER) as writer:
        writer.append(ALL[:2])
        assert writer.append_settlement(packer, **here) == 2
        with pytest.raises(ValueError, match="provider"):
            writer.append_settlement(packer, **here, message_id="m")
        made: dict[str, Any] = {"message_id": "m-1", "provider": "p", "model": "x"}
        made |= {"is_interrupted": is_interrupted}
        assert writer.append_settlement(packer.snapshot(), **here, **made) == 3
    report = dsh.check(writer.path, level="full", mode="strict")
    assert report.is_sound, report.findings
    with dsh.open(writer.path) as log:
        attempt, message = log[2:4]
        assert attempt.type == "assistant/attempt"
        assert list(attempt.data) == ["turn", "step", "stream"]
        assert message.data["message"]["content"] == [{"type": "text", "text": "Hello"}]
        assert message.data["usage"] == {"inputTokens": 1, "outputTokens": 2}
        assert message.data.get("interrupted") is (True if is_interrupted else None)


# --- asyncio ---


def test_async_writer_flushes_after_its_window(tmp_path: Path) -> None:
    path = make_log(tmp_path, [])

    async def run() -> None:
        async with await AsyncWriter.open(path, window_ms=5) as writer:
            await writer.enqueue(ALL[:2])
            deadline = time.monotonic() + 30
            while writer.writer.stored_count < 2:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.001)
            await asyncio.gather(
                writer.append(ALL[2:4]), writer.append(ALL[4:6]), writer.flush()
            )
            assert writer.next_seq == 6
            with pytest.raises(dsh.SessionLockedError):
                await AsyncWriter.open(path)
            await writer.enqueue(ALL[6:7])
        await writer.close()

    asyncio.run(run())
    assert read(path) == ALL[:7]


def test_async_writer_does_not_block_the_loop(tmp_path: Path) -> None:
    class Slow(OsFileSystem):
        def sync(self, descriptor: int) -> None:
            del descriptor
            assert not gate.wait(0.2)

    import threading

    gate = threading.Event()

    async def run() -> None:
        root = tmp_path / "root"
        async with await AsyncWriter.create(root, HEADER, files=Slow()) as writer:
            task = asyncio.create_task(writer.append(ALL[:1]))
            turns = 0
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns > 10
            packer = dsh.Packer()
            packer.extend(text_chunks())
            await writer.append(ALL[1:2])
            await writer.append_settlement(packer, turn=1, step=1, time_ms=1)

    asyncio.run(run())


def test_async_writer_reports_a_flush_that_failed(tmp_path: Path) -> None:
    path = make_log(tmp_path, [])

    async def run() -> None:
        files = FaultyFileSystem("write", 1)
        writer = await AsyncWriter.open(path, window_ms=0, files=files)
        with pytest.raises(OSError, match="Input/output"):
            await writer.enqueue(ALL[:1])
        files = FaultyFileSystem("write", 1)
        await writer.close()
        writer = await AsyncWriter.open(path, window_ms=1, files=files)
        await writer.enqueue(ALL[writer.next_seq : writer.next_seq + 1])
        deadline = time.monotonic() + 30
        while not files.has_failed:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)
        with pytest.raises(OSError, match="Input/output"):
            await writer.flush()
        await writer.close()

    asyncio.run(run())
    assert read(path) == ALL[:2]


# --- the model is a list ---


class WriterMachine(RuleBasedStateMachine):
    """Appends, refusals, faults, torn writes and reopenings against a list of events."""

    events = session_events(400)

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.place = tempfile.TemporaryDirectory()
        self.stored: list[dict[str, Any]] = []
        self.flying: list[dict[str, Any]] = []
        self.buffered: list[dict[str, Any]] = []
        self.clock = Clock()
        self.writer: Writer | None = Writer.create(
            Path(self.place.name) / "root", HEADER, clock=self.clock, files=QUIET
        )
        self.path = Path(self.writer.path)

    def _next(self, count: int) -> list[dict[str, Any]]:
        known = len(self.stored) + len(self.buffered)
        return self.events[known : known + count]

    @rule(count=st.integers(0, 7), way=st.sampled_from(["events", "rows"]))
    def append(self, count: int, way: str) -> None:
        batch = self._next(count)
        if self.writer is not None:
            append_as(self.writer, way, batch)
            if batch:
                self.stored += self.buffered + batch
                self.buffered = []

    @rule(count=st.integers(1, 3), wait_ms=st.integers(0, 250))
    def enqueue(self, count: int, wait_ms: int) -> None:
        if self.writer is not None:
            self.buffered += self._next(count)
            start = len(self.stored) + self.writer.buffered_count
            self.writer.enqueue(self.events[start : start + count])
            self.clock.now_ms += wait_ms
            self.writer.flush_if_due()
            if not self.writer.buffered_count:
                self.stored += self.buffered
                self.buffered = []

    @rule(offset=st.sampled_from([-1, 1, 5]))
    def append_with_gap(self, offset: int) -> None:
        if self.writer is not None:
            batch = [{**event, "seq": event["seq"] + offset} for event in self._next(2)]
            with pytest.raises(dsh.SeqGapError):
                self.writer.append(batch)
            with pytest.raises(dsh.SeqGapError):
                self.writer.append_rows(rows_of(batch))

    @rule()
    def second_writer(self) -> None:
        if self.writer is not None and self.path.exists() and self.stored:
            with pytest.raises(dsh.SessionLockedError):
                Writer.open(self.path)

    @rule()
    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.stored += self.buffered
            self.buffered = []
            self.writer = None

    @precondition(lambda self: self.writer is None and self.path.exists())
    @rule()
    def reopen(self) -> None:
        self.writer = Writer.open(self.path, clock=self.clock, files=QUIET)
        known = self.writer.next_seq
        self.stored += self.flying[: known - len(self.stored)]
        assert known == len(self.stored)
        self.flying = []

    @precondition(lambda self: self.writer is None and self.path.exists())
    @rule(share=st.floats(0, 1), count=st.integers(1, 6))
    def torn_write(self, share: float, count: int) -> None:
        if self.flying:
            return
        with Writer.open(self.path, files=QUIET) as writer:
            writer.repair_tail()
            size = self.path.stat().st_size
            batch = self._next(count)
            writer.append(batch)
        data = self.path.read_bytes()
        cut = size + int(share * (len(data) - size))
        self.path.write_bytes(data[:cut])
        if cut == len(data):
            self.stored += batch
        else:
            self.flying = batch

    @invariant()
    def log_is_the_list(self) -> None:
        if self.path.exists():
            judge(self.path, self.stored, self.flying)

    def teardown(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.place.cleanup()


WriterMachine.TestCase.settings = settings(
    max_examples=12,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestWriterMachine = WriterMachine.TestCase
