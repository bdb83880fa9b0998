"""Split and join as files, and logs without reasoning. Spec: 60 §5 to §7."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import dsh_codec as dsh
from command_line import runner
from dsh_codec.names import parse_log_filename
from dsh_codec.sidecar import PROJECTION
from dsh_codec.sidecar_file import SidecarWriter, sidecar_filename
from dsh_codec.sidecar_publish import drop_reasoning_to, projection_filename
from small_logs import DEMO, shared_folder

CORPUS = shared_folder("DSH_CORPUS", "corpus", "real")
LOGS: list[dict[str, Any]] = json.loads((CORPUS / "index.json").read_text("utf-8"))[
    "logs"
]
CURRENT = [entry["path"] for entry in LOGS if entry["format"] == 4]
OLDER = next(entry["path"] for entry in LOGS if entry["format"] < 4)


def content_of(log: dsh.Log) -> bytes:
    return bytes(log.source.read(0, log.file_bytes))


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("path", CURRENT)
def test_files_hold_what_split_makes(
    path: str, compression: Any, tmp_path: Path
) -> None:
    """Spec 60 §5, §6: the same parts, with the names of both encodings."""
    with dsh.open(CORPUS / path) as log:
        made = dsh.split_to(log, tmp_path, compression=compression)
        with dsh.split(log) as parts:
            expected = content_of(parts.assembled), b"".join(parts.sidecar.text())
        rows = [event.envelope for event in log]
    assert sorted(tmp_path.iterdir()) == sorted(made)
    assert made.sidecar.name == sidecar_filename(compression=compression)
    with (
        dsh.open(made.assembled) as assembled,
        dsh.Sidecar.open(made.sidecar) as sidecar,
    ):
        assert assembled.compression == compression
        assert b"".join(sidecar.text()) == expected[1]
        with dsh.split(assembled) as again:
            assert content_of(again.assembled) == expected[0]
        joined = dsh.join_to(
            assembled, sidecar, tmp_path / "joined.jsonl", compression="none"
        )
    with dsh.open(joined) as log:
        assert [event.envelope for event in log] == rows


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("room_bytes", [0, 1, 40, 41, 42, 300_000])
def test_header_row_comes_first_whatever_room_it_got(
    room_bytes: int, compression: Any
) -> None:
    """Spec 60 §6: the header says what is only known at the end."""
    rows = [b"%d" % number * 99_999 + b"\n" for number in range(9)]
    header = b"h" * 40 + b"\n"
    file = io.BytesIO()
    writer = SidecarWriter(file, compression=compression)
    writer.reserve(room_bytes)
    for row in rows:
        writer.write(row)
    writer.finish(header)
    if compression == "none":
        assert file.getvalue() == b"".join([header, *rows])
    reader = dsh.kernel.FrameReader()
    if compression == "zstd":
        reader.feed(file.getvalue())
        pieces = list(iter(reader.read, None))
        assert pieces[0].data == header
        assert b"".join(piece.data for piece in pieces) == b"".join([header, *rows])


@pytest.mark.parametrize("size", [400, 6_000])
def test_many_rows_are_split_and_joined(size: int, tmp_path: Path) -> None:
    """More than one piece of the file; the digits of the counts have to be guessed."""
    head = {
        "type": "session",
        "version": 4,
        "id": "s",
        "createdAt": 1,
        "isSeeded": False,
    }
    rows: list[dict[str, Any]] = [head | {"delegationDepth": 0}]
    run = {"type": "text-chunks", "time0": 1, "index": 0, "dt": [], "texts": ["a" * 90]}
    for seq in range(size):
        # Settlements come late, so their share of the first piece says little.
        is_attempt = seq > size // 2
        data = (
            {"turn": 1, "step": 1, "stream": [run]} if is_attempt else {"x": "b" * 90}
        )
        kind = "assistant/attempt" if is_attempt else "plugin:x"
        row = {"type": kind, "seq": seq, "time": 1, "data": data}
        rows.append(row if is_attempt else row | {"ignorable": True})
    text = b"".join(dsh.dump(row) + b"\n" for row in rows)
    with dsh.open(text) as log:
        made = dsh.split_to(log, tmp_path)
    with (
        dsh.open(made.assembled) as assembled,
        dsh.Sidecar.open(made.sidecar) as sidecar,
    ):
        assert sidecar.header["eventCount"] == size
        assert len(list(sidecar)) == sidecar.header["attempts"] == size - size // 2 - 1
        assert (
            dsh.join_to(assembled, sidecar, tmp_path / "j.jsonl").read_bytes() == text
        )


def test_nothing_is_left_of_a_split_or_join_that_fails(tmp_path: Path) -> None:
    source = CORPUS / CURRENT[0]
    with dsh.open(source) as log:
        text = b"".join(dsh.dump(event.envelope) + b"\n" for event in log)
        header = dsh.dump({"type": "session", **log.header.fields})
    broken = header + b"\n" + text.replace(b'"time0":', b'"time":', 1)
    with dsh.open(broken) as log, pytest.raises(dsh.SidecarError) as caught:
        dsh.split_to(log, tmp_path)
    assert caught.value.reason == "corrupt"
    assert not list(tmp_path.iterdir())
    with dsh.open(source) as log:
        made = dsh.split_to(log, tmp_path, compression="none")
        with pytest.raises(FileExistsError):
            dsh.split_to(log, tmp_path, compression="none")
        made.assembled.unlink()
        # The sidecar alone is in the way, too.
        with pytest.raises(FileExistsError):
            dsh.split_to(log, tmp_path, compression="none")
    assert list(tmp_path.iterdir()) == [made.sidecar]
    with dsh.open(source) as full, dsh.Sidecar.open(made.sidecar) as sidecar:
        with pytest.raises(dsh.SidecarError):
            dsh.join_to(full, sidecar, tmp_path / "new.jsonl")
        with pytest.raises(FileExistsError):
            dsh.join_to(full, sidecar, made.sidecar)
    assert list(tmp_path.iterdir()) == [made.sidecar]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no folder takes nothing")
def test_folder_that_takes_nothing_is_told_by_the_name_that_was_meant() -> None:
    folder = Path("/proc/self")
    with dsh.open(DEMO / "v4") as log:
        for write in (dsh.split_to, drop_reasoning_to):
            with pytest.raises(OSError, match="No such file") as caught:
                write(log, folder)
            assert Path(caught.value.filename).parent == folder
            assert not caught.value.filename.endswith(".tmp")


@pytest.mark.parametrize("path", CURRENT)
def test_log_without_reasoning_is_marked_and_never_joined(
    path: str, tmp_path: Path
) -> None:
    """Not in the spec: a projection of its own, which no reader takes for the lossless one."""
    with dsh.open(CORPUS / path) as log:
        made = drop_reasoning_to(log, tmp_path, compression="none")
        parts = dsh.split_to(log, tmp_path / "parts")
        originals = [event.envelope for event in log]
    assert made.name == projection_filename(compression="none")
    assert parse_log_filename(made.name, compression="none") is None
    assert dsh.check(made, level="full").status == "sound"
    with dsh.open(made) as log:
        *events, last = [event.envelope for event in log]
    assert (last["type"], last["ignorable"]) == (PROJECTION, True)
    assert last["data"] == {"dropped": ["reasoning", "streams"]}
    assert b'"type":"reasoning"' not in made.read_bytes()
    assert b"reasoning-chunks" not in made.read_bytes()
    for original, event in zip(originals, events, strict=True):
        data = original["data"]
        if original["type"].startswith("assistant/"):
            data["stream"] = []
        if original["type"] == "assistant/message":
            message = data["message"]
            message["source"].pop("replayState", None)
            message["content"] = [
                block for block in message["content"] if block["type"] != "reasoning"
            ]
        assert event == original
    with (
        dsh.open(made) as log,
        dsh.Sidecar.open(parts.sidecar) as sidecar,
        pytest.raises(dsh.SidecarError) as caught,
    ):
        dsh.join_to(log, sidecar, tmp_path / "joined.jsonl")
    assert caught.value.reason == "mismatch"
    assert "without reasoning" in str(caught.value)
    assert not (tmp_path / "joined.jsonl").exists()


def test_reasoning_of_summaries_is_dropped() -> None:
    """Spec 30 §4.4: `rawOutput` holds what the model said on the way to the summary."""
    from dsh_codec.projection import without_reasoning

    blocks = [{"type": "reasoning", "text": "r"}, {"type": "text", "text": "t"}]
    event = {"type": "compaction/summary", "seq": 0, "time": 1}
    event["data"] = {"summary": blocks, "rawOutput": blocks}
    header = b'{"type":"session","version":4,"id":"s","createdAt":7,"isSeeded":false,"delegationDepth":0}\n'
    with dsh.open(header + dsh.dump(event) + b"\n") as log:
        first, row, marker = without_reasoning(log)
    assert first == header
    assert dsh.parse(row)["data"] == {"summary": blocks[1:], "rawOutput": blocks[1:]}
    assert dsh.parse(marker)["seq"] == 1
    with dsh.open(header) as log:
        _, marker = without_reasoning(log)
    assert (dsh.parse(marker)["seq"], dsh.parse(marker)["time"]) == (0, 7)


def test_command_never_drops_silently(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    run = runner(capsysbinary)
    path = next(path for path in CURRENT if "reasoning" in path)
    done = run("split", CORPUS / path, "-o", tmp_path, "--drop-reasoning", "--json")
    (members,) = done.json()
    assert done.code == 0
    assert [name.name for name in tmp_path.iterdir()] == [
        members["without_reasoning"].rpartition("/")[2]
    ]
    assert "for good" in done.errors
    done = run("split", CORPUS / path, "-o", tmp_path / "whole")
    assert (done.code, done.errors) == (0, "")
    sidecar = next(p for p in (tmp_path / "whole").iterdir() if ".replay." in p.name)
    done = run(
        "join", members["without_reasoning"], sidecar, "-o", tmp_path / "j.jsonl"
    )
    assert done.code != 0
    assert "without reasoning" in done.errors
    assert not (tmp_path / "j.jsonl").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("split", OLDER, "-o", "out"),
        ("split", OLDER, "-o", "out", "--drop-reasoning"),
        ("load", OLDER),
        ("replay", "serve", OLDER),
    ],
    ids=["split", "drop", "load", "serve"],
)
def test_commands_refuse_older_logs_on_demand(
    arguments: tuple[str, ...],
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Spec 60 §9: the message names the command."""
    places = {OLDER: CORPUS / OLDER, "out": tmp_path}
    done = runner(capsysbinary)(
        *(places.get(a, a) for a in arguments), "--strict-current"
    )
    assert done.code == 2
    assert "dsh-codec migrate" in done.errors
    assert not done.lines
    assert not list(tmp_path.iterdir())


def test_a_path_instead_of_a_log_is_named(tmp_path: Path) -> None:
    """Other functions take paths: a mix-up says what to do, and makes nothing."""
    place: Any = str(DEMO / "v4")
    target = tmp_path / "out"
    for call in (
        lambda: dsh.split(place),
        lambda: dsh.split_to(place, target),
        lambda: dsh.join(place, place),
        lambda: dsh.join_to(place, place, target),
        lambda: list(dsh.load_updates(place)),
        lambda: dsh.ReplayModel(place),
        lambda: dsh.summarize(place),
    ):
        with pytest.raises(TypeError, match=r"open log, not str.*dsh_codec\.open"):
            call()
    with dsh.open(place) as log:
        for call in (
            lambda: dsh.join(log, place),
            lambda: dsh.join_to(log, place, target),
        ):
            with pytest.raises(TypeError, match="open sidecar, not str"):
                call()
    assert list(tmp_path.iterdir()) == []
