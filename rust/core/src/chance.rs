//! Numbers for tests that look random and are the same for a seed.

/// A generator; its seed is not 0.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    /// A number below a limit.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % limit.max(1)
    }

    /// True once in so many times.
    pub(crate) fn is(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// One of some texts.
    pub(crate) fn of<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.below(texts.len())]
    }
}
