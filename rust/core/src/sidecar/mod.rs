//! Assembled logs and replay sidecars: the streams of a log moved beside it and back, while its rows are scanned.
//! Spec 60 §5 to §7.

mod attempt;
mod digest;
mod join;
mod sha256;
mod split;

pub use attempt::Causes;
pub use join::{JoinScanner, NextRow};
pub use split::SplitScanner;

use crate::error::Result;
use crate::json::{CanonicalWriter, Tape, has_canonical_strings};
use crate::stream::parse_row;

/// Appends the canonical text of one JSON text by RFC 8785. Spec 60 §6.4.
///
/// # Errors
/// `Syntax`: the text is not JSON. `Limit`: it nests deeper than `max_depth`.
pub fn canonicalize(text: &[u8], max_depth: usize, out: &mut Vec<u8>) -> Result<()> {
    let mut tape = Tape::new();
    let node = parse_row(&mut tape, text, max_depth)?;
    CanonicalWriter::default().write(node, has_canonical_strings(text), out);
    Ok(())
}

/// Bytes that a buffer keeps between calls.
const KEPT_BYTES: usize = 1 << 21;

/// Empties a buffer, and gives back the memory that one long row took.
fn empty(buffer: &mut Vec<u8>) {
    if buffer.capacity() > KEPT_BYTES {
        *buffer = Vec::new();
    }
    buffer.clear();
}
