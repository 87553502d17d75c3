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
//! * What enters an outbox is sent in that order. Events that are taken back from an outbox (eviction) are
//!   read again from history.

mod bodies; // encoded events, shared by outboxes
mod outbox; // what one stream has to send

mod state; // the hub's values

mod membership; // a watcher moves between its states
mod sending; // into outboxes and out of them

mod batch; // events are matched and encoded
mod catch_up; // history for lagging watchers
mod live; // new events for live watchers
mod progress; // progress notifications

mod requests; // create, cancel, progress
mod turns; // bounded steps

pub use state::Hub;
