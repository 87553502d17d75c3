//! Flow control for large responses and parts that streams hold.
//!
//! ```text
//!   take ──no capacity for a large response──▶ held back ──capacity, clients in turn──▶ granted ──▶ take
//! ```
//!
//! * Large responses held by streams are not included in the limit on bodies, because a partly sent
//!   message cannot be taken back. All streams together hold
//!   [`WatchLimits::handed_bytes_max`](crate::WatchLimits) of them, or one response. Beyond the
//!   limit a stream gets no large response, and no part of a revision is encoded.
//! * A client leaves enough of the limit free for other clients. Waiting clients are served
//!   round-robin: a client with many streams delays another by one response.
//! * A waiting stream may be overtaken while its client holds a response. A client that holds no
//!   response cannot free capacity itself, so neither a smaller response nor a part with a large
//!   event overtakes it.
//! * The events of a waiting stream may be evicted from its outbox. It reads them again only when
//!   it is granted capacity; otherwise waiting streams would evict each other's events forever.
//! * The owner closes streams that hold a response, or a grant, for a long time while other streams
//!   wait.

use base::{ClientId, ShareUse};

use super::state::{Hub, HubStream};
use crate::held_back::WaitingStream;
use crate::types::WatchStreamId;

impl Hub {
    /// Reports whether streams of a client may hold this many additional bytes of large responses.
    pub(super) fn has_room_outside(&self, owner: ClientId, bytes: usize) -> bool {
        let outside = self.bodies.outside();
        // A response shared by its streams counts for each of them there, and once here.
        let held = self.owners.held(owner).min(outside);
        let by_caller = self.owners.held_by_caller(owner).min(outside);
        let all = outside + self.granted_bytes;
        let held =
            ShareUse { total: (all + bytes) as u64, connection: held as u64, caller: by_caller as u64 };
        all == 0 || held.leaves_enough(self.limits.handed_bytes_max as u64)
    }

    pub(super) fn may_make_parts(&self) -> bool {
        let end = self.end_of_large_parts();
        self.wanting.iter().any(|(place, stream)| self.is_its_turn(*place, *stream, end))
    }

    /// Reports whether a part may be encoded for the stream at this position. Small parts do not
    /// wait for responses: a revision has many of them, and each would wait.
    pub(super) fn is_its_turn(&self, place: u64, stream: WatchStreamId, end: u64) -> bool {
        let is_small = |slot: u32| {
            let large = self.streams[slot].outbox.first_large();
            large.is_none_or(|large| large.event_bytes <= self.limits.part_bytes)
        };
        (place < end || self.slot(stream).is_none_or(is_small)) && self.may_make_part(stream)
    }

    pub(super) fn may_make_part(&self, stream: WatchStreamId) -> bool {
        let slot = self.slot(stream);
        slot.is_none_or(|slot| self.has_room_outside(self.streams[slot].owner, self.limits.part_bytes))
    }

    /// Returns the position before which parts of large events may be encoded: that of the first
    /// response that must not be overtaken.
    pub(super) fn end_of_large_parts(&self) -> u64 {
        let mut places = self.held_back.in_turn().filter(|(_, owner, waiting)| {
            self.slot(waiting.stream).is_some() && self.owners.held_by_caller(*owner) == 0
        });
        places.next().map_or(u64::MAX, |(place, ..)| place)
    }

    /// Reports whether streams wait until others hold less. The owner must then poll, since dropped
    /// bytes do not wake it.
    pub fn waits_for_room(&self) -> bool {
        let responses_wait = !self.held_back.is_empty() && self.next_to_resume().is_none();
        responses_wait || (!self.wanting.is_empty() && !self.may_make_parts())
    }

    /// Reports whether a stream has to wait before it takes its next response.
    pub(super) fn must_wait(&mut self, slot: u32) -> bool {
        if self.streams[slot].outbox.first_large().is_some() {
            // History delivered a revision in parts instead of the response. Parts get capacity one
            // by one, and would wait for this grant.
            self.end_grant(slot);
            return false;
        }
        let bytes = self.streams[slot].outbox.first_event_bytes();
        if !self.bodies.is_large(bytes) {
            return false;
        }
        let HubStream { owner, generation, is_held_back, granted_bytes, .. } = self.streams[slot];
        if granted_bytes > 0 {
            self.end_grant(slot);
            return false;
        }
        if is_held_back {
            return true;
        }
        if self.held_back.is_empty() && self.has_room_outside(owner, bytes) {
            return false;
        }
        self.streams[slot].is_held_back = true;
        self.held_back.push(owner, WaitingStream { stream: WatchStreamId { slot, generation }, bytes });
        true
    }

    /// Returns the next waiting stream that may continue, and its client.
    pub(super) fn next_to_resume(&self) -> Option<(ClientId, WaitingStream)> {
        for (_, owner, waiting) in self.held_back.in_turn() {
            if self.slot(waiting.stream).is_none() || self.has_room_outside(owner, waiting.bytes) {
                return Some((owner, waiting));
            }
            // Its caller frees capacity by dropping what it holds; no other caller has to wait for
            // that.
            if self.owners.held_by_caller(owner) == 0 {
                return None;
            }
        }
        None
    }

    /// Grants capacity to the next waiting stream, if there is enough.
    pub(super) fn resume_held_back(&mut self) {
        let Some((owner, WaitingStream { stream, bytes })) = self.next_to_resume() else { return };
        self.held_back.pop(owner);
        if let Some(slot) = self.slot(stream) {
            let resumed = &mut self.streams[slot];
            (resumed.is_held_back, resumed.granted_bytes) = (false, bytes);
            self.granted_bytes += bytes;
            self.announce(slot);
        }
    }

    /// Reports whether capacity is reserved for a large response that the stream has not taken.
    pub fn has_turn(&self, stream: WatchStreamId) -> bool {
        self.slot(stream).is_some_and(|slot| self.streams[slot].granted_bytes > 0)
    }

    /// Releases the grant of a stream that has taken the response, or no longer needs it.
    pub(super) fn end_grant(&mut self, slot: u32) {
        self.granted_bytes -= std::mem::take(&mut self.streams[slot].granted_bytes);
    }
}
