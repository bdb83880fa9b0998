"""Errors and issues of the two kernels: the same class, places, rule, fields and words."""

from __future__ import annotations

import copy
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec import _native, _pure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

HEADERS = {
    generation: {"type": "session", "version": generation, "id": "s", "createdAt": 1}
    | {"cwd": "/x", "delegationDepth": 0}
    | ({"isSeeded": False} if generation > 1 else {})
    for generation in range(5)
}
TEXT = {"type": "text", "text": "a"}
STREAM = [
    {"type": "text-chunks", "time0": 5, "index": 0, "dt": [1], "texts": ["a", "b"]},
    {"type": "tool-call-chunks", "time0": 9, "index": 1, "dt": [], "id": "c", "name": "n", "args": [""]},
    {"type": "chunk", "time": 15, "chunk": {"type": "block-end", "index": 0, "block": TEXT}},
]  # fmt: skip


def message(role: str, **more: Any) -> dict[str, Any]:
    return {"id": "m", "role": role, "content": [TEXT], "source": {"kind": "x"}} | more


def result(number: int) -> dict[str, Any]:
    source = {"kind": "tool", "callId": "c"}
    error = {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
    name = f"forked-tool-result-c-{number}"
    told = message("tool", id=name, source=source, toolCallId="c", isError=True)
    return {"turn": 1, "step": 1, "message": told, "error": error}


def rows_of(generation: int) -> list[dict[str, Any]]:
    """Return rows with whatever the scan of a generation looks into."""
    place = {"turn": 1, "step": 1}
    payloads: list[tuple[str, Any]] = [
        ("user/message", message("user")),
        ("assistant/message", place | {"message": message("assistant"), "stream": STREAM}),
        ("plugin:x", {"a": [1]}),
        ("session/end-seed", {}),
        ("turn/end", {"turn": 1, "reason": {"kind": "completed"}}),
    ]  # fmt: skip
    if generation == 4:
        adds = message(
            "developer", content=[{"type": "tool-addition", "toolName": "t"}]
        )
        payloads += [
            ("developer/message", place | {"headerSeq": 0, "message": adds}),
            ("system/message", place | {"message": message("system")}),
            ("request/header", {"header": {"tools": [{"deferLoading": True}]}}),
            ("agent/inbox/spliced", {"inserted": [message("user"), message("user")]}),
            ("compaction/summary", {"summary": [TEXT], "rawOutput": [TEXT]}),
            ("tool/result", result(10)),
        ]  # fmt: skip
    rows = [
        {"type": kind, "seq": seq, "time": seq, "data": data, "surfaceOp": "append"}
        for seq, (kind, data) in enumerate(payloads)
    ]
    if generation < 2:
        shape = {"turn": 1, "step": 1, "index": 0, "dt": [3], "texts": ["a", "b"]}
        packed = {"type": "text-chunks", "seq0": len(rows), "time0": 1, "data": shape}
        rows.append(packed)
    else:
        rows[2] |= {"sourceEventSeqs": [[0, 1]], "ignorable": True}
    return copy.deepcopy(rows)


VALUES: list[Any] = [
    None, True, 0, -1, 1.5, -0.0, 40.0, 2**53, "", "x", "developer", "tool-result", "\ud800", [],
    {}, [1, 0], [[1, 0]], [[0, 1], 1], [{"type": "tool-result"}, {"type": "tool-addition"}],
    {"kind": "plugin"}, {"type": "block-start", "blockType": "tool-result"},
]  # fmt: skip
BYTES = [
    b'"',
    b"\\",
    b"{",
    b"]",
    b",",
    b"0",
    b"-",
    b"e",
    b"\x01",
    b"\xff",
    b"\\u12",
    b"",
]


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container with each of its keys."""
    keys: Any = range(len(value)) if isinstance(value, list) else list(value)
    for key in keys:
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places_in(value[key])


def mutated(chance: random.Random, value: Any) -> Any:
    """Return the value with one or two of its members changed, removed or added."""
    value = copy.deepcopy(value)
    for _ in range(chance.choice([1, 1, 2])):
        holder, key = chance.choice(list(places_in(value)))
        how = chance.randrange(4)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[chance.choice(["x", "system", "tool", "name", "stream", "seq"])] = 1
        else:
            holder[key] = copy.deepcopy(chance.choice(VALUES))
        if not value:
            break
    return value


def line(chance: random.Random, value: Any) -> bytes:
    """Return a row as text, of which now and then a few bytes are others."""
    text = json.dumps(value, separators=(",", ":")).encode()
    if chance.random() < 0.2:
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(BYTES) + text[at + chance.randrange(3) :]
    return text + b"\n"


def told(kernel: ModuleType, ask: Callable[..., Any], *given: Any) -> Any:
    """Return what a kernel gives, or all that its error says."""
    try:
        return repr(ask(kernel, *given))
    except dsh.DshCodecError as error:
        return type(error).__name__, str(error), repr(error.args), repr(vars(error))
    except (TypeError, ValueError) as error:
        return type(error).__name__, str(error)


def assert_alike(ask: Callable[..., Any], *given: Any) -> Any:
    native, pure = told(_native, ask, *given), told(_pure, ask, *given)
    assert native == pure, given
    return native


def call(kernel: ModuleType, name: str, *arguments: Any) -> Any:
    return getattr(kernel, name)(*arguments)


# --- scans ---


def scan(kernel: ModuleType, text: bytes, mode: str, max_depth: int) -> Any:
    scanner = kernel.RowScanner(mode=mode, check_streams=True, max_depth=max_depth)
    return scanner.feed(text), scanner.finish()


@pytest.mark.parametrize("generation", range(5))
def test_scans_of_damaged_logs_say_the_same(generation: int) -> None:
    chance = random.Random(generation)  # noqa: S311 -- a seed.
    lines = [HEADERS[generation], *rows_of(generation)]
    outcomes = set()
    for _ in range(400):
        spoiled = chance.randrange(len(lines))
        text = b"".join(
            line(chance, mutated(chance, value) if number == spoiled else value)
            for number, value in enumerate(lines)
        )
        for mode in ("strict", "recoverable"):
            outcomes.add(assert_alike(scan, text, mode, chance.choice([6, 64])))
    assert len(outcomes) > 100


# --- events ---


@pytest.mark.parametrize(
    "name", ["admit", "encode_event", "encode_events", "encode_rows"]
)
def test_refused_events_are_told_the_same(name: str) -> None:
    chance = random.Random(name)  # noqa: S311 -- a seed.
    rows = rows_of(4)
    for _ in range(500):
        event = mutated(chance, chance.choice(rows))
        arguments: list[Any] = [event]
        if name == "encode_events":
            arguments = [[event], chance.randrange(10)]
        elif name == "encode_rows":
            arguments = [line(chance, event), chance.randrange(10)]
        assert_alike(call, name, *arguments)


@pytest.mark.parametrize(
    ("kind", "data", "rule"),
    [
        # The second message, record or member breaks a rule that comes earlier in the list.
        ("agent/inbox/spliced", {"inserted": [message("user", source={"kind": "plugin"}), message("developer")]}, "B"),
        ("session/title-llm-request", {"messages": [message("user", content=[{"type": "tool-result"}]), message("developer")]}, "C3"),
        ("compaction/summary", {"summary": [{"type": "tool-result"}], "rawOutput": [{"type": "tool-removal"}]}, "C3"),
        ("assistant/attempt", {"stream": [
            {"type": "chunk", "chunk": {"type": "block-start", "blockType": "tool-result"}},
            {"type": "chunk", "chunk": {"type": "block-start", "blockType": "tool-addition"}},
        ]}, "C4"),
        # One message: the rules in their order.
        ("user/message", message("developer", source={"kind": "plugin"}, content=[{"type": "tool-result"}]), "A2"),
        ("user/message", message("user", source={"kind": "plugin"}, content=[{"type": "tool-result"}]), "B"),
        ("tool/result", {"message": message("user", source={"kind": "plugin"})}, "B"),
        ("request/header", {"header": {"system": "s", "tools": [{"deferLoading": 1}]}}, "A5"),
    ],
)  # fmt: skip
def test_admission_names_the_rule_that_the_row_breaks_first(
    kernel: ModuleType, kind: str, data: Any, rule: str
) -> None:
    event = {"type": kind, "seq": 0, "time": 1, "data": data}
    with pytest.raises(dsh.RowError) as caught:
        kernel.admit(event)
    assert caught.value.rule == rule


# --- seqs ---


@pytest.mark.parametrize(
    ("generation", "row", "got", "shown"),
    [
        (4, '{"type":"x","seq":40.0,"time":1,"data":null}', 40.0, "the row has seq 40,"),
        (4, '{"type":"x","seq":-0,"time":1,"data":null}', -0.0, "the row has seq -0,"),
        (4, '{"type":"x","seq":1e400,"time":1,"data":null}', float("inf"), "the row has seq beyond every number,"),
        (4, '{"type":"x","seq":["é"],"time":1,"data":null}', ["é"], "the row has seq an array,"),
        (1, '{"type":"x"}', None, "the row has seq none,"),
        (1, '{"type":"text-chunks","seq0":40.0,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[],"texts":["a"]}}', 40.0, "the packed row starts at seq 40,"),
    ],
)  # fmt: skip
def test_a_gap_has_the_seq_as_the_row_spells_it(
    kernel: ModuleType, generation: int, row: str, got: Any, shown: str
) -> None:
    # Design, section 2.1: a literal with a fraction is a float, in errors too.
    header = json.dumps(HEADERS[generation])
    good = '{"type":"x","seq":0,"time":1,"data":null}'
    scanner = kernel.RowScanner(mode="strict")
    scanner.feed(f"{header}\n{good}\n".encode())
    with pytest.raises(dsh.SeqGapError) as caught:
        scanner.feed(f"{row}\n".encode())
    assert repr(caught.value.got) == repr(got)
    assert caught.value.message == f"{shown} expected 1"


def test_a_gap_in_a_batch_has_the_seq_as_it_was_given(kernel: ModuleType) -> None:
    with pytest.raises(dsh.SeqGapError) as caught:
        kernel.encode_events([{"type": "x", "seq": 40.0, "time": 1, "data": 1}], 3)
    assert repr(caught.value.got) == "40.0"


def decode(kernel: ModuleType, value: Any, codec: str, max_entries: int) -> Any:
    return kernel.decode_seqs(value, codec=codec, max_entries=max_entries)


@pytest.mark.parametrize("codec", ["v2", "v0", "session"])
def test_refused_seqs_are_told_the_same(codec: str) -> None:
    chance = random.Random(codec)  # noqa: S311 -- a seed.
    for _ in range(500):
        value = mutated(
            chance, chance.choice([[1, 2, 3], [[1, 3], 5], [3, 2, 1], [[0, 2], [7, 9]]])
        )
        assert_alike(decode, value, codec, chance.choice([3, 6, 12, 2**53 - 1]))


# --- streams ---


STREAM_CALLS = (
    "expand", "first_token_time", "has_visible_content", "has_visible_text", "join_text",
)  # fmt: skip


def test_refused_records_are_told_the_same() -> None:
    chance = random.Random(1)  # noqa: S311 -- a seed.
    for _ in range(500):
        records = mutated(chance, STREAM)
        row = line(
            chance, {"type": "assistant/attempt", "seq": 1, "data": {"stream": records}}
        )
        for name in STREAM_CALLS:
            assert_alike(call, name, records)
        for name in ("expand_lines", "pack_lines", "parse", "canonicalize"):
            assert_alike(call, name, row)


def assemble(kernel: ModuleType, chunks: list[Any]) -> Any:
    assembler = kernel.Assembler()
    for chunk in chunks:
        assembler.push(chunk)
    return assembler.blocks()


def test_refused_chunks_are_told_the_same() -> None:
    chance = random.Random(2)  # noqa: S311 -- a seed.
    timed = [[chunk.time, chunk.chunk] for chunk in _pure.expand(STREAM)]
    for _ in range(500):
        chunks = [
            tuple(pair) for pair in mutated(chance, timed) if isinstance(pair, list)
        ]
        assert_alike(call, "pack", chunks)
        if all(len(pair) == 2 for pair in chunks):
            assert_alike(assemble, [chunk for _, chunk in chunks])


# --- container ---


def read_frames(kernel: ModuleType, data: bytes) -> Any:
    reader = kernel.FrameReader(max_frame_plain_bytes=3000)
    reader.feed(data)
    return list(iter(reader.read, None))


def test_damaged_frames_are_told_the_same() -> None:
    chance = random.Random(3)  # noqa: S311 -- a seed.
    text = json.dumps(STREAM * 10).encode()
    frames = _pure.encode_frame(text) + _pure.encode_frame(text[:50])
    for _ in range(500):
        at = chance.randrange(len(frames))
        data = frames[:at] + bytes([chance.randrange(256)]) + frames[at + 1 :]
        assert_alike(call, "scan_frames", data)
        assert_alike(read_frames, data)
