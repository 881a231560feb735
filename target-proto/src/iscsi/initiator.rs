//! The other side of the same protocol: an initiator for tests, the demo and the benchmark (RFC 7143).
//!
//! Like the target it is a value without I/O: bytes go in with [`Initiator::receive`], requests with its other
//! methods, and [`Initiator::output`] holds what is to be sent. Commands beyond the target's window wait here.

use std::collections::VecDeque;

use block::Payload;
use bytes::{Bytes, BytesMut};

use super::connection::DiscoveredTarget;
use super::keys::{DATA_SEGMENT_MAX, DEFAULT_DATA_SEGMENT, Parameters};
use super::pdu::{
    DataIn, DataOut, Decoder, Digests, Direction, LoginStatus, LogoutReason, LogoutRequest,
    ManagementFunction, ManagementRequest, NO_TAG, NopOut, Numbers, Output, Pdu, ReadyToTransfer, Residual,
    ScsiCommand, ScsiResponse, Sender, TaskAttribute, TextRequest,
};
use super::text::Answer;

mod event;
mod login;
mod settings;

pub use event::{Completed, Event, InitiatorError};
use login::Login;
pub use settings::Settings;

/// One connection to a target.
#[derive(Debug)]
pub struct Initiator {
    state: State,
    decoder: Decoder,
    output: Output,
    parameters: Parameters,
    cmd_sn: u32,
    exp_stat_sn: u32,
    max_cmd_sn: u32,
    places: Vec<Option<Pending>>,
    free: Vec<u16>,
    waiting: VecDeque<(u16, ScsiCommand)>,
    round: u16,
    text: BytesMut,
}

#[derive(Debug)]
enum State {
    Login(Box<Login>),
    FullFeature,
    Over,
}

/// A command that has not ended.
#[derive(Debug)]
struct Pending {
    task: u32,
    out: Payload,
    read: Payload,
}

impl Initiator {
    /// An initiator whose first login request waits in its output. Commands are numbered from `cmd_sn` on.
    #[must_use]
    pub fn new(settings: Settings, cmd_sn: u32) -> Self {
        let mut output = Output::new();
        let login = Login::start(settings, cmd_sn, &mut output);
        Self {
            state: State::Login(Box::new(login)),
            decoder: Decoder::new(Sender::Target, DEFAULT_DATA_SEGMENT, Digests::default()),
            output,
            parameters: Parameters::default(),
            cmd_sn,
            exp_stat_sn: 0,
            max_cmd_sn: cmd_sn,
            places: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            round: 0,
            text: BytesMut::new(),
        }
    }

    /// What is to be sent.
    pub const fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// What was agreed on, once the login is done.
    #[must_use]
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Takes every whole PDU from `buffer`.
    ///
    /// # Errors
    /// When the connection is of no use any more.
    pub fn receive(&mut self, buffer: &mut BytesMut, events: &mut Vec<Event>) -> Result<(), InitiatorError> {
        while let Some(received) = self.decoder.next(buffer)? {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Login(login) => self.log_in(login, received.pdu, events)?,
                State::FullFeature => {
                    self.state = State::FullFeature;
                    self.take(received.pdu, events)?;
                }
                State::Over => return Err(InitiatorError::Protocol("a PDU behind the end")),
            }
        }
        Ok(())
    }

    /// Sends a command, now or when the target's window has room, and returns its tag.
    pub fn command(&mut self, lun: u64, cdb: [u8; 16], direction: Direction, len: u32, out: Payload) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            u16::try_from(self.places.len() - 1).unwrap_or(u16::MAX)
        });
        self.round = self.round.wrapping_add(1) & 0x7fff;
        let task = u32::from(self.round) << 16 | u32::from(place);
        self.places[usize::from(place)] = Some(Pending { task, out, read: Payload::new() });
        let command = ScsiCommand {
            immediate: false,
            last: true,
            direction,
            attribute: TaskAttribute::Simple,
            lun,
            task,
            expected_len: len,
            cmd_sn: 0,
            exp_stat_sn: 0,
            cdb,
            bidirectional_len: None,
            data: Bytes::new(),
        };
        self.waiting.push_back((place, command));
        self.send_waiting();
        task
    }

    /// Asks for targets: `All`, a name, or nothing for the target of this session.
    pub fn send_targets(&mut self, which: &str) {
        let mut answer = Answer::default();
        answer.put("SendTargets", which);
        self.send_text(None, answer.into_bytes());
    }

    /// Asks whether the target lives; `data` comes back.
    pub fn ping(&mut self, data: Bytes) {
        let task = Some(self.immediate_tag());
        self.nop_out(task, None, data);
    }

    /// Asks for task management. `referenced` is the tag of the task for ABORT TASK.
    pub fn manage(&mut self, function: ManagementFunction, lun: u64, referenced: Option<u32>) -> u32 {
        let task = self.immediate_tag();
        let request = ManagementRequest {
            immediate: true,
            function: Some(function),
            lun,
            task,
            referenced_task: referenced.unwrap_or(NO_TAG),
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            ref_cmd_sn: self.cmd_sn.wrapping_sub(1),
            exp_data_sn: 0,
        };
        Pdu::ManagementRequest(request).write(&mut self.output);
        task
    }

    /// Ends the session.
    pub fn log_out(&mut self) {
        let request = LogoutRequest {
            immediate: true,
            reason: LogoutReason::CloseSession,
            task: self.immediate_tag(),
            cid: 0,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        };
        Pdu::LogoutRequest(request).write(&mut self.output);
    }

    fn log_in(
        &mut self,
        mut login: Box<Login>,
        pdu: Pdu,
        events: &mut Vec<Event>,
    ) -> Result<(), InitiatorError> {
        let Pdu::LoginResponse(response) = pdu else {
            return Err(InitiatorError::Protocol("no login response"));
        };
        if response.status != LoginStatus::SUCCESS {
            return Err(InitiatorError::Refused(response.status));
        }
        self.note(response.numbers, true);
        match login.receive(&response, self.exp_stat_sn, &mut self.output)? {
            None => self.state = State::Login(login),
            Some(parameters) => {
                self.parameters = parameters;
                self.output.set_digests(parameters.digests);
                self.decoder = Decoder::new(Sender::Target, DATA_SEGMENT_MAX, parameters.digests);
                self.state = State::FullFeature;
                events.push(Event::LoggedIn { tsih: response.tsih });
            }
        }
        Ok(())
    }

    /// Takes a PDU of the full feature phase.
    fn take(&mut self, pdu: Pdu, events: &mut Vec<Event>) -> Result<(), InitiatorError> {
        match pdu {
            Pdu::DataIn(data) => self.data_in(&data, events)?,
            Pdu::ScsiResponse(response) => self.response(response, events)?,
            Pdu::ReadyToTransfer(r2t) => self.ready_to_transfer(&r2t)?,
            Pdu::NopIn(nop) => {
                self.note(nop.numbers, nop.task.is_some());
                match nop.transfer {
                    Some(transfer) => self.nop_out(None, Some(transfer), Bytes::new()),
                    None => events.push(Event::Pong(nop.data)),
                }
            }
            Pdu::ManagementResponse(response) => {
                self.note(response.numbers, true);
                events.push(Event::Managed { task: response.task, answer: response.answer });
            }
            Pdu::TextResponse(response) => {
                self.note(response.numbers, true);
                self.text.extend_from_slice(&response.text);
                if response.last {
                    let text = self.text.split();
                    events.push(Event::Targets(targets(&text)));
                } else {
                    self.send_text(response.transfer, Bytes::new());
                }
            }
            Pdu::LogoutResponse(response) => {
                self.note(response.numbers, true);
                self.state = State::Over;
                events.push(Event::LoggedOut);
            }
            Pdu::AsyncMessage(message) => {
                self.note(message.numbers, true);
                events.push(Event::Async(message.event));
            }
            Pdu::Reject(reject) => {
                self.note(reject.numbers, true);
                events.push(Event::Rejected { reason: reject.reason, header: reject.rejected });
            }
            _ => return Err(InitiatorError::Protocol("a PDU that has no place here")),
        }
        self.send_waiting();
        Ok(())
    }

    fn data_in(&mut self, data: &DataIn, events: &mut Vec<Event>) -> Result<(), InitiatorError> {
        let pending = self.pending(data.task)?;
        if data.offset as usize != pending.read.len() {
            return Err(InitiatorError::Protocol("data out of order"));
        }
        data.data.parts().iter().for_each(|part| pending.read.push(part.clone()));
        let numbers = Numbers {
            stat_sn: data.status.map_or(0, |status| status.stat_sn),
            exp_cmd_sn: data.exp_cmd_sn,
            max_cmd_sn: data.max_cmd_sn,
        };
        self.note(numbers, data.status.is_some());
        if let Some(status) = data.status {
            self.complete(data.task, status.status, Bytes::new(), status.residual, events)?;
        }
        Ok(())
    }

    fn response(&mut self, response: ScsiResponse, events: &mut Vec<Event>) -> Result<(), InitiatorError> {
        self.note(response.numbers, true);
        self.complete(response.task, response.status, response.sense, response.residual, events)
    }

    fn complete(
        &mut self,
        task: u32,
        status: u8,
        sense: Bytes,
        residual: Residual,
        events: &mut Vec<Event>,
    ) -> Result<(), InitiatorError> {
        let data = std::mem::take(&mut self.pending(task)?.read);
        let place = place(task);
        self.places[usize::from(place)] = None;
        self.free.push(place);
        events.push(Event::Completed(Completed { task, status, sense, data, residual }));
        Ok(())
    }

    fn ready_to_transfer(&mut self, r2t: &ReadyToTransfer) -> Result<(), InitiatorError> {
        let out = self.pending(r2t.task)?.out.clone();
        let end = r2t.offset.checked_add(r2t.len).map_or(usize::MAX, |end| end as usize);
        if end > out.len() {
            return Err(InitiatorError::Protocol("an R2T for more than there is"));
        }
        self.note(Numbers { stat_sn: 0, ..r2t.numbers }, false);
        self.send_data(r2t.task, r2t.lun, Some(r2t.transfer), &out, r2t.offset as usize..end);
        Ok(())
    }

    /// Sends commands as far as the window goes, with the data they may carry unasked.
    fn send_waiting(&mut self) {
        while self.max_cmd_sn.wrapping_sub(self.cmd_sn) < 1 << 31 && matches!(self.state, State::FullFeature)
        {
            let Some((place, mut command)) = self.waiting.pop_front() else { return };
            let Some(pending) = &self.places[usize::from(place)] else { continue };
            let out = pending.out.clone();
            let unsolicited = out.len().min(self.parameters.unsolicited_max() as usize);
            let immediate = if self.parameters.immediate_data {
                unsolicited.min(self.parameters.peer_data_segment_max as usize)
            } else {
                0
            };
            command.cmd_sn = self.cmd_sn;
            command.exp_stat_sn = self.exp_stat_sn;
            command.last = self.parameters.initial_r2t || immediate == unsolicited;
            command.data = out.slice(0, immediate).to_bytes();
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
            let (lun, task, last) = (command.lun, command.task, command.last);
            Pdu::ScsiCommand(command).write(&mut self.output);
            if !last {
                self.send_data(task, lun, None, &out, immediate..unsolicited);
            }
        }
    }

    fn send_data(
        &mut self,
        task: u32,
        lun: u64,
        transfer: Option<u32>,
        out: &Payload,
        range: std::ops::Range<usize>,
    ) {
        let segment_max = self.parameters.peer_data_segment_max as usize;
        let mut offset = range.start;
        for data_sn in 0.. {
            let len = segment_max.min(range.end - offset);
            let data = DataOut {
                last: offset + len == range.end,
                lun,
                task,
                transfer,
                exp_stat_sn: self.exp_stat_sn,
                data_sn,
                offset: u32::try_from(offset).unwrap_or(u32::MAX),
                data: out.slice(offset, len).to_bytes(),
            };
            Pdu::DataOut(data).write(&mut self.output);
            offset += len;
            if offset == range.end {
                return;
            }
        }
    }

    fn send_text(&mut self, transfer: Option<u32>, text: Bytes) {
        let request = TextRequest {
            immediate: true,
            last: true,
            more: false,
            lun: 0,
            task: TEXT_TAG,
            transfer,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            text,
        };
        Pdu::TextRequest(request).write(&mut self.output);
    }

    fn nop_out(&mut self, task: Option<u32>, transfer: Option<u32>, data: Bytes) {
        let nop = NopOut {
            immediate: true,
            lun: 0,
            task,
            transfer,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            data,
        };
        Pdu::NopOut(nop).write(&mut self.output);
    }

    /// Takes note of the numbers of a PDU; `response` says whether it has a StatSN of its own.
    fn note(&mut self, numbers: Numbers, response: bool) {
        if response {
            self.exp_stat_sn = numbers.stat_sn.wrapping_add(1);
        }
        if numbers.max_cmd_sn.wrapping_sub(self.max_cmd_sn) < 1 << 31 {
            self.max_cmd_sn = numbers.max_cmd_sn;
        }
    }

    fn pending(&mut self, task: u32) -> Result<&mut Pending, InitiatorError> {
        let pending = self.places.get_mut(usize::from(place(task))).and_then(Option::as_mut);
        pending
            .filter(|pending| pending.task == task)
            .ok_or(InitiatorError::Protocol("a response to nothing"))
    }

    /// A tag for a request outside the table of commands.
    fn immediate_tag(&mut self) -> u32 {
        self.round = self.round.wrapping_add(1) & 0x7fff;
        IMMEDIATE_TAG | u32::from(self.round)
    }
}

/// The place of a command in the table.
const fn place(task: u32) -> u16 {
    (task & 0xffff) as u16
}

/// The targets of an answer to SendTargets (RFC 7143 appendix C).
fn targets(text: &[u8]) -> Vec<DiscoveredTarget> {
    let mut targets: Vec<DiscoveredTarget> = Vec::new();
    for line in text.split(|byte| *byte == 0) {
        let line = String::from_utf8_lossy(line);
        match (line.split_once('='), targets.last_mut()) {
            (Some(("TargetName", name)), _) => {
                targets.push(DiscoveredTarget { name: name.to_owned(), portals: Vec::new() });
            }
            (Some(("TargetAddress", portal)), Some(target)) => {
                let (address, group) = portal.rsplit_once(',').unwrap_or((portal, "0"));
                target.portals.push((address.to_owned(), group.parse().unwrap_or(0)));
            }
            _ => {}
        }
    }
    targets
}

/// Tags of commands have their highest bit clear.
const IMMEDIATE_TAG: u32 = 0x8000_0000;
const TEXT_TAG: u32 = 0xfffe_0000;
