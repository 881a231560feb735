//! The loop around one replication core: inputs in batches, effects carried out after each batch.
//!
//! A full queue costs one wake-up, one submission to the disks and one write to each peer.

use std::{
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use block::VolumeNumber;
use futures_util::future::join_all;
use ops::metrics::Latencies;
use replication::{
    ConnectionState, DiskError, Effect, Event, Found, Input, Instant as Moment, NodeId, OperatorRequest,
    Refusal, Resource,
};
use slab::Slab;
use tokio::{
    sync::{broadcast, mpsc, oneshot},
    task::{spawn_blocking, spawn_local},
    time::{sleep_until, timeout},
};
use tracing::{info, warn};

use super::{Control, Export, Mailbox, Opened, Opener, Report, Reservations, Store, Waiting};
use crate::{disk::Disk, local::Queue, peer::Peer};

/// What a resource's task is made of.
#[derive(Debug)]
pub struct Parts {
    /// The resource's place in the configuration.
    pub place: usize,
    /// The resource's name, for logs.
    pub name: String,
    /// The core, and what it wanted at its start.
    pub core: Resource,
    /// What the core wanted at its start.
    pub effects: Vec<Effect>,
    /// When the core's clock began.
    pub started: Instant,
    /// What happens.
    pub mailbox: Rc<Mailbox>,
    /// Persistent reservations to store.
    pub stores: Rc<Queue<Store>>,
    /// Where they are stored.
    pub reservations: Reservations,
    /// What the control side asks.
    pub control: mpsc::Receiver<Control>,
    /// Who gets the answers.
    pub waiting: Rc<Waiting>,
    /// The local disks.
    pub disks: BTreeMap<VolumeNumber, Disk>,
    /// How each is opened again.
    pub openers: BTreeMap<VolumeNumber, Opener>,
    /// Where the times of their operations are recorded.
    pub latencies: Arc<Latencies>,
    /// The connections to the peers.
    pub peers: BTreeMap<NodeId, Peer>,
    /// What the front ends share.
    pub export: Rc<Export>,
    /// Who wants to know of changes.
    pub events: broadcast::Sender<(usize, Event)>,
}

/// A running resource.
#[derive(Debug)]
pub struct Task {
    parts: Parts,
    stores: Vec<Store>,
    opened: Rc<Queue<Reopened>>,
    requests: Slab<oneshot::Sender<Result<(), Refusal>>>,
    wake_at: Option<tokio::time::Instant>,
    stop_replies: Vec<oneshot::Sender<()>>,
    stopped: bool,
}

impl Task {
    /// A task that has not begun.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            parts,
            stores: Vec::new(),
            opened: Rc::default(),
            requests: Slab::new(),
            wake_at: None,
            stop_replies: Vec::new(),
            stopped: false,
        }
    }

    /// Runs until the resource has stopped: everything in flight is finished, the disks are closed.
    pub async fn run(mut self) {
        self.carry_out();
        let mut inputs = Vec::new();
        while !self.stopped {
            self.gather(&mut inputs).await;
            let now = Moment(self.parts.started.elapsed());
            for input in inputs.drain(..) {
                match input {
                    Input::Disk { op, result } if Reservations::owns(op) => {
                        self.parts.reservations.stored(op, &result);
                    }
                    input => self.parts.core.step(now, input, &mut self.parts.effects),
                }
            }
            self.carry_out();
        }
        self.close().await;
    }

    /// Waits for the next batch.
    async fn gather(&mut self, inputs: &mut Vec<Input>) {
        let wake_at = self.wake_at;
        let mut opened = Vec::new();
        let tick = async {
            match wake_at {
                Some(moment) => sleep_until(moment).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.parts.mailbox.take(inputs) => {}
            () = self.parts.stores.take(&mut self.stores) => {
                for store in self.stores.drain(..) {
                    self.parts.reservations.store(self.parts.disks.get(&store.volume), store);
                }
            }
            () = self.opened.take(&mut opened) => {
                inputs.extend(opened.into_iter().map(|opened| self.take_disk(opened)));
            }
            Some(control) = self.parts.control.recv() => self.ask(control, inputs),
            () = tick => {
                self.wake_at = None;
                inputs.push(Input::Tick);
            }
        }
    }

    /// A disk that was opened again is used from now on.
    fn take_disk(&mut self, (volume, opened): Reopened) -> Input {
        let parts = &mut self.parts;
        let found = match opened {
            Ok(Opened { backing, found, stored }) => {
                parts.reservations.opened(volume, &stored);
                let disk = Disk::start(backing, Rc::clone(&parts.mailbox), Arc::clone(&parts.latencies));
                parts.disks.insert(volume, disk);
                found
            }
            Err(reason) => Found::Unusable(reason),
        };
        Input::Opened { volume, found }
    }

    fn ask(&mut self, control: Control, inputs: &mut Vec<Input>) {
        match control {
            Control::Operate { verb, reply } => {
                let request = OperatorRequest(self.requests.insert(reply) as u64);
                inputs.push(Input::Operator { request, verb });
            }
            Control::Report { reply } => {
                let mut status = self.parts.core.status();
                for connection in &mut status.connections {
                    let peer = self.parts.peers.get(&connection.peer);
                    connection.congested = peer.is_some_and(Peer::congested);
                    if connection.state == ConnectionState::Connecting {
                        connection.trouble = peer.and_then(Peer::trouble);
                    }
                }
                let report = Report { status, sessions: self.parts.export.sessions() };
                // Whoever asked may have gone.
                let _ = reply.send(report);
            }
            Control::Stop { reply } => {
                self.stop_replies.push(reply);
                inputs.push(Input::Stop);
            }
        }
    }

    /// Does what the core wants, in its order.
    fn carry_out(&mut self) {
        let parts = &mut self.parts;
        for effect in parts.effects.drain(..) {
            match effect {
                Effect::Disk { volume, op, request } => match parts.disks.get(&volume) {
                    Some(disk) => disk.submit(op, request),
                    None => parts.mailbox.push(Input::Disk { op, result: Err(NO_DISK) }),
                },
                Effect::Send { peer, link, packet } => {
                    if let Some(peer) = parts.peers.get(&peer) {
                        peer.send(link, packet);
                    }
                }
                Effect::Disconnect { peer, link, reason } => {
                    if let Some(peer) = parts.peers.get(&peer) {
                        peer.disconnect(link, &reason);
                    }
                }
                Effect::Want { peer, wanted } => {
                    if let Some(peer) = parts.peers.get(&peer) {
                        peer.want(wanted);
                    }
                }
                Effect::Complete { id, status } => parts.waiting.complete(id, status),
                Effect::Reply { request, result } => {
                    let key = usize::try_from(request.0).expect("the name came from a usize");
                    // Whoever asked may have gone.
                    let _ = self.requests.remove(key).send(result);
                }
                Effect::Event(event) => {
                    note(&parts.name, &event);
                    parts.export.changed(&event);
                    // Nobody may be listening.
                    let _ = parts.events.send((parts.place, event));
                }
                Effect::Open { volume } => {
                    let opener = parts.openers.get(&volume).cloned();
                    let old = parts.disks.remove(&volume);
                    spawn_local(reopen(volume, opener, old, Rc::clone(&self.opened)));
                }
                Effect::WakeAt(moment) => self.wake_at = Some((parts.started + moment.0).into()),
                Effect::Stopped => self.stopped = true,
            }
        }
    }

    async fn close(self) {
        join_all(self.parts.peers.into_values().map(Peer::stop)).await;
        let closed = join_all(self.parts.disks.into_values().map(Disk::close));
        // A disk that was given up may never answer; what is with it stays with it until the process ends.
        if timeout(CLOSE_MAX, closed).await.is_err() {
            warn!(resource = self.parts.name, "leaving a disk that does not answer");
        }
        for reply in self.stop_replies {
            // Whoever asked may have gone.
            let _ = reply.send(());
        }
    }
}

/// What came of opening a volume's disk again.
type Reopened = (VolumeNumber, Result<Opened, String>);

/// Opens a disk again, once what was open of it is closed.
async fn reopen(
    volume: VolumeNumber,
    opener: Option<Opener>,
    old: Option<Disk>,
    opened: Rc<Queue<Reopened>>,
) {
    if let Some(old) = old {
        old.close().await;
    }
    let result = match opener {
        Some(opener) => spawn_blocking(move || (opener.0)()).await.map_err(|error| error.to_string()),
        None => Ok(Err("the configuration has no disk for it here".to_owned())),
    };
    opened.push((volume, result.and_then(|opened| opened)));
}

/// Logs a change.
fn note(resource: &str, event: &Event) {
    match event {
        Event::SlowDisk { volume, given_up: true } => {
            warn!(resource, %volume, "the disk did not answer for disk-timeout: it is given up, peers serve the volume");
        }
        Event::SlowDisk { volume, given_up: false } => {
            warn!(resource, %volume, "the disk has not answered for disk-timeout; without a good peer, it is waited for");
        }
        Event::SplitBrainSettled { peer, gives_up, policy } => {
            warn!(
                resource,
                peer = peer.0,
                gives_up = gives_up.0,
                policy,
                "split brain: a policy decided whose data goes"
            );
        }
        event => info!(resource, ?event, "changed"),
    }
}

/// How long the disks of a resource that has stopped may take for what nobody waits for.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// A core asks only for disks that it was given. Were that ever wrong, the replica fails and the node goes on.
const NO_DISK: DiskError = DiskError::Io { errno: rustix::io::Errno::NODEV.raw_os_error() };
