"""Laws on random input: inverse pairs, cuts, and that both kernels are one. Conventions 10."""

from __future__ import annotations

import copy
import importlib
import json
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from dsh_codec.errors import DshCodecError
from dsh_codec.settlement import settlement_event
from dsh_codec.values import deep_equal, join_fragments

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

QUICK = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MAX = 2**53 - 1

# --- strategies ---

texts = st.text(
    st.characters(codec="utf-16", exclude_categories=())
    | st.sampled_from('\ud83d\ude00"\\\n\x00'),
    max_size=6,
).map(lambda text: join_fragments([text]))
safe_integers = st.integers(-MAX, MAX) | st.integers(-3, 3)
numbers = safe_integers | st.floats(allow_nan=False) | st.integers(-(10**30), 10**30)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts | st.integers(0, 20).map(str), inner, max_size=4)
    ),
    max_leaves=12,
)
lossless = st.recursive(
    st.none() | st.booleans() | safe_integers | texts,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
    ),
    max_leaves=6,
)
indexes = st.integers(0, 2)
times = st.integers(0, 50) | safe_integers
chunks = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["text-delta", "reasoning-delta"]),
            "index": indexes,
            "text": texts,
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("tool-call-delta"),
            "index": indexes,
            "id": st.sampled_from(["", "a", "b"]),
            "argumentsDelta": texts,
        },
        optional={"name": st.sampled_from(["", "n"])},
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("block-start"),
            "index": indexes,
            "blockType": st.sampled_from(["text", "image"]),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("block-end"),
            "index": indexes,
            "block": st.fixed_dictionaries(
                {"type": st.sampled_from(["text", "tool-call", "x"]), "text": texts}
            ),
        }
    ),
    st.fixed_dictionaries({"type": st.just("usage"), "usage": lossless}),
    st.fixed_dictionaries(
        {
            "type": st.just("finish"),
            "reason": st.sampled_from([{"kind": "stop"}, {"kind": "max-tokens"}]),
        },
        optional={
            "replayState": st.fixed_dictionaries(
                {"response": lossless, "blocks": st.lists(lossless, max_size=3)}
            )
        },
    ),
)
timed_chunks = st.lists(st.tuples(times, chunks), max_size=12)


def as_objects(pairs: list[tuple[int, Any]]) -> list[dict[str, Any]]:
    return [{"time": time, "chunk": chunk} for time, chunk in pairs]


odd: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -0.0, 1.5, -1, 2**53, "", "x", [], {}, [1], "turn/end", "chunk"]
)


@st.composite
def mutated(draw: Callable[[Any], Any], source: Any) -> Any:
    """Draw a value and change some of its members."""
    value = copy.deepcopy(draw(source))
    for _ in range(draw(st.integers(0, 2))):
        holders = [value]
        for holder in holders:
            inner = holder.values() if isinstance(holder, dict) else holder
            holders += [
                item for item in inner if isinstance(item, (dict, list)) and item
            ]
        holder = draw(st.sampled_from(holders))
        if not holder:
            continue
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from(keys))
        if isinstance(holder, dict) and draw(st.booleans()):
            del holder[key]
        else:
            holder[key] = copy.deepcopy(
                draw(odd)
            )  # One value must not be in two places.
    return value


HEADERS = [
    {
        "type": "session",
        "version": version,
        "id": "s",
        "createdAt": 1,
        "delegationDepth": 0,
    }
    | ({"isSeeded": False} if version >= 2 else {})
    for version in range(5)
]
EVENT_TYPES = [
    "todo/write", "turn/start", "turn/end", "session/end-seed", "user/message",
    "assistant/message", "assistant/attempt", "assistant/chunk", "tool/result",
    "system/message", "request/header", "tool/code-dispatch", "plugin:x",
]  # fmt: skip


@st.composite
def logs(draw: Callable[[Any], Any]) -> bytes:
    """Draw a small log of any generation, often damaged."""
    version = draw(st.integers(0, 4))
    header = st.just(HEADERS[version])
    is_odd = draw(st.integers(0, 9)) == 0
    lines = [json.dumps(draw(mutated(header) if is_odd else header)).encode()]
    seq = 0
    for _ in range(draw(st.integers(0, 8))):
        if version < 2 and draw(st.integers(0, 2)) == 0:
            count = draw(st.integers(1, 3))
            data = {
                "turn": 1,
                "step": 1,
                "index": 0,
                "dt": [1] * (count - 1),
                "texts": ["t"] * count,
            }
            row: dict[str, Any] = {
                "type": "text-chunks",
                "seq0": seq,
                "time0": 5,
                "data": data,
            }
            seq += count
        else:
            records = [
                {
                    "type": "text-chunks",
                    "time0": 1,
                    "index": 0,
                    "dt": [2],
                    "texts": ["a", "b"],
                },
                {"type": "chunk", "time": 1, "chunk": {"type": "usage"}},
            ]
            message = {
                "id": "m",
                "role": "user",
                "source": {"kind": "user"},
                "content": [{"type": "text", "text": "x"}],
            }
            data = {
                "turn": 1,
                "step": 1,
                "stream": records,
                "message": message,
                "header": {},
            }
            row = {
                "type": draw(st.sampled_from(EVENT_TYPES)),
                "seq": seq,
                "time": seq,
                "data": data,
            }
            row |= draw(
                st.sampled_from(
                    [
                        {},
                        {},
                        {"surfaceOp": "append"},
                        {"ignorable": True},
                        {"sourceEventSeqs": [0]},
                    ]
                )
            )
            seq += 1
        damage = draw(st.integers(0, 9))
        if damage == 0:
            lines.append(
                draw(
                    st.sampled_from([b"", b"bad", b"[]", b"5", b'{"type":"turn/end"}'])
                )
            )
        elif damage == 1:
            lines.append(json.dumps(draw(mutated(st.just(row)))).encode())
        else:
            lines.append(json.dumps(row).encode())
    ending: bytes = draw(st.sampled_from([b"\n", b"\n", b"", b'\n{"torn']))
    return b"\n".join(lines) + ending


# --- outcomes ---


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call gives: its value, or class and place of its refusal."""
    try:
        return "ok", call()
    except DshCodecError as error:
        extra = [
            getattr(error, name, None)
            for name in ("record", "limit", "value", "expected", "got", "found")
        ]
        return (
            type(error).__name__,
            error.line,
            error.offset,
            error.seq,
            error.frame,
            error.rule,
            extra,
        )


def same_on(both: tuple[Any, Any], call: Callable[[Any], Any]) -> None:
    """Check that a call gives the same on both kernels, refusals and their places too."""
    native, pure = (outcome(partial(call, kernel)) for kernel in both)
    assert native == pure


def scan_outcome(kernel: Any, pieces: list[bytes], **options: Any) -> Any:
    scanner = kernel.RowScanner(check_streams=True, **options)

    def run() -> Any:
        rows = [tuple(row) for piece in pieces for row in scanner.feed(piece)]
        return rows, result_of(scanner.finish())

    return outcome(run)


def result_of(result: Any) -> Any:
    """Return a scan result without the texts, which are the kernels' own."""
    issue = result.issue and result.issue[:2]
    faults = [fault[:2] for fault in result.stream_faults]
    return result._replace(issue=issue, stream_faults=faults)


@pytest.fixture(scope="module")
def both() -> tuple[ModuleType, ModuleType]:
    """Both kernels: a missing native one fails the tests of `native`."""
    native = importlib.import_module("dsh_codec._native")
    return native, importlib.import_module("dsh_codec._pure")


# --- laws ---


@QUICK
@given(value=values)
def test_dump_of_parse_is_stable(kernel, value):
    text = kernel.dump(value)
    again = kernel.parse(text)
    assert kernel.dump(again) == text
    assert kernel.dump(kernel.parse(b" " + text + b"\r\n")) == text


@QUICK
@given(value=lossless)
def test_parse_of_dump_is_the_value(kernel, value):
    assert deep_equal(kernel.parse(kernel.dump(value)), value)


@QUICK
@given(timed=timed_chunks)
def test_expand_of_pack_is_the_input(kernel, timed):
    records = kernel.pack(timed)
    assert kernel.expand(records) == timed
    assert kernel.pack(kernel.expand(records)) == records
    assert kernel.parse(kernel.dump(records)) == records


@QUICK
@given(timed=timed_chunks)
def test_assembly_of_records_is_that_of_chunks(kernel, timed):
    whole, single = kernel.Assembler(), kernel.Assembler()
    whole.push_records(kernel.pack(timed))
    for _, chunk in timed:
        single.push(chunk)
    for name in ("blocks", "interrupted_blocks", "usage", "finish", "replay_state"):
        assert outcome(getattr(whole, name)) == outcome(getattr(single, name))


@QUICK
@given(seqs=st.lists(st.integers(0, 30), unique=True))
def test_decode_of_encode_is_the_list(kernel, seqs):
    ordered = sorted(seqs)
    assert kernel.decode_seqs(kernel.encode_seqs(ordered), max_entries=31) == ordered
    assert kernel.decode_seqs(kernel.encode_seqs(seqs), max_entries=31) == seqs


@QUICK
@given(
    data=logs(), places=st.lists(st.integers(0, 2000), max_size=6), strict=st.booleans()
)
def test_scan_does_not_depend_on_the_cut(kernel, data, places, strict):
    mode = "strict" if strict else "recoverable"
    cuts = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    pieces = [data[i:j] for i, j in pairwise(cuts)]
    whole = scan_outcome(kernel, [data], mode=mode)
    assert scan_outcome(kernel, pieces, mode=mode) == whole
    singles = [data[i : i + 1] for i in range(len(data))]
    assert scan_outcome(kernel, singles, mode=mode) == whole


@QUICK
@given(
    batches=st.lists(st.binary(max_size=200), max_size=5),
    size=st.integers(1, 400),
    cut=st.integers(0, 12),
)
def test_frames_do_not_depend_on_the_cut(kernel, batches, size, cut):
    data = b"".join(map(kernel.encode_frame, batches))
    data = data[: max(0, len(data) - cut)]
    whole = kernel.scan_frames(data)
    scanner, reader = kernel.FrameScanner(), kernel.FrameReader()
    frames, plain = [], [b"" for _ in batches]
    for start in range(0, len(data), size):
        frames += scanner.feed(data[start : start + size])
        reader.feed(data[start : start + size])
        while (piece := reader.read()) is not None:
            plain[piece.frame] += piece.data
    assert (frames, scanner.finish()) == whole
    assert reader.frame_count == len(frames)
    assert plain[: len(frames)] == batches[: len(frames)]


# --- native equals pure ---


@QUICK
@given(
    text=values.map(json.dumps),
    places=st.lists(st.tuples(st.integers(0, 500), st.binary(max_size=2)), max_size=3),
)
def test_native_parses_like_pure(both, text, places):
    data = text.encode()
    for wanted, piece in places:
        place = wanted % (len(data) + 1)
        data = data[:place] + piece + data[place + len(piece) :]
    same_on(both, lambda kernel: kernel.dump(kernel.parse(data)))
    same_on(both, lambda kernel: kernel.dump(kernel.parse(data, max_depth=2)))


@QUICK
@given(value=values)
def test_native_dumps_like_pure(both, value):
    same_on(both, lambda kernel: kernel.dump(value))


@QUICK
@given(
    event=mutated(
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(
                    ["x", "tool/result", "user/message", "session/end-seed"]
                ),
                "seq": st.sampled_from([3, 3.0, 4]),
                "time": times,
                "data": values,
            },
            optional={
                "sourceEventSeqs": st.lists(st.integers(0, 3), unique=True),
                "surfaceOp": values,
                "ignorable": st.just(True),
            },
        )
    )
)
def test_native_encodes_like_pure(both, event):
    same_on(both, lambda kernel: kernel.encode_events([event], 3))


@QUICK
@given(data=logs(), flip=st.integers(0, 4000), code=st.integers(0, 255))
def test_native_takes_rows_like_pure(both, data, flip, code):
    """Rows as they come, and with one byte changed."""
    rows = bytearray(data.partition(b"\n")[2])
    same_on(both, lambda kernel: kernel.encode_rows(rows, 0))
    if flip < len(rows):
        rows[flip] = code
    same_on(both, lambda kernel: kernel.encode_rows(rows, 0))


@QUICK
@given(data=values, time=times, spaces=st.booleans())
def test_rows_are_written_as_their_events_are(kernel, data, time, spaces):
    event = {"type": "x", "seq": 3, "time": time, "data": data}
    separators = (", ", ": ") if spaces else (",", ":")
    row = json.dumps(event, separators=separators, ensure_ascii=spaces)
    # No text is that long.
    text = row.replace("Infinity", "1e999").encode("utf-8", "surrogatepass")
    parsed = kernel.parse(text)
    assert outcome(lambda: kernel.encode_rows(text, 3)) == outcome(
        lambda: kernel.encode_events([parsed], 3)
    )


@QUICK
@given(
    timed=timed_chunks,
    time=times,
    members=st.tuples(values, values),
    message=st.none() | st.tuples(values, values, values),
    is_interrupted=st.booleans(),
)
def test_packer_is_settled_as_its_records(
    kernel, timed, time, members, message, is_interrupted
):
    """After every chunk, and if it is asked for only once."""
    given = (*members, time, message, is_interrupted)

    def written(packer: Any) -> Any:
        return outcome(lambda: packer.encode_settlement(given, 0))

    def expected(packer: Any) -> Any:
        def encoded() -> Any:
            records = packer.snapshot()
            event = settlement_event(kernel.Assembler(), records, 0, *given)
            return kernel.encode_events([event], 0)

        return outcome(encoded)

    packer = kernel.Packer()
    for time_ms, chunk in timed:
        packer.push(time_ms, chunk)
        assert written(packer) == expected(packer)
    last = kernel.Packer()
    last.extend(timed)
    assert written(last) == expected(packer)


@QUICK
@given(timed=mutated(timed_chunks.map(as_objects)))
def test_native_packs_like_pure(both, timed):
    same_on(both, lambda kernel: kernel.pack(timed))


@QUICK
@given(timed=timed_chunks, data=st.data())
def test_native_expands_like_pure(both, timed, data):
    records = data.draw(mutated(st.just(both[1].pack(timed))))
    same_on(both, lambda kernel: kernel.expand(records))
    same_on(both, lambda kernel: list(kernel.iter_expand(records)))


@QUICK
@given(timed=timed_chunks)
def test_native_reads_like_pure(both, timed):
    records = both[1].pack(timed)
    same_on(both, lambda kernel: kernel.first_token_time(records))
    same_on(both, lambda kernel: kernel.has_visible_content(records))
    same_on(both, lambda kernel: kernel.has_visible_text(records))
    same_on(both, lambda kernel: kernel.join_text(records))


@QUICK
@given(data=logs(), strict=st.booleans(), native_order=st.booleans())
def test_native_scans_like_pure(both, data, strict, native_order):
    mode = "strict" if strict else "recoverable"
    options = {"mode": mode, "generation": 4 if native_order else None}
    native, pure = (scan_outcome(kernel, [data], **options) for kernel in both)
    assert native == pure


@QUICK
@given(
    data=logs(),
    strict=st.booleans(),
    flip=st.integers(0, 5000),
    cut=st.integers(0, 60),
)
def test_native_checks_like_pure(both, data, strict, flip, cut):
    """Compressed, damaged and torn."""
    header, _, rest = data.partition(b"\n")
    batches = (header + b"\n", rest[:200], rest[200:])
    damaged = bytearray(b"".join(map(both[1].encode_frame, batches)))
    if flip < len(damaged):
        damaged[flip] ^= 1 << flip % 8
    whole = bytes(damaged[: len(damaged) - cut])

    def check(kernel: Any) -> Any:
        found = kernel.check_bytes(whole, mode="strict" if strict else "recoverable")
        return found._replace(scan=result_of(found.scan))

    same_on(both, check)
