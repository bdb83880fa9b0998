//! Validation of stream records. Spec 20 §2, §4.

use super::chunk::RunKind;
use super::readers::elements;
use super::value::{Picked, Value, Word, bits};
use crate::error::{Error, ErrorKind, Result};
use crate::json::Node;
use crate::json::number::is_safe;

/// A valid record. Spec 20 §2.
#[derive(Clone, Debug)]
pub enum Record<V> {
    /// A run of deltas.
    Run(Run<V>),
    /// One chunk as it is.
    Raw {
        /// Milliseconds since the Unix epoch.
        time: i64,
        /// A lossless object; its members are not checked.
        chunk: V,
    },
}

/// A valid record that stands for a run of deltas.
#[derive(Clone, Debug)]
pub struct Run<V> {
    /// What the members are.
    pub kind: RunKind,
    /// Time of the first member, in milliseconds.
    pub time0: i64,
    /// Block of the members.
    pub index: i64,
    /// Differences between neighbouring times, one fewer than members.
    pub dt: V,
    /// An array of at least one string.
    pub members: V,
    /// Tool calls: a string that is not empty.
    pub id: Option<V>,
    /// Tool calls that have one: a string that is not empty.
    pub name: Option<V>,
    /// Number of members.
    pub count: usize,
}

/// Which rule of spec 20 §4 a record breaks.
pub type RecordFault = &'static str;

impl<V: Value> Run<V> {
    /// Times of the members; none is missing and every one is a safe integer.
    #[inline]
    pub fn times(&self) -> impl Iterator<Item = i64> {
        let mut time = self.time0;
        let steps = self.dt.elements().map(move |step| {
            // Validation has shown that no sum leaves the safe range.
            time = time.saturating_add(step.safe_integer().unwrap_or_default());
            time
        });
        std::iter::once(self.time0).chain(steps)
    }
}

impl<V: Value> Record<V> {
    /// Chunks that the record stands for.
    #[inline]
    pub fn chunk_count(&self) -> usize {
        match self {
            Self::Run(run) => run.count,
            Self::Raw { .. } => 1,
        }
    }
}

/// Every key of any record, in the order of the table in spec 20 §2, which is that of most logs.
const KEYS: [Word; 10] = [
    Word::Type,
    Word::Time0,
    Word::Index,
    Word::Dt,
    Word::Texts,
    Word::Id,
    Word::Name,
    Word::Args,
    Word::Time,
    Word::Chunk,
];
const TYPE: usize = 0;
const TIME0: usize = 1;
const INDEX: usize = 2;
const DT: usize = 3;
const TEXTS: usize = 4;
const ID: usize = 5;
const NAME: usize = 6;
const ARGS: usize = 7;
const TIME: usize = 8;
const CHUNK: usize = 9;

const TEXT_RUN: u32 = bits(&[TYPE, TIME0, INDEX, DT, TEXTS]);
const TOOL_CALL_RUN: u32 = bits(&[TYPE, TIME0, INDEX, DT, ID, ARGS]);
const NAMED_RUN: u32 = TOOL_CALL_RUN | bits(&[NAME]);
const RAW: u32 = bits(&[TYPE, TIME, CHUNK]);

type Fields<V> = Picked<V, 10>;

/// Checks one record by spec 20 §4.
///
/// # Errors
/// The rule that is broken.
///
/// # Cost
/// One pass over the members, no allocation. Runs of small integers in the bytes of a log are not read one by one.
#[inline]
pub fn validate_record<V: Value>(record: &V) -> std::result::Result<Record<V>, RecordFault> {
    let mut fields = Fields::empty(&KEYS);
    let facts = examine(record, &mut fields)?;
    let field = |place: usize| fields.get(place).cloned().ok_or(NOT_EXACT);
    Ok(match facts {
        Facts::Raw { time } => Record::Raw {
            time,
            chunk: field(CHUNK)?,
        },
        Facts::Run {
            kind,
            time0,
            index,
            count,
        } => {
            let is_tool_call = kind == RunKind::ToolCall;
            Record::Run(Run {
                kind,
                time0,
                index,
                dt: field(DT)?,
                members: field(if is_tool_call { ARGS } else { TEXTS })?,
                id: fields.get(ID).cloned(),
                name: fields.get(NAME).cloned(),
                count,
            })
        }
    })
}

/// What checking a record has shown.
enum Facts {
    Run {
        kind: RunKind,
        time0: i64,
        index: i64,
        count: usize,
    },
    Raw {
        time: i64,
    },
}

const NOT_EXACT: RecordFault = "a stream record has to have exactly the members of its type (spec 20 §2)";

#[inline]
fn examine<V: Value>(record: &V, fields: &mut Fields<V>) -> std::result::Result<Facts, RecordFault> {
    if !record.is_object() {
        return Err("a stream record has to be an object");
    }
    fields.add_members(record);
    let kind = fields.get(TYPE).and_then(Value::word);
    if kind == Some(Word::Chunk) {
        return examine_raw(fields);
    }
    match RunKind::of_record(kind) {
        Some(kind) => examine_run(kind, fields),
        None => Err(
            "the type of a stream record has to be text-chunks, reasoning-chunks, tool-call-chunks or chunk",
        ),
    }
}

fn examine_raw<V: Value>(fields: &Fields<V>) -> std::result::Result<Facts, RecordFault> {
    let (Some(time), Some(chunk), true) = (fields.get(TIME), fields.get(CHUNK), fields.is_exactly(RAW))
    else {
        return Err(NOT_EXACT);
    };
    let time = time
        .safe_integer()
        .ok_or("time of a chunk record has to be a safe integer")?;
    if !chunk.is_object() {
        return Err("chunk of a chunk record has to be an object");
    }
    if !chunk.is_lossless() {
        return Err(
            "chunk of a chunk record has to be lossless JSON: no -0 and no number that is not finite",
        );
    }
    Ok(Facts::Raw { time })
}

#[inline]
fn examine_run<V: Value>(kind: RunKind, fields: &Fields<V>) -> std::result::Result<Facts, RecordFault> {
    let (is_exact, members) = match kind {
        RunKind::Text | RunKind::Reasoning => (fields.is_exactly(TEXT_RUN), fields.get(TEXTS)),
        RunKind::ToolCall => (
            fields.is_exactly(TOOL_CALL_RUN) || fields.is_exactly(NAMED_RUN),
            fields.get(ARGS),
        ),
    };
    let (Some(time0), Some(index), Some(dt), Some(members), true) = (
        fields.get(TIME0),
        fields.get(INDEX),
        fields.get(DT),
        members,
        is_exact,
    ) else {
        return Err(NOT_EXACT);
    };
    let count = members.len();
    if count == 0 || !members.is_text_array() {
        return Err("the members of a run have to be an array of at least one string");
    }
    // Runs of other kinds have neither id nor name.
    if kind == RunKind::ToolCall && !fields.get(ID).is_some_and(Value::is_nonempty_text) {
        return Err("id of a tool-call-chunks record has to be a string that is not empty");
    }
    if !fields.get(NAME).is_none_or(Value::is_nonempty_text) {
        return Err("name of a tool-call-chunks record has to be a string that is not empty");
    }
    let time0 = time0
        .safe_integer()
        .ok_or("time0 of a run has to be a safe integer")?;
    let index = index.count().ok_or("index of a run has to be a count")?;
    if !dt.is_array() || dt.len() != count - 1 {
        return Err("dt of a run has to be an array with one entry fewer than the members");
    }
    check_times(time0, dt)?;
    Ok(Facts::Run {
        kind,
        time0,
        index,
        count,
    })
}

/// Whether every difference and every running time is a safe integer. Spec 20 §4.
fn check_times<V: Value>(time0: i64, dt: &V) -> std::result::Result<(), RecordFault> {
    // Then the entries need not be read.
    if dt.integer_shape().is_some_and(|shape| shape.keeps_safe(time0)) {
        return Ok(());
    }
    let mut time = time0;
    for step in dt.elements() {
        let step = step
            .safe_integer()
            .ok_or("dt of a run has to hold safe integers")?;
        // The sum of two safe integers fits (spec 20 §8.1).
        time += step;
        if !is_safe(time) {
            return Err("every time of a run has to be a safe integer");
        }
    }
    Ok(())
}

/// The records of a stream, each checked when it is reached; an error has the number of its record.
///
/// # Errors
/// A stream error if the value is no array.
pub fn records<V: Value>(stream: &V) -> Result<impl Iterator<Item = Result<Record<V>>>> {
    Ok(elements(stream)?
        .enumerate()
        .map(|(at, record)| validate_nth(at, &record)))
}

/// [`validate_record`] for the record with a known number, from 0.
///
/// # Errors
/// A stream error with the number that says which rule is broken.
#[inline]
pub fn validate_nth<V: Value>(at: usize, record: &V) -> Result<Record<V>> {
    validate_record(record).map_err(|fault| {
        Error::new(
            ErrorKind::Stream {
                record: u64::try_from(at).ok(),
            },
            fault,
        )
    })
}

/// What [`check_stream`] counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Records, faulty ones included.
    pub records: u64,
    /// Chunks that the valid records stand for.
    pub chunks: u64,
}

/// Checks every record of the `stream` member of a settlement and reports each fault with the record's number; −1
/// when the member itself is missing or no array. Spec 20 §4.
pub fn check_stream(stream: Option<&Node<'_>>, on_fault: &mut dyn FnMut(i64, RecordFault)) -> StreamCounts {
    let mut counts = StreamCounts::default();
    let Some(stream) = stream.filter(|stream| stream.is_array()) else {
        on_fault(-1, "stream has to be an array of records");
        return counts;
    };
    if let Some((records, chunks)) = stream.counted_records() {
        return StreamCounts { records, chunks };
    }
    let mut at = 0;
    for record in stream.elements() {
        match examine(&record, &mut Fields::empty(&KEYS)) {
            Ok(Facts::Run { count, .. }) => counts.chunks += u64::try_from(count).unwrap_or(u64::MAX),
            Ok(Facts::Raw { .. }) => counts.chunks += 1,
            Err(fault) => on_fault(at, fault),
        }
        at += 1;
    }
    counts.records = at.unsigned_abs();
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{Tape, write_node};

    const RECORDS: [&str; 9] = [
        r#"{"type":"text-chunks","time0":1781765695133,"index":0,"dt":[8,1,-41],"texts":[" a","\n\"é",""," d"]}"#,
        r#"{"type":"reasoning-chunks","time0":-5,"index":12,"dt":[],"texts":["x"]}"#,
        r#"{"type":"tool-call-chunks","time0":3,"index":1,"dt":[],"id":"c","name":"n","args":["{}"]}"#,
        r#"{"type":"tool-call-chunks","time0":3,"index":1,"dt":[0],"id":"c","args":["","\u00e9"]}"#,
        r#"{"type":"chunk","time":9,"chunk":{"type":"block-start","index":0,"blockType":"text"}}"#,
        r#"{"type":"chunk","time":9,"chunk":{"type":"block-end","index":0,"block":{"type":"text","text":"a\n"}}}"#,
        r#"{"type":"chunk","time":9,"chunk":{"type":"usage","usage":{"n":[1,-2],"s":["a"],"x":[null,true,{}]}}}"#,
        r#"{"type":"chunk","time":9,"chunk":{}}"#,
        r#"{"type":"text-chunks","time0":9007199254740000,"index":0,"dt":[900],"texts":["a","b"]}"#,
    ];

    /// What may be put anywhere.
    const PIECES: [&str; 28] = [
        "",
        "",
        "\"",
        "\\",
        ",",
        "{",
        "}",
        "[",
        "]",
        "0",
        "-",
        "-0",
        "1.5",
        "1e999",
        " ",
        "\n",
        "\u{1}",
        "null",
        "[]",
        "{}",
        "123456789012345",
        "12345678",
        "\"tool-result\"",
        "\"name\":\"\",",
        "\"id\":\"\",",
        "\"index\":-1,",
        "\"stream\":[],",
        "\"\\u0070lugin\"",
    ];

    /// What is known of a row: how its reading ended, its values, its stream's faults and counts, may it be retired.
    fn facts(row: &str, max_depth: usize, counts: bool) -> (bool, impl PartialEq + std::fmt::Debug) {
        let mut tape = Tape::new();
        tape.count_records(counts);
        let end = tape.read_row(row.as_bytes(), max_depth);
        let root = tape.root(row.as_bytes());
        let mut faults = Vec::new();
        let mut out = Vec::new();
        let mut is_counted = false;
        let found = end.is_ok().then(|| {
            let stream = root.member("data").and_then(|data| data.member("stream"));
            is_counted = stream.is_some_and(|stream| stream.counted_records().is_some());
            write_node(root, &mut out, &|_, _| false);
            let counts = check_stream(stream.as_ref(), &mut |at, fault| faults.push((at, fault)));
            (counts, root.is_lossless(), tape.may_be_retired())
        });
        (is_counted, (end, found, out, faults))
    }

    #[test]
    fn counted_streams_are_what_a_check_of_their_tape_says() {
        let mut state = 5u64;
        let mut next = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        let mut counted = 0;
        for _ in 0..8_000 {
            let records: Vec<_> = (0..next(4)).map(|_| RECORDS[next(RECORDS.len())]).collect();
            let mut row = format!(
                r#"{{"type":"assistant/attempt","seq":0,"time":1,"data":{{"turn":1,"stream":[{}],"x":[{{}}]}}}}"#,
                records.join(",")
            );
            for _ in 0..next(3) {
                let boundary =
                    |row: &str, at: usize| (0..=at).rev().find(|&at| row.is_char_boundary(at)).unwrap();
                let start = boundary(&row, 50 + next(row.len() - 50));
                let end = boundary(&row, (start + next(6)).min(row.len()));
                row.replace_range(start..end, PIECES[next(PIECES.len())]);
            }
            row.push_str("\n                                                                  ");
            let max_depth = if next(4) == 0 { 1 + next(8) } else { 64 };
            let (is_counted, fast) = facts(&row, max_depth, true);
            let (_, exact) = facts(&row, max_depth, false);
            assert_eq!(fast, exact, "{row}");
            counted += usize::from(is_counted);
        }
        assert!(counted > 1_000, "{counted}");
    }
}
