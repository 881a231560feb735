//! Connections whose other end has not proved itself, or never will: their number is bounded, in all and for each
//! address.

use std::{collections::BTreeMap, net::IpAddr};

use tokio::task::AbortHandle;

/// The tasks of such connections, the oldest first. Where a bound is reached, an old one makes room for a new one, so
/// that connections that say nothing keep nobody out who goes ahead.
#[derive(Debug)]
pub struct HalfOpen {
    calls: Vec<(IpAddr, AbortHandle)>,
    max: usize,
    max_each: usize,
}

impl HalfOpen {
    /// None yet. There may be `max` of them in all, and `max_each` from one address.
    #[must_use]
    pub const fn new(max: usize, max_each: usize) -> Self {
        Self { calls: Vec::new(), max, max_each }
    }

    /// Adds the task of a connection from `address`. It gives its place back by ending.
    pub fn add(&mut self, address: IpAddr, task: AbortHandle) {
        self.calls.retain(|(_, call)| !call.is_finished());
        if let Some(oldest) = self.in_the_way_of(address) {
            self.calls.remove(oldest).1.abort();
        }
        self.calls.push((address, task));
    }

    /// The oldest of the same address, where that has all it may have; where everything is taken, the oldest of the
    /// address that has the most, so that a flood from one address ends at that address.
    fn in_the_way_of(&self, address: IpAddr) -> Option<usize> {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for (from, _) in &self.calls {
            *counts.entry(*from).or_default() += 1;
        }
        let crowded = if counts.get(&address).is_some_and(|&count| count >= self.max_each) {
            address
        } else if self.calls.len() >= self.max {
            *counts.iter().max_by_key(|&(_, &count)| count)?.0
        } else {
            return None;
        };
        self.calls.iter().position(|&(from, _)| from == crowded)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, net::Ipv4Addr};

    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    async fn open(tasks: &[JoinHandle<()>]) -> Vec<usize> {
        yield_now().await;
        (0..tasks.len()).filter(|&number| !tasks[number].is_finished()).collect()
    }

    /// P13: a flood from one address costs that address its oldest connections, and nobody else's.
    #[tokio::test(flavor = "current_thread")]
    async fn a_flood_ends_at_its_address() {
        let [flood, quiet, third] = [1, 2, 3].map(|last| IpAddr::from(Ipv4Addr::new(10, 0, 0, last)));
        let mut half_open = HalfOpen::new(4, 3);
        let mut tasks = Vec::new();
        for address in [quiet, flood, flood, flood, flood, third] {
            let task = tokio::spawn(pending());
            half_open.add(address, task.abort_handle());
            tasks.push(task);
        }
        // The second went for the bound of its address, the third for that of all.
        assert_eq!(open(&tasks).await, [0, 3, 4, 5]);
    }

    /// A connection that ended has no place any more.
    #[tokio::test(flavor = "current_thread")]
    async fn an_end_makes_room() {
        let address = IpAddr::from(Ipv4Addr::LOCALHOST);
        let mut half_open = HalfOpen::new(1, 1);
        let ended = tokio::spawn(async {});
        half_open.add(address, ended.abort_handle());
        yield_now().await;
        let open = tokio::spawn(pending::<()>());
        half_open.add(address, open.abort_handle());
        assert_eq!(half_open.calls.len(), 1);
        assert!(ended.await.is_ok() && !open.is_finished());
    }
}
