//! The extents that are active, each in its slot; those that nothing holds are reused in the order of their last use.

use block::Extent;

/// Extents in a row, the last one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u32,
    pub(crate) last: u32,
}

impl Span {
    /// The bytes of its extents.
    pub(crate) const fn bytes(self, extent_len: u64) -> Extent {
        let first = self.first as u64 * extent_len;
        Extent::new(first, (self.last as u64 + 1) * extent_len - first)
    }
}

/// What a slot says before it is used: no extent.
pub(crate) const EMPTY: u32 = u32::MAX;

/// The table of active extents.
#[derive(Clone, Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    /// For each extent of the volume, its slot.
    index: Vec<u16>,
    /// The ends of the chain of slots that nothing holds.
    oldest: u16,
    newest: u16,
    idle: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    extent: u32,
    holders: u32,
    /// Whether the transaction that says so is not on the disk yet.
    pending: bool,
    /// When it was last held, in flushes of the disk.
    epoch: u64,
    older: u16,
    newer: u16,
}

impl Table {
    /// A table of empty slots for a volume of so many extents.
    pub(super) fn new(slots: u16, extents: usize) -> Self {
        let slot =
            Slot { extent: EMPTY, holders: 0, pending: false, epoch: 0, older: NO_SLOT, newer: NO_SLOT };
        let mut table = Self {
            slots: vec![slot; usize::from(slots)],
            index: vec![NO_SLOT; extents],
            oldest: NO_SLOT,
            newest: NO_SLOT,
            idle: 0,
        };
        for slot in 0..slots {
            table.link(slot);
        }
        table
    }

    pub(super) fn len(&self) -> u16 {
        u16::try_from(self.slots.len()).unwrap_or(NO_SLOT)
    }

    /// The extents in the slots from `first` on.
    pub(super) fn slice(&self, first: u16, len: u16) -> Vec<u32> {
        let slots = self.slots.iter().skip(usize::from(first)).take(usize::from(len));
        slots.map(|slot| slot.extent).collect()
    }

    /// How many slots nothing holds.
    pub(super) const fn idle(&self) -> usize {
        self.idle
    }

    /// The slot of an extent.
    pub(super) fn slot(&self, extent: u32) -> Option<u16> {
        let slot = usize::try_from(extent).ok().and_then(|extent| self.index.get(extent));
        slot.copied().filter(|&slot| slot != NO_SLOT)
    }

    /// Whether the disk says that the extent is active.
    pub(super) fn is_hot(&self, extent: u32) -> bool {
        self.slot(extent).is_some_and(|slot| !self.slots[usize::from(slot)].pending)
    }

    /// Whether nothing holds the slot.
    pub(super) fn is_idle(&self, slot: u16) -> bool {
        self.slots[usize::from(slot)].holders == 0
    }

    /// One more holds a slot.
    pub(super) fn hold(&mut self, slot: u16) {
        if self.is_idle(slot) {
            self.unlink(slot);
        }
        self.slots[usize::from(slot)].holders += 1;
    }

    /// One fewer holds an extent.
    pub(super) fn release(&mut self, extent: u32, epoch: u64) {
        let Some(slot) = self.slot(extent) else { return };
        let target = &mut self.slots[usize::from(slot)];
        target.holders -= 1;
        target.epoch = epoch;
        if target.holders == 0 {
            self.link(slot);
        }
    }

    /// Gives the slot that was idle longest to an extent, which holds it. Tells what left it, and when that was last
    /// held.
    pub(super) fn claim(&mut self, extent: u32) -> Option<(u16, Option<(u32, u64)>)> {
        let slot = self.oldest;
        let at = usize::try_from(extent).ok().filter(|&at| at < self.index.len())?;
        let target = *self.slots.get(usize::from(slot))?;
        self.hold(slot);
        let left = usize::try_from(target.extent).ok().filter(|_| target.extent != EMPTY);
        if let Some(place) = left.and_then(|left| self.index.get_mut(left)) {
            *place = NO_SLOT;
        }
        self.index[at] = slot;
        self.slots[usize::from(slot)].extent = extent;
        self.slots[usize::from(slot)].pending = true;
        Some((slot, left.map(|_| (target.extent, target.epoch))))
    }

    /// What a slot says is on the disk.
    pub(super) fn settle(&mut self, slot: u16) {
        self.slots[usize::from(slot)].pending = false;
    }

    fn link(&mut self, slot: u16) {
        let newest = std::mem::replace(&mut self.newest, slot);
        let target = &mut self.slots[usize::from(slot)];
        (target.older, target.newer) = (newest, NO_SLOT);
        match self.slots.get_mut(usize::from(newest)) {
            Some(before) => before.newer = slot,
            None => self.oldest = slot,
        }
        self.idle += 1;
    }

    fn unlink(&mut self, slot: u16) {
        let Slot { older, newer, .. } = self.slots[usize::from(slot)];
        match self.slots.get_mut(usize::from(older)) {
            Some(before) => before.newer = newer,
            None => self.oldest = newer,
        }
        match self.slots.get_mut(usize::from(newer)) {
            Some(behind) => behind.older = older,
            None => self.newest = older,
        }
        self.idle -= 1;
    }
}

/// No slot has this number: there are at most 65,534.
const NO_SLOT: u16 = u16::MAX;
