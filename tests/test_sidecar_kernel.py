"""The scans that split and join, on both kernels. Spec: 60 §5 to §7."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from dsh_codec import _native, _pure
from dsh_codec.errors import (
    JsonSyntaxError,
    LimitExceededError,
    SidecarError,
    StreamError,
)

if TYPE_CHECKING:
    from types import ModuleType

HEADER = b'{"type":"session","version":4,"id":"s","createdAt":1,"isSeeded":false,"delegationDepth":0}\n'
RUN = '{"type":"text-chunks","time0":1,"index":0,"dt":[2],"texts":["a","b"]}'
ATTEMPT = '{"type":"assistant/attempt","seq":%d,"time":1,"data":{"turn":1,"step":1,"stream":[%s]}}'

ODD_ROWS = [
    '{"type":"x/y","seq":0,"time":1.0,"data":{"b":-0,"10":1e400,"9":[ 1, 2 ]},"ignorable":true}',
    # Compact, and as written, but for one thing each.
    ATTEMPT % (1, RUN),
    ATTEMPT % (2, RUN.replace('"a"', '"\\u0061"')),
    ATTEMPT % (3, RUN.replace("[2]", "[2.0]")),
    ATTEMPT % (4, RUN.replace("[2]", "[-0]")),
    ATTEMPT % (5, RUN.replace(",", " ,")),
    ATTEMPT % (6, RUN.replace('"a"', '"\\/"')),
    ATTEMPT % (7, RUN.replace('"a"', '"\\ud83d"').replace('"b"', '"\\ude00\\\\u"')),
    ' { "type" : "assistant/message","seq":8,"time":1,"data":{"stream":[],"1":[],"stream":['
    + RUN
    + ',{"type":"chunk","time":1e0,"chunk":{"type":"finish","reason":{"kind":"stop","0":1,"a":1}}}]'
    + ',"interrupted":true,"0":{}},"surfaceOp":"append"} ',
    '{"type":"assistant/message","seq":9,"time":1,"data":1,"data":{"a":1e3,"stream":['
    + RUN
    + ']},"surfaceOp":{"op":"replace","startSeq":1,"endSeq":2}}',
    '{"type":"plugin:b","seq":10,"time":1,"sourceEventSeqs":[0,[2,5],[7,7]],"data":{"a":1}}',
    # An integral number and a space less.
    ATTEMPT.replace('"turn":1', '"turn": 1.0') % (11, RUN.replace("[2]", "[2e0]")),
]
ODD = (
    HEADER
    + b"".join(row.encode() + b"\n" for row in ODD_ROWS)
    + (ATTEMPT % (12, RUN)).encode().replace(b'"a"', b'"\xff"')
    + b"\n"
)


def cause_of(seq: int) -> bytes:
    return b'"cause":"error","failure":{"seq":%d}' % seq


def split(
    kernel: ModuleType, log: bytes, piece_bytes: int = 1 << 20, **options: Any
) -> tuple[bytes, bytes, tuple[str, str]]:
    scanner = kernel.SplitScanner(HEADER, cause_of, **options)
    pieces = [
        scanner.feed(log[at : at + piece_bytes])
        for at in range(0, len(log), piece_bytes)
    ]
    assembled, rows = map(b"".join, zip(*pieces, strict=True))
    assert scanner.finish().event_count == scanner.event_count
    assert scanner.attempt_count == rows.count(b"\n")
    return HEADER + assembled, rows, scanner.digests()


def join(
    kernel: ModuleType, assembled: bytes, rows: bytes, piece_bytes: int = 1 << 20
) -> tuple[bytes, tuple[str, str], tuple[int | None, int | None, str] | None]:
    scanner = kernel.JoinScanner(HEADER, rows.splitlines(), cause_of)
    joined = b"".join(
        scanner.feed(assembled[at : at + piece_bytes])
        for at in range(0, len(assembled), piece_bytes)
    )
    fault = scanner.fault
    place = None
    if fault is not None:
        assert type(fault) is SidecarError
        place = (fault.line, fault.seq, fault.reason)
    return HEADER + joined, scanner.digests(), place


def test_rows_are_written_as_they_would_be_dumped(kernel: ModuleType) -> None:
    """Spec 60 §5, 10 §1.1: what is spelled otherwise is written like any other row."""
    assembled, rows, _ = split(kernel, ODD)
    lines = ODD.splitlines()
    for line, found in zip(lines[1:], assembled.splitlines()[1:], strict=True):
        row = kernel.parse(line)
        if row["type"].startswith("assistant/"):
            row["data"]["stream"] = []
            assert found == kernel.dump(row)
        else:
            assert found == line
    streams = [
        kernel.parse(line)["data"]["stream"] for line in lines if b'"assist' in line
    ]
    for row, stream in zip(rows.splitlines(), streams, strict=True):
        assert kernel.parse(row)["stream"] == stream
        assert row == kernel.dump(kernel.parse(row))
        row.decode("utf-8")


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 1 << 20])
def test_kernels_agree_on_odd_rows(piece_bytes: int) -> None:
    native = split(_native, ODD, piece_bytes)
    assert native == split(_pure, ODD, piece_bytes)
    assembled, rows, digests = native
    joined = join(_native, assembled, rows, piece_bytes)
    assert joined == join(_pure, assembled, rows, piece_bytes)
    assert joined[1:] == (digests, None)
    assert split(_native, joined[0], piece_bytes) == native


def test_digest_is_over_canonical_rows_with_seqs_written_out(
    kernel: ModuleType,
) -> None:
    """Spec 60 §6.4. The rows are written out by hand."""
    rows = [
        '{"createdAt":1,"delegationDepth":0,"id":"s","isSeeded":false,"type":"session","version":4}',
        '{"data":{"0":0,"10":null,"9":[1,2]},"ignorable":true,"seq":0,"time":1,"type":"x/y"}',
        '{"data":{"step":1,"stream":%s,"turn":1},"seq":1,"time":1,"type":"assistant/attempt"}',
        '{"data":{},"seq":2,"sourceEventSeqs":[0,1],"time":1,"type":"plugin:a"}',
    ]
    log = (
        HEADER
        + b'{"type":"x/y","seq":0,"time":1,"data":{"9":[1, 2.0],"10":1e999,"0":-0},"ignorable":true}\n'
        + (ATTEMPT % (1, RUN)).encode()
        + b'\n{"type":"plugin:a","sourceEventSeqs":[[0,1]],"seq":2,"time":1,"data":{}}\n'
    )
    stream = '[{"dt":[2],"index":0,"texts":["a","b"],"time0":1,"type":"text-chunks"}]'
    expected = [
        hashlib.sha256("".join(f"{row}\n" for row in rows).replace("%s", text).encode())
        for text in (stream, "[]")
    ]
    assert list(split(kernel, log)[2]) == [f"sha256:{n.hexdigest()}" for n in expected]


def test_refused_stream_names_its_place(kernel: ModuleType) -> None:
    """Spec 60 §7; it is refused again at every later call."""
    bad = RUN.replace("[2]", "[]")
    for stream, record in ((f"{RUN},{bad}", 1), ("", None)):
        row = ATTEMPT % (0, stream)
        if record is None:
            row = row.replace("[]", "{}")
        scanner = kernel.SplitScanner(HEADER, cause_of)
        for data in (HEADER + row.encode() + b"\n", b""):
            with pytest.raises(StreamError) as caught:
                scanner.feed(data)
            assert (caught.value.seq, caught.value.record) == (0, record)
    rows = split(
        kernel, HEADER + (ATTEMPT % (0, bad)).encode() + b"\n", allow_opaque=True
    )[1]
    assert (
        b'"try":0,"replayable":false,"ending":"cut","cause":"error","failure":{"seq":0},"chunks":null'
        in rows
    )


def test_opaque_stream_is_joined_without_expansion(kernel: ModuleType) -> None:
    """Spec 60 §7, last paragraph: -0 is no count, but is written as 0 (10 §1.1)."""
    row = ATTEMPT % (0, RUN.replace('"index":0', '"index":-0'))
    log = HEADER + row.encode() + b"\n"
    assembled, rows, digests = split(kernel, log, allow_opaque=True)
    assert b'"chunks":null' in rows
    assert join(kernel, assembled, rows)[1:] == (digests, None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"seq":1,', b'"seq":2,'),
        (b'"try":1,', b'"try":1.5,'),
        (b'"try":1,', b'"try":1,"try":2,'),
        (b'"stream":[', b'"chunks":3,"stream":['),
        (b'"failure":{"seq":1}', b'"failure":{"seq":2}'),
        (b'"chunks":2', b'"chunks":null'),
        (b'"stream":[', b'"stream":[[],'),
        (b'"stream":[', b'"stream":1,"x":['),
        (b'{"type"', b'["type"'),
        (b'{"type":"attempt"', b'{"type":"other"'),
    ],
)
def test_fault_of_a_row_does_not_end_the_scan(old: bytes, new: bytes) -> None:
    """Spec 60 §7: the digest of the assembled log is still to be compared."""
    assembled, rows, digests = split(_native, ODD)
    assert old in rows
    damaged = rows.replace(old, new, 1)
    native = join(_native, assembled, damaged)
    assert native == join(_pure, assembled, damaged)
    assert native[2] is not None
    assert native[2][2] == "corrupt"
    assert native[1][1] == digests[1]


def test_spelling_and_unknown_members_of_a_row_do_not_matter(
    kernel: ModuleType,
) -> None:
    """Spec 60 §6.2."""
    assembled, rows, digests = split(kernel, ODD)
    respelled = b"".join(
        json.dumps({"later": [], **dict(reversed(json.loads(row).items()))}).encode()
        + b"\n"
        for row in rows.splitlines()
    )
    assert join(kernel, assembled, respelled)[1:] == (digests, None)


def test_what_a_callback_raises_comes_back(kernel: ModuleType) -> None:
    def refuse(_: int) -> bytes:
        raise KeyError(7)

    log = HEADER + (ATTEMPT % (0, RUN)).encode() + b"\n"
    with pytest.raises(KeyError):
        kernel.SplitScanner(HEADER, refuse).feed(log)
    assembled, rows, _ = split(kernel, log)
    with pytest.raises(KeyError):
        kernel.JoinScanner(HEADER, rows.splitlines(), refuse).feed(assembled)
    lines = (b"%d" % (1 // zero) for zero in [0])
    with pytest.raises(ZeroDivisionError):
        kernel.JoinScanner(HEADER, lines, cause_of).feed(assembled)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers()
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON, st.booleans())
def test_kernels_agree_on_canonical_text(value: Any, is_ascii: bool) -> None:  # noqa: FBT001
    """Spec 60 §6.4."""
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    found = _native.canonicalize(text)
    assert found == _pure.canonicalize(text)
    assert _pure.canonicalize(found) == found


def test_canonical_text_of_no_json_is_refused(kernel: ModuleType) -> None:
    with pytest.raises(JsonSyntaxError) as caught:
        kernel.canonicalize(b"[1,]")
    assert caught.value.offset == 3
    with pytest.raises(LimitExceededError):
        kernel.canonicalize(b"[[1]]", max_depth=1)
    assert kernel.canonicalize(b'{"\xff":1,"a":[ ]}') == '{"a":[],"\ufffd":1}'.encode()
