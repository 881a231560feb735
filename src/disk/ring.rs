//! Whether this process may use `io_uring`, and the runtime of a shard's thread with it or without.
//!
//! Containers often forbid it (Docker's default profile answers EPERM), so it is tried before it is relied on.

use std::{cell::Cell, future::Future, io, rc::Rc};

use thiserror::Error;
use tokio::{
    runtime::{Builder, LocalOptions},
    sync::Notify,
    task::spawn_local,
};
use tracing::info;

use super::{
    buffer,
    driver::{self, Driver, Here},
};

/// Which engine does the operations of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The shard's `io_uring`.
    Uring,
    /// A few threads.
    Threads,
}

/// Whether shards have an `io_uring`, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ring {
    /// They have.
    Allowed,
    /// They have not.
    Refused {
        /// Why, in words for an operator.
        reason: String,
    },
}

/// [`ENGINE_VARIABLE`] says something else than it can.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{ENGINE_VARIABLE} is {value:?}; it can be \"uring\" or \"pool\"")]
pub struct EngineError {
    /// What it says.
    pub value: String,
}

impl Ring {
    /// Tries to make a ring, unless the environment asks for threads, and logs what came of it. Once per process
    /// is enough.
    ///
    /// # Errors
    /// When [`ENGINE_VARIABLE`] cannot be understood.
    pub fn probe() -> Result<Self, EngineError> {
        let wanted = std::env::var_os(ENGINE_VARIABLE).map(|value| value.to_string_lossy().into_owned());
        let ring = Self::as_wanted(wanted.as_deref().unwrap_or_default())?;
        match &ring {
            Self::Allowed => info!("disks that do O_DIRECT use io_uring"),
            Self::Refused { reason } => info!("disks use threads: {reason}"),
        }
        Ok(ring)
    }

    fn as_wanted(engine: &str) -> Result<Self, EngineError> {
        match engine {
            "" | "uring" => Ok(Self::try_out()),
            "pool" => Ok(Self::Refused { reason: format!("{ENGINE_VARIABLE}=pool asks for threads") }),
            value => Err(EngineError { value: value.to_owned() }),
        }
    }

    /// Tries to make a ring with the operations that disks need.
    #[must_use]
    pub fn try_out() -> Self {
        match try_ring() {
            Ok(None) => Self::Allowed,
            Ok(Some(lack)) => Self::Refused { reason: format!("this kernel's io_uring lacks {lack}") },
            Err(error) => Self::Refused { reason: refusal(&error) },
        }
    }

    /// Runs a shard on this thread: a current-thread runtime, with tasks that stay on it (`spawn_local`), sockets
    /// and clocks, and the ring where it is allowed. When the future has ended, it waits for every disk operation
    /// of this thread, so that no memory is freed under the kernel; then it drops the tasks that are left.
    ///
    /// # Panics
    /// When the process is out of file descriptors or memory for a runtime.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        buffer::keep_on_this_thread();
        let mut builder = Builder::new_current_thread();
        builder.enable_all();
        let driver = match self {
            Self::Allowed => {
                builder.on_thread_unpark(driver::woken);
                Some(Driver::new().expect("a ring was made when the process started"))
            }
            Self::Refused { .. } => None,
        };
        let runtime = builder
            .build_local(LocalOptions::default())
            .expect("a shard starts with descriptors and memory to spare");
        let _here = driver.clone().map(Here::begin);
        runtime.block_on(async {
            if let Some(driver) = driver {
                spawn_local(driver.run());
            }
            let output = future.await;
            operations_ended().await;
            output
        })
    }
}

/// Counts an operation of this thread.
pub(super) fn operation_began() {
    OPERATIONS.with(|operations| operations.count.set(operations.count.get() + 1));
}

/// Counts the end of an operation of this thread.
pub(super) fn operation_ended() {
    OPERATIONS.with(|operations| {
        operations.count.set(operations.count.get() - 1);
        if operations.count.get() == 0 {
            operations.none.notify_waiters();
        }
    });
}

/// Waits until no disk operation of this thread is in flight.
async fn operations_ended() {
    let operations = OPERATIONS.with(Rc::clone);
    while operations.count.get() > 0 {
        operations.none.notified().await;
    }
}

#[derive(Default)]
struct Operations {
    count: Cell<usize>,
    none: Notify,
}

thread_local! {
    static OPERATIONS: Rc<Operations> = Rc::default();
}

/// Makes a ring and asks it for the operations that disks need. Gives the one that is missing.
fn try_ring() -> io::Result<Option<&'static str>> {
    let ring = io_uring::IoUring::new(8)?;
    let mut probe = io_uring::Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        ("reads", io_uring::opcode::Read::CODE),
        ("writes", io_uring::opcode::Write::CODE),
        ("fsync", io_uring::opcode::Fsync::CODE),
        ("fallocate", io_uring::opcode::Fallocate::CODE),
    ];
    Ok(needed.into_iter().find(|(_, code)| !probe.is_supported(*code)).map(|(name, _)| name))
}

fn refusal(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden here (a container's seccomp profile, or kernel.io_uring_disabled)"
                .to_owned()
        }
        Some(libc::ENOSYS) => "this kernel has no io_uring".to_owned(),
        _ => format!("io_uring cannot be set up: {error}"),
    }
}

/// The environment's word on the engine: `uring` or `pool`.
pub const ENGINE_VARIABLE: &str = "EVENKEEL_DISK_ENGINE";

#[cfg(test)]
mod tests {
    use super::*;

    /// The environment can ask for threads, and a word that means nothing is refused, not ignored.
    #[test]
    fn the_environment_chooses_the_engine() {
        assert_eq!(Ring::as_wanted(""), Ok(Ring::try_out()));
        assert!(
            matches!(Ring::as_wanted("pool"), Ok(Ring::Refused { reason }) if reason.contains(ENGINE_VARIABLE))
        );
        let error = Ring::as_wanted("threads").unwrap_err();
        assert!(error.to_string().contains("\"threads\"; it can be \"uring\" or \"pool\""), "{error}");
    }

    /// A container that forbids `io_uring` is told apart from a kernel that has none.
    #[test]
    fn a_refusal_says_who_refuses() {
        assert!(refusal(&io::Error::from_raw_os_error(libc::EPERM)).contains("seccomp"));
        assert!(refusal(&io::Error::from_raw_os_error(libc::ENOSYS)).contains("no io_uring"));
        assert!(refusal(&io::Error::from_raw_os_error(libc::ENOMEM)).contains("cannot be set up"));
    }

    /// Without a ring a shard runs all the same, with tasks of its own and a clock.
    #[test]
    fn shards_run_with_and_without_a_ring() {
        for ring in [Ring::Refused { reason: "the test wants none".into() }, Ring::try_out()] {
            let has_ring = ring == Ring::Allowed;
            let seen = ring.block_on(async {
                tokio::time::timeout(std::time::Duration::from_mins(1), spawn_local(async {})).await??;
                Ok::<_, Box<dyn std::error::Error>>(driver::here().is_some())
            });
            assert_eq!(seen.unwrap(), has_ring);
            assert!(driver::here().is_none());
        }
    }
}
