//! A server process that ends with its owner, and what Linux tells about it (proc(5)).

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// A running server. Dropping it sends SIGKILL and reaps it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Server {
    /// Starts `command` with its output appended to the file `log`.
    ///
    /// # Errors
    /// When the log cannot be written or the program does not exist.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot write the log {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}; is it installed and built?"))?;
        Ok(Self { child, name, log: log.to_owned() })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails, with the end of its log, when the process has ended.
    ///
    /// # Errors
    /// When the process is no longer running.
    pub fn alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                bail!("{} ended with {status}; its last words:\n{}", self.name, self.last_words())
            }
        }
    }

    /// The last lines of the log.
    #[must_use]
    pub fn last_words(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LAST_WORDS_LINES)..].join("\n")
    }

    /// Everything the process has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Ends the process with SIGKILL, as a power cut would, and reaps it.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Errors
    /// When the process still runs after `patience`.
    pub fn terminate(&mut self, patience: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} runs on {} s after SIGTERM:\n{}", self.name, patience.as_secs(), self.last_words());
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// Sends `signal`. With SIGSTOP it returns once every thread stands: the one that takes the signal may wait for a
    /// processor while the others go on.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)?;
        while signal == Signal::STOP && !self.stands()? {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether every thread is stopped (`T` in /proc/PID/task/TID/stat).
    fn stands(&self) -> Result<bool> {
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let stat = fs::read_to_string(thread?.path().join("stat"))?;
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            if state.context("a thread has a state")? != 'T' {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Resident memory in bytes (`VmRSS` of /proc/PID/status).
    ///
    /// # Errors
    /// When the process is gone.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024)
    }

    /// Processor time used so far, user and system together (fields 14 and 15 of /proc/PID/stat).
    ///
    /// # Errors
    /// When the process is gone.
    pub fn cpu_time(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        // The second field is a name in parentheses that may hold spaces: count from behind it.
        let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
        let mut fields = fields.split_whitespace().skip(11);
        let mut ticks = || -> Result<u64> { Ok(fields.next().context("stat is short")?.parse()?) };
        let ticks = ticks()? + ticks()?;
        Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A process that has ended already is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const LAST_WORDS_LINES: usize = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that ended says why, and a running one is measured.
    #[test]
    fn servers_are_watched() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo gone wrong >&2; exit 3"]);
        let mut server = Server::start(shell, &log).unwrap();
        server.child.wait().unwrap();
        let error = server.alive().unwrap_err().to_string();
        assert!(error.contains("gone wrong") && error.contains('3'), "{error}");

        let mut sleep = Command::new("sleep");
        sleep.arg("60");
        let mut server = Server::start(sleep, &log).unwrap();
        server.alive().unwrap();
        assert!(server.resident_bytes().unwrap() > 0);
        assert!(server.cpu_time().unwrap() < Duration::from_secs(10));
        assert!(!server.terminate(Duration::from_secs(10)).unwrap().success());
    }
}
