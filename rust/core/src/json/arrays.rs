//! Whole arrays of strings or integers, checked 64 bytes at a time.
//!
//! Streams are mostly such arrays (`dt`, `texts`, `args`), and most of their strings are a few bytes long, so a look at
//! each string costs more than the bytes do. The block forms below accept compact JSON only; whatever they do not
//! expect is read again, element by element. The benchmark `bench_check` shows what it pays.

use super::blocks::{Blocks, escaped_bytes};
use super::reader::{
    Fault, FaultKind, Literal, read_integer, read_number, read_string, skip_rare_escape, skip_space,
};
use super::sink::{IntegerShape, StringShape};

/// What a block form found.
enum Blockwise<T> {
    /// The array ends here.
    Done(T),
    /// Nothing wrong so far, but the input ends.
    End,
    /// Something that only the element by element form can judge.
    Unclear,
}

#[inline(always)]
fn bits_below(n: u32) -> u64 {
    1u64.checked_shl(n).map_or(u64::MAX, |bit| bit - 1)
}

/// The block at `at`, filled up with zero bytes at the end of the input, and how many bytes are real.
#[inline(always)]
fn block_at<'a>(bytes: &'a [u8], at: usize, spare: &'a mut [u8; 64]) -> (&'a [u8; 64], u32) {
    let rest = bytes.get(at..).unwrap_or_default();
    if let Some(block) = rest.first_chunk::<64>() {
        return (block, 64);
    }
    for (to, from) in spare.iter_mut().zip(rest) {
        *to = *from;
    }
    // Below 64 here.
    (spare, u32::try_from(rest.len()).unwrap_or(0))
}

/// Every bit says whether an odd number of bits up to it is set.
#[inline(always)]
fn parity(mut bits: u64) -> u64 {
    for shift in [1, 2, 4, 8, 16, 32] {
        bits ^= bits << shift;
    }
    bits
}

/// Reads an array of strings whose inside starts at `start`: the byte behind `]`, and what is known of them. Whether
/// they are plain is only looked at with `LOOKS`.
///
/// None if an element is no string. A syntax error is left for the reader to find again.
#[inline(always)]
pub(super) fn string_array<B: Blocks, const ROW: bool, const LOOKS: bool>(
    blocks: B,
    bytes: &[u8],
    start: usize,
) -> Result<Option<(usize, StringShape)>, Fault> {
    match strings_blockwise::<B, LOOKS>(blocks, bytes, start) {
        Blockwise::Done(done) => Ok(Some(done)),
        Blockwise::End => Err(Fault::end(bytes)),
        Blockwise::Unclear => {
            let found = strings_one_by_one::<B, ROW>(blocks, bytes, start)?;
            let shape = |count| StringShape {
                count,
                is_compact: false,
                is_plain: false,
            };
            Ok(found.map(|(end, count)| (end, shape(count))))
        }
    }
}

#[inline(always)]
fn strings_blockwise<B: Blocks, const LOOKS: bool>(
    blocks: B,
    bytes: &[u8],
    start: usize,
) -> Blockwise<(usize, StringShape)> {
    let mut at = start;
    let mut count = 0usize;
    let mut is_plain = LOOKS;
    // Carried from block to block, each 0 or 1 (or all ones for `inside`):
    let mut inside = 0u64; // the block starts inside a string
    let mut escaped = 0u64; // its first byte is escaped
    let mut want_comma = 0u64; // the last byte closed a string
    let mut want_quote = 1u64; // the last byte was a comma, or `[`
    loop {
        let mut spare = [0; 64];
        let (block, real) = block_at(bytes, at, &mut spare);
        let masks = blocks.strings(block);
        if LOOKS {
            // A byte behind the array may make it too careful, never too careless.
            is_plain &= !masks.high;
        }
        let mut quote = masks.quote;
        let mut bad = 0;
        let mut unicode = 0;
        if masks.backslash | escaped != 0 {
            let letters = blocks.escapes(block);
            let behind = escaped_bytes(masks.backslash, &mut escaped);
            quote &= !behind;
            bad = behind & !letters.letter;
            unicode = behind & letters.unicode;
            if LOOKS {
                is_plain &= behind & (letters.unicode | letters.slash) == 0;
            }
        }
        let within = parity(quote) ^ inside; // opening quotes and insides, not closing quotes
        let opening = quote & within;
        let closing = quote & !within;
        let comma = masks.comma & !within;
        // Where the text stops to be strings with commas between them.
        let wrong = !within & !(closing | comma) | within & masks.control;
        let len = wrong.trailing_zeros();
        let range = bits_below(len);
        let expected_comma = closing << 1 | want_comma;
        let expected_quote = comma << 1 | want_quote;
        if ((expected_comma ^ comma) | (expected_quote ^ opening) | bad) & range != 0 {
            return Blockwise::Unclear;
        }
        unicode &= range;
        while unicode != 0 {
            let letter = at + unicode.trailing_zeros() as usize;
            match skip_rare_escape(bytes, letter - 1) {
                Ok(_) => unicode &= unicode - 1,
                Err(Fault {
                    kind: FaultKind::End, ..
                }) => return Blockwise::End,
                Err(_) => return Blockwise::Unclear,
            }
        }
        count += (opening & range).count_ones() as usize;
        if len < 64 {
            if len >= real {
                return Blockwise::End;
            }
            let end = at + len as usize;
            return if bytes.get(end) == Some(&b']') && expected_comma >> len & 1 == 1 {
                let shape = StringShape {
                    count,
                    is_compact: true,
                    is_plain,
                };
                Blockwise::Done((end + 1, shape))
            } else {
                Blockwise::Unclear
            };
        }
        if real < 64 {
            return Blockwise::End;
        }
        want_comma = closing >> 63;
        want_quote = comma >> 63;
        inside = 0u64.wrapping_sub(within >> 63);
        at += 64;
    }
}

/// Any white space, any element; the slow form of the above.
#[cold]
fn strings_one_by_one<B: Blocks, const ROW: bool>(
    blocks: B,
    bytes: &[u8],
    start: usize,
) -> Result<Option<(usize, usize)>, Fault> {
    let mut at = start;
    let mut count = 0;
    loop {
        at = skip_space::<ROW>(bytes, at);
        match bytes.get(at) {
            Some(b'"') => {}
            Some(_) => return Ok(None),
            None => return Err(Fault::end(bytes)),
        }
        at = read_string(blocks, bytes, at + 1)?.end + 1;
        count += 1;
        at = skip_space::<ROW>(bytes, at);
        match bytes.get(at) {
            Some(b',') => at += 1,
            Some(b']') => return Ok(Some((at + 1, count))),
            Some(_) => return Ok(None),
            None => return Err(Fault::end(bytes)),
        }
    }
}

/// Reads an array of integers whose inside starts at `start`: the byte behind `]` and what is known of them.
///
/// None if an element is anything else than an integer of at most 15 digits.
#[inline(always)]
pub(super) fn integer_array<B: Blocks, const ROW: bool>(
    blocks: B,
    bytes: &[u8],
    start: usize,
) -> Result<Option<(usize, IntegerShape)>, Fault> {
    // A block is too much for an array of one, and one digit needs no look at a number.
    if let Some([digit, b']']) = bytes.get(start..).and_then(|rest| rest.first_chunk())
        && digit.is_ascii_digit()
    {
        let shape = IntegerShape {
            count: 1,
            max_digits: 1,
            negative_zero: false,
        };
        return Ok(Some((start + 2, shape)));
    }
    if let Some((_, end)) = read_integer(bytes, start)
        && bytes.get(end) == Some(&b']')
    {
        // A minus counts as a digit here.
        let max_digits = u32::try_from(end - start).unwrap_or(u32::MAX);
        return Ok(Some((
            end + 1,
            IntegerShape {
                count: 1,
                max_digits,
                negative_zero: false,
            },
        )));
    }
    match integers_blockwise(blocks, bytes, start) {
        Blockwise::Done(done) => Ok(Some(done)),
        Blockwise::End => Err(Fault::end(bytes)),
        Blockwise::Unclear => integers_one_by_one::<ROW>(bytes, start),
    }
}

/// Digits that the block form accepts in one integer.
const BLOCK_DIGITS: u32 = 7;

#[inline(always)]
fn integers_blockwise<B: Blocks>(blocks: B, bytes: &[u8], start: usize) -> Blockwise<(usize, IntegerShape)> {
    let mut at = start;
    let mut count = 0usize;
    let mut negative_zero = 0u64;
    // Carried from block to block: what the last byte (the last bytes, for `digits`) was.
    let mut digits = 0u64;
    let mut separator = 1u64; // a comma, or `[`
    let mut minus = 0u64;
    let mut leading_zero = 0u64;
    loop {
        let mut spare = [0; 64];
        let (block, real) = block_at(bytes, at, &mut spare);
        let masks = blocks.integers(block);
        let len = (!(masks.digit | masks.comma | masks.minus)).trailing_zeros();
        let range = bits_below(len);
        let behind_digit = masks.digit << 1 | digits >> 63;
        let behind_separator = masks.comma << 1 | separator;
        let behind_minus = masks.minus << 1 | minus;
        let first = masks.digit & !behind_digit;
        let zero = masks.zero & first;
        // A minus starts a number and has a digit behind it; a comma has a digit before it; nothing follows a leading
        // zero. What follows a separator is then a digit or a minus, because there is nothing else in the range.
        let wrong = masks.minus & !behind_separator
            | behind_minus & !masks.digit
            | masks.comma & !behind_digit
            | (zero << 1 | leading_zero) & masks.digit;
        // Runs of eight digits: bit i of `wide` is bit i − 7 of the block.
        let wide = u128::from(masks.digit) << 7 | u128::from(digits >> 57);
        let runs = wide & wide >> 1;
        let runs = runs & runs >> 2;
        let runs = runs & runs >> 4;
        if wrong & range != 0 || runs & u128::from(range) != 0 {
            return Blockwise::Unclear;
        }
        count += (first & range).count_ones() as usize;
        negative_zero |= zero & behind_minus & range;
        if len < 64 {
            if len >= real {
                return Blockwise::End;
            }
            let end = at + len as usize;
            return if bytes.get(end) == Some(&b']') && behind_digit >> len & 1 == 1 {
                let negative_zero = negative_zero != 0;
                Blockwise::Done((
                    end + 1,
                    IntegerShape {
                        count,
                        max_digits: BLOCK_DIGITS,
                        negative_zero,
                    },
                ))
            } else {
                Blockwise::Unclear
            };
        }
        if real < 64 {
            return Blockwise::End;
        }
        digits = masks.digit;
        separator = masks.comma >> 63;
        minus = masks.minus >> 63;
        leading_zero = zero >> 63;
        at += 64;
    }
}

/// Any white space, up to 15 digits; the slow form of the above.
#[cold]
fn integers_one_by_one<const ROW: bool>(
    bytes: &[u8],
    start: usize,
) -> Result<Option<(usize, IntegerShape)>, Fault> {
    let mut shape = IntegerShape {
        count: 0,
        max_digits: 1,
        negative_zero: false,
    };
    let mut at = start;
    loop {
        at = skip_space::<ROW>(bytes, at);
        match bytes.get(at) {
            Some(b'-' | b'0'..=b'9') => {}
            Some(_) => return Ok(None),
            None => return Err(Fault::end(bytes)),
        }
        let (literal, end) = read_number(bytes, at)?;
        if bytes.get(end).is_none() {
            return Err(Fault::end(bytes));
        }
        match literal {
            Literal::Integer(value) => {
                let digits = value.unsigned_abs().checked_ilog10().unwrap_or(0) + 1;
                shape.max_digits = shape.max_digits.max(digits);
            }
            Literal::Other if bytes.get(at..end) == Some(b"-0") => shape.negative_zero = true,
            Literal::Other => return Ok(None),
        }
        shape.count += 1;
        at = skip_space::<ROW>(bytes, end);
        match bytes.get(at) {
            Some(b',') => at += 1,
            Some(b']') => return Ok(Some((at + 1, shape))),
            Some(_) => return Ok(None),
            None => return Err(Fault::end(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::{Blocks, Portable, Task, dispatch};
    use super::super::spell::has_own_escapes;
    use super::*;

    struct Both<'a>(&'a [u8]);
    type Found = (
        Option<(usize, StringShape)>,
        Option<(usize, IntegerShape)>,
        bool,
        bool,
    );

    fn blockwise<B: Blocks>(blocks: B, bytes: &[u8]) -> Found {
        let (s, se) = match strings_blockwise::<B, true>(blocks, bytes, 1) {
            Blockwise::Done(x) => (Some(x), false),
            Blockwise::End => (None, true),
            Blockwise::Unclear => (None, false),
        };
        let (i, ie) = match integers_blockwise(blocks, bytes, 1) {
            Blockwise::Done(x) => (Some(x), false),
            Blockwise::End => (None, true),
            Blockwise::Unclear => (None, false),
        };
        (s, i, se, ie)
    }

    impl Task for Both<'_> {
        type Output = Found;
        #[inline(always)]
        fn run<B: Blocks>(self, blocks: B) -> Found {
            blockwise(blocks, self.0)
        }
    }

    /// Random texts from an alphabet that makes arrays likely; what a block form accepts or calls unfinished, the
    /// element by element form must too.
    #[test]
    #[expect(clippy::too_many_lines, reason = "one list of pieces, one loop")]
    fn block_forms_never_accept_what_the_plain_forms_refuse() {
        let mut state = 7u64;
        let mut next = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        let pieces: [&[u8]; 22] = [
            b"\"a\"",
            b",",
            b"\"\"",
            b"\"\\n\"",
            b"\"\\u00e9\"",
            b"\"\\\\\"",
            b"\"\\\"\"",
            b"\"[,]\"",
            b"1",
            b"0",
            b"-",
            b"12",
            b"1234567",
            b"12345678",
            b"]",
            b" ",
            b"\"longer text, with a comma\"",
            b"-0",
            b"\\",
            b"\x01",
            b"\"\\/\"",
            "\"é\"".as_bytes(),
        ];
        let mut accepted = 0;
        for round in 0..60_000 {
            let mut text = b"[".to_vec();
            // A sound array, then up to two changes.
            let strings = round % 2 == 0;
            for i in 0..=next(40) {
                if i > 0 {
                    text.push(b',');
                }
                let piece = if strings {
                    [0, 2, 3, 4, 5, 6, 7, 16, 20, 21][next(if round % 3 == 0 { 10 } else { 8 })]
                } else {
                    [8, 9, 11, 12, 13, 17][next(6)]
                };
                text.extend_from_slice(pieces[piece]);
            }
            text.extend_from_slice(b"],\"rest\":1}");
            for _ in 0..next(3) {
                let at = 1 + next(text.len() - 1);
                let piece = pieces[next(22)];
                text.splice(at..(at + next(3)).min(text.len()), piece.iter().copied());
            }
            if next(4) == 0 {
                text.truncate(1 + next(text.len()));
            }
            let found = blockwise(Portable, &text);
            assert_eq!(found, dispatch(Both(&text)));
            let slow_strings = strings_one_by_one::<_, false>(Portable, &text, 1);
            let slow_integers = integers_one_by_one::<false>(&text, 1);
            if let Some((end, shape)) = found.0 {
                accepted += 1;
                let shown = String::from_utf8_lossy(&text);
                assert_eq!(slow_strings, Ok(Some((end, shape.count))), "{shown}");
                let is_plain = text[..end].is_ascii() && has_own_escapes(&text[..end]);
                assert!(shape.is_compact && (is_plain || !shape.is_plain), "{shown}");
            }
            if let Some((end, shape)) = found.1 {
                accepted += 1;
                let (slow_end, slow) = slow_integers.unwrap().unwrap();
                assert_eq!(
                    (end, shape.count, shape.negative_zero),
                    (slow_end, slow.count, slow.negative_zero)
                );
                assert!(slow.max_digits <= shape.max_digits);
            }
            if found.2 {
                assert!(
                    matches!(
                        slow_strings,
                        Err(Fault {
                            kind: FaultKind::End,
                            ..
                        })
                    ),
                    "{}",
                    String::from_utf8_lossy(&text)
                );
            }
            if found.3 {
                assert!(
                    matches!(
                        slow_integers,
                        Err(Fault {
                            kind: FaultKind::End,
                            ..
                        })
                    ),
                    "{}",
                    String::from_utf8_lossy(&text)
                );
            }
        }
        assert!(accepted > 10_000);
    }
}
