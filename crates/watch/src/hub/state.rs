//! State of the hub.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::ClientId;
use mvcc::{ChangeReader, Store};

use super::outbox::{Bodies, Outbox, OutboxSizes};
use crate::held_back::HeldBack;
use crate::interest::InterestIndex;
use crate::owners::Owners;
use crate::slab::{Positions, Slab};
use crate::types::{Stats, WatchLimits, WatchStreamId};

/// Delivers the events of a store to the watchers of all streams.
pub struct Hub {
    pub(super) store: Store,
    /// Reader of new events. Compactions wait for it, so that live watchers miss no event. `None`
    /// without watchers: an unread follower would prevent compactions from freeing space.
    pub(super) follower: Option<ChangeReader>,
    /// Last revision that has been delivered to the outboxes of all live watchers.
    pub(super) position: i64,
    pub(super) limits: WatchLimits,
    pub(super) streams: Slab<HubStream>,
    pub(super) generation: u32,
    pub(super) watchers: Slab<HubWatcher>,
    pub(super) interest: InterestIndex,
    pub(super) bodies: Bodies,
    pub(super) sizes: OutboxSizes,
    pub(super) owners: Owners,
    /// Watchers without a start revision, created while the hub lagged the store.
    pub(super) joining: Positions,
    /// Watchers with a start in the future.
    pub(super) future: Positions,
    /// Number of watchers of either kind that may still become live in this turn.
    pub(super) promotions_left: usize,
    pub(super) lagging: Positions,
    pub(super) live: usize,
    pub(super) parked: usize,
    pub(super) cursor: i64,
    pub(super) is_pass_next: bool,
    pub(super) step: u32,
    pub(super) ready: Vec<u32>,
    /// Streams with events in their outbox, in the order of their last read or first event.
    pub(super) stalls: BTreeMap<u64, u32>,
    pub(super) stalls_next: u64,
    /// Closed streams with watchers still to be removed.
    pub(super) closed: Vec<u32>,
    /// Streams that have taken all entries before the next part of a large revision, by queue
    /// position.
    pub(super) wanting: BTreeMap<u64, WatchStreamId>,
    /// Streams with a large next response, while streams hold too much of such responses.
    pub(super) held_back: HeldBack,
    /// Bytes of large responses that were granted to streams but not taken.
    pub(super) granted_bytes: usize,
    pub(super) asked: Vec<WatchStreamId>,
    pub(super) timers: BTreeSet<(Duration, u32)>,
    pub(super) events: u64,
    pub(super) evictions: u64,
}

/// Generation of closed streams, never used by open ones.
pub(super) const CLOSED: u32 = 0;

pub(super) struct HubStream {
    pub generation: u32,
    pub owner: ClientId,
    /// Watchers by watch id. Ordered, so that their order is the same in each run.
    pub watchers: BTreeMap<i64, u32>,
    pub next_id: i64,
    pub outbox: Outbox,
    pub parked: Vec<u32>,
    pub unsynced: usize,
    pub notified: usize,
    /// Watch id at which the periodic notifications resume; `None` if none are due.
    pub notify_from: Option<i64>,
    /// Revision that the hub must reach before it responds to a progress request.
    pub asked_at: Option<i64>,
    /// Interval of periodic notifications, and the time of the next one.
    pub period: Duration,
    pub due: Duration,
    pub stall: Option<u64>,
    pub wanting: Option<u64>,
    pub is_held_back: bool,
    /// Bytes of the large response that it was granted; 0 without a grant.
    pub granted_bytes: usize,
    pub is_ready: bool,
}

/// A watcher. 40 bytes: there are millions of them.
pub(super) struct HubWatcher {
    pub watch_id: i64,
    /// Next revision to deliver. Unused while live: live watchers share the hub's position.
    pub next: i64,
    pub stream: u32,
    pub group: u32,
    pub in_group: u32,
    /// Index in the list of its state.
    pub place: u32,
    pub state: WatcherState,
    pub is_notified: bool,
    /// True if it got an event since the last periodic notification.
    pub is_active: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatcherState {
    /// Receives new events. In the first part of its group's list.
    Live,
    /// Reads history. In `Hub::lagging`.
    Lagging,
    /// Waits because its stream's outbox is full. In `Stream::parked`.
    Parked,
    /// Starts after a revision that the hub has not reached. In `Hub::joining`.
    Joining,
    /// Starts at a revision that is not published yet. In `Hub::future`.
    Future,
    /// Canceled by a compaction. Only its id stays in use, until the client cancels it. In no
    /// group.
    Compacted,
    Idle,
}

impl Hub {
    /// Creates a hub without streams. It delivers the events after the current revision of the
    /// store.
    pub fn new(store: Store, limits: WatchLimits) -> Self {
        Hub {
            position: store.revision(),
            follower: None,
            store,
            streams: Slab::default(),
            generation: 0,
            watchers: Slab::default(),
            interest: InterestIndex::default(),
            bodies: Bodies::new(limits.part_bytes),
            limits,
            sizes: OutboxSizes::default(),
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

    pub(super) fn slot(&self, stream: WatchStreamId) -> Option<u32> {
        let open = self.streams.get(stream.slot)?;
        (open.generation == stream.generation).then_some(stream.slot)
    }
}
