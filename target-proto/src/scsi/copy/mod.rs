//! EXTENDED COPY(LID1) (SPC-4 6.4): blocks copied from volume to volume of one target, without the initiator.
//!
//! Only logical units of the target that got the command can be named: whoever may send it may read and write
//! them all. Reservations and write protection are looked at before each piece that is read or written.

mod list;
mod results;

use std::sync::Arc;
use std::vec;

use block::{Command, Extent, Failure, Payload, Status, VolumeNumber};
use bytes::BytesMut;

use self::list::{Cscd, Segment};
pub(super) use self::results::{Copies, CopySubject, put_page};
use self::results::{CopyId, Token, operating_parameters};
use super::reservation::Access;
use super::sense::{Additional, Sense, SenseKey};
use super::target::Refused;
use super::unit::Unit;
use super::work::{Context, PIECE_LEN, Work, good, split};
use super::{NexusId, Response, ScsiStatus, Step, Target, inquiry};

/// What is left of a copy between two steps.
#[derive(Debug)]
pub(super) struct Copy {
    nexus: NexusId,
    /// By what it is asked about.
    id: Option<CopyId>,
    /// The logical units that take part, or why one is out of reach.
    units: Vec<Result<VolumeNumber, Additional>>,
    segments: vec::IntoIter<Segment>,
    /// How many segments are copied.
    done: u16,
    /// The segment that is being copied.
    now: Option<Move>,
    /// Whether the next status is that of a read.
    reads: bool,
    _token: Arc<Token>,
}

/// A segment that is being copied.
#[derive(Clone, Copy, Debug)]
struct Move {
    source: VolumeNumber,
    destination: VolumeNumber,
    from: Extent,
    to: Extent,
    /// From the end to the start, because the destination covers the end of the source.
    backward: bool,
}

impl Move {
    /// The next piece, and what is left behind it.
    fn piece(self) -> (Self, Self) {
        let first = self.from.len.min(PIECE_LEN);
        let at = if self.backward { self.from.len - first } else { first };
        let ((from, from_rest), (to, to_rest)) = (split(self.from, at), split(self.to, at));
        let (low, high) = (Self { from, to, ..self }, Self { from: from_rest, to: to_rest, ..self });
        if self.backward { (high, low) } else { (low, high) }
    }
}

/// Starts a copy.
///
/// # Errors
/// When the list breaks its form or a limit, or as many copies as we announce run.
pub(super) fn start(
    target: &mut Target,
    context: Context,
    nexus: NexusId,
    list: &[u8],
) -> Result<Step, Refused> {
    if list.is_empty() {
        return Ok(good());
    }
    let list = list::read(list)?;
    let units = list.cscds.iter().map(|cscd| find(target, cscd)).collect::<Result<_, _>>()?;
    let id = list.id.map(|list| CopyId { nexus, volume: context.volume, list });
    let token = target.copies.begin(id)?;
    let segments = list.segments.into_iter();
    let copy = Copy { nexus, id, units, segments, done: 0, now: None, reads: false, _token: token };
    Ok(proceed(target, context, Box::new(copy)))
}

/// Goes on after a piece was read or written.
pub(super) fn resume(target: &mut Target, context: Context, mut copy: Box<Copy>, status: Status) -> Step {
    let now = copy.now.map(Move::piece);
    match (status, now) {
        (Status::Failed(failure), _) => failed(target, context, &copy, failure),
        (Status::Data(data), Some((piece, _))) if copy.reads && data.len() as u64 == piece.from.len => {
            write(target, context, copy, piece, data)
        }
        (Status::Done, Some((piece, rest))) if !copy.reads => {
            if let Some(id) = copy.id {
                target.copies.advance(id, copy.done, piece.to.len);
            }
            copy.now = Some(rest);
            proceed(target, context, copy)
        }
        _ => {
            let sense = Sense::new(SenseKey::HardwareError, Additional::INTERNAL_FAILURE);
            end(target, &copy, Response::check(sense, context.format))
        }
    }
}

/// RECEIVE COPY RESULTS.
///
/// # Errors
/// When there is no such copy to tell of.
pub(super) fn inform(
    target: &mut Target,
    nexus: NexusId,
    volume: VolumeNumber,
    subject: CopySubject,
) -> Result<BytesMut, Sense> {
    let id = |list| CopyId { nexus, volume, list };
    match subject {
        CopySubject::Status { list } => target.copies.status(id(list)),
        CopySubject::Failure { list, allocation } => Ok(target.copies.failure(id(list), allocation)),
        CopySubject::Parameters => {
            let unit = target.units.get(&volume).ok_or(Sense::illegal(Additional::UNSUPPORTED_LUN))?;
            Ok(operating_parameters(unit.block_exponent()))
        }
    }
}

/// The logical unit that a descriptor names. Naming none is an error of the segment that needs it (SPC-4 6.4.5.1).
fn find(target: &Target, cscd: &Cscd) -> Result<Result<VolumeNumber, Additional>, Sense> {
    if cscd.null {
        return Ok(Err(Additional::COPY_TARGET_NOT_REACHABLE));
    }
    if cscd.device_type != DISK {
        return Ok(Err(Additional::INCORRECT_COPY_TARGET_TYPE));
    }
    let named = |unit: &&Unit| inquiry::is_named(unit, (cscd.code_set, cscd.kind), cscd.designator());
    let Some(unit) = target.units.values().find(named) else {
        return Ok(Err(Additional::COPY_TARGET_NOT_REACHABLE));
    };
    if cscd.block_len != unit.block_len() {
        return Err(Sense::parameter_byte(cscd.at + 29));
    }
    Ok(Ok(unit.volume()))
}

/// Reads the next piece, of the next segment where one is through.
fn proceed(target: &mut Target, context: Context, mut copy: Box<Copy>) -> Step {
    loop {
        match copy.now {
            Some(now) if !now.from.is_empty() => return read(target, context, copy, now.piece().0),
            Some(_) => {
                copy.done += 1;
                if let Some(id) = copy.id {
                    target.copies.advance(id, copy.done, 0);
                }
            }
            None => {}
        }
        let Some(segment) = copy.segments.next() else {
            return end(target, &copy, Response::status(ScsiStatus::Good));
        };
        copy.now = match place(target, &copy, segment) {
            Ok(now) => Some(now),
            Err(additional) => return aborted(target, context, &copy, additional),
        };
    }
}

fn read(target: &mut Target, context: Context, mut copy: Box<Copy>, piece: Move) -> Step {
    if let Err(additional) = permitted(target, copy.nexus, piece.source, Access::Read) {
        return aborted(target, context, &copy, additional);
    }
    copy.reads = true;
    let command = Command::Read { extent: piece.from };
    Step::Submit { volume: piece.source, command, then: context.then(Work::Copy(copy)) }
}

fn write(target: &mut Target, context: Context, mut copy: Box<Copy>, piece: Move, data: Payload) -> Step {
    let fua = match permitted(target, copy.nexus, piece.destination, Access::Write) {
        Ok(unit) => !unit.mode.write_cache,
        Err(additional) => return aborted(target, context, &copy, additional),
    };
    copy.reads = false;
    let command = Command::Write { extent: piece.to, data, fua };
    Step::Submit { volume: piece.destination, command, then: context.then(Work::Copy(copy)) }
}

/// Which bytes a segment moves.
fn place(target: &Target, copy: &Copy, segment: Segment) -> Result<Move, Additional> {
    let unit = |place: u16, access| {
        let named = copy.units.get(usize::from(place)).ok_or(Additional::UNREACHABLE_COPY_TARGET)?;
        permitted(target, copy.nexus, (*named)?, access)
    };
    let (source, destination) =
        (unit(segment.source, Access::Read)?, unit(segment.destination, Access::Write)?);
    if source.block_size() != destination.block_size() {
        return Err(Additional::INVALID_COPY_OPERATION);
    }
    // What the end says is out of range is no additional sense code of the copy manager (SPC-4 6.4.4.2).
    let extent = |unit: &Unit, lba| unit.extent(lba, segment.blocks.into()).map_err(|_| Additional::NONE);
    let (from, to) = (extent(source, segment.from)?, extent(destination, segment.to)?);
    let (source, destination) = (source.volume(), destination.volume());
    let backward = source == destination && from.overlaps(to) && to.offset > from.offset;
    Ok(Move { source, destination, from, to, backward })
}

/// The unit, where this nexus may do that to it now.
fn permitted(
    target: &Target,
    nexus: NexusId,
    volume: VolumeNumber,
    access: Access,
) -> Result<&Unit, Additional> {
    let unit = target.units.get(&volume).ok_or(Additional::COPY_TARGET_NOT_REACHABLE)?;
    target.check_access(nexus, unit, access).map_err(|_| Additional::THIRD_PARTY_DEVICE_FAILURE)?;
    if access == Access::Write {
        unit.check_writable().map_err(|sense| sense.additional)?;
    }
    Ok(unit)
}

/// What a volume could not do. Where another path may do better the initiator is told so, as for any command.
fn failed(target: &mut Target, context: Context, copy: &Copy, failure: Failure) -> Step {
    match failure {
        Failure::ReadError | Failure::WriteError | Failure::NoSpace => {
            aborted(target, context, copy, Additional::THIRD_PARTY_DEVICE_FAILURE)
        }
        Failure::Standby | Failure::NoData | Failure::Stopping | Failure::Aborted => {
            end(target, copy, context.failed(failure))
        }
    }
}

/// A segment could not be copied (SPC-4 6.4.4.2); those before it were.
fn aborted(target: &mut Target, context: Context, copy: &Copy, additional: Additional) -> Step {
    let sense = Sense::new(SenseKey::CopyAborted, additional).with_segment(copy.done);
    end(target, copy, Response::check(sense, context.format))
}

fn end(target: &mut Target, copy: &Copy, response: Response) -> Step {
    if let Some(id) = copy.id {
        target.copies.end(id, &response);
    }
    Step::Done(response)
}

const DISK: u8 = 0;
/// MAXIMUM CSCD DESCRIPTOR COUNT.
const CSCDS_MAX: u16 = 16;
/// MAXIMUM SEGMENT DESCRIPTOR COUNT.
const SEGMENTS_MAX: u16 = 64;
/// MAXIMUM DESCRIPTOR LIST LENGTH, in bytes: as many as there may be of both.
const DESCRIPTORS_LEN_MAX: usize =
    CSCDS_MAX as usize * list::CSCD_LEN + SEGMENTS_MAX as usize * list::SEGMENT_LEN;
/// TOTAL CONCURRENT COPIES and MAXIMUM CONCURRENT COPIES: so many hold a piece of data each.
const COPIES_MAX: u8 = 16;
/// The longest list that may make sense, in bytes; what stands behind its descriptors is not looked at.
pub(super) const LIST_LEN_MAX: u32 = 64 << 10;
const _: () = assert!(list::HEADER_LEN + DESCRIPTORS_LEN_MAX <= LIST_LEN_MAX as usize);
