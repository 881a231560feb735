//! The texts and numbers of a login: which keys may come when, what follows from them, and what is answered.

use bytes::Bytes;

use super::super::keys::{self, DATA_SEGMENT_MAX, DEFAULT_DATA_SEGMENT, Key, Parameters, Phase, Row};
use super::super::pdu::{Isid, LoginRequest, LoginResponse, LoginStatus, Numbers, Output, Stage};
use super::super::text::{Answer, Gathered, Pair};
use super::security::Security;
use super::{Access, Admission, Grant, Identity, Known, LoginError, Purpose, State, Why};

/// A status for the initiator, and for the log what led to it.
pub(super) type Refusal = (LoginStatus, Why);

/// The numbers and texts of a login, whatever its state.
#[derive(Debug)]
pub(super) struct Exchange {
    /// The first request: the fields that may not change.
    pub(super) first: Option<First>,
    pub(super) stage: Stage,
    pub(super) stat_sn: u32,
    pub(super) queue_depth: u32,
    pub(super) gathered: Gathered,
    requests: u32,
    /// Keys that were negotiated, by their place in the table: none may come twice.
    settled: u64,
    unknown: Vec<String>,
    declared: bool,
    group_told: bool,
    pub(super) parameters: Parameters,
}

/// The first request of a login.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    isid: Isid,
    tsih: u16,
    cid: u16,
    task: u32,
    pub(super) cmd_sn: u32,
}

impl Exchange {
    /// Of a login that will have a command window of `queue_depth`.
    pub(super) fn new(queue_depth: u32) -> Self {
        Self {
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
        }
    }

    /// What holds for every request, whatever its text says (RFC 7143 11.12).
    pub(super) fn check(&mut self, request: &LoginRequest) -> Result<(), Refusal> {
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
    pub(super) fn settle(
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
    pub(super) fn declare(
        &mut self,
        state: &State,
        next: Option<Stage>,
        answer: &mut Answer,
    ) -> Result<(), Refusal> {
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

    pub(super) fn response(&mut self, status: LoginStatus, text: Bytes) -> LoginResponse {
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

    pub(super) fn respond(&mut self, next: Option<Stage>, answer: Answer, output: &mut Output) {
        let response = self.response(LoginStatus::SUCCESS, answer.into_bytes());
        LoginResponse { next, ..response }.write(output);
    }

    pub(super) fn refuse(&mut self, (status, why): Refusal, output: &mut Output) -> LoginError {
        self.response(status, Bytes::new()).write(output);
        LoginError::Refused { status, why }
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
