//! Packed rows of generations 0 and 1. Spec 10 §5.3.

use crate::error::{Error, ErrorKind, Result};
use crate::json::Node;
use crate::json::number::is_safe;
use crate::limits::MAX_SAFE_INTEGER;

/// A packed row that keeps every rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Seq of the first member.
    pub(crate) first_seq: u64,
    /// Time of the first member, in milliseconds.
    pub(crate) time: i64,
    /// Members.
    pub(crate) count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Delta,
    ToolCall,
}

fn tag(event_type: Option<Node<'_>>) -> Option<Tag> {
    let event_type = event_type?;
    if event_type.text_is("text-chunks") || event_type.text_is("reasoning-chunks") {
        Some(Tag::Delta)
    } else if event_type.text_is("tool-call-chunks") {
        Some(Tag::ToolCall)
    } else {
        None
    }
}

/// Whether a row with this `type` is a packed row.
pub(crate) fn is_packed(event_type: Option<Node<'_>>) -> bool {
    tag(event_type).is_some()
}

#[cold]
fn malformed<T>(message: &'static str) -> Result<T> {
    Err(Error::new(ErrorKind::Row, message).with_rule("10 §5.3"))
}

/// Checks a packed row apart from its place in the log.
///
/// # Errors
/// `Row`: a member is missing, unknown or of a wrong type, or a time or seq leaves the safe range.
pub(crate) fn decode(row: Node<'_>) -> Result<Packed> {
    let (mut event_type, mut first_seq, mut time, mut data) = (None, None, None, None);
    for (key, value) in row.members() {
        let key = key.text().unwrap_or_default();
        let member = match &*key {
            b"type" => &mut event_type,
            b"seq0" => &mut first_seq,
            b"time0" => &mut time,
            b"data" => &mut data,
            _ => return malformed("a packed row has a key other than type, seq0, time0 and data"),
        };
        *member = Some(value);
    }
    let Some(first_seq) = first_seq.and_then(|value: Node<'_>| value.count()) else {
        return malformed("`seq0` of a packed row is no count");
    };
    let Some(time) = time.and_then(|value: Node<'_>| value.sint()) else {
        return malformed("`time0` of a packed row is no safe integer");
    };
    let (Some(tag), Some(data)) = (tag(event_type), data.filter(Node::is_object)) else {
        return malformed("`data` of a packed row is no object");
    };
    let mut counts = [None; 3];
    let (mut dt, mut texts, mut args, mut id, mut name) = (None, None, None, None, None);
    for (key, value) in data.members() {
        let key = key.text().unwrap_or_default();
        let member = match (&*key, tag) {
            (b"turn", _) => &mut counts[0],
            (b"step", _) => &mut counts[1],
            (b"index", _) => &mut counts[2],
            (b"dt", _) => &mut dt,
            (b"texts", Tag::Delta) => &mut texts,
            (b"args", Tag::ToolCall) => &mut args,
            (b"id", Tag::ToolCall) => &mut id,
            (b"name", Tag::ToolCall) => &mut name,
            _ => return malformed("`data` of a packed row has a key that does not belong there"),
        };
        *member = Some(value);
    }
    if counts
        .iter()
        .any(|value: &Option<Node<'_>>| value.is_none_or(|value| value.count().is_none()))
    {
        return malformed("`turn`, `step` and `index` of a packed row must be counts");
    }
    if tag == Tag::ToolCall && !id.is_some_and(|id: Node<'_>| id.is_nonempty_text()) {
        return malformed("`id` of a packed row is no non-empty string");
    }
    if name.is_some_and(|name: Node<'_>| !name.is_text()) {
        return malformed("`name` of a packed row is no string");
    }
    let members: Option<Node<'_>> = if tag == Tag::Delta { texts } else { args };
    let Some(members) = members.filter(|members| members.is_text_array() && !members.is_empty()) else {
        return malformed("the members of a packed row must be a non-empty array of strings");
    };
    let count = members.len();
    let Some(dt) = dt.filter(|dt: &Node<'_>| dt.is_array() && dt.len() == count - 1) else {
        return malformed("`dt` of a packed row must be an array with one entry fewer than its members");
    };
    if !are_gaps_sound(dt, time)? {
        return malformed("a running time of a packed row leaves the safe range");
    }
    let count = count as u64;
    if first_seq + (count - 1) > MAX_SAFE_INTEGER.unsigned_abs() {
        return malformed("the last seq of a packed row leaves the safe range");
    }
    Ok(Packed {
        first_seq,
        time,
        count,
    })
}

/// Whether every running time is safe; fails where a gap is no safe integer.
fn are_gaps_sound(dt: Node<'_>, time: i64) -> Result<bool> {
    if let Some(shape) = dt.integer_shape()
        && !shape.negative_zero
    {
        // No sum is larger in size than this; where that is safe, so is every running time.
        let largest = 10i64.saturating_pow(shape.max_digits);
        let sum = i64::try_from(shape.count)
            .unwrap_or(i64::MAX)
            .saturating_mul(largest);
        if is_safe(sum.saturating_add(time.saturating_abs())) {
            return Ok(true);
        }
    }
    let mut running = time;
    for gap in dt.elements() {
        let Some(gap) = gap.sint() else {
            return malformed("an entry of `dt` of a packed row is no safe integer");
        };
        running += gap;
        if !is_safe(running) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Time of the last member of a packed row that keeps every rule, in milliseconds.
pub(crate) fn last_time(row: Node<'_>) -> Option<i64> {
    let gaps = row.member("data")?.member("dt")?;
    let first = row.member("time0")?.sint()?;
    Some(
        gaps.elements()
            .fold(first, |time, gap| time + gap.sint().unwrap_or(0)),
    )
}
