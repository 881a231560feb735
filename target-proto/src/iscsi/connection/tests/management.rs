//! Task management: what ends, and when it is answered (RFC 7143 11.5 and 11.6).

use super::faults::{Raw, command};
use super::*;
use crate::iscsi::pdu::{ManagementAnswer, ManagementRequest, NO_TAG, ScsiCommand};

const FIRST: u32 = u32::MAX - 3;

fn answers(events: &[Event]) -> Vec<ManagementAnswer> {
    let answer = |event: &Event| match event {
        Event::Managed { answer, .. } => *answer,
        other => panic!("{other:?}"),
    };
    events.iter().map(answer).collect()
}

/// target.md recipe 59: ABORT TASK of a slow write is answered once the write has settled, and the write is not.
#[test]
fn an_abort_waits_for_the_write_to_settle() {
    let mut pair = Pair::log_in(settings(), false);
    pair.held = Some(Vec::new());
    let task = pair.write(0, &[1; 512]);
    pair.initiator.manage(ManagementFunction::AbortTask, 0, Some(task));
    assert!(pair.exchange().is_empty());
    assert!(matches!(pair.effects[..], [Effect::Abort(_)]));
    assert_eq!(pair.connection.aborting(), 1);
    pair.release();
    assert_eq!(answers(&pair.exchange()), [ManagementAnswer::Complete]);
    assert_eq!(pair.connection.tasks(), 0);
}

/// RFC 7143 11.6.1: a task whose data is still due ends at once, and what is on its way is dropped.
#[test]
fn a_task_that_waits_for_data_ends_at_once() {
    let mut raw = Raw::new(|offer| offer.initial_r2t = true);
    let write = command(cdb(WRITE, 0, 1), Direction::Write, 512);
    let r2t = raw.send(&Pdu::ScsiCommand(write));
    assert!(matches!(r2t[..], [Pdu::ReadyToTransfer(_)]));
    let answer = abort(&mut raw, 1, FIRST, FIRST + 1);
    assert_eq!(answer, ManagementAnswer::Complete);
    assert_eq!(raw.pair.connection.tasks(), 0);
}

fn abort(raw: &mut Raw, referenced_task: u32, ref_cmd_sn: u32, cmd_sn: u32) -> ManagementAnswer {
    manage(raw, Some(ManagementFunction::AbortTask), 0, referenced_task, ref_cmd_sn, cmd_sn)
}

fn manage(
    raw: &mut Raw,
    function: Option<ManagementFunction>,
    lun: u64,
    referenced_task: u32,
    ref_cmd_sn: u32,
    cmd_sn: u32,
) -> ManagementAnswer {
    let request = ManagementRequest {
        immediate: true,
        function,
        lun,
        task: 99,
        referenced_task,
        cmd_sn,
        exp_stat_sn: 0,
        ref_cmd_sn,
        exp_data_sn: 0,
    };
    match &raw.send(&Pdu::ManagementRequest(request))[..] {
        [Pdu::ManagementResponse(response)] => response.answer,
        other => panic!("{other:?}"),
    }
}

/// RFC 7143 11.6.1: a task that is not there does not exist, unless it is still on its way: then its number is used up.
#[test]
fn a_task_that_never_came_is_settled_by_its_number() {
    let mut raw = Raw::new(|_| {});
    assert_eq!(abort(&mut raw, 5, FIRST.wrapping_sub(1), FIRST), ManagementAnswer::NoTask);
    assert_eq!(abort(&mut raw, 5, FIRST.wrapping_add(1), FIRST.wrapping_add(1)), ManagementAnswer::NoTask);
    let read = |cmd_sn| {
        let read = command(cdb(READ, 0, 1), Direction::Read, 512);
        Pdu::ScsiCommand(ScsiCommand { cmd_sn, task: 6, ..read })
    };
    // The second command waits for the first, which is given up; then the second has its turn with the third.
    assert_eq!(raw.send(&read(FIRST + 1)), []);
    assert_eq!(abort(&mut raw, 5, FIRST, FIRST + 2), ManagementAnswer::Complete);
    assert_eq!(abort(&mut raw, 6, FIRST + 1, FIRST + 2), ManagementAnswer::Complete);
    assert_eq!(raw.send(&read(FIRST)), []);
    assert!(matches!(raw.send(&read(FIRST + 2))[..], [Pdu::DataIn(_)]));
}

/// target.md recipe 21, and functions that are not ours: each has its answer.
#[test]
fn what_cannot_be_done_is_said() {
    let mut raw = Raw::new(|_| {});
    let absent = 77 << 48;
    for (function, lun, answer) in [
        (Some(ManagementFunction::LogicalUnitReset), absent, ManagementAnswer::NoLun),
        (Some(ManagementFunction::AbortTaskSet), absent, ManagementAnswer::NoLun),
        (Some(ManagementFunction::ClearTaskSet), absent, ManagementAnswer::NoLun),
        (Some(ManagementFunction::AbortTask), absent, ManagementAnswer::NoLun),
        (Some(ManagementFunction::TaskReassign), 0, ManagementAnswer::NoReassignment),
        (Some(ManagementFunction::ClearAca), 0, ManagementAnswer::NotSupported),
        (None, 0, ManagementAnswer::NotSupported),
    ] {
        assert_eq!(manage(&mut raw, function, lun, NO_TAG, 0, FIRST), answer, "{function:?}");
    }
}

/// RFC 7143 4.2.3.3: a reset is answered when the tasks of this session have settled and the caller says that the
/// others' have, in either order.
#[test]
fn a_reset_waits_for_every_session() {
    for functions in [ManagementFunction::LogicalUnitReset, ManagementFunction::TargetWarmReset] {
        for others_first in [false, true] {
            let mut pair = Pair::log_in(settings(), false);
            pair.held = Some(Vec::new());
            pair.write(0, &[1; 512]);
            let request = pair.initiator.manage(functions, 0, None);
            assert!(pair.exchange().is_empty());
            assert!(matches!(
                pair.effects[..],
                [Effect::Abort(_), Effect::Manage(Manage { function, .. })] if function == functions
            ));
            let mut effects = Vec::new();
            if others_first {
                pair.connection.managed(request, ManagementAnswer::Complete, &mut effects);
                assert!(pair.exchange().is_empty());
                pair.release();
            } else {
                pair.release();
                assert!(pair.exchange().is_empty());
                pair.connection.managed(request, ManagementAnswer::Complete, &mut effects);
            }
            assert_eq!(answers(&pair.exchange()), [ManagementAnswer::Complete]);
            assert!(effects.is_empty() && !pair.connection.is_closed());
        }
    }
}

/// RFC 7143 11.5.1: TARGET COLD RESET ends the session behind its answer.
#[test]
fn a_cold_reset_closes() {
    let mut pair = Pair::log_in(settings(), false);
    let request = pair.initiator.manage(ManagementFunction::TargetColdReset, 0, None);
    assert!(pair.exchange().is_empty());
    let mut effects = Vec::new();
    pair.connection.managed(request, ManagementAnswer::Complete, &mut effects);
    assert!(matches!(effects[..], [Effect::Close(Close::ColdReset)]));
    assert_eq!(answers(&pair.exchange()), [ManagementAnswer::Complete]);
}

/// ABORT TASK SET ends this session's tasks on the volume; another session's reset or PREEMPT AND ABORT ends them
/// without an answer.
#[test]
fn task_sets_end_together() {
    let mut pair = Pair::log_in(settings(), false);
    pair.held = Some(Vec::new());
    for lba in 0..3 {
        pair.read(lba, 512);
    }
    pair.initiator.manage(ManagementFunction::AbortTaskSet, 0, None);
    assert!(pair.exchange().is_empty());
    assert_eq!(pair.connection.aborting(), 3);
    pair.release();
    assert_eq!(answers(&pair.exchange()), [ManagementAnswer::Complete]);

    pair.held = Some(Vec::new());
    pair.read(0, 512);
    assert!(pair.exchange().is_empty());
    let mut effects = Vec::new();
    pair.connection.abort(Some(VolumeNumber(1)), &mut effects);
    assert!(effects.is_empty());
    pair.connection.abort(Some(VolumeNumber(0)), &mut effects);
    assert!(matches!(effects[..], [Effect::Abort(_)]));
    pair.release();
    assert!(pair.exchange().is_empty());
    assert_eq!(pair.connection.aborting(), 0);
}

/// P14: when the session is over, nothing is executed any more, and it is known when the last task has settled.
#[test]
fn a_session_that_is_over_executes_nothing() {
    let mut pair = Pair::log_in(settings(), false);
    pair.held = Some(Vec::new());
    for lba in 0..8 {
        pair.write(lba, &[1; 512]);
    }
    assert!(pair.exchange().is_empty());
    let mut effects = Vec::new();
    pair.connection.end(&mut effects);
    assert_eq!(effects.iter().filter(|effect| matches!(effect, Effect::Abort(_))).count(), 8);
    assert_eq!(pair.connection.tasks(), 8);
    pair.write(9, &[1; 512]);
    assert!(pair.exchange().is_empty());
    pair.release();
    assert_eq!(pair.connection.tasks(), 0);
    assert!(pair.disk.0[9 * 512..10 * 512].iter().all(|byte| *byte == 0));
}
