//! The end that was called: it hears a claim, answers it, and judges the proof.

use bytes::Bytes;
use subtle::ConstantTimeEq;

use super::{
    ACCEPTOR_LABEL, AuthError, Authenticated, DIALLER_LABEL, FEATURES, Identity, Message, Nonce, Refusal,
    Secret, VERSIONS, agree,
    hello::{Hello, Role},
    message::{PROOF, VERDICT, put_message},
    prove,
};
use crate::NodeId;

/// The acceptor knows what a dialler claims. Nothing of it is proved.
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
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

const WELCOME: u8 = 0;
