//! Attempt rows: what a sidecar says of a settlement beside its stream. Spec 60 §6.2, §6.3.

use std::collections::HashMap;

use super::digest::{DigestRow, Digests, Stream};
use crate::error::{Error, ErrorKind, Location, Result};
use crate::json::number::write_integer;
use crate::json::{Node, Tape, has_canonical_strings, write_node};
use crate::row::{Envelope, Row};
use crate::stream::{check_stream, last_chunk, parse_row};

/// Gives the members `cause` and `failure` of a cut attempt as JSON text without braces, by its seq.
pub type Causes<'c> = dyn FnMut(u64) -> Vec<u8> + 'c;

/// An accepted settlement.
#[derive(Clone, Copy)]
pub(super) struct Settlement<'a> {
    pub(super) seq: u64,
    raw: &'a [u8],
    pub(super) row: Node<'a>,
    pub(super) data: Node<'a>,
    /// The member `stream` of `data`.
    pub(super) stream: Node<'a>,
    source_event_seqs: Option<Node<'a>>,
    is_plain: bool,
    is_message: bool,
    is_append: bool,
}

/// An accepted row as a digest takes it.
pub(super) fn digest_row<'a>(row: &Row<'a>) -> DigestRow<'a> {
    let node = row.event_type.map_or_else(Node::null, |kind| kind.root());
    DigestRow {
        row: node,
        is_plain: has_canonical_strings(row.raw),
        source_event_seqs: node.member("sourceEventSeqs").map(|seqs| (seqs, row.seq)),
        stream: None,
    }
}

/// The header row as a digest takes it.
///
/// # Errors
/// `Syntax`: it is no JSON.
pub(super) fn header_row<'a>(header: &'a [u8], tape: &'a mut Tape, max_depth: u32) -> Result<DigestRow<'a>> {
    let row = parse_row(tape, header, max_depth as usize)?;
    Ok(DigestRow {
        row,
        is_plain: has_canonical_strings(header),
        source_event_seqs: None,
        stream: None,
    })
}

/// Whether an accepted row is a settlement.
pub(super) fn is_settlement(row: &Row<'_>) -> bool {
    row.event_type
        .is_some_and(|kind| kind.text_is("assistant/message") || kind.text_is("assistant/attempt"))
}

impl<'a> Settlement<'a> {
    /// Takes a settlement apart.
    ///
    /// # Errors
    /// `Stream`: it has no array as its stream.
    pub(super) fn of(row: &Row<'a>) -> Result<Self> {
        let kind = row.event_type;
        let envelope = kind.and_then(|kind| Envelope::of(kind.root()));
        let data = envelope.as_ref().and_then(|envelope| envelope.data);
        let stream = data.and_then(|data| data.member("stream"));
        let (Some(envelope), Some(data), Some(stream)) = (envelope, data, stream.filter(Node::is_array))
        else {
            let place = Location {
                seq: Some(row.seq),
                ..Location::default()
            };
            let message = "the settlement has no array as its stream";
            return Err(Error::new(ErrorKind::Stream { record: None }, message).located(place));
        };
        Ok(Self {
            seq: row.seq,
            raw: row.raw,
            row: envelope.row,
            data,
            stream,
            source_event_seqs: envelope.source_event_seqs,
            is_plain: has_canonical_strings(row.raw),
            is_message: envelope.is("assistant/message"),
            is_append: envelope.surface_op.is_some_and(|op| op.text_is("append")),
        })
    }

    /// The settlement as a digest takes it, with a stream in the place of its own; None: its own.
    pub(super) fn digest_row(&self, stream: Option<Stream<'a>>) -> DigestRow<'a> {
        let own = Stream {
            node: self.stream,
            is_plain: self.is_plain,
        };
        DigestRow {
            row: self.row,
            is_plain: self.is_plain,
            source_event_seqs: self.source_event_seqs.map(|seqs| (seqs, self.seq)),
            stream: Some((self.stream, stream.unwrap_or(own))),
        }
    }

    /// Appends the row with another stream in the place of its own, as compact JSON, and a line feed. The digests have
    /// just taken both; None: it is the row's own stream that they took, and an empty one is written.
    pub(super) fn push_with_stream(&self, stream: Option<Node<'_>>, digests: &Digests, out: &mut Vec<u8>) {
        if let (true, Some(place)) = (self.is_as_written(stream, digests), self.stream.range()) {
            out.extend_from_slice(self.raw.get(..place.start).unwrap_or_default());
            out.extend_from_slice(
                stream
                    .map_or(Some(&b"[]"[..]), |stream| stream.raw())
                    .unwrap_or_default(),
            );
            out.extend_from_slice(self.raw.get(place.end..).unwrap_or_default());
        } else {
            write_node(self.row, out, &|key, out| {
                let is_data = key == b"data";
                if is_data {
                    write_node(self.data, out, &|key, out| {
                        let is_stream = key == b"stream";
                        if is_stream {
                            match stream {
                                Some(stream) => write_node(stream, out, &|_, _| false),
                                None => out.extend_from_slice(b"[]"),
                            }
                        }
                        is_stream
                    });
                }
                is_data
            });
        }
        out.push(b'\n');
    }

    /// Appends the row's own stream as compact JSON. The digests have just taken the row.
    pub(super) fn push_stream(&self, digests: &Digests, out: &mut Vec<u8>) {
        match self.stream.raw().filter(|_| self.is_as_written(None, digests)) {
            Some(text) => out.extend_from_slice(text),
            None => write_node(self.stream, out, &|_, _| false),
        }
    }

    fn is_as_written(&self, stream: Option<Node<'_>>, digests: &Digests) -> bool {
        let len = |stream: Node<'_>| stream.raw().unwrap_or_default().len();
        let own = len(self.stream);
        digests.is_as_written(self.raw.len(), own, stream.map_or(own, len))
    }

    fn kind(&self) -> &'static str {
        if self.is_message { "message" } else { "attempt" }
    }
}

/// Makes the attempt rows of one log, in the order of its settlements.
#[derive(Default)]
pub(super) struct AttemptRows {
    /// Replayable rows of each turn and step, by the JSON text of both.
    tries: HashMap<Vec<u8>, u64>,
}

impl AttemptRows {
    /// Appends the attempt row of the next settlement up to its stream: `{…,"stream":`. `chunks` are those that the
    /// stream expands to; None if it is opaque.
    pub(super) fn push_head(
        &mut self,
        settlement: &Settlement<'_>,
        stream: Node<'_>,
        chunks: Option<u64>,
        causes: &mut Causes<'_>,
        out: &mut Vec<u8>,
    ) {
        let is_replayable = chunks.is_some() && (!settlement.is_message || settlement.is_append);
        let member = |key: &str| settlement.data.member(key).unwrap_or_else(Node::null);
        let mut place = Vec::new();
        write_node(member("turn"), &mut place, &|_, _| false);
        place.extend_from_slice(b",\"step\":");
        write_node(member("step"), &mut place, &|_, _| false);

        out.extend_from_slice(b"{\"type\":\"attempt\",\"seq\":");
        push_count(settlement.seq, out);
        out.extend_from_slice(b",\"kind\":\"");
        out.extend_from_slice(settlement.kind().as_bytes());
        out.extend_from_slice(b"\",\"turn\":");
        out.extend_from_slice(&place);
        out.extend_from_slice(b",\"try\":");
        let number = if is_replayable {
            let number = self.tries.entry(place).or_default();
            *number += 1;
            *number
        } else {
            0
        };
        push_count(number, out);
        out.extend_from_slice(if is_replayable {
            b",\"replayable\":true,\"ending\":"
        } else {
            b",\"replayable\":false,\"ending\":"
        });
        push_ending(settlement, stream, causes, out);
        out.extend_from_slice(b",\"chunks\":");
        match chunks {
            Some(chunks) => push_count(chunks, out),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"stream\":");
    }
}

/// Chunks that a stream of a settlement expands to.
///
/// # Errors
/// `Stream`: it does not expand.
pub(super) fn count_chunks(stream: Node<'_>, seq: u64) -> Result<u64> {
    let mut fault = None;
    let counts = check_stream(Some(&stream), &mut |record, message| {
        fault.get_or_insert((record, message));
    });
    let Some((record, message)) = fault else {
        return Ok(counts.chunks);
    };
    let record = u64::try_from(record).ok();
    let place = Location {
        seq: Some(seq),
        ..Location::default()
    };
    Err(Error::new(ErrorKind::Stream { record }, message).located(place))
}

/// Spec 60 §6.3.
fn push_ending(settlement: &Settlement<'_>, stream: Node<'_>, causes: &mut Causes<'_>, out: &mut Vec<u8>) {
    if settlement.is_message {
        let is_interrupted = settlement
            .data
            .member("interrupted")
            .is_some_and(|value| value.is_true());
        out.extend_from_slice(if is_interrupted {
            b"\"cut\",\"cause\":\"cancelled\""
        } else {
            b"\"finish\""
        });
        return;
    }
    // Only an opaque stream has records that cannot be read.
    let finish = last_chunk(&stream, b"finish").ok().flatten();
    let kind = finish
        .and_then(|chunk| chunk.member("reason"))
        .and_then(|reason| reason.member("kind"));
    if kind.is_some_and(|kind| kind.text_is("error") || kind.text_is("aborted")) {
        out.extend_from_slice(b"\"finish\"");
    } else {
        out.extend_from_slice(b"\"cut\",");
        out.extend_from_slice(&causes(settlement.seq));
    }
}

fn push_count(value: u64, out: &mut Vec<u8>) {
    // Counts are safe integers.
    write_integer(i64::try_from(value).unwrap_or(i64::MAX), out);
}
