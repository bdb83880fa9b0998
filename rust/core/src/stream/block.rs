//! Index and type of a block, as the assemblers of spec 20 §6 tell blocks apart.

use super::chunk::RunKind;
use super::readers::refuse;
use super::value::{Value, Word};
use crate::error::Result;
use crate::json::Kind;
use crate::json::number::write_double;

/// Index of a block: a count, or whatever a malformed chunk has instead, which is kept (spec 20 §8.5).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BlockIndex {
    /// Bits of a number other than −0.
    Number(u64),
    /// A string as WTF-8.
    Text(Vec<u8>),
    Boolean(bool),
    Null,
    Absent,
    /// An array or object equals no other; the number of the partial makes it so.
    Array(usize),
    Object(usize),
}

impl BlockIndex {
    /// Reads the index of a chunk or run; `next` is the number of the next partial.
    ///
    /// # Errors
    /// `Stream`: a value from outside is none of JSON.
    #[inline]
    pub(crate) fn of<V: Value>(carrier: &V, next: usize) -> Result<Self> {
        let Some(value) = carrier.member(Word::Index) else {
            return Ok(Self::Absent);
        };
        Ok(match value.kind() {
            // The sum turns -0 into 0.
            Some(Kind::Number) => Self::Number((value.number().unwrap_or_default() + 0.0).to_bits()),
            Some(Kind::Text) => Self::Text(value.text().unwrap_or_default().into_owned()),
            Some(Kind::Boolean) => Self::Boolean(value.is_true()),
            Some(Kind::Null) => Self::Null,
            Some(Kind::Array) => Self::Array(next),
            Some(Kind::Object) => Self::Object(next),
            None => return Err(refuse("index of a block has to be a count")),
        })
    }

    /// The id of a tool call that never got one.
    pub(crate) fn call_id(&self) -> Vec<u8> {
        let mut id = b"call-".to_vec();
        match self {
            Self::Number(bits) => write_double(f64::from_bits(*bits), &mut id),
            Self::Text(text) => id.extend_from_slice(text),
            Self::Boolean(value) => id.extend_from_slice(value.to_string().as_bytes()),
            Self::Null => id.extend_from_slice(b"null"),
            Self::Absent => id.extend_from_slice(b"nothing"),
            Self::Array(_) => id.extend_from_slice(b"an array"),
            Self::Object(_) => id.extend_from_slice(b"an object"),
        }
        id
    }
}

/// What type a block has, as far as assembly makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockType {
    Text,
    Reasoning,
    ToolCall,
    Other,
}

impl BlockType {
    pub(crate) fn of(name: Option<Word>) -> Self {
        match name {
            Some(Word::Text) => Self::Text,
            Some(Word::Reasoning) => Self::Reasoning,
            Some(Word::ToolCall) => Self::ToolCall,
            _ => Self::Other,
        }
    }

    pub(crate) fn of_run(kind: RunKind) -> Self {
        match kind {
            RunKind::Text => Self::Text,
            RunKind::Reasoning => Self::Reasoning,
            RunKind::ToolCall => Self::ToolCall,
        }
    }

    pub(crate) const fn has_text(self) -> bool {
        matches!(self, Self::Text | Self::Reasoning)
    }
}
