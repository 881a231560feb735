//! Who may write. Everything that decides it goes through [`Arbiter`], so that another one, a consensus engine for
//! example, can take its place without a change to the path of a write.

use crate::{NodeId, NodeSet, Quorum};

/// Who is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Electorate {
    /// The nodes with a disk for the volume.
    pub(crate) diskful: NodeSet,
    /// The nodes without one.
    pub(crate) tiebreakers: NodeSet,
    /// This node and those it is connected to.
    pub(crate) present: NodeSet,
    /// Those of them whose replica can be asked what it has.
    pub(crate) replicas: NodeSet,
    /// Whether this node had quorum until now, without a break.
    pub(crate) had_quorum: bool,
}

/// Decides who may write and start a generation.
pub(crate) trait Arbiter {
    /// Whether this node may, with those who are there.
    fn allows(&self, electorate: &Electorate) -> bool;

    /// Whether the newest data must be among the replicas that are there. The witnesses are the nodes whose replicas
    /// were part of the latest generation that they know, to the end.
    fn hold_newest(&self, electorate: &Electorate, _witnesses: NodeSet) -> bool {
        electorate.diskful.intersection(electorate.replicas) == electorate.diskful
    }

    /// Whether a replica that lost quorum may be behind from then on.
    fn doubts(&self) -> bool {
        false
    }
}

/// Whoever has the data may write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalRule;

impl Arbiter for LocalRule {
    fn allows(&self, _: &Electorate) -> bool {
        true
    }
}

/// More than half of the diskful nodes; at exactly half, the majority of the tiebreakers keeps what was there but
/// never brings it back, because it has no data to compare with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Majority;

impl Arbiter for Majority {
    fn allows(&self, electorate: &Electorate) -> bool {
        let here = electorate.diskful.intersection(electorate.present).len();
        let breakers = electorate.tiebreakers.intersection(electorate.present).len();
        let tie = here * 2 == electorate.diskful.len() && breakers * 2 > electorate.tiebreakers.len();
        here * 2 > electorate.diskful.len() || tie && electorate.had_quorum
    }

    fn hold_newest(&self, electorate: &Electorate, witnesses: NodeSet) -> bool {
        let everyone = LocalRule.hold_newest(electorate, witnesses);
        everyone || electorate.diskful.intersection(witnesses).len() * 2 > electorate.diskful.len()
    }

    fn doubts(&self) -> bool {
        true
    }
}

/// The arbiter of a setting.
pub(crate) fn arbiter(quorum: Quorum) -> &'static dyn Arbiter {
    match quorum {
        Quorum::Off => &LocalRule,
        Quorum::Majority => &Majority,
    }
}

/// The diskless nodes among `nodes`.
pub(crate) fn tiebreakers(nodes: impl Iterator<Item = NodeId>, diskful: NodeSet) -> NodeSet {
    nodes.filter(|&node| !diskful.contains(node)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn electorate(diskful: u32, tiebreakers: u32, present: u32, had_quorum: bool) -> Electorate {
        Electorate {
            diskful: NodeSet(diskful),
            tiebreakers: NodeSet(tiebreakers),
            present: NodeSet(present),
            replicas: NodeSet(present),
            had_quorum,
        }
    }

    /// P9: of two groups of nodes that do not see each other, at most one gains quorum; every split of every
    /// cluster of up to five nodes.
    #[test]
    fn two_groups_never_both_gain_quorum() {
        for nodes in 1..=5 {
            let all = (1_u32 << nodes) - 1;
            for diskful in 1..=all {
                for group in 0..=all {
                    let gains =
                        |present| Majority.allows(&electorate(diskful, all & !diskful, present, false));
                    assert!(!(gains(group) && gains(all & !group)), "{diskful:b} cut at {group:b}");
                    let keeps =
                        |present| Majority.allows(&electorate(diskful, all & !diskful, present, true));
                    assert!(!(keeps(group) && keeps(all & !group)), "{diskful:b} cut at {group:b}, kept");
                }
            }
        }
    }

    /// A tiebreaker keeps quorum but does not bring it back: it cannot tell who is newer.
    #[test]
    fn a_tiebreaker_only_keeps() {
        assert!(Majority.allows(&electorate(0b011, 0b100, 0b101, true)));
        assert!(!Majority.allows(&electorate(0b011, 0b100, 0b101, false)));
        assert!(!Majority.hold_newest(&electorate(0b011, 0b100, 0b101, true), NodeSet(0b101)));
        assert!(
            LocalRule.allows(&electorate(0b11, 0, 0b01, false))
                && !Majority.allows(&electorate(0b11, 0, 0b01, true))
        );
    }
}
