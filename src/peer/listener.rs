//! The `replication` address of a node: takes calls of peers, for all resources, on the control runtime.
//!
//! Whoever calls is a stranger until it has proved itself: it gets one small buffer, ten seconds, and a place
//! among [`HALF_OPEN_MAX`]. When these are taken, the oldest call of the address that has the most makes room, so
//! that a flood from one address ends at that address.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use replication::{
    NodeId,
    authenticate::{Authenticated, Identity, Refusal},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use super::meet::{MEET_LIMIT, MeetError, Met, accept};

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

/// Takes calls.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    identity: Arc<Identity>,
    directory: Directory,
    meetings: JoinSet<(SocketAddr, Result<(), MeetError>)>,
    half_open: Vec<(IpAddr, AbortHandle)>,
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
    ) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        let (meetings, half_open) = (JoinSet::new(), Vec::new());
        Ok(Self { socket, identity, directory, meetings, half_open, refusals: Quota::default() })
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
                // Calls that ended give their places back before more are taken.
                biased;
                Some(ended) = self.meetings.join_next_with_id() => {
                    let id = match &ended {
                        Ok((id, _)) => *id,
                        Err(error) => error.id(),
                    };
                    self.half_open.retain(|(_, call)| call.id() != id);
                    if let Ok((_, (address, Err(error)))) = ended {
                        self.refusals.warn(address, &error);
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
        if self.half_open.len() >= HALF_OPEN_MAX {
            self.make_room();
        }
        let (identity, directory) = (Arc::clone(&self.identity), self.directory.clone());
        let call = self.meetings.spawn(async move {
            let meeting = timeout(MEET_LIMIT, meet(stream, &identity, &directory)).await;
            (address, meeting.unwrap_or(Err(MeetError::Slow)))
        });
        self.half_open.push((address.ip(), call));
    }

    /// Ends the oldest call of the address that has the most.
    fn make_room(&mut self) {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for (address, _) in &self.half_open {
            *counts.entry(*address).or_default() += 1;
        }
        let Some((&busiest, _)) = counts.iter().max_by_key(|&(_, &count)| count) else {
            return;
        };
        if let Some(oldest) = self.half_open.iter().position(|&(address, _)| address == busiest) {
            self.half_open.remove(oldest).1.abort();
        }
    }
}

async fn meet(stream: TcpStream, identity: &Identity, directory: &Directory) -> Result<(), MeetError> {
    let (met, calls) = accept(stream, identity, |resource, peer| directory.find(resource, peer)).await?;
    debug!(resource = met.authenticated.resource, peer = met.authenticated.peer.0, address = %met.address, "a peer called");
    // A full queue means that the shard is behind with earlier calls of the same peer: this one is dropped, and
    // the peer calls again. A closed one means that the resource has stopped.
    let _ = calls.try_send(Accepted::new(met)?);
    Ok(())
}

/// How many refusals are logged, so that a flood of strangers does not fill the log.
#[derive(Debug, Default)]
struct Quota {
    since: Option<Instant>,
    logged: u32,
    left_out: u64,
}

impl Quota {
    fn warn(&mut self, address: SocketAddr, error: &MeetError) {
        let now = Instant::now();
        if self.since.is_none_or(|since| now - since >= REFUSALS_WINDOW) {
            if self.left_out > 0 {
                warn!(count = self.left_out, "more calls were refused on the replication port");
            }
            *self = Self { since: Some(now), ..Self::default() };
        }
        if self.logged < REFUSALS_LOGGED {
            self.logged += 1;
            warn!(%address, %error, "refused a call on the replication port");
        } else {
            self.left_out += 1;
        }
    }
}

/// Calls of one peer about one resource that wait for the shard.
const ACCEPTED_MAX: usize = 4;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const REFUSALS_WINDOW: Duration = Duration::from_secs(10);
const REFUSALS_LOGGED: u32 = 20;
