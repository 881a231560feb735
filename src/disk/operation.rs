//! What one disk operation does, step by step, whichever engine takes the steps.
//!
//! Short transfers go on where they stopped, interrupted ones are tried again, and what is not aligned as the
//! device wants it is read, changed and written as whole device blocks (`guard` keeps two of those apart).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use block::Extent;
use ops::metrics;
use replication::{DiskAnswer, DiskError};
use rustix::io::Errno;

use super::{
    buffer::Buffer,
    steps::{Failure, Place, Span, Steps, Zeroing, error_of},
};

/// What is known of a backing that its operations go by.
#[derive(Debug)]
pub(super) struct Terms {
    /// What offsets and lengths of transfers have to be multiples of, in bytes: a power of two.
    pub(super) alignment: usize,
    /// Whether writes can be stable by themselves; otherwise a sync follows those that have to be.
    pub(super) write_through: bool,
    /// Whether the backing was seen to lack [`Zeroing::Punch`].
    lacks_punch: AtomicBool,
    /// Whether the backing was seen to lack [`Zeroing::Range`].
    lacks_range: AtomicBool,
}

impl Terms {
    pub(super) const fn new(alignment: usize, write_through: bool) -> Self {
        Self {
            alignment,
            write_through,
            lacks_punch: AtomicBool::new(false),
            lacks_range: AtomicBool::new(false),
        }
    }

    const fn lacks(&self, how: Zeroing) -> &AtomicBool {
        match how {
            Zeroing::Punch => &self.lacks_punch,
            Zeroing::Range => &self.lacks_range,
        }
    }
}

/// One operation, with the memory that it needs.
#[derive(Debug)]
pub(super) enum Operation {
    Read { extent: Extent, buffer: Buffer },
    Write { write: Write, stable: bool },
    Zeroes { extent: Extent, unmap: bool, stable: bool },
    Flush,
}

/// Bytes to write, in a buffer that covers whole device blocks.
#[derive(Debug)]
pub(super) struct Write {
    place: Place,
    /// Where the buffer goes.
    at: u64,
    /// The buffer's length is a multiple of the alignment.
    buffer: Buffer,
    /// The bytes of the buffer that are to be written; those around them are still to be read.
    from: usize,
    to: usize,
}

/// What became of an operation.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) result: Result<DiskAnswer, Failure>,
    /// Memory that is not needed any more, to be dropped on the thread that keeps it.
    pub(super) buffer: Option<Buffer>,
}

impl Write {
    /// A write to an extent of a file; `fill` puts its bytes into the buffer.
    pub(super) fn new(place: Place, extent: Extent, alignment: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        let at = floor(extent.offset, alignment);
        let from = length(extent.offset - at);
        let to = from + length(extent.len);
        let mut buffer = Buffer::with_room(to.next_multiple_of(alignment));
        buffer.set_filled(to.next_multiple_of(alignment));
        fill(&mut buffer[from..to]);
        Self { place, at, buffer, from, to }
    }

    /// The device blocks of which only a part is written, by their first byte: none, one or two.
    pub(super) fn partial_blocks(extent: Extent, alignment: usize) -> impl Iterator<Item = u64> {
        let aligned = |byte: u64| byte == floor(byte, alignment);
        let first = (!aligned(extent.offset)).then(|| floor(extent.offset, alignment));
        let last = (!aligned(extent.end())).then(|| floor(extent.end(), alignment));
        first.into_iter().chain(last.filter(|last| Some(*last) != first))
    }
}

impl Operation {
    /// A read.
    pub(super) fn read(extent: Extent, terms: &Terms) -> Self {
        let start = floor(extent.offset, terms.alignment);
        let room = length(extent.end() - start).next_multiple_of(terms.alignment);
        Self::Read { extent, buffer: Buffer::with_room(room) }
    }

    /// Under what its time is recorded.
    pub(super) const fn kind(&self) -> metrics::Operation {
        match self {
            Self::Read { .. } => metrics::Operation::Read,
            Self::Write { .. } => metrics::Operation::Write,
            Self::Zeroes { .. } => metrics::Operation::Discard,
            Self::Flush => metrics::Operation::Flush,
        }
    }

    /// Whether its success promises that bytes are stable.
    pub(super) const fn is_stable(&self) -> bool {
        match self {
            Self::Read { .. } => false,
            Self::Write { stable, .. } | Self::Zeroes { stable, .. } => *stable,
            Self::Flush => true,
        }
    }

    /// Does it.
    pub(super) async fn run(self, steps: &impl Steps, terms: &Terms) -> Outcome {
        let run = Run { steps, terms };
        match self {
            Self::Read { extent, buffer } => run.read(extent, buffer).await,
            Self::Write { write, stable } => {
                let (result, buffer) = run.write(write, stable).await;
                Outcome { result: result.map(|()| DiskAnswer::Done), buffer: Some(buffer) }
            }
            Self::Zeroes { extent, unmap, stable } => done(run.zeroes(extent, unmap, stable).await),
            Self::Flush => done(run.sync(Place::Data).await),
        }
    }
}

struct Run<'a, S> {
    steps: &'a S,
    terms: &'a Terms,
}

impl<S: Steps> Run<'_, S> {
    async fn read(&self, extent: Extent, buffer: Buffer) -> Outcome {
        let start = floor(extent.offset, self.terms.alignment);
        let needed = length(extent.end() - start);
        let (filled, buffer) = self.fill(Place::Data, buffer, needed, start).await;
        match filled {
            Ok(filled) if filled >= needed => {
                let data = buffer.into_bytes().slice(needed - length(extent.len)..needed);
                Outcome { result: Ok(DiskAnswer::Data(data.into())), buffer: None }
            }
            // The file ends inside the data area: somebody cut it.
            Ok(_) => Outcome { result: Err(Failure::of(Errno::IO)), buffer: Some(buffer) },
            Err(errno) => Outcome { result: Err(Failure::of(errno)), buffer: Some(buffer) },
        }
    }

    /// Reads whole device blocks from byte `at` on until `needed` bytes are there or the file ends, and tells how
    /// many are.
    async fn fill(
        &self,
        place: Place,
        mut buffer: Buffer,
        needed: usize,
        at: u64,
    ) -> (Result<usize, Errno>, Buffer) {
        let to = needed.next_multiple_of(self.terms.alignment);
        buffer.set_filled(0);
        let mut attempts = Attempts::default();
        while buffer.filled() < needed {
            // After a short read, a device wants to go on at one of its blocks.
            let before = buffer.filled();
            let from = before - before % self.terms.alignment;
            let result;
            (result, buffer) = self.steps.read(place, Span { buffer, from, to, at: at + from as u64 }).await;
            match result {
                Ok(0) => break,
                Ok(read) if from + read > before => {
                    buffer.set_filled(from + read);
                    attempts = Attempts::default();
                }
                Ok(_) if attempts.again(Errno::AGAIN) => {}
                Ok(_) => return (Err(Errno::IO), buffer),
                Err(errno) if attempts.again(errno) => {}
                Err(errno) => return (Err(errno), buffer),
            }
        }
        (Ok(buffer.filled()), buffer)
    }

    async fn write(&self, write: Write, stable: bool) -> (Result<(), Failure>, Buffer) {
        let place = write.place;
        let (result, write) = self.complete_blocks(write).await;
        if let Err(errno) = result {
            return (Err(Failure::of(errno)), write.buffer);
        }
        let through = stable && self.terms.write_through;
        let (result, buffer) = self.write_out(write, through).await;
        let result = match result {
            Ok(()) if stable && !through => self.sync(place).await,
            Ok(()) => Ok(()),
            // Whether the write failed or the flush behind it is not told, unless there was no space to write to.
            Err(errno) if through && error_of(errno) != DiskError::NoSpace => Err(Failure::lost(errno)),
            Err(errno) => Err(Failure::of(errno)),
        };
        (result, buffer)
    }

    /// Reads the bytes around those to be written, so that the buffer holds whole device blocks.
    async fn complete_blocks(&self, mut write: Write) -> (Result<(), Errno>, Write) {
        let alignment = self.terms.alignment;
        let inner = Extent::new(write.at + write.from as u64, (write.to - write.from) as u64);
        for block_at in Write::partial_blocks(inner, alignment) {
            let (filled, mut block) =
                self.fill(write.place, Buffer::with_room(alignment), alignment, block_at).await;
            let filled = match filled {
                Ok(filled) => filled,
                Err(errno) => return (Err(errno), write),
            };
            // Behind the end of the file there are zeros.
            block.room_mut(filled, alignment).fill(0);
            block.set_filled(alignment);
            let block_from = length(block_at - write.at);
            let block_to = block_from + alignment;
            let before = block_from..write.from.clamp(block_from, block_to);
            let after = write.to.clamp(block_from, block_to)..block_to;
            for missing in [before, after] {
                let source = missing.start - block_from..missing.end - block_from;
                write.buffer[missing].copy_from_slice(&block[source]);
            }
        }
        (Ok(()), write)
    }

    async fn write_out(&self, write: Write, through: bool) -> (Result<(), Errno>, Buffer) {
        let Write { place, at, mut buffer, .. } = write;
        let mut attempts = Attempts::default();
        let (mut written, to) = (0, buffer.filled());
        while written < to {
            let from = written - written % self.terms.alignment;
            let result;
            let span = Span { buffer, from, to, at: at + from as u64 };
            (result, buffer) = self.steps.write(place, span, through).await;
            match result {
                Ok(count) if from + count > written => {
                    written = from + count;
                    attempts = Attempts::default();
                }
                Ok(count) if count > 0 && attempts.again(Errno::AGAIN) => {}
                Ok(_) => return (Err(Errno::IO), buffer),
                Err(errno) if attempts.again(errno) => {}
                Err(errno) => return (Err(errno), buffer),
            }
        }
        (Ok(()), buffer)
    }

    async fn sync(&self, place: Place) -> Result<(), Failure> {
        let mut attempts = Attempts::default();
        loop {
            match self.steps.sync(place).await {
                Ok(()) => return Ok(()),
                Err(errno) if attempts.again(errno) => {}
                Err(errno) => return Err(Failure::lost(errno)),
            }
        }
    }

    async fn zeroes(&self, extent: Extent, unmap: bool, stable: bool) -> Result<(), Failure> {
        let unit = self.terms.alignment.max(ZEROING_UNIT);
        let start = extent.offset.next_multiple_of(unit as u64);
        let end = floor(extent.end(), unit);
        if start < end {
            self.write_zeros(extent.offset, start).await?;
            self.zero_blocks(Extent::new(start, end - start), unmap).await?;
            self.write_zeros(end, extent.end()).await?;
        } else {
            self.write_zeros(extent.offset, extent.end()).await?;
        }
        if stable { self.sync(Place::Data).await } else { Ok(()) }
    }

    async fn zero_blocks(&self, extent: Extent, unmap: bool) -> Result<(), Failure> {
        let ways: &[Zeroing] = if unmap { &[Zeroing::Punch, Zeroing::Range] } else { &[Zeroing::Range] };
        for way in ways {
            let lacks = self.terms.lacks(*way);
            let mut attempts = Attempts::default();
            while !lacks.load(Relaxed) {
                match self.steps.zero(*way, extent).await {
                    Ok(()) => return Ok(()),
                    Err(Errno::OPNOTSUPP | Errno::NOSYS) => lacks.store(true, Relaxed),
                    Err(errno) if attempts.again(errno) => {}
                    Err(errno) => return Err(Failure::of(errno)),
                }
            }
        }
        self.write_zeros(extent.offset, extent.end()).await
    }

    async fn write_zeros(&self, from: u64, to: u64) -> Result<(), Failure> {
        let mut at = from;
        while at < to {
            let next = (floor(at, ZEROS_MAX) + ZEROS_MAX as u64).min(to);
            let extent = Extent::new(at, next - at);
            let write = Write::new(Place::Data, extent, self.terms.alignment, |bytes| bytes.fill(0));
            self.write(write, false).await.0?;
            at = next;
        }
        Ok(())
    }
}

/// Counts how often a step got no further, so that a backing that never does is an error.
#[derive(Debug, Default)]
struct Attempts(u32);

impl Attempts {
    fn again(&mut self, errno: Errno) -> bool {
        self.0 += 1;
        matches!(errno, Errno::INTR | Errno::AGAIN) && self.0 < ATTEMPTS_MAX
    }
}

fn done(result: Result<(), Failure>) -> Outcome {
    Outcome { result: result.map(|()| DiskAnswer::Done), buffer: None }
}

const fn floor(byte: u64, alignment: usize) -> u64 {
    byte - byte % alignment as u64
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("an operation's bytes are in memory")
}

/// Bytes are zeroed without writing in whole units of this many: a page, which is a block of every filesystem.
const ZEROING_UNIT: usize = 4096;

/// Zeros are written in pieces that end on multiples of this many bytes.
const ZEROS_MAX: usize = 1 << 20;

const ATTEMPTS_MAX: u32 = 100;

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, ops::Range};

    use block::Payload;
    use futures_util::FutureExt;

    use super::*;

    /// A file in memory that insists on its alignment and does steps as badly as a kernel may.
    struct Medium {
        bytes: RefCell<Vec<u8>>,
        alignment: usize,
        seed: RefCell<u64>,
        /// What zeroing and syncing answer; `Ok` does it.
        zeroing: Result<(), Errno>,
        syncing: Result<(), Errno>,
        syncs: RefCell<u32>,
        /// What a write that touches these bytes fails with.
        bad: Option<(Range<u64>, Errno)>,
    }

    impl Medium {
        fn new(alignment: usize, seed: u64) -> Self {
            Self::of_len(LEN, alignment, seed)
        }

        fn of_len(len: usize, alignment: usize, seed: u64) -> Self {
            let bytes = RefCell::new((0..=250).cycle().take(len).collect());
            let (zeroing, syncing) = (Err(Errno::OPNOTSUPP), Ok(()));
            Self { bytes, alignment, seed: seed.into(), zeroing, syncing, syncs: 0.into(), bad: None }
        }

        fn len(&self) -> usize {
            self.bytes.borrow().len()
        }

        fn random(&self, below: usize) -> usize {
            let mut seed = self.seed.borrow_mut();
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(*seed >> 33).unwrap() % below
        }

        /// The bytes of the file that this step gets done: one in four is interrupted, the rest are cut somewhere.
        fn step(&self, span: &Span) -> Result<Range<usize>, Errno> {
            let (at, len) = (usize::try_from(span.at).unwrap(), span.to - span.from);
            assert!(at.is_multiple_of(self.alignment) && len.is_multiple_of(self.alignment));
            assert!(span.from.is_multiple_of(self.alignment) && len > 0);
            match self.random(8) {
                0 => Err(Errno::INTR),
                1 => Err(Errno::AGAIN),
                _ => Ok(at..(at + self.alignment * (1 + self.random(len / self.alignment))).min(self.len())),
            }
        }
    }

    impl Steps for Medium {
        async fn read(&self, _: Place, mut span: Span) -> (Result<usize, Errno>, Buffer) {
            let result = self.step(&span).map(|file| {
                let target = span.buffer.room_mut(span.from, span.from + file.len());
                target.copy_from_slice(&self.bytes.borrow()[file.clone()]);
                file.len()
            });
            (result, span.buffer)
        }

        async fn write(&self, _: Place, span: Span, stable: bool) -> (Result<usize, Errno>, Buffer) {
            let result = self.step(&span).and_then(|file| {
                let is_bad = |bad: &Range<u64>| bad.start < file.end as u64 && (file.start as u64) < bad.end;
                if let Some((_, errno)) = self.bad.as_ref().filter(|(bad, _)| is_bad(bad)) {
                    return Err(*errno);
                }
                self.bytes.borrow_mut()[file.clone()]
                    .copy_from_slice(&span.buffer[span.from..][..file.len()]);
                *self.syncs.borrow_mut() += u32::from(stable);
                Ok(file.len())
            });
            (result, span.buffer)
        }

        async fn sync(&self, _: Place) -> Result<(), Errno> {
            *self.syncs.borrow_mut() += 1;
            if self.random(4) == 0 { Err(Errno::INTR) } else { self.syncing }
        }

        async fn zero(&self, _: Zeroing, extent: Extent) -> Result<(), Errno> {
            self.zeroing?;
            assert!(extent.offset.is_multiple_of(4096) && extent.len.is_multiple_of(4096));
            self.bytes.borrow_mut()[range(extent)].fill(0);
            Ok(())
        }
    }

    fn range(extent: Extent) -> Range<usize> {
        length(extent.offset)..length(extent.end())
    }

    fn run(operation: Operation, medium: &Medium, terms: &Terms) -> Result<DiskAnswer, Failure> {
        operation.run(medium, terms).now_or_never().expect("a medium in memory never waits").result
    }

    fn write(extent: Extent, byte: u8, stable: bool, terms: &Terms) -> Operation {
        Operation::Write {
            write: Write::new(Place::Data, extent, terms.alignment, |bytes| bytes.fill(byte)),
            stable,
        }
    }

    const LEN: usize = 128 << 10;

    /// P12, and what "written" means: however a kernel cuts or interrupts transfers, each byte asked for is
    /// transferred, and no other byte changes; on media that transfer bytes, sectors or pages.
    #[test]
    fn cut_and_interrupted_transfers_are_completed() {
        for seed in 0..600 {
            let medium = Medium::new([1, 512, 4096][length(seed) % 3], seed);
            let medium =
                Medium { zeroing: if seed % 2 == 0 { Ok(()) } else { Err(Errno::OPNOTSUPP) }, ..medium };
            let terms = Terms::new(medium.alignment, seed % 5 == 0);
            let len = 1 + medium.random(16_000);
            let extent = Extent::new(medium.random(LEN - len) as u64, len as u64);
            let mut expected = medium.bytes.borrow().clone();
            let operation = match seed % 3 {
                0 => Operation::Zeroes { extent, unmap: seed % 7 == 0, stable: false },
                _ => write(extent, 0xa5, false, &terms),
            };
            expected[range(extent)].fill(if seed % 3 == 0 { 0 } else { 0xa5 });
            run(operation, &medium, &terms).unwrap();
            assert!(*medium.bytes.borrow() == expected, "seed {seed}");
            let DiskAnswer::Data(data) = run(Operation::read(extent, &terms), &medium, &terms).unwrap()
            else {
                panic!("seed {seed}: a read answers with data")
            };
            assert_eq!(data.to_bytes(), expected[range(extent)], "seed {seed}");
        }
    }

    /// A discard of more than one piece of zeros reaches every byte where the filesystem cannot zero, and asks it
    /// once only.
    #[test]
    fn large_zeroes_are_written_where_the_backing_cannot_zero() {
        let medium = Medium::of_len(4 * ZEROS_MAX, 512, 1);
        let terms = Terms::new(512, true);
        let extent = Extent::new(512, (medium.len() - 1024) as u64);
        run(Operation::Zeroes { extent, unmap: true, stable: true }, &medium, &terms).unwrap();
        assert!(medium.bytes.borrow()[range(extent)].iter().all(|byte| *byte == 0));
        assert_ne!(medium.bytes.borrow()[510..512], [0, 0]);
        assert_ne!(medium.bytes.borrow()[medium.len() - 512..medium.len() - 510], [0, 0]);
        assert!(terms.lacks_punch.load(Relaxed) && terms.lacks_range.load(Relaxed));
    }

    /// P2: force unit access is stable before it ends, by a write through or by a sync behind it.
    #[test]
    fn force_unit_access_is_stable() {
        for write_through in [false, true] {
            let (medium, terms) = (Medium::new(512, 3), Terms::new(512, write_through));
            run(write(Extent::new(0, 512), 1, false, &terms), &medium, &terms).unwrap();
            assert_eq!(*medium.syncs.borrow(), 0);
            run(write(Extent::new(0, 512), 1, true, &terms), &medium, &terms).unwrap();
            assert!(*medium.syncs.borrow() > 0);
        }
    }

    /// A full disk is told as such, other failures with the system's number; what fails to become stable counts as
    /// lost, and a write that found no space does not.
    #[test]
    fn failures_say_what_they_mean() {
        let no_space = Failure { error: DiskError::NoSpace, lost: false };
        let io = |lost| Failure { error: DiskError::Io { errno: Errno::IO.raw_os_error() }, lost };
        let table = [
            (Errno::NOSPC, false, true, no_space),
            (Errno::DQUOT, true, true, no_space),
            (Errno::IO, false, true, io(false)),
            (Errno::IO, true, true, io(true)),
            (Errno::IO, true, false, io(false)),
        ];
        for (errno, stable, write_through, failure) in table {
            let medium = Medium { bad: Some((512..1024, errno)), ..Medium::new(512, 5) };
            let terms = Terms::new(512, write_through);
            let result = run(write(Extent::new(0, 4096), 1, stable, &terms), &medium, &terms);
            assert_eq!(result.err(), Some(failure), "{errno}, {stable}, {write_through}");
        }
        let medium = Medium { syncing: Err(Errno::NOSPC), ..Medium::new(512, 7) };
        let lost = Failure { error: DiskError::NoSpace, lost: true };
        assert_eq!(run(Operation::Flush, &medium, &Terms::new(512, true)).err(), Some(lost));
        let zeroes = Operation::Zeroes { extent: Extent::new(0, 4096), unmap: true, stable: false };
        let medium = Medium { zeroing: Err(Errno::NOSPC), ..Medium::new(512, 7) };
        assert_eq!(run(zeroes, &medium, &Terms::new(512, true)).err(), Some(no_space));
    }

    /// A file that somebody cut is an error, not zeros and not old memory.
    #[test]
    fn a_read_behind_the_end_fails() {
        let (medium, terms) = (Medium::new(512, 9), Terms::new(512, true));
        let result = run(Operation::read(Extent::new(LEN as u64 - 512, 1024), &terms), &medium, &terms);
        assert_eq!(result.err(), Some(Failure::of(Errno::IO)));
    }

    /// A backing that is interrupted for ever is an error in the end (P11).
    #[test]
    fn endless_interruptions_end() {
        let medium = Medium { syncing: Err(Errno::INTR), ..Medium::new(512, 11) };
        assert_eq!(
            run(Operation::Flush, &medium, &Terms::new(512, true)).err(),
            Some(Failure::lost(Errno::INTR))
        );
    }

    /// The bytes of a payload in several parts land side by side.
    #[test]
    fn the_parts_of_a_payload_land_in_order() {
        let (medium, terms) = (Medium::new(4096, 13), Terms::new(4096, true));
        let mut data = Payload::new();
        data.push(vec![1; 512].into());
        data.push(vec![2; 1024].into());
        let extent = Extent::new(512, 1536);
        let write = Write::new(Place::Data, extent, terms.alignment, |bytes| data.copy_to(bytes));
        run(Operation::Write { write, stable: false }, &medium, &terms).unwrap();
        assert_eq!(medium.bytes.borrow()[range(extent)], data.to_bytes());
    }
}
