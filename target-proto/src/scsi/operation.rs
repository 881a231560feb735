//! What a CDB asks for, read and checked, before anything of it is done (SPC-4 6).

use super::Transfer;
use super::cdb::Cdb;
use super::copy::{self, CopySubject};
use super::medium::Medium;
use super::mode::PageControl;
use super::reservation::ReservationType;
use super::sense::{Additional, Sense, SenseFormat};
use super::unit::Unit;

/// What a command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// It moves or examines blocks.
    Medium(Medium),
    /// It is done as soon as it is understood.
    Nothing,
    /// It returns what there is to tell, up to `allocation` bytes.
    Inform { subject: Subject, allocation: u32 },
    /// MODE SELECT: changes mode pages.
    ModeSelect { long: bool, list_len: u32 },
    /// RESERVE.
    Reserve,
    /// RELEASE.
    Release,
    /// EXTENDED COPY.
    ExtendedCopy { list_len: u32 },
    /// PERSISTENT RESERVE OUT.
    PersistentOut { action: PersistentAction, kind: Option<ReservationType>, list_len: u32 },
}

/// What an initiator wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// INQUIRY: the standard data, or a page of vital product data.
    Inquiry { page: Option<u8> },
    /// REPORT LUNS.
    Luns { select: u8 },
    /// REQUEST SENSE.
    Sense { format: SenseFormat },
    /// READ CAPACITY(10).
    Capacity10,
    /// READ CAPACITY(16).
    Capacity16,
    /// MODE SENSE.
    Mode { long: bool, descriptors: Descriptors, control: PageControl, page: u8, subpage: u8 },
    /// LOG SENSE, of this page.
    Log { page: u8 },
    /// READ DEFECT DATA, with the lists and the format that are asked for.
    Defects { long: bool, format: u8 },
    /// REPORT TARGET PORT GROUPS.
    PortGroups { extended: bool },
    /// REPORT SUPPORTED OPERATION CODES.
    Opcodes { select: OpcodeSelect, timeouts: bool },
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
    TaskManagement { extended: bool },
    /// PERSISTENT RESERVE IN, READ KEYS.
    Keys,
    /// PERSISTENT RESERVE IN, READ RESERVATION.
    Reservation,
    /// PERSISTENT RESERVE IN, REPORT CAPABILITIES.
    ReservationCapabilities,
    /// PERSISTENT RESERVE IN, READ FULL STATUS.
    FullStatus,
    /// RECEIVE COPY RESULTS.
    Copy(CopySubject),
}

/// The block descriptors of MODE SENSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Descriptors {
    None,
    Short,
    Long,
}

/// The commands that REPORT SUPPORTED OPERATION CODES is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpcodeSelect {
    /// All of them.
    All,
    /// The one with this code, which may have no service actions.
    Code(u8),
    /// The one with this code and service action, which has to have them.
    Action(u8, u16),
    /// The one with this code, and service action where it has them.
    Either(u8, u16),
}

/// The service action of PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PersistentAction {
    Register,
    Reserve,
    Release,
    Clear,
    Preempt,
    PreemptAndAbort,
    RegisterAndIgnore,
    RegisterAndMove,
}

impl Operation {
    /// What it moves.
    pub(super) fn transfer(&self, unit: &Unit) -> Transfer {
        match self {
            Self::Medium(medium) => {
                Transfer { data_in: medium.data_in(), data_out: medium.data_out(unit.block_len()) }
            }
            Self::Inform { allocation, .. } => Transfer { data_in: *allocation, data_out: 0 },
            Self::ModeSelect { list_len, .. }
            | Self::ExtendedCopy { list_len }
            | Self::PersistentOut { list_len, .. } => Transfer { data_in: 0, data_out: *list_len },
            Self::Nothing | Self::Reserve | Self::Release => Transfer::default(),
        }
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "it ends the functions of the command table, which have one type"
)]
const fn inform(subject: Subject, allocation: u32) -> Result<Operation, Sense> {
    Ok(Operation::Inform { subject, allocation })
}

/// TEST UNIT READY, SPC-4 6.47.
#[expect(clippy::unnecessary_wraps, reason = "the functions of the command table have one type")]
pub(super) fn nothing(_: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    Ok(Operation::Nothing)
}

/// REQUEST SENSE, SPC-4 6.39.
pub(super) fn request_sense(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    let format = if cdb.byte(1) & 0x01 != 0 { SenseFormat::Descriptor } else { SenseFormat::Fixed };
    inform(Subject::Sense { format }, cdb.length8(4))
}

/// INQUIRY, SPC-4 6.6.
pub(super) fn inquiry(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    let (vital, code) = (cdb.byte(1) & 0x01 != 0, cdb.byte(2));
    if !vital && code != 0 {
        return Err(Sense::cdb_byte(2));
    }
    inform(Subject::Inquiry { page: vital.then_some(code) }, cdb.length16(3)?)
}

/// MODE SELECT(6), SPC-4 6.11.
pub(super) fn mode_select6(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    mode_select(cdb, false, cdb.length8(4))
}

/// MODE SELECT(10), SPC-4 6.12.
pub(super) fn mode_select10(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    mode_select(cdb, true, cdb.length16(7)?)
}

/// Pages are not saved, so SP is refused.
const fn mode_select(cdb: &Cdb, long: bool, list_len: u32) -> Result<Operation, Sense> {
    if cdb.byte(1) & 0x01 != 0 {
        return Err(Sense::cdb_bit(1, 0));
    }
    Ok(Operation::ModeSelect { long, list_len })
}

/// MODE SENSE(6), SPC-4 6.13.
pub(super) fn mode_sense6(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    mode_sense(cdb, false, Descriptors::Short, cdb.length8(4))
}

/// MODE SENSE(10), SPC-4 6.14.
pub(super) fn mode_sense10(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    let descriptors = if cdb.byte(1) & 0x10 != 0 { Descriptors::Long } else { Descriptors::Short };
    mode_sense(cdb, true, descriptors, cdb.length16(7)?)
}

fn mode_sense(cdb: &Cdb, long: bool, descriptors: Descriptors, allocation: u32) -> Result<Operation, Sense> {
    let control = match cdb.byte(2) >> 6 {
        0 => PageControl::Current,
        1 => PageControl::Changeable,
        2 => PageControl::Default,
        _ => return Err(Sense::illegal(Additional::SAVING_NOT_SUPPORTED)),
    };
    let disabled = cdb.byte(1) & 0x08 != 0;
    let descriptors = if disabled { Descriptors::None } else { descriptors };
    let (page, subpage) = (cdb.byte(2) & 0x3f, cdb.byte(3));
    inform(Subject::Mode { long, descriptors, control, page, subpage }, allocation)
}

/// LOG SENSE, SPC-4 6.9.
pub(super) fn log_sense(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    if cdb.byte(1) & 0x01 != 0 {
        return Err(Sense::cdb_bit(1, 0));
    }
    if cdb.byte(3) != 0 {
        return Err(Sense::cdb_byte(3));
    }
    inform(Subject::Log { page: cdb.byte(2) & 0x3f }, cdb.length16(7)?)
}

/// START STOP UNIT, SBC-3 5.23. The unit has no power conditions and no medium to eject: a stop writes back what
/// volatile caches hold, unless `NO_FLUSH` is set, and the unit goes on serving its other initiators.
pub(super) fn start_stop(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    let flags = cdb.byte(4);
    if flags & 0xf0 != 0 {
        return Err(Sense::cdb_bit(4, 7));
    }
    if flags & 0x02 != 0 {
        return Err(Sense::cdb_bit(4, 1));
    }
    let stops = flags & 0x05 == 0;
    Ok(if stops { Operation::Medium(Medium::Flush) } else { Operation::Nothing })
}

/// SEND DIAGNOSTIC, SPC-4 6.42: the default self-test, which is passed, and nothing else.
pub(super) fn send_diagnostic(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    if cdb.byte(1) & 0xe0 != 0 {
        return Err(Sense::cdb_bit(1, 7));
    }
    if cdb.length16(3)? != 0 {
        return Err(Sense::cdb_byte(3));
    }
    Ok(Operation::Nothing)
}

/// PREVENT ALLOW MEDIUM REMOVAL, SBC-3 5.7: the medium can not be removed anyway.
pub(super) fn prevent_allow(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    if cdb.byte(4) & 0x02 != 0 {
        return Err(Sense::cdb_bit(4, 1));
    }
    Ok(Operation::Nothing)
}

/// RESERVE(6), SPC-2 7.22.
pub(super) fn reserve6(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    check_own_unit(cdb).map(|()| Operation::Reserve)
}

/// RESERVE(10), SPC-2 7.21.
pub(super) fn reserve10(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    check_own_unit(cdb).map(|()| Operation::Reserve)
}

/// RELEASE(6), SPC-2 7.17.
pub(super) fn release6(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    check_own_unit(cdb).map(|()| Operation::Release)
}

/// RELEASE(10), SPC-2 7.16.
pub(super) fn release10(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    check_own_unit(cdb).map(|()| Operation::Release)
}

/// No third party, no extents: the whole unit, for the sender.
const fn check_own_unit(cdb: &Cdb) -> Result<(), Sense> {
    if cdb.byte(1) & 0x10 != 0 {
        return Err(Sense::cdb_bit(1, 4));
    }
    if cdb.byte(1) & 0x01 != 0 {
        return Err(Sense::cdb_bit(1, 0));
    }
    Ok(())
}

/// READ CAPACITY(10), SBC-3 5.15.
pub(super) fn read_capacity10(_: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    inform(Subject::Capacity10, 8)
}

/// READ CAPACITY(16), SBC-3 5.16.
pub(super) fn read_capacity16(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    inform(Subject::Capacity16, cdb.length32(10)?)
}

/// READ DEFECT DATA(10), SBC-3 5.17.
pub(super) fn read_defect_data10(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    inform(Subject::Defects { long: false, format: cdb.byte(2) & 0x1f }, cdb.length16(7)?)
}

/// READ DEFECT DATA(12), SBC-3 5.18.
pub(super) fn read_defect_data12(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    inform(Subject::Defects { long: true, format: cdb.byte(1) & 0x1f }, cdb.length32(6)?)
}

/// REPORT LUNS, SPC-4 6.33.
pub(super) fn report_luns(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    let select = cdb.byte(2);
    if select > 2 {
        return Err(Sense::cdb_byte(2));
    }
    inform(Subject::Luns { select }, cdb.length32(6)?)
}

/// REPORT TARGET PORT GROUPS, SPC-4 6.37.
pub(super) fn report_target_port_groups(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    let extended = match cdb.byte(1) >> 5 {
        0 => false,
        1 => true,
        _ => return Err(Sense::cdb_bit(1, 7)),
    };
    inform(Subject::PortGroups { extended }, cdb.length32(6)?)
}

/// REPORT SUPPORTED OPERATION CODES, SPC-4 6.35.
pub(super) fn report_opcodes(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    let (code, action) = (cdb.byte(3), u16::from_be_bytes([cdb.byte(4), cdb.byte(5)]));
    let select = match cdb.byte(2) & 0x07 {
        0 => OpcodeSelect::All,
        1 => OpcodeSelect::Code(code),
        2 => OpcodeSelect::Action(code, action),
        3 => OpcodeSelect::Either(code, action),
        _ => return Err(Sense::cdb_bit(2, 2)),
    };
    inform(Subject::Opcodes { select, timeouts: cdb.byte(2) & 0x80 != 0 }, cdb.length32(6)?)
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS, SPC-4 6.36.
pub(super) fn report_task_management(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    let allocation = cdb.length32(6)?;
    if allocation < 4 {
        return Err(Sense::cdb_byte(6));
    }
    inform(Subject::TaskManagement { extended: cdb.byte(2) & 0x80 != 0 }, allocation)
}

/// PERSISTENT RESERVE IN, SPC-4 6.15.
pub(super) fn persistent_in(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    let subject = match cdb.service_action() {
        0 => Subject::Keys,
        1 => Subject::Reservation,
        2 => Subject::ReservationCapabilities,
        3 => Subject::FullStatus,
        _ => return Err(Sense::cdb_bit(1, 4)),
    };
    inform(subject, cdb.length16(7)?)
}

/// PERSISTENT RESERVE OUT, SPC-4 6.16. Scope and type count for those actions only that have them.
pub(super) fn persistent_out(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    let action = match cdb.service_action() {
        0 => PersistentAction::Register,
        1 => PersistentAction::Reserve,
        2 => PersistentAction::Release,
        3 => PersistentAction::Clear,
        4 => PersistentAction::Preempt,
        5 => PersistentAction::PreemptAndAbort,
        6 => PersistentAction::RegisterAndIgnore,
        7 => PersistentAction::RegisterAndMove,
        _ => return Err(Sense::cdb_bit(1, 4)),
    };
    let (scope, kind) = (cdb.byte(2) >> 4, ReservationType::from_code(cdb.byte(2) & 0x0f));
    if matches!(action, PersistentAction::Reserve | PersistentAction::Release) {
        if scope != 0 {
            return Err(Sense::cdb_bit(2, 7));
        }
        if kind.is_none() {
            return Err(Sense::cdb_bit(2, 3));
        }
    }
    let list_len = cdb.length32(5)?;
    if list_len > PERSISTENT_LIST_MAX {
        return Err(Sense::illegal(Additional::PARAMETER_LIST_LENGTH));
    }
    Ok(Operation::PersistentOut { action, kind, list_len })
}

/// EXTENDED COPY(LID1), SPC-4 6.4.
pub(super) fn extended_copy(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    let list_len = cdb.length32(10)?;
    if list_len > copy::LIST_LEN_MAX {
        return Err(Sense::illegal(Additional::PARAMETER_LIST_LENGTH));
    }
    Ok(Operation::ExtendedCopy { list_len })
}

/// RECEIVE COPY RESULTS: RECEIVE COPY STATUS(LID1), SPC-4 6.21, OPERATING PARAMETERS, 6.20, and FAILURE DETAILS, 6.19.
pub(super) fn receive_copy_results(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    let (list, allocation) = (cdb.byte(2), cdb.length32(10)?);
    let subject = match cdb.service_action() {
        0 => CopySubject::Status { list },
        3 => CopySubject::Parameters,
        4 => CopySubject::Failure { list, allocation },
        _ => return Err(Sense::cdb_bit(1, 4)),
    };
    inform(Subject::Copy(subject), allocation)
}

/// The longest parameter list of PERSISTENT RESERVE OUT that we take, in bytes.
const PERSISTENT_LIST_MAX: u32 = 64 << 10;
