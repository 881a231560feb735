//! The blocks that differ, or may differ, from one peer's replica: one bit per 4 KiB.

use block::Extent;

/// The bytes that one bit stands for.
pub(crate) const BLOCK: u64 = 4096;

/// One bit per block of a volume.
#[derive(Clone, Debug)]
pub(crate) struct Bitmap {
    words: Vec<u64>,
    size: u64,
    dirty: u64,
}

impl Bitmap {
    /// No block of a volume of `size` bytes.
    pub(crate) fn new(size: u64) -> Self {
        let words = usize::try_from(words(size)).unwrap_or(usize::MAX);
        Self { words: vec![0; words], size, dirty: 0 }
    }

    /// What was written by [`Bitmap::to_bytes`].
    pub(crate) fn from_bytes(size: u64, bytes: &[u8]) -> Self {
        let mut bitmap = Self::new(size);
        let words: Vec<u64> = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .take(bitmap.words.len())
            .map(|&word| u64::from_le_bytes(word))
            .collect();
        bitmap.merge(0, &words);
        bitmap
    }

    /// The words, little-endian, filled up to whole blocks of 4096 bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        bytes
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// How many blocks are dirty.
    pub(crate) const fn dirty(&self) -> u64 {
        self.dirty
    }

    /// Marks every block that has a byte of the extent.
    pub(crate) fn set(&mut self, extent: Extent) {
        if !extent.is_empty() {
            self.change(extent.offset / BLOCK, extent.end().div_ceil(BLOCK), true);
        }
    }

    pub(crate) fn set_all(&mut self) {
        self.change(0, self.size.div_ceil(BLOCK), true);
    }

    /// Clears every block that lies wholly in the extent.
    pub(crate) fn clear(&mut self, extent: Extent) {
        let end = if extent.end() >= self.size { self.size.div_ceil(BLOCK) } else { extent.end() / BLOCK };
        self.change(extent.offset.div_ceil(BLOCK), end, false);
    }

    pub(crate) fn clear_all(&mut self) {
        self.words.fill(0);
        self.dirty = 0;
    }

    /// Adds the blocks of `words`, the first of which is word number `first`. What lies outside is ignored.
    pub(crate) fn merge(&mut self, first: u64, words: &[u64]) {
        let blocks = self.size.div_ceil(BLOCK);
        let Some(mine) = usize::try_from(first).ok().and_then(|first| self.words.get_mut(first..)) else {
            return;
        };
        for ((index, mine), &word) in (first..).zip(mine).zip(words) {
            let inside = blocks.saturating_sub(index * 64);
            let mask = if inside >= 64 { u64::MAX } else { (1 << inside) - 1 };
            let added = word & mask & !*mine;
            *mine |= added;
            self.dirty += u64::from(added.count_ones());
        }
    }

    /// The first run of dirty blocks at or behind block `from`, at most `max` blocks and not across a multiple of it.
    pub(crate) fn run(&self, from: u64, max: u64) -> Option<Extent> {
        let mut word = usize::try_from(from / 64).ok()?;
        let mut bits = self.words.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.words.get(word)?;
        }
        let first = word as u64 * 64 + u64::from(bits.trailing_zeros());
        let stop = (first / max + 1) * max;
        let mut end = first + 1;
        while end < stop && self.is_set(end) {
            end += 1;
        }
        let offset = first * BLOCK;
        Some(Extent::new(offset, (end * BLOCK).min(self.size) - offset))
    }

    /// Whether a block of the extent is dirty.
    #[cfg(test)]
    pub(crate) fn touches(&self, extent: Extent) -> bool {
        (extent.offset / BLOCK..extent.end().div_ceil(BLOCK)).any(|block| self.is_set(block))
    }

    fn is_set(&self, block: u64) -> bool {
        usize::try_from(block / 64)
            .ok()
            .and_then(|word| self.words.get(word))
            .is_some_and(|word| word & (1 << (block % 64)) != 0)
    }

    fn change(&mut self, first: u64, end: u64, set: bool) {
        let end = end.min(self.size.div_ceil(BLOCK));
        let mut block = first;
        while block < end {
            let stop = end.min((block / 64 + 1) * 64);
            let width = stop - block;
            let mask = (u64::MAX >> (64 - width)) << (block % 64);
            let Some(word) = usize::try_from(block / 64).ok().and_then(|word| self.words.get_mut(word))
            else {
                return;
            };
            let before = word.count_ones();
            *word = if set { *word | mask } else { *word & !mask };
            self.dirty = self.dirty + u64::from(word.count_ones()) - u64::from(before);
            block = stop;
        }
    }
}

/// How many words a volume of `size` bytes needs.
pub(crate) const fn words(size: u64) -> u64 {
    size.div_ceil(BLOCK).div_ceil(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P6: a change marks every block that it touches, a copy clears only those that it covers; every pair of
    /// ends over three words.
    #[test]
    fn sets_more_and_clears_less() {
        let size = 150 * BLOCK;
        for first in (0..150).step_by(7) {
            for end in first + 1..=150 {
                let ragged = Extent::new(first * BLOCK + 512, (end - first) * BLOCK - 1024);
                let mut bitmap = Bitmap::new(size);
                bitmap.set(ragged);
                assert_eq!(bitmap.dirty(), end - first);
                bitmap.clear(ragged);
                assert_eq!(bitmap.dirty(), if end - first == 1 { 1 } else { 2 });
                bitmap.clear(Extent::new(first * BLOCK, (end - first) * BLOCK));
                assert_eq!(bitmap.dirty(), 0);
            }
        }
    }

    /// P7: the runs are the dirty blocks, no more and no fewer.
    #[test]
    fn runs_cover_what_is_dirty() {
        let mut bitmap = Bitmap::new(200 * BLOCK - 512);
        for block in [0, 1, 63, 64, 65, 127, 199] {
            bitmap.set(Extent::new(block * BLOCK, 512));
        }
        let mut blocks = Vec::new();
        let mut from = 0;
        while let Some(run) = bitmap.run(from, 32) {
            blocks.extend(run.offset / BLOCK..run.end().div_ceil(BLOCK));
            from = run.end().div_ceil(BLOCK);
            assert!(run.end() <= 200 * BLOCK - 512);
        }
        assert_eq!(blocks, [0, 1, 63, 64, 65, 127, 199]);
        assert_eq!(bitmap.run(200, 32), None);
    }

    /// The bitmap survives a stop, and a peer's words cannot mark what does not exist.
    #[test]
    fn bytes_read_back_and_strange_words_are_cut() {
        let mut bitmap = Bitmap::new(70 * BLOCK);
        bitmap.merge(1, &[u64::MAX, u64::MAX]);
        assert_eq!(bitmap.dirty(), 6);
        bitmap.merge(u64::MAX, &[1, 1]);
        let again = Bitmap::from_bytes(70 * BLOCK, &bitmap.to_bytes());
        assert_eq!((again.words(), again.dirty()), (bitmap.words(), 6));
        assert!(again.touches(Extent::new(69 * BLOCK, 1)) && !again.touches(Extent::new(0, BLOCK)));
    }
}
