"""Canonical JSON by RFC 8785, for digests over values. Spec: 60 §6.4."""

from __future__ import annotations

import re
from typing import Any, Final

from dsh_codec._backend import kernel

__all__ = ["canonical_json"]

_NESTED: Final = frozenset((dict, list))
_TEXT_PAST_BMP: Final = re.compile("[\ue000-\U0010ffff]")


def canonical_json(value: Any) -> bytes:
    r"""Return the canonical JSON text of a value by RFC 8785.

    Args:
        value: A JSON value as `parse` gives it.

    Returns:
        UTF-8: members sorted by their UTF-16 code units, numbers in JavaScript's spelling, no
        white space. Lone surrogates are `\udxxx` escapes. Spec: 60 §6.4.

    Raises:
        TypeError, ValueError, LimitExceededError: It is no JSON value, or nested too deep.

    Example:
        >>> canonical_json({"b": 1.0, "a": [True, None]})
        b'{"a":[true,null],"b":1}'
    """
    top: list[Any] = [value]
    pending: list[Any] = [top]
    while pending:
        holder = pending.pop()
        places = holder.items() if type(holder) is dict else enumerate(holder)
        for place, inner in places:
            # A member is exchanged for its sorted copy; no key comes or goes.
            if type(inner) is dict:
                members = {key: inner[key] for key in _sorted_keys(inner)}
                holder[place] = members
                pending.append(members)
            elif type(inner) is list and not _NESTED.isdisjoint(map(type, inner)):
                elements = inner.copy()
                holder[place] = elements
                pending.append(elements)
    return kernel.dump(top[0])


def _sorted_keys(members: dict[str, Any]) -> list[str]:
    keys = sorted(members)
    # Code points and UTF-16 code units sort alike up to the surrogates.
    if keys and keys[-1][:1] >= "\x80" and _TEXT_PAST_BMP.search("".join(keys)):
        keys.sort(key=lambda key: key.encode("utf-16-be", "surrogatepass"))
    return keys
