//! Event rows of generation 4 in the spelling that the harness gives them, judged without a tape.
//!
//! A small log is mostly rows of a few hundred bytes, and more than half of the time that a tape of them takes goes into
//! the words of the tape and into the look-up of members. Here a row is read once, from front to back. Whatever differs
//! from the expected spelling, and whatever a rule of row admission has to look at closely, is left to the reader of all
//! rows, which also words every refusal. Above level `Scan` the same holds for whatever a rule about one row alone has to
//! look at; what other rules ask for is noted. The benchmark `bench_check`, small logs and levels, shows what it pays.
#![allow(
    clippy::inline_always,
    reason = "one straight line of code, compiled for each instruction set"
)]

use super::admission::Admission;
use super::notes::{CallNotes, Notes, ResultNotes, StreamNotes, Wanted};
use crate::json::{
    BlockTask, Blocks, Cursor, Nesting, Node, Skipped, Span, is_canonical, run_blocks, skip_records,
    skip_spelled_records, skip_spelled_value, skip_value,
};
use crate::stream::StreamCounts;

/// An event row that was recognised: a whole line that keeps every rule of a scan but that of its seq.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventRow {
    /// `seq`
    pub(crate) seq: u64,
    /// `time` in milliseconds.
    pub(crate) time: i64,
    /// Bytes of the line, line feed included.
    pub(crate) len: usize,
    /// What the stream of a settlement holds.
    pub(crate) stream: Option<StreamCounts>,
    /// What rules ask of it, if that is wanted and the row keeps those that look at it alone.
    pub(super) notes: Option<Notes>,
    /// Byte behind the text of `type`.
    type_end: usize,
}

impl EventRow {
    /// The type of the event in the bytes of the row.
    pub(crate) fn event_type<'b>(&self, bytes: &'b [u8]) -> Node<'b> {
        // A row whose type is that long was not recognised.
        Node::of_text(bytes, 9, u32::try_from(self.type_end).unwrap_or(9))
    }
}

/// Levels of arrays and objects that the expected spelling has at least, for which limits are not looked at.
pub(crate) const DEPTH: usize = 8;

/// What is used again from row to row, and from log to log.
#[derive(Default)]
pub(crate) struct Scratch {
    nesting: Nesting,
    /// The last request header that was judged, with all its tools: the logs of one user mostly have the same.
    header: Vec<u8>,
    /// Levels that were allowed in it, and whether it is spelled as the writer spells it.
    header_kind: (usize, bool),
    /// The calls of the row that was recognised last, if they were wanted.
    pub(super) calls: Vec<CallNotes>,
    /// The stream of the row that was recognised last, if it was to be compared.
    pub(super) stream: StreamNotes,
}

/// A longer request header is not kept.
const MAX_HEADER_BYTES: usize = 1 << 16;

/// Of a message with more calls nothing is noted.
const MAX_CALLS: usize = 256;

/// Recognises the line at the start of some bytes, of at most so many levels, at least [`DEPTH`], but for types of events
/// that are wanted parsed.
#[inline]
pub(crate) fn event_row(
    bytes: &[u8],
    max_depth: usize,
    scratch: &mut Scratch,
    wanted: impl Fn(&[u8]) -> Wanted,
) -> Option<EventRow> {
    struct Recognise<'t, 'b, F>(&'b [u8], usize, &'t mut Scratch, F);
    impl<F: Fn(&[u8]) -> Wanted> BlockTask for Recognise<'_, '_, F> {
        type Output = Option<EventRow>;
        #[inline(always)]
        fn run<B: Blocks>(self, blocks: B) -> Self::Output {
            let cursor = Cursor {
                blocks,
                bytes: self.0,
                at: 0,
            };
            Reader::<B, false> {
                cursor,
                max_depth: self.1,
                scratch: self.2,
                notes: None,
                compares: false,
            }
            .event_row(self.3)
        }
    }
    run_blocks(Recognise(bytes, max_depth, scratch, wanted))
}

/// Recognises the line at the start of some bytes if, in addition, every byte of it is as the writer writes it, without a
/// number that it cannot spell (spec 10 §1.1, §1.2). A row that ends inherited events, or that has `sourceEventSeqs`, is
/// not recognised.
#[inline]
pub(super) fn spelled_row(bytes: &[u8], max_depth: usize, scratch: &mut Scratch) -> Option<EventRow> {
    struct Recognise<'t, 'b>(&'b [u8], usize, &'t mut Scratch);
    impl BlockTask for Recognise<'_, '_> {
        type Output = Option<EventRow>;
        #[inline(always)]
        fn run<B: Blocks>(self, blocks: B) -> Self::Output {
            let cursor = Cursor {
                blocks,
                bytes: self.0,
                at: 0,
            };
            Reader::<B, true> {
                cursor,
                max_depth: self.1,
                scratch: self.2,
                notes: None,
                compares: false,
            }
            .event_row(|_| Wanted::Judged)
        }
    }
    let event = run_blocks(Recognise(bytes, max_depth, scratch))?;
    // What stands in strings: nothing else holds a backslash, or a byte that is not ASCII.
    is_canonical(bytes.get(..event.len)?).then_some(event)
}

/// Whose message it is.
#[derive(Clone, Copy)]
enum Role {
    User,
    Assistant,
}

/// Every method says None where something else stands than the harness writes, if `SPELLED` also where the writer would
/// write it in another way, but for what stands in strings.
struct Reader<'t, 'b, B, const SPELLED: bool> {
    cursor: Cursor<'b, B>,
    max_depth: usize,
    scratch: &'t mut Scratch,
    /// What is noted so far; None if nothing is wanted, or rules have to look at the row themselves.
    notes: Option<Notes>,
    /// Whether it is noted what the stream is compared with.
    compares: bool,
}

impl<B: Blocks, const SPELLED: bool> Reader<'_, '_, B, SPELLED> {
    #[inline(always)]
    fn event_row(mut self, wanted: impl Fn(&[u8]) -> Wanted) -> Option<EventRow> {
        self.literal(b"{\"type\":\"")?;
        let name = self.text()?;
        let event_type = self.cursor.bytes.get(name.start..name.end)?;
        let wanted = wanted(event_type);
        match wanted {
            Wanted::Judged => {}
            Wanted::Noted | Wanted::NotedIfIgnorable => {
                self.notes = Some(Notes::default());
                self.scratch.calls.clear();
            }
            Wanted::Compared => {
                self.notes = Some(Notes::default());
                self.scratch.calls.clear();
                self.scratch.stream.clear();
                self.compares = true;
            }
            Wanted::Parsed => return None,
        }
        self.literal(b",\"seq\":")?;
        let seq = u64::try_from(self.cursor.integer()?).ok()?;
        self.literal(b",\"time\":")?;
        let time = self.cursor.integer()?;
        self.literal(b",\"data\":")?;
        let data = self.cursor.at;
        let mut stream = None;
        match event_type {
            b"assistant/message" | b"assistant/attempt" => stream = Some(self.settlement(event_type)?),
            b"turn/start" | b"step/start" | b"step/end" => self.place()?,
            b"turn/end" => self.expected(Self::turn_end)?,
            b"tool/call" => self.expected(Self::tool_call)?,
            b"tool/result" => self.tool_result()?,
            b"system/message" => self.system_message()?,
            b"request/header" => self.request_header()?,
            b"user/message" => self.message(Role::User, 1)?,
            b"session/end-seed" => return None,
            _ => match Admission::of(event_type) {
                Admission::Never => {
                    self.value(1)?;
                }
                Admission::IfRetired => self.unretired(1)?,
                Admission::Always => return None,
            },
        }
        let data = (data, self.cursor.at);
        let is_ignorable = self.literal(b",\"ignorable\":true").is_some();
        let (mut has_sources, mut has_op, mut has_append) = (false, false, false);
        if !is_ignorable {
            has_sources = self.literal(b",\"sourceEventSeqs\":[").is_some();
            if has_sources {
                // The writer joins neighbours.
                (!SPELLED).then_some(())?;
                self.earlier_seqs(seq)?;
            }
            has_op = self.literal(b",\"surfaceOp\":").is_some();
            has_append = has_op && self.literal(b"\"append\"").is_some();
            if has_op && !has_append {
                self.value(1)?;
            }
        }
        self.literal(b"}\n")?;
        // Rules V1 and V3.
        let keeps_metadata = match event_type {
            b"user/message" | b"tool/result" => has_append,
            b"assistant/message" => has_append && !has_sources,
            _ => !has_op && !has_sources && (is_ignorable || wanted != Wanted::NotedIfIgnorable),
        };
        let notes = self.notes.filter(|_| keeps_metadata).map(|notes| Notes {
            data,
            has_append,
            ..notes
        });
        Some(EventRow {
            seq,
            time,
            len: self.cursor.at,
            stream,
            notes,
            type_end: name.end,
        })
    }

    #[inline(always)]
    fn literal(&mut self, literal: &[u8]) -> Option<()> {
        self.cursor.literal(literal)
    }

    /// The inside of a string without escapes, and its closing quote.
    #[inline(always)]
    fn text(&mut self) -> Option<Span> {
        self.cursor.span().filter(|span| !span.escaped)
    }

    #[inline(always)]
    fn nonempty_text(&mut self) -> Option<Span> {
        self.text().filter(|span| span.start < span.end)
    }

    #[inline(always)]
    fn positive(&mut self) -> Option<()> {
        (self.cursor.integer()? > 0).then_some(())
    }

    /// Any value inside so many arrays and objects, without white space before it.
    #[inline(always)]
    fn value(&mut self, levels: usize) -> Option<Skipped> {
        self.cursor
            .bytes
            .get(self.cursor.at)
            .filter(|&&byte| byte > b' ')?;
        let (cursor, nesting) = (&mut self.cursor, &mut self.scratch.nesting);
        let skip = if SPELLED { skip_spelled_value } else { skip_value };
        let skipped = skip(cursor.bytes, cursor.at, self.max_depth - levels, nesting)?;
        cursor.at = skipped.end;
        Some(skipped)
    }

    /// A value inside so many arrays and objects, without what rules A2 to A4, B, C3 and C4 look for.
    #[inline(always)]
    fn unretired(&mut self, levels: usize) -> Option<()> {
        (!self.value(levels)?.may_be_retired).then_some(())
    }

    /// An object of `turn` and perhaps `step`.
    #[inline(always)]
    fn place(&mut self) -> Option<()> {
        self.literal(b"{\"turn\":")?;
        let turn = self.cursor.integer()?;
        let mut step = None;
        if self.literal(b",\"step\":").is_some() {
            step = Some(self.cursor.integer()?);
        }
        self.note_place(turn, step);
        self.literal(b"}")
    }

    /// The start of an object of `turn` and `step`.
    #[inline(always)]
    fn turn_and_step(&mut self) -> Option<()> {
        self.literal(b"{\"turn\":")?;
        let turn = self.cursor.integer()?;
        self.literal(b",\"step\":")?;
        let step = self.cursor.integer()?;
        self.note_place(turn, Some(step));
        Some(())
    }

    #[inline(always)]
    fn note_place(&mut self, turn: i64, step: Option<i64>) {
        if let Some(notes) = &mut self.notes {
            (notes.turn, notes.step) = (Some(turn), step);
        }
    }

    /// Data that are expected to be so; if they are not, any value, of which nothing is noted.
    #[inline(always)]
    fn expected(&mut self, read: impl Fn(&mut Self) -> Option<()>) -> Option<()> {
        let start = self.cursor.at;
        if read(self).is_none() {
            self.cursor.at = start;
            self.notes = None;
            self.value(1)?;
        }
        Some(())
    }

    /// The data of a turn/end.
    #[inline(always)]
    fn turn_end(&mut self) -> Option<()> {
        self.literal(b"{\"turn\":")?;
        let turn = self.cursor.integer()?;
        self.note_place(turn, None);
        self.literal(b",\"reason\":")?;
        if self.literal(b"{\"kind\":\"completed\"}").is_none() {
            self.value(2)?;
        }
        self.literal(b"}")
    }

    /// The data of a tool/call.
    #[inline(always)]
    fn tool_call(&mut self) -> Option<()> {
        self.turn_and_step()?;
        self.literal(b",\"callId\":\"")?;
        self.call()?;
        self.literal(b"}")
    }

    /// The id of a call behind its opening quote, its name and arguments.
    #[inline(always)]
    fn call(&mut self) -> Option<()> {
        let id = self.nonempty_text()?;
        self.literal(b",\"name\":\"")?;
        let name = self.nonempty_text()?;
        self.literal(b",\"arguments\":\"")?;
        let arguments = self.cursor.span()?;
        if self.notes.is_some() {
            self.scratch.calls.push(CallNotes { id, name, arguments });
            if self.scratch.calls.len() > MAX_CALLS {
                self.notes = None;
            }
        }
        Some(())
    }

    /// The data of a settlement, which starts with its place.
    #[inline(always)]
    fn settlement(&mut self, event_type: &[u8]) -> Option<StreamCounts> {
        self.turn_and_step()?;
        let mut counts = None;
        let mut has_message = false;
        let mut others = [None; 2];
        while self.literal(b",\"").is_some() {
            if self.literal(b"message\":").is_some() {
                if std::mem::replace(&mut has_message, true) {
                    (!SPELLED).then_some(())?;
                    self.notes = None;
                }
                self.message(Role::Assistant, 2)?;
            } else if self.literal(b"stream\":").is_none() {
                // A key without an escape is not the stream's.
                let key = self.text()?;
                let key = self.cursor.bytes.get(key.start..key.end)?;
                if SPELLED {
                    // Two further keys at most, which are none of the others and not like an index.
                    let is_known = matches!(key, b"turn" | b"step" | b"message" | b"stream");
                    let is_like_index = key.first().is_some_and(u8::is_ascii_digit);
                    (!is_known && !is_like_index).then_some(())?;
                    others = match others {
                        [None, _] => [Some(key), None],
                        [Some(first), None] if first != key => [Some(first), Some(key)],
                        _ => return None,
                    };
                }
                self.literal(b":")?;
                let start = self.cursor.at;
                self.unretired(2)?;
                match key {
                    b"turn" | b"step" => self.notes = None,
                    b"interrupted" if self.compares => self.notes = None,
                    b"usage" if self.compares => self.scratch.stream.usage = Some((start, self.cursor.at)),
                    _ => {}
                }
            } else if counts.replace(self.stream()?).is_some() {
                return None;
            }
        }
        self.literal(b"}")?;
        if !has_message && event_type == b"assistant/message" {
            self.notes = None;
        }
        counts
    }

    #[inline(always)]
    fn stream(&mut self) -> Option<StreamCounts> {
        let start = self.cursor.at;
        self.literal(b"[")?;
        let Scratch { nesting, stream, .. } = &mut *self.scratch;
        let (bytes, max_depth) = (self.cursor.bytes, self.max_depth - 3);
        let records = if SPELLED {
            skip_spelled_records(bytes, start, max_depth, nesting)?
        } else if self.compares {
            skip_records(bytes, start, max_depth, nesting, stream)?
        } else {
            skip_records(bytes, start, max_depth, nesting, ())?
        };
        self.cursor.at = records.end;
        (!records.may_be_retired).then_some(StreamCounts {
            records: u64::from(records.count),
            chunks: u64::from(records.chunks),
        })
    }

    /// The data of a tool/result that keeps rule E and has no `error`, of which rule F speaks.
    #[inline(always)]
    fn tool_result(&mut self) -> Option<()> {
        self.turn_and_step()?;
        self.literal(b",\"message\":{\"role\":\"tool\",\"source\":{\"kind\":\"tool\",\"callId\":\"")?;
        let source = self.nonempty_text()?;
        self.literal(b"},\"toolCallId\":\"")?;
        let call = self.nonempty_text()?;
        let bytes = self.cursor.bytes;
        if bytes.get(source.start..source.end) != bytes.get(call.start..call.end) {
            return None;
        }
        self.literal(b",\"content\":")?;
        self.content()?;
        let mut is_error = None;
        if self.literal(b",\"isError\":").is_some() {
            is_error = Some(self.literal(b"false").is_none());
            if is_error == Some(true) {
                self.literal(b"true")?;
            }
        }
        self.literal(b",\"id\":\"")?;
        let id = self.nonempty_text()?;
        if let Some(notes) = &mut self.notes {
            notes.result = Some(ResultNotes { call, id, is_error });
        }
        self.literal(b"}}")
    }

    /// The data of a system/message that keeps rule D.
    #[inline(always)]
    fn system_message(&mut self) -> Option<()> {
        self.literal(b"{\"turn\":")?;
        self.positive()?;
        self.literal(b",\"step\":")?;
        self.positive()?;
        self.literal(b",\"message\":{\"role\":\"system\",\"content\":")?;
        self.blocks()?;
        self.literal(b",\"source\":")?;
        self.unretired(3)?;
        self.literal(b",\"id\":\"")?;
        self.nonempty_text()?;
        self.literal(b"}}")
    }

    /// A message inside so many arrays and objects; if it is another than is expected of the role, any value that is not
    /// to be retired.
    #[inline(always)]
    fn message(&mut self, role: Role, levels: usize) -> Option<()> {
        let at = self.cursor.at;
        if self.usual_message(role, levels).is_some() {
            return Some(());
        }
        self.cursor.at = at;
        self.notes = None;
        self.unretired(levels)
    }

    #[inline(always)]
    fn usual_message(&mut self, role: Role, levels: usize) -> Option<()> {
        match role {
            Role::User => self.literal(b"{\"role\":\"user\",\"content\":")?,
            Role::Assistant => self.literal(b"{\"role\":\"assistant\",\"content\":")?,
        }
        let content = self.cursor.at;
        self.blocks()?;
        if self.compares {
            self.scratch.stream.content = (content, self.cursor.at);
        }
        self.literal(b",\"source\":")?;
        let source = self.cursor.at;
        let expected = match role {
            Role::User => self.literal(b"{\"kind\":\"user\"}"),
            Role::Assistant => self.model(levels + 1),
        };
        if expected.is_none() {
            self.cursor.at = source;
            self.notes = None;
            self.unretired(levels + 1)?;
        }
        self.literal(b",\"id\":\"")?;
        let id = self.cursor.span()?;
        if id.start == id.end {
            self.notes = None;
        }
        self.literal(b"}")
    }

    /// The source of an answer inside so many arrays and objects.
    #[inline(always)]
    fn model(&mut self, levels: usize) -> Option<()> {
        self.literal(b"{\"kind\":\"model\",\"provider\":\"")?;
        self.nonempty_text()?;
        self.literal(b",\"model\":\"")?;
        self.nonempty_text()?;
        if self.literal(b",\"replayState\":").is_some() {
            let start = self.cursor.at;
            self.unretired(levels + 1)?;
            if self.compares {
                self.scratch.stream.replay_state = Some((start, self.cursor.at));
            }
        }
        self.literal(b"}")
    }

    /// Blocks of a message; those of other types than the usual ones are not to be retired.
    #[inline(always)]
    fn content(&mut self) -> Option<()> {
        let start = self.cursor.at;
        if self.blocks().is_some() {
            return Some(());
        }
        self.cursor.at = start;
        self.notes = None;
        (self.cursor.bytes.get(start) == Some(&b'[')).then_some(())?;
        self.unretired(3)
    }

    /// One or more blocks of text, reasoning and tool calls, as rule D wants them.
    #[inline(always)]
    fn blocks(&mut self) -> Option<()> {
        self.literal(b"[")?;
        loop {
            self.literal(b"{\"type\":\"")?;
            if self.literal(b"tool-call\",\"id\":\"").is_some() {
                self.call()?;
            } else {
                if self.literal(b"text\",\"text\":\"").is_none() {
                    self.literal(b"reasoning\",\"text\":\"")?;
                }
                self.cursor.span()?;
            }
            self.literal(b"}")?;
            if self.literal(b",").is_none() {
                return self.literal(b"]");
            }
        }
    }

    /// The data of a request/header that keeps rules A5 and C2.
    #[inline(always)]
    fn request_header(&mut self) -> Option<()> {
        self.literal(b"{\"header\":")?;
        let rest = self.cursor.bytes.get(self.cursor.at..)?;
        let known = &self.scratch.header;
        if !known.is_empty()
            && self.scratch.header_kind == (self.max_depth, SPELLED)
            && rest.starts_with(known)
        {
            // Where an object starts with the same bytes it ends with them.
            self.cursor.at += known.len();
        } else {
            self.new_header(rest)?;
        }
        self.literal(b",\"reason\":\"")?;
        self.cursor.span()?;
        self.literal(b"}")
    }

    /// A request header that starts these bytes.
    #[inline(never)]
    fn new_header(&mut self, rest: &[u8]) -> Option<()> {
        (rest.first() == Some(&b'{')).then_some(())?;
        let skipped = self.value(2)?;
        (!skipped.may_be_ruled).then_some(())?;
        let len = skipped.end - (self.cursor.bytes.len() - rest.len());
        if let Some(header) = rest.get(..len).filter(|header| header.len() <= MAX_HEADER_BYTES) {
            self.scratch.header.clear();
            self.scratch.header.extend_from_slice(header);
            self.scratch.header_kind = (self.max_depth, SPELLED);
        }
        Some(())
    }

    /// The rest of an array of increasing seqs before this one, one or more.
    #[inline(always)]
    fn earlier_seqs(&mut self, seq: u64) -> Option<()> {
        let mut next = 0;
        loop {
            let earlier = u64::try_from(self.cursor.integer()?).ok()?;
            if earlier < next || earlier >= seq {
                return None;
            }
            next = earlier + 1;
            if self.literal(b",").is_none() {
                return self.literal(b"]");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;
    use crate::limits::Limits;
    use crate::row::{Mode, Row, RowScanner, ScanOptions, Unseen};
    use crate::rules::{Level, agrees, wanted_for};

    const FULLER: StreamCounts = StreamCounts {
        records: 6,
        chunks: 7,
    };

    const HEADER: &str =
        r#"{"type":"session","version":4,"id":"s","createdAt":0,"isSeeded":false,"delegationDepth":0}"#;

    const STREAM: &str = r#"[{"type":"chunk","time":5,"chunk":{"type":"block-start","index":0,"blockType":"text"}},{"type":"text-chunks","time0":5,"index":0,"dt":[1],"texts":["a\n","b"]},{"type":"chunk","time":7,"chunk":{"type":"finish","reason":{"kind":"stop"}}}]"#;

    /// Data of each kind of row, as the harness spells them.
    fn events() -> Vec<(&'static str, String, &'static str)> {
        let place = r#""turn":1,"step":1"#;
        let text = r#"{"type":"text","text":"a \"b\"\n"}"#;
        let call = r#"{"type":"tool-call","id":"c","name":"n","arguments":"{}"}"#;
        let blocks = format!(r#"{{"type":"reasoning","text":""}},{text},{call}"#);
        let user = format!(r#"{{"role":"user","content":[{text}],"source":{{"kind":"user"}},"id":"u"}}"#);
        let tools = r#"[{"name":"n","parameters":{"type":"object","required":["path"]}}]"#;
        vec![
            ("turn/start", r#"{"turn":1}"#.into(), ""),
            ("step/start", format!("{{{place}}}"), ""),
            ("step/end", format!("{{{place}}}"), ""),
            (
                "turn/end",
                r#"{"turn":1,"reason":{"kind":"completed"}}"#.into(),
                "",
            ),
            ("user/message", user, r#","surfaceOp":"append""#),
            (
                "system/message",
                format!(
                    r#"{{{place},"message":{{"role":"system","content":[{text},{text}],"source":{{"kind":"k"}},"id":"i"}}}}"#
                ),
                r#","surfaceOp":{"op":"replace","start":0,"end":0}"#,
            ),
            (
                "request/header",
                format!(r#"{{"header":{{"config":{{"model":"m"}},"tools":{tools}}},"reason":"initial"}}"#),
                "",
            ),
            (
                "tool/call",
                format!(r#"{{{place},"callId":"c","name":"n","arguments":"{{\"a\": 1.5}}"}}"#),
                "",
            ),
            (
                "tool/result",
                format!(
                    r#"{{{place},"message":{{"role":"tool","source":{{"kind":"tool","callId":"c"}},"toolCallId":"c","content":[{text}],"isError":false,"id":"r"}}}}"#
                ),
                r#","sourceEventSeqs":[0,2],"surfaceOp":"append""#,
            ),
            (
                "assistant/message",
                format!(
                    r#"{{{place},"message":{{"role":"assistant","content":[{blocks}],"source":{{"kind":"model","model":"m"}},"id":"a"}},"usage":{{"inputTokens":1}},"stream":{STREAM}}}"#
                ),
                r#","surfaceOp":"append""#,
            ),
            (
                "assistant/attempt",
                format!(r#"{{{place},"stream":{STREAM},"more":[0]}}"#),
                "",
            ),
            ("x/plugin", "[null,-0,1e2,{}]".into(), r#","ignorable":true"#),
        ]
    }

    /// A turn whose rows fit each other, by position.
    fn turn() -> Vec<(&'static str, String, &'static str)> {
        let place = r#""turn":1,"step":1"#;
        let call = r#"{"type":"tool-call","id":"c","name":"n","arguments":"{\"a\": 1}"}"#;
        let text = r#"{"type":"text","text":"a\nb"}"#;
        let state = r#"{"response":{},"blocks":[{},{}]}"#;
        let chunk = |chunk: &str| format!(r#"{{"type":"chunk","time":5,"chunk":{chunk}}}"#);
        let stream = [
            chunk(r#"{"type":"block-start","index":0,"blockType":"text"}"#),
            r#"{"type":"text-chunks","time0":5,"index":0,"dt":[1],"texts":["a\n","b"]}"#.to_owned(),
            chunk(&format!(r#"{{"type":"block-end","index":0,"block":{text}}}"#)),
            chunk(&format!(r#"{{"type":"block-end","index":1,"block":{call}}}"#)),
            chunk(r#"{"type":"usage","usage":{"inputTokens":1}}"#),
            chunk(&format!(
                r#"{{"type":"finish","reason":{{"kind":"stop"}},"replayState":{state}}}"#
            )),
        ];
        let user = format!(r#"{{"role":"user","content":[{text}],"source":{{"kind":"user"}},"id":"u"}}"#);
        let answer = format!(
            r#"{{{place},"message":{{"role":"assistant","content":[{text},{call}],"source":{{"kind":"model","provider":"p","model":"m","replayState":{state}}},"id":"a"}},"usage":{{"inputTokens":1}},"stream":[{}]}}"#,
            stream.join(",")
        );
        let result = |content: &str| {
            format!(
                r#"{{{place},"message":{{"role":"tool","source":{{"kind":"tool","callId":"c"}},"toolCallId":"c","content":[{content}],"isError":false,"id":"r"}}}}"#
            )
        };
        let append = r#","surfaceOp":"append""#;
        vec![
            ("turn/start", r#"{"turn":1}"#.into(), ""),
            ("user/message", user, append),
            ("step/start", format!("{{{place}}}"), ""),
            ("x/plugin", "{}".into(), r#","ignorable":true"#),
            ("todo/write", "null".into(), ""),
            ("assistant/message", answer, append),
            (
                "tool/call",
                format!(r#"{{{place},"callId":"c","name":"n","arguments":"{{\"a\": 1}}"}}"#),
                "",
            ),
            (
                "tool/result",
                result(text),
                r#","sourceEventSeqs":[6],"surfaceOp":"append""#,
            ),
            (
                "tool/result",
                result("{}"),
                r#","sourceEventSeqs":[7],"surfaceOp":{"op":"replace","startSeq":7,"endSeq":7}"#,
            ),
            ("step/end", format!("{{{place}}}"), ""),
            (
                "turn/end",
                r#"{"turn":1,"reason":{"kind":"completed"}}"#.into(),
                "",
            ),
        ]
    }

    fn row(event: &(&str, String, &str), seq: usize) -> String {
        let (kind, data, rest) = event;
        format!(
            r#"{{"type":"{kind}","seq":{seq},"time":{},"data":{data}{rest}}}"#,
            1_780_000_000_000 + seq
        )
    }

    /// Puts something else at a place of a row, mostly something that is JSON there.
    fn change(chance: &mut Chance, row: &mut String) {
        const WORDS: [&str; 30] = [
            "turn",
            "step",
            "message",
            "interrupted",
            "block-end",
            "max-tokens",
            "tool-result",
            "tool-addition",
            "developer",
            "plugin",
            "deferLoading",
            "system",
            "stream",
            "data",
            "seq",
            "",
            "c",
            "type",
            "text",
            "session/end-seed",
            "tool/code-dispatch",
            "developer/message",
            "content",
            "error",
            "\\u0073tream",
            "\\u0070lugin",
            "turn/end",
            "tool/result",
            "system/message",
            "request/header",
        ];
        const VALUES: [&str; 13] = [
            "7",
            "null",
            "true",
            "-0",
            "0",
            "1",
            "2.0",
            "9007199254740992",
            "{}",
            "[]",
            r#"[{"type":"tool-result"}]"#,
            r#""plugin""#,
            r#"{"kind":"plugin"}"#,
        ];
        let quotes: Vec<usize> = row.match_indices('"').map(|(at, _)| at).collect();
        let starts: Vec<usize> = row.match_indices(':').map(|(at, _)| at + 1).collect();
        let pick = |chance: &mut Chance, of: &[usize]| of.get(chance.below(of.len())).copied().unwrap_or(0);
        match chance.below(9) {
            // Another text between two quotes that follow each other.
            0..=3 if quotes.len() > 1 => {
                let first = chance.below(quotes.len() - 1);
                row.replace_range(
                    quotes[first] + 1..quotes[first + 1],
                    WORDS[chance.below(WORDS.len())],
                );
            }
            // Another value up to the next comma.
            4 | 5 if !starts.is_empty() => {
                let start = pick(chance, &starts);
                let len = row[start..].find([',', '}']).unwrap_or(0);
                row.replace_range(start..start + len, VALUES[chance.below(VALUES.len())]);
            }
            // One more member at the start of an object.
            6 => {
                let objects: Vec<usize> = row.match_indices('{').map(|(at, _)| at + 1).collect();
                let (word, value) = (
                    WORDS[chance.below(WORDS.len())],
                    VALUES[chance.below(VALUES.len())],
                );
                row.insert_str(pick(chance, &objects), &format!(r#""{word}":{value},"#));
            }
            7 => {
                let spaces: Vec<usize> = row.match_indices([',', ':', '}']).map(|(at, _)| at).collect();
                row.insert(pick(chance, &spaces), ' ');
            }
            _ => {
                let at = chance.below(row.len());
                if row.is_char_boundary(at) && row.is_char_boundary(at + 1) {
                    let other = ["\\", "\"", "}", "]", ",", "0", "é", "\u{1}", ""][chance.below(9)];
                    row.replace_range(at..=at, other);
                }
            }
        }
    }

    /// What a check finds that looks into rows or does not.
    fn found(text: &[u8], piece: usize, options: ScanOptions, level: Level, looks: bool) -> String {
        let mut scanner = RowScanner::at_level(options, level);
        let mut fed = Ok(());
        for bytes in text.chunks(piece) {
            fed = fed.and_then(|()| {
                if looks {
                    scanner.feed(bytes, &mut |_: &Row<'_>| {})
                } else {
                    scanner.feed_to(bytes, &mut Unseen)
                }
            });
        }
        format!("{fed:?} {:?}", scanner.finish())
    }

    #[test]
    fn a_scan_without_a_tape_finds_what_one_with_it_finds() {
        const LEVELS: [Level; 4] = [Level::Scan, Level::Read, Level::Restore, Level::Full];
        let (events, turn) = (events(), turn());
        let mut chance = Chance(0x5eed);
        let mut ends = [0; 4];
        for case in 0..12_000 {
            let mut text = HEADER.to_owned();
            let level = LEVELS[case % 4];
            let log: Vec<_> = if chance.below(2) == 0 {
                turn.iter().collect()
            } else {
                let last = chance.below(9);
                (0..=last).map(|_| &events[chance.below(events.len())]).collect()
            };
            for (seq, event) in log.into_iter().enumerate() {
                let mut row = row(event, seq);
                if chance.below(8) == 0 {
                    for _ in 0..=chance.below(2) {
                        change(&mut chance, &mut row);
                    }
                }
                text.push('\n');
                text.push_str(&row);
            }
            text.push_str(["\n", "\n", "\n", ""][chance.below(4)]);
            let options = ScanOptions {
                mode: [Mode::Strict, Mode::Recoverable][chance.below(2)],
                generation: None,
                check_streams: chance.below(4) > 0,
                keeps_records: false,
                limits: Limits {
                    max_depth: [1024, 9, 8, 6][chance.below(4)],
                    max_row_bytes: [1 << 20, 300][usize::from(chance.below(8) == 0)],
                    ..Limits::default()
                },
            };
            let piece = [usize::MAX, 1 + chance.below(400)][chance.below(2)];
            let (exact, quick) = (
                found(text.as_bytes(), piece, options, level, true),
                found(text.as_bytes(), piece, options, level, false),
            );
            assert_eq!(quick, exact, "case {case}, {level:?}, {options:?}: {text}");
            ends[if exact.contains("Err(") {
                0
            } else if !exact.contains("issue: None") {
                1
            } else if exact.contains("findings: Findings { kept: [],") {
                2
            } else {
                3
            }] += 1;
        }
        assert!(ends.iter().all(|&count| count > 300), "{ends:?}");
    }

    #[test]
    fn the_spelling_of_the_harness_is_recognised() {
        let mut scratch = Scratch::default();
        for (seq, event) in events().iter().chain(&turn()).enumerate() {
            let text = row(event, seq + 3) + "\n";
            for _ in 0..2 {
                let found = event_row(text.as_bytes(), 64, &mut scratch, |_| Wanted::Judged).unwrap();
                assert_eq!((found.seq, found.len), (seq as u64 + 3, text.len()), "{text}");
                assert!(found.event_type(text.as_bytes()).text_is(event.0));
                let is_settlement = event.0.starts_with("assistant/");
                let counts = StreamCounts {
                    records: 3,
                    chunks: 4,
                };
                let counts = if text.contains("block-end") {
                    FULLER
                } else {
                    counts
                };
                assert_eq!(found.stream, is_settlement.then_some(counts));
            }
        }
    }

    #[test]
    fn what_rules_ask_of_sound_rows_is_noted() {
        let mut scratch = Scratch::default();
        for level in [Level::Read, Level::Restore, Level::Full] {
            for (seq, event) in turn().iter().enumerate() {
                let text = row(event, seq) + "\n";
                let wanted = |event_type: &[u8]| wanted_for(event_type, level);
                let found = event_row(text.as_bytes(), 64, &mut scratch, wanted);
                let is_parsed = text.contains("replace");
                assert_eq!(found.is_some_and(|row| row.notes.is_some()), !is_parsed, "{text}");
                if level == Level::Full && event.0 == "assistant/message" {
                    assert!(agrees(text.as_bytes(), &scratch.stream));
                }
            }
        }
    }

    #[test]
    fn a_known_header_is_judged_by_the_bytes_behind_it() {
        let mut scratch = Scratch::default();
        let header = |rest: &str| {
            format!(r#"{{"type":"request/header","seq":0,"time":1,"data":{{"header":{{"a":[1]}}{rest}"#)
        };
        let known = header(",\"reason\":\"r\"}}\n");
        assert!(event_row(known.as_bytes(), 64, &mut scratch, |_| Wanted::Judged).is_some());
        assert_eq!(scratch.header, br#"{"a":[1]}"#);
        for rest in [
            "",
            ",",
            ",\"reason\":1}}\n",
            "}}",
            ",\"reason\":\"r\",\"header\":1}}\n",
            "]}\n",
        ] {
            assert!(
                event_row(header(rest).as_bytes(), 64, &mut scratch, |_| Wanted::Judged).is_none(),
                "{rest}"
            );
        }
        // With fewer levels it is read again.
        assert!(event_row(known.as_bytes(), DEPTH, &mut scratch, |_| Wanted::Judged).is_some());
        assert_eq!(scratch.header_kind, (DEPTH, false));
    }
}
