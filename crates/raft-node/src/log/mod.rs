//! The log of a member: writing, reading by raft-rs, and recovery.

mod durable_state; // votes, commit and membership on disk

mod persist; // jobs, and the promises that depend on them
mod store; // the log as read by raft-rs

mod force; // a forced single-member cluster

mod fit; // selects the store for a log
mod found; // the recovered log, and its consistency

pub use durable_state::state_after;
pub use fit::{LogSpan, ReceiveSlot, StoreChoice, StoreFound, StreamNumber, choose_store};
pub use force::{ForceError, force_change};
pub use found::RecoveredLog;
pub use persist::{Durable, GroupCost, PersistJob, Receipt, SyncRelease, persist};

pub(crate) use durable_state::{DurableState, NO_PART_TAKEN};
pub(crate) use found::durable_state;
pub(crate) use persist::Restart;
pub(crate) use store::{Archive, LogStore, restarted};
