//! A parsed value as a flat list of words beside its bytes: no tree, no allocation per value, reusable.
//!
//! Arrays of strings and of small integers are two words whatever their length. Everything is read from the bytes when
//! somebody asks.

mod canonical;
mod compact;

use std::borrow::Cow;
use std::ops::Range;

use super::blocks::{Blocks, Task, dispatch};
use super::lazy::{self, closing_quote};
use super::number::{double, is_negative_zero, parse_double, safe_integer};
use super::reader::{Fault, Literal, Open, read_number, read_value, skip_space};
use super::records::{KeyRoom, Lossless, Noted, ReadRecords, Spelled};
use super::sink::{Flow, IntegerShape, Sink, Span, Stopped, StringShape};
use super::text::decode_string;

pub use canonical::CanonicalWriter;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    Null,
    False,
    True,
    /// `a`, `b`: low and high half of the value.
    Integer,
    /// `a`, `b`: bytes of the literal.
    Number,
    /// `a`, `b`: bytes of the inside.
    Text,
    /// `a`: byte of `[`; `b`: word behind the closing one.
    Array,
    /// `a`: byte of `{`; `b`: word behind the closing one. Members are pairs of a text and a value.
    Object,
    /// `a`: byte behind the bracket.
    Close,
    /// `a`, `b`: bytes of the whole array; the next word holds its length.
    Texts,
    /// `a`, `b`: bytes of the whole array; the next word holds its shape.
    Integers,
    /// Second word of a packed array: `a` elements, of at most `b` digits. Of records: `a` of them, of `b` chunks; then, in
    /// two more words, the bytes from `a` to `b` of the last chunk of type `usage` and of type `finish`.
    Shape,
    /// An array whose elements, if it has any, are not on the tape. `a`, `b`: bytes of the whole array. With the flag it
    /// is one of valid records, and the next words hold their number and the places of two of their chunks.
    LazyArray,
    /// An object whose members, if it has any, are not on the tape. `a`, `b`: bytes of the whole object.
    LazyObject,
    /// Behind the value: an array or object that is not on the tape. `a`, `b`: bytes of the whole of it.
    Inner,
}

#[derive(Clone, Copy, Debug)]
struct Word {
    tag: Tag,
    /// Text: it has an escape. Texts: it is compact. Shape: it may have a −0.
    flag: bool,
    /// Text: it has a byte from 0x80. Texts: they may not be plain. Records: they may have one.
    high: bool,
    a: u32,
    b: u32,
}

/// Words behind that of a stream of counted records.
const RECORD_WORDS: usize = 3;

/// Words of 12 bytes that the tape of a row may have in any case, 9 MiB. Two bytes of a row can make two words.
const ROW_WORDS: usize = 3 << 18;

/// Bytes of a row that allow one word more: the tape takes 1.5 times the bytes, beside the row itself.
const BYTES_PER_WORD: usize = 8;

/// Of the levels that are not on the tape, every how many-th is noted where it starts and ends. Who skips a value then
/// reads this many levels at most, so that a walk through all levels takes no time that grows with their number.
const LEVELS_PER_INNER: usize = 16;

/// Bytes of an array or object that are read faster than they are looked up.
const SHORT_INNER: u32 = 64;

/// Bytes of an array or object that may be put on a tape of its own.
const SHORT_VALUE: u32 = 1 << 10;

/// Reusable storage for one parsed value.
pub struct Tape {
    words: Vec<Word>,
    /// Words that the tape may have, for a row and now, whatever its length.
    row_words: usize,
    max_words: usize,
    /// Whether the tape had no room for a word.
    is_full: bool,
    /// Words of the open arrays and objects.
    open: Vec<u32>,
    nesting: Vec<Open>,
    /// Whether a string value may be [retired](is_retired).
    may_be_retired: bool,
    /// What becomes of the records of a stream.
    records: Records,
}

/// What becomes of the records of `data.stream` of a row where they are valid and in the harness's spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Records {
    /// They are on the tape.
    Kept,
    /// They are counted.
    Counted,
    /// They are counted if every byte is as the writer spells it, but for what is no UTF-8.
    Spelled,
}

/// Whether a string is one that row admission (spec 30 §6) asks for in rules A2 to A4, B, C3 and C4. A row without any
/// of them as a value keeps these rules.
#[inline(always)]
pub fn is_retired(raw: &[u8]) -> bool {
    matches!(
        raw,
        b"tool-result" | b"tool-addition" | b"tool-removal" | b"developer" | b"plugin"
    )
}

/// The first four bytes of these strings.
const RETIRED_HEADS: [u32; 3] = [
    u32::from_le_bytes(*b"tool"),
    u32::from_le_bytes(*b"deve"),
    u32::from_le_bytes(*b"plug"),
];

/// [`is_retired`] of any string, by its bytes between the quotes; true also if that is not clear.
#[inline(always)]
pub(super) fn may_be_retired(span: Span, raw: &[u8]) -> bool {
    // One rare jump: lengths of strings, and what else tells them apart, are hard to predict.
    let head = raw.first_chunk().map_or(0, |head| u32::from_le_bytes(*head));
    let [a, b, c] = RETIRED_HEADS.map(|known| head == known);
    (a | b | c | span.escaped) && look_at_retired(span, raw)
}

#[inline(never)]
fn look_at_retired(span: Span, raw: &[u8]) -> bool {
    if span.escaped {
        // An escape takes at most six bytes for a character, and only \\u spells a letter.
        raw.len() <= 6 * 13 && raw.windows(2).any(|pair| pair == b"\\u")
    } else {
        is_retired(raw)
    }
}

/// Kind of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `null`
    Null,
    /// `true` or `false`
    Boolean,
    /// A number.
    Number,
    /// A string.
    Text,
    /// An array.
    Array,
    /// An object.
    Object,
}

struct Parse<'t, 'b, const ROW: bool> {
    tape: &'t mut Tape,
    bytes: &'b [u8],
    max_depth: usize,
}

impl<const ROW: bool> Task for Parse<'_, '_, ROW> {
    type Output = Result<usize, Fault>;

    #[inline(always)]
    fn run<B: Blocks>(self, blocks: B) -> Self::Output {
        let mut nesting = std::mem::take(&mut self.tape.nesting);
        let end = read_value::<B, Tape, ROW>(blocks, self.bytes, 0, self.tape, &mut nesting, self.max_depth);
        self.tape.nesting = nesting;
        end
    }
}

/// What a tape keeps where it cannot keep everything: `depth` nested arrays and objects.
struct Lean<'t> {
    tape: &'t mut Tape,
    depth: usize,
    /// Open arrays and objects that are not on the tape, and where the outermost of them starts.
    inside: usize,
    start: usize,
    /// Those of some depths, in the order of their starts, and which of them are open.
    inner: Vec<Word>,
    open_inner: Vec<usize>,
}

struct ParseLean<'t, 'b> {
    lean: Lean<'t>,
    bytes: &'b [u8],
    max_depth: usize,
}

impl Task for ParseLean<'_, '_> {
    type Output = Result<usize, Fault>;

    #[inline(always)]
    fn run<B: Blocks>(mut self, blocks: B) -> Self::Output {
        let mut nesting = std::mem::take(&mut self.lean.tape.nesting);
        let end = read_value::<B, Lean<'_>, true>(
            blocks,
            self.bytes,
            0,
            &mut self.lean,
            &mut nesting,
            self.max_depth,
        );
        self.lean.tape.nesting = nesting;
        self.lean.tape.words.append(&mut self.lean.inner);
        end
    }
}

impl Default for Tape {
    fn default() -> Self {
        Self {
            words: Vec::new(),
            row_words: ROW_WORDS,
            max_words: usize::MAX,
            is_full: false,
            open: Vec::new(),
            nesting: Vec::new(),
            may_be_retired: false,
            records: Records::Kept,
        }
    }
}

impl Tape {
    /// An empty tape.
    pub fn new() -> Self {
        Self::default()
    }

    /// A tape for rows that keeps fewer words than usual.
    #[cfg(test)]
    pub(crate) fn of_words(row_words: usize) -> Self {
        Self {
            row_words,
            ..Self::default()
        }
    }

    /// Whether the row that was read last has parts that are not on the tape.
    #[cfg(test)]
    pub(crate) fn is_lean(&self) -> bool {
        let is_lazy =
            |word: &Word| matches!(word.tag, Tag::LazyArray | Tag::LazyObject) && word.b - word.a > 9;
        self.words.iter().any(is_lazy)
    }

    /// Parses the value at the start of a row and returns the byte behind it. A line feed ends the row: inside the
    /// value it is an error, behind it the caller looks for it.
    ///
    /// # Errors
    /// A [`Fault`]; of kind `End` if the bytes end before the value does.
    ///
    /// # Cost
    /// At most 9 MiB and 1.5 times the row's length of tape. A row that would need more is read again, and its deep parts
    /// are read from the bytes whenever they are asked for; where some of them end takes as much as the row at most.
    pub(crate) fn read_row(&mut self, bytes: &[u8], max_depth: usize) -> Result<usize, Fault> {
        self.start(self.row_words);
        let end = dispatch(Parse::<true> {
            tape: self,
            bytes,
            max_depth,
        });
        if self.is_full {
            self.read_lean(bytes, max_depth)
        } else {
            end
        }
    }

    /// Reads a row that the tape cannot hold: the row, its data and their members, or nothing but the row.
    #[cold]
    fn read_lean(&mut self, bytes: &[u8], max_depth: usize) -> Result<usize, Fault> {
        let mut read = |depth| {
            self.start(self.row_words);
            let lean = Lean {
                tape: self,
                depth,
                inside: 0,
                start: 0,
                inner: Vec::new(),
                open_inner: Vec::new(),
            };
            let end = dispatch(ParseLean {
                lean,
                bytes,
                max_depth,
            });
            (end, self.is_full)
        };
        match read(2) {
            (_, true) => read(0).0,
            (end, false) => end,
        }
    }

    fn start(&mut self, max_words: usize) {
        self.words.clear();
        self.open.clear();
        self.max_words = max_words;
        self.is_full = false;
        self.may_be_retired = false;
    }

    /// Parses one JSON text.
    ///
    /// # Errors
    /// A [`Fault`] where the text stops to be JSON.
    pub fn read_text<'a>(&'a mut self, bytes: &'a [u8], max_depth: usize) -> Result<Node<'a>, Fault> {
        self.start(usize::MAX);
        let end = dispatch(Parse::<false> {
            tape: self,
            bytes,
            max_depth,
        })?;
        let end = skip_space::<false>(bytes, end);
        if end < bytes.len() {
            return Err(Fault::unexpected(end, "the end of the text"));
        }
        Ok(self.root(bytes))
    }

    /// The value that was parsed last from `bytes`.
    pub(crate) fn root<'a>(&'a self, bytes: &'a [u8]) -> Node<'a> {
        Node {
            bytes,
            words: &self.words,
            at: 0,
            word: *self.words.first().unwrap_or(&NOTHING),
        }
    }

    /// Whether a string value of the row that was read last may be one of those that rules A2 to A4, B, C3 and C4 of
    /// spec 30 §6 look for. Elements of packed arrays are not looked at: those rules ask for members of objects.
    pub(crate) fn may_be_retired(&self) -> bool {
        self.may_be_retired
    }

    /// Gives memory back that one long row took.
    pub fn shrink(&mut self, words: usize) {
        if self.words.capacity() > words {
            self.words = Vec::new();
        }
    }

    #[inline]
    fn push(&mut self, tag: Tag, a: usize, b: usize, flag: bool, high: bool) -> Flow {
        // Rows are limited to below 4 GiB by the scanner; longer texts stop here.
        let (Ok(a), Ok(b)) = (u32::try_from(a), u32::try_from(b)) else {
            return Err(Stopped);
        };
        let word = Word {
            tag,
            flag,
            high,
            a,
            b,
        };
        self.push_word(word, a as usize)
    }

    /// Adds a word for bytes at some place of the row.
    #[inline(always)]
    fn push_word(&mut self, word: Word, at: usize) -> Flow {
        if self.words.len() == self.words.capacity() {
            self.make_room(at)?;
        }
        self.words.push(word);
        Ok(())
    }

    /// Makes room for more words, as many as there are but no more than are allowed.
    #[cold]
    fn make_room(&mut self, at: usize) -> Flow {
        let len = self.words.len();
        let allowed = self.max_words.saturating_add(at / BYTES_PER_WORD);
        self.is_full = len >= allowed;
        if self.is_full {
            return Err(Stopped);
        }
        self.words.reserve_exact((allowed - len).min(len.max(64)));
        Ok(())
    }

    /// Whether valid records of a stream, `data.stream` of a row, are counted and then not kept on the tape. What is
    /// asked of them nevertheless is read from the bytes.
    pub(crate) fn count_records(&mut self, counts_records: bool) {
        self.records = if counts_records {
            Records::Counted
        } else {
            Records::Kept
        };
    }

    /// As [`Tape::count_records`], for [`Tape::is_canonical`]: streams that the writer would spell otherwise are kept.
    pub(crate) fn spell_records(&mut self) {
        self.records = Records::Spelled;
    }

    /// Takes the array at a byte if it is a stream of valid records.
    #[inline(never)]
    fn take_records(&mut self, bytes: &[u8], start: usize, max_depth: usize) -> Option<usize> {
        let max_depth = max_depth.checked_sub(2).filter(|&levels| levels > 0)?;
        let open = &mut Vec::new();
        let records = match self.records {
            Records::Kept => return None,
            Records::Counted => dispatch(ReadRecords {
                bytes,
                start,
                max_depth,
                open,
                values: Lossless::of(()),
            }),
            Records::Spelled => dispatch(ReadRecords {
                bytes,
                start,
                max_depth,
                open,
                values: Spelled::new(bytes, &mut KeyRoom::default()),
            }),
        }?;
        let len = self.words.len();
        let Noted { usage, finish } = records.noted;
        let taken = self
            .push(Tag::LazyArray, start, records.end, true, records.high)
            .and_then(|()| self.push_word(shape_word(records.count, records.chunks), start))
            .and_then(|()| self.push(Tag::Shape, usage.start, usage.end, false, false))
            .and_then(|()| self.push(Tag::Shape, finish.start, finish.end, false, false));
        if taken.is_err() {
            self.words.truncate(len);
            return None;
        }
        self.may_be_retired |= records.may_be_retired;
        Some(records.end)
    }

    #[inline]
    fn begin(&mut self, tag: Tag, at: usize) -> Flow {
        let word = u32::try_from(self.words.len()).map_err(|_| Stopped)?;
        self.open.push(word);
        self.push(tag, at, 0, false, false)
    }

    #[inline]
    fn end(&mut self, end: usize) -> Flow {
        let start = self.open.pop().ok_or(Stopped)?;
        self.push(Tag::Close, end, 0, false, false)?;
        let behind = u32::try_from(self.words.len()).map_err(|_| Stopped)?;
        if let Some(word) = self.words.get_mut(start as usize) {
            word.b = behind;
        }
        Ok(())
    }
}

impl Sink for Tape {
    const PACKED: bool = true;

    #[inline(always)]
    fn null(&mut self, at: usize) -> Flow {
        self.push(Tag::Null, at, 0, false, false)
    }

    #[inline(always)]
    fn boolean(&mut self, value: bool, at: usize) -> Flow {
        self.push(if value { Tag::True } else { Tag::False }, at, 0, false, false)
    }

    #[inline(always)]
    fn integer(&mut self, value: i64, at: usize) -> Flow {
        self.push_word(integer_word(value), at)
    }

    #[inline(always)]
    fn number(&mut self, start: usize, end: usize) -> Flow {
        self.push(Tag::Number, start, end, false, false)
    }

    #[inline(always)]
    fn string(&mut self, span: Span, raw: &[u8]) -> Flow {
        self.may_be_retired |= may_be_retired(span, raw);
        self.push(Tag::Text, span.start, span.end, span.escaped, span.high)
    }

    #[inline(always)]
    fn key(&mut self, span: Span, _raw: &[u8]) -> Flow {
        self.push(Tag::Text, span.start, span.end, span.escaped, span.high)
    }

    #[inline(always)]
    fn begin_array(&mut self, at: usize) -> Flow {
        self.begin(Tag::Array, at)
    }

    #[inline(always)]
    fn end_array(&mut self, end: usize) -> Flow {
        self.end(end)
    }

    #[inline(always)]
    fn begin_object(&mut self, at: usize) -> Flow {
        self.begin(Tag::Object, at)
    }

    #[inline(always)]
    fn end_object(&mut self, end: usize) -> Flow {
        self.end(end)
    }

    #[inline(always)]
    fn empty_array(&mut self, start: usize, end: usize) -> Flow {
        self.push(Tag::LazyArray, start, end, false, false)
    }

    #[inline(always)]
    fn empty_object(&mut self, start: usize, end: usize) -> Flow {
        self.push(Tag::LazyObject, start, end, false, false)
    }

    #[inline(always)]
    fn whole_array(&mut self, bytes: &[u8], at: usize, max_depth: usize) -> Option<usize> {
        // Inside of the row and its data.
        let is_stream = self.records != Records::Kept
            && self.open.len() == 2
            && bytes
                .get(..at)
                .is_some_and(|before| before.ends_with(b"\"stream\":"));
        if is_stream {
            self.take_records(bytes, at, max_depth)
        } else {
            None
        }
    }

    #[inline(always)]
    fn string_array(&mut self, start: usize, end: usize, shape: StringShape) -> Flow {
        self.push(Tag::Texts, start, end, shape.is_compact, !shape.is_plain)?;
        self.push(Tag::Shape, shape.count, 0, false, false)
    }

    #[inline(always)]
    fn integer_array(&mut self, start: usize, end: usize, shape: IntegerShape) -> Flow {
        self.push(Tag::Integers, start, end, false, false)?;
        self.push(
            Tag::Shape,
            shape.count,
            shape.max_digits as usize,
            shape.negative_zero,
            false,
        )
    }
}

impl Lean<'_> {
    #[inline(always)]
    fn begins(&mut self, at: usize) -> bool {
        if self.inside > 0 || self.tape.open.len() >= self.depth {
            if self.inside == 0 {
                self.start = at;
            }
            self.inside += 1;
            if self.is_noted() {
                self.note(at);
            }
            return false;
        }
        true
    }

    /// Whether the innermost open array or object is of a depth that is noted. The outermost has a word of its own.
    #[inline(always)]
    fn is_noted(&self) -> bool {
        self.inside % LEVELS_PER_INNER == 1 && self.inside > 1
    }

    #[inline(never)]
    fn note(&mut self, at: usize) {
        self.open_inner.push(self.inner.len());
        self.inner.push(Word {
            tag: Tag::Inner,
            // Offsets that do not fit are refused when the value is put on the tape.
            a: u32::try_from(at).unwrap_or(u32::MAX),
            ..NOTHING
        });
    }

    #[inline(never)]
    fn note_end(&mut self, end: usize) {
        let Some(place) = self.open_inner.pop() else {
            return;
        };
        if let Some(word) = self.inner.get_mut(place) {
            word.b = u32::try_from(end).unwrap_or(u32::MAX);
            if word.b - word.a < SHORT_INNER {
                // What is inside is shorter still, and gone already.
                self.inner.truncate(place);
            }
        }
    }

    #[inline(always)]
    fn ends(&mut self, tag: Tag, end: usize) -> Flow {
        if self.inside == 0 {
            return self.tape.end(end);
        }
        if self.is_noted() {
            self.note_end(end);
        }
        self.inside -= 1;
        if self.inside == 0 {
            self.tape.push(tag, self.start, end, false, false)
        } else {
            Ok(())
        }
    }

    /// Puts a value on the tape if it is not inside of one that is not there.
    #[inline(always)]
    fn put(&mut self, value: impl FnOnce(&mut Tape) -> Flow) -> Flow {
        if self.inside > 0 { Ok(()) } else { value(self.tape) }
    }
}

impl Sink for Lean<'_> {
    const PACKED: bool = true;

    #[inline(always)]
    fn null(&mut self, at: usize) -> Flow {
        self.put(|tape| tape.null(at))
    }

    #[inline(always)]
    fn boolean(&mut self, value: bool, at: usize) -> Flow {
        self.put(|tape| tape.boolean(value, at))
    }

    #[inline(always)]
    fn integer(&mut self, value: i64, at: usize) -> Flow {
        self.put(|tape| tape.integer(value, at))
    }

    #[inline(always)]
    fn number(&mut self, start: usize, end: usize) -> Flow {
        self.put(|tape| tape.number(start, end))
    }

    #[inline(always)]
    fn string(&mut self, span: Span, raw: &[u8]) -> Flow {
        if self.inside > 0 {
            self.tape.may_be_retired |= may_be_retired(span, raw);
            return Ok(());
        }
        self.tape.string(span, raw)
    }

    #[inline(always)]
    fn key(&mut self, span: Span, raw: &[u8]) -> Flow {
        self.put(|tape| tape.key(span, raw))
    }

    #[inline(always)]
    fn begin_array(&mut self, at: usize) -> Flow {
        if self.begins(at) {
            self.tape.begin_array(at)
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    fn end_array(&mut self, end: usize) -> Flow {
        self.ends(Tag::LazyArray, end)
    }

    #[inline(always)]
    fn begin_object(&mut self, at: usize) -> Flow {
        if self.begins(at) {
            self.tape.begin_object(at)
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    fn end_object(&mut self, end: usize) -> Flow {
        self.ends(Tag::LazyObject, end)
    }

    #[inline(always)]
    fn empty_array(&mut self, start: usize, end: usize) -> Flow {
        self.put(|tape| tape.empty_array(start, end))
    }

    #[inline(always)]
    fn empty_object(&mut self, start: usize, end: usize) -> Flow {
        self.put(|tape| tape.empty_object(start, end))
    }

    #[inline(always)]
    fn string_array(&mut self, start: usize, end: usize, shape: StringShape) -> Flow {
        self.put(|tape| tape.string_array(start, end, shape))
    }

    #[inline(always)]
    fn integer_array(&mut self, start: usize, end: usize, shape: IntegerShape) -> Flow {
        self.put(|tape| tape.integer_array(start, end, shape))
    }
}

#[inline]
fn shape_word(a: u32, b: u32) -> Word {
    Word {
        tag: Tag::Shape,
        a,
        b,
        ..NOTHING
    }
}

#[inline]
fn integer_word(value: i64) -> Word {
    let bytes = value.to_le_bytes();
    let half = |from: usize| {
        bytes
            .get(from..)
            .and_then(|half| half.first_chunk())
            .copied()
            .map_or(0, u32::from_le_bytes)
    };
    Word {
        tag: Tag::Integer,
        flag: false,
        high: false,
        a: half(0),
        b: half(4),
    }
}

fn whole(word: Word) -> i64 {
    (i64::from(word.b.cast_signed()) << 32) | i64::from(word.a)
}

/// Parsed values that are kept while the bytes that they were read from are.
#[derive(Default)]
pub(crate) struct Shelf {
    words: Vec<Word>,
    /// Of each value: where its bytes start, and its words end.
    ends: Vec<(usize, usize)>,
}

impl Shelf {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.ends.clear();
    }

    /// Keeps a whole parsed value; its bytes start at `start` of all bytes.
    pub(crate) fn keep(&mut self, root: Node<'_>, start: usize) {
        self.words.extend_from_slice(root.words);
        self.ends.push((start, self.words.len()));
    }

    /// Words of all values.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// The values, of which these are all bytes.
    pub(crate) fn values<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = Node<'a>> {
        let mut from = 0;
        self.ends.iter().map(move |&(start, end)| {
            let words = self.words.get(from..end).unwrap_or_default();
            from = end;
            Node {
                bytes: bytes.get(start..).unwrap_or_default(),
                words,
                at: 0,
                word: *words.first().unwrap_or(&NOTHING),
            }
        })
    }
}

/// A JSON value on a [`Tape`], or an element of a packed array on one.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    bytes: &'a [u8],
    words: &'a [Word],
    /// Place of the word; an element of a packed array has none of its own.
    at: usize,
    word: Word,
}

const NOTHING: Word = Word {
    tag: Tag::Null,
    flag: false,
    high: false,
    a: 0,
    b: 0,
};

impl<'a> Node<'a> {
    #[inline]
    fn at_word(&self, at: usize) -> Self {
        // Nodes are made for existing words only.
        Self {
            at,
            word: *self.words.get(at).unwrap_or(&NOTHING),
            ..*self
        }
    }

    #[inline]
    fn lone(&self, word: Word) -> Self {
        Self {
            at: usize::MAX,
            word,
            ..*self
        }
    }

    /// A string without escapes that stands in some bytes, its quotes not counted.
    pub(crate) fn of_text(bytes: &'a [u8], start: u32, end: u32) -> Self {
        let word = Word {
            tag: Tag::Text,
            flag: false,
            high: true,
            a: start,
            b: end,
        };
        Self::lone_in(bytes, word)
    }

    fn lone_in(bytes: &'a [u8], word: Word) -> Self {
        Self {
            bytes,
            words: &[],
            at: usize::MAX,
            word,
        }
    }

    /// A string that stands in some bytes.
    pub(crate) fn of_span(bytes: &'a [u8], span: Span) -> Self {
        // Rows are limited to below 4 GiB.
        let [a, b] = [span.start, span.end].map(|place| u32::try_from(place).unwrap_or(u32::MAX));
        Self::lone_in(
            bytes,
            Word {
                tag: Tag::Text,
                flag: span.escaped,
                high: span.high,
                a,
                b,
            },
        )
    }

    /// An object that stands in some bytes of a row.
    pub(crate) fn of_object(bytes: &'a [u8], (start, end): (usize, usize)) -> Self {
        let [a, b] = [start, end].map(|place| u32::try_from(place).unwrap_or(u32::MAX));
        Self::lone_in(
            bytes,
            Word {
                tag: Tag::LazyObject,
                a,
                b,
                ..NOTHING
            },
        )
    }

    /// An integer.
    pub(crate) fn of_integer(value: i64) -> Self {
        Self::lone_in(b"", integer_word(value))
    }

    /// The value `null`.
    pub(crate) fn null() -> Self {
        Self::lone_in(b"null", NOTHING)
    }

    /// The value that was parsed, of which this one is a part.
    pub(crate) fn root(&self) -> Self {
        self.at_word(0)
    }

    /// The word behind the value.
    #[inline]
    fn behind(&self) -> usize {
        match self.word.tag {
            Tag::Array | Tag::Object => self.word.b as usize,
            Tag::Texts | Tag::Integers => self.at + 2,
            Tag::LazyArray if self.word.flag => self.at.wrapping_add(1 + RECORD_WORDS),
            // A value without a word of its own has no words inside either.
            _ => self.at.wrapping_add(1),
        }
    }

    /// The second word of a packed array.
    #[inline]
    fn shape(&self) -> Word {
        *self.words.get(self.at + 1).unwrap_or(&NOTHING)
    }

    /// The closing word of an array or object.
    #[inline]
    fn close(&self) -> Word {
        *self
            .words
            .get((self.word.b as usize).wrapping_sub(1))
            .unwrap_or(&NOTHING)
    }

    #[inline]
    fn slice(&self) -> &'a [u8] {
        self.bytes
            .get(self.word.a as usize..self.word.b as usize)
            .unwrap_or_default()
    }

    /// The kind of the value.
    #[inline]
    pub fn kind(&self) -> Kind {
        match self.word.tag {
            Tag::Null | Tag::Close | Tag::Shape | Tag::Inner => Kind::Null,
            Tag::False | Tag::True => Kind::Boolean,
            Tag::Integer | Tag::Number => Kind::Number,
            Tag::Text => Kind::Text,
            Tag::Array | Tag::Texts | Tag::Integers | Tag::LazyArray => Kind::Array,
            Tag::Object | Tag::LazyObject => Kind::Object,
        }
    }

    /// Whether the value is an object.
    #[inline]
    pub fn is_object(&self) -> bool {
        matches!(self.word.tag, Tag::Object | Tag::LazyObject)
    }

    /// Whether the value is an array.
    #[inline]
    pub fn is_array(&self) -> bool {
        self.kind() == Kind::Array
    }

    /// Whether the value is a string.
    #[inline]
    pub fn is_text(&self) -> bool {
        self.word.tag == Tag::Text
    }

    /// Whether the value is `true`.
    #[inline]
    pub fn is_true(&self) -> bool {
        self.word.tag == Tag::True
    }

    /// The value of a number.
    pub fn number(&self) -> Option<f64> {
        match self.word.tag {
            Tag::Integer => Some(double(whole(self.word))),
            Tag::Number => Some(parse_double(self.slice())),
            _ => None,
        }
    }

    /// A number that is a safe integer; −0 gives 0. Spec 20 §8.1.
    #[inline]
    pub fn safe_integer(&self) -> Option<i64> {
        match self.word.tag {
            Tag::Integer => Some(whole(self.word)),
            Tag::Number => safe_integer(parse_double(self.slice())),
            _ => None,
        }
    }

    /// A number that is a safe integer other than −0. Spec 10, intro.
    #[inline]
    pub fn sint(&self) -> Option<i64> {
        self.safe_integer()
            .filter(|&value| value != 0 || !self.is_negative_zero())
    }

    /// A number that is a count: a safe integer from 0, not −0. Spec 10, intro.
    #[inline]
    pub fn count(&self) -> Option<u64> {
        self.sint().and_then(|value| u64::try_from(value).ok())
    }

    /// Whether the value is the number −0.
    #[inline]
    pub fn is_negative_zero(&self) -> bool {
        self.word.tag == Tag::Number && is_negative_zero(parse_double(self.slice()))
    }

    /// A string as WTF-8.
    pub fn text(&self) -> Option<Cow<'a, [u8]>> {
        match self.word.tag {
            Tag::Text if self.word.flag || self.word.high => Some(decode_string(self.slice())),
            Tag::Text => Some(Cow::Borrowed(self.slice())),
            _ => None,
        }
    }

    /// Whether the value is this string, which must be ASCII.
    #[inline(always)]
    pub fn text_is(&self, ascii: &str) -> bool {
        if self.word.tag != Tag::Text {
            return false;
        }
        if self.word.flag {
            return self.decoded_is(ascii);
        }
        // The length first: it tells nearly all strings apart. Cut to a length that is known when this is compiled,
        // the bytes are compared without a call.
        let start = self.word.a as usize;
        self.word.b.wrapping_sub(self.word.a) as usize == ascii.len()
            && self.bytes.get(start..start + ascii.len()) == Some(ascii.as_bytes())
    }

    #[inline(never)]
    fn decoded_is(&self, ascii: &str) -> bool {
        *decode_string(self.slice()) == *ascii.as_bytes()
    }

    /// Whether the value is a string of at least one code unit.
    #[inline]
    pub fn is_nonempty_text(&self) -> bool {
        // An escape or an ill-formed byte stands for at least one unit.
        self.word.tag == Tag::Text && self.word.a < self.word.b
    }

    /// Number of elements of an array; 0 for any other value.
    ///
    /// # Cost
    /// Constant for a packed array, else one step for each element.
    #[inline]
    pub fn len(&self) -> usize {
        match self.word.tag {
            Tag::Texts | Tag::Integers => self.shape().a as usize,
            _ => self.elements().count(),
        }
    }

    /// Whether [`Node::len`] is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.elements().next().is_none()
    }

    /// Whether every element of an array is a string.
    pub fn is_text_array(&self) -> bool {
        match self.word.tag {
            Tag::Texts => true,
            // The reader packs every array of one or more strings that is on the tape.
            Tag::LazyArray => self.elements().all(|element| element.is_text()),
            _ => false,
        }
    }

    /// Whether the value is a packed array of strings that is known to be compact.
    pub(crate) fn is_compact_text_array(&self) -> bool {
        self.word.tag == Tag::Texts && self.word.flag
    }

    /// Number of records, and of chunks that they stand for, of a stream whose records were valid when it was read.
    #[inline]
    pub(crate) fn counted_records(&self) -> Option<(u64, u64)> {
        (self.word.tag == Tag::LazyArray && self.word.flag).then(|| {
            let shape = self.shape();
            (shape.a.into(), shape.b.into())
        })
    }

    /// The last chunks of type `usage` and of type `finish` of a stream whose records were counted.
    pub(crate) fn noted_chunks(&self) -> Option<[Option<Node<'a>>; 2]> {
        let is_counted = self.word.tag == Tag::LazyArray && self.word.flag;
        is_counted.then(|| {
            [2, 3].map(|place| {
                let &Word { a, b, .. } = self.words.get(self.at + place)?;
                (a < b).then(|| {
                    self.lone(Word {
                        tag: Tag::LazyObject,
                        a,
                        b,
                        ..NOTHING
                    })
                })
            })
        })
    }

    /// The same value, on a tape if it is a short one that was on none: several looks at it are faster there.
    pub(crate) fn on_tape<'t>(&self, tape: &'t mut Tape) -> Node<'t>
    where
        'a: 't,
    {
        let is_short = self.word.b.wrapping_sub(self.word.a) <= SHORT_VALUE;
        if !matches!(self.word.tag, Tag::LazyArray | Tag::LazyObject) || !is_short {
            return *self;
        }
        // Its nesting was bounded when the row was read.
        tape.read_text(self.slice(), usize::MAX).unwrap_or(*self)
    }

    /// What is known of a packed array of integers (which has at least one).
    #[inline]
    pub fn integer_shape(&self) -> Option<IntegerShape> {
        if self.word.tag != Tag::Integers {
            return None;
        }
        let shape = self.shape();
        Some(IntegerShape {
            count: shape.a as usize,
            max_digits: shape.b,
            negative_zero: shape.flag,
        })
    }

    /// Arrays and objects that are not on the tape and of which start and end are known, in the order of their starts.
    fn inner(&self) -> &'a [Word] {
        self.words.get(self.root().behind()..).unwrap_or_default()
    }

    /// The byte behind an array or object that starts at a byte, if it is one of [`Node::inner`].
    #[cfg(test)]
    pub(super) fn known_behind(&self, start: usize) -> Option<usize> {
        let word = self.inner().iter().find(|word| word.a as usize == start)?;
        Some(word.b as usize)
    }

    /// The byte behind the array or object that starts at a byte and is not on the tape.
    fn behind_container(&self, bytes: &[u8], start: usize) -> Option<usize> {
        let starts_before = |at: usize| move |word: &Word| (word.a as usize) < at;
        let mut inner = self.inner();
        inner = inner.get(inner.partition_point(starts_before(start))..)?;
        lazy::behind_container(bytes, start, |at| {
            let word = inner.first().filter(|word| word.a as usize == at)?;
            let behind = word.b as usize;
            inner = inner.get(inner.partition_point(starts_before(behind))..)?;
            Some(behind)
        })
    }

    /// Bytes inside the brackets of a value whose parts are not on the tape.
    fn inside(&self) -> (usize, usize) {
        (self.word.a as usize + 1, (self.word.b as usize).saturating_sub(1))
    }

    /// The value that starts at a byte and has no word of its own, and the byte behind it.
    #[inline(never)]
    fn value_at(&self, start: usize, end: usize) -> Option<(Word, usize)> {
        let bytes = self.bytes.get(..end)?;
        let word = |tag, a: usize, b: usize| {
            Some(Word {
                tag,
                flag: false,
                // Whether a byte is above ASCII is not known, so a text is looked at when it is asked for.
                high: true,
                a: u32::try_from(a).ok()?,
                b: u32::try_from(b).ok()?,
            })
        };
        let (word, behind) = match bytes.get(start)? {
            b'"' => {
                let (close, escaped) = closing_quote(bytes, start + 1)?;
                let text = word(Tag::Text, start + 1, close)?;
                (
                    Word {
                        flag: escaped,
                        ..text
                    },
                    close + 1,
                )
            }
            b'[' => {
                let behind = self.behind_container(bytes, start)?;
                (word(Tag::LazyArray, start, behind)?, behind)
            }
            b'{' => {
                let behind = self.behind_container(bytes, start)?;
                (word(Tag::LazyObject, start, behind)?, behind)
            }
            b'n' => (word(Tag::Null, start, 0)?, start + 4),
            b't' => (word(Tag::True, start, 0)?, start + 4),
            b'f' => (word(Tag::False, start, 0)?, start + 5),
            _ => match read_number(bytes, start).ok()? {
                (Literal::Integer(value), behind) => (integer_word(value), behind),
                (Literal::Other, behind) => (word(Tag::Number, start, behind)?, behind),
            },
        };
        Some((word, behind))
    }

    /// The next element of an array of which only the bytes are known.
    #[inline(never)]
    fn take_element(&self, at: &mut usize, end: usize) -> Option<Word> {
        let bytes = self.bytes.get(..end)?;
        let (word, behind) = self.value_at(lazy::next_start(bytes, *at), end)?;
        *at = behind;
        Some(word)
    }

    /// Elements of an array, packed or not; none for any other value.
    #[inline]
    pub fn elements(&self) -> Elements<'a> {
        let next = match self.word.tag {
            Tag::Array => Next::Words {
                at: self.at + 1,
                end: (self.word.b as usize).wrapping_sub(1),
            },
            Tag::Texts => Next::Texts {
                at: self.word.a as usize + 1,
                end: self.word.b as usize - 1,
            },
            Tag::Integers => Next::Integers {
                at: self.word.a as usize + 1,
                end: self.word.b as usize - 1,
            },
            // More than the two brackets.
            Tag::LazyArray if self.word.b - self.word.a > 2 => {
                let (at, end) = self.inside();
                Next::Bytes { at, end }
            }
            _ => Next::Words { at: 0, end: 0 },
        };
        Elements { array: *self, next }
    }

    /// Members of an object in the order of the text, repeated keys included; none for any other value.
    #[inline]
    pub fn members(&self) -> Members<'a> {
        let (at, end) = match self.word.tag {
            Tag::Object => (self.at.wrapping_add(1), (self.word.b as usize).wrapping_sub(1)),
            // Words would end before they start.
            Tag::LazyObject => (self.inside().0, 0),
            _ => (0, 0),
        };
        Members {
            object: *self,
            at,
            end,
        }
    }

    /// The value of a member, of the last one if the key is repeated. The key must be ASCII.
    #[inline(always)]
    pub fn member(&self, key: &str) -> Option<Node<'a>> {
        let mut found = None;
        for (name, value) in self.members() {
            if name.text_is(key) {
                found = Some(value);
            }
        }
        found
    }

    /// The bytes of the value as they stand in the text. None for an integer of at most 15 digits: it keeps only its
    /// value.
    pub fn raw(&self) -> Option<&'a [u8]> {
        self.bytes.get(self.range()?)
    }

    /// The place of [`Node::raw`] in the bytes that were parsed.
    #[inline]
    pub(crate) fn range(&self) -> Option<Range<usize>> {
        let (start, end) = match self.word.tag {
            Tag::Null | Tag::True => (self.word.a, self.word.a + 4),
            Tag::False => (self.word.a, self.word.a + 5),
            Tag::Number | Tag::Texts | Tag::Integers | Tag::LazyArray | Tag::LazyObject => {
                (self.word.a, self.word.b)
            }
            Tag::Text => (self.word.a.saturating_sub(1), self.word.b + 1),
            Tag::Array | Tag::Object => (self.word.a, self.close().a),
            Tag::Integer | Tag::Close | Tag::Shape | Tag::Inner => return None,
        };
        Some(start as usize..end as usize)
    }

    /// Whether both are the same place of one tape.
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.at == other.at && self.at != usize::MAX && std::ptr::eq(self.words, other.words)
    }

    /// Whether every number in the value is finite and not −0. Spec 10 §1.2.
    pub fn is_lossless(&self) -> bool {
        let own = std::iter::once(self.word);
        let inner = self
            .words
            .get(self.at.saturating_add(1)..self.behind())
            .unwrap_or_default();
        own.chain(inner.iter().copied()).all(|word| match word.tag {
            Tag::Number => {
                let value = parse_double(self.at_number(word));
                value.is_finite() && !is_negative_zero(value)
            }
            Tag::Shape => !word.flag,
            Tag::LazyArray | Tag::LazyObject => lazy::is_lossless(self.lone(word).slice()),
            _ => true,
        })
    }

    fn at_number(&self, word: Word) -> &'a [u8] {
        self.lone(word).slice()
    }
}

#[derive(Clone, Copy)]
enum Next {
    Words { at: usize, end: usize },
    Texts { at: usize, end: usize },
    Integers { at: usize, end: usize },
    Bytes { at: usize, end: usize },
}

/// Iterator over the elements of an array.
#[derive(Clone)]
pub struct Elements<'a> {
    array: Node<'a>,
    next: Next,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Node<'a>;

    #[inline]
    fn next(&mut self) -> Option<Node<'a>> {
        let array = self.array;
        match &mut self.next {
            Next::Words { at, end } => {
                if *at >= *end {
                    return None;
                }
                let node = array.at_word(*at);
                *at = node.behind();
                Some(node)
            }
            Next::Texts { at, end } => {
                let inside = array.bytes.get(*at..*end).unwrap_or_default();
                let start = *at + memchr::memchr(b'"', inside)? + 1;
                let (close, escaped) = closing_quote(array.bytes, start)?;
                *at = close + 1;
                let (a, b) = (u32::try_from(start).ok()?, u32::try_from(close).ok()?);
                // Whether a byte is above ASCII is not known, so the text is looked at when it is asked for.
                Some(array.lone(Word {
                    tag: Tag::Text,
                    flag: escaped,
                    high: true,
                    a,
                    b,
                }))
            }
            Next::Integers { at, end } => {
                let start = skip_space::<false>(array.bytes.get(..*end).unwrap_or_default(), *at);
                let (literal, behind) =
                    read_number(array.bytes.get(..*end).unwrap_or_default(), start).ok()?;
                let comma = skip_space::<false>(array.bytes.get(..*end).unwrap_or_default(), behind);
                *at = comma + 1;
                Some(array.lone(match literal {
                    Literal::Integer(value) => integer_word(value),
                    Literal::Other => Word {
                        tag: Tag::Number,
                        flag: false,
                        high: false,
                        a: u32::try_from(start).ok()?,
                        b: u32::try_from(behind).ok()?,
                    },
                }))
            }
            Next::Bytes { at, end } => Some(array.lone(array.take_element(at, *end)?)),
        }
    }
}

/// Iterator over the members of an object.
#[derive(Clone)]
pub struct Members<'a> {
    object: Node<'a>,
    at: usize,
    end: usize,
}

impl Members<'_> {
    // Words and no nodes, so that those of the usual case need no place in memory to be returned in.
    #[inline(never)]
    fn next_of_bytes(&mut self) -> Option<(Word, Word)> {
        let (object, (_, end)) = (self.object, self.object.inside());
        let bytes = object.bytes.get(..end)?;
        let (key, behind) = object.value_at(lazy::next_start(bytes, self.at), end)?;
        let (value, behind) = object.value_at(lazy::next_start(bytes, behind), end)?;
        self.at = behind;
        Some((key, value))
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = (Node<'a>, Node<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            if self.object.word.tag != Tag::LazyObject {
                return None;
            }
            let (key, value) = self.next_of_bytes()?;
            return Some((self.object.lone(key), self.object.lone(value)));
        }
        let key = self.object.at_word(self.at);
        let value = self.object.at_word(self.at + 1);
        self.at = value.behind();
        Some((key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::super::reader::FaultKind;
    use super::*;

    fn with<R>(text: &str, f: impl FnOnce(Node<'_>) -> R) -> R {
        let mut tape = Tape::new();
        f(tape.read_text(text.as_bytes(), 1024).unwrap())
    }

    #[test]
    fn the_last_value_of_a_repeated_key_counts() {
        with(r#"{"a":1,"b":[],"\u0061":2}"#, |v| {
            assert_eq!(v.member("a").unwrap().safe_integer(), Some(2));
        });
    }

    #[test]
    fn packed_and_plain_arrays_yield_the_same_elements() {
        for text in ["[1,-2,30]", "[ 1 , -2,30 ]", "[1.0,-2,3e1]"] {
            with(text, |v| {
                let all: Vec<_> = v.elements().map(|e| e.safe_integer().unwrap()).collect();
                assert_eq!((v.len(), all), (3, vec![1, -2, 30]));
            });
        }
        with(r#"["a", "\"", "é"]"#, |v| {
            let all: Vec<_> = v.elements().map(|e| e.text().unwrap().into_owned()).collect();
            assert_eq!(all, [b"a".to_vec(), b"\"".to_vec(), "é".as_bytes().to_vec()]);
        });
    }

    #[test]
    fn negative_zero_is_seen_in_packed_arrays_too() {
        with("[[1,-0],-0,0]", |v| {
            assert!(!v.is_lossless());
            let first = v.elements().next().unwrap();
            assert!(first.integer_shape().unwrap().negative_zero);
            assert!(first.elements().nth(1).unwrap().is_negative_zero());
            assert_eq!(v.elements().nth(2).unwrap().count(), Some(0));
            assert_eq!(v.elements().nth(1).unwrap().count(), None);
        });
    }

    #[test]
    fn nesting_is_bounded_and_iterative() {
        let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
        let mut tape = Tape::new();
        assert!(tape.read_text(deep(1024).as_bytes(), 1024).is_ok());
        let fault = tape.read_text(deep(1025).as_bytes(), 1024).err().unwrap();
        assert_eq!(
            fault,
            Fault {
                at: 1024,
                kind: FaultKind::TooDeep
            }
        );
        assert!(tape.read_text(deep(1_000_000).as_bytes(), 2_000_000).is_ok());
    }

    #[test]
    fn faults_name_their_byte() {
        let mut tape = Tape::new();
        for (text, at) in [
            ("[1,]", 3),
            ("{\"a\" 1}", 5),
            ("01", 1),
            ("[\"a\",\"\n\"]", 6),
            ("nul", 3),
            ("1 2", 2),
            ("[1,2", 4),
        ] {
            assert_eq!(tape.read_text(text.as_bytes(), 9).err().unwrap().at, at, "{text}");
        }
    }
}
