//! Text in the spelling that the harness gives it, read from front to back: what differs in a byte is not read.

use std::ops::Range;

use super::blocks::Blocks;
use super::reader::{Literal, read_number, read_string};
use super::sink::Span;

/// A place in some bytes. Every method says None and may have moved where something else stands than it wants.
pub(crate) struct Cursor<'b, B> {
    pub(crate) blocks: B,
    pub(crate) bytes: &'b [u8],
    pub(crate) at: usize,
}

impl<B: Blocks> Cursor<'_, B> {
    /// These bytes.
    #[inline(always)]
    pub(crate) fn literal(&mut self, literal: &[u8]) -> Option<()> {
        let rest = self.bytes.get(self.at..)?;
        if !rest.starts_with(literal) {
            return None;
        }
        self.at += literal.len();
        Some(())
    }

    /// An integer of at most 15 digits that is not −0.
    #[inline(always)]
    pub(crate) fn integer(&mut self) -> Option<i64> {
        let Ok((Literal::Integer(value), end)) = read_number(self.bytes, self.at) else {
            return None;
        };
        self.at = end;
        Some(value)
    }

    /// The inside of a string and its closing quote.
    #[inline(always)]
    pub(crate) fn span(&mut self) -> Option<Span> {
        let span = read_string(self.blocks, self.bytes, self.at).ok()?;
        self.at = span.end + 1;
        Some(span)
    }

    /// The inside of a string and its closing quote. Gives the whole literal.
    #[inline(always)]
    pub(crate) fn string(&mut self) -> Option<Range<usize>> {
        let start = self.at.checked_sub(1)?;
        self.span()?;
        Some(start..self.at)
    }
}
