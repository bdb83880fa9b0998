//! Chunks as columns: one array for each property, one text for all fragments. Spec 20 §4, 10 §5.3.

use super::chunk::{ChunkType, RunKind};
use super::record::{Record, Run, validate_nth};
use super::value::{Value, Word};
use crate::error::{Error, ErrorKind, Location, Result};
use crate::json::Node;
use crate::row::{decode_packed, last_packed_time};

/// Code of a chunk's type in [`Columns::kind`].
///
/// Choice: the types of spec 20 §1 in the order in which rows hold them; `OTHER` for every type that is not there.
pub mod kind {
    /// `text-delta`
    pub const TEXT: u8 = 0;
    /// `reasoning-delta`
    pub const REASONING: u8 = 1;
    /// `tool-call-delta`
    pub const TOOL_CALL: u8 = 2;
    /// `block-start`
    pub const BLOCK_START: u8 = 3;
    /// `block-end`
    pub const BLOCK_END: u8 = 4;
    /// `usage`
    pub const USAGE: u8 = 5;
    /// `finish`
    pub const FINISH: u8 = 6;
    /// Any other type, or none.
    pub const OTHER: u8 = 7;
}

/// The index of a chunk that has none, or none that is a count.
pub const NO_INDEX: i64 = -1;

fn code_of_run(run: RunKind) -> u8 {
    match run {
        RunKind::Text => kind::TEXT,
        RunKind::Reasoning => kind::REASONING,
        RunKind::ToolCall => kind::TOOL_CALL,
    }
}

fn code_of(chunk: Option<ChunkType>) -> u8 {
    match chunk {
        Some(ChunkType::Delta(run)) => code_of_run(run),
        Some(ChunkType::BlockStart) => kind::BLOCK_START,
        Some(ChunkType::BlockEnd) => kind::BLOCK_END,
        Some(ChunkType::Usage) => kind::USAGE,
        Some(ChunkType::Finish) => kind::FINISH,
        None => kind::OTHER,
    }
}

/// A value whose arrays can be written out side by side.
pub trait Unpack: Value {
    /// Appends the strings of an array of strings as WTF-8, and the position behind each.
    fn push_texts(&self, text: &mut Vec<u8>, ends: &mut Vec<i64>) {
        for element in self.elements() {
            text.extend_from_slice(&element.text().unwrap_or_default());
            ends.push(position(text.len()));
        }
    }

    /// Appends the positions that [`push_texts`](Self::push_texts) appends, for a text of which `start` bytes are there.
    fn push_text_ends(&self, start: i64, ends: &mut Vec<i64>) {
        let mut end = start;
        for element in self.elements() {
            end += position(element.text().unwrap_or_default().len());
            ends.push(end);
        }
    }

    /// Appends `start`, and behind it the running sum after each safe integer of an array.
    fn push_running_sums(&self, start: i64, sums: &mut Vec<i64>) {
        let mut sum = start;
        sums.push(sum);
        for step in self.elements() {
            // Validation has shown that no sum leaves the safe range.
            sum = sum.saturating_add(step.safe_integer().unwrap_or_default());
            sums.push(sum);
        }
    }
}

impl Unpack for Node<'_> {
    #[inline]
    fn push_texts(&self, text: &mut Vec<u8>, ends: &mut Vec<i64>) {
        self.push_texts(text, ends);
    }

    #[inline]
    fn push_text_ends(&self, start: i64, ends: &mut Vec<i64>) {
        self.push_text_ends(start, ends);
    }

    #[inline]
    fn push_running_sums(&self, start: i64, sums: &mut Vec<i64>) {
        self.push_running_sums(start, sums);
    }
}

#[inline]
fn position(len: usize) -> i64 {
    // No vector is longer than this.
    i64::try_from(len).unwrap_or(i64::MAX)
}

/// The chunks of one or more attempts, *n* in all, of *r* records.
#[derive(Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Columns {
    /// *n* times in milliseconds since the Unix epoch.
    pub time: Vec<i64>,
    /// *n* codes, see [`kind`].
    pub kind: Vec<u8>,
    /// *n* positions of the chunks' records in their stream.
    pub record: Vec<i32>,
    /// *n* + 1 positions in `text`; the first is 0, the last its length, or what that would be.
    pub offset: Vec<i64>,
    /// Fragments of all deltas, WTF-8. Halves of different fragments do not fuse. Empty if they are not kept.
    pub text: Vec<u8>,
    /// First chunk of each attempt, and *n* at the end.
    pub attempt: Vec<i64>,
    /// *r* block indices, which all chunks of a record share; [`NO_INDEX`] where a raw chunk has none.
    pub record_index: Vec<i64>,
    /// *r* times whether the record is of tool-call deltas with a name, which are tokens even where they are empty.
    pub record_named: Vec<bool>,
    /// First record of each attempt, and *r* at the end.
    pub attempt_record: Vec<i64>,
}

/// Fills [`Columns`], attempt by attempt.
///
/// # Cost
/// One pass over the records. Memory is that of the columns: 21 bytes and the fragment for each chunk, 9 for each record.
#[derive(Debug)]
pub struct ColumnsBuilder {
    columns: Columns,
    /// Records before the attempt that is being filled.
    first_record: usize,
    /// The last record of it, if a chunk row may extend that.
    open: Option<OpenRun>,
    /// Whether text is kept.
    keeps_text: bool,
}

/// A run that the next chunk row may extend. Spec 20 §3.
#[derive(Debug)]
pub(super) struct OpenRun {
    pub(super) kind: RunKind,
    pub(super) index: i64,
    pub(super) id: Option<Vec<u8>>,
    pub(super) name: Option<Vec<u8>>,
    /// Of the last member, in milliseconds.
    pub(super) last_time: i64,
}

impl Default for ColumnsBuilder {
    fn default() -> Self {
        let columns = Columns {
            offset: vec![0],
            attempt: vec![0],
            attempt_record: vec![0],
            ..Columns::default()
        };
        Self {
            columns,
            first_record: 0,
            open: None,
            keeps_text: true,
        }
    }
}

impl ColumnsBuilder {
    /// No attempts yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// No attempts yet; fragments are measured, and their text is not kept.
    #[must_use]
    pub fn without_text() -> Self {
        Self {
            keeps_text: false,
            ..Self::default()
        }
    }

    /// No attempts yet, the same is kept, and there is room for as much as `other` holds, up to a few megabytes: columns
    /// that are taken piece by piece do not grow from nothing each time.
    #[must_use]
    pub fn with_room_of(other: &Self) -> Self {
        const MOST: usize = 1 << 18;
        let room = |len: usize| (len + len / 8).min(MOST);
        let chunks = room(other.columns.time.len());
        let mut builder = Self {
            keeps_text: other.keeps_text,
            ..Self::default()
        };
        let columns = &mut builder.columns;
        columns.time.reserve(chunks);
        columns.kind.reserve(chunks);
        columns.record.reserve(chunks);
        columns.offset.reserve(chunks);
        columns.text.reserve(room(other.columns.text.len()));
        builder
    }

    /// Adds the records of a stream (an array, see [`Value::is_array`]), checked by spec 20 §4.
    ///
    /// # Errors
    /// `Stream` with the number of the record that breaks a rule. The columns then hold the records before it.
    pub fn push_stream<V: Unpack>(&mut self, stream: &V) -> Result<()> {
        self.open = None;
        for record in stream.elements() {
            match validate_nth(self.record_count(), &record)? {
                Record::Run(run) => self.push_run(&run),
                Record::Raw { time, chunk } => self.push_raw(time, &chunk),
            }
        }
        Ok(())
    }

    /// Adds the chunks of a row, given without its line feed: the stream of a settlement, or in generations 0 and 1 a
    /// packed row or a chunk row. Chunk rows are numbered as packing would make records of them.
    ///
    /// # Errors
    /// `Stream`: a record or chunk breaks a rule of spec 20 §4. `Row`: a packed row breaks a rule of 10 §5.3, or the
    /// row is of another type.
    pub fn push_row(&mut self, row: Node<'_>) -> Result<()> {
        let result = match RowKind::of(row) {
            Some(RowKind::Settlement) => match stream_of(row) {
                Some(stream) => self.push_stream(&stream),
                None => Ok(()),
            },
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

    /// Ends an attempt; it may be empty.
    pub fn end_attempt(&mut self) {
        let columns = &mut self.columns;
        self.first_record = columns.record_index.len();
        columns.attempt.push(position(columns.time.len()));
        columns.attempt_record.push(position(self.first_record));
        self.open = None;
    }

    /// Takes back what was added since the last attempt ended.
    pub fn drop_attempt(&mut self) {
        let columns = &mut self.columns;
        let count = columns
            .attempt
            .last()
            .and_then(|&count| usize::try_from(count).ok())
            .unwrap_or(0);
        columns.time.truncate(count);
        columns.kind.truncate(count);
        columns.record.truncate(count);
        columns.offset.truncate(count + 1);
        let text = columns
            .offset
            .last()
            .and_then(|&end| usize::try_from(end).ok())
            .unwrap_or(0);
        columns.text.truncate(text);
        columns.record_index.truncate(self.first_record);
        columns.record_named.truncate(self.first_record);
        self.open = None;
    }

    /// Chunks so far.
    pub fn chunk_count(&self) -> usize {
        self.columns.time.len()
    }

    /// The columns, without spare memory.
    pub fn finish(mut self) -> Columns {
        let columns = &mut self.columns;
        columns.time.shrink_to_fit();
        columns.kind.shrink_to_fit();
        columns.record.shrink_to_fit();
        columns.offset.shrink_to_fit();
        columns.text.shrink_to_fit();
        columns.attempt.shrink_to_fit();
        columns.record_index.shrink_to_fit();
        columns.record_named.shrink_to_fit();
        columns.attempt_record.shrink_to_fit();
        self.columns
    }

    fn push_run<V: Unpack>(&mut self, run: &Run<V>) {
        self.start_record(run.index, run.name.is_some());
        self.push_members(run.kind, run.count, run.time0, &run.dt, &run.members);
    }

    fn push_members<V: Unpack>(&mut self, kind: RunKind, count: usize, time0: i64, dt: &V, members: &V) {
        let record = self.record_number();
        let columns = &mut self.columns;
        let end = columns.time.len() + count;
        columns.time.reserve(count);
        dt.push_running_sums(time0, &mut columns.time);
        columns.kind.resize(end, code_of_run(kind));
        columns.record.resize(end, record);
        columns.offset.reserve(count);
        if self.keeps_text {
            members.push_texts(&mut columns.text, &mut columns.offset);
        } else {
            let start = columns.offset.last().copied().unwrap_or_default();
            members.push_text_ends(start, &mut columns.offset);
        }
    }

    fn push_raw<V: Unpack>(&mut self, time: i64, chunk: &V) {
        let kind = ChunkType::of_chunk(chunk);
        let fragment = match kind {
            Some(ChunkType::Delta(run)) => chunk.member(run.fragment_key()),
            _ => None,
        };
        let index = chunk.member(Word::Index).and_then(|index| index.count());
        let text = fragment.as_ref().and_then(Value::text);
        let is_named =
            kind == Some(ChunkType::Delta(RunKind::ToolCall)) && chunk.member(Word::Name).is_some();
        self.start_record(index.unwrap_or(NO_INDEX), is_named);
        self.push_one(time, code_of(kind), &text.unwrap_or_default());
    }

    fn push_one(&mut self, time: i64, kind: u8, fragment: &[u8]) {
        let record = self.record_number();
        let columns = &mut self.columns;
        columns.time.push(time);
        columns.kind.push(kind);
        columns.record.push(record);
        if self.keeps_text {
            columns.text.extend_from_slice(fragment);
        }
        let start = columns.offset.last().copied().unwrap_or_default();
        columns.offset.push(start + position(fragment.len()));
    }

    /// Begins a record; chunks that are pushed belong to the one that was begun last.
    fn start_record(&mut self, index: i64, is_named: bool) {
        self.columns.record_index.push(index);
        self.columns.record_named.push(is_named);
    }

    /// Records of the attempt that is being filled.
    fn record_count(&self) -> usize {
        self.columns.record_index.len() - self.first_record
    }

    /// Number of the record that was begun last, in its attempt.
    fn record_number(&self) -> i32 {
        // A list of more records does not fit in memory.
        i32::try_from(self.record_count().saturating_sub(1)).unwrap_or(i32::MAX)
    }

    // --- generations 0 and 1 ---

    /// Makes the run the last record: goes on with the open one where packing would (spec 20 §3), or starts one.
    fn continue_run(&mut self, run: OpenRun, first_time: i64) {
        let extends = self.open.as_ref().is_some_and(|open| {
            // The difference of two safe integers fits.
            let gap = first_time - open.last_time;
            (open.kind, open.index) == (run.kind, run.index)
                && open.id == run.id
                && open.name == run.name
                && crate::json::number::is_safe(gap)
        });
        if !extends {
            self.start_record(run.index, run.name.is_some());
        }
        self.open = Some(run);
    }

    fn push_packed(&mut self, row: Node<'_>, kind: RunKind) -> Result<()> {
        let packed = decode_packed(row)?;
        let data = row.member("data");
        let member = |key: Word| data.and_then(|data| data.member(key.as_str()));
        let (Some(dt), Some(members)) = (member(Word::Dt), member(kind.members_key())) else {
            return Ok(()); // Not reached: decoding has asked for both.
        };
        let index = member(Word::Index)
            .and_then(|index| Value::count(&index))
            .unwrap_or(NO_INDEX);
        let text_of = |key| {
            member(key)
                .and_then(|text| text.text())
                .map(std::borrow::Cow::into_owned)
        };
        let (id, name) = (text_of(Word::Id), text_of(Word::Name));
        let count = members.len();
        if name.as_ref().is_some_and(Vec::is_empty) {
            // Records may not hold an empty name, so each member is a raw record of its own.
            self.open = None;
            let (start, mut number) = (self.columns.record.len(), self.record_count());
            self.start_record(index, true);
            self.push_members(kind, count, packed.time, &dt, &members);
            for _ in 1..count {
                self.start_record(index, true);
            }
            for record in self.columns.record.get_mut(start..).unwrap_or_default() {
                *record = i32::try_from(number).unwrap_or(i32::MAX);
                number += 1;
            }
            return Ok(());
        }
        let run = OpenRun {
            kind,
            index,
            id,
            name,
            last_time: last_packed_time(row).unwrap_or(packed.time),
        };
        self.continue_run(run, packed.time);
        self.push_members(kind, count, packed.time, &dt, &members);
        if let (Some(open), Some(&last)) = (&mut self.open, self.columns.time.last()) {
            open.last_time = last;
        }
        Ok(())
    }

    fn push_chunk_row(&mut self, row: Node<'_>) -> Result<()> {
        let refuse = |message| {
            let record = u64::try_from(self.record_count()).ok();
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
        if let Some((mut run, fragment)) = packable(&chunk) {
            run.last_time = time;
            let kind = code_of_run(run.kind);
            self.continue_run(run, time);
            self.push_one(time, kind, &fragment.text().unwrap_or_default());
        } else {
            self.open = None;
            self.push_raw(time, &chunk);
        }
        Ok(())
    }
}

/// What a row with chunks is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKind {
    /// `assistant/message` or `assistant/attempt`, with a stream in generations 2 to 4.
    Settlement,
    /// A packed row of generations 0 and 1.
    Packed(RunKind),
    /// `assistant/chunk` of generations 0 and 1.
    Chunk,
}

impl RowKind {
    /// What the row says it is; None for a row without chunks.
    pub(super) fn of(row: Node<'_>) -> Option<Self> {
        Self::of_type(row.member("type")?)
    }

    /// What a row of this `type` is.
    pub(super) fn of_type(event_type: Node<'_>) -> Option<Self> {
        if event_type.text_is("assistant/message") || event_type.text_is("assistant/attempt") {
            Some(Self::Settlement)
        } else if event_type.text_is("assistant/chunk") {
            Some(Self::Chunk)
        } else {
            RunKind::of_record(event_type.word()).map(Self::Packed)
        }
    }
}

/// The stream of a settlement. None if it has none, which counts as an empty one (spec 80 §3).
pub(super) fn stream_of(row: Node<'_>) -> Option<Node<'_>> {
    row.member("data")?.member("stream").filter(Node::is_array)
}

/// The chunk of a chunk row.
pub(super) fn chunk_of(row: Node<'_>) -> Option<Node<'_>> {
    row.member("data")?.member("chunk")
}

/// The run that a lossless chunk starts or extends, and its fragment; None if packing keeps it raw or refuses it.
/// Spec 20 §3.
pub(super) fn packable<'a>(chunk: &Node<'a>) -> Option<(OpenRun, Node<'a>)> {
    let Some(ChunkType::Delta(kind)) = ChunkType::of_chunk(chunk) else {
        return None;
    };
    let member = |key: Word| chunk.member(key.as_str());
    let index = Value::count(&member(Word::Index)?)?;
    let fragment = member(kind.fragment_key()).filter(Node::is_text)?;
    let (mut id, mut name) = (None, None);
    if kind == RunKind::ToolCall {
        id = Some(
            member(Word::Id)
                .filter(Node::is_nonempty_text)?
                .text()?
                .into_owned(),
        );
        if let Some(given) = member(Word::Name) {
            name = Some(Some(given).filter(Node::is_nonempty_text)?.text()?.into_owned());
        }
    }
    let run = OpenRun {
        kind,
        index,
        id,
        name,
        last_time: 0,
    };
    Some((run, fragment))
}

#[cfg(test)]
mod tests {
    use super::super::row_columns;
    use super::*;

    fn columns(attempts: &[&[&str]]) -> Result<Columns> {
        let attempts: Vec<Vec<Vec<u8>>> = attempts
            .iter()
            .map(|rows| rows.iter().map(|row| row.as_bytes().to_vec()).collect())
            .collect();
        row_columns(&attempts, 1024)
    }

    #[test]
    fn settlements_stand_one_behind_the_other() {
        let first = r#"{"type":"assistant/message","seq":4,"data":{"stream":[
            {"type":"text-chunks","time0":10,"index":0,"dt":[5,-3],"texts":["a","\ud83d","\ude00"]},
            {"type":"chunk","time":-0,"chunk":{"type":"finish"}}]}}"#;
        let second = r#"{"type":"assistant/attempt","data":{"stream":[
            {"dt":[],"args":["{}"],"id":"c","time0":1.0,"index":2,"type":"tool-call-chunks"}]}}"#;
        let found = columns(&[&[first], &[], &[second]]).unwrap();
        assert_eq!(found.time, [10, 15, 12, 0, 1]);
        assert_eq!(found.kind, [0, 0, 0, kind::FINISH, kind::TOOL_CALL]);
        assert_eq!(found.record, [0, 0, 0, 1, 0]);
        assert_eq!(found.record_index, [0, NO_INDEX, 2]);
        assert_eq!(found.record_named, [false; 3]);
        assert_eq!(found.attempt_record, [0, 2, 2, 3]);
        assert_eq!(found.offset, [0, 1, 4, 7, 7, 9]);
        assert_eq!(found.text, b"a\xed\xa0\xbd\xed\xb8\x80{}");
        assert_eq!(found.attempt, [0, 4, 4, 5]);
    }

    #[test]
    fn faults_name_record_and_row() {
        let row = r#"{"type":"assistant/message","seq":4,"data":{"stream":[{"type":"chunk","time":1,"chunk":{}},3]}}"#;
        let error = columns(&[&[row]]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Stream { record: Some(1) }));
        assert_eq!(error.location().seq, Some(4));
        let error = columns(&[&[r#"{"type":"turn/end","seq":4,"data":{}}"#]]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Row));
    }

    #[test]
    fn chunk_rows_go_on_with_the_run_of_a_packed_row() {
        // Spec 50 §5.8, last example.
        let rows = [
            r#"{"type":"text-chunks","seq0":0,"time0":1010,"data":{"turn":1,"step":1,"index":0,"dt":[2,3],"texts":["a","b","c"]}}"#,
            r#"{"type":"assistant/chunk","seq":3,"time":1016,"data":{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"d"}}}"#,
            r#"{"type":"assistant/chunk","seq":4,"time":1017,"data":{"turn":1,"step":1,"chunk":{"type":"text-delta","index":1,"text":"e"}}}"#,
        ];
        let found = columns(&[&rows]).unwrap();
        assert_eq!(found.time, [1010, 1012, 1015, 1016, 1017]);
        assert_eq!(found.record, [0, 0, 0, 0, 1]);
        assert_eq!(found.text, b"abcde");
    }
}
