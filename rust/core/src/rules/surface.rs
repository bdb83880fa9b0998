//! The fold of the surface, as far as it can fail. Spec 30 §5.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::equality::{Digest, Hashers};
use super::event::{Event, EventType, array, count, earlier, filled, is_number, is_word, pick_exactly};
use super::lifecycle::unresolved;
use super::nodes::{NodeList, Range};
use super::sources::Sources;
use super::tools::HeaderTools;
use super::vocabulary::check_metadata;
use crate::error::Error;
use crate::json::{Kind, Node};

type Folded = Result<(), Error>;

/// The surface of a log, folded event by event, without messages.
///
/// Memory: 48 bytes for each current node, one byte for each image on the surface.
#[derive(Debug)]
pub(super) struct Surface {
    /// Of a current tool result the digest of everything but the content.
    nodes: NodeList<Option<Digest>>,
    head_is_system: bool,
    hashers: Hashers,
    /// Current user messages and tool results with images: which are offloaded.
    images: HashMap<u64, Box<[bool]>>,
}

impl Surface {
    pub(super) fn new() -> Self {
        Self {
            nodes: NodeList::new(),
            head_is_system: false,
            hashers: Hashers::new(),
            images: HashMap::new(),
        }
    }

    /// Folds the next event.
    ///
    /// # Errors
    /// `Row`: the event breaks V3 or a rule whose name begins with `L4.`. Later events cannot be folded then.
    pub(super) fn feed(&mut self, event: &Event<'_, '_>, headers: &HeaderTools) -> Folded {
        if !is_number(event.row.seq, event.seq) {
            return Err(event.refuse("L4.seq", "the event's seq is not its position in the log"));
        }
        if let Some(fault) = check_metadata(event) {
            return Err(fault);
        }
        if event.kind == EventType::ImageOffload {
            return self.project(event);
        }
        if event.kind.role().is_none() {
            return Ok(());
        }
        if event.kind == EventType::DeveloperMessage {
            resolve_header(event, headers)?;
        }
        let is_result = event.kind == EventType::ToolResult;
        let digest = match event.noted.and_then(|noted| Some((noted, noted.result()?))) {
            Some((noted, result)) => Some(self.hashers.digest_noted(noted, &result)),
            None => event
                .row
                .data
                .filter(|_| is_result)
                .map(|data| self.hashers.digest_without_content(data)),
        };
        if event.is_append() {
            if self.nodes.is_empty() {
                self.head_is_system = event.kind == EventType::SystemMessage;
            }
            self.nodes.append(event.seq, digest);
        } else {
            self.replace(event, digest)?;
        }
        self.remember_images(event);
        Ok(())
    }

    fn replace(&mut self, event: &Event<'_, '_>, digest: Option<Digest>) -> Folded {
        let range = self.range(event)?;
        if let Some(seq) = Sources::of(event.row.source_event_seqs).missing(self.nodes.seqs(range)) {
            let text = format!("sourceEventSeqs must name the removed event {seq}");
            return Err(event.refuse("L4.replace-sources", text));
        }
        if event.kind == EventType::ToolResult {
            let Some(Some(old)) = self.nodes.single(range) else {
                let text = "a tool/result may replace only one current tool/result";
                return Err(event.refuse("L4.rewrite", text));
            };
            if Some(*old) != digest {
                let text = "a tool/result that replaces another may change only its content";
                return Err(event.refuse("L4.rewrite", text));
            }
        }
        let is_at_head = self.nodes.is_at_start(range);
        let is_system = event.kind == EventType::SystemMessage;
        if is_at_head && self.head_is_system && !(is_system && range.is_single()) {
            let text = "the system prompt at the head of the surface may be replaced only by a system/message over \
                        exactly that event";
            return Err(event.refuse("L4.head", text));
        }
        if !self.images.is_empty() {
            for seq in self.nodes.seqs(range) {
                self.images.remove(&seq);
            }
        }
        self.nodes.replace(range, event.seq, digest);
        if is_at_head {
            self.head_is_system = is_system;
        }
        Ok(())
    }

    fn range(&self, event: &Event<'_, '_>) -> Result<Range, Error> {
        let ends = event
            .row
            .surface_op
            .and_then(|op| pick_exactly(op, ["op", "startSeq", "endSeq"]));
        // V3 has seen to it that both ends are counts.
        let [_, start, end] = ends.map_or([None; 3], |ends| ends.map(|end| end.count()));
        let (start, end) = (start.unwrap_or_default(), end.unwrap_or_default());
        self.nodes.range(start, end).ok_or_else(|| {
            let text = format!("events {start} to {end} are not a range of the current surface");
            event.refuse("L4.replace-range", text)
        })
    }

    fn remember_images(&mut self, event: &Event<'_, '_>) {
        if !matches!(event.kind, EventType::UserMessage | EventType::ToolResult) {
            return;
        }
        // Nor has a row with notes any.
        let Some(message) = event.message.filter(|_| event.noted.is_none()) else {
            return;
        };
        let images = message.blocks().filter(|(_, kind)| is_word(*kind, "image"));
        let flags: Vec<bool> = images
            .map(|(block, _)| block.member("offloaded").is_some_and(|value| value.is_true()))
            .collect();
        if !flags.is_empty() {
            self.images.insert(event.seq, flags.into());
        }
    }

    /// Applies an `image/offload`. Spec 30 §5.3.
    fn project(&mut self, event: &Event<'_, '_>) -> Folded {
        let rule = |text: Cow<'static, str>| Err(event.refuse("L4.offload", text));
        let targets = event.data.and_then(|data| pick_exactly(data, ["targets"]));
        let Some(targets) = array(targets.map(|[targets]| targets)).filter(|targets| !targets.is_empty())
        else {
            return rule("image/offload needs exactly a non-empty targets array".into());
        };
        let mut seen = HashSet::new();
        for target in targets.elements() {
            let (node, indexes) = read_target(event, target)?;
            if !seen.insert(node) {
                return rule(format!("image/offload names event {node} twice").into());
            }
            if !self.nodes.contains(node) {
                return rule(format!("event {node} is not on the current surface").into());
            }
            let flags = self.images.get(&node).map(AsRef::as_ref).unwrap_or_default();
            for index in indexes.elements().filter_map(|index| index.count()) {
                match usize::try_from(index).ok().and_then(|at| flags.get(at)) {
                    None => {
                        let text = format!(
                            "event {node} has no image {index}, or is no user/message or tool/result"
                        );
                        return rule(text.into());
                    }
                    Some(true) => return rule(format!("image {index} of event {node} is offloaded").into()),
                    Some(false) => {}
                }
            }
        }
        // All targets are judged before any takes effect.
        for target in targets.elements() {
            let (node, indexes) = read_target(event, target)?;
            let Some(flags) = self.images.get_mut(&node) else {
                continue;
            };
            for index in indexes
                .elements()
                .filter_map(|index| usize::try_from(index.count()?).ok())
            {
                if let Some(flag) = flags.get_mut(index) {
                    *flag = true;
                }
            }
        }
        Ok(())
    }
}

/// The seq and the indexes of a target.
fn read_target<'a>(event: &Event<'_, '_>, target: Node<'a>) -> Result<(u64, Node<'a>), Error> {
    let rule = |text| Err(event.refuse("L4.offload", text));
    let Some([seq, indexes]) = pick_exactly(target, ["seq", "imageIndexes"]) else {
        return rule("each target must have exactly seq and imageIndexes");
    };
    let (Some(seq), true) = (seq.count(), indexes.is_array() && !indexes.is_empty()) else {
        return rule("each target must have a seq and some imageIndexes");
    };
    let mut last = None;
    for index in indexes.elements() {
        let index = count(Some(index)).filter(|&index| last.is_none_or(|last| last < index));
        if index.is_none() {
            return rule("imageIndexes must be strictly increasing counts");
        }
        last = index;
    }
    Ok((seq, indexes))
}

/// Developer header resolution. Spec 30 §5.4.
fn resolve_header(event: &Event<'_, '_>, headers: &HeaderTools) -> Folded {
    let rule = |text: Cow<'static, str>| Err(event.refuse("L4.developer-header", text));
    let Some(target) = event.member("headerSeq") else {
        return Ok(());
    };
    let target = earlier(Some(target), event.seq);
    let Some((target, table)) = target.and_then(|target| Some((target, headers.get(target)?))) else {
        return rule("headerSeq must name an earlier request/header".into());
    };
    let content = event.message.and_then(|message| array(message.content));
    let is_null = |value: Node<'_>| value.kind() == Kind::Null;
    let mut additions = event
        .message
        .into_iter()
        .flat_map(|message| message.additions())
        .peekable();
    if content.is_none_or(|content| content.elements().any(is_null))
        || (additions.peek().is_some() && table.has_null)
    {
        return rule("null among the content blocks or the header's tools".into());
    }
    match additions.find(|name| !filled(*name).is_some_and(|name| table.has_sound(&name))) {
        Some(name) => rule(unresolved(name, target).into()),
        None => Ok(()),
    }
}
