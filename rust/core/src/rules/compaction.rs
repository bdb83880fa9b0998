//! Compactions, and the surface as L2 follows it. Spec 30 §7.2, §7.3.
//!
//! This is not the fold of `surface`: it knows the protected head and leaves the rules for one event alone to L3
//! (spec 90 item 19).

use super::event::{Event, EventType, array, earlier, is_filled, is_number, is_word, object, pick, refuse};
use super::findings::Layer;
use super::keep::Scalar;
use super::nodes::{NodeList, Range};
use super::sources::Sources;
use crate::error::Error;
use crate::json::{Kind, Node};
use crate::limits::MAX_KEPT_FINDINGS;

/// The open compaction.
#[derive(Debug)]
struct Compaction {
    id: Scalar,
    command: Scalar,
    turn: Option<u64>,
    has_summary: bool,
}

/// The open compaction and the surface, with one method for each kind of event.
///
/// Every method returns the event's fault, if any. The turn that they are given is the open one.
#[derive(Debug)]
pub(super) struct Compactions {
    nodes: NodeList<()>,
    /// The protected system prompt.
    head: Option<u64>,
    open: Option<Compaction>,
    /// Turns that started or ended inside the open compaction: void if it turns out to be an orphan.
    crossings: Vec<(u64, EventType)>,
    crossing_count: u64,
}

impl Compactions {
    pub(super) fn new() -> Self {
        Self {
            nodes: NodeList::new(),
            head: None,
            open: None,
            crossings: Vec::new(),
            crossing_count: 0,
        }
    }

    /// Reports the turns that crossed a compaction which is now known to be no orphan.
    pub(super) fn take_crossings(&mut self, layer: &mut Layer) {
        let hidden = self.crossing_count - self.crossings.len() as u64;
        for (seq, kind) in self.crossings.drain(..) {
            layer.push(refuse(
                "L2.compaction-crossed",
                seq,
                format!("{} lies inside an open compaction", kind.name()),
            ));
        }
        layer.count(hidden);
        self.crossing_count = 0;
    }

    /// Applies the surface operation of an event. Spec 30 §7.3.
    pub(super) fn fold(&mut self, event: &Event<'_, '_>) -> Option<Error> {
        let seq = event.seq;
        let is_system = event.kind == EventType::SystemMessage;
        if is_system && self.head.is_none() && !self.nodes.is_empty() {
            self.head = Some(seq);
            self.nodes.append(seq, ());
            let text = "a surface that does not begin with a system/message can never get one";
            return Some(event.refuse("L2.head", text));
        }
        if event.is_append() {
            if is_system && self.nodes.is_empty() {
                self.head = Some(seq);
            }
            self.nodes.append(seq, ());
            return None;
        }
        let Some(range) = self.range(event.row.surface_op, ["startSeq", "endSeq"], seq) else {
            self.nodes.append(seq, ());
            let text = format!(
                "surfaceOp of {} names no range of the current surface",
                event.kind.name()
            );
            return Some(event.refuse("L2.surface-range", text));
        };
        let missing = Sources::of(event.row.source_event_seqs).missing(self.nodes.seqs(range));
        let mut fault = missing.map(|seq| {
            event.refuse(
                "L2.surface-sources",
                format!("sourceEventSeqs must name the removed event {seq}"),
            )
        });
        if self
            .head
            .is_some_and(|head| self.nodes.seqs(range).any(|seq| seq == head))
        {
            if !(is_system && range.is_single()) && fault.is_none() {
                let text = "only a system/message over exactly it may replace the system prompt";
                fault = Some(event.refuse("L2.head", text));
            }
            self.head = Some(seq);
        }
        self.nodes.replace(range, seq, ());
        fault
    }

    /// The range that two members of an object name, if both are earlier events on the surface in this order.
    fn range(&self, bounds: Option<Node<'_>>, keys: [&str; 2], seq: u64) -> Option<Range> {
        let [start, end] = pick(object(bounds)?, keys);
        self.nodes.range(earlier(start, seq)?, earlier(end, seq)?)
    }

    /// Notes that a turn starts or ends while a compaction is open.
    pub(super) fn cross(&mut self, event: &Event<'_, '_>) {
        // Whether the open compaction is an orphan shows only when it ends (spec 30 §7.2, preparation).
        if self.open.is_some() {
            self.crossing_count += 1;
            if self.crossings.len() < MAX_KEPT_FINDINGS {
                self.crossings.push((event.seq, event.kind));
            }
        }
    }

    /// Takes a `compaction/start`.
    pub(super) fn start(
        &mut self,
        event: &Event<'_, '_>,
        data: Node<'_>,
        turn: Option<u64>,
    ) -> Option<Error> {
        let rule = |text| Some(event.refuse("L2.compaction-start", text));
        let [id, command] = pick(data, ["compactionId", "sourceCommandId"]);
        let opened = Compaction {
            id: Scalar::of(id),
            command: Scalar::of(command),
            turn,
            has_summary: false,
        };
        if self.open.replace(opened).is_some() {
            return rule("compaction/start inside another compaction");
        }
        let is_open_turn = match turn {
            None => is_null(event.turn),
            Some(turn) => event.turn.and_then(|value| value.count()) == Some(turn),
        };
        if !is_open_turn {
            return rule("compaction/start must have the open turn, or null outside any turn");
        }
        if !is_filled(id) {
            return rule("compaction/start has no compactionId");
        }
        None
    }

    /// Whether the object names the open compaction.
    fn is_owner(&self, holder: Node<'_>) -> bool {
        let [id, command] = pick(holder, ["compactionId", "sourceCommandId"]);
        self.open
            .as_ref()
            .is_some_and(|open| open.id.is(id) && open.command.is(command))
    }

    /// Takes a `compaction/summary`.
    pub(super) fn summarise(
        &mut self,
        event: &Event<'_, '_>,
        data: Node<'_>,
        turn: Option<u64>,
    ) -> Option<Error> {
        let fault = self.check_span(event, data);
        let is_owner = self.is_owner(data);
        let Some(open) = self.open.as_mut().filter(|open| is_owner && open.turn == turn) else {
            let text = "compaction/summary does not belong to the open compaction";
            return fault.or_else(|| Some(event.refuse("L2.compaction-owner", text)));
        };
        if std::mem::replace(&mut open.has_summary, true) {
            let text = "the open compaction has a summary already";
            return fault.or_else(|| Some(event.refuse("L2.compaction-summary", text)));
        }
        fault
    }

    /// Takes a `compaction/end`.
    pub(super) fn end(&mut self, event: &Event<'_, '_>, data: Node<'_>, turn: Option<u64>) -> Option<Error> {
        let is_owner = self.is_owner(data);
        let Some(open) = self.open.take().filter(|open| is_owner && open.turn == turn) else {
            let text = "compaction/end does not belong to the open compaction";
            return Some(event.refuse("L2.compaction-owner", text));
        };
        let is_same_turn = match open.turn {
            None => is_null(event.turn),
            Some(turn) => is_number(event.turn, turn),
        };
        if !is_same_turn {
            return Some(event.refuse(
                "L2.compaction-end",
                "compaction/end has another turn than its start",
            ));
        }
        if data.member("error").is_none() && !open.has_summary {
            let text = "compaction/end without error needs a compaction/summary before it";
            return Some(event.refuse("L2.compaction-end", text));
        }
        None
    }

    /// Checks the range that a compaction event shadows.
    pub(super) fn check_span(&self, event: &Event<'_, '_>, data: Node<'_>) -> Option<Error> {
        let [bounds, seqs] = pick(data, ["shadowedRange", "shadowedSeqs"]);
        let Some(range) = self.range(bounds, ["start", "end"], event.seq) else {
            let text = format!(
                "shadowedRange of {} is no range of the current surface",
                event.kind.name()
            );
            return Some(event.refuse("L2.compaction-span", text));
        };
        // Never walks further than the event lists, so that many such events cost no more than their text.
        let mut span = self.nodes.seqs(range);
        let mut listed = array(seqs).into_iter().flat_map(|seqs| seqs.elements());
        let is_listed = array(seqs).is_some()
            && listed.all(|value| span.next().is_some_and(|seq| is_number(Some(value), seq)))
            && span.next().is_none();
        if !is_listed {
            let text = format!(
                "shadowedSeqs of {} are not the surface between the range's ends",
                event.kind.name()
            );
            return Some(event.refuse("L2.compaction-span", text));
        }
        if self
            .head
            .is_some_and(|head| self.nodes.seqs(range).any(|seq| seq == head))
        {
            return Some(event.refuse("L2.head", "a compaction must not shadow the system prompt"));
        }
        None
    }

    /// Checks the owner of a checkpoint.
    pub(super) fn check_checkpoint(&self, event: &Event<'_, '_>) -> Option<Error> {
        let message = event
            .message
            .filter(|message| is_word(message.source_kind, "compact-checkpoint"))?;
        if event.is_append() || message.source.is_some_and(|source| self.is_owner(source)) {
            return None;
        }
        Some(event.refuse(
            "L2.compaction-owner",
            "the checkpoint does not belong to the open compaction",
        ))
    }

    /// Takes a `session/end-seed`: it drops the open compaction.
    pub(super) fn reseed(&mut self) {
        self.open = None;
        self.crossings.clear();
        self.crossing_count = 0;
    }
}

fn is_null(value: Option<Node<'_>>) -> bool {
    value.is_some_and(|value| value.kind() == Kind::Null)
}
