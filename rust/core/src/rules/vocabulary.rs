//! Layer L3: is every type known, and has every message the shape of generation 4? Spec 30 §8, §5.2.

use super::event::{
    Event, EventType, Message, at, count, earlier, is_filled, is_word, object, pick, pick_exactly, quote,
};
use super::findings::Layer;
use crate::error::{Error, ErrorKind};
use crate::json::Node;
use crate::row::{SeqCodec, decode_seqs};

/// Takes an event; V1 and V2 go to a list of their own, because they win wherever in the log the others fail.
pub(super) fn check(event: &Event<'_, '_>, unsupported: &mut Layer, layer: &mut Layer) {
    if let Some(finding) = check_type(event) {
        unsupported.push(finding);
        return;
    }
    layer.push_some(check_metadata(event));
    layer.push_some(check_shape(event));
}

/// V1 and V2.
fn check_type(event: &Event<'_, '_>) -> Option<Error> {
    let refuse = |rule, message: String| {
        Some(
            Error::new(ErrorKind::Unsupported, message)
                .with_rule(rule)
                .located(at(event.seq)),
        )
    };
    match event.kind {
        EventType::Unknown if !event.row.is_ignorable() => {
            let name = type_name(event);
            refuse(
                "V1",
                format!("event type {name} is unknown here and not marked ignorable"),
            )
        }
        EventType::RequestHeader if is_word(event.member("reason"), "fallback") => refuse(
            "V2",
            "request/header has the retired reason 'fallback'".to_owned(),
        ),
        _ => None,
    }
}

/// The event's type as a message quotes it.
fn type_name(event: &Event<'_, '_>) -> String {
    event
        .row
        .event_type
        .filter(Node::is_text)
        .map_or_else(|| "''".to_owned(), |name| quote(Some(name)))
}

/// V3, the metadata rules. Spec 30 §5.2.
pub(super) fn check_metadata(event: &Event<'_, '_>) -> Option<Error> {
    if event.noted.is_some() {
        return None;
    }
    let rule = |text: &'static str| Some(event.refuse("V3", text));
    let (op, sources) = (event.row.surface_op, event.row.source_event_seqs);
    if event.kind.role().is_none() {
        if op.is_none() && sources.is_none() || event.kind == EventType::Unknown && event.row.is_ignorable() {
            return None;
        }
        let name = type_name(event);
        return Some(event.refuse(
            "V3",
            format!("{name} must not carry surfaceOp or sourceEventSeqs"),
        ));
    }
    let Some(op) = op else {
        return Some(event.refuse("V3", format!("{} lacks its surfaceOp", event.kind.name())));
    };
    if !op.text_is("append") {
        let members = pick_exactly(op, ["op", "startSeq", "endSeq"]);
        let Some([_, start, end]) = members.filter(|[name, ..]| name.text_is("replace")) else {
            return rule("surfaceOp is neither 'append' nor exactly {op, startSeq, endSeq}");
        };
        if earlier(Some(start), event.seq).is_none() || earlier(Some(end), event.seq).is_none() {
            return rule("startSeq and endSeq must name earlier events");
        }
    }
    let sources = sources?;
    if event.kind == EventType::AssistantMessage {
        return rule("assistant/message must not carry sourceEventSeqs");
    }
    if !sources.is_array() || sources.is_empty() {
        return rule("sourceEventSeqs must be a non-empty array");
    }
    // The row codec demands all the rest of what the rule does; a scan has used it.
    match decode_seqs(sources, SeqCodec::V2, event.seq, None) {
        Ok(_) => None,
        Err(_) => rule("sourceEventSeqs must name earlier events"),
    }
}

/// V4 to V7.
pub(super) fn check_shape(event: &Event<'_, '_>) -> Option<Error> {
    if event.kind == EventType::RequestHeader {
        return check_header(event);
    }
    let role = event.kind.role()?;
    let Some(message) = &event.message else {
        return Some(event.refuse("V7", format!("{} has no message object", event.kind.name())));
    };
    let fault = check_tool_changes(event, message);
    if fault.is_some() {
        return fault;
    }
    if event.kind == EventType::ToolResult
        && !message.is_error.is_some_and(|value| value.is_true())
        && event.member("error").is_some()
    {
        return Some(event.refuse("V6", "tool/result has an error, but isError is not true"));
    }
    check_message(event, message, role)
}

/// V5.
fn check_header(event: &Event<'_, '_>) -> Option<Error> {
    let rule = |text| Some(event.refuse("V5", text));
    let header = object(event.member("header"))?;
    let [system, tools, defaults] = pick(header, ["system", "tools", "adapterDefaults"]);
    if system.is_some() {
        return rule("request/header must not have the member system");
    }
    if tools.is_some_and(|tools| tools.is_array() && tools.is_empty()) {
        return rule("request/header must omit empty tools");
    }
    if object(defaults).is_some_and(|defaults| defaults.members().next().is_none()) {
        return rule("request/header must omit empty adapterDefaults");
    }
    None
}

/// V4.
fn check_tool_changes(event: &Event<'_, '_>, message: &Message<'_>) -> Option<Error> {
    let rule = |text| Some(event.refuse("V4", text));
    let mut changes = message.blocks().filter_map(|(block, kind)| {
        let is_addition = is_word(kind, "tool-addition");
        (is_addition || is_word(kind, "tool-removal")).then_some((block, is_addition))
    });
    if event.kind != EventType::DeveloperMessage {
        if is_word(message.role, "developer") {
            let text = format!(
                "the message of {} must not have role 'developer'",
                event.kind.name()
            );
            return Some(event.refuse("V4", text));
        }
        changes.next()?;
        let text = format!(
            "{} must not hold tool-addition or tool-removal blocks",
            event.kind.name()
        );
        return Some(event.refuse("V4", text));
    }
    let mut adds = false;
    for (block, is_addition) in changes {
        if !is_filled(block.member("toolName")) {
            return rule("a tool-change block must have a non-empty toolName");
        }
        adds |= is_addition;
        if is_addition && block.member("tool").is_some() {
            return rule("a tool-addition must not have the member tool");
        }
    }
    let header_seq = event.member("headerSeq");
    if adds && count(header_seq).is_none() {
        return rule("developer/message with a tool-addition needs headerSeq");
    }
    if !adds && header_seq.is_some() {
        return rule("developer/message without a tool-addition has headerSeq");
    }
    None
}

/// V7.
fn check_message(event: &Event<'_, '_>, message: &Message<'_>, role: &'static str) -> Option<Error> {
    let refuse = |text: String| Some(event.refuse("V7", text));
    let name = event.kind.name();
    if !is_filled(message.id) {
        return refuse(format!("the message of {name} has no id"));
    }
    if !is_word(message.role, role) {
        return refuse(format!("the message of {name} must have role '{role}'"));
    }
    let Some(source) = message.source.filter(|_| is_filled(message.source_kind)) else {
        return refuse(format!("the message of {name} has no source kind"));
    };
    if !message.content.is_some_and(|content| content.is_array()) {
        return refuse(format!("the content of {name} is no array"));
    }
    let has_kind = |kind| is_word(message.source_kind, kind);
    match event.kind {
        EventType::SystemMessage if !has_kind("system-prompt") => {
            refuse("system/message must have source kind 'system-prompt'".to_owned())
        }
        EventType::AssistantMessage => {
            let [provider, model] = pick(source, ["provider", "model"]);
            if has_kind("model") && is_filled(provider) && is_filled(model) {
                return None;
            }
            refuse("assistant/message must name its model and provider as source".to_owned())
        }
        EventType::ToolResult => {
            let call = source.member("callId");
            let is_same = || call.and_then(|id| id.text()) == message.tool_call_id.and_then(|id| id.text());
            if has_kind("tool") && is_filled(call) && is_same() {
                return None;
            }
            refuse("tool/result must have its toolCallId as source.callId".to_owned())
        }
        _ => None,
    }
}
