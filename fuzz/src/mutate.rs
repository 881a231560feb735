//! Changes to bytes, drawn from a seed: the kinds that find mistakes in readers of lengths and numbers.

use harness::load::Random;

/// Changes `bytes` in one to four places.
pub(crate) fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = index(random, bytes.len());
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.draw().to_le_bytes()[0],
            2 => bytes[at] = INTERESTING[index(random, INTERESTING.len())],
            3 => bytes.truncate(at),
            4 => fill(random, bytes, at, 0xff),
            5 => fill(random, bytes, at, 0),
            6 => repeat(random, bytes, at),
            _ => {
                let end = at + index(random, bytes.len() - at);
                bytes.drain(at..end);
            }
        }
    }
}

/// Cuts `bytes` into pieces as a socket does.
pub(crate) fn pieces<'a>(random: &mut Random, bytes: &'a [u8]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let len = if random.below(4) == 0 { 1 + index(random, rest.len()) } else { rest.len() };
        let (piece, behind) = rest.split_at(len);
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

/// A number below `len`, which is not zero.
pub(crate) fn index(random: &mut Random, len: usize) -> usize {
    usize::try_from(random.below(len as u64)).expect("below a length")
}

/// Overwrites up to four bytes: a length field's worth.
fn fill(random: &mut Random, bytes: &mut [u8], at: usize, value: u8) {
    let end = (at + 1 + index(random, 4)).min(bytes.len());
    bytes[at..end].fill(value);
}

/// Puts a run of bytes there twice.
fn repeat(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    if bytes.len() < BYTES_MAX {
        let end = (at + 1 + index(random, 64)).min(bytes.len());
        let run = bytes[at..end].to_vec();
        bytes.splice(at..at, run);
    }
}

const INTERESTING: [u8; 8] = [0x00, 0x01, 0x7f, 0x80, 0xfe, 0xff, 0x40, 0x3f];
/// Mutations make no input longer than this.
const BYTES_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces put together are the whole, whatever the seed.
    #[test]
    fn pieces_are_the_whole() {
        let bytes: Vec<u8> = (0..=255).collect();
        for seed in 0..100 {
            assert_eq!(pieces(&mut Random::new(seed), &bytes).concat(), bytes, "seed {seed}");
        }
    }

    /// A seed changes bytes the same way every time.
    #[test]
    fn seeds_repeat() {
        let change = |seed| {
            let mut bytes = vec![7; 100];
            mutate(&mut Random::new(seed), &mut bytes);
            bytes
        };
        for seed in 0..100 {
            assert_eq!(change(seed), change(seed));
        }
    }
}
