//! What all rules over events share: the inventory of generation 4, small tests of members, refusals. Spec 30 §1 to §3.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::error::{Error, ErrorKind, Location};
use crate::json::Node;
use crate::json::number::double;
use crate::row::{Envelope, NotedRow, Wanted};

use super::Level;

macro_rules! event_types {
    ($($variant:ident $name:literal)*) => {
        /// Type of an event, as far as a rule asks for it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum EventType {
            $($variant,)*
            /// Another type of generation 4.
            Plain,
            /// None of generation 4.
            Unknown,
        }

        impl EventType {
            #[inline]
            fn of(name: &[u8]) -> Self {
                match name {
                    $($name => Self::$variant,)*
                    _ if is_plain(name) => Self::Plain,
                    _ => Self::Unknown,
                }
            }

            /// The type as it is written; of `Plain` and `Unknown` only what a message can say.
            pub(super) const fn name(self) -> &'static str {
                let bytes: &[u8] = match self {
                    $(Self::$variant => $name,)*
                    Self::Plain => b"an event of its type",
                    Self::Unknown => b"an event of unknown type",
                };
                match std::str::from_utf8(bytes) {
                    Ok(text) => text,
                    Err(_) => "",
                }
            }
        }
    };
}

event_types! {
    SystemMessage b"system/message"
    DeveloperMessage b"developer/message"
    UserMessage b"user/message"
    AssistantMessage b"assistant/message"
    ToolResult b"tool/result"
    AssistantAttempt b"assistant/attempt"
    TurnStart b"turn/start"
    TurnEnd b"turn/end"
    StepStart b"step/start"
    StepEnd b"step/end"
    ToolCall b"tool/call"
    RequestHeader b"request/header"
    RequestContext b"request/context"
    DispatchStart b"tool/ptc-dispatch-start"
    Dispatch b"tool/ptc-dispatch"
    Retry b"llm/retry"
    RetryStarted b"llm/retry-started"
    Title b"session/title"
    TitleRequest b"session/title-llm-request"
    CommandRun b"command/run"
    CommandDone b"command/done"
    CompactionStart b"compaction/start"
    CompactionSummary b"compaction/summary"
    CompactionEnd b"compaction/end"
    CompactionPrune b"compaction/prune"
    EndSeed b"session/end-seed"
    InboxSpliced b"agent/inbox/spliced"
    DeliveryAccepted b"session-log-deepseek/delivery-accepted"
    Catalog b"subagent/catalog"
    ImageOffload b"image/offload"
}

/// Whether the type is one of those of spec 30 §3 that no rule looks into.
fn is_plain(name: &[u8]) -> bool {
    matches!(
        name,
        b"agent-preset/selected"
            | b"approval/asked"
            | b"approval/decided"
            | b"approval/policy"
            | b"deliverables/presented"
            | b"feedback/message-delete"
            | b"feedback/message-put"
            | b"feedback/record"
            | b"goal/change"
            | b"hook/invoked"
            | b"hook/result"
            | b"job/registered"
            | b"job/settled"
            | b"model/selection"
            | b"permission/preset"
            | b"plan/mode"
            | b"sandbox/mode"
            | b"schedule/change"
            | b"subagent/descriptor"
            | b"subagent/model-selection-policy"
            | b"team/member"
            | b"team/message/delivered"
            | b"team/message/queued"
            | b"team/task"
            | b"todo/write"
            | b"tool-workflow/agent-end"
            | b"tool-workflow/agent-start"
            | b"tool-workflow/run-end"
            | b"tool-workflow/run-start"
            | b"web/deepseek-search-llm-request"
            | b"working-directory/change"
            | b"workspace/changes"
    )
}

impl EventType {
    /// Role of the message of a surface type; None for any other. Spec 30 §2.
    #[inline]
    pub(super) const fn role(self) -> Option<&'static str> {
        match self {
            Self::SystemMessage => Some("system"),
            Self::DeveloperMessage => Some("developer"),
            Self::UserMessage => Some("user"),
            Self::AssistantMessage => Some("assistant"),
            Self::ToolResult => Some("tool"),
            _ => None,
        }
    }

    /// Whether the event ends an attempt and embeds its stream.
    #[inline]
    pub(super) const fn is_settlement(self) -> bool {
        matches!(self, Self::AssistantMessage | Self::AssistantAttempt)
    }
}

/// The message of a surface event, its members found in one pass. Spec 30 §2.
#[derive(Clone, Copy)]
pub(super) struct Message<'a> {
    pub(super) id: Option<Node<'a>>,
    pub(super) role: Option<Node<'a>>,
    pub(super) content: Option<Node<'a>>,
    /// `source`, if it is an object.
    pub(super) source: Option<Node<'a>>,
    /// `source.kind`.
    pub(super) source_kind: Option<Node<'a>>,
    pub(super) tool_call_id: Option<Node<'a>>,
    pub(super) is_error: Option<Node<'a>>,
}

impl<'a> Message<'a> {
    fn of(message: Node<'a>) -> Self {
        let [id, role, content, source, tool_call_id, is_error] = pick(
            message,
            ["id", "role", "content", "source", "toolCallId", "isError"],
        );
        let source = source.filter(Node::is_object);
        let source_kind = source.and_then(|source| source.member("kind"));
        Self {
            id,
            role,
            content,
            source,
            source_kind,
            tool_call_id,
            is_error,
        }
    }

    /// Blocks of the content that are objects, each with its type.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (Node<'a>, Option<Node<'a>>)> + use<'a> {
        let blocks = self.content.into_iter().flat_map(|content| content.elements());
        blocks
            .filter(Node::is_object)
            .map(|block| (block, block.member("type")))
    }

    /// Names of the `tool-addition` blocks.
    pub(super) fn additions(&self) -> impl Iterator<Item = Option<Node<'a>>> + use<'a> {
        self.blocks()
            .filter(|(_, kind)| is_word(*kind, "tool-addition"))
            .map(|(block, _)| block.member("toolName"))
    }
}

/// One event with what most rules need of it.
#[derive(Clone, Copy)]
pub(super) struct Event<'r, 'a> {
    /// Its position in the log.
    pub(super) seq: u64,
    pub(super) kind: EventType,
    pub(super) row: &'r Envelope<'a>,
    /// `data`, if it is an object.
    pub(super) data: Option<Node<'a>>,
    pub(super) turn: Option<Node<'a>>,
    pub(super) step: Option<Node<'a>>,
    /// The message of a surface type, if it is an object.
    pub(super) message: Option<Message<'a>>,
    /// Set if the row was not parsed. It then keeps every rule that looks at it alone, and what else is asked of it than
    /// the members above is noted here.
    pub(super) noted: Option<&'r NotedRow<'a>>,
}

/// How rows of a type are wanted for the rules of a level.
#[inline]
pub(crate) fn wanted_for(event_type: &[u8], level: Level) -> Wanted {
    if level == Level::Scan {
        return Wanted::Judged;
    }
    match EventType::of(event_type) {
        EventType::AssistantMessage if level == Level::Full => Wanted::Compared,
        EventType::AssistantAttempt if level == Level::Full => Wanted::Parsed,
        EventType::UserMessage
        | EventType::AssistantMessage
        | EventType::AssistantAttempt
        | EventType::ToolResult
        | EventType::ToolCall
        | EventType::TurnStart
        | EventType::TurnEnd
        | EventType::StepStart
        | EventType::StepEnd
        | EventType::Plain => Wanted::Noted,
        EventType::Unknown => Wanted::NotedIfIgnorable,
        _ => Wanted::Parsed,
    }
}

impl<'r, 'a> Event<'r, 'a> {
    /// The event of a row that was not parsed: of a message it has what is asked for in a row that is in order.
    pub(super) fn of_noted(seq: u64, row: &'r Envelope<'a>, noted: &'r NotedRow<'a>) -> Self {
        let name = row.event_type.and_then(|node| node.text());
        let kind = EventType::of(name.as_deref().unwrap_or_default());
        let source_kind = match kind {
            EventType::UserMessage => Some(Node::of_text(b"user", 0, 4)),
            _ => None,
        };
        let message = Message {
            id: None,
            role: None,
            content: None,
            source: None,
            source_kind,
            tool_call_id: noted.result().map(|result| result.call),
            is_error: None,
        };
        Self {
            seq,
            kind,
            row,
            data: row.data,
            turn: noted.turn(),
            step: noted.step(),
            message: kind.role().map(|_| message),
            noted: Some(noted),
        }
    }

    pub(super) fn of(seq: u64, row: &'r Envelope<'a>) -> Self {
        let name = row.event_type.and_then(|node| node.text());
        let kind = EventType::of(name.as_deref().unwrap_or_default());
        let data = row.data.filter(Node::is_object);
        let (mut turn, mut step, mut message) = (None, None, None);
        match (data, kind) {
            (None, _) | (_, EventType::Plain | EventType::Unknown) => {}
            (Some(data), EventType::UserMessage) => message = Some(Message::of(data)),
            (Some(data), _) => {
                let found;
                [turn, step, found] = pick(data, ["turn", "step", "message"]);
                if kind.role().is_some() {
                    message = found.filter(Node::is_object).map(Message::of);
                }
            }
        }
        Self {
            seq,
            kind,
            row,
            data,
            turn,
            step,
            message,
            noted: None,
        }
    }

    /// Whether the surface operation is `append`.
    #[inline]
    pub(super) fn is_append(&self) -> bool {
        is_word(self.row.surface_op, "append")
    }

    /// A member of `data`.
    #[inline]
    pub(super) fn member(&self, key: &str) -> Option<Node<'a>> {
        self.data.and_then(|data| data.member(key))
    }

    /// Whether it is an end-seed marker that sets the inherited cut. Spec 10 §4.4.
    pub(super) fn is_inherited_marker(&self) -> bool {
        self.kind == EventType::EndSeed && self.member("inherited").is_some_and(|value| value.is_true())
    }

    /// The refusal of this event.
    #[cold]
    pub(super) fn refuse(&self, rule: &'static str, message: impl Into<Cow<'static, str>>) -> Error {
        refuse(rule, self.seq, message)
    }
}

/// The refusal of an event.
#[cold]
pub(super) fn refuse(rule: &'static str, seq: u64, message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Row, message)
        .with_rule(rule)
        .located(at(seq))
}

/// The place of an event.
pub(super) fn at(seq: u64) -> Location {
    Location {
        seq: Some(seq),
        ..Location::default()
    }
}

/// The members with these keys, found in one pass; of a repeated key the last one.
#[inline]
pub(super) fn pick<'a, const N: usize>(object: Node<'a>, keys: [&str; N]) -> [Option<Node<'a>>; N] {
    let mut found = [None; N];
    for (key, value) in object.members() {
        if let Some((slot, _)) = found.iter_mut().zip(keys).find(|(_, name)| key.text_is(name)) {
            *slot = Some(value);
        }
    }
    found
}

/// The members of an object that has exactly these keys.
pub(super) fn pick_exactly<'a, const N: usize>(value: Node<'a>, keys: [&str; N]) -> Option<[Node<'a>; N]> {
    if !value.is_object()
        || !value
            .members()
            .all(|(key, _)| keys.iter().any(|name| key.text_is(name)))
    {
        return None;
    }
    let found = pick(value, keys);
    // Every slot is overwritten if none is missing.
    let mut members = [value; N];
    for (member, slot) in members.iter_mut().zip(found) {
        *member = slot?;
    }
    Some(members)
}

/// Whether the member is this string, which must be ASCII.
#[inline]
pub(super) fn is_word(value: Option<Node<'_>>, word: &str) -> bool {
    value.is_some_and(|value| value.text_is(word))
}

/// Whether the member is a non-empty string. Spec 30, intro.
#[inline]
pub(super) fn is_filled(value: Option<Node<'_>>) -> bool {
    value.is_some_and(|value| value.is_nonempty_text())
}

/// A non-empty string as WTF-8.
#[inline]
pub(super) fn filled(value: Option<Node<'_>>) -> Option<Cow<'_, [u8]>> {
    value
        .filter(Node::is_nonempty_text)
        .and_then(|value| value.text())
}

/// A member that is a count.
#[inline]
pub(super) fn count(value: Option<Node<'_>>) -> Option<u64> {
    value.and_then(|value| value.count())
}

/// A count below the event's own seq. Spec 30 §7.2.
#[inline]
pub(super) fn earlier(value: Option<Node<'_>>, seq: u64) -> Option<u64> {
    count(value).filter(|&value| value < seq)
}

/// Whether the member is this number; −0 is 0.
#[inline]
pub(super) fn is_number(value: Option<Node<'_>>, number: u64) -> bool {
    let number = double(i64::try_from(number).unwrap_or(i64::MAX));
    value.and_then(|value| value.number()) == Some(number)
}

/// The member if it is an object.
#[inline]
pub(super) fn object(value: Option<Node<'_>>) -> Option<Node<'_>> {
    value.filter(Node::is_object)
}

/// The member if it is an array.
#[inline]
pub(super) fn array(value: Option<Node<'_>>) -> Option<Node<'_>> {
    value.filter(Node::is_array)
}

/// A value for a message: a string quoted and cut, of anything else only that it is none.
#[cold]
pub(super) fn quote(value: Option<Node<'_>>) -> String {
    value
        .and_then(|value| value.text())
        .map_or_else(|| "no string".to_owned(), |text| quote_text(&text))
}

/// Characters of a string that a message quotes whole.
const MAX_QUOTED: usize = 48;

/// WTF-8 text in quotes, special characters escaped, at most [`MAX_QUOTED`] characters of it.
#[cold]
pub(super) fn quote_text(text: &[u8]) -> String {
    let mut codes: Vec<u32> = Codes(text).take(MAX_QUOTED + 1).collect();
    if codes.len() > MAX_QUOTED {
        codes.truncate(MAX_QUOTED - 1);
        codes.push(u32::from('…'));
    }
    let has = |wanted: char| codes.contains(&u32::from(wanted));
    let mark = if has('\'') && !has('"') { '"' } else { '\'' };
    let mut out = String::from(mark);
    for code in codes {
        match char::from_u32(code) {
            Some('\n') => out.push_str("\\n"),
            Some('\r') => out.push_str("\\r"),
            Some('\t') => out.push_str("\\t"),
            Some(char) if char == '\\' || char == mark => out.extend(['\\', char]),
            Some(char) if is_printable(char) => out.push(char),
            // Writing to a string does not fail.
            _ => {
                let _ = match code {
                    ..0x100 => write!(out, "\\x{code:02x}"),
                    0x100..0x1_0000 => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(mark);
    out
}

/// Whether a character shows as itself.
fn is_printable(char: char) -> bool {
    !char.is_control()
        && !matches!(
            char,
            '\u{a0}' | '\u{ad}' | '\u{1680}' | '\u{180e}' | '\u{2000}'..='\u{200f}' | '\u{2028}'..='\u{202f}'
                | '\u{205f}'..='\u{206f}' | '\u{3000}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..
        )
}

/// Code points of WTF-8 text, lone surrogates included.
struct Codes<'a>(&'a [u8]);

impl Iterator for Codes<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let (&first, mut rest) = self.0.split_first()?;
        let (mut code, following) = match first {
            0xf0.. => (u32::from(first & 0x07), 3),
            0xe0.. => (u32::from(first & 0x0f), 2),
            0xc0.. => (u32::from(first & 0x1f), 1),
            _ => (u32::from(first), 0),
        };
        for _ in 0..following {
            let (&byte, behind) = rest.split_first()?;
            code = code << 6 | u32::from(byte & 0x3f);
            rest = behind;
        }
        self.0 = rest;
        Some(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_short_and_has_no_special_characters() {
        assert_eq!(quote_text(b"a'b\n\\"), "\"a'b\\n\\\\\"");
        assert_eq!(quote_text("é\u{1}\u{2028}😀".as_bytes()), "'é\\x01\\u2028😀'");
        assert_eq!(quote_text(b"\xed\xa0\xbd"), "'\\ud83d'");
        assert_eq!(quote_text(&[b'x'; 48]), format!("'{}'", "x".repeat(48)));
        assert_eq!(quote_text(&[b'x'; 49]), format!("'{}…'", "x".repeat(47)));
    }

    #[test]
    fn types_are_told_apart() {
        // Spec 30 §3.
        assert_eq!(EventType::of(b"turn/start"), EventType::TurnStart);
        assert_eq!(EventType::of(b"todo/write"), EventType::Plain);
        assert_eq!(EventType::of(b"tool/code-dispatch"), EventType::Unknown);
        assert_eq!(EventType::of(b""), EventType::Unknown);
    }
}
