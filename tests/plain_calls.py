"""Usage and first-token times from the JSON alone: no code of the package. Spec: 80 §3 to §5."""

# fmt: off
import json
import sys
from typing import Any

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

RUNS = {"text-chunks": "texts", "reasoning-chunks": "texts", "tool-call-chunks": "args"}
CLOSERS = ("turn/end", "step/end", "llm/retry", "llm/retry-started")
TEXTS = {"text-delta": "text", "reasoning-delta": "text", "tool-call-delta": "argumentsDelta"}


def lines(data):
    text = b"" if data[:4] == b"\x28\xb5\x2f\xfd" else data
    while data[:4] == b"\x28\xb5\x2f\xfd":
        frame = zstd.ZstdDecompressor()
        text += frame.decompress(data)
        data = frame.unused_data
    return text.split(b"\n")[:-1]


def members(kind, record, body):
    """Return time, whether it is a token, and the raw chunk of each member of a run or chunk."""
    time = record["time0" if kind in RUNS else "time"]
    if kind not in RUNS:
        return [(time, bool(body.get(TEXTS.get(body["type"], ""))) or "name" in body, body)]
    times = [time + sum(body["dt"][:k]) for k in range(len(body["dt"]) + 1)]
    return [(t, bool(part) or "name" in body, {}) for t, part in zip(times, body[RUNS[kind]], strict=True)]


def calls(data):
    """Return (turn, step, input, output, ttft) of each call, in order."""
    chunks: dict[Any, Any] = {}
    starts: dict[Any, Any] = {}
    groups: list[Any] = [(None, [])]
    found: list[Any] = []
    for row in map(json.loads, lines(data)[1:]):
        kind, body = row["type"], row["data"]
        place = (body.get("turn"), body.get("step"))
        if kind in RUNS or kind == "assistant/chunk":
            parts = members(kind, row, body.get("chunk", body))
            seqs = range(first := row.get("seq0", row.get("seq")), first + len(parts))
            chunks.update(zip(seqs, parts, strict=True))
            groups += [] if groups[-1][0] == place else [(place, [])]
            groups[-1][1].extend(seqs)
        elif kind in ("step/start", "llm/retry-started"):
            starts.setdefault(place, []).append((row["seq"], row["time"]))
        elif kind in ("assistant/message", "assistant/attempt"):
            parts = [part for record in body.get("stream", []) for part in members(record["type"], record, record.get("chunk", record))]
            cited = [s for r in row.get("sourceEventSeqs", []) for s in (range(r[0], r[1] + 1) if isinstance(r, list) else [r])]
            groups = [(p, [s for s in seqs if s not in cited]) for p, seqs in groups]
            found.append((row["seq"], place, parts + [chunks[seq] for seq in cited], body.get("usage")))
        if kind in CLOSERS or body.get("chunk", {}).get("type") == "finish":
            groups.append((None, []))
    found += [(seqs[-1], p, [chunks[s] for s in seqs], None) for p, seqs in groups if seqs]
    result, done = [], dict.fromkeys(starts, -1)
    for seq, place, parts, usage in sorted(found, key=lambda call: call[0]):
        usages = [chunk["usage"] for _, _, chunk in parts if chunk.get("type") == "usage"]
        used = usages[-1] if usages else usage or {}
        begun = [time for s, time in starts.get(place, []) if done[place] < s < seq]
        done[place] = seq
        tokens = [time for time, is_token, _ in parts if is_token]
        ttft = tokens[0] - begun[-1] if tokens and begun and tokens[0] >= begun[-1] else None
        result.append((*place, used.get("inputTokens"), used.get("outputTokens"), ttft))
    return result
