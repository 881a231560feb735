//! Why two nodes did not come together.

use thiserror::Error;

use super::{MESSAGE_MAX, Refusal};
use crate::NodeId;

/// Why authentication failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AuthError {
    /// The bytes do not start as a message.
    #[error("a message starts with {magic:#010x}: the other end is not a node, or speaks another protocol")]
    Magic {
        /// What stands there.
        magic: u32,
    },
    /// The message is longer than any.
    #[error("a message of {len} bytes exceeds {MESSAGE_MAX}")]
    Length {
        /// As announced, header included, in bytes.
        len: usize,
    },
    /// A message came where another was due.
    #[error("a message of kind {received} where {expected} was due")]
    Kind {
        /// What was due.
        expected: u16,
        /// What came.
        received: u16,
    },
    /// The message's fields do not fit its length, or mean nothing.
    #[error("a message of kind {kind} with {len} bytes that make no sense")]
    Malformed {
        /// The kind.
        kind: u16,
        /// Bytes behind the header.
        len: usize,
    },
    /// The other end takes the same role as we do: our own message came back, or ends were mixed up.
    #[error("the other end claims our own role")]
    OwnRole,
    /// The other end claims to be this node.
    #[error("the other end claims to be this very node, {}", node.0)]
    OwnNode {
        /// Our id.
        node: NodeId,
    },
    /// The other end sent our own nonce back.
    #[error("the other end sent our own challenge back")]
    OwnNonce,
    /// The acceptor's hello does not repeat what we asked for.
    #[error("the answer is not about what was asked")]
    Names,
    /// No version is spoken by both.
    #[error(
        "we speak versions {} to {} of the protocol and the other end {} to {}", ours.0, ours.1, theirs.0, theirs.1
    )]
    Version {
        /// Lowest and highest here.
        ours: (u16, u16),
        /// Lowest and highest there.
        theirs: (u16, u16),
    },
    /// The proof is wrong.
    #[error("the other end does not know the secret of the cluster")]
    Proof,
    /// The proof is right and the answer is no: at the dialler as the acceptor told it, at the acceptor as it
    /// told the dialler.
    #[error("{refusal}")]
    Refused {
        /// Why.
        refusal: Refusal,
    },
}
