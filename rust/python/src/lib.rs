//! The extension module `dsh_codec._native`: bindings of the core, and nothing about the format.
#![deny(unsafe_code)] // allowed in pystring.rs, pybuild.rs, view.rs and for its doors in quick_write.rs

mod attempt_text;
mod buffer;
mod bulk;
mod calls;
mod columns;
mod encode;
mod errors;
mod frame;
mod frame_writer;
mod header;
mod json;
mod object;
mod owned;
mod packed_text;
mod pybuild;
mod pystring;
mod pyvalue;
mod quick_write;
mod row;
mod runs;
mod settlement;
mod sidecar;
mod small_int;
mod stream;
mod view;
mod write;

use pyo3::prelude::*;

/// The native kernel. Its interface is `dsh_codec._kernel`.
#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use super::attempt_text::{expand_lines, pack_lines};
    #[pymodule_export]
    use super::bulk::{check_bytes, check_file, check_many};
    #[pymodule_export]
    use super::calls::{CallReader, CallScanner};
    #[pymodule_export]
    use super::columns::{ColumnScanner, StoredStream, derive_columns, row_columns, stream_columns};
    #[pymodule_export]
    use super::encode::{encode_events, encode_rows};
    #[pymodule_export]
    use super::frame::{FrameReader, FrameScanner, encode_frame, recover_tail, scan_frames};
    #[pymodule_export]
    use super::frame_writer::FrameWriter;
    #[pymodule_export]
    use super::header::parse_header;
    #[pymodule_export]
    use super::json::{dump, parse};
    #[pymodule_export]
    use super::row::{RowScanner, admit, decode_seqs, encode_event, encode_seqs};
    #[pymodule_export]
    use super::runs::{RunScanner, pack_runs};
    #[pymodule_export]
    use super::sidecar::{JoinScanner, SplitScanner, canonicalize};
    #[pymodule_export]
    use super::stream::{
        Assembler, Packer, chunk_has_visible_text, chunks_of, expand, first_token_time, has_visible_content,
        has_visible_text, is_token_delta, is_visible_chunk, iter_expand, join_text, last_chunk, pack,
        run_first_token_time, run_first_visible_time,
    };
}
