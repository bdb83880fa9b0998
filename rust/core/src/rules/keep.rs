//! Small owned copies of what later events are compared with. Rows are gone by then.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};

use super::equality::text_is;
use crate::json::{Kind, Node};

/// Bytes of text that an [`Id`] holds without allocation; a UUID has 36.
const SHORT: usize = 38;

/// Bytes of text above which an [`Id`] holds a digest, so that a log cannot make a check hold all of its text.
const LONG: usize = 1024;

/// Bytes of the start of a long text that are kept for messages.
const HEAD: usize = 192;

/// A text to compare with others. Two are equal iff their texts are: which form a text has depends on its length alone,
/// and the digest is collision-resistant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id(Form);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Form {
    /// Filled up with zero bytes.
    Short {
        len: u8,
        bytes: [u8; SHORT],
    },
    Medium(Box<[u8]>),
    Long(Box<Long>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Long {
    digest: [u8; 32],
    head: [u8; HEAD],
}

impl Id {
    #[inline]
    pub(super) fn of(text: &[u8]) -> Self {
        if let (true, Ok(len)) = (text.len() <= SHORT, u8::try_from(text.len())) {
            let mut bytes = [0; SHORT];
            for (to, from) in bytes.iter_mut().zip(text) {
                *to = *from;
            }
            return Self(Form::Short { len, bytes });
        }
        if text.len() <= LONG {
            return Self(Form::Medium(text.into()));
        }
        let head = text.first_chunk().copied().unwrap_or([0; HEAD]);
        Self(Form::Long(Box::new(Long {
            digest: Sha256::digest(text).into(),
            head,
        })))
    }

    /// The text, of a long one its start.
    pub(super) fn head(&self) -> &[u8] {
        match &self.0 {
            Form::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Form::Medium(bytes) => bytes,
            Form::Long(long) => &long.head,
        }
    }

    /// Whether the value is this text.
    fn is(&self, value: Node<'_>) -> bool {
        match &self.0 {
            Form::Long(_) => value.text().is_some_and(|text| Self::of(&text) == *self),
            Form::Short { .. } | Form::Medium(_) => text_is(value, self.head()),
        }
    }
}

/// A member to compare with others by the identity of the harness: scalars are identical if they are equal, -0 and 0
/// alike; an object or an array is identical to nothing. Spec 30 §7.2, where it says *identical* or *equals*.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Scalar {
    Absent,
    Null,
    Boolean(bool),
    /// Bits of a number other than −0.
    Number(u64),
    Text(Id),
    /// An object or an array.
    Other,
}

impl Scalar {
    pub(super) fn of(value: Option<Node<'_>>) -> Self {
        let Some(value) = value else { return Self::Absent };
        match value.kind() {
            Kind::Null => Self::Null,
            Kind::Boolean => Self::Boolean(value.is_true()),
            Kind::Number => Self::Number(bits(value)),
            Kind::Text => Self::Text(Id::of(&value.text().unwrap_or(Cow::Borrowed(b"")))),
            Kind::Array | Kind::Object => Self::Other,
        }
    }

    /// Whether the member is identical to the one that was kept.
    pub(super) fn is(&self, value: Option<Node<'_>>) -> bool {
        match (self, value) {
            (Self::Absent, None) => true,
            (Self::Text(id), Some(value)) => id.is(value),
            (Self::Absent | Self::Other | Self::Text(_), _) | (_, None) => false,
            (Self::Null, Some(value)) => value.kind() == Kind::Null,
            (Self::Boolean(kept), Some(value)) => value.kind() == Kind::Boolean && value.is_true() == *kept,
            (Self::Number(kept), Some(value)) => value.kind() == Kind::Number && bits(value) == *kept,
        }
    }

    /// Absent taken for null.
    #[must_use]
    pub(super) fn or_null(self) -> Self {
        if self == Self::Absent { Self::Null } else { self }
    }
}

fn bits(number: Node<'_>) -> u64 {
    // The sum turns -0 into 0.
    (number.number().unwrap_or_default() + 0.0).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Tape;

    fn scalar(text: &str) -> Scalar {
        Scalar::of(Some(Tape::new().read_text(text.as_bytes(), 9).unwrap()))
    }

    #[test]
    fn scalars_are_identical_by_value_and_containers_never() {
        let same = [
            ("0", "-0.0"),
            ("1", "1e0"),
            ("null", "null"),
            ("\"a\"", "\"\\u0061\""),
            ("false", "false"),
        ];
        let other = [
            ("0", "false"),
            ("null", "0"),
            ("[]", "[]"),
            ("{}", "{}"),
            ("\"1\"", "1"),
            ("true", "false"),
            ("\"a\"", "\"b\""),
        ];
        for (pairs, expected) in [(&same[..], true), (&other[..], false)] {
            for (a, b) in pairs {
                let mut tape = Tape::new();
                let node = tape.read_text(b.as_bytes(), 9).unwrap();
                assert_eq!(scalar(a).is(Some(node)), expected, "{a} {b}");
                assert!(!scalar(a).is(None));
            }
        }
        assert!(Scalar::Absent.is(None));
        assert!(!Scalar::Absent.is(Some(Tape::new().read_text(b"null", 9).unwrap())));
    }

    #[test]
    fn texts_of_every_length_are_equal_only_to_themselves() {
        for len in [0, 1, SHORT, SHORT + 1, LONG, LONG + 1, 5000] {
            let text = vec![b'a'; len];
            let mut other = text.clone();
            other.push(b'a');
            assert_eq!(Id::of(&text), Id::of(&text));
            assert_ne!(Id::of(&text), Id::of(&other));
            if let Some(last) = other.get_mut(len / 2) {
                *last = b'b';
                other.truncate(len);
            }
            assert!(len == 0 || Id::of(&text) != Id::of(&other));
            let literal = format!("\"{}\"", String::from_utf8(text.clone()).unwrap());
            assert!(Id::of(&text).is(Tape::new().read_text(literal.as_bytes(), 1).unwrap()));
        }
    }
}
