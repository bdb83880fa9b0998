//! Layer L5: does every settlement say what its embedded stream says? Spec 30 §10.

use super::assembly::{Assembly, Stuck};
use super::event::{Event, EventType, array, at, object};
use super::findings::Layer;
use crate::error::{Error, ErrorKind};
use crate::json::Node;
use crate::stream::{RecordFault, StreamCounts, validate_record};

/// Checks a settlement. Every record is checked and counted, and each fault is told to `on_fault`, as
/// [`check_stream`](crate::stream::check_stream) does, so that nobody has to do that again.
pub(super) fn check(
    event: &Event<'_, '_>,
    on_fault: &mut dyn FnMut(i64, RecordFault),
    layer: &mut Layer,
) -> StreamCounts {
    let mut counts = StreamCounts::default();
    let Some(stream) = array(event.member("stream")) else {
        on_fault(-1, "stream has to be an array of records");
        layer.push(fault(event, "L5.1", None, "the settlement has no stream array"));
        return counts;
    };
    let mut assembly = Assembly::new();
    let mut invalid = None;
    let mut unread = None;
    for (number, record) in (0..).zip(stream.elements()) {
        counts.records += 1;
        match validate_record(&record) {
            Ok(record) => {
                counts.chunks += u64::try_from(record.chunk_count()).unwrap_or(u64::MAX);
                // Only the first chunk that cannot be assembled counts.
                if unread.is_none() {
                    unread = assembly
                        .push(&record)
                        .err()
                        .map(|error| numbered(&error, counts.records - 1));
                }
            }
            Err(message) => {
                on_fault(number, message);
                invalid.get_or_insert((counts.records - 1, message));
            }
        }
    }
    // Expansion comes before assembly (spec 30 §10 step 1).
    let error = match (invalid, unread) {
        (Some((record, message)), _) => Some(fault(event, "L5.1", Some(record), message)),
        (None, Some(error)) => Some(error.located(at(event.seq)).with_rule("L5.1")),
        (None, None) => None,
    };
    if error.is_some() {
        layer.push_some(error);
    } else if event.kind == EventType::AssistantMessage && counts.records > 0 {
        compare(event, &assembly, layer);
    }
    counts
}

#[cold]
fn fault(event: &Event<'_, '_>, rule: &'static str, record: Option<u64>, message: &'static str) -> Error {
    Error::new(ErrorKind::Stream { record }, message)
        .with_rule(rule)
        .located(at(event.seq))
}

/// The error with the number of its record.
#[cold]
fn numbered(error: &Error, record: u64) -> Error {
    let kind = match error.kind() {
        ErrorKind::UnknownChunk { .. } => ErrorKind::UnknownChunk { record: Some(record) },
        _ => ErrorKind::Stream { record: Some(record) },
    };
    Error::new(kind, error.message().to_owned())
}

/// Steps 3 to 5.
fn compare(event: &Event<'_, '_>, assembly: &Assembly<'_>, layer: &mut Layer) {
    let stuck = |rule, Stuck| {
        let text = "a block of unknown type is still open, so it cannot be assembled";
        fault(event, rule, None, text)
    };
    let Some(message) = &event.message else {
        layer.push(event.refuse("L5.3", "assistant/message has no message object"));
        return;
    };
    let is_interrupted = event.member("interrupted").is_some_and(|value| value.is_true());
    let is_content = if is_interrupted {
        Ok(assembly.is_interrupted_content(message.content))
    } else {
        assembly.is_content(message.content)
    };
    match is_content {
        Ok(true) => {}
        Ok(false) => layer.push(event.refuse("L5.3", "the content is not what the stream assembles to")),
        Err(error) => layer.push(stuck("L5.3", error)),
    }
    if !assembly.is_usage(event.member("usage")) {
        layer.push(event.refuse("L5.4", "usage is not that of the stream"));
    }
    let stored: Option<Node<'_>> = object(message.source).and_then(|source| source.member("replayState"));
    match assembly.is_replay_state(stored) {
        Ok(true) => {}
        Ok(false) => layer.push(event.refuse("L5.5", "replayState is not that of the stream")),
        Err(error) => layer.push(stuck("L5.5", error)),
    }
}
