//! How long things take: counters in memory that one thread adds to and a scrape reads.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use replication::NodeId;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Returns bytes.
    Read,
    /// Stores bytes.
    Write,
    /// Makes stored bytes stable.
    Flush,
    /// Gives bytes back, or makes them zeros.
    Discard,
}

/// A histogram of times, in steps of a factor of two from 16 µs to 8.4 s.
///
/// One thread records: a resource lives on one shard. With two, counts may be lost, and nothing else.
#[derive(Debug, Default)]
pub struct Histogram {
    /// How many times were at most the bound of this place and above that of the place before; the last has no bound.
    counts: [AtomicU64; BOUNDS + 1],
    /// All times together, in nanoseconds.
    nanos: AtomicU64,
}

/// The times of one way that commands go, by operation.
#[derive(Debug, Default)]
pub struct Leg([Histogram; OPERATIONS.len()]);

/// The times of a resource.
#[derive(Debug)]
pub struct Latencies {
    /// The resource's name.
    pub(super) resource: String,
    /// From the arrival of an initiator's command to its answer.
    pub initiator: Leg,
    /// From the start of an operation of the local disk to its end.
    pub disk: Leg,
    peers: Vec<(NodeId, Leg)>,
}

impl Histogram {
    /// Adds a time.
    pub fn record(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // The number of doublings of the first bound that reach the time.
        let doublings =
            (nanos.saturating_sub(1) >> FIRST_SHIFT).checked_ilog2().map_or(0, |log| log as usize + 1);
        add(&self.counts[doublings.min(BOUNDS)], 1);
        add(&self.nanos, nanos);
    }

    /// How many times were recorded at most each of [`bounds`], all of them last; and their sum in nanoseconds.
    pub(super) fn read(&self) -> ([u64; BOUNDS + 1], u64) {
        let mut sum = 0_u64;
        let cumulative = std::array::from_fn(|place| {
            sum = sum.saturating_add(self.counts[place].load(Relaxed));
            sum
        });
        (cumulative, self.nanos.load(Relaxed))
    }
}

impl Leg {
    /// Adds the time of an operation.
    pub fn record(&self, operation: Operation, time: Duration) {
        self.0[operation as usize].record(time);
    }

    /// The histogram of each operation with its name.
    pub(super) fn operations(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        OPERATIONS.into_iter().zip(&self.0)
    }
}

impl Latencies {
    /// Empty ones, for a resource and its peers.
    #[must_use]
    pub fn new(resource: &str, peers: impl IntoIterator<Item = NodeId>) -> Self {
        Self {
            resource: resource.to_owned(),
            initiator: Leg::default(),
            disk: Leg::default(),
            peers: peers.into_iter().map(|peer| (peer, Leg::default())).collect(),
        }
    }

    /// From sending a peer a change or a flush until its disk has completed it. `None` where there is no such peer.
    #[must_use]
    pub fn peer(&self, peer: NodeId) -> Option<&Leg> {
        self.peers().find(|(known, _)| *known == peer).map(|(_, leg)| leg)
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = (NodeId, &Leg)> {
        self.peers.iter().map(|(peer, leg)| (*peer, leg))
    }
}

/// The upper bounds of a histogram's places, in nanoseconds.
pub(super) fn bounds() -> impl Iterator<Item = u64> {
    (0..BOUNDS).map(|place| 1 << (FIRST_SHIFT as usize + place))
}

/// One thread writes, so a load and a store do, and no bus is locked on the path of an I/O.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
}

/// In the order of [`Operation`].
const OPERATIONS: [&str; 4] = ["read", "write", "flush", "discard"];

/// The first bound is 2^14 ns, a little over 16 µs.
const FIRST_SHIFT: u32 = 14;

/// 2^14 ns to 2^33 ns, which is 8.6 s.
const BOUNDS: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// A time is counted in the first place whose bound it does not exceed.
    #[test]
    fn bounds_are_inclusive() {
        for (place, bound) in bounds().enumerate() {
            for (nanos, expected) in [(bound - 1, place), (bound, place), (bound + 1, place + 1)] {
                let histogram = Histogram::default();
                histogram.record(Duration::from_nanos(nanos));
                let (cumulative, sum) = histogram.read();
                let first = cumulative.iter().position(|&count| count == 1).expect("it is counted");
                assert_eq!((first, sum), (expected, nanos), "{nanos}");
            }
        }
        let histogram = Histogram::default();
        histogram.record(Duration::ZERO);
        histogram.record(Duration::MAX);
        let (cumulative, _) = histogram.read();
        assert_eq!((cumulative[0], cumulative[BOUNDS - 1], cumulative[BOUNDS]), (1, 1, 2));
    }

    #[test]
    fn each_leg_and_operation_has_its_own() {
        let latencies = Latencies::new("db", [NodeId(1)]);
        latencies.disk.record(Operation::Flush, Duration::from_millis(1));
        latencies.peer(NodeId(1)).expect("it is there").record(Operation::Write, Duration::from_millis(1));
        assert!(latencies.peer(NodeId(2)).is_none());
        let counts =
            |leg: &Leg| leg.operations().map(|(_, histogram)| histogram.read().0[BOUNDS]).collect::<Vec<_>>();
        assert_eq!(counts(&latencies.initiator), [0, 0, 0, 0]);
        assert_eq!(counts(&latencies.disk), [0, 0, 1, 0]);
        assert_eq!(counts(latencies.peer(NodeId(1)).expect("it is there")), [0, 1, 0, 0]);
    }
}
