//! Opening, creating and refusing backings.

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

use replication::{DiskOp, DiskRequest};

use super::{super::*, SIZE, Store, everywhere, pattern, write};

/// "The data area starts at byte 0 and is `size` bytes; internal metadata sits behind it", a hole reads as zeros, and
/// a fresh file is known to be zeros.
#[test]
fn the_layout_is_the_contracts() {
    everywhere(&async |place| {
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
    everywhere(&async |place| {
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
        store.done(DiskRequest::WriteMetadata { offset: 0, data: vec![7; 12_288].into() }).await;
        store.disk.close().await;
        let (backing, found) = Backing::open(&config).unwrap();
        let Found::Superblocks(head) = found else { panic!("superblocks were written") };
        assert_eq!(head.len() as u64, HEAD_LEN);
        assert!(head[..12_288] == [7; 12_288] && head[12_288..].iter().all(|byte| *byte == 0));
        let mut part = [0; 100];
        backing.read_metadata(12_288 - 50, &mut part).unwrap();
        assert!(part[..50] == [7; 50] && part[50..] == [0; 50]);
        assert!(backing.read_metadata(backing.metadata_len() - 50, &mut part).is_err());
    });
}

/// Two daemons never share a file, and a closed disk can be opened at once.
#[test]
fn a_backing_has_one_user() {
    everywhere(&async |place| {
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
    everywhere(&async |place| {
        let size = usize::try_from(SIZE).unwrap();
        let whole = size + 4096 + usize::try_from(metadata_len(SIZE).unwrap()).unwrap();
        for (number, len) in
            [1, 4096, size - 1, size, size + 512, size + 4096, whole, whole + 4096].into_iter().enumerate()
        {
            let config = place.config(&format!("foreign-{number}"));
            let content = pattern(len);
            fs::write(&config.path, &content).unwrap();
            let error = Backing::open(&config).unwrap_err();
            assert!(matches!(error, OpenError::Foreign { .. } | OpenError::NoRoom { .. }), "{len}: {error}");
            assert!(error.to_string().contains("metadata create"), "{error}");
            assert!(fs::read(&config.path).unwrap() == content, "{len}");
            let adopted = Backing::create_metadata(&config, false);
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
    everywhere(&async |place| {
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

/// P10: killed inside the very first write of a superblock, a node finds its disk as it was before: fresh, or data of
/// which nothing is known. Where the second copy was written too, that is damage, and only a file of zeros starts anew.
#[test]
fn a_torn_first_superblock_is_survived() {
    let place = super::in_memory();
    for copy in [0, 1] {
        for sectors in 1..=u8::MAX {
            let config = place.config(&format!("torn-{copy}-{sectors}"));
            drop(Backing::open(&config).unwrap());
            let file = fs::OpenOptions::new().write(true).open(&config.path).unwrap();
            let area = SIZE + 4096;
            for sector in (0..8).filter(|sector| sectors & (1 << sector) != 0) {
                file.write_all_at(&[0x5a; 512], area + copy * 4096 + sector * 512).unwrap();
            }
            assert_eq!(Backing::open(&config).unwrap().1, Found::Fresh, "{copy} {sectors:#010b}");
            file.write_all_at(&[1; 512], SIZE - 512).unwrap();
            assert_eq!(Backing::open(&config).unwrap().1, Found::Data, "{copy} {sectors:#010b}");
            file.write_all_at(&[0x5a; 512], area + (1 - copy) * 4096).unwrap();
            assert!(matches!(Backing::open(&config).unwrap().1, Found::Superblocks(_)));
            fs::remove_file(&config.path).unwrap();
        }
    }
}

/// What is not ours is not overwritten where the metadata goes, unless the operator forces it; wiped, a file is what it
/// was before, and can be made ours again.
#[test]
fn metadata_is_made_and_wiped() {
    let place = super::in_memory();
    let (inside, outside) = (place.config("a"), external(&place.config("b")));
    let Metadata::External(metadata) = &outside.metadata else { unreachable!("made so") };
    let content = pattern(usize::try_from(SIZE).unwrap());
    let mut filesystem = vec![0; 2 << 20];
    filesystem[..4].copy_from_slice(b"XFSB");
    fs::write(&inside.path, [&content[..], b"more"].concat()).unwrap();
    fs::write(&outside.path, &content).unwrap();
    fs::write(metadata, &filesystem).unwrap();
    assert!(matches!(Backing::create_metadata(&inside, false), Err(OpenError::Length { .. })));
    let refused = Backing::create_metadata(&outside, false).unwrap_err().to_string();
    assert!(refused.contains("an XFS filesystem") && refused.contains("--force"), "{refused}");
    assert!(fs::read(metadata).unwrap() == filesystem);
    for config in [&inside, &outside] {
        for force in [true, false] {
            Backing::create_metadata(config, force).unwrap();
            let (backing, found) = Backing::open_existing(config).unwrap();
            assert_eq!(found, Found::Data);
            backing.wipe_metadata().unwrap();
            assert!(fs::read(&config.path).unwrap() == content);
            assert!(Backing::open_existing(config).is_err());
        }
    }
    assert!(!metadata.exists());
    // An empty file is free.
    fs::write(metadata, b"").unwrap();
    Backing::create_metadata(&outside, false).unwrap();
    let absent = place.config("absent");
    assert!(matches!(Backing::open_existing(&absent), Err(OpenError::Io { .. })));
    assert!(!absent.path.exists());
}

fn external(config: &DiskConfig) -> DiskConfig {
    let metadata = Metadata::External(config.path.with_extension("md"));
    DiskConfig { metadata, ..config.clone() }
}

/// "An existing device keeps its data with external metadata"; a lost half is an error that says so, not a fresh
/// disk.
#[test]
fn external_metadata_and_data_belong_together() {
    everywhere(&async |place| {
        let config = external(&place.config("a"));
        let Metadata::External(metadata) = &config.metadata else { unreachable!("made so") };
        let content = pattern(usize::try_from(SIZE).unwrap());
        fs::write(&config.path, &content).unwrap();
        assert!(matches!(Backing::open(&config), Err(OpenError::MetadataMissing { .. })));
        assert!(!metadata.exists());
        Backing::create_metadata(&config, false).unwrap();
        let (store, found) = Store::open(&config);
        assert_eq!(found, Found::Data);
        assert!(store.read(0, SIZE).await == content);
        store.done(DiskRequest::WriteMetadata { offset: 0, data: vec![9; 8192].into() }).await;
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
    everywhere(&async |place| {
        let config = place.config("a");
        drop(Backing::open(&config).unwrap());
        let file = fs::OpenOptions::new().write(true).open(&config.path).unwrap();
        let larger = DiskConfig { size: 2 * SIZE, ..config.clone() };
        assert!(matches!(Backing::open(&larger), Err(OpenError::OtherSize { was: SIZE, .. })));
        let len = file.metadata().unwrap().len();
        for wrong in [len - 1, len - 4096, len + 1] {
            file.set_len(wrong).unwrap();
            assert!(matches!(Backing::open(&config), Err(OpenError::Length { .. })), "{wrong}");
        }
        file.set_len(len).unwrap();
        file.write_all_at(b"!", SIZE + 20).unwrap();
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
    everywhere(&async |place| {
        let config = external(&place.config("a"));
        drop(Backing::open(&config).unwrap());
        let other = DiskConfig { size: SIZE - 4096, ..config };
        assert!(
            matches!(Backing::open(&other), Err(OpenError::OtherSize { size, was: SIZE, .. }) if size == SIZE - 4096)
        );
        let config = place.config("b");
        drop(Backing::open(&config).unwrap());
        for size in [SIZE - 4096, SIZE * 2] {
            let error = Backing::open(&DiskConfig { size, ..config.clone() }).unwrap_err();
            assert!(matches!(error, OpenError::OtherSize { was: SIZE, .. }), "{error}");
        }
    });
}
