"""Canonical JSON by RFC 8785, for digests over values. Spec: 60 §6.4."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from dsh_codec._pure.json import parse, write

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TEXT_PAST_BMP: Final = re.compile("[\U00010000-\U0010ffff]")


def canonicalize(data: Buffer, /, *, max_depth: int = 1024) -> bytes:
    """Return the canonical text of one JSON text. See `_kernel.pyi`."""
    return canonical_json(parse(data, max_depth=max_depth), max_depth=max_depth)


def canonical_json(value: Any, *, max_depth: int) -> bytes:
    """Return the canonical text of a value, see `canonicalize`."""
    return write(value, _sorted_keys, max_depth=max_depth)


def _sorted_keys(members: dict[str, Any]) -> list[str]:
    keys = sorted(members)
    # Code points and UTF-16 code units sort alike where no character takes two units.
    text = "".join(keys)
    if not text.isascii() and _TEXT_PAST_BMP.search(text):
        keys.sort(key=lambda key: key.encode("utf-16-be", "surrogatepass"))
    return keys
