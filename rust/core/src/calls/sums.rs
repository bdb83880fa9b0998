//! Tokens of a log's calls, summed up, without the rest of them. Spec 80 §4.

use super::collect::{Tokens, is_auxiliary, object_member, stream_of};
use super::pace::Marks;
use crate::json::{Node, Tape};
use crate::row::{Accept, Row};

/// Sums over calls, in the order input, output, cache read, cache write, reasoning, total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenSums {
    /// Number of calls.
    pub calls: u64,
    /// Sums over the calls that know it.
    pub sums: [i128; 6],
    /// Numbers of calls that know it.
    pub known: [u64; 6],
}

impl TokenSums {
    /// Adds what others sum up to.
    pub fn merge(&mut self, other: &Self) {
        self.calls += other.calls;
        for (sum, more) in self.sums.iter_mut().zip(other.sums) {
            *sum += more;
        }
        for (known, more) in self.known.iter_mut().zip(other.known) {
            *known += more;
        }
    }

    fn add(&mut self, tokens: &Tokens) {
        self.calls += 1;
        let columns = [
            tokens.input,
            tokens.output,
            tokens.cache_read,
            tokens.cache_write,
            tokens.reasoning,
            tokens.total,
        ];
        for ((sum, known), count) in self.sums.iter_mut().zip(&mut self.known).zip(columns) {
            if let Some(count) = count {
                *sum += i128::from(count);
                *known += 1;
            }
        }
    }
}

/// Collects the tokens of the calls that [`CallRows`](super::CallRows) would collect.
///
/// # Cost
/// One look at the records of each settlement; memory is that of the numbers.
pub struct TokenRows {
    with_auxiliary: bool,
    /// With their seqs: which calls are own is known at the end only.
    calls: Vec<(u64, Tokens)>,
    scratch: Tape,
}

impl TokenRows {
    /// No calls yet; those that carry no usage count if `with_auxiliary` says so.
    pub fn new(with_auxiliary: bool) -> Self {
        Self {
            with_auxiliary,
            calls: Vec::new(),
            scratch: Tape::new(),
        }
    }

    /// Sums up the calls from a seq on.
    pub fn sum(&self, own_from: u64) -> TokenSums {
        let mut sums = TokenSums::default();
        let own = self.calls.iter().filter(|&&(seq, _)| seq >= own_from);
        own.for_each(|(_, tokens)| sums.add(tokens));
        sums
    }
}

impl Accept for TokenRows {
    const LOOKS: bool = false;

    fn looks_into(&self, event_type: &[u8]) -> bool {
        matches!(
            event_type,
            b"assistant/message" | b"assistant/attempt" | b"compaction/summary"
        )
    }

    fn take(&mut self, row: &Row<'_>) {
        let Some(event_type) = row.event_type else { return };
        let Some(kind) = event_type.text() else { return };
        let data = || event_type.root().member("data").filter(Node::is_object);
        let tokens = match &*kind {
            b"assistant/message" | b"assistant/attempt" => {
                let data = data();
                let marks = stream_of(data).map_or_else(Marks::default, |stream| Marks::of(stream, false));
                Some(Tokens::of_settlement(data, &marks, &mut self.scratch))
            }
            b"compaction/summary" => object_member(data(), "usage").map(Tokens::of),
            kind if self.with_auxiliary && is_auxiliary(kind) => Some(Tokens::default()),
            _ => None,
        };
        self.calls.extend(tokens.map(|tokens| (row.seq, tokens)));
    }
}
