//! Canonical JSON by RFC 8785, for digests over values. Spec 60 §6.4.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use super::blocks::{Blocks, Task, dispatch};
use super::number::{write_double, write_integer};
use super::tape::{Elements, Kind, Node};
use super::text::write_string;

/// Receiver of canonical text.
pub trait Sink {
    /// Where short pieces are appended.
    fn text(&mut self) -> &mut Vec<u8>;

    /// Takes a piece that may be long.
    fn slice(&mut self, bytes: &[u8]) {
        self.text().extend_from_slice(bytes);
    }

    /// May write a value itself, and says whether it has.
    #[inline]
    fn replace(&mut self, node: &Node<'_>) -> bool {
        let _ = node;
        false
    }

    /// Says that a literal is not spelled as the writer of rows spells it, or a key not placed where it places it.
    /// Without such a call, and if the lengths agree, the value stands in the text as compact JSON.
    #[inline]
    fn respell(&mut self) {}
}

impl Sink for Vec<u8> {
    fn text(&mut self) -> &mut Vec<u8> {
        self
    }
}

/// Bytes that are looked at together.
const BLOCK: usize = 64;

/// Whether every string literal in some JSON text is canonical: it is UTF-8, and has none of the escapes that are not.
pub(crate) fn has_canonical_strings(text: &[u8]) -> bool {
    let (has_escape, has_high) = dispatch(Look(text));
    !has_escape && (!has_high || is_well_formed(text))
}

/// Whether some text is UTF-8. Of most texts that are not ASCII, nearly all is: only blocks that are not are looked at
/// closely, each run of them apart, as a character ends where ASCII begins.
fn is_well_formed(text: &[u8]) -> bool {
    let mut run = 0..0;
    for (number, block) in text.chunks(BLOCK).enumerate() {
        if block.iter().fold(0, |high, byte| high | byte) < 0x80 {
            continue;
        }
        let start = number * BLOCK;
        if run.end != start {
            if !is_utf8(text, run) {
                return false;
            }
            run = start..start;
        }
        run.end = start + block.len();
    }
    is_utf8(text, run)
}

fn is_utf8(text: &[u8], range: Range<usize>) -> bool {
    std::str::from_utf8(text.get(range).unwrap_or_default()).is_ok()
}

/// Whether some text may have an escape that is not canonical, and whether it has a byte that is not ASCII.
struct Look<'b>(&'b [u8]);

impl Task for Look<'_> {
    type Output = (bool, bool);

    #[inline(always)]
    fn run<B: Blocks>(self, _: B) -> Self::Output {
        let Some((first, behind)) = self.0.split_first() else {
            return (false, false);
        };
        let (mut escapes, mut high) = (0, *first);
        for (&byte, &next) in self.0.iter().zip(behind) {
            // A backslash that is escaped itself may be taken for an escape; that costs time only.
            escapes |= u8::from(byte == b'\\') & u8::from(next == b'u' || next == b'/');
            high |= next;
        }
        (escapes != 0, high >= 0x80)
    }
}

struct Member<'a> {
    key: Cow<'a, [u8]>,
    value: Node<'a>,
}

enum Open<'a> {
    Array {
        elements: Elements<'a>,
        is_first: bool,
    },
    /// Its members from `first` on, of which those from `next` on are to come.
    Object {
        first: usize,
        next: usize,
    },
}

/// Appends the canonical text of any value, as [`CanonicalWriter`](super::CanonicalWriter) does: member by member,
/// wherever they are, and whatever their keys.
pub(super) fn write_any<S: Sink>(node: Node<'_>, is_plain: bool, out: &mut S) {
    let mut open: Vec<Open<'_>> = Vec::new();
    // Members of the open objects.
    let mut members: Vec<Member<'_>> = Vec::new();
    let mut inner = (!write_leaf(&node, is_plain, out)).then_some(node);
    loop {
        match inner {
            Some(object) if object.is_object() => {
                out.text().push(b'{');
                let first = members.len();
                members.extend(object.members().map(|(key, value)| Member {
                    key: key.text().unwrap_or_default(),
                    value,
                }));
                if sort_members(&mut members, first) {
                    out.respell();
                }
                open.push(Open::Object { first, next: first });
            }
            Some(array) => {
                out.text().push(b'[');
                open.push(Open::Array {
                    elements: array.elements(),
                    is_first: true,
                });
            }
            None => drop(open.pop()),
        }
        inner = match open.last_mut() {
            None => return,
            Some(Open::Array { elements, is_first }) => loop {
                let Some(element) = elements.next() else {
                    out.text().push(b']');
                    break None;
                };
                if !std::mem::take(is_first) {
                    out.text().push(b',');
                }
                if !write_leaf(&element, is_plain, out) {
                    break Some(element);
                }
            },
            Some(Open::Object { first, next }) => loop {
                let Some(member) = members.get(*next) else {
                    members.truncate(*first);
                    out.text().push(b'}');
                    break None;
                };
                write_key(member, *next == *first, out);
                *next += 1;
                if !write_leaf(&member.value, is_plain, out) {
                    break Some(member.value);
                }
            },
        };
    }
}

/// Writes a value that need not be opened, and says whether it is one.
#[inline]
fn write_leaf<S: Sink>(node: &Node<'_>, is_plain: bool, out: &mut S) -> bool {
    if out.replace(node) {
        return true;
    }
    match node.kind() {
        Kind::Null | Kind::Boolean => out.text().extend_from_slice(node.raw().unwrap_or_default()),
        Kind::Number => write_number(node, out),
        Kind::Text => {
            if let Some(literal) = node.canonical_literal(is_plain) {
                out.slice(literal);
            } else {
                write_string(&node.text().unwrap_or_default(), out.text());
                out.respell();
            }
        }
        Kind::Array => match node.canonical_array(is_plain) {
            Some(array) => out.slice(array),
            None => return false,
        },
        Kind::Object => return false,
    }
    true
}

#[inline]
fn write_key<S: Sink>(member: &Member<'_>, is_first: bool, out: &mut S) {
    let text = out.text();
    if !is_first {
        text.push(b',');
    }
    if let Cow::Borrowed(key) = member.key {
        // Borrowed text has neither an escape nor a character that needs one.
        text.push(b'"');
        text.extend_from_slice(key);
        text.extend_from_slice(b"\":");
    } else {
        write_string(&member.key, text);
        text.push(b':');
        out.respell();
    }
}

pub(super) fn write_number<S: Sink>(node: &Node<'_>, out: &mut S) {
    let text = out.text();
    let before = text.len();
    match (node.raw(), node.safe_integer()) {
        (None, Some(value)) => write_integer(value, text),
        (raw, _) => {
            write_double(node.number().unwrap_or_default(), text);
            if text.get(before..) != raw {
                out.respell();
            }
        }
    }
}

/// Sorts the members from `first` on; the last value of a repeated key counts. Says whether a key is repeated or may be
/// like an index, which the writer of rows places first.
fn sort_members(members: &mut Vec<Member<'_>>, first: usize) -> bool {
    let own = members.get_mut(first..).unwrap_or_default();
    let is_index = |member: &Member<'_>| member.key.first().is_some_and(u8::is_ascii_digit);
    let has_index = own.iter().any(is_index);
    // Bytes sort like code units up to the surrogates, which start with 0xED.
    if own
        .iter()
        .all(|member| member.key.iter().all(|&byte| byte < 0xed))
    {
        own.sort_by(|left, right| left.key.cmp(&right.key));
    } else {
        own.sort_by(|left, right| compare_units(&left.key, &right.key));
    }
    let is_repeated = own
        .windows(2)
        .any(|pair| matches!(pair, [left, right] if left.key == right.key));
    if is_repeated {
        for member in members.split_off(first) {
            let own = members.get(first..).unwrap_or_default();
            if own.last().is_some_and(|last| last.key == member.key) {
                members.pop();
            }
            members.push(member);
        }
    }
    is_repeated || has_index
}

/// Compares two texts (WTF-8) by UTF-16 code units.
fn compare_units(left: &[u8], right: &[u8]) -> Ordering {
    units(left).cmp(units(right))
}

/// UTF-16 code units of WTF-8.
fn units(mut text: &[u8]) -> impl Iterator<Item = u16> {
    let mut low = None;
    std::iter::from_fn(move || {
        if let Some(unit) = low.take() {
            return Some(unit);
        }
        let (&first, rest) = text.split_first()?;
        let len = match first {
            0..0x80 => 0,
            0x80..0xe0 => 1,
            0xe0..0xf0 => 2,
            _ => 3,
        };
        let (tail, behind) = rest.split_at_checked(len)?;
        text = behind;
        let lead = u32::from(first) & (0x7f >> (if len == 0 { 0 } else { len + 1 }));
        let code = tail
            .iter()
            .fold(lead, |code, &byte| code << 6 | u32::from(byte & 0x3f));
        let unit = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        match code.checked_sub(0x1_0000) {
            None => Some(unit(code)),
            Some(above) => {
                low = Some(unit(0xdc00 | above & 0x3ff));
                Some(unit(0xd800 | above >> 10))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::{CanonicalWriter, Tape};
    use super::*;

    fn canonical(text: &[u8]) -> String {
        let mut tape = Tape::new();
        let node = tape.read_text(text, 99).unwrap();
        let mut out = Vec::new();
        CanonicalWriter::default().write(node, has_canonical_strings(text), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_example_of_rfc_8785_is_met() {
        // RFC 8785 §3.2.2 and §3.2.3.
        let text = r#"{
            "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#;
        assert_eq!(
            canonical(text.as_bytes()),
            r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#
        );
        let keys = r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#;
        assert_eq!(
            canonical(keys.as_bytes()),
            "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}"
        );
    }

    #[test]
    fn escapes_and_bytes_of_strings_are_seen_anywhere() {
        for (piece, is_canonical) in [
            ("\\n".as_bytes(), true),
            (b"\\\"", true),
            (b"\\u0041", false),
            (b"\\/", false),
            (b"/u", true),
            ("é".as_bytes(), true),
            (b"\xc3", false),
        ] {
            for place in 0..200 {
                let text = [&vec![b'a'; place], piece, &vec![b'a'; 199 - place]].concat();
                assert_eq!(has_canonical_strings(&text), is_canonical, "{piece:?} {place}");
            }
        }
        assert!(has_canonical_strings(b"") && !has_canonical_strings(b"\xff"));
    }

    #[test]
    fn well_formed_text_is_what_it_is_as_a_whole() {
        let pieces = [
            "a",
            "é",
            "€",
            "😀",
            "a long piece of text that is ASCII, longer than one block of sixty-four bytes",
        ];
        let mut state = 5u64;
        let mut next = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        let mut ill_formed = 0;
        for round in 0..4_000 {
            let mut text = Vec::new();
            for _ in 0..next(30) {
                text.extend_from_slice(pieces[next(5)].as_bytes());
            }
            match round % 4 {
                1 if !text.is_empty() => drop(text.remove(next(text.len()))),
                2 => text.insert(next(text.len() + 1), [0x80, 0xc3, 0xed, 0xff, 0xf0][next(5)]),
                3 => text.truncate(next(text.len() + 1)),
                _ => {}
            }
            let is_utf8 = std::str::from_utf8(&text).is_ok();
            ill_formed += usize::from(!is_utf8);
            assert_eq!(is_well_formed(&text), is_utf8, "{text:?}");
        }
        assert!(ill_formed > 1_000);
    }

    #[test]
    fn values_count_and_not_their_spelling() {
        for (text, expected) in [
            ("-0", "0"),
            ("[-0, 1.0]", "[0,1]"),
            (r#"{"b":1,"a":2,"b":[]}"#, r#"{"a":2,"b":[]}"#),
            (r#"[ "a" , "\u0062" ]"#, r#"["a","b"]"#),
            (r#"["\uD83D","\ude00\ud83d\ude00"]"#, r#"["\ud83d","\ude00😀"]"#),
            (r#"{"10":1,"9":{}}"#, r#"{"10":1,"9":{}}"#),
            (
                r#"{"\ud83d":1,"\ue000":2,"😀":3}"#,
                "{\"\\ud83d\":1,\"😀\":3,\"\u{e000}\":2}",
            ),
            ("[[],[[]],{}]", "[[],[[]],{}]"),
            (
                r#"{"longer key":1,"longer":{"b":1,"a":[{"b":2}],"b":3},"longer keX":4,"longer key":5}"#,
                r#"{"longer":{"a":[{"b":2}],"b":3},"longer keX":4,"longer key":5}"#,
            ),
        ] {
            assert_eq!(canonical(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(canonical(b"[\"a\xff\",\"b\"]"), "[\"a\u{fffd}\",\"b\"]");
    }
}
