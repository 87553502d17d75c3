//! Into outboxes and out of them.

use std::collections::VecDeque;
use std::time::Duration;

use super::outbox::Events;
use super::state::{Hub, Standing, Stream};
use crate::types::StreamId;
use crate::wire::{Content, Parcel};

/// The part of the interval that streams add, in units of 1/1024: up to a tenth, so that the notifications of
/// all streams do not come at the same time.
const JITTER_MAX: u32 = 102;

impl Hub {
    /// Opens a stream.
    pub fn open(&mut self, now: Duration) -> StreamId {
        self.generation += 1;
        // A multiplicative hash spreads the numbers.
        let jitter = self.generation.wrapping_mul(0x9e37_79b9) >> 8;
        let interval = self.limits.progress_interval;
        let period = interval + interval * (jitter % (JITTER_MAX + 1)) / 1024;
        let stream = Stream {
            generation: self.generation,
            watchers: Default::default(),
            next_id: 0,
            outbox: Default::default(),
            parked: Vec::new(),
            unsynced: 0,
            notified: 0,
            asked_at: None,
            period,
            due: now + period,
            stall: None,
            is_ready: false,
        };
        let slot = self.streams.insert(stream);
        self.timers.insert((now + period, slot));
        StreamId { slot, generation: self.generation }
    }

    /// Forgets a stream, its watchers and its outbox.
    pub fn close(&mut self, stream: StreamId) {
        let Some(slot) = self.slot(stream) else { return };
        for watcher in std::mem::take(&mut self.streams[slot].watchers).into_values() {
            self.remove_watcher(watcher);
        }
        while self.streams[slot].outbox.pop(&mut self.bodies).is_some() {}
        let closed = self.streams.remove(slot);
        self.timers.remove(&(closed.due, slot));
        if let Some(stall) = closed.stall {
            self.stalls.remove(&stall);
        }
        self.ready.retain(|ready| !closed.is_ready || *ready != slot);
    }

    /// The streams whose outbox has become non-empty since the last call.
    pub fn ready(&mut self) -> Vec<StreamId> {
        let ready = std::mem::take(&mut self.ready).into_iter();
        let streams = ready.map(|slot| {
            let stream = &mut self.streams[slot];
            stream.is_ready = false;
            StreamId { slot, generation: stream.generation }
        });
        streams.collect()
    }

    /// Whether `take` has something to do: it returns parcels, or lets watchers continue that wait for room.
    pub fn has_parcels(&self, stream: StreamId) -> bool {
        self.slot(stream)
            .map(|slot| &self.streams[slot])
            .is_some_and(|stream| !stream.outbox.is_empty() || !stream.parked.is_empty())
    }

    /// Whether the stream has room for answers. Otherwise the owner reads no request of the stream until it
    /// has taken parcels.
    pub fn accepts(&self, stream: StreamId) -> bool {
        self.slot(stream).is_none_or(|slot| self.streams[slot].outbox.answers() < self.limits.answers_max)
    }

    /// Moves parcels to `out`, and stops after the first one that reaches `bytes_max`. Returns how many.
    pub fn take(&mut self, stream: StreamId, bytes_max: usize, out: &mut VecDeque<Parcel>) -> usize {
        let Some(slot) = self.slot(stream) else { return 0 };
        let stream = &mut self.streams[slot];
        let (mut bytes, mut parcels) = (0, 0);
        while bytes < bytes_max {
            let Some(parcel) = stream.outbox.pop(&mut self.bodies) else { break };
            bytes += parcel.bytes();
            parcels += 1;
            out.push_back(parcel);
        }
        if stream.outbox.is_empty()
            && let Some(stall) = stream.stall.take()
        {
            self.stalls.remove(&stall);
        }
        if stream.outbox.bytes() <= self.limits.outbox_bytes / 2 {
            // Read again from history.
            while let Some(watcher) = self.streams[slot].parked.last().copied() {
                self.move_to(watcher, Standing::Lagging, self.watchers[watcher].next);
            }
        }
        parcels
    }

    /// Adds an answer to a request, or a notification.
    pub(super) fn push_answer(&mut self, stream: u32, revision: i64, content: Content) {
        self.streams[stream].outbox.push_answer(revision, content);
        self.announce(stream);
    }

    /// Adds events for one watcher. Returns whether the outbox had room.
    pub(super) fn push_events(&mut self, watcher: u32, events: Events, count: usize) -> bool {
        let watcher = &mut self.watchers[watcher];
        let (slot, stream) = (watcher.stream, &mut self.streams[watcher.stream]);
        if stream.outbox.bytes() >= self.limits.outbox_bytes {
            return false;
        }
        watcher.is_active = true;
        self.events += count as u64;
        stream.outbox.push_events(watcher.watch_id, events, &mut self.bodies);
        if stream.stall.is_none() {
            stream.stall = Some(self.stalls_next);
            self.stalls.insert(self.stalls_next, slot);
            self.stalls_next += 1;
        }
        self.announce(slot);
        true
    }

    pub(super) fn announce(&mut self, slot: u32) {
        let stream = &mut self.streams[slot];
        if !stream.is_ready {
            stream.is_ready = true;
            self.ready.push(slot);
        }
    }

    /// Takes the events of the longest stalled streams back, until all bodies are within their limit. The last
    /// stream keeps its events: one response may be larger than the limit, and must reach its reader.
    pub(super) fn evict(&mut self) {
        while self.bodies.bytes() > self.limits.bodies_bytes && self.stalls.len() > 1 {
            let Some((_, slot)) = self.stalls.pop_first() else { return };
            self.streams[slot].stall = None;
            self.evictions += 1;
            let removed = self.streams[slot].outbox.remove_events(&mut self.bodies);
            for (watch_id, first) in removed {
                let Some(watcher) = self.streams[slot].watchers.get(&watch_id).copied() else { continue };
                let next = match self.watchers[watcher].state {
                    Standing::Lagging | Standing::Parked => first.min(self.watchers[watcher].next),
                    Standing::Live => first,
                    Standing::Joining | Standing::Future | Standing::Compacted | Standing::Idle => continue,
                };
                if !cfg!(feature = "mutant-dropped-parcels") {
                    self.move_to(watcher, Standing::Parked, next);
                }
            }
        }
    }
}
