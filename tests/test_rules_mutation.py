"""One thousand changes of one field in sound logs: each keeps every rule, or its rule refuses it."""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from dsh_codec.errors import DshCodecError, UnsupportedError
from dsh_codec.rules import Level, RuleCheck
from dsh_codec.rules.catalog import RULES
from rules_logs import LogMaker, make_log

if TYPE_CHECKING:
    from collections.abc import Callable

LOG_COUNT = 200
MUTATION_COUNT = 1000
SEED = 20240

Event = dict[str, Any]


class Mutation(NamedTuple):
    """A class of changes: of which events, how, and the rule that then refuses (None: none)."""

    rule: str | None
    kind: str
    path: str
    change: Callable[[Any], Any]
    where: Callable[[Event], bool] = lambda _: True


class Absent:
    """Result of a change that removes the member."""


def to(value: Any) -> Callable[[Any], Any]:
    return lambda _: copy.deepcopy(value)


def plus(amount: int) -> Callable[[Any], Any]:
    return lambda old: old + amount


def drop(_: Any) -> Any:
    return Absent


def own_seq(_: Any) -> Any:
    return OWN_SEQ


OWN_SEQ = object()


def is_append(event: Event) -> bool:
    return bool(event["surfaceOp"] == "append")


def is_replace(event: Event) -> bool:
    return not is_append(event)


def is_checkpoint(event: Event) -> bool:
    return bool(event["data"]["source"]["kind"] == "compact-checkpoint")


def has_calls(event: Event) -> bool:
    return len(event["data"]["message"]["content"]) > 1


def is_first(event: Event) -> bool:
    return bool(event["seq"] == 0)


MUTATIONS = [
    Mutation("L2.turn-start", "turn/start", "data.turn", plus(1)),
    Mutation("L2.turn-start", "turn/start", "data.turn", drop),
    Mutation("L2.turn-end", "turn/end", "data.turn", to(99)),
    Mutation("L2.step-start", "step/start", "data.step", plus(1)),
    Mutation("L2.step-start", "step/start", "data.turn", to(True)),
    Mutation("L2.step-end", "step/end", "data.step", plus(1)),
    Mutation("L2.data", "step/start", "data", to(None)),
    Mutation("L2.data", "request/context", "data", to([])),
    Mutation("L2.in-step", "assistant/attempt", "data.step", plus(1)),
    Mutation("L2.in-step", "assistant/message", "data.turn", to("1")),
    Mutation("L2.in-step", "system/message", "data.turn", to(9)),
    Mutation("L2.in-step", "tool/call", "data.step", drop),
    Mutation("L2.tool-call", "tool/call", "data.arguments", to("{}")),
    Mutation("L2.tool-call", "tool/call", "data.name", drop),
    Mutation("L2.tool-call", "tool/call", "data.callId", to("other")),
    Mutation(
        "L2.tool-call",
        "assistant/message",
        "data.message.content.1.id",
        to(""),
        has_calls,
    ),
    Mutation(
        "L2.tool-call",
        "assistant/message",
        "data.message.content.1.name",
        to(5),
        has_calls,
    ),
    Mutation("L2.assistant", "assistant/message", "data.message.content", to({})),
    Mutation(
        "L2.tool-result", "tool/result", "data.message.toolCallId", to("x"), is_append
    ),
    Mutation("R2", "user/message", "data.source.kind", to("plugin")),
    Mutation("R2", "assistant/message", "data.message.source", drop),
    Mutation("R2", "tool/result", "data.message", to([]), is_append),
    Mutation("R2", "agent/inbox/spliced", "data.inserted", to({})),
    Mutation("R2", "agent/inbox/spliced", "data.inserted.0.source.kind", to("")),
    Mutation(
        "R3", "session-log-deepseek/delivery-accepted", "data.sessionId", to("other")
    ),
    Mutation(
        "R3", "session-log-deepseek/delivery-accepted", "data.throughSeq", own_seq
    ),
    Mutation(
        "R3",
        "session-log-deepseek/delivery-accepted",
        "data.sessionFormatVersion",
        to(-0.0),
    ),
    Mutation("R4", "subagent/catalog", "data.mode", to("external")),
    Mutation("R4", "subagent/catalog", "data.label", drop),
    Mutation("R4", "subagent/catalog", "data.version", to(True)),
    Mutation("L2.retry", "llm/retry", "data.retry", plus(1)),
    Mutation("L2.retry", "llm/retry", "data.provider", to("other")),
    Mutation("L2.retry-started", "llm/retry-started", "data.retry", to(9)),
    Mutation("L2.retry-started", "llm/retry-started", "data.turn", to(9)),
    Mutation("L2.title", "session/title", "data.messageSeqs", to([0])),
    Mutation("L2.title", "session/title", "data.messageSeqs.0", own_seq),
    Mutation("L2.title", "session/title", "data.source.kind", to("user")),
    Mutation(
        "L2.title", "session/title-llm-request", "data.messages.0.role", to("assistant")
    ),
    Mutation("L2.command", "command/done", "data.commandId", to("other")),
    Mutation("L2.command", "command/done", "data.sourceEventSeq", own_seq),
    Mutation("L2.command", "command/done", "data.kind", to("error")),
    Mutation("L2.dispatch", "tool/ptc-dispatch", "data.arguments", to({"path": "z"})),
    Mutation("L2.dispatch", "tool/ptc-dispatch-start", "data.parentCallId", to("z")),
    Mutation("L2.dispatch", "tool/ptc-dispatch", "data.subCallId", drop),
    Mutation("L2.compaction-start", "compaction/start", "data.turn", to(7)),
    Mutation("L2.compaction-start", "compaction/start", "data.compactionId", to("")),
    Mutation("L2.compaction-owner", "compaction/summary", "data.compactionId", to("z")),
    Mutation("L2.compaction-owner", "compaction/end", "data.sourceCommandId", drop),
    Mutation(
        "L2.compaction-owner",
        "user/message",
        "data.source.compactionId",
        drop,
        is_checkpoint,
    ),
    Mutation("L2.compaction-end", "compaction/end", "data.turn", to(7)),
    Mutation("L2.compaction-span", "compaction/summary", "data.shadowedSeqs", to([])),
    Mutation(
        "L2.compaction-span", "compaction/prune", "data.shadowedRange.end", own_seq
    ),
    Mutation(
        "L2.surface-range", "user/message", "surfaceOp.endSeq", to(0), is_checkpoint
    ),
    Mutation("L2.surface-range", "assistant/message", "surfaceOp", to(None)),
    Mutation(
        "L2.surface-sources", "tool/result", "sourceEventSeqs", to([0]), is_replace
    ),
    Mutation("L2.developer-header", "developer/message", "data.headerSeq", to(0)),
    Mutation(
        "L2.developer-header",
        "developer/message",
        "data.message.content.0.toolName",
        to("zz"),
    ),
    Mutation("L2.request-header", "request/header", "data.header.config", to(None)),
    Mutation("V1", "todo/write", "type", to("future/x")),
    Mutation("V1", "plugin:x/y", "ignorable", drop),
    Mutation("V2", "request/header", "data.reason", to("fallback")),
    Mutation("V3", "todo/write", "surfaceOp", to("append")),
    Mutation("V3", "turn/end", "sourceEventSeqs", to([0])),
    Mutation("V3", "assistant/message", "sourceEventSeqs", to([0])),
    Mutation("V3", "user/message", "sourceEventSeqs", to([]), is_append),
    Mutation("V3", "tool/result", "surfaceOp.extra", to(1), is_replace),
    Mutation("V4", "user/message", "data.role", to("developer")),
    Mutation("V4", "developer/message", "data.message.content.0.tool", to({})),
    Mutation("V4", "system/message", "data.message.content.0.type", to("tool-removal")),
    Mutation("V5", "request/header", "data.header.adapterDefaults", to({})),
    Mutation("V5", "request/header", "data.header.system", to("x")),
    Mutation("V6", "tool/result", "data.error", to({})),
    Mutation("V7", "user/message", "data.id", to("")),
    Mutation("V7", "assistant/message", "data.message.role", to("tool")),
    Mutation("V7", "user/message", "data.content", to("x"), is_checkpoint),
    Mutation("V7", "system/message", "data.message.source.kind", to("other")),
    Mutation("V7", "assistant/message", "data.message.source.provider", to("")),
    Mutation("V7", "tool/result", "data.message.source.callId", to("x")),
    Mutation("L4.envelope", "turn/start", "seq", to(-0.0), is_first),
    Mutation("L4.envelope", "todo/write", "time", to(1.5)),
    Mutation("L4.envelope", "turn/end", "extra", to(1)),
    Mutation("L4.envelope", "todo/write", "data", drop),
    Mutation("L4.request-header", "request/header", "data.reason", to("other")),
    Mutation("L4.request-header", "request/header", "data.header.config.model", to("")),
    Mutation(
        "L4.request-header",
        "request/header",
        "data.header.adapterDefaults.maxTokens",
        to(False),
    ),
    Mutation(
        "L4.request-header", "request/header", "data.header.config.maxTokens", drop
    ),
    Mutation("L4.request-header", "request/header", "data.startsSeries", to(False)),
    Mutation("L4.settlement", "assistant/message", "data.stream", to({})),
    Mutation("L4.settlement", "assistant/attempt", "data.stream", drop),
    Mutation("L4.offload", "image/offload", "data.targets.0.imageIndexes", to([9])),
    Mutation("L4.offload", "image/offload", "data.targets.0.seq", to(0)),
    Mutation("L4.offload", "image/offload", "data.extra", to(1)),
    Mutation("L4.rewrite", "tool/result", "data.meta", to({"n": 2}), is_replace),
    Mutation("L4.rewrite", "tool/result", "data.message.id", to("z"), is_replace),
    Mutation("L5.1", "assistant/message", "data.stream.0.time0", to("x")),
    Mutation("L5.1", "assistant/attempt", "data.stream", to([{}])),
    Mutation("L5.3", "assistant/message", "data.message.content.0.text", to("x")),
    Mutation("L5.4", "assistant/message", "data.usage.inputTokens", plus(1)),
    Mutation("L5.4", "assistant/message", "data.usage", drop),
    Mutation("L5.5", "assistant/message", "data.message.source.replayState", to({})),
    Mutation(None, "todo/write", "data.extra", to(None)),
    Mutation(None, "todo/write", "ignorable", to(True)),
    Mutation(None, "turn/end", "data.reason", drop),
    Mutation(None, "turn/start", "data.turn", float),
    Mutation(None, "step/start", "data.step", float),
    Mutation(None, "user/message", "time", to(-5)),
    Mutation(None, "user/message", "data.content", to([]), is_checkpoint),
    Mutation(None, "tool/result", "data.message.content.0.text", to("other")),
    Mutation(None, "plugin:x/y", "data", to(None)),
    Mutation(None, "plugin:x/y", "surfaceOp", to(7)),
    Mutation(None, "session/title", "data.title", to(None)),
    Mutation(None, "assistant/message", "data.stream", to([])),
]


@pytest.fixture(scope="module")
def logs() -> list[LogMaker]:
    return [make_log(seed) for seed in range(LOG_COUNT)]


def apply(event: Event, mutation: Mutation) -> Event:
    """Return a copy of the event with the change made. A field that is not there is added."""
    changed = copy.deepcopy(event)
    holder: Any = changed
    *parents, last = mutation.path.split(".")
    for name in parents:
        holder = holder[int(name) if isinstance(holder, list) else name]
    key: Any = int(last) if isinstance(holder, list) else last
    old = holder[key] if isinstance(holder, list) else holder.get(key)
    new = mutation.change(old)
    if new is Absent:
        del holder[key]
    else:
        holder[key] = event["seq"] if new is OWN_SEQ else new
    return changed


def findings(
    log: LogMaker, events: list[Event], level: Level, kernel: Any
) -> list[DshCodecError]:
    check = RuleCheck(log.header, log.cut, level=level, kernel=kernel)
    for event in events:
        check.feed(event)
    return check.finish()


def cases() -> list[tuple[int, Mutation]]:
    return [
        (number, MUTATIONS[number % len(MUTATIONS)]) for number in range(MUTATION_COUNT)
    ]


def pick(
    dice: random.Random, logs: list[LogMaker], mutation: Mutation
) -> tuple[LogMaker, int]:
    """Choose a log and an event of it that the mutation can change."""
    while True:
        log = dice.choice(logs)
        if mutation.rule in ("R3", "R4") and log.cut:
            continue  # These rules spare what was inherited.
        seqs = [
            event["seq"]
            for event in log.events
            if event["type"] == mutation.kind and mutation.where(event)
        ]
        if seqs:
            return log, dice.choice(seqs)


def test_generated_logs_are_sound(logs, kernel):
    """The generator is right: every log passes L2 to L5, with the cut given and with it found."""
    for log in logs:
        assert findings(log, log.events, "full", kernel) == []
        unknown_cut = RuleCheck(log.header, None, level="restore")
        for event in log.events:
            unknown_cut.feed(event)
        assert unknown_cut.finish() == []


def test_mutations_are_refused_with_their_rule(logs, kernel):
    """Issue 4: a thousand single-field mutations; seed SEED."""
    dice = random.Random(SEED)  # noqa: S311 - test data
    wrong = []
    for number, mutation in cases():
        log, seq = pick(dice, logs, mutation)
        events = list(log.events)
        events[seq] = apply(events[seq], mutation)
        level: Level = "full" if (mutation.rule or "").startswith("L5") else "restore"
        found = findings(log, events, level, kernel)
        rule = found[0].rule if found else None
        if rule != mutation.rule:
            wrong.append(
                (number, mutation.rule, mutation.kind, mutation.path, seq, found[:2])
            )
        if rule in ("V1", "V2"):
            assert isinstance(found[0], UnsupportedError)
    assert wrong == []


JUNK: list[Any] = [
    None,
    True,
    False,
    0,
    -0.0,
    1.5,
    -1,
    2**53,
    float("inf"),
    "",
    "x",
    "append",
    "\ud800",
    [],
]
DEEP: list[Any] = []
for _ in range(2000):
    DEEP = [DEEP]
JUNK += [DEEP, DEEP, {}, [None], [[1, 2]], {"kind": 1}, {"type": []}, {"op": "replace"}]


def places(value: Any) -> list[tuple[Any, Any]]:
    """List every place in a JSON value as (container, key)."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        holder = pending.pop()
        keys = range(len(holder)) if isinstance(holder, list) else list(holder)
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                pending.append(holder[key])
    return found


@pytest.mark.parametrize("seed", range(4))
def test_junk_anywhere_gives_findings_only(logs, kernel, seed):
    """Whatever stands in an event, a check reports rules of the catalog and raises nothing."""
    dice = random.Random(seed)  # noqa: S311 - test data
    for _ in range(500):
        log = dice.choice(logs)
        seq = dice.randrange(len(log.events))
        event = copy.deepcopy(log.events[seq])
        holder, key = dice.choice(places(event))
        junk = dice.choice(JUNK)
        holder[key] = junk if junk is DEEP else copy.deepcopy(junk)
        events = list(log.events)
        events[seq] = event
        for finding in findings(log, events, "full", kernel):
            assert finding.rule in RULES
            assert finding.seq is not None
