//! The Raft core: events in, effects out. No clock, no disk, no channel; the same events give the same
//! effects.
//!
//! ```text
//!   events ──handle──▶ raft-rs ──turn──▶ Effects { send, persist, committed, confirmed }
//!     ▲                                     │        │         └▶ apply ──▶ Event::Applied
//!     └──────────── Event::Durable ◀────────┼── one sync
//!                                           └▶ peers, immediately
//! ```
//!
//! * A leader sends new entries in the same poll in which it passes them to the disk (Raft thesis 10.2.1);
//!   raft-rs counts the leader's own vote for an entry only after `Durable`. All other messages that promise
//!   durability are inside the persist job.
//! * Jobs are numbered; `Durable` for a job covers all earlier ones.
//! * Committed entries are output in order, each once, only when they are also synced here, and only while
//!   less than `apply_bytes_max` of them wait to be applied. The remaining ones are fetched again when there
//!   is capacity.
//! * An advanced commit index does not require a sync: it is written with the next job.
//! * Memory is bounded in bytes, for entries of any size: see `raft_config` in `state/core_state.rs`.
//!
//! An entry on a leader of three, event by event; each line is a poll:
//!
//! | event | effects |
//! |---|---|
//! | a batch is proposed | `send`: the entry to both followers · `persist`: job 7 with the entry |
//! | an acknowledgement of a follower | none: one copy of three is durable, its own may not be |
//! | `Durable` of job 7 | two copies: committed. `committed`: the entry · `send`: the new commit index |
//! | `Applied` | capacity for the next entry |
//!
//! The last two lines may swap with the acknowledgement of the other follower: then the entry commits
//! without this leader's disk, and is applied here only once it is also synced here.
//!
//! On a follower, `persist` contains the entry together with the acknowledgement, which is a promise; the
//! entry is output when a later message has raised the commit index, and not before the job is durable.

mod event; // events and effects
mod inquiry; // when a member with an empty log may vote
mod read_names; // numbers of read rounds

mod state; // state of the core

mod membership; // membership changes

mod hold; // members whose log was empty at their start
mod notices; // commit indexes without a response
mod read_index; // ReadIndex requests of followers
mod snapshots; // offers, installs, truncation
mod ticks; // ticks, elections, stalled disks

mod turn; // events in, effects out; ready; what is committed

pub use event::{CoreSetup, Effects, Event};
pub use inquiry::{Confirmation, FirstState, Inquiry, PeerState, Start};
pub use snapshots::HOLD_BYTES_MAX;

pub(crate) use event::{CommittedEntry, CoreTurn, Payload};
pub(crate) use state::Core;

#[cfg(any(test, fuzzing))]
pub use conversation::fuzzed_conversation;

#[cfg(test)]
mod bounds_tests;
// Of the fuzz targets, which are outside the workspace. It needs the parts of the core.
#[cfg(any(test, fuzzing))]
#[path = "../../../../fuzz/conversation.rs"]
mod conversation;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod tests;
