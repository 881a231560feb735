//! EXTENDED COPY and RECEIVE COPY RESULTS (SPC-4 6.4, 6.18) between the volumes of one target.

mod refused;

use std::collections::BTreeMap;

use super::*;
use crate::scsi::Continuation;

/// A target with three volumes: two like each other, and one of larger blocks.
struct Volumes {
    target: Target,
    disks: BTreeMap<VolumeNumber, Vec<u8>>,
    commands: Vec<(VolumeNumber, Command)>,
    /// Commands on this volume fail.
    broken: Option<(VolumeNumber, Failure)>,
}

const ZERO: VolumeNumber = VolumeNumber(0);
const FIRST: VolumeNumber = VolumeNumber(1);
const LARGE: VolumeNumber = VolumeNumber(2);
const PIECE: usize = 1 << 20;

impl Volumes {
    fn new() -> Self {
        let configs = vec![
            UnitConfig { size: 4 * PIECE as u64, ..unit(0) },
            UnitConfig { size: 4 * PIECE as u64, ..unit(1) },
            UnitConfig { block_size: BlockSize::B4096, physical_block_size: BlockSize::B4096, ..unit(2) },
        ];
        let disk = |config: &UnitConfig| {
            let bytes = (0..config.size).map(|at| (at * 31 + at / 512 + u64::from(config.volume.0)) as u8);
            (config.volume, bytes.collect())
        };
        let disks = configs.iter().map(disk).collect();
        let mut target = Target::new(identity(), configs);
        target.set_path(PathState::ActiveOptimized, &mut Vec::new());
        let mut volumes = Self { target, disks, commands: Vec::new(), broken: None };
        for (nexus, name) in [(ONE, "one"), (TWO, "two")] {
            volumes.target.open_nexus(nexus, &initiator(name));
            for volume in [ZERO, FIRST, LARGE] {
                assert!(volumes.send(nexus, volume, &[0; 6], &[]).sense.is_some(), "an attention waits");
            }
        }
        volumes
    }

    fn begin(&mut self, nexus: NexusId, volume: VolumeNumber, cdb: &[u8], data: &[u8]) -> Step {
        let lun = u64::from(volume.0) << 48;
        let moved = self.target.transfer(lun, cdb).data_out as usize;
        let data_out = Payload::from(data[..data.len().min(moved)].to_vec());
        let request = Request { nexus, lun, cdb, data_out, data_out_expected: data.len() as u32 };
        self.target.start(request, &mut Vec::new())
    }

    /// Does what a step asks for, and returns what comes next.
    fn carry_out(&mut self, step: Step) -> Result<Step, Response> {
        let (status, then): (Status, Continuation) = match step {
            Step::Done(response) => return Err(response),
            Step::Submit { volume, command, then } => (self.execute(volume, command), then),
            Step::Persist { then, .. } | Step::Abort { then, .. } => (Status::Done, then),
        };
        Ok(self.target.resume(then, status))
    }

    fn send(&mut self, nexus: NexusId, volume: VolumeNumber, cdb: &[u8], data: &[u8]) -> Response {
        let mut step = self.begin(nexus, volume, cdb, data);
        loop {
            match self.carry_out(step) {
                Ok(next) => step = next,
                Err(response) => return response,
            }
        }
    }

    fn execute(&mut self, volume: VolumeNumber, command: Command) -> Status {
        self.commands.push((volume, command.clone()));
        if let Some((broken, failure)) = self.broken
            && broken == volume
        {
            return Status::Failed(failure);
        }
        let disk = self.disks.get_mut(&volume).unwrap();
        match command {
            Command::Read { extent } => Status::Data(disk[range(extent)].to_vec().into()),
            Command::Write { extent, data, .. } => {
                disk[range(extent)].copy_from_slice(&data.to_bytes());
                Status::Done
            }
            other => panic!("{other:?}"),
        }
    }

    fn copy(&mut self, list: &[u8]) -> Response {
        self.send(ONE, ZERO, &extended_copy(list.len()), list)
    }

    fn ask(&mut self, action: u8, list: u8, allocation: u32) -> Response {
        self.send(ONE, ZERO, &results(action, list, allocation), &[])
    }

    /// What COPY STATUS says: the status, the segments, and the bytes.
    fn status(&mut self, list: u8) -> (u8, u16, u32) {
        let data = good(&self.ask(0, list, 12));
        assert_eq!((&data[..4], data[7]), (&[0, 0, 0, 8][..], 0));
        let segments = u16::from_be_bytes([data[5], data[6]]);
        (data[4], segments, u32::from_be_bytes([data[8], data[9], data[10], data[11]]))
    }
}

fn extended_copy(len: usize) -> Vec<u8> {
    let mut cdb = vec![0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb.extend((len as u32).to_be_bytes());
    cdb.extend([0, 0]);
    cdb
}

fn results(action: u8, list: u8, allocation: u32) -> Vec<u8> {
    let mut cdb = vec![0x84, action, list, 0, 0, 0, 0, 0, 0, 0];
    cdb.extend(allocation.to_be_bytes());
    cdb.extend([0, 0]);
    cdb
}

/// An identification descriptor with the NAA designator of a volume.
fn cscd(world: &mut Volumes, volume: VolumeNumber) -> Vec<u8> {
    let page = good(&world.send(ONE, volume, &[0x12, 1, 0x83, 1, 0, 0], &[]));
    assert_eq!(page[4..8], [1, 3, 0, 16]);
    let block_len: u32 = if volume == LARGE { 4096 } else { 512 };
    let mut descriptor = vec![0xe4, 0, 0, 0];
    descriptor.extend(&page[4..24]);
    descriptor.extend([0; 4]);
    descriptor.extend(block_len.to_be_bytes());
    assert_eq!(descriptor.len(), 32);
    descriptor
}

fn segment(places: (u16, u16), blocks: u16, from: u64, to: u64) -> Vec<u8> {
    let mut descriptor = vec![0x02, 0, 0, 24];
    descriptor.extend(places.0.to_be_bytes());
    descriptor.extend(places.1.to_be_bytes());
    descriptor.extend([0, 0]);
    descriptor.extend(blocks.to_be_bytes());
    descriptor.extend(from.to_be_bytes());
    descriptor.extend(to.to_be_bytes());
    descriptor
}

fn list(id: u8, cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
    let (cscds, segments) = (cscds.concat(), segments.concat());
    let mut list = vec![id, 0];
    list.extend((cscds.len() as u16).to_be_bytes());
    list.extend([0; 4]);
    list.extend((segments.len() as u32).to_be_bytes());
    list.extend([0; 4]);
    [list, cscds, segments].concat()
}

#[track_caller]
fn aborted(response: &Response, additional: Additional, segment: u16) {
    check(response, SenseKey::CopyAborted, additional);
    assert_eq!(response.sense.unwrap().segment, Some(segment));
}

/// SPC-4 6.4.6.5: blocks go from one volume to another, each piece named with the volume it is for and at most 1 MiB.
#[test]
fn blocks_are_copied_between_volumes() {
    let mut world = Volumes::new();
    let mut cscds = [cscd(&mut world, ZERO), cscd(&mut world, FIRST)];
    cscds[0][1] = 0x80;
    let (long, short) = (segment((0, 1), 5000, 8, 16), segment((1, 0), 1, 4, 0));
    let before = world.disks.clone();
    good(&world.copy(&list(7, &cscds, &[long, short])));
    let (from, to, len) = (8 * BLOCK, 16 * BLOCK, 5000 * BLOCK);
    assert_eq!(world.disks[&FIRST][to..to + len], before[&ZERO][from..from + len]);
    assert_eq!(world.disks[&FIRST][..to], before[&FIRST][..to]);
    assert_eq!(world.disks[&FIRST][to + len..], before[&FIRST][to + len..]);
    assert_eq!(world.disks[&ZERO][..BLOCK], before[&FIRST][4 * BLOCK..5 * BLOCK]);
    assert_eq!(world.disks[&ZERO][BLOCK..], before[&ZERO][BLOCK..]);
    let volumes: Vec<_> = world.commands.iter().map(|(volume, _)| volume.0).collect();
    assert_eq!(volumes, [0, 1, 0, 1, 0, 1, 1, 0]);
    for (_, command) in &world.commands {
        assert!(command.extent().unwrap().len <= PIECE as u64);
    }
    assert_eq!(world.status(7), (1, 2, (len + BLOCK) as u32));
    illegal(&world.ask(0, 8, 12), Additional::INVALID_FIELD_IN_CDB);
}

/// A copy whose ends overlap in one volume moves what stood there before it, in both directions.
#[test]
fn an_overlap_is_moved() {
    for (from, to, blocks) in [(0, 1, 5000), (0, 2048, 5000), (100, 0, 6000), (7, 7, 10), (0, 4096, 4096)] {
        let mut world = Volumes::new();
        let mut expected = world.disks[&ZERO].clone();
        let start = from as usize * BLOCK;
        expected.copy_within(start..start + usize::from(blocks) * BLOCK, to as usize * BLOCK);
        let cscds = [cscd(&mut world, ZERO)];
        good(&world.copy(&list(0, &cscds, &[segment((0, 0), blocks, from, to)])));
        assert!(world.disks[&ZERO] == expected, "{blocks} blocks from {from} to {to}");
    }
}

/// SPC-4 6.20, 7.8.17: the limits that are told are those that hold, in both places.
#[test]
fn the_limits_that_are_told_hold() {
    let mut world = Volumes::new();
    let told = good(&world.ask(3, 0, 1024));
    assert_eq!(told.len(), 46);
    assert_eq!(told[..5], [0, 0, 0, 42, 1]);
    let (cscds_max, segments_max) = (usize::from(told[9]), usize::from(told[11]));
    let len_max = usize::from(u16::from_be_bytes([told[14], told[15]]));
    assert_eq!((told[35], told[36], told[37]), (16, 16, 9));
    assert_eq!(told[43..], [2, 0x02, 0xe4]);
    let page = good(&world.send(ONE, ZERO, &[0x12, 1, 0x8f, 1, 0, 0], &[]));
    assert_eq!(page[..4], [0, 0x8f, 0, page.len() as u8 - 4]);
    assert_eq!(page[4..20], [0, 1, 0, 12, 8, 0x83, 1, 0, 0x84, 3, 0, 3, 4, 0, 0, 0]);
    assert_eq!(page[20..24], [0, 4, 0, 28]);
    assert_eq!(page[28..36], told[8..16]);
    assert_eq!(page[52..60], [0, 8, 0, 4, 2, 2, 0xe4, 0]);
    assert_eq!(page[60..68], [0, 0x0c, 0, 4, 0, 0, 0, 0]);
    assert_eq!(page[68..80], [0x80, 1, 0, 32, 0, 0, 0, 16, 0, 0, 0, 16]);
    assert_eq!((page[84], page.len()), (9, 104));
    let own = cscd(&mut world, ZERO);
    let nothing = segment((0, 0), 0, 0, 0);
    let (cscds, segments) = (vec![own.clone(); cscds_max + 1], vec![nothing; segments_max + 1]);
    let whole = list(1, &cscds[1..], &segments[1..]);
    assert_eq!(whole.len(), 16 + len_max);
    good(&world.copy(&whole));
    illegal(&world.copy(&list(1, &cscds, &segments[..1])), Additional::TOO_MANY_TARGET_DESCRIPTORS);
    illegal(&world.copy(&list(1, &cscds[..1], &segments)), Additional::TOO_MANY_SEGMENT_DESCRIPTORS);
    illegal(&world.copy(&list(1, &cscds, &segments)), Additional::PARAMETER_LIST_LENGTH);
}

/// SPC-4 6.19: the details of a failure are held until they have been told whole, or nobody wants them.
#[test]
fn details_of_a_failure() {
    let mut world = Volumes::new();
    let wrong = list(3, &[], &[segment((0, 0), 1, 0, 0)]);
    for last in [0, 78] {
        world.copy(&wrong);
        let part = good(&world.ask(4, 3, 77));
        let whole = good(&world.ask(4, 3, last));
        assert_eq!(part[..4], [0, 0, 0, 74]);
        assert_eq!(part[56..60], [0x02, 0, 0, 18]);
        assert_eq!(part[60..63], [0x70, 0, 0x0a]);
        assert_eq!(whole.len(), last as usize);
        assert_eq!(good(&world.ask(4, 3, 100)), [0; 4]);
    }
    assert_eq!(good(&world.ask(4, 77, 100)), [0; 4]);
    assert_eq!(world.status(3), (2, 0, 0));
}

/// SPC-4 6.4.3: a name is in use as long as its copy runs; one that is aborted runs no more.
#[test]
fn a_name_is_in_use_while_its_copy_runs() {
    let mut world = Volumes::new();
    let cscds = [cscd(&mut world, ZERO), cscd(&mut world, FIRST)];
    let named = |id| list(id, &cscds, &[segment((0, 1), 1, 0, 0)]);
    let mut running = vec![world.begin(ONE, ZERO, &extended_copy(108), &named(5))];
    assert_eq!(world.status(5), (0, 0, 0));
    illegal(&world.copy(&named(5)), Additional::OPERATION_IN_PROGRESS);
    good(&world.send(TWO, ZERO, &extended_copy(108), &named(5)));
    good(&world.send(ONE, FIRST, &extended_copy(108), &named(5)));
    let mut nameless = named(0);
    nameless[1] = 0x18;
    for _ in 1..16 {
        running.push(world.begin(ONE, ZERO, &extended_copy(108), &nameless));
    }
    illegal(&world.copy(&nameless), Additional::INSUFFICIENT_RESOURCES);
    illegal(&world.copy(&named(6)), Additional::INSUFFICIENT_RESOURCES);
    drop(running);
    assert_eq!(world.status(5), (2, 0, 0), "it was aborted");
    good(&world.copy(&named(5)));
    assert_eq!(world.status(5), (1, 1, 512));
    good(&world.copy(&nameless));
    // Others push it out in the end, and a reset and the end of the nexus take the rest.
    (6..70).for_each(|id| drop(good(&world.copy(&named(id)))));
    illegal(&world.ask(0, 5, 12), Additional::INVALID_FIELD_IN_CDB);
    assert_eq!(world.status(69), (1, 1, 512));
    world.target.reset(crate::scsi::Reset::Unit(LUN), &mut Vec::new()).unwrap();
    world.ask(3, 0, 12);
    illegal(&world.ask(0, 69, 12), Additional::INVALID_FIELD_IN_CDB);
}
