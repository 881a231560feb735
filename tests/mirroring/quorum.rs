//! A Primary that is alone: commands wait, and go on when the others are back.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::{
    cluster::{Cluster, IQN},
    raw::{Login, Pdu, Received, Session, Task, cdb, opcode},
};
use rustix::process::Signal;

use crate::cluster::{ALPHA, BRAVO, CHARLIE, session, start};

/// P9, and what `suspend-io` means: neither the write under way nor those that come later fail while a node has no quorum,
/// and all end well once it has.
#[test]
fn writes_wait_for_quorum() -> Result<()> {
    let (mut cluster, _dir) = start("C")?;
    let mut session = session(&cluster, ALPHA)?;
    let (task, first) = begin_write(&mut session, 0)?;
    session.follow(&first, &task)?;
    cluster.server(BRAVO).context("bravo runs")?.signal(Signal::STOP)?;
    let (_, under_way) = begin_write(&mut session, 8)?;
    cluster.kill_node(CHARLIE)?;
    cluster.kill_node(BRAVO)?;
    wait_suspended(&cluster)?;
    // That the others' paths are gone is told by unit attentions; apart from them, this path says that it serves.
    session.settle()?;
    let (_, later) = begin_write(&mut session, 16)?;
    let answered = session.receive_within(Duration::from_millis(300))?;
    ensure!(matches!(answered, Received::Silence), "{answered:?}");
    cluster.start_node(BRAVO)?;
    cluster.start_node(CHARLIE)?;
    // They may end in any order.
    let mut waiting = vec![under_way.read_word(16), later.read_word(16)];
    while !waiting.is_empty() {
        let answer = session.receive()?;
        ensure!((answer.opcode(), answer.header[3]) == (opcode::SCSI_RESPONSE, 0), "{:02x?}", answer.header);
        waiting.retain(|tag| *tag != answer.read_word(16));
    }
    cluster.wait_up_to_date()?;
    cluster.alive()
}

/// What waits can be aborted, by its task and by a reset, a session that has waiting commands can log out, and a node with
/// waiting commands stops in time.
#[test]
fn what_waits_can_be_ended() -> Result<()> {
    let (mut cluster, _dir) = start("C")?;
    let mut first = session(&cluster, ALPHA)?;
    let other = Login::normal(IQN).from_initiator("other", 7);
    let mut second = Session::login(cluster.portal(ALPHA), &other, 0)?;
    let (task, written) = begin_write(&mut first, 0)?;
    first.follow(&written, &task)?;
    cluster.kill_node(CHARLIE)?;
    cluster.kill_node(BRAVO)?;
    wait_suspended(&cluster)?;
    first.settle()?;
    let (_, waiting) = begin_write(&mut first, 0)?;
    assert_eq!(first.manage(ABORT_TASK, 0, waiting.read_word(16))?, COMPLETE);
    begin_write(&mut first, 8)?;
    assert_eq!(first.manage(LOGICAL_UNIT_RESET, 0, 0xffff_ffff)?, COMPLETE);
    first.settle()?;
    begin_write(&mut first, 16)?;
    let logout = Pdu::new(opcode::LOGOUT).flags(0x80).word(16, 0x777);
    let logout = first.numbered(logout);
    first.connection.send(&logout)?;
    let answer = first.receive()?;
    ensure!(answer.opcode() == opcode::LOGOUT_RESPONSE, "{answer:?}");
    second.settle()?;
    begin_write(&mut second, 24)?;
    cluster.stop_node(ALPHA)
}

/// Sends a write and does not wait for it.
fn begin_write(session: &mut Session, block: u32) -> Result<(Task, Pdu)> {
    let task = Task::write(cdb::ten(cdb::WRITE_10, block, 1), []).expecting(512).immediate([7; 512]);
    let command = session.command(&task);
    session.connection.send(&command)?;
    Ok((task, command))
}

/// Waits until alpha holds what it is asked.
fn wait_suspended(cluster: &Cluster) -> Result<()> {
    for _ in 0..200 {
        if cluster.status(ALPHA)?[0]["suspended"] == true {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    anyhow::bail!("alpha has quorum alone: {}", cluster.evenkeel(ALPHA, &["status"])?)
}

/// Functions of task management (RFC 7143 11.5.1), and its answer that it is done.
const ABORT_TASK: u8 = 1;
const LOGICAL_UNIT_RESET: u8 = 5;
const COMPLETE: u8 = 0;
