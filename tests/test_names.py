"""Names and paths of the layout. Spec: 10 §2."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from dsh_codec import (
    decode_segment,
    encode_segment,
    log_filename,
    log_path,
    parse_log_filename,
    project_key,
)

TEXT = st.text(st.characters(codec=None), min_size=1)


@pytest.mark.parametrize(
    ("raw", "segment"),
    [
        ("abc", "abc"),
        ("a b", "a~0020b"),
        ("...", "..."),
        (".", "~002E"),
        ("..", "~002E~002E"),
        ("~", "~007E"),
        ("a/b", "a~002Fb"),
        ("é", "~00E9"),
        ("\U0001f600", "~D83D~DE00"),
        ("\ud83d", "~D83D"),
        ("2026-01-01T00:00", "2026-01-01T00~003A00"),
    ],
)
def test_segment_of_an_id(raw: str, segment: str) -> None:
    """Spec 10 §2.2, the table."""
    assert encode_segment(raw) == segment
    assert decode_segment(segment) == raw


@given(TEXT)
def test_segment_decodes_to_its_id(raw: str) -> None:
    """Spec 10 §2.2: injective. A split pair and the character are one id."""
    segment = encode_segment(raw)
    assert encode_segment(decode_segment(segment)) == segment
    assert segment.isascii()


@pytest.mark.parametrize("segment", ["", "~", "~00E", "~00G0", "a b", "é", "a~"])
def test_segment_that_no_id_has_is_refused(segment: str) -> None:
    """Spec 10 §2.2: four hexadecimal digits follow a `~`."""
    with pytest.raises(ValueError, match="no escaped session id"):
        decode_segment(segment)


def test_segment_of_the_empty_id_is_refused() -> None:
    """Spec 10 §2.2."""
    with pytest.raises(ValueError, match="empty"):
        encode_segment("")


@pytest.mark.parametrize(
    ("cwd", "key"),
    [
        ("/home/user/my proj", "--home-user-my~0020proj--"),
        ("/", "--root--"),
        ("///", "--root--"),
        ("C:\\Users\\x", "--C-Users-x--"),
        ("/-x", "--x--"),
        ("/a~b/c", "--a~007Eb-c--"),
        ("/a:/b", "--a-b--"),
        ("/data/.hidden", "--data-.hidden--"),
        ("/" + "x" * 300, "--" + "x" * 251 + "--"),
    ],
)
def test_project_key_of_a_directory(cwd: str, key: str) -> None:
    """Spec 10 §2.3, the table and the cut."""
    assert project_key(cwd) == key


@pytest.mark.parametrize(
    ("name", "zstd", "plain"),
    [
        ("session.jsonl", None, 0),
        ("session.jsonl.zstd", 0, None),
        ("session.v4.jsonl.zstd", 4, None),
        ("session.v1.jsonl", None, 1),
        ("session.v0.jsonl", None, None),
        ("session.v04.jsonl", None, None),
        ("Session.v4.jsonl", None, None),
        ("session.v4.jsonl.zst", None, None),
        ("session.v4.jsonl.zstd.ab12.tmp", None, None),
        ("session.v9007199254740993.jsonl", None, None),
        ("session.v9007199254740991.jsonl", None, 9007199254740991),
        ("session.v" + "9" * 5000 + ".jsonl", None, None),
        ("session.v\u0661.jsonl", None, None),
        ("session.jsonl\n", None, None),
    ],
)
def test_generation_of_a_file_name(
    name: str, zstd: int | None, plain: int | None
) -> None:
    """Spec 10 §2.1, the table."""
    assert parse_log_filename(name, compression="zstd") == zstd
    assert parse_log_filename(name, compression="none") == plain


@pytest.mark.parametrize("version", [-1, 1.5, -0.0, 2**53, float("nan"), True])
def test_file_name_of_what_is_no_count_is_refused(version: float) -> None:
    """Spec 10 §2.1."""
    with pytest.raises(ValueError, match="no count"):
        log_filename(version, compression="none")  # type: ignore[arg-type]


def test_unknown_compression_is_refused() -> None:
    """A wrong argument, not a bad log."""
    with pytest.raises(ValueError, match="compression"):
        parse_log_filename("session.jsonl", compression="gzip")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("/r/../q", "/q/--w--/s/session.v4.jsonl"),
        (".", "--w--/s/session.v4.jsonl"),
        ("", "--w--/s/session.v4.jsonl"),
        ("/..", "/--w--/s/session.v4.jsonl"),
        ("..//a/./b/", "../a/b/--w--/s/session.v4.jsonl"),
    ],
)
def test_path_is_normalised_lexically(root: str, path: str) -> None:
    """Spec 10 §2.3."""
    assert log_path(root, cwd="/w", id="s", version=4, compression="none") == path


def test_path_without_working_directory() -> None:
    """Spec 10 §2.3."""
    path = log_path("/r", cwd=None, id="a/b", version=0, compression="zstd")
    assert path == "/r/_no-cwd/a~002Fb/session.jsonl.zstd"
