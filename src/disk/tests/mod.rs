//! The backing store against real files: every test on every kind of backing and with both engines.

mod devices;
mod opening;
mod operations;

use std::{cell::Cell, fs, rc::Rc, sync::Arc};

use block::{BlockSize, Extent, Payload};
use ops::metrics::Latencies;
use replication::{DiskAnswer, DiskError, DiskOp, DiskRequest, Input};
use tempfile::TempDir;

use super::*;
use crate::volume::Mailbox;

const SIZE: u64 = 4 << 20;

/// A started disk, and who waits for its answers.
struct Store {
    disk: Disk,
    mailbox: Rc<Mailbox>,
    next: Cell<u64>,
}

type Answer = Result<DiskAnswer, DiskError>;

impl Store {
    fn open(config: &DiskConfig) -> (Self, Found) {
        let (backing, found) = Backing::open(config).unwrap();
        let mailbox = Rc::new(Mailbox::new());
        let latencies = Arc::new(Latencies::new("db", []));
        let disk = Disk::start(backing, Rc::clone(&mailbox), latencies);
        (Self { disk, mailbox, next: Cell::new(0) }, found)
    }

    /// Submits all at once, and gives the answers in the order of the requests.
    async fn ask_all(&self, requests: Vec<DiskRequest>) -> Vec<Answer> {
        let first = self.next.get();
        let mut answers: Vec<Option<Answer>> = requests.iter().map(|_| None).collect();
        self.next.set(first + requests.len() as u64);
        for (op, request) in (first..).zip(requests) {
            self.disk.submit(DiskOp(op), request);
        }
        while answers.iter().any(Option::is_none) {
            let mut batch = Vec::new();
            self.mailbox.take(&mut batch).await;
            for input in batch {
                let Input::Disk { op, result } = input else { panic!("a disk reports disk operations") };
                let place = &mut answers[usize::try_from(op.0 - first).unwrap()];
                assert!(place.replace(result).is_none(), "{op:?} is answered once");
            }
        }
        answers.into_iter().flatten().collect()
    }

    async fn ask(&self, request: DiskRequest) -> Answer {
        self.ask_all(vec![request]).await.remove(0)
    }

    async fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        match self.ask(DiskRequest::Read { extent: Extent::new(offset, len) }).await {
            Ok(DiskAnswer::Data(data)) => data.to_bytes().to_vec(),
            answer => panic!("a read of {offset}+{len} was answered with {answer:?}"),
        }
    }

    async fn done(&self, request: DiskRequest) {
        let shown = format!("{request:?}");
        let answer = self.ask(request).await;
        assert!(matches!(answer, Ok(DiskAnswer::Done)), "{shown:.80} was answered with {answer:?}");
    }
}

fn write(offset: u64, bytes: &[u8]) -> DiskRequest {
    let data = Payload::from(bytes.to_vec());
    DiskRequest::Write { extent: Extent::new(offset, bytes.len() as u64), data, fua: false }
}

fn zeroes(offset: u64, len: u64, unmap: bool) -> DiskRequest {
    DiskRequest::WriteZeroes { extent: Extent::new(offset, len), unmap, fua: false }
}

/// A directory for backings and the ring of the shard that uses them.
struct Place {
    name: &'static str,
    ring: Ring,
    engine: Engine,
    directory: TempDir,
}

impl Place {
    fn config(&self, name: &str) -> DiskConfig {
        let (path, metadata) = (self.directory.path().join(name), Metadata::Internal);
        DiskConfig { path, size: SIZE, metadata, block_size: BlockSize::B512 }
    }
}

/// Runs a test on a real filesystem with each engine, and in memory.
fn everywhere(test: &impl AsyncFn(&Place)) {
    fs::create_dir_all(DISK_DIRECTORY).unwrap();
    let mut places = vec![in_memory()];
    for ring in rings() {
        let (name, engine) = match ring {
            Ring::Allowed => ("disk, io_uring", Engine::Uring),
            Ring::Refused { .. } => ("disk, threads", Engine::Threads),
        };
        places.push(Place { name, ring, engine, directory: TempDir::new_in(DISK_DIRECTORY).unwrap() });
    }
    for place in places {
        println!("on {}", place.name);
        place.ring.block_on(test(&place));
    }
}

/// A place in memory. Its files go to threads even where a ring is allowed.
fn in_memory() -> Place {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    Place { name: "memory, threads", ring: Ring::try_out(), engine: Engine::Threads, directory }
}

/// No ring, and a ring where this kernel allows it.
fn rings() -> Vec<Ring> {
    let mut rings = vec![Ring::Refused { reason: "the test wants threads".into() }];
    match Ring::try_out() {
        Ring::Allowed => rings.push(Ring::Allowed),
        Ring::Refused { reason } => println!("io_uring is not tested: {reason}"),
    }
    rings
}

const DISK_DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tmp");

/// Bytes of which neighbours differ.
fn pattern(len: usize) -> Vec<u8> {
    (0..=240).cycle().take(len).collect()
}

/// Random numbers of a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Changes that do not overlap, and reads of other bytes, all in flight at once.
async fn one_batch(store: &Store, random: &mut Random, depth: u64, model: &mut [u8], seed: u64) {
    let slots = SIZE / 512;
    let share = slots / depth;
    let (mut requests, mut expected) = (Vec::new(), Vec::new());
    for number in 0..depth {
        let len = 1 + random.below(share.min(300));
        let offset = (number * share + random.below(share - len + 1)) * 512;
        let (extent, fua) = (Extent::new(offset, len * 512), random.below(8) == 0);
        let range = usize::try_from(extent.offset).unwrap()..usize::try_from(extent.end()).unwrap();
        match random.below(8) {
            0 => {
                requests.push(DiskRequest::WriteZeroes { extent, unmap: random.below(2) == 0, fua });
                model[range].fill(0);
                expected.push(None);
            }
            1..4 => {
                requests.push(DiskRequest::Read { extent });
                expected.push(Some(model[range].to_vec()));
            }
            _ => {
                let byte = u8::try_from(1 + random.below(255)).unwrap();
                let (mut data, bytes) = (Payload::new(), vec![byte; range.len()]);
                data.push(bytes[..range.len() / 3].to_vec().into());
                data.push(bytes[range.len() / 3..].to_vec().into());
                requests.push(DiskRequest::Write { extent, data, fua });
                model[range].copy_from_slice(&bytes);
                expected.push(None);
            }
        }
    }
    for (answer, expected) in store.ask_all(requests).await.into_iter().zip(expected) {
        match (answer.unwrap(), expected) {
            (DiskAnswer::Data(data), Some(expected)) => assert!(data.to_bytes() == expected, "seed {seed}"),
            (DiskAnswer::Done, None) => {}
            (answer, _) => panic!("seed {seed}: {answer:?}"),
        }
    }
}
