//! P13: what strangers get, and what they cost.

use std::{rc::Rc, sync::Arc};

use ops::{config::Address, metrics::Latencies};
use replication::{
    NodeId,
    authenticate::{AuthError, Identity, Refusal, Secret},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tracing::Level;

use super::world::{HIGH, LOW, Log, Port, pair, patient, process, run, talk, within};
use crate::{
    peer::{Options, Peer, Setup, identity, listener::HALF_OPEN_MAX, meet, meet::MeetError},
    volume::Mailbox,
};

/// Both ends log why, neither logs a secret, and no resource hears of it.
#[test]
fn another_secret_is_refused_at_both_ends() {
    run(async {
        let (log, _guard) = Log::start(Level::INFO);
        let intruder = identity("demo", HIGH, Secret::new(b"not the secret".to_vec())).unwrap();
        let (low, high) = (Port::open(process(LOW)).await, Port::open(intruder).await);
        let (low_address, high_address) = (low.address, high.address);
        let (low, high) = (low.start(high_address, patient()), high.start(low_address, patient()));
        low.peer.want(true);
        high.peer.want(true);
        log.wait_for("the other end does not know the secret of the cluster").await;
        let text = log.wait_for("the secrets may differ").await;
        // Who it claims to be, at the end that was called; who it should be, at the end that calls; and `status` knows.
        assert!(text.contains(r#"about \"db\""#) && text.contains("peer=\"node-8\""), "{text}");
        let known = || high.peer.trouble().into_iter().chain(low.peer.trouble()).collect::<Vec<_>>();
        assert!(known().iter().any(|trouble| trouble.contains("secret")), "{:?}", known());
        assert!(!text.contains("not the secret") && !text.contains("the secret of the cluster\""), "{text}");
        assert!(low.unread().is_empty() && high.unread().is_empty());
    });
}

/// A host name that nobody knows is told, and is looked up for each call: it may be known by then.
#[test]
fn a_name_is_looked_up_for_each_call() {
    run(async {
        let port = Port::open(process(HIGH)).await;
        let name = |host: &str, port: u16| Address::Name { host: host.to_owned(), port };
        let nowhere = port.start_at(name("not a host name", 1), patient());
        nowhere.peer.want(true);
        while nowhere.peer.trouble().is_none() {
            tokio::task::yield_now().await;
        }
        assert!(nowhere.peer.trouble().unwrap().contains("look the host name up"));
        let low = Port::open(process(LOW)).await;
        let high = Port::open(process(HIGH)).await;
        let address = name("localhost", high.address.port());
        let (high, low) = (high.start(low.address, patient()), low.start_at(address, patient()));
        low.peer.want(true);
        high.peer.want(true);
        low.connected().await;
        assert_eq!(low.peer.trouble(), None);
    });
}

/// A node of the cluster learns why it may not take part.
#[test]
fn a_node_out_of_place_is_told_why() {
    run(async {
        let port = Port::open(process(LOW)).await;
        let _calls = port.directory.admit("db", HIGH);
        let secret = || Secret::new(b"the secret of the cluster".to_vec());
        let refused = async |identity: Arc<Identity>, resource: &str, peer: NodeId| {
            let stream = TcpStream::connect(port.address).await.unwrap();
            match within(meet::dial(stream, &identity, resource, peer)).await {
                Err(MeetError::Auth(AuthError::Refused { refusal })) => refusal,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(process(HIGH), "mail", LOW).await, Refusal::Resource);
        assert_eq!(refused(process(NodeId(9)), "db", LOW).await, Refusal::Peer);
        assert_eq!(refused(process(HIGH), "db", NodeId(4)).await, Refusal::Node);
        let other = identity("other", HIGH, secret()).unwrap();
        assert_eq!(refused(other, "db", LOW).await, Refusal::Cluster);
    });
}

/// Garbage, a port scan, a length that nobody has: closed at once, without an answer.
#[test]
fn garbage_is_closed_without_an_answer() {
    run(async {
        let (low, low_link, high, high_link) = pair(patient()).await;
        let long = vec![0xff; 100_000];
        let huge = [&b"EKh1\x00\x01\xff\xff"[..], &[0; 4096]].concat();
        let state_before_proof = {
            let mut bytes = b"EKp1".to_vec();
            bytes.resize(48, 0);
            bytes
        };
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &huge, &state_before_proof, &[0; 3], &long, b""] {
            let mut stream = TcpStream::connect(low.port.address).await.unwrap();
            // The other end may have closed the connection before everything was written.
            let _ = stream.write_all(garbage).await;
            if garbage.is_empty() {
                stream.shutdown().await.unwrap();
            }
            let mut answer = Vec::new();
            // A reset is as good as an end.
            let _ = within(stream.read_to_end(&mut answer)).await;
            assert_eq!(answer, b"");
        }
        talk(&low, low_link, &high, high_link).await;
    });
}

/// A thousand calls that say nothing hold only so many places, and a peer gets through beside them.
#[test]
fn a_flood_does_not_keep_peers_out() {
    run(async {
        let low = Port::open(process(LOW)).await;
        let port = low.address;
        let mut flood = Vec::new();
        for number in 0..1000 {
            let mut stream = TcpStream::connect(port).await.unwrap();
            // Half of them begin a message and never end it.
            if number % 2 == 0 {
                stream.write_all(b"EKh1\x00\x01\x00\x80").await.unwrap();
            }
            flood.push(stream);
        }
        let low = low.start(([127, 0, 0, 1], 1).into(), patient());
        let high = Port::open(process(HIGH)).await.start(port, patient());
        low.peer.want(true);
        high.peer.want(true);
        let (low_link, high_link) = (low.connected().await, high.connected().await);
        talk(&low, low_link, &high, high_link).await;
        let mut closed = 0;
        for stream in &mut flood[..1000 - HALF_OPEN_MAX] {
            closed += u32::from(within(stream.read(&mut [0; 1])).await.unwrap_or(0) == 0);
        }
        assert_eq!(closed as usize, 1000 - HALF_OPEN_MAX);
    });
}

/// Someone who answers our call without knowing the secret, or sends our own words back, is no peer.
#[test]
fn an_impostor_that_is_called_is_no_peer() {
    run(async {
        let (log, _guard) = Log::start(Level::INFO);
        let mirror = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let setup = Setup {
            identity: process(LOW),
            resource: "db".into(),
            peer: HIGH,
            peer_name: "high".into(),
            address: Address::Ip(mirror.local_addr().unwrap()),
            options: Options::default(),
            latencies: Arc::new(Latencies::new("db", [LOW, HIGH])),
            counters: Arc::default(),
        };
        let (_calls, receiver) = tokio::sync::mpsc::channel(1);
        let mailbox = Rc::<Mailbox>::default();
        let peer = Peer::start(setup, receiver, Rc::clone(&mailbox));
        peer.want(true);
        let (stream, _) = within(mirror.accept()).await.unwrap();
        let (mut input, mut output) = stream.into_split();
        within(tokio::io::copy(&mut input, &mut output)).await.unwrap();
        log.wait_for("the other end sent our own challenge back").await;
        let mut heard = Vec::new();
        mailbox.take_now(&mut heard);
        assert!(heard.is_empty());
    });
}
