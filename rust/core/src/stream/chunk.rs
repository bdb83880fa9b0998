//! Kinds of chunks and of the runs that stand for them. Spec 20 §1, §2.

use super::value::{Value, Word};

/// Type of a chunk. Spec 20 §1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkType {
    /// A fragment of text, reasoning or tool-call arguments.
    Delta(RunKind),
    /// `block-start`
    BlockStart,
    /// `block-end`
    BlockEnd,
    /// `usage`
    Usage,
    /// `finish`
    Finish,
}

impl ChunkType {
    /// The type that a chunk names; None if it is not one of spec 20 §1.
    #[inline]
    pub fn of(word: Option<Word>) -> Option<Self> {
        match word? {
            Word::TextDelta => Some(Self::Delta(RunKind::Text)),
            Word::ReasoningDelta => Some(Self::Delta(RunKind::Reasoning)),
            Word::ToolCallDelta => Some(Self::Delta(RunKind::ToolCall)),
            Word::BlockStart => Some(Self::BlockStart),
            Word::BlockEnd => Some(Self::BlockEnd),
            Word::Usage => Some(Self::Usage),
            Word::Finish => Some(Self::Finish),
            _ => None,
        }
    }

    /// The type of a chunk that is at hand.
    #[inline]
    pub fn of_chunk<V: Value>(chunk: &V) -> Option<Self> {
        Self::of(chunk.member_word(Word::Type))
    }
}

/// What the fragments of a run are. Spec 20 §2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunKind {
    /// `text-chunks`, a run of `text-delta`.
    Text,
    /// `reasoning-chunks`, a run of `reasoning-delta`.
    Reasoning,
    /// `tool-call-chunks`, a run of `tool-call-delta`.
    ToolCall,
}

impl RunKind {
    /// The kind of run that a record's `type` names.
    #[inline]
    pub fn of_record(word: Option<Word>) -> Option<Self> {
        match word? {
            Word::TextChunks => Some(Self::Text),
            Word::ReasoningChunks => Some(Self::Reasoning),
            Word::ToolCallChunks => Some(Self::ToolCall),
            _ => None,
        }
    }

    /// `type` of a record.
    pub const fn record_type(self) -> Word {
        match self {
            Self::Text => Word::TextChunks,
            Self::Reasoning => Word::ReasoningChunks,
            Self::ToolCall => Word::ToolCallChunks,
        }
    }

    /// Key of a record's members.
    pub const fn members_key(self) -> Word {
        match self {
            Self::Text | Self::Reasoning => Word::Texts,
            Self::ToolCall => Word::Args,
        }
    }

    /// `type` of a chunk.
    pub const fn delta_type(self) -> Word {
        match self {
            Self::Text => Word::TextDelta,
            Self::Reasoning => Word::ReasoningDelta,
            Self::ToolCall => Word::ToolCallDelta,
        }
    }

    /// Key of a chunk's fragment.
    pub const fn fragment_key(self) -> Word {
        match self {
            Self::Text | Self::Reasoning => Word::Text,
            Self::ToolCall => Word::ArgumentsDelta,
        }
    }
}
