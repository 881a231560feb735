//! What an initiator does wrong, byte by byte, and what it gets for it.

use super::*;
use crate::iscsi::pdu::{DataOut, ScsiCommand};

pub(super) fn command(cdb: [u8; 16], direction: Direction, len: u32) -> ScsiCommand {
    ScsiCommand {
        immediate: false,
        last: true,
        direction,
        attribute: TaskAttribute::Simple,
        lun: 0,
        task: 1,
        expected_len: len,
        cmd_sn: u32::MAX - 3,
        exp_stat_sn: 0,
        cdb,
        bidirectional_len: None,
        data: Bytes::new(),
    }
}

pub(super) fn put(bytes: &mut BytesMut, pdu: &Pdu) {
    let mut output = Output::new();
    pdu.write(&mut output);
    bytes.extend_from_slice(&drain(&mut output));
}
