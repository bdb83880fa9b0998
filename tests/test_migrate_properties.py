"""Laws of the migration on random logs. Issue, "Show": properties."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

import dsh_codec as dsh
from dsh_codec.errors import DshCodecError
from dsh_codec.migrate import migrate, upgrade
from migrate_logs import MODEL_SOURCE, Json, header_of, seed, step, text_of, turn, user

if TYPE_CHECKING:
    import random

TEXTS = st.sampled_from(["", "a", " ", "é", "\ud83d", "\ude00", "x" * 9])
GAPS = st.integers(-3, 5)
JUNK = [
    None,
    True,
    0,
    -0.0,
    -1,
    1.5,
    2**53,
    "",
    "x",
    [],
    {},
    [None],
    {"a": 1},
    "append",
]


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Draw a log of generation 0 or 1 that is mostly sound: turns, steps, attempts, messages."""
    rows: list[Json] = []
    seq, time = 0, 10

    def put(event: Json) -> int:
        nonlocal seq, time
        time += draw(GAPS)
        rows.append({"type": event["type"], "seq": seq, "time": time} | event)
        seq += 1
        return seq - 1

    def put_chunks(place: Json, sources: list[int], blocks: list[list[str]]) -> None:
        nonlocal seq, time
        kind = draw(st.sampled_from(["text", "reasoning", "tool-call"]))
        index = len(blocks)
        texts = draw(st.lists(TEXTS, min_size=1, max_size=4))
        blocks.append([kind, "".join(texts)])
        more = {"id": "c", "name": "n"} if kind == "tool-call" else {}
        member = "args" if kind == "tool-call" else "texts"
        if draw(st.booleans()):
            gaps = draw(
                st.lists(GAPS, min_size=len(texts) - 1, max_size=len(texts) - 1)
            )
            data = {**place, "index": index, **more, "dt": gaps, member: texts}
            rows.append(
                {"type": f"{kind}-chunks", "seq0": seq, "time0": time, "data": data}
            )
            sources.extend(range(seq, seq + len(texts)))
            seq += len(texts)
            return
        name = "argumentsDelta" if kind == "tool-call" else "text"
        for text in texts:
            delta = {"type": f"{kind}-delta", "index": index, **more, name: text}
            sources.append(
                put({"type": "assistant/chunk", "data": place | {"chunk": delta}})
            )
            if draw(st.integers(0, 5)) == 0:
                put({"type": "plan/mode", "data": {"active": True}})

    for number in range(1, draw(st.integers(1, 3)) + 1):
        put(turn("start", number))
        for inner in range(1, draw(st.integers(0, 2)) + 1):
            put(step("start", inner, number))
            place = {"turn": number, "step": inner}
            put(user(f"u{number}.{inner}"))
            for _ in range(draw(st.integers(0, 2))):
                sources: list[int] = []
                blocks: list[list[str]] = []
                for _ in range(draw(st.integers(1, 3))):
                    put_chunks(place, sources, blocks)
                if draw(st.booleans()) and all(
                    kind != "tool-call" for kind, _ in blocks
                ):
                    content = [{"type": kind, "text": text} for kind, text in blocks]
                    message = {
                        "id": f"m{seq}",
                        "role": "assistant",
                        "content": content,
                        "source": MODEL_SOURCE,
                    }
                    put(
                        {
                            "type": "assistant/message",
                            "data": place | {"message": message},
                            "surfaceOp": "append",
                            "sourceEventSeqs": sources,
                        }
                    )
                else:
                    reason = {"type": "finish", "reason": {"kind": "error"}}
                    put({"type": "assistant/chunk", "data": place | {"chunk": reason}})
            put(step("end", inner, number))
        put(turn("end", number, reason={"kind": "completed"}))
        if draw(st.integers(0, 3)) == 0:
            put(seed())
    header = header_of(draw(st.integers(0, 1)), id="s")
    if draw(st.integers(0, 3)) == 0:
        header |= {"seedLength": draw(st.integers(0, seq)), "parentSession": "p"}
    return text_of(header, rows)


def chunks_before(data: bytes) -> list[Any]:
    with dsh.open(data) as log:
        return [
            (event.time, event.data["chunk"])
            for event in log
            if event.type == "assistant/chunk"
        ]


def chunks_after(events: list[Json]) -> list[Any]:
    return [
        tuple(timed)
        for event in events
        if event["type"] in ("assistant/message", "assistant/attempt")
        for timed in dsh.expand(event["data"]["stream"])
    ]


@settings(max_examples=120, deadline=None)
@given(logs())
def test_random_log_refuses_or_publishes_and_keeps_every_chunk(data: bytes) -> None:
    """Refuses or passes `full`; chunks keep time, order and text; twice is the same."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "session.jsonl")
        if data.startswith(b'{"type": "session", "version": 1'):
            path = Path(folder, "session.v1.jsonl")
        path.write_bytes(data)
        try:
            done = migrate(path, children=())
        except DshCodecError as error:
            assert error.rule is not None  # noqa: PT017 - a refusal is one of two outcomes
            return
        assert dsh.check(done.target, level="full", mode="strict").status == "sound"
        published = Path(done.target).read_bytes()
        with dsh.open(done.target) as log:
            events = [event.envelope for event in log]
            # Generation 4 in gives generation 4 out, unchanged.
            assert list(upgrade(log)) == events
            assert log.upgraded() is log
        assert chunks_after(events) == chunks_before(data)
        assert migrate(path, children=()).is_new is False
        assert Path(done.target).read_bytes() == published


@settings(max_examples=60, deadline=None)
@given(logs())
def test_in_memory_and_published_events_are_the_same(data: bytes) -> None:
    """`Log.upgraded` writes and reads back what `upgrade` yields."""
    with dsh.open(data) as log:
        try:
            events = list(upgrade(log, children=()))
        except DshCodecError:
            return
        with log.upgraded() as upgraded:
            assert [event.envelope for event in upgraded] == events
            assert upgraded.generation == 4


def places_in(value: Any) -> list[tuple[Any, Any]]:
    found, pending = [], [value]
    while pending:
        item = pending.pop()
        if isinstance(item, (dict, list)):
            names = list(item) if isinstance(item, dict) else list(range(len(item)))
            found += [(item, name) for name in names]
            pending += [item[name] for name in names]
    return found


@pytest.mark.parametrize("number", range(8))
@settings(max_examples=60, deadline=None)
@given(data=logs(), chance=st.randoms(use_true_random=False))
def test_changed_log_raises_nothing_but_our_errors(
    number: int, data: bytes, chance: random.Random
) -> None:
    """Whatever a log of any generation holds: accepted, or refused with a class and a place."""
    rows = [dsh.parse(line) for line in data.splitlines()]
    if number >= 4:
        with dsh.open(data) as log:
            try:
                events = list(upgrade(log, children=()))
            except DshCodecError:
                return
        rows = [header_of(3, id="s"), *copy.deepcopy(events)]
    for _ in range(2):
        holder, name = chance.choice(places_in(rows[1:]) or [({"": 0}, "")])
        if chance.random() < 0.3:
            del holder[name]
        else:
            holder[name] = copy.deepcopy(chance.choice(JUNK))
    text = b"".join(dsh.dump(row) + b"\n" for row in rows)
    with dsh.open(text) as log:
        try:
            list(upgrade(log, children=()))
        except DshCodecError as error:
            assert error.rule is not None  # noqa: PT017 - a refusal is one of two outcomes
