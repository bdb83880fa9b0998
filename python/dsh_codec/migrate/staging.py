"""Files that get their name only when they are complete. Spec: 10 §11.3.

Until the last step nothing but a file with a temporary name exists, so a process that is killed, or
one that is overtaken by another, leaves no half of a log. POSIX: hard links.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from dsh_codec._backend import kernel
from dsh_codec._types import StreamText
from dsh_codec.durable import OsFileSystem, make_directories
from dsh_codec.events import SURFACE_ROLES
from dsh_codec.limits import MAX_DEPTH
from dsh_codec.names import log_filename

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from dsh_codec._types import Compression
    from dsh_codec.migrate.edge import JsonObject

__all__ = [
    "Staged",
    "digest_of",
    "encode_row",
    "link_staged",
    "stage",
    "staging_folder",
    "with_values",
]

_PIECE_BYTES: Final = 256 << 10


class Staged(NamedTuple):
    """A complete file under a temporary name.

    Attributes:
        path: The file.
        file_bytes: Its size.
        digest: SHA-256 of its bytes.
        event_count: Events in it.
    """

    path: Path
    file_bytes: int
    digest: bytes
    event_count: int


@contextmanager
def staging_folder(parent: Path, *, is_dry: bool) -> Generator[Path]:
    """Give the folder to stage in: the target's own, or in a dry run one that vanishes."""
    if is_dry:
        with tempfile.TemporaryDirectory(prefix="dsh-codec-") as folder:
            yield Path(folder)
        return
    make_directories(OsFileSystem(), [str(parent)])
    yield parent


def encode_row(event: JsonObject, *, max_depth: int = MAX_DEPTH) -> bytes:
    """Return the row of an event, its line feed included. Spec: 10 §5.1.

    Args:
        event: Logical event of generation 4; its stream may be a `StreamText`.
        max_depth: Nested arrays and objects that are allowed.
    """
    seqs = event.get("sourceEventSeqs")
    # An opaque event of generation 3 may hold anything there.
    if type(seqs) is list and event["type"] in SURFACE_ROLES:
        event = event | {"sourceEventSeqs": kernel.encode_seqs(seqs)}
    data = event["data"]
    if isinstance(data, dict) and isinstance(data.get("stream"), StreamText):
        return _encode_settlement(event, data, max_depth)
    return kernel.dump(event, max_depth=max_depth) + b"\n"


def _encode_settlement(event: JsonObject, data: JsonObject, max_depth: int) -> bytes:
    """Return the row of an event whose stream is text already."""
    if list(data)[-1] != "stream":
        return kernel.dump(with_values(event), max_depth=max_depth) + b"\n"
    # The stream is the last member of the payload, so its text has one place only.
    shell = kernel.dump(data | {"stream": None}, max_depth=max_depth)
    shell = shell.removesuffix(b"null}")
    names = list(event)
    place = names.index("data")
    before, behind = (
        kernel.dump({name: event[name] for name in part}, max_depth=max_depth)[1:-1]
        for part in (names[:place], names[place + 1 :])
    )
    middle = b'"data":%b%b}' % (shell, data["stream"].text)
    return b"{%b}\n" % b",".join(filter(None, (before, middle, behind)))


def with_values(event: JsonObject) -> JsonObject:
    """Return an event with its stream as JSON values, if that is text."""
    data = event["data"]
    if isinstance(data, dict) and isinstance(data.get("stream"), StreamText):
        records = kernel.parse(data["stream"].text)
        return event | {"data": data | {"stream": records}}
    return event


def stage(
    folder: Path,
    rows: Iterable[bytes],
    header: Callable[[], bytes],
    *,
    compression: Compression,
) -> Staged:
    """Write a log under a temporary name, header and rows in one frame each.

    Args:
        folder: Where.
        rows: Its rows with their line feeds, one an event.
        header: Returns its header row without the line feed; asked after the last row.
        compression: How to store it.

    Raises:
        OSError: The system refuses; nothing stays behind.
        Exception: Whatever `rows` and `header` raise; nothing stays behind.
    """
    # The header stands first and is known last, so the rows wait in a file of their own.
    with tempfile.TemporaryFile() as body:
        event_count = _write_body(body, rows, compression)
        line = header() + b"\n"
        suffix = log_filename(0, compression=compression).removeprefix("session")
        path = folder / f"session.migration.{secrets.token_hex(8)}{suffix}.tmp"
        digest, file_bytes = hashlib.sha256(), 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in _pieces(compression, line, body):
                    file.write(piece)
                    digest.update(piece)
                    file_bytes += len(piece)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return Staged(path, file_bytes, digest.digest(), event_count)


def _write_body(
    body: IO[bytes], rows: Iterable[bytes], compression: Compression
) -> int:
    """Write the rows as they will be stored; return how many there were."""
    if compression == "none":
        count = 0
        for row in rows:
            body.write(row)
            count += 1
        return count
    frame = kernel.FrameWriter()
    held: list[bytes] = []
    count = held_bytes = 0
    for row in rows:
        count += 1
        held.append(row)
        held_bytes += len(row)
        # A call for every short row would cost more than its compression.
        if held_bytes >= _PIECE_BYTES:
            body.write(frame.write(b"".join(held)))
            held.clear()
            held_bytes = 0
    if count:
        body.write(frame.write(b"".join(held)))
        body.write(frame.finish())
    return count


def _pieces(
    compression: Compression, header: bytes, body: IO[bytes]
) -> Iterator[bytes]:
    yield header if compression == "none" else kernel.encode_frame(header)
    body.seek(0)
    while piece := body.read(_PIECE_BYTES):
        yield piece


def digest_of(path: Path) -> bytes:
    """Return the SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.digest()


# --- the name ---


def link_staged(staged: Staged, target: Path) -> bool:
    """Give the staged file its name; False if the name has these bytes already.

    Raises:
        FileExistsError: The name is taken by something else.
    """
    try:
        # Fails where the name exists, whoever made it and however late.
        os.link(staged.path, target)
    except FileExistsError:
        if not _begins_with(target, staged.path):
            message = "A different log of the current generation is there already"
            raise FileExistsError(errno.EEXIST, message, str(target)) from None
        return False
    OsFileSystem().sync_directory(str(target.parent))
    return True


def _begins_with(target: Path, staged: Path) -> bool:
    """Whether the target is a regular file that begins with the staged bytes."""
    if not stat.S_ISREG(target.lstat().st_mode):
        return False
    with target.open("rb") as mine, staged.open("rb") as theirs:
        while piece := theirs.read(_PIECE_BYTES):
            if mine.read(len(piece)) != piece:
                return False
    return True
