//! Row admission of generation 4: rules A to F, hard in both modes. Spec 30 §6.

use std::borrow::Cow;

use super::envelope::Envelope;
use crate::error::{Error, ErrorKind, Result};
use crate::json::{Kind, Node};
use crate::limits::MAX_SAFE_INTEGER;

#[cold]
fn refuse(rule: &'static str, message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Row, message).with_rule(rule)
}

/// The member of an object; None for any other value.
fn member<'a>(value: Option<Node<'a>>, key: &str) -> Option<Node<'a>> {
    value.and_then(|value| value.member(key))
}

fn text_is(value: Option<Node<'_>>, text: &str) -> bool {
    value.is_some_and(|value| value.text_is(text))
}

fn is_nonempty_text(value: Option<Node<'_>>) -> bool {
    value.is_some_and(|value| value.is_nonempty_text())
}

fn is_positive_count(value: Option<Node<'_>>) -> bool {
    value
        .and_then(|value| value.count())
        .is_some_and(|count| count > 0)
}

fn is_count(value: Option<Node<'_>>) -> bool {
    value.is_some_and(|value| value.count().is_some())
}

fn object(value: Option<Node<'_>>) -> Option<Node<'_>> {
    value.filter(Node::is_object)
}

fn array(value: Option<Node<'_>>) -> Option<Node<'_>> {
    value.filter(Node::is_array)
}

/// Objects among the elements of an array; none if it is no array.
fn blocks(value: Option<Node<'_>>) -> impl Iterator<Item = Node<'_>> {
    array(value)
        .into_iter()
        .flat_map(|value| value.elements())
        .filter(Node::is_object)
}

fn is_tool_change(block: Node<'_>) -> bool {
    let kind = block.member("type");
    text_is(kind, "tool-addition") || text_is(kind, "tool-removal")
}

/// Which rows of a type row admission looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// None: there is no rule for the type.
    Never,
    /// Those with a value that may be one of the strings that rules A2 to A4, B, C3 and C4 look for.
    IfRetired,
    /// All.
    Always,
}

impl Admission {
    /// How deep the rules look, in arrays and objects: an event, its `data`, `message`, `content`, a block, its
    /// `attachment`, and the `originalDimensions` of that.
    pub const DEPTH: usize = 7;

    /// Whether row admission looks at a row; `may_be_retired`: whether one of its values may be such a string.
    #[inline]
    pub fn looks(self, may_be_retired: bool) -> bool {
        match self {
            Self::Never => false,
            Self::IfRetired => may_be_retired,
            Self::Always => true,
        }
    }

    /// What row admission does with rows of a type.
    pub fn of(event_type: &[u8]) -> Self {
        match event_type {
            b"user/message"
            | b"assistant/message"
            | b"assistant/attempt"
            | b"agent/inbox/spliced"
            | b"session/title-llm-request"
            | b"compaction/summary"
            | b"team/message/queued"
            | b"tool/ptc-dispatch" => Self::IfRetired,
            b"tool/result"
            | b"system/message"
            | b"developer/message"
            | b"request/header"
            | b"tool/code-dispatch"
            | b"tool/code-dispatch-start" => Self::Always,
            _ => Self::Never,
        }
    }
}

/// Applies every rule of row admission to a parsed row. A value that is no object passes: decoding refuses it.
///
/// # Errors
/// `Unsupported` for rule C1, `Row` for all others; the rule is named.
///
/// # Source
/// Spec 30 §6.
///
/// `may_be_retired`: whether a value of the row may be one of the strings that rules A2 to A4, B, C3 and C4 look for;
/// they are skipped if not.
pub(crate) fn admit(row: &Envelope<'_>, may_be_retired: bool) -> Result<()> {
    let Some(event_type) = row.event_type.and_then(|node| node.text()) else {
        return Ok(());
    };
    let data = row.data;
    match &*event_type {
        event_type if !may_be_retired && Admission::of(event_type) == Admission::IfRetired => Ok(()),
        b"user/message" => {
            ordinary_message(data)?;
            no_results("C3", member(object(data), "content"))
        }
        b"assistant/message" => {
            let message = member(object(data), "message");
            ordinary_message(message)?;
            no_results("C3", member(object(message), "content"))?;
            stream_chunks(data)
        }
        b"assistant/attempt" => stream_chunks(data),
        b"tool/result" if !may_be_retired => {
            tool_result(data)?;
            fork_result(row)
        }
        b"tool/result" => {
            ordinary_message(member(object(data), "message"))?;
            tool_result(data)?;
            fork_result(row)
        }
        b"system/message" => {
            ordinary_message(member(object(data), "message"))?;
            system_message(data)
        }
        b"developer/message" => developer_message(data),
        b"request/header" => request_header(data),
        b"agent/inbox/spliced" => message_list(member(object(data), "inserted")),
        b"session/title-llm-request" => message_list(member(object(data), "messages")),
        b"compaction/summary" => {
            for key in ["summary", "rawOutput"] {
                let content = member(object(data), key);
                if blocks(content).any(is_tool_change) {
                    return Err(refuse(
                        "A3",
                        format!("`{key}` of a compaction/summary holds a tool-change block"),
                    ));
                }
                no_results("C3", content)?;
            }
            Ok(())
        }
        b"team/message/queued" => {
            no_results("C3", member(object(member(object(data), "message")), "content"))
        }
        b"tool/ptc-dispatch" => no_results("C3", member(object(data), "content")),
        b"tool/code-dispatch" | b"tool/code-dispatch-start" if !row.is_ignorable() => {
            let message = "the event type was retired and is not marked as ignorable";
            Err(Error::new(ErrorKind::Unsupported, message).with_rule("C1"))
        }
        _ => Ok(()),
    }
}

/// Rules A2 and B for one message.
fn ordinary_message(message: Option<Node<'_>>) -> Result<()> {
    let Some(message) = object(message) else {
        return Ok(());
    };
    let (mut role, mut content, mut source) = (None, None, None);
    for (key, value) in message.members() {
        if key.text_is("role") {
            role = Some(value);
        } else if key.text_is("content") {
            content = Some(value);
        } else if key.text_is("source") {
            source = Some(value);
        }
    }
    if text_is(role, "developer") {
        return Err(refuse(
            "A2",
            "only a developer/message may have the role developer",
        ));
    }
    if blocks(content).any(is_tool_change) {
        return Err(refuse(
            "A2",
            "only a developer/message may hold tool-change blocks",
        ));
    }
    if text_is(member(object(source), "kind"), "plugin") {
        return Err(refuse(
            "B",
            "the source kind plugin was retired; expected the producer's own kind",
        ));
    }
    Ok(())
}

fn message_list(messages: Option<Node<'_>>) -> Result<()> {
    for message in blocks(messages) {
        ordinary_message(Some(message))?;
        no_results("C3", message.member("content"))?;
    }
    Ok(())
}

/// Rule C3 for one array of blocks.
fn no_results(rule: &'static str, content: Option<Node<'_>>) -> Result<()> {
    if blocks(content).any(|block| text_is(block.member("type"), "tool-result")) {
        return Err(refuse(
            rule,
            "a tool-result block was retired; results are messages of role tool",
        ));
    }
    Ok(())
}

/// Rules A4 and C4.
fn stream_chunks(data: Option<Node<'_>>) -> Result<()> {
    for record in blocks(member(object(data), "stream")) {
        let (mut kind, mut chunk) = (None, None);
        for (key, value) in record.members() {
            if key.text_is("type") {
                kind = Some(value);
            } else if key.text_is("chunk") {
                chunk = Some(value);
            }
        }
        if !text_is(kind, "chunk") {
            continue;
        }
        let Some(chunk) = object(chunk) else { continue };
        let chunk_type = chunk.member("type");
        let closed = if text_is(chunk_type, "block-end") {
            member(object(chunk.member("block")), "type")
        } else if text_is(chunk_type, "block-start") {
            chunk.member("blockType")
        } else {
            None
        };
        if text_is(closed, "tool-addition") || text_is(closed, "tool-removal") {
            return Err(refuse(
                "A4",
                "a model stream may not open or close a tool-change block",
            ));
        }
        if text_is(closed, "tool-result") {
            return Err(refuse(
                "C4",
                "a model stream may not open or close a tool-result block",
            ));
        }
    }
    Ok(())
}

/// Rules A5 and C2.
fn request_header(data: Option<Node<'_>>) -> Result<()> {
    let header = member(object(data), "header");
    for tool in blocks(member(object(header), "tools")) {
        if tool.member("deferLoading").is_some_and(|value| !value.is_true()) {
            return Err(refuse("A5", "`deferLoading` of a tool is not true"));
        }
    }
    let Some(header) = object(header) else {
        return Err(refuse(
            "C2",
            "a request/header needs an object `data` with an object `header`",
        ));
    };
    if header.member("system").is_some() {
        return Err(refuse(
            "C2",
            "`system` of a request header was retired; it is a system/message",
        ));
    }
    Ok(())
}

/// Rules A1 and C3 for a developer message.
fn developer_message(data: Option<Node<'_>>) -> Result<()> {
    let rule = |message: &'static str| Err(refuse("A1", message));
    let Some(data) = object(data) else {
        return rule("a developer/message needs an object `data`");
    };
    let Some(message) = object(data.member("message")) else {
        return rule("a developer/message needs an object `message`");
    };
    if !message
        .member("role")
        .is_some_and(|role| role.text_is("developer"))
    {
        return rule("a developer/message needs the role developer");
    }
    if !is_positive_count(data.member("turn")) || !is_positive_count(data.member("step")) {
        return rule("`turn` and `step` of a developer/message must be counts from 1");
    }
    if !is_nonempty_text(message.member("id")) {
        return rule("the message of a developer/message needs a non-empty `id`");
    }
    let Some(content) = array(message.member("content")) else {
        return rule("the message of a developer/message needs an array `content`");
    };
    let kind = member(object(message.member("source")), "kind");
    if !is_nonempty_text(kind) || text_is(kind, "plugin") {
        return rule(
            "the message of a developer/message needs a `source` with a non-empty `kind` other than plugin",
        );
    }
    let mut adds = false;
    for block in blocks(Some(content)).filter(|&block| is_tool_change(block)) {
        let is_addition = text_is(block.member("type"), "tool-addition");
        adds |= is_addition;
        if !is_nonempty_text(block.member("toolName")) {
            return rule("a tool-change block needs a non-empty `toolName`");
        }
        if is_addition && block.member("tool").is_some() {
            return rule("a tool-addition may not have a member `tool`");
        }
    }
    let header_seq = data.member("headerSeq");
    if adds && !is_count(header_seq) {
        return rule("a developer/message with a tool-addition needs a count `headerSeq`");
    }
    if !adds && header_seq.is_some() {
        return rule("a developer/message without a tool-addition may not have `headerSeq`");
    }
    no_results("C3", Some(content))
}

/// Rule D.
fn system_message(data: Option<Node<'_>>) -> Result<()> {
    let rule = |message: &'static str| Err(refuse("D", message));
    let Some(data) = object(data) else {
        return rule("a system/message needs an object `data`");
    };
    if !is_positive_count(data.member("turn")) || !is_positive_count(data.member("step")) {
        return rule("`turn` and `step` of a system/message must be counts from 1");
    }
    let Some(message) = object(data.member("message")) else {
        return rule("a system/message needs an object `message`");
    };
    if !is_nonempty_text(message.member("id")) {
        return rule("the message of a system/message needs a non-empty `id`");
    }
    if !text_is(message.member("role"), "system") {
        return rule("a system/message needs the role system");
    }
    let Some(content) = array(message.member("content")) else {
        return rule("the message of a system/message needs an array `content`");
    };
    content.elements().try_for_each(system_block)
}

fn system_block(block: Node<'_>) -> Result<()> {
    let rule = |message: &'static str| Err(refuse("D", message));
    let kind = object(Some(block)).and_then(|block| block.member("type"));
    let Some(kind) = kind.filter(Node::is_nonempty_text).and_then(|kind| kind.text()) else {
        return rule("every content block needs a non-empty `type`");
    };
    match &*kind {
        b"text" | b"reasoning" if !block.member("text").is_some_and(|text| text.is_text()) => {
            rule("a text or reasoning block needs a string `text`")
        }
        b"tool-call"
            if !(is_nonempty_text(block.member("id"))
                && is_nonempty_text(block.member("name"))
                && block.member("arguments").is_some_and(|text| text.is_text())) =>
        {
            rule("a tool-call block needs non-empty `id` and `name` and a string `arguments`")
        }
        b"image" if !is_attachment(block.member("attachment")) => {
            rule("the `attachment` of an image block is malformed")
        }
        b"tool-result" => rule("a tool-result block was retired"),
        _ => Ok(()),
    }
}

fn is_attachment(value: Option<Node<'_>>) -> bool {
    let Some(attachment) = object(value) else {
        return false;
    };
    let positive = |object: Node<'_>| {
        is_positive_count(object.member("width")) && is_positive_count(object.member("height"))
    };
    let supported = ["image/png", "image/jpeg", "image/webp", "image/gif"];
    let media_type = attachment.member("mediaType");
    is_nonempty_text(attachment.member("attachmentId"))
        && supported.iter().any(|name| text_is(media_type, name))
        && is_count(attachment.member("bytes"))
        && positive(attachment)
        && attachment.member("name").is_none_or(|name| name.is_text())
        && attachment
            .member("originalDimensions")
            .is_none_or(|value| value.is_object() && positive(value))
}

/// Rule E.
fn tool_result(data: Option<Node<'_>>) -> Result<()> {
    let rule = |message: &'static str| Err(refuse("E", message));
    let Some(data) = object(data) else {
        return rule("a tool/result needs an object `data`");
    };
    let Some(message) = object(data.member("message")) else {
        return rule("a tool/result needs an object `message`");
    };
    if !is_nonempty_text(message.member("id")) {
        return rule("the message of a tool/result needs a non-empty `id`");
    }
    if !text_is(message.member("role"), "tool") {
        return rule("a tool/result needs the role tool");
    }
    let source = object(message.member("source"));
    if !text_is(member(source, "kind"), "tool") {
        return rule("a tool/result needs the source kind tool");
    }
    let call = message
        .member("toolCallId")
        .filter(Node::is_nonempty_text)
        .and_then(|id| id.text());
    if call.is_none() || call != member(source, "callId").and_then(|id| id.text()) {
        return rule("`toolCallId` of a tool/result must be non-empty and equal to `source.callId`");
    }
    let Some(content) = array(message.member("content")) else {
        return rule("the message of a tool/result needs an array `content`");
    };
    no_results("E", Some(content))?;
    let is_error = message.member("isError");
    if is_error.is_some_and(|value| value.kind() != Kind::Boolean) {
        return rule("`isError` of a tool/result is no boolean");
    }
    if data.member("error").is_some() && !is_error.is_some_and(|value| value.is_true()) {
        return rule("a tool/result with `error` needs `isError` true");
    }
    Ok(())
}

/// The number behind the last part of an id, in canonical decimal and a safe integer.
pub(crate) fn canonical_number(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() || digits.len() > 16 || (digits.len() > 1 && digits.first() == Some(&b'0')) {
        return None;
    }
    let text = std::str::from_utf8(digits)
        .ok()
        .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    text.parse().ok().filter(|&number| number <= MAX_SAFE_INTEGER)
}

/// Rule F. Rule E has passed.
fn fork_result(row: &Envelope<'_>) -> Result<()> {
    const PREFIX: &[u8] = b"forked-tool-result-";
    let rule = |message: &'static str| Err(refuse("F", message));
    let Some(data) = object(row.data) else {
        return Ok(());
    };
    let Some(error) = object(data.member("error")) else {
        return Ok(());
    };
    let message = data.member("message");
    let id = member(message, "id").and_then(|id| id.text()).unwrap_or_default();
    let Some(rest) = id.strip_prefix(PREFIX) else {
        return Ok(());
    };
    if !text_is(error.member("code"), "TOOL_NOT_STARTED") {
        return Ok(());
    }
    let call = member(object(member(message, "source")), "callId")
        .and_then(|id| id.text())
        .unwrap_or_default();
    let number = rest
        .strip_prefix(&*call)
        .and_then(|rest| rest.strip_prefix(b"-"))
        .and_then(canonical_number);
    let Some(number) = number else {
        return rule("the message id of a forked result must be forked-tool-result-<callId>-<n>");
    };
    if !text_is(error.member("name"), "ToolNotStartedError") {
        return rule("the error of a forked result needs the name ToolNotStartedError");
    }
    let mut content = array(member(message, "content"))
        .into_iter()
        .flat_map(|content| content.elements());
    let is_text_block = |block: Node<'_>| {
        block.is_object()
            && text_is(block.member("type"), "text")
            && block.member("text").is_some_and(|t| t.is_text())
    };
    if !content.next().is_some_and(is_text_block) || content.next().is_some() {
        return rule("the content of a forked result must be one text block");
    }
    if text_is(member(object(row.surface_op), "op"), "replace") {
        let below = row
            .seq
            .and_then(|seq| seq.number())
            .is_some_and(|seq| crate::json::number::double(number) < seq);
        let mut sources = array(row.source_event_seqs)
            .into_iter()
            .flat_map(|seqs| seqs.elements());
        let only = sources.next().and_then(|seq| seq.number()) == Some(crate::json::number::double(number));
        if !below || !only || sources.next().is_some() {
            return rule("a forked result that replaces n must come after it and have `sourceEventSeqs` [n]");
        }
    } else if row.seq.and_then(|seq| seq.number()) != Some(crate::json::number::double(number))
        || !text_is(row.surface_op, "append")
        || row.source_event_seqs.is_some()
    {
        return rule(
            "an appended forked result must be numbered by its own seq and have no `sourceEventSeqs`",
        );
    }
    Ok(())
}
