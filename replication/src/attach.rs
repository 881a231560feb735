//! Detaching a local disk at an operator's word, and attaching it again: the shell opens it, and the node meets its
//! peers anew with what is on it, as after a start.

use block::VolumeNumber;

use crate::{
    Effect, Farewell, Found, OperatorRequest, Refusal, Resource, Role,
    job::Kind,
    resource::{Volume, log_identity},
};

impl Resource {
    /// An operator wants to go on without a disk.
    pub(crate) fn detach_as_asked(&mut self, request: OperatorRequest, number: VolumeNumber, force: bool) {
        let result = self.may_detach(number, force).map(|volume| {
            if self.volumes[volume].disk.is_some() {
                self.detach(volume);
                self.volumes[volume].trouble = Some("an operator detached it".to_owned());
            }
        });
        self.reply(request, result);
    }

    fn may_detach(&self, number: VolumeNumber, force: bool) -> Result<usize, Refusal> {
        let volume = self.own_volume(number)?;
        let name = format!("{}/{number}", self.config.name);
        let refuse = |what, remedy| Err(Refusal { what, remedy });
        if self.volumes[volume].opening.is_some() {
            return refuse(format!("{name} is being attached"), "wait until that is done".to_owned());
        }
        let attached = self.volumes[volume].disk.is_some();
        if attached && self.primary().is_some() && !self.has_good_peer(volume) && !force {
            return refuse(
                format!("{name} is in use, and no other node that is connected has a good replica"),
                format!("connect one, or let the commands fail: evenkeel detach {name} --force"),
            );
        }
        Ok(volume)
    }

    /// An operator wants a disk back. It is opened first.
    pub(crate) fn attach(&mut self, request: OperatorRequest, number: VolumeNumber) {
        match self.may_attach(number) {
            Ok(volume) if self.volumes[volume].disk.is_some() => self.reply(request, Ok(())),
            Ok(volume) => {
                self.volumes[volume].opening = Some(request);
                self.out.push(Effect::Open { volume: number });
            }
            Err(refusal) => self.reply(request, Err(refusal)),
        }
    }

    /// A disk was opened, or could not be.
    pub(crate) fn opened(&mut self, number: VolumeNumber, found: &Found) {
        let request = self.volume_at(number).and_then(|volume| self.volumes[volume].opening.take());
        let Some(request) = request else { return };
        let result = self.may_attach(number).and_then(|volume| self.take_in(volume, found));
        self.reply(request, result);
        self.changed = true;
    }

    /// The volume, where this node is to have a disk for it.
    fn own_volume(&self, number: VolumeNumber) -> Result<usize, Refusal> {
        let name = &self.config.name;
        let own = self.volume_at(number);
        own.filter(|&at| self.volumes[at].config.disks.contains(self.config.node)).ok_or_else(|| Refusal {
            what: format!("this node has no disk for {name}/{number} in its configuration"),
            remedy: format!("see its volumes: evenkeel status {name}"),
        })
    }

    fn may_attach(&self, number: VolumeNumber) -> Result<usize, Refusal> {
        let volume = self.own_volume(number)?;
        let name = &self.config.name;
        let refuse = |what, remedy| Err(Refusal { what, remedy });
        let of_volume = |kind: fn(&Kind) -> bool| {
            self.jobs.iter().filter(|(_, job)| job.volume == volume && kind(&job.kind)).count()
        };
        let left = of_volume(|kind| matches!(kind, Kind::Abandoned));
        let busy = of_volume(|_| true) > 0
            || self.tasks.iter().any(|(_, task)| task.volume == volume)
            || self.changes.iter().any(|(_, change)| change.volume == volume);
        let target = &self.volumes[volume];
        if target.disk.is_some() {
            return Ok(volume);
        }
        if self.stopping.is_some() {
            return refuse("the node stops".to_owned(), "start it again".to_owned());
        }
        if target.opening.is_some() {
            return refuse(
                format!("{name}/{number} is being attached"),
                "wait until that is done".to_owned(),
            );
        }
        if self.role == Role::Primary || self.promotion.is_some() {
            return refuse(
                "this node is Primary, and a disk comes back on a Secondary".to_owned(),
                format!("let another node serve it: evenkeel secondary {name}; then attach it"),
            );
        }
        if left > 0 {
            return refuse(
                format!("the old disk has not answered yet: operations that are with it: {left}"),
                "wait until it answers, or start the node again".to_owned(),
            );
        }
        if busy {
            return refuse(format!("{name}/{number} still ends what was under way"), "try again".to_owned());
        }
        Ok(volume)
    }

    /// What was opened is the volume's disk from now on.
    fn take_in(&mut self, volume: usize, found: &Found) -> Result<(), Refusal> {
        let number = self.number(volume);
        if let Found::Unusable(reason) = found {
            self.volumes[volume].trouble = Some(reason.clone());
            return Err(unusable(reason.clone()));
        }
        let identity = log_identity(self.new_generation().0, number);
        let config = self.volumes[volume].config.clone();
        let mut target = Volume::new(&self.config, &config, Some(found), identity)
            .map_err(|(_, error)| unusable(format!("its metadata is of no use: {error}")))?;
        for peer in 0..self.peers.len() {
            self.part(peer, Farewell::Retry, "a disk was attached");
        }
        let old = &mut self.volumes[volume];
        std::mem::swap(&mut target.commands, &mut old.commands);
        std::mem::swap(&mut target.ranges, &mut old.ranges);
        (target.quorum, target.read_bytes, target.written_bytes) =
            (old.quorum, old.read_bytes, old.written_bytes);
        target.books.log_writes = old.books.log_writes;
        target.books.bitmap_writes = old.books.bitmap_writes;
        self.volumes[volume] = target;
        let order = self.volumes[volume].disk.as_ref().map_or(0, |disk| disk.order);
        self.see(crate::Sequence(order));
        self.persist(volume, None);
        Ok(())
    }
}

fn unusable(what: String) -> Refusal {
    Refusal { what, remedy: "mend the disk, and attach it again".to_owned() }
}
