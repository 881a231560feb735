//! The `io_uring` of a shard's thread.
//!
//! Steps that one turn of the shard asks for reach the kernel with one system call, by a task that runs behind those
//! that asked. What has ended is taken as soon as the thread wakes up, whatever woke it: the end of a step on the disk
//! wakes it by itself, so that a step costs one `io_uring_enter` and one `epoll_wait`.
#![expect(unsafe_code, reason = "an entry of the ring names memory that the kernel will use")]

use std::{
    cell::{Cell, RefCell},
    fs::File,
    future::poll_fn,
    io, mem,
    os::fd::{AsRawFd, RawFd},
    rc::Rc,
    task::{Context, Poll, Waker, ready},
};

use block::Extent;
use io_uring::{
    IoUring, opcode, squeue,
    types::{Fd, FsyncFlags},
};
use rustix::io::Errno;
use slab::Slab;
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    buffer::Buffer,
    steps::{Span, Zeroing},
};

/// A ring and what is in it.
///
/// Invariant: what the kernel was told to use, a file and a buffer, is in `steps` from before the kernel hears of it
/// until the kernel has reported, whatever becomes of who waits for it; and where the ring ends before that, it is
/// never freed. A leak is harmless, a kernel that writes into freed memory or to a file number of somebody else is not.
pub(super) struct Driver {
    uring: RefCell<IoUring>,
    steps: RefCell<Slab<Step>>,
    /// The task that submits, where it waits.
    submitter: Cell<Option<Waker>>,
}

/// A step that the kernel was told of.
struct Step {
    held: Held,
    state: State,
}

/// What the kernel uses.
struct Held {
    /// Keeps the number that the kernel was told from being closed.
    _file: Rc<File>,
    buffer: Option<Buffer>,
}

enum State {
    Waiting(Option<Waker>),
    /// Nobody waits any more.
    Abandoned,
    Ended(i32),
}

impl Driver {
    /// A ring for this thread, with the flags that save wake-ups where the kernel knows them.
    pub(super) fn new() -> io::Result<Rc<Self>> {
        let sparing = IoUring::builder().setup_coop_taskrun().setup_single_issuer().build(ENTRIES);
        let uring = RefCell::new(sparing.or_else(|_| IoUring::new(ENTRIES))?);
        Ok(Rc::new(Self { uring, steps: RefCell::default(), submitter: Cell::default() }))
    }

    /// Submits what is asked for and takes what has ended, for as long as its runtime runs.
    pub(super) async fn run(self: Rc<Self>) -> io::Result<()> {
        let readiness = Readiness(Rc::clone(&self));
        // SAFETY: `Readiness` names the ring's own descriptor, always the same, and keeps the ring open.
        let ready = unsafe { AsyncFd::register_with_interest(readiness, Interest::READABLE)? };
        poll_fn(|context| self.turn(context, &ready)).await
    }

    fn turn(&self, context: &mut Context<'_>, ready: &AsyncFd<Readiness>) -> Poll<io::Result<()>> {
        self.submitter.set(Some(context.waker().clone()));
        if !self.submit() {
            // The kernel is short of memory for now.
            context.waker().wake_by_ref();
        }
        loop {
            self.reap();
            ready!(ready.poll_read_ready(context))?.clear_ready();
        }
    }

    /// Reads into the span's bytes of its buffer.
    pub(super) async fn read(&self, file: &Rc<File>, span: Span) -> (Result<usize, Errno>, Buffer) {
        let Span { mut buffer, from, to, at } = span;
        let (len, start) = (length(buffer.room_mut(from, to).len()), buffer.start().wrapping_add(from));
        let entry = opcode::Read::new(Fd(file.as_raw_fd()), start, len).offset(at).build();
        self.transfer(file, buffer, entry).await
    }

    /// Writes the span's bytes of its buffer.
    pub(super) async fn write(&self, file: &Rc<File>, span: Span) -> (Result<usize, Errno>, Buffer) {
        let Span { buffer, from, to, at } = span;
        let (len, start) = (length(buffer[from..to].len()), buffer.start().wrapping_add(from));
        let entry = opcode::Write::new(Fd(file.as_raw_fd()), start, len).offset(at).build();
        self.transfer(file, buffer, entry).await
    }

    /// Makes what was written to the file stable.
    pub(super) async fn sync(&self, file: &Rc<File>) -> Result<(), Errno> {
        let entry = opcode::Fsync::new(Fd(file.as_raw_fd())).flags(FsyncFlags::DATASYNC).build();
        self.take(file, None, entry).await.0.map(drop)
    }

    /// Makes bytes of the file zeros.
    pub(super) async fn zero(&self, file: &Rc<File>, how: Zeroing, extent: Extent) -> Result<(), Errno> {
        let entry = opcode::Fallocate::new(Fd(file.as_raw_fd()), extent.len).offset(extent.offset);
        let entry = entry.mode(how.flags().bits().cast_signed()).build();
        self.take(file, None, entry).await.0.map(drop)
    }

    async fn transfer(
        &self,
        file: &Rc<File>,
        buffer: Buffer,
        entry: squeue::Entry,
    ) -> (Result<usize, Errno>, Buffer) {
        let (result, buffer) = self.take(file, Some(buffer), entry).await;
        (result, buffer.expect("a step gives back what it was given"))
    }

    /// Takes a step. `entry` names the file and, if any memory, that of the buffer.
    async fn take(
        &self,
        file: &Rc<File>,
        buffer: Option<Buffer>,
        entry: squeue::Entry,
    ) -> (Result<usize, Errno>, Option<Buffer>) {
        let held = Held { _file: Rc::clone(file), buffer };
        let key = self.steps.borrow_mut().insert(Step { held, state: State::Waiting(None) });
        if !self.push(&entry.user_data(key as u64)) {
            return (Err(Errno::AGAIN), self.steps.borrow_mut().remove(key).held.buffer);
        }
        let wait = Wait { driver: self, key };
        let result = poll_fn(|context| wait.poll(context)).await;
        mem::forget(wait);
        let result = usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
        (result, self.steps.borrow_mut().remove(key).held.buffer)
    }

    /// Queues an entry whose step is in `steps`. False where the kernel takes none for now.
    fn push(&self, entry: &squeue::Entry) -> bool {
        let full = self.uring.borrow_mut().submission().is_full();
        if full {
            self.submit();
        }
        // SAFETY: the invariant of `Driver`: the entry's file and memory are in `steps`, and stay where they are until
        // the kernel has reported, because a `Buffer` that moves leaves its memory in place.
        let pushed = unsafe { self.uring.borrow_mut().submission().push(entry) }.is_ok();
        if pushed && let Some(submitter) = self.submitter.take() {
            submitter.wake();
        }
        pushed
    }

    /// Tells the kernel of what is queued. False where it does not take all of it for now.
    fn submit(&self) -> bool {
        loop {
            let mut uring = self.uring.borrow_mut();
            if uring.submission().is_empty() {
                return true;
            }
            let submitted = uring.submit();
            drop(uring);
            if let Err(error) = submitted {
                match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::EBUSY) => {
                        self.reap();
                        return false;
                    }
                    _ => panic!("a ring takes what its own thread submits: {error}"),
                }
            }
        }
    }

    /// Takes what has ended and wakes who waits for it.
    fn reap(&self) {
        let (mut uring, mut steps) = (self.uring.borrow_mut(), self.steps.borrow_mut());
        loop {
            for ended in uring.completion() {
                let key = usize::try_from(ended.user_data()).expect("the name came from a usize");
                let step = steps.get_mut(key).expect("a step is there until the kernel has reported");
                match mem::replace(&mut step.state, State::Ended(ended.result())) {
                    State::Waiting(Some(waker)) => waker.wake(),
                    State::Waiting(None) => {}
                    State::Abandoned => drop(steps.remove(key)),
                    State::Ended(_) => unreachable!("the kernel reports once"),
                }
            }
            // What did not fit is with the kernel until it is asked.
            if !uring.submission().cq_overflow() || uring.submit().is_err() {
                return;
            }
        }
    }
}

impl Drop for Driver {
    /// The invariant: the kernel may still use what it has not reported.
    fn drop(&mut self) {
        for step in self.steps.take().drain().filter(|step| !matches!(step.state, State::Ended(_))) {
            mem::forget(step.held);
        }
    }
}

/// Waits for one step. Dropped before its end, it leaves the step to the driver.
struct Wait<'a> {
    driver: &'a Driver,
    key: usize,
}

impl Wait<'_> {
    fn poll(&self, context: &mut Context<'_>) -> Poll<i32> {
        let step = &mut self.driver.steps.borrow_mut()[self.key];
        if let State::Ended(result) = step.state {
            return Poll::Ready(result);
        }
        step.state = State::Waiting(Some(context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut steps = self.driver.steps.borrow_mut();
        match steps[self.key].state {
            State::Ended(_) => drop(steps.remove(self.key)),
            _ => steps[self.key].state = State::Abandoned,
        }
    }
}

/// What epoll watches: readable while something has ended and was not taken.
struct Readiness(Rc<Driver>);

impl AsRawFd for Readiness {
    fn as_raw_fd(&self) -> RawFd {
        self.0.uring.borrow().as_raw_fd()
    }
}

/// The driver of this thread, while it runs one.
pub(super) fn here() -> Option<Rc<Driver>> {
    HERE.with_borrow(Clone::clone)
}

/// Takes what has ended in the ring of this thread.
pub(super) fn woken() {
    HERE.with_borrow(|driver| driver.iter().for_each(|driver| driver.reap()));
}

/// Makes a driver this thread's, until the value is dropped.
pub(super) struct Here(());

impl Here {
    pub(super) fn begin(driver: Rc<Driver>) -> Self {
        HERE.set(Some(driver));
        Self(())
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        HERE.set(None);
    }
}

thread_local! {
    static HERE: RefCell<Option<Rc<Driver>>> = const { RefCell::new(None) };
}

/// The kernel moves less than 2 GiB at once, and goes on where it stopped.
fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Room for the steps that one turn of a shard can ask for, of several disks.
const ENTRIES: u32 = 512;

#[cfg(test)]
mod tests {
    use std::{future::Future, io::Write, os::fd::OwnedFd, pin::pin};

    use super::*;
    use crate::disk::{Ring, buffer};

    /// A driver and a file whose reads end when something is written to the other end.
    fn driver_and_pipe() -> Option<(Rc<Driver>, Rc<File>, io::PipeWriter)> {
        if let Ring::Refused { reason } = Ring::try_out() {
            println!("skipped: {reason}");
            return None;
        }
        let (reader, writer) = io::pipe().unwrap();
        Some((Driver::new().unwrap(), Rc::new(File::from(OwnedFd::from(reader))), writer))
    }

    fn span(buffer: Buffer) -> Span {
        Span { buffer, from: 0, to: 4096, at: 0 }
    }

    /// Begins a read, tells the kernel of it and forgets it.
    fn abandon(driver: &Driver, file: &Rc<File>, buffer: Buffer) {
        let mut read = pin!(driver.read(file, span(buffer)));
        assert!(
            read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(),
            "nothing is in the pipe"
        );
        assert!(driver.submit());
    }

    fn is_free(start: *mut u8) -> bool {
        let later: Vec<_> = (0..64).map(|_| Buffer::with_room(4096)).collect();
        later.iter().any(|buffer| buffer.start() == start)
    }

    /// "A buffer handed to the kernel is owned by the operation until its completion arrives" (style): even where a
    /// ring ends with a step in flight, its memory is given to nobody else and its file stays open.
    #[test]
    fn memory_in_flight_outlives_its_ring() {
        let Some((driver, file, mut writer)) = driver_and_pipe() else { return };
        buffer::keep_on_this_thread();
        let lent = Buffer::zeroed(4096);
        let start = lent.start();
        abandon(&driver, &file, lent);
        drop((driver, file));
        assert!(!is_free(start));
        writer.write_all(b"the reader was not closed").unwrap();
    }

    /// Who waits for a step may be dropped: its memory is freed when the kernel has reported, and not before.
    #[test]
    fn an_abandoned_step_is_freed_when_the_kernel_has_reported() {
        let Some((driver, file, mut writer)) = driver_and_pipe() else { return };
        buffer::keep_on_this_thread();
        let lent = Buffer::zeroed(4096);
        let start = lent.start();
        abandon(&driver, &file, lent);
        driver.reap();
        assert!(!is_free(start));
        assert_eq!((driver.steps.borrow().len(), Rc::strong_count(&file)), (1, 2));
        writer.write_all(b"now it ends").unwrap();
        driver.uring.borrow().submit_and_wait(1).unwrap();
        driver.reap();
        assert!(is_free(start));
        assert_eq!((driver.steps.borrow().len(), Rc::strong_count(&file)), (0, 1));
    }

    /// More steps than the ring has room for are all taken, and each gets its own result.
    #[test]
    fn a_full_ring_takes_more() {
        let Some((driver, _, _)) = driver_and_pipe() else { return };
        let mut file = tempfile::tempfile().unwrap();
        let count = 3 * u8::MAX as usize * 4;
        (0..count).for_each(|number| file.write_all(&[u8::try_from(number % 251).unwrap()]).unwrap());
        let file = Rc::new(file);
        let mut reads: Vec<_> = (0..count as u64)
            .map(|at| Box::pin(driver.read(&file, Span { buffer: Buffer::with_room(1), from: 0, to: 1, at })))
            .collect();
        let mut context = Context::from_waker(Waker::noop());
        let pending = reads.iter_mut().all(|read| read.as_mut().poll(&mut context).is_pending());
        assert!(pending, "nothing is taken before it is reaped");
        for (number, mut read) in reads.into_iter().enumerate() {
            let (result, mut buffer) = loop {
                assert!(driver.submit());
                driver.reap();
                if let Poll::Ready(done) = read.as_mut().poll(&mut context) {
                    break done;
                }
                driver.uring.borrow().submit_and_wait(1).unwrap();
            };
            assert_eq!((result, usize::from(buffer.room_mut(0, 1)[0])), (Ok(1), number % 251));
        }
        assert!(driver.steps.borrow().is_empty());
    }
}
