//! The block assembler of spec 20 §6 over borrowed values, made to be compared with and not to build anything.
//!
//! The rules are those of [`Assembler`](crate::stream::Assembler), which keeps what it is given; here everything stays
//! in the bytes of the row, and fragments of blocks that a `block-end` closes are never looked at.

use std::collections::HashMap;

use super::equality::{is_equal, is_equal_member, text_is};
use super::event::{is_word, object, pick, pick_exactly};
use super::joined::{fragments, is_joined};
use crate::error::{Error, ErrorKind};
use crate::json::number::double;
use crate::json::text::has_visible;
use crate::json::{Kind, Node};
use crate::stream::{BlockIndex, BlockType, Record, RunKind, Value as _, Word};

/// Partials up to which one is found by looking at all.
const FEW: usize = 16;

/// A block that is being assembled.
struct Partial<'a> {
    index: BlockIndex,
    /// What created it; fixed.
    opened: BlockType,
    /// Fragments that show in a block of this type: strings, and arrays of strings.
    pieces: Vec<Node<'a>>,
    call_id: Option<Node<'a>>,
    call_name: Option<Node<'a>>,
    /// The closing block and its type.
    closed: Option<(Node<'a>, BlockType)>,
}

impl Partial<'_> {
    fn block_type(&self) -> BlockType {
        self.closed.map_or(self.opened, |(_, kind)| kind)
    }

    /// Whether the block cannot be assembled.
    fn is_stuck(&self) -> bool {
        self.closed.is_none() && self.opened == BlockType::Other
    }

    /// Whether the assembled block shows in an interrupted answer. Spec 20 §6.1.
    fn is_visible_text(&self) -> bool {
        let is_visible = |text: Node<'_>| text.text().is_some_and(|text| has_visible(&text));
        self.block_type().has_text()
            && match self.closed {
                Some((block, _)) => block.member("text").is_some_and(is_visible),
                // Halves of a split pair are visible like their character.
                None => self
                    .pieces
                    .iter()
                    .flat_map(|&piece| fragments(piece))
                    .any(is_visible),
            }
    }

    /// Whether the assembled block is this value.
    fn is(&self, value: Node<'_>) -> bool {
        if let Some((block, _)) = self.closed {
            return is_equal(block, value);
        }
        match self.opened {
            BlockType::Text | BlockType::Reasoning => {
                let name = if self.opened == BlockType::Text {
                    "text"
                } else {
                    "reasoning"
                };
                pick_exactly(value, ["type", "text"])
                    .is_some_and(|[kind, text]| kind.text_is(name) && is_joined(&self.pieces, text))
            }
            BlockType::ToolCall => {
                let Some([kind, id, name, arguments]) =
                    pick_exactly(value, ["type", "id", "name", "arguments"])
                else {
                    return false;
                };
                let is_named = match self.call_name {
                    Some(own) => is_equal(own, name),
                    None => name.text_is(""),
                };
                let has_id = match self.call_id {
                    Some(own) => is_equal(own, id),
                    None => text_is(id, &self.index.call_id()),
                };
                kind.text_is("tool-call") && is_named && has_id && is_joined(&self.pieces, arguments)
            }
            BlockType::Other => false,
        }
    }
}

/// The state of the assembler.
pub(super) struct Assembly<'a> {
    partials: Vec<Partial<'a>>,
    /// Number of the partial of an index, once there are more than a few.
    places: HashMap<BlockIndex, usize>,
    /// The partial that was used last.
    last: usize,
    usage: Option<Node<'a>>,
    is_cut_off: bool,
    replay: Option<Node<'a>>,
}

/// A block of unknown type is still open, which keeps some results from being told.
pub(super) struct Stuck;

#[cold]
fn refuse(message: &'static str) -> Error {
    Error::new(ErrorKind::Stream { record: None }, message)
}

impl<'a> Assembly<'a> {
    pub(super) fn new() -> Self {
        Self {
            partials: Vec::new(),
            places: HashMap::new(),
            last: 0,
            usage: None,
            is_cut_off: false,
            replay: None,
        }
    }

    /// Adds the chunks of a valid record.
    ///
    /// # Errors
    /// `UnknownChunk`: the type of a chunk is not one of spec 20 §1. `Stream`: it lacks what assembly needs.
    pub(super) fn push(&mut self, record: &Record<Node<'a>>) -> Result<(), Error> {
        match record {
            Record::Run(run) => {
                let index = BlockIndex::Number(double(run.index).to_bits());
                self.add(run.kind, index, run.members, run.id, run.name);
                Ok(())
            }
            Record::Raw { chunk, .. } => self.push_chunk(*chunk),
        }
    }

    fn push_chunk(&mut self, chunk: Node<'a>) -> Result<(), Error> {
        let kind = chunk.member("type");
        let index = BlockIndex::of(&chunk, self.partials.len())?;
        if is_word(kind, "block-end") {
            return self.close(index, chunk.member("block"));
        }
        if is_word(kind, "block-start") {
            self.ensure(index, BlockType::of(chunk.member_word(Word::BlockType)));
        } else if is_word(kind, "usage") {
            self.usage = chunk.member("usage");
        } else if is_word(kind, "finish") {
            let [reason, replay] = pick(chunk, ["reason", "replayState"]);
            self.is_cut_off = is_word(
                object(reason).and_then(|reason| reason.member("kind")),
                "max-tokens",
            );
            self.replay = replay;
        } else if let Some(kind) = delta_kind(kind) {
            return self.push_delta(kind, index, chunk);
        } else {
            let message = "the type of a chunk has to be one of those of spec 20 §1";
            return Err(Error::new(ErrorKind::UnknownChunk { record: None }, message));
        }
        Ok(())
    }

    fn push_delta(&mut self, kind: RunKind, index: BlockIndex, chunk: Node<'a>) -> Result<(), Error> {
        // A block that is closed ignores its deltas, whatever they are.
        if self
            .find(&index)
            .and_then(|at| self.partials.get(at))
            .is_some_and(|partial| partial.closed.is_some())
        {
            return Ok(());
        }
        let is_text = |value: Option<Node<'_>>| value.is_some_and(|value| value.is_text());
        let [id, name] = pick(chunk, ["id", "name"]);
        let Some(fragment) = chunk.member(kind.fragment_key().as_str()).filter(Node::is_text) else {
            return Err(refuse("the fragment of a delta has to be a string"));
        };
        if kind == RunKind::ToolCall && !is_text(id) {
            return Err(refuse("id of a tool call has to be a string"));
        }
        if kind == RunKind::ToolCall && name.is_some() && !is_text(name) {
            return Err(refuse("name of a tool call has to be a string"));
        }
        self.add(kind, index, fragment, id, name);
        Ok(())
    }

    /// Adds fragments: a string, or an array of strings.
    fn add(
        &mut self,
        kind: RunKind,
        index: BlockIndex,
        piece: Node<'a>,
        id: Option<Node<'a>>,
        name: Option<Node<'a>>,
    ) {
        let Some(partial) = self.ensure(index, BlockType::of_run(kind)) else {
            return;
        };
        if partial.closed.is_some() {
            return;
        }
        let is_call = kind == RunKind::ToolCall;
        if is_call {
            partial.call_id = id;
            partial.call_name = name.filter(Node::is_nonempty_text).or(partial.call_name);
        }
        // A fragment of another kind leaves no trace, but text and reasoning are one.
        let shows = if is_call {
            partial.opened == BlockType::ToolCall
        } else {
            partial.opened.has_text()
        };
        if shows {
            partial.pieces.push(piece);
        }
    }

    fn close(&mut self, index: BlockIndex, block: Option<Node<'a>>) -> Result<(), Error> {
        let Some(block) = block.filter(|block| block.kind() != Kind::Null) else {
            return Err(refuse("block of a block-end has to be an object"));
        };
        let kind = BlockType::of(block.member_word(Word::Type));
        if let Some(partial) = self.ensure(index, kind) {
            // The first close wins (spec 20 §6).
            partial.closed.get_or_insert((block, kind));
        }
        Ok(())
    }

    fn find(&self, index: &BlockIndex) -> Option<usize> {
        // Most chunks go to the block of the chunk before them.
        if self
            .partials
            .get(self.last)
            .is_some_and(|partial| partial.index == *index)
        {
            return Some(self.last);
        }
        if self.partials.len() <= FEW {
            return self.partials.iter().position(|partial| partial.index == *index);
        }
        self.places.get(index).copied()
    }

    /// The partial of an index, made at the end of the order if it is new. Never None.
    fn ensure(&mut self, index: BlockIndex, opened: BlockType) -> Option<&mut Partial<'a>> {
        self.last = self.find(&index).unwrap_or(self.partials.len());
        if self.last == self.partials.len() {
            self.insert(index, opened);
        }
        self.partials.get_mut(self.last)
    }

    fn insert(&mut self, index: BlockIndex, opened: BlockType) {
        let partial = Partial {
            index,
            opened,
            pieces: Vec::new(),
            call_id: None,
            call_name: None,
            closed: None,
        };
        self.partials.push(partial);
        if self.partials.len() > FEW {
            let known = self.places.len();
            let rest = self.partials.iter().enumerate().skip(known);
            self.places
                .extend(rest.map(|(at, partial)| (partial.index.clone(), at)));
        }
    }

    fn is_stuck(&self) -> bool {
        self.partials.iter().any(Partial::is_stuck)
    }

    /// Whether the block is removed because the answer was cut off at a limit. Spec 20 §6.1.
    fn is_pruned(&self, partial: &Partial<'a>) -> bool {
        self.is_cut_off && partial.block_type() == BlockType::ToolCall
    }

    /// Whether the content is that of the kept blocks.
    pub(super) fn is_content(&self, content: Option<Node<'_>>) -> Result<bool, Stuck> {
        if self.is_stuck() {
            return Err(Stuck);
        }
        Ok(are(
            self.partials.iter().filter(|partial| !self.is_pruned(partial)),
            content,
        ))
    }

    /// Whether the content is that of an interrupted answer.
    pub(super) fn is_interrupted_content(&self, content: Option<Node<'_>>) -> bool {
        are(
            self.partials.iter().filter(|partial| partial.is_visible_text()),
            content,
        )
    }

    /// Whether the usage is the last one of the stream.
    pub(super) fn is_usage(&self, usage: Option<Node<'_>>) -> bool {
        is_equal_member(self.usage, usage)
    }

    /// Whether the replay state is the one that fits the kept blocks. Spec 20 §6.1.
    pub(super) fn is_replay_state(&self, stored: Option<Node<'_>>) -> Result<bool, Stuck> {
        if self.is_stuck() {
            return Err(Stuck);
        }
        let Some(envelope) = self.replay else {
            return Ok(stored.is_none());
        };
        let Some(entries) = object(Some(envelope)).and_then(|envelope| envelope.member("blocks")) else {
            return Ok(is_equal_member(Some(envelope), stored));
        };
        // The entries stand for all blocks, those that pruning removes included.
        if !entries.is_array() || entries.len() != self.partials.len() {
            return Ok(stored.is_none());
        }
        if !self.partials.iter().any(|partial| self.is_pruned(partial)) {
            return Ok(is_equal_member(Some(envelope), stored));
        }
        let kept = self
            .partials
            .iter()
            .zip(entries.elements())
            .filter(|(partial, _)| !self.is_pruned(partial));
        let mut kept = kept.map(|(_, entry)| entry);
        let response = envelope.member("response");
        let is_known = |key: Node<'_>| key.text_is("blocks") || key.text_is("response");
        let Some(stored) = object(stored).filter(|stored| stored.members().all(|(key, _)| is_known(key)))
        else {
            return Ok(false);
        };
        let [blocks, stored_response] = pick(stored, ["blocks", "response"]);
        let Some(blocks) = blocks.filter(Node::is_array) else {
            return Ok(false);
        };
        let are_equal = blocks
            .elements()
            .all(|entry| kept.next().is_some_and(|own| is_equal(own, entry)));
        Ok(are_equal && kept.next().is_none() && is_equal_member(response, stored_response))
    }
}

fn delta_kind(kind: Option<Node<'_>>) -> Option<RunKind> {
    [RunKind::Text, RunKind::Reasoning, RunKind::ToolCall]
        .into_iter()
        .find(|run| is_word(kind, run.delta_type().as_str()))
}

/// Whether the content has exactly these blocks.
fn are<'p, 'a: 'p>(mut partials: impl Iterator<Item = &'p Partial<'a>>, content: Option<Node<'_>>) -> bool {
    let Some(content) = content.filter(Node::is_array) else {
        return false;
    };
    content
        .elements()
        .all(|block| partials.next().is_some_and(|partial| partial.is(block)))
        && partials.next().is_none()
}
