//! Overlapping writes at a fixed queue depth, drawn from a seed.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::raw::{Direction, Pdu, Received, Session, Task, cdb, opcode};

/// A small pseudo-random sequence (splitmix64), the same for the same seed everywhere.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.draw().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// When a load ends.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After this many writes.
    Writes(usize),
    /// At this moment.
    Moment(Instant),
}

/// Writes of 1 to 32 blocks, all within the first `span_blocks`, so that most of them overlap others in flight.
#[derive(Debug)]
pub struct Load {
    random: Random,
    span_blocks: u64,
    depth: usize,
    in_flight: BTreeMap<u32, (Task, Instant)>,
    /// Writes that were answered with GOOD.
    pub acknowledged: usize,
    /// The longest time from a command to its answer.
    pub slowest: Duration,
}

impl Load {
    /// A load from `seed` that keeps `depth` writes in flight.
    #[must_use]
    pub fn new(seed: u64, span_blocks: u64, depth: usize) -> Self {
        let random = Random::new(seed);
        Self {
            random,
            span_blocks,
            depth,
            in_flight: BTreeMap::new(),
            acknowledged: 0,
            slowest: Duration::ZERO,
        }
    }

    /// Writes through `session` until `until`, then waits for every answer.
    ///
    /// # Errors
    /// When a write is answered with anything but GOOD, or the session breaks.
    pub fn run(&mut self, session: &mut Session, until: Until) -> Result<()> {
        let mut sent = 0;
        loop {
            let more = match until {
                Until::Writes(count) => sent < count,
                Until::Moment(moment) => Instant::now() < moment,
            };
            if more && self.in_flight.len() < self.depth {
                self.send_one(session)?;
                sent += 1;
            } else if self.in_flight.is_empty() {
                return Ok(());
            } else {
                self.receive_one(session)?;
            }
        }
    }

    fn send_one(&mut self, session: &mut Session) -> Result<()> {
        let blocks = 1 + self.random.below(BLOCKS_MAX);
        let lba = self.random.below(self.span_blocks - blocks);
        let data = self.random.bytes(usize::try_from(blocks * BLOCK)?);
        let task = Task::write(cdb::ten(cdb::WRITE_10, u32::try_from(lba)?, u16::try_from(blocks)?), data);
        self.send(session, task, Instant::now())
    }

    fn send(&mut self, session: &mut Session, task: Task, began: Instant) -> Result<()> {
        let command = session.command(&task);
        session.connection.send(&command)?;
        self.in_flight.insert(command.read_word(16), (task, began));
        Ok(())
    }

    fn receive_one(&mut self, session: &mut Session) -> Result<()> {
        let pdu = session.receive()?;
        let tag = pdu.read_word(16);
        match pdu.opcode() {
            opcode::R2T => {
                let (task, _) = self.in_flight.get(&tag).context("R2T for no write of mine")?;
                answer(session, &pdu, task)
            }
            opcode::SCSI_RESPONSE => {
                let (task, began) = self.in_flight.remove(&tag).context("an answer to no write of mine")?;
                if pdu.header[3] == 2 && pdu.data.get(4).is_some_and(|key| key & 0xf == UNIT_ATTENTION) {
                    // Not executed: every initiator repeats it (SAM-5, section 5.14).
                    return self.send(session, task, began);
                }
                ensure!(pdu.header[2..4] == [0, 0], "a write failed: {:02x?} {:02x?}", pdu.header, pdu.data);
                self.acknowledged += 1;
                self.slowest = self.slowest.max(began.elapsed());
                Ok(())
            }
            other => bail!("unexpected opcode {other:#04x}"),
        }
    }
}

pub(crate) fn answer(session: &mut Session, r2t: &Pdu, task: &Task) -> Result<()> {
    let (offset, len) = (usize::try_from(r2t.read_word(40))?, usize::try_from(r2t.read_word(44))?);
    let data = task.data.get(offset..offset + len).context("R2T beyond the write")?;
    for (sequence, chunk) in data.chunks(SEGMENT).enumerate() {
        let at = offset + sequence * SEGMENT;
        let last = at + chunk.len() == offset + len;
        let pdu = session.data_out(r2t, u32::try_from(sequence)?, u32::try_from(at)?, chunk, last);
        session.connection.send(&pdu)?;
    }
    Ok(())
}

/// Reads the whole volume of `size_bytes` through `session` into `out`.
///
/// # Errors
/// When a read fails or comes short.
pub fn read_all(session: &mut Session, size_bytes: u64, out: &mut impl std::io::Write) -> Result<()> {
    let chunk = u32::try_from(READ_BLOCKS * BLOCK)?;
    for lba in (0..size_bytes / BLOCK).step_by(usize::try_from(READ_BLOCKS)?) {
        let task = Task { direction: Direction::Read(chunk), ..Task::new(cdb::sixteen(0x88, lba, 128)) };
        let mut outcome = session.run(&task)?;
        while outcome.check().is_some_and(|(key, ..)| key == UNIT_ATTENTION) {
            outcome = session.run(&task)?;
        }
        ensure!(outcome.status == 0, "read of block {lba}: {outcome:?}");
        ensure!(outcome.data.len() == usize::try_from(chunk)?, "read of block {lba} is short");
        out.write_all(&outcome.data)?;
    }
    out.flush()?;
    Ok(())
}

/// Fails when anything arrives on `session` within `patience`.
///
/// # Errors
/// When the target says something or closes.
pub fn expect_silence(session: &mut Session, patience: Duration) -> Result<()> {
    match session.receive_within(patience)? {
        Received::Silence => Ok(()),
        Received::Closed => bail!("the target closed the connection"),
        Received::Pdu(pdu) => bail!("unexpected opcode {:#04x}: {:02x?}", pdu.opcode(), pdu.header),
    }
}

/// The exported block in bytes.
pub const BLOCK: u64 = 512;
const UNIT_ATTENTION: u8 = 6;
const BLOCKS_MAX: u64 = 32;
const READ_BLOCKS: u64 = 128;
const SEGMENT: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed tells everything that a load will write.
    #[test]
    fn seeds_repeat() {
        let draw = |seed| Random::new(seed).bytes(100);
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
