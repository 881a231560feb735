//! The commands that a logical unit knows: one table that drives dispatch, REPORT SUPPORTED OPERATION CODES, what
//! reservations forbid (SPC-4 table 66, SBC-3 table 6) and what the path states allow (SPC-4 5.15.2.4).

use super::cdb::Cdb;
use super::medium;
use super::operation::{self as parse, Operation};
use super::reservation::Access;
use super::sense::Sense;
use super::unit::Unit;

/// How a command stands with the reservations of others.
#[derive(Clone, Copy, Debug)]
pub(super) enum Right {
    /// No reservation whatever forbids it.
    Always,
    /// A persistent reservation decides by what it does; RESERVE of another nexus forbids it.
    Does(Access),
    /// It counts as a write unless this holds.
    WritesUnless(fn(&Cdb) -> bool),
    /// It makes an SPC-2 reservation.
    Reserve,
    /// It ends one, or does nothing to that of another nexus.
    Release,
}

/// In which path states a command is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Needs {
    /// In all of them.
    Nothing,
    /// Where the node stands by, and where it serves.
    Standby,
    /// Where the node serves.
    Active,
}

/// One command.
pub(super) struct Opcode {
    pub(super) code: u8,
    pub(super) service_action: Option<u8>,
    usage: [u8; 16],
    len: u8,
    pub(super) right: Right,
    pub(super) needs: Needs,
    /// Whether a unit attention that waits is reported in its place (SAM-5 5.14.1).
    pub(super) reports_attention: bool,
    /// Whether it is there on thinly provisioned units only.
    thin: bool,
    pub(super) parse: fn(&Cdb, &Unit) -> Result<Operation, Sense>,
}

impl Opcode {
    /// The command that a CDB names.
    pub(super) fn find(cdb: &Cdb, unit: &Unit) -> Option<&'static Self> {
        let mut rows = Self::with_code(cdb.opcode(), unit);
        rows.find(|row| row.service_action.is_none_or(|action| action == cdb.service_action()))
    }

    /// The commands with this operation code.
    pub(super) fn with_code(code: u8, unit: &Unit) -> impl Iterator<Item = &'static Self> {
        let from = TABLE.partition_point(|row| row.code < code);
        let thin = unit.config.thin;
        TABLE[from..].iter().take_while(move |row| row.code == code).filter(move |row| thin || !row.thin)
    }

    /// Every command.
    pub(super) fn all(unit: &Unit) -> impl Iterator<Item = &'static Self> {
        let thin = unit.config.thin;
        TABLE.iter().filter(move |row| thin || !row.thin)
    }

    /// Which bits of its CDB the device server looks at (SPC-4 6.35.3).
    pub(super) fn usage(&self) -> &[u8] {
        &self.usage[..usize::from(self.len)]
    }

    /// The CONTROL byte of a CDB of this command.
    pub(super) const fn control(&self, cdb: &Cdb) -> u8 {
        cdb.byte(self.len as usize - 1)
    }

    /// Where the CONTROL byte stands.
    pub(super) const fn control_at(&self) -> u16 {
        self.len as u16 - 1
    }

    const fn action(mut self, service_action: u8) -> Self {
        self.service_action = Some(service_action);
        self.usage[1] |= service_action;
        self
    }

    /// No reservation and no unit attention stands in its way, and it is served on every path.
    const fn always(mut self) -> Self {
        self.right = Right::Always;
        self.reports_attention = false;
        self.needs = Needs::Nothing;
        self
    }

    const fn right(mut self, right: Right) -> Self {
        self.right = right;
        self
    }

    const fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    const fn thin(mut self) -> Self {
        self.thin = true;
        self
    }

    /// The bits of byte `at` that the device server looks at.
    const fn uses(mut self, at: usize, bits: u8) -> Self {
        self.usage[at] = bits;
        self
    }
}

/// A command whose CDB has `len` bytes, of which it looks at the bytes `from..to` whole.
const fn command(
    code: u8,
    len: u8,
    (from, to): (usize, usize),
    parse: fn(&Cdb, &Unit) -> Result<Operation, Sense>,
) -> Opcode {
    let mut usage = [0; 16];
    usage[0] = code;
    let mut at = from;
    while at < to {
        usage[at] = 0xff;
        at += 1;
    }
    usage[len as usize - 1] = NACA;
    Opcode {
        code,
        service_action: None,
        usage,
        len,
        right: Right::Does(Access::Any),
        needs: Needs::Active,
        reports_attention: true,
        thin: false,
        parse,
    }
}

/// A command on blocks, with the flags it knows in byte 1.
const fn blocks(code: u8, len: u8, flags: u8, access: Access, parse: ParseFn) -> Opcode {
    let whole = match len {
        6 => (2, 5),
        10 => (2, 6),
        12 => (2, 10),
        _ => (2, 14),
    };
    let row = command(code, len, whole, parse).right(Right::Does(access)).uses(1, flags);
    if len == 10 { row.uses(7, 0xff).uses(8, 0xff) } else { row }
}

type ParseFn = fn(&Cdb, &Unit) -> Result<Operation, Sense>;

/// Normal ACA, which nobody asks for and we do not know. A transport sees it refused.
pub(super) const NACA: u8 = 0x04;

const DPO_FUA: u8 = 0x18;
const DPO_BYTCHK: u8 = 0x16;

/// Sorted by operation code and service action.
static TABLE: &[Opcode] = &[
    command(0x00, 6, (0, 0), parse::nothing),
    command(0x03, 6, (4, 5), parse::request_sense).always().uses(1, 0x01),
    blocks(0x08, 6, 0x1f, Access::Read, medium::read6),
    blocks(0x0a, 6, 0x1f, Access::Write, medium::write6),
    command(0x12, 6, (2, 5), parse::inquiry).always().uses(1, 0x01),
    command(0x15, 6, (4, 5), parse::mode_select6).right(WRITES).needs(Needs::Standby).uses(1, 0x11),
    command(0x16, 6, (0, 0), parse::reserve6).right(Right::Reserve).needs(Needs::Standby),
    command(0x17, 6, (0, 0), parse::release6).right(Right::Release).needs(Needs::Standby),
    command(0x1a, 6, (2, 5), parse::mode_sense6).right(READS).needs(Needs::Standby).uses(1, 0x08),
    command(0x1b, 6, (0, 0), parse::start_stop)
        .right(Right::WritesUnless(|cdb| cdb.byte(4) & 0x01 != 0))
        .uses(1, 0x01)
        .uses(4, 0x05),
    command(0x1d, 6, (3, 5), parse::send_diagnostic).right(WRITES).uses(1, 0x04),
    command(0x1e, 6, (0, 0), parse::prevent_allow)
        .right(Right::WritesUnless(|cdb| matches!(cdb.byte(4) & 0x03, 0)))
        .uses(4, 0x03),
    command(0x25, 10, (0, 0), parse::read_capacity10).needs(Needs::Standby),
    blocks(0x28, 10, DPO_FUA, Access::Read, medium::read10),
    blocks(0x2a, 10, DPO_FUA, Access::Write, medium::write10),
    blocks(0x2e, 10, 0x12, Access::Write, medium::write_and_verify10),
    blocks(0x2f, 10, DPO_BYTCHK, Access::Read, medium::verify10),
    blocks(0x34, 10, 0x02, Access::Read, medium::prefetch10),
    blocks(0x35, 10, 0x02, Access::Write, medium::synchronize_cache10),
    command(0x37, 10, (7, 9), parse::read_defect_data10).right(READS).uses(2, 0x1f),
    blocks(0x41, 10, 0x08, Access::Write, medium::write_same10),
    command(0x42, 10, (7, 9), medium::unmap).right(WRITES).thin(),
    command(0x4d, 10, (7, 9), parse::log_sense).needs(Needs::Standby).uses(2, 0xff).uses(3, 0xff),
    command(0x55, 10, (7, 9), parse::mode_select10).right(WRITES).needs(Needs::Standby).uses(1, 0x11),
    command(0x56, 10, (0, 0), parse::reserve10).right(Right::Reserve).needs(Needs::Standby),
    command(0x57, 10, (0, 0), parse::release10).right(Right::Release).needs(Needs::Standby),
    command(0x5a, 10, (7, 9), parse::mode_sense10)
        .right(READS)
        .needs(Needs::Standby)
        .uses(1, 0x18)
        .uses(2, 0xff)
        .uses(3, 0xff),
    persistent_in(0),
    persistent_in(1),
    persistent_in(2),
    persistent_in(3),
    persistent_out(0),
    persistent_out(1),
    persistent_out(2),
    persistent_out(3),
    persistent_out(4),
    persistent_out(5),
    persistent_out(6),
    persistent_out(7),
    command(0x83, 16, (10, 14), parse::extended_copy).right(WRITES).action(0x00),
    receive_copy_results(0x00),
    receive_copy_results(0x03),
    receive_copy_results(0x04),
    blocks(0x88, 16, DPO_FUA, Access::Read, medium::read16),
    command(0x89, 16, (2, 10), medium::compare_and_write).right(WRITES).uses(1, DPO_FUA).uses(13, 0xff),
    blocks(0x8a, 16, DPO_FUA, Access::Write, medium::write16),
    blocks(0x8b, 16, DPO_FUA, Access::Write, medium::orwrite),
    blocks(0x8e, 16, 0x12, Access::Write, medium::write_and_verify16),
    blocks(0x8f, 16, DPO_BYTCHK, Access::Read, medium::verify16),
    blocks(0x90, 16, 0x02, Access::Read, medium::prefetch16),
    blocks(0x91, 16, 0x02, Access::Write, medium::synchronize_cache16),
    blocks(0x93, 16, 0x09, Access::Write, medium::write_same16),
    command(0x9e, 16, (10, 14), parse::read_capacity16).needs(Needs::Standby).action(0x10),
    command(0x9e, 16, (2, 14), medium::get_lba_status).right(READS).action(0x12),
    command(0xa0, 12, (6, 10), parse::report_luns).always().uses(2, 0xff),
    command(0xa3, 12, (6, 10), parse::report_target_port_groups)
        .needs(Needs::Nothing)
        .uses(1, 0xe0)
        .action(0x0a),
    command(0xa3, 12, (3, 10), parse::report_opcodes).needs(Needs::Standby).uses(2, 0x87).action(0x0c),
    command(0xa3, 12, (6, 10), parse::report_task_management)
        .needs(Needs::Standby)
        .uses(2, 0x80)
        .action(0x0d),
    blocks(0xa8, 12, DPO_FUA, Access::Read, medium::read12),
    blocks(0xaa, 12, DPO_FUA, Access::Write, medium::write12),
    blocks(0xae, 12, 0x12, Access::Write, medium::write_and_verify12),
    blocks(0xaf, 12, DPO_BYTCHK, Access::Read, medium::verify12),
    command(0xb7, 12, (2, 10), parse::read_defect_data12).right(READS).uses(1, 0x1f),
];

const READS: Right = Right::Does(Access::Read);
const WRITES: Right = Right::Does(Access::Write);

const fn persistent_in(service_action: u8) -> Opcode {
    command(0x5e, 10, (7, 9), parse::persistent_in).needs(Needs::Standby).action(service_action)
}

const fn receive_copy_results(service_action: u8) -> Opcode {
    command(0x84, 16, (10, 14), parse::receive_copy_results)
        .right(WRITES)
        .uses(2, 0xff)
        .action(service_action)
}

/// The registry itself says who may.
const fn persistent_out(service_action: u8) -> Opcode {
    command(0x5f, 10, (5, 9), parse::persistent_out)
        .needs(Needs::Standby)
        .uses(2, 0xff)
        .action(service_action)
}
