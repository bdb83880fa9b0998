"""Packing, expansion, readers and assembly through the kernels. Spec: 20."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest

from dsh_codec import TimedChunk
from dsh_codec.errors import (
    LimitExceededError,
    RowError,
    StreamError,
    UnknownChunkError,
)

MAX = 2**53 - 1


def text(words: Any, index: Any = 0, **more: Any) -> dict[str, Any]:
    return {"type": "text-delta", "index": index, "text": words, **more}


def tool(call: Any, arguments: Any, **more: Any) -> dict[str, Any]:
    head = {"type": "tool-call-delta", "index": 0, "id": call}
    return {**head, **more, "argumentsDelta": arguments}


def run(texts: list[Any], **more: Any) -> dict[str, Any]:
    gaps = [1] * (len(texts) - 1)
    record = {
        "type": "text-chunks",
        "time0": 10,
        "index": 0,
        "dt": gaps,
        "texts": texts,
    }
    return {**record, **more}


# --- packing ---


def test_pack_examples_of_the_spec(kernel):
    """Spec 20 §3, the table."""
    assert kernel.pack([(10, text("a")), (15, text("b")), (12, text("c"))]) == [
        {
            "type": "text-chunks",
            "time0": 10,
            "index": 0,
            "dt": [5, -3],
            "texts": ["a", "b", "c"],
        }
    ]
    assert len(kernel.pack([(10, text("a")), (15, text("b", 1)), (16, text("c"))])) == 3
    wide = kernel.pack([(-1, text("a")), (MAX - 1, text("b"))])
    assert [record["dt"] for record in wide] == [[MAX]]
    assert len(kernel.pack([(-2, text("a")), (MAX - 1, text("b"))])) == 2
    named = [
        tool("c1", "a", name="n"),
        tool("c1", "b"),
        tool("c1", "c"),
        tool("c1", "d", name="n"),
    ]
    records = kernel.pack(list(enumerate(named)))
    assert [record["args"] for record in records] == [["a"], ["b", "c"], ["d"]]
    raw = tool("", "{", name="n")
    assert kernel.pack([(10, raw)]) == [{"type": "chunk", "time": 10, "chunk": raw}]


def test_pack_takes_timed_chunks_pairs_and_objects(kernel):
    timed = [TimedChunk(1, text("a")), (2, text("b")), {"time": 3, "chunk": text("c")}]
    assert kernel.pack(timed) == [run(["a", "b", "c"], time0=1)]
    assert kernel.pack(iter(timed)) == kernel.pack(timed)


def test_pack_key_order_is_that_of_the_spec(kernel):
    """Spec 20 §3, snapshot."""
    records = kernel.pack(
        [(1, tool("c", "x", name="n")), (2, text("a")), (3, tool("", ""))]
    )
    assert [list(record) for record in records] == [
        ["type", "time0", "index", "dt", "id", "name", "args"],
        ["type", "time0", "index", "dt", "texts"],
        ["type", "time", "chunk"],
    ]


@pytest.mark.parametrize("time", [10.0, -0.0])
def test_pack_time_comes_out_as_int(kernel, time):
    (record,) = kernel.pack([(time, text("a", 1.0))])
    assert (record["time0"], record["index"]) == (int(time), 1)
    assert type(record["time0"]) is int
    assert type(record["index"]) is int
    assert str(record["time0"]) in ("10", "0")


@pytest.mark.parametrize(
    ("time", "chunk", "error"),
    [
        (True, text("a"), StreamError),
        ("1", text("a"), StreamError),
        (1.5, text("a"), StreamError),
        (MAX + 1, text("a"), StreamError),
        (1, None, StreamError),
        (1, text("a", True), StreamError),
        (1, text("a", -0.0), StreamError),
        (1, text(None), StreamError),
        (1, text("a", x=float("inf")), StreamError),
        (1, text("a", x=10**400), StreamError),
        (1, tool("c", "x", name=None), StreamError),
        (1, {"type": "usage", "usage": {1, 2}}, StreamError),
        (1, {"type": "usage", "usage": {1: 2}}, StreamError),
        (1, {"type": "bogus"}, UnknownChunkError),
        (1, {"type": None}, UnknownChunkError),
        (1, {}, UnknownChunkError),
        (1, "text-delta", UnknownChunkError),
        (1, 5, UnknownChunkError),
        (1, True, UnknownChunkError),
        (1, [], UnknownChunkError),
        (1, [-0.0], StreamError),
    ],
)
def test_refused_push_changes_nothing(kernel, time, chunk, error):
    """Spec 20 §3; kinds by 00 §5."""
    packer = kernel.Packer()
    packer.push(1, text("a"))
    packer.push(2, text("b"))
    with pytest.raises(StreamError) as caught:
        packer.push(time, chunk)
    assert type(caught.value) is error
    assert caught.value.record == 2
    assert packer.snapshot() == [run(["a", "b"], time0=1)]
    packer.push(3, text("c"))
    assert packer.snapshot() == [run(["a", "b", "c"], time0=1)]


def test_push_refuses_a_chunk_that_contains_itself(kernel):
    chunk: dict[str, Any] = {"type": "usage"}
    chunk["usage"] = [chunk]
    with pytest.raises(StreamError):
        kernel.Packer().push(1, chunk)


@pytest.mark.parametrize("item", [None, 5, "ab", [1, text("a")], (1,), {"time": 1}, {}])
def test_extend_refuses_what_is_no_timed_chunk(kernel, item):
    packer = kernel.Packer()
    with pytest.raises(StreamError) as caught:
        packer.extend([(1, text("a")), item, (2, text("b"))])
    assert caught.value.record == 1
    assert packer.snapshot() == [run(["a"], time0=1)]
    with pytest.raises(StreamError) as caught:
        kernel.pack([item])
    assert caught.value.record == 0


def test_snapshots_are_detached(kernel):
    packer = kernel.Packer()
    chunk = {"type": "finish", "reason": {"kind": "stop"}}
    packer.push(1, text("a"))
    packer.push(2, chunk)
    first = packer.snapshot()
    chunk["reason"]["kind"] = "changed"  # type: ignore[index]
    first[0]["texts"].append("x")
    first[1]["chunk"]["reason"]["kind"] = "changed"
    packer.push(3, text("b"))
    second = packer.snapshot()
    assert second[0]["texts"] == ["a"]
    assert second[1]["chunk"]["reason"] == {"kind": "stop"}
    assert len(second) == 3


def test_pack_is_linear_in_long_runs(kernel):
    count = 50_000
    (record,) = kernel.pack((i, text("x")) for i in range(count))
    assert len(record["texts"]) == count


def test_pack_deep_chunk_does_not_recurse(kernel):
    """Spec 10 §1: 1,000 levels are to be read."""
    value: Any = 1
    for _ in range(1000):
        value = [value]
    records = kernel.pack([(1, {"type": "usage", "usage": value})])
    assert kernel.dump(records, max_depth=2000).count(b"[") == 1001
    assert kernel.expand(records)[0].time == 1


# --- expansion ---


def test_expand_gives_timed_chunks(kernel):
    records = [
        run(["a", "b", "c"], time0=100.0, dt=[3, -0.0]),
        {
            "type": "tool-call-chunks", "time0": -5, "index": 1.0, "dt": [], "id": "c",
            "name": "n", "args": ["{"],
        },
        {"type": "chunk", "time": -0.0, "chunk": {"type": "whatever", "n": 1.0}},
    ]  # fmt: skip
    chunks = kernel.expand(records)
    assert chunks == [
        (100, text("a")),
        (103, text("b")),
        (103, text("c")),
        (-5, {**tool("c", "{", name="n"), "index": 1}),
        (0, {"type": "whatever", "n": 1.0}),
    ]
    assert all(
        type(chunk) is TimedChunk and type(chunk.time) is int for chunk in chunks
    )
    assert list(chunks[3].chunk) == ["type", "index", "id", "name", "argumentsDelta"]
    assert chunks[4].chunk is records[2]["chunk"]
    assert list(kernel.iter_expand(records)) == chunks
    assert kernel.expand(tuple(records)) == chunks


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {"type": "chunks"},
        run(["a"], extra=1),
        {key: value for key, value in run(["a"]).items() if key != "dt"},
        run([]),
        run(["a"], dt=[1]),
        run(["a", "b"], dt=[]),
        run(["a", "b"], dt=[True]),
        run(["a", "b"], dt=[1.5]),
        run(["a", "b"], dt=[MAX], time0=1),
        run(["a", "b", "c"], dt=[MAX, -MAX], time0=1),
        run(["a", None]),
        run("a", dt=[]),  # type: ignore[arg-type]
        run(["a"], time0=None),
        run(["a"], index=-1),
        run(["a"], index=-0.0),
        {"type": "tool-call-chunks", "time0": 1, "index": 0, "dt": [], "id": "", "args": ["x"]},
        {
            "type": "tool-call-chunks", "time0": 1, "index": 0, "dt": [], "id": "c",
            "name": "", "args": ["x"],
        },
        {
            "type": "tool-call-chunks", "time0": 1, "index": 0, "dt": [], "id": "c",
            "name": None, "args": ["x"],
        },
        {"type": "chunk", "time": 1, "chunk": []},
        {"type": "chunk", "time": 1, "chunk": {"a": [-0.0]}},
        {"type": "chunk", "time": MAX + 1, "chunk": {}},
        {"type": "chunk", "time": 1, "chunk": {}, "extra": 1},
    ],
)  # fmt: skip
def test_expand_refuses_a_bad_record_and_names_it(kernel, record):
    """Spec 20 §4."""
    records = [run(["a"]), record, run(["b"])]
    with pytest.raises(StreamError) as caught:
        kernel.expand(records)
    assert type(caught.value) is StreamError
    assert caught.value.record == 1
    chunks = kernel.iter_expand(records)
    assert next(chunks).chunk == text("a")
    with pytest.raises(StreamError) as caught:
        next(chunks)
    assert caught.value.record == 1


@pytest.mark.parametrize("records", [None, {}, 5, "ab", ""])
def test_expand_refuses_what_is_no_list(kernel, records):
    with pytest.raises(StreamError) as caught:
        kernel.expand(records)
    assert caught.value.record is None


# --- readers ---


def test_readers_of_an_empty_stream(kernel):
    assert kernel.first_token_time([]) is None
    assert not kernel.has_visible_content([])
    assert not kernel.has_visible_text([])
    assert kernel.join_text([]) == ""
    assert kernel.last_chunk([], "usage") is None
    assert kernel.chunks_of([], "usage") == []


def test_first_token_time_skips_empty_members(kernel):
    """Spec 20 §5."""
    assert kernel.run_first_token_time(run(["", "", " "])) == 12
    assert kernel.run_first_token_time(run(["", ""])) is None
    named = {
        "type": "tool-call-chunks", "time0": 7.0, "index": 0, "dt": [1], "id": "c",
        "name": "n", "args": ["", ""],
    }  # fmt: skip
    assert kernel.run_first_token_time(named) == 7
    assert type(kernel.run_first_token_time(named)) is int
    del named["name"]
    assert kernel.run_first_token_time(named) is None
    assert kernel.first_token_time([run([""]), named, run(["x"], time0=9)]) == 9


def test_visibility_is_judged_by_fragment_and_white_space_set(kernel):
    """Spec 20 §5, §8.3."""
    assert kernel.run_first_visible_time(run(["\ufeff", "\u0085"])) == 11
    assert not kernel.has_visible_text([run([" ", "\u2028"])])
    assert kernel.is_token_delta(tool("c", "", name=""))
    assert not kernel.is_token_delta(tool("c", ""))
    assert kernel.is_visible_chunk({"type": "block-start", "blockType": "image"})
    assert not kernel.is_visible_chunk({"type": "block-start", "blockType": "text"})
    assert kernel.is_visible_chunk({"type": "block-end", "block": {"type": "image"}})
    assert not kernel.is_visible_chunk(
        {"type": "block-end", "block": {"type": "tool-call"}}
    )
    assert not kernel.is_visible_chunk({"type": "usage", "usage": {}})
    block = {"type": "text", "text": "x"}
    assert kernel.chunk_has_visible_text({"type": "block-end", "block": block})
    reasoning = {"type": "reasoning-delta", "index": 0, "text": "x"}
    assert not kernel.chunk_has_visible_text(reasoning)


def test_join_text_fuses_split_pairs(kernel):
    raw = {"type": "chunk", "time": 1, "chunk": text("\ude00")}
    reasoning = run(["no"], type="reasoning-chunks")
    assert kernel.join_text([run(["a", "\ud83d"]), raw, reasoning]) == "a\U0001f600"


@pytest.mark.parametrize(
    "record", [None, 5, {}, {"type": "bogus"}, {"type": "text-chunks"}]
)
def test_readers_refuse_what_they_cannot_read(kernel, record):
    for reader in (
        kernel.first_token_time,
        kernel.has_visible_content,
        kernel.join_text,
    ):
        with pytest.raises(StreamError):
            reader([record])


# --- assembly ---


def assembled(kernel: Any, chunks: list[dict[str, Any]]) -> Any:
    assembler = kernel.Assembler()
    for chunk in chunks:
        assembler.push(chunk)
    return assembler


def test_assemble_examples_of_the_spec(kernel):
    """Spec 20 §6.1, the table."""
    made = assembled(kernel, [text("a", 5), text("b", 2), text("c", 5)])
    assert [block["text"] for block in made.blocks()] == ["ac", "b"]
    made = assembled(
        kernel, [{"type": "block-start", "index": 3, "blockType": "tool-call"}]
    )
    assert made.blocks() == [
        {"type": "tool-call", "id": "call-3", "name": "", "arguments": ""}
    ]
    made = assembled(kernel, [tool("a", "{", name="n"), tool("b", "}", name="")])
    assert made.blocks() == [
        {"type": "tool-call", "id": "b", "name": "n", "arguments": "{}"}
    ]
    replay = {"response": "r", "blocks": [1, 2, 3], "other": 1}
    finish = {"type": "finish", "reason": {"kind": "max-tokens"}, "replayState": replay}
    made = assembled(
        kernel, [text("a"), {**tool("c", ""), "index": 1}, text(" ", 2), finish]
    )
    assert [block["text"] for block in made.blocks()] == ["a", " "]
    assert made.replay_state() == {"response": "r", "blocks": [1, 3]}
    assert made.interrupted_blocks() == [{"type": "text", "text": "a"}]


def test_assemble_defaults(kernel):
    made = kernel.Assembler()
    absent = object()
    assert made.blocks() == []
    assert made.usage() is None
    assert made.usage(absent) is absent
    assert made.replay_state(absent) is absent
    assert made.finish() == {"kind": "stop"}


def test_assemble_open_unknown_block(kernel):
    made = assembled(
        kernel, [text("a"), {"type": "block-start", "index": 1, "blockType": "x"}]
    )
    for call in (made.blocks, made.replay_state):
        with pytest.raises(StreamError):
            call()
    assert made.interrupted_blocks() == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize(
    ("chunk", "error"),
    [
        ({"type": "bogus"}, UnknownChunkError),
        ({}, UnknownChunkError),
        ([], UnknownChunkError),
        ("x", UnknownChunkError),
        (None, StreamError),
        (text(None), StreamError),
        (tool(None, ""), StreamError),
        ({"type": "block-end", "index": 0}, StreamError),
        ({"type": "block-end", "index": 0, "block": None}, StreamError),
    ],
)
def test_assemble_refused_push_changes_nothing(kernel, chunk, error):
    made = assembled(kernel, [text("a", 1)])
    with pytest.raises(StreamError) as caught:
        made.push(chunk)
    assert type(caught.value) is error
    assert made.blocks() == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize("block", [[], "x", {}, 5])
def test_assemble_keeps_a_block_without_type(kernel, block):
    """Spec 20 §8.5."""
    made = assembled(kernel, [{"type": "block-end", "index": 0, "block": block}])
    assert made.blocks() == [block]
    assert made.interrupted_blocks() == []


def test_push_records_takes_a_packer(kernel):
    packer = kernel.Packer()
    for at, chunk in enumerate(
        (
            {"type": "text-delta", "index": 0, "text": "a\ud83d"},
            {"type": "text-delta", "index": 0, "text": "\ude00"},
            {"type": "tool-call-delta", "index": 1, "id": "c", "name": "n", "argumentsDelta": "{"},
            {"type": "tool-call-delta", "index": 1, "id": "c", "argumentsDelta": "}"},
            {"type": "reasoning-delta", "index": 2, "text": " "},
            {"type": "usage", "usage": {"inputTokens": 1}},
            {"type": "block-end", "index": 2, "block": {"type": "image"}},
            {"type": "reasoning-delta", "index": 2, "text": "late"},
        )
    ):  # fmt: skip
        packer.push(at, chunk)
    assembler = kernel.Assembler()
    assembler.push_records(packer)
    assert assembler.blocks() == [
        {"type": "text", "text": "a\U0001f600"},
        {"type": "tool-call", "id": "c", "name": "n", "arguments": "{}"},
        {"type": "image"},
    ]
    assert assembler.usage() == {"inputTokens": 1}


def test_push_records_of_a_packer_equals_that_of_its_records(kernel):
    """Fragments that wait for a block to stay open, on every order of chunks."""
    chance = random.Random(5)  # noqa: S311 - repeatable
    closed = open_ = refused = 0
    for _ in range(1500):
        packer = kernel.Packer()
        for at in range(chance.randrange(12)):
            index = chance.choice((0, 0, 1, 2))
            packer.push(at, chance.choice(
                (
                    {"type": "text-delta", "index": index, "text": chance.choice(("a", " ", "\ud83d"))},
                    {"type": "text-delta", "index": index, "text": "b"},
                    {"type": "reasoning-delta", "index": index, "text": "r"},
                    {"type": "tool-call-delta", "index": index, "id": "c", "name": "n", "argumentsDelta": "{"},
                    {"type": "tool-call-delta", "index": index, "id": "d", "argumentsDelta": "}"},
                    # Kept as they are.
                    {"type": "text-delta", "index": index, "text": "raw", "more": 1},
                    {"type": "tool-call-delta", "index": index, "id": "e", "argumentsDelta": "", "more": 1},
                    {"type": "block-start", "index": index, "blockType": chance.choice(("text", "image"))},
                    {"type": "block-end", "index": index, "block": {"type": "text", "text": "whole"}},
                    {"type": "block-end", "index": index, "block": {"type": "tool-call"}},
                    {"type": "block-end", "index": index},
                    {"type": "usage", "usage": {"n": at}},
                    {"type": "finish", "reason": {"kind": chance.choice(("stop", "max-tokens"))}},
                )
            ))  # fmt: skip
        shown = []
        for records in (packer, packer.snapshot()):
            assembler = kernel.Assembler()
            errors: list[Any] = []
            for read in (
                lambda: assembler.push_records(records),  # noqa: B023 - called at once
                assembler.blocks,
                assembler.interrupted_blocks,
                assembler.usage,
                assembler.finish,
            ):
                try:
                    errors.append(read())
                except StreamError as error:
                    errors.append((type(error), str(error), error.record))
            shown.append(errors)
        assert shown[0] == shown[1]
        refused += shown[0][0] is not None
        closed += "whole" in str(shown[0][1])
        open_ += "'a'" in str(shown[0][1])
    assert min(closed, open_, refused) > 40


def test_packer_is_no_value(kernel):
    packer = kernel.Packer()
    for data in (packer, [packer], {"stream": packer}, {"a": {"b": packer}}):
        with pytest.raises(TypeError):
            kernel.encode_events([{"type": "x", "seq": 0, "time": 1, "data": data}], 0)
    with pytest.raises(TypeError):
        kernel.dump({"data": {"stream": packer}})


def test_packer_with_a_chunk_too_deep_for_a_row(kernel):
    """Depth 1,024 (10 §1): four levels around the chunk."""
    for depth, fits in ((1019, True), (1020, False)):
        packer = kernel.Packer()
        value: Any = 1
        for _ in range(depth):
            value = [value]
        packer.push(1, {"type": "usage", "usage": value})
        packer.push(2, {"type": "text-delta", "index": 0, "text": "a"})
        for message in (None, ("m", "p", "n")):
            given = (1, 2, 3, message, False)
            if fits:
                assert packer.encode_settlement(given, 0).event_count == 1
                continue
            for _ in range(2):
                with pytest.raises(LimitExceededError):
                    packer.encode_settlement(given, 0)


def test_push_records_equals_pushing_members(kernel):
    records = kernel.pack(
        [
            (1, text("\ud83d")),
            (2, text("\ude00")),
            (3, tool("c", "{")),
            (4, tool("c", "}")),
        ]
    )
    made = kernel.Assembler()
    made.push_records(records)
    members = [timed.chunk for timed in kernel.expand(records)]
    assert made.blocks() == assembled(kernel, members).blocks()
    assert made.blocks()[0]["text"] == "\U0001f600"


class Busy:
    """Uses the packer that is being given it."""

    def __init__(self, packer: Any) -> None:
        self.packer = packer
        self.errors: list[BaseException] = []

    def use(self) -> None:
        try:
            self.packer.snapshot()
        except RuntimeError as error:
            self.errors.append(error)


class BusyKey(Busy):
    def __hash__(self) -> int:
        return hash("type")

    def __eq__(self, other: object) -> bool:
        self.use()
        return False


class BusyItem(Busy):
    def __del__(self) -> None:
        self.use()


def test_packer_that_is_used_while_it_is_used_never_waits_for_itself(kernel):
    """By a key that is compared, by an item that goes, by the collector."""
    packer = kernel.Packer()
    packer.push(1, text("a"))
    with pytest.raises(StreamError):
        packer.push(2, {BusyKey(packer): 1})

    def items() -> Any:
        yield {"time": 3, "chunk": text("b"), "more": BusyItem(packer)}

    packer.extend(items())
    thresholds = gc.get_threshold()
    for _ in range(20):
        loop: list[Any] = [BusyItem(packer)]
        loop.append(loop)
        del loop
        gc.set_threshold(1)
        try:
            packer.snapshot()
            packer.push(4, {"type": "usage", "usage": {"a": [1]}})
            packer.encode_settlement((1, 1, 1, ("m", "p", "n"), False), 0)
        finally:
            gc.set_threshold(*thresholds)
    assert packer.encode_settlement((1, 1, 1, None, False), 0).event_count == 1


def test_packer_with_a_number_that_would_be_lost(kernel):
    """Whether it is in the message, or only in the stream. Spec: 10 §11.2."""
    for lost, usages in ((2**53 + 1, (2**53 + 1, 1)), (2**53 + 1, (2**53 + 1,))):
        packer = kernel.Packer()
        for at, usage in enumerate(usages):
            packer.push(at, {"type": "usage", "usage": {"x": usage}})
        for message in (None, ("m", "p", "n")):
            with pytest.raises(RowError, match=str(lost)) as refused:
                packer.encode_settlement((1, 1, 1, message, False), 0)
            assert refused.value.rule == "10 §11.2"
