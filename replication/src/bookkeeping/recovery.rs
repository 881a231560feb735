//! What a node finds on the disk of a replica when it starts.

use block::{Extent, VolumeNumber};
use bytes::Bytes;

use super::Books;
use crate::{
    NodeId, Plan, Resource, ResourceConfig, Scope, VolumeConfig,
    activity_log::{self, ActivityLog},
    bitmap::Bitmap,
    generation::{Side, decide},
    meta::{self, Superblock},
    resource::Volume,
};

impl Volume {
    fn words_about(&self, node: NodeId) -> Option<&[u64]> {
        self.bitmaps.iter().find(|(owner, _)| *owner == node).map(|(_, bitmap)| bitmap.words())
    }

    /// The bitmaps of a replica as a node finds them when it starts, and its books. A replica that was in use has in
    /// them whatever was hot; where that cannot be told, everything (P6).
    pub(crate) fn open_books(
        config: &ResourceConfig,
        volume: &VolumeConfig,
        area: Option<&Bytes>,
        disk: &mut Superblock,
        identity: u64,
    ) -> (Vec<(NodeId, Bitmap)>, Books) {
        let others = volume.disks.without(config.node);
        let hot = match area {
            Some(area) if disk.flags.in_use => last_active(area, disk),
            _ => Some(Vec::new()),
        };
        // Whoever is in no generation has nothing to compare with.
        let comparable = disk.flags.fresh || disk.current.0 != 0;
        let hot = hot.filter(|_| comparable);
        let open = |slot: u64| {
            let mut bitmap = Bitmap::new(volume.size);
            let written = area.map(|area| meta::bitmap_slot(area, volume.size, slot));
            match (&hot, written) {
                (Some(_), None) => {}
                (Some(hot), Some(Some(words))) => {
                    bitmap = Bitmap::from_bytes(volume.size, &words);
                    for extent in hot {
                        bitmap.set(*extent);
                    }
                }
                _ => bitmap.set_all(),
            }
            bitmap
        };
        let bitmaps: Vec<_> = (0..).zip(others.iter()).map(|(slot, node)| (node, open(slot))).collect();
        let changed = bitmaps.iter().any(|(_, bitmap)| bitmap.changed().next().is_some());
        disk.activity_extents = 0;
        disk.activity_log = if others.is_empty() { 0 } else { identity };
        let log = ActivityLog::new(config.al_extents, config.al_extent_len, volume.size, identity);
        let mut books = Books::new((!others.is_empty()).then_some(log), changed);
        // What the process wrote before it died may be in the disk's cache still, and the old log goes.
        books.flush = disk.flags.in_use;
        books.before_superblock |= books.flush;
        (bitmaps, books)
    }
}

/// What was active in a replica that was not stopped cleanly; `None` where that cannot be told.
fn last_active(area: &[u8], disk: &Superblock) -> Option<Vec<Extent>> {
    match activity_log::recover(area, disk.activity_log) {
        _ if disk.activity_log == 0 => None,
        Ok(Some(log)) => Some(log.extents().collect()),
        Ok(None) if disk.activity_extents == 0 => Some(Vec::new()),
        Ok(None) | Err(_) => None,
    }
}

impl Resource {
    /// For tests that look at disks: the 4 KiB blocks that a resync copies, one bit each, if this node and another one
    /// started from what their disks hold and met; `None` where they would not go by their bitmaps.
    #[must_use]
    pub fn resync_with(&self, other: &Self, volume: VolumeNumber) -> Option<Vec<u64>> {
        let at = self.volume_at(volume)?;
        let here = self.state_for(self.peer_at(other.config.node)?);
        let there = other.state_for(other.peer_at(self.config.node)?);
        let one = Side::new(self.config.node, &here, here.volumes.get(at)?);
        let two = Side::new(other.config.node, &there, there.volumes.get(at)?);
        match decide(&one, &two) {
            Plan::InStep | Plan::SyncSource(Scope::Bitmap) | Plan::SyncTarget(Scope::Bitmap) => {}
            _ => return None,
        }
        let mine = self.volumes[at].words_about(other.config.node)?;
        let theirs = other.volumes.get(at)?.words_about(self.config.node)?;
        Some(mine.iter().zip(theirs).map(|(mine, theirs)| mine | theirs).collect())
    }
}
