//! Iterative JSON parser over bytes, generic over a [`Sink`]. Spec 10 §1.
//!
//! Ill-formed UTF-8 needs no look here: replacement never takes an ASCII byte along, so the structure of a text is the
//! same before and after it.

use super::arrays;
use super::blocks::{Blocks, escaped_bytes};
use super::number::SAFE_DIGITS;
use super::sink::{Flow, Sink, Span, Stopped};

/// Why a text was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The input ends inside the value.
    End,
    /// A byte that cannot stand there; the text says what was expected.
    Unexpected(&'static str),
    /// More nested arrays and objects than allowed.
    TooDeep,
    /// The sink stopped.
    Stopped,
}

/// Where and why a text was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Byte of the input.
    pub at: usize,
    /// The reason.
    pub kind: FaultKind,
}

impl Fault {
    #[cold]
    pub(crate) fn end(bytes: &[u8]) -> Self {
        Self {
            at: bytes.len(),
            kind: FaultKind::End,
        }
    }

    #[cold]
    pub(crate) fn unexpected(at: usize, expected: &'static str) -> Self {
        Self {
            at,
            kind: FaultKind::Unexpected(expected),
        }
    }
}

/// An open array or object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    Array,
    Object,
}

#[inline(always)]
fn checked(flow: Flow, at: usize) -> Result<(), Fault> {
    flow.map_err(|Stopped| Fault {
        at,
        kind: FaultKind::Stopped,
    })
}

/// Skips white space. In a row a line feed is none: it ends the row.
#[inline(always)]
pub(crate) fn skip_space<const ROW: bool>(bytes: &[u8], mut at: usize) -> usize {
    while let Some(&byte) = bytes.get(at) {
        if byte > b' ' || !matches!(byte, b' ' | b'\t' | b'\r') && (ROW || byte != b'\n') {
            break;
        }
        at += 1;
    }
    at
}

/// Checks the escape at a backslash and returns the byte behind it.
#[inline(always)]
pub(crate) fn skip_escape(bytes: &[u8], at: usize) -> Result<usize, Fault> {
    match bytes.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        _ => skip_rare_escape(bytes, at),
    }
}

#[inline(never)]
pub(crate) fn skip_rare_escape(bytes: &[u8], at: usize) -> Result<usize, Fault> {
    const EXPECTED: &str = "one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u and four hexadecimal digits";
    match bytes.get(at + 1) {
        Some(b'u') => {
            for digit in at + 2..at + 6 {
                match bytes.get(digit) {
                    Some(byte) if byte.is_ascii_hexdigit() => {}
                    Some(_) => return Err(Fault::unexpected(digit, EXPECTED)),
                    None => return Err(Fault::end(bytes)),
                }
            }
            Ok(at + 6)
        }
        Some(_) => Err(Fault::unexpected(at + 1, EXPECTED)),
        None => Err(Fault::end(bytes)),
    }
}

/// Reads a string literal whose inside starts at `start`.
#[inline(always)]
pub(crate) fn read_string<B: Blocks>(blocks: B, bytes: &[u8], start: usize) -> Result<Span, Fault> {
    let mut span = Span {
        start,
        end: start,
        escaped: false,
        high: false,
    };
    let mut at = start;
    if let Some(block) = bytes.get(at..).and_then(|rest| rest.first_chunk::<32>()) {
        let masks = blocks.short(block);
        // `special ^ (special − 1)` has all bits up to the first special byte, or all bits if there is none.
        span.high = masks.high & (masks.special ^ masks.special.wrapping_sub(1)) != 0;
        at += masks.special.trailing_zeros() as usize;
        if bytes.get(at) == Some(&b'"') && masks.special != 0 {
            span.end = at;
            return Ok(span);
        }
    }
    read_long_string(blocks, bytes, at, span)
}

/// Goes on with a string literal at `at`, which is not inside an escape.
#[inline(always)]
fn read_long_string<B: Blocks>(
    blocks: B,
    bytes: &[u8],
    mut at: usize,
    mut span: Span,
) -> Result<Span, Fault> {
    let mut carry = 0; // whether the block starts with an escaped byte
    while let Some(block) = bytes.get(at..).and_then(|rest| rest.first_chunk::<64>()) {
        let long = blocks.long(block);
        // A byte behind the end of the string may make the mark too careful, never too careless.
        span.high |= long.high;
        if long.special | carry == 0 {
            at += 64;
            continue;
        }
        let masks = blocks.strings(block);
        let mut quote = masks.quote;
        let mut wrong = masks.control;
        let mut unicode = 0;
        let starts_escaped = carry;
        if masks.backslash | carry != 0 {
            let letters = blocks.escapes(block);
            let escaped = escaped_bytes(masks.backslash, &mut carry);
            quote &= !escaped;
            wrong |= escaped & !letters.letter;
            unicode = escaped & letters.unicode;
        }
        // What stands behind the closing quote does not count.
        let inside = (quote & quote.wrapping_neg()).wrapping_sub(1);
        span.escaped |= masks.backslash & inside != 0;
        unicode &= inside;
        let mut is_sound = wrong & inside == 0;
        while is_sound && unicode != 0 {
            let letter = at + unicode.trailing_zeros() as usize;
            is_sound = skip_rare_escape(bytes, letter - 1).is_ok();
            unicode &= unicode - 1;
        }
        if !is_sound {
            // The plain loop finds the first fault of the block.
            carry = starts_escaped;
            break;
        }
        if quote != 0 {
            span.end = at + quote.trailing_zeros() as usize;
            return Ok(span);
        }
        at += 64;
    }
    at -= usize::from(carry == 1); // back to the backslash
    loop {
        match bytes.get(at) {
            Some(b'"') => {
                span.end = at;
                return Ok(span);
            }
            Some(b'\\') => {
                span.escaped = true;
                at = skip_escape(bytes, at)?;
            }
            Some(..0x20) => return Err(Fault::unexpected(at, "no control character inside a string")),
            Some(&byte) => {
                span.high |= byte >= 0x80;
                at += 1;
            }
            None => return Err(Fault::end(bytes)),
        }
    }
}

/// A number literal that has been read.
pub(crate) enum Literal {
    /// At most 15 digits, no fraction, no exponent, not −0.
    Integer(i64),
    /// Anything else.
    Other,
}

/// Reads an integer of at most 15 digits that is not −0; None for any other number.
#[inline(always)]
pub(crate) fn read_integer(bytes: &[u8], start: usize) -> Option<(i64, usize)> {
    match read_number(bytes, start) {
        Ok((Literal::Integer(value), end)) => Some((value, end)),
        _ => None,
    }
}

fn skip_digits(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    at
}

/// The number that up to eight digits make, the first one in the lowest byte, as values from 0 to 9; noughts before
/// them do not count.
#[inline(always)]
fn eight_digits(digits: u64) -> u64 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let high = (pairs & 0xff_0000_00ff).wrapping_mul(100 + (1_000_000 << 32));
    let low = (pairs >> 16 & 0xff_0000_00ff).wrapping_mul(1 + (10_000 << 32));
    high.wrapping_add(low) >> 32
}

/// The digits at the start of eight bytes: how many there are, and the number that they make.
#[inline(always)]
fn leading_digits(bytes: Option<&[u8; 8]>) -> (usize, u64) {
    let values = bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes)) ^ 0x3030_3030_3030_3030;
    // The top bits of bytes that are no digits; the carry of such a byte goes to those behind it.
    let others = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080;
    let count = others.trailing_zeros() / 8;
    let digits = values.checked_shl(64 - 8 * count).unwrap_or_default();
    (count as usize, eight_digits(digits))
}

/// The digits at a place: how many there are, up to 16, and the number that they make.
#[inline(always)]
fn read_digits(bytes: &[u8], first: usize) -> (usize, i64) {
    const POWERS: [u64; 9] = [
        1,
        10,
        100,
        1_000,
        10_000,
        100_000,
        1_000_000,
        10_000_000,
        100_000_000,
    ];
    if let Some(block) = bytes.get(first..).and_then(|rest| rest.first_chunk::<16>()) {
        let (mut count, mut value) = leading_digits(block.first_chunk());
        if count == 8 {
            let (more, rest) = leading_digits(block.last_chunk());
            count += more;
            value = value * POWERS.get(more).unwrap_or(&1) + rest;
        }
        return (count, value.cast_signed());
    }
    let mut value = 0;
    let mut at = first;
    while let Some(byte) = bytes.get(at).filter(|byte| byte.is_ascii_digit())
        && at - first <= SAFE_DIGITS
    {
        value = value * 10 + i64::from(byte - b'0');
        at += 1;
    }
    (at - first, value)
}

/// Reads a number literal and returns it with the byte behind it. At the very end of the input a literal may go on.
#[inline(always)]
pub(crate) fn read_number(bytes: &[u8], start: usize) -> Result<(Literal, usize), Fault> {
    let negative = bytes.get(start) == Some(&b'-');
    let first = start + usize::from(negative);
    let (digits, value) = read_digits(bytes, first);
    let at = first + digits;
    let next = bytes.get(at).copied();
    if digits == 0 {
        return Err(next.map_or_else(|| Fault::end(bytes), |_| Fault::unexpected(at, "a digit")));
    }
    if digits > 1 && bytes.get(first) == Some(&b'0') {
        return Err(Fault::unexpected(first + 1, "no digit behind a leading zero"));
    }
    if digits <= SAFE_DIGITS && !matches!(next, Some(b'.' | b'e' | b'E')) && !(negative && value == 0) {
        return Ok((Literal::Integer(if negative { -value } else { value }), at));
    }
    Ok((Literal::Other, number_rest(bytes, at)?))
}

/// The rest of a literal that is no small integer: further digits, fraction, exponent.
#[cold]
fn number_rest(bytes: &[u8], at: usize) -> Result<usize, Fault> {
    let some_digits = |from: usize| {
        let to = skip_digits(bytes, from);
        match bytes.get(to) {
            _ if to > from => Ok(to),
            Some(_) => Err(Fault::unexpected(to, "a digit")),
            None => Err(Fault::end(bytes)),
        }
    };
    let mut at = skip_digits(bytes, at);
    if bytes.get(at) == Some(&b'.') {
        at = some_digits(at + 1)?;
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        at = some_digits(at + 1 + usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-'))))?;
    }
    Ok(at)
}

#[inline(always)]
fn read_word(bytes: &[u8], at: usize, word: &'static [u8], expected: &'static str) -> Result<usize, Fault> {
    if bytes.get(at..at + word.len()) == Some(word) {
        return Ok(at + word.len());
    }
    let same = word
        .iter()
        .zip(bytes.get(at..).unwrap_or_default())
        .take_while(|(a, b)| a == b)
        .count();
    if at + same >= bytes.len() {
        Err(Fault::end(bytes))
    } else {
        Err(Fault::unexpected(at + same, expected))
    }
}

/// Reads one value that starts at `at` (white space allowed before it) and returns the byte behind it.
///
/// `open` is scratch space, empty before and after. With `ROW`, a line feed is not white space.
#[inline(always)]
#[expect(clippy::too_many_lines, reason = "one loop with a jump for each first byte")]
pub(crate) fn read_value<B: Blocks, S: Sink, const ROW: bool>(
    blocks: B,
    bytes: &[u8],
    mut at: usize,
    sink: &mut S,
    open: &mut Vec<Open>,
    max_depth: usize,
) -> Result<usize, Fault> {
    open.clear();
    at = skip_space::<ROW>(bytes, at);
    loop {
        // A value starts at `at`.
        let Some(&byte) = bytes.get(at) else {
            return Err(Fault::end(bytes));
        };
        match byte {
            b'"' => {
                let span = read_string(blocks, bytes, at + 1)?;
                checked(
                    sink.string(span, bytes.get(span.start..span.end).unwrap_or_default()),
                    at,
                )?;
                at = span.end + 1;
            }
            b'-' | b'0'..=b'9' => {
                let (literal, end) = read_number(bytes, at)?;
                checked(
                    match literal {
                        Literal::Integer(value) => sink.integer(value, at),
                        Literal::Other => sink.number(at, end),
                    },
                    at,
                )?;
                at = end;
            }
            b'{' => {
                if open.len() >= max_depth {
                    return Err(Fault {
                        at,
                        kind: FaultKind::TooDeep,
                    });
                }
                let start = at;
                at = skip_space::<ROW>(bytes, at + 1);
                if bytes.get(at) == Some(&b'}') {
                    at += 1;
                    checked(sink.empty_object(start, at), start)?;
                } else {
                    checked(sink.begin_object(start), start)?;
                    open.push(Open::Object);
                    at = read_key::<B, S, ROW>(blocks, bytes, at, sink)?;
                    continue;
                }
            }
            b'[' => {
                if open.len() >= max_depth {
                    return Err(Fault {
                        at,
                        kind: FaultKind::TooDeep,
                    });
                }
                let start = at;
                at = skip_space::<ROW>(bytes, at + 1);
                let first = bytes.get(at).copied();
                if S::PACKED
                    && let Some(end) = read_packed::<B, S, ROW>(blocks, bytes, start, first, sink)?
                {
                    at = end;
                } else if first == Some(b']') {
                    at += 1;
                    checked(sink.empty_array(start, at), start)?;
                } else if let Some(end) = sink.whole_array(bytes, start, max_depth - open.len()) {
                    at = end;
                } else {
                    checked(sink.begin_array(start), start)?;
                    open.push(Open::Array);
                    continue;
                }
            }
            b't' => {
                let end = read_word(bytes, at, b"true", "true")?;
                checked(sink.boolean(true, at), at)?;
                at = end;
            }
            b'f' => {
                let end = read_word(bytes, at, b"false", "false")?;
                checked(sink.boolean(false, at), at)?;
                at = end;
            }
            b'n' => {
                let end = read_word(bytes, at, b"null", "null")?;
                checked(sink.null(at), at)?;
                at = end;
            }
            _ => return Err(Fault::unexpected(at, "a JSON value")),
        }
        // A value ended; close what ends with it.
        loop {
            let Some(&innermost) = open.last() else {
                return Ok(at);
            };
            let Some(mut byte) = bytes.get(at).copied() else {
                return Err(Fault::end(bytes));
            };
            if byte <= b' ' {
                at = skip_space::<ROW>(bytes, at);
                match bytes.get(at) {
                    Some(&next) => byte = next,
                    None => return Err(Fault::end(bytes)),
                }
            }
            match (byte, innermost) {
                (b',', Open::Object) => {
                    at = skip_space::<ROW>(bytes, at + 1);
                    at = read_key::<B, S, ROW>(blocks, bytes, at, sink)?;
                    break;
                }
                (b',', Open::Array) => {
                    at = skip_space::<ROW>(bytes, at + 1);
                    break;
                }
                (b'}', Open::Object) => {
                    at += 1;
                    open.pop();
                    checked(sink.end_object(at), at)?;
                }
                (b']', Open::Array) => {
                    at += 1;
                    open.pop();
                    checked(sink.end_array(at), at)?;
                }
                (_, Open::Object) => return Err(Fault::unexpected(at, "a comma or }")),
                (_, Open::Array) => return Err(Fault::unexpected(at, "a comma or ]")),
            }
        }
    }
}

/// Reads a key and its colon and returns where the value starts.
#[inline(always)]
fn read_key<B: Blocks, S: Sink, const ROW: bool>(
    blocks: B,
    bytes: &[u8],
    at: usize,
    sink: &mut S,
) -> Result<usize, Fault> {
    match bytes.get(at) {
        Some(b'"') => {}
        Some(_) => return Err(Fault::unexpected(at, "a key in quotes")),
        None => return Err(Fault::end(bytes)),
    }
    let span = read_string(blocks, bytes, at + 1)?;
    checked(
        sink.key(span, bytes.get(span.start..span.end).unwrap_or_default()),
        at,
    )?;
    let mut at = span.end + 1;
    if bytes.get(at) != Some(&b':') {
        at = skip_space::<ROW>(bytes, at);
        match bytes.get(at) {
            Some(b':') => {}
            Some(_) => return Err(Fault::unexpected(at, "a colon")),
            None => return Err(Fault::end(bytes)),
        }
    }
    Ok(skip_space::<ROW>(bytes, at + 1))
}

/// Reads an array of strings or of integers as a whole, of which the first byte inside is known; None if it is neither.
#[inline(always)]
fn read_packed<B: Blocks, S: Sink, const ROW: bool>(
    blocks: B,
    bytes: &[u8],
    at: usize,
    first: Option<u8>,
    sink: &mut S,
) -> Result<Option<usize>, Fault> {
    match first {
        Some(b'"') => {
            let Some((end, shape)) = arrays::string_array::<B, ROW, true>(blocks, bytes, at + 1)? else {
                return Ok(None);
            };
            checked(sink.string_array(at, end, shape), at)?;
            Ok(Some(end))
        }
        Some(b'-' | b'0'..=b'9') => {
            let Some((end, shape)) = arrays::integer_array::<B, ROW>(blocks, bytes, at + 1)? else {
                return Ok(None);
            };
            checked(sink.integer_array(at, end, shape), at)?;
            Ok(Some(end))
        }
        _ => Ok(None),
    }
}
