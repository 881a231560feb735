//! The engine of threads: for files that do no `O_DIRECT`, for places where `io_uring` is forbidden, and for what a
//! ring cannot do.
//!
//! Each disk has its own threads, so that one that hangs holds up nobody else; they are started when there is work
//! for them. A task on the shard hands over everything that one turn of the shard asked for under one lock, and
//! gets what has ended with one wake-up.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    rc::Rc,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    task::{Poll, Waker},
    thread,
};

use block::Extent;
use futures_util::FutureExt;
use replication::DiskAnswer;
use rustix::io::Errno;
use tokio::{sync::Notify, task::spawn_local};

use super::{
    allocation::allocation,
    backing::{Files, OpenFile},
    buffer::Buffer,
    in_flight::{InFlight, Tag},
    operation::{Operation, Outcome, Terms},
    steps::{Failure, Place, Span, Steps, Zeroing},
};

/// What a thread can do.
#[derive(Debug)]
pub(super) enum Task {
    /// A disk operation.
    Operation(Operation),
    /// Tells what occupies space in an extent, in whole blocks of `block_size` bytes.
    Allocation { extent: Extent, block_size: u64 },
}

/// The threads of one disk.
pub(super) struct Threads {
    shared: Arc<Shared>,
    files: Arc<Files>,
    in_flight: Rc<InFlight>,
    /// What the shard asked for in this turn.
    outbox: RefCell<VecDeque<(Tag, Task)>>,
    /// The task on the shard, where it waits.
    waker: RefCell<Option<Waker>>,
    closed: Cell<bool>,
    ended: Notify,
    /// How many threads there are at most.
    bound: usize,
}

/// What the threads and the shard share.
struct Shared {
    terms: Arc<Terms>,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(Tag, Task)>,
    ended: Vec<(Tag, Outcome)>,
    /// The task on the shard, where it waits for `ended`.
    waiting: Option<Waker>,
    threads: usize,
    /// The threads that wait for work and were not called.
    idle: usize,
    /// The calls that no thread has answered yet.
    calls: usize,
    closed: bool,
}

impl Threads {
    /// An engine without threads, and its task on the shard.
    pub(super) fn new(files: Arc<Files>, terms: Arc<Terms>, in_flight: Rc<InFlight>) -> Rc<Self> {
        let bound = if files.are_direct() { THREADS_DIRECT_MAX } else { THREADS_CACHED_MAX };
        let shared = Shared { terms, state: Mutex::default(), work: Condvar::new() };
        let threads = Rc::new(Self {
            shared: Arc::new(shared),
            files,
            in_flight,
            outbox: RefCell::default(),
            waker: RefCell::default(),
            closed: Cell::new(false),
            ended: Notify::new(),
            bound,
        });
        spawn_local(Rc::clone(&threads).carry());
        threads
    }

    /// Queues a task. The threads get it at the end of this turn of the shard.
    pub(super) fn submit(&self, tag: Tag, task: Task) {
        self.outbox.borrow_mut().push_back((tag, task));
        self.wake();
    }

    /// Ends the threads, once they have done what is queued.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.wake();
    }

    /// Ends the threads and waits until they are gone. Nothing may be in flight.
    pub(super) async fn end(&self) {
        self.close();
        self.ended.notified().await;
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Carries tasks to the threads and outcomes back, until the engine is closed and nothing is left.
    async fn carry(self: Rc<Self>) {
        let (mut ended, mut carried) = (Vec::new(), 0_usize);
        loop {
            poll_fn(|context| self.exchange(context.waker(), &mut ended, &mut carried)).await;
            if ended.is_empty() {
                break;
            }
            for (tag, outcome) in ended.drain(..) {
                carried -= 1;
                for (tag, operation) in self.in_flight.end(tag, outcome) {
                    self.outbox.borrow_mut().push_back((tag, Task::Operation(operation)));
                }
            }
        }
        self.shared.close();
        poll_fn(|context| {
            let mut state = self.shared.lock();
            state.waiting = Some(context.waker().clone());
            if state.threads == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.ended.notify_one();
    }

    /// Hands over the outbox and takes what has ended. Ready with nothing when the engine is closed and empty.
    fn exchange(&self, waker: &Waker, ended: &mut Vec<(Tag, Outcome)>, carried: &mut usize) -> Poll<()> {
        let mut state = self.shared.lock();
        let mut outbox = self.outbox.borrow_mut();
        let added = outbox.len();
        *carried += added;
        state.queue.append(&mut outbox);
        self.call(&mut state, added);
        std::mem::swap(&mut state.ended, ended);
        if !ended.is_empty() || (self.closed.get() && *carried == 0) {
            return Poll::Ready(());
        }
        state.waiting = Some(waker.clone());
        self.waker.replace(Some(waker.clone()));
        Poll::Pending
    }

    /// Calls a thread for each of the new tasks, and starts threads while there are too few.
    fn call(&self, state: &mut State, tasks: usize) {
        for _ in 0..tasks {
            if state.idle > 0 {
                state.idle -= 1;
                state.calls += 1;
                self.shared.work.notify_one();
            } else if state.threads < self.bound {
                let (shared, files) = (Arc::clone(&self.shared), Arc::clone(&self.files));
                let started =
                    thread::Builder::new().name("disk".to_owned()).spawn(move || shared.work(files));
                match started {
                    Ok(_) => state.threads += 1,
                    // Those that run do the work.
                    Err(_) if state.threads > 0 => return,
                    Err(error) => return state.refuse(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)),
                }
            } else {
                return;
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    /// A thread: does tasks while there are some.
    fn work(&self, files: Arc<Files>) {
        let mut state = self.lock();
        'work: loop {
            while let Some((tag, task)) = state.queue.pop_front() {
                drop(state);
                let outcome = self.run(task, &files);
                state = self.lock();
                state.ended.push((tag, outcome));
                if let Some(waker) = state.waiting.take() {
                    drop(state);
                    waker.wake();
                    state = self.lock();
                }
            }
            state.idle += 1;
            while state.calls == 0 {
                if state.closed {
                    break 'work;
                }
                state = self.work.wait(state).expect("no thread panics while it holds the lock");
            }
            state.calls -= 1;
        }
        drop(state);
        drop(files);
        let mut state = self.lock();
        state.threads -= 1;
        if let Some(waker) = state.waiting.take() {
            waker.wake();
        }
    }

    fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
    }

    fn run(&self, task: Task, files: &Files) -> Outcome {
        match task {
            Task::Operation(operation) => operation
                .run(files, &self.terms)
                .now_or_never()
                .expect("a system call has returned when its future is first polled"),
            Task::Allocation { extent, block_size } => {
                let result = allocation(&files.data, extent, block_size);
                Outcome { result: result.map(DiskAnswer::Allocation).map_err(Failure::of), buffer: None }
            }
        }
    }
}

impl State {
    /// Fails what is queued: not even one thread could be started.
    fn refuse(&mut self, errno: Errno) {
        let refused = self.queue.drain(..);
        self.ended
            .extend(refused.map(|(tag, _)| (tag, Outcome { result: Err(Failure::of(errno)), buffer: None })));
    }
}

impl Files {
    /// Whether a write to any of them can be stable by itself.
    pub(super) fn are_direct(&self) -> bool {
        self.data.through.is_some()
            && self.metadata.as_ref().is_none_or(|metadata| metadata.through.is_some())
    }

    fn at(&self, place: Place) -> &OpenFile {
        match (place, &self.metadata) {
            (Place::Metadata, Some(metadata)) => metadata,
            _ => &self.data,
        }
    }
}

impl Steps for Files {
    async fn read(&self, place: Place, mut span: Span) -> (Result<usize, Errno>, Buffer) {
        let bytes = span.buffer.room_mut(span.from, span.to);
        let result = rustix::io::pread(&self.at(place).plain, bytes, span.at);
        (result, span.buffer)
    }

    async fn write(&self, place: Place, span: Span, stable: bool) -> (Result<usize, Errno>, Buffer) {
        let file = self.at(place);
        let through = file.through.as_ref().filter(|_| stable);
        let result =
            rustix::io::pwrite(through.unwrap_or(&file.plain), &span.buffer[span.from..span.to], span.at);
        (result, span.buffer)
    }

    async fn sync(&self, place: Place) -> Result<(), Errno> {
        rustix::fs::fdatasync(&self.at(place).plain)
    }

    async fn zero(&self, how: Zeroing, extent: Extent) -> Result<(), Errno> {
        rustix::fs::fallocate(&self.data.plain, how.flags(), extent.offset, extent.len)
    }
}

/// The threads of one disk at most where the device makes them wait.
const THREADS_DIRECT_MAX: usize = 16;

/// The threads of one disk at most where they copy to and from the page cache: more only wait for each other.
const THREADS_CACHED_MAX: usize = 4;
