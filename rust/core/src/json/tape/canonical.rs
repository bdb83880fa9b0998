//! Canonical text of a value that is on a tape, copied member by member where the members are spelled so. Spec 60 §6.4.

use std::cmp::Ordering;

use super::super::canonical::{Sink, write_any, write_number};
use super::{Node, Tag, Word};

/// Bytes of a member that are copied as one, whatever its length.
const SHORT: usize = 32;

/// Turns that are kept for the next value.
const KEPT_TURNS: usize = 1 << 16;

/// A member of an open object that is still to be written: the first bytes of its key, and the word of the key.
#[derive(Clone, Copy)]
struct Turn {
    head: u64,
    key: usize,
}

/// An array or object that is being written.
#[derive(Clone, Copy)]
enum Open {
    /// Words from the next element on to the closing one.
    Array { next: usize, end: usize, is_first: bool },
    /// Turns from `first` on, of which those from `next` on are to come.
    Object { first: usize, next: usize },
}

/// Writes canonical text by RFC 8785; see [`CanonicalWriter::write`]. Its room is used again.
#[derive(Default)]
pub struct CanonicalWriter {
    turns: Vec<Turn>,
    open: Vec<Open>,
}

impl CanonicalWriter {
    /// Appends the canonical text of a value: members sorted by their UTF-16 code units, numbers in JavaScript's
    /// spelling, no white space, lone surrogates as escapes. `is_plain` says that `has_canonical_strings` is known of the
    /// text.
    ///
    /// # Cost
    /// What is canonical as it stands is copied, a member of an object with its key. Objects with keys that are escaped,
    /// repeated or not ASCII take several times as long. Not recursive.
    pub fn write<S: Sink>(&mut self, node: Node<'_>, is_plain: bool, out: &mut S) {
        self.turns.clear();
        self.open.clear();
        self.begin(&node, is_plain, out);
        while let Some(open) = self.open.last_mut() {
            let value = match open {
                Open::Array { next, end, is_first } => {
                    if next >= end {
                        out.text().push(b']');
                        self.open.pop();
                        continue;
                    }
                    if !std::mem::take(is_first) {
                        out.text().push(b',');
                    }
                    let element = node.at_word(*next);
                    *next = element.behind();
                    element
                }
                Open::Object { first, next } => {
                    let Some(turn) = self.turns.get(*next) else {
                        out.text().push(b'}');
                        self.turns.truncate(*first);
                        self.open.pop();
                        continue;
                    };
                    let mark = if next == first { b'{' } else { b',' };
                    *next += 1;
                    let (key, value) = (node.at_word(turn.key).word, node.at_word(turn.key + 1));
                    if let Some(end) = value.end_of_member(key, is_plain) {
                        push_member(node.bytes, key, end, mark, out);
                        continue;
                    }
                    let text = out.text();
                    text.extend_from_slice(&[mark, b'"']);
                    text.extend_from_slice(node.lone(key).slice());
                    text.extend_from_slice(b"\":");
                    value
                }
            };
            self.begin(&value, is_plain, out);
        }
        if self.turns.capacity() > KEPT_TURNS {
            self.turns = Vec::new();
        }
    }

    /// Writes a value, or opens it.
    fn begin<S: Sink>(&mut self, node: &Node<'_>, is_plain: bool, out: &mut S) {
        match node.word.tag {
            Tag::Integer | Tag::Number => write_number(node, out),
            Tag::Text if node.is_canonical_text(is_plain) => out.slice(node.raw().unwrap_or_default()),
            _ if out.replace(node) => {}
            Tag::Array => {
                out.text().push(b'[');
                self.open.push(Open::Array {
                    next: node.at + 1,
                    end: (node.word.b as usize).wrapping_sub(1),
                    is_first: true,
                });
            }
            Tag::Object if self.take_turns(node, out) => {}
            _ => write_any(*node, is_plain, out),
        }
    }

    /// Opens an object if its keys are ASCII without escapes, and each is there once.
    fn take_turns<S: Sink>(&mut self, object: &Node<'_>, out: &mut S) -> bool {
        let first = self.turns.len();
        let end = (object.word.b as usize).wrapping_sub(1);
        let mut at = object.at + 1;
        let mut is_plain = true;
        let mut may_be_index = false;
        while at < end {
            let key = object.at_word(at);
            is_plain &= !(key.word.flag || key.word.high);
            let head = head(key.slice());
            may_be_index |= head.to_be_bytes()[0].is_ascii_digit();
            self.turns.push(Turn { head, key: at });
            at = object.at_word(at + 1).behind();
        }
        let own = self.turns.get_mut(first..).unwrap_or_default();
        // Code units of ASCII sort like its bytes.
        let compare = |left: &Turn, right: &Turn| {
            let key = |turn: &Turn| object.at_word(turn.key).slice();
            left.head.cmp(&right.head).then_with(|| key(left).cmp(key(right)))
        };
        own.sort_unstable_by(compare);
        let is_repeated = own
            .windows(2)
            .any(|pair| matches!(pair, [left, right] if compare(left, right) == Ordering::Equal));
        if !is_plain || is_repeated {
            self.turns.truncate(first);
            return false;
        }
        if may_be_index {
            out.respell();
        }
        self.open.push(Open::Object { first, next: first });
        true
    }
}

impl Node<'_> {
    /// Whether a string is canonical as it stands.
    #[inline]
    fn is_canonical_text(&self, is_plain: bool) -> bool {
        is_plain || !(self.word.flag || self.word.high) || self.canonical_literal(false).is_some()
    }

    /// The byte behind the member of an object that this value is, if the value is no array or object and the member is
    /// canonical as it stands. The key is.
    #[inline]
    fn end_of_member(&self, key: Word, is_plain: bool) -> Option<usize> {
        let (start, behind) = (self.word.a as usize, self.word.b as usize);
        // Where the value starts if quote and colon are all that is in between.
        let compact = key.b as usize + 2;
        match self.word.tag {
            Tag::Text => (start == compact + 1 && self.is_canonical_text(is_plain)).then_some(behind + 1),
            Tag::Null | Tag::True => (start == compact).then_some(start + 4),
            Tag::False => (start == compact).then_some(start + 5),
            Tag::Integer => {
                // It has no place on the tape, and ends before what is next: the opening quote of a key, and the byte
                // before that, or the closing bracket. With white space around it a byte would be no digit.
                let next = self.at_word(self.at + 1).word;
                let end = (next.a as usize).checked_sub(if next.tag == Tag::Close { 1 } else { 2 })?;
                let literal = self.bytes.get(compact..end)?;
                let is_alone =
                    matches!(literal.first()?, b'-' | b'0'..=b'9') && literal.last()?.is_ascii_digit();
                is_alone.then_some(end)
            }
            _ => None,
        }
    }
}

/// Appends a member that ends at a byte, with a mark before it.
#[inline]
fn push_member<S: Sink>(bytes: &[u8], key: Word, end: usize, mark: u8, out: &mut S) {
    // Before the quote there is at least the brace of the object, which the mark replaces.
    let start = (key.a as usize).saturating_sub(2);
    let len = end.saturating_sub(start);
    match bytes.get(start..).and_then(|rest| rest.first_chunk::<SHORT>()) {
        // A copy of fixed length is one or two instructions.
        Some(chunk) if len <= SHORT => {
            let text = out.text();
            let before = text.len();
            text.extend_from_slice(chunk);
            text.truncate(before + len);
            if let Some(first) = text.get_mut(before) {
                *first = mark;
            }
        }
        _ => {
            out.text().push(mark);
            out.slice(bytes.get(start + 1..end).unwrap_or_default());
        }
    }
}

/// The first bytes of a key as one number, which sorts like them.
#[inline]
fn head(key: &[u8]) -> u64 {
    // Bytes that were put together one by one are slow to take as a number; `bench_split_and_join` shows it.
    match (key.first_chunk(), key.first_chunk(), key.last_chunk()) {
        (Some(&first), ..) => u64::from_be_bytes(first),
        (None, Some(&first), Some(&last)) => {
            let behind = u64::from(u32::from_be_bytes(last)) << (8 * (8 - key.len()));
            u64::from(u32::from_be_bytes(first)) << 32 | behind & u64::from(u32::MAX)
        }
        _ => [24, 16, 8]
            .iter()
            .zip(key)
            .fold(0, |head, (shift, &byte)| head | u64::from(byte) << (32 + shift)),
    }
}

#[cfg(test)]
mod tests {
    use crate::chance::Chance;
    use std::fmt::Write as _;

    use super::super::super::has_canonical_strings;
    use super::super::Tape;
    use super::*;

    /// Canonical text, and whether a part of it was said to be respelled.
    #[derive(Default, PartialEq, Debug)]
    struct Written {
        text: Vec<u8>,
        is_respelled: bool,
    }

    impl Sink for Written {
        fn text(&mut self) -> &mut Vec<u8> {
            &mut self.text
        }

        fn respell(&mut self) {
            self.is_respelled = true;
        }
    }

    const KEYS: [&str; 18] = [
        "a",
        "b",
        "ab",
        "abcdefgh",
        "abcdefghi",
        "abcdefghj",
        "type",
        "time",
        "texts",
        "",
        " ",
        "0a",
        "10",
        "é",
        "\\n",
        "\\u0061",
        "\u{e000}",
        "😀",
    ];
    const LEAVES: [&str; 27] = [
        "null",
        "true",
        "false",
        "0",
        "-1",
        "-0",
        "1.0",
        "1.5",
        "1e3",
        "123456789012345",
        "1782918164420",
        "12345678901234567890",
        "\"\"",
        "\"a\"",
        "\"é\"",
        "\"\\n\"",
        "\"\\u001f\"",
        "\"\\u0041\"",
        "\"\\/\"",
        "\"\\ud83d\"",
        "[]",
        "{}",
        "[ ]",
        "[1,2]",
        "[1, -0]",
        "[\"a\",\"\\u0061\"]",
        "[\"a\" ,\"b\"]",
    ];

    fn value(chance: &mut Chance, depth: usize, is_odd: bool, out: &mut String) {
        let kind = if depth == 0 { 0 } else { chance.below(4) };
        if kind == 0 {
            let of_all = if is_odd { LEAVES.len() } else { 5 };
            match chance.below(9) {
                0 => write!(
                    out,
                    "\"{}\"",
                    chance
                        .of(&["a long text ", "é", "x"])
                        .repeat(1 + chance.below(60))
                )
                .unwrap(),
                _ => out.push_str(LEAVES[chance.below(of_all)]),
            }
            return;
        }
        let space = if is_odd {
            chance.of(&["", "", "", " ", "\t "])
        } else {
            ""
        };
        out.push(if kind == 1 { '[' } else { '{' });
        let keys = if is_odd { KEYS.len() } else { 12 };
        for number in 0..chance.below(7) {
            if number > 0 {
                write!(out, "{}{space},", chance.of(&["", "", space])).unwrap();
            }
            if kind != 1 {
                let colon = chance.of(&["", "", space]);
                write!(out, "{space}\"{}\"{colon}:{colon}", KEYS[chance.below(keys)]).unwrap();
            }
            value(chance, depth - 1, is_odd, out);
        }
        out.push_str(space);
        out.push(if kind == 1 { ']' } else { '}' });
    }

    #[test]
    fn what_is_copied_is_what_would_be_written() {
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
        let mut copied = 0;
        for round in 0..4_000 {
            let mut text = String::new();
            value(&mut chance, 4, round % 3 > 0, &mut text);
            let mut bytes = text.clone().into_bytes();
            if round % 5 == 0 {
                // A byte that is no UTF-8; inside a string it is read as U+FFFD.
                let place = chance.below(bytes.len());
                bytes[place] = 0xff;
            }
            let mut tape = Tape::new();
            let Ok(node) = tape.read_text(&bytes, 64) else {
                continue;
            };
            for is_plain in [false, has_canonical_strings(&bytes)] {
                let (mut fast, mut exact) = (Written::default(), Written::default());
                CanonicalWriter::default().write(node, is_plain, &mut fast);
                write_any(node, is_plain, &mut exact);
                assert_eq!(fast, exact, "{}", String::from_utf8_lossy(&bytes));
                copied += usize::from(!exact.is_respelled);
            }
        }
        assert!(copied > 2_000);
    }

    #[test]
    fn one_writer_writes_many_values() {
        let mut writer = CanonicalWriter::default();
        for _ in 0..2 {
            for (text, expected) in [
                (
                    r#"{"b":{"d":1,"c":[{"z":2,"y":"x"}]},"a":-5}"#,
                    r#"{"a":-5,"b":{"c":[{"y":"x","z":2}],"d":1}}"#,
                ),
                (r#"[{"b":1 ,"a" :2}]"#, r#"[{"a":2,"b":1}]"#),
                ("1", "1"),
            ] {
                let mut tape = Tape::new();
                let mut out = Vec::new();
                writer.write(tape.read_text(text.as_bytes(), 9).unwrap(), true, &mut out);
                assert_eq!(String::from_utf8(out).unwrap(), expected);
            }
        }
    }

    #[test]
    fn heads_sort_like_the_first_bytes_of_keys() {
        let text = b"\x01zy\xffa\x00bcdef";
        for (start, len) in
            (0..text.len()).flat_map(|start| (0..=text.len() - start).map(move |len| (start, len)))
        {
            let key = &text[start..start + len];
            let mut first = [0; 8];
            first[..len.min(8)].copy_from_slice(&key[..len.min(8)]);
            assert_eq!(head(key), u64::from_be_bytes(first), "{key:?}");
        }
    }
}
