//! Links between nodes over real sockets on loopback: which connection is kept, what strangers get, and what
//! becomes of packets.

mod links;
mod loss;
mod strangers;
mod traffic;
mod world;

use std::time::Duration;

use ops::config::NetOptions;

use super::Options;

/// P11: with nothing configured, a dead peer is noticed within two seconds.
#[test]
fn a_dead_peer_is_noticed_within_two_seconds() {
    let options = Options::default();
    assert!(options.ping_interval + options.ping_timeout < Duration::from_secs(2));
    assert_eq!(options.answer_timeout, Duration::from_secs(42));
    let for_ever = NetOptions { ko_count: 0, ..NetOptions::default() };
    assert_eq!(Options::from(&for_ever).answer_timeout, Duration::MAX);
}
