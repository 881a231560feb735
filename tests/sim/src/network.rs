//! Links between nodes: they delay, break, and are cut one way or both ways.

use replication::{Input, LinkId, Packet};

use crate::world::{Event, World, id};

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) ends: [usize; 2],
    pub(crate) open: [bool; 2],
    /// Whether what is on its way to that end is lost.
    pub(crate) cut: [bool; 2],
    /// When the last packet to that end arrives.
    pub(crate) last: [u64; 2],
    pub(crate) sent: [u64; 2],
}

impl World {
    pub(crate) fn transmit(&mut self, node: usize, link: u64, packet: Packet) {
        let delay = self.random.between(30, 900);
        let handed = self.random.between(5, 60);
        let blocked = self.blocked.clone();
        let Some(there) = self.links.get_mut(&link) else { return };
        let from = usize::from(there.ends[1] == node);
        let to = 1 - from;
        there.sent[from] += 1;
        let packets = there.sent[from];
        if blocked.contains(&(node, there.ends[to])) {
            return;
        }
        let time = (self.now + delay).max(there.last[to] + 1);
        there.last[to] = time;
        self.at(time, Event::Packet { link, end: to, packet });
        self.after(handed, Event::Sent { link, end: from, packets });
    }

    /// One end closes a link: the other one learns it behind what was sent.
    pub(crate) fn close(&mut self, link: u64, node: usize) {
        let Some(there) = self.links.get_mut(&link) else { return };
        let from = usize::from(there.ends[1] == node);
        let to = 1 - from;
        there.open[from] = false;
        let time = (self.now + 100).max(there.last[to] + 1);
        there.last[to] = time;
        if there.open[to] {
            self.at(time, Event::Lost { link, end: to });
        } else {
            self.links.remove(&link);
        }
    }

    pub(crate) fn link_lost(&mut self, link: u64, end: usize) {
        let Some(there) = self.links.get_mut(&link).filter(|there| there.open[end]) else { return };
        there.open[end] = false;
        let (node, peer) = (there.ends[end], there.ends[1 - end]);
        if !there.open[1 - end] {
            self.links.remove(&link);
        }
        self.note(|| format!("{node} lost the link to {peer}"));
        self.step(node, Input::PeerLost { peer: id(peer), link: LinkId(link) });
    }

    /// A link breaks: both ends notice, each in its time.
    pub(crate) fn break_link(&mut self, link: u64, lose: [bool; 2]) {
        for (end, lose) in lose.into_iter().enumerate() {
            let notice = self.random.between(500, 50_000);
            if let Some(there) = self.links.get_mut(&link) {
                there.cut[end] |= lose;
            }
            self.after(notice, Event::Lost { link, end });
        }
    }

    /// Breaks every link that fits.
    pub(crate) fn break_links(&mut self, fits: impl Fn([usize; 2]) -> bool) {
        let links: Vec<u64> =
            self.links.iter().filter(|(_, link)| fits(link.ends)).map(|(&id, _)| id).collect();
        for link in links {
            let lose = [self.random.chance(60), self.random.chance(60)];
            self.break_link(link, lose);
        }
    }

    /// Nothing passes from one node to another any more.
    pub(crate) fn block(&mut self, from: usize, to: usize) {
        self.blocked.push((from, to));
        self.note(|| format!("cut {from} -> {to}"));
        let links: Vec<_> = self.links.iter().map(|(&id, link)| (id, link.ends)).collect();
        for (link, ends) in links {
            if ends == [from, to] || ends == [to, from] {
                self.break_link(link, [ends[0] == to, ends[1] == to]);
            }
        }
    }

    pub(crate) fn dial(&mut self) {
        for one in 0..self.nodes.len() {
            for other in one + 1..self.nodes.len() {
                let free = !self.blocked.contains(&(one, other)) && !self.blocked.contains(&(other, one));
                let alive = |node: usize| self.nodes[node].core.is_some();
                let wants = |node: usize, peer: usize| self.nodes[node].wanted.contains(&id(peer));
                let linked = self.links.values().any(|link| link.ends == [one, other]);
                let wanted = wants(one, other) || wants(other, one);
                if !free || linked || !wanted || !alive(one) || !alive(other) || self.random.chance(50) {
                    continue;
                }
                self.serial += 1;
                let link = self.serial;
                let last =
                    [self.now + self.random.between(50, 2_000), self.now + self.random.between(50, 2_000)];
                let (open, cut, sent) = ([true; 2], [false; 2], [0; 2]);
                self.links.insert(link, Link { ends: [one, other], open, cut, last, sent });
                for (end, time) in last.into_iter().enumerate() {
                    self.at(time, Event::Up { link, end });
                }
            }
        }
        self.after(7_000, Event::Dial);
    }
}
