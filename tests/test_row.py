"""Headers, rows, admission and the scan through the kernels. Spec: 10 §4 to §6, §8; 30 §6."""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from enum import IntEnum
from typing import Any, NamedTuple

import pytest

from dsh_codec.errors import (
    CorruptLogError,
    DshCodecError,
    FrameError,
    HeaderError,
    JsonSyntaxError,
    LimitExceededError,
    NewerFormatError,
    RowError,
    SeqGapError,
    StreamError,
    UnsupportedError,
)

OLD = {"type": "session", "version": 0, "id": "s", "createdAt": 1, "delegationDepth": 0}
NEW = {
    "type": "session", "version": 4, "id": "s", "createdAt": 1, "isSeeded": False,
    "delegationDepth": 0,
}  # fmt: skip


def line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def event(
    seq: Any, kind: str = "todo/write", data: Any = None, **more: Any
) -> dict[str, Any]:
    return {"type": kind, "seq": seq, "time": 100 + seq, "data": data, **more}


def turn_end(seq: int) -> bytes:
    return line(event(seq, "turn/end", {"turn": 1}))


def header(version: int, **more: Any) -> bytes:
    return line({**(OLD if version < 2 else NEW), "version": version, **more})


def log(version: int, *rows: Any) -> bytes:
    return header(version) + b"".join(
        row if isinstance(row, bytes) else line(row) for row in rows
    )


def packed(seq: Any, texts: list[Any], **more: Any) -> dict[str, Any]:
    gaps = [1] * (len(texts) - 1)
    data = {"turn": 1, "step": 1, "index": 0, "dt": gaps, "texts": texts}
    return {"type": "text-chunks", "seq0": seq, "time0": 7, "data": data, **more}


def scan(kernel: Any, data: bytes, **options: Any) -> tuple[list[Any], Any]:
    scanner = kernel.RowScanner(**options)
    rows = scanner.feed(data)
    return rows, scanner.finish()


def refused(kernel: Any, data: bytes, **options: Any) -> Any:
    with pytest.raises(DshCodecError) as caught:
        scan(kernel, data, **options)
    return caught.value


# --- header ---


def test_parse_header_of_generation_4(kernel):
    """Spec 10 §4.1."""
    found = kernel.parse_header(header(4, cwd="/w", createdAt=17.0))
    assert found.generation == 4
    assert found.declared_cut is None
    assert found.fields == {
        "version": 4, "id": "s", "createdAt": 17, "isSeeded": False, "delegationDepth": 0,
        "cwd": "/w",
    }  # fmt: skip
    assert kernel.parse_header(header(4), generation=4).fields["id"] == "s"


def test_parse_header_does_not_depend_on_the_headers_before(kernel):
    """A kernel may make one header after the model of another; values keep their own spelling and their own objects."""
    start = b'{"type":"session","version":4,"id":'
    end = b',"isSeeded":false,"delegationDepth":0}\n'
    alike = {"version": 4, "isSeeded": False, "delegationDepth": 0}
    changes = [
        (b'"s","createdAt":1', {"id": "s", "createdAt": 1}),
        (b'"t,}","createdAt":123456789012345', {"id": "t,}", "createdAt": 123456789012345}),
        (b'"s","createdAt":12', {"id": "s", "createdAt": 12}),
        (b'"s","createdAt":1.0', {"id": "s", "createdAt": 1}),
        (b'"s","createdAt":1 ', {"id": "s", "createdAt": 1}),
        (b'"s","createdAt":1e1', {"id": "s", "createdAt": 10}),
        (b'"\\u0073\\"","createdAt":1', {"id": 's"', "createdAt": 1}),
        (b'"\xc3\xa9\xff","createdAt":1', {"id": "é\ufffd", "createdAt": 1}),
        (b'"s","createdAt":1,"cwd":"/w"', {"id": "s", "createdAt": 1, "cwd": "/w"}),
        (b'"s","cwd":"/w","createdAt":1', {"id": "s", "cwd": "/w", "createdAt": 1}),
        (b'"s","createdAt":1,"id":"t"', {"id": "t", "createdAt": 1}),
    ]  # fmt: skip
    for first, _ in changes:
        for second, fields in changes:
            kernel.parse_header(start + first + end).fields.clear()
            kernel.parse_header(start + first + end).fields["id"] = "mine"
            found = kernel.parse_header(start + second + end).fields
            order = ["version", *fields, "isSeeded", "delegationDepth"]
            assert found == {**alike, **fields}
            assert [*found] == order
            assert type(found["createdAt"]) is int


@pytest.mark.parametrize(
    ("seed", "cut"), [({}, None), ({"seedLength": 0}, 0), ({"seedLength": 3}, 3)]
)
def test_parse_header_of_generation_0_derives_seeded(kernel, seed, cut):
    """Spec 10 §4.2: a seedLength of 0 is a seeded session."""
    found = kernel.parse_header(header(0, **seed))
    assert found.declared_cut == cut
    assert found.fields["isSeeded"] is (cut is not None)
    assert "seedLength" not in found.fields


@pytest.mark.parametrize("version", [5, 4.5, 2**53, 1e30])
@pytest.mark.parametrize("generation", [None, 4, 2])
def test_parse_header_newer_is_never_corrupt(kernel, version, generation):
    """Spec 00 §4.2."""
    with pytest.raises(NewerFormatError) as caught:
        kernel.parse_header(
            line({**NEW, "version": version, "id": 5}), generation=generation
        )
    assert (caught.value.found, caught.value.supported) == (version, 4)


@pytest.mark.parametrize(
    ("change", "generation", "error"),
    [
        ({"version": 3}, 4, UnsupportedError),
        ({"version": -1}, 4, UnsupportedError),
        ({"version": -0.0}, 4, UnsupportedError),
        ({"version": "4"}, 4, HeaderError),
        ({"version": -1}, None, HeaderError),
        ({"version": -0.0}, None, HeaderError),
        ({"version": 3.5}, None, HeaderError),
        ({"version": True}, None, HeaderError),
        ({"version": 2}, 3, HeaderError),
        ({"extra": 1}, None, HeaderError),
        ({"seedLength": 1}, None, HeaderError),
        ({"sandboxMode": 1}, None, HeaderError),
        ({"type": "sessions"}, None, HeaderError),
        ({"id": 5}, None, HeaderError),
        ({"createdAt": -1}, None, HeaderError),
        ({"createdAt": -0.0}, None, HeaderError),
        ({"createdAt": True}, None, HeaderError),
        ({"isSeeded": 0}, None, HeaderError),
        ({"cwd": "w"}, None, HeaderError),
        ({"cwd": None}, None, HeaderError),
        ({"origin": "user"}, None, HeaderError),
    ],
)
def test_parse_header_refusals(kernel, change, generation, error):
    with pytest.raises(DshCodecError) as caught:
        kernel.parse_header(line({**NEW, **change}), generation=generation)
    assert type(caught.value) is error


@pytest.mark.parametrize("key", ["sandboxMode", "approvalPolicy"])
@pytest.mark.parametrize("change", [{}, {"version": "4"}, {"extra": 1, "id": 5}])
def test_retired_header_field_is_named_before_the_table(kernel, key, change):
    with pytest.raises(HeaderError) as caught:
        kernel.parse_header(line({**NEW, **change, key: None}), generation=4)
    assert caught.value.rule == "10 §4.1 step 5"


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", header(4)[:-1], header(4) + b"\n", b"\n" + header(4), b"[]\n", b"{]\n", b"\xef\xbb\xbf" + header(4)],
)  # fmt: skip
def test_parse_header_row_refusals(kernel, data):
    for generation in (None, 4):
        with pytest.raises(HeaderError):
            kernel.parse_header(data, generation=generation)


@pytest.mark.parametrize("generation", [5, -1, "4", True])
def test_generation_argument(kernel, generation):
    for call in (lambda: kernel.parse_header(header(4), generation=generation),
                 lambda: kernel.RowScanner(generation=generation)):  # fmt: skip
        with pytest.raises((ValueError, TypeError, OverflowError)):
            call()


def test_mode_argument(kernel):
    with pytest.raises(ValueError, match="mode"):
        kernel.RowScanner(mode="lenient")


# --- sourceEventSeqs ---


@pytest.mark.parametrize(
    ("values", "encoded"),
    [
        ([], []),
        ([1, 2], [1, 2]),
        ([1, 2, 3], [[1, 3]]),
        ([0, 1, 2, 5, 7, 8, 9, 10, 12, 13], [[0, 2], 5, [7, 10], 12, 13]),
        ([3, 2, 1], [3, 2, 1]),
        ((4, 5, 6), [[4, 6]]),
    ],
)
def test_encode_seqs(kernel, values, encoded):
    """Spec 10 §6, the table."""
    assert kernel.encode_seqs(values) == encoded
    assert kernel.decode_seqs(encoded, max_entries=100) == list(values)


@pytest.mark.parametrize(
    "value",
    [[5, [1, 3]], [[1, 3], 2], [5, 5], [[3, 1]], [10], [[8, 10]], ["1"], [None], [[1]], {}, 5, [-0.0], [True], [[1, 2, 3]]],
)  # fmt: skip
def test_decode_seqs_refusals(kernel, value):
    """Spec 10 §6."""
    with pytest.raises(RowError) as caught:
        kernel.decode_seqs(value, max_entries=10)
    assert type(caught.value) is RowError


class Number(int):
    """A seq of a caller's own class."""


class Sequence(list[Any]):
    """A list of a caller's own class."""


class Pair(tuple[int, int]):
    """A range of a caller's own class."""

    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        [[0, 2], 5],
        ((0, 2), 5),
        ([0, 2], 5),
        [(0, 2), 5.0],
        [Pair((Number(0), 2)), Number(5)],
        Sequence([Sequence([0, Number(2)]), 5]),
    ],
)
def test_decode_seqs_takes_lists_and_tuples(kernel, value):
    for codec in ("v2", "v0", "session"):
        assert kernel.decode_seqs(value, codec=codec) == [0, 1, 2, 5]


@pytest.mark.parametrize(
    "value",
    [
        [0, 1, 2, 5],
        (0, 1, 2, 5),
        (0, Number(1), 2.0, 5),
        Sequence([Number(0), 1, 2, 5]),
    ],
)
def test_encode_seqs_takes_lists_and_tuples(kernel, value):
    encoded = kernel.encode_seqs(value)
    assert repr(encoded) == "[[0, 2], 5]"
    with pytest.raises(RowError):
        kernel.encode_seqs({"0": value})


@pytest.mark.parametrize("value", [(3, 2.0, -0.0), Sequence([3, Number(2), -0.0])])
def test_encode_seqs_returns_what_does_not_increase_as_a_list(kernel, value):
    assert repr(kernel.encode_seqs(value)) == "[3, 2, 0]"  # As it is written: 10 §1.
    with pytest.raises(TypeError):
        kernel.encode_seqs([*value, {1}])


def test_decode_seqs_three_codecs(kernel):
    """Spec 10 §6: no uniqueness in v0; no `earlier` in the free-standing one."""
    assert kernel.decode_seqs([5, 4, 3], max_entries=6) == [5, 4, 3]
    assert kernel.decode_seqs([9, 9], codec="v0", max_entries=2) == [9, 9]
    assert kernel.decode_seqs([9, 9], codec="session") == [9, 9]
    with pytest.raises(StreamError):
        kernel.decode_seqs([[1, 3], 2], codec="session")
    with pytest.raises(ValueError, match="codec"):
        kernel.decode_seqs([], codec="v3")


# --- admission and encoding ---


@pytest.mark.parametrize(
    ("kind", "data", "rule"),
    [
        ("developer/message", {"turn": 1}, "A1"),
        ("user/message", {"role": "developer"}, "A2"),
        ("user/message", {"content": [{"type": "tool-removal"}]}, "A2"),
        ("compaction/summary", {"rawOutput": [{"type": "tool-addition"}]}, "A3"),
        (
            "assistant/attempt",
            {"stream": [{"type": "chunk", "chunk": {"type": "block-start", "blockType": "tool-removal"}}]},
            "A4",
        ),
        ("request/header", {"header": {"tools": [{"deferLoading": False}]}}, "A5"),
        ("user/message", {"source": {"kind": "plugin"}}, "B"),
        ("request/header", None, "C2"),
        ("request/header", {"header": {"system": 1}}, "C2"),
        ("tool/ptc-dispatch", {"content": [{"type": "tool-result"}]}, "C3"),
        (
            "assistant/message",
            {"stream": [{"type": "chunk", "chunk": {"type": "block-end", "block": {"type": "tool-result"}}}]},
            "C4",
        ),
        ("system/message", {"turn": 1, "step": 0}, "D"),
        ("tool/result", {"message": {}}, "E"),
    ],
)  # fmt: skip
def test_admission_names_the_rule(kernel, kind, data, rule):
    """Spec 30 §6; also behind an issue, and hard in both modes (10 §8.1)."""
    bad = event(0, kind, data)
    with pytest.raises(RowError) as caught:
        kernel.admit(bad)
    assert caught.value.rule == rule
    with pytest.raises(RowError) as caught:
        kernel.encode_event(bad)
    assert caught.value.rule == rule
    data_bytes = log(4, event(0), b"no json\n", bad)
    error = refused(kernel, data_bytes)
    assert (type(error), error.rule, error.line, error.seq) == (RowError, rule, 4, 1)
    assert error.offset == data_bytes.index(line(bad))


def fork(**change: Any) -> dict[str, Any]:
    message = {
        "id": "forked-tool-result-c-5", "role": "tool", "toolCallId": "c", "isError": True,
        "source": {"kind": "tool", "callId": "c"}, "content": [{"type": "text", "text": "x"}],
    }  # fmt: skip
    error = {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
    data = {"turn": 1, "step": 1, "message": message, "error": error}
    return {**event(5, "tool/result", data, surfaceOp="append"), **change}


@pytest.mark.parametrize("version", range(5))
def test_first_seq_takes_rows_from_there(kernel, version):
    rows = [event(7), event(8)]
    if version < 2:
        rows.append(packed(9, ["a", "b"]))
    count = 9 + (2 if version < 2 else 0)
    found, result = scan(kernel, log(version, *rows), first_seq=7)
    assert [row.seq for row in found] == list(range(7, 7 + len(rows)))
    assert (result.event_count, result.row_count) == (count, len(rows))
    assert (result.first_time, found[0].row) == (found[0].time, 1)
    with pytest.raises(SeqGapError) as caught:
        scan(kernel, log(version, *rows), first_seq=6, mode="strict")
    assert (caught.value.expected, caught.value.got) == (6, 7)


def test_admission_of_fork_results(kernel):
    """Spec 30 §6 F."""
    kernel.admit(fork())
    kernel.admit(fork(seq=9, surfaceOp={"op": "replace"}, sourceEventSeqs=[5]))
    for bad in (
        fork(seq=6),
        fork(surfaceOp=None),
        fork(sourceEventSeqs=[5]),
        fork(seq=9, surfaceOp={"op": "replace"}, sourceEventSeqs=[[5, 5]]),
        fork(seq=5, surfaceOp={"op": "replace"}, sourceEventSeqs=[5]),
    ):
        with pytest.raises(RowError) as caught:
            kernel.admit(bad)
        assert caught.value.rule == "F"
    for number in ("05", "5x", "", "9007199254740992", "\u0665"):
        bad = fork()
        bad["data"]["message"]["id"] = f"forked-tool-result-c-{number}"
        with pytest.raises(RowError) as caught:
            kernel.admit(bad)
        assert caught.value.rule == "F"


def test_admission_of_retired_types(kernel):
    """Spec 30 §6 C1: unsupported, unless ignorable."""
    retired = event(0, "tool/code-dispatch", {})
    with pytest.raises(UnsupportedError) as caught:
        kernel.admit(retired)
    assert caught.value.rule == "C1"
    kernel.admit({**retired, "ignorable": True})


@pytest.mark.parametrize("value", [None, 5, "x", [], True])
def test_admission_passes_what_is_no_object(kernel, value):
    assert kernel.admit(value) is None


def test_admission_takes_any_depth(kernel):
    """Spec 10 intro: no nesting limit is defined; who parses the row sets one."""
    deep = kernel.parse(b"[" * 3000 + b"]" * 3000, max_depth=3000)
    tool = {"deferLoading": True, "parameters": deep}
    header = {"config": {}, "tools": [tool]}
    request = event(0, "request/header", {"header": header, "reason": deep})
    kernel.admit(request)
    size = {"width": 1, "height": 1, "more": deep}
    picture = {
        "attachmentId": "a", "mediaType": "image/png", "bytes": 1, "originalDimensions": size, **size,
    }  # fmt: skip
    message = {
        "id": "m", "role": "system", "source": {"kind": "x"},
        "content": [{"type": "image", "attachment": picture}],
    }  # fmt: skip
    prompt = event(0, "system/message", {"turn": 1, "step": 1, "message": message})
    kernel.admit(prompt)
    size["width"] = 0
    tool["deferLoading"] = deep
    for bad, rule in ((prompt, "D"), (request, "A5")):
        with pytest.raises(RowError) as caught:
            kernel.admit(bad)
        assert caught.value.rule == rule


def test_encode_event(kernel):
    """Spec 10 §5.1: key order kept, range form in its place."""
    row = {"sourceEventSeqs": [1, 2, 3], **event(5, data={"b": -0.0, "1": "\ud800"})}
    assert kernel.encode_event(row) == (
        b'{"sourceEventSeqs":[[1,3]],"type":"todo/write","seq":5,"time":105,'
        b'"data":{"1":"\\ud800","b":0}}'
    )
    assert row["sourceEventSeqs"] == [1, 2, 3]
    with pytest.raises(RowError):
        kernel.encode_event({**row, "sourceEventSeqs": "1"})


def test_writers_take_subclasses(kernel):
    """What derives from a type of JSON is written as that type, whatever it prints as."""

    class Name(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "what it prints as"

    class Number(IntEnum):
        FIVE = 5

    class Pair(NamedTuple):
        x: int
        y: int

    key = Name("key")
    data: Any = defaultdict(list, {key: [Number.FIVE, key, Pair(1, 2), True]})
    data["more"] = OrderedDict(a=type("Float", (float,), {})(1.5))
    text = b'{"key":[5,"key",[1,2],true],"more":{"a":1.5}}'
    row = (
        b'{"type":"todo/write","seq":5,"time":105,"data":'
        + text
        + b',"ignorable":true}'
    )
    whole = event(5, data=data, ignorable=True)
    assert kernel.dump(data) == text
    assert kernel.encode_event(whole) == row
    assert kernel.encode_event(OrderedDict(whole)) == row
    named = {Name(name): value for name, value in whole.items()}
    assert kernel.encode_events([named], 5).text == row + b"\n"
    assert kernel.encode_events([whole], 5) == (row + b"\n", 1, False)
    for spoiled in ([Number.FIVE, b""], {Number.FIVE: 1}, OrderedDict(a=1j)):
        with pytest.raises(TypeError):
            kernel.dump(spoiled)
        with pytest.raises(TypeError):
            kernel.encode_events([whole | {"data": spoiled}], 5)
    for lossy in (OrderedDict(a=-0.0), [Number.FIVE, float("inf")]):
        with pytest.raises(RowError):
            kernel.encode_events([whole | {"data": lossy}], 5)


def test_encode_events(kernel):
    """Spec 10 §5.1, §11.2: rows behind each other, any iterable, numbers in any spelling."""
    first = {
        "sourceEventSeqs": [1, 2, 3],
        **event(5, data={"b": [1.0, 2**60], "1": "\ud800"}),
    }
    second = event(6.0, "x/y", ("\n" * 70 + "\xe9", {}), ignorable=True)
    rows = kernel.encode_events(iter([first, second]), 5)
    newlines = b"\\n" * 70
    assert rows == (
        b'{"sourceEventSeqs":[[1,3]],"type":"todo/write","seq":5,"time":105,'
        b'"data":{"1":"\\ud800","b":[1,1152921504606847000]}}\n'
        b'{"type":"x/y","seq":6,"time":106,"data":["' + newlines + b'\xc3\xa9",{}],"ignorable":true}\n',
        2,
        False,
    )  # fmt: skip
    assert kernel.encode_events([], 7) == (b"", 0, False)
    assert first["sourceEventSeqs"] == [1, 2, 3]


def test_encode_events_tells_of_an_inherited_marker(kernel):
    """Spec 10 §4.4."""
    for inherited, expected in ((True, True), (1, False), (None, False)):
        marker = event(0, "session/end-seed", {"inherited": inherited})
        assert kernel.encode_events([marker, event(1)], 0).has_marker is expected


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("change", "error", "rule"),
    [
        ({"seq": 6}, SeqGapError, "10 §5.1"),
        ({"seq": "5"}, SeqGapError, "10 §5.1"),
        ({"seq": True}, SeqGapError, "10 §5.1"),
        ({"extra": 1}, RowError, "10 §5.1"),
        ({"\ud800": 1}, RowError, "10 §5.1"),
        ({7: 1}, RowError, "10 §5.1"),
        ({"type": None}, RowError, "10 §5.1"),
        ({"time": -0.0}, RowError, "10 §5.1"),
        ({"time": 2**53}, RowError, "10 §5.1"),
        ({"time": 1.5}, RowError, "10 §5.1"),
        ({"ignorable": False}, RowError, "10 §5.1"),
        ({"ignorable": 1}, RowError, "10 §5.1"),
        ({"type": "session/end-seed", "data": []}, RowError, "10 §4.4"),
        ({"sourceEventSeqs": (1, 2)}, RowError, "10 §6"),
        ({"sourceEventSeqs": [1, -0.0]}, RowError, "10 §6"),
        ({"sourceEventSeqs": [[1, 3]]}, RowError, "10 §6"),
        ({"sourceEventSeqs": [5]}, RowError, "10 §6"),
        ({"sourceEventSeqs": [2, 2]}, RowError, "10 §6"),
        ({"type": "tool/result", "data": {}}, RowError, "E"),
        ({"type": "tool/code-dispatch"}, UnsupportedError, "C1"),
        ({"type": "user/message", "data": {"role": "developer"}}, RowError, "A2"),
        ({"data": {"a": [-0.0]}}, RowError, "10 §11.2"),
        ({"data": float("inf")}, RowError, "10 §11.2"),
        ({"data": (float("nan"),)}, RowError, "10 §11.2"),
        ({"data": 2**53 + 1}, RowError, "10 §11.2"),
        ({"data": [10**400]}, RowError, "10 §11.2"),
        ({"data": -(10**5000)}, RowError, "10 §11.2"),
        # The earlier rule of two.
        ({"seq": 6, "data": object()}, SeqGapError, "10 §5.1"),
        ({"type": "tool/result", "data": {"a": -0.0}}, RowError, "E"),
        ({"data": CYCLE}, LimitExceededError, None),
        ({"data": {"a": "x" * 200}}, LimitExceededError, None),
    ],
)  # fmt: skip
def test_encode_events_refuses(kernel, change, error, rule):
    """Spec 10 §5.1, §6, §11.2, 30 §6: class, place and rule of what refuses."""
    bad = {**event(5), **change}
    with pytest.raises(error) as caught:
        kernel.encode_events([event(4), bad], 4, max_row_bytes=150)
    assert type(caught.value) is error
    assert (caught.value.seq, caught.value.rule) == (5, rule)


def test_encode_events_lacks_a_member(kernel):
    for missing, error in (
        ("type", RowError),
        ("seq", SeqGapError),
        ("time", RowError),
        ("data", RowError),
    ):
        bad = event(0)
        del bad[missing]
        with pytest.raises(error) as caught:
            kernel.encode_events([bad], 0)
        assert caught.value.seq == 0
    others: tuple[Any, ...] = ([], None, "x")
    for value in others:
        with pytest.raises(RowError) as caught:
            kernel.encode_events([value], 0)
        assert caught.value.seq == 0


def test_encode_events_passes_other_errors_through(kernel):
    """A value that JSON has not, before a number that is lost; an iterable that fails."""
    for bad in (object(), {1: 2}, b"x", {"a": [float("nan"), {2}]}):
        with pytest.raises(TypeError):
            kernel.encode_events([event(0, data=bad)], 0)

    def failing():
        yield event(0)
        message = "gone"
        raise KeyError(message)

    with pytest.raises(KeyError):
        kernel.encode_events(failing(), 0)


# --- rows that come as text ---


def test_encode_rows_leaves_the_writers_spelling_as_it_is(kernel):
    """Spec 10 §1.1: the very object is given back."""
    events = [
        event(
            5, data={"a": [1, -2.5, "\x1b\n\xe9\x7f/"], "b": [["x", ""], {}, [], None]}
        ),
        event(6, sourceEventSeqs=[0, 1, 2, 4, 5], surfaceOp="append"),
    ]
    rows = kernel.encode_events(events, 5)
    again = kernel.encode_rows(rows.text, 5)
    assert again == rows
    assert again.text is rows.text
    for other in (bytearray(rows.text), memoryview(rows.text)):
        assert kernel.encode_rows(other, 5) == rows
    assert kernel.encode_rows(b"", 7) == (b"", 0, False)
    assert kernel.encode_rows(rows.text[:-1], 5) == rows
    with pytest.raises(TypeError):
        kernel.encode_rows(rows.text.decode(), 5)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (b'{"a": 1}', b'{"a":1}'),
        (b'{"a":1}\t', b'{"a":1}'),
        (b'{"b":1,"1":2}', b'{"1":2,"b":1}'),
        (b'{"a":1,"b":2,"a":3}', b'{"a":3,"b":2}'),
        (b'{"a":-0,"a":3}', b'{"a":3}'),
        (b"[1.0,1e2,12345678901234567890]", b"[1,100,12345678901234567000]"),
        (b'"\\u0041\\/\\u000a\\ud83d\\ude00\\uD83D"', '"A/\\n\U0001f600\\ud83d"'.encode()),
        (b'"a\xff"', '"a\ufffd"'.encode()),
        (b'["a" ,"b"]', b'["a","b"]'),
        (b"[[ ],{ }]", b"[[],{}]"),
    ],
)  # fmt: skip
def test_encode_rows_respells(kernel, given, written):
    """Spec 10 §1, §1.1; the rows around it stand."""
    first, last = line(event(4)), line(event(6))
    row = b'{"type":"x","seq":5,"time":1,"data":%s}\n'
    rows = kernel.encode_rows(first + row % given + last, 4)
    assert rows == (first + row % written + last, 3, False)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (b"[0,1,2]", b"[[0,2]]"),
        (b"[[0,1],3]", b"[0,1,3]"),
        (b"[[0,0],[1,3]]", b"[[0,3]]"),
        (b"[3,0,1,2]", b"[3,0,1,2]"),
        (b"[2.0]", b"[2]"),
        (b"[]", b"[]"),
    ],
)
def test_encode_rows_respells_seqs(kernel, given, written):
    """Spec 10 §6."""
    row = b'{"sourceEventSeqs":%s,"type":"x","seq":5,"time":1,"data":null}\n'
    assert kernel.encode_rows(row % given, 5).text == row % written


@pytest.mark.parametrize(
    ("bad", "error", "rule"),
    [
        (b"", JsonSyntaxError, "10 §1"),
        (b"{", JsonSyntaxError, "10 §1"),
        (b'{"type":"x"', JsonSyntaxError, "10 §1"),
        (line(event(5))[:-1] + b" x", JsonSyntaxError, "10 §1"),
        (b"\xef\xbb\xbf" + line(event(5))[:-1], JsonSyntaxError, "10 §1"),
        (b"[1]", RowError, "10 §5.1"),
        (line(event(6))[:-1], SeqGapError, "10 §5.1"),
        (line({**event(5), "seq": "5"})[:-1], SeqGapError, "10 §5.1"),
        (line({**event(5), "extra": 1})[:-1], RowError, "10 §5.1"),
        (line({**event(5), "time": 1.5})[:-1], RowError, "10 §5.1"),
        (line({**event(5), "ignorable": False})[:-1], RowError, "10 §5.1"),
        (line(event(5, "session/end-seed", []))[:-1], RowError, "10 §4.4"),
        (line(event(5, sourceEventSeqs=[5]))[:-1], RowError, "10 §6"),
        (line(event(5, sourceEventSeqs="0"))[:-1], RowError, "10 §6"),
        (line(event(5, "tool/result", {}))[:-1], RowError, "E"),
        (line(event(5, "tool/code-dispatch"))[:-1], UnsupportedError, "C1"),
        # The earlier rule of two.
        (line(event(6, "tool/result", {"a": -0.0}))[:-1], RowError, "E"),
        (line(event(6, data=-0.0))[:-1], SeqGapError, "10 §5.1"),
        (line(event(5, data={"a": [-0.0]}))[:-1], RowError, "10 §11.2"),
        (line(event(5, data=0)).replace(b":0}\n", b":1e999}"), RowError, "10 §11.2"),
        (line(event(5, data="x" * 200))[:-1], LimitExceededError, None),
        (line(event(5, data=0)).replace(b":0}\n", b":" + b"[" * 1024 + b"]" * 1024 + b"}"), LimitExceededError, None),
    ],
)  # fmt: skip
def test_encode_rows_refuses(kernel, bad, error, rule):
    """Spec 10 §1, §5.1, §6, §8.1, §11.2, 30 §6: class, place and rule of what refuses."""
    text = line(event(4)) + bad + b"\n" + line(event(7))
    with pytest.raises(error) as caught:
        kernel.encode_rows(text, 4, max_row_bytes=150)
    assert type(caught.value) is error
    assert (caught.value.seq, caught.value.rule) == (5, rule)


def test_encode_rows_tells_of_an_inherited_marker(kernel):
    """Spec 10 §4.4."""
    for inherited, expected in ((True, True), (1, False), (None, False)):
        marker = line(event(0, "session/end-seed", {"inherited": inherited}))
        assert kernel.encode_rows(marker + line(event(1)), 0).has_marker is expected


# --- scan of generation 4 ---


def test_scan_rows(kernel):
    data = log(4, event(0), event(1, "session/end-seed", {}), event(2)) + b'{"torn'
    rows, result = scan(kernel, data)
    first = len(header(4))
    assert [row.seq for row in rows] == [0, 1, 2]
    assert rows[0] == ("todo/write", 0, 100, line(event(0))[:-1], first, 1, 1)
    assert result.event_count == result.row_count == 3
    assert result.committed_bytes == len(data) - 6
    assert result.fed_bytes == len(data)
    assert (result.first_time, result.last_time) == (100, 102)
    assert result.issue is None
    assert result.inherited_event_count == 0


def test_scan_keeps_the_bytes_of_a_row(kernel):
    row = b' {"type":"x","seq":0,\t"time":1.0,"data":"\xff"}\r'
    rows, _ = scan(kernel, header(4) + row + b"\n")
    assert rows[0].raw == row
    assert type(rows[0].time) is int


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (b"no json\n", JsonSyntaxError),
        (b"\n", JsonSyntaxError),
        (b"[]\n", RowError),
        (line({"type": "x", "seq": 1, "time": 1}), RowError),
        (line(event(1, extra=1)), RowError),
        (line({**event(1), "type": 5}), RowError),
        (line({**event(1), "time": 1.5}), RowError),
        (line({**event(1), "time": -0.0}), RowError),
        (line(event(1, ignorable=False)), RowError),
        (line(event(1, sourceEventSeqs=[1])), RowError),
        (line({**event(1), "seq": -0.0, "sourceEventSeqs": []}), RowError),
        (line(event(2)), SeqGapError),
        (line({**event(1), "seq": "1"}), SeqGapError),
        (line({**event(1), "seq": True}), SeqGapError),
        (line(event(1, "session/end-seed", None)), RowError),
    ],
)
def test_scan_issue(kernel, bad, error):
    """Spec 10 §8.1: an issue in recoverable mode, a refusal in strict mode."""
    data = log(4, event(0), bad, event(1))
    rows, result = scan(kernel, data)
    assert [row.seq for row in rows] == [0]
    place = len(header(4)) + len(line(event(0)))
    assert (result.issue.row, result.issue.offset) == (2, place)
    assert result.committed_bytes == place
    assert result.fed_bytes == len(data)
    for refusal in (
        refused(kernel, data, mode="strict"),
        refused(kernel, data + turn_end(2)),
    ):
        assert type(refusal) is error
        assert (refusal.line, refusal.offset, refusal.seq) == (3, place, 1)


def test_scan_seq_gap_says_what_it_expected(kernel):
    error = refused(kernel, log(4, event(0), event(7)), mode="strict")
    assert (error.expected, error.got) == (1, 7)
    error = refused(kernel, log(4, {**event(0), "seq": None}), mode="strict")
    assert (error.expected, error.got) == (0, None)


def test_scan_turn_end_that_is_the_issue_itself(kernel):
    """Spec 10 §8.1 step 4."""
    assert refused(kernel, log(4, event(0), turn_end(5))).got == 5


def test_scan_minus_zero_is_seq_zero(kernel):
    """Spec 10 §5.1."""
    _, result = scan(kernel, log(4, {**event(0), "seq": -0.0}))
    assert result.event_count == 1


def test_scan_marker_rule(kernel):
    """Spec 10 §4.4."""
    marker = line(event(1, "session/end-seed", {"inherited": True}))
    again = line(event(2, "session/end-seed", {"inherited": True}))
    _, result = scan(kernel, header(4, isSeeded=True) + line(event(0)) + marker + again)
    assert result.inherited_event_count == 2
    for data in (header(4, isSeeded=True), header(4) + line(event(0)) + marker):
        error = refused(kernel, data)
        assert (type(error), error.rule) == (RowError, "10 §4.4")


@pytest.mark.parametrize("data", [b"", b"{", header(4)[:-1]])
def test_scan_without_header(kernel, data):
    scanner = kernel.RowScanner()
    assert scanner.feed(data) == []
    assert scanner.header is None
    assert scanner.committed_bytes == 0
    for call in (scanner.end_complete_frames, scanner.finish):
        with pytest.raises(HeaderError):
            call()


def test_scan_header_errors_have_a_place(kernel):
    for data in (b"{}\n", header(5), header(4, extra=1)):
        error = refused(kernel, data)
        assert (error.line, error.offset) == (1, 0)


def test_scan_error_stays(kernel):
    scanner = kernel.RowScanner(mode="strict")
    with pytest.raises(JsonSyntaxError):
        scanner.feed(header(4) + b"bad\n")
    for call in (
        lambda: scanner.feed(b""),
        scanner.end_frame,
        scanner.end_complete_frames,
        scanner.finish,
    ):
        with pytest.raises(JsonSyntaxError) as caught:
            call()
        assert caught.value.line == 2


def test_scan_properties(kernel):
    scanner = kernel.RowScanner()
    scanner.feed(log(4, event(0), b"x\n")[:-1])
    assert scanner.header.generation == 4
    assert (scanner.event_count, scanner.issue_row) == (1, None)
    assert scanner.committed_bytes == scanner.fed_bytes - 1
    scanner.feed(b"\n")
    assert scanner.issue_row == 2


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_scan_does_not_depend_on_the_cut(kernel, size):
    data = log(4, event(0), event(1), b"bad\n", event(2)) + b"torn"
    rows, result = scan(kernel, data)
    scanner = kernel.RowScanner()
    found = [
        row
        for i in range(0, len(data), size)
        for row in scanner.feed(data[i : i + size])
    ]
    assert (found, scanner.finish()) == (rows, result)


def test_scan_of_single_bytes_is_linear(kernel):
    row = line(event(0, data="x" * 200_000))
    scanner = kernel.RowScanner()
    scanner.feed(header(4))
    view = memoryview(row)
    rows = [found for i in range(len(row)) for found in scanner.feed(view[i : i + 1])]
    assert rows[0].raw == row[:-1]


# --- frames around rows ---


def test_frames_first_is_exactly_the_header(kernel):
    """Spec 10 §7.2."""
    scanner = kernel.RowScanner()
    scanner.feed(header(4))
    scanner.end_frame()
    scanner.feed(line(event(0))[:5])
    scanner.end_frame()
    scanner.feed(line(event(0))[5:])
    scanner.end_frame()
    scanner.end_complete_frames()
    assert scanner.finish().event_count == 1
    for data, error in ((b"", HeaderError), (header(4)[:-1], HeaderError), (log(4, event(0)), FrameError), (header(4) + b"x", FrameError)):  # fmt: skip
        scanner = kernel.RowScanner()
        scanner.feed(data)
        with pytest.raises(CorruptLogError) as caught:
            scanner.end_frame()
        assert type(caught.value) is error
        assert caught.value.frame == 0


def test_frames_nothing_in_complete_ones_is_recoverable(kernel):
    """Spec 10 §8.3 step 2."""
    scanner = kernel.RowScanner()
    scanner.feed(log(4, event(0), b"bad\n", event(1)))
    with pytest.raises(RowError) as caught:
        scanner.end_complete_frames()
    assert (caught.value.line, caught.value.seq) == (3, 1)
    scanner = kernel.RowScanner()
    scanner.feed(log(4, event(0)) + b"par")
    with pytest.raises(RowError) as caught:
        scanner.end_complete_frames()
    assert (caught.value.line, caught.value.rule) == (3, "10 §8.3")


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_frames_issues_in_older_generations(kernel, version):
    """Spec 10 §8.5: rows in complete frames may be issues, partial rows not."""
    scanner = kernel.RowScanner()
    scanner.feed(log(version, event(0), b"bad\n"))
    scanner.end_complete_frames()
    assert scanner.finish().event_count == 1
    scanner = kernel.RowScanner()
    scanner.feed(log(version, event(0)) + b"par")
    with pytest.raises(RowError) as caught:
        scanner.end_complete_frames()
    assert (caught.value.line, caught.value.rule) == (3, "10 §8.5")


# --- older generations ---


def test_packed_row(kernel):
    """Spec 10 §5.3."""
    rows, result = scan(kernel, log(0, packed(0, ["a", "b", "c"]), event(3)))
    assert [(row.type, row.seq, row.time, row.count) for row in rows] == [
        ("text-chunks", 0, 7, 3),
        ("todo/write", 3, 103, 1),
    ]
    assert (result.event_count, result.row_count) == (4, 2)
    assert (result.first_time, result.last_time) == (7, 103)
    _, result = scan(kernel, log(1, packed(0, ["a", "b", "c"])))
    assert (result.first_time, result.last_time) == (7, 9)


@pytest.mark.parametrize(
    "row",
    [
        packed(1, ["a"]),
        packed(0, []),
        packed(0, ["a"], ignorable=True),
        packed(0, [1]),
        packed(-0.0, ["a"]),
        packed(0, ["a"], time0=-0.0),
        packed(0, ["a"], data=None),
        {**packed(0, ["a"]), "type": "tool-call-chunks"},
        packed(2**53 - 1, ["a", "b"]),
        [],
        {"type": "x"},
        event(0, sourceEventSeqs=[[0, 5]]),
    ],
)
def test_early_row_issue(kernel, row):
    """Spec 10 §8.5: a malformed row or a gap, whatever its type."""
    _, result = scan(kernel, log(0, row, event(0)))
    assert (result.issue.row, result.event_count) == (1, 0)


def test_early_rows_ask_little(kernel):
    """Spec 10 §5.2."""
    rows, result = scan(kernel, log(0, {"seq": 0}, {"seq": 1, "type": 5, "time": "x"}))
    assert [(row.type, row.time) for row in rows] == [(None, None), (None, None)]
    assert (result.first_time, result.last_time) == (None, None)


def test_early_cut_exceeds_the_events(kernel):
    """Spec 10 §4.2."""
    assert (
        scan(kernel, header(0, seedLength=1) + line(event(0)))[1].inherited_event_count
        == 1
    )
    error = refused(kernel, header(0, seedLength=2) + line(event(0)))
    assert type(error) is RowError


@pytest.mark.parametrize("version", [0, 1, 2])
def test_recovery_of_older_generations(kernel, version):
    """Spec 50 §2.4, 10 §8.5."""
    # A malformed turn/end is an issue like any other; a later one raises it if it decodes.
    bad_end = b'{"type":"turn/end","seq":0,"sourceEventSeqs":5,"time":1,"data":{}}\n'
    assert scan(kernel, log(version, bad_end, event(0)))[1].event_count == 0
    assert scan(kernel, log(version, bad_end, bad_end))[1].event_count == 0
    assert refused(kernel, log(version, bad_end, turn_end(9))).line == 2
    # A gap on a turn/end fails at once.
    assert type(refused(kernel, log(version, turn_end(9)))) is SeqGapError
    # Behind a line that is no JSON, nothing is decoded: the raw type decides.
    assert refused(kernel, log(version, b"bad\n", bad_end)).line == 2
    assert scan(kernel, log(version, b"bad\n", event(0)))[1].event_count == 0


def test_recovery_of_generation_3(kernel):
    """Spec 50 §3.2: hard admission behind an issue; the canonical check is an issue."""
    retired = event(0, "tool/code-dispatch", {})
    assert type(refused(kernel, log(3, event(9), retired))) is UnsupportedError
    # Behind a line that is no JSON, rows are skipped: vectors migrate.mut.v3.0670, 0673.
    assert scan(kernel, log(3, b"bad\n", retired))[1].issue.row == 1
    assert refused(kernel, log(3, event(0, "request/header", {}))).rule == "50 §3.2"
    system = {"header": {"system": ""}}
    assert (
        type(refused(kernel, log(3, event(0, "request/header", system))))
        is UnsupportedError
    )
    assert type(refused(kernel, log(3, event(0, "system/message", {})))) is RowError
    not_canonical = event(0, surfaceOp="append")
    assert scan(kernel, log(3, not_canonical))[1].issue.row == 1
    assert scan(kernel, log(3, event(0, "plugin:x", surfaceOp=5)))[1].event_count == 1
    end = event(0, "turn/end", {}, surfaceOp="append")
    assert type(refused(kernel, log(3, end))) is RowError


@pytest.mark.parametrize("version", [2, 3])
def test_end_seed_without_object_is_hard_in_2_and_3(kernel, version):
    """Spec 10 §4.4, 50 §3.2."""
    error = refused(kernel, log(version, event(0, "session/end-seed", None)))
    assert (type(error), error.line, error.seq) == (RowError, 2, 0)
    _, result = scan(kernel, log(4, event(0, "session/end-seed", None)))
    assert result.issue.row == 1


# --- streams ---


def settlement(
    seq: int, stream: Any, kind: str = "assistant/attempt"
) -> dict[str, Any]:
    return event(seq, kind, {"turn": 1, "step": 1, "stream": stream})


def test_check_streams_counts_records_chunks_and_faults(kernel):
    good = {
        "type": "text-chunks",
        "time0": 1,
        "index": 0,
        "dt": [1],
        "texts": ["a", "b"],
    }
    raw = {"type": "chunk", "time": 1, "chunk": {}}
    rows = [
        settlement(0, [good, raw]),
        settlement(1, [good, {}, raw, None]),
        settlement(2, {}),
        event(3, "assistant/message", {"message": {}}),
        event(4, data={"stream": 5}),
    ]
    _, result = scan(kernel, log(4, *rows), check_streams=True)
    assert result.stream_count == 4
    assert result.record_count == 6
    assert result.chunk_count == 6
    assert result.stream_fault_count == 4
    faults = [(fault.seq, fault.record) for fault in result.stream_faults]
    assert faults == [(1, 1), (1, 3), (2, -1), (3, -1)]
    assert all(fault.message for fault in result.stream_faults)
    _, result = scan(kernel, log(4, *rows))
    assert (result.stream_count, result.record_count, result.chunk_count) == (0, 0, 0)
    assert result.stream_fault_count == 0


def test_check_streams_lists_at_most_100_faults(kernel):
    _, result = scan(kernel, log(4, settlement(0, [{}] * 150)), check_streams=True)
    assert result.stream_fault_count == 150
    assert len(result.stream_faults) == 100


def test_check_streams_of_generation_0_counts_rows(kernel):
    rows = [packed(0, ["a", "b"]), event(2, "assistant/chunk", {}), event(3)]
    _, result = scan(kernel, log(0, *rows), check_streams=True)
    assert (result.stream_count, result.record_count, result.chunk_count) == (0, 2, 3)


# --- limits ---


def test_row_limit_with_and_without_line_feed(kernel):
    row = line(event(0))
    exact = {"max_row_bytes": max(len(row), len(header(4)))}
    assert scan(kernel, header(4) + row, **exact)[1].event_count == 1
    for data in (
        b"x" * (exact["max_row_bytes"] + 1),
        b"x" * exact["max_row_bytes"] + b"\n",
    ):
        error = refused(kernel, header(4) + row + data, **exact)
        assert type(error) is LimitExceededError
        assert (error.limit, error.value) == ("max_row_bytes", exact["max_row_bytes"])
        assert (error.line, error.offset) == (3, len(header(4)) + len(row))
    error = refused(kernel, b" " * 11, max_row_bytes=10)
    assert (type(error), error.line, error.offset) == (LimitExceededError, 1, 0)


def test_issue_outlives_the_end_of_the_scan(kernel):
    """10 §8.1: the first issue is recorded; asking twice changes nothing."""
    scanner = kernel.RowScanner()
    scanner.feed(header(4) + b"bad\n")
    first, second = scanner.finish(), scanner.finish()
    assert first.issue is not None
    assert first.issue == second.issue
    assert scanner.issue_row == 1


@pytest.mark.parametrize(
    ("seq", "got"),
    [
        ('"' + "z" * 100 + '"', "z" * 100),
        ('{"a":[1,2]}', {"a": [1, 2]}),
        ("9007199254740993", 9007199254740992.0),
        ("7", 7),
    ],
)
def test_seq_gap_tells_the_whole_value(kernel, seq, got):
    """Design §2.1: a literal above 2^53 is a float."""
    line = '{"type":"x","seq":' + seq + ',"time":1,"data":1}\n'
    with pytest.raises(SeqGapError) as caught:
        kernel.RowScanner(mode="strict").feed(header(4) + line.encode())
    assert caught.value.got == got
    assert type(caught.value.got) is type(got)


def test_fed_bytes_count_what_was_fed_before_a_refusal(kernel):
    scanner = kernel.RowScanner(mode="strict")
    data = header(4) + b"bad\n" + b"more"
    with pytest.raises(JsonSyntaxError):
        scanner.feed(data)
    assert scanner.fed_bytes == len(data)


def test_header_counts_are_integers(kernel):
    """10 §1: `1.0` and `1` are the same integer."""
    line = header(4).replace(b":4,", b":4e0,")
    assert b"4e0" in line
    found = kernel.parse_header(line)
    assert type(found.fields["version"]) is int
