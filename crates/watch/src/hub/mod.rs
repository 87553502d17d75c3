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
//! * The hub has one position: the last revision whose events all live watchers have in their outbox.
//! * A live watcher has been sent every event up to that position.
//! * A lagging or parked watcher has been sent every event before its `next`.
//! * Events enter an outbox in whole revisions and in revision order for each watcher.
//! * A revision whose events with previous pairs are too large to be held enters an outbox as a reference. It
//!   is read in parts when its turn to be sent comes.
//! * What enters an outbox is sent in that order. Events that are taken back from an outbox (eviction) are
//!   read again from history.

mod outbox; // what streams have to send

mod state; // the hub's values

mod held_back; // large responses that streams hold
mod membership; // a watcher moves between its states
mod sending; // into outboxes and out of them

mod parts; // revisions that are sent in parts

mod batch; // events are matched and encoded
mod catch_up; // history for lagging watchers
mod live; // new events for live watchers
mod progress; // progress notifications

mod requests; // create, cancel, progress
mod turns; // bounded steps

pub use state::Hub;
