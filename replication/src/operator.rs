//! What operators ask, and the picture they get.

use crate::{
    AckMode, ConnectionState, ConnectionStatus, DeviceStatus, DiskState, Effect, Farewell, OperatorRequest,
    Packet, PeerDeviceStatus, Plan, Refusal, ReplicationState, Resource, ResourceStatus, Role, Sequence,
    Suspended, Verb,
    bitmap::BLOCK,
    resource::Demotion,
    write::{Progress, What},
};

/// A change of mode that is not yet true for everything.
#[derive(Clone, Debug)]
pub(crate) struct ProtocolWait {
    request: OperatorRequest,
    mode: AckMode,
    /// Everything up to here has to have reached what the mode promises; `None` until the peer knows of the change.
    until: Option<Sequence>,
}

impl Resource {
    /// An operator asks.
    pub(crate) fn operator(&mut self, request: OperatorRequest, verb: &Verb) {
        match *verb {
            Verb::Primary { force } => {
                self.barred = false;
                if self.role == Role::Primary {
                    self.auto_promoted = false;
                    return self.reply(request, Ok(()));
                }
                if let Some(refusal) = self.refusal(force) {
                    return self.reply(request, Err(refusal));
                }
                self.auto_promoted = false;
                self.start_promotion(Some(request), force);
            }
            Verb::Secondary { force } => self.make_secondary(request, force),
            Verb::Connect { peer, discard_my_data } => {
                let result = self.each_peer(peer, |resource, peer| resource.want(peer, discard_my_data));
                self.reply(request, result);
            }
            Verb::Disconnect { peer } => {
                let result = self.each_peer(peer, Self::unwant);
                self.reply(request, result);
            }
            Verb::Protocol { peer, mode } => self.set_protocol(request, peer, mode),
            Verb::PauseSync { volume, peer, paused } => {
                let result = self.pause_sync(volume, peer, paused);
                self.reply(request, result);
            }
            Verb::Detach { volume, force } => self.detach_as_asked(request, volume, force),
            Verb::Attach { volume } => self.attach(request, volume),
            Verb::Invalidate { volume } => self.invalidate(request, volume),
            Verb::InvalidateRemote { volume, peer } => self.invalidate_remote(request, volume, peer),
            Verb::NewGeneration { volume, clear_bitmap: true } => self.declare_equal(request, volume),
            Verb::NewGeneration { volume, clear_bitmap: false } => self.begin_generation(request, volume),
        }
        self.changed = true;
    }

    pub(crate) fn reply(&mut self, request: OperatorRequest, result: Result<(), Refusal>) {
        self.out.push(Effect::Reply { request, result });
    }

    fn make_secondary(&mut self, request: OperatorRequest, force: bool) {
        self.barred |= force;
        if self.role != Role::Primary {
            return self.reply(request, Ok(()));
        }
        if self.sessions > 0 && !force {
            let name = &self.config.name;
            let what = format!("sessions that use {name}: {}", self.sessions);
            let remedy =
                format!("log the initiators out, or fail their commands: evenkeel secondary {name} --force");
            return self.reply(request, Err(Refusal { what, remedy }));
        }
        let demotion = self.demotion.get_or_insert(Demotion { requests: Vec::new(), force: false });
        demotion.requests.push(request);
        demotion.force |= force;
    }

    pub(crate) fn each_peer(
        &mut self,
        node: Option<crate::NodeId>,
        mut act: impl FnMut(&mut Self, usize),
    ) -> Result<(), Refusal> {
        let peers: Vec<usize> = match node {
            None => (0..self.peers.len()).collect(),
            Some(node) => self.peer_at(node).into_iter().collect(),
        };
        if peers.is_empty() {
            let what = format!("{} has no such peer", self.config.name);
            return Err(Refusal { what, remedy: "see its peers: evenkeel status".to_owned() });
        }
        for peer in peers {
            act(self, peer);
        }
        Ok(())
    }

    fn want(&mut self, peer: usize, discard_my_data: bool) {
        let target = &mut self.peers[peer];
        target.discards = discard_my_data;
        target.diverged = false;
        target.parting = None;
        if !std::mem::replace(&mut target.wanted, true) {
            target.state = ConnectionState::Connecting;
            let node = target.node;
            self.out.push(Effect::Want { peer: node, wanted: true });
            self.event(crate::Event::Connection { peer: node, state: ConnectionState::Connecting });
        }
    }

    fn unwant(&mut self, peer: usize) {
        let target = &mut self.peers[peer];
        target.diverged = false;
        target.parting = Some(crate::Parting::Disconnected);
        let node = target.node;
        if std::mem::replace(&mut target.wanted, false) {
            self.out.push(Effect::Want { peer: node, wanted: false });
        }
        if self.peers[peer].link.is_some() {
            self.event(crate::Event::Connection { peer: node, state: ConnectionState::Disconnecting });
            self.part(peer, Farewell::Leaving, "the operator disconnected");
        } else {
            self.peers[peer].state = ConnectionState::StandAlone;
            self.event(crate::Event::Connection { peer: node, state: ConnectionState::StandAlone });
        }
    }

    /// Changes the mode: a stricter one holds for the next change on; a looser one once the peer knows, because
    /// what it may lack decides who is the source after a crash.
    fn set_protocol(&mut self, request: OperatorRequest, node: Option<crate::NodeId>, mode: AckMode) {
        let peers: Vec<usize> = match node {
            None => (0..self.peers.len()).collect(),
            Some(node) => self.peer_at(node).into_iter().collect(),
        };
        if peers.is_empty() && node.is_some() {
            let result = self.each_peer(node, |_, _| {});
            return self.reply(request, result);
        }
        for peer in peers {
            let until =
                (self.peers[peer].up().is_none() || mode >= self.peers[peer].mode).then_some(self.sequence);
            if until.is_some() {
                self.peers[peer].mode = mode;
            }
            self.peers[peer].protocol_waits.push(ProtocolWait { request, mode, until });
            if self.peers[peer].up().is_some() {
                self.send(peer, Packet::Protocol { mode });
            }
        }
        self.protocol_progress();
        if !self.waits_for_protocol(request) && node.is_none() && self.peers.is_empty() {
            self.reply(request, Ok(()));
        }
    }

    fn waits_for_protocol(&self, request: OperatorRequest) -> bool {
        self.peers.iter().any(|peer| peer.protocol_waits.iter().any(|wait| wait.request == request))
    }

    /// The peer acknowledges its changes by another mode, and wants the same of this node.
    pub(crate) fn protocol_told(&mut self, peer: usize, mode: AckMode) {
        self.peers[peer].mode = mode;
        for volume in 0..self.volumes.len() {
            if let Some(disk) = self.volumes[volume].disk.as_mut().filter(|_| mode == AckMode::A) {
                disk.flags.lags = true;
            }
        }
        self.send(peer, Packet::ProtocolKnown { mode });
        self.changed = true;
    }

    pub(crate) fn protocol_known(&mut self, peer: usize, mode: AckMode) {
        let sequence = self.sequence;
        let mut known = false;
        for wait in self.peers[peer].protocol_waits.iter_mut().filter(|wait| wait.mode == mode) {
            known |= wait.until.is_none();
            wait.until.get_or_insert(sequence);
        }
        if known {
            self.peers[peer].mode = mode;
        }
        self.changed = true;
        self.protocol_progress();
    }

    /// Answers the changes of mode that have become true.
    pub(crate) fn protocol_progress(&mut self) {
        for peer in 0..self.peers.len() {
            if self.peers[peer].protocol_waits.is_empty() {
                continue;
            }
            let connected = self.peers[peer].up().is_some();
            let waits = std::mem::take(&mut self.peers[peer].protocol_waits);
            let (waiting, done): (Vec<_>, Vec<_>) = waits.into_iter().partition(|wait| {
                connected && wait.until.is_none_or(|until| self.promises_more(peer, wait.mode, until))
            });
            self.peers[peer].protocol_waits = waiting;
            for wait in done {
                if wait.until.is_none() {
                    self.peers[peer].mode = wait.mode;
                }
                if !self.waits_for_protocol(wait.request) {
                    self.reply(wait.request, Ok(()));
                }
            }
        }
    }

    /// Whether a change up to `until` has not yet reached what a mode promises.
    fn promises_more(&self, peer: usize, mode: AckMode, until: Sequence) -> bool {
        let short = |leg: &crate::write::Leg| leg.peer == peer && !leg.lost && leg.progress < mode.awaits();
        self.changes.iter().any(|(_, change)| {
            change.sequence <= until && matches!(change.what, What::Data(_)) && change.legs.iter().any(short)
        })
    }

    /// What happens between the local replica and a peer's.
    pub(crate) fn replication_state(&self, peer: usize, volume: usize) -> ReplicationState {
        let Some(pair) = self.peers[peer].pair(volume) else { return ReplicationState::Off };
        if self.volumes[volume].disk.is_none() || self.peers[peer].disk(volume) == DiskState::Diskless {
            // Nothing can be copied to or from a disk that was given up.
            return ReplicationState::Established;
        }
        let active = self.volumes[volume].resync.as_ref().is_some_and(|resync| resync.source == peer);
        match pair.plan {
            Plan::SyncTarget(_) if active => ReplicationState::SyncTarget,
            Plan::SyncTarget(_) if !pair.bitmap_here => ReplicationState::WFBitMapT,
            Plan::SyncTarget(_) => ReplicationState::PausedSyncT,
            Plan::SyncSource(_) if !pair.bitmap_here => ReplicationState::WFBitMapS,
            Plan::SyncSource(_) if self.is_paused(peer, volume) => ReplicationState::PausedSyncS,
            Plan::SyncSource(_) => ReplicationState::SyncSource,
            _ => ReplicationState::Established,
        }
    }

    /// A picture of the resource.
    #[must_use]
    pub fn status(&self) -> ResourceStatus {
        let suspended = self.role == Role::Primary
            && (0..self.volumes.len()).any(|volume| !self.volumes[volume].quorum || !self.has_data(volume));
        ResourceStatus {
            name: self.config.name.clone(),
            node: self.config.node,
            role: self.role,
            suspended,
            devices: (0..self.volumes.len()).map(|volume| self.device(volume)).collect(),
            connections: (0..self.peers.len()).map(|peer| self.connection(peer)).collect(),
        }
    }

    fn device(&self, at: usize) -> DeviceStatus {
        let volume = &self.volumes[at];
        let pending = self.tasks.iter().filter(|(_, task)| task.volume == at).count();
        let lower = self.jobs.iter().filter(|(_, job)| job.volume == at && job.out).count();
        DeviceStatus {
            volume: volume.config.number,
            disk_state: volume.state,
            trouble: volume.trouble.clone(),
            client: !volume.config.disks.contains(self.config.node),
            quorum: volume.quorum,
            size: volume.config.size,
            read: volume.read_bytes,
            written: volume.written_bytes,
            al_writes: volume.books.log_writes,
            bm_writes: volume.books.bitmap_writes,
            upper_pending: pending as u64,
            lower_pending: lower as u64,
            generation: volume.disk.as_ref().map_or(volume.known, |disk| disk.current).0,
            fresh: volume.disk.as_ref().is_some_and(|disk| disk.flags.fresh),
        }
    }

    fn connection(&self, at: usize) -> ConnectionStatus {
        let peer = &self.peers[at];
        let unwritten = |change: &crate::write::Change| {
            let open =
                |leg: &crate::write::Leg| leg.peer == at && !leg.lost && leg.progress < Progress::Stable;
            match change.what {
                What::Data(extent) if change.legs.iter().any(open) => extent.len,
                _ => 0,
            }
        };
        ConnectionStatus {
            peer: peer.node,
            state: peer.state,
            trouble: None,
            peer_role: peer.up().map_or(Role::Unknown, |state| state.role),
            protocol: peer.mode,
            congested: false,
            ap_in_flight: self.changes.iter().map(|(_, change)| unwritten(change)).sum(),
            rs_in_flight: (0..self.volumes.len()).map(|volume| self.sync_in_flight(at, volume)).sum(),
            peer_devices: (0..self.volumes.len()).map(|volume| self.peer_device(at, volume)).collect(),
            parting: peer.parting.clone().filter(|_| peer.link.is_none() && !peer.wanted),
        }
    }

    fn peer_device(&self, at: usize, number: usize) -> PeerDeviceStatus {
        let (peer, volume) = (&self.peers[at], &self.volumes[number]);
        let replication_state = self.replication_state(at, number);
        let dirty = volume.dirty(peer.node);
        let blocks = volume.config.size.div_ceil(BLOCK).max(1);
        let open = |leg: &crate::write::Leg| leg.peer == at && !leg.lost && leg.progress < Progress::Stable;
        let pending = self.changes.iter().filter(|(_, change)| change.volume == number);
        let resync = volume.resync.as_ref().filter(|resync| resync.source == at);
        let seconds = resync.and_then(|resync| {
            let done = resync.total.saturating_sub(dirty);
            let passed = self.now.0.saturating_sub(resync.started.0).as_millis();
            let millis = u128::from(dirty) * passed / u128::from(done.max(1));
            (done > 0).then(|| u64::try_from(millis / 1000).unwrap_or(u64::MAX))
        });
        #[expect(clippy::cast_precision_loss, reason = "a percentage needs no 64 bits")]
        let percent = 100.0 * (blocks - dirty.min(blocks)) as f64 / blocks as f64;
        let link = peer.link.as_ref();
        PeerDeviceStatus {
            volume: volume.config.number,
            replication_state,
            peer_disk_state: peer.disk(number),
            peer_client: !volume.config.disks.contains(peer.node),
            resync_suspended: self.resync_suspended(at, number, replication_state),
            received: link.map_or(0, |link| link.received_bytes),
            sent: link.map_or(0, |link| link.sent_bytes),
            out_of_sync: (dirty * BLOCK).min(volume.config.size),
            pending: pending.filter(|(_, change)| change.legs.iter().any(open)).count() as u64,
            unacked: link.map_or(0, |link| link.applying.len() as u64),
            percent_in_sync: if peer.disk(number) == DiskState::DUnknown && dirty == 0 {
                100.0
            } else {
                percent
            },
            estimated_seconds_to_finish: seconds,
        }
    }

    fn resync_suspended(&self, peer: usize, volume: usize, state: ReplicationState) -> Option<Suspended> {
        if !matches!(state, ReplicationState::PausedSyncS | ReplicationState::PausedSyncT) {
            return None;
        }
        Some(match (self.peers[peer].paused.contains(&volume), self.paused_there(peer, volume)) {
            (true, true) => Suspended::Both,
            (true, false) => Suspended::Here,
            (false, true) => Suspended::There,
            (false, false) => Suspended::Dependency,
        })
    }
}
