//! The `replication` address of a node: takes calls of peers, for all resources, on the control runtime.
//!
//! Whoever calls is a stranger until it has proved itself: it gets one small buffer, ten seconds, and a place
//! among [`HALF_OPEN_MAX`].

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use ops::metrics::{Counted, Counters};
use replication::{
    NodeId,
    authenticate::{Authenticated, Identity, Refusal},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use super::meet::{MEET_LIMIT, MeetError, Met, accept};
use crate::{
    half_open::HalfOpen,
    quota::{Quota, Verdict},
};

/// Calls that may be under way at the same time without having proved themselves.
pub const HALF_OPEN_MAX: usize = 256;

/// A call that proved itself, on its way to the shard of its resource.
#[derive(Debug)]
pub struct Accepted {
    stream: std::net::TcpStream,
    received: BytesMut,
    authenticated: Authenticated,
    address: SocketAddr,
}

impl Accepted {
    fn new(met: Met) -> io::Result<Self> {
        let Met { stream, received, authenticated, address } = met;
        Ok(Self { stream: stream.into_std()?, received, authenticated, address })
    }

    /// Goes on with the call on this thread's runtime.
    ///
    /// # Errors
    /// When the socket cannot be watched here.
    pub fn into_met(self) -> io::Result<Met> {
        let Self { stream, received, authenticated, address } = self;
        Ok(Met { stream: TcpStream::from_std(stream)?, received, authenticated, address })
    }
}

/// Who may call about what, and where the call goes. Shared by the listener and the shards.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    resources: Arc<Mutex<BTreeMap<String, Callers>>>,
}

/// Where the calls of each peer of a resource go.
type Callers = BTreeMap<NodeId, mpsc::Sender<Accepted>>;

impl Directory {
    /// Admits a peer's calls about a resource, until the receiver is dropped. An earlier receiver gets no more.
    #[must_use]
    pub fn admit(&self, resource: &str, peer: NodeId) -> mpsc::Receiver<Accepted> {
        let (calls, receiver) = mpsc::channel(ACCEPTED_MAX);
        let mut resources = self.resources.lock().unwrap_or_else(PoisonError::into_inner);
        resources.entry(resource.to_owned()).or_default().insert(peer, calls);
        receiver
    }

    fn find(&self, resource: &str, peer: NodeId) -> Result<mpsc::Sender<Accepted>, Refusal> {
        let resources = self.resources.lock().unwrap_or_else(PoisonError::into_inner);
        let peers = resources.get(resource).ok_or(Refusal::Resource)?;
        let calls = peers.get(&peer).filter(|calls| !calls.is_closed());
        calls.cloned().ok_or(Refusal::Peer)
    }
}

/// A call that was taken, at its end.
#[derive(Debug)]
struct Ended {
    address: SocketAddr,
    /// Who the caller claims to be, and about what, where it said so much.
    claims: String,
    result: Result<(), MeetError>,
}

/// Takes calls.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    identity: Arc<Identity>,
    directory: Directory,
    meetings: JoinSet<Ended>,
    half_open: HalfOpen,
    counters: Arc<Counters>,
    refusals: Quota,
}

impl Listener {
    /// Listens on `address`.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub async fn bind(
        address: SocketAddr,
        identity: Arc<Identity>,
        directory: Directory,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        let (meetings, half_open) = (JoinSet::new(), HalfOpen::new(HALF_OPEN_MAX, HALF_OPEN_MAX));
        let refusals = Quota::default();
        Ok(Self { socket, identity, directory, meetings, half_open, counters, refusals })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Takes calls until it is dropped.
    pub async fn run(mut self) {
        loop {
            tokio::select! {
                // Calls that ended are cleared away before more are taken.
                biased;
                Some(ended) = self.meetings.join_next() => {
                    if let Ok(Ended { address, claims, result: Err(error) }) = ended {
                        self.refused(address, &claims, &error);
                    }
                }
                call = self.socket.accept() => match call {
                    Ok((stream, address)) => self.take(stream, address),
                    Err(error) => {
                        // Out of file descriptors, most likely: nothing to do but to let some be closed.
                        warn!(%error, "cannot take a call on the replication port");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    fn take(&mut self, stream: TcpStream, address: SocketAddr) {
        let (identity, directory) = (Arc::clone(&self.identity), self.directory.clone());
        let call = self.meetings.spawn(async move {
            let mut claims = String::new();
            let meeting = timeout(MEET_LIMIT, meet(stream, &identity, &directory, &mut claims)).await;
            Ended { address, claims, result: meeting.unwrap_or(Err(MeetError::Slow)) }
        });
        self.half_open.add(address.ip(), call);
    }

    fn refused(&mut self, address: SocketAddr, claims: &str, error: &MeetError) {
        self.counters.add(Counted::PeerRefused);
        if let Verdict::Log { left_out } = self.refusals.ask(Instant::now()) {
            warn!(%address, claims, %error, left_out, "refused a call on the replication port");
        }
    }
}

async fn meet(
    stream: TcpStream,
    identity: &Identity,
    directory: &Directory,
    claims: &mut String,
) -> Result<(), MeetError> {
    let admit = |resource: &str, peer: NodeId| {
        *claims = format!("node {} about {resource:?}", peer.0);
        directory.find(resource, peer)
    };
    let (met, calls) = accept(stream, identity, admit).await?;
    debug!(resource = met.authenticated.resource, peer = met.authenticated.peer.0, address = %met.address, "a peer called");
    // A full queue means that the shard is behind with earlier calls of the same peer: this one is dropped, and
    // the peer calls again. A closed one means that the resource has stopped.
    let _ = calls.try_send(Accepted::new(met)?);
    Ok(())
}

/// Calls of one peer about one resource that wait for the shard.
const ACCEPTED_MAX: usize = 4;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
