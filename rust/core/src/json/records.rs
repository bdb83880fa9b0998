//! Streams of records as the harness spells them, checked and counted without a tape. Spec 20 §2, §4.
//!
//! Most bytes of a log are in streams, most records are short, and a scan asks for nothing but their number and whether
//! they are valid. What is not certainly valid is left to the reader of any JSON and to the check of its tape. The
//! benchmark `bench_check` shows what it pays.

use std::ops::Range;

use super::arrays::{integer_array, string_array};
use super::blocks::{Blocks, Task};
use super::cursor::Cursor;
use super::reader::{Open, read_value};
use super::sink::{Flow, IntegerShape, Sink, Span, Stopped};
use super::tape::may_be_retired;

/// A whole stream of valid records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Records {
    /// Byte behind the array.
    pub(crate) end: usize,
    /// Records.
    pub(crate) count: u32,
    /// Chunks that they stand for.
    pub(crate) chunks: u32,
    /// Bytes of the last chunks of some types.
    pub(super) noted: Noted,
    /// As [`Tape::may_be_retired`](super::Tape::may_be_retired), of what is inside.
    pub(crate) may_be_retired: bool,
}

/// The chunks of a stream from which the row of a call is made; empty if there is none. Spec 80 §3, §4 U1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    /// The last one of type `usage`.
    pub(super) usage: Range<usize>,
    /// The last one of type `finish`.
    pub(super) finish: Range<usize>,
}

/// Reads the array at `start`; None if it is anything else than valid records in the expected spelling.
pub(super) struct ReadRecords<'t, 'b> {
    pub(super) bytes: &'b [u8],
    pub(super) start: usize,
    /// Arrays and objects that may be nested in a record, at least one.
    pub(super) max_depth: usize,
    /// Scratch space.
    pub(super) open: &'t mut Vec<Open>,
}

impl Task for ReadRecords<'_, '_> {
    type Output = Option<Records>;

    #[inline(always)]
    fn run<B: Blocks>(self, blocks: B) -> Self::Output {
        let mut reader = Reader {
            cursor: Cursor {
                blocks,
                bytes: self.bytes,
                at: self.start + 1,
            },
            max_depth: self.max_depth,
            open: self.open,
            values: Values::default(),
            noted: Noted::default(),
        };
        let (mut count, mut chunks) = (0u32, 0u32);
        loop {
            chunks = chunks.checked_add(reader.record()?)?;
            count = count.checked_add(1)?;
            if reader.cursor.literal(b",").is_none() {
                break;
            }
        }
        reader.cursor.literal(b"]")?;
        Some(Records {
            end: reader.cursor.at,
            count,
            chunks,
            noted: reader.noted,
            may_be_retired: reader.values.may_be_retired,
        })
    }
}

struct Reader<'t, 'b, B> {
    cursor: Cursor<'b, B>,
    max_depth: usize,
    open: &'t mut Vec<Open>,
    values: Values,
    noted: Noted,
}

impl<B: Blocks> Reader<'_, '_, B> {
    /// The chunks that the next record stands for.
    #[inline(always)]
    fn record(&mut self) -> Option<u32> {
        let cursor = &mut self.cursor;
        cursor.literal(b"{\"type\":\"")?;
        if cursor.literal(b"chunk\",\"time\":").is_some() {
            cursor.integer()?;
            cursor.literal(b",\"chunk\":")?;
            self.chunk()?;
            self.cursor.literal(b"}")?;
            return Some(1);
        }
        let is_text = cursor.literal(b"text-chunks\",\"time0\":").is_some()
            || cursor.literal(b"reasoning-chunks\",\"time0\":").is_some();
        if !is_text {
            cursor.literal(b"tool-call-chunks\",\"time0\":")?;
        }
        let time0 = cursor.integer()?;
        cursor.literal(b",\"index\":")?;
        u64::try_from(cursor.integer()?).ok()?;
        cursor.literal(b",\"dt\":[")?;
        let mut gaps = 0;
        if cursor.literal(b"]").is_none() {
            let (end, shape) = integer_array::<B, true>(cursor.blocks, cursor.bytes, cursor.at).ok()??;
            cursor.at = end;
            gaps = shape.count;
            if !shape.keeps_safe(time0) {
                return None;
            }
        }
        if is_text {
            cursor.literal(b",\"texts\":[")?;
        } else {
            cursor.literal(b",\"id\":\"")?;
            self.nonempty_string()?;
            if self.cursor.literal(b",\"name\":\"").is_some() {
                self.nonempty_string()?;
            }
            self.cursor.literal(b",\"args\":[")?;
        }
        let cursor = &mut self.cursor;
        let (end, members, _) = string_array::<B, true>(cursor.blocks, cursor.bytes, cursor.at).ok()??;
        cursor.at = end;
        cursor.literal(b"}")?;
        u32::try_from(members).ok().filter(|_| members == gaps + 1)
    }

    #[inline(always)]
    fn string(&mut self) -> Option<Span> {
        let span = self.cursor.span()?;
        let raw = self.cursor.bytes.get(span.start..span.end)?;
        self.values.may_be_retired |= may_be_retired(span, raw);
        Some(span)
    }

    #[inline(always)]
    fn nonempty_string(&mut self) -> Option<()> {
        let span = self.string()?;
        (span.start < span.end).then_some(())
    }

    /// A lossless object.
    #[inline(always)]
    fn chunk(&mut self) -> Option<()> {
        let start = self.cursor.at;
        if self.block_start().is_some() {
            return Some(());
        }
        if self.cursor.bytes.get(start) != Some(&b'{') {
            return None;
        }
        let Cursor { blocks, bytes, at } = &mut self.cursor;
        let end =
            read_value::<B, _, true>(*blocks, bytes, start, &mut self.values, self.open, self.max_depth);
        *at = end.ok()?;
        match self.values.chunk_type.take() {
            Some(ChunkType::Usage) => self.noted.usage = start..*at,
            Some(ChunkType::Finish) => self.noted.finish = start..*at,
            None => {}
        }
        Some(())
    }

    #[inline(always)]
    fn block_start(&mut self) -> Option<()> {
        self.cursor.literal(b"{\"type\":\"block-start\",\"index\":")?;
        self.cursor.integer()?;
        self.cursor.literal(b",\"blockType\":\"")?;
        self.string()?;
        self.cursor.literal(b"}")
    }
}

/// Types of chunks that are noted.
#[derive(Clone, Copy)]
enum ChunkType {
    Usage,
    Finish,
}

/// Takes values that are surely lossless: no number but integers other than −0. Spec 10 §1.2.
#[derive(Default)]
struct Values {
    may_be_retired: bool,
    /// Open arrays and objects.
    depth: usize,
    /// Whether the innermost member of the chunk itself is `type`.
    is_type: bool,
    /// What the last `type` of the chunk says.
    chunk_type: Option<ChunkType>,
}

impl Sink for Values {
    const PACKED: bool = true;

    #[inline(always)]
    fn null(&mut self, _at: usize) -> Flow {
        Ok(())
    }

    #[inline(always)]
    fn boolean(&mut self, _value: bool, _at: usize) -> Flow {
        Ok(())
    }

    #[inline(always)]
    fn integer(&mut self, _value: i64, _at: usize) -> Flow {
        Ok(())
    }

    #[inline(always)]
    fn number(&mut self, _start: usize, _end: usize) -> Flow {
        Err(Stopped)
    }

    #[inline(always)]
    fn string(&mut self, span: Span, raw: &[u8]) -> Flow {
        self.may_be_retired |= may_be_retired(span, raw);
        if self.depth == 1 && self.is_type {
            self.chunk_type = match raw {
                b"usage" => Some(ChunkType::Usage),
                b"finish" => Some(ChunkType::Finish),
                _ if span.escaped => return Err(Stopped),
                _ => None,
            };
        }
        Ok(())
    }

    #[inline(always)]
    fn key(&mut self, span: Span, raw: &[u8]) -> Flow {
        if self.depth == 1 {
            if span.escaped {
                return Err(Stopped);
            }
            self.is_type = raw == b"type";
            if self.is_type {
                self.chunk_type = None;
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn begin_array(&mut self, _at: usize) -> Flow {
        self.depth += 1;
        Ok(())
    }

    #[inline(always)]
    fn end_array(&mut self, _end: usize) -> Flow {
        self.depth -= 1;
        Ok(())
    }

    #[inline(always)]
    fn begin_object(&mut self, _at: usize) -> Flow {
        self.depth += 1;
        Ok(())
    }

    #[inline(always)]
    fn end_object(&mut self, _end: usize) -> Flow {
        self.depth -= 1;
        Ok(())
    }

    #[inline(always)]
    fn string_array(&mut self, _start: usize, _end: usize, _count: usize, _is_compact: bool) -> Flow {
        Ok(())
    }

    #[inline(always)]
    fn integer_array(&mut self, _start: usize, _end: usize, shape: IntegerShape) -> Flow {
        if shape.negative_zero { Err(Stopped) } else { Ok(()) }
    }
}
