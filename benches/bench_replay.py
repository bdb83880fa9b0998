"""Split and join beside a check, their memory, and how large the parts are. Spec: 60 §5 to §7."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest

import dsh_codec as dsh
from bench_memory import BASE_BYTES, MIB, PEAK, numbers
from compare import Contender, Line, Samples, run_child
from data import TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from compare import Clock, Comparison
    from data import Logs

MOST = 2.5
COMMAND = "import sys; from dsh_codec.cli import main; sys.exit(main())"
WHOLE = """
import dsh_codec as dsh
source, target = sys.argv[1:]
with dsh.open(source) as log:
    parts = dsh.split_to(log, target + "/parts")
"""
SPLIT = WHOLE + "print(peak(), parts.sidecar.stat().st_size)"
JOIN = """
import dsh_codec as dsh
source, target = sys.argv[1:]
with dsh.open(target + "/parts") as log, dsh.Sidecar.open(
    target + "/parts/session.v4.replay.jsonl"
) as sidecar:
    joined = dsh.join_to(log, sidecar, target + "/joined.jsonl")
print(peak(), joined.stat().st_size)
"""
CORPUS = Path(os.environ.get("DSH_CORPUS", TOOLS.parent / "corpus" / "real"))


def split_once(source: Path, target: Path) -> Path:
    with dsh.open(source) as log:
        dsh.split_to(log, target)
    return target


def join_once(parts: Path, target: Path) -> Path:
    sidecar = parts / "session.v4.replay.jsonl"
    with dsh.open(parts) as log, dsh.Sidecar.open(sidecar) as side:
        return dsh.join_to(log, side, target)


def digest_and_remove(path: Path) -> str:
    """Return the digest of a file, or of the files of a directory, which go. Not measured."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    for file in files:
        file.unlink()
    return digest


def add_lines(
    compare: Comparison,
    peer: str,
    samples: list[Samples],
    clock: str,
    limits: dict[str, float],
) -> None:
    base, *others = samples
    for each in others:
        pairs = zip(each.seconds, base.seconds, strict=True)
        cost = median(ours / max(theirs, 1e-9) for ours, theirs in pairs)
        compare.line(
            Line(
                each.contender.name,
                peer,
                cost,
                limits.get(each.contender.name),
                unit="x its time",
                better="less",
                detail=f"{base.median * 1e3:,.0f} ms : {each.median * 1e3:,.0f} ms; {clock}",
            )
        )


def bench_split_and_join(compare: Comparison, logs: Logs, tmp_path: Path) -> None:
    """File to file, each at most 2.5 times the CPU of a full check of the log."""
    source = logs.large()
    data = source.read_bytes()
    parts = split_once(source, tmp_path / "parts")
    full = hashlib.sha256(data).hexdigest()
    both = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(parts.iterdir())))
    assembled = (parts / "session.v4.jsonl").read_bytes()
    hashed = [hashlib.sha256(text).hexdigest() for text in (data, assembled)]
    limits = {"split 160 MB, file to files": MOST, "join 160 MB, files to file": MOST}
    split_name, join_name = limits
    contenders = [
        Contender("check", lambda: dsh.check(source, level="full").status, "sound"),
        Contender(
            split_name,
            lambda: split_once(source, tmp_path / "new"),
            both.hexdigest(),
            view=digest_and_remove,
        ),
        Contender(
            join_name,
            lambda: join_once(parts, tmp_path / "joined.jsonl"),
            full,
            view=digest_and_remove,
        ),
        # For scale: both digests are over as many bytes, whatever else is done.
        Contender(
            "SHA-256 over full and assembled log, OpenSSL",
            lambda: [hashlib.sha256(text).hexdigest() for text in (data, assembled)],
            hashed,
        ),
    ]
    samples = compare.measure("split and join", contenders)
    add_lines(compare, "check, level full", samples, "CPU", limits)


def bench_commands(compare: Comparison, logs: Logs, tmp_path: Path) -> None:
    """The commands, started each time."""
    source, parts = str(logs.large()), tmp_path / "parts"
    split_once(Path(source), parts)
    clock: Clock = "child CPU"

    def run(*arguments: str) -> str:
        return run_child([sys.executable, "-c", COMMAND, *arguments])

    def removed(_: str) -> str:
        return digest_and_remove(tmp_path / "new")

    def joined(_: str) -> str:
        return digest_and_remove(tmp_path / "joined.jsonl")

    expected = hashlib.sha256(
        b"".join(p.read_bytes() for p in sorted(parts.iterdir()))
    ).hexdigest()
    full = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    names = ["dsh-codec split of 160 MB", "dsh-codec join of 160 MB"]
    contenders = [
        Contender(
            "check",
            partial(run, "check", "--level", "full", source),
            True,
            view=lambda text: ": sound" in text,
        ),
        Contender(
            names[0],
            partial(run, "split", source, "-o", str(tmp_path / "new")),
            expected,
            view=removed,
        ),
        Contender(
            names[1],
            partial(run, "join", str(parts), "-o", str(tmp_path / "joined.jsonl")),
            full,
            view=joined,
        ),
    ]
    samples = compare.measure("commands", contenders, clock=clock)
    limits = dict.fromkeys(names, MOST)
    add_lines(compare, "dsh-codec check --level full", samples, clock, limits)


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak is read from /proc"
)
@pytest.mark.parametrize("size", ["16 MB", "160 MB"])
def bench_memory(compare: Comparison, logs: Logs, tmp_path: Path, size: str) -> None:
    """At most 16 MiB and 2.5 times the longest row, whatever the size."""
    source = logs.prefix(16_000_000) if size == "16 MB" else logs.large()
    longest = max(map(len, source.read_bytes().split(b"\n")))
    limit = BASE_BYTES + 2.5 * longest
    bare, _ = numbers(PEAK + "import dsh_codec, dsh_codec.check; print(peak(), 0)")
    for name, code in (("split", SPLIT), ("join", JOIN)):
        peak, written = numbers(PEAK + code, str(source), str(tmp_path))
        assert written > 0
        compare.line(
            Line(
                f"peak memory, {name} of {size}",
                "interpreter with dsh_codec",
                (peak - bare) / MIB,
                limit / MIB,
                unit="MiB more",
                better="less",
                detail=f"longest row {longest / MIB:.2f} MiB",
            )
        )
    assert (tmp_path / "joined.jsonl").read_bytes() == source.read_bytes()


def real_logs() -> list[Path]:
    index = CORPUS / "index.json"
    if not index.is_file():
        return []
    entries = json.loads(index.read_text("utf-8"))["logs"]
    return [CORPUS / entry["path"] for entry in entries if entry["format"] == 4]


CLASSES: dict[str, tuple[Callable[[Logs], Iterable[Path]], float | None]] = {
    "generated, tool results and answers": (lambda logs: [logs.large()], None),
    "answers of 2,000 chunks, nothing else": (
        lambda logs: [logs.with_chunks(2_000)],
        1 / 3,
    ),
    "answers of 50,000 chunks, nothing else": (
        lambda logs: [logs.with_chunks(50_000)],
        1 / 3,
    ),
    "many small logs": (lambda logs: logs.many()[:200], None),
    "real logs of generation 4": (lambda _: real_logs(), None),
}


@pytest.mark.parametrize("kind", CLASSES)
def bench_sizes(compare: Comparison, logs: Logs, tmp_path: Path, kind: str) -> None:
    """Bytes of the full log and of both parts; text-heavy: at most a third is left."""
    choose, limit = CLASSES[kind]
    paths = list(choose(logs))
    if not paths:
        pytest.skip("the real logs are not beside the repository")
    totals = {}
    for compression in ("none", "zstd"):
        sizes = [0, 0, 0]
        for path in paths:
            folder = tmp_path / "parts"
            with dsh.open(path) as log:
                parts = dsh.split_to(log, folder, compression=compression)
                with (
                    dsh.open(parts.assembled) as assembled,
                    dsh.Sidecar.open(parts.sidecar) as sidecar,
                ):
                    full = dsh.join_to(
                        assembled,
                        sidecar,
                        folder / "full.jsonl",
                        compression=compression,
                    )
                with dsh.open(full) as joined:
                    assert len(joined) == len(log)
            for number, file in enumerate((full, *parts)):
                sizes[number] += file.stat().st_size
            shutil.rmtree(folder)
        totals[compression] = sizes
    full_bytes, assembled_bytes, _ = totals["none"]
    detail = "; ".join(
        f"{name}: full {sizes[0]:,}, assembled {sizes[1]:,}, sidecar {sizes[2]:,} B"
        for name, sizes in (("plain", totals["none"]), ("zstd", totals["zstd"]))
    )
    compare.line(
        Line(
            f"assembled log of {kind}",
            "full log",
            assembled_bytes / full_bytes,
            limit,
            unit="of its bytes",
            better="less",
            detail=detail,
        )
    )
