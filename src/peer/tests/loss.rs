//! P11: how a peer that is gone, stuck or mad is noticed.

use std::time::{Duration, Instant};

use replication::{Input, Packet, Sequence, wire::Frame};
use tokio::io::AsyncWriteExt;

use super::world::{HIGH, LOW, Node, Port, Raw, flush, patient, process, run, within, write};
use crate::peer::Options;

async fn low_with(options: Options) -> (Node, Raw, replication::LinkId) {
    let port = Port::open(process(LOW)).await;
    let address = port.address;
    let low = port.start(([127, 0, 0, 1], 1).into(), options);
    low.peer.want(true);
    let raw = Raw::link(address, &process(HIGH)).await;
    let link = low.connected().await;
    (low, raw, link)
}

/// A peer that was stopped or cut off gives no sign of life: it is asked for one, has its time to give it, and is
/// lost.
#[test]
fn silence_ends_the_link() {
    run(async {
        let (interval, patience) = (Duration::from_millis(300), Duration::from_millis(200));
        let options = Options { ping_interval: interval, ping_timeout: patience, ..patient() };
        let start = Instant::now();
        let (low, mut raw, link) = low_with(options).await;
        assert_eq!(raw.hear().await, Some(Frame::Ping(1)));
        assert!(start.elapsed() >= interval);
        low.lost(link).await;
        assert!(start.elapsed() >= interval + patience);
        assert_eq!(raw.hear().await, None);
    });
}

/// A peer that is alive but never answers a change is dropped; one that answers is not.
#[test]
fn a_change_without_an_answer_ends_the_link() {
    run(async {
        let options = Options {
            ping_interval: Duration::from_millis(20),
            timeout: Duration::from_millis(200),
            answer_timeout: Duration::from_millis(200),
            ..patient()
        };
        let (low, mut raw, link) = low_with(options).await;
        low.peer.send(link, flush(1));
        low.peer.send(link, flush(2));
        let mut answered = false;
        let talking = async {
            while let Some(frame) = raw.hear().await {
                match frame {
                    Frame::Ping(number) => raw.say(Frame::Pong(number)).await,
                    Frame::Packet(Packet::Flush { sequence: Sequence(1) }) => {
                        raw.say(Frame::Packet(Packet::Written { sequence: Sequence(1) })).await;
                        answered = true;
                    }
                    _ => {}
                }
            }
        };
        tokio::join!(talking, low.lost(link));
        assert!(answered);
    });
}

/// A peer that answers pings stays, however long nothing else is said.
#[test]
fn an_idle_link_lives() {
    run(async {
        let quick = Duration::from_millis(20);
        let (low, mut raw, link) = low_with(Options { ping_interval: quick, ..patient() }).await;
        for number in 1..=50 {
            assert_eq!(raw.hear().await, Some(Frame::Ping(number)));
            raw.say(Frame::Pong(number)).await;
        }
        raw.say(Frame::Packet(flush(1))).await;
        assert_eq!(low.packet(link).await, flush(1));
    });
}

/// A peer that still talks but takes nothing is dropped after `timeout`.
#[test]
fn a_peer_that_takes_nothing_is_dropped() {
    run(async {
        let options = Options {
            ping_interval: Duration::from_secs(5),
            timeout: Duration::from_millis(300),
            ..patient()
        };
        let (low, mut raw, link) = low_with(options).await;
        for sequence in 0..64 {
            low.peer.send(link, write(sequence, 1 << 20));
        }
        assert!(low.peer.congested());
        let talking = async {
            loop {
                raw.say(Frame::Packet(flush(1))).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = talking => {}
            () = low.lost(link) => {}
        }
        assert!(!low.peer.congested());
    });
}

/// The queue has an end, whoever fills it.
#[test]
fn a_queue_over_its_bound_ends_the_link() {
    run(async {
        let (low, _raw, link) = low_with(Options { queue_bytes_max: 1 << 20, ..patient() }).await;
        low.peer.send(link, write(1, 1 << 20));
        low.lost(link).await;
    });
}

/// A peer that sends what is no frame, or opens a link twice, is dropped, and what it sent before counts.
#[test]
fn nonsense_ends_the_link() {
    run(async {
        for nonsense in [&[0; 48][..], b"\r\n\r\n, said the stranger, and waited for the answer"] {
            let (low, mut raw, link) = low_with(patient()).await;
            raw.say(Frame::Packet(flush(1))).await;
            raw.stream.write_all(nonsense).await.unwrap();
            assert_eq!(low.packet(link).await, flush(1));
            low.lost(link).await;
            assert_eq!(raw.hear().await, None);
        }
        let (low, mut raw, link) = low_with(patient()).await;
        raw.say(Frame::Ready).await;
        low.lost(link).await;
    });
}

/// A peer that closes the connection, or whose process dies, is lost at once.
#[test]
fn a_closed_connection_is_lost_at_once() {
    run(async {
        let (low, raw, link) = low_with(patient()).await;
        drop(raw);
        low.lost(link).await;
        let lost_again = low.unread().into_iter().any(|input| matches!(input, Input::PeerLost { .. }));
        assert!(!lost_again);
        within(low.peer.stop()).await;
    });
}
