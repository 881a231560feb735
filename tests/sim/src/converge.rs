//! The end of a run: every fault ends, every replica becomes good, every command is answered (P7).

use replication::{ConnectionState, DiskState, Resource, Verb};

use crate::{
    verdict::{Broken, Promise},
    world::World,
};

impl World {
    /// Ends every fault.
    pub(crate) fn heal(&mut self) {
        self.quiet = true;
        self.blocked.clear();
        self.note(|| "heals".to_owned());
        for node in 0..self.nodes.len() {
            self.mend(node);
            self.start(node);
            self.ask(node, Verb::Connect { peer: None, discard_my_data: false });
            self.ask(node, Verb::PauseSync { volume: None, peer: None, paused: false });
        }
    }

    /// Waits until every replica is good and every node connected (P7), then until nothing is under way.
    pub(crate) fn converge(&mut self) -> Result<(), Broken> {
        for _ in 0..CONVERGE_ROUNDS {
            self.play(50_000);
            self.sound()?;
            for node in 0..self.nodes.len() {
                if self.is_detached(node) && self.random.chance(30) {
                    self.take_down(node, false);
                }
                self.attach(node);
                self.start(node);
            }
            if self.is_whole() {
                self.one_primary();
                self.sound()?;
                return self.drain();
            }
        }
        Err(Broken::new(Promise::P7, format!("no convergence: {:#?}", self.statuses())))
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.nodes.iter().all(|node| {
            let Some(status) = node.core.as_ref().map(Resource::status) else { return false };
            let good = |state: DiskState| state == DiskState::UpToDate;
            let connected = status.connections.iter().all(|connection| {
                connection.state == ConnectionState::Connected
                    && connection.peer_devices.iter().all(|device| device.out_of_sync == 0)
            });
            connected && status.devices.iter().all(|device| node.disks.is_empty() || good(device.disk_state))
        })
    }

    /// Lets the initiators finish, and checks that they can.
    pub(crate) fn drain(&mut self) -> Result<(), Broken> {
        let before = self.history.acknowledged;
        for _ in 0..60 {
            self.play(50_000);
            self.sound()?;
            if self.history.acknowledged > before + 3 {
                break;
            }
        }
        if self.history.acknowledged <= before + 3 {
            let what = format!("nothing is served after healing: {:#?}", self.statuses());
            return Err(Broken::new(Promise::P7, what));
        }
        self.draining = true;
        for _ in 0..40 {
            self.play(50_000);
            self.sound()?;
            if self.clients.iter().all(|client| client.busy.is_none()) {
                self.play(200_000);
                return if self.is_whole() {
                    Ok(())
                } else {
                    Err(Broken::new(Promise::P7, format!("broken when idle: {:#?}", self.statuses())))
                };
            }
        }
        Err(Broken::new(Promise::P11, format!("commands are never answered: {:#?}", self.statuses())))
    }
}

/// How often, at 50 ms, it is looked whether everything is good again.
pub(crate) const CONVERGE_ROUNDS: u32 = 200;
