//! What the rules of a level ask of a row that was recognised without a tape.
//!
//! Such a row keeps every rule that looks at it alone, up to level `Restore`. The rules that depend on earlier rows look
//! at a few members of it, and at no other part: those are noted while the row is read. The benchmark `bench_check`,
//! levels, shows what it pays.

use super::envelope::Envelope;
use super::quick_event::EventRow;
use crate::json::{Node, RecordPlaces, Span};

/// How a row is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Judged.
    Judged,
    /// Judged, with what rules ask of it.
    Noted,
    /// The same, but nobody asks for more than its type if it is ignorable, and for everything if not.
    NotedIfIgnorable,
    /// Judged, with what rules ask of it and what its stream is compared with.
    Compared,
    /// Parsed.
    Parsed,
}

/// Bytes from one to another.
pub(super) type Bytes = (usize, usize);

/// What rules ask of a row beside its envelope.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notes {
    /// The bytes of `data`.
    pub(super) data: Bytes,
    pub(super) turn: Option<i64>,
    pub(super) step: Option<i64>,
    pub(super) has_append: bool,
    pub(super) result: Option<ResultNotes>,
}

/// The message of a tool/result; its content has no blocks but of text, reasoning and tool calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResultNotes {
    pub(super) call: Span,
    pub(super) id: Span,
    pub(super) is_error: Option<bool>,
}

/// A tool call in an assistant/message, or that of a tool/call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallNotes {
    pub(super) id: Span,
    pub(super) name: Span,
    pub(super) arguments: Span,
}

/// Parts of a stream that are noted; one with more is parsed.
const MAX_PARTS: usize = 256;

/// A part of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamPart {
    /// A run, or the start of a block, with this index.
    Block(i64),
    /// Any other chunk.
    Chunk(Bytes),
}

/// What the stream of an assistant/message is, and is compared with.
#[derive(Debug, Default)]
pub(crate) struct StreamNotes {
    pub(super) parts: Vec<StreamPart>,
    pub(super) content: Bytes,
    pub(super) usage: Option<Bytes>,
    pub(super) replay_state: Option<Bytes>,
}

impl StreamNotes {
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        (self.usage, self.replay_state) = (None, None);
    }

    /// The parts of the stream; of runs of one block the first. None if there are too many.
    pub(crate) fn parts(&self) -> Option<&[StreamPart]> {
        (self.parts.len() < MAX_PARTS).then_some(&self.parts)
    }

    /// The bytes of `message.content`.
    pub(crate) fn content(&self) -> Bytes {
        self.content
    }

    /// The bytes of `usage`.
    pub(crate) fn usage(&self) -> Option<Bytes> {
        self.usage
    }

    /// The bytes of `message.source.replayState`.
    pub(crate) fn replay_state(&self) -> Option<Bytes> {
        self.replay_state
    }

    fn add(&mut self, part: StreamPart) {
        if self.parts.len() < MAX_PARTS {
            self.parts.push(part);
        }
    }
}

impl RecordPlaces for &mut StreamNotes {
    #[inline]
    fn block(&mut self, index: i64) {
        if !matches!(self.parts.last(), Some(StreamPart::Block(last)) if *last == index) {
            self.add(StreamPart::Block(index));
        }
    }

    #[inline]
    fn chunk(&mut self, start: usize, end: usize) {
        self.add(StreamPart::Chunk((start, end)));
    }
}

/// A recognised row with its notes.
#[derive(Clone, Copy)]
pub(crate) struct NotedRow<'a> {
    bytes: &'a [u8],
    row: &'a EventRow,
    notes: &'a Notes,
    calls: &'a [CallNotes],
}

/// The message of a tool/result.
#[derive(Clone, Copy)]
pub(crate) struct NotedResult<'a> {
    /// `toolCallId`, and `source.callId`.
    pub(crate) call: Node<'a>,
    /// `id`
    pub(crate) id: Node<'a>,
    /// `isError`
    pub(crate) is_error: Option<bool>,
}

impl<'a> NotedRow<'a> {
    /// The row at the start of some bytes; None if nothing of it is noted.
    pub(super) fn of(bytes: &'a [u8], row: &'a EventRow, calls: &'a [CallNotes]) -> Option<Self> {
        Some(Self {
            bytes,
            row,
            notes: row.notes.as_ref()?,
            calls,
        })
    }

    /// The envelope, without `sourceEventSeqs` and `ignorable`, for which nobody asks.
    pub(crate) fn envelope(&self) -> Envelope<'a> {
        let Self {
            bytes, row, notes, ..
        } = *self;
        let seq = i64::try_from(row.seq).unwrap_or(i64::MAX);
        Envelope {
            row: Node::of_object(bytes, (0, row.len - 1)),
            event_type: Some(row.event_type(bytes)),
            seq: Some(Node::of_integer(seq)),
            time: Some(Node::of_integer(row.time)),
            data: Some(Node::of_object(bytes, notes.data)),
            ignorable: None,
            source_event_seqs: None,
            surface_op: notes.has_append.then(|| Node::of_text(b"append", 0, 6)),
            has_other: false,
        }
    }

    /// `data.turn`
    pub(crate) fn turn(&self) -> Option<Node<'a>> {
        self.notes.turn.map(Node::of_integer)
    }

    /// `data.step`
    pub(crate) fn step(&self) -> Option<Node<'a>> {
        self.notes.step.map(Node::of_integer)
    }

    /// Id, name and arguments of the tool calls.
    pub(crate) fn calls(&self) -> impl Iterator<Item = [Node<'a>; 3]> + use<'a> {
        let bytes = self.bytes;
        self.calls
            .iter()
            .map(|call| [call.id, call.name, call.arguments].map(|span| Node::of_span(bytes, span)))
    }

    /// The message of a tool/result.
    pub(crate) fn result(&self) -> Option<NotedResult<'a>> {
        self.notes.result.map(|result| NotedResult {
            call: Node::of_span(self.bytes, result.call),
            id: Node::of_span(self.bytes, result.id),
            is_error: result.is_error,
        })
    }
}

/// Words of [`Shelf`](crate::json::Shelf) that a kept row, and a kept call, take the room of.
const ROW_WORDS: usize = 16;
const CALL_WORDS: usize = 6;

/// Noted rows that are kept while their bytes are, by rising seq.
#[derive(Default)]
pub(super) struct NotedRows {
    /// Where the bytes of a row start, and its calls end.
    rows: Vec<(usize, EventRow, usize)>,
    calls: Vec<CallNotes>,
}

impl NotedRows {
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.calls.clear();
    }

    pub(super) fn keep(&mut self, row: &EventRow, calls: &[CallNotes], start: usize) {
        self.calls.extend_from_slice(calls);
        self.rows.push((start, *row, self.calls.len()));
    }

    /// What is kept, in words of a shelf.
    pub(super) fn words(&self) -> usize {
        self.rows.len() * ROW_WORDS + self.calls.len() * CALL_WORDS
    }

    /// Seq and row of each; these are all bytes.
    pub(super) fn values<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = (u64, NotedRow<'a>)> {
        let mut from = 0;
        self.rows.iter().filter_map(move |(start, row, end)| {
            let calls = self.calls.get(from..*end).unwrap_or_default();
            from = *end;
            let row = NotedRow::of(bytes.get(*start..)?, row, calls)?;
            Some((row.row.seq, row))
        })
    }
}
