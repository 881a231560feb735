//! A session in the full-feature phase: sequence numbers, SCSI commands, what became of them.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail, ensure};

use super::{Connection, Login, LoginAnswer, Pdu, Received, cdb, connection::UNUSED_TAG, opcode};

/// Which way the data of a command goes, and how much the initiator expects, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// To the initiator.
    Read(u32),
    /// To the target.
    Write(u32),
}

/// A SCSI command as the test wants it on the wire.
#[derive(Debug, Clone)]
pub struct Task {
    /// Command descriptor block.
    pub cdb: [u8; 16],
    /// Direction and expected data transfer length.
    pub direction: Direction,
    /// Data that travels with the command.
    pub immediate: Vec<u8>,
    /// What the target gets when it asks with an R2T, by offset.
    pub data: Vec<u8>,
}

impl Task {
    /// A command without data.
    #[must_use]
    pub fn new(cdb: [u8; 16]) -> Self {
        Self { cdb, direction: Direction::None, immediate: Vec::new(), data: Vec::new() }
    }

    /// A command that reads up to `len` bytes.
    #[must_use]
    pub fn read(cdb: [u8; 16], len: u32) -> Self {
        Self { direction: Direction::Read(len), ..Self::new(cdb) }
    }

    /// A command that writes `data`, all of it on request.
    ///
    /// # Panics
    /// When the data is 4 GiB long or more.
    #[must_use]
    pub fn write(cdb: [u8; 16], data: impl Into<Vec<u8>>) -> Self {
        let data = data.into();
        let len = u32::try_from(data.len()).expect("tests write little");
        Self { direction: Direction::Write(len), data, ..Self::new(cdb) }
    }

    /// Announces `len` bytes whatever there is (the expected data transfer length).
    #[must_use]
    pub fn expecting(mut self, len: u32) -> Self {
        self.direction = match self.direction {
            Direction::None => Direction::None,
            Direction::Read(_) => Direction::Read(len),
            Direction::Write(_) => Direction::Write(len),
        };
        self
    }

    /// Sends `immediate` along with the command.
    #[must_use]
    pub fn immediate(mut self, immediate: impl Into<Vec<u8>>) -> Self {
        self.immediate = immediate.into();
        self
    }
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// SCSI status: 0 good, 2 check condition, 0x18 reservation conflict.
    pub status: u8,
    /// iSCSI response: 0 when the target processed the command.
    pub response: u8,
    /// Sense data without its length.
    pub sense: Vec<u8>,
    /// Data received.
    pub data: Vec<u8>,
    /// Bytes that the target did not transfer.
    pub underflow: Option<u32>,
    /// Bytes that did not fit into what the initiator expected.
    pub overflow: Option<u32>,
}

impl Outcome {
    /// Sense key, additional sense code and its qualifier of a check condition, both formats.
    #[must_use]
    pub fn check(&self) -> Option<(u8, u8, u8)> {
        let at = |index: usize| self.sense.get(index).copied();
        match (self.status, at(0)? & 0x7f) {
            (2, 0x70 | 0x71) => Some((at(2)? & 0xf, at(12)?, at(13)?)),
            (2, 0x72 | 0x73) => Some((at(1)? & 0xf, at(2)?, at(3)?)),
            _ => None,
        }
    }
}

/// A logged-in session of one connection.
#[derive(Debug)]
pub struct Session {
    /// The wire, for what this type does not do.
    pub connection: Connection,
    /// Next `CmdSN`.
    pub cmd_sn: u32,
    /// What the target answered to the login.
    pub answer: LoginAnswer,
    stat_sn: u32,
    next_tag: u32,
    lun: u8,
}

impl Session {
    /// Logs in and remembers `lun` for the commands.
    ///
    /// # Errors
    /// When the login is refused.
    pub fn login(portal: SocketAddr, login: &Login, lun: u8) -> Result<Self> {
        let mut connection = Connection::open(portal)?;
        let answer = login.negotiate(&mut connection)?;
        ensure!(answer.status == 0, "login refused with {:#06x}", answer.status);
        let stat_sn = answer.sequence[0].wrapping_add(1);
        Ok(Self { connection, cmd_sn: login.cmd_sn, answer, stat_sn, next_tag: FIRST_TAG, lun })
    }

    /// A tag that no task of this session has had.
    pub fn tag(&mut self) -> u32 {
        self.next_tag += 1;
        self.next_tag
    }

    /// Fills in the sequence numbers of `pdu`; a PDU that is not immediate consumes a `CmdSN`.
    #[must_use]
    pub fn numbered(&mut self, pdu: Pdu) -> Pdu {
        let immediate = pdu.header[0] & 0x40 != 0;
        let pdu = pdu.word(24, self.cmd_sn).word(28, self.stat_sn);
        if !immediate {
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
        }
        pdu
    }

    /// The SCSI Command PDU for `task` with its sequence numbers.
    pub fn command(&mut self, task: &Task) -> Pdu {
        let (direction, len) = match task.direction {
            Direction::None => (0x80, 0),
            Direction::Read(len) => (0xc0, len),
            Direction::Write(len) => (0xa0, len),
        };
        let tag = self.tag();
        let mut pdu = Pdu::new(opcode::SCSI_COMMAND).flags(direction | SIMPLE).lun(self.lun);
        pdu = pdu.word(16, tag).word(20, len).data(task.immediate.clone());
        pdu.header[32..48].copy_from_slice(&task.cdb);
        self.numbered(pdu)
    }

    /// Sends `task` and follows it to its end.
    ///
    /// # Errors
    /// When the target rejects it, closes or stays silent.
    pub fn run(&mut self, task: &Task) -> Result<Outcome> {
        let command = self.command(task);
        self.connection.send(&command)?;
        self.follow(&command, task)
    }

    /// Follows a command that was sent already.
    ///
    /// # Errors
    /// When the target rejects it, closes or stays silent.
    pub fn follow(&mut self, command: &Pdu, task: &Task) -> Result<Outcome> {
        let tag = command.read_word(16);
        let mut data = Vec::new();
        loop {
            let pdu = self.receive().with_context(|| format!("command {:#04x}", task.cdb[0]))?;
            match pdu.opcode() {
                opcode::DATA_IN if pdu.read_word(16) == tag => {
                    let offset = usize::try_from(pdu.read_word(40))?;
                    ensure!(offset == data.len(), "Data-In at {offset}, expected {}", data.len());
                    data.extend_from_slice(&pdu.data);
                    if pdu.header[1] & STATUS_IN_DATA != 0 {
                        return Ok(outcome(&pdu, data));
                    }
                }
                opcode::R2T if pdu.read_word(16) == tag => self.answer_r2t(&pdu, &task.data)?,
                opcode::SCSI_RESPONSE if pdu.read_word(16) == tag => return Ok(outcome(&pdu, data)),
                opcode::REJECT => bail!("rejected with reason {:#04x}", pdu.header[2]),
                other => bail!("unexpected opcode {other:#04x}: {:02x?}", pdu.header),
            }
        }
    }

    /// The next PDU; keeps `ExpStatSN` in step.
    ///
    /// # Errors
    /// When the target closes or stays silent.
    pub fn receive(&mut self) -> Result<Pdu> {
        let pdu = self.connection.receive()?;
        let has_status = match pdu.opcode() {
            opcode::R2T => false,
            opcode::DATA_IN => pdu.header[1] & STATUS_IN_DATA != 0,
            opcode::NOP_IN => pdu.read_word(16) != UNUSED_TAG,
            _ => true,
        };
        if has_status {
            self.stat_sn = pdu.read_word(24).wrapping_add(1);
        }
        Ok(pdu)
    }

    /// Sends what `r2t` asks for, cut at the size every target takes.
    fn answer_r2t(&mut self, r2t: &Pdu, data: &[u8]) -> Result<()> {
        let (offset, len) = (usize::try_from(r2t.read_word(40))?, usize::try_from(r2t.read_word(44))?);
        let wanted = data.get(offset..offset + len);
        let wanted = wanted.with_context(|| format!("R2T for {len} bytes at {offset} of {}", data.len()))?;
        for (sequence, chunk) in wanted.chunks(SEGMENT).enumerate() {
            let at = offset + sequence * SEGMENT;
            let last = at + chunk.len() == offset + len;
            let pdu = self.data_out(r2t, u32::try_from(sequence)?, u32::try_from(at)?, chunk, last);
            self.connection.send(&pdu)?;
        }
        Ok(())
    }

    /// A Data-Out PDU for `r2t`.
    #[must_use]
    pub fn data_out(&self, r2t: &Pdu, sequence: u32, offset: u32, data: &[u8], last: bool) -> Pdu {
        let mut pdu = Pdu::new(opcode::DATA_OUT).flags(if last { 0x80 } else { 0 }).lun(self.lun);
        pdu = pdu.word(16, r2t.read_word(16)).word(20, r2t.read_word(20));
        pdu.word(28, self.stat_sn).word(36, sequence).word(40, offset).data(data)
    }

    /// Sends a ping and expects its echo.
    ///
    /// # Errors
    /// When something else comes.
    pub fn ping(&mut self) -> Result<()> {
        let tag = self.tag();
        let ping =
            self.numbered(Pdu::new(opcode::NOP_OUT).word(16, tag).word(20, UNUSED_TAG).data(*b"alive?"));
        self.connection.send(&ping)?;
        let pong = self.receive().context("ping")?;
        ensure!(pong.opcode() == opcode::NOP_IN, "expected NOP-In, got opcode {:#04x}", pong.opcode());
        ensure!(pong.read_word(16) == tag && pong.data.starts_with(b"alive?"), "not my ping's echo");
        Ok(())
    }

    /// Sends a task management function for `lun` and returns the response code.
    ///
    /// # Errors
    /// When something else comes.
    pub fn manage(&mut self, function: u8, lun: u8, referenced: u32) -> Result<u8> {
        let tag = self.tag();
        let pdu = Pdu::new(opcode::TASK_MANAGEMENT).immediate().flags(0x80 | function).lun(lun);
        let pdu = self.numbered(pdu.word(16, tag).word(20, referenced));
        self.connection.send(&pdu)?;
        loop {
            let answer = self.receive().context("task management")?;
            match answer.opcode() {
                opcode::TASK_MANAGEMENT_RESPONSE => return Ok(answer.header[2]),
                // The referenced task may end first.
                opcode::SCSI_RESPONSE | opcode::R2T | opcode::DATA_IN => {}
                other => bail!("expected a task management response, got opcode {other:#04x}"),
            }
        }
    }

    /// Runs TEST UNIT READY until no unit attention is left.
    ///
    /// # Errors
    /// When the unit does not become ready.
    pub fn settle(&mut self) -> Result<()> {
        for _ in 0..UNIT_ATTENTIONS_MAX {
            let outcome = self.run(&Task::new(cdb::TEST_UNIT_READY))?;
            match outcome.check() {
                None if outcome.status == 0 => return Ok(()),
                Some((UNIT_ATTENTION, ..)) => {}
                _ => bail!("not ready: {outcome:?}"),
            }
        }
        bail!("more than {UNIT_ATTENTIONS_MAX} unit attentions")
    }

    /// Whatever comes within `patience`.
    ///
    /// # Errors
    /// When a PDU stops in the middle.
    pub fn receive_within(&mut self, patience: std::time::Duration) -> Result<Received> {
        self.connection.receive_within(patience)
    }
}

fn outcome(pdu: &Pdu, data: Vec<u8>) -> Outcome {
    let residual = pdu.read_word(44);
    let flags = pdu.header[1];
    let in_data = pdu.opcode() == opcode::DATA_IN;
    let sense = if in_data { Vec::new() } else { pdu.data.get(2..).unwrap_or_default().to_vec() };
    Outcome {
        status: pdu.header[3],
        response: if in_data { 0 } else { pdu.header[2] },
        sense,
        data,
        underflow: (flags & 0x02 != 0).then_some(residual),
        overflow: (flags & 0x04 != 0).then_some(residual),
    }
}

/// Task attribute (RFC 7143, section 11.3.1).
const SIMPLE: u8 = 1;
/// The S bit of Data-In (RFC 7143, section 11.7.1).
const STATUS_IN_DATA: u8 = 1;
const UNIT_ATTENTION: u8 = 6;
const UNIT_ATTENTIONS_MAX: usize = 8;
const FIRST_TAG: u32 = 0x100;
/// Data-Out segments no longer than a target that declares nothing takes (RFC 7143, section 13.12).
const SEGMENT: usize = 8192;
