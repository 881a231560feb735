//! A shard: one thread with one runtime, which owns every socket and disk of the resources placed on it.
//!
//! A resource belongs to one shard, and so does every connection that uses it, so that an I/O meets no lock and
//! no other thread. `docs/architecture.md` has the measurements behind this.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    rc::Rc,
    thread,
};

use tokio::sync::mpsc;

use crate::{disk::Ring, volume::Export};

/// Something to do on a shard's thread. It may `spawn_local`.
type Job = Box<dyn FnOnce(&Rc<Local>) + Send>;

/// Jobs that wait for a shard at most: new connections and resources, no I/O.
const JOBS_MAX: usize = 1024;

/// What lives on a shard's thread.
#[derive(Debug, Default)]
pub struct Local {
    exports: RefCell<BTreeMap<usize, Rc<Export>>>,
    ended: Cell<bool>,
}

impl Local {
    /// Adds a resource, by its place in the configuration.
    pub fn add(&self, resource: usize, export: Rc<Export>) {
        self.exports.borrow_mut().insert(resource, export);
    }

    /// The resource at this place in the configuration, once it runs here.
    #[must_use]
    pub fn export(&self, resource: usize) -> Option<Rc<Export>> {
        self.exports.borrow().get(&resource).cloned()
    }
}

/// A handle to a shard.
#[derive(Clone, Debug)]
pub struct Shard {
    jobs: mpsc::Sender<Job>,
}

impl Shard {
    /// Starts a shard's thread: with a runtime that also drives `io_uring` where `ring` allows it, and that does not
    /// end before the disk operations of its thread.
    ///
    /// # Errors
    /// When the thread or its runtime cannot be made.
    pub fn start(number: usize, ring: Ring) -> io::Result<(Self, thread::JoinHandle<()>)> {
        let (jobs, queue) = mpsc::channel(JOBS_MAX);
        let thread = thread::Builder::new().name(format!("shard-{number}")).spawn(move || {
            ring.block_on(run(queue));
        })?;
        Ok((Self { jobs }, thread))
    }

    /// Does something on the shard's thread, after what was asked before. A shard that has ended drops it.
    pub async fn run(&self, job: impl FnOnce(&Rc<Local>) + Send + 'static) {
        // An error means that the shard has ended: the process is stopping, and nobody waits for the job.
        let _ = self.jobs.send(Box::new(job)).await;
    }

    /// Ends the shard, whose resources have stopped: the tasks that are left on it are dropped.
    pub async fn end(&self) {
        self.run(|local| local.ended.set(true)).await;
    }
}

async fn run(mut queue: mpsc::Receiver<Job>) {
    let local = Rc::new(Local::default());
    while !local.ended.get()
        && let Some(job) = queue.recv().await
    {
        job(&local);
    }
}
