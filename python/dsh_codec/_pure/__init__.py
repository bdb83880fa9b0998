"""The kernel in Python: the reference beside the spec. Interface: `_kernel.pyi`."""

from dsh_codec._pure.admission import admit
from dsh_codec._pure.attempt_text import expand_lines, pack_lines
from dsh_codec._pure.bulk import check_bytes, check_file, check_many
from dsh_codec._pure.calls import CallReader, CallScanner
from dsh_codec._pure.canonical import canonicalize
from dsh_codec._pure.columns import (
    ColumnScanner,
    StoredStream,
    derive_columns,
    row_columns,
    stream_columns,
)
from dsh_codec._pure.encode import encode_events, encode_rows
from dsh_codec._pure.frame import (
    FrameReader,
    FrameScanner,
    FrameWriter,
    encode_frame,
    recover_tail,
    scan_frames,
)
from dsh_codec._pure.header import parse_header
from dsh_codec._pure.json import dump, parse
from dsh_codec._pure.row import RowScanner, encode_event
from dsh_codec._pure.runs import RunScanner, pack_runs
from dsh_codec._pure.seqs import decode_seqs, encode_seqs
from dsh_codec._pure.sidecar import JoinScanner, SplitScanner
from dsh_codec._pure.stream import (
    Assembler,
    Packer,
    chunk_has_visible_text,
    chunks_of,
    expand,
    first_token_time,
    has_visible_content,
    has_visible_text,
    is_token_delta,
    is_visible_chunk,
    iter_expand,
    join_text,
    last_chunk,
    pack,
    run_first_token_time,
    run_first_visible_time,
)

__all__ = [
    "Assembler",
    "CallReader",
    "CallScanner",
    "ColumnScanner",
    "FrameReader",
    "FrameScanner",
    "FrameWriter",
    "JoinScanner",
    "Packer",
    "RowScanner",
    "RunScanner",
    "SplitScanner",
    "StoredStream",
    "admit",
    "canonicalize",
    "check_bytes",
    "check_file",
    "check_many",
    "chunk_has_visible_text",
    "chunks_of",
    "decode_seqs",
    "derive_columns",
    "dump",
    "encode_event",
    "encode_events",
    "encode_frame",
    "encode_rows",
    "encode_seqs",
    "expand",
    "expand_lines",
    "first_token_time",
    "has_visible_content",
    "has_visible_text",
    "is_token_delta",
    "is_visible_chunk",
    "iter_expand",
    "join_text",
    "last_chunk",
    "pack",
    "pack_lines",
    "pack_runs",
    "parse",
    "parse_header",
    "recover_tail",
    "row_columns",
    "run_first_token_time",
    "run_first_visible_time",
    "scan_frames",
    "stream_columns",
]
