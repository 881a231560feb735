//! Small clusters, explored completely with stateright: every order in which packets arrive, links break, processes die
//! and operators promote, within a small number of each. The cores are those that the daemon links.

mod cluster;

use replication::{DiskState, NodeSet, Quorum, Role};
use stateright::{Checker, Model, Property};

use crate::cluster::{Action, Budget, Cluster, Setting};

impl Model for Setting {
    type State = Cluster;
    type Action = Action;

    fn init_states(&self) -> Vec<Cluster> {
        vec![Cluster::new(self)]
    }

    fn actions(&self, state: &Cluster, actions: &mut Vec<Action>) {
        state.actions(actions);
    }

    fn next_state(&self, last: &Cluster, action: Action) -> Option<Cluster> {
        let mut next = last.clone();
        next.act(&action, self.prompt_disks);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("P10: a node starts from whatever a crash left", |_, state: &Cluster| {
                state.wrong.is_none()
            }),
            Property::always("P5: a good Primary has what was acknowledged", good_primary_has_all),
            Property::always("P7, P8: replicas in step are equal and lack nothing", in_step_is_equal),
            Property::always("P9: with quorum one node at a time is Primary", one_primary),
        ];
        let sometimes = [
            Property::sometimes(WRITES, |_, state: &Cluster| !state.acknowledged.is_empty()),
            Property::sometimes(WRITES_ALONE, |_, state: &Cluster| {
                (0..state.nodes.len()).any(|node| has_last_write_alone(state, node))
            }),
            Property::sometimes(SUCCESSION, |_, state: &Cluster| {
                state.acknowledged.len() > 1 && state.budget.promotions == 0
            }),
        ];
        properties.extend(sometimes.into_iter().filter(|property| self.shows.contains(&property.name)));
        properties
    }
}

fn good_primary_has_all(setting: &Setting, state: &Cluster) -> bool {
    // Without quorum a node that is cut off cannot know what the other one acknowledges.
    setting.quorum == Quorum::Off
        || (0..state.nodes.len()).all(|node| {
            let Some(core) = &state.nodes[node].core else { return true };
            let status = core.status();
            let good = status.role == Role::Primary
                && status.devices[0].disk_state == DiskState::UpToDate
                && status.devices[0].quorum
                && state.knows_its_links(node);
            !good || state.acknowledged.iter().all(|&value| state.has(state.nodes[node].value, value))
        })
}

fn in_step_is_equal(_: &Setting, state: &Cluster) -> bool {
    let good = |node: usize| state.disk_state(node) == Some(DiskState::UpToDate);
    !state.is_quiet()
        || (0..state.nodes.len()).filter(|&one| good(one)).all(|one| {
            (0..state.nodes.len()).filter(|&other| other != one && good(other)).all(|other| {
                let value = state.nodes[one].value;
                !state.are_in_step(one, other)
                    || !state.are_in_step(other, one)
                    || value == state.nodes[other].value
                        && state.acknowledged.iter().all(|&old| state.has(value, old))
            })
        })
}

fn one_primary(setting: &Setting, state: &Cluster) -> bool {
    let primary = |&node: &usize| {
        let core = state.nodes[node].core.as_ref();
        state.knows_its_links(node)
            && core.is_some_and(|core| core.status().role == Role::Primary && core.status().devices[0].quorum)
    };
    setting.quorum == Quorum::Off || (0..state.nodes.len()).filter(primary).count() < 2
}

fn has_last_write_alone(state: &Cluster, node: usize) -> bool {
    let value = state.nodes[node].value;
    state.acknowledged.last() == Some(&value)
        && state.nodes.iter().filter(|other| other.value == value).count() == 1
}

/// Explores a model, and demands that it is wholly explored, that everything holds, and that what should happen does.
#[expect(clippy::needless_pass_by_value, reason = "the checker owns it")]
fn explore(setting: Setting, states_max: usize) {
    let began = std::time::Instant::now();
    let checker = setting.clone().checker().threads(2).target_state_count(states_max).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{states} states, depth {}, {:.0?}", checker.max_depth(), began.elapsed());
    let mut failed = Vec::new();
    for property in setting.properties() {
        let found = checker.discovery(property.name);
        match (property.expectation, found) {
            (stateright::Expectation::Sometimes, None) => failed.push(format!("{}: never", property.name)),
            (stateright::Expectation::Always, Some(path)) => {
                let actions: Vec<_> = path.clone().into_actions();
                let last = path.into_states().pop().expect("a path has states");
                let statuses: Vec<_> = last
                    .nodes
                    .iter()
                    .map(|node| node.core.as_ref().map(replication::Resource::status))
                    .collect();
                failed.push(format!(
                    "{}:\n{actions:#?}\n{statuses:#?}\nacknowledged {:?}",
                    property.name, last.acknowledged
                ));
            }
            _ => {}
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(states < states_max, "the model is too large to be explored wholly");
}

/// P1, P5, P7, P8: two replicas without quorum, whatever order their packets come in.
#[test]
fn two_replicas() {
    let budget =
        Budget { cuts: 1, meetings: 2, crashes: 0, promotions: 2, demotions: 0, writes: 2, ticks: 1 };
    let shows = &[WRITES_ALONE, SUCCESSION];
    let diskful = NodeSet(0b11);
    explore(Setting { nodes: 2, diskful, quorum: Quorum::Off, prompt_disks: true, budget, shows }, 2_000_000);
}

/// P5, P6, P10: a process of two dies between any two steps of its disk.
#[test]
fn two_replicas_and_a_crash() {
    let budget =
        Budget { cuts: 0, meetings: 1, crashes: 1, promotions: 1, demotions: 0, writes: 1, ticks: 0 };
    let shows = &[WRITES_ALONE];
    let diskful = NodeSet(0b11);
    explore(
        Setting { nodes: 2, diskful, quorum: Quorum::Off, prompt_disks: false, budget, shows },
        2_000_000,
    );
}

/// P5, P9: two replicas and a tiebreaker with quorum, two links of which break.
#[test]
fn a_tiebreaker() {
    let budget =
        Budget { cuts: 2, meetings: 0, crashes: 0, promotions: 2, demotions: 0, writes: 2, ticks: 1 };
    let shows = &[WRITES_ALONE, SUCCESSION];
    let diskful = NodeSet(0b11);
    explore(
        Setting { nodes: 3, diskful, quorum: Quorum::Majority, prompt_disks: true, budget, shows },
        400_000,
    );
}

/// P5, P9: three replicas with quorum, one link of which breaks.
#[test]
fn three_replicas() {
    let budget =
        Budget { cuts: 1, meetings: 0, crashes: 0, promotions: 1, demotions: 0, writes: 1, ticks: 0 };
    let shows = &[WRITES];
    let diskful = NodeSet(0b111);
    explore(
        Setting { nodes: 3, diskful, quorum: Quorum::Majority, prompt_disks: true, budget, shows },
        400_000,
    );
}

const WRITES: &str = "a write is acknowledged";
const WRITES_ALONE: &str = "one replica alone has what was acknowledged last";
const SUCCESSION: &str = "a second node is promoted, and both had writes acknowledged";
