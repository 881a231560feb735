//! A node with one resource that says what it is told to, and remembers what it was asked.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use block::VolumeNumber;
use ops::{
    config::{Config, DemoPorts},
    metrics::{Counters, Latencies},
};
use replication::{
    AckMode, ConnectionState, ConnectionStatus, DeviceStatus, DiskState, Event, NodeId, PeerDeviceStatus,
    Refusal, ReplicationState, ResourceStatus, Role, Verb,
};
use tempfile::TempDir;
use tokio::{
    sync::{broadcast, mpsc},
    task::AbortHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{View, socket::AdminSocket},
    client::Client,
    daemon::{Node, Resource},
    disk::Ring,
    shard::Shard,
    volume::{Control, Report, SessionReport},
};

/// Far more than anything here takes, even on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// What the resource says and what it was asked.
pub(super) struct Puppet {
    pub(super) report: Report,
    pub(super) asked: Vec<Verb>,
    pub(super) refusal: Option<Refusal>,
}

pub(super) struct World {
    pub(super) puppet: Arc<Mutex<Puppet>>,
    pub(super) events: broadcast::Sender<(usize, Event)>,
    pub(super) view: Arc<View>,
    pub(super) stop: CancellationToken,
    resource: AbortHandle,
    directory: TempDir,
}

impl World {
    /// The node `alpha` with the resource `db`, mirrored to `bravo`. Events are held for few readers only.
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports = DemoPorts { replication: [1, 2, 3], iscsi: [4, 5, 6], metrics: [7, 8, 9] };
        let text = Config::demo(&ports, 1 << 30);
        let config = Config::parse(&directory.path().join("evenkeel.toml"), text.as_bytes()).unwrap().config;
        let identity = config.identity(None);
        let puppet = Arc::new(Mutex::new(Puppet { report: report(), asked: Vec::new(), refusal: None }));
        let (control, requests) = mpsc::channel(8);
        let resource = tokio::spawn(play(Arc::clone(&puppet), requests)).abort_handle();
        let (events, _) = broadcast::channel(4);
        let (shard, _) = Shard::start(0, Ring::probe().unwrap()).unwrap();
        let node = Node {
            config: Arc::new(config),
            name: "alpha".to_owned(),
            resources: vec![Resource { name: "db".to_owned(), place: 0, shard, control }],
            events: events.clone(),
        };
        let latencies = vec![Arc::new(Latencies::new("db", [NodeId(1)]))];
        let view = Arc::new(View::new(node, identity, Arc::new(Counters::default()), latencies));
        Self { puppet, events, view, stop: CancellationToken::new(), resource, directory }
    }

    /// A node whose admin socket answers.
    pub(super) fn serving() -> Self {
        let world = Self::new();
        let socket = AdminSocket::bind(&world.socket()).unwrap();
        tokio::spawn(socket.serve(Arc::clone(&world.view), world.stop.clone()));
        world
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory().join("alpha.sock")
    }

    pub(super) fn client(&self) -> Client {
        Client::new(Some(&self.socket())).unwrap()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut ResourceStatus)) {
        change(&mut self.puppet.lock().unwrap().report.status);
    }

    pub(super) fn tell(&self, event: Event) {
        self.events.send((0, event)).unwrap();
    }

    /// Ends the resource's task.
    pub(super) fn end(&self) {
        self.resource.abort();
    }

    /// What was asked since the last look.
    pub(super) fn asked(&self) -> Vec<Verb> {
        std::mem::take(&mut self.puppet.lock().unwrap().asked)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn play(puppet: Arc<Mutex<Puppet>>, mut requests: mpsc::Receiver<Control>) {
    while let Some(request) = requests.recv().await {
        let mut puppet = puppet.lock().unwrap();
        // A reader that is gone does not wait for its answer.
        match request {
            Control::Operate { verb, reply } => {
                puppet.asked.push(verb);
                let _ = reply.send(puppet.refusal.clone().map_or(Ok(()), Err));
            }
            Control::Report { reply } => drop(reply.send(puppet.report.clone())),
            Control::Stop { reply } => {
                let _ = reply.send(());
                return;
            }
        }
    }
}

fn report() -> Report {
    let session = SessionReport {
        initiator: "iqn.1993-08.org.debian:01:host1".to_owned(),
        transport: "iscsi",
        address: "127.0.0.1:50000".to_owned(),
    };
    Report { status: status(), sessions: vec![session] }
}

fn status() -> ResourceStatus {
    ResourceStatus {
        name: "db".to_owned(),
        node: NodeId(0),
        role: Role::Secondary,
        suspended: false,
        devices: vec![DeviceStatus {
            volume: VolumeNumber(0),
            disk_state: DiskState::UpToDate,
            trouble: None,
            client: false,
            quorum: true,
            size: 1 << 30,
            read: 0,
            written: 0,
            al_writes: 0,
            bm_writes: 0,
            upper_pending: 0,
            lower_pending: 0,
            generation: 1,
            fresh: false,
        }],
        connections: vec![ConnectionStatus {
            peer: NodeId(1),
            state: ConnectionState::Connecting,
            trouble: None,
            peer_role: Role::Unknown,
            protocol: AckMode::C,
            congested: false,
            ap_in_flight: 0,
            rs_in_flight: 0,
            peer_devices: vec![PeerDeviceStatus {
                volume: VolumeNumber(0),
                replication_state: ReplicationState::Off,
                peer_disk_state: DiskState::DUnknown,
                peer_client: false,
                resync_suspended: None,
                received: 0,
                sent: 0,
                out_of_sync: 0,
                pending: 0,
                unacked: 0,
                percent_in_sync: 100.0,
                estimated_seconds_to_finish: None,
            }],
            parting: None,
        }],
    }
}

/// The peer is back, and all is well.
pub(super) fn recover(status: &mut ResourceStatus) {
    let peer = &mut status.connections[0];
    (peer.state, peer.peer_role) = (ConnectionState::Connected, Role::Secondary);
    let device = &mut peer.peer_devices[0];
    (device.replication_state, device.peer_disk_state) = (ReplicationState::Established, DiskState::UpToDate);
}
