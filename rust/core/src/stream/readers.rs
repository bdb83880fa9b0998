//! Readers of records and chunks. They do not validate; what they need and do not find, they refuse. Spec 20 §5.

use super::chunk::{ChunkType, RunKind};
use super::value::{Value, Word};
use crate::error::{Error, ErrorKind, Result};

/// Whether the chunk is a token delta.
pub fn is_token_delta<V: Value>(chunk: &V) -> bool {
    match ChunkType::of_chunk(chunk) {
        Some(ChunkType::Delta(kind)) => {
            // A name is a token even if it is empty.
            kind == RunKind::ToolCall && chunk.member(Word::Name).is_some()
                || chunk
                    .member(kind.fragment_key())
                    .is_some_and(|text| text.is_nonempty_text())
        }
        _ => false,
    }
}

/// Whether the chunk shows something.
pub fn is_visible_chunk<V: Value>(chunk: &V) -> bool {
    match ChunkType::of_chunk(chunk) {
        Some(ChunkType::Delta(RunKind::Text | RunKind::Reasoning)) => has_visible(chunk, Word::Text),
        Some(ChunkType::BlockStart) => !matches!(
            chunk.member_word(Word::BlockType),
            Some(Word::Text | Word::Reasoning | Word::ToolCall)
        ),
        Some(ChunkType::BlockEnd) => {
            let block = chunk.member(Word::Block);
            match block.as_ref().and_then(|block| block.member_word(Word::Type)) {
                Some(Word::Text | Word::Reasoning) => {
                    block.is_some_and(|block| has_visible(&block, Word::Text))
                }
                Some(Word::ToolCall) => false,
                _ => true,
            }
        }
        _ => false,
    }
}

/// Whether the chunk holds answer text that is more than white space.
pub fn chunk_has_visible_text<V: Value>(chunk: &V) -> bool {
    match ChunkType::of_chunk(chunk) {
        Some(ChunkType::Delta(RunKind::Text)) => has_visible(chunk, Word::Text),
        Some(ChunkType::BlockEnd) => chunk.member(Word::Block).is_some_and(|block| {
            block.member_word(Word::Type) == Some(Word::Text) && has_visible(&block, Word::Text)
        }),
        _ => false,
    }
}

fn has_visible<V: Value>(object: &V, key: Word) -> bool {
    object.member(key).is_some_and(|text| text.is_visible_text())
}

/// What a record that has not been validated says it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    Run(RunKind),
    Chunk,
}

/// The values of a list of records.
pub(crate) fn elements<V: Value>(stream: &V) -> Result<impl Iterator<Item = V>> {
    if stream.is_array() {
        Ok(stream.elements())
    } else {
        Err(refuse("a stream has to be a list of records"))
    }
}

/// What the record says it is.
pub(crate) fn claim_of<V: Value>(record: &V) -> Result<Claim> {
    let word = record.member_word(Word::Type);
    if word == Some(Word::Chunk) {
        return Ok(Claim::Chunk);
    }
    match RunKind::of_record(word) {
        Some(kind) => Ok(Claim::Run(kind)),
        None => Err(refuse(
            "a stream record has to be an object of type text-chunks, reasoning-chunks, tool-call-chunks or chunk",
        )),
    }
}

/// The members of a run that has not been validated.
pub(crate) fn members_of<V: Value>(kind: RunKind, record: &V) -> Result<V> {
    record
        .member(kind.members_key())
        .filter(Value::is_text_array)
        .ok_or_else(|| refuse("the members of a run have to be an array of strings"))
}

#[cold]
pub(crate) fn refuse(message: &'static str) -> Error {
    Error::new(ErrorKind::Stream { record: None }, message)
}

fn time_of<V: Value>(record: &V, key: Word) -> Result<i64> {
    let time = record.member(key).and_then(|time| time.safe_integer());
    time.ok_or_else(|| refuse("the time of a record has to be a safe integer"))
}

fn time_where<V: Value>(kind: RunKind, record: &V, wanted: impl Fn(&V) -> bool) -> Result<Option<i64>> {
    let Some(at) = members_of(kind, record)?
        .elements()
        .position(|text| wanted(&text))
    else {
        return Ok(None);
    };
    let dt = record
        .member(Word::Dt)
        .filter(|dt| dt.is_array() && dt.len() >= at)
        .ok_or_else(|| refuse("dt of a run has to be an array with one entry fewer than the members"))?;
    let mut time = time_of(record, Word::Time0)?;
    for step in dt.elements().take(at) {
        let step = step
            .safe_integer()
            .ok_or_else(|| refuse("dt of a run has to hold safe integers"))?;
        time = time
            .checked_add(step)
            .ok_or_else(|| refuse("the times of a run have to be safe integers"))?;
    }
    Ok(Some(time))
}

fn first_token<V: Value>(kind: RunKind, record: &V) -> Result<Option<i64>> {
    if kind == RunKind::ToolCall && record.member(Word::Name).is_some() {
        return time_of(record, Word::Time0).map(Some);
    }
    time_where(kind, record, Value::is_nonempty_text)
}

fn first_visible<V: Value>(kind: RunKind, record: &V) -> Result<Option<i64>> {
    if kind == RunKind::ToolCall {
        Ok(None)
    } else {
        time_where(kind, record, Value::is_visible_text)
    }
}

fn run_kind<V: Value>(record: &V) -> Result<RunKind> {
    match claim_of(record)? {
        Claim::Run(kind) => Ok(kind),
        Claim::Chunk => Err(refuse("the record has to be a run, but is a chunk")),
    }
}

fn chunk_where<V: Value>(record: &V, wanted: impl Fn(&V) -> bool) -> Option<V> {
    record.member(Word::Chunk).filter(|chunk| wanted(chunk))
}

/// The time of the first token of a run, in milliseconds.
///
/// # Errors
/// A stream error if the record is no run or its times cannot be told.
pub fn run_first_token_time<V: Value>(record: &V) -> Result<Option<i64>> {
    first_token(run_kind(record)?, record)
}

/// The time of the first visible member of a run, in milliseconds.
///
/// # Errors
/// As for [`run_first_token_time`].
pub fn run_first_visible_time<V: Value>(record: &V) -> Result<Option<i64>> {
    first_visible(run_kind(record)?, record)
}

/// The time of the first token of a stream, in milliseconds.
///
/// # Errors
/// A stream error if a record up to the first token cannot be read.
pub fn first_token_time<V: Value>(stream: &V) -> Result<Option<i64>> {
    for record in elements(stream)? {
        let time = match claim_of(&record)? {
            Claim::Run(kind) => first_token(kind, &record)?,
            Claim::Chunk if chunk_where(&record, is_token_delta).is_some() => {
                Some(time_of(&record, Word::Time)?)
            }
            Claim::Chunk => None,
        };
        if time.is_some() {
            return Ok(time);
        }
    }
    Ok(None)
}

/// Whether any chunk or run of a stream shows something.
///
/// # Errors
/// A stream error if a record up to the first visible one cannot be read.
pub fn has_visible_content<V: Value>(stream: &V) -> Result<bool> {
    for record in elements(stream)? {
        let is_visible = match claim_of(&record)? {
            Claim::Run(kind) => first_visible(kind, &record)?.is_some(),
            Claim::Chunk => chunk_where(&record, is_visible_chunk).is_some(),
        };
        if is_visible {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether any answer text of a stream is more than white space.
///
/// # Errors
/// As for [`has_visible_content`].
pub fn has_visible_text<V: Value>(stream: &V) -> Result<bool> {
    for record in elements(stream)? {
        let is_visible = match claim_of(&record)? {
            Claim::Run(RunKind::Text) => members_of(RunKind::Text, &record)?
                .elements()
                .any(|text| text.is_visible_text()),
            Claim::Run(_) => false,
            Claim::Chunk => chunk_where(&record, chunk_has_visible_text).is_some(),
        };
        if is_visible {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The fragments of answer text of a stream, in order. Joined they are its text (spec 20 §8.2).
///
/// # Errors
/// A stream error if a record cannot be read or a text delta has no text.
pub fn text_fragments<V: Value>(stream: &V) -> Result<Vec<V>> {
    let is_text_delta = |chunk: &V| ChunkType::of_chunk(chunk) == Some(ChunkType::Delta(RunKind::Text));
    let mut fragments = Vec::new();
    for record in elements(stream)? {
        match claim_of(&record)? {
            Claim::Run(RunKind::Text) => fragments.extend(members_of(RunKind::Text, &record)?.elements()),
            Claim::Run(_) => {}
            Claim::Chunk => {
                if let Some(chunk) = chunk_where(&record, is_text_delta) {
                    let text = chunk.member(Word::Text).filter(Value::is_text);
                    fragments.push(text.ok_or_else(|| refuse("text of a text-delta has to be a string"))?);
                }
            }
        }
    }
    Ok(fragments)
}

fn raw_chunk<V: Value>(record: &V, wanted: &[u8]) -> Result<Option<V>> {
    let is_wanted = |chunk: &V| {
        chunk
            .member(Word::Type)
            .is_some_and(|kind| kind.text().is_some_and(|text| *text == *wanted))
    };
    Ok(if claim_of(record)? == Claim::Chunk {
        chunk_where(record, is_wanted)
    } else {
        None
    })
}

/// The last raw chunk of a type (a string as WTF-8).
///
/// # Errors
/// A stream error if a record behind that chunk cannot be read.
pub fn last_chunk<V: Value>(stream: &V, wanted: &[u8]) -> Result<Option<V>> {
    let records: Vec<V> = elements(stream)?.collect();
    for record in records.iter().rev() {
        if let Some(chunk) = raw_chunk(record, wanted)? {
            return Ok(Some(chunk));
        }
    }
    Ok(None)
}

/// The raw chunks of a type (a string as WTF-8), in order.
///
/// # Errors
/// A stream error if a record cannot be read.
pub fn chunks_of<V: Value>(stream: &V, wanted: &[u8]) -> Result<Vec<V>> {
    let mut chunks = Vec::new();
    for record in elements(stream)? {
        chunks.extend(raw_chunk(&record, wanted)?);
    }
    Ok(chunks)
}
