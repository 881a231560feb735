//! Split brain: both nodes are promoted while they are apart (P8).

use replication::{ConnectionState, Resource, Role, Verb};

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
            self.meet_and_refuse()?;
            self.resolve()?;
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
            self.ask(node, Verb::Primary { force: false });
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
        if self.random.chance(50) {
            self.block(0, 1);
            self.block(1, 0);
        } else {
            let node = self.random.index(2);
            self.ask(node, Verb::Disconnect { peer: None });
        }
        self.play(100_000);
        self.other_history = Some(self.history.clone());
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
        self.sound()
    }

    /// They see each other again: both say so, and nobody changes anything.
    fn meet_and_refuse(&mut self) -> Result<(), Broken> {
        let before = [self.image(0), self.image(1)];
        if before[0] == before[1] {
            return Err(Broken::new(Promise::P8, "nothing was written apart"));
        }
        self.blocked.clear();
        for round in 0..3 {
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
