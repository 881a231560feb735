//! What a unit tells of itself beside INQUIRY and mode pages: its size, its logs, its commands (SPC-4 6, SBC-3 5).

use block::VolumeNumber;
use bytes::{BufMut as _, BytesMut};

use super::length::{len16, len32};
use super::opcode::Opcode;
use super::operation::OpcodeSelect;
use super::sense::Sense;
use super::unit::Unit;

/// READ CAPACITY(10) (SBC-3 5.15.2). A unit that does not fit says so, and the sender goes on with the longer form.
pub(super) fn capacity10(unit: &Unit) -> BytesMut {
    let mut data = BytesMut::with_capacity(8);
    data.put_u32(u32::try_from(unit.blocks().saturating_sub(1)).unwrap_or(u32::MAX));
    data.put_u32(unit.block_len());
    data
}

/// READ CAPACITY(16) (SBC-3 5.16.2).
pub(super) fn capacity16(unit: &Unit) -> BytesMut {
    let mut data = BytesMut::with_capacity(32);
    data.put_u64(unit.blocks().saturating_sub(1));
    data.put_u32(unit.block_len());
    let exponent = unit.config.physical_block_size.shift().saturating_sub(unit.block_size().shift());
    data.put_slice(&[
        0,
        u8::try_from(exponent).unwrap_or(0),
        if unit.config.thin { LBPME | LBPRZ } else { 0 },
    ]);
    data.put_bytes(0, 32 - data.len());
    data
}

/// REPORT LUNS (SPC-4 6.33). There are no well known logical units.
pub(super) fn luns(select: u8, volumes: impl Iterator<Item = VolumeNumber>) -> BytesMut {
    let mut list = BytesMut::new();
    if select != WELL_KNOWN_ONLY {
        for volume in volumes {
            list.put_u64(encode_lun(volume));
        }
    }
    let mut data = BytesMut::with_capacity(8 + list.len());
    data.put_u32(len32(list.len()));
    data.put_u32(0);
    data.put_slice(&list);
    data
}

/// The LUN of a volume: by peripheral addressing where it fits, flat where not (SAM-5 4.7.7).
pub(super) const fn encode_lun(volume: VolumeNumber) -> u64 {
    let lun = if volume.0 < 0x100 { volume.0 } else { FLAT | volume.0 };
    (lun as u64) << 48
}

/// The volume that a LUN names by a single level of addressing.
pub(super) const fn decode_lun(lun: u64) -> Option<VolumeNumber> {
    if lun << 16 != 0 {
        return None;
    }
    let [high, low, ..] = lun.to_be_bytes();
    let first = u16::from_be_bytes([high, low]);
    match first & METHOD {
        0 if first < 0x100 => Some(VolumeNumber(first)),
        FLAT => Some(VolumeNumber(first & !METHOD)),
        _ => None,
    }
}

/// LOG SENSE (SPC-4 7.3): the list of pages, and informational exceptions, of which there are none.
pub(super) fn log(page: u8) -> Result<BytesMut, Sense> {
    let parameters: &[u8] = match page {
        LOG_PAGES => &[LOG_PAGES, LOG_EXCEPTIONS],
        // Parameter 0 in a format of its own: no additional sense code, and no known temperature.
        LOG_EXCEPTIONS => &[0, 0, 0x03, 4, 0, 0, 0xff, 0],
        _ => return Err(Sense::cdb_bit(2, 5)),
    };
    let mut data = BytesMut::with_capacity(4 + parameters.len());
    data.put_slice(&[page, 0]);
    data.put_u16(len16(parameters.len()));
    data.put_slice(parameters);
    Ok(data)
}

/// READ DEFECT DATA (SBC-3 5.17): both lists are empty, in whatever format.
pub(super) fn defects(long: bool, format: u8) -> BytesMut {
    let mut data = BytesMut::with_capacity(8);
    data.put_slice(&[0, format]);
    data.put_bytes(0, if long { 6 } else { 2 });
    data
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 6.36), as the iSCSI layer carries them out.
pub(super) fn task_management(extended: bool) -> BytesMut {
    let mut data = BytesMut::with_capacity(16);
    data.put_slice(&[ABORT_TASK | ABORT_TASK_SET | CLEAR_TASK_SET | LOGICAL_UNIT_RESET | TARGET_RESET, 0, 0]);
    data.put_u8(if extended { 12 } else { 0 });
    data.put_bytes(0, if extended { 12 } else { 0 });
    data
}

/// REPORT SUPPORTED OPERATION CODES (SPC-4 6.35).
pub(super) fn opcodes(unit: &Unit, select: OpcodeSelect, timeouts: bool) -> Result<BytesMut, Sense> {
    let (code, action) = match select {
        OpcodeSelect::All => return Ok(all_opcodes(unit, timeouts)),
        OpcodeSelect::Code(code) => (code, None),
        OpcodeSelect::Action(code, action) | OpcodeSelect::Either(code, action) => (code, Some(action)),
    };
    let has_actions = Opcode::with_code(code, unit).any(|row| row.service_action.is_some());
    let exists = Opcode::with_code(code, unit).next().is_some();
    match select {
        OpcodeSelect::Code(_) if has_actions => return Err(Sense::cdb_bit(2, 2)),
        OpcodeSelect::Action(..) if exists && !has_actions => return Err(Sense::cdb_bit(2, 2)),
        _ => {}
    }
    let wanted = action.filter(|_| has_actions);
    let row = Opcode::with_code(code, unit).find(|row| row.service_action.map(u16::from) == wanted);
    let usage = row.map_or(&[][..], Opcode::usage);
    let mut data = BytesMut::new();
    let support = if row.is_some() { SUPPORTED } else { NOT_SUPPORTED };
    data.put_slice(&[0, support | if timeouts && row.is_some() { ONE_CTDP } else { 0 }]);
    data.put_u16(len16(usage.len()));
    data.put_slice(usage);
    if timeouts && row.is_some() {
        data.put_slice(&TIMEOUTS);
    }
    Ok(data)
}

fn all_opcodes(unit: &Unit, timeouts: bool) -> BytesMut {
    let mut list = BytesMut::new();
    for row in Opcode::all(unit) {
        list.put_slice(&[row.code, 0]);
        list.put_u16(row.service_action.unwrap_or(0).into());
        let servactv = if row.service_action.is_some() { SERVACTV } else { 0 };
        list.put_slice(&[0, servactv | if timeouts { CTDP } else { 0 }]);
        list.put_u16(len16(row.usage().len()));
        if timeouts {
            list.put_slice(&TIMEOUTS);
        }
    }
    let mut data = BytesMut::with_capacity(4 + list.len());
    data.put_u32(len32(list.len()));
    data.put_slice(&list);
    data
}

const LBPME: u8 = 0x80;
const LBPRZ: u8 = 0x40;
const WELL_KNOWN_ONLY: u8 = 1;
const METHOD: u16 = 0xc000;
const FLAT: u16 = 0x4000;
const LOG_PAGES: u8 = 0x00;
const LOG_EXCEPTIONS: u8 = 0x2f;
const ABORT_TASK: u8 = 0x80;
const ABORT_TASK_SET: u8 = 0x40;
const CLEAR_TASK_SET: u8 = 0x10;
const LOGICAL_UNIT_RESET: u8 = 0x08;
const TARGET_RESET: u8 = 0x02;
const NOT_SUPPORTED: u8 = 0x01;
const SUPPORTED: u8 = 0x03;
const ONE_CTDP: u8 = 0x80;
const CTDP: u8 = 0x02;
const SERVACTV: u8 = 0x01;
/// A command timeouts descriptor that names no times.
const TIMEOUTS: [u8; 12] = [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[cfg(test)]
mod tests {
    use super::*;

    /// SAM-5 4.7: every volume has one LUN that names it, and other ways of addressing name none.
    #[test]
    fn luns_name_volumes() {
        for volume in 0..0x4000 {
            assert_eq!(decode_lun(encode_lun(VolumeNumber(volume))), Some(VolumeNumber(volume)));
        }
        assert_eq!(decode_lun(0x4001 << 48), Some(VolumeNumber(1)), "flat addressing of a low number");
        for lun in [0x0101 << 48, 0x8001 << 48, 0xc101 << 48, 0x0001_0001 << 32, 1] {
            assert_eq!(decode_lun(lun), None, "{lun:#x}");
        }
    }
}
