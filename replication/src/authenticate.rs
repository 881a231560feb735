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

mod hello;

use std::fmt;

use bytes::{Bytes, BytesMut};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::NodeId;
use hello::{Hello, Role};

/// The longest message, in bytes. Nobody needs a larger buffer before authentication is over.
pub const MESSAGE_MAX: usize = 1024;

/// The longest name of a cluster or a resource, in bytes.
pub const NAME_MAX: usize = 255;

/// The versions of the packets that this code speaks, lowest and highest.
pub const VERSIONS: (u16, u16) = (1, 1);

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

/// One message, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    kind: u16,
    /// Header included.
    bytes: Bytes,
}

impl Message {
    /// Takes one whole message from the start of `buffer`, or leaves the bytes alone.
    ///
    /// # Errors
    /// When the bytes are no message, as soon as that shows.
    pub fn take(buffer: &mut BytesMut) -> Result<Option<Self>, AuthError> {
        let known = buffer.len().min(MAGIC.len());
        if buffer[..known] != MAGIC[..known] {
            let mut magic = [0; 4];
            magic[..known].copy_from_slice(&buffer[..known]);
            return Err(AuthError::Magic { magic: u32::from_be_bytes(magic) });
        }
        let Some(&[_, _, _, _, kind_high, kind_low, len_high, len_low]) = buffer.first_chunk() else {
            return Ok(None);
        };
        let kind = u16::from_be_bytes([kind_high, kind_low]);
        let len = HEADER_LEN + usize::from(u16::from_be_bytes([len_high, len_low]));
        if len > MESSAGE_MAX {
            return Err(AuthError::Length { len });
        }
        Ok((buffer.len() >= len).then(|| Self { kind, bytes: buffer.split_to(len).freeze() }))
    }

    fn body(&self, expected: u16) -> Result<&[u8], AuthError> {
        if self.kind != expected {
            return Err(AuthError::Kind { expected, received: self.kind });
        }
        Ok(&self.bytes[HEADER_LEN..])
    }

    const fn malformed(&self) -> AuthError {
        AuthError::Malformed { kind: self.kind, len: self.bytes.len() - HEADER_LEN }
    }
}

/// The dialler has said hello and waits for the answer.
#[derive(Debug)]
pub struct ExpectHello {
    secret: Secret,
    ours: Hello,
    ours_bytes: Vec<u8>,
}

impl ExpectHello {
    /// Begins as the dialler: appends the hello to `output`.
    ///
    /// # Panics
    /// When a name is longer than [`NAME_MAX`], which the configuration excludes.
    #[must_use]
    pub fn dial(
        identity: &Identity,
        resource: &str,
        peer: NodeId,
        nonce: Nonce,
        output: &mut Vec<u8>,
    ) -> Self {
        let ours = Hello {
            versions: VERSIONS,
            features: FEATURES,
            role: Role::Dialler,
            sender: identity.node,
            receiver: peer,
            instance: identity.instance,
            nonce,
            cluster: identity.cluster.clone(),
            resource: resource.to_owned(),
        };
        let ours_bytes = ours.encode();
        output.extend_from_slice(&ours_bytes);
        Self { secret: identity.secret.clone(), ours, ours_bytes }
    }

    /// Takes the acceptor's hello and appends the proof to `output`.
    ///
    /// # Errors
    /// When the hello is not an answer to ours, or no version is common.
    pub fn receive(self, message: &Message, output: &mut Vec<u8>) -> Result<ExpectVerdict, AuthError> {
        let Self { secret, ours, ours_bytes } = self;
        let theirs = Hello::read(message)?;
        if theirs.nonce == ours.nonce {
            return Err(AuthError::OwnNonce);
        }
        if theirs.role != Role::Acceptor {
            return Err(AuthError::OwnRole);
        }
        if (theirs.sender, theirs.receiver) != (ours.receiver, ours.sender)
            || (&theirs.cluster, &theirs.resource) != (&ours.cluster, &ours.resource)
        {
            return Err(AuthError::Names);
        }
        let authenticated = agree(theirs)?;
        let transcript = [&ours_bytes, &message.bytes[..]].concat();
        put_message(PROOF, &[&prove(&secret, DIALLER_LABEL, &transcript)], output);
        Ok(ExpectVerdict { secret, transcript, authenticated })
    }
}

/// The dialler has proved itself and waits for the verdict.
#[derive(Debug)]
pub struct ExpectVerdict {
    secret: Secret,
    transcript: Vec<u8>,
    authenticated: Authenticated,
}

impl ExpectVerdict {
    /// Takes the acceptor's verdict.
    ///
    /// # Errors
    /// When its proof is wrong, or it refuses.
    pub fn receive(self, message: &Message) -> Result<Authenticated, AuthError> {
        let (&verdict, proof) = message.body(VERDICT)?.split_first().ok_or_else(|| message.malformed())?;
        let expected = prove(&self.secret, ACCEPTOR_LABEL, &[&[verdict], &self.transcript[..]].concat());
        if !bool::from(proof.ct_eq(&expected)) {
            return Err(AuthError::Proof);
        }
        let Some(code) = verdict.checked_sub(1) else {
            return Ok(self.authenticated);
        };
        let refusal = *Refusal::ALL.get(usize::from(code)).ok_or_else(|| message.malformed())?;
        Err(AuthError::Refused { refusal })
    }
}

/// The acceptor knows what a dialler claims. Nothing of it is proved.
#[derive(Debug)]
pub struct Claimed {
    theirs: Hello,
    theirs_bytes: Bytes,
}

impl Claimed {
    /// Begins as the acceptor, with the dialler's hello.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(message: &Message) -> Result<Self, AuthError> {
        let theirs = Hello::read(message)?;
        if theirs.role != Role::Dialler {
            return Err(AuthError::OwnRole);
        }
        Ok(Self { theirs, theirs_bytes: message.bytes.clone() })
    }

    /// The resource that the dialler asks for.
    #[must_use]
    pub fn resource(&self) -> &str {
        &self.theirs.resource
    }

    /// Who the dialler claims to be.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.theirs.sender
    }

    /// Appends our hello to `output`: the same one whether the dialler will be welcome or not. `admitted` is what
    /// the configuration says of the resource and the node claimed.
    ///
    /// # Errors
    /// When the dialler claims to be this node, or no version is common; what is in `output` is sent even then.
    pub fn answer(
        self,
        identity: &Identity,
        nonce: Nonce,
        admitted: Result<(), Refusal>,
        output: &mut Vec<u8>,
    ) -> Result<ExpectProof, AuthError> {
        let Self { theirs, theirs_bytes } = self;
        if theirs.sender == identity.node {
            return Err(AuthError::OwnNode { node: identity.node });
        }
        if theirs.nonce == nonce {
            return Err(AuthError::OwnNonce);
        }
        let ours = Hello {
            versions: VERSIONS,
            features: FEATURES,
            role: Role::Acceptor,
            sender: theirs.receiver,
            receiver: theirs.sender,
            instance: identity.instance,
            nonce,
            cluster: theirs.cluster.clone(),
            resource: theirs.resource.clone(),
        };
        let ours_bytes = ours.encode();
        output.extend_from_slice(&ours_bytes);
        let refusal = if theirs.cluster != identity.cluster {
            Some(Refusal::Cluster)
        } else if theirs.receiver != identity.node {
            Some(Refusal::Node)
        } else {
            admitted.err()
        };
        let transcript = [&theirs_bytes[..], &ours_bytes].concat();
        let authenticated = agree(theirs)?;
        Ok(ExpectProof { secret: identity.secret.clone(), transcript, authenticated, refusal })
    }
}

/// The acceptor has said hello and waits for the dialler's proof.
#[derive(Debug)]
pub struct ExpectProof {
    secret: Secret,
    transcript: Vec<u8>,
    authenticated: Authenticated,
    refusal: Option<Refusal>,
}

impl ExpectProof {
    /// Takes the dialler's proof and, where it holds, appends the verdict to `output`.
    ///
    /// # Errors
    /// When the proof is wrong, or the dialler is refused; what is in `output` is sent even then.
    pub fn receive(self, message: &Message, output: &mut Vec<u8>) -> Result<Authenticated, AuthError> {
        let proof = message.body(PROOF)?;
        if !bool::from(proof.ct_eq(&prove(&self.secret, DIALLER_LABEL, &self.transcript))) {
            return Err(AuthError::Proof);
        }
        let verdict = self.refusal.map_or(WELCOME, |refusal| refusal as u8 + 1);
        let ours = prove(&self.secret, ACCEPTOR_LABEL, &[&[verdict], &self.transcript[..]].concat());
        put_message(VERDICT, &[&[verdict], &ours], output);
        match self.refusal {
            None => Ok(self.authenticated),
            Some(refusal) => Err(AuthError::Refused { refusal }),
        }
    }
}

/// What both ends speak, from the other end's hello.
fn agree(theirs: Hello) -> Result<Authenticated, AuthError> {
    let (lowest, highest) = (VERSIONS.0.max(theirs.versions.0), VERSIONS.1.min(theirs.versions.1));
    if lowest > highest {
        return Err(AuthError::Version { ours: VERSIONS, theirs: theirs.versions });
    }
    Ok(Authenticated {
        peer: theirs.sender,
        instance: theirs.instance,
        resource: theirs.resource,
        version: highest,
        features: FEATURES & theirs.features,
    })
}

fn prove(secret: &Secret, label: &[u8], said: &[u8]) -> [u8; PROOF_LEN] {
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).expect("HMAC takes a key of any length");
    mac.update(label);
    mac.update(said);
    mac.finalize().into_bytes().into()
}

fn put_message(kind: u16, body: &[&[u8]], output: &mut Vec<u8>) {
    let len: usize = body.iter().map(|part| part.len()).sum();
    assert!(HEADER_LEN + len <= MESSAGE_MAX, "a message of {len} bytes: the names were not checked");
    output.extend_from_slice(&MAGIC);
    output.extend_from_slice(&kind.to_be_bytes());
    output.extend_from_slice(&u16::try_from(len).expect("just compared").to_be_bytes());
    for part in body {
        output.extend_from_slice(part);
    }
}

const MAGIC: [u8; 4] = *b"EKh1";
const HEADER_LEN: usize = 8;
const HELLO: u16 = 1;
const PROOF: u16 = 2;
const VERDICT: u16 = 3;
const PROOF_LEN: usize = 32;
const WELCOME: u8 = 0;
const DIALLER_LABEL: &[u8] = b"evenkeel replication 1 dialler\0";
const ACCEPTOR_LABEL: &[u8] = b"evenkeel replication 1 acceptor\0";
