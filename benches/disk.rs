//! 4 KiB random reads and writes of one backing file by each engine, and by fio on the same file, interleaved.
//!
//! `cargo bench --bench disk [-- DIRECTORY [SECONDS [DEPTH]]]`. The directory decides the filesystem: the default is
//! below `target/`, and `/dev/shm` shows the engine for files in memory. Per row: operations per second, and the
//! processor time of all threads per operation.

use std::{
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use block::{BlockSize, Extent, Payload};
use evenkeel::{
    disk::{Backing, Disk, DiskConfig, Engine, Metadata, Ring},
    volume::Mailbox,
};
use ops::metrics::Latencies;
use replication::{DiskOp, DiskRequest, Input};

const SIZE: u64 = 512 << 20;
const BLOCK: u64 = 4096;
const ROUNDS: usize = 3;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

/// One measurement.
#[derive(Clone, Copy)]
struct Rate {
    per_second: f64,
    cpu_micros: f64,
}

fn main() {
    // Cargo adds `--bench`.
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let argument = |number: usize| arguments.get(number).and_then(|argument| argument.parse::<u64>().ok());
    let directory = arguments.first().map_or_else(default_directory, PathBuf::from);
    let (seconds, depth) = (argument(1).unwrap_or(2), argument(2).unwrap_or(32));
    let path = directory.join("evenkeel-bench-disk.img");
    let config = DiskConfig { path, size: SIZE, metadata: Metadata::Internal, block_size: BlockSize::B4096 };
    let rings = [Ring::try_out(), Ring::Refused { reason: "measured".into() }];
    rings[1].block_on(prepare(&config));
    let mut rows = Vec::new();
    for kind in [Kind::Read, Kind::Write] {
        for _round in 0..ROUNDS {
            for ring in &rings {
                let (engine, rate) =
                    ring.block_on(measure(&config, kind, depth, Duration::from_secs(seconds)));
                let name = if engine == Engine::Uring { "io_uring" } else { "threads" };
                rows.push((kind, name, rate));
            }
            for engine in ["io_uring", "libaio"] {
                if let Some(rate) = fio(&config.path, engine, kind, depth, seconds) {
                    rows.push((kind, if engine == "libaio" { "fio libaio" } else { "fio io_uring" }, rate));
                }
            }
        }
    }
    print_medians(&rows, &config.path, depth);
    std::fs::remove_file(&config.path).expect("the file is ours");
}

fn default_directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tmp");
    std::fs::create_dir_all(&directory).expect("cargo's own directory can be written");
    directory
}

fn latencies() -> Arc<Latencies> {
    Arc::new(Latencies::new("bench", []))
}

/// Writes the whole file, so that no measurement allocates space.
async fn prepare(config: &DiskConfig) {
    let (backing, _) = Backing::open(config).expect("the directory takes a file of 512 MiB");
    let mailbox = Rc::new(Mailbox::new());
    let disk = Disk::start(backing, Rc::clone(&mailbox), latencies());
    let chunk = vec![0x5a; 1 << 20];
    for at in (0..SIZE).step_by(chunk.len()) {
        let data = Payload::from(chunk.clone());
        disk.submit(DiskOp(at), DiskRequest::Write { extent: Extent::new(at, 1 << 20), data, fua: false });
        disk.drain().await;
    }
    disk.submit(DiskOp(SIZE), DiskRequest::Flush);
    disk.close().await;
}

async fn measure(config: &DiskConfig, kind: Kind, depth: u64, time: Duration) -> (Engine, Rate) {
    let (backing, _) = Backing::open(config).expect("it was made by `prepare`");
    let mailbox = Rc::new(Mailbox::new());
    let disk = Disk::start(backing, Rc::clone(&mailbox), latencies());
    let data = Payload::from(vec![0xa5; 4096]);
    let mut seed = 1_u64;
    let mut submit = |op| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let extent = Extent::new((seed >> 33) % (SIZE / BLOCK) * BLOCK, BLOCK);
        disk.submit(
            op,
            match kind {
                Kind::Read => DiskRequest::Read { extent },
                Kind::Write => DiskRequest::Write { extent, data: data.clone(), fua: false },
            },
        );
    };
    let (started, cpu) = (Instant::now(), cpu_seconds());
    (0..depth).for_each(|op| submit(DiskOp(op)));
    let (mut batch, mut count) = (Vec::new(), 0_u32);
    while started.elapsed() < time {
        mailbox.take(&mut batch).await;
        for input in batch.drain(..) {
            if let Input::Disk { op, result } = input {
                result.expect("the disk works");
                count += 1;
                submit(op);
            }
        }
    }
    let (elapsed, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let engine = disk.access().engine;
    disk.close().await;
    (engine, Rate { per_second: f64::from(count) / elapsed, cpu_micros: cpu * 1e6 / f64::from(count) })
}

/// The processor time of all threads of this process, from proc(5): hundredths of seconds in fields 14 and 15.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc is mounted");
    let fields = stat.rsplit(')').next().expect("a name in brackets comes first").split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// What fio reaches on the same file; `None` where it is not installed or cannot.
fn fio(path: &Path, engine: &str, kind: Kind, depth: u64, seconds: u64) -> Option<Rate> {
    let (rw, section) = if kind == Kind::Read { ("randread", "read") } else { ("randwrite", "write") };
    let output = Command::new("fio")
        .arg(format!("--filename={}", path.display()))
        .args(["--name=disk", "--bs=4k", "--direct=1", "--time_based", "--output-format=json"])
        .args([format!("--rw={rw}"), format!("--ioengine={engine}"), format!("--iodepth={depth}")])
        .args([format!("--size={SIZE}"), format!("--runtime={seconds}")])
        .output()
        .ok()?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let job = &report["jobs"][0];
    let cpu_share = (job["usr_cpu"].as_f64()? + job["sys_cpu"].as_f64()?) / 100.0;
    let per_second = job[section]["iops"].as_f64().filter(|rate| *rate > 0.0)?;
    Some(Rate { per_second, cpu_micros: cpu_share * 1e6 / per_second })
}

fn print_medians(rows: &[(Kind, &'static str, Rate)], path: &Path, depth: u64) {
    println!("{}, 4 KiB random, depth {depth}, medians of {ROUNDS}", path.display());
    for kind in [Kind::Read, Kind::Write] {
        for name in ["io_uring", "threads", "fio io_uring", "fio libaio"] {
            let mut rates: Vec<_> =
                rows.iter().filter(|row| (row.0, row.1) == (kind, name)).map(|row| row.2).collect();
            rates.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
            if let Some(rate) = rates.get(rates.len() / 2) {
                let what = if kind == Kind::Read { "read" } else { "write" };
                println!(
                    "{what:>5}  {name:<13} {:>9.0} IOPS  {:>6.1} us CPU",
                    rate.per_second, rate.cpu_micros
                );
            }
        }
    }
}
