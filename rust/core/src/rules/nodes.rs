//! The nodes of a surface in order.

/// No neighbour.
const END: u32 = u32::MAX;
/// In `next` of a slot: no current node any more.
const DEAD: u32 = u32::MAX - 1;
/// Slots below which dead ones are not worth the work.
const FEW: usize = 64;

#[derive(Clone, Debug)]
struct Slot<T> {
    seq: u64,
    /// Orders the current nodes like the surface: a replacement inherits it from the first node that it removes.
    rank: u64,
    next: u32,
    previous: u32,
    value: T,
}

/// A range of current nodes; valid until the list changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    first: u32,
    last: u32,
}

impl Range {
    /// Whether the range is a single node.
    pub(super) fn is_single(self) -> bool {
        self.first == self.last
    }
}

/// A linked list in a vector: a replacement costs what it removes, so many nodes and many replacements stay linear.
///
/// Every node takes the next slot, and nodes come with rising seqs, so the slot of a seq is found by bisection: 24 bytes
/// and the value for each node. Dead slots are at most as many as current ones, and a few.
#[derive(Clone, Debug)]
pub(super) struct NodeList<T> {
    slots: Vec<Slot<T>>,
    first: u32,
    last: u32,
    live: usize,
    next_rank: u64,
}

impl<T> NodeList<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            first: END,
            last: END,
            live: 0,
            next_rank: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.live == 0
    }

    fn slot(&self, at: u32) -> Option<&Slot<T>> {
        self.slots.get(at as usize)
    }

    fn find(&self, seq: u64) -> Option<u32> {
        let at = self.slots.binary_search_by_key(&seq, |slot| slot.seq).ok()?;
        let is_live = self.slots.get(at).is_some_and(|slot| slot.next != DEAD);
        u32::try_from(at).ok().filter(|_| is_live)
    }

    /// Whether the seq is a current node.
    pub(super) fn contains(&self, seq: u64) -> bool {
        self.find(seq).is_some()
    }

    /// The value of the only node of a range.
    pub(super) fn single(&self, range: Range) -> Option<&T> {
        self.slot(range.first)
            .filter(|_| range.is_single())
            .map(|slot| &slot.value)
    }

    /// Whether the range starts at the first node.
    pub(super) fn is_at_start(&self, range: Range) -> bool {
        range.first == self.first
    }

    /// The nodes from one seq to another; None if they are not there in this order.
    pub(super) fn range(&self, start: u64, end: u64) -> Option<Range> {
        let range = Range {
            first: self.find(start)?,
            last: self.find(end)?,
        };
        (self.slot(range.first)?.rank <= self.slot(range.last)?.rank).then_some(range)
    }

    /// The seqs of a range in surface order.
    pub(super) fn seqs(&self, range: Range) -> impl Iterator<Item = u64> {
        let mut at = Some(range.first);
        std::iter::from_fn(move || {
            let slot = self.slot(at?)?;
            at = (at != Some(range.last)).then_some(slot.next);
            Some(slot.seq)
        })
    }

    /// Adds a node at the tail. Its seq is above all that were added before.
    pub(super) fn append(&mut self, seq: u64, value: T) {
        let rank = self.next_rank;
        self.next_rank += 1;
        self.insert(Slot {
            seq,
            rank,
            next: END,
            previous: self.last,
            value,
        });
    }

    /// Puts one node, its seq above all before, in the place of a range.
    pub(super) fn replace(&mut self, range: Range, seq: u64, value: T) {
        let Some(first) = self.slot(range.first) else {
            return;
        };
        let (rank, previous) = (first.rank, first.previous);
        let mut next = range.first;
        while let Some(slot) = self.slots.get_mut(next as usize) {
            let is_last = next == range.last;
            next = std::mem::replace(&mut slot.next, DEAD);
            self.live -= 1;
            if is_last {
                break;
            }
        }
        self.insert(Slot {
            seq,
            rank,
            next,
            previous,
            value,
        });
        if self.slots.len() > 2 * self.live + FEW {
            self.sweep();
        }
    }

    fn insert(&mut self, slot: Slot<T>) {
        // A log with so many nodes that this fails has hundreds of gigabytes.
        let at = u32::try_from(self.slots.len()).unwrap_or(END);
        match self.slots.get_mut(slot.previous as usize) {
            Some(before) => before.next = at,
            None => self.first = at,
        }
        match self.slots.get_mut(slot.next as usize) {
            Some(after) => after.previous = at,
            None => self.last = at,
        }
        self.live += 1;
        self.slots.push(slot);
    }

    /// Removes dead slots.
    fn sweep(&mut self) {
        let mut moved = Vec::with_capacity(self.slots.len());
        let mut kept = 0u32;
        for slot in &self.slots {
            moved.push(kept);
            kept += u32::from(slot.next != DEAD);
        }
        // Neighbours of current nodes are current nodes.
        let new = |at: u32| moved.get(at as usize).copied().unwrap_or(END);
        self.slots.retain(|slot| slot.next != DEAD);
        for slot in &mut self.slots {
            (slot.next, slot.previous) = (new(slot.next), new(slot.previous));
        }
        (self.first, self.last) = (new(self.first), new(self.last));
        self.slots.shrink_to(2 * self.slots.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_agrees_with_a_vector() {
        let mut state = 3u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        };
        let mut list = NodeList::new();
        let mut model: Vec<u64> = Vec::new();
        for seq in 0..5000 {
            if model.len() < 3 || random(3) > 0 {
                list.append(seq, seq);
                model.push(seq);
            } else {
                let start = random(model.len());
                let longest = if random(50) == 0 { 400 } else { 4 };
                let end = start + random(longest.min(model.len() - start));
                if start < end {
                    assert_eq!(list.range(model[end], model[start]), None);
                }
                let range = list.range(model[start], model[end]).unwrap();
                assert_eq!(list.seqs(range).collect::<Vec<_>>(), &model[start..=end]);
                assert_eq!(list.is_at_start(range), start == 0);
                assert_eq!(list.single(range), (start == end).then_some(&model[start]));
                let gone = model[end];
                list.replace(range, seq, seq);
                model.splice(start..=end, [seq]);
                assert!(!list.contains(gone));
                assert_eq!(list.range(gone, seq), None);
            }
            let whole = list.range(model[0], *model.last().unwrap()).unwrap();
            assert!(seq % 50 > 0 || list.seqs(whole).eq(model.iter().copied()));
            assert!(list.slots.len() <= 2 * model.len() + FEW + 1);
        }
    }
}
