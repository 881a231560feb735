//! What a replica writes down about itself beside the superblock, so that after a crash every difference is known (P6):
//! the activity log before a change, the bitmaps before an extent leaves the log.
//!
//! One batch per volume is under way at a time: a flush where a power cut could still change what leaves, then the pages
//! of the bitmaps, then the block of the log. What is not everywhere yet, as far as this node knows, counts as
//! different in the pages.

mod pages;
mod recovery;

use block::Extent;
use bytes::Bytes;

use crate::{
    DiskError, DiskRequest, Resource,
    activity_log::{ActivityLog, Span},
    job::{Activity, Kind},
    resource::Granted,
    sabotage::{Fault, planted},
};

/// The activity log and the bitmaps of a volume on their way to the disk.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a wish or a fact of its own")]
pub(crate) struct Books {
    /// `None` where there is no other replica, or no disk.
    pub(crate) log: Option<ActivityLog>,
    step: Step,
    /// Extents that leave the log with the batch under way.
    left: Vec<Span>,
    /// Whether the batch has a block.
    block: bool,
    /// Bitmaps changed in a way that the next superblock relies on.
    pub(crate) before_superblock: bool,
    /// The same, and what was written before has to be stable.
    pub(crate) flush: bool,
    /// The superblock's job, which waits for that.
    superblock: Option<usize>,
    /// Pages are written though nothing waits for them.
    pub(crate) tidying: bool,
    /// Whether every page that had changed is part of the batch under way.
    swept: bool,
    pub(crate) log_writes: u64,
    pub(crate) bitmap_writes: u64,
}

/// How far a batch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Idle,
    Flushing,
    /// So many writes of pages are not done.
    Pages(usize),
    Block,
}

impl Books {
    pub(crate) const fn new(log: Option<ActivityLog>, before_superblock: bool) -> Self {
        Self {
            log,
            step: Step::Idle,
            left: Vec::new(),
            block: false,
            before_superblock,
            flush: false,
            superblock: None,
            tidying: false,
            swept: false,
            log_writes: 0,
            bitmap_writes: 0,
        }
    }
}

impl Resource {
    /// Holds the extents of a change in the activity log. Where it has to wait, its holder is granted later.
    pub(crate) fn hold_extents(&mut self, volume: usize, extent: Extent, holder: Granted) -> bool {
        let urgent = matches!(holder, Granted::Job(job)
            if self.jobs.get(job).is_some_and(|job| matches!(job.kind, Kind::SyncBlock { .. })));
        let Some(log) = self.volumes[volume].books.log.as_mut() else { return true };
        let hot = log.hold(extent, holder, urgent);
        self.books_due |= !hot;
        hot
    }

    /// A change does not need its extents any more.
    pub(crate) fn release_extents(&mut self, volume: usize, extent: Extent) {
        if let Some(log) = self.volumes[volume].books.log.as_mut() {
            log.release(extent);
            self.books_due |= log.is_waited_for();
        }
    }

    /// A holder waits no more.
    pub(crate) fn cancel_extents(&mut self, volume: usize, holder: Granted) {
        if let Some(log) = self.volumes[volume].books.log.as_mut() {
            log.cancel(holder);
        }
    }

    /// Whether a superblock may be written now; else its job is granted again once it may.
    pub(crate) fn superblock_may_go(&mut self, volume: usize, job: usize) -> bool {
        let books = &mut self.volumes[volume].books;
        if !books.before_superblock || self.volumes[volume].disk.is_none() {
            return true;
        }
        self.volumes[volume].books.superblock = Some(job);
        self.books_due = true;
        false
    }

    /// Begins the batches that something waits for.
    pub(crate) fn keep_books(&mut self) {
        for volume in 0..self.volumes.len() {
            if self.volumes[volume].books.step == Step::Idle && self.volumes[volume].disk.is_some() {
                self.begin_batch(volume);
            }
        }
    }

    fn begin_batch(&mut self, volume: usize) {
        let mut hot = Vec::new();
        let books = &mut self.volumes[volume].books;
        let before = books.log.as_mut().and_then(|log| log.begin(|holder| hot.push(holder)));
        if let Some(log) = books.log.as_mut().filter(|_| planted(Fault::LogAfterWrite)) {
            hot.extend(log.holders());
        }
        self.go_on(hot, true);
        let books = &mut self.volumes[volume].books;
        books.block = before.is_some();
        if before.is_none() && books.superblock.is_none() && !books.tidying {
            return;
        }
        let saving = books.superblock.is_some() && std::mem::take(&mut books.flush);
        let flush = saving || before.as_ref().is_some_and(|before| before.flush);
        books.left = before.map(|before| before.left).unwrap_or_default();
        if flush {
            self.volumes[volume].books.step = Step::Flushing;
            self.start_job(volume, None, Kind::LogFlush, Some(DiskRequest::Flush));
        } else {
            self.write_pages(volume);
        }
    }

    /// What leaves is stable.
    pub(crate) fn log_flushed(&mut self, volume: usize, result: Result<(), DiskError>) {
        if result.is_err() {
            self.detach(volume);
        } else if self.volumes[volume].books.step == Step::Flushing {
            self.write_pages(volume);
        }
    }

    fn write_pages(&mut self, volume: usize) {
        let runs = self.volumes[volume].pages_due();
        self.volumes[volume].books.step = Step::Pages(runs.len());
        for run in &runs {
            let request = self.volumes[volume].page_request(*run);
            self.start_job(volume, None, Kind::Bitmap, Some(request));
        }
        if runs.is_empty() {
            self.write_block(volume);
        }
    }

    /// Pages of a bitmap are on the disk.
    pub(crate) fn pages_written(&mut self, volume: usize, result: Result<(), DiskError>) {
        if result.is_err() {
            return self.detach(volume);
        }
        let books = &mut self.volumes[volume].books;
        if let Step::Pages(left) = books.step {
            books.bitmap_writes += 1;
            books.step = Step::Pages(left - 1);
            if left == 1 {
                self.write_block(volume);
            }
        }
    }

    fn write_block(&mut self, volume: usize) {
        let books = &mut self.volumes[volume].books;
        let block = books.log.as_ref().filter(|_| books.block).map(ActivityLog::block);
        let Some((offset, data)) = block else { return self.batch_ended(volume) };
        books.step = Step::Block;
        let request = DiskRequest::WriteMetadata { offset, data: Bytes::from(data) };
        self.start_job(volume, None, Kind::LogBlock, Some(request));
    }

    /// The block of the log is on the disk: what waited for it goes on.
    pub(crate) fn block_written(&mut self, volume: usize, result: Result<(), DiskError>) {
        if result.is_err() {
            return self.detach(volume);
        }
        let target = &mut self.volumes[volume];
        if target.books.step != Step::Block {
            return;
        }
        target.books.log_writes += 1;
        let Some(log) = target.books.log.as_mut() else { return };
        let mut hot = Vec::new();
        log.commit(|holder| hot.push(holder));
        // From now on a log without a block is one that was lost.
        let first = target.disk.as_mut().filter(|disk| disk.activity_extents == 0);
        let begun = first.is_some();
        if let Some(disk) = first {
            disk.activity_extents = u32::from(log.extents());
        }
        if begun {
            self.persist(volume, None);
        }
        self.go_on(hot, true);
        self.batch_ended(volume);
    }

    fn batch_ended(&mut self, volume: usize) {
        let target = &mut self.volumes[volume];
        target.books.step = Step::Idle;
        target.books.left.clear();
        let swept = std::mem::take(&mut target.books.swept);
        if target.books.superblock.is_some() && swept && !target.books.flush {
            target.books.before_superblock = false;
            self.granted.extend(target.books.superblock.take().map(Granted::Job));
        }
        self.books_due = true;
    }

    /// The disk is gone, and with it everything that was to be written.
    pub(crate) fn close_books(&mut self, volume: usize) {
        let books = &mut self.volumes[volume].books;
        books.step = Step::Idle;
        let waiting = books.log.take().into_iter().flat_map(ActivityLog::give_up).collect();
        self.granted.extend(books.superblock.take().map(Granted::Job));
        self.go_on(waiting, false);
    }

    /// Lets those go on who waited for the activity log.
    fn go_on(&mut self, holders: Vec<Granted>, hot: bool) {
        for holder in holders {
            let activity = match holder {
                Granted::Task(key) => self.tasks.get_mut(key).map(|task| &mut task.activity),
                Granted::Job(key) => self.jobs.get_mut(key).map(|job| &mut job.activity),
            };
            if let Some(activity) = activity
                && let Activity::Waiting(extent) = *activity
            {
                *activity = if hot { Activity::Hot(extent) } else { Activity::Cold };
                self.granted.push_back(holder);
            }
        }
    }
}
