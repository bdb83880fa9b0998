//! Expansion of records into timed chunks, written as JSON lines. Spec 20 §4.

use super::record::{Record, Run};
use super::value::Value;
use crate::json::number::write_integer;
use crate::json::text::write_string;
use crate::json::{Node, write_node};

/// Appends the chunks of a valid record, one `{"time":…,"chunk":{…}}` and a line feed each.
pub fn expand_to_json(record: &Record<Node<'_>>, out: &mut Vec<u8>) {
    match record {
        Record::Raw { time, chunk } => {
            begin(*time, out);
            write_node(*chunk, out, &|_, _| false);
            out.extend_from_slice(b"}\n");
        }
        Record::Run(run) => expand_run(run, out),
    }
}

fn expand_run(run: &Run<Node<'_>>, out: &mut Vec<u8>) {
    // All chunks of a run are the same but for the time and the fragment.
    let mut head = b"{\"type\":\"".to_vec();
    head.extend_from_slice(run.kind.delta_type().as_str().as_bytes());
    head.extend_from_slice(b"\",\"index\":");
    write_integer(run.index, &mut head);
    for (key, value) in [("id", &run.id), ("name", &run.name)] {
        if let Some(text) = value.as_ref().and_then(Value::text) {
            head.extend_from_slice(format!(",\"{key}\":").as_bytes());
            write_string(&text, &mut head);
        }
    }
    head.extend_from_slice(format!(",\"{}\":", run.kind.fragment_key().as_str()).as_bytes());
    for (time, member) in run.times().zip(run.members.elements()) {
        begin(time, out);
        out.extend_from_slice(&head);
        write_string(&member.text().unwrap_or_default(), out);
        out.extend_from_slice(b"}}\n");
    }
}

fn begin(time: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"time\":");
    write_integer(time, out);
    out.extend_from_slice(b",\"chunk\":");
}
