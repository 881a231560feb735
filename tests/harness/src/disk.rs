//! A disk that another process serves, so that it can lose its power, fail, be full, freeze: a file behind `nbdkit`, put
//! in the place of a node's own by `nbdfuse`.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use crate::process::Server;

/// What the disk is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Every write is stable at once.
    Plain,
    /// Writes stay in a cache until a flush; a loss of power loses them.
    VolatileCache,
    /// [`Disk::fail`] makes writes fail with this error, named as nbdkit names it, e.g. `EIO`.
    Failing(&'static str),
}

/// A disk in the place of a file.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    behaviour: Behaviour,
    /// The disk itself, and what shows it as a file; none without power.
    processes: Option<[Server; 2]>,
}

/// Whether the programs and the kernel can do it; a test that returns early because of it calls this.
///
/// A skip is told in the file that the variable `EVENKEEL_TEST_SKIPPED` names, for `cargo xtask test` to count.
///
/// # Errors
/// When that file cannot be written.
pub fn skipped(test: &str) -> Result<bool> {
    let runs = |program| {
        Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    let fuse = File::options().read(true).write(true).open("/dev/fuse");
    let cause = if !runs("nbdkit") || !runs("nbdfuse") {
        "it takes nbdkit and nbdfuse"
    } else if fuse.is_err() {
        "it takes /dev/fuse"
    } else {
        return Ok(false);
    };
    eprintln!("skipped: {cause}");
    if let Some(told) = std::env::var_os(SKIPPED) {
        writeln!(File::options().create(true).append(true).open(told)?, "{test}: {cause}")?;
    }
    Ok(true)
}

/// The variable with the path of the file to which skipped tests are appended, one a line.
pub const SKIPPED: &str = "EVENKEEL_TEST_SKIPPED";

impl Disk {
    /// Takes the place of the file `path`, with its content.
    ///
    /// # Errors
    /// When the programs do not come up; the message holds their log.
    pub fn over(path: &Path, behaviour: Behaviour) -> Result<Self> {
        fs::rename(path, path.with_extension(BEHIND))?;
        fs::write(path, [])?;
        let mut disk = Self { path: path.to_owned(), behaviour, processes: None };
        disk.power_on()?;
        Ok(disk)
    }

    /// The file that holds what is stable.
    #[must_use]
    pub fn behind(&self) -> PathBuf {
        self.path.with_extension(BEHIND)
    }

    /// Brings the disk back after [`Self::power_off`]. It ends with the thread that calls this: nbdkit asks for that.
    ///
    /// # Errors
    /// When the programs do not come up; the message holds their log.
    pub fn power_on(&mut self) -> Result<()> {
        let socket = self.path.with_extension("nbd");
        // A socket that a killed server left.
        let _ = fs::remove_file(&socket);
        let log = self.path.with_extension("disk.log");
        let mut nbdkit = Command::new("nbdkit");
        nbdkit.arg("--foreground").arg("--unix").arg(&socket);
        match self.behaviour {
            Behaviour::Plain => nbdkit.arg("file").arg(self.behind()),
            Behaviour::VolatileCache => {
                nbdkit.args(["--filter=cache", "file"]).arg(self.behind()).arg("cache=writeback")
            }
            Behaviour::Failing(error) => {
                nbdkit.args(["--filter=error", "file"]).arg(self.behind());
                nbdkit.arg(format!("error={error}")).arg("error-pwrite-rate=100%");
                nbdkit.arg(format!("error-pwrite-file={}", self.trigger().display()))
            }
        };
        let mut nbdkit = Server::start(nbdkit, &log)?;
        wait(&mut nbdkit, || socket.exists())?;
        let mut nbdfuse = Command::new("nbdfuse");
        nbdfuse.arg(&self.path).arg("--unix").arg(&socket);
        let mut nbdfuse = Server::start(nbdfuse, &log)?;
        let len = fs::metadata(self.behind())?.len();
        wait(&mut nbdfuse, || fs::metadata(&self.path).is_ok_and(|shown| shown.len() == len))?;
        self.processes = Some([nbdkit, nbdfuse]);
        Ok(())
    }

    /// Cuts the power: what was not flushed is lost, and what is in flight never ends well.
    ///
    /// # Errors
    /// When the processes cannot be ended.
    pub fn power_off(&mut self) -> Result<()> {
        let Some(mut processes) = self.processes.take() else { return Ok(()) };
        for process in &processes {
            process.signal(Signal::KILL)?;
        }
        processes.iter_mut().try_for_each(Server::kill)?;
        let unmounted = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.path).status()?;
        ensure!(unmounted.success(), "{} stays mounted", self.path.display());
        Ok(())
    }

    /// Lets every write fail, or none.
    ///
    /// # Errors
    /// When the disk is not one that fails, or its switch cannot be turned.
    pub fn fail(&self, fails: bool) -> Result<()> {
        ensure!(matches!(self.behaviour, Behaviour::Failing(_)), "the disk is {:?}", self.behaviour);
        if fails { Ok(fs::write(self.trigger(), [])?) } else { Ok(fs::remove_file(self.trigger())?) }
    }

    /// Stops answering, or goes on.
    ///
    /// # Errors
    /// When it has no power.
    pub fn freeze(&self, frozen: bool) -> Result<()> {
        let [nbdkit, _] = self.processes.as_ref().context("the disk has no power")?;
        nbdkit.signal(if frozen { Signal::STOP } else { Signal::CONT })
    }

    /// What its processes have said.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path.with_extension("disk.log")).unwrap_or_default())
            .into_owned()
    }

    fn trigger(&self) -> PathBuf {
        self.path.with_extension("fails")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The end of the disk ends what waits for it; where that failed already, there is nothing to undo.
        let _ = self.power_off();
    }
}

fn wait(server: &mut Server, until: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + START_PATIENCE;
    while !until() {
        server.alive()?;
        ensure!(Instant::now() < deadline, "the disk does not come up:\n{}", server.last_words());
        thread::sleep(BETWEEN_LOOKS);
    }
    Ok(())
}

const BEHIND: &str = "behind";
const START_PATIENCE: Duration = Duration::from_secs(20);
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// The control of every test with such disks: a loss of power loses what was not flushed, and nothing else.
    #[test]
    fn a_loss_of_power_loses_what_was_not_flushed() {
        if skipped("a_loss_of_power_loses_what_was_not_flushed").unwrap() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        fs::write(&path, [1; 16384]).unwrap();
        let mut disk = Disk::over(&path, Behaviour::VolatileCache).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.write_all_at(&[2; 4096], 0).unwrap();
        file.sync_data().unwrap();
        file.write_all_at(&[3; 4096], 8192).unwrap();
        let mut seen = [0; 4096];
        file.read_exact_at(&mut seen, 8192).unwrap();
        assert_eq!(seen, [3; 4096]);
        disk.power_off().unwrap();
        drop(file);
        let expected = [vec![2; 4096], vec![1; 12288]].concat();
        assert!(fs::read(disk.behind()).unwrap() == expected, "the wrong things are stable");
        disk.power_on().unwrap();
        assert!(fs::read(&path).unwrap() == expected, "the wrong things are shown");
    }

    /// Errors come when they are asked for, by the name that was asked for, and end.
    #[test]
    fn errors_are_switched_on_and_off() {
        if skipped("errors_are_switched_on_and_off").unwrap() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        fs::write(&path, [1; 8192]).unwrap();
        let disk = Disk::over(&path, Behaviour::Failing("ENOSPC")).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[2; 4096], 0).unwrap();
        disk.fail(true).unwrap();
        let error = file.write_all_at(&[3; 4096], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
        disk.fail(false).unwrap();
        file.write_all_at(&[4; 4096], 0).unwrap();
    }
}
