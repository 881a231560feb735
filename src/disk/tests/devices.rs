//! Block devices and full filesystems. They need root, loop devices and mounts; without, each test says so.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use block::{BlockSize, Extent};
use replication::{DiskAnswer, DiskError, DiskRequest};
use tempfile::TempDir;

use super::{super::*, DISK_DIRECTORY, Random, SIZE, Store, one_batch, rings, write, zeroes};

/// A loop device over a sparse file.
struct Loop {
    device: PathBuf,
    _directory: TempDir,
}

impl Loop {
    /// A device of `len` bytes with sectors of `sector` bytes.
    fn new(len: u64, sector: u32) -> Result<Self, String> {
        fs::create_dir_all(DISK_DIRECTORY).unwrap();
        let directory = TempDir::new_in(DISK_DIRECTORY).unwrap();
        let file = directory.path().join("device");
        fs::File::create(&file).unwrap().set_len(len).unwrap();
        let shown = run("losetup", &["--find", "--show", "--sector-size", &sector.to_string(), text(&file)])?;
        Ok(Self { device: shown.trim().into(), _directory: directory })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", text(&self.device)]).unwrap();
    }
}

/// A small filesystem.
struct Mount {
    directory: TempDir,
    device: Option<Loop>,
}

impl Mount {
    fn tmpfs(len: u64) -> Result<Self, String> {
        let directory = TempDir::new().unwrap();
        run(
            "mount",
            &["-t", "tmpfs", "-o", &format!("size={len}"), "evenkeel-test", text(directory.path())],
        )?;
        Ok(Self { directory, device: None })
    }

    fn ext4(len: u64) -> Result<Self, String> {
        let (device, directory) = (Loop::new(len, 512)?, TempDir::new().unwrap());
        run("mkfs.ext4", &["-q", "-m", "0", text(&device.device)])?;
        run("mount", &[text(&device.device), text(directory.path())])?;
        Ok(Self { directory, device: Some(device) })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run("umount", &[text(self.directory.path())]).unwrap();
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the test made the path")
}

/// What a test needs, or `None` after saying why not: only root can have it.
fn with_root<T>(made: Result<T, String>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(reason) if rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists() => {
            panic!("root should be able to: {reason}")
        }
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

fn on(path: PathBuf) -> DiskConfig {
    DiskConfig { path, size: SIZE, metadata: Metadata::Internal, block_size: BlockSize::B512 }
}

/// A device is not ours before `metadata create`, keeps its data then, and carries random operations like a file
/// does: also 512-byte blocks on a device of 4 KiB blocks, many of one device block in flight at once.
#[test]
fn block_devices_serve_like_files() {
    for sector in [512, 4096] {
        let Some(device) = with_root(Loop::new(2 * SIZE, sector)) else { return };
        let config = on(device.device.clone());
        fs::OpenOptions::new()
            .write(true)
            .open(&config.path)
            .and_then(|file| {
                std::os::unix::fs::FileExt::write_all_at(&file, &[0xee; 8192], 0)?;
                file.sync_all()
            })
            .unwrap();
        for (number, ring) in rings().into_iter().enumerate() {
            ring.block_on(async {
                if number == 0 {
                    assert!(matches!(Backing::open(&config), Err(OpenError::Foreign { .. })));
                    Backing::create_metadata(&config, false).unwrap();
                }
                let (store, found) = Store::open(&config);
                assert_eq!(found, Found::Data);
                assert_eq!(store.disk.access().alignment, sector);
                assert!(store.disk.access().direct);
                assert!(matches!(Backing::open(&config), Err(OpenError::Busy { .. })));
                let mut model = store.read(0, SIZE).await;
                assert!(number > 0 || model[..8192] == [0xee; 8192]);
                let mut random = Random(u64::from(sector));
                for _batch in 0..30 {
                    one_batch(&store, &mut random, 60, &mut model, u64::from(sector)).await;
                }
                // Each block of 512 bytes on its own, all at once.
                let small =
                    (0..256_u64).map(|block| write(block * 512, &[u8::try_from(block).unwrap(); 512]));
                for answer in store.ask_all(small.collect()).await {
                    answer.unwrap();
                }
                for block in 0..256_usize {
                    model[block * 512..(block + 1) * 512].fill(u8::try_from(block).unwrap());
                }
                assert!(store.read(0, SIZE).await == model, "sectors of {sector} bytes, {ring:?}");
                store.done(zeroes(0, SIZE, true)).await;
                assert!(store.read(0, SIZE).await.iter().all(|byte| *byte == 0));
                let whole = DiskRequest::Allocation { extent: Extent::new(0, SIZE) };
                let Ok(DiskAnswer::Allocation(runs)) = store.ask(whole).await else { panic!("runs") };
                assert!(runs.len() == 1 && runs[0].mapped, "a device occupies all its space: {runs:?}");
                store.disk.close().await;
            });
        }
    }
}

/// A device that is mounted is not opened.
#[test]
fn a_mounted_device_is_in_use() {
    let Some(mount) = with_root(Mount::ext4(16 << 20)) else { return };
    let device = mount.device.as_ref().map(|device| device.device.clone()).unwrap();
    assert!(matches!(Backing::open(&on(device.clone())), Err(OpenError::Busy { .. })));
    assert!(matches!(Backing::create_metadata(&on(device), false), Err(OpenError::Busy { .. })));
}

/// A full disk is told as such; what was written before stays readable, and space that is given back is used again.
#[test]
fn a_full_filesystem_is_no_space() {
    for mount in [Mount::tmpfs(3 << 20), Mount::ext4(12 << 20)] {
        let Some(mount) = with_root(mount) else { return };
        for ring in rings() {
            let config = DiskConfig { size: 32 << 20, ..on(mount.directory.path().join("a")) };
            ring.block_on(async {
                let (store, _) = Store::open(&config);
                let chunk = vec![5; 256 << 10];
                let mut full_at = None;
                for at in (0..config.size).step_by(chunk.len()) {
                    match store.ask(write(at, &chunk)).await {
                        Ok(_) => {}
                        Err(error) => {
                            assert_eq!(error, DiskError::NoSpace);
                            full_at = Some(at);
                            break;
                        }
                    }
                }
                let full_at = full_at.expect("32 MiB do not fit");
                assert!(store.read(0, full_at).await.iter().all(|byte| *byte == 5));
                store.done(DiskRequest::Flush).await;
                store.done(zeroes(0, full_at, true)).await;
                store.done(DiskRequest::Flush).await;
                store.done(write(full_at, &chunk)).await;
                assert!(store.read(full_at, chunk.len() as u64).await == chunk);
                store.disk.close().await;
            });
            fs::remove_file(&config.path).unwrap();
        }
    }
}
