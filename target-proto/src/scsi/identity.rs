//! Who is who: the target, its ports on each node, its volumes, and the initiators that log in (SAM-5 4.8).

use std::fmt;

use block::{BlockSize, VolumeNumber};

/// An `I_T` nexus: one iSCSI session. The transport gives out the numbers and never uses one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId(pub u64);

/// A target port group, one per node of the cluster (SPC-4 5.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortGroup(pub u16);

/// A relative target port identifier, unique among all nodes of the cluster (SPC-4 4.3.4). Not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativePort(pub u16);

/// One node's way to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetPort {
    /// The group, whose paths change state together.
    pub group: PortGroup,
    /// The port in it.
    pub relative: RelativePort,
    /// The iSCSI target portal group tag, part of the port's name (RFC 7143 4.4.1).
    pub portal_group: u16,
}

/// The target as all its logical units tell of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetIdentity {
    /// The iSCSI name, the same on every node.
    pub iqn: String,
    /// The port of this node.
    pub port: TargetPort,
    /// The ports of the other nodes that export the resource.
    pub peers: Vec<TargetPort>,
}

/// What makes a volume the same one on every path: equal on all nodes, different in every other cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VolumeIdentity(pub u128);

/// One logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitConfig {
    /// Its number, which is the LUN.
    pub volume: VolumeNumber,
    /// Its size in bytes, a multiple of the block size.
    pub size: u64,
    /// The size of its logical blocks.
    pub block_size: BlockSize,
    /// The size of the blocks that the backing store handles best; never less than `block_size`.
    pub physical_block_size: BlockSize,
    /// Its identity.
    pub identity: VolumeIdentity,
    /// Whether unmapped blocks give their space back on every replica, and read as zeros.
    pub thin: bool,
    /// Whether writes are refused for good.
    pub read_only: bool,
}

/// An initiator port, as SPC-4 7.6.4 names it in a `TransportID`: iSCSI name and ISID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InitiatorPort {
    /// The iSCSI name of the initiator.
    pub iqn: String,
    /// The initiator session identifier.
    pub isid: [u8; 6],
}

impl InitiatorPort {
    /// Reads what `Display` writes: the name of an initiator port (RFC 7143 4.2.7.1).
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (iqn, isid) = name.split_once(SEPARATOR)?;
        let bytes = u64::from_str_radix(isid, 16).ok()?.to_be_bytes();
        let [0, 0, isid @ ..] = bytes else { return None };
        (!iqn.is_empty() && iqn.len() <= NAME_LEN_MAX).then(|| Self { iqn: iqn.to_owned(), isid })
    }
}

impl fmt::Display for InitiatorPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{SEPARATOR}", self.iqn)?;
        self.isid.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

const SEPARATOR: &str = ",i,0x";
/// The longest iSCSI name (RFC 7143 4.2.7.1).
const NAME_LEN_MAX: usize = 223;

/// The asymmetric access state of a target port group (SPC-4 5.15.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathState {
    /// Every command is served at full speed.
    ActiveOptimized,
    /// Every command is served, another path is better.
    ActiveNonOptimized,
    /// The medium is out of reach here, but this path may become active.
    Standby,
    /// The medium is out of reach here.
    Unavailable,
    /// Between two states.
    Transitioning,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7143 4.2.7.1: a port's name is the initiator's name and the ISID, and nothing else is one.
    #[test]
    fn port_names() {
        let port =
            InitiatorPort { iqn: "iqn.2026-11.io.evenkeel:a,b".to_owned(), isid: [0, 2, 0x3d, 0, 0, 1] };
        assert_eq!(port.to_string(), "iqn.2026-11.io.evenkeel:a,b,i,0x00023d000001");
        assert_eq!(InitiatorPort::parse(&port.to_string()), Some(port));
        for name in ["", "iqn.a", "iqn.a,i,0x", ",i,0x1", "iqn.a,i,0xfffffffffffff", "iqn.a,i,0xg"] {
            assert_eq!(InitiatorPort::parse(name), None, "{name}");
        }
    }
}
