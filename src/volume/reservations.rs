//! Keeps the persistent reservations of a volume in the metadata of its disk (SPC-4 5.13.5, APTPL).
//!
//! There are two slots, written alternately, so that one is whole at every moment. A slot starts with a version that
//! counts the writes and the length of what follows; that carries its own checksum.

use std::rc::Rc;

use block::{Failure, Status, VolumeNumber};
use bytes::{BufMut, Bytes, BytesMut};
use replication::{DiskAnswer, DiskError, DiskOp, DiskRequest};
use slab::Slab;

use super::Completions;
use crate::disk::Disk;

/// The registries of a resource's volumes on their way to the disks.
#[derive(Debug, Default)]
pub struct Reservations {
    waiting: Slab<(Rc<Completions>, u64)>,
    versions: Vec<(VolumeNumber, u64)>,
}

/// A registry to store.
#[derive(Debug)]
pub struct Store {
    /// Whose reservations they are.
    pub volume: VolumeNumber,
    /// The reservations.
    pub registry: Bytes,
    /// Who waits until they are stable.
    pub completions: Rc<Completions>,
    /// Under which tag.
    pub tag: u64,
}

impl Reservations {
    /// The registries as they were found at the start.
    #[must_use]
    pub fn new(found: &[(VolumeNumber, Stored)]) -> Self {
        let versions = found.iter().map(|(volume, stored)| (*volume, stored.version)).collect();
        Self { waiting: Slab::new(), versions }
    }

    /// A disk was opened again: what is stored next is newer than what is on it.
    pub fn opened(&mut self, volume: VolumeNumber, stored: &Stored) {
        match self.versions.iter_mut().find(|(number, _)| *number == volume) {
            Some((_, version)) => *version = stored.version.max(*version),
            None => self.versions.push((volume, stored.version)),
        }
    }

    /// Begins to store a registry. A node without a disk for the volume cannot.
    pub fn store(&mut self, disk: Option<&Disk>, store: Store) {
        let Store { volume, registry, completions, tag } = store;
        let Some(disk) = disk.filter(|_| registry.len() <= REGISTRY_LEN_MAX) else {
            return completions.push((tag, Status::Failed(Failure::WriteError)));
        };
        let version = self.next_version(volume);
        let op = DiskOp(OURS | self.waiting.insert((completions, tag)) as u64);
        let (offset, data) = (slot_offset(version), encode(version, &registry));
        disk.submit(op, DiskRequest::WriteMetadata { offset, data });
    }

    /// Whether an operation is one of these.
    #[must_use]
    pub const fn owns(op: DiskOp) -> bool {
        op.0 & OURS != 0
    }

    /// A registry is stored, or is not.
    ///
    /// # Panics
    /// When the operation is none of these.
    pub fn stored(&mut self, op: DiskOp, result: &Result<DiskAnswer, DiskError>) {
        let key = usize::try_from(op.0 & !OURS).expect("the name came from a usize");
        let (completions, tag) = self.waiting.remove(key);
        completions.push((
            tag,
            match result {
                Ok(_) => Status::Done,
                Err(DiskError::NoSpace) => Status::Failed(Failure::NoSpace),
                Err(DiskError::Io { .. }) => Status::Failed(Failure::WriteError),
            },
        ));
    }

    fn next_version(&mut self, volume: VolumeNumber) -> u64 {
        let at = self.versions.iter().position(|(number, _)| *number == volume).unwrap_or_else(|| {
            self.versions.push((volume, 0));
            self.versions.len() - 1
        });
        self.versions[at].1 += 1;
        self.versions[at].1
    }
}

/// A registry as it was found on a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    version: u64,
    /// Its bytes, newest first: the second is for the case that the newest was torn.
    pub registries: Vec<Bytes>,
}

impl Stored {
    /// Reads both slots; `area` is [`SLOTS_LEN`] bytes from [`SLOTS_AT`] on.
    #[must_use]
    pub fn find(area: &Bytes) -> Self {
        let mut slots: Vec<_> = (0..2).filter_map(|slot| decode(area, slot * SLOT_LEN)).collect();
        slots.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
        let version = slots.first().map_or(0, |(version, _)| *version);
        Self { version, registries: slots.into_iter().map(|(_, registry)| registry).collect() }
    }
}

fn encode(version: u64, registry: &Bytes) -> Bytes {
    let mut slot = BytesMut::with_capacity(HEADER_LEN + registry.len() + 4096);
    slot.put_slice(MAGIC);
    slot.put_u64_le(version);
    slot.put_u64_le(registry.len() as u64);
    slot.put_slice(registry);
    slot.resize(slot.len().next_multiple_of(4096), 0);
    slot.freeze()
}

fn decode(area: &Bytes, at: usize) -> Option<(u64, Bytes)> {
    let number = |at: usize| area.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    if area.get(at..at + 8)? != MAGIC {
        return None;
    }
    let version = number(at + 8)?;
    let len = usize::try_from(number(at + 16)?).ok().filter(|len| *len <= REGISTRY_LEN_MAX)?;
    let from = at + HEADER_LEN;
    (area.len() >= from + len).then(|| (version, area.slice(from..from + len)))
}

const fn slot_offset(version: u64) -> u64 {
    SLOTS_AT + version % 2 * SLOT_LEN as u64
}

/// Where the slots begin in the metadata area, in bytes: behind what the activity log may take.
pub const SLOTS_AT: u64 = 208 * 4096;

/// How long both slots are together, in bytes.
pub const SLOTS_LEN: usize = 2 * SLOT_LEN;

const SLOT_LEN: usize = 24 * 4096;
const HEADER_LEN: usize = 24;
const REGISTRY_LEN_MAX: usize = SLOT_LEN - HEADER_LEN;
const MAGIC: &[u8; 8] = b"EKreserv";

/// The core never gives names this high.
const OURS: u64 = 1 << 63;

const _: () = assert!(SLOTS_AT + SLOTS_LEN as u64 <= crate::disk::HEAD_LEN);

#[cfg(test)]
mod tests {
    use super::*;

    /// SPC-4 5.13.5: reservations survive a loss of power. The newest is found, and while it is being written, the
    /// one before is still there.
    #[test]
    fn the_newest_whole_registry_is_found() {
        let mut area = vec![0; SLOTS_LEN];
        assert_eq!(Stored::find(&area.clone().into()), Stored::default());
        for version in 1..=5_u64 {
            let registry = Bytes::from(vec![u8::try_from(version).unwrap(); 5000]);
            let at = usize::try_from(slot_offset(version) - SLOTS_AT).unwrap();
            let slot = encode(version, &registry);
            area[at..at + slot.len()].copy_from_slice(&slot);
            let found = Stored::find(&area.clone().into());
            assert_eq!((found.version, &found.registries[0]), (version, &registry));
        }
        let found = Stored::find(&area.into());
        assert_eq!(found.registries[1], Bytes::from(vec![4; 5000]));
    }

    /// Damaged slots are left out, whatever stands in them.
    #[test]
    fn damage_is_no_registry() {
        let mut area = vec![0; SLOTS_LEN];
        let slot = encode(1, &Bytes::from_static(b"x"));
        area[..slot.len()].copy_from_slice(&slot);
        area[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(Stored::find(&area.into()).registries, Vec::<Bytes>::new());
    }
}
