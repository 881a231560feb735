//! The target: what comes in by a nexus, and which logical unit it is for (SAM-5 4.6).

use std::collections::BTreeMap;

use block::{Status, VolumeNumber};
use thiserror::Error;

use super::{
    Additional, Continuation, InitiatorPort, NexusId, PathState, PortGroup, Request, Response, Sense,
    SenseFormat, Step, TargetEffect, TargetIdentity, Transfer, UnitConfig,
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
    identity: TargetIdentity,
    path: PathState,
    peer_paths: BTreeMap<PortGroup, PathState>,
    units: BTreeMap<VolumeNumber, UnitConfig>,
    nexuses: BTreeMap<NexusId, InitiatorPort>,
}

impl Target {
    /// A target that has no nexus yet and whose paths are unavailable.
    #[must_use]
    pub fn new(identity: TargetIdentity, units: Vec<UnitConfig>) -> Self {
        let peer_paths = identity.peers.iter().map(|port| (port.group, PathState::Unavailable)).collect();
        let units = units.into_iter().map(|unit| (unit.volume, unit)).collect();
        Self { identity, path: PathState::Unavailable, peer_paths, units, nexuses: BTreeMap::new() }
    }

    /// Who the target is.
    #[must_use]
    pub const fn identity(&self) -> &TargetIdentity {
        &self.identity
    }

    /// An initiator port has logged in. A unit attention POWER ON, RESET waits for it on every logical unit.
    pub fn open_nexus(&mut self, nexus: NexusId, initiator: InitiatorPort) {
        self.nexuses.insert(nexus, initiator);
    }

    /// The nexus is lost. Its SPC-2 reservations end, its registrations stay.
    pub fn close_nexus(&mut self, nexus: NexusId, _effects: &mut Vec<TargetEffect>) {
        self.nexuses.remove(&nexus);
    }

    /// The volume that a LUN field names (SAM-5 4.7: single level, peripheral or flat addressing).
    #[must_use]
    pub fn volume(&self, lun: u64) -> Option<VolumeNumber> {
        let volume = VolumeNumber((lun >> 48) as u16 & 0x3fff);
        self.units.contains_key(&volume).then_some(volume)
    }

    /// What a CDB says that it moves. `lun` is the LUN field as it stands in the PDU.
    #[must_use]
    pub fn transfer(&self, _lun: u64, _cdb: &[u8]) -> Transfer {
        Transfer::default()
    }

    /// Starts a command that may run now and whose data is here.
    pub fn start(&mut self, request: Request<'_>, _effects: &mut Vec<TargetEffect>) -> Step {
        let code = match self.volume(request.lun) {
            Some(_) => Additional::INVALID_OPERATION_CODE,
            None => Additional::UNSUPPORTED_LUN,
        };
        Step::Done(Response::check(Sense::illegal(code), SenseFormat::Fixed))
    }

    /// Goes on with a command after the work of a [`Step`].
    pub fn resume(&mut self, then: Continuation, status: Status, effects: &mut Vec<TargetEffect>) -> Step {
        let _ = (then, status, effects);
        Step::Done(Response::status(super::ScsiStatus::Good))
    }

    /// Carries out a reset that `by` asked for (SAM-5 6.3.3): SPC-2 reservations end, mode pages go back to what is
    /// saved, and a unit attention waits for every other nexus. Returns the volumes; the caller has aborted or aborts
    /// their tasks.
    ///
    /// # Errors
    /// When the LUN names no logical unit: FUNCTION REJECTED, LUN does not exist.
    pub fn reset(
        &mut self,
        _by: Option<NexusId>,
        reset: Reset,
        _effects: &mut Vec<TargetEffect>,
    ) -> Result<Vec<VolumeNumber>, NoSuchUnit> {
        match reset {
            Reset::Unit(lun) => self.volume(lun).map(|volume| vec![volume]).ok_or(NoSuchUnit(lun)),
            Reset::Target => Ok(self.units.keys().copied().collect()),
        }
    }

    /// The paths of this node have a new state.
    pub fn set_path(&mut self, state: PathState, _effects: &mut Vec<TargetEffect>) {
        self.path = state;
    }

    /// The paths of another node have a new state.
    pub fn set_peer_path(&mut self, group: PortGroup, state: PathState, _effects: &mut Vec<TargetEffect>) {
        self.peer_paths.entry(group).and_modify(|path| *path = state);
    }

    /// The volume has a new size in bytes, a multiple of its block size.
    pub fn resize(&mut self, volume: VolumeNumber, size: u64, _effects: &mut Vec<TargetEffect>) {
        self.units.entry(volume).and_modify(|unit| unit.size = size);
    }
}
