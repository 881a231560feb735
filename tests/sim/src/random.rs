//! The one source of chance of a run: `SplitMix64`, so that a seed means the same everywhere.

/// Random numbers from a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, of 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not zero.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number from `first` up to and without `end`.
    pub const fn between(&mut self, first: u64, end: u64) -> u64 {
        first + self.below(end - first)
    }

    /// True `percent` times of a hundred.
    pub const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// An index into something of this length.
    ///
    /// # Panics
    /// When there is nothing to choose from.
    pub fn index(&mut self, len: usize) -> usize {
        assert!(len > 0, "nothing to choose from");
        usize::try_from(self.below(len as u64)).unwrap_or_default()
    }
}
