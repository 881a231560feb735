//! `evenkeel demo --check`: writes through iSCSI, kills the Primary under load, fails over, resynchronises, reads
//! through the diskless node, and compares the replicas byte for byte.
//!
//! Every block that is written says which block it is and which write of it this was, so that each read can be judged:
//! it has to be the last acknowledged write, or one whose outcome is unknown because the node died under it.

use std::{
    fs::File,
    io::Read as _,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use block::Payload;
use target_proto::iscsi::initiator::Settings;

use super::nodes::{IQN, NAMES, Nodes, RESOURCE, SIZE};
use crate::initiator::{Request, Session};

const ALPHA: usize = 0;
const BRAVO: usize = 1;
const CHARLIE: usize = 2;

/// Runs the check.
pub(super) async fn run(nodes: &mut Nodes) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut check = Check { history: History::new(), random: 1, started };

    let mut session = open(nodes, ALPHA).await?;
    check.write(&mut session, WRITES).await?;
    session.request(Request::Flush).await?;
    check.read(&mut session).await?;
    check.say(&format!("{WRITES} writes of 4 KiB through alpha, mode C, and read back"));

    let killed = check.write_until_killed(&mut session, nodes).await?;
    check.say(&format!("alpha killed with SIGKILL under load, {killed} writes later"));

    let lost = Instant::now();
    let mut session = open(nodes, BRAVO).await?;
    check.read(&mut session).await?;
    let pause = lost.elapsed().as_secs_f64();
    check.say(&format!("bravo took over and has every acknowledged write ({pause:.1} s after the kill)"));

    check.write(&mut session, WRITES).await?;
    check.say(&format!("{WRITES} writes through bravo, which alpha misses"));
    nodes.start(ALPHA)?;
    check.write(&mut session, WRITES).await?;
    wait_up_to_date(nodes).await?;
    check.read(&mut session).await?;
    session.close().await?;
    check.say(&format!("alpha is back and UpToDate, {WRITES} writes later"));

    let mut session = open(nodes, CHARLIE).await?;
    check.read(&mut session).await?;
    session.close().await?;
    check.say("the same read through charlie, which has no disk");

    nodes.stop()?;
    compare(nodes)?;
    check.say(&format!("the replicas of alpha and bravo are identical, {} MiB", SIZE >> 20));
    println!("\nverdict: good. {} acknowledged writes, none lost.", check.history.acknowledged);
    Ok(())
}

/// Logs in as soon as the node serves.
async fn open(nodes: &Nodes, node: usize) -> anyhow::Result<Session> {
    let portal = SocketAddr::from((Ipv4Addr::LOCALHOST, nodes.ports(node).iscsi));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let settings = Settings::new("iqn.2026-11.io.evenkeel:demo-check", IQN);
        match Session::open(portal, settings, PATIENCE).await {
            Ok(session) => return Ok(session),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("{} does not serve", NAMES[node]));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn wait_up_to_date(nodes: &Nodes) -> anyhow::Result<()> {
    let deadline = Instant::now() + RESYNC_MAX;
    loop {
        match nodes.ask(ALPHA, &["wait", RESOURCE, "up-to-date", "--timeout", "60s"]) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Compares the data areas of both replicas.
fn compare(nodes: &Nodes) -> anyhow::Result<()> {
    let open = |node| File::open(nodes.image(node)).map(|file| file.take(SIZE));
    let (mut first, mut second) = (open(ALPHA)?, open(BRAVO)?);
    let (mut ours, mut theirs) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for at in (0..SIZE).step_by(1 << 20) {
        first.read_exact(&mut ours)?;
        second.read_exact(&mut theirs)?;
        if ours != theirs
            && let Some(offset) = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs)
        {
            bail!("the replicas of alpha and bravo differ at byte {}", at + offset as u64);
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Check {
    history: History,
    random: u64,
    started: Instant,
}

impl Check {
    fn say(&self, what: &str) {
        println!("{:6.1} s  ok  {what}", self.started.elapsed().as_secs_f64());
    }

    /// Writes random blocks.
    async fn write(&mut self, session: &mut Session, count: u32) -> anyhow::Result<()> {
        let Self { history, random, .. } = self;
        let history = std::cell::RefCell::new(history);
        let mut left = count;
        let next = || {
            left = left.checked_sub(1)?;
            Some(history.borrow_mut().write(next_block(random)))
        };
        let done = |request, _| history.borrow_mut().acknowledge(&request);
        session.pipeline(DEPTH, next, done).await.context("a write failed")
    }

    /// Writes until the Primary is killed in the middle. Gives how many writes were acknowledged before.
    async fn write_until_killed(&mut self, session: &mut Session, nodes: &mut Nodes) -> anyhow::Result<u64> {
        let Self { history, random, .. } = self;
        let before = history.acknowledged;
        let history = std::cell::RefCell::new(history);
        let next = || Some(history.borrow_mut().write(next_block(random)));
        let mut killed = Ok(());
        let done = |request, _| {
            let mut history = history.borrow_mut();
            history.acknowledge(&request);
            if history.acknowledged == before + KILL_AFTER {
                killed = nodes.kill(ALPHA);
            }
        };
        let outcome = session.pipeline(DEPTH, next, done).await;
        killed.context("cannot kill alpha")?;
        ensure!(outcome.is_err(), "alpha answers although it was killed");
        Ok(history.into_inner().acknowledged - before)
    }

    /// Reads every block and judges it.
    async fn read(&mut self, session: &mut Session) -> anyhow::Result<()> {
        let mut block = 0;
        let next = || {
            let offset = block * BLOCK_LEN;
            block += 1;
            (block <= BLOCKS).then_some(Request::Read { offset, len: 4096 })
        };
        let mut wrong = None;
        let done = |request, data: Payload| {
            if let Err(error) = self.history.judge(&request, &data) {
                wrong.get_or_insert(error);
            }
        };
        session.pipeline(DEPTH, next, done).await.context("a read failed")?;
        wrong.map_or(Ok(()), Err)
    }
}

/// What each block may hold.
#[derive(Debug)]
struct History {
    /// For each block the last write that is known to be there, and a later one whose outcome is unknown.
    blocks: Vec<(u64, Option<u64>)>,
    writes: u64,
    acknowledged: u64,
}

impl History {
    fn new() -> Self {
        let blocks = usize::try_from(BLOCKS).expect("a small number");
        Self { blocks: vec![(0, None); blocks], writes: 0, acknowledged: 0 }
    }

    /// The next write, to `wanted` or the next block that no write is under way to.
    fn write(&mut self, wanted: usize) -> Request {
        self.writes += 1;
        let idle = |at: &usize| self.blocks[*at].1.is_none();
        let at = (wanted..self.blocks.len()).chain(0..wanted).find(idle).expect("far more blocks than depth");
        self.blocks[at].1 = Some(self.writes);
        Request::Write { offset: at as u64 * BLOCK_LEN, data: content(at, self.writes) }
    }

    fn acknowledge(&mut self, request: &Request) {
        let Request::Write { offset, .. } = request else { return };
        let (known, unknown) = &mut self.blocks[block_of(*offset)];
        *known = unknown.take().expect("one write of a block at a time");
        self.acknowledged += 1;
    }

    fn judge(&mut self, request: &Request, data: &Payload) -> anyhow::Result<()> {
        let Request::Read { offset, .. } = request else { return Ok(()) };
        let at = block_of(*offset);
        let (known, unknown) = self.blocks[at];
        let expected = |write: u64| if write == 0 { vec![0; 4096].into() } else { content(at, write) };
        let found = [Some(known), unknown].into_iter().flatten().find(|write| *data == expected(*write));
        let Some(found) = found else {
            bail!("block {at} holds neither write {known}, the last acknowledged, nor a later one");
        };
        // Once it was seen, it has to stay.
        self.blocks[at] = (found, None);
        Ok(())
    }
}

/// A block's content: its number and the write's, over and over.
fn content(block: usize, write: u64) -> Payload {
    let mut bytes = Vec::with_capacity(4096);
    while bytes.len() < 4096 {
        bytes.extend((block as u64).to_le_bytes());
        bytes.extend(write.to_le_bytes());
    }
    bytes.into()
}

fn block_of(offset: u64) -> usize {
    usize::try_from(offset / BLOCK_LEN).expect("a small number")
}

/// A random block (xorshift).
fn next_block(random: &mut u64) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    usize::try_from(*random % BLOCKS).expect("a small number")
}

const BLOCK_LEN: u64 = 4096;

/// The blocks that are written: the first 64 MiB.
const BLOCKS: u64 = 16_384;
const DEPTH: usize = 32;
const WRITES: u32 = 10_000;
const KILL_AFTER: u64 = 3_000;

/// How long a node may take to serve after another died.
const PATIENCE: Duration = Duration::from_secs(20);

const RESYNC_MAX: Duration = Duration::from_mins(1);
