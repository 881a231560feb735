//! A running machine, and the conversation with the script inside it, line by line on the serial console.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::{Image, initramfs};
use crate::command;

/// What the script in the guest says. Its lines begin with [`MARK`]; all others are the kernel's and for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// A step passed.
    Passed(String),
    /// The guest waits until the host has done this, and then for [`Machine::tell`].
    Ask(String),
    /// Everything passed.
    Done,
}

/// A booted machine. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Machine {
    qemu: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    console: Vec<String>,
    deadline: Instant,
}

impl Machine {
    /// Boots `image` with the scripts of `scripts` in its root; `settings` arrive in `/proc/cmdline`.
    ///
    /// # Errors
    /// When QEMU is missing.
    pub(crate) fn boot(image: &Image, scripts: &Path, settings: &str, patience: Duration) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        // The kernel unpacks archives one behind the other: ours, then the scripts of this run.
        let archive = dir.path().join("root.cpio");
        fs::copy(&image.archive, &archive)?;
        let extra = dir.path().join("scripts.cpio");
        initramfs::pack(scripts, &extra)?;
        File::options().append(true).open(&archive)?.write_all(&fs::read(extra)?)?;
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1024", "-smp", "2"]);
        command.args(["-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"]);
        command.args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]);
        command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&archive).arg("-append");
        command.arg(format!("console=ttyS0 quiet panic=-1 mitigations=off {settings}"));
        let mut qemu = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command::spell(&command)))?;
        let input = qemu.stdin.take().expect("stdin is a pipe");
        let output = BufReader::new(qemu.stdout.take().expect("stdout is a pipe"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            // QEMU maps the archive while it starts: keep the files until it ends.
            let _dir = dir;
            for line in output.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { qemu, input, lines, console: Vec::new(), deadline: Instant::now() + patience })
    }

    /// The next thing that the script says.
    ///
    /// # Errors
    /// When a step failed, the machine ended or the patience is over; the message holds the console.
    pub(crate) fn listen(&mut self) -> Result<Said> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let line = match self.lines.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the guest is late; its console:\n{}", self.console())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the guest ended; its console:\n{}", self.console())
                }
            };
            self.console.push(line.clone());
            let Some((_, words)) = line.split_once(MARK) else { continue };
            let (verb, rest) = words.split_once(' ').unwrap_or((words, ""));
            match verb {
                "passed" => return Ok(Said::Passed(rest.to_owned())),
                "ask" => return Ok(Said::Ask(rest.to_owned())),
                "done" => return Ok(Said::Done),
                _ => bail!("{rest}; the guest's console:\n{}", self.console()),
            }
        }
    }

    /// Tells the script that what it asked for is done.
    ///
    /// # Errors
    /// When the machine ended.
    pub(crate) fn tell(&mut self, word: &str) -> Result<()> {
        writeln!(self.input, "{word}").context("the guest ended")?;
        self.input.flush()?;
        Ok(())
    }

    fn console(&self) -> String {
        self.console[self.console.len().saturating_sub(CONSOLE_LINES)..].join("\n")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A machine that has powered itself off is what we want.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

const MARK: &str = "EVENKEEL ";
const CONSOLE_LINES: usize = 60;
