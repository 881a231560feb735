//! Who gets the answer: commands that are with a resource, and where their statuses go.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Instant};

use block::{Command, CommandId, Status};
use ops::metrics::{Latencies, Operation};
use slab::Slab;

use crate::local::Queue;

/// Statuses on their way to one connection, each with the tag that the connection gave.
pub type Completions = Queue<(u64, Status)>;

/// The commands that a resource has not answered yet.
#[derive(Debug)]
pub struct Waiting {
    places: RefCell<Slab<Place>>,
    latencies: Arc<Latencies>,
}

#[derive(Debug)]
struct Place {
    completions: Rc<Completions>,
    tag: u64,
    operation: Operation,
    began: Instant,
}

impl Waiting {
    /// Nothing waits. The time of each command goes to `latencies`.
    #[must_use]
    pub const fn new(latencies: Arc<Latencies>) -> Self {
        Self { places: RefCell::new(Slab::new()), latencies }
    }

    /// Names a new command whose status goes to `completions` under `tag`.
    pub fn expect(&self, command: &Command, completions: &Rc<Completions>, tag: u64) -> CommandId {
        let completions = Rc::clone(completions);
        let place = Place { completions, tag, operation: operation(command), began: Instant::now() };
        CommandId(self.places.borrow_mut().insert(place) as u64)
    }

    /// Whether the name is still that of this very command.
    #[must_use]
    pub fn expects(&self, id: CommandId, completions: &Rc<Completions>, tag: u64) -> bool {
        let places = self.places.borrow();
        let place = usize::try_from(id.0).ok().and_then(|key| places.get(key));
        place.is_some_and(|place| Rc::ptr_eq(&place.completions, completions) && place.tag == tag)
    }

    /// Delivers a status. The name may be given again from now on.
    ///
    /// # Panics
    /// When no such command is waiting: the core completes each command once.
    pub fn complete(&self, id: CommandId, status: Status) {
        let key = usize::try_from(id.0).expect("the name came from a usize");
        let place = self.places.borrow_mut().remove(key);
        self.latencies.initiator.record(place.operation, place.began.elapsed());
        place.completions.push((place.tag, status));
    }

    /// How many commands wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.borrow().len()
    }

    /// Whether no command waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.borrow().is_empty()
    }
}

const fn operation(command: &Command) -> Operation {
    match command {
        Command::Read { .. } | Command::Allocation { .. } => Operation::Read,
        Command::Write { .. } | Command::CompareAndWrite { .. } | Command::OrWrite { .. } => Operation::Write,
        Command::Flush => Operation::Flush,
        Command::Discard { .. } | Command::WriteZeroes { .. } => Operation::Discard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each command's status reaches the connection that sent it, under its tag, in whatever order they end.
    #[test]
    fn statuses_find_their_connection() {
        let waiting = Waiting::new(Arc::new(Latencies::new("db", [])));
        let (first, second) = (Rc::default(), Rc::default());
        let (a, b) =
            (waiting.expect(&Command::Flush, &first, 7), waiting.expect(&Command::Flush, &second, 9));
        assert!(
            waiting.expects(b, &second, 9)
                && !waiting.expects(b, &first, 9)
                && !waiting.expects(b, &second, 7)
        );
        waiting.complete(b, Status::Miscompare { offset: 1 });
        assert!(!waiting.expects(b, &second, 9), "the name is free");
        waiting.complete(a, Status::Done);
        let (mut of_first, mut of_second) = (Vec::new(), Vec::new());
        first.take_now(&mut of_first);
        second.take_now(&mut of_second);
        assert_eq!(of_first, [(7, Status::Done)]);
        assert_eq!(of_second, [(9, Status::Miscompare { offset: 1 })]);
        assert!(waiting.is_empty());
    }
}
