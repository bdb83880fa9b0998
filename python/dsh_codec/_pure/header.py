"""The header row of every generation. Spec: 10 §4."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from dsh_codec._pure.buffer import bytes_of
from dsh_codec._pure.json import parse
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
_TEXTS: Final = ("cwd", "parentSession", "agentPreset")
_REQUIRED: Final = ("type", "version", "id", "createdAt", "delegationDepth")
_OPTIONAL: Final = ("cwd", "parentSession", "origin", "agentPreset")


def parse_header(line: Buffer, /, *, generation: int | None = None) -> Header:
    """Parse a header row. See `_kernel.pyi`."""
    check_generation(generation)
    return read_header_row(bytes_of(line), generation=generation, max_depth=MAX_DEPTH)


def check_generation(generation: int | None) -> None:
    """Refuse an argument that names no generation."""
    if generation is not None and (
        type(generation) is not int or not 0 <= generation <= NEWEST
    ):
        message = f"generation has to be None or 0 to {NEWEST}, not {generation!r}"
        raise ValueError(message)


def read_header_row(line: bytes, *, generation: int | None, max_depth: int) -> Header:
    """Parse a header row in the reading order of 10 §4.1."""
    if line.find(b"\n") != len(line) - 1 or not line:
        _refuse("the header row has to end with its only line feed")
    try:
        value = parse(line, max_depth=max_depth)
    except JsonSyntaxError as error:
        _refuse(f"the header row is {error.message} at byte {error.offset}")
    if type(value) is not dict:
        _refuse(f"the header row has to be an object, not {quote(value)}")
    found = _generation_of(value.get("version", MISSING), generation)
    if found == NEWEST:
        for key in _RETIRED:
            if key in value:
                _refuse(f"the header has the retired field {key}", "10 §4.1 step 5")
    return _header(value, found)


def _generation_of(version: Any, wanted: int | None) -> int:
    """Return the generation by whose table the header is to be read."""
    if is_number(version) and version > NEWEST:
        message = (
            f"the log has format version {quote(version)}; "
            f"this version of dsh_codec reads up to {NEWEST}"
        )
        raise NewerFormatError(message, None, 1, 0, None, None, None, version, NEWEST)
    if wanted == NEWEST:
        if is_number(version) and version < NEWEST:
            message = (
                f"the log has format version {quote(version)}; "
                f"a scan of generation {NEWEST} does not read it, migrate it first"
            )
            raise UnsupportedError(message, None, 1, 0)
        return NEWEST  # What is no number is refused by the table.
    if not is_count(version):
        _refuse(f"version has to be a count, not {quote(version)}")
    if wanted is not None and version != wanted:
        _refuse(f"version has to be {wanted}, not {quote(version)}")
    return int(version)


def _header(value: dict[str, Any], generation: int) -> Header:
    """Apply the tables of 10 §4.1 and §4.2."""
    seeds_here = generation in SEEDS_IN_HEADER
    required = _REQUIRED if seeds_here else (*_REQUIRED, "isSeeded")
    optional = (*_OPTIONAL, "seedLength") if seeds_here else _OPTIONAL
    for key in required:
        if key not in value:
            _refuse(f"the header lacks {key}")
    for key in value:
        if key not in required and key not in optional:
            _refuse(f"the header has the unknown field {quote(key)}")
    if value["type"] != "session":
        _refuse(f'type has to be "session", not {quote(value["type"])}')
    if not is_number(value["version"]):
        _refuse(f"version has to be {generation}, not {quote(value['version'])}")
    for key in ("id", *_TEXTS):
        if key in value and type(value[key]) is not str:
            _refuse(f"{key} has to be a string, not {quote(value[key])}")
    for key in ("createdAt", "delegationDepth", "seedLength"):
        if key in value and not is_count(value[key]):
            _refuse(f"{key} has to be a count, not {quote(value[key])}")
    if "cwd" in value and not is_absolute(value["cwd"]):
        _refuse(f"cwd has to be an absolute path, not {quote(value['cwd'])}")
    if "origin" in value and value["origin"] != "subagent":
        _refuse(f'origin has to be "subagent", not {quote(value["origin"])}')
    if not seeds_here and type(value["isSeeded"]) is not bool:
        _refuse(f"isSeeded has to be a boolean, not {quote(value['isSeeded'])}")
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
