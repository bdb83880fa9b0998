//! Text that may hold lone surrogates, as WTF-8: UTF-8 in which a lone half is three bytes. Spec 10 §1, 20 §8.2.

use std::borrow::Cow;

use super::blocks::{Blocks, Task, dispatch};

const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Whether the code unit is a high (leading) surrogate.
#[inline]
fn is_high(unit: u32) -> bool {
    (0xd800..0xdc00).contains(&unit)
}

#[inline]
fn is_low(unit: u32) -> bool {
    (0xdc00..0xe000).contains(&unit)
}

/// The surrogate that three WTF-8 bytes spell, if they spell one.
fn surrogate(bytes: &[u8]) -> Option<u32> {
    match *bytes {
        [0xed, b @ 0xa0..=0xbf, c @ 0x80..=0xbf] => {
            Some(0xd000 | u32::from(b & 0x3f) << 6 | u32::from(c & 0x3f))
        }
        _ => None,
    }
}

/// Appends one scalar value or lone surrogate.
fn push_code(code: u32, out: &mut Vec<u8>) {
    if let Some(char) = char::from_u32(code) {
        let mut buffer = [0; 4];
        out.extend_from_slice(char.encode_utf8(&mut buffer).as_bytes());
    } else {
        let [.., high, low] = code.to_be_bytes();
        out.extend_from_slice(&[0xed, 0x80 | (high & 0x0f) << 2 | low >> 6, 0x80 | low & 0x3f]);
    }
}

/// Appends a piece of WTF-8; a high half at the end and a low half at the start become one character.
pub fn push_wtf8(out: &mut Vec<u8>, piece: &[u8]) {
    let tail = out
        .last_chunk::<3>()
        .and_then(|bytes| surrogate(bytes))
        .filter(|&unit| is_high(unit));
    let head = piece
        .first_chunk::<3>()
        .and_then(|bytes| surrogate(bytes))
        .filter(|&unit| is_low(unit));
    if let (Some(high), Some(low)) = (tail, head) {
        out.truncate(out.len() - 3);
        push_code(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00), out);
        out.extend_from_slice(piece.get(3..).unwrap_or_default());
    } else {
        out.extend_from_slice(piece);
    }
}

/// The text with every high and low half that stand side by side made one character.
pub fn fuse_wtf8(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        // Surrogates start with 0xED, so a piece that starts there may have one at its start.
        let behind = rest.get(1..).unwrap_or_default();
        let len = memchr::memchr(0xed, behind).map_or(rest.len(), |at| at + 1);
        let (piece, next) = rest.split_at(len);
        push_wtf8(&mut out, piece);
        rest = next;
    }
    out
}

/// Appends bytes as UTF-8; each maximal ill-formed part becomes U+FFFD.
fn push_utf8(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        out.extend_from_slice(chunk.valid().as_bytes());
        if !chunk.invalid().is_empty() {
            out.extend_from_slice(REPLACEMENT);
        }
    }
}

fn hex4(digits: &[u8]) -> u32 {
    digits.iter().take(4).fold(0, |unit, &digit| {
        unit << 4
            | u32::from(if digit <= b'9' {
                digit - b'0'
            } else {
                (digit | 0x20) - b'a' + 10
            })
    })
}

/// Decodes the inside of a JSON string literal that a reader has accepted.
///
/// # Cost
/// Borrows when there is neither an escape nor an ill-formed byte.
pub fn decode_string(raw: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'\\', raw).is_none() && std::str::from_utf8(raw).is_ok() {
        return Cow::Borrowed(raw);
    }
    let mut out = Vec::with_capacity(raw.len());
    decode_string_into(raw, &mut out);
    Cow::Owned(out)
}

/// [`decode_string`] that appends to a buffer.
pub fn decode_string_into(raw: &[u8], out: &mut Vec<u8>) {
    decode_escapes(raw, std::str::from_utf8(raw).is_ok(), out);
}

/// [`decode_string_into`] for a literal that is all ASCII. Returns whether what it appends is ASCII, too.
pub fn decode_ascii_into(raw: &[u8], out: &mut Vec<u8>) -> bool {
    decode_escapes(raw, true, out)
}

/// Appends the text of a literal; returns whether no escape gave anything else than ASCII.
fn decode_escapes(raw: &[u8], well_formed: bool, out: &mut Vec<u8>) -> bool {
    let mut ascii_only = true;
    let copy = |part: &[u8], out: &mut Vec<u8>| {
        if well_formed {
            out.extend_from_slice(part);
        } else {
            push_utf8(part, out);
        }
    };
    out.reserve(raw.len());
    let mut rest = raw;
    // Halves fuse only where one escape follows another; text between them keeps them apart.
    let mut high: Option<u32> = None;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let (before, escape) = rest.split_at(at);
        if !before.is_empty() {
            high = None;
            copy(before, out);
        }
        let (code, len) = match escape.get(1) {
            Some(b'u') => (hex4(escape.get(2..).unwrap_or_default()), 6),
            Some(b'b') => (0x08, 2),
            Some(b'f') => (0x0c, 2),
            Some(b'n') => (0x0a, 2),
            Some(b'r') => (0x0d, 2),
            Some(b't') => (0x09, 2),
            Some(&other) => (u32::from(other), 2),
            None => return ascii_only,
        };
        rest = escape.get(len..).unwrap_or_default();
        match (u8::try_from(code), high) {
            (Ok(ascii @ ..0x80), _) => {
                out.push(ascii);
                high = None;
            }
            (_, Some(first)) if is_low(code) => {
                // `ascii_only` is false since the first half.
                out.truncate(out.len() - 3);
                push_code(0x1_0000 + ((first - 0xd800) << 10) + (code - 0xdc00), out);
                high = None;
            }
            _ => {
                ascii_only = false;
                push_code(code, out);
                high = is_high(code).then_some(code);
            }
        }
    }
    copy(rest, out);
    ascii_only
}

/// Whether the three bytes at the start spell white space outside ASCII, and how many bytes it takes. Spec 20 §8.3.
fn wide_space(bytes: &[u8]) -> Option<usize> {
    match *bytes {
        [0xc2, 0xa0, ..] => Some(2),
        [0xe1, 0x9a, 0x80, ..]
        | [0xe2, 0x80, 0x80..=0x8a | 0xa8 | 0xa9 | 0xaf, ..]
        | [0xe2, 0x81, 0x9f, ..]
        | [0xe3, 0x80, 0x80, ..]
        | [0xef, 0xbb, 0xbf, ..] => Some(3),
        _ => None,
    }
}

/// Whether WTF-8 text holds anything that is not white space. Spec 20 §5, §8.3.
pub fn has_visible(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some(&first) = rest.first() {
        let len = match first {
            b'\t'..=b'\r' | b' ' => 1,
            _ => match wide_space(rest) {
                Some(len) => len,
                None => return true,
            },
        };
        rest = rest.get(len..).unwrap_or_default();
    }
    false
}

/// How a byte that may not stand in a string literal by itself is spelled, in the way that JavaScript does: the bytes,
/// and behind them how many they are. Other bytes of ASCII stand for themselves.
const ESCAPES: [[u8; 8]; 128] = {
    let mut escapes = [[0; 8]; 128];
    let mut byte = 0u8;
    while byte < 128 {
        let letter = match byte {
            b'"' => b'"',
            b'\\' => b'\\',
            0x08 => b'b',
            0x0c => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            _ => 0,
        };
        escapes[byte as usize] = match byte {
            _ if letter != 0 => [b'\\', letter, 0, 0, 0, 0, 0, 2],
            control @ ..0x20 => {
                let low = HEX[(control & 0xf) as usize];
                [b'\\', b'u', b'0', b'0', b'0' + (control >> 4), low, 0, 6]
            }
            other => [other, 0, 0, 0, 0, 0, 0, 1],
        };
        byte += 1;
    }
    escapes
};

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The escape of a byte, with room behind it, and its length.
#[inline(always)]
pub(super) fn escape_of(byte: u8) -> (&'static [u8; 8], usize) {
    let escape = ESCAPES.get(usize::from(byte)).unwrap_or(&[0; 8]);
    (escape, usize::from(escape[7]))
}

/// Appends a byte that may not stand in a string literal by itself.
fn push_escape(byte: u8, out: &mut Vec<u8>) {
    let (escape, len) = escape_of(byte);
    out.extend_from_slice(escape.get(..len).unwrap_or_default());
}

/// Appends `\u` and four digits.
fn push_unit(unit: u32, out: &mut Vec<u8>) {
    let hex = |nibble: u8| HEX.get(usize::from(nibble & 0xf)).copied().unwrap_or(b'0');
    let [.., high, low] = unit.to_be_bytes();
    out.extend_from_slice(&[b'\\', b'u', hex(high >> 4), hex(high), hex(low >> 4), hex(low)]);
}

/// Writes whole blocks of a text without halves where the given bytes of the output end, whatever it has behind them;
/// returns what is behind the blocks, and where the output ends now.
pub(super) struct WriteBlocks<'a, 'o>(pub(super) &'a [u8], pub(super) &'o mut Vec<u8>, pub(super) usize);

/// Bytes of a block.
pub(super) const BLOCK: usize = 64;

/// Bytes that a block may become, and room for one more copy of a block.
const ESCAPED_BLOCK: usize = 6 * 64 + 64;

impl<'a> Task for WriteBlocks<'a, '_> {
    type Output = (&'a [u8], usize);

    #[inline(always)]
    fn run<B: Blocks>(self, blocks: B) -> Self::Output {
        let Self(text, out, mut len) = self;
        let (chunks, rest) = text.as_chunks::<64>();
        for (number, chunk) in chunks.iter().enumerate() {
            if out.len() - len < ESCAPED_BLOCK {
                out.resize(len + (text.len() - 64 * number) + ESCAPED_BLOCK, 0);
            }
            let Some(place) = out.get_mut(len..).and_then(|room| room.first_chunk_mut()) else {
                break;
            };
            len += match blocks.long(chunk).special {
                0 => put_block(chunk, place),
                special => put_escaped(text.get(64 * number..).unwrap_or_default(), special, place),
            };
        }
        (rest, len)
    }
}

#[inline(always)]
fn put_block(block: &[u8; 64], place: &mut [u8; ESCAPED_BLOCK]) -> usize {
    if let Some(start) = place.first_chunk_mut() {
        *start = *block;
    }
    64
}

/// Writes the block at the start of a text, in which some bytes are escaped; returns how many bytes it has become.
#[inline(always)]
fn put_escaped(text: &[u8], mut special: u64, place: &mut [u8; ESCAPED_BLOCK]) -> usize {
    let mut start = 0; // what is before is written
    let mut len = 0;
    while special != 0 {
        let at = special.trailing_zeros() as usize;
        len += put_run(text, start, at, place, len);
        let (escape, escape_len) = escape_of(text.get(at).copied().unwrap_or_default());
        if let Some(room) = place.get_mut(len..).and_then(|room| room.first_chunk_mut()) {
            *room = *escape;
        }
        len += escape_len;
        start = at + 1;
        special &= special - 1;
    }
    len + put_run(text, start, 64, place, len)
}

/// Copies `text[start..end]`, up to a block, mostly as a copy of fixed length; returns its length.
#[inline(always)]
fn put_run(text: &[u8], start: usize, end: usize, place: &mut [u8; ESCAPED_BLOCK], at: usize) -> usize {
    let len = end - start;
    let room = place.get_mut(at..).unwrap_or_default();
    match text.get(start..).and_then(|rest| rest.first_chunk::<64>()) {
        Some(chunk) => {
            if let Some(room) = room.first_chunk_mut() {
                *room = *chunk;
            }
        }
        None => room
            .iter_mut()
            .zip(text.get(start..end).unwrap_or_default())
            .for_each(|(place, byte)| *place = *byte),
    }
    len
}

const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;

/// The top bits of those of eight bytes that may be `byte`. The lowest that is, is found for sure; bytes above it may
/// be, which makes no difference to who asks whether there is any.
#[inline(always)]
fn equal(word: u64, byte: u8) -> u64 {
    let x = word ^ (ONES * u64::from(byte));
    x.wrapping_sub(ONES) & !x & TOPS
}

/// Whether any of eight characters of ASCII is escaped: a quote, a backslash, a control character.
#[inline(always)]
pub(super) fn has_escaped(word: u64) -> bool {
    let below_space = word.wrapping_sub(ONES * 0x20) & !word & TOPS;
    below_space | equal(word, b'"') | equal(word, b'\\') != 0
}

/// Whether any of eight bytes may have to be written otherwise: one that is escaped, or the first of a half.
#[inline(always)]
fn has_special(bytes: &[u8; 8]) -> bool {
    let word = u64::from_le_bytes(*bytes);
    has_escaped(word) || equal(word, 0xed) != 0
}

/// Whether a text is written as it stands; only asked for short ones.
#[inline(always)]
fn is_plain(text: &[u8]) -> bool {
    // The last bytes are looked at once more, which is less than to look at some of them one by one.
    if let Some(last) = text.last_chunk::<8>() {
        let (words, _) = text.as_chunks::<8>();
        return !words.iter().any(has_special) && !has_special(last);
    }
    if let (Some(&[a, b, c, d]), Some(&[e, f, g, h])) = (text.first_chunk(), text.last_chunk()) {
        return !has_special(&[a, b, c, d, e, f, g, h]);
    }
    match *text {
        [] => true,
        [a] => !has_special(&[a; 8]),
        [a, b] => !has_special(&[a, b, b, b, b, b, b, b]),
        [a, b, c, ..] => !has_special(&[a, b, c, c, c, c, c, c]),
    }
}

/// Longest text that [`put_short`] writes.
const SHORT_LEN: usize = 16;

/// Bytes that [`put_short`] may touch.
const SHORT_ROOM: usize = 18;

/// Writes WTF-8 text as a JSON string literal, if it is short and stands as it is; returns how many bytes.
///
/// Copies of fixed length, which overlap, are no calls.
#[inline(always)]
fn put_short(text: &[u8], place: &mut [u8; SHORT_ROOM]) -> Option<usize> {
    const START: usize = 1;
    let len = text.len();
    if let (Some(first), Some(last)) = (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        if len > SHORT_LEN || has_special(first) || has_special(last) {
            return None;
        }
        *place.get_mut(START..)?.first_chunk_mut()? = *first;
        *place.get_mut(START + len - 8..)?.first_chunk_mut()? = *last;
    } else if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        let [low, high] = [first, last].map(|half| u64::from(u32::from_le_bytes(*half)));
        if has_special(&(low | high << 32).to_le_bytes()) {
            return None;
        }
        *place.get_mut(START..)?.first_chunk_mut()? = *first;
        *place.get_mut(START + len - 4..)?.first_chunk_mut()? = *last;
    } else {
        let short = match *text {
            [] => [b' '; 4],
            [a] => [a; 4],
            [a, b] => [a, b, b, b],
            [a, b, c, ..] => [a, b, c, c],
        };
        let [a, b, c, d] = short;
        if has_special(&[a, b, c, d, d, d, d, d]) {
            return None;
        }
        *place.get_mut(START..)?.first_chunk_mut()? = short;
    }
    place[0] = b'"';
    *place.get_mut(START + len)? = b'"';
    Some(START + len + 1)
}

/// Appends WTF-8 text as a JSON string literal. Spec 10 §1.1.
#[inline]
pub fn write_string(text: &[u8], out: &mut Vec<u8>) {
    // Nearly all fragments of a stream, and keys.
    if text.len() <= SHORT_LEN {
        let start = out.len();
        out.extend_from_slice(&[b'"'; SHORT_ROOM]);
        let place = out.last_chunk_mut();
        let len = place.and_then(|place| put_short(text, place));
        out.truncate(start + len.unwrap_or_default());
        if len.is_some() {
            return;
        }
    }
    out.reserve(text.len() + 2);
    out.push(b'"');
    if text.len() < 64 && is_plain(text) {
        out.extend_from_slice(text);
        out.push(b'"');
        return;
    }
    write_rest(text, out);
}

/// Appends text and the closing quote.
fn write_rest(text: &[u8], out: &mut Vec<u8>) {
    // Halves begin with 0xed, as some characters do.
    let text = if text.len() >= 64 && memchr::memchr(0xed, text).is_none() {
        let start = out.len();
        let (rest, len) = dispatch(WriteBlocks(text, out, start));
        out.truncate(len);
        rest
    } else {
        text
    };
    let mut start = 0;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' && byte != 0xed {
            at += 1;
            continue;
        }
        let unit = text.get(at..at + 3).and_then(surrogate);
        if byte == 0xed && unit.is_none() {
            at += 1;
            continue;
        }
        out.extend_from_slice(text.get(start..at).unwrap_or_default());
        match unit {
            Some(unit) => push_unit(unit, out),
            None => push_escape(byte, out),
        }
        at += if byte == 0xed { 3 } else { 1 };
        start = at;
    }
    out.extend_from_slice(text.get(start..).unwrap_or_default());
    out.push(b'"');
}

/// The number of a key that is a canonical array index, 0 … 4294967294. Spec 10 §1.
pub fn array_index(key: &[u8]) -> Option<u32> {
    if key.is_empty() || key.len() > 10 || (key.len() > 1 && key.first() == Some(&b'0')) {
        return None;
    }
    let mut value = 0u64;
    for &byte in key {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value * 10 + u64::from(byte - b'0');
    }
    u32::try_from(value).ok().filter(|&index| index != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ill_formed_parts_become_replacement_characters() {
        // Spec 10 §1, Bytes.
        let decoded = decode_string(&[0x61, 0xff, 0xed, 0xa0, 0xbd, 0xf0, 0x9f, 0x98]);
        assert_eq!(&*decoded, "a\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}".as_bytes());
    }

    #[test]
    fn escaped_halves_fuse_only_when_adjacent() {
        assert_eq!(&*decode_string(br"\ud83d\ude00"), "😀".as_bytes());
        assert_eq!(&*decode_string(br"\ud83dx\ude00"), b"\xed\xa0\xbdx\xed\xb8\x80");
        assert_eq!(&*decode_string(br"\ude00\ud83d"), b"\xed\xb8\x80\xed\xa0\xbd");
        assert_eq!(
            &*decode_string(br"\ud83d\ud83d\ude00"),
            b"\xed\xa0\xbd\xf0\x9f\x98\x80"
        );
    }

    #[test]
    fn joined_pieces_fuse() {
        let mut out = b"a\xed\xa0\xbd".to_vec();
        push_wtf8(&mut out, b"\xed\xb8\x80b");
        assert_eq!(out, "a😀b".as_bytes());
    }

    #[test]
    fn halves_side_by_side_fuse() {
        assert_eq!(
            fuse_wtf8(b"\xed\xa0\xbd\xed\xa0\xbd\xed\xb8\x80\xed\xb8\x80x"),
            b"\xed\xa0\xbd\xf0\x9f\x98\x80\xed\xb8\x80x"
        );
    }

    #[test]
    fn strings_are_escaped_as_javascript_does() {
        let mut out = Vec::new();
        write_string(
            b"\"\\\x08\x0c\n\r\t\x01\x1f\x7f/\xed\xa0\xbd\xed\x9f\xbf\xe2\x80\xa8",
            &mut out,
        );
        assert_eq!(
            out,
            b"\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7f/\\ud83d\xed\x9f\xbf\xe2\x80\xa8\""
        );
    }

    #[test]
    fn white_space_is_the_set_of_the_spec() {
        for text in [
            "\t\n\u{b}\u{c}\r ",
            "\u{a0}\u{1680}\u{2000}\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}",
        ] {
            assert!(!has_visible(text.as_bytes()));
        }
        for text in ["\u{85}", "\u{1c}", "\u{1f}", "\u{180e}", "\u{200b}", "\u{2060}"] {
            assert!(has_visible(text.as_bytes()));
        }
    }

    #[test]
    fn index_like_keys_are_canonical_and_below_two_to_the_32() {
        assert_eq!(array_index(b"4294967294"), Some(4_294_967_294));
        for key in [&b"4294967295"[..], b"01", b"", b"-1", b"1.0", b"99999999999"] {
            assert_eq!(array_index(key), None);
        }
    }

    #[test]
    fn strings_of_all_lengths_are_written_byte_by_byte_the_same() {
        let mut state = 3u64;
        let mut next = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        for round in 0..20_000 {
            let len = if round % 2 == 0 { next(24) } else { next(300) };
            let rarity = [3, 40, 1_000][next(3)];
            let text: Vec<u8> = (0..len)
                .map(|_| match next(rarity) {
                    0 => b"\"\\\n\x01\x1f\x7f"[next(6)],
                    _ => b'a' + u8::try_from(next(26)).unwrap(),
                })
                .collect();
            let mut expected = b"!\"".to_vec();
            for &byte in &text {
                if byte < 0x20 || byte == b'"' || byte == b'\\' {
                    push_escape(byte, &mut expected);
                } else {
                    expected.push(byte);
                }
            }
            expected.push(b'"');
            let mut out = b"!".to_vec();
            write_string(&text, &mut out);
            assert_eq!(out, expected, "{}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn long_strings_are_escaped_as_short_ones() {
        for special in [
            &b"\n"[..],
            b"\"",
            b"\\",
            b"\x01",
            b"\xed\xa0\xbd",
            b"\xed\x95\x9c",
            b"\x7f",
        ] {
            let mut escaped = Vec::new();
            write_string(special, &mut escaped);
            let escaped = &escaped[1..escaped.len() - 1];
            for at in 0..130 {
                let text = [&vec![b'x'; at][..], special, &[b'y'; 130]].concat();
                let mut out = Vec::new();
                write_string(&text, &mut out);
                let expected = [&b"\""[..], &vec![b'x'; at], escaped, &[b'y'; 130], b"\""].concat();
                assert_eq!(out, expected, "{special:?} at {at}");
            }
        }
    }
}
