//! Watch hub: delivers each event of a watcher's range exactly once, in revision order.
//!
//! ```text
//!   mvcc::Store ──changes──▶ Hub ──outbox of each stream──▶ Parcel ──Encoder──▶ gRPC frames
//!                             ▲
//!         create, cancel, progress of each stream; time
//! ```
//!
//! * A watcher is a position in the store's history. There are no event queues: a lagging watcher
//!   reads the block log again.
//! * An event is encoded once and shared by all watchers with the same form.
//! * The cost of an event depends on the number of matching watchers, not on the total.
//! * A stream that does not read holds a bounded number of bytes. All streams together hold a
//!   bounded number of event bytes, including those handed to them.
//!
//! A single thread calls the hub, in bounded turns. The crate uses no clock, thread, socket or
//! network. It does not check permissions.

mod types; // requests, limits and counters

mod held_back; // streams that wait for room, clients in turn
mod owners; // what each client uses of the limits
mod slab; // values with 32-bit numbers, watchers by revision

mod wire; // events and responses as bytes

mod interest; // which groups of watchers match a key

mod hub; // watchers, streams and the delivery of events

pub use base::ClientId;
pub use hub::Hub;
pub use types::{CreateRequest, HubOutput, Stats, WatchLimits, WatchStreamId};
pub use wire::{Encoder, HeldBytes, Parcel};
