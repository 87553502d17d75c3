//! Adds responses to outboxes and takes them out.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use base::ClientId;

use super::outbox::{Bodies, Events, Large, Outbox, OutboxSizes};
use super::state::{CLOSED, Hub, HubStream, WatcherState};
use crate::types::WatchStreamId;
use crate::wire::{HeldBytes, Parcel, ParcelContent};

/// Jitter of the notification interval, in units of 1/1024: up to a tenth, to spread the
/// notifications of all streams.
const JITTER_MAX: u32 = 102;
/// Part of an outbox that history may always fill: four times what is handed to a stream ahead of
/// its reading.
const HISTORY_BYTES_MIN: usize = 64 << 10;

/// Bytes of events, oldest stall, and all stalls with their streams.
type ClientRank = (usize, Reverse<u64>, VecDeque<(u64, u32)>);

impl Hub {
    pub fn open(&mut self, now: Duration) -> WatchStreamId {
        // Client numbers are small.
        self.open_of(ClientId::alone(u64::MAX - u64::from(self.generation)), now)
    }

    /// Opens a stream of a client. The client's streams share its part of the limits.
    pub fn open_of(&mut self, owner: ClientId, now: Duration) -> WatchStreamId {
        self.owners.add_stream(owner);
        self.generation = self.generation.wrapping_add(1).max(CLOSED + 1);
        // A multiplicative hash spreads the numbers.
        let jitter = self.generation.wrapping_mul(0x9e37_79b9) >> 8;
        let interval = self.limits.progress_interval;
        let period = interval + interval * (jitter % (JITTER_MAX + 1)) / 1024;
        let stream = HubStream {
            generation: self.generation,
            owner,
            watchers: Default::default(),
            next_id: 0,
            outbox: Default::default(),
            parked: Vec::new(),
            unsynced: 0,
            notified: 0,
            notify_from: None,
            asked_at: None,
            period,
            due: now + period,
            stall: None,
            wanting: None,
            is_held_back: false,
            granted_bytes: 0,
            is_ready: false,
        };
        let slot = self.streams.insert(stream);
        self.timers.insert((now + period, slot));
        WatchStreamId { slot, generation: self.generation }
    }

    /// Closes a stream and drops its outbox. Its watchers, up to millions, are removed in the next
    /// turns.
    pub fn close(&mut self, stream: WatchStreamId) {
        let Some(slot) = self.slot(stream) else { return };
        let before = self.streams[slot].outbox.sizes();
        self.streams[slot].outbox.clear(&mut self.bodies);
        self.note_sizes(slot, before);
        self.end_grant(slot);
        let closed = &mut self.streams[slot];
        if let Some(place) = closed.wanting.take() {
            self.wanting.remove(&place);
        }
        if std::mem::take(&mut closed.is_held_back) {
            self.held_back.remove(closed.owner, stream);
        }
        closed.generation = CLOSED;
        self.timers.remove(&(closed.due, slot));
        if let Some(stall) = closed.stall.take() {
            self.stalls.remove(&stall);
        }
        if std::mem::take(&mut closed.is_ready) {
            self.ready.retain(|ready| *ready != slot);
        }
        self.closed.push(slot);
    }

    pub(super) fn remove_closed(&mut self) {
        let mut left = self.limits.turn_watchers;
        while let Some(slot) = self.closed.last().copied() {
            while let Some((_, watcher)) = self.streams[slot].watchers.first_key_value() {
                if left == 0 {
                    return;
                }
                left -= 1;
                self.remove_watcher(*watcher);
            }
            self.closed.pop();
            let closed = self.streams.remove(slot);
            self.owners.remove_stream(closed.owner);
        }
    }

    /// Returns the streams with an outbox that has become non-empty since the last call.
    pub fn ready(&mut self) -> Vec<WatchStreamId> {
        let ready = std::mem::take(&mut self.ready).into_iter();
        let streams = ready.map(|slot| {
            let stream = &mut self.streams[slot];
            stream.is_ready = false;
            WatchStreamId { slot, generation: stream.generation }
        });
        streams.collect()
    }

    /// Reports whether `take` has work: it returns parcels, or unparks watchers.
    pub fn has_parcels(&self, stream: WatchStreamId) -> bool {
        self.slot(stream)
            .map(|slot| &self.streams[slot])
            .is_some_and(|stream| !stream.outbox.is_empty() || !stream.parked.is_empty())
    }

    /// Reports whether the stream accepts requests. Otherwise the owner must not read its requests
    /// until it has taken parcels.
    ///
    /// A client must leave enough of the shared limit free.
    pub fn accepts(&self, stream: WatchStreamId) -> bool {
        let Some(slot) = self.slot(stream) else { return true };
        let HubStream { outbox, owner, .. } = &self.streams[slot];
        let has_share = self.owners.may_answer(*owner, self.limits.answers_total_max);
        let max = if has_share { self.limits.answers_max } else { self.limits.answers_always };
        outbox.sizes().answers < max
    }

    /// Moves parcels to `out`, and stops after the first one that reaches `bytes_max`, or before a
    /// large one without capacity. Returns trackers for the large ones.
    pub fn take(
        &mut self,
        id: WatchStreamId,
        bytes_max: usize,
        out: &mut VecDeque<Parcel>,
    ) -> Vec<HeldBytes> {
        let Some(slot) = self.slot(id) else { return Vec::new() };
        let (mut bytes, mut parcels, before) = (0, 0, self.streams[slot].outbox.sizes());
        let mut held = Vec::new();
        while bytes < bytes_max && !self.must_wait(slot) {
            let Some(mut parcel) = self.streams[slot].outbox.pop(&mut self.bodies) else { break };
            if self.bodies.is_large(parcel.body_bytes()) {
                held.extend(parcel.hold(self.owners.holds(self.streams[slot].owner)));
            }
            bytes += parcel.bytes();
            parcels += 1;
            out.push_back(parcel);
        }
        self.note_sizes(slot, before);
        if bytes < bytes_max
            && let Some(large) = self.streams[slot].outbox.wanted()
        {
            large.is_wanted = true;
            self.want_part(slot, id);
        }
        let stream = &mut self.streams[slot];
        if parcels > 0
            && let Some(stall) = stream.stall.take()
        {
            self.stalls.remove(&stall);
            if !stream.outbox.is_empty() {
                self.stall(slot);
            }
        }
        let stream = &self.streams[slot];
        if stream.granted_bytes > 0 && stream.outbox.is_empty() && stream.parked.is_empty() {
            self.end_grant(slot);
        }
        let stream = &self.streams[slot];
        if stream.outbox.bytes() <= self.history_bytes_max() / 2 && !stream.is_held_back {
            // Read again from history.
            while let Some(watcher) = self.streams[slot].parked.last().copied() {
                self.move_to(watcher, WatcherState::Lagging, self.watchers[watcher].next);
            }
        }
        held
    }

    pub(super) fn push_answer(&mut self, stream: u32, revision: i64, content: ParcelContent) {
        if self.streams[stream].generation == CLOSED {
            return;
        }
        let outbox = &mut self.streams[stream].outbox;
        let before = outbox.sizes();
        outbox.push_answer(revision, content);
        self.note_sizes(stream, before);
        self.announce(stream);
    }

    /// Returns how much of an outbox history may fill, in bytes: a share of the limit on all
    /// bodies, so that slow streams do not evict each other's events. New events may use more,
    /// because streams share them.
    pub(super) fn history_bytes_max(&self) -> usize {
        let share = self.limits.bodies_bytes / self.stalls.len().max(1);
        share.max(HISTORY_BYTES_MIN).min(self.limits.outbox_bytes)
    }

    /// Returns the maximum size of a response to a lagging watcher, unless it is a single revision.
    /// A stream holds two of them ahead of its reading, so with many streams each is small.
    pub(super) fn history_response_bytes_max(&self) -> usize {
        let share = self.limits.bodies_bytes / 4 / self.streams.len().max(1);
        share.clamp(self.limits.part_bytes, 16 * self.limits.part_bytes)
    }

    /// Reports whether the outbox of a watcher's stream accepts events, up to `bytes_max`.
    pub(super) fn has_room(&self, watcher: u32, bytes_max: usize) -> bool {
        self.streams[self.watchers[watcher].stream].outbox.bytes() < bytes_max
    }

    /// Adds events for a watcher, if the outbox has less than `bytes_max`. Returns whether it had.
    pub(super) fn push_events(
        &mut self,
        watcher: u32,
        events: Events,
        count: usize,
        bytes_max: usize,
    ) -> bool {
        let watch_id = self.watchers[watcher].watch_id;
        self.push(watcher, count, bytes_max, |outbox, bodies| outbox.push_events(watch_id, events, bodies))
    }

    /// Adds a revision that is sent in parts, if the outbox has capacity for history. Returns
    /// whether it had.
    pub(super) fn push_large(&mut self, watcher: u32, large: Large, count: usize) -> bool {
        self.push(watcher, count, self.history_bytes_max(), |outbox, _| outbox.push_large(large))
    }

    fn push(
        &mut self,
        watcher: u32,
        count: usize,
        bytes_max: usize,
        add: impl FnOnce(&mut Outbox, &mut Bodies),
    ) -> bool {
        let watcher = &mut self.watchers[watcher];
        let (slot, stream) = (watcher.stream, &mut self.streams[watcher.stream]);
        if stream.generation == CLOSED {
            return true;
        }
        if stream.outbox.bytes() >= bytes_max {
            return false;
        }
        watcher.is_active = true;
        self.events += count as u64;
        let before = stream.outbox.sizes();
        add(&mut stream.outbox, &mut self.bodies);
        self.note_sizes(slot, before);
        if self.streams[slot].stall.is_none() {
            self.stall(slot);
        }
        self.announce(slot);
        true
    }

    /// Makes a stream the last candidate for eviction.
    fn stall(&mut self, slot: u32) {
        self.streams[slot].stall = Some(self.stalls_next);
        self.stalls.insert(self.stalls_next, slot);
        self.stalls_next += 1;
    }

    pub(super) fn announce(&mut self, slot: u32) {
        let stream = &mut self.streams[slot];
        if !stream.is_ready {
            stream.is_ready = true;
            self.ready.push(slot);
        }
    }

    pub(super) fn event_bytes(&self) -> usize {
        self.bodies.bytes() + self.sizes.entry_bytes
    }

    /// Evicts events of streams if all events exceed their limit, until an eighth of it is free, so
    /// that clients are not ranked for each event. The client with the most events loses those of
    /// the stream that it has not read for the longest time. A client with many stalled streams
    /// therefore does not affect other clients.
    ///
    /// The last stream keeps its events: a response may be larger than the limit, and must reach
    /// its reader. `in_use` are bytes that the caller holds.
    pub(super) fn evict(&mut self, in_use: usize) {
        if self.event_bytes() <= self.limits.bodies_bytes + in_use || self.stalls.len() <= 1 {
            return;
        }
        let bytes_max = self.limits.bodies_bytes - self.limits.bodies_bytes / 8 + in_use;
        let mut clients = self.stalls_by_client();
        while self.event_bytes() > bytes_max
            && self.stalls.len() > 1
            && let Some((bytes, Reverse(stall), mut streams)) = clients.pop()
        {
            self.stalls.remove(&stall);
            let (_, slot) = streams.pop_front().expect("a client with a stalled stream");
            let evicted = self.streams[slot].outbox.bytes();
            self.streams[slot].stall = None;
            self.evictions += 1;
            self.take_back(slot);
            if let Some((next, _)) = streams.front() {
                clients.push((bytes - evicted, Reverse(*next), streams));
            }
        }
    }

    /// Ranks the clients with evictable events: by bytes, then by the stream with the oldest read.
    /// Includes their streams in that order.
    fn stalls_by_client(&self) -> BinaryHeap<ClientRank> {
        let mut clients: HashMap<u64, (usize, VecDeque<(u64, u32)>)> = HashMap::new();
        for (stall, slot) in &self.stalls {
            let HubStream { outbox, owner, granted_bytes, .. } = &self.streams[*slot];
            if *granted_bytes > 0 {
                continue; // Its turn has come. Otherwise streams could drop each other's events without end.
            }
            let (bytes, streams) = clients.entry(owner.caller).or_default();
            *bytes += outbox.bytes();
            streams.push_back((*stall, *slot));
        }
        clients.into_values().map(|(bytes, streams)| (bytes, Reverse(streams[0].0), streams)).collect()
    }

    /// Updates the totals of the hub and the client after an outbox has changed.
    pub(super) fn note_sizes(&mut self, slot: u32, before: OutboxSizes) {
        let HubStream { outbox, owner, .. } = &self.streams[slot];
        let after = outbox.sizes();
        self.sizes.change(before, after);
        if before.answers != after.answers {
            self.owners.change_answers(*owner, before.answers, after.answers);
        }
    }

    /// Evicts the events of a stream. Its watchers read them again from history.
    pub(super) fn take_back(&mut self, slot: u32) {
        let outbox = &mut self.streams[slot].outbox;
        let before = outbox.sizes();
        let removed = outbox.remove_events(&mut self.bodies);
        self.note_sizes(slot, before);
        for (watch_id, first) in removed {
            let Some(watcher) = self.streams[slot].watchers.get(&watch_id).copied() else { continue };
            let next = match self.watchers[watcher].state {
                WatcherState::Lagging | WatcherState::Parked => first.min(self.watchers[watcher].next),
                WatcherState::Live => first,
                WatcherState::Joining
                | WatcherState::Future
                | WatcherState::Compacted
                | WatcherState::Idle => continue,
            };
            if !base::mutant("dropped-parcels") {
                self.move_to(watcher, WatcherState::Parked, next);
            }
        }
    }
}
