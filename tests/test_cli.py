"""The command line, as its users see it: the issue, item 6."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

import dsh_codec as dsh
from dsh_codec import cli
from dsh_codec.grouping import By
from dsh_codec.text import PassageKind
from small_logs import DEMO, HEADER, PLAIN, ROWS, ZSTD

NEWER = HEADER.replace(b'"version":4', b'"version":9')
DAMAGED = HEADER + ROWS[0] + b"x\n" + ROWS[4]


class Ran(NamedTuple):
    code: int
    lines: list[str]
    errors: str

    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
    """Run the command line in this process."""

    def call(*arguments: object) -> Ran:
        code = cli.main([str(argument) for argument in arguments])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Ran(code, out.decode().splitlines(), err.decode())

    return call


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder with a sound, a torn, a damaged and a newer log."""
    for name, data in {
        "sound": PLAIN,
        "torn": PLAIN[:-3],
        "damaged": DAMAGED,
        "newer": NEWER,
    }.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def child(*arguments: object, **more: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dsh_codec", *map(str, arguments)]
    return subprocess.Popen(  # noqa: S603 - our own command line
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more
    )


# --- check ---


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["sound"], 0),
        (["torn"], 0),
        (["damaged"], 1),
        (["newer"], 2),
        (["missing"], 2),
        (["damaged", "sound"], 1),
        (["newer", "damaged", "sound", "missing"], 2),
    ],
)
def test_check_gives_one_line_a_log_and_goes_on(
    run: Any, logs: Path, names: list[str], code: int
) -> None:
    result = run("check", *(logs / name for name in names))
    assert result.code == code
    assert len(result.lines) == len(names)
    for name, line in zip(names, result.lines, strict=True):
        assert line.startswith(str(logs / name) + ": ")


def test_check_strict_refuses_a_torn_tail(run: Any, logs: Path) -> None:
    result = run("check", "--mode", "strict", logs / "torn")
    assert result.code == 1
    assert ": torn, " in result.lines[0]


def test_check_json_is_one_report_a_line(run: Any, logs: Path) -> None:
    result = run("check", "--json", logs / "sound", logs / "damaged")
    sound, damaged = result.json()
    assert result.code == 1
    assert sound == dsh.check(logs / "sound").to_dict()
    assert damaged["status"] == "damaged"
    assert damaged["findings"][0]["line"] == 3
    assert result.errors == ""


def test_check_verbose_shows_details(run: Any, logs: Path) -> None:
    result = run("check", "-v", logs / "torn")
    assert any("TornTail" in line for line in result.lines)
    assert any(line.split() == ["session", "s-1"] for line in result.lines)


def test_check_takes_roots_and_sessions(run: Any) -> None:
    result = run("check", DEMO, DEMO / "v4")
    assert result.code == 0
    assert len(result.lines) == 10
    assert "10 logs: 10 sound" in result.errors


def test_check_of_a_folder_without_logs(run: Any, tmp_path: Path) -> None:
    result = run("check", tmp_path)
    assert result.code == 2
    assert "FileNotFoundError" in result.lines[0]


# --- list ---


def test_list_shows_bad_sessions_too(run: Any, tmp_path: Path) -> None:
    for name, file, data in [
        ("a", "session.v4.jsonl", PLAIN),
        ("b", "session.v9.jsonl", NEWER),
        ("c", "session.v3.jsonl", PLAIN),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_bytes(data)
    result = run("list", tmp_path)
    assert result.code == 2
    assert result.errors == "dsh-codec: 2 of 3 sessions cannot be read\n"
    assert [line.split("\t")[:3] for line in result.lines] == [
        ["s-1", "current", "v4"],
        ["-", "newer", "v9"],
        ["-", "error", "v3"],
    ]
    rows = run("list", "--json", tmp_path).json()
    assert [row["status"] for row in rows] == ["current", "newer", "error"]
    assert rows[0]["id"] == "s-1"
    assert rows[0]["created_at"] == 1000
    assert "version" in rows[2]["error"]


@pytest.mark.parametrize(
    "command",
    [
        ["list"],
        ["find"],
        ["find", "--scan"],
        ["check"],
        ["usage"],
        ["timing"],
        ["search", "--fixed", "x"],
        ["report"],
    ],
)
@pytest.mark.parametrize(("data", "code"), [(HEADER[1:], 1), (NEWER, 2)])
def test_a_bad_session_is_named_and_the_others_are_shown(
    run: Any, tmp_path: Path, command: list[str], data: bytes, code: int
) -> None:
    """All commands over a root agree: what can be shown is, and the exit code tells."""
    for name, text in [("a", PLAIN), ("b", data), ("c", PLAIN)]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "session.v4.jsonl").write_bytes(text)
    sound = run(*command, tmp_path / "a")
    assert (sound.code, sound.errors) == (0, "")
    result = run(*command, tmp_path)
    assert result.code == code
    assert result.errors != ""
    assert str(tmp_path / "b") in "\n".join([*result.lines, result.errors])
    assert len(result.lines) >= len(sound.lines)


def test_list_of_a_missing_root_is_unreadable(run: Any, tmp_path: Path) -> None:
    result = run("list", tmp_path / "gone")
    assert result.code == 2
    assert "gone" in result.errors


# --- cat ---


def test_cat_writes_the_events(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(ZSTD)
    result = run("cat", path)
    assert result.code == 0
    assert [line.encode() + b"\n" for line in result.lines] == list(ROWS)
    chosen = run("cat", path, "--from", 1, "--to", 3, "--type", "step/start")
    assert [row["seq"] for row in chosen.json()] == [1]
    several = run("cat", path, "--type", "step/start", "--type", "step/end", "--json")
    assert [row["seq"] for row in several.json()] == [1, 3]


def test_cat_writes_packed_rows_out(run: Any) -> None:
    with dsh.open(DEMO / "v0-packed") as log:
        expected = [event.envelope for event in log]
    assert run("cat", DEMO / "v0-packed").json() == expected


def test_cat_expand_writes_one_chunk_a_line(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(PLAIN)
    rows = run("cat", "--expand", path).json()
    assert [row["time"] for row in rows] == [1003, 1005, 1009]
    assert rows[1] == {
        "seq": 2,
        "turn": 1,
        "step": 1,
        "attempt": 1,
        "time": 1005,
        "chunk": {"type": "text-delta", "index": 0, "text": "b"},
    }
    only = run("cat", "--expand", "--type", "finish", path).json()
    assert [row["chunk"]["type"] for row in only] == ["finish"]
    assert run("cat", "--expand", "--from", 3, path).lines == []


def test_cat_keeps_lone_surrogates(run: Any) -> None:
    """Spec 10 §1.1: written as escapes."""
    with dsh.open(DEMO / "v4-surrogates") as log:
        expected = [event.envelope for event in log]
    result = run("cat", DEMO / "v4-surrogates")
    assert result.json() == expected
    assert any("\\ud8" in line for line in result.lines)


@pytest.mark.parametrize(("name", "code"), [("damaged", 1), ("newer", 2), ("gone", 2)])
@pytest.mark.parametrize("command", ["cat", "info"])
def test_bad_log_ends_with_a_message(
    run: Any, logs: Path, command: str, name: str, code: int
) -> None:
    result = run(command, logs / name)
    assert result.code == code
    assert str(logs / name) in result.errors
    assert "Traceback" not in result.errors


# --- info ---


def test_info_sums_a_log_up(run: Any) -> None:
    path = DEMO / "v4" / "session.v4.jsonl.zstd"
    (summary,) = run("info", "--json", path).json()
    with dsh.open(path) as log:
        events = [event.type for event in log]
        attempts = list(log.attempts())
    assert summary["event_count"] == len(events)
    assert summary["events_by_type"]["turn/start"] == events.count("turn/start")
    assert summary["attempts"] == {"message": len(attempts)}
    assert summary["generation"] == 4
    output = sum(attempt.usage["outputTokens"] for attempt in attempts if attempt.usage)
    assert summary["tokens"]["output"] == output
    assert summary["bytes_per_token"] == path.stat().st_size / output
    assert summary["file_bytes"] == path.stat().st_size
    lines = run("info", path).lines
    assert f"file: {path}" in lines
    assert "generation: 4" in lines
    assert f"tokens output: {output:,}" in lines


def test_info_counts_own_events_only(run: Any, tmp_path: Path) -> None:
    """Spec 80 §2."""
    path = tmp_path / "log"
    seeded = HEADER.replace(b'"isSeeded":false', b'"isSeeded":true')
    marker = b'{"type":"session/end-seed","seq":5,"time":1,"data":{"inherited":true}}\n'
    path.write_bytes(seeded + b"".join(ROWS) + marker)
    (summary,) = run("info", "--json", path).json()
    assert summary["own_from"] == 5
    assert summary["attempts"] == {}
    assert summary["event_count"] == 6


# --- usage, pipes, what is missing ---


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["check"],
        ["frobnicate"],
        ["check", "--level", "deep", "x"],
        ["check", "--nonsense", "x"],
        ["cat", "x", "--from", "-1"],
        ["cat", "x", "--to", "many"],
        ["info"],
        ["info", "a", "b"],
    ],
)
def test_wrong_usage_is_64(run: Any, arguments: list[str]) -> None:
    assert run(*arguments).code == 64


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["--version"]])
def test_help_is_no_error(run: Any, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.code == 0
    assert result.lines


def test_output_cannot_steer_a_terminal(run: Any, tmp_path: Path) -> None:
    """Ids and types come from files that anybody may have written."""
    path = tmp_path / "log"
    path.write_bytes(HEADER.replace(b"s-1", b"a\\u001b[2Jb\\ud800"))
    result = run("check", "-v", path)
    assert result.code == 0
    assert "a\\x1b[2Jb\\ud800" in "\n".join(result.lines)
    assert "\x1b" not in "\n".join(run("list", path).lines)


@pytest.mark.slow
def test_reader_of_a_pipe_may_go_away(tmp_path: Path) -> None:
    path = tmp_path / "log"
    row = (
        b'{"type":"x","seq":%d,"time":0,"data":"'
        + b"y" * 1000
        + b'","ignorable":true}\n'
    )
    path.write_bytes(HEADER + b"".join(row % seq for seq in range(2000)))
    process = child("cat", path)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141
    assert errors == b""


@pytest.mark.slow
def test_plain_when_piped() -> None:
    out, err = child("check", DEMO).communicate(timeout=60)
    assert b"\x1b" not in out
    assert b"\x1b" not in err
    assert len(out.splitlines()) == 9


def on_terminal(*command: str, **more: Any) -> tuple[int, str]:
    """Run a command whose output is a terminal; give its exit code and what appears there."""
    pty = pytest.importorskip("pty", reason="the system has no pseudo-terminals")
    ours, theirs = pty.openpty()
    more = {"stdout": theirs} | more
    process = subprocess.Popen(command, stderr=theirs, **more)  # noqa: S603 - our own command line
    os.close(theirs)
    shown = b""
    with (
        open(ours, "rb", buffering=0) as screen,  # noqa: PTH123 - a descriptor
        suppress(OSError),  # So it says that nobody writes any more.
    ):
        while part := screen.read(1 << 16):
            shown += part
    return process.wait(60), shown.decode()


@pytest.mark.slow
def test_terminal_gets_colours_and_tables() -> None:
    command = (sys.executable, "-m", "dsh_codec")
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    code, shown = on_terminal(*command, "check", str(DEMO / "v4"), env=environment)
    assert code == 0
    assert "\x1b[32msound\x1b[0m" in shown
    code, shown = on_terminal(*command, "list", str(DEMO), env=environment)
    assert code == 0
    assert "lineage" in shown  # The title of a column.
    assert str(DEMO / "v4" / "session.v4.jsonl.zstd") in shown  # Not cut off.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["check"], "checking"),
        (["usage", "--tz", "UTC"], "reading"),
        (["usage", "--tz", "UTC", "--csv"], "reading"),
        (["timing", "--json"], "reading"),
        (["search", "--fixed", "a"], "reading"),
        (["migrate", "--dry-run"], "migrating"),
        (["report", "--tz", "UTC"], "reading"),
        (["find", "--scan"], "scanning"),
        (["find", "--scan", "--json"], "scanning"),
    ],
)
def test_progress_is_for_whoever_looks_at_the_errors(
    run: Any, tmp_path: Path, arguments: list[str], what: str
) -> None:
    """Issue, item 6: a bar on a terminal, and not a byte of it in the output."""
    shutil.copytree(DEMO, tmp_path / "root")
    arguments = [*arguments, str(tmp_path / "root")]
    expected = run(*arguments)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "dsh_codec", *arguments]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    with out.open("wb") as file:
        code, shown = on_terminal(*command, stdout=file, env=environment)
    assert code == expected.code
    assert out.read_text("utf-8").splitlines() == expected.lines
    assert f"{what} " in shown
    assert "100%" in shown
    assert what not in expected.errors


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["click", "rich"])
def test_missing_package_is_a_hint(missing: str) -> None:
    """The issue: the extra `[cli]` may not be installed."""
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"from dsh_codec.cli import main; sys.exit(main(['check', {str(DEMO)!r}]))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(dsh.__file__).parents[1])}
    status, shown = on_terminal(sys.executable, "-c", code, env=environment)
    assert status == 2
    assert "pip install 'dsh-codec[cli]'" in shown
    assert "Traceback" not in shown


def test_pipe_does_not_need_rich(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert run("check", DEMO).code == 0
    assert run("list", DEMO).code == 0


def test_every_command_has_help(run: Any) -> None:
    lines = run("--help").lines
    names = [line.split()[0] for line in lines[lines.index("Commands:") + 1 :] if line]
    assert {"check", "list", "usage", "replay"} <= set(names)
    assert not [line for line in lines[1:] if line.endswith("...")]  # What is cut off.
    for name in names:
        result = run(name, "--help")
        assert result.code == 0
        assert result.lines[0].startswith(f"Usage: dsh-codec {name} ")
        assert result.lines[2].startswith("  ")  # What it does.


def test_help_names_what_may_be_asked_for(run: Any) -> None:
    for command, choices in (("usage", By), ("timing", By), ("search", PassageKind)):
        shown = " ".join(" ".join(run(command, "--help").lines).split())
        assert ", ".join(get_args(choices)) in shown
        assert "Default: " in shown


def test_shell_completion(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the shell's function asks for it: the words so far, and which one is meant."""
    monkeypatch.setenv("_DSH_CODEC_COMPLETE", "bash_complete")
    for words, found in [
        ("dsh-codec mi", ["plain,migrate"]),
        ("dsh-codec check --level re", ["plain,read", "plain,restore"]),
    ]:
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        result = run()
        assert (result.code, result.lines) == (0, found)


def test_check_explains_a_rule(run: Any) -> None:
    result = run("check", "--explain", "a1")
    assert result.code == 0
    assert result.lines[0].startswith("A1 (L1, spec 30 §6 A): ")
    assert run("check", "--explain", "Z9").code == 64
    assert run("check").code == 64


@pytest.mark.parametrize("name", ["a\nb: sound", "a\tb"])
def test_a_name_cannot_forge_a_line_or_a_cell(
    run: Any, tmp_path: Path, name: str
) -> None:
    """Scripts take the lines apart: a path with a line feed or a tab stays in its place."""
    place = tmp_path / name
    place.mkdir()
    (place / "session.v4.jsonl").write_bytes(
        HEADER.replace(b"s-1", b"i\\td\\n2") + ROWS[0]
    )
    shown = name.replace("\n", "\\x0a").replace("\t", "\\x09")
    for command in ("list", "find"):
        (line,) = run(command, place).lines
        cells = line.split("\t")
        assert cells[0] == "i\\x09d\\x0a2"
        assert cells[-1].endswith(f"{shown}/session.v4.jsonl")
        assert len(cells) == len(run(command, DEMO / "v4").lines[0].split("\t"))
    assert len(run("check", place).lines) == 1
    assert len(run("check", "-v", place).lines) == len(
        run("check", "-v", DEMO / "v4").lines
    )
    assert len(run("migrate", "--dry-run", place).lines) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
@pytest.mark.parametrize("place", ["/dev/full", "pipe", "read only"])
def test_messages_that_cannot_be_written_change_no_exit_code(
    run: Any, tmp_path: Path, place: str
) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(PLAIN[:-3])
    for command in (
        ["check", str(DEMO)],
        ["check", str(tmp_path / "gone")],
        ["usage", str(tmp_path / "gone")],
        ["cat", str(bad)],
        ["list", "--bad"],
    ):
        expected = run(*command)
        if place == "pipe":
            reader, errors = os.pipe()
            os.close(reader)
        else:
            flags = os.O_WRONLY if place == "/dev/full" else os.O_RDONLY
            errors = os.open(place if place == "/dev/full" else os.devnull, flags)
        found = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-m", "dsh_codec", *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            check=False,
        )
        os.close(errors)
        assert found.returncode == expected.code
        assert found.stdout.decode().splitlines() == expected.lines


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_standard_streams_may_be_closed(
    tmp_path: Path, closed: tuple[int, ...]
) -> None:
    """`>&-` means that nobody wants the output; the exit code still counts."""
    code = (
        "import os, sys\n"
        f"for number in {closed}: os.close(number)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'dsh_codec', *sys.argv[1:]])"
    )
    (tmp_path / "bad").write_bytes(HEADER[:5])
    for command, expected in (
        (["check", DEMO / "v4"], 0),
        (["check", str(tmp_path / "bad")], 1),
        (["cat", str(tmp_path / "gone")], 2),
    ):
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", code, *map(str, command)],
            capture_output=True,
            check=False,
        )
        assert done.returncode == expected
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["usage", "timing"])
def test_json_and_csv_at_once_is_wrong_usage(run: Any, command: str) -> None:
    result = run(command, "--json", "--csv", DEMO / "v4")
    assert result.code == 64
    assert "choose one" in result.errors


@pytest.mark.parametrize("interval", ["nan", "inf", "0", "1e99"])
def test_interval_of_tail_is_a_number_of_milliseconds(run: Any, interval: str) -> None:
    assert run("tail", "-f", "--interval-ms", interval, DEMO / "v4").code == 64


@pytest.mark.parametrize("command", [["usage"], ["timing"], ["search", "x"]])
def test_an_empty_root_is_named(run: Any, tmp_path: Path, command: list[str]) -> None:
    """A sum of nothing looks like an answer: it may as well be the wrong folder."""
    result = run(*command, tmp_path)
    assert result.code == 0
    assert f"no sessions under {tmp_path}" in result.errors
    assert "no sessions" not in run(*command, DEMO / "v4").errors


@pytest.mark.parametrize("command", ["list", "find"])
def test_path_of_a_bad_session_is_written_once(
    run: Any, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "session.v4.jsonl"
    path.write_bytes(b"")
    (line,) = run(command, tmp_path).lines
    assert line.count(str(path)) == 1
    assert line.endswith("(line 1, byte 0, rule 10 §3)")


@pytest.mark.parametrize("command", [["cat"], ["cat", "--expand"], ["convert"]])
def test_an_incomplete_end_is_named(
    run: Any, tmp_path: Path, command: list[str]
) -> None:
    """Whoever keeps the output for the log has to know that its end is missing."""
    path = tmp_path / "log"
    path.write_bytes(PLAIN[:-3])
    result = run(*command, path)
    start = PLAIN.rindex(b"\n", 0, -1) + 1
    assert result.code == 0
    assert f"{path}: torn tail at byte {start:,}, 0 events" in result.errors
    path.write_bytes(PLAIN)
    assert run(*command, path).errors == ""
