//! Asymmetric access (SPC-4 5.15): which node's paths serve, as REPORT TARGET PORT GROUPS tells and as commands feel.

use bytes::{BufMut as _, BytesMut};

use super::length::len32;
use super::opcode::Needs;
use super::sense::{Additional, Sense};
use super::{PathState, TargetPort};

impl PathState {
    /// ASYMMETRIC ACCESS STATE (SPC-4 table 276).
    const fn code(self) -> u8 {
        match self {
            Self::ActiveOptimized => 0x0,
            Self::ActiveNonOptimized => 0x1,
            Self::Standby => 0x2,
            Self::Unavailable => 0x3,
            Self::Transitioning => 0xf,
        }
    }

    /// Refuses a command that is not served in this state.
    pub(super) const fn check(self, needs: Needs) -> Result<(), Sense> {
        let code = match (self, needs) {
            (Self::ActiveOptimized | Self::ActiveNonOptimized, _)
            | (_, Needs::Nothing)
            | (Self::Standby, Needs::Standby) => return Ok(()),
            (Self::Standby, Needs::Active) => Additional::STANDBY,
            (Self::Unavailable, _) => Additional::UNAVAILABLE,
            (Self::Transitioning, _) => Additional::TRANSITION,
        };
        Err(Sense::not_ready(code))
    }
}

/// REPORT TARGET PORT GROUPS (SPC-4 6.37), one group per node.
pub(super) fn port_groups(extended: bool, ports: &[(TargetPort, PathState)]) -> BytesMut {
    let mut list = BytesMut::new();
    for (port, state) in ports {
        let preferred = if *state == PathState::ActiveOptimized { PREF } else { 0 };
        list.put_slice(&[preferred | state.code(), SUPPORTED_STATES]);
        list.put_u16(port.group.0);
        list.put_slice(&[0, IMPLICIT, 0, 1]);
        list.put_u16(0);
        list.put_u16(port.relative.0);
    }
    let header_len = if extended { 4 } else { 0 };
    let mut data = BytesMut::with_capacity(4 + header_len + list.len());
    data.put_u32(len32(header_len + list.len()));
    if extended {
        data.put_slice(&[EXTENDED, TRANSITION_S, 0, 0]);
    }
    data.put_slice(&list);
    data
}

const PREF: u8 = 0x80;
/// Transitioning, unavailable, standby, active/non-optimized, active/optimized.
const SUPPORTED_STATES: u8 = 0x8f;
/// Altered by implicit behaviour.
const IMPLICIT: u8 = 0x02;
const EXTENDED: u8 = 0x10;
/// IMPLICIT TRANSITION TIME: how long a host may wait for a failover, in seconds.
const TRANSITION_S: u8 = 60;
