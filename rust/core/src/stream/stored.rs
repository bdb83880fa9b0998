//! The stream of one attempt as rows of a log: readers that make no values. Spec 20 §5, 10 §5.3.

use std::ops::Deref;

use super::chunk::{ChunkType, RunKind};
use super::columns::{Columns, ColumnsBuilder, RowKind, Unpack, chunk_of, packable, stream_of};
use super::readers::{
    self, Claim, claim_of, elements, is_token_delta, is_visible_chunk, last_chunk, members_of, refuse,
};
use super::record::{Record, Run, validate_nth};
use super::value::{Value, Word};
use crate::error::{Error, ErrorKind, Location, Result};
use crate::json::text::{fuse_wtf8, write_string};
use crate::json::{Fault, FaultKind, Node, Tape, write_node};
use crate::row::decode_packed;

/// Parses a row, given without its line feed.
///
/// # Errors
/// `Syntax` with the byte where the row stops to be JSON; `Limit` where it nests deeper than `max_depth`.
pub(crate) fn parse_row<'a>(tape: &'a mut Tape, bytes: &'a [u8], max_depth: usize) -> Result<Node<'a>> {
    tape.read_text(bytes, max_depth).map_err(|Fault { at, kind }| {
        let place = Location {
            offset: u64::try_from(at).ok(),
            ..Location::default()
        };
        let error = match kind {
            FaultKind::TooDeep => Error::limit(
                "max_depth",
                max_depth as u64,
                format!("the value nests deeper than {max_depth} levels; raise max_depth to take it"),
            ),
            FaultKind::Unexpected(expected) => Error::new(
                ErrorKind::Syntax,
                format!("the text is not JSON: expected {expected}"),
            )
            .with_rule("10 §1"),
            FaultKind::End | FaultKind::Stopped => Error::new(
                ErrorKind::Syntax,
                "the text is not JSON: expected more: it ends inside a value",
            )
            .with_rule("10 §1"),
        };
        error.located(place)
    })
}

/// Columns of attempts, each given as the rows that hold its chunks.
///
/// # Errors
/// As for [`ColumnsBuilder::push_row`], and `Syntax` and `Limit` for a row that cannot be parsed.
pub fn row_columns<B: Deref<Target = [u8]>>(attempts: &[Vec<B>], max_depth: usize) -> Result<Columns> {
    let mut builder = ColumnsBuilder::new();
    let mut tape = Tape::new();
    for rows in attempts {
        for row in rows {
            builder.push_row(parse_row(&mut tape, row, max_depth)?)?;
        }
        builder.end_attempt();
    }
    Ok(builder.finish())
}

/// The rows of one attempt: a settlement, or packed rows and chunk rows of generations 0 and 1.
pub struct StoredStream<B> {
    pub(super) rows: Vec<B>,
    /// The first row, parsed.
    pub(super) first: Tape,
    pub(super) max_depth: usize,
}

impl<B: Deref<Target = [u8]>> StoredStream<B> {
    /// Takes the rows, each without its line feed.
    ///
    /// # Errors
    /// The first row is no JSON, or nests too deep. Other rows are looked at when somebody asks.
    pub fn new(rows: Vec<B>, max_depth: usize) -> Result<Self> {
        let mut first = Tape::new();
        if let Some(row) = rows.first() {
            parse_row(&mut first, row, max_depth)?;
        }
        Ok(Self {
            rows,
            first,
            max_depth,
        })
    }

    /// The first row; None if there is none.
    fn first_row(&self) -> Option<Node<'_>> {
        Some(self.first.root(self.rows.first()?))
    }

    /// A member of the first row's `data`.
    pub fn data_member(&self, key: &str) -> Option<Node<'_>> {
        self.first_row()?.member("data")?.member(key)
    }

    /// Calls `look` for each row until it finds something.
    fn find<T>(&self, mut look: impl FnMut(RowKind, Node<'_>) -> Result<Option<T>>) -> Result<Option<T>> {
        let mut look = |row: Node<'_>| match RowKind::of(row) {
            Some(kind) => look(kind, row),
            None => Err(Error::new(
                ErrorKind::Row,
                "the row is no settlement, packed row or chunk row, so it holds no chunks",
            )),
        };
        let mut tape = Tape::new();
        for (at, bytes) in self.rows.iter().enumerate() {
            let found = if at == 0 {
                look(self.first.root(bytes))?
            } else {
                look(parse_row(&mut tape, bytes, self.max_depth)?)?
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Chunks of the attempt; counted, not checked.
    ///
    /// # Errors
    /// A row cannot be parsed, or holds no chunks.
    pub fn chunk_count(&self) -> Result<usize> {
        let mut count = 0;
        self.find(|kind, row| {
            count += match kind {
                RowKind::Settlement => stream_of(row).map_or(0, |stream| {
                    stream.elements().map(|record| count_members(&record)).sum()
                }),
                RowKind::Packed(run) => row
                    .member("data")
                    .and_then(|data| data.member(run.members_key().as_str()))
                    .map_or(0, |members| members.len()),
                RowKind::Chunk => 1,
            };
            Ok(None::<()>)
        })?;
        Ok(count)
    }

    /// The answer text as WTF-8, see [`readers::text_fragments`].
    ///
    /// # Errors
    /// As there; and a row cannot be parsed, or holds no chunks.
    pub fn text(&self) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        let mut ends = Vec::new();
        self.find(|kind, row| {
            match kind {
                RowKind::Settlement => {
                    if let Some(stream) = stream_of(row) {
                        for record in elements(&stream)? {
                            match claim_of(&record)? {
                                Claim::Run(RunKind::Text) => {
                                    let members = members_of(RunKind::Text, &record)?;
                                    Unpack::push_texts(&members, &mut text, &mut ends);
                                }
                                Claim::Run(_) => {}
                                Claim::Chunk => push_delta_text(record.member("chunk"), &mut text)?,
                            }
                        }
                    }
                }
                RowKind::Packed(RunKind::Text) => {
                    let members = row.member("data").and_then(|data| data.member("texts"));
                    if let Some(members) = members {
                        Unpack::push_texts(&members, &mut text, &mut ends);
                    }
                }
                RowKind::Packed(_) => {}
                RowKind::Chunk => push_delta_text(chunk_of(row), &mut text)?,
            }
            ends.clear();
            Ok(None::<()>)
        })?;
        // Only text with lone halves is no UTF-8; halves of neighbouring fragments join (spec 20 §8.2).
        if std::str::from_utf8(&text).is_err() {
            text = fuse_wtf8(&text);
        }
        Ok(text)
    }

    /// The time of the first token in milliseconds, see [`readers::first_token_time`].
    ///
    /// # Errors
    /// As there; and a row cannot be parsed, or holds no chunks.
    pub fn first_token_time(&self) -> Result<Option<i64>> {
        self.find(|kind, row| match kind {
            RowKind::Settlement => {
                stream_of(row).map_or(Ok(None), |stream| readers::first_token_time(&stream))
            }
            RowKind::Packed(run) => {
                let packed = decode_packed(row)?;
                let data = row.member("data");
                let member = |key: Word| data.and_then(|data| data.member(key.as_str()));
                if member(Word::Name).is_some() {
                    return Ok(Some(packed.time));
                }
                let mut times = Vec::new();
                if let Some(dt) = member(Word::Dt) {
                    Unpack::push_running_sums(&dt, packed.time, &mut times);
                }
                let first = member(run.members_key()).and_then(|members| {
                    members
                        .elements()
                        .position(|fragment| fragment.is_nonempty_text())
                });
                Ok(first.and_then(|at| times.get(at).copied()))
            }
            RowKind::Chunk if chunk_of(row).as_ref().is_some_and(is_token_delta) => {
                match row.member("time").and_then(|time| time.sint()) {
                    Some(time) => Ok(Some(time)),
                    None => Err(refuse("time of a chunk row has to be a safe integer")),
                }
            }
            RowKind::Chunk => Ok(None),
        })
    }

    /// Whether any chunk shows something, see [`readers::has_visible_content`].
    ///
    /// # Errors
    /// As there; and a row cannot be parsed, or holds no chunks.
    pub fn has_visible_content(&self) -> Result<bool> {
        let found = self.find(|kind, row| {
            let is_visible = match kind {
                RowKind::Settlement => match stream_of(row) {
                    Some(stream) => readers::has_visible_content(&stream)?,
                    None => false,
                },
                RowKind::Packed(RunKind::ToolCall) => false,
                RowKind::Packed(_) => row
                    .member("data")
                    .and_then(|data| data.member("texts"))
                    .is_some_and(|texts| texts.elements().any(|text| text.is_visible_text())),
                RowKind::Chunk => chunk_of(row).as_ref().is_some_and(is_visible_chunk),
            };
            Ok(is_visible.then_some(()))
        })?;
        Ok(found.is_some())
    }

    /// Times of the first and the last chunk in milliseconds; None without chunks.
    ///
    /// # Errors
    /// `Stream`: the first or last record (in generations 0 and 1: any chunk) breaks a rule of spec 20 §4.
    pub fn time_span(&self) -> Result<Option<(i64, i64)>> {
        if let [_] = self.rows.as_slice()
            && let Some(row) = self.first_row()
            && RowKind::of(row) == Some(RowKind::Settlement)
        {
            return stream_of(row).map_or(Ok(None), span_of_stream);
        }
        let times = self.columns()?.time;
        Ok(times.first().copied().zip(times.last().copied()))
    }

    /// Gives `take` the JSON text of the last raw chunk of a type (WTF-8); None if there is none.
    ///
    /// # Errors
    /// A record cannot be read; and a row cannot be parsed, or holds no chunks.
    pub fn last_chunk<T>(&self, wanted: &[u8], take: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let mut text = None;
        self.find(|kind, row| {
            let chunk = match kind {
                RowKind::Settlement => match stream_of(row) {
                    Some(stream) => last_chunk(&stream, wanted)?,
                    None => None,
                },
                RowKind::Packed(_) => {
                    if wanted == Word::ToolCallDelta.as_str().as_bytes() {
                        text = raw_member(row).or_else(|| text.take());
                    }
                    None
                }
                RowKind::Chunk => chunk_of(row).filter(|chunk| is_raw(row, chunk, wanted)),
            };
            if let Some(raw) = chunk.and_then(|chunk| chunk.raw()) {
                text = Some(raw.to_vec());
            }
            Ok(None::<()>)
        })?;
        Ok(text.as_deref().map(take))
    }

    /// The columns of the attempt.
    ///
    /// # Errors
    /// As for [`ColumnsBuilder::push_row`], and a row cannot be parsed.
    pub fn columns(&self) -> Result<Columns> {
        let mut builder = ColumnsBuilder::new();
        self.push_columns(&mut builder)?;
        Ok(builder.finish())
    }

    /// Adds the attempt to columns.
    ///
    /// # Errors
    /// As for [`StoredStream::columns`].
    pub fn push_columns(&self, builder: &mut ColumnsBuilder) -> Result<()> {
        let mut tape = Tape::new();
        for (at, bytes) in self.rows.iter().enumerate() {
            if at == 0 {
                builder.push_row(self.first.root(bytes))?;
            } else {
                builder.push_row(parse_row(&mut tape, bytes, self.max_depth)?)?;
            }
        }
        builder.end_attempt();
        Ok(())
    }
}

/// Chunks of a record that has not been validated.
fn count_members(record: &Node<'_>) -> usize {
    let kind = record
        .member("type")
        .and_then(|kind| RunKind::of_record(kind.word()));
    kind.and_then(|kind| record.member(kind.members_key().as_str()))
        .filter(Node::is_array)
        .map_or(1, |members| members.len())
}

/// Whether the chunk of a chunk row is of a type and stays raw: packing keeps it so, or refuses it.
fn is_raw(row: Node<'_>, chunk: &Node<'_>, wanted: &[u8]) -> bool {
    let is_wanted = chunk
        .member("type")
        .is_some_and(|kind| kind.text().is_some_and(|text| *text == *wanted));
    let is_packed = || {
        packable(chunk).is_some()
            && Value::is_lossless(chunk)
            && row.member("time").is_some_and(|time| time.sint().is_some())
    };
    is_wanted && !is_packed()
}

/// The last chunk of a packed row whose members stay raw, because records may not hold an empty name; else None.
fn raw_member(row: Node<'_>) -> Option<Vec<u8>> {
    let data = row.member("data")?;
    let name = data.member("name").filter(Node::is_text)?;
    if name.is_nonempty_text() {
        return None;
    }
    let mut out = b"{\"type\":\"tool-call-delta\",\"index\":".to_vec();
    write_node(data.member("index")?, &mut out, &|_, _| false);
    out.extend_from_slice(b",\"id\":");
    write_string(&data.member("id")?.text()?, &mut out);
    out.extend_from_slice(b",\"name\":\"\",\"argumentsDelta\":");
    write_string(&data.member("args")?.elements().last()?.text()?, &mut out);
    out.push(b'}');
    Some(out)
}

fn push_delta_text(chunk: Option<Node<'_>>, text: &mut Vec<u8>) -> Result<()> {
    let Some(chunk) = chunk else { return Ok(()) };
    if ChunkType::of_chunk(&chunk) == Some(ChunkType::Delta(RunKind::Text)) {
        let fragment = chunk.member("text");
        match fragment.as_ref().and_then(Node::text) {
            Some(fragment) => text.extend_from_slice(&fragment),
            None => return Err(refuse("text of a text-delta has to be a string")),
        }
    }
    Ok(())
}

fn span_of_stream(stream: Node<'_>) -> Result<Option<(i64, i64)>> {
    let mut last = None;
    let mut count = 0;
    for record in stream.elements() {
        last = Some(record);
        count += 1;
    }
    let (Some(first), Some(last)) = (stream.elements().next(), last) else {
        return Ok(None);
    };
    let start = match validate_nth(0, &first)? {
        Record::Run(Run { time0: time, .. }) | Record::Raw { time, .. } => time,
    };
    let end = match validate_nth(count - 1, &last)? {
        Record::Raw { time, .. } => time,
        Record::Run(run) => {
            let mut times = Vec::with_capacity(run.count);
            Unpack::push_running_sums(&run.dt, run.time0, &mut times);
            times.last().copied().unwrap_or(run.time0)
        }
    };
    Ok(Some((start, end)))
}
