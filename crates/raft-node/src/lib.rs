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
//! * A message that promises durability leaves only after the sync it promises: it is inside the persist job,
//!   and only the receipt of a successful sync gives it out.
//! * A proposal is answered only after its command was applied here; a read point only when everything up to
//!   it was.
//! * After a failed write, sync or apply nothing more is acknowledged: `on_fatal` is called and the threads
//!   end.
//!
//! The path of a command, with what each step waits for:
//!
//! 1. `propose` checks the bounds and queues it. A refusal here costs no other member anything.
//! 2. The driver's next turn makes one entry of all that wait; on a follower the batch leaves for the leader.
//! 3. The entry leaves for the followers at once and goes to the log thread: the disks work at the same time.
//! 4. A quorum's acknowledgements commit it, this member's own sync among them or not.
//! 5. When it is committed and synced here, its commands go to the machine, in order: by the apply thread or,
//!    if they are few and brief and nothing else waits, by the driver.
//! 6. The outcomes of the whole entry cross to the async runtime together and wake those who wait.
//!
//! A linearizable read needs one heartbeat round, shared by all that wait. It is answered when step 5 has
//! reached the confirmed index.
//!
//! What is kept where: the log on disk from its start on, its newest entries in memory; the machine's state
//! with the process; the log's start follows the machine's checkpoints. A member that needs an entry from
//! before the start gets the state instead (`core/snapshots.rs`).
//!
//! Knows nothing of what a command means, of sockets, or of members' addresses.

// The interface.
mod config; // the configuration of a member, every bound with its reason
mod error; // errors, as the caller may distinguish them
mod traits; // what the process supplies: state machine, transport, observer
mod types; // plain values

// Encodings.
pub mod inspect; // what a log contains, without opening it for a member
mod log; // what must be durable, what raft-rs reads, what a start finds
mod wire; // encodings of entries, state and messages

// The core: pure functions of events.
mod core; // Raft as events in, effects out
mod node; // the core with proposals, reads and the machine

// The shell: threads and queues.
mod runtime; // threads, tasks, clocks and queues; the handle

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
