//! A connection in its full feature phase (RFC 7143 6.4), which is a session as well: MaxConnections is 1.
//!
//! Bytes go in with [`Connection::receive`], outcomes with [`Connection::complete`] and [`Connection::managed`], time
//! with [`Connection::tick`]. Replies go to [`Connection::output`], everything else is an [`Effect`]. The caller
//! completes each task that it was handed, aborted or not, once: that is how the connection knows that an aborted
//! write has settled.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::keys::{DATA_SEGMENT_MAX, Parameters};
use super::login::{Established, Identity, Purpose};
use super::pdu::{
    AsyncEvent, AsyncMessage, Decoder, Header, LogoutAnswer, LogoutReason, LogoutRequest, LogoutResponse,
    NopIn, NopOut, Numbers, Output, Pdu, Received, Reject, RejectReason, Sender, TaskAttribute,
};
use super::task::{TaskId, Tasks};
use super::window::{Arrival, Window};

mod commands;
mod effect;
mod management;
mod negotiation;

pub use effect::{Close, DiscoveredTarget, Effect, Execute, Host, Manage};
use management::Management;
use negotiation::Negotiation;

/// A connection in its full feature phase.
#[derive(Debug)]
pub struct Connection {
    identity: Identity,
    tsih: u16,
    parameters: Parameters,
    queue_depth: u32,
    decoder: Decoder,
    output: Output,
    window: Window<Received>,
    stat_sn: u32,
    tasks: Tasks,
    /// Tasks that wait for their turn, in order.
    queue: VecDeque<TaskId>,
    running: Running,
    management: Vec<Management>,
    negotiation: Option<Negotiation>,
    next_transfer: u32,
    heard: Duration,
    ping: Option<Ping>,
    logout: Option<Leaving>,
    closed: bool,
}

/// The tasks that have left the queue.
#[derive(Debug, Default)]
struct Running {
    count: u32,
    ordered: bool,
    memory: u64,
}

#[derive(Clone, Copy, Debug)]
struct Ping {
    transfer: u32,
    sent: Duration,
}

/// A logout whose tasks are settling.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    request: LogoutRequest,
    until: Duration,
}

impl Connection {
    /// The connection that a login has established. `output` is the login's: the final response may still be in it.
    #[must_use]
    pub fn new(established: Established, output: Output, now: Duration) -> Self {
        let Established { identity, tsih, parameters, exp_cmd_sn, stat_sn, queue_depth } = established;
        let places = queue_depth.saturating_add(IMMEDIATE_MAX);
        Self {
            decoder: Decoder::new(Sender::Initiator, DATA_SEGMENT_MAX, parameters.digests),
            identity,
            tsih,
            parameters,
            queue_depth,
            output,
            window: Window::new(exp_cmd_sn, queue_depth),
            stat_sn,
            tasks: Tasks::new(u16::try_from(places).unwrap_or(u16::MAX)),
            queue: VecDeque::new(),
            running: Running::default(),
            management: Vec::new(),
            negotiation: None,
            next_transfer: 0,
            heard: now,
            ping: None,
            logout: None,
            closed: false,
        }
    }

    /// Who is at the other end, and what for.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The target's part of the session identifier.
    #[must_use]
    pub const fn tsih(&self) -> u16 {
        self.tsih
    }

    /// What was agreed on.
    #[must_use]
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// What is to be sent.
    pub const fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// How many tasks there are, those that settle after an abort included.
    #[must_use]
    pub fn tasks(&self) -> u32 {
        self.tasks.count().0
    }

    /// How many aborted tasks have not settled yet.
    #[must_use]
    pub fn aborting(&self) -> usize {
        self.tasks.aborting()
    }

    /// Whether nothing more is received: close when the output is sent.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Takes every whole PDU from `buffer`.
    pub fn receive(
        &mut self,
        now: Duration,
        buffer: &mut BytesMut,
        host: &dyn Host,
        effects: &mut Vec<Effect>,
    ) {
        while !self.closed {
            match self.decoder.next(buffer) {
                Ok(None) => return,
                Ok(Some(received)) => {
                    self.heard = now;
                    self.arrive(received, host, effects);
                }
                Err(error) => match error.reject() {
                    None => self.close(error.into(), effects),
                    Some((reason, header)) => self.refuse(reason, &header, effects),
                },
            }
        }
    }

    /// Lets time pass, and returns when to be called next.
    pub fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) -> Duration {
        if self.closed {
            return now + PING_AFTER;
        }
        if let Some(leaving) = self.logout.filter(|leaving| now >= leaving.until) {
            self.leave(leaving.request, effects);
        }
        let silent_since = self.heard;
        let next = match self.ping {
            Some(ping) if silent_since > ping.sent => {
                self.ping = None;
                silent_since + PING_AFTER
            }
            Some(ping) if now >= ping.sent + PING_ANSWER => {
                self.close(Close::NoAnswer, effects);
                now + PING_AFTER
            }
            Some(ping) => ping.sent + PING_ANSWER,
            None if now < silent_since + PING_AFTER => silent_since + PING_AFTER,
            None if self.identity.purpose == Purpose::Discovery => {
                self.close(Close::Idle, effects);
                now + PING_AFTER
            }
            None => {
                let transfer = self.new_transfer();
                self.ping = Some(Ping { transfer, sent: now });
                let numbers = self.numbers();
                let transfer = Some(transfer);
                NopIn { lun: 0, task: None, transfer, numbers, data: Bytes::new() }.write(&mut self.output);
                now + PING_ANSWER
            }
        };
        self.logout.map_or(next, |leaving| next.min(leaving.until))
    }

    /// The session is over, whatever the initiator does: its socket is gone, or another login took its place. Every
    /// task ends; they have settled when [`Connection::tasks`] is 0.
    pub fn end(&mut self, effects: &mut Vec<Effect>) {
        self.closed = true;
        self.abort_tasks(None, effects);
    }

    /// Asks the initiator to log out within `seconds` (RFC 7143 11.9.1).
    pub fn request_logout(&mut self, seconds: u16) {
        let numbers = self.next_numbers();
        AsyncMessage {
            event: AsyncEvent::LogoutRequest,
            lun: 0,
            numbers,
            parameters: [0, 0, seconds],
            data: Bytes::new(),
        }
        .write(&mut self.output);
    }

    /// Brings a PDU into the order of commands, or to its task.
    fn arrive(&mut self, received: Received, host: &dyn Host, effects: &mut Vec<Effect>) {
        match received.pdu {
            Pdu::DataOut(pdu) => self.data_out(&received.header, &pdu, effects),
            Pdu::Snack(_) | Pdu::LoginRequest(_) => {
                self.refuse(RejectReason::Protocol, &received.header, effects);
            }
            _ if received.header.immediate() => self.execute(received, host, effects),
            _ => {
                if let Arrival::Due(due) = self.window.arrive(received.header.cmd_sn(), received) {
                    self.execute(due, host, effects);
                    while let Some(due) = self.window.next() {
                        self.execute(due, host, effects);
                    }
                }
            }
        }
    }

    /// Executes a request whose turn has come.
    fn execute(&mut self, received: Received, host: &dyn Host, effects: &mut Vec<Effect>) {
        let header = received.header;
        let normal = self.identity.purpose != Purpose::Discovery;
        if self.logout.is_some() || self.closed {
            self.reject(RejectReason::WaitingForLogout, &header, effects);
            return;
        }
        match received.pdu {
            Pdu::ScsiCommand(command) if normal => self.command(&header, command, host, effects),
            Pdu::ManagementRequest(request) if normal => self.manage(&header, &request, host, effects),
            Pdu::TextRequest(request) => self.text(&header, &request, host, effects),
            Pdu::NopOut(nop) => self.nop_out(nop),
            Pdu::LogoutRequest(request) => self.log_out(request, effects),
            _ => self.reject(RejectReason::Protocol, &header, effects),
        }
    }

    fn nop_out(&mut self, nop: NopOut) {
        if self.ping.is_some_and(|ping| nop.transfer == Some(ping.transfer)) {
            self.ping = None;
        }
        if nop.task.is_none() {
            return;
        }
        let mut data = nop.data;
        data.truncate(self.parameters.peer_data_segment_max as usize);
        let numbers = self.next_numbers();
        NopIn { lun: nop.lun, task: nop.task, transfer: None, numbers, data }.write(&mut self.output);
    }

    /// Ends every task, and answers once they have settled (RFC 7143 11.14).
    fn log_out(&mut self, request: LogoutRequest, effects: &mut Vec<Effect>) {
        let answer = match request.reason {
            LogoutReason::CloseSession => LogoutAnswer::Closed,
            LogoutReason::CloseConnection if request.cid == self.identity.cid => LogoutAnswer::Closed,
            LogoutReason::CloseConnection => LogoutAnswer::CidNotFound,
            LogoutReason::RemoveForRecovery => LogoutAnswer::NoRecovery,
        };
        if answer != LogoutAnswer::Closed {
            self.answer_logout(request.task, answer);
            return;
        }
        self.abort_tasks(None, effects);
        self.logout = Some(Leaving { request, until: self.heard + LOGOUT_MAX });
        self.settle(effects);
    }

    /// Answers a logout and closes.
    fn leave(&mut self, request: LogoutRequest, effects: &mut Vec<Effect>) {
        self.logout = None;
        self.answer_logout(request.task, LogoutAnswer::Closed);
        self.close(Close::Logout, effects);
    }

    fn answer_logout(&mut self, task: u32, answer: LogoutAnswer) {
        let numbers = self.next_numbers();
        let seconds = |seconds| u16::try_from(seconds).unwrap_or(u16::MAX);
        LogoutResponse {
            task,
            answer,
            numbers,
            time2wait: seconds(self.parameters.time2wait),
            time2retain: seconds(self.parameters.time2retain),
        }
        .write(&mut self.output);
    }

    fn close(&mut self, close: Close, effects: &mut Vec<Effect>) {
        self.closed = true;
        effects.push(Effect::Close(close));
    }

    /// Rejects a PDU that was not brought into the order of commands: its number may be used again or skipped.
    fn refuse(&mut self, reason: RejectReason, header: &Header, effects: &mut Vec<Effect>) {
        match header.opcode() {
            DATA_OUT => {
                if reason == RejectReason::DataDigest {
                    self.reject(reason, header, effects);
                    self.data_out_lost(header, effects);
                    return;
                }
            }
            SNACK => {}
            _ if header.immediate() => {}
            _ => self.window.reject(header.cmd_sn()),
        }
        self.reject(reason, header, effects);
    }

    fn reject(&mut self, reason: RejectReason, header: &Header, effects: &mut Vec<Effect>) {
        let numbers = self.next_numbers();
        Reject { reason, numbers, rejected: Bytes::copy_from_slice(&header.0) }.write(&mut self.output);
        effects.push(Effect::Rejected(reason, *header));
    }

    /// The numbers of a PDU that does not advance StatSN.
    fn numbers(&mut self) -> Numbers {
        let (all, immediate) = self.tasks.count();
        self.window.open(self.queue_depth.saturating_sub(all - immediate));
        Numbers { stat_sn: self.stat_sn, exp_cmd_sn: self.window.expected(), max_cmd_sn: self.window.max() }
    }

    /// The numbers of a response.
    fn next_numbers(&mut self) -> Numbers {
        let numbers = self.numbers();
        self.stat_sn = self.stat_sn.wrapping_add(1);
        numbers
    }

    /// A tag for an R2T, a ping or a text negotiation.
    const fn new_transfer(&mut self) -> u32 {
        self.next_transfer = self.next_transfer.wrapping_add(1);
        if self.next_transfer == super::pdu::NO_TAG {
            self.next_transfer = 0;
        }
        self.next_transfer
    }
}

/// The tasks that commands outside the order of CmdSN may take beside the window.
const IMMEDIATE_MAX: u32 = 16;
/// How long an initiator may be silent before it is asked whether it lives.
const PING_AFTER: Duration = Duration::from_secs(15);
/// How long it may take to answer.
const PING_ANSWER: Duration = Duration::from_secs(10);
/// How long the tasks of a session may take to settle before its logout is answered.
const LOGOUT_MAX: Duration = Duration::from_secs(5);
/// The data that the running tasks of a connection may move at once, in bytes. One task may always run.
const MEMORY_MAX: u64 = 64 << 20;
const DATA_OUT: u8 = 0x05;
const SNACK: u8 = 0x10;

#[cfg(test)]
mod tests;
