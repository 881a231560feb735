//! A daemon with one volume, and a session beside the test that must not notice anything.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use harness::{
    load::expect_silence,
    raw::{Connection, Login, Outcome, Session, Task, cdb},
    target::{Chap, IQN, Kind, Spec, Target},
};
use tempfile::TempDir;

/// What each test starts with.
pub(crate) struct Fixture {
    /// The daemon.
    pub(crate) target: Target,
    bystander: Session,
    _dir: TempDir,
}

impl Fixture {
    /// Starts a daemon with a volume of 64 MiB and logs the bystander in.
    pub(crate) fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let target = start_target(dir.path(), None)?;
        let login = Login::normal(IQN).from_initiator("bystander", 99);
        let mut bystander = Session::login(target.portal, &login, target.lun())?;
        bystander.settle()?;
        let written = bystander.run(&Task::write(cdb::ten(cdb::WRITE_10, BYSTANDER_LBA, 1), pattern()))?;
        ensure!(written.status == 0, "the bystander cannot write: {written:?}");
        Ok(Self { target, bystander, _dir: dir })
    }

    /// A normal login, to be changed by the test.
    pub(crate) fn login() -> Login {
        Login::normal(IQN)
    }

    /// A connection without a login.
    pub(crate) fn connect(&self) -> Result<Connection> {
        Connection::open(self.target.portal)
    }

    /// A session as open-iscsi would have it, with no unit attention left.
    pub(crate) fn session(&self) -> Result<Session> {
        self.session_with(&Self::login())
    }

    /// A session after `login`, with no unit attention left.
    pub(crate) fn session_with(&self, login: &Login) -> Result<Session> {
        let mut session = Session::login(self.target.portal, login, self.target.lun())?;
        session.settle()?;
        Ok(session)
    }

    /// The session beside the test, for tests about two of them.
    pub(crate) fn bystander(&mut self) -> &mut Session {
        &mut self.bystander
    }

    /// The end of every test: the daemon lives, the bystander saw nothing, a newcomer is served.
    pub(crate) fn undisturbed(mut self) -> Result<()> {
        self.target.server().alive()?;
        expect_silence(&mut self.bystander, Duration::from_millis(20))
            .context("the bystander heard something")?;
        self.bystander.ping().context("the bystander's session is gone")?;
        let read = self.bystander.run(&Task::read(cdb::ten(cdb::READ_10, BYSTANDER_LBA, 1), 512))?;
        ensure!(read.status == 0, "the bystander's read failed: {read:?}");
        ensure!(read.data == pattern(), "the bystander's block has changed");
        let newcomer = Self::login().from_initiator("newcomer", 98);
        let mut newcomer = Session::login(self.target.portal, &newcomer, self.target.lun())?;
        newcomer.settle().context("a newcomer is not served")
    }
}

/// A daemon with a volume of 64 MiB in `dir`.
pub(crate) fn start_target(dir: &Path, chap: Option<Chap>) -> Result<Target> {
    let spec = Spec { chap, ..Spec::new(dir, SIZE_BYTES) };
    Target::start(&Kind::from_env(env!("CARGO_BIN_EXE_evenkeel")), &spec)
}

/// Fails unless `outcome` is a check condition with this sense key, code and qualifier.
#[track_caller]
pub(crate) fn assert_check(outcome: &Outcome, key: u8, code: u8, qualifier: u8) {
    assert_eq!(outcome.check(), Some((key, code, qualifier)), "{outcome:02x?}");
}

fn pattern() -> Vec<u8> {
    (0..512_u16).map(|at| at.to_le_bytes()[0] ^ 0x5a).collect()
}

/// The volume of every test.
pub(crate) const SIZE_BYTES: u64 = 64 << 20;
/// Beyond what the tests write.
const BYSTANDER_LBA: u32 = 100_000;
