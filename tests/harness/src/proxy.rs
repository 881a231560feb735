//! A way between two nodes that can be cut, slow and long. Cut, bytes stay where they are until it heals, as they do when
//! a switch drops every packet and TCP goes on trying.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::load::Random;

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
    /// How long a byte is on its way.
    delay_us: AtomicU64,
    /// How many bytes get through in a second, each way; 0: as many as come.
    bytes_per_second: AtomicU64,
    /// The longest piece in which bytes come out; 0: as they went in.
    longest_piece: AtomicUsize,
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

    /// Makes the way so long and so narrow, in each direction: `bytes_per_second` of 0 is no limit.
    pub fn shape(&self, delay: Duration, bytes_per_second: u64) {
        let delay_us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.state.delay_us.store(delay_us, Ordering::Relaxed);
        self.state.bytes_per_second.store(bytes_per_second, Ordering::Relaxed);
    }

    /// Hands bytes out in pieces of 1 to `longest` bytes; 0 leaves them as they come.
    pub fn cut_into_pieces(&self, longest: usize) {
        self.state.longest_piece.store(longest, Ordering::Relaxed);
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
        let (state, on_its_way) = (Arc::clone(state), Arc::new(AtomicUsize::new(0)));
        let (entrance, exit) = channel();
        let (of_delivery, queued) = (Arc::clone(&state), Arc::clone(&on_its_way));
        let out = to.try_clone()?;
        thread::spawn(move || {
            deliver(&exit, &out, &of_delivery, back, &queued);
            // One end is gone, so the other one goes: each may be closed already.
            let _ = out.shutdown(Shutdown::Both);
        });
        thread::spawn(move || take(&from, &entrance, &state, &on_its_way));
    }
    Ok(())
}

/// A piece of the stream and when it came; an empty one is its end.
type Piece = (Instant, Vec<u8>);

/// Takes bytes in until an end closes, as many as a way of its kind holds.
fn take(mut from: &TcpStream, entrance: &Sender<Piece>, state: &State, on_its_way: &AtomicUsize) {
    let mut buffer = vec![0; BUFFER];
    while !state.ended.load(Ordering::Relaxed) {
        let narrow = state.bytes_per_second.load(Ordering::Relaxed) > 0;
        if on_its_way.load(Ordering::Relaxed) > if narrow { NARROW_BYTES } else { WIDE_BYTES } {
            thread::sleep(STEP);
            continue;
        }
        let read = match from.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => 0,
        };
        on_its_way.fetch_add(read, Ordering::Relaxed);
        if entrance.send((Instant::now(), buffer[..read].to_vec())).is_err() || read == 0 {
            return;
        }
    }
}

/// Hands bytes out when they have come so far, until an end closes.
fn deliver(exit: &Receiver<Piece>, mut to: &TcpStream, state: &State, back: bool, on_its_way: &AtomicUsize) {
    let held = if back { &state.back } else { &state.there };
    let mut free_at = Instant::now();
    let mut random = Random::new(1);
    for (came, bytes) in exit {
        let delay = Duration::from_micros(state.delay_us.load(Ordering::Relaxed));
        let rate = state.bytes_per_second.load(Ordering::Relaxed);
        // No rate, no limit.
        if let Some(nanoseconds) = (bytes.len() as u64 * 1_000_000_000).checked_div(rate) {
            free_at = free_at.max(came) + Duration::from_nanos(nanoseconds);
            thread::sleep(free_at.saturating_duration_since(Instant::now()));
        }
        thread::sleep((came + delay).saturating_duration_since(Instant::now()));
        // The end of the stream is held like its bytes: a node behind a cut cannot even tell that it died.
        while held.load(Ordering::Relaxed) && !state.ended.load(Ordering::Relaxed) {
            thread::sleep(BETWEEN_LOOKS);
        }
        on_its_way.fetch_sub(bytes.len(), Ordering::Relaxed);
        if bytes.is_empty() || state.ended.load(Ordering::Relaxed) {
            return;
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let piece = match state.longest_piece.load(Ordering::Relaxed) as u64 {
                0 => rest.len(),
                longest => rest.len().min(usize::try_from(1 + random.below(longest)).unwrap_or(1)),
            };
            if to.write_all(&rest[..piece]).is_err() {
                return;
            }
            rest = &rest[piece..];
        }
    }
}

/// What a way holds: little where it is narrow, as routers do, and what delay takes where it is wide.
const NARROW_BYTES: usize = 256 << 10;
const WIDE_BYTES: usize = 64 << 20;
const STEP: Duration = Duration::from_millis(1);
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

    /// A long way takes its time, and a narrow one lets through what it can.
    #[test]
    fn a_way_has_length_and_width() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
        let mut dialler = TcpStream::connect(proxy.address).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        proxy.shape(Duration::from_millis(100), 0);
        let began = Instant::now();
        dialler.write_all(b"one").unwrap();
        accepted.read_exact(&mut [0; 3]).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(100), "{:?}", began.elapsed());
        proxy.shape(Duration::ZERO, 1 << 20);
        let began = Instant::now();
        dialler.write_all(&vec![0; 256 << 10]).unwrap();
        accepted.read_exact(&mut vec![0; 256 << 10]).unwrap();
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(240) && took < Duration::from_secs(2), "{took:?}");
    }
}
