//! What commands do once nothing stands in their way (SPC-4 6).

use std::collections::BTreeSet;

use block::{Payload, VolumeNumber};
use bytes::{Bytes, BytesMut};

use super::operation::{Operation, PersistentAction, Subject};
use super::persistent::PersistentError;
use super::reservation::ReservationType;
use super::sense::{Additional, Sense};
use super::target::Refused;
use super::unit::Unit;
use super::work::{Context, Work, good};
use super::{
    Request, Step, Target, TargetEffect, TargetIdentity, blocks, copy, inquiry, mode, persistent, report,
};

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
            Ok(blocks::start(unit, medium, request.data_out, request.data_out_expected)?)
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
        Operation::ExtendedCopy { list_len } => {
            let context = Context { volume, format: unit.sense_format() };
            let list = parameter_list(&request.data_out, list_len)?;
            copy::start(target, context, request.nexus, &list)
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
        Subject::Luns { .. } | Subject::Sense { .. } | Subject::PortGroups { .. } | Subject::Copy(_) => {
            BytesMut::new()
        }
    })
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

/// A parameter list as long as the CDB says.
pub(super) fn parameter_list(data: &Payload, list_len: u32) -> Result<Bytes, Sense> {
    let len = list_len as usize;
    if data.len() < len {
        return Err(LIST_LENGTH);
    }
    Ok(data.slice(0, len).to_bytes())
}

const LIST_LENGTH: Sense = Sense::illegal(Additional::PARAMETER_LIST_LENGTH);
