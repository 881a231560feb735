//! What a local disk is asked to do: each job takes its range first, so that overlapping jobs happen in order.

use block::{Extent, VolumeNumber};
use bytes::Bytes;

use crate::{
    DiskAnswer, DiskError, DiskOp, DiskRequest, DiskState, Effect, Event, Instant, LinkId, NodeSet, Resource,
    Sequence,
    bitmap::Bitmap,
    meta,
    range_lock::{Access, Ticket},
    resource::Granted,
};

/// One operation of a local disk, from the wait for its range to its end.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) volume: usize,
    ticket: Option<Ticket>,
    pub(crate) kind: Kind,
    request: Option<DiskRequest>,
    /// Whether the disk works on it.
    pub(crate) out: bool,
    /// Since when it does.
    pub(crate) since: Instant,
}

impl Job {
    /// Whether the disk works on it and somebody waits for that.
    pub(crate) const fn is_awaited(&self) -> bool {
        self.out && !matches!(self.kind, Kind::Abandoned)
    }
}

/// Whose a job is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// The local leg of a change, a flush included.
    Change(usize),
    /// A command's read, or question about space.
    Read { task: usize, read: u64 },
    /// A change that came from the Primary.
    Incoming { peer: usize, link: LinkId, sequence: Sequence },
    /// One of the flushes, one per volume, that a peer asked for.
    IncomingFlush { peer: usize, link: LinkId, sequence: Sequence },
    /// A peer's read, or question about space.
    Serve { peer: usize, link: LinkId, read: u64 },
    /// A read for a SyncTarget.
    SyncRead { peer: usize, link: LinkId, extent: Extent },
    /// A block that this SyncTarget fetches: the range is held from the question to the end of the write.
    SyncBlock { extent: Extent },
    /// The flush at the end of a resync.
    SyncFlush,
    /// The superblock.
    Superblock,
    /// The flush before a clean stop.
    StopFlush,
    /// Bitmaps, at a clean stop.
    Bitmap,
    /// The disk was given up: nobody waits, but the name stays taken until the disk answers.
    Abandoned,
}

/// What follows once the superblock is on the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) enum After {
    /// The local leg of a new generation.
    Generation(usize),
    /// A peer's generation is acknowledged.
    Answer { peer: usize, link: LinkId, sequence: Sequence },
    /// The node becomes Primary.
    Promotion,
    /// The node stays Secondary: the demotion is told.
    Demotion,
    /// The resync is over.
    Synced,
    /// Nothing.
    Written,
}

impl Resource {
    /// Starts a job as soon as its range is free.
    pub(crate) fn start_job(
        &mut self,
        volume: usize,
        range: Option<(Extent, Access)>,
        kind: Kind,
        request: Option<DiskRequest>,
    ) -> usize {
        let key = self.jobs.insert(Job { volume, ticket: None, kind, request, out: false, since: self.now });
        let mut free = true;
        if let Some((extent, access)) = range {
            let (ticket, granted) = self.volumes[volume].ranges.acquire(extent, access, key);
            self.jobs[key].ticket = Some(ticket);
            free = granted;
        }
        if free {
            self.granted.push_back(Granted::Job(key));
        }
        key
    }

    /// The job's range is free.
    pub(crate) fn job_granted(&mut self, key: usize) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let (volume, kind) = (job.volume, job.kind);
        let request = match kind {
            Kind::SyncBlock { extent } if job.request.is_none() => {
                return self.sync_block_granted(key, volume, extent);
            }
            Kind::Superblock => self.superblock_request(volume),
            _ => job.request.take(),
        };
        match request {
            Some(request) if self.volumes[volume].disk.is_some() => self.submit(key, request),
            _ => self.job_ended(key, Err(DETACHED)),
        }
    }

    /// Gives a job to the disk.
    pub(crate) fn submit(&mut self, key: usize, request: DiskRequest) {
        let job = &mut self.jobs[key];
        job.out = true;
        job.since = self.now;
        let volume = &mut self.volumes[job.volume];
        if let DiskRequest::Write { extent, .. } | DiskRequest::WriteZeroes { extent, .. } = &request {
            volume.written_bytes += extent.len;
        }
        self.out.push(Effect::Disk { volume: volume.config.number, op: DiskOp(key as u64), request });
        self.watch_disks();
    }

    pub(crate) fn disk_answered(&mut self, op: DiskOp, result: Result<DiskAnswer, DiskError>) {
        let Some(key) =
            usize::try_from(op.0).ok().filter(|&key| self.jobs.get(key).is_some_and(|job| job.out))
        else {
            return;
        };
        let volume = self.jobs[key].volume;
        self.disk_is_alive(volume);
        let target = &mut self.volumes[volume];
        target.disk_error = result.as_ref().err().copied().or(target.disk_error);
        let attached = target.disk.is_some();
        self.job_ended(key, if attached { result } else { Err(DETACHED) });
    }

    /// Gives a job up that the disk does not work on.
    pub(crate) fn drop_job(&mut self, key: usize) {
        if self.jobs.get(key).is_some_and(|job| !job.out) {
            self.remove_job(key);
        }
    }

    fn remove_job(&mut self, key: usize) {
        self.release_range(key);
        self.jobs.remove(key);
    }

    fn release_range(&mut self, key: usize) {
        let job = &mut self.jobs[key];
        if let Some(ticket) = job.ticket.take() {
            let granted = &mut self.granted;
            self.volumes[job.volume].ranges.release(ticket, |next| granted.push_back(Granted::Job(next)));
        }
    }

    /// Gives a job up that the disk works on: whose it was.
    pub(crate) fn abandon_job(&mut self, key: usize) -> Kind {
        self.release_range(key);
        std::mem::replace(&mut self.jobs[key].kind, Kind::Abandoned)
    }

    fn job_ended(&mut self, key: usize, result: Result<DiskAnswer, DiskError>) {
        let (volume, kind) = (self.jobs[key].volume, self.jobs[key].kind);
        self.remove_job(key);
        self.follow_job(volume, key, kind, result);
    }

    /// What follows from the end of a job.
    pub(crate) fn follow_job(
        &mut self,
        volume: usize,
        key: usize,
        kind: Kind,
        result: Result<DiskAnswer, DiskError>,
    ) {
        // A stop waits for the last one.
        self.changed |= self.stopping.is_some();
        match kind {
            Kind::Change(change) => self.local_change_ended(volume, change, result.map(|_| ())),
            Kind::Read { task, read } => self.local_read_ended(volume, task, read, result),
            Kind::Incoming { peer, link, sequence } => {
                self.incoming_ended(volume, peer, link, sequence, result.map(|_| ()));
            }
            Kind::IncomingFlush { peer, link, sequence } => {
                self.incoming_flush_ended(volume, peer, link, sequence, result.map(|_| ()));
            }
            Kind::Serve { peer, link, read } => self.served(volume, peer, link, read, result),
            Kind::SyncRead { peer, link, extent } => self.sync_read_ended(volume, peer, link, extent, result),
            Kind::SyncBlock { extent } => self.sync_block_ended(volume, key, extent, result.map(|_| ())),
            Kind::SyncFlush => self.sync_flushed(volume, result.map(|_| ())),
            Kind::Superblock => self.persisted(volume, result.map(|_| ())),
            Kind::StopFlush => {
                if result.is_err() {
                    self.detach(volume);
                }
                self.changed = true;
            }
            Kind::Bitmap => {
                self.volumes[volume].bitmap_writes += 1;
                self.changed = true;
            }
            Kind::Abandoned => {}
        }
    }

    /// Writes the superblock; a write under way is followed by another one.
    pub(crate) fn persist(&mut self, volume: usize, after: Option<After>) {
        let target = &mut self.volumes[volume];
        if target.persisting || target.disk.is_some() {
            target.after_next.extend(after);
            if target.persisting {
                // Even without anyone waiting, what changed has to be written.
                target.after_next.push(After::Written);
                return;
            }
            target.persisting = true;
            let whole = target.whole();
            self.start_job(volume, Some((whole, Access::Exclusive)), Kind::Superblock, None);
        } else if let Some(after) = after {
            self.follow_up(volume, after, false);
        }
    }

    /// The superblock as it is when its turn has come.
    fn superblock_request(&mut self, volume: usize) -> Option<DiskRequest> {
        let volume = &mut self.volumes[volume];
        let disk = volume.disk.as_mut()?;
        disk.version += 1;
        volume.after = std::mem::take(&mut volume.after_next);
        Some(DiskRequest::WriteMetadata { offset: disk.offset(), data: Bytes::from(disk.encode()) })
    }

    fn persisted(&mut self, volume: usize, result: Result<(), DiskError>) {
        let target = &mut self.volumes[volume];
        target.persisting = false;
        let mut done = std::mem::take(&mut target.after);
        if result.is_err() {
            done.append(&mut target.after_next);
            self.detach(volume);
        } else if !target.after_next.is_empty() {
            self.persist(volume, None);
        }
        for after in done {
            self.follow_up(volume, after, result.is_ok());
        }
        self.changed = true;
    }

    fn follow_up(&mut self, volume: usize, after: After, kept: bool) {
        match after {
            After::Generation(change) => self.generation_persisted(change, kept),
            After::Answer { peer, link, sequence } => self.answer(peer, link, sequence, kept),
            After::Promotion => self.promotion_persisted(),
            After::Demotion | After::Written => {}
            After::Synced => self.sync_persisted(volume),
        }
        self.changed = true;
    }

    /// Goes on without the local disk.
    pub(crate) fn detach(&mut self, volume: usize) {
        if self.volumes[volume].disk.take().is_none() {
            return;
        }
        let number = self.volumes[volume].config.number;
        for state in [DiskState::Failed, DiskState::Diskless] {
            self.event(Event::Disk { volume: number, state });
        }
        let target = &mut self.volumes[volume];
        target.state = DiskState::Diskless;
        target.trouble = target.disk_error.map(|error| error.to_string());
        target.bitmaps.clear();
        self.stop_resync(volume);
        self.changed = true;
    }

    /// Whether another good replica can be reached.
    pub(crate) fn has_good_peer(&self, volume: usize) -> bool {
        self.peers.iter().any(|peer| peer.disk(volume) == DiskState::UpToDate)
    }

    /// The disk failed to store something: this replica is given up where another one is there.
    pub(crate) fn store_failed(&mut self, volume: usize, extent: Option<Extent>) {
        if self.has_good_peer(volume) {
            self.detach(volume);
        } else if let Some(extent) = extent {
            // The last good replica stays; what it holds there is unknown, and so is whether it equals the others.
            self.volumes[volume].mark(NodeSet(u32::MAX), extent);
        }
    }

    /// Writes every bitmap, then the superblock as that of a clean stop.
    pub(crate) fn save(&mut self) {
        for volume in 0..self.volumes.len() {
            let target = &mut self.volumes[volume];
            let order = self.sequence.0;
            let Some(disk) = target.disk.as_mut() else { continue };
            disk.flags.in_use = target.crashed;
            disk.flags.was_primary &= target.crashed;
            disk.order = order;
            let size = target.config.size;
            let images: Vec<_> = target.bitmaps.iter().map(|(_, bitmap)| Bitmap::to_bytes(bitmap)).collect();
            for (slot, image) in (0..).zip(images) {
                let mut offset = meta::bitmap_offset(size, slot);
                let image = Bytes::from(image);
                for from in (0..image.len()).step_by(BITMAP_WRITE_MAX) {
                    let data = image.slice(from..image.len().min(from + BITMAP_WRITE_MAX));
                    let len = data.len() as u64;
                    let request = DiskRequest::WriteMetadata { offset, data };
                    let whole = self.volumes[volume].whole();
                    self.start_job(volume, Some((whole, Access::Exclusive)), Kind::Bitmap, Some(request));
                    offset += len;
                }
            }
        }
    }

    pub(crate) fn number(&self, volume: usize) -> VolumeNumber {
        self.volumes[volume].config.number
    }
}

/// What a job gets whose disk is gone: ENXIO.
pub(crate) const DETACHED: DiskError = DiskError::Io { errno: 6 };
/// The longest write of a bitmap, in bytes.
const BITMAP_WRITE_MAX: usize = 1 << 20;
