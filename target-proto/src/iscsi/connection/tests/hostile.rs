//! Streams of PDUs that no initiator would send, in any order, with any numbers.

use super::faults::{command, put};
use super::*;
use crate::iscsi::pdu::{
    DataOut, LogoutReason, LogoutRequest, ManagementAnswer, ManagementRequest, NopOut, Snack, TextRequest,
};

/// A generator of numbers, from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(self.0 >> 33).unwrap() % sides
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.roll(one_in) == 0
    }
}

/// A PDU with small numbers, so that they often meet.
fn pdu(dice: &mut Dice, cmd_sn: u32) -> Pdu {
    let immediate = dice.chance(4);
    let cmd_sn = cmd_sn.wrapping_add(dice.roll(3)).wrapping_sub(dice.roll(2));
    let (task, lun) = (dice.roll(6), u64::from(dice.roll(2)) << 48);
    let transfer = if dice.chance(2) { None } else { Some(dice.roll(40)) };
    let data = Bytes::from(vec![1; [0, 1, 512, 4096][dice.roll(4) as usize]]);
    match dice.roll(12) {
        0..=3 => {
            let (code, direction) = [
                (READ, Direction::Read),
                (WRITE, Direction::Write),
                (WRITE, Direction::Both),
                (READ, Direction::None),
            ][dice.roll(4) as usize];
            let mut command = command(cdb(code, dice.roll(8), dice.roll(6)), direction, dice.roll(4_000));
            (command.immediate, command.last) = (immediate, !dice.chance(4));
            (command.cmd_sn, command.task, command.lun) = (cmd_sn, task, lun);
            if direction == Direction::Write && data.len() <= 512 || dice.chance(8) {
                command.data = data;
            }
            command.attribute = [TaskAttribute::Simple, TaskAttribute::Ordered, TaskAttribute::HeadOfQueue]
                [dice.roll(3) as usize];
            Pdu::ScsiCommand(command)
        }
        4..=7 => Pdu::DataOut(DataOut {
            last: dice.chance(2),
            lun,
            task,
            transfer,
            exp_stat_sn: 0,
            data_sn: dice.roll(3),
            offset: dice.roll(4) * 512,
            data,
        }),
        8 if dice.chance(4) => Pdu::ManagementRequest(management(dice, immediate, lun, task, cmd_sn)),
        8..=9 => Pdu::NopOut(NopOut {
            immediate,
            lun,
            task: (!dice.chance(3)).then_some(task),
            transfer,
            cmd_sn,
            exp_stat_sn: 0,
            data,
        }),
        10 => Pdu::TextRequest(TextRequest {
            immediate,
            last: dice.chance(2),
            more: dice.chance(3),
            lun,
            task,
            transfer,
            cmd_sn,
            exp_stat_sn: 0,
            text: Bytes::from_static(b"SendTargets=\0X-a=1\0"),
        }),
        _ if dice.chance(20) => Pdu::LogoutRequest(LogoutRequest {
            immediate,
            reason: LogoutReason::CloseSession,
            task,
            cid: 0,
            cmd_sn,
            exp_stat_sn: 0,
        }),
        _ => Pdu::Snack(Snack { kind: 0, lun, task, transfer: 0, exp_stat_sn: 0, first: 0, count: 0 }),
    }
}

/// The Data-Outs that R2Ts among the PDUs of `output` ask for.
fn asked_for(output: &[u8]) -> Vec<DataOut> {
    let mut asked = Vec::new();
    let mut at = 0;
    while let Some(header) = output.get(at..at + 48) {
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        if header[0] == 0x31 {
            asked.push(DataOut {
                last: true,
                lun: u64::from(number(8)) << 32 | u64::from(number(12)),
                task: number(16),
                transfer: Some(number(20)),
                exp_stat_sn: 0,
                data_sn: 0,
                offset: number(40),
                data: Bytes::from(vec![2; number(44) as usize]),
            });
        }
        at += 48 + (number(4) as usize & 0x00ff_ffff).next_multiple_of(4);
    }
    asked
}

fn management(dice: &mut Dice, immediate: bool, lun: u64, task: u32, cmd_sn: u32) -> ManagementRequest {
    let functions = [
        ManagementFunction::AbortTask,
        ManagementFunction::AbortTaskSet,
        ManagementFunction::ClearTaskSet,
        ManagementFunction::LogicalUnitReset,
        ManagementFunction::TargetWarmReset,
    ];
    ManagementRequest {
        immediate,
        function: Some(functions[dice.roll(5) as usize]),
        lun,
        task: 50 + dice.roll(4),
        referenced_task: task,
        cmd_sn,
        exp_stat_sn: 0,
        ref_cmd_sn: cmd_sn.wrapping_sub(dice.roll(3)),
        exp_data_sn: 0,
    }
}

/// P13 and P14: whatever comes in whatever order, nothing falls over, tasks stay within their places, the window never
/// shrinks, no data is handed out that the command does not move, and at the end every task has settled.
#[test]
fn whatever_comes_every_task_settles() {
    let mut executed = 0;
    for seed in 1..=3000 {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let mut settings = settings();
        settings.offer.initial_r2t = dice.chance(2);
        settings.offer.burst_max = 1024;
        let mut pair = Pair::log_in(settings, false);
        let mut held: Vec<Execute> = Vec::new();
        let mut asked = Vec::new();
        let mut window = pair.connection.window.max();
        for step in 0..120 {
            let mut bytes = BytesMut::new();
            match asked.pop() {
                Some(wanted) if dice.chance(2) => put(&mut bytes, &Pdu::DataOut(wanted)),
                _ => put(&mut bytes, &pdu(&mut dice, pair.connection.window.expected())),
            }
            if dice.chance(10) {
                let at = dice.roll(48) as usize;
                bytes[at] = dice.roll(256).to_le_bytes()[0];
            }
            let mut effects = Vec::new();
            pair.connection.receive(pair.now, &mut bytes, &pair.disk, &mut effects);
            if !held.is_empty() && dice.chance(3) {
                let execute = held.swap_remove(dice.roll(u32::try_from(held.len()).unwrap()) as usize);
                let response = Response::status(ScsiStatus::Good);
                pair.connection.complete(execute.task, &response, &mut effects);
            }
            while let Some(effect) = effects.pop() {
                match effect {
                    Effect::Execute(execute) => {
                        let moved = pair.disk.transfer(execute.lun, &execute.cdb).data_out as usize;
                        assert!(execute.data_out.len() <= moved, "seed {seed}, step {step}");
                        held.push(execute);
                        executed += 1;
                    }
                    Effect::Manage(manage) => {
                        let answer = ManagementAnswer::Complete;
                        pair.connection.managed(manage.request, answer, &mut effects);
                    }
                    Effect::Abort(_) | Effect::Rejected(..) | Effect::Close(_) => {}
                }
            }
            assert!(pair.connection.tasks() <= 8 + IMMEDIATE_MAX, "seed {seed}, step {step}");
            let max = pair.connection.window.max();
            assert!(max.wrapping_sub(window) < 1 << 31, "seed {seed}, step {step}: the window shrank");
            window = max;
            asked.extend(asked_for(&drain(pair.connection.output())));
        }
        let mut effects = Vec::new();
        pair.connection.end(&mut effects);
        for execute in held {
            pair.connection.complete(execute.task, &Response::status(ScsiStatus::Good), &mut effects);
        }
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Execute(_))), "seed {seed}");
        assert_eq!(pair.connection.tasks(), 0, "seed {seed}");
    }
    assert!(executed > 10_000, "only {executed} tasks");
}
