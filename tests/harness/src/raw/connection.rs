//! One TCP connection that reports what happened to it instead of hiding it.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use socket2::{Domain, SockRef, Socket, Type};

use super::{Pdu, opcode};

/// What came, or did not come, from the target.
#[derive(Debug)]
pub enum Received {
    /// A whole PDU.
    Pdu(Box<Pdu>),
    /// The target closed or reset the connection.
    Closed,
    /// Nothing within the patience.
    Silence,
}

/// A connection to a portal.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens.
    pub fn open(portal: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&portal, PATIENCE).context("the target does not accept")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream })
    }

    /// Connects from the loopback address `source`, so that a target tells this client from others.
    ///
    /// # Errors
    /// When nobody listens or the kernel has no file descriptor left.
    pub fn open_from(source: Ipv4Addr, portal: SocketAddr) -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((source, 0)).into())?;
        socket.connect_timeout(&portal.into(), PATIENCE).context("the target does not accept")?;
        Ok(Self { stream: socket.into() })
    }

    /// Sends `pdu` as it stands.
    ///
    /// # Errors
    /// When the target has closed the connection.
    pub fn send(&mut self, pdu: &Pdu) -> Result<()> {
        self.send_bytes(&pdu.encode())
    }

    /// Sends bytes that need not be a PDU.
    ///
    /// # Errors
    /// When the target has closed the connection, or takes nothing for the patience.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.set_write_timeout(Some(PATIENCE))?;
        self.stream.write_all(bytes).context("the target closed the connection")
    }

    /// Fills the start of `buffer` with what one read of the socket brings, and returns how many bytes that is.
    ///
    /// # Errors
    /// When the target closes or stays silent.
    pub fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match self.stream.read(buffer).context("no answer from the target")? {
            0 => bail!("the target closed the connection"),
            read => Ok(read),
        }
    }

    /// The next thing that happens within `patience`. Pings of the target are answered on the way.
    ///
    /// # Errors
    /// When a PDU stops in the middle: a target never does that.
    pub fn receive_within(&mut self, patience: Duration) -> Result<Received> {
        loop {
            match self.peek(patience)? {
                Some(0) => return Ok(Received::Closed),
                None => return Ok(Received::Silence),
                Some(_) => {}
            }
            self.stream.set_read_timeout(Some(PATIENCE))?;
            let pdu = match Pdu::read(&mut self.stream) {
                Ok(pdu) => pdu,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(Received::Closed),
                Err(error) => return Err(error).context("the target stopped in the middle of a PDU"),
            };
            if pdu.opcode() == opcode::NOP_IN && pdu.read_word(20) != UNUSED_TAG {
                self.answer_ping(&pdu)?;
            } else {
                return Ok(Received::Pdu(Box::new(pdu)));
            }
        }
    }

    /// How many bytes wait: 0 is the end, `None` is silence.
    fn peek(&self, patience: Duration) -> Result<Option<usize>> {
        self.stream.set_read_timeout(Some(patience))?;
        match self.stream.peek(&mut [0]) {
            Ok(len) => Ok(Some(len)),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(None),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Ok(Some(0)),
                _ => Err(error.into()),
            },
        }
    }

    fn answer_ping(&mut self, ping: &Pdu) -> Result<()> {
        let mut pong = Pdu::new(opcode::NOP_OUT).immediate().word(16, UNUSED_TAG).data(ping.data.clone());
        pong.header[8..16].copy_from_slice(&ping.header[8..16]);
        pong.header[20..24].copy_from_slice(&ping.header[20..24]);
        // An immediate PDU carries the next CmdSN, which the target tells as ExpCmdSN.
        pong.header[24..28].copy_from_slice(&ping.header[28..32]);
        let pong = pong.word(28, ping.read_word(24).wrapping_add(1));
        self.send(&pong)
    }

    /// The next PDU.
    ///
    /// # Errors
    /// When the target closes or stays silent instead.
    pub fn receive(&mut self) -> Result<Pdu> {
        match self.receive_within(PATIENCE)? {
            Received::Pdu(pdu) => Ok(*pdu),
            Received::Closed => bail!("the target closed the connection"),
            Received::Silence => bail!("no answer from the target within {} s", PATIENCE.as_secs()),
        }
    }

    /// Waits until the target closes, whatever it says before.
    ///
    /// # Errors
    /// When the connection is still open after `patience` of silence.
    pub fn wait_closed(&mut self, patience: Duration) -> Result<()> {
        loop {
            match self.receive_within(patience)? {
                Received::Closed => return Ok(()),
                Received::Pdu(_) => {}
                Received::Silence => {
                    bail!("the connection is open after {} s of silence", patience.as_secs())
                }
            }
        }
    }

    /// Closes with a reset instead of the usual end.
    ///
    /// # Errors
    /// When the socket refuses the option.
    pub fn reset(self) -> Result<()> {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
        Ok(())
    }
}

/// How long a healthy target may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// A tag that names no task (RFC 7143, section 11.2.1.8).
pub(super) const UNUSED_TAG: u32 = 0xffff_ffff;
