//! The accumulator that packs timed chunks into records. Spec 20 §3.

use super::chunk::{ChunkType, RunKind};
use super::value::{Picked, Value, Word};
use crate::error::{Error, ErrorKind, Result};
use crate::json::Kind;
use crate::json::number::is_safe;

/// A record that the accumulator holds; `K` is a kept text or chunk.
#[derive(Clone, Debug)]
pub enum Packed<K> {
    /// A run of deltas.
    Run(PackedRun<K>),
    /// One chunk as it is.
    Raw {
        /// Milliseconds since the Unix epoch.
        time: i64,
        /// A detached copy of the chunk.
        chunk: K,
    },
}

/// A run that the accumulator holds.
#[derive(Clone, Debug)]
pub struct PackedRun<K> {
    /// What the members are.
    pub kind: RunKind,
    /// Time of the first member, in milliseconds.
    pub time0: i64,
    /// Block of the members.
    pub index: i64,
    /// Differences between neighbouring times.
    pub dt: Vec<i64>,
    /// Tool calls: the id, not empty.
    pub id: Option<K>,
    /// Tool calls: the name if there is one, not empty.
    pub name: Option<K>,
    /// At least one fragment.
    pub members: Vec<K>,
}

/// Accumulator of records. A refused chunk changes nothing.
#[derive(Clone, Debug)]
pub struct Packer<K> {
    records: Vec<Packed<K>>,
    /// Time of the last member of the last record, if that is a run.
    last_time: i64,
    accepted: u64,
}

impl<K> Default for Packer<K> {
    fn default() -> Self {
        Self {
            records: Vec::new(),
            last_time: 0,
            accepted: 0,
        }
    }
}

/// Keys of a delta, in the order of the table in spec 20 §1.
const KEYS: [Word; 6] = [
    Word::Type,
    Word::Index,
    Word::Text,
    Word::Id,
    Word::Name,
    Word::ArgumentsDelta,
];
const TYPE: usize = 0;
const INDEX: usize = 1;
const TEXT: usize = 2;
const ID: usize = 3;
const NAME: usize = 4;
const ARGUMENTS_DELTA: usize = 5;

type Fields<V> = Picked<V, 6>;

impl<K> Packer<K> {
    /// An accumulator without records.
    pub fn new() -> Self {
        Self::default()
    }

    /// The records so far, in order.
    pub fn records(&self) -> &[Packed<K>] {
        &self.records
    }

    /// Chunks accepted so far.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Adds a timed chunk, an object with `time` and `chunk`.
    ///
    /// # Errors
    /// As for [`Packer::push`]; a stream error if the value is no object.
    pub fn push_timed<V: Value<Kept = K>>(&mut self, timed: &V) -> Result<()> {
        if !timed.is_object() {
            return Err(self.refuse("a timed chunk has to be an object with time and chunk"));
        }
        self.push(
            timed.member(Word::Time).as_ref(),
            timed.member(Word::Chunk).as_ref(),
        )
    }

    /// Adds a chunk.
    ///
    /// # Errors
    /// An unknown-chunk error if the chunk's type is not one of spec 20 §1, or the chunk is a string, number, boolean
    /// or array; a stream error for every other rule of spec 20 §3, its record the number of chunks accepted so far.
    pub fn push<V: Value<Kept = K>>(&mut self, time: Option<&V>, chunk: Option<&V>) -> Result<()> {
        let Some(time) = time.and_then(Value::safe_integer) else {
            return Err(self.refuse("time of a chunk has to be a safe integer"));
        };
        let Some((chunk, kind)) = chunk.and_then(|chunk| Some((chunk, chunk.kind()?))) else {
            return Err(self.refuse("a chunk has to be a JSON object"));
        };
        if kind != Kind::Object {
            if !chunk.is_lossless() {
                return Err(self.refuse(LOSSLESS));
            }
            return Err(match kind {
                Kind::Null => self.refuse("a chunk has to be a JSON object"),
                _ => self.refuse_type(),
            });
        }
        let mut fields = Fields::empty(&KEYS);
        let mut lossless = true;
        for (key, value) in chunk.members() {
            lossless = lossless && key.is_text() && (value.is_text() || value.is_lossless());
            fields.add(&key, value);
        }
        // A value that a repeated key replaces does not count, so a doubt is looked into once more.
        if !lossless && !chunk.is_lossless() {
            return Err(self.refuse(LOSSLESS));
        }
        match ChunkType::of(fields.get(TYPE).and_then(Value::word)) {
            None => return Err(self.refuse_type()),
            Some(ChunkType::Delta(RunKind::ToolCall)) => self.push_tool_call(time, chunk, &fields)?,
            Some(ChunkType::Delta(kind)) => self.push_text(kind, time, &fields)?,
            Some(_) => self.records.push(Packed::Raw {
                time,
                chunk: chunk.detach()?,
            }),
        }
        self.accepted += 1;
        Ok(())
    }

    fn push_text<V: Value<Kept = K>>(&mut self, kind: RunKind, time: i64, fields: &Fields<V>) -> Result<()> {
        let Some(index) = fields.get(INDEX).and_then(Value::count) else {
            return Err(self.refuse("index of a delta has to be a count"));
        };
        let Some(text) = fields.get(TEXT).filter(|text| text.is_text()) else {
            return Err(self.refuse("text of a delta has to be a string"));
        };
        let text = text.keep_text();
        let last_time = self.last_time;
        match self.records.last_mut() {
            Some(Packed::Run(run)) if run.kind == kind && run.index == index && is_safe(time - last_time) => {
                run.dt.push(time - last_time);
                run.members.push(text);
            }
            _ => self.records.push(Packed::Run(PackedRun {
                kind,
                time0: time,
                index,
                dt: Vec::new(),
                id: None,
                name: None,
                members: vec![text],
            })),
        }
        self.last_time = time;
        Ok(())
    }

    fn push_tool_call<V: Value<Kept = K>>(&mut self, time: i64, chunk: &V, fields: &Fields<V>) -> Result<()> {
        let Some(index) = fields.get(INDEX).and_then(Value::count) else {
            return Err(self.refuse("index of a delta has to be a count"));
        };
        let Some(id) = fields.get(ID).filter(|id| id.is_text()) else {
            return Err(self.refuse("id of a tool-call-delta has to be a string"));
        };
        let name = fields.get(NAME);
        if name.is_some_and(|name| !name.is_text()) {
            return Err(self.refuse("name of a tool-call-delta has to be a string"));
        }
        let Some(arguments) = fields
            .get(ARGUMENTS_DELTA)
            .filter(|arguments| arguments.is_text())
        else {
            return Err(self.refuse("argumentsDelta of a tool-call-delta has to be a string"));
        };
        // Records cannot hold an empty id or name (spec 20 §2), so such a delta stays as it is.
        if !id.is_nonempty_text() || name.is_some_and(|name| !name.is_nonempty_text()) {
            self.records.push(Packed::Raw {
                time,
                chunk: chunk.detach()?,
            });
            return Ok(());
        }
        let arguments = arguments.keep_text();
        let last_time = self.last_time;
        match self.records.last_mut() {
            Some(Packed::Run(run))
                if run.kind == RunKind::ToolCall
                    && run.index == index
                    && is_safe(time - last_time)
                    && run.id.as_ref().is_some_and(|known| id.is_text_of(known))
                    && match (&run.name, name) {
                        (Some(known), Some(name)) => name.is_text_of(known),
                        (known, name) => known.is_none() && name.is_none(),
                    } =>
            {
                run.dt.push(time - last_time);
                run.members.push(arguments);
            }
            _ => self.records.push(Packed::Run(PackedRun {
                kind: RunKind::ToolCall,
                time0: time,
                index,
                dt: Vec::new(),
                id: Some(id.keep_text()),
                name: name.map(Value::keep_text),
                members: vec![arguments],
            })),
        }
        self.last_time = time;
        Ok(())
    }

    #[cold]
    fn refuse(&self, message: &'static str) -> Error {
        Error::new(
            ErrorKind::Stream {
                record: Some(self.accepted),
            },
            message,
        )
    }

    #[cold]
    fn refuse_type(&self) -> Error {
        let kind = ErrorKind::UnknownChunk {
            record: Some(self.accepted),
        };
        Error::new(kind, "the type of a chunk has to be one of those of spec 20 §1")
    }
}

const LOSSLESS: &str = "a chunk has to be lossless JSON: no -0 and no number that is not finite";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Tape;

    fn pack(lines: &[&str]) -> Packer<Vec<u8>> {
        let mut packer = Packer::new();
        for line in lines {
            let mut tape = Tape::new();
            let _ = packer.push_timed(&tape.read_text(line.as_bytes(), 1024).unwrap());
        }
        packer
    }

    #[test]
    fn gaps_that_are_not_safe_start_a_record() {
        let text =
            |time: &str| format!(r#"{{"time":{time},"chunk":{{"type":"text-delta","index":0,"text":"a"}}}}"#);
        let one = pack(&[&text("-1"), &text("9007199254740990")]);
        assert!(matches!(one.records(), [Packed::Run(run)] if run.dt == [9_007_199_254_740_991]));
        assert_eq!(pack(&[&text("-2"), &text("9007199254740990")]).records().len(), 2);
    }

    #[test]
    fn a_refused_chunk_changes_nothing() {
        let packer = pack(&[
            r#"{"time":1,"chunk":{"type":"text-delta","index":0,"text":"a"}}"#,
            r#"{"time":2,"chunk":{"type":"text-delta","index":0,"text":"b","x":[-0]}}"#,
            r#"{"time":3,"chunk":{"type":"text-delta","index":0,"text":"c","x":-0,"x":0}}"#,
        ]);
        assert_eq!(packer.accepted(), 2);
        assert!(
            matches!(packer.records(), [Packed::Run(run)] if run.members == [b"a", b"c"] && run.dt == [2])
        );
    }
}
