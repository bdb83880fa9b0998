"""Python values as rows, beside the `json` module of the standard library. Spec: 10 §1.1, §11.2."""

from __future__ import annotations

import json
from collections import OrderedDict
from enum import IntEnum
from typing import Any, NamedTuple

import pytest

from dsh_codec.errors import DshCodecError


class Name(str):
    __slots__ = ()


class Number(IntEnum):
    ONE = 1


class Pair(NamedTuple):
    first: Any
    second: Any


def row_of(data: Any) -> bytes:
    event = {"type": "x", "seq": 7, "time": 1, "data": data}
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return text.encode() + b"\n"


def encoded(kernel: Any, data: Any) -> bytes:
    event = {"type": "x", "seq": 7, "time": 1, "data": data}
    text: bytes = kernel.encode_events([event], 7).text
    return text


@pytest.mark.parametrize("char", ["a", "é", "中", "😀"])
@pytest.mark.parametrize(
    "special", ["", '"', "\\", "\n", "\x00", "\x1f", "\x7f", "ÿ", "한"]
)
def test_texts_of_all_lengths(kernel, char, special):
    """Alone, among others and as keys, with something special at every place."""
    texts = [
        char * at + special + char * (length - at)
        for length in (*range(20), 31, 32, 33, 63, 64, 65, 130)
        for at in sorted({*range(min(length, 18)), length // 2, length})
    ]
    data = [texts, {"a": texts[-1]}, {"k" + text: text for text in texts}]
    assert encoded(kernel, data) == row_of(data)


@pytest.mark.parametrize("char", ["a", "中", "😀"])
def test_halves_of_pairs_are_escaped(kernel, char):
    for half in ("\ud800", "\udbff", "\udc00", "\udfff"):
        for length in range(70):
            before = char * length
            expected = f'"{before}\\u{ord(half):x}b"'.encode()
            assert expected in encoded(kernel, [1, "a", before + half + "b"])


def test_integers_of_all_lengths(kernel):
    around = {10**digits + n for digits in range(16) for n in (-1, 0, 1)}
    around |= {2**bits + n for bits in range(53) for n in (-1, 0, 1)} | {2**53 - 1}
    numbers = sorted(around | {-number for number in around} | set(range(-300, 300)))
    data = [numbers, {str(number) + "n": number for number in numbers}]
    assert encoded(kernel, data) == row_of(data)


@pytest.mark.parametrize("depth", [1, 15, 20, 21, 22, 23, 24, 25, 26, 40, 500])
@pytest.mark.parametrize("leaf", [1, "a", [], {}, (), {"b": [None, True, False, 1.5]}])
def test_nesting_is_written_at_any_depth(kernel, depth, leaf):
    data = leaf
    for level in range(depth):
        data = [data, level] if level % 2 else {"a": "x", "b": data, "c": [level]}
    assert encoded(kernel, data) == row_of(data)


def test_the_deepest_value_that_a_reader_takes(kernel):
    data: Any = 1
    for _ in range(1023):
        data = [data]
    assert encoded(kernel, data).count(b"[") == 1023
    with pytest.raises(DshCodecError, match="1024"):
        encoded(kernel, [data])


@pytest.mark.parametrize(
    ("odd", "written"),
    [
        (Name("b"), "b"),
        (Number.ONE, 1),
        (Pair(1, "x"), [1, "x"]),
        (OrderedDict(z=1, a=2), {"z": 1, "a": 2}),
        ({"b": 1, "10": 2, "9": 3}, {"9": 3, "10": 2, "b": 1}),
        ({"01": 1, "-1": 2, "1a": 3}, {"01": 1, "-1": 2, "1a": 3}),
        ({Name("b"): 1}, {"b": 1}),
        (2**53, 2**53),
        (1e21, 1e21),
    ],
)
def test_one_odd_value_among_usual_ones(kernel, odd, written):
    """At every place, so that what is written before it is written once."""
    usual: list[Any] = ["a", 1, "longer than sixteen characters", {"k": [2]}, None]
    for at in range(len(usual) + 1):
        expected = row_of({"v": [*usual[:at], written, *usual[at:]], "w": 1})
        assert (
            encoded(kernel, {"v": [*usual[:at], odd, *usual[at:]], "w": 1}) == expected
        )


def test_events_without_their_members_in_order(kernel):
    """The order of the members is that of the event; only known ones are taken."""
    event: dict[str, Any] = {
        "data": None,
        "ignorable": True,
        "time": 5,
        "surfaceOp": ["a"],
        "seq": 0,
    }
    event["type"] = "a/b"
    text = b'{"data":null,"ignorable":true,"time":5,"surfaceOp":["a"],"seq":0,"type":"a/b"}\n'
    assert kernel.encode_events([event], 0) == (text, 1, False)
    for key in ("type    ", "seq ", "Data", "typ"):
        with pytest.raises(DshCodecError, match="key"):
            kernel.encode_events([{**event, key: 1}], 0)
    for key in ("type", "seq", "time", "data"):
        short = {name: value for name, value in event.items() if name != key}
        with pytest.raises(DshCodecError):
            kernel.encode_events([short], 0)


@pytest.mark.parametrize("make", [list, tuple, lambda blocks: Pair(*blocks, *blocks)])
@pytest.mark.parametrize("text", [str, Name])
def test_admission_looks_at_what_is_written(kernel, make, text):
    """An array is one whatever it is made of, and so is a text."""
    source = {"kind": "user"}
    message = {"id": "m", "role": "user", "source": source}
    event = {"type": "user/message", "seq": 0, "time": 1, "surfaceOp": "append"}
    good = message | {"content": make([{"type": text("text"), "text": "a"}])}
    assert kernel.encode_events([{**event, "data": good}], 0).event_count == 1
    bad = message | {"content": make([{"type": text("tool-result"), "text": "a"}])}
    with pytest.raises(DshCodecError) as refused:
        kernel.encode_events([{**event, "data": bad}], 0)
    assert refused.value.rule == "C3"


def test_values_that_contain_themselves_are_refused(kernel):
    loop: list[Any] = [1]
    loop += [loop, loop]
    for data in (loop, {"a": loop, "b": (loop,)}, [Name("a"), loop]):
        with pytest.raises((DshCodecError, TypeError)):
            encoded(kernel, data)
