//! What nodes agree on: one state machine per resource, without clock, socket, file or thread.
//!
//! [`Resource::step`] is the one way in and a list of [`Effect`]s the one way out. The daemon and the simulation
//! run the very same machine.

#![forbid(unsafe_code)]

mod activity_log;
mod attach;
pub mod authenticate;
mod balance;
mod bitmap;
mod bookkeeping;
#[cfg(test)]
mod cluster;
mod config;
mod effect;
mod errand;
mod farewell;
mod generation;
mod handshake;
mod in_step;
mod input;
mod inspect;
mod invalidate;
mod job;
mod meta;
mod new_generation;
mod operator;
mod packet;
mod peer_write;
mod promotion;
mod quorum;
mod range_lock;
mod read;
mod resource;
mod resync;
mod role;
mod sabotage;
mod slow_disk;
mod split_brain;
mod state;
mod status;
mod stop;
mod task;
pub mod wire;
mod write;

pub use config::{Found, NodeSet, PeerConfig, Quorum, ReadBalancing, ResourceConfig, VolumeConfig};
pub use effect::{DiskRequest, Effect, Event, Refusal};
pub use generation::{Plan, Scope};
pub use input::{DiskAnswer, DiskError, DiskOp, Input, LinkId, OperatorRequest, Verb};
pub use inspect::{Activity, Inspection, Superblocks, inspect};
pub use meta::{MetadataError, metadata_len};
pub use packet::{AckMode, Farewell, Generation, Lineage, NodeState, Packet, Sequence, VolumeState};
pub use resource::{Resource, SetupError};
pub use sabotage::Fault;
#[cfg(feature = "sabotage")]
pub use sabotage::plant;
pub use split_brain::{AfterSplitBrain, WithOnePrimary, WithTwoPrimaries, WithoutPrimary};
pub use state::{ConnectionState, DiskState, ReplicationState, Role};
pub use status::{
    ConnectionStatus, DeviceStatus, Divergence, Parting, PeerDeviceStatus, ResourceStatus, Suspended, Written,
};

/// A node of the cluster, 0 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u8);

/// A moment: the time since the node started. Only shells read clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub std::time::Duration);
