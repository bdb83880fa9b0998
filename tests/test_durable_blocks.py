"""Blocks of a file that is published: the same bytes, whatever the system takes at once."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dsh_codec.durable import OsFileSystem, in_blocks, stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

BLOCK_BYTES = 1 << 19


class Short(OsFileSystem):
    """Takes few bytes at once."""

    def write_pieces(self, descriptor: int, pieces: Sequence[Buffer]) -> int:
        return os.write(descriptor, b"".join(pieces)[:7])

    def write(self, descriptor: int, data: Buffer) -> int:
        return os.write(descriptor, memoryview(data)[:100_000])


def parts_of(seed: int) -> list[bytes]:
    chance = random.Random(seed)  # noqa: S311 - data of a test
    longest = chance.choice((10, 5_000, 3 * BLOCK_BYTES))
    counts = [chance.randrange(longest) for _ in range(chance.randrange(40))]
    return [chance.randbytes(count) for count in counts]


@pytest.mark.parametrize("seed", range(30))
def test_blocks_are_the_bytes_and_end_at_multiples(seed: int) -> None:
    parts = parts_of(seed)
    blocks = list(in_blocks(parts))
    assert b"".join(b"".join(block) for block in blocks) == b"".join(parts)
    written = 0
    for number, block in enumerate(blocks, 1):
        before = written
        written += sum(len(memoryview(piece)) for piece in block)
        assert 0 < len(block) <= 16
        assert written - 1 < (before // BLOCK_BYTES + 1) * BLOCK_BYTES
        is_whole = written % BLOCK_BYTES == 0 or len(block) == 16
        assert is_whole or number == len(blocks)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("files", [OsFileSystem(), Short()], ids=["whole", "short"])
def test_staged_blocks_are_the_bytes(
    tmp_path: Path, seed: int, files: OsFileSystem
) -> None:
    parts = parts_of(seed)
    staged = stage(files, str(tmp_path / "file"), in_blocks(parts))
    assert Path(staged).read_bytes() == b"".join(parts)


def test_system_without_gathered_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "writev")
    parts = parts_of(1)
    staged = stage(OsFileSystem(), str(tmp_path / "file"), in_blocks(parts))
    assert Path(staged).read_bytes() == b"".join(parts)


def test_refused_block_names_the_file_and_leaves_none(tmp_path: Path) -> None:
    class Full(OsFileSystem):
        def write_pieces(self, descriptor: int, pieces: Sequence[Buffer]) -> int:
            del descriptor, pieces
            raise OSError(28, os.strerror(28))

    path = str(tmp_path / "file")
    with pytest.raises(OSError, match="space") as refusal:
        stage(Full(), path, in_blocks([b"text"]))
    assert refusal.value.filename == path
    assert list(tmp_path.iterdir()) == []
