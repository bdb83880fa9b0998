"""Every rule id that an error can carry in `.rule`, with a sentence and its place in the spec."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["RULES", "Rule", "explain"]


class Rule(NamedTuple):
    """One rule.

    Attributes:
        id: What `.rule` of an error says, such as `A1` or `L2.turn-start`.
        layer: Validation layer, `L1` to `L5`. Spec: 00 §6.
        text: What the rule demands, in one sentence.
        place: Where the spec has it.
    """

    id: str
    layer: str
    text: str
    place: str


_TABLE: Final = (
    # Row admission.
    ("A1", "L1", "A developer/message has the full shape of its message, and headerSeq exactly when it adds tools.", "30 §6 A"),
    ("A2", "L1", "Ordinary messages have neither the role developer nor tool-addition or tool-removal blocks.", "30 §6 A"),
    ("A3", "L1", "A compaction/summary holds no tool-addition or tool-removal blocks.", "30 §6 A"),
    ("A4", "L1", "An embedded stream neither opens nor closes a tool-addition or tool-removal block.", "30 §6 A"),
    ("A5", "L1", "deferLoading of a tool in a request/header is true wherever it is present.", "30 §6 A"),
    ("B", "L1", "No message has the retired source kind 'plugin'.", "30 §6 B"),
    ("C1", "L1", "The retired types tool/code-dispatch-start and tool/code-dispatch are not supported unless ignorable.", "30 §6 C"),
    ("C2", "L1", "A request/header has a header object without the retired member system.", "30 §6 C"),
    ("C3", "L1", "No message or summary holds a block of the retired type tool-result.", "30 §6 C"),
    ("C4", "L1", "An embedded stream neither opens nor closes a block of the retired type tool-result.", "30 §6 C"),
    ("D", "L1", "A system/message has turn, step and a complete message whose blocks have their required fields.", "30 §6 D"),
    ("E", "L1", "A tool/result has a complete message whose toolCallId is its source.callId; with an error, isError is true.", "30 §6 E"),
    ("F", "L1", "A not-started result that a fork wrote has exactly the id, error, block and seqs that the fork gives it.", "30 §6 F"),
    # Relationships.
    ("R1", "L2", "Rules A1 to A5 hold for every accepted event too.", "30 §7.1"),
    ("R2", "L2", "Every message has a source object with a non-empty kind other than 'plugin', and stands where a message belongs.", "30 §7.1"),
    ("R3", "L2", "A delivery marker of this format names an earlier event and, unless inherited, this session.", "30 §7.1"),
    ("R4", "L2", "A subagent/catalog event of this session is valid, and no child is listed twice.", "30 §7.1"),
    ("L2.data", "L2", "The data of an event that takes part in the lifecycle is an object.", "30 §7.2"),
    ("L2.in-step", "L2", "The event has the turn and step that are open.", "30 §7.2"),
    ("L2.in-turn", "L2", "The event lies inside a turn.", "30 §7.2"),
    ("L2.turn-start", "L2", "A turn starts while none is open, with the next number from 1.", "30 §7.2"),
    ("L2.turn-end", "L2", "A turn/end names the open turn, and no step is open.", "30 §7.2"),
    ("L2.step-start", "L2", "A step starts in the open turn while no step is open, with the next number from 1.", "30 §7.2"),
    ("L2.step-end", "L2", "A step/end names the open turn and step.", "30 §7.2"),
    ("L2.pending-tools", "L2", "No tool call is left without a result when its step or turn ends.", "30 §7.2"),
    ("L2.compaction-crossed", "L2", "No turn starts or ends inside a compaction, unless a session/end-seed ends that compaction.", "30 §7.2 rule 2"),
    ("L2.assistant", "L2", "An assistant/message has a content array of objects.", "30 §7.2"),
    ("L2.tool-call", "L2", "A tool-call block has an id that is not pending, and a tool/call starts a pending call once, with the advertised name and arguments.", "30 §7.2"),
    ("L2.tool-result", "L2", "An appended tool/result answers a pending tool call.", "30 §7.2"),
    ("L2.not-started", "L2", "A call that never started may be answered only by the exact not-started repair.", "30 §7.4"),
    ("L2.request-header", "L2", "A request/header has the objects header and header.config.", "30 §7.2"),
    ("L2.developer-header", "L2", "headerSeq names an earlier request/header in which every added tool stands exactly once, complete.", "30 §7.2"),
    ("L2.dispatch", "L2", "A dispatch starts once, settles once with the same members, and its parent belongs to its root call.", "30 §7.2"),
    ("L2.retry", "L2", "An llm/retry fits the open turn, step and provider and continues its chain under one retryId, counting from 1.", "30 §7.2"),
    ("L2.retry-started", "L2", "An llm/retry-started names an earlier llm/retry of the same turn and step, once.", "30 §7.2"),
    ("L2.title", "L2", "A title cites distinct earlier messages of the user, and none exactly if the user gave it; its request asks one question.", "30 §7.2"),
    ("L2.command", "L2", "A commandId runs once; command/done follows it and cites, if anything, an earlier event of a success that is no command.", "30 §7.2"),
    ("L2.compaction-start", "L2", "A compaction starts while none is open, with an id and the open turn (null outside any).", "30 §7.2"),
    ("L2.compaction-owner", "L2", "Summary, end and checkpoint have the ids of the open compaction, and summary and end its turn.", "30 §7.2"),
    ("L2.compaction-summary", "L2", "A compaction has one summary.", "30 §7.2"),
    ("L2.compaction-end", "L2", "A compaction/end has the turn of its start and, unless it has an error, a summary before it.", "30 §7.2"),
    ("L2.compaction-span", "L2", "shadowedRange and shadowedSeqs name an exact range of the current surface.", "30 §7.2"),
    ("L2.head", "L2", "The system prompt is the first node of the surface or absent, and only a system/message over exactly it replaces it.", "30 §7.3"),
    ("L2.surface-range", "L2", "surfaceOp is append or names a range of the current surface by its ends.", "30 §7.3"),
    ("L2.surface-sources", "L2", "sourceEventSeqs of a replacement names every event that it removes from the surface.", "30 §7.3"),
    # Vocabulary and shape.
    ("V1", "L3", "An event type is one of the 62 of generation 4, or the event is marked ignorable.", "30 §8"),
    ("V2", "L3", "A request/header does not have the retired reason 'fallback'.", "30 §8"),
    ("V3", "L3", "Surface types carry a well-formed surfaceOp and at most well-formed sourceEventSeqs; other types carry neither.", "30 §5.2, §8"),
    ("V4", "L3", "Role developer, tool-change blocks and headerSeq stand only where a developer/message has them.", "30 §8"),
    ("V5", "L3", "A request/header omits empty tools, empty adapterDefaults and system.", "30 §8"),
    ("V6", "L3", "A tool/result with an error has isError true.", "30 §8"),
    ("V7", "L3", "The message of a surface type has an id, its fixed role, a content array and the source that its type asks for.", "30 §8"),
    # Restore.
    ("L4.header", "L4", "The header is a complete header of version 4 and names the session that was asked for.", "30 §9, 10 §4.1"),
    ("L4.envelope", "L4", "An event has only the seven envelope members, each of its type, and its seq is its position.", "30 §9"),
    ("L4.seq", "L4", "The seq of an event that is folded is its position in the log.", "30 §5.1"),
    ("L4.request-header", "L4", "A request/header has provider, model, a known reason, and adapterDefaults only for what config has.", "30 §9"),
    ("L4.settlement", "L4", "assistant/message and assistant/attempt have turn, step and a stream array.", "30 §9"),
    ("L4.replace-range", "L4", "A replacement names a range of the current surface, its start not behind its end.", "30 §5.1"),
    ("L4.replace-sources", "L4", "sourceEventSeqs of a replacement names every removed event.", "30 §5.1"),
    ("L4.rewrite", "L4", "A tool/result replaces only one current tool/result and changes only its content.", "30 §5.1"),
    ("L4.head", "L4", "A system/message at the head of the surface is replaced only by a system/message over exactly it.", "30 §5.1"),
    ("L4.offload", "L4", "image/offload marks existing images of current user messages or tool results, each once.", "30 §5.3"),
    ("L4.developer-header", "L4", "headerSeq names an earlier request/header in which every added tool stands exactly once, complete.", "30 §5.4"),
    ("L4.cut", "L4", "The inherited cut is 0 without a seed, within the log, and no inherited marker follows one at the cut.", "30 §9"),
    ("L4.marker", "L4", "In a complete artifact the inherited cut is the seq of the last inherited marker.", "30 §9"),
    # Agreement.
    ("L5.1", "L5", "The embedded stream of a settlement expands and assembles.", "30 §10 step 1"),
    ("L5.3", "L5", "The content of an assistant/message is what its stream assembles to.", "30 §10 step 3"),
    ("L5.4", "L5", "The usage of an assistant/message is the last usage of its stream.", "30 §10 step 4"),
    ("L5.5", "L5", "The replayState of an assistant/message is that of its stream.", "30 §10 step 5"),
)  # fmt: skip

RULES: Final = {row[0]: Rule(*row) for row in _TABLE}
"""All rules by id, in the order of the layers."""


def explain(rule: str) -> Rule | None:
    """Return the rule with an id, upper and lower case alike; None if there is no such rule."""
    found = RULES.get(rule)
    if found is not None:
        return found
    wanted = rule.lower()
    return next((entry for entry in RULES.values() if entry.id.lower() == wanted), None)
