"""Assembled logs and replay sidecars. Spec: 60 §5 to §7."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from dsh_codec.cli import main
from dsh_codec.header import encode_header
from dsh_codec.sidecar import Split, join, log_digest, split
from dsh_codec.sidecar_file import Sidecar, sidecar_filename, stored
from rules_logs import make_log
from small_logs import HEADER, PLAIN, ROWS, shared_folder

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from types import ModuleType

CORPUS = shared_folder("DSH_CORPUS", "corpus", "real")
LOGS: list[dict[str, Any]] = json.loads((CORPUS / "index.json").read_text("utf-8"))[
    "logs"
]
CURRENT = [entry["path"] for entry in LOGS if entry["format"] == 4]
OLDER = [entry["path"] for entry in LOGS if entry["format"] < 4]

LOG = b"""\
{"type":"session","version":4,"id":"s1","createdAt":1000,"isSeeded":false,"delegationDepth":0}
{"type":"turn/start","seq":0,"time":1001,"data":{"turn":1}}
{"type":"step/start","seq":1,"time":1002,"data":{"turn":1,"step":1}}
{"type":"assistant/attempt","seq":2,"time":1107,"data":{"turn":1,"step":1,"stream":[{"type":"text-chunks","time0":1100,"index":0,"dt":[5],"texts":["He","llo"]},{"type":"chunk","time":1107,"chunk":{"type":"finish","reason":{"kind":"error","failure":{"message":"overloaded","code":"OVERLOADED"}}}}]}}
{"type":"assistant/message","seq":3,"time":1215,"data":{"turn":1,"step":1,"message":{"role":"assistant","content":[{"type":"text","text":"Hello"}],"source":{"kind":"model","provider":"p","model":"m"},"id":"a1"},"stream":[{"type":"text-chunks","time0":1210,"index":0,"dt":[],"texts":["Hello"]},{"type":"chunk","time":1214,"chunk":{"type":"finish","reason":{"kind":"stop"}}}]},"surfaceOp":"append"}
{"type":"step/end","seq":4,"time":1216,"data":{"turn":1,"step":1}}
{"type":"turn/end","seq":5,"time":1217,"data":{"turn":1,"reason":{"kind":"completed"}}}
"""
SIDECAR = b"""\
{"type":"dsh-replay","version":1,"sessionId":"s1","formatVersion":4,"eventCount":6,"attempts":2,"sourceDigest":"sha256:88033f5cf0c0537e63a3f1d946b7e4b17db38e054335f5edd19800d02650258a","assembledDigest":"sha256:161a87000c3db8d9d5ae35f79a5b8eec5330bb0ceb658f19ec271e9021dc5d2b"}
{"type":"attempt","seq":2,"kind":"attempt","turn":1,"step":1,"try":1,"replayable":true,"ending":"finish","chunks":3,"stream":[{"type":"text-chunks","time0":1100,"index":0,"dt":[5],"texts":["He","llo"]},{"type":"chunk","time":1107,"chunk":{"type":"finish","reason":{"kind":"error","failure":{"message":"overloaded","code":"OVERLOADED"}}}}]}
{"type":"attempt","seq":3,"kind":"message","turn":1,"step":1,"try":2,"replayable":true,"ending":"finish","chunks":2,"stream":[{"type":"text-chunks","time0":1210,"index":0,"dt":[],"texts":["Hello"]},{"type":"chunk","time":1214,"chunk":{"type":"finish","reason":{"kind":"stop"}}}]}
"""
"""The example of spec 60 §6.5."""

FAILED = b"".join(
    (
        b'{"type":"session","version":4,"id":"s2","createdAt":1000,"isSeeded":false,"delegationDepth":0}\n',
        b'{"type":"turn/start","seq":0,"time":1,"data":{"turn":1}}\n',
        b'{"type":"step/start","seq":1,"time":2,"data":{"turn":1,"step":1}}\n',
        (
            b'{"type":"assistant/attempt","seq":2,"time":3,"data":{"turn":1,"step":1,"stream":'
            b'[{"type":"text-chunks","time0":3,"index":0,"dt":[],"texts":["a"]}]}}\n'
        ),
        b'{"type":"step/end","seq":3,"time":4,"data":{"turn":1,"step":1}}\n',
        (
            b'{"type":"turn/end","seq":4,"time":5,"data":{"turn":1,"reason":'
            b'{"kind":"error","error":{"message":"m","code":"C"}}}}\n'
        ),
    )
)
"""A log whose only attempt was cut by an error."""


def rows_of(log: dsh.Log) -> list[bytes]:
    """Return the events as text, which tells values and the order of members."""
    return [dsh.dump(event.envelope) for event in log]


def text_of(parts: Split) -> tuple[bytes, bytes]:
    source = parts.assembled.source
    return bytes(source.read(0, source.size_bytes)), b"".join(parts.sidecar.text())


def joined_rows(assembled: bytes, sidecar: bytes) -> list[bytes]:
    with (
        dsh.open(assembled) as log,
        Sidecar.open(sidecar) as side,
        join(log, side) as joined,
    ):
        return rows_of(joined)


def reason_of(assembled: bytes, sidecar: bytes) -> str:
    with pytest.raises(dsh.SidecarError) as caught:
        joined_rows(assembled, sidecar)
    return caught.value.reason


def test_example_of_the_spec_to_the_byte() -> None:
    """Spec 60 §6.5."""
    with split(dsh.open(LOG)) as parts:
        assembled, sidecar = text_of(parts)
    assert sidecar == SIDECAR
    expected = [json.loads(line) for line in LOG.splitlines()]
    for row in (expected[3], expected[4]):
        row["data"]["stream"] = []
    assert assembled.splitlines() == [dsh.dump(row) for row in expected]
    assert joined_rows(assembled, sidecar) == LOG.splitlines()[1:]


@pytest.mark.parametrize("path", CURRENT)
def test_join_of_split_of_a_corpus_log_is_the_log(path: str) -> None:
    """Spec 60 §7, first law; the assembled log passes what the log passes."""
    with dsh.open(CORPUS / path) as log, split(log) as parts:
        assembled, sidecar = text_of(parts)
        with join(parts.assembled, parts.sidecar) as joined:
            assert rows_of(joined) == rows_of(log)
            assert joined.header == log.header
            assert log_digest(joined) == parts.sidecar.header["sourceDigest"]
        assert log_digest(parts.assembled) == parts.sidecar.header["assembledDigest"]
    assert dsh.check(assembled).status == "sound"
    with dsh.open(assembled) as log, split(log) as again:
        assert text_of(again)[0] == assembled
        header = again.sidecar.header
        assert header["sourceDigest"] == header["assembledDigest"]
        assert [row["stream"] for row in again.sidecar] == [[]] * header["attempts"]
    with dsh.open(CORPUS / path) as log, split(log) as once_more:
        assert text_of(once_more) == (assembled, sidecar)


def random_stream(rng: random.Random) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for _ in range(rng.randrange(5)):
        count = rng.randrange(1, 4)
        run = {
            "time0": rng.randrange(-5, 1 << 40),
            "index": rng.randrange(3),
            "dt": [rng.randrange(-9, 99) for _ in range(count - 1)],
        }
        words = [
            rng.choice(["", "a", "é", "\ud83d", "\U0001f600"]) for _ in range(count)
        ]
        kind = rng.randrange(4)
        if kind == 0:
            records.append({"type": "text-chunks", **run, "texts": words})
        elif kind == 1:
            records.append({"texts": words, **run, "type": "reasoning-chunks"})
        elif kind == 2:
            records.append(
                {"type": "tool-call-chunks", **run, "id": "c", "args": words}
            )
        else:
            reason = rng.choice(["stop", "error", "aborted", "max-tokens"])
            chunk = {"type": "finish", "reason": {"kind": reason, "x": rng.random()}}
            records.append({"type": "chunk", "time": run["time0"], "chunk": chunk})
    return records


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_join_of_split_of_generated_logs_is_the_log(first: int) -> None:
    """Spec 60 §7, first law, on 1,000 sound logs with arbitrary streams."""
    for seed in range(first, first + 100):
        maker = make_log(seed)
        lines = [encode_header(maker.header, inherited_event_count=maker.cut)]
        for event in maker.events:
            if event["type"] in ("assistant/message", "assistant/attempt"):
                event["data"]["stream"] = random_stream(maker.random)
            lines.append(dsh.kernel.encode_event(event))
        text = b"\n".join(lines) + b"\n"
        with dsh.open(text) as log, split(log) as parts:
            assembled, sidecar = text_of(parts)
            assert joined_rows(assembled, sidecar) == rows_of(log), seed


def changes(value: Any) -> Iterator[Any]:
    """Yield the value with one thing in it changed, in every way and place."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield {name: inner for name, inner in value.items() if name != key}
            for changed in changes(member):
                yield value | {key: changed}
    elif isinstance(value, list):
        for place, element in enumerate(value):
            yield value[:place] + value[place + 1 :]
            yield [*value, element]
            for changed in changes(element):
                yield [*value[:place], changed, *value[place + 1 :]]
    elif isinstance(value, bool):
        yield not value
        yield None
    elif isinstance(value, int):
        yield value + 1
        yield str(value)
    elif isinstance(value, str):
        yield value + "x"
        yield value[:-1]
        yield value.swapcase()
        yield None
    else:
        yield 0


@pytest.mark.parametrize(
    "log", [LOG, FAILED, PLAIN], ids=["example", "failed", "small"]
)
def test_any_single_change_of_a_value_is_refused(log: bytes) -> None:
    """Spec 60 §9: a corrupted digest, count, row or stream; and every other value."""
    with split(dsh.open(log)) as parts:
        assembled, sidecar = text_of(parts)
    assert joined_rows(assembled, sidecar) == log.splitlines()[1:]
    count = 0
    for name, text in (("assembled", assembled), ("sidecar", sidecar)):
        rows = [json.loads(line) for line in text.splitlines()]
        for place, row in enumerate(rows):
            for changed in changes(row):
                if changed == row:
                    continue
                lines = [*rows[:place], changed, *rows[place + 1 :]]
                damaged = b"".join(dsh.dump(line) + b"\n" for line in lines)
                both = (
                    (damaged, sidecar) if name == "assembled" else (assembled, damaged)
                )
                with pytest.raises(dsh.DshCodecError):
                    joined_rows(*both)
                count += 1
    assert count > 100


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"version":1', b'"version":2', "version"),
        (b'"sessionId":"s1"', b'"sessionId":"s2"', "mismatch"),
        (b'"formatVersion":4', b'"formatVersion":5', "mismatch"),
        (b'"eventCount":6', b'"eventCount":7', "mismatch"),
        (b'"attempts":2', b'"attempts":3', "corrupt"),
        (b"sha256:88", b"sha256:89", "mismatch"),
        (b"sha256:16", b"sha256:17", "mismatch"),
        (b"sha256:16", b"sha256:1", "corrupt"),
        (b'"kind":"message","turn"', b'"kind":"attempt","turn"', "corrupt"),
        (b'"chunks":3', b'"chunks":4', "corrupt"),
        (b'"try":2', b'"try":1', "corrupt"),
        (b'"ending":"finish","chunks":2', b'"ending":"cut","chunks":2', "corrupt"),
        (b'"dt":[5]', b'"dt":[]', "corrupt"),
        (b'"dt":[5]', b'"dt":[6]', "mismatch"),
        (b'{"type":"attempt","seq":3', b'{"type":"note","seq":3', "corrupt"),
        (b'"seq":3,"kind"', b'"seq":2,"kind"', "corrupt"),
        (b'"stop"}}}]}\n', b'"stop"}}}]}', "corrupt"),
        (b'"stop"}}}]}\n', b'"stop"}}}]\n', "corrupt"),
    ],
)
def test_refusals_of_a_sidecar(old: bytes, new: bytes, reason: str) -> None:
    """Spec 60 §7, errors."""
    with split(dsh.open(LOG)) as parts:
        assembled = text_of(parts)[0]
    assert SIDECAR.count(old) >= 1
    assert reason_of(assembled, SIDECAR.replace(old, new, 1)) == reason


def test_refusals_of_an_assembled_log() -> None:
    """Spec 60 §7: a wrong log is a mismatch, also where a row does not fit it either."""
    with split(dsh.open(LOG)) as parts:
        assembled = text_of(parts)[0]
    assert reason_of(LOG, SIDECAR) == "mismatch"
    assert reason_of(assembled.replace(b'"Hello"', b'"hello"'), SIDECAR) == "mismatch"
    shorter = b"".join(assembled.splitlines(keepends=True)[:-1])
    assert reason_of(shorter, SIDECAR) == "mismatch"
    other = assembled.replace(b'"turn":1,"step":1,"s', b'"turn":2,"step":1,"s')
    assert reason_of(other, SIDECAR) == "mismatch"


def test_unknown_members_of_a_sidecar_are_ignored() -> None:
    """Spec 60 §6.1, §6.2."""
    with split(dsh.open(LOG)) as parts:
        assembled = text_of(parts)[0]
    more = SIDECAR.replace(b',"chunks"', b',"later":[1],"chunks"').replace(
        b'"sourceDigest"', b'"origin":{"generation":1},"sourceDigest"'
    )
    assert joined_rows(assembled, more) == LOG.splitlines()[1:]


def test_cause_of_a_cut_attempt_comes_from_its_turn_end() -> None:
    """Spec 60 §6.3."""
    endings = {
        b'"kind":"error","error":{"message":"m","code":"C"}': {
            "cause": "error",
            "failure": {"message": "m", "code": "C"},
        },
        b'"kind":"aborted"': {"cause": "cancelled"},
        b'"kind":"interrupted"': {"cause": "cancelled"},
        b'"kind":"completed"': {"cause": "unknown"},
    }
    first = next(iter(endings))
    texts = {FAILED.replace(first, new): cause for new, cause in endings.items()}
    texts[b"".join(FAILED.splitlines(keepends=True)[:-1])] = {"cause": "unknown"}
    for text, expected in texts.items():
        with split(dsh.open(text)) as parts:
            (row,) = parts.sidecar
        assert row["ending"] == "cut"
        assert {key: row[key] for key in ("cause", "failure") if key in row} == expected
        assert list(row)[7:] == ["ending", *expected, "chunks", "stream"]


def test_opaque_streams_only_on_demand() -> None:
    """Spec 60 §7, last paragraph."""
    opaque = LOG.replace(b'"dt":[5]', b'"dt":[]')
    with pytest.raises(dsh.SidecarError) as caught:
        split(dsh.open(opaque))
    assert (caught.value.reason, caught.value.seq) == ("corrupt", 2)
    with split(dsh.open(opaque), allow_opaque=True) as parts:
        assembled, sidecar = text_of(parts)
        rows = list(parts.sidecar)
    assert [row["chunks"] for row in rows] == [None, 2]
    assert [row["replayable"] for row in rows] == [False, True]
    assert [row["try"] for row in rows] == [0, 1]
    assert joined_rows(assembled, sidecar) == opaque.splitlines()[1:]


def test_older_log_is_migrated_or_refused() -> None:
    """Spec 60 intro: `strict_current`; the message names the command."""
    for path in OLDER[:3]:
        with dsh.open(CORPUS / path) as log:
            with pytest.raises(dsh.UnsupportedError) as caught:
                split(log, strict_current=True)
            assert "dsh-codec migrate" in str(caught.value)
            with split(log) as parts, join(parts.assembled, parts.sidecar) as joined:
                with log.upgraded() as upgraded:
                    assert rows_of(joined) == rows_of(upgraded)
                assert parts.sidecar.header["formatVersion"] == 4


def test_digest_depends_on_values_only() -> None:
    """Spec 60 §6.4."""
    digest = log_digest(dsh.open(LOG))
    rows = [json.loads(line) for line in LOG.splitlines()]
    turned = [rows[0], *(dict(reversed(row.items())) for row in rows[1:])]
    text = b"".join(json.dumps(row).encode() + b"\n" for row in turned)
    assert log_digest(dsh.open(text)) == digest
    assert log_digest(dsh.open(b"".join(stored([*_lines(LOG)], "zstd")))) == digest


def _lines(text: bytes) -> list[bytes]:
    return text.splitlines(keepends=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": [{"d": 1.0, "c": 1e21}]}, b'{"a":[{"c":1e+21,"d":1}],"b":1}'),
        ({"\U00010000": 1, "\uffff": 2}, '{"\U00010000":1,"\uffff":2}'.encode()),
        ({"a\uffff": 1, "a\U00010000": 2}, '{"a\U00010000":2,"a\uffff":1}'.encode()),
        ({"é": 1, "z": 2}, '{"z":2,"é":1}'.encode()),
        ('\ud800\u0007\n"\\/\x7f', b'"\\ud800\\u0007\\n\\"\\\\/\x7f"'),
        ({"10": 1, "9": 2, "\r": 3}, b'{"\\r":3,"10":1,"9":2}'),
        ([-0.0, 0.1, 333333333.33333329], b"[0,0.1,333333333.3333333]"),
    ],
)
def test_canonical_json(kernel: ModuleType, value: Any, expected: bytes) -> None:
    """Spec 60 §6.4, RFC 8785."""
    assert kernel.canonicalize(dsh.dump(value)) == expected


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_sidecar_reads_what_is_stored(compression: Any, tmp_path: Path) -> None:
    """Spec 60 §6: names and compression as for logs."""
    path = tmp_path / sidecar_filename(compression=compression)
    path.write_bytes(b"".join(stored(_lines(SIDECAR), compression)))
    with Sidecar.open(path) as sidecar:
        assert b"".join(sidecar.text()) == SIDECAR
        assert [row["seq"] for row in sidecar] == [2, 3]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(dsh.SidecarError), Sidecar.open(path) as sidecar:
        list(sidecar)


def test_sidecar_row_is_bounded_wherever_it_stands() -> None:
    """A row that lies whole inside a piece that was read is no exception."""
    longest = max(len(row) - 1 for row in _lines(SIDECAR))
    with Sidecar.open(SIDECAR, max_row_bytes=longest) as sidecar:
        assert len(list(sidecar)) == 2
    with (
        Sidecar.open(SIDECAR, max_row_bytes=longest - 1) as sidecar,
        pytest.raises(dsh.LimitExceededError, match="max_row_bytes"),
    ):
        list(sidecar)


def test_error_survives_pickle() -> None:
    error = dsh.SidecarError("m", "p", 1, None, 2, None, "60 §7", "mismatch")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert (copy.reason, copy.seq, copy.path) == ("mismatch", 2, "p")


def run(*arguments: object) -> Any:
    return main(list(map(str, arguments)))


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_commands_split_and_join(
    compression: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    source = tmp_path / "session.v4.jsonl"
    source.write_bytes(LOG)
    out = tmp_path / "out"
    options = ("--compression", compression)
    assert run("split", source, "-o", out, *options, "--json") == 0
    members = json.loads(capsysbinary.readouterr().out)
    assert members["attempt_count"] == 2
    assert Path(members["sidecar"]).name == sidecar_filename(
        compression="zstd" if compression == "zstd" else "none"
    )
    target = tmp_path / "joined.jsonl"
    assert run("join", out, "-o", target, "--compression", "none") == 0
    assert target.read_bytes() == LOG
    # Nothing is overwritten.
    assert run("split", source, "-o", out, *options) == 2
    assert run("join", out, "-o", target) == 2
    assert target.read_bytes() == LOG


def test_header_alone_splits() -> None:
    with split(dsh.open(HEADER)) as parts:
        assert list(parts.sidecar) == []
        assembled, sidecar = text_of(parts)
    assert assembled == HEADER
    assert joined_rows(assembled, sidecar) == []
    assert joined_rows(HEADER, sidecar) == []
    assert reason_of(HEADER + ROWS[0], sidecar) == "mismatch"
