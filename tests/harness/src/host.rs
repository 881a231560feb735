//! A host that works on a volume whatever happens to its nodes: it keeps commands in flight, goes to another path when
//! one fails, and checks every byte that it reads.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::Path as FilePath,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    load::{Random, answer},
    raw::{Login, Pdu, Received, Session, Task, cdb, opcode},
    register::{BLOCK_BYTES, Covered, Registers, encode},
};

/// The host, what it knows of the volume, and what it saw.
#[derive(Debug)]
pub struct Host {
    iqn: String,
    portals: Vec<SocketAddr>,
    depth: usize,
    random: Random,
    /// What the blocks may hold.
    registers: Registers,
    writes: u64,
    session: Option<Session>,
    path: usize,
    in_flight: BTreeMap<u32, Command>,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Reads whose bytes were right.
    pub reads: u64,
    /// Writes whose answer never came.
    pub unknown: u64,
    /// How often it went to another path.
    pub failovers: u64,
    /// Flushes that were acknowledged, for whoever waits for the next one.
    pub flushes: Arc<AtomicU64>,
    /// The longest time without any answer while commands were in flight.
    pub longest_silence: Duration,
}

#[derive(Debug)]
struct Command {
    task: Task,
    work: Work,
    /// What came of a read so far.
    data: Vec<u8>,
}

#[derive(Debug)]
enum Work {
    Write { block: usize, write: u64 },
    Read { block: usize },
    Flush { covered: Covered },
}

/// How a path ended.
enum Path {
    Alive,
    Failed,
}

impl Host {
    /// A host with paths to `portals` of the target `iqn`, which uses the first `blocks` blocks of 4 KiB.
    #[must_use]
    pub fn new(iqn: &str, portals: Vec<SocketAddr>, blocks: usize, depth: usize, seed: u64) -> Self {
        Self {
            iqn: iqn.to_owned(),
            portals,
            depth,
            random: Random::new(seed),
            registers: Registers::new(blocks),
            writes: 0,
            session: None,
            path: 0,
            in_flight: BTreeMap::new(),
            acknowledged: 0,
            reads: 0,
            unknown: 0,
            failovers: 0,
            flushes: Arc::default(),
            longest_silence: Duration::ZERO,
        }
    }

    /// Works while `goes_on` says so, then waits for what is in flight.
    ///
    /// # Errors
    /// When a block holds what it must not, or no path leads anywhere for longer than the patience.
    pub fn work(&mut self, goes_on: impl Fn() -> bool) -> Result<()> {
        let mut heard = Instant::now();
        loop {
            let more = goes_on();
            if !more && self.in_flight.is_empty() {
                return Ok(());
            }
            let path = match self.session.take() {
                None => self.connect(),
                Some(mut session) => {
                    let path = self.step(&mut session, more, &mut heard)?;
                    self.session = Some(session);
                    path
                }
            };
            if matches!(path, Path::Failed) {
                self.give_up();
            }
            let silence = heard.elapsed();
            self.longest_silence = self.longest_silence.max(silence);
            ensure!(silence < PATIENCE, "no path of {:?} serves for {silence:?}", self.portals);
        }
    }

    /// Reads every block and checks it.
    ///
    /// # Errors
    /// When a block holds what it must not, or cannot be read.
    pub fn read_everything(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for block in 0..self.registers.len() {
            loop {
                if self.session.is_none() {
                    self.connect();
                }
                let task = Task::read(cdb::ten(cdb::READ_10, lba(block)?, BLOCKS), BYTES);
                let outcome = self.session.as_mut().map(|session| session.run(&task));
                match outcome {
                    Some(Ok(outcome)) if outcome.status == 0 => {
                        self.registers.read(block, &outcome.data)?;
                        break;
                    }
                    _ => self.give_up(),
                }
                ensure!(Instant::now() < deadline, "block {block} cannot be read");
            }
        }
        Ok(())
    }

    /// All replicas lost their power at once: what no flush covered may be lost.
    pub fn power_lost(&mut self) {
        self.registers.power_lost();
    }

    /// Checks what the file of a replica holds that has no power, without taking it for what others hold. Returns how
    /// many blocks do not hold the last write that was sent to them.
    ///
    /// # Errors
    /// When a block holds what it must not.
    pub fn check_file(&self, file: &FilePath) -> Result<usize> {
        let mut behind = 0;
        let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        for (block, bytes) in bytes.chunks(BLOCK_BYTES).take(self.registers.len()).enumerate() {
            let write = self.registers.check(block, bytes).with_context(|| file.display().to_string())?;
            behind += usize::from(self.registers.has_newer(block, write));
        }
        Ok(behind)
    }

    /// Tries the next path.
    fn connect(&mut self) -> Path {
        let portal = self.portals[self.path];
        let login = Login::normal(&self.iqn).from_initiator("host", 1);
        let session = Session::login(portal, &login, 0).and_then(|mut session| {
            session.settle()?;
            Ok(session)
        });
        if let Ok(session) = session {
            self.session = Some(session);
            return Path::Alive;
        }
        thread::sleep(BETWEEN_PATHS);
        Path::Failed
    }

    /// The path failed: what was in flight may have happened or not.
    fn give_up(&mut self) {
        self.session = None;
        self.path = (self.path + 1) % self.portals.len();
        self.failovers += 1;
        for command in std::mem::take(&mut self.in_flight).into_values() {
            if let Work::Write { block, write } = command.work {
                self.registers.given_up(block, write);
                self.unknown += 1;
            }
        }
    }

    fn step(&mut self, session: &mut Session, more: bool, heard: &mut Instant) -> Result<Path> {
        if more && self.in_flight.len() < self.depth {
            return Ok(self.send(session).map_or(Path::Failed, |()| Path::Alive));
        }
        match session.receive_within(COMMAND_PATIENCE) {
            Ok(Received::Pdu(pdu)) => {
                self.longest_silence = self.longest_silence.max(heard.elapsed());
                *heard = Instant::now();
                self.take(session, &pdu)
            }
            // Abort and reset would come first; in the end every host drops the connection.
            Ok(Received::Closed | Received::Silence) | Err(_) => Ok(Path::Failed),
        }
    }

    fn send(&mut self, session: &mut Session) -> Result<()> {
        let block = usize::try_from(self.random.below(self.registers.len() as u64))?;
        let busy = self.in_flight.values().any(|command| match &command.work {
            Work::Write { block: other, .. } | Work::Read { block: other } => *other == block,
            Work::Flush { .. } => false,
        });
        if busy {
            return Ok(());
        }
        let (work, task) = match self.random.below(20) {
            0 => {
                let covered = self.registers.covered();
                (Work::Flush { covered }, Task::new(cdb::ten(SYNCHRONIZE_CACHE_10, 0, 0)))
            }
            1..=6 => {
                let task = Task::read(cdb::ten(cdb::READ_10, lba(block)?, BLOCKS), BYTES);
                (Work::Read { block }, task)
            }
            _ => {
                self.writes += 1;
                let data = encode(block, self.writes);
                let task = Task::write(cdb::ten(cdb::WRITE_10, lba(block)?, BLOCKS), data);
                (Work::Write { block, write: self.writes }, task)
            }
        };
        let pdu = session.command(&task);
        // In flight before it is sent: a connection that fails in the middle may have taken it.
        self.in_flight.insert(pdu.read_word(16), Command { task, work, data: Vec::new() });
        session.connection.send(&pdu)
    }

    fn take(&mut self, session: &mut Session, pdu: &Pdu) -> Result<Path> {
        let tag = pdu.read_word(16);
        let ended = match pdu.opcode() {
            opcode::R2T => {
                let Some(command) = self.in_flight.get(&tag) else { return Ok(Path::Failed) };
                return Ok(answer(session, pdu, &command.task).map_or(Path::Failed, |()| Path::Alive));
            }
            opcode::DATA_IN => {
                let Some(command) = self.in_flight.get_mut(&tag) else { return Ok(Path::Failed) };
                command.data.extend_from_slice(&pdu.data);
                pdu.header[1] & 1 != 0
            }
            opcode::SCSI_RESPONSE => true,
            // The node says that it goes.
            _ => return Ok(Path::Failed),
        };
        if !ended {
            return Ok(Path::Alive);
        }
        if pdu.header[3] != 0 {
            // It stays in flight, so that giving the path up makes its outcome unknown.
            return Ok(Path::Failed);
        }
        let command = self.in_flight.remove(&tag).context("an answer to no command of mine")?;
        match command.work {
            Work::Write { block, write } => {
                self.registers.acknowledged(block, write);
                self.acknowledged += 1;
            }
            Work::Read { block } => {
                self.registers.read(block, &command.data)?;
                self.reads += 1;
            }
            Work::Flush { covered } => {
                self.registers.flushed(&covered);
                self.flushes.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(Path::Alive)
    }
}

fn lba(block: usize) -> Result<u32> {
    Ok(u32::try_from(block as u64 * u64::from(BLOCKS))?)
}

/// A block of 4 KiB in exported blocks of 512 bytes.
const BLOCKS: u16 = 8;
/// The same in bytes.
const BYTES: u32 = 4096;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;
/// Without an answer for so long, the host gives a path up.
const COMMAND_PATIENCE: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_mins(1);
const BETWEEN_PATHS: Duration = Duration::from_millis(50);
