//! The state machine of one resource: [`Resource::step`] is the one way in.
//!
//! The Primary gives every change a place in one order, and a command that conflicts with an earlier one waits until
//! that one was answered. Each replica applies overlapping changes in that order again. What a step made possible
//! elsewhere (a promotion, a resync, a held command) is looked for at its end, in [`Resource::recheck`].

use std::collections::{BTreeSet, VecDeque};

use block::{Command, CommandId, Extent, VolumeNumber};
use slab::Slab;

use crate::{
    AckMode, ConnectionState, DiskError, DiskState, Effect, Event, Found, Generation, Input, Instant, LinkId,
    NodeId, NodeSet, NodeState, OperatorRequest, PeerConfig, Plan, ResourceConfig, Role, Sequence,
    VolumeConfig,
    balance::{Balancer, Latency},
    bitmap::Bitmap,
    bookkeeping::Books,
    errand::Errand,
    generation::DAY_ZERO,
    invalidate::GivenUp,
    job::{After, Job, Superblocks},
    meta::{Flags, MetadataError, Superblock},
    promotion::{Consent, Promotion},
    range_lock::RangeLock,
    read::ReadKey,
    resync::Resync,
    task::Task,
    write::{Change, Logged},
};

/// One resource on one node.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Resource {
    pub(crate) config: ResourceConfig,
    pub(crate) now: Instant,
    pub(crate) out: Vec<Effect>,
    pub(crate) role: Role,
    /// The highest place in the order that was given or seen.
    pub(crate) sequence: Sequence,
    pub(crate) entropy: u64,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) peers: Vec<Peer>,
    /// What the local disks are asked to do.
    pub(crate) jobs: Slab<Job>,
    /// Commands that are not answered yet.
    pub(crate) tasks: Slab<Task>,
    /// Changes that are not yet on every replica they were sent to.
    pub(crate) changes: Slab<Change>,
    /// The same, in their order.
    pub(crate) log: VecDeque<Logged>,
    /// Commands that wait for quorum, data, or room in the log.
    pub(crate) held: VecDeque<usize>,
    /// Changes that are done but may not be acknowledged yet.
    pub(crate) stalled: Vec<usize>,
    /// Range locks whose turn has come.
    pub(crate) granted: VecDeque<Granted>,
    /// Commands that came before the node was Primary.
    pub(crate) early: Vec<(VolumeNumber, CommandId, Command)>,
    pub(crate) promotion: Option<Promotion>,
    pub(crate) demotion: Option<Demotion>,
    pub(crate) consent: Option<Consent>,
    /// Requests for consent that wait until a lost Primary must have noticed.
    pub(crate) deferred: Vec<(usize, LinkId, u64, bool)>,
    /// Until when a lost Primary may believe that it still is one.
    pub(crate) grace_until: Option<Instant>,
    pub(crate) auto_promoted: bool,
    /// Whether an operator forced the node to be Secondary while sessions used it: they do not promote it again.
    pub(crate) barred: bool,
    pub(crate) sessions: u32,
    pub(crate) stopping: Option<Stopping>,
    pub(crate) everywhere_told: Sequence,
    pub(crate) everywhere_due: Option<Instant>,
    pub(crate) wake: Option<Instant>,
    /// When the disks are looked at that have something to do.
    pub(crate) disk_due: Option<Instant>,
    pub(crate) serves: Option<bool>,
    pub(crate) changed: bool,
    pub(crate) spare_legs: Vec<Vec<crate::write::Leg>>,
    pub(crate) reads: u64,
    /// Whether something waits for the activity log or the bitmaps.
    pub(crate) books_due: bool,
    /// What operators asked of peers.
    pub(crate) errands: Vec<Errand>,
    /// Generations that operators began, and that are not on every disk yet.
    pub(crate) beginning: Vec<(usize, OperatorRequest)>,
}

/// Whose range lock was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    /// A command's.
    Task(usize),
    /// A disk job's.
    Job(usize),
}

/// A demotion under way.
#[derive(Clone, Debug)]
pub(crate) struct Demotion {
    pub(crate) requests: Vec<OperatorRequest>,
    pub(crate) force: bool,
}

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopping {
    /// Commands and changes are being finished.
    Draining,
    /// The disks end what they work on.
    Settling,
    /// What the disks hold is made stable.
    Flushing,
    /// The bitmaps and the superblocks are being written.
    Saving,
    /// Done.
    Stopped,
}

/// One volume of a resource on this node.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) config: VolumeConfig,
    /// The metadata of the local disk, while there is one.
    pub(crate) disk: Option<Superblock>,
    pub(crate) state: DiskState,
    /// What is wrong with the local disk, in words for an operator.
    pub(crate) trouble: Option<String>,
    /// Who waits for the local disk to be opened again.
    pub(crate) opening: Option<OperatorRequest>,
    /// When the local disk was last found not to answer, while it is waited for.
    pub(crate) slow: Option<Instant>,
    /// The last error that the local disk answered with.
    pub(crate) disk_error: Option<DiskError>,
    /// Whether the disk was found in use, and what it may have lost meanwhile is not settled yet.
    pub(crate) crashed: bool,
    /// The generation of the resource's data, whether this node has it or not; zero where not known.
    pub(crate) known: Generation,
    pub(crate) known_history: Vec<Generation>,
    /// The nodes that do not take part in the known generation.
    pub(crate) left: NodeSet,
    /// The nodes that may lack changes of this Primary, acknowledged ones too, which the others do not know yet.
    pub(crate) uneven: NodeSet,
    /// The nodes whose disk failed a change, and whose next state, which tells that it is gone, is still to come.
    pub(crate) failing: NodeSet,
    /// The change that brings a new generation to everyone.
    pub(crate) generation: Option<usize>,
    pub(crate) quorum: bool,
    /// Commands at the Primary, from their start to their answer.
    pub(crate) commands: RangeLock<usize>,
    /// What the local disk is asked to do.
    pub(crate) ranges: RangeLock<usize>,
    pub(crate) bitmaps: Vec<(NodeId, Bitmap)>,
    /// Changes that may not be on every node.
    pub(crate) tail: VecDeque<(Sequence, Extent)>,
    pub(crate) resync: Option<Resync>,
    /// Where the replica was given up: what replaces it.
    pub(crate) given_up: Option<GivenUp>,
    /// The node whose operator declared the replicas equal: its own is the last to become good.
    pub(crate) declarer: Option<usize>,
    /// The writes of the superblock, and who waits for the one under way and for the next.
    pub(crate) superblocks: Superblocks,
    pub(crate) after: Vec<After>,
    pub(crate) after_next: Vec<After>,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) books: Books,
    pub(crate) local_reads: u32,
    /// What local reads took lately.
    pub(crate) latency: Latency,
    pub(crate) balancer: Balancer,
}

/// Another node.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    pub(crate) name: String,
    pub(crate) mode: AckMode,
    pub(crate) wanted: bool,
    pub(crate) state: ConnectionState,
    pub(crate) discards: bool,
    pub(crate) after_split_brain: crate::AfterSplitBrain,
    /// Whether the data was found to have diverged.
    pub(crate) diverged: bool,
    pub(crate) parting: Option<crate::Parting>,
    pub(crate) link: Option<Link>,
    pub(crate) protocol_waits: Vec<crate::operator::ProtocolWait>,
    /// The volumes whose resyncs an operator of this node holds up.
    pub(crate) paused: BTreeSet<usize>,
}

/// A connection to a peer.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) id: LinkId,
    /// What the peer was told last.
    pub(crate) told: NodeState,
    /// What the peer told last; `None` until its first word.
    pub(crate) theirs: Option<NodeState>,
    /// Whether only the end of the link is still to come.
    pub(crate) parting: bool,
    /// Packets sent and handed to the socket.
    pub(crate) packets: u64,
    /// Changes that count once their packet is handed to the socket.
    pub(crate) to_hand: VecDeque<(u64, Sequence)>,
    pub(crate) pairs: Vec<Pair>,
    /// The last change that came.
    pub(crate) received: Sequence,
    /// Up to where the peer, as Primary, said that every change is everywhere.
    pub(crate) everywhere: Sequence,
    /// Changes that came and are not on the disk yet, in order.
    pub(crate) applying: VecDeque<(Sequence, bool)>,
    /// Flushes that wait for them.
    pub(crate) flushes: VecDeque<Sequence>,
    /// Requests of the peer, as SyncTarget, that wait for changes of the Primary.
    pub(crate) sync_waits: Vec<(usize, Extent, Sequence)>,
    /// What the peer, as SyncTarget, was sent or is about to be sent, and has not said to be on its disk.
    pub(crate) sync_sent: VecDeque<(usize, Extent)>,
    pub(crate) reads: Vec<ReadKey>,
    /// What they took lately.
    pub(crate) latency: Latency,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
}

/// What two replicas of a volume do about each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) plan: Plan,
    /// Whether the peer's bitmap is complete.
    pub(crate) bitmap_here: bool,
    /// Whether both replicas are good and of one generation.
    pub(crate) equal: bool,
    /// Runs that the peer, as source of a resync, was asked for and has not answered.
    pub(crate) asked: u32,
}

/// Why a resource cannot be started as configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("volume {volume}: {error}")]
pub struct SetupError {
    /// The volume.
    pub volume: VolumeNumber,
    /// What is wrong with its metadata.
    pub error: MetadataError,
}

impl Resource {
    /// A resource as it starts. `found` tells for each volume with a disk on this node what the shell found there,
    /// `entropy` is random and different at each start. The effects say what to do first.
    ///
    /// # Errors
    /// When a disk's metadata is damaged or belongs to something else: that disk is [`Found::Unusable`].
    pub fn new(
        config: ResourceConfig,
        mut found: Vec<(VolumeNumber, Found)>,
        entropy: u64,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) -> Result<Self, SetupError> {
        let mut volumes = Vec::with_capacity(config.volumes.len());
        for volume in &config.volumes {
            let at = found.iter().position(|(number, _)| *number == volume.number);
            let found = at.map(|at| found.swap_remove(at).1);
            let identity = log_identity(entropy, volume.number);
            let volume = Volume::new(&config, volume, found.as_ref(), identity);
            volumes.push(volume.map_err(|(volume, error)| SetupError { volume, error })?);
        }
        let sequence = volumes.iter().filter_map(|volume| volume.disk.as_ref()).map(|disk| disk.order).max();
        let peers = config.peers.iter().map(Peer::new).collect();
        let mut resource = Self {
            now,
            out: std::mem::take(effects),
            role: Role::Secondary,
            sequence: Sequence(sequence.unwrap_or_default()),
            entropy,
            volumes,
            peers,
            jobs: Slab::new(),
            tasks: Slab::new(),
            changes: Slab::new(),
            log: VecDeque::new(),
            held: VecDeque::new(),
            stalled: Vec::new(),
            granted: VecDeque::new(),
            early: Vec::new(),
            promotion: None,
            demotion: None,
            consent: None,
            deferred: Vec::new(),
            grace_until: None,
            auto_promoted: false,
            barred: false,
            sessions: 0,
            stopping: None,
            everywhere_told: Sequence(0),
            everywhere_due: None,
            wake: None,
            disk_due: None,
            serves: None,
            changed: true,
            spare_legs: Vec::new(),
            reads: 0,
            books_due: false,
            errands: Vec::new(),
            beginning: Vec::new(),
            config,
        };
        for peer in &resource.peers {
            resource.out.push(Effect::Want { peer: peer.node, wanted: true });
        }
        for volume in 0..resource.volumes.len() {
            if resource.volumes[volume].disk.is_some() {
                resource.persist(volume, None);
            }
        }
        resource.settle();
        *effects = std::mem::take(&mut resource.out);
        Ok(resource)
    }

    /// Takes one input and appends to `effects` what is to be done about it, in order.
    pub fn step(&mut self, now: Instant, input: Input, effects: &mut Vec<Effect>) {
        self.now = now;
        self.out = std::mem::take(effects);
        match input {
            Input::Command { volume, id, command } => self.command(volume, id, command),
            Input::Abort { id } => self.abort(id),
            Input::Sessions { count } => self.set_sessions(count),
            Input::Disk { op, result } => self.disk_answered(op, result),
            Input::PeerConnected { peer, link } => self.peer_connected(peer, link),
            Input::Packet { peer, link, packet } => self.packet(peer, link, packet),
            Input::Sent { peer, link, packets } => self.handed(peer, link, packets),
            Input::PeerLost { peer, link } => self.link_gone(peer, link),
            Input::Operator { request, verb } => self.operator(request, &verb),
            Input::Opened { volume, found } => self.opened(volume, &found),
            Input::Tick => {
                self.wake = None;
                self.changed = true;
            }
            Input::Stop => self.stop(),
        }
        self.settle();
        *effects = std::mem::take(&mut self.out);
    }

    /// Works off what became possible.
    fn settle(&mut self) {
        loop {
            while let Some(granted) = self.granted.pop_front() {
                match granted {
                    Granted::Task(task) => self.run(task),
                    Granted::Job(job) => self.job_granted(job),
                }
            }
            if std::mem::take(&mut self.books_due) {
                self.keep_books();
            } else if std::mem::take(&mut self.changed) {
                self.recheck();
            } else {
                break;
            }
        }
        self.tell_everywhere();
        self.wake_up();
    }

    /// Looks at everything that may have become possible or necessary.
    fn recheck(&mut self) {
        self.update_quorum();
        self.update_slow_disks();
        self.update_disks();
        self.meet_after_giving_up();
        self.update_resyncs();
        self.update_generations();
        self.answer_beginnings();
        self.update_roles();
        self.announce();
        self.run_held();
        self.retry_stalled();
        self.update_stop();
        self.update_serves();
    }

    pub(crate) fn volume_at(&self, number: VolumeNumber) -> Option<usize> {
        self.volumes.binary_search_by_key(&number, |volume| volume.config.number).ok()
    }

    pub(crate) fn peer_at(&self, node: NodeId) -> Option<usize> {
        self.peers.iter().position(|peer| peer.node == node)
    }

    /// The node of that peer's link, where it is the current one.
    pub(crate) fn link_at(&self, node: NodeId, link: LinkId) -> Option<usize> {
        let peer = self.peer_at(node)?;
        (self.peers[peer].link.as_ref()?.id == link).then_some(peer)
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.out.push(Effect::Event(event));
    }

    /// The next place in the order.
    pub(crate) fn next_sequence(&mut self) -> Sequence {
        self.sequence.0 += 1;
        self.sequence
    }

    /// A new generation: random, so that no two nodes ever make the same one.
    pub(crate) fn new_generation(&mut self) -> Generation {
        self.entropy = self.entropy.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.entropy ^ u64::from(self.config.node.0) << 56;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Generation((mixed ^ (mixed >> 31)) | DAY_ZERO.0 << 1)
    }

    fn wake_up(&mut self) {
        // Once committed, it is the disks that a promotion waits for.
        let open = self.promotion.as_ref().filter(|promotion| !promotion.committed);
        let promotion = open.map(|promotion| promotion.deadline);
        let source = self.volumes.iter().filter_map(|volume| volume.any_source_at(self.now)).min();
        let due = [promotion, self.grace_until, self.everywhere_due, self.disk_due, source];
        let next = due.into_iter().flatten().min();
        if let Some(next) = next.filter(|next| self.wake.is_none_or(|wake| *next < wake)) {
            self.wake = Some(next);
            self.out.push(Effect::WakeAt(next));
        }
    }
}

impl Volume {
    pub(crate) fn new(
        config: &ResourceConfig,
        volume: &VolumeConfig,
        found: Option<&Found>,
        log_identity: u64,
    ) -> Result<Self, (VolumeNumber, MetadataError)> {
        let others = volume.disks.without(config.node);
        let mine = volume.disks.contains(config.node);
        let trouble = match found {
            Some(Found::Unusable(reason)) if mine => Some(reason.clone()),
            _ => None,
        };
        let mut disk = match found {
            Some(Found::Fresh) if mine => Some(blank(config, volume)),
            Some(Found::Adopted) if mine => {
                Some(Superblock { flags: Flags::default(), ..blank(config, volume) })
            }
            Some(Found::Metadata(area)) if mine => {
                let disk = Superblock::find(area).map_err(|error| (volume.number, error))?;
                disk.check(&blank(config, volume)).map_err(|error| (volume.number, error))?;
                Some(disk)
            }
            _ => None,
        };
        let area = if let Some(Found::Metadata(area)) = found { Some(area) } else { None };
        let (bitmaps, books) = match &mut disk {
            Some(disk) => Self::open_books(config, volume, area, disk, log_identity),
            None => (Vec::new(), Books::new(None, false)),
        };
        let mut volume = Self {
            config: volume.clone(),
            state: DiskState::Diskless,
            trouble,
            opening: None,
            slow: None,
            disk_error: None,
            crashed: disk.as_ref().is_some_and(|disk| disk.flags.in_use),
            known: disk.as_ref().map(|disk| disk.current).unwrap_or_default(),
            known_history: disk.as_ref().map(|disk| disk.history.clone()).unwrap_or_default(),
            disk,
            left: NodeSet::EMPTY,
            uneven: NodeSet::EMPTY,
            failing: NodeSet::EMPTY,
            generation: None,
            quorum: false,
            commands: RangeLock::new(),
            ranges: RangeLock::new(),
            bitmaps,
            tail: VecDeque::new(),
            resync: None,
            given_up: None,
            declarer: None,
            superblocks: Superblocks::default(),
            after: Vec::new(),
            after_next: Vec::new(),
            read_bytes: 0,
            written_bytes: 0,
            books,
            local_reads: 0,
            latency: Latency::new(Instant::default()),
            balancer: Balancer::new(),
        };
        if let Some(disk) = &volume.disk {
            volume.left = others.iter().filter(|node| disk.bases[usize::from(node.0 & 31)].0 != 0).collect();
        }
        Ok(volume)
    }

    pub(crate) const fn whole(&self) -> Extent {
        Extent::new(0, self.config.size)
    }

    /// Whether a generation began, as it does with the first write.
    pub(crate) const fn was_written(&self) -> bool {
        self.known.0 > DAY_ZERO.0
    }

    pub(crate) fn bitmap(&mut self, node: NodeId) -> Option<&mut Bitmap> {
        self.bitmaps.iter_mut().find(|(owner, _)| *owner == node).map(|(_, bitmap)| bitmap)
    }

    pub(crate) fn dirty(&self, node: NodeId) -> u64 {
        self.bitmaps.iter().find(|(owner, _)| *owner == node).map_or(0, |(_, bitmap)| bitmap.dirty())
    }

    /// Marks an extent as different from the replicas of `nodes`.
    pub(crate) fn mark(&mut self, nodes: NodeSet, extent: Extent) {
        for (node, bitmap) in &mut self.bitmaps {
            if nodes.contains(*node) {
                bitmap.set(extent);
            }
        }
    }

    pub(crate) fn holds(&self, extent: Extent) -> bool {
        extent.offset.checked_add(extent.len).is_some_and(|end| end <= self.config.size)
    }
}

impl Peer {
    fn new(config: &PeerConfig) -> Self {
        Self {
            node: config.node,
            name: config.name.clone(),
            mode: config.protocol,
            wanted: true,
            state: ConnectionState::Connecting,
            discards: false,
            after_split_brain: config.after_split_brain,
            diverged: false,
            parting: None,
            link: None,
            protocol_waits: Vec::new(),
            paused: BTreeSet::new(),
        }
    }

    /// What the peer told last, where the connection is complete.
    pub(crate) fn up(&self) -> Option<&NodeState> {
        let link = self.link.as_ref().filter(|link| !link.parting)?;
        link.theirs.as_ref()
    }

    /// The peer's disk of a volume.
    pub(crate) fn disk(&self, volume: usize) -> DiskState {
        self.up()
            .and_then(|state| state.volumes.get(volume))
            .map_or(DiskState::DUnknown, |volume| volume.disk)
    }

    /// Whether the peer takes part in the changes of a volume.
    pub(crate) fn receives(&self, volume: usize) -> bool {
        !matches!(self.disk(volume), DiskState::DUnknown | DiskState::Diskless | DiskState::Failed)
    }

    pub(crate) fn pair(&self, volume: usize) -> Option<&Pair> {
        self.up()?;
        self.link.as_ref()?.pairs.get(volume)
    }
}

/// The superblock of a replica that was never written.
pub(crate) fn blank(config: &ResourceConfig, volume: &VolumeConfig) -> Superblock {
    Superblock {
        cluster: config.cluster,
        resource: hash(&config.name),
        volume: volume.number,
        node: config.node,
        size: volume.size,
        block_size: volume.block_size,
        version: 0,
        order: 0,
        current: Generation(0),
        bases: [Generation(0); 32],
        history: Vec::new(),
        flags: Flags { fresh: true, ..Flags::default() },
        activity_extents: 0,
        activity_log: 0,
    }
}

/// What tells the activity log that a replica begins from every one before: random, and not zero.
pub(crate) fn log_identity(entropy: u64, volume: VolumeNumber) -> u64 {
    let mixed = (entropy ^ u64::from(volume.0) << 48).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed ^ (mixed >> 32)) | 1
}

/// FNV-1a: tells names apart in metadata.
fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
