//! The security stage of a login: the initiator proves itself, and the target too where it is asked to (RFC 7143
//! 12.1).

use super::super::chap::{Algorithm, CHAP_BINARY_MAX, NONCE_LEN};
use super::super::text::{binary, hex, number};
use super::exchange::Refusal;
use super::{Admission, Answer, Asked, Credentials, Grant, Known, LoginStatus, Why};

/// How far the proof is.
#[derive(Debug)]
pub(super) enum Security {
    /// No proof is needed.
    Open,
    /// The method is not agreed on.
    ExpectMethod,
    /// CHAP was chosen; which hash is open.
    ExpectAlgorithm,
    /// The challenge is out.
    ExpectResponse(Asked),
    /// The initiator is who it says.
    Proven,
}

impl Security {
    pub(super) const fn new(grant: &Grant) -> Self {
        if grant.chap.is_some() { Self::ExpectMethod } else { Self::Open }
    }

    pub(super) const fn is_done(&self) -> bool {
        matches!(self, Self::Open | Self::Proven)
    }

    /// Goes one step further with what a request says.
    pub(super) fn receive<'a>(
        self,
        find: &dyn Fn(&str) -> Option<&'a str>,
        known: &Known,
        admission: &dyn Admission,
        answer: &mut Answer,
    ) -> Result<Self, Refusal> {
        let failed = |reason| {
            let initiator = known.identity.initiator.clone();
            Err((LoginStatus::AUTHENTICATION_FAILURE, Why::Authentication { initiator, reason }))
        };
        match self {
            Self::Open => match find("AuthMethod") {
                Some(methods) if methods.split(',').any(|method| method == "None") => {
                    answer.put("AuthMethod", "None");
                    Ok(Self::Open)
                }
                Some(_) => failed("it wants to prove itself, and no secret is configured"),
                None => Ok(Self::Open),
            },
            Self::ExpectMethod => match find("AuthMethod") {
                Some(methods) if methods.split(',').any(|method| method == "CHAP") => {
                    answer.put("AuthMethod", "CHAP");
                    Ok(Self::ExpectAlgorithm)
                }
                Some(_) => failed("it does not offer CHAP"),
                // RFC 7143 6.3.2: the target may wait for the initiator to offer a method, not for ever.
                None => failed("it offers no method"),
            },
            Self::ExpectAlgorithm => {
                let offered = find("CHAP_A").unwrap_or_default().split(',');
                let Some(algorithm) = offered.filter_map(number).find_map(Algorithm::from_number) else {
                    return failed("it offers no hash that we have");
                };
                let asked = ask(algorithm, admission);
                answer.put("CHAP_A", &(algorithm as u8).to_string());
                answer.put("CHAP_I", &asked.identifier.to_string());
                answer.put("CHAP_C", &hex(&asked.challenge));
                Ok(Self::ExpectResponse(asked))
            }
            Self::ExpectResponse(asked) => {
                let (user, response) = (find("CHAP_N"), find("CHAP_R").and_then(decode));
                let (Some(credentials), Some(user), Some(response)) = (&known.grant.chap, user, response)
                else {
                    return failed("it sent no CHAP_N or CHAP_R");
                };
                if !asked.proves(credentials, user, &response) {
                    return failed("wrong user or secret");
                }
                match (find("CHAP_I"), find("CHAP_C")) {
                    (None, None) => {}
                    (identifier, challenge) => {
                        let identifier =
                            identifier.and_then(number).and_then(|number| u8::try_from(number).ok());
                        let challenge = challenge.and_then(decode);
                        let Some((identifier, challenge)) = identifier.zip(challenge) else {
                            return failed("its challenge cannot be read");
                        };
                        if admission.challenger().made(&challenge) {
                            return failed("it reflects our challenge");
                        }
                        let Some(mutual) = &known.grant.mutual else {
                            return failed(
                                "it wants the target to prove itself, and no secret is configured",
                            );
                        };
                        prove(&asked, mutual, identifier, &challenge, answer);
                    }
                }
                Ok(Self::Proven)
            }
            Self::Proven => Ok(Self::Proven),
        }
    }
}

fn ask(algorithm: Algorithm, admission: &dyn Admission) -> Asked {
    let (mut nonce, mut identifier) = ([0; NONCE_LEN], [0]);
    admission.random(&mut nonce);
    admission.random(&mut identifier);
    Asked { algorithm, identifier: identifier[0], challenge: admission.challenger().challenge(nonce) }
}

/// The target's own proof, with the hash that was agreed on.
fn prove(asked: &Asked, mutual: &Credentials, identifier: u8, challenge: &[u8], answer: &mut Answer) {
    answer.put("CHAP_N", &mutual.user);
    answer.put("CHAP_R", &hex(&asked.algorithm.response(identifier, &mutual.secret, challenge)));
}

fn decode(value: &str) -> Option<Vec<u8>> {
    binary(value, CHAP_BINARY_MAX)
}
