//! Rows of generations 0 and 1 that every migration takes and most logs are made of. Spec 50 §4 to §7, appendix A.
//!
//! A row is common if its payload passes admission in each generation whatever stands around it, so that only its seqs
//! and the state of the log are left to look at. Everything else is left to the rules themselves.

use std::borrow::Cow;

use super::value::Value;
use crate::json::{Node, write_node};
use crate::row::Row;

/// A row that is common.
pub struct CommonRow<'a> {
    /// `type`, the same in all generations.
    pub kind: &'static str,
    /// `time` in milliseconds.
    pub time: i64,
    /// `turn`; 0 in a user's message, which has none.
    pub turn: u64,
    /// `step`; 0 where there is none.
    pub step: u64,
    /// Id of the message, if it has one (WTF-8).
    pub id: Option<Cow<'a, [u8]>>,
    /// `sourceEventSeqs`: counts and pairs of counts.
    pub sources: Option<Node<'a>>,
    /// The payload in generation 4, but for the stream of a settlement: JSON text.
    pub data: Vec<u8>,
}

const ENVELOPE: [&str; 6] = ["type", "seq", "time", "data", "sourceEventSeqs", "surfaceOp"];
const PLAIN_KEYS: usize = 4;
const COUNTS: [&str; 6] = [
    "inputTokens",
    "outputTokens",
    "totalTokens",
    "cacheReadTokens",
    "cacheWriteTokens",
    "reasoningTokens",
];

impl<'a> CommonRow<'a> {
    /// Recognises a row.
    pub(super) fn of(row: &Row<'a>) -> Option<Self> {
        let root = row.event_type?.root();
        let kind = match row.event_type?.text()?.as_ref() {
            b"turn/start" => "turn/start",
            b"turn/end" => "turn/end",
            b"step/start" => "step/start",
            b"step/end" => "step/end",
            b"tool/call" => "tool/call",
            b"tool/result" => "tool/result",
            b"user/message" => "user/message",
            b"assistant/message" => "assistant/message",
            _ => return None,
        };
        let is_surface = matches!(kind, "tool/result" | "user/message" | "assistant/message");
        if !is_envelope(root, is_surface) {
            return None;
        }
        let time = root.member("time")?.sint()?;
        let sources = root.member("sourceEventSeqs");
        if sources.is_some_and(|seqs| !are_seqs(seqs))
            || (is_surface && !root.member("surfaceOp")?.text_is("append"))
        {
            return None;
        }
        let data = root.member("data")?;
        let (turn, step) = match kind {
            "user/message" => (0, 0),
            "turn/start" | "turn/end" => (positive(data, "turn")?, 0),
            _ => (positive(data, "turn")?, positive(data, "step")?),
        };
        let mut id = None;
        let is_admitted = match kind {
            "turn/start" => has_keys(data, &["turn"], &[]),
            "turn/end" => has_keys(data, &["turn", "reason"], &[]) && is_plain_end(data.member("reason")?),
            "tool/call" => {
                has_keys(data, &["turn", "step", "callId", "name", "arguments"], &[])
                    && is_filled(data, "callId")
                    && is_filled(data, "name")
                    && data.member("arguments")?.is_text()
            }
            "tool/result" => {
                let message = data.member("message")?;
                id = message.member("id")?.text();
                has_keys(data, &["turn", "step", "message"], &[]) && is_result(message)
            }
            "user/message" => {
                id = data.member("id")?.text();
                is_message(data, "user") && is_source_of_user(data.member("source")?) && has_text_only(data)
            }
            "assistant/message" => {
                let message = data.member("message")?;
                id = message.member("id")?.text();
                has_keys(data, &["turn", "step", "message"], &["usage", "interrupted"])
                    && is_message(message, "assistant")
                    && is_model(message.member("source")?)
                    && message
                        .member("content")?
                        .elements()
                        .all(|block| is_plain_block(&block))
                    && data.member("usage").is_none_or(is_usage)
                    && data.member("interrupted").is_none_or(|flag| flag.is_true())
            }
            _ => has_keys(data, &["turn", "step"], &[]),
        };
        is_admitted.then(|| Self {
            kind,
            time,
            turn,
            step,
            id,
            sources,
            data: payload_of(data, kind),
        })
    }
}

/// Whether an object has all of the keys of one kind and no others than those of both.
fn has_keys(object: Node<'_>, required: &[&str], optional: &[&str]) -> bool {
    object.is_object()
        && object
            .members()
            .all(|(key, _)| required.iter().chain(optional).any(|known| key.text_is(known)))
        && required.iter().all(|key| object.member(key).is_some())
}

/// Whether the members are those of the envelope in the order of the harness.
fn is_envelope(root: Node<'_>, is_surface: bool) -> bool {
    let mut seen = [false; ENVELOPE.len()];
    let mut count = 0;
    for (key, _) in root.members() {
        let Some(place) = ENVELOPE.iter().position(|known| key.text_is(known)) else {
            return false;
        };
        let Some(was_seen) = seen.get_mut(place) else {
            return false;
        };
        if *was_seen {
            continue; // A repeated key has its first place.
        }
        *was_seen = true;
        let is_in_order = if count < PLAIN_KEYS {
            place == count
        } else {
            is_surface
        };
        if !is_in_order {
            return false;
        }
        count += 1;
    }
    count >= PLAIN_KEYS
}

fn are_seqs(value: Node<'_>) -> bool {
    value.is_array()
        && value.elements().all(|entry| {
            entry.count().is_some()
                || (entry.is_array()
                    && entry.len() == 2
                    && entry.elements().all(|bound| bound.count().is_some()))
        })
}

fn positive(object: Node<'_>, key: &str) -> Option<u64> {
    object.member(key)?.count().filter(|&number| number > 0)
}

fn is_filled(object: Node<'_>, key: &str) -> bool {
    object.member(key).is_some_and(|text| text.is_nonempty_text())
}

fn is_plain_end(reason: Node<'_>) -> bool {
    has_keys(reason, &["kind"], &[])
        && reason.member("kind").is_some_and(|kind| {
            ["completed", "blocked", "max-tokens", "interrupted"]
                .iter()
                .any(|known| kind.text_is(known))
        })
}

/// Members and role of a message; its content is an array.
fn is_message(message: Node<'_>, role: &str) -> bool {
    has_keys(message, &["id", "role", "content", "source"], &[])
        && is_filled(message, "id")
        && message.member("role").is_some_and(|found| found.text_is(role))
        && message
            .member("content")
            .is_some_and(|content| content.is_array())
}

fn is_source_of_user(source: Node<'_>) -> bool {
    has_keys(source, &["kind"], &["rpcId", "clientTimeZone"])
        && source.member("kind").is_some_and(|kind| kind.text_is("user"))
        && ["rpcId", "clientTimeZone"]
            .iter()
            .all(|key| source.member(key).is_none_or(|text| text.is_nonempty_text()))
}

fn is_model(source: Node<'_>) -> bool {
    has_keys(source, &["kind", "provider", "model"], &["replayState"])
        && source.member("kind").is_some_and(|kind| kind.text_is("model"))
        && is_filled(source, "provider")
        && is_filled(source, "model")
}

fn is_usage(usage: Node<'_>) -> bool {
    has_keys(usage, &["inputTokens", "outputTokens"], &COUNTS)
        && COUNTS
            .iter()
            .all(|key| usage.member(key).is_none_or(|value| value.count().is_some()))
}

/// A block of text, reasoning or a tool call, exactly as spec 50 A.4 has it.
pub(super) fn is_plain_block(block: &Node<'_>) -> bool {
    let Some(kind) = block.member("type") else {
        return false;
    };
    if kind.text_is("text") || kind.text_is("reasoning") {
        return has_keys(*block, &["type", "text"], &[])
            && block.member("text").is_some_and(|text| text.is_text());
    }
    kind.text_is("tool-call")
        && has_keys(*block, &["type", "id", "name", "arguments"], &[])
        && is_filled(*block, "id")
        && is_filled(*block, "name")
        && block
            .member("arguments")
            .is_some_and(|arguments| arguments.is_text())
}

fn has_text_only(holder: Node<'_>) -> bool {
    holder.member("content").is_some_and(|content| {
        content.is_array()
            && content.elements().all(|block| {
                block.member("type").is_some_and(|kind| kind.text_is("text")) && is_plain_block(&block)
            })
    })
}

/// A tool result around one wrapper of text. Spec 50 A.3.
fn is_result(message: Node<'_>) -> bool {
    if !is_message(message, "user") {
        return false;
    }
    let (Some(source), Some(content)) = (message.member("source"), message.member("content")) else {
        return false;
    };
    let mut blocks = content.elements();
    let (Some(wrapper), None) = (blocks.next(), blocks.next()) else {
        return false;
    };
    let (Some(call), Some(cited)) = (wrapper.member("toolCallId"), source.member("callId")) else {
        return false;
    };
    has_keys(source, &["kind", "callId"], &[])
        && source.member("kind").is_some_and(|kind| kind.text_is("tool"))
        && cited.is_nonempty_text()
        && call.is_text()
        && call.text() == cited.text()
        && has_keys(wrapper, &["type", "toolCallId", "content"], &["isError"])
        && wrapper
            .member("type")
            .is_some_and(|kind| kind.text_is("tool-result"))
        && wrapper.member("isError").is_none_or(|flag| is_boolean(&flag))
        && has_text_only(wrapper)
}

fn is_boolean(value: &Node<'_>) -> bool {
    Value::kind(value) == Some(crate::json::Kind::Boolean)
}

/// The payload as generation 4 spells it.
fn payload_of(data: Node<'_>, kind: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    let message = data.member("message").filter(|_| kind == "tool/result");
    write_node(data, &mut out, &|key, out| match message {
        Some(message) if key == b"message" => {
            push_result(message, out);
            true
        }
        _ => false,
    });
    out
}

/// The message of a tool result with its wrapper lifted. Spec 50 §7.5.
fn push_result(message: Node<'_>, out: &mut Vec<u8>) {
    let Some(wrapper) = message
        .member("content")
        .and_then(|content| content.elements().next())
    else {
        return; // Not reached: the message was recognised.
    };
    out.extend_from_slice(b"{\"role\":\"tool\"");
    for (holder, key) in [
        (message, "source"),
        (wrapper, "toolCallId"),
        (wrapper, "content"),
        (wrapper, "isError"),
        (message, "id"),
    ] {
        if let Some(value) = holder.member(key) {
            out.extend_from_slice(b",\"");
            out.extend_from_slice(key.as_bytes());
            out.extend_from_slice(b"\":");
            write_node(value, out, &|_, _| false);
        }
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::super::runs::{RunScanner, Unit};
    use crate::limits::Limits;
    use crate::row::{Mode, ScanOptions};

    fn payload(row: &str) -> Option<String> {
        let header = r#"{"type":"session","version":0,"id":"s","createdAt":0,"delegationDepth":0}"#;
        let mut scanner = RunScanner::new(ScanOptions {
            mode: Mode::Strict,
            generation: None,
            check_streams: false,
            keeps_records: true,
            limits: Limits::default(),
        });
        let mut found = None;
        let text = format!("{header}\n{row}\n");
        scanner
            .feed(text.as_bytes(), &mut |unit| {
                if let Unit::Common(common, _) = unit {
                    found = Some(String::from_utf8(common.data).unwrap());
                }
            })
            .unwrap();
        found
    }

    #[test]
    fn a_tool_result_is_lifted() {
        let row = r#"{"type":"tool/result","seq":0,"time":8,"data":{"turn":1,"message":{"id":"t1","role":"user","content":[{"type":"tool-result","toolCallId":"c1","content":[{"type":"text","text":"\u006fut"}],"isError":false}],"source":{"callId":"c1","kind":"tool"}},"step":1.0},"surfaceOp":"append"}"#;
        assert_eq!(
            payload(row).unwrap(),
            r#"{"turn":1,"message":{"role":"tool","source":{"callId":"c1","kind":"tool"},"toolCallId":"c1","content":[{"type":"text","text":"out"}],"isError":false,"id":"t1"},"step":1}"#
        );
        for (old, new) in [
            (r#""append""#, r#"{"op":"replace","start":0,"end":0}"#),
            (r#""isError":false"#, r#""isError":0"#),
            (r#""toolCallId":"c1""#, r#""toolCallId":"c2""#),
            (r#""step":1.0"#, r#""step":1,"error":{}"#),
            (r#""turn":1"#, r#""turn":0"#),
            (r#""type":"text""#, r#""type":"image""#),
            (r#""time":8"#, r#""time":8.5"#),
            (r#""surfaceOp""#, r#""ignorable":true,"surfaceOp""#),
        ] {
            assert!(row.contains(old), "{old}");
            assert_eq!(payload(&row.replace(old, new)), None, "{new}");
        }
    }
}
