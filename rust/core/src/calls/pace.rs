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
    /// Looks through a stream, once, unless the scan has noted what is asked for.
    pub(super) fn of(stream: Node<'a>, with_tokens: bool) -> Self {
        let mut marks = Self::default();
        if let Some([usage, finish]) = stream.noted_chunks().filter(|_| !with_tokens) {
            return Self {
                usage,
                finish,
                ..marks
            };
        }
        for record in stream.elements() {
            marks.first.get_or_insert(record);
            marks.last = Some(record);
            // Without tokens, runs need no look at their members.
            let claim = if with_tokens {
                Claim::of(record)
            } else {
                Claim::of_chunk(record)
            };
            if let Claim::Chunk(Some(chunk)) = claim {
                match chunk.member("type") {
                    Some(kind) if kind.text_is("usage") => marks.usage = Some(chunk),
                    Some(kind) if kind.text_is("finish") => marks.finish = Some(chunk),
                    _ => {}
                }
            }
            if with_tokens && claim.has_token(record) {
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
    for record in stream.elements() {
        let claim = Claim::of(record);
        let times = match claim {
            Claim::Run(kind, Some(members)) => token_times(kind, members, record),
            Claim::Chunk(_) if claim.has_token(record) => safe_member(record, "time").into_iter().collect(),
            _ => continue,
        };
        for time in times {
            // The difference of two safe integers fits.
            gaps.extend(before.map(|before| time - before));
            before = Some(time);
        }
    }
}

/// What a record that has not been validated says it is.
#[derive(Clone, Copy)]
enum Claim<'a> {
    /// With its members, if these are an array of strings.
    Run(RunKind, Option<Node<'a>>),
    /// With its chunk, if this is an object.
    Chunk(Option<Node<'a>>),
    Neither,
}

impl<'a> Claim<'a> {
    /// Tells chunks from other records.
    fn of_chunk(record: Node<'a>) -> Self {
        match record.member("type") {
            Some(kind) if kind.text_is("chunk") => {
                Self::Chunk(record.member("chunk").filter(Node::is_object))
            }
            _ => Self::Neither,
        }
    }

    fn of(record: Node<'a>) -> Self {
        let Some(kind) = record.member("type") else {
            return Self::Neither;
        };
        if kind.text_is("chunk") {
            return Self::Chunk(record.member("chunk").filter(Node::is_object));
        }
        let kinds = [RunKind::Text, RunKind::Reasoning, RunKind::ToolCall];
        match kinds
            .into_iter()
            .find(|run| kind.text_is(run.record_type().as_str()))
        {
            Some(run) => {
                let members = record.member(run.members_key().as_str());
                Self::Run(run, members.filter(Node::is_text_array))
            }
            None => Self::Neither,
        }
    }

    fn has_token(self, record: Node<'_>) -> bool {
        match self {
            Self::Run(kind, Some(members)) if is_named(kind, record) => !members.is_empty(),
            Self::Run(_, Some(members)) => members.elements().any(|text| text.is_nonempty_text()),
            Self::Chunk(Some(chunk)) => is_token_delta(&chunk),
            _ => false,
        }
    }
}

/// Whether every member of the run is a token, even an empty one. Spec 20 §5.
fn is_named(kind: RunKind, record: Node<'_>) -> bool {
    kind == RunKind::ToolCall && record.member(Word::Name.as_str()).is_some()
}

fn safe_member(record: Node<'_>, key: &str) -> Option<i64> {
    record.member(key)?.safe_integer()
}

/// Times of the members of a run, up to the first that is no safe integer; none if a gap is none.
fn run_times(record: Node<'_>) -> Vec<i64> {
    let mut times = Vec::new();
    let (Some(start), Some(dt)) = (safe_member(record, "time0"), record.member("dt")) else {
        return times;
    };
    if !dt.is_array() {
        return times;
    }
    match dt.integer_shape() {
        // No sum of so few digits leaves 64 bits.
        Some(shape) if shape.max_digits <= 8 => dt.push_running_sums(start, &mut times),
        _ => {
            times.push(start);
            let mut time = start;
            for step in dt.elements() {
                let Some(step) = step.safe_integer() else {
                    return Vec::new();
                };
                // Behind an unsafe time nothing is used, but gaps are looked at.
                time = time.saturating_add(step);
                times.push(time);
            }
        }
    }
    let readable = times.iter().position(|&time| !is_safe(time));
    times.truncate(readable.unwrap_or(usize::MAX));
    times
}

/// Times of the tokens of a run.
fn token_times(kind: RunKind, members: Node<'_>, record: Node<'_>) -> Vec<i64> {
    let mut times = run_times(record);
    times.truncate(members.len());
    let may_have_empty = || memchr::memmem::find(members.raw().unwrap_or_default(), b"\"\"").is_some();
    if !is_named(kind, record) && may_have_empty() {
        let mut members = members.elements();
        times.retain(|_| members.next().is_some_and(|text| text.is_nonempty_text()));
    }
    times
}

fn start_of(record: Node<'_>) -> Option<i64> {
    match Claim::of(record) {
        Claim::Run(..) => safe_member(record, "time0"),
        _ => safe_member(record, "time"),
    }
}

fn end_of(record: Node<'_>) -> Option<i64> {
    match Claim::of(record) {
        Claim::Run(..) => {
            let gaps = record.member("dt")?.len();
            run_times(record).get(gaps).copied()
        }
        _ => safe_member(record, "time"),
    }
}

/// The time of the last token of a record that has one.
fn last_token_of(record: Node<'_>) -> Option<i64> {
    match Claim::of(record) {
        Claim::Run(kind, members) => {
            let members = members?;
            let mut last = members.len().checked_sub(1)?;
            // An empty string ends like that; one that ends in an escaped quote does, too.
            let may_be_empty = || members.raw().is_none_or(|text| text.ends_with(b"\"\"]"));
            let is_dense = members.raw().is_some_and(|text| text.ends_with(b"\"]"));
            if !is_named(kind, record) && (!is_dense || may_be_empty()) {
                let filled = members
                    .elements()
                    .enumerate()
                    .filter(|(_, text)| text.is_nonempty_text());
                last = filled.last()?.0;
            }
            run_times(record).get(last).copied()
        }
        _ => safe_member(record, "time"),
    }
}
