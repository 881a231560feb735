//! From a TCP connection to a peer that has proved itself: the shell around [`replication::authenticate`].

use std::{io, net::SocketAddr, time::Duration};

use bytes::{BufMut, BytesMut};
use replication::{
    NodeId,
    authenticate::{
        AuthError, Authenticated, Claimed, ExpectHello, Identity, MESSAGE_MAX, Message, Nonce, Refusal,
    },
};
use socket2::SockRef;
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::Options;

/// How long a connection may take until both ends have proved themselves.
pub const MEET_LIMIT: Duration = Duration::from_secs(10);

/// A connection to a peer that has proved itself.
#[derive(Debug)]
pub struct Met {
    /// The socket.
    pub stream: TcpStream,
    /// What it received beyond the authentication.
    pub received: BytesMut,
    /// Who the peer is, and what was agreed.
    pub authenticated: Authenticated,
    /// Where the peer is.
    pub address: SocketAddr,
}

/// Why no peer was met.
#[derive(Debug, Error)]
pub enum MeetError {
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other end closed the connection before it proved itself. A node does that to whoever does not know
    /// the secret.
    #[error("the other end closed the connection during authentication; the secrets may differ")]
    Closed,
    /// The other end did not prove itself, or refused.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The time was up.
    #[error("no answer within {} s", MEET_LIMIT.as_secs())]
    Slow,
    /// The system has no random bytes.
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),
}

/// Authenticates as the dialler.
///
/// # Errors
/// When the acceptor does not prove itself, or refuses.
pub async fn dial(
    mut stream: TcpStream,
    identity: &Identity,
    resource: &str,
    peer: NodeId,
) -> Result<Met, MeetError> {
    let address = stream.peer_addr()?;
    let (mut received, mut output) = (BytesMut::new(), Vec::new());
    let state = ExpectHello::dial(identity, resource, peer, nonce()?, &mut output);
    stream.write_all(&output).await?;
    output.clear();
    let state = state.receive(&message(&mut stream, &mut received).await?, &mut output)?;
    stream.write_all(&output).await?;
    let authenticated = state.receive(&message(&mut stream, &mut received).await?)?;
    Ok(Met { stream, received, authenticated, address })
}

/// Authenticates as the acceptor. `admit` finds what the dialler asks for, or why it may not have it.
///
/// # Errors
/// When the dialler does not prove itself, or is refused.
pub async fn accept<T>(
    mut stream: TcpStream,
    identity: &Identity,
    admit: impl FnOnce(&str, NodeId) -> Result<T, Refusal>,
) -> Result<(Met, T), MeetError> {
    let address = stream.peer_addr()?;
    let (mut received, mut output) = (BytesMut::new(), Vec::new());
    let claimed = Claimed::read(&message(&mut stream, &mut received).await?)?;
    let admitted = admit(claimed.resource(), claimed.node());
    let refusal = admitted.as_ref().err().copied();
    let state = claimed.answer(identity, nonce()?, refusal.map_or(Ok(()), Err), &mut output);
    stream.write_all(&output).await?;
    let state = state?;
    output.clear();
    let authenticated = state.receive(&message(&mut stream, &mut received).await?, &mut output);
    stream.write_all(&output).await?;
    let authenticated = authenticated?;
    let found = admitted.map_err(|refusal| AuthError::Refused { refusal })?;
    Ok((Met { stream, received, authenticated, address }, found))
}

/// Sets what every connection between nodes has: no delay, and a limit for bytes that the peer's kernel does not
/// acknowledge.
///
/// # Errors
/// When the kernel refuses.
pub fn tune(stream: &TcpStream, options: &Options) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(options.timeout))
}

async fn message(stream: &mut TcpStream, received: &mut BytesMut) -> Result<Message, MeetError> {
    loop {
        if let Some(message) = Message::take(received)? {
            return Ok(message);
        }
        let room = MESSAGE_MAX - received.len();
        if stream.read_buf(&mut received.limit(room)).await? == 0 {
            return Err(MeetError::Closed);
        }
    }
}

fn nonce() -> Result<Nonce, getrandom::Error> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce)?;
    Ok(nonce)
}
