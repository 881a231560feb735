//! The end that called: hello, proof, and then it waits for the verdict.

use subtle::ConstantTimeEq;

use super::{
    ACCEPTOR_LABEL, AuthError, Authenticated, DIALLER_LABEL, FEATURES, Identity, Message, Nonce, Refusal,
    Secret, VERSIONS, agree,
    hello::{Hello, Role},
    message::{PROOF, VERDICT, put_message},
    prove,
};
use crate::NodeId;

/// The dialler has said hello and waits for the answer.
#[derive(Clone, Debug)]
pub struct ExpectHello {
    secret: Secret,
    ours: Hello,
    ours_bytes: Vec<u8>,
}

impl ExpectHello {
    /// Begins as the dialler: appends the hello to `output`.
    ///
    /// # Panics
    /// When a name is longer than [`super::NAME_MAX`], which the configuration excludes.
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
#[derive(Clone, Debug)]
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
