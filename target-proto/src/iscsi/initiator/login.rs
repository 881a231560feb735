//! The initiator's side of a login (RFC 7143 6.3).

use subtle::ConstantTimeEq;

use super::super::chap::{Algorithm, CHAP_BINARY_MAX, Credentials};
use super::super::keys::{DATA_SEGMENT_MAX, Parameters};
use super::super::pdu::{LoginRequest, LoginResponse, Output, Pdu, Stage};
use super::super::text::{Answer, Pair, binary, hex, number, pairs};
use super::{InitiatorError, Settings};

/// A login that goes on.
#[derive(Debug)]
pub(super) struct Login {
    settings: Settings,
    cmd_sn: u32,
    step: Step,
    agreed: Parameters,
}

/// What the next response has to bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Method,
    Challenge,
    Proof(Algorithm),
    Terms,
}

impl Login {
    /// Sends the first request.
    pub(super) fn start(settings: Settings, cmd_sn: u32, output: &mut Output) -> Self {
        let step = if settings.chap.is_some() { Step::Method } else { Step::Terms };
        let login = Self { settings, cmd_sn, step, agreed: Parameters::default() };
        let mut text = Answer::default();
        text.put("InitiatorName", &login.settings.initiator);
        match &login.settings.target {
            None => text.put("SessionType", "Discovery"),
            Some(target) => {
                text.put("SessionType", "Normal");
                text.put("TargetName", target);
            }
        }
        if step == Step::Method {
            text.put("AuthMethod", "CHAP");
            login.send(Stage::Security, None, text, 0, output);
        } else {
            login.offer(&mut text);
            login.send(Stage::Operational, Some(Stage::FullFeature), text, 0, output);
        }
        login
    }

    /// Takes a response, and sends the next request, or returns what was agreed on.
    pub(super) fn receive(
        &mut self,
        response: &LoginResponse,
        exp_stat_sn: u32,
        output: &mut Output,
    ) -> Result<Option<Parameters>, InitiatorError> {
        let pairs = pairs(&response.text).map_err(|_| InitiatorError::Protocol("unreadable text"))?;
        let find = |key| pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value);
        let mut text = Answer::default();
        match self.step {
            Step::Method => {
                if find("AuthMethod") != Some("CHAP") {
                    return Err(InitiatorError::Protocol("the target does not want CHAP"));
                }
                text.put("CHAP_A", "7,8,6,5");
                self.step = Step::Challenge;
                self.send(Stage::Security, None, text, exp_stat_sn, output);
            }
            Step::Challenge => {
                let algorithm = self.answer_challenge(&find, &mut text)?;
                self.step = Step::Proof(algorithm);
                self.send(Stage::Security, Some(Stage::Operational), text, exp_stat_sn, output);
            }
            Step::Proof(algorithm) => {
                self.check_proof(algorithm, &find)?;
                if response.next != Some(Stage::Operational) {
                    return Err(InitiatorError::Protocol("the target does not go on"));
                }
                self.offer(&mut text);
                self.step = Step::Terms;
                self.send(Stage::Operational, Some(Stage::FullFeature), text, exp_stat_sn, output);
            }
            Step::Terms => {
                for pair in &pairs {
                    self.agree(pair);
                }
                if response.next == Some(Stage::FullFeature) {
                    return Ok(Some(self.agreed));
                }
                self.send(Stage::Operational, Some(Stage::FullFeature), text, exp_stat_sn, output);
            }
        }
        Ok(None)
    }

    /// Answers the target's challenge, and challenges the target.
    fn answer_challenge<'a>(
        &self,
        find: &dyn Fn(&'static str) -> Option<&'a str>,
        text: &mut Answer,
    ) -> Result<Algorithm, InitiatorError> {
        let broken = InitiatorError::Protocol("no challenge");
        let byte = |key| find(key).and_then(number).and_then(|number| u8::try_from(number).ok());
        let algorithm = byte("CHAP_A").and_then(|number| Algorithm::from_number(number.into()));
        let challenge = find("CHAP_C").and_then(|challenge| binary(challenge, CHAP_BINARY_MAX));
        let (Some(algorithm), Some(identifier), Some(challenge), Some(chap)) =
            (algorithm, byte("CHAP_I"), challenge, &self.settings.chap)
        else {
            return Err(broken);
        };
        text.put("CHAP_N", &chap.user);
        text.put("CHAP_R", &hex(&algorithm.response(identifier, &chap.secret, &challenge)));
        if self.settings.mutual.is_some() {
            let (identifier, challenge) = self.challenge();
            text.put("CHAP_I", &identifier.to_string());
            text.put("CHAP_C", &hex(challenge));
        }
        Ok(algorithm)
    }

    fn check_proof<'a>(
        &self,
        algorithm: Algorithm,
        find: &dyn Fn(&'static str) -> Option<&'a str>,
    ) -> Result<(), InitiatorError> {
        let Some(Credentials { user, secret }) = &self.settings.mutual else { return Ok(()) };
        let (identifier, challenge) = self.challenge();
        let expected = algorithm.response(identifier, secret, challenge);
        let response =
            find("CHAP_R").and_then(|response| binary(response, CHAP_BINARY_MAX)).unwrap_or_default();
        let proven =
            expected.ct_eq(&response) & user.as_bytes().ct_eq(find("CHAP_N").unwrap_or("").as_bytes());
        if bool::from(proven) { Ok(()) } else { Err(InitiatorError::Unproven) }
    }

    fn challenge(&self) -> (u8, &[u8]) {
        (self.settings.nonce[0], &self.settings.nonce[1..])
    }

    /// Offers the terms.
    fn offer(&self, text: &mut Answer) {
        let digest = |on| if on { "CRC32C" } else { "None" };
        let yes = |yes| if yes { "Yes" } else { "No" };
        text.put("HeaderDigest", digest(self.settings.digests.header));
        text.put("DataDigest", digest(self.settings.digests.data));
        text.put("MaxRecvDataSegmentLength", &DATA_SEGMENT_MAX.to_string());
        if self.settings.target.is_none() {
            return;
        }
        let offer = &self.settings.offer;
        text.put("InitialR2T", yes(offer.initial_r2t));
        text.put("ImmediateData", yes(offer.immediate_data));
        text.put("MaxBurstLength", &offer.burst_max.to_string());
        text.put("FirstBurstLength", &offer.first_burst_max.to_string());
        text.put("MaxOutstandingR2T", &offer.r2t_max.to_string());
        text.put("MaxConnections", "1");
        text.put("ErrorRecoveryLevel", "0");
    }

    /// Takes note of what the target answers or declares.
    fn agree(&mut self, pair: &Pair<'_>) {
        let value = number(pair.value).and_then(|value| u32::try_from(value).ok());
        let agreed = &mut self.agreed;
        let target = match pair.key {
            "MaxRecvDataSegmentLength" => &mut agreed.peer_data_segment_max,
            "MaxBurstLength" => &mut agreed.burst_max,
            "FirstBurstLength" => &mut agreed.first_burst_max,
            "MaxOutstandingR2T" => &mut agreed.r2t_max,
            "HeaderDigest" => return agreed.digests.header = pair.value == "CRC32C",
            "DataDigest" => return agreed.digests.data = pair.value == "CRC32C",
            "InitialR2T" => return agreed.initial_r2t = pair.value != "No",
            "ImmediateData" => return agreed.immediate_data = pair.value == "Yes",
            _ => return,
        };
        *target = value.unwrap_or(*target);
    }

    fn send(&self, stage: Stage, next: Option<Stage>, text: Answer, exp_stat_sn: u32, output: &mut Output) {
        let request = LoginRequest {
            next,
            more: false,
            stage,
            version_max: 0,
            version_min: 0,
            isid: self.settings.isid,
            tsih: 0,
            task: LOGIN_TAG,
            cid: 0,
            cmd_sn: self.cmd_sn,
            exp_stat_sn,
            text: text.into_bytes(),
        };
        Pdu::LoginRequest(request).write(output);
    }
}

const LOGIN_TAG: u32 = 1;
