//! Stopping: what is under way is finished, the peers are told, the data is made stable, and what is known is written
//! down.

use block::Failure;

use crate::{DiskRequest, Effect, Resource, Role, job::Kind, resource::Stopping};

impl Resource {
    /// The node stops.
    pub(crate) fn stop(&mut self) {
        if self.stopping.is_none() {
            self.stopping = Some(Stopping::Draining);
            self.changed = true;
        }
    }

    /// Goes on with a stop.
    pub(crate) fn update_stop(&mut self) {
        let Some(stopping) = self.stopping else { return };
        let held = self.tasks.iter().all(|(_, task)| task.state == crate::task::State::Held);
        match stopping {
            Stopping::Draining => {
                let cut_off =
                    (0..self.volumes.len()).any(|at| !self.volumes[at].quorum || !self.has_data(at));
                if held || cut_off {
                    self.fail_tasks(Failure::Stopping);
                }
                if self.tasks.is_empty() && self.log.is_empty() && self.promotion.is_none() {
                    self.leave();
                }
            }
            Stopping::Settling if self.disks_idle() => {
                self.stopping = Some(Stopping::Flushing);
                for volume in 0..self.volumes.len() {
                    if self.volumes[volume].disk.is_some() {
                        self.start_job(volume, None, Kind::StopFlush, Some(DiskRequest::Flush));
                    }
                }
                self.changed = true;
            }
            // Only what is stable may be called the data of a clean stop.
            Stopping::Flushing if self.disks_idle() => {
                self.stopping = Some(Stopping::Saving);
                self.save();
                for volume in 0..self.volumes.len() {
                    self.persist(volume, None);
                }
                // A diskless node has nothing to write, so nothing else would bring it on.
                self.changed = true;
            }
            Stopping::Saving if self.disks_idle() => {
                self.stopping = Some(Stopping::Stopped);
                self.out.push(Effect::Stopped);
            }
            Stopping::Settling | Stopping::Flushing | Stopping::Saving | Stopping::Stopped => {}
        }
    }

    /// Takes leave of every peer.
    fn leave(&mut self) {
        if self.role == Role::Primary {
            self.become_secondary();
            self.announce();
        }
        for peer in 0..self.peers.len() {
            self.part(peer, crate::Farewell::Leaving, "the node is stopping");
        }
        self.stopping = Some(Stopping::Settling);
        self.changed = true;
    }
}
