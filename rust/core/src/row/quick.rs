//! Chunk rows of generations 0 and 1 in the spelling that the harness gives them, without a tape.
//!
//! A log of these generations is mostly such rows, of some 150 bytes each, and reading one as any JSON costs several
//! times the look at its bytes (`bench_check`, group v0). Whatever differs in a byte from the expected spelling is left
//! to the reader of all rows.
#![allow(
    clippy::inline_always,
    reason = "one straight line of code, compiled for each instruction set"
)]

use std::ops::Range;

use crate::json::{BlockTask, Blocks, Cursor, Node, run_blocks};

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

/// The chunk in a row that was recognised; ranges are bytes of the row, string literals with their quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delta {
    /// `seq`
    pub(crate) seq: u64,
    /// `time` in milliseconds.
    pub(crate) time: i64,
    /// `turn`, which may be negative.
    pub(crate) turn: i64,
    /// `step`, which may be negative.
    pub(crate) step: i64,
    /// `type`
    pub(crate) kind: DeltaKind,
    /// `index`, which may be negative.
    pub(crate) index: i64,
    /// `id` of a tool-call delta.
    pub(crate) id: Option<Range<usize>>,
    /// `name` of a tool-call delta that has one.
    pub(crate) name: Option<Range<usize>>,
    /// `text` or `argumentsDelta`
    pub(crate) fragment: Range<usize>,
}

/// Type of a [`Delta`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeltaKind {
    /// `text-delta`
    Text,
    /// `reasoning-delta`
    Reasoning,
    /// `tool-call-delta`
    ToolCall,
}

/// Recognises a chunk row, given without its line feed.
#[inline]
pub(crate) fn delta_of(row: &[u8]) -> Option<Delta> {
    struct Read<'b>(&'b [u8]);
    impl BlockTask for Read<'_> {
        type Output = Option<Delta>;
        #[inline(always)]
        fn run<B: Blocks>(self, blocks: B) -> Self::Output {
            let mut cursor = Cursor {
                blocks,
                bytes: self.0,
                at: 0,
            };
            let delta = cursor.delta()?;
            (cursor.at == self.0.len()).then_some(delta)
        }
    }
    row.starts_with(START).then(|| run_blocks(Read(row))).flatten()
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

/// Nested objects in such a row.
pub(crate) const DEPTH: u32 = 3;

const START: &[u8] = b"{\"type\":\"assistant/chunk\",\"seq\":";

impl<B: Blocks> Cursor<'_, B> {
    #[inline(always)]
    fn chunk_row(mut self) -> Option<ChunkRow> {
        let Delta { seq, time, .. } = self.delta()?;
        self.literal(b"\n")?;
        Some(ChunkRow {
            seq,
            time,
            len: self.at,
        })
    }

    /// All of the row but its line feed.
    #[inline(always)]
    fn delta(&mut self) -> Option<Delta> {
        self.literal(START)?;
        let seq = u64::try_from(self.integer()?).ok()?;
        self.literal(b",\"time\":")?;
        let time = self.integer()?;
        self.literal(b",\"data\":{\"turn\":")?;
        let turn = self.integer()?;
        self.literal(b",\"step\":")?;
        let step = self.integer()?;
        self.literal(b",\"chunk\":{\"type\":\"")?;
        let (mut id, mut name) = (None, None);
        let (kind, index);
        if self.literal(b"text-delta\",\"index\":").is_some() {
            kind = DeltaKind::Text;
            index = self.integer()?;
            self.literal(b",\"text\":\"")?;
        } else if self.literal(b"reasoning-delta\",\"index\":").is_some() {
            kind = DeltaKind::Reasoning;
            index = self.integer()?;
            self.literal(b",\"text\":\"")?;
        } else {
            kind = DeltaKind::ToolCall;
            self.literal(b"tool-call-delta\",\"index\":")?;
            index = self.integer()?;
            self.literal(b",\"id\":\"")?;
            id = Some(self.string()?);
            if self.literal(b",\"name\":\"").is_some() {
                name = Some(self.string()?);
            }
            self.literal(b",\"argumentsDelta\":\"")?;
        }
        let fragment = self.string()?;
        self.literal(b"}}}")?;
        Some(Delta {
            seq,
            time,
            turn,
            step,
            kind,
            index,
            id,
            name,
            fragment,
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
    fn a_recognised_row_gives_its_chunk() {
        let row = ROW.trim_end().as_bytes();
        let delta = delta_of(row).unwrap();
        assert_eq!((delta.seq, delta.time, delta.index), (7, -5, 0));
        assert_eq!((delta.turn, delta.step), (1, 2));
        assert_eq!(
            (delta.kind, &delta.id, &delta.name),
            (DeltaKind::Text, &None, &None)
        );
        assert_eq!(&row[delta.fragment], br#""a\"}}}""#);
        assert_eq!(delta_of(ROW.as_bytes()), None);
        let tool = ROW
            .trim_end()
            .replace("text-delta", "tool-call-delta")
            .replace("\"text\":", "\"id\":\"c\",\"name\":\"\",\"argumentsDelta\":");
        let delta = delta_of(tool.as_bytes()).unwrap();
        assert_eq!(delta.kind, DeltaKind::ToolCall);
        assert_eq!(delta.id.and_then(|id| tool.get(id)), Some("\"c\""));
        assert_eq!(delta.name.and_then(|name| tool.get(name)), Some("\"\""));
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
