//! A local disk that does not answer: after `disk-timeout` it is given up where a good peer can go on without it.
//!
//! What the disk still works on keeps its name until the disk answers, if it ever does: until then the kernel may read
//! or write the memory that the shell holds for it.

use std::time::Duration;

use crate::{
    Effect, Event, Instant, Resource,
    job::{DETACHED, Kind},
};

impl Resource {
    /// A disk was asked for something: it is looked at when that is due.
    pub(crate) fn watch_disks(&mut self) {
        if self.disk_due.is_none() && self.config.disk_timeout > Duration::ZERO {
            self.disk_due = Some(Instant(self.now.0 + self.config.disk_timeout));
        }
    }

    /// Looks at what the disks have not answered, once something is due.
    pub(crate) fn update_slow_disks(&mut self) {
        if self.disk_due.is_none_or(|due| due > self.now) {
            return;
        }
        self.disk_due = None;
        for volume in 0..self.volumes.len() {
            let waits = self.jobs.iter().filter(|(_, job)| job.volume == volume && job.is_awaited());
            let Some(oldest) = waits.map(|(_, job)| job.since).min() else { continue };
            let due = Instant(oldest.0 + self.config.disk_timeout);
            let look = if due > self.now {
                due
            } else if self.has_good_peer(volume) {
                self.give_disk_up(volume);
                continue;
            } else {
                self.note_slow_disk(volume);
                Instant(self.now.0 + LOOK_AGAIN)
            };
            self.disk_due = Some(self.disk_due.map_or(look, |earlier| earlier.min(look)));
        }
    }

    /// Goes on without a disk. What it was asked counts as failed.
    fn give_disk_up(&mut self, volume: usize) {
        self.out.push(Effect::Event(Event::SlowDisk { volume: self.number(volume), given_up: true }));
        self.detach(volume);
        let seconds = self.config.disk_timeout.as_secs_f64();
        let target = &mut self.volumes[volume];
        target.slow = None;
        target.trouble = Some(format!("it did not answer for {seconds} s (disk-timeout) and was given up"));
        let waits = self.jobs.iter().filter(|(_, job)| job.volume == volume && job.is_awaited());
        let keys: Vec<usize> = waits.map(|(key, _)| key).collect();
        for key in keys {
            let kind = self.abandon_job(key);
            self.follow_job(volume, key, kind, Err(DETACHED));
        }
        self.changed = true;
    }

    /// There is nothing to go on with: the disk is waited for.
    fn note_slow_disk(&mut self, volume: usize) {
        let seconds = self.config.disk_timeout.as_secs_f64();
        let target = &mut self.volumes[volume];
        if target.slow.replace(self.now).is_none() {
            target.trouble = Some(format!("it has not answered for {seconds} s (disk-timeout)"));
            let volume = target.config.number;
            self.event(Event::SlowDisk { volume, given_up: false });
        }
    }

    /// A disk answered, late or not.
    pub(crate) fn disk_is_alive(&mut self, volume: usize) {
        let target = &mut self.volumes[volume];
        if target.slow.take().is_some() {
            target.trouble = None;
        }
    }

    /// Whether the disks have answered everything that anyone waits for.
    pub(crate) fn disks_idle(&self) -> bool {
        self.jobs.iter().all(|(_, job)| matches!(job.kind, Kind::Abandoned))
    }
}

/// How soon a disk is looked at again that could not be given up.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
