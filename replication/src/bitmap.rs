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
    /// For each page, whether it is not on the disk as it is here.
    changed: Vec<bool>,
}

impl Bitmap {
    /// No block of a volume of `size` bytes.
    pub(crate) fn new(size: u64) -> Self {
        let words = usize::try_from(words(size)).unwrap_or(usize::MAX);
        Self { words: vec![0; words], size, dirty: 0, changed: vec![false; words.div_ceil(PAGE_WORDS)] }
    }

    /// What [`Bitmap::write_page`] wrote, page by page.
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
        bitmap.changed.fill(false);
        bitmap
    }

    /// Appends a page as it belongs on the disk: its words, little-endian, and zeros up to 4096 bytes. From now on it
    /// counts as written.
    pub(crate) fn write_page(&mut self, page: usize, out: &mut Vec<u8>) {
        let end = out.len() + PAGE_LEN;
        let words = self.words.iter().skip(page * PAGE_WORDS).take(PAGE_WORDS);
        out.extend(words.flat_map(|word| word.to_le_bytes()));
        out.resize(end, 0);
        if let Some(changed) = self.changed.get_mut(page) {
            *changed = false;
        }
    }

    /// The pages about an extent.
    pub(crate) fn pages(&self, extent: Extent) -> std::ops::Range<usize> {
        let page = |block: u64| usize::try_from(block / PAGE_BLOCKS).unwrap_or(usize::MAX);
        let end = page((extent.end().div_ceil(BLOCK)).saturating_sub(1)) + 1;
        page(extent.offset / BLOCK)..end.min(self.changed.len())
    }

    /// Whether a page is not on the disk as it is here.
    pub(crate) fn is_changed(&self, page: usize) -> bool {
        self.changed.get(page).is_some_and(|&changed| changed)
    }

    /// Every page that is not on the disk as it is here.
    pub(crate) fn changed(&self) -> impl Iterator<Item = usize> {
        self.changed.iter().enumerate().filter(|(_, changed)| **changed).map(|(page, _)| page)
    }

    /// A page is not on the disk as it is here.
    pub(crate) fn touch(&mut self, page: usize) {
        if let Some(changed) = self.changed.get_mut(page) {
            *changed = true;
        }
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
        for (page, words) in self.words.chunks(PAGE_WORDS).enumerate() {
            self.changed[page] |= words.iter().any(|&word| word != 0);
        }
        self.words.fill(0);
        self.dirty = 0;
    }

    /// Adds the blocks of `words`, the first of which is word number `first`. What lies outside is ignored.
    pub(crate) fn merge(&mut self, first: u64, words: &[u64]) {
        let blocks = self.size.div_ceil(BLOCK);
        let (words_here, changed) = (&mut self.words, &mut self.changed);
        let Some(mine) = usize::try_from(first).ok().and_then(|first| words_here.get_mut(first..)) else {
            return;
        };
        for ((index, mine), &word) in (first..).zip(mine).zip(words) {
            let inside = blocks.saturating_sub(index * 64);
            let mask = if inside >= 64 { u64::MAX } else { (1 << inside) - 1 };
            let added = word & mask & !*mine;
            *mine |= added;
            self.dirty += u64::from(added.count_ones());
            if added != 0
                && let Some(changed) =
                    usize::try_from(index).ok().and_then(|at| changed.get_mut(at / PAGE_WORDS))
            {
                *changed = true;
            }
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
            let Some(at) = usize::try_from(block / 64).ok().filter(|&at| at < self.words.len()) else {
                return;
            };
            let before = self.words[at];
            let after = if set { before | mask } else { before & !mask };
            self.words[at] = after;
            self.dirty = self.dirty + u64::from(after.count_ones()) - u64::from(before.count_ones());
            self.changed[at / PAGE_WORDS] |= before != after;
            block = stop;
        }
    }
}

/// Marks the blocks of an extent in the bytes of pages from `first` on.
pub(crate) fn mark_page(bytes: &mut [u8], first: usize, extent: Extent) {
    let start = first as u64 * PAGE_BLOCKS;
    let end = start + bytes.len() as u64 * 8;
    for block in (extent.offset / BLOCK).max(start)..extent.end().div_ceil(BLOCK).min(end) {
        if let Some(byte) = usize::try_from((block - start) / 8).ok().and_then(|at| bytes.get_mut(at)) {
            *byte |= 1 << (block % 8);
        }
    }
}

/// How many words a volume of `size` bytes needs.
pub(crate) const fn words(size: u64) -> u64 {
    size.div_ceil(BLOCK).div_ceil(64)
}

/// A page of the bitmap on the disk: its bytes, its words, and the blocks that they stand for.
pub(crate) const PAGE_LEN: usize = 4096;
const PAGE_WORDS: usize = PAGE_LEN / 8;
const PAGE_BLOCKS: u64 = PAGE_WORDS as u64 * 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// A change, and the pages that it changes.
    type Step = (fn(&mut Bitmap), &'static [usize]);

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
        let mut bytes = Vec::new();
        bitmap.write_page(0, &mut bytes);
        let again = Bitmap::from_bytes(70 * BLOCK, &bytes);
        assert_eq!((again.words(), again.dirty()), (bitmap.words(), 6));
        assert!(again.touches(Extent::new(69 * BLOCK, 1)) && !again.touches(Extent::new(0, BLOCK)));
    }

    /// P6: every change of a bit, by whichever way, makes its page one that has to be written, and no other page.
    #[test]
    fn pages_that_changed_are_known() {
        let size = 5 * PAGE_BLOCKS * BLOCK / 2;
        let page = |page: u64| Extent::new(page * PAGE_BLOCKS * BLOCK, PAGE_BLOCKS * BLOCK);
        let steps: [Step; 6] = [
            (|bitmap| bitmap.set(Extent::new(PAGE_BLOCKS * BLOCK - 1, 2)), &[0, 1]),
            (|bitmap| bitmap.set(Extent::new(PAGE_BLOCKS * BLOCK - 1, 2)), &[]),
            (|bitmap| bitmap.clear(Extent::new(0, PAGE_BLOCKS * BLOCK)), &[0]),
            (|bitmap| bitmap.merge(2 * PAGE_WORDS as u64 - 1, &[1, 1]), &[1, 2]),
            (Bitmap::clear_all, &[1, 2]),
            (Bitmap::set_all, &[0, 1, 2]),
        ];
        let mut bitmap = Bitmap::new(size);
        for (step, (change, expected)) in steps.into_iter().enumerate() {
            change(&mut bitmap);
            assert_eq!(bitmap.changed().collect::<Vec<_>>(), expected, "step {step}");
            let mut bytes = Vec::new();
            (0..3).for_each(|page| bitmap.write_page(page, &mut bytes));
            assert_eq!(Bitmap::from_bytes(size, &bytes).words(), bitmap.words());
        }
        assert_eq!((bitmap.pages(page(1)), bitmap.pages(page(2))), (1..2, 2..3));
        assert_eq!(bitmap.pages(Extent::new(PAGE_BLOCKS * BLOCK - 1, 2)), 0..2);
    }
}
