//! Seeded mutations against everything that reads bytes of strangers (promise P13).
//!
//! A case is a seed: `fuzz SUBJECT --first SEED --count 1` repeats it exactly. What must not happen is a panic, an
//! answer without end, or memory that grows.

mod mutate;
mod pdu;
mod peer;
mod scsi;
mod session;

use std::{
    fs, panic,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use harness::load::Random;

/// Seeded mutations against one reader of foreign bytes.
#[derive(Debug, Parser)]
struct Arguments {
    /// What is fed.
    #[arg(value_enum)]
    subject: Subject,
    /// How many cases.
    #[arg(long, default_value_t = 1_000_000)]
    count: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// End sooner, after this many seconds.
    #[arg(long)]
    seconds: Option<u64>,
}

/// What can be fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Subject {
    /// The decoder of iSCSI PDUs.
    Pdu,
    /// A whole iSCSI connection, from login on.
    Session,
    /// The SCSI device server: CDBs and parameter lists.
    Scsi,
    /// The decoder of frames between nodes.
    Peer,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    name_the_case(arguments.subject);
    let mut case: Box<dyn FnMut(Random)> = match arguments.subject {
        Subject::Pdu => Box::new(pdu::case),
        Subject::Session => Box::new(session::case),
        Subject::Scsi => Box::new(scsi::case),
        Subject::Peer => Box::new(peer::case),
    };
    let began = Instant::now();
    let patience = arguments.seconds.map(Duration::from_secs);
    let mut done = 0;
    while done < arguments.count {
        if done.is_multiple_of(CLOCK_EVERY) && patience.is_some_and(|patience| began.elapsed() > patience) {
            break;
        }
        let seed = arguments.first + done;
        CASE.store(seed, Ordering::Relaxed);
        case(Random::new(seed));
        done += 1;
    }
    let peak = peak_bytes()?;
    ensure!(
        peak < PEAK_BYTES_MAX,
        "the process needed {peak} bytes: something grows with what strangers send"
    );
    println!("{done} cases, {:.1} s, peak {} MiB", began.elapsed().as_secs_f64(), peak >> 20);
    Ok(())
}

/// A panic tells which case it was: the release build aborts right after.
fn name_the_case(subject: Subject) {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |information| {
        let seed = CASE.load(Ordering::Relaxed);
        let name = subject.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        eprintln!(
            "case {seed} panics; repeat it with `cargo run --release -p fuzz -- {name} --first {seed} --count 1`"
        );
        default(information);
    }));
}

/// The most memory that this process ever had (`VmHWM` of /proc/self/status).
fn peak_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

static CASE: AtomicU64 = AtomicU64::new(0);
const CLOCK_EVERY: u64 = 256;
const PEAK_BYTES_MAX: u64 = 256 << 20;
