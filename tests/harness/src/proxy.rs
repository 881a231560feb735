//! A way between two nodes that can be cut: bytes stay where they are until it heals, as they do when a switch drops
//! every packet and TCP goes on trying.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Result;

/// Forwards connections to one address until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    /// Where to connect to.
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of the dialler are held.
    there: AtomicBool,
    /// Bytes of the listener are held.
    back: AtomicBool,
    ended: AtomicBool,
}

impl Proxy {
    /// Listens on a free port of loopback for connections to `target`.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::default());
        let watched = Arc::clone(&state);
        thread::spawn(move || {
            while !watched.ended.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((from, _)) => {
                        // Whoever cannot be reached refuses: the dialler tries again.
                        let _ = connect(from, target, &watched);
                    }
                    Err(_) => thread::sleep(BETWEEN_LOOKS),
                }
            }
        });
        Ok(Self { address, state })
    }

    /// Holds, or lets go, what the dialler sends (`there`) and what the listener sends (`back`); `None` leaves it.
    pub fn hold(&self, there: Option<bool>, back: Option<bool>) {
        for (held, wanted) in [(&self.state.there, there), (&self.state.back, back)] {
            if let Some(wanted) = wanted {
                held.store(wanted, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
    }
}

fn connect(from: TcpStream, target: SocketAddr, state: &Arc<State>) -> Result<()> {
    let to = TcpStream::connect(target)?;
    for (from, to, back) in [(from.try_clone()?, to.try_clone()?, false), (to, from, true)] {
        for stream in [&from, &to] {
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
        }
        from.set_read_timeout(Some(BETWEEN_LOOKS))?;
        let state = Arc::clone(state);
        thread::spawn(move || {
            forward(&from, &to, &state, back);
            // One end is gone, so the other one goes: each may be closed already.
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}

/// Copies bytes until an end closes.
fn forward(mut from: &TcpStream, mut to: &TcpStream, state: &State, back: bool) {
    let held = if back { &state.back } else { &state.there };
    let mut buffer = vec![0; BUFFER];
    while !state.ended.load(Ordering::Relaxed) {
        let read = match from.read(&mut buffer) {
            Ok(0) => 0,
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => 0,
        };
        // The end of the stream is held like its bytes: a node behind a cut cannot even tell that it died.
        while held.load(Ordering::Relaxed) && !state.ended.load(Ordering::Relaxed) {
            thread::sleep(BETWEEN_LOOKS);
        }
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
}

const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
const BUFFER: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// What is sent into a cut arrives once it heals, whole and in order.
    #[test]
    fn a_cut_holds_bytes_until_it_heals() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
        let mut dialler = TcpStream::connect(proxy.address).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        accepted.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        proxy.hold(Some(true), None);
        dialler.write_all(b"one").unwrap();
        let mut bytes = [0; 6];
        assert!(accepted.read(&mut bytes).is_err(), "it came through the cut");
        accepted.write_all(b"back").unwrap();
        dialler.read_exact(&mut bytes[..4]).unwrap();
        proxy.hold(Some(false), None);
        dialler.write_all(b"two").unwrap();
        accepted.set_read_timeout(None).unwrap();
        accepted.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"onetwo");
        dialler.shutdown(Shutdown::Both).unwrap();
        assert_eq!(accepted.read(&mut bytes).unwrap(), 0);
    }
}
