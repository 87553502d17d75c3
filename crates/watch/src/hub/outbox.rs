//! Outbox: pending responses of a stream, in order.
//!
//! # Bodies
//!
//! Encoded events. Each body is stored once, for any number of outboxes that refer to it.
//!
//! * A slice handed to a stream retains at most twice its size in memory: small parts of a body are
//!   copied.
//! * Large bytes are counted until their last slice is dropped, even outside of the hub.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use mvcc::KeyRange;

use crate::interest::Form;
use crate::slab::Slab;
use crate::wire::{ByteCount, Parcel, ParcelContent, counted};

/// Memory of an entry without its body and ids: a growing queue has up to twice the capacity that
/// it uses, and the ids are a separate allocation.
const ENTRY_BYTES: usize = 2 * size_of::<OutboxEntry>() + 32;
/// Maximum capacity that an empty queue retains.
const PLACES_KEPT: usize = 32;

#[derive(Default)]
pub(crate) struct Outbox {
    entries: VecDeque<OutboxEntry>,
    bytes: usize,
    sizes: OutboxSizes,
}

/// Sizes of an outbox, or totals of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutboxSizes {
    /// Responses to requests, and progress notifications.
    pub answers: usize,
    /// Memory of entries with events, without the events.
    pub entry_bytes: usize,
    /// Responses with events, counted once per watcher.
    pub responses: usize,
}

impl OutboxSizes {
    pub fn change(&mut self, before: OutboxSizes, after: OutboxSizes) {
        self.answers = self.answers + after.answers - before.answers;
        self.entry_bytes = self.entry_bytes + after.entry_bytes - before.entry_bytes;
        self.responses = self.responses + after.responses - before.responses;
    }
}

enum OutboxEntry {
    Answer(Parcel),
    Events(Events),
    /// Sent in parts. Later entries wait for its last part.
    Large(Box<Large>),
}

/// The same events for some watchers of the stream.
pub(crate) struct Events {
    pub span: BodySpan,
    pub first: i64,
    pub revision: i64,
    pub may_fragment: bool,
    pub watch_ids: Vec<i64>,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the memory in bytes. Bodies are counted once per entry.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn sizes(&self) -> OutboxSizes {
        self.sizes
    }

    pub fn push_answer(&mut self, revision: i64, content: ParcelContent) {
        let parcel = Parcel { revision, content };
        self.bytes += ENTRY_BYTES + parcel.bytes();
        self.sizes.answers += 1;
        self.entries.push_back(OutboxEntry::Answer(parcel));
    }

    /// Adds events for a watcher. Merges them with the last entry if that has the same events.
    pub fn push_events(&mut self, watch_id: i64, events: Events, bodies: &mut Bodies) {
        self.sizes.responses += 1;
        if let Some(OutboxEntry::Events(last)) = self.entries.back_mut()
            && (last.span, last.revision, last.may_fragment)
                == (events.span, events.revision, events.may_fragment)
        {
            last.watch_ids.push(watch_id);
            self.bytes += size_of::<i64>();
            self.sizes.entry_bytes += size_of::<i64>();
            return;
        }
        bodies.add_reference(events.span.body);
        let entry_bytes = ENTRY_BYTES + size_of::<i64>();
        self.sizes.entry_bytes += entry_bytes;
        self.bytes += entry_bytes + events.span.end - events.span.start;
        self.entries.push_back(OutboxEntry::Events(Events { watch_ids: vec![watch_id], ..events }));
    }

    pub fn push_large(&mut self, large: Large) {
        let bytes = large_bytes(&large);
        self.bytes += bytes;
        self.sizes.entry_bytes += bytes;
        self.sizes.responses += 1;
        self.entries.push_back(OutboxEntry::Large(Box::new(large)));
    }

    /// Returns the event bytes of the first entry; 0 if it has none, or is sent in parts.
    pub fn first_event_bytes(&self) -> usize {
        match self.entries.front() {
            Some(OutboxEntry::Events(events)) => events.span.end - events.span.start,
            Some(OutboxEntry::Answer(_) | OutboxEntry::Large(_)) | None => 0,
        }
    }

    /// Returns the revision of the first entry, if it waits for its next part.
    pub fn wanted(&mut self) -> Option<&mut Large> {
        match self.entries.front_mut() {
            Some(OutboxEntry::Large(large)) if large.part.is_none() => Some(large),
            Some(_) | None => None,
        }
    }

    pub fn first_large(&self) -> Option<&Large> {
        match self.entries.front() {
            Some(OutboxEntry::Large(large)) => Some(large),
            Some(_) | None => None,
        }
    }

    /// Removes the first entry, or takes its part. Returns `None` if there is none.
    pub fn pop(&mut self, bodies: &mut Bodies) -> Option<Parcel> {
        if let Some(OutboxEntry::Large(large)) = self.entries.front_mut() {
            let part = large.part.take()?;
            if !large.is_done {
                return Some(part);
            }
            large.part = Some(part);
        }
        let parcel = match self.entries.pop_front()? {
            OutboxEntry::Large(large) => {
                let bytes = large_bytes(&large);
                self.bytes -= bytes;
                self.sizes.entry_bytes -= bytes;
                self.sizes.responses -= 1;
                large.part.expect("the last part")
            }
            OutboxEntry::Answer(parcel) => {
                self.bytes -= ENTRY_BYTES + parcel.bytes();
                self.sizes.answers -= 1;
                parcel
            }
            OutboxEntry::Events(events) => {
                self.bytes -= events.bytes();
                self.sizes.entry_bytes -= events.entry_bytes();
                self.sizes.responses -= events.watch_ids.len();
                let body = bodies.hand_out(events.span);
                bodies.release(events.span.body);
                let watch_ids = events.watch_ids.into_boxed_slice();
                let content = ParcelContent::Events { watch_ids, body, may_fragment: events.may_fragment };
                Parcel { revision: events.revision, content }
            }
        };
        assert!(
            !self.entries.is_empty() || (self.bytes, self.sizes) == (0, OutboxSizes::default()),
            "an outbox that lost count"
        );
        if self.entries.is_empty() {
            self.entries.shrink_to(PLACES_KEPT);
        }
        Some(parcel)
    }

    pub fn clear(&mut self, bodies: &mut Bodies) {
        for entry in std::mem::take(self).entries {
            match entry {
                OutboxEntry::Events(events) => bodies.release(events.span.body),
                OutboxEntry::Answer(_) | OutboxEntry::Large(_) => {}
            }
        }
    }

    /// Removes all events and progress notifications, except a revision with a part that was sent
    /// or is pending. Returns the first removed revision for each watch id.
    ///
    /// Events that precede a response about the same watch id belong to a watcher that has been
    /// canceled.
    pub fn remove_events(&mut self, bodies: &mut Bodies) -> BTreeMap<i64, i64> {
        let mut removed = BTreeMap::new();
        for entry in std::mem::take(&mut self.entries) {
            match entry {
                OutboxEntry::Events(events) => {
                    self.bytes -= events.bytes();
                    self.sizes.entry_bytes -= events.entry_bytes();
                    self.sizes.responses -= events.watch_ids.len();
                    bodies.release(events.span.body);
                    for watch_id in events.watch_ids {
                        let first = removed.entry(watch_id).or_insert(events.first);
                        *first = events.first.min(*first);
                    }
                }
                OutboxEntry::Large(large) if large.has_begun || large.is_wanted => {
                    self.entries.push_back(OutboxEntry::Large(large))
                }
                OutboxEntry::Large(large) => {
                    let bytes = large_bytes(&large);
                    self.bytes -= bytes;
                    self.sizes.entry_bytes -= bytes;
                    self.sizes.responses -= 1;
                    let first = removed.entry(large.watch_id).or_insert(large.main);
                    *first = large.main.min(*first);
                }
                OutboxEntry::Answer(parcel) => match parcel.content {
                    ParcelContent::Progress { .. } => {
                        self.bytes -= ENTRY_BYTES + parcel.bytes();
                        self.sizes.answers -= 1;
                    }
                    ParcelContent::Created { watch_id }
                    | ParcelContent::Canceled { watch_id, .. }
                    | ParcelContent::Revoked { watch_id, .. } => {
                        removed.remove(&watch_id);
                        self.entries.push_back(OutboxEntry::Answer(parcel));
                    }
                    ParcelContent::Refused { .. }
                    | ParcelContent::Events { .. }
                    | ParcelContent::Part { .. } => {
                        self.entries.push_back(OutboxEntry::Answer(parcel));
                    }
                },
            }
        }
        removed
    }
}

/// Returns the memory of an entry with a large revision, without its part.
fn large_bytes(large: &Large) -> usize {
    ENTRY_BYTES + size_of::<Large>() + large.keys.key_bytes()
}

impl Events {
    fn bytes(&self) -> usize {
        self.entry_bytes() + self.span.end - self.span.start
    }

    fn entry_bytes(&self) -> usize {
        ENTRY_BYTES + size_of::<i64>() * self.watch_ids.len()
    }
}

/// A revision for one watcher, if its events with previous pairs are too large to hold. It is a
/// reference to history: events are encoded in parts, one at a time, while the stream reads.
pub(crate) struct Large {
    pub watch_id: i64,
    pub main: i64,
    pub revision: i64,
    pub keys: KeyRange,
    pub form: Form,
    /// Sub revisions of the first and the last event.
    pub subs: (i64, i64),
    /// Sub revision at which the next step starts to read.
    pub next: i64,
    pub stage: LargeStage,
    /// Mean event size in the last step; 0 before the first one.
    pub event_bytes: usize,
    /// True if the previous pairs were compacted at the time of the first step.
    pub is_bare: bool,
    /// True while the stream waits for a part. It is not evicted then: streams evicting each
    /// other's parts would make no progress.
    pub is_wanted: bool,
    /// True if a part was encoded: later ones must be consistent with it.
    pub has_begun: bool,
    pub part: Option<Parcel>,
    pub is_done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LargeStage {
    /// Counts bytes, since a message starts with its length.
    Measure { bytes: usize },
    /// Encodes a part. All parts are `total` bytes; 0 if each is a separate response.
    Send { sent: usize, total: usize },
}

impl Large {
    pub fn restart(&mut self) {
        self.next = self.subs.0;
        self.stage = match self.form.may_fragment() {
            true => LargeStage::Send { sent: 0, total: 0 },
            false => LargeStage::Measure { bytes: 0 },
        };
    }
}

pub(crate) struct Bodies {
    bodies: Slab<SharedBody>,
    bytes: usize,
    /// Size above which bytes are counted until they are dropped.
    small_bytes_max: usize,
    /// Large bytes anywhere, and in the bodies of the hub.
    large: Arc<AtomicUsize>,
    large_here: usize,
}

struct SharedBody {
    bytes: Bytes,
    references: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodySpan {
    pub body: u32,
    pub start: usize,
    pub end: usize,
}

impl Bodies {
    pub fn new(small_bytes_max: usize) -> Bodies {
        Bodies { bodies: Slab::default(), bytes: 0, small_bytes_max, large: Arc::default(), large_here: 0 }
    }

    /// Returns the size of all bodies, each counted once.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the large bytes that streams hold, excluding bodies.
    pub fn outside(&self) -> usize {
        self.large.load(Relaxed).saturating_sub(self.large_here)
    }

    pub fn is_large(&self, bytes: usize) -> bool {
        bytes > self.small_bytes_max
    }

    /// Converts bytes, which are counted if they are large.
    pub fn counted(&self, bytes: Vec<u8>) -> Bytes {
        if !self.is_large(bytes.len()) {
            return Bytes::from(bytes);
        }
        let count = ByteCount::new(bytes.len(), [Arc::clone(&self.large)]);
        counted(bytes, count)
    }

    /// Adds a body with a reference owned by the caller.
    pub fn insert(&mut self, bytes: Vec<u8>) -> u32 {
        let bytes = self.counted(bytes);
        self.bytes += bytes.len();
        if self.is_large(bytes.len()) {
            self.large_here += bytes.len();
        }
        self.bodies.insert(SharedBody { bytes, references: 1 })
    }

    pub fn hand_out(&self, span: BodySpan) -> Bytes {
        let body = &self.bodies[span.body].bytes;
        let bytes = span.end - span.start;
        // A slice would retain the whole body. A small slice of a large body would not be counted.
        if body.len() > 2 * bytes || (self.is_large(body.len()) && !self.is_large(bytes)) {
            return self.counted(body[span.start..span.end].to_vec());
        }
        body.slice(span.start..span.end)
    }

    pub fn bytes_of(&self, body: u32) -> Bytes {
        self.bodies[body].bytes.clone()
    }

    pub fn add_reference(&mut self, body: u32) {
        self.bodies[body].references += 1;
    }

    /// Drops a reference. Frees the body with the last one.
    pub fn release(&mut self, body: u32) {
        let references = &mut self.bodies[body].references;
        *references -= 1;
        if *references == 0 {
            let bytes = self.bodies.remove(body).bytes.len();
            self.bytes -= bytes;
            if self.is_large(bytes) {
                self.large_here -= bytes;
            }
        }
    }
}
