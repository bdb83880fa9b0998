//! The JSON model of spec 10 §1.
#![allow(
    clippy::inline_always,
    reason = "the reader, its blocks and its sinks are one loop, compiled for each instruction set; bench_check"
)]

mod arrays;
mod blocks;
mod canonical;
mod cursor;
mod lazy;
pub mod number;
mod reader;
mod records;
mod room;
mod sink;
mod skip;
mod spell;
mod tape;
pub mod text;
mod unpack;
mod writer;

pub(crate) use blocks::{Blocks, Task as BlockTask, dispatch as run_blocks};
pub use canonical::Sink as CanonicalSink;
pub(crate) use canonical::has_canonical_strings;
pub(crate) use cursor::Cursor;
pub use reader::{Fault, FaultKind};
pub(crate) use records::Places as RecordPlaces;
pub use room::{Room, SHORT_ROOM, put_short_ascii};
pub use sink::{Flow, IntegerShape, Sink, Span, Stopped, StringShape};
pub(crate) use skip::{Nesting, Skipped, skip_records, skip_spelled_records, skip_spelled_value, skip_value};
pub(crate) use spell::{is_canonical, push_literal};
pub(crate) use tape::Shelf;
pub use tape::{CanonicalWriter, Elements, Kind, Members, Node, Tape, is_retired};
pub use writer::{order_keys, write_node};

use reader::{Open, read_value, skip_space};

/// Parses one JSON text into any sink.
///
/// # Errors
/// A [`Fault`] where the text stops to be JSON, nests deeper than `max_depth`, or the sink stops.
pub fn parse<S: Sink>(bytes: &[u8], sink: &mut S, max_depth: usize) -> Result<(), Fault> {
    struct Parse<'s, 'b, S>(&'b [u8], &'s mut S, usize);
    impl<S: Sink> BlockTask for Parse<'_, '_, S> {
        type Output = Result<usize, Fault>;
        #[inline(always)]
        fn run<B: Blocks>(self, blocks: B) -> Self::Output {
            let mut open: Vec<Open> = Vec::new();
            read_value::<B, S, false>(blocks, self.0, 0, self.1, &mut open, self.2)
        }
    }
    let end = run_blocks(Parse(bytes, sink, max_depth))?;
    let end = skip_space::<false>(bytes, end);
    if end < bytes.len() {
        Err(Fault::unexpected(end, "the end of the text"))
    } else {
        Ok(())
    }
}
