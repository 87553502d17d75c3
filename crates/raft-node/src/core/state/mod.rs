//! What the core knows. Nothing here handles an event.

mod disk_stall; // how long the disk has kept this member waiting
mod snapshots; // snapshots on their way
mod validate; // what a peer's message must satisfy

mod logger; // raft-rs' lines as tracing events
mod raft_config; // how raft-rs is set up
mod reports; // what other members have applied

mod core_state; // the state itself

pub(crate) use core_state::Core;
#[cfg(test)]
pub(super) use raft_config::{INFLIGHT_BYTES_MAX, inflight_messages_max};
pub(super) use snapshots::{Hold, position};
pub(super) use validate::{CoreView, validate};
