//! Text requests of the full feature phase: SendTargets, and what may still be declared (RFC 7143 11.10, appendix C).

use bytes::Bytes;

use super::super::keys::{self, Function, Key, Phase};
use super::super::login::Purpose;
use super::super::pdu::{Header, RejectReason, TextRequest, TextResponse};
use super::super::text::{self, Answer, Gathered, Pair};
use super::{Connection, DiscoveredTarget, Effect, Host};

/// A negotiation that takes several requests.
#[derive(Debug)]
pub(super) struct Negotiation {
    /// Initiator Task Tag and Target Transfer Tag, which all its PDUs carry.
    task: u32,
    transfer: u32,
    gathered: Gathered,
    /// What is left of the answer.
    rest: Bytes,
}

impl Connection {
    /// Takes a text request whose turn has come.
    pub(super) fn text(
        &mut self,
        header: &Header,
        request: &TextRequest,
        host: &dyn Host,
        effects: &mut Vec<Effect>,
    ) {
        let ongoing = self.negotiation.take();
        let mut negotiation = match (request.transfer, ongoing) {
            (None, _) => Negotiation {
                task: request.task,
                transfer: self.new_transfer(),
                gathered: Gathered::default(),
                rest: Bytes::new(),
            },
            (Some(transfer), Some(ongoing))
                if (ongoing.task, ongoing.transfer) == (request.task, transfer) =>
            {
                ongoing
            }
            (Some(_), _) => {
                self.reject(RejectReason::InvalidField, header, effects);
                return;
            }
        };
        let gathered = negotiation.gathered.push(&request.text);
        if gathered.is_err() || request.more && (request.last || !negotiation.rest.is_empty()) {
            self.reject(RejectReason::Protocol, header, effects);
            return;
        }
        if !request.more && negotiation.rest.is_empty() {
            let text = negotiation.gathered.take();
            let pairs = text::pairs(&text).ok();
            let Some(answer) = pairs.and_then(|pairs| self.answer_pairs(&pairs, host)) else {
                self.reject(RejectReason::Protocol, header, effects);
                return;
            };
            negotiation.rest = answer.into_bytes();
        }
        self.send_text(request, negotiation);
    }

    /// Sends as much of an answer as fits one PDU, and keeps the rest for the next request.
    fn send_text(&mut self, request: &TextRequest, mut negotiation: Negotiation) {
        let len = negotiation.rest.len().min(self.parameters.peer_data_segment_max as usize);
        let text = negotiation.rest.split_to(len);
        let more = !negotiation.rest.is_empty();
        let last = request.last && !more;
        let numbers = self.next_numbers();
        TextResponse {
            last,
            more,
            lun: request.lun,
            task: request.task,
            transfer: (!last).then_some(negotiation.transfer),
            numbers,
            text,
        }
        .write(&mut self.output);
        self.negotiation = (!last).then_some(negotiation);
    }

    /// Answers whole pairs; `None` where a pair can only be rejected as a whole.
    fn answer_pairs(&mut self, pairs: &[Pair<'_>], host: &dyn Host) -> Option<Answer> {
        let mut answer = Answer::default();
        for pair in pairs {
            match keys::find(pair.key) {
                None => answer.put(pair.key, "NotUnderstood"),
                Some((_, row)) if row.key == Key::SendTargets => {
                    self.send_targets(pair.value, host, &mut answer)?;
                }
                Some((_, row)) if row.phase == Phase::Any => {
                    if matches!(row.function, Function::Declare) {
                        row.negotiate(pair, false, &mut self.parameters, &mut answer);
                    }
                }
                Some(_) => answer.put(pair.key, "Reject"),
            }
            if answer.len() > ANSWER_MAX {
                return None;
            }
        }
        Some(answer)
    }

    /// SendTargets (RFC 7143 appendix C): everything in a discovery session, its own target in any other.
    fn send_targets(&self, value: &str, host: &dyn Host, answer: &mut Answer) -> Option<()> {
        let targets = host.targets(&self.identity.initiator);
        let wanted = |target: &&DiscoveredTarget| match &self.identity.purpose {
            Purpose::Discovery => value == "All" || value == target.name,
            Purpose::Normal { target: own } => (value.is_empty() || value == own) && target.name == *own,
        };
        match &self.identity.purpose {
            Purpose::Discovery if value.is_empty() => return None,
            Purpose::Normal { target } if !value.is_empty() && value != target => return None,
            _ => {}
        }
        for target in targets.iter().filter(wanted) {
            answer.put("TargetName", &target.name);
            for (address, group) in &target.portals {
                answer.put("TargetAddress", &format!("{address},{group}"));
            }
        }
        Some(())
    }
}

/// The longest answer to one text, in bytes.
const ANSWER_MAX: usize = 1 << 20;
