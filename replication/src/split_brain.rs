//! What two nodes do by themselves about a split brain, where the configuration says so: DRBD's `after-sb-0pri`,
//! `after-sb-1pri` and `after-sb-2pri`, for no, one and two Primaries at the moment when they meet again.
//!
//! A policy that cannot tell decides nothing: both stand alone, and an operator does.

use std::cmp::Ordering;

use crate::{
    NodeId, NodeState, Plan, Resource, Role,
    generation::{REIGN_SHIFT, Side, decide, has_common_base},
    sabotage::{Fault, planted},
};

/// What decides where neither is Primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WithoutPrimary {
    /// Nothing.
    #[default]
    Disconnect,
    /// The side whose last Primary was promoted later gives up.
    DiscardYoungerPrimary,
    /// The side whose last Primary was promoted earlier gives up.
    DiscardOlderPrimary,
    /// The side on which nothing was written gives up; of two such, the node with the higher id.
    DiscardZeroChanges,
    /// The side on which less was written gives up; of two equal ones, the node with the higher id.
    DiscardLeastChanges,
}

/// What decides where one of the two is Primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WithOnePrimary {
    /// Nothing.
    #[default]
    Disconnect,
    /// The Secondary gives up where the policy without a Primary says the same.
    Consensus,
    /// The Secondary gives up.
    DiscardSecondary,
    /// The policy without a Primary; a Primary that it names is demoted first.
    CallPriLost,
}

/// What decides where both are Primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WithTwoPrimaries {
    /// Nothing.
    #[default]
    Disconnect,
    /// The policy without a Primary; the Primary that it names is demoted first.
    CallPriLost,
}

/// The policies of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AfterSplitBrain {
    /// `after-sb-0pri`
    pub without_primary: WithoutPrimary,
    /// `after-sb-1pri`
    pub with_one_primary: WithOnePrimary,
    /// `after-sb-2pri`
    pub with_two_primaries: WithTwoPrimaries,
}

/// Whose data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loser {
    Here,
    There,
}

impl Loser {
    const fn other(self) -> Self {
        match self {
            Self::Here => Self::There,
            Self::There => Self::Here,
        }
    }
}

/// What a side is judged by.
#[derive(Clone, Copy, Debug)]
struct Facts {
    node: NodeId,
    primary: bool,
    /// Counts the promotions, over all nodes.
    reign: u64,
    /// Blocks that it wrote since the two were in step; an upper bound after a crash.
    changed: u64,
}

impl AfterSplitBrain {
    /// Every combination, in the order of its number.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let both = WithOnePrimary::ALL.iter().flat_map(|one| WithTwoPrimaries::ALL.map(|two| (*one, two)));
        WithoutPrimary::ALL.into_iter().flat_map(move |without_primary| {
            both.clone().map(move |(with_one_primary, with_two_primaries)| Self {
                without_primary,
                with_one_primary,
                with_two_primaries,
            })
        })
    }

    fn verdict(self, mine: Facts, theirs: Facts) -> Option<Loser> {
        let asked = self.without_primary.verdict(mine, theirs);
        let one = self.with_one_primary;
        match (mine.primary, theirs.primary) {
            (false, false) => asked,
            (true, false) => one.verdict(asked, Loser::There),
            (false, true) => one.verdict(asked, Loser::Here),
            (true, true) => asked.filter(|_| self.with_two_primaries == WithTwoPrimaries::CallPriLost),
        }
    }

    /// The key that decides between two nodes, and what it says.
    fn asked(self, primaries: usize) -> String {
        let asked = match primaries {
            0 => format!("after-sb-0pri = \"{}\"", self.without_primary.name()),
            1 => format!("after-sb-1pri = \"{}\"", self.with_one_primary.name()),
            _ => format!("after-sb-2pri = \"{}\"", self.with_two_primaries.name()),
        };
        let further = primaries == 1
            && matches!(self.with_one_primary, WithOnePrimary::Consensus | WithOnePrimary::CallPriLost)
            || primaries == 2 && self.with_two_primaries == WithTwoPrimaries::CallPriLost;
        if further {
            format!("{asked} with after-sb-0pri = \"{}\"", self.without_primary.name())
        } else {
            asked
        }
    }
}

impl WithoutPrimary {
    /// Every policy.
    pub const ALL: [Self; 5] = [
        Self::Disconnect,
        Self::DiscardYoungerPrimary,
        Self::DiscardOlderPrimary,
        Self::DiscardZeroChanges,
        Self::DiscardLeastChanges,
    ];

    /// DRBD's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disconnect => "disconnect",
            Self::DiscardYoungerPrimary => "discard-younger-primary",
            Self::DiscardOlderPrimary => "discard-older-primary",
            Self::DiscardZeroChanges => "discard-zero-changes",
            Self::DiscardLeastChanges => "discard-least-changes",
        }
    }

    fn verdict(self, mine: Facts, theirs: Facts) -> Option<Loser> {
        // The lesser one gives up.
        let order = match self {
            Self::Disconnect => Ordering::Equal,
            Self::DiscardYoungerPrimary => theirs.reign.cmp(&mine.reign),
            Self::DiscardOlderPrimary => mine.reign.cmp(&theirs.reign),
            Self::DiscardZeroChanges if mine.changed > 0 && theirs.changed > 0 => Ordering::Equal,
            Self::DiscardZeroChanges | Self::DiscardLeastChanges => {
                mine.changed.cmp(&theirs.changed).then(theirs.node.cmp(&mine.node))
            }
        };
        match order {
            Ordering::Less => Some(Loser::Here),
            Ordering::Equal => None,
            Ordering::Greater => Some(Loser::There),
        }
    }
}

impl WithOnePrimary {
    /// Every policy.
    pub const ALL: [Self; 4] = [Self::Disconnect, Self::Consensus, Self::DiscardSecondary, Self::CallPriLost];

    /// DRBD's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disconnect => "disconnect",
            Self::Consensus => "consensus",
            Self::DiscardSecondary => "discard-secondary",
            Self::CallPriLost => "call-pri-lost-after-sb",
        }
    }

    fn verdict(self, asked: Option<Loser>, secondary: Loser) -> Option<Loser> {
        match self {
            Self::Disconnect => None,
            Self::Consensus => asked.filter(|loser| *loser == secondary),
            Self::DiscardSecondary => Some(secondary),
            Self::CallPriLost => asked,
        }
    }
}

impl WithTwoPrimaries {
    /// Every policy.
    pub const ALL: [Self; 2] = [Self::Disconnect, Self::CallPriLost];

    /// DRBD's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disconnect => "disconnect",
            Self::CallPriLost => "call-pri-lost-after-sb",
        }
    }
}

/// What the policies of a connection make of a split brain.
#[derive(Debug)]
pub(crate) struct Settled {
    /// The two states as the decision takes them.
    pub(crate) mine: NodeState,
    pub(crate) theirs: NodeState,
    pub(crate) loser: Option<Loser>,
    /// What was asked, in words.
    pub(crate) policy: String,
}

impl Resource {
    /// Asks the policies about what two nodes told each other. Where there is no split brain, or no verdict that holds for
    /// every volume, nothing changes.
    pub(crate) fn settle_split_brain(&self, node: NodeId, mine: &NodeState, theirs: &NodeState) -> Settled {
        let primaries = [mine, theirs].iter().filter(|state| state.role == Role::Primary).count();
        let policies = mine.after_split_brain;
        let undecided =
            |policy: String| Settled { mine: mine.clone(), theirs: theirs.clone(), loser: None, policy };
        if policies != theirs.after_split_brain {
            return undecided("the two nodes have different after-sb policies".to_owned());
        }
        let policy = policies.asked(primaries);
        let diverged: Vec<usize> = self.plans(node, mine, theirs, |plan| plan == Plan::SplitBrain);
        let common = |&volume: &usize| {
            let (ours, other) = (&mine.volumes[volume], &theirs.volumes[volume]);
            has_common_base(&Side::new(self.config.node, mine, ours), &Side::new(node, theirs, other))
        };
        if !diverged.iter().all(common) {
            return undecided("no policy decides where the two parted more than once".to_owned());
        }
        let facts = |node: NodeId, state: &NodeState| Facts {
            node,
            primary: state.role == Role::Primary,
            reign: state.sequence.0 >> REIGN_SHIFT,
            changed: diverged.iter().map(|&volume| state.volumes[volume].dirty_blocks).sum(),
        };
        let verdict = policies.verdict(facts(self.config.node, mine), facts(node, theirs));
        let verdict = if planted(Fault::KeepLoser) { verdict.map(Loser::other) } else { verdict };
        let Some(loser) = verdict.filter(|_| !diverged.is_empty()) else { return undecided(policy) };
        let (mut here, mut there) = (mine.clone(), theirs.clone());
        let (name, gives_up, keeps) = match loser {
            Loser::Here => (self.config.node, &mut here, &mut there),
            Loser::There => (node, &mut there, &mut here),
        };
        (gives_up.discard_my_data, keeps.discard_my_data) = (true, false);
        gives_up.role = Role::Secondary;
        gives_up.primary = gives_up.primary.filter(|primary| *primary != name);
        // All volumes in one direction: they have one order.
        let against = self.plans(node, &here, &there, |plan| match plan {
            Plan::SyncSource(_) => loser == Loser::Here,
            Plan::SyncTarget(_) => loser == Loser::There,
            Plan::SplitBrain | Plan::Unrelated => true,
            Plan::InStep | Plan::Wait => false,
        });
        if against.is_empty() {
            Settled { mine: here, theirs: there, loser: Some(loser), policy }
        } else {
            undecided(format!("{policy}, but not every volume has the newer data on the same side"))
        }
    }

    /// The volumes whose plan is such a one.
    fn plans(
        &self,
        node: NodeId,
        mine: &NodeState,
        theirs: &NodeState,
        is: impl Fn(Plan) -> bool,
    ) -> Vec<usize> {
        let volumes = mine.volumes.iter().zip(&theirs.volumes).enumerate();
        let such = volumes.filter(|(_, (ours, other))| {
            let (ours, other) = (Side::new(self.config.node, mine, ours), Side::new(node, theirs, other));
            ours.has_disk() && other.has_disk() && is(decide(&ours, &other))
        });
        such.map(|(at, _)| at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides(node: u8) -> Vec<Facts> {
        let mut sides = Vec::new();
        for primary in [false, true] {
            for reign in 1..=2 {
                for changed in 0..=2 {
                    sides.push(Facts { node: NodeId(node), primary, reign, changed });
                }
            }
        }
        sides
    }

    /// P8: whatever the two are and whatever is configured, both ends name the same side; and each policy does what its
    /// name says.
    #[test]
    fn both_ends_name_the_same_loser() {
        let mut decided = 0;
        for policies in AfterSplitBrain::all() {
            for mine in sides(0) {
                for theirs in sides(1) {
                    let verdict = policies.verdict(mine, theirs);
                    let mirrored = verdict.map(Loser::other);
                    assert_eq!(policies.verdict(theirs, mine), mirrored, "{policies:?} {mine:?} {theirs:?}");
                    let Some(loser) = verdict else { continue };
                    decided += 1;
                    let (gives_up, keeps) = match loser {
                        Loser::Here => (mine, theirs),
                        Loser::There => (theirs, mine),
                    };
                    does_what_its_name_says(policies, gives_up, keeps);
                }
            }
        }
        assert!(decided > 1000, "{decided}");
    }

    fn does_what_its_name_says(policies: AfterSplitBrain, gives_up: Facts, keeps: Facts) {
        let without = || match policies.without_primary {
            WithoutPrimary::Disconnect => false,
            WithoutPrimary::DiscardYoungerPrimary => gives_up.reign > keeps.reign,
            WithoutPrimary::DiscardOlderPrimary => gives_up.reign < keeps.reign,
            WithoutPrimary::DiscardZeroChanges => gives_up.changed == 0,
            WithoutPrimary::DiscardLeastChanges => gives_up.changed <= keeps.changed,
        };
        let right = match (gives_up.primary, keeps.primary) {
            (false, false) => without(),
            (true, true) => policies.with_two_primaries == WithTwoPrimaries::CallPriLost && without(),
            (lost, _) => match policies.with_one_primary {
                WithOnePrimary::Disconnect => false,
                WithOnePrimary::Consensus => !lost && without(),
                WithOnePrimary::DiscardSecondary => !lost,
                WithOnePrimary::CallPriLost => without(),
            },
        };
        assert!(right, "{policies:?}: {gives_up:?} gives up, {keeps:?} keeps");
    }
}
