//! The login phase of a target (RFC 7143 6.3): who comes, to what, with which proof, on which terms.
//!
//! [`Login::receive`] consumes the login and gives back what it has become. Nothing an initiator says before the
//! final response changes anything outside this value, and that response is sent only once the caller has made room
//! for the session with [`Ready::accept`].

use std::fmt;

use thiserror::Error;

use super::chap::{Asked, Challenger, Credentials};
use super::keys::{DEFAULT_DATA_SEGMENT, Key, Parameters};
use super::pdu::{
    DecodeError, Decoder, Digests, Isid, LoginRequest, LoginResponse, LoginStatus, Output, Pdu, Sender, Stage,
};
use super::text::{self, Answer, TextError};

mod exchange;
mod security;

use exchange::Exchange;
use security::Security;

/// Who may use what. The caller knows; the login asks.
pub trait Admission {
    /// What an initiator gets that names a target.
    fn admit(&self, initiator: &str, target: &str) -> Access;

    /// Whether a session with this identity exists (RFC 7143 4.4.3).
    fn has_session(&self, target: &str, initiator: &str, isid: Isid, tsih: u16) -> bool;

    /// Makes and recognises CHAP challenges.
    fn challenger(&self) -> &Challenger;

    /// Fills `bytes` from the random source of the operating system.
    fn random(&self, bytes: &mut [u8]);
}

/// What an initiator gets that names a target.
#[derive(Clone, Debug)]
pub enum Access {
    /// There is no such target here.
    NotFound,
    /// The target is not for this initiator.
    Forbidden,
    /// The target is there, but does not serve now.
    Unavailable,
    /// It may go on.
    Granted(Grant),
}

/// On which terms a target may be used.
#[derive(Clone, Debug, Default)]
pub struct Grant {
    /// TargetPortalGroupTag of the portal that the connection came to.
    pub portal_group: u16,
    /// What the initiator has to prove; `None` where nothing.
    pub chap: Option<Credentials>,
    /// What the target proves to an initiator that asks.
    pub mutual: Option<Credentials>,
}

/// What a login is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To ask which targets there are.
    Discovery,
    /// To use one target.
    Normal {
        /// Its name.
        target: String,
    },
}

/// Who logs in, to what: the name of a session (RFC 7143 4.4.3), less the TSIH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The iSCSI name of the initiator.
    pub initiator: String,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// The connection's number.
    pub cid: u16,
    /// What for.
    pub purpose: Purpose,
}

/// A login that goes on.
#[derive(Debug)]
pub struct Login {
    decoder: Decoder,
    exchange: Exchange,
    state: State,
}

/// What is known by now.
#[derive(Debug)]
enum State {
    /// Nothing: not one request has come.
    Silent,
    /// Who comes is not known yet: the first text is not whole.
    Leading,
    /// The initiator has to prove itself, or has done so.
    Security(Known, Security),
    /// The initiator is who it says, and the terms are being agreed on.
    Operational(Known),
}

impl State {
    const fn known(&self) -> Option<&Known> {
        match self {
            Self::Silent | Self::Leading => None,
            Self::Security(known, _) | Self::Operational(known) => Some(known),
        }
    }
}

#[derive(Clone, Debug)]
struct Known {
    identity: Identity,
    grant: Grant,
}

/// What a login has become.
#[derive(Debug)]
#[must_use]
pub enum Progress {
    /// It goes on.
    Continue(Login),
    /// Both sides agree; the final response waits for the caller.
    Ready(Ready),
    /// It is over. Where the initiator is told, the response is in the output; the connection closes behind it.
    Over(LoginError),
}

/// Why a login is over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoginError {
    /// It was refused, and the initiator was told.
    #[error("login refused: {status}: {why}")]
    Refused {
        /// What the initiator was told.
        status: LoginStatus,
        /// What led to it.
        why: Why,
    },
    /// The bytes are not iSCSI, or something else than a login request came first (RFC 7143 6.3): no answer.
    #[error("no login: {0}")]
    NotLogin(Why),
}

/// What was wrong with a login, for the log.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Why {
    /// The PDU could not be read.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The text could not be read.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A key came where it has no place, or twice, or its value is too long.
    #[error("key {0} is not allowed here")]
    Key(&'static str),
    /// A key that is needed did not come.
    #[error("key {0} is missing")]
    Missing(&'static str),
    /// Who was refused what.
    #[error("initiator {initiator:?}, target {target:?}")]
    Access {
        /// InitiatorName.
        initiator: String,
        /// TargetName.
        target: String,
    },
    /// Authentication failed.
    #[error("initiator {initiator:?}: {reason}")]
    Authentication {
        /// InitiatorName.
        initiator: String,
        /// In which way.
        reason: &'static str,
    },
    /// The request does not fit the state of the login.
    #[error("{0}")]
    Protocol(&'static str),
    /// The caller had no room for the session.
    #[error("the session was not admitted")]
    NotAdmitted,
}

impl Login {
    /// A login on a new connection, which will have a command window of `queue_depth`.
    #[must_use]
    pub fn new(queue_depth: u32) -> Self {
        Self {
            decoder: Decoder::new(Sender::Initiator, DEFAULT_DATA_SEGMENT, Digests::default()),
            exchange: Exchange::new(queue_depth),
            state: State::Silent,
        }
    }

    /// Takes whole PDUs from `buffer` until the login is over or needs more bytes. Answers go to `output`.
    pub fn receive(
        mut self,
        buffer: &mut bytes::BytesMut,
        admission: &dyn Admission,
        output: &mut Output,
    ) -> Progress {
        loop {
            let silent = matches!(self.state, State::Silent);
            let received = match self.decoder.next(buffer) {
                Ok(None) => return Progress::Continue(self),
                Ok(Some(received)) => received,
                Err(error) if silent || error.reject().is_none() => {
                    return Progress::Over(LoginError::NotLogin(error.into()));
                }
                Err(error) => {
                    let refusal = (LoginStatus::INITIATOR_ERROR, error.into());
                    return Progress::Over(self.exchange.refuse(refusal, output));
                }
            };
            let request = match received.pdu {
                Pdu::LoginRequest(request) => request,
                _ if silent => {
                    let why = Why::Protocol("the first PDU is not a login request");
                    return Progress::Over(LoginError::NotLogin(why));
                }
                _ => {
                    let why = Why::Protocol("a PDU of the full feature phase");
                    let refusal = (LoginStatus::INVALID_DURING_LOGIN, why);
                    return Progress::Over(self.exchange.refuse(refusal, output));
                }
            };
            match self.step(&request, admission, output) {
                Progress::Continue(login) => self = login,
                over => return over,
            }
        }
    }

    fn step(mut self, request: &LoginRequest, admission: &dyn Admission, output: &mut Output) -> Progress {
        if let Err(refusal) = self.exchange.check(request) {
            return Progress::Over(self.exchange.refuse(refusal, output));
        }
        let state = match self.state {
            State::Silent => State::Leading,
            state => state,
        };
        if request.more {
            self.exchange.respond(None, Answer::default(), output);
            return Progress::Continue(Self { state, ..self });
        }
        let text = self.exchange.gathered.take();
        let mut answer = Answer::default();
        let outcome = text::pairs(&text)
            .map_err(|error| (LoginStatus::INITIATOR_ERROR, error.into()))
            .and_then(|pairs| self.exchange.settle(state, &pairs, admission, &mut answer));
        let (state, ready) = match outcome {
            Ok(outcome) => outcome,
            Err(refusal) => return Progress::Over(self.exchange.refuse(refusal, output)),
        };
        // The target goes where the initiator wants to go once it has nothing left to ask itself.
        let next = request.next.filter(|_| ready);
        if let Err(refusal) = self.exchange.declare(&state, next, &mut answer) {
            return Progress::Over(self.exchange.refuse(refusal, output));
        }
        match (next, state) {
            (Some(Stage::FullFeature), State::Security(known, _) | State::Operational(known)) => {
                Progress::Ready(Ready { exchange: self.exchange, known, answer })
            }
            (next, state) => {
                self.exchange.respond(next, answer, output);
                let state = match (next, state) {
                    (Some(Stage::Operational), State::Security(known, _)) => State::Operational(known),
                    (_, state) => state,
                };
                self.exchange.stage = next.unwrap_or(self.exchange.stage);
                Progress::Continue(Self { state, ..self })
            }
        }
    }
}

/// A login that both sides agree on. Its final response is not sent yet.
#[derive(Debug)]
pub struct Ready {
    exchange: Exchange,
    known: Known,
    answer: Answer,
}

impl Ready {
    /// Who logs in.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.known.identity
    }

    /// Sends the final response with the session's handle. The caller has ended an older session of the same identity
    /// before (RFC 7143 6.3.5), and keeps the bytes behind the login for [`super::connection::Connection::new`].
    #[must_use]
    pub fn accept(mut self, tsih: u16, output: &mut Output) -> Established {
        let answer = std::mem::take(&mut self.answer);
        let response = self.exchange.response(LoginStatus::SUCCESS, answer.into_bytes());
        LoginResponse { next: Some(Stage::FullFeature), tsih, ..response }.write(output);
        output.set_digests(self.exchange.parameters.digests);
        Established {
            identity: self.known.identity,
            tsih,
            parameters: self.exchange.parameters,
            exp_cmd_sn: self.exchange.first.map_or(0, |first| first.cmd_sn),
            stat_sn: self.exchange.stat_sn,
            queue_depth: self.exchange.queue_depth,
        }
    }

    /// Refuses the login after all.
    pub fn refuse(mut self, status: LoginStatus, output: &mut Output) -> LoginError {
        self.exchange.refuse((status, Why::NotAdmitted), output)
    }
}

/// What a login leaves to the full feature phase.
#[derive(Clone, Debug)]
pub struct Established {
    /// Who logged in.
    pub identity: Identity,
    /// The target's part of the session identifier.
    pub tsih: u16,
    /// What was agreed on.
    pub parameters: Parameters,
    /// ExpCmdSN of the first command.
    pub exp_cmd_sn: u32,
    /// StatSN of the next response.
    pub stat_sn: u32,
    /// The size of the command window.
    pub queue_depth: u32,
}

impl Identity {
    /// Whether a leading key says what we know already.
    fn says(&self, key: Key, value: &str) -> bool {
        match (key, &self.purpose) {
            (Key::InitiatorName, _) => value == self.initiator,
            (Key::SessionType, Purpose::Discovery) => value == "Discovery",
            (Key::SessionType, Purpose::Normal { .. }) => value == "Normal",
            (Key::TargetName, Purpose::Normal { target }) => value == target,
            _ => false,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} isid {}", self.initiator, self.isid)
    }
}

#[cfg(test)]
mod tests;
