//! The first step of a command on blocks (SBC-3 5), once nothing stands in its way and its data is here.

use block::{Command, Extent, Payload};
use bytes::Buf as _;

use super::Step;
use super::execute::parameter_list;
use super::length::{in_memory, len16};
use super::medium::{Against, Medium};
use super::sense::{Additional, Sense};
use super::unit::{UNMAP_DESCRIPTORS_MAX, Unit};
use super::work::{Context, Expected, Fill, LBA_STATUS_LEN, Rest, Tail, Verify, With, Work, good, pattern};

/// Starts a command. `expected` is how many bytes the initiator announced.
pub(super) fn start(unit: &Unit, medium: Medium, data: Payload, expected: u32) -> Result<Step, Sense> {
    let context = Context { volume: unit.volume(), format: unit.sense_format() };
    let stable = |fua| fua || !unit.mode.write_cache;
    Ok(match medium {
        Medium::Read { extent, fua: true } if !extent.is_empty() => {
            context.submit(Command::Flush, Work::ReadAfterFlush { extent })
        }
        Medium::Read { extent, .. } => context.read(extent),
        Medium::Write { extent, fua } => write(unit, extent, data, stable(fua), None),
        Medium::WriteAndVerify { extent, compare } => write(unit, extent, data, true, Some(compare)),
        Medium::OrWrite { extent, fua } => or(unit, extent, data, stable(fua)),
        Medium::Verify { extent, against } => match verify(unit, extent, against, data, expected)? {
            Some(verify) => context.verify(verify),
            None => good(),
        },
        Medium::CompareAndWrite { extent, fua } => {
            let len = in_memory(extent.len);
            if data.len() != 2 * len || in_memory(expected.into()) != 2 * len {
                return Err(Sense::cdb_byte(COMPARE_AND_WRITE_COUNT_AT));
            }
            if extent.is_empty() {
                return Ok(good());
            }
            let (compare, write) = (data.slice(0, len).to_bytes(), data.slice(len, len).to_bytes());
            let command = Command::CompareAndWrite { extent, compare, write, fua: stable(fua) };
            context.submit(command, Work::Finish)
        }
        Medium::WriteSame { extent, unmap, data: comes } => {
            let block = if comes { one_block(unit, &data, expected)? } else { Payload::new() };
            let zeros = block.parts().iter().flatten().all(|byte| *byte == 0);
            let with = if zeros {
                With::Zeros { unmap }
            } else {
                With::Pattern(pattern(&block.to_bytes(), extent.len))
            };
            context.fill(Fill { rest: extent, with, fua: stable(false) })
        }
        Medium::Unmap { list_len } => {
            context.unmap(unmap_list(unit, &parameter_list(&data, list_len)?)?.into_iter())
        }
        Medium::Flush => context.submit(Command::Flush, Work::Finish),
        Medium::LbaStatus { from, allocation } => {
            let extent = Extent::new(from, unit.config.size.saturating_sub(from).min(LBA_STATUS_LEN));
            let work = Work::LbaStatus { extent, block_size: unit.block_size(), allocation };
            context.submit(Command::Allocation { extent }, work)
        }
    })
}

/// WRITE of the data that came, which may be less than the CDB says: then nothing behind it is touched. `compare` is
/// there for WRITE AND VERIFY.
fn write(unit: &Unit, extent: Extent, data: Payload, fua: bool, compare: Option<bool>) -> Step {
    let context = Context { volume: unit.volume(), format: unit.sense_format() };
    let (extent, data, tail) = received(unit, extent, data);
    let verify = compare.map(|compare| {
        let expected = if compare { Expected::Data(data.clone()) } else { Expected::Anything };
        Verify { rest: extent, done: 0, expected }
    });
    let tail = tail.map(|(block, data)| Tail { block, data: data.to_bytes(), fua });
    let last =
        if tail.is_none() && verify.is_none() { Work::Finish } else { Work::Written(Rest { tail, verify }) };
    if extent.is_empty() {
        return context.resume(last, block::Status::Done);
    }
    context.submit(Command::Write { extent, data, fua }, last)
}

/// ORWRITE of the data that came. Bits that did not come are not set.
fn or(unit: &Unit, extent: Extent, data: Payload, fua: bool) -> Step {
    let context = Context { volume: unit.volume(), format: unit.sense_format() };
    let (whole, mut data, tail) = received(unit, extent, data);
    let mut extent = whole;
    if let Some((block, part)) = tail {
        extent.len += block.len;
        data.push(part.to_bytes());
        data.push(vec![0; in_memory(block.len) - part.len()].into());
    }
    if extent.is_empty() {
        return good();
    }
    context.submit(Command::OrWrite { extent, data: data.to_bytes(), fua }, Work::Finish)
}

/// What a VERIFY has to look at, where it is anything.
fn verify(
    unit: &Unit,
    extent: Extent,
    against: Against,
    data: Payload,
    announced: u32,
) -> Result<Option<Verify>, Sense> {
    let (rest, expected) = match against {
        Against::Nothing => (extent, Expected::Anything),
        Against::OneBlock if extent.is_empty() => return Ok(None),
        Against::OneBlock => {
            let block = one_block(unit, &data, announced)?.to_bytes();
            (extent, Expected::Pattern(pattern(&block, extent.len)))
        }
        Against::Data => {
            let (extent, data, tail) = received(unit, extent, data);
            if tail.is_some() {
                return Err(WRONG_LENGTH);
            }
            (extent, Expected::Data(data))
        }
    };
    Ok(Some(Verify { rest, done: 0, expected }))
}

/// The whole blocks that data came for, and the block that it ends in, with what came of that.
fn received(unit: &Unit, extent: Extent, data: Payload) -> (Extent, Payload, Option<(Extent, Payload)>) {
    let block_len = u64::from(unit.block_len());
    let sent = (data.len() as u64).min(extent.len);
    let part = sent % block_len;
    let whole = sent - part;
    let tail = (part != 0).then(|| {
        let block = Extent::new(extent.offset + whole, block_len);
        (block, data.slice(in_memory(whole), in_memory(part)))
    });
    let len = in_memory(whole);
    let data = if data.len() == len { data } else { data.slice(0, len) };
    (Extent::new(extent.offset, whole), data, tail)
}

/// The one block of data that has to come with a WRITE SAME or VERIFY.
fn one_block(unit: &Unit, data: &Payload, expected: u32) -> Result<Payload, Sense> {
    if data.len() != unit.block_len() as usize || expected != unit.block_len() {
        return Err(WRONG_LENGTH);
    }
    Ok(data.clone())
}

/// The parameter list of UNMAP (SBC-3 5.26.2). All of it is right, or nothing is unmapped.
fn unmap_list(unit: &Unit, list: &[u8]) -> Result<Vec<Extent>, Sense> {
    let mut rest = list;
    if rest.is_empty() {
        return Ok(Vec::new());
    }
    if rest.len() < UNMAP_HEADER_LEN {
        return Err(LIST_LENGTH);
    }
    let (data_len, descriptors_len) = (usize::from(rest.get_u16()), usize::from(rest.get_u16()));
    rest.advance(UNMAP_HEADER_LEN - 4);
    if descriptors_len > rest.len() || data_len + 2 > list.len() {
        return Err(LIST_LENGTH);
    }
    let descriptors = rest[..descriptors_len].chunks_exact(UNMAP_DESCRIPTOR_LEN);
    if descriptors.len() > UNMAP_DESCRIPTORS_MAX {
        return Err(Sense::parameter_byte(2));
    }
    let (mut extents, mut total) = (Vec::with_capacity(descriptors.len()), 0_u64);
    for (at, mut descriptor) in descriptors.enumerate() {
        let (lba, count) = (descriptor.get_u64(), u64::from(descriptor.get_u32()));
        let extent = unit.extent(lba, count)?;
        total += count;
        if total > unit.unmap_max().into() {
            let count_at = UNMAP_HEADER_LEN + at * UNMAP_DESCRIPTOR_LEN + 8;
            return Err(Sense::parameter_byte(len16(count_at)));
        }
        if !extent.is_empty() {
            extents.push(extent);
        }
    }
    Ok(extents)
}

const WRONG_LENGTH: Sense = Sense::illegal(Additional::INVALID_INFORMATION_UNIT_FIELD);
const LIST_LENGTH: Sense = Sense::illegal(Additional::PARAMETER_LIST_LENGTH);
/// Where COMPARE AND WRITE says of how many blocks it brings the data twice.
const COMPARE_AND_WRITE_COUNT_AT: u16 = 13;
const UNMAP_HEADER_LEN: usize = 8;
const UNMAP_DESCRIPTOR_LEN: usize = 16;
