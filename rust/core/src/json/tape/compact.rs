//! Whether a row is spelled as the writer spells it, found out from its tape: nothing is written to compare with.

use std::collections::HashSet;

use super::super::number::{integer_len, is_spelled_double};
use super::super::spell::{has_own_escapes, has_space};
use super::{RECORD_WORDS, Records, Tag, Tape, whole};

/// Objects with more members are searched for repeated keys by hash.
const FEW_MEMBERS: usize = 12;

impl Tape {
    /// Whether the row that was read last is spelled as the writer would spell it, which no number does that it cannot
    /// spell: −0 and those that are not finite. Spec 10 §1.1, §1.2.
    ///
    /// A row that is not on the tape as a whole, but for [spelled](Tape::spell_records) records, that has a key like an
    /// index, or an escape of half a character is said not to be, whatever it is.
    ///
    /// # Cost
    /// One look at each word of the tape, and one at the bytes of the row if any is not ASCII. What the literals leave
    /// open is white space, and that is known from the length.
    pub(crate) fn is_canonical(&self, row: &[u8]) -> bool {
        let Some((len, may_be_high)) = self.canonical_len(row) else {
            return false;
        };
        len == row.len() && (!may_be_high || std::str::from_utf8(row).is_ok())
    }

    /// Bytes of the value as the writer spells it, if its literals are those of the writer but for bytes that are no
    /// UTF-8, and whether there may be any from 0x80.
    fn canonical_len(&self, row: &[u8]) -> Option<(usize, bool)> {
        let mut len = 0;
        let mut may_be_high = false;
        let mut values = 0;
        let mut keys = 0;
        let mut containers = 0;
        let mut at = 0;
        while let Some(word) = self.words.get(at) {
            at += 1;
            values += 1;
            let span = word.b.wrapping_sub(word.a) as usize;
            len += match word.tag {
                Tag::Null | Tag::True => 4,
                Tag::False => 5,
                Tag::Integer => integer_len(whole(*word)),
                Tag::Number => {
                    let literal = row.get(word.a as usize..word.b as usize)?;
                    is_spelled_double(literal).then_some(span)?
                }
                Tag::Text => {
                    may_be_high |= word.high;
                    if word.flag && !has_own_escapes(row.get(word.a as usize..word.b as usize)?) {
                        return None;
                    }
                    span + 2
                }
                Tag::Array => {
                    containers += 1;
                    2
                }
                Tag::Object => {
                    containers += 1;
                    keys += self.count_keys(row, at - 1)?;
                    2
                }
                Tag::Close => {
                    values -= 1;
                    0
                }
                Tag::Texts => {
                    at += 1;
                    may_be_high |= word.high;
                    if word.high && !has_own_escapes(row.get(word.a as usize..word.b as usize)?) {
                        return None;
                    }
                    word.flag.then_some(span)?
                }
                Tag::LazyArray if word.flag && self.records == Records::Spelled => {
                    at += RECORD_WORDS;
                    may_be_high |= word.high;
                    span
                }
                Tag::Integers => {
                    let has_negative_zero = self.words.get(at)?.flag;
                    at += 1;
                    let array = row.get(word.a as usize..word.b as usize)?;
                    (!has_negative_zero && !has_space(array)).then_some(span)?
                }
                Tag::LazyArray | Tag::LazyObject => (span == 2).then_some(2)?,
                Tag::Shape | Tag::Inner => return None,
            };
        }
        // A key was counted as a value. It has a colon, and each child of an array or object but the first a comma.
        let children = usize::checked_sub(values, keys + 1)?;
        Some((len + keys + children.checked_sub(containers)?, may_be_high))
    }

    /// Members of the object at a word; None if a key is repeated, or may have to stand elsewhere.
    fn count_keys(&self, row: &[u8], at: usize) -> Option<usize> {
        let object = self.root(row).at_word(at);
        let mut few: [&[u8]; FEW_MEMBERS] = [b""; FEW_MEMBERS];
        let mut many: HashSet<&[u8]> = HashSet::new();
        let mut marks = 0u64; // a bit for what is known of a key at a glance
        let mut count = 0;
        for (key, _) in object.members() {
            // One spelling for each key, so bytes can be compared. The opening quote is the first of them.
            let key = key.raw()?;
            if key.get(1).is_some_and(u8::is_ascii_digit) {
                return None;
            }
            let [.., last, _] = key else { return None };
            let mark = 1u64 << (key.len().wrapping_mul(7).wrapping_add(usize::from(*last)) % 64);
            let is_unlike = marks & mark == 0;
            marks |= mark;
            let is_new = if let Some(place) = few.get_mut(count) {
                *place = key;
                is_unlike || !few.get(..count)?.contains(&key)
            } else {
                if many.is_empty() {
                    many.extend(few);
                }
                many.insert(key)
            };
            if !is_new {
                return None;
            }
            count += 1;
        }
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::write_node;
    use super::*;

    fn check(text: &str) -> (bool, bool) {
        let mut tape = Tape::new();
        tape.read_row(text.as_bytes(), 64).unwrap();
        let mut written = Vec::new();
        write_node(tape.root(text.as_bytes()), &mut written, &|_, _| false);
        (tape.is_canonical(text.as_bytes()), written == text.as_bytes())
    }

    #[test]
    fn what_the_writer_writes_is_canonical() {
        for text in [
            r#"{"type":"x","seq":14,"data":{"a":[1,-2,123456789012345],"b":["x","é",""],"c":{},"d":[]}}"#,
            r#"{"a":[[],{},[[1]],[{"b":null},true,false]],"c":0.5,"d":1e+21,"e":12345678901234567000}"#,
            r#"{"a":"\"\\\b\f\n\r\t\u0000\u001b\u001f/","b":[{"c":[]},""]}"#,
            "null",
            "-5",
            "[0]",
            r#"{"aa":1,"ab":1,"ac":1,"ad":1,"ae":1,"af":1,"ag":1,"ah":1,"ai":1,"aj":1,"ak":1,"al":1,"am":1,"an":1}"#,
        ] {
            assert_eq!(check(text), (true, true), "{text}");
        }
    }

    #[test]
    fn whatever_the_writer_changes_is_not() {
        for text in [
            r#" {"a":1}"#,
            r#"{"a":1 }"#,
            r#"{"a" :1}"#,
            r#"{"a":["x", "y"]}"#,
            r#"{"a":[1, 2]}"#,
            r#"{"a":[ ]}"#,
            r#"{"a":1,"a":1}"#,
            r#"{"b":1,"1":2}"#,
            r#"{"a":1.0}"#,
            r#"{"a":[1,-0]}"#,
            r#"{"a":-0}"#,
            r#"{"a":1E2}"#,
            r#"{"a":12345678901234567890}"#,
            r#"{"a":"\/"}"#,
            r#"{"a":"\u0041"}"#,
            r#"{"a":"\u001B"}"#,
            r#"{"a":"\u0009"}"#,
            r#"{"\u0061":1,"b":[true, false]}"#,
            r#"{"aa":1,"ab":1,"ac":1,"ad":1,"ae":1,"af":1,"ag":1,"ah":1,"ai":1,"aj":1,"ak":1,"al":1,"am":1,"aa":1}"#,
        ] {
            assert_eq!(check(text), (false, false), "{text}");
        }
    }
}
