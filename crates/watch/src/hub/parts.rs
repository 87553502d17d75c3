//! Revisions that are sent in parts.
//!
//! ```text
//!   take ──reaches a large revision──▶ wanting ──one step in a turn──▶ part ──▶ take ──▶ wanting …
//! ```
//!
//! * Deleting a range may produce previous pairs of any size in a single revision. Its events are
//!   read and encoded while the stream takes them, so that the stream holds at most one part.
//! * A watcher with fragments enabled gets each part as a response. Otherwise all parts are a
//!   single message, as in etcd. A message starts with its length, so the events are encoded twice:
//!   once to count bytes.
//! * History is not pinned. If a compaction removes the revision or its previous pairs before the
//!   first part, the revision is evicted, and its watcher reads history again or is canceled. After
//!   the first part, the stream is broken and the client has to reconnect.
//! * Beyond 1 GiB of a revision, events have no previous pair. gRPC clients do not accept messages
//!   above 2 GiB.

use bytes::Bytes;
use mvcc::{Change, Error, Result, Revision};

use super::live::{LargeMatch, PAIR_BYTES};
use super::outbox::{Large, LargeStage};
use super::state::Hub;
use crate::types::WatchStreamId;
use crate::wire::{MessagePart, Parcel, ParcelContent, put_event};

/// Size of a revision from which previous pairs are omitted.
const PREVIOUS_BYTES_MAX: usize = 1 << 30;
/// Maximum number of events with previous pairs per load.
const PER_LOAD: usize = 256;
/// Approximate bytes per load while counting bytes.
const MEASURED_PER_LOAD: usize = 1 << 20;

/// Encoded events, and the start of the next step; `None` after the last event.
struct EncodedStep {
    bytes: Vec<u8>,
    next: Option<i64>,
    /// Mean event size; 0 before the first one.
    event_bytes: usize,
}

impl Hub {
    /// Puts a reference to a large revision into the outbox of a lagging watcher. Returns the
    /// revision if the outbox is full.
    pub(super) fn send_large(&mut self, watcher: u32, found: &LargeMatch, revision: i64) -> Option<i64> {
        let group = &self.interest.groups[self.watchers[watcher].group];
        let (keys, form) = (group.keys(), group.form());
        let mut large = Large {
            watch_id: self.watchers[watcher].watch_id,
            main: found.main,
            revision,
            keys,
            form,
            subs: found.subs,
            next: 0,
            stage: LargeStage::Measure { bytes: 0 },
            event_bytes: 0,
            is_bare: false,
            is_wanted: false,
            has_begun: false,
            part: None,
            is_done: false,
        };
        large.restart();
        if self.push_large(watcher, large, found.count) { None } else { Some(found.main) }
    }

    /// Encodes the next parts, one step for each stream that wants one. Streams beyond the limit on
    /// previous pairs wait for the next turn. Streams of a client that holds too much wait until it
    /// holds less.
    pub(super) fn make_parts(&mut self) -> Result<()> {
        let (mut bytes, mut from, end) = (0, 0, self.end_of_large_parts());
        let last = self.held_back.take_place();
        while bytes < self.limits.previous_bytes_max
            && let Some((place, stream)) = self.wanting.range(from..last).next()
        {
            let (place, stream) = (*place, *stream);
            from = place + 1;
            if self.is_its_turn(place, stream, end) {
                self.wanting.remove(&place);
                bytes += self.make_part(stream)?;
            }
        }
        Ok(())
    }

    /// Queues a stream for its next part, after all waiting streams.
    pub(super) fn want_part(&mut self, slot: u32, stream: WatchStreamId) {
        if self.streams[slot].wanting.is_none() {
            let place = self.held_back.take_place();
            self.streams[slot].wanting = Some(place);
            self.wanting.insert(place, stream);
        }
    }

    fn make_part(&mut self, stream: WatchStreamId) -> Result<usize> {
        let Some(slot) = self.slot(stream) else { return Ok(0) };
        self.streams[slot].wanting = None;
        // It may have been evicted.
        let Some(large) = self.streams[slot].outbox.wanted() else { return Ok(0) };
        let (main, is_fragmented) = (large.main, large.form.may_fragment());
        let was_bare = self.store.compact_revision() >= main;
        let mut step = self.read_part(slot)?;
        let is_bare = self.store.compact_revision() >= main;
        let large = self.streams[slot].outbox.wanted().expect("it was there");
        let is_first = large.next == large.subs.0 && large.stage == LargeStage::Measure { bytes: 0 };
        let was_bare = if is_first { was_bare } else { large.is_bare };
        if !is_fragmented && is_bare != was_bare {
            step = None; // What was counted is no longer true.
        }
        large.is_bare = is_bare;
        let has_begun = large.has_begun;
        large.is_wanted = step.is_some();
        let Some(step) = step else {
            match has_begun {
                true => self.put_part(slot, MessagePart::Broken, Bytes::new(), None),
                false => self.take_large_back(slot),
            }
            return Ok(0);
        };
        let encoded = step.bytes.len();
        large.event_bytes = step.event_bytes;
        match large.stage {
            LargeStage::Measure { bytes } => {
                let bytes = bytes + encoded;
                match step.next {
                    Some(next) => (large.next, large.stage) = (next, LargeStage::Measure { bytes }),
                    None => {
                        (large.next, large.stage) = (large.subs.0, LargeStage::Send { sent: 0, total: bytes })
                    }
                }
                self.want_part(slot, stream);
            }
            LargeStage::Send { sent, total } => {
                large.stage = LargeStage::Send { sent: sent + encoded, total };
                let is_last = step.next.is_none();
                assert!(is_fragmented || !is_last || sent + encoded == total, "a message of its length");
                let part = match (is_fragmented, sent) {
                    (true, _) => MessagePart::Fragment { is_last },
                    (false, 0) => MessagePart::First {
                        total: u32::try_from(total).expect("responses are far below 4 GiB"),
                    },
                    (false, _) => MessagePart::Next,
                };
                let body = self.bodies.counted(step.bytes);
                self.put_part(slot, part, body, step.next);
            }
        }
        Ok(encoded)
    }

    /// Gives the stream a part. The next step continues at `next`.
    fn put_part(&mut self, slot: u32, part: MessagePart, body: Bytes, next: Option<i64>) {
        let large = self.streams[slot].outbox.wanted().expect("a revision that is sent");
        let content = ParcelContent::Part { watch_id: large.watch_id, part, body };
        large.part = Some(Parcel { revision: large.revision, content });
        (large.has_begun, large.is_done) = (true, next.is_none());
        large.next = next.unwrap_or(large.next);
        self.announce(slot);
    }

    /// Evicts the events of a stream, so that its watchers detect the compaction.
    fn take_large_back(&mut self, slot: u32) {
        if let Some(stall) = self.streams[slot].stall.take() {
            self.stalls.remove(&stall);
        }
        self.take_back(slot);
        // The owner's next `take` lets the watchers continue.
        self.announce(slot);
    }

    /// Encodes the next events; `None` if they are compacted.
    fn read_part(&mut self, slot: u32) -> Result<Option<EncodedStep>> {
        let (previous_max, part_max) = (self.limits.previous_bytes_max, self.limits.part_bytes);
        let hub = &*self;
        let Some(large) = hub.streams[slot].outbox.first_large() else { return Ok(None) };
        let (before, bytes_max, load_max) = match large.stage {
            LargeStage::Measure { bytes } => (bytes, previous_max, MEASURED_PER_LOAD),
            LargeStage::Send { sent, .. } => (sent, part_max, part_max),
        };
        let mut step =
            EncodedStep { bytes: Vec::new(), next: Some(large.next), event_bytes: large.event_bytes };
        while let Some(sub) = step.next.filter(|sub| *sub <= large.subs.1 && step.bytes.len() < bytes_max) {
            let part = match hub.store.changes_within(Revision { main: large.main, sub }) {
                Ok(part) => part,
                Err(Error::Compacted { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            step.next = part.next.map(|next| next.sub);
            let is_event = |change: &Change<'_>| {
                change.revision().sub <= large.subs.1
                    && large.keys.contains(change.key())
                    && large.form.accepts(change)
            };
            let mut events = part.changes.iter().filter(is_event).peekable();
            while let Some(first) = events.peek().map(|event| event.revision().sub) {
                if step.bytes.len() >= bytes_max {
                    step.next = Some(first);
                    break;
                }
                let event_bytes = if step.event_bytes == 0 { PAIR_BYTES } else { step.event_bytes };
                let per_load = (load_max / event_bytes).clamp(1, PER_LOAD);
                let loaded: Vec<Change<'_>> = events.by_ref().take(per_load).collect();
                hub.encode_part(&loaded, before, &mut step)?;
            }
        }
        step.next = step.next.filter(|sub| *sub <= large.subs.1);
        Ok(Some(step))
    }

    fn encode_part(&self, events: &[Change<'_>], before: usize, step: &mut EncodedStep) -> Result<()> {
        let start = step.bytes.len();
        let numbers: Vec<usize> = (0..events.len()).collect();
        let pairs = self.previous(events, &numbers)?;
        for (event, pair) in events.iter().zip(&pairs) {
            let has_previous = before + step.bytes.len() < PREVIOUS_BYTES_MAX;
            put_event(&mut step.bytes, event, pair.as_ref().filter(|_| has_previous));
        }
        step.event_bytes = (step.bytes.len() - start) / events.len();
        Ok(())
    }
}
