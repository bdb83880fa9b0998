"""`dsh-codec migrate` as its users see it, and the export of what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dsh_codec as dsh
from dsh_codec import cli
from dsh_codec.migrate.salvage import MARK_TYPE, salvage
from migrate_logs import (
    V0_TURN,
    answer,
    chunk,
    header_of,
    numbered,
    seed,
    step,
    text_of,
    turn,
    v0_text,
    write_session,
)
from small_logs import PLAIN

TARGET = "session.v4.jsonl"
SALVAGED = "session.salvaged.v4.jsonl"


class Ran(NamedTuple):
    code: int
    lines: list[str]
    errors: str


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
    """Run the command in this process."""

    def call(*arguments: object) -> Ran:
        code = cli.main(["migrate", *map(str, arguments)])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Ran(code, out.decode().splitlines(), err.decode())

    return call


REFUSED = numbered(*V0_TURN, {"type": "mode/set", "data": {}}, turn("start", 2))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with an old, a current and a refused session."""
    write_session(tmp_path, "s0", v0_text(), 0)
    write_session(tmp_path, "s-1", PLAIN, 4)
    write_session(tmp_path, "bad", text_of(header_of(0, id="bad"), REFUSED), 0)
    return tmp_path


def test_root_is_migrated_and_summed_up(run: Any, root: Path) -> None:
    """Issue, item 4: migrated, current, refused and why; the exit code is the worst."""
    code, lines, errors = run(root)
    assert code == 2
    assert [line.split(": ")[1] for line in lines] == ["refused", "current", "migrated"]
    assert "rule 50 §4" in lines[0]
    assert "seq 8" in lines[0]
    assert errors == "3 logs: 1 refused, 1 current, 1 migrated\n"
    assert (root / "_no-cwd" / "s0" / TARGET).is_file()
    code, lines, _ = run(root / "_no-cwd" / "s0", root / "_no-cwd" / "s-1")
    assert code == 0
    assert [line.split(": ")[1] for line in lines] == ["current", "current"]


@pytest.mark.parametrize("option", [["--report", "json"], ["--json"]])
def test_report_as_json(run: Any, root: Path, option: list[str]) -> None:
    code, lines, errors = run(root, *option, "--dry-run")
    assert (code, errors) == (2, "")
    found = {Path(item["path"]).parent.name: item for item in map(json.loads, lines)}
    assert {name: item["status"] for name, item in found.items()} == {
        "bad": "refused",
        "s-1": "current",
        "s0": "would-migrate",
    }
    assert found["bad"]["error"]["rule"] == "50 §4"
    assert found["s0"]["migration"]["event_count"] == 7
    assert not (root / "_no-cwd" / "s0" / TARGET).exists()


def test_single_log_finds_its_root_or_needs_to_be_told(
    run: Any, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """50 §7.7: evidence comes from the root of the layout, or the user says that there is none."""
    assert run(root / "_no-cwd" / "s0" / "session.jsonl").code == 0
    lone = tmp_path_factory.mktemp("lone") / "session.jsonl"
    lone.write_bytes(v0_text())
    code, lines, _ = run(lone)
    assert code == 2
    assert "50 §7.7" in lines[0]
    assert run(lone, "--dry-run", "--children", root).code == 0
    assert run(lone, "--no-children").code == 0


def test_out_and_missing_path(run: Any, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(root / "_no-cwd" / "s0", "--out", out).code == 0
    assert (out / "_no-cwd" / "s0" / TARGET).is_file()
    code, _, errors = run(root / "nowhere")
    assert code == 2
    assert "nowhere" in errors


def test_salvage_exports_the_prefix_and_says_so(run: Any, root: Path) -> None:
    """Issue, item 4: marked as not lossless, what was left out and why."""
    folder = root / "_no-cwd" / "bad"
    code, lines, _ = run(folder, "--salvage")
    assert code == 2
    assert "not lossless" in lines[0]
    report = dsh.check(folder / SALVAGED, level="full", mode="strict")
    assert report.status == "sound"
    with dsh.open(folder / SALVAGED) as log:
        [*kept, mark] = list(log)
    assert [event.type for event in kept][-1] == "turn/end"
    assert (mark.type, mark.ignorable) == (MARK_TYPE, True)
    assert mark.data["lossless"] is False
    assert mark.data["keptEvents"] == 8
    assert mark.data["losses"][0]["seq"] == 8
    assert mark.data["losses"][0]["rule"] == "50 §4"
    # No reader takes the export for the session's log.
    with dsh.open(folder) as log:
        assert log.generation == 0


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        ((turn("start"), step("start"), chunk("a"), answer("b", sources=[2])), 3),
        ((*V0_TURN, turn("start", 2), turn("start", 4)), 9),
        ((*V0_TURN, turn("start", 3)), 8),
        ((*V0_TURN, turn("start", 2), step("start", 1, 2), chunk("a", turn=9)), 8),
        ((turn("start", 2),), 0),
    ],
)
def test_salvage_keeps_the_longest_sound_prefix(
    tmp_path: Path, events: tuple[Any, ...], kept: int
) -> None:
    """Refused by an edge, by acceptance, at the end, and only by the check of streams."""
    folder = write_session(tmp_path, "s0", text_of(header_of(0), numbered(*events)), 0)
    done = salvage(folder)
    assert dsh.check(done.target, level="full", mode="strict").status == "sound"
    assert done.losses
    assert done.kept_count == kept


def test_salvage_of_a_damaged_log(tmp_path: Path) -> None:
    """50 §2.4: damage before a later `turn/end` refuses the log; what came before it is kept."""
    rows = text_of(header_of(0), numbered(*V0_TURN, turn("start", 2))).splitlines(
        keepends=True
    )
    end = b'{"type":"turn/end","seq":9,"time":9,"data":{"turn":2,"reason":{"kind":"completed"}}}\n'
    folder = write_session(tmp_path, "s0", b"".join((*rows, b"{bad\n", end)), 0)
    done = salvage(folder)
    assert done.kept_count == 9
    assert [loss.seq for loss in done.losses] == [9]


def test_salvage_of_a_seeded_log_without_its_marker_fails(tmp_path: Path) -> None:
    """Nothing sound can be made of an inherited part without an end."""
    text = text_of(header_of(2, isSeeded=True), numbered(turn("start")))
    folder = write_session(tmp_path, "s2", text, 2)
    with pytest.raises(dsh.DshCodecError) as caught:
        salvage(folder)
    assert caught.value.rule is not None
    assert {path.name for path in folder.iterdir()} == {"session.v2.jsonl"}


def test_salvage_of_a_seeded_log_behind_its_marker(tmp_path: Path) -> None:
    events = (turn("start"), seed(inherited=True), {"type": "zz", "data": 1})
    text = text_of(header_of(2, isSeeded=True), numbered(*events))
    done = salvage(write_session(tmp_path, "s2", text, 2))
    with dsh.open(done.target) as log:
        assert [event.type for event in log] == [
            "turn/start",
            "session/end-seed",
            MARK_TYPE,
        ]
