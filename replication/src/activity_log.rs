//! The activity log: which extents of a replica may differ from the others, or from what its disk would hold after a
//! power cut. A change of a cold extent waits for the transaction that makes the extent hot (DRBD 9, "The Activity
//! Log"); after a crash what is hot counts as different from every other replica.
//!
//! One transaction is under way at a time, and everything that waits meanwhile goes into the next one. An extent
//! leaves once nothing holds it, the disk has been flushed since, and the bitmaps about it are on the disk. A change of
//! more extents than a few is one range, which leaves with the next transaction.

mod table;
mod transaction;

use std::collections::VecDeque;

use block::Extent;

use self::table::Table;
use self::transaction::{CHANGES_MAX, LogBlock, RANGES_MAX, SLICE_MAX};
pub(crate) use self::{table::Span, transaction::recover};
use crate::resource::Granted;

/// The active extents of one replica.
#[derive(Clone, Debug)]
pub(crate) struct ActivityLog {
    shift: u32,
    table: Table,
    ranges: [Option<Range>; RANGES_MAX],
    /// Who waits for extents, in order.
    waiting: VecDeque<(Granted, Span)>,
    /// Whether the first of them waits for slots that others hold: then nobody may take more.
    starved: bool,
    under_way: Option<Transaction>,
    identity: u64,
    /// The last transaction on the disk.
    sequence: u64,
    /// Counts the flushes of the disk that began.
    epoch: u64,
    /// The last epoch whose changes are stable.
    stable: u64,
}

/// Extents that are active as a whole.
#[derive(Clone, Copy, Debug)]
struct Range {
    span: Span,
    holders: u32,
    pending: bool,
    epoch: u64,
}

/// What one block of the log says.
#[derive(Clone, Debug, Default)]
struct Transaction {
    holders: Vec<(Granted, Span)>,
    changes: Vec<(u16, u32)>,
    /// Whether a range comes or goes.
    ranges: bool,
    left: Vec<Span>,
    /// Whether something left that a power cut could still change.
    unstable: bool,
}

/// What has to be on the disk before a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Before {
    /// The extents that leave: the bitmaps about them.
    pub(crate) left: Vec<Span>,
    /// A flush.
    pub(crate) flush: bool,
}

/// Whether a request gets its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placed {
    /// It has them, and the disk says so.
    Hot,
    /// It has them once the transaction is on the disk.
    Pending,
    /// The transaction has no room.
    Full,
    /// Others hold them.
    Starved,
}

impl ActivityLog {
    /// An empty log for a volume of `size` bytes. No other log of the disk ever had its identity.
    pub(crate) fn new(extents: u32, extent_len: u64, size: u64, identity: u64) -> Self {
        let slots = u16::try_from(extents).unwrap_or(EXTENTS_MAX).clamp(1, EXTENTS_MAX);
        let shift = extent_len.max(EXTENT_LEN_MIN).ilog2();
        let count = usize::try_from(size.div_ceil(1 << shift)).unwrap_or(usize::MAX);
        Self {
            shift,
            table: Table::new(slots, count),
            ranges: [None; RANGES_MAX],
            waiting: VecDeque::new(),
            starved: false,
            under_way: None,
            identity,
            sequence: 0,
            epoch: 1,
            stable: 0,
        }
    }

    /// How many extents may be active.
    pub(crate) fn extents(&self) -> u16 {
        self.table.len()
    }

    /// Holds the extents of a change. Where the disk does not say yet that they are active, the holder waits and is
    /// granted later. Where the first in line waits for slots, only one who is `urgent` comes before it.
    pub(crate) fn hold(&mut self, extent: Extent, holder: Granted, urgent: bool) -> bool {
        let span = self.span(extent);
        let in_line = self.starved && !self.waiting.is_empty() && !urgent;
        if !in_line && self.is_hot(span) {
            self.take(span);
            return true;
        }
        self.waiting.push_back((holder, span));
        false
    }

    /// A change does not need its extents any more.
    pub(crate) fn release(&mut self, extent: Extent) {
        self.release_span(self.span(extent));
    }

    /// Whoever waits does so no more.
    pub(crate) fn cancel(&mut self, holder: Granted) {
        self.waiting.retain(|(waiting, _)| *waiting != holder);
        let holders = self.under_way.as_mut().map(|transaction| &mut transaction.holders);
        let at = holders.and_then(|holders| {
            let at = holders.iter().position(|(pending, _)| *pending == holder)?;
            Some(holders.swap_remove(at).1)
        });
        if let Some(span) = at {
            self.release_span(span);
        }
    }

    /// Whether someone waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Begins the next transaction for those who wait. Those whose extents became hot meanwhile are granted at once.
    pub(crate) fn begin(&mut self, mut granted: impl FnMut(Granted)) -> Option<Before> {
        if self.under_way.is_some() {
            return None;
        }
        let mut transaction = Transaction::default();
        self.starved = false;
        while let Some(&(holder, span)) = self.waiting.front() {
            match self.place(span, &mut transaction) {
                Placed::Hot => granted(holder),
                Placed::Pending => transaction.holders.push((holder, span)),
                Placed::Full => break,
                Placed::Starved => {
                    self.starved = true;
                    break;
                }
            }
            self.waiting.pop_front();
        }
        if transaction.changes.is_empty() && !transaction.ranges {
            return None;
        }
        self.drop_ranges(&mut transaction);
        let before = Before { left: transaction.left.clone(), flush: transaction.unstable };
        self.under_way = Some(transaction);
        Some(before)
    }

    /// Those whom the transaction under way lets go on, and who are not told so by [`ActivityLog::commit`] then.
    pub(crate) fn holders(&mut self) -> impl Iterator<Item = Granted> {
        let holders = self.under_way.as_mut().map(|transaction| std::mem::take(&mut transaction.holders));
        holders.into_iter().flatten().map(|(holder, _)| holder)
    }

    /// The block of the transaction under way, and where it goes in the metadata area.
    pub(crate) fn block(&self) -> (u64, Vec<u8>) {
        let sequence = self.sequence + 1;
        let slices = u64::from(self.table.len().div_ceil(SLICE_MAX));
        let slice = u16::try_from(self.sequence % slices).unwrap_or_default();
        let slice_at = slice * SLICE_MAX;
        let block = LogBlock {
            identity: self.identity,
            sequence,
            slots: self.table.len(),
            shift: u8::try_from(self.shift).unwrap_or_default(),
            changes: self.under_way.as_ref().map(|under_way| under_way.changes.clone()).unwrap_or_default(),
            ranges: self.ranges.iter().flatten().map(|range| range.span).collect(),
            slice_at,
            slice: self.table.slice(slice_at, SLICE_MAX),
        };
        (LogBlock::offset(sequence), block.encode())
    }

    /// The transaction under way is on the disk.
    pub(crate) fn commit(&mut self, mut granted: impl FnMut(Granted)) {
        let Some(transaction) = self.under_way.take() else { return };
        self.sequence += 1;
        for (slot, _) in transaction.changes {
            self.table.settle(slot);
        }
        for range in self.ranges.iter_mut().flatten() {
            range.pending = false;
        }
        for (holder, _) in transaction.holders {
            granted(holder);
        }
    }

    /// Everyone who waits or holds slots of the transaction under way: the disk is gone.
    pub(crate) fn give_up(self) -> impl Iterator<Item = Granted> {
        let pending = self.under_way.map(|transaction| transaction.holders).unwrap_or_default();
        pending.into_iter().chain(self.waiting).map(|(holder, _)| holder)
    }

    /// A flush begins. What ended before is stable once it ends.
    pub(crate) const fn flush_begins(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch - 1
    }

    /// A flush ended well.
    pub(crate) fn flush_ended(&mut self, epoch: u64) {
        self.stable = self.stable.max(epoch);
    }

    /// The bytes of a span.
    pub(crate) const fn bytes(&self, span: Span) -> Extent {
        span.bytes(1 << self.shift)
    }

    fn span(&self, extent: Extent) -> Span {
        let at = |byte: u64| u32::try_from(byte >> self.shift).unwrap_or(u32::MAX - 1);
        Span { first: at(extent.offset), last: at(extent.end().saturating_sub(1).max(extent.offset)) }
    }

    /// Whether a span is active as one range.
    fn is_wide(&self, span: Span) -> bool {
        let most = (u32::from(self.table.len()) / 4).clamp(1, NARROW_MAX);
        span.last - span.first >= most
    }

    fn range(&mut self, span: Span) -> Option<&mut Range> {
        self.ranges.iter_mut().flatten().find(|range| range.span == span)
    }

    fn is_hot(&mut self, span: Span) -> bool {
        if self.is_wide(span) {
            return self.range(span).is_some_and(|range| !range.pending);
        }
        (span.first..=span.last).all(|extent| self.table.is_hot(extent))
    }

    /// Holds a span that has its slots.
    fn take(&mut self, span: Span) {
        if self.is_wide(span) {
            if let Some(range) = self.range(span) {
                range.holders += 1;
            }
            return;
        }
        for extent in span.first..=span.last {
            if let Some(slot) = self.table.slot(extent) {
                self.table.hold(slot);
            }
        }
    }

    fn release_span(&mut self, span: Span) {
        let epoch = self.epoch;
        if self.is_wide(span) {
            if let Some(range) = self.range(span) {
                range.holders -= 1;
                range.epoch = epoch;
            }
            return;
        }
        for extent in span.first..=span.last {
            self.table.release(extent, epoch);
        }
    }

    /// Finds the slots of a span and holds them.
    fn place(&mut self, span: Span, transaction: &mut Transaction) -> Placed {
        if self.is_wide(span) {
            return self.place_range(span, transaction);
        }
        let slots = (span.first..=span.last).map(|extent| self.table.slot(extent));
        let (mut cold, mut own) = (0, 0);
        for slot in slots {
            match slot {
                None => cold += 1,
                Some(slot) => own += usize::from(self.table.is_idle(slot)),
            }
        }
        if transaction.changes.len() + cold > CHANGES_MAX {
            return Placed::Full;
        }
        if self.table.idle() - own < cold {
            return Placed::Starved;
        }
        let hot = self.is_hot(span);
        self.take(span);
        for extent in span.first..=span.last {
            if self.table.slot(extent).is_some() {
                continue;
            }
            let Some((slot, left)) = self.table.claim(extent) else { continue };
            transaction.changes.push((slot, extent));
            if let Some((extent, epoch)) = left {
                transaction.left.push(Span { first: extent, last: extent });
                transaction.unstable |= epoch > self.stable;
            }
        }
        if hot { Placed::Hot } else { Placed::Pending }
    }

    fn place_range(&mut self, span: Span, transaction: &mut Transaction) -> Placed {
        if let Some(range) = self.range(span) {
            range.holders += 1;
            return if range.pending { Placed::Pending } else { Placed::Hot };
        }
        let free = |range: &Option<Range>| range.is_none_or(|range| range.holders == 0);
        let Some(at) = self.ranges.iter().position(free) else { return Placed::Starved };
        let new = Range { span, holders: 1, pending: true, epoch: self.epoch };
        let old = self.ranges[at].replace(new);
        transaction.ranges = true;
        if let Some(old) = old {
            transaction.left.push(old.span);
            transaction.unstable |= old.epoch > self.stable;
        }
        Placed::Pending
    }

    /// Ranges are large: those that nothing holds leave with the next transaction.
    fn drop_ranges(&mut self, transaction: &mut Transaction) {
        for place in &mut self.ranges {
            if let Some(range) = place.take_if(|range| range.holders == 0) {
                transaction.left.push(range.span);
                transaction.unstable |= range.epoch > self.stable;
            }
        }
    }
}

/// The table's slots have numbers of 16 bits.
const EXTENTS_MAX: u16 = u16::MAX - 1;
/// The shortest extent: one bit of the bitmap, in bytes.
const EXTENT_LEN_MIN: u64 = crate::bitmap::BLOCK;
/// A change of more extents is a range.
const NARROW_MAX: u32 = 32;

#[cfg(test)]
mod tests;
