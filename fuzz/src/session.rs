//! A whole iSCSI connection: login, commands, data, text, task management, each PDU perhaps mutated.

use std::{io::IoSlice, time::Duration};

use block::VolumeNumber;
use bytes::BytesMut;
use harness::{
    load::Random,
    raw::{Login as Request, Pdu, opcode},
    target::IQN,
};
use target_proto::{
    iscsi::{
        chap::{Challenger, Credentials},
        connection::{Connection, DiscoveredTarget, Effect, Host},
        login::{Access, Admission, Grant, Login, Progress},
        pdu::{Isid, ManagementAnswer, Output},
    },
    scsi::{Response, ScsiStatus, Transfer},
};
use zeroize::Zeroizing;

use crate::mutate::{index, mutate, pieces};

/// Logs in and sends what a seed says.
pub(crate) fn case(mut random: Random) {
    let door = Door { challenger: Challenger::new([7; 32]), chap: random.below(8) == 0 };
    let mut output = Output::new();
    let Some(established) = log_in(&mut random, &door, &mut output) else { return };
    let mut connection = Connection::new(established, output, Duration::ZERO);
    let mut buffer = BytesMut::new();
    let (mut effects, mut executing) = (Vec::new(), Vec::new());
    for cmd_sn in 1..=8 {
        let mut bytes = any(&mut random, cmd_sn).encode();
        if random.below(3) == 0 {
            mutate(&mut random, &mut bytes);
        }
        for piece in pieces(&mut random, &bytes) {
            buffer.extend_from_slice(piece);
            connection.receive(Duration::from_secs(1), &mut buffer, &Disk, &mut effects);
        }
        carry_out(&mut random, &mut connection, &mut effects, &mut executing);
        discard(connection.output());
    }
    connection.tick(Duration::from_mins(1), &mut effects);
    connection.end(&mut effects);
    while !executing.is_empty() || !effects.is_empty() {
        carry_out(&mut Random::new(0), &mut connection, &mut effects, &mut executing);
        for task in std::mem::take(&mut executing) {
            connection.complete(task, &Response::status(ScsiStatus::Good), &mut effects);
        }
    }
    assert_eq!(connection.tasks(), 0, "a task was left behind");
}

fn log_in(
    random: &mut Random,
    door: &Door,
    output: &mut Output,
) -> Option<target_proto::iscsi::login::Established> {
    let mut request = Request::normal(IQN);
    for _ in 0..random.below(3) {
        let (key, value) = KEYS[index(random, KEYS.len())];
        request = request.key(key, value);
    }
    let mut bytes = request.pdu().encode();
    if random.below(2) == 0 {
        mutate(random, &mut bytes);
    }
    let mut login = Login::new(8);
    let mut buffer = BytesMut::new();
    for piece in pieces(random, &bytes) {
        buffer.extend_from_slice(piece);
        match login.receive(&mut buffer, door, output) {
            Progress::Continue(next) => login = next,
            Progress::Ready(ready) => return Some(ready.accept(1, output)),
            Progress::Over(_) => return None,
        }
    }
    None
}

/// Executes some of what waits, and leaves the rest for later.
fn carry_out(
    random: &mut Random,
    connection: &mut Connection,
    effects: &mut Vec<Effect>,
    executing: &mut Vec<target_proto::iscsi::TaskId>,
) {
    for effect in std::mem::take(effects) {
        match effect {
            Effect::Execute(execute) => executing.push(execute.task),
            Effect::Manage(manage) => connection.managed(manage.request, ManagementAnswer::Complete, effects),
            Effect::Abort(_) | Effect::Rejected(..) | Effect::Close(_) => {}
        }
    }
    if random.below(2) == 0 {
        for task in std::mem::take(executing) {
            let response = match random.below(3) {
                0 => Response::status(ScsiStatus::Good),
                1 => Response::status(ScsiStatus::Busy),
                _ => Response::data(vec![0; 512]),
            };
            connection.complete(task, &response, effects);
        }
    }
}

fn discard(output: &mut Output) {
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); 16];
        let filled = output.slices(&mut slices);
        let len = slices[..filled].iter().map(|slice| slice.len()).sum();
        output.advance(len);
    }
}

/// A PDU of the full-feature phase with numbers that are plausible.
fn any(random: &mut Random, cmd_sn: u32) -> Pdu {
    let small = |random: &mut Random| u32::try_from(random.below(4)).expect("below 4");
    let opcode = OPCODES[index(random, OPCODES.len())];
    let mut pdu = Pdu::new(opcode).flags(FLAGS[index(random, FLAGS.len())]);
    pdu = pdu.word(16, small(random)).word(20, small(random) * 512).word(24, cmd_sn).word(28, 1);
    match opcode {
        opcode::SCSI_COMMAND => {
            let cdb = [CODES[index(random, CODES.len())], 0, 0, 0, 0, 0, 0, 0, 1];
            pdu.header[32..41].copy_from_slice(&cdb);
            pdu.data(vec![1; usize::try_from(random.below(3) * 512).expect("small")])
        }
        opcode::DATA_OUT => {
            let offset = small(random) * 512;
            pdu.word(20, small(random)).word(36, small(random)).word(40, offset).data(vec![1; 512])
        }
        opcode::TEXT => pdu.word(20, 0xffff_ffff).data(&b"SendTargets=All\0"[..]),
        opcode::NOP_OUT => pdu.word(20, 0xffff_ffff).data(&b"ping"[..]),
        _ => pdu,
    }
}

/// A unit whose commands move one block.
struct Disk;

impl Host for Disk {
    fn transfer(&self, _lun: u64, cdb: &[u8; 16]) -> Transfer {
        let len = u32::from(cdb[8]) * 512;
        match cdb[0] {
            0x28 => Transfer { data_in: len, data_out: 0 },
            0x2a => Transfer { data_in: 0, data_out: len },
            _ => Transfer::default(),
        }
    }

    fn volume(&self, lun: u64) -> Option<VolumeNumber> {
        (lun == 0).then_some(VolumeNumber(0))
    }

    fn targets(&self, _initiator: &str) -> Vec<DiscoveredTarget> {
        let portals = vec![("192.0.2.1:3260".to_owned(), 1); 4];
        vec![DiscoveredTarget { name: IQN.to_owned(), portals }; 40]
    }
}

struct Door {
    challenger: Challenger,
    chap: bool,
}

impl Admission for Door {
    fn admit(&self, _initiator: &str, target: &str) -> Access {
        if target != IQN {
            return Access::NotFound;
        }
        let secret = || Zeroizing::new(b"twelve-or-more".to_vec());
        let chap = self.chap.then(|| Credentials { user: "db".to_owned(), secret: secret() });
        Access::Granted(Grant { portal_group: 1, chap, mutual: None })
    }

    fn has_session(&self, _target: &str, _initiator: &str, _isid: Isid, tsih: u16) -> bool {
        tsih == 1
    }

    fn challenger(&self) -> &Challenger {
        &self.challenger
    }

    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(4);
    }
}

const KEYS: [(&str, &str); 8] = [
    ("InitialR2T", "Yes"),
    ("InitialR2T", "No"),
    ("ImmediateData", "No"),
    ("FirstBurstLength", "512"),
    ("MaxBurstLength", "512"),
    ("MaxRecvDataSegmentLength", "512"),
    ("HeaderDigest", "CRC32C,None"),
    ("X-tomorrow", "Yes"),
];
const OPCODES: [u8; 10] = [
    opcode::SCSI_COMMAND,
    opcode::SCSI_COMMAND,
    opcode::SCSI_COMMAND,
    opcode::DATA_OUT,
    opcode::DATA_OUT,
    opcode::TASK_MANAGEMENT,
    opcode::TEXT,
    opcode::NOP_OUT,
    opcode::SNACK,
    opcode::LOGOUT,
];
const FLAGS: [u8; 8] = [0x80, 0, 0xa1, 0xc1, 0x21, 0x81, 0x85, 0x87];
const CODES: [u8; 4] = [0x28, 0x2a, 0x2a, 0];
