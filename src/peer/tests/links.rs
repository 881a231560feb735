//! Which connection becomes the link: the table of the module `peer`.

use replication::{
    Farewell, Input, Packet,
    wire::{CloseReason, Frame},
};

use tracing::Level;

use super::world::{HIGH, LOW, Log, Port, Proxy, Raw, flush, pair, patient, process, run, talk, within};
use crate::peer::Options;

/// Either end may be the one that dials: nobody listens where the other one would.
#[test]
fn one_dialler_is_enough() {
    run(async {
        for dialler in [LOW, HIGH] {
            let (a, b) = (
                Port::open(process(dialler)).await,
                Port::open(process(super::world::other_of(dialler))).await,
            );
            let (address, nowhere) = (b.address, std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
            let (a, b) = (a.start(address, patient()), b.start(nowhere, patient()));
            b.peer.want(true);
            a.peer.want(true);
            let (a_link, b_link) = (a.connected().await, b.connected().await);
            talk(&a, a_link, &b, b_link).await;
        }
    });
}

/// However the calls of both ends cross, one link is kept, and neither resource ever sees another. Each call is cut
/// into pieces of its own, so that they overtake each other at every step; the log tells that both came through.
#[test]
fn crossing_calls_leave_one_link() {
    run(async {
        let (log, _guard) = Log::start(Level::DEBUG);
        for round in 0..200 {
            let (low, high) = (Port::open(process(LOW)).await, Port::open(process(HIGH)).await);
            let to_low = Proxy::open(low.address, move || 8 + round % 31 * 8).await;
            let to_high = Proxy::open(high.address, move || 8 + round % 37 * 8).await;
            let (low, high) = (low.start(to_high.address, patient()), high.start(to_low.address, patient()));
            low.peer.want(true);
            high.peer.want(true);
            let (low_link, high_link) = (low.connected().await, high.connected().await);
            talk(&low, low_link, &high, high_link).await;
            let late =
                |inputs: Vec<Input>| inputs.into_iter().any(|input| !matches!(input, Input::Sent { .. }));
            assert!(!late(low.unread()) && !late(high.unread()), "round {round}");
            let (low, high) = (low.peer, high.peer);
            within(async { tokio::join!(low.stop(), high.stop()) }).await;
        }
        log.wait_for("closed a second connection").await;
    });
}

/// A second call of the same process changes nothing while the link is alive.
#[test]
fn a_duplicate_is_closed() {
    run(async {
        let (low, low_link, high, high_link) = pair(Options::default()).await;
        let mut second = Raw::call(low.port.address, &high.port.identity).await;
        second.say(Frame::Ready).await;
        assert_eq!(second.hear().await, Some(Frame::Close(CloseReason::Duplicate)));
        assert_eq!(second.hear().await, None);
        talk(&low, low_link, &high, high_link).await;
    });
}

/// A peer that was killed and restarted is met at once, though nothing told that the old connection is dead.
#[test]
fn a_restarted_peer_replaces_its_dead_link() {
    run(async {
        for restarted in [LOW, HIGH] {
            let survivor = Port::open(process(super::world::other_of(restarted))).await;
            let cable = Proxy::open(survivor.address, || 65536).await;
            let (first, second) = (process(restarted), process(restarted));
            let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
            let (direct, survivor) = (survivor.address, survivor.start(nowhere, patient()));
            survivor.peer.want(true);
            let before = Port::open(first).await.start(cable.address, patient());
            before.peer.want(true);
            let (old, _) = (survivor.connected().await, before.connected().await);
            cable.freeze();

            let after = Port::open(second).await.start(direct, patient());
            after.peer.want(true);
            survivor.lost(old).await;
            let (new, link) = (survivor.connected().await, after.connected().await);
            assert_ne!(new, old);
            talk(&survivor, new, &after, link).await;
        }
    });
}

/// The same process calls again because it gave its link up, and this end has not noticed yet.
#[test]
fn a_link_that_answers_no_ping_is_replaced() {
    run(async {
        let low = Port::open(process(LOW)).await;
        let (port, cable) = (low.address, Proxy::open(low.address, || 65536).await);
        let options = Options { ping_timeout: std::time::Duration::from_millis(50), ..patient() };
        let low = low.start(std::net::SocketAddr::from(([127, 0, 0, 1], 1)), options);
        low.peer.want(true);
        let high = process(HIGH);
        let _dead = Raw::link(cable.address, &high).await;
        let old = low.connected().await;
        cable.freeze();
        let mut second = Raw::link(port, &high).await;
        low.lost(old).await;
        let new = low.connected().await;
        second.say(Frame::Packet(flush(7))).await;
        assert_eq!(low.packet(new).await, flush(7));
    });
}

/// A node that is StandAlone says so, and its resource hears nothing; once it wants the peer, they meet.
#[test]
fn an_unwanted_peer_is_told() {
    run(async {
        let low = Port::open(process(LOW)).await;
        let (port, nowhere) = (low.address, std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
        let low = low.start(nowhere, patient());
        let high = process(HIGH);
        let mut call = Raw::call(port, &high).await;
        assert_eq!(call.hear().await, Some(Frame::Close(CloseReason::Unwanted)));
        assert!(low.unread().is_empty());
        low.peer.want(true);
        Raw::link(port, &high).await;
        low.connected().await;
    });
}

/// What was sent before a link is taken down still arrives, and the resource is told at once.
#[test]
fn a_goodbye_arrives_before_the_end() {
    run(async {
        let (low, low_link, high, high_link) = pair(patient()).await;
        low.peer.want(false);
        high.peer.want(false);
        let goodbye = Packet::Goodbye { farewell: Farewell::Leaving };
        low.peer.send(low_link, goodbye.clone());
        low.peer.disconnect(low_link, "a test");
        low.lost(low_link).await;
        assert_eq!(high.packet(high_link).await, goodbye);
        high.lost(high_link).await;
        low.peer.send(low_link, flush(1));
        low.peer.disconnect(low_link, "again");
        assert!(low.unread().is_empty(), "a link that is lost stays lost");
    });
}

/// A link that broke is there again, while both ends want it.
#[test]
fn a_broken_link_is_made_again() {
    run(async {
        let (low, low_link, high, high_link) = pair(patient()).await;
        low.peer.disconnect(low_link, "a test");
        low.lost(low_link).await;
        high.lost(high_link).await;
        let (low_link, high_link) = (low.connected().await, high.connected().await);
        talk(&low, low_link, &high, high_link).await;
    });
}

/// A node that stops says good-bye, and its peer notices without waiting for a timeout.
#[test]
fn a_node_that_stops_is_noticed_at_once() {
    run(async {
        let (low, _, high, high_link) = pair(patient()).await;
        within(low.peer.stop()).await;
        high.lost(high_link).await;
    });
}
