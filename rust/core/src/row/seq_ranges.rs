//! Range form of `sourceEventSeqs`. Spec 10 §6.

use std::collections::HashSet;

use crate::error::{Error, ErrorKind, Result};
use crate::json::Node;

/// Which of the three decoders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeqCodec {
    /// The free-standing decoder.
    Session,
    /// Rows of generations 2 to 4.
    V2,
    /// Rows of generations 0 and 1.
    V0,
}

#[cold]
fn refuse(codec: SeqCodec, message: &'static str) -> Error {
    let kind = if codec == SeqCodec::Session {
        ErrorKind::Stream { record: None }
    } else {
        ErrorKind::Row
    };
    Error::new(kind, message).with_rule("10 §6")
}

/// Decodes a range form; calls `emit` for every seq in order when one is given.
///
/// # Errors
/// `Row`, with [`SeqCodec::Session`] `Stream`: the value breaks a rule.
///
/// # Cost
/// Entries and pairs; without `emit` the members of a pair are not visited, so a check never costs more than the row.
/// At most `max_entries` seqs are emitted.
pub fn decode_seqs(
    value: Node<'_>,
    codec: SeqCodec,
    max_entries: u64,
    mut emit: Option<&mut dyn FnMut(u64)>,
) -> Result<u64> {
    if !value.is_array() {
        return Err(refuse(codec, "sourceEventSeqs is no array"));
    }
    let mut total = 0u64;
    let mut last: Option<u64> = None;
    let mut increasing = true;
    let mut pairs = false;
    for entry in value.elements() {
        let (first, end) = if entry.is_array() {
            pairs = true;
            let mut ends = entry.elements();
            let pair = (
                ends.next().and_then(|n| n.count()),
                ends.next().and_then(|n| n.count()),
                ends.next(),
            );
            let (Some(first), Some(end), None) = pair else {
                return Err(refuse(codec, "a range of sourceEventSeqs is no pair of counts"));
            };
            if first > end {
                return Err(refuse(codec, "a range of sourceEventSeqs ends before it starts"));
            }
            (first, end)
        } else {
            let Some(seq) = entry.count() else {
                return Err(refuse(
                    codec,
                    "an entry of sourceEventSeqs is no count and no range",
                ));
            };
            (seq, seq)
        };
        if codec == SeqCodec::V2 && end >= max_entries {
            return Err(refuse(
                codec,
                "sourceEventSeqs names an event that is not earlier",
            ));
        }
        let len = end - first + 1;
        if len > max_entries - total {
            return Err(refuse(
                codec,
                "sourceEventSeqs names more events than there are before it",
            ));
        }
        total += len;
        increasing &= last.is_none_or(|last| first > last);
        if pairs && !increasing {
            return Err(refuse(
                codec,
                "sourceEventSeqs with a range must be strictly increasing",
            ));
        }
        last = Some(end);
        if let Some(emit) = emit.as_deref_mut() {
            (first..=end).for_each(emit);
        }
    }
    // A list that increases has no repetition.
    if codec == SeqCodec::V2 && !increasing {
        let mut seen = HashSet::new();
        if !value
            .elements()
            .all(|entry| entry.count().is_some_and(|seq| seen.insert(seq)))
        {
            return Err(refuse(codec, "sourceEventSeqs names an event twice"));
        }
    }
    Ok(total)
}

/// Appends the range form of a list as JSON.
///
/// # Errors
/// `Row`: an element is no number that can be written (the caller gives parsed JSON).
pub fn encode_seqs(seqs: Node<'_>, out: &mut Vec<u8>) -> Result<()> {
    if !seqs.is_array() {
        return Err(refuse(SeqCodec::V2, "sourceEventSeqs is no array"));
    }
    let values: Vec<Option<u64>> = seqs.elements().map(|seq| seq.count()).collect();
    let increasing =
        values.iter().all(Option::is_some) && values.windows(2).all(|pair| matches!(pair, [a, b] if a < b));
    if !increasing {
        crate::json::write_node(seqs, out, &|_, _| false);
        return Ok(());
    }
    write_runs(values.into_iter().flatten().map(|seq| (seq, seq)), out);
    Ok(())
}

/// Appends a range form that decodes as the writer would spell it.
pub(crate) fn respell_seqs(ranges: Node<'_>, out: &mut Vec<u8>) {
    let spans = ranges.elements().filter_map(|entry| {
        let mut ends = entry.elements();
        let end = |node: Node<'_>| node.count();
        match entry.count() {
            Some(seq) => Some((seq, seq)),
            None => Some((ends.next().and_then(end)?, ends.next().and_then(end)?)),
        }
    });
    write_runs(spans, out);
}

/// Appends spans of seqs, joined where they increase without a gap.
fn write_runs(spans: impl Iterator<Item = (u64, u64)>, out: &mut Vec<u8>) {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut increasing = true;
    for (first, last) in spans {
        increasing &= runs.last().is_none_or(|&(_, before)| before < first);
        match runs.last_mut() {
            Some((_, before)) if before.checked_add(1) == Some(first) => *before = last,
            _ => runs.push((first, last)),
        }
    }
    out.push(b'[');
    for (place, &(first, last)) in runs.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        let text = match last - first {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ if increasing => format!("[{first},{last}]"),
            _ => (first..=last)
                .map(|seq| seq.to_string())
                .collect::<Vec<_>>()
                .join(","),
        };
        out.extend_from_slice(text.as_bytes());
    }
    out.push(b']');
}
