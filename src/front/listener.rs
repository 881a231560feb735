//! Accepts iSCSI initiators and logs them in; then each connection goes to the shard of its target's resource.
//!
//! Who has not logged in yet costs one small buffer and a place among the half-open connections, whose number is bounded.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use ops::metrics::{Counted, Counters};
use target_proto::iscsi::{
    login::{Login, LoginError, Progress, Purpose, Ready},
    pdu::Output,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tracing::{info, warn};

use super::{catalog::Catalog, discovery, iscsi};
use crate::{
    daemon::Node,
    half_open::HalfOpen,
    quota::{Quota, Verdict},
};

/// The size of the command window that a session gets.
pub const QUEUE_DEPTH: u32 = 128;

/// A connection that both sides agree on, before its final login response.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub stream: std::net::TcpStream,
    /// Where it comes from.
    pub address: SocketAddr,
    /// The portal that it came to.
    pub portal: SocketAddr,
    /// The login.
    pub ready: Ready,
    /// What came behind the login.
    pub received: BytesMut,
    /// What initiators may use.
    pub catalog: Arc<Catalog>,
}

/// Accepts initiators on every portal of a node.
#[derive(Clone, Debug)]
pub struct Listener {
    node: Node,
    catalog: Arc<Catalog>,
    counters: Arc<Counters>,
    half_open: Arc<Mutex<HalfOpen>>,
    quota: Arc<Mutex<Quota>>,
}

impl Listener {
    /// A listener that listens nowhere yet.
    #[must_use]
    pub fn new(node: Node, catalog: Arc<Catalog>, counters: Arc<Counters>) -> Self {
        let half_open = Arc::new(Mutex::new(HalfOpen::new(HALF_OPEN_MAX, HALF_OPEN_MAX_EACH)));
        Self { node, catalog, counters, half_open, quota: Arc::default() }
    }

    /// Accepts on one portal, until it is dropped.
    pub async fn run(self, portal: TcpListener) {
        loop {
            match portal.accept().await {
                Ok((stream, address)) => self.accept(stream, address),
                Err(error) => {
                    // Out of descriptors, or the connection is gone already: others may still come.
                    warn!(%error, "cannot accept an iSCSI connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn accept(&self, stream: TcpStream, address: SocketAddr) {
        let listener = self.clone();
        let task = tokio::spawn(async move { listener.log_in(stream, address).await });
        let mut half_open = self.half_open.lock().unwrap_or_else(PoisonError::into_inner);
        half_open.add(address.ip(), task.abort_handle());
    }

    async fn log_in(self, stream: TcpStream, address: SocketAddr) {
        match timeout(LOGIN_TIME, negotiate(stream, address, &self.catalog)).await {
            Ok(Ok(Ok(accepted))) => self.hand_over(accepted).await,
            Ok(Ok(Err(refused))) => self.refused(address, &refused.to_string()),
            Ok(Err(error)) => self.refused(address, &error.to_string()),
            Err(_) => self.refused(address, "the login took too long"),
        }
    }

    async fn hand_over(&self, accepted: Accepted) {
        self.counters.add(Counted::LoginAccepted);
        let identity = accepted.ready.identity();
        info!(address = %accepted.address, %identity, purpose = ?identity.purpose, "initiator logs in");
        match &identity.purpose {
            Purpose::Discovery => discovery::serve(accepted).await,
            Purpose::Normal { target } => {
                let place = self.catalog.place(target);
                let resource =
                    place.and_then(|place| self.node.resources.iter().find(|it| it.place == place));
                let Some(resource) = resource else { return };
                let (place, counters) = (resource.place, Arc::clone(&self.counters));
                resource
                    .shard
                    .run(move |local| {
                        match local.export(place) {
                            Some(export) => {
                                tokio::task::spawn_local(iscsi::serve(export, accepted, counters))
                            }
                            None => tokio::task::spawn_local(iscsi::turn_away(accepted)),
                        };
                    })
                    .await;
            }
        }
    }

    fn refused(&self, address: SocketAddr, reason: &str) {
        self.counters.add(Counted::LoginRefused);
        let verdict = self.quota.lock().unwrap_or_else(PoisonError::into_inner).ask(Instant::now());
        if let Verdict::Log { left_out } = verdict {
            warn!(%address, reason, left_out, "iSCSI login refused");
        }
    }
}

/// Takes a connection through the login phase, up to its final response.
pub(super) async fn negotiate(
    mut stream: TcpStream,
    address: SocketAddr,
    catalog: &Arc<Catalog>,
) -> io::Result<Result<Accepted, LoginError>> {
    stream.set_nodelay(true)?;
    let portal = stream.local_addr()?;
    let mut received = BytesMut::with_capacity(BUFFER_LEN);
    let mut output = Output::new();
    let mut login = Login::new(QUEUE_DEPTH);
    loop {
        if stream.read_buf(&mut received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let progress = login.receive(&mut received, &**catalog, &mut output);
        send(&mut stream, &mut output).await?;
        match progress {
            Progress::Continue(next) => login = next,
            Progress::Over(error) => return Ok(Err(error)),
            Progress::Ready(ready) => {
                let (stream, catalog) = (stream.into_std()?, Arc::clone(catalog));
                return Ok(Ok(Accepted { stream, address, portal, ready, received, catalog }));
            }
        }
    }
}

/// Sends everything that waits.
pub(crate) async fn send(stream: &mut TcpStream, output: &mut Output) -> io::Result<()> {
    while !output.is_empty() {
        let mut slices = [io::IoSlice::new(&[]); 64];
        let filled = output.slices(&mut slices);
        match stream.write_vectored(&slices[..filled]).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            sent => output.advance(sent),
        }
    }
    Ok(())
}

/// From the connection to the end of the login phase.
const LOGIN_TIME: Duration = Duration::from_secs(15);

/// Connections in the login phase, in all.
const HALF_OPEN_MAX: usize = 512;

/// Connections in the login phase from one address.
const HALF_OPEN_MAX_EACH: usize = 128;

/// The receive buffer of a login: one PDU of the longest data segment that a login may have.
const BUFFER_LEN: usize = 8192 + 48;

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
