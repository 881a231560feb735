//! Nodes that meet on loopback, all on one thread, and what stands between them.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::Future,
    io::Write,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    sync::{Arc, Mutex},
    time::Duration,
};

use block::{Extent, VolumeNumber};
use bytes::{Bytes, BytesMut};
use ops::{config::Address, metrics::Latencies};
use replication::{
    AckMode, Input, LinkId, NodeId, NodeSet, Packet, Sequence,
    authenticate::{Identity, Secret},
    wire::{Decoder, Frame, Output},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::{AbortHandle, LocalSet, spawn_local},
    time::timeout,
};
use tracing::Level;

use crate::{
    peer::{Directory, Listener, Options, Peer, Setup, identity, meet},
    volume::Mailbox,
};

/// Far more than anything here takes, even on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

pub(super) const LOW: NodeId = NodeId(3);
pub(super) const HIGH: NodeId = NodeId(8);

/// Runs a test on one thread, as a shard does.
pub(super) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async { within(test).await });
}

/// What a future gives, which it must do in time.
pub(super) async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("nothing takes so long")
}

/// Options that notice nothing by themselves: what happens has another cause.
pub(super) fn patient() -> Options {
    let long = Duration::from_mins(10);
    Options {
        ping_interval: long,
        ping_timeout: long,
        timeout: long,
        answer_timeout: long,
        ..Options::default()
    }
}

/// The identity of a new process of a node.
pub(super) fn process(node: NodeId) -> Arc<Identity> {
    identity("demo", node, Secret::new(b"the secret of the cluster".to_vec())).unwrap()
}

pub(super) fn other_of(node: NodeId) -> NodeId {
    if node == LOW { HIGH } else { LOW }
}

/// The replication port of a process.
pub(super) struct Port {
    pub(super) identity: Arc<Identity>,
    pub(super) directory: Directory,
    pub(super) address: SocketAddr,
    listener: AbortHandle,
}

impl Port {
    pub(super) async fn open(identity: Arc<Identity>) -> Self {
        let directory = Directory::default();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener =
            Listener::bind(any, Arc::clone(&identity), directory.clone(), Arc::default()).await.unwrap();
        let address = listener.address().unwrap();
        let listener = spawn_local(listener.run()).abort_handle();
        Self { identity, directory, address, listener }
    }

    /// Starts the resource `db` of this process, with its peer at `peer`.
    pub(super) fn start(self, peer: SocketAddr, options: Options) -> Node {
        self.start_at(Address::Ip(peer), options)
    }

    /// The same with an address that may be a name.
    pub(super) fn start_at(self, peer: Address, options: Options) -> Node {
        let other = other_of(self.identity.node);
        let setup = Setup {
            identity: Arc::clone(&self.identity),
            resource: "db".into(),
            peer: other,
            peer_name: format!("node-{}", other.0),
            address: peer,
            options,
            latencies: Arc::new(Latencies::new("db", [LOW, HIGH])),
            counters: Arc::default(),
        };
        let mailbox = Rc::<Mailbox>::default();
        let calls = self.directory.admit("db", other);
        let link = Peer::start(setup, calls, Rc::clone(&mailbox));
        Node { port: self, peer: link, mailbox, inputs: RefCell::default() }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// A process with one resource and one peer.
pub(super) struct Node {
    pub(super) port: Port,
    pub(super) peer: Peer,
    mailbox: Rc<Mailbox>,
    inputs: RefCell<VecDeque<Input>>,
}

impl Node {
    /// What the resource hears next.
    pub(super) async fn next(&self) -> Input {
        loop {
            if let Some(input) = self.inputs.borrow_mut().pop_front() {
                return input;
            }
            let mut batch = Vec::new();
            within(self.mailbox.take(&mut batch)).await;
            self.inputs.borrow_mut().extend(batch);
        }
    }

    /// What the resource has heard and not looked at.
    pub(super) fn unread(&self) -> Vec<Input> {
        let mut batch = Vec::new();
        self.mailbox.take_now(&mut batch);
        let mut inputs = self.inputs.borrow_mut();
        inputs.extend(batch);
        inputs.drain(..).collect()
    }

    /// Waits until the peer is connected. Nothing else may come before.
    pub(super) async fn connected(&self) -> LinkId {
        match self.next().await {
            Input::PeerConnected { peer, link } if peer == other_of(self.port.identity.node) => link,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until this link is lost, whatever packets come before.
    pub(super) async fn lost(&self, link: LinkId) {
        loop {
            match self.next().await {
                Input::PeerLost { link: lost, .. } => return assert_eq!(lost, link),
                Input::Packet { .. } | Input::Sent { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next packet of this link.
    pub(super) async fn packet(&self, link: LinkId) -> Packet {
        loop {
            match self.next().await {
                Input::Packet { link: from, packet, .. } => {
                    assert_eq!(from, link);
                    return packet;
                }
                Input::Sent { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Two processes that want each other, and their link's two names.
pub(super) async fn pair(options: Options) -> (Node, LinkId, Node, LinkId) {
    let (low, high) = (Port::open(process(LOW)).await, Port::open(process(HIGH)).await);
    let (low_address, high_address) = (low.address, high.address);
    let (low, high) = (low.start(high_address, options), high.start(low_address, options));
    low.peer.want(true);
    high.peer.want(true);
    let (low_link, high_link) = (low.connected().await, high.connected().await);
    (low, low_link, high, high_link)
}

/// Sends a packet each way and sees it arrive.
pub(super) async fn talk(low: &Node, low_link: LinkId, high: &Node, high_link: LinkId) {
    low.peer.send(low_link, flush(1));
    high.peer.send(high_link, flush(2));
    assert_eq!(high.packet(high_link).await, flush(1));
    assert_eq!(low.packet(low_link).await, flush(2));
}

pub(super) fn flush(sequence: u64) -> Packet {
    Packet::Flush { sequence: Sequence(sequence) }
}

/// A write whose bytes follow from its sequence.
pub(super) fn write(sequence: u64, len: usize) -> Packet {
    let data: Bytes = (sequence..).take(len).map(|number| number.to_be_bytes()[7]).collect();
    Packet::Write {
        volume: VolumeNumber(0),
        sequence: Sequence(sequence),
        extent: Extent::new(sequence << 20, len as u64),
        data: data.into(),
        fua: false,
        mode: AckMode::C,
        missing: NodeSet::EMPTY,
    }
}

/// A peer that does only what a test tells it.
pub(super) struct Raw {
    pub(super) stream: TcpStream,
    received: BytesMut,
}

impl Raw {
    /// Calls a port and authenticates itself.
    pub(super) async fn call(port: SocketAddr, identity: &Identity) -> Self {
        let stream = TcpStream::connect(port).await.unwrap();
        let met = within(meet::dial(stream, identity, "db", other_of(identity.node))).await.unwrap();
        Self { stream: met.stream, received: met.received }
    }

    /// Calls the port of [`LOW`] and is its link in the end.
    pub(super) async fn link(port: SocketAddr, identity: &Identity) -> Self {
        let mut raw = Self::call(port, identity).await;
        raw.say(Frame::Ready).await;
        assert_eq!(raw.hear().await, Some(Frame::Open));
        raw
    }

    pub(super) async fn say(&mut self, frame: Frame) {
        let mut output = Output::default();
        output.push(frame);
        self.stream.write_all_buf(&mut output).await.unwrap();
    }

    /// The next frame; `None` once the connection is closed.
    pub(super) async fn hear(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = Decoder::default().next(&mut self.received).unwrap() {
                return Some(frame);
            }
            if within(self.stream.read_buf(&mut self.received)).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }
}

/// Stands between a dialler and a port and forwards, cutting what it forwards into pieces of `piece` bytes.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    task: AbortHandle,
    frozen: Rc<tokio::sync::watch::Sender<bool>>,
}

impl Proxy {
    pub(super) async fn open(port: SocketAddr, piece: impl FnMut() -> usize + Clone + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let frozen = Rc::new(tokio::sync::watch::Sender::new(false));
        let switch = Rc::clone(&frozen);
        let task = spawn_local(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let far = TcpStream::connect(port).await.unwrap();
                near.set_nodelay(true).unwrap();
                far.set_nodelay(true).unwrap();
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                spawn_local(forward(near_in, far_out, piece.clone(), switch.subscribe()));
                spawn_local(forward(far_in, near_out, piece.clone(), switch.subscribe()));
            }
        });
        Self { address, task: task.abort_handle(), frozen }
    }

    /// Forwards nothing any more, and closes nothing: a cable that was pulled.
    pub(super) fn freeze(&self) {
        self.frozen.send_replace(true);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut piece: impl FnMut() -> usize,
    mut frozen: tokio::sync::watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 65536];
    loop {
        let count = tokio::select! {
            biased;
            _ = frozen.wait_for(|&frozen| frozen) => std::future::pending().await,
            count = from.read(&mut buffer) => count.unwrap_or(0),
        };
        if count == 0 {
            return;
        }
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(piece().min(rest.len()));
            if to.write_all(now).await.is_err() {
                return;
            }
            rest = later;
        }
    }
}

/// What is logged on this thread while the guard lives.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub(super) fn start(level: Level) -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(super) async fn wait_for(&self, words: &str) -> String {
        within(async {
            loop {
                let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
                if text.contains(words) {
                    return text;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }
}
