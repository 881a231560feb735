//! P13: nothing that an initiator sends makes the target panic, touch blocks outside the volume, or return more than
//! it said that it would.

use super::*;

/// xorshift64*: the same numbers for a seed on every machine.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

/// A million CDBs and parameter lists, half of them of known commands with few bits set, so that they get far.
#[test]
fn random_commands() {
    let mut world = World::with(UnitConfig { size: 64 * BLOCK as u64, ..unit(0) });
    let codes: Vec<(u8, u8)> = {
        let list = good(&world.run(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0]));
        list[4..].chunks(8).map(|entry| (entry[0], entry[3])).collect()
    };
    let seed = 0x5eed_0001;
    let mut random = Random(seed);
    let mut served = 0_u32;
    for round in 0..1_000_000 {
        let mut command = [0; 16];
        command.fill_with(|| random.next() as u8);
        if round % 2 == 0 {
            let (code, action) = codes[random.below(codes.len() as u64) as usize];
            for byte in &mut command {
                *byte &= if random.below(3) == 0 { 0x1f } else { 0 };
            }
            command[0] = code;
            command[1] |= action;
        }
        let mut data = vec![0; random.below(96) as usize];
        data.fill_with(|| if random.below(3) == 0 { random.next() as u8 } else { 0 });
        if random.below(4) == 0 {
            data.resize(BLOCK * (1 + random.below(3) as usize), 3);
        }
        let nexus = NexusId(1 + random.below(2));
        let len = random.below(17) as usize;
        let lun = if random.below(16) == 0 { random.next() } else { LUN };
        let cut = if random.below(8) == 0 { &command[..len] } else { &command[..] };
        served += u32::from(world.send_to(nexus, lun, cut, &data).status == ScsiStatus::Good);
        world.commands.clear();
        world.effects.clear();
    }
    assert!(served > 100_000, "only {served} commands got anywhere, seed {seed:#x}");
}

/// Every parameter list cut everywhere, with a CDB that says so and with one that does not.
#[test]
fn cut_parameter_lists() {
    let mut world = World::new();
    let longest: Vec<u8> = (0..120).map(|at| (at * 37) as u8).collect();
    let forms: [(u8, u8, usize, usize); 4] =
        [(0x15, 0x10, 4, 1), (0x55, 0x10, 7, 2), (0x42, 0, 7, 2), (0x5f, 0, 5, 4)];
    for (code, flags, at, width) in forms {
        for action in 0..if code == 0x5f { 8 } else { 1 } {
            for said in 0..=longest.len() {
                for sent in [said, said / 2, longest.len()] {
                    for list in [&longest[..sent], &vec![0; sent], &vec![0xff; sent]] {
                        let mut command = [0; 16];
                        command[0] = code;
                        command[1] = flags | action;
                        command[at..at + width].copy_from_slice(&(said as u32).to_be_bytes()[4 - width..]);
                        world.write(&command, list);
                    }
                }
            }
        }
    }
}

/// A nexus that is gone, or never was, neither writes nor reads.
#[test]
fn a_lost_nexus_has_no_rights() {
    let mut world = World::new();
    world.target.close_nexus(ONE);
    conflict(&world.run(&cdb(0x28, 0, 0, 1)));
    conflict(&world.write(&cdb(0x2a, 0, 0, 1), &[0; BLOCK]));
    let mut registration = [0; 24];
    registration[15] = 1;
    conflict(&world.write(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &registration));
}
