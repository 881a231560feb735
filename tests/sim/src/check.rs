//! What a run is held to: while it goes on, whenever a node loses power, and at its end.

use std::ops::Range;

use block::Failure;
use replication::{AckMode, ConnectionState, DiskState, NodeSet, Resource, Role};

use crate::{
    client::What,
    converge::CONVERGE_ROUNDS,
    history::{Access, History, Operation},
    scenario::{Class, Kind},
    verdict::{Broken, Promise, Report},
    world::{Event, World, id},
};

impl World {
    pub(crate) fn report(self) -> Report {
        Report {
            acknowledged: self.history.acknowledged,
            reads: self.history.reads,
            unknown: self.history.unknown,
            faults: self.faults,
            flushes: self.flushes,
            turns: self.turns,
            time: self.now,
            scenario: self.scenario,
        }
    }

    /// What initiators of a node do and see.
    pub(crate) fn history_of(&mut self, node: usize) -> &mut History {
        match self.other_history.as_mut().filter(|_| node == 1) {
            Some(other) => other,
            None => &mut self.history,
        }
    }

    /// Sectors that a command under way may make zeros.
    fn zeroing(&self) -> Vec<Range<usize>> {
        let busy = self.clients.iter().filter_map(|client| client.busy.as_ref());
        busy.filter(|request| request.verb == What::Zeroes).map(Self::places).collect()
    }

    /// The disks that an acknowledged flush on a node speaks for (P2), each with the link that it is reached by.
    pub(crate) fn reached(&self, node: usize, volume: usize) -> Vec<(usize, u64)> {
        let Some(status) = self.nodes[node].core.as_ref().map(Resource::status) else { return Vec::new() };
        let mut reached = Vec::new();
        if status.devices[volume].disk_state == DiskState::UpToDate {
            reached.push((node, self.nodes[node].incarnation));
        }
        for connection in &status.connections {
            let good = connection.peer_devices[volume].peer_disk_state == DiskState::UpToDate;
            let peer = usize::from(connection.peer.0);
            let link = self.links.iter().find(|(_, link)| {
                let end = link.ends.iter().position(|&end| end == node);
                link.ends.contains(&peer) && end.is_some_and(|end| link.open[end])
            });
            if let Some((&link, _)) = link
                && good
                && connection.state == ConnectionState::Connected
                && connection.protocol == AckMode::C
            {
                reached.push((peer, link));
            }
        }
        reached
    }

    /// A node lost power: what an acknowledged flush covered is still on its disk (P2).
    pub(crate) fn held_to_its_flushes(&mut self, node: usize) {
        if self.nodes[node].disks.is_empty() {
            return;
        }
        let (image, zeroing) = (self.image(node), self.zeroing());
        self.flushes += self.history.flushes_of(node);
        if let Some(fault) = self.history.lost_of_flushed(&image, Some(node), &zeroing) {
            self.breaks(Promise::P2, format!("a flush spoke for the disk of node {node}: {}", fault.what));
        }
    }

    /// A node became Primary: its good replicas have every acknowledged write (P5).
    pub(crate) fn promoted(&mut self, node: usize) {
        let good = self.devices(node).iter().all(|state| *state == DiskState::UpToDate);
        if self.dark || !good || self.nodes[node].disks.is_empty() {
            return;
        }
        let (image, zeroing) = (self.image(node), self.zeroing());
        if let Some(fault) = self.history_of(node).lost(&image, &zeroing) {
            self.breaks(Promise::P5, format!("node {node} was promoted: {}", fault.what));
        }
    }

    /// A change was acknowledged: the node sees enough others (P9).
    pub(crate) fn acknowledged_with_quorum(&mut self, node: usize) {
        if self.scenario.nodes() == 2 {
            return;
        }
        let mut present = NodeSet::EMPTY.with(id(node));
        for link in self.links.values() {
            if let Some(end) = link.ends.iter().position(|&end| end == node)
                && link.open[end]
            {
                present = present.with(id(link.ends[1 - end]));
            }
        }
        let disks = self.scenario.disks();
        let here = disks.intersection(present).len();
        let breakers = present.len() - here;
        let all_breakers = u32::try_from(self.nodes.len()).unwrap_or_default() - disks.len();
        if here * 2 < disks.len() || here * 2 == disks.len() && breakers * 2 <= all_breakers {
            self.breaks(Promise::P9, format!("node {node} acknowledged a change and sees only {present}"));
        }
    }

    /// An initiator got an error: not while another replica is good (P12).
    pub(crate) fn held_to_its_word_about_errors(&mut self, node: usize, failure: Failure) {
        if self.scenario.class == Class::Disks && !matches!(failure, Failure::Standby | Failure::Stopping) {
            self.breaks(Promise::P12, format!("node {node} fails a command: {failure}"));
        }
    }

    /// Two nodes that serve the same initiators at once (P9, P14).
    pub(crate) fn one_primary(&mut self) {
        let primaries: Vec<usize> = (0..self.nodes.len())
            .filter(|&node| {
                self.nodes[node].core.as_ref().is_some_and(|core| core.status().role == Role::Primary)
            })
            .collect();
        if primaries.len() > 1 && self.scenario.kind != Kind::Apart {
            self.breaks(Promise::P9, format!("all are connected, and {primaries:?} are Primary"));
        }
    }

    /// All replicas are equal (P6); what they hold.
    fn equal(&self) -> Result<Vec<u64>, Broken> {
        let images: Vec<Vec<u64>> =
            (0..self.nodes.len()).map(|node| self.image(node)).filter(|image| !image.is_empty()).collect();
        for image in &images {
            if let Some(sector) = image.iter().zip(&images[0]).position(|(one, other)| one != other) {
                let found: Vec<_> = images.iter().map(|image| image[sector]).collect();
                return Err(Broken::new(Promise::P6, format!("sector {sector} differs: {found:?}")));
            }
        }
        Ok(images.into_iter().next().unwrap_or_default())
    }

    /// Holds the history and the disks to the promises.
    pub(crate) fn judge(&mut self) -> Result<(), Broken> {
        let image = self.equal()?;
        if let Some(fault) = self.history.judge() {
            let promise = if fault.abandoned { Promise::P14 } else { Promise::P3 };
            return Err(Broken::new(promise, fault.what));
        }
        let mut history = self.history.clone();
        for (sector, &value) in image.iter().enumerate() {
            let access = Access::Read(value);
            history.add(sector, Operation { access, start: self.now, end: self.now, done: true });
        }
        history.judge().map_or(Ok(()), |fault| {
            let promise = if fault.abandoned { Promise::P14 } else { Promise::P1 };
            Err(Broken::new(promise, fault.what))
        })
    }

    /// All power fails at once: what was flushed is still there (P2).
    pub(crate) fn black_out(&mut self) -> Result<(), Broken> {
        self.dark = true;
        for node in 0..self.nodes.len() {
            self.take_down(node, true);
        }
        self.sound()?;
        for node in 0..self.nodes.len() {
            let at = self.random.below(50_000);
            self.after(at, Event::Start(node));
        }
        for _ in 0..CONVERGE_ROUNDS {
            self.play(50_000);
            self.sound()?;
            if self.is_whole() {
                let Some(node) = (0..self.nodes.len()).find(|&node| !self.nodes[node].disks.is_empty())
                else {
                    return Ok(());
                };
                self.equal()?;
                let image = self.image(node);
                let fault = self.history.lost_of_flushed(&image, None, &[]);
                return fault.map_or(Ok(()), |fault| Err(Broken::new(Promise::P2, fault.what)));
            }
        }
        let what = format!("no convergence after a blackout: {:#?}", self.statuses());
        Err(Broken::new(Promise::P7, what))
    }

    /// Nothing was found to be broken yet.
    pub(crate) fn sound(&self) -> Result<(), Broken> {
        self.broken.clone().map_or(Ok(()), Err)
    }
}
