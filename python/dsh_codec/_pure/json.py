"""The JSON model: texts to values and back. Spec: 10 §1.

`parse` has three readers for one grammar. The quick ones are used only where they cannot
differ from the third, `_Reader`, which is iterative, knows every rule, and says where a text
stops to be JSON.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NoReturn

from dsh_codec._pure.buffer import bytes_of
from dsh_codec._pure.plain import takes_subclasses
from dsh_codec.errors import JsonSyntaxError, LimitExceededError
from dsh_codec.values import EXACT_INTEGER, fuse, is_negative_zero, number_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

_quick_parse: Callable[[bytes], Any] | None
try:
    import orjson
except ImportError:  # The standard reader does all of it, only slower.
    _quick_parse = None
else:
    _quick_parse = orjson.loads

RULE: Final = "10 §1"

ORJSON_DEPTH: Final = 1024
"""Nested arrays and objects that orjson accepts; it refuses more by itself."""

STANDARD_DEPTH: Final = 64
"""Nested arrays and objects that the standard reader, which recurses, is given."""

MAX_INDEX_KEY: Final = 4_294_967_294
"""Largest key that counts as an array index. Spec: 10 §1."""

# Where orjson and the JSON model differ: -0 in integer spelling, integers of 2^53 and above.
_DIFFERS: Final = re.compile(rb"-0|[0-9]{16}")

# --- parse ---


def parse(data: Buffer, /, *, max_depth: int = 1024) -> Any:
    """Parse one JSON text. See `_kernel.pyi`."""
    raw = bytes_of(data)
    try:
        return _parsed(raw, max_depth, is_row=False)
    except _ReadError as fault:
        at, expected = fault.at, fault.expected
    if expected == _LESS_DEPTH:
        message = f"the value nests deeper than {max_depth} levels; raise max_depth to take it"
        places = (None, None, at, None, None, None)
        raise LimitExceededError(message, *places, "max_depth", max_depth)
    message = f"the text is not JSON: expected {expected or _MORE}"
    raise JsonSyntaxError(message, None, None, at, None, None, RULE)


def parse_row(
    raw: bytes,
    *,
    offset: int,
    max_depth: int,
    what: str = "row",
    has_feed: bool = True,
) -> Any:
    """Parse a row, given without its line feed.

    Args:
        raw: The row.
        offset: Byte of the text where it starts, for messages.
        max_depth: Nested arrays and objects that are allowed.
        what: What messages call it.
        has_feed: Whether there is a line feed behind it, which is then what stands where it ends.

    Raises:
        JsonSyntaxError, LimitExceededError: As for `parse`, without a place.
    """
    try:
        return _parsed(raw, max_depth, is_row=what == "row", feed=b"\n" * has_feed)
    except _ReadError as fault:
        at, expected = offset + fault.at, fault.expected
    if expected == _LESS_DEPTH:
        message = (
            f"the row nests deeper than {max_depth} levels at byte {at}; "
            "raise max_depth to read it"
        )
        raise LimitExceededError(message, *(None,) * 6, "max_depth", max_depth)
    fault_text = f"expected {expected} at byte {at}" if expected else _ENDS
    message = f"the {what} is not JSON: {fault_text}"
    raise JsonSyntaxError(message, *(None,) * 5, RULE)


def _parsed(raw: bytes, max_depth: int, *, is_row: bool, feed: bytes = b"") -> Any:
    openers = raw.count(b"[") + raw.count(b"{")
    if (
        _quick_parse is not None
        and (openers <= max_depth or max_depth >= ORJSON_DEPTH)
        and _DIFFERS.search(raw) is None
    ):
        try:
            return _quick_parse(raw)
        except ValueError:
            # Not JSON, or lone surrogates, ill-formed UTF-8, 1e400, more than 1024 levels.
            pass
    shallow = min(STANDARD_DEPTH, max_depth)
    if openers <= shallow or _nesting(raw) <= shallow:
        try:
            return _DECODER.decode(raw.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            pass
    return _Reader(raw + feed, len(raw), max_depth, is_row=is_row).read()


def integer(digits: str) -> int | float:
    """Return the value of an integer literal. Spec: 10 §1, design 2.1."""
    if len(digits) <= 17:
        value = int(digits)
        if value == 0 and digits[0] == "-":
            return -0.0
        if -EXACT_INTEGER <= value <= EXACT_INTEGER:
            return value
    return float(
        digits
    )  # Not by way of int, which takes quadratic time for long literals.


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and Infinity are no JSON.


_DECODER: Final = json.JSONDecoder(parse_int=integer, parse_constant=_refuse_constant)

# The quantifiers are possessive: a text that does not match is left in linear time.
_STRING_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def _nesting(raw: bytes) -> int:
    """Return how deep the arrays and objects of a text are nested; exact for valid JSON."""
    brackets = _STRING_TOKEN.sub(b"", raw).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


_BLANKS: Final = re.compile(rb"[ \t\n\r]*+")
_BLANKS_OF_ROW: Final = re.compile(rb"[ \t\r]*+")
_NUMBER: Final = re.compile(
    rb"-?(?:0|[1-9][0-9]*+)(?P<fraction>\.[0-9]++)?(?P<exponent>[eE][+-]?[0-9]++)?"
)
_STRING_BODY: Final = re.compile(
    rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+'
)
_ESCAPE: Final = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_SHORT_ESCAPES: Final = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
_LITERALS: Final = {
    b"t": (b"true", True),
    b"f": (b"false", False),
    b"n": (b"null", None),
}
_HEX: Final = b"0123456789abcdefABCDEF"
_ESCAPES: Final = r"one of \" \\ \/ \b \f \n \r \t \u and four hexadecimal digits"


def _unescape(escape: re.Match[str]) -> str:
    code, short = escape.groups()
    return chr(int(code, 16)) if code is not None else _SHORT_ESCAPES[short]


_LESS_DEPTH: Final = "less depth"
_ENDS: Final = "it ends inside a value"
_MORE: Final = f"more: {_ENDS}"


class _ReadError(Exception):
    """Where a text stops to be JSON, and what was expected there; None if it ends there."""

    def __init__(self, at: int, expected: str | None) -> None:
        super().__init__(at, expected)
        self.at = at
        self.expected = expected


class _Reader:
    """Iterative parser over bytes.

    A fault is at the first byte with which the text is no beginning of a JSON text any more; at
    the end of the data if more is needed. A row ends at its line feed, if there is one.
    """

    def __init__(self, raw: bytes, end: int, max_depth: int, *, is_row: bool) -> None:
        self._raw = raw
        self._max_depth = max_depth
        self._is_row = is_row
        self._blanks = _BLANKS_OF_ROW if is_row else _BLANKS
        self._end = end
        self._at = 0

    def read(self) -> Any:
        """Read the whole text."""
        open_containers: list[list[Any] | dict[str, Any]] = []
        open_keys: list[str] = []  # The key whose value is being read, per open object.
        self._skip_blanks()
        while True:
            byte = self._byte()
            value: Any
            if byte in (b"[", b"{"):
                if len(open_containers) >= self._max_depth:
                    self._refuse(_LESS_DEPTH)
                value = [] if byte == b"[" else {}
                self._at += 1
                self._skip_blanks()
                if self._byte() != (b"]" if byte == b"[" else b"}"):
                    open_containers.append(value)
                    if byte == b"{":
                        open_keys.append(self._key())
                    continue
                self._at += 1
            else:
                value = self._scalar(byte)
            # The value is complete: so may be the containers around it.
            while True:
                self._skip_blanks()
                if not open_containers:
                    if self._at < self._end:
                        kind = "row" if self._is_row else "text"
                        self._refuse(f"the end of the {kind}")
                    return value
                container = open_containers[-1]
                separator = self._byte()
                if type(container) is list:
                    container.append(value)
                    if separator == b",":
                        break
                    if separator != b"]":
                        self._refuse("a comma or ]")
                else:
                    container[open_keys.pop()] = value  # type: ignore[call-overload]
                    if separator == b",":
                        break
                    if separator != b"}":
                        self._refuse("a comma or }")
                self._at += 1
                value = open_containers.pop()
            self._at += 1
            self._skip_blanks()
            if type(container) is dict:
                open_keys.append(self._key())

    def _byte(self) -> bytes:
        return self._raw[self._at : self._at + 1]

    def _skip_blanks(self) -> None:
        blanks = self._blanks.match(self._raw, self._at)
        if blanks is not None:
            self._at = blanks.end()

    def _key(self) -> str:
        if self._byte() != b'"':
            self._refuse("a key in quotes")
        key = self._string()
        self._skip_blanks()
        if self._byte() != b":":
            self._refuse("a colon")
        self._at += 1
        self._skip_blanks()
        return key

    def _scalar(self, byte: bytes) -> Any:
        if byte == b'"':
            return self._string()
        if byte in _LITERALS:
            return self._literal(*_LITERALS[byte])
        if byte and byte in b"-0123456789":
            return self._number()
        return self._refuse("a JSON value")

    def _string(self) -> str:
        start = self._at + 1
        body = _STRING_BODY.match(self._raw, start)
        end = start if body is None else body.end()
        self._at = end
        if self._byte() != b'"':
            self._refuse_string()
        self._at = end + 1
        # Quotes, backslashes and escapes are ASCII, so no ill-formed part reaches over them.
        text = self._raw[start:end].decode("utf-8", "replace")
        return fuse(_ESCAPE.sub(_unescape, text)) if "\\" in text else text

    def _refuse_string(self) -> NoReturn:
        if self._byte() == b"\\":
            self._at += 1
            if self._byte() == b"u":
                self._at += 1
                while self._byte() and self._byte() in _HEX:
                    self._at += 1
            self._refuse(_ESCAPES)
        self._refuse("no control character inside a string")

    def _literal(self, word: bytes, value: Any) -> Any:
        for expected in word:
            if self._byte() != bytes((expected,)):
                self._refuse(word.decode())
            self._at += 1
        return value

    def _number(self) -> int | float:
        number = _NUMBER.match(self._raw, self._at)
        if number is None:
            self._at += 1
            self._refuse("a digit")
        self._at = number.end()
        byte = self._byte()
        if number[0] in (b"0", b"-0") and byte.isdigit():
            self._refuse("no digit behind a leading zero")
        whole = number["fraction"] is None and number["exponent"] is None
        if whole and byte == b".":
            self._at += 1
            self._refuse("a digit")
        if number["exponent"] is None and byte in (b"e", b"E"):
            self._at += 1
            if self._byte() in (b"+", b"-"):
                self._at += 1
            self._refuse("a digit")
        digits = number[0].decode()
        return integer(digits) if whole else float(digits)

    def _refuse(self, expected: str) -> NoReturn:
        raise _ReadError(self._at, expected if self._byte() else None)


# --- dump ---

_INDEX_KEY: Final = re.compile("0|[1-9][0-9]{0,9}")
_LONE_HALF: Final = re.compile("[\ud800-\udfff]")
_encode_string: Final = json.encoder.encode_basestring


@takes_subclasses
def dump(value: Any, /, *, max_depth: int = 1024) -> bytes:
    """Write a value as compact JSON. See `_kernel.pyi`."""
    return write(value, _ordered_keys, max_depth=max_depth)


def write(
    value: Any, order: Callable[[dict[str, Any]], list[str]], *, max_depth: int
) -> bytes:
    """Write a value as compact JSON, the keys of each object in the order that is given."""
    pieces: list[str] = []
    # The containers being written: their remaining members and their last character.
    open_containers: list[tuple[Iterator[tuple[str, Any]], str]] = []
    # A document is the one member, without prefix, of a container that has no brackets.
    members: Iterator[tuple[str, Any]] = iter([("", value)])
    closing = ""
    while True:
        for prefix, item in members:
            kind = type(item)
            if kind is not dict and kind is not list and kind is not tuple:
                pieces.append(prefix + _scalar_text(item))
                continue
            if len(open_containers) >= max_depth:
                message = (
                    f"the value nests deeper than {max_depth} levels; "
                    "raise max_depth to take it"
                )
                raise LimitExceededError(
                    message, None, None, None, None, None, None, "max_depth", max_depth
                )
            open_containers.append((members, closing))
            if kind is dict:
                pieces.append(prefix + "{")
                members, closing = _members(item, order(item)), "}"
            else:
                pieces.append(prefix + "[")
                members, closing = _elements(item), "]"
            break
        else:
            pieces.append(closing)
            if not open_containers:
                break
            members, closing = open_containers.pop()
    text = "".join(pieces)
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Two lone halves side by side are one character; quotes keep strings apart.
        return _LONE_HALF.sub(_escape_half, fuse(text)).encode()


def _escape_half(half: re.Match[str]) -> str:
    return f"\\u{ord(half[0]):04x}"


def _elements(array: list[Any] | tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    separator = ""
    for item in array:
        yield separator, item
        separator = ","


def _members(members: dict[str, Any], keys: list[str]) -> Iterator[tuple[str, Any]]:
    separator = ""
    for key in keys:
        yield f"{separator}{_encode_string(key)}:", members[key]
        separator = ","


def _ordered_keys(members: dict[str, Any]) -> list[str]:
    """Return the keys in the order of writing: array indexes first, ascending. Spec: 10 §1."""
    indexes: list[tuple[int, str]] = []
    others: list[str] = []
    for key in members:
        if type(key) is not str:
            message = f"a JSON key must be a str, not {type(key).__name__}"
            raise TypeError(message)
        if _INDEX_KEY.fullmatch(key) and int(key) <= MAX_INDEX_KEY:
            indexes.append((int(key), key))
        else:
            others.append(key)
    return [key for _, key in sorted(indexes)] + others if indexes else others


def _scalar_text(value: Any) -> str:
    if value is None:
        return "null"
    kind = type(value)
    if kind is str:
        text: str = _encode_string(value)
        return text
    if kind is bool:
        return "true" if value else "false"
    if kind is int or kind is float:
        return number_text(value)
    message = f"JSON has no value of type {kind.__name__}"
    raise TypeError(message)


# --- values that come from the caller ---


def copy_lossless(value: Any) -> Any:
    """Return a deep copy of a lossless JSON value. Spec: 10 §1.2.

    Args:
        value: A value from the caller, who may hand in anything.

    Returns:
        The copy; tuples become lists.

    Raises:
        ValueError: The value holds -0, a number that is not finite, something that is not
            JSON, or itself; the message says which.
    """
    result: list[Any] = []
    # Per open container: what is left of it, the copy, and its identity.
    pending: list[tuple[Iterator[tuple[Any, Any]], Any, int]] = [
        (iter([(None, value)]), result, 0)
    ]
    path: set[int] = set()
    while pending:
        members, target, identity = pending[-1]
        for key, item in members:
            kind = type(item)
            if kind is dict:
                copied: Any = {}
                inner: Iterator[tuple[Any, Any]] = iter(item.items())
            elif kind is list or kind is tuple:
                copied = []
                inner = ((None, element) for element in item)
            else:
                _check_scalar(item)
                copied, inner = item, iter(())
            if isinstance(target, list):
                target.append(copied)
            elif type(key) is str:
                target[key] = copied
            else:
                message = f"it has a key of type {type(key).__name__}"
                raise ValueError(message)
            if copied is not item:
                if id(item) in path:
                    message = "it contains itself"
                    raise ValueError(message)
                path.add(id(item))
                pending.append((inner, copied, id(item)))
                break
        else:
            pending.pop()
            path.discard(identity)
    return result[0]


def _check_scalar(value: Any) -> None:
    """Refuse a scalar that lossless JSON does not have.

    Raises:
        ValueError: See `copy_lossless`.
    """
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return
    if kind is int:
        try:
            float(value)
        except OverflowError:
            message = "it holds a number that is not finite"
            raise ValueError(message) from None
        return
    if kind is not float:
        message = f"it holds a value of type {kind.__name__}"
        raise ValueError(message)
    if value - value != 0:
        message = "it holds a number that is not finite"
        raise ValueError(message)
    if is_negative_zero(value):
        message = "it holds -0"
        raise ValueError(message)
