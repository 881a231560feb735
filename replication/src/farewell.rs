//! The end of a link: said by either end, or found out.

use crate::{ConnectionState, Effect, Event, Farewell, LinkId, NodeId, Packet, Parting, Resource, Role};

impl Resource {
    /// A link is gone.
    pub(crate) fn link_gone(&mut self, node: NodeId, id: LinkId) {
        if let Some(peer) = self.link_at(node, id) {
            self.lost(peer);
        }
    }

    /// Takes a link down.
    pub(crate) fn part(&mut self, peer: usize, farewell: Farewell, reason: &str) {
        let final_words = matches!(farewell, Farewell::Diverged | Farewell::Unrelated);
        if final_words {
            self.stand_alone(peer);
        }
        let node = self.peers[peer].node;
        let Some(link) = self.peers[peer].link.as_mut() else { return };
        let said = std::mem::replace(&mut link.parting, true);
        let id = link.id;
        if !said {
            self.send(peer, Packet::Goodbye { farewell });
        }
        // Both ends have to learn that they diverged: the link stays until the peer has said so too.
        if !final_words {
            self.out.push(Effect::Disconnect { peer: node, link: id, reason: reason.to_owned() });
            self.lost(peer);
        }
    }

    fn stand_alone(&mut self, peer: usize) {
        let peer = &mut self.peers[peer];
        peer.diverged = true;
        if std::mem::replace(&mut peer.wanted, false) {
            self.out.push(Effect::Want { peer: peer.node, wanted: false });
        }
    }

    pub(crate) fn goodbye(&mut self, peer: usize, farewell: Farewell) {
        if matches!(farewell, Farewell::Diverged | Farewell::Unrelated) {
            let found = match farewell {
                Farewell::Unrelated => Parting::Unrelated,
                _ => Parting::Diverged { volumes: Vec::new(), policy: String::new() },
            };
            self.peers[peer].parting.get_or_insert(found);
            self.stand_alone(peer);
        }
        let node = self.peers[peer].node;
        let Some(link) = self.peers[peer].link.as_mut() else { return };
        let said = std::mem::replace(&mut link.parting, true);
        let id = link.id;
        if !said {
            self.send(peer, Packet::Goodbye { farewell });
        }
        let reason = format!("it said goodbye: {farewell:?}");
        self.out.push(Effect::Disconnect { peer: node, link: id, reason });
        self.lost(peer);
    }

    /// The peer did what no peer does.
    pub(crate) fn violation(&mut self, peer: usize, reason: &str) {
        let Some(link) = self.peers[peer].link.as_ref().map(|link| link.id) else { return };
        let node = self.peers[peer].node;
        self.event(Event::Connection { peer: node, state: ConnectionState::ProtocolError });
        self.out.push(Effect::Disconnect { peer: node, link, reason: reason.to_owned() });
        self.lost(peer);
    }

    /// Everything that ends with a link.
    fn lost(&mut self, peer: usize) {
        let Some(mut link) = self.peers[peer].link.take() else { return };
        let node = self.peers[peer].node;
        let was_primary = link.theirs.as_ref().is_some_and(|state| state.role == Role::Primary);
        let was_up = link.theirs.is_some();
        let state =
            if self.peers[peer].wanted { ConnectionState::Connecting } else { ConnectionState::StandAlone };
        self.peers[peer].state = state;
        self.event(Event::Connection { peer: node, state });
        if was_up {
            self.event(Event::PeerRole { peer: node, role: Role::Unknown });
        }
        for volume in 0..self.volumes.len() {
            if self.volumes[volume].resync.as_ref().is_some_and(|resync| resync.source == peer) {
                self.stop_resync(volume);
            }
            if was_up {
                self.peer_disk_event(peer, volume);
            }
        }
        if self.consent.as_ref().is_some_and(|consent| consent.peer == peer) {
            self.consent = None;
            // It may believe for a while that it has what it was promised.
            self.wait_for_lost();
        }
        self.deferred.retain(|(asker, ..)| *asker != peer);
        let reads = std::mem::take(&mut link.reads);
        // First who is left, then what may be acknowledged without the peer.
        self.update_quorum();
        self.announce();
        if was_up {
            self.lose_legs(peer, None);
        }
        self.reissue_reads(&reads);
        self.candidate_lost_peer(peer);
        if was_primary {
            self.primary_lost(peer);
        }
        self.protocol_progress();
        self.errands_lost(peer);
        self.changed = true;
    }
}
