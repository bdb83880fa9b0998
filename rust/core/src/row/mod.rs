//! Lines and envelopes: header, event rows, packed rows, and the scan over all of them. Spec 10 §4 to §6, §8.

mod admission;
mod batch;
mod envelope;
mod header;
mod notes;
mod packed;
mod quick;
mod quick_event;
mod scanner;
mod seq_ranges;
mod third;

pub use admission::Admission;
pub(crate) use admission::canonical_number;
pub use batch::{Batch, BatchRoom, admit_line, check_rows};
pub use envelope::{Envelope, admit_event, encode_event, show};
pub use header::{CURRENT_GENERATION, Header, parse_header};
pub use scanner::{Accept, Issue, Mode, Row, RowScanner, ScanOptions, ScanResult, StreamFault, Totals};
pub(crate) use scanner::{Part, Unseen};
pub use seq_ranges::{SeqCodec, decode_seqs, encode_seqs};

pub(crate) use notes::{NotedResult, NotedRow, StreamNotes, StreamPart, Wanted};
pub(crate) use packed::{decode as decode_packed, last_time as last_packed_time};
pub(crate) use quick::{Delta, DeltaKind, delta_of};
