//! Layer L2: do the events of a log fit each other? Spec 30 §7.
//!
//! Turns, steps, tool calls, retries, titles, commands, compactions and the surface, as one state machine. Events of
//! unknown types are skipped; a tail that is still open is legal. R1 is row admission again and not checked here.
//!
//! A refused event is reported and then believed: its turn, step or id is taken over, so that a check that goes on does
//! not report every later event too. Whoever stops at the first refusal sees no difference.

use std::borrow::Cow;
use std::collections::HashSet;

use super::compaction::Compactions;
use super::event::{
    Event, EventType, array, count, earlier, filled, is_filled, is_word, object, pick, quote, quote_text,
};
use super::findings::Layer;
use super::keep::{Id, Scalar};
use super::lifecycle::{Lifecycle, resolve_header};
use super::tools::HeaderTools;
use crate::error::Error;
use crate::json::Node;

/// L2, event by event.
///
/// Memory: a few words for each surface node, human message, command, dispatch, retry and child.
#[derive(Debug)]
pub(super) struct Relationships {
    session: Scalar,
    has_parent: bool,
    /// Whether the inherited cut is not known before the end: it is then that of the last inherited marker.
    waits_for_cut: bool,
    children: HashSet<Id>,
    /// Messages of the user, rising.
    human: Vec<u64>,
    commands: HashSet<Id>,
    /// Events about commands, rising.
    command_seqs: Vec<u64>,
    lifecycle: Lifecycle,
    compactions: Compactions,
}

impl Relationships {
    /// `session` and `has_parent` are the header's `id` and whether it has `parentSession`.
    pub(super) fn new(session: Scalar, has_parent: bool, is_seeded: bool) -> Self {
        Self {
            session,
            has_parent,
            waits_for_cut: is_seeded,
            children: HashSet::new(),
            human: Vec::new(),
            commands: HashSet::new(),
            command_seqs: Vec::new(),
            lifecycle: Lifecycle::new(),
            compactions: Compactions::new(),
        }
    }

    /// Takes the next event. Its request header, if it is one, is in `headers` already.
    pub(super) fn feed(&mut self, event: &Event<'_, '_>, headers: &HeaderTools, layer: &mut Layer) {
        self.check_alone(event, layer);
        if matches!(
            event.kind,
            EventType::Plain
                | EventType::Unknown
                | EventType::InboxSpliced
                | EventType::DeliveryAccepted
                | EventType::Catalog
                | EventType::ImageOffload
        ) {
            return;
        }
        match event.data {
            Some(data) => self.apply(event, data, headers, layer),
            None => layer.push(event.refuse(
                "L2.data",
                format!("the data of {} is no object", event.kind.name()),
            )),
        }
    }

    /// Reports what only the end of the log shows.
    pub(super) fn finish(&mut self, layer: &mut Layer) {
        self.compactions.take_crossings(layer);
    }

    /// R2 to R4. Spec 30 §7.1.
    fn check_alone(&mut self, event: &Event<'_, '_>, layer: &mut Layer) {
        match event.kind {
            kind if kind.role().is_some() => layer.push_some(check_message(event)),
            EventType::InboxSpliced => layer.push_some(check_messages(event, "inserted")),
            EventType::TitleRequest => layer.push_some(check_messages(event, "messages")),
            EventType::DeliveryAccepted => self.check_delivery(event, layer),
            EventType::Catalog => self.check_catalog(event, layer),
            EventType::EndSeed if self.waits_for_cut && event.is_inherited_marker() => {
                layer.void_uncertain();
                self.children = HashSet::new();
            }
            _ => {}
        }
    }

    /// The lifecycle machine; the order within an event is that of spec 30 §7.2.
    fn apply(&mut self, event: &Event<'_, '_>, data: Node<'_>, headers: &HeaderTools, layer: &mut Layer) {
        let (life, compactions) = (&mut self.lifecycle, &mut self.compactions);
        let mut second = None;
        let first = match event.kind {
            EventType::SystemMessage | EventType::DeveloperMessage => {
                layer.push_some(life.require_step(event));
                second = compactions.fold(event);
                if event.kind == EventType::DeveloperMessage {
                    layer.push_some(second.take());
                    second = resolve_header(event, data, headers);
                }
                None
            }
            EventType::UserMessage => {
                layer.push_some(compactions.fold(event));
                if event
                    .message
                    .is_some_and(|message| is_word(message.source_kind, "user"))
                {
                    self.human.push(event.seq);
                }
                compactions.check_checkpoint(event)
            }
            EventType::AssistantMessage => {
                second = compactions.fold(event);
                std::mem::replace(&mut second, life.advertise_calls(event))
            }
            EventType::ToolResult => {
                second = compactions.fold(event);
                std::mem::replace(&mut second, life.settle_call(event))
            }
            EventType::AssistantAttempt => life.require_step(event),
            EventType::TurnStart => {
                compactions.cross(event);
                life.start_turn(event)
            }
            EventType::TurnEnd => {
                compactions.cross(event);
                life.end_turn(event)
            }
            EventType::StepStart => life.start_step(event),
            EventType::StepEnd => life.end_step(event),
            EventType::ToolCall => life.start_call(event, data),
            EventType::RequestHeader => life.take_header(event, data),
            EventType::RequestContext => life.require_turn(event),
            EventType::DispatchStart => life.start_dispatch(event, data),
            EventType::Dispatch => life.settle_dispatch(event, data),
            EventType::Retry => life.schedule_retry(event, data),
            EventType::RetryStarted => life.start_retry(event, data),
            EventType::Title => self.check_title(event, data),
            EventType::TitleRequest => self.check_title_request(event, data),
            EventType::CommandRun => self.run_command(event, data),
            EventType::CommandDone => self.end_command(event, data),
            EventType::CompactionStart => compactions.start(event, data, life.turn),
            EventType::CompactionSummary => compactions.summarise(event, data, life.turn),
            EventType::CompactionEnd => {
                layer.push_some(compactions.end(event, data, life.turn));
                compactions.take_crossings(layer);
                None
            }
            EventType::CompactionPrune => compactions.check_span(event, data),
            EventType::EndSeed => {
                compactions.reseed();
                None
            }
            EventType::InboxSpliced
            | EventType::DeliveryAccepted
            | EventType::Catalog
            | EventType::ImageOffload
            | EventType::Plain
            | EventType::Unknown => None,
        };
        layer.push_some(first);
        layer.push_some(second);
    }

    fn check_delivery(&mut self, event: &Event<'_, '_>, layer: &mut Layer) {
        let mut rule = |text| layer.push(event.refuse("R3", text));
        let Some(data) = event.data else {
            return rule("the data of a delivery marker is no object");
        };
        let [version, through, session] = pick(data, ["sessionFormatVersion", "throughSeq", "sessionId"]);
        match version.map(|version| version.count()) {
            Some(None) => return rule("sessionFormatVersion is no count"),
            Some(Some(4)) => {}
            _ => return,
        }
        if earlier(through, event.seq).is_none() {
            return rule("throughSeq of a delivery marker must name an earlier event");
        }
        if !is_filled(session) {
            return rule("a delivery marker must have a sessionId");
        }
        if self.session.is(session) {
            return;
        }
        let fault = event.refuse("R3", "a delivery marker names another session");
        // Inherited markers may name the parent.
        if self.waits_for_cut && self.has_parent {
            layer.push_uncertain(fault);
        } else {
            layer.push(fault);
        }
    }

    fn check_catalog(&mut self, event: &Event<'_, '_>, layer: &mut Layer) {
        let fault = match check_catalog_entry(event) {
            Err(text) => Some(event.refuse("R4", text)),
            Ok(child) if self.children.insert(Id::of(&child)) => None,
            Ok(child) => Some(event.refuse(
                "R4",
                format!("the catalog names child {} twice", quote_text(&child)),
            )),
        };
        match fault {
            Some(fault) if self.waits_for_cut => layer.push_uncertain(fault),
            fault => layer.push_some(fault),
        }
    }

    fn check_title(&self, event: &Event<'_, '_>, data: Node<'_>) -> Option<Error> {
        let rule = |text| Some(event.refuse("L2.title", text));
        let [seqs, source] = pick(data, ["messageSeqs", "source"]);
        let (Some(seqs), Some(source)) = (array(seqs), object(source)) else {
            return rule("session/title needs messageSeqs and a source");
        };
        if seqs.is_empty() != is_word(source.member("kind"), "user") {
            return rule("messageSeqs of session/title must be empty exactly for a title by the user");
        }
        self.check_cited(event, seqs)
    }

    fn check_title_request(&self, event: &Event<'_, '_>, data: Node<'_>) -> Option<Error> {
        let rule = |text| Some(event.refuse("L2.title", text));
        let [seqs, messages] = pick(data, ["messageSeqs", "messages"]);
        let Some(seqs) = array(seqs).filter(|seqs| !seqs.is_empty()) else {
            return rule("session/title-llm-request needs messageSeqs");
        };
        let fault = self.check_cited(event, seqs);
        if fault.is_none() && !is_title_prompt(messages) {
            return rule("session/title-llm-request must have one user message with one text block");
        }
        fault
    }

    /// Checks the messages that a title cites.
    fn check_cited(&self, event: &Event<'_, '_>, seqs: Node<'_>) -> Option<Error> {
        let rule = |text: Cow<'static, str>| Some(event.refuse("L2.title", text));
        let mut last = None;
        let mut is_rising = true;
        for cited in seqs.elements() {
            let Some(cited) = earlier(Some(cited), event.seq) else {
                return rule("messageSeqs must name earlier events".into());
            };
            if self.human.binary_search(&cited).is_err() {
                return rule(format!("event {cited} is no user/message by the user").into());
            }
            is_rising &= last.is_none_or(|last| last < cited);
            last = Some(cited);
        }
        // A list that rises has no repetition.
        let mut seen = HashSet::new();
        if is_rising || seqs.elements().all(|cited| seen.insert(count(Some(cited)))) {
            return None;
        }
        rule("messageSeqs must not repeat a seq".into())
    }

    fn run_command(&mut self, event: &Event<'_, '_>, data: Node<'_>) -> Option<Error> {
        self.command_seqs.push(event.seq);
        let command = data.member("commandId");
        let Some(text) = filled(command) else {
            return Some(event.refuse("L2.command", "command/run has no commandId"));
        };
        if self.commands.insert(Id::of(&text)) {
            return None;
        }
        Some(event.refuse("L2.command", format!("command {} runs twice", quote(command))))
    }

    fn end_command(&mut self, event: &Event<'_, '_>, data: Node<'_>) -> Option<Error> {
        let rule = |text| Some(event.refuse("L2.command", text));
        self.command_seqs.push(event.seq);
        let [command, source, kind] = pick(data, ["commandId", "sourceEventSeq", "kind"]);
        if !filled(command).is_some_and(|command| self.commands.contains(&Id::of(&command))) {
            return rule("command/done has no earlier command/run");
        }
        source?;
        let Some(source) = earlier(source, event.seq).filter(|_| is_word(kind, "success")) else {
            return rule("sourceEventSeq needs an earlier event and kind 'success'");
        };
        if self.command_seqs.binary_search(&source).is_ok() {
            return rule("sourceEventSeq must not name a command event");
        }
        None
    }
}

/// R2 for a surface type.
fn check_message(event: &Event<'_, '_>) -> Option<Error> {
    if event.noted.is_some() {
        return None;
    }
    event.data?;
    let Some(message) = event.message else {
        return Some(event.refuse("R2", format!("{} has no message object", event.kind.name())));
    };
    check_source(event, message.source_kind)
}

/// R2 for the messages of a list.
fn check_messages(event: &Event<'_, '_>, name: &'static str) -> Option<Error> {
    let Some(messages) = array(event.data?.member(name)) else {
        return Some(event.refuse("R2", format!("{name} is no array of messages")));
    };
    messages.elements().find_map(|message| {
        if !message.is_object() {
            return Some(event.refuse("R2", format!("{name} holds something that is no message")));
        }
        check_source(
            event,
            object(message.member("source")).and_then(|source| source.member("kind")),
        )
    })
}

fn check_source(event: &Event<'_, '_>, kind: Option<Node<'_>>) -> Option<Error> {
    if is_filled(kind) && !is_word(kind, "plugin") {
        return None;
    }
    Some(event.refuse("R2", "a message must have a source with its producer's kind"))
}

/// R4 for one event: the child, or what is wrong.
fn check_catalog_entry<'a>(event: &Event<'_, 'a>) -> Result<Cow<'a, [u8]>, Cow<'static, str>> {
    let data = event.data.ok_or("the data of subagent/catalog is no object")?;
    let [version, mode, child, created, label] =
        pick(data, ["version", "mode", "childId", "childCreatedAt", "label"]);
    let version = version
        .and_then(|version| version.safe_integer())
        .filter(|version| (0..=2).contains(version));
    let version = version.ok_or("subagent/catalog must have version 0, 1 or 2")?;
    let child = child
        .and_then(|child| child.text())
        .filter(|_| count(created).is_some());
    let child = child.ok_or("subagent/catalog needs childId and childCreatedAt")?;
    let mode = ["continuable", "one-shot", "external", "unknown"]
        .into_iter()
        .find(|name| is_word(mode, name));
    let mode = mode.ok_or("subagent/catalog has an unknown mode")?;
    if (mode == "external") != (version == 2) || (mode == "unknown" && version == 0) {
        return Err(format!("mode '{mode}' of subagent/catalog does not fit its version").into());
    }
    match label {
        None if mode == "continuable" => Err("a continuable child needs a label".into()),
        Some(label) if !label.is_text() => Err("the label of subagent/catalog is no string".into()),
        _ => Ok(child),
    }
}

/// Whether the messages of a title request ask one question.
fn is_title_prompt(messages: Option<Node<'_>>) -> bool {
    let Some(message) = only_object(array(messages)) else {
        return false;
    };
    let [role, source, content] = pick(message, ["role", "source", "content"]);
    is_word(role, "user")
        && is_word(
            object(source).and_then(|source| source.member("kind")),
            "dsh-session-title-llm",
        )
        && only_object(array(content)).is_some_and(|block| is_word(block.member("type"), "text"))
}

/// The only element of an array, if it is an object.
fn only_object(values: Option<Node<'_>>) -> Option<Node<'_>> {
    let mut elements = values?.elements();
    let first = elements.next().filter(Node::is_object);
    first.filter(|_| elements.next().is_none())
}
