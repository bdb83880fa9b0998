//! Digests of a log and of its assembled form, side by side. Spec 60 §6.4.

use super::sha256::{Sha256, update_both};
use crate::error::Result;
use crate::json::number::write_integer;
use crate::json::{CanonicalSink, CanonicalWriter, Node};
use crate::row::{SeqCodec, decode_seqs};

/// Bytes of text that are gathered before they are hashed, and from which a piece is hashed where it stands.
const GATHERED: usize = 1 << 14;
const LONG: usize = 1 << 12;

/// A stream, and whether all string literals of the text that it stands in are canonical.
#[derive(Clone, Copy)]
pub(super) struct Stream<'a> {
    pub(super) node: Node<'a>,
    pub(super) is_plain: bool,
}

/// One row of a log.
#[derive(Clone, Copy)]
pub(super) struct DigestRow<'a> {
    pub(super) row: Node<'a>,
    pub(super) is_plain: bool,
    /// `sourceEventSeqs`, with the seq of the row: the digest is over the written out form.
    pub(super) source_event_seqs: Option<(Node<'a>, u64)>,
    /// A stream in the row, and what stands in its place in the full log. In the assembled one it is empty.
    pub(super) stream: Option<(Node<'a>, Stream<'a>)>,
}

/// How the row that was taken last is spelled.
#[derive(Clone, Copy, Default)]
struct Spelling {
    /// Bytes of its canonical text, with an empty stream.
    row_bytes: usize,
    /// Bytes of the canonical text of its stream.
    stream_bytes: usize,
    /// Whether any part of it is not spelled as the writer of rows spells it, apart from white space.
    is_respelled: bool,
}

/// Both digests so far.
pub(super) struct Digests {
    full: Sha256,
    assembled: Sha256,
    /// Text that both have still to take; only `full` while a stream is written.
    text: Vec<u8>,
    is_stream: bool,
    spelling: Spelling,
    /// Of rows, and of streams inside of them.
    row_writer: CanonicalWriter,
    stream_writer: CanonicalWriter,
}

impl Digests {
    pub(super) fn new() -> Self {
        Self {
            full: Sha256::default(),
            assembled: Sha256::default(),
            text: Vec::new(),
            is_stream: false,
            spelling: Spelling::default(),
            row_writer: CanonicalWriter::default(),
            stream_writer: CanonicalWriter::default(),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        if self.is_stream {
            self.spelling.stream_bytes += bytes.len();
            self.full.update(bytes);
        } else {
            self.spelling.row_bytes = self.spelling.row_bytes.wrapping_add(bytes.len());
            update_both(&mut self.full, &mut self.assembled, bytes);
        }
    }

    fn flush(&mut self) {
        let text = std::mem::take(&mut self.text);
        self.update(&text);
        self.text = text;
        self.text.clear();
    }

    /// Takes the next row.
    ///
    /// # Errors
    /// `Row`: `sourceEventSeqs` does not decode, which a scan has refused before.
    pub(super) fn push(&mut self, row: &DigestRow<'_>) -> Result<()> {
        // What is still to be hashed of the rows before is no part of this one.
        self.spelling = Spelling {
            row_bytes: 0usize.wrapping_sub(self.text.len()),
            ..Spelling::default()
        };
        let mut writer = std::mem::take(&mut self.row_writer);
        let mut sink = RowSink {
            digests: self,
            row,
            fault: Ok(()),
        };
        writer.write(row.row, row.is_plain, &mut sink);
        let fault = sink.fault;
        self.row_writer = writer;
        self.text.push(b'\n');
        if self.text.len() >= GATHERED {
            self.flush();
        }
        let gathered = self.spelling.row_bytes.wrapping_add(self.text.len());
        self.spelling.row_bytes = gathered.wrapping_sub(1); // the line feed
        fault
    }

    /// Whether the row that was taken last stands in the text as the writer of rows writes it: of so many bytes, of
    /// which so many are its stream, and that stream, which may stand elsewhere, of so many.
    pub(super) fn is_as_written(
        &self,
        row_bytes: usize,
        own_stream_bytes: usize,
        stream_bytes: usize,
    ) -> bool {
        let spelling = self.spelling;
        !spelling.is_respelled
            && spelling.row_bytes + own_stream_bytes == row_bytes + 2
            && spelling.stream_bytes == stream_bytes
    }

    /// The digests of the full and of the assembled log.
    pub(super) fn finish(&mut self) -> (String, String) {
        self.flush();
        let spell = |digest: &Sha256| format!("sha256:{}", digest.spell());
        (spell(&self.full), spell(&self.assembled))
    }
}

impl CanonicalSink for Digests {
    #[inline]
    fn text(&mut self) -> &mut Vec<u8> {
        if self.text.len() >= GATHERED {
            self.flush();
        }
        &mut self.text
    }

    #[inline]
    fn slice(&mut self, bytes: &[u8]) {
        if bytes.len() < LONG {
            self.text().extend_from_slice(bytes);
        } else {
            self.flush();
            self.update(bytes);
        }
    }

    #[inline]
    fn respell(&mut self) {
        self.spelling.is_respelled = true;
    }
}

struct RowSink<'d, 'r> {
    digests: &'d mut Digests,
    row: &'r DigestRow<'r>,
    fault: Result<()>,
}

impl CanonicalSink for RowSink<'_, '_> {
    #[inline]
    fn text(&mut self) -> &mut Vec<u8> {
        self.digests.text()
    }

    #[inline]
    fn slice(&mut self, bytes: &[u8]) {
        self.digests.slice(bytes);
    }

    #[inline]
    fn respell(&mut self) {
        self.digests.respell();
    }

    #[inline]
    fn replace(&mut self, node: &Node<'_>) -> bool {
        if let Some((place, stream)) = &self.row.stream
            && place.is_same(node)
        {
            let digests = &mut *self.digests;
            digests.flush();
            digests.assembled.update(b"[]");
            digests.spelling.row_bytes = digests.spelling.row_bytes.wrapping_add(2);
            digests.is_stream = true;
            let mut writer = std::mem::take(&mut digests.stream_writer);
            writer.write(stream.node, stream.is_plain, digests);
            digests.stream_writer = writer;
            digests.flush();
            digests.is_stream = false;
            return true;
        }
        if let Some((seqs, seq)) = &self.row.source_event_seqs
            && seqs.is_same(node)
        {
            self.digests.respell();
            self.digests.text.push(b'[');
            let mut is_first = true;
            let decoded = decode_seqs(
                *seqs,
                SeqCodec::V2,
                *seq,
                Some(&mut |seq| {
                    let text = self.digests.text();
                    if !is_first {
                        text.push(b',');
                    }
                    is_first = false;
                    // Seqs are counts.
                    write_integer(i64::try_from(seq).unwrap_or(i64::MAX), text);
                }),
            );
            self.digests.text.push(b']');
            self.fault = decoded.map(drop);
            return true;
        }
        false
    }
}
