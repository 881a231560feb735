//! What commands do once nothing stands in their way: the first step of those on the medium, and all of those that
//! change the unit itself.

use std::collections::BTreeSet;

use block::{Command, Extent, Payload, VolumeNumber};
use bytes::{Buf as _, BytesMut};

use super::medium::{Against, Medium};
use super::operation::{Operation, PersistentAction, Subject};
use super::persistent::PersistentError;
use super::reservation::ReservationType;
use super::sense::{Additional, Sense};
use super::target::Refused;
use super::unit::{UNMAP_DESCRIPTORS_MAX, Unit};
use super::work::{Context, Expected, Fill, LBA_STATUS_LEN, Verify, With, Work, good, pattern};
use super::{Request, Step, Target, TargetEffect, TargetIdentity, inquiry, mode, persistent, report};

/// Starts an operation that is more than telling.
pub(super) fn start(
    target: &mut Target,
    volume: VolumeNumber,
    operation: Operation,
    request: Request<'_>,
    effects: &mut Vec<TargetEffect>,
) -> Result<Step, Refused> {
    let unit = target.units.get_mut(&volume).ok_or(Sense::illegal(Additional::UNSUPPORTED_LUN))?;
    match operation {
        Operation::Medium(medium) => {
            Ok(start_medium(unit, medium, request.data_out, request.data_out_expected)?)
        }
        Operation::Reserve => {
            unit.reserved_by = Some(request.nexus);
            Ok(good())
        }
        Operation::Release => {
            unit.reserved_by = unit.reserved_by.filter(|holder| *holder != request.nexus);
            Ok(good())
        }
        Operation::ModeSelect { long, list_len } => {
            let list = parameter_list(&request.data_out, list_len)?;
            let mode = mode::select(unit, long, &list)?;
            if std::mem::replace(&mut unit.mode, mode) != mode {
                let others = |nexus, _: &_| nexus != request.nexus;
                target.raise(volume, Additional::MODE_PARAMETERS_CHANGED, others, effects);
            }
            Ok(good())
        }
        Operation::PersistentOut { action, kind, list_len } => {
            let list = parameter_list(&request.data_out, list_len)?;
            persistent_out(target, volume, &request, (action, kind), &list, effects)
        }
        Operation::Nothing | Operation::Inform { .. } => Ok(good()),
    }
}

/// What a unit tells that is its own to tell.
pub(super) fn inform(unit: &Unit, target: &TargetIdentity, subject: Subject) -> Result<BytesMut, Sense> {
    Ok(match subject {
        Subject::Inquiry { page: None } => inquiry::standard(),
        Subject::Inquiry { page: Some(code) } => inquiry::vital(code, unit, target)?,
        Subject::Capacity10 => report::capacity10(unit),
        Subject::Capacity16 => report::capacity16(unit),
        Subject::Mode { long, descriptors, control, page, subpage } => {
            mode::sense(unit, long, descriptors, control, (page, subpage))?
        }
        Subject::Log { page } => report::log(page)?,
        Subject::Defects { long, format } => report::defects(long, format),
        Subject::Opcodes { select, timeouts } => report::opcodes(unit, select, timeouts)?,
        Subject::TaskManagement { extended } => report::task_management(extended),
        Subject::Keys => persistent::keys(&unit.registry),
        Subject::Reservation => persistent::reservation(&unit.registry),
        Subject::ReservationCapabilities => persistent::capabilities(&unit.registry),
        Subject::FullStatus => persistent::full_status(&unit.registry),
        // These are the target's to tell.
        Subject::Luns { .. } | Subject::Sense { .. } | Subject::PortGroups { .. } => BytesMut::new(),
    })
}

fn start_medium(unit: &Unit, medium: Medium, data: Payload, expected: u32) -> Result<Step, Sense> {
    let context = Context { volume: unit.volume(), format: unit.sense_format() };
    let stable = |fua| fua || !unit.mode.write_cache;
    Ok(match medium {
        Medium::Read { extent, fua: true } if !extent.is_empty() => {
            context.submit(Command::Flush, Work::ReadAfterFlush { extent })
        }
        Medium::Read { extent, .. } => context.read(extent),
        Medium::Write { extent, fua } => match received(unit, extent, data)? {
            Some((extent, data)) => {
                context.submit(Command::Write { extent, data, fua: stable(fua) }, Work::Finish)
            }
            None => good(),
        },
        Medium::OrWrite { extent, fua } => match received(unit, extent, data)? {
            Some((extent, data)) => {
                let data = data.to_bytes();
                context.submit(Command::OrWrite { extent, data, fua: stable(fua) }, Work::Finish)
            }
            None => good(),
        },
        Medium::WriteAndVerify { extent, compare } => match received(unit, extent, data)? {
            Some((extent, data)) => {
                let expected = if compare { Expected::Data(data.clone()) } else { Expected::Anything };
                let verify = Verify { rest: extent, done: 0, expected };
                context.submit(Command::Write { extent, data, fua: true }, Work::VerifyWritten(verify))
            }
            None => good(),
        },
        Medium::Verify { extent, against } => {
            let (rest, expected) = match against {
                Against::Nothing => (extent, Expected::Anything),
                Against::Data => match received(unit, extent, data)? {
                    Some((extent, data)) => (extent, Expected::Data(data)),
                    None => return Ok(good()),
                },
                Against::OneBlock if extent.is_empty() => return Ok(good()),
                Against::OneBlock => {
                    let block = one_block(unit, &data, expected)?;
                    (extent, Expected::Pattern(pattern(&block.to_bytes(), extent.len)))
                }
            };
            context.verify(Verify { rest, done: 0, expected })
        }
        Medium::CompareAndWrite { extent, fua } => {
            let len = extent.len as usize;
            if data.len() != 2 * len || expected as usize != 2 * len {
                return Err(WRONG_LENGTH);
            }
            if extent.is_empty() {
                return Ok(good());
            }
            let (compare, write) = (data.slice(0, len).to_bytes(), data.slice(len, len).to_bytes());
            let command = Command::CompareAndWrite { extent, compare, write, fua: stable(fua) };
            context.submit(command, Work::Finish)
        }
        Medium::WriteSame { extent, unmap, data: with_data } => {
            let zeros = With::Zeros { unmap };
            let with = if with_data {
                let block = one_block(unit, &data, expected)?;
                let is_zero = block.parts().iter().flatten().all(|byte| *byte == 0);
                if is_zero { zeros } else { With::Pattern(pattern(&block.to_bytes(), extent.len)) }
            } else {
                zeros
            };
            context.fill(Fill { rest: extent, with, fua: stable(false) })
        }
        Medium::Unmap { list_len } => {
            context.unmap(unmap_list(unit, &parameter_list(&data, list_len)?)?.into_iter())
        }
        Medium::Flush => context.submit(Command::Flush, Work::Finish),
        Medium::LbaStatus { from, allocation } => {
            let extent = Extent::new(from, (unit.config.size - from).min(LBA_STATUS_LEN));
            let work = Work::LbaStatus { extent, block_size: unit.block_size(), allocation };
            context.submit(Command::Allocation { extent }, work)
        }
    })
}

/// The blocks that the initiator sent data for, which may be fewer than the CDB says: then no others are written.
fn received(unit: &Unit, extent: Extent, data: Payload) -> Result<Option<(Extent, Payload)>, Sense> {
    let len = (data.len() as u64).min(extent.len);
    if !len.is_multiple_of(unit.block_len().into()) {
        return Err(WRONG_LENGTH);
    }
    if len == 0 {
        return Ok(None);
    }
    let data = if data.len() as u64 == len { data } else { data.slice(0, len as usize) };
    Ok(Some((Extent::new(extent.offset, len), data)))
}

/// The one block of data that has to come with a WRITE SAME or VERIFY.
fn one_block(unit: &Unit, data: &Payload, expected: u32) -> Result<Payload, Sense> {
    if data.len() != unit.block_len() as usize || expected != unit.block_len() {
        return Err(WRONG_LENGTH);
    }
    Ok(data.clone())
}

/// A parameter list as long as the CDB says.
fn parameter_list(data: &Payload, list_len: u32) -> Result<bytes::Bytes, Sense> {
    let len = list_len as usize;
    if data.len() < len {
        return Err(LIST_LENGTH);
    }
    Ok(data.slice(0, len).to_bytes())
}

/// The parameter list of UNMAP (SBC-3 5.26.2). All of it is right, or nothing is unmapped.
fn unmap_list(unit: &Unit, list: &[u8]) -> Result<Vec<Extent>, Sense> {
    let mut rest = list;
    if rest.is_empty() {
        return Ok(Vec::new());
    }
    if rest.len() < UNMAP_HEADER_LEN {
        return Err(LIST_LENGTH);
    }
    let (data_len, descriptors_len) = (usize::from(rest.get_u16()), usize::from(rest.get_u16()));
    rest.advance(UNMAP_HEADER_LEN - 4);
    if descriptors_len > rest.len() || data_len + 2 > list.len() {
        return Err(LIST_LENGTH);
    }
    let descriptors = rest[..descriptors_len].chunks_exact(UNMAP_DESCRIPTOR_LEN);
    if descriptors.len() > UNMAP_DESCRIPTORS_MAX {
        return Err(Sense::parameter_byte(2));
    }
    let (mut extents, mut total) = (Vec::with_capacity(descriptors.len()), 0_u64);
    for (at, mut descriptor) in descriptors.enumerate() {
        let (lba, count) = (descriptor.get_u64(), u64::from(descriptor.get_u32()));
        let extent = unit.extent(lba, count)?;
        total += count;
        if total > unit.unmap_max().into() {
            let count_at = UNMAP_HEADER_LEN + at * UNMAP_DESCRIPTOR_LEN + 8;
            return Err(Sense::parameter_byte(count_at as u16));
        }
        if !extent.is_empty() {
            extents.push(extent);
        }
    }
    Ok(extents)
}

fn persistent_out(
    target: &mut Target,
    volume: VolumeNumber,
    request: &Request<'_>,
    what: (PersistentAction, Option<ReservationType>),
    list: &[u8],
    effects: &mut Vec<TargetEffect>,
) -> Result<Step, Refused> {
    let port = target.identity.port.relative;
    let unit = target.units.get_mut(&volume).ok_or(Sense::illegal(Additional::UNSUPPORTED_LUN))?;
    let who = target.nexuses.get(&request.nexus).ok_or(Refused::Conflict)?.registrant.clone();
    let was_persistent = unit.registry.persistent();
    let before = unit.registry.generation();
    let had = unit.registry.reservation();
    let consequences =
        persistent::out(&mut unit.registry, &who, port, what, list).map_err(|error| match error {
            PersistentError::Conflict => Refused::Conflict,
            PersistentError::Sense(sense) => Refused::Check(sense),
        })?;
    let context = Context { volume, format: unit.sense_format() };
    let changed = unit.registry.generation() != before || unit.registry.reservation() != had;
    let stored = (changed && (was_persistent || unit.registry.persistent())).then(|| unit.registry.encode());
    let victims: BTreeSet<_> = consequences.preempted.into_iter().collect();
    for (registrant, condition) in consequences.attentions {
        target.raise(volume, condition, |_, other| *other == registrant, effects);
    }
    let aborts = what.0 == PersistentAction::PreemptAndAbort && !victims.is_empty();
    let nexuses: Vec<_> = target
        .nexuses
        .iter()
        .filter(|(_, nexus)| aborts && victims.contains(&nexus.registrant))
        .map(|(id, _)| *id)
        .collect();
    let then = if nexuses.is_empty() { Work::Finish } else { Work::Abort { nexuses } };
    Ok(match stored {
        Some(registry) => Step::Persist { volume, registry, then: context.then(then) },
        None => context.resume(then, block::Status::Done),
    })
}

const WRONG_LENGTH: Sense = Sense::illegal(Additional::INVALID_INFORMATION_UNIT_FIELD);
const LIST_LENGTH: Sense = Sense::illegal(Additional::PARAMETER_LIST_LENGTH);
const UNMAP_HEADER_LEN: usize = 8;
const UNMAP_DESCRIPTOR_LEN: usize = 16;
