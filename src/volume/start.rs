//! Starts a resource on its shard.

use std::{rc::Rc, sync::Arc, time::Instant};

use block::VolumeNumber;
use ops::metrics::Latencies;
use replication::{Effect, Event, Resource};
use target_proto::scsi::Target;
use tokio::{
    sync::{broadcast, mpsc},
    task::spawn_local,
};

use super::{Control, Export, Handle, Mailbox, Opener, Reservations, Stored, Task, Waiting, task::Parts};
use crate::{
    disk::{Backing, Disk},
    peer::{Peer, Setup, listener::Accepted},
};

/// A core that has not run yet, and what it wants first.
#[derive(Debug)]
pub struct Core {
    /// The core.
    pub core: Resource,
    /// What it wants.
    pub effects: Vec<Effect>,
}

/// What a resource is started from. It can go to any thread.
#[derive(Debug)]
pub struct Start {
    /// The resource's place in the configuration.
    pub place: usize,
    /// Its name.
    pub name: String,
    /// Its core.
    pub core: Core,
    /// Where the times of its commands are recorded.
    pub latencies: Arc<Latencies>,
    /// The local disks.
    pub disks: Vec<(VolumeNumber, Backing)>,
    /// How each is opened again.
    pub openers: Vec<(VolumeNumber, Opener)>,
    /// Why no node serves a volume: its one disk is here, and cannot be used.
    pub unserved: Vec<String>,
    /// The persistent reservations that were found on them.
    pub reservations: Vec<(VolumeNumber, Stored)>,
    /// The peers.
    pub peers: Vec<Setup>,
    /// The target that it is exported as.
    pub target: Target,
}

impl Start {
    /// Starts the resource on this thread, a shard's. `accepted` has the calls of each of the peers, in their order.
    #[must_use]
    pub fn run(
        self,
        accepted: Vec<mpsc::Receiver<Accepted>>,
        control: mpsc::Receiver<Control>,
        events: broadcast::Sender<(usize, Event)>,
    ) -> Rc<Export> {
        let (mailbox, waiting) =
            (Rc::<Mailbox>::default(), Rc::new(Waiting::new(Arc::clone(&self.latencies))));
        let stores = Rc::default();
        let handle = Handle::new(Rc::clone(&mailbox), Rc::clone(&waiting), Rc::clone(&stores));
        let export = Rc::new(Export::new(handle, self.target));
        let disk = |(volume, backing)| {
            (volume, Disk::start(backing, Rc::clone(&mailbox), Arc::clone(&self.latencies)))
        };
        let peer =
            |(setup, accepted): (Setup, _)| (setup.peer, Peer::start(setup, accepted, Rc::clone(&mailbox)));
        let parts = Parts {
            place: self.place,
            name: self.name,
            core: self.core.core,
            effects: self.core.effects,
            started: Instant::now(),
            disks: self.disks.into_iter().map(disk).collect(),
            peers: self.peers.into_iter().zip(accepted).map(peer).collect(),
            reservations: Reservations::new(&self.reservations),
            openers: self.openers.into_iter().collect(),
            latencies: self.latencies,
            mailbox,
            stores,
            control,
            waiting,
            export: Rc::clone(&export),
            events,
        };
        spawn_local(Task::new(parts).run());
        export
    }
}
