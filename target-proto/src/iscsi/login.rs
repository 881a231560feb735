//! The login phase of a target (RFC 7143 6.3): who comes, to what, with which proof, on which terms.
//!
//! [`Login::receive`] consumes the login and gives back what it has become. Nothing an initiator says before the
//! final response changes anything outside this value, and that response is sent only once the caller has made room
//! for the session with [`Ready::accept`].

use std::fmt;

use bytes::Bytes;
use thiserror::Error;

use super::chap::{Asked, Challenger, Credentials};
use super::keys::{self, DATA_SEGMENT_MAX, DEFAULT_DATA_SEGMENT, Key, Parameters, Phase, Row};
use super::pdu::{
    DecodeError, Decoder, Digests, Isid, LoginRequest, LoginResponse, LoginStatus, Numbers, Output, Pdu,
    Sender, Stage,
};
use super::text::{self, Answer, Gathered, Pair, TextError};

mod security;

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

/// The numbers and texts of a login, whatever its state.
#[derive(Debug)]
struct Exchange {
    /// The first request: the fields that may not change.
    first: Option<First>,
    stage: Stage,
    stat_sn: u32,
    queue_depth: u32,
    gathered: Gathered,
    requests: u32,
    /// Keys that were negotiated, by their place in the table: none may come twice.
    settled: u64,
    unknown: Vec<String>,
    declared: bool,
    group_told: bool,
    parameters: Parameters,
}

#[derive(Clone, Copy, Debug)]
struct First {
    isid: Isid,
    tsih: u16,
    cid: u16,
    task: u32,
    cmd_sn: u32,
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

type Refusal = (LoginStatus, Why);

impl Login {
    /// A login on a new connection, which will have a command window of `queue_depth`.
    #[must_use]
    pub fn new(queue_depth: u32) -> Self {
        Self {
            decoder: Decoder::new(Sender::Initiator, DEFAULT_DATA_SEGMENT, Digests::default()),
            exchange: Exchange {
                first: None,
                stage: Stage::Security,
                stat_sn: 1,
                queue_depth,
                gathered: Gathered::default(),
                requests: 0,
                settled: 0,
                unknown: Vec::new(),
                declared: false,
                group_told: false,
                parameters: Parameters::default(),
            },
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

impl Exchange {
    /// What holds for every request, whatever its text says (RFC 7143 11.12).
    fn check(&mut self, request: &LoginRequest) -> Result<(), Refusal> {
        let protocol = |why| Err((LoginStatus::INITIATOR_ERROR, Why::Protocol(why)));
        match self.first {
            None => {
                self.stage = request.stage;
                self.first = Some(First {
                    isid: request.isid,
                    tsih: request.tsih,
                    cid: request.cid,
                    task: request.task,
                    cmd_sn: request.cmd_sn,
                });
                if request.version_min > VERSION {
                    let why = Why::Protocol("no version that we speak");
                    return Err((LoginStatus::UNSUPPORTED_VERSION, why));
                }
            }
            Some(first) => {
                if (first.isid, first.tsih, first.cid) != (request.isid, request.tsih, request.cid)
                    || first.task != request.task
                {
                    return protocol("the session's identity or the task tag changed");
                }
            }
        }
        self.requests += 1;
        if self.requests > REQUESTS_MAX {
            return protocol("too many requests");
        }
        if request.stage != self.stage {
            return protocol("the request is of another stage");
        }
        if request.next.is_some_and(|next| next <= request.stage || request.more) {
            return protocol("the next stage is behind this one, or the text is not whole");
        }
        self.gathered.push(&request.text).map_err(|error| (LoginStatus::INITIATOR_ERROR, error.into()))
    }

    /// Settles the keys of one whole text. Returns the state after it, and whether the stage may end.
    fn settle(
        &mut self,
        state: State,
        pairs: &[Pair<'_>],
        admission: &dyn Admission,
        answer: &mut Answer,
    ) -> Result<(State, bool), Refusal> {
        let leading = matches!(state, State::Leading);
        let mut known = Vec::with_capacity(pairs.len().min(keys::TABLE.len()));
        for pair in pairs {
            match keys::find(pair.key) {
                Some((place, row)) => {
                    self.check_key(place, row, pair, &state)?;
                    known.push((place, row, *pair));
                }
                None => self.unknown(pair, answer)?,
            }
        }
        known.sort_unstable_by_key(|(place, ..)| *place);
        let state = if leading { self.lead(&known, admission)? } else { state };
        let discovery = state.known().is_some_and(|known| known.identity.purpose == Purpose::Discovery);
        for (_, row, pair) in &known {
            if row.key == Key::Parameter {
                row.negotiate(pair, discovery, &mut self.parameters, answer);
            }
        }
        match state {
            State::Security(known_by_now, security) => {
                let find = |name: &str| {
                    known.iter().find(|(_, row, _)| row.name == name).map(|(_, _, pair)| pair.value)
                };
                let security = security.receive(&find, &known_by_now, admission, answer)?;
                let ready = security.is_done();
                Ok((State::Security(known_by_now, security), ready))
            }
            state => Ok((state, true)),
        }
    }

    /// A key may come once, in its phase, and no longer than it can be. Who comes may be said again in each stage, as
    /// libiscsi does, if it is the same.
    fn check_key(&mut self, place: usize, row: &Row, pair: &Pair<'_>, state: &State) -> Result<(), Refusal> {
        let in_phase = match row.phase {
            Phase::Security => self.stage == Stage::Security,
            Phase::Operational => self.stage == Stage::Operational,
            Phase::Leading => state.known().is_none_or(|known| known.identity.says(row.key, pair.value)),
            Phase::Login | Phase::Any => true,
            Phase::FullFeature | Phase::Never => false,
        };
        let seen = row.phase != Phase::Leading && self.settled & 1 << place != 0;
        if !in_phase || seen || pair.value.len() > row.value_max {
            return Err((LoginStatus::INITIATOR_ERROR, Why::Key(row.name)));
        }
        self.settled |= 1 << place;
        Ok(())
    }

    fn unknown(&mut self, pair: &Pair<'_>, answer: &mut Answer) -> Result<(), Refusal> {
        let again = self.unknown.iter().any(|seen| seen == pair.key);
        if again || self.unknown.len() >= UNKNOWN_MAX || pair.value.len() > UNKNOWN_VALUE_MAX {
            let why = Why::Protocol("too many unknown keys, or one of them twice or too long");
            return Err((LoginStatus::INITIATOR_ERROR, why));
        }
        self.unknown.push(pair.key.to_owned());
        answer.put(pair.key, "NotUnderstood");
        Ok(())
    }

    /// Reads who comes, and asks whether it may (RFC 7143 6.3.1).
    fn lead(
        &self,
        known: &[(usize, &'static Row, Pair<'_>)],
        admission: &dyn Admission,
    ) -> Result<State, Refusal> {
        let find = |key| known.iter().find(|(_, row, _)| row.key == key).map(|(_, _, pair)| pair.value);
        let missing = |name| (LoginStatus::MISSING_PARAMETER, Why::Missing(name));
        let first = self.first.ok_or((LoginStatus::TARGET_ERROR, Why::Protocol("no request")))?;
        let initiator = find(Key::InitiatorName).ok_or(missing("InitiatorName"))?;
        if !is_name(initiator) {
            return Err((LoginStatus::INITIATOR_ERROR, Why::Protocol("InitiatorName is not an iSCSI name")));
        }
        let purpose = match (find(Key::SessionType), find(Key::TargetName)) {
            (Some("Discovery"), _) => Purpose::Discovery,
            (Some("Normal") | None, Some(target)) => Purpose::Normal { target: target.to_owned() },
            (Some("Normal") | None, None) => return Err(missing("TargetName")),
            (Some(_), _) => {
                return Err((LoginStatus::SESSION_TYPE, Why::Protocol("SessionType is neither of the two")));
            }
        };
        let grant = match &purpose {
            Purpose::Discovery => Grant::default(),
            Purpose::Normal { target } => {
                let refused = |status| {
                    let (initiator, target) = (initiator.to_owned(), target.clone());
                    Err((status, Why::Access { initiator, target }))
                };
                match admission.admit(initiator, target) {
                    Access::NotFound => return refused(LoginStatus::NOT_FOUND),
                    Access::Forbidden => return refused(LoginStatus::FORBIDDEN),
                    Access::Unavailable => return refused(LoginStatus::UNAVAILABLE),
                    Access::Granted(grant) => grant,
                }
            }
        };
        if first.tsih != 0 {
            // Sessions have one connection, so one more is either one too many or belongs nowhere.
            let exists = match &purpose {
                Purpose::Discovery => false,
                Purpose::Normal { target } => {
                    admission.has_session(target, initiator, first.isid, first.tsih)
                }
            };
            let why = Why::Protocol("the TSIH is not 0");
            let status = if exists { LoginStatus::TOO_MANY_CONNECTIONS } else { LoginStatus::NO_SESSION };
            return Err((status, why));
        }
        let identity =
            Identity { initiator: initiator.to_owned(), isid: first.isid, cid: first.cid, purpose };
        let known = Known { identity, grant };
        match self.stage {
            Stage::Security => {
                let security = Security::new(&known.grant);
                Ok(State::Security(known, security))
            }
            _ if known.grant.chap.is_some() => {
                let initiator = initiator.to_owned();
                let why = Why::Authentication { initiator, reason: "the security stage was left out" };
                Err((LoginStatus::AUTHENTICATION_FAILURE, why))
            }
            _ => Ok(State::Operational(known)),
        }
    }

    /// Says what a target has to say unasked: its portal group at first, and the data it takes before the full feature
    /// phase.
    fn declare(&mut self, state: &State, next: Option<Stage>, answer: &mut Answer) -> Result<(), Refusal> {
        if let Some(known) = state.known() {
            if !self.group_told && known.identity.purpose != Purpose::Discovery {
                self.group_told = true;
                answer.put("TargetPortalGroupTag", &known.grant.portal_group.to_string());
            }
            let last_chance = self.stage == Stage::Operational || next == Some(Stage::FullFeature);
            if !self.declared && last_chance {
                self.declared = true;
                answer.put("MaxRecvDataSegmentLength", &DATA_SEGMENT_MAX.to_string());
            }
        }
        if answer.len() > ANSWER_MAX {
            let why = Why::Protocol("the answer is longer than a login response");
            return Err((LoginStatus::INITIATOR_ERROR, why));
        }
        Ok(())
    }

    fn numbers(&mut self) -> Numbers {
        let cmd_sn = self.first.map_or(0, |first| first.cmd_sn);
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(1);
        // Login requests are immediate, so the number of the first is still the next one that is due.
        Numbers { stat_sn, exp_cmd_sn: cmd_sn, max_cmd_sn: cmd_sn.wrapping_add(self.queue_depth - 1) }
    }

    fn response(&mut self, status: LoginStatus, text: Bytes) -> LoginResponse {
        LoginResponse {
            next: None,
            more: false,
            stage: self.stage,
            isid: self.first.map_or(Isid::default(), |first| first.isid),
            tsih: 0,
            task: self.first.map_or(0, |first| first.task),
            numbers: self.numbers(),
            status,
            text,
        }
    }

    fn respond(&mut self, next: Option<Stage>, answer: Answer, output: &mut Output) {
        let response = self.response(LoginStatus::SUCCESS, answer.into_bytes());
        LoginResponse { next, ..response }.write(output);
    }

    fn refuse(&mut self, (status, why): Refusal, output: &mut Output) -> LoginError {
        self.response(status, Bytes::new()).write(output);
        LoginError::Refused { status, why }
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

/// An iSCSI name: at most 223 bytes, `iqn.`, `eui.` or `naa.` in front (RFC 7143 4.2.7), nothing a log would choke on.
fn is_name(name: &str) -> bool {
    ["iqn.", "eui.", "naa."].iter().any(|start| name.starts_with(start))
        && name.len() <= NAME_MAX
        && !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

const VERSION: u8 = 0;
const NAME_MAX: usize = 223;
/// More requests than any login needs.
const REQUESTS_MAX: u32 = 64;
/// A stranger gets no answer that is much longer than its question.
const UNKNOWN_MAX: usize = 128;
const UNKNOWN_VALUE_MAX: usize = 255;
/// The longest text of a login response: the initiator takes this much before it says otherwise.
const ANSWER_MAX: usize = DEFAULT_DATA_SEGMENT as usize;

const _: () = assert!(keys::TABLE_LEN <= 64, "Exchange::settled has a bit for each key");

#[cfg(test)]
mod tests;
