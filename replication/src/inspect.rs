//! What an operator sees of a metadata area, and what a shell makes of one whose superblock is not whole.

use block::VolumeNumber;
use bytes::Bytes;

use crate::{
    Generation, MetadataError, NodeId, ResourceConfig, activity_log,
    bitmap::Bitmap,
    meta::{self, Flags, Superblock},
    resource::blank,
};

/// What the two copies of the superblock at the head of a metadata area are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Superblocks {
    /// One is whole, of this version or of another.
    Whole,
    /// Neither is whole, and one was never written: the very first write did not end. Nothing was promised yet.
    FirstTorn,
    /// Both were written and neither is whole. Two writes are never under way at once, so this is damage.
    Damaged,
}

impl Superblocks {
    /// What they are in this head of a metadata area.
    #[must_use]
    pub fn of(head: &[u8]) -> Self {
        let written = |index: usize| {
            head.get(index * meta::LEN..(index + 1) * meta::LEN)
                .is_some_and(|copy| copy.iter().any(|byte| *byte != 0))
        };
        match Superblock::find(head) {
            Ok(_) | Err(MetadataError::Version { .. } | MetadataError::Foreign { .. }) => Self::Whole,
            Err(MetadataError::Missing) if written(0) && written(1) => Self::Damaged,
            Err(MetadataError::Missing) => Self::FirstTorn,
        }
    }
}

/// What the metadata of a replica says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Why it is not that of the volume that was asked for; `None` where it is.
    pub foreign: Option<MetadataError>,
    /// The number of its cluster.
    pub cluster: u64,
    /// The number of its resource.
    pub resource: u64,
    /// Its volume.
    pub volume: VolumeNumber,
    /// Its node.
    pub node: NodeId,
    /// The size of the volume, in bytes.
    pub size: u64,
    /// The volume's block size, in bytes.
    pub block_size: u32,
    /// How often the superblock was written.
    pub sequence: u64,
    /// The generation of the data; zero where there is none yet.
    pub current: Generation,
    /// The generations before it, the newest first.
    pub history: Vec<Generation>,
    /// The nodes that were left behind, and the generation that each had then.
    pub bases: Vec<(NodeId, Generation)>,
    /// The names of the flags that are set.
    pub flags: Vec<&'static str>,
    /// What the activity log says.
    pub activity: Activity,
    /// For each other node with a disk, how many blocks of 4 KiB may differ. Empty where `foreign` says something.
    pub out_of_sync: Vec<(NodeId, u64)>,
}

/// What an activity log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// There is none, or it has no block yet.
    Absent,
    /// The part that may differ after a crash.
    Hot {
        /// How many extents, counting each of a range.
        extents: u64,
        /// The length of an extent, in bytes.
        extent_len: u64,
    },
    /// Blocks of it are missing, so that after a crash everything counts as different.
    Damaged,
}

/// Reads a metadata area, as a node of `config` would find it for `volume`.
///
/// # Errors
/// When no copy of the superblock is whole, or it is of another version.
pub fn inspect(
    area: &Bytes,
    config: &ResourceConfig,
    volume: VolumeNumber,
) -> Result<Inspection, MetadataError> {
    let found = Superblock::find(area)?;
    let wanted = config.volumes.iter().find(|wanted| wanted.number == volume);
    let foreign = wanted.and_then(|wanted| found.check(&blank(config, wanted)).err());
    let others = wanted.filter(|_| foreign.is_none()).map(|wanted| wanted.disks.without(config.node));
    let bits = |slot: u64| {
        let words = meta::bitmap_slot(area, found.size, slot)?;
        let bitmap = Bitmap::from_bytes(found.size, &words);
        Some(bitmap.words().iter().map(|word| u64::from(word.count_ones())).sum())
    };
    let slots = others.iter().flat_map(|others| (0..).zip(others.iter()));
    Ok(Inspection {
        foreign,
        cluster: found.cluster,
        resource: found.resource,
        volume: found.volume,
        node: found.node,
        size: found.size,
        block_size: found.block_size,
        sequence: found.version,
        current: found.current,
        bases: (0..).map(NodeId).zip(found.bases).filter(|(_, base)| *base != Generation(0)).collect(),
        flags: flag_names(found.flags),
        activity: activity(area, &found),
        out_of_sync: slots.filter_map(|(slot, node)| Some((node, bits(slot)?))).collect(),
        history: found.history,
    })
}

fn flag_names(flags: Flags) -> Vec<&'static str> {
    let Flags { fresh, consistent, outdated, was_primary, in_use, lags } = flags;
    [
        (fresh, "fresh"),
        (consistent, "consistent"),
        (outdated, "outdated"),
        (was_primary, "was-primary"),
        (in_use, "in-use"),
        (lags, "lags"),
    ]
    .into_iter()
    .filter_map(|(set, name)| set.then_some(name))
    .collect()
}

fn activity(area: &[u8], found: &Superblock) -> Activity {
    if found.activity_log == 0 {
        return Activity::Absent;
    }
    match activity_log::recover(area, found.activity_log) {
        Ok(Some(log)) => {
            let extents = log.spans.iter().map(|span| u64::from(span.last - span.first) + 1).sum();
            Activity::Hot { extents, extent_len: log.extent_len }
        }
        Ok(None) if found.activity_extents == 0 => Activity::Absent,
        Ok(None) | Err(_) => Activity::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first() -> Superblock {
        Superblock {
            cluster: 1,
            resource: 2,
            volume: VolumeNumber(0),
            node: NodeId(0),
            size: 1 << 20,
            block_size: 512,
            version: 1,
            order: 0,
            current: Generation(7),
            bases: [Generation(0); 32],
            history: Vec::new(),
            flags: Flags::default(),
            activity_extents: 0,
            activity_log: 0,
        }
    }

    /// P10: whichever sectors of the very first write arrived, the disk counts as never written; from the second write
    /// on there is a whole copy at every moment.
    #[test]
    fn a_torn_first_write_is_told_from_damage() {
        let first = first();
        let second = Superblock { version: 2, ..first.clone() };
        let put = |area: &mut [u8], superblock: &Superblock, sectors: u8| {
            let at = usize::try_from(superblock.offset()).unwrap();
            let bytes = superblock.encode();
            for sector in (0..8).filter(|sector| sectors & (1 << sector) != 0) {
                let part = sector * 512..(sector + 1) * 512;
                area[at + part.start..at + part.end].copy_from_slice(&bytes[part]);
            }
        };
        // The first sector has the fields, the last one the checksum; what is between is zeros.
        let whole = |sectors: u8| sectors & 0x81 == 0x81;
        for sectors in 0..=u8::MAX {
            let mut area = vec![0; 2 * meta::LEN];
            put(&mut area, &first, sectors);
            let expected = if whole(sectors) { Superblocks::Whole } else { Superblocks::FirstTorn };
            assert_eq!(Superblocks::of(&area), expected, "{sectors:#010b}");
            let mut area = vec![0; 2 * meta::LEN];
            put(&mut area, &first, u8::MAX);
            put(&mut area, &second, sectors);
            assert_eq!(Superblocks::of(&area), Superblocks::Whole, "{sectors:#010b}");
        }
        assert_eq!(Superblocks::of(&[0xa5; 2 * meta::LEN]), Superblocks::Damaged);
    }
}
