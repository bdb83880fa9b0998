//! What a stream says of its call: usage, finish, and when the tokens came. Spec 20 §5, 80 §4, §5.

use crate::json::Node;
use crate::json::number::is_safe;
use crate::stream::{RunKind, Word, first_token_time, is_token_delta};

/// The records of a stream that a call is made from. They are not validated; what cannot be read is passed over.
#[derive(Default)]
pub(super) struct Marks<'a> {
    first: Option<Node<'a>>,
    last: Option<Node<'a>>,
    /// The last record with a token in it.
    last_token: Option<Node<'a>>,
    /// The last raw chunk of type `usage`.
    pub(super) usage: Option<Node<'a>>,
    /// The last raw chunk of type `finish`.
    pub(super) finish: Option<Node<'a>>,
}

/// Times of a stream in milliseconds. Spec 80 §5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) start: Option<i64>,
    pub(super) first_token: Option<i64>,
    pub(super) last_token: Option<i64>,
    pub(super) end: Option<i64>,
}

impl<'a> Marks<'a> {
    /// Looks through a stream, once.
    pub(super) fn of(stream: Node<'a>, with_tokens: bool) -> Self {
        let mut marks = Self::default();
        for record in stream.elements() {
            marks.first.get_or_insert(record);
            marks.last = Some(record);
            if let Some(chunk) = raw_chunk(record) {
                match chunk.member("type") {
                    Some(kind) if kind.text_is("usage") => marks.usage = Some(chunk),
                    Some(kind) if kind.text_is("finish") => marks.finish = Some(chunk),
                    _ => {}
                }
            }
            if with_tokens && has_token(record) {
                marks.last_token = Some(record);
            }
        }
        marks
    }

    /// The times of the stream.
    pub(super) fn pace(&self, stream: Node<'_>) -> Pace {
        let first_token = first_token_time(&stream).ok().flatten();
        Pace {
            start: self.first.and_then(start_of),
            first_token,
            last_token: first_token.and(self.last_token).and_then(last_token_of),
            end: self.last.and_then(end_of),
        }
    }
}

/// Appends the differences of consecutive tokens of a stream, across records, in milliseconds.
pub(super) fn push_token_gaps(stream: Node<'_>, gaps: &mut Vec<i64>) {
    let mut before: Option<i64> = None;
    let mut times = Vec::new();
    for record in stream.elements() {
        times.clear();
        match run_of(record) {
            Some((kind, members)) => push_token_times(kind, members, record, &mut times),
            None if has_token(record) => times.extend(safe_member(record, "time")),
            None => {}
        }
        for &time in &times {
            // The difference of two safe integers fits.
            gaps.extend(before.map(|before| time - before));
            before = Some(time);
        }
    }
}

/// Appends the times of the tokens of a run; nothing if any of its times cannot be read.
fn push_token_times(kind: RunKind, members: Option<Node<'_>>, record: Node<'_>, times: &mut Vec<i64>) {
    let (Some(members), Some(mut time)) = (members, safe_member(record, "time0")) else {
        return;
    };
    let Some(dt) = record.member("dt").filter(is_safe_array) else {
        return;
    };
    let is_named = is_named(kind, record);
    let mut members = members.elements();
    let mut steps = dt.elements();
    loop {
        if !is_safe(time) {
            times.clear();
            return;
        }
        if let Some(member) = members.next()
            && (is_named || member.is_nonempty_text())
        {
            times.push(time);
        }
        match steps.next().and_then(|step| step.safe_integer()) {
            // Both are safe integers.
            Some(step) => time += step,
            None => return,
        }
    }
}

fn raw_chunk(record: Node<'_>) -> Option<Node<'_>> {
    record.member("type").filter(|kind| kind.text_is("chunk"))?;
    record.member("chunk").filter(Node::is_object)
}

/// The kind of a run and its members, if these are an array of strings; `None` for any other record.
fn run_of(record: Node<'_>) -> Option<(RunKind, Option<Node<'_>>)> {
    let kind = record.member("type")?;
    let kind = [RunKind::Text, RunKind::Reasoning, RunKind::ToolCall]
        .into_iter()
        .find(|run| kind.text_is(run.record_type().as_str()))?;
    let members = record.member(kind.members_key().as_str());
    Some((kind, members.filter(Node::is_text_array)))
}

/// Whether every member of the run is a token, even an empty one. Spec 20 §5.
fn is_named(kind: RunKind, record: Node<'_>) -> bool {
    kind == RunKind::ToolCall && record.member(Word::Name.as_str()).is_some()
}

fn has_token(record: Node<'_>) -> bool {
    match run_of(record) {
        Some((kind, Some(members))) => {
            if is_named(kind, record) {
                !members.is_empty()
            } else {
                members.elements().any(|text| text.is_nonempty_text())
            }
        }
        Some((_, None)) => false,
        None => raw_chunk(record).is_some_and(|chunk| is_token_delta(&chunk)),
    }
}

fn safe_member(record: Node<'_>, key: &str) -> Option<i64> {
    record.member(key)?.safe_integer()
}

/// Whether the value is an array of safe integers.
fn is_safe_array(value: &Node<'_>) -> bool {
    value.is_array()
        && (value.integer_shape().is_some() || value.elements().all(|step| step.safe_integer().is_some()))
}

fn start_of(record: Node<'_>) -> Option<i64> {
    safe_member(record, if run_of(record).is_some() { "time0" } else { "time" })
}

fn end_of(record: Node<'_>) -> Option<i64> {
    if run_of(record).is_none() {
        return safe_member(record, "time");
    }
    time_after(record, usize::MAX)
}

/// The time of the last token of a record that has one.
fn last_token_of(record: Node<'_>) -> Option<i64> {
    let Some((kind, members)) = run_of(record) else {
        return safe_member(record, "time");
    };
    let members = members?;
    let last = if is_named(kind, record) {
        members.len().checked_sub(1)?
    } else {
        let mut last = None;
        for (at, member) in members.elements().enumerate() {
            if member.is_nonempty_text() {
                last = Some(at);
            }
        }
        last?
    };
    record.member("dt").filter(|dt| dt.len() >= last)?;
    time_after(record, last)
}

/// The time of a run after so many of its gaps, or all of them; `None` if a gap is no safe integer.
fn time_after(record: Node<'_>, count: usize) -> Option<i64> {
    let dt = record.member("dt").filter(Node::is_array)?;
    // Gaps are safe integers, and there are fewer than 2^32 of them.
    let mut time = i128::from(safe_member(record, "time0")?);
    for step in dt.elements().take(count) {
        time += i128::from(step.safe_integer()?);
    }
    i64::try_from(time).ok().filter(|&time| is_safe(time))
}
