//! The SCSI device server: CDBs and parameter lists of any content, with any outcome of the volume.

use block::{BlockSize, Command, Failure, Payload, Run, Status, VolumeNumber};
use harness::load::Random;
use target_proto::scsi::{
    InitiatorPort, NexusId, PathState, PortGroup, RelativePort, Request, Step, Target, TargetIdentity,
    TargetPort, UnitConfig, VolumeIdentity,
};

use crate::mutate::{index, mutate};

/// Sends a few commands to a fresh target.
pub(crate) fn case(mut random: Random) {
    let mut target = target();
    let mut effects = Vec::new();
    for _ in 0..4 {
        let cdb = any(&mut random);
        let lun = if random.below(16) == 0 { random.draw() } else { 0 };
        let moved = target.transfer(lun, &cdb);
        let sent = usize::try_from(moved.data_out.min(LIST_MAX)).expect("small");
        let sent = if random.below(4) == 0 { sent / 2 } else { sent };
        let data_out = Payload::from(random.bytes(sent));
        let nexus = NexusId(random.below(2));
        let request = Request { nexus, lun, cdb: &cdb, data_out, data_out_expected: moved.data_out };
        let mut step = target.start(request, &mut effects);
        for turn in 0.. {
            assert!(turn < STEPS_MAX, "{cdb:02x?} does not end");
            step = match step {
                Step::Done(response) => {
                    let _ = response.sense_bytes();
                    break;
                }
                Step::Submit { command, then, .. } => {
                    let status = outcome(&mut random, &command);
                    target.resume(then, status)
                }
                Step::Persist { then, .. } | Step::Abort { then, .. } => target.resume(then, Status::Done),
            };
        }
        effects.clear();
    }
}

fn outcome(random: &mut Random, command: &Command) -> Status {
    if random.below(8) == 0 {
        return Status::Failed(Failure::ReadError);
    }
    match command {
        Command::Read { extent } => {
            let len = usize::try_from(extent.len).expect("a read is bounded");
            assert!(len <= READ_MAX, "a read of {len} bytes at once");
            Status::Data(Payload::from(vec![0; len]))
        }
        Command::Allocation { extent } => Status::Allocation(vec![Run { extent: *extent, mapped: true }]),
        Command::CompareAndWrite { .. } if random.below(2) == 0 => Status::Miscompare { offset: 0 },
        _ => Status::Done,
    }
}

/// A CDB: of a known command with small numbers, mutated, or nothing but noise.
fn any(random: &mut Random) -> [u8; 16] {
    let mut bytes = random.bytes(16);
    if random.below(4) != 0 {
        bytes.fill(0);
        bytes[0] = CODES[index(random, CODES.len())];
        bytes[index(random, 15) + 1] = random.draw().to_le_bytes()[0];
        bytes[8] = random.draw().to_le_bytes()[0];
        mutate(random, &mut bytes);
    }
    let mut cdb = [0; 16];
    let len = bytes.len().min(16);
    cdb[..len].copy_from_slice(&bytes[..len]);
    cdb
}

fn target() -> Target {
    let port = TargetPort { group: PortGroup(1), relative: RelativePort(1), portal_group: 1 };
    let identity = TargetIdentity { iqn: "iqn.2026-11.io.evenkeel:fuzz".to_owned(), port, peers: vec![] };
    let unit = UnitConfig {
        volume: VolumeNumber(0),
        size: 1 << 20,
        block_size: BlockSize::B512,
        physical_block_size: BlockSize::B4096,
        identity: VolumeIdentity(1),
        thin: true,
        read_only: false,
    };
    let mut target = Target::new(identity, vec![unit]);
    target.set_path(PathState::ActiveOptimized, &mut Vec::new());
    for nexus in 0..2 {
        let isid = [0x80, 0, 0, 0, 0, u8::try_from(nexus).expect("small")];
        target.open_nexus(
            NexusId(nexus),
            &InitiatorPort { iqn: "iqn.2026-11.io.evenkeel.test:one".to_owned(), isid },
        );
    }
    target
}

const CODES: [u8; 41] = [
    0x00, 0x03, 0x08, 0x0a, 0x12, 0x15, 0x16, 0x17, 0x1a, 0x1b, 0x1d, 0x25, 0x28, 0x2a, 0x2e, 0x2f, 0x34,
    0x35, 0x37, 0x41, 0x42, 0x4d, 0x55, 0x5a, 0x5e, 0x5f, 0x83, 0x84, 0x88, 0x89, 0x8a, 0x8b, 0x8e, 0x8f,
    0x90, 0x91, 0x93, 0x9e, 0xa0, 0xa3, 0xa8,
];
/// What a transport would gather at most in this test.
const LIST_MAX: u32 = 1 << 18;
/// The volume has 1 MiB: no step may ask for more.
const READ_MAX: usize = 1 << 20;
/// A volume of 1 MiB takes no more steps than it has blocks.
const STEPS_MAX: u32 = 4096;
