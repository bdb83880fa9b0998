//! Turns, steps, tool calls, dispatches and retries: the part of L2 that counts and pairs. Spec 30 §7.2, §7.4.
//!
//! Every method takes one event, returns its fault, if any, and takes the event's word for what is open afterwards.

use std::collections::{HashMap, HashSet};

use sha2::{Digest as _, Sha256};

use super::equality::{Digest, Hashers, text_is};
use super::event::{
    Event, Message, array, count, earlier, filled, is_number, is_word, object, pick, quote, quote_text,
};
use super::keep::{Id, Scalar};
use super::tools::HeaderTools;
use crate::error::Error;
use crate::json::Node;
use crate::json::text::decode_string;
use crate::row::canonical_number;

/// A call that has no result yet.
#[derive(Debug)]
struct PendingCall {
    /// Orders the calls as they were advertised.
    order: u64,
    name: Scalar,
    arguments: Arguments,
    is_started: bool,
}

/// Arguments of a pending call. They are often long and nearly always spelled alike where they return.
#[derive(Debug)]
enum Arguments {
    /// A string as it stands in the row, quotes included.
    Raw(Box<[u8]>),
    /// A string.
    Digest(Digest),
    /// Anything else.
    Scalar(Scalar),
}

/// Bytes of arguments that are kept as they are; of more, digests are.
const KEPT_ARGUMENT_BYTES: usize = 4 << 20;

/// A dispatch; `start` is None once it is settled.
#[derive(Debug)]
struct Dispatch {
    root: Id,
    start: Option<[Option<Digest>; 4]>,
}

/// Members that a dispatch and its start share.
const DISPATCH_MEMBERS: [&str; 4] = ["rootCallId", "parentCallId", "name", "arguments"];

/// What is open and pending, with one method for each kind of event.
#[derive(Debug)]
pub(super) struct Lifecycle {
    /// The open turn.
    pub(super) turn: Option<u64>,
    step: Option<u64>,
    next_turn: u64,
    next_step: u64,
    provider: Scalar,
    tools: HashMap<Id, PendingCall>,
    advertised: u64,
    /// Bytes of all [`Arguments::Raw`] at most.
    argument_bytes: usize,
    hashers: Hashers,
    dispatches: HashMap<Id, Dispatch>,
    /// Last retry of the open turn by turn, step, provider and policy: its id and number.
    chains: HashMap<[Scalar; 4], (Id, u64)>,
    retry_ids: HashSet<Id>,
    /// Turn and step of the first retry with an id and number.
    retries: HashMap<(Id, u64), [Scalar; 2]>,
    started: HashSet<(Id, u64)>,
}

impl Lifecycle {
    pub(super) fn new() -> Self {
        Self {
            turn: None,
            step: None,
            next_turn: 1,
            next_step: 1,
            provider: Scalar::Absent,
            tools: HashMap::new(),
            advertised: 0,
            argument_bytes: 0,
            hashers: Hashers::new(),
            dispatches: HashMap::new(),
            chains: HashMap::new(),
            retry_ids: HashSet::new(),
            retries: HashMap::new(),
            started: HashSet::new(),
        }
    }

    fn is_in_step(&self, event: &Event<'_, '_>) -> bool {
        self.turn.is_some_and(|turn| is_number(event.turn, turn))
            && self.step.is_some_and(|step| is_number(event.step, step))
    }

    /// Requires that turn and step of the event are open.
    #[inline]
    pub(super) fn require_step(&mut self, event: &Event<'_, '_>) -> Option<Error> {
        if self.is_in_step(event) {
            None
        } else {
            Some(self.outside_step(event))
        }
    }

    #[cold]
    fn outside_step(&mut self, event: &Event<'_, '_>) -> Error {
        let place = match (self.turn, self.step) {
            (_, None) => "no step is open".to_owned(),
            (None, Some(step)) => format!("turn None, step {step} is open"),
            (Some(turn), Some(step)) => format!("turn {turn}, step {step} is open"),
        };
        if self.turn.is_some() && self.step.is_none() {
            self.step = count(event.step);
        }
        event.refuse(
            "L2.in-step",
            format!("{} is outside its step: {place}", event.kind.name()),
        )
    }

    /// Requires that a turn is open.
    #[inline]
    pub(super) fn require_turn(&self, event: &Event<'_, '_>) -> Option<Error> {
        let outside = || event.refuse("L2.in-turn", format!("{} is outside any turn", event.kind.name()));
        if self.turn.is_some() {
            None
        } else {
            Some(outside())
        }
    }

    /// Opens a turn.
    pub(super) fn start_turn(&mut self, event: &Event<'_, '_>) -> Option<Error> {
        let expected = self.next_turn;
        let open = self.turn.replace(count(event.turn).unwrap_or(expected));
        self.step = None;
        self.next_step = 1;
        self.take_pending();
        // Turn numbers never repeat, so no later retry can continue these chains.
        if !self.chains.is_empty() {
            self.chains = HashMap::new();
        }
        if let Some(turn) = open {
            return Some(event.refuse("L2.turn-start", format!("turn/start while turn {turn} is open")));
        }
        if !is_number(event.turn, expected) {
            return Some(event.refuse("L2.turn-start", format!("turn/start must have turn {expected}")));
        }
        None
    }

    /// Closes the turn.
    pub(super) fn end_turn(&mut self, event: &Event<'_, '_>) -> Option<Error> {
        let (turn, step, pending) = (self.turn.take(), self.step.take(), self.take_pending());
        let Some(turn) = turn.filter(|&turn| is_number(event.turn, turn)) else {
            self.next_turn = count(event.turn).or(turn).unwrap_or(0) + 1;
            let place = turn.map_or_else(
                || "no turn is open".to_owned(),
                |turn| format!("turn {turn} is open"),
            );
            return Some(event.refuse("L2.turn-end", format!("turn/end does not fit: {place}")));
        };
        self.next_turn = turn + 1;
        if let Some(step) = step {
            return Some(event.refuse("L2.turn-end", format!("turn/end while step {step} is open")));
        }
        pending.map(|id| {
            let text = format!(
                "turn/end leaves tool call {} without a result",
                quote_text(id.head())
            );
            event.refuse("L2.pending-tools", text)
        })
    }

    /// Clears the pending calls and returns the first of them.
    fn take_pending(&mut self) -> Option<Id> {
        if self.tools.is_empty() {
            return None;
        }
        self.argument_bytes = 0;
        // Emptied maps keep their size, which one message can make large.
        std::mem::take(&mut self.tools)
            .into_iter()
            .min_by_key(|(_, call)| call.order)
            .map(|(id, _)| id)
    }

    /// Opens a step.
    pub(super) fn start_step(&mut self, event: &Event<'_, '_>) -> Option<Error> {
        let rule = |text: String| Some(event.refuse("L2.step-start", text));
        let (turn, expected) = (self.turn, self.next_step);
        self.turn = count(event.turn).or(turn);
        let open = self.step.replace(count(event.step).unwrap_or(expected));
        let Some(turn) = turn else {
            return rule("step/start outside any turn".to_owned());
        };
        if let Some(step) = open {
            return rule(format!("step/start while step {step} is open"));
        }
        if !(is_number(event.turn, turn) && is_number(event.step, expected)) {
            return rule(format!("step/start must have turn {turn}, step {expected}"));
        }
        None
    }

    /// Closes the step.
    pub(super) fn end_step(&mut self, event: &Event<'_, '_>) -> Option<Error> {
        let is_in_step = self.is_in_step(event);
        let pending = self.take_pending();
        let step = self
            .step
            .take()
            .or_else(|| count(event.step))
            .unwrap_or(self.next_step);
        self.next_step = step + 1;
        if !is_in_step {
            return Some(event.refuse("L2.step-end", "step/end does not fit the open turn and step"));
        }
        pending.map(|id| {
            let text = format!(
                "step/end leaves tool call {} without a result",
                quote_text(id.head())
            );
            event.refuse("L2.pending-tools", text)
        })
    }

    /// Takes the tool calls of an `assistant/message`.
    pub(super) fn advertise_calls(&mut self, event: &Event<'_, '_>) -> Option<Error> {
        let mut fault = self.require_step(event);
        if let Some(noted) = event.noted {
            for call in noted.calls() {
                let found = self.advertise(event, call.map(Some));
                fault = fault.or(found);
            }
            return fault;
        }
        let refuse = |text| Some(event.refuse("L2.assistant", text));
        let Some(content) = event.message.and_then(|message| array(message.content)) else {
            return fault.or_else(|| refuse("assistant/message has no content array"));
        };
        for block in content.elements() {
            if !block.is_object() {
                fault = fault.or_else(|| refuse("a content block is no object"));
                continue;
            }
            let [kind, call @ ..] = pick(block, ["type", "id", "name", "arguments"]);
            if is_word(kind, "tool-call") {
                let found = self.advertise(event, call);
                fault = fault.or(found);
            }
        }
        fault
    }

    /// Takes a tool call of an `assistant/message`: its id, name and arguments.
    fn advertise(
        &mut self,
        event: &Event<'_, '_>,
        [id, name, arguments]: [Option<Node<'_>>; 3],
    ) -> Option<Error> {
        let Some(text) = filled(id) else {
            return Some(event.refuse("L2.tool-call", "a tool-call block has no id"));
        };
        self.advertised += 1;
        let mut call = PendingCall {
            order: self.advertised,
            name: Scalar::of(name),
            arguments: keep_arguments(arguments, &mut self.argument_bytes, &self.hashers),
            is_started: false,
        };
        let place = self.tools.entry(Id::of(&text));
        let mut fault = None;
        if let std::collections::hash_map::Entry::Occupied(known) = &place {
            call.order = known.get().order;
            let text = format!(
                "tool call {} is advertised again before its result",
                quote_text(&text)
            );
            fault = Some(event.refuse("L2.tool-call", text));
        }
        place.insert_entry(call);
        fault
    }

    /// Takes a `tool/call`.
    pub(super) fn start_call(&mut self, event: &Event<'_, '_>, data: Node<'_>) -> Option<Error> {
        if let Some(fault) = self.require_step(event) {
            return Some(fault);
        }
        let rule = |text: String| Some(event.refuse("L2.tool-call", text));
        let [id, name, arguments] = match event.noted.and_then(|noted| noted.calls().next()) {
            Some(call) => call.map(Some),
            None => pick(data, ["callId", "name", "arguments"]),
        };
        let Some(text) = filled(id) else {
            return rule("tool/call has no callId".to_owned());
        };
        let Some(call) = self.tools.get_mut(&Id::of(&text)) else {
            return rule(format!("tool call {} is not advertised", quote_text(&text)));
        };
        if std::mem::replace(&mut call.is_started, true) {
            return rule(format!("tool call {} is started already", quote_text(&text)));
        }
        if !(call.name.is(name) && call.arguments.are(arguments, &self.hashers)) {
            return rule(format!(
                "tool/call {} has another name or arguments than its message",
                quote_text(&text)
            ));
        }
        None
    }

    /// Takes a `tool/result`.
    pub(super) fn settle_call(&mut self, event: &Event<'_, '_>) -> Option<Error> {
        if !event.is_append() {
            return self.require_turn(event);
        }
        if let Some(fault) = self.require_step(event) {
            return Some(fault);
        }
        let id = event.message.and_then(|message| filled(message.tool_call_id));
        let (Some(message), Some(text)) = (event.message, id) else {
            return Some(event.refuse("L2.tool-result", "tool/result has no toolCallId"));
        };
        let Some(call) = self.tools.remove(&Id::of(&text)) else {
            let text = format!("tool/result answers {}, which is not pending", quote_text(&text));
            return Some(event.refuse("L2.tool-result", text));
        };
        if !call.is_started && !is_not_started_repair(event, &message, &text) {
            let text = format!(
                "tool/result answers {}, which never started, and is not the exact repair for that",
                quote_text(&text)
            );
            return Some(event.refuse("L2.not-started", text));
        }
        None
    }

    /// Takes a `request/header`.
    pub(super) fn take_header(&mut self, event: &Event<'_, '_>, data: Node<'_>) -> Option<Error> {
        let config = object(object(data.member("header")).and_then(|header| header.member("config")));
        if let Some(config) = config {
            self.provider = Scalar::of(config.member("provider"));
        }
        let fault = self.require_turn(event);
        if fault.is_none() && config.is_none() {
            return Some(event.refuse("L2.request-header", "request/header has no header.config object"));
        }
        fault
    }

    /// Takes a `tool/ptc-dispatch-start`.
    pub(super) fn start_dispatch(&mut self, event: &Event<'_, '_>, data: Node<'_>) -> Option<Error> {
        let fault = self.require_turn(event);
        let [sub, root, parent] = pick(data, ["subCallId", "rootCallId", "parentCallId"]).map(filled);
        let (Some(sub), Some(root), Some(parent)) = (sub, root, parent) else {
            return fault
                .or_else(|| Some(event.refuse("L2.dispatch", "a dispatch needs its three call ids")));
        };
        let is_linked = self.is_parent(&parent, &root);
        let start = self.digest_members(data);
        let dispatch = Dispatch {
            root: Id::of(&root),
            start: Some(start),
        };
        let is_repeated = self.dispatches.insert(Id::of(&sub), dispatch).is_some();
        if fault.is_some() {
            return fault;
        }
        if is_repeated {
            return Some(event.refuse(
                "L2.dispatch",
                format!("dispatch {} starts twice", quote_text(&sub)),
            ));
        }
        if is_linked {
            None
        } else {
            Some(foreign_parent(event))
        }
    }

    /// Takes a `tool/ptc-dispatch`.
    pub(super) fn settle_dispatch(&mut self, event: &Event<'_, '_>, data: Node<'_>) -> Option<Error> {
        let fault = self.require_turn(event);
        let [sub, root, parent] = pick(data, ["subCallId", "rootCallId", "parentCallId"]).map(filled);
        let (Some(sub), Some(root), Some(parent)) = (sub, root, parent) else {
            return fault
                .or_else(|| Some(event.refuse("L2.dispatch", "a dispatch needs its three call ids")));
        };
        let members = self.digest_members(data);
        let is_linked = self.is_parent(&parent, &root);
        let known = self.dispatches.get_mut(&Id::of(&sub));
        let what = if known.is_some() {
            "is settled already"
        } else {
            "has not started"
        };
        let Some(start) = known.and_then(|known| known.start.take()) else {
            return fault.or_else(|| {
                Some(event.refuse("L2.dispatch", format!("dispatch {} {what}", quote_text(&sub))))
            });
        };
        if fault.is_some() {
            return fault;
        }
        if !is_linked {
            return Some(foreign_parent(event));
        }
        let differs = start.iter().zip(&members).position(|(left, right)| left != right);
        differs.and_then(|at| DISPATCH_MEMBERS.get(at)).map(|name| {
            let text = format!("dispatch {} has another {name} than its start", quote_text(&sub));
            event.refuse("L2.dispatch", text)
        })
    }

    fn digest_members(&mut self, data: Node<'_>) -> [Option<Digest>; 4] {
        pick(data, DISPATCH_MEMBERS).map(|member| member.map(|value| self.hashers.digest_value(value)))
    }

    fn is_parent(&self, parent: &[u8], root: &[u8]) -> bool {
        parent == root
            || self
                .dispatches
                .get(&Id::of(parent))
                .is_some_and(|known| known.root == Id::of(root))
    }

    /// Takes an `llm/retry`.
    pub(super) fn schedule_retry(&mut self, event: &Event<'_, '_>, data: Node<'_>) -> Option<Error> {
        let rule = |text| Some(event.refuse("L2.retry", text));
        let [id, retry, provider, policy] = pick(data, ["retryId", "retry", "provider", "policyKey"]);
        let place = [event.turn, event.step].map(|value| Scalar::of(value).or_null());
        let [turn, step] = place.clone();
        let key = [turn, step, Scalar::of(provider), Scalar::of(policy)];
        // An object or array equals nothing, so such a chain has one member.
        let can_continue = !key.contains(&Scalar::Other);
        let previous = if can_continue {
            self.chains.get(&key).cloned()
        } else {
            None
        };
        let id = filled(id).map(|text| Id::of(&text));
        let retry = count(retry);
        let is_known_id = id.as_ref().is_some_and(|id| self.retry_ids.contains(id));
        if let (Some(id), Some(retry)) = (&id, retry) {
            if can_continue {
                self.chains.insert(key, (id.clone(), retry));
            }
            self.retry_ids.insert(id.clone());
            self.retries.entry((id.clone(), retry)).or_insert(place);
        }
        let expected_step = self.step.unwrap_or(self.next_step.saturating_sub(1));
        if !self.turn.is_some_and(|turn| is_number(event.turn, turn)) || !is_number(event.step, expected_step)
        {
            return rule("llm/retry does not fit the open turn and step".to_owned());
        }
        if !self.provider.is(provider) {
            return rule("llm/retry names another provider than the last request/header".to_owned());
        }
        let Some(id) = id else {
            return rule("llm/retry has no retryId".to_owned());
        };
        let expected = previous.as_ref().map_or(1, |(_, retry)| retry + 1);
        if retry != Some(expected) {
            return rule(format!("llm/retry must have retry {expected}"));
        }
        if previous.map_or(is_known_id, |(previous, _)| previous != id) {
            return rule("llm/retry must keep one retryId for each chain".to_owned());
        }
        None
    }

    /// Takes an `llm/retry-started`.
    pub(super) fn start_retry(&mut self, event: &Event<'_, '_>, data: Node<'_>) -> Option<Error> {
        let rule = |text| Some(event.refuse("L2.retry-started", text));
        let [id, retry] = pick(data, ["retryId", "retry"]);
        let (Some(id), Some(retry)) = (filled(id), count(retry)) else {
            return rule("llm/retry-started needs retryId and retry");
        };
        let pair = (Id::of(&id), retry);
        let Some([turn, step]) = self.retries.get(&pair) else {
            return rule("no earlier llm/retry has this id and number");
        };
        let is_same_place = turn.is(event.turn) && step.is(event.step);
        let is_new = self.started.insert(pair);
        if !is_same_place {
            return rule("llm/retry-started has another turn or step than its llm/retry");
        }
        if is_new {
            None
        } else {
            rule("this retry was started before")
        }
    }
}

fn keep_arguments(value: Option<Node<'_>>, kept_bytes: &mut usize, hashers: &Hashers) -> Arguments {
    let Some(text) = value.filter(Node::is_text) else {
        return Arguments::Scalar(Scalar::of(value));
    };
    let raw = text.raw().unwrap_or_default();
    if raw.len() <= KEPT_ARGUMENT_BYTES.saturating_sub(*kept_bytes) {
        *kept_bytes += raw.len();
        return Arguments::Raw(raw.into());
    }
    Arguments::Digest(hashers.digest(&text.text().unwrap_or_default()))
}

impl Arguments {
    /// Whether these are identical to the ones that were kept.
    fn are(&self, value: Option<Node<'_>>, hashers: &Hashers) -> bool {
        let text = value.filter(Node::is_text);
        match (self, text) {
            (Self::Scalar(kept), _) => kept.is(value),
            (Self::Raw(kept), Some(text)) => text.raw() == Some(kept) || is_literal(kept, text),
            (Self::Digest(kept), Some(text)) => hashers.digest(&text.text().unwrap_or_default()) == *kept,
            (Self::Raw(_) | Self::Digest(_), None) => false,
        }
    }
}

/// Whether a string literal stands for the text.
#[cold]
fn is_literal(raw: &[u8], text: Node<'_>) -> bool {
    let inside = raw.get(1..raw.len().saturating_sub(1)).unwrap_or_default();
    text_is(text, &decode_string(inside))
}

#[cold]
fn foreign_parent(event: &Event<'_, '_>) -> Error {
    event.refuse("L2.dispatch", "parentCallId does not belong to rootCallId")
}

/// Checks what a `developer/message` adds. Spec 30 §7.2.
pub(super) fn resolve_header(event: &Event<'_, '_>, data: Node<'_>, headers: &HeaderTools) -> Option<Error> {
    let target = data.member("headerSeq")?;
    let target = earlier(Some(target), event.seq);
    let Some((target, table)) = target.and_then(|target| Some((target, headers.get(target)?))) else {
        return Some(event.refuse(
            "L2.developer-header",
            "headerSeq must name an earlier request/header",
        ));
    };
    let mut additions = event.message.into_iter().flat_map(|message| message.additions());
    let wrong = additions.find(|name| !filled(*name).is_some_and(|name| table.has_sound(&name)))?;
    Some(event.refuse("L2.developer-header", unresolved(wrong, target)))
}

/// What is said of an added tool that the header does not have.
#[cold]
pub(super) fn unresolved(name: Option<Node<'_>>, header: u64) -> String {
    let name = quote(name);
    format!("tool-addition {name} must name exactly one complete tool of the request/header at seq {header}")
}

/// Digest of the harness's fixed notice. Spec 30 §7.4.
const NOTICE_SHA256: [u8; 32] = [
    0x61, 0x3f, 0x8e, 0x88, 0xc4, 0x32, 0x40, 0x29, 0xa7, 0x58, 0xe3, 0x88, 0xa7, 0x7c, 0x90, 0x82, 0xe9,
    0x3d, 0x36, 0xd3, 0x9a, 0xd2, 0x3d, 0x5f, 0x76, 0xc5, 0x52, 0x9f, 0xe7, 0xb0, 0xb4, 0x2f,
];

/// Whether a result may answer a call that never started. Spec 30 §7.4.
fn is_not_started_repair(event: &Event<'_, '_>, message: &Message<'_>, call: &[u8]) -> bool {
    let Some(error) = object(event.member("error")) else {
        return false;
    };
    let [name, code] = pick(error, ["name", "code"]);
    if !is_word(name, "ToolNotStartedError")
        || !is_word(code, "TOOL_NOT_STARTED")
        || !message.is_error.is_some_and(|value| value.is_true())
        || event.row.source_event_seqs.is_some()
    {
        return false;
    }
    let Some(id) = message.id.and_then(|id| id.text()) else {
        return false;
    };
    let behind = |prefix: &[u8]| id.strip_prefix(prefix)?.strip_prefix(call)?.strip_prefix(b"-");
    if behind(b"forked-tool-result-").is_some() {
        return true;
    }
    if behind(b"interrupted-tool-result-")
        .and_then(canonical_number)
        .is_none()
    {
        return false;
    }
    let mut content = array(message.content)
        .into_iter()
        .flat_map(|content| content.elements());
    let (Some(block), None) = (content.next().filter(Node::is_object), content.next()) else {
        return false;
    };
    let [kind, text] = pick(block, ["type", "text"]);
    is_word(kind, "text")
        && text
            .and_then(|text| text.text())
            .is_some_and(|text| Sha256::digest(&text).as_slice() == NOTICE_SHA256)
}
