//! State of the core, without event handling.

mod snapshots; // snapshots in progress

mod logger; // raft-rs' lines as tracing events

mod core_state; // the state itself

pub(crate) use core_state::Core;
#[cfg(test)]
pub(super) use core_state::{INFLIGHT_BYTES_MAX, inflight_messages_max};
pub(super) use snapshots::{Hold, position};
