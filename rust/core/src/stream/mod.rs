//! Embedded assistant streams: records, timed chunks, readers, blocks. Spec 20.
//!
//! Every rule is here once, for every kind of [`Value`].

mod assemble;
mod attempt_text;
mod block;
mod chunk;
mod column_scanner;
mod columns;
mod common;
mod derived;
mod expand;
mod pack;
mod readers;
mod record;
mod runs;
mod stored;
mod value;

pub use assemble::{Assembler, Block, CallId, DEFAULT_FINISH, ReplayState};
pub use attempt_text::{StreamText, expand_lines, pack_lines, pack_runs};
pub use chunk::{ChunkType, RunKind};
pub use column_scanner::{ColumnScanner, KeptValue, Settlement};
pub use columns::{Columns, ColumnsBuilder, NO_INDEX, Unpack, kind};
pub use common::CommonRow;
pub use derived::{ChunkBits, ChunkMarks, ColumnSlices, DerivedColumns, OfAttempts};
pub use expand::expand_to_json;
pub use pack::{Packed, PackedRun, Packer};
pub use readers::{
    chunk_has_visible_text, chunks_of, first_token_time, has_visible_content, has_visible_text,
    is_token_delta, is_visible_chunk, last_chunk, run_first_token_time, run_first_visible_time,
    text_fragments,
};
pub use record::{
    Record, RecordFault, Run, StreamCounts, check_stream, records, validate_nth, validate_record,
};
pub use runs::{ChunkRun, RunScanner, Unit};
pub use stored::{StoredStream, row_columns};

pub(crate) use block::{BlockIndex, BlockType};
pub(crate) use stored::parse_row;
pub use value::{Value, Word};
