//! The block assembler. Spec 20 §6.

use std::collections::HashMap;

use super::block::{BlockIndex, BlockType};
use super::chunk::{ChunkType, RunKind};
use super::pack::{Packed, PackedRun};
use super::readers::{Claim, claim_of, elements, members_of, refuse};
use super::value::{Value, Word};
use crate::error::{Error, ErrorKind, Result};
use crate::json::Kind;
use crate::json::number::double;

#[derive(Clone, Debug)]
struct Closed<K> {
    block: K,
    block_type: BlockType,
    /// Whether the block has a text that is more than white space.
    is_visible: bool,
}

#[derive(Clone, Debug)]
struct Partial<K> {
    index: BlockIndex,
    block_type: BlockType,
    /// Fragments; joined when somebody asks, because they may split a surrogate pair (spec 20 §8.2).
    text: Vec<K>,
    text_is_visible: bool,
    call_id: Option<K>,
    call_name: Option<K>,
    arguments: Vec<K>,
    closed: Option<Closed<K>>,
}

#[derive(Clone, Debug)]
struct Replay<K> {
    envelope: K,
    response: Option<K>,
    entries: Entries<K>,
}

/// The entries per block of a replay envelope.
#[derive(Clone, Debug)]
enum Entries<K> {
    /// The envelope has no `blocks`.
    None,
    /// They are no array, which fits no number of blocks.
    Malformed,
    /// One entry per block.
    PerBlock(Vec<K>),
}

/// State of the assembler; `K` is a kept value.
#[derive(Clone, Debug)]
pub struct Assembler<K> {
    partials: Vec<Partial<K>>,
    places: HashMap<BlockIndex, usize>,
    /// The partial that was used last.
    last: usize,
    usage: Option<K>,
    finish: Option<K>,
    is_cut: bool,
    replay: Option<Replay<K>>,
}

/// An assembled block.
#[derive(Clone, Debug)]
pub enum Block<'a, K> {
    /// The closing block, unchanged.
    Closed(&'a K),
    /// A block of type `text` with these fragments.
    Text(&'a [K]),
    /// A block of type `reasoning` with these fragments.
    Reasoning(&'a [K]),
    /// A block of type `tool-call`.
    ToolCall {
        /// Its id.
        id: CallId<'a, K>,
        /// Its name; empty if None.
        name: Option<&'a K>,
        /// Fragments of its arguments.
        arguments: &'a [K],
    },
}

/// Id of an assembled tool call.
#[derive(Clone, Debug)]
pub enum CallId<'a, K> {
    /// The last id that a delta had.
    Given(&'a K),
    /// `call-<index>` as WTF-8, when no delta came.
    Derived(Vec<u8>),
}

/// The replay state that fits the kept blocks. Spec 20 §6.1.
#[derive(Clone, Debug)]
pub enum ReplayState<'a, K> {
    /// There is none.
    Absent,
    /// The envelope itself.
    Whole(&'a K),
    /// A new envelope.
    Pruned {
        /// Its `response`, if the envelope has one.
        response: Option<&'a K>,
        /// Its `blocks`.
        blocks: Vec<&'a K>,
    },
}

impl<K> Default for Assembler<K> {
    fn default() -> Self {
        Self {
            partials: Vec::new(),
            places: HashMap::new(),
            last: 0,
            usage: None,
            finish: None,
            is_cut: false,
            replay: None,
        }
    }
}

impl<K> Partial<K> {
    fn block_type(&self) -> BlockType {
        self.closed
            .as_ref()
            .map_or(self.block_type, |closed| closed.block_type)
    }

    fn assemble(&self) -> Result<Block<'_, K>> {
        if let Some(closed) = &self.closed {
            return Ok(Block::Closed(&closed.block));
        }
        Ok(match self.block_type {
            BlockType::Text => Block::Text(&self.text),
            BlockType::Reasoning => Block::Reasoning(&self.text),
            BlockType::ToolCall => Block::ToolCall {
                id: self
                    .call_id
                    .as_ref()
                    .map_or_else(|| CallId::Derived(self.index.call_id()), CallId::Given),
                name: self.call_name.as_ref(),
                arguments: &self.arguments,
            },
            BlockType::Other => {
                return Err(refuse(
                    "a block of unknown type is still open, so it cannot be assembled",
                ));
            }
        })
    }

    fn add_fragments<V: Value<Kept = K>>(&mut self, kind: RunKind, fragments: impl Iterator<Item = V>) {
        if kind == RunKind::ToolCall {
            let fragments = fragments.map(|fragment| fragment.keep_text());
            self.arguments.extend(fragments);
            return;
        }
        for fragment in fragments {
            self.text_is_visible = self.text_is_visible || fragment.is_visible_text();
            self.text.push(fragment.keep_text());
        }
    }
}

/// What names a tool call: strings.
struct Call<V> {
    id: V,
    name: Option<V>,
}

impl<V: Value> Call<V> {
    /// The names in a delta or a run, which have the same members; None if it is of no tool call.
    fn of(kind: RunKind, carrier: &V) -> Result<Option<Self>> {
        if kind != RunKind::ToolCall {
            return Ok(None);
        }
        let id = as_text(carrier.member(Word::Id), "id of a tool call has to be a string")?;
        let name = carrier.member(Word::Name);
        if name.as_ref().is_some_and(|name| !name.is_text()) {
            return Err(refuse("name of a tool call has to be a string"));
        }
        Ok(Some(Self { id, name }))
    }
}

/// Where the partial of an index is, or will be.
enum Place {
    Known(usize),
    New(BlockIndex),
}

fn as_text<V: Value>(value: Option<V>, message: &'static str) -> Result<V> {
    value.filter(Value::is_text).ok_or_else(|| refuse(message))
}

#[cold]
fn numbered(error: Error, at: usize) -> Error {
    let record = u64::try_from(at).ok();
    match error.kind() {
        ErrorKind::Stream { .. } => Error::new(ErrorKind::Stream { record }, error.message().to_owned()),
        ErrorKind::UnknownChunk { .. } => {
            Error::new(ErrorKind::UnknownChunk { record }, error.message().to_owned())
        }
        _ => error,
    }
}

impl<K> Assembler<K> {
    /// An assembler that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one chunk. A refused chunk changes nothing.
    ///
    /// # Errors
    /// An unknown-chunk error if the chunk's type is not one of spec 20 §1; a stream error if a part that assembly
    /// needs is malformed.
    pub fn push<V: Value<Kept = K>>(&mut self, chunk: &V) -> Result<()> {
        match ChunkType::of_chunk(chunk) {
            Some(ChunkType::Delta(kind)) => {
                let place = self.find(chunk)?;
                // A block that is closed ignores its deltas, whatever they are.
                if !self.is_closed(&place) {
                    let fragment = as_text(
                        chunk.member(kind.fragment_key()),
                        "the fragment of a delta has to be a string",
                    )?;
                    let call = Call::of(kind, chunk)?;
                    self.add_fragments(kind, place, call, std::iter::once(fragment));
                }
            }
            Some(ChunkType::BlockStart) => {
                let place = self.find(chunk)?;
                self.ensure(place, BlockType::of(chunk.member_word(Word::BlockType)));
            }
            Some(ChunkType::BlockEnd) => self.push_block_end(chunk)?,
            Some(ChunkType::Usage) => self.usage = chunk.member(Word::Usage).map(|usage| usage.keep()),
            Some(ChunkType::Finish) => self.push_finish(chunk),
            None if chunk.kind() == Some(Kind::Null) => return Err(refuse("a chunk has to be an object")),
            None => {
                let message = "the type of a chunk has to be one of those of spec 20 §1";
                return Err(Error::new(ErrorKind::UnknownChunk { record: None }, message));
            }
        }
        Ok(())
    }

    /// Adds the chunks of a stream, each run as one delta. Records are not validated.
    ///
    /// # Errors
    /// As for [`Assembler::push`], and a stream error if a record cannot be read; with the number of the record. The
    /// chunks before it have been added.
    pub fn push_records<V: Value<Kept = K>>(&mut self, stream: &V) -> Result<()> {
        for (at, record) in elements(stream)?.enumerate() {
            self.push_record(&record).map_err(|error| numbered(error, at))?;
        }
        Ok(())
    }

    fn push_record<V: Value<Kept = K>>(&mut self, record: &V) -> Result<()> {
        match claim_of(record)? {
            Claim::Run(kind) => {
                let members = members_of(kind, record)?;
                let place = self.find(record)?;
                if self.is_closed(&place) {
                    return Ok(());
                }
                let call = Call::of(kind, record)?;
                self.add_fragments(kind, place, call, members.elements());
                Ok(())
            }
            Claim::Chunk => match record.member(Word::Chunk) {
                Some(chunk) => self.push(&chunk),
                None => Err(refuse("a chunk has to be an object")),
            },
        }
    }

    /// Adds the chunks of records that a [`Packer`](super::Packer) holds; `handle` gives the value of a kept one.
    ///
    /// # Errors
    /// As for [`Assembler::push_records`].
    pub fn push_packed<V: Value<Kept = K>>(
        &mut self,
        records: &[Packed<K>],
        handle: impl Fn(&K) -> V,
    ) -> Result<()> {
        // Most blocks are closed by a block of their own, and nobody asks for the fragments of those.
        let mut waiting = Vec::new();
        let pushed = self.push_most_of_packed(records, &handle, &mut waiting);
        self.add_waiting(&mut waiting, &handle);
        pushed
    }

    /// Adds the fragments of runs to blocks that are still open.
    fn add_waiting<V: Value<Kept = K>>(
        &mut self,
        waiting: &mut Vec<(usize, &PackedRun<K>)>,
        handle: &impl Fn(&K) -> V,
    ) {
        for (at, run) in waiting.drain(..) {
            if let Some(partial) = self
                .partials
                .get_mut(at)
                .filter(|partial| partial.closed.is_none())
            {
                partial.add_fragments(run.kind, run.members.iter().map(handle));
            }
        }
    }

    /// [`Assembler::push_packed`], but for the fragments of the runs that it leaves in `waiting`, with their partials.
    fn push_most_of_packed<'r, V: Value<Kept = K>>(
        &mut self,
        records: &'r [Packed<K>],
        handle: &impl Fn(&K) -> V,
        waiting: &mut Vec<(usize, &'r PackedRun<K>)>,
    ) -> Result<()> {
        for (at, record) in records.iter().enumerate() {
            match record {
                Packed::Raw { chunk, .. } => {
                    let chunk = handle(chunk);
                    if matches!(ChunkType::of_chunk(&chunk), Some(ChunkType::Delta(_))) {
                        // Its fragment stands behind theirs.
                        self.add_waiting(waiting, handle);
                    }
                    self.push(&chunk).map_err(|error| numbered(error, at))?;
                }
                Packed::Run(run) => {
                    let place = self.place_of(BlockIndex::Number(double(run.index).to_bits()));
                    if self.is_closed(&place) {
                        continue;
                    }
                    let call = run.id.as_ref().map(|id| Call {
                        id: handle(id),
                        name: run.name.as_ref().map(handle),
                    });
                    self.begin_fragments(run.kind, place, call);
                    waiting.push((self.last, run));
                }
            }
        }
        Ok(())
    }

    /// Adds fragments, which are strings; those of a tool call come with its names.
    fn add_fragments<V: Value<Kept = K>>(
        &mut self,
        kind: RunKind,
        place: Place,
        call: Option<Call<V>>,
        fragments: impl Iterator<Item = V>,
    ) {
        if let Some(partial) = self.begin_fragments(kind, place, call) {
            partial.add_fragments(kind, fragments);
        }
    }

    /// The partial that takes fragments; those of a tool call come with its names. Never None.
    fn begin_fragments<V: Value<Kept = K>>(
        &mut self,
        kind: RunKind,
        place: Place,
        call: Option<Call<V>>,
    ) -> Option<&mut Partial<K>> {
        let partial = self.ensure(place, BlockType::of_run(kind))?;
        if let Some(Call { id, name }) = call {
            partial.call_id = Some(id.keep_text());
            if let Some(name) = name.filter(Value::is_nonempty_text) {
                partial.call_name = Some(name.keep_text());
            }
        }
        Some(partial)
    }

    fn push_block_end<V: Value<Kept = K>>(&mut self, chunk: &V) -> Result<()> {
        let block = chunk
            .member(Word::Block)
            .filter(|block| block.kind() != Some(Kind::Null));
        let block = block.ok_or_else(|| refuse("block of a block-end has to be an object"))?;
        let place = self.find(chunk)?;
        // The first close wins (spec 20 §6).
        if self.is_closed(&place) {
            return Ok(());
        }
        let block_type = BlockType::of(block.member_word(Word::Type));
        if let Some(partial) = self.ensure(place, block_type) {
            let is_visible = block
                .member(Word::Text)
                .is_some_and(|text| text.is_visible_text());
            partial.closed = Some(Closed {
                block: block.keep(),
                block_type,
                is_visible,
            });
        }
        Ok(())
    }

    fn push_finish<V: Value<Kept = K>>(&mut self, chunk: &V) {
        let reason = chunk.member(Word::Reason);
        self.is_cut = reason
            .as_ref()
            .is_some_and(|reason| reason.member_word(Word::Kind) == Some(Word::MaxTokens));
        self.finish = reason.map(|reason| reason.keep());
        self.replay = chunk.member(Word::ReplayState).map(|envelope| Replay {
            response: envelope.member(Word::Response).map(|response| response.keep()),
            entries: match envelope.member(Word::Blocks) {
                None => Entries::None,
                Some(blocks) if blocks.is_array() => {
                    Entries::PerBlock(blocks.elements().map(|entry| entry.keep()).collect())
                }
                Some(_) => Entries::Malformed,
            },
            envelope: envelope.keep(),
        });
    }

    /// Finds the partial of a chunk's index.
    #[inline]
    fn find<V: Value<Kept = K>>(&self, carrier: &V) -> Result<Place> {
        Ok(self.place_of(BlockIndex::of(carrier, self.partials.len())?))
    }

    fn place_of(&self, index: BlockIndex) -> Place {
        // Most fragments go to the block of the fragment before them.
        let at = match self.partials.get(self.last) {
            Some(partial) if partial.index == index => Some(self.last),
            _ => self.places.get(&index).copied(),
        };
        match at {
            Some(at) => Place::Known(at),
            None => Place::New(index),
        }
    }

    fn is_closed(&self, place: &Place) -> bool {
        match place {
            Place::Known(at) => self
                .partials
                .get(*at)
                .is_some_and(|partial| partial.closed.is_some()),
            Place::New(_) => false,
        }
    }

    /// The partial at a place, made at the end of the order if it is new. Never None.
    fn ensure(&mut self, place: Place, block_type: BlockType) -> Option<&mut Partial<K>> {
        self.last = match place {
            Place::Known(at) => at,
            Place::New(index) => {
                let at = self.partials.len();
                self.places.insert(index.clone(), at);
                self.partials.push(Partial {
                    index,
                    block_type,
                    text: Vec::new(),
                    text_is_visible: false,
                    call_id: None,
                    call_name: None,
                    arguments: Vec::new(),
                    closed: None,
                });
                at
            }
        };
        self.partials.get_mut(self.last)
    }

    /// Whether the block is removed because the answer was cut off at a limit. Spec 20 §6.1.
    fn is_pruned(&self, partial: &Partial<K>) -> bool {
        self.is_cut && partial.block_type() == BlockType::ToolCall
    }

    /// The kept blocks.
    ///
    /// # Errors
    /// A stream error if a block of unknown type is still open.
    pub fn blocks(&self) -> Result<Vec<Block<'_, K>>> {
        let mut blocks = Vec::new();
        for partial in &self.partials {
            // A pruned block is assembled too, because all have to be closed or known.
            let block = partial.assemble()?;
            if !self.is_pruned(partial) {
                blocks.push(block);
            }
        }
        Ok(blocks)
    }

    /// The visible text and reasoning blocks of an interrupted attempt.
    ///
    /// # Errors
    /// None: blocks of these types can be assembled whether open or closed.
    pub fn interrupted_blocks(&self) -> Result<Vec<Block<'_, K>>> {
        let is_kept = |partial: &&Partial<K>| {
            partial.block_type().has_text()
                && partial
                    .closed
                    .as_ref()
                    .map_or(partial.text_is_visible, |closed| closed.is_visible)
        };
        self.partials
            .iter()
            .filter(is_kept)
            .map(Partial::assemble)
            .collect()
    }

    /// The last usage.
    pub fn usage(&self) -> Option<&K> {
        self.usage.as_ref()
    }

    /// The last finish reason; if None, it is [`DEFAULT_FINISH`].
    pub fn finish(&self) -> Option<&K> {
        self.finish.as_ref()
    }

    /// The replay state that fits the kept blocks.
    ///
    /// # Errors
    /// As for [`Assembler::blocks`].
    pub fn replay_state(&self) -> Result<ReplayState<'_, K>> {
        for partial in &self.partials {
            partial.assemble()?;
        }
        let Some(replay) = &self.replay else {
            return Ok(ReplayState::Absent);
        };
        let entries = match &replay.entries {
            Entries::None => return Ok(ReplayState::Whole(&replay.envelope)),
            Entries::PerBlock(entries) if entries.len() == self.partials.len() => entries,
            Entries::PerBlock(_) | Entries::Malformed => return Ok(ReplayState::Absent),
        };
        if !self.partials.iter().any(|partial| self.is_pruned(partial)) {
            return Ok(ReplayState::Whole(&replay.envelope));
        }
        let kept = self
            .partials
            .iter()
            .zip(entries)
            .filter(|(partial, _)| !self.is_pruned(partial));
        Ok(ReplayState::Pruned {
            response: replay.response.as_ref(),
            blocks: kept.map(|(_, entry)| entry).collect(),
        })
    }
}

/// Key and value of the finish reason of a stream without one. Spec 20 §6.1.
pub const DEFAULT_FINISH: (Word, Word) = (Word::Kind, Word::Stop);
