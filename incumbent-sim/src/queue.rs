//! What shall happen, in the order of its time; what has one time happens in the order in which it was planned.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A heap of (time, sequence).
#[derive(Debug)]
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Entry<E>>,
    sequence: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: u64,
    sequence: u64,
    event: E,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Queue<E> {
        Queue { heap: BinaryHeap::with_capacity(64), sequence: 0 }
    }

    pub(crate) fn push(&mut self, at: u64, event: E) {
        self.sequence += 1;
        self.heap.push(Entry { at, sequence: self.sequence, event });
    }

    /// The next event and its time, if it is not after `until`.
    pub(crate) fn pop(&mut self, until: u64) -> Option<(u64, E)> {
        if self.heap.peek()?.at > until {
            return None;
        }
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

// A BinaryHeap gives the greatest first, so the earliest is the greatest.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Entry<E>) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Entry<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Entry<E>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_equal_times_keep_their_order() {
        let mut queue = Queue::new();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            queue.push(at, event);
        }
        assert_eq!(queue.pop(0), None);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop(9)).collect();
        assert_eq!(order, [(1, 'a'), (3, 'b'), (5, 'c'), (5, 'd')]);
    }
}
