//! Lines and envelopes: header, event rows, packed rows, and the scan over all of them. Spec 10 §4 to §6, §8.

mod admission;
mod envelope;
mod header;
mod packed;
mod scanner;
mod seq_ranges;
mod third;

pub use envelope::{Envelope, admit_event, encode_event};
pub use header::{CURRENT_GENERATION, Header, parse_header};
pub use scanner::{Issue, Mode, Row, RowScanner, ScanOptions, ScanResult, StreamFault, Totals};
pub use seq_ranges::{SeqCodec, decode_seqs, encode_seqs};
