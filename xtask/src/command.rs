//! Other programs: run, watched, and with words of advice when they are missing or fail.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// The root of the repository.
#[must_use]
pub(crate) fn repository() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask is a directory of the repository")
}

/// The daemon under test: the release build, or the one that `EVENKEEL_BINARY` names.
#[must_use]
pub(crate) fn binary() -> PathBuf {
    let named = std::env::var_os("EVENKEEL_BINARY").map(PathBuf::from);
    named.unwrap_or_else(|| repository().join("target/release/evenkeel"))
}

/// Where `program` stands on `PATH`, or in the directories of administrators' programs.
#[must_use]
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administrators = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let found = std::env::split_paths(&path).chain(administrators).map(|dir| dir.join(program));
    found.into_iter().find(|candidate| candidate.is_file())
}

/// `cargo ARGUMENTS` in the repository.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Incremental files cost gigabytes and time in a clone that is built once.
    command.args(arguments).current_dir(repository()).env("CARGO_INCREMENTAL", "0");
    command
}

/// Runs `command` with its output on the screen.
///
/// # Errors
/// When it cannot be started or does not exit with 0; the message says `advice`.
pub(crate) fn run(command: &mut Command, advice: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", spell(command)))?;
    if !status.success() {
        bail!("{} ended with {status}. {advice}", spell(command));
    }
    Ok(())
}

/// Runs `command` with its output on the screen and returns the lines that `keep` wants.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_and_keep(
    command: &mut Command,
    advice: &str,
    keep: fn(&str) -> bool,
) -> Result<Vec<String>> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", spell(command)))?;
    let errors = child.stderr.take().expect("stderr is a pipe");
    let errors = thread::spawn(move || echo(errors, keep));
    let mut kept = echo(child.stdout.take().expect("stdout is a pipe"), keep);
    kept.extend(errors.join().expect("echo does not panic"));
    let status = child.wait()?;
    if !status.success() {
        bail!("{} ended with {status}. {advice}", spell(command));
    }
    Ok(kept)
}

fn echo(from: impl Read, keep: fn(&str) -> bool) -> Vec<String> {
    let mut kept = Vec::new();
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        println!("{line}");
        if keep(&line) {
            kept.push(line);
        }
    }
    kept
}

/// Runs `command` silently and returns what it printed, or `None` when it was ended after `patience`.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn run_within(command: &mut Command, patience: Duration) -> Result<Option<Output>> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("cannot start {}", spell(command)))?;
    let readers = [drain(child.stdout.take()), drain(child.stderr.take())];
    let status = wait_within(&mut child, patience)?;
    let [stdout, stderr] = readers.map(|reader| reader.join().expect("reading does not panic"));
    Ok(status.map(|status| Output { status, stdout, stderr }))
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What could be read before an error is what there is.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn wait_within(child: &mut Child, patience: Duration) -> Result<Option<std::process::ExitStatus>> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// What `command` printed.
///
/// # Errors
/// When it cannot be started or does not exit with 0; the message holds what it said.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", spell(command)))?;
    if !output.status.success() {
        bail!(
            "{} ended with {}:\n{}{}",
            spell(command),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command as a user would type it.
pub(crate) fn spell(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
