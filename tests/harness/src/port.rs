//! Free TCP ports of the loopback interface.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// Returns `N` loopback addresses that nobody listens on at this moment.
///
/// They are all held until the last one is found, so they differ from each other.
///
/// # Errors
/// When the kernel has no free port.
pub fn free<const N: usize>() -> Result<[SocketAddr; N]> {
    let mut held = Vec::with_capacity(N);
    let mut addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    for address in &mut addresses {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *address = listener.local_addr()?;
        held.push(listener);
    }
    Ok(addresses)
}

/// Waits until `address` accepts a connection, asking `alive` between attempts.
///
/// # Errors
/// When `alive` fails (the server has ended) or `patience` is over.
pub fn wait_open(
    address: SocketAddr,
    patience: Duration,
    mut alive: impl FnMut() -> Result<()>,
) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        if TcpStream::connect_timeout(&address, ATTEMPT).is_ok() {
            return Ok(());
        }
        alive()?;
        if Instant::now() > deadline {
            bail!("nobody listens on {address} after {} s", patience.as_secs());
        }
        // A refused connect on loopback returns at once: this is the only event there is to wait for.
        thread::sleep(BETWEEN_ATTEMPTS);
    }
}

const ATTEMPT: Duration = Duration::from_millis(500);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    /// Two servers of one test never get the same port.
    #[test]
    fn ports_differ() {
        let mut ports = free::<16>().unwrap().map(|address| address.port());
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] < pair[1]), "{ports:?}");
    }
}
