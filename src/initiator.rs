//! A small iSCSI initiator: for the demo's check, the tests and the benchmark.

use std::{collections::BTreeMap, fmt, io, net::SocketAddr, time::Duration};

use block::Payload;
use bytes::{BufMut, BytesMut};
use target_proto::iscsi::{
    initiator::{Completed, Event, Initiator, InitiatorError, Settings},
    pdu::Direction,
};
use thiserror::Error;
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};

use crate::front::listener::send;

/// A session with one logical unit of 512-byte blocks.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    core: Initiator,
    received: BytesMut,
    events: Vec<Event>,
}

/// A read or a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads bytes.
    Read {
        /// From where, in bytes.
        offset: u64,
        /// How many.
        len: u32,
    },
    /// Writes bytes.
    Write {
        /// Where, in bytes.
        offset: u64,
        /// The bytes.
        data: Payload,
    },
    /// Makes everything that was written stable.
    Flush,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { offset, len } => write!(f, "read of {len} bytes at {offset}"),
            Self::Write { offset, data } => write!(f, "write of {} bytes at {offset}", data.len()),
            Self::Flush => f.write_str("flush"),
        }
    }
}

/// Why a session is of no use, or a request failed.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// The target closed it.
    #[error("the target closed the connection")]
    Closed,
    /// Nothing came for long.
    #[error("the target did not answer for {} s", .0.as_secs())]
    Silent(Duration),
    /// The target broke the protocol, or refused the login.
    #[error(transparent)]
    Protocol(#[from] InitiatorError),
    /// A command failed.
    #[error("{request} ended with SCSI status {status:#04x}, sense {sense:02x?}")]
    Failed {
        /// Which.
        request: Request,
        /// Its status.
        status: u8,
        /// Its sense data.
        sense: Vec<u8>,
    },
}

impl Session {
    /// Logs in to a target and waits until its LUN 0 takes commands.
    ///
    /// # Errors
    /// When the target cannot be reached, refuses, or is not ready within `patience`.
    pub async fn open(
        portal: SocketAddr,
        settings: Settings,
        patience: Duration,
    ) -> Result<Self, SessionError> {
        let deadline = Instant::now() + patience;
        let stream = timeout_at(deadline, TcpStream::connect(portal))
            .await
            .map_err(|_| SessionError::Silent(patience))??;
        stream.set_nodelay(true)?;
        let core = Initiator::new(settings, 1);
        let mut session =
            Self { stream, core, received: BytesMut::with_capacity(RECEIVE_LEN), events: Vec::new() };
        while !session.events.iter().any(|event| matches!(event, Event::LoggedIn { .. })) {
            session.exchange().await?;
        }
        session.events.clear();
        loop {
            let task = session.core.command(0, [0; 16], Direction::None, 0, Payload::new());
            let ready = session.wait_for(task).await?;
            if ready.status == GOOD {
                return Ok(session);
            }
            if Instant::now() > deadline {
                return Err(failed(Request::Flush, &ready));
            }
            // A unit attention is told once; a path that does not serve yet needs a moment.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Carries out one request and gives what was read.
    ///
    /// # Errors
    /// When the request fails or the session breaks.
    pub async fn request(&mut self, request: Request) -> Result<Payload, SessionError> {
        loop {
            let task = self.start(&request);
            let completed = self.wait_for(task).await?;
            match completed.status {
                GOOD => return Ok(completed.data),
                _ if is_attention(&completed) => {}
                _ => return Err(failed(request, &completed)),
            }
        }
    }

    /// Carries out requests, `depth` of them at a time, until `next` has no more. Each one that ends well goes to
    /// `done` with what was read.
    ///
    /// # Errors
    /// At the first request that fails, or when the session breaks. What was under way then has an unknown outcome.
    pub async fn pipeline(
        &mut self,
        depth: usize,
        mut next: impl FnMut() -> Option<Request>,
        mut done: impl FnMut(Request, Payload),
    ) -> Result<(), SessionError> {
        let mut under_way = BTreeMap::new();
        let mut again = Vec::new();
        loop {
            for request in again.drain(..) {
                under_way.insert(self.start(&request), request);
            }
            while under_way.len() < depth
                && let Some(request) = next()
            {
                under_way.insert(self.start(&request), request);
            }
            if under_way.is_empty() {
                return Ok(());
            }
            self.exchange().await?;
            for event in self.events.drain(..) {
                let Event::Completed(completed) = event else { continue };
                let Some(request) = under_way.remove(&completed.task) else { continue };
                match completed.status {
                    GOOD => done(request, completed.data),
                    _ if is_attention(&completed) => again.push(request),
                    _ => return Err(failed(request, &completed)),
                }
            }
        }
    }

    /// Logs out and closes the connection.
    ///
    /// # Errors
    /// When the session breaks before the target has answered.
    pub async fn close(mut self) -> Result<(), SessionError> {
        self.core.log_out();
        while !self.events.iter().any(|event| matches!(event, Event::LoggedOut)) {
            self.exchange().await?;
        }
        Ok(())
    }

    fn start(&mut self, request: &Request) -> u32 {
        let (opcode, offset, len, direction, out) = match request {
            Request::Read { offset, len } => (READ_16, *offset, *len, Direction::Read, Payload::new()),
            Request::Write { offset, data } => {
                let len = u32::try_from(data.len()).expect("a request is far below 4 GiB");
                (WRITE_16, *offset, len, Direction::Write, data.clone())
            }
            Request::Flush => (SYNCHRONIZE_CACHE_16, 0, 0, Direction::None, Payload::new()),
        };
        let mut cdb = [0; 16];
        let mut fields = &mut cdb[..];
        fields.put_u8(opcode);
        fields.put_u8(0);
        fields.put_u64(offset / BLOCK_LEN);
        fields.put_u32(len / 512);
        self.core.command(0, cdb, direction, len, out)
    }

    async fn wait_for(&mut self, task: u32) -> Result<Completed, SessionError> {
        loop {
            self.exchange().await?;
            for event in self.events.drain(..) {
                match event {
                    Event::Completed(completed) if completed.task == task => return Ok(completed),
                    _ => {}
                }
            }
        }
    }

    /// Sends what waits, then takes in what comes next.
    async fn exchange(&mut self) -> Result<(), SessionError> {
        send(&mut self.stream, self.core.output()).await?;
        self.received.reserve(RECEIVE_LEN);
        let read = timeout(SILENCE_MAX, self.stream.read_buf(&mut self.received)).await;
        if read.map_err(|_| SessionError::Silent(SILENCE_MAX))?? == 0 {
            return Err(SessionError::Closed);
        }
        self.core.receive(&mut self.received, &mut self.events)?;
        Ok(())
    }
}

/// Whether the command was not carried out because the target had something to tell (SAM-5 5.14).
fn is_attention(completed: &Completed) -> bool {
    completed.sense.get(2).is_some_and(|key| key & 0x0f == UNIT_ATTENTION)
}

fn failed(request: Request, completed: &Completed) -> SessionError {
    SessionError::Failed { request, status: completed.status, sense: completed.sense.to_vec() }
}

/// How long a target may be silent while something is under way.
const SILENCE_MAX: Duration = Duration::from_secs(30);

const RECEIVE_LEN: usize = 256 << 10;
const BLOCK_LEN: u64 = 512;
const GOOD: u8 = 0;
const UNIT_ATTENTION: u8 = 6;
const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8a;
const SYNCHRONIZE_CACHE_16: u8 = 0x91;
