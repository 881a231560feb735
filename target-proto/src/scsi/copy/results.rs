//! What is told of copies: RECEIVE COPY RESULTS of the LID1 kind (SPC-4 6.18 to 6.21), and the third-party copy page
//! (SPC-4 7.8.17).

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use block::VolumeNumber;
use bytes::{BufMut as _, BytesMut};

use super::super::length::{len8, len16, len32};
use super::super::sense::{Additional, Sense};
use super::super::{NexusId, Response, ScsiStatus};
use super::list::{BLOCK_TO_BLOCK, IDENTIFICATION};
use super::{COPIES_MAX, CSCDS_MAX, DESCRIPTORS_LEN_MAX, SEGMENTS_MAX};

/// What an initiator wants to know of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum CopySubject {
    /// How far one is.
    Status { list: u8 },
    /// What is supported of them.
    Parameters,
    /// Why one failed.
    Failure { list: u8, allocation: u32 },
}

/// The copies of a target, those that run and the last ones that ended.
#[derive(Debug, Default)]
pub(in super::super) struct Copies {
    running: Vec<Weak<Token>>,
    held: VecDeque<Held>,
}

/// A copy runs as long as its token lives: one that is aborted is never resumed, and drops it.
#[derive(Debug)]
pub(super) struct Token;

/// What names a copy: who sent it to which logical unit, with which LIST IDENTIFIER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyId {
    pub(super) nexus: NexusId,
    pub(super) volume: VolumeNumber,
    pub(super) list: u8,
}

/// A copy that an initiator can ask about.
#[derive(Debug)]
struct Held {
    id: CopyId,
    running: Weak<Token>,
    segments: u16,
    bytes: u64,
    /// How it ended. One that does not run and did not end was aborted.
    outcome: Option<Outcome>,
}

#[derive(Debug)]
struct Outcome {
    status: ScsiStatus,
    /// The sense data, until it is fetched as the details of the failed segment.
    sense: Vec<u8>,
}

impl Copies {
    /// Takes a copy in, if it may run now.
    ///
    /// # Errors
    /// When as many as we announce run already, or one of this name does.
    pub(super) fn begin(&mut self, id: Option<CopyId>) -> Result<Arc<Token>, Sense> {
        self.running.retain(|running| running.strong_count() > 0);
        if self.running.len() >= usize::from(COPIES_MAX) {
            return Err(Sense::illegal(Additional::INSUFFICIENT_RESOURCES));
        }
        let token = Arc::new(Token);
        let running = Arc::downgrade(&token);
        if let Some(id) = id {
            if self.find(id).is_some_and(Held::runs) {
                return Err(Sense::illegal(Additional::OPERATION_IN_PROGRESS));
            }
            self.held.retain(|held| held.id != id);
            if self.held.len() >= HELD_MAX
                && let Some(oldest) = self.held.iter().position(|held| !held.runs())
            {
                self.held.remove(oldest);
            }
            let running = running.clone();
            self.held.push_back(Held { id, running, segments: 0, bytes: 0, outcome: None });
        }
        self.running.push(running);
        Ok(token)
    }

    /// Notes how far a copy is.
    pub(super) fn advance(&mut self, id: CopyId, segments: u16, written: u64) {
        if let Some(held) = self.find_mut(id) {
            held.segments = segments;
            held.bytes += written;
        }
    }

    /// Notes how a copy ended.
    pub(super) fn end(&mut self, id: CopyId, response: &Response) {
        if let Some(held) = self.find_mut(id) {
            let sense = response.sense_bytes().to_vec();
            held.outcome = Some(Outcome { status: response.status, sense });
        }
    }

    /// Forgets the copies of a nexus that is gone.
    pub(in super::super) fn forget_nexus(&mut self, nexus: NexusId) {
        self.held.retain(|held| held.id.nexus != nexus);
    }

    /// Forgets the copies of a volume that is reset or gone.
    pub(in super::super) fn forget_volume(&mut self, volume: VolumeNumber) {
        self.held.retain(|held| held.id.volume != volume);
    }

    /// RECEIVE COPY STATUS(LID1), SPC-4 6.21.
    ///
    /// # Errors
    /// When there is no such copy.
    pub(super) fn status(&self, id: CopyId) -> Result<BytesMut, Sense> {
        let held = self.find(id).ok_or(Sense::cdb_byte(LIST_ID_AT))?;
        let status = match &held.outcome {
            Some(Outcome { status: ScsiStatus::Good, .. }) => COMPLETED,
            None if held.runs() => IN_PROGRESS,
            _ => COMPLETED_WITH_ERRORS,
        };
        let (unit, count) = match u32::try_from(held.bytes) {
            Ok(bytes) => (UNIT_BYTES, bytes),
            Err(_) => (UNIT_KIBIBYTES, u32::try_from(held.bytes >> 10).unwrap_or(u32::MAX)),
        };
        let mut data = BytesMut::with_capacity(12);
        data.put_u32(8);
        data.put_u8(status);
        data.put_u16(held.segments);
        data.put_u8(unit);
        data.put_u32(count);
        Ok(data)
    }

    /// RECEIVE COPY FAILURE DETAILS(LID1), SPC-4 6.19. They are gone once `allocation` bytes hold all of them, or
    /// none are wanted.
    pub(super) fn failure(&mut self, id: CopyId, allocation: u32) -> BytesMut {
        let outcome = self.find_mut(id).and_then(|held| held.outcome.as_mut());
        let mut data = BytesMut::new();
        let Some(outcome) = outcome.filter(|outcome| !outcome.sense.is_empty()) else {
            data.put_u32(0);
            return data;
        };
        data.put_u32(len32(FAILURE_LEN - 4 + outcome.sense.len()));
        data.put_bytes(0, 52);
        data.put_slice(&[outcome.status as u8, 0]);
        data.put_u16(len16(outcome.sense.len()));
        data.put_slice(&outcome.sense);
        if allocation == 0 || allocation as usize >= data.len() {
            outcome.sense.clear();
        }
        data
    }

    fn find(&self, id: CopyId) -> Option<&Held> {
        self.held.iter().find(|held| held.id == id)
    }

    fn find_mut(&mut self, id: CopyId) -> Option<&mut Held> {
        self.held.iter_mut().find(|held| held.id == id)
    }
}

impl Held {
    fn runs(&self) -> bool {
        self.running.strong_count() > 0
    }
}

/// RECEIVE COPY OPERATING PARAMETERS, SPC-4 6.20. `granularity` is the logarithm of the block size in bytes.
pub(super) fn operating_parameters(granularity: u8) -> BytesMut {
    let mut data = BytesMut::with_capacity(OPERATING_LEN);
    data.put_u32(len32(OPERATING_LEN - 4));
    data.put_slice(&[SNLID, 0, 0, 0]);
    data.put_u16(CSCDS_MAX);
    data.put_u16(SEGMENTS_MAX);
    data.put_u32(len32(DESCRIPTORS_LEN_MAX));
    // A segment is as long as its field can say; there is no inline data, no held data, no stream.
    data.put_bytes(0, 16 + 2);
    data.put_u16(COPIES_MAX.into());
    data.put_slice(&[COPIES_MAX, granularity, 0, 0, 0, 0, 0]);
    data.put_u8(len8(TYPES.len()));
    data.put_slice(&TYPES);
    data
}

/// The third-party copy page without its header.
pub(in super::super) fn put_page(page: &mut BytesMut, granularity: u8) {
    put_descriptor(page, 0x0001, &[&[len8(COMMANDS.len())], &COMMANDS[..]].concat());
    let mut parameters = BytesMut::with_capacity(28);
    parameters.put_u32(0);
    parameters.put_u16(CSCDS_MAX);
    parameters.put_u16(SEGMENTS_MAX);
    parameters.put_u32(len32(DESCRIPTORS_LEN_MAX));
    parameters.put_bytes(0, 28 - parameters.len());
    put_descriptor(page, 0x0004, &parameters);
    put_descriptor(page, 0x0008, &[&[len8(TYPES.len())], &TYPES[..]].concat());
    // No CSCD descriptor identifiers beside the places in the list.
    put_descriptor(page, 0x000c, &[0; 2]);
    let mut general = BytesMut::with_capacity(32);
    general.put_u32(COPIES_MAX.into());
    general.put_u32(COPIES_MAX.into());
    general.put_u32(0);
    general.put_u8(granularity);
    general.put_bytes(0, 32 - general.len());
    put_descriptor(page, 0x8001, &general);
}

fn put_descriptor(page: &mut BytesMut, kind: u16, content: &[u8]) {
    let len = content.len().next_multiple_of(4);
    page.put_u16(kind);
    page.put_u16(len16(len));
    page.put_slice(content);
    page.put_bytes(0, len - content.len());
}

/// Each operation code with how many service actions, and which.
const COMMANDS: [u8; 8] = [0x83, 1, 0x00, 0x84, 3, 0x00, 0x03, 0x04];
/// The descriptor types that we know, in ascending order.
const TYPES: [u8; 2] = [BLOCK_TO_BLOCK, IDENTIFICATION];
/// How many copies that ended are remembered, with those that run.
const HELD_MAX: usize = 64;
const _: () = assert!(HELD_MAX > COPIES_MAX as usize);
/// Where the CDB names a list.
const LIST_ID_AT: u16 = 2;
const OPERATING_LEN: usize = 44 + TYPES.len();
const FAILURE_LEN: usize = 60;
const IN_PROGRESS: u8 = 0;
const COMPLETED: u8 = 1;
const COMPLETED_WITH_ERRORS: u8 = 2;
const UNIT_BYTES: u8 = 0;
const UNIT_KIBIBYTES: u8 = 1;
/// A list needs no identifier.
const SNLID: u8 = 0x01;
