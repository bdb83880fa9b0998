//! Incremental scan of the plaintext of a log, strict and recoverable, generations 0 to 4. Spec 10 §8, 50 §2.4.

mod part;

pub(crate) use part::Part;

use super::envelope::{self, Envelope};
use super::header::{CURRENT_GENERATION, Header, read_header, syntax_error};
use super::notes::{NotedRow, Wanted};
use super::quick::{self, ChunkRow};
use super::quick_event::{self, EventRow};
use super::seq_ranges::{SeqCodec, decode_seqs};
use super::{admission, packed, third};
use crate::error::{Error, ErrorKind, Location, Result};
use crate::json::{Fault, FaultKind, Node, Tape};
use crate::limits::{Limits, MAX_KEPT_FAULTS};
use crate::rules::{Findings, Level, RuleCheck, agrees, wanted_for};
use crate::stream::{StreamCounts, check_stream};

/// What happens at the first issue. Spec 10 §8.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It fails.
    Strict,
    /// It is recorded, and no further row is accepted.
    Recoverable,
}

/// Options of a scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanOptions {
    /// What happens at the first issue.
    pub mode: Mode,
    /// The generation to accept; see [`parse_header`](super::parse_header).
    pub generation: Option<u8>,
    /// Whether every stream record is checked and counted.
    pub check_streams: bool,
    /// Whether the callback looks into the records of streams. It may in any case, but unless this is set, valid records
    /// are read again for it.
    pub keeps_records: bool,
    /// Bounds.
    pub limits: Limits,
}

/// An accepted row.
pub struct Row<'a> {
    /// `type`, if it is a string.
    pub event_type: Option<Node<'a>>,
    /// Seq of its (first) event.
    pub seq: u64,
    /// Time in milliseconds, if it is a safe integer.
    pub time: Option<i64>,
    /// The row's bytes without the line feed.
    pub raw: &'a [u8],
    /// Plaintext byte where the row starts.
    pub offset: u64,
    /// Number of the row, from 1.
    pub row: u64,
    /// Events that it stands for.
    pub count: u64,
}

/// Who takes the accepted rows.
pub trait Accept {
    /// Whether it looks into all of them.
    const LOOKS: bool;
    /// Whether it looks into rows of a type. Of others it is told what [`Row`] holds, and `event_type` is a lone string:
    /// such rows are judged and need not be parsed.
    fn looks_into(&self, _event_type: &[u8]) -> bool {
        Self::LOOKS
    }
    /// Takes the next row.
    fn take(&mut self, row: &Row<'_>);
}

impl<F: FnMut(&Row<'_>)> Accept for F {
    const LOOKS: bool = true;

    fn take(&mut self, row: &Row<'_>) {
        self(row);
    }
}

/// Nobody.
pub(crate) struct Unseen;

impl Accept for Unseen {
    const LOOKS: bool = false;

    fn take(&mut self, _row: &Row<'_>) {}
}

/// Why a recoverable scan stopped accepting rows.
#[derive(Debug)]
pub struct Issue {
    /// Number of the row, from 1.
    pub row: u64,
    /// Plaintext byte where the row starts.
    pub offset: u64,
    /// What is wrong.
    pub error: Error,
}

/// A stream record that would not expand. Spec 20 §4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamFault {
    /// Seq of the settlement.
    pub seq: u64,
    /// Index of the record; −1 for the stream as a whole.
    pub record: i64,
    /// Which rule it breaks.
    pub message: String,
}

/// What a scan counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Accepted events.
    pub event_count: u64,
    /// Accepted rows.
    pub row_count: u64,
    /// Plaintext offset behind the last accepted row.
    pub committed_bytes: u64,
    /// Plaintext bytes seen.
    pub fed_bytes: u64,
    /// Settlements whose streams were checked.
    pub stream_count: u64,
    /// Records, or packed rows and chunk rows.
    pub record_count: u64,
    /// Chunks that these stand for.
    pub chunk_count: u64,
    /// Records that would not expand.
    pub stream_fault_count: u64,
    /// The first of them.
    pub stream_faults: Vec<StreamFault>,
    /// Time of the first accepted event.
    pub first_time: Option<i64>,
    /// Time of the last accepted event.
    pub last_time: Option<i64>,
}

/// Result of a scan that ended.
#[derive(Debug)]
pub struct ScanResult {
    /// The header.
    pub header: Header,
    /// The inherited cut. Spec 10 §4.4.
    pub inherited_event_count: u64,
    /// Counts.
    pub totals: Totals,
    /// First issue, in recoverable mode.
    pub issue: Option<Issue>,
    /// What the rules of the level say against the accepted events; none below generation 4.
    pub findings: Findings,
}

/// Which `turn/end` behind an issue makes the read fail. Spec 10 §8.1, 50 §2.4.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pending {
    /// One that parses.
    Parsed,
    /// One that decodes.
    Decoded,
}

/// Incremental scanner. Bytes go in with [`RowScanner::feed`], accepted rows come out of its callback.
pub struct RowScanner {
    options: ScanOptions,
    tape: Tape,
    /// What rows are judged with that need no tape.
    scratch: quick_event::Scratch,
    /// Start of an unfinished line.
    carry: Vec<u8>,
    /// Plaintext byte where the line that is being read starts.
    line_start: u64,
    header: Option<Header>,
    level: Level,
    /// The rules of the level, once the header is known; generation 4 only.
    rules: Option<RuleCheck>,
    totals: Totals,
    /// Event rows seen, accepted or not.
    rows_seen: u64,
    issue: Option<(Pending, Issue)>,
    /// A line that is not JSON behind a row issue of generations 0 to 3.
    late_issue: Option<Issue>,
    /// The last accepted row if it is a packed one: its last time is worked out only if it is asked for.
    last_packed: Vec<u8>,
    marker: Option<u64>,
    frames_ended: u64,
    failure: Option<Error>,
    /// What is gathered while a part is scanned.
    part: Option<Part>,
}

/// Words that a tape keeps between rows: a row of a few megabytes of other than packed arrays.
const KEPT_WORDS: usize = 1 << 16;

/// What became of the first line of some bytes.
enum Line {
    /// So many bytes were taken, line feed included.
    Taken(usize),
    /// There is no line feed.
    Unfinished,
}

impl RowScanner {
    /// A scanner at the start of a text.
    pub fn new(options: ScanOptions) -> Self {
        Self::at_level(options, Level::Scan)
    }

    /// A scanner that also checks the rules of a level over the events that it accepts, in generation 4. Spec 00 §6.
    pub fn at_level(options: ScanOptions, level: Level) -> Self {
        Self {
            options,
            tape: Tape::new(),
            scratch: quick_event::Scratch::default(),
            carry: Vec::new(),
            line_start: 0,
            header: None,
            level,
            rules: None,
            totals: Totals::default(),
            rows_seen: 0,
            issue: None,
            late_issue: None,
            last_packed: Vec::new(),
            marker: None,
            frames_ended: 0,
            failure: None,
            part: None,
        }
    }

    /// Lets the first row stand at another seq than 0: of the text that follows, the rows before it are left out. To
    /// be called before anything is fed.
    pub fn begin_at(&mut self, seq: u64) {
        self.totals.event_count = seq;
    }

    /// Starts again with another text, in the room that the last one took.
    pub(crate) fn restart(&mut self, options: ScanOptions, level: Level) {
        self.clear();
        self.header = None;
        self.rules = None;
        self.options = options;
        self.level = level;
    }

    /// Forgets what was scanned, but for the header and its rules; room is kept.
    fn clear(&mut self) {
        self.carry.clear();
        self.line_start = 0;
        self.totals = Totals::default();
        self.rows_seen = 0;
        self.issue = None;
        self.late_issue = None;
        self.last_packed.clear();
        self.marker = None;
        self.frames_ended = 0;
        self.failure = None;
        self.part = None;
    }

    /// The options of the scan.
    pub fn options(&self) -> &ScanOptions {
        &self.options
    }

    /// The header, once its row is complete.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// Counts so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The recorded issue.
    pub fn issue(&self) -> Option<&Issue> {
        self.issue.as_ref().map(|(_, issue)| issue)
    }

    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(failure) = &self.failure {
            return Err(failure.replica());
        }
        work(self).inspect_err(|error| self.failure = Some(error.replica()))
    }

    /// Takes the next bytes and calls `accept` for every row that they complete and that is accepted.
    ///
    /// # Errors
    /// The header or a row is refused, or a limit is exceeded. Every later call fails with the same error.
    ///
    /// # Cost
    /// One pass; a row that is split over calls is read from a copy.
    pub fn feed(&mut self, data: &[u8], accept: &mut impl FnMut(&Row<'_>)) -> Result<()> {
        self.feed_to(data, accept)
    }

    /// [`RowScanner::feed`] for whoever takes the rows.
    pub(crate) fn feed_to(&mut self, data: &[u8], accept: &mut impl Accept) -> Result<()> {
        let end = self.totals.fed_bytes + data.len() as u64;
        self.guarded(|scanner| {
            let fed = scanner.feed_rows(data, accept);
            scanner.totals.fed_bytes = end;
            fed
        })
    }

    fn feed_rows(&mut self, data: &[u8], accept: &mut impl Accept) -> Result<()> {
        let mut rest = data;
        if !self.carry.is_empty() {
            let Some(end) = memchr::memchr(b'\n', rest) else {
                self.totals.fed_bytes += rest.len() as u64;
                return self.keep(rest);
            };
            let (line, behind) = rest.split_at(end + 1);
            self.totals.fed_bytes += line.len() as u64;
            self.keep(line)?;
            rest = behind;
            let carry = std::mem::take(&mut self.carry);
            let offset = self.totals.fed_bytes - carry.len() as u64;
            let line = self.take_line(&carry, offset, accept);
            self.carry = carry;
            self.carry.clear();
            if self.carry.capacity() > 1 << 20 {
                self.carry = Vec::new();
            }
            line?;
            self.line_start = self.totals.fed_bytes;
        }
        while !rest.is_empty() {
            match self.take_line(rest, self.totals.fed_bytes, accept)? {
                Line::Taken(len) => {
                    self.totals.fed_bytes += len as u64;
                    self.line_start = self.totals.fed_bytes;
                    rest = rest.get(len..).unwrap_or_default();
                }
                Line::Unfinished => {
                    self.totals.fed_bytes += rest.len() as u64;
                    return self.keep(rest);
                }
            }
        }
        Ok(())
    }

    /// Adds bytes to the unfinished line.
    fn keep(&mut self, bytes: &[u8]) -> Result<()> {
        let len = self.carry.len() + bytes.len();
        self.check_len(len)?;
        if self.carry.capacity() < len {
            // A quarter more each time: linear, and close to the row's size.
            self.carry.reserve_exact(bytes.len().max(self.carry.len() / 4));
        }
        self.carry.extend_from_slice(bytes);
        Ok(())
    }

    fn check_len(&self, len: usize) -> Result<()> {
        // Offsets inside a row are 32 bits wide.
        let limit = self.options.limits.max_row_bytes.min(u64::from(u32::MAX));
        if len as u64 > limit {
            let message = format!("a row is longer than {limit} bytes; raise max_row_bytes to read it");
            let place = Location {
                seq: None,
                ..self.place_of_line()
            };
            return Err(Error::limit("max_row_bytes", limit, message).located(place));
        }
        Ok(())
    }

    /// The place of the line that is being read.
    fn place_of_line(&self) -> Location {
        let after_header = self.header.is_some();
        Location {
            line: Some(if after_header { self.rows_seen + 2 } else { 1 }),
            offset: Some(self.line_start),
            seq: after_header.then_some(self.totals.event_count),
            frame: None,
        }
    }

    /// Takes the line at the start of some bytes.
    fn take_line<A: Accept>(&mut self, bytes: &[u8], offset: u64, accept: &mut A) -> Result<Line> {
        if self.header.is_none() {
            let Some(end) = memchr::memchr(b'\n', bytes) else {
                return Ok(Line::Unfinished);
            };
            self.check_len(end + 1)?;
            let line = bytes.get(..=end).unwrap_or_default();
            let limits = self.options.limits;
            let header = read_header(line, self.options.generation, &limits, &mut self.tape)?;
            let has_rules = self.level > Level::Scan && header.generation == CURRENT_GENERATION;
            self.rules = has_rules.then(|| RuleCheck::new(&header, self.level));
            self.header = Some(header);
            self.totals.committed_bytes = line.len() as u64;
            return Ok(Line::Taken(line.len()));
        }
        if let Some(event) = self.recognise(bytes, accept) {
            self.check_len(event.len)?;
            self.start_part(Some(event.seq));
            self.accept_event_row(&event, bytes, offset, accept);
            return Ok(Line::Taken(event.len));
        }
        let mut tape = std::mem::take(&mut self.tape);
        let line = self.take_row(&mut tape, bytes, offset, accept);
        tape.shrink(KEPT_WORDS);
        self.tape = tape;
        line
    }

    fn take_row(
        &mut self,
        tape: &mut Tape,
        bytes: &[u8],
        offset: u64,
        accept: &mut impl Accept,
    ) -> Result<Line> {
        let generation = self
            .header
            .as_ref()
            .map_or(CURRENT_GENERATION, |header| header.generation);
        if generation < 2
            && self.issue.is_none()
            && self.options.limits.max_depth >= quick::DEPTH
            && let Some(chunk) = quick::chunk_row(bytes)
            && (chunk.seq == self.totals.event_count || self.starts_part())
        {
            self.check_len(chunk.len)?;
            self.start_part(Some(chunk.seq));
            self.accept_chunk_row(chunk, bytes, offset, accept);
            return Ok(Line::Taken(chunk.len));
        }
        // Of the rules, only those of level `Full` look into records.
        tape.count_records(self.level < Level::Full && !self.options.keeps_records);
        let parsed = tape
            .read_row(bytes, self.options.limits.max_depth as usize)
            .and_then(|end| {
                let end = end
                    + bytes
                        .get(end..)
                        .unwrap_or_default()
                        .iter()
                        .take_while(|b| matches!(b, b' ' | b'\t' | b'\r'))
                        .count();
                match bytes.get(end) {
                    Some(b'\n') => Ok(end),
                    Some(_) => Err(Fault {
                        at: end,
                        kind: FaultKind::Unexpected("the end of the row"),
                    }),
                    None => Err(Fault {
                        at: end,
                        kind: FaultKind::End,
                    }),
                }
            });
        // Only a row with a line feed is a row (spec 10 §8.1); whatever is wrong with the rest does not matter.
        let end = match parsed {
            Ok(end) => end,
            Err(Fault {
                kind: FaultKind::End, ..
            }) => {
                // A carried line ends with its line feed, which stops every value: this one is not complete.
                match memchr::memchr(b'\n', bytes) {
                    Some(end) => end,
                    None => return Ok(Line::Unfinished),
                }
            }
            Err(fault) => match memchr::memchr(b'\n', bytes.get(fault.at..).unwrap_or_default()) {
                Some(end) => fault.at + end,
                None => return Ok(Line::Unfinished),
            },
        };
        self.check_len(end + 1)?;
        if self.starts_part() && parsed.is_ok() {
            let row = tape.root(bytes);
            let is_packed = generation < 2 && packed::is_packed(row.member("type"));
            self.start_part(part::claimed_seq(row, is_packed));
        }
        self.rows_seen += 1;
        let raw = bytes.get(..end).unwrap_or_default();
        let place = Location {
            line: Some(self.rows_seen + 1),
            offset: Some(offset),
            seq: Some(self.totals.event_count),
            frame: None,
        };
        let judged = match parsed {
            Ok(_) => {
                let row = tape.root(bytes);
                match generation {
                    CURRENT_GENERATION => self.judge_current(row, tape.may_be_retired(), raw, offset, accept),
                    _ => self.judge_historical(row, generation, raw, offset, accept),
                }
            }
            Err(fault) => {
                let error = syntax_error("row", fault, offset, &self.options.limits);
                if matches!(error.kind(), ErrorKind::Limit { .. }) {
                    Err(error)
                } else {
                    self.record(Pending::Parsed, error, offset)
                }
            }
        };
        judged.map_err(|error| {
            // A row that exceeds a limit was not looked into far enough to have a seq.
            let seq = place
                .seq
                .filter(|_| !matches!(error.kind(), ErrorKind::Limit { .. }));
            error.located(Location { seq, ..place })
        })?;
        Ok(Line::Taken(end + 1))
    }

    /// The row at the start of some bytes, if it is one that can be judged without a tape and keeps every rule that looks
    /// at it alone.
    fn recognise<A: Accept>(&mut self, bytes: &[u8], accept: &A) -> Option<EventRow> {
        let max_depth = self.options.limits.max_depth as usize;
        let is_plain = !A::LOOKS
            && self.issue.is_none()
            && max_depth >= quick_event::DEPTH
            && self.header.as_ref()?.generation == CURRENT_GENERATION;
        is_plain.then_some(())?;
        let level = self.level;
        let wanted = |event_type: &[u8]| {
            if accept.looks_into(event_type) {
                Wanted::Parsed
            } else {
                wanted_for(event_type, level)
            }
        };
        let event = quick_event::event_row(bytes, max_depth, &mut self.scratch, wanted)?;
        let is_judged = match level {
            Level::Scan => true,
            Level::Full if event.stream.is_some() => {
                event.notes.is_some() && agrees(bytes, &self.scratch.stream)
            }
            _ => event.notes.is_some(),
        };
        is_judged.then_some(())?;
        (event.seq == self.totals.event_count || self.starts_part()).then_some(event)
    }

    /// Records an issue, or fails with it in strict mode.
    fn record(&mut self, pending: Pending, error: Error, offset: u64) -> Result<()> {
        if self.options.mode == Mode::Strict {
            return Err(error);
        }
        let place = Location {
            line: Some(self.rows_seen + 1),
            offset: Some(offset),
            seq: Some(self.totals.event_count),
            frame: None,
        };
        let issue = Issue {
            row: self.rows_seen,
            offset,
            error: error.located(place),
        };
        match &self.issue {
            None => self.issue = Some((pending, issue)),
            Some((Pending::Decoded, _)) if pending == Pending::Parsed && self.late_issue.is_none() => {
                self.late_issue = Some(issue);
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Steps 2 to 5 of spec 10 §8.1.
    fn judge_current(
        &mut self,
        row: Node<'_>,
        may_be_retired: bool,
        raw: &[u8],
        offset: u64,
        accept: &mut impl Accept,
    ) -> Result<()> {
        let envelope = Envelope::of(row);
        if let Some(envelope) = &envelope {
            admission::admit(envelope, may_be_retired)?;
        }
        let ends_turn = envelope.as_ref().is_some_and(|row| row.is("turn/end"));
        if let Some((_, issue)) = &self.issue {
            return if ends_turn {
                Err(committed_damage(issue))
            } else {
                Ok(())
            };
        }
        let decoded = match &envelope {
            None => Err(Error::new(ErrorKind::Row, "the row is no JSON object").with_rule("10 §5.1")),
            Some(row) => envelope::decode_native(row, self.totals.event_count),
        };
        match (decoded, envelope) {
            (Ok(time), Some(row)) => {
                self.accept_event(&row, time, raw, offset, accept);
                Ok(())
            }
            (Err(error), _) if ends_turn => Err(error),
            (Err(error), _) => self.record(Pending::Parsed, error, offset),
            (Ok(_), None) => Ok(()),
        }
    }

    fn accept_event(
        &mut self,
        row: &Envelope<'_>,
        time: i64,
        raw: &[u8],
        offset: u64,
        accept: &mut impl Accept,
    ) {
        let seq = self.totals.event_count;
        if row.is_inherited_marker() {
            self.marker = Some(seq);
        }
        let totals = &mut self.totals;
        let check_streams = self.options.check_streams;
        let mut on_fault = |record, message: &'static str| {
            if check_streams {
                totals.stream_fault_count += 1;
                if totals.stream_faults.len() < MAX_KEPT_FAULTS {
                    totals.stream_faults.push(StreamFault {
                        seq,
                        record,
                        message: message.to_owned(),
                    });
                }
            }
        };
        // Level `full` reads the records anyway and counts them.
        let counted = match (&mut self.rules, &mut self.part) {
            (Some(rules), _) => rules.feed_counting(seq, row, &mut on_fault),
            (None, Some(part)) => part.take(seq, row, offset, &mut on_fault),
            (None, None) => None,
        };
        if check_streams && (row.is("assistant/message") || row.is("assistant/attempt")) {
            let counts = counted.unwrap_or_else(|| {
                let stream = row
                    .data
                    .filter(Node::is_object)
                    .and_then(|data| data.member("stream"));
                check_stream(stream.as_ref(), &mut on_fault)
            });
            self.count_stream(counts);
        }
        self.accept(row.event_type, (Some(time), Some(time)), 1, raw, offset, accept);
    }

    fn accept(
        &mut self,
        event_type: Option<Node<'_>>,
        (first_time, last_time): (Option<i64>, Option<i64>),
        count: u64,
        raw: &[u8],
        offset: u64,
        accept: &mut impl Accept,
    ) {
        let seq = self.totals.event_count;
        if self.totals.row_count == 0 {
            self.totals.first_time = first_time;
        }
        self.totals.last_time = last_time;
        self.last_packed.clear();
        self.totals.event_count += count;
        self.totals.row_count += 1;
        self.totals.committed_bytes = offset + raw.len() as u64 + 1;
        accept.take(&Row {
            event_type: event_type.filter(Node::is_text),
            seq,
            time: first_time,
            raw,
            offset,
            row: self.rows_seen,
            count,
        });
    }

    /// Spec 50 §2.4 and §3.
    fn judge_historical(
        &mut self,
        row: Node<'_>,
        generation: u8,
        raw: &[u8],
        offset: u64,
        accept: &mut impl Accept,
    ) -> Result<()> {
        let envelope = Envelope::of(row);
        let ends_turn = envelope.as_ref().is_some_and(|row| row.is("turn/end"));
        let unreadable = match &self.issue {
            Some((Pending::Parsed, issue)) => Some(issue),
            _ => self.late_issue.as_ref(),
        };
        if let Some(issue) = unreadable {
            // Behind a line that is not JSON nothing is decoded any more.
            return if ends_turn {
                Err(committed_damage(issue))
            } else {
                Ok(())
            };
        }
        if let Some(envelope) = &envelope
            && generation == 3
        {
            // Behind a row that was refused, too, but not behind a line that is not JSON.
            third::admit(envelope)?;
        }
        let Some(row) = envelope else {
            let error = Error::new(ErrorKind::Row, "the row is no JSON object")
                .with_rule(if generation < 2 { "10 §5.2" } else { "10 §5.1" });
            return self.record(Pending::Decoded, error, offset);
        };
        if generation < 2 && packed::is_packed(row.event_type) {
            return self.judge_packed(row.row, raw, offset, accept);
        }
        let decoded = if generation < 2 {
            decode_plain(&row)
        } else {
            envelope::decode(&row).map(Some)
        };
        let time = match decoded {
            Ok(time) => time,
            Err(error) => return self.record(Pending::Decoded, error, offset),
        };
        if let Some((_, issue)) = &self.issue {
            return if ends_turn {
                Err(committed_damage(issue))
            } else {
                Ok(())
            };
        }
        if !row.has_seq(self.totals.event_count) {
            let rule = if generation < 2 { "10 §5.2" } else { "10 §5.1" };
            let gap = row.seq_gap(self.totals.event_count).with_rule(rule);
            return if ends_turn {
                Err(gap)
            } else {
                self.record(Pending::Decoded, gap, offset)
            };
        }
        if generation == 3
            && let Err(error) = third::check_canonical(&row)
        {
            return if ends_turn {
                Err(error)
            } else {
                self.record(Pending::Decoded, error, offset)
            };
        }
        if generation >= 2 {
            if row.is("session/end-seed") && !row.data.is_some_and(|data| data.is_object()) {
                return Err(
                    Error::new(ErrorKind::Row, "`data` of a session/end-seed is no object")
                        .with_rule("10 §4.4"),
                );
            }
            self.accept_event(&row, time.unwrap_or_default(), raw, offset, accept);
        } else {
            if self.options.check_streams && row.is("assistant/chunk") {
                self.totals.record_count += 1;
                self.totals.chunk_count += 1;
            }
            self.accept(row.event_type, (time, time), 1, raw, offset, accept);
        }
        Ok(())
    }

    fn accept_chunk_row(&mut self, chunk: ChunkRow, bytes: &[u8], offset: u64, accept: &mut impl Accept) {
        self.rows_seen += 1;
        if self.options.check_streams {
            self.totals.record_count += 1;
            self.totals.chunk_count += 1;
        }
        let raw = bytes.get(..chunk.len - 1).unwrap_or_default();
        let times = (Some(chunk.time), Some(chunk.time));
        self.accept(Some(ChunkRow::event_type(bytes)), times, 1, raw, offset, accept);
    }

    fn accept_event_row(&mut self, event: &EventRow, bytes: &[u8], offset: u64, accept: &mut impl Accept) {
        self.rows_seen += 1;
        if let (Some(counts), true) = (event.stream, self.options.check_streams) {
            self.count_stream(counts);
        }
        let calls = &self.scratch.calls;
        match (&mut self.rules, &mut self.part) {
            (Some(rules), _) => {
                if let Some(row) = NotedRow::of(bytes, event, calls) {
                    rules.feed_noted(event.seq, &row);
                }
            }
            (None, Some(part)) => part.take_noted(event, calls, offset),
            (None, None) => {}
        }
        let raw = bytes.get(..event.len - 1).unwrap_or_default();
        let times = (Some(event.time), Some(event.time));
        self.accept(Some(event.event_type(bytes)), times, 1, raw, offset, accept);
    }

    fn count_stream(&mut self, counts: StreamCounts) {
        self.totals.stream_count += 1;
        self.totals.record_count += counts.records;
        self.totals.chunk_count += counts.chunks;
    }

    fn judge_packed(
        &mut self,
        row: Node<'_>,
        raw: &[u8],
        offset: u64,
        accept: &mut impl Accept,
    ) -> Result<()> {
        let packed = match packed::decode(row) {
            Ok(packed) => packed,
            Err(error) => return self.record(Pending::Decoded, error, offset),
        };
        let limit = self.options.limits.max_packed_events;
        if packed.count > limit {
            let message = format!(
                "a packed row stands for {} events; raise max_packed_events to read it",
                packed.count
            );
            return Err(Error::limit("max_packed_events", limit, message));
        }
        if self.issue.is_some() {
            return Ok(());
        }
        let expected = self.totals.event_count;
        if packed.first_seq != expected {
            let gap = envelope::seq_gap("the packed row starts at", row.member("seq0"), expected);
            let gap = gap.with_rule("10 §5.3");
            return self.record(Pending::Decoded, gap, offset);
        }
        if self.options.check_streams {
            self.totals.record_count += 1;
            self.totals.chunk_count += packed.count;
        }
        let times = (Some(packed.time), None);
        self.accept(row.member("type"), times, packed.count, raw, offset, accept);
        self.last_packed.extend_from_slice(raw);
        Ok(())
    }

    /// Says that a complete frame ends here. The first one must be exactly the header row.
    ///
    /// # Errors
    /// `Header`: the first frame holds no complete header row. `Frame`: it holds more than that.
    ///
    /// # Source
    /// Spec 10 §7.2.
    pub fn end_frame(&mut self) -> Result<()> {
        self.guarded(|scanner| {
            let frame = scanner.frames_ended;
            scanner.frames_ended += 1;
            if frame > 0 {
                return Ok(());
            }
            let place = Location {
                line: Some(1),
                offset: Some(0),
                seq: None,
                frame: Some(0),
            };
            let Some(header) = &scanner.header else {
                return Err(
                    Error::new(ErrorKind::Header, "the first frame holds no complete header row")
                        .with_rule("10 §7.2")
                        .located(place),
                );
            };
            if scanner.totals.fed_bytes != header.line.len() as u64 + 1 {
                return Err(
                    Error::new(ErrorKind::Frame, "the first frame holds more than the header row")
                        .with_rule("10 §7.2")
                        .located(place),
                );
            }
            Ok(())
        })
    }

    /// Says that the last complete frame ended, before the plaintext of a torn one is fed.
    ///
    /// # Errors
    /// `Header`: there was no header. `Row`: a row is incomplete, or not all text is committed (generation 4).
    ///
    /// # Source
    /// Spec 10 §8.3 step 2, §8.5.
    pub fn end_complete_frames(&mut self) -> Result<()> {
        self.guarded(|scanner| {
            let Some(header) = &scanner.header else {
                return Err(no_header());
            };
            if header.generation == CURRENT_GENERATION
                && let Some((_, issue)) = &scanner.issue
            {
                return Err(issue.error.replica());
            }
            if !scanner.carry.is_empty() {
                return Err(
                    Error::new(ErrorKind::Row, "the last complete frame ends inside a row")
                        .with_rule(if header.generation == CURRENT_GENERATION {
                            "10 §8.3"
                        } else {
                            "10 §8.5"
                        })
                        .located(scanner.place_of_line()),
                );
            }
            Ok(())
        })
    }

    /// Ends the scan. An unfinished last line is not a row and is ignored.
    ///
    /// # Errors
    /// `Header`: there was no complete header row. `Row`: the marker rule, or the cut exceeds the events.
    ///
    /// # Source
    /// Spec 10 §4.2, §4.4.
    pub fn finish(&mut self) -> Result<ScanResult> {
        self.guarded(|scanner| {
            let Some(header) = scanner.header.clone() else {
                return Err(no_header());
            };
            let refuse =
                |message: &'static str, rule| Err(Error::new(ErrorKind::Row, message).with_rule(rule));
            let cut = match (header.generation, header.is_seeded, scanner.marker) {
                (0 | 1, ..) => {
                    let cut = header.declared_cut.unwrap_or(0);
                    if cut > scanner.totals.event_count {
                        return refuse(
                            "`seedLength` of the header exceeds the number of events",
                            "10 §4.2",
                        );
                    }
                    cut
                }
                (_, true, None) => {
                    return refuse(
                        "the header says seeded, but there is no inherited end-seed marker",
                        "10 §4.4",
                    );
                }
                (_, false, Some(_)) => {
                    return refuse(
                        "the header says not seeded, but there is an inherited end-seed marker",
                        "10 §4.4",
                    );
                }
                (_, _, marker) => marker.unwrap_or(0),
            };
            if !scanner.last_packed.is_empty() {
                // The row was parsed when it was accepted.
                let mut tape = Tape::new();
                let row = tape
                    .read_text(&scanner.last_packed, scanner.options.limits.max_depth as usize)
                    .ok();
                scanner.totals.last_time = row.and_then(packed::last_time);
            }
            Ok(ScanResult {
                header,
                inherited_event_count: cut,
                totals: scanner.totals.clone(),
                issue: scanner.issue.as_ref().map(|(_, issue)| Issue {
                    row: issue.row,
                    offset: issue.offset,
                    error: issue.error.replica(),
                }),
                findings: scanner
                    .rules
                    .take()
                    .map(|rules| rules.finish(cut))
                    .unwrap_or_default(),
            })
        })
    }
}

#[cold]
fn no_header() -> Error {
    Error::new(ErrorKind::Header, "there is no complete header row")
        .with_rule("10 §3")
        .located(Location {
            line: Some(1),
            offset: Some(0),
            ..Location::default()
        })
}

/// The issue as the error of a read that found a completed turn behind it.
#[cold]
fn committed_damage(issue: &Issue) -> Error {
    issue.error.replica()
}

/// Checks an event row of generations 0 and 1 apart from its seq, and returns its time if it has a valid one.
fn decode_plain(row: &Envelope<'_>) -> Result<Option<i64>> {
    if let Some(seqs) = row.source_event_seqs {
        let Some(seq) = row.seq.and_then(|seq| seq.count()) else {
            return Err(Error::new(
                ErrorKind::Row,
                "a row with `sourceEventSeqs` needs a count as `seq`",
            )
            .with_rule("10 §5.2"));
        };
        decode_seqs(seqs, SeqCodec::V0, seq, None)?;
    }
    Ok(row.time.and_then(|time| time.sint()))
}
