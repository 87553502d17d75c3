//! Replication: commands in, the same commands out on every member, in one order, once each is durable on a
//! quorum.
//!
//! ```text
//!   Handle ──▶ inbox ──▶ driver ──events──▶ Core ──effects──▶ send now ─────────▶ Transport
//!                                            (pure)        ├─▶ persist job ─▶ log thread ─▶ driver, peers
//!                                                          └─▶ committed ─▶ apply thread ─▶ machine, replies
//! ```
//!
//! * The only user of raft-rs: none of its types appears in this crate's interface.
//! * A message that promises durability is sent only after the sync that it depends on: it is inside the
//!   persist job, and only the receipt of a successful sync releases it.
//! * A proposal completes only after its command was applied here; a read only after all entries up to its
//!   index were.
//! * After a failed write, sync or apply this member acknowledges no more requests: `on_fatal` is called and
//!   the threads exit.
//!
//! The path of a command, and the wait of each step:
//!
//! 1. `propose` checks the limits and queues it. A rejection here costs no other member any work.
//! 2. The driver's next poll combines all queued commands into an entry; on a follower the batch is
//!    forwarded to the leader.
//! 3. The entry is sent to the followers immediately and passed to the log thread: the disks work
//!    concurrently.
//! 4. Acknowledgements of a quorum commit it, with or without this member's own sync.
//! 5. When it is committed and synced here, its commands go to the machine, in order: by the apply thread
//!    or, if they are few and brief and no other work waits, by the driver.
//! 6. The outcomes of the whole entry cross to the async runtime together and wake the callers.
//!
//! A linearizable read needs one heartbeat round, shared by all pending reads. It completes when step 5 has
//! reached the confirmed index.
//!
//! The log is on disk, with its latest entries in memory; the process stores the machine's state; the start
//! of the log follows the machine's checkpoints. A member that needs an entry from before the start gets the
//! state instead (`core/snapshots.rs`).
//!
//! Independent of the meaning of commands, of sockets, and of members' addresses.

#![allow(unexpected_cfgs, reason = "the build of the fuzz targets sets `fuzzing`")]

// Interface
mod config; // configuration and limits of a member
mod error; // errors, as callers distinguish them
mod traits; // interfaces provided by the process: state machine, transport, observer
mod types; // plain values

// Encodings
pub mod inspect; // read-only inspection of a log
mod log; // durable jobs, reading by raft-rs, recovery
mod wire; // encodings of entries, state and messages

// Core: pure functions of events
mod core; // Raft as events in, effects out
mod node; // the core with proposals, reads and the machine

// Shell: threads and queues
mod runtime; // threads, tasks, clocks and queues; the handle

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use crate::core::fuzzed_conversation;
pub use crate::core::{
    Confirmation, CoreSetup, Effects, Event, FirstState, HOLD_BYTES_MAX, Inquiry, PeerState, Start,
};
pub use base::Cost;
pub use config::{Config, RaftLimits};
pub use error::{ProposeError, ReadError, StartError, TransferError};
pub use log::{
    Durable, ForceError, GroupCost, LogSpan, PersistJob, Receipt, ReceiveSlot, RecoveredLog, StoreChoice,
    StoreFound, StreamNumber, SyncRelease, choose_store, force_change, persist, state_after,
};
pub use node::{Applier, ApplyJob, Gauges, Node, NodeOutput, NodeSetup, StepResult, apply_brief_first};
pub use runtime::{
    Driver, Entrance, Handle, Inbox, Log, Permit, Pump, RequestOrigin, StartedMember, Status, Threads, start,
};
pub use traits::{Host, LogSync, Observer, StateMachine, Transport};
pub use types::{
    Answer, ChangeCheck, EmptyLog, Fatal, Lane, LogIndex, LogPosition, Membership, NodeId, Progress, Role,
    StoreState, Term,
};
#[doc(hidden)]
pub use wire::fuzzed_message;
pub use wire::{Outbound, SnapshotOffer, SnapshotOutcome, is_snapshot, snapshot_position};
