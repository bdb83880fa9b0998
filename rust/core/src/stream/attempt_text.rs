//! The stream of one attempt as JSON text, from the bytes of its rows: timed chunks as lines, or records as an array.
//! Spec 20 §3, §4; 10 §5.3.
//!
//! No value is made. What the rows spell as the writer would is copied, the rest is rewritten (`json::spell`).

use std::borrow::Cow;
use std::ops::{Deref, Range};

use super::chunk::{ChunkType, RunKind};
use super::columns::{OpenRun, RowKind, Unpack, chunk_of, packable, stream_of};
use super::common::is_plain_block;
use super::record::{Record, Run, validate_nth};
use super::stored::{StoredStream, parse_row};
use super::value::{Value, Word};
use crate::error::{Error, ErrorKind, Location, Result};
use crate::json::number::{is_safe, write_integer};
use crate::json::text::{decode_string, write_string};
use crate::json::{Node, Tape, push_literal, write_node};
use crate::row::{Delta, DeltaKind, decode_packed, delta_of};

/// Nesting of a chunk row that is recognised without a parse.
const CHUNK_ROW_DEPTH: usize = 3;

/// The timed chunks of an attempt as JSON lines `{<prefix>,"time":…,"chunk":{…}}`, checked by spec 20 §4.
///
/// `rows` are those of the attempt, without line feeds; `prefix` is the JSON text of members, without braces, copied as
/// it is, and may be empty.
///
/// # Errors
/// `Stream` with the number of the record and the seq of the row: a rule of spec 20 §4 is broken. `Row`: a packed row
/// breaks a rule of 10 §5.3, or a row holds no chunks. `Syntax`, `Limit`: a row cannot be parsed.
///
/// # Cost
/// One pass; memory is that of the lines, and 8 bytes for each member of the longest run.
pub fn expand_lines<B: Deref<Target = [u8]>>(rows: &[B], prefix: &[u8], max_depth: usize) -> Result<Vec<u8>> {
    Ok(push_rows(Lines::new(prefix), rows.iter().map(Deref::deref), max_depth)?.out)
}

/// The records of an attempt as the text of a JSON array: those of a settlement, or those that packing makes of the
/// rows of generations 0 and 1. Checked by spec 20 §4; what packing refuses is a raw record.
///
/// # Errors
/// As for [`expand_lines`].
///
/// # Cost
/// One pass; memory is that of the text, and of the members of the longest record once more.
pub fn pack_lines<B: Deref<Target = [u8]>>(rows: &[B], max_depth: usize) -> Result<Vec<u8>> {
    Ok(push_rows(PackedText::new(), rows.iter().map(Deref::deref), max_depth)?.into_text())
}

/// The records of an attempt as text.
pub struct StreamText {
    /// A JSON array.
    pub text: Vec<u8>,
    /// Whether raw records open only blocks whose types spec 50 A.4 names, and close only blocks of text, reasoning or
    /// a tool call, exactly as it has them.
    pub has_plain_blocks: bool,
}

/// [`pack_lines`] of rows that stand one behind the other, each with its line feed, as in a [`super::ChunkRun`].
///
/// # Errors
/// As for [`expand_lines`].
///
/// # Cost
/// As for [`pack_lines`].
pub fn pack_runs<B: Deref<Target = [u8]>>(runs: &[B], max_depth: usize) -> Result<StreamText> {
    let rows = runs.iter().flat_map(|run| LineIter { rest: run });
    let packed = push_rows(PackedText::new(), rows, max_depth)?;
    Ok(StreamText {
        has_plain_blocks: packed.has_plain_blocks,
        text: packed.into_text(),
    })
}

/// The lines of some bytes, without their line feeds.
struct LineIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for LineIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let end = memchr::memchr(b'\n', self.rest).unwrap_or(self.rest.len());
        let (line, behind) = self.rest.split_at(end);
        self.rest = behind.get(1..).unwrap_or_default();
        Some(line)
    }
}

fn push_rows<W: Writer, B: Deref<Target = [u8]>>(
    writer: W,
    rows: impl IntoIterator<Item = B>,
    max_depth: usize,
) -> Result<W> {
    let mut attempt = Attempt::new(writer);
    let mut tape = Tape::new();
    for row in rows {
        let row: &[u8] = &row;
        if max_depth < CHUNK_ROW_DEPTH || !attempt.push_bytes(row) {
            attempt.push_row(parse_row(&mut tape, row, max_depth)?)?;
        }
    }
    Ok(attempt.writer)
}

impl<B: Deref<Target = [u8]>> StoredStream<B> {
    /// [`expand_lines`] of the rows.
    ///
    /// # Errors
    /// As there.
    pub fn expand_lines(&self, prefix: &[u8]) -> Result<Vec<u8>> {
        Ok(self.push_into(Lines::new(prefix))?.out)
    }

    /// [`pack_lines`] of the rows.
    ///
    /// # Errors
    /// As there.
    pub fn pack_lines(&self) -> Result<Vec<u8>> {
        Ok(self.push_into(PackedText::new())?.into_text())
    }

    fn push_into<W: Writer>(&self, writer: W) -> Result<W> {
        let Some((first, others)) = self.rows.split_first() else {
            return Ok(writer);
        };
        let mut attempt = Attempt::new(writer);
        attempt.push_row(self.first.root(first))?;
        let mut tape = Tape::new();
        for row in others {
            if self.max_depth < CHUNK_ROW_DEPTH || !attempt.push_bytes(row) {
                attempt.push_row(parse_row(&mut tape, row, self.max_depth)?)?;
            }
        }
        Ok(attempt.writer)
    }
}

/// What the members of a run have in common.
struct Head<'a> {
    kind: RunKind,
    index: i64,
    id: Option<Cow<'a, [u8]>>,
    name: Option<Cow<'a, [u8]>>,
}

impl<'a> Head<'a> {
    fn of_run(run: &'a Run<Node<'a>>) -> Self {
        Self {
            kind: run.kind,
            index: run.index,
            id: run.id.as_ref().and_then(Value::text),
            name: run.name.as_ref().and_then(Value::text),
        }
    }

    /// Appends `"id":…,"name":…,`, as far as they are there.
    fn push_id_and_name(&self, out: &mut Vec<u8>) {
        for (key, value) in [(Word::Id, &self.id), (Word::Name, &self.name)] {
            if let Some(text) = value {
                push_key(key, out);
                write_string(text, out);
                out.push(b',');
            }
        }
    }

    /// Appends the members of a chunk up to the fragment: `"type":…,"index":…,` … `"text":`.
    fn push_chunk_start(&self, out: &mut Vec<u8>) {
        push_key(Word::Type, out);
        push_word(self.kind.delta_type(), out);
        out.push(b',');
        push_key(Word::Index, out);
        write_integer(self.index, out);
        out.push(b',');
        self.push_id_and_name(out);
        push_key(self.kind.fragment_key(), out);
    }
}

/// Members of a run, with the times of all of them.
enum Members<'a> {
    /// One, as a literal with its quotes.
    One(&'a [u8]),
    /// An array of strings, and that of the differences between their times.
    All { dt: Node<'a>, fragments: Node<'a> },
}

/// A form of the text.
trait Writer {
    /// A record of a settlement.
    fn stored(&mut self, node: Node<'_>, record: &Record<Node<'_>>, times: &mut Vec<i64>);
    /// A raw record.
    fn raw(&mut self, time: i64, chunk: Node<'_>);
    /// Members that start a run, or go on with the last one after a gap.
    fn members(&mut self, head: &Head<'_>, gap: Option<i64>, times: &[i64], members: &Members<'_>);
    /// Members that are raw records each.
    fn raw_members(&mut self, head: &Head<'_>, times: &[i64], members: &Members<'_>);
}

impl OpenRun {
    /// Whether the members that are said to come belong to the run, times not looked at.
    fn is_of(&self, head: &Head<'_>) -> bool {
        (self.kind, self.index) == (head.kind, head.index)
            && self.id.as_deref() == head.id.as_deref()
            && self.name.as_deref() == head.name.as_deref()
    }
}

/// The rows of one attempt, read in order.
struct Attempt<W> {
    writer: W,
    /// Records so far.
    record_count: usize,
    /// The last of them, if a row may extend it.
    open: Option<OpenRun>,
    /// Times of the members of a row; kept for its memory.
    times: Vec<i64>,
}

impl<W: Writer> Attempt<W> {
    fn new(writer: W) -> Self {
        Self {
            writer,
            record_count: 0,
            open: None,
            times: Vec::new(),
        }
    }

    /// Takes a chunk row in the spelling of the harness; false for any other.
    fn push_bytes(&mut self, row: &[u8]) -> bool {
        let Some(delta) = delta_of(row) else {
            return false;
        };
        let Some(head) = head_of_delta(row, &delta) else {
            return false;
        };
        let fragment = row.get(delta.fragment).unwrap_or_default();
        self.push_one(&head, delta.time, fragment);
        true
    }

    fn push_one(&mut self, head: &Head<'_>, time: i64, literal: &[u8]) {
        let gap = self.join(head, time, time);
        self.writer.members(head, gap, &[time], &Members::One(literal));
    }

    fn push_row(&mut self, row: Node<'_>) -> Result<()> {
        let result = match RowKind::of(row) {
            Some(RowKind::Settlement) => stream_of(row).map_or(Ok(()), |stream| self.push_stream(stream)),
            Some(RowKind::Packed(kind)) => self.push_packed(row, kind),
            Some(RowKind::Chunk) => self.push_chunk_row(row),
            None => Err(Error::new(
                ErrorKind::Row,
                "the row is no settlement, packed row or chunk row, so it holds no chunks",
            )),
        };
        result.map_err(|error| {
            error.located(Location {
                seq: row
                    .member("seq")
                    .or_else(|| row.member("seq0"))
                    .and_then(|seq| seq.count()),
                ..Location::default()
            })
        })
    }

    fn push_stream(&mut self, stream: Node<'_>) -> Result<()> {
        self.open = None;
        for node in stream.elements() {
            let record = validate_nth(self.record_count, &node)?;
            self.writer.stored(node, &record, &mut self.times);
            self.record_count += 1;
        }
        Ok(())
    }

    /// Makes the run the last record. Gives the gap to the last one if packing goes on with it (spec 20 §3).
    fn join(&mut self, head: &Head<'_>, first_time: i64, last_time: i64) -> Option<i64> {
        if let Some(open) = self.open.as_mut().filter(|open| open.is_of(head)) {
            // The difference of two safe integers fits.
            let gap = first_time - open.last_time;
            if is_safe(gap) {
                open.last_time = last_time;
                return Some(gap);
            }
        }
        self.record_count += 1;
        let owned = |text: &Option<Cow<'_, [u8]>>| text.as_deref().map(<[u8]>::to_vec);
        self.open = Some(OpenRun {
            kind: head.kind,
            index: head.index,
            id: owned(&head.id),
            name: owned(&head.name),
            last_time,
        });
        None
    }

    fn push_packed(&mut self, row: Node<'_>, kind: RunKind) -> Result<()> {
        let packed = decode_packed(row)?;
        let data = row.member("data");
        let member = |key: Word| data.and_then(|data| data.member(key.as_str()));
        let (Some(dt), Some(fragments), Some(index)) = (
            member(Word::Dt),
            member(kind.members_key()),
            member(Word::Index).and_then(|index| Value::count(&index)),
        ) else {
            return Ok(()); // Not reached: decoding has asked for all of them.
        };
        let text_of = |key| member(key).and_then(|text| text.text());
        let head = Head {
            kind,
            index,
            id: text_of(Word::Id),
            name: text_of(Word::Name),
        };
        self.times.clear();
        Unpack::push_running_sums(&dt, packed.time, &mut self.times);
        let members = Members::All { dt, fragments };
        if head.name.as_ref().is_some_and(|name| name.is_empty()) {
            // Records may not hold an empty name, so each member is a raw record of its own.
            self.open = None;
            self.record_count += fragments.len();
            self.writer.raw_members(&head, &self.times, &members);
            return Ok(());
        }
        let last_time = self.times.last().copied().unwrap_or(packed.time);
        let gap = self.join(&head, packed.time, last_time);
        self.writer.members(&head, gap, &self.times, &members);
        Ok(())
    }

    fn push_chunk_row(&mut self, row: Node<'_>) -> Result<()> {
        let refuse = |message| {
            let record = u64::try_from(self.record_count).ok();
            Err(Error::new(ErrorKind::Stream { record }, message))
        };
        let Some(time) = row.member("time").and_then(|time| time.sint()) else {
            return refuse("time of a chunk row has to be a safe integer");
        };
        let chunk = chunk_of(row).filter(Node::is_object);
        let Some(chunk) = chunk.filter(Value::is_lossless) else {
            return refuse(
                "chunk of a chunk row has to be an object and lossless JSON: no -0 and no number that is not finite",
            );
        };
        if let Some((run, fragment)) = packable(&chunk) {
            let head = Head {
                kind: run.kind,
                index: run.index,
                id: run.id.map(Cow::Owned),
                name: run.name.map(Cow::Owned),
            };
            self.push_one(&head, time, fragment.raw().unwrap_or_default());
        } else {
            self.open = None;
            self.record_count += 1;
            self.writer.raw(time, chunk);
        }
        Ok(())
    }
}

/// The run of a chunk that was recognised; None if packing keeps it raw.
fn head_of_delta<'a>(row: &'a [u8], delta: &Delta) -> Option<Head<'a>> {
    let text_of = |range: &Option<Range<usize>>| match range {
        None => Some(None),
        Some(range) => row
            .get(range.start + 1..range.end - 1)
            .filter(|inside| !inside.is_empty())
            .map(|inside| Some(decode_string(inside))),
    };
    Some(Head {
        kind: match delta.kind {
            DeltaKind::Text => RunKind::Text,
            DeltaKind::Reasoning => RunKind::Reasoning,
            DeltaKind::ToolCall => RunKind::ToolCall,
        },
        index: Some(delta.index).filter(|&index| index >= 0)?,
        id: text_of(&delta.id)?,
        name: text_of(&delta.name)?,
    })
}

// --- lines ---

/// What stands behind the fragment of a line.
const LINE_END: &[u8] = b"}}\n";

/// Timed chunks, one a line.
struct Lines {
    out: Vec<u8>,
    /// Up to the time.
    lead: Vec<u8>,
    line: Line,
}

/// The end of a line, and the next one up to its fragment, with the time that was set last.
#[derive(Default)]
struct Line {
    bytes: Vec<u8>,
    /// Where the time ends.
    time_end: usize,
    /// The time without its last four digits; None if the time is no number of at least five digits.
    high: Option<i64>,
}

impl Line {
    fn set_head(&mut self, lead: &[u8], head: &Head<'_>) {
        self.bytes.clear();
        self.bytes.extend_from_slice(LINE_END);
        self.bytes.extend_from_slice(lead);
        self.time_end = self.bytes.len();
        self.bytes.extend_from_slice(b",\"chunk\":{");
        head.push_chunk_start(&mut self.bytes);
        self.high = None;
    }

    /// Chunks come within seconds of each other, so mostly the last digits change.
    #[inline]
    fn set_time(&mut self, lead_len: usize, time: i64) {
        let high = time.div_euclid(10_000);
        if self.high == Some(high) {
            let low = time.rem_euclid(10_000);
            let digit = |value: i64| u8::try_from(value % 10).map_or(b'0', |digit| b'0' + digit);
            let place = self
                .bytes
                .get_mut(self.time_end - 4..)
                .and_then(<[u8]>::first_chunk_mut);
            if let Some(place) = place {
                *place = [digit(low / 1000), digit(low / 100), digit(low / 10), digit(low)];
            }
            return;
        }
        let start = LINE_END.len() + lead_len;
        let mut digits = Vec::with_capacity(20);
        write_integer(time, &mut digits);
        let len = digits.len();
        self.bytes.splice(start..self.time_end, digits);
        self.time_end = start + len;
        self.high = (time >= 10_000).then_some(high);
    }
}

impl Lines {
    fn new(prefix: &[u8]) -> Self {
        let mut lead = vec![b'{'];
        if !prefix.is_empty() {
            lead.extend_from_slice(prefix);
            lead.push(b',');
        }
        push_key(Word::Time, &mut lead);
        Self {
            out: Vec::new(),
            lead,
            line: Line::default(),
        }
    }

    fn push_fragments(&mut self, times: &[i64], fragments: Node<'_>) {
        let Self { out, lead, line } = self;
        let mut times = times.iter().copied();
        let literal_bytes = fragments.raw().unwrap_or_default().len();
        // The digits of a time are not in the line before the first one is set.
        out.reserve(literal_bytes + times.len() * (line.bytes.len() + 13));
        let mut from = LINE_END.len();
        fragments.push_text_literals(out, |out| {
            line.set_time(lead.len(), times.next().unwrap_or_default());
            out.extend_from_slice(line.bytes.get(from..).unwrap_or_default());
            from = 0;
        });
        if from == 0 {
            out.extend_from_slice(LINE_END);
        }
    }
}

impl Writer for Lines {
    fn stored(&mut self, _node: Node<'_>, record: &Record<Node<'_>>, times: &mut Vec<i64>) {
        match record {
            Record::Raw { time, chunk } => self.raw(*time, *chunk),
            Record::Run(run) => {
                times.clear();
                Unpack::push_running_sums(&run.dt, run.time0, times);
                self.line.set_head(&self.lead, &Head::of_run(run));
                self.push_fragments(times, run.members);
            }
        }
    }

    fn raw(&mut self, time: i64, chunk: Node<'_>) {
        let out = &mut self.out;
        out.extend_from_slice(&self.lead);
        write_integer(time, out);
        out.push(b',');
        push_key(Word::Chunk, out);
        write_node(chunk, out, &|_, _| false);
        out.extend_from_slice(b"}\n");
    }

    fn members(&mut self, head: &Head<'_>, gap: Option<i64>, times: &[i64], members: &Members<'_>) {
        if gap.is_none() {
            self.line.set_head(&self.lead, head);
        }
        match members {
            Members::One(literal) => {
                let time = times.first().copied().unwrap_or_default();
                self.line.set_time(self.lead.len(), time);
                let line = self.line.bytes.get(LINE_END.len()..);
                self.out.extend_from_slice(line.unwrap_or_default());
                push_literal(literal, &mut self.out);
                self.out.extend_from_slice(LINE_END);
            }
            Members::All { fragments, .. } => self.push_fragments(times, *fragments),
        }
    }

    fn raw_members(&mut self, head: &Head<'_>, times: &[i64], members: &Members<'_>) {
        // A chunk is written in the same way, whatever record it comes from.
        self.members(head, None, times, members);
    }
}

// --- records ---

/// Records as a JSON array.
struct PackedText {
    /// The open run is there up to the last of its gaps.
    out: Vec<u8>,
    /// Members of the open run, and what stands before them.
    members: Vec<u8>,
    is_open: bool,
    /// Whether the open run has a gap.
    has_gap: bool,
    /// See [`StreamText`].
    has_plain_blocks: bool,
}

impl PackedText {
    fn new() -> Self {
        Self {
            out: vec![b'['],
            members: Vec::new(),
            is_open: false,
            has_gap: false,
            has_plain_blocks: true,
        }
    }

    fn into_text(mut self) -> Vec<u8> {
        self.end_run();
        self.out.push(b']');
        self.out
    }

    fn end_run(&mut self) {
        if self.is_open {
            self.out.push(b']');
            self.out.extend_from_slice(&self.members);
            self.out.extend_from_slice(b"]}");
            self.is_open = false;
        }
    }

    /// Ends the record before, and says what it is that comes.
    fn begin_record(&mut self) {
        self.end_run();
        if self.out.len() > 1 {
            self.out.push(b',');
        }
    }

    /// Writes a raw record around its chunk.
    fn push_raw(&mut self, time: i64, push_chunk: impl FnOnce(&mut Vec<u8>)) {
        self.begin_record();
        self.out.extend_from_slice(b"{\"type\":\"chunk\",\"time\":");
        write_integer(time, &mut self.out);
        self.out.extend_from_slice(b",\"chunk\":");
        push_chunk(&mut self.out);
        self.out.push(b'}');
    }

    fn begin_run(&mut self, head: &Head<'_>, time0: i64) {
        self.begin_record();
        self.is_open = true;
        self.has_gap = false;
        let Self { out, members, .. } = self;
        out.push(b'{');
        push_key(Word::Type, out);
        push_word(head.kind.record_type(), out);
        out.push(b',');
        push_key(Word::Time0, out);
        write_integer(time0, out);
        out.push(b',');
        push_key(Word::Index, out);
        write_integer(head.index, out);
        out.push(b',');
        push_key(Word::Dt, out);
        out.push(b'[');
        members.clear();
        members.push(b',');
        head.push_id_and_name(members);
        push_key(head.kind.members_key(), members);
        members.push(b'[');
    }

    fn push_gap(&mut self, gap: i64) {
        if self.has_gap {
            self.out.push(b',');
        }
        self.has_gap = true;
        write_integer(gap, &mut self.out);
    }
}

impl PackedText {
    /// Adds the gaps of a packed row.
    fn push_gaps(&mut self, dt: Node<'_>) {
        if dt.is_empty() {
            return;
        }
        // Most arrays are spelled as they are written, and bring their own opening bracket.
        if !self.has_gap {
            self.out.pop();
        }
        let start = self.out.len();
        if dt.push_packed_array(&mut self.out) {
            self.out.pop();
            if self.has_gap
                && let Some(bracket) = self.out.get_mut(start)
            {
                *bracket = b',';
            }
            self.has_gap = true;
            return;
        }
        if !self.has_gap {
            self.out.push(b'[');
        }
        for step in dt.elements() {
            self.push_gap(step.safe_integer().unwrap_or_default());
        }
    }
}

impl Writer for PackedText {
    fn stored(&mut self, node: Node<'_>, record: &Record<Node<'_>>, _times: &mut Vec<i64>) {
        self.begin_record();
        write_node(node, &mut self.out, &|_, _| false);
        if let Record::Raw { chunk, .. } = record {
            self.has_plain_blocks &= has_plain_block(chunk);
        }
    }

    fn raw(&mut self, time: i64, chunk: Node<'_>) {
        self.has_plain_blocks &= has_plain_block(&chunk);
        self.push_raw(time, |out| write_node(chunk, out, &|_, _| false));
    }

    fn members(&mut self, head: &Head<'_>, gap: Option<i64>, times: &[i64], members: &Members<'_>) {
        if let Some(gap) = gap {
            self.push_gap(gap);
        } else {
            self.begin_run(head, times.first().copied().unwrap_or_default());
        }
        let separate = |out: &mut Vec<u8>| {
            // A literal ends in a quote, so a bracket is the one that opens the members.
            if out.last() != Some(&b'[') {
                out.push(b',');
            }
        };
        match members {
            Members::One(literal) => {
                separate(&mut self.members);
                push_literal(literal, &mut self.members);
            }
            Members::All { dt, fragments } => {
                self.push_gaps(*dt);
                fragments.push_text_literals(&mut self.members, separate);
            }
        }
    }

    fn raw_members(&mut self, head: &Head<'_>, times: &[i64], members: &Members<'_>) {
        let Members::All { fragments, .. } = members else {
            return; // Not reached: only a packed row has such members.
        };
        for (&time, fragment) in times.iter().zip(fragments.elements()) {
            self.push_raw(time, |out| {
                out.push(b'{');
                head.push_chunk_start(out);
                fragment.push_text_literal(out);
                out.push(b'}');
            });
        }
    }
}

/// Whether a raw chunk names no block that migration has to look at.
fn has_plain_block(chunk: &Node<'_>) -> bool {
    let opened = || {
        chunk
            .member("blockType")
            .is_some_and(|kind| BLOCK_TYPES.iter().any(|known| kind.text_is(known)))
    };
    match ChunkType::of_chunk(chunk) {
        Some(ChunkType::BlockStart) => opened(),
        Some(ChunkType::BlockEnd) => chunk
            .member("block")
            .is_some_and(|block| block.is_object() && is_plain_block(&block)),
        _ => true,
    }
}

/// Types of blocks of old messages. Spec 50 A.4.
const BLOCK_TYPES: [&str; 6] = ["text", "reasoning", "image", "file", "tool-call", "tool-result"];

// --- parts ---

fn push_word(word: Word, out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(word.as_str().as_bytes());
    out.push(b'"');
}

fn push_key(key: Word, out: &mut Vec<u8>) {
    push_word(key, out);
    out.push(b':');
}

#[cfg(test)]
mod tests {
    use super::super::expand_to_json;
    use super::*;

    fn lines(rows: &[&str], prefix: &str) -> Result<String> {
        let rows: Vec<Vec<u8>> = rows.iter().map(|row| row.as_bytes().to_vec()).collect();
        let text = expand_lines(&rows, prefix.as_bytes(), 1024)?;
        let stored = StoredStream::new(rows, 1024)?;
        assert_eq!(stored.expand_lines(prefix.as_bytes())?, text);
        Ok(String::from_utf8(text).unwrap())
    }

    fn packed(rows: &[&str]) -> Result<String> {
        let rows: Vec<Vec<u8>> = rows.iter().map(|row| row.as_bytes().to_vec()).collect();
        let text = pack_lines(&rows, 1024)?;
        let stored = StoredStream::new(rows, 1024)?;
        assert_eq!(stored.pack_lines()?, text);
        Ok(String::from_utf8(text).unwrap())
    }

    const STREAM: &str = r#"[
        {"type":"text-chunks","time0":9998,"index":0,"dt":[1, 1,-9999,-1,1e12],"texts":["a","\ud83d","\u0041\/","","\n","é"]},
        {"args":["{","\"}"],"dt":[-0],"name":"n","id":"\u0063","time0":1.0,"index":2,"type":"tool-call-chunks"},
        {"type":"chunk","time":-0,"chunk":{"type":"finish","1":1e3,"0":[ 1, "\u0041"]}}]"#;

    #[test]
    fn lines_are_those_of_the_records() {
        let row = format!(r#"{{"type":"assistant/message","data":{{"stream":{STREAM}}}}}"#);
        let mut tape = Tape::new();
        let stream = tape.read_text(STREAM.as_bytes(), 9).unwrap();
        let mut expected = Vec::new();
        for record in super::super::records(&stream).unwrap() {
            expand_to_json(&record.unwrap(), &mut expected);
        }
        let expected = String::from_utf8(expected).unwrap();
        assert_eq!(lines(&[&row], "").unwrap(), expected);
        assert_eq!(
            lines(&[&row], "\"seq\":3").unwrap(),
            expected.replace("{\"time\"", "{\"seq\":3,\"time\"")
        );
        assert!(
            expected.starts_with(
                "{\"time\":9998,\"chunk\":{\"type\":\"text-delta\",\"index\":0,\"text\":\"a\"}}\n"
            )
        );
    }

    const ROWS: [&str; 6] = [
        r#"{"type":"text-chunks","seq0":0,"time0":1010,"data":{"turn":1,"step":1,"index":0,"dt":[2, 3],"texts":["a","b","\/"]}}"#,
        r#"{"type":"assistant/chunk","seq":3,"time":1016,"data":{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"d\u000A"}}}"#,
        r#"{"type":"assistant/chunk","seq":4,"time":1017,"data":{"turn":1,"step":1,"chunk":{"type":"text-delta","index":1,"x":1,"text":"e"}}}"#,
        r#"{"type":"assistant/chunk","seq":5,"time":1018,"data":{"turn":1,"step":1,"chunk":{"type":"tool-call-delta","index":2,"id":"c","name":"","argumentsDelta":"f"}}}"#,
        r#"{"type":"tool-call-chunks","seq0":6,"time0":1019,"data":{"turn":1,"step":1,"index":2,"dt":[1],"id":"c","name":"","args":["g","h"]}}"#,
        r#"{"type":"assistant/chunk","seq":8,"time":1021,"data":{"turn":1,"step":1,"chunk":{"type":"tool-call-delta","index":2,"id":"c","name":"n","argumentsDelta":"i"}}}"#,
    ];

    #[test]
    fn rows_of_the_old_generations_are_packed() {
        assert_eq!(
            packed(&ROWS).unwrap(),
            concat!(
                r#"[{"type":"text-chunks","time0":1010,"index":0,"dt":[2,3,1],"texts":["a","b","/","d\n"]},"#,
                r#"{"type":"text-chunks","time0":1017,"index":1,"dt":[],"texts":["e"]},"#,
                r#"{"type":"chunk","time":1018,"chunk":{"type":"tool-call-delta","index":2,"id":"c","name":"","argumentsDelta":"f"}},"#,
                r#"{"type":"chunk","time":1019,"chunk":{"type":"tool-call-delta","index":2,"id":"c","name":"","argumentsDelta":"g"}},"#,
                r#"{"type":"chunk","time":1020,"chunk":{"type":"tool-call-delta","index":2,"id":"c","name":"","argumentsDelta":"h"}},"#,
                r#"{"type":"tool-call-chunks","time0":1021,"index":2,"dt":[],"id":"c","name":"n","args":["i"]}]"#,
            )
        );
        assert_eq!(packed(&[]).unwrap(), "[]");
    }

    #[test]
    fn runs_of_rows_are_packed_like_their_rows() {
        let first = ROWS[..2].join("\n") + "\n";
        let runs = [first, ROWS[2..].join("\n")].map(String::into_bytes);
        let packed = pack_runs(&runs, 1024).unwrap();
        let rows: Vec<&[u8]> = ROWS.iter().map(|row| row.as_bytes()).collect();
        assert_eq!(packed.text, pack_lines(&rows, 1024).unwrap());
        assert!(packed.has_plain_blocks);
    }

    #[test]
    fn blocks_that_are_not_plain_are_told() {
        let is_plain = |chunk: &str| {
            let row = format!(
                r#"{{"type":"assistant/chunk","seq":3,"time":1,"data":{{"turn":1,"step":1,"chunk":{chunk}}}}}"#
            );
            pack_runs(&[row.into_bytes()], 1024).unwrap().has_plain_blocks
        };
        assert!(is_plain(
            r#"{"type":"block-start","index":0,"blockType":"image"}"#
        ));
        assert!(!is_plain(
            r#"{"type":"block-start","index":0,"blockType":"video"}"#
        ));
        assert!(!is_plain(r#"{"type":"block-start","index":0}"#));
        assert!(is_plain(
            r#"{"type":"block-end","index":0,"block":{"type":"text","text":"a"}}"#
        ));
        for block in [
            r#"{"type":"text","text":1}"#,
            r#"{"type":"text","text":"a","x":1}"#,
            r#"{"type":"image","attachment":{}}"#,
            r#"{"type":"tool-call","id":"","name":"n","arguments":""}"#,
            "[]",
        ] {
            assert!(
                !is_plain(&format!(r#"{{"type":"block-end","index":0,"block":{block}}}"#)),
                "{block}"
            );
        }
        assert!(is_plain(r#"{"type":"finish","block":1,"blockType":2}"#));
    }

    #[test]
    fn lines_of_rows_are_those_of_their_records() {
        let stream = packed(&ROWS).unwrap();
        let row = format!(r#"{{"type":"assistant/message","data":{{"stream":{stream}}}}}"#);
        assert_eq!(lines(&ROWS, "").unwrap(), lines(&[&row], "").unwrap());
    }

    #[test]
    fn faults_name_record_and_row() {
        let bad = ROWS[1].replace("1016", "1.5");
        let error = lines(&[ROWS[0], ROWS[2], &bad], "").unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Stream { record: Some(2) }));
        assert_eq!(error.location().seq, Some(3));
        let row = r#"{"type":"assistant/attempt","seq":9,"data":{"stream":[{"type":"chunk","time":1,"chunk":{}},{}]}}"#;
        let error = packed(&[row]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Stream { record: Some(1) }));
        assert!(matches!(
            lines(&["{\"type\":\"x\"}"], "").unwrap_err().kind(),
            ErrorKind::Row
        ));
    }
}
