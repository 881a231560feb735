//! Whether one register explains what happened to a sector.
//!
//! Every write stores a number that is never used again. So the reads of one number belong to one write, and with it
//! they form a cluster that has to happen between the latest start and the earliest end of its members. The exact
//! rule (Gibbons and Korach, "Testing shared memories", 1997): no two clusters that last may overlap, and none that
//! is a moment may lie within one that lasts. A write whose outcome is not known ends when its initiator gave it up:
//! that it happens later, after a newer one, is what P14 forbids. Zeros are no number of anyone's: for each read of
//! them it is looked whether some write of zeros explains it.

use std::collections::BTreeMap;

use crate::history::{Access, Fault, Operation};

/// A read-modify-write: it saw one number in a sector and stored another, as one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Swap {
    pub(crate) old: u64,
    pub(crate) new: u64,
}

#[derive(Clone, Debug)]
struct Cluster {
    latest_start: u64,
    earliest_end: u64,
    write: Operation,
    read: bool,
}

/// What cannot be explained of one sector, if anything.
pub(crate) fn judge_sector(operations: &[Operation], swaps: &[Swap]) -> Option<Fault> {
    let plain = |what: String| Some(Fault { abandoned: false, what });
    let mut clusters: BTreeMap<u64, Cluster> = BTreeMap::new();
    let mut zeros = Vec::new();
    let mut seen_zero: Vec<&Operation> = Vec::new();
    for operation in operations {
        match operation.access {
            Access::Write(0) => zeros.push(*operation),
            Access::Write(value) => {
                let (latest_start, earliest_end) = (operation.start, operation.end);
                clusters
                    .insert(value, Cluster { latest_start, earliest_end, write: *operation, read: false });
            }
            Access::Read(0) => seen_zero.push(operation),
            Access::Read(_) => {}
        }
    }
    for operation in operations {
        match operation.access {
            Access::Read(0) => {
                if let Some(fault) = judge_zero(operation, &clusters, &zeros) {
                    return plain(fault);
                }
            }
            Access::Read(value) => {
                let Some(cluster) = clusters.get_mut(&value) else {
                    return plain(format!("{operation:?} was never written"));
                };
                if operation.end < cluster.write.start {
                    return plain(format!("{operation:?} saw {:?} before it was sent", cluster.write));
                }
                cluster.latest_start = cluster.latest_start.max(operation.start);
                cluster.earliest_end = cluster.earliest_end.min(operation.end);
                cluster.read = true;
                let write = cluster.write;
                let within = |other: &Operation| write.end < other.start && other.end < operation.start;
                let over = zeros.iter().filter(|zero| zero.done).find(|zero| within(zero));
                if let Some(over) = over.or_else(|| seen_zero.iter().copied().find(|zero| within(zero))) {
                    let what = format!("{operation:?} saw {write:?} behind {over:?}");
                    return Some(Fault { abandoned: !write.done, what });
                }
            }
            Access::Write(_) => {}
        }
    }
    clusters.retain(|_, cluster| cluster.read || cluster.write.done);
    judge_clusters(clusters.values().cloned().collect()).or_else(|| judge_swaps(clusters, swaps))
}

/// A read-modify-write joins the cluster that it read from and the one that it began: nothing comes between.
fn judge_swaps(mut clusters: BTreeMap<u64, Cluster>, swaps: &[Swap]) -> Option<Fault> {
    if swaps.is_empty() {
        return None;
    }
    let mut joined: BTreeMap<u64, u64> = BTreeMap::new();
    for swap in swaps.iter().filter(|swap| swap.old != 0) {
        if let Some(other) = joined.insert(swap.old, swap.new) {
            let what = format!("two read-modify-writes of {}: to {other} and to {}", swap.old, swap.new);
            return Some(Fault { abandoned: false, what });
        }
    }
    // From the newest on: each takes in what it was followed by.
    for (old, new) in joined.into_iter().rev() {
        let Some(later) = clusters.remove(&new) else { continue };
        if let Some(earlier) = clusters.get_mut(&old) {
            earlier.latest_start = earlier.latest_start.max(later.latest_start);
            earlier.earliest_end = earlier.earliest_end.min(later.earliest_end);
        } else {
            clusters.insert(new, later);
        }
    }
    judge_clusters(clusters.into_values().collect())
}

fn judge_zero(read: &Operation, clusters: &BTreeMap<u64, Cluster>, discards: &[Operation]) -> Option<String> {
    let lost = clusters.values().map(|cluster| cluster.write).find(|write| {
        let explains = |discard: &&Operation| discard.end > write.start && discard.start < read.end;
        write.done && write.end < read.start && !discards.iter().any(|discard| explains(&discard))
    })?;
    Some(format!("{read:?} saw zeros behind {lost:?}"))
}

fn judge_clusters(clusters: Vec<Cluster>) -> Option<Fault> {
    let fault = |one: &Cluster, other: &Cluster, what: String| {
        Some(Fault { abandoned: !one.write.done || !other.write.done, what })
    };
    let (mut lasting, moments): (Vec<_>, Vec<_>) =
        clusters.into_iter().partition(|cluster| cluster.earliest_end < cluster.latest_start);
    lasting.sort_by_key(|cluster| cluster.earliest_end);
    for pair in lasting.windows(2) {
        if pair[1].earliest_end < pair[0].latest_start {
            let what = format!("old and new alternate: {:?} and {:?}", pair[0], pair[1]);
            return fault(&pair[0], &pair[1], what);
        }
    }
    for moment in moments {
        let at = lasting.partition_point(|cluster| cluster.earliest_end < moment.latest_start);
        if let Some(around) = at.checked_sub(1).map(|at| &lasting[at])
            && moment.earliest_end < around.latest_start
        {
            return fault(around, &moment, format!("{around:?} was seen behind {moment:?}"));
        }
    }
    None
}
