//! Who may touch which bytes now: commands that conflict pass in the order in which they came.

use std::collections::VecDeque;

use block::Extent;

/// Names one place in a [`RangeLock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// How a range is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read: shares with other reads.
    Shared,
    /// Changed: alone.
    Exclusive,
}

/// Ranges in use and waiting, in the order of arrival. A range waits for every earlier one that it conflicts with,
/// whether that one is in use or waits itself: nobody is overtaken, nobody starves.
#[derive(Clone, Debug)]
pub(crate) struct RangeLock<T> {
    places: VecDeque<Place<T>>,
    next: u64,
}

#[derive(Clone, Debug)]
struct Place<T> {
    ticket: Ticket,
    extent: Extent,
    access: Access,
    /// Earlier places in conflict with this one.
    blockers: usize,
    owner: T,
}

impl<T> Place<T> {
    fn conflicts(&self, extent: Extent, access: Access) -> bool {
        (self.access == Access::Exclusive || access == Access::Exclusive) && self.extent.overlaps(extent)
    }
}

impl<T: Copy> RangeLock<T> {
    pub(crate) const fn new() -> Self {
        Self { places: VecDeque::new(), next: 0 }
    }

    /// Takes a place in the order; the flag says whether the range may be used at once.
    pub(crate) fn acquire(&mut self, extent: Extent, access: Access, owner: T) -> (Ticket, bool) {
        let ticket = Ticket(self.next);
        self.next += 1;
        let blockers = self.places.iter().filter(|place| place.conflicts(extent, access)).count();
        self.places.push_back(Place { ticket, extent, access, blockers, owner });
        (ticket, blockers == 0)
    }

    /// Gives a place up, in use or waiting. Owners whose turn has come are appended to `granted`, in order.
    pub(crate) fn release(&mut self, ticket: Ticket, mut granted: impl FnMut(T)) {
        let Ok(at) = self.places.binary_search_by_key(&ticket, |place| place.ticket) else { return };
        let Some(gone) = self.places.remove(at) else { return };
        for place in self.places.iter_mut().skip(at) {
            if gone.conflicts(place.extent, place.access) {
                place.blockers -= 1;
                if place.blockers == 0 {
                    granted(place.owner);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P4: over every assignment of three ranges to reads and writes, an owner is never granted before each earlier
    /// conflicting one has left, and everyone is granted in the end.
    #[test]
    fn conflicts_pass_in_order() {
        let extents = [Extent::new(0, 8), Extent::new(4, 8), Extent::new(8, 8)];
        let accesses = [Access::Shared, Access::Exclusive];
        for case in 0..6_usize.pow(4) {
            let kinds: Vec<_> = (0..4)
                .map(|place| case / 6_usize.pow(place) % 6)
                .map(|kind| (extents[kind / 2], accesses[kind % 2]))
                .collect();
            let mut lock = RangeLock::new();
            let mut tickets = Vec::new();
            let mut active: Vec<usize> = Vec::new();
            for (owner, &(extent, access)) in kinds.iter().enumerate() {
                let (ticket, granted) = lock.acquire(extent, access, owner);
                tickets.push(ticket);
                if granted {
                    active.push(owner);
                }
            }
            let mut left = Vec::new();
            while let Some(owner) = active.pop() {
                for (earlier, &(extent, access)) in kinds.iter().enumerate().take(owner) {
                    let conflict = extent.overlaps(kinds[owner].0)
                        && (access == Access::Exclusive || kinds[owner].1 == Access::Exclusive);
                    assert!(
                        !conflict || left.contains(&earlier),
                        "{owner} overtook {earlier} in case {case}"
                    );
                }
                left.push(owner);
                lock.release(tickets[owner], |next| active.push(next));
            }
            assert_eq!(left.len(), 4, "someone waits for ever in case {case}");
        }
    }

    /// A place that is given up while it waits does not hold anyone up.
    #[test]
    fn a_waiting_place_can_be_given_up() {
        let mut lock = RangeLock::new();
        let run = Extent::new(0, 1);
        let (first, _) = lock.acquire(run, Access::Shared, 1);
        let (second, granted) = lock.acquire(run, Access::Exclusive, 2);
        assert!(!granted);
        assert!(!lock.acquire(run, Access::Shared, 3).1);
        let mut next = Vec::new();
        lock.release(second, |owner| next.push(owner));
        assert_eq!(next, [3]);
        lock.release(first, |owner| next.push(owner));
        assert_eq!(next, [3]);
    }
}
