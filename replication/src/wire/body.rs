//! Payloads with fields of their own: a node's state, runs of an allocation, words of a bitmap.
//!
//! | state | bytes | | each volume | bytes | |
//! |---|---|---|---|---|---|
//! | role | 1 | place in [`Role::ALL`] | number | 2 | |
//! | primary | 1 | node, 255 for none | size | 8 | in bytes |
//! | protocol | 1 | 1, 2, 3 for A, B, C | disk | 1 | place in [`DiskState::ALL`] |
//! | policies | 1 | place among all combinations of `after-sb-*pri` | | | |
//! | flags | 1 | 01 discards its data | flags | 1 | 01 fresh, 02 crashed, 04 was Primary, 08 lags, 10 consistent, 20 paused |
//! | sequence | 8 | | dirty blocks | 8 | |
//! | connected | 4 | one bit per node | current, base | 8, 8 | generations |
//! | volumes | 2 | how many | history | 1 + 8 each | how many, and the generations |

use block::{Extent, Payload, Run, VolumeNumber};
use bytes::{BufMut, BytesMut};
use nom::{
    IResult, Parser,
    combinator::{all_consuming, map, map_opt, verify},
    multi::{length_count, many0},
    number::complete::{be_u8, be_u16, be_u32, be_u64},
};

use super::{DecodeError, header::Header};
use crate::{
    AckMode, AfterSplitBrain, DiskState, Generation, Lineage, NodeId, NodeSet, NodeState, Packet, Role,
    Sequence, VolumeState,
};

pub(super) fn state(state: &NodeState) -> Payload {
    let mut body = BytesMut::with_capacity(STATE_LEN + state.volumes.len() * VOLUME_LEN);
    body.put_u8(place(Role::ALL, &state.role));
    body.put_u8(state.primary.map_or(NO_NODE, |node| node.0));
    body.put_u8(place(&MODES, &state.protocol) + 1);
    let policies = AfterSplitBrain::all().position(|policies| policies == state.after_split_brain);
    body.put_u8(place_of(policies.expect("it is one of all")));
    body.put_u8(if state.discard_my_data { FLAG_DISCARDS } else { 0 });
    body.put_u64(state.sequence.0);
    body.put_u32(state.connected.0);
    body.put_u16(u16::try_from(state.volumes.len()).expect("volumes are numbered with 16 bits"));
    for volume in &state.volumes {
        put_volume(&mut body, volume);
    }
    body.freeze().into()
}

fn put_volume(body: &mut BytesMut, volume: &VolumeState) {
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    body.put_u16(volume.volume.0);
    body.put_u64(volume.size);
    body.put_u8(place(DiskState::ALL, &volume.disk));
    body.put_u8(
        flag(volume.fresh, FLAG_FRESH)
            | flag(volume.crashed, FLAG_CRASHED)
            | flag(volume.was_primary, FLAG_WAS_PRIMARY)
            | flag(volume.lags, FLAG_LAGS)
            | flag(volume.consistent, FLAG_CONSISTENT)
            | flag(volume.paused, FLAG_PAUSED),
    );
    body.put_u64(volume.dirty_blocks);
    body.put_u64(volume.lineage.current.0);
    body.put_u64(volume.lineage.base.0);
    let history = &volume.lineage.history[..volume.lineage.history.len().min(Lineage::HISTORY_MAX)];
    body.put_u8(place_of(history.len()));
    for generation in history {
        body.put_u64(generation.0);
    }
}

pub(super) fn read_state(header: &Header, body: &[u8]) -> Result<NodeState, DecodeError> {
    whole(header, node_state, body)
}

fn node_state(input: &[u8]) -> IResult<&[u8], NodeState> {
    let (rest, (role, primary, protocol, after_split_brain, flags, sequence, connected, volumes)) = (
        map_opt(be_u8, |code| Role::ALL.get(usize::from(code)).copied()),
        verify(be_u8, |&node| node < 32 || node == NO_NODE),
        map_opt(be_u8, |code| MODES.get(usize::from(code).checked_sub(1)?).copied()),
        map_opt(be_u8, |code| AfterSplitBrain::all().nth(usize::from(code))),
        be_u8,
        be_u64,
        be_u32,
        length_count(be_u16, volume_state),
    )
        .parse(input)?;
    let state = NodeState {
        role,
        primary: (primary != NO_NODE).then_some(NodeId(primary)),
        sequence: Sequence(sequence),
        connected: NodeSet(connected),
        discard_my_data: flags & FLAG_DISCARDS != 0,
        after_split_brain,
        protocol,
        volumes,
    };
    Ok((rest, state))
}

fn volume_state(input: &[u8]) -> IResult<&[u8], VolumeState> {
    let (rest, (volume, size, disk, flags, dirty_blocks, current, base, history)) = (
        map(be_u16, VolumeNumber),
        be_u64,
        map_opt(be_u8, |code| DiskState::ALL.get(usize::from(code)).copied()),
        be_u8,
        be_u64,
        map(be_u64, Generation),
        map(be_u64, Generation),
        length_count(
            verify(be_u8, |&count| usize::from(count) <= Lineage::HISTORY_MAX),
            map(be_u64, Generation),
        ),
    )
        .parse(input)?;
    let state = VolumeState {
        volume,
        size,
        disk,
        lineage: Lineage { current, base, history },
        fresh: flags & FLAG_FRESH != 0,
        crashed: flags & FLAG_CRASHED != 0,
        was_primary: flags & FLAG_WAS_PRIMARY != 0,
        lags: flags & FLAG_LAGS != 0,
        consistent: flags & FLAG_CONSISTENT != 0,
        dirty_blocks,
        paused: flags & FLAG_PAUSED != 0,
    };
    Ok((rest, state))
}

pub(super) fn runs(runs: &[Run]) -> Payload {
    let mut body = BytesMut::with_capacity(runs.len() * RUN_LEN);
    for run in runs {
        body.put_u64(run.extent.offset);
        body.put_u64(run.extent.len);
        body.put_u8(u8::from(run.mapped));
    }
    body.freeze().into()
}

pub(super) fn read_runs(header: &Header, body: &[u8]) -> Result<Vec<Run>, DecodeError> {
    whole(header, many0(run), body)
}

fn run(input: &[u8]) -> IResult<&[u8], Run> {
    let extent = verify((be_u64, be_u64), |&(offset, len): &(u64, u64)| offset.checked_add(len).is_some());
    let mapped = map_opt(be_u8, |code| [false, true].get(usize::from(code)).copied());
    map((extent, mapped), |((offset, len), mapped)| Run { extent: Extent { offset, len }, mapped })
        .parse(input)
}

pub(super) fn words(words: &[u64]) -> Payload {
    let mut body = BytesMut::with_capacity(words.len() * 8);
    for &word in words {
        body.put_u64(word);
    }
    body.freeze().into()
}

pub(super) fn read_words(header: &Header, body: &[u8]) -> Result<Vec<u64>, DecodeError> {
    let count = body.len() / 8;
    let fits = count <= Packet::BITMAP_WORDS_MAX && header.offset.checked_add(count as u64).is_some();
    let (words, []) = body.as_chunks::<8>() else {
        return Err(mismatch(header, body));
    };
    if !fits {
        return Err(mismatch(header, body));
    }
    Ok(words.iter().map(|&word| u64::from_be_bytes(word)).collect())
}

/// Reads a body that has to be used up.
fn whole<'a, T>(
    header: &Header,
    parser: impl Parser<&'a [u8], Output = T, Error = nom::error::Error<&'a [u8]>>,
    body: &'a [u8],
) -> Result<T, DecodeError> {
    let (_, value) = all_consuming(parser).parse(body).map_err(|_| mismatch(header, body))?;
    Ok(value)
}

const fn mismatch(header: &Header, body: &[u8]) -> DecodeError {
    DecodeError::Mismatch { kind: header.kind, len: header.len, payload_len: body.len() }
}

fn place<T: PartialEq>(all: &[T], value: &T) -> u8 {
    place_of(all.iter().position(|other| other == value).expect("the list holds every value"))
}

fn place_of(place: usize) -> u8 {
    u8::try_from(place).expect("these lists are short")
}

const MODES: [AckMode; 3] = [AckMode::A, AckMode::B, AckMode::C];
const NO_NODE: u8 = 0xff;
const FLAG_DISCARDS: u8 = 0x01;
const FLAG_FRESH: u8 = 0x01;
const FLAG_CRASHED: u8 = 0x02;
const FLAG_WAS_PRIMARY: u8 = 0x04;
const FLAG_LAGS: u8 = 0x08;
const FLAG_CONSISTENT: u8 = 0x10;
const FLAG_PAUSED: u8 = 0x20;
const STATE_LEN: usize = 19;
const VOLUME_LEN: usize = 37;
const RUN_LEN: usize = 17;
