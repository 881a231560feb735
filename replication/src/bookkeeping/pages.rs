//! Which pages of the bitmaps a batch writes, and what they say.

use bytes::Bytes;

use crate::{
    DiskRequest,
    bitmap::{self, PAGE_LEN},
    meta,
    resource::Volume,
    sabotage::{Fault, planted},
};

/// Pages of a bitmap in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    bitmap: usize,
    first: usize,
    count: usize,
}

impl Volume {
    /// The pages that the batch under way has to write, and others that are due.
    pub(super) fn pages_due(&mut self) -> Vec<Pages> {
        let mut pages = Vec::new();
        self.touch_tail();
        let left: Vec<_> = match &self.books.log {
            Some(log) if !planted(Fault::ForgetBitmapPage) => {
                self.books.left.iter().map(|span| log.bytes(*span)).collect()
            }
            _ => Vec::new(),
        };
        for (at, (_, bitmap)) in self.bitmaps.iter().enumerate() {
            for extent in &left {
                pages.extend(
                    bitmap.pages(*extent).filter(|&page| bitmap.is_changed(page)).map(|page| (at, page)),
                );
            }
        }
        if self.books.superblock.is_some() || self.books.tidying {
            let each = self.bitmaps.iter().enumerate();
            let mut changed = each.flat_map(|(at, (_, bitmap))| bitmap.changed().map(move |page| (at, page)));
            pages.extend(changed.by_ref().take(PAGES_MAX));
            self.books.swept = changed.next().is_none();
            self.books.tidying &= !self.books.swept;
        }
        pages.sort_unstable();
        pages.dedup();
        let mut runs: Vec<Pages> = Vec::new();
        for (bitmap, page) in pages {
            match runs.last_mut() {
                Some(run) if run.bitmap == bitmap && run.first + run.count == page && run.count < RUN_MAX => {
                    run.count += 1;
                }
                _ => runs.push(Pages { bitmap, first: page, count: 1 }),
            }
        }
        runs
    }

    /// What leaves the log and is perhaps not everywhere has to be in the pages.
    fn touch_tail(&mut self) {
        let Some(log) = self.books.log.as_ref().filter(|_| !planted(Fault::EvictEarly)) else { return };
        let mut left: Vec<_> = self.books.left.iter().map(|span| log.bytes(*span)).collect();
        if left.is_empty() || self.tail.is_empty() {
            return;
        }
        left.sort_unstable_by_key(|extent| extent.offset);
        for (_, extent) in &self.tail {
            // Ranges may overlap single extents, so the neighbours are looked at as well.
            let behind = left.partition_point(|left| left.offset < extent.end());
            if left[..behind].iter().any(|left| left.overlaps(*extent)) {
                for (_, bitmap) in &mut self.bitmaps {
                    bitmap.pages(*extent).for_each(|page| bitmap.touch(page));
                }
            }
        }
    }

    /// The write of some pages.
    pub(super) fn page_request(&mut self, run: Pages) -> DiskRequest {
        let (_, bitmap) = &mut self.bitmaps[run.bitmap];
        let mut bytes = Vec::with_capacity(run.count * PAGE_LEN);
        for page in run.first..run.first + run.count {
            bitmap.write_page(page, &mut bytes);
        }
        if !planted(Fault::EvictEarly) {
            for (_, extent) in &self.tail {
                bitmap::mark_page(&mut bytes, run.first, *extent);
            }
        }
        let slot = run.bitmap as u64;
        let offset = meta::bitmap_offset(self.config.size, slot) + (run.first * PAGE_LEN) as u64;
        DiskRequest::WriteMetadata { offset, data: Bytes::from(bytes) }
    }
}

/// How many pages are written at a time without a change that waits for them, and how many in one write.
const PAGES_MAX: usize = 1024;
const RUN_MAX: usize = 64;
