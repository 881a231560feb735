//! The engine on the shard's `io_uring`, by tokio-uring: for files and devices that do `O_DIRECT`.
//!
//! Operations are done by tasks that live as long as the disk, so that an I/O allocates nothing; what one turn of
//! the shard asks for reaches the kernel with one system call, when the runtime parks. tokio-uring frees what it
//! holds when its runtime ends, even while the kernel still reads or writes it. So what it gets is [`Lent`]: it is
//! taken back when the operation reports, and otherwise never freed. [`super::Ring::block_on`] sees to it that no
//! runtime ends like that.
#![expect(unsafe_code, reason = "tokio-uring's buffer traits are unsafe to implement")]

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    io,
    mem::ManuallyDrop,
    rc::Rc,
    sync::Arc,
    task::{Poll, Waker},
};

use block::Extent;
use rustix::io::Errno;
use tokio::task::spawn_local;
use tokio_uring::{
    buf::{BoundedBuf, IoBuf, IoBufMut, Slice},
    fs::File,
};

use super::{
    backing::{Files, OpenFile},
    buffer::Buffer,
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
    /// An engine without tasks. It has to be on a thread where tokio-uring runs.
    pub(super) fn new(files: &Files, terms: Arc<Terms>, in_flight: Rc<InFlight>) -> io::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            files: RingFiles::new(files)?,
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

/// The files as tokio-uring has them.
struct RingFiles {
    data: RingFile,
    metadata: Option<RingFile>,
}

struct RingFile {
    plain: Rc<File>,
    /// The same file, opened so that a write is stable when it returns.
    through: Rc<File>,
}

impl RingFiles {
    fn new(files: &Files) -> io::Result<Self> {
        let ring_file = |file: &OpenFile| {
            let plain = Rc::new(File::from_std(file.plain.try_clone()?));
            let through = match &file.through {
                Some(through) => Rc::new(File::from_std(through.try_clone()?)),
                None => Rc::clone(&plain),
            };
            Ok::<_, io::Error>(RingFile { plain, through })
        };
        Ok(Self {
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
        let file = &self.at(place).plain;
        let (result, lent) =
            file.read_at(Lent::new(span.buffer, file).slice(span.from..span.to), span.at).await;
        (result.map_err(|error| errno_of(&error)), take_back(lent))
    }

    async fn write(&self, place: Place, span: Span, stable: bool) -> (Result<usize, Errno>, Buffer) {
        let file = if stable { &self.at(place).through } else { &self.at(place).plain };
        let lent = Lent::new(span.buffer, file).slice(span.from..span.to);
        let (result, lent) = file.write_at(lent, span.at).submit().await;
        (result.map_err(|error| errno_of(&error)), take_back(lent))
    }

    async fn sync(&self, place: Place) -> Result<(), Errno> {
        self.at(place).plain.sync_data().await.map_err(|error| errno_of(&error))
    }

    async fn zero(&self, how: Zeroing, extent: Extent) -> Result<(), Errno> {
        let flags = how.flags().bits().cast_signed();
        self.data.plain.fallocate(extent.offset, extent.len, flags).await.map_err(|error| errno_of(&error))
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn take_back(lent: Slice<Lent>) -> Buffer {
    lent.into_inner().end()
}

/// A buffer and a file that the kernel may be using.
///
/// Invariant: the buffer is freed and the file closed only by [`Lent::end`], which the operation reaches when the
/// kernel has reported. A `Lent` that is dropped in any other way leaks both: a leak is harmless, a kernel that
/// writes into freed memory or to a file number of somebody else is not.
struct Lent {
    buffer: ManuallyDrop<Buffer>,
    file: ManuallyDrop<Rc<File>>,
}

impl Lent {
    fn new(buffer: Buffer, file: &Rc<File>) -> Self {
        Self { buffer: ManuallyDrop::new(buffer), file: ManuallyDrop::new(Rc::clone(file)) }
    }

    fn end(self) -> Buffer {
        drop(ManuallyDrop::into_inner(self.file));
        ManuallyDrop::into_inner(self.buffer)
    }
}

// SAFETY: the memory of a `Buffer` stays where it is when the buffer moves, the first `filled` bytes of its `room`
// are initialised, and by the invariant of `Lent` it lives until the kernel has reported.
unsafe impl IoBuf for Lent {
    fn stable_ptr(&self) -> *const u8 {
        self.buffer.start().cast_const()
    }

    fn bytes_init(&self) -> usize {
        self.buffer.filled()
    }

    fn bytes_total(&self) -> usize {
        self.buffer.room()
    }
}

// SAFETY: as above; one owner means that nobody reads while the kernel writes.
unsafe impl IoBufMut for Lent {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.buffer.start()
    }

    unsafe fn set_init(&mut self, filled: usize) {
        if self.buffer.filled() < filled {
            self.buffer.set_filled(filled);
        }
    }
}

/// The operations of one disk that are with the kernel at once; more wait for one of them to end.
const SLOTS_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use std::{fs, future::Future, io::Write, os::fd::OwnedFd};

    use super::*;
    use crate::disk::{Ring, buffer};

    /// "A buffer handed to the kernel is owned by the operation until its completion arrives" (style): even where a
    /// runtime ends with an operation in flight, its memory is given to nobody else and its file stays open.
    #[test]
    fn memory_in_flight_outlives_its_runtime() {
        if let Ring::Refused { reason } = Ring::try_out() {
            println!("skipped: {reason}");
            return;
        }
        buffer::keep_on_this_thread();
        let (reader, mut writer) = io::pipe().unwrap();
        let lent = Buffer::zeroed(4096);
        let start = lent.start();
        let runtime = tokio_uring::Runtime::new(&tokio_uring::builder()).unwrap();
        runtime.block_on(async {
            let file = Rc::new(File::from_std(fs::File::from(OwnedFd::from(reader))));
            let lent = Lent::new(lent, &file).slice(0..4096);
            let mut read = Box::pin(file.read_at(lent, 0));
            let pending = poll_fn(|context| Poll::Ready(read.as_mut().poll(context).is_pending())).await;
            assert!(pending, "nothing is in the pipe");
        });
        drop(runtime);
        let later: Vec<_> = (0..64).map(|_| Buffer::with_room(4096)).collect();
        assert!(later.iter().all(|buffer| buffer.start() != start));
        writer.write_all(b"the reader was not closed").unwrap();
    }
}
