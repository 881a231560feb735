//! The SCSI device server: one target, its logical units, and what each `I_T` nexus is to each of them.
//!
//! It follows SAM-5 (the model), SPC-4 (the commands of every device) and SBC-3 (the commands of a disk). A
//! transport calls [`Target::transfer`] when a CDB arrives, [`Target::start`] once the command may run and its
//! data is here, and [`Target::resume`] as often as a [`Step`] names work that somebody else does: the volume,
//! the store of the reservations, the task manager. The tasks of a logical unit are the transport's.

mod alua;
mod attention;
mod blocks;
mod cdb;
mod copy;
mod execute;
mod identity;
mod inquiry;
mod length;
mod medium;
mod mode;
mod opcode;
mod operation;
mod persistent;
mod report;
pub mod reservation;
mod response;
mod sense;
mod step;
mod target;
mod unit;
mod work;

pub use identity::{
    InitiatorPort, NexusId, PathState, PortGroup, RelativePort, TargetIdentity, TargetPort, UnitConfig,
    VolumeIdentity,
};
pub use response::{Response, ScsiStatus};
pub use sense::{Additional, Field, Sense, SenseFormat, SenseKey};
pub use step::{Continuation, Request, Step, TargetEffect, Transfer};
pub use target::{NoSuchUnit, Reset, Target};

#[cfg(test)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "test data is small, and random numbers are cut to size"
)]
mod tests;
