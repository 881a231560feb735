//! The device server against a disk in memory: every command as an initiator sends it, and what comes of it.

mod attentions;
mod copy;
mod hostile;
mod inform;
mod medium;
mod persistent;
mod thin;

use block::{BlockSize, Command, Extent, Failure, Payload, Run, Status, VolumeNumber};

use super::{
    Additional, InitiatorPort, NexusId, PathState, PortGroup, RelativePort, Request, Response, ScsiStatus,
    SenseKey, Step, Target, TargetEffect, TargetIdentity, TargetPort, UnitConfig, VolumeIdentity,
};

/// A target with one volume, whose blocks are in memory, and two initiators.
struct World {
    target: Target,
    disk: Vec<u8>,
    /// Of each block, whether it occupies space.
    mapped: Vec<bool>,
    commands: Vec<Command>,
    /// The next commands fail like this.
    failure: Option<Failure>,
    stored: Option<bytes::Bytes>,
    aborted: Vec<NexusId>,
    effects: Vec<TargetEffect>,
}

const ONE: NexusId = NexusId(1);
const TWO: NexusId = NexusId(2);
const BLOCK: usize = 512;
const BLOCKS: u64 = 4096;
/// LUN 0.
const LUN: u64 = 0;

fn unit(volume: u16) -> UnitConfig {
    UnitConfig {
        volume: VolumeNumber(volume),
        size: BLOCKS * BLOCK as u64,
        block_size: BlockSize::B512,
        physical_block_size: BlockSize::B512,
        identity: VolumeIdentity(0x0123_4567_89ab_cdef_0011_2233_4455_6677 + u128::from(volume)),
        thin: true,
        read_only: false,
    }
}

fn identity() -> TargetIdentity {
    let port = |node| TargetPort { group: PortGroup(node), relative: RelativePort(node), portal_group: 1 };
    TargetIdentity {
        iqn: "iqn.2026-11.io.evenkeel:db".to_owned(),
        port: port(1),
        peers: vec![port(2), port(3)],
    }
}

fn initiator(name: &str) -> InitiatorPort {
    InitiatorPort { iqn: format!("iqn.1993-08.org.debian:01:{name}"), isid: [0, 2, 0x3d, 0, 0, 1] }
}

impl World {
    /// Both initiators know everything there is to know.
    fn new() -> Self {
        Self::with(unit(0))
    }

    fn with(config: UnitConfig) -> Self {
        let mut world = Self::fresh(config);
        while world.attention(ONE).or(world.attention(TWO)).is_some() {}
        world
    }

    fn fresh(config: UnitConfig) -> Self {
        let mut world = Self {
            disk: vec![0; config.size as usize],
            mapped: vec![false; config.size as usize / BLOCK],
            target: Target::new(identity(), vec![config]),
            commands: Vec::new(),
            failure: None,
            stored: None,
            aborted: Vec::new(),
            effects: Vec::new(),
        };
        world.target.set_path(PathState::ActiveOptimized, &mut world.effects);
        world.target.open_nexus(ONE, &initiator("one"));
        world.target.open_nexus(TWO, &initiator("two"));
        world
    }

    /// Takes the unit attention that TEST UNIT READY reports.
    fn attention(&mut self, nexus: NexusId) -> Option<Additional> {
        let sense = self.send(nexus, &[0; 6], &[]).sense?;
        assert_eq!(sense.key, SenseKey::UnitAttention);
        Some(sense.additional)
    }

    fn run(&mut self, cdb: &[u8]) -> Response {
        self.send(ONE, cdb, &[])
    }

    fn write(&mut self, cdb: &[u8], data: &[u8]) -> Response {
        self.send(ONE, cdb, data)
    }

    /// Sends a command whose data is as long as announced.
    fn send(&mut self, nexus: NexusId, cdb: &[u8], data: &[u8]) -> Response {
        self.send_to(nexus, LUN, cdb, data)
    }

    fn send_to(&mut self, nexus: NexusId, lun: u64, cdb: &[u8], data: &[u8]) -> Response {
        let transfer = self.target.transfer(lun, cdb);
        let sent = data.len().min(transfer.data_out as usize);
        // Two parts, as two PDUs would bring them.
        let mut data_out = Payload::new();
        data_out.push(data[..sent / 2].to_vec().into());
        data_out.push(data[sent / 2..sent].to_vec().into());
        let request = Request { nexus, lun, cdb, data_out, data_out_expected: data.len() as u32 };
        let mut step = self.target.start(request, &mut self.effects);
        loop {
            let (status, then) = match step {
                Step::Done(response) => {
                    assert!(response.data_in.len() <= transfer.data_in as usize || lun != LUN);
                    assert_eq!(response.sense.is_some(), response.status == ScsiStatus::CheckCondition);
                    return response;
                }
                Step::Submit { command, then, .. } => (self.execute(command), then),
                Step::Persist { registry, then, .. } => {
                    self.stored = Some(registry);
                    (Status::Done, then)
                }
                Step::Abort { nexuses, then, .. } => {
                    self.aborted.extend(nexuses);
                    (Status::Done, then)
                }
            };
            step = self.target.resume(then, status);
        }
    }

    fn execute(&mut self, command: Command) -> Status {
        self.commands.push(command.clone());
        if let Some(failure) = self.failure {
            return Status::Failed(failure);
        }
        let disk_len = self.disk.len() as u64;
        assert!(command.extent().is_none_or(|extent| extent.end() <= disk_len), "{command:?}");
        match command {
            Command::Read { extent } => Status::Data(self.disk[range(extent)].to_vec().into()),
            Command::Write { extent, data, .. } => self.store(extent, &data.to_bytes()),
            Command::Flush => Status::Done,
            Command::Discard { extent } => self.zero(extent, true),
            Command::WriteZeroes { extent, unmap, .. } => self.zero(extent, unmap),
            Command::CompareAndWrite { extent, compare, write, .. } => {
                let stands = &self.disk[range(extent)];
                match stands.iter().zip(&compare).position(|(a, b)| a != b) {
                    Some(offset) => Status::Miscompare { offset: offset as u64 },
                    None => self.store(extent, &write),
                }
            }
            Command::OrWrite { extent, data, .. } => {
                let or: Vec<u8> = self.disk[range(extent)].iter().zip(&data).map(|(a, b)| a | b).collect();
                self.store(extent, &or)
            }
            Command::Allocation { extent } => Status::Allocation(self.runs(extent)),
        }
    }

    fn store(&mut self, extent: Extent, data: &[u8]) -> Status {
        assert_eq!(data.len() as u64, extent.len);
        self.disk[range(extent)].copy_from_slice(data);
        self.mapped[blocks(extent)].fill(true);
        Status::Done
    }

    fn zero(&mut self, extent: Extent, unmap: bool) -> Status {
        self.disk[range(extent)].fill(0);
        self.mapped[blocks(extent)].fill(!unmap);
        Status::Done
    }

    fn runs(&self, extent: Extent) -> Vec<Run> {
        let first = extent.offset as usize / BLOCK;
        self.mapped[blocks(extent)]
            .iter()
            .enumerate()
            .map(|(at, mapped)| Run {
                extent: Extent::new(((first + at) * BLOCK) as u64, BLOCK as u64),
                mapped: *mapped,
            })
            .collect()
    }
}

fn range(extent: Extent) -> std::ops::Range<usize> {
    extent.offset as usize..extent.end() as usize
}

fn blocks(extent: Extent) -> std::ops::Range<usize> {
    extent.offset as usize / BLOCK..(extent.end() as usize).div_ceil(BLOCK)
}

#[track_caller]
fn good(response: &Response) -> Vec<u8> {
    assert_eq!(response.status, ScsiStatus::Good, "{:?}", response.sense);
    response.data_in.to_bytes().to_vec()
}

#[track_caller]
fn check(response: &Response, key: SenseKey, additional: Additional) {
    let sense = response.sense.unwrap_or_else(|| panic!("{:?} instead of {additional:?}", response.status));
    assert_eq!((sense.key, sense.additional), (key, additional));
}

#[track_caller]
fn illegal(response: &Response, additional: Additional) {
    check(response, SenseKey::IllegalRequest, additional);
}

#[track_caller]
fn conflict(response: &Response) {
    assert_eq!(response.status, ScsiStatus::ReservationConflict, "{:?}", response.sense);
}

/// A CDB on blocks in the form that `code` has.
fn cdb(code: u8, flags: u8, lba: u64, count: u32) -> Vec<u8> {
    let mut cdb = vec![code, flags];
    match code >> 5 {
        0 => {
            cdb = vec![code];
            cdb.extend(&(lba as u32).to_be_bytes()[1..]);
            cdb.push(count as u8);
        }
        1 | 2 => {
            cdb.extend((lba as u32).to_be_bytes());
            cdb.push(0);
            cdb.extend((count as u16).to_be_bytes());
        }
        4 => {
            cdb.extend(lba.to_be_bytes());
            if code == 0x89 {
                cdb.extend([0, 0, 0, count as u8]);
            } else {
                cdb.extend(count.to_be_bytes());
            }
            cdb.push(0);
        }
        _ => {
            cdb.extend((lba as u32).to_be_bytes());
            cdb.extend(count.to_be_bytes());
            cdb.push(0);
        }
    }
    cdb.push(0);
    cdb
}
