//! The one link to a peer, about one resource: dials, decides which connection it is, and replaces it.

use std::{
    future::{Future, pending},
    io,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use ops::{config::Address, metrics::Counted};
use replication::{
    Input,
    wire::{CloseReason, DecodeError, Decoder, Frame, Output},
};
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, lookup_host},
    sync::mpsc,
    task::{JoinHandle, JoinSet, spawn_local},
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use super::{
    Setup,
    connection::{Connection, Ended, Link, close},
    handle::Shared,
    listener::Accepted,
    meet::{self, MEET_LIMIT, MeetError, Met},
};
use crate::volume::Mailbox;

/// Why a connection did not become a link.
#[derive(Debug, Error)]
enum DialError {
    /// The host name cannot be looked up.
    #[error("cannot look the host name up: {0}")]
    Name(io::Error),
    /// Nobody answers at the address.
    #[error("{0}")]
    Unreachable(io::Error),
    /// No peer was met.
    #[error(transparent)]
    Meet(#[from] MeetError),
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer sent what is no frame.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The peer closed the connection and said why.
    #[error("the peer closed the connection: {0}")]
    Told(CloseReason),
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Eof,
    /// The peer said something else than what was due.
    #[error("the peer spoke out of turn")]
    OutOfTurn,
}

type Settling = Pin<Box<dyn Future<Output = Result<Met, DialError>>>>;

pub(super) struct Task {
    setup: Rc<Setup>,
    mailbox: Rc<Mailbox>,
    shared: Rc<Shared>,
    accepted: mpsc::Receiver<Accepted>,
    /// Our own call.
    dialling: Option<Settling>,
    dial_at: Instant,
    pause: Duration,
    /// Why the last call failed, as it was logged.
    failure: String,
    /// The peer's calls.
    settling: JoinSet<Result<Met, DialError>>,
    running: Option<Running>,
    candidate: Option<Candidate>,
    closing: JoinSet<()>,
}

/// The link that is there.
struct Running {
    link: Rc<Link>,
    task: JoinHandle<(Ended, TcpStream)>,
    instance: u64,
    since: Instant,
}

/// A connection that waits until the link has shown whether it is alive.
struct Candidate {
    met: Met,
    ping: u64,
    deadline: Instant,
}

impl Task {
    pub(super) fn new(
        setup: Rc<Setup>,
        accepted: mpsc::Receiver<Accepted>,
        mailbox: Rc<Mailbox>,
        shared: Rc<Shared>,
    ) -> Self {
        Self {
            setup,
            mailbox,
            shared,
            accepted,
            dialling: None,
            dial_at: Instant::now(),
            pause: PAUSE_MIN,
            failure: String::new(),
            settling: JoinSet::new(),
            running: None,
            candidate: None,
            closing: JoinSet::new(),
        }
    }

    pub(super) async fn run(mut self) {
        while !self.shared.stopping.get() {
            let dial_at = (self.shared.wanted.get() && self.running.is_none() && self.dialling.is_none())
                .then_some(self.dial_at);
            let link = self.running.as_ref().map(|running| Rc::clone(&running.link));
            tokio::select! {
                () = self.shared.changed.notified() => self.wanted_changed(),
                (ended, stream) = ended(self.running.as_mut()) => self.lost(&ended, stream),
                Some(accepted) = self.accepted.recv() => self.take(accepted),
                settled = settled(self.dialling.as_mut()) => self.dialled(settled).await,
                Some(settled) = self.settling.join_next() => {
                    if let Ok(settled) = settled {
                        self.called(settled).await;
                    }
                }
                alive = probed(link.as_deref(), self.candidate.as_ref()) => self.decide(alive).await,
                () = at(dial_at) => self.dial(),
                Some(_) = self.closing.join_next() => {}
            }
        }
        self.stop().await;
    }

    fn wanted_changed(&mut self) {
        if self.shared.wanted.get() {
            (self.dial_at, self.pause) = (Instant::now(), PAUSE_MIN);
        } else {
            self.dialling = None;
            self.settling.abort_all();
            if let Some(candidate) = self.candidate.take() {
                self.close(candidate.met, CloseReason::Unwanted);
            }
        }
    }

    fn dial(&mut self) {
        let setup = Rc::clone(&self.setup);
        self.dialling = Some(Box::pin(async move {
            let call = async {
                let stream = reach(&setup.address).await?;
                meet::tune(&stream, &setup.options)?;
                let met = meet::dial(stream, &setup.identity, &setup.resource, setup.peer).await?;
                settle(met, &setup).await
            };
            timeout(MEET_LIMIT, call).await.unwrap_or(Err(DialError::Meet(MeetError::Slow)))
        }));
    }

    /// Takes a call that the listener authenticated.
    fn take(&mut self, accepted: Accepted) {
        let options = &self.setup.options;
        let met = accepted.into_met().and_then(|met| meet::tune(&met.stream, options).map(|()| met));
        let met = match met {
            Ok(met) => met,
            Err(error) => {
                debug!(peer = self.setup.peer_name, %error, "a call broke off");
                return;
            }
        };
        if !self.shared.wanted.get() {
            return self.close(met, CloseReason::Unwanted);
        }
        if self.settling.len() >= SETTLING_MAX {
            self.settling.abort_all();
        }
        let setup = Rc::clone(&self.setup);
        self.settling.spawn_local(async move {
            let settled = timeout(MEET_LIMIT, settle(met, &setup)).await;
            settled.unwrap_or(Err(DialError::Meet(MeetError::Slow)))
        });
    }

    async fn dialled(&mut self, settled: Result<Met, DialError>) {
        self.dialling = None;
        match settled {
            Ok(met) => self.consider(met).await,
            Err(error) => {
                if matches!(error, DialError::Meet(MeetError::Auth(_))) {
                    self.setup.counters.add(Counted::PeerRefused);
                }
                let failure = error.to_string();
                // Whoever does not answer at all is down, most likely: that needs no words.
                let reached = !matches!(error, DialError::Unreachable(_));
                *self.shared.trouble.borrow_mut() = reached.then(|| failure.clone());
                let (resource, peer) = (&self.setup.resource, &self.setup.peer_name);
                if failure == self.failure {
                    debug!(resource, peer, failure, "cannot connect");
                } else {
                    warn!(resource, peer, address = %self.setup.address, failure, "cannot connect");
                    self.failure = failure;
                }
                self.back_off();
            }
        }
    }

    async fn called(&mut self, settled: Result<Met, DialError>) {
        match settled {
            Ok(met) => self.consider(met).await,
            Err(error) => debug!(peer = self.setup.peer_name, %error, "a call broke off"),
        }
    }

    fn back_off(&mut self) {
        self.dial_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(self.setup.options.connect_interval);
    }

    /// Whether this end decides which connection is the link.
    fn decides(&self) -> bool {
        self.setup.identity.node < self.setup.peer
    }

    /// The table of the module's documentation.
    async fn consider(&mut self, met: Met) {
        if !self.shared.wanted.get() {
            return self.close(met, CloseReason::Unwanted);
        }
        let Some(running) = &self.running else {
            return self.open(met);
        };
        if !self.decides() || running.instance != met.authenticated.instance {
            return self.replace(met).await;
        }
        let deadline = Instant::now() + self.setup.options.ping_timeout;
        let candidate = Candidate { met, ping: running.link.ping(), deadline };
        if let Some(earlier) = self.candidate.replace(candidate) {
            self.close(earlier.met, CloseReason::Duplicate);
        }
    }

    async fn decide(&mut self, alive: bool) {
        match self.candidate.take() {
            Some(candidate) if alive => {
                debug!(peer = self.setup.peer_name, "closed a second connection: the link is alive");
                self.close(candidate.met, CloseReason::Duplicate);
            }
            Some(candidate) => self.replace(candidate.met).await,
            None => {}
        }
    }

    async fn replace(&mut self, met: Met) {
        if let Some(running) = &mut self.running {
            running.link.finish(Ended::Here(CloseReason::Replaced));
            if let Ok((ended, stream)) = (&mut running.task).await {
                self.lost(&ended, stream);
            }
        }
        self.open(met);
    }

    /// Makes a connection the link.
    fn open(&mut self, met: Met) {
        let Met { stream, received, authenticated, address } = met;
        let Setup { peer, options, ref latencies, .. } = *self.setup;
        let link = Rc::new(Link::new(peer, options, Arc::clone(latencies)));
        if self.decides() {
            link.push(Frame::Open);
        }
        let id = link.id();
        info!(
            resource = self.setup.resource,
            peer = self.setup.peer_name,
            %address,
            version = authenticated.version,
            link = id.0,
            "connected"
        );
        self.setup.counters.add(Counted::PeerAccepted);
        self.mailbox.push(Input::PeerConnected { peer, link: id });
        *self.shared.link.borrow_mut() = Some(Rc::clone(&link));
        let mailbox = Rc::clone(&self.mailbox);
        let connection = Connection { stream, received, link: Rc::clone(&link), mailbox };
        let task = spawn_local(connection.run());
        self.running = Some(Running { link, task, instance: authenticated.instance, since: Instant::now() });
        self.dialling = None;
        self.failure.clear();
        *self.shared.trouble.borrow_mut() = None;
    }

    fn lost(&mut self, ended: &Ended, stream: TcpStream) {
        let Some(Running { link, since, .. }) = self.running.take() else {
            return;
        };
        let (peer, id) = (self.setup.peer, link.id());
        warn!(resource = self.setup.resource, peer = self.setup.peer_name, link = id.0, reason = %ended, "disconnected");
        if matches!(ended, Ended::Decode(_) | Ended::Opened) {
            self.setup.counters.add(Counted::PeerError);
        }
        *self.shared.link.borrow_mut() = None;
        self.mailbox.push(Input::PeerLost { peer, link: id });
        if let Ended::Here(reason) = ended {
            self.closing.spawn_local(close(stream, link.take_output(), *reason));
        }
        if since.elapsed() >= STEADY {
            (self.dial_at, self.pause) = (Instant::now(), PAUSE_MIN);
        } else {
            self.back_off();
        }
    }

    fn close(&mut self, met: Met, reason: CloseReason) {
        self.closing.spawn_local(close(met.stream, Output::default(), reason));
    }

    async fn stop(mut self) {
        if let Some(running) = &mut self.running {
            running.link.finish(Ended::Here(CloseReason::Disconnected));
            if let Ok((ended, stream)) = (&mut running.task).await {
                self.lost(&ended, stream);
            }
        }
        if let Some(candidate) = self.candidate.take() {
            self.close(candidate.met, CloseReason::Disconnected);
        }
        while self.closing.join_next().await.is_some() {}
    }
}

/// Connects to the first of the addresses that a configured one stands for now.
async fn reach(address: &Address) -> Result<TcpStream, DialError> {
    match address {
        Address::Ip(address) => TcpStream::connect(address).await,
        Address::Name { host, port } => {
            let found: Vec<_> = lookup_host((host.as_str(), *port)).await.map_err(DialError::Name)?.collect();
            TcpStream::connect(&found[..]).await
        }
    }
    .map_err(DialError::Unreachable)
}

/// Waits until both ends could use a connection as the link, and the deciding one may choose it, or has chosen it.
async fn settle(mut met: Met, setup: &Setup) -> Result<Met, DialError> {
    let decides = setup.identity.node < setup.peer;
    if !decides {
        let mut output = Output::default();
        output.push(Frame::Ready);
        met.stream.write_all_buf(&mut output).await?;
    }
    let decoder = Decoder { payload_max: 0 };
    loop {
        match decoder.next(&mut met.received)? {
            Some(Frame::Ready) if decides => return Ok(met),
            Some(Frame::Open) if !decides => return Ok(met),
            Some(Frame::Close(reason)) => return Err(DialError::Told(reason)),
            Some(_) => return Err(DialError::OutOfTurn),
            None => {}
        }
        if met.stream.read_buf(&mut met.received).await? == 0 {
            return Err(DialError::Eof);
        }
    }
}

async fn ended(running: Option<&mut Running>) -> (Ended, TcpStream) {
    match running {
        Some(running) => match (&mut running.task).await {
            Ok(ended) => ended,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        },
        None => pending().await,
    }
}

async fn settled(dialling: Option<&mut Settling>) -> Result<Met, DialError> {
    match dialling {
        Some(dialling) => dialling.await,
        None => pending().await,
    }
}

/// Whether the link has shown that it is alive, once that is known.
async fn probed(link: Option<&Link>, candidate: Option<&Candidate>) -> bool {
    match (link, candidate) {
        (Some(link), Some(candidate)) => tokio::select! {
            () = link.answered(candidate.ping) => true,
            () = sleep_until(candidate.deadline) => false,
        },
        (None, Some(_)) => false,
        (_, None) => pending().await,
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(100);
/// A link that lived so long is dialled again at once when it is lost; one that did not is part of a series.
const STEADY: Duration = Duration::from_secs(1);
/// Calls of the peer that wait for their turn; one more ends them all. A node makes one at a time, and again after
/// it was restarted.
const SETTLING_MAX: usize = 4;
