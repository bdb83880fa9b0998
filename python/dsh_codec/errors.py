"""Exception classes of both kernels and of everything above them."""

from __future__ import annotations

import os
from typing import Any, Self

__all__ = [
    "CorruptLogError",
    "DshCodecError",
    "FrameError",
    "HeaderError",
    "IdentityError",
    "JsonSyntaxError",
    "LayoutError",
    "LimitExceededError",
    "MigrationRefusedError",
    "NewerFormatError",
    "ReplayError",
    "RowError",
    "SeqGapError",
    "SessionLockedError",
    "SidecarError",
    "StreamError",
    "UnknownChunkError",
    "UnsupportedError",
]


class DshCodecError(Exception):
    """Base of every refusal. All fields are in `args`, so errors pickle and copy.

    Attributes:
        message: What is wrong, what was expected, and what the caller can do.
        path: File, as the caller gave it.
        line: Line of the file's text, from 1 (the header is line 1).
        offset: Byte, from 0; of the plaintext for rows, of the file for frames.
        seq: Event, from 0.
        frame: Zstandard frame, from 0.
        rule: Rule of the spec that refused, such as `A1` or `10 §8.3`.

        Each is None where it does not apply. Spec: 00 §5.
    """

    message: str
    path: str | None
    line: int | None
    offset: int | None
    seq: int | None
    frame: int | None
    rule: str | None

    def __init__(
        self,
        message: str = "",
        path: str | os.PathLike[str] | None = None,
        line: int | None = None,
        offset: int | None = None,
        seq: int | None = None,
        frame: int | None = None,
        rule: str | None = None,
        *extra: Any,
    ) -> None:
        """Take the attributes in their order, then those of a subclass."""
        self.message = message
        self.path = None if path is None else os.fspath(path)
        self.line = line
        self.offset = offset
        self.seq = seq
        self.frame = frame
        self.rule = rule
        super().__init__(message, self.path, line, offset, seq, frame, rule, *extra)

    def located(
        self,
        *,
        path: str | os.PathLike[str] | None = None,
        line: int | None = None,
        offset: int | None = None,
        seq: int | None = None,
        frame: int | None = None,
        rule: str | None = None,
    ) -> Self:
        """Return the same error with the places filled in that it does not know."""
        given = (path, line, offset, seq, frame, rule)
        merged: list[Any] = [
            new if old is None else old
            for old, new in zip(self.args[1:7], given, strict=True)
        ]
        return type(self)(self.message, *merged, *self.args[7:])

    def __str__(self) -> str:
        """Return the message with its places and rule."""
        places = [
            f"{name} {value}"
            for name, value in (
                ("line", self.line),
                ("byte", self.offset),
                ("seq", self.seq),
                ("frame", self.frame),
            )
            if value is not None
        ]
        if self.rule is not None:
            places.append(f"rule {self.rule}")
        text = self.message
        if self.path is not None:
            text = f"{self.path}: {text}"
        return f"{text} ({', '.join(places)})" if places else text


def _extra(args: tuple[Any, ...], place: int, default: Any = None) -> Any:
    """Return an argument behind the seven that every class has."""
    return args[7 + place] if len(args) > 7 + place else default


class NewerFormatError(DshCodecError):
    """The log is intact, but from a newer format. Spec: 00 §4.2.

    Attributes:
        found: Version in the header (a number; not always an integer).
        supported: Highest version that this package reads.
    """

    found: float
    supported: int

    def __init__(self, *args: Any) -> None:
        """Take the base's fields, then the attributes above in their order."""
        super().__init__(*args)
        self.found, self.supported = _extra(args, 0), _extra(args, 1)


class UnsupportedError(DshCodecError):
    """The log is intact, but this version cannot interpret it. Spec: 00 §5."""


class MigrationRefusedError(UnsupportedError):
    """No safe migration of this log exists. Spec: 50 §2.3.

    Attributes:
        edge: Step that refuses, such as `1→2`; None if it is none of them.
        member: Member of the event that it refuses, as a path; None if it is the event.
    """

    edge: str | None
    member: str | None

    def __init__(self, *args: Any, **named: Any) -> None:
        """Take the base's fields, then the attributes above in their order."""
        super().__init__(*args, **named)
        self.edge, self.member = _extra(args, 0), _extra(args, 1)


class CorruptLogError(DshCodecError):
    """Structure or content violates the format. Spec: 00 §5."""


class HeaderError(CorruptLogError):
    """The header row is missing or breaks a rule. Spec: 10 §4."""


class FrameError(CorruptLogError):
    """A Zstandard frame is damaged or not allowed here. Spec: 10 §7."""


class RowError(CorruptLogError):
    """A row breaks a rule. Spec: 10 §5 to §6, 30 §6 to §10."""


class JsonSyntaxError(RowError, ValueError):
    """The text is not JSON. Spec: 10 §1."""


class SeqGapError(RowError):
    """A row does not carry the next seq. Spec: 10 §5.

    Attributes:
        expected: The seq that the row should have.
        got: What it has instead (any JSON value).
    """

    expected: int
    got: Any

    def __init__(self, *args: Any) -> None:
        """Take the base's fields, then the attributes above in their order."""
        super().__init__(*args)
        self.expected, self.got = _extra(args, 0), _extra(args, 1)


class StreamError(CorruptLogError, TypeError):
    """A chunk or a record of an embedded stream breaks a rule. Spec: 20.

    Attributes:
        record: Index of the record, or of the pushed chunk, from 0; None if unknown.
    """

    record: int | None

    def __init__(self, *args: Any) -> None:
        """Take the base's fields, then the attributes above in their order."""
        super().__init__(*args)
        self.record = _extra(args, 0)


class UnknownChunkError(StreamError):
    """The type of a chunk is not one that packing or assembly knows. Spec: 20 §3, §6."""


class IdentityError(DshCodecError):
    """The file is in the wrong place or names another session. Spec: 00 §5."""


class LayoutError(DshCodecError):
    """The content of a directory does not fit the layout. Spec: 10 §10."""


class SidecarError(DshCodecError):
    """An assembled log and its sidecar do not fit. Spec: 60 §7.

    Attributes:
        reason: `version`, `mismatch` or `corrupt`.
    """

    reason: str

    def __init__(self, *args: Any) -> None:
        """Take the base's fields, then the attributes above in their order."""
        super().__init__(*args)
        self.reason = _extra(args, 0, "corrupt")


class ReplayError(DshCodecError):
    """A replay does not fit its sidecar. Spec: 60 §8.

    Attributes:
        reason: `exhausted` or `unconsumed`.
    """

    reason: str

    def __init__(self, *args: Any) -> None:
        """Take the base's fields, then the attributes above in their order."""
        super().__init__(*args)
        self.reason = _extra(args, 0, "exhausted")


class SessionLockedError(DshCodecError, BlockingIOError):
    """Another writer owns the session. Spec: 10 §9."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what rebuilds the error; `OSError` would drop fields."""
        # OSError keeps its own idea of args; these are the fields.
        fields = (self.path, self.line, self.offset, self.seq, self.frame, self.rule)
        return type(self), (self.message, *fields)


class LimitExceededError(DshCodecError):
    """An input exceeds a limit. Spec: none; see `dsh_codec.limits`.

    Attributes:
        limit: Keyword argument that sets the limit, such as `max_row_bytes`.
        value: Its value.
    """

    limit: str
    value: int

    def __init__(self, *args: Any) -> None:
        """Take the base's fields, then the attributes above in their order."""
        super().__init__(*args)
        self.limit, self.value = _extra(args, 0), _extra(args, 1)
