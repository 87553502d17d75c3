//! Watch: events of the key space as they are applied, from any revision that is not compacted.
//!
//! ```text
//!   Requests ──WatchRequest──▶ WatchStream ──▶ hub
//!   Replies ◀──frames── Encoder ◀──parcels────┘
//! ```
//!
//! * Requests are handed to the hub in order. Its answers and events leave in the order in which the hub made
//!   them.
//! * Nothing is encoded before the client takes bytes. A client that does not read fills its outbox in the
//!   hub, and no more than a chunk here.
//! * A malformed message ends the stream. A request without a kind is ignored, as in etcd.

mod serve; // one stream

pub use serve::{changed, review_now, serve};

#[cfg(test)]
mod tests;
