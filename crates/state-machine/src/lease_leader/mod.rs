//! Lease duties of the leader: its clock, renewals, and expiry.
//!
//! ```text
//!   LedTerm ── lease clock ──▶ Turns ──▶ leases to record, leases to expire
//!                        └───▶ RenewalBatch ── steps ──▶ leases to record, confirmations ──▶ responses
//! ```
//!
//! * Pure: time is a parameter, and the caller proposes the commands. So the server and the
//!   simulation run the same code.
//! * Apply decides whether a lease has expired (`lease`). A bug here can only delay an expiry,
//!   except for a clock that is ahead and a renewal that is acknowledged without a record.
//!
//! Must not depend on tasks, Raft or clocks. See docs/decisions/0040.

mod anchor; // the lease clock of a member and of a term
mod renewal; // how renewals and questions are answered

mod expiry; // which leases are due
mod turns; // what the leader records and expires

pub use anchor::{Anchor, LedTerm};
pub use renewal::{Chosen, Remaining, RenewalBatch, RenewalStep, UNREVOKED, WhenExpired, remaining};
pub use turns::{LEASE_TURN, LeaderTurns, TurnWork, leases_in_command};
