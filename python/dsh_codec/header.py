"""Header rows above the kernel: the header-only reader and the encoder. Spec: 10 §4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from dsh_codec._backend import kernel
from dsh_codec.errors import (
    CorruptLogError,
    HeaderError,
    LimitExceededError,
)
from dsh_codec.values import is_count, is_lossless, is_number

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CURRENT_VERSION", "HeaderReport", "encode_header", "read_header"]

CURRENT_VERSION: Final = 4
"""Format version that is written, and the highest that is read."""

HeaderStatus: TypeAlias = Literal[
    "current", "migration-required", "unsupported", "malformed"
]

_RETIRED: Final = ("sandboxMode", "approvalPolicy")
_WRITTEN_ORDER: Final = (
    "version",
    "id",
    "createdAt",
    "cwd",
    "parentSession",
    "isSeeded",
    "origin",
    "delegationDepth",
    "agentPreset",
)


class HeaderReport(NamedTuple):
    """What a header-only reader says of a header row. Spec: 10 §4.3, 50 §2.2.

    Attributes:
        status: `current` (version 4), `migration-required` (0 to 3), `unsupported` (above
            4), or `malformed`.
        target_version: The version that reading leads to: 4.
        stored_version: `version` of the header; None if it is no count.
        header: Logical header of the target version; None unless current or
            migration-required.
        reason: Why it is unsupported or malformed, else None.
    """

    status: HeaderStatus
    target_version: int
    stored_version: int | None
    header: dict[str, Any] | None
    reason: str | None


def read_header(value: Any) -> HeaderReport:
    """Classify a parsed header row of any generation.

    Args:
        value: The JSON value of the row, as `parse` gives it.

    Returns:
        The report. It never looks at event rows, and refuses nothing by an exception.

    Note:
        This path asks for a count: 4.5 or 2^53 is malformed here, although a scan of
        generation 4 calls it newer. Spec: 10 §4.3.
    """
    if type(value) is not dict:
        return _refused("malformed", None, "the header row is not an object")
    version = value.get("version")
    if not is_count(version):
        return _refused("malformed", None, "version is not a count")
    stored = int(version)
    if stored > CURRENT_VERSION:
        reason = f"format version {stored} is newer than {CURRENT_VERSION}"
        return _refused("unsupported", stored, reason)
    if not is_lossless(value):
        return _refused("malformed", stored, "the header is not lossless JSON")
    try:
        header = kernel.parse_header(kernel.dump(value) + b"\n", generation=stored)
    except (CorruptLogError, LimitExceededError) as error:
        return _refused("malformed", stored, error.message)
    fields = header.fields | {"version": CURRENT_VERSION}
    if stored < 3 and fields.get("agentPreset") == "code":
        fields["agentPreset"] = "ptc"  # Spec 50 §2.2: edge 2 to 3.
    is_current = stored == CURRENT_VERSION
    status: HeaderStatus = "current" if is_current else "migration-required"
    return HeaderReport(status, CURRENT_VERSION, stored, fields, None)


def _refused(status: HeaderStatus, stored: int | None, reason: str) -> HeaderReport:
    return HeaderReport(status, CURRENT_VERSION, stored, None, reason)


def encode_header(
    fields: Mapping[str, Any], *, inherited_event_count: int | None = None
) -> bytes:
    """Write a header row of generation 4, without its line feed.

    Args:
        fields: Logical header; `delegationDepth` may be absent and is then written as 0.
        inherited_event_count: The inherited cut. It is checked, not stored: an end-seed
            marker carries it. May be absent for a session that is not seeded.

    Returns:
        UTF-8; members in the order of 10 §4.1.

    Raises:
        TypeError: The cut is not a count.
        HeaderError: The fields break a rule of 10 §4.1, or the cut does not fit them (10
            §4.4).
    """
    if inherited_event_count is not None and not is_count(inherited_event_count):
        message = (
            f"the inherited cut has to be a count, not {inherited_event_count!r:.64}"
        )
        raise TypeError(message)
    logical = dict(fields)
    for key in _RETIRED:
        if key in logical:
            message = f"the header has the retired field {key}"
            raise _fault(message)
    if not is_number(logical.get("version")) or logical["version"] != CURRENT_VERSION:
        message = f"version has to be {CURRENT_VERSION}"
        raise _fault(message)
    if "type" in logical:
        message = "a logical header has no type"
        raise _fault(message)
    if not is_lossless(logical):
        message = "the header has to be lossless JSON"
        raise _fault(message)
    logical.setdefault("delegationDepth", 0)
    ordered = {key: logical[key] for key in _WRITTEN_ORDER if key in logical}
    line = kernel.dump({"type": "session"} | ordered | logical)
    header = kernel.parse_header(line + b"\n", generation=CURRENT_VERSION)
    if header.fields["isSeeded"] and inherited_event_count is None:
        message = "a seeded header needs its inherited cut"
        raise _fault(message, "10 §4.4")
    if not header.fields["isSeeded"] and inherited_event_count:
        message = f"a header that is not seeded has cut 0, not {inherited_event_count}"
        raise _fault(message, "10 §4.4")
    return line


def _fault(message: str, rule: str = "10 §4.1") -> HeaderError:
    return HeaderError(message, None, None, None, None, None, rule)
