//! What an initiator does wrong, byte by byte, and what it gets for it: the recipes of `target.md` section 3. After
//! each fault the session goes on.

use super::*;
use crate::iscsi::pdu::{DataOut, Decoder, Digests, LogoutReason, LogoutRequest, NO_TAG, ScsiCommand, Snack};

const FIRST: u32 = u32::MAX - 3;

pub(super) fn command(cdb: [u8; 16], direction: Direction, len: u32) -> ScsiCommand {
    ScsiCommand {
        immediate: false,
        last: true,
        direction,
        attribute: TaskAttribute::Simple,
        lun: 0,
        task: 1,
        expected_len: len,
        cmd_sn: FIRST,
        exp_stat_sn: 0,
        cdb,
        bidirectional_len: None,
        data: Bytes::new(),
    }
}

fn write(len: u32) -> ScsiCommand {
    command(cdb(WRITE, 0, len / 512), Direction::Write, len)
}

fn out(transfer: Option<u32>, offset: u32, data: &[u8], last: bool) -> DataOut {
    DataOut {
        last,
        lun: 0,
        task: 1,
        transfer,
        exp_stat_sn: 0,
        data_sn: 0,
        offset,
        data: Bytes::copy_from_slice(data),
    }
}

pub(super) fn put(bytes: &mut BytesMut, pdu: &Pdu) {
    let mut output = Output::new();
    pdu.write(&mut output);
    bytes.extend_from_slice(&drain(&mut output));
}

/// A target that is spoken to in bytes.
pub(super) struct Raw {
    pub(super) pair: Pair,
    decoder: Decoder,
    next: u32,
}

impl Raw {
    pub(super) fn new(offer: impl FnOnce(&mut Parameters)) -> Self {
        let mut settings = settings();
        offer(&mut settings.offer);
        let decoder = Decoder::new(Sender::Target, DATA_SEGMENT_MAX, Digests::default());
        Self { pair: Pair::log_in(settings, false), decoder, next: FIRST }
    }

    /// Sends a PDU as it is, and returns what comes back.
    pub(super) fn send(&mut self, pdu: &Pdu) -> Vec<Pdu> {
        let mut bytes = BytesMut::new();
        put(&mut bytes, pdu);
        self.send_bytes(bytes)
    }

    pub(super) fn send_bytes(&mut self, mut bytes: BytesMut) -> Vec<Pdu> {
        self.pair.give(&mut bytes);
        self.answers()
    }

    pub(super) fn answers(&mut self) -> Vec<Pdu> {
        let mut answer = drain(self.pair.connection.output());
        std::iter::from_fn(|| self.decoder.next(&mut answer).unwrap().map(|received| received.pdu)).collect()
    }

    /// Sends a command with the number that is due.
    fn command(&mut self, command: ScsiCommand) -> Vec<Pdu> {
        let cmd_sn = self.next;
        self.next = cmd_sn.wrapping_add(1);
        self.send(&Pdu::ScsiCommand(ScsiCommand { cmd_sn, ..command }))
    }

    /// The session is as good as new: a write and a read succeed, and no task is left.
    fn works(&mut self) {
        assert_eq!(self.pair.connection.tasks(), 0, "a task is left");
        let data = Bytes::from(vec![9; 512]);
        let written = self.command(ScsiCommand { task: 77, data: data.clone(), ..write(512) });
        assert_eq!(status(&written), 0, "{written:?}");
        let read = self.command(ScsiCommand { task: 78, ..command(cdb(READ, 0, 1), Direction::Read, 512) });
        match &read[..] {
            [Pdu::DataIn(read)] => assert_eq!(read.data.to_bytes(), data),
            other => panic!("{other:?}"),
        }
    }
}

/// The status of the one response.
fn status(answers: &[Pdu]) -> u8 {
    match answers {
        [Pdu::ScsiResponse(response)] => response.status,
        [Pdu::DataIn(data)] => data.status.unwrap().status,
        other => panic!("{other:?}"),
    }
}

fn residual(answers: &[Pdu]) -> Residual {
    match answers {
        [Pdu::ScsiResponse(response)] => response.residual,
        [Pdu::DataIn(data)] => data.status.unwrap().residual,
        other => panic!("{other:?}"),
    }
}

fn rejected(answers: &[Pdu]) -> RejectReason {
    match answers {
        [Pdu::Reject(reject)] => {
            assert_eq!(reject.rejected.len(), 48);
            reject.reason
        }
        other => panic!("{other:?}"),
    }
}

/// The tag, offset and length of the one R2T.
fn asked(answers: &[Pdu]) -> (Option<u32>, u32, u32) {
    match answers {
        [Pdu::ReadyToTransfer(r2t)] => (Some(r2t.transfer), r2t.offset, r2t.len),
        other => panic!("{other:?}"),
    }
}

/// The additional sense code and qualifier of a failed task.
fn failed(answers: &[Pdu]) -> (u8, u8) {
    match answers {
        [Pdu::ScsiResponse(response)] => {
            assert_eq!((response.status, response.sense[2]), (2, 0x0b), "ABORTED COMMAND");
            (response.sense[12], response.sense[13])
        }
        other => panic!("{other:?}"),
    }
}

/// Recipe 8, and libiscsi's suite of CmdSN: old and far numbers are ignored.
#[test]
fn numbers_outside_the_window_are_ignored() {
    let mut raw = Raw::new(|_| {});
    raw.works();
    for cmd_sn in [FIRST, FIRST.wrapping_sub(1), FIRST.wrapping_add(1010)] {
        let old = ScsiCommand { cmd_sn, task: 5, ..command(cdb(READ, 0, 1), Direction::Read, 512) };
        assert_eq!(raw.send(&Pdu::ScsiCommand(old)), []);
    }
    raw.works();
}

/// Recipe 14: no more is asked for than the CDB moves, and the residual tells the rest.
#[test]
fn an_expected_length_does_not_size_anything() {
    let mut raw = Raw::new(|offer| offer.initial_r2t = true);
    let huge = ScsiCommand { expected_len: u32::MAX, ..write(512) };
    let answers = raw.command(huge);
    let (transfer, offset, len) = asked(&answers);
    assert_eq!((offset, len), (0, 512));
    let done = raw.send(&Pdu::DataOut(out(transfer, 0, &[1; 512], true)));
    assert_eq!((status(&done), residual(&done)), (0, Residual::Underflow(u32::MAX - 512)));
    raw.works();
}

/// RFC 7143 11.4.5 and libiscsi's Residuals: fewer and more bytes than expected, both ways, with all ways to send.
#[test]
fn residuals_tell_the_difference() {
    for initial_r2t in [false, true] {
        let mut raw = Raw::new(|offer| offer.initial_r2t = initial_r2t);
        let wrote = |raw: &mut Raw, expected: u32, blocks: u32| {
            let data = Bytes::from(vec![3; expected as usize]);
            let write = command(cdb(WRITE, 0, blocks), Direction::Write, expected);
            raw.command(ScsiCommand { data, ..write })
        };
        for (expected, blocks, difference) in [
            (0, 1, Residual::Overflow(512)),
            (10_000, 1, Residual::Underflow(9488)),
            (200, 1, Residual::Overflow(312)),
            (512, 2, Residual::Overflow(512)),
            (1024, 2, Residual::None),
        ] {
            let answers = wrote(&mut raw, expected, blocks);
            assert_eq!((status(&answers), residual(&answers)), (0, difference), "{expected} of {blocks}");
        }
        for (expected, difference, len) in [
            (0, Residual::Overflow(512), 0),
            (10_000, Residual::Underflow(9488), 512),
            (200, Residual::Overflow(312), 200),
        ] {
            let answers = raw.command(command(cdb(READ, 0, 1), Direction::Read, expected));
            assert_eq!((status(&answers), residual(&answers)), (0, difference));
            let sent = |pdu: &Pdu| if let Pdu::DataIn(data) = pdu { data.data.len() } else { 0 };
            assert_eq!(answers.iter().map(sent).sum::<usize>(), len);
        }
        raw.works();
    }
}

/// Recipe 15: immediate data where it was declined, or more than FirstBurstLength or than announced.
#[test]
fn unwelcome_immediate_data_is_rejected() {
    let mut raw = Raw::new(|offer| offer.immediate_data = false);
    let unwelcome = ScsiCommand { data: Bytes::from(vec![1; 512]), ..write(512) };
    assert_eq!(rejected(&raw.command(unwelcome.clone())), RejectReason::Protocol);
    assert_eq!(raw.pair.connection.tasks(), 0);

    let mut raw = Raw::new(|offer| offer.first_burst_max = 1024);
    let long = ScsiCommand { data: Bytes::from(vec![1; 1536]), ..write(4096) };
    assert_eq!(rejected(&raw.command(long)), RejectReason::Protocol);
    let more_than_announced = ScsiCommand { expected_len: 200, ..unwelcome };
    assert_eq!(rejected(&raw.command(more_than_announced)), RejectReason::Protocol);
    raw.works();
}

/// Recipe 16: immediate data on a read.
#[test]
fn a_read_brings_no_data() {
    let mut raw = Raw::new(|_| {});
    let read = command(cdb(READ, 0, 1), Direction::Read, 512);
    let answers = raw.command(ScsiCommand { data: Bytes::from(vec![1; 512]), ..read });
    assert_eq!(rejected(&answers), RejectReason::Protocol);
    raw.works();
}

/// Recipe 17: data beside its place, however the offset wraps round. The task fails; it never hangs.
#[test]
fn data_beside_its_place_is_rejected() {
    for offset in [512, 0x7fff_fe00, 0xffff_fe00, u32::MAX] {
        let mut raw = Raw::new(|offer| offer.initial_r2t = true);
        let (transfer, ..) = asked(&raw.command(write(8192)));
        let answers = raw.send(&Pdu::DataOut(out(transfer, offset, &[1; 512], true)));
        assert_eq!(rejected(&answers[..1]), RejectReason::InvalidField);
        assert_eq!(failed(&answers[1..]), (0x0c, 0x0c));
        raw.works();
    }
}

/// RFC 7143 11.17.1: a task that fails for one Data-Out is answered behind the last one that is due.
#[test]
fn a_failed_task_waits_for_its_last_data() {
    let mut raw = Raw::new(|offer| offer.initial_r2t = true);
    let (transfer, ..) = asked(&raw.command(write(8192)));
    let answers = raw.send(&Pdu::DataOut(out(transfer, 512, &[1; 512], false)));
    assert_eq!(rejected(&answers), RejectReason::InvalidField);
    assert_eq!(raw.send(&Pdu::DataOut(out(transfer, 1024, &[1; 512], false))), []);
    let answers = raw.send(&Pdu::DataOut(out(transfer, 1536, &[1; 512], true)));
    assert_eq!(failed(&answers), (0x0c, 0x0c));
    raw.works();
}

/// Recipe 18: what ends early is asked for again from where it ended.
#[test]
fn short_data_is_asked_for_again() {
    let mut raw = Raw::new(|offer| offer.initial_r2t = true);
    let (transfer, ..) = asked(&raw.command(write(8192)));
    let again = raw.send(&Pdu::DataOut(out(transfer, 0, &[1; 512], true)));
    let (transfer, offset, len) = asked(&again);
    assert_eq!((offset, len), (512, 7680));
    let empty = raw.send(&Pdu::DataOut(out(transfer, 512, &[], true)));
    let (transfer, offset, len) = asked(&empty);
    assert_eq!((offset, len), (512, 7680));
    assert_eq!(status(&raw.send(&Pdu::DataOut(out(transfer, 512, &[2; 7680], true)))), 0);
    assert_eq!(raw.pair.disk.0[..8192].iter().map(|byte| u32::from(*byte)).sum::<u32>(), 512 + 2 * 7680);
    raw.works();

    // Unsolicited data that ends early is the initiator's right.
    let mut raw = Raw::new(|_| {});
    assert_eq!(raw.command(ScsiCommand { last: false, ..write(8192) }), []);
    let (_, offset, len) = asked(&raw.send(&Pdu::DataOut(out(None, 0, &[1; 1024], true))));
    assert_eq!((offset, len), (1024, 7168));
}

/// CVE-2021-28361: a Data-Out without data, where more is announced, leads nowhere.
#[test]
fn empty_data_in_the_middle_is_rejected() {
    let mut raw = Raw::new(|offer| offer.initial_r2t = true);
    let (transfer, ..) = asked(&raw.command(write(8192)));
    assert_eq!(rejected(&raw.send(&Pdu::DataOut(out(transfer, 0, &[], false)))), RejectReason::InvalidField);
    assert_eq!(failed(&raw.send(&Pdu::DataOut(out(transfer, 0, &[1; 8192], true)))), (0x0c, 0x0d));
    raw.works();
}

/// Recipe 19 and libiscsi's suite of DataSN: a DataSN out of order, whichever it is.
#[test]
fn a_wrong_data_number_fails_the_task() {
    for data_sn in [1, 7, 27, u32::MAX] {
        let mut raw = Raw::new(|_| {});
        assert_eq!(raw.command(ScsiCommand { last: false, ..write(1024) }), []);
        let answers = raw.send(&Pdu::DataOut(DataOut { data_sn, ..out(None, 0, &[1; 512], false) }));
        assert_eq!(rejected(&answers), RejectReason::Protocol);
        assert_eq!(failed(&raw.send(&Pdu::DataOut(out(None, 512, &[1; 512], true)))), (0x0c, 0x0c));
        raw.works();
    }
}

/// Recipe 19: unsolicited data although InitialR2T is Yes, announced or not.
#[test]
fn unsolicited_data_has_to_be_agreed_on() {
    let mut raw = Raw::new(|offer| offer.initial_r2t = true);
    let announced = raw.command(ScsiCommand { last: false, ..write(512) });
    assert_eq!(rejected(&announced), RejectReason::Protocol);
    assert_eq!(raw.send(&Pdu::DataOut(out(None, 0, &[1; 512], true))), []);
    raw.works();
    let (transfer, ..) = asked(&raw.command(write(512)));
    assert_eq!(rejected(&raw.send(&Pdu::DataOut(out(None, 0, &[1; 512], true)))), RejectReason::Protocol);
    assert_eq!(failed(&raw.send(&Pdu::DataOut(out(transfer, 0, &[1; 512], true)))), (0x0c, 0x0c));
    raw.works();
}

/// Data for an R2T that was never sent is rejected; for a task that is gone, it is on its way after an abort.
#[test]
fn data_needs_an_r2t() {
    let mut raw = Raw::new(|offer| offer.initial_r2t = true);
    assert_eq!(raw.send(&Pdu::DataOut(out(Some(9), 0, &[1; 512], true))), []);
    let (transfer, ..) = asked(&raw.command(write(512)));
    let wrong = transfer.map(|transfer| transfer + 1);
    let answers = raw.send(&Pdu::DataOut(out(wrong, 0, &[1; 512], true)));
    assert_eq!(rejected(&answers), RejectReason::InvalidField);
    assert_eq!(failed(&raw.send(&Pdu::DataOut(out(transfer, 0, &[1; 512], true)))), (0x0c, 0x0c));
    raw.works();
}

/// Unsolicited data beyond FirstBurstLength.
#[test]
fn the_first_burst_is_a_limit() {
    let mut raw = Raw::new(|offer| offer.first_burst_max = 1024);
    assert_eq!(raw.command(ScsiCommand { last: false, ..write(8192) }), []);
    let answers = raw.send(&Pdu::DataOut(out(None, 0, &[1; 1536], true)));
    assert_eq!(rejected(&answers[..1]), RejectReason::InvalidField);
    assert_eq!(failed(&answers[1..]), (0x0c, 0x0c));
    raw.works();
}

/// RFC 7143 4.2.5.2: R2Ts keep to MaxOutstandingR2T and MaxBurstLength.
#[test]
fn r2ts_keep_to_what_was_agreed_on() {
    let mut raw = Raw::new(|offer| {
        offer.initial_r2t = true;
        offer.r2t_max = 3;
        offer.burst_max = 1024;
    });
    let runs = |answers: &[Pdu]| -> Vec<(u32, u32, u32)> {
        let run = |pdu: &Pdu| match pdu {
            Pdu::ReadyToTransfer(r2t) => (r2t.r2t_sn, r2t.offset, r2t.len),
            other => panic!("{other:?}"),
        };
        answers.iter().map(run).collect()
    };
    let answers = raw.command(write(4608));
    assert_eq!(runs(&answers), [(0, 0, 1024), (1, 1024, 1024), (2, 2048, 1024)]);
    let Pdu::ReadyToTransfer(first) = answers[0] else { panic!("{answers:?}") };
    let next = raw.send(&Pdu::DataOut(out(Some(first.transfer), 0, &[1; 1024], true)));
    assert_eq!(runs(&next), [(3, 3072, 1024)]);
}

/// Recipe 20: a tag that is in use names no second command.
#[test]
fn a_tag_names_one_task() {
    let mut raw = Raw::new(|offer| offer.initial_r2t = true);
    let (transfer, ..) = asked(&raw.command(write(512)));
    let second = raw.command(command(cdb(READ, 0, 1), Direction::Read, 512));
    assert_eq!(rejected(&second), RejectReason::TaskInProgress);
    assert_eq!(status(&raw.send(&Pdu::DataOut(out(transfer, 0, &[1; 512], true)))), 0);
    let none = ScsiCommand { task: NO_TAG, ..command(cdb(READ, 0, 1), Direction::Read, 512) };
    assert_eq!(rejected(&raw.command(none)), RejectReason::InvalidField);
    raw.works();
}

/// Recipe 24: a SNACK at ErrorRecoveryLevel 0; and a login in the middle of a session.
#[test]
fn what_has_no_place_in_a_session_is_rejected() {
    let mut raw = Raw::new(|_| {});
    let snack = Snack { kind: 0, lun: 0, task: 1, transfer: NO_TAG, exp_stat_sn: 0, first: 0, count: 1 };
    assert_eq!(rejected(&raw.send(&Pdu::Snack(snack))), RejectReason::Protocol);
    let mut login = BytesMut::zeroed(48);
    login[..2].copy_from_slice(&[0x43, 0x87]);
    assert_eq!(rejected(&raw.send_bytes(login)), RejectReason::Protocol);
    raw.works();
}

/// Recipe 25: opcodes that nobody has, in order and immediate, counted by their sender or not.
#[test]
fn unknown_opcodes_are_rejected() {
    for counted in [false, true] {
        let mut raw = Raw::new(|_| {});
        for opcode in [0x07, 0x1c, 0x1f, 0x20, 0x3f] {
            let mut bytes = BytesMut::zeroed(48);
            bytes[0] = opcode;
            bytes[24..28].copy_from_slice(&raw.next.to_be_bytes());
            raw.next = raw.next.wrapping_add(u32::from(counted));
            assert_eq!(rejected(&raw.send_bytes(bytes)), RejectReason::NotSupported);
        }
        raw.works();
    }
}

/// P13: an initiator can have only so many commands outside the order of CmdSN.
#[test]
fn immediate_commands_are_bounded() {
    let mut raw = Raw::new(|_| {});
    raw.pair.held = Some(Vec::new());
    let read = ScsiCommand { immediate: true, ..command(cdb(READ, 0, 1), Direction::Read, 512) };
    for task in 0..16 {
        assert_eq!(raw.send(&Pdu::ScsiCommand(ScsiCommand { task, ..read.clone() })), []);
    }
    let more = raw.send(&Pdu::ScsiCommand(ScsiCommand { task: 16, ..read }));
    assert_eq!(rejected(&more), RejectReason::TooManyImmediate);
    raw.pair.release();
    assert_eq!(raw.answers().len(), 16);
    raw.works();
}

/// P13: tasks that would move more than the memory of a connection wait, and all of them end.
#[test]
fn memory_is_bounded() {
    let mut raw = Raw::new(|_| {});
    raw.pair.held = Some(Vec::new());
    let largest = command(cdb(READ, 0, 65_535), Direction::Read, 65_535 * 512);
    for task in 0..6 {
        assert_eq!(raw.command(ScsiCommand { task, ..largest.clone() }), []);
    }
    // 64 MiB hold two reads of 32 MiB less one block.
    assert_eq!(raw.pair.held.as_ref().map(Vec::len), Some(2));
    let mut executed = 0;
    while let Some(execute) = raw.pair.held.as_mut().and_then(Vec::pop) {
        let mut effects = Vec::new();
        raw.pair.connection.complete(execute.task, &Response::status(ScsiStatus::Good), &mut effects);
        raw.pair.carry_out(effects);
        executed += 1;
    }
    assert_eq!(executed, 6);
    assert!(raw.answers().iter().all(|answer| residual(std::slice::from_ref(answer)) != Residual::None));
    raw.pair.held = None;
    raw.works();
}

/// RFC 7143 7.8: a damaged data segment is rejected; the task of a Data-Out fails when its data is through, and a
/// damaged command may be sent again.
#[test]
fn damaged_data_is_rejected() {
    let digests = Digests { header: true, data: true };
    let mut settings = settings();
    settings.digests = digests;
    settings.offer.initial_r2t = true;
    let decoder = Decoder::new(Sender::Target, DATA_SEGMENT_MAX, digests);
    let mut raw = Raw { pair: Pair::log_in(settings, false), decoder, next: FIRST };
    let encode = |pdu: Pdu, damage: usize| {
        let mut output = Output::new();
        output.set_digests(digests);
        pdu.write(&mut output);
        let mut bytes = drain(&mut output);
        let at = bytes.len() - 1 - damage;
        bytes[at] ^= u8::from(damage > 0);
        bytes
    };
    let (transfer, ..) =
        asked(&raw.send_bytes(encode(Pdu::ScsiCommand(ScsiCommand { cmd_sn: FIRST, ..write(1024) }), 0)));
    let damaged = raw.send_bytes(encode(Pdu::DataOut(out(transfer, 0, &[1; 512], false)), 9));
    assert_eq!(rejected(&damaged), RejectReason::DataDigest);
    let rest = DataOut { data_sn: 1, ..out(transfer, 512, &[1; 512], true) };
    assert_eq!(failed(&raw.send_bytes(encode(Pdu::DataOut(rest), 0))), (0x47, 0x05));

    let immediate = ScsiCommand { cmd_sn: FIRST + 1, data: Bytes::from(vec![5; 512]), ..write(512) };
    let damaged = raw.send_bytes(encode(Pdu::ScsiCommand(immediate.clone()), 9));
    assert_eq!(rejected(&damaged), RejectReason::DataDigest);
    assert_eq!(status(&raw.send_bytes(encode(Pdu::ScsiCommand(immediate), 0))), 0);
    assert_eq!(raw.pair.disk.0[0], 5);

    let mut header = encode(Pdu::DataOut(out(None, 0, &[1; 512], true)), 0);
    header[20] ^= 1;
    assert_eq!(raw.send_bytes(header), []);
    assert!(matches!(
        raw.pair.effects.last(),
        Some(Effect::Close(Close::Decode(DecodeError::HeaderDigest { .. })))
    ));
    assert!(raw.pair.connection.is_closed());
}

/// RFC 7143 11.14.1 and 11.15.1: other connections cannot be closed from here, and none is recovered.
#[test]
fn a_logout_of_something_else_is_answered() {
    let mut raw = Raw::new(|_| {});
    for (reason, cid, answer) in [
        (LogoutReason::CloseConnection, 9, LogoutAnswer::CidNotFound),
        (LogoutReason::RemoveForRecovery, 0, LogoutAnswer::NoRecovery),
    ] {
        let logout = LogoutRequest { immediate: true, reason, task: 4, cid, cmd_sn: FIRST, exp_stat_sn: 0 };
        match &raw.send(&Pdu::LogoutRequest(logout))[..] {
            [Pdu::LogoutResponse(response)] => assert_eq!(response.answer, answer),
            other => panic!("{other:?}"),
        }
    }
    raw.works();
}

/// RFC 7143 11.7.1: what a target sends in pieces fits the initiator, each burst ends with F, the last has the status.
#[test]
fn reads_are_cut_to_size() {
    let mut raw = Raw::new(|offer| offer.burst_max = 300 * 1024);
    raw.pair.connection.parameters.peer_data_segment_max = 128 * 1024;
    let answers = raw.command(command(cdb(READ, 0, 1000), Direction::Read, 512_000));
    let cuts: Vec<(u32, u32, usize, bool, bool)> = answers
        .iter()
        .map(|pdu| match pdu {
            Pdu::DataIn(data) => {
                (data.data_sn, data.offset, data.data.len(), data.last, data.status.is_some())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let kib = 1024;
    assert_eq!(
        cuts,
        [
            (0, 0, 128 * 1024, false, false),
            (1, 128 * kib, 128 * 1024, false, false),
            (2, 256 * kib, 44 * 1024, true, false),
            (3, 300 * kib, 128 * 1024, false, false),
            (4, 428 * kib, 73_728, true, true),
        ]
    );
}
