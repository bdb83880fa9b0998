"""Search over all that was said. Spec: 80 §6."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from command_line import runner
from session_files import Session, answer, attempt, event, open_rows, text_run
from small_logs import DEMO
from test_text import said, spoken

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
    return runner(capfdbinary)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    first = Session(
        "a", [said("user", "find Me"), spoken({"type": "text", "text": "me"})]
    )
    second = Session("b", [])
    second.fork(first, 1)
    second.rows += [answer("c", text="me, and me"), said("user", "nothing")]
    first.write(tmp_path)
    second.write(tmp_path)
    return tmp_path


def ids(hits: Any) -> list[str]:
    return [hit.id for hit in hits]


def test_hits_have_ids_and_places(root: Path) -> None:
    """Spec 80 §6: ids are `session:seq`; what was inherited is found in the parent."""
    hits = list(dsh.search(root, "me"))
    assert ids(hits) == ["a:1", "b:2"]
    assert hits[1].spans == ((0, 2), (8, 10))
    assert hits[1].passage.kind == "tool-result"
    assert hits[0].path is not None
    assert hits[0].path.endswith("session.v4.jsonl")
    assert ids(dsh.search(root, re.compile("ME", re.IGNORECASE))) == [
        "a:0",
        "a:1",
        "b:2",
    ]
    assert ids(dsh.search(root, "Me", with_inherited=True)) == ["a:0", "b:0"]
    assert ids(dsh.search(root, "me", kinds=["answer"])) == ["a:1"]
    assert ids(dsh.search(root, r"^me$")) == ["a:1"]


def test_text_in_fragments_and_escapes_is_found() -> None:
    """Spec 20 §8.2: split pairs are one character; fragments do not matter."""
    stream = text_run(1, 1, "over", "load \ud83d", "\ude00 \u00e9")
    log = open_rows([attempt(stream), said("user", 'quo"ted\n')])
    assert ids(dsh.search(log, "overload \U0001f600 é")) == ["s:0"]
    assert ids(dsh.search(log, 'o"t')) == ["s:1"]
    assert ids(dsh.search(log, "[\ud800-\udfff]")) == []


def test_surrogates_of_the_demo_logs_are_joined() -> None:
    with dsh.open(DEMO / "v4-surrogates") as log:
        halves = ids(dsh.search(log, "[\ud83c-\ud83e][\udc00-\udfff]"))
        whole = ids(dsh.search(log, "[\U0001f300-\U0001faff]"))
    assert not halves
    assert whole


def test_bad_session_stops_nothing(root: Path) -> None:
    Session("c", [said("user", "me")]).write(root).write_bytes(b"rubbish\n")
    hits = dsh.search(root, "me")
    assert ids(hits) == ["a:1", "b:2"]
    assert len(hits.errors) == 1


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(re.error):
        dsh.search([], "(")
    with pytest.raises(ValueError, match="kind"):
        dsh.search([], "x", kinds=["poem"])  # type: ignore[list-item]  # the test


def test_excerpt() -> None:
    log = open_rows([said("user", "a" * 99 + "me" + "b" * 99)])
    (hit,) = dsh.search(log, "me")
    assert hit.excerpt(3) == "…aaamebbb…"
    assert hit.excerpt(200) == hit.passage.text


def test_command_shows_no_content_unless_asked(run: Any, root: Path) -> None:
    """The issue: content is never printed unless asked."""
    result = run("search", "me,", root)
    assert result.code == 0
    assert result.lines == ["b:2\ttool-result\t1970-01-01 00:00:00 UTC\t1"]
    assert run("search", "me,", root, "--text").lines[0].endswith("\tme, and me")
    (row,) = run("search", "me,", root, "--json").json()
    assert row["id"] == "b:2"
    assert "text" not in row
    (row,) = run("search", "me,", root, "--json", "--text").json()
    assert (row["text"], row["spans"]) == ("me, and me", [[0, 3]])


def test_command_options(run: Any, root: Path) -> None:
    assert run("search", "m.", root, "--fixed").lines == []
    assert len(run("search", "ME", root, "-i", "--kind", "prompt,answer").lines) == 2
    assert len(run("search", "Me", root, "--inherited").lines) == 2
    assert run("search", "(", root).code == 64
    assert run("search", "x", root, "--kind", "poem").code == 64
    assert run("search", "x", root / "gone").code == 2


def test_command_cannot_steer_a_terminal(run: Any, tmp_path: Path) -> None:
    Session("a\x1b[2J", [said("user", "me \x1b[31m \ud800")]).write(tmp_path)
    (line,) = run("search", "me", tmp_path, "--text").lines
    assert line.startswith("a\\x1b[2J:0\t")
    assert line.endswith("me \\x1b[31m \\ud800")


def test_find_command(run: Any, root: Path) -> None:
    """Spec 80 §1."""
    Session("b", [], generation=3).write(root)
    leftover = root / "_no-cwd" / "b" / "session.v4.jsonl.0a.tmp"
    leftover.write_bytes(b"")
    Session("bad", [event("x", {})], isSeeded=True).write(root)
    result = run("find", root, "--all")
    assert result.code == 0
    assert [line.split("\t")[6] for line in result.lines] == [
        "root",
        "fork of a",
        "retained",
        "leftover",
        "root",
    ]
    assert result.lines[3].endswith(str(leftover))
    scanned = run("find", root, "--scan", "--json")
    assert scanned.code == 1
    rows = {row["id"]: row for row in scanned.json()}
    assert rows["b"]["event_count"] == 4
    assert rows["b"]["inherited_event_count"] == 1
    assert rows["bad"]["status"] == "error"
    assert [len(run("find", root, "--id", name).lines) for name in ("a", "x")] == [1, 0]
    assert len(run("find", root, "--lineage", "fork").lines) == 1
    assert run("find", root, "--cwd", "/w").lines == []
    assert run("find", root / "gone").code == 2
