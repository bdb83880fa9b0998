//! Chunk rows of generations 0 and 1 in the spelling that the harness gives them, without a tape.
//!
//! A log of these generations is mostly such rows, of some 150 bytes each, and reading one as any JSON costs several
//! times the look at its bytes (`bench_check`, group v0). Whatever differs in a byte from the expected spelling is left
//! to the reader of all rows.
#![allow(
    clippy::inline_always,
    reason = "one straight line of code, compiled for each instruction set"
)]

use crate::json::{BlockTask, Blocks, Node, read_integer, read_string_end, run_blocks};

/// A chunk row that was recognised: a whole line that is an event of type `assistant/chunk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkRow {
    /// `seq`
    pub(crate) seq: u64,
    /// `time` in milliseconds.
    pub(crate) time: i64,
    /// Bytes of the line, line feed included.
    pub(crate) len: usize,
}

impl ChunkRow {
    /// The type of the event in the bytes of the row.
    pub(crate) fn event_type(bytes: &[u8]) -> Node<'_> {
        Node::of_text(bytes, 9, 24)
    }
}

/// Recognises the line at the start of some bytes.
#[inline]
pub(crate) fn chunk_row(bytes: &[u8]) -> Option<ChunkRow> {
    struct Recognise<'b>(&'b [u8]);
    impl BlockTask for Recognise<'_> {
        type Output = Option<ChunkRow>;
        #[inline(always)]
        fn run<B: Blocks>(self, blocks: B) -> Self::Output {
            Cursor {
                blocks,
                bytes: self.0,
                at: 0,
            }
            .chunk_row()
        }
    }
    // One look tells most rows of other types apart.
    bytes
        .starts_with(START)
        .then(|| run_blocks(Recognise(bytes)))
        .flatten()
}

const START: &[u8] = b"{\"type\":\"assistant/chunk\",\"seq\":";

struct Cursor<'b, B> {
    blocks: B,
    bytes: &'b [u8],
    at: usize,
}

impl<B: Blocks> Cursor<'_, B> {
    #[inline(always)]
    fn literal(&mut self, literal: &[u8]) -> Option<()> {
        let rest = self.bytes.get(self.at..)?;
        if !rest.starts_with(literal) {
            return None;
        }
        self.at += literal.len();
        Some(())
    }

    /// An integer of at most 15 digits that is not −0.
    #[inline(always)]
    fn integer(&mut self) -> Option<i64> {
        let (value, end) = read_integer(self.bytes, self.at)?;
        self.at = end;
        Some(value)
    }

    /// The inside of a string and its closing quote.
    #[inline(always)]
    fn string(&mut self) -> Option<()> {
        self.at = read_string_end(self.blocks, self.bytes, self.at)? + 1;
        Some(())
    }

    #[inline(always)]
    fn chunk_row(mut self) -> Option<ChunkRow> {
        self.literal(START)?;
        let seq = u64::try_from(self.integer()?).ok()?;
        self.literal(b",\"time\":")?;
        let time = self.integer()?;
        self.literal(b",\"data\":{\"turn\":")?;
        self.integer()?;
        self.literal(b",\"step\":")?;
        self.integer()?;
        self.literal(b",\"chunk\":{\"type\":\"")?;
        if self
            .literal(b"text-delta\",\"index\":")
            .or_else(|| self.literal(b"reasoning-delta\",\"index\":"))
            .is_some()
        {
            self.integer()?;
            self.literal(b",\"text\":\"")?;
        } else {
            self.literal(b"tool-call-delta\",\"index\":")?;
            self.integer()?;
            self.literal(b",\"id\":\"")?;
            self.string()?;
            if self.literal(b",\"name\":\"").is_some() {
                self.string()?;
            }
            self.literal(b",\"argumentsDelta\":\"")?;
        }
        self.string()?;
        self.literal(b"}}}\n")?;
        Some(ChunkRow {
            seq,
            time,
            len: self.at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "{\"type\":\"assistant/chunk\",\"seq\":7,\"time\":-5,\"data\":{\"turn\":1,\"step\":2,\"chunk\":{\"type\":\"text-delta\",\"index\":0,\"text\":\"a\\\"}}}\"}}}\n";

    #[test]
    fn the_spelling_of_the_harness_is_recognised() {
        assert_eq!(
            chunk_row(ROW.as_bytes()),
            Some(ChunkRow {
                seq: 7,
                time: -5,
                len: ROW.len()
            })
        );
        assert!(ChunkRow::event_type(ROW.as_bytes()).text_is("assistant/chunk"));
        let tool = ROW
            .replace("text-delta", "tool-call-delta")
            .replace("\"text\":", "\"id\":\"c\",\"name\":\"\",\"argumentsDelta\":");
        assert_eq!(chunk_row(tool.as_bytes()).map(|row| row.len), Some(tool.len()));
    }

    #[test]
    fn whatever_differs_is_left_alone() {
        for cut in 0..ROW.len() {
            assert_eq!(chunk_row(&ROW.as_bytes()[..cut]), None);
            let mut changed = ROW.as_bytes().to_vec();
            changed[cut] = b'\n';
            if changed != ROW.as_bytes() {
                assert_eq!(chunk_row(&changed), None, "{cut}");
            }
        }
        for other in [
            ROW.replace(":7,", ":-0,"),
            ROW.replace(":7,", ":7.0,"),
            ROW.replace(":7,", ": 7,"),
            ROW.replace(":7,", ":07,"),
        ] {
            assert_eq!(chunk_row(other.as_bytes()), None, "{other}");
        }
    }
}
