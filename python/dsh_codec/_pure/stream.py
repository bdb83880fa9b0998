"""Embedded assistant streams: packing, expansion, readers, assembly. Spec: 20."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from dsh_codec._pure.json import copy_lossless, dump
from dsh_codec._pure.quote import MISSING
from dsh_codec._types import TimedChunk
from dsh_codec.errors import StreamError, UnknownChunkError
from dsh_codec.limits import MAX_ROW_BYTES
from dsh_codec.settlement import settlement_event
from dsh_codec.values import (
    has_visible,
    is_count,
    is_number,
    is_safe_integer,
    join_fragments,
    number_text,
    trim,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dsh_codec._types import EncodedRows

RUN_OF: Final = {
    "text-delta": "text-chunks",
    "reasoning-delta": "reasoning-chunks",
    "tool-call-delta": "tool-call-chunks",
}
"""Record type of a run, by chunk type. Spec: 20 §2."""

DELTA_OF: Final = {run: delta for delta, run in RUN_OF.items()}

RAW_TYPES: Final = frozenset({"block-start", "block-end", "usage", "finish"})
"""Chunk types that are never packed. Spec: 20 §3."""

_TEXT_KEYS: Final = frozenset({"type", "time0", "index", "dt", "texts"})
_TOOL_KEYS: Final = frozenset({"type", "time0", "index", "dt", "id", "args"})
_CHUNK_KEYS: Final = frozenset({"type", "time", "chunk"})

_RECORD_TYPES: Final = "text-chunks, reasoning-chunks, tool-call-chunks or chunk"
_LOSSLESS: Final = "has to be lossless JSON: no -0 and no number that is not finite"
_FRAGMENT: Final = "the fragment of a delta"
_UNKNOWN_TYPE: Final = "the type of a chunk has to be one of those of spec 20 §1"
_BAD_DT: Final = "dt of a run has to be an array with one entry fewer than the members"


def _refuse(message: str, record: int | None) -> NoReturn:
    raise StreamError(message, None, None, None, None, None, None, record) from None


def _type_of(value: Any) -> str | None:
    """Return the `type` of an object, None if it is not an object or has no string there."""
    kind = value.get("type") if type(value) is dict else None
    return kind if type(kind) is str else None


# --- packing (20 §3) ---


class Packer:
    """Accumulator that packs timed chunks into records. See `_kernel.pyi`."""

    def __init__(self) -> None:
        self._records: list[dict[str, Any]] = []
        self._last_time = 0  # Of the last member of the last record.
        self._count = 0

    def push(self, time: Any, chunk: Any, /) -> None:
        """Add one chunk."""
        if not is_safe_integer(time):
            self._refuse("time of a chunk has to be a safe integer")
        if chunk is MISSING:
            self._refuse("a chunk has to be a JSON object")
        try:
            copied = copy_lossless(chunk)
        except ValueError:
            self._refuse(f"a chunk {_LOSSLESS}")
        if copied is None:
            self._refuse("a chunk has to be a JSON object")
        self._pack(int(time), _type_of(copied), copied)
        self._last_time = int(time)
        self._count += 1

    def extend(self, timed: Iterable[TimedChunk | Mapping[str, Any]], /) -> None:
        """Add many chunks."""
        for item in timed:
            if isinstance(item, tuple) and len(item) == 2:
                self.push(*item)
            elif type(item) is dict:
                self.push(item.get("time", MISSING), item.get("chunk", MISSING))
            else:
                self._refuse("a timed chunk has to be an object with time and chunk")

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the records so far."""
        copied: list[dict[str, Any]] = copy_lossless(self._records)
        return copied

    def encode_settlement(
        self,
        given: tuple[int, int, int, tuple[str, str, str] | None, bool],
        seq: int,
        /,
        *,
        max_row_bytes: int = MAX_ROW_BYTES,
    ) -> EncodedRows:
        """Write the event that settles the attempt as a row."""
        from dsh_codec._pure.encode import encode_events

        event = settlement_event(Assembler(), self.snapshot(), seq, *given)
        return encode_events((event,), seq, max_row_bytes=max_row_bytes)

    def _refuse(self, message: str) -> NoReturn:
        _refuse(message, self._count)

    def _pack(self, time: int, kind: str | None, chunk: Any) -> None:
        if kind in ("text-delta", "reasoning-delta"):
            index, text = self._index(chunk), self._string(chunk, "text", "delta")
            record = self._open_run(RUN_OF[kind], time, {"index": index})
            if record is None:
                record = {"type": RUN_OF[kind], "time0": time, "index": index}
                self._records.append(record | {"dt": [], "texts": [text]})
            else:
                record["dt"].append(time - self._last_time)
                record["texts"].append(text)
        elif kind == "tool-call-delta":
            self._pack_tool(time, chunk)
        elif kind in RAW_TYPES:
            self._push_raw(time, chunk)
        else:
            raise UnknownChunkError(_UNKNOWN_TYPE, *(None,) * 6, self._count)

    def _pack_tool(self, time: int, chunk: dict[str, Any]) -> None:
        kind = "tool-call-delta"
        index, call = self._index(chunk), self._string(chunk, "id", kind)
        named = {"name": self._string(chunk, "name", kind)} if "name" in chunk else {}
        fragment = self._string(chunk, "argumentsDelta", kind)
        if call == "" or named.get("name") == "":
            self._push_raw(time, chunk)  # Records may not hold an empty id or name.
            return
        record = self._open_run(
            "tool-call-chunks", time, {"index": index, "id": call, "name": None} | named
        )
        if record is None:
            record = {"type": "tool-call-chunks", "time0": time, "index": index}
            self._records.append(
                record | {"dt": [], "id": call} | named | {"args": [fragment]}
            )
        else:
            record["dt"].append(time - self._last_time)
            record["args"].append(fragment)

    def _push_raw(self, time: int, chunk: dict[str, Any]) -> None:
        self._records.append({"type": "chunk", "time": time, "chunk": chunk})

    def _open_run(
        self, run: str, time: int, identity: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return the last record if a member of this run at this time extends it."""
        last = self._records[-1] if self._records else {}
        if last.get("type") != run or not is_safe_integer(time - self._last_time):
            return None
        same = all(last.get(key) == value for key, value in identity.items())
        return last if same else None

    def _index(self, chunk: dict[str, Any]) -> int:
        index = chunk.get("index")
        if not is_count(index):
            self._refuse("index of a delta has to be a count")
        return int(index)

    def _string(self, chunk: dict[str, Any], key: str, kind: str) -> str:
        text = chunk.get(key)
        if type(text) is not str:
            self._refuse(f"{key} of a {kind} has to be a string")
        return text


def pack(timed: Iterable[TimedChunk | Mapping[str, Any]], /) -> list[dict[str, Any]]:
    """Pack timed chunks into records. See `_kernel.pyi`."""
    packer = Packer()
    packer.extend(timed)
    return packer.snapshot()


# --- expansion (20 §4) ---


def expand(records: Sequence[Mapping[str, Any]], /) -> list[TimedChunk]:
    """Expand records into timed chunks. See `_kernel.pyi`."""
    return list(iter_expand(records))


def iter_expand(records: Sequence[Mapping[str, Any]], /) -> Iterator[TimedChunk]:
    """Yield what `expand` returns. See `_kernel.pyi`."""
    return _expand(_list_of(records))


def _list_of(records: Any) -> Any:
    if type(records) is not list and type(records) is not tuple:
        _refuse("a stream has to be a list of records", None)
    return records


def _expand(records: Sequence[Any]) -> Iterator[TimedChunk]:
    for number, record in enumerate(records):
        check_record(record, number)
        yield from _members(record)


def check_record(record: Any, number: int) -> int:
    """Check one record by every rule of 20 §4.

    Args:
        record: Any JSON value.
        number: Its index in the stream, for the error.

    Returns:
        The number of chunks that it stands for.

    Raises:
        StreamError: It breaks a rule.
    """
    if type(record) is not dict:
        _refuse("a stream record has to be an object", number)
    kind = _type_of(record)
    if kind == "chunk":
        _check_keys(record, _CHUNK_KEYS, number)
        _check_raw(record, number)
        return 1
    if kind in ("text-chunks", "reasoning-chunks"):
        _check_keys(record, _TEXT_KEYS, number)
        return _check_run(record, "texts", number)
    if kind == "tool-call-chunks":
        _check_keys(record, _TOOL_KEYS | ({"name"} & record.keys()), number)
        return _check_run(record, "args", number)
    _refuse(
        f"the type of a stream record has to be {_RECORD_TYPES}",
        number,
    )


def _check_keys(record: dict[str, Any], keys: frozenset[str], number: int) -> None:
    if record.keys() != keys:
        _refuse(
            "a stream record has to have exactly the members of its type (spec 20 §2)",
            number,
        )


def _check_run(record: dict[str, Any], members_key: str, number: int) -> int:
    members, gaps, time = record[members_key], record["dt"], record["time0"]
    if (
        type(members) is not list
        or not members
        or not all(type(member) is str for member in members)
    ):
        _refuse(
            "the members of a run have to be an array of at least one string", number
        )
    for key in ("id", "name"):
        text = record.get(key, "absent")
        if type(text) is not str or text == "":
            _refuse(
                f"{key} of a tool-call-chunks record has to be a string that is not empty",
                number,
            )
    if not is_safe_integer(time):
        _refuse("time0 of a run has to be a safe integer", number)
    if not is_count(record["index"]):
        _refuse("index of a run has to be a count", number)
    if type(gaps) is not list or len(gaps) != len(members) - 1:
        _refuse(_BAD_DT, number)
    time = int(time)
    for gap in gaps:
        if not is_safe_integer(gap):
            _refuse("dt of a run has to hold safe integers", number)
        time += int(gap)
        if not is_safe_integer(time):
            _refuse("every time of a run has to be a safe integer", number)
    return len(members)


def _check_raw(record: dict[str, Any], number: int) -> None:
    if not is_safe_integer(record["time"]):
        _refuse("time of a chunk record has to be a safe integer", number)
    if type(record["chunk"]) is not dict:
        _refuse("chunk of a chunk record has to be an object", number)
    try:
        copy_lossless(record["chunk"])
    except ValueError:
        _refuse(f"chunk of a chunk record {_LOSSLESS}", number)


def _members(record: dict[str, Any]) -> Iterator[TimedChunk]:
    """Yield the chunks of a record that has been checked."""
    kind = record["type"]
    if kind == "chunk":
        yield TimedChunk(int(record["time"]), record["chunk"])
        return
    head = {"type": DELTA_OF[kind], "index": int(record["index"])}
    key = "text"
    if kind == "tool-call-chunks":
        key = "argumentsDelta"
        head |= {name: record[name] for name in ("id", "name") if name in record}
    members = record["args" if kind == "tool-call-chunks" else "texts"]
    time = int(record["time0"])
    gaps = iter(record["dt"])
    for member in members:
        yield TimedChunk(time, head | {key: member})
        time += int(next(gaps, 0))


# --- readers of records (20 §5) ---
#
# They do not validate. What they need and do not find, they refuse as a stream error.


def first_token_time(records: Sequence[Mapping[str, Any]], /) -> int | None:
    """Return the time of the first token. See `_kernel.pyi`."""
    for record in _list_of(records):
        if _kind_of(record) != "chunk":
            time = run_first_token_time(record)
            if time is not None:
                return time
        elif is_token_delta(record.get("chunk")):
            return _time(record, "time")
    return None


def has_visible_content(records: Sequence[Mapping[str, Any]], /) -> bool:
    """Whether any chunk or run shows something. See `_kernel.pyi`."""
    return any(
        is_visible_chunk(record.get("chunk"))
        if _kind_of(record) == "chunk"
        else run_first_visible_time(record) is not None
        for record in _list_of(records)
    )


def has_visible_text(records: Sequence[Mapping[str, Any]], /) -> bool:
    """Whether any answer text is more than white space. See `_kernel.pyi`."""
    for record in _list_of(records):
        kind = _kind_of(record)
        if kind == "chunk" and chunk_has_visible_text(record.get("chunk")):
            return True
        if kind == "text-chunks" and any(map(has_visible, _strings(record, "texts"))):
            return True
    return False


def join_text(records: Sequence[Mapping[str, Any]], /) -> str:
    """Return all text deltas joined. See `_kernel.pyi`."""
    fragments: list[str] = []
    for record in _list_of(records):
        kind = _kind_of(record)
        if kind == "text-chunks":
            fragments += _strings(record, "texts")
        elif kind == "chunk" and _type_of(record.get("chunk")) == "text-delta":
            text = record["chunk"].get("text")
            if type(text) is not str:
                _refuse("text of a text-delta has to be a string", None)
            fragments.append(text)
    return join_fragments(fragments)


def last_chunk(
    records: Sequence[Mapping[str, Any]],
    type: str,  # noqa: A002 -- the name in the interface.
    /,
) -> dict[str, Any] | None:
    """Return the last raw chunk of a type. See `_kernel.pyi`."""
    for record in reversed(_list_of(records)):
        if _kind_of(record) == "chunk" and _type_of(record.get("chunk")) == type:
            chunk: dict[str, Any] = record["chunk"]
            return chunk
    return None


def chunks_of(
    records: Sequence[Mapping[str, Any]],
    type: str,  # noqa: A002 -- the name in the interface.
    /,
) -> list[dict[str, Any]]:
    """Return all raw chunks of a type. See `_kernel.pyi`."""
    return [
        record["chunk"]
        for record in _list_of(records)
        if _kind_of(record) == "chunk" and _type_of(record.get("chunk")) == type
    ]


def run_first_token_time(record: Mapping[str, Any], /) -> int | None:
    """Return the time of the first token of a run. See `_kernel.pyi`."""
    if _run_of(record) == "tool-call-chunks":
        if "name" in record:
            return _time(record, "time0")
        return _time_of_first(record, "args", bool)
    return _time_of_first(record, "texts", bool)


def run_first_visible_time(record: Mapping[str, Any], /) -> int | None:
    """Return the time of a run's first visible member. See `_kernel.pyi`."""
    if _run_of(record) == "tool-call-chunks":
        return None
    return _time_of_first(record, "texts", has_visible)


def is_token_delta(chunk: Any, /) -> bool:
    """Whether the chunk is a token delta. See `_kernel.pyi`."""
    kind = _type_of(chunk)
    if kind in ("text-delta", "reasoning-delta"):
        return _text_of(chunk, "text") != ""
    if kind == "tool-call-delta":
        # A name makes a token even when it is empty.
        return "name" in chunk or _text_of(chunk, "argumentsDelta") != ""
    return False


def is_visible_chunk(chunk: Any, /) -> bool:
    """Whether the chunk shows something. See `_kernel.pyi`."""
    kind = _type_of(chunk)
    if kind in ("text-delta", "reasoning-delta"):
        return has_visible(_text_of(chunk, "text"))
    if kind == "block-start":
        return chunk.get("blockType") not in ("text", "reasoning", "tool-call")
    if kind == "block-end":
        block = chunk.get("block")
        closed = _type_of(block)
        if closed in ("text", "reasoning"):
            return has_visible(_text_of(block, "text"))
        return closed != "tool-call"
    return False


def chunk_has_visible_text(chunk: Any, /) -> bool:
    """Whether the chunk holds answer text that is not blank. See `_kernel.pyi`."""
    kind = _type_of(chunk)
    if kind == "text-delta":
        return has_visible(_text_of(chunk, "text"))
    if kind == "block-end":
        block = chunk.get("block")
        return _type_of(block) == "text" and has_visible(_text_of(block, "text"))
    return False


def _text_of(holder: dict[str, Any], key: str) -> str:
    """Return a text that decides about visibility; what is no string shows nothing."""
    text = holder.get(key)
    return text if type(text) is str else ""


def _kind_of(record: Any) -> str:
    kind = _type_of(record)
    if kind != "chunk" and kind not in DELTA_OF:
        _refuse(
            f"a stream record has to be an object of type {_RECORD_TYPES}",
            None,
        )
    return kind


def _run_of(record: Any) -> str:
    kind = _kind_of(record)
    if kind == "chunk":
        _refuse("the record has to be a run, but is a chunk", None)
    return kind


def _time(record: Any, key: str) -> int:
    time = record.get(key)
    if not is_safe_integer(time):
        _refuse("the time of a record has to be a safe integer", None)
    return int(time)


def _string(holder: Any, key: str, what: str) -> str:
    text = holder.get(key)
    if type(text) is not str:
        _refuse(f"{what} has to be a string", None)
    return text


def _strings(record: Any, key: str) -> list[str]:
    members = record.get(key)
    if type(members) is not list or not all(type(text) is str for text in members):
        _refuse("the members of a run have to be an array of strings", None)
    return members


def _time_of_first(record: Any, key: str, wanted: Any) -> int | None:
    """Return the time of the first member that is wanted."""
    for position, text in enumerate(_strings(record, key)):
        if wanted(text):
            gaps = record.get("dt")
            if type(gaps) is not list or len(gaps) < position:
                _refuse(_BAD_DT, None)
            time = _time(record, "time0")
            if not all(is_safe_integer(gap) for gap in gaps[:position]):
                _refuse("dt of a run has to hold safe integers", None)
            return time + sum(int(gap) for gap in gaps[:position])
    return None


# --- assembly (20 §6) ---


class _Partial:
    """A block that is being assembled."""

    def __init__(self, index: Any, block_type: Any) -> None:
        self.index = index
        self.block_type = block_type
        self.text: list[str] = []
        self.call_id: str | None = None
        self.call_name = ""
        self.arguments: list[str] = []
        self.block: Any = MISSING  # The closing block.

    @property
    def is_closed(self) -> bool:
        return self.block is not MISSING

    @property
    def type(self) -> Any:
        """Type of the closing block if closed, else the type it was opened with."""
        if not self.is_closed:
            return self.block_type
        return self.block.get("type") if type(self.block) is dict else None

    def assemble(self) -> Any:
        if self.is_closed:
            return self.block
        if self.block_type in ("text", "reasoning"):
            return {"type": self.block_type, "text": join_fragments(self.text)}
        if self.block_type == "tool-call":
            call = self.call_id
            return {
                "type": "tool-call",
                "id": f"call-{_index_text(self.index)}" if call is None else call,
                "name": self.call_name,
                "arguments": join_fragments(self.arguments),
            }
        message = "a block of unknown type is still open, so it cannot be assembled"
        _refuse(message, None)


def _index_text(index: Any) -> str:
    if is_number(index):
        return number_text(index)
    if index is MISSING:
        return "nothing"
    if type(index) is list or type(index) is dict:
        return "an array" if type(index) is list else "an object"
    return index if type(index) is str else dump(index).decode()


class Assembler:
    """Block assembler. See `_kernel.pyi`."""

    def __init__(self) -> None:
        self._partials: dict[Any, _Partial] = {}  # In order of first appearance.
        self._usage: Any = MISSING
        self._finish: Any = MISSING
        self._replay: Any = MISSING

    def push(self, chunk: Mapping[str, Any], /) -> None:
        """Add one chunk."""
        self._push(chunk)

    def push_records(self, records: Sequence[Mapping[str, Any]] | Packer, /) -> None:
        """Add the chunks of records or of a packer, each run as one delta."""
        if isinstance(records, Packer):
            records = records.snapshot()
        for number, record in enumerate(_list_of(records)):
            try:
                self._push(_as_chunk(record))
            except StreamError as error:
                places = error.args[1:7]
                raise type(error)(error.message, *places, number) from None

    def blocks(self) -> list[dict[str, Any]]:
        """Return the kept blocks."""
        return [block for partial, block in self._assembled() if self._keeps(partial)]

    def interrupted_blocks(self) -> list[dict[str, Any]]:
        """Return the visible text and reasoning blocks of an interrupted attempt."""
        blocks: list[dict[str, Any]] = []
        for partial in self._partials.values():
            kind = partial.type
            if type(kind) is str and kind in ("text", "reasoning"):
                block = partial.assemble()
                if trim(_text_of(block, "text")):
                    blocks.append(block)
        return blocks

    def usage(self, default: Any = None, /) -> Any:
        """Return the last usage."""
        return default if self._usage is MISSING else self._usage

    def finish(self) -> Any:
        """Return the last finish reason."""
        return {"kind": "stop"} if self._finish is MISSING else self._finish

    def replay_state(self, default: Any = None, /) -> Any:
        """Return the replay state aligned with the kept blocks."""
        assembled = self._assembled()
        envelope = self._replay
        if envelope is MISSING:
            return default
        if type(envelope) is not dict or "blocks" not in envelope:
            return envelope
        entries = envelope["blocks"]
        # The entries stand for all blocks, those that pruning removes included.
        if type(entries) is not list or len(entries) != len(assembled):
            return default
        kept = [self._keeps(partial) for partial, _ in assembled]
        if all(kept):
            return envelope
        return {
            **({"response": envelope["response"]} if "response" in envelope else {}),
            "blocks": [
                entry for entry, keep in zip(entries, kept, strict=True) if keep
            ],
        }

    def _assembled(self) -> list[tuple[_Partial, Any]]:
        """Return every partial with its block."""
        return [(partial, partial.assemble()) for partial in self._partials.values()]

    def _keeps(self, partial: _Partial) -> bool:
        finish = self._finish
        truncated = type(finish) is dict and finish.get("kind") == "max-tokens"
        return not (truncated and partial.type == "tool-call")

    def _ensure(self, key: Any, chunk: dict[str, Any], block_type: Any) -> _Partial:
        if key not in self._partials:
            self._partials[key] = _Partial(chunk.get("index", MISSING), block_type)
        return self._partials[key]

    def _is_closed(self, key: Any) -> bool:
        return key in self._partials and self._partials[key].is_closed

    def _push(self, chunk: Any) -> None:
        kind = _type_of(chunk)
        if kind == "block-start":
            self._ensure(_key_of(chunk), chunk, chunk.get("blockType", MISSING))
        elif kind in ("text-delta", "reasoning-delta"):
            self._add_text(chunk, "text" if kind == "text-delta" else "reasoning")
        elif kind == "tool-call-delta":
            self._add_call(chunk)
        elif kind == "block-end":
            self._close(chunk)
        elif kind == "usage":
            self._usage = chunk.get("usage", MISSING)
        elif kind == "finish":
            self._finish = chunk.get("reason", MISSING)
            self._replay = chunk.get("replayState", MISSING)
        elif chunk is None:
            _refuse("a chunk has to be an object", None)
        else:
            raise UnknownChunkError(_UNKNOWN_TYPE, *(None,) * 7)

    def _add_text(self, chunk: dict[str, Any], block_type: str) -> None:
        key = _key_of(chunk)
        if not self._is_closed(key):
            text = _string(chunk, "text", _FRAGMENT)
            self._ensure(key, chunk, block_type).text.append(text)

    def _add_call(self, chunk: dict[str, Any]) -> None:
        key = _key_of(chunk)
        if self._is_closed(key):
            return
        fragment = _string(chunk, "argumentsDelta", _FRAGMENT)
        call = _string(chunk, "id", "id of a tool call")
        name = ""
        if "name" in chunk:
            name = _string(chunk, "name", "name of a tool call")
        partial = self._ensure(key, chunk, "tool-call")
        partial.call_id = call
        partial.call_name = name or partial.call_name
        partial.arguments.append(fragment)

    def _close(self, chunk: dict[str, Any]) -> None:
        block = chunk.get("block")
        if block is None:
            _refuse("block of a block-end has to be an object", None)
        key = _key_of(chunk)
        if not self._is_closed(key):
            self._ensure(key, chunk, _type_of(block)).block = block


def _key_of(chunk: dict[str, Any]) -> Any:
    """Return what tells the block of a chunk from others.

    1.0 is the index 1; booleans and strings are other indexes than numbers; an array or an
    object equals no other. Spec: 20 §8.5, a malformed index is kept.
    """
    index = chunk.get("index", MISSING)
    if type(index) is list or type(index) is dict:
        return object()
    return index if is_number(index) else (type(index), index)


def _as_chunk(record: Any) -> Any:
    """Return a record as one chunk; a run becomes one delta of all its members."""
    kind = _kind_of(record)
    if kind == "chunk":
        return record.get("chunk")
    chunk = {key: record[key] for key in ("index", "id", "name") if key in record}
    chunk["type"] = DELTA_OF[kind]
    if kind == "tool-call-chunks":
        chunk["argumentsDelta"] = join_fragments(_strings(record, "args"))
    else:
        chunk["text"] = join_fragments(_strings(record, "texts"))
    return chunk
