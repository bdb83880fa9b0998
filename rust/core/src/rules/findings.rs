//! What a check has found, layer by layer, in bounded memory.

use crate::error::Error;
use crate::limits::MAX_KEPT_FINDINGS;

/// Findings of a check.
#[derive(Debug, Default)]
pub struct Findings {
    /// The first of them, the decisive one in front: each has a rule and, but for the header, a seq. A pair of both
    /// occurs once.
    pub kept: Vec<Error>,
    /// All of them.
    pub count: u64,
}

/// Findings of one layer in the order in which they came up.
#[derive(Debug, Default)]
pub(super) struct Layer {
    kept: Vec<(u64, Error)>,
    /// Findings that are void if the inherited cut turns out to lie behind them.
    uncertain: Vec<(u64, Error)>,
    uncertain_count: u64,
    count: u64,
    /// Findings that ever came up: orders those of the two lists.
    next: u64,
}

impl Layer {
    #[cold]
    pub(super) fn push(&mut self, finding: Error) {
        self.count += 1;
        self.next += 1;
        if self.kept.len() < MAX_KEPT_FINDINGS {
            self.kept.push((self.next, finding));
        }
    }

    #[inline]
    pub(super) fn push_some(&mut self, finding: Option<Error>) {
        if let Some(finding) = finding {
            self.push(finding);
        }
    }

    #[cold]
    pub(super) fn push_uncertain(&mut self, finding: Error) {
        self.uncertain_count += 1;
        self.next += 1;
        if self.uncertain.len() < MAX_KEPT_FINDINGS {
            self.uncertain.push((self.next, finding));
        }
    }

    /// Counts findings that are not kept.
    pub(super) fn count(&mut self, findings: u64) {
        self.count += findings;
    }

    /// The inherited cut lies behind all findings that depend on it.
    pub(super) fn void_uncertain(&mut self) {
        self.uncertain.clear();
        self.uncertain_count = 0;
    }

    /// Moves findings that came up behind all of these.
    pub(super) fn append(&mut self, behind: &mut Self) {
        let before = self.next;
        for (kept, more) in [
            (&mut self.kept, &mut behind.kept),
            (&mut self.uncertain, &mut behind.uncertain),
        ] {
            let room = MAX_KEPT_FINDINGS.saturating_sub(kept.len());
            let moved = more.drain(..).take(room);
            kept.extend(moved.map(|(order, finding)| (before + order, finding)));
        }
        self.uncertain_count += std::mem::take(&mut behind.uncertain_count);
        self.count += std::mem::take(&mut behind.count);
        self.next += std::mem::take(&mut behind.next);
    }

    /// The first findings in order, and the number of all.
    pub(super) fn finish(self) -> (impl Iterator<Item = Error>, u64) {
        let mut all = self.kept;
        all.extend(self.uncertain);
        all.sort_by_key(|&(order, _)| order);
        (
            all.into_iter()
                .take(MAX_KEPT_FINDINGS)
                .map(|(_, finding)| finding),
            self.count + self.uncertain_count,
        )
    }
}
