"""Golden vectors: every case of every operation, on both kernels. Spec: vectors' README.

`DSH_VECTORS` names the folder; without it, the shared one beside the repository is used if it
is there. `tests/data/vectors` holds a small set of our own that runs always.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import pytest

from dsh_codec.errors import (
    CorruptLogError,
    DshCodecError,
    HeaderError,
    JsonSyntaxError,
    NewerFormatError,
    RowError,
    StreamError,
    UnknownChunkError,
    UnsupportedError,
)
from dsh_codec.values import deep_equal, is_count

if TYPE_CHECKING:
    from types import ModuleType

HERE: Final = Path(__file__).resolve().parent
OWN: Final = HERE / "data" / "vectors"
SHARED: Final = Path(
    os.environ.get("DSH_VECTORS", HERE.parent.parent / "shared" / "vectors")
)

DEEP: Final = 1_000_000
"""Depth limit for the texts of the vectors, which know none."""

Case: TypeAlias = dict[str, Any]
Operation: TypeAlias = Callable[[Any, Case], Any]


class Refusal(Exception):  # noqa: N818 - the outcome of a case, not a fault of the test
    """A refusal in the terms of the vectors: kind, and further members of `error`."""

    def __init__(self, kind: str, **members: Any) -> None:
        super().__init__(kind)
        self.kind = kind
        self.members = members


def refuse(kind: str, **members: Any) -> NoReturn:
    raise Refusal(kind, **members) from None


class NotBuiltError(Exception):
    """The operation is not there yet."""


# --- cases ---


def read_cases(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield parse_line(line)


def parse_line(line: str) -> Case:
    if '"deep":true' in line:
        pure = importlib.import_module("dsh_codec._pure.json")
        case: Case = pure.parse(line.encode(), max_depth=DEEP)
        return case
    plain: Case = json.loads(line)
    return plain


def parameters() -> list[Any]:
    """Return all cases; of an operation that is not known here, one stands for all."""
    found = [*read_cases(OWN), *(read_cases(SHARED) if SHARED.is_dir() else ())]
    cases = [pytest.param(case, id=case["id"]) for case in found if case["op"] in RUN]
    unknown = sorted({case["op"] for case in found} - RUN.keys())
    return cases + [pytest.param({"op": op}, id=f"{op}-not-built") for op in unknown]


def value_of(kernel: Any, case: Case, name: str) -> Any:
    """Return an input value, given as it is or as JSON text."""
    given = case["input"]
    if f"{name}_json" in given:
        return kernel.parse(given[f"{name}_json"].encode(), max_depth=DEEP)
    return given[name]


def bytes_of(case: Case, name: str) -> bytes:
    return base64.b64decode(case["input"][f"{name}_b64"])


# --- kinds of errors (spec 00 §5, the table) ---

ADMISSION: Final = {"A1", "A2", "A3", "A4", "A5", "B", "C2", "C3", "C4", "D", "E", "F"}


def log_kind(error: DshCodecError) -> str:
    """Return the kind of a refusal while a log is read."""
    rule = error.rule or ""
    if isinstance(error, (UnsupportedError, NewerFormatError)):
        return "unsupported"
    if rule in ADMISSION or (rule == "10 §4.4" and error.line is None):
        return "format_error"  # With a line, it is the shape of one end-seed row.
    return "corrupt"


# --- operations ---


def run_json(kernel: Any, case: Case) -> Any:
    try:
        value = kernel.parse(bytes_of(case, "bytes"), max_depth=DEEP)
    except JsonSyntaxError:
        refuse("syntax_error")
    return {"text": kernel.dump(value, max_depth=DEEP).decode()}


def stream_kind(error: StreamError) -> str:
    return "unknown_variant" if isinstance(error, UnknownChunkError) else "type_error"


def run_pack(kernel: Any, case: Case) -> Any:
    packer = kernel.Packer()
    try:
        packer.extend(value_of(kernel, case, "chunks"))
    except StreamError as error:
        members = {"push": error.record, "records": packer.snapshot()}
        refuse(stream_kind(error), **members)
    records = packer.snapshot()
    assert same(kernel.pack(value_of(kernel, case, "chunks")), records)
    return {"records": records}


def run_expand(kernel: Any, case: Case) -> Any:
    records = value_of(kernel, case, "records")
    try:
        chunks = kernel.expand(records)
    except StreamError as error:
        refuse(stream_kind(error))
    assert list(kernel.iter_expand(records)) == chunks
    return {"chunks": [chunk._asdict() for chunk in chunks]}


def presence(value: Any, absent: object) -> dict[str, Any]:
    return {"absent": True} if value is absent else {"value": value}


def run_readers(kernel: Any, case: Case) -> Any:
    records = case["input"]["records"]
    raw_types = ("tool-call-delta", "block-start", "block-end", "usage", "finish")
    return {
        "firstTokenTime": kernel.first_token_time(records),
        "hasVisibleContent": kernel.has_visible_content(records),
        "hasVisibleText": kernel.has_visible_text(records),
        "joinText": kernel.join_text(records),
        "lastUsage": presence(kernel.last_chunk(records, "usage"), None),
        "lastFinish": presence(kernel.last_chunk(records, "finish"), None),
        "counts": {name: len(kernel.chunks_of(records, name)) for name in raw_types},
        "perRecord": [read_record(kernel, record) for record in records],
    }


def read_record(kernel: Any, record: dict[str, Any]) -> dict[str, Any]:
    if record["type"] != "chunk":
        return {
            "firstTokenTime": kernel.run_first_token_time(record),
            "firstVisibleTime": kernel.run_first_visible_time(record),
        }
    return {
        "isTokenDelta": kernel.is_token_delta(record["chunk"]),
        "isVisibleChunk": kernel.is_visible_chunk(record["chunk"]),
        "hasVisibleText": kernel.chunk_has_visible_text(record["chunk"]),
    }


def run_assemble(kernel: Any, case: Case) -> Any:
    assembler = kernel.Assembler()
    chunks = case["input"].get("chunks", [])
    count = 0
    try:
        for chunk in chunks:
            assembler.push(chunk)
            count += 1
        if "records" in case["input"]:
            assembler.push_records(case["input"]["records"])
    except StreamError as error:
        members = {"push": count} if chunks else {}
        refuse(stream_kind(error), **members)
    absent = object()
    return {
        "blocks": attempt(assembler.blocks),
        "interruptedBlocks": attempt(assembler.interrupted_blocks),
        "usage": presence(assembler.usage(absent), absent),
        "finish": assembler.finish(),
        "replayState": attempt(lambda: assembler.replay_state(absent), absent),
    }


def attempt(call: Callable[[], Any], absent: object = None) -> dict[str, Any]:
    try:
        return presence(call(), absent)
    except StreamError:
        return {"error": {"kind": "error"}}


def run_seq_encode(kernel: Any, case: Case) -> Any:
    return {"encoded": kernel.encode_seqs(case["input"]["values"])}


def run_seq_decode(kernel: Any, case: Case) -> Any:
    given = case["input"]
    limits = {"max_entries": given["maxEntries"]} if "maxEntries" in given else {}
    value = value_of(kernel, case, "value")
    try:
        return {"decoded": kernel.decode_seqs(value, codec=given["codec"], **limits)}
    except StreamError:
        refuse("type_error")
    except RowError:
        refuse("format_error")


def run_encode_event(kernel: Any, case: Case) -> Any:
    try:
        return {"line": kernel.encode_event(value_of(kernel, case, "event")).decode()}
    except UnsupportedError:
        refuse("unsupported")
    except RowError:
        refuse("format_error")


def module_of(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"dsh_codec.{name}")
    except ModuleNotFoundError as error:
        raise NotBuiltError(name) from error


def has_retired_field(header: Any) -> bool:
    return isinstance(header, dict) and bool(
        {"sandboxMode", "approvalPolicy"} & header.keys()
    )


def run_encode_header(kernel: Any, case: Case) -> Any:
    header = value_of(kernel, case, "header")
    cut = case["input"].get("inheritedEventCount")
    module = module_of("header")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "kernel", kernel)
        try:
            line = module.encode_header(header, inherited_event_count=cut)
        except TypeError:
            refuse("type_error")
        except HeaderError as error:
            other = has_retired_field(header) or error.rule == "10 §4.4"
            refuse("error" if other else "format_error")
    return {"line": line.decode()}


def run_read_header(kernel: Any, case: Case) -> Any:
    module = module_of("header")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "kernel", kernel)
        report = module.read_header(value_of(kernel, case, "header"))
    answer = {"status": report.status, "targetVersion": report.target_version}
    if report.stored_version is not None:
        answer["storedVersion"] = report.stored_version
    if report.header is not None:
        answer["header"] = report.header
    assert (report.reason is None) == (report.header is not None)
    return answer


def name_refusal(kind: str) -> Callable[[Callable[[], Any]], Any]:
    def call(function: Callable[[], Any]) -> Any:
        try:
            return function()
        except (DshCodecError, ValueError, TypeError):
            refuse(kind)

    return call


def run_encode_segment(_kernel: Any, case: Case) -> Any:
    names = module_of("names")
    raw = case["input"]["raw"]
    segment = name_refusal("error")(lambda: names.encode_segment(raw))
    assert names.decode_segment(segment) == raw
    return {"segment": segment}


def run_project_key(_kernel: Any, case: Case) -> Any:
    project_key = module_of("names").project_key
    return {"key": name_refusal("error")(lambda: project_key(case["input"]["cwd"]))}


def run_log_filename(kernel: Any, case: Case) -> Any:
    log_filename = module_of("names").log_filename
    version = value_of(kernel, case, "version")
    options = {"compression": case["input"]["compression"]}
    refused = name_refusal("format_error")
    return {"name": refused(lambda: log_filename(version, **options))}


def run_parse_log_filename(_kernel: Any, case: Case) -> Any:
    parse_log_filename = module_of("names").parse_log_filename
    given = case["input"]
    options = {"compression": given["compression"]}
    return {"version": parse_log_filename(given["filename"], **options)}


def run_log_path(_kernel: Any, case: Case) -> Any:
    given = dict(case["input"])
    root = given.pop("root")
    log_path = module_of("names").log_path
    kind = "error" if "" in (given["cwd"], given["id"]) else "format_error"
    return {"path": str(name_refusal(kind)(lambda: log_path(root, **given)))}


def run_zstd_frames(kernel: Any, case: Case) -> Any:
    data = bytes_of(case, "bytes")
    max_frames = case["input"].get("maxFrames")
    if max_frames is None:
        compare_frame_scanner(kernel, data)
    try:
        scan = kernel.scan_frames(data, max_frames=max_frames)
    except CorruptLogError:
        refuse("corrupt")
    return {"frames": list(map(list, scan.frames)), "tornStart": scan.torn_start}


def compare_frame_scanner(kernel: Any, data: bytes) -> None:
    """Check that the incremental scanner gives the same answer on single bytes."""
    whole = error_of(lambda: kernel.scan_frames(data))
    scanner = kernel.FrameScanner()
    single = error_of(lambda: feed_single_bytes(scanner, data))
    assert single == whole
    if whole is None:
        scanner = kernel.FrameScanner()
        frames = feed_single_bytes(scanner, data)
        assert (frames, scanner.finish()) == kernel.scan_frames(data)


def error_of(call: Callable[[], Any]) -> Any:
    """Return class and fields of a refusal, or None."""
    try:
        call()
    except CorruptLogError as error:
        return type(error), error.args
    return None


def feed_single_bytes(scanner: Any, data: bytes) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for position in range(len(data)):
        found += scanner.feed(data[position : position + 1])
    return found


def expanded(kernel: Any, rows: Iterable[Any]) -> list[dict[str, Any]]:
    events = []
    for row in rows:
        event = kernel.parse(row.raw, max_depth=DEEP)
        if "sourceEventSeqs" in event:
            limits = {"max_entries": int(event["seq"])}
            event["sourceEventSeqs"] = kernel.decode_seqs(
                event["sourceEventSeqs"], codec="v2", **limits
            )
        events.append(event)
    return events


def cuts_of(case: Case, data: bytes) -> Iterator[list[bytes]]:
    """Yield the data in several cuts: whole, by the byte where it is short, at random."""
    yield [data]
    if len(data) <= 1000:
        yield [data[i : i + 1] for i in range(len(data))]
    chance = random.Random(case["id"])  # noqa: S311 - the case is the seed
    for _ in range(2):
        places = sorted(chance.choices(range(len(data) + 1), k=chance.randint(1, 9)))
        yield [
            data[i:j] for i, j in zip([0, *places], [*places, len(data)], strict=True)
        ]


def scan_pieces(kernel: Any, pieces: list[bytes], mode: str) -> tuple[Any, Any, Any]:
    """Return rows, result and error of one scan."""
    scanner = kernel.RowScanner(mode=mode, generation=4, max_depth=DEEP)
    rows: list[Any] = []
    try:
        for piece in pieces:
            rows += scanner.feed(piece)
        return rows, scanner.finish(), None
    except DshCodecError as error:
        return None, None, error


def scan_log(kernel: Any, case: Case, mode: str) -> tuple[Any, Any]:
    """Scan in several cuts, which must not matter; raise or return rows and result."""
    data = bytes_of(case, "log")
    answers = [scan_pieces(kernel, pieces, mode) for pieces in cuts_of(case, data)]
    rows, result, error = answers[0]
    for other_rows, other_result, other_error in answers[1:]:
        assert (other_rows, other_result) == (rows, result)
        assert type(other_error) is type(error)
        if error is not None:
            assert other_error.args == error.args
    if error is not None:
        if error.rule == "10 §4.1 step 5":
            refuse("error")
        raise error
    return rows, result


def refuse_as_log(operation: Operation) -> Operation:
    def run(kernel: Any, case: Case) -> Any:
        try:
            return operation(kernel, case)
        except DshCodecError as error:
            refuse(log_kind(error))

    return run


def check_relationships(result: Any, events: list[dict[str, Any]]) -> None:
    rules = module_of("rules.relationships")
    try:
        rules.check_relationships(
            result.header.fields, result.inherited_event_count, events
        )
    except UnsupportedError:
        raise
    except DshCodecError:
        refuse("format_error")


@refuse_as_log
def run_scan(kernel: Any, case: Case) -> Any:
    rows, result = scan_log(kernel, case, case["input"]["mode"])
    events = expanded(kernel, rows)
    check_relationships(result, events)
    return {
        "header": result.header.fields,
        "inheritedEventCount": result.inherited_event_count,
        "eventCount": result.event_count,
        "committedBytes": result.committed_bytes,
        "events": events,
    }


@refuse_as_log
def run_read_log(kernel: Any, case: Case) -> Any:
    rows, result = scan_log(kernel, case, "recoverable")
    events = expanded(kernel, rows)
    check_relationships(result, events)
    module_of("rules.vocabulary").check_vocabulary(events)
    committed = result.committed_bytes
    return {
        "id": result.header.fields["id"],
        "inheritedEventCount": result.inherited_event_count,
        "eventCount": result.event_count,
        "tornTruncateTo": None if committed == result.fed_bytes else committed,
    }


@refuse_as_log
def run_verify_log(kernel: Any, case: Case) -> Any:
    rows, result = scan_log(kernel, case, "strict")
    events = expanded(kernel, rows)
    check_relationships(result, events)
    if result.committed_bytes != result.fed_bytes:
        refuse("corrupt")
    module_of("rules.vocabulary").check_vocabulary(events)
    restore = module_of("rules.restore").restore
    agreement = module_of("rules.agreement")
    try:
        restore(result.header.fields, result.inherited_event_count, events)
        agreement.check_agreement(events, kernel)
    except DshCodecError:
        refuse("error")
    return {"eventCount": result.event_count}


@refuse_as_log
def run_zstd_log(kernel: Any, case: Case) -> Any:
    data = bytes_of(case, "bytes")
    found = kernel.check_bytes(data, generation=4)
    events = found.scan.event_count
    first = events - found.recovered_count
    rows = zstd_rows(kernel, data)
    check_relationships(found.scan, expanded(kernel, rows))
    assert len(rows) == events
    return {
        "header": found.scan.header.fields,
        "inheritedEventCount": found.scan.inherited_event_count,
        "eventCount": events,
        "tornTruncateTo": found.truncate_to,
        "recoveredTail": list(range(first, events)),
    }


def zstd_rows(kernel: Any, data: bytes) -> list[Any]:
    """Return the rows of a compressed log, with the parts that `check_bytes` is made of."""
    torn_start = kernel.scan_frames(data).torn_start
    scanner, reader = kernel.RowScanner(generation=4), kernel.FrameReader()
    rows: list[Any] = []
    reader.feed(data if torn_start is None else data[:torn_start])
    while (piece := reader.read()) is not None:
        rows += scanner.feed(piece.data)
        if piece.last:
            scanner.end_frame()
    scanner.end_complete_frames()
    if torn_start is not None:
        rows += scanner.feed(kernel.recover_tail(data[torn_start:]))
    return rows


SURFACE_HEADER: Final = {
    "version": 4,
    "id": "surface",
    "createdAt": 0,
    "isSeeded": False,
    "delegationDepth": 0,
}


def run_surface(_kernel: Any, case: Case) -> Any:
    rules = module_of("rules.restore")
    given = case["input"]
    header = given.get("header", SURFACE_HEADER)
    try:
        surface = rules.restore(
            header, given.get("inheritedEventCount", 0), given["events"]
        )
    except DshCodecError:
        refuse("error")
    return {
        "nodes": list(surface.nodes),
        "replacements": [item.to_dict() for item in surface.replacements],
        "messages": list(surface.messages()),
    }


def run_live_host(kernel: Any, case: Case) -> Any:
    baseline = module_of("live.baseline").Baseline(kernel=kernel)
    snapshots = [baseline.snapshot()]
    for number, step in enumerate(case["input"]["steps"]):
        try:
            baseline.accept(step["frame"], step["durableCursor"])
        except StreamError as error:
            snapshots.append(baseline.snapshot())
            refuse(stream_kind(error), step=number, snapshots=snapshots)
        snapshots.append(baseline.snapshot())
        assert baseline.snapshot() is snapshots[-1]
    return {"snapshots": snapshots}


def run_live_client(kernel: Any, case: Case) -> Any:
    reconciler = module_of("live.reconciler").Reconciler(kernel=kernel)
    results: list[Any] = []
    for number, op in enumerate(case["input"]["ops"]):
        try:
            results.append(take_live_op(reconciler, op))
        except StreamError as error:
            refuse(stream_kind(error), step=number, results=results)
    return {"results": results}


def take_live_op(reconciler: Any, op: dict[str, Any]) -> Any:
    if op["op"] == "replace":
        events = [entry["event"] for entry in op["entries"]]
        return list(map(live_entry, reconciler.replace(events, op.get("baseline"))))
    if op["op"] == "durable":
        decision = reconciler.durable(op["entry"]["event"])
    else:
        decision = reconciler.frame(op["frame"])
    if decision is None:
        return None
    answer: dict[str, Any] = {"type": type(decision).__name__.lower()}
    if hasattr(decision, "entry"):
        answer["entry"] = live_entry(decision.entry)
    if hasattr(decision, "attempt_id"):
        answer["attemptId"] = decision.attempt_id
    if getattr(decision, "retired_id", None) is not None:
        answer["retireAttemptId"] = decision.retired_id
    return answer


def live_entry(entry: Any) -> dict[str, Any]:
    kind = "durable" if entry.is_durable else "transient"
    return {"type": kind, "event": entry.event}


def run_migrate(kernel: Any, case: Case) -> Any:
    migrate, publish = module_of("migrate"), module_of("migrate.publish")
    data, given = bytes_of(case, "log"), case["input"].get("children", [])
    with pytest.MonkeyPatch.context() as patch:
        use_kernel(patch, kernel)
        try:
            children = list(map(migrate.ChildEvidence.from_json, given))
            with publish.open_source_log(data, max_depth=DEEP) as log:
                result = migrate.upgrade(log, children=children)
                # All events first: acceptance speaks at the end, and before row admission.
                rows = list(map(kernel.encode_event, list(result)))
                cut = result.inherited_event_count
                line = module_of("header").encode_header(
                    result.header_fields, inherited_event_count=cut
                )
        except DshCodecError as error:
            refuse(old_log_kind(kernel, error, data))
    return {
        "sourceVersion": result.source_version,
        "header": kernel.parse(line),
        "inheritedEventCount": cut,
        "rows": [kernel.parse(row, max_depth=DEEP) for row in rows],
    }


def use_kernel(patch: pytest.MonkeyPatch, kernel: Any) -> None:
    """Make every module above the kernels use this one."""
    for name, module in list(sys.modules.items()):
        if name.startswith("dsh_codec.") and hasattr(module, "kernel"):
            patch.setattr(module, "kernel", kernel)


def old_log_kind(kernel: Any, error: DshCodecError, data: bytes) -> str:
    """Return the kind of a refusal of a log of any generation up to 4 (00 §5)."""
    if isinstance(error, (UnsupportedError, NewerFormatError)):
        return "unsupported"
    if isinstance(error, JsonSyntaxError):
        return "corrupt"
    line, end, _ = data.partition(b"\n")
    try:
        header = kernel.parse(line) if end else None
    except JsonSyntaxError:
        header = None
    is_dispatched = isinstance(header, dict) and is_count(header.get("version"))
    return "format_error" if is_dispatched else "corrupt"


RUN: Final[dict[str, Operation]] = {
    name.removeprefix("run_"): function
    for name, function in list(globals().items())
    if name.startswith("run_")
}


# --- comparison ---


def plain(value: Any) -> Any:
    """Return a copy in which -0 is 0 and what is not finite is null."""
    result: list[Any] = []
    pending: list[tuple[Any, Any, Any]] = [(value, result, None)]
    while pending:
        item, target, key = pending.pop()
        kind = type(item)
        copied: Any = item
        if kind is float:
            copied = None if item - item != 0 else item + 0.0
        elif kind is dict:
            copied = {}
            pending += [(member, copied, name) for name, member in item.items()]
        elif kind is list or kind is tuple:
            copied = [None] * len(item)
            pending += [(member, copied, i) for i, member in enumerate(item)]
        if target is result:
            result.append(copied)
        else:
            target[key] = copied
    return result[0]


def same(left: Any, right: Any) -> bool:
    return deep_equal(plain(left), plain(right), zeros_equal=True)


def without_texts(operation: str, wanted: Case) -> Case:
    """Return an expected value without what the reference says to people."""
    if operation == "read_header":
        return {key: member for key, member in wanted.items() if key != "reason"}
    if operation == "assemble":
        return {
            key: {"error": {"kind": member["error"]["kind"]}}
            if "error" in member
            else member
            for key, member in wanted.items()
        }
    return wanted


CHECKED_MEMBERS: Final = ("push", "step", "records", "snapshots", "results")


def outcome_of(kernel: Any, case: Case) -> tuple[Any, Refusal | None]:
    try:
        return RUN[case["op"]](kernel, case), None
    except Refusal as refusal:
        return None, refusal


@pytest.mark.parametrize("case", parameters())
def test_vector(kernel: Any, case: Case) -> None:
    if case["op"] not in RUN:
        pytest.skip(f"operation {case['op']} is not built")
    expected = case["expect"]
    try:
        answer, refusal = outcome_of(kernel, case)
    except NotBuiltError as missing:
        pytest.skip(f"operation {case['op']} needs {missing}, which is not built")
    if refusal is None:
        assert "ok" in expected, f"accepted, but: {expected['error']['message']}"
        assert same(answer, without_texts(case["op"], expected["ok"]))
        return
    assert "error" in expected, f"refused ({refusal.kind}), but has to be accepted"
    error = expected["error"]
    assert refusal.kind == error["kind"], error["message"]
    for member in CHECKED_MEMBERS:
        if member in error:
            assert same(refusal.members[member], error[member])


def test_shared_vectors_are_there() -> None:
    if not SHARED.is_dir():
        pytest.skip(f"the folder of golden vectors {SHARED.name} is missing")
    assert any(SHARED.glob("*.jsonl"))
