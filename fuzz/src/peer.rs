//! The decoder of frames between nodes: what a peer sends, mutated and cut.

use block::{Extent, Payload, VolumeNumber};
use bytes::{Buf as _, BytesMut};
use harness::load::Random;
use replication::{
    AckMode, NodeSet, Packet, Sequence,
    wire::{CloseReason, Decoder, Frame, Output},
};

use crate::mutate::{mutate, pieces};

/// Feeds one mutated stream to a decoder.
pub(crate) fn case(mut random: Random) {
    let mut output = Output::default();
    for _ in 0..=random.below(3) {
        output.push(any(&mut random));
    }
    let mut bytes = output.copy_to_bytes(output.remaining()).to_vec();
    mutate(&mut random, &mut bytes);
    let decoder = Decoder { payload_max: 1 << 16 };
    let mut buffer = BytesMut::new();
    for piece in pieces(&mut random, &bytes) {
        buffer.extend_from_slice(piece);
        loop {
            let before = buffer.len();
            match decoder.next(&mut buffer) {
                Ok(Some(_)) => assert!(buffer.len() < before, "a frame of no bytes"),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

fn any(random: &mut Random) -> Frame {
    let sequence = Sequence(random.draw());
    match random.below(6) {
        0 => Frame::Ping(random.draw()),
        1 => Frame::Close(CloseReason::Replaced),
        2 => Frame::Packet(Packet::Flush { sequence }),
        3 => Frame::Packet(Packet::Written { sequence }),
        4 => {
            let extent = Extent::new(random.draw(), random.draw());
            Frame::Packet(Packet::Read { volume: VolumeNumber(0), read: random.draw(), extent })
        }
        _ => {
            let len = random.below(600);
            let data = Payload::from(random.bytes(usize::try_from(len).expect("small")));
            let extent = Extent::new(random.below(1 << 20), len);
            let (volume, mode, missing) = (VolumeNumber(0), AckMode::C, NodeSet::default());
            Frame::Packet(Packet::Write { volume, sequence, extent, data, fua: false, mode, missing })
        }
    }
}
