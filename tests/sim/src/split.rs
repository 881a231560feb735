//! Split brain: both nodes are promoted while they are apart (P8).

use std::cmp::Ordering;

use replication::{
    AfterSplitBrain, ConnectionState, Resource, Role, Verb, WithOnePrimary, WithTwoPrimaries, WithoutPrimary,
};

use crate::{
    history::{Access, Operation},
    verdict::{Broken, Promise},
    world::World,
};

impl World {
    /// Both nodes go on alone. They must find that out when they meet, and leave everything as it is; then the operator
    /// gives up one side, whose data becomes that of the other, byte for byte.
    pub(crate) fn split_brain(&mut self) -> Result<(), Broken> {
        self.quiet = true;
        for node in [0, 1] {
            self.clients[node].node = node;
        }
        self.settle_whole("before the split")?;
        let first = self.random.index(2);
        self.make_primary(first)?;
        let work = self.random.between(30_000, 300_000);
        self.play(work);
        for _ in 0..=self.random.index(2) {
            self.part_and_write(first)?;
            if let Some(loser) = self.wanted_loser() {
                self.settle_by_policy(loser)?;
            } else {
                self.meet_and_refuse()?;
                self.resolve()?;
            }
        }
        self.sound()
    }

    /// Waits until both are connected and good.
    fn settle_whole(&mut self, when: &str) -> Result<(), Broken> {
        for _ in 0..100 {
            self.play(20_000);
            self.sound()?;
            if self.is_whole() {
                return Ok(());
            }
        }
        Err(Broken::new(Promise::P7, format!("no convergence {when}: {:#?}", self.statuses())))
    }

    fn role(&self, node: usize) -> Option<Role> {
        self.nodes[node].core.as_ref().map(|core| core.status().role)
    }

    fn make_primary(&mut self, node: usize) -> Result<(), Broken> {
        for _ in 0..50 {
            if self.role(node) == Some(Role::Primary) {
                return Ok(());
            }
            // Alone after a crash, a Secondary does not know whether its data is the newest: the operator does.
            self.ask(node, Verb::Primary { force: true });
            self.play(20_000);
            self.sound()?;
        }
        Err(Broken::new(Promise::P7, format!("node {node} is not promoted: {:#?}", self.statuses())))
    }

    /// Everyone finishes, and what was done so far is judged.
    fn pause(&mut self) -> Result<(), Broken> {
        self.draining = true;
        self.play(950_000);
        self.sound()?;
        if self.clients.iter().any(|client| client.busy.is_some()) {
            return Err(Broken::new(Promise::P11, format!("commands wait: {:#?}", self.statuses())));
        }
        Ok(())
    }

    fn go_on(&mut self) {
        self.draining = false;
        for client in 0..self.clients.len() {
            self.resume(client);
        }
    }

    fn part_and_write(&mut self, first: usize) -> Result<(), Broken> {
        self.pause()?;
        self.judge()?;
        self.turns += 1;
        self.faults += 1;
        // A node that comes back from a crash knows nothing of a disconnect, and a policy would decide at once.
        let by_hand = self.scenario.after_split_brain == AfterSplitBrain::default();
        if !by_hand || self.random.chance(50) {
            self.block(0, 1);
            self.block(1, 0);
        } else {
            let node = self.random.index(2);
            self.ask(node, Verb::Disconnect { peer: None });
        }
        self.play(100_000);
        self.other_history = Some(self.history.clone());
        self.promotions = [0; 2];
        self.make_primary(1 - first)?;
        self.make_primary(first)?;
        self.go_on();
        for node in [0, 1] {
            // Each side has to have written something that the other one has not.
            let done = |world: &mut Self| world.history_of(node).acknowledged;
            let before = done(self);
            for _ in 0..200 {
                self.play(10_000);
                if done(self) > before + 2 {
                    break;
                }
            }
            let more = self.random.between(20_000, 300_000);
            self.play(more);
        }
        self.crash_sometimes()?;
        self.pause()
    }

    /// While they are apart, or do not talk to each other, one of them dies and comes back.
    fn crash_sometimes(&mut self) -> Result<(), Broken> {
        if self.random.chance(40) {
            let node = self.random.index(2);
            self.faults += 1;
            self.take_down(node, false);
            self.play(20_000);
            self.start(node);
            self.play(50_000);
            if self.random.chance(50) {
                self.make_primary(node)?;
            }
        }
        self.step_down_sometimes();
        self.sound()
    }

    /// When they meet again, none, one or both of them are Primary.
    fn step_down_sometimes(&mut self) {
        for node in [0, 1] {
            if self.random.chance(50) {
                self.ask(node, Verb::Secondary { force: true });
            }
        }
    }

    /// Whose data the policies give up, from what is seen from outside; `None` where nobody's.
    fn wanted_loser(&self) -> Option<usize> {
        let policies = self.scenario.after_split_brain;
        let mut written = [0; 2];
        for node in [0, 1] {
            let status = self.nodes[node].core.as_ref().map(Resource::status);
            let devices = status.into_iter().flat_map(|status| status.connections[0].peer_devices.clone());
            written[node] = devices.map(|device| device.out_of_sync).sum();
        }
        let least = match written[0].cmp(&written[1]) {
            Ordering::Less => Some(0),
            // Of two equal ones, the node with the higher id gives up.
            Ordering::Equal | Ordering::Greater => Some(1),
        };
        // Promoted as often since they were together, nobody can tell.
        let younger = match self.promotions[0].cmp(&self.promotions[1]) {
            Ordering::Less => Some(1),
            Ordering::Equal => None,
            Ordering::Greater => Some(0),
        };
        let without = match policies.without_primary {
            WithoutPrimary::Disconnect => None,
            WithoutPrimary::DiscardZeroChanges if written.iter().all(|&written| written > 0) => None,
            WithoutPrimary::DiscardZeroChanges | WithoutPrimary::DiscardLeastChanges => least,
            WithoutPrimary::DiscardYoungerPrimary => younger,
            WithoutPrimary::DiscardOlderPrimary => younger.map(|younger| 1 - younger),
        };
        let primaries: Vec<usize> =
            [0, 1].into_iter().filter(|&node| self.role(node) == Some(Role::Primary)).collect();
        match primaries[..] {
            [] => without,
            [primary] => match policies.with_one_primary {
                WithOnePrimary::Disconnect => None,
                WithOnePrimary::Consensus => without.filter(|&loser| loser != primary),
                WithOnePrimary::DiscardSecondary => Some(1 - primary),
                WithOnePrimary::CallPriLost => without,
            },
            _ => without.filter(|_| policies.with_two_primaries == WithTwoPrimaries::CallPriLost),
        }
    }

    /// They see each other again, and a policy decides: the loser becomes what the other one is, which loses nothing.
    fn settle_by_policy(&mut self, loser: usize) -> Result<(), Broken> {
        let winner = 1 - loser;
        let (wanted, role) = (self.image(winner), self.role(winner));
        if wanted == self.image(loser) {
            return Err(Broken::new(Promise::P8, "nothing was written apart"));
        }
        let other = self.other_history.take();
        if let (1, Some(other)) = (winner, other) {
            self.history = other;
        }
        self.turns += 1;
        self.blocked.clear();
        self.connect_both([false, false]);
        self.settle_whole("after a policy gave one side up")?;
        if self.role(winner) != role || self.role(loser) != Some(Role::Secondary) {
            let what = format!("the policy gave up node {loser}: {:#?}", self.statuses());
            return Err(Broken::new(Promise::P8, what));
        }
        let taken = self.image(loser);
        if self.image(winner) != wanted || taken != wanted {
            return Err(Broken::new(Promise::P8, format!("node {loser} is not what node {winner} was")));
        }
        self.judge_survivor(&wanted)?;
        self.make_primary(winner)?;
        self.clients[loser].node = winner;
        self.go_on();
        self.play(30_000);
        self.pause()?;
        self.clients[loser].node = loser;
        self.go_on();
        self.play(30_000);
        Ok(())
    }

    /// They see each other again: both say so, and nobody changes anything.
    fn meet_and_refuse(&mut self) -> Result<(), Broken> {
        let before = [self.image(0), self.image(1)];
        if before[0] == before[1] {
            return Err(Broken::new(Promise::P8, "nothing was written apart"));
        }
        self.blocked.clear();
        // A node that dies is no Primary any more: then another policy is asked.
        let rounds = if self.scenario.after_split_brain == AfterSplitBrain::default() { 3 } else { 2 };
        for round in 0..rounds {
            match round {
                0 => self.connect_both([false, false]),
                // Without a decision, or with two, nothing is decided.
                1 => {
                    let both = self.random.chance(50);
                    self.connect_both([both; 2]);
                }
                _ => {
                    // An operator's word holds until the node meets the other one, or dies.
                    self.connect_both([false, false]);
                    self.play(100_000);
                    let node = self.random.index(2);
                    self.take_down(node, false);
                    self.play(20_000);
                    self.start(node);
                }
            }
            self.play(400_000);
            self.sound()?;
            for node in [0, 1] {
                let status = self.nodes[node].core.as_ref().map(Resource::status);
                let state = status.map(|status| status.connections[0].state);
                if state != Some(ConnectionState::StandAlone) {
                    let what = format!("round {round}: node {node} is {state:?}: {:#?}", self.statuses());
                    return Err(Broken::new(Promise::P8, what));
                }
                let now = self.image(node);
                if let Some(sector) = before[node].iter().zip(&now).position(|(was, is)| was != is) {
                    let (was, is) = (before[node][sector], now[sector]);
                    let what = format!("round {round}: sector {sector} of node {node}: {was} became {is}");
                    return Err(Broken::new(Promise::P8, what));
                }
            }
        }
        Ok(())
    }

    fn connect_both(&mut self, discard: [bool; 2]) {
        for (node, discard_my_data) in discard.into_iter().enumerate() {
            self.ask(node, Verb::Connect { peer: None, discard_my_data });
        }
    }

    /// The operator gives one side up. The other one goes on, perhaps under load.
    fn resolve(&mut self) -> Result<(), Broken> {
        let (loser, winner) = if self.random.chance(50) { (0, 1) } else { (1, 0) };
        let other = self.other_history.take();
        if let (1, Some(other)) = (winner, other) {
            self.history = other;
        }
        self.make_primary(winner)?;
        self.ask(loser, Verb::Secondary { force: true });
        self.play(20_000);
        let wanted = self.image(winner);
        let load = self.random.chance(60);
        if load {
            self.clients[loser].node = winner;
            self.go_on();
        }
        let mut discard = [false; 2];
        discard[loser] = true;
        self.connect_both(discard);
        self.settle_whole("after one side was given up")?;
        self.pause()?;
        if self.role(winner) != Some(Role::Primary) {
            let what = format!("the survivor lost its role: {:#?}", self.statuses());
            return Err(Broken::new(Promise::P8, what));
        }
        let (kept, taken) = (self.image(winner), self.image(loser));
        if let Some(sector) = kept.iter().zip(&taken).position(|(one, other)| one != other) {
            let what =
                format!("sector {sector}: the survivor has {}, the other {}", kept[sector], taken[sector]);
            return Err(Broken::new(Promise::P8, what));
        }
        if !load && kept != wanted {
            return Err(Broken::new(Promise::P8, "the survivor's data changed"));
        }
        self.judge_survivor(&kept)?;
        self.clients[loser].node = loser;
        self.go_on();
        self.play(30_000);
        Ok(())
    }

    /// What was acknowledged at the survivor is there, and nothing else.
    fn judge_survivor(&self, image: &[u64]) -> Result<(), Broken> {
        let mut history = self.history.clone();
        for (sector, &value) in image.iter().enumerate() {
            let access = Access::Read(value);
            history.add(sector, Operation { access, start: self.now, end: self.now, done: true });
        }
        history.judge().map_or(Ok(()), |fault| Err(Broken::new(Promise::P8, fault.what)))
    }
}
