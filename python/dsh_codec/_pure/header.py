"""The header row of every generation. Spec: 10 §4."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from dsh_codec._pure.buffer import bytes_of
from dsh_codec._pure.json import parse_row
from dsh_codec._pure.quote import MISSING, quote
from dsh_codec._types import Header
from dsh_codec.errors import (
    HeaderError,
    JsonSyntaxError,
    NewerFormatError,
    UnsupportedError,
)
from dsh_codec.limits import MAX_DEPTH
from dsh_codec.values import is_count, is_number

if TYPE_CHECKING:
    from typing_extensions import Buffer

NEWEST: Final = 4
"""Highest generation that this package reads."""

SEEDS_IN_HEADER: Final = (0, 1)
"""Generations whose header stores the inherited cut. Spec: 10 §4.2."""

_RETIRED: Final = ("sandboxMode", "approvalPolicy")
_WINDOWS_ABSOLUTE: Final = re.compile(r"[/\\]|[A-Za-z]:[/\\]")
_KEYS: Final = frozenset(
    {
        *("type", "version", "id", "createdAt", "delegationDepth"),
        *("cwd", "parentSession", "origin", "agentPreset"),
    }
)


def parse_header(line: Buffer, /, *, generation: int | None = None) -> Header:
    """Parse a header row. See `_kernel.pyi`."""
    check_generation(generation)
    return read_header_row(bytes_of(line), generation=generation, max_depth=MAX_DEPTH)


def check_generation(generation: int | None) -> None:
    """Refuse an argument that names no generation."""
    if generation is not None and (
        type(generation) is not int or not 0 <= generation <= NEWEST
    ):
        message = f"generation must be None or an integer from 0 to {NEWEST}"
        raise ValueError(message)


def read_header_row(line: bytes, *, generation: int | None, max_depth: int) -> Header:
    """Parse a header row in the reading order of 10 §4.1."""
    if line.find(b"\n") != len(line) - 1 or not line:
        _refuse("the header row must end with its only line feed")
    try:
        value = parse_row(
            line[:-1],
            offset=0,
            max_depth=max_depth,
            what="header row",
            has_feed=False,
        )
    except JsonSyntaxError as error:
        _refuse(error.message)
    if type(value) is not dict:
        _refuse("the header row is no JSON object")
    found = _generation_of(value.get("version", MISSING), generation)
    if found == NEWEST:
        for key in _RETIRED:
            if key in value:
                _refuse(f"the header has the retired field {key}", "10 §4.1 step 5")
        if not is_number(value.get("version")):
            _refuse("`version` of the header is missing or no number")
    return _header(value, found)


def _generation_of(version: Any, wanted: int | None) -> int:
    """Return the generation by whose table the header is to be read."""
    if is_number(version) and version > NEWEST:
        message = (
            f"the log has format version {quote(version)}; "
            f"the highest supported one is {NEWEST}"
        )
        found = int(version) if is_count(version) else version
        raise NewerFormatError(message, None, 1, 0, None, None, None, found, NEWEST)
    if wanted == NEWEST:
        if is_number(version) and version < NEWEST:
            message = (
                f"the log has format version {quote(version)}, which a native read of "
                f"version {NEWEST} does not take; migrate it"
            )
            raise UnsupportedError(message, None, 1, 0)
        return NEWEST  # What is no number is refused behind the retired fields.
    if not is_count(version):
        _refuse("`version` of the header is no count")
    if wanted is not None and version != wanted:
        _refuse(f"the header has version {int(version)}, expected {wanted}")
    return int(version)


def _header(value: dict[str, Any], generation: int) -> Header:
    """Apply the tables of 10 §4.1 and §4.2."""
    seeds_here = generation in SEEDS_IN_HEADER
    if not value.keys() <= _KEYS | {"seedLength" if seeds_here else "isSeeded"}:
        _refuse(f"the header has a key that version {generation} does not know")
    if value.get("type") != "session":
        _refuse("`type` of the header must be session")
    if type(value.get("id")) is not str:
        _refuse("`id` of the header is missing or no string")
    for key in ("createdAt", "delegationDepth"):
        if not is_count(value.get(key)):
            _refuse(f"`{key}` of the header is missing or no count")
    for key in ("parentSession", "agentPreset"):
        if type(value.get(key, "")) is not str:
            _refuse(f"`{key}` of the header is no string")
    path = value.get("cwd", "/")
    if type(path) is not str or not is_absolute(path):
        _refuse("`cwd` of the header is no absolute path")
    if value.get("origin", "subagent") != "subagent":
        _refuse("`origin` of the header may only be subagent")
    if seeds_here and not is_count(value.get("seedLength", 0)):
        _refuse("`seedLength` of the header is no count")
    if not seeds_here and type(value.get("isSeeded")) is not bool:
        _refuse("`isSeeded` of the header is missing or no boolean")
    fields = {
        key: int(member) if is_number(member) else member
        for key, member in value.items()
        if key not in ("type", "seedLength")
    }
    if not seeds_here:
        return Header(generation, fields, None)
    cut = int(value["seedLength"]) if "seedLength" in value else None
    # A seedLength of 0 is a seeded session too.
    return Header(generation, fields | {"isSeeded": cut is not None}, cut)


def is_absolute(path: str) -> bool:
    """Whether a path is absolute by the rules of this host. Spec: 10 §4.1."""
    if os.name == "nt":
        return _WINDOWS_ABSOLUTE.match(path) is not None
    return path.startswith("/")


def _refuse(message: str, rule: str = "10 §4") -> NoReturn:
    raise HeaderError(message, None, 1, 0, None, None, rule) from None
