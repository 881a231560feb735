//! Generation identifiers: whose data is newer, what has to be copied, and where the data diverged.

use std::cmp::Ordering;

use crate::{
    DiskState, Generation, Lineage, NodeId, NodeState, Role, Sequence, VolumeState,
    sabotage::{Fault, planted},
};

/// The generation of data that nobody has written yet: the same for every fresh replica.
pub(crate) const DAY_ZERO: Generation = Generation(1);

/// The order of a Primary begins at a multiple of two to this power.
pub(crate) const REIGN_SHIFT: u32 = 40;

/// What two replicas of a volume do about each other, as one of them sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plan {
    /// Both are equal.
    InStep,
    /// Neither has data that is of use to the other.
    Wait,
    /// The peer copies from here.
    SyncSource(Scope),
    /// Copy from the peer.
    SyncTarget(Scope),
    /// Each has data that the other lacks.
    SplitBrain,
    /// The two have nothing in common.
    Unrelated,
}

/// What a resync copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The blocks that one of the two bitmaps has.
    Bitmap,
    /// Everything.
    Full,
}

impl Plan {
    /// The same plan as the peer sees it.
    #[must_use]
    pub const fn mirrored(self) -> Self {
        match self {
            Self::SyncSource(scope) => Self::SyncTarget(scope),
            Self::SyncTarget(scope) => Self::SyncSource(scope),
            same => same,
        }
    }
}

/// One of the two replicas, as its node told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side<'a> {
    pub(crate) node: NodeId,
    pub(crate) role: Role,
    pub(crate) knows_primary: bool,
    pub(crate) sequence: Sequence,
    pub(crate) discards: bool,
    pub(crate) replica: &'a VolumeState,
}

impl<'a> Side<'a> {
    pub(crate) fn new(node: NodeId, state: &NodeState, replica: &'a VolumeState) -> Self {
        Self {
            node,
            role: state.role,
            knows_primary: state.primary.is_some(),
            sequence: state.sequence,
            discards: state.discard_my_data,
            replica,
        }
    }

    pub(crate) fn has_disk(&self) -> bool {
        self.replica.disk != DiskState::Diskless
    }

    const fn lineage(&self) -> &Lineage {
        &self.replica.lineage
    }

    fn blank(&self) -> bool {
        self.replica.fresh || self.lineage().current == DAY_ZERO && self.replica.consistent
    }

    fn knows(&self, generation: Generation) -> bool {
        generation.0 != 0 && self.lineage().history.contains(&generation)
    }

    /// For a Primary, which reign it is: a later one began when the earlier was lost.
    fn reign(&self) -> Option<u64> {
        (self.role == Role::Primary).then_some(self.sequence.0 >> REIGN_SHIFT)
    }

    /// Among replicas of one generation, how much is known to be in it. The order is total, so that any number of
    /// nodes agree about the best.
    fn merit(&self) -> (Option<u64>, bool, bool, u8, bool, Sequence, u8) {
        let replica = self.replica;
        let completeness = match (replica.crashed, replica.was_primary, replica.lags) {
            (false, _, false) => 3,
            (true, true, _) => 2,
            (false, _, true) => 1,
            (true, false, _) => 0,
        };
        let order = u8::MAX - self.node.0;
        let outdated = replica.disk == DiskState::Outdated;
        let in_step_with_primary = self.knows_primary && replica.disk == DiskState::UpToDate;
        // A Primary that serves from another replica because its own is old is like one without a disk.
        let own = self.reign().filter(|_| !outdated);
        // Whoever is in step with a later Primary knows more than an earlier one that was cut off.
        let reign = own.max(in_step_with_primary.then_some(self.sequence.0 >> REIGN_SHIFT));
        (reign, own.is_some(), in_step_with_primary, completeness, !outdated, self.sequence, order)
    }
}

/// Decides from both ends' states. The first row of the table that applies decides.
pub(crate) fn decide(mine: &Side<'_>, theirs: &Side<'_>) -> Plan {
    let plan = decide_by_rules(mine, theirs);
    match plan {
        Plan::SplitBrain if planted(Fault::MergeSplitBrain) && mine.merit() > theirs.merit() => {
            Plan::SyncSource(FULL)
        }
        Plan::SplitBrain if planted(Fault::MergeSplitBrain) => Plan::SyncTarget(FULL),
        Plan::SyncSource(FULL) | Plan::SyncTarget(FULL)
            if planted(Fault::DiscardOther) && (mine.discards || theirs.discards) =>
        {
            plan.mirrored()
        }
        plan => plan,
    }
}

fn decide_by_rules(mine: &Side<'_>, theirs: &Side<'_>) -> Plan {
    RULES.iter().find(|rule| (rule.applies)(mine, theirs)).map_or(Plan::Unrelated, |rule| rule.plan)
}

/// Whether the data diverged and `loser` gives up what was written there.
pub(crate) fn yields<'a>(loser: &Side<'a>, winner: &Side<'a>) -> bool {
    let keeping = |side: &Side<'a>| Side { discards: false, ..*side };
    decide(&keeping(loser), &keeping(winner)) == Plan::SplitBrain
        && matches!(decide(loser, winner), Plan::SyncTarget(_))
}

/// Whether the two parted from one generation, once, so that their bitmaps tell what each wrote since.
pub(crate) fn has_common_base(one: &Side<'_>, other: &Side<'_>) -> bool {
    diverged(one, other)
}

struct Rule {
    applies: fn(&Side<'_>, &Side<'_>) -> bool,
    plan: Plan,
}

const BITMAP: Scope = Scope::Bitmap;
const FULL: Scope = Scope::Full;

const RULES: [Rule; 26] = [
    Rule { applies: |a, b| a.replica.size != b.replica.size, plan: Plan::Unrelated },
    // Nothing was ever written to either; not even by a first write that a crash cut short.
    Rule { applies: |a, b| a.blank() && b.blank() && clean(a, b), plan: Plan::InStep },
    // One of them has nothing of use, or neither has.
    Rule { applies: |a, b| !usable(a) && !usable(b), plan: Plan::Wait },
    Rule { applies: |a, b| !usable(a) && follows(a, b), plan: Plan::SyncTarget(BITMAP) },
    Rule { applies: |a, _| !usable(a), plan: Plan::SyncTarget(FULL) },
    Rule { applies: |a, b| !usable(b) && follows(b, a), plan: Plan::SyncSource(BITMAP) },
    Rule { applies: |_, b| !usable(b), plan: Plan::SyncSource(FULL) },
    // One generation: equal, but for what a stop or a loss left open.
    Rule { applies: |a, b| same(a, b) && one_reign(a, b), plan: Plan::SplitBrain },
    Rule { applies: |a, b| same(a, b) && clean(a, b), plan: Plan::InStep },
    Rule { applies: |a, b| same(a, b) && a.merit() > b.merit(), plan: Plan::SyncSource(BITMAP) },
    Rule { applies: |a, b| same(a, b) && a.merit() < b.merit(), plan: Plan::SyncTarget(BITMAP) },
    // Both went on without the other.
    Rule { applies: |a, b| diverged(a, b) && discards(a, b), plan: Plan::SyncTarget(FULL) },
    Rule { applies: |a, b| diverged(a, b) && discards(b, a), plan: Plan::SyncSource(FULL) },
    Rule { applies: |a, b| diverged(a, b), plan: Plan::SplitBrain },
    // One went on without the other, once.
    Rule { applies: |a, b| left(b, a), plan: Plan::SyncTarget(BITMAP) },
    Rule { applies: |a, b| left(a, b), plan: Plan::SyncSource(BITMAP) },
    // One of the two generations was given up, and the other end took it over all the same.
    Rule { applies: |a, b| mutual(a, b) && later(a, b).is_gt(), plan: Plan::SyncSource(FULL) },
    Rule { applies: |a, b| mutual(a, b) && later(a, b).is_lt(), plan: Plan::SyncTarget(FULL) },
    // One went on without the other, who knows how often.
    Rule { applies: |a, b| b.knows(a.lineage().current), plan: Plan::SyncTarget(FULL) },
    Rule { applies: |a, b| a.knows(b.lineage().current), plan: Plan::SyncSource(FULL) },
    // A replica that was never written to follows anyone.
    Rule { applies: |a, _| a.blank(), plan: Plan::SyncTarget(FULL) },
    Rule { applies: |_, b| b.blank(), plan: Plan::SyncSource(FULL) },
    Rule { applies: |a, b| discards(a, b), plan: Plan::SyncTarget(FULL) },
    Rule { applies: |a, b| discards(b, a), plan: Plan::SyncSource(FULL) },
    Rule { applies: |a, b| related(a, b), plan: Plan::SplitBrain },
    Rule { applies: |_, _| true, plan: Plan::Unrelated },
];

/// Whether its data is of one moment and of someone.
const fn usable(side: &Side<'_>) -> bool {
    side.replica.consistent && !side.replica.fresh
}

fn same(a: &Side<'_>, b: &Side<'_>) -> bool {
    a.lineage().current == b.lineage().current && a.lineage().current.0 != 0
}

fn one_reign(a: &Side<'_>, b: &Side<'_>) -> bool {
    a.reign().is_some() && a.reign() == b.reign()
}

const fn clean(a: &Side<'_>, b: &Side<'_>) -> bool {
    quiet(a.replica) && quiet(b.replica)
}

const fn quiet(replica: &VolumeState) -> bool {
    replica.dirty_blocks == 0 && !replica.crashed
}

/// Whether `b` began a generation without `a` while it had what `a` has.
fn left(b: &Side<'_>, a: &Side<'_>) -> bool {
    b.lineage().base == a.lineage().current && b.lineage().base.0 != 0
}

/// Whether the bitmaps tell everything that `a`, which is not usable, lacks of `b`.
fn follows(a: &Side<'_>, b: &Side<'_>) -> bool {
    !a.replica.fresh && (left(b, a) || same(a, b))
}

/// Whether each went on without the other: neither has been where the other is now.
fn diverged(a: &Side<'_>, b: &Side<'_>) -> bool {
    let (mine, theirs) = (a.lineage().base, b.lineage().base);
    let apart = !a.knows(b.lineage().current) && !b.knows(a.lineage().current);
    apart && (mine.0 != 0 && mine == theirs || left(a, b) && left(b, a))
}

fn discards(a: &Side<'_>, b: &Side<'_>) -> bool {
    a.discards && !b.discards && a.role != Role::Primary
}

fn mutual(a: &Side<'_>, b: &Side<'_>) -> bool {
    a.knows(b.lineage().current) && b.knows(a.lineage().current)
}

/// Of two replicas that know each other's generation: a Primary goes on, else the end that took the given up generation
/// over. It is later than what it began from, so a third replica that is still there, and that follows this end,
/// does not turn the order into a circle.
fn later(a: &Side<'_>, b: &Side<'_>) -> Ordering {
    let age = |side: &Side<'_>, generation| side.lineage().history.iter().position(|&old| old == generation);
    let ages = age(b, a.lineage().current).cmp(&age(a, b.lineage().current));
    a.reign().cmp(&b.reign()).then(ages).then(a.merit().cmp(&b.merit()))
}

fn related(a: &Side<'_>, b: &Side<'_>) -> bool {
    a.lineage().history.iter().any(|&generation| b.knows(generation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::VolumeNumber;

    struct End {
        role: Role,
        knows_primary: bool,
        sequence: u64,
        discards: bool,
        replica: VolumeState,
    }

    impl End {
        fn side(&self, node: u8) -> Side<'_> {
            Side {
                node: NodeId(node),
                role: self.role,
                knows_primary: self.knows_primary,
                sequence: Sequence(self.sequence),
                discards: self.discards,
                replica: &self.replica,
            }
        }
    }

    /// Every small replica: generations out of three and day zero, short histories, every flag.
    fn ends() -> Vec<End> {
        let mut ends = Vec::new();
        let lineages = [
            (0, 0, 0),
            (1, 0, 0),
            (2, 0, 0),
            (2, 0, 1),
            (2, 0, 3),
            (3, 2, 2),
            (3, 0, 2),
            (4, 2, 2),
            (5, 0, 3),
            (6, 6, 0),
        ];
        for (current, base, history) in lineages {
            for flags in 0..256_u32 {
                let flag = |bit: u32| flags & (1 << bit) != 0;
                let history = if history == 0 { Vec::new() } else { vec![Generation(history)] };
                ends.push(End {
                    role: if flag(0) { Role::Primary } else { Role::Secondary },
                    knows_primary: flag(0),
                    sequence: u64::from(flag(1)) << (REIGN_SHIFT - u32::from(current == 2)),
                    discards: flag(2),
                    replica: VolumeState {
                        volume: VolumeNumber(0),
                        size: 4096,
                        disk: if flag(4) { DiskState::UpToDate } else { DiskState::Consistent },
                        lineage: Lineage { current: Generation(current), base: Generation(base), history },
                        fresh: current == 0,
                        crashed: flag(3),
                        was_primary: flag(4),
                        lags: flag(5),
                        consistent: flag(6),
                        dirty_blocks: u64::from(flag(7)),
                        paused: false,
                    },
                });
            }
        }
        let mut grown = ends.pop().expect("there are many");
        grown.replica.size = 8192;
        ends.push(grown);
        ends
    }

    /// P8: whatever two replicas are, both ends reach mirrored plans, and every row of the table decides something.
    #[test]
    fn plans_are_mirrored_and_every_row_decides() {
        let ends = ends();
        let mut used = [false; RULES.len()];
        for one in &ends {
            for other in &ends {
                let (a, b) = (one.side(0), other.side(1));
                let plan = decide(&a, &b);
                assert_eq!(decide(&b, &a), plan.mirrored(), "{:?} and {:?}", one.replica, other.replica);
                let row = RULES.iter().position(|rule| (rule.applies)(&a, &b)).expect("the last row applies");
                used[row] = true;
            }
        }
        assert!(used.iter().all(|&used| used), "rows that never decide: {used:?}");
    }

    /// P5: a replica that is not of one moment, or was never written to, is nobody's source.
    #[test]
    fn useless_data_is_never_a_source() {
        let ends = ends();
        for one in &ends {
            for other in &ends {
                if let Plan::SyncSource(_) = decide(&one.side(0), &other.side(1)) {
                    assert!(usable(&one.side(0)), "{:?} for {:?}", one.replica, other.replica);
                }
            }
        }
    }

    /// P7: replicas of one generation rank in one order, so three of them cannot all wait for another.
    #[test]
    fn merit_is_a_total_order() {
        let ends: Vec<_> =
            ends().into_iter().filter(|end| end.replica.lineage.current.0 == 2).step_by(5).collect();
        for (first, a) in ends.iter().enumerate() {
            for (second, b) in ends.iter().enumerate().skip(first) {
                for c in ends.iter().skip(second) {
                    let (a, b, c) = (a.side(0), b.side(1), c.side(2));
                    assert!(!(a.merit() > b.merit() && b.merit() > c.merit() && c.merit() > a.merit()));
                    assert!(a.merit() != b.merit(), "equal merits");
                }
            }
        }
    }

    /// P7: a replica took over a generation that its Primary gave up, a third one has the generation before. Whatever
    /// they lived through since, they do not wait for each other in a circle.
    #[test]
    fn a_given_up_generation_makes_no_circle() {
        let lineage = |current, base, history: &[u64]| Lineage {
            current: Generation(current),
            base: Generation(base),
            history: history.iter().copied().map(Generation).collect(),
        };
        let (stayed, gave_up) = (lineage(8, 0, &[1]), lineage(8, 0, &[1, 9]));
        let (took_from_stayed, took_from_gave_up) = (lineage(9, 8, &[8, 1]), lineage(9, 0, &[8, 1]));
        let ends: Vec<_> = ends()
            .into_iter()
            .filter(|end| end.replica.lineage.current.0 == 2 && end.role == Role::Secondary)
            .filter(|end| end.replica.consistent && !end.discards && end.replica.dirty_blocks == 0)
            .collect();
        let plan = |a: (&End, u8, &Lineage), b: (&End, u8, &Lineage)| {
            let replica = |end: &End, lineage: &Lineage| VolumeState {
                lineage: lineage.clone(),
                ..end.replica.clone()
            };
            let (first, second) = (replica(a.0, a.2), replica(b.0, b.2));
            let (a, b) = (a.0.side(a.1), b.0.side(b.1));
            decide(&Side { replica: &first, ..a }, &Side { replica: &second, ..b })
        };
        for one in &ends {
            for two in &ends {
                for three in &ends {
                    let plans = [
                        plan((one, 0, &stayed), (two, 1, &took_from_stayed)),
                        plan((two, 1, &took_from_gave_up), (three, 2, &gave_up)),
                        plan((three, 2, &gave_up), (one, 0, &stayed)),
                    ];
                    let source = plans.iter().all(|plan| matches!(plan, Plan::SyncSource(_)));
                    let target = plans.iter().all(|plan| matches!(plan, Plan::SyncTarget(_)));
                    assert!(!source && !target, "{plans:?}");
                }
            }
        }
    }
}
