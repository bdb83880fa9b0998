//! Join: the streams of a sidecar back in their assembled log. Spec 60 §7.

use super::attempt::{AttemptRows, Causes, Settlement, count_chunks, digest_row, header_row, is_settlement};
use super::digest::{Digests, Stream};
use super::empty;
use crate::error::{Error, ErrorKind, Location, Result};
use crate::json::{Kind, Node, Tape, has_canonical_strings};
use crate::limits::Limits;
use crate::row::{Row, RowScanner, ScanOptions, ScanResult};
use crate::rules::equality::is_equal_member;
use crate::stream::parse_row;

/// Members of an attempt row that follow from the log and the stream.
const CHECKED: [&str; 10] = [
    "seq",
    "kind",
    "turn",
    "step",
    "try",
    "replayable",
    "ending",
    "cause",
    "failure",
    "chunks",
];

/// Words that the tape of an attempt row keeps for the next one.
const KEPT_WORDS: usize = 1 << 16;

/// Puts the next row of a sidecar, without its line feed, into an empty buffer; false behind the last one.
pub type NextRow<'n> = dyn FnMut(&mut Vec<u8>) -> bool + 'n;

/// [`RowScanner`] over an assembled log that writes, for each accepted row, the row of the log that was split.
///
/// What is wrong with the sidecar does not end the scan: it is kept as [`JoinScanner::fault`], because a log that is not
/// the sidecar's own explains it better, and only the digest of the whole log tells.
pub struct JoinScanner {
    scanner: RowScanner,
    join: Join,
}

struct Join {
    digests: Digests,
    rows: AttemptRows,
    limits: Limits,
    /// The attempt row that is looked at, and its tape.
    attempt: Vec<u8>,
    tape: Tape,
    /// Lines of the sidecar so far; its header row is the first.
    line: u64,
    last_seq: Option<u64>,
    head: Vec<u8>,
    joined: Vec<u8>,
    fault: Option<Error>,
    refusal: Option<Error>,
}

impl JoinScanner {
    /// A scanner at the start of the text of an assembled log whose header row is given, too.
    ///
    /// # Errors
    /// `Syntax`: that is no JSON.
    pub fn new(header: &[u8], options: ScanOptions) -> Result<Self> {
        let mut digests = Digests::new();
        let mut tape = Tape::new();
        digests.push(&header_row(header, &mut tape, options.limits.max_depth)?)?;
        Ok(Self {
            scanner: RowScanner::new(ScanOptions {
                check_streams: false, // every stream is checked here
                ..options
            }),
            join: Join {
                digests,
                rows: AttemptRows::default(),
                limits: options.limits,
                attempt: Vec::new(),
                tape: Tape::new(),
                line: 1,
                last_seq: None,
                head: Vec::new(),
                joined: Vec::new(),
                fault: None,
                refusal: None,
            },
        })
    }

    /// The scan.
    pub fn scanner(&self) -> &RowScanner {
        &self.scanner
    }

    /// What is wrong with the sidecar; no text is made behind it.
    pub fn fault(&self) -> Option<&Error> {
        self.join.fault.as_ref()
    }

    /// Takes the next bytes and gives `take` the text of the joined log that they make.
    ///
    /// # Errors
    /// As for [`RowScanner::feed`].
    pub fn feed<T>(
        &mut self,
        data: &[u8],
        next_row: &mut NextRow<'_>,
        causes: &mut Causes<'_>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let Self { scanner, join } = self;
        let fed = scanner.feed(data, &mut |row| {
            if join.refusal.is_none() {
                join.refusal = join.push(row, next_row, causes).err();
            }
        });
        if let Some(refusal) = &join.refusal {
            return Err(refusal.replica());
        }
        fed?;
        let taken = take(&join.joined);
        empty(&mut join.joined);
        Ok(taken)
    }

    /// Says that a complete frame ends here, see [`RowScanner::end_frame`].
    ///
    /// # Errors
    /// As there.
    pub fn end_frame(&mut self) -> Result<()> {
        self.scanner.end_frame()
    }

    /// Says that the last complete frame ended, see [`RowScanner::end_complete_frames`].
    ///
    /// # Errors
    /// As there.
    pub fn end_complete_frames(&mut self) -> Result<()> {
        self.scanner.end_complete_frames()
    }

    /// Ends the scan, see [`RowScanner::finish`].
    ///
    /// # Errors
    /// As there.
    pub fn finish(&mut self) -> Result<ScanResult> {
        self.scanner.finish()
    }

    /// The digests of the joined and of the assembled log so far.
    pub fn digests(&mut self) -> (String, String) {
        self.join.digests.finish()
    }
}

impl Join {
    fn push(&mut self, row: &Row<'_>, next_row: &mut NextRow<'_>, causes: &mut Causes<'_>) -> Result<()> {
        if self.fault.is_some() || !is_settlement(row) {
            if self.fault.is_none() {
                self.joined.extend_from_slice(row.raw);
                self.joined.push(b'\n');
            }
            return self.digests.push(&digest_row(row));
        }
        self.line += 1;
        let mut attempt = std::mem::take(&mut self.attempt);
        if !next_row(&mut attempt) {
            let message = "the settlement has no attempt row in the sidecar";
            return self.refuse(row, &self.corrupt(message, Some(row.seq)));
        }
        let mut tape = std::mem::take(&mut self.tape);
        let outcome = self.settle(row, &attempt, &mut tape, causes);
        empty(&mut attempt);
        tape.shrink(KEPT_WORDS);
        self.attempt = attempt;
        self.tape = tape;
        match outcome {
            Ok(settled) => settled,
            Err(fault) => self.refuse(row, &fault),
        }
    }

    /// Joins a settlement and its attempt row; the outer error is a fault of the sidecar.
    fn settle(
        &mut self,
        row: &Row<'_>,
        bytes: &[u8],
        tape: &mut Tape,
        causes: &mut Causes<'_>,
    ) -> Result<Result<()>> {
        let settlement =
            Settlement::of(row).map_err(|error| self.corrupt(error.message().to_owned(), Some(row.seq)))?;
        if !settlement.stream.is_empty() {
            let message = "the settlement has a stream: the log is not an assembled one";
            return Err(self.corrupt(message, Some(row.seq)));
        }
        let depth = self.limits.max_depth as usize;
        let attempt = match parse_row(tape, bytes, depth) {
            Ok(attempt) => attempt,
            Err(error) if matches!(error.kind(), ErrorKind::Limit { .. }) => return Ok(Err(error)),
            Err(_) => return Err(self.corrupt("the attempt row is no JSON", None)),
        };
        let stream = self.check_row(attempt)?;
        // What is opaque is not expanded.
        let is_opaque = attempt
            .member("chunks")
            .is_some_and(|chunks| chunks.kind() == Kind::Null);
        let chunks = if is_opaque {
            None
        } else {
            Some(count_chunks(stream, row.seq).map_err(|error| {
                let message = format!("the stream does not expand: {}", error.message());
                self.corrupt(message, Some(row.seq))
            })?)
        };
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        self.rows
            .push_head(&settlement, stream, chunks, causes, &mut head);
        let checked = self.compare(attempt, stream, bytes, &head, row.seq);
        self.head = head;
        checked?;
        let pushed = self.digests.push(&settlement.digest_row(Some(Stream {
            node: stream,
            is_plain: has_canonical_strings(bytes),
        })));
        settlement.push_with_stream(Some(stream), &self.digests, &mut self.joined);
        Ok(pushed)
    }

    /// What every attempt row has to be; returns its stream.
    fn check_row<'a>(&mut self, attempt: Node<'a>) -> Result<Node<'a>> {
        if !attempt.is_object() {
            return Err(self.corrupt("the attempt row is no JSON object", None));
        }
        if !attempt.member("type").is_some_and(|kind| kind.text_is("attempt")) {
            return Err(self.corrupt("the type of a row has to be attempt", None));
        }
        let seq = attempt.member("seq").and_then(|seq| seq.count());
        if seq.is_none() || seq <= self.last_seq {
            let message = "the seqs of attempt rows have to be counts that increase";
            return Err(self.corrupt(message, None));
        }
        self.last_seq = seq;
        let stream = attempt.member("stream").filter(Node::is_array);
        stream.ok_or_else(|| self.corrupt("the stream of an attempt row has to be an array", None))
    }

    /// Whether a row says what the log and the stream say, given as the start of the row that a split would write.
    fn compare(
        &self,
        attempt: Node<'_>,
        stream: Node<'_>,
        bytes: &[u8],
        head: &[u8],
        seq: u64,
    ) -> Result<()> {
        // Equal text is equal members, if nothing but the stream follows.
        let is_as_split = bytes.starts_with(head)
            && stream
                .range()
                .is_some_and(|range| range.start == head.len() && bytes.get(range.end..) == Some(&b"}"[..]));
        if is_as_split {
            return Ok(());
        }
        let mut text = head.to_vec();
        text.extend_from_slice(b"0}");
        let mut tape = Tape::new();
        let depth = self.limits.max_depth as usize;
        let Ok(expected) = tape.read_text(&text, depth) else {
            return Err(self.corrupt("the attempt row does not fit the log", Some(seq)));
        };
        for key in CHECKED {
            if !is_equal_member(attempt.member(key), expected.member(key)) {
                let message = format!("{key} of the attempt row does not fit the log and the stream");
                return Err(self.corrupt(message, Some(seq)));
            }
        }
        Ok(())
    }

    /// Keeps a fault. The digest of the assembled log goes on.
    fn refuse(&mut self, row: &Row<'_>, fault: &Error) -> Result<()> {
        self.fault = Some(fault.replica());
        self.digests.push(&digest_row(row))
    }

    #[cold]
    fn corrupt(&self, message: impl Into<std::borrow::Cow<'static, str>>, seq: Option<u64>) -> Error {
        let place = Location {
            line: Some(self.line),
            seq,
            ..Location::default()
        };
        Error::new(ErrorKind::Sidecar, message)
            .with_rule("60 §7")
            .located(place)
    }
}
