//! Keeps two changes of one device block apart.
//!
//! The core never has two changes of one byte in flight, but where the device's blocks are larger than the
//! volume's, two changes of one device block may be: each reads the block, changes its part and writes it back,
//! and the slower would undo the faster. So the second waits. Operations on whole blocks never wait.

use std::collections::{BTreeSet, VecDeque};

use super::steps::Place;

/// A device block: its file and its first byte.
pub(super) type BlockAt = (Place, u64);

/// The blocks that are being changed in part, and the operations that wait for them.
#[derive(Debug)]
pub(super) struct Guard<T> {
    held: BTreeSet<BlockAt>,
    waiting: VecDeque<(Vec<BlockAt>, T)>,
}

impl<T> Guard<T> {
    pub(super) const fn new() -> Self {
        Self { held: BTreeSet::new(), waiting: VecDeque::new() }
    }

    /// Takes the blocks for an operation and gives it back, or keeps it until they are free.
    pub(super) fn enter(&mut self, blocks: Vec<BlockAt>, operation: T) -> Option<T> {
        // Behind those that wait for the same blocks, so that none waits for ever.
        let wanted = |block| self.waiting.iter().any(|(blocks, _)| blocks.contains(block));
        if blocks.iter().any(|block| self.held.contains(block) || wanted(block)) {
            self.waiting.push_back((blocks, operation));
            return None;
        }
        self.held.extend(&blocks);
        Some(operation)
    }

    /// Frees the blocks of an operation that has ended, and gives those that can start now.
    pub(super) fn leave(&mut self, blocks: &[BlockAt]) -> Vec<T> {
        for block in blocks {
            self.held.remove(block);
        }
        let mut started = Vec::new();
        for (blocks, operation) in std::mem::take(&mut self.waiting) {
            started.extend(self.enter(blocks, operation));
        }
        started
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64) -> BlockAt {
        (Place::Data, number * 4096)
    }

    /// Changes of one block come one after another, in their order; others are not held up.
    #[test]
    fn changes_of_one_block_come_one_after_another() {
        let mut guard = Guard::new();
        assert!(guard.enter(vec![block(1)], 'a').is_some());
        assert!(guard.enter(vec![block(1), block(2)], 'b').is_none());
        assert!(guard.enter(vec![block(3)], 'c').is_some());
        assert!(guard.enter(vec![block(2)], 'd').is_none(), "b waits for block 2 and comes first");
        assert!(guard.enter(vec![(Place::Metadata, 4096)], 'e').is_some());
        assert!(guard.leave(&[block(3)]).is_empty());
        assert_eq!(guard.leave(&[block(1)]), ['b']);
        assert_eq!(guard.leave(&[block(1), block(2)]), ['d']);
        assert!(guard.leave(&[block(2)]).is_empty());
        assert_eq!(guard.held.len(), 1);
    }
}
