//! Rows of a log into rows of calls. Spec 80 §3 to §5.

use std::collections::HashMap;
use std::ops::Range;

use super::Place;
use super::pace::{Marks, Pace, push_token_gaps};
use super::tools::{ToolPairing, ToolTime};
use crate::json::{Kind, Node, Tape};
use crate::row::{Accept, Row};

/// What is collected.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "four columns, each asked for or not"
)]
pub struct CallOptions {
    /// Times of the stream and what follows from them.
    pub times: bool,
    /// Times of tool calls.
    pub tools: bool,
    /// Differences of consecutive tokens.
    pub gaps: bool,
    /// Requests that carry no usage.
    pub auxiliary: bool,
}

impl CallOptions {
    /// Whether more is asked of a stream than the chunks that a scan notes.
    pub fn looks_into_records(&self) -> bool {
        self.times || self.gaps
    }
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Accepted.
    Message,
    /// Accepted as far as it came.
    Interrupted,
    /// Not accepted.
    Failed,
    /// It wrote a summary.
    Compaction,
    /// A request whose usage no log tells.
    Auxiliary,
}

impl Outcome {
    /// As the table calls it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
            Self::Compaction => "compaction",
            Self::Auxiliary => "auxiliary",
        }
    }
}

/// Numbers of tokens; `None` where unknown. Spec 80 §4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// `inputTokens`
    pub input: Option<i64>,
    /// `outputTokens`
    pub output: Option<i64>,
    /// `cacheReadTokens`
    pub cache_read: Option<i64>,
    /// `cacheWriteTokens`
    pub cache_write: Option<i64>,
    /// `reasoningTokens`
    pub reasoning: Option<i64>,
    /// Sum of the first four, absent cache members counted as zero.
    pub total: Option<i64>,
    /// `totalTokens`
    pub recorded_total: Option<i64>,
}

impl Tokens {
    /// Those of a settlement, whose stream tells more than itself. Spec 80 §4 U1.
    pub(super) fn of_settlement(data: Option<Node<'_>>, marks: &Marks<'_>, scratch: &mut Tape) -> Self {
        let usage = marks
            .usage
            .and_then(|chunk| chunk.on_tape(scratch).member("usage"))
            .filter(|usage| usage.kind() != Kind::Null)
            .or_else(|| data?.member("usage"))
            .filter(Node::is_object);
        usage.map_or_else(Self::default, Self::of)
    }

    pub(super) fn of(usage: Node<'_>) -> Self {
        let mut tokens = Self::default();
        for (key, value) in usage.members() {
            let Some(key) = key.text() else { continue };
            let slot = match &*key {
                b"inputTokens" => &mut tokens.input,
                b"outputTokens" => &mut tokens.output,
                b"cacheReadTokens" => &mut tokens.cache_read,
                b"cacheWriteTokens" => &mut tokens.cache_write,
                b"reasoningTokens" => &mut tokens.reasoning,
                b"totalTokens" => &mut tokens.recorded_total,
                _ => continue,
            };
            *slot = value.safe_integer().filter(|&count| count >= 0);
        }
        if let (Some(input), Some(output)) = (tokens.input, tokens.output) {
            // Four safe integers.
            let caches = tokens.cache_read.unwrap_or(0) + tokens.cache_write.unwrap_or(0);
            tokens.total = Some(input + caches + output);
        }
        tokens
    }
}

/// Times in milliseconds since the Unix epoch, and durations; `None` where unknown. Spec 80 §5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// Start of the attempt.
    pub start: Option<i64>,
    /// First token of the stream.
    pub first_token: Option<i64>,
    /// Last token of the stream.
    pub last_token: Option<i64>,
    /// Last member of the stream.
    pub end: Option<i64>,
    /// Time to the first token.
    pub ttft: Option<i64>,
    /// Time from the first token to the last.
    pub generation: Option<i64>,
}

/// One call. Texts are WTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Seq of the settlement, the summary or the request.
    pub seq: u64,
    /// Time of that event in milliseconds.
    pub time: Option<i64>,
    /// Turn and step.
    pub place: Place,
    /// From 1 within its turn and step; `None` for calls that are no attempts.
    pub attempt: Option<u64>,
    /// What became of it.
    pub outcome: Outcome,
    /// Kind of the last finish reason.
    pub finish: Option<Vec<u8>>,
    /// Who was asked.
    pub provider: Option<Vec<u8>>,
    /// What was asked for.
    pub model: Option<Vec<u8>>,
    /// What answered, where it is another model.
    pub served_model: Option<Vec<u8>>,
    /// Usage.
    pub tokens: Tokens,
    /// Times.
    pub times: CallTimes,
    /// Differences of consecutive tokens in milliseconds.
    pub gaps: Vec<i64>,
    tools: Range<usize>,
}

#[derive(Clone, Default)]
struct Route {
    provider: Option<Vec<u8>>,
    model: Option<Vec<u8>>,
}

impl Route {
    fn of(holder: Option<Node<'_>>) -> Self {
        Self {
            provider: text_member(holder, "provider"),
            model: text_member(holder, "model"),
        }
    }
}

/// What happened so far at one turn and step.
#[derive(Clone, Copy, Default)]
struct Progress {
    attempts: u64,
    /// Seq of the last attempt.
    settled: Option<u64>,
    /// Time of the last `step/start`.
    started: Option<i64>,
    /// Seq and time of the last `llm/retry-started`.
    retried: Option<(u64, i64)>,
}

/// Collects the calls of a log of generations 2 to 4 from its accepted rows, in order.
///
/// # Cost
/// One look at the records of each settlement; memory is that of the calls.
#[derive(Default)]
pub struct CallRows {
    options: CallOptions,
    calls: Vec<Call>,
    places: HashMap<Place, Progress>,
    /// What the last request asked for.
    route: Route,
    /// Seq and time of requests: of those that were written at the same time or later, the last one only. So times
    /// increase, and the last request up to a time is found by halving.
    requests: Vec<(u64, i64)>,
    pairing: ToolPairing,
    compaction_turn: Option<i64>,
    scratch: Tape,
}

impl CallRows {
    /// No calls yet.
    pub fn new(options: CallOptions) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// The calls so far, in the order of their seqs.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Takes the calls out; the next time there are none.
    pub fn take_calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }

    /// The tool calls of a message, in its order; known when the log is through.
    pub fn tools_of(&self, call: &Call) -> &[ToolTime] {
        self.pairing.calls().get(call.tools.clone()).unwrap_or_default()
    }

    fn note_request(&mut self, row: &Row<'_>, asked: Option<Node<'_>>) {
        self.route = Route::of(asked);
        if let Some(time) = row.time {
            while self.requests.last().is_some_and(|&(_, before)| before >= time) {
                self.requests.pop();
            }
            self.requests.push((row.seq, time));
        }
    }

    fn add_other(
        &mut self,
        row: &Row<'_>,
        outcome: Outcome,
        turn: Option<i64>,
        route: Option<Node<'_>>,
        tokens: Tokens,
    ) {
        let Route { provider, model } = Route::of(route);
        self.calls.push(Call {
            seq: row.seq,
            time: row.time,
            place: Place { turn, step: None },
            attempt: None,
            outcome,
            finish: None,
            provider,
            model,
            served_model: None,
            tokens,
            times: CallTimes::default(),
            gaps: Vec::new(),
            tools: 0..0,
        });
    }

    fn add_settlement(&mut self, row: &Row<'_>, data: Option<Node<'_>>, is_message: bool) {
        let options = self.options;
        let place = place_of(data);
        let stream = stream_of(data);
        let marks = stream.map_or_else(Marks::default, |stream| Marks::of(stream, options.times));
        let tokens = Tokens::of_settlement(data, &marks, &mut self.scratch);
        let mut times = CallTimes::default();
        if options.times {
            times = self.times(place, stream.map(|stream| marks.pace(stream)).unwrap_or_default());
        }
        let mut gaps = Vec::new();
        if let Some(stream) = stream.filter(|_| options.gaps) {
            push_token_gaps(stream, &mut gaps);
        }
        let (mut outcome, mut route, mut served_model) = (Outcome::Failed, self.route.clone(), None);
        let first_tool = self.pairing.calls().len();
        if is_message {
            outcome = Outcome::Message;
            if data
                .and_then(|data| data.member("interrupted"))
                .is_some_and(|flag| flag.is_true())
            {
                outcome = Outcome::Interrupted;
            }
            let message = object_member(data, "message");
            // Generation 0 has an older spelling without `message` (50 §4.5).
            let source = match message {
                Some(_) => object_member(message, "source"),
                None => object_member(data, "provenance"),
            };
            route = Route::of(source);
            served_model = served_by(source).filter(|served| Some(served) != route.model.as_ref());
            if let Some(content) = message.or(data).and_then(|holder| holder.member("content"))
                && options.tools
            {
                self.pairing.add_message(place, content);
            }
        }
        let progress = self.places.entry(place).or_default();
        progress.attempts += 1;
        progress.settled = Some(row.seq);
        let finish = object_member(marks.finish, "reason");
        self.calls.push(Call {
            seq: row.seq,
            time: row.time,
            place,
            attempt: Some(progress.attempts),
            outcome,
            finish: text_member(finish, "kind"),
            provider: route.provider,
            model: route.model,
            served_model,
            tokens,
            times,
            gaps,
            tools: first_tool..self.pairing.calls().len(),
        });
    }

    fn times(&self, place: Place, stream: Pace) -> CallTimes {
        let start = self.start_of(place, stream.start);
        let (first, last) = (stream.first_token, stream.last_token);
        let since = |from: Option<i64>, to: Option<i64>| to?.checked_sub(from?);
        CallTimes {
            start,
            first_token: first,
            last_token: last,
            end: stream.end,
            ttft: since(start, first).filter(|&ms| ms >= 0),
            // One token only, or a clock that stepped back, is no duration.
            generation: since(first, last).filter(|&ms| ms > 0),
        }
    }

    /// When the next attempt of a place started. Spec 80 §5.
    fn start_of(&self, place: Place, stream_start: Option<i64>) -> Option<i64> {
        let progress = self.places.get(&place).copied().unwrap_or_default();
        match progress.settled {
            None if progress.started.is_some() => return progress.started,
            Some(settled) => {
                if let Some((_, time)) = progress.retried.filter(|&(seq, _)| seq > settled) {
                    return Some(time);
                }
            }
            None => {}
        }
        // A settlement stands behind rows that were written during its stream.
        let before = match stream_start {
            Some(start) => self.requests.partition_point(|&(_, time)| time <= start),
            None => self.requests.len(),
        };
        let &(seq, time) = self.requests.get(before.checked_sub(1)?)?;
        progress
            .settled
            .is_none_or(|settled| seq > settled)
            .then_some(time)
    }
}

impl Accept for CallRows {
    const LOOKS: bool = true;

    fn take(&mut self, row: &Row<'_>) {
        let Some(event_type) = row.event_type else { return };
        let Some(kind) = event_type.text() else { return };
        let options = self.options;
        let event = event_type.root();
        let data = || event.member("data").filter(Node::is_object);
        match &*kind {
            b"assistant/message" => self.add_settlement(row, data(), true),
            b"assistant/attempt" => self.add_settlement(row, data(), false),
            b"request/header" => {
                let header = object_member(data(), "header");
                self.note_request(row, object_member(header, "config"));
            }
            b"request/context" => self.note_request(row, data()),
            b"compaction/start" => self.compaction_turn = place_of(data()).turn,
            b"compaction/end" | b"session/end-seed" => self.compaction_turn = None,
            b"compaction/summary" => {
                if let Some(usage) = object_member(data(), "usage") {
                    let turn = self.compaction_turn;
                    self.add_other(row, Outcome::Compaction, turn, data(), Tokens::of(usage));
                }
            }
            b"step/start" if options.times => {
                self.places.entry(place_of(data())).or_default().started = row.time;
            }
            b"llm/retry-started" if options.times => {
                let retried = row.time.map(|time| (row.seq, time));
                self.places.entry(place_of(data())).or_default().retried = retried;
            }
            b"tool/call" if options.tools => {
                if let Some(data) = data() {
                    self.pairing.start(place_of(Some(data)), data, row.time);
                }
            }
            b"tool/result" if options.tools => {
                // A replacement rewrites an answer; it is none itself.
                let is_answer = event.member("surfaceOp").is_some_and(|op| op.text_is("append"));
                if let Some(data) = data().filter(|_| is_answer) {
                    self.pairing.answer(place_of(Some(data)), data, row.time);
                }
            }
            kind if options.auxiliary && is_auxiliary(kind) => {
                let route = object_member(data(), "route");
                self.add_other(row, Outcome::Auxiliary, None, route, Tokens::default());
            }
            _ => {}
        }
    }
}

/// Types of requests that carry no usage. Spec 80 §3.
pub(super) fn is_auxiliary(kind: &[u8]) -> bool {
    kind == b"session/title-llm-request" || kind.starts_with(b"web/") && kind.ends_with(b"-request")
}

pub(super) fn stream_of(data: Option<Node<'_>>) -> Option<Node<'_>> {
    data?.member("stream").filter(Node::is_array)
}

fn place_of(data: Option<Node<'_>>) -> Place {
    let number = |key| data?.member(key)?.safe_integer();
    Place {
        turn: number("turn"),
        step: number("step"),
    }
}

/// The model that answered, if the source names one.
fn served_by(source: Option<Node<'_>>) -> Option<Vec<u8>> {
    let response = object_member(object_member(source, "replayState"), "response");
    text_member(response, "responseModel").filter(|text| !text.is_empty())
}

pub(super) fn object_member<'a>(holder: Option<Node<'a>>, key: &str) -> Option<Node<'a>> {
    holder?.member(key).filter(Node::is_object)
}

fn text_member(holder: Option<Node<'_>>, key: &str) -> Option<Vec<u8>> {
    Some(holder?.member(key)?.text()?.into_owned())
}
