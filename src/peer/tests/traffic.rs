//! P4: packets arrive whole, in order and once, however the network cuts them.

use replication::{Input, LinkId, Packet};

use super::world::{HIGH, LOW, Node, Port, Proxy, pair, patient, process, run, write};

/// Numbers that look random and follow from `seed`.
fn numbers(seed: u64) -> impl FnMut(usize) -> usize + Clone {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    }
}

fn packets(seed: u64, count: u64, len_max: usize) -> impl Iterator<Item = Packet> {
    let mut number = numbers(seed);
    (0..count).map(move |sequence| match number(3) {
        0 => super::world::flush(sequence),
        _ => write(sequence, 1 + number(len_max)),
    })
}

/// Sends packets as a resource does, a batch at a time, and no more than the link takes.
async fn send(node: &Node, link: LinkId, packets: impl Iterator<Item = Packet>) {
    let mut number = numbers(5);
    for packet in packets {
        node.peer.send(link, packet);
        if number(8) == 0 {
            while node.peer.congested() {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Hears all these packets in this order, and that `sent` of its own were handed to the socket.
async fn hear(node: &Node, link: LinkId, expected: impl Iterator<Item = Packet>, sent: u64) {
    let (mut handed, mut expected) = (0, expected.peekable());
    while expected.peek().is_some() || handed < sent {
        match node.next().await {
            Input::Packet { link: from, packet, .. } => {
                assert_eq!(from, link);
                assert_eq!(Some(packet), expected.next());
            }
            Input::Sent { link: by, packets, .. } => {
                assert!(by == link && packets > handed && packets <= sent, "{packets} after {handed}");
                handed = packets;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn packets_arrive_in_order_both_ways() {
    run(async {
        let (low, low_link, high, high_link) = pair(patient()).await;
        let count = 1024;
        tokio::join!(
            send(&low, low_link, packets(1, count, 128 << 10)),
            send(&high, high_link, packets(2, count, 8 << 10)),
            hear(&low, low_link, packets(2, count, 8 << 10), count),
            hear(&high, high_link, packets(1, count, 128 << 10), count),
        );
    });
}

/// 64 MiB in one direction, and the largest packet there is.
#[test]
fn large_packets_arrive_whole() {
    run(async {
        let (low, low_link, high, high_link) = pair(patient()).await;
        let sizes = || [16 << 20, 1, 16 << 20, 4096, 16 << 20, 16 << 20];
        let all = || (0..).zip(sizes()).map(|(sequence, len)| write(sequence, len));
        tokio::join!(
            send(&low, low_link, all()),
            hear(&high, high_link, all(), 0),
            hear(&low, low_link, [].into_iter(), 6)
        );
    });
}

/// Pieces of 1 to 1500 bytes, from the first byte of the authentication on.
#[test]
fn pieces_of_any_size_make_the_same_packets() {
    run(async {
        for seed in 0..3 {
            let mut number = numbers(seed);
            let low = Port::open(process(LOW)).await;
            let cutter = Proxy::open(low.address, move || 1 + number(1500)).await;
            let low = low.start(([127, 0, 0, 1], 1).into(), patient());
            let high = Port::open(process(HIGH)).await.start(cutter.address, patient());
            low.peer.want(true);
            high.peer.want(true);
            let (low_link, high_link) = (low.connected().await, high.connected().await);
            let count = 200;
            tokio::join!(
                send(&low, low_link, packets(seed, count, 9000)),
                send(&high, high_link, packets(seed + 9, count, 9000)),
                hear(&low, low_link, packets(seed + 9, count, 9000), count),
                hear(&high, high_link, packets(seed, count, 9000), count),
            );
        }
    });
}

/// What a batch sends goes out together: one report for many packets.
#[test]
fn a_batch_is_one_write() {
    run(async {
        let (low, low_link, high, high_link) = pair(patient()).await;
        for sequence in 0..100 {
            low.peer.send(low_link, write(sequence, 512));
        }
        match low.next().await {
            Input::Sent { packets: 100, .. } => {}
            other => panic!("{other:?}"),
        }
        hear(&high, high_link, (0..100).map(|sequence| write(sequence, 512)), 0).await;
    });
}
