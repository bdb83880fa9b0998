//! What a parse produces: the reader calls a [`Sink`] for everything it meets.

use crate::limits::MAX_SAFE_INTEGER;

/// Says that the sink cannot go on; it keeps the reason itself.
#[derive(Clone, Copy, Debug)]
pub struct Stopped;

/// Result of a sink's methods.
pub type Flow = Result<(), Stopped>;

/// The inside of a string literal.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Byte behind the opening quote.
    pub start: usize,
    /// Byte of the closing quote.
    pub end: usize,
    /// Whether it has a backslash.
    pub escaped: bool,
    /// Whether it may have a byte from 0x80.
    pub high: bool,
}

/// Receiver of the parts of one JSON value, in order. All positions are bytes of the input. What a sink does not
/// implement is nothing to it.
#[allow(
    clippy::missing_errors_doc,
    reason = "every method fails for the same reason, see `Stopped`"
)]
pub trait Sink {
    /// Whether [`Sink::string_array`] and [`Sink::integer_array`] are wanted.
    const PACKED: bool;

    /// `null`.
    #[inline(always)]
    fn null(&mut self, _at: usize) -> Flow {
        Ok(())
    }
    /// `true` or `false`.
    #[inline(always)]
    fn boolean(&mut self, _value: bool, _at: usize) -> Flow {
        Ok(())
    }
    /// An integer literal of at most 15 digits that is not −0.
    #[inline(always)]
    fn integer(&mut self, _value: i64, _at: usize) -> Flow {
        Ok(())
    }
    /// Any other number literal.
    #[inline(always)]
    fn number(&mut self, _start: usize, _end: usize) -> Flow {
        Ok(())
    }
    /// A string value; `raw` is what stands between its quotes.
    fn string(&mut self, span: Span, raw: &[u8]) -> Flow;
    /// The key of the member whose value comes next.
    fn key(&mut self, span: Span, raw: &[u8]) -> Flow;
    /// `[`
    #[inline(always)]
    fn begin_array(&mut self, _at: usize) -> Flow {
        Ok(())
    }
    /// `]`; `end` is the byte behind it.
    #[inline(always)]
    fn end_array(&mut self, _end: usize) -> Flow {
        Ok(())
    }
    /// `{`
    #[inline(always)]
    fn begin_object(&mut self, _at: usize) -> Flow {
        Ok(())
    }
    /// `}`; `end` is the byte behind it.
    #[inline(always)]
    fn end_object(&mut self, _end: usize) -> Flow {
        Ok(())
    }
    /// `[]`, which takes the bytes from `start` to `end`.
    #[inline(always)]
    fn empty_array(&mut self, start: usize, end: usize) -> Flow {
        self.begin_array(start)?;
        self.end_array(end)
    }
    /// `{}`, as [`Sink::empty_array`].
    #[inline(always)]
    fn empty_object(&mut self, start: usize, end: usize) -> Flow {
        self.begin_object(start)?;
        self.end_object(end)
    }
    /// Takes the array at `at` with all that is in it, at most `max_depth` levels, and returns the byte behind it; None
    /// if it shall be read.
    #[inline(always)]
    fn whole_array(&mut self, _bytes: &[u8], _at: usize, _max_depth: usize) -> Option<usize> {
        None
    }
    /// A whole array of one or more strings, checked.
    #[inline(always)]
    fn string_array(&mut self, _start: usize, _end: usize, _shape: StringShape) -> Flow {
        Ok(())
    }
    /// A whole array of one or more integers of at most 15 digits, checked.
    #[inline(always)]
    fn integer_array(&mut self, _start: usize, _end: usize, _shape: IntegerShape) -> Flow {
        Ok(())
    }
}

/// What is known of an array of strings without reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StringShape {
    /// Elements.
    pub count: usize,
    /// Whether it is known to hold no white space between them.
    pub is_compact: bool,
    /// Whether they are known to be ASCII, and to have no escape `\u` or `\/`.
    pub is_plain: bool,
}

/// What is known of an array of integers without reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerShape {
    /// Elements.
    pub count: usize,
    /// No element has more digits.
    pub max_digits: u32,
    /// Whether an element may be −0.
    pub negative_zero: bool,
}

impl IntegerShape {
    /// Whether a running sum over the elements is surely safe (spec 10, intro), from a start and with any of the signs.
    pub(crate) fn keeps_safe(&self, start: i64) -> bool {
        10u64
            .checked_pow(self.max_digits)
            .and_then(|largest| largest.checked_mul(u64::try_from(self.count).ok()?))
            .and_then(|sum| sum.checked_add(start.unsigned_abs()))
            .is_some_and(|furthest| furthest <= MAX_SAFE_INTEGER.unsigned_abs())
    }
}
