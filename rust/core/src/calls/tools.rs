//! Tool calls paired with what started and what answered them. Spec 80 §5.

use std::collections::HashMap;

use super::Place;
use crate::json::{Kind, Node};

/// How long one tool call took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolTime {
    /// Its id, as WTF-8.
    pub call_id: Vec<u8>,
    /// From `tool/call` to `tool/result` in milliseconds; `None` if it did not start or was not answered.
    pub ms: Option<i64>,
    start_ms: Option<i64>,
}

/// Tool calls of one place and id, in log order. The first waits to be started and to be answered first, so that
/// those that were started, and those that were answered, stand before the others.
#[derive(Default)]
struct Queue {
    calls: Vec<usize>,
    started: usize,
    answered: usize,
}

/// Pairs tool calls within each turn and step, a repeated id in log order.
#[derive(Default)]
pub(super) struct ToolPairing {
    calls: Vec<ToolTime>,
    queues: HashMap<(Place, Vec<u8>), Queue>,
}

impl ToolPairing {
    /// All calls so far.
    pub(super) fn calls(&self) -> &[ToolTime] {
        &self.calls
    }

    /// Takes the content of a message.
    pub(super) fn add_message(&mut self, place: Place, content: Node<'_>) {
        for block in content.elements() {
            if block.member("type").is_some_and(|kind| kind.text_is("tool-call"))
                && let Some(call_id) = block.member("id").and_then(|id| id.text())
            {
                self.push(place, call_id.into_owned());
            }
        }
    }

    fn push(&mut self, place: Place, call_id: Vec<u8>) -> (usize, &mut Queue) {
        let index = self.calls.len();
        self.calls.push(ToolTime {
            call_id: call_id.clone(),
            ms: None,
            start_ms: None,
        });
        let queue = self.queues.entry((place, call_id)).or_default();
        queue.calls.push(index);
        (index, queue)
    }

    /// Takes a `tool/call`.
    pub(super) fn start(&mut self, place: Place, data: Node<'_>, time: Option<i64>) {
        let Some(call_id) = data.member("callId").and_then(|id| id.text()) else {
            return;
        };
        let key = (place, call_id.into_owned());
        let waiting = self.queues.get_mut(&key).and_then(|queue| {
            let index = queue.calls.get(queue.started).copied()?;
            queue.started += 1;
            Some(index)
        });
        let index = waiting.unwrap_or_else(|| {
            let (index, queue) = self.push(key.0, key.1);
            queue.started += 1;
            index
        });
        if let Some(call) = self.calls.get_mut(index) {
            call.start_ms = time;
        }
    }

    /// Takes a `tool/result` that is no replacement.
    pub(super) fn answer(&mut self, place: Place, data: Node<'_>, time: Option<i64>) {
        let Some(call_id) = answered_id(data).and_then(|id| id.text()) else {
            return;
        };
        let Some(queue) = self.queues.get_mut(&(place, call_id.into_owned())) else {
            return;
        };
        let Some(call) = queue
            .calls
            .get(queue.answered)
            .and_then(|&index| self.calls.get_mut(index))
        else {
            return;
        };
        queue.answered += 1;
        if let (Some(start), Some(end)) = (call.start_ms, time) {
            // The difference of two safe integers fits.
            call.ms = Some(end - start);
        }
    }
}

/// The call id of a `tool/result` of any generation.
fn answered_id(data: Node<'_>) -> Option<Node<'_>> {
    let Some(message) = data.member("message").filter(Node::is_object) else {
        // Generation 0, spec 50 §4.5: the message is spread over the event.
        return data.member("callId");
    };
    let not_null = |id: &Node<'_>| id.kind() != Kind::Null;
    let of_source = message
        .member("source")
        .filter(Node::is_object)
        .and_then(|source| source.member("callId"))
        .filter(not_null);
    if of_source.is_some() {
        return of_source;
    }
    if message.member("role").is_some_and(|role| role.text_is("tool")) {
        return message.member("toolCallId");
    }
    // Generations 0 to 3: a user message around a block.
    message
        .member("content")?
        .elements()
        .find(|block| {
            block
                .member("type")
                .is_some_and(|kind| kind.text_is("tool-result"))
        })?
        .member("toolCallId")
}
