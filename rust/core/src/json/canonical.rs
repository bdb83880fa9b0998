//! Canonical JSON by RFC 8785, for digests over values. Spec 60 §6.4.

use std::borrow::Cow;
use std::cmp::Ordering;

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
    fn replace(&mut self, node: Node<'_>) -> bool {
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

/// Whether every string literal in some JSON text is canonical: it is UTF-8, and has none of the escapes that are not.
pub(crate) fn has_canonical_strings(text: &[u8]) -> bool {
    // A backslash that is escaped itself may be taken for an escape; that costs time only.
    let has = |letter| memchr::memmem::find(text, &[b'\\', letter]).is_some();
    let is_plain = memchr::memchr(b'\\', text).is_none() || !has(b'u') && !has(b'/');
    is_plain && std::str::from_utf8(text).is_ok()
}

enum Open<'a> {
    Array(Elements<'a>),
    /// Members from `next` on; the first of all was at `start`.
    Object {
        start: usize,
        next: usize,
    },
}

type Member<'a> = (Cow<'a, [u8]>, Node<'a>);

/// Appends the canonical text of a value: members sorted by their UTF-16 code units, numbers in JavaScript's spelling,
/// no white space, lone surrogates as escapes. `is_plain` says that `has_canonical_strings` is known of the text.
///
/// # Cost
/// What is canonical as it stands is copied. Not recursive.
pub fn write_canonical<S: Sink>(node: Node<'_>, is_plain: bool, out: &mut S) {
    let mut open: Vec<(Open<'_>, bool)> = Vec::new();
    // Members of the open objects.
    let mut members: Vec<Member<'_>> = Vec::new();
    let mut next = Some(node);
    loop {
        if let Some(node) = next.take()
            && !out.replace(node)
        {
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
                Kind::Array => {
                    if let Some(array) = node.canonical_array(is_plain) {
                        out.slice(array);
                    } else {
                        out.text().push(b'[');
                        open.push((Open::Array(node.elements()), true));
                    }
                }
                Kind::Object => {
                    out.text().push(b'{');
                    let start = members.len();
                    members.extend(
                        node.members()
                            .map(|(key, value)| (key.text().unwrap_or_default(), value)),
                    );
                    if sort_members(&mut members, start) {
                        out.respell();
                    }
                    open.push((Open::Object { start, next: start }, true));
                }
            }
        }
        let Some((holder, is_first)) = open.last_mut() else {
            return;
        };
        let bracket = match holder {
            Open::Array(elements) => {
                next = elements.next();
                if next.is_some() && !*is_first {
                    out.text().push(b',');
                }
                b']'
            }
            Open::Object { start, next: at } => {
                if let Some((key, value)) = members.get(*at) {
                    *at += 1;
                    let text = out.text();
                    if !*is_first {
                        text.push(b',');
                    }
                    if let Cow::Borrowed(key) = key {
                        // Borrowed text has neither an escape nor a character that needs one.
                        text.push(b'"');
                        text.extend_from_slice(key);
                        text.extend_from_slice(b"\":");
                    } else {
                        write_string(key, text);
                        text.push(b':');
                        out.respell();
                    }
                    next = Some(*value);
                } else {
                    members.truncate(*start);
                }
                b'}'
            }
        };
        *is_first = false;
        if next.is_none() {
            out.text().push(bracket);
            open.pop();
        }
    }
}

fn write_number<S: Sink>(node: Node<'_>, out: &mut S) {
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

/// Sorts the members of an object, of which the last value of a repeated key counts. Says whether a key is repeated or
/// may be like an index, which the writer of rows places first.
fn sort_members(members: &mut Vec<Member<'_>>, start: usize) -> bool {
    let own = members.get_mut(start..).unwrap_or_default();
    // Bytes sort like code units up to the surrogates, which start with 0xED.
    if own.iter().all(|(key, _)| key.iter().all(|&byte| byte < 0xed)) {
        own.sort_by(|left, right| left.0.cmp(&right.0));
    } else {
        own.sort_by(|left, right| compare_units(&left.0, &right.0));
    }
    let is_repeated = own
        .windows(2)
        .any(|pair| matches!(pair, [left, right] if left.0 == right.0));
    let is_index = own
        .iter()
        .any(|(key, _)| key.first().is_some_and(u8::is_ascii_digit));
    if is_repeated {
        let mut kept: Vec<Member<'_>> = Vec::new();
        for member in members.drain(start..) {
            kept.pop_if(|last| last.0 == member.0);
            kept.push(member);
        }
        members.append(&mut kept);
    }
    is_repeated || is_index
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
    use super::super::Tape;
    use super::*;

    fn canonical(text: &[u8]) -> String {
        let mut tape = Tape::new();
        let node = tape.read_text(text, 99).unwrap();
        let mut out = Vec::new();
        write_canonical(node, has_canonical_strings(text), &mut out);
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
        ] {
            assert_eq!(canonical(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(canonical(b"[\"a\xff\",\"b\"]"), "[\"a\u{fffd}\",\"b\"]");
    }
}
