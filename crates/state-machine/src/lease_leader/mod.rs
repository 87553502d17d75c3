//! What the leader does with leases: its clock, renewals, and which leases are due.
//!
//! ```text
//!   LedTerm ── lease clock ──▶ Turns ──▶ leases to record, leases to expire
//!                        └───▶ RenewalBatch ── steps ──▶ leases to record, confirmations ──▶ answers
//! ```
//!
//! * Pure: time is a parameter, and the caller proposes the commands. So the server and the simulation run
//!   the same code.
//! * Apply decides whether a lease is expired (`lease`). A mistake here delays an expiry at most, except for
//!   a clock that is ahead and a renewal that is answered without a record.
//!
//! Must not know tasks, Raft or clocks. See docs/decisions/0040.

mod anchor; // the lease clock of a member and of a term
mod renewal; // how renewals and questions are answered

mod expiry; // which leases are due
mod turns; // what the leader records and expires

pub use anchor::{Anchor, LedTerm};
pub use renewal::{Chosen, Remaining, RenewalBatch, RenewalStep, UNREVOKED, WhenExpired, remaining};
pub use turns::{LEASE_TURN, LeaderTurns, TurnWork, leases_in_command};
