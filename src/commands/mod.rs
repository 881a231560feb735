//! The verbs of the command line that are done beside a node, or asked of a running one.

mod ask;
mod local;
mod metadata;
mod watch;

use std::process::ExitCode;

use ops::cli::{MetadataVerb, Verb};
use replication::MetadataError;
use thiserror::Error;

use crate::{client::ClientError, configuration::ConfigurationError, disk::OpenError};

/// Why a verb failed.
#[derive(Debug, Error)]
pub enum CommandError {
    /// The node refused or failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A file or directory, or standard output.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The configuration has errors, which are printed already.
    #[error("{file} has errors; mend them and check again")]
    Configuration {
        /// The file.
        file: String,
    },
    /// The configuration cannot be used.
    #[error(transparent)]
    Load(#[from] ConfigurationError),
    /// The configuration lacks what was named.
    #[error("{what}; see {file}")]
    Missing {
        /// What there is not.
        what: String,
        /// The file.
        file: String,
    },
    /// What is on a disk is not the metadata of this volume.
    #[error(
        "the metadata on {disk} is of no use for this volume: {error}; `metadata create --force` makes new metadata, \
         `metadata wipe --force` takes it away"
    )]
    Metadata {
        /// The disk.
        disk: String,
        /// What is wrong.
        error: MetadataError,
    },
    /// There is nothing to show or to take away.
    #[error("{disk} carries no Evenkeel metadata; `evenkeel metadata create` makes it, and keeps the data")]
    NoMetadata {
        /// The disk.
        disk: String,
    },
    /// A disk is not ours, or in use.
    #[error(transparent)]
    Disk(#[from] OpenError),
}

impl CommandError {
    /// 2 for a bad configuration or what is not in it, 1 for everything else.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Configuration { .. } | Self::Load(_) | Self::Missing { .. } => ExitCode::from(2),
            Self::Client(_)
            | Self::Io { .. }
            | Self::Metadata { .. }
            | Self::NoMetadata { .. }
            | Self::Disk(_) => ExitCode::FAILURE,
        }
    }
}

/// Does what a verb says. Prints results on standard output; the caller prints the error on standard error.
///
/// # Errors
/// When it cannot be done. Its text says what to do next.
pub async fn run(verb: &Verb) -> Result<(), CommandError> {
    match verb {
        Verb::Check(check) => local::check(check),
        Verb::Metadata(MetadataVerb::Create(create)) => metadata::create(create),
        Verb::Metadata(MetadataVerb::Show(show)) => metadata::show(show),
        Verb::Metadata(MetadataVerb::Wipe(wipe)) => metadata::wipe(wipe),
        Verb::Completions(completions) => local::completions(completions),
        Verb::Man(man) => local::man(man),
        Verb::Status(status) if status.watch => watch::status(status).await,
        Verb::Status(status) => ask::status(status).await,
        Verb::Why(why) => ask::why(why).await,
        Verb::Events(events) => ask::events(events).await,
        Verb::Primary(promote) => ask::primary(promote).await,
        Verb::Secondary(demote) => ask::secondary(demote).await,
        Verb::Connect(connect) => ask::connect(connect).await,
        Verb::Disconnect(disconnect) => ask::disconnect(disconnect).await,
        Verb::PauseSync(pause) => ask::pause_sync(pause, true).await,
        Verb::ResumeSync(resume) => ask::pause_sync(resume, false).await,
        Verb::Detach(detach) => ask::detach(detach).await,
        Verb::Attach(attach) => ask::attach(attach).await,
        Verb::Invalidate(invalidate) => ask::invalidate(invalidate).await,
        Verb::InvalidateRemote(invalidate) => ask::invalidate_remote(invalidate).await,
        Verb::NewGeneration(begin) => ask::new_generation(begin).await,
        Verb::Set(set) => ask::set(set).await,
        Verb::Wait(wait) => watch::wait(wait).await,
    }
}

/// Prints, and treats a reader that has gone away (`| head`) as success.
fn print(text: &str) -> Result<(), CommandError> {
    use std::io::{ErrorKind, Write};
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(CommandError::Io { what: "cannot print".to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

fn json(value: &impl serde::Serialize) -> String {
    // In the order of the structure, which is DRBD's: some scripts read it line by line.
    let mut text = serde_json::to_string_pretty(value).expect("what we print are plain structures");
    text.push('\n');
    text
}
