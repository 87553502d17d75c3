//! What one stream has to send, in order.
//!
//! # Bodies
//!
//! Encoded events. Each is stored once, for any number of outboxes that refer to it.
//!
//! * What is handed to a stream keeps at most twice its bytes in memory: a small part of a body is copied.
//! * Large bytes are counted until the last slice of them is dropped, also outside of the hub.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use mvcc::KeyRange;

use crate::interest::Form;
use crate::slab::Slab;
use crate::wire::{ByteCount, Parcel, ParcelContent, counted};

/// Memory of an entry without its body and ids: a queue that grows has up to twice the places that it uses,
/// and the ids are a separate allocation.
const ENTRY_BYTES: usize = 2 * size_of::<OutboxEntry>() + 32;
/// A queue of so many places is kept when it is empty.
const PLACES_KEPT: usize = 32;

/// Entries in the order in which they are sent.
#[derive(Default)]
pub(crate) struct Outbox {
    entries: VecDeque<OutboxEntry>,
    bytes: usize,
    sizes: Sizes,
}

/// Sizes of one outbox, or of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Answers to requests and progress notifications.
    pub answers: usize,
    /// Memory of entries with events, without the events.
    pub entry_bytes: usize,
    /// Responses with events, counted once per watcher.
    pub responses: usize,
}

impl Sizes {
    /// Replaces a part of a sum.
    pub fn change(&mut self, before: Sizes, after: Sizes) {
        self.answers = self.answers + after.answers - before.answers;
        self.entry_bytes = self.entry_bytes + after.entry_bytes - before.entry_bytes;
        self.responses = self.responses + after.responses - before.responses;
    }
}

enum OutboxEntry {
    Answer(Parcel),
    Events(Events),
    /// Until its last part was taken, nothing after it is.
    Large(Box<Large>),
}

/// The same events for some watchers of the stream.
pub(crate) struct Events {
    pub span: BodySpan,
    /// Main revision of the first event.
    pub first: i64,
    /// Revision of the header.
    pub revision: i64,
    pub may_fragment: bool,
    pub watch_ids: Vec<i64>,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of memory, each body counted once for each entry.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    pub fn push_answer(&mut self, revision: i64, content: ParcelContent) {
        let parcel = Parcel { revision, content };
        self.bytes += ENTRY_BYTES + parcel.bytes();
        self.sizes.answers += 1;
        self.entries.push_back(OutboxEntry::Answer(parcel));
    }

    /// Adds events for one watcher: to the last entry, if it is the same events for another one.
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

    /// Adds a revision that is sent in parts.
    pub fn push_large(&mut self, large: Large) {
        let bytes = large_bytes(&large);
        self.bytes += bytes;
        self.sizes.entry_bytes += bytes;
        self.sizes.responses += 1;
        self.entries.push_back(OutboxEntry::Large(Box::new(large)));
    }

    /// Bytes of events of the first entry; 0 if it has none, or is sent in parts.
    pub fn first_event_bytes(&self) -> usize {
        match self.entries.front() {
            Some(OutboxEntry::Events(events)) => events.span.end - events.span.start,
            Some(OutboxEntry::Answer(_) | OutboxEntry::Large(_)) | None => 0,
        }
    }

    /// The revision of the first entry that waits for its next part.
    pub fn wanted(&mut self) -> Option<&mut Large> {
        match self.entries.front_mut() {
            Some(OutboxEntry::Large(large)) if large.part.is_none() => Some(large),
            Some(_) | None => None,
        }
    }

    /// The revision of the first entry, if it is sent in parts.
    pub fn first_large(&self) -> Option<&Large> {
        match self.entries.front() {
            Some(OutboxEntry::Large(large)) => Some(large),
            Some(_) | None => None,
        }
    }

    /// Removes the first entry, or takes its part. `None` if there is none.
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
            !self.entries.is_empty() || (self.bytes, self.sizes) == (0, Sizes::default()),
            "an outbox that lost count"
        );
        if self.entries.is_empty() {
            self.entries.shrink_to(PLACES_KEPT);
        }
        Some(parcel)
    }

    /// Removes everything.
    pub fn clear(&mut self, bodies: &mut Bodies) {
        for entry in std::mem::take(self).entries {
            match entry {
                OutboxEntry::Events(events) => bodies.release(events.span.body),
                OutboxEntry::Answer(_) | OutboxEntry::Large(_) => {}
            }
        }
    }

    /// Removes all events and progress notifications, but not a revision of which a part was sent or
    /// is waited for. Returns, for each watch id whose events were removed,
    /// the revision of the first one.
    ///
    /// Events before an answer about the same watch id are of a watcher that was canceled since.
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

/// Memory of an entry with a large revision, without its part.
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

/// One revision whose events with previous pairs are too large to be held, for one watcher. It is a reference
/// to history: its events are encoded in parts, one at a time, while the stream reads.
pub(crate) struct Large {
    pub watch_id: i64,
    pub main: i64,
    /// Revision of the header.
    pub revision: i64,
    pub keys: KeyRange,
    pub form: Form,
    /// Sub revisions of the first and the last event.
    pub subs: (i64, i64),
    /// Sub revision from which the next step reads.
    pub next: i64,
    pub stage: LargeStage,
    /// Mean bytes of the events of the last step; 0 before the first one.
    pub event_bytes: usize,
    /// Whether the pairs before the events are compacted, when the first step was made.
    pub is_bare: bool,
    /// The stream waits for a part. It is not dropped to make room then: streams that drop each other's would
    /// never get one.
    pub is_wanted: bool,
    /// A part was encoded: what follows has to fit to it.
    pub has_begun: bool,
    /// The part that the stream takes next.
    pub part: Option<Parcel>,
    /// It is the last one.
    pub is_done: bool,
}

/// What the next step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LargeStage {
    /// Counts bytes: a message begins with its length.
    Measure { bytes: usize },
    /// Encodes a part. All parts are `total` bytes; 0 if each is a separate response.
    Send { sent: usize, total: usize },
}

impl Large {
    /// Begins with the first step.
    pub fn restart(&mut self) {
        self.next = self.subs.0;
        self.stage = match self.form.may_fragment() {
            true => LargeStage::Send { sent: 0, total: 0 },
            false => LargeStage::Measure { bytes: 0 },
        };
    }
}

/// Bodies in use, and their bytes.
pub(crate) struct Bodies {
    bodies: Slab<SharedBody>,
    bytes: usize,
    /// What is larger is counted wherever it is held.
    small_bytes_max: usize,
    /// Bytes of it anywhere, and of bodies that are here.
    large: Arc<AtomicUsize>,
    large_here: usize,
}

struct SharedBody {
    bytes: Bytes,
    references: u32,
}

/// A part of a body.
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

    /// Bytes of all bodies, each counted once.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Large bytes that are held for streams and are no body.
    pub fn outside(&self) -> usize {
        self.large.load(Relaxed).saturating_sub(self.large_here)
    }

    pub fn is_large(&self, bytes: usize) -> bool {
        bytes > self.small_bytes_max
    }

    /// Bytes that are counted if they are large.
    pub fn counted(&self, bytes: Vec<u8>) -> Bytes {
        if !self.is_large(bytes.len()) {
            return Bytes::from(bytes);
        }
        let count = ByteCount::new(bytes.len(), [Arc::clone(&self.large)]);
        counted(bytes, count)
    }

    /// Adds a body with one reference: that of the caller.
    pub fn insert(&mut self, bytes: Vec<u8>) -> u32 {
        let bytes = self.counted(bytes);
        self.bytes += bytes.len();
        if self.is_large(bytes.len()) {
            self.large_here += bytes.len();
        }
        self.bodies.insert(SharedBody { bytes, references: 1 })
    }

    /// The bytes of a span, to be handed to a stream.
    pub fn hand_out(&self, span: BodySpan) -> Bytes {
        let body = &self.bodies[span.body].bytes;
        let bytes = span.end - span.start;
        // A slice would keep the whole body in memory. One that counts as small would keep it uncounted.
        if body.len() > 2 * bytes || (self.is_large(body.len()) && !self.is_large(bytes)) {
            return self.counted(body[span.start..span.end].to_vec());
        }
        body.slice(span.start..span.end)
    }

    /// All bytes of a body.
    pub fn bytes_of(&self, body: u32) -> Bytes {
        self.bodies[body].bytes.clone()
    }

    pub fn add_reference(&mut self, body: u32) {
        self.bodies[body].references += 1;
    }

    /// Removes a reference. Without any the body is freed.
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
