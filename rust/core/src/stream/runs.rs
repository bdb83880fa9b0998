//! Chunk rows of generations 0 and 1 that stand one behind the other in an attempt, kept together. Spec 50 §5.3, §5.5.
//!
//! A log of these generations is mostly such rows. Who takes them one by one spends most of the time on calls.

use super::chunk::{ChunkType, RunKind};
use super::columns::packable;
use super::common::CommonRow;
use super::value::Value;
use crate::error::Result;
use crate::json::Node;
use crate::row::{DeltaKind, Row, RowScanner, ScanOptions, ScanResult, delta_of, last_packed_time};

/// Neighbouring rows of one attempt that any stream can take as they are.
///
/// All are packed rows without an empty name, or events of type `assistant/chunk` with exactly the members of spec 10
/// §5.3 and a chunk of spec 20 §1 that packing takes. None stands on the other side of the declared cut, and a `finish`
/// chunk is the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRun {
    /// Seq of the first chunk.
    pub seq: u64,
    /// Chunks.
    pub count: u64,
    /// Turn of all.
    pub turn: u64,
    /// Step of all.
    pub step: u64,
    /// Time of the last one, in milliseconds.
    pub time: i64,
    /// Whether a row is an event of its own, not a packed row.
    pub has_events: bool,
    /// Whether the last chunk is a `finish`.
    pub is_terminal: bool,
    /// The rows with their line feeds.
    pub raw: Vec<u8>,
    /// Plaintext byte where the first row starts.
    pub offset: u64,
    /// Number of the first row, from 1.
    pub row: u64,
}

/// What a [`RunScanner`] gives.
pub enum Unit<'a> {
    /// A row that is in no run.
    Row(&'a Row<'a>),
    /// One that every migration takes.
    Common(CommonRow<'a>, &'a Row<'a>),
    /// Rows that stay together.
    Run(ChunkRun),
}

/// A row that may be in a run.
#[derive(Clone, Copy)]
struct Member {
    turn: u64,
    step: u64,
    time: i64,
    is_event: bool,
    is_terminal: bool,
}

impl Member {
    fn of(row: &Row<'_>, cut: u64) -> Option<Self> {
        let event_type = row.event_type?;
        let root = event_type.root();
        if event_type.text_is("assistant/chunk") {
            // A row that was recognised from its bytes has no tape.
            return if root.is_object() {
                Self::of_event(root)
            } else {
                Self::of_bytes(row.raw)
            };
        }
        RunKind::of_record(event_type.word())?;
        let data = root.member("data")?;
        let is_split = row.seq < cut && cut < row.seq + row.count;
        let has_empty_name = data.member("name").is_some_and(|name| !name.is_nonempty_text());
        if is_split || has_empty_name {
            return None;
        }
        Some(Self {
            turn: data.member("turn")?.count()?,
            step: data.member("step")?.count()?,
            time: last_packed_time(root)?,
            is_event: false,
            is_terminal: false,
        })
    }

    /// A delta in the spelling of the harness.
    fn of_bytes(raw: &[u8]) -> Option<Self> {
        let delta = delta_of(raw)?;
        // Two quotes and nothing between them.
        let is_empty = |range: &Option<std::ops::Range<usize>>| range.as_ref().is_some_and(|r| r.len() < 3);
        if delta.kind == DeltaKind::ToolCall && (is_empty(&delta.id) || is_empty(&delta.name)) {
            return None;
        }
        u64::try_from(delta.index).ok()?;
        Some(Self {
            turn: u64::try_from(delta.turn).ok()?,
            step: u64::try_from(delta.step).ok()?,
            time: delta.time,
            is_event: true,
            is_terminal: false,
        })
    }

    fn of_event(root: Node<'_>) -> Option<Self> {
        let [_, _, time, data] = exactly(root, ["type", "seq", "time", "data"])?;
        let [turn, step, chunk] = exactly(data, ["turn", "step", "chunk"])?;
        if !chunk.is_object() || !Value::is_lossless(&chunk) {
            return None;
        }
        let kind = ChunkType::of_chunk(&chunk)?;
        if matches!(kind, ChunkType::Delta(_)) {
            packable(&chunk)?;
        }
        Some(Self {
            turn: turn.count()?,
            step: step.count()?,
            time: time.sint()?,
            is_event: true,
            is_terminal: kind == ChunkType::Finish,
        })
    }
}

/// The members of an object that has these and no others.
fn exactly<'a, const N: usize>(object: Node<'a>, keys: [&str; N]) -> Option<[Node<'a>; N]> {
    if !object.is_object()
        || object
            .members()
            .any(|(key, _)| !keys.iter().any(|wanted| key.text_is(wanted)))
    {
        return None;
    }
    let mut found = [object; N];
    for (place, key) in found.iter_mut().zip(keys) {
        *place = object.member(key)?;
    }
    Some(found)
}

/// The run that is open.
#[derive(Default)]
struct Joiner {
    open: Option<ChunkRun>,
}

impl Joiner {
    fn push(&mut self, row: &Row<'_>, cut: u64, give: &mut impl FnMut(Unit<'_>)) {
        let Some(member) = Member::of(row, cut) else {
            self.end(give);
            give(match CommonRow::of(row) {
                Some(common) => Unit::Common(common, row),
                None => Unit::Row(row),
            });
            return;
        };
        let place = (member.turn, member.step, row.seq < cut);
        match &mut self.open {
            Some(run) if (run.turn, run.step, run.seq < cut) == place => {
                run.count += row.count;
                run.time = member.time;
                run.has_events |= member.is_event;
                run.is_terminal = member.is_terminal;
                run.raw.extend_from_slice(row.raw);
                run.raw.push(b'\n');
            }
            _ => {
                self.end(give);
                let mut raw = Vec::with_capacity(row.raw.len() + 1);
                raw.extend_from_slice(row.raw);
                raw.push(b'\n');
                self.open = Some(ChunkRun {
                    seq: row.seq,
                    count: row.count,
                    turn: member.turn,
                    step: member.step,
                    time: member.time,
                    has_events: member.is_event,
                    is_terminal: member.is_terminal,
                    raw,
                    offset: row.offset,
                    row: row.row,
                });
            }
        }
        if member.is_terminal {
            self.end(give);
        }
    }

    fn end(&mut self, give: &mut impl FnMut(Unit<'_>)) {
        if let Some(run) = self.open.take() {
            give(Unit::Run(run));
        }
    }
}

/// [`RowScanner`] for the migration of generations 0 and 1: it gives the chunk rows of an attempt together, and says
/// what common rows become.
pub struct RunScanner {
    scanner: RowScanner,
}

impl RunScanner {
    /// A scanner at the start of a text.
    pub fn new(options: ScanOptions) -> Self {
        Self {
            scanner: RowScanner::new(ScanOptions {
                keeps_records: true,
                ..options
            }),
        }
    }

    /// The scan.
    pub fn scanner(&self) -> &RowScanner {
        &self.scanner
    }

    /// Takes the next bytes and calls `accept` for what they complete, in order. A run ends with the call at the latest.
    ///
    /// # Errors
    /// As for [`RowScanner::feed`].
    pub fn feed(&mut self, data: &[u8], accept: &mut impl FnMut(Unit<'_>)) -> Result<()> {
        // What joins depends on the header, so that is taken first.
        let header_end = match self.scanner.header() {
            None => memchr::memchr(b'\n', data).map_or(data.len(), |end| end + 1),
            Some(_) => 0,
        };
        let (line, rows) = data.split_at(header_end);
        if !line.is_empty() {
            self.scanner.feed(line, &mut |row| accept(Unit::Row(row)))?;
        }
        let place = self
            .scanner
            .header()
            .filter(|header| header.generation < 2)
            .map(|header| header.declared_cut.unwrap_or_default());
        let mut joiner = Joiner::default();
        let fed = self.scanner.feed(rows, &mut |row| match place {
            Some(cut) => joiner.push(row, cut, accept),
            None => accept(Unit::Row(row)),
        });
        joiner.end(accept);
        fed
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::row::Mode;

    const HEADER: &str = r#"{"type":"session","version":0,"id":"s","createdAt":0,"delegationDepth":0}"#;

    fn units(header: &str, rows: &[&str]) -> Vec<(bool, u64, u64, bool)> {
        let mut scanner = RunScanner::new(ScanOptions {
            mode: Mode::Strict,
            generation: None,
            check_streams: false,
            keeps_records: true,
            limits: Limits::default(),
        });
        let mut found = vec![];
        let mut take = |unit: Unit<'_>| {
            found.push(match unit {
                Unit::Row(row) | Unit::Common(_, row) => (false, row.seq, row.count, false),
                Unit::Run(run) => (true, run.seq, run.count, run.is_terminal),
            });
        };
        scanner.feed(format!("{header}\n").as_bytes(), &mut take).unwrap();
        scanner
            .feed((rows.join("\n") + "\n").as_bytes(), &mut take)
            .unwrap();
        found
    }

    fn chunk(seq: u64, step: u64, chunk: &str) -> String {
        format!(
            r#"{{"type":"assistant/chunk","seq":{seq},"time":{seq},"data":{{"turn":1,"step":{step},"chunk":{chunk}}}}}"#
        )
    }

    const TEXT: &str = r#"{"type":"text-delta","index":0,"text":"a"}"#;

    #[test]
    fn neighbours_of_an_attempt_are_one() {
        let rows = [
            chunk(0, 1, r#"{"type":"block-start","index":0,"blockType":"text"}"#),
            chunk(1, 1, TEXT),
            r#"{"type":"text-chunks","seq0":2,"time0":9,"data":{"turn":1,"step":1,"index":0,"dt":[1],"texts":["a","b"]}}"#.into(),
            chunk(4, 1, r#"{"type":"finish","reason":{"kind":"stop"}}"#),
            chunk(5, 1, TEXT),
            chunk(6, 2, TEXT),
            r#"{"type":"plan/mode","seq":7,"time":9,"data":{"active":true}}"#.into(),
            chunk(8, 2, TEXT),
        ];
        let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
        let expected = [
            (true, 0, 5, true),
            (true, 5, 1, false),
            (true, 6, 1, false),
            (false, 7, 1, false),
            (true, 8, 1, false),
        ];
        assert_eq!(units(HEADER, &rows), expected);
        let cut = HEADER.replace("\"createdAt\"", "\"seedLength\":1,\"createdAt\"");
        assert_eq!(units(&cut, &rows)[..2], [(true, 0, 1, false), (true, 1, 4, true)]);
        let split = HEADER.replace("\"createdAt\"", "\"seedLength\":3,\"createdAt\"");
        assert_eq!(
            units(&split, &rows)[..3],
            [(true, 0, 2, false), (false, 2, 2, false), (true, 4, 1, true)]
        );
    }

    #[test]
    fn whatever_a_stream_may_refuse_stands_alone() {
        for odd in [
            chunk(0, 1, r#"{"type":"text-delta","index":-1,"text":"a"}"#),
            chunk(0, 1, r#"{"type":"text-delta","index":0,"text":1}"#),
            chunk(0, 1, r#"{"type":"tool-call-delta","index":0,"id":"","argumentsDelta":""}"#),
            chunk(0, 1, r#"{"type":"tool-call-delta","index":0,"id":"c","name":"","argumentsDelta":""}"#),
            chunk(0, 1, r#"{"type":"usage","usage":-0}"#),
            chunk(0, 1, r#"{"type":"other"}"#),
            chunk(0, 1, "[]"),
            chunk(0, 1, TEXT).replace("\"turn\":1", "\"turn\":-1"),
            chunk(0, 1, TEXT).replace("\"turn\":1,", ""),
            chunk(0, 1, TEXT).replace("\"turn\":1", "\"turn\":1,\"x\":1"),
            chunk(0, 1, TEXT).replace("\"time\":0", "\"time\":0.5"),
            chunk(0, 1, TEXT).replace("\"time\":0", "\"time\":0,\"ignorable\":true"),
            r#"{"type":"tool-call-chunks","seq0":0,"time0":9,"data":{"turn":1,"step":1,"index":0,"dt":[],"id":"c","name":"","args":["b"]}}"#.into(),
        ] {
            assert_eq!(units(HEADER, &[&odd]), [(false, 0, 1, false)], "{odd}");
        }
    }
}
