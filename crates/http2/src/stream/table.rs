//! The live streams by id, and the ids of some that closed lately.
//!
//! Ids only ascend, so a new stream is appended to a deque and found by binary search: no hashing that a
//! peer could attack, and no allocation once the deque has grown. Removed streams leave holes, which are
//! compacted when they outnumber the live ones.

use std::collections::VecDeque;

use super::state::StreamState;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// Reset by this side: frames in flight are ignored.
    Reset,
    /// Closed by both sides, or reset by the peer: further frames are errors.
    Ended,
    /// Closed too long ago to be remembered, or never opened.
    Unknown,
}

/// Remembered ids of closed streams, to report the right error for frames that cross a response.
const ENDED_REMEMBERED: usize = 64;

/// Minimum number of holes before they are compacted.
const HOLES_MIN: usize = 16;

#[derive(Debug)]
pub(crate) struct Streams {
    slots: VecDeque<StreamSlot>,
    live: usize,
    reset: VecDeque<u32>,
    reset_max: usize,
    ended: VecDeque<u32>,
}

#[derive(Debug)]
struct StreamSlot {
    id: u32,
    stream: Option<StreamState>,
}

impl Streams {
    pub(crate) fn new(reset_max: usize) -> Streams {
        Streams { slots: VecDeque::new(), live: 0, reset: VecDeque::new(), reset_max, ended: VecDeque::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Returns the bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<StreamSlot>()
            + (self.reset.capacity() + self.ended.capacity()) * size_of::<u32>()
    }

    pub(crate) fn get(&mut self, id: u32) -> Option<&mut StreamState> {
        let place = self.place(id)?;
        self.slots[place].stream.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &StreamState> {
        self.slots.iter().filter_map(|slot| slot.stream.as_ref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut StreamState> {
        self.slots.iter_mut().filter_map(|slot| slot.stream.as_mut())
    }

    /// Adds a stream. Its id must be larger than all earlier ones.
    pub(crate) fn insert(&mut self, stream: StreamState) -> &mut StreamState {
        debug_assert!(self.slots.back().is_none_or(|slot| slot.id < stream.id), "ids ascend");
        self.live += 1;
        self.slots.push_back(StreamSlot { id: stream.id, stream: None });
        let slot = self.slots.back_mut().expect("a slot was pushed");
        slot.stream.insert(stream)
    }

    pub(crate) fn remove(&mut self, id: u32, how: CloseReason) -> Option<StreamState> {
        let place = self.place(id)?;
        let stream = self.slots[place].stream.take()?;
        self.live -= 1;
        match how {
            CloseReason::Reset => self.remember_reset(id),
            CloseReason::Ended | CloseReason::Unknown => remember(&mut self.ended, ENDED_REMEMBERED, id),
        }
        while self.slots.front().is_some_and(|slot| slot.stream.is_none()) {
            self.slots.pop_front();
        }
        if self.slots.len() > 2 * self.live + HOLES_MIN {
            self.slots.retain(|slot| slot.stream.is_some());
        }
        Some(stream)
    }

    /// Remembers the id of a stream that was rejected or reset before it was opened.
    pub(crate) fn remember_reset(&mut self, id: u32) {
        remember(&mut self.reset, self.reset_max, id);
    }

    /// Returns the reason why a stream is not live.
    pub(crate) fn closed(&self, id: u32) -> CloseReason {
        if self.reset.contains(&id) {
            CloseReason::Reset
        } else if self.ended.contains(&id) {
            CloseReason::Ended
        } else {
            CloseReason::Unknown
        }
    }

    /// Releases memory that only a busier time needed.
    pub(crate) fn shrink(&mut self) {
        self.slots.shrink_to(self.live);
        if self.live == 0 {
            self.reset = VecDeque::new();
        }
    }

    fn place(&self, id: u32) -> Option<usize> {
        // The latest stream is the most likely one.
        if self.slots.back()?.id == id {
            return Some(self.slots.len() - 1);
        }
        self.slots.binary_search_by_key(&id, |slot| slot.id).ok()
    }
}

fn remember(ids: &mut VecDeque<u32>, max: usize, id: u32) {
    if ids.len() >= max {
        ids.pop_front();
    }
    if max > 0 {
        ids.push_back(id);
    }
}
