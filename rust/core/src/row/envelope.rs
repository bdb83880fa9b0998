//! Event rows: their envelope, decoding and encoding. Spec 10 §5.1, §5.2.

use super::admission::admit;
use super::seq_ranges::{SeqCodec, decode_seqs, encode_seqs};
use crate::error::{Error, ErrorKind, Result};
use crate::json::number::{show_double, write_double};
use crate::json::{Kind, Node, write_node};

/// The members of a row that is an object; the last value where a key is repeated.
#[derive(Clone, Copy)]
pub struct Envelope<'a> {
    /// The row itself.
    pub row: Node<'a>,
    /// `type`
    pub event_type: Option<Node<'a>>,
    /// `seq`
    pub seq: Option<Node<'a>>,
    /// `time`
    pub time: Option<Node<'a>>,
    /// `data`
    pub data: Option<Node<'a>>,
    /// `ignorable`
    pub ignorable: Option<Node<'a>>,
    /// `sourceEventSeqs`, in range form.
    pub source_event_seqs: Option<Node<'a>>,
    /// `surfaceOp`
    pub surface_op: Option<Node<'a>>,
    /// Whether there is any other member.
    pub has_other: bool,
}

impl<'a> Envelope<'a> {
    /// The envelope of a row; None if it is no object.
    pub fn of(row: Node<'a>) -> Option<Self> {
        if !row.is_object() {
            return None;
        }
        let mut envelope = Self {
            row,
            event_type: None,
            seq: None,
            time: None,
            data: None,
            ignorable: None,
            source_event_seqs: None,
            surface_op: None,
            has_other: false,
        };
        for (key, value) in row.members() {
            let member = match &*key.text().unwrap_or_default() {
                b"type" => &mut envelope.event_type,
                b"seq" => &mut envelope.seq,
                b"time" => &mut envelope.time,
                b"data" => &mut envelope.data,
                b"surfaceOp" => &mut envelope.surface_op,
                b"sourceEventSeqs" => &mut envelope.source_event_seqs,
                b"ignorable" => &mut envelope.ignorable,
                _ => {
                    envelope.has_other = true;
                    continue;
                }
            };
            *member = Some(value);
        }
        Some(envelope)
    }

    /// Whether the row's `type` is this one.
    pub fn is(&self, event_type: &str) -> bool {
        self.event_type.is_some_and(|node| node.text_is(event_type))
    }

    /// Whether `ignorable` is true.
    pub fn is_ignorable(&self) -> bool {
        self.ignorable.is_some_and(|value| value.is_true())
    }

    /// Whether the row ends the inherited events. Spec 10 §4.4.
    pub(crate) fn is_inherited_marker(&self) -> bool {
        self.is("session/end-seed")
            && self
                .data
                .and_then(|data| data.member("inherited"))
                .is_some_and(|value| value.is_true())
    }

    /// Whether `seq` is this number; −0 is 0. Spec 10 §5.1.
    pub(crate) fn has_seq(&self, expected: u64) -> bool {
        self.seq
            .and_then(|seq| seq.safe_integer())
            .is_some_and(|seq| u64::try_from(seq) == Ok(expected))
    }

    /// The error of a row that does not carry the expected seq.
    #[cold]
    pub(crate) fn seq_gap(&self, expected: u64) -> Error {
        seq_gap("the row has", self.seq, expected)
    }
}

/// The error of a row that starts at another seq than the expected one.
#[cold]
pub(super) fn seq_gap(row: &str, seq: Option<Node<'_>>, expected: u64) -> Error {
    let got = seq.map_or_else(String::new, json_of);
    let message = format!("{row} seq {}, expected {expected}", show(seq));
    Error::new(ErrorKind::SeqGap { expected, got }, message)
}

/// What a value is, for messages: literals as JSON spells them, all other values by kind.
#[must_use]
pub fn show(value: Option<Node<'_>>) -> String {
    let Some(value) = value else {
        return "none".into();
    };
    match value.kind() {
        Kind::Number => show_double(value.number().unwrap_or_default()),
        Kind::Text => "a string".into(),
        Kind::Array => "an array".into(),
        Kind::Object => "an object".into(),
        Kind::Null | Kind::Boolean => json_of(value),
    }
}

/// The JSON text of a value.
fn json_of(node: Node<'_>) -> String {
    let mut out = Vec::new();
    match node.raw() {
        Some(raw) => out.extend_from_slice(raw),
        None => write_double(node.number().unwrap_or_default(), &mut out),
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cold]
fn malformed<T>(message: &'static str) -> Result<T> {
    Err(Error::new(ErrorKind::Row, message).with_rule("10 §5.1"))
}

/// Checks a row of generations 2 to 4 apart from its seq, and returns its time in milliseconds.
///
/// # Errors
/// `Row`: a member is missing, unknown or of a wrong type, or `sourceEventSeqs` does not decode.
///
/// # Source
/// Spec 10 §5.1, §6.
pub(crate) fn decode(row: &Envelope<'_>) -> Result<i64> {
    if row.has_other {
        return malformed("the row has a key other than those of an event");
    }
    if !row.event_type.is_some_and(|node| node.is_text()) {
        return malformed("`type` of the row is missing or no string");
    }
    let (Some(seq), Some(time), Some(_)) = (row.seq, row.time, row.data) else {
        return malformed("the row lacks `seq`, `time` or `data`");
    };
    let Some(time) = time.sint() else {
        return malformed("`time` of the row is no safe integer");
    };
    if row.ignorable.is_some() && !row.is_ignorable() {
        return malformed("`ignorable` of the row is not true");
    }
    if let Some(seqs) = row.source_event_seqs {
        let Some(seq) = seq.count() else {
            return malformed("a row with `sourceEventSeqs` needs a count as `seq`");
        };
        decode_seqs(seqs, SeqCodec::V2, seq, None)?;
    }
    Ok(time)
}

/// Checks a row of generation 4 that stands at a seq, and returns its time in milliseconds.
///
/// # Errors
/// As for [`decode`]; `SeqGap`: it has another seq. `Row`: the data of a session/end-seed is no object.
///
/// # Source
/// Spec 10 §8.1 step 4.
pub(crate) fn decode_native(row: &Envelope<'_>, seq: u64) -> Result<i64> {
    let time = decode(row)?;
    if !row.has_seq(seq) {
        return Err(row.seq_gap(seq).with_rule("10 §5.1"));
    }
    if row.is("session/end-seed") && !row.data.is_some_and(|data| data.is_object()) {
        return Err(
            Error::new(ErrorKind::Row, "`data` of a session/end-seed is no object").with_rule("10 §4.4"),
        );
    }
    Ok(time)
}

/// Writes one logical event as a row of generation 4, without its line feed.
///
/// # Errors
/// `Unsupported` or `Row`: row admission refuses the event. `Row`: it is no object, or its `sourceEventSeqs` no array.
///
/// # Source
/// Spec 10 §5.1, 30 §6.
pub fn encode_event(event: Node<'_>, out: &mut Vec<u8>) -> Result<()> {
    let Some(envelope) = Envelope::of(event) else {
        return malformed("the event is no object");
    };
    admit(&envelope, true)?;
    let mut ranges = Vec::new();
    if let Some(seqs) = envelope.source_event_seqs {
        encode_seqs(seqs, &mut ranges)?;
    }
    write_node(event, out, &|key, out| {
        let replaced = key == b"sourceEventSeqs";
        if replaced {
            out.extend_from_slice(&ranges);
        }
        replaced
    });
    Ok(())
}

/// Applies row admission to an event given as JSON. Spec 30 §6.
///
/// # Errors
/// `Unsupported` or `Row`; the rule is named.
pub fn admit_event(event: Node<'_>) -> Result<()> {
    Envelope::of(event).map_or(Ok(()), |envelope| admit(&envelope, true))
}

#[cfg(test)]
mod tests {
    use super::super::{Admission, BatchRoom, admit_line};
    use super::*;
    use crate::json::Tape;

    fn encode(text: &str) -> Result<String> {
        let mut tape = Tape::new();
        let mut out = Vec::new();
        encode_event(tape.read_text(text.as_bytes(), 64).unwrap(), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn an_event_keeps_its_key_order_and_gets_ranges() {
        // Spec 10 §6 table.
        let text = r#"{"type":"x","seq":14,"sourceEventSeqs":[0,1,2,5,7,8,9,10,12,13],"time":1.0,"data":{"b":1,"1":-0}}"#;
        let line =
            r#"{"type":"x","seq":14,"sourceEventSeqs":[[0,2],5,[7,10],12,13],"time":1,"data":{"1":0,"b":1}}"#;
        assert_eq!(encode(text).unwrap(), line);
    }

    #[test]
    fn admission_precedes_encoding() {
        let error = encode(r#"{"type":"tool/result","seq":3,"time":1,"data":{"message":{"role":"user"}}}"#)
            .unwrap_err();
        assert_eq!(error.rule(), Some("E"));
    }

    #[test]
    fn rows_without_admission_rules_pass() {
        // Spec 30 §6: the types that rules A1, A5, C1, C2, D, E and F name are looked at in any case, those of rules A2
        // to A4, B, C3 and C4 where a string of theirs occurs.
        let mut room = BatchRoom::default();
        let retired = r#"[{"role":"developer","type":"tool-result"}]"#;
        let message = format!(r#"{{"role":"developer","content":{retired}}}"#);
        let all = format!(
            r#"{{"role":"developer","content":{retired},"message":{message},"inserted":[{message}],"messages":[{message}],"summary":{retired},
            "stream":[{{"type":"chunk","chunk":{{"type":"block-start","blockType":"tool-result"}}}}]}}"#
        )
        .replace('\n', " ");
        for (event_type, expected) in [
            ("tool/result", Admission::Always),
            ("system/message", Admission::Always),
            ("developer/message", Admission::Always),
            ("request/header", Admission::Always),
            ("tool/code-dispatch", Admission::Always),
            ("tool/code-dispatch-start", Admission::Always),
            ("user/message", Admission::IfRetired),
            ("assistant/message", Admission::IfRetired),
            ("assistant/attempt", Admission::IfRetired),
            ("agent/inbox/spliced", Admission::IfRetired),
            ("session/title-llm-request", Admission::IfRetired),
            ("compaction/summary", Admission::IfRetired),
            ("team/message/queued", Admission::IfRetired),
            ("tool/ptc-dispatch", Admission::IfRetired),
            ("tool/call", Admission::Never),
            ("x", Admission::Never),
        ] {
            let mut is_refused = |data: &str| {
                let line = format!("{{\"type\":\"{event_type}\",\"seq\":0,\"time\":1,\"data\":{data}}}\n");
                admit_line(line.as_bytes(), 64, &mut room).is_err()
            };
            let found = (is_refused("null"), is_refused(&all));
            let wanted = match expected {
                Admission::Never => (false, false),
                Admission::IfRetired => (false, true),
                Admission::Always => (true, true),
            };
            assert_eq!(found, wanted, "{event_type}");
            assert_eq!(Admission::of(event_type.as_bytes()), expected);
        }
    }
}
