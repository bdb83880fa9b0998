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
    let values: Vec<u64> = values.into_iter().flatten().collect();
    out.push(b'[');
    for (place, run) in values.chunk_by(|a, b| a.checked_add(1) == Some(*b)).enumerate() {
        if place > 0 {
            out.push(b',');
        }
        if let ([first, .., last], true) = (run, run.len() >= 3) {
            out.extend_from_slice(format!("[{first},{last}]").as_bytes());
        } else {
            let listed: Vec<String> = run.iter().map(ToString::to_string).collect();
            out.extend_from_slice(listed.join(",").as_bytes());
        }
    }
    out.push(b']');
    Ok(())
}
