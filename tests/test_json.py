"""The JSON model: `parse` and `dump`. Spec: 10 §1, §1.1."""

from __future__ import annotations

import inspect
import json
import math
import random
import sys
from array import array
from typing import Any

import pytest

from dsh_codec.errors import JsonSyntaxError, LimitExceededError


def is_minus_zero(value: Any) -> bool:
    return type(value) is float and value == 0 and math.copysign(1, value) < 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"null", None),
        (b" \t\r\n[true, false]\r\n", [True, False]),
        (b"9007199254740992", 2**53),
        (b"-9007199254740992", -(2**53)),
        (b'{"a":1,"b":2,"a":3}', {"a": 3, "b": 2}),
        (b'{"__proto__":{}}', {"__proto__": {}}),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\\ud83d"', "\ud83d"),
        (b'"\\ude00\\ud83d"', "\ude00\ud83d"),
        (b'"\\/\\b\\u00e9"', "/\b\u00e9"),
        (b'"a\xff\xed\xa0\xbd\xf0\x9f\x98"', "a" + "\ufffd" * 5),
        (b'"\x7f\xe2\x80\xa8"', "\x7f\u2028"),
        (b"[[], {}]", [[], {}]),
    ],
)
def test_parse_value(kernel, text, value):
    parsed = kernel.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"9007199254740993", 9007199254740992.0),
        (b"-12345678901234567890", -12345678901234567890.0),
        (b"1.0", 1.0),
        (b"1e0", 1.0),
        (b"1E+2", 100.0),
        (b"1e400", math.inf),
        (b"-1e400", -math.inf),
        (b"9" * 400, math.inf),
        (b"9" * 100_000, math.inf),
        (b"5e-324", 5e-324),
    ],
    ids=lambda item: item[:24].decode() if isinstance(item, bytes) else "",
)
def test_parse_number_that_is_no_exact_integer_gives_float(kernel, text, value):
    """Design 2.1."""
    parsed = kernel.parse(text)
    assert type(parsed) is float
    assert parsed == value


@pytest.mark.parametrize(
    "text", [b"-0", b"-0.0", b"-0e5", b"-0E-2", b"-1e-400", b"[-0]"]
)
def test_parse_negative_zero_stays_negative(kernel, text):
    value = kernel.parse(text)
    assert is_minus_zero(value[0] if isinstance(value, list) else value)


def test_parse_repeated_key_keeps_first_place(kernel):
    assert list(kernel.parse(b'{"a":1,"b":2,"a":3}')) == ["a", "b"]


@pytest.mark.parametrize("data", [bytearray(b"[1]"), memoryview(b"x[1]")[1:]])
def test_parse_takes_any_contiguous_buffer(kernel, data):
    assert kernel.parse(data) == [1]


def test_parse_takes_buffer_of_wider_items(kernel):
    assert kernel.parse(array("H", b"[1] ")) == [1]


@pytest.mark.parametrize("data", ["[1]", 5, None])
def test_parse_refuses_what_is_no_buffer(kernel, data):
    with pytest.raises(TypeError):
        kernel.parse(data)


def test_parse_refuses_buffer_with_gaps(kernel):
    with pytest.raises(BufferError):
        kernel.parse(memoryview(b"[1][1]")[::2])


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        (b"", 0),
        (b"  ", 2),
        (b"\xef\xbb\xbf1", 0),
        (b"nul", 3),
        (b"nulx", 3),
        (b"NaN", 0),
        (b"-Infinity", 1),
        (b"+1", 0),
        (b"01", 1),
        (b"-", 1),
        (b"1.", 2),
        (b"1.x", 2),
        (b"1e", 2),
        (b"1e+", 3),
        (b"1e+x", 3),
        (b"1.5e", 4),
        (b"1 2", 2),
        (b"[1,]", 3),
        (b"[1", 2),
        (b"[", 1),
        (b"[1}", 2),
        (b"{,", 1),
        (b"{1", 1),
        (b'{"a" 1}', 5),
        (b'{"a":}', 5),
        (b'{"a":1,}', 7),
        (b'{"a":1]', 6),
        (b'"a', 2),
        (b'"\x01"', 1),
        (b'"a\nb"', 2),
        (b'"\\x"', 2),
        (b'"\\u12g4"', 5),
        (b'"\\u12', 5),
        (b'"\\', 2),
        (b"'a'", 0),
        (b'["\xff\xff", x]', 7),
        (b"[1,\x0b2]", 3),
        (b"//", 0),
        (b"\xff", 0),
    ],
)
def test_parse_syntax_error_is_at_first_byte_that_cannot_follow(kernel, text, offset):
    with pytest.raises(JsonSyntaxError) as caught:
        kernel.parse(text)
    assert caught.value.offset == offset
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [63, 64, 65, 1023, 1024])
def test_parse_depth_within_limit(kernel, opening, depth):
    closing = b"]" if opening == b"[" else b"}"
    value = kernel.parse(opening * (depth - 1) + b"[]" + closing * (depth - 1))
    for _ in range(depth - 1):
        value = value[0] if isinstance(value, list) else value["a"]
    assert value == []


@pytest.mark.parametrize("extra", [b"", b"-0,", b'"\\ud800",'])
def test_parse_too_deep_is_a_limit(kernel, extra):
    with pytest.raises(LimitExceededError) as caught:
        kernel.parse(b"[" + extra + b"[" * 1024 + b"]" * 1025)
    assert (caught.value.limit, caught.value.value) == ("max_depth", 1024)
    assert caught.value.offset == 1024 + len(extra)


def test_parse_own_depth_limit(kernel):
    assert kernel.parse(b"1", max_depth=0) == 1
    assert kernel.parse(b'["[[[["]', max_depth=1) == ["[[[["]
    with pytest.raises(LimitExceededError):
        kernel.parse(b"[]", max_depth=0)
    with pytest.raises(LimitExceededError):
        kernel.parse(b"[[1]]", max_depth=1)


def test_parse_syntax_error_before_the_depth_limit_wins(kernel):
    with pytest.raises(JsonSyntaxError) as caught:
        kernel.parse(b"[x" + b"[" * 3000)
    assert caught.value.offset == 1
    with pytest.raises(LimitExceededError):
        kernel.parse(b"[" * 3000)


def test_parse_a_million_levels_if_allowed(kernel):
    """Not recursive, whatever the recursion limit is."""
    depth = 1_000_000
    value = kernel.parse(b"[" * depth + b"]" * depth, max_depth=depth)
    count = 0
    while value:
        value = value.pop()
        count += 1
    assert count == depth - 1


def test_parse_near_the_recursion_limit(kernel):
    """The caller's own depth does not matter."""

    def descend(levels: int) -> Any:
        if levels:
            return descend(levels - 1)
        return kernel.parse(b"[" * 1000 + b"-0" + b"]" * 1000)

    used = len(inspect.stack(0))
    assert descend(sys.getrecursionlimit() - used - 60)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5e-324, "5e-324"),
        (1e21, "1e+21"),
        (1e-7, "1e-7"),
        (1e-6, "0.000001"),
        (0.001, "0.001"),
        (123456789012345680000.0, "123456789012345680000"),
        (12345678901234567890, "12345678901234567000"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (-1.5e-10, "-1.5e-10"),
        (100.0, "100"),
        (123.456, "123.456"),
        (-0.0, "0"),
        (math.inf, "null"),
        (math.nan, "null"),
        (2**53, "9007199254740992"),
        (2**53 + 1, "9007199254740992"),
        (10**30, "1e+30"),
        (10**400, "null"),
        (-(10**400), "null"),
        (True, "true"),
        (None, "null"),
        ((1, [2]), "[1,[2]]"),
        ([[], {}], "[[],{}]"),
        ({"b": 1, "1": 2, "a": 3, "0": 4}, '{"0":4,"1":2,"b":1,"a":3}'),
        (
            {"4294967295": 1, "01": 2, "4294967294": 3, "-1": 4, "10": 5, "9": 6},
            '{"9":6,"10":5,"4294967294":3,"4294967295":1,"01":2,"-1":4}',
        ),
        (
            '"\\/\b\t\n\f\r\x00\x1f\x7f\u2028',
            '"\\"\\\\/\\b\\t\\n\\f\\r\\u0000\\u001f\x7f\u2028"',
        ),
        ("\ud83d\ude00", '"\U0001f600"'),
        ("\ude00\ud83d", '"\\ude00\\ud83d"'),
        (["\ud83d", "\ude00"], '["\\ud83d","\\ude00"]'),
        ({"\ud83d": 1}, '{"\\ud83d":1}'),
    ],
    ids=lambda item: item[:20] if isinstance(item, str) else "",
)
def test_dump_spelling(kernel, value, text):
    """Spec 10 §1.1."""
    assert kernel.dump(value) == text.encode()


@pytest.mark.parametrize("value", [b"x", {1, 2}, object(), {1: 2}, [{None: 1}], 1j])
def test_dump_refuses_what_is_no_json(kernel, value):
    with pytest.raises(TypeError):
        kernel.dump(value)


def test_dump_long_lists_and_texts(kernel):
    """Elements of every length and class, around the lengths at which they are written otherwise."""
    chance = random.Random(5)  # noqa: S311
    letters = [
        "a",
        "b",
        "é",
        "函",
        "퟿",
        "한",
        "\U0001f600",
        '"',
        "\\",
        "\n",
        "\x1f",
        "\x7f",
    ]
    letters += ["plain"] * 20
    texts = ["x" * size for size in range(70)]
    for _ in range(600):
        amount = chance.choice([0, 1, 3, 4, 5, 6, 7, 8, 15, 16, 17, 60, 140])
        letter = chance.choice(letters)
        rare = [letter if chance.random() < 0.1 else "x" for _ in range(amount)]
        texts += ["".join(rare), letter * (amount % 9), letter * amount]
    numbers = [*range(-8, 300), 10**6, -(10**15)]
    others = [None, True, [], {}, {"a": 1}, [1], ["a", "b"], 0.5]
    for _ in range(300):
        kinds = chance.choice([[texts], [numbers], [texts, numbers, others], [others]])
        amount = chance.choice([1, 2, 8, 9, 10, 70, 150])
        value: Any = [chance.choice(chance.choice(kinds)) for _ in range(amount)]
        value = chance.choice(
            [value, tuple(value), {"k": value, str(value[0]) + "_": 1}]
        )
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        assert kernel.dump(value) == text.encode()


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_dump_depth_limit(kernel):
    assert kernel.dump(nested(1024)) == b"[" * 1024 + b"]" * 1024
    with pytest.raises(LimitExceededError) as caught:
        kernel.dump(nested(1025))
    assert (caught.value.limit, caught.value.value) == ("max_depth", 1024)
    assert kernel.dump(nested(3000), max_depth=3000) == b"[" * 3000 + b"]" * 3000


def test_dump_cycle_exceeds_any_depth(kernel):
    value: list[Any] = []
    value.append({"a": value})
    with pytest.raises(LimitExceededError):
        kernel.dump(value)


def test_dump_shared_value_is_no_cycle(kernel):
    shared = [1]
    assert kernel.dump([shared, shared]) == b"[[1],[1]]"
