//! Commands that take more than one step: each step asks one thing of the volume, with bounded memory (SBC-3 5).

use std::vec;

use block::{BlockSize, Command, Extent, Failure, Payload, Run, Status, VolumeNumber};
use bytes::{BufMut as _, Bytes, BytesMut};

use super::copy::Copy;
use super::length::{in_memory, len32};
use super::sense::{Additional, Sense, SenseFormat, SenseKey};
use super::step::{Continuation, Step};
use super::{NexusId, Response, ScsiStatus};

/// What is left to do for a command once its last step has an outcome.
#[derive(Debug)]
pub(super) enum Work {
    /// Nothing: it was the last step.
    Finish,
    /// The bytes read go to the initiator.
    Return { len: u64 },
    /// READ with FUA, once everything before it is stable.
    ReadAfterFlush { extent: Extent },
    /// A write, once its whole blocks are written.
    Written(Rest),
    /// The block that a write ends in has been read.
    TailRead(Tail, Option<Verify>),
    /// The block that a write ends in has been written, unless it had changed.
    TailWritten(Tail, Option<Verify>),
    /// The first bytes of `rest` have been read and are compared.
    Verify(Verify),
    /// WRITE SAME.
    Fill(Fill),
    /// UNMAP: the runs that are left.
    Unmap { rest: vec::IntoIter<Extent> },
    /// GET LBA STATUS.
    LbaStatus { extent: Extent, block_size: BlockSize, allocation: u32 },
    /// PREEMPT AND ABORT, once the registry is stored.
    Abort { nexuses: Vec<NexusId> },
    /// EXTENDED COPY, which goes on with the whole target at hand.
    Copy(Box<Copy>),
}

/// What is left of a write behind its whole blocks.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) tail: Option<Tail>,
    pub(super) verify: Option<Verify>,
}

/// The start of a block, where an initiator sent no more of it: the remainder stays as it is.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) block: Extent,
    pub(super) data: Bytes,
    pub(super) fua: bool,
}

/// Blocks that are read and perhaps compared, piece by piece.
#[derive(Debug)]
pub(super) struct Verify {
    pub(super) rest: Extent,
    /// How many bytes of the data are compared already.
    pub(super) done: u64,
    pub(super) expected: Expected,
}

/// What blocks are compared with.
#[derive(Debug)]
pub(super) enum Expected {
    /// They only have to be readable.
    Anything,
    /// As many bytes as there are blocks.
    Data(Payload),
    /// One block over and over, repeated for a piece.
    Pattern(Bytes),
}

/// Blocks that are filled, piece by piece.
#[derive(Debug)]
pub(super) struct Fill {
    pub(super) rest: Extent,
    pub(super) with: With,
    pub(super) fua: bool,
}

/// What blocks are filled with.
#[derive(Debug)]
pub(super) enum With {
    /// Zeros, whose space may be given back.
    Zeros { unmap: bool },
    /// One block over and over, repeated for a piece.
    Pattern(Bytes),
}

/// Whose work it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub(super) volume: VolumeNumber,
    pub(super) format: SenseFormat,
}

impl Context {
    pub(super) fn submit(self, command: Command, work: Work) -> Step {
        Step::Submit { volume: self.volume, command, then: self.then(work) }
    }

    pub(super) const fn then(self, work: Work) -> Continuation {
        Continuation { volume: self.volume, format: self.format, work }
    }

    pub(super) fn check(self, sense: Sense) -> Step {
        Step::Done(Response::check(sense, self.format))
    }

    /// Goes on after a step.
    pub(super) fn resume(self, work: Work, status: Status) -> Step {
        match (work, status) {
            (_, Status::Failed(failure)) => Step::Done(self.failed(failure)),
            (Work::TailWritten(tail, verify), Status::Miscompare { .. }) => {
                self.written(Rest { tail: Some(tail), verify })
            }
            (_, Status::Miscompare { offset }) => self.check(miscompare(offset)),
            (Work::Finish, Status::Done) => good(),
            (Work::Return { len }, Status::Data(data)) if data.len() as u64 == len => {
                Step::Done(Response::data(data))
            }
            (Work::ReadAfterFlush { extent }, Status::Done) => self.read(extent),
            (Work::Written(rest), Status::Done) => self.written(rest),
            (Work::TailRead(tail, verify), Status::Data(data)) => self.write_tail(tail, verify, &data),
            (Work::TailWritten(_, verify), Status::Done) => self.written(Rest { tail: None, verify }),
            (Work::Verify(verify), Status::Data(data)) => self.compare(verify, &data),
            (Work::Fill(fill), Status::Done) => self.fill(fill),
            (Work::Unmap { rest }, Status::Done) => self.unmap(rest),
            (Work::LbaStatus { extent, block_size, allocation }, Status::Allocation(runs)) => {
                Step::Done(Response::data(lba_status(extent, block_size, allocation, &runs).freeze()))
            }
            (Work::Abort { nexuses }, Status::Done) => {
                Step::Abort { volume: self.volume, nexuses, then: self.then(Work::Finish) }
            }
            _ => self.check(Sense::new(SenseKey::HardwareError, Additional::INTERNAL_FAILURE)),
        }
    }

    pub(super) fn read(self, extent: Extent) -> Step {
        if extent.is_empty() {
            return Step::Done(Response::data(Payload::new()));
        }
        self.submit(Command::Read { extent }, Work::Return { len: extent.len })
    }

    pub(super) fn written(self, rest: Rest) -> Step {
        match rest {
            Rest { tail: Some(tail), verify } => {
                self.submit(Command::Read { extent: tail.block }, Work::TailRead(tail, verify))
            }
            Rest { tail: None, verify: Some(verify) } => self.verify(verify),
            Rest { tail: None, verify: None } => good(),
        }
    }

    /// Replaces the start of a block, as one step between all other commands: where the block has changed since it
    /// was read, it is read again.
    fn write_tail(self, tail: Tail, verify: Option<Verify>, stands: &Payload) -> Step {
        let compare = stands.to_bytes();
        let mut write = BytesMut::from(&compare[..]);
        let Some(start) = write.get_mut(..tail.data.len()) else {
            return self.check(Sense::new(SenseKey::HardwareError, Additional::INTERNAL_FAILURE));
        };
        start.copy_from_slice(&tail.data);
        let (extent, fua) = (tail.block, tail.fua);
        let command = Command::CompareAndWrite { extent, compare, write: write.freeze(), fua };
        self.submit(command, Work::TailWritten(tail, verify))
    }

    pub(super) fn verify(self, verify: Verify) -> Step {
        if verify.rest.is_empty() {
            return good();
        }
        let (piece, _) = split(verify.rest, PIECE_LEN);
        self.submit(Command::Read { extent: piece }, Work::Verify(verify))
    }

    fn compare(self, verify: Verify, data: &Payload) -> Step {
        let (piece, rest) = split(verify.rest, PIECE_LEN);
        if data.len() as u64 != piece.len {
            return self.check(Sense::new(SenseKey::HardwareError, Additional::INTERNAL_FAILURE));
        }
        let difference = match &verify.expected {
            Expected::Anything => None,
            Expected::Data(expected) => {
                first_difference(data, &expected.slice(in_memory(verify.done), data.len()))
            }
            Expected::Pattern(pattern) => first_difference(data, &pattern.slice(..data.len()).into()),
        };
        match difference {
            Some(offset) => self.check(miscompare(verify.done + offset as u64)),
            None => self.verify(Verify { rest, done: verify.done + piece.len, ..verify }),
        }
    }

    pub(super) fn fill(self, fill: Fill) -> Step {
        if fill.rest.is_empty() {
            return good();
        }
        let (piece_len, fua) = match fill.with {
            With::Zeros { .. } => (ZEROS_LEN, fill.fua),
            With::Pattern(_) => (PIECE_LEN, fill.fua),
        };
        let (extent, rest) = split(fill.rest, piece_len);
        let command = match &fill.with {
            With::Zeros { unmap } => Command::WriteZeroes { extent, unmap: *unmap, fua },
            With::Pattern(pattern) => {
                Command::Write { extent, data: pattern.slice(..in_memory(extent.len)).into(), fua }
            }
        };
        self.submit(command, Work::Fill(Fill { rest, ..fill }))
    }

    pub(super) fn unmap(self, mut rest: vec::IntoIter<Extent>) -> Step {
        match rest.next() {
            Some(extent) => self.submit(Command::Discard { extent }, Work::Unmap { rest }),
            None => good(),
        }
    }

    /// What an initiator is told of a failure, so that it fails over where another path may do better.
    pub(super) fn failed(self, failure: Failure) -> Response {
        let sense = match failure {
            Failure::ReadError => Sense::new(SenseKey::MediumError, Additional::READ_ERROR),
            Failure::WriteError => Sense::new(SenseKey::MediumError, Additional::WRITE_ERROR),
            Failure::NoSpace => Sense::new(SenseKey::DataProtect, Additional::NO_SPACE),
            Failure::Standby => Sense::not_ready(Additional::STANDBY),
            Failure::NoData => Sense::not_ready(Additional::UNAVAILABLE),
            // The connection ends soon. Until then the initiator tries again rather than give the error to its user.
            Failure::Stopping => return Response::status(ScsiStatus::Busy),
            Failure::Aborted => return Response::status(ScsiStatus::TaskAborted),
        };
        Response::check(sense, self.format)
    }
}

/// The end of a command that went well and returns nothing.
pub(super) fn good() -> Step {
    Step::Done(Response::status(ScsiStatus::Good))
}

const fn miscompare(offset: u64) -> Sense {
    Sense::new(SenseKey::Miscompare, Additional::MISCOMPARE).with_information(offset)
}

/// The first `len` bytes of an extent, and the others.
pub(super) fn split(extent: Extent, len: u64) -> (Extent, Extent) {
    let len = extent.len.min(len);
    (Extent::new(extent.offset, len), Extent::new(extent.offset + len, extent.len - len))
}

/// One block repeated as often as a piece of `total_len` bytes needs.
pub(super) fn pattern(block: &[u8], total_len: u64) -> Bytes {
    let len = in_memory(total_len.min(PIECE_LEN));
    block.repeat(len / block.len().max(1)).into()
}

/// The first byte at which two payloads of one length differ.
fn first_difference(one: &Payload, other: &Payload) -> Option<usize> {
    let (mut ones, mut others) = (one.parts().iter(), other.parts().iter());
    let (mut a, mut b): (&[u8], &[u8]) = (&[], &[]);
    let mut done = 0;
    loop {
        if a.is_empty() {
            a = ones.next()?;
        }
        if b.is_empty() {
            b = others.next()?;
        }
        let len = a.len().min(b.len());
        if a[..len] != b[..len] {
            return a.iter().zip(b).position(|(a, b)| a != b).map(|at| done + at);
        }
        (a, b, done) = (&a[len..], &b[len..], done + len);
    }
}

/// GET LBA STATUS parameter data (SBC-3 5.4.2). A block is deallocated where no byte of it occupies space.
fn lba_status(extent: Extent, block_size: BlockSize, allocation: u32, runs: &[Run]) -> BytesMut {
    let descriptors_max = (allocation.saturating_sub(8) / 16).clamp(1, LBA_STATUS_DESCRIPTORS_MAX) as usize;
    let mut told: Vec<(u64, u64, bool)> = Vec::new();
    let shift = block_size.shift();
    let mut at = extent.offset >> shift;
    for run in runs {
        let end = run.extent.end().min(extent.end());
        let end = if run.mapped { end.div_ceil(block_size.bytes().into()) } else { end >> shift };
        if end <= at {
            continue;
        }
        let full = told.len() == descriptors_max;
        match told.last_mut() {
            Some((_, blocks, mapped)) if *mapped == run.mapped => *blocks += end - at,
            _ if full => break,
            _ => told.push((at, end - at, run.mapped)),
        }
        at = end;
    }
    if told.is_empty() {
        told.push((at, 1, true));
    }
    let mut data = BytesMut::with_capacity(8 + 16 * told.len());
    data.put_u32(len32(4 + 16 * told.len()));
    data.put_u32(0);
    for (lba, blocks, mapped) in told {
        data.put_u64(lba);
        data.put_u32(u32::try_from(blocks).unwrap_or(u32::MAX));
        data.put_slice(&[if mapped { MAPPED } else { DEALLOCATED }, 0, 0, 0]);
    }
    data.truncate(allocation as usize);
    data
}

/// How much data one step of a VERIFY or WRITE SAME moves, in bytes.
pub(super) const PIECE_LEN: u64 = 1 << 20;
/// How many zeros one step of a WRITE SAME writes, in bytes.
const ZEROS_LEN: u64 = 64 << 20;
/// How far one GET LBA STATUS looks, in bytes.
pub(super) const LBA_STATUS_LEN: u64 = 1 << 30;
const LBA_STATUS_DESCRIPTORS_MAX: u32 = 4096;
const MAPPED: u8 = 0;
const DEALLOCATED: u8 = 1;
