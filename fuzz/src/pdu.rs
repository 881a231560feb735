//! The decoder of iSCSI PDUs: mutated, cut, with and without digests.

use bytes::BytesMut;
use harness::{
    load::Random,
    raw::{Login, Pdu, opcode},
    target::IQN,
};
use target_proto::iscsi::pdu::{Decoder, Digests, Sender};

use crate::mutate::{index, mutate, pieces};

/// Feeds one mutated stream to a decoder.
pub(crate) fn case(mut random: Random) {
    let mut bytes = stream(&mut random);
    mutate(&mut random, &mut bytes);
    let digests = Digests { header: random.below(4) == 0, data: random.below(4) == 0 };
    let sender = if random.below(4) == 0 { Sender::Target } else { Sender::Initiator };
    let mut decoder = Decoder::new(sender, 8192, digests);
    let mut buffer = BytesMut::new();
    for piece in pieces(&mut random, &bytes) {
        buffer.extend_from_slice(piece);
        loop {
            let before = buffer.len();
            match decoder.next(&mut buffer) {
                Ok(Some(_)) => assert!(buffer.len() < before, "a PDU of no bytes"),
                Ok(None) => break,
                // A PDU that can be rejected was taken; after any other error the connection ends.
                Err(error) if error.reject().is_some() => assert!(buffer.len() < before, "rejected for ever"),
                Err(_) => return,
            }
        }
    }
}

/// A few PDUs of any kind, one behind the other.
fn stream(random: &mut Random) -> Vec<u8> {
    (0..=random.below(3)).flat_map(|_| any(random).encode()).collect()
}

/// A PDU that an initiator would send.
fn any(random: &mut Random) -> Pdu {
    let opcode = OPCODES[index(random, OPCODES.len())];
    if opcode == opcode::LOGIN {
        return Login::normal(IQN).key("MaxBurstLength", "65536").pdu();
    }
    let len = index(random, 64);
    let mut pdu = Pdu::new(opcode).flags(FLAGS[index(random, FLAGS.len())]).data(random.bytes(len));
    for at in (16..48).step_by(4) {
        pdu = pdu.word(at, u32::try_from(random.below(8)).expect("below 8"));
    }
    if random.below(8) == 0 {
        // An extended CDB, or a bidirectional length (RFC 7143 11.2.2).
        pdu.additional = vec![0, 5, 2, 0, 0, 0, 0, 0];
    }
    pdu
}

const OPCODES: [u8; 16] = [
    opcode::NOP_OUT,
    opcode::SCSI_COMMAND,
    opcode::TASK_MANAGEMENT,
    opcode::LOGIN,
    opcode::TEXT,
    opcode::DATA_OUT,
    opcode::LOGOUT,
    opcode::SNACK,
    opcode::NOP_IN,
    opcode::SCSI_RESPONSE,
    opcode::TEXT_RESPONSE,
    opcode::DATA_IN,
    opcode::R2T,
    opcode::ASYNC,
    opcode::REJECT,
    0x1f,
];
const FLAGS: [u8; 6] = [0x80, 0, 0xa1, 0xc1, 0xe1, 0x87];
