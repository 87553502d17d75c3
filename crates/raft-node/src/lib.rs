//! Replication: commands in, the same commands out on every member, in one order, once each is durable on a quorum.
//!
//! ```text
//!   Handle ──▶ inbox ──▶ driver ──events──▶ Core ──effects──▶ send now ─────────▶ Transport
//!                                            (pure)        ├─▶ persist job ─▶ log thread ─receipt─▶ Transport, driver
//!                                                          └─▶ committed ───▶ apply thread ─▶ StateMachine ─▶ replies
//! ```
//!
//! * The only user of raft-rs: none of its types appears in this crate's interface.
//! * A message that promises durability leaves only after the sync it promises: it sits inside the persist job,
//!   and the receipt of a successful sync is the only door out.
//! * A proposal is answered only after its command was applied here; a read point only when everything up to it was.
//! * After a failed write, sync or apply nothing more is acknowledged: `on_fatal` is called and the threads end.
//!
//! The life of a command, with what each step waits for:
//!
//! 1. `propose` checks the bounds and queues it. Refused here, it costs nobody anything.
//! 2. The driver's next turn makes one entry of all that wait; on a follower the batch leaves for the leader.
//! 3. The entry leaves for the followers at once and goes to the log thread: the disks work at the same time.
//! 4. A quorum's acknowledgements commit it, this member's own sync among them or not.
//! 5. When it is committed and synced here, its commands go to the machine, in order: by the apply thread or, if they are few and
//!    brief and nothing else waits, by the driver.
//! 6. The outcomes of the whole entry cross to the async runtime together and wake those who wait.
//!
//! A linearizable read takes the short way: one round of heartbeats for all that wait, the index it confirms, and a wait for
//! step 5 to have reached that index.
//!
//! What is kept where: the log on disk from its start on, its newest entries in memory; the machine's state with the
//! process; the log's start follows the machine's checkpoints. A member that needs an entry from before the start gets the
//! state instead (`core/snapshots.rs`).
//!
//! Knows nothing of what a command means, of sockets, or of members' addresses.

#[cfg(all(
    not(debug_assertions),
    any(
        feature = "mutant-early-promises",
        feature = "mutant-leader-counts-unsynced",
        feature = "mutant-forgotten-vote",
        feature = "mutant-lease-reads",
        feature = "mutant-early-reads",
        feature = "mutant-minority-reads",
        feature = "mutant-late-readers",
        feature = "mutant-kept-conflicts",
        feature = "mutant-early-trim",
        feature = "mutant-early-install"
    )
))]
compile_error!("a mutant breaks a promise on purpose: it is built with debug assertions, and never ships");

// What others see.
mod config; // what a member is told at start, every bound with its reason
mod error; // what can go wrong, as the caller may tell it apart
mod handle; // propose, read, receive, status
mod interface; // the traits that the process supplies: state machine, transport, observer
mod start; // brings a member up from its log

// The heart: pure functions of what happened.
mod apply; // committed entries into the state machine
mod core; // Raft as events in, effects out
mod event; // those events and effects
mod found; // the log at the start, and whether it belongs here
mod node; // the core together with those who wait for it
mod persist; // what must be on disk, and the promises that depend on it

// Those who wait, and the log.
mod proposals; // from arrival to batch to answer
mod reads; // rounds that confirm linearizable reads
mod store; // the log as raft-rs reads it

// Encodings.
mod batch; // many commands as one entry
mod codec; // numbers and byte strings
pub mod inspect; // what lies in a log, for whoever only looks
mod logger; // raft-rs' lines as tracing events
mod message; // Raft messages on the wire
mod state; // votes, commit and membership on disk

// The shell.
mod applying; // by whom they are applied
mod driver; // the loop around a node
mod inbox; // how it is told
mod mailbox; // how the threads are told
mod replies; // how waiters are told
mod shared; // what they have in common
mod threads; // log and apply

pub use apply::{Applier, ApplyJob, Done};
pub use config::{Config, Limits};
pub use driver::Driver;
pub use error::{ProposeError, ReadError, StartError, TransferError, causes};
pub use event::{Event, Setup, SnapshotOffer, SnapshotOutcome};
pub use found::Found;
pub use handle::{Handle, Role, Status};
pub use interface::{Answer, Fatal, Lane, LogSync, Observer, Position, StateMachine, StoreState, Transport};
pub use message::Outbound;
#[doc(hidden)]
pub use message::fuzzed_message;
pub use node::{Gauges, Node, NodeSetup, Turn};
pub use persist::{Durable, PersistJob, Persisted, Receipt, persist};
pub use replies::Pump;
pub use start::{Log, Started, Threads, start};
