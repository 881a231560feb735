//! How two nodes prove to each other that they know the secret of the cluster, before anything else is said.
//!
//! ```text
//! dialler                                            acceptor
//!    hello: cluster, resource, who, whom, nonce  ->
//!                                                <-  hello: the same names, its own nonce
//!    proof                                       ->
//!                                                <-  verdict: welcome, or why not, with its own proof
//! ```
//!
//! A proof is the HMAC-SHA-256 (RFC 2104) under the secret of a label for the role, the verdict where it is the
//! acceptor's, and both hellos byte by byte. So it holds for one connection, one direction and exactly these
//! names, versions and features: it can be neither replayed, nor reflected, nor lent to another connection.
//!
//! Someone without the secret learns the versions and nothing else: the acceptor's hello repeats the names that
//! it was asked for, known or not, and a reason is told only behind a proof that holds.
//!
//! | message | bytes | field | |
//! |---|---|---|---|
//! | each | 0..4 | magic | `EKh1` |
//! | | 4..6 | kind | 1 hello, 2 proof, 3 verdict |
//! | | 6..8 | length | bytes that follow |
//! | hello | 2, 2 | versions | lowest, highest |
//! | | 8 | features | one bit each |
//! | | 1 | role | 1 dialler, 2 acceptor |
//! | | 1, 1 | nodes | the sender's id, the receiver's |
//! | | 8 | instance | random, another after each start of the process |
//! | | 32 | nonce | random, another in each hello |
//! | | 1 + n, 1 + n | names | cluster, resource |
//! | proof | 32 | proof | |
//! | verdict | 1, 32 | verdict, proof | 0 welcome, else the place in [`Refusal::ALL`] plus 1 |

mod acceptor;
mod dialler;
mod error;
mod hello;
mod message;
#[cfg(test)]
mod tests;

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thiserror::Error;
use zeroize::Zeroizing;

pub use acceptor::{Claimed, ExpectProof};
pub use dialler::{ExpectHello, ExpectVerdict};
pub use error::AuthError;
pub use message::Message;

use crate::NodeId;
use hello::Hello;

/// The longest message, in bytes. Nobody needs a larger buffer before authentication is over.
pub const MESSAGE_MAX: usize = 1024;

/// The longest name of a cluster or a resource, in bytes.
pub const NAME_MAX: usize = 255;

/// The versions of the packets that this code speaks, lowest and highest.
pub const VERSIONS: (u16, u16) = (2, 2);

/// The optional parts of the packets that this code speaks, one bit each.
pub const FEATURES: u64 = 0;

/// Random bytes that were never used before.
pub type Nonce = [u8; 32];

/// The secret that the nodes of a cluster share. It is wiped when dropped and never printed.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// A secret of these bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Who this node is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster's name, at most [`NAME_MAX`] bytes.
    pub cluster: String,
    /// The node's id.
    pub node: NodeId,
    /// Random, another after each start of the process.
    pub instance: u64,
    /// The secret of the cluster.
    pub secret: Secret,
}

/// What is known of the peer once both ends have proved themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated {
    /// Who.
    pub peer: NodeId,
    /// Which run of the peer's process.
    pub instance: u64,
    /// About which resource.
    pub resource: String,
    /// The highest version that both ends speak.
    pub version: u16,
    /// The optional parts that both ends speak.
    pub features: u64,
}

/// Why a node that knows the secret is refused all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The names of the clusters differ.
    #[error("the acceptor belongs to another cluster")]
    Cluster,
    /// The acceptor is not the node that the dialler meant.
    #[error("the acceptor is another node than the dialler asked for")]
    Node,
    /// The acceptor has no such resource.
    #[error("the acceptor has no such resource")]
    Resource,
    /// The dialler has no part in the resource.
    #[error("the acceptor's configuration gives the dialler no part in the resource")]
    Peer,
}

impl Refusal {
    /// Every refusal, in the order of their codes.
    pub const ALL: [Self; 4] = [Self::Cluster, Self::Node, Self::Resource, Self::Peer];
}

/// What both ends speak, from the other end's hello.
fn agree(theirs: Hello) -> Result<Authenticated, AuthError> {
    let version = highest_common(VERSIONS, theirs.versions)
        .ok_or(AuthError::Version { ours: VERSIONS, theirs: theirs.versions })?;
    Ok(Authenticated {
        peer: theirs.sender,
        instance: theirs.instance,
        resource: theirs.resource,
        version,
        features: FEATURES & theirs.features,
    })
}

fn highest_common(ours: (u16, u16), theirs: (u16, u16)) -> Option<u16> {
    let (lowest, highest) = (ours.0.max(theirs.0), ours.1.min(theirs.1));
    (lowest <= highest).then_some(highest)
}

fn prove(secret: &Secret, label: &[u8], said: &[u8]) -> [u8; PROOF_LEN] {
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).expect("HMAC takes a key of any length");
    mac.update(label);
    mac.update(said);
    mac.finalize().into_bytes().into()
}

const PROOF_LEN: usize = 32;
const DIALLER_LABEL: &[u8] = b"evenkeel replication 1 dialler\0";
const ACCEPTOR_LABEL: &[u8] = b"evenkeel replication 1 acceptor\0";
