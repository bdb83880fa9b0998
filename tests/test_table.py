"""Tables of sessions, calls, chunks and events. Spec: 80."""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import dsh_codec as dsh
from dsh_codec import log as log_module, table
from dsh_codec.corpus import own_from
from dsh_codec.table import SkippedSessionsWarning
from dsh_codec.table_chunks import KINDS
from dsh_codec.values import fuse
from session_files import Session, attempt, call, event, text_run
from small_logs import DEMO, HEADER, HEADER_V0, PLAIN, SHARED, zstd
from test_columns import is_token, streams

if TYPE_CHECKING:
    from collections.abc import Iterable

QUICK = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SECRET = "the secret"  # noqa: S105 - it stands for content
FULL = (..., "text", "text_wtf8")
TABLES = {
    "sessions": table.sessions,
    "calls": table.calls,
    "chunks": table.chunks,
    "events": table.events,
}
CORPUS = Path(os.environ.get("DSH_CORPUS", SHARED / "corpus" / "real"))
SHARED_CASES = Path(os.environ.get("DSH_CASES", SHARED / "cases"))
LOGS = sorted(path for path in DEMO.rglob("*") if path.is_file()) + sorted(
    CORPUS.rglob("*.jsonl*")
)
CASES = sorted(path.parent for path in SHARED_CASES.glob("*/case.json"))


def rows_of(found: table.Table) -> list[dict[str, Any]]:
    """Return the rows of a table, moments as milliseconds."""
    read = pa.table(found)
    for place, field in enumerate(read.schema):
        if pa.types.is_timestamp(field.type):
            assert field.type == pa.timestamp("ms", "UTC")
            column = read.column(place).cast(pa.int64())
            read = read.set_column(place, field.name, column)
    rows: list[dict[str, Any]] = read.to_pylist()
    return rows


def sound(text: str) -> str:
    """Return text as Arrow can hold it: U+FFFD for what is no character."""
    return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in fuse(text))


# --- what tables have to say, by the Python API ---


def expected_chunks(log: dsh.Log) -> list[dict[str, Any]]:
    rows = []
    attempts = list(log.attempts())
    cut = own_from(log)
    for found in attempts:
        last = None
        head = {
            "session": log.id,
            "seq": found.seq,
            "turn": found.turn,
            "step": found.step,
            "attempt": found.number,
            "outcome": found.outcome,
            "own": found.seq >= cut,
        }
        for position, record in enumerate(found.stream.records):
            for time, chunk in dsh.expand([record]):
                kind = chunk.get("type")
                token = is_token(dsh.kernel, chunk)
                text = chunk.get(
                    "argumentsDelta" if kind == "tool-call-delta" else "text"
                )
                text = text if isinstance(text, str) and kind in KINDS[:3] else ""
                wtf8 = fuse(text).encode("utf-8", "surrogatepass")
                rows.append(
                    head
                    | {
                        "record": position,
                        "index": chunk.get("index"),
                        "kind": kind if kind in KINDS else "other",
                        "time": time,
                        "token": token,
                        "gap": time - last if token and last is not None else None,
                        "byte_len": len(wtf8),
                        "text": sound(text),
                        "text_wtf8": wtf8,
                    }
                )
                last = time if token else last
    return rows


def expected_calls(found: Iterable[dsh.Call]) -> list[dict[str, Any]]:
    rows = []
    for each in found:
        row = each._asdict()
        row["tools"] = [tool._asdict() for tool in each.tools or ()]
        row["gaps"] = list(each.gaps or ())
        rows.append(row)
    return rows


def expected_events(log: dsh.Log) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    events = list(log)
    for found in events:
        is_first = not rows or rows[-1]["offset"] != found.offset
        rows.append(
            {
                "session": log.id,
                "seq": found.seq,
                "type": found.type,
                "time": found.time,
                "own": found.seq >= own_from(log),
                "row_bytes": len(found.raw) if is_first else 0,
                "offset": found.offset,
                "frame": found.frame,
                "data": found.data,
            }
        )
    return rows


@pytest.mark.parametrize(
    "path", LOGS, ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_tables_say_what_the_objects_say(path: Path) -> None:
    with dsh.open(path) as log:
        chunks = expected_chunks(log)
        assert rows_of(table.chunks(log, columns=FULL)) == chunks
        found = rows_of(table.events(log, columns=[..., "data"]))
        for row in found:
            row["data"] = json.loads(row["data"])
        assert found == expected_events(log)
        with_lists = table.calls(log, columns=[..., "tools", "gaps"], auxiliary=True)
        found = rows_of(with_lists)
        calls = dsh.calls(log, gaps=True, auxiliary=True)
        times = {event.seq: event.time for event in log}
        for row in found:
            assert row.pop("time") == times[row["seq"]]
        assert found == expected_calls(calls)


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_tables_of_the_cases_leave_out_what_cannot_be_read(folder: Path) -> None:
    """80 §1: one bad session stops nothing, and is named."""
    sessions = rows_of(table.sessions(folder, columns=[..., "error_message"]))
    expected = list(dsh.find(folder))
    assert [(row["path"], row["status"]) for row in sessions] == [
        (each.path, each.status) for each in expected
    ]
    for row, each in zip(sessions, expected, strict=True):
        assert (row["error"] is None) == (each.error is None)
        assert row["error_message"] == (each.error and str(each.error))
        assert row["session"] == each.id
    plain = dsh.calls(folder)
    calls = list(plain)
    chunks: list[Any] = []
    for each in dsh.find(folder):
        try:
            with dsh.open(each.path) as log:
                chunks += [] if each.error else expected_chunks(log)
        except (dsh.DshCodecError, OSError):
            continue
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = table.calls(folder)
        assert [row["seq"] for row in rows_of(found)] == [each.seq for each in calls]
        assert [e.path for e in found.errors] == [e.path for e in plain.errors]
        assert rows_of(table.chunks(folder, columns=FULL)) == chunks
        rows_of(table.events(folder))
    assert len(caught) == (3 if plain.errors else 0)


# --- sessions ---


def test_sessions_have_the_numbers_of_their_header_and_rows(tmp_path: Path) -> None:
    parent = Session("p", [event("turn/start", {"turn": 1})] * 3, cwd="/w/x")
    parent.write(tmp_path)
    child = Session("c", [], cwd="/w/x", agentPreset="a", delegationDepth=2)
    child.fork(parent, 2)
    path = child.write(tmp_path)
    path.with_name("session.v3.jsonl").write_bytes(b"old")
    found = rows_of(
        table.sessions(
            tmp_path, columns=[..., "event_count", "own_from", "first_ms", "last_ms"]
        )
    )
    assert [row["session"] for row in found] == ["c", "p"]
    assert found[0] == {
        "session": "c",
        "path": str(path),
        "status": "current",
        "lineage": "fork",
        "parent": "p",
        "project": "--w-x--",
        "cwd": "/w/x",
        "created_at": 1,
        "generation": 4,
        "compression": "none",
        "file_bytes": path.stat().st_size,
        "delegation_depth": 2,
        "agent_preset": "a",
        "retained_count": 1,
        "error": None,
        "event_count": 3,
        "own_from": 2,
        "first_ms": 100,
        "last_ms": 102,
    }
    header = rows_of(table.sessions(tmp_path))
    assert list(header[0]) == list(found[0])[:-4]


def test_sessions_show_damage_behind_the_header_when_rows_are_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "session.v4.jsonl.zstd").write_bytes(zstd(HEADER, b"{}\n"))
    assert rows_of(table.sessions(tmp_path))[0]["error"] is None
    (row,) = rows_of(
        table.sessions(tmp_path, columns=["status", "error", "event_count"])
    )
    assert row == {"status": "error", "error": "RowError", "event_count": None}
    given = list(dsh.find(tmp_path))
    assert rows_of(table.sessions(given, columns=["error", "last_ms"])) == [
        {"error": "RowError", "last_ms": None}
    ]
    with dsh.open(PLAIN) as log:
        (row,) = rows_of(table.sessions(log, columns=["path", "last_ms"]))
    assert row == {"path": f"<{len(PLAIN)} bytes>", "last_ms": 1012}


# --- content ---


def secret_session(name: str = "s") -> Session:
    block = {"type": "text", "text": f"{SECRET} answer"}
    tool = {"type": "tool-call", "id": "c1", "name": "n", "arguments": SECRET}
    prompt = {
        "id": "u",
        "role": "user",
        "content": [{"type": "text", "text": f"{SECRET} prompt"}],
        "source": {"kind": "user"},
    }
    rows = [
        event("turn/start", {"turn": 1}),
        event("user/message", prompt),
        event("step/start", {"turn": 1, "step": 1}),
        attempt(text_run(5, 1, SECRET)),
        call({}, stream=text_run(5, 1, SECRET, "!"), content=[block, tool]),
        event("step/end", {"turn": 1, "step": 1}),
    ]
    return Session(name, rows)


def ipc_of(found: table.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, found.schema) as writer:
        for batch in found:
            writer.write_batch(batch)
    return sink.getvalue()


@pytest.mark.parametrize("name", TABLES)
def test_content_is_there_on_request_only(name: str) -> None:
    """80 §6: prompts are private."""
    log = dsh.open(secret_session().data())
    assert SECRET.encode() not in ipc_of(TABLES[name](log))


def test_content_on_request() -> None:
    log = dsh.open(secret_session().data())
    texts = [row["text"] for row in rows_of(table.chunks(log, columns=["text"]))]
    assert texts == [SECRET, SECRET, "!"]
    assert rows_of(table.calls(log, columns=["outcome", "prompt", "answer"])) == [
        {"outcome": "failed", "prompt": f"{SECRET} prompt", "answer": None},
        {
            "outcome": "message",
            "prompt": f"{SECRET} prompt",
            "answer": f"{SECRET} answer",
        },
    ]
    (row,) = [
        row
        for row in rows_of(table.events(log, columns=["type", "data"]))
        if row["type"] == "user/message"
    ]
    assert json.loads(row["data"])["content"][0]["text"] == f"{SECRET} prompt"


def test_text_that_is_no_text_is_replaced_and_kept_exactly() -> None:
    """20 §8.2: halves of two fragments do not fuse; Arrow cannot hold them."""
    stream = text_run(1, 1, "a\ud83d", "\ude00", "\ud83d\ude00", "\u0800\ud7ff")
    log = dsh.open(
        Session("\ud83d", [attempt(stream), event("\ude00", "\ud83d")]).data()
    )
    found = rows_of(
        table.chunks(log, columns=["session", "byte_len", "text", "text_wtf8"])
    )
    assert [row["text"] for row in found] == ["a\ufffd", "\ufffd", "😀", "\u0800\ud7ff"]
    assert [row["text_wtf8"] for row in found] == [
        b"a\xed\xa0\xbd",
        b"\xed\xb8\x80",
        b"\xf0\x9f\x98\x80",
        b"\xe0\xa0\x80\xed\x9f\xbf",
    ]
    assert [row["byte_len"] for row in found] == [4, 3, 4, 6]
    assert found[0]["session"] == "\ufffd"
    assert [row["type"] for row in rows_of(table.events(log))] == [
        "assistant/attempt",
        "\ufffd",
    ]
    rows = rows_of(table.events(log, columns=["data"]))
    assert rows[1]["data"] == '"\\ud83d"'


# --- odd values ---


def test_turns_that_are_no_integers_are_null_and_numbered_apart() -> None:
    """80 §3 numbers attempts within turn and step, whatever these are."""
    places = [(1, 1), (1, 1), ("x", 1), ("x", 1), ([1], None), (1.5, 2**60), (1, 1)]
    rows = [attempt(text_run(1, 1, "a"), turn=t, step=s) for t, s in places]  # type: ignore[arg-type]
    found = rows_of(table.chunks(dsh.open(Session("s", rows).data())))
    assert [(row["turn"], row["step"], row["attempt"]) for row in found] == [
        (1, 1, 1),
        (1, 1, 2),
        (None, 1, 1),
        (None, 1, 2),
        (None, None, 1),
        (None, None, 1),
        (1, 1, 3),
    ]


@given(
    attempts=st.lists(streams, max_size=5),
    rows=st.integers(1, 9),
    piece=st.sampled_from([1, 100, 1 << 20]),
    held=st.sampled_from([0, 100, 1 << 20]),
)
@QUICK
def test_chunks_do_not_depend_on_batches(
    monkeypatch: pytest.MonkeyPatch,
    attempts: list[Any],
    rows: int,
    piece: int,
    held: int,
) -> None:
    """80 §5: gaps go across runs, and across the batches of one attempt."""
    monkeypatch.setattr(table, "BATCH_ROWS", rows)
    monkeypatch.setattr(log_module, "_PIECE_BYTES", piece)
    monkeypatch.setattr("dsh_codec.table_chunks.HELD_BYTES", held)
    log = dsh.open(
        zstd(*Session("s", [*map(attempt, attempts)]).data().splitlines(keepends=True))
    )
    expected = expected_chunks(log)
    for row in expected:
        index = row["index"]
        row["index"] = int(index) if dsh.values.is_count(index) else None
    found = table.chunks(log, columns=FULL)
    sizes = [len(batch) for batch in found]
    assert all(0 < size <= rows for size in sizes)
    assert sum(sizes) == len(expected)
    assert rows_of(found) == expected
    # Without text, less is kept and made.
    for columns in ([], ["byte_len"], ["token", "index"], ["gap", "seq", "byte_len"]):
        part = table.chunks(log, columns=columns or None)
        names = part.columns
        assert rows_of(part) == [
            {name: row[name] for name in names} for row in expected
        ]


@pytest.mark.parametrize("name", TABLES)
def test_batches_are_bounded_and_those_of_small_logs_are_merged(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = rows_of(TABLES[name](DEMO))
    assert len(list(TABLES[name](DEMO))) == 1
    monkeypatch.setattr(table, "BATCH_ROWS", 7)
    found = TABLES[name](DEMO)
    sizes = [len(batch) for batch in found]
    assert max(sizes) <= 7
    assert sum(sizes) == len(whole)
    assert rows_of(found) == whole


def test_batches_of_content_are_bounded_by_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dsh_codec.table_rows.BATCH_BYTES", 1000)
    log = dsh.open(Session("s", [event("x", "y" * 600)] * 10).data())
    assert [len(batch) for batch in table.events(log, columns=["data"])] == [2] * 5


# --- what cannot be read ---


def write_bad_logs(root: Path) -> list[str]:
    """Write a sound log, and some whose rows or streams are refused; return their ids."""
    chunk = {"type": "text-chunks", "time0": 1, "index": 0, "dt": [], "texts": []}
    missing = HEADER + b'{"type":"turn/start","seq":1,"time":1,"data":{}}\n'
    early = HEADER_V0 + b"".join(
        b'{"type":"assistant/chunk","seq":%d,"time":1,"data":{"turn":1,"step":1,"chunk":%b}}\n'
        % (seq, text)
        for seq, text in enumerate([b'{"type":"usage"}', b"null"])
    )
    bad = {
        "gap": ("session.v4.jsonl.zstd", zstd(HEADER, missing[len(HEADER) :])),
        "stream": (
            "session.v4.jsonl",
            Session("stream", [attempt(text_run(1, 1, "a")), attempt([chunk])]).data(),
        ),
        "v0": ("session.jsonl", early),
    }
    for name, (file, data) in bad.items():
        (root / "p" / name).mkdir(parents=True)
        (root / "p" / name / file).write_bytes(data)
    secret_session("zz").write(root)
    return sorted(bad)


@pytest.mark.parametrize("held_bytes", [1 << 20, 1, 0])
def test_refused_logs_have_no_rows_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    """Whether they are held until their end, or read twice."""
    monkeypatch.setattr("dsh_codec.table_chunks.HELD_BYTES", held_bytes)
    monkeypatch.setattr(log_module, "_PIECE_BYTES", 1)
    names = write_bad_logs(tmp_path)
    found = table.chunks(tmp_path)
    with pytest.warns(SkippedSessionsWarning, match="no rows: 3"):
        rows = rows_of(found)
    assert {row["session"] for row in rows} == {"zz"}
    assert [Path(each.directory).name for each in found.errors] == names
    assert all(each.status == "error" for each in found.errors)
    errors = {Path(e.directory).name: e.error for e in found.errors}
    stream, early = errors["stream"], errors["v0"]
    assert isinstance(stream, dsh.StreamError)
    assert (stream.seq, stream.record) == (1, 0)
    assert stream.path == str(tmp_path / "p" / "stream" / "session.v4.jsonl")
    assert isinstance(early, dsh.StreamError)
    assert early.seq == 1
    # Nobody asks for the streams of events, and calls read what they can.
    found = table.events(tmp_path)
    with pytest.warns(SkippedSessionsWarning, match="no rows: 1"):
        rows = rows_of(found)
    assert {row["session"] for row in rows} == {"s-0", "stream", "zz"}
    statuses = [row["status"] for row in rows_of(table.sessions(tmp_path))]
    assert sorted(statuses) == ["current"] * 3 + ["migration-required"]


def test_attempt_without_a_stream_is_no_fault() -> None:
    """80 §3: a settlement without `stream` has an empty one."""
    rows = [
        event("assistant/attempt", {"turn": 1, "step": 1}),
        attempt(text_run(1, 1, "a")),
    ]
    log = dsh.open(Session("s", rows).data())
    assert [row["attempt"] for row in rows_of(table.chunks(log))] == [2]


@pytest.mark.parametrize("name", TABLES)
def test_empty_root_has_a_schema_and_no_rows(name: str, tmp_path: Path) -> None:
    found = TABLES[name](tmp_path)
    assert pa.table(found).num_rows == 0
    assert pl.DataFrame(found).columns == found.columns
    assert found.write_parquet(tmp_path / "x.parquet") == 0
    assert pq.read_schema(tmp_path / "x.parquet").names == found.columns
    with pytest.raises(FileNotFoundError):
        list(TABLES[name](tmp_path / "none"))


def test_pass_that_fails_raises_in_every_reader(tmp_path: Path) -> None:
    found = table.calls([DEMO, tmp_path / "none"])
    with pytest.raises(OSError, match="No such file"):
        pa.table(found)
    with pytest.raises(pl.exceptions.ComputeError):
        pl.DataFrame(found)


# --- columns ---


def test_columns_are_chosen_and_ordered() -> None:
    found = table.calls(DEMO, columns=["model", "seq"])
    assert found.columns == ["model", "seq"]
    assert repr(found) == "Table(model, seq)"
    assert list(rows_of(found)[0]) == ["model", "seq"]
    with pytest.raises(ValueError, match="no column 'modle'; there are session, seq"):
        table.calls(DEMO, columns=["modle"])
    with pytest.raises(ValueError, match="once"):
        table.calls(DEMO, columns=["seq", ...])


def test_columns_are_those_of_the_documentation() -> None:
    for make in TABLES.values():
        text = make.__doc__ or ""
        for name in make(DEMO).columns:
            assert f"`{name}`" in text, name


def test_without_pyarrow_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'dsh-codec\[arrow\]'"):
        table.sessions(DEMO)


# --- who reads them ---


def test_places_are_gone_through_for_every_reader() -> None:
    found = table.calls(dsh.find(DEMO))
    assert pa.table(found).num_rows == pa.table(found).num_rows == 36


def test_readers_agree(tmp_path: Path) -> None:
    found = table.chunks(DEMO, columns=[..., "text"])
    expected = pa.table(found)
    assert expected.schema == found.schema == pa.schema(found)
    frame = pl.DataFrame(found)
    assert frame.schema["kind"] == pl.Categorical
    assert frame.schema["time"] == pl.Datetime("ms", "UTC")
    plain = rows_of(found)
    assert frame.with_columns(pl.col("time").dt.epoch("ms")).to_dicts() == plain
    assert found.reader().read_all().equals(expected)
    total = sum(row["byte_len"] for row in plain if row["kind"] == "text-delta")
    query = "SELECT sum(byte_len), count(*) FROM found WHERE kind = 'text-delta'"
    count = sum(row["kind"] == "text-delta" for row in plain)
    assert duckdb.connect().execute(query).fetchone() == (total, count)
    data = expected.to_pandas()
    assert isinstance(data["kind"].dtype, pd.CategoricalDtype)
    assert str(data["time"].dtype) == "datetime64[ms, UTC]"
    assert data.loc[data["kind"] == "text-delta", "byte_len"].sum() == total
    assert found.write_parquet(tmp_path / "chunks.parquet") == len(plain)
    stored = pl.read_parquet(tmp_path / "chunks.parquet")
    assert stored.with_columns(pl.col("time").dt.epoch("ms")).to_dicts() == plain


# --- Parquet ---


def test_parquet_is_replaced_only_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsh_codec.table_stream._ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(table, "BATCH_ROWS", 50)
    path = tmp_path / "x.parquet"
    path.write_bytes(b"old")
    with pytest.raises(FileNotFoundError):
        table.chunks([DEMO, tmp_path / "none"]).write_parquet(path)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"old"]
    found = table.chunks(DEMO)
    assert found.write_parquet(path, compression="snappy") == 2015
    stored = pq.ParquetFile(path)
    assert stored.num_row_groups > 10
    assert stored.metadata.row_group(0).column(0).compression == "SNAPPY"
    assert pl.read_parquet(path).height == 2015
    assert [each.name for each in tmp_path.iterdir()] == ["x.parquet"]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda folder: folder / "none" / "x.parquet", FileNotFoundError),
        (lambda folder: folder, OSError),
    ],
)
def test_parquet_that_has_no_place_names_the_path_that_was_given(
    tmp_path: Path, make: Any, error: type[OSError]
) -> None:
    path = make(tmp_path)
    with pytest.raises(error) as caught:
        table.sessions(DEMO).write_parquet(path)
    assert (caught.value.filename, caught.value.filename2) == (str(path), None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("places", [None, 5, b"{}", bytearray(), memoryview(b"")])
def test_places_of_a_wrong_type_are_refused_at_once(places: Any) -> None:
    for make in (table.calls, table.sessions, table.chunks, table.events):
        with pytest.raises(TypeError, match="sessions are named by a path"):
            make(places)
    for ask in (dsh.usage, dsh.timing, lambda found: list(dsh.calls(found))):
        with pytest.raises(TypeError, match="sessions are named by a path"):
            ask(places)
