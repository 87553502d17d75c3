//! The log of a member: writing, reading by raft-rs, and recovery.

mod durable_state; // votes, commit and membership on disk

mod persist; // what must be on disk, and the promises that depend on it
mod store; // the log as raft-rs reads it

mod force; // a log that is made to be that of a lone member

mod fit; // which store a log goes on from
mod found; // the log at the start, and whether it belongs here

pub use durable_state::state_after;
pub use fit::{LogSpan, ReceiveSlot, StoreChoice, StoreFound, StreamNumber, choose_store};
pub use force::{ForceError, force_change};
pub use found::RecoveredLog;
pub use persist::{Durable, GroupCost, PersistJob, Receipt, SyncRelease, persist};

pub(crate) use durable_state::{DurableState, NO_PART_TAKEN};
pub(crate) use found::durable_state;
pub(crate) use persist::Restart;
pub(crate) use store::{Archive, LogStore, restarted};
