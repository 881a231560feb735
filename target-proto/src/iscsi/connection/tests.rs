//! Connections with an initiator at the other end, and what each fault of `target.md` section 3 leads to.

use std::collections::BTreeMap;
use std::io::IoSlice;

use block::{Payload, VolumeNumber};
use zeroize::Zeroizing;

use super::super::chap::{Challenger, Credentials};
use super::super::initiator::{Completed, Event, Initiator, Settings};
use super::super::login::{Access, Admission, Grant, Login, Progress};
use super::super::pdu::{DecodeError, Direction, Isid, ManagementFunction, Residual};
use super::*;
use crate::scsi::{Response, ScsiStatus, Transfer};

mod faults;
mod hostile;
mod management;

const INITIATOR: &str = "iqn.2026-11.org.example:host";
const TARGET: &str = "iqn.2026-11.io.evenkeel:db";
const READ: u8 = 0x28;
const WRITE: u8 = 0x2a;

/// A target with one volume of 8 MiB, whose blocks are 512 bytes.
struct Disk(Vec<u8>);

impl Host for Disk {
    fn transfer(&self, _lun: u64, cdb: &[u8; 16]) -> Transfer {
        let len = u32::from(u16::from_be_bytes([cdb[7], cdb[8]])) * 512;
        match cdb[0] {
            READ => Transfer { data_in: len, data_out: 0 },
            WRITE => Transfer { data_in: 0, data_out: len },
            _ => Transfer::default(),
        }
    }

    fn volume(&self, lun: u64) -> Option<VolumeNumber> {
        (lun == 0).then_some(VolumeNumber(0))
    }

    fn targets(&self, initiator: &str) -> Vec<DiscoveredTarget> {
        let portal = |group: u16| (format!("192.0.2.{group}:3260"), group);
        let target =
            |name: &str| DiscoveredTarget { name: name.to_owned(), portals: vec![portal(1), portal(2)] };
        if initiator == INITIATOR {
            vec![target(TARGET), target("iqn.2026-11.io.evenkeel:mail")]
        } else {
            vec![]
        }
    }
}

impl Disk {
    fn execute(&mut self, execute: &Execute) -> Response {
        let cdb = &execute.cdb;
        let at = usize::try_from(u32::from_be_bytes([cdb[2], cdb[3], cdb[4], cdb[5]])).unwrap() * 512;
        match cdb[0] {
            READ => {
                let len = self.transfer(execute.lun, cdb).data_in as usize;
                Response::data(self.0[at..at + len].to_vec())
            }
            WRITE => {
                execute.data_out.copy_to(&mut self.0[at..at + execute.data_out.len()]);
                Response::status(ScsiStatus::Good)
            }
            _ => Response::status(ScsiStatus::Busy),
        }
    }
}

/// Lets everyone in who proves to be `db`, or everyone.
struct Door {
    challenger: Challenger,
    chap: bool,
}

impl Admission for Door {
    fn admit(&self, initiator: &str, target: &str) -> Access {
        let credentials = |user: &str, secret: &str| {
            let secret = Zeroizing::new(secret.as_bytes().to_vec());
            self.chap.then(|| Credentials { user: user.to_owned(), secret })
        };
        match (target, initiator) {
            (TARGET, INITIATOR) => Access::Granted(Grant {
                portal_group: 1,
                chap: credentials("db", "a secret of the host"),
                mutual: credentials("evenkeel", "a secret of the target"),
            }),
            (TARGET, _) => Access::Forbidden,
            _ => Access::NotFound,
        }
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

fn drain(output: &mut Output) -> BytesMut {
    let mut all = BytesMut::new();
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); 16];
        let filled = output.slices(&mut slices);
        let before = all.len();
        slices[..filled].iter().for_each(|slice| all.extend_from_slice(slice));
        output.advance(all.len() - before);
    }
    all
}

/// A session with both ends in one place.
struct Pair {
    initiator: Initiator,
    connection: Connection,
    disk: Disk,
    now: Duration,
    /// What the target still has to execute, while it is held back.
    held: Option<Vec<Execute>>,
    effects: Vec<Effect>,
}

impl Pair {
    fn log_in(settings: Settings, chap: bool) -> Self {
        let door = Door { challenger: Challenger::new([1; 32]), chap };
        let mut initiator = Initiator::new(settings, u32::MAX - 3);
        let (mut login, mut output, mut events) = (Login::new(8), Output::new(), Vec::new());
        let connection = loop {
            let mut sent = drain(initiator.output());
            match login.receive(&mut sent, &door, &mut output) {
                Progress::Continue(next) => login = next,
                Progress::Ready(ready) => {
                    let established = ready.accept(1, &mut output);
                    break Connection::new(established, output, Duration::ZERO);
                }
                Progress::Over(error) => panic!("{error}"),
            }
            initiator.receive(&mut drain(&mut output), &mut events).unwrap();
        };
        let mut pair = Self {
            initiator,
            connection,
            disk: Disk(vec![0; 8 << 20]),
            now: Duration::ZERO,
            held: None,
            effects: Vec::new(),
        };
        events.extend(pair.exchange());
        assert!(matches!(events[..], [Event::LoggedIn { tsih: 1 }]), "{events:?}");
        pair
    }

    /// Carries bytes to and fro until both are silent.
    fn exchange(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let mut sent = drain(self.initiator.output());
            self.give(&mut sent);
            let mut answer = drain(self.connection.output());
            if answer.is_empty() {
                return events;
            }
            self.initiator.receive(&mut answer, &mut events).unwrap();
        }
    }

    /// Gives bytes to the target, and lets it execute what becomes of them.
    fn give(&mut self, bytes: &mut BytesMut) {
        let mut effects = Vec::new();
        self.connection.receive(self.now, bytes, &self.disk, &mut effects);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, mut effects: Vec<Effect>) {
        while !effects.is_empty() {
            let mut more = Vec::new();
            for effect in effects {
                match (effect, &mut self.held) {
                    (Effect::Execute(execute), Some(held)) => held.push(execute),
                    (Effect::Execute(execute), None) => {
                        let response = self.disk.execute(&execute);
                        self.connection.complete(execute.task, &response, &mut more);
                    }
                    (other, _) => self.effects.push(other),
                }
            }
            effects = more;
        }
    }

    /// Executes what was held back.
    fn release(&mut self) {
        let held = self.held.take().unwrap_or_default();
        self.carry_out(held.into_iter().map(Effect::Execute).collect());
    }

    fn write(&mut self, lba: u32, data: &[u8]) -> u32 {
        let len = u32::try_from(data.len()).unwrap();
        let out = Payload::from(data.to_vec());
        self.initiator.command(0, cdb(WRITE, lba, len / 512), Direction::Write, len, out)
    }

    fn read(&mut self, lba: u32, len: u32) -> u32 {
        self.initiator.command(0, cdb(READ, lba, len / 512), Direction::Read, len, Payload::new())
    }
}

fn cdb(code: u8, lba: u32, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = code;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&u16::try_from(blocks).unwrap().to_be_bytes());
    cdb
}

fn completed(events: Vec<Event>) -> BTreeMap<u32, Completed> {
    let completed = |event| match event {
        Event::Completed(completed) => (completed.task, completed),
        other => panic!("{other:?}"),
    };
    events.into_iter().map(completed).collect()
}

fn settings() -> Settings {
    Settings::new(INITIATOR, TARGET)
}

/// RFC 7143 4.2.5 and 13: whatever is agreed on about digests, immediate, unsolicited and solicited data and bursts,
/// what is written is read back.
#[test]
fn data_survives_every_way_to_send_it() {
    for choice in 0..64_u32 {
        let bit = |at: u32| choice >> at & 1 == 1;
        let mut settings = settings();
        settings.digests = super::super::pdu::Digests { header: bit(0), data: bit(1) };
        settings.offer.initial_r2t = bit(2);
        settings.offer.immediate_data = bit(3);
        settings.offer.first_burst_max = if bit(4) { 4096 } else { 262_144 };
        settings.offer.burst_max = if bit(4) { 8192 } else { 1 << 20 };
        settings.offer.r2t_max = if bit(5) { 1 } else { 8 };
        let mut pair = Pair::log_in(settings, false);
        let data: Vec<u8> = (0..600_064_u32).map(|at| (at ^ at >> 9).to_le_bytes()[0]).collect();
        let lens = [512, 4096, 4608, 65_536, 300_032, 600_064];
        for (place, len) in lens.into_iter().enumerate() {
            pair.write(u32::try_from(place).unwrap() * 2048, &data[..len]);
        }
        for done in completed(pair.exchange()).values() {
            assert_eq!((done.status, done.residual), (0, Residual::None), "choice {choice:#x}");
        }
        for (place, len) in lens.into_iter().enumerate() {
            let task = pair.read(u32::try_from(place).unwrap() * 2048, u32::try_from(len).unwrap());
            let done = completed(pair.exchange());
            assert_eq!(done[&task].data.to_bytes(), data[..len], "choice {choice:#x}, {len} bytes");
            assert_eq!(done[&task].residual, Residual::None);
        }
        assert_eq!(pair.connection.tasks(), 0);
        assert!(pair.effects.is_empty(), "{:?}", pair.effects);
    }
}

/// RFC 7143 12.1: one-way and mutual CHAP between both ends.
#[test]
fn chap_lets_the_right_ones_in() {
    let credentials = |user: &str, secret: &str| {
        Some(Credentials { user: user.to_owned(), secret: Zeroizing::new(secret.as_bytes().to_vec()) })
    };
    let mut settings = settings();
    settings.chap = credentials("db", "a secret of the host");
    Pair::log_in(settings.clone(), true);
    settings.mutual = credentials("evenkeel", "a secret of the target");
    let mut pair = Pair::log_in(settings, true);
    let task = pair.write(0, &[1; 512]);
    assert_eq!(completed(pair.exchange())[&task].status, 0);
}

/// RFC 7143 4.2.2.1: more commands than the window has wait for it, and none is lost; MaxCmdSN follows free places.
#[test]
fn the_window_limits_what_is_in_flight() {
    let mut pair = Pair::log_in(settings(), false);
    pair.held = Some(Vec::new());
    let tasks: Vec<u32> = (0..20).map(|lba| pair.read(lba, 512)).collect();
    assert!(pair.exchange().is_empty());
    assert_eq!(pair.held.as_ref().map(Vec::len), Some(8));
    assert_eq!(pair.connection.tasks(), 8);
    pair.release();
    let done = completed(pair.exchange());
    assert!(tasks.iter().all(|task| done[task].status == 0));
}

/// SAM-5 8.6: an ORDERED task starts after every older one has ended, and younger ones after it; one at the HEAD OF
/// QUEUE does not wait.
#[test]
fn ordered_tasks_keep_their_place() {
    let mut pair = Pair::log_in(settings(), false);
    pair.held = Some(Vec::new());
    let mut bytes = BytesMut::new();
    let attributes =
        [TaskAttribute::Simple, TaskAttribute::Ordered, TaskAttribute::Simple, TaskAttribute::HeadOfQueue];
    for (at, attribute) in (0_u32..).zip(attributes) {
        let mut command = faults::command(cdb(READ, at, 1), Direction::Read, 512);
        command.attribute = attribute;
        command.task = at;
        command.cmd_sn = (u32::MAX - 3).wrapping_add(at);
        faults::put(&mut bytes, &Pdu::ScsiCommand(command));
    }
    pair.give(&mut bytes);
    let mut order = Vec::new();
    while let Some(execute) = pair.held.as_mut().filter(|held| !held.is_empty()).map(|held| held.remove(0)) {
        order.push(execute.cdb[5]);
        let response = pair.disk.execute(&execute);
        let mut effects = Vec::new();
        pair.connection.complete(execute.task, &response, &mut effects);
        pair.carry_out(effects);
    }
    assert_eq!(order, [0, 3, 1, 2]);
}

/// RFC 7143 11.18 and 11.19: a ping comes back with its bytes, a silent initiator is asked, and given up.
#[test]
fn silence_is_noticed() {
    let mut pair = Pair::log_in(settings(), false);
    pair.initiator.ping(Bytes::from_static(b"are you there"));
    assert!(matches!(&pair.exchange()[..], [Event::Pong(data)] if &data[..] == b"are you there"));
    let seconds = Duration::from_secs;
    let mut effects = Vec::new();
    assert_eq!(pair.connection.tick(seconds(3), &mut effects), seconds(15));
    assert!(pair.connection.output().is_empty());
    assert_eq!(pair.connection.tick(seconds(15), &mut effects), seconds(25));
    pair.now = seconds(16);
    assert!(pair.exchange().is_empty());
    assert_eq!(pair.connection.tick(seconds(16), &mut effects), seconds(31));
    assert_eq!(pair.connection.tick(seconds(31), &mut effects), seconds(41));
    assert!(effects.is_empty());
    pair.connection.tick(seconds(41), &mut effects);
    assert!(matches!(effects[..], [Effect::Close(Close::NoAnswer)]));
    assert!(pair.connection.is_closed());
}

/// RFC 7143 appendix C: discovery names every target of this initiator with the portals of all nodes; a session names
/// its own, and asking it for more is rejected (target.md recipe 23).
#[test]
fn send_targets_tells_what_it_may() {
    let mut pair = Pair::log_in(settings(), false);
    for which in ["", TARGET] {
        pair.initiator.send_targets(which);
        match &pair.exchange()[..] {
            [Event::Targets(targets)] => {
                assert_eq!((targets.len(), targets[0].name.as_str()), (1, TARGET));
                assert_eq!(
                    targets[0].portals,
                    [("192.0.2.1:3260".to_owned(), 1), ("192.0.2.2:3260".to_owned(), 2)]
                );
            }
            other => panic!("{other:?}"),
        }
    }
    for which in ["All", "Alle", "iqn.2026-11.io.evenkeel:mail"] {
        pair.initiator.send_targets(which);
        let events = pair.exchange();
        assert!(
            matches!(events[..], [Event::Rejected { reason: RejectReason::Protocol, .. }]),
            "{which}: {events:?}"
        );
    }
    let mut discovery = Pair::log_in(Settings::discovery(INITIATOR), false);
    for (which, count) in [("All", 2), (TARGET, 1), ("iqn.2026-11.io.evenkeel:none", 0)] {
        discovery.initiator.send_targets(which);
        assert!(matches!(&discovery.exchange()[..], [Event::Targets(targets)] if targets.len() == count));
    }
    discovery.read(0, 512);
    assert!(matches!(discovery.exchange()[..], [Event::Rejected { .. }]));
    let mut effects = Vec::new();
    discovery.connection.tick(Duration::from_mins(1), &mut effects);
    assert!(matches!(effects[..], [Effect::Close(Close::Idle)]));
}

/// RFC 7143 11.14: a logout is answered once the writes of the session have settled, at the latest after five seconds,
/// and nothing is executed behind it.
#[test]
fn a_logout_waits_for_writes() {
    let mut pair = Pair::log_in(settings(), false);
    pair.held = Some(Vec::new());
    pair.write(0, &[1; 512]);
    pair.initiator.log_out();
    assert!(pair.exchange().is_empty());
    assert!(matches!(pair.effects[..], [Effect::Abort(_)]));
    pair.release();
    assert!(matches!(pair.exchange()[..], [Event::LoggedOut]));
    assert!(matches!(pair.effects[..], [Effect::Abort(_), Effect::Close(Close::Logout)]));

    let mut stuck = Pair::log_in(settings(), false);
    stuck.held = Some(Vec::new());
    stuck.write(0, &[1; 512]);
    stuck.initiator.log_out();
    assert!(stuck.exchange().is_empty());
    let mut effects = Vec::new();
    assert_eq!(stuck.connection.tick(Duration::from_secs(1), &mut effects), Duration::from_secs(5));
    stuck.connection.tick(Duration::from_secs(5), &mut effects);
    assert!(matches!(stuck.exchange()[..], [Event::LoggedOut]));
    stuck.release();
    assert_eq!(stuck.connection.tasks(), 0);
}

/// RFC 7143 11.9: a node that stops asks its initiators to log out.
#[test]
fn a_stopping_target_asks_for_a_logout() {
    let mut pair = Pair::log_in(settings(), false);
    pair.connection.request_logout(5);
    assert!(matches!(pair.exchange()[..], [Event::Async(AsyncEvent::LogoutRequest)]));
    pair.initiator.log_out();
    assert!(matches!(pair.exchange()[..], [Event::LoggedOut]));
}
