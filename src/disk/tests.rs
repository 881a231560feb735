//! The backing store against real files: every test on every kind of backing and with both engines.

use std::{
    cell::{Cell, RefCell},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    rc::Rc,
};

use block::{BlockSize, Extent, Payload, Run};
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
        let disk = Disk::start(backing, Rc::clone(&mailbox));
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
        assert!(matches!(answer, Ok(DiskAnswer::Done)), "{:.80} was answered with {answer:?}", shown);
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

/// Runs a test on a real filesystem by the ring, there by threads, and in memory by threads.
fn everywhere(test: impl AsyncFn(&Place)) {
    let threads = || Ring::Refused { reason: "the test wants threads".into() };
    let on_disk = || {
        fs::create_dir_all(DISK_DIRECTORY).unwrap();
        TempDir::new_in(DISK_DIRECTORY).unwrap()
    };
    let mut places = vec![
        Place { name: "disk, threads", ring: threads(), engine: Engine::Threads, directory: on_disk() },
        Place {
            name: "memory, threads",
            ring: Ring::try_out(),
            engine: Engine::Threads,
            directory: TempDir::new_in("/dev/shm").unwrap(),
        },
    ];
    match Ring::try_out() {
        ring @ Ring::Allowed => {
            places.push(Place { name: "disk, io_uring", ring, engine: Engine::Uring, directory: on_disk() });
        }
        Ring::Refused { reason } => println!("io_uring is not tested: {reason}"),
    }
    for place in places {
        println!("on {}", place.name);
        place.ring.block_on(test(&place));
    }
}

const DISK_DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tmp");

/// Random numbers of a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Each place gets the engine that its filesystem allows, and says why.
#[test]
fn the_engine_is_chosen_per_backing() {
    everywhere(async |place| {
        let (store, _) = Store::open(&place.config("a"));
        let access = store.disk.access();
        assert_eq!(access.engine, place.engine, "{access:?}");
        assert_eq!(access.direct, place.name.starts_with("disk"));
        assert!(!access.reason.is_empty());
        store.disk.close().await;
    });
}

/// "The data area starts at byte 0 and is `size` bytes; internal metadata sits behind it", a hole reads as zeros, and
/// a fresh file is known to be zeros.
#[test]
fn the_layout_is_the_contracts() {
    everywhere(async |place| {
        let config = place.config("a");
        let (store, found) = Store::open(&config);
        assert_eq!(found, Found::Fresh);
        assert_eq!(store.read(SIZE - 8192, 8192).await, vec![0; 8192]);
        store.done(write(0, &[1; 512])).await;
        store.done(write(SIZE - 512, &[2; 512])).await;
        store.done(DiskRequest::WriteMetadata { offset: 0, data: vec![3; 4096].into() }).await;
        store.done(DiskRequest::Flush).await;
        store.disk.close().await;
        let bytes = fs::read(&config.path).unwrap();
        let size = usize::try_from(SIZE).unwrap();
        assert_eq!(bytes.len() as u64, SIZE + 4096 + metadata_len(SIZE).unwrap());
        assert!(bytes[..512] == [1; 512] && bytes[size - 512..size] == [2; 512]);
        assert!(bytes[512..size - 512].iter().all(|byte| *byte == 0));
        assert_eq!(&bytes[size..size + 8], b"EVENKEEL");
        assert_eq!(bytes[size + 4096..size + 8192], [3; 4096]);
        assert!(fs::metadata(&config.path).unwrap().blocks() * 512 < 1 << 20, "the file is sparse");
    });
}

/// What was written comes back after a restart, superblocks with it; data without superblocks is not taken for
/// fresh.
#[test]
fn a_restart_finds_what_was_left() {
    everywhere(async |place| {
        let config = place.config("a");
        let (store, found) = Store::open(&config);
        assert_eq!(found, Found::Fresh);
        store.disk.close().await;
        let (store, found) = Store::open(&config);
        assert_eq!(found, Found::Fresh, "nothing was written");
        store.done(write(8192, b"data".repeat(128).as_slice())).await;
        store.disk.close().await;
        let (store, found) = Store::open(&config);
        assert_eq!(found, Found::Data);
        store.done(DiskRequest::WriteMetadata { offset: 4096, data: vec![7; 8192].into() }).await;
        store.disk.close().await;
        let (backing, found) = Backing::open(&config).unwrap();
        let Found::Superblocks(head) = found else { panic!("superblocks were written") };
        assert_eq!(head.len() as u64, HEAD_LEN);
        assert!(head[..4096] == [0; 4096] && head[4096..12_288] == [7; 8192]);
        let mut part = [0; 100];
        backing.read_metadata(12_288 - 50, &mut part).unwrap();
        assert!(part[..50] == [7; 50] && part[50..] == [0; 50]);
        assert!(backing.read_metadata(backing.metadata_len() - 50, &mut part).is_err());
    });
}

/// Reads return what was last written, discarded or zeroed, at any place and length, at any depth, over restarts.
#[test]
fn random_operations_match_a_model() {
    everywhere(async |place| {
        for seed in 0..3 {
            let mut random = Random(seed);
            let config = place.config(&format!("model-{seed}"));
            let mut model = vec![0; usize::try_from(SIZE).unwrap()];
            for _restart in 0..3 {
                let (store, _) = Store::open(&config);
                for _batch in 0..25 {
                    let depth = 1 + random.below(48);
                    one_batch(&store, &mut random, depth, &mut model, seed).await;
                }
                let blocks = SIZE / (64 << 10);
                for block in 0..blocks {
                    let at = usize::try_from(block << 16).unwrap();
                    let whole = store.read(block << 16, 64 << 10).await;
                    assert!(whole == model[at..at + (64 << 10)], "{}, seed {seed}, at {at}", place.name);
                }
                store.disk.close().await;
            }
        }
    });
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

/// "UNMAP punches holes in the backing file and GET LBA STATUS tells them" (issue 2, SCSI).
#[test]
fn a_discard_gives_space_back_and_allocation_tells_it() {
    everywhere(async |place| {
        let config = place.config("a");
        let (store, _) = Store::open(&config);
        let run = |offset, len, mapped| Run { extent: Extent::new(offset, len), mapped };
        let look = async |offset, len| match store
            .ask(DiskRequest::Allocation { extent: Extent::new(offset, len) })
            .await
        {
            Ok(DiskAnswer::Allocation(runs)) => runs,
            answer => panic!("{answer:?}"),
        };
        assert_eq!(look(0, SIZE).await, [run(0, SIZE, false)]);
        store.done(write(1 << 20, &vec![1; 2 << 20])).await;
        store.done(DiskRequest::Flush).await;
        let before = fs::metadata(&config.path).unwrap().blocks();
        store.done(zeroes((1 << 20) + 512, 1 << 20, true)).await;
        store.done(DiskRequest::Flush).await;
        let given_back = (before - fs::metadata(&config.path).unwrap().blocks()) * 512;
        assert!(given_back > 900 << 10, "{given_back} bytes were given back on {}", place.name);
        let (hole, end) = ((1 << 20) + 4096, 2 << 20);
        assert_eq!(
            look(0, SIZE).await,
            [
                run(0, 1 << 20, false),
                run(1 << 20, 4096, true),
                run(hole, end - hole, false),
                run(end, 1 << 20, true),
                run(3 << 20, 1 << 20, false),
            ]
        );
        assert_eq!(look(hole - 512, 1024).await, [run(hole - 512, 512, true), run(hole, 512, false)]);
        assert_eq!(store.read((1 << 20) + 512, 1 << 20).await, vec![0; 1 << 20]);
        assert_eq!(store.read(1 << 20, 512).await, [1; 512]);
        assert_eq!(store.read(end + 512, 512).await, [1; 512]);
        store.disk.close().await;
    });
}

/// Two daemons never share a file, and a closed disk can be opened at once.
#[test]
fn a_backing_has_one_user() {
    everywhere(async |place| {
        let config = place.config("a");
        for _ in 0..3 {
            let (store, _) = Store::open(&config);
            store.disk.submit(DiskOp(0), write(0, &[1; 4096]));
            assert!(matches!(Backing::open(&config), Err(OpenError::Busy { .. })));
            store.disk.close().await;
        }
    });
}

/// "A device or file with foreign content is never written before `metadata create`", which keeps the data.
#[test]
fn foreign_content_is_not_written() {
    everywhere(async |place| {
        let size = usize::try_from(SIZE).unwrap();
        let whole = size + 4096 + usize::try_from(metadata_len(SIZE).unwrap()).unwrap();
        for (number, len) in
            [1, 4096, size - 1, size, size + 512, size + 4096, whole, whole + 4096].into_iter().enumerate()
        {
            let config = place.config(&format!("foreign-{number}"));
            let content: Vec<u8> = (0..len).map(|at| (at % 253) as u8).collect();
            fs::write(&config.path, &content).unwrap();
            let error = Backing::open(&config).unwrap_err();
            assert!(matches!(error, OpenError::Foreign { .. } | OpenError::NoRoom { .. }), "{len}: {error}");
            assert!(error.to_string().contains("metadata create"), "{error}");
            assert!(fs::read(&config.path).unwrap() == content, "{len}");
            let adopted = Backing::create_metadata(&config);
            assert_eq!(adopted.is_ok(), len == size, "{len}: {adopted:?}");
            if len == size {
                let (store, found) = Store::open(&config);
                assert_eq!(found, Found::Data);
                assert!(store.read(0, SIZE).await == content);
                store.disk.close().await;
            } else {
                assert!(fs::read(&config.path).unwrap() == content, "{len}");
            }
        }
    });
}

/// P10: killed at any moment of its creation, a backing is found absent or fresh by the next start.
#[test]
fn a_crash_in_the_creation_leaves_something_to_start_from() {
    everywhere(async |place| {
        let whole = place.config("whole");
        drop(Backing::open(&whole).unwrap());
        let bytes = fs::read(&whole.path).unwrap();
        let label = usize::try_from(SIZE).unwrap();
        let mut torn = bytes.clone();
        torn[label + 100..label + 4096].fill(0xff);
        let mut without_label = bytes.clone();
        without_label[label..label + 4096].fill(0);
        for (number, left) in [vec![], without_label, torn, bytes].into_iter().enumerate() {
            let config = place.config(&format!("crashed-{number}"));
            let unfinished = place.directory.path().join(format!(".crashed-{number}.evenkeel-unfinished"));
            fs::write(&unfinished, left).unwrap();
            let (store, found) = Store::open(&config);
            assert_eq!(found, Found::Fresh, "{number}");
            assert_eq!(store.read(0, 4096).await, [0; 4096]);
            store.disk.close().await;
            assert!(!unfinished.exists());
        }
        let config = external(&place.config("external"));
        let Metadata::External(metadata) = &config.metadata else { unreachable!("made so") };
        drop(Backing::open(&config).unwrap());
        fs::remove_file(&config.path).unwrap();
        assert!(metadata.exists(), "what a crash between the two files leaves");
        assert_eq!(Backing::open(&config).unwrap().1, Found::Fresh);
    });
}

fn external(config: &DiskConfig) -> DiskConfig {
    let metadata = Metadata::External(config.path.with_extension("md"));
    DiskConfig { metadata, ..config.clone() }
}

/// "An existing device keeps its data with external metadata"; a lost half is an error that says so, not a fresh
/// disk.
#[test]
fn external_metadata_and_data_belong_together() {
    everywhere(async |place| {
        let config = external(&place.config("a"));
        let Metadata::External(metadata) = &config.metadata else { unreachable!("made so") };
        let content: Vec<u8> = (0..SIZE).map(|at| (at % 241) as u8).collect();
        fs::write(&config.path, &content).unwrap();
        assert!(matches!(Backing::open(&config), Err(OpenError::MetadataMissing { .. })));
        assert!(!metadata.exists());
        Backing::create_metadata(&config).unwrap();
        let (store, found) = Store::open(&config);
        assert_eq!(found, Found::Data);
        assert!(store.read(0, SIZE).await == content);
        store.done(DiskRequest::WriteMetadata { offset: 0, data: vec![9; 4096].into() }).await;
        store.done(write(0, &content[..512])).await;
        store.disk.close().await;
        assert!(fs::read(&config.path).unwrap() == content);
        assert!(
            matches!(Backing::open(&config).unwrap().1, Found::Superblocks(head) if head[..4096] == [9; 4096])
        );
        fs::remove_file(&config.path).unwrap();
        assert!(matches!(Backing::open(&config), Err(OpenError::DataMissing { .. })));
        assert!(!config.path.exists());
    });
}

/// A backing of another size, a damaged one, one that was cut, and one that is no file are refused with the reason.
#[test]
fn what_does_not_fit_is_refused() {
    everywhere(async |place| {
        let config = place.config("a");
        drop(Backing::open(&config).unwrap());
        let file = fs::OpenOptions::new().write(true).open(&config.path).unwrap();
        let larger = DiskConfig { size: 2 * SIZE, ..config.clone() };
        assert!(matches!(Backing::open(&larger), Err(OpenError::NoRoom { .. } | OpenError::Foreign { .. })));
        let len = file.metadata().unwrap().len();
        for wrong in [len - 1, len - 4096, len + 1] {
            file.set_len(wrong).unwrap();
            assert!(matches!(Backing::open(&config), Err(OpenError::Length { .. })), "{wrong}");
        }
        file.set_len(len).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"!", SIZE + 20).unwrap();
        let error = Backing::open(&config).unwrap_err().to_string();
        assert!(error.contains("a damaged label"), "{error}");
        let odd = DiskConfig { size: SIZE + 100, ..place.config("odd") };
        assert!(matches!(Backing::open(&odd), Err(OpenError::Size { .. })));
        let directory = DiskConfig { path: place.directory.path().to_owned(), ..config.clone() };
        assert!(matches!(Backing::open(&directory), Err(OpenError::Kind { .. })));
        let device = DiskConfig { path: "/dev/there-is-none".into(), ..config };
        assert!(matches!(Backing::open(&device), Err(OpenError::DeviceMissing { .. })));
        assert!(!Path::new("/dev/there-is-none").exists());
    });
}

/// The same file with its metadata elsewhere, or of another size within it, is recognised by its label.
#[test]
fn the_label_knows_its_size() {
    everywhere(async |place| {
        let config = external(&place.config("a"));
        drop(Backing::open(&config).unwrap());
        let other = DiskConfig { size: SIZE - 4096, ..config };
        assert!(
            matches!(Backing::open(&other), Err(OpenError::OtherSize { size, was: SIZE, .. }) if size == SIZE - 4096)
        );
    });
}

/// A file that is cut while it is in use gives errors for what is gone, and goes on with the rest (P12).
#[test]
fn a_cut_file_gives_errors() {
    everywhere(async |place| {
        let config = place.config("a");
        let (store, _) = Store::open(&config);
        store.done(write(0, &[1; 4096])).await;
        let file = fs::OpenOptions::new().write(true).open(&config.path).unwrap();
        file.set_len(8192).unwrap();
        let beyond = store.ask(DiskRequest::Read { extent: Extent::new(4096, 8192) }).await;
        assert!(matches!(beyond, Err(DiskError::Io { errno: libc::EIO })), "{beyond:?}");
        assert_eq!(store.read(0, 4096).await, [1; 4096]);
        store.disk.close().await;
    });
}

/// A runtime never ends while an operation is in flight: everything submitted is done and answered, also when
/// nobody waited for it.
#[test]
fn a_shard_ends_after_its_operations() {
    let left: RefCell<Vec<(PathBuf, Rc<Mailbox>, Disk)>> = RefCell::default();
    everywhere(async |place| {
        let config = place.config("a");
        let (store, _) = Store::open(&config);
        for op in 0..200 {
            store.disk.submit(DiskOp(op), write(op * 16_384, &[0x11; 16_384]));
        }
        assert_eq!(store.disk.in_flight(), 200);
        let kept = place.directory.path().with_extension("kept");
        fs::hard_link(&config.path, &kept).unwrap();
        left.borrow_mut().push((kept, store.mailbox, store.disk));
    });
    for (path, mailbox, disk) in left.take() {
        assert_eq!(disk.in_flight(), 0);
        let mut answers = Vec::new();
        mailbox.take_now(&mut answers);
        assert_eq!(answers.len(), 200);
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(bytes[..200 * 16_384].iter().all(|byte| *byte == 0x11));
    }
}

/// Draining waits for everything, and its answers are there when it returns.
#[test]
fn draining_waits_for_every_answer() {
    everywhere(async |place| {
        let (store, _) = Store::open(&place.config("a"));
        for op in 0..300 {
            store.disk.submit(DiskOp(op), write(op * 4096, &[2; 4096]));
        }
        store.disk.submit(DiskOp(300), DiskRequest::Allocation { extent: Extent::new(0, SIZE) });
        store.disk.drain().await;
        let mut answers = Vec::new();
        store.mailbox.take_now(&mut answers);
        assert_eq!(answers.len(), 301);
        store.disk.close().await;
    });
}

/// An extent outside the volume is our own mistake, and stops the node before the metadata is overwritten.
#[test]
#[should_panic(expected = "is not inside the Data area")]
fn an_extent_outside_the_volume_panics() {
    let ring = Ring::Refused { reason: "the test wants threads".into() };
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let config = DiskConfig {
        path: directory.path().join("a"),
        size: SIZE,
        metadata: Metadata::Internal,
        block_size: BlockSize::B512,
    };
    ring.block_on(async {
        let (store, _) = Store::open(&config);
        store.disk.submit(DiskOp(0), write(SIZE - 512, &[1; 1024]));
    });
}
