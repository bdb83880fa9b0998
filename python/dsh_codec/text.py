"""What was said in a log: prompts, answers, tool calls, and a search over all of it. Spec: 80 §6."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

from dsh_codec.attempts import iter_attempts
from dsh_codec.corpus import own_from, read_logs
from dsh_codec.events import is_array, is_object
from dsh_codec.row import Event
from dsh_codec.tools import ToolPairing, place_of, read_result, text_of
from dsh_codec.values import fuse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from dsh_codec._types import Compression
    from dsh_codec.attempts import Attempt
    from dsh_codec.corpus import Places, Readings
    from dsh_codec.log import Log
    from dsh_codec.row import PackedRow
    from dsh_codec.tools import ToolPair

__all__ = ["Hit", "LogText", "Passage", "PassageKind", "search", "text"]

PassageKind: TypeAlias = Literal[
    "prompt",
    "injected",
    "answer",
    "reasoning",
    "failed",
    "tool-call",
    "tool-result",
    "system",
    "developer",
    "summary",
    "title",
]
"""What a passage is. `prompt`: a human wrote it. `injected`: a user message of another source.
`failed`: text of an attempt without a message. `summary`: of a compaction."""

_EXCERPT_CHARS: Final = 40


class Passage(NamedTuple):
    """A text of a log.

    Attributes:
        id: `session:seq`.
        session: Id of the session.
        seq: Its event; of a `failed` attempt of generations 0 and 1 the last chunk.
        time_ms: Time of the event; None if it has no valid time.
        turn, step: Where it was said, from 1; None where the event does not tell.
        kind: What it is.
        text: The text blocks, joined; a surrogate pair split over fragments is one character.
        is_interrupted: Whether it is of an answer that was cut short.
        is_own: Whether it is the session's own and not inherited.
        source: Kind of the message's source; None without one.
    """

    id: str
    session: str
    seq: int
    time_ms: int | None
    turn: int | None
    step: int | None
    kind: PassageKind
    text: str
    is_interrupted: bool
    is_own: bool
    source: str | None


class Hit(NamedTuple):
    """A passage that a search found.

    Attributes:
        passage: The passage.
        spans: Start and end of each match in its text, in characters.
        path: The log; None if it has no path.
    """

    passage: Passage
    spans: tuple[tuple[int, int], ...]
    path: str | None

    @property
    def id(self) -> str:
        """`session:seq` of the passage."""
        return self.passage.id

    def excerpt(self, chars: int = _EXCERPT_CHARS) -> str:
        """Return the first match with some characters around it."""
        start, end = self.spans[0]
        whole = self.passage.text
        before, after = max(start - chars, 0), end + chars
        return (
            ("…" if before else "")
            + whole[before:after]
            + ("…" if after < len(whole) else "")
        )


class LogText:
    """The texts of a log; see `text`. Every question is one pass over the log.

    Attributes:
        log: The log.
    """

    __slots__ = ("_with_inherited", "log")

    def __init__(self, log: Log, *, with_inherited: bool = False) -> None:
        """Take a log."""
        self.log = log
        self._with_inherited = with_inherited

    def passages(self, kinds: Collection[str] | None = None) -> Iterator[Passage]:
        """Yield the texts of some kinds, all if None, nearly in the order of their seqs.

        Raises:
            DshCodecError, OSError: As for iterating over the log.
            ValueError: There is no such kind.
        """
        wanted = check_kinds(kinds)
        cut = own_from(self.log)
        for passage in _Teller(self.log, wanted, cut).tell():
            if passage.is_own or self._with_inherited:
                yield passage

    def human_prompts(self) -> Iterator[Passage]:
        """Yield what humans wrote: `user/message` events whose source is a user."""
        return self.passages(("prompt",))

    def answers(self) -> Iterator[Passage]:
        """Yield the visible text of each settled message that has any, interrupted ones marked."""
        return self.passages(("answer",))

    def history(self) -> Iterator[Event]:
        """Yield every event in order: all that was said and done, shadowed or not."""
        cut = 0 if self._with_inherited else own_from(self.log)
        for event in self.log:
            if event.seq >= cut:
                yield event

    def surface(self) -> list[int]:
        """Return the seqs of the current surface, inherited ones included.

        Raises:
            RowError: An event breaks a rule of 30 §5.
        """
        # The rules of the surface cost an import that no other question needs.
        from dsh_codec.messages import surface

        return surface(self.log).nodes

    def tool_pairs(self) -> list[ToolPair]:
        """Return the tool calls with their results, in the order in which they were asked for."""
        cut = 0 if self._with_inherited else own_from(self.log)
        pairing = ToolPairing(keep_content=True)
        for unit in self.log.units():
            if not isinstance(unit, Event) or unit.seq < cut:
                continue
            if unit.type == "assistant/message":
                data = unit.data if is_object(unit.data) else {}
                pairing.add_message(place_of(data), unit.seq, content_of(data))
            elif unit.type == "tool/call":
                pairing.start(unit)
            elif unit.type == "tool/result":
                pairing.answer(unit)
        return pairing.pairs

    def stream_texts(self) -> Iterator[tuple[int, str]]:
        """Yield seq and streamed answer text of each attempt, accepted or not."""
        cut = 0 if self._with_inherited else own_from(self.log)
        for attempt in self.log.attempts():
            if attempt.seq >= cut:
                yield attempt.seq, attempt.stream.text


def text(log: Log, *, with_inherited: bool = False) -> LogText:
    """Return the texts of a log: prompts, answers, history, surface, tool calls.

    Args:
        log: An open log.
        with_inherited: Whether what a fork inherited belongs to it, too.

    Returns:
        An object to ask; nothing is read before.

    Example:
        >>> import dsh_codec as dsh
        >>> row = b'{"type":"session","version":4,"id":"s-1","createdAt":0,'
        >>> row += b'"isSeeded":false,"delegationDepth":0}' + bytes([10])
        >>> list(dsh.text(dsh.open(row)).human_prompts())
        []
    """
    return LogText(log, with_inherited=with_inherited)


def search(
    paths: Places,
    pattern: str | re.Pattern[str],
    *,
    kinds: Collection[PassageKind] | None = None,
    with_inherited: bool = False,
    compression: Compression | None = None,
) -> Readings[Hit]:
    """Find text in the sessions at some places.

    Args:
        paths: Roots, directories, log files, entries of `find` or open logs; one or many.
        pattern: Regular expression, as text or compiled (with its flags).
        kinds: Where to look, see `PassageKind`; None: everywhere.
        with_inherited: Whether texts that a fork inherited are found in it, too.
        compression: Decides where both encodings of a generation are present.

    Returns:
        An iterator over the hits, each session's in the order of their seqs. Its `errors`
        lists the sessions that could not be read; those have no hits.

    Raises:
        re.error: The pattern is no regular expression.
        ValueError: There is no such kind.

    Note:
        Searches decoded text: escapes, split surrogate pairs and text that came in many
        fragments do not matter. Messages that a compaction shadowed are found. Memory: the
        hits of one session. Spec: 80 §6.
    """
    compiled = re.compile(pattern)
    wanted = check_kinds(kinds)

    def look(log: Log) -> list[Hit]:
        hits = []
        texts = LogText(log, with_inherited=with_inherited)
        for passage in texts.passages(wanted):
            spans = [match.span() for match in compiled.finditer(passage.text)]
            if spans:
                hits.append(Hit(passage, tuple(spans), log.path))
        return sorted(hits, key=lambda hit: hit.passage.seq)

    return read_logs(paths, look, compression=compression)


def check_kinds(kinds: Collection[str] | None) -> frozenset[str]:
    """Return the kinds of passages, all for None.

    Raises:
        ValueError: There is no such kind.
    """
    known: frozenset[str] = frozenset(get_args(PassageKind))
    if kinds is None:
        return known
    wanted = frozenset((kinds,) if isinstance(kinds, str) else kinds)
    if not wanted <= known:
        message = f"there is no kind {min(wanted - known)!r} of passage"
        raise ValueError(message)
    return wanted


def content_of(data: dict[str, Any]) -> list[Any]:
    """Return the content blocks of an `assistant/message` of any generation."""
    message = data.get("message")
    content = (message if is_object(message) else data).get("content")
    return content if is_array(content) else []


class _Teller:
    """One pass over a log; makes passages of the kinds that are wanted."""

    def __init__(self, log: Log, kinds: frozenset[str], cut: int) -> None:
        self._log = log
        self._kinds = kinds
        self._cut = cut
        self._session: str = log.header.fields["id"]
        self._ready: list[Passage] = []
        tellers: list[tuple[str, tuple[str, ...], Callable[[Event], None]]] = [
            ("user/message", ("prompt", "injected"), self._tell_user),
            ("steering/message", ("prompt", "injected"), self._tell_user),
            ("tool/result", ("tool-result",), self._tell_result),
            ("system/message", ("system",), self._tell_message),
            ("developer/message", ("developer",), self._tell_message),
            ("compaction/summary", ("summary",), self._tell_summary),
            ("compact/summary", ("summary",), self._tell_summary),
            ("session/title", ("title",), self._tell_title),
        ]
        if "failed" not in kinds:
            spoken = ("answer", "reasoning", "tool-call")
            tellers.append(("assistant/message", spoken, self._tell_answer))
        self._tellers = {
            kind: tell
            for kind, told, tell in tellers
            if not self._kinds.isdisjoint(told)
        }

    def tell(self) -> Iterator[Passage]:
        watched = self._watch(self._log.units())
        if "failed" in self._kinds:
            citations = self._log._citations  # pyright: ignore[reportPrivateUsage]
            for attempt in iter_attempts(watched, self._log.generation, citations):
                self._tell_attempt(attempt)
                yield from self._take()
        else:
            for _ in watched:
                if self._ready:
                    yield from self._take()
        yield from self._take()

    def _take(self) -> list[Passage]:
        ready, self._ready = self._ready, []
        return ready

    def _watch(self, units: Iterable[Event | PackedRow]) -> Iterator[Event | PackedRow]:
        for unit in units:
            if isinstance(unit, Event):
                tell = self._tellers.get(unit.type or "")
                if tell is not None:
                    tell(unit)
            yield unit

    def _add(
        self,
        kind: PassageKind,
        found: str | None,
        event: Event | Attempt,
        data: Any,
        *,
        source: Any = None,
        is_interrupted: bool = False,
    ) -> None:
        if found is None or kind not in self._kinds:
            return
        origin = source.get("kind") if is_object(source) else None
        self._ready.append(
            Passage(
                f"{self._session}:{event.seq}",
                self._session,
                event.seq,
                event.time,
                *place_of(data),
                kind,
                found,
                is_interrupted,
                event.seq >= self._cut,
                origin if type(origin) is str else None,
            )
        )

    def _tell_user(self, event: Event) -> None:
        data = event.data
        message = data.get("message") if is_object(data) else None
        # Spec 50 §4.2: generation 0 also had a message inside of the data.
        if event.type != "steering/message" or not is_object(message):
            message = data
        if not is_object(message):
            return
        source = message.get("source")
        is_human = is_object(source) and source.get("kind") == "user"
        kind: PassageKind = "prompt" if is_human else "injected"
        self._add(kind, text_of(message.get("content")), event, data, source=source)

    def _tell_message(self, event: Event) -> None:
        data = event.data if is_object(event.data) else {}
        message = data.get("message")
        if is_object(message):
            kind: PassageKind = (
                "system" if event.type == "system/message" else "developer"
            )
            found = text_of(message.get("content"))
            self._add(kind, found, event, data, source=message.get("source"))

    def _tell_result(self, event: Event) -> None:
        _, content, _ = read_result(event.data)
        self._add("tool-result", text_of(content), event, event.data)

    def _tell_summary(self, event: Event) -> None:
        data = event.data if is_object(event.data) else {}
        self._add("summary", text_of(data.get("summary")), event, data)

    def _tell_title(self, event: Event) -> None:
        data = event.data if is_object(event.data) else {}
        title = data.get("title")
        if type(title) is str:
            self._add("title", fuse(title), event, data, source=data.get("source"))

    def _tell_attempt(self, attempt: Attempt) -> None:
        if attempt.outcome in ("message", "interrupted"):
            if attempt.event is not None:
                self._tell_answer(attempt.event)
            return
        place = {"turn": attempt.turn, "step": attempt.step}
        self._add("failed", attempt.stream.text or None, attempt, place)

    def _tell_answer(self, event: Event) -> None:
        data = event.data if is_object(event.data) else {}
        content = content_of(data)
        cut_short = data.get("interrupted") is True
        answer, thought = text_of(content), text_of(content, "reasoning")
        self._add("reasoning", thought, event, data, is_interrupted=cut_short)
        self._add("answer", answer, event, data, is_interrupted=cut_short)
        for block in content if "tool-call" in self._kinds else ():
            if is_object(block) and block.get("type") == "tool-call":
                arguments = block.get("arguments")
                if type(arguments) is str:
                    self._add("tool-call", fuse(arguments), event, data)
