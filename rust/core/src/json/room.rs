//! Text that is written with stores of fixed length into room that is there already. Spec 10 §1.1.

use super::blocks::{Blocks, Task, dispatch};
use super::number::put_digits;
use super::text::{BLOCK, WriteBlocks, escape_of, has_escaped};

/// How much room is made at once, if no more is needed: half of the text within these bounds.
const LEAST_STEP: usize = 256;
const MOST_STEP: usize = 4096;

/// Bytes of a text that is no longer than a block which are looked at together.
const PIECE: usize = 16;

/// Items for which room is made at once.
const BATCH: usize = 64;

/// Code units that are looked at together.
const UNITS: usize = 32;

/// Bytes that they may become, and room for one more copy of them.
const UNITS_ROOM: usize = 6 * UNITS + UNITS;

/// Text, and room behind it.
#[derive(Default)]
pub struct Room {
    bytes: Vec<u8>,
    /// Where the text ends.
    len: usize,
}

impl From<Vec<u8>> for Room {
    fn from(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self { bytes, len }
    }
}

impl From<Room> for Vec<u8> {
    fn from(mut room: Room) -> Self {
        room.bytes.truncate(room.len);
        room.bytes
    }
}

/// A code unit: a byte of Latin-1, a unit of UTF-16 in text without pairs, or a whole character.
pub trait Unit: Copy + Into<u32> {
    /// The unit, or the largest byte if it is more than that.
    fn narrow(self) -> u8;
}

impl Unit for u8 {
    #[inline(always)]
    fn narrow(self) -> u8 {
        self
    }
}

impl Unit for u16 {
    #[inline(always)]
    fn narrow(self) -> u8 {
        self.min(0xff).to_le_bytes()[0]
    }
}

impl Unit for u32 {
    #[inline(always)]
    fn narrow(self) -> u8 {
        self.min(0xff).to_le_bytes()[0]
    }
}

/// Writes a unit as it stands in a string literal; returns how many bytes it wrote.
#[inline(always)]
fn put_unit<U: Unit>(unit: U, place: &mut [u8]) -> Option<usize> {
    let room = place.first_chunk_mut::<8>()?;
    let code = unit.into();
    if let Ok(ascii @ ..0x80) = u8::try_from(code) {
        let (escape, len) = escape_of(ascii);
        *room = *escape;
        return Some(len);
    }
    Some(char::from_u32(code)?.encode_utf8(room).len())
}

/// Copies what begins at `start` of a padded block to some place.
#[inline(always)]
fn copy_units(padded: &[u8; 2 * UNITS], start: usize, at: usize, place: &mut [u8; UNITS_ROOM]) {
    let piece = padded.get(start..).and_then(|rest| rest.first_chunk::<UNITS>());
    let room = place
        .get_mut(at..)
        .and_then(|room| room.first_chunk_mut::<UNITS>());
    if let (Some(piece), Some(room)) = (piece, room) {
        *room = *piece;
    }
}

/// Appends units; false if one of them is no character.
struct WriteUnits<'a, 'r, U>(&'a [U], &'r mut Room);

impl<U: Unit> Task for WriteUnits<'_, '_, U> {
    type Output = bool;

    #[inline(always)]
    fn run<B: Blocks>(self, blocks: B) -> bool {
        let Self(text, room) = self;
        let (chunks, rest) = text.as_chunks::<UNITS>();
        for units in chunks {
            let narrow = units.map(Unit::narrow);
            let masks = blocks.short(&narrow);
            let others = masks.special | masks.high;
            if others == 0 {
                room.first_of(narrow, UNITS);
            } else if !room.block_of_units(units, &narrow, others) {
                return false;
            }
        }
        room.few_units(rest)
    }
}

impl Room {
    /// Bytes of the text.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The text.
    #[inline]
    pub fn text(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Takes back what is behind `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Bytes that are allocated.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Gives the text to who appends in another way.
    pub fn with_vec<R>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        self.bytes.truncate(self.len);
        let result = append(&mut self.bytes);
        self.len = self.bytes.len();
        result
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, needed: usize) {
        let step = (self.len / 2).clamp(LEAST_STEP, MOST_STEP);
        self.bytes.resize(self.len + needed.max(step), 0);
    }

    /// Appends as many of `N` bytes as `write` says that it wrote; false if it says that it did not.
    #[inline(always)]
    fn try_put<const N: usize>(&mut self, write: impl FnOnce(&mut [u8; N]) -> Option<usize>) -> bool {
        if self.bytes.len() - self.len < N {
            self.grow(N);
        }
        let room = self.bytes.get_mut(self.len..);
        if let Some(len) = room.and_then(|room| room.first_chunk_mut()).and_then(write) {
            self.len += len;
            return true;
        }
        false
    }

    /// [`Room::try_put`] of what is always written.
    #[inline(always)]
    fn put<const N: usize>(&mut self, write: impl FnOnce(&mut [u8; N]) -> usize) {
        self.try_put(|place| Some(write(place)));
    }

    /// Appends what `write` makes of each item, up to `N` bytes, until it makes nothing of one; returns how many it took.
    #[inline(always)]
    pub fn run<const N: usize, T: Copy>(
        &mut self,
        items: &[T],
        mut write: impl FnMut(T, &mut [u8; N]) -> Option<usize>,
    ) -> usize {
        let mut taken = 0;
        for batch in items.chunks(BATCH) {
            if self.bytes.len() - self.len < BATCH * N {
                self.grow(BATCH * N);
            }
            let room = self.bytes.get_mut(self.len..).unwrap_or_default();
            let mut len = 0;
            let before = taken;
            for &item in batch {
                let place = room.get_mut(len..).and_then(|room| room.first_chunk_mut());
                let Some(item_len) = place.and_then(|place| write(item, place)) else {
                    break;
                };
                taken += 1;
                len += item_len;
            }
            self.len += len;
            if taken - before < batch.len() {
                break;
            }
        }
        taken
    }

    /// Appends the first `len` of some bytes.
    #[inline(always)]
    pub fn first_of<const N: usize>(&mut self, bytes: [u8; N], len: usize) {
        debug_assert!(len <= N);
        self.put(|place| {
            *place = bytes;
            len
        });
    }

    /// Appends bytes as they are.
    pub fn literal(&mut self, bytes: &[u8]) {
        if self.bytes.len() - self.len < bytes.len() {
            self.grow(bytes.len());
        }
        if let Some(place) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            place.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    /// Appends a byte.
    #[inline(always)]
    pub fn byte(&mut self, byte: u8) {
        self.first_of([byte], 1);
    }

    /// Closes an array or object that `opening` opened, in which a comma stands behind every element; and appends `end`.
    #[inline(always)]
    pub fn close(&mut self, opening: u8, bracket: u8, end: u8) {
        if self.text().last() != Some(&opening) {
            self.len = self.len.saturating_sub(1);
        }
        self.first_of([bracket, end], 2);
    }

    /// Appends up to eight characters of ASCII as a string literal, and `end` behind it; false if they have to be
    /// escaped, and nothing is written. `word` holds them in its lowest bytes, and spaces above.
    #[inline(always)]
    pub fn short_ascii(&mut self, word: u64, len: usize, end: u8) -> bool {
        self.try_put(|place| put_short_ascii(word, len, end, place))
    }

    /// Appends ASCII text as a string literal, and `end` behind it.
    #[inline]
    pub fn ascii(&mut self, text: &[u8], end: u8) {
        if !self.try_put(|place| put_ascii(text, end, place)) {
            self.long_ascii(text, end);
        }
    }

    /// [`Room::ascii`] of any length.
    #[inline(never)]
    fn long_ascii(&mut self, text: &[u8], end: u8) {
        self.byte(b'"');
        let rest = if text.len() < BLOCK {
            text
        } else {
            let (rest, len) = dispatch(WriteBlocks(text, &mut self.bytes, self.len));
            self.len = len;
            rest
        };
        if !self.plain_ascii(rest) {
            for &byte in rest {
                let (escape, len) = escape_of(byte);
                self.first_of(*escape, len);
            }
        }
        self.first_of([b'"', end], 2);
    }

    /// Appends text of less than a block, if it has some length and stands as it is.
    #[inline]
    #[expect(
        clippy::needless_bitwise_bool,
        reason = "bytes are compared side by side, not one by one"
    )]
    fn plain_ascii(&mut self, text: &[u8]) -> bool {
        let (pieces, _) = text.as_chunks::<PIECE>();
        let Some(last) = text.last_chunk::<PIECE>() else {
            return false;
        };
        let is_escaped = |byte: u8| (byte < 0x20) | (byte == b'"') | (byte == b'\\');
        let is_plain = |piece: &[u8; PIECE]| !piece.iter().fold(false, |any, &byte| any | is_escaped(byte));
        if !pieces.iter().all(is_plain) || !is_plain(last) {
            return false;
        }
        self.put::<BLOCK>(|place| {
            let len = text.len().min(BLOCK);
            for (place, piece) in place.as_chunks_mut().0.iter_mut().zip(pieces) {
                *place = *piece;
            }
            // Some of it is there already, which makes no difference.
            if let Some(place) = place.get_mut(len - PIECE..len) {
                place.copy_from_slice(last);
            }
            len
        });
        true
    }

    /// Appends text as a string literal, and `end` behind it; false if a code unit is no character, as a half of a pair
    /// is none. What was written is to be taken back then.
    pub fn units<U: Unit>(&mut self, text: &[U], end: u8) -> bool {
        self.byte(b'"');
        let is_text = if text.len() < UNITS {
            self.few_units(text)
        } else {
            dispatch(WriteUnits(text, self))
        };
        self.first_of([b'"', end], 2);
        is_text
    }

    /// Appends a block of units; `others` are those that are not one byte each, which is what `narrow` has.
    #[inline(always)]
    fn block_of_units<U: Unit>(&mut self, units: &[U; UNITS], narrow: &[u8; UNITS], mut others: u32) -> bool {
        if others == u32::MAX {
            return self.few_units(units);
        }
        let mut padded = [0; 2 * UNITS];
        if let Some(start) = padded.first_chunk_mut() {
            *start = *narrow;
        }
        let mut is_text = true;
        self.put::<UNITS_ROOM>(|place| {
            let mut start = 0; // what is before is written
            let mut len = 0;
            while others != 0 {
                let at = others.trailing_zeros() as usize;
                copy_units(&padded, start, len, place);
                len += at - start;
                let unit = units.get(at).copied();
                let unit_len = unit.and_then(|unit| put_unit(unit, place.get_mut(len..)?));
                is_text &= unit_len.is_some();
                len += unit_len.unwrap_or_default();
                start = at + 1;
                others &= others - 1;
            }
            copy_units(&padded, start, len, place);
            len + UNITS - start
        });
        is_text
    }

    /// Appends units that are no more than a block; false as above.
    fn few_units<U: Unit>(&mut self, units: &[U]) -> bool {
        let mut is_text = true;
        self.put::<UNITS_ROOM>(|place| {
            let mut len = 0;
            for &unit in units {
                let Some(unit_len) = put_unit(unit, place.get_mut(len..).unwrap_or_default()) else {
                    is_text = false;
                    break;
                };
                len += unit_len;
            }
            len
        });
        is_text
    }

    /// Appends a finite double as JavaScript writes it, and `end` behind it.
    pub fn double(&mut self, value: f64, end: u8) {
        self.literal(ryu_js::Buffer::new().format_finite(value).as_bytes());
        self.byte(end);
    }

    /// Appends an integer, and `end` behind it.
    #[inline]
    pub fn integer(&mut self, value: i64, end: u8) {
        const DIGITS: usize = 20;
        self.put::<{ DIGITS + 2 }>(|place| {
            place[0] = b'-';
            let digits = value.unsigned_abs();
            let sign = usize::from(value < 0);
            let len = (sign + digits.checked_ilog10().unwrap_or_default() as usize + 1).min(DIGITS);
            put_digits(digits, place.get_mut(sign..len).unwrap_or_default());
            if let Some(place) = place.get_mut(len) {
                *place = end;
            }
            len + 1
        });
    }
}

/// Bytes that [`put_short_ascii`] may touch.
pub const SHORT_ROOM: usize = 11;

/// [`Room::short_ascii`] at a place; returns how many bytes it wrote.
#[inline(always)]
pub fn put_short_ascii(word: u64, len: usize, end: u8, place: &mut [u8; SHORT_ROOM]) -> Option<usize> {
    debug_assert!(len <= 8);
    if has_escaped(word) {
        return None;
    }
    let len = len.min(8);
    place[0] = b'"';
    *place.get_mut(1..)?.first_chunk_mut()? = word.to_le_bytes();
    *place.get_mut(1 + len..)?.first_chunk_mut()? = [b'"', end];
    Some(len + 3)
}

/// Writes nine to sixteen characters of ASCII as [`put_short_ascii`] does; None for other lengths, too.
#[inline(always)]
fn put_ascii(text: &[u8], end: u8, place: &mut [u8; 19]) -> Option<usize> {
    let (first, last) = (text.first_chunk::<8>()?, text.last_chunk::<8>()?);
    let is_escaped = |word: &[u8; 8]| has_escaped(u64::from_le_bytes(*word));
    if text.len() > 16 || is_escaped(first) || is_escaped(last) {
        return None;
    }
    place[0] = b'"';
    *place.get_mut(1..)?.first_chunk_mut()? = *first;
    *place.get_mut(text.len() - 7..)?.first_chunk_mut()? = *last;
    *place.get_mut(1 + text.len()..)?.first_chunk_mut()? = [b'"', end];
    Some(text.len() + 3)
}

#[cfg(test)]
mod tests {
    use super::super::text::write_string;
    use super::*;
    use crate::chance::Chance;

    /// The literal as it is written byte by byte.
    fn literal(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        write_string(text.as_bytes(), &mut out);
        out
    }

    #[test]
    fn texts_of_all_lengths_are_written_as_elsewhere() {
        let mut chance = Chance(11);
        let mut room = Room::default();
        let mut short = 0;
        for round in 0..20_000 {
            let len = if round % 2 == 0 {
                chance.below(20)
            } else {
                chance.below(300)
            };
            let rarity = [3, 40, 1_000][chance.below(3)];
            let text: String = (0..len)
                .map(|_| match chance.below(rarity) {
                    0 => ['"', '\\', '\n', '\u{1}', '\u{1f}', '\u{7f}'][chance.below(6)],
                    _ => char::from(b' ' + u8::try_from(chance.below(95)).unwrap()),
                })
                .collect();
            let mut expected = literal(&text);
            expected.push(b':');
            room.truncate(0);
            if len <= 8 {
                let mut word = *b"        ";
                word[..len].copy_from_slice(text.as_bytes());
                if room.short_ascii(u64::from_le_bytes(word), len, b':') {
                    assert_eq!(room.text(), expected, "{text}");
                    short += 1;
                } else {
                    assert!(room.is_empty() && expected.contains(&b'\\'), "{text}");
                }
            }
            room.truncate(0);
            room.ascii(text.as_bytes(), b':');
            assert_eq!(room.text(), expected, "{text}");
        }
        assert!(short > 2_000);
    }

    #[test]
    fn units_become_characters() {
        let mut chance = Chance(12);
        let mut room = Room::default();
        for _ in 0..20_000 {
            let most = [0x80, 0x100, 0x1_0000, 0x11_0000][chance.below(4)];
            let rarity = [1, 3, 20][chance.below(3)];
            let chars: Vec<char> = (0..chance.below(60))
                .map(|_| {
                    let code = if chance.below(rarity) == 0 {
                        chance.below(most)
                    } else {
                        chance.below(0x80)
                    };
                    char::from_u32(u32::try_from(code).unwrap()).unwrap_or('\u{ffff}')
                })
                .filter(|&char| u32::from(char) < u32::try_from(most).unwrap())
                .collect();
            let text: String = chars.iter().collect();
            let mut expected = literal(&text);
            expected.push(b',');
            let codes: Vec<u32> = chars.iter().map(|&char| u32::from(char)).collect();
            check_units(&codes, &mut room, &expected);
            check_narrower::<u16>(&codes, &mut room, &expected);
            check_narrower::<u8>(&codes, &mut room, &expected);
        }
    }

    fn check_units<U: Unit>(units: &[U], room: &mut Room, expected: &[u8]) {
        room.truncate(0);
        assert!(room.units(units, b','));
        assert_eq!(room.text(), expected, "{}", String::from_utf8_lossy(expected));
    }

    fn check_narrower<U: Unit + TryFrom<u32>>(codes: &[u32], room: &mut Room, expected: &[u8]) {
        let units: Option<Vec<U>> = codes.iter().map(|&code| U::try_from(code).ok()).collect();
        if let Some(units) = units {
            check_units(&units, room, expected);
        }
    }

    #[test]
    fn a_half_of_a_pair_is_no_character() {
        for half in [0xd800, 0xdbff, 0xdc00, 0xdfff] {
            for at in 0..20 {
                let mut units = [0x61u16; 20];
                units[at] = half;
                assert!(!Room::default().units(&units, b','));
                assert!(!Room::default().units(&units.map(u32::from), b','));
            }
        }
    }

    #[test]
    fn integers_have_their_digits() {
        let mut room = Room::default();
        for value in (0..19).map(|digits| 10i64.pow(digits)) {
            for value in [
                value - 1,
                value,
                1 - value,
                -value,
                value / 10 * 9 + 7,
                i64::MIN,
                i64::MAX,
            ] {
                room.truncate(0);
                room.integer(value, b',');
                assert_eq!(room.text(), format!("{value},").as_bytes());
            }
        }
    }

    #[test]
    fn a_run_stops_where_nothing_is_written() {
        let mut room = Room::default();
        let items: Vec<usize> = (0..500).collect();
        for end in [0, 1, 63, 64, 65, 300, 500] {
            room.truncate(0);
            let taken = room.run(&items, |item, place: &mut [u8; 3]| {
                *place = [b'a', b'b', b'-'];
                (item < end).then_some(item % 3)
            });
            let expected: String = (0..end).map(|item| &"ab"[..item % 3]).collect();
            assert_eq!((taken, room.text()), (end, expected.as_bytes()));
        }
    }

    #[test]
    fn brackets_take_the_place_of_a_comma() {
        let mut room = Room::from(b"x:".to_vec());
        room.byte(b'[');
        room.close(b'[', b']', b',');
        room.byte(b'{');
        room.integer(5, b',');
        room.close(b'{', b'}', b'\n');
        room.with_vec(|text| text.push(b'!'));
        assert_eq!(Vec::from(room), b"x:[],{5}\n!");
    }
}
