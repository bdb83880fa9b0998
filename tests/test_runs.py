"""Chunk rows that stay together, and the migration that takes them so. Spec: 50 §5.3, §5.5."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

import dsh_codec as dsh
from dsh_codec import _native, _pure
from dsh_codec._types import ChunkRun, CommonRow, ScanResult
from dsh_codec.errors import DshCodecError
from dsh_codec.migrate import upgrade
from dsh_codec.migrate.chain import Chain, run_of
from dsh_codec.migrate.staging import encode_row
from dsh_codec.row import PackedRow, split_run
from test_migrate_properties import logs

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = dict[str, Any]
HEADER = {
    "type": "session",
    "version": 0,
    "id": "s",
    "createdAt": 0,
    "delegationDepth": 0,
}
TEXT = {"type": "text-delta", "index": 0, "text": "a"}
FINISH = {"type": "finish", "reason": {"kind": "stop"}}


def line_of(row: Any) -> bytes:
    """Return a row in the spelling of the harness."""
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def chunk_row(seq: int, chunk: Any, *, step: Any = 1, **more: Any) -> Json:
    data = {"turn": 1, "step": step, "chunk": chunk}
    return {
        "type": "assistant/chunk",
        "seq": seq,
        "time": 10 + seq,
        "data": data,
    } | more


def packed_row(seq: int, texts: list[str], **more: Any) -> Json:
    gaps = [1] * (len(texts) - 1)
    kind, member = ("tool-call-chunks", "args") if more else ("text-chunks", "texts")
    data = {"turn": 1, "step": 1, "index": 0, **more, "dt": gaps, member: texts}
    return {"type": kind, "seq0": seq, "time0": 10 + seq, "data": data}


def units_of(kernel: Any, pieces: Iterable[bytes], **options: Any) -> list[Any]:
    """Return what a scan gives, and at the end its result or refusal."""
    scanner = kernel.RunScanner(**options)
    found: list[Any] = []
    try:
        for piece in pieces:
            found += scanner.feed(piece)
        found.append(scanner.finish())
    except DshCodecError as error:
        found.append((type(error), error.line, error.offset, error.seq, error.rule))
    return found


def cut_at_random(data: bytes, chance: random.Random) -> list[bytes]:
    places = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(6)))
    bounds = [0, *places, len(data)]
    return [data[a:b] for a, b in pairwise(bounds)]


def respelled(data: bytes, chance: random.Random) -> bytes:
    """Return the log, mostly in the spelling of the harness, which kernels know by its bytes."""
    if chance.random() < 0.3:
        return data
    return b"".join(line_of(json.loads(line)) for line in data.splitlines())


# --- the scan ---


def test_neighbours_of_an_attempt_come_as_one(kernel: Any) -> None:
    """An attempt ends with its `finish`, with another step, and at any other event."""
    rows = [
        chunk_row(0, {"type": "block-start", "index": 0, "blockType": "text"}),
        chunk_row(1, TEXT),
        packed_row(2, ["a", "b"]),
        chunk_row(4, FINISH),
        packed_row(5, ["c"]),
        chunk_row(6, TEXT, step=2),
        {"type": "plan/mode", "seq": 7, "time": 20, "data": {"active": True}},
        chunk_row(8, TEXT, step=2),
    ]
    lines = [line_of(row) for row in rows]
    header = line_of(HEADER)
    *units, result = units_of(kernel, [header + b"".join(lines)])
    start = len(header)
    assert units[0] == ChunkRun(
        0, 5, 1, 1, 14, True, True, b"".join(lines[:4]), start, 1
    )
    start += len(b"".join(lines[:4]))
    assert units[1] == ChunkRun(5, 1, 1, 1, 15, False, False, lines[4], start, 5)
    assert [(unit.seq, unit.count) for unit in units] == [
        (0, 5),
        (5, 1),
        (6, 1),
        (7, 1),
        (8, 1),
    ]
    assert [isinstance(unit, ChunkRun) for unit in units] == [True] * 3 + [False, True]
    assert (result.event_count, result.row_count) == (9, 8)


def test_declared_cut_parts_runs(kernel: Any) -> None:
    """Rows on both sides of the cut are two runs; a packed row across it stands alone."""
    rows = [chunk_row(0, TEXT), chunk_row(1, TEXT), packed_row(2, ["a", "b"])]
    text = b"".join(map(line_of, rows))
    for cut, expected in {
        1: [(ChunkRun, 1), (ChunkRun, 3)],
        2: [(ChunkRun, 2), (ChunkRun, 2)],
        3: [(ChunkRun, 2), (dsh.Row, 2)],
        4: [(ChunkRun, 4)],
    }.items():
        header = line_of(HEADER | {"seedLength": cut, "parentSession": "p"})
        units = units_of(kernel, [header + text])[:-1]
        assert [(type(unit), unit.count) for unit in units] == expected, cut


@pytest.mark.parametrize(
    "row",
    [
        chunk_row(0, TEXT | {"index": -1}),
        chunk_row(0, TEXT | {"index": "0"}),
        chunk_row(0, TEXT | {"text": 1}),
        chunk_row(0, {"type": "tool-call-delta", "index": 0, "argumentsDelta": ""}),
        chunk_row(
            0, {"type": "tool-call-delta", "index": 0, "id": "", "argumentsDelta": ""}
        ),
        chunk_row(
            0,
            {
                "type": "tool-call-delta",
                "index": 0,
                "id": "c",
                "name": "",
                "argumentsDelta": "",
            },
        ),
        chunk_row(0, {"type": "usage", "usage": -0.0}),
        chunk_row(0, {"type": "other"}),
        chunk_row(0, {}),
        chunk_row(0, []),
        chunk_row(0, None),
        chunk_row(0, TEXT, step=-1),
        chunk_row(0, TEXT, step=None),
        chunk_row(0, TEXT, time=0.5),
        chunk_row(0, TEXT, time=-0.0),
        chunk_row(0, TEXT, ignorable=True),
        chunk_row(0, TEXT, surfaceOp="append"),
        chunk_row(0, TEXT, data={"step": 1, "chunk": TEXT}),
        chunk_row(0, TEXT, data={"turn": 1, "step": 1, "chunk": TEXT, "x": 1}),
        chunk_row(0, TEXT, data=[]),
        packed_row(0, ["a"], id="c", name=""),
    ],
    ids=line_of,
)
def test_row_that_a_stream_may_refuse_stands_alone(kernel: Any, row: Json) -> None:
    [unit, _] = units_of(kernel, [line_of(HEADER) + line_of(row)])
    assert type(unit) is dsh.Row
    assert unit.seq == 0


def test_other_spellings_join_too(kernel: Any) -> None:
    """White space, escapes, order of members and repeated members make no difference."""
    first = (
        b'{"data":{"chunk":{"text":"\\u0061","index":0.0,"type":"text-delta"},'
        b'"step":1.0,"turn":1},"time":1e1,"seq":0,"type":"assistant/chunk"}\n'
    )
    second = (
        b'{ "type": "assistant/chunk", "seq": 1, "time": -0.5, "time": 11, "data":'
        b' {"turn": 1, "step": 1, "chunk": {"type": "usage", "x": -0, "x": 0}}}\r\n'
    )
    [run, _] = units_of(kernel, [line_of(HEADER) + first + second])
    assert (run.count, run.turn, run.step, run.time) == (2, 1, 1, 11)
    assert run.raw == first + second


@settings(max_examples=150, deadline=None)
@given(logs(), st.randoms(use_true_random=False))
def test_runs_are_the_rows_of_the_scan(data: bytes, chance: random.Random) -> None:
    """Split again they are the rows that a scan gives; both kernels, cut in any place."""
    data = respelled(data, chance)
    scanner = _native.RowScanner()
    rows = [*scanner.feed(data), scanner.finish()]
    pieces = cut_at_random(data, chance)
    units = units_of(_native, pieces)
    assert units == units_of(_pure, pieces)
    parted: list[Any] = []
    for unit in units:
        if isinstance(unit, ChunkRun):
            parted += split_run(unit, max_depth=1024)
        else:
            is_common = isinstance(unit, CommonRow)
            parted.append(dsh.Row._make((*unit[:6], 1)) if is_common else unit)
    assert parted == rows
    whole = units_of(_native, [data])
    assert sum(isinstance(unit, ChunkRun) for unit in whole) <= sum(
        isinstance(unit, ChunkRun) for unit in units
    )


@settings(max_examples=200, deadline=None)
@given(
    logs(),
    st.randoms(use_true_random=False),
    st.sampled_from(["strict", "recoverable"]),
)
def test_kernels_agree_on_damaged_rows(
    data: bytes, chance: random.Random, mode: str
) -> None:
    damaged = bytearray(data := respelled(data, chance))
    for _ in range(3):
        damaged[chance.randrange(data.index(b"\n"), len(data))] = chance.choice(
            b'"{}[],:\\\n 01-eax\xff'
        )
    pieces = cut_at_random(bytes(damaged), chance)
    native, pure = (units_of(k, pieces, mode=mode) for k in (_native, _pure))
    assert native[:-1] == pure[:-1]
    ends: list[Any] = [native[-1], pure[-1]]
    if all(isinstance(end, ScanResult) for end in ends):
        # The words of an issue are each kernel's own.
        ends = [
            end._replace(issue=end.issue and end.issue._replace(message=""))
            for end in ends
        ]
    assert ends[0] == ends[1]


# --- packing ---


def test_rows_of_runs_are_packed_over_their_bounds(kernel: Any) -> None:
    """A run goes on with the record that the one before ended with. Spec: 50 §5.5."""
    usage = {"type": "usage", "usage": {"inputTokens": 1, "outputTokens": 2}}
    runs = [
        line_of(packed_row(0, ["a", "\ud83d"])) + line_of(chunk_row(2, TEXT)),
        line_of(chunk_row(3, TEXT)) + line_of(chunk_row(4, usage)),
        line_of(chunk_row(5, TEXT)),
    ]
    packed = kernel.pack_runs(runs)
    raw = {"type": "chunk", "time": 14, "chunk": usage}
    assert packed.has_plain_blocks
    assert packed.text == (
        b'[{"type":"text-chunks","time0":10,"index":0,"dt":[1,1,1],'
        b'"texts":["a","\\ud83d","a","a"]},'
        + line_of(raw)[:-1]
        + b',{"type":"text-chunks","time0":15,"index":0,"dt":[],"texts":["a"]}]'
    )
    assert kernel.pack_runs(b"".join(runs)) == packed
    assert kernel.pack_runs([]) == (b"[]", True)


@pytest.mark.parametrize("gaps", [b"[1,-2]", b"[1, -2]", b"[1.0,-2]", b"[1,-20e-1]"])
def test_packed_rows_join_with_the_gap_between_them(kernel: Any, gaps: bytes) -> None:
    """Spec 50 §5.5: the gap of the first member, then the row's own, as they are written."""
    rows = [packed_row(0, ["a"]), packed_row(1, list("bcd")), packed_row(4, list("ef"))]
    lines = [line_of(row) for row in rows]
    lines[1] = lines[1].replace(b"[1,1]", gaps)
    head = b'[{"type":"text-chunks","time0":10,"index":0,"dt":'
    assert kernel.pack_runs(lines[1:2]).text == (
        head.replace(b"10", b"11") + b'[1,-2],"texts":["b","c","d"]}]'
    )
    assert kernel.pack_runs(lines).text == (
        head + b'[1,1,-2,4,1],"texts":["a","b","c","d","e","f"]}]'
    )


@pytest.mark.parametrize(
    ("chunk", "is_plain"),
    [
        ({"type": "block-start", "index": 0, "blockType": "image"}, True),
        ({"type": "block-start", "index": 0, "blockType": "video"}, False),
        ({"type": "block-start", "index": 0}, False),
        ({"type": "block-start", "index": 0, "blockType": []}, False),
        (
            {"type": "block-end", "index": 0, "block": {"type": "text", "text": ""}},
            True,
        ),
        (
            {"type": "block-end", "index": 0, "block": {"type": "text", "text": 1}},
            False,
        ),
        (
            {"type": "block-end", "block": {"type": "reasoning", "text": "", "x": 1}},
            False,
        ),
        ({"type": "block-end", "block": {"type": "image", "attachment": {}}}, False),
        ({"type": "block-end", "block": {"type": [], "text": ""}}, False),
        ({"type": "block-end", "block": []}, False),
        ({"type": "block-end"}, False),
        ({"type": "usage", "block": 1, "blockType": 2}, True),
        (TEXT | {"blockType": 2}, True),
    ],
    ids=str,
)
def test_blocks_that_are_not_plain_are_told(
    kernel: Any, chunk: Json, *, is_plain: bool
) -> None:
    """Spec 50 A.4, A.5: what migration has to look at in a stream."""
    row = line_of(chunk_row(0, chunk))
    assert kernel.pack_runs(row).has_plain_blocks is is_plain


def test_what_is_no_chunk_row_is_refused(kernel: Any) -> None:
    with pytest.raises(dsh.RowError):
        kernel.pack_runs([line_of(chunk_row(0, TEXT)) + b'{"type":"turn/end"}\n'])
    with pytest.raises(dsh.JsonSyntaxError):
        kernel.pack_runs(b"{\n")
    with pytest.raises(dsh.StreamError):
        kernel.pack_runs(line_of(chunk_row(0, [])))


@settings(max_examples=150, deadline=None)
@given(logs(), st.randoms(use_true_random=False))
def test_packed_runs_are_packed_lines(data: bytes, chance: random.Random) -> None:
    for run in units_of(_native, [respelled(data, chance)]):
        if isinstance(run, ChunkRun):
            packed = _native.pack_runs(run.raw)
            assert packed == _pure.pack_runs(run.raw)
            rows = run.raw.split(b"\n")[:-1]
            assert packed.text == _native.pack_lines(rows)


# --- a frame in pieces ---


def test_frame_in_pieces_has_the_bytes_of_the_whole(kernel: Any) -> None:
    chance = random.Random(5)  # noqa: S311 - no secret
    data = chance.randbytes(300_000) + b"abc" * 200_000
    for size in (0, 1, 5_000, 131_072, 131_073, len(data)):
        writer = kernel.FrameWriter()
        for _ in range(2):  # Nothing is left of a frame that was ended.
            parts = cut_at_random(data[:size], chance)
            frame = b"".join(map(writer.write, parts)) + writer.finish()
            assert frame == kernel.encode_frame(data[:size]), size


# --- migration ---


def in_frames(data: bytes, chance: random.Random) -> bytes:
    """Return a log compressed in batches of some rows, which no run crosses."""
    header, *rows = data.splitlines(keepends=True)
    frames = [_native.encode_frame(header)]
    while rows:
        count = chance.randrange(1, 9)
        frames.append(_native.encode_frame(b"".join(rows[:count])))
        rows = rows[count:]
    return b"".join(frames)


def one_by_one(data: bytes) -> list[Json]:
    """Migrate without runs."""
    with dsh.open(data) as log:
        made: list[Json] = []
        chain = Chain(log.header, made.append, children=())
        for unit in log.units():
            if isinstance(unit, PackedRow):
                chain.push_run(run_of(dsh.parse(unit.raw)))
            else:
                chain.push(unit.envelope)
        assert log.result is not None
        chain.finish(log.result.scan.inherited_event_count)
        return made


def outcome_of(run: Any) -> Any:
    try:
        return run()
    except DshCodecError as error:
        place = (error.seq, error.rule, getattr(error, "edge", None))
        return type(error), *place, getattr(error, "member", None), error.message


def odd_rows(data: bytes, chance: random.Random) -> bytes:
    """Change a chunk row or two, so that they are pushed alone or refused."""
    lines = data.splitlines(keepends=True)
    places = [n for n, line in enumerate(lines) if b"chunk" in line]
    changes = [
        (b'"type":"text-delta"', b'"type":"other"'),
        (b'"turn":1', b'"turn":1.0'),
        (b'"turn":1', b'"turn":2'),
        (b'"turn":1', b'"turn":"1"'),
        (b'"index":0', b'"index":-1'),
        (b'"id":"c"', b'"id":""'),
        (b'"name":"n"', b'"name":""'),
        (b'"time":', b'"ignorable":true,"time":'),
        (b'"data":', b'"x":1,"data":'),
        (b'"chunk":', b'"y":1,"chunk":'),
        (b'"kind":"error"', b'"kind":-0'),
    ]
    for _ in range(2):
        if places:
            place = chance.choice(places)
            old, new = chance.choice(changes)
            compact = lines[place].replace(b": ", b":").replace(b", ", b",")
            lines[place] = compact.replace(old, new)
    return b"".join(lines)


@pytest.mark.parametrize("is_odd", [False, True])
@settings(max_examples=250, deadline=None)
@given(data=logs(), chance=st.randoms(use_true_random=False))
def test_rows_together_give_what_they_give_one_by_one(
    *, is_odd: bool, data: bytes, chance: random.Random
) -> None:
    """Events, refusals, their edges, seqs, members and rules; whole and in frames."""
    data = respelled(data, chance)
    if is_odd:
        data = odd_rows(data, chance)
    expected = outcome_of(lambda: one_by_one(data))

    def made(source: bytes) -> list[Json]:
        with dsh.open(source) as log:
            # As it comes out of the edges, before what accepts the result as a whole.
            return [dsh.parse(row) for row in upgrade(log, children=()).rows()]

    def logical(events: Any) -> Any:
        if not isinstance(events, list):
            return events
        return [dsh.parse(encode_row(event)) for event in events]

    wanted = logical(expected)
    assert outcome_of(lambda: made(data)) == wanted
    assert outcome_of(lambda: made(in_frames(data, chance))) == wanted
