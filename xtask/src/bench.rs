//! `cargo xtask bench`: ratios to tgt over the same file and to our own without a mirror, and the longest waits, in
//! interleaved runs on one machine.
//!
//! The client has one core, the server the other. What is published are ratios; the machine is part of the report.

mod client;
mod ratios;
mod report;
mod resync;
mod section;
mod stalls;

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use harness::{
    cluster::{self, Cluster},
    raw::{Login, Session},
    target::{IQN, Kind, Spec, Target},
};

use self::{
    client::{Job, Measured},
    report::Report,
};
use crate::command;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Evenkeel and tgt over the same file.
    Targets,
    /// The ratios of mirrored volumes to others.
    Ratios,
    /// The longest waits when something breaks.
    Stalls,
}

/// How much to measure.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What; nothing is everything.
    pub(crate) parts: Vec<Part>,
    /// Runs of each contender per row.
    pub(crate) pairs: usize,
    /// Seconds per run.
    pub(crate) seconds: u32,
}

/// Who serves in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contender {
    Evenkeel,
    Tgt,
    TgtDirect,
    Mirrored,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Evenkeel => "evenkeel",
            Self::Tgt => "tgt",
            Self::TgtDirect => "tgt, O_DIRECT",
            Self::Mirrored => "evenkeel, mode C",
        }
    }
}

/// Measures what the plan says and writes the report unless `dry_run`.
///
/// # Errors
/// When a server does not come up or an answer is wrong.
pub(crate) fn run(plan: &Plan, dry_run: bool) -> Result<()> {
    if cfg!(debug_assertions) {
        return again_in_release(plan, dry_run);
    }
    command::run(&mut command::cargo(["build", "--release", "--bins"]), "The release build must pass.")?;
    let wanted = |part| plan.parts.is_empty() || plan.parts.contains(&part);
    if wanted(Part::Targets) {
        targets(plan, dry_run)?;
    }
    if wanted(Part::Ratios) {
        ratios::run(plan, dry_run)?;
    }
    if wanted(Part::Stalls) {
        stalls::run(plan, dry_run)?;
    }
    Ok(())
}

fn targets(plan: &Plan, dry_run: bool) -> Result<()> {
    // On a disk, not in /tmp, which may be memory.
    let dir = command::repository().join("target/bench");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let mut report = Report::default();
    prefill(&dir)?;
    for job in JOBS {
        let raw = raw(&dir, job, plan)?;
        report.raw(job, raw);
        let contenders = [Contender::Evenkeel, Contender::Tgt, Contender::TgtDirect];
        compare(plan, job, &contenders, &dir, &mut report)?;
    }
    for job in JOBS.iter().filter(|job| job.write) {
        compare(plan, *job, &[Contender::Mirrored], &dir, &mut report)?;
    }
    section::put("targets", &report.markdown(plan)?, dry_run)?;
    if !dry_run {
        report.write()?;
    }
    fs::remove_dir_all(&dir)?;
    Ok(())
}

/// The client has to be optimised, and cargo's alias builds for development.
fn again_in_release(plan: &Plan, dry_run: bool) -> Result<()> {
    let (pairs, seconds) = (plan.pairs.to_string(), plan.seconds.to_string());
    let mut again = command::cargo(["run", "--release", "--quiet", "-p", "xtask", "--", "bench"]);
    again.args(
        plan.parts.iter().filter_map(ValueEnum::to_possible_value).map(|part| part.get_name().to_owned()),
    );
    again.args(["--pairs", &pairs, "--seconds", &seconds]);
    if dry_run {
        again.arg("--dry-run");
    }
    command::run(&mut again, "What went wrong stands above.")
}

/// Runs the contenders in turn, as many rounds as the plan says.
fn compare(plan: &Plan, job: Job, contenders: &[Contender], dir: &Path, report: &mut Report) -> Result<()> {
    for round in 0..plan.pairs {
        for contender in contenders {
            let measured = measure(*contender, job, plan, dir)
                .with_context(|| format!("{} at {job:?}, round {round}", contender.name()))?;
            println!("{:18} {:24} {:>9.0} IOPS", contender.name(), job.name(), measured.iops);
            report.add(job, contender.name(), measured);
        }
    }
    Ok(())
}

fn measure(contender: Contender, job: Job, plan: &Plan, dir: &Path) -> Result<Measured> {
    let duration = Duration::from_secs(plan.seconds.into());
    if contender == Contender::Mirrored {
        return mirrored(job, duration);
    }
    let kind = match contender {
        Contender::Evenkeel => Kind::Evenkeel(command::binary()),
        _ => Kind::Tgt,
    };
    let direct = contender == Contender::TgtDirect;
    let spec = Spec { core: Some(SERVER_CORE), direct, ..Spec::new(dir, SIZE_BYTES) };
    let mut target = Target::start(&kind, &spec)?;
    let mut session = Session::login(target.portal, &login(IQN), target.lun())?;
    session.settle()?;
    let before = target.server().cpu_time()?;
    let mut measured = client::run(session, target.lun(), job, Duration::ZERO, duration)?;
    measured.cpu(target.server().cpu_time()?.saturating_sub(before));
    Ok(measured)
}

/// Three nodes on both cores; what counts is the ratio to the same without a mirror.
fn mirrored(job: Job, duration: Duration) -> Result<Measured> {
    let dir = tempfile::tempdir_in(command::repository().join("target"))?;
    let cluster = Cluster::start(&command::binary(), dir.path(), SIZE_BYTES, "C")?;
    cluster.wait_up_to_date()?;
    let mut session = Session::login(cluster.portal(0), &login(cluster::IQN), 0)?;
    session.settle()?;
    // As `prefill`: a write that takes new space from the filesystem costs more than the mirror.
    client::fill(session, 0, SIZE_BYTES)?;
    let mut session = Session::login(cluster.portal(0), &login(cluster::IQN), 0)?;
    session.settle()?;
    let server = |node: usize| cluster.server(node).context("the node does not run")?.cpu_time();
    let before = server(0)? + server(1)?;
    let mut measured = client::run(session, 0, job, Duration::ZERO, duration)?;
    measured.cpu((server(0)? + server(1)?).saturating_sub(before));
    Ok(measured)
}

fn login(iqn: &str) -> Login {
    let login = Login::normal(iqn).key("InitialR2T", "No").key("ImmediateData", "Yes");
    let login = login.key("MaxRecvDataSegmentLength", "262144").key("MaxBurstLength", "1048576");
    login.key("FirstBurstLength", "262144")
}

/// What the file itself does, without a network (`fio`).
fn raw(dir: &Path, job: Job, plan: &Plan) -> Result<f64> {
    let mut fio = Command::new("fio");
    fio.args(["--name=raw", "--direct=1", "--ioengine=io_uring", "--time_based", "--output-format=json"]);
    fio.arg(format!("--filename={}", dir.join("volume.img").display()));
    fio.arg(format!("--size={SIZE_BYTES}")).arg(format!("--runtime={}", plan.seconds));
    fio.arg(format!("--bs={}", job.len)).arg(format!("--iodepth={}", job.depth));
    let order = if job.sequential { "" } else { "rand" };
    let direction = if job.write { "write" } else { "read" };
    fio.arg(format!("--rw={order}{direction}"));
    let json: serde_json::Value = serde_json::from_str(&command::output(&mut fio)?)?;
    json["jobs"][0][direction]["iops"].as_f64().context("fio tells no IOPS")
}

/// Every block is written once, so that nobody is measured at reading holes.
fn prefill(dir: &Path) -> Result<()> {
    let kind = Kind::Evenkeel(command::binary());
    let target = Target::start(&kind, &Spec::new(dir, SIZE_BYTES))?;
    let mut session = Session::login(target.portal, &login(IQN), target.lun())?;
    session.settle()?;
    let outcome = client::fill(session, target.lun(), SIZE_BYTES)?;
    ensure!(outcome > 0, "nothing was written");
    Ok(())
}

const SIZE_BYTES: u64 = 1 << 30;
const SERVER_CORE: u32 = 1;
const JOBS: [Job; 8] = [
    Job { write: false, sequential: false, len: 4096, depth: 1, ..Job::RANDOM_READ },
    Job { write: false, sequential: false, len: 4096, depth: 16, ..Job::RANDOM_READ },
    Job { write: false, sequential: false, len: 4096, depth: 32, ..Job::RANDOM_READ },
    Job { write: true, sequential: false, len: 4096, depth: 1, ..Job::RANDOM_READ },
    Job { write: true, sequential: false, len: 4096, depth: 16, ..Job::RANDOM_READ },
    Job { write: true, sequential: false, len: 4096, depth: 32, ..Job::RANDOM_READ },
    Job { write: false, sequential: true, len: 131_072, depth: 8, ..Job::RANDOM_READ },
    Job { write: true, sequential: true, len: 131_072, depth: 8, ..Job::RANDOM_READ },
];
