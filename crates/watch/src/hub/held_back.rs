//! Large responses and parts that streams hold.
//!
//! ```text
//!   take ──no room for a large response──▶ held back ──room again, clients in turn──▶ granted ──▶ take
//! ```
//!
//! * What a stream holds of large responses is outside of the bound on bodies: nothing can be taken back of a
//!   message that has begun. All streams together hold [`WatchLimits::handed_bytes_max`](crate::WatchLimits)
//!   of it, or one response. Beyond it a stream gets no large response, and no part of a revision is made.
//! * A client leaves enough of it free for others. Clients that wait have turns: one with many streams
//!   delays another by one response.
//! * What waits is overtaken while its client holds something. A client that holds nothing can do nothing to
//!   make room: neither a smaller response nor a part with a large event goes before what it waits for.
//! * The events of a stream that waits may be taken back from its outbox. It reads them again when its turn
//!   has come, and not before: streams that wait would drop each other's events without end.
//! * The owner ends streams that hold theirs, or their turn, for long while others wait.

use base::{ClientId, ShareUse};

use super::state::{Hub, HubStream};
use crate::held_back::WaitingStream;
use crate::types::StreamId;

impl Hub {
    /// Whether streams of a client may hold so many more bytes of large responses.
    pub(super) fn has_room_outside(&self, owner: ClientId, bytes: usize) -> bool {
        let outside = self.bodies.outside();
        // What its streams share counts for each of them there, and once here.
        let held = self.owners.held(owner).min(outside);
        let by_caller = self.owners.held_by_caller(owner).min(outside);
        let all = outside + self.granted_bytes;
        let held =
            ShareUse { total: (all + bytes) as u64, connection: held as u64, caller: by_caller as u64 };
        all == 0 || held.leaves_enough(self.limits.handed_bytes_max as u64)
    }

    /// Whether a part can be made for some stream.
    pub(super) fn may_make_parts(&self) -> bool {
        let end = self.end_of_large_parts();
        self.wanting.iter().any(|(place, stream)| self.is_its_turn(*place, *stream, end))
    }

    /// Whether a part may be made for the stream at this place now. Small parts wait for no response: a
    /// revision has many of them, and each would.
    pub(super) fn is_its_turn(&self, place: u64, stream: StreamId, end: u64) -> bool {
        let is_small = |slot: u32| {
            let large = self.streams[slot].outbox.first_large();
            large.is_none_or(|large| large.event_bytes <= self.limits.part_bytes)
        };
        (place < end || self.slot(stream).is_none_or(is_small)) && self.may_make_part(stream)
    }

    /// Whether there is room for a part of a stream.
    pub(super) fn may_make_part(&self, stream: StreamId) -> bool {
        let slot = self.slot(stream);
        slot.is_none_or(|slot| self.has_room_outside(self.streams[slot].owner, self.limits.part_bytes))
    }

    /// The place before which parts of large events may be made: that of the first response that may not be
    /// overtaken.
    pub(super) fn end_of_large_parts(&self) -> u64 {
        let mut places = self.held_back.in_turn().filter(|(_, owner, waiting)| {
            self.slot(waiting.stream).is_some() && self.owners.held_by_caller(*owner) == 0
        });
        places.next().map_or(u64::MAX, |(place, ..)| place)
    }

    /// Whether something waits until streams hold less. Then the next turn is due in a moment: what they drop
    /// wakes no one.
    pub fn waits_for_room(&self) -> bool {
        let responses_wait = !self.held_back.is_empty() && self.next_to_resume().is_none();
        responses_wait || (!self.wanting.is_empty() && !self.may_make_parts())
    }

    /// Whether a stream has to wait before it takes its next response.
    pub(super) fn must_wait(&mut self, slot: u32) -> bool {
        if self.streams[slot].outbox.first_large().is_some() {
            // History brought a revision in parts in place of the response. Its parts wait for room one by
            // one, and would wait for this grant.
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
        self.held_back.push(owner, WaitingStream { stream: StreamId { slot, generation }, bytes });
        true
    }

    /// The next stream that waits and may go on, and its client.
    pub(super) fn next_to_resume(&self) -> Option<(ClientId, WaitingStream)> {
        for (_, owner, waiting) in self.held_back.in_turn() {
            if self.slot(waiting.stream).is_none() || self.has_room_outside(owner, waiting.bytes) {
                return Some((owner, waiting));
            }
            // What its caller holds makes room for it; no other caller has to wait for that.
            if self.owners.held_by_caller(owner) == 0 {
                return None;
            }
        }
        None
    }

    /// Lets the next stream that waits take its response, if there is room.
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

    /// Whether room is kept for a large response of a stream, which it has not taken.
    pub fn has_turn(&self, stream: StreamId) -> bool {
        self.slot(stream).is_some_and(|slot| self.streams[slot].granted_bytes > 0)
    }

    /// A stream has taken what it was granted, or needs it no more.
    pub(super) fn end_grant(&mut self, slot: u32) {
        self.granted_bytes -= std::mem::take(&mut self.streams[slot].granted_bytes);
    }
}
