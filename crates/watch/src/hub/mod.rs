//! The hub: streams, their watchers, and the delivery of events.
//!
//! ```text
//!             ┌──────────────── outbox full: parked until it is half empty ───────────────┐
//!             │                                                                           ▼
//!   create ─▶ live ◀── at the hub's position ── lagging ◀── history is read in steps ── parked
//!      │       ▲                                 ▲
//!      │       └── joining, future: the hub's position reaches the first revision
//!      └───────────────────────────────────────────── start revision in the past
//! ```
//!
//! * The hub's position is the last revision that has been delivered to the outboxes of all live
//!   watchers.
//! * A live watcher has been sent every event up to that position.
//! * A lagging or parked watcher has been sent every event before its `next`.
//! * Events enter an outbox in whole revisions and in revision order for each watcher.
//! * A revision with previous pairs that are too large to hold enters an outbox as a reference. It
//!   is read in parts when it is sent.
//! * An outbox is sent in order. Events that are evicted from an outbox are read again from
//!   history.

mod outbox; // what streams have to send

mod state; // the hub's values

mod held_back; // large responses that streams hold
mod membership; // a watcher moves between its states
mod sending; // into outboxes and out of them

mod parts; // revisions that are sent in parts

mod catch_up; // history for lagging watchers
mod live; // new events for live watchers, matched and encoded
mod progress; // progress notifications

mod requests; // create, cancel, progress

use mvcc::Result;

pub use self::state::Hub;
use crate::types::HubOutput;

impl Hub {
    /// Delivers new events, and history to lagging watchers: at most about
    /// `WatchLimits::step_bytes` of each.
    ///
    /// Errors: the store is corrupt or its disk fails. The member must stop.
    pub fn turn(&mut self) -> Result<HubOutput> {
        self.promotions_left = self.limits.turn_watchers;
        self.remove_closed();
        self.deliver_new()?;
        self.evict(0);
        self.catch_up()?;
        self.evict(0);
        self.make_parts()?;
        self.resume_held_back();
        self.answer_progress();
        Ok(HubOutput { more: self.has_work() })
    }

    /// Reports whether a turn has work to do. Reading an outbox may change it.
    pub fn has_work(&self) -> bool {
        self.position < self.store.revision()
            || self.has_promotions()
            || self.lagging.len() > 0
            || !self.asked.is_empty()
            || self.may_make_parts()
            || self.next_to_resume().is_some()
            || !self.closed.is_empty()
    }
}
