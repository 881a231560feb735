//! Frames on their way out.

use std::{collections::VecDeque, io::IoSlice};

use block::Payload;
use bytes::{Buf, BytesMut};
use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

use super::{Frame, HEADER_LEN, PAYLOAD_MAX};

/// Frames on their way out: headers in one buffer, payloads shared. A gathered write takes bytes from the front,
/// through [`Buf`].
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// The headers of the frames in `queue`, less what was taken of the first.
    headers: BytesMut,
    queue: VecDeque<Queued>,
    /// Bytes of the first frame that were taken already.
    front_taken: usize,
    len: usize,
    packets_taken: u64,
}

#[derive(Clone, Debug)]
struct Queued {
    payload: Payload,
    packet: bool,
}

impl Output {
    /// Appends a frame.
    ///
    /// # Panics
    /// When its payload is longer than [`PAYLOAD_MAX`]: whoever makes packets cuts them.
    pub fn push(&mut self, frame: Frame) {
        let packet = matches!(frame, Frame::Packet(_));
        let (mut header, payload) = frame.into_parts();
        assert!(payload.len() <= PAYLOAD_MAX, "a packet of {} bytes", payload.len());
        header.payload_len = u32::try_from(payload.len()).expect("just compared");
        header.payload_check = check(&payload);
        header.put(&mut self.headers);
        self.len += HEADER_LEN + payload.len();
        self.queue.push_back(Queued { payload, packet });
    }

    /// How many bytes wait.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many packets were taken whole since the start of the connection.
    #[must_use]
    pub const fn packets_taken(&self) -> u64 {
        self.packets_taken
    }

    /// Each run of bytes that waits, in order, until `visit` has had enough.
    fn runs<'a>(&'a self, mut visit: impl FnMut(&'a [u8]) -> bool) {
        let mut skip = self.front_taken;
        let mut headers = &self.headers[..];
        let mut run_len = 0;
        for queued in &self.queue {
            run_len += HEADER_LEN.saturating_sub(skip);
            skip = skip.saturating_sub(HEADER_LEN);
            if queued.payload.is_empty() {
                continue;
            }
            let (run, rest) = headers.split_at(run_len);
            (headers, run_len) = (rest, 0);
            if !run.is_empty() && !visit(run) {
                return;
            }
            for part in queued.payload.parts() {
                let part_skip = skip.min(part.len());
                skip -= part_skip;
                if part_skip < part.len() && !visit(&part[part_skip..]) {
                    return;
                }
            }
        }
        if !headers.is_empty() {
            visit(headers);
        }
    }
}

impl Buf for Output {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        let mut first: &[u8] = &[];
        self.runs(|run| {
            first = run;
            false
        });
        first
    }

    fn chunks_vectored<'a>(&'a self, target: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        if target.is_empty() {
            return 0;
        }
        self.runs(|run| {
            target[filled] = IoSlice::new(run);
            filled += 1;
            filled < target.len()
        });
        filled
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.len, "{count} bytes taken of {}", self.len);
        self.len -= count;
        let mut taken = self.front_taken + count;
        let mut headers_taken = self.front_taken.min(HEADER_LEN);
        while let Some(front) = self.queue.front() {
            let frame_len = HEADER_LEN + front.payload.len();
            if taken < frame_len {
                break;
            }
            taken -= frame_len;
            self.headers.advance(HEADER_LEN - headers_taken);
            headers_taken = 0;
            self.packets_taken += u64::from(front.packet);
            self.queue.pop_front();
        }
        self.headers.advance(taken.min(HEADER_LEN) - headers_taken);
        self.front_taken = taken;
    }
}

fn check(payload: &Payload) -> u32 {
    match payload.parts() {
        [one] => crc32_iscsi(one),
        parts => {
            let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
            for part in parts {
                digest.update(part);
            }
            u32::try_from(digest.finalize()).expect("a CRC of 32 bits")
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Packet, Sequence};

    fn read_data(parts: &[usize]) -> Packet {
        let mut data = Payload::new();
        for (index, &len) in parts.iter().enumerate() {
            data.push(Bytes::from(vec![u8::try_from(index).unwrap(); len]));
        }
        Packet::ReadData { read: 7, data }
    }

    fn filled() -> Output {
        let mut output = Output::default();
        output.push(Frame::Ping(1));
        output.push(Frame::Packet(Packet::Written { sequence: Sequence(2) }));
        output.push(Frame::Packet(read_data(&[3, 70])));
        output.push(Frame::Packet(Packet::Received { sequence: Sequence(3) }));
        output.push(Frame::Packet(read_data(&[5])));
        output
    }

    fn gathered(output: &Output) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 16];
        let count = output.chunks_vectored(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    /// Whatever pieces the socket takes, the bytes are the same, and a packet counts as taken with its last byte.
    #[test]
    fn every_cut_leaves_the_same_bytes() {
        let whole = gathered(&filled());
        assert_eq!(whole.len(), filled().len());
        let ends = [2 * 48, 3 * 48 + 73, 4 * 48 + 73, 5 * 48 + 78];
        for first in 0..=whole.len() {
            for second in first..=whole.len() {
                let mut output = filled();
                output.advance(first);
                output.advance(second - first);
                assert_eq!(gathered(&output), whole[second..], "{first} {second}");
                assert_eq!(output.chunk().first(), whole.get(second));
                let packets = ends.iter().filter(|&&end| end <= second).count() as u64;
                assert_eq!(output.packets_taken(), packets, "{first} {second}");
            }
        }
    }

    /// The payload's bytes are the ones that were pushed, not a copy, and neighbouring headers are one run.
    #[test]
    fn payloads_are_shared() {
        let data = Bytes::from(vec![1; 4096]);
        let mut output = Output::default();
        output.push(Frame::Ping(1));
        output.push(Frame::Packet(Packet::ReadData { read: 1, data: data.clone().into() }));
        let mut slices = [IoSlice::new(&[]); 4];
        assert_eq!(output.chunks_vectored(&mut slices), 2);
        assert_eq!(slices[1].as_ptr(), data.as_ptr());
    }
}
