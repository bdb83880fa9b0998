//! The two layers that generation 3 adds to row decoding. Spec 50 §3.2.

use super::envelope::Envelope;
use crate::error::{Error, ErrorKind, Result};
use crate::json::{Kind, Node};

#[cold]
fn corrupt<T>(message: &'static str) -> Result<T> {
    Err(Error::new(ErrorKind::Row, message).with_rule("50 §3.2"))
}

#[cold]
fn unsupported<T>(message: &'static str) -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, message).with_rule("50 §3.2"))
}

/// Checks that an object has all required keys and no other than these and the optional ones.
fn has_exact_keys(object: Node<'_>, required: &[&str], optional: &[&str]) -> bool {
    required.iter().all(|key| object.member(key).is_some())
        && object
            .members()
            .all(|(key, _)| required.iter().chain(optional).any(|known| key.text_is(known)))
}

fn is_nestr(value: Option<Node<'_>>) -> bool {
    value.is_some_and(|value| value.is_nonempty_text())
}

fn is_str(value: Option<Node<'_>>) -> bool {
    value.is_some_and(|value| value.is_text())
}

fn is_count(value: Option<Node<'_>>) -> bool {
    value.is_some_and(|value| value.count().is_some())
}

fn is_pos(value: Option<Node<'_>>) -> bool {
    value
        .and_then(|value| value.count())
        .is_some_and(|count| count > 0)
}

/// Hard admission of a parsed row, also behind an issue.
///
/// # Errors
/// `Unsupported` or `Row`.
pub(crate) fn admit(row: &Envelope<'_>) -> Result<()> {
    if (row.is("tool/code-dispatch") || row.is("tool/code-dispatch-start")) && !row.is_ignorable() {
        return unsupported("the event type was retired and is not marked as ignorable");
    }
    if row.is("request/header") {
        let header = row
            .data
            .filter(Node::is_object)
            .and_then(|data| data.member("header"))
            .filter(Node::is_object);
        let Some(header) = header else {
            return corrupt("a request/header needs an object `data` with an object `header`");
        };
        if header.member("system").is_some() {
            return unsupported("`system` of a request header was retired in generation 3");
        }
    }
    if row.is("system/message") && !row.data.is_some_and(is_system_message) {
        return corrupt("the payload of a system/message of generation 3 is malformed");
    }
    Ok(())
}

fn is_system_message(data: Node<'_>) -> bool {
    let Some(message) = data.member("message").filter(Node::is_object) else {
        return false;
    };
    let Some(source) = message.member("source").filter(Node::is_object) else {
        return false;
    };
    has_exact_keys(data, &["turn", "step", "message"], &[])
        && is_pos(data.member("turn"))
        && is_pos(data.member("step"))
        && has_exact_keys(message, &["id", "role", "source", "content"], &[])
        && is_nestr(message.member("id"))
        && message.member("role").is_some_and(|role| role.text_is("system"))
        && is_plugin_source(source)
        && message.member("content").is_some_and(are_blocks)
}

/// Spec 50, Appendix A.3, kind `plugin`.
fn is_plugin_source(source: Node<'_>) -> bool {
    let is_compact = source
        .member("plugin")
        .is_some_and(|plugin| plugin.text_is("compact"));
    let keys = if is_compact {
        has_exact_keys(
            source,
            &["kind", "plugin", "compactionId"],
            &["form", "sections", "summary", "sourceCommandId"],
        ) && is_nestr(source.member("compactionId"))
            && source
                .member("sourceCommandId")
                .is_none_or(|id| id.is_nonempty_text())
    } else {
        has_exact_keys(source, &["kind", "plugin"], &["form", "sections", "summary"])
    };
    if !keys
        || !source.member("kind").is_some_and(|kind| kind.text_is("plugin"))
        || !is_nestr(source.member("plugin"))
    {
        return false;
    }
    let Some(form) = source.member("form") else {
        return true;
    };
    let known = ["instructions", "catalog", "snapshot", "notice", "relay", "recall"];
    let sections_fit = match source.member("sections") {
        Some(sections) => form.text_is("snapshot") && are_sections(sections),
        None => !form.text_is("snapshot"),
    };
    let summary_fits = match source.member("summary") {
        Some(summary) => form.text_is("notice") && summary.is_text(),
        None => !form.text_is("notice"),
    };
    known.iter().any(|name| form.text_is(name)) && sections_fit && summary_fits
}

fn are_sections(sections: Node<'_>) -> bool {
    sections.is_array()
        && sections.elements().all(|section| {
            section.is_object()
                && has_exact_keys(section, &["name", "text"], &[])
                && is_nestr(section.member("name"))
                && is_str(section.member("text"))
        })
}

/// Spec 50, Appendix A.4, loose kinds.
fn are_blocks(content: Node<'_>) -> bool {
    let mut pending = vec![content];
    while let Some(content) = pending.pop() {
        if !content.is_array() {
            return false;
        }
        for block in content.elements() {
            let Some(kind) = block
                .member("type")
                .filter(|_| block.is_object())
                .and_then(|kind| kind.text())
            else {
                return false;
            };
            let sound = match &*kind {
                b"" => false,
                b"text" | b"reasoning" => {
                    has_exact_keys(block, &["type", "text"], &[]) && is_str(block.member("text"))
                }
                b"image" => {
                    has_exact_keys(block, &["type", "attachment"], &[])
                        && block.member("attachment").is_some_and(is_image_attachment)
                }
                b"tool-call" => {
                    has_exact_keys(block, &["type", "id", "name", "arguments"], &[])
                        && is_nestr(block.member("id"))
                        && is_nestr(block.member("name"))
                        && is_str(block.member("arguments"))
                }
                b"tool-result" => {
                    pending.extend(block.member("content"));
                    has_exact_keys(block, &["type", "toolCallId", "content"], &["isError"])
                        && is_nestr(block.member("toolCallId"))
                        && block
                            .member("isError")
                            .is_none_or(|value| value.kind() == Kind::Boolean)
                }
                _ => true,
            };
            if !sound {
                return false;
            }
        }
    }
    true
}

fn is_image_attachment(attachment: Node<'_>) -> bool {
    let sized = |object: Node<'_>| is_pos(object.member("width")) && is_pos(object.member("height"));
    let types = ["image/png", "image/jpeg", "image/webp", "image/gif"];
    attachment.is_object()
        && has_exact_keys(
            attachment,
            &["attachmentId", "mediaType", "bytes", "width", "height"],
            &["name", "originalDimensions"],
        )
        && is_nestr(attachment.member("attachmentId"))
        && attachment
            .member("mediaType")
            .is_some_and(|value| types.iter().any(|name| value.text_is(name)))
        && is_count(attachment.member("bytes"))
        && sized(attachment)
        && attachment.member("name").is_none_or(|name| name.is_text())
        && attachment.member("originalDimensions").is_none_or(|size| {
            size.is_object() && has_exact_keys(size, &["width", "height"], &[]) && sized(size)
        })
}

fn is_surface_type(event_type: &[u8]) -> bool {
    matches!(
        event_type,
        b"system/message" | b"user/message" | b"assistant/message" | b"tool/result"
    )
}

/// Types that are neither surface types nor opaque: Spec 50, Appendix A.1, column v2, without `tool/code-dispatch*`,
/// and four more.
const LOG_TYPES: [&str; 50] = [
    "agent-preset/selected",
    "agent/inbox/spliced",
    "approval/asked",
    "approval/decided",
    "approval/policy",
    "assistant/attempt",
    "command/done",
    "command/run",
    "compaction/end",
    "compaction/prune",
    "compaction/start",
    "compaction/summary",
    "feedback/message-delete",
    "feedback/message-put",
    "feedback/record",
    "goal/change",
    "hook/invoked",
    "hook/result",
    "llm/retry",
    "llm/retry-started",
    "model/selection",
    "permission/preset",
    "plan/mode",
    "request/context",
    "request/header",
    "sandbox/mode",
    "schedule/change",
    "session-log-deepseek/delivery-accepted",
    "session/end-seed",
    "session/title",
    "session/title-llm-request",
    "step/end",
    "step/start",
    "subagent/descriptor",
    "subagent/model-selection-policy",
    "team/member",
    "team/message/delivered",
    "team/message/queued",
    "team/task",
    "todo/write",
    "tool-workflow/agent-end",
    "tool-workflow/agent-start",
    "tool-workflow/run-end",
    "tool-workflow/run-start",
    "tool/call",
    "tool/ptc-dispatch",
    "tool/ptc-dispatch-start",
    "turn/end",
    "turn/start",
    "web/deepseek-search-llm-request",
];

/// The canonical check of a decoded event; a failure is an issue.
///
/// # Errors
/// `Row`.
pub(crate) fn check_canonical(row: &Envelope<'_>) -> Result<()> {
    let event_type = row.event_type.and_then(|node| node.text()).unwrap_or_default();
    let surface = is_surface_type(&event_type);
    let known = LOG_TYPES.iter().any(|name| name.as_bytes() == &*event_type);
    if known && (row.surface_op.is_some() || row.source_event_seqs.is_some()) {
        return corrupt("an event of this type may not have `surfaceOp` or `sourceEventSeqs`");
    }
    let Some(seq) = row.seq.and_then(|seq| seq.count()) else {
        return corrupt("`seq` of the row is no count");
    };
    if surface {
        check_surface_row(row, seq, &event_type)?;
    }
    if &*event_type == b"request/header" {
        let header = row.data.and_then(|data| data.member("header"));
        if header
            .and_then(|header| header.member("tools"))
            .is_some_and(|tools| tools.is_array() && tools.is_empty())
        {
            return corrupt("`tools` of a request header may not be empty");
        }
        let defaults = header.and_then(|header| header.member("adapterDefaults"));
        if defaults.is_some_and(|defaults| defaults.is_object() && defaults.members().next().is_none()) {
            return corrupt("`adapterDefaults` of a request header may not be empty");
        }
    }
    if &*event_type == b"tool/result" {
        let Some(data) = row.data.filter(Node::is_object) else {
            return corrupt("`data` of a tool/result is no object");
        };
        if data.member("error").is_some() {
            let content = data
                .member("message")
                .and_then(|message| message.member("content"));
            let mut elements = content.into_iter().flat_map(|content| content.elements());
            let failed = elements.next().is_some_and(|block| {
                block
                    .member("type")
                    .is_some_and(|kind| kind.text_is("tool-result"))
                    && block.member("isError").is_some_and(|value| value.is_true())
            });
            if !failed || elements.next().is_some() {
                return corrupt("a tool/result with `error` needs exactly one failed tool-result block");
            }
        }
    }
    Ok(())
}

fn check_surface_row(row: &Envelope<'_>, seq: u64, event_type: &[u8]) -> Result<()> {
    let before = |value: Option<Node<'_>>| {
        value
            .and_then(|value| value.count())
            .is_some_and(|other| other < seq)
    };
    let operation = row.surface_op.is_some_and(|op| {
        op.text_is("append")
            || op.is_object()
                && has_exact_keys(op, &["op", "startSeq", "endSeq"], &[])
                && op.member("op").is_some_and(|name| name.text_is("replace"))
                && before(op.member("startSeq"))
                && before(op.member("endSeq"))
    });
    if !operation {
        return corrupt("a surface event needs a `surfaceOp`: append, or a replacement of earlier seqs");
    }
    if let Some(seqs) = row.source_event_seqs {
        // Decoding has proved distinct earlier seqs.
        if event_type == b"assistant/message" || seqs.is_empty() {
            return corrupt(
                "`sourceEventSeqs` of a surface event may not be empty, nor stand on an assistant/message",
            );
        }
    }
    Ok(())
}
