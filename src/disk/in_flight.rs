//! The operations of one disk from their submission to their answer.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::Instant,
};

use ops::metrics::{self, Latencies};
use replication::{DiskAnswer, DiskError, DiskOp, Input};
use tokio::sync::Notify;

use super::{
    guard::{BlockAt, Guard},
    operation::{Operation, Outcome},
    ring,
};
use crate::volume::Mailbox;

/// What an engine hands back with an operation's outcome.
#[derive(Debug)]
pub(super) struct Tag {
    op: DiskOp,
    kind: metrics::Operation,
    began: Instant,
    /// Whether success promises that bytes are stable.
    stable: bool,
    /// The device blocks that it changes in part.
    blocks: Vec<BlockAt>,
}

/// The operations of one disk that have no answer yet.
#[derive(Debug)]
pub(super) struct InFlight {
    mailbox: Rc<Mailbox>,
    latencies: Arc<Latencies>,
    count: Cell<usize>,
    none: Notify,
    /// What the disk answers to everything since it lost bytes that it had reported as written.
    failed: Cell<Option<DiskError>>,
    guard: RefCell<Guard<(Tag, Operation)>>,
}

impl InFlight {
    pub(super) const fn new(mailbox: Rc<Mailbox>, latencies: Arc<Latencies>) -> Self {
        Self {
            mailbox,
            latencies,
            count: Cell::new(0),
            none: Notify::const_new(),
            failed: Cell::new(None),
            guard: RefCell::new(Guard::new()),
        }
    }

    /// Counts an operation that is taken up. `stable`: its success promises that bytes are stable.
    pub(super) fn begin(&self, op: DiskOp, kind: metrics::Operation, stable: bool) -> Tag {
        self.count.set(self.count.get() + 1);
        ring::operation_began();
        Tag { op, kind, began: Instant::now(), stable, blocks: Vec::new() }
    }

    /// Keeps a change of these parts of device blocks apart from others: gives it back where it can start now, and
    /// otherwise out of a later [`Self::end`].
    pub(super) fn enter(
        &self,
        mut tag: Tag,
        blocks: Vec<BlockAt>,
        operation: Operation,
    ) -> Option<(Tag, Operation)> {
        tag.blocks.clone_from(&blocks);
        if blocks.is_empty() {
            Some((tag, operation))
        } else {
            self.guard.borrow_mut().enter(blocks, (tag, operation))
        }
    }

    /// Answers an operation, and gives those that it held up.
    pub(super) fn end(&self, tag: Tag, outcome: Outcome) -> Vec<(Tag, Operation)> {
        let Tag { op, kind, began, stable, blocks } = tag;
        self.latencies.disk.record(kind, began.elapsed());
        let Outcome { result, buffer } = outcome;
        // On this thread, which keeps the memory for the next operation.
        drop(buffer);
        if let Err(failure) = &result
            && failure.lost
            && self.failed.get().is_none()
        {
            tracing::error!(
                "{}: what was written before may be lost; the disk is failed from now on",
                failure.error
            );
            self.failed.set(Some(failure.error));
        }
        let result = match (self.failed.get(), result) {
            // The kernel tells one of several syncs that run at once, and the others nothing.
            (Some(error), Ok(_)) if stable => Err(error),
            (_, result) => result.map_err(|failure| failure.error),
        };
        self.answer(op, result);
        let started = if blocks.is_empty() { Vec::new() } else { self.guard.borrow_mut().leave(&blocks) };
        ring::operation_ended();
        self.count.set(self.count.get() - 1);
        if self.count.get() == 0 {
            self.none.notify_waiters();
        }
        started
    }

    /// Answers at once, without an operation.
    pub(super) fn answer(&self, op: DiskOp, result: Result<DiskAnswer, DiskError>) {
        self.mailbox.push(Input::Disk { op, result });
    }

    /// Why the disk is failed, where it is.
    pub(super) const fn failed(&self) -> Option<DiskError> {
        self.failed.get()
    }

    /// How many operations have no answer yet.
    pub(super) const fn count(&self) -> usize {
        self.count.get()
    }

    /// Waits until every operation has its answer.
    pub(super) async fn none(&self) {
        while self.count.get() > 0 {
            self.none.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ops::{config::Config, status::Names};
    use rustix::io::Errno;

    use super::{super::steps::Failure, *};

    fn in_flight() -> InFlight {
        InFlight::new(Rc::new(Mailbox::new()), Arc::new(Latencies::new("db", [])))
    }

    fn outcome(result: Result<(), Failure>) -> Outcome {
        Outcome { result: result.map(|()| DiskAnswer::Done), buffer: None }
    }

    fn answers(in_flight: &InFlight) -> Vec<(u64, Result<(), DiskError>)> {
        let mut inputs = Vec::new();
        in_flight.mailbox.take_now(&mut inputs);
        let answer = |input| match input {
            Input::Disk { op, result } => (op.0, result.map(|_| ())),
            other => panic!("a disk reports disk operations, not {other:?}"),
        };
        inputs.into_iter().map(answer).collect()
    }

    /// P2: the kernel tells of lost bytes once and takes them for clean then, so no later success counts, neither of a
    /// sync that ran beside the one that was told nor of one that comes after; reads and writes that were out are
    /// what they are.
    #[test]
    fn a_failed_sync_is_not_forgotten() {
        let in_flight = in_flight();
        let io = Err(DiskError::Io { errno: Errno::IO.raw_os_error() });
        let begin = |stable| in_flight.begin(DiskOp(u64::from(stable)), metrics::Operation::Flush, stable);
        let tags = [true, true, false].map(begin);
        let [told, beside, write] = tags;
        in_flight.end(told, outcome(Err(Failure::lost(Errno::IO))));
        in_flight.end(beside, outcome(Ok(())));
        in_flight.end(write, outcome(Ok(())));
        assert_eq!(answers(&in_flight), [(1, io), (1, io), (0, Ok(()))]);
        assert_eq!(in_flight.failed(), io.err());
        assert_eq!(in_flight.count(), 0);
    }

    /// Every operation is timed under what it does, whether it succeeds or fails.
    #[test]
    fn operations_are_timed() {
        let in_flight = in_flight();
        for (kind, result) in [
            (metrics::Operation::Write, Ok(())),
            (metrics::Operation::Write, Err(Failure::of(Errno::NOSPC))),
            (metrics::Operation::Flush, Ok(())),
        ] {
            in_flight.end(in_flight.begin(DiskOp(0), kind, false), outcome(result));
        }
        let config = Config::single("machine", Path::new("/a.img"), 1 << 20, "/a.sock".into()).unwrap();
        let text = metrics::render(&metrics::Scrape {
            resources: &[],
            names: &Names::new(&config, config.identity(None)),
            latencies: &[Arc::clone(&in_flight.latencies)],
            counters: &metrics::Counters::default(),
            process: None,
        });
        for (operation, count) in [("read", 0), ("write", 2), ("flush", 1), ("discard", 0)] {
            let labels = format!("name=\"db\",operation=\"{operation}\"");
            let line = format!("evenkeel_disk_latency_seconds_count{{{labels}}} {count}");
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    /// P12: an error that loses nothing is one operation's error.
    #[test]
    fn other_failures_are_of_one_operation() {
        let in_flight = in_flight();
        let [full, flush] = [2, 3].map(|op| in_flight.begin(DiskOp(op), metrics::Operation::Flush, true));
        in_flight.end(full, outcome(Err(Failure::of(Errno::NOSPC))));
        in_flight.end(flush, outcome(Ok(())));
        assert_eq!(answers(&in_flight), [(2, Err(DiskError::NoSpace)), (3, Ok(()))]);
        assert_eq!(in_flight.failed(), None);
    }
}
