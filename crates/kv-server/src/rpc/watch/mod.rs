//! Watch: events of the key space as they are applied, from any revision that is not compacted.
//!
//! ```text
//!   Requests ──WatchRequest──▶ WatchStream ──▶ hub
//!   Replies ◀──frames── Encoder ◀──parcels────┘
//! ```
//!
//! * Requests are passed to the hub in order. Its responses and events are sent in the order in which the
//!   hub created them.
//! * Encoding happens only when the client takes bytes. A client that does not read fills its outbox in the
//!   hub, and at most a chunk here.
//! * A malformed message closes the stream. A request without a kind is ignored, as in etcd.

mod serve; // one stream

pub use serve::{changed, review_now, serve};

#[cfg(test)]
mod tests;
