"""Streams as JSON text: lines of timed chunks, and packed records. Spec: 20 §3, §4; 10 §5.3."""

from __future__ import annotations

import importlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, strategies as st

import dsh_codec as dsh
from command_line import runner
from dsh_codec.errors import JsonSyntaxError, LimitExceededError, RowError, StreamError
from small_logs import DEMO, HEADER, PLAIN, ZSTD, shared_folder
from test_columns import (
    MAX,
    QUICK,
    chunk_row,
    early_rows,
    faulty,
    is_malformed,
    odd_values,
    packed_row,
    raw_chunks,
    raws,
    result_of,
    runs,
    settlement,
    streams,
    text_delta,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from types import ModuleType

CORPUS = shared_folder("DSH_CORPUS", "corpus", "real")
LOGS: list[dict[str, Any]] = json.loads((CORPUS / "index.json").read_text("utf-8"))[
    "logs"
]
MEMBERS = {"seq": 3, "turn": 1.5, "attempt": '"}\n'}
PREFIX = dsh.kernel.dump(MEMBERS)[1:-1]


def lines_of(
    kernel: ModuleType, records: Sequence[Any], members: dict[str, Any] | None = None
) -> bytes:
    """Return the lines that the definition gives."""
    return b"".join(
        kernel.dump({**(members or {}), "time": time, "chunk": chunk}) + b"\n"
        for time, chunk in kernel.expand(records)
    )


def check_rows(kernel: ModuleType, rows: Any, records: Sequence[Any]) -> None:
    """Compare the text of rows, and of a stream that keeps them, with the definition."""
    for given_rows in (rows, kernel.StoredStream(rows)):
        assert kernel.expand_lines(given_rows) == lines_of(kernel, records)
        expected = lines_of(kernel, records, MEMBERS)
        assert kernel.expand_lines(given_rows, prefix=PREFIX) == expected
        assert kernel.pack_lines(given_rows) == kernel.dump(records)


def respelled(text: bytes, choices: Iterable[int]) -> bytes:
    """Return the JSON text of a row with some characters spelled in another way."""
    out = bytearray()
    kinds = iter(choices)
    is_string = is_escaped = False
    for byte in text:
        char = bytes([byte])
        if is_escaped:
            is_escaped = False
        elif char == b"\\":
            is_escaped = True
        elif char == b'"':
            is_string = not is_string
        elif is_string and 0x20 <= byte < 0x7F:
            kind = next(kinds, 0)
            if kind == 1:
                char = b"\\u%04x" % byte
            elif kind == 2:
                char = b"\\u%04X" % byte
            elif kind == 3 and char == b"/":
                char = b"\\/"
        elif not is_string and char in b",:[]{}" and next(kinds, 0) == 1:
            char += b" \t"
        out += char
    return bytes(out)


spellings = st.fixed_dictionaries(
    {
        "separators": st.sampled_from([(",", ":"), (", ", " : "), (" ,\t", ":")]),
        "ensure_ascii": st.booleans(),
    }
)


# --- settlements ---


@given(records=streams, spelling=spellings, choices=st.lists(st.integers(0, 9)))
@QUICK
def test_lines_equal_dumped_expansion(
    kernel: ModuleType, records: Any, spelling: Any, choices: list[int]
) -> None:
    """Whatever the spelling of the row; -0 is written as 0, as `dump` does."""
    plain = settlement(records, **spelling)
    for row in (plain, respelled(plain, choices)):
        parsed = kernel.parse(row)["data"]["stream"]
        for rows in (row, [row], (memoryview(row),), bytearray(row)):
            check_rows(kernel, rows, parsed)
        check_rows(kernel, [row, row], [*parsed, *parsed])


@given(before=streams, bad=faulty, behind=streams)
@QUICK
def test_faults_are_those_of_expansion(
    kernel: ModuleType, before: list[Any], bad: Any, behind: list[Any]
) -> None:
    row = settlement([*before, bad, *behind])
    for call in (kernel.expand_lines, kernel.pack_lines):
        for rows in (row, [settlement([]), row], kernel.StoredStream(row)):
            with pytest.raises(StreamError) as caught:
                call(rows)
            assert (caught.value.record, caught.value.seq) == (len(before), 7)


@given(records=st.lists(runs() | raws | faulty, max_size=6))
@QUICK
def test_both_kernels_write_settlements_alike(records: list[Any]) -> None:
    assert_alike(settlement(records))


@pytest.mark.parametrize(
    "literal",
    [
        r"\u0041",
        r"\/",
        r"\u000a",
        r"\n\b\f\r\t\"\\",
        r"\u000b\u001f",
        r"\u001F",
        r"\u007f",
        r"\ud83d\ude00",
        r"\ud83d\uDE00",
        r"\uD83D",
        r"\ude00\ud83d",
        "\x7f\u2028\U0001f600\u00e9",
        "\\\\" * 70,
        '\\"' * 70,
        "\\\\" * 31 + "\\n" + "x" * 40,
        "x" * 200,
    ],
)
def test_every_spelling_of_a_string_gives_the_canonical_one(
    kernel: ModuleType, literal: str
) -> None:
    """10 §1.1: literals that are copied are those that `dump` writes."""
    text = (
        '{"type":"assistant/attempt","data":{"stream":['
        '{"type":"text-chunks","time0":1,"index":0,"dt":[2,3],"texts":["a","?","?"]},'
        '{"type":"tool-call-chunks","time0":1,"index":0,"dt":[],"id":"?","name":"?!",'
        '"args":["?"]},{"type":"chunk","time":4,"chunk":{"?":["?",1],"b":"?"}}]}}'
    )
    row = text.replace("?", literal).encode()
    check_rows(kernel, row, kernel.parse(row)["data"]["stream"])
    chunks = [
        '{"type":"text-delta","index":0,"text":"?"}',
        '{"type":"tool-call-delta","index":0,"id":"?","argumentsDelta":"?"}',
        '{"type":"tool-call-delta","index":0,"id":"?","name":"?","argumentsDelta":""}',
    ]
    rows = [
        f'{{"type":"assistant/chunk","seq":1,"time":{time},"data":{{"turn":1,"step":1,'
        f'"chunk":{chunk.replace("?", literal)}}}}}'
        for time, chunk in enumerate([*chunks, *chunks[2:], *chunks[::-1]])
    ]
    check_early(kernel, [row.encode() for row in rows])


@pytest.mark.parametrize(
    ("old", "new"), [(b"?", b"a\xff\xe2\x82"), (b"?", b"\xed\xa0\xbd\\n")]
)
def test_ill_formed_bytes_are_replaced(
    kernel: ModuleType, old: bytes, new: bytes
) -> None:
    """10 §1, Bytes."""
    run = {"type": "text-chunks", "time0": 1, "index": 0, "dt": [0], "texts": ["?", ""]}
    raw = {"type": "chunk", "time": 1, "chunk": {"a": "?"}}
    row = settlement([run, raw]).replace(old, new)
    check_rows(kernel, row, kernel.parse(row)["data"]["stream"])
    row = chunk_row(0, 1, text_delta("?")).replace(b": ", b":").replace(b", ", b",")
    check_early(kernel, [row.replace(old, new)])


@pytest.mark.parametrize(
    "numbers",
    [
        ("9998", "1,1,1,9999,-9999,-1,-10000,0"),
        ("-0", "-0,-1,1.0,1e3"),
        ("-20000", "9999,1,10000,1"),
        ("9007199254740991", "-9007199254740991,-9007199254740991,9007199254740991"),
        ("999999999999999", "1,-1,9.0e14"),
        ("1782918163146", "7,0,12345,86400000, 3 ,5"),
    ],
)
def test_times_are_written_digit_by_digit(
    kernel: ModuleType, numbers: tuple[str, str]
) -> None:
    time, gaps = numbers
    texts = json.dumps(["a"] * (gaps.count(",") + 2))
    row = (
        '{"type":"assistant/message","data":{"stream":[{"type":"text-chunks","index":1e1,'
        f'"time0":{time},"dt":[{gaps}],"texts":{texts}}}]}}}}'
    ).encode()
    check_rows(kernel, row, kernel.parse(row)["data"]["stream"])


def test_attempts_without_chunks_are_empty(kernel: ModuleType) -> None:
    bare = b'{"type":"assistant/message","seq":0,"time":1,"data":{"turn":1}}'
    cases: list[Any] = [[], (), bare, settlement([]), settlement(None)]
    for rows in cases:
        check_rows(kernel, rows, [])


# --- generations 0 and 1 ---


def records_of(kernel: ModuleType, rows: list[bytes]) -> list[Any]:
    """Return the records of rows, by packing their chunks; what it refuses stays raw."""
    records: list[Any] = []
    packer = kernel.Packer()
    for row in map(kernel.parse, rows):
        data = row["data"]
        if row["type"] == "assistant/chunk":
            timed = [(row["time"], data["chunk"])]
        else:
            record = {key: data[key] for key in data if key not in ("turn", "step")}
            empty = record.get("name") == ""
            record |= {"type": row["type"], "time0": row["time0"]}
            timed = kernel.expand([record | {"name": "n"} if empty else record])
            if empty:
                timed = [(time, chunk | {"name": ""}) for time, chunk in timed]
        for time, chunk in timed:
            try:
                packer.push(time, chunk)
            except StreamError:
                records += packer.snapshot()
                records.append({"type": "chunk", "time": time, "chunk": chunk})
                packer = kernel.Packer()
    records += packer.snapshot()
    return records


def check_early(kernel: ModuleType, rows: list[bytes]) -> None:
    records = records_of(kernel, rows)
    check_rows(kernel, rows, records)
    check_rows(kernel, tuple(map(memoryview, rows)), records)


RUN = {"type": "text-chunks", "index": 0, "dt": [2, 3], "texts": ["a", "b", "c"]}
CALL = {"type": "tool-call-chunks", "index": 1, "id": "c"}
ROWS = [
    packed_row(0, RUN | {"time0": 1010}),
    chunk_row(3, 1016, text_delta("d") | {"lost": 1}),
    chunk_row(4, 1017, text_delta("e", 1)),
    packed_row(5, CALL | {"time0": 1, "dt": [1], "args": ["{", "}"]}),
    packed_row(7, CALL | {"time0": 3, "dt": [], "args": ["!"], "name": "n"}),
    packed_row(8, CALL | {"time0": 4, "dt": [1], "args": ["", "?"], "name": ""}),
    chunk_row(10, 9, {"type": "finish", "reason": {"kind": "stop", "1": 1, "0": 0}}),
    chunk_row(11, 9, text_delta(7)),
    chunk_row(12, 9, text_delta("f", -1)),
    chunk_row(13, 0, text_delta("g")),
    chunk_row(14, -MAX, text_delta("h")),
    chunk_row(15, MAX, text_delta("i")),
    chunk_row(16, 9, {"type": "other"}),
]


def compact(row: bytes) -> bytes:
    """Return a row without white space, as the harness spells it."""
    return json.dumps(
        json.loads(row), separators=(",", ":"), ensure_ascii=False
    ).encode("utf-8", "surrogatepass")


def test_rows_are_written_as_packing_makes_records(kernel: ModuleType) -> None:
    check_early(kernel, ROWS)
    check_early(kernel, list(map(compact, ROWS)))


deltas = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["text-delta", "reasoning-delta", "tool-call-delta"]),
        "index": st.integers(-1, 1),
        "text": st.text(max_size=3),
    }
)


@given(rows=st.lists(early_rows, max_size=8), choices=st.lists(st.integers(0, 9)))
@example(rows=ROWS, choices=[])
@QUICK
def test_both_kernels_write_rows_alike(rows: list[bytes], choices: list[int]) -> None:
    """Rows that packing merges, keeps raw or refuses, in every spelling."""
    # No scan gives a malformed packed row; which reader sees it is left open.
    rows = [row for row in rows if not is_malformed(row)]
    for spelled in (rows, [respelled(row, choices) for row in rows]):
        assert_alike(spelled)
    assert_alike([compact(row) for row in rows if b"Infinity" not in row])


@given(timed=st.lists(st.tuples(st.integers(-5, 20000), raw_chunks | deltas)))
@QUICK
def test_chunk_rows_equal_packing(kernel: ModuleType, timed: list[Any]) -> None:
    rows = [chunk_row(seq, *pair) for seq, pair in enumerate(timed)]
    check_early(kernel, rows)
    check_early(kernel, list(map(compact, rows)))


def assert_alike(rows: Any) -> None:
    def answers_of(name: str) -> list[Any]:
        module = importlib.import_module(f"dsh_codec._{name}")
        return [
            result_of(partial(call, given_rows))
            for call in (
                module.expand_lines,
                partial(module.expand_lines, prefix=PREFIX),
                module.pack_lines,
            )
            for given_rows in (rows, module.StoredStream(rows))
        ]

    assert answers_of("native") == answers_of("pure")


@pytest.mark.parametrize(
    ("time", "chunk"),
    [
        (None, text_delta("b")),
        (-0.0, text_delta("b")),
        (0.5, text_delta("b")),
        (1, text_delta("b") | {"more": -0.0}),
        (1, {"type": "usage", "usage": [1e999]}),
        (1, "text"),
        (1, None),
        (1, 3),
        (1, []),
    ],
)
def test_chunk_rows_that_no_record_can_hold_are_refused(
    kernel: ModuleType, time: Any, chunk: Any
) -> None:
    bad = chunk_row(3, time, chunk).replace(b"Infinity", b"1e999")
    rows = [chunk_row(0, 1, text_delta("a")), chunk_row(1, 1, text_delta("b"))]
    rows += [chunk_row(2, 1, {"type": "usage"}), bad]
    for call in (kernel.expand_lines, kernel.pack_lines):
        for given_rows in (rows, [*map(compact, rows[:3]), bad]):
            with pytest.raises(StreamError) as caught:
                call(given_rows)
            assert (caught.value.record, caught.value.seq) == (2, 3)


@pytest.mark.parametrize(
    "row",
    [
        b'{"type":"turn/start","seq":3,"time":1,"data":{}}',
        b'{"type":"text-chunks","seq0":3,"time0":1,"data":{}}',
        b'{"type":7,"seq":3}',
    ],
)
def test_rows_without_chunks_are_refused(kernel: ModuleType, row: bytes) -> None:
    for call in (kernel.expand_lines, kernel.pack_lines):
        with pytest.raises(RowError) as caught:
            call([settlement([]), row])
        assert caught.value.seq == 3


def test_arguments_are_checked(kernel: ModuleType) -> None:
    for call in (kernel.expand_lines, kernel.pack_lines):
        with pytest.raises(JsonSyntaxError) as caught:
            call([settlement([]), b'{"type":}'])
        assert caught.value.offset == 8
        with pytest.raises(LimitExceededError) as limit:
            call(settlement([[[[]]]]), max_depth=4)
        assert limit.value.args[-2:] == ("max_depth", 4)
        row = compact(ROWS[1])
        assert call(row, max_depth=3)
        with pytest.raises(LimitExceededError):
            call(row, max_depth=2)
        wrongs: list[Any] = [7, ["row"], "row", None]
        for wrong in wrongs:
            with pytest.raises(TypeError):
                call(wrong)
    with pytest.raises(TypeError):
        kernel.expand_lines([], prefix="text")
    row = settlement([{"type": "chunk", "time": 1, "chunk": {}}])
    prefix = memoryview(b'x"a":1')[1:]
    expected = b'{"a":1,"time":1,"chunk":{}}\n'
    assert kernel.expand_lines(row, prefix=prefix) == expected


@pytest.mark.parametrize("value", [odd_values])
@given(data=st.data())
@QUICK
def test_any_json_is_refused_or_written(
    kernel: ModuleType, value: Any, data: st.DataObject
) -> None:
    """Nothing an input holds may crash a kernel."""
    row = {"type": data.draw(st.sampled_from(["assistant/chunk", "text-chunks", 3]))}
    row["data"] = data.draw(value | st.fixed_dictionaries({"chunk": value}))
    row["time"] = data.draw(value)
    for call in (kernel.expand_lines, kernel.pack_lines):
        result_of(partial(call, json.dumps(row).encode()))


# --- logs and the command line ---


def check_log(log: dsh.Log) -> int:
    """Compare the text of every attempt with its records; return their chunks."""
    count = 0
    for attempt in log.attempts():
        stored = attempt.stream.stored
        if stored is None:
            assert attempt.stream.records == []
            continue
        lines = dsh.kernel.expand_lines(stored, prefix=PREFIX)
        packed = dsh.kernel.pack_lines(stored)
        records = attempt.stream.records
        assert lines == lines_of(dsh.kernel, records, MEMBERS)
        assert packed == dsh.kernel.dump(records)
        count += lines.count(b"\n")
    return count


@pytest.mark.parametrize("path", [entry["path"] for entry in LOGS])
def test_text_of_every_log_equals_that_of_its_records(path: str) -> None:
    with dsh.open(CORPUS / path) as log:
        check_log(log)


@pytest.mark.parametrize("folder", sorted(DEMO.iterdir()), ids=lambda path: path.name)
def test_text_of_the_demo_equals_that_of_its_records(folder: Path) -> None:
    with dsh.open(folder) as log:
        assert check_log(log) > 0


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
    return runner(capfdbinary)


@pytest.mark.parametrize("folder", sorted(DEMO.iterdir()), ids=lambda path: path.name)
def test_cat_and_convert_write_every_attempt(run: Any, folder: Path) -> None:
    with dsh.open(folder) as log:
        attempts = list(log.attempts())
    chunks, rows = [], []
    for attempt in attempts:
        place = {
            "seq": attempt.seq,
            "turn": attempt.turn,
            "step": attempt.step,
            "attempt": attempt.number,
        }
        for time, chunk in attempt.stream.expand():
            line = dsh.kernel.dump(place | {"time": time, "chunk": chunk})
            chunks.append(line.decode())
        row = place | {"outcome": attempt.outcome, "stream": attempt.stream.records}
        rows.append(dsh.kernel.dump(row).decode())
    assert run("cat", "--expand", folder).lines == chunks
    assert run("convert", folder).lines == rows
    assert run("convert", "--json", folder).lines == rows
    seq = attempts[0].seq
    assert run("convert", "--to", seq, folder).lines == rows[:1]
    assert run("convert", "--from", seq + 1, folder).lines == rows[1:]


def test_convert_gives_every_generation_the_same_records(run: Any) -> None:
    """20 §3: rows of generation 0, packed or not, hold what a settlement does."""
    plain, packed = (
        [row["stream"] for row in run("convert", DEMO / name).json()]
        for name in ("v0", "v0-packed")
    )
    assert plain == packed
    assert any(record["type"] != "chunk" for records in plain for record in records)


@pytest.mark.parametrize("data", [PLAIN, ZSTD], ids=["plain", "zstd"])
def test_convert_writes_one_attempt_a_line(
    run: Any, tmp_path: Path, data: bytes
) -> None:
    path = tmp_path / "log"
    path.write_bytes(data)
    (row,) = run("convert", path).json()
    assert list(row) == ["seq", "turn", "step", "attempt", "outcome", "stream"]
    assert (row["seq"], row["outcome"], row["attempt"]) == (2, "failed", 1)
    assert row["stream"][0]["texts"] == ["a", "b"]


def test_faulty_stream_is_named_behind_the_chunks_before_it(
    run: Any, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    good = {"type": "chunk", "time": 1, "chunk": {"type": "usage"}}
    path.write_bytes(HEADER + settlement([good, good, {}], seq=0) + b"\n")
    result = run("cat", "--expand", path)
    assert (result.code, len(result.lines)) == (1, 2)
    assert str(path) in result.errors
    result = run("convert", path)
    assert (result.code, result.lines) == (1, [])
    assert str(path) in result.errors
    assert "Traceback" not in result.errors
