//! Progress notifications: every event up to the header's revision was delivered before.
//!
//! * A request gets a response only if all watchers of the stream are live. Otherwise it is dropped
//!   and the client retries, as with etcd.
//! * The response is sent when the hub has reached the revision of the request. It contains the
//!   hub's position: the events up to it are already in the outbox.

use std::time::Duration;

use super::state::{Hub, WatcherState};
use crate::types::WatchStreamId;
use crate::wire::ParcelContent;

/// Watch id of a response that applies to all watchers of a stream.
const ALL: i64 = -1;

impl Hub {
    pub fn progress(&mut self, stream: WatchStreamId) {
        let Some(slot) = self.slot(stream) else { return };
        if self.streams[slot].watchers.is_empty() {
            return; // Also if a watcher is created before the next turn.
        }
        let revision = self.store.revision();
        if base::mutant("early-bookmark") {
            self.push_answer(slot, revision, ParcelContent::Progress { watch_id: ALL });
            return;
        }
        if self.streams[slot].asked_at.replace(revision).is_none() {
            self.asked.push(stream);
        }
    }

    /// Sends responses to requests for revisions that the hub has reached.
    pub(super) fn answer_progress(&mut self) {
        if self.has_promotions() {
            return; // Their streams have all live watchers in a later turn.
        }
        for id in std::mem::take(&mut self.asked) {
            let Some(slot) = self.slot(id) else { continue };
            let stream = &mut self.streams[slot];
            let Some(revision) = stream.asked_at else { continue };
            if revision > self.position {
                self.asked.push(id);
                continue;
            }
            stream.asked_at = None;
            if !stream.watchers.is_empty() && stream.unsynced == 0 {
                self.push_answer(slot, self.position, ParcelContent::Progress { watch_id: ALL });
            }
        }
    }

    pub fn next_periodic(&self) -> Option<Duration> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Sends the periodic notifications that are due, to each live watcher that requested them and
    /// got no event since the last one. Skips streams with a full outbox of responses.
    ///
    /// Checks a bounded number of watchers. The remaining streams stay due.
    pub fn periodic(&mut self, now: Duration) {
        let mut left = self.limits.turn_watchers;
        while let Some((due, slot)) = self.timers.first().copied().filter(|(due, _)| *due <= now) {
            if self.streams[slot].notified > 0 && !self.notify_stream(slot, &mut left) {
                return;
            }
            self.timers.remove(&(due, slot));
            let stream = &mut self.streams[slot];
            // Skip missed notifications.
            stream.due = if due + stream.period > now { due + stream.period } else { now + stream.period };
            self.timers.insert((stream.due, slot));
        }
    }

    /// Checks up to `left` watchers of a stream. Returns whether these were the last ones.
    fn notify_stream(&mut self, slot: u32, left: &mut usize) -> bool {
        let stream = &mut self.streams[slot];
        let (before, from) = (stream.outbox.sizes(), stream.notify_from.take().unwrap_or(i64::MIN));
        for (watch_id, watcher) in stream.watchers.range(from..) {
            if *left == 0 {
                stream.notify_from = Some(*watch_id);
                break;
            }
            *left -= 1;
            let watcher = &mut self.watchers[*watcher];
            if !watcher.is_notified {
                continue;
            }
            let was_active = std::mem::take(&mut watcher.is_active);
            let has_room = stream.outbox.sizes().answers < self.limits.answers_max.max(stream.watchers.len());
            if watcher.state == WatcherState::Live && !was_active && has_room {
                stream.outbox.push_answer(self.position, ParcelContent::Progress { watch_id: *watch_id });
            }
        }
        let is_done = stream.notify_from.is_none();
        self.note_sizes(slot, before);
        if !self.streams[slot].outbox.is_empty() {
            self.announce(slot);
        }
        is_done
    }
}
