"""Names of the layout: log files, session directories, project directories. Spec: 10 §2."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from dsh_codec.limits import MAX_SAFE_INTEGER
from dsh_codec.values import fuse, is_count, utf16_units

if TYPE_CHECKING:
    from dsh_codec._types import Compression

__all__ = [
    "decode_segment",
    "encode_segment",
    "log_filename",
    "log_path",
    "parse_log_filename",
    "project_key",
]

NO_CWD: Final = "_no-cwd"
"""Project directory of sessions without a working directory. Spec: 10 §2.3."""

_SUFFIX: Final[dict[str, str]] = {"none": "", "zstd": ".zstd"}
_LOG_NAME: Final = re.compile(r"session(?:\.v([1-9][0-9]{0,15}))?\.jsonl")
_PLAIN_UNITS: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
)
_SEPARATOR_UNITS: Final = frozenset(b"/\\:")
_SEGMENT_PART: Final = re.compile(r"~([0-9A-Fa-f]{4})|[A-Za-z0-9._-]")
_MAX_KEY_UNITS: Final = 251  # Spec 10 §2.3: 255 characters with the dashes around it.


def encode_segment(raw: str) -> str:
    """Return the name of the directory of a session.

    Args:
        raw: The session id, any non-empty string; lone surrogates are allowed.

    Returns:
        ASCII: letters, digits, `.`, `_`, `-` as they are, every other UTF-16 unit as `~XXXX`.

    Raises:
        ValueError: The id is empty.

    Note:
        Injective; `decode_segment` is the inverse. Spec: 10 §2.2.

    Example:
        >>> encode_segment("a b")
        'a~0020b'
    """
    if not raw:
        message = "an empty session id names no directory"
        raise ValueError(message)
    if raw in (".", ".."):
        return "~002E" * len(raw)
    return "".join(map(_escape_unit, utf16_units(raw)))


def decode_segment(segment: str) -> str:
    """Return the session id that a directory name stands for.

    Args:
        segment: What `encode_segment` made; hexadecimal digits in either case.

    Returns:
        The id; units without a partner stay lone surrogates.

    Raises:
        ValueError: The name is empty, a `~` lacks its four hexadecimal digits, or a
            character occurs that is always escaped.

    Note:
        Spec: 10 §2.2.

    Example:
        >>> decode_segment("a~0020b")
        'a b'
    """
    position = 0
    parts = []
    while position < len(segment):
        part = _SEGMENT_PART.match(segment, position)
        if part is None:
            message = (
                f"{segment[:64]!r} is no escaped session id (character {position})"
            )
            raise ValueError(message)
        parts.append(chr(int(part[1], 16)) if part[1] else part[0])
        position = part.end()
    if not parts:
        message = "an empty name is no escaped session id"
        raise ValueError(message)
    return fuse("".join(parts))


def project_key(cwd: str) -> str:
    r"""Return the name of the project directory of a working directory.

    Args:
        cwd: The header's `cwd`, with `/`, `\\` or `:` as separators.

    Returns:
        ASCII, at most 255 characters. Different directories may have the same key.

    Raises:
        ValueError: The path is empty.

    Note:
        Spec: 10 §2.3.

    Example:
        >>> project_key("/home/user/my proj")
        '--home-user-my~0020proj--'
    """
    if not cwd:
        message = "an empty working directory has no project key"
        raise ValueError(message)
    parts = []
    in_run = False
    for unit in utf16_units(cwd):
        if unit in _SEPARATOR_UNITS:
            if not in_run:
                parts.append("-")
            in_run = True
        else:
            in_run = False
            parts.append(_escape_unit(unit))
    name = "".join(parts).lstrip("-") or "root"
    return f"--{name[:_MAX_KEY_UNITS]}--"


def log_filename(version: int, *, compression: Compression) -> str:
    """Return the canonical file name of a generation.

    Args:
        version: The generation, a count (`4.0` is one, -0 is not).
        compression: How the file is stored.

    Raises:
        ValueError: The version is no count, or the compression is unknown.

    Note:
        Spec: 10 §2.1.

    Example:
        >>> log_filename(4, compression="zstd")
        'session.v4.jsonl.zstd'
    """
    if not is_count(version):
        message = f"generation {version!r} has no file name: it is no count"
        raise ValueError(message)
    number = "" if version == 0 else f".v{int(version)}"
    return f"session{number}.jsonl{_suffix(compression)}"


def parse_log_filename(name: str, *, compression: Compression) -> int | None:
    """Return the generation that a file name stands for.

    Args:
        name: File name without directories.
        compression: The encoding that is in use.

    Returns:
        The generation, or None if the name is not canonical in this encoding.

    Raises:
        ValueError: The compression is unknown.

    Note:
        Spec: 10 §2.1.

    Example:
        >>> parse_log_filename("session.v4.jsonl.zstd", compression="zstd")
        4
    """
    suffix = _suffix(compression)
    if not name.endswith(suffix):
        return None
    match = _LOG_NAME.fullmatch(name[: len(name) - len(suffix)])
    if match is None:
        return None
    version = int(match[1] or 0)
    return version if version <= MAX_SAFE_INTEGER else None


def log_path(
    root: str | os.PathLike[str],
    *,
    cwd: str | None,
    id: str,  # noqa: A002 - the header's own word
    version: int,
    compression: Compression,
) -> str:
    """Return the path where a session's log of one generation belongs.

    Args:
        root: The sessions root.
        cwd: The header's working directory; None if it has none.
        id: The header's session id.
        version: The generation.
        compression: How the file is stored.

    Returns:
        `root / project key / segment / file name` with `/`, normalised lexically.

    Raises:
        ValueError: A part has no name, see the other functions.

    Note:
        Spec: 10 §2.3.

    Example:
        >>> log_path("/r/../q", cwd="/w", id="s", version=4, compression="none")
        '/q/--w--/s/session.v4.jsonl'
    """
    project = NO_CWD if cwd is None else project_key(cwd)
    name = log_filename(version, compression=compression)
    parts = (os.fspath(root), project, encode_segment(id), name)
    return _normalise("/".join(part for part in parts if part))


def _escape_unit(unit: int) -> str:
    return chr(unit) if unit in _PLAIN_UNITS else f"~{unit:04X}"


def _suffix(compression: str) -> str:
    suffix = _SUFFIX.get(compression)
    if suffix is None:
        message = f"compression is 'none' or 'zstd', not {compression!r}"
        raise ValueError(message)
    return suffix


def _normalise(path: str) -> str:
    kept: list[str] = []
    absolute = path.startswith("/")
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            kept.append(part)
        elif kept and kept[-1] != "..":
            kept.pop()
        elif not absolute:
            kept.append(part)
    return "/" * absolute + "/".join(kept)
