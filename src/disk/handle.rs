//! A started disk: what a resource's task sees of its backing.

use std::{fmt, rc::Rc, sync::Arc};

use block::Extent;
use ops::metrics::{self, Latencies};
use replication::{DiskOp, DiskRequest};
use tracing::info;

use super::{
    Backing, DiskConfig, Engine,
    backing::Files,
    blocking::{Task, Threads},
    driver,
    guard::BlockAt,
    in_flight::InFlight,
    layout::Layout,
    operation::{Operation, Terms, Write},
    steps::Place,
    uring::Uring,
};
use crate::volume::Mailbox;

/// One replica's backing on its shard. Every operation is answered once, by [`replication::Input::Disk`] in the
/// mailbox of its resource; those that end in one turn of the shard arrive as one batch.
///
/// What is submitted waits here without a bound of its own: the resource's core bounds what it has out.
///
/// Dropping it leaves what is in flight to end by itself. [`Disk::close`] waits for that, and for the files.
pub struct Disk {
    in_flight: Rc<InFlight>,
    uring: Option<Rc<Uring>>,
    threads: Rc<Threads>,
    files: Arc<Files>,
    terms: Arc<Terms>,
    layout: Layout,
    config: DiskConfig,
    access: Access,
}

/// How a backing is accessed, for `status` and `why`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The engine that does its reads and writes.
    pub engine: Engine,
    /// Whether they go past the page cache.
    pub direct: bool,
    /// What the device wants their offsets and lengths to be multiples of, in bytes; 1 where anything goes.
    pub alignment: u32,
    /// Why it is so, in words for an operator.
    pub reason: String,
}

impl Disk {
    /// Starts a backing on this thread, inside [`super::Ring::block_on`]. Answers go to `mailbox`, and the times of the
    /// operations to `latencies`.
    #[must_use]
    pub fn start(backing: Backing, mailbox: Rc<Mailbox>, latencies: Arc<Latencies>) -> Self {
        let Backing { files, layout, config } = backing;
        let files = Arc::new(files);
        let alignment =
            files.metadata.iter().fold(files.data.alignment, |most, file| most.max(file.alignment));
        let terms = Arc::new(Terms::new(alignment, files.are_direct()));
        let in_flight = Rc::new(InFlight::new(mailbox, latencies));
        let threads = Threads::new(Arc::clone(&files), Arc::clone(&terms), Rc::clone(&in_flight));
        let (uring, reason) = match start_uring(&files, &terms, &in_flight) {
            Ok(uring) => (Some(uring), "it does O_DIRECT".to_owned()),
            Err(reason) => (None, reason),
        };
        let access = Access {
            engine: if uring.is_some() { Engine::Uring } else { Engine::Threads },
            direct: files.data.not_direct.is_none(),
            alignment: u32::try_from(files.data.alignment).unwrap_or(u32::MAX),
            reason,
        };
        info!(path = %config.path.display(), ?access, "disk started");
        Self { in_flight, uring, threads, files, terms, layout, config, access }
    }

    /// Takes up an operation.
    ///
    /// # Panics
    /// When its bytes are not all inside the area that it is about, or their number is not that of its extent: the
    /// core checks that, and a stray write would destroy the metadata.
    pub fn submit(&self, op: DiskOp, request: DiskRequest) {
        if let Some(error) = self.in_flight.failed() {
            return self.in_flight.answer(op, Err(error));
        }
        match request {
            DiskRequest::Read { extent } => {
                self.check(extent, Place::Data);
                self.begin(op, Operation::read(extent, &self.terms), Vec::new());
            }
            DiskRequest::Write { extent, data, fua } => {
                assert_eq!(extent.len, data.len() as u64, "the bytes of a write to {extent}");
                self.check(extent, Place::Data);
                let write =
                    Write::new(Place::Data, extent, self.terms.alignment, |bytes| data.copy_to(bytes));
                self.begin(
                    op,
                    Operation::Write { write, stable: fua },
                    self.partial_blocks(Place::Data, extent),
                );
            }
            DiskRequest::WriteZeroes { extent, unmap, fua } => {
                self.check(extent, Place::Data);
                let zeroes = Operation::Zeroes { extent, unmap, stable: fua };
                self.begin(op, zeroes, self.partial_blocks(Place::Data, extent));
            }
            DiskRequest::WriteMetadata { offset, data } => {
                let extent = Extent::new(offset, data.len() as u64);
                self.check(extent, Place::Metadata);
                let extent = Extent::new(self.layout.area_at + offset, extent.len);
                let fill = |bytes: &mut [u8]| bytes.copy_from_slice(&data);
                let write = Write::new(Place::Metadata, extent, self.terms.alignment, fill);
                let blocks = self.partial_blocks(Place::Metadata, extent);
                self.begin(op, Operation::Write { write, stable: true }, blocks);
            }
            DiskRequest::Flush => self.begin(op, Operation::Flush, Vec::new()),
            DiskRequest::Allocation { extent } => {
                self.check(extent, Place::Data);
                let block_size = u64::from(self.config.block_size.bytes());
                let tag = self.in_flight.begin(op, metrics::Operation::Read, false);
                self.threads.submit(tag, Task::Allocation { extent, block_size });
            }
        }
    }

    /// How the backing is accessed.
    #[must_use]
    pub const fn access(&self) -> &Access {
        &self.access
    }

    /// What the configuration says of it.
    #[must_use]
    pub const fn config(&self) -> &DiskConfig {
        &self.config
    }

    /// How many operations have no answer yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.count()
    }

    /// Waits until every operation has its answer.
    pub async fn drain(&self) {
        self.in_flight.none().await;
    }

    /// Waits until every operation has its answer, then closes the files, so that they can be opened again.
    pub async fn close(self) {
        self.drain().await;
        self.threads.end().await;
    }

    fn begin(&self, op: DiskOp, operation: Operation, blocks: Vec<BlockAt>) {
        let tag = self.in_flight.begin(op, operation.kind(), operation.is_stable());
        let Some((tag, operation)) = self.in_flight.enter(tag, blocks, operation) else { return };
        match &self.uring {
            Some(uring) => uring.submit(tag, operation),
            None => self.threads.submit(tag, Task::Operation(operation)),
        }
    }

    fn check(&self, extent: Extent, place: Place) {
        let len = match place {
            Place::Data => self.layout.data_len,
            Place::Metadata => self.layout.area_len,
        };
        let inside = extent.offset.checked_add(extent.len).is_some_and(|end| end <= len);
        assert!(
            inside,
            "{}: {extent} is not inside the {place:?} area of {len} bytes",
            self.config.path.display()
        );
    }

    /// The device blocks that a change of these bytes changes in part. None on nearly every device.
    fn partial_blocks(&self, place: Place, extent: Extent) -> Vec<BlockAt> {
        // Internal metadata shares its file with the data.
        let place = if self.files.metadata.is_some() { place } else { Place::Data };
        Write::partial_blocks(extent, self.terms.alignment).map(|block| (place, block)).collect()
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk")
            .field("path", &self.config.path)
            .field("access", &self.access)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(uring) = &self.uring {
            uring.close();
        }
        self.threads.close();
    }
}

/// The ring's engine, or why it is not used.
fn start_uring(files: &Files, terms: &Arc<Terms>, in_flight: &Rc<InFlight>) -> Result<Rc<Uring>, String> {
    if let Some(reason) = &files.data.not_direct {
        return Err(reason.clone());
    }
    for file in std::iter::once(&files.data).chain(&files.metadata) {
        if let Some(server) =
            file.served_by().map_err(|error| format!("its filesystem is unknown: {error}"))?
        {
            return Err(format!("{server} may block whoever submits to io_uring"));
        }
    }
    let driver = driver::here().ok_or_else(|| "io_uring is not used by this process".to_owned())?;
    Uring::new(driver, files, Arc::clone(terms), Rc::clone(in_flight))
        .map_err(|error| format!("its files cannot be given to io_uring: {error}"))
}
