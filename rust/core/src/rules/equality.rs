//! Equality of JSON values, at hand or remembered by digest. Spec 20 §8.4, 30 §5.1.

use std::borrow::Cow;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::json::{Elements, Kind, Node};
use crate::row::{NotedResult, NotedRow};

/// Whether a value is a string with this text, given as WTF-8.
#[inline]
pub(super) fn text_is(value: Node<'_>, text: &[u8]) -> bool {
    value.text().is_some_and(|own| *own == *text)
}

/// Whether two values are equal; −0 is not 0. Spec 20 §8.4.
///
/// # Cost
/// A comparison of bytes if both are spelled alike, else both are written in canonical form.
pub(super) fn is_equal(left: Node<'_>, right: Node<'_>) -> bool {
    // Equal text is an equal value.
    if let (Some(left), Some(right)) = (left.raw(), right.raw())
        && left == right
    {
        return true;
    }
    if left.kind() != right.kind() {
        return false;
    }
    let (mut canonical, mut other) = (Vec::new(), Vec::new());
    write_canonical(left, &Form::EXACT, &mut canonical);
    write_canonical(right, &Form::EXACT, &mut other);
    canonical == other
}

/// [`is_equal`] for members that may be absent; absent equals only absent.
pub(crate) fn is_equal_member(left: Option<Node<'_>>, right: Option<Node<'_>>) -> bool {
    match (left, right) {
        (Some(left), Some(right)) => is_equal(left, right),
        (None, None) => true,
        _ => false,
    }
}

/// Which differences a canonical form leaves out.
struct Form {
    /// −0 is written as 0.
    zeros_equal: bool,
    /// `message.content` is left out.
    without_content: bool,
}

impl Form {
    const EXACT: Self = Self {
        zeros_equal: false,
        without_content: false,
    };
    /// Spec 30 §5.1: numbers compare with 0 = −0 in a tool-result rewrite.
    const REWRITE: Self = Self {
        zeros_equal: true,
        without_content: true,
    };
}

/// Which object of a payload is at hand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Payload,
    Message,
    Elsewhere,
}

enum Level<'a> {
    Array(Elements<'a>),
    /// The members that are not written yet are those from `next` on, up to the end of those of this object.
    Object {
        start: usize,
        next: usize,
        end: usize,
        place: Place,
    },
}

/// Appends a form that two values share iff they are equal: every token says where it ends, members are sorted by key,
/// and of a repeated key the last value counts.
fn write_canonical(value: Node<'_>, form: &Form, out: &mut Vec<u8>) {
    let mut levels: Vec<Level<'_>> = Vec::new();
    // Members of all open objects.
    let mut members: Vec<(Cow<'_, [u8]>, Node<'_>)> = Vec::new();
    let mut value = value;
    let mut place = Place::Payload;
    loop {
        match value.kind() {
            Kind::Null => out.push(b'n'),
            Kind::Boolean => out.push(if value.is_true() { b't' } else { b'f' }),
            Kind::Number => write_number(value, form.zeros_equal, out),
            Kind::Text => write_text(&value.text().unwrap_or_default(), out),
            Kind::Array => {
                out.push(b'[');
                levels.push(Level::Array(value.elements()));
            }
            Kind::Object => {
                out.push(b'{');
                let start = members.len();
                let without = form.without_content && place == Place::Message;
                let all = value
                    .members()
                    .map(|(key, value)| (key.text().unwrap_or_default(), value));
                members.extend(all.filter(|(key, _)| !(without && **key == *b"content")));
                if let Some(own) = members.get_mut(start..) {
                    own.sort_by(|(left, _), (right, _)| left.cmp(right));
                }
                levels.push(Level::Object {
                    start,
                    next: start,
                    end: members.len(),
                    place,
                });
            }
        }
        // The next value, after the ends of all arrays and objects that have none.
        loop {
            match levels.last_mut() {
                None => return,
                Some(Level::Array(elements)) => {
                    if let Some(element) = elements.next() {
                        (value, place) = (element, Place::Elsewhere);
                        break;
                    }
                    out.push(b']');
                }
                Some(Level::Object {
                    start,
                    next,
                    end,
                    place: own,
                }) => {
                    if let Some((key, member)) = next_member(&members, next, *end) {
                        write_text(key, out);
                        let is_message = *own == Place::Payload && **key == *b"message";
                        (value, place) = (
                            member,
                            if is_message {
                                Place::Message
                            } else {
                                Place::Elsewhere
                            },
                        );
                        break;
                    }
                    out.push(b'}');
                    members.truncate(*start);
                }
            }
            levels.pop();
        }
    }
}

/// What [`write_canonical`] appends for the payload of a tool/result, its content left out.
fn write_result(row: &NotedRow<'_>, result: &NotedResult<'_>, out: &mut Vec<u8>) {
    let text = |node: Node<'_>, out: &mut Vec<u8>| write_text(&node.text().unwrap_or_default(), out);
    out.push(b'{');
    write_text(b"message", out);
    out.push(b'{');
    write_text(b"id", out);
    text(result.id, out);
    if let Some(is_error) = result.is_error {
        write_text(b"isError", out);
        out.push(if is_error { b't' } else { b'f' });
    }
    write_text(b"role", out);
    write_text(b"tool", out);
    write_text(b"source", out);
    out.push(b'{');
    write_text(b"callId", out);
    text(result.call, out);
    write_text(b"kind", out);
    write_text(b"tool", out);
    out.push(b'}');
    write_text(b"toolCallId", out);
    text(result.call, out);
    out.push(b'}');
    for (name, number) in [("step", row.step()), ("turn", row.turn())] {
        if let Some(number) = number {
            write_text(name.as_bytes(), out);
            write_number(number, true, out);
        }
    }
    out.push(b'}');
}

/// The next member in sorted order; of a repeated key the last one.
fn next_member<'m, 'a>(
    members: &'m [(Cow<'a, [u8]>, Node<'a>)],
    next: &mut usize,
    end: usize,
) -> Option<(&'m Cow<'a, [u8]>, Node<'a>)> {
    let rest = members.get(*next..end)?;
    let (key, _) = rest.first()?;
    let same = rest.iter().take_while(|(other, _)| other == key).count();
    *next += same;
    rest.get(same.saturating_sub(1)).map(|(key, value)| (key, *value))
}

fn write_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    write_varint(text.len() as u64, out);
    out.extend_from_slice(text);
}

fn write_number(value: Node<'_>, zeros_equal: bool, out: &mut Vec<u8>) {
    match value.safe_integer() {
        Some(integer) if integer != 0 || zeros_equal || !value.is_negative_zero() => {
            out.push(if integer < 0 { b'-' } else { b'+' });
            write_varint(integer.unsigned_abs(), out);
        }
        _ => {
            out.push(b'#');
            out.extend_from_slice(&value.number().unwrap_or_default().to_bits().to_le_bytes());
        }
    }
}

fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Stands for a value that is not kept.
///
/// 128 bits of a hash whose keys are drawn at random for every check and never leave it: who makes a log cannot aim at
/// equal digests, and for others their chance is 2^−128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digest([u64; 2]);

/// Longest canonical form whose memory is kept for the next one.
const KEPT_BYTES: usize = 1 << 16;

/// Makes digests.
#[derive(Debug)]
pub(super) struct Hashers {
    states: [RandomState; 2],
    buffer: Vec<u8>,
}

impl Hashers {
    pub(super) fn new() -> Self {
        Self {
            states: [RandomState::new(), RandomState::new()],
            buffer: Vec::new(),
        }
    }

    /// The digest of some bytes.
    pub(super) fn digest(&self, bytes: &[u8]) -> Digest {
        let [left, right] = &self.states;
        Digest([left, right].map(|state| {
            let mut hasher = state.build_hasher();
            hasher.write(bytes);
            hasher.finish()
        }))
    }

    fn digest_as(&mut self, value: Node<'_>, form: &Form) -> Digest {
        self.buffer.clear();
        write_canonical(value, form, &mut self.buffer);
        let digest = self.digest(&self.buffer);
        if self.buffer.capacity() > KEPT_BYTES {
            self.buffer = Vec::new();
        }
        digest
    }

    /// Digest of a value, equal for equal values by [`is_equal`].
    pub(super) fn digest_value(&mut self, value: Node<'_>) -> Digest {
        self.digest_as(value, &Form::EXACT)
    }

    /// [`Hashers::digest_without_content`] of a row that was not parsed.
    pub(super) fn digest_noted(&mut self, row: &NotedRow<'_>, result: &NotedResult<'_>) -> Digest {
        self.buffer.clear();
        write_result(row, result, &mut self.buffer);
        self.digest(&self.buffer)
    }

    /// Digest of the payload of a `tool/result` that leaves `message.content` out, 0 and −0 alike. Spec 30 §5.1.
    pub(super) fn digest_without_content(&mut self, data: Node<'_>) -> Digest {
        self.digest_as(data, &Form::REWRITE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Tape;

    fn equal(left: &str, right: &str) -> bool {
        let (mut a, mut b) = (Tape::new(), Tape::new());
        let (a, b) = (
            a.read_text(left.as_bytes(), 9).unwrap(),
            b.read_text(right.as_bytes(), 9).unwrap(),
        );
        let mut hashers = Hashers::new();
        let equal = is_equal(a, b);
        assert_eq!(hashers.digest_value(a) == hashers.digest_value(b), equal);
        equal
    }

    #[test]
    fn deep_equality_is_that_of_the_spec() {
        // Spec 20 §8.4.
        for (left, right) in [
            ("[1, 2]", "[1.0,2e0]"),
            (r#"{"a":1,"b":[{}]}"#, r#"{"b":[{}],"a":1}"#),
            (r#"{"a":1,"a":2}"#, r#"{"\u0061":2}"#),
            (r#"["\ud83d\ude00"]"#, r#"["😀"]"#),
            ("1e400", "2e400"),
            ("-0", "-0.0"),
            (r#"["a","b"]"#, r#"[ "a" , "b" ]"#),
            (r#"{"b":1,"a":2,"b":3}"#, r#"{"a":2,"b":3}"#),
        ] {
            assert!(equal(left, right), "{left} {right}");
        }
        for (left, right) in [
            ("0", "-0"),
            ("[0]", "[-0]"),
            ("[]", "{}"),
            ("null", "false"),
            (r#"{"a":null}"#, "{}"),
            ("[[1],2]", "[[1,2]]"),
            (r#"["ab"]"#, r#"["a","b"]"#),
            (r#"["\ud83d"]"#, r#"["\ude00"]"#),
            ("1", "\"1\""),
            ("9007199254740993", "9007199254740994"),
            ("-1", "1"),
        ] {
            assert!(!equal(left, right), "{left} {right}");
        }
    }

    #[test]
    fn only_the_content_of_the_message_is_left_out() {
        let same = |left: &str, right: &str| {
            let mut hashers = Hashers::new();
            let mut digest = |text: &str| {
                hashers.digest_without_content(Tape::new().read_text(text.as_bytes(), 9).unwrap())
            };
            digest(left) == digest(right)
        };
        let base = r#"{"message":{"id":"a","content":[1]},"x":0}"#;
        assert!(same(base, r#"{"x":-0,"message":{"content":7,"id":"a"}}"#));
        assert!(same(base, r#"{"x":-0,"message":{"id":"a"}}"#));
        assert!(!same(
            base,
            r#"{"message":{"id":"a","content":[1]},"x":0,"content":1}"#
        ));
        assert!(!same(
            base,
            r#"{"message":{"id":"a","content":[1],"message":{"content":1}},"x":0}"#
        ));
        assert!(!same(
            r#"{"message":[{"content":1}]}"#,
            r#"{"message":[{"content":2}]}"#
        ));
        assert!(!same(
            r#"{"m":{"message":{"content":1}}}"#,
            r#"{"m":{"message":{"content":2}}}"#
        ));
    }
}
