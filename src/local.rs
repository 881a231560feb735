//! A queue between tasks of one thread: no lock, no atomic but one wake-up per batch.

use std::cell::RefCell;

use tokio::sync::Notify;

/// A queue that one task fills and another drains, both on the same thread.
///
/// It has no bound of its own: what feeds it does (an initiator's command window, the operations a disk has in
/// flight, one receive buffer of a peer at a time).
#[derive(Debug)]
pub struct Queue<T> {
    items: RefCell<Vec<T>>,
    filled: Notify,
}

impl<T> Queue<T> {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self { items: RefCell::new(Vec::new()), filled: Notify::new() }
    }

    /// Appends an item and wakes the task that drains.
    pub fn push(&self, item: T) {
        let mut items = self.items.borrow_mut();
        if items.is_empty() {
            self.filled.notify_one();
        }
        items.push(item);
    }

    /// Waits until there is something, then swaps everything into `batch`, which is empty.
    pub async fn take(&self, batch: &mut Vec<T>) {
        while self.items.borrow().is_empty() {
            self.filled.notified().await;
        }
        std::mem::swap(&mut *self.items.borrow_mut(), batch);
    }

    /// Swaps what is there now into `batch`, which is empty.
    pub fn take_now(&self, batch: &mut Vec<T>) {
        std::mem::swap(&mut *self.items.borrow_mut(), batch);
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch holds everything that was pushed before it was taken, in order, and a waiting task is woken.
    #[tokio::test(flavor = "current_thread")]
    async fn batches_keep_the_order() {
        let queue = Queue::new();
        let mut batch = Vec::new();
        let filling = async {
            for item in 0..3 {
                queue.push(item);
            }
        };
        tokio::join!(queue.take(&mut batch), filling);
        if batch.len() < 3 {
            let mut rest = Vec::new();
            queue.take_now(&mut rest);
            batch.extend(rest);
        }
        assert_eq!(batch, [0, 1, 2]);
    }
}
