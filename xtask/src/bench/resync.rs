//! How fast an idle cluster catches up, next to a plain copy of the same file over the same link.

use std::{
    io,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use harness::{
    cluster::{self, Cluster},
    raw::Session,
};

use super::{Plan, SIZE_BYTES, client, login};
use crate::command;

/// The medians of a resync of everything and of a copy, in MiB/s.
///
/// # Errors
/// When a node does not come up or a copy fails.
pub(super) fn measure(plan: &Plan) -> Result<[f64; 2]> {
    let dir = tempfile::tempdir_in(command::repository().join("target"))?;
    let mut cluster = Cluster::start(&command::binary(), dir.path(), SIZE_BYTES, "C")?;
    cluster.wait_up_to_date()?;
    fill(&cluster)?;
    let copied = dir.path().join("copied.img");
    // The first copy takes the space that the others write to.
    copy(&cluster.image(0), &copied)?;
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..plan.pairs {
        cluster.stop_node(1)?;
        fill(&cluster)?;
        cluster.start_node(1)?;
        let began = Instant::now();
        cluster.wait_up_to_date()?;
        rates[0].push(rate(began));
        let began = Instant::now();
        copy(&cluster.image(0), &copied)?;
        rates[1].push(rate(began));
        println!(
            "resync {:.0}, copy {:.0} MiB/s",
            rates[0][rates[0].len() - 1],
            rates[1][rates[1].len() - 1]
        );
    }
    Ok(rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }))
}

fn fill(cluster: &Cluster) -> Result<()> {
    let mut session = Session::login(cluster.portal(0), &login(cluster::IQN), 0)?;
    session.settle()?;
    client::fill(session, 0, SIZE_BYTES).map(drop)
}

/// MiB/s of the whole volume since then.
fn rate(began: Instant) -> f64 {
    let mib = u32::try_from(SIZE_BYTES >> 20).unwrap_or(u32::MAX);
    f64::from(mib) / began.elapsed().as_secs_f64()
}

/// From disk to disk through a TCP connection, past the page cache at both ends.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiver, _) = listener.accept()?;
    let dd = |file: String| {
        let mut dd = Command::new("dd");
        dd.arg(file).args(["bs=1M", "status=none"]);
        dd.arg(format!("count={}", SIZE_BYTES >> 20));
        dd
    };
    let mut read = dd(format!("if={}", from.display())).arg("iflag=direct").stdout(Stdio::piped()).spawn()?;
    let mut write = dd(format!("of={}", to.display()))
        .args(["iflag=fullblock", "oflag=direct", "conv=notrunc,fdatasync"])
        .stdin(Stdio::piped())
        .spawn()?;
    let mut out = read.stdout.take().context("dd writes to a pipe")?;
    let mut into = write.stdin.take().context("dd reads from a pipe")?;
    thread::scope(|scope| {
        let sent = scope.spawn(move || io::copy(&mut out, &mut sender));
        io::copy(&mut receiver, &mut into)?;
        drop(into);
        sent.join().expect("copying does not panic")
    })?;
    ensure!(read.wait()?.success() && write.wait()?.success(), "dd failed");
    Ok(())
}
