"""Exact, fast codec for the session logs of the DeepSeek Harness."""

# ruff: noqa: TC004 - names of the type-checking block are bound when somebody asks for them

from __future__ import annotations

import sys
from types import ModuleType

from dsh_codec._backend import backend, kernel

TYPE_CHECKING = False  # `typing` takes longer to import than the rest of this module.
if TYPE_CHECKING:
    from dsh_codec import live as live, table as table
    from dsh_codec._types import (
        AttemptColumns,
        ChunkKind,
        FileScan,
        FrameScan,
        Header,
        Row,
        RowIssue,
        ScanResult,
        StreamColumns,
        StreamFault,
        TimedChunk,
    )
    from dsh_codec.async_writer import (
        AsyncWriter,
    )
    from dsh_codec.attempts import (
        Attempt,
    )
    from dsh_codec.calls import (
        Call,
        calls,
    )
    from dsh_codec.check import (
        check,
        check_many,
    )
    from dsh_codec.errors import (
        CorruptLogError,
        DshCodecError,
        FrameError,
        HeaderError,
        IdentityError,
        JsonSyntaxError,
        LayoutError,
        LimitExceededError,
        MigrationRefusedError,
        NewerFormatError,
        ReplayError,
        RowError,
        SeqGapError,
        SessionLockedError,
        SidecarError,
        StreamError,
        UnknownChunkError,
        UnsupportedError,
    )
    from dsh_codec.find import (
        Session,
        default_root,
        find,
    )
    from dsh_codec.follow import (
        Cursor,
        Follow,
        Reset,
        Superseded,
        follow,
    )
    from dsh_codec.html_report import (
        html_report,
    )
    from dsh_codec.load import (
        load_updates,
    )
    from dsh_codec.log import (
        Log,
        open,  # noqa: A004 - the name that users see is dsh_codec.open
    )
    from dsh_codec.messages import (
        messages,
        state,
        surface,
    )
    from dsh_codec.migrate import (
        ChildEvidence,
        Migration,
        migrate,
    )
    from dsh_codec.names import (
        decode_segment,
        encode_segment,
        log_filename,
        log_path,
        parse_log_filename,
        project_key,
    )
    from dsh_codec.prices import (
        PriceTable,
    )
    from dsh_codec.repack import (
        Repacked,
        repack,
    )
    from dsh_codec.repair import (
        RepairPlan,
        plan_repair,
        repair,
        salvage,
    )
    from dsh_codec.replay import (
        Recorded,
        ReplayAttempt,
        ReplayCancelled,
        ReplayChunk,
        ReplayFailure,
        ReplayModel,
    )
    from dsh_codec.replay_server import (
        ReplayServer,
    )
    from dsh_codec.report import (
        Finding,
        Report,
    )
    from dsh_codec.row import (
        Event,
    )
    from dsh_codec.sidecar import (
        Split,
        join,
        split,
    )
    from dsh_codec.sidecar_file import (
        Sidecar,
    )
    from dsh_codec.sidecar_publish import (
        join_to,
        split_to,
    )
    from dsh_codec.stream import (
        Assembled,
        Stream,
        assemble,
    )
    from dsh_codec.summary import (
        Summary,
        summarize,
    )
    from dsh_codec.text import (
        search,
        text,
    )
    from dsh_codec.timing import (
        timing,
    )
    from dsh_codec.usage import (
        usage,
    )
    from dsh_codec.writer import (
        Writer,
    )

Assembler = kernel.Assembler
Packer = kernel.Packer
dump = kernel.dump
expand = kernel.expand
iter_expand = kernel.iter_expand
pack = kernel.pack
parse = kernel.parse
stream_columns = kernel.stream_columns

__version__ = "0.1.0"
__all__ = [
    "Assembled",
    "Assembler",
    "AsyncWriter",
    "Attempt",
    "AttemptColumns",
    "Call",
    "ChildEvidence",
    "ChunkKind",
    "CorruptLogError",
    "Cursor",
    "DshCodecError",
    "Event",
    "FileScan",
    "Finding",
    "Follow",
    "FrameError",
    "FrameScan",
    "Header",
    "HeaderError",
    "IdentityError",
    "JsonSyntaxError",
    "LayoutError",
    "LimitExceededError",
    "Log",
    "Migration",
    "MigrationRefusedError",
    "NewerFormatError",
    "Packer",
    "PriceTable",
    "Recorded",
    "Repacked",
    "RepairPlan",
    "ReplayAttempt",
    "ReplayCancelled",
    "ReplayChunk",
    "ReplayError",
    "ReplayFailure",
    "ReplayModel",
    "ReplayServer",
    "Report",
    "Reset",
    "Row",
    "RowError",
    "RowIssue",
    "ScanResult",
    "SeqGapError",
    "Session",
    "SessionLockedError",
    "Sidecar",
    "SidecarError",
    "Split",
    "Stream",
    "StreamColumns",
    "StreamError",
    "StreamFault",
    "Summary",
    "Superseded",
    "TimedChunk",
    "UnknownChunkError",
    "UnsupportedError",
    "Writer",
    "assemble",
    "backend",
    "calls",
    "check",
    "check_many",
    "decode_segment",
    "default_root",
    "dump",
    "encode_segment",
    "expand",
    "find",
    "follow",
    "html_report",
    "iter_expand",
    "join",
    "join_to",
    "kernel",
    "live",
    "load_updates",
    "log_filename",
    "log_path",
    "messages",
    "migrate",
    "open",
    "pack",
    "parse",
    "parse_log_filename",
    "plan_repair",
    "project_key",
    "repack",
    "repair",
    "salvage",
    "search",
    "split",
    "split_to",
    "state",
    "stream_columns",
    "summarize",
    "surface",
    "text",
    "timing",
    "usage",
]

_HOMES = {
    "_types": (
        "AttemptColumns",
        "ChunkKind",
        "FileScan",
        "FrameScan",
        "Header",
        "Row",
        "RowIssue",
        "ScanResult",
        "StreamColumns",
        "StreamFault",
        "TimedChunk",
    ),
    "attempts": ("Attempt",),
    "calls": (
        "Call",
        "calls",
    ),
    "check": (
        "check",
        "check_many",
    ),
    "errors": (
        "CorruptLogError",
        "DshCodecError",
        "FrameError",
        "HeaderError",
        "IdentityError",
        "JsonSyntaxError",
        "LayoutError",
        "LimitExceededError",
        "MigrationRefusedError",
        "NewerFormatError",
        "ReplayError",
        "RowError",
        "SeqGapError",
        "SessionLockedError",
        "SidecarError",
        "StreamError",
        "UnknownChunkError",
        "UnsupportedError",
    ),
    "find": (
        "Session",
        "default_root",
        "find",
    ),
    "log": (
        "Log",
        "open",
    ),
    "messages": (
        "messages",
        "state",
        "surface",
    ),
    "migrate": (
        "ChildEvidence",
        "Migration",
        "migrate",
    ),
    "names": (
        "decode_segment",
        "encode_segment",
        "log_filename",
        "log_path",
        "parse_log_filename",
        "project_key",
    ),
    "prices": ("PriceTable",),
    "report": (
        "Finding",
        "Report",
    ),
    "row": ("Event",),
    "stream": (
        "Assembled",
        "Stream",
        "assemble",
    ),
    "summary": (
        "Summary",
        "summarize",
    ),
    "text": (
        "search",
        "text",
    ),
    "timing": ("timing",),
    "usage": ("usage",),
    "writer": ("Writer",),
    "async_writer": ("AsyncWriter",),
    "repair": (
        "RepairPlan",
        "plan_repair",
        "repair",
        "salvage",
    ),
    "repack": (
        "Repacked",
        "repack",
    ),
    "html_report": ("html_report",),
    "load": ("load_updates",),
    "replay": (
        "Recorded",
        "ReplayAttempt",
        "ReplayCancelled",
        "ReplayChunk",
        "ReplayFailure",
        "ReplayModel",
    ),
    "replay_server": ("ReplayServer",),
    "sidecar": (
        "Split",
        "join",
        "split",
    ),
    "sidecar_file": ("Sidecar",),
    "sidecar_publish": (
        "join_to",
        "split_to",
    ),
    "follow": (
        "Cursor",
        "Follow",
        "Reset",
        "Superseded",
        "follow",
    ),
}
"""Modules with the public names that are imported from them when somebody asks."""

_SUBMODULES = ("live", "table")
"""Public submodules that `import dsh_codec` alone is enough for."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


class _Package(ModuleType):
    """This package: public names are found on first use, to keep the import short."""

    def __getattr__(self, name: str) -> object:
        """Import a public name, or say that there is none."""
        from importlib import import_module

        if name in _SUBMODULES:
            return import_module(f"{self.__name__}.{name}")
        home = _HOME_OF.get(name)
        if home is None:
            message = f"module {self.__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(import_module(f"{self.__name__}.{home}"), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        """Keep a submodule, which its import binds here, from hiding a function."""
        if name not in _HOME_OF or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """Return the public names."""
        return sorted({*self.__dict__, *__all__})


sys.modules[__name__].__class__ = _Package
