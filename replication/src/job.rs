//! What a local disk is asked to do: each job takes its range first, so that overlapping jobs happen in order.

use block::{Extent, VolumeNumber};
use bytes::Bytes;

use crate::{
    DiskAnswer, DiskError, DiskOp, DiskRequest, DiskState, Effect, Event, Instant, LinkId, NodeSet,
    OperatorRequest, Resource, Sequence,
    range_lock::{Access, Ticket},
    resource::Granted,
};

/// One operation of a local disk, from the wait for its range to its end.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) volume: usize,
    ticket: Option<Ticket>,
    pub(crate) kind: Kind,
    request: Option<DiskRequest>,
    /// What it holds of the activity log.
    pub(crate) activity: Activity,
    /// For a flush, what it makes stable, as the activity log counts.
    epoch: u64,
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

/// How a change stands with the activity log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Activity {
    /// It did not ask.
    #[default]
    Cold,
    /// It waits until this is hot.
    Waiting(Extent),
    /// It holds this.
    Hot(Extent),
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
    /// Pages of a bitmap.
    Bitmap,
    /// The flush before extents leave the activity log.
    LogFlush,
    /// A block of the activity log.
    LogBlock,
    /// The disk was given up: nobody waits, but the name stays taken until the disk answers.
    Abandoned,
}

/// The writes of a volume's superblock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Superblocks {
    /// One waits for the range.
    queued: bool,
    /// The disk works on one.
    out: bool,
}

impl Superblocks {
    /// Whether one is under way.
    pub(crate) const fn pending(self) -> bool {
        self.queued || self.out
    }
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
    /// A peer may become Primary.
    Consent { peer: usize, link: LinkId, request: u64 },
    /// The node stays Secondary: the demotion is told.
    Demotion,
    /// The resync is over.
    Synced,
    /// An operator's request is done.
    Told(OperatorRequest),
    /// A peer's request is done.
    Said { peer: usize, link: LinkId, request: u64 },
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
        let key = self.jobs.insert(Job {
            volume,
            ticket: None,
            kind,
            request,
            activity: Activity::Cold,
            epoch: 0,
            out: false,
            since: self.now,
        });
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
        let Some(job) = self.jobs.get(key) else { return };
        let (volume, kind) = (job.volume, job.kind);
        let request = match kind {
            Kind::SyncBlock { extent } if job.request.is_none() => {
                return self.sync_block_granted(key, volume, extent);
            }
            Kind::Superblock if !self.superblock_may_go(volume, key) => return,
            Kind::Superblock => self.superblock_request(volume),
            Kind::Incoming { .. } | Kind::SyncBlock { .. } if !self.activate_job(key) => return,
            _ => self.jobs[key].request.take(),
        };
        match request {
            Some(request) if self.volumes[volume].disk.is_some() => self.submit(key, request),
            _ => self.job_ended(key, Err(DETACHED)),
        }
    }

    /// Holds the extents of a change that did not begin here. Whether it may go to the disk now.
    fn activate_job(&mut self, key: usize) -> bool {
        let job = &self.jobs[key];
        let volume = job.volume;
        match job.activity {
            Activity::Cold => {}
            Activity::Waiting(_) => return false,
            Activity::Hot(_) => return true,
        }
        let Some(DiskRequest::Write { extent, .. } | DiskRequest::WriteZeroes { extent, .. }) = &job.request
        else {
            return true;
        };
        let extent = *extent;
        if self.volumes[volume].books.log.is_none() {
            return true;
        }
        let hot = self.hold_extents(volume, extent, Granted::Job(key));
        self.jobs[key].activity = if hot { Activity::Hot(extent) } else { Activity::Waiting(extent) };
        hot
    }

    /// What a SyncTarget fetched goes to the disk.
    pub(crate) fn submit_fetched(&mut self, key: usize, request: DiskRequest) {
        self.jobs[key].request = Some(request);
        self.job_granted(key);
    }

    /// Whether a job has not got yet what it is to write.
    pub(crate) fn awaits_bytes(&self, key: usize) -> bool {
        self.jobs.get(key).is_some_and(|job| !job.out && job.request.is_none())
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
        if let (DiskRequest::Flush, Some(log)) = (&request, volume.books.log.as_mut()) {
            job.epoch = log.flush_begins();
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
        let (volume, epoch) = (self.jobs[key].volume, self.jobs[key].epoch);
        self.disk_is_alive(volume);
        let target = &mut self.volumes[volume];
        target.disk_error = result.as_ref().err().copied().or(target.disk_error);
        if let (Ok(_), Some(log)) = (&result, target.books.log.as_mut()) {
            log.flush_ended(epoch);
        }
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
        let (volume, activity) = (job.volume, std::mem::take(&mut job.activity));
        match activity {
            Activity::Cold => {}
            Activity::Waiting(_) => self.cancel_extents(volume, Granted::Job(key)),
            Activity::Hot(extent) => self.release_extents(volume, extent),
        }
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
            Kind::Bitmap => self.pages_written(volume, result.map(|_| ())),
            Kind::LogFlush => self.log_flushed(volume, result.map(|_| ())),
            Kind::LogBlock => self.block_written(volume, result.map(|_| ())),
            Kind::Abandoned => {}
        }
    }

    /// Writes the superblock, before whatever the disk is asked to do later: a write that the disk works on already is
    /// followed by another one.
    pub(crate) fn persist(&mut self, volume: usize, after: Option<After>) {
        let target = &mut self.volumes[volume];
        if target.superblocks.queued || target.superblocks.out || target.disk.is_some() {
            target.after_next.extend(after);
            if !std::mem::replace(&mut target.superblocks.queued, true) {
                let whole = target.whole();
                self.start_job(volume, Some((whole, Access::Exclusive)), Kind::Superblock, None);
            }
        } else if let Some(after) = after {
            self.follow_up(volume, after, false);
        }
    }

    /// The superblock as it is when its turn has come.
    fn superblock_request(&mut self, volume: usize) -> Option<DiskRequest> {
        let volume = &mut self.volumes[volume];
        volume.superblocks = Superblocks { queued: false, out: true };
        volume.after = std::mem::take(&mut volume.after_next);
        let disk = volume.disk.as_mut()?;
        disk.version += 1;
        Some(DiskRequest::WriteMetadata { offset: disk.offset(), data: Bytes::from(disk.encode()) })
    }

    fn persisted(&mut self, volume: usize, result: Result<(), DiskError>) {
        let target = &mut self.volumes[volume];
        target.superblocks.out = false;
        let done = std::mem::take(&mut target.after);
        if result.is_err() {
            self.detach(volume);
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
            After::Consent { peer, link, request } => self.answer_candidate(peer, link, request, kept),
            After::Demotion => {}
            After::Synced => self.sync_persisted(volume),
            After::Told(request) => self.told(request, kept),
            After::Said { peer, link, request } => self.say(peer, link, request, kept),
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
        self.close_books(volume);
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

    /// Makes the superblock that of a clean stop; the bitmaps are written before it.
    pub(crate) fn save(&mut self) {
        let order = self.sequence.0;
        for target in &mut self.volumes {
            let Some(disk) = target.disk.as_mut() else { continue };
            disk.flags.in_use = target.crashed;
            disk.flags.was_primary &= target.crashed;
            disk.order = order;
            target.books.before_superblock = true;
        }
    }

    pub(crate) fn number(&self, volume: usize) -> VolumeNumber {
        self.volumes[volume].config.number
    }
}

/// What a job gets whose disk is gone: ENXIO.
pub(crate) const DETACHED: DiskError = DiskError::Io { errno: 6 };
