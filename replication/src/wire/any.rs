//! Every frame that there is, for the tests.

use block::{Extent, Payload, Run, VolumeNumber};
use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample::select};

use super::{CloseReason, Frame};
use crate::{
    AckMode, AfterSplitBrain, DiskState, Farewell, Generation, Lineage, NodeId, NodeSet, NodeState, Packet,
    Role, Sequence, VolumeState,
};

fn bytes(len: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), len).prop_map(Bytes::from)
}

fn extent() -> impl Strategy<Value = Extent> {
    (any::<u64>(), 1..=u64::MAX)
        .prop_map(|(offset, len)| Extent { offset, len: len.min((u64::MAX - offset).max(1)) })
        .prop_filter("inside 64 bits", |extent| extent.offset.checked_add(extent.len).is_some())
}

/// An extent of so many bytes as a write carries, and these bytes in up to three parts.
fn data() -> impl Strategy<Value = (Extent, Payload)> {
    (0..u64::MAX / 2, bytes(1..600), bytes(0..600), bytes(0..600)).prop_map(|(offset, a, b, c)| {
        let mut data = Payload::new();
        for part in [a, b, c] {
            data.push(part);
        }
        (Extent { offset, len: data.len() as u64 }, data)
    })
}

fn volume_state() -> impl Strategy<Value = VolumeState> {
    let numbers = (any::<u16>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let history = vec(any::<u64>().prop_map(Generation), 0..=Lineage::HISTORY_MAX);
    let flags = any::<(bool, bool, bool, bool, bool, bool)>();
    (numbers, select(DiskState::ALL), history, flags).prop_map(|(numbers, disk, history, flags)| {
        let (volume, size, current, base, dirty_blocks) = numbers;
        let (fresh, crashed, was_primary, lags, consistent, paused) = flags;
        let lineage = Lineage { current: Generation(current), base: Generation(base), history };
        let volume = VolumeNumber(volume);
        VolumeState {
            volume,
            size,
            disk,
            lineage,
            fresh,
            crashed,
            was_primary,
            lags,
            consistent,
            dirty_blocks,
            paused,
        }
    })
}

fn state() -> impl Strategy<Value = Packet> {
    let primary = prop::option::of((0..32_u8).prop_map(NodeId));
    let policies = select(AfterSplitBrain::all().collect::<Vec<_>>());
    (select(Role::ALL), primary, any::<(u64, u32, bool)>(), policies, mode(), vec(volume_state(), 0..5))
        .prop_map(
            |(
                role,
                primary,
                (sequence, connected, discard_my_data),
                after_split_brain,
                protocol,
                volumes,
            )| {
                let (sequence, connected) = (Sequence(sequence), NodeSet(connected));
                let state = NodeState {
                    role,
                    primary,
                    sequence,
                    connected,
                    discard_my_data,
                    after_split_brain,
                    protocol,
                    volumes,
                };
                Packet::State(Box::new(state))
            },
        )
}

fn mode() -> impl Strategy<Value = AckMode> {
    select(&[AckMode::A, AckMode::B, AckMode::C][..])
}

fn change() -> impl Strategy<Value = Packet> {
    let fields = (any::<u16>(), any::<u64>(), any::<(bool, bool)>(), mode(), any::<u32>());
    (fields, data(), any::<bool>()).prop_map(|(fields, (extent, data), zeroes)| {
        let (volume, sequence, (fua, unmap), mode, missing) = fields;
        let (volume, sequence, missing) = (VolumeNumber(volume), Sequence(sequence), NodeSet(missing));
        if zeroes {
            return Packet::WriteZeroes { volume, sequence, extent, unmap, fua, mode, missing };
        }
        Packet::Write { volume, sequence, extent, data, fua, mode, missing }
    })
}

fn ranged() -> impl Strategy<Value = Packet> {
    use Packet as P;
    let runs = vec((extent(), any::<bool>()).prop_map(|(extent, mapped)| Run { extent, mapped }), 0..40);
    let words = vec(any::<u64>(), 0..200);
    let fields = (any::<u16>().prop_map(VolumeNumber), any::<u64>(), any::<u32>(), any::<bool>());
    (0..11, fields, extent(), data(), runs, words).prop_map(
        |(kind, (volume, name, word, flag), extent, (sync, data), runs, words)| match kind {
            0 => P::Read { volume, read: name, extent },
            1 => P::ReadData { read: name, data },
            2 => P::Allocation { volume, read: name, extent },
            3 => P::AllocationRuns { read: name, runs },
            4 => P::Bitmap { volume, first: u64::from(word), words, last: flag },
            5 => P::SyncRequest { volume, extent, after: Sequence(name) },
            6 => P::SyncData { volume, extent: sync, data, sequence: Sequence(name) },
            7 => P::SyncZeroes { volume, extent, sequence: Sequence(name) },
            8 => P::SyncFailed { volume, extent },
            9 => P::NewGeneration {
                volume,
                sequence: Sequence(name),
                current: Generation(extent.len),
                missing: NodeSet(word),
            },
            _ => P::SyncDone { volume, extent },
        },
    )
}

fn plain() -> impl Strategy<Value = Packet> {
    use Packet as P;
    let farewell = select(&[Farewell::Leaving, Farewell::Diverged, Farewell::Unrelated, Farewell::Retry][..]);
    (0..15, any::<u64>(), any::<u64>(), any::<bool>(), mode(), farewell).prop_map(
        |(kind, name, second, flag, mode, farewell)| match kind {
            0 => P::Goodbye { farewell },
            1 => P::Flush { sequence: Sequence(name) },
            2 => P::Received { sequence: Sequence(name) },
            3 => P::Written { sequence: Sequence(name) },
            4 => P::WriteFailed { sequence: Sequence(name) },
            5 => P::Everywhere { sequence: Sequence(name) },
            6 => P::ReadFailed { read: name },
            7 => P::Promote { request: name, force: flag },
            8 => P::PromoteAnswer { request: name, granted: flag, sequence: Sequence(second) },
            9 => P::Protocol { mode },
            10 => P::Invalidate { volume: VolumeNumber(7), request: name },
            13 => P::Lead { volume: VolumeNumber(7), request: name },
            11 => P::Declare { volume: VolumeNumber(7), request: name, current: Generation(second) },
            12 => P::Answer { request: name, granted: flag },
            _ => P::ProtocolKnown { mode },
        },
    )
}

/// Every frame that a node can send.
pub(super) fn frame() -> impl Strategy<Value = Frame> {
    let link =
        (0..5, any::<u64>(), select(&CloseReason::ALL[..])).prop_map(|(kind, number, reason)| match kind {
            0 => Frame::Ready,
            1 => Frame::Open,
            2 => Frame::Ping(number),
            3 => Frame::Pong(number),
            _ => Frame::Close(reason),
        });
    prop_oneof![state(), change(), ranged(), plain()].prop_map(Frame::Packet).boxed().prop_union(link.boxed())
}
