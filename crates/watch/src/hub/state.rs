//! The hub's values.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::ClientId;
use mvcc::{Follower, Store};

use super::outbox::{Bodies, Outbox, Sizes};
use crate::held_back::HeldBack;
use crate::interest::Interest;
use crate::owners::Owners;
use crate::slab::{Positions, Slab};
use crate::types::{Stats, StreamId, WatchLimits};

/// Delivers the events of one store to the watchers of all streams.
pub struct Hub {
    pub(super) store: Store,
    /// The reader of new events. Compactions wait for it, so that live watchers lose nothing.
    /// `None` while there is no watcher: a follower that is not read stops compactions from freeing space.
    pub(super) follower: Option<Follower>,
    /// The last revision whose events all live watchers have in their outbox.
    pub(super) position: i64,
    pub(super) limits: WatchLimits,
    pub(super) streams: Slab<HubStream>,
    /// Generation of the next stream.
    pub(super) generation: u32,
    pub(super) watchers: Slab<HubWatcher>,
    pub(super) interest: Interest,
    pub(super) bodies: Bodies,
    /// Of all outboxes.
    pub(super) sizes: Sizes,
    pub(super) owners: Owners,
    /// Watchers without a start revision, created while the hub lagged the store.
    pub(super) joining: Positions,
    /// Watchers with a start in the future.
    pub(super) future: Positions,
    /// How many of both may still become live in this turn.
    pub(super) promotions_left: usize,
    pub(super) lagging: Positions,
    /// Number of live watchers.
    pub(super) live: usize,
    pub(super) parked: usize,
    /// The next revision of the pass over history.
    pub(super) cursor: i64,
    /// Whether the next step of history is one of the pass.
    pub(super) is_pass_next: bool,
    /// Number of the last catch-up step.
    pub(super) step: u32,
    /// Streams with an outbox that has become non-empty.
    pub(super) ready: Vec<u32>,
    /// Streams with events in their outbox, in the order in which they were read last, or got the first one.
    pub(super) stalls: BTreeMap<u64, u32>,
    pub(super) stalls_next: u64,
    /// Closed streams whose watchers are being removed.
    pub(super) closed: Vec<u32>,
    /// Streams that have taken everything before the next part of a large revision, by place.
    pub(super) wanting: BTreeMap<u64, StreamId>,
    /// Streams whose next response is large, while streams hold too much of such responses.
    pub(super) held_back: HeldBack,
    /// Bytes of large responses that streams may take, and have not taken.
    pub(super) granted_bytes: usize,
    /// Streams with a progress request that is not answered yet.
    pub(super) asked: Vec<StreamId>,
    /// When each stream's next periodic notification is due.
    pub(super) timers: BTreeSet<(Duration, u32)>,
    pub(super) events: u64,
    pub(super) evictions: u64,
}

/// Generation of a closed stream. Open ones have others.
pub(super) const CLOSED: u32 = 0;

/// One stream.
pub(super) struct HubStream {
    pub generation: u32,
    /// The client.
    pub owner: ClientId,
    /// Watchers by watch id. Ordered, so that their order is the same in each run.
    pub watchers: BTreeMap<i64, u32>,
    /// The next id that the hub chooses, if it is free.
    pub next_id: i64,
    pub outbox: Outbox,
    pub parked: Vec<u32>,
    /// Watchers that are not live.
    pub unsynced: usize,
    /// Watchers with periodic notifications.
    pub notified: usize,
    /// The watch id from which on the periodic notifications that are due go on; `None` if none are.
    pub notify_from: Option<i64>,
    /// A progress request is answered when the hub has reached this revision.
    pub asked_at: Option<i64>,
    /// Time between two periodic notifications, and when the next one is due.
    pub period: Duration,
    pub due: Duration,
    /// Key in `stalls`.
    pub stall: Option<u64>,
    /// Its place in `wanting`, if it is there.
    pub wanting: Option<u64>,
    /// Whether it is in `held_back`.
    pub is_held_back: bool,
    /// Bytes of the large response that it may take, since its turn has come; 0 if it may take none.
    pub granted_bytes: usize,
    /// Whether it is in `ready`.
    pub is_ready: bool,
}

/// One watcher. 40 bytes: there are millions of them.
pub(super) struct HubWatcher {
    pub watch_id: i64,
    /// The next revision to deliver. Live watchers share one.
    pub next: i64,
    pub stream: u32,
    pub group: u32,
    /// Place in the group's list.
    pub in_group: u32,
    /// Place in the list of its state.
    pub place: u32,
    pub state: WatcherState,
    /// Whether it gets periodic notifications.
    pub is_notified: bool,
    /// Whether it got an event since the last periodic notification.
    pub is_active: bool,
}

/// Where a watcher stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatcherState {
    /// It gets new events. In the first part of its group's list.
    Live,
    /// It reads history. In `Hub::lagging`.
    Lagging,
    /// Its stream's outbox is full. In `Stream::parked`.
    Parked,
    /// It begins after a revision that the hub has not reached. In `Hub::joining`.
    Joining,
    /// Its start is not published yet. In `Hub::future`.
    Future,
    /// Canceled by a compaction. Only its id is still in use, until the client cancels it. In no group.
    Compacted,
    /// Between two states.
    Idle,
}

impl Hub {
    /// A hub without streams. It delivers the events after the present revision of the store.
    pub fn new(store: Store, limits: WatchLimits) -> Self {
        Hub {
            position: store.revision(),
            follower: None,
            store,
            streams: Slab::default(),
            generation: 0,
            watchers: Slab::default(),
            interest: Interest::default(),
            bodies: Bodies::new(limits.part_bytes),
            limits,
            sizes: Sizes::default(),
            owners: Owners::default(),
            joining: Positions::default(),
            future: Positions::default(),
            promotions_left: 0,
            lagging: Positions::default(),
            live: 0,
            parked: 0,
            cursor: 0,
            is_pass_next: false,
            step: 0,
            ready: Vec::new(),
            closed: Vec::new(),
            stalls: BTreeMap::new(),
            stalls_next: 0,
            wanting: BTreeMap::new(),
            held_back: HeldBack::default(),
            granted_bytes: 0,
            asked: Vec::new(),
            timers: BTreeSet::new(),
            events: 0,
            evictions: 0,
        }
    }

    /// Counters and sizes. Constant time.
    pub fn stats(&self) -> Stats {
        Stats {
            streams: self.streams.len(),
            watchers: self.watchers.len(),
            lagging: self.lagging.len() + self.parked,
            future: self.future.len(),
            ranges: self.interest.groups.len(),
            key_bytes: self.interest.key_bytes(),
            body_bytes: self.event_bytes(),
            handed_bytes: self.bodies.outside(),
            pending: self.sizes.responses,
            events: self.events,
            evictions: self.evictions,
        }
    }

    /// The number of an open stream.
    pub(super) fn slot(&self, stream: StreamId) -> Option<u32> {
        let open = self.streams.get(stream.slot)?;
        (open.generation == stream.generation).then_some(stream.slot)
    }
}
