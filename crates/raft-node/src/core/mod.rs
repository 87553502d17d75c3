//! The Raft core: events in, effects out. No clock, no disk, no channel; the same events give the same
//! effects.
//!
//! ```text
//!   events ──handle──▶ raft-rs ──turn──▶ Effects { send, persist, committed, confirmed }
//!     ▲                                     │        │         └▶ apply ──▶ Event::Applied
//!     └──────────── Event::Durable ◀────────┼── one sync
//!                                           └▶ peers, at once
//! ```
//!
//! * What a leader appends leaves in the same turn as it is handed to the disk (Raft thesis 10.2.1); raft-rs
//!   counts the leader's own vote for an entry only after `Durable`. Everything else that promises durability
//!   is inside the persist job.
//! * Jobs are numbered; `Durable` of one covers all before it.
//! * Committed entries are handed out in order, each once, only when they are synced here as well, and only
//!   while less than `apply_bytes_max` of them wait to be applied. The rest is fetched again when there is
//!   room.
//! * A commit index that moved is no reason to sync: it rides along with the next job.
//! * Memory is bounded by bytes, for entries of any size: `raft_config` in `state/core_state.rs` says how.
//!
//! An entry on a leader of three, event by event; each line is one turn:
//!
//! | event | effects |
//! |---|---|
//! | a batch is proposed | `send`: the entry to both followers · `persist`: job 7 with the entry |
//! | an acknowledgement of one follower | nothing: one copy of three is synced for sure, its own is not |
//! | `Durable` of job 7 | two copies: committed. `committed`: the entry · `send`: the new commit index |
//! | `Applied` | room for the next |
//!
//! The last two lines may change places with the acknowledgement of the other follower: then the entry
//! commits without this leader's disk, and is applied here only once it is synced here as well.
//!
//! What a follower does with it: `persist` holds the entry together with the acknowledgement, which is a
//! promise; the entry is handed out when a later message brings the commit index, and not before the job was
//! durable.

mod event; // events and effects
mod inquiry; // when a member with an empty log may vote
mod read_names; // numbers of read rounds

mod state; // what the core knows

mod membership; // changes of who takes part

mod hold; // members whose log was empty at their start
mod notices; // commit indexes that need no answer
mod read_index; // read index requests of followers
mod snapshots; // offers, installs, trimming
mod ticks; // ticks, elections, stalled disks

mod turn; // events in, effects out; ready; what is committed

mod conversation; // any sequence of messages, for fuzzers

pub use conversation::fuzzed_conversation;
pub use event::{CoreSetup, Effects, Event};
pub use inquiry::{Confirmation, FirstState, Inquiry, PeerState, Start};
pub use snapshots::HOLD_BYTES_MAX;

pub(crate) use event::{CommittedEntry, CoreTurn, Payload};
pub(crate) use state::Core;

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod tests;
