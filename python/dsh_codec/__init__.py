"""Exact, fast codec for the session logs of the DeepSeek Harness."""

from __future__ import annotations

from dsh_codec._backend import backend, kernel
from dsh_codec._types import (
    FileScan,
    FrameScan,
    Header,
    Row,
    RowIssue,
    ScanResult,
    StreamFault,
    TimedChunk,
)
from dsh_codec.attempts import Attempt
from dsh_codec.check import check
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
from dsh_codec.find import Session, find
from dsh_codec.log import Log, open  # noqa: A004 - the name that users see is dsh_codec.open
from dsh_codec.names import (
    decode_segment,
    encode_segment,
    log_filename,
    log_path,
    parse_log_filename,
    project_key,
)
from dsh_codec.report import Finding, Report, Summary, summarize
from dsh_codec.row import Event
from dsh_codec.stream import Assembled, Stream, assemble

Assembler = kernel.Assembler
Packer = kernel.Packer
dump = kernel.dump
expand = kernel.expand
iter_expand = kernel.iter_expand
pack = kernel.pack
parse = kernel.parse

__version__ = "0.1.0"
__all__ = [
    "Assembled",
    "Assembler",
    "Attempt",
    "CorruptLogError",
    "DshCodecError",
    "Event",
    "FileScan",
    "Finding",
    "FrameError",
    "FrameScan",
    "Header",
    "HeaderError",
    "IdentityError",
    "JsonSyntaxError",
    "LayoutError",
    "LimitExceededError",
    "Log",
    "MigrationRefusedError",
    "NewerFormatError",
    "Packer",
    "ReplayError",
    "Report",
    "Row",
    "RowError",
    "RowIssue",
    "ScanResult",
    "SeqGapError",
    "Session",
    "SessionLockedError",
    "SidecarError",
    "Stream",
    "StreamError",
    "StreamFault",
    "Summary",
    "TimedChunk",
    "UnknownChunkError",
    "UnsupportedError",
    "assemble",
    "backend",
    "check",
    "decode_segment",
    "dump",
    "encode_segment",
    "expand",
    "find",
    "iter_expand",
    "kernel",
    "log_filename",
    "log_path",
    "open",
    "pack",
    "parse",
    "parse_log_filename",
    "project_key",
    "summarize",
]
