"""Sessions under a root. Spec: 10 §10, 80 §1."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dsh_codec as dsh
from dsh_codec.check import check_many
from dsh_codec.find import log_files, select_log
from small_logs import DEMO, HEADER, HEADER_V0, PLAIN, ZSTD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def header(name: str, **members: str) -> bytes:
    more = "".join(f',"{key}":"{value}"' for key, value in members.items())
    old = b'"id":"s-1"'
    return HEADER.replace(old, f'"id":"{name}"{more}'.encode())


def make(root: Path, name: str, data: bytes, file: str = "session.v4.jsonl") -> Path:
    path = root / name / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_find_lists_every_session_of_a_root(tmp_path: Path) -> None:
    """Spec 00 §3, 80 §1 S6."""
    make(tmp_path, "--w--/a", header("a"))
    make(tmp_path, "--w--/b", header("b", parentSession="a", origin="subagent"))
    make(tmp_path, "--x--/c", header("c", parentSession="gone"))
    make(tmp_path, "_no-cwd/d", HEADER_V0, "session.jsonl")
    found = list(dsh.find(tmp_path))
    assert [(s.id, s.lineage, s.status) for s in found] == [
        ("a", "root", "current"),
        ("b", "subagent", "current"),
        ("c", "fork", "current"),
        ("s-0", "root", "migration-required"),
    ]
    assert [s.parent for s in found] == [None, "a", "gone", None]
    assert found[0].file_bytes == len(header("a"))
    assert [s.id for s in dsh.find(tmp_path / "--w--")] == ["a", "b"]
    assert [s.id for s in dsh.find(tmp_path / "--w--" / "b")] == ["b"]
    assert [s.id for s in dsh.find(found[2].path)] == ["c"]


def test_find_takes_the_highest_generation(tmp_path: Path) -> None:
    """Spec 80 §1 S1, S4."""
    old = make(tmp_path, "p/s", HEADER_V0, "session.jsonl")
    new = make(tmp_path, "p/s", PLAIN)
    rest = make(tmp_path, "p/s", b"", "session.v4.jsonl.0a.tmp")
    make(tmp_path, "p/s", b"", "session.lock")
    (session,) = dsh.find(tmp_path)
    assert session.path == str(new)
    assert session.retained == (str(old),)
    assert session.leftovers == (str(rest),)


def test_find_never_falls_back(tmp_path: Path) -> None:
    """Spec 10 §10, 80 §1 S1 and S3."""
    make(tmp_path, "p/s", PLAIN)
    make(tmp_path, "p/s", HEADER.replace(b"4", b"5", 1), "session.v5.jsonl")
    make(tmp_path, "p/t", PLAIN)
    make(tmp_path, "p/t", b"", "session.v4.jsonl.zstd")
    make(tmp_path, "p/u", PLAIN, "session.v3.jsonl")
    make(tmp_path, "p/v", b"rubbish", "session.jsonl.zstd")
    make(tmp_path, "p/w", PLAIN)
    found = {
        Path(s.path).parent.name if s.error else s.id: s for s in dsh.find(tmp_path)
    }
    newer = found["s"].error
    assert found["s"].status == "newer"
    assert isinstance(newer, dsh.NewerFormatError)
    assert newer.found == 5
    assert found["p"].status == "ambiguous"
    assert isinstance(found["p"].error, dsh.LayoutError)
    assert isinstance(found["u"].error, dsh.IdentityError)
    assert isinstance(found["v"].error, dsh.DshCodecError)
    assert (found["v"].generation, found["v"].compression) == (0, "zstd")
    assert found["s-1"].status == "current"


def test_compression_chooses_where_both_are_there(tmp_path: Path) -> None:
    """Spec 80 §1 S2."""
    plain = make(tmp_path, "p/s", PLAIN)
    packed = make(tmp_path, "p/s", ZSTD, "session.v4.jsonl.zstd")
    assert [s.path for s in dsh.find(tmp_path, compression="none")] == [str(plain)]
    assert [s.path for s in dsh.find(tmp_path, compression="zstd")] == [str(packed)]
    assert [file.path for file in log_files(tmp_path / "p/s")] == [
        str(plain),
        str(packed),
    ]
    assert select_log(tmp_path / "p/s", compression="zstd").path == str(packed)


def test_find_reads_the_header_only(tmp_path: Path) -> None:
    """Spec 80 §1 S5: damage behind the header does not show in a listing."""
    make(tmp_path, "p/s", HEADER + b"rubbish\n" * 9)
    make(tmp_path, "p/t", ZSTD + b"rubbish", "session.v4.jsonl.zstd")
    assert [s.status for s in dsh.find(tmp_path)] == ["current", "current"]


def test_find_follows_links_once(tmp_path: Path) -> None:
    make(tmp_path, "p/s", PLAIN)
    try:
        (tmp_path / "p" / "loop").symlink_to(tmp_path, target_is_directory=True)
    except OSError:
        pytest.skip("this system has no symbolic links")
    assert len(list(dsh.find(tmp_path))) == 1


def test_links_out_of_the_root_are_followed_once(tmp_path: Path) -> None:
    """What lies under the root is listed at its own place only."""
    root, elsewhere = tmp_path / "a" / "root", tmp_path / "b"
    make(root, "p/s", PLAIN)
    make(elsewhere, "t", PLAIN)
    try:
        (root / "1").symlink_to(elsewhere, target_is_directory=True)
        (root / "2").symlink_to(elsewhere, target_is_directory=True)
        (root / "3").symlink_to(tmp_path, target_is_directory=True)
        (root / "0").symlink_to(root / "p", target_is_directory=True)
    except OSError:
        pytest.skip("this system has no symbolic links")
    found = [str(Path(s.path).parent.relative_to(root)) for s in dsh.find(root)]
    assert found == [str(Path("1/t")), str(Path("p/s"))]


def test_scan_finds_damage_behind_the_header(tmp_path: Path) -> None:
    """Spec 80 §1 S5: more than the header only where asked for."""
    make(tmp_path, "p/s", PLAIN)
    make(tmp_path, "p/t", ZSTD + b"rubbish", "session.v4.jsonl.zstd")
    good, bad = dsh.find(tmp_path, scan=True)
    assert good.scan is not None
    assert good.scan.scan.event_count == 5
    assert (bad.status, bad.scan) == ("error", None)
    assert isinstance(bad.error, dsh.FrameError)
    assert bad.id == "s-1"


@pytest.mark.parametrize("pad", [0, 8000, 100_000])
def test_header_of_any_length_is_read(tmp_path: Path, pad: int) -> None:
    """The first 8 KiB are enough for most, but not for all."""
    long = HEADER.replace(b'"/w"', b'"/' + bytes(range(97, 123)) * (pad // 26) + b'"')
    make(tmp_path, "p/s", long + PLAIN[len(HEADER) :])
    noise = "".join(chr(0x4E00 + i * 7919 % 20000) for i in range(pad // 3))
    wide = long.replace(b'"/', b'"/' + noise.encode(), 1)
    packed = dsh.kernel.encode_frame(wide) + dsh.kernel.encode_frame(b"")
    make(tmp_path, "p/t", packed, "session.v4.jsonl.zstd")
    found = list(dsh.find(tmp_path))
    assert [s.status for s in found] == ["current", "current"]
    assert [s.header.fields["cwd"] for s in found if s.header] == [
        long.decode().split('"cwd":"')[1].split('"')[0],
        wide.decode().split('"cwd":"')[1].split('"')[0],
    ]


def test_one_bad_frame_does_not_disturb_the_next_session(tmp_path: Path) -> None:
    """One decompression context serves all sessions."""
    for name in "acegi":
        make(tmp_path, f"p/{name}", ZSTD, "session.v4.jsonl.zstd")
    make(tmp_path, "p/b", ZSTD[:40] + b"x" + ZSTD[41:], "session.v4.jsonl.zstd")
    make(tmp_path, "p/d", ZSTD[:30], "session.v4.jsonl.zstd")
    one_frame = dsh.kernel.encode_frame(PLAIN)
    make(tmp_path, "p/f", one_frame, "session.v4.jsonl.zstd")
    make(tmp_path, "p/h", b"", "session.v4.jsonl.zstd")
    found = {Path(s.path).parent.name: s.status for s in dsh.find(tmp_path)}
    expected = {name: "current" if name in "acegi" else "error" for name in "abcdefghi"}
    assert found == expected


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipe_under_a_root_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "session.v4.jsonl")
    (session,) = dsh.find(tmp_path)
    assert session.status == "error"
    assert isinstance(session.error, dsh.LayoutError)
    found = dsh.calls(tmp_path)
    assert list(found) == []
    assert [str(each.error) for each in found.errors] == [str(session.error)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize("ask", [dsh.find, dsh.calls, dsh.timing])
def test_pipe_as_a_root_is_refused_unread(
    tmp_path: Path, ask: Callable[[Path], Iterable[object]]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(dsh.LayoutError, match="a pipe can be read only once"):
        list(ask(pipe))


def test_link_to_itself_does_not_hide_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    session = tmp_path / "s"
    session.mkdir()
    (session / "loop").symlink_to("loop")
    (session / "session.v4.jsonl").write_bytes(PLAIN)
    (found,) = dsh.find(tmp_path)
    assert found.status == "current"
    assert found.path == str(session / "session.v4.jsonl")
    (session / "session.v4.jsonl").unlink()
    (session / "session.v4.jsonl").symlink_to("session.v4.jsonl")
    (found,) = dsh.find(tmp_path)
    assert isinstance(found.error, OSError)


def test_link_that_cannot_be_followed_is_named_beside_its_neighbours(
    tmp_path: Path,
) -> None:
    (tmp_path / "long").symlink_to("x" * 300)
    make(tmp_path, "s", PLAIN)
    bad, good = sorted(dsh.find(tmp_path), key=lambda session: session.path)
    assert (bad.path, bad.status) == (str(tmp_path / "long"), "error")
    assert isinstance(bad.error, OSError)
    assert good.status == "current"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipe_in_a_session_directory_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe that somebody names is read; one with the name of a log is nobody's answer."""
    path = tmp_path / "session.v4.jsonl"
    os.mkfifo(path)
    for place in (tmp_path, path):
        with pytest.raises(dsh.LayoutError, match="regular"):
            dsh.open(place)
        assert dsh.check(place).status == "unreadable"
    (report,) = check_many([path])
    assert isinstance(report.error, dsh.LayoutError)


def test_find_without_root_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(dsh.find(tmp_path / "gone"))
    assert list(dsh.find(tmp_path)) == []


def test_find_lists_the_demo_logs() -> None:
    found = {Path(s.path).parent.name: s.status for s in dsh.find(DEMO)}
    assert found == {
        "v0": "migration-required",
        "v0-packed": "migration-required",
        "v1": "migration-required",
        "v2": "migration-required",
        "v3": "migration-required",
        "v4": "current",
        "v4-plain": "current",
        "v4-surrogates": "current",
        "v4-torn": "current",
    }
