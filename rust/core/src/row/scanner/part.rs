//! Parts of a log that are scanned before it is known what stands in front of them.
//!
//! A row says its seq itself, so whole rows can be scanned as if they followed whatever comes before. Where their first
//! seq is then the next one, what was counted is added up. The rules that depend on earlier rows get the rows in order,
//! parsed or noted. All other parts, and every part behind an issue, are scanned again in order: only that gives the
//! right places.

use super::super::notes::{CallNotes, NotedRows};
use super::super::quick_event::EventRow;
use super::{CURRENT_GENERATION, RowScanner, ScanOptions, Totals, Unseen};
use crate::json::{Node, Shelf};
use crate::limits::MAX_KEPT_FAULTS;
use crate::row::{Envelope, Header};
use crate::rules::{Level, RowRules, RuleRow};
use crate::stream::{RecordFault, StreamCounts};

/// Words of parsed and noted rows that a part keeps; one with more is scanned in order.
const MAX_WORDS: usize = 3 << 15;

/// What whole rows hold that do not start a log.
#[derive(Default)]
pub(crate) struct Part {
    /// Whether nothing is wrong with any row.
    is_sound: bool,
    first_seq: Option<u64>,
    totals: Totals,
    rows_seen: u64,
    marker: Option<u64>,
    last_packed: Vec<u8>,
    /// Above level `Scan`, generation 4.
    rules: Option<RowRules>,
    rows: Shelf,
    noted: NotedRows,
}

impl Part {
    /// Takes an accepted row whose bytes start at `start` of the part. Counts as
    /// [`RuleCheck::feed_counting`](crate::rules::RuleCheck::feed_counting) does.
    pub(super) fn take(
        &mut self,
        seq: u64,
        row: &Envelope<'_>,
        start: u64,
        on_fault: &mut dyn FnMut(i64, RecordFault),
    ) -> Option<StreamCounts> {
        self.rules.as_ref()?;
        match usize::try_from(start) {
            Ok(start) if self.is_kept() => self.rows.keep(row.row, start),
            _ => {}
        }
        let rules = self.rules.as_mut()?;
        rules.feed(seq, row, on_fault)
    }

    /// As [`Part::take`], for a row that was recognised.
    pub(super) fn take_noted(&mut self, row: &EventRow, calls: &[CallNotes], start: u64) {
        if let (Some(_), true, Ok(start)) = (&self.rules, self.is_kept(), usize::try_from(start)) {
            self.noted.keep(row, calls, start);
        }
    }

    fn is_kept(&self) -> bool {
        self.rows.len() + self.noted.words() <= MAX_WORDS
    }
}

impl RowScanner {
    /// A scanner for parts of the log with this header.
    pub(crate) fn for_parts(header: Header, options: ScanOptions, level: Level) -> Self {
        Self {
            header: Some(header),
            ..Self::at_level(options, level)
        }
    }

    /// Scans a part, which ends with a line feed. `part` is room that was used before, or none.
    pub(crate) fn scan_part(&mut self, text: &[u8], mut part: Part) -> Part {
        let generation = self.header.as_ref().map(|header| header.generation);
        let has_rules = self.level > Level::Scan && generation == Some(CURRENT_GENERATION);
        part.rows.clear();
        part.noted.clear();
        part.rules = has_rules.then(|| RowRules::new(self.level));
        part.first_seq = None;
        self.clear();
        self.part = Some(part);
        let fed = self.feed_to(text, &mut Unseen);
        let part = self.part.take().unwrap_or_default();
        let is_whole = fed.is_ok() && self.issue.is_none() && self.carry.is_empty();
        Part {
            is_sound: is_whole && part.first_seq.is_some() && part.is_kept(),
            totals: std::mem::take(&mut self.totals),
            rows_seen: self.rows_seen,
            marker: self.marker,
            last_packed: std::mem::take(&mut self.last_packed),
            ..part
        }
    }

    /// Makes the first row of a part the one that is expected.
    pub(super) fn start_part(&mut self, seq: Option<u64>) {
        if let (Some(part), Some(seq), 0) = (&mut self.part, seq, self.rows_seen) {
            part.first_seq = Some(seq);
            self.totals.event_count = seq;
        }
    }

    /// Whether the next row is the first of a part.
    pub(super) fn starts_part(&self) -> bool {
        self.part.is_some() && self.rows_seen == 0
    }

    /// Whether a part that follows can be added at all.
    pub(crate) fn takes_parts(&self) -> bool {
        self.failure.is_none() && self.issue.is_none() && self.carry.is_empty() && self.header.is_some()
    }

    /// Adds a part, of which `text` is the text, as if it had been fed. If that is in doubt, nothing is done and false
    /// returned: it has to be fed.
    pub(crate) fn append(&mut self, part: &mut Part, text: &[u8]) -> bool {
        let first_seq = self.totals.event_count;
        if !part.is_sound || part.first_seq != Some(first_seq) || !self.takes_parts() {
            return false;
        }
        if let (Some(rules), Some(row_rules)) = (&mut self.rules, &mut part.rules) {
            let mut parsed = part.rows.values(text).filter_map(Envelope::of);
            let mut noted = part.noted.values(text).peekable();
            let rows = (first_seq..part.totals.event_count).filter_map(|seq| {
                let row = match noted.next_if(|(noted_seq, _)| *noted_seq == seq) {
                    Some((_, row)) => RuleRow::Noted(row),
                    None => RuleRow::Parsed(parsed.next()?),
                };
                Some((seq, row))
            });
            rules.append(row_rules, rows);
        }
        let (totals, added) = (&mut self.totals, &mut part.totals);
        if totals.row_count == 0 {
            totals.first_time = added.first_time;
        }
        totals.last_time = added.last_time;
        totals.event_count = added.event_count;
        totals.row_count += added.row_count;
        totals.fed_bytes += text.len() as u64;
        totals.committed_bytes = totals.fed_bytes;
        totals.stream_count += added.stream_count;
        totals.record_count += added.record_count;
        totals.chunk_count += added.chunk_count;
        totals.stream_fault_count += added.stream_fault_count;
        let room = MAX_KEPT_FAULTS.saturating_sub(totals.stream_faults.len());
        totals
            .stream_faults
            .extend(added.stream_faults.drain(..).take(room));
        self.rows_seen += part.rows_seen;
        self.marker = part.marker.or(self.marker);
        self.last_packed = std::mem::take(&mut part.last_packed);
        self.line_start = self.totals.fed_bytes;
        true
    }
}

/// The seq that a row of some generation claims for its first event.
pub(super) fn claimed_seq(row: Node<'_>, is_packed: bool) -> Option<u64> {
    row.member(if is_packed { "seq0" } else { "seq" })?.count()
}
