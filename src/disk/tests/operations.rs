//! Operations, and what is left when a shard ends.

use std::{cell::RefCell, fs, os::unix::fs::MetadataExt, path::PathBuf, rc::Rc};

use block::{Extent, Run};
use replication::{DiskAnswer, DiskError, DiskOp, DiskRequest};

use super::{super::*, Random, SIZE, Store, everywhere, in_memory, one_batch, write, zeroes};
use crate::volume::Mailbox;

/// Each place gets the engine that its filesystem allows, and says why.
#[test]
fn the_engine_is_chosen_per_backing() {
    everywhere(&async |place| {
        let (store, _) = Store::open(&place.config("a"));
        let access = store.disk.access();
        assert_eq!(access.engine, place.engine, "{access:?}");
        assert_eq!(access.direct, place.name.starts_with("disk"));
        assert!(!access.reason.is_empty());
        store.disk.close().await;
    });
}

/// Reads return what was last written, discarded or zeroed, at any place and length, at any depth, over restarts.
#[test]
fn random_operations_match_a_model() {
    everywhere(&async |place| {
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

/// "UNMAP punches holes in the backing file and GET LBA STATUS tells them" (issue 2, SCSI).
#[test]
fn a_discard_gives_space_back_and_allocation_tells_it() {
    everywhere(&async |place| {
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

/// A file that is cut while it is in use gives errors for what is gone, and goes on with the rest (P12).
#[test]
fn a_cut_file_gives_errors() {
    everywhere(&async |place| {
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
    everywhere(&async |place| {
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
    everywhere(&async |place| {
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
    let place = in_memory();
    place.ring.block_on(async {
        let (store, _) = Store::open(&place.config("a"));
        store.disk.submit(DiskOp(0), write(SIZE - 512, &[1; 1024]));
    });
}
