//! The engine on the shard's `io_uring`: for files and devices that do `O_DIRECT`.
//!
//! Operations are done by tasks that live as long as the disk, so that an I/O allocates nothing; `driver` takes
//! their steps.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fs::File,
    future::poll_fn,
    io,
    rc::Rc,
    sync::Arc,
    task::{Poll, Waker},
};

use block::Extent;
use rustix::io::Errno;
use tokio::task::spawn_local;

use super::{
    backing::{Files, OpenFile},
    buffer::Buffer,
    driver::Driver,
    in_flight::{InFlight, Tag},
    operation::{Operation, Terms},
    steps::{Place, Span, Steps, Zeroing},
};

/// The tasks of one disk, and the operations that wait for one.
pub(super) struct Uring {
    files: RingFiles,
    terms: Arc<Terms>,
    in_flight: Rc<InFlight>,
    queue: RefCell<VecDeque<(Tag, Operation)>>,
    /// Each task's waker, while it has nothing to do.
    slots: RefCell<Vec<Option<Waker>>>,
    /// The tasks that have nothing to do.
    idle: RefCell<Vec<usize>>,
    closed: Cell<bool>,
}

impl Uring {
    /// An engine without tasks.
    pub(super) fn new(
        driver: Rc<Driver>,
        files: &Files,
        terms: Arc<Terms>,
        in_flight: Rc<InFlight>,
    ) -> io::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            files: RingFiles::new(driver, files)?,
            terms,
            in_flight,
            queue: RefCell::default(),
            slots: RefCell::default(),
            idle: RefCell::default(),
            closed: Cell::new(false),
        }))
    }

    /// Queues an operation and sees to it that a task takes it.
    pub(super) fn submit(self: &Rc<Self>, tag: Tag, operation: Operation) {
        self.queue.borrow_mut().push_back((tag, operation));
        let idle = self.idle.borrow_mut().pop();
        match idle {
            Some(slot) => self.wake(slot),
            None => self.start_slot(),
        }
    }

    /// Ends the tasks, once they have done what is queued.
    pub(super) fn close(&self) {
        self.closed.set(true);
        for slot in self.idle.take() {
            self.wake(slot);
        }
    }

    fn wake(&self, slot: usize) {
        if let Some(waker) = self.slots.borrow_mut()[slot].take() {
            waker.wake();
        }
    }

    fn start_slot(self: &Rc<Self>) {
        let mut slots = self.slots.borrow_mut();
        if slots.len() < SLOTS_MAX {
            let number = slots.len();
            slots.push(None);
            spawn_local(Rc::clone(self).run(number));
        }
    }

    async fn run(self: Rc<Self>, slot: usize) {
        while let Some((tag, operation)) = self.next(slot).await {
            let outcome = operation.run(&self.files, &self.terms).await;
            for (tag, operation) in self.in_flight.end(tag, outcome) {
                self.submit(tag, operation);
            }
        }
    }

    /// The next operation; `None` once there is none and the disk is closed.
    async fn next(&self, slot: usize) -> Option<(Tag, Operation)> {
        poll_fn(|context| {
            if let Some(next) = self.queue.borrow_mut().pop_front() {
                return Poll::Ready(Some(next));
            }
            if self.closed.get() {
                return Poll::Ready(None);
            }
            let waker = context.waker().clone();
            if self.slots.borrow_mut()[slot].replace(waker).is_none() {
                self.idle.borrow_mut().push(slot);
            }
            Poll::Pending
        })
        .await
    }
}

/// The files, and the ring that takes their steps.
struct RingFiles {
    driver: Rc<Driver>,
    data: RingFile,
    metadata: Option<RingFile>,
}

struct RingFile {
    plain: Rc<File>,
    /// The same file, opened so that a write is stable when it returns.
    through: Rc<File>,
}

impl RingFiles {
    fn new(driver: Rc<Driver>, files: &Files) -> io::Result<Self> {
        let ring_file = |file: &OpenFile| {
            let plain = Rc::new(file.plain.try_clone()?);
            let through = match &file.through {
                Some(through) => Rc::new(through.try_clone()?),
                None => Rc::clone(&plain),
            };
            Ok::<_, io::Error>(RingFile { plain, through })
        };
        Ok(Self {
            driver,
            data: ring_file(&files.data)?,
            metadata: files.metadata.as_ref().map(ring_file).transpose()?,
        })
    }

    fn at(&self, place: Place) -> &RingFile {
        match (place, &self.metadata) {
            (Place::Metadata, Some(metadata)) => metadata,
            _ => &self.data,
        }
    }
}

impl Steps for RingFiles {
    async fn read(&self, place: Place, span: Span) -> (Result<usize, Errno>, Buffer) {
        self.driver.read(&self.at(place).plain, span).await
    }

    async fn write(&self, place: Place, span: Span, stable: bool) -> (Result<usize, Errno>, Buffer) {
        let file = if stable { &self.at(place).through } else { &self.at(place).plain };
        self.driver.write(file, span).await
    }

    async fn sync(&self, place: Place) -> Result<(), Errno> {
        self.driver.sync(&self.at(place).plain).await
    }

    async fn zero(&self, how: Zeroing, extent: Extent) -> Result<(), Errno> {
        self.driver.zero(&self.data.plain, how, extent).await
    }
}

/// The operations of one disk that are with the kernel at once; more wait for one of them to end.
const SLOTS_MAX: usize = 128;
