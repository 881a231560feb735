//! The ratios that the project holds itself to: each of two setups that run at the same time and are measured in turn.

use std::{
    any::Any,
    fmt::Write as _,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use harness::{
    cluster::{self, Cluster, Layout},
    raw::Session,
    target::{IQN, Kind, Spec, Target},
};
use tempfile::TempDir;

use super::{
    Plan,
    client::{self, Job, Measured},
    login, resync, section,
};
use crate::command;

/// What is compared with what.
struct Ratio {
    name: &'static str,
    goal: f64,
    job: Job,
    /// The one and the other; the ratio is of their rates.
    sides: [Side; 2],
}

/// Who serves, and over what.
#[derive(Clone, Copy)]
enum Side {
    /// One node, one file.
    Unmirrored,
    /// Two replicas and a tiebreaker, through the node of this number.
    Mirrored { through: usize },
    /// The same with an activity log of 67 extents, 268 MiB, and writes to so many bytes.
    SmallLog { span_bytes: u64 },
    /// In this mode over ways of this length and width; 0 bytes per second is no limit.
    Over { protocol: &'static str, delay: Duration, bytes_per_second: u64 },
}

const WRITE: Job = Job { write: true, depth: 16, ..Job::RANDOM_READ };
const ONE_BY_ONE: Job = Job { depth: 1, ..WRITE };
const LONG: Duration = Duration::from_millis(5);
const FAST_ETHERNET: u64 = 100_000_000 / 8;
const RATIOS: [Ratio; 8] = [
    Ratio {
        name: "mode C to unmirrored, random write 4 KiB, depth 16",
        goal: 0.6,
        job: WRITE,
        sides: [Side::Mirrored { through: 0 }, Side::Unmirrored],
    },
    Ratio {
        name: "the same with a flush after each write",
        goal: 0.6,
        job: Job { flush: true, ..WRITE },
        sides: [Side::Mirrored { through: 0 }, Side::Unmirrored],
    },
    Ratio {
        name: "through a diskless node to iSCSI straight to a replica, random read 4 KiB, depth 16",
        goal: 1.0,
        job: Job { depth: 16, ..Job::RANDOM_READ },
        sides: [Side::Mirrored { through: 2 }, Side::Mirrored { through: 0 }],
    },
    Ratio {
        name: "the same, random write",
        goal: 1.0,
        job: WRITE,
        sides: [Side::Mirrored { through: 2 }, Side::Mirrored { through: 0 }],
    },
    Ratio {
        name: "random write over 1 GiB to over 128 MiB, with an activity log for 268 MiB",
        goal: 0.9,
        job: WRITE,
        sides: [Side::SmallLog { span_bytes: 1 << 30 }, Side::SmallLog { span_bytes: 128 << 20 }],
    },
    Ratio {
        name: "mode A to C over 5 ms each way, random write 4 KiB, depth 16",
        goal: 2.5,
        job: WRITE,
        sides: [
            Side::Over { protocol: "A", delay: LONG, bytes_per_second: 0 },
            Side::Over { protocol: "C", delay: LONG, bytes_per_second: 0 },
        ],
    },
    Ratio {
        name: "mode A to C over 100 Mb/s, random write 4 KiB, depth 1",
        goal: 2.5,
        job: ONE_BY_ONE,
        sides: [
            Side::Over { protocol: "A", delay: Duration::ZERO, bytes_per_second: FAST_ETHERNET },
            Side::Over { protocol: "C", delay: Duration::ZERO, bytes_per_second: FAST_ETHERNET },
        ],
    },
    Ratio {
        name: "the same, depth 16",
        goal: 2.5,
        job: WRITE,
        sides: [
            Side::Over { protocol: "A", delay: Duration::ZERO, bytes_per_second: FAST_ETHERNET },
            Side::Over { protocol: "C", delay: Duration::ZERO, bytes_per_second: FAST_ETHERNET },
        ],
    },
];

/// Measures every ratio and puts the table into benches/README.md.
///
/// # Errors
/// When a node does not come up or an answer is wrong.
pub(super) fn run(plan: &Plan, dry_run: bool) -> Result<()> {
    let mut text = format!(
        "{}, {} runs of {} s each, in turn; medians. Client, nodes and disks share the machine.\n\n\
         | what to what | the one | the other | ratio | goal |\n|---|---|---|---|---|\n",
        section::machine()?,
        plan.pairs,
        plan.seconds
    );
    for ratio in &RATIOS {
        let [one, other] = measure(ratio, plan).context(ratio.name)?;
        row(&mut text, ratio.name, [one, other], "IOPS", ratio.goal)?;
    }
    let [resync, copy] = resync::measure(plan)?;
    row(&mut text, "idle resync to a raw copy over the same link, loopback", [resync, copy], "MiB/s", 0.9)?;
    section::put("ratios", &text, dry_run)
}

fn row(text: &mut String, name: &str, [one, other]: [f64; 2], unit: &str, goal: f64) -> Result<()> {
    println!("{name}: {one:.0} to {other:.0} {unit}, {:.2}", one / other);
    writeln!(text, "| {name} | {one:.0} {unit} | {other:.0} {unit} | {:.2} | {goal} |", one / other)?;
    Ok(())
}

/// The medians of both sides.
fn measure(ratio: &Ratio, plan: &Plan) -> Result<[f64; 2]> {
    let served = [Served::start(ratio.sides[0])?, Served::start(ratio.sides[1])?];
    let duration = Duration::from_secs(plan.seconds.into());
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..plan.pairs {
        for (served, rates) in served.iter().zip(&mut rates) {
            let run = served.run(ratio.job, duration)?;
            println!("{:>9.0} IOPS, {} us, p99 {} us", run.iops, run.median_us, run.p99_us);
            rates.push(run.iops);
        }
    }
    Ok(rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }))
}

/// A volume of which every block was written once.
struct Served {
    portal: SocketAddr,
    iqn: &'static str,
    span_bytes: u64,
    _nodes: Box<dyn Any>,
    _dir: TempDir,
}

impl Served {
    fn start(side: Side) -> Result<Self> {
        let dir = tempfile::tempdir_in(command::repository().join("target"))?;
        let mirrored = |protocol, cuttable, options| {
            let layout = Layout { size_bytes: super::SIZE_BYTES, protocol, disks: 2, cuttable, options };
            let cluster = Cluster::start_as(&command::binary(), dir.path(), &layout)?;
            cluster.wait_up_to_date().map(|()| cluster)
        };
        let (iqn, mut span_bytes) = (cluster::IQN, super::SIZE_BYTES);
        let (portal, nodes, iqn): (_, Box<dyn Any>, _) = match side {
            Side::Unmirrored => {
                let spec = Spec::new(dir.path(), super::SIZE_BYTES);
                let target = Target::start(&Kind::Evenkeel(command::binary()), &spec)?;
                (target.portal, Box::new(target), IQN)
            }
            Side::Mirrored { through } => {
                let cluster = mirrored("C", false, "")?;
                (cluster.portal(through), Box::new(cluster), iqn)
            }
            Side::SmallLog { span_bytes: span } => {
                span_bytes = span;
                let cluster = mirrored("C", false, "disk = { al-extents = 67 }\n")?;
                (cluster.portal(0), Box::new(cluster), iqn)
            }
            Side::Over { protocol, delay, bytes_per_second } => {
                // Filled over a good way.
                let cluster = mirrored(protocol, true, "")?;
                client::fill(session(cluster.portal(0), iqn)?, 0, SLOW_SPAN_BYTES)?;
                cluster.shape(delay, bytes_per_second);
                let (portal, span_bytes) = (cluster.portal(0), SLOW_SPAN_BYTES);
                return Ok(Self { portal, iqn, span_bytes, _nodes: Box::new(cluster), _dir: dir });
            }
        };
        client::fill(session(portal, iqn)?, 0, super::SIZE_BYTES)?;
        Ok(Self { portal, iqn, span_bytes, _nodes: nodes, _dir: dir })
    }

    fn run(&self, job: Job, duration: Duration) -> Result<Measured> {
        let job = Job { span_bytes: self.span_bytes, ..job };
        client::run(session(self.portal, self.iqn)?, 0, job, WARM_UP, duration)
    }
}

/// A session, once the node can serve: what one node knows already another may learn a moment later.
fn session(portal: SocketAddr, iqn: &str) -> Result<Session> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut session = Session::login(portal, &login(iqn), 0)?;
        match session.settle() {
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
            settled => return settled.map(|()| session),
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(10);
/// As much as it takes until the activity log knows the whole span after a promotion.
const WARM_UP: Duration = Duration::from_secs(1);
const SLOW_SPAN_BYTES: u64 = 128 << 20;
