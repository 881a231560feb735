//! The target: what comes in by a nexus, which logical unit it is for, and what it may do there (SAM-5 4.6, 5).

use std::collections::BTreeMap;

use block::{Status, VolumeNumber};
use bytes::BytesMut;
use thiserror::Error;

use super::attention::Attentions;
use super::cdb::Cdb;
use super::copy::{self, Copies};
use super::execute;
use super::opcode::{NACA, Opcode, Right};
use super::operation::{Operation, Subject};
use super::reservation::{Access, Registrant, Registry, RestoreError};
use super::sense::{Additional, Sense, SenseFormat, SenseKey};
use super::unit::Unit;
use super::work::{Context, Work, good};
use super::{
    Continuation, InitiatorPort, NexusId, PathState, PortGroup, Request, Response, ScsiStatus, Step,
    TargetEffect, TargetIdentity, TargetPort, Transfer, UnitConfig, alua, inquiry, report,
};

/// Whom a reset is for (SAM-5 6.3.3, 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// LOGICAL UNIT RESET, with the LUN as it stands in the request.
    Unit(u64),
    /// TARGET WARM RESET or TARGET COLD RESET: every logical unit.
    Target,
}

/// A task management request named a logical unit that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no logical unit {0:#018x}")]
pub struct NoSuchUnit(pub u64);

/// One target with its logical units.
#[derive(Debug)]
pub struct Target {
    pub(super) identity: TargetIdentity,
    path: PathState,
    peer_paths: BTreeMap<PortGroup, PathState>,
    pub(super) units: BTreeMap<VolumeNumber, Unit>,
    pub(super) nexuses: BTreeMap<NexusId, Nexus>,
    pub(super) copies: Copies,
}

/// An initiator port that is logged in.
#[derive(Debug)]
pub(super) struct Nexus {
    /// Who it is to persistent reservations.
    pub(super) registrant: Registrant,
    attentions: BTreeMap<VolumeNumber, Attentions>,
}

/// Why a command ends before it has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Check(Sense),
}

impl From<Sense> for Refused {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

impl Target {
    /// A target that has no nexus yet and whose paths are unavailable.
    #[must_use]
    pub fn new(identity: TargetIdentity, units: Vec<UnitConfig>) -> Self {
        let peer_paths = identity.peers.iter().map(|port| (port.group, PathState::Unavailable)).collect();
        let units = units.into_iter().map(|config| (config.volume, Unit::new(config))).collect();
        Self {
            identity,
            path: PathState::Unavailable,
            peer_paths,
            units,
            nexuses: BTreeMap::new(),
            copies: Copies::default(),
        }
    }

    /// Who the target is.
    #[must_use]
    pub const fn identity(&self) -> &TargetIdentity {
        &self.identity
    }

    /// An initiator port has logged in. A unit attention POWER ON, RESET waits for it on every logical unit.
    pub fn open_nexus(&mut self, nexus: NexusId, initiator: &InitiatorPort) {
        let registrant = Registrant { initiator: initiator.to_string(), port: self.identity.port.relative.0 };
        let mut attentions: BTreeMap<_, Attentions> = BTreeMap::new();
        for volume in self.units.keys() {
            attentions.entry(*volume).or_default().raise(Additional::POWER_ON_OR_RESET);
        }
        self.nexuses.insert(nexus, Nexus { registrant, attentions });
    }

    /// The nexus is lost. Its SPC-2 reservations end, its registrations stay.
    pub fn close_nexus(&mut self, nexus: NexusId) {
        self.nexuses.remove(&nexus);
        self.copies.forget_nexus(nexus);
        for unit in self.units.values_mut() {
            unit.reserved_by = unit.reserved_by.filter(|holder| *holder != nexus);
        }
    }

    /// The volume that a LUN field names (SAM-5 4.7: one level of peripheral or flat addressing).
    #[must_use]
    pub fn volume(&self, lun: u64) -> Option<VolumeNumber> {
        report::decode_lun(lun).filter(|volume| self.units.contains_key(volume))
    }

    /// What a CDB says that it moves. `lun` is the LUN field as it stands in the PDU.
    #[must_use]
    pub fn transfer(&self, lun: u64, cdb: &[u8]) -> Transfer {
        let cdb = Cdb::new(cdb);
        let unit = self.volume(lun).and_then(|volume| self.units.get(&volume));
        let operation = unit.and_then(|unit| {
            let parse = Opcode::find(&cdb, unit)?.parse;
            parse(&cdb, unit).ok().map(|operation| operation.transfer(unit))
        });
        operation.unwrap_or_default()
    }

    /// Starts a command that may run now and whose data is here.
    pub fn start(&mut self, request: Request<'_>, effects: &mut Vec<TargetEffect>) -> Step {
        let cdb = Cdb::new(request.cdb);
        let Some(volume) = self.volume(request.lun) else {
            return Step::Done(self.absent(&cdb));
        };
        let operation = match self.admit(request.nexus, volume, &cdb) {
            Ok(operation) => operation,
            Err(refused) => return self.refuse(volume, refused),
        };
        let outcome = match operation {
            Operation::Nothing => Ok(good()),
            Operation::Inform { subject, allocation } => self
                .inform(request.nexus, volume, subject)
                .map(|data| Step::Done(Response::data(truncated(data, allocation))))
                .map_err(Refused::Check),
            operation => execute::start(self, volume, operation, request, effects),
        };
        outcome.unwrap_or_else(|refused| self.refuse(volume, refused))
    }

    /// Goes on with a command after the work of a [`Step`].
    pub fn resume(&mut self, then: Continuation, status: Status) -> Step {
        let context = Context { volume: then.volume, format: then.format };
        match then.work {
            Work::Copy(work) => copy::resume(self, context, work, status),
            work => context.resume(work, status),
        }
    }

    /// Carries out a reset (SAM-5 6.3.3): SPC-2 reservations end, mode pages go back to their defaults, and a unit
    /// attention waits for every nexus. Returns the volumes, whose tasks the caller has aborted.
    ///
    /// # Errors
    /// When the LUN names no logical unit.
    pub fn reset(
        &mut self,
        reset: Reset,
        effects: &mut Vec<TargetEffect>,
    ) -> Result<Vec<VolumeNumber>, NoSuchUnit> {
        let volumes = match reset {
            Reset::Unit(lun) => vec![self.volume(lun).ok_or(NoSuchUnit(lun))?],
            Reset::Target => self.units.keys().copied().collect(),
        };
        for volume in &volumes {
            if let Some(unit) = self.units.get_mut(volume) {
                unit.reserved_by = None;
                unit.mode = super::mode::Mode::default();
            }
            self.copies.forget_volume(*volume);
            self.raise(*volume, Additional::DEVICE_RESET, |_, _| true, effects);
        }
        Ok(volumes)
    }

    /// CLEAR TASK SET of another nexus has ended commands of this one on a volume (SAM-5 7.4, with TAS = 0): it has no
    /// other way to learn of that.
    pub fn commands_cleared(
        &mut self,
        nexus: NexusId,
        volume: VolumeNumber,
        effects: &mut Vec<TargetEffect>,
    ) {
        self.raise(volume, Additional::COMMANDS_CLEARED, |id, _| id == nexus, effects);
    }

    /// The paths of this node have a new state.
    pub fn set_path(&mut self, state: PathState, effects: &mut Vec<TargetEffect>) {
        if std::mem::replace(&mut self.path, state) != state {
            self.tell_access_state(effects);
        }
    }

    /// The paths of another node have a new state.
    pub fn set_peer_path(&mut self, group: PortGroup, state: PathState, effects: &mut Vec<TargetEffect>) {
        let Some(path) = self.peer_paths.get_mut(&group) else { return };
        if std::mem::replace(path, state) != state {
            self.tell_access_state(effects);
        }
    }

    /// The volume has a new size in bytes, a multiple of its block size.
    pub fn resize(&mut self, volume: VolumeNumber, size: u64, effects: &mut Vec<TargetEffect>) {
        let Some(unit) = self.units.get_mut(&volume) else { return };
        if std::mem::replace(&mut unit.config.size, size) != size {
            self.raise(volume, Additional::CAPACITY_CHANGED, |_, _| true, effects);
        }
    }

    /// A volume is exported from now on.
    pub fn add_unit(&mut self, config: UnitConfig, effects: &mut Vec<TargetEffect>) {
        let volume = config.volume;
        self.units.insert(volume, Unit::new(config));
        self.raise(volume, Additional::POWER_ON_OR_RESET, |_, _| true, effects);
        self.tell_luns(effects);
    }

    /// A volume is exported no more. The caller has aborted its tasks.
    pub fn remove_unit(&mut self, volume: VolumeNumber, effects: &mut Vec<TargetEffect>) {
        if self.units.remove(&volume).is_some() {
            self.copies.forget_volume(volume);
            for nexus in self.nexuses.values_mut() {
                nexus.attentions.remove(&volume);
            }
            self.tell_luns(effects);
        }
    }

    /// Brings back reservations that a [`Step::Persist`] stored. A volume that is not there is left alone.
    ///
    /// # Errors
    /// When `stored` is not what was stored.
    pub fn restore(&mut self, volume: VolumeNumber, stored: &[u8]) -> Result<(), RestoreError> {
        let registry = Registry::decode(stored)?;
        if let Some(unit) = self.units.get_mut(&volume) {
            unit.registry = registry;
        }
        Ok(())
    }

    /// Has a condition wait for every nexus that `whom` names.
    pub(super) fn raise(
        &mut self,
        volume: VolumeNumber,
        condition: Additional,
        whom: impl Fn(NexusId, &Registrant) -> bool,
        effects: &mut Vec<TargetEffect>,
    ) {
        for (id, nexus) in &mut self.nexuses {
            if whom(*id, &nexus.registrant) {
                nexus.attentions.entry(volume).or_default().raise(condition);
                effects.push(TargetEffect::Attention { nexus: *id, volume });
            }
        }
    }

    fn tell_access_state(&mut self, effects: &mut Vec<TargetEffect>) {
        let volumes: Vec<_> = self.units.keys().copied().collect();
        for volume in volumes {
            self.raise(volume, Additional::ACCESS_STATE_CHANGED, |_, _| true, effects);
        }
    }

    fn tell_luns(&mut self, effects: &mut Vec<TargetEffect>) {
        let volumes: Vec<_> = self.units.keys().copied().collect();
        for volume in volumes {
            self.raise(volume, Additional::LUNS_CHANGED, |_, _| true, effects);
        }
    }

    /// Checks all that may keep a command from being carried out, in the order in which it is reported.
    fn admit(&mut self, nexus: NexusId, volume: VolumeNumber, cdb: &Cdb) -> Result<Operation, Refused> {
        let unit = self.units.get(&volume).ok_or(UNSUPPORTED_LUN)?;
        let row = Opcode::find(cdb, unit);
        if row.is_none_or(|row| row.reports_attention)
            && let Some(attention) = self.take_attention(nexus, volume)
        {
            return Err(attention.into());
        }
        let unit = self.units.get(&volume).ok_or(UNSUPPORTED_LUN)?;
        let row = row.ok_or_else(|| unknown(cdb, unit))?;
        if row.control(cdb) & NACA != 0 {
            return Err(Sense::cdb_bit(row.control_at(), 2).into());
        }
        self.path.check(row.needs)?;
        self.check_reservations(nexus, unit, row, cdb)?;
        let operation = (row.parse)(cdb, unit)?;
        if let Operation::Medium(medium) = operation
            && medium.writes()
        {
            unit.check_writable()?;
        }
        Ok(operation)
    }

    fn check_reservations(
        &self,
        nexus: NexusId,
        unit: &Unit,
        row: &Opcode,
        cdb: &Cdb,
    ) -> Result<(), Refused> {
        let access = match row.right {
            Right::Does(access) => access,
            Right::WritesUnless(harmless) if harmless(cdb) => Access::Any,
            Right::WritesUnless(_) => Access::Write,
            // Both kinds of reservation do not go together (SPC-4 5.13.3, CRH is 0).
            Right::Reserve | Right::Release if !unit.registry.is_empty() => return Err(Refused::Conflict),
            Right::Reserve => Access::Any,
            Right::Always | Right::Release => return Ok(()),
        };
        let persistent = matches!(cdb.opcode(), PERSISTENT_RESERVE_IN | PERSISTENT_RESERVE_OUT);
        if persistent && unit.reserved_by.is_some() {
            return Err(Refused::Conflict);
        }
        self.check_access(nexus, unit, access)
    }

    /// Whether the reservations of a unit let a nexus do this.
    pub(super) fn check_access(&self, nexus: NexusId, unit: &Unit, access: Access) -> Result<(), Refused> {
        if unit.reserved_by.is_some_and(|holder| holder != nexus) {
            return Err(Refused::Conflict);
        }
        let Some(nexus) = self.nexuses.get(&nexus) else { return Err(Refused::Conflict) };
        unit.registry.check(&nexus.registrant, access).map_err(|_| Refused::Conflict)
    }

    fn take_attention(&mut self, nexus: NexusId, volume: VolumeNumber) -> Option<Sense> {
        self.nexuses.get_mut(&nexus)?.attentions.get_mut(&volume)?.take()
    }

    fn refuse(&self, volume: VolumeNumber, refused: Refused) -> Step {
        Step::Done(match refused {
            Refused::Conflict => Response::status(ScsiStatus::ReservationConflict),
            Refused::Check(sense) => {
                let format = self.units.get(&volume).map_or(SenseFormat::Fixed, Unit::sense_format);
                Response::check(sense, format)
            }
        })
    }

    /// What a LUN answers where there is no unit (SAM-5 4.7.4, SPC-4 6.6.2).
    fn absent(&self, cdb: &Cdb) -> Response {
        let sense = Sense::illegal(Additional::UNSUPPORTED_LUN);
        let (data, allocation) = match cdb.opcode() {
            INQUIRY if cdb.byte(1) & 0x01 == 0 && cdb.byte(2) == 0 => (inquiry::absent(), cdb.length16(3)),
            REPORT_LUNS if cdb.byte(2) <= 2 => {
                (report::luns(cdb.byte(2), self.units.keys().copied()), cdb.length32(6))
            }
            REQUEST_SENSE => (sense.encode(SenseFormat::Fixed).into(), Ok(cdb.length8(4))),
            _ => return Response::check(sense, SenseFormat::Fixed),
        };
        match allocation {
            Ok(allocation) => Response::data(truncated(data, allocation)),
            Err(sense) => Response::check(sense, SenseFormat::Fixed),
        }
    }

    /// What there is to tell of a unit.
    fn inform(&mut self, nexus: NexusId, volume: VolumeNumber, subject: Subject) -> Result<BytesMut, Sense> {
        match subject {
            Subject::Sense { format } => {
                let nothing = Sense::new(SenseKey::NoSense, Additional::NONE);
                let sense = self.take_attention(nexus, volume).unwrap_or(nothing);
                return Ok(sense.encode(format).into());
            }
            Subject::Luns { select } => {
                if let Some(nexus) = self.nexuses.get_mut(&nexus) {
                    nexus.attentions.values_mut().for_each(|waiting| waiting.clear(Additional::LUNS_CHANGED));
                }
                return Ok(report::luns(select, self.units.keys().copied()));
            }
            Subject::Copy(subject) => return copy::inform(self, nexus, volume, subject),
            Subject::PortGroups { extended } => return Ok(alua::port_groups(extended, &self.paths())),
            _ => {}
        }
        let unit = self.units.get(&volume).ok_or(UNSUPPORTED_LUN)?;
        execute::inform(unit, &self.identity, subject)
    }

    fn paths(&self) -> Vec<(TargetPort, PathState)> {
        let peers =
            self.identity.peers.iter().map(|port| {
                (*port, self.peer_paths.get(&port.group).copied().unwrap_or(PathState::Unavailable))
            });
        std::iter::once((self.identity.port, self.path)).chain(peers).collect()
    }
}

/// A command that is not in the table: its operation code is unknown, or only its service action.
fn unknown(cdb: &Cdb, unit: &Unit) -> Sense {
    if Opcode::with_code(cdb.opcode(), unit).next().is_some() {
        Sense::cdb_bit(1, 4)
    } else {
        Sense::illegal(Additional::INVALID_OPERATION_CODE)
    }
}

fn truncated(mut data: BytesMut, allocation: u32) -> bytes::Bytes {
    data.truncate(allocation as usize);
    data.freeze()
}

const UNSUPPORTED_LUN: Sense = Sense::illegal(Additional::UNSUPPORTED_LUN);
const REQUEST_SENSE: u8 = 0x03;
const INQUIRY: u8 = 0x12;
const PERSISTENT_RESERVE_IN: u8 = 0x5e;
const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
const REPORT_LUNS: u8 = 0xa0;
