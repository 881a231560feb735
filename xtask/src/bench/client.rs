//! The client of the benchmark: one connection, one thread on a core of its own, commands sent and answers read in
//! batches, nothing allocated per I/O.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use harness::{
    load::Random,
    raw::{Pdu, Session, cdb, opcode},
};
use rustix::thread::{CpuSet, sched_setaffinity};

/// What is asked of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Job {
    pub(super) write: bool,
    pub(super) sequential: bool,
    /// Bytes per command.
    pub(super) len: u32,
    /// Commands in flight.
    pub(super) depth: u32,
    /// Each command is followed by a flush of the volume, and ends with it.
    pub(super) flush: bool,
    /// The part of the unit that is used.
    pub(super) span_bytes: u64,
}

impl Job {
    /// 4 KiB one after the other over the first GiB, from which others are derived.
    pub(super) const RANDOM_READ: Self =
        Self { write: false, sequential: false, len: 4096, depth: 1, flush: false, span_bytes: 1 << 30 };

    /// As the report calls it.
    pub(super) fn name(self) -> String {
        let order = if self.sequential { "sequential" } else { "random" };
        let direction = if self.write { "write" } else { "read" };
        format!("{order} {direction} {} KiB, depth {}", self.len / 1024, self.depth)
    }
}

/// What a run came to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) iops: f64,
    /// Latencies in microseconds.
    pub(super) median_us: u32,
    pub(super) p99_us: u32,
    /// Processor time of the servers per command, in microseconds.
    pub(super) cpu_us: f64,
    commands: u32,
}

impl Measured {
    /// Adds what the servers used during the run.
    pub(super) fn cpu(&mut self, used: Duration) {
        self.cpu_us = used.as_secs_f64() * 1e6 / f64::from(self.commands.max(1));
    }
}

/// Runs `job` for `duration` on core 0, after a warm-up that does not count.
pub(super) fn run(
    session: Session,
    lun: u8,
    job: Job,
    warm_up: Duration,
    duration: Duration,
) -> Result<Measured> {
    let counts_from = Instant::now() + warm_up;
    let until = Until::Moment(counts_from + duration);
    let run = thread::spawn(move || -> Result<Vec<u32>> {
        let mut core = CpuSet::new();
        core.set(CLIENT_CORE);
        sched_setaffinity(None, &core)?;
        Client { counts_from, ..Client::new(session, lun, job) }.run(until)
    });
    let mut latencies = run.join().expect("the client does not panic")?;
    latencies.sort_unstable();
    let commands = u32::try_from(latencies.len())?;
    ensure!(commands > 0, "not one command was answered");
    let at = |percent: usize| latencies[(latencies.len() * percent / 100).min(latencies.len() - 1)];
    Ok(Measured {
        iops: f64::from(commands) / duration.as_secs_f64(),
        median_us: at(50),
        p99_us: at(99),
        cpu_us: 0.0,
        commands,
    })
}

/// Writes the first `size_bytes` once, and returns how many commands that took.
pub(super) fn fill(session: Session, lun: u8, size_bytes: u64) -> Result<usize> {
    let job = Job { write: true, sequential: true, len: 131_072, depth: 8, ..Job::RANDOM_READ };
    let commands = usize::try_from(size_bytes / u64::from(job.len))?;
    Ok(Client::new(session, lun, job).run(Until::Commands(commands))?.len())
}

#[derive(Debug, Clone, Copy)]
enum Until {
    Moment(Instant),
    Commands(usize),
}

struct Client {
    session: Session,
    job: Job,
    random: Random,
    next_lba: u64,
    data: Vec<u8>,
    /// A command of this job, to be numbered and addressed.
    template: Vec<u8>,
    output: Vec<u8>,
    input: Vec<u8>,
    /// How many bytes of the input were received and not taken yet.
    filled: usize,
    /// When the command of each slot was sent; the slot is the task tag.
    sent: Vec<Instant>,
    /// Whether the slot has gone on to its flush.
    flushing: Vec<bool>,
    /// What ends before does not count.
    counts_from: Instant,
    latencies: Vec<u32>,
}

impl Client {
    fn new(session: Session, lun: u8, job: Job) -> Self {
        let mut random = Random::new(9);
        let data = random.bytes(usize::try_from(job.len).expect("small"));
        let direction = if job.write { 0xa1 } else { 0xc1 };
        let mut command = Pdu::new(opcode::SCSI_COMMAND).flags(direction).lun(lun).word(20, job.len);
        if job.write && session.answer.value("ImmediateData") != Some("No") {
            let immediate = data.len().min(first_burst(&session)).min(segment_max(&session));
            command = command.data(&data[..immediate]);
        }
        let depth = usize::try_from(job.depth).expect("small");
        Self {
            session,
            job,
            random,
            next_lba: 0,
            data,
            template: command.encode(),
            output: Vec::with_capacity(1 << 20),
            input: vec![0; INPUT_LEN],
            filled: 0,
            sent: vec![Instant::now(); depth],
            flushing: vec![false; depth],
            counts_from: Instant::now(),
            latencies: Vec::with_capacity(1 << 20),
        }
    }

    fn run(mut self, until: Until) -> Result<Vec<u32>> {
        for slot in 0..self.job.depth {
            self.put(slot)?;
        }
        let mut in_flight = self.job.depth;
        let mut issued = self.sent.len();
        while in_flight > 0 {
            self.session.connection.send_bytes(&self.output)?;
            self.output.clear();
            self.filled += self.session.connection.read_some(&mut self.input[self.filled..])?;
            let mut at = 0;
            while let Some(len) = whole(&self.input[at..self.filled]) {
                if let Some(slot) = self.take(at, len)? {
                    let more = match until {
                        Until::Moment(moment) => Instant::now() < moment,
                        Until::Commands(count) => issued < count,
                    };
                    if more {
                        self.put(slot)?;
                        issued += 1;
                    } else {
                        in_flight -= 1;
                    }
                }
                at += len;
            }
            self.input.copy_within(at..self.filled, 0);
            self.filled -= at;
        }
        Ok(self.latencies)
    }

    /// Appends a command for `slot` to the output.
    fn put(&mut self, slot: u32) -> Result<()> {
        let blocks = u64::from(self.job.len / 512);
        let places = self.job.span_bytes / u64::from(self.job.len);
        let lba = if self.job.sequential {
            self.next_lba = (self.next_lba + blocks) % (places * blocks);
            self.next_lba
        } else {
            self.random.below(places) * blocks
        };
        let operation = if self.job.write { cdb::WRITE_10 } else { cdb::READ_10 };
        let at = self.output.len();
        self.output.extend_from_slice(&self.template);
        let header = &mut self.output[at..at + 48];
        header[16..20].copy_from_slice(&slot.to_be_bytes());
        header[24..28].copy_from_slice(&self.session.cmd_sn.to_be_bytes());
        header[32..48].copy_from_slice(&cdb::ten(operation, u32::try_from(lba)?, u16::try_from(blocks)?));
        self.session.cmd_sn = self.session.cmd_sn.wrapping_add(1);
        self.sent[usize::try_from(slot)?] = Instant::now();
        Ok(())
    }

    /// Appends a flush of everything for `slot` to the output.
    fn put_flush(&mut self, slot: u32) {
        let flush = Pdu::new(opcode::SCSI_COMMAND).flags(0x81).word(16, slot).word(24, self.session.cmd_sn);
        let mut flush = flush.encode();
        flush[8..16].copy_from_slice(&self.template[8..16]);
        flush[32..48].copy_from_slice(&cdb::ten(SYNCHRONIZE_CACHE_10, 0, 0));
        self.output.extend_from_slice(&flush);
        self.session.cmd_sn = self.session.cmd_sn.wrapping_add(1);
    }

    /// Takes the PDU of `len` bytes at `at`; returns the slot of a command that has ended.
    fn take(&mut self, at: usize, len: usize) -> Result<Option<u32>> {
        let header = &self.input[at..at + 48];
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let (slot, flags) = (word(16), header[1]);
        let ended = match header[0] & 0x3f {
            opcode::SCSI_RESPONSE => true,
            opcode::DATA_IN => flags & 1 != 0,
            opcode::R2T => {
                let (offset, wanted) = (word(40), word(44));
                let header = self.input[at..at + len].to_vec();
                self.answer(&header, offset, wanted)?;
                false
            }
            opcode::NOP_IN => false,
            other => bail!("unexpected opcode {other:#04x}"),
        };
        if !ended {
            return Ok(None);
        }
        ensure!(self.input[at + 3] == 0, "a command failed with status {:#04x}", self.input[at + 3]);
        let at = usize::try_from(slot)?;
        let sent = *self.sent.get(at).context("an answer to no command of mine")?;
        if self.job.flush {
            self.flushing[at] = !self.flushing[at];
            if self.flushing[at] {
                self.put_flush(slot);
                return Ok(None);
            }
        }
        let now = Instant::now();
        if now >= self.counts_from {
            let latency = now.saturating_duration_since(sent);
            self.latencies.push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX));
        }
        Ok(Some(slot))
    }

    fn answer(&mut self, r2t: &[u8], offset: u32, wanted: u32) -> Result<()> {
        let r2t = Pdu::read(&mut &r2t[..])?;
        let step = segment_max(&self.session);
        for (sequence, at) in (offset..offset + wanted).step_by(step).enumerate() {
            let end = (at + u32::try_from(step)?).min(offset + wanted);
            let data = &self.data[usize::try_from(at)?..usize::try_from(end)?];
            let last = end == offset + wanted;
            let pdu = self.session.data_out(&r2t, u32::try_from(sequence)?, at, data, last);
            self.output.extend_from_slice(&pdu.encode());
        }
        Ok(())
    }
}

/// The length of the PDU at the start of `bytes`, when it is there to its end.
fn whole(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..48)?;
    let data_len = usize::from(header[5]) << 16 | usize::from(header[6]) << 8 | usize::from(header[7]);
    let len = 48 + usize::from(header[4]) * 4 + data_len.next_multiple_of(4);
    (bytes.len() >= len).then_some(len)
}

/// FirstBurstLength as agreed.
fn first_burst(session: &Session) -> usize {
    session.answer.value("FirstBurstLength").and_then(|value| value.parse().ok()).unwrap_or(65536)
}

/// The target's MaxRecvDataSegmentLength; tgt tells none, which means 8192.
fn segment_max(session: &Session) -> usize {
    session.answer.value("MaxRecvDataSegmentLength").and_then(|value| value.parse().ok()).unwrap_or(8192)
}

const CLIENT_CORE: usize = 0;
const INPUT_LEN: usize = 2 << 20;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;
