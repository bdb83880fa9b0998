//! Layer L5: does every settlement say what its embedded stream says? Spec 30 §10.

use super::assembly::{Assembly, Stuck};
use super::event::{Event, EventType, array, at, object};
use super::findings::Layer;
use crate::error::{Error, ErrorKind};
use crate::json::Node;
use crate::row::{StreamNotes, StreamPart};
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

/// Blocks of a stream up to which it is compared without being parsed.
const MAX_BLOCKS: usize = 16;

/// Whether an assistant/message that was not parsed certainly agrees with its stream: every block is closed once, and what
/// the chunks hold is spelled as it is in the message. The benchmark `bench_check`, levels, shows what it pays.
///
/// Of a chunk only the start is looked at, and what follows is compared up to its closing bracket. A further member there,
/// which could repeat a key, would have to stand in the message, too: behind a value, where none can be.
pub(crate) fn agrees(bytes: &[u8], notes: &StreamNotes) -> bool {
    find_agreement(bytes, notes).is_some()
}

fn find_agreement(bytes: &[u8], notes: &StreamNotes) -> Option<()> {
    let slice = |(start, end): (usize, usize)| bytes.get(start..end);
    // In the order of their first mention: index, and the block of the chunk that closes it.
    let mut blocks = [(0, None::<&[u8]>); MAX_BLOCKS];
    let mut count = 0;
    let (mut usage, mut finish) = (None, None);
    for part in notes.parts()? {
        let (index, closing) = match *part {
            StreamPart::Block(index) => (index, None),
            StreamPart::Chunk(chunk) => {
                let chunk = slice(chunk)?.strip_suffix(b"}")?;
                if let Some(value) = chunk.strip_prefix(b"{\"type\":\"usage\",\"usage\":") {
                    if usage.replace(value).is_some() {
                        return None;
                    }
                    continue;
                }
                if let Some(reason) = chunk.strip_prefix(b"{\"type\":\"finish\",\"reason\":{\"kind\":\"") {
                    if finish.replace(reason).is_some() {
                        return None;
                    }
                    continue;
                }
                let rest = chunk.strip_prefix(b"{\"type\":\"block-end\",\"index\":")?;
                let (index, block) = rest.split_at_checked(memchr::memchr(b',', rest)?)?;
                let index = std::str::from_utf8(index).ok()?.parse().ok()?;
                (index, Some(block.strip_prefix(b",\"block\":")?))
            }
        };
        let known = blocks.get(..count)?.iter().position(|(known, _)| *known == index);
        let place = known.unwrap_or(count);
        count = count.max(place + 1);
        let block = blocks.get_mut(place)?;
        block.0 = index;
        if closing.is_some() && std::mem::replace(&mut block.1, closing).is_some() {
            return None;
        }
    }
    let mut content = slice(notes.content())?.strip_prefix(b"[")?;
    for (number, (_, block)) in blocks.get(..count)?.iter().enumerate() {
        if number > 0 {
            content = content.strip_prefix(b",")?;
        }
        content = content.strip_prefix((*block)?)?;
    }
    let replay_state = finish.map_or(Some(&b""[..]), replay_state)?;
    let are_same = content == b"]"
        && usage == notes.usage().and_then(slice)
        && replay_state == notes.replay_state().and_then(slice).unwrap_or_default()
        && (replay_state.is_empty() || has_entries(replay_state, count));
    are_same.then_some(())
}

/// The replay state of a chunk of type finish, from its `reason.kind` on; nothing if it has none. None if that is not
/// clear, or the answer was cut off at a limit.
fn replay_state(finish: &[u8]) -> Option<&[u8]> {
    let (kind, rest) = finish.split_at_checked(memchr::memchr(b'"', finish)?)?;
    if kind == b"max-tokens" || kind.contains(&b'\\') {
        return None;
    }
    match rest.strip_prefix(b"\"}")? {
        b"" => Some(b""),
        rest => rest.strip_prefix(b",\"replayState\":"),
    }
}

/// Whether a replay state has no entries for blocks, or so many.
fn has_entries(state: &[u8], count: usize) -> bool {
    let is_object = state.starts_with(b"{");
    let entries = is_object
        .then(|| Node::of_object(state, (0, state.len())))
        .and_then(|state| state.member("blocks"));
    entries.is_none_or(|entries| entries.is_array() && entries.elements().count() == count)
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
