//! Streams of records as the harness spells them, checked and counted without a tape. Spec 20 §2, §4.
//!
//! Most bytes of a log are in streams, most records are short, and a scan asks for nothing but their number and whether
//! they are valid; who appends them asks in addition whether every byte is as the writer spells it. What is not
//! certainly so is left to the reader of any JSON and to the check of its tape. The benchmarks `bench_check` and
//! `bench_append` show what it pays.

use std::ops::Range;

use super::arrays::{integer_array, string_array};
use super::blocks::{Blocks, Task};
use super::cursor::Cursor;
use super::number::{integer_len, is_spelled_double};
use super::reader::{Fault, Open, read_value};
use super::sink::{Flow, IntegerShape, Sink, Span, Stopped, StringShape};
use super::skip::may_be_ruled;
use super::spell::{has_own_escapes, has_space};
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
    /// Whether a byte may be from 0x80; not told by [`Lossless`].
    pub(super) high: bool,
}

/// The chunks of a stream from which the row of a call is made; empty if there is none. Spec 80 §3, §4 U1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    /// The last one of type `usage`.
    pub(super) usage: Range<usize>,
    /// The last one of type `finish`.
    pub(super) finish: Range<usize>,
}

/// Who is told where the parts of a stream are, in their order.
pub(crate) trait Places {
    /// A run, or the start of a block, with this index.
    fn block(&mut self, index: i64);
    /// Any other chunk, from one byte to another.
    fn chunk(&mut self, start: usize, end: usize);
}

impl Places for () {
    #[inline(always)]
    fn block(&mut self, _index: i64) {}

    #[inline(always)]
    fn chunk(&mut self, _start: usize, _end: usize) {}
}

/// Reads the array at `start`; None if it is anything else than valid records in the expected spelling.
pub(super) struct ReadRecords<'t, 'b, V> {
    pub(super) bytes: &'b [u8],
    pub(super) start: usize,
    /// Arrays and objects that may be nested in a record, at least one.
    pub(super) max_depth: usize,
    /// Scratch space.
    pub(super) open: &'t mut Vec<Open>,
    /// Takes the values in the records.
    pub(super) values: V,
}

/// What has to be true of the values in records beside their place.
pub(super) trait Values: Sink {
    /// Reads an array of strings as [`string_array`] does.
    fn read_strings<B: Blocks>(
        blocks: B,
        bytes: &[u8],
        start: usize,
    ) -> Result<Option<(usize, StringShape)>, Fault>;
    /// The gaps of a run stand there.
    fn gaps(&mut self, start: usize, end: usize, shape: IntegerShape) -> Flow;
    /// A run, or the start of a block, has this index.
    fn block(&mut self, index: i64);
    /// The value of an array or object starts.
    fn start(&mut self);
    /// It stood there.
    fn end(&mut self, start: usize, end: usize) -> Flow;
    /// May be retired, high.
    fn found(&self) -> (bool, bool);
    /// Bytes of the last chunks of some types; told by [`Lossless`] alone.
    fn noted(self) -> Noted;
}

impl<V: Values> Task for ReadRecords<'_, '_, V> {
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
            values: self.values,
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
        let (may_be_retired, high) = reader.values.found();
        Some(Records {
            end: reader.cursor.at,
            count,
            chunks,
            noted: reader.values.noted(),
            may_be_retired,
            high,
        })
    }
}

struct Reader<'t, 'b, B, V> {
    cursor: Cursor<'b, B>,
    max_depth: usize,
    open: &'t mut Vec<Open>,
    values: V,
}

impl<B: Blocks, V: Values> Reader<'_, '_, B, V> {
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
        let index = cursor.integer()?;
        u64::try_from(index).ok()?;
        self.values.block(index);
        cursor.literal(b",\"dt\":[")?;
        let mut gaps = 0;
        if cursor.literal(b"]").is_none() {
            let (end, shape) = integer_array::<B, true>(cursor.blocks, cursor.bytes, cursor.at).ok()??;
            self.values.gaps(cursor.at, end, shape).ok()?;
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
        let (end, shape) = V::read_strings(cursor.blocks, cursor.bytes, cursor.at).ok()??;
        self.values.string_array(cursor.at, end, shape).ok()?;
        cursor.at = end;
        cursor.literal(b"}")?;
        u32::try_from(shape.count)
            .ok()
            .filter(|_| shape.count == gaps + 1)
    }

    #[inline(always)]
    fn string(&mut self) -> Option<Span> {
        let span = self.cursor.span()?;
        let raw = self.cursor.bytes.get(span.start..span.end)?;
        self.values.string(span, raw).ok()?;
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
        self.values.start();
        let end =
            read_value::<B, _, true>(*blocks, bytes, start, &mut self.values, self.open, self.max_depth);
        *at = end.ok()?;
        self.values.end(start, *at).ok()
    }

    #[inline(always)]
    fn block_start(&mut self) -> Option<()> {
        self.cursor.literal(b"{\"type\":\"block-start\",\"index\":")?;
        let index = self.cursor.integer()?;
        self.cursor.literal(b",\"blockType\":\"")?;
        self.string()?;
        self.cursor.literal(b"}")?;
        self.values.block(index);
        Some(())
    }
}

/// Types of chunks that are noted.
#[derive(Clone, Copy)]
enum ChunkType {
    Usage,
    Finish,
}

/// Takes values that are surely lossless: no number but integers other than −0. Spec 10 §1.2.
pub(super) struct Lossless<P> {
    places: P,
    may_be_retired: bool,
    /// Open arrays and objects.
    depth: usize,
    /// Whether the innermost member of the chunk itself is `type`.
    is_type: bool,
    /// What the last `type` of the chunk says.
    chunk_type: Option<ChunkType>,
    noted: Noted,
}

impl<P> Lossless<P> {
    pub(super) fn of(places: P) -> Self {
        Self {
            places,
            may_be_retired: false,
            depth: 0,
            is_type: false,
            chunk_type: None,
            noted: Noted::default(),
        }
    }
}

impl<P: Places> Values for Lossless<P> {
    #[inline(always)]
    fn read_strings<B: Blocks>(
        blocks: B,
        bytes: &[u8],
        start: usize,
    ) -> Result<Option<(usize, StringShape)>, Fault> {
        string_array::<B, true, false>(blocks, bytes, start)
    }

    #[inline(always)]
    fn gaps(&mut self, _start: usize, _end: usize, _shape: IntegerShape) -> Flow {
        Ok(())
    }

    #[inline(always)]
    fn block(&mut self, index: i64) {
        self.places.block(index);
    }

    #[inline(always)]
    fn start(&mut self) {}

    #[inline(always)]
    fn end(&mut self, start: usize, end: usize) -> Flow {
        self.places.chunk(start, end);
        match self.chunk_type.take() {
            Some(ChunkType::Usage) => self.noted.usage = start..end,
            Some(ChunkType::Finish) => self.noted.finish = start..end,
            None => {}
        }
        Ok(())
    }

    #[inline(always)]
    fn found(&self) -> (bool, bool) {
        (self.may_be_retired, false)
    }

    #[inline(always)]
    fn noted(self) -> Noted {
        self.noted
    }
}

impl<P: Places> Sink for Lossless<P> {
    const PACKED: bool = true;

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
    fn integer_array(&mut self, _start: usize, _end: usize, shape: IntegerShape) -> Flow {
        if shape.negative_zero { Err(Stopped) } else { Ok(()) }
    }
}

/// Objects with more members are left to the check of a tape.
const MOST_MEMBERS: usize = 12;

/// Takes values that are spelled as the writer spells them, but for bytes that are no UTF-8. That makes them lossless.
/// Spec 10 §1.1, §1.2.
///
/// Literals are looked at one by one; white space between them shows in the length.
pub(super) struct Spelled<'t, 'b> {
    bytes: &'b [u8],
    pub(super) may_be_retired: bool,
    /// Whether a key may be one that a rule looks for.
    pub(super) may_be_ruled: bool,
    high: bool,
    /// Bytes that a value takes: its literals, a colon for each key, brackets, and a comma for each child but the first.
    len: usize,
    room: &'t mut KeyRoom,
}

/// Room for the keys of open objects, used again from value to value.
#[derive(Default)]
pub(super) struct KeyRoom {
    /// Keys of the open objects.
    keys: Vec<(usize, usize)>,
    /// For each open array or object, how many keys stand before it.
    open: Vec<usize>,
}

impl<'t, 'b> Spelled<'t, 'b> {
    pub(super) fn new(bytes: &'b [u8], room: &'t mut KeyRoom) -> Self {
        Self {
            bytes,
            may_be_retired: false,
            may_be_ruled: false,
            high: false,
            len: 0,
            room,
        }
    }

    /// Adds a value and the comma or the bracket behind it.
    #[inline(always)]
    #[expect(clippy::unnecessary_wraps, reason = "the methods of a sink end with it")]
    fn add(&mut self, len: usize) -> Flow {
        self.len += len + 1;
        Ok(())
    }

    #[inline(always)]
    fn text(&mut self, span: Span, raw: &[u8]) -> Flow {
        self.high |= span.high;
        if span.escaped && !has_own_escapes(raw) {
            return Err(Stopped);
        }
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, reason = "the methods of a sink end with it")]
    fn begin(&mut self) -> Flow {
        // The bracket that closes it was added with its last child.
        self.len += 1;
        self.room.open.push(self.room.keys.len());
        Ok(())
    }

    fn close(&mut self) -> Flow {
        self.room.keys.truncate(self.room.open.pop().ok_or(Stopped)?);
        self.add(0)
    }
}

impl Values for Spelled<'_, '_> {
    #[inline(always)]
    fn read_strings<B: Blocks>(
        blocks: B,
        bytes: &[u8],
        start: usize,
    ) -> Result<Option<(usize, StringShape)>, Fault> {
        string_array::<B, true, true>(blocks, bytes, start)
    }

    #[inline(always)]
    fn gaps(&mut self, start: usize, end: usize, shape: IntegerShape) -> Flow {
        self.integer_array(start, end, shape)
    }

    #[inline(always)]
    fn block(&mut self, _index: i64) {}

    #[inline(always)]
    fn start(&mut self) {
        self.len = 0;
        self.room.keys.clear();
        self.room.open.clear();
    }

    #[inline(always)]
    fn end(&mut self, start: usize, end: usize) -> Flow {
        // Nothing stands behind the outermost value.
        if self.len == end - start + 1 {
            Ok(())
        } else {
            Err(Stopped)
        }
    }

    #[inline(always)]
    fn found(&self) -> (bool, bool) {
        (self.may_be_retired, self.high)
    }

    #[inline(always)]
    fn noted(self) -> Noted {
        Noted::default()
    }
}

impl Sink for Spelled<'_, '_> {
    const PACKED: bool = true;

    #[inline(always)]
    fn null(&mut self, _at: usize) -> Flow {
        self.add(4)
    }

    #[inline(always)]
    fn boolean(&mut self, value: bool, _at: usize) -> Flow {
        self.add(if value { 4 } else { 5 })
    }

    #[inline(always)]
    fn integer(&mut self, value: i64, _at: usize) -> Flow {
        self.add(integer_len(value))
    }

    #[inline(never)]
    fn number(&mut self, start: usize, end: usize) -> Flow {
        if self.bytes.get(start..end).is_some_and(is_spelled_double) {
            self.add(end - start)
        } else {
            Err(Stopped)
        }
    }

    #[inline(always)]
    fn string(&mut self, span: Span, raw: &[u8]) -> Flow {
        self.may_be_retired |= may_be_retired(span, raw);
        self.text(span, raw)?;
        self.add(raw.len() + 2)
    }

    #[inline(always)]
    fn key(&mut self, span: Span, raw: &[u8]) -> Flow {
        self.text(span, raw)?;
        self.may_be_ruled |= may_be_ruled(span, raw);
        let first = *self.room.open.last().ok_or(Stopped)?;
        let mut known = self.room.keys.get(first..).unwrap_or_default().iter();
        let is_known = known.any(|&(start, end)| self.bytes.get(start..end) == Some(raw));
        // A key like an index may have to stand elsewhere.
        if is_known
            || self.room.keys.len() - first >= MOST_MEMBERS
            || raw.first().is_some_and(u8::is_ascii_digit)
        {
            return Err(Stopped);
        }
        self.room.keys.push((span.start, span.end));
        self.add(raw.len() + 2)
    }

    #[inline(always)]
    fn begin_array(&mut self, _at: usize) -> Flow {
        self.begin()
    }

    #[inline(always)]
    fn end_array(&mut self, _end: usize) -> Flow {
        self.close()
    }

    #[inline(always)]
    fn begin_object(&mut self, _at: usize) -> Flow {
        self.begin()
    }

    #[inline(always)]
    fn end_object(&mut self, _end: usize) -> Flow {
        self.close()
    }

    #[inline(always)]
    fn empty_array(&mut self, _start: usize, _end: usize) -> Flow {
        self.add(2)
    }

    #[inline(always)]
    fn empty_object(&mut self, _start: usize, _end: usize) -> Flow {
        self.add(2)
    }

    #[inline(always)]
    fn string_array(&mut self, start: usize, end: usize, shape: StringShape) -> Flow {
        if !shape.is_compact {
            return Err(Stopped);
        }
        if !shape.is_plain {
            self.high = true;
            if !self.bytes.get(start..end).is_some_and(has_own_escapes) {
                return Err(Stopped);
            }
        }
        self.add(end - start)
    }

    #[inline(always)]
    fn integer_array(&mut self, start: usize, end: usize, shape: IntegerShape) -> Flow {
        if shape.negative_zero || self.bytes.get(start..end).is_none_or(has_space) {
            return Err(Stopped);
        }
        self.add(end - start)
    }
}
