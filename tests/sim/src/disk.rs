//! A disk with a volatile cache: what was not flushed survives a power cut by the toss of a coin, sector by sector.

use bytes::Bytes;
use replication::{DiskAnswer, DiskError, DiskRequest, Found, Superblocks};

use block::{Extent, Payload, Run};

use crate::random::Random;

/// The unit of a write that is never torn, in bytes.
pub(crate) const SECTOR: u64 = 512;

/// One replica's disk: each sector holds one number.
#[derive(Clone, Debug)]
pub struct Disk {
    cached: Vec<Sector>,
    stable: Vec<Sector>,
    metadata: Vec<u8>,
    writes: u64,
    /// What it answers instead of working; a full disk still reads.
    pub broken: Option<DiskError>,
    /// Whether it answers nothing, and what it then keeps back.
    pub frozen: bool,
    pub(crate) kept: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sector {
    value: u64,
    write: u64,
}

/// A request on its way through the disk.
#[derive(Debug)]
pub struct Pending {
    request: DiskRequest,
    /// For a flush, what was cached when it was asked for.
    snapshot: Vec<Sector>,
}

impl Pending {
    /// What it changes of the data.
    pub(crate) fn changes(&self) -> Option<Extent> {
        match self.request {
            DiskRequest::Write { extent, .. } | DiskRequest::WriteZeroes { extent, .. } => Some(extent),
            _ => None,
        }
    }
}

impl Disk {
    /// A disk of zeros.
    #[must_use]
    pub fn new(size: u64, metadata: u64) -> Self {
        let sectors = usize::try_from(size / SECTOR).unwrap_or_default();
        let metadata = usize::try_from(metadata).unwrap_or_default();
        Self {
            cached: vec![Sector::default(); sectors],
            stable: vec![Sector::default(); sectors],
            metadata: vec![0; metadata],
            writes: 0,
            broken: None,
            frozen: false,
            kept: Vec::new(),
        }
    }

    /// Puts a number of its own into each sector, before there is any metadata.
    pub fn adopt(&mut self, first: u64) {
        self.overwrite(first);
    }

    /// Puts a number of its own into each sector.
    pub(crate) fn overwrite(&mut self, first: u64) {
        let values: Vec<u64> = (first..).take(self.cached.len()).collect();
        self.write(Extent::new(0, values.len() as u64 * SECTOR), &values, true);
    }

    /// What the metadata area holds.
    #[must_use]
    pub fn metadata(&self) -> Bytes {
        Bytes::copy_from_slice(&self.metadata)
    }

    /// What a shell makes of it when its node starts.
    #[must_use]
    pub fn found(&self) -> Found {
        match Superblocks::of(&self.metadata) {
            Superblocks::FirstTorn if self.writes == 0 => Found::Fresh,
            Superblocks::FirstTorn => Found::Adopted,
            Superblocks::Whole | Superblocks::Damaged => Found::Metadata(self.metadata()),
        }
    }

    /// What each sector holds.
    pub fn values(&self) -> impl Iterator<Item = u64> {
        self.cached.iter().map(|sector| sector.value)
    }

    /// What each sector may hold after a loss of power: what it holds now, or what is stable.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = [u64; 2]> {
        self.cached.iter().zip(&self.stable).map(|(cached, stable)| [cached.value, stable.value])
    }

    /// Takes a request in.
    #[must_use]
    pub fn begin(&self, request: DiskRequest) -> Pending {
        let snapshot = if request == DiskRequest::Flush { self.cached.clone() } else { Vec::new() };
        Pending { request, snapshot }
    }

    /// Does what was asked.
    ///
    /// # Errors
    /// When the disk is broken.
    pub fn end(&mut self, pending: Pending) -> Result<DiskAnswer, DiskError> {
        match self.broken {
            Some(DiskError::NoSpace) if !matches!(pending.request, DiskRequest::Write { .. }) => {}
            Some(error) => return Err(error),
            None => {}
        }
        match pending.request {
            DiskRequest::Read { extent } => return Ok(DiskAnswer::Data(self.read(extent))),
            DiskRequest::Allocation { extent } => {
                return Ok(DiskAnswer::Allocation(vec![Run { extent, mapped: true }]));
            }
            DiskRequest::Write { extent, data, fua } => self.write(extent, &decode(&data), fua),
            DiskRequest::WriteZeroes { extent, fua, .. } => {
                let zeros = vec![0; sectors(extent).len()];
                self.write(extent, &zeros, fua);
            }
            DiskRequest::Flush => {
                for (stable, flushed) in self.stable.iter_mut().zip(pending.snapshot) {
                    if flushed.write > stable.write {
                        *stable = flushed;
                    }
                }
            }
            DiskRequest::WriteMetadata { offset, data } => self.write_metadata(offset, &data),
        }
        Ok(DiskAnswer::Done)
    }

    /// The process died while the disk worked on it: any part of it may have happened.
    pub fn abandon(&mut self, pending: Pending, random: &mut Random) {
        match pending.request {
            DiskRequest::Write { extent, data, .. } => self.tear(extent, &decode(&data), random),
            DiskRequest::WriteZeroes { extent, .. } => {
                let zeros = vec![0; sectors(extent).len()];
                self.tear(extent, &zeros, random);
            }
            DiskRequest::WriteMetadata { offset, data } => {
                for (index, part) in (0..).zip(data.chunks(512)) {
                    if random.chance(50) {
                        self.write_metadata(offset + index * SECTOR, part);
                    }
                }
            }
            DiskRequest::Flush | DiskRequest::Read { .. } | DiskRequest::Allocation { .. } => {}
        }
    }

    /// The power fails: what was not flushed may be gone.
    pub fn cut_power(&mut self, random: &mut Random) {
        for (cached, stable) in self.cached.iter_mut().zip(&mut self.stable) {
            if cached.write > stable.write && random.chance(50) {
                *cached = *stable;
            }
            *stable = *cached;
        }
    }

    fn read(&self, extent: Extent) -> Payload {
        encode(self.cached[sectors(extent)].iter().map(|sector| sector.value))
    }

    fn write(&mut self, extent: Extent, values: &[u64], fua: bool) {
        for (sector, &value) in sectors(extent).zip(values) {
            self.writes += 1;
            self.cached[sector] = Sector { value, write: self.writes };
            if fua {
                self.stable[sector] = self.cached[sector];
            }
        }
    }

    fn tear(&mut self, extent: Extent, values: &[u64], random: &mut Random) {
        for (index, value) in (0..).zip(values) {
            if random.chance(50) {
                self.write(Extent::new(extent.offset + index * SECTOR, SECTOR), &[*value], false);
            }
        }
    }

    fn write_metadata(&mut self, offset: u64, data: &[u8]) {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        self.metadata[at..at + data.len()].copy_from_slice(data);
    }
}

/// One number per sector as bytes.
pub(crate) fn encode(values: impl Iterator<Item = u64>) -> Payload {
    let mut bytes = Vec::new();
    for value in values {
        bytes.extend(value.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.into()
}

/// The numbers of the sectors.
#[must_use]
pub(crate) fn decode(data: &Payload) -> Vec<u64> {
    let bytes = data.to_bytes();
    bytes
        .chunks(512)
        .filter_map(|sector| sector.first_chunk())
        .map(|&word| u64::from_le_bytes(word))
        .collect()
}

/// The numbers of an extent's sectors.
#[must_use]
pub(crate) fn sectors(extent: Extent) -> std::ops::Range<usize> {
    let sector = |bytes: u64| usize::try_from(bytes / SECTOR).unwrap_or(usize::MAX);
    sector(extent.offset)..sector(extent.end())
}
