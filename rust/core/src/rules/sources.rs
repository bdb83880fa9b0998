//! `sourceEventSeqs` as a set. Spec 10 §6.

use crate::json::Node;

/// Seqs that an event cites, as inclusive ranges in rising order.
#[derive(Debug)]
pub(super) struct Sources(Vec<(u64, u64)>);

impl Sources {
    /// Reads the range form; what is no seq and no range is passed over.
    pub(super) fn of(value: Option<Node<'_>>) -> Self {
        let entries = value.into_iter().flat_map(|seqs| seqs.elements());
        let mut ranges: Vec<(u64, u64)> = entries
            .filter_map(|entry| {
                let mut ends = entry.elements().map(|end| end.count());
                match entry.count() {
                    Some(seq) => Some((seq, seq)),
                    None => Some((ends.next()??, ends.next()??)),
                }
            })
            .collect();
        if !ranges.is_sorted() {
            ranges.sort_unstable();
        }
        Self(ranges)
    }

    fn contains(&self, seq: u64) -> bool {
        let behind = self.0.partition_point(|&(first, _)| first <= seq);
        behind
            .checked_sub(1)
            .and_then(|at| self.0.get(at))
            .is_some_and(|&(_, last)| seq <= last)
    }

    /// The smallest of these seqs that is not cited.
    pub(super) fn missing(&self, seqs: impl Iterator<Item = u64>) -> Option<u64> {
        seqs.filter(|&seq| !self.contains(seq)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Tape;

    #[test]
    fn ranges_and_lists_are_sets() {
        let mut tape = Tape::new();
        for text in ["[0,1,2,5,[7,9]]", "[[0,2],5,7,8,9]", "[9,5,0,2,1,8,7]"] {
            let sources = Sources::of(Some(tape.read_text(text.as_bytes(), 9).unwrap()));
            assert_eq!(sources.missing([0, 1, 2, 5, 7, 8, 9].into_iter()), None, "{text}");
            assert_eq!(sources.missing([9, 10, 6, 3].into_iter()), Some(3), "{text}");
        }
        assert_eq!(Sources::of(None).missing([4].into_iter()), Some(4));
    }
}
