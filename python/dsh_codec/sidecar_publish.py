"""Split and join as files: written beside their places, and named when they are whole. Spec: 60 §5 to §7."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from dsh_codec.durable import (
    FILE_MODE,
    OsFileSystem,
    discard,
    in_blocks,
    only_of,
    publish,
    publish_staged,
    stage,
)
from dsh_codec.find import CURRENT_GENERATION
from dsh_codec.log import require_log
from dsh_codec.names import log_filename
from dsh_codec.projection import without_reasoning
from dsh_codec.sidecar import current_log, join_text, split_text
from dsh_codec.sidecar_file import SidecarWriter, sidecar_filename, stored

if TYPE_CHECKING:
    from dsh_codec._types import Compression
    from dsh_codec.log import Log
    from dsh_codec.sidecar_file import Sidecar

__all__ = [
    "SplitFiles",
    "drop_reasoning_to",
    "join_to",
    "projection_filename",
    "split_to",
]


class SplitFiles(NamedTuple):
    """What `split_to` wrote.

    Attributes:
        assembled: The assembled log.
        sidecar: Its sidecar.
    """

    assembled: Path
    sidecar: Path


def split_to(
    log: Log,
    directory: str | os.PathLike[str],
    *,
    compression: Compression | None = None,
    allow_opaque: bool = False,
    strict_current: bool = False,
) -> SplitFiles:
    """Write the assembled log and the sidecar of a log into a directory.

    Args:
        log: An open log; an older one is migrated in memory, without children.
        directory: Where both files go; it is made if it is not there.
        compression: How they are stored; None: as the log is.
        allow_opaque: As for `split`.
        strict_current: As for `split`.

    Raises:
        FileExistsError: One of the files is there already. Nothing is written over.
        SidecarError, UnsupportedError, DshCodecError, OSError: As for `split`; no file is left.

    Note:
        One pass, two if an attempt was cut; memory: one row. No file has its name before it is
        whole, the sidecar first. Spec: 60 §5 to §7.
    """
    require_log(log)
    kept = log.compression if compression is None else compression
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    assembled = folder / log_filename(CURRENT_GENERATION, compression=kept)
    sidecar = folder / sidecar_filename(compression=kept)
    for path in (assembled, sidecar):
        _require_new(path)
    files = OsFileSystem()
    temporary = f"{sidecar}.{os.urandom(6).hex()}.tmp"
    try:
        with (
            current_log(log, strict_current=strict_current) as current,
            _create(temporary, str(sidecar)) as file,
        ):
            writer = SidecarWriter(file, compression=kept)
            text = split_text(current, writer, allow_opaque=allow_opaque)
            staged = stage(files, str(assembled), in_blocks(stored(text, kept)))
            try:
                files.sync(file.fileno())
                file.close()
                publish_staged(files, temporary, str(sidecar))
            except BaseException:
                discard(files, staged)
                raise
        try:
            publish_staged(files, staged, str(assembled))
        except BaseException:
            discard(files, str(sidecar))
            raise
    except BaseException:
        discard(files, temporary)
        raise
    return SplitFiles(assembled, sidecar)


def join_to(
    assembled: Log,
    sidecar: Sidecar,
    target: str | os.PathLike[str],
    *,
    compression: Compression | None = None,
) -> Path:
    """Write the log that was split.

    Args:
        assembled: An open assembled log.
        sidecar: Its sidecar.
        target: The new file, or a directory for it.
        compression: How it is stored; None: as the assembled log is.

    Returns:
        The file.

    Raises:
        FileExistsError: There is such a file.
        SidecarError, UnsupportedError, DshCodecError, OSError: As for `join`; no file is left.

    Note:
        The file has its name only when both digests were compared. Spec: 60 §7.
    """
    require_log(assembled)
    kept = assembled.compression if compression is None else compression
    path = Path(target)
    if path.is_dir():
        path /= log_filename(CURRENT_GENERATION, compression=kept)
    _require_new(path)
    parts = stored(join_text(assembled, sidecar), kept)
    publish(OsFileSystem(), str(path), in_blocks(parts))
    return path


def projection_filename(*, compression: Compression) -> str:
    """Return the name of a log without reasoning: not one that a store takes for a log's.

    Example:
        >>> projection_filename(compression="none")
        'session.v4.no-reasoning.jsonl'
    """
    name = f"session.v{CURRENT_GENERATION}.no-reasoning.jsonl"
    return f"{name}.zstd" if compression == "zstd" else name


def drop_reasoning_to(
    log: Log,
    directory: str | os.PathLike[str],
    *,
    compression: Compression | None = None,
    strict_current: bool = False,
) -> Path:
    """Write a log without its streams and its reasoning, which no sidecar gives back.

    Args:
        log: As for `split_to`.
        directory: As for `split_to`.
        compression: As for `split_to`.
        strict_current: As for `split_to`.

    Returns:
        The file; its name is `projection_filename`, and its last event says what it is.

    Raises:
        FileExistsError: There is such a file.
        SidecarError, UnsupportedError, DshCodecError, OSError: As for `without_reasoning`.
    """
    kept = log.compression if compression is None else compression
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / projection_filename(compression=kept)
    _require_new(path)
    with current_log(log, strict_current=strict_current) as current:
        rows = without_reasoning(current)
        publish(OsFileSystem(), str(path), in_blocks(stored(rows, kept)))
    return path


def _create(temporary: str, path: str) -> IO[bytes]:
    """Make a file; an error names the path that it is for."""
    try:
        return open(temporary, "x+b", buffering=0, opener=_private)
    except OSError as error:
        raise only_of(error, path) from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), FILE_MODE)


def _require_new(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "there is such a file already", str(path))
