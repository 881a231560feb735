//! What each block may hold, from what was acknowledged, flushed, and neither (P1, P2, P3, P14).

use anyhow::{Result, ensure};

/// The bytes of a block.
pub const BLOCK_BYTES: usize = 4096;

/// The blocks of a volume; at most one command at a time uses each.
#[derive(Debug)]
pub struct Registers {
    blocks: Vec<Register>,
}

#[derive(Debug, Clone, Default)]
struct Register {
    /// The newest write that is known to have happened.
    known: u64,
    /// Later ones whose answer never came, oldest first.
    open: Vec<u64>,
    /// Earlier ones that a loss of all power may bring back, oldest first: no flush has covered what replaced them.
    earlier: Vec<u64>,
}

/// What was acknowledged when a flush was sent.
#[derive(Debug)]
pub struct Covered(Vec<u64>);

impl Registers {
    /// So many blocks that were never written.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        Self { blocks: vec![Register::default(); blocks] }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The write was acknowledged: nothing before it comes back while any replica has power.
    pub fn acknowledged(&mut self, block: usize, write: u64) {
        self.blocks[block].is_known(write);
    }

    /// The write was given up: it may have happened.
    pub fn given_up(&mut self, block: usize, write: u64) {
        self.blocks[block].open.push(write);
    }

    /// A flush is sent; what it covers is to be given to [`Self::flushed`].
    #[must_use]
    pub fn covered(&self) -> Covered {
        Covered(self.blocks.iter().map(|register| register.known).collect())
    }

    /// The flush was acknowledged: what it covered outlives every loss of power.
    pub fn flushed(&mut self, covered: &Covered) {
        for (register, &covered) in self.blocks.iter_mut().zip(&covered.0) {
            // The writes of a block have ascending numbers.
            register.earlier.retain(|&write| write >= covered);
        }
    }

    /// All replicas lost their power at once: what no flush covered may be lost.
    pub fn power_lost(&mut self) {
        for register in &mut self.blocks {
            let mut may_be = std::mem::take(&mut register.earlier);
            may_be.push(register.known);
            may_be.append(&mut register.open);
            register.known = may_be.remove(0);
            register.open = may_be;
        }
    }

    /// A read came back.
    ///
    /// # Errors
    /// When the bytes are none that the block may hold.
    pub fn read(&mut self, block: usize, bytes: &[u8]) -> Result<()> {
        let write = self.check(block, bytes)?;
        // Once seen it stays; what was given up before it cannot come any more.
        self.blocks[block].is_known(write);
        Ok(())
    }

    /// The bytes are those of a replica that is not read any more: nothing follows from them for others.
    ///
    /// # Errors
    /// When the bytes are none that the block may hold.
    pub fn check(&self, block: usize, bytes: &[u8]) -> Result<u64> {
        let write = decode(block, bytes)?;
        let register = &self.blocks[block];
        ensure!(
            write == register.known || register.open.contains(&write),
            "block {block} holds write {write}, but it may only hold one of {register:?}"
        );
        Ok(write)
    }

    /// Whether there are writes to the block that came behind `write`.
    #[must_use]
    pub fn has_newer(&self, block: usize, write: u64) -> bool {
        self.blocks[block].open.iter().any(|&open| open > write)
    }
}

impl Register {
    /// The block holds `write`, and nothing that came before it.
    fn is_known(&mut self, write: u64) {
        if write == self.known {
            return;
        }
        self.earlier.push(self.known);
        let before = self.open.iter().position(|&open| open >= write).unwrap_or(self.open.len());
        self.earlier.extend(self.open.drain(..before));
        self.open.retain(|&open| open > write);
        self.known = write;
    }
}

/// The bytes that write number `write` stores in `block`.
#[must_use]
pub fn encode(block: usize, write: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK_BYTES);
    let mut state = (block as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ write;
    bytes.extend(write.to_le_bytes());
    while bytes.len() < BLOCK_BYTES {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        bytes.extend((state ^ (state >> 29)).to_le_bytes());
    }
    bytes
}

/// The number of the write that stored these bytes; zero where nothing was ever written.
fn decode(block: usize, bytes: &[u8]) -> Result<u64> {
    let write = bytes.first_chunk().map(|&word| u64::from_le_bytes(word)).unwrap_or_default();
    let whole = if write == 0 { vec![0; BLOCK_BYTES] } else { encode(block, write) };
    let differs = whole.iter().zip(bytes).position(|(one, other)| one != other);
    ensure!(
        bytes.len() == BLOCK_BYTES && differs.is_none(),
        "block {block} is torn: write {write}, but byte {differs:?} is another's"
    );
    Ok(write)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P1, P3, P14: lost, stale, torn and returning writes are refused; an unknown outcome may be either.
    #[test]
    fn only_what_may_be_there_is_accepted() {
        let mut registers = Registers::new(2);
        registers.read(0, &[0; BLOCK_BYTES]).unwrap();
        registers.acknowledged(0, 1);
        assert!(registers.read(0, &[0; BLOCK_BYTES]).is_err(), "a lost write");
        registers.given_up(0, 2);
        registers.given_up(0, 3);
        registers.read(0, &encode(0, 1)).unwrap();
        registers.read(0, &encode(0, 3)).unwrap();
        assert!(registers.read(0, &encode(0, 1)).is_err(), "old after new");
        assert!(registers.read(0, &encode(0, 2)).is_err(), "an abandoned write after a newer one");
        registers.acknowledged(0, 4);
        assert!(registers.read(0, &encode(0, 3)).is_err());
        assert!(registers.read(0, &encode(1, 4)).is_err(), "another block's bytes");
        let mut torn = encode(0, 4);
        torn[2048..].copy_from_slice(&encode(0, 3)[2048..]);
        assert!(registers.read(0, &torn).is_err(), "a torn block");
    }

    /// P2: a loss of all power takes back what no flush covered, and nothing else.
    #[test]
    fn a_flush_outlives_a_loss_of_power() {
        let mut registers = Registers::new(1);
        registers.acknowledged(0, 1);
        registers.acknowledged(0, 2);
        let covered = registers.covered();
        registers.acknowledged(0, 3);
        registers.given_up(0, 4);
        registers.acknowledged(0, 5);
        registers.given_up(0, 6);
        registers.flushed(&covered);
        assert!(registers.check(0, &encode(0, 2)).is_err(), "nothing has lost its power");
        registers.power_lost();
        for write in 2..=6 {
            registers.check(0, &encode(0, write)).unwrap();
        }
        assert!(registers.check(0, &encode(0, 1)).is_err(), "flushed");
        assert!(registers.has_newer(0, 5) && !registers.has_newer(0, 6));
        registers.read(0, &encode(0, 3)).unwrap();
        assert!(registers.check(0, &encode(0, 2)).is_err(), "old after new");
    }
}
