//! Contents of packed arrays, written out side by side: the columns of streams. The benchmark `bench_columns` shows
//! what the block forms pay.

use super::blocks::{Blocks, Task, dispatch};
use super::tape::Node;
use super::text::decode_string_into;

/// The position behind the last byte, as columns hold it.
#[inline]
fn position(text: &[u8]) -> i64 {
    // No vector is longer than this.
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

impl Node<'_> {
    /// Appends the strings of an array to `text` as WTF-8, and the position behind each to `ends`. Halves of different
    /// strings do not fuse. Elements that are no strings are left out.
    pub fn push_texts(&self, text: &mut Vec<u8>, ends: &mut Vec<i64>) {
        if let Some(inside) = self.sound_text_array() {
            let start = position(text);
            dispatch(PushTexts::<true> {
                inside,
                text,
                start,
                ends,
            });
            return;
        }
        for piece in self.elements().filter_map(|element| element.text()) {
            text.extend_from_slice(&piece);
            ends.push(position(text));
        }
    }

    /// Appends the positions that [`push_texts`](Self::push_texts) appends, for a text of which `start` bytes are there.
    pub fn push_text_ends(&self, start: i64, ends: &mut Vec<i64>) {
        if let Some(inside) = self.sound_text_array() {
            let mut spare = Vec::new();
            let text = &mut spare;
            dispatch(PushTexts::<false> {
                inside,
                text,
                start,
                ends,
            });
            return;
        }
        let mut end = start;
        for piece in self.elements().filter_map(|element| element.text()) {
            end = end.saturating_add(position(&piece));
            ends.push(end);
        }
    }

    /// The array, if it holds nothing but strings and well-formed bytes: its quotes are then the strings' own, and no
    /// byte is replaced.
    fn sound_text_array(&self) -> Option<&[u8]> {
        let inside = self.raw().unwrap_or_default();
        (self.is_text_array() && std::str::from_utf8(inside).is_ok()).then_some(inside)
    }

    /// Appends `start`, and behind it, for each integer of an array, the sum so far. What is no safe integer counts as 0.
    pub fn push_running_sums(&self, start: i64, sums: &mut Vec<i64>) {
        sums.push(start);
        if let Some(shape) = self.integer_shape() {
            let array = self.raw().unwrap_or_default();
            if shape.max_digits <= SHORT_DIGITS {
                dispatch(PushSums { array, start, sums });
            } else {
                push_sums(array, start, sums);
            }
            return;
        }
        let mut sum = start;
        for element in self.elements() {
            sum = sum.saturating_add(element.safe_integer().unwrap_or_default());
            sums.push(sum);
        }
    }
}

/// Without `KEEP`, strings are counted only.
struct PushTexts<'b, 'o, const KEEP: bool> {
    /// A well-formed array of strings, brackets included.
    inside: &'b [u8],
    text: &'o mut Vec<u8>,
    /// Bytes that are there.
    start: i64,
    ends: &'o mut Vec<i64>,
}

/// Appends `bytes[start..end]`.
#[inline(always)]
fn push_piece(bytes: &[u8], start: usize, end: usize, text: &mut Vec<u8>) {
    const SHORT: usize = 16;
    let len = end.wrapping_sub(start);
    match bytes.get(start..).and_then(|rest| rest.first_chunk::<SHORT>()) {
        // A copy of fixed length is one instruction; nearly all fragments are shorter.
        Some(chunk) if len <= SHORT => {
            let before = text.len();
            text.extend_from_slice(chunk);
            text.truncate(before + len);
        }
        _ => text.extend_from_slice(bytes.get(start..end).unwrap_or_default()),
    }
}

/// The bits above the lowest `n`, which is at most 63.
#[inline(always)]
fn bits_from(n: u32) -> u64 {
    u64::MAX << n
}

impl<const KEEP: bool> Task for PushTexts<'_, '_, KEEP> {
    type Output = ();

    #[inline(always)]
    fn run<B: Blocks>(self, blocks: B) {
        let Self {
            inside,
            text,
            start,
            ends,
        } = self;
        if KEEP {
            // Room for a copy of fixed length behind the last piece.
            text.reserve(inside.len() + 16);
        }
        let mut end = start;
        let mut at = 0;
        let mut escaped = 0u64; // the first byte of the block is escaped
        let mut open: Option<usize> = None; // where the inside of the string that goes on starts
        let mut has_escape = false; // that string has an escape in a block before this one
        while at < inside.len() {
            let mut spare = [0; 64];
            let rest = inside.get(at..).unwrap_or_default();
            let masks = if let Some(block) = rest.first_chunk::<64>() {
                blocks.strings(block)
            } else {
                for (to, from) in spare.iter_mut().zip(rest) {
                    *to = *from;
                }
                blocks.strings(&spare)
            };
            let mut quotes = masks.quote;
            if masks.backslash | escaped != 0 {
                // Each backslash that is not escaped itself escapes the next byte.
                let mut taken = escaped;
                let mut pending = masks.backslash & !escaped;
                escaped = 0;
                while pending != 0 {
                    let bit = pending.trailing_zeros();
                    if bit == 63 {
                        escaped = 1;
                        break;
                    }
                    taken |= 2 << bit;
                    pending &= !(3 << bit);
                }
                quotes &= !taken;
            }
            let mut own = u64::MAX; // the bits from the start of the open string on
            while quotes != 0 {
                let bit = quotes.trailing_zeros();
                quotes &= quotes - 1;
                let place = at + bit as usize;
                match open.take() {
                    None => {
                        open = Some(place + 1);
                        own = bits_from(bit);
                        has_escape = false;
                    }
                    Some(start) => {
                        if has_escape || masks.backslash & own & !bits_from(bit) != 0 {
                            let before = if KEEP { text.len() } else { 0 };
                            text.truncate(before);
                            decode_string_into(inside.get(start..place).unwrap_or_default(), text);
                            end += position(text.get(before..).unwrap_or_default());
                        } else {
                            if KEEP {
                                push_piece(inside, start, place, text);
                            }
                            end += position(inside.get(start..place).unwrap_or_default());
                        }
                        ends.push(end);
                    }
                }
            }
            has_escape |= open.is_some() && masks.backslash & own != 0;
            at += 64;
        }
    }
}

/// Every byte the digit zero.
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// The value of up to eight digits, the first one in the lowest byte; bytes that are not used are 0 and come first.
#[inline(always)]
fn eight_digits(digits: u64) -> u64 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff
}

/// Digits of an integer that fits into eight bytes with what stands before it.
const SHORT_DIGITS: u32 = 7;

/// The integer of at most [`SHORT_DIGITS`] digits that ends before `end`.
#[inline(always)]
fn short_integer_before(bytes: &[u8], end: usize) -> i64 {
    let before = bytes.get(..end).unwrap_or_default();
    let word = before.last_chunk::<8>().copied().unwrap_or_else(|| {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().rev().zip(before.iter().rev()) {
            *to = *from;
        }
        word
    });
    let word = u64::from_le_bytes(word);
    let digits = word ^ ZEROS;
    // The top bit of each byte that is no digit.
    let low_bits = digits & 0x7f7f_7f7f_7f7f_7f7f;
    let others = (low_bits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
    let used = others.leading_zeros() & !7; // bits of digits
    let magnitude = eight_digits(digits & u64::MAX.wrapping_shl(64 - used)).cast_signed();
    let is_negative = word.wrapping_shl(used) >> 56 == u64::from(b'-');
    if is_negative { -magnitude } else { magnitude }
}

struct PushSums<'b, 'o> {
    /// A well-formed array of integers of at most [`SHORT_DIGITS`] digits, brackets included.
    array: &'b [u8],
    start: i64,
    sums: &'o mut Vec<i64>,
}

impl Task for PushSums<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<B: Blocks>(self, blocks: B) {
        let Self { array, start, sums } = self;
        let mut sum = start;
        let mut ends_in_digit = 0; // 1 if the block before this one does
        for (number, part) in array.chunks(64).enumerate() {
            let mut spare = [0; 64];
            let digit = if let Some(block) = part.first_chunk::<64>() {
                blocks.integers(block).digit
            } else {
                for (to, from) in spare.iter_mut().zip(part) {
                    *to = *from;
                }
                blocks.integers(&spare).digit
            };
            // The bytes behind integers. Finding all before reading any lets the processor read several at once.
            let mut ends = !digit & (digit << 1 | ends_in_digit);
            ends_in_digit = digit >> 63;
            let mut found = [0; 32];
            let count = ends.count_ones() as usize;
            for place in found.iter_mut().take(count) {
                let end = number * 64 + ends.trailing_zeros() as usize;
                ends &= ends.wrapping_sub(1);
                // 2^53 and the sum of as many short integers as fit in memory is no overflow.
                sum = sum.wrapping_add(short_integer_before(array, end));
                *place = sum;
            }
            sums.extend_from_slice(found.get(..count).unwrap_or_default());
        }
    }
}

/// Appends the running sums of an array of integers of at most 15 digits each.
fn push_sums(array: &[u8], start: i64, sums: &mut Vec<i64>) {
    let mut sum = start;
    let mut rest = array.get(1..).unwrap_or_default();
    while let Some(&byte) = rest.first() {
        if byte.wrapping_sub(b'0') > 9 && byte != b'-' {
            // A comma, white space, or the closing bracket.
            rest = rest.get(1..).unwrap_or_default();
            continue;
        }
        let is_negative = byte == b'-';
        if is_negative {
            rest = rest.get(1..).unwrap_or_default();
        }
        let mut magnitude = 0u64;
        loop {
            let Some(word) = rest.first_chunk::<8>() else {
                while let Some(&digit) = rest.first().filter(|byte| byte.is_ascii_digit()) {
                    magnitude = magnitude.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
                    rest = rest.get(1..).unwrap_or_default();
                }
                break;
            };
            let digits = u64::from_le_bytes(*word) ^ ZEROS;
            // The top bit of each byte that is no digit. Digits stay below 10, so no sum carries before the first one.
            let others = (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
            let len = others.trailing_zeros() / 8;
            if len == 8 {
                magnitude = magnitude
                    .wrapping_mul(100_000_000)
                    .wrapping_add(eight_digits(digits));
                rest = rest.get(8..).unwrap_or_default();
                continue;
            }
            if len > 0 {
                const POWERS: [u64; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
                let used = eight_digits(digits << (64 - 8 * len));
                let scale = POWERS.get(len as usize).copied().unwrap_or(1);
                magnitude = magnitude.wrapping_mul(scale).wrapping_add(used);
                // The comma goes along, where there is one; the next round would only skip it.
                let is_comma = word.get(len as usize) == Some(&b',');
                rest = rest
                    .get(len as usize + usize::from(is_comma)..)
                    .unwrap_or_default();
            }
            break;
        }
        let magnitude = i64::try_from(magnitude).unwrap_or(i64::MAX);
        sum = sum.saturating_add(if is_negative { -magnitude } else { magnitude });
        sums.push(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tape;

    fn both(text: &str) -> (Vec<u8>, Vec<i64>, Vec<i64>) {
        let mut tape = Tape::new();
        let node = tape.read_text(text.as_bytes(), 9).unwrap();
        let (mut out, mut ends, mut sums) = (vec![b'!'], vec![1], Vec::new());
        node.push_texts(&mut out, &mut ends);
        node.push_running_sums(5, &mut sums);
        let mut counted = vec![1];
        node.push_text_ends(1, &mut counted);
        assert_eq!(counted, ends, "{text}");
        (out, ends, sums)
    }

    #[test]
    fn strings_of_any_length_and_place_are_copied_and_decoded() {
        let mut state = 3u64;
        let mut next = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        let pieces = [
            "a", "é", "\\n", "\\\"", "\\\\", "\\ud83d", "\\ude00", ",", "[", "]", " ", "函",
        ];
        for _ in 0..2_000 {
            let mut text = "[".to_owned();
            let count = next(30);
            for i in 0..count {
                if i > 0 {
                    text.push_str([",", " , "][usize::from(next(9) == 0)]);
                }
                text.push('"');
                let len = [next(4), next(30), next(200)][next(3)];
                for _ in 0..len {
                    // Escapes are rarer than letters.
                    text.push_str(pieces[if next(4) == 0 { next(12) } else { 0 }]);
                }
                text.push('"');
            }
            text.push(']');
            let mut tape = Tape::new();
            let node = tape.read_text(text.as_bytes(), 9).unwrap();
            let (mut expected, mut places) = (vec![b'!'], vec![1]);
            for element in node.elements() {
                expected.extend_from_slice(&element.text().unwrap());
                places.push(i64::try_from(expected.len()).unwrap());
            }
            let (out, ends, _) = both(&text);
            assert_eq!((out, ends), (expected, places), "{text}");
        }
    }

    #[test]
    fn integers_at_every_place_of_a_block_are_summed() {
        let mut state = 5u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % n
        };
        for _ in 0..2_000 {
            let steps: Vec<i64> = (0..next(90))
                .map(|_| {
                    let limit = 10u64.pow(u32::try_from(1 + next(7)).unwrap());
                    let size = next(limit).cast_signed();
                    if next(4) == 0 { -size } else { size }
                })
                .collect();
            let text = format!("{steps:?}");
            let text = if next(9) == 0 { text } else { text.replace(' ', "") };
            let mut expected = vec![5];
            expected.extend(steps.iter().scan(5, |sum, step| {
                *sum += step;
                Some(*sum)
            }));
            assert_eq!(both(&text).2, expected, "{text}");
        }
    }

    #[test]
    fn halves_of_two_strings_do_not_fuse() {
        let (out, ends, _) = both(r#"["\ud83d","\ude00","\ud83d\ude00"]"#);
        assert_eq!(out, b"!\xed\xa0\xbd\xed\xb8\x80\xf0\x9f\x98\x80");
        assert_eq!(ends, [1, 4, 7, 11]);
    }

    #[test]
    fn ill_formed_bytes_are_replaced() {
        let mut tape = Tape::new();
        let node = tape.read_text(b"[\"a\xff\",\"b\"]", 9).unwrap();
        let (mut out, mut ends) = (Vec::new(), Vec::new());
        node.push_texts(&mut out, &mut ends);
        assert_eq!((out, &ends), ("a\u{fffd}b".as_bytes().to_vec(), &vec![4, 5]));
        let mut counted = Vec::new();
        node.push_text_ends(0, &mut counted);
        assert_eq!(counted, ends);
    }

    #[test]
    fn sums_run_over_integers_of_every_length() {
        for (text, sums) in [
            ("[]", vec![5]),
            ("[0,1,-2,30]", vec![5, 5, 6, 4, 34]),
            ("[ 1 , -0,\t2]", vec![5, 6, 6, 8]),
            (
                "[1234567,12345678,123456789012345,-123456789012345]",
                vec![5, 1_234_572, 13_580_250, 123_456_802_592_595, 13_580_250],
            ),
            ("[1.0,2e1,-0.0]", vec![5, 6, 26, 26]),
            ("[7]", vec![5, 12]),
            ("[-7,8]", vec![5, -2, 6]),
            ("[-1234567]", vec![5, -1_234_562]),
            (
                "[9007199254740991,-1]",
                vec![5, 9_007_199_254_740_996, 9_007_199_254_740_995],
            ),
        ] {
            assert_eq!(both(text).2, sums, "{text}");
        }
    }
}
